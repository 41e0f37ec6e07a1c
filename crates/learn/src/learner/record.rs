//! Records calls in the history, and decides when to examine it.

use super::{Learner, LearnerState};
use crate::call::{SiteCall, token};
use crate::choose::{self, Choice, Followed, Parts};
use crate::engine;
use crate::history::{self, HistoryEntry};
use crate::pause::Clock;
use crate::site::{self, LEVELS};
use crate::trail::{THREADS, ThreadLaunches, Trails, slot};

/// Number of history entries before the history is examined for the first time.
const FIRST_LOOK: usize = 16;
/// Maximum number of history entries for which the learner watches a new choice of a call site, if the choice has
/// become reliable. Then the learner rests (stops recording calls).
const WATCHED_ENTRIES: usize = 2 * history::MAX_ENTRIES;
/// After this number of iterations with a reliable choice, the learner rests even if it has recorded fewer than
/// `WATCHED_ENTRIES` entries. It does not rest early if the iterations may be parts of longer iterations.
const WATCHED_PERIODS: u64 = 64;

impl Learner {
    /// Records the call in the history, and examines the history if that is due. Returns true if an iteration
    /// ends at this call.
    #[cold]
    pub(super) fn record(
        &mut self,
        trails: &Trails,
        thread: u32,
        call: SiteCall,
        ends: bool,
        clock: Clock,
    ) -> bool {
        let own = slot(thread);
        let mut idle = true;
        let mut dropped = false;
        for other in 0..(trails.used() as usize).min(THREADS) {
            let work = self.fresh(trails, other);
            idle &= work == ThreadLaunches::default();
            if other != own && work != ThreadLaunches::default() {
                dropped |= self.push(HistoryEntry::new(other, work, None, [0; LEVELS], false));
            }
            if other != own {
                self.seen[other] = trails.work(other as u32);
            }
        }
        let copied = trails.before(thread).next() == Some(token::COPY_TO_HOST);
        if idle && call != SiteCall::CopyToHost && !copied {
            // Nothing was launched since the last history entry, so no new entry is needed. This is
            // so for several waits in a row, the upload of weights, and polling.
            return ends;
        }
        let work = self.fresh(trails, own);
        self.seen[own] = trails.work(thread);
        let helper = trails.helper(thread);
        let keys = site::keys(trails, thread, call, helper);
        let times = self.pauses.take(thread, clock);
        dropped |= self.push(HistoryEntry::new(own, work, Some(call), keys, helper).at(times));
        if dropped {
            self.rebase();
        }
        if !helper || matches!(call, SiteCall::CopyToHost | SiteCall::BlockingCopy) {
            self.waited();
        }
        self.watch = self.watch.saturating_sub(1);
        self.look = self.look.saturating_sub(1);
        self.check = (self.check + 1) % engine::LATEST_ENTRIES;
        if self.check == 0 {
            self.check_who_launches();
        }
        if self.look > 0 {
            return ends;
        }
        self.look(trails, thread, call, ends)
    }

    fn push(&mut self, entry: HistoryEntry) -> bool {
        self.entries_since = self.entries_since.saturating_add(1);
        let full = self.history.push(entry);
        if full {
            self.uncounted = self.uncounted.saturating_sub(history::MAX_ENTRIES / 2);
        }
        full
    }

    /// Checks which thread launches most work. If that is another thread than before, requests a new choice soon.
    fn check_who_launches(&mut self) {
        let settled = self.state == LearnerState::Settled;
        let followed = if settled {
            self.rule.threads
        } else {
            1 << self.foremost
        };
        let entries = self.history.entries();
        if engine::is_active(entries, followed) {
            return;
        }
        self.foremost = engine::most_active(entries);
        if let Some(since) = engine::since_stale(entries) {
            self.keep(since.max(engine::LATEST_ENTRIES));
            self.rebase();
        } else if !settled || !engine::handed_over(entries, &self.rule) {
            return;
        }
        self.look = 0;
        self.hurried = true;
    }

