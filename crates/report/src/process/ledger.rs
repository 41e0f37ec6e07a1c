//! The third pass over a record. It divides the host's time by cause, in total and for the time in
//! which the GPU was idle.

use std::io;

use tllmprof_record::{Clock, Entry};

use super::first::FirstResults;
use super::second::SecondResults;
use crate::events::iteration::GpuFrom;
use crate::events::recording::Recording;
use crate::events::window::Window;
use crate::iterations::sum::Sum;
use crate::ledger::{Groups, HostLedger, Ledger, LedgerDetails, NameSources};
use crate::numbers::quantiles::Quantiles;
use crate::stacks::Stacks;

/// Minimum time that code between two calls takes, as a multiple of the usual time of a launch, for the code to get its
/// own row in the ledger. The time of shorter code is added to the row for short code around calls.
const MIN_CODE_LAUNCHES: u64 = 20;
/// Minimum time that code between two calls takes, in nanoseconds, for the code to get its own row in the ledger. The
/// code must reach both this time and the time that [`MIN_CODE_LAUNCHES`] gives.
const MIN_CODE_NS: u64 = 50_000;

/// Results of the third pass, which divides the host's time by cause.
#[derive(Debug)]
pub(crate) struct ThirdResults {
    pub all: Ledger,
    pub details: LedgerDetails,
    pub stacks: Stacks,
}

/// Reads the record a third time, if the report's figures include any iteration, and returns the ledgers (time by
/// cause). Also stores the causes of each slow iteration in `counted.slowest`.
pub(crate) fn read(
    recording: &impl Recording,
    clock: &Clock,
    known: &mut FirstResults,
    counted: &mut SecondResults,
    sum: Option<&Sum>,
) -> io::Result<ThirdResults> {
    let gpu_from = sum.map_or(GpuFrom::Plain, |sum| sum.gpu_from);
    let activity = counted.busiest.as_ref();
    let slow: Vec<_> = (counted.slowest.iter())
        .map(|slow| (slow.n, slow.start))
        .collect();
    let mut groups = Groups::new(&counted.windows, gpu_from, &slow, counted.launcher);
    match activity {
        Some(activity) => groups.ran(activity),
        None if gpu_from == GpuFrom::Kernels => groups.forget_gpu(),
        None => {}
    }
    let by_events = counted.device.map(|device| known.gpu.idle_of(device));
    let by_events = by_events.unwrap_or_default();
    let is_certain = counted.device.is_none() && !known.certain_idle.is_empty();
    if is_certain {
        groups.idle_after_waits();
    }
    let idle = match activity {
        Some(activity) => &activity.idle,
        None if is_certain => &known.certain_idle,
        None => &by_events,
    };
    let long = long(counted);
    let mut host = HostLedger::new(groups.placed.iter().copied(), idle, long);
    let to_host = known.facts.calls.iter().filter(|row| row.copies_to_host());
    host.set_copies_to_host(to_host.map(|row| row.row).collect());
    let sampled = std::mem::take(&mut known.sampled);
    let places = groups.places(&host.sample(&sampled, &known.requests));
    if sum.is_some() {
        recording.read(|entry| {
            if let Entry::Event { thread, event } = &entry {
                host.add(clock, &known.requests, *thread, event);
            }
        })?;
    }
    let mut spent = host.finish();
    let names = NameSources {
        facts: &known.facts,
        strings: &known.strings,
        frames: &sampled.frames,
    };
    if sum.is_some_and(Sum::is_alike) {
        groups.project(&mut spent, names);
    }
    let ledger_of = |window| groups.ledger(window, &spent, names);
    let all = ledger_of(None);
    let windows: Vec<_> = (0..counted.windows.len())
        .map(Some)
        .map(ledger_of)
        .collect();
    for (place, slow) in counted.slowest.iter_mut().enumerate() {
        let differences = groups.differences(place, &spent, slow.holder(), names);
        slow.explain(differences);
    }
    let claims = groups.claims(&spent, names);
    let took = spent.worked(&groups.hosts(None));
    let rate = known.facts.asked.stacks_rate;
    let starts: Vec<_> = counted
        .windows
        .iter()
        .map(|window| window.span().0)
        .collect();
    let stacks = Stacks::new(sampled, rate, &starts, &places, took);
    Ok(ThirdResults {
        all,
        details: LedgerDetails {
            windows,
            claims,
            is_exact: false,
        },
        stacks,
    })
}

/// Returns the minimum time that code between two calls takes, in nanoseconds, for the code to get its own row in the
/// ledger. It depends on the usual time of a launch, which shows how fast the host is: the median, over iterations, of
/// the mean time of an iteration's launches.
fn long(counted: &SecondResults) -> u64 {
    let iterations = counted.windows.iter().flat_map(Window::qualified);
    let launches = iterations.filter(|iteration| iteration.launches > 0);
    let means = launches.map(|one| one.launching.ns / u64::from(one.launches));
    let usual = Quantiles::from_values(means).map_or(0, |means| means.p50);
    MIN_CODE_NS.max(MIN_CODE_LAUNCHES * usual)
}
