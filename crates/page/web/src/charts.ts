// Draws the charts of iterations with the library uPlot.

import uPlot from "uplot";
import { Data, Process } from "./contract";
import { isTimed, Iterations, SkewSteps } from "./data";
import { colour, el } from "./dom";
import { change, count, time } from "./format";
import { batchText, hidden, phaseBars, topOf } from "./phases";
import { axis, BEYOND, durations, most, mount, tipAt } from "./plot";

/**
 * The causes that a bar shows as parts of an iteration's time, from the bottom of the bar to the
 * top.
 */
const CAUSES: readonly { label: string; colour: string; of: (iterations: Iterations, i: number) => number }[] = [
    { label: "waits for the GPU", colour: "wait", of: ({ wait }, i) => wait[i] },
    { label: "GIL wait", colour: "gil-wait", of: ({ gil }, i) => gil[i] },
    { label: "GC", colour: "gc", of: ({ gc }, i) => gc[i] },
    { label: "launching", colour: "launch", of: ({ launching }, i) => launching[i] },
    { label: "waiting for a processor", colour: "metric", of: ({ delayed }, i) => delayed[i] },
    { label: "asleep or blocked", colour: "gil-hold", of: ({ blocked }, i) => blocked[i] },
];

/**
 * Returns the parts of an iteration's bar, from the bottom to the top. `upTo` returns the end of a
 * part, in ns. Parts that would exceed the iteration's duration are cut. Time without a cause
 * counts as code, which is divided into Python code and other code if the iteration has sampled
 * stacks.
 */
export function heaped(iterations: Iterations): { label: string; colour: string; upTo: (i: number) => number }[] {
    const { worked, python, native } = iterations;
    const there = CAUSES.filter(({ of }) => worked.some((_, i) => of(iterations, i) > 0));
    const below = (i: number, parts = there) => Math.min(worked[i], parts.reduce((sum, { of }) => sum + of(iterations, i), 0));
    const code = (i: number, samples: number) => below(i) + (worked[i] - below(i)) * samples / Math.max(1, python[i] + native[i]);
    const sampled = [
        { label: "Python code", colour: "python", count: python, upTo: (i: number) => code(i, python[i]) },
        { label: "other code, by samples", colour: "call", count: native, upTo: (i: number) => code(i, python[i] + native[i]) },
    ].filter(({ count }) => count.some((samples) => samples > 0));
    return [
        ...there.map(({ label, colour }, at) => ({ label, colour, upTo: (i: number) => below(i, there.slice(0, at + 1)) })),
        ...sampled,
        { label: sampled.length ? "code without a sample" : "code of the host", colour: "host", upTo: (i: number) => worked[i] },
    ];
}

const HEIGHT = 264;
/** Maximum number of iterations that are drawn as columns. For more iterations, areas are drawn. */
const COLUMNS = 220;
const bar = (x: number, places: number[]) => places[Math.round(x)];

/**
 * Draws the chart of iterations in their order. It shows the duration of each, coloured by phase of
 * the batch or by cause.
 */
