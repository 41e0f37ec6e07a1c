//! Finds iterations for processes of an export that contains no iterations counted by tllmprof.

use tllmprof_config::Step;
use tllmprof_foreign::{
    self as foreign, Finder, FoundIterations, Method, NotFound, RangeSource, Span, Trace, Work,
};
use tllmprof_record::CopyKind;
use tllmprof_report::{kernel_name, short_kernel_name};

use crate::database::Database;
use crate::error::ExportError;
use crate::loaded::{Events, Loaded};
use crate::ranges::{Domains, Range, number, process};
use crate::rows::{WorkKind, WorkRow};
use crate::windows::{Window, Windows};

/// Finds the iterations of the process that has nsys's number `of`. `loaded` contains the names of calls and kernels.
///
/// # Errors
/// Returns an error if the export cannot be read. The inner result is an error if no iterations are found by the
/// user's rule for iterations (`--step`).
pub(crate) fn find(
    database: &Database,
    domains: &Domains,
    step: Option<&Step>,
    of: i64,
    events: &Events,
    loaded: &Loaded,
) -> Result<Result<FoundIterations, NotFound>, ExportError> {
    let mut finder = Finder::new(step.cloned());
    let mut known = std::collections::HashMap::new();
    Range::each(database, Some(of), |range| {
        if range.is_open() || range.is_mark {
            return;
        }
        let domain = domains.name(&range);
        // `known` caches, for each name and domain, whether ranges with that name may be iterations. There are many
        // ranges but only a few different names.
        let is_candidate = match range.text.number() {
            Some(id) => *known.entry((id, range.domain)).or_insert_with(|| {
                finder.is_candidate(RangeSource::Nvtx, &range.text.get(database), domain)
            }),
            None => true,
        };
        let name = range.text.get(database);
        if is_candidate && finder.is_candidate(RangeSource::Nvtx, &name, domain) {
            finder.range(&foreign::Range {
                thread: range.thread as u64,
                source: RangeSource::Nvtx,
                name: &name,
                domain,
                start: range.start,
                end: range.end,
            });
        } else if step.is_some() {
            finder.other_ranges(&name, 1);
        }
    })?;
    if finder.needs_calls() {
        calls(&mut finder, database, events, loaded);
    }
    let trace = Trace {
        span: events
            .span
            .or_else(|| ranges_span(database, of))
            .unwrap_or_default(),
        main_thread: Some(main_thread(of)),
    };
    let kernel = |place: u32| {
        let name = database.string(loaded.kernels.number(place));
        short_kernel_name(&kernel_name(&name.unwrap_or_default()))
    };
    Ok(finder.finish(&trace, &kernel))
}

/// Returns nsys's number of the main thread of a process. `of` is nsys's number of the process. The operating system
/// gives the main thread the same id as the process.
const fn main_thread(of: i64) -> u64 {
    (of as u64) << 24 | number(of) as u64
}

fn calls(finder: &mut Finder, database: &Database, events: &Events, loaded: &Loaded) {
    let names = loaded.calls.texts(database);
    for (thread, calls) in &events.calls {
        for call in calls {
            finder.call(&foreign::Call {
                thread: *thread as u64,
                name: &names[call.name as usize],
                correlation: call.correlation,
                start: call.start,
                end: call.end(),
            });
        }
    }
    for work in &events.work {
        let what = match work.kind {
            WorkKind::Kernel => Work::Kernel(work.name),
            WorkKind::Copy => Work::Copy(copy_kind(&work)),
            WorkKind::Graph | WorkKind::Set => continue,
        };
        finder.work(work.correlation, what);
    }
}

/// Returns the kind of a memory copy, such as host to device.
pub(crate) fn copy_kind(work: &WorkRow) -> CopyKind {
    CopyKind::from_code(u8::try_from(work.name).unwrap_or(0))
}

/// Returns the time from the earliest start to the latest end of the NVTX ranges and marks of the process that has
/// nsys's number `of`. Ranges without an end are not used. Returns `None` if nothing remains.
fn ranges_span(database: &Database, of: i64) -> Option<Span> {
    let mut span: Option<Span> = None;
    // If the table of ranges is damaged, only the ranges before the damage are used.
    let _ = Range::each(database, Some(of), |range| {
        if range.is_open() {
            return;
        }
        let span = span.get_or_insert(Span {
            start: range.start,
            end: range.end,
        });
        span.start = span.start.min(range.start);
        span.end = span.end.max(range.end);
    });
    span
}

/// Returns one window (an interval for which the report has details) that contains all iterations in `found`.
pub(crate) fn windows(found: &FoundIterations) -> Windows {
    let (Some(first), Some(last)) = (found.iterations.first(), found.iterations.last()) else {
        return Windows::default();
    };
    Windows {
        all: vec![Window {
            start: first.start,
            // If the iteration is the whole trace, add 1 ns, so that work without a duration at the
            // very end of the trace lies in the window.
            end: last
                .end
                .saturating_add(i64::from(found.method == Method::Whole)),
            first: first.number,
            last: last.number,
        }],
        outside: Vec::new(),
    }
}

/// Returns nsys's numbers of the processes that have NVTX marks or NVTX ranges with an end; at most 1024 numbers.
pub(crate) fn with_ranges(database: &Database) -> Vec<i64> {
    let mut all = std::collections::BTreeSet::new();
    let _ = Range::each(database, None, |range| {
        if !range.is_open() && all.len() < 1 << 10 {
            all.insert(process(range.thread));
        }
    });
    all.into_iter().collect()
}
