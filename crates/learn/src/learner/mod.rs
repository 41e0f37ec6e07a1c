//! The learner: it takes calls in and says when an iteration opens.

mod passes;
mod record;
mod watch;

pub use passes::Inner;

use crate::asked::Asked;
use tllmprof_calls::Wait;

use crate::call::{Call, SiteCall, token};
use crate::choose::Scratch;
use crate::history::History;
use crate::pause::{Clock, Pauses};
use crate::periods::{Launches, Periods};
use crate::rule::Rule;
use crate::site;
use crate::trail::{DEPTH, THREADS, Trail, Trails, Work, slot};

/// Number of copies that are not waited for, in a row, after which no wait is expected.
const UNAWAITED: u32 = 4;
/// The learner's knowledge of what an iteration is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nothing is known yet, and no iteration opens.
    Learning,
    /// The learner knows what an iteration is.
    Settled,
    /// The pattern has ended. No iteration opens until there is a new one.
    Lost,
}

/// The opening of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boundary {
    /// Number of iterations that have closed, which is also the number of the one that opens.
    pub iteration: u64,
}

/// Learns which site ends an iteration, and then reports each one.
#[derive(Debug)]
pub struct Learner {
    history: History,
    scratch: Scratch,
    state: State,
    rule: Rule,
    /// Number of iterations closed, including those found in hindsight.
    closed: u64,
    /// Number of closed iterations before the begin of the history.
    before: u64,
    /// Number of closed iterations that were counted by rules that were understood.
    confirmed: u64,
    /// True if the rule has held for long enough to be relied on.
    understood: bool,
    /// Work of a new pattern before the change was noticed.
    unseen: u32,
    /// Value of `closed` when the rule was understood.
    since: u64,
    /// Number of entries of the history before the count began.
    uncounted: usize,
    /// True if no entries are kept, as nothing has to be chosen or checked.
    resting: bool,
    /// Number of entries until the history is examined next.
    look: usize,
    /// Number of iterations until it is checked again whether the rule can be relied on.
    patience: u32,
    /// Number of iterations since the last one that was far longer than usual.
    steady: u32,
    /// Number of iterations since the last one that may have contained a model's first and last kernels
    /// besides a layer.
    even: u32,
    /// Number of entries since it was last checked which threads launch.
    check: usize,
    /// True if the followed threads have stopped and others continue: a choice is needed soon.
    hurried: bool,
    /// The thread that launched most at that last check.
    foremost: usize,
    /// Number of entries until the watch after a choice ends.
    watch: usize,
    /// Work of each thread at its last entry.
    seen: [Work; THREADS],
    /// The followed threads' work when the last iteration closed.
    at: Work,
    /// The thread whose copy closed an iteration, until it has waited for that copy.
    pending: Option<u32>,
    /// The thread of the last copy that closed an iteration.
    copier: u32,
    /// Number of copies that closed an iteration and were not waited for before the next launch, since the
    /// last one that was.
    unawaited: u32,
    /// Number of waits of launching threads since the last occurrence.
    waits: u32,
    /// Counter that selects which of the calls that are not the site are examined.
    misses: u32,
    /// Number of entries kept since the last occurrence.
    entries_since: usize,
    /// Number of the latest periods that are judged.
    judged: u32,
    /// Number of unusual periods among the judged ones.
    unusual: u32,
    /// Number of times that the rule was doubted without need.
    doubts: u32,
    /// Number of calls of [`Learner::event`] that were not asked for.
    unasked: u32,
    /// True if a window has opened, which relies on what an iteration is and where the next one begins.
    relied_on: bool,
    /// True if iterations may turn out to be parts of larger ones.
    suspects_parts: bool,
    /// Number of parts of the current iteration that have ended, where an iteration has several parts.
    part: u32,
    pauses: Pauses,
    /// Another thread that reached the site, with its work and the followed threads' work at that time.
    heir: Option<(u32, Work, Work)>,
    /// The period of the launches themselves.
    periods: Periods,
    /// True if the parts of steps are counted, where there are two levels.
    counts_inner: bool,
    /// True if passes are counted although waits recur, as those waits come late.
    follows_passes: bool,
    /// The launches at the begin of a pass, the latest first, and the key that identifies them.
    pass_context: [u64; DEPTH],
    pass_key: u32,
    /// Number of passes when the last iteration ended.
    passes_at_end: u64,
    /// Number of passes in that iteration.
    held: u32,
}

impl Learner {
    /// Returns a learner that knows nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            history: History::new(),
            scratch: Scratch::new(),
            state: State::Learning,
            rule: Rule::NONE,
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
            seen: [Work::NONE; THREADS],
            at: Work::NONE,
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

    /// Begins in a process whose trails may have been in use, as after a fork. If `inner` is true, the parts
    /// of steps are counted where there are two levels.
    pub fn begin(&mut self, trails: &Trails, inner: bool) {
        if self.closed > 0 || !self.history.entries().is_empty() {
            self.forget();
        }
        self.counts_inner = inner;
        for (thread, seen) in self.seen.iter_mut().enumerate() {
            *seen = trails.work(thread as u32);
        }
    }

    /// Resets the learner. This is a separate function as it takes 120 KiB of stack, and threads may have
    /// less.
    #[cold]
    #[inline(never)]
    fn forget(&mut self) {
        *self = Self::new();
    }

    /// Returns what is known.
    #[must_use]
    pub fn state(&self) -> State {
        if self.counts_passes() {
            State::Settled
        } else {
            self.state
        }
    }

    /// Returns the rule for iterations, the last one if the pattern has ended.
    #[must_use]
    pub fn rule(&self) -> Option<Rule> {
        if self.counts_passes() {
            return self.pass_rule();
        }
        if self.counts_parts() {
            return Some(self.part_rule());
        }
        (self.state != State::Learning).then_some(self.rule)
    }

