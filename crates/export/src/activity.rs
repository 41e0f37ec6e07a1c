//! What is drawn: from a record's events to spans and moments on tracks, with names.

use std::fmt::{self, Write};

use tllmprof_record::{CopyKind, Event, Metric, NO_STRING, RangeKind, StringId, What};

use crate::record::{Iterations, Record, Stretch};

/// Where an event is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Track {
    Windows,
    KernelWindows,
    Iterations,
    /// What a thread did: calls, functions and ranges, one inside the other.
    Thread(u32),
    /// What a thread had of the GIL, which does not nest with what it did.
    Gil(u32),
    /// Ranges that were begun and ended anywhere, by the thread that ended them.
    Ranges(u32),
    /// Kernels, copies and memsets of a stream.
    Stream {
        device: u8,
        stream: u16,
    },
    /// The time that a stream was at work for each iteration.
    Spans {
        device: u8,
        stream: u16,
    },
    /// A metric of a GPU over time.
    Counter {
        device: u8,
        metric: Metric,
    },
}

impl Track {
    /// Whether it is one of a GPU.
    pub const fn is_of_gpu(self) -> bool {
        matches!(
            self,
            Self::Stream { .. } | Self::Spans { .. } | Self::Counter { .. }
        )
    }

    /// The thread it belongs to.
    pub const fn thread(self) -> Option<u32> {
        match self {
            Self::Thread(tid) | Self::Gil(tid) | Self::Ranges(tid) => Some(tid),
            _ => None,
        }
    }

    /// What people see beside it.
    pub fn name(self, record: &Record) -> String {
        let thread = |tid| record.process.facts.thread(tid);
        match self {
            Self::Windows => "windows".to_owned(),
            Self::KernelWindows => "kernels taken".to_owned(),
            Self::Iterations => "iterations".to_owned(),
            Self::Thread(tid) => thread(tid),
            Self::Gil(tid) => format!("GIL, {}", thread(tid)),
            Self::Ranges(tid) => format!("NVTX start/end, {}", thread(tid)),
            Self::Stream { device, stream } => format!("GPU {device} stream {stream}"),
            Self::Spans { device, stream } => format!("GPU {device} stream {stream} iterations"),
            Self::Counter { device, metric } => format!("GPU {device} {}", metric.name()),
        }
    }
}

/// What an event is called.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Name {
    Text(StringId),
    /// A row of the table of calls.
    Call(u8),
    Iteration(u64),
    Window(u64, Option<u64>),
    Collection(u16),
    Copy(CopyKind),
    Fixed(&'static str),
}

impl Name {
    /// Writes it behind `to`.
    pub fn write(self, record: &Record, to: &mut String) {
        let _: fmt::Result = match self {
            Self::Text(id) => to.write_str(record.strings.get(id)),
            Self::Call(row) => to.write_str(&record.process.facts.call(row)),
            Self::Iteration(n) => write!(to, "iteration {n}"),
            Self::Window(first, Some(last)) => write!(to, "window {first}-{last}"),
            Self::Window(first, None) => write!(to, "window {first}-"),
            Self::Collection(generation) => write!(to, "Python GC gen{generation}"),
            Self::Copy(kind) => write!(to, "memcpy {}", kind.name()),
            Self::Fixed(text) => to.write_str(text),
        };
    }
}

macro_rules! categories {
    ($($name:ident = $text:literal,)*) => {
        /// What kind of event it is, by a word that queries can ask for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Category {
            $($name,)*
        }

        impl Category {
            pub const ALL: &[Self] = &[$(Self::$name),*];

            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

categories! {
    Window = "window",
    Iteration = "iteration",
    Cuda = "cuda",
    Nvtx = "nvtx",
    Gc = "gc",
    Gil = "gil",
    Python = "python",
    Gpu = "gpu",
    Kernel = "kernel",
    Memcpy = "memcpy",
    Memset = "memset",
    Dropped = "dropped",
}

/// What is told of an event besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arg {
    /// The iteration that it lies in, or is.
    Iteration(u64),
    /// The `CUstream` of a call.
    Stream(u64),
    Bytes(u64),
    /// The number of the launch.
    Correlation(u32),
    Collected(u64),
    Events(u64),
    /// An NVTX domain.
    Domain(StringId),
    Failed,
    Cut,
    /// The call was made while its thread captured a stream.
    Capturing,
}

/// The value of an [`Arg`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    Number(u64),
    Text(StringId),
    Yes,
}

