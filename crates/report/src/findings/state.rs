//! Findings on the state of the GPU, and on the NUMA node of the thread that makes the steps.

use super::Judgement;
use super::evidence::Evidence;
use crate::events::requests::gives_work;
use crate::metrics::may_be_one_run;
use crate::metrics::state::{GpuState, OtherProcess, Throttled};
use crate::numbers::units::{Count, Share, Time};

/// Name of the finding `shared-gpu`: another process uses a GPU of the process.
pub(crate) const SHARED_RULE: &str = "shared-gpu";

/// Minimum share of the time, as a fraction, in which the GPU's clock is lowered, for the findings
/// on lowered clocks and on GPUs at their power limit.
const MIN_THROTTLED: f64 = 0.05;
/// Minimum share of the SMs' time, as a fraction, that another process takes, for the finding on
/// shared GPUs.
const MIN_OTHER: f64 = 0.02;
/// Minimum share of the time, as a fraction, in which the thread runs on another NUMA node than its GPU's, for the
/// finding on NUMA nodes. At least [`MIN_MOVES`] moves of the thread between nodes also give the finding.
const MIN_FAR: f64 = 0.2;
const MIN_MOVES: u64 = 3;
/// The distance that the operating system states from a NUMA node to itself. Distances to other
/// nodes are larger.
const SAME_NODE: u32 = 10;
/// The reason why the findings on lowered clocks are unknown.
const NO_REASONS: &str = "the driver does not state the reasons for the clocks";
/// Maximum number of other processes that the finding on shared GPUs names.
const MAX_NAMED: usize = 3;

pub(crate) fn throttled_when() -> String {
    format!(
        "over {} of the time the SM clock is under 95 % of its maximum, and the driver states heat or the hardware as the reason, \
         or power where the power limit is below the board's default or one of the two is not known",
        Share(MIN_THROTTLED)
    )
}

/// Returns the GPU whose clock was lowered for the largest share of the time, with the figures of that time. `of`
/// selects the reasons. Returns `None` if the reasons for the clocks are not known.
fn most_lowered<'a>(
    one: &Evidence<'a>,
    of: fn(&GpuState) -> Option<&Throttled>,
) -> Option<(&'a GpuState, &'a Throttled)> {
    let known = states(one).filter_map(|gpu| Some((gpu, of(gpu)?)));
    known.max_by(|a, b| a.1.share.total_cmp(&b.1.share))
}

/// Returns words for the SM clock while it was lowered, and words for the clock in the rest of the time. If the clock
/// was lowered all the time, the second text is about the maximum clock.
fn clocks(gpu: &GpuState, lowered: &Throttled) -> (String, String) {
    let clock = |clock: Option<f64>| format!("{:.0} MHz", clock.unwrap_or(0.0));
    let other = match lowered.other_clock {
        Some(_) => format!("{} in the rest", clock(lowered.other_clock)),
        None => format!("its maximum is {}", clock(gpu.max_clock)),
    };
    (clock(lowered.clock), other)
}

pub(crate) fn throttled(one: &Evidence<'_>) -> Judgement {
    let Some((gpu, worst)) = most_lowered(one, |gpu| gpu.throttled.as_ref()) else {
        return unknown(one, NO_REASONS);
    };
    let (share, name) = (Share(worst.share), gpu.device);
    if worst.share < MIN_THROTTLED {
        return Judgement::No(format!(
            "the clock of GPU {name} is lowered {share} of the time by heat, the hardware or a lowered power limit"
        ));
    }
    let (clock, other) = clocks(gpu, worst);
    let is_by_power = worst
        .reasons
        .iter()
        .any(|reason| reason.starts_with("power"));
    let limit = match gpu.lowered_limit() {
        Some((limit, default)) => {
            format!("; its power limit is {limit:.0} W, {default:.0} W by default")
        }
        None if is_by_power => {
            "; it is not known if its power limit is the board's default".to_owned()
        }
        None => String::new(),
    };
    Judgement::Yes {
        evidence: format!(
            "the SM clock of GPU {name} is lowered {share} of the time by {}: {clock} then, {other}{}{}",
            worst.reasons.join(" and "),
            limit,
            compared(worst.cost),
        ),
        loss: worst.cost,
    }
}

pub(crate) fn power_limited_when() -> String {
    format!(
        "over {} of the time the SM clock is under 95 % of its maximum, and the driver states power as the reason; the power limit \
         is not below the board's default",
        Share(MIN_THROTTLED)
    )
}

