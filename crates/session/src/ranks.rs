//! Finds the rank of the process, and its source.
//!
//! The sources in order: the variables, which engines set late; the Python in the process (the world of
//! `torch.distributed`, or the rank that an engine gave its worker); the communicators of NCCL. Communicators
//! describe groups, and a process may be in several, so they give a rank only if there is exactly one. The
//! rank is looked up while an iteration is about to begin, without a lock, and no longer once it is known.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_config::{RankSource, Ranked};
use tllmprof_platform::lifecycle;

use super::rank::Rank;
use super::wiring::interpreter;

/// No communicator has been made yet.
const NO_GROUP: u64 = u64::MAX;
/// More than one, or one that has no rank.
const MANY_GROUPS: u64 = u64::MAX - 1;

lifecycle::global! {
    stage: Session;

    /// `rank << 32 | size` of the only NCCL communicator, or one of the values above.
    #[fork(reset)]
    static GROUP: AtomicU64 = AtomicU64::new(NO_GROUP);
}

/// Called when the program makes an NCCL communicator with this rank and size. `None` for several, or for an
/// invalid one.
pub fn communicator(place: Option<(u64, u64)>) {
    let place = place.filter(|(rank, size)| rank < size && u32::try_from(*size).is_ok());
    let new = place.map_or(MANY_GROUPS, |(rank, size)| rank << 32 | size);
    let first = GROUP.compare_exchange(NO_GROUP, new, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err() {
        GROUP.store(MANY_GROUPS, Ordering::Relaxed);
    }
}

/// Returns the rank that the communicators give.
fn by_communicators() -> Rank {
    match GROUP.load(Ordering::Relaxed) {
        NO_GROUP => Rank::None,
        MANY_GROUPS => Rank::Unknown("NCCL has several communicators here"),
        one => Rank::Known(Ranked {
            rank: one >> 32,
            world_size: Some(one & 0xffff_ffff),
            source: RankSource::Nccl,
        }),
    }
}

/// Looks up the rank. This may run Python, which may wait for the GIL, so no lock is held.
pub fn look() -> Rank {
    if let Some(ranked) = Ranked::by_variables(&|name| std::env::var_os(name)) {
        return Rank::Known(ranked);
    }
    match (interpreter().rank(), by_communicators()) {
        (rank @ Rank::Known(_), _) | (_, rank @ Rank::Known(_)) | (Rank::None, rank) => rank,
        (rank, _) => rank,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_communicator_is_the_process_and_several_are_groups() {
        let made = |places: &[Option<(u64, u64)>]| {
            GROUP.store(NO_GROUP, Ordering::Relaxed);
            places.iter().for_each(|place| communicator(*place));
            by_communicators()
        };
        assert_eq!(made(&[]), Rank::None);
        let one = made(&[Some((3, 8))]).known().unwrap();
        assert_eq!((one.rank, one.world_size), (3, Some(8)));
        for several in [&[Some((3, 8)), Some((1, 2))][..], &[None], &[Some((8, 8))]] {
            assert_eq!(made(several).number(), None, "{several:?}");
        }
        GROUP.store(NO_GROUP, Ordering::Relaxed);
    }
}
