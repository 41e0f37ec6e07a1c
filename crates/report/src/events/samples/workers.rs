//! Finds the waits of a thread for another thread of the process, which gives work to the GPU during the wait.
//!
//! A wait on a condition variable may end because a request arrives, or because another thread that works on the same
//! step, such as PyTorch's thread for the backward pass, is done. Both waits look the same on the thread's stack. They
//! are distinguished by the calls of other threads during the wait.

use std::collections::HashMap;

use super::StackSample;
use super::sleep::{Sleep, SleepKind};
use crate::events::by_thread::ByThread;
use crate::events::spans::{self, Span};

/// Maximum time, in nanoseconds, between two calls of a thread that give work to the GPU. If the time is longer, the
/// thread is not regarded as at work between these calls.
const MAX_APART_NS: u64 = 1_000_000;
/// Maximum number of time spans, of all threads together, that [`Workers`] stores. Further spans are left out.
const MAX_SPANS: usize = 1 << 20;
/// Minimum number of samples of a wait. With fewer, the wait does not count as a wait for another thread.
const MIN_SAMPLES: u64 = 8;
/// Minimum share of a wait's samples, as a fraction, in which another thread must be giving work to the GPU. With a
/// smaller share, the wait does not count as a wait for that thread.
const MIN_AT_WORK: f64 = 0.5;
/// Maximum share of the waiting thread's samples outside the wait, as a fraction, in which another thread may be giving
/// work to the GPU. A thread that gives work to the GPU all the time does not work for the waiting thread.
const MAX_AT_WORK_OTHERWISE: f64 = 0.25;

/// The times in which each thread gave work to the GPU, in nanoseconds and in order.
#[derive(Debug, Default)]
pub(super) struct Workers {
    spans: ByThread<Vec<Span>>,
    count: usize,
}

impl Workers {
    /// Adds a thread's call that gives work to the GPU.
    pub(super) fn add(&mut self, thread: u32, call: Span) {
        let Some(spans) = self.spans.get_mut(thread) else {
            return;
        };
        match spans.last_mut() {
            Some(last) if call.start <= last.end.saturating_add(MAX_APART_NS) => {
                last.end = last.end.max(call.end);
            }
            _ if self.count < MAX_SPANS => {
                spans.push(call);
                self.count += 1;
            }
            _ => (),
        }
    }

    /// Returns true if any thread other than `thread` was giving work to the GPU at the time `at`, which is in
    /// nanoseconds.
    fn has_other(&self, thread: u32, at: u64) -> bool {
        let mut others = self.spans.iter().filter(|(other, _)| *other != thread);
        others.any(|(_, spans)| spans::contain(spans, at))
    }

    /// Returns true if a thread, which gives work to the GPU at other times, gave it none from `start` to `end`. Times are
    /// in nanoseconds.
    pub(super) fn gave_none(&self, thread: u32, start: u64, end: u64) -> bool {
        if self.count == MAX_SPANS {
            return false;
        }
        let own = self.spans.iter().find(|(known, _)| *known == thread);
        own.is_some_and(|(_, spans)| {
            let first = spans.partition_point(|span| span.end <= start);
            spans.get(first).is_none_or(|span| span.start >= end)
        })
    }

    /// Finds the sleeps in which a thread waits for another thread that gives work to the GPU, and sets their kind to
    /// [`SleepKind::Worker`]. `samples` contains the samples of all threads.
    pub(super) fn name_waits(&self, samples: &[StackSample], sleeps: &mut [Sleep]) {
        let may_be_for_worker = |sleep: &Sleep| {
            use SleepKind::{Called, Poll, Work};
            matches!(sleep.kind, Work | Called | Poll)
        };
        if self.spans.len() < 2 || !sleeps.iter().any(may_be_for_worker) {
            return;
        }
        // `threads` has an entry for each thread, and `waits` an entry for each wait of a thread. An entry contains the
        // number of samples, and the number of those samples that were taken while another thread gave work to the GPU.
        let mut threads: HashMap<u32, AtWork> = HashMap::new();
        let mut waits: HashMap<(u32, u32), AtWork> = HashMap::new();
        for sample in samples {
            let is_at_work = self.has_other(sample.thread, sample.at);
            threads.entry(sample.thread).or_default().add(is_at_work);
            if let Some(sleep) = sample.sleep {
                let wait = waits.entry((sample.thread, sleep)).or_default();
                wait.add(is_at_work);
            }
        }
        for ((thread, sleep), wait) in waits {
            let otherwise = threads
                .get(&thread)
                .map_or(0.0, |all| all.without(wait).share());
            let is_for_worker = wait.all >= MIN_SAMPLES
                && wait.share() >= MIN_AT_WORK
                && otherwise <= MAX_AT_WORK_OTHERWISE;
            if let Some(sleep) = sleeps.get_mut(sleep as usize)
                && may_be_for_worker(&*sleep)
                && is_for_worker
            {
                sleep.mark_as_for_worker();
            }
        }
    }
}

