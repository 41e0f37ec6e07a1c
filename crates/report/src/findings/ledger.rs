//! Findings that are based on the ledgers, which list the time of iterations by cause. The findings are about repeated
//! graph captures, copies, host code for which the GPU waits, waits for a processor, page faults, and waits for
//! requests.

use tllmprof_calls::{CallPurpose, kind_of};

use super::Judgement;
use super::copies;
use super::evidence::Evidence;
use super::host;
use super::limits::{EXTRA_WORK, INTERRUPTION};
use crate::events::iteration::{Iteration, Used};
use crate::events::requests::gives_work;
use crate::ledger::difference::WAITING;
use crate::ledger::slow::LARGE_BATCH_RATIO;
use crate::ledger::{
    ASLEEP, Claim, Claimed, LedgerKind, LedgerRow, NAMED, Path, Paths, REQUESTS_CAUSE,
};
use crate::numbers::units::{Rate, Share, Time};

/// Name of the finding `host-bound`: the GPU waits for code of the host.
pub(crate) const CODE_RULE: &str = "host-bound";
/// Name of the finding `host-blocked`: the GPU waits while the host's thread is asleep or blocked.
pub(crate) const BLOCKED_RULE: &str = "host-blocked";
/// Name of the finding `input-bound`: the GPU waits while the host's thread waits for input that the program prepares.
pub(crate) const INPUT_RULE: &str = "input-bound";
/// Name of the finding `page-faults`: page faults of the iterations' threads take time.
pub(crate) const FAULTS_RULE: &str = "page-faults";
/// Name of the finding `preempted`: a thread was ready to run but waited for a processor.
pub(crate) const DELAYED_RULE: &str = "preempted";

/// Minimum share for the finding on large batches, as a fraction. It is the share of iterations with large batches in
/// the total time by which slow iterations exceed the median.
const MIN_LARGE_BATCHES: f64 = 0.5;

/// Name of the finding `gpu-idle`: the GPU is idle, and no other finding says why.
pub(crate) const IDLE_RULE: &str = "gpu-idle";

/// The names of the findings whose losses are idle times of the GPU.
pub(crate) const IDLE_RULES: [&str; 4] = [CODE_RULE, BLOCKED_RULE, INPUT_RULE, IDLE_RULE];

/// Minimum share of the time in which the GPU is idle, as a fraction, for the finding `gpu-idle`.
pub(crate) const MIN_IDLE: f64 = 0.2;
/// Minimum share of the time, as a fraction, in which the GPU is idle due to one cause, for a finding on that cause.
/// This limit applies if the share of the GPU's total idle time is at least [`MIN_IDLE`].
pub(crate) const MIN_PART: f64 = 0.1;
/// Minimum share of the whole time, as a fraction, in which the GPU is idle due to one cause, for a finding on that
/// cause. The whole time includes waits for requests. The other limits are shares of the time without these waits.
const MIN_OF_ALL: f64 = 0.05;

/// Minimum share of the time, as a fraction, in which the GPU is idle during host code, for a
/// finding on that code. This limit applies if the share of the GPU's total idle time is less than [`MIN_IDLE`].
pub(crate) const MIN_CODE: f64 = 0.15;

/// Minimum share of the time, as a fraction, in which the GPU is idle while the host's thread sleeps or is blocked, for
/// a finding on these sleeps. This limit applies if the share of the GPU's total idle time is less than [`MIN_IDLE`].
const MIN_BLOCKED: f64 = 0.15;

/// Minimum share of an activity in the host's time, as a fraction, for a finding based on the host's time. This limit
/// applies if the GPU always finishes before the host waits for it, so that the host's time decides how long a step
/// takes.
const MIN_DECIDING: f64 = 0.3;

/// Minimum number of page faults per iteration for the finding `page-faults`.
const MIN_FAULTS: f64 = 50.0;
/// Minimum share of the time, as a fraction, that the thread spends in the operating system's
/// kernel, for the finding `page-faults`.
pub(crate) const MIN_IN_KERNEL: f64 = 0.05;

/// The reason why a finding on the GPU's idle time is not known if the record has no GPU time. The advice is then to
/// record kernels, even if the finding's rule needs other data, too.
pub(crate) const GPU_TIME_MISSING: &str = "GPU time was not measured";

