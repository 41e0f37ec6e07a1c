// The parts of the page that consist of text: the main figures, the findings, the tables, and data
// about the process.

import { rankColour } from "./charts";
import { Data, Difference, MeanFigures, Finding, Ledger, LedgerKind, LedgerRow, Named, PhaseSum, Process, ProcessFigures, Report, SizeSum, Slow, Verdict } from "./contract";
import { button, card, el } from "./dom";
import { bytes, change, count, percentile, quantity, rate, share, time } from "./format";

/** Returns the main figures of a process: the rate of its iterations, and how evenly they run. */
export function verdict(process: Process, figures: ProcessFigures): HTMLElement {
    const { inside } = process;
    const left_out = figures.uncounted && el("p", { class: "caption", id: "uncounted" }, figures.uncounted);
    if (!inside) return el("div", {}, el("p", { id: "nothing" }, figures.nothing), left_out);
    const tile = (name: string, value: string, id = "") => el("div", { class: "tile" }, el("dt", {}, name), el("dd", id ? { id } : {}, value));
    const per_second = inside.per_second === null ? "–" : inside.per_second < 1000 ? rate(inside.per_second) : count(inside.per_second);
    return el("div", { class: "verdict" },
        el("p", { class: "big" }, el("strong", { id: "rate" }, per_second), " iterations a second"),
        el("p", { class: "caption" }, windowsLine(process)), left_out,
        el("dl", { class: "tiles" },
            tile("p50", time(inside.time.p50_ns), "p50"), tile("p90", percentile(inside.time.p90_ns), "p90"),
            tile("p99", percentile(inside.time.p99_ns), "p99"), tile("max", time(inside.time.max_ns), "max")));
}

export function windowName(window: Process["windows"][number]): string {
    const numbers = window.first === window.last ? `${window.first}` : `${window.first}–${window.last}`;
    return window.past ? `${numbers} (flight recorder)` : numbers;
}

function windowsLine(process: Process): string {
    const { windows, inside } = process;
    if (!inside) return "";
    const names = windows.slice(0, 3).map(windowName).join(", ") + (windows.length > 3 ? ` and ${windows.length - 3} more` : "");
    const open = windows.some((window) => !window.closed) ? "; never closed" : windows.some((window) => window.cut) ? "; closed by the end of the process" : "";
    const many = windows.length === 1 ? "window" : "windows";
    const left_out = process.unqualified.reduce((sum, { iterations }) => sum + iterations, 0);
    const of = left_out ? ` of ${count(inside.iterations + left_out)}` : "";
    const gaps = windows.reduce((sum, { missing }) => sum + missing, 0);
    const missing = gaps ? `; ${count(gaps)} are missing` : "";
    return `${many} ${names}: ${count(inside.iterations)}${of} iterations in ${time(inside.wall_ns)}${missing}${open}`;
}

/** The colour of each kind of cause, as the name of a CSS variable. */
const COLOURS: Record<LedgerKind, string> = {
    wait: "wait", launch: "launch", copy: "copy", capture: "set", allocation: "set", compilation: "set", call: "call", gc: "gc", gil_wait: "gil-wait",
    function: "python", requests: "idle", code: "host", python: "python", native: "call", blocked: "gil-hold",
    delayed: "metric", span: "gpu-line", busy: "kernel", idle: "idle", other: "gap", unknown: "missing",
};

/** Maximum number of causes that are named next to a bar. The table below lists all of them. */
const NAMED = 6;

/**
 * Creates the parts of the page on the time of iterations by cause: for all windows, and for each
 * window. The figures are the same as in the text output and in `--json`.
 */
export function ledger(process: Process): HTMLElement {
    const { windows } = process;
    if (!process.inside || !process.ledger.host.length) return el("div");
    return el("div", { class: "ledger" },
        el("h2", {}, "Where the time of iterations goes"),
        ...bars(process, process.ledger),
        windows.length > 1 && el("details", {}, el("summary", {}, "By window"), ...windows.flatMap((window) => [
            el("h3", {}, `Window ${windowName(window)}`), el("div", { "data-window": windowName(window) }, ...bars(process, window.ledger)),
        ])));
}

