// The data of the page. Made from `crates/page/src/data.rs` and `crates/report/src`:
// BLESS=1 cargo test -p tllmprof-page --test contract

/** What a page shows, but for iterations and events. */
export interface Data {
    /** The report, with its lists of iterations empty. */
    report: Report;
    /** For each of the report's processes: more figures. */
    processes: ProcessFigures[];
    /** More figures of the report's skew; `null` where it has none. */
    skew: SkewFigures | null;
    /** Of which iterations the shares of processes side by side are, if not of all. */
    of_which: string[];
}

/** What `tllmprof report --json` prints. Keys that end with `ns` are in nanoseconds; moments are on the clock `CLOCK_MONOTONIC`. Every key is always present; what is not known or was not measured is `null`. */
export interface Report {
    /** The processes, in the order of their ranks. */
    processes: Process[];
    /** The processes side by side; `null` where no two of them have an iteration in common. */
    skew: Skew | null;
    /** What the processes' collectives show together; `null` where no two have any. */
    collectives: Collectives | null;
    /** What may make the program slow: what holds first, then what is unknown, then what does not hold; of these causes first, and of those the greatest loss. Empty where no process has iterations. */
    findings: Finding[];
}

/** Figures of a process. */
export interface ProcessFigures {
    /** What distinguishes it from the others. */
    name: string;
    /** What the GPU's time is called by where it was measured, and of how many iterations it is; `null`: there are none. */
    gpu_name: string | null;
    /** How many iterations are in no figure, and why; `null`: all are in all. */
    uncounted: string | null;
    /** Why there are no figures of iterations; `null`: there are some. */
    nothing: string | null;
    /** How much of the time the recorder took; `null`: not known. Unit: part of 1. */
    own_share: number | null;
    /** For each of `calls`. */
    calls: Each[];
    /** For each of `gc`. */
    gc: Each[];
    /** For `gil_wait`. */
    gil_wait: Each;
    /** For `gil_hold`. */
    gil_hold: Each;
    /** For each of `functions`. */
    functions: Each[];
    /** For each of `ranges`. */
    ranges: Each[];
    /** For each of `kernels`. */
    kernels: KernelFigures[];
    /** For each of `copies`: how fast they were; `null`: they took no time. Unit: bytes/s. */
    copies: (number | null)[];
    /** For `routing`; `null` where that is. */
    routing: RoutingFigures | null;
}

/** Figures of processes side by side. */
export interface SkewFigures {
    /** How many iterations several processes have. Unit: iterations. */
    iterations: number;
    /** The place of the process that was the slowest most often; `null`: none ever was. */
    most_often: number | null;
}

