// The data of the page. Made from `crates/page/src/data.rs` and `crates/report/src`:
// BLESS=1 cargo test -p tllmprof-page --test contract

/** The data of a page, except iterations and events. */
export interface Data {
    /** The report, with its lists of iterations empty. */
    report: Report;
    /** Further figures for each of the report's processes. */
    processes: ProcessFigures[];
    /** Further figures for the report's skew; `null` if it has none. */
    skew: SkewFigures | null;
    /** Lines that say which iterations the shares of several processes are based on, if not on all. */
    of_which: string[];
    /** The index of the process to show first: the one that the first finding is about. */
    first_shown: number;
}

/** The output of `tllmprof report --json`. Keys that end with `ns` are in nanoseconds; moments are on the clock `CLOCK_MONOTONIC`. Every key is always present; a value that is not known or was not measured is `null`. */
export interface Report {
    /** The processes, in the order of their ranks. */
    processes: Process[];
    /** The processes side by side; `null` if no two of them have an iteration in common. */
    skew: Skew | null;
    /** The collectives of all processes together; `null` if no two processes have any. */
    collectives: Collectives | null;
    /** Possible causes of slow iterations: first those that hold, then those that could not be checked, then those that do not hold. In each group causes come first, and of these the one with the greatest loss. Empty if no process has iterations. */
    findings: Finding[];
}

/** Figures of a process. */
export interface ProcessFigures {
    /** The name that distinguishes it from the others. */
    name: string;
    /** The label of GPU time by its source, with the number of iterations if it was not measured in all with kernels, or in all without; `null` if there is no GPU time. */
    gpu_name: string | null;
    /** The number of iterations that figures leave out, and the reason, in words; `null` if there are none. */
    uncounted: string | null;
    /** The reason why there are no figures of iterations; `null` if there are some. */
    nothing: string | null;
    /** The share of the recorder's own work in the time; `null` if it is not known. Unit: part of 1. */
    own_share: number | null;
    /** For each of `calls`. */
    calls: MeanFigures[];
    /** For each of `gc`. */
    gc: MeanFigures[];
    /** For `gil_wait`. */
    gil_wait: MeanFigures;
    /** For `gil_hold`. */
    gil_hold: MeanFigures;
    /** For each of `functions`. */
    functions: MeanFigures[];
    /** For each of `ranges`. */
    ranges: MeanFigures[];
    /** For each of `kernels`. */
    kernels: KernelFigures[];
    /** For each of `copies`, the rate; `null` if they took no time. Unit: bytes/s. */
    copies: (number | null)[];
    /** For `routing`; `null` if that is `null`. */
    routing: RoutingFigures | null;
}

/** Figures of processes side by side. */
export interface SkewFigures {
    /** The number of iterations that several processes have in common. Unit: iterations. */
    iterations: number;
    /** The index of the process that was most often the slowest; `null` if none was. */
    most_often: number | null;
}