/// Number of all samples (`all`), and number of the samples in which another thread gave work to the GPU (`at_work`).
#[derive(Clone, Copy, Debug, Default)]
struct AtWork {
    all: u64,
    at_work: u64,
}

impl AtWork {
    fn add(&mut self, is_at_work: bool) {
        self.all += 1;
        self.at_work += u64::from(is_at_work);
    }

    const fn without(self, some: Self) -> Self {
        Self {
            all: self.all.saturating_sub(some.all),
            at_work: self.at_work.saturating_sub(some.at_work),
        }
    }

    fn share(self) -> f64 {
        self.at_work as f64 / self.all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_record::{Taken, ThreadState};

    const MAIN: u32 = 1;
    const WORKER: u32 = 2;
    const STEP_NS: u64 = 20_000_000;

    /// Returns samples of a thread that runs 40 steps of 20 ms, one sample each millisecond. The
    /// thread runs in the first half of a step and waits in the second half.
    fn samples() -> Vec<StackSample> {
        let times = (0..40 * 20).map(|n| (n * 1_000_000, n % 20 >= 10));
        let sample = |(at, waits): (u64, bool)| StackSample {
            at,
            ticks: at,
            thread: MAIN,
            taken: Taken::Native,
            state: waits.then_some(ThreadState::Sleeping),
            frame: 1,
            sleep: waits.then_some(0),
            waits_for_events: false,
        };
        times.map(sample).collect()
    }

    fn wait() -> Vec<Sleep> {
        vec![Sleep {
            kind: SleepKind::Work,
            cause: "waiting for work in run_backward: pthread_cond_wait".to_owned(),
            location: None,
            producer: None,
        }]
    }

    fn call(at: u64) -> Span {
        Span {
            start: at,
            end: at + 5_000,
        }
    }

    /// Returns the wait of the thread `MAIN`, with the kind and the cause that [`Workers::name_waits`] gives it.
    /// `calls` adds the calls of another thread in the step that begins at the given time, in nanoseconds.
    fn named(calls: impl Fn(&mut Workers, u64)) -> Sleep {
        let mut workers = Workers::default();
        for step in 0..40 {
            workers.add(MAIN, call(step * STEP_NS + 2_000_000));
            calls(&mut workers, step * STEP_NS);
        }
        let mut sleeps = wait();
        workers.name_waits(&samples(), &mut sleeps);
        sleeps.remove(0)
    }

    #[test]
    fn a_wait_while_another_thread_launches_is_for_that_thread() {
        let Sleep { kind, cause, .. } = named(|workers, step| {
            (11..19).for_each(|n| workers.add(WORKER, call(step + n * 1_000_000)));
        });
        assert_eq!(kind, SleepKind::Worker);
        assert_eq!(
            cause,
            "waiting for another thread, which launches work, in run_backward: pthread_cond_wait"
        );
    }

    #[test]
    fn a_thread_that_launches_all_the_time_works_for_itself() {
        let of_another_loop = named(|workers, step| {
            (0..20).for_each(|n| workers.add(WORKER, call(step + n * 1_000_000)));
        });
        assert_eq!([of_another_loop][..], wait());
    }

    #[test]
    fn a_wait_in_which_nothing_is_launched_is_for_requests() {
        assert_eq!([named(|_, _| ())][..], wait());
        let once = named(|workers, step| workers.add(WORKER, call(step + 15_500_000)));
        assert_eq!([once][..], wait());
    }
}
