//! Builds a process from the results of the passes over its record.

use std::cmp::Reverse;
use std::io;
use std::path::PathBuf;

use tllmprof_record::{Clock, ClockKind, Counter, Damage, Header};

use super::first::{FirstPass, FirstResults};
use super::gpu::{self, GpuTime};
use super::ledger::ThirdResults;
use super::second::{SecondPass, SecondResults};
use super::state::{End, RecordState, State};
use super::{Process, ledger};
use crate::batches;
use crate::calls::Calls;
use crate::events::named::Ns;
use crate::events::origin::{Data, Origin, SMALL_COST};
use crate::events::recording::Recording;
use crate::events::window::Window;
use crate::iterations::outside::Outside;
use crate::iterations::sum::Sum;
use crate::iterations::unqualified::{Others, unqualified};
use crate::ledger::Ledger;
use crate::ledger::slow::Slow;
use crate::metrics::Metrics;
use crate::python::Python;

/// Minimum time, in nanoseconds, from the first to the last comparison of the processor's counter with
/// `CLOCK_MONOTONIC`. Each comparison has an error of some ten nanoseconds. If the time between the comparisons is
/// shorter, durations can be wrong by more than a few parts in 100,000, so the report warns.
const MIN_TIED_NS: u64 = 500_000;

/// Reads a process from its record. `records` is the number of records that are read together, which share a limit on
/// the memory for collectives.
pub(crate) fn read(
    file: PathBuf,
    recording: &impl Recording,
    records: usize,
) -> io::Result<Process> {
    let header = recording.header();
    let clock = Clock::new(header.clock, &header.anchors);
    let first = first_pass(recording, &clock)?;
    let (mut known, edges, layers) = first.finish(header, &clock);
    known.facts.origin = recording.origin().or(&known.facts.origin);
    let mut second = SecondPass::new(&known, layers, header, &clock, records);
    let damage = recording.read(|entry| second.take(&entry))?;
    let mut counted = second.finish(&known, edges);
    count_calls(&mut known, &counted);
    if !gpu::are_whole(&counted.kernels, State::judge(&damage, header.ended.into())) {
        counted.busiest = None;
    }
    let mut sum = Sum::new(&counted.windows);
    let mut spent = ledger::read(recording, &clock, &mut known, &mut counted, sum.as_ref())?;
    if let Some(sum) = &mut sum {
        sum.wait_share = spent.all.share_of_waits();
    }
    forget_missing(&known.facts.origin, sum.as_mut(), &mut spent, &mut counted);
    let record = record(header, &clock, &known, &counted, damage);
    let SecondResults {
        totals,
        turnaround,
        windows,
        mut slowest,
        kernels,
        layers,
        collectives,
        samples,
        experts,
        device,
        ..
    } = counted;
    keep_slow(&mut slowest, sum.map_or(0, |sum| sum.time.p50));
    let ns = Ns {
        rate: clock.ns_per_tick(),
    };
    let outside = Outside::new(header, &known.outside, &ns);
    let (facts, strings) = (known.facts, known.strings);
    let cost = facts.origin.cost_share(&windows);
    Ok(Process {
        file,
        pid: header.pid,
        parent: header.parent,
        gpu: GpuTime::new(
            sum.as_mut(),
            &kernels,
            (&facts.software.gpus, device),
            record.state,
            cost,
        ),
        record,
        sum,
        others: Others {
            unqualified: unqualified(&windows),
            outside,
        },
        phases: batches::phases(&windows),
        ledger: Ledger {
            details: spent.details,
            ..spent.all
        },
        slowest,
        stacks: spent.stacks,
        calls: Calls::new(&totals, turnaround, &facts, &strings, &ns),
        python: Python::new(&totals, header, &facts, &ns),
        kernels,
        layers,
        collectives,
        metrics: Metrics::new(samples, &windows),
        experts,
        facts,
        windows,
    })
}

