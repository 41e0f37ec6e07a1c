// The data of the page. Made from `crates/page/src/data.rs` and `crates/report/src`:
// BLESS=1 cargo test -p tllmprof-page --test contract

/** The data of a report page, except the iterations and the events of the timeline, which the page stores separately. */
export interface Data {
    /** The report, as `tllmprof report --json` prints it, but with empty lists of iterations. */
    report: Report;
    /** More figures of each process, in the order of `report.processes`. */
    processes: ProcessFigures[];
    /** More figures for `report.skew`; `null` if `report.skew` is `null`. */
    skew: SkewFigures | null;
    /** Notes for the comparison of processes. Each note says which iterations a share is based on, if it is not based on all iterations that qualify. */
    of_which: string[];
    /** The index in `processes` of the process that the page shows first. If a finding that holds is about a single process, the page first shows the process of the first such finding. Otherwise the index is 0. */
    first_shown: number;
}

/** The output of `tllmprof report --json`. Keys that end with `ns` are in nanoseconds. Times are on the clock `CLOCK_MONOTONIC`. Every key is always present. A value that is not known or was not measured is `null`. */
export interface Report {
    /** The processes, in the order of their ranks. */
    processes: Process[];
    /** A comparison of the durations of iterations between processes; `null` if no two processes have an iteration in common. */
    skew: Skew | null;
    /** A comparison of the collectives of all processes; `null` if fewer than two processes have collectives. */
    collectives: Collectives | null;
    /** The findings about the duration of iterations. Some findings are causes of lost time, others are limits of the speed, consequences of causes, or notes on facts that are not faults (see `kind`). Findings that hold come first, then findings that could not be checked, then findings that do not hold. Within each of these groups, causes come first, and the cause with the greatest loss is the first of them. Empty if no process has iterations. */
    findings: Finding[];
}

/** Figures of one process that the page shows in addition to the report. */
export interface ProcessFigures {
    /** A name that distinguishes the process from the other processes, with its rank in each group of ranks. */
    name: string;
    /** The label for the GPU time, which depends on how the GPU time was measured. It includes the number of iterations with a measured GPU time, if these are not all iterations. `null` if there is no GPU time. */
    gpu_name: string | null;
    /** A text that lists how many iterations of windows the figures leave out, by reason; `null` if the figures leave out none. */
    uncounted: string | null;
    /** The reason why the process has no figures of iterations, in words; `null` if it has figures. */
    nothing: string | null;
    /** The share of the time inside windows that tllmprof's recorder itself took on the program's threads; `null` if it was not measured. Unit: part of 1. */
    own_share: number | null;
    /** Figures of each row of the process's `calls`, in the same order. */
    calls: MeanFigures[];
    /** Figures of each row of the process's `gc`, in the same order. */
    gc: MeanFigures[];
    /** Means of the process's waits for the GIL, for the row `gil_wait` of the report. */
    gil_wait: MeanFigures;
    /** Means of the times for which the process's threads held the GIL, for the row `gil_hold` of the report. */
    gil_hold: MeanFigures;
    /** Figures of each row of the process's `functions`, in the same order. */
    functions: MeanFigures[];
    /** Figures of each row of the process's `ranges`, in the same order. */
    ranges: MeanFigures[];
    /** Figures of each row of the process's `kernels`, in the same order. */
    kernels: KernelFigures[];
    /** The transfer rate of each row of the process's `copies`, in the same order; `null` for a row whose copies took no time. Unit: bytes/s. */
    copies: (number | null)[];
    /** Figures of the process's `routing`; `null` if the process has no `routing`. */
    routing: RoutingFigures | null;
}

/** Figures of the comparison of the durations of iterations between processes. */
export interface SkewFigures {
    /** The number of iterations that at least two processes have in common. Unit: iterations. */
    iterations: number;
    /** The index in `processes` of the process that was the slowest in the most iterations; `null` if there is no such process. */
    most_often: number | null;
}

/** A process, as its record describes it. Values that are not known are empty or `null`. */
export interface Process {
    /** The path of the file that the process was read from. */
    file: string;
    /** The process ID. */
    pid: number;
    /** The process ID of the parent process. */
    parent: number;
    /** The name of the host that the process ran on. */
    host: string;
    /** The process's rank in the job; 0 if it is not known. */
    rank: number;
    /** The source of the rank: the name of an environment variable, `torch.distributed`, an engine, or `NCCL`. `null` if the rank is not known, or if an older version of tllmprof wrote the record. */
    rank_source: string | null;
    /** The number of ranks in the job; `null` if it is not known. */
    world_size: number | null;
    /** The process's rank in each group of ranks that it belongs to, as text, such as `TP1 of 4, DP0`; empty if no group is known. */
    in_groups: string;
    /** The process's rank in each group of ranks that it belongs to. Each group name occurs once, and groups of a single rank are left out. */
    groups: GroupRank[];
    /** The NCCL communicators that the process created, in the order of creation. */
    communicators: Communicator[];
    /** The identifier of the run that the process belongs to; `null` if it has none. */
    run: string | null;
    /** The command line of the process. */
    command: string;
    /** The name of the process, which is that of `/proc/PID/comm` in records of tllmprof. */
    name: string;
    /** The rule that defines an iteration, in the form of the variable `TLLMPROF_STEP`. */
    rule: string;
    /** The reason why `rule` was used, such as how `auto` chose it; empty if the record has no reason. */
    rule_why: string;
    /** The name of the inference or training engine, such as vLLM; empty if tllmprof did not recognize one. */
    engine: string;
    /** The version of tllmprof that wrote the record. */
    library: string;
    /** The version of Python in the process; empty if the process has no Python interpreter. */
    python: string;
    /** The CUDA version of the driver, as 1000 × major + 10 × minor: 12040 is version 12.4. `null` if it is not known. */
    cuda_driver: number | null;
    /** The requested windows (ranges of iterations that are recorded one by one), in the form of the variable `TLLMPROF_START_STOP`. */
    windows_asked: string;
    /** The condition that an iteration must satisfy to be included in the figures of windows, in the form of the variable `TLLMPROF_WHERE`; `null` if there is none. */
    where: string | null;
    /** The environment variables that configured tllmprof in the process, as `NAME=value`. */
    settings: string[];
    /** The settings that tllmprof could not apply, each with the reason. */
    refused: string[];
    /** CUDA calls of the whole run, summed by name, inside and outside windows. */
    calls_counted: Counted[];
    /** The profiler that recorded the process; `null` if it was tllmprof. */
    recorded_by: Origin | null;
    /** The way in which the process ended. */
    ended: Ended;
    /** The time over which the record's clock was compared with `CLOCK_MONOTONIC`, if this time was too short for exact durations; `null` if durations are exact. Unit: ns. */
    clock_tied_ns: number | null;
    /** The value to add to a time of this process to get nanoseconds since 1970 (Unix time). Unit: ns. */
    unix_minus_monotonic_ns: number;
    /** The number of events in the record. Unit: events. */
    events: number;
    /** The number of events, other than kernels, that are missing. They were dropped because the record was full, because a later iteration began before they could be written, or because a trace of another profiler does not say what they are. Unit: events. */
    dropped: number;
    /** The number of windows that later windows overwrote, because the record has a limited size (`--keep`). Unit: windows. */
    windows_dropped: number;
    /** The time inside windows that tllmprof's recorder itself took on the program's threads. Unit: ns. */
    own_cost_ns: number;
    /** The number of GPU times that could not be read. Each is the time of the work of one stream in one iteration. */
    gpu_times_lost: number;
    /** The state of the record: whole, unfinished or damaged. */
    state: State;
    /** A description of the data that were changed or are missing; `null` unless the record is damaged. */
    damage: string | null;
    /** The number of items that this report leaves out because it reached a limit, such as its limit on different names. */
    left_out: number;
    /** Sums over the qualifying iterations of all windows, which are those whose `qualifies` is true; `null` if there are none. */
    inside: Sum | null;
    /** The share of the iterations' time between their first GPU work and their last, as measured by CUDA events, with the gaps between kernels. `null` if it was not measured. Unit: part of 1. */
    gpu_span_share: number | null;
    /** The share of the iterations' time in which at least one kernel or copy ran, on the GPU that was busy longest, from recorded kernels; `null` if it was not measured. Recording kernels makes iterations longer, so the busy time is divided by the duration of iterations without recorded kernels, if enough of them do the same work. Unit: part of 1. */
    gpu_busy_share: number | null;
    /** The GPUs that the process used. */
    gpus: Gpu[];
    /** The number of the GPU that was busy longest; `null` if no work of a GPU was measured. `gpu_span_share`, `gpu_busy_share`, `ledger.gpu` and the GPU times of iterations are those of this GPU. */
    busiest_gpu: number | null;
    /** The iterations of windows that do not qualify, by reason. With a condition (`TLLMPROF_WHERE`), these are mainly the iterations that do not satisfy the condition. Without a condition, these are the idle iterations, unless all iterations are idle. No other figure of windows includes them. */
    unqualified: Unqualified[];
    /** The durations of the iterations outside windows. */
    outside: Outside;
    /** Sums over the iterations of all windows by the phase of their batches, such as prefill or decode. Iterations whose batch is not known are left out. */
    phases: PhaseSum[];
    /** The time of the iterations of all windows, divided by cause. */
    ledger: Ledger;
    /** The iterations that took longer than comparable iterations or the median: at most 10, the longest first. */
    slowest: Slow[];
    /** Stack samples of the threads that ran iterations; `null` if stacks were not recorded. */
    stacks: Stacks | null;
    /** CUDA calls inside windows, on all threads, summed by name. The name with the longest total time comes first. */
    calls: Named[];
    /** Calls of marked Python functions inside windows, summed by name. The name with the longest total time comes first. */
    functions: Named[];
    /** The program's NVTX ranges inside windows, summed by name. The name with the longest total time comes first. */
    ranges: Named[];
    /** Python's garbage collections inside windows, summed by generation. */
    gc: Named[];
    /** The number of objects that Python's garbage collections inside windows freed. Unit: objects. */
    gc_collected: number;
    /** Waits of threads for Python's global interpreter lock (GIL) inside windows, on all threads. */
    gil_wait: Named;
    /** Periods inside windows in which a thread held the GIL, on all threads. */
    gil_hold: Named;
    /** The number of times inside windows that a thread had to release the GIL because another thread requested it. Unit: times. */
    gil_forced: number;
    /** The number of times that a thread took the GIL and released it, as far as tllmprof recorded it. Unit: times. */
    gil_handoffs: number;
    /** The threads of the process that have a name or that held the GIL. */
    threads: Thread[];
    /** The recorded GPU kernels, summed by name. The name with the longest total time comes first. */
    kernels: Kernel[];
    /** The recorded GPU copies and memory sets, summed by type. The type with the longest total time comes first. */
    copies: Copy[];
    /** Sums over the iterations in which kernels were recorded; `null` if there are none. */
    kernel_window: KernelWindow | null;
    /** Equal blocks of kernels that repeat in an iteration, usually the layers of a model; `null` if none were found. */
    blocks: GpuBlocks | null;
    /** The two streams of a GPU whose overlap would save most; `null` if no two streams have enough work of their own, or if the record does not contain the streams that calls use. */
    stream_pair: StreamPair | null;
    /** The recorded kernels, summed by the layer that launched them; empty unless layers were recorded (`--layers`). The layer with the longest total time comes first. */
    layers: GpuLayer[];
    /** The layers as a tree. Layers whose names differ only in numbers are one row, with `*` for each number. A row includes the layers within it. A parent comes before its children, and the child with the longest time is the first child. */
    layer_patterns: GpuLayerPattern[];
    /** The layers as a tree, with one row for each layer under its whole name. A row includes the layers within it. At most the 4096 rows with the longest time are listed. */
    layer_tree: GpuLayerPattern[];
    /** The kernels whose layer is not known, by reason. */
    layers_unknown: UnknownGpuLayer[];
    /** GPU metrics inside windows, one row for each metric of each GPU. */
    gpu_metrics: Metric[];
    /** The state of each GPU that the process uses, inside windows; empty if it was not sampled, or if it is not known which GPUs the process uses. */
    gpu_state: GpuState[];
    /** The reason why the state of the GPUs is not known; `null` if the state is known. */
    gpu_state_unknown: string | null;
    /** The NUMA nodes of the iterations' thread and of the GPUs; `null` if they are not known. */
    placement: Placement | null;
    /** The share of the time inside windows that tllmprof's recorder itself took on the program's threads; `null` if there are no windows. Pauses between iterations in which the recording of kernels is switched on or off are not part of these times. Unit: part of 1. */
    recorder_share: number | null;
    /** The windows that opened, in the order of their iterations. */
    windows: Window[];
    /** The collectives of the process, found by their recorded kernels and summed by operation and library. */
    collectives: Collective[];
    /** Load balance of the routers of MoE layers; `null` if it was not recorded. */
    routing: Routing | null;
}

