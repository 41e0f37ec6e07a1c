//! Which iterations' events a page shows, where there are too many for all.

use std::collections::HashSet;

use tllmprof_report::Process;

/// The moment that the page counts a process's times from: its first iteration's start.
pub fn base(process: &Process) -> u64 {
    let iterations = process.windows.iter().flat_map(|window| &window.iterations);
    iterations
        .map(|iteration| iteration.start)
        .min()
        .unwrap_or(0)
}

/// The iterations of a process on its clock, and the events of each: a bucket for what comes before the
/// first one, then one from each iteration's start to the next.
#[derive(Debug)]
pub struct Buckets {
    /// In nanoseconds, in their order.
    starts: Vec<u64>,
    counts: Vec<u64>,
}

impl Buckets {
    pub fn of(process: &Process) -> Self {
        let iterations = process.windows.iter().flat_map(|window| &window.iterations);
        let mut starts: Vec<_> = iterations.map(|iteration| iteration.start).collect();
        starts.sort_unstable();
        let counts = vec![0; starts.len() + 1];
        Self { starts, counts }
    }

    /// The bucket of a moment.
    pub fn at(&self, moment: u64) -> usize {
        self.starts.partition_point(|start| *start <= moment)
    }

    pub fn count(&mut self, moment: u64) {
        let bucket = self.at(moment);
        self.counts[bucket] += 1;
    }

    pub fn events(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Which buckets are shown so that they have no more than `room` events, the first bucket in any
    /// case: first the slowest iterations, each with its neighbours, then from the start of every window on.
    pub fn choose(&self, process: &Process, room: u64) -> Vec<bool> {
        let mut shown = vec![false; self.counts.len()];
        shown[0] = true;
        let mut sum = self.counts[0];
        let slow = process.slowest.iter().flat_map(|slow| {
            let bucket = self.at(slow.start);
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
                in_turn.extend(window.next().map(|iteration| self.at(iteration.start)));
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
