//! The ring: a file with the process's latest steps and NCCL collectives (`TLLMPROF_RING`). New entries overwrite the
//! oldest. The file is mapped into memory, so its contents outlive the process.
//!
//! The ring begins with the process's first NCCL communicator, or with the record. From then on each step or
//! collective costs a few stores into the mapping.

use core::sync::atomic::{AtomicBool, Ordering};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tllmprof_config::{Placeholders, Settings};
use tllmprof_platform::cancel::Uncancelled;
use tllmprof_platform::lifecycle;
use tllmprof_platform::pages::{self, Zeroed};
use tllmprof_platform::system::{SystemClock, nanoseconds};
use tllmprof_platform::{ids, log, resolve, thread};
pub use tllmprof_record::{Collective, OpenCall, Operation, RingCall};
use tllmprof_record::{CommunicatorId, Ended, RING_BYTES, RingBlock, RingFacts};
use tllmprof_sync::Published;

use super::failure::Failure;
use super::file::File;
use super::path_of_file::{fill, host_name, may_write};
use super::space::Shown;

/// The reference to the ring, which a child process must not use. The kernel fills this memory with zeros in the
/// child, even if the child was created with `clone` instead of `fork`.
struct Live {
    ring: Published<RingBlock>,
}

// SAFETY: the only field is a reference, for which zeros mean "none".
unsafe impl Zeroed for Live {}

lifecycle::global! {
    stage: Sinks;

    /// True if the settings ask for a ring (the file with the latest steps and NCCL collectives).
    #[fork(keep = "the settings are the same")]
    static IS_WANTED: AtomicBool = AtomicBool::new(false);
    /// True if the process has already tried to create its ring, with or without success.
    #[fork(reset)]
    static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
    #[fork(keep = "the kernel has wiped what it refers to")]
    #[exit = "`finish` notes the end"]
    static LIVE: Published<Live> = Published::none();
}

/// Enables the ring, if the settings ask for one and the process may create files. Called when the library is loaded.
pub fn start(settings: &Settings) {
    if settings.ring.is_some() && may_write() {
        IS_WANTED.store(true, Ordering::Relaxed);
    }
}

/// Returns true if the settings ask for a ring (the file with the latest steps and NCCL collectives).
pub fn is_wanted() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

#[inline]
fn ring() -> Option<&'static RingBlock> {
    LIVE.get()?.ring.get()
}

fn now() -> u64 {
    nanoseconds(SystemClock::MonotonicCoarse)
}

fn thread() -> u32 {
    thread::current()
        .map_or_else(ids::thread, thread::ThreadRecord::number)
        .cast_unsigned()
}

/// Creates the ring's file, if the settings ask for it and the process has not tried yet.
pub fn begin(settings: &Settings) {
    let Some(template) = settings.ring.as_ref().filter(|_| is_wanted()) else {
        return;
    };
    if lifecycle::is_filtered() || HAS_BEGUN.swap(true, Ordering::AcqRel) {
        return;
    }
    let _uncancelled = Uncancelled::new();
    let host = host_name();
    let place = Placeholders {
        pid: ids::process().cast_unsigned(),
        rank: None,
        host: &host,
    };
    let path = fill(template, &place);
    let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let facts = RingFacts {
        pid: place.pid,
        host: host.as_bytes(),
        run: settings
            .run
            .as_ref()
            .map_or("", |run| run.as_str())
            .as_bytes(),
        boot: boot.trim_ascii(),
        is_late: resolve::is_late(),
        now_ns: now(),
        unix_ns: nanoseconds(SystemClock::Realtime),
    };
    match create(&path, &facts) {
        Ok(ring) => {
            if LIVE.get().is_none() {
                let live: Option<&'static [Live]> =
                    pages::batch_wiped_on_fork(1).map(|live| &*live);
                LIVE.set(live.and_then(<[Live]>::first));
            }
            if let Some(live) = LIVE.get() {
                live.ring.set(Some(ring));
            }
        }
        Err(failure) => log::say!(Warn, "no ring at {}: {failure}", Shown(&path)),
    }
}

fn create(path: &Path, facts: &RingFacts<'_>) -> Result<&'static RingBlock, Failure> {
    // The file has its name from the start, because the `tllmprof` command finds the ring by this name in
    // `/proc/PID/maps`.
    let mut file = File::create_named(path, facts.pid)?;
    let place = match file.grow(RING_BYTES) {
        Ok(place) => place,
        Err(failure) => {
            file.discard();
            return Err(failure);
        }
    };
    // SAFETY: the memory was mapped above for the life of the process, and only this ring writes there.
    let ring = unsafe { RingBlock::at(place) };
    ring.begin(facts);
    // The mapping of the file stays valid after the descriptor is closed.
    file.close();
    Ok(ring)
}

/// Writes the way in which the process ends into the ring. Allocates no memory.
pub fn finish(ended: Ended) {
    if let Some(ring) = ring() {
        ring.finish(ended, now());
    }
}

/// Sets the process's rank in the distributed job.
pub fn set_rank(rank: u64) {
    if let Some(ring) = ring() {
        ring.set_rank(rank);
    }
}

/// Adds a named group of ranks, with the process's rank in it.
pub fn set_group(name: &str, rank: u32, size: u32) {
    if let Some(ring) = ring() {
        ring.set_group(name, rank, size);
    }
}

/// Adds the step with this number to the ring. The calling thread begins the step now.
pub fn step_begins(number: u64) {
    if let Some(ring) = ring() {
        ring.step_begins(number, thread(), now());
    }
}

/// Marks the latest step as ended.
pub fn step_ends() {
    if let Some(ring) = ring() {
        ring.step_ends(now());
    }
}

/// Adds a call of NCCL that the calling thread begins. `captured` is true if the call is captured into a CUDA graph.
/// `member` returns the identifier, rank and size of the communicator `handle` (see [`RingBlock::call_begins`]).
/// Returns the value to pass to [`call_ends`] when the call returns; `None` if its end need not be reported.
pub fn call_begins(
    operation: Operation,
    handle: usize,
    stream: usize,
    captured: bool,
    member: impl FnOnce() -> (CommunicatorId, u32, u32),
) -> Option<OpenCall> {
    let call = RingCall {
        handle: handle as u64,
        operation,
        stream: stream as u64,
        thread: thread(),
        captured,
    };
    ring()?.call_begins(&call, now(), member)
}

/// Marks a call of NCCL as ended.
pub fn call_ends(call: OpenCall) {
    if let Some(ring) = ring() {
        ring.call_ends(call, now());
    }
}

/// Forgets an NCCL communicator that the program destroys.
pub fn communicator_ends(handle: usize) {
    if let Some(ring) = ring() {
        ring.forget_communicator(handle as u64);
    }
}