/** A comparison of the durations of iterations between processes. Only iterations that at least two processes have are compared, matched by their numbers. Iterations that did not reach their end are left out. */
export interface Skew {
    /** The distribution of the difference between the slowest and the fastest process, over the compared iterations. */
    spread: Quantiles;
    /** For each of `processes`, the number of compared iterations that the process has. Unit: iterations. */
    common: number[];
    /** For each of `processes`, the number of compared iterations in which the process took longer than all other processes. Unit: iterations. */
    slowest: number[];
    /** The compared iterations, in the order of their numbers. */
    iterations: SkewStep[];
}

/** The collectives of several ranks compared with each other, in the iterations in which kernels were recorded. The clocks of several hosts are aligned by the ends of collectives. A collective is *matched* if it was found on all ranks of its group. */
export interface Collectives {
    /** The verdict on the time of the matched collectives. */
    verdict: CollectiveVerdict;
    /** The reason why the verdict is inconclusive, in words; `null` for other verdicts. */
    why: string | null;
    /** The number of matched collectives. A collective counts once for each of its ranks. Unit: collectives. */
    matched: number;
    /** The time that the matched collectives waited for the last rank to arrive, summed over ranks. Unit: ns. */
    wait_ns: number;
    /** The time that the matched collectives took after the last rank had arrived, summed over ranks. Unit: ns. */
    transfer_ns: number;
    /** The time that a rank waits for the last rank in matched collectives, divided by the time of the iterations with recorded kernels. This share is the mean over ranks. Unit: part of 1. */
    wait_share: number;
    /** The time that the transfers of matched collectives take, divided by the time of the iterations with recorded kernels. This share is the mean over ranks. Unit: part of 1. */
    transfer_share: number;
    /** The groups of ranks that take part in the same collectives. */
    groups: CollectiveGroup[];
    /** The clock of each host, compared with the clock of a reference host. */
    clocks: Clock[];
    /** The jumps of clocks. Times before and after a jump are aligned separately. */
    jumps: ClockJump[];
    /** Notes on the collectives and ranks that are left out, with the reasons. */
    notes: string[];
    /** Sums over the matched collectives of each process, in the order of `processes`. */
    ranks: RankInCollectives[];
    /** The iterations in which collectives were matched, in the order of their numbers. */
    iterations: Arrival[];
}

/** A rule, and the verdict on whether it holds for these records. */
export interface Finding {
    /** The identifier of the finding in this report. It equals `rule`, because a report has one finding for each rule. */
    id: string;
    /** The name of the rule, such as `launch-bound`. */
    rule: string;
    /** The type of the finding: cause, bound, symptom or note. */
    kind: FindingKind;
    /** The result of checking the rule. */
    verdict: Verdict;
    /** The confidence in the verdict. For several processes this is the lowest of their confidences. `null` if the verdict is `unknown`. */
    confidence: Confidence | null;
    /** The figures that decided the verdict, in words. */
    evidence: string;
    /** Advice in words. If the rule holds, how to fix the problem. If the verdict is `unknown`, how to record the missing data. Otherwise empty. */
    advice: string;
    /** The share of the iterations' time that a fix would save; `null` if it is not known. No time is counted in the losses of two findings. Unit: part of 1. */
    loss: number | null;
    /** True if `loss` is only an upper bound. */
    loss_is_at_most: boolean;
    /** True if `loss` is only a lower bound: the GPU's work was not measured, and it certainly had none for this share of the time. */
    loss_is_at_least: boolean;
    /** The rows of processes' ledgers (time by cause) whose time this finding explains. Empty if the rule does not hold, or if it is not about time, or if other findings explain all of its time. */
    claims: ClaimedRow[];
}

/** Means of the events that have one name, such as the calls of one CUDA function. */
export interface MeanFigures {
    /** The mean number of events in one iteration. Unit: per iteration. */
    a_step: number;
    /** The mean duration of one event. Unit: ns. */
    mean_ns: number;
}

/** Figures of the GPU kernels that have one name. */
export interface KernelFigures {
    /** The share of the kernels with this name in the total time of all kernels; `null` if the driver did not report times. Unit: part of 1. */
    share: number | null;
    /** The mean duration of a kernel with this name; `null` if the driver did not report times. Unit: ns. */
    mean_ns: number | null;
}

/** Load balance of the routers of MoE layers, for the number of GPUs that the process uses. */
export interface RoutingFigures {
    /** The number of GPUs that share the experts of a layer; `null` if it is not known, or if it divides the experts of no layer evenly. Unit: GPUs. */
    gpus: number | null;
    /** Figures of each MoE layer, in the order of the layers of the process's `routing`. */
    layers: LayerFigures[];
}