impl Arg {
    pub const KEYS: &[&str] = &[
        "iteration",
        "stream",
        "bytes",
        "correlation",
        "collected",
        "events",
        "domain",
        "failed",
        "cut",
        "capturing",
    ];

    /// The place of its key in [`KEYS`](Self::KEYS), and its value.
    pub const fn parts(self) -> (usize, Value) {
        match self {
            Self::Iteration(n) => (0, Value::Number(n)),
            Self::Stream(stream) => (1, Value::Number(stream)),
            Self::Bytes(bytes) => (2, Value::Number(bytes)),
            Self::Correlation(number) => (3, Value::Number(number as u64)),
            Self::Collected(objects) => (4, Value::Number(objects)),
            Self::Events(events) => (5, Value::Number(events)),
            Self::Domain(id) => (6, Value::Text(id)),
            Self::Failed => (7, Value::Yes),
            Self::Cut => (8, Value::Yes),
            Self::Capturing => (9, Value::Yes),
        }
    }
}

/// Something that is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    pub track: Track,
    /// In nanoseconds of the common clock.
    pub start: u64,
    /// In nanoseconds; `None`: a moment.
    pub duration: Option<u64>,
    pub name: Name,
    pub category: Category,
    args: [Option<Arg>; 5],
    pub flow: Option<Flow>,
}

/// An end of an arrow from a call to the kernels that it launched, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The launch, by its number among those of the record.
    pub launch: u32,
    /// It is the call's.
    pub begins: bool,
}

impl Activity {
    pub fn args(&self) -> impl Iterator<Item = Arg> + '_ {
        self.args.iter().flatten().copied()
    }

    /// That of a window.
    pub fn window(stretch: &Stretch, shift: u64) -> Self {
        let (start, duration) = placed(
            stretch.start,
            stretch.end.saturating_sub(stretch.start),
            shift,
        );
        Self {
            track: if stretch.kernels {
                Track::KernelWindows
            } else {
                Track::Windows
            },
            start,
            duration: Some(duration),
            name: Name::Window(stretch.first, stretch.last),
            category: Category::Window,
            args: [stretch.cut.then_some(Arg::Cut), None, None, None, None],
            flow: None,
        }
    }
}

/// What an event comes to.
#[derive(Clone, Copy, Debug)]
pub enum Drawn {
    Activity(Activity),
    /// The value of a counter from a moment on, in the metric's unit.
    Value {
        device: u8,
        metric: Metric,
        at: u64,
        value: f64,
    },
}

/// Draws a record's events.
pub struct Draw<'a> {
    record: &'a Record,
    iterations: Iterations,
    shift: u64,
}

impl<'a> Draw<'a> {
    pub fn new(record: &'a Record, shift: u64) -> Self {
        let iterations = Iterations::of(record);
        Self {
            record,
            iterations,
            shift,
        }
    }

