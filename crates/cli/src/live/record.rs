//! The record of a running process: the header of its file, which the process keeps up to date.

use std::fs::File;
use std::path::{Path, PathBuf};

use tllmprof_calls::{CALLS, Kind};
use tllmprof_control::Status;
use tllmprof_record::{Clock, Counter, Header, Histogram, Reader};
use tllmprof_report::has_enough_for_percentile;

use super::beyond;

/// The path by which the record can be read here; the process may be in a container.
pub fn reachable(record: &Path, pid: u64) -> PathBuf {
    let beyond = beyond::path_of(pid, record);
    match beyond.exists() {
        true => beyond,
        false => record.to_owned(),
    }
}

/// Figures of a process since its start. A figure that the process does not count is `None`.
pub struct Figures {
    header: Header,
    ns_per_tick: f64,
}

impl Figures {
    /// Reads the figures of a process whose record can be read here.
    pub fn from_status(status: &Status) -> Option<Self> {
        let record = reachable(Path::new(status.record.as_ref()?), status.pid);
        let reader = Reader::new(File::open(record).ok()?).ok()?;
        let header = reader.header().clone();
        // Another process may have reused the name. In a container, a process has a different number of its own.
        let writer = u64::from(header.pid);
        let is_it = writer == status.pid || beyond::own_number(status.pid) == Some(writer);
        is_it.then(|| Self {
            ns_per_tick: Clock::new(header.clock, &header.anchors).ns_per_tick(),
            header,
        })
    }

    /// The durations of the iterations outside windows, in ticks.
    pub const fn durations(&self) -> &Histogram {
        &self.header.outside
    }

    /// The median duration of the iterations outside windows, in nanoseconds.
    pub fn p50(&self) -> Option<u64> {
        self.quantile_of(self.durations(), 0.5)
    }

    /// The quantile `share` of some durations, in nanoseconds; `None` if there are too few iterations for it.
    pub fn quantile_of(&self, durations: &Histogram, share: f64) -> Option<u64> {
        let is_median = share <= 0.5;
        if !is_median && !has_enough_for_percentile(share, durations.count()) {
            return None;
        }
        let ticks = durations.quantile(share)?;
        Some((ticks as f64 * self.ns_per_tick) as u64)
    }

    /// Number of calls that waited for the GPU, inside and outside windows.
    pub fn waits(&self) -> u64 {
        let of_row = |counter: fn(u8) -> Counter, row| self.header.counter(counter(row));
        let waits = (0..)
            .zip(CALLS)
            .filter(|(_, call)| matches!(call.kind, Kind::Wait(_)));
        waits
            .map(|(row, _)| of_row(Counter::CallsOutside, row) + of_row(Counter::CallsInside, row))
            .sum()
    }

    /// Number of Python's garbage collections; `None` if there were none, or they are not counted.
    pub fn collections(&self) -> Option<u64> {
        self.counter(Counter::Collections)
    }

    /// Number of hand-overs of the GIL; `None` if there were none, or they are not counted.
    pub fn handoffs(&self) -> Option<u64> {
        self.counter(Counter::GilHandoffs)
    }

    /// GPU work inside windows, in nanoseconds, summed over all streams; `None` if there were windows but nothing was
    /// measured.
    pub fn gpu_ns(&self) -> Option<u64> {
        Some(self.header.counter(Counter::GpuNs)).filter(|ns| *ns > 0 || self.windows() == 0)
    }

    /// Duration of the iterations inside windows, in nanoseconds.
    pub const fn inside_ns(&self) -> u64 {
        self.header.counter(Counter::NsInside)
    }

    /// GPU work since `before`, as a share of the time of the iterations inside windows; `None` if there were none.
    pub fn gpu_share(&self, before: Option<&Self>) -> Option<f64> {
        let since = |of: fn(&Self) -> Option<u64>| {
            let old = before.and_then(of).unwrap_or(0);
            Some(of(self)?.saturating_sub(old))
        };
        let inside = since(|figures| Some(figures.inside_ns())).filter(|ns| *ns > 0)?;
        Some(since(Self::gpu_ns)? as f64 / inside as f64)
    }

    /// Number of windows that were opened.
    pub const fn windows(&self) -> u64 {
        self.header.counter(Counter::Windows)
    }

    /// Number of events that were dropped because the record or its disk was full.
    pub const fn dropped(&self) -> u64 {
        self.header.counter(Counter::EventsDropped)
    }

    fn counter(&self, counter: Counter) -> Option<u64> {
        Some(self.header.counter(counter)).filter(|count| *count > 0)
    }
}
