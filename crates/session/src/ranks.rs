//! Finds the rank of the process in its distributed job, and the source of the rank.
//!
//! The sources, in order: environment variables, which engines set late; the Python interpreter (`torch.distributed`,
//! or the rank that an engine gave its worker); NCCL communicators. Communicators describe groups, and a process may
//! be in several groups, so they define the rank only if there is exactly one communicator. This one may still be the
//! first of several, so it does not define the rank before Python has answered. But Python's main thread may never
//! answer, for example if it waits in a native function. So the wait for the answer has a limit. As long as the rank is
//! not known, it is looked up when the record begins, when a window opens or closes, and in the cases that
//! `SessionState::asks_rank_at` describes. No lock is held during this search.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_config::{RankSource, Ranked};
use tllmprof_platform::lifecycle;
use tllmprof_platform::system::{SystemClock, nanoseconds};

use super::rank::Rank;
use super::wiring::interpreter;

/// The value of [`GROUP`] while no communicator has been created.
const NO_GROUP: u64 = u64::MAX;
/// The value of [`GROUP`] if several communicators were created, or if the values of the only one are invalid.
const MANY_GROUPS: u64 = u64::MAX - 1;
/// The longest time, in nanoseconds, for which Python's answer is awaited before an NCCL communicator may define the
/// rank.
const ANSWER_TIMEOUT_NS: u64 = 10_000_000_000;

lifecycle::global! {
    stage: Session;

    /// The process's rank in its only NCCL communicator and the communicator's size, as `rank << 32 | size`;
    /// otherwise [`NO_GROUP`] or [`MANY_GROUPS`].
    #[fork(reset)]
    static GROUP: AtomicU64 = AtomicU64::new(NO_GROUP);
    /// The time, in nanoseconds of the monotonic clock, at which Python was first found not to have answered yet; 0 if
    /// this has not happened.
    #[fork(reset)]
    static ASKED: AtomicU64 = AtomicU64::new(0);
}

/// Stores the data of an NCCL communicator that the program has created. `place` consists of the process's rank in the
/// communicator and the communicator's size. `place` is `None` if several communicators were created at once or the
/// values are invalid.
pub fn communicator(place: Option<(u64, u64)>) {
    let place = place.filter(|(rank, size)| rank < size && u32::try_from(*size).is_ok());
    let new = place.map_or(MANY_GROUPS, |(rank, size)| rank << 32 | size);
    let first = GROUP.compare_exchange(NO_GROUP, new, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err() {
        GROUP.store(MANY_GROUPS, Ordering::Relaxed);
    }
}

/// Returns the rank in the only NCCL communicator. Without a communicator, returns [`Rank::None`]. With several, or if
/// the values of the only one are invalid, returns [`Rank::Unknown`].
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

/// Called when Python has been asked for the rank and has not answered yet. Returns true if its answer is still
/// awaited, and false if it has been awaited for too long.
fn awaits_answer() -> bool {
    let now = nanoseconds(SystemClock::Monotonic).max(1);
    let first = ASKED.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    now.saturating_sub(first.err().unwrap_or(now)) < ANSWER_TIMEOUT_NS
}

/// Returns the rank from the first source that knows it (see the top of this file). The caller must hold no lock,
/// because this function may run Python code, which may wait for the GIL.
pub(crate) fn look() -> Rank {
    if let Some(ranked) = Ranked::by_variables(&|name| std::env::var_os(name)) {
        return Rank::Known(ranked);
    }
    let by_python = interpreter().rank();
    if by_python == Rank::NOT_ANSWERED && awaits_answer() {
        return by_python;
    }
    match (by_python, by_communicators()) {
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