/** A group of ranks that a process belongs to, and the process's rank in that group. */
export interface GroupRank {
    /** The name of the group: `TP` (tensor parallel), `PP` (pipeline parallel), `EP` (expert parallel) or `DP` (data parallel). */
    name: string;
    /** The process's rank in the group, counted from 0. */
    rank: number;
    /** The number of ranks in the group; `null` if it is not known. Unit: ranks. */
    size: number | null;
    /** The first member's rank in the whole job. This rank distinguishes groups that have the same name. `null` if it is not known. */
    first: number | null;
}

/** An NCCL communicator that a process created. */
export interface Communicator {
    /** The communicator's identifier in hexadecimal digits, which is the same on all its ranks; `null` if this process did not pass an identifier to NCCL. */
    id: string | null;
    /** The process's rank in the communicator; `null` if it is not known. */
    rank: number | null;
    /** The number of ranks in the communicator; `null` if it is not known. Unit: ranks. */
    size: number | null;
}

/** The numbers of CUDA calls with one name over the whole run. */
export interface Counted {
    /** The name of the called function. */
    name: string;
    /** The number of calls inside windows. Unit: calls. */
    inside: number;
    /** The number of calls outside windows. Unit: calls. */
    outside: number;
}

/** The profiler that recorded a process, if it was not tllmprof. */
export interface Origin {
    /** The profiler's name and version, such as `nsys 2026.2.1`; empty for tllmprof. */
    tool: string;
    /** The types of data that the profiler did not record. */
    lacks: Data[];
    /** An estimate of the time that the profiler's recording took on the process's threads; `null` if there is no estimate. Unit: ns. */
    cost_ns: number | null;
}

/** The way in which a process ended. */
export type Ended =
    /** The record does not contain the end: the process was killed or is still running. */
    | "not"
    /** The process exited normally. */
    | "in order"
    /** The process exited by `_exit` or a similar call, without running its exit handlers. */
    | "at once"
    /** The way in which the process ended is not known. */
    | "?";

/** The state of a record: whole, unfinished or damaged. All outputs and exit statuses of tllmprof use this value. */
export type State =
    /** The record is complete, up to the end of its process. */
    | "whole"
    /** The process was killed or is still running. The record has the data that were written until then. */
    | "unfinished"
    /** A part of the record was changed or is missing. `damage` describes it. */
    | "damaged";

/** Sums over the qualifying iterations of one or several windows. An iteration qualifies if its `qualifies` is true. */
export interface Sum {
    /** The number of qualifying iterations. Unit: iterations. */
    iterations: number;
    /** The number of iterations per second of `wall_ns`; `null` if `wall_ns` is 0. Unit: 1/s. */
    per_second: number | null;
    /** The time from the start of the first iteration to the end of the last one, summed over windows. Iterations that are missing or do not qualify are left out. Unit: ns. */
    wall_ns: number;
    /** The mean time per iteration in which no iteration was open. If a rule names a function, an iteration ends when the function returns, and the next one begins with its next call. The times of iterations and the ledger do not contain the time between. Unit: ns. */
    between_ns: number;
    /** The share of the time in which no iteration was open in `wall_ns`. Unit: part of 1. */
    between_share: number;
    /** The distribution of the durations of the iterations, without waits for requests. */
    time: Quantiles;
    /** The number of iterations that `idle`, `wait` and `wait_share` are based on. Iterations with recorded kernels are left out if there are others, because recording kernels makes iterations longer. Unit: iterations. */
    host_iterations: number;
    /** The distribution of the time that the iterations' threads waited for requests. */
    idle: Quantiles;
    /** The distribution of GPU time per iteration; `null` if it was not measured. If CUDA events measured it, this is the time from the first GPU work of an iteration to its last, with the gaps. If kernels measured it, this is the time in which at least one kernel or copy ran. `gpu_from` says which. */
    gpu: Quantiles | null;
    /** The method by which GPU time was measured, and the iterations in which it was measured. */
    gpu_from: GpuFrom;
    /** The number of iterations that `gpu` and `gpu_share` are based on. Unit: iterations. */
    gpu_iterations: number;
    /** The share of GPU time in the duration of the iterations that `gpu` is based on; `null` if GPU time was not measured. Unit: part of 1. */
    gpu_share: number | null;
    /** The distribution of the durations of iterations in which kernels were recorded; `null` if there are none. Recording kernels makes iterations longer. */
    with_kernels: Quantiles | null;
    /** The distribution of the durations of iterations in which kernels were not recorded; `null` if there are none. */
    without_kernels: Quantiles | null;
    /** The distribution of the time per iteration that the iteration's thread waited for the GPU in CUDA calls. */
    wait: Quantiles;
    /** The share of the iterations' time that their threads waited for the GPU in CUDA calls, without waits in copies. It is based on the same iterations as `wait`. Unit: part of 1. */
    wait_share: number;
    /** The share of waits for Python's global interpreter lock (GIL) in the time of all iterations. This time does not include waits for requests. Unit: part of 1. */
    gil_wait_share: number;
    /** The share of Python's garbage collections, on all threads, in the time of all iterations. This time does not include waits for requests. Unit: part of 1. */
    gc_share: number;
    /** The mean number of launches of kernels and CUDA graphs in an iteration, on all threads. Unit: launches per iteration. */
    launches: number;
    /** The mean number of CUDA calls in an iteration, on all threads. Unit: calls per iteration. */
    calls: number;
}

/** A GPU, and the time that it worked in the iterations in which kernels were recorded. */
export interface Gpu {
    /** The number of the GPU in the process, counted from 0. */
    device: number;
    /** The model name of the GPU; empty if it is not known. */
    name: string;
    /** The time in which at least one kernel ran on the GPU; `null` if it was not measured. Unit: ns. */
    kernel_ns: number | null;
    /** The time in which at least one kernel or copy ran on the GPU; `null` if it was not measured. Unit: ns. */
    busy_ns: number | null;
}

/** The iterations of windows that do not qualify for one reason. */
export interface Unqualified {
    /** The reason why the iterations of this row do not qualify. */
    why: UnqualifiedBy;
    /** The number of iterations that do not qualify for this reason. Unit: iterations. */
    iterations: number;
    /** The distribution of the durations of the iterations that do not qualify for this reason. */
    time: Quantiles;
    /** The total duration of the iterations that do not qualify for this reason. Unit: ns. */
    total_ns: number;
}

/** Durations of iterations outside windows. They come from a histogram, so they have an error of up to 1.6 %. */
export interface Outside {
    /** The number of iterations outside windows. Unit: iterations. */
    iterations: number;
    /** The median of the durations; `null` if there are no iterations. Unit: ns. */
    p50_ns: number | null;
    /** The 90th percentile of the durations; `null` if there are fewer than 20 iterations. Unit: ns. */
    p90_ns: number | null;
    /** The 99th percentile of the durations; `null` if there are fewer than 200 iterations. Unit: ns. */
    p99_ns: number | null;
    /** The longest duration; `null` if there are no iterations. Unit: ns. */
    max_ns: number | null;
    /** Durations of the iterations outside windows that ended before the last automatic window. tllmprof opens an automatic window by itself, without a command of the user, such as a window of `--when`. `null` if the record does not count these iterations separately. */
    before: OutsideSum | null;
    /** Durations of the other iterations outside windows, which did not end before the last automatic window (see `before`). `null` if the record does not count these iterations separately. */
    after: OutsideSum | null;
}

/** Sums of the iterations of one phase, such as prefill or decode. */
export interface PhaseSum {
    /** The phase of the batches of the iterations. */
    phase: Phase;
    /** The number of iterations in this group. Unit: iterations. */
    iterations: number;
    /** The distribution of the durations of the group's iterations. */
    time: Quantiles;
    /** The total duration of the group's iterations. Unit: ns. */
    total_ns: number;
    /** The total number of requests in the batches of the group's iterations. Unit: requests. */
    requests: number;
    /** The total number of tokens in the batches of the group's iterations. Unit: tokens. */
    tokens: number;
    /** The total number of prompt tokens (prefill) in the batches of the group's iterations. Unit: tokens. */
    prefill_tokens: number;
    /** Sums by batch size. The size classes are 0, 1, 2 to 4, 5 to 16, 17 to 64, 65 to 256, 257 to 1024, 1025 to 4096, and more than 4096 tokens. Classes without iterations are left out. */
    sizes: SizeSum[];
}