/**
 * Creates the bars of a ledger (time by cause). Each bar states the number of iterations on which
 * it is based.
 */
function bars({ inside }: Process, ledger: Ledger): HTMLElement[] {
    const of = (some: number) => (some < ledger.iterations ? `${count(some)} of ${count(ledger.iterations)} iterations` : "");
    const longer = "recording kernels made them longer";
    const said = (...parts: string[]) => parts.filter(Boolean).join("; ");
    const host = of(ledger.host_iterations) && `${of(ledger.host_iterations)}, those without kernels`;
    const others = ledger.gpu_from === "kernels of other iterations";
    const gpu = of(ledger.gpu_iterations) && `${others ? "of" : "measured in"} ${of(ledger.gpu_iterations)}`;
    const waits = ledger.gpu_from === "waits of the host";
    const plain = ledger.gpu_from === "events" && inside?.gpu_from === "events";
    const how = others ? "by kernels of the others" : waits ? "idle for at least this time" : plain ? "" : longer;
    return [
        ...bar("Host", "host", ledger.host, said(host, ledger.stretched ? longer : "")),
        ...bar("GPU", "gpu", ledger.gpu, said(gpu, how)),
    ];
}

/** Patterns for the parts of a bar that have the same colour because their causes are of the same kind. The patterns
 * distinguish these parts. */
const SHADES: readonly ((of: string, dark: string, pale: string) => string)[] = [
    (of) => of, (_, dark) => dark, (_, __, pale) => pale,
    (of, dark) => `repeating-linear-gradient(45deg, ${of} 0 3px, ${dark} 3px 6px)`,
    (of, _, pale) => `repeating-linear-gradient(-45deg, ${of} 0 3px, ${pale} 3px 6px)`,
    (_, dark, pale) => `repeating-linear-gradient(90deg, ${dark} 0 2px, ${pale} 2px 4px)`,
];

/**
 * Returns the background of each row's part in a bar. Each named row has a different background;
 * the other rows are pale.
 */
function looks(rows: LedgerRow[]): string[] {
    const used = new Map<string, number>();
    return rows.map(({ kind }, place) => {
        // The greys of these kinds are close to the page's background. So they are mixed with `--muted`, the stronger
        // grey of the captions.
        const is_grey = ["idle", "code", "requests"].includes(kind);
        const of = is_grey ? `color-mix(in oklab, var(--${COLOURS[kind]}) 55%, var(--muted))` : `var(--${COLOURS[kind]})`;
        const pale = `color-mix(in oklab, ${of} 45%, var(--surface))`;
        if (place >= NAMED) return `color-mix(in oklab, ${of} 25%, var(--line))`;
        const number = used.get(of) ?? 0;
        used.set(of, number + 1);
        return SHADES[number](of, `color-mix(in oklab, ${of} 62%, var(--ink))`, pale);
    });
}

function bar(title: string, of: string, rows: LedgerRow[], which: string): HTMLElement[] {
    if (!rows.length) return [];
    const look = looks(rows);
    const rest = rows.length - NAMED;
    const parts = rows.map((row, at) =>
        el("i", { style: `flex-grow: ${Math.round(row.share * 1e4)}; background: ${look[at]}`, title: `${row.cause} ${share(row.share)}` }));
    const stack = el("div", { class: "stack", "aria-hidden": "true" }, ...parts);
    /**
     * Creates the list item of a row. While the pointer is over the item, the row's part of the bar
     * is highlighted.
     */
    const item = (row: LedgerRow, at: number) => {
        const made = el("li", {}, el("i", { style: `background: ${look[at]}` }), el("span", {}, `${row.cause} `, el("b", {}, share(row.share))));
        const mark = (is: boolean) => {
            stack.classList.toggle("marked", is);
            parts[at].classList.toggle("mark", is);
        };
        made.addEventListener("mouseenter", () => mark(true));
        made.addEventListener("mouseleave", () => mark(false));
        return made;
    };
    const items = rows.map(item);
    return [
        el("div", { class: "bar", "data-of": of }, el("b", {}, title), stack,
            el("ul", { class: "legend" }, ...items.slice(0, NAMED), which && el("li", { class: "muted" }, which)),
            rest > 0 && el("details", {}, el("summary", {}, `${rest} more`), el("ul", { class: "legend" }, ...items.slice(NAMED)))),
    ];
}