pub(crate) fn power_limited(one: &Evidence<'_>) -> Judgement {
    let Some((gpu, most)) = most_lowered(one, |gpu| gpu.power_limited.as_ref()) else {
        return unknown(one, NO_REASONS);
    };
    let (share, name) = (Share(most.share), gpu.device);
    if let Some((limit, default)) = gpu.lowered_limit() {
        return Judgement::No(format!(
            "the power limit of GPU {name} is lowered: {limit:.0} W, {default:.0} W by default"
        ));
    }
    if gpu.is_limit_lowered().is_none() {
        return Judgement::No(
            "it is not known if the power limit is the board's default".to_owned(),
        );
    }
    let limit = gpu.power_limit.map(|watts| format!(" ({watts:.0} W)"));
    let works = format!(
        "GPU {name} works at its power limit{} {share} of the time",
        limit.unwrap_or_default()
    );
    if most.share < MIN_THROTTLED {
        return Judgement::No(works);
    }
    let (clock, other) = clocks(gpu, most);
    Judgement::Yes {
        evidence: format!("{works}: the SM clock is {clock} then, {other}"),
        loss: most.cost,
    }
}

pub(crate) fn low_clocks_when() -> String {
    "at the start of a window the SM clock is under 90.0 % of what it is later, and nothing limits it".to_owned()
}

pub(crate) fn low_clocks(one: &Evidence<'_>) -> Judgement {
    let longest = states(one).filter_map(|gpu| Some((gpu.device, gpu.low_clock?)));
    match longest.max_by_key(|(_, low)| low.duration) {
        Some((device, low)) => Judgement::Yes {
            evidence: format!(
                "the SM clock of GPU {device} is {:.0} MHz in the first {} of the window, and {:.0} MHz later{}",
                low.clock,
                Time(low.duration),
                low.later,
                compared(low.cost),
            ),
            loss: low.cost,
        },
        None if states(one).any(|gpu| gpu.clock.is_some()) => {
            Judgement::No("no rise of the clock was seen in a window".to_owned())
        }
        None => unknown(one, "the driver does not state the clocks"),
    }
}

pub(crate) fn shared_when() -> String {
    format!(
        "another process, of this run or of another one, takes over {} of the time of the SMs of a GPU that the process gives work",
        Share(MIN_OTHER)
    )
}

/// Returns the other processes that share the GPU with a process. If the process gives the GPU no work (`has_work` is
/// false), the other processes of the same run do its work. So they do not share the GPU with it.
fn sharing(gpu: &GpuState, has_work: bool) -> impl Iterator<Item = &OtherProcess> {
    let others = gpu.others.iter().flatten();
    others.filter(move |other| has_work || !other.same_run)
}

pub(crate) fn shared(one: &Evidence<'_>) -> Judgement {
    let has_work = one.calls(gives_work).count > 0 || !one.process.kernels.totals.is_empty();
    let share = |gpu: &GpuState| {
        let others = sharing(gpu, has_work);
        others
            .filter_map(|other| other.sm_share)
            .fold(0.0, f64::max)
    };
    let Some(gpu) = states(one).max_by(|a, b| share(a).total_cmp(&share(b))) else {
        return unknown(one, "");
    };
    if share(gpu) >= MIN_OTHER {
        let device = gpu.device;
        let others =
            sharing(gpu, has_work).filter(|other| other.sm_share.unwrap_or(1.0) >= MIN_OTHER);
        let others = named(one, others, true);
        let (cost, loss) = cost_of_sharing(gpu, has_work);
        return Judgement::Yes {
            evidence: format!("other processes use GPU {device}: {others}{cost}"),
            loss: Some(loss),
        };
    }
    if states(one).any(|gpu| gpu.others.is_none()) {
        let why = "the driver lists no processes of the GPU, or lists them by numbers of the host, as in a container";
        return Judgement::Unknown(why.to_owned());
    }
    let others = || states(one).flat_map(|gpu| sharing(gpu, has_work));
    if others().any(|other| other.sm_share.is_none()) {
        let others = others().filter(|other| other.sm_share.is_none());
        return Judgement::Unknown(format!(
            "another process has the GPU open, and its utilization is not known: {}",
            named(one, others, false)
        ));
    }
    let is_of_run = |gpu: &GpuState| {
        gpu.has_unclear_processes || gpu.others.as_ref().is_some_and(|all| !all.is_empty())
    };
    Judgement::No(match others().next() {
        Some(_) => format!(
            "other processes have the GPU open, and hardly use it: {}",
            named(one, others(), false)
        ),
        None if states(one).any(is_of_run) => {
            "no process of another run uses the GPU; processes of this run do".to_owned()
        }
        None => "no other process uses the GPU".to_owned(),
    })
}

/// Returns the time that is lost to other processes on a GPU, as a fraction of the iterations' time, and words about
/// that cost. If no iterations can be compared, the mean share of the SMs' time that the others take is the upper
/// bound: the GPU runs the work of different processes in turns.
fn cost_of_sharing(gpu: &GpuState, has_work: bool) -> (String, f64) {
    // `others_cost` also contains time lost to processes of the same run, which may not share the GPU (see
    // [`sharing`]).
    let is_of_sharing = has_work || !gpu.others.iter().flatten().any(|other| other.same_run);
    if let Some(cost) = gpu.others_cost.filter(|_| is_of_sharing) {
        return (String::new(), cost);
    }
    let others = sharing(gpu, has_work);
    let means = others.filter_map(|other| other.mean_sm_share);
    let most = means.sum::<f64>().min(1.0);
    let cost = format!("{}; at most {}", compared(None), Share(most));
    (cost, most)
}

