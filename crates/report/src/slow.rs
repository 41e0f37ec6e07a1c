//! The slowest iterations, and what was different in them.

use std::cmp::Reverse;
use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Clock, Strings};

use crate::causes::{Cause, Overlap, Watched};
use crate::facts::{Facts, name, range_name};
use crate::first::RawIteration;
use crate::qualify::Qualified;
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
    /// What of that is waiting for requests.
    pub idle: u64,
    /// Those that took longest beyond what they take in the mean iteration first.
    pub causes: Vec<SlowCause>,
}

/// What kind of thing overlapped a slow iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "OverlapKind")]
pub enum CauseKind {
    /// A garbage collection of Python, on any thread.
    Gc,
    /// The iteration's thread waited for the GIL.
    GilWait,
    /// Another thread held the GIL.
    GilHold,
    /// The iteration's thread was in a CUDA call that waits for the device.
    Wait,
    /// A marked Python function on the iteration's thread.
    Function,
    /// An NVTX range of the program on the iteration's thread.
    Range,
}

/// Something that overlapped a slow iteration.
#[derive(Debug)]
pub struct SlowCause {
    pub kind: CauseKind,
    pub name: String,
    pub count: u64,
    pub time: u64,
    /// In the mean iteration.
    pub usual: u64,
}

/// Overlaps under this part of an iteration explain nothing.
const CAUSE: f64 = 0.02;

/// What explains that an iteration was slow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Cause")]
pub struct Explained {
    /// What it is.
    pub name: String,
    /// The thread that held the GIL, of a wait for it; `null`: not known.
    pub held_by: Option<String>,
    /// How much longer it took than in the mean iteration.
    #[serde(rename = "more_ns")]
    pub more: u64,
}

impl Slow {
    /// How long it took without waiting for requests.
    #[must_use]
    pub const fn busy(&self) -> u64 {
        self.duration.saturating_sub(self.idle)
    }

    /// What made it slow: what took longer in it than in the mean iteration.
    #[must_use]
    pub fn explained(&self) -> Vec<Explained> {
        let threshold = (self.busy() as f64 * CAUSE) as u64;
        let worth = || self.causes.iter().filter(|c| c.beyond() > threshold);
        let inner = || worth().filter(|cause| cause.kind.is_inner());
        // A collection or a wait says more than the function that it happened in.
        let explained = inner().fold(0_u64, |sum, cause| sum.saturating_add(cause.beyond()));
        let outer = worth().filter(|cause| cause.kind.is_outer());
        let outer = outer.filter(|cause| cause.beyond() / 2 > explained);
        let holder = worth().find(|cause| cause.kind == CauseKind::GilHold);
        let one = |cause: &SlowCause| Explained {
            name: cause.name.clone(),
            held_by: holder
                .filter(|_| cause.kind == CauseKind::GilWait)
                .map(|holder| holder.name.clone()),
            more: cause.beyond(),
        };
        inner().chain(outer).map(one).collect()
    }
}

impl CauseKind {
    /// Something that nothing else explains.
    const fn is_inner(self) -> bool {
        matches!(self, Self::Gc | Self::GilWait | Self::Wait)
    }

    /// Something that others happen in.
    const fn is_outer(self) -> bool {
        matches!(self, Self::Function | Self::Range)
    }
}

impl SlowCause {
    /// What it took beyond the usual.
    pub const fn beyond(&self) -> u64 {
        self.time.saturating_sub(self.usual)
    }
}

/// The places of the slowest iterations, of those that count.
pub fn slowest(iterations: &[RawIteration], qualified: &Qualified) -> Vec<usize> {
    let places = 0..iterations.len();
    let mut places: Vec<_> = places.filter(|place| qualified.has(*place)).collect();
    let slower = |place: &usize| Reverse((iterations[*place].busy(), *place));
    if places.len() > SLOWEST {
        places.select_nth_unstable_by_key(SLOWEST, slower);
        places.truncate(SLOWEST);
    }
    places
}

/// What the iterations that were watched show, the slowest first. So many count.
pub fn slow(
    iterations: &[RawIteration],
    count: usize,
    watched: Watched,
    totals: &Totals,
    facts: &Facts,
    strings: &Strings,
    clock: &Clock,
) -> Vec<Slow> {
    let count = count.max(1) as u64;
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
                idle: ns(raw.idle),
                causes: causes(&found, facts, strings, &ns, &usual),
            })
        })
        .collect();
    slow.sort_by_key(|slow| Reverse(slow.busy()));
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
                Cause::Gc(generation) => (CauseKind::Gc, format!("GC gen{generation}")),
                Cause::GilWait => (CauseKind::GilWait, "GIL wait".to_owned()),
                Cause::GilHold(thread) => (CauseKind::GilHold, facts.thread(thread)),
                Cause::Wait(row) => (CauseKind::Wait, facts.call(row)),
                Cause::Function(id) => (CauseKind::Function, name(strings.get(id))),
                Cause::Range(domain, name) => (CauseKind::Range, range_name(strings, domain, name)),
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
