//! The frames of sampled stacks. A frame is a function together with the chain of its callers.

use std::collections::{HashMap, HashSet};

use tllmprof_record::{StringId, Strings};

use super::function::{Function, Origin};
use super::location::Location;
use super::native::{Modules, is_in_program};
use super::sleep::Sleep;
use crate::events::facts::{Facts, name};

/// Maximum number of frames to store. Further frames are only counted.
const MAX_FRAMES: usize = 1 << 22;

/// Maximum depth of a stack. In a damaged record, the callers of a frame may form a cycle. The walk along the callers
/// stops at this limit.
const MAX_DEPTH: usize = 512;

/// A node of the call tree: a function, together with the chain of its callers.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// ID of the caller's frame; 0 if there is no caller.
    pub parent: u32,
    /// Index of the function in [`Frames::functions`].
    pub function: u32,
}

/// The frames that were read from a record so far. The key is a frame's ID. The value is the ID of the caller's frame
/// and the ID of the function's name.
#[derive(Debug, Default)]
pub(crate) struct RawFrames(HashMap<u32, (u32, StringId)>);

/// The frames of a record, found by their IDs.
#[derive(Debug, Default)]
pub struct Frames {
    by_id: HashMap<u32, Frame>,
    /// The functions that occur in frames, each only once.
    pub functions: Vec<Function>,
    /// The sleeps of threads, without duplicates. Samples refer to them by index in this list.
    pub sleeps: Vec<Sleep>,
    /// The native functions in files of programs, and not in shared libraries, by their indexes in `functions`.
    in_programs: HashSet<u32>,
}

impl RawFrames {
    /// Adds a frame. Returns false, and drops the frame, if [`MAX_FRAMES`] frames are stored already.
    pub(crate) fn add(&mut self, id: u32, parent: u32, name: StringId) -> bool {
        let has_room = self.0.len() < MAX_FRAMES || self.0.contains_key(&id);
        if has_room && id != 0 {
            self.0.insert(id, (parent, name));
        }
        has_room
    }

