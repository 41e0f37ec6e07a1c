//! Garbage collections of Python, and its GIL.

pub mod text;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Counter, Header};

use crate::events::facts::Facts;
use crate::events::named::{Named, Ns};
use crate::events::tally::Totals;

/// Activities of Python inside windows.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Python {
    /// Garbage collections of Python inside windows, by generation.
    pub gc: Vec<Named>,
    /// The number of objects that those collections freed.
    #[serde(rename = "gc_collected")]
    #[schemars(extend("unit" = "objects"))]
    pub collected: u64,
    /// Waits for the GIL inside windows, on all threads.
    pub gil_wait: Named,
    /// Times that threads held the GIL inside windows.
    pub gil_hold: Named,
    /// The number of times that a thread inside windows had to release the GIL because another thread requested it.
    #[schemars(extend("unit" = "times"))]
    pub gil_forced: u64,
    /// The number of times that the GIL went from one thread to another, as far as the recorder saw it.
    #[schemars(extend("unit" = "times"))]
    pub gil_handoffs: u64,
    /// The threads that have a name or held the GIL.
    pub threads: Vec<Thread>,
    /// Time that each thread held the GIL, in nanoseconds.
    #[serde(skip)]
    pub holds: BTreeMap<u32, u64>,
}

/// A thread.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Thread {
    /// The thread's ID.
    pub tid: u32,
    /// Its name; `null` if it is not known.
    pub name: Option<String>,
    /// The time that it held the GIL inside windows.
    #[serde(rename = "gil_hold_ns")]
    pub gil_hold: u64,
}

impl Python {
    /// Builds the figures from the totals of a pass.
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
