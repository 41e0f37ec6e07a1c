// Phases of batches (prefill, decode, …) with their colours, and the chart of time against number
// of tokens.

import uPlot from "uplot";
import { Process } from "./contract";
import { Iterations } from "./data";
import { button, colour, el } from "./dom";
import { count, time } from "./format";
import { axis, BEYOND, durations, most, mount, tipAt } from "./plot";

/** The names of phases. The page's data contain indexes in this list. */
export const PHASES = ["unknown", "prefill", "decode", "mixed", "idle", "draft"] as const;

/** Opacity of iterations that do not count in figures. */
const PALE = 0.35;

export const phaseColour = (phase: number) => `phase-${PHASES[phase]}`;

/** Returns a description of the iteration's batch; empty if the batch is not known. */
export function batchText({ phase, requests, tokens, prefill }: Iterations, i: number): string {
    const name = PHASES[phase[i]];
    if (name === "unknown") return "";
    if (name === "draft") return "a pass of a draft model";
    const decode = tokens[i] - prefill[i];
    const of = name === "mixed" ? `${count(prefill[i])} prefill and ${count(decode)} decode tokens` : `${count(tokens[i])} ${tokens[i] === 1 ? "token" : "tokens"}`;
    return `${name}: ${count(requests[i])} ${requests[i] === 1 ? "request" : "requests"}, ${of}`;
}

/** Returns the number of iterations in each phase. */
export function phaseCounts({ phase }: Iterations): number[] {
    const counts = PHASES.map(() => 0);
    for (const one of phase) counts[one]++;
    return counts;
}

/** The phases that the reader has hidden in the charts. */
export const hidden = new Set<number>();

/**
 * Creates the legend: a button for each phase in the chart, which shows or hides the phase. With
 * `of_points`, only phases with tokens are listed.
 */
export function phaseLegend(iterations: Iterations, of_points: boolean, changed: (name: string, list: Element) => void): HTMLElement {
    const counts = phaseCounts(iterations);
    const entry = (phase: number) => {
        const name = PHASES[phase];
        const made = button("", `Show or hide ${name} iterations`, () => {
            if (!hidden.delete(phase)) hidden.add(phase);
            changed(name, made);
        });
        made.append(shape(phase), `${name} `, el("b", {}, count(counts[phase])));
        made.setAttribute("aria-pressed", String(!hidden.has(phase)));
        return el("li", { "data-phase": name }, made);
    };
    const there = (of_points ? [1, 3, 2] : [1, 3, 2, 4, 5, 0]).filter((phase) => counts[phase] > 0);
    const has_pale = iterations.qualifies.some((one, i) => !one && (!of_points || iterations.tokens[i] > 0));
    return el("ul", { class: "legend phases", "aria-label": "Phases" }, ...there.map(entry),
        has_pale && el("li", {}, el("i", { class: "pale" }), "pale: left out of the figures"));
}

/**
 * Creates the mark of a phase for the legend. It looks like the points of that phase in the chart.
 */
function shape(phase: number): SVGSVGElement {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "-6 -6 12 12");
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", ["M-4,-4H4V4H-4Z", "M0,-5L5,4H-5Z", "M0,-4.5A4.5,4.5 0 1 1 0,4.5A4.5,4.5 0 1 1 0,-4.5Z", "M0,-5.5L5.5,0L0,5.5L-5.5,0Z", "M-4,-4H4V4H-4Z"][phase]);
    path.setAttribute("fill", `var(--${phaseColour(phase)})`);
    svg.append(path);
    return svg;
}

/**
 * Returns the end of the time axis. It is slightly above the longest time of the phases that are
 * shown. If that time is far longer than most, the axis ends earlier.
 */
export function topOf({ inside, phases }: Process): number {
    const shown = phases.filter((of) => !hidden.has(PHASES.indexOf(of.phase))).map((of) => of.time);
    const times = shown.length ? shown : inside ? [inside.time] : [];
    const [usual, max] = [Math.max(...times.map(most)), Math.max(...times.map((of) => of.max_ns))];
    return max > BEYOND * usual ? usual * (BEYOND * 0.6) : max * 1.12;
}