/** A process, as described by its record. Values that are not known are empty or `null`. */
export interface Process {
    /** The file that it was read from. */
    file: string;
    /** Its process ID. */
    pid: number;
    /** Its parent's process ID. */
    parent: number;
    /** The host's name. */
    host: string;
    /** Its rank; 0 if it is not known. */
    rank: number;
    /** The source of its rank: the name of a variable, `torch.distributed`, an engine, or `NCCL`. `null` if the rank is not known, or if the record is of an older version. */
    rank_source: string | null;
    /** The number of ranks; `null` if it is not known. */
    world_size: number | null;
    /** Its rank in each of its groups, such as `TP1 of 4, DP0`; empty if no group is known. */
    in_groups: string;
    /** The groups of ranks that it belongs to, each name once. Groups of a single rank are left out. */
    groups: GroupRank[];
    /** The NCCL communicators that it created, in their order. */
    communicators: Communicator[];
    /** The identifier of the run that it belongs to; `null` if it has none. */
    run: string | null;
    /** Its command line. */
    command: string;
    /** The process's own name. */
    name: string;
    /** The rule that counts iterations, as `TLLMPROF_STEP` names it. */
    rule: string;
    /** The reason for that rule, such as how `auto` chose it; empty if the record has none. */
    rule_why: string;
    /** The inference or training engine, if it is a known one; empty otherwise. */
    engine: string;
    /** The version of tllmprof that wrote the record. */
    library: string;
    /** The version of Python in the process; empty if there is none. */
    python: string;
    /** The version of the CUDA driver in CUDA's numbering, in which 12040 is 12.4; `null` if it is not known. */
    cuda_driver: number | null;
    /** The windows that were asked for, in the form of `TLLMPROF_START_STOP`. */
    windows_asked: string;
    /** The condition that iterations of windows must satisfy, in the form of `TLLMPROF_WHERE`; `null` if there is none. */
    where: string | null;
    /** The variables that configure tllmprof, as `NAME=value`. */
    settings: string[];
    /** Settings that could not be satisfied, with the reasons. */
    refused: string[];
    /** CUDA calls over the whole run, by name. */
    calls_counted: Counted[];
    /** The profiler that recorded it; `null` if that is tllmprof. */
    recorded_by: Origin | null;
    /** The way in which the process ended. */
    ended: Ended;
    /** The time over which the record's clock was compared with `CLOCK_MONOTONIC`, if it was too short for exact durations; `null` if durations are exact. Unit: ns. */
    clock_tied_ns: number | null;
    /** The value to add to a moment to get nanoseconds since 1970. Unit: ns. */
    unix_minus_monotonic_ns: number;
    /** The number of events in the record. Unit: events. */
    events: number;
    /** The number of events, other than kernels, that are missing because the record was full or a later iteration had already begun. Unit: events. */
    dropped: number;
    /** The number of older windows that were overwritten by later ones (`--keep`). Unit: windows. */
    windows_dropped: number;
    /** The time that the recorder itself took from the program's threads inside windows. Unit: ns. */
    own_cost_ns: number;
    /** The number of GPU times of iterations that could not be read. */
    gpu_times_lost: number;
    /** The state of the record. */
    state: State;
    /** A description of what was changed or is missing; `null` unless the record is damaged. */
    damage: string | null;
    /** The number of things that exceeded a limit of this report, such as that of different names. */
    left_out: number;
    /** Sums of the iterations of all windows that qualify; `null` if there are none. */
    inside: Sum | null;
    /** The share of the iterations' time between their first GPU work and their last, by CUDA events, including gaps between kernels. `null` if it was not measured. Unit: part of 1. */
    gpu_span_share: number | null;
    /** The share of the time in which at least one kernel or copy ran, for the device where it is largest, by recorded kernels. It is based on the time of iterations without recording of kernels that do the same work, if there are enough. `null` if it was not measured. Unit: part of 1. */
    gpu_busy_share: number | null;
    /** The GPUs that were used. */
    gpus: Gpu[];
    /** The iterations of windows that do not qualify. With a condition these are the iterations that do not satisfy it; without one, the idle iterations, unless all are idle. No other figure of windows includes them. */
    unqualified: Unqualified[];
    /** The iterations outside windows. */
    outside: Outside;
    /** Sums of the iterations of all windows by the phase of their batches, as far as batches are known. */
    phases: PhaseSum[];
    /** The time of the iterations by cause. */
    ledger: Ledger;
    /** The slowest iterations of all windows, the longest first: at most 10, those that exceed others like them the most. */
    slowest: Slow[];
    /** Functions of the threads of iterations, by samples of their stacks; `null` if stacks were not recorded. */
    stacks: Stacks | null;
    /** CUDA calls inside windows, on all threads, by name; those with the longest total time first. */
    calls: Named[];
    /** Marked Python functions inside windows, by name; those with the longest total time first. */
    functions: Named[];
    /** NVTX ranges of the program inside windows, by name; those with the longest total time first. */
    ranges: Named[];
    /** Garbage collections of Python inside windows, by generation. */
    gc: Named[];
    /** The number of objects that those collections freed. Unit: objects. */
    gc_collected: number;
    /** Waits for the GIL inside windows, on all threads. */
    gil_wait: Named;
    /** Times that threads held the GIL inside windows. */
    gil_hold: Named;
    /** The number of times that a thread inside windows had to release the GIL because another thread requested it. Unit: times. */
    gil_forced: number;
    /** The number of times that the GIL went from one thread to another, as far as the recorder saw it. Unit: times. */
    gil_handoffs: number;
    /** The threads that have a name or held the GIL. */
    threads: Thread[];
    /** GPU kernels, by name, where kernels were recorded; those with the longest total time first. */
    kernels: Kernel[];
    /** Copies and memory sets of the GPU, by kind, where kernels were recorded; those with the longest total time first. */
    copies: Copy[];
    /** The iterations in which kernels were recorded; `null` if there are none. */
    kernel_window: KernelWindow | null;
    /** Equal blocks of those kernels; `null` if there are none. */
    blocks: GpuBlocks | null;
    /** The same kernels by layer, if scopes were followed (`--layers`); those with the longest total time first. */
    layers: GpuLayer[];
    /** Those layers with all that is within them, by name with `*` for numbers: a tree, parents before children, the longest first. */
    layer_patterns: GpuLayerPattern[];
    /** The same by whole names, with one row for each layer: the 4096 longest. */
    layer_tree: GpuLayerPattern[];
    /** Kernels whose layer is not known, by reason. */
    layers_unknown: UnknownGpuLayer[];
    /** GPU metrics inside windows, by device and metric. */
    gpu_metrics: Metric[];
    /** The share of the recorder's own work, on the program's threads, in the time of windows; `null` if there are no windows. Unit: part of 1. */
    recorder_share: number | null;
    /** The windows that opened, in the order of their iterations. */
    windows: Window[];
    /** The collectives of the process, by the kernels that were recorded. */
    collectives: Collective[];
    /** Load balance of the learned routers of MoE layers; `null` if it was not recorded. */
    routing: Routing | null;
}

/** Iterations that several processes have, matched by number. Iterations that were cut off do not count. */
export interface Skew {
    /** The time that the slowest process took beyond the fastest, over these iterations. */
    spread: Quantiles;
    /** For each of `processes`, the number of these iterations that it has. Unit: iterations. */
    common: number[];
    /** For each of `processes`, the number of these iterations in which it took longer than all others. Unit: iterations. */
    slowest: number[];
    /** These iterations, in the order of their numbers. */
    iterations: SkewStep[];
}

/** The collectives of several ranks together, in the iterations in which kernels were recorded. The clocks of several hosts are aligned by the ends of collectives. */
export interface Collectives {
    /** The verdict on the time of the collectives. */
    verdict: CollectiveVerdict;
    /** The reason why the verdict is inconclusive; `null` if it is not. */
    why: string | null;
    /** The number of collectives that were matched, each counted on each rank. Unit: collectives. */
    matched: number;
    /** The time that they waited for the last rank, summed over ranks. Unit: ns. */
    wait_ns: number;
    /** The time that they took after that, summed over ranks. Unit: ns. */
    transfer_ns: number;
    /** The mean share of these iterations' time that ranks wait. Unit: part of 1. */
    wait_share: number;
    /** The mean share of the same time that transfers take. Unit: part of 1. */
    transfer_share: number;
    /** Groups of ranks whose collectives of one kind are the same events. */
    groups: CollectiveGroup[];
    /** The clock of each host. */
    clocks: Clock[];
    /** Clocks that jump. Moments before and after a jump are aligned separately. */
    jumps: ClockJump[];
    /** Notes on what is left out, and why. */
    notes: string[];
    /** The collectives of each of `processes`. */
    ranks: RankInCollectives[];
    /** The iterations in which collectives were matched, in the order of their numbers. */
    iterations: Arrival[];
}

/** A rule and its verdict on these records. */
export interface Finding {
    /** The identifier of the finding in this report. It is the same as `rule`, because a report has one finding for each rule. */
    id: string;
    /** The rule's name, such as `launch-bound`. */
    rule: string;
    /** The kind of the rule. */
    kind: FindingKind;
    /** The result of judging the rule. */
    verdict: Verdict;
    /** The confidence in the verdict, the lowest of the processes that it is about; `null` if the rule is unknown. */
    confidence: Confidence | null;
    /** The figures that it was judged by, in words. */
    evidence: string;
    /** Advice: if the rule holds, how to fix it; if it is unknown, how to record its data. Otherwise empty. */
    advice: string;
    /** The share of the iterations' time that a fix would save; `null` if it is not known. No time counts for two findings. Unit: part of 1. */
    loss: number | null;
    /** If the rule holds, the rows of the ledger whose time it claims; empty if it is not about time, or claims none of its own. */
    claims: ClaimedRow[];
}

