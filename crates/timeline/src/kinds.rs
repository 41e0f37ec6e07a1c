//! Two tables about the items of the timeline. The first gives, for each kind of item, its presentation
//! and its export. The second gives, for each kind of event in a record, the item that it becomes.

use tllmprof_record::{CallKind, Clock, Event, NO_STRING, RangeKind, StringId, What};

use tllmprof_report::{GpuWork, GpuWorkKind};

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
            /// All values of this type, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$word),*];

            /// Returns this value's word in exported files.
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
    /// The category of a kind of item in exported traces: a word by which users query the trace.
    Category:
    Window = "window",
    Iteration = "iteration",
    Cuda = "cuda",
    Nvtx = "nvtx",
    Gc = "gc",
    Gil = "gil",
    Python = "python",
    Sample = "sample",
    Gpu = "gpu",
    Kernel = "kernel",
    Memcpy = "memcpy",
    Memset = "memset",
    Dropped = "dropped",
}

words! {
    /// The key under which an exported trace contains an argument of an item.
    Key:
    /// The number of the iteration that contains the item. For an iteration, its own number.
    Iteration = "iteration",
    /// The handle (`CUstream`) of the stream that a call uses.
    Stream = "stream",
    Bytes = "bytes",
    /// The correlation number, which is the same for a call and the kernels that it launched.
    Correlation = "correlation",
    /// The number of objects that a garbage collection freed.
    Collected = "collected",
    /// The number of events that the record lacks.
    Events = "events",
    /// The NVTX domain of a range or a mark.
    Domain = "domain",
    Failed = "failed",
    Cut = "cut",
    /// Set if the call was made while its thread was capturing a stream into a graph.
    Capturing = "capturing",
    /// The scope in which the kernel was launched, such as the module `layers.3.mlp`.
    Scope = "scope",
}

/// The side of a launch that an item shows: the call on the host, or a kernel on the GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaunchEnd {
    Call,
    Kernel,
}

/// A row of the table of kinds of items: the presentation and the export of one kind.
#[derive(Clone, Copy, Debug)]
pub struct KindRow {
    /// The kind's category in exported traces; `None` if items of this kind are not exported as a
    /// span or a moment.
    pub category: Option<Category>,
    /// The Parquet table that contains items of this kind, and their word in the column `kind`. If
    /// the word is empty, [`Name::word`] returns the word.
    pub table: Option<(&'static str, &'static str)>,
    /// The kind's name in the timeline of the HTML page, and the variable of `page.css` with its colour.
    /// `None` if that timeline does not show items of this kind.
    pub page: Option<(&'static str, &'static str)>,
    /// The key for [`Item::value`] in exported traces; `None` if the value is not exported there.
    pub value: Option<Key>,
    /// The side of a launch that items of this kind show; `None` if they are not part of a launch.
    pub end: Option<LaunchEnd>,
}

macro_rules! maybe {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

macro_rules! kinds {
    ($(
        $name:ident
        $(in $category:ident)?
        $(table $table:literal $word:literal)?
        $(page $label:literal $colour:literal)?
        $(value $value:ident)?
        $(end $end:ident)?;
    )*) => {
        /// The kind of an item, such as an iteration, a CUDA call or a kernel. Each kind has a row
        /// in the table of kinds.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Kind {
            $($name,)*
        }

        impl Kind {
            /// All kinds of items, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the kind's row in the table of kinds.
            #[inline]
            #[must_use]
            pub const fn row(self) -> &'static KindRow {
                const ROWS: &[KindRow] = &[$(KindRow {
                    category: maybe!($(Category::$category)?),
                    table: maybe!($(($table, $word))?),
                    page: maybe!($(($label, $colour))?),
                    value: maybe!($(Key::$value)?),
                    end: maybe!($(LaunchEnd::$end)?),
                },)*];
                &ROWS[self as usize]
            }
        }
    };
}

