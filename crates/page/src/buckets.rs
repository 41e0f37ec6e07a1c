//! Chooses the iterations whose events a page shows, if the record has more events than the page may have.

use std::collections::HashSet;

use tllmprof_report::Process;

/// Returns the start of a process's first iteration in nanoseconds. On the page, this is time 0.
pub(crate) fn base(process: &Process) -> u64 {
    let iterations = process.windows.iter().flat_map(|window| &window.iterations);
    iterations
        .map(|iteration| iteration.start)
        .min()
        .unwrap_or(0)
}

/// The time of a process, divided into buckets, with the number of events in each bucket. The first bucket is the time
/// before the first iteration. Each further bucket lasts from the start of an iteration to the start of the next.
#[derive(Debug)]
pub(crate) struct Buckets {
    /// Start of each iteration in nanoseconds, in ascending order.
    starts: Vec<u64>,
    counts: Vec<u64>,
}

impl Buckets {
    pub(crate) fn new(process: &Process) -> Self {
        let iterations = process.windows.iter().flat_map(|window| &window.iterations);
        let mut starts: Vec<_> = iterations.map(|iteration| iteration.start).collect();
        starts.sort_unstable();
        let counts = vec![0; starts.len() + 1];
        Self { starts, counts }
    }

    /// Returns the index of the bucket that contains the time `moment`, which is in nanoseconds.
    pub(crate) fn index(&self, moment: u64) -> usize {
        self.starts.partition_point(|start| *start <= moment)
    }

    pub(crate) fn count(&mut self, moment: u64) {
        let bucket = self.index(moment);
        self.counts[bucket] += 1;
    }

    pub(crate) fn events(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the number of events that begin in the buckets for which `shown` is true.
    pub(crate) fn events_in(&self, shown: &[bool]) -> u64 {
        let counts = self.counts.iter().zip(shown);
        let counts = counts.filter(|(_, is_shown)| **is_shown);
        counts.map(|(count, _)| *count).sum()
    }

    /// Returns, for each bucket, true if the page shows its events. The first bucket is always shown. The other
    /// buckets are tried one after the other: first those of the slowest iterations and their neighbours, then those
    /// of iterations from all windows in turn, beginning with the first iteration of each window. A bucket is shown
    /// if all shown buckets together then have at most `room` events.
    pub(crate) fn choose(&self, process: &Process, room: u64) -> Vec<bool> {
        let mut shown = vec![false; self.counts.len()];
        shown[0] = true;
        let mut sum = self.counts[0];
        let slow = process.slowest.iter().flat_map(|slow| {
            let bucket = self.index(slow.start);
            [bucket, bucket.saturating_sub(1), bucket + 1]
        });
        let mut windows: Vec<_> = process
            .windows
            .iter()
            .map(|window| window.iterations.iter())
            .collect();
        let mut in_turn = Vec::with_capacity(self.starts.len());
        while in_turn.len() < self.starts.len() {
            for window in &mut windows {
                in_turn.extend(window.next().map(|iteration| self.index(iteration.start)));
            }
        }
        let mut seen: HashSet<usize> = HashSet::new();
        for bucket in slow.chain(in_turn) {
            if bucket == 0 || bucket >= shown.len() || !seen.insert(bucket) {
                continue;
            }
            if sum + self.counts[bucket] <= room {
                sum += self.counts[bucket];
                shown[bucket] = true;
            }
        }
        shown
    }
}