/** Figures of events with one name. */
export interface MeanFigures {
    /** The mean number in an iteration. Unit: per iteration. */
    a_step: number;
    /** The mean duration. Unit: ns. */
    mean_ns: number;
}

/** Figures of the kernels of one name. */
export interface KernelFigures {
    /** The share in the time of all kernels; `null` if the driver did not report times. Unit: part of 1. */
    share: number | null;
    /** The mean duration; `null` if the driver did not report times. Unit: ns. */
    mean_ns: number | null;
}

/** Figures of learned routers. */
export interface RoutingFigures {
    /** The number of GPUs that share the experts; `null` if it is not known, or if no layer can be divided evenly. Unit: GPUs. */
    gpus: number | null;
    /** For each layer. */
    layers: LayerFigures[];
}

/** A process's rank in a group of ranks. */
export interface GroupRank {
    /** The group's name: `TP`, `PP`, `EP` or `DP`. */
    name: string;
    /** The process's rank in the group. */
    rank: number;
    /** The number of ranks in the group; `null` if it is not known. Unit: ranks. */
    size: number | null;
    /** The rank in the job of the group's first rank, by which groups of one name differ; `null` if it is not known. */
    first: number | null;
}

/** An NCCL communicator of a process. */
export interface Communicator {
    /** The identifier in hexadecimal digits, which is the same on all its ranks; `null` if it is not known, because this process did not give it to NCCL. */
    id: string | null;
    /** The process's rank in the communicator; `null` if it is not known. */
    rank: number | null;
    /** The number of ranks in the communicator; `null` if it is not known. Unit: ranks. */
    size: number | null;
}

/** CUDA calls of one name over the whole run. */
export interface Counted {
    /** The call's name. */
    name: string;
    /** The number of calls inside windows. Unit: calls. */
    inside: number;
    /** The number of calls outside windows. Unit: calls. */
    outside: number;
}

/** The profiler that recorded a process, if it is not tllmprof. */
export interface Origin {
    /** The profiler and its version, such as `nsys 2026.2.1`; empty for tllmprof. */
    tool: string;
    /** The data that it did not record. */
    lacks: Data[];
    /** An estimate of the time that recording took on the process's threads; `null` if there is none. Unit: ns. */
    cost_ns: number | null;
}

/** The way in which a process ended. */
export type Ended =
    /** The end was not seen: the process was killed or is still running. */
    | "not"
    /** The process exited normally. */
    | "in order"
    /** The process exited by `_exit` or a similar call. */
    | "at once"
    /** The end is not known. */
    | "?";

/** The state of a record. Text, JSON, page, exports and exit statuses all use this value. */
export type State =
    /** The record is complete, up to the end of its process. */
    | "whole"
    /** The process was killed or is still running. The record has what was written until then. */
    | "unfinished"
    /** Something was changed or is missing. `damage` describes it. */
    | "damaged";

/** Sums of the iterations of one or several windows. */
export interface Sum {
    /** The number of iterations. Unit: iterations. */
    iterations: number;
    /** Iterations per second; `null` if they took no time. Unit: 1/s. */
    per_second: number | null;
    /** The time from the start of the first iteration to the end of the last, summed over windows, without iterations that are missing or do not qualify. Unit: ns. */
    wall_ns: number;
    /** Their durations, without waits for requests. */
    time: Quantiles;
    /** The number of iterations that `idle`, `wait` and `wait_share` are based on: those without kernels, if there are any, because recording kernels makes iterations longer. Unit: iterations. */
    host_iterations: number;
    /** The time that their threads waited for requests. */
    idle: Quantiles;
    /** The GPU time of the iterations that `gpu_from` names. By CUDA events it is a span, from the first work to the last, gaps included; by kernels it is the time in which any kernel or copy ran. `null` if it was not measured. */
    gpu: Quantiles | null;
    /** The method by which GPU time was measured, and in which iterations. */
    gpu_from: GpuFrom;
    /** The number of iterations that `gpu` and `gpu_share` are based on. Unit: iterations. */
    gpu_iterations: number;
    /** The share of GPU time in the time of those iterations; `null` if it was not measured. Unit: part of 1. */
    gpu_share: number | null;
    /** The durations of iterations in which kernels were recorded, which makes them longer; `null` if there are none. */
    with_kernels: Quantiles | null;
    /** The durations of iterations in which kernels were not recorded; `null` if there are none. */
    without_kernels: Quantiles | null;
    /** The time that the iteration's thread waited for the GPU in CUDA calls. */
    wait: Quantiles;
    /** The share of these waits in the time of the same iterations. Unit: part of 1. */
    wait_share: number;
    /** The share of waits for the GIL in the time of all iterations' threads, without waits for requests. Unit: part of 1. */
    gil_wait_share: number;
    /** The share of Python's garbage collections, on all threads, in the same time. Unit: part of 1. */
    gc_share: number;
    /** The mean number of launches of kernels and graphs, on all threads. Unit: launches per iteration. */
    launches: number;
    /** The mean number of CUDA calls, on all threads. Unit: calls per iteration. */
    calls: number;
}

/** A GPU, and its time at work in the iterations in which kernels were recorded. */
export interface Gpu {
    /** Its number in the process. */
    device: number;
    /** The model name; empty if it is not known. */
    name: string;
    /** The time in which at least one kernel ran; `null` if it was not measured. Unit: ns. */
    kernel_ns: number | null;
    /** The time in which at least one kernel or copy ran; `null` if it was not measured. Unit: ns. */
    busy_ns: number | null;
}

/** The iterations that do not count for one reason. */
export interface Unqualified {
    /** The reason why they do not qualify. */
    why: UnqualifiedBy;
    /** The number of these iterations. Unit: iterations. */
    iterations: number;
    /** Quantiles of the time that they took. */
    time: Quantiles;
    /** The total time that they took. Unit: ns. */
    total_ns: number;
}