/// Minimum share of the time, as a fraction, that the host spends outside CUDA calls, for the finding on a process that
/// launches no GPU work.
const MIN_OUTSIDE: f64 = 0.5;

/// Minimum share of waits for requests in the time, as a fraction, for a finding on these waits.
const MIN_REQUESTS: f64 = 0.05;

pub(crate) fn recapture_when() -> String {
    format!(
        "iterations in which a graph is captured, and no code is loaded or compiled, take longer than the others by \
         {EXTRA_WORK}"
    )
}

pub(crate) fn recapture(one: &Evidence<'_>) -> Judgement {
    let all = one.iterations().count();
    let captured = one
        .iterations()
        .filter(|iteration| iteration.preparation.captures > 0);
    let captured = captured.count();
    let only = one
        .iterations()
        .filter(|iteration| one.only_captures(iteration));
    let only = only.count();
    if captured == 0 {
        return Judgement::No("no graph is captured".to_owned());
    }
    // If most iterations capture a graph, there are too few iterations without a capture to compare
    // them with. So use the ledger's share of captures instead.
    if captured * 2 > all {
        let share = one.worked_share(LedgerKind::Capture);
        let evidence = format!(
            "a graph is captured in {captured} of {all} iterations, for {} of the time",
            Share(share)
        );
        return match share >= EXTRA_WORK.any {
            true => Judgement::yes(evidence, share),
            false => Judgement::No(evidence),
        };
    }
    if only == 0 {
        return Judgement::No(format!(
            "a graph is captured in {captured} of {all} iterations, in all of which code is loaded or compiled"
        ));
    }
    let excess = one.captures();
    let share = one.share(excess.total);
    let others = match captured - only {
        0 => String::new(),
        others => format!("; {others} more also load or compile code"),
    };
    let evidence = format!(
        "a graph is captured again in {only} of {all} iterations, which take {} longer each: {} of the time{others}",
        Time(excess.total / only as u64),
        Share(share)
    );
    match EXTRA_WORK.are_reached(share, excess.of_slow) {
        true => Judgement::yes(evidence, share),
        false => Judgement::No(evidence),
    }
}

pub(crate) fn batches_when() -> String {
    format!(
        "over {} of what slow iterations (1.5 times the median) take beyond it is in those whose batch has over {LARGE_BATCH_RATIO} \
         times the mean's tokens",
        Share(MIN_LARGE_BATCHES)
    )
}

pub(crate) fn batches(one: &Evidence<'_>) -> Judgement {
    let mut known = one.iterations().filter_map(|iteration| iteration.batch);
    if known.next().is_none() {
        return Judgement::Unknown("what is in batches is not known".to_owned());
    }
    let large = one.large_batches();
    let evidence = format!(
        "{} of {} slow iterations have a batch of over {LARGE_BATCH_RATIO} times the mean's tokens",
        large.hit, large.slow
    );
    match large.of_slow >= MIN_LARGE_BATCHES {
        true => Judgement::Yes {
            evidence,
            loss: None,
        },
        false => Judgement::No(evidence),
    }
}

pub(crate) fn code_when() -> String {
    format!(
        "the GPU has nothing to do for over {} of the time while the host runs code in which it makes no call, or over {} where \
         it has nothing to do for over {} in all; code between two calls that takes less than 20 launches counts as theirs, \
         if another finding is about these calls; where kernels were not recorded, also over {} of the host's time if the GPU has \
         ended its work each time that the host comes to wait for it",
        Share(MIN_CODE),
        Share(MIN_PART),
        Share(MIN_IDLE),
        Share(MIN_DECIDING)
    )
}

pub(crate) fn code(one: &Evidence<'_>) -> Judgement {
    let claims = &one.process.ledger.details.claims;
    let paths = &claims.code_in;
    let waited_for = code_waited_for(one);
    let are_paths_of_most = claims.ns(Claim::Code) * 2 > waited_for.ns;
    let doing = Doing {
        what: "the host runs code",
        claim: Claim::Code,
        least: MIN_CODE,
        detail: &|rows, time| match paths.python.as_ref().or(paths.native.as_ref()) {
            Some(path) if are_paths_of_most => format!(", {}", within(path, paths)),
            _ => named(rows, time),
        },
    };
    doing.judge(one, &waited_for)
}

