//! The room that a record has: its header block and its chunks, reserved ahead of their use.
//!
//! Chunks are handed out in order and never come back here: what a thread leaves unused of one the next
//! thread uses ([`super::writers`]), and who writes one again has its number for itself ([`super::reuse`],
//! [`super::keep`]).

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

/// Chunks of the first extent, which also holds the header: all that a process needs that opens no
/// window.
const FIRST: u32 = 1;
/// Chunks of every other extent: 1 MiB.
const MORE: u32 = 16;
/// Extents that a record can have: 16 GiB of them.
const EXTENTS: usize = 1 << 14;
/// Bytes that a record can have.
pub const MOST_BYTES: u64 =
    HEADER_BYTES as u64 + (FIRST as u64 + (EXTENTS as u64 - 1) * MORE as u64) * CHUNK_BYTES as u64;
/// While fewer chunks are free, more room is made ahead.
const AHEAD: u32 = 8;
/// How long a thread waits for room that another is making, without any being made.
const PATIENCE: Duration = Duration::from_millis(100);

/// What a copy of the process must not use: the kernel wipes it there, whatever made the copy.
struct Live {
    header: Published<HeaderBlock>,
    /// The next chunk to be handed out.
    next: AtomicU32,
    /// Chunks that have room.
    ready: AtomicU32,
    /// There will be no more room.
    is_full: AtomicBool,
    /// Somebody was asked to make room.
    is_asked: AtomicBool,
    /// How many had room when a thread waited for more in vain; 0 for none.
    stuck_at: AtomicU32,
}

// SAFETY: numbers, and a reference that is none where it is zeros.
unsafe impl Zeroed for Live {}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    static LIVE: Published<Live> = Published::none();
    /// Where each extent's chunks are mapped.
    #[fork(keep = "stored where a record begins")]
    static PLACES: [AtomicPtr<u8>; EXTENTS] =
        [const { AtomicPtr::new(core::ptr::null_mut()) }; EXTENTS];
    #[fork(with = LIVE)]
    #[exit = "`finish` cuts off what was not written"]
    static FILE: Lock<Option<Growing>> = Lock::new(None);
}
/// Asks another thread to call [`make_room`]; false if it cannot now.
pub type Ask = fn() -> bool;
lifecycle::global! {
    #[fork(keep = "set once, at the start")]
    static ASK: OnceBox<Ask> = OnceBox::new();
}

struct Growing {
    file: File,
    /// Bytes that it may come to.
    limit: u64,
    /// What comes then takes the room of the oldest ([`super::keep`]).
    is_used_again: bool,
}

fn live() -> Option<&'static Live> {
    LIVE.get()
}

/// The header block, if there is a record.
pub fn header() -> Option<&'static HeaderBlock> {
    live()?.header.get()
}

/// Where the file is.
pub fn path() -> Option<PathBuf> {
    let growing = FILE.lock_for(PATIENCE)?;
    Some(growing.as_ref()?.file.path().to_owned())
}

/// Says who makes room ahead when it is asked to. The first one stays.
pub fn set_helper(ask: Ask) {
    let _ = ASK.set(Box::new(ask));
}

/// Begins with a file that is empty and may come to `limit` bytes; returns its header block, all zeros. `is_used_again`:
/// what comes then takes the room of the oldest.
pub fn begin(
    mut file: File,
    limit: u64,
    is_used_again: bool,
) -> Result<&'static HeaderBlock, Failure> {
    const NO_ROOM: Failure = Failure::new("TLLMPROF_TRACE_MAX is too small for a record", 0);
    let bytes = HEADER_BYTES + FIRST as usize * CHUNK_BYTES;
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
    // The first chunk lies behind the header.
    let first = place.as_ptr().wrapping_add(HEADER_BYTES);
    PLACES[0].store(first, Ordering::Release);
    live.next.store(0, Ordering::Relaxed);
    live.is_full.store(false, Ordering::Relaxed);
    live.is_asked.store(false, Ordering::Relaxed);
    live.stuck_at.store(0, Ordering::Relaxed);
    live.ready.store(FIRST, Ordering::Release);
    *FILE.lock() = Some(Growing {
        file,
        limit,
        is_used_again,
    });
    // SAFETY: mapped above, for as long as the process lives, and larger than HEADER_BYTES. The chunks lie
    // behind it, so header blocks alone write there.
    let header = unsafe { HeaderBlock::at(place) };
    live.header.set(Some(header));
    Ok(header)
}

/// Gives the file its name, once its header says whose record it is. Where it gets none there is no record.
pub fn publish() -> Result<(PathBuf, Option<NameTaken>), Failure> {
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

/// A chunk that nobody has used, and its number. `None` where there is no more room.
pub fn take() -> Option<(u32, Chunk)> {
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
                if ready - next <= AHEAD {
                    ask_for_room(live);
                }
                return Some((next, chunk(next)?));
            }
        } else if !may_grow || !grow(live, next) {
            return None;
        } else {
            may_grow = live.ready.load(Ordering::Acquire) > next;
        }
    }
}

/// A chunk that [`take`] gave and that nobody writes to any more, for another use. Its number is held by the caller alone.
pub fn again(number: u32) -> Option<Chunk> {
    let live = live()?;
    live.header.get()?;
    chunk(number)
}

