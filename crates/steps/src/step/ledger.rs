//! Numbers the calls of all threads exactly, without a counter that each call has to update.
//!
//! The next call that may begin an iteration of interest (one at which the library has to act) is called the
//! interesting call. As long as many calls remain before the interesting call, these calls are handed out to the
//! threads as credit: each thread may count a number of calls by itself. The total credit never exceeds the number of
//! calls before the interesting call, so the thread that makes the interesting call always stops and asks first. A
//! thread that has used up its credit takes back the credit of all threads, which shows the number of calls so far, and
//! hands out credit for the remaining calls. Close to the interesting call no thread has credit, and each call is
//! numbered in this module.
//!
//! To take back credit, every thread has to see its new limit before its count is read, although threads use
//! no memory fences. The process-wide barrier [`Fence`] ensures this.

use core::ops::Range;

use super::counted::Counted;
use super::threads::{Slot, UNLIMITED};

/// The smallest credit (number of calls that a thread may count by itself). If the credit would be smaller, none is
/// handed out.
const WORTHWHILE: u64 = 64;

/// A function that executes a memory barrier on all threads of the process. Each thread's earlier stores become
/// visible to the others, and its later loads return current values. Returns false if the kernel does not support
/// this.
pub type Fence = fn() -> bool;

/// Gives each call of one kind its number, which is its position among the calls of all threads.
pub struct Ledger {
    what: Counted,
    numbered: u64,
    credit_out: bool,
    unlimited: bool,
    fence: Fence,
}

impl Ledger {
    /// Returns a ledger in which no call has a number and no thread has credit (calls that it may count by itself).
    pub const fn new(what: Counted, fence: Fence) -> Self {
        Self {
            what,
            numbered: 0,
            credit_out: false,
            unlimited: false,
            fence,
        }
    }

    /// Returns a ledger that gives the number `first` to the call that the thread of `slot` is making now. Earlier
    /// calls of all threads get no number.
    pub fn beginning_with(
        what: Counted,
        first: u64,
        slots: &[&Slot],
        slot: &Slot,
        fence: Fence,
    ) -> Self {
        for other in slots {
            let is_made_now = core::ptr::eq(*other, slot);
            let made = other.live(what).count();
            other.set_settled(what, made.saturating_sub(u64::from(is_made_now)));
        }
        Self {
            numbered: first,
            ..Self::new(what, fence)
        }
    }

    /// Returns the kind of call that is numbered.
    pub const fn what(&self) -> Counted {
        self.what
    }

    /// Returns the number of calls that have got a number so far. Right after [`Ledger::settle`], these are
    /// all calls.
    pub const fn numbered(&self) -> u64 {
        self.numbered
    }

    /// Returns true if the next call that may begin an iteration of interest is so close that no thread has credit
    /// (calls that it may count by itself).
    pub const fn is_close(&self) -> bool {
        !self.credit_out
    }

    /// Returns the limit for a new thread: the count up to which it need not ask for the numbers of its calls.
    pub const fn first_limit(&self) -> u64 {
        if self.unlimited { UNLIMITED } else { 0 }
    }

    /// Takes back the credit of all threads (calls that they may count by themselves), and gives numbers to the calls
    /// that they made with it.
    pub fn settle(&mut self, slots: &[&Slot]) {
        if !self.credit_out {
            return;
        }
        self.credit_out = false;
        self.unlimited = false;
        let what = self.what;
        for slot in slots {
            slot.set_given(slot.live(what).limit());
            slot.live(what).set_limit(slot.settled(what));
        }
        (self.fence)();
        for slot in slots {
            // If the count exceeds the limit, the thread has counted its next call but has stopped before making it.
            // That call gets its number later, so it is left out here.
            let made = slot.live(what).count().min(slot.given());
            self.numbered += made - slot.settled(what);
            slot.set_settled(what, made);
            slot.live(what).set_limit(made);
        }
    }

    /// Returns the number of calls that all threads have made. To be called right after [`Ledger::settle`].
    /// Includes calls that never got a number because they did not return, such as a last wait that was left
    /// by an exception.
    pub fn made(&self, slots: &[&Slot]) -> u64 {
        let unnumbered = slots.iter().map(|slot| {
            let made = slot.live(self.what).count();
            made.saturating_sub(slot.settled(self.what))
        });
        self.numbered + unnumbered.sum::<u64>()
    }

    /// Gives a number to the call at which the thread of `slot` has stopped, and returns the range of new numbers. Also
    /// numbers the thread's earlier calls that did not return, such as waits left by an exception. The range is empty
    /// if the call already has a number: the call was made with credit (calls that a thread may count by itself) that
    /// was taken back afterwards.
    pub fn number(&mut self, slots: &[&Slot], slot: &Slot) -> Range<u64> {
        self.settle(slots);
        let cell = slot.live(self.what);
        let count = cell.count();
        let first = self.numbered;
        if let Some(fresh) = count.checked_sub(slot.settled(self.what)) {
            slot.set_settled(self.what, count);
            cell.set_limit(count);
            self.numbered += fresh;
        }
        first..self.numbered
    }

