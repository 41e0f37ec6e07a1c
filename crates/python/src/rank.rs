//! Finds this process's rank in Python: the rank in the world of `torch.distributed` (the group of all ranks), or the
//! rank that an engine assigned to this process.
//!
//! The rank is read from modules' dictionaries, which runs no code of the program. The reading thread must hold the
//! GIL. If the thread that needs the rank holds the GIL, that thread reads the rank. Otherwise Python's main thread is
//! asked to read it soon. A thread that enters a Python function whose calls are steps reads the rank, too. The look-up
//! imports no module, and no thread waits for it.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::ffi::CString;

use tllmprof_config::{RankSource, Ranked, Settings};
use tllmprof_engines::{From, REPLICAS, Replicas, ValuePath};
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_session::Rank;
use tllmprof_sync::Published;

use super::api::Api;
use super::attached;
use super::method::call_on_main_thread;
use super::object::{Object, Python};
use super::wants::wants;

/// Value of [`FOUND`]: no look-up has run yet.
const NOT_LOOKED: u8 = 0;
/// Value of [`FOUND`]: `torch.distributed` is not imported, and no engine has assigned a rank.
const NOTHING: u8 = 1;
/// Value of [`FOUND`]: `torch.distributed` is imported, but has no world, which is the group of all
/// ranks.
const NO_WORLD: u8 = 2;

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[restart(keep)]
    static KNOWN: Published<Ranked> = Published::none();
    /// The address of the world object (`torch.distributed`'s group of all ranks) from which the
    /// rank was read; 0 for none.
    #[fork(with = KNOWN)]
    #[restart(keep)]
    static WORLD: AtomicUsize = AtomicUsize::new(0);
    /// The address of the parent's world object. The child of a fork has a copy of this object, but
    /// a different rank.
    #[fork(with = KNOWN)]
    #[restart(keep)]
    static PARENTS: AtomicUsize = AtomicUsize::new(0);
    /// The reason why the last look-up of the rank found none: [`NOT_LOOKED`], [`NOTHING`] or [`NO_WORLD`].
    #[fork(reset)]
    #[restart(reset)]
    static FOUND: AtomicU8 = AtomicU8::new(NOT_LOOKED);
    /// True if Python's main thread has been asked to look up the rank and has not done so yet.
    #[fork(reset)]
    #[restart(reset)]
    static IS_PENDING: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the rank may have to be read from Python. The rank is needed for the record, for windows that only
/// some ranks open, and for the names of PyTorch's trace files. If the user sets the rank, Python is not needed.
pub(crate) fn is_asked_for(settings: &Settings) -> bool {
    let is_of_interest = settings.ranks.is_some() || settings.torch_trace.is_some();
    let has_windows = !settings.windows.is_empty();
    (settings.trace.is_some() || has_windows && is_of_interest)
        && std::env::var_os("TLLMPROF_RANK").is_none()
}

/// Returns the rank if it is known. Otherwise requests a look-up by a thread that holds the GIL. If the calling
/// thread holds the GIL, it looks up the rank now: `inside` runs the look-up in Python.
///
/// A destructor of a Python object that runs during the look-up may release the GIL. A thread that then takes the GIL
/// must not have to wait for this thread, so the caller must hold no lock.
pub(crate) fn rank(inside: impl FnOnce(fn(Python<'_>))) -> Rank {
    if let Some(ranked) = KNOWN.get() {
        return Rank::Known(*ranked);
    }
    let can_ask = |api: &Api| api.version.takes_pending_calls_to_the_end() || api.has_gil();
    let Some(api) = attached::api().filter(|api| wants().rank && api.runs() && can_ask(api)) else {
        return Rank::None;
    };
    if api.has_gil() {
        inside(look);
    } else if !IS_PENDING.swap(true, Ordering::AcqRel) {
        let ask = call_on_main_thread(api, |py| {
            IS_PENDING.store(false, Ordering::Release);
            py.quietly(look);
        });
        if ask.is_err() {
            IS_PENDING.store(false, Ordering::Release);
        }
    }
    match (KNOWN.get(), FOUND.load(Ordering::Acquire)) {
        (Some(ranked), _) => Rank::Known(*ranked),
        (None, NOTHING) => Rank::None,
        (None, NO_WORLD) => Rank::Unknown("torch.distributed is not initialised"),
        (None, _) => Rank::NOT_ANSWERED,
    }
}

/// Looks up the rank unless it is known. Called when a thread enters a Python function whose calls are steps.
pub(crate) fn look_for(py: Python<'_>) {
    if wants().rank && KNOWN.get().is_none() {
        py.quietly(look);
    }
}

/// Returns the rank, and looks it up if necessary.
pub(crate) fn known_to(py: Python<'_>) -> Option<u64> {
    look_for(py);
    Some(KNOWN.get()?.rank)
}

fn look(py: Python<'_>) {
    let torch = py.imported(c"torch.distributed.distributed_c10d");
    let world = torch.as_ref().and_then(world);
    let ranked = match &world {
        Some(world) => in_world(py, world),
        None => in_replica(py),
    };
    if let Some(ranked) = ranked {
        WORLD.store(world.map_or(0, |world| world.addr()), Ordering::Relaxed);
        KNOWN.publish(None, ranked);
        return;
    }
    let found = if torch.is_some() { NO_WORLD } else { NOTHING };
    FOUND.store(found, Ordering::Release);
}

/// Returns the world, which is the group of all ranks, if this process created it.
pub(crate) fn world<'py>(torch: &Object<'py>) -> Option<Object<'py>> {
    let world = value(&value(torch, c"_world")?, c"_default_pg")?;
    let is_parents = world.addr() == PARENTS.load(Ordering::Relaxed);
    (!world.is_none() && !is_parents).then_some(world)
}

