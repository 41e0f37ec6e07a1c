//! Findings on the state of the GPU, and on the NUMA node of the thread that makes the steps.

use super::Judgement;
use super::evidence::Evidence;
use crate::metrics::state::{GpuState, OtherProcess};
use crate::numbers::units::{Count, Share, Time};

/// Minimum share of the time, as a fraction, in which the GPU's clock is lowered, for the finding
/// on lowered clocks.
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
/// Maximum number of other processes that the finding on shared GPUs names.
const MAX_NAMED: usize = 3;

pub(crate) fn throttled_when() -> String {
    format!(
        "over {} of the time the SM clock is under 95 % of its maximum, and the driver states power, heat or the hardware as the \
         reason",
        Share(MIN_THROTTLED)
    )
}

pub(crate) fn throttled(one: &Evidence<'_>) -> Judgement {
    let known = states(one).filter_map(|gpu| Some((gpu, gpu.throttled.as_ref()?)));
    let Some((gpu, worst)) = known.max_by(|a, b| a.1.share.total_cmp(&b.1.share)) else {
        return unknown(one, "the driver does not state the reasons for the clocks");
    };
    let (share, name) = (Share(worst.share), gpu.device);
    if worst.share < MIN_THROTTLED {
        return Judgement::No(format!(
            "the clock of GPU {name} is lowered {share} of the time"
        ));
    }
    let clock = |clock: Option<f64>| format!("{:.0} MHz", clock.unwrap_or(0.0));
    let other = match worst.other_clock {
        Some(_) => format!("{} in the rest", clock(worst.other_clock)),
        None => format!("its maximum is {}", clock(gpu.max_clock)),
    };
    Judgement::Yes {
        evidence: format!(
            "the SM clock of GPU {name} is lowered {share} of the time by {}: {} then, {other}{}",
            worst.reasons.join(" and "),
            clock(worst.clock),
            compared(worst.cost),
        ),
        loss: worst.cost,
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
        "a process of another run takes over {} of the time of the SMs of a GPU that the process uses",
        Share(MIN_OTHER)
    )
}

pub(crate) fn shared(one: &Evidence<'_>) -> Judgement {
    let share = |gpu: &GpuState| {
        let others = gpu.others.iter().flatten();
        others
            .filter_map(|other| other.sm_share)
            .fold(0.0, f64::max)
    };
    let Some(gpu) = states(one).max_by(|a, b| share(a).total_cmp(&share(b))) else {
        return unknown(one, "");
    };
    let (device, busiest) = (gpu.device, share(gpu));
    if busiest >= MIN_OTHER {
        return Judgement::Yes {
            evidence: format!(
                "other processes use GPU {device}: {}{}",
                named(gpu.others.iter().flatten(), true),
                compared(gpu.others_cost)
            ),
            loss: gpu.others_cost,
        };
    }
    if states(one).any(|gpu| gpu.others.is_none()) {
        let why = "the driver lists no processes of the GPU, or lists them by numbers of the host, as in a container";
        return Judgement::Unknown(why.to_owned());
    }
    let others = || states(one).flat_map(|gpu| gpu.others.iter().flatten());
    if others().any(|other| other.sm_share.is_none()) {
        let others = others().filter(|other| other.sm_share.is_none());
        return Judgement::Unknown(format!(
            "another process has the GPU open, and its utilization is not known: {}",
            named(others, false)
        ));
    }
    Judgement::No(match others().next() {
        Some(_) => format!(
            "other processes have the GPU open, and hardly use it: {}",
            named(others(), false)
        ),
        None => "no other process uses the GPU".to_owned(),
    })
}

/// Returns text about the other processes that use a GPU, the busiest first. `has_shares` is true
/// to include each process's share of the SMs' time.
fn named<'a>(others: impl Iterator<Item = &'a OtherProcess>, has_shares: bool) -> String {
    let mut others: Vec<_> = others.collect();
    others.sort_by(|a, b| {
        b.sm_share
            .unwrap_or(0.0)
            .total_cmp(&a.sm_share.unwrap_or(0.0))
    });
    let of = |other: &&OtherProcess| {
        let process = match (other.pid, &other.name) {
            (Some(pid), Some(name)) => format!("process {pid} ({name})"),
            (Some(pid), None) => format!("process {pid}"),
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