/** A process: what its record says. What is not known is empty or `null`. */
export interface Process {
    /** The file that it was read from. */
    file: string;
    /** Its process ID. */
    pid: number;
    /** Its parent's process ID. */
    parent: number;
    /** The host's name. */
    host: string;
    /** Its rank; 0 where it is not known. */
    rank: number;
    /** What its rank is known from: the name of a variable, `torch.distributed`, an engine, `NCCL`; `null`: it is not known, or the record is of an older version. */
    rank_source: string | null;
    /** How many ranks there are; `null`: not known. */
    world_size: number | null;
    /** Its place in all its groups, such as `TP1 of 4, DP0`; empty: none is known. */
    in_groups: string;
    /** The groups of ranks that it is in, each name once; a group of a single rank is left out. */
    groups: GroupRank[];
    /** The communicators of NCCL that it made, in their order. */
    communicators: Communicator[];
    /** The identifier of the run that it belongs to; `null`: it has none. */
    run: string | null;
    /** Its command line. */
    command: string;
    /** The process's own name. */
    name: string;
    /** What an iteration is: the rule that counts them, as `TLLMPROF_STEP` names it. */
    rule: string;
    /** Why that rule was chosen, where `auto` chose it. */
    rule_why: string;
    /** The inference or training engine, where it is a known one. */
    engine: string;
    /** The version of tllmprof that wrote the record. */
    library: string;
    /** The version of Python in the process; empty: none. */
    python: string;
    /** The names of the GPUs that it used. */
    gpus: string[];
    /** The version of the CUDA driver, as CUDA numbers it: 12040 is 12.4; `null`: not known. */
    cuda_driver: number | null;
    /** The windows that were asked for, as `TLLMPROF_START_STOP` has them. */
    windows_asked: string;
    /** The condition that the iterations of windows satisfy, as `TLLMPROF_WHERE` has it; `null`: none. */
    where: string | null;
    /** The variables that set tllmprof up, as `NAME=value`. */
    settings: string[];
    /** What was asked for and could not be done, and why. */
    refused: string[];
    /** CUDA calls over the whole run, by name. */
    calls_counted: Counted[];
    /** How the process ended. */
    ended: Ended;
    /** For how long the record's clock was compared with `CLOCK_MONOTONIC`, where that was too short for exact durations; `null`: durations are exact. Unit: ns. */
    clock_tied_ns: number | null;
    /** What to add to a moment to get nanoseconds since 1970. Unit: ns. */
    unix_minus_monotonic_ns: number;
    /** Events that the record holds. Unit: events. */
    events: number;
    /** Events, other than kernels, that are missing: the record was full, or a later iteration had begun already. Unit: events. */
    dropped: number;
    /** Older windows that are not in the record any more: they made room for later ones (`--keep`). Unit: windows. */
    windows_dropped: number;
    /** What the recorder itself took from the program's threads inside windows. Unit: ns. */
    own_cost_ns: number;
    /** GPU times of iterations that could not be read. */
    gpu_times_lost: number;
    /** What became of the record. */
    state: State;
    /** What was changed or is missing; `null` unless the record is damaged. */
    damage: string | null;
    /** Things that were too many for this report, such as different names. */
    left_out: number;
    /** The iterations of all windows together that qualify; `null`: there are none. */
    inside: Sum | null;
    /** The iterations of windows that do not qualify: with a condition those that do not satisfy it, without one the idle ones, unless all are. No other figure of windows includes them. */
    unqualified: Unqualified[];
    /** The iterations outside windows. */
    outside: Outside;
    /** The iterations of all windows by what was in their batches, of those where that is known. */
    phases: PhaseSum[];
    /** Where the time of the iterations goes, by cause. */
    ledger: Ledger;
    /** The slowest iterations of all windows, those that took longest beyond others like them first: up to 10. */
    slowest: Slow[];
    /** What the threads of iterations ran, by samples of their stacks; `null`: that was not recorded. */
    stacks: Stacks | null;
    /** CUDA calls inside windows, on all threads, by name; the longest in all first. */
    calls: Named[];
    /** Marked Python functions inside windows, by name; the longest in all first. */
    functions: Named[];
    /** NVTX ranges of the program inside windows, by name; the longest in all first. */
    ranges: Named[];
    /** Garbage collections of Python inside windows, by generation. */
    gc: Named[];
    /** Objects that those collections freed. Unit: objects. */
    gc_collected: number;
    /** Waits for the GIL inside windows, on all threads. */
    gil_wait: Named;
    /** How long threads held the GIL inside windows. */
    gil_hold: Named;
    /** How often a thread inside windows had to give up the GIL because another asked for it. Unit: times. */
    gil_forced: number;
    /** How often the GIL went from one thread to another, as far as the recorder saw it. Unit: times. */
    gil_handoffs: number;
    /** The threads that have a name or held the GIL. */
    threads: Thread[];
    /** GPU kernels, by name, where kernels were recorded; the longest in all first. */
    kernels: Kernel[];
    /** Copies and memory sets of the GPU, by kind, where kernels were recorded; the longest in all first. */
    copies: Copy[];
    /** The iterations in which kernels were recorded; `null`: there are none. */
    kernel_window: KernelWindow | null;
    /** Equal blocks of those kernels; `null`: there are none. */
    blocks: GpuBlocks | null;
    /** The same kernels by layer, where that was followed (`--layers`); the longest in all first. */
    layers: GpuLayer[];
    /** Those layers with all that is within them, by name with `*` for numbers: a tree in its order, the longest first. */
    layer_patterns: GpuLayerPattern[];
    /** The same by whole names, each layer by itself: the 4096 longest. */
    layer_tree: GpuLayerPattern[];
    /** Kernels whose layer is not known, by reason. */
    layers_unknown: UnknownGpuLayer[];
    /** GPU metrics inside windows, by device and metric. */
    gpu_metrics: Metric[];
    /** The windows that opened, in the order of their iterations. */
    windows: Window[];
    /** What it does together with other ranks, by the kernels that were recorded. */
    collectives: Collective[];
    /** How unevenly the learned routers of MoE layers chose experts; `null`: that was not recorded. */
    routing: Routing | null;
}

/** Iterations that several processes have, matched by number. Iterations that were cut off do not count. */
export interface Skew {
    /** How much longer the slowest process took than the fastest, over these iterations. */
    spread: Quantiles;
    /** For each of `processes`: in how many of these iterations it is. Unit: iterations. */
    common: number[];
    /** For each of `processes`: in how many of these iterations it took longer than all others. Unit: iterations. */
    slowest: number[];
    /** These iterations, in the order of their numbers. */
    iterations: SkewStep[];
}

/** What the collectives of several ranks show together, in the iterations in which kernels were recorded. Moments of several hosts are compared by the ends of collectives. */
export interface Collectives {
    /** What the time of the collectives is. */
    verdict: CollectiveVerdict;
    /** Why it is inconclusive; `null`: it is not. */
    why: string | null;
    /** How many collectives were matched, each counted on each rank. Unit: collectives. */
    matched: number;
    /** How long they waited for the last rank, summed over ranks. Unit: ns. */
    wait_ns: number;
    /** How long they took after that, summed over ranks. Unit: ns. */
    transfer_ns: number;
    /** How much of the time of these iterations ranks wait, in the mean. Unit: part of 1. */
    wait_share: number;
    /** How much of the same time transfers take, in the mean. Unit: part of 1. */
    transfer_share: number;
    /** Ranks whose collectives of one kind are the same events. */
    groups: CollectiveGroup[];
    /** The clock of each host. */
    clocks: Clock[];
    /** Clocks that jump: moments before and after are aligned by themselves. */
    jumps: ClockJump[];
    /** What is left out, and why. */
    notes: string[];
    /** For each of `processes`. */
    ranks: RankInCollectives[];
    /** The iterations in which collectives were matched, in the order of their numbers. */
    iterations: Arrival[];
}

/** A rule, and whether it holds for these records. */
export interface Finding {
    /** The rule's name, such as `launch-bound`. */
    rule: string;
    /** What it is about. */
    kind: FindingKind;
    /** Whether it holds. */
    verdict: Verdict;
    /** The figures it was judged by, in words. */
    evidence: string;
    /** What to do: if it holds, against it; if it is unknown, to know it. Else empty. */
    advice: string;
    /** How much of the iterations' time would be gained if it went away; `null` if that is not known. No time counts for two findings. Unit: part of 1. */
    loss: number | null;
}

