//! Frames as the evaluator of CPython 3.8 to 3.11 gets them: a row for each layout.
//!
//! The offsets are those of the headers; they are tried before they are trusted, by calls of our own
//! ([`super::trial`]).

use super::marked::First;
use crate::api::Raw;
use crate::object::Object;
use crate::object::Python;

/// Where a frame's code object lies, in all of them.
pub const CODE: usize = 32;

/// What a version's frames look like.
pub struct Layout {
    /// Whether the frame of a generator has run before, or runs to make the generator.
    state: unsafe fn(Raw) -> State,
    /// Whether the frame of a generator has yielded, after it was evaluated to a value.
    has_yielded: unsafe fn(Raw) -> bool,
    /// Where its variables lie.
    variables: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The call of a generator function, which only makes the generator.
    Makes,
    New,
    Suspended,
}

/// # Safety
/// There is a value of that type so many bytes from where `frame` points.
const unsafe fn at<T: Copy>(frame: Raw, offset: isize) -> T {
    // SAFETY: the caller's promise.
    unsafe { frame.byte_offset(offset).cast::<T>().read() }
}

const fn new_if(is_new: bool) -> State {
    if is_new { State::New } else { State::Suspended }
}

/// `f_lasti`; `f_stacktop`, which is null but while it waits in a `yield`.
static UNTIL_3_9: Layout = Layout {
    // SAFETY: a frame of these versions, which has the two fields there.
    state: |frame| new_if(unsafe { at::<i32>(frame, 104) } == -1),
    // SAFETY: as above.
    has_yielded: |frame| unsafe { at::<usize>(frame, 72) } != 0,
    variables: 360,
};

/// `f_lasti`; `f_state`, which is `FRAME_SUSPENDED`.
static IN_3_10: Layout = Layout {
    // SAFETY: a frame of this version, which has the two fields there.
    state: |frame| new_if(unsafe { at::<i32>(frame, 96) } == -1),
    // SAFETY: as above.
    has_yielded: |frame| unsafe { at::<i8>(frame, 108) } == -1,
    variables: 352,
};

/// The frame lies in the generator once that is made: `owner` is `FRAME_OWNED_BY_GENERATOR`, and
/// before it lies `gi_frame_state`. The last instruction (`prev_instr`) of one that has not run is
/// `RETURN_GENERATOR`.
static IN_3_11: Layout = Layout {
    // SAFETY: a frame of this version, which has the fields there; the instruction that it points to
    // is one of its code's.
    state: |frame| unsafe {
        if at::<u8>(frame, 69) == 1 {
            new_if(at::<*const u8>(frame, 56).read() == 75)
        } else {
            State::Makes
        }
    },
    // SAFETY: as above, of a frame in its generator.
    has_yielded: |frame| unsafe { at::<i8>(frame, -5) } == -1,
    variables: 72,
};

impl Layout {
    pub fn of(minor: u32) -> Option<&'static Self> {
        match minor {
            8 | 9 => Some(&UNTIL_3_9),
            10 => Some(&IN_3_10),
            11 => Some(&IN_3_11),
            _ => None,
        }
    }

    /// # Safety
    /// A frame of a generator, about to be evaluated.
    pub unsafe fn state(&self, frame: Raw) -> State {
        // SAFETY: the caller's promise.
        unsafe { (self.state)(frame) }
    }

    /// # Safety
    /// A frame of a generator that has been evaluated, to a value.
    pub unsafe fn has_yielded(&self, frame: Raw) -> bool {
        // SAFETY: the caller's promise.
        unsafe { (self.has_yielded)(frame) }
    }

    /// The first argument of a call that begins.
    ///
    /// # Safety
    /// Its frame, of the marked code object that `first` is of.
    pub unsafe fn first<'py>(
        &self,
        py: Python<'py>,
        frame: Raw,
        first: &First,
    ) -> Option<Object<'py>> {
        // SAFETY: the caller's promise; variables are references that the frame owns, or null.
        let variable = |index: usize| unsafe {
            let offset = self.variables + index * size_of::<Raw>();
            at::<Raw>(frame, offset.cast_signed())
        };
        // SAFETY: as above; what a cell holds is a new reference.
        unsafe {
            match *first {
                First::Local(index) => py.share(variable(index)),
                First::Cell(index) => py.own((py.api.cell_get?)(variable(index))),
                First::Nowhere | First::Named(_) => None,
            }
        }
    }
}
