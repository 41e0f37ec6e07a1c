//! Garbage collections of Python, and waits for its global interpreter lock (GIL).

pub(crate) mod text;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Counter, Header};

use crate::events::facts::Facts;
use crate::events::named::{Named, Ns};
use crate::events::tally::Totals;

/// Garbage collection and use of the GIL (Python's global interpreter lock) inside windows.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Python {
    /// Python's garbage collections inside windows, summed by generation.
    pub gc: Vec<Named>,
    /// The number of objects that Python's garbage collections inside windows freed.
    #[serde(rename = "gc_collected")]
    #[schemars(extend("unit" = "objects"))]
    pub collected: u64,
    /// Waits of threads for Python's global interpreter lock (GIL) inside windows, on all threads.
    pub gil_wait: Named,
    /// Periods inside windows in which a thread held the GIL, on all threads.
    pub gil_hold: Named,
    /// The number of times inside windows that a thread had to release the GIL because another thread requested it.
    #[schemars(extend("unit" = "times"))]
    pub gil_forced: u64,
    /// The number of times that a thread took the GIL and released it, as far as tllmprof recorded it.
    #[schemars(extend("unit" = "times"))]
    pub gil_handoffs: u64,
    /// The threads of the process that have a name or that held the GIL.
    pub threads: Vec<Thread>,
    /// Time that each thread held the GIL, in nanoseconds.
    #[serde(skip)]
    pub holds: BTreeMap<u32, u64>,
}

/// A thread of the process, with the time that it held Python's global interpreter lock (GIL).
#[derive(Debug, Serialize, JsonSchema)]
pub struct Thread {
    /// The ID of the thread.
    pub tid: u32,
    /// The name of the thread; `null` if it is not known.
    pub name: Option<String>,
    /// The time inside windows in which the thread held Python's global interpreter lock (GIL).
    #[serde(rename = "gil_hold_ns")]
    pub gil_hold: u64,
}

impl Python {
    /// Returns the figures on garbage collections and on the GIL, computed from the totals of the
    /// second pass over a record.
    pub fn new(totals: &Totals, header: &Header, facts: &Facts, ns: &Ns) -> Self {
        let gc = (0..).zip(&totals.gc).filter(|(_, total)| total.count > 0);
        let holds = totals.holds.iter();
        let holds: BTreeMap<_, _> = holds
            .map(|(tid, ticks)| (*tid, ns.convert(*ticks)))
            .collect();
        let tids: BTreeSet<_> = facts.threads.keys().chain(holds.keys()).collect();
        let thread = |tid: &u32| Thread {
            tid: *tid,
            name: facts.threads.get(tid).cloned(),
            gil_hold: holds.get(tid).copied().unwrap_or(0),
        };
        Self {
            gc: gc
                .map(|(generation, total)| ns.named(format!("gen{generation}"), total))
                .collect(),
            collected: totals.collected,
            gil_wait: ns.named("GIL wait".to_owned(), &totals.gil_wait),
            gil_hold: ns.named("GIL hold".to_owned(), &totals.gil_hold),
            gil_forced: totals.gil_forced,
            gil_handoffs: header.counter(Counter::GilHandoffs),
            threads: tids.into_iter().map(thread).collect(),
            holds,
        }
    }
}
