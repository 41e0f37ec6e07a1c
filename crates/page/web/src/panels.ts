// The parts of the page that are text: the verdict, the findings, tables and facts.

import { rankColour } from "./charts";
import { Iterations, Timeline, above } from "./data";
import { button, card, el } from "./dom";
import { bytes, count, rate, share, time } from "./format";
import { Place } from "./kinds";
import { Finding, Named, Process, Report, causes, who } from "./report";

/** The figures that come first: how fast, and how evenly. */
export function verdict(process: Process): HTMLElement {
    const { inside } = process;
    if (!inside) return el("p", {}, "No iteration was recorded.");
    const tile = (name: string, value: string, id = "") => el("div", { class: "tile" }, el("dt", {}, name), el("dd", id ? { id } : {}, value));
    const per_second = inside.per_second === null ? "–" : inside.per_second < 1000 ? rate(inside.per_second) : count(inside.per_second);
    return el("div", { class: "verdict" },
        el("p", { class: "big" }, el("strong", { id: "rate" }, per_second), " iterations a second"),
        el("p", { class: "caption" }, windowsLine(process)),
        el("dl", { class: "tiles" },
            tile("p50", time(inside.time.p50_ns), "p50"), tile("p90", time(inside.time.p90_ns), "p90"),
            tile("p99", time(inside.time.p99_ns), "p99"), tile("max", time(inside.time.max_ns), "max")));
}

export function windowName(window: Process["windows"][number]): string {
    return window.first === window.last ? `${window.first}` : `${window.first}–${window.last}`;
}

function windowsLine(process: Process): string {
    const { windows, inside } = process;
    if (!inside) return "";
    const names = windows.slice(0, 3).map(windowName).join(", ") + (windows.length > 3 ? ` and ${windows.length - 3} more` : "");
    const open = windows.some((window) => !window.closed) ? "; never closed" : windows.some((window) => window.cut) ? "; closed by the end of the process" : "";
    const many = windows.length === 1 ? "window" : "windows";
    return `${many} ${names}: ${count(inside.iterations)} iterations in ${time(inside.wall_ns)}${open}`;
}

interface Part { name: string; colour: string; ns: number; why: string }

/**
 * The mean iteration as two bars: what its thread did, and what the GPU did. What its thread spent in calls is known
 * when the timeline is there.
 */
export function breakdown(process: Process, iterations: Iterations | null, timeline: Timeline | null): HTMLElement {
    const { inside, kernel_window: kernels } = process;
    const mean = inside?.time.mean_ns ?? 0;
    if (!inside || mean === 0) return el("div");
    const parts: Part[] = [];
    let left = mean;
    const add = (name: string, colour: string, ns: number, why: string) => {
        const part = Math.min(left, ns);
        left -= part;
        if (part > mean * 0.0005) parts.push({ name, colour, ns: part, why });
    };
    add("waits for the GPU", "wait", inside.wait_share * mean, "calls that wait for the device");
    add("GC", "gc", inside.gc_share * mean, "Python's garbage collection, on any thread");
    add("GIL wait", "gil-wait", inside.gil_wait_share * mean, "waits for Python's global lock");
    const calls = iterations && timeline ? hostCalls(iterations, timeline) : null;
    if (calls !== null) add("CUDA calls", "launch", calls, "launches, copies and other calls of its thread");
    const code = process.python ? "Python and other code" : "other code";
    const rest: Part = { name: code, colour: "host", ns: left, why: "the rest" };
    const bars = [bar("Host", mean, [...parts, rest])];
    if (inside.gpu_share !== null) {
        const gpu: Part[] = [];
        const busy = (inside.gpu_share ?? 0) * mean;
        // Events say when an iteration's work began and ended, and kernels what lay between. Where kernels alone
        // were taken, the share is theirs already.
        const gaps = kernels && kernels.wall_ns > 0 ? (kernels.gaps_ns / kernels.wall_ns) * mean : 0;
        const within = inside.gpu_from === "kernels" ? 0 : Math.min(busy, gaps);
        gpu.push(kernels ? { name: "busy", colour: "kernel", ns: busy - within, why: "kernels or copies ran" }
            : { name: "GPU time", colour: "kernel", ns: busy, why: "from the first work to the last, with what gaps there are" });
        gpu.push({ name: "launch gaps", colour: "gap", ns: Math.min(gaps, mean - busy + within), why: "between two kernels or copies" });
        const idle = mean - gpu.reduce((sum, part) => sum + part.ns, 0);
        gpu.push({ name: "idle", colour: "idle", ns: Math.max(0, idle), why: "nothing to do" });
        bars.push(bar("GPU", mean, gpu));
    }
    return el("div", { class: "breakdown" },
        el("h2", {}, "Where an iteration's time goes ", el("span", { class: "caption" }, `${time(mean)} in the mean`)), ...bars);
}