kinds! {
    Range          in Nvtx       table "events" "range"            page "NVTX range" "range";
    StartEndRange  in Nvtx       table "events" "range start/end"  page "NVTX range" "range";
    Mark           in Nvtx       table "events" "mark"             page "NVTX mark" "range";
    Function       in Python     table "events" "function"         page "Python function" "python";
    OtherCall      in Cuda       table "calls" "other"             page "CUDA call" "call"         value Stream;
    CaptureCall    in Cuda       table "calls" "capture"           page "CUDA call" "call"         value Stream;
    GraphLaunch    in Cuda       table "calls" "graph launch"      page "launch" "launch"          value Stream end Call;
    KernelLaunch   in Cuda       table "calls" "kernel launch"     page "launch" "launch"          value Stream end Call;
    Wait           in Cuda       table "calls" "wait"              page "host wait" "wait"         value Stream;
    CopyCall       in Cuda       table "calls" "async copy"        page "copy call" "copy"         value Stream;
    Gc             in Gc         table "events" "gc"               page "GC" "gc"                  value Collected;
    GilWait        in Gil        table "events" "GIL wait"         page "GIL wait" "gil-wait";
    GilHold        in Gil        table "events" "GIL hold"         page "GIL hold" "gil-hold";
    GilForced      in Gil        table "events" "GIL forced"       page "GIL given up" "gil-wait";
    Sample         in Sample     table "samples" "";
    GpuSpan        in Gpu        table "gpu_spans" ""              page "GPU step" "step"          value Iteration;
    Kernel         in Kernel     table "kernels" ""                page "kernel" "kernel"          value Correlation end Kernel;
    Copy           in Memcpy     table "copies" ""                 page "GPU copy" "copy"          value Bytes;
    Set            in Memset     table "copies" "memset"           page "memset" "set"             value Bytes;
    Dropped        in Dropped    table "events" "dropped"                                          value Events;
    Iteration      in Iteration                                                                    value Iteration;
    Window         in Window;
    Metric                       table "metrics" "";
    ExpertLoad                   table "experts" "";
}

/// An item of the timeline: a span of time, a moment, or a value of a counter.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub kind: Kind,
    pub track: Track,
    /// The thread that recorded the item. For a sample of a stack, the thread that was sampled.
    pub thread: u32,
    /// The start of the item in nanoseconds of `CLOCK_MONOTONIC`.
    pub start: u64,
    pub length: Length,
    pub name: Name,
    /// A number whose meaning depends on the kind (see [`KindRow::value`]). For a metric, it is in
    /// thousandths of the metric's unit; for an expert's load, in tokens.
    pub value: u64,
    /// The NVTX domain of a range or a mark. `NO_STRING` stands for the default domain; items of other kinds have this
    /// value, too.
    pub domain: StringId,
    /// True if the call was made while its thread was capturing a stream into a graph.
    pub capturing: bool,
    /// True if the call returned an error or the function raised an exception.
    pub failed: bool,
    /// True if the item did not reach its regular end, for example because the process ended.
    pub cut: bool,
    /// ID of the scope (module of the model) in which a kernel was launched; 0 if no scope was open, `None` if it is
    /// not known.
    pub scope: Option<u32>,
}

/// The duration of an item, in nanoseconds or in ticks of the record's clock; a moment has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    Moment,
    /// Duration in nanoseconds.
    Ns(u64),
    /// Start and length in ticks of the record's clock. [`Interpreter::duration`](crate::Interpreter::duration)
    /// converts the length to nanoseconds.
    Ticks {
        start: u64,
        count: u64,
    },
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

