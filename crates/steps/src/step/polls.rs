//! A thread's waits by polling: the thread asks again and again whether work is done. Meanwhile it makes no call that
//! gives the GPU work or waits for the GPU.

use core::sync::atomic::{AtomicU64, Ordering};

/// The numbers of two kinds of calls that a thread has made so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CallsMade {
    /// The number of calls that gave the GPU work.
    pub work: u64,
    /// The number of calls that waited for the GPU.
    pub waits: u64,
}

/// The result of a query whether work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueryResult {
    Done,
    NotReady,
    /// The query failed, so it does not show whether the work is done.
    Failed,
}

/// The effect of a query on the thread's wait by polling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polled {
    /// The query is neither the first nor the last one of a wait.
    Nothing,
    /// The query is the first one of a series of a thread that is known to poll: the wait has begun.
    Begins,
    /// The query has found that the work is done, so the wait has ended. `since` is the time at which the first query
    /// of the series began; `None` if this query is the only one of the wait.
    Ends { since: Option<u64> },
}

/// The number of successive series of queries after which a thread counts as one that polls. From then on, a single
/// query that finds new work done is a wait, too. Memory allocators, for example, also make single queries, but do not
/// wait by them.
const SERIES_OF_POLLER: u64 = 3;

/// Data about a thread's waits by polling. Only that thread uses it.
#[derive(Debug, Default)]
pub struct Polls {
    is_polling: AtomicU64,
    /// The event or stream that the queries of the series ask about.
    handle: AtomicU64,
    /// The number of successive series, up to [`SERIES_OF_POLLER`]. A single query that finds new work done resets it
    /// to 0, unless the thread is already known to poll.
    series: AtomicU64,
    /// The time at which the first query of the series began.
    since: AtomicU64,
    /// The numbers of calls that the thread had made when the series began.
    began: AtomicCallsMade,
    /// The numbers of calls that the thread had made at its latest query that found work done.
    done: AtomicCallsMade,
}

#[derive(Debug, Default)]
struct AtomicCallsMade {
    work: AtomicU64,
    waits: AtomicU64,
}

impl AtomicCallsMade {
    fn load(&self) -> CallsMade {
        CallsMade {
            work: self.work.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
        }
    }

    fn store(&self, made: CallsMade) {
        self.work.store(made.work, Ordering::Relaxed);
        self.waits.store(made.waits, Ordering::Relaxed);
    }
}

impl Polls {
    /// Forgets the queries of a thread that has ended.
    pub fn clear(&self) {
        self.is_polling.store(0, Ordering::Relaxed);
        self.series.store(0, Ordering::Relaxed);
    }

