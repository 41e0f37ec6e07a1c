//! The built-in record (`TLLMPROF_TRACE`): a file into which the threads of the profiled process write
//! events. The file is mapped into memory, so that it stays readable even if the process is killed.
//!
//! The module [`file`] creates and grows the file, and [`space`] divides it into chunks. [`writers`] writes each
//! thread's events into the thread's own chunk. [`facts`] writes the data that are written once per process.
//! [`iterations`] records iterations inside and outside windows, and [`gpu`] the GPU times of iterations. Events
//! are recorded inside windows ([`is_recording`]). Outside windows only [`flight`] records events. This crate does not
//! decide what counts as a step.

mod arena;
mod bounded;
mod clock;
mod facts;
mod failure;
mod file;
mod flight;
pub mod gpu;
mod groups;
pub mod host_functions;
mod iterations;
mod keep;
mod pace;
mod path_of_file;
mod quiet;
pub mod ranges;
mod reuse;
pub mod ring;
mod space;
mod state;
#[cfg(test)]
mod tests;
pub mod times;
mod uncertain;
mod usage;
pub mod watch;
mod writers;

use core::sync::atomic::Ordering;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use once_cell::race::OnceBox;
use tllmprof_calls::CALLS;
use tllmprof_config::{Placeholders, Settings};
use tllmprof_platform::{ids, lifecycle};

pub use tllmprof_record::{
    Batch, CommunicatorId, Counter, Edge, Ended, Event, GroupRank, Member, NO_STRING, RangeKind,
    StringId, SystemCall, Taken, Task, ThreadState, What,
};
use tllmprof_session::SessionFacts;
pub use usage::{wait_begins, wait_ends};

pub use clock::{ticks, ticks_per_ns};
pub use facts::{expert_loads, thread_name, write_rank, write_rule};
pub use flight::{keeps_span, span_begins};
pub use groups::{are_parts_open, communicator, member, part, part_is_ready, split, write_group};
pub use iterations::{
    count_calls, iteration_begins, iteration_ends, open_iteration, probable_steps_replace_span,
    span_is_replaced, wants_calls, window_closes, window_opens, write_before,
};
pub use pace::median_ns;
pub use path_of_file::{host_name, may_write};
pub use space::{make_room, set_helper};
#[cfg(target_arch = "x86_64")] // used by the x86-64 assembler of the call wrappers
pub use state::LOOKS;
pub use state::{
    Looks, Missing, add, is_keeping, is_on, is_recording, is_wanted, look_for, looks_for, set,
};
pub use uncertain::step_is_seen;
pub use writers::strings::{LONGEST, Label, era, id_of, lasting_era, lasting_id_of};

use facts::keep_warning;
use file::{File, NameTaken};
use state::{HAS_FAILED, IS_ON, IS_WANTED, Keeps};
use tllmprof_platform::log;

lifecycle::global! {
    /// The function that threads run after launches of GPU work. [`at_launches`] registers it.
    #[fork(keep = "set once, at the first window")]
    static AT_LAUNCHES: OnceBox<fn()> = OnceBox::new();
}

/// Records an event of the calling thread if a window is open, or if the flight recorder keeps the latest iterations
/// outside windows.
#[inline]
pub fn event(start: u64, duration: u64, what: What) {
    if is_keeping() {
        writers::write(&Event::new(start, duration, what));
    }
}

/// Records a range or a function call of the calling thread that began at tick `since` in the window with number
/// `window` and ends now. `what` returns the content of its event. If that window has closed, the event ends with the
/// window. If another window has opened since then, nothing is recorded.
pub fn ended(window: u32, since: u64, what: impl FnOnce() -> What) {
    let now = ticks();
    if ranges::is_kept(window)
        && let Some(event) = ranges::event(window, since, what(), now)
    {
        writers::write(&event);
    }
}

/// Records the batch (requests and tokens) of `iteration`, which the calling thread has begun, if events are
/// recorded now.
pub fn batch(iteration: u64, batch: Batch) {
    times::batch_is(iteration, batch.phase());
    let iteration = iteration as u16;
    event(ticks(), 0, What::Batch { iteration, batch });
}