/// Returns the GPU idle time that the host's code causes. If the GPU is idle for a large share of
/// the time, this includes idle time in short code before and after calls, unless another finding
/// is about these calls.
pub(crate) fn code_waited_for(one: &Evidence<'_>) -> Claimed {
    let claims = &one.process.ledger.details.claims;
    type Judge = fn(&Evidence<'_>) -> Judgement;
    let others: &[(Claim, Judge)] = match claims.share_of(claims.idle()) >= MIN_IDLE {
        true => &[
            (Claim::Launch, host::launch_bound),
            (Claim::Wait, host::waits),
            (Claim::Read, host::copies),
            (Claim::Copy, copies::small),
        ],
        false => &[],
    };
    let unclaimed = others
        .iter()
        .filter(|(_, judge)| !matches!(judge(one), Judgement::Yes { .. }));
    let unclaimed: Vec<_> = unclaimed.map(|(claim, _)| *claim).collect();
    claims.code_and_short(&unclaimed)
}

/// Returns text about the function in which the host's code spends its time, according to stack samples: the function's
/// share, its caller, its callees, and native code.
pub(super) fn within(path: &Path, paths: &Paths) -> String {
    let mut text = format!("{} of that in {}", Share(path.share), path.function);
    if let Some(caller) = &path.caller {
        text += &format!(", called by {caller}");
    }
    let into = path.into.iter();
    let into: Vec<_> = into
        .map(|(function, share)| format!("{} in {function}", Share(*share)))
        .collect();
    if !into.is_empty() {
        text += &format!(" ({})", into.join(", "));
    }
    let native = paths.native.as_ref();
    if paths.python.is_some()
        && let Some(native) = native
    {
        text += &format!(
            "; native code: {} in {}",
            Share(native.share),
            native.function
        );
    }
    let does = path.does.or_else(|| native.and_then(|native| native.does));
    if let Some(does) = does {
        text += &format!(": {does}");
    }
    text
}

/// Returns text about the first [`NAMED`] causes in `rows`, which are sorted by time. The text shows each cause with
/// its share of `time`, which is in nanoseconds.
fn named(rows: &[(String, u64)], time: u64) -> String {
    let rows = rows.iter().take(NAMED).map(|(cause, ns)| {
        let place = cause.strip_prefix(ASLEEP).unwrap_or(cause).trim_start();
        format!("{place} ({})", Share(*ns as f64 / time.max(1) as f64))
    });
    let rows = rows.collect::<Vec<_>>().join(", ");
    if rows.is_empty() {
        rows
    } else {
        format!(": {rows}")
    }
}

pub(crate) fn blocked_when() -> String {
    format!(
        "the GPU has nothing to do for over {} of the time while the host's thread is asleep or blocked in such code, for \
         certain, or over {} where it has nothing to do for over {} in all; where kernels were not recorded, also over {} of the \
         host's time if the GPU has ended its work each time that the host comes to wait for it",
        Share(MIN_BLOCKED),
        Share(MIN_PART),
        Share(MIN_IDLE),
        Share(MIN_DECIDING)
    )
}

pub(crate) fn blocked(one: &Evidence<'_>) -> Judgement {
    if one.iterations().all(|iteration| iteration.used.is_none()) {
        return Judgement::Unknown("the record does not have it".to_owned());
    }
    let claims = &one.process.ledger.details.claims;
    let doing = Doing {
        what: &format!("the host's thread is {ASLEEP}"),
        claim: Claim::Blocked,
        least: MIN_BLOCKED,
        detail: &named,
    };
    doing.judge(one, &claims.idle_in(&[Claim::Blocked]))
}

pub(crate) fn input_when() -> String {
    format!(
        "the GPU has nothing to do for over {} of the time while the step's thread waits for another thread or a child process of \
         the program that is at work, or over {} where it has nothing to do for over {} in all; a wait is one for a thread or \
         process that is on a processor in at least half of the wait's samples; or asleep (in a sleep, a file or a lock), if it \
         runs before almost every end of such a wait and rarely inside one; and one for a child process only if that is on a \
         processor more during the waits than between them, or the wait is for a pipe; where kernels were not recorded, also over {} of the \
         host's time if the GPU has ended its work each time that the host comes to wait for it",
        Share(MIN_BLOCKED),
        Share(MIN_PART),
        Share(MIN_IDLE),
        Share(MIN_DECIDING)
    )
}

/// Judges the rule on the time in which the thread waits for input that another thread or a child process of the
/// program prepares.
pub(crate) fn input(one: &Evidence<'_>) -> Judgement {
    let claims = &one.process.ledger.details.claims;
    if !one.process.stacks.is_there() {
        // Without stack samples, a wait for input is part of the sleeps that `blocked` judges. If the GPU is hardly
        // idle during all sleeps, it is hardly idle during waits for input.
        return match blocked(one) {
            Judgement::No(evidence) => Judgement::No(evidence),
            _ => Judgement::Unknown("stacks were not sampled".to_owned()),
        };
    }
    let at_work = |rows: &[(String, u64)], time: u64| {
        let share = rows.first().and_then(|(cause, _)| {
            let mut producers = claims.producers.iter();
            producers.find(|(known, _)| known == cause)
        });
        let share = share.map_or_else(String::new, |(_, of)| match of.is_asleep {
            true => format!(
                "; it does that, or is busy, in {} of the samples",
                Share(of.share())
            ),
            false => format!(
                "; meanwhile that is at work in {} of the samples",
                Share(of.share())
            ),
        });
        named(rows, time) + &share
    };
    let doing = Doing {
        what: "the host's thread waits for input that the program prepares itself",
        claim: Claim::Input,
        least: MIN_BLOCKED,
        detail: &at_work,
    };
    doing.judge(one, &claims.idle_in(&[Claim::Input]))
}

/// A function that returns text about causes. The first argument contains the causes, each with its time in
/// nanoseconds. The second argument is the total time in nanoseconds, of which the text shows the share of each cause.
type Detail<'a> = dyn Fn(&[(String, u64)], u64) -> String + 'a;

/// An activity of the host that a finding may name as the reason why the GPU is idle.
struct Doing<'a> {
    what: &'a str,
    claim: Claim,
    /// Minimum share of the time, as a fraction, in which the GPU is idle during this activity, for a finding on it.
    /// This limit applies if the share of the GPU's total idle time is less than [`MIN_IDLE`].
    least: f64,
    /// Function that describes this activity in the finding's evidence. Its first argument contains the causes within
    /// the activity, each with its time in nanoseconds.
    detail: &'a Detail<'a>,
}

