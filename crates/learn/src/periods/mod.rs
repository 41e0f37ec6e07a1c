//! Finds repeating periods among the launches themselves. Loops without waits need this search: the passes of a network
//! within an image, or a training loop that reads nothing back.
//!
//! While the learner learns, it examines each launch together with the seven launches before it: the launch's
//! *context*. A context that always recurs after the same number of launches marks a pass ([`Recurrence`]). The choice
//! begins with the context that has the shortest interval. It moves to a context with a longer interval if the longer
//! interval explains why the shorter intervals are not all equal, just as for waits ([`crate::choose`]). So it moves
//! from layers to passes. It does not move from passes to images, because images add almost no work. After the choice,
//! the learner only looks for the chosen context, the *anchor*.

mod recurrence;

pub(crate) use recurrence::Recurrence;

use crate::site;
use crate::trail::{THREADS, Threads, Trails, slot};

/// Number of launches below which a repeating period (a series of launches that recurs) may be a single operator.
const LAYER: u32 = 24;
/// Number of launches below which a repeating period (a series of launches that recurs) may be one layer of a model.
const LITTLE: u32 = 96;
/// Number of sets into which the table of contexts (a launch with the launches before it) is divided. Each set has room
/// for [`WAYS`] contexts.
const SETS: usize = 56;
const WAYS: usize = 8;
/// Number of launches between two examinations of all contexts (a launch with the launches before it).
const LOOK_EVERY: u32 = 32;
/// Maximum number of different interval lengths that are compared for one thread; further lengths are ignored. For each
/// length, only the context with the highest rank (see [`Periods::rank`]) is compared.
const MAX_INTERVALS: usize = 24;
/// Number of launches between two checks of the number of contexts (a launch with the launches before it) that were
/// lost for lack of room.
const LOSSES_COUNTED_EVERY: u32 = 8192;
/// If at least this number of contexts are lost for lack of room in [`LOSSES_COUNTED_EVERY`] launches, only half as
/// many contexts are stored from then on.
const MAX_LOST: u32 = 512;
/// Number of launches after which a search is paused, unless the learner has ended it before by [`Periods::rest`].
const LONGEST_SEARCH: u32 = 1 << 17;
/// Length of the first pause of the search, in launches. Each further pause is four times as long.
const FIRST_PAUSE: u32 = 1 << 20;
const MAX_PAUSES: u32 = 5;
/// Number of successive periods without a wait after which periods are counted as iterations. A period is the
/// interval between two occurrences of the anchor (the launch context that marks the beginning of a pass).
pub(crate) const UNWAITED: u16 = 24;
/// Number of successive periods (repeating series of launches) without a wait after which windows (recorded intervals)
/// may open at these periods. The periods are then probably not the passes of a network within an image: an image ends
/// with a wait, and most images have fewer passes.
pub(crate) const UNWAITED_FOR_LONG: u16 = 120;

/// The launches that have to be reported to the learner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launches {
    /// The learner needs no report of any launch.
    None,
    /// Every launch of every thread has to be reported.
    All,
    /// Only launches of this thread have to be reported: it launches the anchor (the context that
    /// marks the beginning of a pass).
    Of(u32),
    /// No launch has to be reported until the process has made this number of further launches. The
    /// search then begins again.
    After(u32),
}

/// The search for the period in which the launches of a loop repeat. Its result is the anchor: the launch context
/// that marks the beginning of each period.
#[derive(Debug)]
pub(crate) struct Periods {
    contexts: [[Recurrence; WAYS]; SETS],
    /// Contexts (a launch with the launches before it) are stored only if this number of low bits of their keys are
    /// zero, to save room.
    sampled: u32,
    /// Number of contexts (a launch with the launches before it) lost for lack of room since the last check (see
    /// `LOSSES_COUNTED_EVERY`).
    lost: u32,
    /// Number of launches that the current search has examined.
    seen: u32,
    /// True if the search for repeating launches is over or paused.
    is_idle: bool,
    pauses: u32,
    /// Total work, in launches, of the threads in `threads` at the time when the search was paused.
    paused_at: u32,
    /// Threads that have launched since the search began.
    threads: Threads,
    /// Number of waits of the process so far.
    waits: u32,
    /// The launch context (a launch and those before it) that was chosen to mark the beginning of a pass, a period of
    /// repeating launches. If no context was chosen, its `is_used` is false.
    anchor: Recurrence,
    /// True if the learner still looks for occurrences of `anchor` after the search has ended.
    is_followed: bool,
    /// Number of passes that were counted by earlier anchors (contexts that marked the beginning of a pass), which no
    /// longer recur.
    before: u64,
}

