//! Finds the groups of ranks that this process belongs to (tensor-, pipeline-, expert- and data-parallel ones), and
//! writes them into the record. The groups are read from variables of the engine, or from the list of groups that
//! `torch.distributed` has.
//!
//! Groups are read in the same way as the rank ([`rank`]): from modules' dictionaries, by a thread that holds the GIL.
//! The engine creates groups while it loads a model. So the search runs each time a window opens, until it has found
//! some groups or has run [`MAX_SEARCHES`] times.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::ffi::CString;

use tllmprof_engines::{DESCRIBED_GROUPS, ENGINE_GROUPS, GROUPS};
use tllmprof_platform::lifecycle;
use tllmprof_recorder::{self as recorder, GroupRank};

use super::attached;
use super::method::call_on_main_thread;
use super::object::{Object, Python};
use super::rank::{self, number, value};
use super::wants::wants;

/// The maximum number of searches for groups of ranks in a process.
const MAX_SEARCHES: u32 = 16;

lifecycle::global! {
    stage: Sinks;

    /// True if a search for groups of ranks was requested and has not run yet.
    #[fork(reset)]
    #[restart(reset)]
    static ARE_WANTED: AtomicBool = AtomicBool::new(false);
    /// Number of searches so far that found no groups. The number is set to [`MAX_SEARCHES`] once groups were found, so
    /// that no further search runs.
    #[fork(reset)]
    #[restart(reset)]
    static LOOKED: AtomicU32 = AtomicU32::new(0);
}

