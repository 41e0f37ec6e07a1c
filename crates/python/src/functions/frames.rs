//! The frames that CPython 3.8 to 3.11 passes to an evaluator, with one table of offsets for each layout.
//!
//! The offsets are from CPython's headers. Before they are used, test calls check them ([`super::trial`]).

use crate::api::Raw;
use crate::object::Object;
use crate::object::Python;
use crate::place::Place;
use crate::version::Version;

/// The offset of a frame's code object in bytes, in all versions.
const CODE: isize = 32;

/// The layout of a version's frames. All offsets are in bytes.
pub(crate) struct Layout {
    last: Last,
    yielded: Yielded,
    /// The offset in a frame of the pointer to its dictionary of global names.
    globals: isize,
    /// The offset in a frame of its first local variable.
    variables: isize,
}

/// The field of a frame that shows whether a generator has run before.
enum Last {
    /// `f_lasti`, which is -1 until the generator first runs.
    Index { at: isize },
    /// `prev_instr`, the pointer at the offset `at`. Until the generator first runs, it points to an instruction with
    /// the opcode `instruction`, which is `RETURN_GENERATOR`. The byte at the offset `owner` becomes `generator`
    /// (`FRAME_OWNED_BY_GENERATOR`) when the generator is created, because the frame then lies inside the generator.
    Instruction {
        at: isize,
        instruction: u8,
        owner: isize,
        generator: u8,
    },
}

/// The field of a frame that shows whether a generator has yielded or returned. The field is read
/// after an evaluation that returned a value.
enum Yielded {
    /// `f_stacktop`, which is null except while the frame waits in a `yield`.
    StackTop { at: isize },
    /// `f_state` in 3.10. In 3.11 it is `gi_frame_state`, a field of the generator that lies before the frame. Its
    /// value is `FRAME_SUSPENDED` after a yield.
    State { at: isize, suspended: i8 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameState {
    /// The call of a generator function, which only creates the generator and runs none of its code.
    Makes,
    New,
    Suspended,
}

static UNTIL_3_9: Layout = Layout {
    last: Last::Index { at: 104 },
    yielded: Yielded::StackTop { at: 72 },
    globals: 48,
    variables: 360,
};

static IN_3_10: Layout = Layout {
    last: Last::Index { at: 96 },
    yielded: Yielded::State {
        at: 108,
        suspended: -1,
    },
    globals: 48,
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
    globals: 8,
    variables: 72,
};

impl Layout {
    pub(crate) fn for_version(version: Version) -> Option<&'static Self> {
        version.frames([&UNTIL_3_9, &IN_3_10, &IN_3_11])
    }

    /// Returns the result of [`InterpreterFrame::state`] for a frame of this layout.
    ///
    /// # Safety
    /// `frame` is a frame of this layout that is about to be evaluated.
    unsafe fn state(&self, frame: Raw) -> FrameState {
        // SAFETY: a frame of this layout has these fields. The instruction that the frame points to
        // is part of its code object.
        let is_new = unsafe {
            match self.last {
                Last::Index { at: last } => at::<i32>(frame, last) == -1,
                Last::Instruction {
                    owner, generator, ..
                } if at::<u8>(frame, owner) != generator => return FrameState::Makes,
                Last::Instruction {
                    at: last,
                    instruction,
                    ..
                } => at::<*const u8>(frame, last).read() == instruction,
            }
        };
        if is_new {
            FrameState::New
        } else {
            FrameState::Suspended
        }
    }

    /// Returns the result of [`InterpreterFrame::has_yielded`] for a frame of this layout.
    ///
    /// # Safety
    /// `frame` is a generator's frame of this layout whose evaluation has ended.
    unsafe fn has_yielded(&self, frame: Raw) -> bool {
        // SAFETY: a frame of this layout has the field. A field at a negative offset belongs to the
        // generator, and a frame that has run lies inside its generator.
        unsafe {
            match self.yielded {
                Yielded::StackTop { at: top } => at::<usize>(frame, top) != 0,
                Yielded::State {
                    at: state,
                    suspended,
                } => at::<i8>(frame, state) == suspended,
            }
        }
    }

    /// Returns the borrowed reference in a frame's variable `index`, or null.
    ///
    /// # Safety
    /// `frame` is a frame of this layout, and its code object has more than `index` variables.
    unsafe fn variable(&self, frame: Raw, index: usize) -> Raw {
        let offset = self.variables + (index * size_of::<Raw>()).cast_signed();
        // SAFETY: the variables of a frame of this layout begin at this offset, one after the
        // other.
        unsafe { at::<Raw>(frame, offset) }
    }
}

/// Returns the address of the code object of a frame.
///
/// # Safety
/// The interpreter has passed `frame` to an evaluator.
#[inline]
pub(crate) unsafe fn code_of(frame: Raw) -> usize {
    // SAFETY: the caller promises that the interpreter has passed this frame, so its code object is
    // at this offset.
    unsafe { at::<usize>(frame, CODE) }
}

/// Reads the value that lies `offset` bytes from `frame`.
///
/// # Safety
/// A value of type `T` lies `offset` bytes from `frame`.
#[inline]
const unsafe fn at<T: Copy>(frame: Raw, offset: isize) -> T {
    // SAFETY: the caller promises that a value of this type lies at this offset.
    unsafe { frame.byte_offset(offset).cast::<T>().read() }
}

/// A frame that the interpreter passed to the library's evaluator.
pub(super) struct InterpreterFrame<'py> {
    py: Python<'py>,
    raw: Raw,
    layout: &'static Layout,
}

