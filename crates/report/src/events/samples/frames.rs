//! The frames of sampled stacks.

use std::collections::{HashMap, HashSet};

use tllmprof_record::{StringId, Strings};

use super::native::Modules;
use crate::events::facts::{Facts, name};

/// How many frames are kept; more are counted.
const FRAMES: usize = 1 << 22;

/// How deep a stack is at most: what a damaged record leads in a circle is cut there.
const DEEPEST: usize = 512;

/// A node of the tree of calls.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The caller's id; 0: none.
    pub parent: u32,
    /// Its place in [`Frames::functions`].
    pub function: u32,
}

/// A function.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Function {
    /// As the record has it, printable or not; of a native one the symbol, if it was found.
    pub name: String,
    /// The same with the last part of its file's path alone.
    pub label: String,
}

/// Frames as they come.
#[derive(Debug, Default)]
pub struct RawFrames(HashMap<u32, (u32, StringId)>);

/// The frames of a record by their ids.
#[derive(Debug, Default)]
pub struct Frames {
    by_id: HashMap<u32, Frame>,
    /// Each once.
    pub functions: Vec<Function>,
}

impl RawFrames {
    /// Adds a frame; whether there was room for it.
    pub fn add(&mut self, id: u32, parent: u32, name: StringId) -> bool {
        let has_room = self.0.len() < FRAMES || self.0.contains_key(&id);
        if has_room && id != 0 {
            self.0.insert(id, (parent, name));
        }
        has_room
    }

    /// Gives them names. `native` are the innermost frames of native stacks.
    pub fn finish(self, native: HashSet<u32>, facts: &Facts, strings: &Strings) -> Frames {
        let mut all_native = HashSet::new();
        for mut id in native {
            while all_native.insert(id) {
                id = self.0.get(&id).map_or(0, |(parent, _)| *parent);
            }
        }
        let mut modules = Modules::of(facts);
        let mut known: HashMap<Function, u32> = HashMap::new();
        let mut by_string: HashMap<(StringId, bool), u32> = HashMap::new();
        let mut frames = Frames::default();
        let mut raw: Vec<_> = self.0.into_iter().collect();
        raw.sort_unstable_by_key(|(id, _)| *id);
        for (id, (parent, string)) in raw {
            let is_native = all_native.contains(&id);
            let function = *by_string.entry((string, is_native)).or_insert_with(|| {
                let text = strings.get(string);
                let function = match is_native {
                    true => modules.function(text),
                    false => python(text),
                };
                let next = known.len() as u32;
                *known.entry(function.clone()).or_insert_with(|| {
                    frames.functions.push(function);
                    next
                })
            });
            frames.by_id.insert(id, Frame { parent, function });
        }
        frames
    }
}

impl Frames {
    #[must_use]
    pub fn get(&self, id: u32) -> Option<Frame> {
        self.by_id.get(&id).copied()
    }

    /// The functions of a stack, the outermost first.
    #[must_use]
    pub fn stack(&self, innermost: u32) -> Vec<u32> {
        let mut stack = Vec::new();
        let mut next = innermost;
        while stack.len() < DEEPEST
            && let Some(frame) = self.get(next)
        {
            stack.push(frame.function);
            next = frame.parent;
        }
        stack.reverse();
        stack
    }

    /// The name of the function of a frame.
    #[must_use]
    pub fn innermost(&self, id: u32) -> &str {
        self.get(id).map_or("?", |frame| self.name(frame.function))
    }

    /// The name of a function.
    #[must_use]
    pub fn name(&self, function: u32) -> &str {
        let known = self.functions.get(function as usize);
        known.map_or("?", |function| &function.name)
    }

    /// Its label.
    pub fn label(&self, function: u32) -> &str {
        let known = self.functions.get(function as usize);
        known.map_or("?", |function| &function.label)
    }
}

/// A Python function, `QUALNAME (FILE:LINE)`.
fn python(text: &str) -> Function {
    let label = match text.rsplit_once(" (") {
        Some((qualified, place)) => {
            let file = place.rsplit_once('/').map_or(place, |(_, file)| file);
            format!("{qualified} ({file}")
        }
        None => text.to_owned(),
    };
    Function {
        name: name(text),
        label: name(&label),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_no_folders() {
        let label = |text: &str| python(text).label;
        assert_eq!(
            label("Scheduler.schedule (/opt/vllm/v1/core/sched.py:211)"),
            "Scheduler.schedule (sched.py:211)"
        );
        assert_eq!(label("f.<locals>.g (x.py:1)"), "f.<locals>.g (x.py:1)");
        assert_eq!(label("<module>"), "<module>");
    }

    #[test]
    fn a_circle_of_frames_ends() {
        let mut raw = RawFrames::default();
        assert!(raw.add(1, 2, 0) && raw.add(2, 1, 0) && raw.add(0, 0, 0));
        let native = HashSet::from([1, 9]);
        let frames = raw.finish(native, &Facts::default(), &Strings::default());
        assert_eq!(frames.stack(1).len(), DEEPEST);
        assert_eq!(frames.stack(0), [0_u32; 0]);
        assert_eq!(frames.functions.len(), 1);
    }
}
