//! The state of a call, which the assembly code saves on the stack.

use core::cell::Cell;
use core::mem::offset_of;
use core::ptr::{from_ref, with_exposed_provenance};

use tllmprof_platform::thread::Outer;

use super::thunk::Thunk;

/// Number of stack words that are copied for an intercepted call that returns to this library. They hold the arguments
/// that are not in registers.
///
/// `cuLaunchKernel` has five such arguments on x86-64 and three on AArch64; eight leave some room.
pub(crate) const STACK_WORDS: usize = 8;

/// The role of a recorded call in the measurement of GPU times (the durations of GPU work). This type is not an
/// enumeration, because the assembly code may leave any value in the word.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimingRole(usize);

impl TimingRole {
    /// The call does not matter to GPU times.
    pub(crate) const NONE: Self = Self(0);
    /// The call enqueues work on its stream.
    pub(crate) const COUNTED: Self = Self(1);
    /// The call enqueues work that is expected to be the last of its stream in this iteration.
    pub(crate) const LAST: Self = Self(2);
    /// The call is a wait. When it returns, the earlier work of its stream has ended.
    pub(crate) const WAITED_FOR: Self = Self(3);
    /// The call does not matter to GPU times, but the library must handle its return. It is a wait whose duration or
    /// processor time is measured, or a call that neither enqueues work nor waits.
    pub(crate) const SEEN: Self = Self(4);

    /// Returns the role of a wait. `is_over`: earlier work of the stream has ended when the wait returns. `is_seen`:
    /// the library must handle its return.
    #[inline]
    pub(crate) const fn of_wait(is_over: bool, is_seen: bool) -> Self {
        match (is_over, is_seen) {
            (true, _) => Self::WAITED_FOR,
            (_, true) => Self::SEEN,
            _ => Self::NONE,
        }
    }

    /// Returns true for a wait after which the earlier work of its stream has ended, and for a call that is expected
    /// to enqueue its stream's last work in this iteration.
    #[inline]
    pub(crate) const fn is_over(self) -> bool {
        self.0 == Self::LAST.0 || self.0 == Self::WAITED_FOR.0
    }

    /// Returns true if recording is the only work that remains when a successful call with this role returns.
    #[inline]
    pub(crate) const fn is_recorded_alone(self) -> bool {
        self.0 <= Self::COUNTED.0
    }
}

/// The state of a call that the handler `slow` or `record` saved on the stack. The fields are in order of their
/// addresses. Rust code writes the `Cell` fields. Assembly code also writes `since` and the first value of `work`.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
pub(crate) struct CallFrame {
    /// The thunk through which the call came. It describes the real function.
    pub thunk: &'static Thunk,
    /// The integer arguments that came in registers.
    pub args: [usize; 6],
    /// Time before the call of the real function, in ticks; 0 if the call is not recorded.
    pub since: Cell<u64>,
    /// Stream handle of a recorded call that is not [`Simple`](super::thunk::Simple), so that `thunk` does not contain
    /// the position of the stream among the arguments. 0 if the call names no stream.
    pub other_stream: Cell<usize>,
    /// The call's role in the measurement of GPU times, if the call is recorded.
    pub work: Cell<TimingRole>,
    frame_pointer: usize,
    /// Return address of the call, which lies in its caller's code.
    pub return_address: usize,
}

/// The state of a call that the handler `slow`, `count` or `record` saved on the stack. The fields are in order of
/// their addresses.
#[cfg(target_arch = "aarch64")]
#[repr(C)]
pub(crate) struct CallFrame {
    /// The caller's frame pointer, which links this frame to the caller's frames.
    frame_pointer: usize,
    /// Return address of the call, which lies in its caller's code.
    pub return_address: usize,
    /// The thunk through which the call came. It describes the real function.
    pub thunk: &'static Thunk,
    /// Address at which the real function stores a result that does not fit in registers (`x8`).
    result: usize,
    /// The integer arguments that came in registers.
    pub args: [usize; 8],
    vectors: [u128; 8],
    /// Time before the call of the real function, in ticks; 0 if the call is not recorded.
    pub since: Cell<u64>,
    /// Stream handle of a recorded call that is not [`Simple`](super::thunk::Simple), so that `thunk` does not contain
    /// the position of the stream among the arguments. 0 if the call names no stream.
    pub other_stream: Cell<usize>,
    /// The call's role in the measurement of GPU times, if the call is recorded.
    pub work: Cell<TimingRole>,
    spare: usize,
}

