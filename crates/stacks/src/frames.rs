//! The frames of all sampled stacks, as a tree: each frame is written once.

use core::hash::BuildHasherDefault;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;

use tllmprof_platform::lifecycle;
use tllmprof_python::stacks::OfAddress;
use tllmprof_recorder::{self as recorder, Event, NO_STRING, StringId, What};

/// Largest number of frames that are known at a time.
const MAX_FRAMES: u32 = 1 << 16;
/// Number of ids in a half of the range. There are two halves. When windows are overwritten, so are their frames, and
/// the ids are used again.
const IDS_PER_HALF: u32 = 1 << 23;

lifecycle::global! {
    stage: Sinks;

    /// The last id that was assigned.
    #[fork(reset)]
    static LAST: AtomicU32 = AtomicU32::new(0);
    /// Number of windows that had opened when each half was used up.
    #[fork(reset)]
    static USED_UP: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
}

/// Ids of frames, by the caller's id and the function's.
#[derive(Default)]
pub struct Frames {
    known: HashMap<u64, u32, BuildHasherDefault<OfAddress>>,
}

impl Frames {
    /// Returns the id of the innermost of these functions, of which the outermost comes first; 0 if there is no more
    /// room for frames.
    pub fn innermost(&mut self, functions: impl Iterator<Item = StringId>) -> u32 {
        let mut parent = 0;
        for name in functions {
            match self.id(parent, name) {
                Some(id) => parent = id,
                None => return 0,
            }
        }
        parent
    }

    fn id(&mut self, parent: u32, name: StringId) -> Option<u32> {
        let key = u64::from(parent) << 32 | u64::from(name);
        if let Some(id) = self.known.get(&key) {
            return Some(*id);
        }
        if self.known.len() >= MAX_FRAMES as usize || name == NO_STRING {
            return None;
        }
        let id = next()?;
        self.known.insert(key, id);
        recorder::latest(&Event::new(
            recorder::ticks(),
            0,
            What::Frame { id, parent, name },
        ));
        Some(id)
    }
}

/// Returns an id that no frame of the record has, or only frames of windows that were overwritten.
fn next() -> Option<u32> {
    let last = LAST.load(Ordering::Relaxed);
    let id = (last + 1) % (2 * IDS_PER_HALF);
    let (half, of_last) = ((id / IDS_PER_HALF) as usize, (last / IDS_PER_HALF) as usize);
    if half != of_last {
        let (opened, gone) = recorder::windows();
        if gone < USED_UP[half].load(Ordering::Relaxed) {
            return None;
        }
        USED_UP[of_last].store(opened, Ordering::Relaxed);
    }
    let id = id.max(1);
    LAST.store(id, Ordering::Relaxed);
    Some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_has_the_frames_of_its_callers() {
        let mut frames = Frames::default();
        let first = frames.innermost([1, 2, 3].into_iter());
        assert_eq!(frames.innermost([1, 2, 3].into_iter()), first);
        assert_eq!(frames.innermost([1, 2].into_iter()), first - 1);
        assert_eq!(frames.innermost([1, 2, 4].into_iter()), first + 1);
        // The same function, called by itself.
        assert_eq!(frames.innermost([1, 1].into_iter()), first + 2);
        assert_eq!(frames.innermost([].into_iter()), 0);
        // A name that could not be written.
        assert_eq!(frames.innermost([1, NO_STRING, 3].into_iter()), 0);
        // Another table continues with the next id: no id is assigned twice.
        assert!(Frames::default().innermost([1].into_iter()) > first + 2);
        let endless = frames.innermost((0..=MAX_FRAMES).map(|_| 7));
        assert_eq!(
            (endless, frames.innermost([1, 2, 3].into_iter())),
            (0, first)
        );
    }
}