function bar(name: string, whole: number, parts: Part[]): HTMLElement {
    const shown = parts.filter((part) => part.ns > 0);
    return el("div", { class: "bar" }, el("b", {}, name),
        el("div", { class: "stack", "aria-hidden": "true" }, ...shown.map((part) =>
            el("i", { style: `flex-grow: ${Math.round((part.ns / whole) * 1e4)}; background: var(--${part.colour})`, title: part.name }))),
        el("ul", { class: "legend" }, ...shown.map((part) => el("li", { title: part.why },
            el("i", { style: `background: var(--${part.colour})` }), `${part.name} `, el("b", {}, share(part.ns / whole))))));
}

/** What the threads of iterations spend in calls to CUDA but for waits, in ns an iteration of the timeline. */
function hostCalls(iterations: Iterations, timeline: Timeline): number | null {
    const order = Array.from(iterations.n, (_, i) => i).sort((a, b) => iterations.start[a] - iterations.start[b]);
    const starts = Float64Array.from(order, (i) => iterations.start[i]);
    const shown = iterations.shown.reduce((sum, one) => sum + one, 0);
    if (!shown) return null;
    let sum = 0;
    for (const track of timeline.tracks) {
        if (track.place !== Place.Thread) continue;
        for (let event = 0; event < track.start.length; event++) {
            const kind = track.kinds[track.kind[event]];
            if (kind.category !== "cuda" || kind.colour === "wait") continue;
            const i = order[above(starts, track.start[event]) - 1];
            if (i === undefined || !iterations.shown[i] || iterations.thread[i] !== track.id) continue;
            if (track.start[event] < iterations.start[i] + iterations.dur[i]) sum += track.dur[event];
        }
    }
    return sum / shown;
}

const VERDICTS: Record<string, number> = { yes: 0, unknown: 1, no: 2 };

const ruleName = (rule: string) => rule.replace(/[-_]/g, " ").replace(/\b(gc|gil|gpu)\b/g, (word) => word.toUpperCase());

/** A number stays with its unit. */
const unbroken = (text: string) => text.replace(/(\d) (%|[mun]?s\b)/g, "$1\u00a0$2");