const ruleName = (rule: string) => rule.replace(/[-_]/g, " ").replace(/\b(gc|gil|gpu)\b/g, (word) => word.toUpperCase());

/** Joins numbers and their units by non-breaking spaces, so that they stay on one line. */
const unbroken = (text: string) => text.replace(/(\d) (%|[mµun]?s\b)/g, "$1\u00a0$2").replace(/< (\d)/g, "<\u00a0$1");

/** Creates the list of the findings that hold, followed by a folded list of the other findings. */
export function findings(report: Report): HTMLElement {
    const which = (verdict: Verdict) => report.findings.filter((finding) => finding.verdict === verdict);
    const [yes, no, unknown] = [which("yes"), which("no"), which("unknown")];
    const item = (finding: Finding) => el("li", { class: `finding ${finding.verdict} ${finding.kind}` },
        el("h3", {}, ruleName(finding.rule), finding.loss !== null && finding.verdict === "yes" &&
            el("span", { class: "loss" }, `costs ${finding.loss_is_at_most ? "at most " : finding.loss_is_at_least ? "at least " : ""}${share(finding.loss)} of the time`)),
        el("p", {}, unbroken(finding.evidence)),
        finding.verdict !== "no" && finding.advice && el("p", { class: "advice" }, unbroken(finding.advice)));
    const folded = (title: string, list: Finding[]) => list.length > 0 &&
        el("details", {}, el("summary", {}, title), el("ul", { class: "findings" }, ...list.map(item)));
    const has_losses = yes.some(({ loss }) => loss !== null);
    const made = card("Findings", has_losses ? "time that one finding costs counts for no other" : "",
        yes.length > 0
            ? el("ul", { class: "findings" }, ...yes.map(item))
            : el("p", { class: "none" }, "No cause of slowness was found."),
        folded(`${unknown.length} more would need data that the record lacks`, unknown),
        folded(`${no.length} looked for and not found`, no));
    made.classList.add("findings-card");
    return made;
}

export type Cell = string | Node;

export function table(heads: string[], rows: Cell[][], words = 1): HTMLElement {
    const align = (at: number): Record<string, string> => (at < words ? {} : { class: "number" });
    return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": heads[0] },
        el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head, at) => el("th", { scope: "col", ...align(at) }, head)))),
            el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, at) => el("td", align(at), cell)))))));
}

const ROWS = 12;

/** Creates a table with at most `ROWS` rows, and a button that shows the remaining rows. */
export function longRows(heads: string[], rows: Cell[][], words = 1): HTMLElement[] {
    const first = table(heads, rows.slice(0, ROWS), words);
    if (rows.length <= ROWS) return [first];
    const more = button(`All ${count(rows.length)}`, `Show all ${rows.length} rows`, () => {
        first.replaceWith(table(heads, rows, words));
        more.remove();
    });
    more.classList.add("more");
    return [first, more];
}

const longTable = (title: string, caption: string, heads: string[], rows: Cell[][], words = 1) =>
    card(title, caption, ...longRows(heads, rows, words));

export const mono = (text: string, whole = text) => el("span", { class: "name", title: whole }, text);

/** Maximum number of causes of a slow iteration that have rows of their own. */
const CAUSES = 3;

/**
 * Returns the causes of a slow iteration with their extra times, which add up to the iteration's
 * extra time. Further causes are added up in one row.
 */
