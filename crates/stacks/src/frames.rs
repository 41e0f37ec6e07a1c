//! The frames of all sampled stacks, as a tree. Each frame is written to the record once.

use core::hash::BuildHasherDefault;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;

use tllmprof_platform::lifecycle;
use tllmprof_python::stacks::OfAddress;
use tllmprof_recorder::{self as recorder, Event, NO_STRING, StringId, What};

/// The most frames that the table stores.
const MAX_FRAMES: u32 = 1 << 16;
/// Number of ids in each of the two halves of the range of frame ids. The ids of a half are reused when the record
/// has overwritten all windows (recorded intervals) in which they occurred.
const IDS_PER_HALF: u32 = 1 << 23;

lifecycle::global! {
    stage: Sinks;

    /// The frame id that was assigned last.
    #[fork(reset)]
    static LAST: AtomicU32 = AtomicU32::new(0);
    /// For each half of the range of ids, the number of windows that had opened when the last id of the half was
    /// assigned. The ids of the half are reused when the record has overwritten these windows.
    #[fork(reset)]
    static USED_UP: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
}

/// The known frames. The table finds a frame's id by the id of the caller's frame and the id of the function's name
/// in the record.
#[derive(Default)]
pub(crate) struct Frames {
    known: HashMap<u64, u32, BuildHasherDefault<OfAddress>>,
}

impl Frames {
    /// Returns the frame id of the innermost function in `functions`, which lists the outermost function first. Returns
    /// 0 if `functions` is empty, if one of them is 0 (no string), or if no frame can be added.
    pub(crate) fn innermost(&mut self, functions: impl Iterator<Item = StringId>) -> u32 {
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

/// Returns a frame id that can be assigned: no frame in the record has it, or only frames of
/// windows that were overwritten. Returns `None` if there is no such id.
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
        // A function that calls itself has two frames.
        assert_eq!(frames.innermost([1, 1].into_iter()), first + 2);
        assert_eq!(frames.innermost([].into_iter()), 0);
        // If the name of a function could not be written to the record (`NO_STRING`), the stack has no frame id.
        assert_eq!(frames.innermost([1, NO_STRING, 3].into_iter()), 0);
        // A new table continues with the next frame id, so no id is assigned twice.
        assert!(Frames::default().innermost([1].into_iter()) > first + 2);
        let endless = frames.innermost((0..=MAX_FRAMES).map(|_| 7));
        assert_eq!(
            (endless, frames.innermost([1, 2, 3].into_iter())),
            (0, first)
        );
    }
}
