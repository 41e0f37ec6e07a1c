//! Busy time of each GPU, in total and by iteration: the time in which at least one piece of work (a kernel, a copy or
//! a memory set) runs.
//!
//! Pieces of work arrive nearly in the order of their starts, but they must be counted exactly in that order. So the
//! pieces with the latest starts, at least [`MIN_HELD_BACK`] of them, are held back and sorted until more pieces
//! arrive. A piece may still arrive too late, after pieces with later starts were counted. Then its time before the
//! latest end of the counted pieces is not counted.

use std::collections::HashMap;

use tllmprof_record::{CopyKind, Strings};

use super::kernel_name;
use crate::events::idle::IdleSpans;
use crate::events::spans::Span;

/// Maximum number of entries in a GPU's table of busy times. An entry is the time of one kernel, or one kind of copy,
/// in one iteration. When the table is full, only the times of its existing entries grow.
const MAX_STEP_TIMES: usize = 1 << 20;

/// Minimum number of pieces of work that are held back for each GPU, so that they can be sorted by
/// their starts.
const MIN_HELD_BACK: usize = 1 << 16;

/// A GPU's work in one iteration. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct IterationActivity {
    /// Index of the iteration among the iterations of the record.
    pub place: usize,
    pub busy: u64,
    /// Time in which at least one kernel ran on the GPU.
    pub kernels: u64,
    /// Idle time of the GPU between its first and its last work in the iteration.
    pub gaps: u64,
}

/// A GPU's work in all iterations of a record.
#[derive(Debug, Default)]
pub(crate) struct DeviceActivity {
    /// The GPU's number in the process, counted from 0.
    pub device: u8,
    /// The GPU's work in each iteration in which it ran work, in the order of the iterations.
    pub parts: Vec<IterationActivity>,
    /// Busy time in nanoseconds. The key is the index of the iteration, and a number for the kernel
    /// or the kind of copy (see [`COPIES`]). If pieces of work overlap, the time counts for the
    /// piece that began first. There are at most `MAX_STEP_TIMES` entries.
    pub by: HashMap<(u32, u32), u64>,
    /// Times in which the GPU ran no work, in nanoseconds and in order. The last one ends at `u64::MAX`.
    pub idle: Vec<Span>,
}

/// Adds up the busy time of each GPU, in total and by iteration. `iterations` contains the time spans of the
/// iterations, which are in nanoseconds and do not overlap.
#[derive(Debug)]
pub(crate) struct Busy {
    iterations: Vec<Span>,
    /// The GPUs. The index is the GPU's number. The last entry is the GPU with the largest number that ran work.
    devices: Vec<Device>,
}

#[derive(Debug, Default)]
struct Device {
    waiting: Vec<(Span, u32)>,
    all: WorkUnion,
    /// The union of the times of kernels, without copies and memory sets.
    kernels: WorkUnion,
    did: DeviceActivity,
    /// Index of the last iteration that has entries in `did.by`.
    last_kept: usize,
    idle: IdleSpans,
}

/// The union of the times of pieces of work. The pieces arrive in the order of their starts.
#[derive(Debug, Default)]
struct WorkUnion {
    /// Latest end of the work that was counted so far, in nanoseconds.
    until: u64,
    /// Index of the iteration at which the next search starts. Work comes in the order of its starts, so earlier
    /// iterations are no longer needed.
    place: usize,
}

impl Busy {
    pub(crate) fn new(iterations: Vec<Span>) -> Self {
        Self {
            iterations,
            devices: Vec::new(),
        }
    }

    /// Adds a piece of work of a GPU. `what` is a number that stands for the kernel or the kind of
    /// copy (see [`COPIES`]).
    pub(crate) fn add(&mut self, device: u8, work: Span, what: u32) {
        let device = get_or_add(&mut self.devices, device);
        device.waiting.push((work, what));
        if device.waiting.len() >= 2 * MIN_HELD_BACK {
            device.settle(&self.iterations, MIN_HELD_BACK);
        }
    }

    /// Returns the work of each GPU that ran work in at least one iteration.
    pub(crate) fn finish(mut self) -> Vec<DeviceActivity> {
        for device in &mut self.devices {
            device.settle(&self.iterations, 0);
        }
        let did = (0..=u8::MAX)
            .zip(self.devices)
            .map(|(number, device)| DeviceActivity {
                device: number,
                idle: device.idle.finish(),
                ..device.did
            });
        did.filter(|did| !did.parts.is_empty()).collect()
    }
}

