//! The slowest iterations, and what was different in them.

use std::cmp::Reverse;
use std::collections::HashMap;

use tllmprof_record::{Clock, Strings};

use crate::causes::{Cause, Overlap, Watched};
use crate::facts::{Facts, name, range_name};
use crate::first::RawIteration;
use crate::tally::Totals;

/// How many of the slowest iterations are looked into.
const SLOWEST: usize = 10;

/// How many of the things that overlapped a slow iteration are kept.
const CAUSES: usize = 8;

/// A slow iteration.
#[derive(Debug)]
pub struct Slow {
    pub n: u64,
    pub start: u64,
    pub duration: u64,
    /// Those that took longest beyond what they take in the mean iteration first.
    pub causes: Vec<SlowCause>,
}

/// Something that overlapped a slow iteration.
#[derive(Debug)]
pub struct SlowCause {
    pub kind: &'static str,
    pub name: String,
    pub count: u64,
    pub time: u64,
    /// In the mean iteration.
    pub usual: u64,
}

impl SlowCause {
    /// What it took beyond the usual.
    pub const fn beyond(&self) -> u64 {
        self.time.saturating_sub(self.usual)
    }
}

/// The places of the slowest iterations.
pub fn slowest(iterations: &[RawIteration]) -> Vec<usize> {
    let mut places: Vec<_> = (0..iterations.len()).collect();
    let slower = |place: &usize| Reverse((iterations[*place].duration, *place));
    if places.len() > SLOWEST {
        places.select_nth_unstable_by_key(SLOWEST, slower);
        places.truncate(SLOWEST);
    }
    places
}

/// What the iterations that were watched show, the slowest first.
pub fn slow(
    iterations: &[RawIteration],
    watched: Watched,
    totals: &Totals,
    facts: &Facts,
    strings: &Strings,
    clock: &Clock,
) -> Vec<Slow> {
    let count = iterations.len().max(1) as u64;
    let mut slow: Vec<_> = watched
        .found()
        .filter_map(|(place, found)| {
            let raw = iterations.get(place)?;
            let ns = |ticks| clock.duration_ns(raw.start, ticks);
            let usual = |cause| ns(totals.spent(cause) / count);
            Some(Slow {
                n: raw.n,
                start: clock.ns(raw.start),
                duration: ns(raw.duration),
                causes: causes(&found, facts, strings, &ns, &usual),
            })
        })
        .collect();
    slow.sort_by_key(|slow| Reverse(slow.duration));
    slow
}

fn causes(
    found: &HashMap<Cause, Overlap>,
    facts: &Facts,
    strings: &Strings,
    ns: &impl Fn(u64) -> u64,
    usual: &impl Fn(Cause) -> u64,
) -> Vec<SlowCause> {
    let mut causes: Vec<_> = found
        .iter()
        .map(|(cause, overlap)| {
            let (kind, name) = match *cause {
                Cause::Gc(generation) => ("gc", format!("GC gen{generation}")),
                Cause::GilWait => ("gil_wait", "GIL wait".to_owned()),
                Cause::GilHold(thread) => ("gil_hold", facts.thread(thread)),
                Cause::Wait(row) => ("wait", facts.call(row)),
                Cause::Function(id) => ("function", name(strings.get(id))),
                Cause::Range(domain, name) => ("range", range_name(strings, domain, name)),
            };
            let (count, time, usual) = (overlap.count, ns(overlap.ticks), usual(*cause));
            SlowCause {
                kind,
                name,
                count,
                time,
                usual,
            }
        })
        .collect();
    causes.sort_by(|a, b| {
        b.beyond()
            .cmp(&a.beyond())
            .then_with(|| a.name.cmp(&b.name))
    });
    causes.truncate(CAUSES);
    causes
}