impl Doing<'_> {
    /// Judges the GPU's idle time during this activity. If that gives no finding, judges the time that the host spends
    /// in the activity (see [`Self::by_host`]).
    fn judge(&self, one: &Evidence<'_>, idle: &Claimed) -> Judgement {
        let claims = &one.process.ledger.details.claims;
        let judged = match claims.gpu {
            0 => Judgement::Unknown(GPU_TIME_MISSING.to_owned()),
            _ => match self.by_idle(one, idle) {
                // The GPU may be idle for longer.
                Judgement::No(_) if claims.idle_is_at_least => {
                    Judgement::Unknown(GPU_TIME_MISSING.to_owned())
                }
                judged => judged,
            },
        };
        match judged {
            Judgement::Yes { .. } => judged,
            _ => self.by_host(one).unwrap_or(judged),
        }
    }

    fn by_idle(&self, one: &Evidence<'_>, idle: &Claimed) -> Judgement {
        let claims = &one.process.ledger.details.claims;
        let evidence = match idle.ns {
            0 => format!("{} never waits while {}", one.the_gpu(), self.what),
            _ => format!(
                "{} has nothing to do {}{} of {} while {}{}{}",
                one.the_gpu(),
                claims.at_least(),
                Share(claims.share_of(idle.ns)),
                one.worked(),
                self.what,
                one.measured_in(one.process.ledger.gpu_iterations),
                (self.detail)(&idle.rows, claims.gpu),
            ),
        };
        // Leave out the time in which the host's thread waited for a processor, both in the total and in the GPU's idle
        // time, so that a busy machine does not change the verdict. The finding `preempted` reports that time.
        let worked = claims.gpu.saturating_sub(claims.delayed).max(1) as f64;
        let others_idle = claims.idle() - claims.ns(Claim::Delayed);
        let least = match others_idle as f64 / worked >= MIN_IDLE {
            true => MIN_PART,
            false => self.least,
        };
        // If the process mostly waits for requests or other work, the activity's share of the whole time may be below
        // `MIN_OF_ALL`. Then the rule does not hold.
        let of_all = claims.of_all(idle.ns);
        match idle.ns as f64 / worked {
            share if share < least || of_all < MIN_OF_ALL => Judgement::No(evidence),
            _ if one.is_distorted() => Judgement::Unknown(one.distorted()),
            _ => Judgement::yes(evidence, claims.share_of(idle.ns)),
        }
    }

    /// Judges the rule by the host's time in this activity. Returns `None` if kernels were recorded, if it is not
    /// certain that the host decides how long a step takes, or if the activity's share is less than [`MIN_DECIDING`].
    /// The loss is unknown, because the GPU may finish only shortly before the host.
    fn by_host(&self, one: &Evidence<'_>) -> Option<Judgement> {
        let claims = &one.process.ledger.details.claims;
        let ran = claims.ran_in(self.claim);
        let share = ran.ns as f64 / claims.host.max(1) as f64;
        if one.kernels().is_some() || share < MIN_DECIDING || !one.gpu_ends_first() {
            return None;
        }
        if one.is_distorted() {
            return Some(Judgement::Unknown(one.distorted()));
        }
        let evidence = format!(
            "the GPU has ended its work each time that the host waits for it ({} of the time), so that the host decides how long \
             a step takes; {} {} of the time{}",
            Share(one.waits_for_work()),
            self.what,
            Share(share),
            (self.detail)(&ran.rows, claims.host),
        );
        Some(Judgement::Yes {
            evidence,
            loss: None,
        })
    }
}

