//! Counts garbage collections. In each interpreter, `gc.callbacks` contains a C function of the
//! library.

use core::cell::Cell;
use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::collecting::Collecting;
use super::method::MethodDef;
use super::object::{Held, Object, Python};
use super::time::{Milliseconds, now};
use super::{attached, entry, threads};
use tllmprof_capture::marks::RegisteredName;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_platform::log;
use tllmprof_recorder as recorder;
use tllmprof_recorder::Counter;
use tllmprof_recorder::What;
use tllmprof_recorder::watch::{self, Cause};

/// Number of generations that are counted separately. A collection of a higher generation is counted for the last of
/// these generations.
const GENERATIONS: usize = 3;

lifecycle::global! {
    stage: Sinks;

    /// The collections of each generation and their results, since Python was found in the process.
    #[fork(in_child)]
    #[restart(keep)]
    pub static TOTALS: CollectionTotals = CollectionTotals::new();
}

pub(crate) struct CollectionTotals {
    collections: [AtomicU64; GENERATIONS],
    /// Number of objects that garbage collections have freed.
    collected: AtomicU64,
    /// Number of objects that garbage collections have found but could not free.
    uncollectable: AtomicU64,
    nanoseconds: AtomicU64,
}

impl CollectionTotals {
    const fn new() -> Self {
        Self {
            collections: [const { AtomicU64::new(0) }; GENERATIONS],
            collected: AtomicU64::new(0),
            uncollectable: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        }
    }

    /// Adds a finished collection that took `took` ns.
    fn add(&self, report: &Report, took: u64) {
        let add = |total: &AtomicU64, value| total.fetch_add(value, Ordering::Relaxed);
        add(&self.collections[report.generation], 1);
        add(&self.collected, report.collected);
        add(&self.uncollectable, report.uncollectable);
        add(&self.nanoseconds, took);
    }