/** The time of iterations, divided by cause. Each nanosecond counts for one cause, so the shares of each list add up to 1. */
export interface Ledger {
    /** The number of qualifying iterations, which are those whose `qualifies` is true. Unit: iterations. */
    iterations: number;
    /** The number of iterations that `host` is based on. Unit: iterations. */
    host_iterations: number;
    /** The time of the iterations' threads by cause, the longest first. Time in a call inside another call counts only for the inner one. */
    host: LedgerRow[];
    /** The number of iterations that `gpu` is based on. Unit: iterations. */
    gpu_iterations: number;
    /** The data from which `gpu` was computed: CUDA events, or recorded kernels. */
    gpu_from: GpuLedgerFrom;
    /** The time of the GPU by cause, the longest first; empty if it was not measured. The cause `from first work to last` is time between CUDA events, which includes the gaps between kernels. Idle time is divided by the activity of the iteration's thread at that time. */
    gpu: LedgerRow[];
    /** True if kernels were recorded in all iterations that `host` is based on. Recording kernels makes iterations longer. If false, `host` leaves out the iterations in which kernels were recorded. */
    stretched: boolean;
}

/** A slow iteration, with the activities that overlapped it. */
export interface Slow {
    /** The number of the iteration in the process, counted from 0. */
    n: number;
    /** The time at which the iteration began. Unit: ns. */
    start_ns: number;
    /** The duration of the iteration. Unit: ns. */
    dur_ns: number;
    /** The batch that the iteration worked on; `null` if it is not known. */
    batch: Batch | null;
    /** The part of `dur_ns` in which the iteration's thread waited for requests. Unit: ns. */
    idle_ns: number;
    /** The time by which the iteration was longer than the mean of the other iterations, without waits for requests. Iterations in which kernels were recorded are compared only with each other, because recording makes them longer. Unit: ns. */
    more_ns: number;
    /** The causes of the extra time `more_ns`. Their times add up to `more_ns`. The greatest cause comes first, and the unexplained time last. */
    causes: Difference[];
    /** Up to 8 activities that overlapped the iteration. They are sorted by the time by which their overlap exceeds their mean overlap with an iteration, the largest first. */
    overlaps: Overlap[];
}

/** Stack samples of the threads that run iterations. A sample counts if it was taken in an iteration that `host` of the ledger is based on, except during waits for requests. */
export interface Stacks {
    /** The requested sampling rate; `null` if it is not known. Unit: Hz. */
    rate: number | null;
    /** The sampling rate that was reached, computed from the times of the samples; `null` if there are too few samples. Unit: Hz. */
    achieved: number | null;
    /** The rate at which native stacks were sampled while their threads were running. It is lower than requested if the kernel's timer ticks less often. `null` if there are too few samples. Unit: Hz. */
    achieved_native: number | null;
    /** The mean time between two samples in iterations; `null` if there are no samples. Unit: ns. */
    interval_ns: number | null;
    /** The numbers of samples in the iterations of all windows. */
    counts: SampleCounts;
    /** The share of samples that were rejected, because the stack changed while it was read. Unit: part of 1. */
    rejected_share: number;
    /** The minimum number of samples that the report needs to compare functions. Unit: samples. */
    enough: number;
    /** True if there are enough samples, so that the ledger divides time between functions. */
    told_apart: boolean;
    /** The numbers of samples in each window, in the order of `windows` of the process. */
    windows: SampleCounts[];
    /** The innermost functions of the samples, the one with the most samples first; at most 32. */
    functions: FunctionSamples[];
    /** The call tree. A caller comes before the functions that it calls. Functions with less than 0.1 % of the samples are left out. */
    tree: TreeNode[];
    /** The call tree of native stacks, in the form of `tree`. */
    native_tree: TreeNode[];
}

/** The events that have one name, such as the calls of one CUDA function. */
export interface Named {
    /** The name of the events. */
    name: string;
    /** The number of events with this name. Unit: times. */
    count: number;
    /** The total duration of the events with this name. Unit: ns. */
    total_ns: number;
    /** The duration of the longest event with this name. Unit: ns. */
    max_ns: number;
}

/** A thread of the process, with the time that it held Python's global interpreter lock (GIL). */
export interface Thread {
    /** The ID of the thread. */
    tid: number;
    /** The name of the thread; `null` if it is not known. */
    name: string | null;
    /** The time inside windows in which the thread held Python's global interpreter lock (GIL). Unit: ns. */
    gil_hold_ns: number;
}

/** The GPU kernels that have one name. */
export interface Kernel {
    /** The demangled name of the kernels, with parameters. */
    name: string;
    /** The name of the kernels, without parameters and namespaces. */
    short_name: string;
    /** The number of kernels with this name that ran. Unit: kernels. */
    count: number;
    /** The total time of the kernels with this name; `null` if the driver did not report times. Unit: ns. */
    total_ns: number | null;
    /** The time of the longest kernel with this name; `null` if the driver did not report times. Unit: ns. */
    max_ns: number | null;
    /** The time of the shortest kernel with this name; `null` if the driver did not report times. Unit: ns. */
    min_ns: number | null;
}

/** The GPU copies of one type, or all memory sets. */
export interface Copy {
    /** The type of the copies, such as `HtoD` (host to device); `memset` for memory sets. */
    kind: string;
    /** The number of copies of this type, or of memory sets. Unit: copies. */
    count: number;
    /** The total time of the copies of this type, or of the memory sets; `null` if the driver did not report times. Unit: ns. */
    total_ns: number | null;
    /** The total number of bytes that were copied or set. Unit: bytes. */
    bytes: number;
}

/** Sums over the iterations in which kernels were recorded. Recording kernels makes iterations longer. */
export interface KernelWindow {
    /** The number of iterations in which kernels were recorded. Unit: iterations. */
    iterations: number;
    /** The total duration of the iterations in which kernels were recorded. Unit: ns. */
    wall_ns: number;
    /** The time in which at least one kernel or copy ran in the iterations with recorded kernels, on the GPU that was busy longest; `null` if the driver did not report the times of kernels. Unit: ns. */
    busy_ns: number | null;
    /** The idle time between two kernels or copies of the same iteration, on the GPU that was busy longest; `null` if the driver did not report the times of kernels. Unit: ns. */
    gaps_ns: number | null;
    /** The number of kernels that began during the iterations with recorded kernels. Unit: kernels. */
    kernels: number;
    /** The number of kernels and copies that ran but are missing in the record. */
    dropped: number;
    /** The sampling of kernels, such as `--kernels=20@60s`; `null` if kernels were not sampled. */
    samples: KernelSamples | null;
}

/** Equal blocks of kernels that follow one another in an iteration. Usually each block is one layer of a model. Two blocks are equal if their kernels have the same names in the same order. Iterations with the same sequence of kernels are analyzed together, and only the most frequent sequence is used. */
export interface GpuBlocks {
    /** The total time of each block over the analyzed iterations, in the order in which the blocks ran. Unit: ns. */
    block_ns: number[];
    /** The mean time of one block in one iteration. Unit: ns. */
    mean_ns: number;
    /** The share of the blocks in the total time of the kernels of the analyzed iterations. Unit: part of 1. */
    share: number;
    /** The kernels of one block, in the order of their starts. */
    kernels: GpuBlockKernel[];
    /** The number of kernels after the last block that match the beginning of one more block; `null` if they match less than half of a block. Unit: kernels. */
    partly: number | null;
    /** The kernels before the first block of an iteration. */
    before: GpuOutsideBlocks;
    /** The kernels after the last block of an iteration. */
    behind: GpuOutsideBlocks;
    /** The number of analyzed iterations: those with the most frequent sequence of kernels. Unit: iterations. */
    iterations: number;
    /** The number of iterations in which kernels were recorded. Unit: iterations. */
    of: number;
}

/** Two streams of a GPU with much work each, in the iterations with recorded kernels. */
export interface StreamPair {
    /** The number of the GPU in the process, counted from 0. */
    device: number;
    /** The two streams, the one with more work first. */
    streams: StreamTime[];
    /** The time in which both streams ran work at once. Unit: ns. */
    at_once_ns: number;
    /** The time in which the stream with less work in an iteration ran alone, summed over iterations. Overlap of the streams can save at most this time. Unit: ns. */
    at_most_ns: number;
    /** The number of iterations in which both streams have work. Unit: iterations. */
    iterations: number;
    /** The mechanism that orders the streams; `null` if they do not take turns, or if it is not known. */
    order: StreamOrder | null;
    /** The number of the stream whose work waits for the other stream's work; `null` if `order` is `null`, or if each stream waits for the other. */
    waits: number | null;
    /** The CUDA function that waits. If `order` is `event`, it makes a stream wait for an event (`cuStreamWaitEvent`). If `order` is `host`, the host waits in it. `null` if `order` is `legacy` or `null`. */
    call: string | null;
    /** The number of calls of the function `call` that ordered the streams; 0 if `call` is `null`. Unit: calls. */
    calls: number;
}

