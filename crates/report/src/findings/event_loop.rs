//! The findings `event-loop` and `late-answers`: the event loop of a server (asyncio, uvloop) runs callbacks for long,
//! so that requests and answers wait. The finding is `event-loop` if the steps wait for the event loop, too. It is
//! `late-answers` if only the answers are late.

use tllmprof_record::ThreadState;

use super::Judgement;
use super::evidence::{Evidence, first_numbers};
use super::ledger;
use super::loop_blocks::{LoopThread, MIN_BLOCK_NS, MIN_BLOCK_PERIODS, MIN_SATURATED};
use super::streams::MIN_BUSY;
use crate::ledger::LedgerKind;
use crate::numbers::units::{Count, Share, Time};

/// Name of the finding `event-loop`: the event loop is blocked, and the steps wait meanwhile.
pub(crate) const RULE: &str = "event-loop";

/// Minimum share of blocks in the time of the event loop's thread, as a fraction.
const MIN_BLOCKED: f64 = 0.1;
/// Minimum shares for the finding `event-loop`, as fractions: the share of the blocks' time in which the step's thread
/// waits for work (`MIN_WAITS`), and the share of such waits in all of the thread's time (`MIN_WAITS_OF_ALL`).
const MIN_WAITS: f64 = 0.25;
const MIN_WAITS_OF_ALL: f64 = 0.05;
/// Minimum share of the time, as a fraction, in which the steps wait for requests. If it is reached, the GPU has
/// nothing to do for a part of the time, even if its share of busy time is at least [`MIN_BUSY`].
const MIN_REQUESTS: f64 = 0.05;
/// Minimum number of samples of the event loop's thread.
const MIN_SAMPLES: u64 = 100;
/// Minimum number of times that a callback of the loop is known to have ended. With fewer, the program may do all its
/// work in one callback and serve no requests, as `asyncio.run(main())` or a notebook does.
const MIN_TURNS: u64 = 3;
/// Minimum loss that is stated, as a fraction.
const MIN_LOSS: f64 = 0.005;
/// Minimum share of waits for the GIL in blocks, as a fraction, for the evidence to state it.
const MIN_GIL: f64 = 0.1;

pub(super) fn blocked_when() -> String {
    format!(
        "{}; meanwhile the step's thread waits for work or another event in over {} of the samples, and that is over {} of its \
         time; the GPU is busy under {} of the time, or the steps wait for requests over {} of it",
        hit_when(),
        Share(MIN_WAITS),
        Share(MIN_WAITS_OF_ALL),
        Share(MIN_BUSY),
        Share(MIN_REQUESTS)
    )
}

pub(super) fn late_when() -> String {
    format!(
        "{}; meanwhile a step runs, and `{RULE}` does not hold",
        hit_when()
    )
}

fn hit_when() -> String {
    format!(
        "a thread with an event loop that makes no steps does not wait for events for over {} or {MIN_BLOCK_PERIODS} sampling \
         periods at a time (longer if short callbacks would give such samples by chance), over {} of its time in all; or it \
         runs callbacks over {} of the time",
        Time(MIN_BLOCK_NS),
        Share(MIN_BLOCKED),
        Share(MIN_SATURATED)
    )
}

/// Judges the rule on an event loop that is blocked while the steps wait.
pub(super) fn blocked(one: &Evidence<'_>) -> Judgement {
    let found = match find_loop(one) {
        Ok(found) => found,
        // Without stack samples, a wait for the event loop looks like a sleep or a wait for requests. If there are
        // hardly any of these, the steps do not wait for an event loop.
        Err(Judgement::Unknown(why)) => {
            return match (ledger::blocked(one), ledger::requests(one)) {
                (Judgement::No(evidence), Judgement::No(_)) => Judgement::No(evidence),
                _ => Judgement::Unknown(why),
            };
        }
        Err(judged) => return judged,
    };
    let evidence = describe(one, found);
    match is_hit(found) && do_steps_wait(one, found) {
        true => {
            let (cost, loss) = cost(one, found);
            Judgement::Yes {
                evidence: format!("{evidence}{}{cost}", waits(found)),
                loss,
            }
        }
        false => Judgement::No(evidence),
    }
}

/// Judges the rule on an event loop that is blocked while the steps do not wait.
pub(super) fn late(one: &Evidence<'_>) -> Judgement {
    let found = match find_loop(one) {
        Ok(found) => found,
        Err(judged) => return judged,
    };
    let evidence = describe(one, found);
    let overlaps = !found.meanwhile.overlapping.is_empty();
    match is_hit(found) && overlaps && !do_steps_wait(one, found) {
        true => Judgement::Yes {
            evidence: format!(
                "{evidence}; the steps do not wait for it, but answers of {} are late{}",
                Count(found.meanwhile.overlapping.len() as u64, "step"),
                numbers(found.meanwhile.overlapping.iter().copied())
            ),
            loss: None,
        },
        false => Judgement::No(evidence),
    }
}