/// Offsets of the fields in bytes, for the assembly code.
impl CallFrame {
    pub(crate) const THUNK: usize = offset_of!(Self, thunk);
    pub(crate) const ARGS: usize = offset_of!(Self, args);
    #[cfg(target_arch = "x86_64")] // the assembly code for AArch64 does not use these two offsets
    pub(crate) const SINCE: usize = offset_of!(Self, since);
    #[cfg(target_arch = "x86_64")]
    pub(crate) const WORK: usize = offset_of!(Self, work);
    /// Distance in bytes from the start of this struct up to the saved frame pointer.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const BELOW: usize = offset_of!(Self, frame_pointer);
    /// Distance in bytes from the saved vector registers, which lie below this struct, up to the
    /// saved frame pointer.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const VECTORS: usize = Self::BELOW + size_of::<[u128; 8]>();
    #[cfg(target_arch = "aarch64")]
    pub(crate) const VECTORS: usize = offset_of!(Self, vectors);
    #[cfg(target_arch = "aarch64")]
    pub(crate) const SIZE: usize = size_of::<Self>();
}

// The frame-pointer register points to the start of the frame. The assembly code stores `thunk` and `result` with one
// instruction, so the two fields must be adjacent.
#[cfg(target_arch = "aarch64")]
const _: () = assert!(
    offset_of!(CallFrame, frame_pointer) == 0
        && offset_of!(CallFrame, return_address) == 8
        && offset_of!(CallFrame, result) == CallFrame::THUNK + 8
);
// The stack is aligned to 16 bytes at the saved frame pointer. It must also be aligned to 16 bytes at each call that
// the assembly code makes, so the distance between the two must be a multiple of 16.
#[cfg(target_arch = "x86_64")]
const _: () = assert!(
    offset_of!(CallFrame, return_address) == CallFrame::BELOW + 8
        && CallFrame::BELOW.is_multiple_of(16)
);
#[cfg(target_arch = "aarch64")]
const _: () = assert!(CallFrame::SIZE.is_multiple_of(16));

impl CallFrame {
    /// Returns the argument with this index. Floating-point arguments are not counted.
    #[inline]
    pub(crate) fn word(&self, index: usize) -> usize {
        let on_stack = |behind: usize| {
            let first = from_ref(self).wrapping_add(1).cast::<usize>();
            // SAFETY: the memory above the frame holds the caller's arguments or other parts of the caller's frame, so
            // it is readable.
            unsafe { first.add(behind).read_volatile() }
        };
        let register = self.args.get(index).copied();
        register.unwrap_or_else(|| on_stack(index - self.args.len()))
    }

    /// Returns the stream handle of a recorded call, or 0 if the call names no stream.
    #[inline(always)]
    pub(crate) fn stream(&self) -> usize {
        if !self.thunk.is_simple() {
            return self.other_stream.get();
        }
        self.thunk.stream_word().map_or(0, |word| self.word(word))
    }

    /// Returns true if the call is nested in `outer`. Returns false if there is no outer call.
    ///
    /// `outer.place` is the stack address at which the outer call's return address lies. An exception or `longjmp` may
    /// leave the outer call without clearing `outer`. But other calls then soon overwrite the return address at
    /// `outer.place`. A later call from the same function is at the same depth as the outer call, not below it.
    ///
    /// AArch64 functions get their return address in a register and save it where they choose, so `outer.place` may lie
    /// in memory that stays unused for long. So two conditions must hold: the return address is still at `outer.place`,
    /// and the chain of the callers' frame pointers does not lead past `outer.place`. If that chain is broken, only the
    /// return address decides.
    pub(crate) fn is_within(&self, outer: Outer) -> bool {
        if !is_below(from_ref(&self.return_address).addr(), outer) {
            return false;
        }
        cfg!(target_arch = "x86_64")
            || outer.return_address == 0
            || !self.is_chained_past(outer.place - size_of::<usize>())
    }

    /// Returns true if the chain of frame pointers leads past the frame record at `record`: then the frame with that
    /// record has ended. Returns false if the chain leads to that record, or if it breaks off before.
    fn is_chained_past(&self, record: usize) -> bool {
        /// Largest distance to the next frame in bytes. A larger distance means that the register is not used as a
        /// frame pointer.
        const MAX_FRAME_DISTANCE: usize = 1 << 20;
        let mut below = from_ref(self).addr();
        let mut at = self.frame_pointer;
        while at > below && at - below < MAX_FRAME_DISTANCE && at.is_multiple_of(16) {
            if at >= record {
                return at > record;
            }
            below = at;
            at = above(at);
        }
        false
    }
}