/** The kernels that were launched in one layer: while the same torch modules, NVTX ranges and marked functions were open. */
export interface GpuLayer {
    /** The name of the layer, such as `model.layers.3.self_attn/attention`; empty for kernels that were launched in no layer. */
    name: string;
    /** The number of kernels that the layer launched. Each kernel counts in one layer only. Unit: kernels. */
    kernels: number;
    /** The total time of the kernels that the layer launched. Unit: ns. */
    gpu_ns: number;
    /** The share of the layer's kernels in the total time of all recorded kernels. Unit: part of 1. */
    share: number;
}

/** A row of the tree of layers: one layer, or several layers whose names differ only in numbers. Its figures include the layers within it. */
export interface GpuLayerPattern {
    /** The name of the layer, such as `model.layers.*.self_attn`. A `*` stands for a number if the row stands for several layers. */
    name: string;
    /** The depth of the row in the tree: the number of parts of `name` before its last part. Parts are separated by `.` or `/`. Unit: parts. */
    depth: number;
    /** The number of layers that the row stands for. Unit: layers. */
    layers: number;
    /** The number of kernels that the layers of this row launched. Unit: kernels. */
    kernels: number;
    /** The total time of the kernels of this row. Unit: ns. */
    gpu_ns: number;
    /** The share of the kernels of this row in the total time of all recorded kernels. Unit: part of 1. */
    share: number;
    /** The mean number of kernels of this row in one iteration. Unit: per iteration. */
    kernels_a_step: number;
    /** The mean time of the kernels of this row in one iteration. Unit: ns. */
    step_ns: number;
    /** The mean time of the kernels of a single layer of this row in one iteration, over all calls of the layer. Unit: ns. */
    each_ns: number;
    /** The mean time per iteration that the GPU was idle between two kernels of the same layer; `null` if it is not known. Unit: ns. */
    gap_ns: number | null;
}

/** Kernels whose layer is not known for one reason. */
export interface UnknownGpuLayer {
    /** The reason why the layer is not known, in words. */
    why: string;
    /** The number of kernels whose layer is not known for this reason. Unit: kernels. */
    kernels: number;
    /** The total time of the kernels whose layer is not known for this reason. Unit: ns. */
    gpu_ns: number;
    /** The share of the kernels whose layer is not known for this reason, in the total time of all recorded kernels. Unit: part of 1. */
    share: number;
}

/** One metric of one GPU, inside windows. */
export interface Metric {
    /** The number of the GPU, as the driver numbers GPUs. */
    device: number;
    /** The name of the metric, such as `SM busy`. */
    metric: string;
    /** The unit of `mean` and `max`. */
    unit: string;
    /** The mean of the metric over time. Unit: `unit`. */
    mean: number;
    /** The largest sample of the metric. Unit: `unit`. */
    max: number;
    /** The number of samples of the metric. Unit: samples. */
    samples: number;
}

/** The state of a GPU that the process uses, inside windows. */
export interface GpuState {
    /** The number of the GPU, as the driver numbers GPUs. */
    device: number;
    /** The number of samples of the clocks. Unit: samples. */
    samples: number;
    /** The mean SM clock; `null` if it was not sampled. Unit: MHz. */
    sm_clock_mhz: number | null;
    /** The highest SM clock that the GPU supports; `null` if it is not known. Unit: MHz. */
    max_sm_clock_mhz: number | null;
    /** The power limit that the driver enforces; `null` if it is not known. Unit: watts. */
    power_limit_w: number | null;
    /** The board's default power limit; `null` if it is not known. Unit: watts. */
    default_power_limit_w: number | null;
    /** The time in which heat, the hardware or a power limit lowered the SM clock; `null` if the reasons for the clocks are not known. A power limit counts if it is below the board's default, or if one of the two is not known. */
    throttled: Throttled | null;
    /** The time in which the GPU's power limit lowered the SM clock, if that limit is the board's default or higher; `null` if the reasons for the clocks are not known. */
    power_limited: Throttled | null;
    /** The time at the start of a window in which the SM clock had not risen yet; `null` if it had, or if that is not known. */
    low_clock: LowClock | null;
    /** The energy that the GPU used; `null` if it is not known. Unit: joules. */
    energy_j: number | null;
    /** The mean energy of an iteration; `null` if it is not known. Unit: joules. */
    joules_per_step: number | null;
    /** The mean energy of a token; `null` if it is not known, or if the batches are not known. Unit: joules. */
    joules_per_token: number | null;
    /** The other processes that used the GPU, of this run and of other runs; `null` if the processes on the GPU were not listed, or if the driver lists them by process IDs that cannot be compared with those of the run. */
    others: OtherProcess[] | null;
    /** The part of the iterations' time that was lost to other busy processes; `null` if it is not known. */
    others_cost: number | null;
}

/** The NUMA nodes of the iterations' thread and of the GPU that is farthest from it, inside windows. */
export interface Placement {
    /** The number of the GPU, as the driver numbers GPUs. */
    device: number;
    /** The number of the GPU's NUMA node. */
    gpu_node: number;
    /** The number of NUMA nodes of the machine. Unit: nodes. */
    nodes: number;
    /** The NUMA node on which the iterations' thread ran longest; `null` if it is not known, or if the machine has only one node. */
    thread_node: number | null;
    /** The distance from the GPU's node to `thread_node`, as the firmware states it. A distance of 10 means the same node. `null` if it is not known. Unit: distance. */
    distance: number | null;
    /** The share of the time in which the iterations' thread ran on another node than the GPU's, as a part of 1; `null` if it is not known. */
    far_share: number | null;
    /** The number of times that the iterations' thread moved to another node. Unit: moves. */
    moves: number;
}

/** A window: a range of iterations that were recorded one by one. */
export interface Window {
    /** The number of the window's first iteration. */
    first: number;
    /** The number of the window's last iteration. */
    last: number;
    /** True if the record contains the end of the window. */
    closed: boolean;
    /** True if the window was closed before its last iteration, for example because the process ended. */
    cut: boolean;
    /** True if the flight recorder kept the window's iterations. The flight recorder keeps the latest iterations before a window opens, or before the process ends. */
    past: boolean;
    /** The number of iterations between the first and the last that are missing in the record. Unit: iterations. */
    missing: number;
    /** The time from the start of the first iteration to the end of the last, without iterations that are missing or do not qualify; `null` if no iteration qualifies. Unit: ns. */
    wall_ns: number | null;
    /** The number of qualifying iterations per second of `wall_ns`; `null` if `wall_ns` is 0 or `null`. Unit: 1/s. */
    per_second: number | null;
    /** The time of the window's iterations, divided by cause. */
    ledger: Ledger;
    /** The window's iterations, in the order of their starts. */
    iterations: Iteration[];
}

/** The collectives of one process that have the same operation and library, found by their recorded kernels. */
export interface Collective {
    /** The operation and the library, such as `all-reduce (NCCL)`. */
    name: string;
    /** The number of the process's collectives with this operation and library. Unit: collectives. */
    count: number;
    /** The number of collectives that were matched: found on all ranks of their group, in iterations that qualify. The first collective of a window is never matched. Unit: collectives. */
    matched: number;
    /** The time that the matched collectives took after the last rank had arrived; `null` if no collective was matched. Unit: ns. */
    transfer_ns: number | null;
    /** The time that the matched collectives waited for the last rank to arrive; `null` if no collective was matched. Unit: ns. */
    wait_ns: number | null;
    /** The time of the collectives that were not matched. `transfer_ns` and `wait_ns` do not include it. Unit: ns. */
    unmatched_ns: number;
}

/** Load balance of the routers of mixture-of-experts (MoE) layers, outside windows. A router sends each token to some of a layer's experts. */
export interface Routing {
    /** The mean of `max_of_mean` over the layers. Unit: multiple of the mean. */
    mean: number;
    /** The mixture-of-experts (MoE) layers, in the order of their numbers. */
    layers: Layer[];
}

/** The distribution of a set of durations. Percentiles are nearest-rank percentiles, so each is one of the durations. */
export interface Quantiles {
    /** The arithmetic mean of the durations. Unit: ns. */
    mean_ns: number;
    /** The median of the durations. Unit: ns. */
    p50_ns: number;
    /** The 90th percentile of the durations; `null` if there are fewer than 20. Unit: ns. */
    p90_ns: number | null;
    /** The 99th percentile of the durations; `null` if there are fewer than 200. Unit: ns. */
    p99_ns: number | null;
    /** The longest duration. Unit: ns. */
    max_ns: number;
}

/** One iteration that at least two processes have. */
export interface SkewStep {
    /** The number of the iteration, which is the same in all compared processes. */
    n: number;
    /** The index in `processes` of the process that took longest. If several took equally long, it is one of them. */
    slowest: number;
    /** The index in `processes` of the process that took the least time. */
    fastest: number;
    /** The duration of the iteration on the slowest process. Unit: ns. */
    dur_ns: number;
    /** The duration on the slowest process minus the duration on the fastest process. Unit: ns. */
    spread_ns: number;
}