/// Makes the first pass over a record.
fn first_pass(recording: &impl Recording, clock: &Clock) -> io::Result<FirstPass> {
    let mut first = FirstPass::default();
    first.requests.lacks_streams = !recording.origin().is_own();
    let damage = recording.read(|entry| first.take(clock, &entry))?;
    if !recording.origin().is_own() || !damage.is_none() {
        first.certain_idle.give_up();
    }
    Ok(first)
}

/// Keeps only slow iterations that took longer than comparable iterations or than `median`, in nanoseconds, and sorts
/// them, the longest first.
fn keep_slow(slowest: &mut Vec<Slow>, median: u64) {
    slowest.retain(|slow| slow.more > 0 || slow.busy() > median);
    slowest.sort_by_key(|slow| Reverse((slow.busy(), slow.more)));
}

/// Raises the number of calls of each CUDA function inside windows to at least the number of their events. This is
/// needed for recordings of other profilers, which have no counters of calls.
fn count_calls(known: &mut FirstResults, counted: &SecondResults) {
    for row in &mut known.facts.calls {
        let count = counted.totals.calls[usize::from(row.row)].count;
        row.inside = row.inside.max(count);
    }
}

/// Removes figures for which another profiler did not record the data. Also marks the ledger as exact if the recording
/// took at most [`SMALL_COST`] of the windows' time.
fn forget_missing(
    origin: &Origin,
    sum: Option<&mut Sum>,
    spent: &mut ThirdResults,
    counted: &mut SecondResults,
) {
    let cost = origin.cost_share(&counted.windows);
    spent.details.is_exact = cost.is_some_and(|cost| cost <= SMALL_COST);
    if let Some(sum) = sum
        && origin.lacks(Data::Iterations)
    {
        // The whole trace is treated as one iteration, so iterations per second have no meaning.
        sum.per_second = None;
    }
    if origin.lacks(Data::Calls) {
        spent.all.forget_host();
        let windows = &mut spent.details.windows;
        windows.iter_mut().for_each(Ledger::forget_host);
        let slowest = &mut counted.slowest;
        slowest.iter_mut().for_each(|slow| slow.causes.clear());
    }
}

/// Returns the state of the record and the counts of data that are missing in it.
fn record(
    header: &Header,
    clock: &Clock,
    known: &FirstResults,
    counted: &SecondResults,
    damage: Damage,
) -> RecordState {
    // Add the iterations that are missing in windows that were not closed. For closed windows, the recorder has
    // already counted the missing iterations.
    let unclosed = counted.windows.iter().filter(|window| !window.closed);
    let gaps = match damage.is_none() {
        true => unclosed.map(Window::gaps).fold(0, u64::saturating_add),
        false => 0,
    };
    let iterations = &known.iterations;
    let middle = iterations.get(iterations.len() / 2);
    let middle = middle.map_or(u64::MAX, |one| clock.ns(one.start));
    // The section on kernels reports missing kernels separately, so do not count them here.
    let kernels = counted.kernels.window.as_ref();
    let kernels_dropped = kernels.map_or(0, |sum| sum.dropped);
    let ns = Ns {
        rate: clock.ns_per_tick(),
    };
    let ended = End::from(header.ended);
    RecordState {
        ended,
        tied_briefly: (header.clock == ClockKind::Counter)
            .then(|| clock.tied_ns())
            .filter(|tied| *tied < MIN_TIED_NS),
        unix_minus_monotonic: clock.unix_minus_monotonic(middle),
        events: counted.totals.events,
        dropped: header
            .counter(Counter::EventsDropped)
            .max(counted.totals.dropped.saturating_sub(kernels_dropped))
            .saturating_add(gaps),
        passed: header.counter(Counter::IterationsPassed),
        missing: gaps,
        windows_opened: header.counter(Counter::Windows),
        windows_dropped: header.counter(Counter::WindowsDropped),
        keep: header.counter(Counter::Keep),
        own_cost: ns.convert(header.counter(Counter::OwnTicks)),
        gpu_lost: header.counter(Counter::GpuSpansLost),
        state: State::judge(&damage, ended),
        damage,
        left_out: known.left_out + counted.left_out,
    }
}
