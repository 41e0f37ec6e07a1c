//! The code objects that are marked.
//!
//! Read at calls, without a lock: open addressing, the addresses of code objects apart from what
//! they mean. References are kept to the objects, so that no other comes to lie where one was.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

use super::function::{Entered, Function};
use crate::object::{Held, Object, Python};
use crate::version::Cells;
use tllmprof_platform::lifecycle;
use tllmprof_sync::hash::spread;
use tllmprof_sync::{Lock, Published};

/// What follows the calls of a code object.
#[derive(Clone, Copy)]
pub enum Watch {
    Function(&'static Function),
    Calls(&'static dyn Calls),
}

/// Follows the calls of code objects, in the thread that calls, which has the GIL and no
/// exception set.
pub trait Calls: Sync {
    /// A call begins with `first` as its first positional argument; or a generator or coroutine that
    /// has yielded goes on, and there is none.
    fn enters(&self, py: Python<'_>, first: Option<&Object<'_>>, goes_on: bool) -> Entered;

    /// The call has ended, by returning or raising, or has only yielded.
    fn leaves(&self, py: Python<'_>, entered: Entered, has_ended: bool);

    /// The thread has ended in the midst of a call. There may be no interpreter any more.
    fn abandons(&self, entered: Entered) {
        drop(entered);
    }
}

/// Where a call's first argument is found.
pub enum First {
    /// Nowhere, or nobody wants it.
    Nowhere,
    /// This variable of the frame.
    Local(usize),
    /// In the cell that is this variable of the frame.
    Cell(usize),
    /// The variable with this name.
    Named(Held),
}

/// What is known of a marked code object. Never freed.
pub struct Mark {
    code: Held,
    watch: Watch,
    /// It makes generators, coroutines or asynchronous generators.
    pub yields: bool,
    pub first: First,
    /// The number of its interpreter.
    interpreter: i64,
}

impl Mark {
    /// What `code` shall mean. None if that is no code object.
    pub fn of(py: Python<'_>, code: &Object<'_>, watch: Watch) -> Option<Self> {
        /// `CO_GENERATOR`, `CO_COROUTINE`, `CO_ASYNC_GENERATOR`.
        const YIELDS: i64 = 0x20 | 0x80 | 0x200;
        if !code.is_code() {
            return None;
        }
        let flags = code.attr(c"co_flags")?.as_int()?;
        let yields = flags & YIELDS != 0;
        let first = match watch {
            Watch::Function(_) => First::Nowhere,
            Watch::Calls(_) => First::of(py, code, yields).unwrap_or(First::Nowhere),
        };
        Some(Self {
            code: Held::new(code.clone()),
            watch,
            yields,
            first,
            interpreter: py.interpreter(),
        })
    }

    pub fn enters<'py>(
        &self,
        py: Python<'py>,
        goes_on: bool,
        first: impl FnOnce(Python<'py>) -> Option<Object<'py>>,
    ) -> Entered {
        match self.watch {
            Watch::Function(function) => function.enters(py, goes_on),
            Watch::Calls(calls) => py.quietly(|py| {
                let first = first(py);
                calls.enters(py, first.as_ref(), goes_on)
            }),
        }
    }

    /// As [`Mark::enters`], where nothing can be kept of the call.
    pub fn enters_unkept(&self, py: Python<'_>, goes_on: bool) {
        if let Watch::Function(function) = self.watch {
            function.enters_unkept(py, goes_on);
        }
    }

    pub fn leaves(&self, py: Python<'_>, entered: Entered, has_ended: bool) {
        match self.watch {
            Watch::Function(function) => function.leaves(py, entered, has_ended),
            Watch::Calls(calls) if !entered.is_unkept() => {
                py.quietly(|py| calls.leaves(py, entered, has_ended));
            }
            Watch::Calls(_) => {}
        }
    }

    /// The thread has ended in the midst of a call.
    pub fn abandons(&self, entered: Entered) {
        match self.watch {
            Watch::Function(function) => function.abandons(entered),
            Watch::Calls(calls) => calls.abandons(entered),
        }
    }

    /// The function whose calls it follows, if it is one that was asked for by its name.
    pub const fn function(&self) -> Option<&'static Function> {
        match self.watch {
            Watch::Function(function) => Some(function),
            Watch::Calls(_) => None,
        }
    }

    fn is_alike(&self, other: &Self) -> bool {
        match (self.watch, other.watch) {
            (Watch::Function(one), Watch::Function(two)) => core::ptr::eq(one, two),
            (Watch::Calls(one), Watch::Calls(two)) => core::ptr::addr_eq(one, two),
            _ => false,
        }
    }

    /// Gives its references up. It is in no table any more, and the thread is in its interpreter.
    fn release(&self, py: Python<'_>) {
        drop(self.code.take(py));
        if let First::Named(name) = &self.first {
            drop(name.take(py));
        }
    }
}

impl First {
    fn of(py: Python<'_>, code: &Object<'_>, yields: bool) -> Option<Self> {
        if code.attr(c"co_argcount")?.as_int()? == 0 {
            return None;
        }
        let name = code.attr(c"co_varnames")?.elements().next()?;
        let place = py.api.version.cells();
        if place == Cells::ByName {
            return Some(Self::Named(Held::new(name)));
        }
        let text = name.as_text()?;
        let cells = code.attr(c"co_cellvars")?;
        let cell = cells
            .elements()
            .position(|cell| cell.as_text() == Some(text));
        let Some(cell) = cell else {
            return Some(Self::Local(0));
        };
        Some(match place {
            Cells::AmongLocals if yields => Self::Cell(0),
            Cells::AmongLocals | Cells::ByName => Self::Local(0),
            Cells::BehindLocals => {
                let locals = code.attr(c"co_nlocals")?.as_int()?;
                Self::Cell(usize::try_from(locals).ok()? + cell)
            }
        })
    }
}

struct Slot {
    /// The address of a code object, `FREE` or `GONE`.
    code: AtomicUsize,
    mark: Published<Mark>,
}

const FREE: usize = 0;
/// One was here; others may lie behind it.
const GONE: usize = 1;

/// Its size is a power of two.
struct Table(Box<[Slot]>);

lifecycle::global! {
    stage: Sinks;

    /// The table; none before the first mark. Those that it replaces are never freed, as they may be
    /// being read: together they are smaller than it.
    #[fork(keep = "code objects are copied as they are")]
    #[restart(by = clear)]
    static TABLE: Published<Table> = Published::none();
    /// Held by whoever changes the table. Nothing of Python's is called under it.
    #[fork(free)]
    #[restart(keep)]
    static CHANGING: Lock<()> = Lock::new(());
}
const PATIENCE: Duration = Duration::from_secs(1);
const SMALLEST: usize = 64;

impl Table {
    fn new(size: usize) -> Self {
        let slot = || Slot {
            code: AtomicUsize::new(FREE),
            mark: Published::none(),
        };
        Self(core::iter::repeat_with(slot).take(size).collect())
    }

    /// The slots where `code` may lie, in the order in which they are filled.
    #[inline]
    fn places(&self, code: usize) -> impl Iterator<Item = &Slot> {
        let first = spread(code as u64);
        let mask = self.0.len() - 1;
        (0..self.0.len()).filter_map(move |step| self.0.get((first + step) & mask))
    }

    #[inline]
    fn find(&self, code: usize) -> Option<&Slot> {
        for slot in self.places(code) {
            let there = slot.code.load(Ordering::Acquire);
            if there == code {
                return Some(slot);
            }
            if there == FREE {
                break;
            }
        }
        None
    }

    fn insert(&self, code: usize, mark: &'static Mark) {
        let mut places = self.places(code);
        // One that is gone is not used again: a reader may have seen its address already.
        if let Some(slot) = places.find(|slot| slot.code.load(Ordering::Relaxed) == FREE) {
            slot.mark.set(Some(mark));
            slot.code.store(code, Ordering::Release);
        }
    }

    fn marks(&self) -> impl Iterator<Item = (&Slot, &'static Mark)> {
        self.0.iter().filter_map(|slot| {
            let is_there = slot.code.load(Ordering::Acquire) > GONE;
            is_there.then(|| Some((slot, slot.mark.get()?)))?
        })
    }

    fn is_crowded(&self) -> bool {
        let used = |slot: &&Slot| slot.code.load(Ordering::Relaxed) != FREE;
        (self.0.iter().filter(used).count() + 1) * 2 > self.0.len()
    }
}

/// What the code object at that address means, if it is marked.
#[inline]
pub fn find(code: usize) -> Option<&'static Mark> {
    TABLE.get()?.find(code)?.mark.get()
}

/// Adds a mark. False if its code object means something else already.
pub fn add(py: Python<'_>, mark: Mark) -> bool {
    let code = mark.code.addr();
    let changing = CHANGING.lock_for(PATIENCE);
    let there = find(code);
    if changing.is_none() || there.is_some() {
        drop(changing);
        mark.release(py);
        return there.is_some_and(|there| there.is_alike(&mark));
    }
    let table = match TABLE.get() {
        Some(table) if !table.is_crowded() => table,
        old => grow(old),
    };
    table.insert(code, Box::leak(Box::new(mark)));
    true
}

fn grow(old: Option<&'static Table>) -> &'static Table {
    let count = old.map_or(0, |old| old.marks().count());
    let new = Table::new(((count + 1) * 4).next_power_of_two().max(SMALLEST));
    for (slot, mark) in old.into_iter().flat_map(Table::marks) {
        let code = slot.code.load(Ordering::Relaxed);
        new.insert(code, mark);
    }
    let new: &'static Table = Box::leak(Box::new(new));
    TABLE.set(Some(new));
    new
}

/// Takes the marks of an interpreter away that `is_meant`, and gives their references up.
pub fn remove(py: Python<'_>, is_meant: impl Fn(Watch) -> bool) {
    let number = py.interpreter();
    let mut gone = Vec::new();
    if let Some(_changing) = CHANGING.lock_for(PATIENCE)
        && let Some(table) = TABLE.get()
    {
        for (slot, mark) in table.marks() {
            if mark.interpreter == number && is_meant(mark.watch) {
                slot.code.store(GONE, Ordering::Release);
                gone.push(mark);
            }
        }
    }
    for mark in gone {
        mark.release(py);
    }
}

/// Interpreters start anew: the marked objects have gone with the old ones.
fn clear() {
    if let Some(_changing) = CHANGING.lock_for(PATIENCE) {
        TABLE.set(None);
    }
}
