//! Garbage collections: a C function among `gc.callbacks`, once in each interpreter.

use core::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::api::{MethodDef, Raw, VARARGS};
use super::object::{Object, Python};
use super::threads;
use crate::capture::marks::{Name, Pushed};
use crate::errno::Kept;

/// Generations that have a name of their own; a later one counts as the last.
const GENERATIONS: usize = 3;

/// Collections by generation, and what they did, since the first interpreter was attached to.
pub static TOTALS: Totals = Totals {
    collections: [const { AtomicU64::new(0) }; GENERATIONS],
    collected: AtomicU64::new(0),
    uncollectable: AtomicU64::new(0),
    nanoseconds: AtomicU64::new(0),
};

pub struct Totals {
    pub collections: [AtomicU64; GENERATIONS],
    /// Objects that were freed.
    pub collected: AtomicU64,
    /// Objects that were found, but could not be freed.
    pub uncollectable: AtomicU64,
    pub nanoseconds: AtomicU64,
}

struct Names {
    range: [Name; GENERATIONS],
    collected: [Name; GENERATIONS],
    uncollectable: [Name; GENERATIONS],
}

static NAMES: OnceBox<Option<Names>> = OnceBox::new();

/// A collection that is under way.
pub struct Collecting {
    since: u64,
    range: Option<Pushed>,
}

impl Collecting {
    /// Gives its range up without ending it: it is another process's.
    pub fn forget(self) {
        if let Some(range) = self.range {
            range.forget();
        }
    }
}

/// Has the collections of the interpreter told. None if it has no `gc` to ask.
pub fn install(py: Python<'_>) -> Option<()> {
    static CALLBACK: MethodDef = MethodDef::new(c"tllmprof_gc", callback, VARARGS);
    NAMES.get_or_init(|| Box::new(Names::new()));
    let callbacks = py.import(c"gc")?.attr(c"callbacks")?;
    let function = py.function(&CALLBACK)?;
    // SAFETY: both references are owned; the list takes one of its own.
    let failed = unsafe { (py.api.list_append)(callbacks.raw(), function.raw()) };
    (failed == 0).then_some(())
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
unsafe extern "C" fn callback(_: Raw, args: Raw) -> Raw {
    let _errno = Kept::new();
    // SAFETY: Python calls this with the GIL, as a function that was installed where there is an
    // API, with a tuple of arguments.
    unsafe {
        let Some(api) = super::api() else {
            return core::ptr::null_mut();
        };
        let py = Python::assume(api);
        if !super::gate::is_closed()
            && let Some(args) = py.share(args)
        {
            py.quietly(|_| told(&args));
        }
        py.none()
    }
}

fn told(args: &Object<'_>) -> Option<()> {
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
    // SAFETY: the cell is the calling thread's own, and nothing below comes back here.
    let collecting = unsafe { &mut *thread.collecting.get() };
    let names = NAMES.get().and_then(Option::as_ref);
    if phase.as_text()? == "start" {
        *collecting = Some(Collecting {
            range: names.map(|names| names.range[generation].push()),
            since: super::now(),
        });
        return Some(());
    }
    let Collecting { since, range } = collecting.take()?;
    let took = super::now().saturating_sub(since);
    let (collected, uncollectable) = (number(c"collected"), number(c"uncollectable"));
    drop(range);
    if let Some(names) = names {
        names.collected[generation].mark(collected);
        if uncollectable > 0 {
            names.uncollectable[generation].mark(uncollectable);
        }
    }
    let add = |total: &AtomicU64, value| total.fetch_add(value, Ordering::Relaxed);
    add(&TOTALS.collections[generation], 1);
    add(&TOTALS.collected, collected);
    add(&TOTALS.uncollectable, uncollectable);
    add(&TOTALS.nanoseconds, took);
    Some(())
}
