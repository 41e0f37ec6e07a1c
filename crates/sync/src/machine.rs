//! A state machine whose state lies in one word: read by one load, moved on by compare and exchange.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::OnlyThread;

/// The states of a machine, and what moves it from one to the next.
pub trait States: Copy {
    /// What may happen.
    type Event: Copy;

    /// The state after `event`; `None` where it changes nothing.
    fn next(self, event: Self::Event) -> Option<Self>;

    /// The state as a word. The state that a process begins in is 0.
    fn to_bits(self) -> u32;

    /// The state of a word that [`States::to_bits`] has made.
    fn from_bits(bits: u32) -> Self;
}

/// A state that threads share.
pub struct Machine<S> {
    word: AtomicU32,
    states: PhantomData<fn() -> S>,
}

impl<S: States> Machine<S> {
    /// A machine in its first state.
    pub const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            states: PhantomData,
        }
    }

    /// The state, in one order with all events and with what threads announce before they look.
    #[inline]
    pub fn state(&self) -> S {
        S::from_bits(self.word.load(Ordering::SeqCst))
    }

    /// The state as a hot path reads it: by one relaxed load, maybe a moment old.
    #[inline]
    pub fn peek(&self) -> S {
        S::from_bits(self.word.load(Ordering::Relaxed))
    }

    /// `event` happens. The states before and after it, unless it changes nothing.
    pub fn on(&self, event: S::Event) -> Option<(S, S)> {
        let next = |bits| Some(S::from_bits(bits).next(event)?.to_bits());
        let before = self
            .word
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            .ok()
            .map(S::from_bits)?;
        Some((before, before.next(event)?))
    }

    /// The first state again, in the child of a fork.
    pub fn in_child(&self, _: &OnlyThread) {
        self.word.store(0, Ordering::SeqCst);
    }
}

impl<S: States> Default for Machine<S> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{Machine, States};
    use crate::OnlyThread;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct UpTo3(u32);

    impl States for UpTo3 {
        type Event = ();

        fn next(self, (): ()) -> Option<Self> {
            (self.0 < 3).then_some(Self(self.0 + 1))
        }

        fn to_bits(self) -> u32 {
            self.0
        }

        fn from_bits(bits: u32) -> Self {
            Self(bits)
        }
    }

    #[test]
    fn moves_on_until_an_event_changes_nothing() {
        let machine = Machine::<UpTo3>::new();
        assert_eq!(machine.on(()), Some((UpTo3(0), UpTo3(1))));
        machine.on(());
        machine.on(());
        assert_eq!(machine.on(()), None);
        assert_eq!((machine.state(), machine.peek()), (UpTo3(3), UpTo3(3)));
    }

    #[test]
    fn the_child_of_a_fork_begins_in_the_first_state_wherever_its_parent_was() {
        // SAFETY: nothing but this thread uses the machines.
        let alone = unsafe { OnlyThread::new() };
        for events in 0..4 {
            let machine = Machine::<UpTo3>::new();
            for _ in 0..events {
                machine.on(());
            }
            machine.in_child(&alone);
            assert_eq!(machine.state(), UpTo3(0));
        }
    }

    #[test]
    fn each_event_of_many_threads_counts_once() {
        let machine = Machine::<UpTo3>::new();
        let changed = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..4).filter(|_| machine.on(()).is_some()).count()))
                .collect();
            let counts = threads.into_iter().map(|thread| thread.join().unwrap_or(0));
            counts.sum::<usize>()
        });
        assert_eq!(changed, 3);
    }
}
