//! Which rank the process is, and from what that is known.
//!
//! Asked in this order: the variables, which engines set late; what the Python in the process knows (the world of
//! `torch.distributed`, what an engine gave its worker); the communicators of NCCL. Those describe groups, of which a
//! process may be in several, so that only a single one says anything. Asked while an iteration is about to begin, with
//! nothing locked, and not any more once the rank is known.

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

    /// The rank << 32 | the size of the only communicator of NCCL; or one of the above.
    #[fork(reset)]
    static GROUP: AtomicU64 = AtomicU64::new(NO_GROUP);
}

/// The program makes a communicator of NCCL with this rank and size; several, or none that is in order, for `None`.
pub fn communicator(place: Option<(u64, u64)>) {
    let place = place.filter(|(rank, size)| rank < size && u32::try_from(*size).is_ok());
    let new = place.map_or(MANY_GROUPS, |(rank, size)| rank << 32 | size);
    let first = GROUP.compare_exchange(NO_GROUP, new, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err() {
        GROUP.store(MANY_GROUPS, Ordering::Relaxed);
    }
}

/// What the communicators say.
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

/// Looks the rank up. Python may run meanwhile, and wait for the GIL: nothing is locked.
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