function causes({ causes: all, more_ns }: Slow): [string, string, string][] {
    if (!all.length) return [["–", "there is no iteration to compare it with", ""]];
    const said = ({ cause, held_by, detail }: Difference) =>
        `${cause}${held_by === null ? "" : ` (held by ${held_by})`}${detail === null ? "" : ` (${detail})`}`;
    const shown = all.length > CAUSES + 1 ? all.slice(0, CAUSES) : all;
    const rest = all.slice(shown.length);
    const left = shown.reduce((left, one) => left - one.more_ns, more_ns);
    return [
        ...shown.map((one): [string, string, string] => [change(one.more_ns), said(one), ""]),
        ...(rest.length ? [[change(left), `${rest.length} more`, rest.map((one) => `${change(one.more_ns)} ${said(one)}`).join("\n")] as [string, string, string]] : []),
    ];
}

export function slowest(process: Process, show: (n: number, dur: number) => void): HTMLElement | null {
    if (!process.slowest.length) return null;
    const groups = process.slowest.map((slow) => {
        const rows = causes(slow);
        const span = { rowspan: String(rows.length) };
        return rows.map(([more, cause, whole], at) => el("tr", at ? { class: "more-of-it" } : {},
            ...(at ? [] : [
                el("td", span, button(`${slow.n}`, `Show iteration ${slow.n} in the timeline`, () => show(slow.n, slow.dur_ns))),
                el("td", { class: "number", ...span }, time(slow.dur_ns - slow.idle_ns)),
                el("td", { class: "number", ...span }, slow.causes.length ? change(slow.more_ns) : "–"),
            ]),
            el("td", { class: "number" }, more), el("td", { class: "cause", title: whole }, unbroken(cause))));
    });
    const heads = ["iteration", "took", "longer by", "of that", "cause"];
    return card("Slowest iterations", "and what took longer in them than in the mean one", el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Slowest iterations" },
        el("table", { class: "slowest" }, el("thead", {}, el("tr", {}, ...heads.map((head, at) => el("th", { scope: "col", ...(at > 0 && at < 4 ? { class: "number" } : {}) }, head)))),
            el("tbody", {}, ...groups.flat()))));
}

/** Formats a figure; the result is a dash if the figure is `null`, because it is not known. */
const known = (say: (value: number) => string, value: number | null) => (value === null ? "–" : say(value));

/** Returns a description of the repeated blocks of kernels; empty if layers are shown instead. */
function equalBlocks({ blocks, layer_patterns: layers }: Process): string {
    if (blocks === null || layers.length) return "";
    const figures = blocks.mean_ns > 0 ? `, ${time(blocks.mean_ns)} each, ${share(blocks.share)} of all` : "";
    return `; equal blocks: ${count(blocks.block_ns.length)} of ${count(blocks.kernels.length)} kernels${figures}`;
}

function kernels(process: Process, figures: ProcessFigures): HTMLElement | null {
    const { kernels: list, kernel_window: inside } = process;
    if (!list.length) {
        // If the user requested kernels but there are none, show the reason.
        const why = process.refused.find((line) => line.startsWith("no kernels: "));
        return why === undefined ? null : card("Top kernels", why);
    }
    const caption = inside && inside.iterations > 0
        ? `${count(inside.kernels)} in the ${count(inside.iterations)} iterations that took kernels${inside.samples ? ` (${inside.samples.text})` : ""}`
        : "of kernel windows";
    return longTable("Top kernels", caption + equalBlocks(process), ["kernel", "share", "total", "count", "mean", "longest"], list.map((kernel, at) => [
        mono(kernel.short_name, kernel.name), known(share, figures.kernels[at].share), known(time, kernel.total_ns), count(kernel.count),
        known(time, figures.kernels[at].mean_ns), known(time, kernel.max_ns),
    ]));
}

/**
 * Formats the mean number per iteration. If the mean would be rounded to 0, formats the total
 * number instead.
 */
const aStep = (one: Named, { a_step: each }: MeanFigures): string => each < 0.005 ? `${count(one.count)} in all` : rate(each);