/** Times of iterations outside windows, from a histogram with an error of at most 1.6 %. */
export interface Outside {
    /** The number of iterations. Unit: iterations. */
    iterations: number;
    /** The median; `null` if there are no iterations. Unit: ns. */
    p50_ns: number | null;
    /** The 90th percentile; `null` if there are fewer than 20 iterations. Unit: ns. */
    p90_ns: number | null;
    /** The 99th percentile; `null` if there are fewer than 200 iterations. Unit: ns. */
    p99_ns: number | null;
    /** The maximum; `null` if there are no iterations. Unit: ns. */
    max_ns: number | null;
    /** Iterations before the last window that opened by itself; `null` if they are not counted separately. */
    before: OutsideSum | null;
    /** Iterations after that window began; `null` if they are not counted separately. */
    after: OutsideSum | null;
}

/** The iterations in one phase. */
export interface PhaseSum {
    /** The phase of their batches. */
    phase: Phase;
    /** The number of iterations. Unit: iterations. */
    iterations: number;
    /** Quantiles of the time that they took. */
    time: Quantiles;
    /** The total time that they took. Unit: ns. */
    total_ns: number;
    /** The total number of requests in their batches. Unit: requests. */
    requests: number;
    /** The total number of tokens in their batches. Unit: tokens. */
    tokens: number;
    /** The number of these tokens that belong to prompts. Unit: tokens. */
    prefill_tokens: number;
    /** The same by the number of tokens in their batches, for each class that has iterations: 0, 1, 2 to 4, 5 to 16, 17 to 64, 65 to 256, 257 to 1024, 1025 to 4096, and more. */
    sizes: SizeSum[];
}

/** The time of iterations by cause. The shares of each list add up to 1. */
export interface Ledger {
    /** The number of iterations that qualify. Unit: iterations. */
    iterations: number;
    /** The number of iterations that `host` is based on. Unit: iterations. */
    host_iterations: number;
    /** The time of the threads of the iterations, the longest first. Time in a call inside another call counts only for the inner one. */
    host: LedgerRow[];
    /** The number of iterations that `gpu` is based on. Unit: iterations. */
    gpu_iterations: number;
    /** The source of `gpu`. */
    gpu_from: GpuLedgerFrom;
    /** The time of the GPU in those iterations, the longest first; empty if it was not measured. `from first work to last` is time that CUDA events measured, with the gaps between kernels. Idle time is divided by the activity of the iteration's thread meanwhile. */
    gpu: LedgerRow[];
    /** True if kernels were recorded in all iterations that `host` is based on, which makes them longer. Otherwise, the iterations in which kernels were recorded are left out. */
    stretched: boolean;
}

/** A slow iteration, with the activities that overlapped it. */
export interface Slow {
    /** The iteration's number. */
    n: number;
    /** The start of the iteration. Unit: ns. */
    start_ns: number;
    /** The time that it took. Unit: ns. */
    dur_ns: number;
    /** The contents of its batch; `null` if they are not known. */
    batch: Batch | null;
    /** The part of that time in which its thread waited for requests. Unit: ns. */
    idle_ns: number;
    /** The extra time relative to the mean of the others, all without waiting for requests. Iterations in which kernels were recorded are compared only with each other, because recording makes them longer. Unit: ns. */
    more_ns: number;
    /** Differences that add up to the extra time: the greatest first, and the unexplained rest last. */
    causes: Difference[];
    /** Up to 8 activities that overlapped it. The one that exceeded its time in the mean iteration the most comes first. */
    overlaps: Overlap[];
}

/** Samples of the stacks of the threads that make iterations. Samples count if they were taken in the iterations that `host` of the ledger is based on, except during waits for requests. */
export interface Stacks {
    /** The rate at which samples were to be taken; `null` if it is not known. Unit: Hz. */
    rate: number | null;
    /** The rate at which they were taken, by their times; `null` if there are too few. Unit: Hz. */
    achieved: number | null;
    /** The rate at which native stacks were taken while their threads were running. It is lower if the kernel's timer ticks less often. Unit: Hz. */
    achieved_native: number | null;
    /** The mean time between samples in iterations; `null` if there are none. Unit: ns. */
    interval_ns: number | null;
    /** The numbers of samples. */
    counts: SampleCounts;
    /** The share of rejected samples. Unit: part of 1. */
    rejected_share: number;
    /** The minimum number of samples to distinguish functions. Unit: samples. */
    enough: number;
    /** True if the ledger distinguishes functions by these samples. */
    told_apart: boolean;
    /** The numbers of samples in each of `windows`. */
    windows: SampleCounts[];
    /** The functions by the number of samples in which they were the innermost one, the largest first; at most 32. */
    functions: FunctionSamples[];
    /** The call tree. Callers precede the functions that they call. Functions with less than 0.1 % of the samples are left out. */
    tree: TreeNode[];
    /** The call tree of native stacks. */
    native_tree: TreeNode[];
}

/** Events with one name. */
export interface Named {
    /** Their name. */
    name: string;
    /** The number of events. Unit: times. */
    count: number;
    /** The total time that they took. Unit: ns. */
    total_ns: number;
    /** The time that the longest one took. Unit: ns. */
    max_ns: number;
}

/** A thread. */
export interface Thread {
    /** The thread's ID. */
    tid: number;
    /** Its name; `null` if it is not known. */
    name: string | null;
    /** The time that it held the GIL inside windows. Unit: ns. */
    gil_hold_ns: number;
}

/** The kernels with one name. */
export interface Kernel {
    /** The demangled name, with parameters. */
    name: string;
    /** The name without parameters and namespaces. */
    short_name: string;
    /** The number of kernels that ran. Unit: kernels. */
    count: number;
    /** The total time that they took; `null` if the driver did not report it. Unit: ns. */
    total_ns: number | null;
    /** The time that the longest one took; `null` if the driver did not report it. Unit: ns. */
    max_ns: number | null;
    /** The time that the shortest one took; `null` if the driver did not report it. Unit: ns. */
    min_ns: number | null;
}

