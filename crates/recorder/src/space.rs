//! Manages the space in the record's file: the header block and the chunks (pieces of fixed size, each
//! written by one thread). Disk space is reserved before it is used.
//!
//! Chunks are handed out in order and never returned to this module. When a thread ends, the unused rest of
//! its chunk goes to another thread ([`super::writers`]). Only the holder of a chunk's number may write into
//! the chunk again ([`super::reuse`], [`super::keep`]).

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tllmprof_platform::lifecycle::attic;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::{CHUNK_BYTES, Chunk, HEADER_BYTES, HeaderBlock, chunk_offset};

use super::failure::Failure;
use super::file::{File, NameTaken};
use super::quiet::Quiet;
use once_cell::race::OnceBox;
use tllmprof_platform::cancel::Uncancelled;
use tllmprof_platform::log;
use tllmprof_platform::pages::{self, Zeroed};
use tllmprof_sync::Guard;
use tllmprof_sync::Lock;
use tllmprof_sync::Published;

/// The number of chunks in the first extent (a range of the file that is reserved in one go), which also holds the
/// header. A process that opens no window and keeps no iterations outside windows needs no more.
const FIRST_CHUNKS: u32 = 1;
/// The number of chunks in every extent but the first: 1 MiB.
const CHUNKS_PER_EXTENT: u32 = 16;
/// The largest number of extents (ranges that are reserved in one go) of a record, which limits a record to 16 GiB.
const EXTENTS: usize = 1 << 14;
/// The largest size of a record in bytes.
pub(crate) const MOST_BYTES: u64 = HEADER_BYTES as u64
    + (FIRST_CHUNKS as u64 + (EXTENTS as u64 - 1) * CHUNKS_PER_EXTENT as u64) * CHUNK_BYTES as u64;
/// More space is reserved when at most this number of reserved chunks have not been handed out.
const MIN_FREE: u32 = 8;
/// The maximum time for which a thread waits for another thread that is reserving space. The time starts again
/// whenever a new chunk appears.
const GROW_TIMEOUT: Duration = Duration::from_millis(100);

/// The state of the record's space, which a child process must not use. The kernel fills this memory with zeros in
/// the child, even if the child was created with `clone` instead of `fork`.
struct Live {
    header: Published<HeaderBlock>,
    /// The number of the next chunk that has never been handed out.
    next: AtomicU32,
    /// The number of chunks whose space is reserved.
    ready: AtomicU32,
    /// True if no more space can be reserved, so that the record does not grow any more.
    is_full: AtomicBool,
    /// True if no more space can be reserved because the record is as large as the settings allow, and old chunks are
    /// not overwritten. This is logged when a chunk is first refused for this reason.
    is_at_limit: AtomicBool,
    /// True if no more space can be reserved for any reason, and old chunks are not overwritten.
    ends_early: AtomicBool,
    /// True if a thread of the library was asked to reserve space ([`ASK`]) and has not started to do so yet.
    is_asked: AtomicBool,
    /// The number of reserved chunks when a thread last waited in vain for more; 0 if no thread has.
    stuck_at: AtomicU32,
}

// SAFETY: zeros are valid for the numbers and the flags, and in the reference `header` they mean "none".
unsafe impl Zeroed for Live {}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static LIVE: Published<Live> = Published::none();
    /// For each extent (a range of the file that is reserved in one go), the address at which its chunks are mapped.
    #[fork(keep = "stored where a record begins")]
    #[together(tables)]
    static PLACES: [AtomicPtr<u8>; EXTENTS] =
        [const { AtomicPtr::new(core::ptr::null_mut()) }; EXTENTS];
    #[fork(with = LIVE)]
    #[exit = "`finish` cuts off what was not written"]
    static FILE: Lock<Option<Growing>> = Lock::new(None);
}
/// A function that asks another thread to call [`make_room`]. The function returns false if it cannot ask
/// now.
pub(crate) type Ask = fn() -> bool;
lifecycle::global! {
    #[fork(keep = "set once, at the start")]
    static ASK: OnceBox<Ask> = OnceBox::new();
}

struct Growing {
    file: File,
    /// The largest size in bytes that the file may have.
    limit: u64,
    /// True if old chunks are overwritten once the limit is reached ([`super::keep`]).
    is_used_again: bool,
}

fn live() -> Option<&'static Live> {
    LIVE.get()
}