/** Figures of things of one name. */
export interface Each {
    /** How many there are in the mean iteration. Unit: per iteration. */
    a_step: number;
    /** How long each takes in the mean. Unit: ns. */
    mean_ns: number;
}

/** Figures of the kernels of one name. */
export interface KernelFigures {
    /** How much of the time of all kernels they take; `null`: the driver did not say. Unit: part of 1. */
    share: number | null;
    /** How long each takes in the mean; `null` likewise. Unit: ns. */
    mean_ns: number | null;
}

/** Figures of learned routers. */
export interface RoutingFigures {
    /** On how many GPUs the experts are; `null`: not known, or no layer has equally many on each. Unit: GPUs. */
    gpus: number | null;
    /** For each layer. */
    layers: LayerFigures[];
}

/** A process's place in a group of ranks. */
export interface GroupRank {
    /** The group's name: `TP`, `PP`, `EP` or `DP`. */
    name: string;
    /** The process's rank in it. */
    rank: number;
    /** How many ranks it has; `null`: not known. Unit: ranks. */
    size: number | null;
    /** The rank in the job of its first rank, by which groups of one name differ; `null`: not known. */
    first: number | null;
}

/** A communicator of NCCL that a process is in. */
export interface Communicator {
    /** Which one: the same on all its ranks, in hexadecimal digits; `null`: not known, as NCCL was not given its identifier here. */
    id: string | null;
    /** The process's rank in it; `null` likewise. */
    rank: number | null;
    /** How many ranks it has; `null` likewise. Unit: ranks. */
    size: number | null;
}

/** CUDA calls of one name over the whole run. */
export interface Counted {
    /** The call's name. */
    name: string;
    /** How many were made inside windows. Unit: calls. */
    inside: number;
    /** How many were made outside windows. Unit: calls. */
    outside: number;
}

/** How a process ended. */
export type Ended =
    /** Its end was not seen: it was killed, or still runs. */
    | "not"
    /** By a normal exit. */
    | "in order"
    /** By `_exit` or the like. */
    | "at once"
    /** Not known. */
    | "?";

/** What became of a record. Text, JSON, page, exports and exit statuses go by this alone. */
export type State =
    /** All that was written is there, to the end of its process. */
    | "whole"
    /** Its process was killed, or still runs: what is there is what was written until then. */
    | "unfinished"
    /** Something was changed or is missing: `damage` says what. */
    | "damaged";

/** Iterations, one after the other. */
export interface Sum {
    /** How many there are. Unit: iterations. */
    iterations: number;
    /** Iterations in a second; `null`: they took no time. Unit: 1/s. */
    per_second: number | null;
    /** The time from the first one's start to the last one's end, summed over windows, without iterations that are missing or do not qualify. Unit: ns. */
    wall_ns: number;
    /** How long they took, without waiting for requests. */
    time: Quantiles;
    /** Of how many iterations `idle`, `wait` and `wait_share` are: those without kernels, where there are such, as recording kernels makes iterations longer. Unit: iterations. */
    host_iterations: number;
    /** How long their threads waited for requests. */
    idle: Quantiles;
    /** How long the GPU was busy in those iterations that `gpu_from` names; `null`: not measured. */
    gpu: Quantiles | null;
    /** What the GPU's time was measured by, and in which iterations. */
    gpu_from: GpuFrom;
    /** Of how many iterations `gpu` and `gpu_share` are. Unit: iterations. */
    gpu_iterations: number;
    /** How much of the time of those iterations the GPU was busy; `null`: not measured. Unit: part of 1. */
    gpu_share: number | null;
    /** How long those took in which kernels were recorded, which makes them longer; `null`: there are none. */
    with_kernels: Quantiles | null;
    /** How long those took in which kernels were not recorded; `null`: there are none. */
    without_kernels: Quantiles | null;
    /** How long the iteration's thread waited for the GPU in CUDA calls. */
    wait: Quantiles;
    /** How much of the time of these iterations that is. Unit: part of 1. */
    wait_share: number;
    /** How much of the time of all iterations, without waiting for requests, their threads waited for the GIL. Unit: part of 1. */
    gil_wait_share: number;
    /** How much of the same time Python's garbage collections took, on all threads. Unit: part of 1. */
    gc_share: number;
    /** Launches of kernels and graphs, on all threads. Unit: launches per iteration. */
    launches: number;
    /** CUDA calls, on all threads. Unit: calls per iteration. */
    calls: number;
}

/** Iterations that do not count, for one reason. */
export interface Unqualified {
    /** Why they do not qualify. */
    why: UnqualifiedBy;
    /** How many there are. Unit: iterations. */
    iterations: number;
    /** How long they took. */
    time: Quantiles;
    /** How long they took in all. Unit: ns. */
    total_ns: number;
}

/** Iterations outside windows: a histogram, exact to 1.6 %. */
export interface Outside {
    /** How many there are. Unit: iterations. */
    iterations: number;
    /** The median; `null`: there are none. Unit: ns. */
    p50_ns: number | null;
    /** The 90th percentile; `null`: there are none. Unit: ns. */
    p90_ns: number | null;
    /** The 99th percentile; `null`: there are none. Unit: ns. */
    p99_ns: number | null;
    /** The longest; `null`: there are none. Unit: ns. */
    max_ns: number | null;
}

