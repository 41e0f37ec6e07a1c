//! The learner: calls in, iterations out.

mod record;
mod watch;

use crate::asked::Asked;
use tllmprof_calls::Wait;

use crate::call::{Call, SiteCall, token};
use crate::choose::Scratch;
use crate::history::History;
use crate::pause::{Clock, Pauses};
use crate::rule::Rule;
use crate::site;
use crate::trail::{THREADS, Trail, Trails, Work, slot};

/// Copies not waited for after which none is expected to be.
const UNAWAITED: u32 = 4;
/// What the learner knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nothing yet: no iteration opens.
    Learning,
    /// What an iteration is.
    Settled,
    /// What an iteration was: the pattern is gone, and no iteration opens until there is another.
    Lost,
}

/// An iteration opens here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Boundary {
    /// Iterations that have closed, which is the number of the one that opens.
    pub iteration: u64,
}

/// Learns which site ends an iteration, and then says when it does.
#[derive(Debug)]
pub struct Learner {
    history: History,
    scratch: Scratch,
    state: State,
    rule: Rule,
    /// Iterations closed, those found in hindsight included.
    closed: u64,
    /// Of them, those before the history begins.
    before: u64,
    /// Of them, those that were counted by rules that were understood.
    confirmed: u64,
    /// The rule has stood long enough to be relied on.
    understood: bool,
    /// Work of the new pattern that was done before it was noticed that there is one.
    unseen: u32,
    /// Iterations closed when it was understood.
    since: u64,
    /// Entries of the history that lie before the count's beginning.
    uncounted: usize,
    /// No entries are kept: nothing is to be chosen or checked.
    resting: bool,
    /// Entries until the history is looked at next.
    look: usize,
    /// Iterations until it is looked at whether the rule can be relied on.
    patience: u32,
    /// Iterations since the last that was far longer than usual.
    steady: u32,
    /// Entries since it was last checked who launches.
    check: usize,
    /// The followed threads have stopped and others go on: a choice is wanted soon.
    hurried: bool,
    /// The thread that launched most when that was last checked.
    foremost: usize,
    /// Entries until the watch after a choice ends.
    watch: usize,
    /// Work of each thread at its last entry.
    seen: [Work; THREADS],
    /// The followed threads' work when the last iteration closed.
    at: Work,
    /// The thread whose copy closed an iteration and that has not waited for it yet.
    pending: Option<u32>,
    /// The thread of the last copy that closed an iteration.
    copier: u32,
    /// Copies that closed an iteration and that were not waited for before the next launch, since
    /// one that was.
    unawaited: u32,
    /// Waits of launching threads since the last occurrence.
    waits: u32,
    /// Says which of the calls that are not the site are looked at.
    misses: u32,
    /// Entries kept since the last occurrence.
    entries_since: usize,
    /// Periods of late and those among them that were unusual.
    judged: u32,
    unusual: u32,
    /// How often the rule was doubted without need.
    doubts: u32,
    /// Calls of [`Learner::event`] that were not asked about.
    unasked: u32,
    /// Somebody relies on what an iteration is, and on where the next begins.
    relied_on: bool,
    /// Iterations may turn out to be parts of larger ones.
    suspects_parts: bool,
    /// Occurrences since the last that ended an iteration of several parts.
    part: u32,
    pauses: Pauses,
    /// Another thread that reached the site, its work and the followed threads' work then.
    heir: Option<(u32, Work, Work)>,
}

