//! The table of rules.

use schemars::JsonSchema;
use serde::Serialize;

use super::claims::ClaimRule;
use super::evidence::Evidence;
use super::{Judgement, arrivals, gpu, host, ledger, python, ranks, routing, rule};
use crate::events::origin::Data;
use crate::ledger::{Claim, LedgerKind};
use crate::ranks::arrivals::Arrivals;
use crate::ranks::skew::Skew;

/// The kind of a finding. Findings are sorted in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "FindingKind")]
pub enum Kind {
    /// Something that costs time and can be fixed.
    Cause,
    /// The resource that the program is bound by.
    Bound,
    /// A consequence of causes.
    Symptom,
    /// Something to know that is not a fault.
    Note,
}

/// A rule.
#[derive(Serialize, JsonSchema)]
pub struct Rule {
    /// The rule's name, such as `launch-bound`.
    #[serde(rename = "rule")]
    pub name: &'static str,
    /// The kind of the rule.
    pub kind: Kind,
    /// The data that it is judged by, in words.
    #[serde(skip)]
    pub evidence: &'static str,
    /// Returns the condition under which it holds, in words.
    #[serde(skip)]
    pub threshold: fn() -> String,
    #[serde(skip)]
    pub advice: &'static str,
    /// Advice on how to get the data if it is unknown, as a sentence and in a word or two; empty if few programs have
    /// such data at all.
    #[serde(skip)]
    pub to_know: &'static str,
    #[serde(skip)]
    pub needs: &'static str,
    /// The rows of the ledger whose time it claims if it holds.
    #[serde(skip)]
    pub(super) claims: ClaimRule,
    /// Data that other profilers may not have recorded. Without it the rule is unknown.
    #[serde(skip)]
    pub data: &'static [Data],
    #[serde(skip)]
    pub(super) judge: Judge,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

#[derive(Clone, Copy)]
pub(super) enum Judge {
    /// Judges each process by itself.
    Each(fn(&Evidence<'_>) -> Judgement),
    /// Judges each process by its ledger, in which waits for a processor are already separate.
    Ledger(fn(&Evidence<'_>) -> Judgement),
    /// Judges all processes together.
    All(fn(&[Evidence<'_>], JobAnalyses<'_>) -> Judgement),
}

/// Analyses of several processes together.
#[derive(Clone, Copy)]
pub(super) struct JobAnalyses<'a> {
    pub skew: Option<&'a Skew>,
    pub arrivals: Option<&'a Arrivals>,
}

/// The option that records the data of most rules on the GPU.
pub const KERNELS: &str = "--kernels";
const METRICS: &str = "--gpu-metrics";

const CALLS: &[Data] = &[Data::Calls];
const GPU: &[Data] = &[Data::Gpu];
const COLLECTIVES: &[Data] = &[Data::Gpu, Data::Iterations];
/// Data of rules on the calls in an iteration.
const STEPS: &[Data] = &[Data::Calls, Data::Iterations];

/// The rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "launch-bound",
        kind: Kind::Cause,
        evidence: "kernels and the gaps between them; without them the host's time in launches",
        threshold: host::launch_bound_when,
        advice: "capture the step in a CUDA graph, or have fewer and larger kernels \
                 (torch.compile, fused operators)",
        to_know: "run with --kernels",
        needs: KERNELS,
        claims: ClaimRule::Idle(&[Claim::Launch]),
        data: STEPS,
        judge: Judge::Each(host::launch_bound),
    },
    Rule {
        name: "host-waits",
        kind: Kind::Cause,
        evidence: "host waits in an iteration, and how long nothing was launched after them",
        threshold: host::waits_when,
        advice: "wait once a step: keep what the host decides on the GPU, and read results a step later \
                 (no .item() or .cpu() inside a step)",
        to_know: "run with --kernels",
        needs: KERNELS,
        claims: ClaimRule::Idle(&[Claim::Wait]),
        data: STEPS,
        judge: Judge::Each(host::waits),
    },
    Rule {
        name: "blocking-copies",
        kind: Kind::Cause,
        evidence: "copies to the host that return when they are done, and how long nothing was launched \
                   after them",
        threshold: host::copies_when,
        advice: "copy asynchronously to pinned memory, in one piece, and wait later",
        to_know: "run with --kernels",
        needs: KERNELS,
        claims: ClaimRule::Idle(&[Claim::Read]),
        data: STEPS,
        judge: Judge::Each(host::copies),
    },
    Rule {
        name: "allocations",
        kind: Kind::Cause,
        evidence: "cuMemAlloc, cuMemFree and their pinned forms inside windows",
        threshold: host::allocations_when,
        advice: "allocate before the steady state, or from a pool (a caching allocator, cudaMallocAsync)",
        to_know: "record with a library that counts allocations",
        needs: "a newer library",
        claims: ClaimRule::Host(&[LedgerKind::Allocation]),
        data: STEPS,
        judge: Judge::Each(host::allocations),
    },
    Rule {
        name: "small-copies",
        kind: Kind::Cause,
        evidence: "copies that do not wait, and the host's time in them",
        threshold: ledger::copies_when,
        advice: "gather what is copied in one pinned buffer and copy it in one piece, or keep it on the GPU",
        to_know: "",
        needs: "",
        claims: ClaimRule::Copies,
        data: STEPS,
        judge: Judge::Each(ledger::copies),
    },
    Rule {
        name: "long-copies",
        kind: Kind::Cause,
        evidence: "copies that do not wait for the GPU, and the host's time in them",
        threshold: ledger::long_copies_when,
        advice: "copy asynchronously and from pinned memory (cudaHostAlloc, pin_memory()): a call that copies other memory \
                 returns when that has been read",
        to_know: "",
        needs: "",
        claims: ClaimRule::Host(&[LedgerKind::Copy]),
        data: STEPS,
        judge: Judge::Each(ledger::long_copies),
    },
    Rule {
        name: "graph-recapture",
        kind: Kind::Cause,
        evidence: "how much longer iterations take in which a stream is captured",
        threshold: ledger::recapture_when,
        advice: "keep what a graph depends on as it is: pad batches to sizes that were captured in the warm-up, or update the \
                 graph in place",
        to_know: "",
        needs: "",
        claims: ClaimRule::Host(&[LedgerKind::Capture]),
        data: STEPS,
        judge: Judge::Each(ledger::recapture),
    },
    Rule {
        name: ledger::CODE_RULE,
        kind: Kind::Cause,
        evidence: "the ledger: what the host does while the GPU has nothing to do",
        threshold: ledger::code_when,
        advice: "do that work while the GPU works, in another thread or a step ahead",
        to_know: "",
        needs: "",
        claims: ClaimRule::Code,
        data: CALLS,
        judge: Judge::Ledger(ledger::code),
    },
    Rule {
        name: ledger::IDLE_RULE,
        kind: Kind::Cause,
        evidence: "the ledger: how long the GPU has nothing to do, and what the host does meanwhile",
        threshold: ledger::idle_when,
        advice: "see the ledger: what the host does meanwhile has to be shorter, or done a step ahead",
        to_know: "run with --kernels",
        needs: KERNELS,
        claims: ClaimRule::AllIdle,
        data: CALLS,
        judge: Judge::Ledger(ledger::idle),
    },
    Rule {
        name: "host-blocked",
        kind: Kind::Cause,
        evidence: "the ledger, and how long the step's thread was on a processor",
        threshold: ledger::blocked_when,
        advice: "find what it waits for (a sleep, a lock, a file, another thread or process), and have that done a step ahead; \
                 --gil shows whether it is the GIL",
        to_know: "record with a library that counts it",
        needs: "a newer library",
        claims: ClaimRule::Idle(&[Claim::Blocked]),
        data: &[],
        judge: Judge::Ledger(ledger::blocked),
    },
    Rule {
        name: ledger::DELAYED_RULE,
        kind: Kind::Cause,
        evidence: "how long the step's thread could have run and had no processor, by the kernel's scheduler",
        threshold: ledger::delayed_when,
        advice: "give the process processors of its own: fewer threads and neighbours on them, a larger CPU limit of its \
                 container, taskset",
        to_know: "record with a library that counts it",
        needs: "a newer library",
        claims: ClaimRule::Host(&[LedgerKind::Delayed]),
        data: &[],
        judge: Judge::Ledger(ledger::delayed),
    },
    Rule {
        name: ledger::FAULTS_RULE,
        kind: Kind::Cause,
        evidence: "page faults of the step's thread, and its time in the kernel",
        threshold: ledger::faults_when,
        advice: "keep memory and use it again: no large buffer that is made and freed in each step, mapped files read in before \
                 (MAP_POPULATE, mlock), huge pages",
        to_know: "record with a library that counts them",
        needs: "a newer library",
        claims: ClaimRule::None,
        data: &[],
        judge: Judge::Each(ledger::faults),
    },
    Rule {
        name: "gc",
        kind: Kind::Cause,
        evidence: "Python's garbage collections in iterations, and in the slow ones",
        threshold: python::gc_when,
        advice: "gc.freeze() after the warm-up, and a higher gc.set_threshold() or gc.disable() with \
                 collections between requests",
        to_know: "run with --gc",
        needs: "--gc",
        claims: ClaimRule::Host(&[LedgerKind::Gc]),
        data: &[],
        judge: Judge::Each(python::gc),
    },
    Rule {
        name: "gil",
        kind: Kind::Cause,
        evidence: "waits for the GIL of the threads that run iterations, and in the slow ones",
        threshold: python::gil_when,
        advice: "move the work of the other threads to processes, or to code that releases the GIL",
        to_know: "run with --gil",
        needs: "--gil",
        claims: ClaimRule::Host(&[LedgerKind::GilWait]),
        data: &[],
        judge: Judge::Each(python::gil),
    },
    Rule {
        name: ranks::SLOW_RULE,
        kind: Kind::Cause,
        evidence: "how long the same iterations took on each rank",
        threshold: ranks::slow_when,
        advice: "look at that rank's GPU clock, its host and its share of the work",
        to_know: "give the records of all ranks",
        needs: "the other ranks' records",
        claims: ClaimRule::None,
        data: &[Data::Iterations],
        judge: Judge::All(ranks::slow),
    },
    Rule {
        name: arrivals::SKEW_RULE,
        kind: Kind::Cause,
        evidence: "the collectives of all ranks, by their kernels: when each came, and when the last one did",
        threshold: arrivals::skew_when,
        advice: "look at what makes that rank late; collectives only show it on all the others",
        to_know: "run all ranks with --kernels, and give the records of all",
        needs: "",
        claims: ClaimRule::None,
        data: COLLECTIVES,
        judge: Judge::All(arrivals::skew),
    },
    Rule {
        name: "routing-imbalance",
        kind: Kind::Cause,
        evidence: "tokens that the learned router sent to each expert, outside windows",
        threshold: routing::imbalance_when,
        advice: "compare with --perfect-router for what it costs; place or replicate the busy experts",
        to_know: "run with --perfect-router=window, which counts what the learned router does outside windows",
        needs: "",
        claims: ClaimRule::None,
        data: &[],
        judge: Judge::Each(routing::imbalance),
    },
    Rule {
        name: gpu::COPIES_RULE,
        kind: Kind::Bound,
        evidence: "kernels and copies, and how long copies run beside no kernel",
        threshold: gpu::copies_when,
        advice: "keep on the GPU what each step copies, such as offloaded weights or caches; or copy it while kernels run \
                 (another stream, pinned memory)",
        to_know: "run with --kernels",
        needs: KERNELS,
        claims: ClaimRule::None,
        data: GPU,
        judge: Judge::Each(gpu::copies),
    },
    Rule {
        name: "memory-bandwidth-bound",
        kind: Kind::Bound,
        evidence: "DRAM bandwidth and SM utilisation",
        threshold: gpu::memory_when,
        advice: "FP8 weights, FP8 KV cache, tensor parallelism",
        to_know: "run with --gpu-metrics",
        needs: METRICS,
        claims: ClaimRule::None,
        data: &[],
        judge: Judge::Each(gpu::memory),
    },
    Rule {
        name: "compute-bound",
        kind: Kind::Bound,
        evidence: "SM utilisation and DRAM bandwidth",
        threshold: gpu::compute_when,
        advice: "the GPU is well used; what is left is fewer operations (FP8, sparsity) or more GPUs",
        to_know: "run with --gpu-metrics",
        needs: METRICS,
        claims: ClaimRule::None,
        data: &[],
        judge: Judge::Each(gpu::compute),
    },
    Rule {
        name: "transfer-bound",
        kind: Kind::Bound,
        evidence: "the same collectives: what they take once all ranks have come",
        threshold: arrivals::transfer_when,
        advice: "fewer and larger collectives, or work beside them; faster ones (the custom all-reduce, NVLink); fewer ranks \
                 that share a layer",
        to_know: "run all ranks with --kernels, and give the records of all",
        needs: "",
        claims: ClaimRule::None,
        data: COLLECTIVES,
        judge: Judge::All(arrivals::transfer),
    },
    Rule {
        name: "low-gpu-utilisation",
        kind: Kind::Symptom,
        evidence: "the part of the time in which the GPU is busy, by kernels or metrics",
        threshold: gpu::low_when,
        advice: "a larger batch; less work on the host between launches; CUDA graphs; --gil shows whether \
                 Python threads hold each other up",
        to_know: "run with --kernels",
        needs: KERNELS,
        claims: ClaimRule::None,
        data: GPU,
        judge: Judge::Each(gpu::low),
    },
    Rule {
        name: "below-targets",
        kind: Kind::Symptom,
        evidence: "SM utilisation and DRAM bandwidth",
        threshold: gpu::targets_when,
        advice: "the SMs and the memory are both underused: a larger batch, more requests at once",
        to_know: "run with --gpu-metrics",
        needs: METRICS,
        claims: ClaimRule::None,
        data: &[],
        judge: Judge::Each(gpu::targets),
    },
    Rule {
        name: "mixed-steps",
        kind: Kind::Note,
        evidence: "launches after a wait for the GPU in an iteration that a launch opens",
        threshold: rule::mixed_when,
        advice: "count by the wait that ends a step, or leave --step out: then work is in the step that it is for",
        to_know: "",
        needs: "",
        claims: ClaimRule::None,
        data: STEPS,
        judge: Judge::Each(rule::mixed),
    },
    Rule {
        name: "large-batches",
        kind: Kind::Note,
        evidence: "tokens in the batches of slow iterations",
        threshold: ledger::batches_when,
        advice: "that is work, and delays the requests beside it: a smaller limit of tokens a batch (chunked prefill) spreads it \
                 over more steps",
        to_know: "name where the engine holds its batch (--batch)",
        needs: "",
        claims: ClaimRule::None,
        data: STEPS,
        judge: Judge::Each(ledger::batches),
    },
    Rule {
        name: "no-gpu-work",
        kind: Kind::Note,
        evidence: "calls that launch or copy, and the ledger of the host",
        threshold: ledger::no_work_when,
        advice: "the step may be the wrong one (--step), or another process may launch the work: record that, too; else find \
                 what the host does or waits for there (--stacks shows the function)",
        to_know: "record fewer iterations, so that no event is lost",
        needs: "",
        claims: ClaimRule::None,
        data: CALLS,
        judge: Judge::Each(ledger::no_work),
    },
    Rule {
        name: "no-requests",
        kind: Kind::Note,
        evidence: "waits for requests of the thread that makes the steps",
        threshold: ledger::requests_when,
        advice: "not a fault; send more requests to see it under load",
        to_know: "",
        needs: "",
        claims: ClaimRule::Host(&[LedgerKind::Requests]),
        data: CALLS,
        judge: Judge::Each(ledger::requests),
    },
];