    /// Returns the number of collections of all generations.
    fn count(&self) -> u64 {
        let counts = self.collections.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Resets the totals in the child of a fork, because the child counts its own collections.
    fn in_child(&self, _: &OnlyThread) {
        let more = [&self.collected, &self.uncollectable, &self.nanoseconds];
        for total in self.collections.iter().chain(more) {
            total.store(0, Ordering::Relaxed);
        }
    }
}

impl fmt::Display for CollectionTotals {
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

struct CollectionNames {
    range: [RegisteredName; GENERATIONS],
    collected: [RegisteredName; GENERATIONS],
    uncollectable: [RegisteredName; GENERATIONS],
}

lifecycle::global! {
    #[fork(keep = "a name is registered anew in a child")]
    #[restart(keep)]
    static NAMES: OnceBox<Option<CollectionNames>> = OnceBox::new();
}

lifecycle::global! {
    stage: Sinks;

    /// The main interpreter's list `gc.callbacks`, to which our callback is added.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static CALLBACKS: Held = Held::none();
    /// The Python function object that the library adds to `gc.callbacks`.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static OURS: Held = Held::none();
    /// Number of collections that the interpreter counted without calling our callback.
    #[fork(reset)]
    #[restart(keep)]
    static UNSEEN: AtomicU64 = AtomicU64::new(0);
    /// The interpreter's count of collections minus the count in [`TOTALS`], at the time when our callback was added.
    /// `UNKNOWN` if the interpreter's count could not be read, or in the child of a fork, whose totals begin at 0.
    #[fork(reset)]
    #[restart(reset)]
    static BEFORE: AtomicU64 = AtomicU64::new(UNKNOWN);
    /// The time of the next check of `gc.callbacks`, in ns.
    #[fork(keep = "the clock goes on")]
    #[restart(keep)]
    static NEXT: AtomicU64 = AtomicU64::new(0);
    /// True if a check found that the program has removed our callback from `gc.callbacks`. Set to false again at the
    /// end of the interpreter if no collection was missed.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static IS_GONE: AtomicBool = AtomicBool::new(false);
}

const UNKNOWN: u64 = u64::MAX;
/// The shortest time between two checks of `gc.callbacks`, in ns.
const CHECK_INTERVAL_NS: u64 = 20_000_000;

static CALLBACK: MethodDef = MethodDef::with_tuple(c"tllmprof_gc", callback);

/// Adds our callback to the interpreter's list `gc.callbacks`. Returns `None` if the interpreter
/// has no `gc` module.
pub(crate) fn install(py: Python<'_>) -> Option<()> {
    NAMES.get_or_init(|| Box::new(CollectionNames::new()));
    let callbacks = py.import_unseen(c"gc")?.attr(c"callbacks")?;
    let function = py.function(&CALLBACK)?;
    callbacks.append(&function).then_some(())?;
    if py.interpreter() == 0 {
        let before = counted(py).map(|counted| counted.saturating_sub(TOTALS.count()));
        BEFORE.store(before.unwrap_or(UNKNOWN), Ordering::Relaxed);
        OURS.set(function);
        CALLBACKS.set(callbacks);
    }
    Some(())
}

/// Returns the number of collections that the interpreter itself has counted so far, or `None` if `gc.get_stats` fails.
fn counted(py: Python<'_>) -> Option<u64> {
    let stats = py.import_unseen(c"gc")?.attr(c"get_stats")?.call(&[])?;
    let counts = py.c().as_tuple(&stats)?;
    let counts = counts
        .elements()
        .filter_map(|of| of.item(c"collections")?.as_int());
    Some(counts.sum::<i64>().max(0).cast_unsigned())
}

/// Returns true if [`check`] should run at this audit event.
pub(crate) fn wants(event: &[u8]) -> bool {
    matches!(event, b"import" | b"open") && now() >= NEXT.load(Ordering::Relaxed)
}

/// Checks that our callback is still in `gc.callbacks`, and sets [`IS_GONE`] if it is not. At the end of the main
/// interpreter (`is_last`), also counts the collections that were missed.
pub(crate) fn check(py: Python<'_>, is_last: bool) -> Option<()> {
    NEXT.store(now() + CHECK_INTERVAL_NS, Ordering::Relaxed);
    let callbacks = CALLBACKS.get(py).filter(|_| py.interpreter() == 0)?;
    let all = py.c().as_tuple(&callbacks)?;
    if all
        .elements()
        .all(|callback| callback.addr() != OURS.addr())
    {
        IS_GONE.store(true, Ordering::Relaxed);
    }
    let before = BEFORE.load(Ordering::Relaxed);
    let is_comparable = before != UNKNOWN && !attached::has_sub_interpreters();
    if is_last && is_comparable && IS_GONE.load(Ordering::Relaxed) {
        let unseen = counted(py)?.saturating_sub(before + TOTALS.count());
        UNSEEN.store(unseen, Ordering::Relaxed);
        IS_GONE.store(unseen > 0, Ordering::Relaxed);
    }
    Some(())
}

/// Logs that collections were missed, or may have been, because the program removed our callback from `gc.callbacks`.
/// Allocates nothing.
pub(crate) fn report_unseen() {
    if !IS_GONE.load(Ordering::Relaxed) {
        return;
    }
    let why = "the program took tllmprof's entry out of gc.callbacks";
    match UNSEEN.load(Ordering::Relaxed) {
        0 => log::say!(Warn, "Python GC: collections may be missing: {why}"),
        1 => log::say!(Warn, "Python GC: 1 collection is missing: {why}"),
        count => log::say!(Warn, "Python GC: {count} collections are missing: {why}"),
    }
}

/// Removes our callback from the interpreter's list `gc.callbacks`. This runs no code of the
/// program.
pub(crate) fn uninstall<'py>(py: Python<'py>) -> Option<()> {
    if py.interpreter() == 0 {
        drop((CALLBACKS.take(py), OURS.take(py)));
    }
    let callbacks = py.import_unseen(c"gc")?.attr(c"callbacks")?;
    let kind = py.function(&CALLBACK)?.kind();
    // The names of Python callables are not read, because that could run code of the program.
    let name_of = |callback: &Object<'py>| {
        let is_in_c = callback.kind() == kind;
        is_in_c.then(|| callback.attr(c"__name__")).flatten()
    };
    let is_ours = |callback: Object<'py>| {
        let name = name_of(&callback);
        name.is_some_and(|name| name.as_text() == CALLBACK.name().to_str().ok())
    };
    let place = py.c().as_tuple(&callbacks)?.elements().position(is_ours)?;
    let place = py.int(i64::try_from(place).ok()?)?;
    callbacks.attr(c"pop")?.call(&[&place]).map(|_| ())
}

impl CollectionNames {
    fn new() -> Option<Self> {
        let name = |generation: usize, what: &str| {
            RegisteredName::new(&format!("Python GC gen{generation}{what}"))
        };
        let all = |what| Some([name(0, what)?, name(1, what)?, name(2, what)?]);
        Some(Self {
            range: all("")?,
            collected: all(" collected")?,
            uncollectable: all(" uncollectable")?,
        })
    }
}

/// The function in `gc.callbacks`. Python calls it as `callback(phase, info)` at the start and end
/// of a collection.
fn callback(_: Python<'_>, args: &Object<'_>) {
    if !entry::is_closed() {
        let _ = count(args);
    }
}