impl Periods {
    pub(crate) const fn new() -> Self {
        Self {
            contexts: [[Recurrence::NONE; WAYS]; SETS],
            sampled: 0,
            lost: 0,
            seen: 0,
            is_idle: false,
            pauses: 0,
            paused_at: 0,
            threads: 0,
            waits: 0,
            anchor: Recurrence::NONE,
            is_followed: false,
            before: 0,
        }
    }

    /// Returns the anchor (the context that marks the beginning of a pass), if one was found.
    pub(crate) fn found(&self) -> Option<&Recurrence> {
        self.anchor.is_used.then_some(&self.anchor)
    }

    /// Returns the number of passes (periods of repeating launches) found so far.
    pub(crate) fn passes(&self) -> u64 {
        self.before + u64::from(self.anchor.count)
    }

    /// Restarts the count of passes (periods of repeating launches) at 0.
    pub(crate) fn restart(&mut self) {
        self.before = 0;
        self.anchor.count = 0;
    }

    /// Counts a wait of the process, by which the search finds the periods that contain waits.
    pub(crate) fn waited(&mut self) {
        self.waits = self.waits.wrapping_add(1);
    }

    /// Ends the search for launch contexts that repeat. If `keeps_anchor` is true, the learner still counts passes by
    /// the anchor (the context that marks the beginning of a pass).
    pub(crate) fn rest(&mut self, keeps_anchor: bool) {
        self.is_idle = true;
        self.pauses = MAX_PAUSES;
        self.is_followed = keeps_anchor;
    }

    /// Restarts the search for contexts that repeat. The anchor (the context that marks the beginning of a
    /// pass) is kept until it no longer recurs.
    pub(crate) fn search(&mut self) {
        self.contexts = [[Recurrence::NONE; WAYS]; SETS];
        (self.sampled, self.lost, self.seen) = (0, 0, 0);
        (self.is_idle, self.is_followed, self.threads) = (false, true, 0);
    }

    /// Returns the launches that have to be reported to the learner.
    #[inline]
    pub(crate) fn asks(&self) -> Launches {
        if !self.is_idle {
            return Launches::All;
        }
        match self.found() {
            Some(anchor) if self.is_followed => Launches::Of(u32::from(anchor.thread)),
            _ if self.pauses >= MAX_PAUSES => Launches::None,
            _ => Launches::After(self.pause()),
        }
    }

    fn pause(&self) -> u32 {
        FIRST_PAUSE << (2 * self.pauses.saturating_sub(1))
    }

    /// Called for a launch, which the thread's trail (list of recent calls) already contains. Returns true if a pass (a
    /// repeating period) begins with this launch.
    pub(crate) fn launched(&mut self, trails: &Trails, thread: u32) -> bool {
        let follows = self.anchor.is_used
            && (self.is_followed || !self.is_idle)
            && usize::from(self.anchor.thread) == slot(thread);
        if self.is_idle && !follows {
            self.look_whether_paused(trails);
            return false;
        }
        let key = site::launch_key(trails, thread);
        let work = trails.work(thread);
        let begins = follows && self.anchor.key == key;
        if begins {
            self.anchor.recur(work, self.waits);
        } else if follows && self.anchor.is_stale(work) {
            self.lose_anchor();
            if self.is_idle {
                self.search();
            }
        }
        if !self.is_idle {
            self.note(trails, thread, key);
        }
        begins
    }

    #[cold]
    fn look_whether_paused(&mut self, trails: &Trails) {
        let work = trails.work_of(self.threads).weight();
        if self.pauses < MAX_PAUSES && work.wrapping_sub(self.paused_at) >= self.pause() {
            self.search();
        }
    }

    /// Stores a launch's context (the launch and the seven before it). After fixed numbers of launches, this function
    /// also adapts the sampling of contexts, examines all contexts, or pauses the search.
    fn note(&mut self, trails: &Trails, thread: u32, key: u32) {
        self.seen += 1;
        self.threads |= 1 << slot(thread);
        if key.trailing_zeros() >= self.sampled {
            self.keep(trails, thread, key);
        }
        if self.seen.is_multiple_of(LOSSES_COUNTED_EVERY) {
            let lost = core::mem::take(&mut self.lost);
            self.sampled = match lost {
                MAX_LOST.. => self.sampled + 1,
                _ => self.sampled.saturating_sub(1),
            };
        }
        if self.seen.is_multiple_of(LOOK_EVERY) {
            self.look(trails);
        }
        if self.seen >= LONGEST_SEARCH {
            self.is_idle = true;
            self.pauses += 1;
            self.paused_at = trails.work_of(self.threads).weight();
        }
    }