/** What was found to be wrong comes first; what was looked for in vain is folded. */
export function findings(report: Report): HTMLElement {
    const all = [...report.findings].sort((a, b) => (VERDICTS[a.verdict] ?? 1) - (VERDICTS[b.verdict] ?? 1));
    const yes = all.filter((finding) => finding.verdict === "yes");
    const no = all.filter((finding) => finding.verdict === "no");
    const unknown = all.filter((finding) => finding.verdict !== "yes" && finding.verdict !== "no");
    const item = (finding: Finding) => el("li", { class: `finding ${finding.verdict} ${finding.kind ?? "cause"}` },
        el("h3", {}, ruleName(finding.rule), typeof finding.loss === "number" && finding.verdict === "yes" &&
            el("span", { class: "loss" }, `costs ${share(finding.loss)} of the time`)),
        el("p", {}, unbroken(finding.evidence)),
        finding.verdict !== "no" && finding.advice && el("p", { class: "advice" }, unbroken(finding.advice)));
    const folded = (title: string, list: Finding[]) => list.length > 0 &&
        el("details", {}, el("summary", {}, title), el("ul", { class: "findings" }, ...list.map(item)));
    const made = card("Findings", "",
        yes.length > 0
            ? el("ul", { class: "findings" }, ...yes.map(item))
            : el("p", { class: "none" }, "No cause of slowness was found."),
        folded(`${unknown.length} more would need data that the record lacks`, unknown),
        folded(`${no.length} looked for and not found`, no));
    made.classList.add("findings-card");
    return made;
}

type Cell = string | Node;

function table(heads: string[], rows: Cell[][], words = 1): HTMLElement {
    const align = (at: number): Record<string, string> => (at < words ? {} : { class: "number" });
    return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": heads[0] },
        el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((head, at) => el("th", { scope: "col", ...align(at) }, head)))),
            el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((cell, at) => el("td", align(at), cell)))))));
}

const ROWS = 12;

/** A table of so many rows, and a button for the rest. */
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

export function slowest(process: Process, show: (n: number, dur: number) => void): HTMLElement | null {
    if (process.slowest.length < 2) return null;
    const rows = process.slowest.map((slow): Cell[] => {
        const said = causes(slow).map(({ cause, more }) => `${cause.name} +${time(more)}`);
        return [
            button(`${slow.n}`, `Show iteration ${slow.n} in the timeline`, () => show(slow.n, slow.dur_ns)),
            said.length ? said.join(", ") : el("span", { class: "muted", title: "nothing that was recorded took longer than usual" }, "–"), time(slow.dur_ns),
        ];
    });
    return card("Slowest iterations", "and what took longer in them than on average", table(["iteration", "cause", "took"], rows, 2));
}

function kernels(process: Process): HTMLElement | null {
    const list = process.kernels ?? [];
    if (!list.length) return null;
    const whole = Math.max(1, list.reduce((sum, kernel) => sum + kernel.total_ns, 0));
    const inside = process.kernel_window;
    const caption = inside && inside.iterations > 0
        ? `${count(inside.kernels)} in the ${count(inside.iterations)} iterations that took kernels` : "of kernel windows";
    return longTable("Top kernels", caption, ["kernel", "share", "total", "count", "mean", "longest"], list.map((kernel) => [
        mono(kernel.short_name ?? kernel.name, kernel.name), share(kernel.total_ns / whole), time(kernel.total_ns), count(kernel.count),
        time(kernel.total_ns / Math.max(1, kernel.count)), time(kernel.max_ns),
    ]));
}

function named(title: string, caption: string, head: string, list: Named[], per: number): HTMLElement | null {
    if (!list.length) return null;
    return longTable(title, caption, [head, "a step", "mean", "longest", "total"], list.map((one) => [
        mono(one.name), rate(one.count / Math.max(1, per)), time(one.total_ns / Math.max(1, one.count)), time(one.max_ns), time(one.total_ns),
    ]));
}