/** The iterations in one phase. */
export interface PhaseSum {
    /** What their batches consist of. */
    phase: Phase;
    /** How many there are. Unit: iterations. */
    iterations: number;
    /** How long they took. */
    time: Quantiles;
    /** How long they took in all. Unit: ns. */
    total_ns: number;
    /** Requests in their batches, in all. Unit: requests. */
    requests: number;
    /** Tokens in their batches, in all. Unit: tokens. */
    tokens: number;
    /** Tokens of prompts among them. Unit: tokens. */
    prefill_tokens: number;
    /** The same by the tokens in their batches, for each class in which there are iterations: 0, 1, 2 to 4, 5 to 16, 17 to 64, 65 to 256, 257 to 1024, 1025 to 4096, and more. */
    sizes: SizeSum[];
}

/** Where the time of iterations goes. The shares of each list add up to 1. */
export interface Ledger {
    /** How many iterations qualify. Unit: iterations. */
    iterations: number;
    /** Of how many of them `host` is. Unit: iterations. */
    host_iterations: number;
    /** The time of the threads of the iterations, the greatest first. Time in a call that another one contains counts for the inner one alone. */
    host: LedgerRow[];
    /** Of how many of them `gpu` is. Unit: iterations. */
    gpu_iterations: number;
    /** The time of the GPU in the iterations that `gpu_from` of `inside` names, the greatest first; empty: not measured. `from first work to last`: CUDA events measured it, and gaps between kernels are in it. Time in which it had nothing to do is by what the thread of the iteration did meanwhile. */
    gpu: LedgerRow[];
    /** Whether kernels were recorded in all iterations that `host` is of, which makes them longer. Otherwise those in which kernels were recorded are left out. */
    stretched: boolean;
}

/** A slow iteration, and what overlapped it. */
export interface Slow {
    /** The iteration's number. */
    n: number;
    /** When it began. Unit: ns. */
    start_ns: number;
    /** How long it took. Unit: ns. */
    dur_ns: number;
    /** What was in its batch; `null`: not known. */
    batch: Batch | null;
    /** How long of that its thread waited for requests. Unit: ns. */
    idle_ns: number;
    /** How much longer it took than the mean of the others, all without waiting for requests. Those in which kernels were recorded, which makes them longer, are compared with each other. Unit: ns. */
    more_ns: number;
    /** What of: differences that add up to that, the greatest first and what is unexplained last. */
    causes: Difference[];
    /** What overlapped it, up to 8: what took longest beyond its time in the mean iteration first. */
    overlaps: Overlap[];
}

/** Samples of the stacks of the threads that make iterations. Those count that were taken in iterations which `host` of the ledger is of, but for those taken while the thread waited for requests. */
export interface Stacks {
    /** How often samples were to be taken; `null`: not known. Unit: Hz. */
    rate: number | null;
    /** How often they were taken, from the times of the samples; `null`: there are too few of them. Unit: Hz. */
    achieved: number | null;
    /** The same of native stacks, while their threads ran: a kernel whose timer ticks less often takes fewer. Unit: Hz. */
    achieved_native: number | null;
    /** The mean time between samples in iterations; `null`: there are none. Unit: ns. */
    interval_ns: number | null;
    /** How many there are. */
    counts: SampleCounts;
    /** How much of the samples was rejected. Unit: part of 1. */
    rejected_share: number;
    /** From how many samples on functions are distinguished. Unit: samples. */
    enough: number;
    /** Whether the ledger distinguishes functions by them. */
    told_apart: boolean;
    /** For each of `windows`: how many there are. */
    windows: SampleCounts[];
    /** Functions by how often they were the innermost one, the greatest first: up to 32. */
    functions: FunctionSamples[];
    /** Who called whom. Callers come before what they call; what is under 0.1 % of the samples is left out. */
    tree: TreeNode[];
    /** The same of native stacks. */
    native_tree: TreeNode[];
}

/** Things of one name. */
export interface Named {
    /** Their name. */
    name: string;
    /** How many there were. Unit: times. */
    count: number;
    /** How long they took in all. Unit: ns. */
    total_ns: number;
    /** How long the longest took. Unit: ns. */
    max_ns: number;
}

/** A thread. */
export interface Thread {
    /** The thread's ID. */
    tid: number;
    /** Its name; `null`: not known. */
    name: string | null;
    /** How long it held the GIL inside windows. Unit: ns. */
    gil_hold_ns: number;
}

/** The kernels of one name. */
export interface Kernel {
    /** The demangled name, with parameters. */
    name: string;
    /** The name without parameters and namespaces. */
    short_name: string;
    /** How many ran. Unit: kernels. */
    count: number;
    /** How long they took in all; `null`: the driver did not say. Unit: ns. */
    total_ns: number | null;
    /** How long the longest took; `null` likewise. Unit: ns. */
    max_ns: number | null;
    /** How long the shortest took; `null` likewise. Unit: ns. */
    min_ns: number | null;
}

/** The copies of one kind, or all memory sets. */
export interface Copy {
    /** Such as `HtoD`; `memset` for memory sets. */
    kind: string;
    /** How many there were. Unit: copies. */
    count: number;
    /** How long they took in all; `null`: the driver did not say. Unit: ns. */
    total_ns: number | null;
    /** How much they moved or set in all. Unit: bytes. */
    bytes: number;
}