/// Returns the header block, if there is a record.
pub(crate) fn header() -> Option<&'static HeaderBlock> {
    live()?.header.get()
}

/// Returns the path of the record's file. Returns `None` if there is no record, or if the lock is not free in time.
pub(crate) fn path() -> Option<PathBuf> {
    let growing = FILE.lock_for(GROW_TIMEOUT)?;
    Some(growing.as_ref()?.file.path().to_owned())
}

/// Registers the function that asks another thread to reserve space. Only the first function is kept.
pub fn set_helper(ask: Ask) {
    let _ = ASK.set(Box::new(ask));
}

/// Sets up the space of a record in an empty file that may grow to `limit` bytes. Returns the record's header block,
/// which is all zeros. `is_used_again` is true if old chunks are overwritten once the limit is reached.
pub(crate) fn begin(
    mut file: File,
    limit: u64,
    is_used_again: bool,
) -> Result<&'static HeaderBlock, Failure> {
    const NO_ROOM: Failure = Failure::new("TLLMPROF_TRACE_MAX is too small for a record", 0);
    let bytes = HEADER_BYTES + FIRST_CHUNKS as usize * CHUNK_BYTES;
    if bytes as u64 > limit {
        return Err(NO_ROOM);
    }
    if live().is_none() {
        let live: Option<&'static [Live]> = pages::batch_wiped_on_fork(1).map(|live| &*live);
        LIVE.set(live.and_then(<[Live]>::first));
    }
    let live = live().ok_or(Failure::new("it could not be mapped", libc::ENOMEM))?;
    let place = match file.grow(bytes) {
        Ok(place) => place,
        Err(failure) => {
            file.discard();
            return Err(failure);
        }
    };
    // The first chunk comes right after the header in the file.
    let first = place.as_ptr().wrapping_add(HEADER_BYTES);
    PLACES[0].store(first, Ordering::Release);
    live.next.store(0, Ordering::Relaxed);
    live.is_full.store(false, Ordering::Relaxed);
    live.is_at_limit.store(false, Ordering::Relaxed);
    live.is_asked.store(false, Ordering::Relaxed);
    live.stuck_at.store(0, Ordering::Relaxed);
    live.ready.store(FIRST_CHUNKS, Ordering::Release);
    *FILE.lock() = Some(Growing {
        file,
        limit,
        is_used_again,
    });
    // SAFETY: mapped above for the life of the process, and larger than HEADER_BYTES. The chunks follow the
    // header, so only header blocks write to this memory.
    let header = unsafe { HeaderBlock::at(place) };
    live.header.set(Some(header));
    Ok(header)
}

/// Gives the file its name, once its header identifies the process. Returns the file's path and, if another file had
/// the wanted name, the way in which the conflict was solved. If this fails, the process has no record.
pub(crate) fn publish() -> Result<(PathBuf, Option<NameTaken>), Failure> {
    let mut growing = FILE.lock();
    let published = growing.as_mut().map(|growing| {
        let taken = growing.file.publish()?;
        Ok((growing.file.path().to_owned(), taken))
    });
    match published {
        Some(Ok(published)) => Ok(published),
        failed => {
            *growing = None;
            if let Some(live) = live() {
                live.header.set(None);
            }
            let closed = Failure::new("its file was closed", 0);
            Err(failed.and_then(Result::err).unwrap_or(closed))
        }
    }
}

/// Returns a chunk that has never been used, and its number. Returns `None` if there is no more space.
pub(crate) fn take() -> Option<(u32, Chunk)> {
    let live = live()?;
    let mut may_grow = true;
    loop {
        let (next, ready) = (
            live.next.load(Ordering::Relaxed),
            live.ready.load(Ordering::Acquire),
        );
        if next < ready {
            let taken = live.next.compare_exchange_weak(
                next,
                next + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                if ready - next <= MIN_FREE {
                    ask_for_room(live);
                }
                return Some((next, chunk(next)?));
            }
        } else if !may_grow || !grow(live, next) {
            log_limit(live);
            return None;
        } else {
            may_grow = live.ready.load(Ordering::Acquire) > next;
        }
    }
}