pub(crate) fn idle_when() -> String {
    format!(
        "the GPU has nothing to do for over {} of the time, and no other finding says why",
        Share(MIN_IDLE)
    )
}

/// Minimum number of host functions (`cudaLaunchHostFunc`) that the program enqueues per iteration. With fewer, the
/// text does not name them as a possible reason why the GPU is idle.
const MIN_HOST_FUNCTIONS: f64 = 0.5;

/// Returns words for the host functions that the program enqueues in streams, with their number in an iteration; `None`
/// if there are fewer than [`MIN_HOST_FUNCTIONS`].
fn host_functions(one: &Evidence<'_>) -> Option<String> {
    let calls = one.calls(|row| kind_of(&row.name) == Some(CallPurpose::HostFunction));
    let rate = one.sum.a_step(calls.count);
    let named = one.process.stacks.sampled.host_functions.iter();
    let named: Vec<_> = named.take(NAMED).map(String::as_str).collect();
    let named = match &named[..] {
        [] => String::new(),
        _ => format!(" ({})", named.join(", ")),
    };
    (rate >= MIN_HOST_FUNCTIONS).then(|| format!("{} host functions a step{named}", Rate(rate)))
}

/// Suffix of the names of functions that check whether work is done, such as `cudaStreamQuery`.
const QUERY: &str = "Query";

/// Returns words about waits in which the GPU is idle, if most of the GPU's idle time lies in them; otherwise an empty
/// text. The words say whether the GPU is idle after all work has ended and before the wait returns, or between the
/// kernels for which the host waits.
fn idle_waits(one: &Evidence<'_>) -> String {
    let ledger = &one.process.ledger;
    let claims = &ledger.details.claims;
    let rows = claims.rows(&[Claim::Wait, Claim::Read]);
    let waits = rows.iter().filter_map(|(cause, ns)| {
        let name = cause.strip_prefix(WAITING)?.strip_prefix(": ")?;
        Some((name, *ns))
    });
    let waits: Vec<_> = waits.collect();
    let all: u64 = waits.iter().map(|(_, ns)| ns).sum();
    let Some((name, ns)) = waits.first().filter(|_| all > claims.idle() / 2) else {
        return String::new();
    };
    let each = Time(ns / ledger.gpu_iterations.max(1));
    let kernels = one.process.kernels.window.as_ref();
    let gaps = kernels.and_then(|kernels| Some(kernels.share(kernels.gaps?)));
    if let Some(gaps) = gaps.filter(|gaps| *gaps > claims.share_of(all) / 2.0) {
        let functions = host_functions(one).map_or_else(String::new, |functions| {
            format!("; the program enqueues {functions}")
        });
        return format!(
            "; it is idle {each} a step in {name}, and between kernels for {} of the time: short gaps, a host function \
             (cudaLaunchHostFunc), an event, or other programs that use it{functions}",
            Share(gaps)
        );
    }
    match name.ends_with(QUERY) {
        true => format!(
            "; the program asks too late: the {name} that finds the work done comes {each} a step after the GPU has ended it"
        ),
        false => format!(
            "; the waits return late: {name} returns {each} a step after the GPU has ended its work{}",
            host_functions(one).map_or_else(String::new, |functions| format!(
                "; the program enqueues {functions}: a wait for their stream also waits for them"
            ))
        ),
    }
}