    /// What is drawn of an event, if anything.
    pub fn event(&mut self, thread: u32, event: &Event) -> Option<Drawn> {
        let clock = &self.record.clock;
        let start = clock.ns(event.start);
        let host = || {
            let end = clock.ns(event.start.saturating_add(event.duration));
            Some(end.saturating_sub(start))
        };
        let gpu = Some(event.duration);
        let (track, duration, name, category, own) = match event.what {
            What::Call {
                row,
                capturing,
                stream,
            } => (
                Track::Thread(thread),
                host(),
                Name::Call(row),
                Category::Cuda,
                [
                    (stream != 0).then_some(Arg::Stream(stream)),
                    capturing.then_some(Arg::Capturing),
                ],
            ),
            What::Iteration { n } => (
                Track::Iterations,
                host(),
                Name::Iteration(n),
                Category::Iteration,
                [Some(Arg::Iteration(n)), None],
            ),
            What::Range { kind, domain, name } => (
                match kind {
                    RangeKind::PushPop => Track::Thread(thread),
                    RangeKind::StartEnd => Track::Ranges(thread),
                },
                host(),
                Name::Text(name),
                Category::Nvtx,
                [in_domain(domain), None],
            ),
            What::Mark { domain, name } => (
                Track::Thread(thread),
                None,
                Name::Text(name),
                Category::Nvtx,
                [in_domain(domain), None],
            ),
            What::Gc {
                generation,
                collected,
            } => (
                Track::Thread(thread),
                host(),
                Name::Collection(generation),
                Category::Gc,
                [Some(Arg::Collected(collected)), None],
            ),
            What::GilWait => gil(thread, host(), "GIL wait"),
            What::GilHold => gil(thread, host(), "GIL hold"),
            What::GilForced => gil(thread, None, "GIL given up on demand"),
            What::Function { name } => (
                Track::Thread(thread),
                host(),
                Name::Text(name),
                Category::Python,
                [None, None],
            ),
            What::Dropped { events } => (
                Track::Thread(thread),
                None,
                Name::Fixed("events dropped"),
                Category::Dropped,
                [Some(Arg::Events(events)), None],
            ),
            What::GpuSpan {
                device,
                stream,
                iteration,
            } => (
                Track::Spans { device, stream },
                gpu,
                Name::Iteration(iteration),
                Category::Gpu,
                [Some(Arg::Iteration(iteration)), None],
            ),
            What::GpuKernel {
                device,
                stream,
                name,
                correlation,
            } => (
                Track::Stream { device, stream },
                gpu,
                Name::Text(name),
                Category::Kernel,
                [Some(Arg::Correlation(correlation)), None],
            ),
            What::GpuCopy {
                device,
                stream,
                kind,
                bytes,
            } => (
                Track::Stream { device, stream },
                gpu,
                Name::Copy(kind),
                Category::Memcpy,
                [Some(Arg::Bytes(bytes)), None],
            ),
            What::GpuSet {
                device,
                stream,
                bytes,
            } => (
                Track::Stream { device, stream },
                gpu,
                Name::Fixed("memset"),
                Category::Memset,
                [Some(Arg::Bytes(bytes)), None],
            ),
            What::GpuMetric {
                device,
                metric: Some(metric),
                thousandths,
            } => {
                return Some(Drawn::Value {
                    device,
                    metric,
                    at: placed(start, 0, self.shift).0,
                    value: thousandths as f64 / 1e3,
                });
            }
            // Facts and totals have no place in time; windows are put together from their edges.
            _ => return None,
        };
        let launches = &self.record.launches;
        // By two clocks, a kernel may seem to begin before its launch: no arrow points back.
        let flow = match event.what {
            What::Call { .. } => launches
                .of_call(thread, start)
                .filter(|launch| launch.last >= start)
                .map(|launch| (launch, true)),
            What::GpuKernel { correlation, .. } => launches
                .of_kernel(correlation, start)
                .filter(|launch| launch.start <= start)
                .map(|launch| (launch, false)),
            _ => None,
        };
        let flow = flow.map(|(launch, begins)| Flow {
            launch: launch.number,
            begins,
        });
        let own_iteration = matches!(own[0], Some(Arg::Iteration(_)));
        let args = [
            own[0],
            own[1],
            match own_iteration {
                true => None,
                false => self.iterations.at(start).map(Arg::Iteration),
            },
            event.failed.then_some(Arg::Failed),
            event.cut.then_some(Arg::Cut),
        ];
        let (at, long) = placed(start, duration.unwrap_or(0), self.shift);
        Some(Drawn::Activity(Activity {
            track,
            start: at,
            duration: duration.map(|_| long),
            name,
            category,
            args,
            flow,
        }))
    }
}

/// A span on the common clock, which has 63 bits, as Perfetto reads it: what a damaged record has behind
/// that is at its end.
fn placed(start: u64, duration: u64, shift: u64) -> (u64, u64) {
    const LAST: u64 = i64::MAX as u64;
    let start = start.saturating_add(shift).min(LAST);
    (start, duration.min(LAST - start))
}

fn in_domain(domain: StringId) -> Option<Arg> {
    (domain != NO_STRING).then_some(Arg::Domain(domain))
}

type Parts = (Track, Option<u64>, Name, Category, [Option<Arg>; 2]);

const fn gil(thread: u32, duration: Option<u64>, name: &'static str) -> Parts {
    let (name, none) = (Name::Fixed(name), [None, None]);
    (Track::Gil(thread), duration, name, Category::Gil, none)
}