/// Logs once that a chunk was refused because the record is as large as the settings allow, if that is the reason.
#[cold]
fn log_limit(live: &Live) {
    if live.is_at_limit.load(Ordering::Relaxed) {
        let _uncancelled = Uncancelled::new();
        log::once!(
            Warn,
            "the record is as large as TLLMPROF_TRACE_MAX allows: later events are only counted"
        );
    }
}

/// Returns the memory of a chunk that [`take`] returned earlier and that no thread writes to any more. The
/// caller must be the only holder of the chunk's number.
pub(crate) fn again(number: u32) -> Option<Chunk> {
    let live = live()?;
    live.header.get()?;
    chunk(number)
}

/// Returns the memory of a chunk whose space is reserved. Called only by `take`, once for each number, and by
/// `again`, for the only holder of the number.
fn chunk(number: u32) -> Option<Chunk> {
    let (extent, index) = match number.checked_sub(FIRST_CHUNKS) {
        None => (0, number),
        Some(behind) => (1 + behind / CHUNKS_PER_EXTENT, behind % CHUNKS_PER_EXTENT),
    };
    let place = NonNull::new(PLACES.get(extent as usize)?.load(Ordering::Acquire))?;
    // SAFETY: the extent has that many chunks, which stay mapped. `take` hands out each number only once, and
    // for `again` the previous holder of the number has stopped writing to the chunk.
    Some(unsafe { Chunk::at(place.add(index as usize * CHUNK_BYTES)) })
}

/// Returns true if [`take`] has no more chunks to return.
pub(crate) fn is_full() -> bool {
    live().is_none_or(|live| {
        live.is_full.load(Ordering::Relaxed)
            && live.next.load(Ordering::Relaxed) >= live.ready.load(Ordering::Acquire)
    })
}

/// Returns true if the record could not grow any more, so that later events may be missing. False for a record that
/// overwrites its oldest windows.
pub(crate) fn ends_early() -> bool {
    live().is_some_and(|live| live.ends_early.load(Ordering::Relaxed))
}

fn ask_for_room(live: &Live) {
    if let Some(ask) = ASK.get()
        && !live.is_full.load(Ordering::Relaxed)
        && !live.is_asked.swap(true, Ordering::AcqRel)
        // The flag is cleared here only if `ask` fails. If `ask` succeeds, the thread that runs `make_room`
        // clears the flag, and may have done so already.
        && !ask()
    {
        live.is_asked.store(false, Ordering::Release);
    }
}

/// Reserves space in advance, so that threads that record events need not wait for it. Called on a thread of the
/// library, and when a window opens.
pub fn make_room() {
    let Some(live) = live() else { return };
    live.is_asked.store(false, Ordering::Release);
    let next = live.next.load(Ordering::Relaxed);
    if live.ready.load(Ordering::Relaxed).saturating_sub(next) <= MIN_FREE {
        grow(live, next + MIN_FREE);
    }
}

/// Reserves space for chunk `wanted`, unless another thread has already done so. Returns true if the caller
/// should look for a chunk again.
#[cold]
fn grow(live: &Live, wanted: u32) -> bool {
    // In a child process that was made without a fork handler (for example with `clone`) there is
    // no record, and the memory of the parent's record is not mapped.
    if live.header.get().is_none() || live.is_full.load(Ordering::Relaxed) {
        return false;
    }
    let _uncancelled = Uncancelled::new();
    let _quiet = Quiet::new(libc::SIGXFSZ);
    let Some(mut guard) = lock_until_ready(live, wanted) else {
        return live.ready.load(Ordering::Acquire) > wanted;
    };
    let Some(growing) = guard.as_mut() else {
        return false;
    };
    let ready = live.ready.load(Ordering::Acquire);
    if ready > wanted {
        return true;
    }
    let extent = (1 + (ready - FIRST_CHUNKS) / CHUNKS_PER_EXTENT) as usize;
    let left = growing.limit.saturating_sub(growing.file.size()) / CHUNK_BYTES as u64;
    let more = u32::try_from(left)
        .unwrap_or(CHUNKS_PER_EXTENT)
        .min(CHUNKS_PER_EXTENT);
    // A chunk's address is computed from its number, which works only if all extents except the
    // first have the same size. So no extent may follow a smaller one.
    let is_whole = (ready - FIRST_CHUNKS).is_multiple_of(CHUNKS_PER_EXTENT);
    let place = PLACES.get(extent).filter(|_| more > 0 && is_whole);
    let Some(place) = place else {
        // Nothing is logged here: some of the reserved chunks may be free, and the events may fit into them.
        live.is_at_limit
            .store(!growing.is_used_again, Ordering::Relaxed);
        live.ends_early
            .store(!growing.is_used_again, Ordering::Relaxed);
        live.is_full.store(true, Ordering::Relaxed);
        return false;
    };
    match growing.file.grow(more as usize * CHUNK_BYTES) {
        Ok(memory) => {
            place.store(memory.as_ptr(), Ordering::Release);
            live.ready.store(ready + more, Ordering::Release);
            true
        }
        Err(failure) => {
            live.ends_early
                .store(!growing.is_used_again, Ordering::Relaxed);
            live.is_full.store(true, Ordering::Relaxed);
            let what = match growing.is_used_again {
                true => "does not grow from here on, its oldest windows go",
                false => "ends here",
            };
            log::say!(
                Warn,
                "the record {} {what}: {failure}",
                Shown(growing.file.path())
            );
            false
        }
    }
}