/// Converts an event of a thread to an item; `None` if the timeline has no item for such an event.
/// `calls` contains the kind of each row of the table of CUDA calls.
///
/// This function is also a table of the kinds of events: if a kind has no row here, the code does not compile.
// This function and the functions that it calls are always inlined. Then the compiler can drop the
// parts of the item that a caller does not use.
#[inline(always)]
pub(crate) fn item(
    thread: u32,
    event: &Event,
    clock: &Clock,
    calls: &[CallKind; 256],
) -> Option<Item> {
    let empty = Item {
        kind: Kind::Mark,
        track: Track::Thread(thread),
        thread,
        start: 0,
        length: Length::Moment,
        name: Name::Fixed(""),
        value: 0,
        domain: NO_STRING,
        capturing: false,
        failed: event.failed,
        cut: event.cut,
        scope: None,
    };
    if let Some(work) = GpuWork::from_event(clock, event) {
        return Some(work_item(&work, empty));
    }
    let item = match event.what {
        // These events describe the record, its threads and its calls. They are not items of the
        // timeline.
        What::Thread { .. }
        | What::ThreadName { .. }
        | What::String { .. }
        | What::Info { .. }
        | What::CallName { .. } => return None,
        // A window is recorded as two events, for its beginning and its end. `Stretch` makes one
        // item from both.
        What::Window { .. } | What::KernelWindow { .. } => return None,
        // The report uses these events to find the layers that launched kernels. They are not items of the timeline.
        What::Scope { .. }
        | What::GraphNodes { .. }
        | What::GraphExec { .. }
        | What::KernelNode { .. }
        | What::InScope { .. } => return None,
        // These events describe iterations (batches, used resources, samples of kernels). The report uses them. They
        // are not items of the timeline.
        What::Batch { .. } | What::Used { .. } | What::KernelSample { .. } | What::Past { .. } => {
            return None;
        }
        // The report uses these events for its findings, for the number of iterations outside windows, and for the
        // names of functions in samples. They are not items of the timeline.
        What::Frame { .. }
        | What::OutsideBefore { .. }
        | What::GpuProcess { .. }
        | What::ThreadNode { .. }
        | What::HostFunction { .. } => return None,
        // For each of these events, the record also has a sample of the stack at the same time. The
        // timeline shows that sample.
        What::Asleep { .. } | What::Meanwhile { .. } => return None,
        What::GpuMetric { metric: None, .. } => return None,
        // These events became items at the beginning of this function, so they do not reach this
        // row.
        What::GpuKernel { .. } | What::GpuCopy { .. } | What::GpuSet { .. } => return None,
        What::Call { .. }
        | What::Iteration { .. }
        | What::Range { .. }
        | What::Mark { .. }
        | What::Dropped { .. } => host_item(event, calls, empty)?,
        What::Sample { .. }
        | What::Gc { .. }
        | What::GilWait
        | What::GilHold
        | What::GilForced
        | What::Function { .. } => python_item(event, empty)?,
        What::GpuSpan { .. } | What::GpuMetric { .. } | What::ExpertLoad { .. } => {
            device_item(event, empty)?
        }
    };
    Some(Item {
        start: clock.ns(event.start),
        ..item
    })
}

/// Returns the item of a kernel, a copy or a memset. This function sets only some fields. The other fields are copied
/// from `empty`.
#[inline(always)]
fn work_item(work: &GpuWork, empty: Item) -> Item {
    let (kind, name, value) = match work.what {
        GpuWorkKind::Kernel { name, correlation } => {
            (Kind::Kernel, Name::Kernel(name), u64::from(correlation))
        }
        GpuWorkKind::Copy { kind, bytes } => (Kind::Copy, Name::Copy(kind), bytes),
        GpuWorkKind::Set { bytes } => (Kind::Set, Name::Fixed("memset"), bytes),
    };
    Item {
        kind,
        track: Track::Stream {
            device: work.device,
            stream: work.stream,
        },
        start: work.start,
        length: Length::Ns(work.ns),
        name,
        value,
        ..empty
    }
}