impl<'py> InterpreterFrame<'py> {
    /// Wraps a frame. Returns `None` in a version whose frames have an unknown layout.
    ///
    /// # Safety
    /// The interpreter has passed `raw` to an evaluator, and the frame lives as long as `'py`.
    pub(crate) unsafe fn new(py: Python<'py>, raw: Raw) -> Option<Self> {
        let layout = Layout::for_version(py.api.version)?;
        Some(Self { py, raw, layout })
    }

    pub(crate) const fn py(&self) -> Python<'py> {
        self.py
    }

    /// Returns the frame's address. No other frame has this address while the call has not ended.
    pub(crate) fn addr(&self) -> usize {
        self.raw.addr()
    }

    /// Returns the state of a generator's frame: whether it only creates the generator, begins, or
    /// resumes. Call this before the frame is evaluated.
    pub(super) fn state(&self) -> FrameState {
        // SAFETY: the interpreter has passed the frame to be evaluated, and `InterpreterFrame::new`
        // has chosen the layout of its version.
        unsafe { self.layout.state(self.raw) }
    }

    /// Returns true if a generator's frame has yielded. Call this after an evaluation that returned a value.
    pub(super) fn has_yielded(&self) -> bool {
        // SAFETY: the frame was evaluated, and `InterpreterFrame::new` has chosen the layout of its
        // version.
        unsafe { self.layout.has_yielded(self.raw) }
    }

    pub(crate) fn code(&self) -> Option<Object<'py>> {
        // SAFETY: a frame that is about to be evaluated owns its code object.
        unsafe { self.py.share(at::<Raw>(self.raw, CODE)) }
    }

    /// Returns the global names of the frame's function.
    pub(crate) fn globals(&self) -> Option<Object<'py>> {
        // SAFETY: a frame of this layout that is about to be evaluated owns a dictionary at this
        // offset.
        unsafe { self.py.share(at::<Raw>(self.raw, self.layout.globals)) }
    }

    /// Returns an argument of the call that begins with this frame. `place` was found for the same
    /// code object.
    pub(crate) fn argument(&self, place: &Place) -> Option<Object<'py>> {
        let variable = |index: usize| {
            // SAFETY: `index` is below the code object's number of variables. Each variable is null, or a reference
            // that the frame owns.
            unsafe { self.py.share(self.layout.variable(self.raw, index)) }
        };
        match place {
            Place::Local(index) => variable(*index),
            Place::Cell(index) => variable(*index)?.content(),
            Place::Named(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that stands in for an interpreter's frame in tests. Some words lie before the frame,
    /// as in a generator.
    struct Made {
        words: [u64; 64],
    }

    impl Made {
        const BEFORE: usize = 8;

        const fn new() -> Self {
            Self { words: [0; 64] }
        }

        fn raw(&mut self) -> Raw {
            (&raw mut self.words[Self::BEFORE]).cast()
        }

        fn set<T>(&mut self, offset: isize, value: T) {
            // SAFETY: the offsets of all layouts lie within the words.
            unsafe { self.raw().byte_offset(offset).cast::<T>().write(value) };
        }

        fn state(&mut self, layout: &Layout) -> FrameState {
            // SAFETY: the layouts' offsets lie within the words, and so does the instruction.
            unsafe { layout.state(self.raw()) }
        }

        fn has_yielded(&mut self, layout: &Layout) -> bool {
            // SAFETY: the layouts' offsets lie within the words.
            unsafe { layout.has_yielded(self.raw()) }
        }
    }

    #[test]
    fn the_last_index_shows_whether_a_generator_has_run() {
        for (layout, last) in [(&UNTIL_3_9, 104), (&IN_3_10, 96)] {
            let mut made = Made::new();
            made.set(last, -1_i32);
            assert_eq!(made.state(layout), FrameState::New);
            made.set(last, 0_i32);
            assert_eq!(made.state(layout), FrameState::Suspended);
        }
    }

    #[test]
    fn the_last_instruction_shows_whether_a_generator_is_made() {
        static CODE: [u8; 2] = [75, 0];
        let mut made = Made::new();
        made.set(56, CODE.as_ptr());
        assert_eq!(made.state(&IN_3_11), FrameState::Makes);
        made.set(69, 1_u8);
        assert_eq!(made.state(&IN_3_11), FrameState::New);
        made.set(56, &raw const CODE[1]);
        assert_eq!(made.state(&IN_3_11), FrameState::Suspended);
    }

    #[test]
    fn a_generator_that_waits_in_a_yield_has_yielded() {
        let mut made = Made::new();
        assert!(!made.has_yielded(&UNTIL_3_9));
        made.set(72, 0x1000_usize);
        assert!(made.has_yielded(&UNTIL_3_9));
        for (layout, state) in [(&IN_3_10, 108), (&IN_3_11, -5)] {
            let mut made = Made::new();
            made.set(state, 1_i8);
            assert!(!made.has_yielded(layout));
            made.set(state, -1_i8);
            assert!(made.has_yielded(layout));
        }
    }

    #[test]
    fn variables_and_code_lie_where_the_headers_have_them() {
        let mut made = Made::new();
        made.set(32, 0x7000_usize);
        // SAFETY: the code object's offset and the variables' offsets of each layout lie within the
        // words.
        unsafe {
            assert_eq!(code_of(made.raw()), 0x7000);
            for (layout, start) in [(&UNTIL_3_9, 360), (&IN_3_10, 352), (&IN_3_11, 72)] {
                made.set(start + 8, 0x8000_usize);
                assert_eq!(layout.variable(made.raw(), 1).addr(), 0x8000);
            }
        }
    }
}