/** The verdict on the time of collectives: transfer of data, or waiting for the last rank. */
export type CollectiveVerdict =
    /** More than two thirds of the time is transfer of data. */
    | "transfer-bound"
    /** More than two thirds of the time is waiting for the last rank to arrive. */
    | "arrival-skew"
    /** Both transfer and waiting for the last rank take at least a third of the time. */
    | "mixed"
    /** The records do not show how the time is divided. */
    | "inconclusive";

/** A group of ranks that take part in the same collectives of one operation. */
export interface CollectiveGroup {
    /** The operation and the library, such as `all-reduce (NCCL)`. */
    name: string;
    /** The name of the group: `TP`, `PP`, `EP`, `DP`, `world`, or `communicator` for an NCCL communicator without a name. `null` if the records do not name the group, and its ranks were found by the times of their collectives. */
    group: string | null;
    /** The number of ranks in the group, including ranks without a record; `null` if the records do not name the group. Unit: ranks. */
    size: number | null;
    /** The indexes in `processes` of the ranks of the group that have a record. */
    processes: number[];
    /** The number of collectives of the group that were matched. Unit: collectives. */
    events: number;
    /** The time that the group's matched collectives waited for the last rank to arrive, summed over ranks. Unit: ns. */
    wait_ns: number;
    /** The time that the group's matched collectives took after the last rank had arrived, summed over ranks. Unit: ns. */
    transfer_ns: number;
}

/** The clock of a host, compared with the clock of a reference host. */
export interface Clock {
    /** The name of the host. */
    host: string;
    /** The value of `CLOCK_MONOTONIC` on this host minus its value on the reference host, in the middle of the record. A positive value means that this host's clock is ahead. `null` if there are no collectives to compare the clocks by. Unit: ns. */
    offset_ns: number | null;
    /** The rate by which this host's clock runs faster than the clock of the reference host; negative if it runs slower. Unit: parts per million. */
    drift_ppm: number;
    /** The error of the alignment: 9 of 10 ends of this host's collectives differ by at most this time from the ends on the other hosts. Unit: ns. */
    error_ns: number;
}

/** A jump of a clock, as the ends of collectives show it. */
export interface ClockJump {
    /** The index in `processes` of the process whose GPU times jump. If the clock of a whole host jumps, this is the index of one process on that host. */
    process: number;
    /** True if the clock of the whole host jumps. False if only the GPU times of one process jump. */
    is_host: boolean;
    /** The number of the first iteration after the jump. */
    n: number;
    /** The size of the jump; negative if the clock was set back. Unit: ns. */
    by_ns: number;
}

/** The matched collectives of one rank. */
export interface RankInCollectives {
    /** The number of the rank's collectives that were matched. Unit: collectives. */
    matched: number;
    /** The time that the rank waited in matched collectives for the last rank to arrive. Unit: ns. */
    wait_ns: number;
    /** The time that the rank's matched collectives took after the last rank had arrived. Unit: ns. */
    transfer_ns: number;
    /** The number of iterations in which this rank delayed the other ranks longest, and by at least a hundredth of the iteration. Unit: iterations. */
    last: number;
    /** The time by which this rank arrived later than the median rank, summed over the collectives at which it arrived last. Unit: ns. */
    late_ns: number;
    /** The time that the other ranks waited for this rank in the collectives at which it arrived last, summed over those ranks. Unit: ns. */
    lost_ns: number;
    /** The mean duration of the iterations with matched collectives, over all ranks, without waits for requests. Unit: ns. */
    iteration_ns: number;
    /** The mean duration that these iterations would have if this rank arrived at each collective together with the last of the other ranks. Unit: ns. */
    iteration_without_ns: number;
    /** The causes of the rank's late arrivals, as times in addition to those of the median rank. The greatest cause comes first, and the unexplained time last. */
    causes: Difference[];
}

/** The matched collectives of one iteration, over all ranks. */
export interface Arrival {
    /** The number of the iteration. */
    n: number;
    /** The verdict on the time of the iteration's collectives. */
    verdict: CollectiveVerdict;
    /** The time that the iteration's collectives waited for the last rank to arrive, summed over ranks. Unit: ns. */
    wait_ns: number;
    /** The time that the iteration's collectives took after the last rank had arrived, summed over ranks. Unit: ns. */
    transfer_ns: number;
    /** The index in `processes` of the rank that delayed the other ranks longest; `null` if no rank delayed them by at least a hundredth of the iteration. */
    last: number | null;
    /** The time by which the iteration would have been shorter if the rank `last` had arrived together with the last of the other ranks; 0 if `last` is `null`. Unit: ns. */
    saved_ns: number;
    /** The causes of the late arrivals of the rank `last`; empty if `last` is `null`. */
    causes: Difference[];
    /** For each of `processes`, the time by which it arrived at the iteration's collectives later than the median rank; `null` for a process without matched collectives in the iteration. Unit: us. */
    late: (number | null)[];
}

/** The type of a finding. Among findings with the same verdict, causes come first, then bounds, symptoms and notes. */
export type FindingKind =
    /** A cause of lost time that can be fixed. */
    | "cause"
    /** The resource that limits the speed of the program. */
    | "bound"
    /** A consequence of causes. */
    | "symptom"
    /** A fact that is worth knowing but is not a fault. */
    | "note";

/** The result of checking a rule. */
export type Verdict =
    /** The rule holds. */
    | "yes"
    /** The rule does not hold. */
    | "no"
    /** The records lack the data that the rule needs. */
    | "unknown";

/** The confidence in a verdict. It depends on the number of iterations, and on the effect of recording on their times. */
export type Confidence =
    /** The verdict is based on fewer than 8 iterations. */
    | "low"
    /** The verdict is based on 8 to 29 iterations, or recording changed the times of the iterations. The findings `serial-streams` and `shared-gpu` never have a higher confidence: it is not known if the streams need their order, or how much of the time the processes would use the GPU at once. */
    | "medium"
    /** The verdict is based on 30 or more iterations, and recording did not change their times. */
    | "high";

/** A row of a process's `ledger` (time by cause) whose time a finding claims. A finding claims the time that it explains. */
export interface ClaimedRow {
    /** The index of the process in `processes`. */
    process: number;
    /** The list of the process's `ledger` that contains the row: `host` or `gpu`. */
    ledger: LedgerSide;
    /** The `cause` of the row in the list that `ledger` names. */
    cause: string;
    /** The time that the finding claims, at most the time of the row. Unit: ns. */
    ns: number;
}

/** Load balance of one MoE layer. */
export interface LayerFigures {
    /** The number of tokens on the busiest of the GPUs that share the experts, as a multiple of the mean over these GPUs; `null` if the number of GPUs is not known or does not divide the experts evenly. Unit: multiple of the mean. */
    on_gpus: number | null;
    /** For each expert, its number of tokens as a multiple of the mean over all experts, in the order of the experts' numbers. Unit: multiple of the mean. */
    of_mean: number[];
}

/** The method by which GPU time was measured, and the iterations in which it was measured. */
export type GpuFrom =
    /** CUDA events before and after the GPU work of an iteration, in iterations in which no kernels were recorded. */
    | "events"
    /** CUDA events before and after the GPU work of an iteration, in iterations in which kernels were recorded. Recording kernels makes an iteration longer. No other iterations were measured. */
    | "events in kernel windows"
    /** The recorded kernels themselves. Recording kernels makes an iteration longer. */
    | "kernels";

/** The reason why the figures of windows leave out an iteration. */
export type UnqualifiedBy =
    /** The batch of the iteration does not satisfy the condition (`TLLMPROF_WHERE`). */
    | "where"
    /** A condition (`TLLMPROF_WHERE`) is set, but the batch of the iteration is not known. */
    | "unknown"
    /** No condition is set, and the batch of the iteration has no tokens. */
    | "idle"
    /** No condition is set, and the iteration is a pass of a draft model. */
    | "draft"
    /** The iteration did not reach its end, for example because the process ended. */
    | "cut";

/** The distribution of the durations of a set of iterations outside windows. */
export interface OutsideSum {
    /** The number of iterations outside windows. Unit: iterations. */
    iterations: number;
    /** The median of the durations; `null` if there are no iterations. Unit: ns. */
    p50_ns: number | null;
    /** The 90th percentile of the durations; `null` if there are fewer than 20 iterations. Unit: ns. */
    p90_ns: number | null;
    /** The 99th percentile of the durations; `null` if there are fewer than 200 iterations. Unit: ns. */
    p99_ns: number | null;
    /** The longest duration; `null` if there are no iterations. Unit: ns. */
    max_ns: number | null;
}

