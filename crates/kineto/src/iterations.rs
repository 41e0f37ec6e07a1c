//! Finds the iterations of a PyTorch trace, from ranges, calls and GPU work.

use std::collections::{HashMap, HashSet};

use tllmprof_config::Step;
use tllmprof_foreign::{
    Call, Finder, FoundIterations, LeftOut, LeftOutReason, Method, NotFound, Range, RangeSource,
    Span, Trace as Whole, Work,
};
use tllmprof_record::{Batch, StringId};

use crate::own::OwnWindow;
use crate::trace::{GpuEvent, GpuKind, HostEvent, HostKind, Trace};

/// An iteration. Times are in nanoseconds on the trace's clock.
#[derive(Clone, Copy, Debug)]
pub struct TraceIteration {
    pub n: u64,
    pub thread: u32,
    pub start: i64,
    pub end: i64,
    /// True if the iteration was cut short by the end of the window or of the process. Only traces that tllmprof
    /// exported have such iterations.
    pub cut: bool,
    pub batch: Option<Batch>,
}

/// The iterations in the order of their starts, and the windows (profiled ranges of iterations) that contain them.
#[derive(Debug)]
pub struct Iterations {
    pub all: Vec<TraceIteration>,
    pub windows: Vec<OwnWindow>,
    pub rule: String,
    pub why: String,
    /// True if no iterations were found. The whole trace then counts as one iteration.
    pub is_whole: bool,
    /// True if the last iteration ends with its own range or with the trace. False if it ends where a further range or
    /// call begins, for the whole trace, and for iterations that tllmprof counted.
    is_last_open: bool,
    /// Numbers of events that were left out in the search for iterations, by reason.
    pub left_out: LeftOut,
    /// Names of the ranges that may be iterations of the program.
    pub step_names: HashSet<StringId>,
}

impl Iterations {
    /// Finds the iterations of a trace. `asked` is the rule for iterations that the user typed.
    ///
    /// # Errors
    /// Returns an error if the rule matches nothing in the trace.
    pub fn find(trace: &Trace, asked: Option<Step>) -> Result<Self, NotFound> {
        if !trace.own.iterations.is_empty() {
            return Ok(Self::of_tllmprof(trace));
        }
        let mut finder = Finder::new(asked);
        let step_names = add_ranges(&mut finder, trace);
        if finder.needs_calls() {
            add_calls(&mut finder, trace);
        }
        let whole = Whole {
            span: span(trace).unwrap_or_default(),
            main_thread: main_thread(trace),
        };
        let name = |number: u32| trace.names.get(number).to_owned();
        let found = finder.finish(&whole, &name)?;
        Ok(Self::from_found(found, step_names))
    }