/** The iterations in which kernels were recorded, which makes them longer. */
export interface KernelWindow {
    /** How many there are. Unit: iterations. */
    iterations: number;
    /** How long they took in all. Unit: ns. */
    wall_ns: number;
    /** How long at least one kernel or copy ran in them, of the device where that is longest; `null`: the driver did not say when kernels ran. Unit: ns. */
    busy_ns: number | null;
    /** How long that device did nothing between two kernels or copies of one iteration; `null` likewise. Unit: ns. */
    gaps_ns: number | null;
    /** Kernels that began in them. Unit: kernels. */
    kernels: number;
    /** Kernels and copies that are missing. */
    dropped: number;
    /** Where kernels were sampled (`--kernels=20@60s`): how; `null`: they were not. */
    samples: KernelSamples | null;
}

/** Equal blocks of kernels that follow one another in an iteration, by the kernels' names: as a rule the layers of a model. Of the iterations whose kernels are called alike, one by one; of several such kinds, of the one that most iterations are. */
export interface GpuBlocks {
    /** How long each block took in these iterations, in their order. Unit: ns. */
    block_ns: number[];
    /** How long one takes in one iteration, in the mean. Unit: ns. */
    mean_ns: number;
    /** What part of the time of these iterations' kernels the blocks are. Unit: part of 1. */
    share: number;
    /** A block's kernels, in their order. */
    kernels: GpuBlockKernel[];
    /** How many kernels of one more block are equal to these, if at least half of them; `null`: there is none. Unit: kernels. */
    partly: number | null;
    /** What comes before the blocks. */
    before: GpuOutsideBlocks;
    /** What comes behind them. */
    behind: GpuOutsideBlocks;
    /** The iterations that this is of. Unit: iterations. */
    iterations: number;
    /** The iterations in which kernels were recorded. Unit: iterations. */
    of: number;
}

/** The kernels that were launched in one scope: what torch modules, NVTX ranges and marked functions were open. */
export interface GpuLayer {
    /** Such as `model.layers.3.self_attn/attention`; empty: nothing was open. */
    name: string;
    /** How many ran, each in one layer. Unit: kernels. */
    kernels: number;
    /** How long they took in all. Unit: ns. */
    gpu_ns: number;
    /** What part of the time of all kernels that is. Unit: part of 1. */
    share: number;
}

/** Layers whose names differ in numbers alone, or a layer by its whole name, with all that is within. */
export interface GpuLayerPattern {
    /** The name, with `*` for each number where they are one row, such as `model.layers.*.self_attn`. */
    name: string;
    /** How many parts of the name are around it. Unit: parts. */
    depth: number;
    /** How many layers have this name. Unit: layers. */
    layers: number;
    /** How many kernels ran. Unit: kernels. */
    kernels: number;
    /** How long they took in all. Unit: ns. */
    gpu_ns: number;
    /** What part of the time of all kernels that is. Unit: part of 1. */
    share: number;
    /** How many kernels run in an iteration. Unit: per iteration. */
    kernels_a_step: number;
    /** What they take in an iteration. Unit: ns. */
    step_ns: number;
    /** What one of the layers takes in an iteration, all its calls together. Unit: ns. */
    each_ns: number;
    /** For how long in an iteration the GPU was idle between two kernels of one of these layers; `null`: not known. Unit: ns. */
    gap_ns: number | null;
}

/** Kernels whose layer is not known. */
export interface UnknownGpuLayer {
    /** Why, in words. */
    why: string;
    /** How many there are. Unit: kernels. */
    kernels: number;
    /** How long they took in all. Unit: ns. */
    gpu_ns: number;
    /** What part of the time of all kernels that is. Unit: part of 1. */
    share: number;
}

/** A metric of a GPU inside windows. */
export interface Metric {
    /** The GPU's number, as the driver numbers them. */
    device: number;
    /** The metric's name, such as `SM busy`. */
    metric: string;
    /** The unit of `mean` and `max`. */
    unit: string;
    /** The mean over time. Unit: `unit`. */
    mean: number;
    /** The largest sample. Unit: `unit`. */
    max: number;
    /** How many samples there are. Unit: samples. */
    samples: number;
}

/** A window: the iterations that were recorded one by one. */
export interface Window {
    /** The number of its first iteration. */
    first: number;
    /** The number of its last iteration. */
    last: number;
    /** Whether it was closed. */
    closed: boolean;
    /** Whether something other than its last iteration closed it, such as the end of the process. */
    cut: boolean;
    /** Whether the flight recorder had kept its iterations: those before a window, or before the end of the process. */
    past: boolean;
    /** How many iterations between those are missing. Unit: iterations. */
    missing: number;
    /** Where the time of its iterations goes, by cause. */
    ledger: Ledger;
    /** Its iterations, in the order of their starts. */
    iterations: Iteration[];
}

/** The collectives of one operation of one library, by the kernels of the record. */
export interface Collective {
    /** The operation and the library, such as `all-reduce (NCCL)`. */
    name: string;
    /** How many there are. Unit: collectives. */
    count: number;
    /** How many of them are known on all ranks of their group, and in iterations that qualify; the first one of a window is not. Unit: collectives. */
    matched: number;
    /** How long those took after the last rank had come; `null`: there are none. Unit: ns. */
    transfer_ns: number | null;
    /** How long those waited for the last rank to come; `null` likewise. Unit: ns. */
    wait_ns: number | null;
    /** How long the others took, which are left out of both. Unit: ns. */
    unmatched_ns: number;
}

/** How unevenly the learned routers of MoE layers chose experts, outside windows. */
export interface Routing {
    /** The mean of the layers' `max_of_mean`. Unit: multiple of the mean. */
    mean: number;
    /** The layers, in the order of their numbers. */
    layers: Layer[];
}