/** The phase of a batch: whether its tokens are prompt tokens, tokens that follow prompts, or both. */
export type Phase =
    /** The batch has only prompt tokens. */
    | "prefill"
    /** The batch has only tokens that follow prompts. */
    | "decode"
    /** The batch has both prompt tokens and tokens that follow prompts. */
    | "mixed"
    /** The batch has no tokens. */
    | "idle"
    /** The iteration is a pass of a draft model for speculative decoding. The contents of its batch are not known, so the numbers of requests and tokens are 0. */
    | "draft";

/** Sums of the iterations of one phase whose number of tokens lies in one size class. */
export interface SizeSum {
    /** The smallest number of tokens in a batch of this size class. Unit: tokens. */
    min_tokens: number;
    /** The largest number of tokens in a batch of this size class; `null` for the last class, which has no upper limit. Unit: tokens. */
    max_tokens: number | null;
    /** The number of iterations in this group. Unit: iterations. */
    iterations: number;
    /** The distribution of the durations of the group's iterations. */
    time: Quantiles;
    /** The total duration of the group's iterations. Unit: ns. */
    total_ns: number;
    /** The total number of requests in the batches of the group's iterations. Unit: requests. */
    requests: number;
    /** The total number of tokens in the batches of the group's iterations. Unit: tokens. */
    tokens: number;
    /** The total number of prompt tokens (prefill) in the batches of the group's iterations. Unit: tokens. */
    prefill_tokens: number;
}

/** A cause on which iterations spent time, and that time. */
export interface LedgerRow {
    /** The type of the cause, such as `launch` for calls that launch kernels or graphs. */
    kind: LedgerKind;
    /** The name of the cause, which is an activity such as a CUDA call. `other` stands for causes that are too small for a row, and `unknown` for time about which the record has no information. */
    cause: string;
    /** The function in which the time was spent, known from stack samples or because the function is marked. In a row of the GPU it is the function that the host ran at that time. `null` if the row stands for several functions, or if the function is not known. */
    where: Location | null;
    /** The total time of the cause over all iterations that the list is based on. Unit: ns. */
    ns: number;
    /** The share of this cause in the total time of the list that contains this row (`host` or `gpu`). Unit: part of 1. */
    share: number;
}

/** The data from which the list `gpu` of the ledger was computed: CUDA events, recorded kernels, or waits of the host. */
export type GpuLedgerFrom =
    /** CUDA events before the first GPU work of an iteration and after its last. Gaps between kernels are not known. */
    | "events"
    /** The recorded kernels, in the iterations in which they were recorded. Recording kernels makes these iterations longer. */
    | "kernels"
    /** Kernels that were recorded in other iterations that do the same work. The busy time, and the idle time during each activity of the host, are assumed to be the same. */
    | "kernels of other iterations"
    /** Waits of the host that left the GPU without work. It certainly had none until the next call that gave it work. The idle times are a lower bound, and it is not known if the GPU was busy at other times, which are in the row `unknown`. */
    | "waits of the host";

/** The batch of requests that one iteration worked on. */
export interface Batch {
    /** The number of requests in the batch. Unit: requests. */
    requests: number;
    /** The number of tokens that the engine scheduled for the batch, without padding. Unit: tokens. */
    tokens: number;
    /** The number of prompt tokens (prefill) among `tokens`. Unit: tokens. */
    prefill_tokens: number;
    /** The number of tokens among `tokens` that follow prompts (decode). Unit: tokens. */
    decode_tokens: number;
    /** The phase of the batch: whether its tokens are prompt tokens, tokens that follow prompts, or both. */
    phase: Phase;
}

/** A cause on which a slow iteration spent more or less time than comparable iterations, or a late rank more or less time than the median rank. */
export interface Difference {
    /** The name of the cause: a `cause` of the ledger, `GPU work` for GPU work that the host waited for, or `unexplained` for the remaining time. */
    cause: string;
    /** Details of the difference, in words; `null` if there is nothing to add. */
    detail: string | null;
    /** The name of the thread that held the GIL, if the cause is a wait for the GIL; `null` otherwise, or if the thread is not known. */
    held_by: string | null;
    /** The extra time that was spent on the cause, relative to the mean of comparable iterations or to the median rank; negative if less time was spent. Unit: ns. */
    more_ns: number;
}

/** An activity that overlapped a slow iteration. */
export interface Overlap {
    /** The type of the activity, such as `gc` for a garbage collection of Python. */
    kind: OverlapKind;
    /** The name of the activity: of the CUDA call, of the function or range, of the thread that held the GIL, or of the generation that was collected. */
    name: string;
    /** The number of times that the activity overlapped the iteration. Unit: times. */
    count: number;
    /** The total time for which the activity overlapped the iteration. Unit: ns. */
    ns: number;
    /** The mean time for which the activity overlaps an iteration. Unit: ns. */
    usual_ns: number;
}

/** The numbers of stack samples in a set of iterations: usable samples, rejected samples, and samples of native stacks. */
export interface SampleCounts {
    /** The number of usable samples, without the samples of native stacks. Unit: samples. */
    samples: number;
    /** The number of samples that were rejected, because the stack changed while it was read. Samples of native stacks are never rejected. Unit: samples. */
    rejected: number;
    /** The number of samples of native stacks, which are taken separately. Unit: samples. */
    native: number;
}

/** A function, and the number of stack samples that contain it. */
export interface FunctionSamples {
    /** The name of the function. For Python it has the form `QUALNAME (FILE:FIRST LINE)`. */
    name: string;
    /** The number of samples of the function. In the list `functions` these are the samples in which it was the innermost function. In trees these are all samples in which it, or a function that it called, was running. Unit: samples. */
    samples: number;
    /** The number of samples of the function in which the thread was asleep. Unit: samples. */
    asleep: number;
    /** The share of the function's samples in all samples of the same kind (of Python stacks or of native stacks). Unit: part of 1. */
    share: number;
}

/** A function of a call tree, as called by one caller or as the outermost function. */
export interface TreeNode {
    /** The index in this list of the caller, which comes earlier in the list; `null` for an outermost function. */
    parent: number | null;
    /** The name of the function. For Python it has the form `QUALNAME (FILE:FIRST LINE)`. */
    name: string;
    /** The number of samples of the function. In the list `functions` these are the samples in which it was the innermost function. In trees these are all samples in which it, or a function that it called, was running. Unit: samples. */
    samples: number;
    /** The number of samples of the function in which the thread was asleep. Unit: samples. */
    asleep: number;
    /** The share of the function's samples in all samples of the same kind (of Python stacks or of native stacks). Unit: part of 1. */
    share: number;
}

/** Windows that opened by themselves at regular intervals to record kernels. Each is one sample. */
export interface KernelSamples {
    /** The number of samples, which are windows that opened by themselves. Unit: samples. */
    count: number;
    /** The number of iterations that each sample was meant to have. Unit: iterations. */
    steps: number;
    /** The intended time from the start of one sample to the start of the next. Unit: ns. */
    every_ns: number;
    /** The number of windows with recorded kernels that are not samples. The figures of kernels include them. Unit: windows. */
    others: number;
    /** A description of the sampling, as the text report shows it. */
    text: string;
}

/** A kernel of a block. */
export interface GpuBlockKernel {
    /** The name of the kernel, without parameters and namespaces. */
    short_name: string;
    /** The total time of this kernel in all blocks of all analyzed iterations. Unit: ns. */
    gpu_ns: number;
}

/** The kernels of an iteration that are before the first block or after the last one. */
export interface GpuOutsideBlocks {
    /** The number of kernels before the first block, or after the last one, in one iteration. Unit: kernels. */
    kernels: number;
    /** The total time of the kernels before the first block, or after the last one, in all analyzed iterations. Unit: ns. */
    gpu_ns: number;
}

/** A stream, and the time that it ran work in the iterations with recorded kernels. */
export interface StreamTime {
    /** CUPTI's number for the stream. The legacy default stream has the number 7. */
    stream: number;
    /** The time in which the stream ran kernels, copies or memory sets. Unit: ns. */
    gpu_ns: number;
}

/** The mechanism that orders the work of two streams. */
export type StreamOrder =
    /** A stream waits for an event (`cuStreamWaitEvent`). */
    | "event"
    /** One of the streams is the legacy default stream. Its work waits for the work of all other blocking streams, and their work waits for its work. */
    | "legacy"
    /** The host waits for a stream's work before it launches on the other stream. */
    | "host";