    /// Notes a query about `handle` that began at `since` and returned `result`. `made` has the numbers of calls that
    /// the thread has made so far.
    ///
    /// A series of queries asks about one event or stream, and ends when the thread gives the GPU work or makes a
    /// blocking wait. A single query that finds work done is a wait under two conditions: the thread is known to poll,
    /// and it has given the GPU work since its latest wait. Only the numbers of calls are known here, not their order.
    /// So if the thread has made a blocking wait since its latest query that found work done, this wait counts as the
    /// wait for all work before the new query.
    pub fn note(&self, handle: u64, result: QueryResult, since: u64, made: CallsMade) -> Polled {
        let is_series = self.is_polling.load(Ordering::Relaxed) != 0
            && self.handle.load(Ordering::Relaxed) == handle
            && self.began.load() == made;
        match result {
            QueryResult::NotReady if is_series => Polled::Nothing,
            QueryResult::NotReady => {
                self.is_polling.store(1, Ordering::Relaxed);
                self.handle.store(handle, Ordering::Relaxed);
                self.since.store(since, Ordering::Relaxed);
                self.began.store(made);
                match self.series.load(Ordering::Relaxed) >= SERIES_OF_POLLER {
                    true => Polled::Begins,
                    false => Polled::Nothing,
                }
            }
            QueryResult::Failed => {
                self.is_polling.store(0, Ordering::Relaxed);
                Polled::Nothing
            }
            QueryResult::Done => {
                let done = self.done.load();
                self.is_polling.store(0, Ordering::Relaxed);
                self.done.store(made);
                let is_new = made.work != done.work && made.waits == done.waits;
                let series = self.series.load(Ordering::Relaxed);
                let polls = series >= SERIES_OF_POLLER;
                match is_series {
                    true => {
                        self.series
                            .store(series + u64::from(!polls), Ordering::Relaxed);
                        let since = Some(self.since.load(Ordering::Relaxed));
                        Polled::Ends { since }
                    }
                    false if is_new && polls => Polled::Ends { since: None },
                    false if is_new => {
                        self.series.store(0, Ordering::Relaxed);
                        Polled::Nothing
                    }
                    false => Polled::Nothing,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::QueryResult::{Done, Failed, NotReady};
    use super::*;

    const fn made(work: u64, waits: u64) -> CallsMade {
        CallsMade { work, waits }
    }

    const EVENT: u64 = 7;

    /// Returns the state of a thread that is known to poll. `last` has the numbers of calls up to its last series.
    fn of_poller(last: CallsMade) -> Polls {
        let polls = Polls::default();
        for _ in 0..SERIES_OF_POLLER {
            polls.note(EVENT, NotReady, 1, last);
            polls.note(EVENT, Done, 2, last);
        }
        polls
    }

    #[test]
    fn a_series_of_queries_is_one_wait_from_its_first_query_on() {
        let polls = Polls::default();
        assert_eq!(polls.note(EVENT, NotReady, 10, made(1, 0)), Polled::Nothing);
        for since in 11..20 {
            let polled = polls.note(EVENT, NotReady, since, made(1, 0));
            assert_eq!(polled, Polled::Nothing);
        }
        let ends = Polled::Ends { since: Some(10) };
        assert_eq!(polls.note(EVENT, Done, 20, made(1, 0)), ends);
        assert_eq!(polls.note(EVENT, Done, 21, made(1, 0)), Polled::Nothing);
    }

    #[test]
    fn a_single_query_of_a_poller_is_a_wait_only_after_new_work() {
        let polls = of_poller(made(0, 0));
        assert_eq!(polls.note(EVENT, Done, 1, made(0, 0)), Polled::Nothing);
        let ends = Polled::Ends { since: None };
        assert_eq!(polls.note(EVENT, Done, 2, made(3, 0)), ends);
        assert_eq!(polls.note(EVENT, Done, 3, made(3, 0)), Polled::Nothing);
        assert_eq!(polls.note(EVENT, Done, 4, made(4, 0)), ends);
        // Between the previous query and this query, the thread made a blocking wait, which may have waited for the
        // work.
        assert_eq!(polls.note(EVENT, Done, 5, made(5, 1)), Polled::Nothing);
        assert_eq!(polls.note(EVENT, Done, 6, made(6, 1)), ends);
    }

    #[test]
    fn another_thread_does_not_end_the_series_of_one_that_has_ended() {
        let polls = of_poller(made(1, 0));
        assert_eq!(polls.note(EVENT, NotReady, 1, made(2, 0)), Polled::Begins);
        polls.clear();
        assert_eq!(polls.note(EVENT, Done, 100, made(2, 0)), Polled::Nothing);
    }

    #[test]
    fn an_allocator_that_asks_between_launches_does_not_wait() {
        let polls = Polls::default();
        for step in 0..100 {
            // The allocator asks about the oldest event of each of two streams, before it gives memory to a kernel.
            let before = made(3 * step, 0);
            let first = polls.note(EVENT, NotReady, step, before);
            assert_eq!(first, Polled::Nothing);
            let other = polls.note(EVENT + 1, Done, step, before);
            assert_eq!(other, Polled::Nothing);
            let later = polls.note(EVENT, Done, step, made(3 * step + 1, 0));
            assert_eq!(later, Polled::Nothing);
        }
    }

    #[test]
    fn another_call_or_an_error_ends_a_series() {
        let polls = of_poller(made(0, 0));
        assert_eq!(polls.note(EVENT, NotReady, 1, made(1, 0)), Polled::Begins);
        assert_eq!(polls.note(EVENT, NotReady, 2, made(2, 0)), Polled::Begins);
        assert_eq!(
            polls.note(EVENT, Done, 3, made(3, 0)),
            Polled::Ends { since: None },
            "the thread has launched work meanwhile"
        );
        assert_eq!(polls.note(EVENT, NotReady, 4, made(4, 0)), Polled::Begins);
        assert_eq!(polls.note(EVENT, Failed, 5, made(4, 0)), Polled::Nothing);
        assert_eq!(polls.note(EVENT, NotReady, 6, made(4, 0)), Polled::Begins);
        let ends = Polled::Ends { since: Some(6) };
        assert_eq!(polls.note(EVENT, Done, 7, made(4, 0)), ends);
    }
}