    fn keep(&mut self, trails: &Trails, thread: u32, key: u32) {
        let own = slot(thread);
        let (at, waits) = (trails.work(thread), self.waits);
        let Some(set) = self.contexts.get_mut((key >> 16) as usize % SETS) else {
            return;
        };
        let is_known =
            |c: &&mut Recurrence| c.is_used && c.key == key && usize::from(c.thread) == own;
        if let Some(known) = set.iter_mut().find(is_known) {
            return known.recur(at, waits);
        }
        let is_stale = |c: &Recurrence| c.is_stale(trails.work(u32::from(c.thread)));
        // Replace an unused context, if there is one. Otherwise replace the oldest of the contexts that occurred only
        // once or no longer recur. If there is none of these either, the new context is not stored.
        let least = set.iter_mut().min_by_key(|c| match () {
            () if !c.is_used => (0, 0),
            () if c.count == 1 || is_stale(c) => (1, u32::MAX - c.age(trails)),
            () => (2, 0),
        });
        let Some(place) = least else { return };
        if place.is_used {
            self.lost += 1;
            if place.count > 1 && !is_stale(place) {
                return;
            }
        }
        *place = Recurrence::first(key, own, at, waits);
    }

    /// Chooses the anchor (the context that marks the beginning of a pass) among the contexts of all threads: that of
    /// the thread whose regular passes contain the most work.
    fn look(&mut self, trails: &Trails) {
        let mut best: Option<Recurrence> = None;
        for thread in 0..THREADS {
            if self.threads & 1 << thread == 0 {
                continue;
            }
            let found = self.outermost(trails, thread);
            let work = |c: &Recurrence| u64::from(c.weight()) * u64::from(c.count);
            best = match (best, found) {
                (Some(best), Some(found)) if work(&best) >= work(&found) => Some(best),
                (best, found) => found.or(best),
            };
        }
        match best {
            Some(best) => self.anchor = best,
            None if self.anchor.is_used && !self.anchor.is_steady() => self.lose_anchor(),
            None => {}
        }
    }

    fn lose_anchor(&mut self) {
        self.before += u64::from(self.anchor.count);
        self.anchor = Recurrence::NONE;
    }

    /// Returns the context that marks the outermost loop of a thread's launches. The search starts at the
    /// context with the shortest interval and moves outward.
    fn outermost(&self, trails: &Trails, thread: usize) -> Option<Recurrence> {
        let mut found: [Option<&Recurrence>; MAX_INTERVALS] = [None; MAX_INTERVALS];
        let mut count = 0;
        let now = trails.work(thread as u32);
        let regular = |c: &&Recurrence| {
            c.is_used && usize::from(c.thread) == thread && c.is_regular() && !c.is_stale(now)
        };
        for context in self.contexts.iter().flatten().filter(regular) {
            let same = |known: &&mut Option<&Recurrence>| {
                known.is_some_and(|known| known.interval == context.interval)
            };
            if let Some(same) = found[..count].iter_mut().find(same) {
                if same.is_some_and(|same| self.rank(context) > self.rank(same)) {
                    *same = Some(context);
                }
            } else if let Some(free) = found.get_mut(count) {
                *free = Some(context);
                count += 1;
            }
        }
        found[..count].sort_unstable_by_key(|c| c.map(|c| (c.weight(), c.key)));
        let chosen = found.into_iter().flatten().reduce(|inner, outer| {
            if inner.is_explained_by(outer) || !inner.covers_work() {
                outer
            } else {
                inner
            }
        });
        chosen
            .filter(|c| c.is_steady() && !c.may_be_layer())
            .copied()
    }

    /// Returns the rank of a context among those with the same interval; the context with the highest rank is chosen.
    /// A context that recurs in every pass has the highest rank. The anchor (the present choice) gets a small bonus,
    /// so that it is kept unless another context is clearly better.
    fn rank(&self, context: &Recurrence) -> (u32, u16, u32) {
        let is_anchor = self.anchor.is_used
            && (self.anchor.key, self.anchor.thread) == (context.key, context.thread);
        let count = context.count + if is_anchor { 2 } else { 0 };
        (count, u16::MAX - context.others(), context.key)
    }
}
