//! The built-in record (`TLLMPROF_TRACE`): a file that the process's own threads write events into,
//! through memory, so that it is whole whatever ends the process.
//!
//! [`file`] is what is known of the file, [`space`] its room, [`writers`] the threads' chunks in it,
//! [`facts`] what is written once, [`iterations`] what happens outside windows and inside, [`gpu`] what
//! the GPU was at work for it. Inside
//! windows alone events are kept ([`is_recording`]). Nothing here asks what a step is.

mod arena;
mod bounded;
mod clock;
mod facts;
mod failure;
mod file;
mod flight;
pub mod gpu;
mod groups;
mod iterations;
mod keep;
mod pace;
mod quiet;
pub mod ranges;
mod reuse;
mod space;
mod state;
#[cfg(test)]
mod tests;
pub mod times;
mod usage;
pub mod watch;
mod writers;

use core::sync::atomic::Ordering;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use once_cell::race::OnceBox;
use tllmprof_config::{Place, Settings};
use tllmprof_platform::{ids, lifecycle};

pub use tllmprof_record::{
    Batch, CommunicatorId, Counter, Edge, Ended, Event, GroupRank, Member, NO_STRING, RangeKind,
    StringId, Taken, ThreadState, What,
};
use tllmprof_session::Facts;
pub use usage::{wait_begins, wait_ends};

pub use clock::{ticks, ticks_per_ns};
pub use facts::{expert_loads, thread_name, write_rank, write_rule};
pub use groups::{are_parts_open, communicator, part, part_is_ready, split, write_group};
pub use iterations::{
    count_calls, iteration_begins, iteration_ends, open_iteration, wants_calls, window_closes,
    window_opens,
};
pub use pace::median_ns;
pub use space::{make_room, set_helper};
#[cfg(target_arch = "x86_64")] // its assembler asks
pub use state::LOOKS;
pub use state::{
    Looks, Missing, add, is_keeping, is_on, is_recording, is_wanted, look_for, looks_for, set,
};
pub use writers::strings::{LONGEST, Label, era, id_of, lasting_era, lasting_id_of};

use facts::keep_warning;
use file::{File, NameTaken};
use state::{HAS_FAILED, IS_ON, IS_WANTED, Keeps};
use tllmprof_platform::log;

lifecycle::global! {
    /// Where the process was when it began; relative paths are from there.
    #[fork(keep = "paths are from where the first process began")]
    static FOLDER: OnceBox<PathBuf> = OnceBox::new();
}

/// Keeps an event of the calling thread's, if a window is open or iterations outside windows are kept.
#[inline]
pub fn event(start: u64, duration: u64, what: What) {
    if is_keeping() {
        writers::write(&Event::new(start, duration, what));
    }
}

/// Keeps a range of the calling thread's that began at `since` in window `window`. One that was open
/// when its window closed ends with it.
pub fn ended(window: u32, since: u64, what: impl FnOnce() -> What) {
    let now = ticks();
    if ranges::is_kept(window)
        && let Some(event) = ranges::event(window, since, what(), now)
    {
        writers::write(&event);
    }
}

/// What is in the batch of `iteration`, which the calling thread has begun: kept where events are.
pub fn batch(iteration: u64, batch: Batch) {
    times::batch_is(iteration, batch.phase());
    let iteration = iteration as u16;
    event(ticks(), 0, What::Batch { iteration, batch });
}

/// Keeps an event of what was done inside a window, which may be closed by now.
pub fn late(event: &Event) {
    if is_on() {
        writers::write_late(event);
    }
}

/// How many windows have opened, and how many of these the record has no longer.
pub fn windows() -> (u64, u64) {
    space::header().map_or((0, 0), |header| {
        (
            header.get(Counter::Windows),
            header.get(Counter::WindowsDropped),
        )
    })
}

/// As [`late`], of an event that others refer to for as long as [`era`] is the same.
pub fn latest(event: &Event) {
    if is_on() {
        writers::write_latest(event);
    }
}

/// As [`event`], of a call that has succeeded, in as little code as may be: false and nothing where more than that is to
/// be done.
#[inline(always)]
pub fn call_at_once(start: u64, until: u64, what: What) -> bool {
    // A virtual machine that moves may find the counter behind.
    let took = until.saturating_sub(start);
    is_keeping()
        && took <= u64::from(u32::MAX)
        && writers::write_at_once(&Event::new(start, took, what))
}

/// As [`event`], of a call that has returned.
pub fn call(start: u64, until: u64, failed: bool, what: What) {
    if is_keeping() {
        let mut event = Event::new(start, until.saturating_sub(start), what);
        event.failed = failed;
        writers::write_aside(&event);
    }
}

/// Remembers what is asked for. For the constructor.
pub fn start(settings: &Settings) {
    watch::start(settings);
    gpu::start(settings.gpu_times);
    if is_asked_for(settings) {
        IS_WANTED.store(true, Ordering::Relaxed);
        flight::start(settings);
        keep::start(settings);
        if settings.flight.is_some() || settings.keep.is_some() {
            reuse::want(settings.flight.is_some());
        }
        log::keep(keep_warning);
        clock::start();
        if let Ok(folder) = std::env::current_dir() {
            let _ = FOLDER.set(Box::new(folder));
        }
    }
}

/// Whether there is to be a record, which may be asked before the constructor has run.
pub fn is_asked_for(settings: &Settings) -> bool {
    settings.trace.is_some() && may_write()
}

/// Why there is no record, where there is none.
pub fn missing(settings: &Settings) -> Missing {
    Missing::why(settings.trace.is_some() && !settings.trace_on_demand)
}

/// Whether files may be made here: not where the process has rights that its user has not.
pub fn may_write() -> bool {
    // SAFETY: takes no pointer.
    unsafe { libc::getauxval(libc::AT_SECURE) == 0 }
}

/// What the machine, or the container, is called.
pub fn host_name() -> OsString {
    OsString::from_vec(facts::host_name())
}

/// Where the record is, if one has begun. Allocates.
pub fn path() -> Option<PathBuf> {
    is_on().then(space::path).flatten()
}

/// Makes the file and writes what is known of the process. Once in a process, and no lock is held
/// meanwhile; not for a hook.
pub fn begin(settings: &Settings, facts: &Facts<'_>) {
    let Some(template) = &settings.trace else {
        return;
    };
    let host = facts::host_name();
    let place = Place {
        pid: ids::process().cast_unsigned(),
        rank: facts.rank.map(|ranked| ranked.rank),
        host: OsStr::from_bytes(&host),
    };
    let path = template.fill(&place, |name| std::env::var_os(name));
    let path = FOLDER
        .get()
        .map_or(path.clone(), |folder| folder.join(&path));
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
    // A process that is killed before this leaves nothing, and afterwards a record.
    match space::publish() {
        Ok((used, taken)) => report_taken(&path, &used, taken),
        Err(failure) => return refuse(failure),
    }
    writers::lasting::begin(settings.keep.map(|_| settings.trace_max));
    facts::write(settings, facts, &host);
    iterations::start();
    keep::begin(settings.trace_max);
    IS_ON.store(true, Ordering::Release);
    facts::write_pending();
    groups::write_pending();
    flight::begin();
}

/// Logs which name a record has got that was wanted at `path`, and which an earlier one.
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

/// The process ends, after `iterations`: nothing that comes is kept but what the GPU did. Allocates
/// nothing.
pub fn ends(iterations: u64) {
    if is_on() {
        iterations::finish(iterations);
        state::keep(Keeps::Window, false);
    }
}

/// Nothing more comes. Allocates nothing.
pub fn finish(ended: Ended) {
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