    /// Returns the iterations that tllmprof counted, which a trace contains if tllmprof exported it.
    fn of_tllmprof(trace: &Trace) -> Self {
        let thread = main_thread(trace).unwrap_or(0) as u32;
        let all = trace.own.iterations.iter();
        let all = all.map(|one| TraceIteration {
            n: one.number,
            thread,
            start: one.start,
            end: one.end,
            cut: one.cut,
            batch: None,
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|one| one.start);
        Self {
            all,
            windows: trace.own.windows.clone(),
            rule: "tllmprof's iterations".to_owned(),
            why: String::new(),
            is_whole: false,
            is_last_open: false,
            left_out: trace.own.left_out.clone(),
            step_names: HashSet::new(),
        }
    }

    fn from_found(found: FoundIterations, step_names: HashSet<StringId>) -> Self {
        let all = found.iterations.iter().map(|one| TraceIteration {
            n: one.number,
            thread: one.thread as u32,
            start: one.start,
            end: one.end,
            cut: false,
            batch: one.batch,
        });
        let mut left_out = LeftOut::default();
        left_out.add_all(LeftOutReason::TooMany, found.left_out);
        Self {
            all: all.collect(),
            windows: Vec::new(),
            rule: found.rule,
            why: found.why,
            is_whole: found.method == Method::Whole,
            is_last_open: found.is_last_open,
            left_out,
            step_names,
        }
    }

    /// Extends the last iteration until the GPU has finished the work launched in it, because the end of a step's range
    /// marks only the end of the host's part. Correlation numbers increase in the order of launches. So all work up to
    /// the highest correlation number of the iteration's calls was launched in this iteration or earlier, even work
    /// whose own call is not in the trace. Does nothing if the last iteration ends where a further range or call
    /// begins, if the whole trace is one iteration, or if tllmprof exported the trace.
    pub fn extend_last(&mut self, trace: &Trace) {
        if !self.is_last_open || trace.metadata.is_own {
            return;
        }
        let Some(last) = self.all.last_mut() else {
            return;
        };
        let range = last.start..last.end;
        let calls = trace
            .host
            .iter()
            .filter(|event| event.kind == HostKind::Call);
        let calls = calls.filter(|call| range.contains(&call.start));
        let latest = calls.map(|call| call.correlation).max().unwrap_or(0);
        let is_launched = |work: &&GpuEvent| (1..=latest).contains(&work.correlation);
        let work = trace.gpu.iter().filter(is_launched);
        let end = work.map(GpuEvent::end).max();
        last.end = end.unwrap_or(last.end).max(last.end);
    }
}

impl Iterations {
    /// If the trace has no windows (profiled ranges of iterations), adds one window that contains all iterations. If
    /// the trace has GPU work, adds the same window a second time, marked as one in which kernels were recorded.
    pub fn close(&mut self, trace: &Trace) {
        let (Some(first), Some(last)) = (self.all.first(), self.all.last()) else {
            return;
        };
        if !self.windows.is_empty() {
            return;
        }
        let window = OwnWindow {
            first: first.n,
            last: Some(last.n),
            start: first.start,
            end: last.end,
            cut: false,
            has_kernels: false,
        };
        let taken = (!trace.gpu.is_empty()).then_some(OwnWindow {
            has_kernels: true,
            ..window
        });
        self.windows = [Some(window), taken].into_iter().flatten().collect();
    }
}

/// Passes the ranges that may be iterations to the finder, which chooses the iterations from them. For all other
/// ranges, passes only how often each name occurs. Returns the names of the ranges that may be iterations.
fn add_ranges(finder: &mut Finder, trace: &Trace) -> HashSet<StringId> {
    let mut known: HashMap<(StringId, bool), bool> = HashMap::new();
    let mut others: HashMap<StringId, u64> = HashMap::new();
    for event in &trace.host {
        let source = match event.kind {
            // Older versions of the profiler write ranges of the program with the category of operators, so an
            // operator may be a range, too.
            HostKind::Annotation | HostKind::Operator => RangeSource::Annotation,
            HostKind::Function => RangeSource::Python,
            HostKind::Call | HostKind::Module => continue,
        };
        let key = (event.name, source == RangeSource::Python);
        let name = trace.names.get(event.name);
        let is_one = known
            .entry(key)
            .or_insert_with(|| finder.is_candidate(source, name, None));
        match *is_one {
            true => finder.range(&Range {
                thread: event.thread.into(),
                source,
                name,
                domain: None,
                start: event.start,
                end: event.end(),
            }),
            false => *others.entry(event.name).or_default() += 1,
        }
    }
    for (name, count) in others {
        finder.other_ranges(trace.names.get(name), count);
    }
    let names = known.into_iter().filter(|(_, is_one)| *is_one);
    names.map(|((name, _), _)| name).collect()
}

fn add_calls(finder: &mut Finder, trace: &Trace) {
    let is_call = |event: &&HostEvent| event.kind == HostKind::Call;
    for event in trace.host.iter().filter(is_call) {
        finder.call(&Call {
            thread: event.thread.into(),
            name: trace.names.get(event.name),
            correlation: event.correlation,
            start: event.start,
            end: event.end(),
        });
    }
    let mut last = 0;
    for work in &trace.gpu {
        // The finder needs only one piece of work for each call. The kernels of a graph launch
        // follow each other with the same correlation number, so only the first is passed on.
        if work.correlation == last {
            continue;
        }
        last = work.correlation;
        match work.kind {
            GpuKind::Kernel => finder.work(last, Work::Kernel(work.name)),
            GpuKind::Copy(kind) => finder.work(last, Work::Copy(kind)),
            GpuKind::Set => (),
        }
    }
}

/// Returns the time from the earliest start to the latest end of all calls and GPU work. If there are neither, returns
/// the time from the first to the last host event, or `None` if there are no host events.
fn span(trace: &Trace) -> Option<Span> {
    let work = trace.gpu.iter().map(|work| (work.start, work.end()));
    let calls = trace
        .host
        .iter()
        .filter(|event| event.kind == HostKind::Call);
    let calls = calls.map(|event| (event.start, event.end()));
    let host = trace.host.iter().map(|event| (event.start, event.end()));
    enclosing(work.chain(calls)).or_else(|| enclosing(host))
}

fn enclosing(mut spans: impl Iterator<Item = (i64, i64)>) -> Option<Span> {
    let (start, end) = spans.next()?;
    let first = Span { start, end };
    Some(spans.fold(first, |all, (start, end)| Span {
        start: all.start.min(start),
        end: all.end.max(end),
    }))
}

/// Returns the number of the thread that has the most host events, or `None` if the trace has no host events.
fn main_thread(trace: &Trace) -> Option<u64> {
    let mut counts: HashMap<u32, u64> = HashMap::new();
    for event in &trace.host {
        *counts.entry(event.thread).or_default() += 1;
    }
    let most = counts
        .into_iter()
        .max_by_key(|(thread, count)| (*count, u32::MAX - thread));
    most.map(|(thread, _)| thread.into())
}
