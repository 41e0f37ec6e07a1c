//! The tables of kinds: how each kind of item is shown and exported, and which item each kind of event
//! of a record is.

use tllmprof_record::{CallKind, Clock, Event, NO_STRING, RangeKind, What};

use crate::item::{Item, Length};
use crate::name::Name;
use crate::track::Track;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident: $($(#[$of:meta])* $word:ident = $text:literal,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$of])* $word,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$word),*];

            /// The word for it.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$word => $text,)*
                }
            }
        }
    };
}

words! {
    /// The category of a kind in trace formats: a word that queries ask for.
    Category:
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

words! {
    /// The key of an argument.
    Key:
    /// The iteration that an item lies in, or is.
    Iteration = "iteration",
    /// The `CUstream` of a call.
    Stream = "stream",
    Bytes = "bytes",
    /// The number of the launch.
    Correlation = "correlation",
    /// Objects that a collection freed.
    Collected = "collected",
    /// Events that are missing.
    Events = "events",
    /// An NVTX domain.
    Domain = "domain",
    Failed = "failed",
    Cut = "cut",
    /// The call was made while its thread captured a stream.
    Capturing = "capturing",
}

/// Which end of a launch an item is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Call,
    Kernel,
}

/// A row of the table of kinds.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// In trace formats; `None`: no span or moment there.
    pub category: Option<Category>,
    /// The Parquet table of these items, and the word in its column `kind`.
    pub table: Option<(&'static str, &'static str)>,
    /// What the page calls it, and its colour there: a variable of `page.css`. `None`: the page's
    /// timeline does not show it.
    pub page: Option<(&'static str, &'static str)>,
    /// The key of [`Item::value`].
    pub value: Option<Key>,
    pub end: Option<End>,
}

macro_rules! kinds {
    ($($name:ident: $category:expr, $table:expr, $page:expr, $value:expr, $end:expr;)*) => {
        /// What kind of item it is.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Kind {
            $($name,)*
        }

        impl Kind {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its row.
            #[must_use]
            pub const fn row(self) -> &'static Row {
                const ROWS: &[Row] = &[
                    $(Row { category: $category, table: $table, page: $page, value: $value, end: $end },)*
                ];
                &ROWS[self as usize]
            }
        }
    };
}

const fn of(category: Category) -> Option<Category> {
    Some(category)
}

kinds! {
    // kind         category                 table, word in its `kind`              on the page, colour                   value                   end of a launch
    Range:          of(Category::Nvtx),      Some(("events", "range")),             Some(("NVTX range", "range")),        None,                   None;
    StartEndRange:  of(Category::Nvtx),      Some(("events", "range start/end")),   Some(("NVTX range", "range")),        None,                   None;
    Mark:           of(Category::Nvtx),      Some(("events", "mark")),              Some(("NVTX mark", "range")),         None,                   None;
    Function:       of(Category::Python),    Some(("events", "function")),          Some(("Python function", "python")),  None,                   None;
    OtherCall:      of(Category::Cuda),      Some(("calls", "other")),              Some(("CUDA call", "call")),          Some(Key::Stream),      None;
    CaptureCall:    of(Category::Cuda),      Some(("calls", "capture")),            Some(("CUDA call", "call")),          Some(Key::Stream),      None;
    GraphLaunch:    of(Category::Cuda),      Some(("calls", "graph launch")),       Some(("launch", "launch")),           Some(Key::Stream),      Some(End::Call);
    KernelLaunch:   of(Category::Cuda),      Some(("calls", "kernel launch")),      Some(("launch", "launch")),           Some(Key::Stream),      Some(End::Call);
    Wait:           of(Category::Cuda),      Some(("calls", "wait")),               Some(("host wait", "wait")),          Some(Key::Stream),      None;
    CopyCall:       of(Category::Cuda),      Some(("calls", "async copy")),         Some(("copy call", "copy")),          Some(Key::Stream),      None;
    Gc:             of(Category::Gc),        Some(("events", "gc")),                Some(("GC", "gc")),                   Some(Key::Collected),   None;
    GilWait:        of(Category::Gil),       Some(("events", "GIL wait")),          Some(("GIL wait", "gil-wait")),       None,                   None;
    GilHold:        of(Category::Gil),       Some(("events", "GIL hold")),          Some(("GIL hold", "gil-hold")),       None,                   None;
    GilForced:      of(Category::Gil),       Some(("events", "GIL forced")),        Some(("GIL given up", "gil-wait")),   None,                   None;
    GpuSpan:        of(Category::Gpu),       Some(("gpu_spans", "")),               Some(("GPU step", "step")),           Some(Key::Iteration),   None;
    Kernel:         of(Category::Kernel),    Some(("kernels", "")),                 Some(("kernel", "kernel")),           Some(Key::Correlation), Some(End::Kernel);
    Copy:           of(Category::Memcpy),    Some(("copies", "")),                  Some(("GPU copy", "copy")),           Some(Key::Bytes),       None;
    Set:            of(Category::Memset),    Some(("copies", "memset")),            Some(("memset", "set")),              Some(Key::Bytes),       None;
    Dropped:        of(Category::Dropped),   Some(("events", "dropped")),           None,                                 Some(Key::Events),      None;
    Iteration:      of(Category::Iteration), None,                                  None,                                 Some(Key::Iteration),   None;
    Window:         of(Category::Window),    None,                                  None,                                 None,                   None;
    Metric:         None,                    Some(("metrics", "")),                 None,                                 None,                   None;
    ExpertLoad:     None,                    Some(("experts", "")),                 None,                                 None,                   None;
}