/// Returns true if the stack address `place` of a running call lies below that of `outer`, and the return address of
/// `outer` is still at its stack address. The running call is then nested in `outer`. Returns false if there is no
/// outer call.
pub(crate) fn is_below(place: usize, outer: Outer) -> bool {
    place < outer.place && above(outer.place) == outer.return_address
}

/// Returns the word at the stack address `place`. This address must lie above the frame of a running call, and must not
/// lie above the return address of the outermost call.
fn above(place: usize) -> usize {
    // SAFETY: the stack between a running call and the outermost call is readable.
    unsafe { with_exposed_provenance::<usize>(place).read_volatile() }
}

/// Frames like those that the assembly code saves, for tests.
#[cfg(test)]
pub(crate) mod made {
    use super::*;

    /// A saved frame together with the words of the caller's stack above it.
    #[repr(C)]
    pub(crate) struct Call {
        pub frame: CallFrame,
        pub stack: [usize; STACK_WORDS],
    }

    impl Call {
        /// Returns the frame of a call of `thunk`'s function. The call's first arguments are `words`, and it returns
        /// to `return_address`.
        pub(crate) fn new(thunk: &'static Thunk, words: &[usize], return_address: usize) -> Self {
            let mut call = Self {
                frame: CallFrame {
                    thunk,
                    args: Default::default(),
                    since: Cell::new(0),
                    other_stream: Cell::new(0),
                    work: Cell::new(TimingRole::NONE),
                    frame_pointer: 0,
                    return_address,
                    #[cfg(target_arch = "aarch64")]
                    result: 0,
                    #[cfg(target_arch = "aarch64")]
                    vectors: [0; 8],
                    #[cfg(target_arch = "aarch64")]
                    spare: 0,
                },
                stack: [0; STACK_WORDS],
            };
            let places = call.frame.args.iter_mut().chain(&mut call.stack);
            for (place, word) in places.zip(words) {
                *place = *word;
            }
            call
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made::Call as Made;
    use super::*;
    use crate::thunk::Role;

    fn thunk() -> &'static Thunk {
        Thunk::made(core::ptr::null_mut(), Role::ProcAddress)
    }

    #[test]
    fn arguments_are_numbered_from_the_registers_on_to_the_stack() {
        let words: Vec<usize> = (0..STACK_WORDS + 6).map(|word| 100 + word).collect();
        let made = Made::new(thunk(), &words, 0);
        for (index, word) in words.iter().enumerate() {
            assert_eq!(made.frame.word(index), *word, "{index}");
        }
    }

    #[test]
    fn a_call_is_within_another_while_that_ones_return_address_lies_above_it() {
        const RETURN: usize = 0x5000;
        let mut made = Made::new(thunk(), &[], 0x4000);
        made.stack[3] = RETURN;
        let place = made.stack.as_ptr().wrapping_add(3).expose_provenance();
        let outer = Outer {
            place,
            return_address: RETURN,
        };
        assert!(made.frame.is_within(outer));
        let left = Outer {
            return_address: RETURN + 1,
            ..outer
        };
        assert!(!made.frame.is_within(left), "something else lies there now");
        let none = Outer {
            place: 0,
            return_address: 0,
        };
        assert!(!made.frame.is_within(none));
        let itself = Outer {
            place: from_ref(&made.frame.return_address).expose_provenance(),
            return_address: made.frame.return_address,
        };
        assert!(!made.frame.is_within(itself), "no call is within itself");
    }

    #[test]
    fn a_chain_of_frame_pointers_shows_what_has_been_left() {
        #[repr(C, align(16))]
        struct Stack {
            made: Made,
            words: [[usize; 2]; 32],
        }
        let made = Made::new(thunk(), &[], 0);
        let words = [[0; 2]; 32];
        let mut stack = Box::new(Stack { made, words });
        let base = stack
            .words
            .as_ptr()
            .expose_provenance()
            .next_multiple_of(16);
        let index = |at: usize| (at - stack.words.as_ptr().addr()) / 16;
        let (first, second) = (base + 64, base + 128);
        let place = index(first);
        stack.made.frame.frame_pointer = first;
        stack.words[place] = [second; 2];
        let past = |stack: &Stack, record| stack.made.frame.is_chained_past(record);
        assert!(!past(&stack, first), "it leads there");
        assert!(!past(&stack, second), "it leads there by another");
        assert!(past(&stack, first + 16), "it leads past");
        assert!(!past(&stack, second + 16), "it ends before");
        stack.made.frame.frame_pointer = first + 8;
        assert!(!past(&stack, first), "no frame lies there");
        stack.made.frame.frame_pointer = from_ref(&stack.made).addr() - 64;
        assert!(!past(&stack, first), "a chain that leads down is broken");
    }
}