    /// Recomputes `before`, the number of iterations before the history's oldest entry, after entries were dropped.
    fn rebase(&mut self) {
        if self.state == LearnerState::Settled {
            let (within, _) = choose::occurrences(self.history.since(self.uncounted), &self.rule);
            self.before = self
                .closed
                .saturating_sub(u64::from(within / self.rule.parts()));
        }
    }

    /// Called when a stream capture begins. The thread's work since its last entry was the warm-up for the capture, so
    /// most of it is left out of the history. One launch is kept, so that the wait after this launch is recorded, too.
    pub(super) fn leave_out_warm_up(&mut self, trails: &Trails, thread: u32) {
        let own = slot(thread);
        let fresh = self.fresh(trails, own);
        let more = match (fresh.launches, fresh.graphs) {
            (0, graphs) => ThreadLaunches {
                launches: 0,
                graphs: graphs.saturating_sub(1),
            },
            (launches, graphs) => ThreadLaunches {
                launches: launches - 1,
                graphs,
            },
        };
        if let Some(seen) = self.seen.get_mut(own) {
            *seen = seen.plus(more);
        }
    }

    fn fresh(&self, trails: &Trails, thread: usize) -> ThreadLaunches {
        let seen = self.seen.get(thread).copied().unwrap_or_default();
        trails.work(thread as u32).since(seen)
    }

    fn look(&mut self, trails: &Trails, thread: u32, call: SiteCall, ends: bool) -> bool {
        let entries = self.history.entries();
        let length = entries.len();
        let settled = self.state == LearnerState::Settled;
        self.look = Self::next_look(length, settled && !self.hurried);
        if length < FIRST_LOOK {
            self.look = FIRST_LOOK - length;
            return ends;
        }
        self.patience = choose::MIN_PERIODS_TO_NEXT_LOOK;
        let current = settled.then_some(Followed {
            rule: &self.rule,
            relied_on: self.understood,
            steady: self.steady,
        });
        let choice = self.scratch.choose(&self.history, self.uncounted, current);
        let Some(choice) = choice else {
            return self.stop_watching(ends);
        };
        self.hurried = false;
        if self.passes_are_steadier(&choice) {
            return self.follow_passes(trails, ends, choice.unsure_for);
        }
        self.suspects_parts = choice.parts == Parts::Suspected && !self.relied_on;
        self.patience = choice.unsure_for.max(1);
        let new = choice.rule;
        let overlap = new.threads & self.rule.threads != 0;
        let same = overlap && (new.key, new.level) == (self.rule.key, self.rule.level);
        if settled && same {
            self.confirm(trails, &choice);
            // `confirm` may have found that several occurrences of the call site are parts of one step (see `divide`).
            // Then this occurrence may end only a part.
            return self.stop_watching(ends && self.part == 0);
        }
        let last = entries.last().copied();
        let alike = settled && self.carry_count(&choice, overlap);
        let unseen = core::mem::take(&mut self.unseen);
        self.before += u64::from((unseen + new.median / 2) / new.median.max(1));
        self.closed = self.before + u64::from(choice.occurrences);
        self.part = 0;
        if alike {
            self.closed += u64::from(choice.earlier);
        }
        self.state = LearnerState::Settled;
        self.patience = choice.unsure_for.max(choose::MIN_PERIODS_TO_NEXT_LOOK);
        if !alike {
            self.understood = false;
            self.even = 0;
            self.unawaited = 0;
            self.doubts = 0;
            self.watch = WATCHED_ENTRIES;
        }
        self.steady = choice.steady(if alike { self.steady } else { 0 });
        self.rule = new;
        self.divide(choice.parts);
        self.at = trails.work_of(new.threads).since(choice.since);
        self.waits = 0;
        self.entries_since = 0;
        self.judged = 0;
        self.unusual = 0;
        self.heir = None;
        let is_site = last.is_some_and(|entry| {
            (new.threads & 1 << entry.thread != 0 || new.helper)
                && new.matches(call, entry.helper, &entry.keys)
        });
        if is_site {
            self.note_context(trails, thread);
        }
        if self.part > 0 && !self.counts_inner {
            return false;
        }
        // If the old call site ends an iteration at this call, the next iteration opens now only if the new site has
        // ended the same iteration shortly before. Otherwise it opens soon, at the next occurrence of the new site.
        is_site || ends && alike && choice.since.weight() < new.median / 2
    }