/// Returns the item of a call, an iteration, a range or a mark. This function sets only some fields. The other fields
/// are copied from `empty`.
#[inline(always)]
fn host_item(event: &Event, calls: &[CallKind; 256], empty: Item) -> Option<Item> {
    let on_host = on_host(event);
    let (thread, moment) = (empty.thread, Length::Moment);
    let own = Track::Thread(thread);
    let item = |kind, track, length, name| Item {
        kind,
        track,
        length,
        name,
        ..empty
    };
    Some(match event.what {
        What::Call {
            row,
            capturing,
            stream,
        } => Item {
            value: stream,
            capturing,
            ..item(
                calls[usize::from(row)].into(),
                own,
                on_host,
                Name::Call(row),
            )
        },
        What::Iteration { n, .. } => Item {
            value: n,
            ..item(
                Kind::Iteration,
                Track::Iterations,
                on_host,
                Name::Iteration(n),
            )
        },
        What::Range {
            kind: RangeKind::PushPop,
            domain,
            name,
        } => Item {
            domain,
            ..item(Kind::Range, own, on_host, Name::Text(name))
        },
        What::Range {
            kind: RangeKind::StartEnd,
            domain,
            name,
        } => Item {
            domain,
            ..item(
                Kind::StartEndRange,
                Track::Ranges(thread),
                on_host,
                Name::Text(name),
            )
        },
        What::Mark { domain, name } => Item {
            domain,
            ..item(Kind::Mark, own, moment, Name::Text(name))
        },
        What::Dropped { events } => Item {
            value: events,
            ..item(Kind::Dropped, own, moment, Name::Fixed("events dropped"))
        },
        _ => return None,
    })
}

/// Returns the item of a sampled stack or an event of Python. This function sets only some fields. The other fields are
/// copied from `empty`.
#[inline(always)]
fn python_item(event: &Event, empty: Item) -> Option<Item> {
    let on_host = on_host(event);
    let (own, gil) = (Track::Thread(empty.thread), Track::Gil(empty.thread));
    let item = |kind, track, length, name| Item {
        kind,
        track,
        length,
        name,
        ..empty
    };
    Some(match event.what {
        What::Sample {
            taken,
            state,
            thread: sampled,
            frame,
        } => Item {
            thread: sampled,
            ..item(
                Kind::Sample,
                Track::Samples(sampled),
                Length::Moment,
                Name::Sample {
                    frame,
                    taken,
                    state,
                },
            )
        },
        What::Gc {
            generation,
            collected,
        } => Item {
            value: collected,
            ..item(Kind::Gc, own, on_host, Name::Collection(generation))
        },
        What::GilWait => item(Kind::GilWait, gil, on_host, Name::Fixed("GIL wait")),
        What::GilHold => item(Kind::GilHold, gil, on_host, Name::Fixed("GIL hold")),
        What::GilForced => item(
            Kind::GilForced,
            gil,
            Length::Moment,
            Name::Fixed("GIL given up on demand"),
        ),
        What::Function { name } => item(Kind::Function, own, on_host, Name::Text(name)),
        _ => return None,
    })
}

/// Returns the item of an event that gives a value of a GPU, such as a metric, or the load of an expert. This function
/// sets only some fields. The other fields are copied from `empty`.
#[inline(always)]
fn device_item(event: &Event, empty: Item) -> Option<Item> {
    let (on_host, on_gpu) = (on_host(event), Length::Ns(event.duration));
    let item = |kind, track, length, name| Item {
        kind,
        track,
        length,
        name,
        ..empty
    };
    Some(match event.what {
        What::GpuSpan {
            device,
            stream,
            iteration,
        } => Item {
            value: iteration,
            ..item(
                Kind::GpuSpan,
                Track::Spans { device, stream },
                on_gpu,
                Name::Iteration(iteration),
            )
        },
        What::GpuMetric {
            device,
            metric: Some(metric),
            thousandths,
        } => Item {
            value: thousandths,
            ..item(
                Kind::Metric,
                Track::Counter { device, metric },
                on_host,
                Name::Fixed(metric.name()),
            )
        },
        What::ExpertLoad {
            layer,
            expert,
            tokens,
        } => Item {
            value: tokens,
            ..item(
                Kind::ExpertLoad,
                Track::Expert { layer, expert },
                Length::Moment,
                Name::Fixed("tokens"),
            )
        },
        _ => return None,
    })
}

#[inline(always)]
const fn on_host(event: &Event) -> Length {
    Length::Ticks {
        start: event.start,
        count: event.duration,
    }
}