/** The copies of one kind, or all memory sets. */
export interface Copy {
    /** The kind, such as `HtoD`; `memset` for memory sets. */
    kind: string;
    /** The number of copies or sets. Unit: copies. */
    count: number;
    /** The total time that they took; `null` if the driver did not report it. Unit: ns. */
    total_ns: number | null;
    /** The total number of bytes that they moved or set. Unit: bytes. */
    bytes: number;
}

/** The iterations in which kernels were recorded. Recording makes these iterations longer. */
export interface KernelWindow {
    /** The number of these iterations. Unit: iterations. */
    iterations: number;
    /** The total time that they took. Unit: ns. */
    wall_ns: number;
    /** The time in which at least one kernel or copy ran in these iterations, on the device that was busy longest; `null` if the driver did not report when kernels ran. Unit: ns. */
    busy_ns: number | null;
    /** The idle time of that device between two kernels or copies of one iteration; `null` if the driver did not report when kernels ran. Unit: ns. */
    gaps_ns: number | null;
    /** The number of kernels that began in these iterations. Unit: kernels. */
    kernels: number;
    /** The number of kernels and copies that are missing. */
    dropped: number;
    /** The sampling of kernels (`--kernels=20@60s`); `null` if kernels were not sampled. */
    samples: KernelSamples | null;
}

/** Equal blocks of kernels that follow one another in an iteration, compared by the names of the kernels. Usually they are the layers of a model. Iterations with the same sequence of names are analyzed together; if there are several such sequences, only the one with the most iterations is used. */
export interface GpuBlocks {
    /** The time of each block in these iterations, in the order of the blocks. Unit: ns. */
    block_ns: number[];
    /** The mean time of one block in one iteration. Unit: ns. */
    mean_ns: number;
    /** The share of the blocks in the time of these iterations' kernels. Unit: part of 1. */
    share: number;
    /** The kernels of a block, in their order. */
    kernels: GpuBlockKernel[];
    /** The number of kernels that one more, incomplete block shares with these blocks, if at least half of a block; `null` if there is no such block. Unit: kernels. */
    partly: number | null;
    /** The kernels before the blocks. */
    before: GpuOutsideBlocks;
    /** The kernels after the blocks. */
    behind: GpuOutsideBlocks;
    /** The number of iterations with this sequence of kernels. Unit: iterations. */
    iterations: number;
    /** The number of iterations in which kernels were recorded. Unit: iterations. */
    of: number;
}

/** The kernels that were launched in one scope: while the same torch modules, NVTX ranges and marked functions were open. */
export interface GpuLayer {
    /** The name, such as `model.layers.3.self_attn/attention`; empty if no scope was open. */
    name: string;
    /** The number of kernels that ran. Each is counted in one layer. Unit: kernels. */
    kernels: number;
    /** The total time that they took. Unit: ns. */
    gpu_ns: number;
    /** Their share of the time of all kernels. Unit: part of 1. */
    share: number;
}

/** Layers whose names differ only in numbers, or one layer by its whole name, with all that is within. */
export interface GpuLayerPattern {
    /** The name, such as `model.layers.*.self_attn`. `*` stands for a number if several layers are one row. */
    name: string;
    /** The number of parts of the name before its last part. Unit: parts. */
    depth: number;
    /** The number of layers with this name. Unit: layers. */
    layers: number;
    /** The number of kernels that ran. Unit: kernels. */
    kernels: number;
    /** The total time that they took. Unit: ns. */
    gpu_ns: number;
    /** Their share of the time of all kernels. Unit: part of 1. */
    share: number;
    /** The mean number of kernels in an iteration. Unit: per iteration. */
    kernels_a_step: number;
    /** The mean time of these kernels in an iteration. Unit: ns. */
    step_ns: number;
    /** The mean time of one of the layers in an iteration, with all its calls. Unit: ns. */
    each_ns: number;
    /** The mean idle time of the GPU in an iteration between two kernels of one of these layers; `null` if it is not known. Unit: ns. */
    gap_ns: number | null;
}

/** Kernels whose layer is not known. */
export interface UnknownGpuLayer {
    /** The reason, in words. */
    why: string;
    /** The number of these kernels. Unit: kernels. */
    kernels: number;
    /** The total time that they took. Unit: ns. */
    gpu_ns: number;
    /** Their share of the time of all kernels. Unit: part of 1. */
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
    /** The number of samples. Unit: samples. */
    samples: number;
}

/** A window: the iterations that were recorded one by one. */
export interface Window {
    /** The number of its first iteration. */
    first: number;
    /** The number of its last iteration. */
    last: number;
    /** True if it was closed. */
    closed: boolean;
    /** True if something other than its last iteration closed it, such as the end of the process. */
    cut: boolean;
    /** True if the flight recorder had kept its iterations: those before a window, or before the end of the process. */
    past: boolean;
    /** The number of missing iterations between the first and the last. Unit: iterations. */
    missing: number;
    /** The time from the start of its first iteration to the end of the last, without iterations that are missing or do not qualify; `null` if there are none. Unit: ns. */
    wall_ns: number | null;
    /** Iterations per second; `null` if they took no time. Unit: 1/s. */
    per_second: number | null;
    /** The time of its iterations, divided by cause. */
    ledger: Ledger;
    /** Its iterations, in the order of their starts. */
    iterations: Iteration[];
}

/** The collectives of one operation of one library, found by the kernels in the record. */
export interface Collective {
    /** The operation and the library, such as `all-reduce (NCCL)`. */
    name: string;
    /** The number of collectives. Unit: collectives. */
    count: number;
    /** The number of them that were found on all ranks of their group, in iterations that qualify. The first one of a window is never matched. Unit: collectives. */
    matched: number;
    /** The time that the matched ones took after the last rank had arrived; `null` if none was matched. Unit: ns. */
    transfer_ns: number | null;
    /** The time that the matched ones waited for the last rank; `null` if none was matched. Unit: ns. */
    wait_ns: number | null;
    /** The time of the collectives that were not matched. It is in neither of the other two times. Unit: ns. */
    unmatched_ns: number;
}

/** Load balance of the learned routers of MoE layers, outside windows. */
export interface Routing {
    /** The mean of the layers' `max_of_mean`. Unit: multiple of the mean. */
    mean: number;
    /** The layers, in the order of their numbers. */
    layers: Layer[];
}