function named(title: string, caption: string, head: string, list: Named[], figures: MeanFigures[]): HTMLElement | null {
    if (!list.length) return null;
    return longTable(title, caption, [head, "a step", "mean", "longest", "total"], list.map((one, at) => [
        mono(one.name), aStep(one, figures[at]), time(figures[at].mean_ns), time(one.max_ns), time(one.total_ns),
    ]));
}

const sizeName = ({ min_tokens: least, max_tokens: most }: SizeSum) =>
    most === null ? `${count(least)}+` : most === least ? count(most) : `${count(least)}–${count(most)}`;

/**
 * Creates the table of iteration times by batch: a row for each phase, followed by a row for each
 * range of tokens in that phase.
 */
export function batches({ phases, inside }: Process): HTMLElement | null {
    if (!inside || !phases.length) return null;
    const all = inside.time.mean_ns * inside.iterations;
    const row = (name: Cell, tokens: string, of: PhaseSum | SizeSum): Cell[] => [
        name, tokens, count(of.iterations), time(of.time.p50_ns), percentile(of.time.p90_ns), percentile(of.time.p99_ns), time(of.time.max_ns), share(of.total_ns / all),
    ];
    const rows = phases.flatMap((phase) => [
        row(el("b", {}, phase.phase), phase.sizes.length === 1 ? sizeName(phase.sizes[0]) : "all", phase),
        ...(phase.sizes.length > 1 ? phase.sizes.map((size) => row("", sizeName(size), size)) : []),
    ]);
    return el("div", { id: "batches" }, table(["phase", "tokens", "iterations", "p50", "p90", "p99", "max", "of the time"], rows));
}

/** Creates tables of the activities inside a process's windows, by name. */
export function tables(process: Process, figures: ProcessFigures): HTMLElement[] {
    const { copies, gpu_metrics: metrics } = process;
    const python = [...process.gc, process.gil_wait, process.gil_hold];
    const python_figures = [...figures.gc, figures.gil_wait, figures.gil_hold];
    const seen = (_: unknown, at: number) => python[at].count > 0;
    return [
        kernels(process, figures),
        named("CUDA calls", "on all threads, inside windows", "call", process.calls, figures.calls),
        copies.length ? longTable("Copies", "by the GPU", ["kind", "count", "bytes", "rate", "total"], copies.map((copy, at) => [
            copy.kind, count(copy.count), bytes(copy.bytes),
            ((rate) => (rate === null ? "–" : `${bytes(rate)}/s`))(figures.copies[at]), known(time, copy.total_ns),
        ])) : null,
        metrics.length ? longTable("GPU metrics", "inside windows", ["metric", "mean", "max", "samples"], metrics.map((metric) => [
            `GPU ${metric.device} ${metric.metric}`, quantity(metric.mean, metric.unit), quantity(metric.max, metric.unit), count(metric.samples),
        ])) : null,
        named("NVTX ranges", "of the program", "range", process.ranges, figures.ranges),
        named("Python functions", "that were marked", "function", process.functions, figures.functions),
        named("Python's GC and GIL", "on all threads", "what", python.filter(seen), python_figures.filter(seen)),
    ].filter((made) => made !== null);
}

/** Formats a share; the result is a dash if the share was not measured. */
const measured = (part: number | null) => (part === null ? "–" : share(part));

/** Creates the table of processes. `pick` is called to show another process. */
export function rankTable({ report, processes, of_which }: Data, current: number, pick: (place: number) => void): HTMLElement {
    const { skew } = report;
    const rows = report.processes.map((process, place): Cell[] => {
        const { inside } = process;
        const name = button(processes[place].name, `Show ${processes[place].name}`, () => pick(place));
        name.prepend(el("i", { style: `background: var(--${rankColour(place)})` }));
        if (place === current) name.setAttribute("aria-current", "true");
        if (!inside) return [name, process.host, "", "", "", "", "", "", "", ""];
        return [
            name, process.host, count(inside.iterations), inside.per_second === null ? "" : rate(inside.per_second), time(inside.time.p50_ns), time(inside.time.max_ns),
            measured(process.gpu_busy_share), measured(process.gpu_span_share), share(inside.wait_share), skew && skew.common[place] > 0 ? count(skew.slowest[place]) : "",
        ];
    });
    const made = table(["process", "host", "iters", "per s", "p50", "max", "busy", "span", "waits", "slowest"], rows, 2);
    return el("div", {}, made, ...of_which.map((line) => el("p", { class: "caption" }, line)));
}