/// Requests a search for groups of ranks. If the calling thread holds the GIL, it searches now: `inside` runs the
/// search in Python. Otherwise the search is made by Python's main thread, or by the first thread that enters a
/// Python function whose calls are steps.
pub(crate) fn ask(inside: impl FnOnce(fn(Python<'_>))) {
    if !(recorder::is_on() && wants().rank && LOOKED.load(Ordering::Relaxed) < MAX_SEARCHES) {
        return;
    }
    let Some(api) = attached::api().filter(|api| api.runs()) else {
        return;
    };
    if api.has_gil() {
        inside(look);
    } else if !ARE_WANTED.swap(true, Ordering::AcqRel)
        && api.version.takes_pending_calls_to_the_end()
    {
        // If Python accepts no more pending calls, the search is made by the next thread that enters a Python function
        // whose calls are steps.
        let _ = call_on_main_thread(api, look_for);
    }
}

/// Searches for groups if a search was requested.
pub(crate) fn look_for(py: Python<'_>) {
    if ARE_WANTED.load(Ordering::Relaxed) {
        py.quietly(look);
    }
}

fn look(py: Python<'_>) {
    ARE_WANTED.store(false, Ordering::Release);
    let found = find(py);
    for group in &found {
        recorder::write_group(group);
    }
    if found.is_empty() {
        LOOKED.fetch_add(1, Ordering::Relaxed);
    } else {
        LOOKED.store(MAX_SEARCHES, Ordering::Relaxed);
    }
}

/// Returns the groups that exist now, in the order in which reports show them.
pub(crate) fn find(py: Python<'_>) -> Vec<GroupRank<&'static str>> {
    let mut found = Vec::new();
    let torch = py.imported(c"torch.distributed.distributed_c10d");
    if let Some(world) = torch.as_ref().and_then(rank::world) {
        let place = Worldly::new(py, &world);
        of_engine(py, place, &mut found);
        if let (Some(torch), true) = (&torch, found.is_empty()) {
            described(py, torch, place, &mut found);
        }
    }
    of_replica(py, &mut found);
    found.sort_by_key(|group| GROUPS.iter().position(|name| *name == group.name));
    found
}

/// The process's position in its `torch.distributed` world, which is the group of all ranks that `torch.distributed`
/// knows.
#[derive(Clone, Copy)]
struct Worldly {
    rank: Option<u64>,
    /// Number of ranks of the job that come before the first rank of this world. It is not 0 if each replica of the
    /// model has a world of its own, and earlier replicas exist. `None` if unknown.
    ahead: Option<u64>,
}

impl Worldly {
    fn new(py: Python<'_>, world: &Object<'_>) -> Self {
        let ask = |name| number(&world.attr(name)?.call(&[])?);
        let size = ask(c"size");
        let ahead = match (rank::replica(py), size) {
            (None, _) => Some(0),
            (Some((row, replica)), Some(size)) if rank::has_own_world(py, row, replica, size) => {
                replica.checked_mul(size)
            }
            (Some(_), size) => size.map(|_| 0),
        };
        Self {
            rank: ask(c"rank"),
            ahead,
        }
    }

    /// Returns the entry for a group of `size` ranks, in which this process has the rank `rank`. `first` is the world
    /// rank of the group's first member, if known. Returns `None` for a group of a single rank, or if `rank` is not
    /// less than `size`.
    fn group(
        self,
        name: &'static str,
        rank: u64,
        size: u64,
        first: Option<u64>,
    ) -> Option<GroupRank<&'static str>> {
        let first = first.zip(self.ahead);
        (size > 1 && rank < size).then_some(GroupRank {
            name,
            rank: u32::try_from(rank).ok()?,
            size: Some(u32::try_from(size).ok()?),
            first: first.and_then(|(first, ahead)| first.checked_add(ahead)),
        })
    }
}

/// Adds to `found` the groups that an engine stores in variables of its modules.
fn of_engine(py: Python<'_>, place: Worldly, found: &mut Vec<GroupRank<&'static str>>) {
    for row in ENGINE_GROUPS {
        let module = CString::new(row.module).ok();
        let Some(module) = module.and_then(|module| py.imported(&module)) else {
            continue;
        };
        let groups = row.groups.iter().filter_map(|(name, variable)| {
            let group = value(&module, &CString::new(*variable).ok()?)?;
            let rank = number(&value(&group, c"rank_in_group")?)?;
            let size = number(&value(&group, c"world_size")?)?;
            let ranks = py.c().as_tuple(&value(&group, c"ranks")?);
            let first = ranks.and_then(|ranks| number(&ranks.elements().next()?));
            place.group(name, rank, size, first)
        });
        found.extend(groups);
    }
}

/// Adds to `found` the groups of `torch.distributed` that this process belongs to and whose description is in
/// [`DESCRIBED_GROUPS`]. Of several groups with the same name, only the one that was created first is added.
fn described(
    py: Python<'_>,
    torch: &Object<'_>,
    place: Worldly,
    found: &mut Vec<GroupRank<&'static str>>,
) {
    let all = value(torch, c"_pg_group_ranks");
    let (Some(all), Some(own)) = (all, place.rank) else {
        return;
    };
    let Some(own) = i64::try_from(own).ok().and_then(|own| py.int(own)) else {
        return;
    };
    let Some(groups) = py.c().as_tuple(&all) else {
        return;
    };
    for group in groups.elements() {
        let described = group.attr(c"group_desc");
        let described = described.as_ref().and_then(Object::as_text);
        let row = DESCRIBED_GROUPS.iter().find(|row| Some(row.1) == described);
        let Some((name, ..)) = row else { continue };
        if found.iter().any(|known| known.name == *name) {
            continue;
        }
        let members = || {
            let ranks = all.find(&group)?;
            let rank = number(&ranks.find(&own)?)?;
            let (mut size, mut first) = (0, None);
            for one in py.c().as_tuple(&ranks)?.elements() {
                size += 1;
                if ranks.find(&one).and_then(|place| number(&place)) == Some(0) {
                    first = number(&one);
                }
            }
            place.group(name, rank, size, first)
        };
        found.extend(members());
    }
}

/// Adds to `found` the data-parallel group (`DP`), in which each replica of the model is a rank, unless `found` already
/// has a group with this name.
fn of_replica(py: Python<'_>, found: &mut Vec<GroupRank<&'static str>>) {
    const NAME: &str = "DP";
    if found.iter().any(|group| group.name == NAME) {
        return;
    }
    let Some((row, replica)) = rank::replica(py) else {
        return;
    };
    let count = row.count.and_then(|count| rank::number_at(py, count));
    let size = count.and_then(|count| u32::try_from(count).ok());
    let is_one_of_several = replica > 0 || size.is_some_and(|size| size > 1);
    if let (true, Ok(rank)) = (is_one_of_several, u32::try_from(replica)) {
        found.push(GroupRank {
            name: NAME,
            rank,
            size: size.filter(|size| rank < *size),
            first: None,
        });
    }
}