/** Distribution of durations. Quantiles are by nearest rank. */
export interface Quantiles {
    /** The arithmetic mean. Unit: ns. */
    mean_ns: number;
    /** The median. Unit: ns. */
    p50_ns: number;
    /** The 90th percentile; `null` if there are fewer than 20 values. Unit: ns. */
    p90_ns: number | null;
    /** The 99th percentile; `null` if there are fewer than 200 values. Unit: ns. */
    p99_ns: number | null;
    /** The maximum. Unit: ns. */
    max_ns: number;
}

/** An iteration of all processes that have it. */
export interface SkewStep {
    /** The iteration's number. */
    n: number;
    /** The index in `processes` of the process that took longest; if several took equally long, of one of them. */
    slowest: number;
    /** The index in `processes` of the process that took the least time. */
    fastest: number;
    /** The time that the slowest process took. Unit: ns. */
    dur_ns: number;
    /** The time that the slowest process took beyond the fastest. Unit: ns. */
    spread_ns: number;
}

/** The verdict on the time of collectives. */
export type CollectiveVerdict =
    /** More than two thirds of it is data transfer. */
    | "transfer-bound"
    /** More than two thirds of it is waiting for the last rank. */
    | "arrival-skew"
    /** Both take a considerable part. */
    | "mixed"
    /** The records do not show it. */
    | "inconclusive";

/** Ranks whose collectives of one kind are the same events. */
export interface CollectiveGroup {
    /** The operation and the library. */
    name: string;
    /** The ranks' group: `TP`, `PP`, `EP`, `DP`, `world`, or `communicator` for an NCCL communicator without a name; `null` if the records do not name it. Then the ranks were found by the times of their collectives. */
    group: string | null;
    /** The number of ranks in that group, including those without a record; `null` if the records do not name the group. Unit: ranks. */
    size: number | null;
    /** The indexes of its processes in `processes`. */
    processes: number[];
    /** The number of collectives that they have in common. Unit: collectives. */
    events: number;
    /** The time that these waited for the last rank, summed over ranks. Unit: ns. */
    wait_ns: number;
    /** The time that they took after that, summed over ranks. Unit: ns. */
    transfer_ns: number;
}

/** A host's clock. */
export interface Clock {
    /** The host's name. */
    host: string;
    /** The offset of `CLOCK_MONOTONIC` on this host from that of the reference host, in the middle of the record; positive if it is ahead; `null` if there are no collectives to compare. Unit: ns. */
    offset_ns: number | null;
    /** The rate by which it runs faster than the reference. Unit: parts per million. */
    drift_ppm: number;
    /** The distance within which 9 of 10 ends of its collectives lie from those of the other hosts. Unit: ns. */
    error_ns: number;
}

/** A jump of a clock. */
export interface ClockJump {
    /** The index in `processes` of the process whose GPU times jump, or of one process of the host that jumps. */
    process: number;
    /** True if the clock of the whole host jumps. */
    is_host: boolean;
    /** The number of the first iteration after the jump. */
    n: number;
    /** The size of the jump. Unit: ns. */
    by_ns: number;
}

/** The collectives of a rank. */
export interface RankInCollectives {
    /** The number of its collectives that were matched. Unit: collectives. */
    matched: number;
    /** The time that it waited in them for the last rank. Unit: ns. */
    wait_ns: number;
    /** The time that they took after that. Unit: ns. */
    transfer_ns: number;
    /** The number of iterations in which it held the others up longest, by at least a hundredth of the iteration. Unit: iterations. */
    last: number;
    /** The time by which it arrived later than the median rank, summed over the collectives that it reached last. Unit: ns. */
    late_ns: number;
    /** The time that the others waited for it in those, summed over ranks. Unit: ns. */
    lost_ns: number;
    /** The time of the mean iteration. Unit: ns. */
    iteration_ns: number;
    /** The time that the mean iteration would take if this rank arrived at each collective together with the last of the others. Unit: ns. */
    iteration_without_ns: number;
    /** Causes of its lateness, as differences from the median rank: the greatest first, and the unexplained part last. */
    causes: Difference[];
}

/** The collectives of an iteration, over all ranks. */
export interface Arrival {
    /** The iteration's number. */
    n: number;
    /** The verdict on the time of its collectives. */
    verdict: CollectiveVerdict;
    /** The time that ranks waited in them, summed over ranks. Unit: ns. */
    wait_ns: number;
    /** The time that they took after that, summed over ranks. Unit: ns. */
    transfer_ns: number;
    /** The index in `processes` of the rank that held the others up longest; `null` if none did by at least a hundredth of the iteration. */
    last: number | null;
    /** The time by which the iteration would have ended sooner if that rank had arrived together with the last of the others. Unit: ns. */
    saved_ns: number;
    /** Causes of that rank's lateness. */
    causes: Difference[];
    /** For each of `processes`, the time by which it arrived at these collectives later than the median rank; `null` if none of its collectives was matched. Unit: us. */
    late: (number | null)[];
}

/** The kind of a finding. Findings are sorted in this order. */
export type FindingKind =
    /** Something that costs time and can be fixed. */
    | "cause"
    /** The resource that the program is bound by. */
    | "bound"
    /** A consequence of causes. */
    | "symptom"
    /** Something to know that is not a fault. */
    | "note";

/** The result of judging a rule. */
export type Verdict =
    /** The rule holds. */
    | "yes"
    /** The rule does not hold. */
    | "no"
    /** The records lack the data that the rule is judged by. */
    | "unknown";

/** Confidence in a verdict. */
export type Confidence =
    /** It is based on fewer than 8 iterations. */
    | "low"
    /** It is based on fewer than 30 iterations, or recording changed their times. */
    | "medium"
    /** It is based on 30 iterations or more, and recording did not change their times. */
    | "high";

/** A row of the ledger of a process. */
export interface ClaimedRow {
    /** The index of the process in `processes`. */
    process: number;
    /** The list that contains the row. */
    ledger: LedgerSide;
    /** The row's `cause`. */
    cause: string;
    /** The part of the row's time that is claimed. Unit: ns. */
    ns: number;
}

/** Figures of an MoE layer. */
export interface LayerFigures {
    /** The load of the busiest of these GPUs, as a multiple of the mean; `null` if the layer's experts cannot be divided evenly. Unit: multiple of the mean. */
    on_gpus: number | null;
    /** The load of each expert, as a multiple of the mean. Unit: multiple of the mean. */
    of_mean: number[];
}

