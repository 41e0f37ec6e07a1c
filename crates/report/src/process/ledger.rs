//! The third pass over a record: what the host did, also while the GPU had nothing to do.

use std::io;

use tllmprof_record::{Clock, Entry};

use super::first::Known;
use super::second::Counted;
use crate::events::iteration::GpuFrom;
use crate::events::recording::Recording;
use crate::iterations::sum::Sum;
use crate::ledger::{Groups, HostLedger, Ledger, LedgerDetails, Named};
use crate::stacks::Stacks;

/// Where the time of iterations goes.
#[derive(Debug)]
pub struct Spent {
    pub all: Ledger,
    pub details: LedgerDetails,
    pub stacks: Stacks,
}

/// Reads the record once more, if there are iterations that count. The slow iterations get what made them slow.
pub fn read(
    recording: &impl Recording,
    clock: &Clock,
    known: &mut Known,
    counted: &mut Counted,
    sum: Option<&Sum>,
) -> io::Result<Spent> {
    let gpu_from = sum.map_or(GpuFrom::Plain, |sum| sum.gpu_from);
    let did = counted.busiest.as_ref();
    let did = did.filter(|_| gpu_from == GpuFrom::Kernels);
    let slow: Vec<_> = (counted.slowest.iter())
        .map(|slow| (slow.n, slow.start))
        .collect();
    let mut groups = Groups::of(&counted.windows, gpu_from, &slow);
    if let Some(did) = did {
        groups.ran(did);
    }
    let idle = did.map_or(&known.idle, |did| &did.idle);
    let mut host = HostLedger::new(groups.placed.iter().copied(), idle);
    let sampled = std::mem::take(&mut known.sampled);
    let places = groups.places(&host.sample(&sampled, &known.requests));
    if sum.is_some() {
        recording.read(|entry| {
            if let Entry::Event { thread, event } = &entry {
                host.add(clock, &known.requests, *thread, event);
            }
        })?;
    }
    let spent = host.finish();
    let names = Named {
        facts: &known.facts,
        strings: &known.strings,
        frames: &sampled.frames,
    };
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
    let stacks = Stacks::of(sampled, rate, &starts, &places, took);
    Ok(Spent {
        all,
        details: LedgerDetails { windows, claims },
        stacks,
    })
}
