//! Frames as the evaluator of CPython 3.8 to 3.11 gets them: a row for each layout.
//!
//! The offsets are those of the headers; they are tried before they are trusted, by calls of our own
//! ([`super::trial`]).

use crate::api::Raw;
use crate::object::Object;
use crate::object::Python;
use crate::spans::First;
use crate::version::Version;

/// Where a frame's code object lies, in all of them.
const CODE: isize = 32;

/// What a version's frames look like. Offsets are in bytes.
pub struct Layout {
    last: Last,
    yielded: Yielded,
    /// Where its variables lie.
    variables: isize,
}

/// Where it is known whether the frame of a generator has run before.
enum Last {
    /// `f_lasti` is -1 before.
    Index { at: isize },
    /// `prev_instr` points to `instruction`, `RETURN_GENERATOR`, before. The frame lies in the
    /// generator once that is made: `owner` is `FRAME_OWNED_BY_GENERATOR` then.
    Instruction {
        at: isize,
        instruction: u8,
        owner: isize,
        generator: u8,
    },
}

/// Where it is known whether the frame of a generator has yielded, after it was evaluated to a value.
enum Yielded {
    /// `f_stacktop` is null but while it waits in a `yield`.
    StackTop { at: isize },
    /// `f_state` is `FRAME_SUSPENDED`, or `gi_frame_state`, which lies before the frame.
    State { at: isize, suspended: i8 },
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The call of a generator function, which only makes the generator.
    Makes,
    New,
    Suspended,
}

static UNTIL_3_9: Layout = Layout {
    last: Last::Index { at: 104 },
    yielded: Yielded::StackTop { at: 72 },
    variables: 360,
};

static IN_3_10: Layout = Layout {
    last: Last::Index { at: 96 },
    yielded: Yielded::State {
        at: 108,
        suspended: -1,
    },
    variables: 352,
};

static IN_3_11: Layout = Layout {
    last: Last::Instruction {
        at: 56,
        instruction: 75,
        owner: 69,
        generator: 1,
    },
    yielded: Yielded::State {
        at: -5,
        suspended: -1,
    },
    variables: 72,
};

impl Layout {
    pub fn of(version: Version) -> Option<&'static Self> {
        version.frames([&UNTIL_3_9, &IN_3_10, &IN_3_11])
    }
}

/// Where the code object of a frame lies that the interpreter has given to be evaluated.
///
/// # Safety
/// It is such a frame.
#[inline]
pub unsafe fn code_of(frame: Raw) -> usize {
    // SAFETY: the caller's promise: frames have a code object.
    unsafe { at::<usize>(frame, CODE) }
}

/// # Safety
/// There is a value of that type so many bytes from where `frame` points.
#[inline]
const unsafe fn at<T: Copy>(frame: Raw, offset: isize) -> T {
    // SAFETY: the caller's promise.
    unsafe { frame.byte_offset(offset).cast::<T>().read() }
}

/// The frame of a marked code object, which is about to be evaluated, or has been.
pub struct Frame<'py> {
    py: Python<'py>,
    raw: Raw,
    layout: &'static Layout,
}

impl<'py> Frame<'py> {
    /// None in a version whose frames are not known.
    ///
    /// # Safety
    /// The interpreter has given `raw` to be evaluated, and it is there as long as `'py`.
    pub unsafe fn of(py: Python<'py>, raw: Raw) -> Option<Self> {
        let layout = Layout::of(py.api.version)?;
        Some(Self { py, raw, layout })
    }

    pub const fn py(&self) -> Python<'py> {
        self.py
    }

    /// Whether the frame of a generator has run before, or runs to make the generator. Before it is
    /// evaluated.
    pub fn state(&self) -> State {
        // SAFETY: the frame is of the layout's version, which has the fields there; an instruction
        // that it points to is one of its code's.
        let is_new = unsafe {
            match self.layout.last {
                Last::Index { at: last } => at::<i32>(self.raw, last) == -1,
                Last::Instruction {
                    owner, generator, ..
                } if at::<u8>(self.raw, owner) != generator => return State::Makes,
                Last::Instruction {
                    at: last,
                    instruction,
                    ..
                } => at::<*const u8>(self.raw, last).read() == instruction,
            }
        };
        if is_new { State::New } else { State::Suspended }
    }

    /// Whether the frame of a generator has yielded, after it was evaluated to a value.
    pub fn has_yielded(&self) -> bool {
        // SAFETY: the frame is of the layout's version, which has the field there: before the frame
        // only where that lies in its generator, as it does once it has run.
        unsafe {
            match self.layout.yielded {
                Yielded::StackTop { at: top } => at::<usize>(self.raw, top) != 0,
                Yielded::State {
                    at: state,
                    suspended,
                } => at::<i8>(self.raw, state) == suspended,
            }
        }
    }

    /// The first argument of the call that begins with the frame, of the marked code object that
    /// `first` is of.
    pub fn first(&self, first: &First) -> Option<Object<'py>> {
        let variable = |index: usize| {
            let offset = self.layout.variables + (index * size_of::<Raw>()).cast_signed();
            // SAFETY: the code object has that many variables: references that the frame owns, or
            // null.
            unsafe { self.py.share(at::<Raw>(self.raw, offset)) }
        };
        match first {
            First::Local(index) => variable(*index),
            First::Cell(index) => variable(*index)?.content(),
            First::Nowhere | First::Named(_) => None,
        }
    }
}
