//! The frames of all sampled stacks, as a tree: each is written once.

use core::hash::BuildHasherDefault;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::collections::HashMap;

use tllmprof_platform::lifecycle;
use tllmprof_python::stacks::OfAddress;
use tllmprof_recorder::{self as recorder, Event, NO_STRING, StringId, What};

/// Frames that are known at a time.
const MOST: u32 = 1 << 16;
/// Ids of a half: where windows go, so do their frames, and ids are given again. There are two halves.
const HALF: u32 = 1 << 23;

lifecycle::global! {
    stage: Sinks;

    /// The last id that was given.
    #[fork(reset)]
    static LAST: AtomicU32 = AtomicU32::new(0);
    /// How many windows had opened when each half was used up.
    #[fork(reset)]
    static USED_UP: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
}

/// Ids by the caller's and the function's.
#[derive(Default)]
pub struct Frames {
    known: HashMap<u64, u32, BuildHasherDefault<OfAddress>>,
}

impl Frames {
    /// The id of the innermost of these functions, of which the outermost comes first; 0 where there is no more room
    /// for frames.
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
        if self.known.len() >= MOST as usize || name == NO_STRING {
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

/// An id that no frame of the record has, or none but of windows that are gone.
fn next() -> Option<u32> {
    let last = LAST.load(Ordering::Relaxed);
    let id = (last + 1) % (2 * HALF);
    let (half, of_last) = ((id / HALF) as usize, (last / HALF) as usize);
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
        // Another table goes on where this one is: no id is given twice.
        assert!(Frames::default().innermost([1].into_iter()) > first + 2);
        let endless = frames.innermost((0..=MOST).map(|_| 7));
        assert_eq!(
            (endless, frames.innermost([1, 2, 3].into_iter())),
            (0, first)
        );
    }
}