export function iterationChart(
    place: HTMLElement, process: Process, iterations: Iterations, by_phase: boolean, pick: (place: number) => void,
): uPlot | null {
    const length = iterations.n.length;
    const time_of = process.inside?.time;
    if (!length || !time_of) return null;
    // For each position of the x axis, the index of the iteration there. -1 stands for a gap between two windows, or
    // for missing iterations.
    const places: number[] = [];
    iterations.windows.forEach(([from, to], window) => {
        if (window > 0 && to > from) places.push(-1);
        for (let i = from; i < to; i++) {
            if (i > from && iterations.n[i] > iterations.n[i - 1] + 1) places.push(-1);
            places.push(i);
        }
    });
    const x = places.map((_, at) => at);
    const columns = places.length <= COLUMNS;
    const column = (of: (i: number) => number | null) => places.map((i) => (i < 0 ? null : of(i)));
    const { dur, idle, worked, qualifies } = iterations;
    // The value that is drawn for an iteration that the figures leave out: columns leave a gap, and areas fall to 0.
    const none = columns ? null : 0;
    const counted = (of: (i: number) => number) => column((i) => (qualifies[i] ? of(i) : none));
    // Use the GPU times that CUDA events measured or, if there are none, those from kernels.
    const gpu = iterations.gpu.map((ns, i) => (Number.isNaN(ns) ? iterations.busy[i] : ns));
    const parts: { label: string; colour: string; values: (number | null)[] }[] = by_phase ? [] : [
        { label: "waits for requests", colour: "idle", values: column((i) => (idle[i] > 0 ? dur[i] : none)) },
        { label: "left out", colour: "missing", values: column((i) => (qualifies[i] ? none : worked[i])) },
        ...heaped(iterations).map(({ label, colour, upTo }) => ({ label, colour, values: counted(upTo) })).reverse(),
    ];
    const has_gpu = !by_phase && gpu.some((value) => !Number.isNaN(value));
    const line = column((i) => (Number.isNaN(gpu[i]) ? null : gpu[i]));
    // A line needs at least two points. So a measured iteration whose neighbours were not measured
    // is drawn as a point.
    const is_none = (at: number) => (line[at] ?? null) === null;
    const alone = x.filter((at) => !is_none(at) && is_none(at - 1) && is_none(at + 1));
    const top = by_phase ? topOf(process) : time_of.max_ns > BEYOND * most(time_of) ? most(time_of) * (BEYOND * 0.6) : time_of.max_ns * 1.12;
    const bars = columns ? uPlot.paths.bars?.({ size: [0.86, 60], align: 0 }) : undefined;
    const tip = el("div", { class: "tip", hidden: "" });
    const said = (i: number) => [
        `iteration ${iterations.n[i]} · ${time(worked[i])}${idle[i] > 0 ? ` · and ${time(idle[i])} waiting for requests` : ""}${qualifies[i] ? "" : " · left out"}`,
        batchText(iterations, i),
        [
            `waits for the GPU ${time(iterations.wait[i])}`, ...CAUSES.slice(1).map(({ label, of }) => of(iterations, i) > 0 && `${label} ${time(of(iterations, i))}`),
            !Number.isNaN(gpu[i]) && `${Number.isNaN(iterations.gpu[i]) ? "GPU busy" : "GPU time"} ${time(gpu[i])}`,
            !isTimed(iterations, i) && "GPU time not taken",
        ].filter(Boolean).join(" · "),
    ];
    const chart = mount(place, {
        height: HEIGHT, legend: { show: false }, padding: [10, 42, 0, 0],
        scales: { x: { time: false, range: (_, min, max) => [min - 0.5, max + 0.5] }, y: { range: [0, top] } },
        cursor: { points: { show: false }, y: false, drag: { x: true, y: false } },
        axes: [
            axis("iteration", {
                grid: { show: false }, splits: (chart) => whole(chart, places.length),
                values: (_, splits) => splits.map((x) => (bar(x, places) >= 0 ? String(iterations.n[bar(x, places)]) : "")), size: 26,
            }),
            axis("", { labelSize: 0, size: 56, values: (_, splits) => durations(splits) }),
        ],
        series: [
            {},
            ...(by_phase ? [{ label: "iterations", paths: () => null, points: { show: false } } satisfies uPlot.Series] : []),
            ...parts.map((part): uPlot.Series => ({
                label: part.label, paths: bars, points: { show: false }, width: 0, fill: () => colour(part.colour),
            })),
            ...(has_gpu ? [{
                label: "GPU time", stroke: () => colour("gpu-line"), width: columns ? 2 : 1.5,
                points: { show: true, size: 4, fill: () => colour("gpu-line"), filter: () => alone },
            } satisfies uPlot.Series] : []),
        ],
        hooks: {
            drawAxes: by_phase ? [(chart) => phaseBars(chart, iterations, places)] : [],
            draw: [(chart) => {
                levels(chart, [["p50", time_of.p50_ns], ["p99", time_of.p99_ns]]);
                place.dataset.labelled = JSON.stringify(outliers(chart, process, iterations, by_phase, places, top));
            }],
            setCursor: [(chart) => {
                const i = places[chart.cursor.idx ?? -1];
                tip.hidden = i === undefined || i < 0 || (chart.cursor.left ?? -1) < 0;
                if (tip.hidden) return;
                const [name, ...rest] = said(i);
                tip.replaceChildren(el("b", {}, name), ...rest.map((line) => line && el("span", {}, line)).filter(Boolean));
                tipAt(tip, chart, place);
            }],
        },
    }, [x, ...(by_phase ? [column((i) => worked[i])] : []), ...parts.map((part) => part.values), ...(has_gpu ? [line] : [])] as uPlot.AlignedData);
    place.append(tip);
    let down = 0;
    chart.over.addEventListener("mousedown", (event) => (down = event.clientX));
    chart.over.addEventListener("click", (event) => {
        const i = places[chart.cursor.idx ?? -1];
        if (Math.abs(event.clientX - down) < 4 && i !== undefined && i >= 0) pick(i);
    });
    place.dataset.iterations = String(length);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `Times of ${count(length)} iterations: half take up to ${time(time_of.p50_ns)}, ` +
        `the longest ${time(time_of.max_ns)}. The slowest are listed below.`);
    return chart;
}