    /// Hands out credit for the calls before call number `next`: each thread may count an equal share of them by
    /// itself. `None` means that no iteration of interest follows. The limits of all threads are then removed.
    pub fn hand_out(&mut self, slots: &[&Slot], next: Option<u64>) {
        self.settle(slots);
        let Some(next) = next else {
            for slot in slots {
                slot.live(self.what).set_limit(UNLIMITED);
            }
            self.credit_out = true;
            self.unlimited = true;
            return;
        };
        if next.saturating_sub(self.numbered) < WORTHWHILE {
            return;
        }
        let threads = slots.iter().filter(|slot| slot.is_taken()).count().max(1) as u64;
        let share = next.saturating_sub(self.numbered) / threads;
        if share < WORTHWHILE || !(self.fence)() {
            return;
        }
        for slot in slots.iter().filter(|slot| slot.is_taken()) {
            let cell = slot.live(self.what);
            cell.set_limit(slot.settled(self.what) + share);
        }
        self.credit_out = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU64, Ordering, fence};
    use std::sync::Mutex;

    const CALL: Counted = Counted::Named;

    fn slots(count: usize) -> Vec<&'static Slot> {
        (0..count as u32)
            .map(|thread| &*Box::leak(Box::new(Slot::new(thread, |_| 0))))
            .collect()
    }

    /// Counts a call as the assembly code of the hooks does. Returns true if the thread has to stop and ask the
    /// ledger.
    fn count(slot: &Slot) -> bool {
        slot.live(CALL).add();
        fence(Ordering::SeqCst);
        slot.live(CALL).count() > slot.live(CALL).limit()
    }

    #[test]
    fn one_thread_is_numbered_in_order() {
        let slots = slots(1);
        let mut ledger = Ledger::new(CALL, || true);
        let mut asked = Vec::new();
        for _ in 0..1000 {
            if count(slots[0]) {
                let number = ledger.number(&slots, slots[0]).last();
                asked.extend(number);
                ledger.hand_out(
                    &slots,
                    Some(500).filter(|&next| number.is_none_or(|n| n < next)),
                );
            }
        }
        assert!(asked.contains(&500), "{asked:?}");
        assert!(asked.len() < 200, "credit was used: {}", asked.len());
        ledger.settle(&slots);
        assert_eq!(ledger.numbered(), 1000);
    }

    #[test]
    fn a_ledger_that_begins_late_leaves_out_earlier_calls() {
        let slots = slots(2);
        for _ in 0..3 {
            count(slots[0]);
            count(slots[1]);
        }
        let mut ledger = Ledger::beginning_with(CALL, 70, &slots, slots[1], || true);
        assert_eq!(ledger.number(&slots, slots[1]), 70..71);
        assert_eq!(ledger.made(&slots), 71);
        count(slots[0]);
        assert_eq!(ledger.number(&slots, slots[0]), 71..72);
    }

    #[test]
    fn calls_that_never_came_back_are_numbered_with_the_next() {
        let slots = slots(1);
        let mut ledger = Ledger::new(CALL, || true);
        count(slots[0]);
        count(slots[0]);
        assert_eq!(ledger.number(&slots, slots[0]), 0..2);
        assert!(ledger.number(&slots, slots[0]).is_empty());
    }

    #[test]
    fn without_a_fence_every_call_asks() {
        let slots = slots(1);
        let mut ledger = Ledger::new(CALL, || false);
        for expected in 0..300 {
            assert!(count(slots[0]));
            assert_eq!(ledger.number(&slots, slots[0]), expected..expected + 1);
            ledger.hand_out(&slots, Some(1_000_000));
        }
    }

    #[test]
    fn threads_meet_the_interesting_call_once_and_lose_none() {
        const THREADS: usize = 6;
        const CALLS: u64 = 40_000;
        const NEXT: u64 = 100_003;
        let slots = slots(THREADS);
        // In this test each count is followed by a fence, so the ledger's fence has to act only on
        // the calling thread.
        let ledger = Mutex::new(Ledger::new(CALL, || {
            fence(Ordering::SeqCst);
            true
        }));
        let met = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for slot in &slots {
                let (slots, ledger, met) = (&slots, &ledger, &met);
                scope.spawn(move || {
                    for _ in 0..CALLS {
                        if count(slot) {
                            let mut ledger = ledger.lock().unwrap();
                            if ledger.number(slots, slot).contains(&NEXT) {
                                met.fetch_add(1, Ordering::Relaxed);
                            }
                            let next = Some(NEXT).filter(|&next| ledger.numbered() <= next);
                            ledger.hand_out(slots, next);
                        }
                    }
                });
            }
        });
        assert_eq!(met.load(Ordering::Relaxed), 1);
        let mut ledger = ledger.into_inner().unwrap();
        ledger.settle(&slots);
        assert_eq!(ledger.numbered(), THREADS as u64 * CALLS);
    }
}