/** How durations are distributed. Quantiles are by nearest rank. */
export interface Quantiles {
    /** The arithmetic mean. Unit: ns. */
    mean_ns: number;
    /** The median. Unit: ns. */
    p50_ns: number;
    /** The 90th percentile. Unit: ns. */
    p90_ns: number;
    /** The 99th percentile. Unit: ns. */
    p99_ns: number;
    /** The longest. Unit: ns. */
    max_ns: number;
}

/** An iteration over the processes that have it. */
export interface SkewStep {
    /** The iteration's number. */
    n: number;
    /** The place in `processes` of the process that took longest; where several took as long, of one of them. */
    slowest: number;
    /** The place in `processes` of the process that took shortest. */
    fastest: number;
    /** How long the slowest took. Unit: ns. */
    dur_ns: number;
    /** How much longer the slowest took than the fastest. Unit: ns. */
    spread_ns: number;
}

/** What the time of collectives is. */
export type CollectiveVerdict =
    /** Moving data: over two thirds of it. */
    | "transfer-bound"
    /** Waiting for the last rank: over two thirds of it. */
    | "arrival-skew"
    /** Both. */
    | "mixed"
    /** The records do not say. */
    | "inconclusive";

/** Ranks whose collectives of one kind are the same events. */
export interface CollectiveGroup {
    /** The operation and the library. */
    name: string;
    /** The ranks' group: `TP`, `PP`, `EP`, `DP`, `world`, or `communicator` for one of NCCL without a name; `null`: the records do not say, and the ranks were found by the times of their collectives. */
    group: string | null;
    /** How many ranks that group has, those without a record among them; `null` likewise. Unit: ranks. */
    size: number | null;
    /** The places of its processes in `processes`. */
    processes: number[];
    /** How many collectives they have in common. Unit: collectives. */
    events: number;
    /** How long those waited for the last rank, summed over ranks. Unit: ns. */
    wait_ns: number;
    /** How long they took after that, summed over ranks. Unit: ns. */
    transfer_ns: number;
}

/** A host's clock. */
export interface Clock {
    /** The host's name. */
    host: string;
    /** How far `CLOCK_MONOTONIC` is there ahead of that of the host that all are compared with, in the middle of the record; `null`: no collectives say so. Unit: ns. */
    offset_ns: number | null;
    /** How much faster it goes. Unit: parts per million. */
    drift_ppm: number;
    /** How far 9 of 10 ends of its collectives are from those of the other hosts at most. Unit: ns. */
    error_ns: number;
}

/** A clock that jumps. */
export interface ClockJump {
    /** The place in `processes` of the process whose GPU times jump, or of one of the host's. */
    process: number;
    /** Whether the clock of the whole host jumps. */
    is_host: boolean;
    /** The number of the iteration from which on it is another. */
    n: number;
    /** By how much. Unit: ns. */
    by_ns: number;
}

/** A rank in its collectives. */
export interface RankInCollectives {
    /** How many of its collectives were matched. Unit: collectives. */
    matched: number;
    /** How long it waited in them for the last rank. Unit: ns. */
    wait_ns: number;
    /** How long they took after that. Unit: ns. */
    transfer_ns: number;
    /** In how many iterations it held the others up longest, by at least a hundredth of the iteration. Unit: iterations. */
    last: number;
    /** How much later than the median rank it came to collectives, of those to which it came last. Unit: ns. */
    late_ns: number;
    /** How long the others waited for it in those, summed over ranks. Unit: ns. */
    lost_ns: number;
    /** How long the mean iteration takes. Unit: ns. */
    iteration_ns: number;
    /** How long it would take if this rank had come to each collective with the last of the others. Unit: ns. */
    iteration_without_ns: number;
    /** Why it came late: differences to the median rank, the greatest first and what is unexplained last. */
    causes: Difference[];
}

/** An iteration over the ranks. */
export interface Arrival {
    /** Its number. */
    n: number;
    /** What the time of its collectives is. */
    verdict: CollectiveVerdict;
    /** How long ranks waited in them, summed over ranks. Unit: ns. */
    wait_ns: number;
    /** How long they took after that, summed over ranks. Unit: ns. */
    transfer_ns: number;
    /** The place in `processes` of the rank that held the others up longest; `null`: none did by a hundredth of the iteration. */
    last: number | null;
    /** How much sooner the iteration would have ended if that rank had come with the last of the others. Unit: ns. */
    saved_ns: number;
    /** Why that rank came late. */
    causes: Difference[];
    /** For each of `processes`: how much later than the median rank it came to these collectives; `null`: it is not among those that were matched. Unit: us. */
    late: (number | null)[];
}

/** What a finding is about. Findings come in this order. */
export type FindingKind =
    /** Something that costs time and can be fixed. */
    | "cause"
    /** The resource that the program is bound by. */
    | "bound"
    /** A consequence of causes. */
    | "symptom"
    /** Something to know that is not a fault. */
    | "note";

/** Whether a finding's rule holds. */
export type Verdict =
    /** It holds. */
    | "yes"
    /** It does not hold. */
    | "no"
    /** The records lack what it is judged by. */
    | "unknown";

/** Figures of an MoE layer. */
export interface LayerFigures {
    /** What the busiest of those GPUs was sent, as a multiple of the mean GPU's; `null`: the layer does not have equally many experts on each. Unit: multiple of the mean. */
    on_gpus: number | null;
    /** What each expert was sent, as a multiple of the mean expert's. Unit: multiple of the mean. */
    of_mean: number[];
}

