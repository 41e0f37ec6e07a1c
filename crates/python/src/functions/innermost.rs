//! Finds the frame of the call that the calling thread begins or ends, in CPython 3.12 and later.
//!
//! An event of `sys.monitoring` gives only the code object, which many calls may share. The frame identifies a single
//! call. Its address is read from the thread's state.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::object::Python;
use crate::stacks::{TAGS, Top, find_layout};
use tllmprof_platform::lifecycle;

/// The location of the pointer to a thread's innermost frame. It is at an offset in the thread's state (`Here`), or
/// in a structure to which the thread's state has a `pointer` (`Behind`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// The offsets have not been looked up yet in this process.
    New,
    Unknown,
    Here(u32),
    Behind {
        pointer: u32,
        frame: u32,
    },
}

lifecycle::global! {
    stage: Sinks;

    /// The [`Way`] for the running interpreter, encoded as a number.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static WAY: AtomicU64 = AtomicU64::new(0);
}

impl Way {
    const UNKNOWN: u64 = 1;
    const HERE: u64 = 1 << 62;
    const BEHIND: u64 = 1 << 63;

    fn to_number(self) -> u64 {
        match self {
            Self::New => 0,
            Self::Unknown => Self::UNKNOWN,
            Self::Here(at) => Self::HERE | u64::from(at),
            Self::Behind { pointer, frame } => {
                Self::BEHIND | u64::from(pointer) << 31 | u64::from(frame)
            }
        }
    }

    #[inline]
    const fn from_number(number: u64) -> Self {
        /// Mask of the bits that hold an offset. No structure of CPython is so large that an offset
        /// in it needs more bits.
        const MASK: u64 = (1 << 31) - 1;
        match number {
            0 => Self::New,
            _ if number & Self::BEHIND != 0 => Self::Behind {
                pointer: (number >> 31 & MASK) as u32,
                frame: (number & MASK) as u32,
            },
            _ if number & Self::HERE != 0 => Self::Here((number & MASK) as u32),
            _ => Self::Unknown,
        }
    }
}

/// Returns the address of the calling thread's innermost frame, whose code object is at `code`.
/// Returns 0 if the frame cannot be found.
#[inline]
pub(crate) fn frame(py: Python<'_>, code: usize) -> usize {
    let state = py.api.current_state().addr();
    match Way::from_number(WAY.load(Ordering::Relaxed)) {
        Way::New => find(py, state, code),
        Way::Unknown => 0,
        Way::Here(at) => word(state + at as usize),
        Way::Behind { pointer, frame } => word(word(state + pointer as usize) + frame as usize),
    }
}

/// Looks up the offsets for [`frame`] at its first call, and stores them if they are right: the frame that they lead
/// to must have the code object at `code`. Returns that frame's address, or 0.
#[cold]
fn find(py: Python<'_>, state: usize, code: usize) -> usize {
    let layout = find_layout(py.api.version, py.api.runtime.addr());
    let found = layout.ok().and_then(|layout| {
        let (way, frame) = match layout.thread.frame {
            Top::Here(at) => (Way::Here(at as u32), copied(state + at)?),
            Top::Behind { pointer, frame } => (
                Way::Behind {
                    pointer: pointer as u32,
                    frame: frame as u32,
                },
                copied(copied(state + pointer)? + frame)?,
            ),
        };
        let is_its = copied(frame + layout.frame.code)? & !TAGS == code;
        is_its.then_some((way, frame))
    });
    let (way, frame) = found.unwrap_or((Way::Unknown, 0));
    WAY.store(way.to_number(), Ordering::Relaxed);
    frame
}

/// Reads a word at an address. Returns `None` if no memory is mapped there.
fn copied(address: usize) -> Option<usize> {
    let mut bytes = [0; size_of::<usize>()];
    tllmprof_platform::peek::copy(address, &mut bytes)?;
    Some(usize::from_ne_bytes(bytes))
}

#[inline]
fn word(address: usize) -> usize {
    let place = core::ptr::with_exposed_provenance::<usize>(address);
    // SAFETY: the word is in the calling thread's state, or on the thread's C stack, to which the state points. Both
    // exist while the thread runs Python code, which it does during an event. `find` has checked the layout.
    unsafe { place.read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_kept_as_numbers() {
        for way in [
            Way::New,
            Way::Unknown,
            Way::Here(0),
            Way::Here(72),
            Way::Behind {
                pointer: 56,
                frame: 0,
            },
            Way::Behind {
                pointer: 0,
                frame: 8,
            },
        ] {
            assert_eq!(Way::from_number(way.to_number()), way);
        }
    }
}