/// Records an event that belongs to a window, even if the window has closed in the meantime.
pub fn late(event: &Event) {
    if is_on() {
        writers::write_late(event);
    }
}

/// Records an event like [`late`], on a thread that is not the program's, such as a thread of CUPTI. The event's cost
/// does not count as time that the recorder takes on the program's threads.
pub fn late_for_free(event: &Event) {
    if is_on() {
        writers::write_late_for_free(event);
    }
}

/// Returns the number of windows opened, and how many of them are no longer in the record.
pub fn windows() -> (u64, u64) {
    space::header().map_or((0, 0), |header| {
        (
            header.get(Counter::Windows),
            header.get(Counter::WindowsDropped),
        )
    })
}

/// Records, like [`late`], an event that later events refer to, such as a name. The event can be referred to as long as
/// [`era`] returns the same number: if the record drops old windows, the number changes when a window opens.
pub fn latest(event: &Event) {
    if is_on() {
        writers::write_latest(event);
    }
}

/// Records a call that succeeded, like [`event`], in as few instructions as possible. Returns false without recording
/// anything if more has to be done, for example if the thread's chunk is full. The caller then calls [`call`].
#[inline(always)]
pub fn call_at_once(start: u64, until: u64, what: What) -> bool {
    // The end may be before the start, because the clock may jump backwards when a virtual machine
    // migrates.
    let took = until.saturating_sub(start);
    is_keeping()
        && took <= u64::from(u32::MAX)
        && writers::write_at_once(&Event::new(start, took, what))
}

/// Registers `act`, which a thread runs after each launch that it records with [`call`]. Launches that are recorded
/// with [`call_at_once`] do not run it. Only the first function that is registered is kept.
pub fn at_launches(act: fn()) {
    let _ = AT_LAUNCHES.set(Box::new(act));
}

/// Records a call that has returned, like [`event`]. If the call has launched GPU work, first runs the function that
/// [`at_launches`] registered.
pub fn call(start: u64, until: u64, failed: bool, what: What) {
    if is_keeping() {
        if let What::Call { row, .. } = what
            && CALLS
                .get(usize::from(row))
                .is_some_and(|call| call.kind.launches())
        {
            AT_LAUNCHES.get().into_iter().for_each(|act| act());
        }
        let mut event = Event::new(start, until.saturating_sub(start), what);
        event.failed = failed;
        writers::write_aside(&event);
    }
}

/// Stores which recordings the settings request. Called when the library is loaded.
pub fn start(settings: &Settings) {
    // Without a record, the sums of `watch` are in ticks, too. The rate of the ticks must be known for them.
    if is_asked_for(settings) || watch::is_wanted(settings) {
        clock::start();
    }
    watch::start(settings);
    gpu::start(settings.gpu_times);
    ring::start(settings);
    if is_asked_for(settings) {
        IS_WANTED.store(true, Ordering::Relaxed);
        flight::start(settings);
        keep::start(settings);
        if settings.latest.is_some() || settings.keep.is_some() {
            reuse::want(settings.latest.is_some());
        }
        log::keep(keep_warning);
    }
    if is_asked_for(settings) || ring::is_wanted() {
        path_of_file::start();
    }
}

/// Ends the flight recorder, which keeps the latest iterations, if it was to last only until the first window. Called
/// when a planned window opens (not one that a user requests from the running process).
pub fn planned_opens(settings: &Settings) {
    if settings.flight.is_none() {
        flight::is_over();
    }
}

/// Ends the flight recorder, which keeps the latest iterations, unless `TLLMPROF_FLIGHT` asks for it. Called when it is
/// known that this process opens no planned window, because the settings select other ranks.
pub fn plans_none(settings: &Settings) {
    planned_opens(settings);
    if settings.flight.is_none() {
        flight::ends(false);
    }
    watch::planned_has_closed(settings);
}

/// Returns the number of iterations outside windows that the flight recorder has kept in the record. To be called when
/// the process ends, after [`ends`].
pub fn latest_left() -> u64 {
    flight::left()
}

/// The amount of data that a record lacks because it could not grow any more: its disk was full, or it reached a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostData {
    /// Number of iterations inside windows.
    pub iterations: u64,
    /// Number of events of all kinds.
    pub events: u64,
}