/** Returns the positions of an axis's ticks, which are at whole numbers. */
function whole(chart: uPlot, length: number): number[] {
    const min = Math.max(0, Math.ceil(chart.scales.x.min ?? 0));
    const max = Math.min(length - 1, Math.floor(chart.scales.x.max ?? 0));
    const room = Math.max(1, Math.floor(chart.width / 70));
    const least = Math.max(1, (max - min) / room);
    const power = 10 ** Math.floor(Math.log10(least));
    const step = Math.max(1, power * ([1, 2, 5].find((digit) => digit * power >= least) ?? 10));
    const splits = [];
    for (let x = Math.ceil(min / step) * step; x <= max; x += step) splits.push(x);
    return splits;
}

function levels(chart: uPlot, values: [string, number | null][]) {
    const { ctx: context, bbox } = chart;
    const ratio = devicePixelRatio;
    context.save();
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    let before = Infinity;
    for (const [name, value] of values) {
        if (value === null) continue;
        const y = Math.round(chart.valToPos(value, "y", true));
        if (y < bbox.top) continue;
        context.strokeStyle = context.fillStyle = colour("ink");
        context.globalAlpha = 0.75;
        context.setLineDash([4 * ratio, 3 * ratio]);
        context.lineWidth = ratio;
        context.beginPath();
        context.moveTo(bbox.left, y);
        context.lineTo(bbox.left + bbox.width, y);
        context.stroke();
        context.globalAlpha = 1;
        if (before - y > 12 * ratio) context.fillText(name, bbox.left + bbox.width + 6 * ratio, y);
        before = y;
    }
    context.restore();
}

/**
 * Writes labels with the largest cause at the slowest iterations, as far as there is room. Returns
 * the numbers of the iterations that got a label.
 */