    /// Updates the rule with a new choice that has the same call site.
    fn confirm(&mut self, trails: &Trails, choice: &Choice) {
        let new = &choice.rule;
        (self.rule.thread, self.rule.threads) = (new.thread, new.threads);
        self.at = trails.work_of(new.threads).since(choice.since);
        (self.rule.median, self.rule.rivals) = (new.median, new.rivals);
        (self.rule.periods, self.rule.agreeing) = (new.periods, new.agreeing);
        self.rule.waits = new.waits;
        self.steady = choice.steady(self.steady);
        if !self.relied_on {
            self.divide(choice.parts);
        }
        // The second condition also makes a rule reliable. It holds after a series of iterations without a model's
        // first and last kernels that is longer than any model has layers. The history may hold fewer iterations than
        // this series.
        let is_sure = choice.unsure_for == 0 || self.even > choose::PERIODS_BEYOND_LAYERS;
        if is_sure && !self.understood {
            self.understood = true;
            self.since = self.closed;
            if !self.rule.helper {
                self.periods.rest(self.counts_passes());
            }
        } else if !is_sure && !self.keeps_reliance && !choice.has_agreement {
            // The iterations so far stay counted, but no window opens by this rule until enough of its periods have
            // about the usual work again.
            self.understood = false;
            self.confirmed = self.closed;
        }
    }

    /// Called when another call site is chosen. Retains the number of iterations counted so far, or scales it if the
    /// old call site did not end iterations. Returns true if both call sites seem to end the same iterations. `overlap`
    /// is true if both rules follow at least one common thread.
    fn carry_count(&mut self, choice: &Choice, overlap: bool) -> bool {
        let mut alike = false;
        if !overlap {
            // The old count came from threads that did other work. The iterations of reliable rules are kept (see
            // `standing`), and iterations of the new rule are added to them.
            self.before = self.standing();
        } else if choice.replaced > 0 {
            let (new, old) = (u64::from(choice.occurrences), u64::from(choice.replaced));
            alike = new * 13 >= old * 10 && new * 10 <= old * 13;
            if !alike {
                // The earlier iterations were counted by a call site that does not end iterations.
                // So their number is scaled by the ratio of the occurrences of both sites.
                self.before = self.before.saturating_mul(new) / old;
            }
        }
        alike
    }

    /// Counts whole steps from now on instead of their equal parts, if a step has several parts.
    fn divide(&mut self, parts: Parts) {
        let Parts::Of { each, since } = parts else {
            return;
        };
        if self.rule.more_parts == 0 {
            self.closed /= u64::from(each);
            self.before /= u64::from(each);
        }
        self.rule.more_parts = each.saturating_sub(1);
        self.part = since;
    }

    /// Returns the number of further entries after which the history is examined next. `length` is the number of
    /// entries in the history. With frequent examinations, few iterations are missed after a long warm-up. With rare
    /// examinations, the cost per call stays low.
    fn next_look(length: usize, settled: bool) -> usize {
        let next = if settled {
            length / 2
        } else {
            (length / 4).min(48 + length / 16)
        };
        next.max(4)
    }

    fn stop_watching(&mut self, ends: bool) -> bool {
        if self.state == LearnerState::Settled && self.understood {
            let watched = self.closed.saturating_sub(self.since) >= WATCHED_PERIODS;
            self.resting = self.watch == 0 || watched && !self.suspects_parts;
            if self.resting {
                self.periods.rest(self.counts_passes());
            }
        }
        ends
    }
}