    /// Returns the number of iterations that have closed, including those found in hindsight.
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

    /// Returns the number of iterations whose work has been launched completely. If a launch begins them and
    /// no wait ends them, the newest counts as soon as it has as many launches as the others.
    #[must_use]
    pub fn launched_whole(&self, trails: &Trails) -> u64 {
        let detected = self.detected();
        let Some(usual) = self.rule.period.filter(|_| self.state == State::Settled) else {
            return detected;
        };
        let since = trails.work_of(self.rule.threads).since(self.at);
        // `since` does not include the launch that began it.
        let is_whole = since.launches + since.graphs + 1 >= usual.launches + usual.graphs;
        detected + u64::from(is_whole && detected > 0)
    }

    /// Returns true if the rule has held for long enough to be relied on.
    #[must_use]
    pub fn understands(&self) -> bool {
        if self.counts_passes() {
            return self.understands_passes();
        }
        self.understood && matches!(self.state, State::Settled)
    }

    /// Notes that a window has opened: from now on, an iteration is no longer reinterpreted as a part of one.
    pub fn rely(&mut self) {
        self.relied_on = true;
        self.periods
            .rest(self.counts_passes() || self.rule.is_pass());
    }

    /// Restarts the count at 0. What is known is kept.
    pub fn restart(&mut self) {
        (self.closed, self.before, self.confirmed) = (0, 0, 0);
        self.unseen = 0;
        self.uncounted = self.history.entries().len();
        self.periods.restart();
    }

    /// Returns the calls that have to be reported. `near` is true if the places where iterations open matter
    /// now, and not only their number.
    #[must_use]
    pub fn asks(&self, near: bool) -> Asked {
        match self.rule.call.filter(|_| self.resting) {
            None if self.resting && self.rule.period.is_some() => Asked::NONE,
            None => Asked::ALL,
            Some(SiteCall::CopyToHost) if near => Asked::ALL,
            Some(call) => Asked::only(call),
        }
    }

    /// Returns the threads whose next launch has to be reported: an iteration opens at it, or it ends a pause
    /// that is measured. `near` is as for [`Learner::asks`].
    #[must_use]
    pub fn asks_for_launch(&self, near: bool) -> Option<[u32; 2]> {
        let pending = self.pending.filter(|_| near);
        let paused = self.pauses.waits_for_launch_of().filter(|_| !self.resting);
        let followed = pending.map(|_| u32::from(self.rule.thread));
        // A copier that is pending has not waited yet, so that no pause of its own is measured.
        let first = pending.or(paused)?;
        Some([first, followed.or(paused).unwrap_or(first)])
    }

    /// Returns the launches that have to be reported besides those of [`Learner::asks_for_launch`].
    #[inline]
    #[must_use]
    pub fn asks_for_launches(&self) -> Launches {
        self.periods.asks()
    }

    /// Takes a call in, in the order of the process's calls. Returns the iteration that opens at it, if any:
    /// at a launch before it is made, at a wait after it has returned.
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
                    return self.copied_to_host(trails, thread, clock);
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
        if self.unasked >= Asked::SAMPLE {
            self.unasked = 0;
            self.missed(trails, thread, Asked::SAMPLE);
        }
    }

    /// Notes `calls` calls that were not asked for, the latest of them by this thread.
    pub fn missed(&mut self, trails: &Trails, thread: u32, calls: u32) {
        if self.state == State::Settled {
            self.count_misses(trails, thread, calls);
            self.check_gone(trails);
        }
    }

    /// Handles a launch that a thread is about to make and that its trail has. Returns the iteration that
    /// opens before the launch, if any.
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

    /// Handles a copy to the host that may return before it is done, noted in the thread's trail. If it ends
    /// an iteration, the next one opens when its thread has waited, or at the next launch if it does not
    /// wait. It opens at once if threads that copy are known not to wait.
    #[inline]
    pub fn copied_to_host(
        &mut self,
        trails: &Trails,
        thread: u32,
        clock: Clock,
    ) -> Option<Boundary> {
        if !self.site(trails, thread, SiteCall::CopyToHost, clock) {
            return None;
        }
        self.pending = Some(thread);
        self.copier = thread;
        (self.unawaited >= UNAWAITED).then(|| self.open())
    }

    /// Handles the return of a wait that was noted in the thread's trail. Returns the iteration that opens,
    /// if any.
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

    /// Returns true if an iteration ends at this call.
    #[inline]
    fn site(&mut self, trails: &Trails, thread: u32, call: SiteCall, clock: Clock) -> bool {
        let settled = self.state == State::Settled;
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

    /// Handles another thread that has reached the site. It joins the followed threads if these are silent
    /// between two of its occurrences. It joins at once if it has just begun to launch and they are between
    /// iterations. Servers that run each request on a thread of its own need this.
    fn join(&mut self, trails: &Trails, thread: u32) -> bool {
        let own = 1 << slot(thread);
        if self.rule.rivals & own != 0 {
            return false;
        }
        let followed = trails.work_of(self.rule.threads);
        let work = trails.work(thread);
        let usual = |work: Work| {
            let (work, median) = (u64::from(work.weight()), u64::from(self.rule.median));
            work * 2 >= median && work <= median * 2
        };
        let idle = followed.since(self.at).weight() <= self.rule.median / 8;
        let start = match self.heir {
            Some((heir, then, at)) if heir == thread && followed == at => {
                // The period in which it became the heir counts as well.
                self.closed += u64::from(usual(work.since(then)));
                then
            }
            _ if idle && usual(work) => Work::default(),
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

    /// Keeps the calls that led to the site, for the message.
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