/** A time in which the SM clock was lowered for certain reasons. */
export interface Throttled {
    /** The reasons why the SM clock was lowered, as NVML gives them. */
    reasons: string[];
    /** The share of the sampled time in which the SM clock was lowered, as a part of 1. */
    share: number;
    /** The mean SM clock while the clock was lowered; `null` if it was never lowered. Unit: MHz. */
    sm_clock_mhz: number | null;
    /** The mean SM clock while the clock was not lowered; `null` if it was always lowered. Unit: MHz. */
    other_sm_clock_mhz: number | null;
    /** The part of the iterations' time that the lowered clocks cost, compared with iterations at full clocks; `null` if there are too few iterations at lowered or at full clocks. */
    cost: number | null;
}

/** A time at the start of a window in which the SM clock was low, although nothing limited it. The clock rose later in the window. */
export interface LowClock {
    /** The time from the start of the window until the SM clock had risen. If several windows began with a low clock, the longest of these times. Unit: ns. */
    duration_ns: number;
    /** The mean SM clock before it had risen. Unit: MHz. */
    sm_clock_mhz: number;
    /** The median SM clock after it had risen. Unit: MHz. */
    later_sm_clock_mhz: number;
    /** The part of the iterations' time that the low clock cost, compared with iterations after the clock had risen; `null` if there are too few iterations before or after that. */
    cost: number | null;
}

/** Another process that used the GPU. */
export interface OtherProcess {
    /** The process ID; `null` if the driver lists it by a number of another PID namespace. */
    pid: number | null;
    /** The name of the process; `null` if it could not be read. */
    name: string | null;
    /** True if the process belongs to the same run, false if it belongs to another run. */
    same_run: boolean;
    /** The largest share of the SMs' time that the process had, as a part of 1; `null` if it is not known. */
    sm_share: number | null;
    /** The mean share of the SMs' time that the process had, as a part of 1; `null` if it is not known. */
    mean_sm_share: number | null;
}

/** One iteration inside a window. An iteration is one step of the program, such as one batch of an engine. */
export interface Iteration {
    /** The number of the iteration in the process, counted from 0. */
    n: number;
    /** The time at which the iteration began. Unit: ns. */
    start_ns: number;
    /** The duration of the iteration. Unit: ns. */
    dur_ns: number;
    /** The time that the GPU worked for the iteration; `null` if it was not measured. `gpu_from` of the process says how it was measured. Unit: ns. */
    gpu_ns: number | null;
    /** The ID of the thread that ended the iteration. This is the iteration's thread. */
    thread: number;
    /** The number of launches of kernels and CUDA graphs during the iteration, on all threads. Unit: launches. */
    launches: number;
    /** The number of CUDA calls during the iteration, on all threads. Unit: calls. */
    calls: number;
    /** The time that the iteration's thread spent in CUDA calls that wait for the GPU. Unit: ns. */
    wait_ns: number;
    /** The time that the iteration's thread waited for requests: in a function in which a known engine waits for them, or in a CUDA call that waits for a GPU without work. This time is part of `dur_ns`, but percentiles and findings leave it out. Unit: ns. */
    idle_ns: number;
    /** The time that the iteration's thread waited for Python's global interpreter lock (GIL). Unit: ns. */
    gil_wait_ns: number;
    /** The time that Python's garbage collections took during the iteration, on all threads. Unit: ns. */
    gc_ns: number;
    /** The time that the iteration's thread ran on a processor; `null` if it is not known. Unit: ns. */
    processor_ns: number | null;
    /** The time that the iteration's thread was ready to run but waited for a processor, because another thread ran on it; `null` if it is not known. Unit: ns. */
    delayed_ns: number | null;
    /** The number of page faults of the iteration's thread since the number was last read; `null` if it is not known. It is read in each iteration that is longer than usual or whose thread has left its processor, and otherwise in every eighth iteration. So it may include the page faults of up to seven earlier iterations. Unit: page faults. */
    page_faults: number | null;
    /** The number of kernels that began during the iteration; 0 if kernels were not recorded. Unit: kernels. */
    kernels: number;
    /** The time during the iteration in which at least one kernel or copy ran, on the GPU that was busy longest; `null` if kernels were not recorded. Recording kernels makes an iteration longer. Unit: ns. */
    gpu_busy_ns: number | null;
    /** The batch that the iteration worked on, as read from the arguments of the engine's step function; `null` if it is not known. */
    batch: Batch | null;
    /** True if the figures of windows include the iteration. `unqualified` of the process says why the other iterations do not count. */
    qualifies: boolean;
    /** True if the iteration did not reach its end, for example because the process ended. */
    cut: boolean;
}

/** Load balance of one MoE layer. */
export interface Layer {
    /** The number of the layer, counted from 0. Layers are numbered in the order in which tllmprof found them. */
    layer: number;
    /** The name of the layer; `null` if it is not known. */
    name: string | null;
    /** The number of tokens that the layer's router sent to experts. A token counts once for each expert that received it. Unit: tokens. */
    tokens: number;
    /** The number of tokens of the busiest expert, as a multiple of the mean over all experts. Unit: multiple of the mean. */
    max_of_mean: number;
    /** The number of experts that received no tokens. Unit: experts. */
    idle: number;
    /** The load balance between GPUs, if the experts were divided over 2, 4, 8, 16, 32 or 64 GPUs, or over as many GPUs as there are processes. Each GPU has the same number of consecutive experts, and numbers of GPUs that do not divide the experts equally are left out. */
    gpus: LayerOnGpus[];
    /** The number of tokens that each expert received, in the order of the experts' numbers. Unit: tokens. */
    experts: number[];
}

/** A list of a process's `ledger` (time by cause): `host` or `gpu`. */
export type LedgerSide =
    /** The list `host`: the time of the iterations' threads. */
    | "host"
    /** The list `gpu`: the time of the GPU. */
    | "gpu";

/** The type of a cause of the ledger. Types whose description begins with `Host` occur in `host`, and those whose description begins with `GPU` in `gpu`. */
export type LedgerKind =
    /** Host: a CUDA call that waits for the GPU. */
    | "wait"
    /** Host: CUDA calls that launch kernels or graphs. */
    | "launch"
    /** Host: CUDA calls that copy or set memory. */
    | "copy"
    /** Host: CUDA calls that capture or instantiate graphs. */
    | "capture"
    /** Host: CUDA calls that allocate or free memory. */
    | "allocation"
    /** Host: calls that load code into a context or compile it. */
    | "compilation"
    /** Host: CUDA calls that do not wait, launch, copy, capture, allocate or compile. */
    | "call"
    /** Host: Python's garbage collection on the iteration's thread. */
    | "gc"
    /** Host: waits for Python's global interpreter lock (GIL). */
    | "gil_wait"
    /** Host: a marked Python function, without the time of activities inside it that have their own rows. */
    | "function"
    /** Host: code that ran between two recorded activities, such as two CUDA calls. */
    | "code"
    /** Host: a Python function, known from samples of the thread's stack. The samples divide the time of `code` and of marked functions. */
    | "python"
    /** Host: native code, known from samples of the thread's stack. */
    | "native"
    /** Host: the thread was asleep or blocked in its code, for example in a sleep, or while it waited for a lock, a file or another thread. Known from samples of the thread's stack, or from the kernel's counters. */
    | "blocked"
    /** Host: the thread was ready to run, but another thread ran on its processor. */
    | "delayed"
    /** Host: waits for requests, which are neither work nor a fault. */
    | "requests"
    /** GPU: the time from the first GPU work of an iteration to its last, with the gaps between kernels. */
    | "span"
    /** GPU: at least one kernel or copy ran. */
    | "busy"
    /** GPU: no kernel or copy ran. */
    | "idle"
    /** Causes that are too small for a row. */
    | "other"
    /** Time about which the record has no information. */
    | "unknown";

/** A function of the host, and the location of its code. */
export interface Location {
    /** The name of the function: Python's qualified name, or a demangled symbol. */
    function: string;
    /** The path of the source file, as the Python interpreter knows it; `null` for native code. */
    file: string | null;
    /** The first line of the function in the source file; `null` for native code. */
    line: number | null;
}

/** The type of an activity that overlapped a slow iteration. */
export type OverlapKind =
    /** A garbage collection of Python ran, on any thread. */
    | "gc"
    /** The iteration's thread waited for Python's global interpreter lock (GIL). */
    | "gil_wait"
    /** Another thread held the GIL. */
    | "gil_hold"
    /** The iteration's thread was in a CUDA call that waits for the GPU. */
    | "wait"
    /** A marked Python function ran on the iteration's thread. */
    | "function"
    /** An NVTX range of the program was open on the iteration's thread. */
    | "range";

/** Load balance of an MoE layer whose experts are divided over a number of GPUs. */
export interface LayerOnGpus {
    /** The number of GPUs. Unit: GPUs. */
    gpus: number;
    /** The number of tokens of the busiest GPU, as a multiple of the mean over all GPUs. Unit: multiple of the mean. */
    max_of_mean: number;
}