/** Method of measuring GPU time, and the iterations in which it was used. */
export type GpuFrom =
    /** CUDA events around the work of the iterations in which no kernels were recorded. */
    | "events"
    /** CUDA events in iterations that were made longer by recording kernels. There are no others. */
    | "events in kernel windows"
    /** The kernels themselves, in iterations that were made longer by recording them. */
    | "kernels";

/** The reason why an iteration does not count. */
export type UnqualifiedBy =
    /** Its batch does not satisfy the condition. */
    | "where"
    /** There is a condition, and its batch is not known. */
    | "unknown"
    /** Its batch has no tokens, and there is no condition. */
    | "idle"
    /** It is a pass of a draft model, and there is no condition. */
    | "draft"
    /** Something other than its own end ended it, such as the end of the process. */
    | "cut";

/** Times of all iterations outside windows, or of those before or after a window. */
export interface OutsideSum {
    /** The number of iterations. Unit: iterations. */
    iterations: number;
    /** The median; `null` if there are no iterations. Unit: ns. */
    p50_ns: number | null;
    /** The 90th percentile; `null` if there are fewer than 20 iterations. Unit: ns. */
    p90_ns: number | null;
    /** The 99th percentile; `null` if there are fewer than 200 iterations. Unit: ns. */
    p99_ns: number | null;
    /** The maximum; `null` if there are no iterations. Unit: ns. */
    max_ns: number | null;
}

/** The phase of the tokens in a batch. */
export type Phase =
    /** Only tokens of prompts. */
    | "prefill"
    /** Only tokens after prompts. */
    | "decode"
    /** Both. */
    | "mixed"
    /** No tokens. */
    | "idle"
    /** A pass of a model that drafts for speculative decoding. Its requests and tokens are not known, and are 0 here. */
    | "draft";

/** The iterations of one phase whose batches are of one size class. */
export interface SizeSum {
    /** The minimum number of tokens of this class. Unit: tokens. */
    min_tokens: number;
    /** The maximum number of tokens of this class; `null` if there is no limit. Unit: tokens. */
    max_tokens: number | null;
    /** The number of iterations. Unit: iterations. */
    iterations: number;
    /** Quantiles of the time that they took. */
    time: Quantiles;
    /** The total time that they took. Unit: ns. */
    total_ns: number;
    /** The total number of requests in their batches. Unit: requests. */
    requests: number;
    /** The total number of tokens in their batches. Unit: tokens. */
    tokens: number;
    /** The number of these tokens that belong to prompts. Unit: tokens. */
    prefill_tokens: number;
}

/** A cause, and its time. */
export interface LedgerRow {
    /** The kind of the cause. */
    kind: LedgerKind;
    /** The activity that the time is spent on. `other` stands for causes that are too small for a row, `unknown` for time about which the record has no information. */
    cause: string;
    /** The function that the time is spent in, by samples or because it is marked; in a row of the GPU, the function of the host meanwhile. `null` if the row has no single function, or none that is known. */
    where: Location | null;
    /** The total time over all these iterations. Unit: ns. */
    ns: number;
    /** The share of that in their time. Unit: part of 1. */
    share: number;
}

/** The source of the GPU's ledger. */
export type GpuLedgerFrom =
    /** CUDA events before the first work of an iteration and after its last. Gaps between are not known. */
    | "events"
    /** Kernels, in the iterations in which they were recorded, which makes these longer. */
    | "kernels"
    /** Kernels that were recorded in other iterations of the same work. Busy time, and the idle time during each activity of the host, are assumed to be the same. */
    | "kernels of other iterations";

/** The contents of a batch. */
export interface Batch {
    /** The number of requests in it. Unit: requests. */
    requests: number;
    /** The number of tokens that were scheduled, without padding. Unit: tokens. */
    tokens: number;
    /** The number of these tokens that belong to prompts. Unit: tokens. */
    prefill_tokens: number;
    /** The number of the other tokens. Unit: tokens. */
    decode_tokens: number;
    /** The phase of the tokens in it. */
    phase: Phase;
}

/** A cause on which an iteration spent more or less time. */
export interface Difference {
    /** The cause: one of the ledger, `GPU work` for work that the host waited for, or `unexplained` for the rest. */
    cause: string;
    /** Details of the difference; `null` if only the time differs. */
    detail: string | null;
    /** The thread that held the GIL, if the cause is a wait for it; `null` if it is not known. */
    held_by: string | null;
    /** The extra time relative to the mean of the others; negative if it took less time. Unit: ns. */
    more_ns: number;
}

/** An activity that overlapped a slow iteration. */
export interface Overlap {
    /** The kind of the activity. */
    kind: OverlapKind;
    /** The name of the call, function or range, of the thread that held the GIL, or of the generation. */
    name: string;
    /** The number of times that it overlapped the iteration. Unit: times. */
    count: number;
    /** The time for which it overlapped the iteration. Unit: ns. */
    ns: number;
    /** The time for which it overlaps the mean iteration. Unit: ns. */
    usual_ns: number;
}

/** Numbers of stack samples. */
export interface SampleCounts {
    /** The number of samples that count. Unit: samples. */
    samples: number;
    /** The number of samples that were rejected because the stack changed while it was read. Unit: samples. */
    rejected: number;
    /** The number of samples of native stacks, which are taken separately. Unit: samples. */
    native: number;
}

/** The number of samples of a function. */
export interface FunctionSamples {
    /** The function: `QUALNAME (FILE:FIRST LINE)` of Python. */
    name: string;
    /** In `functions`, the samples in which it was the innermost function; in trees, all samples in which it was running or in a function that it called. Unit: samples. */
    samples: number;
    /** The number of these samples in which its thread slept. Unit: samples. */
    asleep: number;
    /** The share of these samples in all samples. Unit: part of 1. */
    share: number;
}