fn count(args: &Object<'_>) -> Option<()> {
    let thread = threads::current()?;
    thread.catch_up();
    let mut args = args.elements();
    let (phase, info) = (args.next()?, args.next()?);
    let number = |name| info.item(name).and_then(|value| value.as_int());
    Report::new(phase.as_text()?, number).count(&thread.collecting, &TOTALS);
    Some(())
}

/// The arguments with which Python called our callback: one report of a garbage collection.
struct Report {
    starts: bool,
    /// The index of the collected generation, below [`GENERATIONS`].
    generation: usize,
    /// Number of objects that the collection freed; 0 at the start of a collection.
    collected: u64,
    /// Number of objects that the collection found but could not free.
    uncollectable: u64,
}

impl Report {
    /// Reads a report. `number` returns the integer that the dictionary `info` has under a key.
    fn new(phase: &str, number: impl Fn(&'static CStr) -> Option<i64>) -> Self {
        let number = |name| number(name).unwrap_or(0).max(0).cast_unsigned();
        Self {
            starts: phase == "start",
            generation: usize::try_from(number(c"generation"))
                .map_or(GENERATIONS, |n| n)
                .min(GENERATIONS - 1),
            collected: number(c"collected"),
            uncollectable: number(c"uncollectable"),
        }
    }

    /// Processes the reported event, which is the start or the end of a collection. At the end, adds the collection to
    /// `totals`. `collecting` is the state of the calling thread's current collection.
    fn count(&self, collecting: &Cell<Option<Collecting>>, totals: &CollectionTotals) {
        let generation = self.generation;
        let names = NAMES.get().and_then(Option::as_ref);
        if self.starts {
            Collecting::begins(collecting, || Collecting {
                range: names.map(|names| names.range[generation].push()),
                since: now(),
                ticks: recorder::ticks(),
                inner: 0,
            });
            return;
        }
        let ended = Collecting::ends(collecting).map(|collecting| {
            let took = now().saturating_sub(collecting.since);
            drop(collecting.range);
            (took, collecting.ticks)
        });
        if let Some(names) = names {
            names.collected[generation].mark(self.collected);
            if self.uncollectable > 0 {
                names.uncollectable[generation].mark(self.uncollectable);
            }
        }
        recorder::add(Counter::Collections, 1);
        if let Some((_, since)) = ended {
            let what = What::Gc {
                generation: generation as u16,
                collected: self.collected,
            };
            let took = recorder::ticks().saturating_sub(since);
            recorder::event(since, took, what);
            watch::add(Cause::Gc, took);
        }
        totals.add(self, ended.map_or(0, |(took, _)| took));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(phase: &str, generation: i64, collected: i64) -> Report {
        Report::new(phase, |name| match name.to_bytes() {
            b"generation" => Some(generation),
            b"collected" => Some(collected),
            _ => None,
        })
    }

    #[test]
    fn a_generation_without_a_name_counts_as_the_last() {
        assert_eq!(report("start", 0, 0).generation, 0);
        assert_eq!(report("start", 2, 0).generation, 2);
        assert_eq!(report("stop", 3, 0).generation, 2);
        assert_eq!(report("stop", -1, -5).generation, 0);
        assert_eq!(report("stop", -1, -5).collected, 0);
    }

    #[test]
    fn collections_within_another_are_counted_and_not_timed() {
        let (totals, place) = (CollectionTotals::new(), Cell::new(None));
        let of = |total: &AtomicU64| total.load(Ordering::Relaxed);
        report("start", 2, 0).count(&place, &totals);
        std::thread::sleep(core::time::Duration::from_millis(2));
        report("start", 0, 0).count(&place, &totals);
        report("stop", 0, 5).count(&place, &totals);
        assert_eq!(of(&totals.nanoseconds), 0);
        report("stop", 2, 7).count(&place, &totals);
        assert!(of(&totals.nanoseconds) >= 2_000_000);
        // This collection began before the library counted collections, so it is counted without its duration.
        report("stop", 1, 100).count(&place, &totals);
        assert_eq!(totals.collections.each_ref().map(of), [1, 1, 1]);
        assert_eq!(of(&totals.collected), 112);
    }

    #[test]
    fn the_list_is_looked_at_where_modules_are_imported() {
        assert!(wants(b"import") && wants(b"open") && !wants(b"exec"));
    }

    #[test]
    fn totals_are_written_by_generation() {
        let totals = CollectionTotals::new();
        let report = Report {
            starts: false,
            generation: 2,
            collected: 40,
            uncollectable: 2,
        };
        totals.add(&report, 1_234_567);
        totals.add(&report, 1000);
        assert_eq!(
            totals.to_string(),
            "0 of gen0, 0 of gen1, 2 of gen2, 1.235 ms; 80 objects collected, 4 uncollectable"
        );
    }
}
