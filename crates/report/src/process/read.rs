//! A process from the passes over its record.

use std::cmp::Reverse;
use std::io;
use std::path::PathBuf;

use tllmprof_record::{Clock, ClockKind, Counter, Damage, Header};

use super::first::{First, Known};
use super::second::{Counted, Second};
use super::state::{End, RecordState, State};
use super::{Process, ledger};
use crate::batches;
use crate::calls::Calls;
use crate::events::named::Ns;
use crate::events::recording::Recording;
use crate::events::window::Window;
use crate::iterations::outside::Outside;
use crate::iterations::sum::Sum;
use crate::iterations::unqualified::{Others, unqualified};
use crate::ledger::LedgerKind;
use crate::metrics::{self, Metrics};
use crate::python::Python;

/// How long, in nanoseconds, a processor's counter has to be held against time before its durations are
/// known to some parts in a hundred thousand: an anchor is right to some ten.
const TIED: u64 = 500_000;

/// Reads a record, one of so many `records`.
pub fn read(file: PathBuf, recording: &impl Recording, records: usize) -> io::Result<Process> {
    let header = recording.header();
    let clock = Clock::new(header.clock, &header.anchors);
    let mut first = First::default();
    recording.read(|entry| first.take(&clock, &entry))?;
    let (mut known, edges, layers) = first.finish(header, &clock);
    let mut second = Second::new(&known, layers, header, &clock, records);
    let damage = recording.read(|entry| second.take(&entry))?;
    let mut counted = second.finish(&known, edges);
    for row in &mut known.facts.calls {
        // What is no record of ours has no counters.
        row.inside = row
            .inside
            .max(counted.totals.calls[usize::from(row.row)].count);
    }
    let mut sum = Sum::of(&counted.windows);
    let spent = ledger::read(recording, &clock, &mut known, &mut counted, sum.as_ref())?;
    if let Some(sum) = &mut sum {
        sum.wait_share = spent.all.host_share(LedgerKind::Wait);
    }
    let record = record(header, &clock, &known, &counted, damage);
    let Counted {
        totals,
        turnaround,
        windows,
        mut slowest,
        kernels,
        layers,
        collectives,
        samples,
        experts,
        ..
    } = counted;
    // What takes no longer than others like it, nor than most, is not slow.
    let median = sum.map_or(0, |sum| sum.time.p50);
    slowest.retain(|slow| slow.more > 0 || slow.busy() > median);
    slowest.sort_by_key(|slow| Reverse((slow.more, slow.busy())));
    let ns = Ns {
        rate: clock.ns_per_tick(),
    };
    let (facts, strings) = (known.facts, known.strings);
    Ok(Process {
        file,
        pid: header.pid,
        parent: header.parent,
        record,
        sum,
        others: Others {
            unqualified: unqualified(&windows),
            outside: Outside::of(header, &ns),
        },
        phases: batches::phases(&windows),
        ledger: spent.all,
        details: spent.details,
        slowest,
        stacks: spent.stacks,
        calls: Calls::of(&totals, turnaround, &facts, &strings, &ns),
        python: Python::of(&totals, header, &facts, &ns),
        kernels,
        layers,
        collectives,
        metrics: Metrics {
            sums: metrics::inside(samples.iter(), &windows),
            samples,
        },
        experts,
        facts,
        windows,
    })
}

/// What became of the record, and what it lacks.
fn record(
    header: &Header,
    clock: &Clock,
    known: &Known,
    counted: &Counted,
    damage: Damage,
) -> RecordState {
    // Where a window closes the recorder has counted these.
    let unclosed = counted.windows.iter().filter(|window| !window.closed);
    let gaps = match damage.is_none() {
        true => unclosed.map(Window::gaps).fold(0, u64::saturating_add),
        false => 0,
    };
    let iterations = &known.iterations;
    let middle = iterations.get(iterations.len() / 2);
    let middle = middle.map_or(u64::MAX, |one| clock.ns(one.start));
    // What is missing of kernels is reported with them.
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
            .filter(|tied| *tied < TIED),
        unix_minus_monotonic: clock.unix_minus_monotonic(middle),
        events: counted.totals.events,
        dropped: header
            .counter(Counter::EventsDropped)
            .max(counted.totals.dropped.saturating_sub(kernels_dropped))
            .saturating_add(gaps),
        passed: header.counter(Counter::IterationsPassed),
        windows_dropped: header.counter(Counter::WindowsDropped),
        keep: header.counter(Counter::Keep),
        own_cost: ns.of(header.counter(Counter::OwnTicks)),
        gpu_lost: header.counter(Counter::GpuSpansLost),
        state: State::of(&damage, ended),
        damage,
        left_out: known.left_out + counted.left_out,
    }
}