/** Draws the mark of a phase, with its center at a point. */
function mark(context: CanvasRenderingContext2D, phase: number, x: number, y: number, size: number) {
    if (phase === 1) {
        context.moveTo(x, y - size * 1.15);
        context.lineTo(x + size * 1.1, y + size * 0.85);
        context.lineTo(x - size * 1.1, y + size * 0.85);
        context.closePath();
    } else if (phase === 2) {
        context.moveTo(x + size * 0.95, y);
        context.arc(x, y, size * 0.95, 0, 7);
    } else {
        context.moveTo(x, y - size * 1.25);
        context.lineTo(x + size * 1.25, y);
        context.lineTo(x, y + size * 1.25);
        context.lineTo(x - size * 1.25, y);
        context.closePath();
    }
}

/**
 * Draws the iterations of a chart as bars, each in the colour of its phase. If several iterations
 * share a pixel, the pixel shows the longest iteration of each phase, the longest of these at the
 * back. Waits for requests are drawn first, so that all bars cover them. `places` contains the
 * iteration at each position of the x axis.
 */
export function phaseBars(chart: uPlot, { dur, idle, worked, phase, qualifies }: Iterations, places: number[]) {
    const { ctx: context, bbox } = chart;
    const [min, max] = [chart.scales.x.min ?? 0, chart.scales.x.max ?? 1];
    const wide = bbox.width / (max - min);
    const ratio = devicePixelRatio;
    const bar = Math.max(1, Math.min(60 * ratio, wide > 3 * ratio ? wide * 0.86 : wide));
    const bottom = bbox.top + bbox.height;
    // For each phase, the longest time in the current pixel: first of iterations that the figures
    // include, then of iterations that the figures leave out, which are drawn in the background.
    const longest = new Float64Array(PHASES.length * 2);
    const styles = PHASES.map((_, phase) => colour(phaseColour(phase)));
    let waited = 0;
    let pixel = -1;
    context.save();
    context.beginPath();
    context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    context.clip();
    const flush = (left: number) => {
        if (waited > 0) {
            const top = Math.max(bbox.top, chart.valToPos(waited, "y", true));
            context.globalAlpha = 1;
            context.fillStyle = colour("idle");
            context.fillRect(left, top, bar, bottom - top);
            waited = 0;
        }
        const there = [...longest.keys()].filter((key) => longest[key] > 0);
        for (const key of there.sort((a, b) => (b % 2) - (a % 2) || longest[b] - longest[a])) {
            const top = Math.max(bbox.top, chart.valToPos(longest[key], "y", true));
            context.globalAlpha = key % 2 ? PALE : 1;
            context.fillStyle = styles[key >> 1];
            context.fillRect(left, top, bar, bottom - top);
        }
        longest.fill(0);
    };
    for (let at = Math.max(0, Math.floor(min)); at <= Math.min(places.length - 1, Math.ceil(max)); at++) {
        const i = places[at];
        if (i < 0 || hidden.has(phase[i])) continue;
        const middle = bbox.left + (at - min) * wide;
        const left = bar > 1 ? middle - bar / 2 : Math.floor(middle);
        if (left !== pixel) {
            flush(pixel);
            pixel = left;
        }
        const key = phase[i] * 2 + (qualifies[i] ? 0 : 1);
        longest[key] = Math.max(longest[key], worked[i]);
        if (idle[i] > 0) waited = Math.max(waited, dur[i]);
    }
    flush(pixel);
    context.restore();
}

/**
 * Draws the chart of time against number of tokens, with a point for each iteration whose batch has
 * tokens.
 */
