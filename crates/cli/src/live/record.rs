//! Reads the record of a running process. The record's header contains figures that the process keeps up to date.

use std::fs::File;
use std::path::{Path, PathBuf};

use tllmprof_calls::{CALLS, CallPurpose};
use tllmprof_control::Status;
use tllmprof_record::{Clock, Counter, Header, Histogram, Reader};
use tllmprof_report::has_enough_for_percentile;

use crate::beyond;

/// Returns the path with which this command can read the record of process `pid`, which may be in a container. `record`
/// is the record's path in that process.
pub(crate) fn reachable(record: &Path, pid: u64) -> PathBuf {
    let beyond = beyond::path_of(pid, record);
    match beyond.exists() {
        true => beyond,
        false => record.to_owned(),
    }
}

/// Figures from the header of a process's record, counted since the process started. A figure is `None` if the process
/// does not measure it.
pub(crate) struct Figures {
    header: Header,
    ns_per_tick: f64,
}

impl Figures {
    /// Reads the figures of a process from its record. Returns `None` if this command cannot read the record.
    pub(crate) fn from_status(status: &Status) -> Option<Self> {
        let record = reachable(Path::new(status.record.as_ref()?), status.pid);
        let reader = Reader::new(File::open(record).ok()?).ok()?;
        let header = reader.header().clone();
        // The process id in the record is compared, because another process may have written a record with this name. A
        // process in a container writes the id that it has in the container.
        let writer = u64::from(header.pid);
        let is_it = writer == status.pid || beyond::own_number(status.pid) == Some(writer);
        is_it.then(|| Self {
            ns_per_tick: Clock::new(header.clock, &header.anchors).ns_per_tick(),
            header,
        })
    }

    /// Returns the durations of the iterations outside windows (captured ranges of iterations), in ticks of the
    /// record's clock.
    pub(crate) const fn durations(&self) -> &Histogram {
        &self.header.outside
    }

    /// Returns the median duration of the iterations outside windows (captured ranges of iterations), in nanoseconds.
    pub(crate) fn p50(&self) -> Option<u64> {
        self.quantile_of(self.durations(), 0.5)
    }

    /// Returns the quantile `share` of `durations`, in nanoseconds. `None` if there are too few iterations for this
    /// quantile.
    pub(crate) fn quantile_of(&self, durations: &Histogram, share: f64) -> Option<u64> {
        let is_median = share <= 0.5;
        if !is_median && !has_enough_for_percentile(share, durations.count()) {
            return None;
        }
        let ticks = durations.quantile(share)?;
        Some((ticks as f64 * self.ns_per_tick) as u64)
    }

    /// Returns the number of calls that waited for the GPU, inside and outside windows (captured ranges of iterations).
    pub(crate) fn waits(&self) -> u64 {
        let of_row = |counter: fn(u8) -> Counter, row| self.header.counter(counter(row));
        let waits = (0..)
            .zip(CALLS)
            .filter(|(_, call)| matches!(call.kind, CallPurpose::Wait(_)));
        waits
            .map(|(row, _)| of_row(Counter::CallsOutside, row) + of_row(Counter::CallsInside, row))
            .sum()
    }

    /// Returns the number of Python's garbage collections. `None` if there were no collections, or collections are not
    /// recorded.
    pub(crate) fn collections(&self) -> Option<u64> {
        self.counter(Counter::Collections)
    }

    /// Returns the number of times that a thread took the GIL and released it. `None` if that never happened, or if
    /// this is not recorded.
    pub(crate) fn handoffs(&self) -> Option<u64> {
        self.counter(Counter::GilHandoffs)
    }

    /// Returns the GPU's working time inside windows (captured ranges of iterations), in nanoseconds, summed over all
    /// streams. `None` if there were windows but no GPU time was measured.
    pub(crate) fn gpu_ns(&self) -> Option<u64> {
        Some(self.header.counter(Counter::GpuNs)).filter(|ns| *ns > 0 || self.windows() == 0)
    }

    /// Returns the total duration, in nanoseconds, of those iterations inside windows (captured ranges of iterations)
    /// whose GPU time was measured.
    pub(crate) const fn inside_ns(&self) -> u64 {
        self.header.counter(Counter::NsInside)
    }

    /// Returns the GPU's working time as a share of the duration of those iterations inside windows whose GPU time was
    /// measured. Both times are counted from the earlier figures `before`, or from the start of the process if `before`
    /// is `None`. Returns `None` if there were no such iterations in that time.
    pub(crate) fn gpu_share(&self, before: Option<&Self>) -> Option<f64> {
        let since = |of: fn(&Self) -> Option<u64>| {
            let old = before.and_then(of).unwrap_or(0);
            Some(of(self)?.saturating_sub(old))
        };
        let inside = since(|figures| Some(figures.inside_ns())).filter(|ns| *ns > 0)?;
        Some(since(Self::gpu_ns)? as f64 / inside as f64)
    }

    /// Returns the number of windows (captured ranges of iterations) that were opened.
    pub(crate) const fn windows(&self) -> u64 {
        self.header.counter(Counter::Windows)
    }

    /// Returns the number of events that were dropped because the record or the disk was full.
    pub(crate) const fn dropped(&self) -> u64 {
        self.header.counter(Counter::EventsDropped)
    }

    fn counter(&self, counter: Counter) -> Option<u64> {
        Some(self.header.counter(counter)).filter(|count| *count > 0)
    }
}
