//! A state machine whose state is one word. Threads read the state with one load, and change it with compare
//! and exchange.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::OnlyThread;

/// The states of a [`Machine`], and the events that change its state.
pub trait States: Copy {
    /// The type of the events that may change the state.
    type Event: Copy;

    /// Returns the state after `event`, or `None` if the event does not change the state.
    fn next(self, event: Self::Event) -> Option<Self>;

    /// Converts the state to a word. The initial state must convert to 0.
    fn to_bits(self) -> u32;

    /// Converts a result of [`States::to_bits`] back to the state.
    fn from_bits(bits: u32) -> Self;
}

/// A state machine whose state several threads read and change.
pub struct Machine<S> {
    word: AtomicU32,
    states: PhantomData<fn() -> S>,
}

impl<S: States> Machine<S> {
    /// Returns a machine in its initial state.
    pub const fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            states: PhantomData,
        }
    }

    /// Returns the current state. The load is part of one total order with all events and with other sequentially
    /// consistent operations.
    #[inline]
    pub fn state(&self) -> S {
        S::from_bits(self.word.load(Ordering::SeqCst))
    }

    /// Returns the state with one relaxed load, for a hot path. The result may be slightly out of date.
    #[inline]
    pub fn peek(&self) -> S {
        S::from_bits(self.word.load(Ordering::Relaxed))
    }

    /// Applies `event`. Returns the states before and after it, or `None` if the event does not change the state.
    pub fn on(&self, event: S::Event) -> Option<(S, S)> {
        let next = |bits| Some(S::from_bits(bits).next(event)?.to_bits());
        let before = self
            .word
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
            .ok()
            .map(S::from_bits)?;
        Some((before, before.next(event)?))
    }

    /// Resets the machine to its initial state, in the child of a fork.
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
        // SAFETY: only this thread uses the state machines.
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
