//! Frames as the evaluator of CPython 3.8 to 3.11 gets them: a row for each layout.
//!
//! The offsets are those of the headers; they are tried before they are trusted, by calls of our own
//! ([`super::trial`]).

use crate::api::Raw;
use crate::object::Object;
use crate::object::Python;
use crate::place::Place;
use crate::version::Version;

/// Where a frame's code object lies, in all of them.
const CODE: isize = 32;

/// What a version's frames look like. Offsets are in bytes.
pub struct Layout {
    last: Last,
    yielded: Yielded,
    /// Where the names of its module are.
    globals: isize,
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The call of a generator function, which only makes the generator.
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
    pub fn of(version: Version) -> Option<&'static Self> {
        version.frames([&UNTIL_3_9, &IN_3_10, &IN_3_11])
    }

    /// [`Frame::state`].
    ///
    /// # Safety
    /// `frame` is a frame of this layout that is about to be evaluated.
    unsafe fn state(&self, frame: Raw) -> State {
        // SAFETY: a frame of this layout has the fields there, and an instruction that it points to
        // is one of its code's.
        let is_new = unsafe {
            match self.last {
                Last::Index { at: last } => at::<i32>(frame, last) == -1,
                Last::Instruction {
                    owner, generator, ..
                } if at::<u8>(frame, owner) != generator => return State::Makes,
                Last::Instruction {
                    at: last,
                    instruction,
                    ..
                } => at::<*const u8>(frame, last).read() == instruction,
            }
        };
        if is_new { State::New } else { State::Suspended }
    }

    /// [`Frame::has_yielded`].
    ///
    /// # Safety
    /// `frame` is a generator's frame of this layout that was evaluated.
    unsafe fn has_yielded(&self, frame: Raw) -> bool {
        // SAFETY: a frame of this layout has the field there: before the frame only where that lies
        // in its generator, as it does once it has run.
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

    /// What variable number `index` of a frame is, borrowed, or null.
    ///
    /// # Safety
    /// `frame` is a frame of this layout whose code object has that many variables.
    unsafe fn variable(&self, frame: Raw, index: usize) -> Raw {
        let offset = self.variables + (index * size_of::<Raw>()).cast_signed();
        // SAFETY: the variables of a frame of this layout lie there, one behind the other.
        unsafe { at::<Raw>(frame, offset) }
    }
}

/// Where the code object of a frame lies that the interpreter has given to be evaluated.
///
/// # Safety
/// It is such a frame.
#[inline]
pub unsafe fn code_of(frame: Raw) -> usize {
    // SAFETY: every frame that the interpreter gives to be evaluated has its code object there, and
    // the caller has such a frame.
    unsafe { at::<usize>(frame, CODE) }
}

/// # Safety
/// There is a value of that type so many bytes from where `frame` points.
#[inline]
const unsafe fn at<T: Copy>(frame: Raw, offset: isize) -> T {
    // SAFETY: the caller has a frame with a value of that type there.
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

    /// Where it lies, which no other frame does as long as its call is open.
    pub fn addr(&self) -> usize {
        self.raw.addr()
    }

    /// Whether the frame of a generator has run before, or runs to make the generator. Before it is
    /// evaluated.
    pub fn state(&self) -> State {
        // SAFETY: the interpreter has given the frame to be evaluated, and it is of the layout's
        // version: `Frame::of` has found that.
        unsafe { self.layout.state(self.raw) }
    }

    /// Whether the frame of a generator has yielded, after it was evaluated to a value.
    pub fn has_yielded(&self) -> bool {
        // SAFETY: the frame was evaluated, and is of the layout's version: `Frame::of` has found that.
        unsafe { self.layout.has_yielded(self.raw) }
    }

    /// Its code object.
    pub fn code(&self) -> Option<Object<'py>> {
        // SAFETY: a frame that is about to be evaluated owns its code object.
        unsafe { self.py.share(at::<Raw>(self.raw, CODE)) }
    }

    /// The names of the module that its function was made in.
    pub fn globals(&self) -> Option<Object<'py>> {
        // SAFETY: a frame of this layout that is about to be evaluated owns a dictionary there.
        unsafe { self.py.share(at::<Raw>(self.raw, self.layout.globals)) }
    }

    /// The argument of the call that begins with the frame, of the marked code object that `place` is
    /// of.
    pub fn argument(&self, place: &Place) -> Option<Object<'py>> {
        let variable = |index: usize| {
            // SAFETY: the code object has that many variables: references that the frame owns, or
            // null.
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

    /// Memory as a frame's, which has words before it, as one in a generator has.
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

        fn state(&mut self, layout: &Layout) -> State {
            // SAFETY: what the layouts' offsets lead to lies within the words.
            unsafe { layout.state(self.raw()) }
        }

        fn has_yielded(&mut self, layout: &Layout) -> bool {
            // SAFETY: what the layouts' offsets lead to lies within the words.
            unsafe { layout.has_yielded(self.raw()) }
        }
    }

    #[test]
    fn the_last_index_shows_whether_a_generator_has_run() {
        for (layout, last) in [(&UNTIL_3_9, 104), (&IN_3_10, 96)] {
            let mut made = Made::new();
            made.set(last, -1_i32);
            assert_eq!(made.state(layout), State::New);
            made.set(last, 0_i32);
            assert_eq!(made.state(layout), State::Suspended);
        }
    }

    #[test]
    fn the_last_instruction_shows_whether_a_generator_is_made() {
        static CODE: [u8; 2] = [75, 0];
        let mut made = Made::new();
        made.set(56, CODE.as_ptr());
        assert_eq!(made.state(&IN_3_11), State::Makes);
        made.set(69, 1_u8);
        assert_eq!(made.state(&IN_3_11), State::New);
        made.set(56, &raw const CODE[1]);
        assert_eq!(made.state(&IN_3_11), State::Suspended);
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
        // SAFETY: the words of the code object and of each layout's variables lie within the words.
        unsafe {
            assert_eq!(code_of(made.raw()), 0x7000);
            for (layout, start) in [(&UNTIL_3_9, 360), (&IN_3_10, 352), (&IN_3_11, 72)] {
                made.set(start + 8, 0x8000_usize);
                assert_eq!(layout.variable(made.raw(), 1).addr(), 0x8000);
            }
        }
    }
}
