//! The learner: it receives calls, learns what an iteration is, and returns the points at which iterations
//! open.

mod passes;
mod record;
mod watch;

pub use passes::Inner;

use crate::asked::EndingCalls;
use tllmprof_calls::Wait;

use crate::call::{Call, SiteCall, token};
use crate::choose::Scratch;
use crate::history::History;
use crate::pause::{Clock, Pauses};
use crate::periods::{Launches, Periods};
use crate::rule::LearnedRule;
use crate::site;
use crate::trail::{DEPTH, THREADS, ThreadLaunches, Trail, Trails, slot};

/// After this many copies in a row that the program did not wait for, no wait for the next copy is expected.
const UNAWAITED: u32 = 4;
/// The stage of learning: whether the learner has a rule for iterations, and whether the rule still
/// holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LearnerState {
    /// The learner has no rule for iterations yet, so it reports none.
    Learning,
    /// The learner has a rule, and reports each iteration that opens.
    Settled,
    /// The calls no longer recur as the last rule requires. No iteration opens until the learner finds a new rule.
    Lost,
}

/// A boundary between iterations: the call at which the next iteration opens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boundary {
    /// Number of iterations closed so far. This is also the number of the iteration that opens, counted from 0.
    pub iteration: u64,
}

/// Learns which call site (a wait or a copy, see `lib.rs`) ends an iteration, and then reports each
/// iteration.
#[derive(Debug)]
pub struct Learner {
    history: History,
    scratch: Scratch,
    state: LearnerState,
    rule: LearnedRule,
    /// Number of iterations that have closed. It includes iterations from before the rule was chosen, which the learner
    /// found when it examined the history.
    closed: u64,
    /// Number of iterations that closed before the oldest entry of the history.
    before: u64,
    /// Number of closed iterations that stay counted even if the current rule turns out wrong. They were counted
    /// while a rule was reliable.
    confirmed: u64,
    /// True if the rule for iterations has held for long enough to count as reliable.
    understood: bool,
    /// Work, in launches, that a new loop did before the learner noticed that the loop of the last rule had ended.
    unseen: u32,
    /// Value of `closed` (the number of closed iterations) at the time when the rule became reliable or was last put in
    /// doubt.
    since: u64,
    /// Number of entries in the history that were recorded before the count of iterations was last restarted.
    uncounted: usize,
    /// True if no history entries are recorded any more, because the rule needs neither a new choice nor a check.
    resting: bool,
    /// Number of further history entries until the learner next examines the history; 0 if it does so at the next
    /// entry.
    look: usize,
    /// Number of further iterations until the learner examines again whether the rule is reliable.
    patience: u32,
    /// Number of iterations since the last iteration that was far longer than usual.
    steady: u32,
    /// Number of iterations since the last iteration that may have contained a model's first and last kernels in
    /// addition to a layer.
    even: u32,
    /// Number of history entries since the learner last checked which threads launch.
    check: usize,
    /// True if the followed threads (those that launch for the loop) have stopped and other threads continue, so that
    /// a new choice is needed soon.
    hurried: bool,
    /// The thread that launched most work when the learner last noticed that most of the work had moved to other
    /// threads. It is used while the learner has no rule.
    foremost: usize,
    /// Maximum number of further history entries for which the learner watches a reliable choice of a call site before
    /// it rests (records no calls).
    watch: usize,
    /// For each thread slot, the thread's cumulative work (launches of kernels and graphs) at the time of its last
    /// history entry.
    seen: [ThreadLaunches; THREADS],
    /// Cumulative work (launches of kernels and graphs) of the followed threads (those that launch for the loop) at the
    /// last occurrence of the call site, or at the beginning of the last pass (period of repeating launches).
    at: ThreadLaunches,
    /// The thread whose copy to the host has ended an iteration, until the next iteration opens. It opens when that
    /// thread has waited for the copy, or at the next launch of that thread or of the rule's thread. Otherwise `None`.
    pending: Option<u32>,
    /// The thread that made the last copy that closed an iteration.
    copier: u32,
    /// Number of copies in a row that each ended an iteration and that the copying thread did not wait for before its
    /// next launch.
    unawaited: u32,
    /// Estimated number of waits and copies since the last occurrence of the call site, by threads that launch work. It
    /// is an estimate because only a sample of these calls is examined.
    waits: u32,
    /// A counter that selects a sample of the calls that are not at the call site. The learner examines only the
    /// calls in this sample.
    misses: u32,
    /// Number of history entries recorded since the last occurrence of the call site.
    entries_since: usize,
    /// Number of periods (iterations as the rule counts them) that were compared with a usual period so far, in the
    /// current group of `JUDGED_PERIODS`.
    judged: u32,
    /// Number of unusual periods (iterations as the rule counts them) in the current group of `JUDGED_PERIODS`.
    unusual: u32,
    /// Number of times that many unusual periods (iterations as the rule counts them) have put the rule in doubt.
    doubts: u32,
    /// Number of calls that were passed to [`Learner::event`] although the learner had not asked for them. The count
    /// restarts at 0 when it reaches [`EndingCalls::SAMPLE`].
    unasked: u32,
    /// True if a window (a recorded interval) has opened. From then on the learner must not reinterpret iterations as
    /// parts of longer ones.
    relied_on: bool,
    /// True if a window has opened by a learnt rule. From then on a reliable rule stays reliable as long as its call
    /// site recurs, even if fewer of its periods have the usual work.
    keeps_reliance: bool,
    /// True if iterations may turn out to be parts of longer iterations.
    suspects_parts: bool,
    /// Number of parts of the current iteration that have ended; 0 if iterations have no parts.
    part: u32,
    pauses: Pauses,
    /// A thread that has reached the call site but is not followed yet. It may join the followed threads (those that
    /// launch for the loop). The values are its number, its work at that time, and the followed threads' work at that
    /// time.
    heir: Option<(u32, ThreadLaunches, ThreadLaunches)>,
    /// The search for repeating launches, for loops without waits.
    periods: Periods,
    /// True if parts of steps must be counted instead of whole steps, provided that the learner finds both steps and
    /// parts.
    counts_inner: bool,
    /// True if iterations are counted by passes (repeating launches) although a helper thread's copy to the host also
    /// recurs. The helper thread may be late and make several copies together, so its copies are not counted.
    follows_passes: bool,
    /// The launches that begin a pass (a period of repeating launches), the latest first. They are the context that
    /// `pass_key` identifies.
    pass_context: [u64; DEPTH],
    pass_key: u32,
    /// Number of passes (periods of repeating launches) so far, up to the end of the last iteration.
    passes_at_end: u64,
    /// Number of passes (periods of repeating launches) in the last iteration.
    held: u32,
}

