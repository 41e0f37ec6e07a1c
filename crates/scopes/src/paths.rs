//! Paths of open scopes. Each path has a number that stays the same while the process lives.
//!
//! The paths are in a hash table with open addressing. No entry is ever removed, no lock is needed,
//! and a path's number follows from its index. Two paths with the same 64-bit hash would be
//! confused, which is not expected to happen.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tllmprof_platform::{ids, lifecycle};
use tllmprof_record::{Event, What};
use tllmprof_recorder as recorder;
use tllmprof_recorder::Label;
use tllmprof_sync::Published;
use tllmprof_sync::hash::MIX;

/// Maximum number of paths that are stored. A model of 100 layers needs some thousands of paths.
const PLACES: usize = 1 << 15;
/// Maximum number of entries that are examined for a path, from the first one that its hash selects. If none of these
/// holds the path or is free, the path counts as unknown.
const REACH: usize = 32;

/// The number of the empty path, which means that no scope is open.
pub(crate) const NONE: u32 = 0;
/// The number that stands for the current path if it is unknown, because an open scope could not be stored.
pub(crate) const UNKNOWN: u32 = (1 << 24) - 1;

struct PathEntry {
    /// The hash of the path in this table entry; 0 if the entry is free.
    hash: AtomicU64,
    /// The innermost part of the path; empty until it is written.
    name: Published<Label>,
    parent: AtomicU32,
    /// The [`stamp`] of the record to which the path was last written.
    written: AtomicU64,
}

lifecycle::global! {
    #[fork(keep = "names and numbers are inherited")]
    #[together(tables)]
    static TABLE: [PathEntry; PLACES] = [const {
        PathEntry {
            hash: AtomicU64::new(0),
            name: Published::none(),
            parent: AtomicU32::new(0),
            written: AtomicU64::new(0),
        }
    }; PLACES];
}

fn hash(parent: u32, name: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| {
        let product = u128::from(hash ^ word) * u128::from(MIX);
        (product >> 64) as u64 ^ product as u64
    };
    let mut hash = mix(
        MIX ^ name.len() as u64,
        u64::from(parent) ^ 0x5bd1_e995_5bd1_e995,
    );
    let (words, rest) = name.as_chunks::<8>();
    for word in words {
        hash = mix(hash, u64::from_le_bytes(*word));
    }
    let last = rest
        .iter()
        .fold(0, |last: u64, byte| last << 8 | u64::from(*byte));
    mix(hash, last).max(1)
}

/// Returns the number of the path that consists of the path `parent` followed by `name`, or [`UNKNOWN`] if this path
/// cannot be stored. If `name` is empty, returns `parent`.
pub(crate) fn within(parent: u32, name: &[u8]) -> u32 {
    let name = name.get(..recorder::LONGEST).unwrap_or(name);
    if parent == UNKNOWN || name.is_empty() {
        return parent;
    }
    let hash = hash(parent, name);
    for step in 0..REACH {
        let index = (hash as usize).wrapping_add(step) % PLACES;
        let place = &TABLE[index];
        let known = place.hash.load(Ordering::Acquire);
        let taken = match known {
            0 => place
                .hash
                .compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire),
            known => Err(known),
        };
        let found = match taken {
            Ok(_) => {
                place.parent.store(parent, Ordering::Relaxed);
                // If no memory for names is left, this entry of the table never gets a name, and its path counts as
                // unknown.
                place.name.set(Label::keep(|| name.iter().copied()));
                hash
            }
            Err(found) => found,
        };
        if found == hash {
            // Another thread may be writing the name of this table entry at this moment. This call
            // then returns the unknown path.
            return match place.name.get() {
                Some(_) => index as u32 + 1,
                None => UNKNOWN,
            };
        }
    }
    UNKNOWN
}

fn place(path: u32) -> Option<&'static PathEntry> {
    TABLE.get((path as usize).checked_sub(1)?)
}

/// Returns the innermost part of a path, or `None` if the path is empty or unknown.
pub(crate) fn name(path: u32) -> Option<&'static [u8]> {
    Some(place(path)?.name.get()?.text())
}

/// Returns a stamp: this process's id, and the current era of its record. The era is a number that changes when the
/// record loses strings that were written to it. While the stamp is the same, data that were written are still in the
/// record.
pub(crate) fn stamp() -> u64 {
    u64::from(ids::process().cast_unsigned()) << 32 | u64::from(recorder::era())
}

/// Writes a path and its parent paths to the record, unless they are there already. Returns `path`.
pub(crate) fn write(path: u32) -> u32 {
    let stamp = stamp();
    let mut next = path;
    while let Some(place) = place(next)
        && place.written.swap(stamp, Ordering::Relaxed) != stamp
        && let Some(name) = place.name.get()
    {
        let parent = place.parent.load(Ordering::Relaxed);
        let scope = What::Scope {
            id: next,
            parent,
            name: name.id(),
        };
        recorder::latest(&Event::new(0, 0, scope));
        next = parent;
    }
    path
}