/// Returns this process's rank among all ranks of the job. `world` may have only the ranks of one replica of the
/// model.
fn in_world(py: Python<'_>, world: &Object<'_>) -> Option<Ranked> {
    let ask = |name| number(&world.attr(name)?.call(&[])?);
    let (rank, size) = (ask(c"rank")?, ask(c"size").filter(|size| *size > 0)?);
    let mut ranked = Ranked {
        rank,
        world_size: Some(size),
        source: RankSource::Torch,
    };
    if let Some((row, replica)) = replica(py)
        && has_own_world(py, row, replica, size)
    {
        ranked.rank = replica.checked_mul(size)?.checked_add(rank)?;
        let count = row.count.and_then(|count| number_at(py, count));
        ranked.world_size = count.and_then(|count| count.checked_mul(size));
        ranked.source = RankSource::TorchInReplica(row.engine);
    }
    Some(ranked)
}

/// Returns the number of the replica that the process belongs to, and the row of the process's engine in [`REPLICAS`].
/// A replica is one of several copies of the model.
pub(crate) fn replica(py: Python<'_>) -> Option<(&'static Replicas, u64)> {
    let mut rows = REPLICAS.iter();
    rows.find_map(|row| Some((row, number_at(py, row.index)?)))
}

/// Returns true if a world of `size` ranks has only the ranks of this replica, and not those of all replicas.
pub(crate) fn has_own_world(py: Python<'_>, row: &Replicas, replica: u64, size: u64) -> bool {
    let is = |place: Option<ValuePath>, is: &dyn Fn(u64) -> bool| {
        place.is_none_or(|place| number_at(py, place).is_some_and(is))
    };
    (replica > 0 || row.count.is_some())
        && is(row.count, &|count| count > 1)
        && is(row.size, &|ranks| ranks == size)
        && is(row.share, &|shares| shares == 0)
}

/// Returns this process's rank among all ranks of the job, computed from the rank that an engine assigned to the
/// process within its replica of the model. Used if the process has no `torch.distributed` world.
fn in_replica(py: Python<'_>) -> Option<Ranked> {
    let (row, replica) = replica(py)?;
    let (rank, size) = (number_at(py, row.rank?)?, number_at(py, row.size?)?);
    Some(Ranked {
        rank: replica.checked_mul(size)?.checked_add(rank)?,
        world_size: (replica == 0).then_some(size),
        source: RankSource::Engine(row.engine),
    })
}

/// Returns the value of an integer that is not negative, and `None` for any other object.
pub(crate) fn number(object: &Object<'_>) -> Option<u64> {
    u64::try_from(object.as_int()?).ok()
}

pub(crate) fn number_at(py: Python<'_>, place: ValuePath) -> Option<u64> {
    number(&at(py, place)?)
}

/// Returns the object to which a path of attributes and dictionary entries leads.
fn at<'py>(py: Python<'py>, place: ValuePath) -> Option<Object<'py>> {
    let mut names = place.names.iter();
    let mut object = match place.from {
        From::Module(module) => py.imported(&CString::new(module).ok()?)?,
        From::Arguments => argument(py, names.next()?)?,
    };
    for name in names {
        object = value(&object, &CString::new(*name).ok()?)?;
    }
    Some(object)
}

/// Returns the argument `name` of the function with which `multiprocessing` started this process.
fn argument<'py>(py: Python<'py>, name: &str) -> Option<Object<'py>> {
    let module = py.imported(c"multiprocessing.process")?;
    let process = value(&module, c"_current_process")?;
    let by_name = CString::new(name).ok()?;
    let named = value(&process, c"_kwargs").and_then(|named| named.item(&by_name));
    named.or_else(|| {
        let code = value(&process, c"_target")?.code()?;
        let names = code.attr(c"co_varnames")?;
        let place = names
            .elements()
            .position(|known| known.as_text() == Some(name))?;
        value(&process, c"_args")?.elements().nth(place)
    })
}

/// Returns the value that an object has under a name: its own attribute, its entry if it is a dictionary, or an
/// attribute that its class defines, such as one in `__slots__`.
pub(crate) fn value<'py>(object: &Object<'py>, name: &CStr) -> Option<Object<'py>> {
    let own = object.own_attrs().and_then(|own| own.item(name));
    let is_of_class = || object.class()?.class_attr(name.to_str().ok()?);
    own.or_else(|| object.item(name))
        .or_else(|| is_of_class().and_then(|_| object.attr(name)))
}

/// Forgets the rank in the child of a fork, which has a different rank. The child also has a copy of the parent's
/// `torch.distributed` world. The address of this world is stored, so that the child does not read its rank from it.
fn in_child(_: &OnlyThread) {
    if KNOWN.take().is_some() {
        PARENTS.store(WORLD.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}