/// Returns the entry of a GPU in a list whose index is the GPU's number. The list grows if it is too short.
pub(crate) fn get_or_add<T: Default>(devices: &mut Vec<T>, device: u8) -> &mut T {
    let place = usize::from(device);
    if place >= devices.len() {
        devices.resize_with(place + 1, T::default);
    }
    &mut devices[place]
}

impl Device {
    /// Adds the pieces of work that are held back to the busy time, except the `keep` pieces with the latest starts.
    fn settle(&mut self, iterations: &[Span], keep: usize) {
        // Sort the held-back pieces. Most of them are in order already, so sorting is cheap.
        self.waiting.sort_by_key(|(work, _)| work.start);
        let settled = self.waiting.len().saturating_sub(keep);
        for index in 0..settled {
            let (work, what) = self.waiting[index];
            self.count(iterations, work, what);
        }
        self.waiting.drain(..settled);
    }

    /// Adds a piece of work to the busy time: only the part of its time in which no earlier piece
    /// ran. Pieces must come in the order of their starts.
    fn count(&mut self, iterations: &[Span], work: Span, what: u32) {
        let before = self.all.until;
        if let Some(new) = self.all.new_part(work) {
            self.idle.work(new);
            let (did, last_kept) = (&mut self.did, &mut self.last_kept);
            self.all.each(iterations, new, |place, busy| {
                let key = (place as u32, what);
                let has_room = did.by.len() < MAX_STEP_TIMES;
                if has_room || place <= *last_kept && did.by.contains_key(&key) {
                    *last_kept = place.max(*last_kept);
                    *did.by.entry(key).or_default() += busy;
                }
                match did.parts.last_mut() {
                    Some(part) if part.place == place => {
                        part.busy += busy;
                        part.gaps += new.start - before;
                    }
                    _ => did.parts.push(IterationActivity {
                        place,
                        busy,
                        kernels: 0,
                        gaps: 0,
                    }),
                }
            });
        }
        if !is_kernel(what) {
            return;
        }
        if let Some(new) = self.kernels.new_part(work) {
            let parts = &mut self.did.parts;
            self.kernels.each(iterations, new, |place, ran| {
                // `self.all` was updated first and has created an entry for each iteration in which work ran.
                if let Ok(at) = parts.binary_search_by_key(&place, |part| part.place) {
                    parts[at].kernels += ran;
                }
            });
        }
    }
}

impl WorkUnion {
    /// Returns the part of a piece of work that lies after the end of all work counted so far;
    /// `None` if there is no such part.
    fn new_part(&mut self, work: Span) -> Option<Span> {
        let new = Span {
            start: work.start.max(self.until),
            end: work.end,
        };
        let is_new = new.start < new.end;
        if is_new {
            self.until = new.end;
        }
        is_new.then_some(new)
    }

    /// Calls `each` with the index of each iteration that `new` overlaps and the length of the
    /// overlap in nanoseconds.
    fn each(&mut self, iterations: &[Span], new: Span, mut each: impl FnMut(usize, u64)) {
        while let Some(around) = iterations.get(self.place) {
            if around.start >= new.end {
                break;
            }
            let overlap = new.overlap(around);
            if overlap > 0 {
                each(self.place, overlap);
            }
            if around.end > new.end {
                break;
            }
            self.place += 1;
        }
    }
}

/// Returns true if the number `what` stands for a kernel, and not for a copy or a memory set.
const fn is_kernel(what: u32) -> bool {
    what < COPIES
}

/// Number of kinds of copies. Their numbers begin at 0.
pub(crate) const KINDS: usize = 11;
/// Kind that stands for memory sets. Its number follows the numbers of the copies.
pub(crate) const SET: usize = KINDS;

/// First number that stands for a kind of copy or a memory set. Lower numbers stand for kernels;
/// they are the ids of the kernels' names.
pub(crate) const COPIES: u32 = u32::MAX - KINDS as u32;

/// Returns the name of the kernel or kind of copy that the number `what` stands for.
pub(crate) fn work_name(what: u32, strings: &Strings) -> String {
    match what.checked_sub(COPIES) {
        Some(kind) => format!("copy {}", copy_name(kind as usize)),
        None => kernel_name::short(&kernel_name::full(strings.get(what))),
    }
}