/// Takes the lock that is needed to reserve space for chunk `wanted`. Waits as long as other threads reserve more
/// space. Returns `None` if another thread has reserved space for the chunk meanwhile, or if no space was reserved
/// during [`GROW_TIMEOUT`]: a signal handler may have interrupted the thread that reserves space.
fn lock_until_ready(live: &Live, wanted: u32) -> Option<Guard<'static, Option<Growing>>> {
    const LOOKS: u32 = 10;
    let mut seen = live.ready.load(Ordering::Acquire);
    // After a time-out, no thread waits again for space until more chunks have been reserved.
    let is_stuck = live.stuck_at.load(Ordering::Relaxed) == seen;
    if is_stuck {
        return FILE.lock_for(Duration::ZERO);
    }
    let mut looks = 0;
    while looks < LOOKS && seen <= wanted {
        if let Some(guard) = FILE.lock_for(GROW_TIMEOUT / LOOKS) {
            return Some(guard);
        }
        let ready = live.ready.load(Ordering::Acquire);
        looks = if ready == seen { looks + 1 } else { 0 };
        seen = ready;
    }
    if seen <= wanted {
        live.stuck_at.store(seen, Ordering::Relaxed);
    }
    None
}

/// A path as messages show it: invalid UTF-8 is replaced with `?`.
pub(crate) struct Shown<'a>(pub &'a Path);

impl core::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for part in self.0.as_os_str().as_bytes().utf8_chunks() {
            f.write_str(part.valid())?;
            if !part.invalid().is_empty() {
                f.write_str("?")?;
            }
        }
        Ok(())
    }
}

/// Ends the record: cuts off the chunks that were never handed out. Threads may still write into their
/// chunks. Returns the size of the file in bytes; 0 if it is not known.
pub(crate) fn finish() -> u64 {
    let Some(live) = live() else { return 0 };
    live.is_full.store(true, Ordering::Relaxed);
    // Chunks that are refused from here on are not refused because of the limit.
    live.is_at_limit.store(false, Ordering::Relaxed);
    let _uncancelled = Uncancelled::new();
    let Some(mut guard) = FILE.lock_for(GROW_TIMEOUT) else {
        return 0;
    };
    // `u32::MAX / 2` is larger than the number of any reserved chunk, so no more chunks are handed out.
    let used = live.next.fetch_max(u32::MAX / 2, Ordering::AcqRel);
    guard.as_mut().map_or(0, |growing| {
        let _quiet = Quiet::new(libc::SIGXFSZ);
        growing.file.cut(chunk_offset(used));
        growing.file.size()
    })
}

/// Resets the state in the child of a fork, which has no record until it begins one of its own.
fn in_child(alone: &OnlyThread) {
    FILE.break_open(alone);
    if let Some(live) = live() {
        live.header.set(None);
        live.next.store(0, Ordering::Relaxed);
        live.ready.store(0, Ordering::Relaxed);
        live.is_full.store(false, Ordering::Relaxed);
        live.is_at_limit.store(false, Ordering::Relaxed);
        live.is_asked.store(false, Ordering::Relaxed);
        live.stuck_at.store(0, Ordering::Relaxed);
    }
    if let Some(mut growing) = FILE.lock().take() {
        growing.file.close();
        // The old value is kept and not freed, because the allocator may be in any state after the
        // fork.
        attic::put(growing);
    }
}
