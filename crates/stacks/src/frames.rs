//! Tables of the frames of sampled stacks. Each table is a tree: a frame refers to its caller's frame. A table writes a
//! frame to the record when the frame is first used, and again after the table was emptied.

use core::hash::BuildHasherDefault;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;

use tllmprof_platform::lifecycle;
use tllmprof_python::stacks::OfAddress;
use tllmprof_recorder::{self as recorder, Event, NO_STRING, StringId, What};

/// The most frames that the table stores. A full table is emptied. Its frames are written again, with new ids, when
/// they are used again.
const MAX_FRAMES: usize = 1 << 16;
/// The most frames of whole stacks that a table writes from the opening of one window (a recorded interval) to that of
/// the next, and before the first window. Deep stacks that always differ, such as those of a compiler, would otherwise
/// fill the record. Of further stacks with new frames, only the innermost function is written.
const MAX_WRITTEN: u32 = 1 << 19;
/// The most frames without callers that a table writes in the same period, in addition to [`MAX_WRITTEN`] frames.
const MAX_WITHOUT_CALLERS: u32 = 1 << 16;
/// The frame ids are divided into two halves. Each half has this number of ids. They are reused when the record has
/// overwritten all windows (recorded intervals) in which they occurred.
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
    /// Number of frames that this table has written since the latest window opened.
    written: u32,
    /// Number of windows that had opened when `written` was last reset.
    windows: u64,
}

impl Frames {
    /// Returns the frame id of the innermost function in `functions`, which lists the outermost function first. If
    /// [`MAX_WRITTEN`] frames were written, a new frame has no callers. Returns 0 if `functions` is empty, if a
    /// function whose frame would be needed is 0 (no string), or if no frame can be added.
    pub(crate) fn innermost(&mut self, mut functions: impl Iterator<Item = StringId>) -> u32 {
        let mut parent = 0;
        while let Some(name) = functions.next() {
            if name == NO_STRING {
                return 0;
            }
            match self.id(parent, name, MAX_WRITTEN) {
                Some(id) => parent = id,
                None => return self.without_callers(functions.last().unwrap_or(name)),
            }
        }
        parent
    }

    /// Returns the id of a frame that has no callers. Returns 0 if `name` is 0 (no string) or if no frame can be added.
    fn without_callers(&mut self, name: StringId) -> u32 {
        match name {
            NO_STRING => 0,
            name => (self.id(0, name, MAX_WRITTEN + MAX_WITHOUT_CALLERS)).unwrap_or(0),
        }
    }

    /// Returns the id of a frame. Returns `None` if the frame is new and `most` frames were written since the latest
    /// window opened, or if no id is free.
    fn id(&mut self, parent: u32, name: StringId, most: u32) -> Option<u32> {
        let key = u64::from(parent) << 32 | u64::from(name);
        if let Some(id) = self.known.get(&key) {
            return Some(*id);
        }
        let (windows, _) = recorder::windows();
        if self.windows != windows {
            (self.windows, self.written) = (windows, 0);
        }
        if self.written >= most {
            return None;
        }
        let id = next()?;
        if self.known.len() >= MAX_FRAMES {
            // The frames of the stack that is being added stay valid: they are in the record.
            self.known.clear();
        }
        self.known.insert(key, id);
        self.written += 1;
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
    use crate::exclusive::alone;

    #[test]
    fn a_stack_has_the_frames_of_its_callers() {
        let _alone = alone();
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
    }

    /// Adds stacks without common callers until no more frames of whole stacks are written.
    fn fill(frames: &mut Frames) {
        let deep = |first: u32| (first..first + 128).chain([7]);
        for stack in 0..MAX_WRITTEN / 128 {
            assert_ne!(frames.innermost(deep(1000 + 128 * stack)), 0);
        }
    }

    #[test]
    fn a_full_table_begins_again() {
        let _alone = alone();
        let mut frames = Frames::default();
        let first = frames.innermost([1, 2, 3].into_iter());
        let deepest = frames.innermost((0..=MAX_FRAMES).map(|_| 7));
        assert!(deepest > first && frames.known.len() <= MAX_FRAMES);
        let again = frames.innermost([1, 2, 3].into_iter());
        assert!(again > deepest, "the frames are written again");
        assert_eq!(frames.innermost([1, 2, 3].into_iter()), again);
    }

    #[test]
    fn the_innermost_function_is_written_when_there_are_too_many_frames() {
        let _alone = alone();
        let mut frames = Frames::default();
        fill(&mut frames);
        let innermost = frames.innermost([8, 9, 3].into_iter());
        assert_ne!(innermost, 0);
        assert_eq!(frames.innermost([10, 3].into_iter()), innermost);
        assert_ne!(frames.innermost([10, 4].into_iter()), innermost);
        assert_eq!(frames.innermost([10, NO_STRING].into_iter()), 0);
    }

    #[test]
    fn a_window_has_frames_of_its_own() {
        let _alone = alone();
        let mut frames = Frames::default();
        fill(&mut frames);
        // The stored number of windows differs from the current one, as if a window had opened since.
        frames.windows += 1;
        let outer = frames.innermost([11].into_iter());
        assert_eq!(frames.innermost([11, 3].into_iter()), outer + 1);
    }
}
