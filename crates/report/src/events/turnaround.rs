//! GPU idle time that occurs because the host waited for the GPU in the middle of an iteration.
//!
//! When a wait for a stream returns, the stream is empty until the thread launches the next work.
//! If all work goes to one stream, the GPU is idle for that time. So this idle time is known even
//! if kernels are not recorded.

use std::collections::HashMap;

use tllmprof_calls::Wait;
use tllmprof_record::Event;

use crate::events::facts::CallCount;

/// Maximum number of threads whose latest wait or copy is stored. The same maximum applies to the pairs of a thread and
/// a stream whose launches are counted. Further threads and pairs are ignored.
const MAX_THREADS: usize = 256;

/// Minimum share of all launches, as a fraction, that one thread must make on one stream for the GPU to count as used
/// through a single stream.
const MIN_ONE_STREAM_SHARE: f64 = 0.95;

/// The effect of a CUDA call on the stream that it uses. A launch gives the stream work. After a wait or a blocking
/// copy, the stream has no work left: it is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Drains {
    #[default]
    Nothing,
    Launch,
    /// The call waits until the stream has no work left.
    Wait,
    /// The call copies, and returns when the copy has completed.
    Copy,
}

impl Drains {
    /// Returns the effect of each row of the table of CUDA calls. A wait for an event has no
    /// effect, because the event may have been recorded long before the last work of its stream.
    pub(crate) fn by_row(rows: &[CallCount]) -> [Self; 256] {
        let mut all = [Self::Nothing; 256];
        for row in rows {
            all[usize::from(row.row)] = match row.waits_for() {
                _ if row.kind.launches() => Self::Launch,
                Some(Wait::CopyToHost) => Self::Copy,
                Some(Wait::Stream | Wait::Context) => Self::Wait,
                Some(Wait::Event) | None => Self::Nothing,
            };
        }
        all
    }
}

/// Time from the end of a host wait or a blocking copy to the next launch of the same thread in the same iteration,
/// summed over all waits and copies. Delays that have findings of their own, such as garbage collections, are left out.
/// `Turnarounds` counts in ticks of the record's clock; the report converts the sums to nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Turnaround {
    pub after_waits: u64,
    pub after_copies: u64,
    /// True if nearly all launches came from one thread and went to one stream. If false, the GPU
    /// may have run other work during these times.
    pub one_stream: bool,
}

/// The latest wait or blocking copy of a thread. After it, the stream of the wait or copy is empty.
#[derive(Clone, Copy, Debug)]
struct Empty {
    by: Drains,
    since: u64,
    /// Index of the iteration in which the wait or the copy was made.
    place: usize,
    /// Time after `since` that the thread spent on activities that the wait or the copy did not cause, in ticks.
    held: u64,
}

/// Adds up the times from waits and blocking copies to the next launch.
#[derive(Debug)]
pub(crate) struct Turnarounds {
    rows: [Drains; 256],
    empty: HashMap<u32, Empty>,
    launches: HashMap<(u32, u64), u64>,
    /// The latest launches in a row that one thread made on one stream: the thread, the stream, and the number of
    /// launches. That number is not yet in `launches`. Consecutive launches usually have the same thread and stream,
    /// so this field saves look-ups in `launches`.
    latest: ((u32, u64), u64),
    found: Turnaround,
}

impl Turnarounds {
    pub(crate) fn new(rows: &[CallCount]) -> Self {
        Self {
            rows: Drains::by_row(rows),
            empty: HashMap::new(),
            launches: HashMap::new(),
            latest: ((0, 0), 0),
            found: Turnaround::default(),
        }
    }

    /// Adds a call of a thread. `place` is the index of the iteration in which it was made.
    pub(crate) fn call(&mut self, thread: u32, row: u8, stream: u64, place: usize, event: &Event) {
        match self.rows[usize::from(row)] {
            Drains::Nothing => (),
            Drains::Launch => self.launch(thread, stream, place, event.start),
            by @ (Drains::Wait | Drains::Copy) => {
                if self.empty.len() < MAX_THREADS || self.empty.contains_key(&thread) {
                    let empty = Empty {
                        by,
                        since: event.start.saturating_add(event.duration),
                        place,
                        held: 0,
                    };
                    self.empty.insert(thread, empty);
                }
            }
        }
    }

    /// Adds an event that delayed the thread for a reason that the report shows separately, such as a garbage
    /// collection, a wait for the GIL or an allocation.
    pub(crate) fn held(&mut self, thread: u32, event: &Event) {
        if let Some(empty) = self.empty.get_mut(&thread)
            && event.start >= empty.since
        {
            empty.held = empty.held.saturating_add(event.duration);
        }
    }