impl Learner {
    /// Returns a learner that has seen no calls.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            history: History::new(),
            scratch: Scratch::new(),
            state: LearnerState::Learning,
            rule: LearnedRule::NONE,
            closed: 0,
            before: 0,
            confirmed: 0,
            understood: false,
            unseen: 0,
            since: 0,
            uncounted: 0,
            resting: false,
            look: 0,
            patience: 0,
            steady: 0,
            even: 0,
            check: 0,
            foremost: 0,
            hurried: false,
            watch: 0,
            seen: [ThreadLaunches::NONE; THREADS],
            at: ThreadLaunches::NONE,
            pending: None,
            copier: 0,
            unawaited: 0,
            waits: 0,
            misses: 0,
            entries_since: 0,
            judged: 0,
            unusual: 0,
            doubts: 0,
            unasked: 0,
            relied_on: false,
            keeps_reliance: false,
            suspects_parts: false,
            part: 0,
            pauses: Pauses::new(),
            heir: None,
            periods: Periods::new(),
            counts_inner: false,
            follows_passes: false,
            pass_context: [0; DEPTH],
            pass_key: 0,
            passes_at_end: 0,
            held: 0,
        }
    }

    /// Starts learning in a process whose trails (lists of recent calls) may already have been used, such as after a
    /// fork. If `inner` is true, the learner counts parts of steps instead of whole steps where it finds both.
    pub fn begin(&mut self, trails: &Trails, inner: bool) {
        if self.closed > 0 || !self.history.entries().is_empty() {
            self.forget();
        }
        self.counts_inner = inner;
        for (thread, seen) in self.seen.iter_mut().enumerate() {
            *seen = trails.work(thread as u32);
        }
    }

    /// Resets the learner. This is a separate function because it needs 120 KiB of stack, more than some
    /// threads have.
    #[cold]
    #[inline(never)]
    fn forget(&mut self) {
        *self = Self::new();
    }

    /// Returns the state of the learner: no rule yet, a rule, or a rule whose loop has ended.
    #[must_use]
    pub fn state(&self) -> LearnerState {
        if self.counts_passes() {
            LearnerState::Settled
        } else {
            self.state
        }
    }

    /// Returns the rule for iterations. If the loop of the rule has ended, this is the last rule. Returns `None` while
    /// learning.
    #[must_use]
    pub fn rule(&self) -> Option<LearnedRule> {
        if self.counts_passes() {
            return self.pass_rule();
        }
        if self.counts_parts() {
            return Some(self.part_rule());
        }
        (self.state != LearnerState::Learning).then_some(self.rule)
    }

    /// Returns the number of iterations that have closed. It includes iterations from before the rule was chosen, which
    /// the learner found when it examined the history.
    #[must_use]
    pub fn detected(&self) -> u64 {
        if self.counts_passes() {
            self.periods.passes()
        } else if self.counts_parts() {
            self.closed * u64::from(self.rule.parts()) + u64::from(self.part)
        } else {
            self.closed
        }
    }

    /// Returns the number of iterations whose work has been launched completely. Normally these are the closed
    /// iterations. If iterations begin with a launch and do not end with a wait, the iteration in progress is
    /// included once it has as many launches as a usual iteration.
    #[must_use]
    pub fn launched_whole(&self, trails: &Trails) -> u64 {
        let detected = self.detected();
        let Some(usual) = self
            .rule
            .period
            .filter(|_| self.state == LearnerState::Settled)
        else {
            return detected;
        };
        let since = trails.work_of(self.rule.threads).since(self.at);
        // `since` does not include the launch that began the iteration, so 1 is added.
        let is_whole = since.launches + since.graphs + 1 >= usual.launches + usual.graphs;
        detected + u64::from(is_whole && detected > 0)
    }

    /// Returns true if the rule for iterations has held for long enough to count as reliable.
    #[must_use]
    pub fn understands(&self) -> bool {
        if self.counts_passes() {
            return self.understands_passes();
        }
        self.understood && matches!(self.state, LearnerState::Settled)
    }

    /// Called when a window (a recorded interval) has opened. From then on, iterations are not reinterpreted as parts
    /// of longer ones.
    pub fn rely(&mut self) {
        self.relied_on = true;
        self.periods
            .rest(self.counts_passes() || self.rule.is_pass());
    }

    /// Called when a window (a recorded interval) opens by the rule. From then on, the rule stays reliable as long as
    /// its call site recurs, even if fewer of its periods have the usual work.
    pub fn keep_reliance(&mut self) {
        self.keeps_reliance = true;
    }

    /// Restarts the count of iterations at 0. The rule is kept.
    pub fn restart(&mut self) {
        (self.closed, self.before, self.confirmed) = (0, 0, 0);
        self.unseen = 0;
        self.uncounted = self.history.entries().len();
        self.periods.restart();
    }

    /// Returns the set of calls that must be reported to the learner. `near` is true if a window (a recorded
    /// interval) will soon open or close, so that the exact calls at which iterations open matter. Otherwise only
    /// the number of iterations matters.
    #[must_use]
    pub fn asks(&self, near: bool) -> EndingCalls {
        match self.rule.call.filter(|_| self.resting) {
            None if self.resting && self.rule.period.is_some() => EndingCalls::NONE,
            None => EndingCalls::ALL,
            Some(SiteCall::CopyToHost) if near => EndingCalls::ALL,
            Some(call) => EndingCalls::only(call),
        }
    }

    /// Returns the threads whose next launch must be reported: an iteration opens at that launch, or the launch ends
    /// a pause that is being measured. If there is only one such thread, it is given twice; if there is none, the
    /// result is `None`. `near` has the same meaning as for [`Learner::asks`].
    #[must_use]
    pub fn asks_for_launch(&self, near: bool) -> Option<[u32; 2]> {
        let pending = self.pending.filter(|_| near);
        let paused = self.pauses.waits_for_launch_of().filter(|_| !self.resting);
        let followed = pending.map(|_| u32::from(self.rule.thread));
        // If `pending` names a thread, the iteration opens at a launch of that thread or of the rule's thread. Then
        // `paused` is left out, because the result has room for only two threads.
        let first = pending.or(paused)?;
        Some([first, followed.or(paused).unwrap_or(first)])
    }

    /// Returns the launches that have to be reported in addition to those of [`Learner::asks_for_launch`].
    #[inline]
    #[must_use]
    pub fn asks_for_launches(&self) -> Launches {
        self.periods.asks()
    }

    /// Passes a call to the learner. Calls must be passed in the order in which the process makes them. A launch must
    /// be passed before the process makes it, and a wait after it has returned. Returns the iteration that opens at the
    /// call, or `None`.
    #[inline]
    pub fn event(
        &mut self,
        trails: &Trails,
        thread: u32,
        call: Call,
        clock: Clock,
    ) -> Option<Boundary> {
        match call {
            Call::CaptureBegin => {
                trails.capture(thread, true);
                self.leave_out_warm_up(trails, thread);
            }
            Call::CaptureEnd => trails.capture(thread, false),
            _ if trails.capturing(thread) => {}
            _ => {
                trails.mark_used(thread);
                return self.live(trails, thread, call, clock);
            }
        }
        None
    }

    #[inline]
    fn live(&mut self, trails: &Trails, thread: u32, call: Call, clock: Clock) -> Option<Boundary> {
        let trail = trails.get(thread);
        match call {
            Call::Launch(kernel) => {
                trail.note_kernel(kernel);
                return self.launched(trails, thread, clock);
            }
            Call::GraphLaunch => {
                trail.note_graph();
                return self.launched(trails, thread, clock);
            }
            Call::CopyToDevice => trail.note(token::COPY_TO_DEVICE),
            Call::CopyToHost => {
                trail.note(token::COPY_TO_HOST);
                if self.asks(true).has_copies() {
                    return self.copied_to_host(trails, thread, true, clock);
                }
                self.not_asked(trails, thread);
            }
            Call::Returned(wait) => {
                trail.note(Trail::wait(wait));
                if self.asks(true).has(wait) {
                    return self.returned(trails, thread, wait, clock);
                }
                self.not_asked(trails, thread);
            }
            Call::CaptureBegin | Call::CaptureEnd => {}
        }
        None
    }

    fn not_asked(&mut self, trails: &Trails, thread: u32) {
        self.unasked += 1;
        if self.unasked >= EndingCalls::SAMPLE {
            self.unasked = 0;
            self.missed(trails, thread, EndingCalls::SAMPLE);
        }
    }

    /// Counts `calls` calls of the process that the learner had not asked for, the latest of them by `thread`.
    /// By such calls the learner notices that the loop of its rule has ended.
    pub fn missed(&mut self, trails: &Trails, thread: u32, calls: u32) {
        if self.state == LearnerState::Settled {
            self.count_misses(trails, thread, calls);
            self.check_gone(trails);
        }
    }

    /// Called before `thread` makes a launch, which the thread's trail (list of recent calls) already contains. Returns
    /// the iteration that opens before the launch, or `None`.
    #[inline]
    pub fn launched(&mut self, trails: &Trails, thread: u32, clock: Clock) -> Option<Boundary> {
        self.pauses.launched(thread, clock);
        let pass = self.passes(trails, thread);
        if pass.is_some() {
            return pass;
        }
        let copier = self.pending?;
        if slot(thread) != self.rule.thread as usize && slot(thread) != slot(copier) {
            return None;
        }
        self.unawaited = self.unawaited.saturating_add(1);
        Some(self.open())
    }

    /// Called for a copy to the host that may return before the copy is done. The thread's trail (list of recent calls)
    /// already contains this call. If the copy ends an iteration, the next iteration opens when the thread has waited
    /// for the copy, or at the thread's next launch if the thread does not wait. The next iteration opens at once if
    /// earlier copies were not waited for, or if `near` is false: then only the number of iterations matters, and
    /// neither the wait nor the launch is reported.
    #[inline]
    pub fn copied_to_host(
        &mut self,
        trails: &Trails,
        thread: u32,
        near: bool,
        clock: Clock,
    ) -> Option<Boundary> {
        if !self.site(trails, thread, SiteCall::CopyToHost, clock) {
            return None;
        }
        self.pending = Some(thread);
        self.copier = thread;
        (!near || self.unawaited >= UNAWAITED).then(|| self.open())
    }

    /// Called when a wait has returned, which the thread's trail (list of recent calls) already contains. Returns the
    /// iteration that opens, or `None`.
    #[inline]
    pub fn returned(
        &mut self,
        trails: &Trails,
        thread: u32,
        wait: Wait,
        clock: Clock,
    ) -> Option<Boundary> {
        let before = trails.before(thread).next();
        let call = if before == Some(token::COPY_TO_DEVICE) {
            SiteCall::Upload
        } else {
            SiteCall::for_wait(wait)
        };
        let ends = self.site(trails, thread, call, clock);
        if !self.resting {
            self.pauses.returned(thread, clock);
        }
        let copied = self
            .pending
            .is_some_and(|copier| slot(copier) == slot(thread));
        if slot(self.copier) == slot(thread) && before == Some(token::COPY_TO_HOST) {
            self.unawaited = 0;
        }
        (ends || copied).then(|| self.open())
    }

    fn open(&mut self) -> Boundary {
        self.pending = None;
        Boundary {
            iteration: self.detected(),
        }
    }

    /// Checks whether a wait or a copy of `thread` is at the call site that ends iterations. Records the call in the
    /// history unless the learner rests. Returns true if an iteration ends at this call.
    #[inline]
    fn site(&mut self, trails: &Trails, thread: u32, call: SiteCall, clock: Clock) -> bool {
        let settled = self.state == LearnerState::Settled;
        let mut ends = settled && self.occurs(trails, thread, call);
        if !self.resting {
            ends = self.record(trails, thread, call, ends, clock);
        }
        ends && !self.counts_passes()
    }

    #[inline]
    fn occurs(&mut self, trails: &Trails, thread: u32, call: SiteCall) -> bool {
        let rule = &self.rule;
        let own = rule.threads & 1 << slot(thread) != 0;
        if Some(call) != rule.call {
            return self.miss(trails, thread);
        }
        let key = site::key(trails, thread, call, rule.helper, rule.level as usize);
        if key != rule.key || trails.helper(thread) != rule.helper {
            return self.miss(trails, thread);
        }
        if !own && !rule.helper && !self.join(trails, thread) {
            return self.miss(trails, thread);
        }
        let work = trails.work_of(self.rule.threads);
        let since = work.since(self.at).weight();
        if since == 0 {
            return false;
        }
        self.at = work;
        self.waits = 0;
        self.entries_since = 0;
        self.part += 1;
        let ends = self.part >= self.rule.parts();
        if ends {
            self.part = 0;
            self.closed += 1;
            self.note_held();
        }
        self.steady = self.steady.saturating_add(1);
        self.even = match crate::choose::may_hold_ends(since, self.rule.median) {
            true => 0,
            false => self.even.saturating_add(1),
        };
        if self.rule.context[0] == 0 {
            self.note_context(trails, thread);
        }
        self.judge(trails, since);
        self.patience = self.patience.saturating_sub(1);
        if self.patience == 0 && !self.understood {
            self.look = 0;
        }
        ends || self.counts_parts()
    }

    /// Decides whether a thread that has reached the call site joins the followed threads (those that launch for the
    /// loop). Returns true if it joins. Servers that run each request on a separate thread need this.
    ///
    /// A thread joins if the followed threads launch nothing between two occurrences of the call site on this thread.
    /// The thread joins at once if it has just begun to launch and the followed threads are between iterations.
    fn join(&mut self, trails: &Trails, thread: u32) -> bool {
        let own = 1 << slot(thread);
        if self.rule.rivals & own != 0 {
            return false;
        }
        let followed = trails.work_of(self.rule.threads);
        let work = trails.work(thread);
        let usual = |work: ThreadLaunches| {
            let (work, median) = (u64::from(work.weight()), u64::from(self.rule.median));
            work * 2 >= median && work <= median * 2
        };
        let idle = followed.since(self.at).weight() <= self.rule.median / 8;
        let start = match self.heir {
            Some((heir, then, at)) if heir == thread && followed == at => {
                // This thread has reached the call site for the second time, so it joins. The period that ended when
                // the thread reached the site for the first time counts as an iteration, too.
                self.closed += u64::from(usual(work.since(then)));
                then
            }
            _ if idle && usual(work) => ThreadLaunches::default(),
            _ => {
                self.heir = Some((thread, work, followed));
                return false;
            }
        };
        if !usual(work.since(start)) {
            return false;
        }
        self.rule.threads |= own;
        self.heir = None;
        self.at = self.at.plus(start);
        true
    }

    /// Stores the calls that precede the call site, for the message that describes the rule.
    fn note_context(&mut self, trails: &Trails, thread: u32) {
        for (token, last) in self.rule.context.iter_mut().zip(trails.before(thread)) {
            *token = last;
        }
    }
}

impl Default for Learner {
    fn default() -> Self {
        Self::new()
    }
}