    /// Returns the frames with the functions' names. `native` contains the IDs of the innermost
    /// frames of native stacks.
    pub(crate) fn finish(self, native: HashSet<u32>, facts: &Facts, strings: &Strings) -> Frames {
        let mut all_native = HashSet::new();
        for mut id in native {
            while all_native.insert(id) {
                id = self.0.get(&id).map_or(0, |(parent, _)| *parent);
            }
        }
        let mut modules = Modules::new(facts);
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
                let index = *known.entry(function.clone()).or_insert_with(|| {
                    frames.functions.push(function);
                    next
                });
                if is_native && is_in_program(text) {
                    frames.in_programs.insert(index);
                }
                index
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

    /// Returns the functions of a stack, the outermost first. `innermost` is the ID of the stack's
    /// innermost frame.
    #[must_use]
    pub fn stack(&self, innermost: u32) -> Vec<u32> {
        let mut stack = Vec::new();
        let mut next = innermost;
        while stack.len() < MAX_DEPTH
            && let Some(frame) = self.get(next)
        {
            stack.push(frame.function);
            next = frame.parent;
        }
        stack.reverse();
        stack
    }

    /// Returns the function to which a sample of a native stack belongs. This is the function of the innermost frame,
    /// with one exception. If the program called tllmprof's library, and the innermost frames are in that library or in
    /// the base libraries that it called (the C library or a language's runtime), it is the function of the program
    /// that made the call. Returns `None` if the innermost frame is unknown.
    #[must_use]
    pub fn native(&self, innermost: u32) -> Option<u32> {
        let own = self.get(innermost)?.function;
        let stack = self.stack(innermost);
        let callers = || stack.iter().rev().copied();
        let origin = |function: u32| self.functions.get(function as usize).map(|it| it.origin);
        let is_base = |function: &u32| {
            let base = [Origin::C, Origin::Recorder, Origin::Runtime];
            origin(*function).is_some_and(|origin| base.contains(&origin))
        };
        let mut inner = callers().take_while(is_base);
        let is_recorders = inner.any(|it| origin(it) == Some(Origin::Recorder));
        let mut outer = callers().skip_while(is_base);
        let caller = outer.find(|it| origin(*it) == Some(Origin::Program));
        caller.filter(|_| is_recorders).or(Some(own))
    }

    /// Returns true for a native function of the program itself, and not of a library. `function` is its index in
    /// `functions`.
    pub(super) fn is_own_native(&self, function: u32) -> bool {
        let known = self.functions.get(function as usize);
        self.in_programs.contains(&function)
            && known.is_some_and(|known| known.origin == Origin::Program)
    }

    /// Returns the name of the function of the frame `id`; `?` if the frame is unknown.
    #[must_use]
    pub fn innermost(&self, id: u32) -> &str {
        self.get(id).map_or("?", |frame| self.name(frame.function))
    }

    /// Returns the name of a function, which is given by its index in `functions`; `?` if there is no such function.
    #[must_use]
    pub fn name(&self, function: u32) -> &str {
        let known = self.functions.get(function as usize);
        known.map_or("?", |function| &function.name)
    }

    /// Returns the location (file, line and name) of a function's code. `function` is its index in `functions`; `None`
    /// is returned if there is no such function.
    #[must_use]
    pub fn location(&self, function: u32) -> Option<Location> {
        let known = self.functions.get(function as usize);
        known.map(Function::location)
    }

    /// Returns a function's name for display, with only the last part of the file's path; `?` if there is no such
    /// function.
    pub fn label(&self, function: u32) -> &str {
        let known = self.functions.get(function as usize);
        known.map_or("?", |function| &function.label)
    }
}

/// Parses a Python function from a text of the form `QUALNAME (FILE:LINE)`. If the text has another form, the whole
/// text is the function's name.
fn python(text: &str) -> Function {
    let label = match text.rsplit_once(" (") {
        Some((qualified, place)) => {
            let file = place.rsplit_once('/').map_or(place, |(_, file)| file);
            format!("{qualified} ({file}")
        }
        None => text.to_owned(),
    };
    let place = text.rsplit_once(" (").map_or("", |(_, place)| place);
    Function {
        name: name(text),
        label: name(&label),
        origin: match is_of_library(place) {
            true => Origin::PythonLibrary,
            false => Origin::Program,
        },
    }
}

/// Returns true if a file belongs to Python's standard library.
fn is_of_library(file: &str) -> bool {
    let behind = file.split_once("/lib/python3.").map(|(_, behind)| behind);
    let is_installed = |path: &str| path.contains("-packages/");
    file.starts_with("<frozen ") || behind.is_some_and(|behind| !is_installed(behind))
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
    fn a_location_has_the_file_and_line_that_the_name_has() {
        let location = python("f.<locals>.g (/srv/a (b)/x.py:12)").location();
        assert_eq!(location.function, "f.<locals>.g");
        assert_eq!(location.file.as_deref(), Some("/srv/a (b)/x.py"));
        assert_eq!(location.line, Some(12));
        for name in ["<module>", "at::add(at::Tensor const&)", "f (x.py:many)"] {
            assert_eq!(python(name).location(), Location::native(name));
        }
    }

    #[test]
    fn pythons_own_library_is_known_by_its_folder() {
        let origin = |text: &str| python(text).origin;
        let library = "Condition.wait (/usr/lib/python3.12/threading.py:288)";
        assert_eq!(origin(library), Origin::PythonLibrary);
        let frozen = "_find_and_load (<frozen importlib._bootstrap>:1165)";
        assert_eq!(origin(frozen), Origin::PythonLibrary);
        let installed = "f (/usr/lib/python3.12/site-packages/vllm/x.py:2)";
        assert_eq!(origin(installed), Origin::Program);
        assert_eq!(origin("f (/home/u/x.py:2)"), Origin::Program);
    }

    #[test]
    fn time_in_the_recorder_is_its_callers() {
        let mut strings = Strings::default();
        let mut raw = RawFrames::default();
        let stack = [
            "/srv/engine+0x10",
            "/srv/libtllmprof.so+0x20",
            "/lib/libc.so.6+0x30",
        ];
        for (id, name) in (1..).zip(stack) {
            strings.add(id, name.as_bytes());
            assert!(raw.add(id, id - 1, id));
        }
        // The innermost frame is in the driver. So the sample belongs to the driver, although the call passed through
        // tllmprof's library.
        strings.add(4, b"/usr/lib/libcuda.so.1+0x40");
        assert!(raw.add(4, 2, 4));
        let frames = raw.finish(HashSet::from([3, 4]), &Facts::default(), &strings);
        let named = |id| frames.native(id).map(|function| frames.label(function));
        for id in [1, 2, 3] {
            assert_eq!(named(id), Some("engine+0x10"), "{id}");
        }
        assert_eq!(named(4), Some("libcuda.so.1+0x40"));
        assert_eq!(named(9), None);
    }

    #[test]
    fn a_circle_of_frames_ends() {
        let mut raw = RawFrames::default();
        assert!(raw.add(1, 2, 0) && raw.add(2, 1, 0) && raw.add(0, 0, 0));
        let native = HashSet::from([1, 9]);
        let frames = raw.finish(native, &Facts::default(), &Strings::default());
        assert_eq!(frames.stack(1).len(), MAX_DEPTH);
        assert_eq!(frames.stack(0), [0_u32; 0]);
        assert_eq!(frames.functions.len(), 1);
    }
}