function outliers(
    chart: uPlot, process: Process, iterations: Iterations, by_phase: boolean, places: number[], top: number,
): number[] {
    const { ctx: context, bbox } = chart;
    const ratio = devicePixelRatio;
    const p50 = process.inside?.time.p50_ns ?? 0;
    context.save();
    context.font = `${11 * ratio}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const marks = process.slowest.flatMap((slow) => {
        const took = slow.dur_ns - slow.idle_ns;
        const at = took < 1.25 * p50 ? -1
            : places.findIndex((i) => i >= 0 && iterations.n[i] === slow.n && iterations.dur[i] === slow.dur_ns);
        if (at < 0 || by_phase && hidden.has(iterations.phase[places[at]]) || at < (chart.scales.x.min ?? 0) || at > (chart.scales.x.max ?? 0)) return [];
        const over = took > top;
        const y = chart.valToPos(Math.min(took, top), "y", true) + (over ? 5 * ratio : 0);
        return [{ slow, cause: slow.causes[0], over, x: chart.valToPos(at, "x", true), y }];
    });
    const taken: { x0: number; x1: number; y: number }[] = [];
    for (const { over, x, y } of marks) {
        taken.push({ x0: x - 5 * ratio, x1: x + 5 * ratio, y });
        context.fillStyle = colour("ink");
        context.beginPath();
        if (over) {
            context.moveTo(x, y - 5 * ratio);
            context.lineTo(x - 5 * ratio, y + 3 * ratio);
            context.lineTo(x + 5 * ratio, y + 3 * ratio);
        } else context.arc(x, y, 3 * ratio, 0, 7);
        context.fill();
    }
    // The longest iteration always gets a label, even if there is only room for a short one.
    const longest = marks.reduce((longest, one) => (one.slow.dur_ns - one.slow.idle_ns > longest ? one.slow.dur_ns - one.slow.idle_ns : longest), 0);
    const named: number[] = [];
    for (const { slow, cause, over, x, y } of marks) {
        const took = slow.dur_ns - slow.idle_ns;
        const is_longest = took === longest;
        const why = cause && `${change(cause.more_ns)} ${cause.cause}${cause.detail === null ? "" : ` (${cause.detail})`}`;
        const whole = [(over || is_longest) && time(took), why].filter(Boolean).join(" · ");
        const texts = [whole, ...(is_longest ? [[time(took), cause?.cause].filter(Boolean).join(" · "), time(took)] : [])].filter(Boolean);
        const places = texts.flatMap((text) => {
            const width = context.measureText(text).width;
            return (is_longest ? [0, 14, 28, -14] : [0]).flatMap((down) => [x + 8 * ratio, x - 8 * ratio - width].map((x0) =>
                ({ text, x0, y: y + down * ratio, box: { x0: x0 - 2 * ratio, x1: x0 + width + 4, y: y + down * ratio } })));
        });
        const has_room = ({ box }: (typeof places)[number]) => box.x0 >= bbox.left && box.x1 <= bbox.left + bbox.width && box.y >= bbox.top &&
            !taken.some((other) => Math.abs(other.y - box.y) < 14 * ratio && other.x0 < box.x1 && box.x0 < other.x1);
        const found = places.find(has_room) ?? (is_longest ? places[places.length - 1] : undefined);
        if (!found) continue;
        taken.push(found.box);
        context.fillStyle = colour("surface");
        context.globalAlpha = 0.82;
        context.fillRect(found.box.x0, found.y - 7 * ratio, found.box.x1 - found.box.x0, 14 * ratio);
        context.globalAlpha = 1;
        context.fillStyle = colour("ink");
        context.fillText(found.text, found.x0, found.y);
        named.push(slow.n);
    }
    context.restore();
    return named;
}

/** Draws the histogram of iteration times. */
export function histogram(place: HTMLElement, process: Process, iterations: Iterations): uPlot | null {
    const time_of = process.inside?.time;
    if (!time_of || !iterations.worked.length) return null;
    const times = iterations.worked.filter((_, i) => iterations.qualifies[i]);
    let min = Infinity;
    for (const value of times) min = Math.min(min, value);
    const far = time_of.max_ns > BEYOND * most(time_of);
    // Let the axis cover at least a hundredth of the shortest time, so that nearly equal times do
    // not spread over all bars.
    const max = Math.max(far ? most(time_of) * 2 : time_of.max_ns, min * 1.01, min + 1);
    const bins = Math.max(8, Math.min(48, Math.round(Math.sqrt(times.length) * 2)));
    const width = (max - min) / bins;
    const counts = new Array<number>(bins).fill(0);
    for (const value of times) counts[Math.min(bins - 1, Math.floor((value - min) / width))]++;
    const x = counts.map((_, bin) => min + (bin + 0.5) * width);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `How the times of iterations are distributed, from ${time(min)} to ${time(time_of.max_ns)}.`);
    return mount(place, {
        height: 152, legend: { show: false }, padding: [16, 26, 0, 0],
        cursor: { show: false },
        scales: { x: { time: false, range: [min - width * 0.5, max + width * 0.5] }, y: { range: [0, Math.max(...counts) * 1.06] } },
        axes: [
            axis("", { labelSize: 0, grid: { show: false }, size: 26, space: 62, values: (_, splits) => durations(splits) }),
            axis("", { labelSize: 0, size: 36, values: (_, splits) => splits.map((v) => (Number.isInteger(v) ? short(v) : "")) }),
        ],
        series: [{}, {
            label: "iterations", paths: uPlot.paths.bars?.({ size: [1, 60], align: 0, gap: 1 }), points: { show: false }, width: 0,
            fill: () => colour("accent-soft"),
        }],
        hooks: { draw: [(chart) => {
            const { ctx: context, bbox } = chart;
            const ratio = devicePixelRatio;
            context.save();
            context.font = `${11 * ratio}px system-ui, sans-serif`;
            context.textAlign = "center";
            context.textBaseline = "alphabetic";
            let before = -Infinity;
            for (const [name, value] of [["p50", time_of.p50_ns], ["p90", time_of.p90_ns], ["p99", time_of.p99_ns]] as const) {
                if (value === null) continue;
                const at = chart.valToPos(value, "x", true);
                if (at > bbox.left + bbox.width) continue;
                context.fillStyle = colour("ink");
                context.globalAlpha = 0.75;
                context.fillRect(Math.round(at), bbox.top - 3 * ratio, ratio, bbox.height + 3 * ratio);
                context.globalAlpha = 1;
                if (at - before > 26 * ratio) {
                    context.fillText(name, at, bbox.top - 6 * ratio);
                    before = at;
                }
            }
            context.restore();
        }] },
    }, [x, counts]);
}

const short = (value: number) => (value >= 10_000 ? `${value / 1000}k` : count(value));

/** Returns the name of the CSS variable with the colour of a rank's line. */
export const rankColour = (place: number) => `rank-${place % 8}`;

/**
 * Draws the chart of ranks: iterations by number, a line for each process, and a strip that shows
 * the slowest process of each iteration.
 */
export function rankChart(
    place: HTMLElement, data: Data, all: Iterations[], steps: SkewSteps, current: () => number, pick: (n: number) => void,
): uPlot | null {
    const numbers = new Set<number>();
    for (const iterations of all) iterations.n.forEach((n) => numbers.add(n));
    const x = [...numbers].sort((a, b) => a - b);
    if (!x.length) return null;
    const index = new Map(x.map((n, at) => [n, at]));
    const lines = all.map((iterations) => {
        const line = new Array<number | null>(x.length).fill(null);
        // Leave out iterations that did not reach their end (`cut`), because their times say nothing about the speed
        // of the rank. Also leave out iterations that do not count in figures.
        iterations.n.forEach((n, i) => { if (!iterations.cut[i] && iterations.qualifies[i]) line[index.get(n) ?? 0] = iterations.worked[i]; });
        return line;
    });
    const slowest = new Array<number>(x.length).fill(-1);
    steps.n.forEach((n, at) => (slowest[index.get(n) ?? 0] = steps.slowest[at] < all.length ? steps.slowest[at] : -1));
    const spans = lines.flat().filter((value): value is number => value !== null).sort((a, b) => a - b);
    const p90 = spans[Math.floor(spans.length * 0.9)] ?? 1;
    const max = spans[spans.length - 1] ?? 1;
    const top = max > BEYOND * p90 ? p90 * BEYOND * 0.6 : max * 1.06;
    const low = spans[0] ?? 0;
    const bottom = low > top * 0.5 ? low - (top - low) * 0.12 : 0;
    const tip = el("div", { class: "tip", hidden: "" });
    place.dataset.slowest = JSON.stringify(all.map((_, rank) => slowest.filter((other) => other === rank).length));
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `Times of iterations in ${all.length} processes. The table beside it has their figures.`);
    const chart = mount(place, {
        height: 210, legend: { show: false }, padding: [8, 12, 0, 0],
        scales: { x: { time: false, range: (_, min, max) => [min - 0.5, max + 0.5] }, y: { range: [bottom, top] } },
        cursor: { points: { show: false }, y: false, drag: { x: true, y: false } },
        axes: [
            axis("", {
                labelSize: 0, gap: 14, grid: { show: false }, splits: (chart) => whole(chart, x.length), size: 32,
                values: (_, splits) => splits.map((at) => String(x[Math.round(at)] ?? "")),
            }),
            axis("", { labelSize: 0, size: 62, values: (_, splits) => durations(splits) }),
        ],
        series: [{}, ...lines.map((_, rank): uPlot.Series => ({
            label: data.processes[rank].name, points: { show: false }, spanGaps: false,
            stroke: () => colour(rankColour(rank)), width: 1.75, alpha: 1,
        }))],
        hooks: {
            draw: [(chart) => {
                // Draw the strip with the slowest rank of each iteration, under the lines.
                const { ctx: context, bbox } = chart;
                const ratio = devicePixelRatio;
                const wide = bbox.width / ((chart.scales.x.max ?? 1) - (chart.scales.x.min ?? 0));
                const from = Math.max(0, Math.ceil(chart.scales.x.min ?? 0));
                const to = Math.min(x.length - 1, Math.floor(chart.scales.x.max ?? 0));
                for (let at = from; at <= to; at++) {
                    if (slowest[at] < 0) continue;
                    context.fillStyle = colour(rankColour(slowest[at]));
                    const left = chart.valToPos(at - 0.5, "x", true);
                    context.fillRect(left, bbox.top + bbox.height + 3 * ratio, Math.max(wide - (wide > 4 ? 1 : 0), 1), 8 * ratio);
                }
            }],
            setCursor: [(chart) => {
                const at = chart.cursor.idx ?? -1;
                tip.hidden = x[at] === undefined || (chart.cursor.left ?? -1) < 0;
                if (tip.hidden) return;
                const shown = [...new Set([slowest[at], current()])].filter((rank) => rank >= 0 && lines[rank][at] !== null);
                tip.replaceChildren(el("b", {}, `iteration ${x[at]}`), ...shown.map((rank) =>
                    el("span", {}, `${data.processes[rank].name} ${time(lines[rank][at] ?? 0)}${rank === slowest[at] ? ", the slowest" : ""}`)));
                tipAt(tip, chart, place);
            }],
        },
    }, [x.map((_, at) => at), ...lines]);
    place.append(tip);
    chart.over.addEventListener("click", () => {
        const n = x[chart.cursor.idx ?? -1];
        if (n !== undefined) pick(n);
    });
    return chart;
}