/// Returns the thread whose event loop is judged. The error is the judgement if there is no such thread.
fn find_loop<'a>(one: &'a Evidence<'_>) -> Result<&'a LoopThread, Judgement> {
    let (facts, stacks) = (&one.process.facts, &one.process.stacks);
    if !stacks.is_there() {
        return Err(
            match facts.origin.is_own() && facts.software.python.is_empty() {
                true => Judgement::No("the process runs no Python".to_owned()),
                false => Judgement::Unknown("stacks were not sampled".to_owned()),
            },
        );
    }
    let sampled = &stacks.sampled;
    let mut samples = sampled.samples.iter();
    if !sampled.has_calls && samples.any(|one| one.state == Some(ThreadState::Sleeping)) {
        let why = "the kernel does not state the system calls in which threads sleep";
        return Err(Judgement::Unknown(why.to_owned()));
    }
    let Some(found) = one.event_loop() else {
        let why = "no sampled thread runs an event loop of Python (asyncio, uvloop)";
        return Err(Judgement::No(why.to_owned()));
    };
    if found.makes_steps {
        return Err(Judgement::No(format!(
            "{} runs the steps in its event loop, so that a long callback is part of a step: other findings are about it",
            thread(one, found)
        )));
    }
    if found.turns < MIN_TURNS {
        return Err(Judgement::No(format!(
            "the event loop of {} hardly ever ends a callback, as in a program that serves no requests",
            thread(one, found)
        )));
    }
    if found.samples < MIN_SAMPLES {
        return Err(Judgement::Unknown(format!(
            "{} with an event loop has only {} of at least {MIN_SAMPLES}",
            thread(one, found),
            Count(found.samples, "sample")
        )));
    }
    Ok(found)
}

fn is_hit(found: &LoopThread) -> bool {
    found.blocked >= MIN_BLOCKED || found.is_saturated()
}

/// Returns true if the step's thread waits for work while the event loop is blocked, and the GPU has nothing to do for
/// a part of the time. If it is not known how long the GPU is busy, only the waits decide.
fn do_steps_wait(one: &Evidence<'_>, found: &LoopThread) -> bool {
    let is_idle = || {
        one.process.ledger.host_share(LedgerKind::Requests) >= MIN_REQUESTS
            || one.busy().is_none_or(|busy| busy.share() < MIN_BUSY)
    };
    let meanwhile = &found.meanwhile;
    meanwhile.waits >= MIN_WAITS && meanwhile.of_all >= MIN_WAITS_OF_ALL && is_idle()
}

fn describe(one: &Evidence<'_>, found: &LoopThread) -> String {
    let who = thread(one, found);
    let longest = match found.blocks {
        0 => format!(
            "never goes over {} without a wait for events",
            Time(found.limit)
        ),
        blocks => format!(
            "goes up to {} without a wait for events, {} over {}: {} of its time",
            Time(found.longest),
            Count(blocks, "time"),
            Time(found.limit),
            Share(found.blocked)
        ),
    };
    let function = found.function.as_ref();
    let function = function.map_or_else(String::new, |(function, share)| {
        format!(", {} of that in {function}", Share(*share))
    });
    let gil = match found.gil >= MIN_GIL {
        true => format!(
            ", waiting for the GIL in {} of the samples",
            Share(found.gil)
        ),
        false => String::new(),
    };
    let busy = match found.is_saturated() {
        true => format!(
            "; it is saturated: it runs callbacks {} of the time",
            Share(found.busy)
        ),
        false => String::new(),
    };
    format!("the event loop of {who} {longest}{function}{gil}{busy}")
}

/// Returns words for a thread: its name, if the record has one that differs from the name of the process.
fn thread(one: &Evidence<'_>, found: &LoopThread) -> String {
    let facts = &one.process.facts;
    let name = facts.threads.get(&found.thread);
    match name.filter(|name| !facts.process.starts_with(name.as_str())) {
        Some(name) => format!("thread {name}"),
        None if found.thread == one.process.pid => "the main thread".to_owned(),
        None => format!("thread {}", found.thread),
    }
}

fn waits(found: &LoopThread) -> String {
    let meanwhile = &found.meanwhile;
    format!(
        "; meanwhile the step's thread waits for work or another event in {} of the samples, in {}{}",
        Share(meanwhile.waits),
        Count(meanwhile.waiting.len() as u64, "step"),
        numbers(meanwhile.waiting.iter().copied())
    )
}

/// Returns the first of the numbers of iterations in brackets; empty if there are none.
fn numbers(mut steps: impl Iterator<Item = u64> + Clone) -> String {
    match steps.clone().next() {
        Some(_) => format!(" ({})", first_numbers(&mut steps)),
        None => String::new(),
    }
}

/// Returns the cost of the blocks as text and as a share of the time: the time by which the steps that wait during
/// blocks exceed the other steps. If it is not known, the text is empty.
fn cost(one: &Evidence<'_>, found: &LoopThread) -> (String, Option<f64>) {
    let waiting = &found.meanwhile.waiting;
    let all = one.iterations().count();
    if waiting.is_empty() || waiting.len() * 2 > all {
        return (String::new(), None);
    }
    let longer = one.longer(|iteration| waiting.contains(&iteration.n));
    let each = Time(longer.total / waiting.len() as u64);
    // A step that is long for another reason is more likely to contain such a wait. So the loss is at most the time of
    // the waits.
    let share = one.share(longer.total).min(found.meanwhile.of_all);
    match share >= MIN_LOSS {
        true => (
            format!(", which take {each} longer each than the others"),
            Some(share),
        ),
        false => (String::new(), None),
    }
}