    fn launch(&mut self, thread: u32, stream: u64, place: usize, start: u64) {
        let key = (thread, stream);
        if self.latest.0 != key {
            self.settle();
            self.latest = (key, 0);
        }
        self.latest.1 += 1;
        if self.empty.is_empty() {
            return;
        }
        // Ignore a launch in another iteration than the wait: between two iterations the host
        // prepares the next iteration, which is not a consequence of the wait.
        if let Some(empty) = self.empty.remove(&thread)
            && empty.place == place
        {
            let sum = match empty.by {
                Drains::Copy => &mut self.found.after_copies,
                _ => &mut self.found.after_waits,
            };
            *sum = sum.saturating_add(start.saturating_sub(empty.since).saturating_sub(empty.held));
        }
    }

    fn settle(&mut self) {
        let (key, count) = self.latest;
        if count > 0 && (self.launches.len() < MAX_THREADS || self.launches.contains_key(&key)) {
            *self.launches.entry(key).or_default() += count;
        }
    }

    pub(crate) fn finish(mut self) -> Turnaround {
        self.settle();
        let all: u64 = self.launches.values().sum();
        let most = self.launches.values().copied().max().unwrap_or(0);
        Turnaround {
            one_stream: most > 0 && most as f64 >= MIN_ONE_STREAM_SHARE * all as f64,
            ..self.found
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_record::{CallKind, What};

    fn row(row: u8, kind: CallKind, name: &str) -> CallCount {
        CallCount {
            row,
            name: name.to_owned(),
            kind,
            inside: 0,
            outside: 0,
        }
    }

    fn found(calls: &[(u32, u8, u64, usize, u64, u64)]) -> Turnaround {
        let mut all = Turnarounds::new(&[
            row(1, CallKind::KernelLaunch, "cuLaunchKernel"),
            row(2, CallKind::Wait, "cuStreamSynchronize"),
            row(3, CallKind::Wait, "cuMemcpyDtoH_v2"),
            row(4, CallKind::Wait, "cuEventSynchronize"),
        ]);
        for &(thread, row, stream, place, start, end) in calls {
            let (capturing, duration) = (false, end - start);
            let what = What::Call {
                row,
                capturing,
                stream,
            };
            all.call(
                thread,
                row,
                stream,
                place,
                &Event::new(start, duration, what),
            );
        }
        all.finish()
    }

    #[test]
    fn a_stream_is_empty_from_a_wait_to_the_next_launch_of_the_iteration() {
        let both = found(&[
            (1, 1, 7, 0, 0, 1),
            (1, 2, 7, 0, 5, 10),
            (1, 1, 7, 0, 14, 15), // 4 ticks after a wait
            (1, 3, 0, 0, 20, 30),
            (1, 1, 7, 0, 31, 32), // 1 tick after a copy
            (1, 4, 0, 0, 33, 40), // a wait for an event does not empty the stream
            (1, 1, 7, 0, 60, 61),
            (1, 2, 7, 0, 62, 63),
            (1, 1, 7, 1, 99, 100), // the launch is in the next iteration
        ]);
        assert_eq!((both.after_waits, both.after_copies), (4, 1));
        assert!(both.one_stream);
    }

    #[test]
    fn what_holds_the_thread_up_meanwhile_has_a_finding_of_its_own() {
        let mut all = Turnarounds::new(&[
            row(1, CallKind::KernelLaunch, "cuLaunchKernel"),
            row(2, CallKind::Wait, "cuStreamSynchronize"),
        ]);
        let what = |row| What::Call {
            row,
            capturing: false,
            stream: 7,
        };
        all.held(1, &Event::new(0, 5, What::GilWait));
        all.call(1, 2, 7, 0, &Event::new(10, 10, what(2)));
        all.held(1, &Event::new(22, 5, What::GilWait));
        all.held(2, &Event::new(23, 5, What::GilWait));
        all.call(1, 1, 7, 0, &Event::new(30, 1, what(1)));
        assert_eq!(all.finish().after_waits, 10 - 5);
    }

    #[test]
    fn work_of_others_may_keep_the_gpu_busy() {
        assert!(!found(&[(1, 1, 7, 0, 0, 1), (1, 1, 8, 0, 2, 3)]).one_stream);
        assert!(!found(&[(1, 1, 7, 0, 0, 1), (2, 1, 7, 0, 2, 3)]).one_stream);
        assert!(!found(&[]).one_stream);
    }
}
