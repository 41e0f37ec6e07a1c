//! Garbage collections: a C function among `gc.callbacks`, once in each interpreter.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::collecting::Collecting;
use super::method::MethodDef;
use super::object::{Object, Python};
use super::time::{Milliseconds, now};
use super::{entry, threads};
use tllmprof_capture::marks::Name;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_recorder as recorder;
use tllmprof_recorder::Counter;
use tllmprof_recorder::What;

/// Generations that have a name of their own; a later one counts as the last.
const GENERATIONS: usize = 3;

lifecycle::global! {
    stage: Sinks;

    /// Collections by generation, and what they did, since the first interpreter was attached to.
    #[fork(in_child)]
    #[restart(keep)]
    pub static TOTALS: Totals = Totals {
        collections: [const { AtomicU64::new(0) }; GENERATIONS],
        collected: AtomicU64::new(0),
        uncollectable: AtomicU64::new(0),
        nanoseconds: AtomicU64::new(0),
    };
}

pub struct Totals {
    collections: [AtomicU64; GENERATIONS],
    /// Objects that were freed.
    collected: AtomicU64,
    /// Objects that were found, but could not be freed.
    uncollectable: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Totals {
    /// The child of a fork counts its own.
    fn in_child(&self, _: &OnlyThread) {
        let more = [&self.collected, &self.uncollectable, &self.nanoseconds];
        for total in self.collections.iter().chain(more) {
            total.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        for (generation, count) in self.collections.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            write!(f, "{before}{count} of gen{generation}")?;
            before = ", ";
        }
        let time = Milliseconds(self.nanoseconds.load(Ordering::Relaxed));
        let collected = self.collected.load(Ordering::Relaxed);
        let uncollectable = self.uncollectable.load(Ordering::Relaxed);
        write!(
            f,
            ", {time} ms; {collected} objects collected, {uncollectable} uncollectable"
        )
    }
}

struct Names {
    range: [Name; GENERATIONS],
    collected: [Name; GENERATIONS],
    uncollectable: [Name; GENERATIONS],
}

lifecycle::global! {
    #[fork(keep = "handles of NVTX are inherited")]
    #[restart(keep)]
    static NAMES: OnceBox<Option<Names>> = OnceBox::new();
}

/// Has the interpreter report its collections. None if it has no `gc` to ask.
pub fn install(py: Python<'_>) -> Option<()> {
    static CALLBACK: MethodDef = MethodDef::with_tuple(c"tllmprof_gc", callback);
    NAMES.get_or_init(|| Box::new(Names::new()));
    let callbacks = py.import_unseen(c"gc")?.attr(c"callbacks")?;
    let function = py.function(&CALLBACK)?;
    callbacks.append(&function).then_some(())
}

impl Names {
    fn new() -> Option<Self> {
        let name =
            |generation: usize, what: &str| Name::new(&format!("Python GC gen{generation}{what}"));
        let all = |what| Some([name(0, what)?, name(1, what)?, name(2, what)?]);
        Some(Self {
            range: all("")?,
            collected: all(" collected")?,
            uncollectable: all(" uncollectable")?,
        })
    }
}

/// `callback(phase, info)`, as the documentation of Python's `gc.callbacks` has it.
fn callback(_: Python<'_>, args: &Object<'_>) {
    if !entry::is_closed() {
        let _ = count(args);
    }
}

fn count(args: &Object<'_>) -> Option<()> {
    let thread = threads::current()?;
    let mut args = args.elements();
    let (phase, info) = (args.next()?, args.next()?);
    let number = |name| {
        info.item(name)
            .and_then(|value| value.as_int())
            .unwrap_or(0)
            .max(0)
            .cast_unsigned()
    };
    let generation = usize::try_from(number(c"generation"))
        .map_or(GENERATIONS, |n| n)
        .min(GENERATIONS - 1);
    let names = NAMES.get().and_then(Option::as_ref);
    if phase.as_text()? == "start" {
        let collecting = match thread.collecting.take() {
            Some(outer) => Collecting {
                inner: outer.inner + 1,
                ..outer
            },
            None => Collecting {
                range: names.map(|names| names.range[generation].push()),
                since: now(),
                ticks: recorder::ticks(),
                inner: 0,
            },
        };
        thread.collecting.set(Some(collecting));
        return Some(());
    }
    let mut since = None;
    let took = match thread.collecting.take() {
        Some(outer) if outer.inner > 0 => {
            thread.collecting.set(Some(Collecting {
                inner: outer.inner - 1,
                ..outer
            }));
            0
        }
        Some(collecting) => {
            let took = now().saturating_sub(collecting.since);
            drop(collecting.range);
            since = Some(collecting.ticks);
            took
        }
        None => 0, // it began before us
    };
    let (collected, uncollectable) = (number(c"collected"), number(c"uncollectable"));
    if let Some(names) = names {
        names.collected[generation].mark(collected);
        if uncollectable > 0 {
            names.uncollectable[generation].mark(uncollectable);
        }
    }
    recorder::add(Counter::Collections, 1);
    if let Some(since) = since {
        let what = What::Gc {
            generation: generation as u16,
            collected,
        };
        recorder::event(since, recorder::ticks().saturating_sub(since), what);
    }
    let add = |total: &AtomicU64, value| total.fetch_add(value, Ordering::Relaxed);
    add(&TOTALS.collections[generation], 1);
    add(&TOTALS.collected, collected);
    add(&TOTALS.uncollectable, uncollectable);
    add(&TOTALS.nanoseconds, took);
    Some(())
}