/** Returns a sentence about the slowest process: how often it is the slowest, and by how much. */
export function rankCaption({ report, processes, skew: figures }: Data): string {
    const { skew } = report;
    if (!skew || !figures) return "they have no iterations in common";
    const { most_often: most, iterations } = figures;
    const who = most === null ? `none was slower than the others in ${count(iterations)} iterations`
        : `${processes[most].name} was the slowest in ${count(skew.slowest[most])} of ${count(iterations)} iterations`;
    return `${who}; slowest less fastest: ${time(skew.spread.p50_ns)} (p50), ${time(skew.spread.max_ns)} at most`;
}

/** Returns data about the process and its record that a reader needs to interpret the figures. */
export function facts(process: Process, figures: ProcessFigures): HTMLElement {
    const driver = process.cuda_driver;
    const lines: [string, string | string[] | null][] = [
        ["file", process.file], ["command", process.command],
        ["process", [`pid ${process.pid}`, process.rank > 0 || process.rank_source !== null ? `rank ${process.rank}` : "", process.in_groups, process.host, process.name].filter(Boolean).join(", ")],
        ["ended", { "in order": "in order", "at once": "at once", not: "its end was not seen", "?": "unknown" }[process.ended]],
        ["record", process.state === "unfinished" ? "unfinished: its process was killed or still runs" : process.state],
        ["iteration", process.rule + (process.rule_why ? ` (${process.rule_why})` : "")], ["engine", process.engine],
        ["windows asked for", process.windows_asked],
        ["GPU", process.gpus.map((gpu) => gpu.name)],
        ["GPU busy", process.gpu_busy_share === null ? null : `${share(process.gpu_busy_share)} of the time, by kernels and copies`],
        ["GPU span", process.gpu_span_share === null ? null : `${share(process.gpu_span_share)} of the time, from an iteration's first work to its last`],
        ["CUDA driver", driver === null ? null : `${Math.floor(driver / 1000)}.${Math.floor((driver % 1000) / 10)}`],
        ["Python", process.python], ["tllmprof", process.library], ["variables", process.settings],
        ["outside windows", process.outside.iterations > 0 && process.outside.p50_ns !== null
            ? `${count(process.outside.iterations)} iterations, p50 ${time(process.outside.p50_ns)}, p99 ${percentile(process.outside.p99_ns)}, ` +
              `max ${time(process.outside.max_ns ?? 0)}` : null],
        ["events", count(process.events)],
        ["the recorder took", figures.own_share === null ? null : `${share(figures.own_share)} of the time`],
    ];
    const bad: [string, string | string[] | null][] = [
        ["refused", process.refused], ["damage", process.damage],
        ["dropped", process.dropped > 0 ? `${count(process.dropped)} events: the record was full` : null],
        ["older windows", process.windows_dropped > 0 ? `${count(process.windows_dropped)} made room for later ones` : null],
        ["left out", process.left_out > 0 ? `${count(process.left_out)} things were too many for this report` : null],
        ["GPU times lost", process.gpu_times_lost > 0 ? count(process.gpu_times_lost) : null],
        ["clock", process.clock_tied_ns !== null ? `times are unsure: it was tied for ${time(process.clock_tied_ns)} alone` : null],
    ];
    const row = (mark: string) => ([name, value]: [string, string | string[] | null]) => {
        const values = (Array.isArray(value) ? value : [value]).filter((text): text is string => !!text);
        return values.length ? [el("dt", { class: mark }, name), el("dd", {}, ...values.map((text) => el("div", {}, text)))] : [];
    };
    return card("The record", "", el("dl", { class: "facts" }, ...bad.flatMap(row("bad")), ...lines.flatMap(row(""))));
}