/** What the process did in its windows, by name. */
export function tables(process: Process): HTMLElement[] {
    const per = process.inside?.iterations ?? 1;
    const copies = process.copies ?? [];
    const metrics = process.metrics ?? [];
    const python = [...process.gc, process.gil_wait, process.gil_hold].filter((one) => one.count > 0);
    return [
        kernels(process),
        named("CUDA calls", "on all threads, inside windows", "call", process.calls, per),
        copies.length ? longTable("Copies", "by the GPU", ["kind", "count", "bytes", "rate", "total"], copies.map((copy) => [
            copy.kind, count(copy.count), bytes(copy.bytes),
            copy.total_ns > 0 ? `${bytes((copy.bytes / copy.total_ns) * 1e9)}/s` : "–", time(copy.total_ns),
        ])) : null,
        metrics.length ? longTable("GPU metrics", "inside windows", ["metric", "mean", "max", "samples"], metrics.map((metric) => [
            `GPU ${metric.device} ${metric.metric}`, `${metric.mean.toFixed(1)} ${metric.unit ?? ""}`,
            `${metric.max.toFixed(1)} ${metric.unit ?? ""}`, count(metric.samples),
        ])) : null,
        named("NVTX ranges", "of the program", "range", process.ranges, per),
        named("Python functions", "that were marked", "function", process.functions, per),
        named("Python's GC and GIL", "on all threads", "what", python, per),
    ].filter((made) => made !== null);
}

/** Processes side by side. */
export function rankTable(report: Report, current: number, pick: (place: number) => void): HTMLElement {
    const { skew } = report;
    const rows = report.processes.map((process, place): Cell[] => {
        const { inside } = process;
        const name = button(who(report, place), `Show ${who(report, place)}`, () => pick(place));
        name.prepend(el("i", { style: `background: var(--${rankColour(place)})` }));
        if (place === current) name.setAttribute("aria-current", "true");
        if (!inside) return [name, process.host, "", "", "", "", "", ""];
        return [
            name, process.host, inside.per_second === null ? "" : rate(inside.per_second), time(inside.time.p50_ns), time(inside.time.max_ns),
            inside.gpu_share === null ? "" : share(inside.gpu_share), share(inside.wait_share), skew ? count(skew.slowest[place]) : "",
        ];
    });
    return table(["process", "host", "per s", "p50", "max", "GPU", "waits", "slowest"], rows, 2);
}

/** Who is the slowest, how often, and by how much. */
export function rankCaption(report: Report, iterations: number): string {
    const { skew } = report;
    if (!skew) return "they have no iterations in common";
    const most = skew.slowest.indexOf(Math.max(...skew.slowest));
    return `${who(report, most)} was the slowest in ${count(skew.slowest[most])} of ${count(iterations)} iterations; ` +
        `slowest less fastest: ${time(skew.spread.p50_ns)} (p50), ${time(skew.spread.max_ns)} at most`;
}

/** What a reader of the figures has to know of the record. */
export function facts(process: Process): HTMLElement {
    const driver = process.cuda_driver;
    const wall = process.inside?.wall_ns ?? 0;
    const lines: [string, string | string[] | null][] = [
        ["file", process.file], ["command", process.command],
        ["process", [`pid ${process.pid}`, `rank ${process.rank}`, process.host, process.name].filter(Boolean).join(", ")],
        ["ended", { "in order": "in order", "at once": "at once", not: "its end was not seen" }[process.ended] ?? "unknown"],
        ["iteration", process.rule + (process.rule_why ? ` (${process.rule_why})` : "")], ["engine", process.engine],
        ["windows asked for", process.windows_asked],
        ["GPU", process.gpus], ["CUDA driver", driver === null ? null : `${Math.floor(driver / 1000)}.${Math.floor((driver % 1000) / 10)}`],
        ["Python", process.python], ["tllmprof", process.library], ["variables", process.settings],
        ["outside windows", process.outside.iterations > 0 && process.outside.p50_ns !== null
            ? `${count(process.outside.iterations)} iterations, p50 ${time(process.outside.p50_ns)}, p99 ${time(process.outside.p99_ns ?? 0)}, ` +
              `max ${time(process.outside.max_ns ?? 0)}` : null],
        ["events", count(process.events)],
        ["the recorder took", wall > 0 ? `${share(process.own_cost_ns / wall)} of the time` : null],
    ];
    const bad: [string, string | string[] | null][] = [
        ["refused", process.refused], ["damage", process.damage],
        ["dropped", process.dropped > 0 ? `${count(process.dropped)} events: the record was full` : null],
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