/// Returns what the record lacks; `None` if it has all events, or lacks some for another reason. To be called when the
/// process ends, before [`finish`].
pub fn lost() -> Option<LostData> {
    writers::count_dropped();
    let events = space::header()?.get(Counter::EventsDropped);
    (space::ends_early() && events > 0).then(|| LostData {
        iterations: iterations::unkept(),
        events,
    })
}

/// Returns true if the settings ask for a record and this process may write one. May be called before [`start`].
pub fn is_asked_for(settings: &Settings) -> bool {
    settings.trace.is_some() && may_write()
}

/// Returns the reason why there is no record. To be called only if there is none.
pub fn missing(settings: &Settings) -> Missing {
    Missing::why(settings.trace.is_some() && !settings.trace_on_demand)
}

/// Returns the path of the record, if one has begun. Allocates.
pub fn path() -> Option<PathBuf> {
    is_on().then(space::path).flatten()
}

/// Creates the record's file and writes the known data about the process. Called once per process, with no
/// lock held and not from inside a hooked function.
pub fn begin(settings: &Settings, facts: &SessionFacts<'_>) {
    let Some(template) = &settings.trace else {
        return;
    };
    let host = host_name();
    let place = Placeholders {
        pid: ids::process().cast_unsigned(),
        rank: facts.rank.map(|ranked| ranked.rank),
        host: &host,
    };
    let path = path_of_file::fill(template, &place);
    ring::begin(settings);
    if let Some(rank) = place.rank {
        ring::set_rank(rank);
    }
    let refuse = |failure| {
        HAS_FAILED.store(true, Ordering::Relaxed);
        log::say!(Warn, "no record at {}: {failure}", path.display());
    };
    let begun = File::create(&path, place.pid)
        .and_then(|file| space::begin(file, settings.trace_max, settings.keep.is_some()));
    let header = match begun {
        Ok(header) => header,
        Err(failure) => return refuse(failure),
    };
    let parent = std::os::unix::process::parent_id();
    let kind = clock::choose();
    let now = clock::anchor();
    let id = now.unix_ns ^ u64::from(place.pid) << 32;
    header.begin(id, place.pid, parent, kind);
    if let Some(first) = clock::first() {
        header.anchor(first);
    }
    header.anchor(now);
    header.snapshot();
    // `publish` gives the file its name. A process that is killed before this line leaves no file. A process that is
    // killed after this line leaves a readable record.
    match space::publish() {
        Ok((used, taken)) => report_taken(&path, &used, taken),
        Err(failure) => return refuse(failure),
    }
    writers::lasting::begin(settings.keep.map(|_| settings.trace_max));
    facts::write(settings, facts, host.as_bytes());
    iterations::start();
    keep::begin(settings.trace_max);
    IS_ON.store(true, Ordering::Release);
    facts::write_pending();
    groups::write_pending();
    flight::begin();
}

/// Logs that the record was created at `used` instead of `path`, or that an earlier record was renamed to
/// free the name.
fn report_taken(path: &Path, used: &Path, taken: Option<NameTaken>) {
    let (path, used) = (path.display(), used.display());
    match taken {
        None => {}
        Some(NameTaken::ByEarlier(kept)) => {
            let kept = kept.display();
            log::say!(
                Info,
                "the record is {used}: an earlier record had this name, and is kept as {kept}"
            );
        }
        Some(NameTaken::ByAnother) => {
            log::say!(
                Info,
                "the record is {used}: {path} is the record of another process"
            );
        }
    }
}

/// Ends the open iteration and the open window, because the process ends after `iterations` iterations. From here on
/// only GPU times are recorded. Allocates no memory.
pub fn ends(iterations: u64) {
    if is_on() {
        iterations::finish(iterations);
        state::keep(Keeps::Window, false);
    }
}

/// Ends the record: no event is written after this. Allocates no memory.
pub fn finish(ended: Ended) {
    ring::finish(ended);
    if !IS_ON.swap(false, Ordering::AcqRel) {
        return;
    }
    writers::count_dropped();
    keep::finish();
    let length = space::finish();
    if let Some(header) = space::header() {
        header.anchor(clock::anchor());
        header.finish(ended, length);
    }
}
