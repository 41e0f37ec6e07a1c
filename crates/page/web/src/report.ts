// The report as `tllmprof report --json` gives it, without its lists of iterations. What other versions may lack
// is optional.

export interface Quantiles { mean_ns: number; p50_ns: number; p90_ns: number; p99_ns: number; max_ns: number }
export interface Named { name: string; count: number; total_ns: number; max_ns: number }
export interface Cause { kind: string; name: string; count: number; ns: number; usual_ns: number }
export interface Slow { n: number; start_ns: number; dur_ns: number; overlaps: Cause[] }
export interface Sum {
    iterations: number; per_second: number | null; wall_ns: number; time: Quantiles;
    gpu: Quantiles | null; gpu_from?: string; gpu_share: number | null; wait: Quantiles; with_kernels?: Quantiles | null; without_kernels?: Quantiles | null;
    wait_share: number; gil_wait_share: number; gc_share: number; launches: number; calls: number;
}
export interface Finding {
    rule: string; verdict: string; evidence: string; advice: string;
    /** `cause`, `bound` or `symptom`. */
    kind?: string;
    /** The part of the iterations' time that is lost to it. */
    loss?: number | null;
}
export interface KernelSum { iterations: number; busy_ns: number; wall_ns: number; kernels: number; gaps_ns: number; dropped: number }
export interface Routing {
    mean: number;
    layers: {
        layer: number; name: string | null; tokens: number; max_of_mean: number; idle: number; experts: number[];
        gpus: { gpus: number; max_of_mean: number }[];
    }[];
}
export interface Process {
    file: string; pid: number; parent: number; host: string; rank: number; command: string; name: string;
    rule: string; rule_why: string; engine: string; library: string; python: string; gpus: string[];
    cuda_driver: number | null; ended: string; clock_tied_ns: number | null; windows_asked: string;
    windows: { first: number; last: number; closed: boolean; cut: boolean }[];
    inside: Sum | null;
    outside: { iterations: number; p50_ns: number | null; p90_ns: number | null; p99_ns: number | null; max_ns: number | null };
    slowest: Slow[]; calls: Named[]; calls_counted: { name: string; inside: number; outside: number }[];
    gc: Named[]; gc_collected: number; gil_wait: Named; gil_hold: Named; gil_forced: number; gil_handoffs: number;
    functions: Named[]; ranges: Named[]; threads: { tid: number; name: string | null; gil_hold_ns: number }[];
    settings: string[]; refused: string[]; events: number; dropped: number; own_cost_ns: number;
    gpu_times_lost: number; damage: string | null; left_out: number;
    kernels?: (Named & { short_name?: string; min_ns?: number })[];
    copies?: { kind: string; count: number; total_ns: number; bytes: number }[];
    kernel_window?: KernelSum | null;
    routing?: Routing | null;
    gpu_metrics: { device: number; metric: string; unit: string; mean: number; max: number; samples: number }[];
}
export interface Report {
    processes: Process[];
    skew: { spread: Quantiles; slowest: number[] } | null;
    findings: Finding[];
}

/** What tells a process from the others. */
export function who(report: Report, place: number): string {
    const process = report.processes[place];
    const ranks = new Set(report.processes.map((other) => other.rank));
    return ranks.size === report.processes.length ? `rank ${process.rank}` : `pid ${process.pid}`;
}

/** Overlaps under this part of an iteration are no cause of anything. */
const CAUSE = 0.02;

/** What made an iteration slow: what took longer in it than in the mean one, as the text report tells it. */
export function causes(slow: Slow): { cause: Cause; more: number }[] {
    const worth = slow.overlaps
        .map((cause) => ({ cause, more: Math.max(0, cause.ns - cause.usual_ns) }))
        .filter(({ more }) => more > slow.dur_ns * CAUSE);
    const inner = worth.filter(({ cause }) => ["gc", "gil_wait", "wait"].includes(cause.kind));
    const explained = inner.reduce((sum, { more }) => sum + more, 0);
    // A collection or a wait says more than the function that it happened in.
    const outer = worth.filter(({ cause, more }) => ["function", "range"].includes(cause.kind) && more / 2 > explained);
    return [...inner, ...outer];
}