impl Learner {
    /// Knows nothing.
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
            check: 0,
            foremost: 0,
            hurried: false,
            watch: 0,
            seen: [Work {
                launches: 0,
                graphs: 0,
            }; THREADS],
            at: Work {
                launches: 0,
                graphs: 0,
            },
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
        }
    }

    /// Begins in a process whose trails may have been in use, as after a fork.
    pub fn begin(&mut self, trails: &Trails) {
        if self.closed > 0 || !self.history.entries().is_empty() {
            self.forget();
        }
        for (thread, seen) in self.seen.iter_mut().enumerate() {
            *seen = trails.work(thread as u32);
        }
    }

    /// Apart, as it takes 120 KiB of the stack: threads may have less.
    #[cold]
    #[inline(never)]
    fn forget(&mut self) {
        *self = Self::new();
    }

    /// What is known.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// What an iteration is, or was.
    #[must_use]
    pub fn rule(&self) -> Option<&Rule> {
        (self.state != State::Learning).then_some(&self.rule)
    }

    /// Iterations that have closed, those found in hindsight included.
    #[must_use]
    pub const fn detected(&self) -> u64 {
        self.closed
    }

    /// Whether the rule has stood long enough to be relied on.
    #[must_use]
    pub const fn understands(&self) -> bool {
        self.understood && matches!(self.state, State::Settled)
    }

    /// A window has opened: an iteration is not taken for a part of one any more.
    pub fn rely(&mut self) {
        self.relied_on = true;
    }

    /// Counts from 0 again. What is known stays.
    pub fn restart(&mut self) {
        (self.closed, self.before, self.confirmed) = (0, 0, 0);
        self.unseen = 0;
        self.uncounted = self.history.entries().len();
    }

    /// The calls that have to be reported. `near`: where iterations open matters now, too, and not
    /// only how many there are.
    #[must_use]
    pub fn asks(&self, near: bool) -> Asked {
        match self.rule.call.filter(|_| self.resting) {
            None => Asked::ALL,
            Some(SiteCall::CopyToHost) if near => Asked::ALL,
            Some(call) => Asked::only(call),
        }
    }

    /// The threads whose next launch has to be reported: an iteration opens at it, or the pause before it is measured.
    /// `near`: as for [`Learner::asks`].
    #[must_use]
    pub fn asks_for_launch(&self, near: bool) -> Option<[u32; 2]> {
        let pending = self.pending.filter(|_| near);
        let paused = self.pauses.waits_for_launch_of().filter(|_| !self.resting);
        let followed = pending.map(|_| u32::from(self.rule.thread));
        // A copier that is pending has not waited yet, so that no pause of its own is measured.
        let first = pending.or(paused)?;
        Some([first, followed.or(paused).unwrap_or(first)])
    }

    /// Takes a call in, in the order of the process's calls, and says whether an iteration opens
    /// at it: at a launch before it goes on, at a wait when it has returned.
    #[inline]
    pub fn event(
        &mut self,
        trails: &Trails,
        thread: u32,
        call: Call,
        clock: Clock,
    ) -> Option<Boundary> {
        match call {
            Call::CaptureBegin => trails.capture(thread, true),
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
        let trail = trails.of(thread);
        match call {
            Call::Launch(kernel) => {
                trail.note_kernel(kernel);
                return self.launched(thread, clock);
            }
            Call::GraphLaunch => {
                trail.note_graph();
                return self.launched(thread, clock);
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

    /// So many calls were made that are not asked about, and this thread makes one of them.
    pub fn missed(&mut self, trails: &Trails, thread: u32, calls: u32) {
        if self.state == State::Settled {
            self.count_misses(trails, thread, calls);
            self.check_gone(trails);
        }
    }

    /// A thread is about to launch: an iteration may open before that goes on.
    #[inline]
    pub fn launched(&mut self, thread: u32, clock: Clock) -> Option<Boundary> {
        self.pauses.launched(thread, clock);
        let copier = self.pending?;
        if slot(thread) != self.rule.thread as usize && slot(thread) != slot(copier) {
            return None;
        }
        self.unawaited = self.unawaited.saturating_add(1);
        Some(self.open())
    }

    /// A copy to the host that may return before it is done, noted in the thread's trail. Where it
    /// ends an iteration, the next opens when its thread has waited, or where launching goes on
    /// without that; or at once, where threads that copy are known not to wait.
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

    /// A wait has returned that was noted in the thread's trail.
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
            SiteCall::of(wait)
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
            iteration: self.closed,
        }
    }

    /// Whether an iteration ends at this call.
    #[inline]
    fn site(&mut self, trails: &Trails, thread: u32, call: SiteCall, clock: Clock) -> bool {
        let ends = self.state == State::Settled && self.occurs(trails, thread, call);
        if self.resting {
            return ends;
        }
        self.record(trails, thread, call, ends, clock)
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
        }
        self.steady = self.steady.saturating_add(1);
        if self.rule.context[0] == 0 {
            self.note_context(trails, thread);
        }
        self.judge(trails, since);
        self.patience = self.patience.saturating_sub(1);
        if self.patience == 0 && !self.understood {
            self.look = 0;
        }
        ends
    }

    /// Another thread has reached the site. It joins those that are followed if they are silent
    /// from one time to the next; or at once if it has just begun to launch, and they are between
    /// iterations. Servers that run each request on a thread of its own need that.
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
                // The period that made it the heir counts as well.
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

    /// Keeps what led to the site, for the message.
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