/** How GPU time was measured, and in which iterations. */
export type GpuFrom =
    /** By CUDA events around the work of the iterations in which no kernels were recorded. */
    | "events"
    /** By CUDA events in iterations that recording kernels made longer: there are no others. */
    | "events in kernel windows"
    /** By the kernels themselves, in iterations that recording them made longer. */
    | "kernels";

/** Why an iteration does not count. */
export type UnqualifiedBy =
    /** Its batch does not satisfy the condition. */
    | "where"
    /** There is a condition, and its batch is not known. */
    | "unknown"
    /** Its batch has no tokens, and there is no condition. */
    | "idle"
    /** It is a pass of a model that drafts, and there is no condition. */
    | "draft"
    /** Something else than its own end ended it, as the end of the process. */
    | "cut";

/** What a batch consists of. */
export type Phase =
    /** Tokens of prompts alone. */
    | "prefill"
    /** Tokens behind prompts alone. */
    | "decode"
    /** Both. */
    | "mixed"
    /** No tokens. */
    | "idle"
    /** It is a pass of a model that drafts for speculative decoding; its requests and tokens are not known, and 0 here. */
    | "draft";

/** The iterations of one phase in whose batches there were so many tokens. */
export interface SizeSum {
    /** The least tokens of this class. Unit: tokens. */
    min_tokens: number;
    /** The most tokens of this class; `null`: there is no limit. Unit: tokens. */
    max_tokens: number | null;
    /** How many there are. Unit: iterations. */
    iterations: number;
    /** How long they took. */
    time: Quantiles;
    /** How long they took in all. Unit: ns. */
    total_ns: number;
    /** Requests in their batches, in all. Unit: requests. */
    requests: number;
    /** Tokens in their batches, in all. Unit: tokens. */
    tokens: number;
    /** Tokens of prompts among them. Unit: tokens. */
    prefill_tokens: number;
}

/** A cause, and the time that is spent on it. */
export interface LedgerRow {
    /** What kind of cause it is. */
    kind: LedgerKind;
    /** What the time is spent on. `other` has the causes that are too small for a row, `unknown` the time of which the record says nothing. */
    cause: string;
    /** How long that is over all these iterations. Unit: ns. */
    ns: number;
    /** How much of the time that is. Unit: part of 1. */
    share: number;
}

/** What was in a batch. */
export interface Batch {
    /** Requests in it. Unit: requests. */
    requests: number;
    /** Tokens that were scheduled, without those that the batch was padded by. Unit: tokens. */
    tokens: number;
    /** Tokens of prompts among them. Unit: tokens. */
    prefill_tokens: number;
    /** The other ones. Unit: tokens. */
    decode_tokens: number;
    /** What it consists of. */
    phase: Phase;
}

/** Something that an iteration took longer, or less long. */
export interface Difference {
    /** What it is: a cause of the ledger, `GPU work`, which is waited for, or `unexplained`, which is the rest. */
    cause: string;
    /** What was different about it; `null`: only how long it took. */
    detail: string | null;
    /** The thread that held the GIL, of a wait for it; `null`: not known. */
    held_by: string | null;
    /** How much longer it took than in the mean of the others; negative: it took less long. Unit: ns. */
    more_ns: number;
}

/** Something that overlapped a slow iteration. */
export interface Overlap {
    /** What kind of thing it is. */
    kind: OverlapKind;
    /** The name of the call, function or range, of the thread that held the GIL, or of the generation. */
    name: string;
    /** How often it overlapped the iteration. Unit: times. */
    count: number;
    /** For how long it overlapped the iteration. Unit: ns. */
    ns: number;
    /** For how long it overlaps the mean iteration. Unit: ns. */
    usual_ns: number;
}

/** So many samples of stacks. */
export interface SampleCounts {
    /** Samples that count. Unit: samples. */
    samples: number;
    /** Samples that were rejected, as the stack changed while it was read. Unit: samples. */
    rejected: number;
    /** Samples of native stacks, which are taken apart from the others. Unit: samples. */
    native: number;
}

/** How often a function was seen. */
export interface FunctionSamples {
    /** The function: `QUALNAME (FILE:FIRST LINE)` of Python. */
    name: string;
    /** In `functions` the samples that it was the innermost function of; in trees also those in what it calls. Unit: samples. */
    samples: number;
    /** How many of those its thread slept in. Unit: samples. */
    asleep: number;
    /** How much of all samples that is. Unit: part of 1. */
    share: number;
}

/** A function as another one, or none, called it. */
export interface TreeNode {
    /** The place of its caller, which comes before it in this list; `null`: none. */
    parent: number | null;
    /** The function: `QUALNAME (FILE:FIRST LINE)` of Python. */
    name: string;
    /** In `functions` the samples that it was the innermost function of; in trees also those in what it calls. Unit: samples. */
    samples: number;
    /** How many of those its thread slept in. Unit: samples. */
    asleep: number;
    /** How much of all samples that is. Unit: part of 1. */
    share: number;
}

/** Windows that opened by themselves, again and again, to record kernels. */
export interface KernelSamples {
    /** How many samples there are. Unit: samples. */
    count: number;
    /** How many iterations each was to have. Unit: iterations. */
    steps: number;
    /** How long from the beginning of one to that of the next. Unit: ns. */
    every_ns: number;
    /** How many other windows have kernels, which are in the same figures. Unit: windows. */
    others: number;
    /** All of that in words, as the report says it. */
    text: string;
}

/** A kernel of a block. */
export interface GpuBlockKernel {
    /** Without what it takes. */
    short_name: string;
    /** How long it took in all blocks of these iterations. Unit: ns. */
    gpu_ns: number;
}