impl From<CallKind> for Kind {
    fn from(kind: CallKind) -> Self {
        match kind {
            CallKind::Other => Self::OtherCall,
            CallKind::GraphLaunch => Self::GraphLaunch,
            CallKind::KernelLaunch => Self::KernelLaunch,
            CallKind::AsyncCopy => Self::CopyCall,
            CallKind::Wait => Self::Wait,
            CallKind::Capture => Self::CaptureCall,
        }
    }
}

/// The item that an event of a thread is, if it is one. `calls` has the kind of each row of the table of
/// calls.
///
/// This is a table, too, of the kinds of events: one that has no row does not compile.
#[inline]
pub fn item(thread: u32, event: &Event, clock: &Clock, calls: &[CallKind; 256]) -> Option<Item> {
    let on_host = Length::Ticks {
        start: event.start,
        count: event.duration,
    };
    let on_gpu = Length::Ns(event.duration);
    let moment = Length::Moment;
    let own = Track::Thread(thread);
    let gil = Track::Gil(thread);
    let item = |kind, track, length, name| Item {
        kind,
        track,
        thread,
        start: 0,
        length,
        name,
        value: 0,
        domain: NO_STRING,
        capturing: false,
        failed: event.failed,
        cut: event.cut,
    };
    let item = match event.what {
        // Facts about the record, its threads and its calls.
        What::Thread { .. }
        | What::ThreadName { .. }
        | What::String { .. }
        | What::Info { .. }
        | What::CallName { .. }
        // An item is made of both edges: `Stretch`.
        | What::Window { .. }
        | What::KernelWindow { .. }
        | What::GpuMetric { metric: None, .. } => return None,
        What::Call { row, capturing, stream } => Item {
            value: stream,
            capturing,
            ..item(calls[usize::from(row)].into(), own, on_host, Name::Call(row))
        },
        What::Iteration { n } => Item {
            value: n,
            ..item(Kind::Iteration, Track::Iterations, on_host, Name::Iteration(n))
        },
        What::Range { kind: RangeKind::PushPop, domain, name } => Item {
            domain,
            ..item(Kind::Range, own, on_host, Name::Text(name))
        },
        What::Range { kind: RangeKind::StartEnd, domain, name } => Item {
            domain,
            ..item(Kind::StartEndRange, Track::Ranges(thread), on_host, Name::Text(name))
        },
        What::Mark { domain, name } => Item {
            domain,
            ..item(Kind::Mark, own, moment, Name::Text(name))
        },
        What::Gc { generation, collected } => Item {
            value: collected,
            ..item(Kind::Gc, own, on_host, Name::Collection(generation))
        },
        What::GilWait => item(Kind::GilWait, gil, on_host, Name::Fixed("GIL wait")),
        What::GilHold => item(Kind::GilHold, gil, on_host, Name::Fixed("GIL hold")),
        What::GilForced => item(Kind::GilForced, gil, moment, Name::Fixed("GIL given up on demand")),
        What::Function { name } => item(Kind::Function, own, on_host, Name::Text(name)),
        What::Dropped { events } => Item {
            value: events,
            ..item(Kind::Dropped, own, moment, Name::Fixed("events dropped"))
        },
        What::GpuSpan { device, stream, iteration } => Item {
            value: iteration,
            ..item(Kind::GpuSpan, Track::Spans { device, stream }, on_gpu, Name::Iteration(iteration))
        },
        What::GpuKernel { device, stream, name, correlation } => Item {
            value: u64::from(correlation),
            ..item(Kind::Kernel, Track::Stream { device, stream }, on_gpu, Name::Kernel(name))
        },
        What::GpuCopy { device, stream, kind, bytes } => Item {
            value: bytes,
            ..item(Kind::Copy, Track::Stream { device, stream }, on_gpu, Name::Copy(kind))
        },
        What::GpuSet { device, stream, bytes } => Item {
            value: bytes,
            ..item(Kind::Set, Track::Stream { device, stream }, on_gpu, Name::Fixed("memset"))
        },
        What::GpuMetric { device, metric: Some(metric), thousandths } => Item {
            value: thousandths,
            ..item(Kind::Metric, Track::Counter { device, metric }, on_host, Name::Fixed(metric.name()))
        },
        What::ExpertLoad { layer, expert, tokens } => Item {
            value: tokens,
            ..item(Kind::ExpertLoad, Track::Expert { layer, expert }, moment, Name::Fixed("tokens"))
        },
    };
    Some(Item {
        start: clock.ns(event.start),
        ..item
    })
}
