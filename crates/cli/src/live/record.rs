//! What the record of a process that runs says of it: the header of its file, which the process keeps up to date.

use std::fs::File;
use std::path::{Path, PathBuf};

use tllmprof_calls::{CALLS, Kind};
use tllmprof_control::Status;
use tllmprof_record::{Clock, Counter, Header, Histogram, Reader};

use super::beyond;

/// The record where it can be read here: the process may be in a container.
pub fn reachable(record: &Path, pid: u64) -> PathBuf {
    let beyond = beyond::path_of(pid, record);
    match beyond.exists() {
        true => beyond,
        false => record.to_owned(),
    }
}

/// Figures of a process since its start. What the process does not count is nothing.
pub struct Figures {
    header: Header,
    ns_per_tick: f64,
}

impl Figures {
    /// Those of a process that makes a record which can be read here.
    pub fn of(status: &Status) -> Option<Self> {
        let record = reachable(Path::new(status.record.as_ref()?), status.pid);
        let reader = Reader::new(File::open(record).ok()?).ok()?;
        let header = reader.header().clone();
        // Another process may have the name since. In a container it has a number of its own.
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

    pub fn ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.ns_per_tick) as u64
    }

    /// The duration in nanoseconds that this share of the iterations does not exceed.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        Some(self.ns(self.durations().quantile(share)?))
    }

    /// Calls that waited for the GPU, inside windows and outside.
    pub fn waits(&self) -> u64 {
        let of_row = |counter: fn(u8) -> Counter, row| self.header.counter(counter(row));
        let waits = (0..)
            .zip(CALLS)
            .filter(|(_, call)| matches!(call.kind, Kind::Wait(_)));
        waits
            .map(|(row, _)| of_row(Counter::CallsOutside, row) + of_row(Counter::CallsInside, row))
            .sum()
    }

    /// Collections of Python's garbage; nothing where there was none, or they are not counted.
    pub fn collections(&self) -> Option<u64> {
        self.counter(Counter::Collections)
    }

    /// Hand-overs of the GIL, likewise.
    pub fn handoffs(&self) -> Option<u64> {
        self.counter(Counter::GilHandoffs)
    }

    /// Nanoseconds of GPU work inside windows, of all streams; nothing where there were windows and none was measured.
    pub fn gpu_ns(&self) -> Option<u64> {
        Some(self.header.counter(Counter::GpuNs)).filter(|ns| *ns > 0 || self.windows() == 0)
    }

    /// Nanoseconds that the iterations inside windows took.
    pub const fn inside_ns(&self) -> u64 {
        self.header.counter(Counter::NsInside)
    }

    /// GPU work as a share of the time of the iterations inside windows, since `before`; nothing where there was none.
    pub fn gpu_share(&self, before: Option<&Self>) -> Option<f64> {
        let since = |of: fn(&Self) -> Option<u64>| {
            let old = before.and_then(of).unwrap_or(0);
            Some(of(self)?.saturating_sub(old))
        };
        let inside = since(|figures| Some(figures.inside_ns())).filter(|ns| *ns > 0)?;
        Some(since(Self::gpu_ns)? as f64 / inside as f64)
    }

    /// Windows that were opened.
    pub const fn windows(&self) -> u64 {
        self.header.counter(Counter::Windows)
    }

    /// Events that were not kept, as the record or its disk was full.
    pub const fn dropped(&self) -> u64 {
        self.header.counter(Counter::EventsDropped)
    }

    fn counter(&self, counter: Counter) -> Option<u64> {
        Some(self.header.counter(counter)).filter(|count| *count > 0)
    }
}