/** A function as called by another function, or as the outermost one. */
export interface TreeNode {
    /** The index of its caller, which comes earlier in this list; `null` if there is no caller. */
    parent: number | null;
    /** The function: `QUALNAME (FILE:FIRST LINE)` of Python. */
    name: string;
    /** In `functions`, the samples in which it was the innermost function; in trees, all samples in which it was running or in a function that it called. Unit: samples. */
    samples: number;
    /** The number of these samples in which its thread slept. Unit: samples. */
    asleep: number;
    /** The share of these samples in all samples. Unit: part of 1. */
    share: number;
}

/** Windows that opened repeatedly by themselves to record kernels. */
export interface KernelSamples {
    /** The number of samples. Unit: samples. */
    count: number;
    /** The number of iterations that each sample was meant to have. Unit: iterations. */
    steps: number;
    /** The time from the start of one sample to the start of the next. Unit: ns. */
    every_ns: number;
    /** The number of other windows with kernels, which are in the same figures. Unit: windows. */
    others: number;
    /** The sampling in words, as the report shows it. */
    text: string;
}

/** A kernel of a block. */
export interface GpuBlockKernel {
    /** The name without parameters. */
    short_name: string;
    /** The time that it took in all blocks of these iterations. Unit: ns. */
    gpu_ns: number;
}

/** Kernels of an iteration that are in no block. */
export interface GpuOutsideBlocks {
    /** The number of these kernels in an iteration. Unit: kernels. */
    kernels: number;
    /** The time that they took in these iterations. Unit: ns. */
    gpu_ns: number;
}

/** An iteration. */
export interface Iteration {
    /** Its number, counted from 0. */
    n: number;
    /** The start of the iteration. Unit: ns. */
    start_ns: number;
    /** The time that it took. Unit: ns. */
    dur_ns: number;
    /** The time that the GPU was busy with its work; `null` if it was not measured. Unit: ns. */
    gpu_ns: number | null;
    /** The ID of the thread that ended it. */
    thread: number;
    /** The number of launches of kernels and graphs during it, on all threads. Unit: launches. */
    launches: number;
    /** The number of CUDA calls during it, on all threads. Unit: calls. */
    calls: number;
    /** The time that its thread waited in CUDA calls for the GPU to work. Unit: ns. */
    wait_ns: number;
    /** The time that its thread was blocked waiting for requests: in a function in which a known engine waits for them, or in a call that waits for a GPU without work. It is part of `dur_ns`, but not of any percentile or finding. Unit: ns. */
    idle_ns: number;
    /** The time that its thread waited for the GIL. Unit: ns. */
    gil_wait_ns: number;
    /** The time that garbage collections of Python took during it, on all threads. Unit: ns. */
    gc_ns: number;
    /** The time that its thread was on a processor; `null` if it is not known. Unit: ns. */
    processor_ns: number | null;
    /** The time that its thread was ready to run but had no processor, because its processor was given to another thread; `null` if it is not known. Unit: ns. */
    delayed_ns: number | null;
    /** The number of page faults of its thread, including those of up to seven earlier iterations that took no longer than others and in which the thread was on a processor; `null` if it is not known. Unit: page faults. */
    page_faults: number | null;
    /** The number of kernels that began during it; 0 if kernels were not recorded. Unit: kernels. */
    kernels: number;
    /** The time in which at least one kernel or copy ran during it, on the device that was busy longest; `null` if kernels were not recorded. Recording kernels makes an iteration longer. Unit: ns. */
    gpu_busy_ns: number | null;
    /** The contents of its batch, by the arguments of the engine's step function; `null` if they are not known. */
    batch: Batch | null;
    /** True if figures of windows include it. `unqualified` lists the iterations that they do not include. */
    qualifies: boolean;
    /** True if something other than its own end ended it. */
    cut: boolean;
}

/** An MoE layer. */
export interface Layer {
    /** The layer's number. */
    layer: number;
    /** The layer's name; `null` if it is not known. */
    name: string | null;
    /** The tokens that were sent to experts. A token counts once for each expert that received it. Unit: tokens. */
    tokens: number;
    /** The tokens of the busiest expert, as a multiple of the mean expert's. Unit: multiple of the mean. */
    max_of_mean: number;
    /** The number of experts that received no tokens. Unit: experts. */
    idle: number;
    /** `max_of_mean` of GPUs instead of experts, for 2, 4, 8, 16, 32 and 64 GPUs and for the number of processes, where that number divides the experts equally. Each GPU then holds consecutive experts. */
    gpus: LayerOnGpus[];
    /** The tokens that each expert received, in the order of the experts' numbers. Unit: tokens. */
    experts: number[];
}

/** A list of the ledger. */
export type LedgerSide =
    /** The time of the iterations' threads. */
    | "host"
    /** The time of the GPU. */
    | "gpu";

/** The kind of cause that time is spent on. */
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
    /** Host: a marked Python function, without the time of activities inside it that have rows of their own. */
    | "function"
    /** Host: code between two of the activities above. */
    | "code"
    /** Host: a Python function, by samples of the thread's stack. Samples divide code between activities and the time of marked functions. */
    | "python"
    /** Host: native code, by samples. */
    | "native"
    /** Host: the thread was asleep or blocked in such code or such a function, for example in a sleep, or waiting for a lock, a file or another thread. Known by samples, or for certain by the kernel's counters. */
    | "blocked"
    /** Host: the thread could have run, but another one had its processor. */
    | "delayed"
    /** Host: waits for requests, which are neither work nor a fault. */
    | "requests"
    /** GPU: from the first work of an iteration to its last, with the gaps between. */
    | "span"
    /** GPU: busy. */
    | "busy"
    /** GPU: idle. */
    | "idle"
    /** Causes that are too small for a row. */
    | "other"
    /** Time about which the record has no information. */
    | "unknown";

/** A function of the host and the location of its code. */
export interface Location {
    /** The function's name: Python's qualified name, or a demangled symbol. */
    function: string;
    /** The file's path as the interpreter knows it; `null` for native code. */
    file: string | null;
    /** The first line of the function; `null` for native code. */
    line: number | null;
}

/** The kind of an activity that overlapped a slow iteration. */
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

/** A layer's experts divided over a number of GPUs. */
export interface LayerOnGpus {
    /** The number of GPUs. Unit: GPUs. */
    gpus: number;
    /** The tokens of the busiest GPU, as a multiple of the mean GPU's. Unit: multiple of the mean. */
    max_of_mean: number;
}