/** Kernels of an iteration that are in no block. */
export interface GpuOutsideBlocks {
    /** How many there are in an iteration. Unit: kernels. */
    kernels: number;
    /** How long they took in these iterations. Unit: ns. */
    gpu_ns: number;
}

/** An iteration. */
export interface Iteration {
    /** Its number, counted from 0. */
    n: number;
    /** When it began. Unit: ns. */
    start_ns: number;
    /** How long it took. Unit: ns. */
    dur_ns: number;
    /** How long the GPU was busy for it; `null`: not measured. Unit: ns. */
    gpu_ns: number | null;
    /** The ID of the thread that ended it. */
    thread: number;
    /** Launches of kernels and graphs during it, on all threads. Unit: launches. */
    launches: number;
    /** CUDA calls during it, on all threads. Unit: calls. */
    calls: number;
    /** How long its thread waited in CUDA calls for the GPU to work. Unit: ns. */
    wait_ns: number;
    /** How long its thread was blocked waiting for requests: in a function in which a known engine does, or in a call that waits for a GPU that was given nothing to do. It is part of `dur_ns`, and of no percentile and no finding. Unit: ns. */
    idle_ns: number;
    /** How long its thread waited for the GIL. Unit: ns. */
    gil_wait_ns: number;
    /** How long garbage collections of Python took during it, on all threads. Unit: ns. */
    gc_ns: number;
    /** How long its thread was on a processor; `null`: not known. Unit: ns. */
    processor_ns: number | null;
    /** How long its thread could have run and had no processor, where another thread was given its own; `null`: not known. Unit: ns. */
    delayed_ns: number | null;
    /** Page faults of its thread, and those of up to seven iterations before it that took no longer than others, in which the thread was on a processor; `null`: not known. Unit: page faults. */
    page_faults: number | null;
    /** Kernels that began during it; 0 where kernels were not recorded. Unit: kernels. */
    kernels: number;
    /** How long at least one kernel or copy ran during it, of the device where that is longest; `null`: kernels were not recorded. Recording them makes an iteration longer. Unit: ns. */
    gpu_busy_ns: number | null;
    /** What was in its batch, by the arguments of the engine's step function; `null`: not known. */
    batch: Batch | null;
    /** Whether figures of windows include it: `unqualified` says which ones they do not. */
    qualifies: boolean;
    /** Whether something other than its own end ended it. */
    cut: boolean;
}

/** An MoE layer. */
export interface Layer {
    /** Its number. */
    layer: number;
    /** Its name; `null`: not known. */
    name: string | null;
    /** What was sent to experts: a token counts once for each expert that it went to. Unit: tokens. */
    tokens: number;
    /** What the busiest expert was sent, as a multiple of the mean expert's. Unit: multiple of the mean. */
    max_of_mean: number;
    /** Experts that were sent nothing. Unit: experts. */
    idle: number;
    /** `max_of_mean` of GPUs instead of experts, where each GPU can hold equally many experts, in the order of their numbers: for 2, 4, 8, 16, 32 and 64 GPUs, and for as many as there are processes. */
    gpus: LayerOnGpus[];
    /** What each expert was sent, in the order of their numbers. Unit: tokens. */
    experts: number[];
}

/** What kind of cause time is spent on. */
export type LedgerKind =
    /** Host: a CUDA call that waits for the GPU. */
    | "wait"
    /** Host: launches of kernels and graphs. */
    | "launch"
    /** Host: calls that copy or set memory. */
    | "copy"
    /** Host: captures and instantiations of graphs. */
    | "capture"
    /** Host: calls that allocate or free memory. */
    | "allocation"
    /** Host: other CUDA calls. */
    | "call"
    /** Host: Python's garbage collection, on this thread. */
    | "gc"
    /** Host: waits for the GIL. */
    | "gil_wait"
    /** Host: a marked Python function, without what has a row of its own. */
    | "function"
    /** Host: code between two of the things above. */
    | "code"
    /** Host: a Python function, by samples of the thread's stack, which divide such code and the time of marked functions. */
    | "python"
    /** Host: native code, by samples. */
    | "native"
    /** Host: the thread was asleep or blocked in such code or such a function: in a sleep, for a lock, a file or another thread. By samples, or for certain by what the kernel counts. */
    | "blocked"
    /** Host: the thread could have run, and another one had its processor. */
    | "delayed"
    /** Host: waiting for requests, which is neither work nor a fault. */
    | "requests"
    /** GPU: at work. */
    | "busy"
    /** GPU: nothing to do. */
    | "idle"
    /** Causes that are too small for a row. */
    | "other"
    /** The record says nothing about it. */
    | "unknown";

/** What kind of thing overlapped a slow iteration. */
export type OverlapKind =
    /** A garbage collection of Python, on any thread. */
    | "gc"
    /** The iteration's thread waited for the GIL. */
    | "gil_wait"
    /** Another thread held the GIL. */
    | "gil_hold"
    /** The iteration's thread was in a CUDA call that waits for the device. */
    | "wait"
    /** A marked Python function on the iteration's thread. */
    | "function"
    /** An NVTX range of the program on the iteration's thread. */
    | "range";

/** A layer's experts on so many GPUs. */
export interface LayerOnGpus {
    /** How many GPUs. Unit: GPUs. */
    gpus: number;
    /** What the busiest GPU was sent, as a multiple of the mean GPU's. Unit: multiple of the mean. */
    max_of_mean: number;
}