export function scatter(place: HTMLElement, process: Process, iterations: Iterations, pick: (i: number) => void): uPlot | null {
    const { worked, tokens, phase, qualifies } = iterations;
    const points = [...tokens.keys()].filter((i) => tokens[i] > 0);
    if (!process.inside || !points.length) return null;
    const counts = phaseCounts(iterations);
    // Draw the points of rare phases last, so that those of frequent phases do not cover them.
    points.sort((a, b) => counts[phase[b]] - counts[phase[a]]);
    let [least, largest] = [Infinity, 0];
    for (const i of points) [least, largest] = [Math.min(least, tokens[i]), Math.max(largest, tokens[i])];
    const top = topOf(process);
    const tip = el("div", { class: "tip", hidden: "" });
    const size = points.length > 3000 ? 2.5 : points.length > 400 ? 3 : 4;
    // Positions of the points that were drawn: x and y in CSS pixels from the top left corner of the drawing area.
    const at = new Float32Array(2 * points.length);
    const x_of = (chart: uPlot, i: number) => chart.valToPos(tokens[i], "x", true);
    const y_of = (chart: uPlot, i: number) => chart.valToPos(Math.min(worked[i], top), "y", true);
    const draw = (chart: uPlot) => {
        const { ctx: context, bbox } = chart;
        const ratio = devicePixelRatio;
        context.save();
        context.beginPath();
        context.rect(bbox.left - 4 * ratio, bbox.top - 4 * ratio, bbox.width + 8 * ratio, bbox.height + 8 * ratio);
        context.clip();
        // Each further point in a position makes the position darker, so only a few points are
        // drawn in one position.
        const taken = new Map<number, number>();
        at.fill(NaN);
        for (const [place, i] of points.entries()) {
            if (hidden.has(phase[i])) continue;
            const [x, y] = [Math.round(x_of(chart, i)), Math.round(y_of(chart, i))];
            at.set([(x - bbox.left) / ratio, (y - bbox.top) / ratio], 2 * place);
            const key = (x * 16384 + y) * 16 + phase[i] * 2 + qualifies[i];
            const drawn = taken.get(key) ?? 0;
            if (drawn > 4) continue;
            taken.set(key, drawn + 1);
            context.globalAlpha = qualifies[i] ? 0.75 : PALE;
            context.fillStyle = colour(phaseColour(phase[i]));
            context.beginPath();
            mark(context, phase[i], x, y, size * ratio);
            context.fill();
        }
        context.restore();
    };
    /**
     * Returns the index of the iteration whose point is nearest to the pointer; -1 if no point is
     * near.
     */
    const nearest = (chart: uPlot): number => {
        const [left, above] = [chart.cursor.left ?? -1, chart.cursor.top ?? -1];
        let [found, near] = [-1, 14 ** 2];
        if (left < 0) return found;
        for (let place = 0; place < points.length; place++) {
            const far = (at[2 * place] - left) ** 2 + (at[2 * place + 1] - above) ** 2;
            if (far <= near) {
                found = points[place];
                near = far;
            }
        }
        return found;
    };
    const powers = (min: number, max: number, room: number) => {
        const [from, to] = [Math.ceil(Math.log2(min) - 1e-9), Math.floor(Math.log2(max) + 1e-9)];
        const step = Math.max(1, Math.ceil((to - from + 1) / room));
        return Array.from({ length: Math.floor((to - from) / step) + 1 }, (_, at) => 2 ** (from + at * step));
    };
    const chart = mount(place, {
        height: 264, legend: { show: false }, padding: [10, 14, 0, 0],
        scales: {
            x: { time: false, distr: 3, log: 2, range: [least / 1.5, largest * 1.5] },
            y: { range: [0, top] },
        },
        cursor: { points: { show: false }, drag: { x: false, y: false } },
        axes: [
            axis("tokens in the batch", {
                size: 26, splits: (chart) => powers(least / 1.5, largest * 1.5, Math.floor(chart.width / 60)),
                filter: (_, splits) => splits, values: (_, splits) => splits.map((value) => count(value)),
            }),
            axis("", { labelSize: 0, size: 56, values: (_, splits) => durations(splits) }),
        ],
        series: [{}, { label: "iterations", paths: () => null, points: { show: false } }],
        hooks: {
            draw: [draw],
            setCursor: [(chart) => {
                const i = nearest(chart);
                tip.hidden = i < 0;
                if (i < 0) return;
                tip.replaceChildren(el("b", {}, `iteration ${iterations.n[i]} · ${time(worked[i])}${qualifies[i] ? "" : " · left out"}`),
                    el("span", {}, batchText(iterations, i)));
                tipAt(tip, chart, place);
            }],
        },
    }, [points.map((i) => tokens[i]).sort((a, b) => a - b), points.map(() => null)] as uPlot.AlignedData);
    place.append(tip);
    chart.over.addEventListener("click", () => {
        const i = nearest(chart);
        if (i >= 0) pick(i);
    });
    place.dataset.points = String(points.length);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `Time against tokens of ${count(points.length)} iterations. The table beside it has the figures of each phase and size.`);
    return chart;
}