/// Returns the name of a kind of copy, or of memory sets.
pub(crate) fn copy_name(kind: usize) -> &'static str {
    match kind {
        SET => "memset",
        _ => CopyKind::from_code(kind as u8).name(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    fn part(place: usize, busy: u64, gaps: u64) -> IterationActivity {
        IterationActivity {
            place,
            busy,
            kernels: busy,
            gaps,
        }
    }

    fn found(iterations: &[Span], work: &[(u8, Span)]) -> Vec<Vec<IterationActivity>> {
        let mut busy = Busy::new(iterations.to_vec());
        work.iter()
            .for_each(|(device, work)| busy.add(*device, *work, 0));
        let did = busy.finish().into_iter();
        did.map(|did| did.parts).collect()
    }

    #[test]
    fn work_at_once_counts_once_in_the_iterations_that_it_lies_in() {
        let iterations = [span(100, 200), span(200, 300), span(400, 500)];
        let work = [
            (0, span(150, 160)),
            (0, span(90, 110)),
            (0, span(155, 170)),
            (0, span(152, 153)),
            (0, span(190, 210)),
            (0, span(310, 390)),
            (0, span(280, 420)),
            (0, span(430, 440)),
            (3, span(500, 600)),
            (2, span(0, 1000)),
        ];
        let first = vec![part(0, 40, 60), part(1, 30, 70), part(2, 30, 10)];
        let second = vec![part(0, 100, 0), part(1, 100, 0), part(2, 100, 0)];
        assert_eq!(found(&iterations, &work), [first, second]);
        assert!(found(&[], &work).is_empty());
        assert!(found(&iterations, &[]).is_empty());
    }

    #[test]
    fn the_time_at_work_is_that_of_what_ran() {
        let mut busy = Busy::new(vec![span(100, 200), span(200, 300)]);
        for (what, work) in [(1, span(90, 150)), (2, span(120, 250)), (1, span(240, 245))] {
            busy.add(0, work, what);
        }
        let did = busy.finish().remove(0);
        let expected = [((0, 1), 50), ((0, 2), 50), ((1, 2), 50)];
        assert_eq!(did.by, expected.into_iter().collect());
        assert_eq!(did.idle, [span(0, 90), span(250, u64::MAX)]);
    }

    #[test]
    fn kernels_have_a_union_of_their_own() {
        let mut busy = Busy::new(vec![span(0, 100), span(100, 200)]);
        let copy = COPIES + 1;
        for (what, work) in [
            (copy, span(10, 50)),
            (1, span(20, 30)),
            (2, span(25, 60)),
            (copy, span(90, 120)),
            (1, span(110, 130)),
        ] {
            busy.add(0, work, what);
        }
        let parts = busy.finish().remove(0).parts;
        let of = |part: &IterationActivity| (part.busy, part.kernels);
        assert_eq!(
            parts.iter().map(of).collect::<Vec<_>>(),
            [(60, 40), (30, 20)]
        );
    }

    #[test]
    fn any_number_of_pieces_that_are_out_of_order_by_less_than_the_room() {
        let iterations: Vec<_> = (0..400)
            .map(|n| span(n * 10_000, n * 10_000 + 9_000))
            .collect();
        let mut work: Vec<_> = (0..400_000)
            .map(|n| (0, span(n * 10, n * 10 + 7)))
            .collect();
        for block in work.chunks_mut(MIN_HELD_BACK / 2) {
            block.reverse();
        }
        let found = found(&iterations, &work);
        // Each iteration has 900 pieces of work of 7 ns, and 899 gaps of 3 ns between them.
        let expected: Vec<_> = (0..400).map(|n| part(n, 900 * 7, 899 * 3)).collect();
        assert_eq!(found, [expected]);
    }

    #[test]
    fn what_comes_far_too_late_is_lost_and_nothing_else() {
        let mut work: Vec<_> = (0..3 * MIN_HELD_BACK as u64)
            .map(|n| (0, span(n * 10, n * 10 + 7)))
            .collect();
        work.push((0, span(0, 9)));
        let all = 3 * MIN_HELD_BACK as u64 * 10;
        let found = found(&[span(0, all)], &work);
        assert_eq!(found[0][0].busy, 3 * MIN_HELD_BACK as u64 * 7);
    }
}