/// The memory of a chunk that has room. `take` alone calls it, and once for each number; and `again`, for who has the
/// number for itself.
fn chunk(number: u32) -> Option<Chunk> {
    let (extent, index) = match number.checked_sub(FIRST) {
        None => (0, number),
        Some(behind) => (1 + behind / MORE, behind % MORE),
    };
    let place = NonNull::new(PLACES.get(extent as usize)?.load(Ordering::Acquire))?;
    // SAFETY: the extent has so many chunks, which stay mapped; its number was handed out to nobody else (`take`), or
    // whoever had it has given it up (`again`).
    Some(unsafe { Chunk::at(place.add(index as usize * CHUNK_BYTES)) })
}

/// Whether [`take`] gives nothing more.
pub fn is_full() -> bool {
    live().is_none_or(|live| {
        live.is_full.load(Ordering::Relaxed)
            && live.next.load(Ordering::Relaxed) >= live.ready.load(Ordering::Acquire)
    })
}

fn ask_for_room(live: &Live) {
    if let Some(ask) = ASK.get()
        && !live.is_full.load(Ordering::Relaxed)
        && !live.is_asked.swap(true, Ordering::AcqRel)
        // Else it may be done by now, and have taken the mark away.
        && !ask()
    {
        live.is_asked.store(false, Ordering::Release);
    }
}

/// Makes room ahead, so that no thread of the program has to.
pub fn make_room() {
    let Some(live) = live() else { return };
    live.is_asked.store(false, Ordering::Release);
    let next = live.next.load(Ordering::Relaxed);
    if live.ready.load(Ordering::Relaxed).saturating_sub(next) <= AHEAD {
        grow(live, next + AHEAD);
    }
}

/// Makes room for chunk `wanted`, if there is none by now; whether there may be.
#[cold]
fn grow(live: &Live, wanted: u32) -> bool {
    // A copy of the process that no fork handler saw has no record, and none of what was mapped.
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
    let extent = (1 + (ready - FIRST) / MORE) as usize;
    let left = growing.limit.saturating_sub(growing.file.size()) / CHUNK_BYTES as u64;
    let more = u32::try_from(left).unwrap_or(MORE).min(MORE);
    // Chunks are found by arithmetic: nothing comes behind an extent that is cut short.
    let is_whole = (ready - FIRST).is_multiple_of(MORE);
    let place = PLACES.get(extent).filter(|_| more > 0 && is_whole);
    let Some(place) = place else {
        live.is_full.store(true, Ordering::Relaxed);
        if !growing.is_used_again {
            log::once!(
                Warn,
                "the record is as large as TLLMPROF_TRACE_MAX allows: later events are only counted"
            );
        }
        return false;
    };
    match growing.file.grow(more as usize * CHUNK_BYTES) {
        Ok(memory) => {
            place.store(memory.as_ptr(), Ordering::Release);
            live.ready.store(ready + more, Ordering::Release);
            true
        }
        Err(failure) => {
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

/// Waits to make room for chunk `wanted`, as long as others make some: none where it is there by
/// then, or nothing happens. A signal handler may have interrupted whoever makes it.
fn lock_until_ready(live: &Live, wanted: u32) -> Option<Guard<'static, Option<Growing>>> {
    const LOOKS: u32 = 10;
    let mut seen = live.ready.load(Ordering::Acquire);
    // Once this was in vain, it is not tried again until something has happened.
    let is_stuck = live.stuck_at.load(Ordering::Relaxed) == seen;
    if is_stuck {
        return FILE.lock_for(Duration::ZERO);
    }
    let mut looks = 0;
    while looks < LOOKS && seen <= wanted {
        if let Some(guard) = FILE.lock_for(PATIENCE / LOOKS) {
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

/// A path as messages show it.
pub struct Shown<'a>(pub &'a Path);

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

/// Nothing more is written but to chunks that threads have: cuts off the others. How many bytes the file has
/// then; 0 where that is not known.
pub fn finish() -> u64 {
    let Some(live) = live() else { return 0 };
    live.is_full.store(true, Ordering::Relaxed);
    let _uncancelled = Uncancelled::new();
    let Some(mut guard) = FILE.lock_for(PATIENCE) else {
        return 0;
    };
    // From here on none is handed out.
    let used = live.next.fetch_max(u32::MAX / 2, Ordering::AcqRel);
    guard.as_mut().map_or(0, |growing| {
        let _quiet = Quiet::new(libc::SIGXFSZ);
        growing.file.cut(chunk_offset(used));
        growing.file.size()
    })
}

/// The child of a fork has no record until it begins one of its own.
fn in_child(alone: &OnlyThread) {
    FILE.break_open(alone);
    if let Some(live) = live() {
        live.header.set(None);
        live.next.store(0, Ordering::Relaxed);
        live.ready.store(0, Ordering::Relaxed);
        live.is_full.store(false, Ordering::Relaxed);
        live.is_asked.store(false, Ordering::Relaxed);
        live.stuck_at.store(0, Ordering::Relaxed);
    }
    if let Some(mut growing) = FILE.lock().take() {
        growing.file.close();
        // Its path is left where it is: the allocator may be in any condition.
        attic::put(growing);
    }
}