/// Returns text about other processes that use a GPU, the busiest first. `has_shares` is true to include each process's
/// share of the SMs' time.
fn named<'a>(
    one: &Evidence<'_>,
    others: impl Iterator<Item = &'a OtherProcess>,
    has_shares: bool,
) -> String {
    let mut others: Vec<_> = others.collect();
    others.sort_by(|a, b| {
        b.sm_share
            .unwrap_or(0.0)
            .total_cmp(&a.sm_share.unwrap_or(0.0))
    });
    let of = |other: &&OtherProcess| {
        let whose = whose(one, other);
        let process = match (other.pid, &other.name) {
            (Some(pid), Some(name)) => format!("process {pid} ({name}){whose}"),
            (Some(pid), None) => format!("process {pid}{whose}"),
            (None, _) => "one whose number is of another PID namespace".to_owned(),
        };
        match other.sm_share.filter(|_| has_shares) {
            Some(share) => format!("{process} takes up to {} of the SMs' time", Share(share)),
            None => process,
        }
    };
    let mut shown: Vec<_> = others.iter().take(MAX_NAMED).map(of).collect();
    if others.len() > MAX_NAMED {
        shown.push(Count((others.len() - MAX_NAMED) as u64, "more process").to_string());
    }
    shown.join(", ")
}

/// Returns words that say to which run a process belongs. For a process of the same run, they also say which rank it
/// is, or that the report has no record of it.
fn whose(one: &Evidence<'_>, other: &OtherProcess) -> String {
    if !other.same_run {
        return " of another run".to_owned();
    }
    let own = &one.process.facts;
    let mut recorded = one.processes.iter().filter(|process| {
        let is_near =
            process.facts.boot == own.boot && may_be_one_run(&process.facts.run, &own.run);
        is_near && Some(process.pid) == other.pid
    });
    match recorded.next().map(|process| process.facts.known_rank()) {
        Some(Some(rank)) => format!(" of this run (rank {rank})"),
        Some(None) => " of this run".to_owned(),
        None => " of this run (not recorded here)".to_owned(),
    }
}

pub(crate) fn far_when() -> String {
    format!(
        "the thread that makes the steps runs over {} of the time on another NUMA node than its GPU's, or moves between nodes \
         {MIN_MOVES} times",
        Share(MIN_FAR)
    )
}

pub(crate) fn far(one: &Evidence<'_>) -> Judgement {
    let Some(found) = &one.process.metrics.placement else {
        return unknown(one, "the machine does not state the NUMA node of the GPU");
    };
    if found.nodes < 2 {
        return Judgement::No("the machine has one NUMA node".to_owned());
    }
    let (device, gpu) = (found.device, found.gpu);
    let (Some(node), Some(share)) = (found.thread, found.far_share) else {
        return Judgement::Unknown(
            "the node of the thread that makes the steps was not sampled".to_owned(),
        );
    };
    let moves = match found.moves {
        0 => String::new(),
        moves => format!(", and moves between nodes {}", Count(moves, "time")),
    };
    let distance = found.distance.unwrap_or(SAME_NODE);
    let is_far = share >= MIN_FAR && (distance > SAME_NODE || node == gpu);
    let evidence = match share > 0.0 {
        true => format!(
            "the thread that makes the steps runs {} of the time on another NUMA node than GPU {device} (node {gpu}), mostly on \
             node {node} (distance {distance}){moves}",
            Share(share)
        ),
        false => format!(
            "the thread that makes the steps runs on the NUMA node of GPU {device} (node {gpu}){moves}"
        ),
    };
    match is_far || found.moves >= MIN_MOVES {
        true => Judgement::Yes {
            evidence,
            loss: None,
        },
        false => Judgement::No(evidence),
    }
}

fn states<'a>(one: &Evidence<'a>) -> impl Iterator<Item = &'a GpuState> + use<'a> {
    one.process.metrics.state.iter()
}

/// Returns the judgement that a finding is unknown. The reason comes from the record or, if the
/// record states none, from `why`.
fn unknown(one: &Evidence<'_>, why: &str) -> Judgement {
    let reason = one.process.metrics.unknown.clone();
    Judgement::Unknown(reason.unwrap_or_else(|| why.to_owned()))
}

/// Returns a note that the cost of a finding is not known; empty if `cost` is `Some`.
fn compared(cost: Option<f64>) -> String {
    match cost {
        Some(_) => String::new(),
        None => "; what that costs is not known, as all iterations had it or too few".to_owned(),
    }
}