/// Judges the rule on the GPU's total idle time, during all activities of the host together.
pub(crate) fn idle(one: &Evidence<'_>) -> Judgement {
    let claims = &one.process.ledger.details.claims;
    if claims.gpu == 0 {
        return Judgement::Unknown(GPU_TIME_MISSING.to_owned());
    }
    let rows = claims.rows(&claims.claimed());
    let share = claims.share_of(claims.idle());
    let evidence = format!(
        "{} has nothing to do {}{} of {}{}{}",
        one.the_gpu(),
        claims.at_least(),
        Share(share),
        one.worked(),
        one.measured_in(one.process.ledger.gpu_iterations),
        match named(&rows, claims.gpu).strip_prefix(": ") {
            Some(rows) => format!("; meanwhile the host: {rows}{}", idle_waits(one)),
            None => String::new(),
        }
    );
    let of_all = claims.of_all(claims.idle());
    match share >= MIN_IDLE && of_all >= MIN_IDLE {
        false if claims.idle_is_at_least => Judgement::Unknown(GPU_TIME_MISSING.to_owned()),
        false => Judgement::No(evidence),
        true if one.is_distorted() => {
            Judgement::Unknown(format!("{evidence}; but {}", one.distorted()))
        }
        true => Judgement::yes(evidence, share),
    }
}

pub(crate) fn delayed_when() -> String {
    format!("waits for a processor, beside other waits, take {INTERRUPTION}")
}

pub(crate) fn delayed(one: &Evidence<'_>) -> Judgement {
    if one.iterations().all(|iteration| iteration.used.is_none()) {
        return Judgement::Unknown("the record does not have it".to_owned());
    }
    let share = one.worked_share(LedgerKind::Delayed);
    let times = |iteration: &Iteration| iteration.used.map_or(0, |used| used.preempted);
    let times: u64 = one.iterations().map(|one| u64::from(times(one))).sum();
    let lost = one.lost(Iteration::delayed);
    let slow = match lost.slow {
        0 => String::new(),
        slow => format!("; to blame in {} of {slow} slow iterations", lost.hit),
    };
    // A wait for a processor costs nothing while the GPU works.
    let lost_share = one.idle_part(share, Claim::Delayed);
    let evidence = format!(
        "another thread was given the processor {} times {}: {} of the time{}{slow}",
        Rate(one.sum.a_step(times)),
        one.a_step(),
        Share(share),
        host::idle_meanwhile(share, lost_share)
    );
    match INTERRUPTION.are_reached(lost_share, lost.of_slow) {
        true => Judgement::yes(evidence, lost_share),
        false => Judgement::No(evidence),
    }
}

pub(crate) fn faults_when() -> String {
    format!(
        "at least {MIN_FAULTS} page faults in an iteration, and the kernel works over {} of the time for its thread, without the \
         time of calls that allocate or release memory",
        Share(MIN_IN_KERNEL)
    )
}

pub(crate) fn faults(one: &Evidence<'_>) -> Judgement {
    let used = || one.iterations().filter_map(|iteration| iteration.used);
    if used().next().is_none() {
        return Judgement::Unknown("the record does not have them".to_owned());
    }
    let sum = |of: fn(Used) -> u64| used().map(of).fold(0, u64::saturating_add);
    let faults = one.sum.a_step(sum(|used| used.faults.into()));
    let disk = one.sum.a_step(sum(|used| used.disk_faults.into()));
    // For an allocation, CUDA pins and maps memory page by page in the operating system's kernel.
    // That time is caused by the allocation and not by page faults, so it is subtracted.
    let allocations = one.worked_share(LedgerKind::Allocation);
    let share = (one.share(sum(|used| used.in_kernel)) - allocations).max(0.0);
    let disk = match disk {
        0.0 => String::new(),
        _ => format!(", {} of which read a disk", Rate(disk)),
    };
    let beyond = match allocations < MIN_IN_KERNEL {
        true => String::new(),
        false => format!(", beyond {} in allocations", Share(allocations)),
    };
    // The kernel's work costs nothing while the GPU works. It is not known during which of the host's activities the
    // kernel works, so all of the GPU's idle time is the limit.
    let lost = one.limit_to_idle(share, |claims| claims.share_of(claims.idle()));
    let idle = match lost < share {
        true => format!(
            "; the GPU has nothing to do {} of the time in all",
            Share(lost)
        ),
        false => String::new(),
    };
    let claims = &one.process.ledger.details.claims;
    let evidence = format!(
        "{} page faults {}{disk}; the kernel works {} of the time for that thread{beyond}{idle}{}",
        Rate(faults),
        one.a_step(),
        Share(share),
        claims.mostly_in(&[Claim::Code])
    );
    match faults >= MIN_FAULTS && lost >= MIN_IN_KERNEL {
        true => Judgement::yes(evidence, lost),
        false => Judgement::No(evidence),
    }
}

pub(crate) fn no_work_when() -> String {
    format!(
        "no call launches or copies anything, and the host spends over {} of the time outside CUDA calls, in code of its own, \
         asleep or blocked",
        Share(MIN_OUTSIDE)
    )
}

/// Judges the rule on processes that launch no GPU work. Such a process has no GPU time, so most other rules
/// are unknown for it.
pub(crate) fn no_work(one: &Evidence<'_>) -> Judgement {
    let (kernels, dropped) = (&one.process.kernels, one.process.record.dropped);
    if one.calls(gives_work).count > 0 || !kernels.totals.is_empty() {
        return Judgement::No("the GPU is given work".to_owned());
    }
    if dropped > 0 {
        return Judgement::Unknown("events are missing".to_owned());
    }
    let is_outside = |row: &&LedgerRow| {
        use LedgerKind::{Blocked, Code, Function, Native, Python};
        matches!(row.kind, Blocked | Code | Function | Native | Python)
    };
    let outside = || one.process.ledger.host.iter().filter(is_outside);
    let share = outside().fold(0.0, |sum, row| sum + row.share);
    let named = outside().take(NAMED);
    let named = named.map(|row| format!("{} ({})", row.cause, Share(row.share)));
    let named = named.collect::<Vec<_>>().join(", ");
    match share >= MIN_OUTSIDE {
        true => Judgement::Yes {
            evidence: format!(
                "no work is launched; the host is outside CUDA calls {} of the time: {named}",
                Share(share)
            ),
            loss: None,
        },
        false => Judgement::No(format!(
            "no work is launched; the host is outside CUDA calls {} of the time",
            Share(share)
        )),
    }
}

pub(crate) fn requests_when() -> String {
    format!(
        "it waits for requests or other work over {} of the time",
        Share(MIN_REQUESTS)
    )
}

pub(crate) fn requests(one: &Evidence<'_>) -> Judgement {
    let share = one.process.ledger.host_share(LedgerKind::Requests);
    let claims = &one.process.ledger.details.claims;
    let rows = claims
        .waited
        .rows
        .iter()
        .filter(|(cause, _)| cause != REQUESTS_CAUSE);
    let named: Vec<_> = rows
        .take(1)
        .map(|(cause, _)| format!(", most of it {cause}"))
        .collect();
    let evidence = format!(
        "it waits for requests or other work {} of the time{}",
        Share(share),
        named.concat()
    );
    match share >= MIN_REQUESTS {
        true => Judgement::Yes {
            evidence: match one.sum.idle.max {
                0 => format!("{evidence}; other findings are about the rest"),
                longest => format!(
                    "{evidence}, {} at the longest; other findings are about the rest",
                    Time(longest)
                ),
            },
            loss: None,
        },
        // Waits outside CUDA calls are recorded only by tllmprof, so for traces of other profilers
        // the judgement is unknown.
        false if !one.process.facts.origin.is_own() => {
            Judgement::Unknown("waits outside CUDA calls were not recorded".to_owned())
        }
        false => Judgement::No(evidence),
    }
}
