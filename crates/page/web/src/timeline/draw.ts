// Draws a timeline. Events that are narrower than a pixel are merged. The smaller the part of a
// pixel that they cover, the paler the pixel, so that gaps remain visible at any zoom.

import { above, isTimed, Iterations, Lane, Metric, Track } from "../data";
import { colour } from "../dom";
import { moment, time } from "../format";
import { Place } from "../kinds";
import { AXIS, Row } from "./rows";
import { isFound } from "./search";

/**
 * The visible time span, and its position on the canvas: `from` is drawn at `left`, and `to` at
 * `left + width`. Times are in ns; lengths are in CSS pixels.
 */
export interface View { from: number; to: number; left: number; width: number; height: number; top: number }

export interface Scene {
    rows: Row[];
    iterations: Iterations;
    names: string[];
    labels: string[];
    /** True if the layers of kernels are known. */
    layered: boolean;
    /** The time, in ns, that the axis shows as 0. */
    origin: number;
    hovered: Spot | null;
    selected: Spot | null;
    /**
     * Arrows from a launching call to the kernels that it launched. If a kernel is selected, there
     * is only the arrow to that kernel.
     */
    arrows: Arrow[];
    /** For each name, 1 if it matches the search; `null` if there is no search. */
    found: Uint8Array | null;
}

export interface Arrow { call: Spot; kernel: Spot }

/** An event: its row, its lane, its index in the lane, and its index in the track. */
export interface Spot { row: Row; lane: Lane; at: number; event: number }

const WIDE = 1.5;
const LEVELS = 8;
const FONT = "11px system-ui, sans-serif";

/** Draws the timeline. Returns the number of arrows that were drawn. */
export function draw(context: CanvasRenderingContext2D, view: View, scene: Scene): number {
    const { left, width, height, top } = view;
    context.globalAlpha = 1;
    context.fillStyle = colour("surface");
    context.fillRect(0, 0, left + width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    context.save();
    context.beginPath();
    context.rect(left, 0, width, height);
    context.clip();
    grid(context, view, scene);
    untimed(context, view, scene);
    for (const row of scene.rows) {
        const y = row.y - top;
        if (y + row.height < AXIS || y > height) continue;
        if (row.metric) curve(context, view, row.metric, y, row.height - 3);
        row.lanes.forEach((lane, index) => {
            const at = y + index * row.lane;
            if (at + row.lane < AXIS || at > height) return;
            if (row.track) events(context, view, scene, row.track, lane, at, row.lane - 1);
            else iterationRow(context, view, scene.iterations, lane, at, row.lane - 2);
        });
    }
    missing(context, view, scene);
    for (const [place, name] of [[scene.hovered, "muted"], [scene.selected, "ink"]] as const) {
        if (place) outline(context, view, scene, place, colour(name));
    }
    const drawn = arrows(context, view, scene);
    context.restore();
    gutter(context, view, scene);
    axis(context, view, scene);
    return drawn;
}

export const startOf = (place: Spot) => place.lane.starts[place.at];
export const lengthOf = (scene: Scene, place: Spot) =>
    (place.row.track?.dur ?? scene.iterations.dur)[place.event];

function events(
    context: CanvasRenderingContext2D, view: View, scene: Scene, track: Track, lane: Lane, y: number, height: number,
) {
    const { from, to, left, width } = view;
    const scale = width / (to - from);
    const { starts, sums, events: places } = lane;
    const { dur, kind, kinds, names } = track;
    const end = left + width;
    const searching = scene.found;
    const faint = searching ? 0.25 : 1;
    // Draw neighbouring pixels with the same colour and opacity as one rectangle.
    let run = 0, run_end = -1, run_look = -1;
    const flush = () => {
        if (run_look >= 0) {
            context.globalAlpha = faint * (0.35 + (0.65 * (run_look % 16)) / LEVELS);
            context.fillStyle = colour(kinds[run_look >> 4].colour);
            context.fillRect(run, y, run_end - run, height);
            context.globalAlpha = 1;
        }
        run_look = -1;
    };
    for (let at = Math.max(0, above(starts, from) - 1); at < starts.length && starts[at] < to; ) {
        const event = places[at];
        const x = left + (starts[at] - from) * scale;
        const wide = dur[event] * scale;
        if (wide >= WIDE) {
            flush();
            const x0 = Math.max(x, left - 2);
            const x1 = Math.min(x + wide, end + 2);
            at++;
            if (x1 <= left) continue;
            context.globalAlpha = faint;
            context.fillStyle = colour(kinds[kind[event]].colour);
            context.fillRect(x0, y, Math.max(x1 - x0 - (wide > 4 ? 1 : 0), 1), height);
            context.globalAlpha = 1;
            context.globalAlpha = searching ? 0.55 : 1;
            name(context, view, scene.labels[names[event]], x0, x1, y, height);
            context.globalAlpha = 1;
            continue;
        }
        const pixel = Math.floor(x);
        let next = Math.max(at + 1, above(starts, from + (pixel + 1 - left) / scale, at));
        // Draw the events that begin within one pixel together. Only the last of them can extend beyond the pixel.
        if (next - 1 > at && dur[places[next - 1]] * scale >= WIDE) next--;
        const part = Math.min(1, (sums[next] - sums[at]) * scale);
        let longest = event;
        for (const other of [places[(at + next) >> 1], places[next - 1]]) {
            if (other !== undefined && dur[other] > dur[longest]) longest = other;
        }
        if (next === at + 2 && dur[places[at + 1]] < dur[event]) longest = event;
        const look = (kind[longest] << 4) | Math.round(part * LEVELS);
        if (look !== run_look || pixel > run_end) {
            flush();
            run = pixel;
            run_look = look;
        }
        run_end = pixel + 1;
        at = next;
    }
    flush();
    if (searching) matches(context, view, scene, track, lane, searching, y, height);
}

/**
 * Writes an event's name on its bar, if there is room. If the bar begins to the left of the visible
 * part, the name begins at the edge of that part.
 */
function name(context: CanvasRenderingContext2D, view: View, text: string, x0: number, x1: number, y: number, height: number) {
    const x = Math.max(x0, view.left) + 4;
    if (x1 - x < 26 || height < 11) return;
    context.fillStyle = colour("event-ink");
    label(context, text, x, y + height / 2 + 0.5, x1 - x - 4);
}

/** Draws marks on the events that match the search. A mark is at least two pixels wide. */
function matches(
    context: CanvasRenderingContext2D, view: View, scene: Scene, track: Track, lane: Lane, found: Uint8Array, y: number, height: number,
) {
    const { from, to, left, width } = view;
    const scale = width / (to - from);
    let drawn = -Infinity;
    for (let at = Math.max(0, above(lane.starts, from) - 1); at < lane.starts.length && lane.starts[at] < to; at++) {
        const event = lane.events[at];
        if (!isFound(found, track, event)) continue;
        const x = Math.max(left - 2, left + (lane.starts[at] - from) * scale);
        const wide = Math.max(2, Math.min(track.dur[event] * scale, left + width - x));
        if (x + wide <= drawn) continue;
        context.fillStyle = colour(track.kinds[track.kind[event]].colour);
        context.fillRect(x, y, wide, height);
        context.fillStyle = colour("accent");
        context.fillRect(x, y + height - 2, wide, 2);
        name(context, view, scene.labels[track.names[event]], x, x + wide, y, height);
        drawn = Math.floor(x) + 1;
    }
}

function iterationRow(
    context: CanvasRenderingContext2D, view: View, iterations: Iterations, lane: Lane, y: number, height: number,
) {
    const { from, to, left, width } = view;
    const scale = width / (to - from);
    for (let at = Math.max(0, above(lane.starts, from) - 1); at < lane.starts.length && lane.starts[at] < to; at++) {
        const event = lane.events[at];
        const x = left + (lane.starts[at] - from) * scale;
        const wide = iterations.dur[event] * scale;
        if (wide < 2) {
            // Draw iterations that are narrower than two pixels together with their neighbours, as
            // one bar.
            const next = above(lane.starts, lane.starts[at] + 4 / scale, at);
            context.fillStyle = colour("iteration");
            context.fillRect(x, y, Math.max(1, (lane.starts[next - 1] - lane.starts[at]) * scale + wide), height);
            at = Math.max(at, next - 1);
            continue;
        }
        const x0 = Math.max(x, left - 2);
        const x1 = Math.min(x + wide, left + width + 2);
        context.fillStyle = colour(event % 2 ? "iteration" : "iteration-alt");
        context.fillRect(x0, y, x1 - x0 - (wide > 4 ? 1 : 0), height);
        if (x1 - x0 > 24) {
            context.fillStyle = colour("ink");
            const n = iterations.n[event];
            const texts = [`iteration ${n} · ${time(iterations.dur[event])}`, `${n} · ${time(iterations.dur[event])}`, `${n}`];
            const at = Math.max(x0, left) + 4;
            const text = texts.find((text) => measure(context, text) <= x1 - at - 4);
            if (text) context.fillText(text, at, y + height / 2 + 0.5);
        }
    }
}

/**
 * Returns the value at the top of a metric's curve: 100 for percentages, otherwise the maximum
 * value.
 */
export function metricTop(metric: Metric): number {
    return metric.unit === "%" ? 100 : metric.value.reduce((most, value) => Math.max(most, value), 1e-9);
}

/**
 * Draws a metric as steps. A step is as long as the time over which the sample's value is a mean.
 */
function curve(context: CanvasRenderingContext2D, view: View, metric: Metric, y: number, height: number) {
    const { from, to, left, width } = view;
    const scale = width / (to - from);
    const top = metricTop(metric);
    context.fillStyle = colour("grid");
    context.fillRect(left, y + height, width, 1);
    context.fillStyle = colour("metric");
    for (let at = Math.max(0, above(metric.start, from) - 1); at < metric.start.length && metric.start[at] < to; at++) {
        const x0 = Math.max(left, left + (metric.start[at] - from) * scale);
        const x1 = Math.min(left + width, left + (metric.start[at] + metric.dur[at] - from) * scale);
        const high = Math.min(1, metric.value[at] / top) * height;
        if (x1 > left) context.fillRect(x0, y + height - high, Math.max(1, x1 - x0), high);
    }
}

/**
 * Marks the times whose events are missing, because they are not on the page or were not recorded.
 */
function missing(context: CanvasRenderingContext2D, view: View, scene: Scene) {
    const { iterations, rows } = scene;
    const top = rows[0].y + rows[0].height - view.top;
    cover(context, view, scene, (i) => !iterations.shown[i], top, view.height - top, "not on this page");
    // Mark iterations without recorded kernels, because kernels may be recorded only in the first
    // iterations of a window.
    for (const row of rows) {
        if (row.track?.place !== Place.Stream) continue;
        const not_taken = (i: number) => iterations.shown[i] === 1 && Number.isNaN(iterations.busy[i]);
        cover(context, view, scene, not_taken, row.y - view.top, row.height - 2, "kernels were not taken");
    }
}

/**
 * Marks iterations whose GPU time was not measured. If GPU work of an earlier iteration extends
 * into such an iteration, it is drawn over the mark.
 */
function untimed(context: CanvasRenderingContext2D, view: View, scene: Scene) {
    const { iterations, rows } = scene;
    const is_untimed = (i: number) => iterations.shown[i] === 1 && !isTimed(iterations, i);
    for (const row of rows) {
        if (row.track?.place === Place.Steps) cover(context, view, scene, is_untimed, row.y - view.top, row.height - 2, "GPU time not taken");
    }
}

/**
 * Covers the iterations for which `which` returns true, and writes on the cover why their events
 * are missing.
 */
function cover(
    context: CanvasRenderingContext2D, view: View, scene: Scene, which: (i: number) => boolean, y: number, height: number, why: string,
) {
    const { from, to, left, width } = view;
    const scale = width / (to - from);
    const { starts, events } = scene.rows[0].lanes[0];
    for (let at = Math.max(0, above(starts, from) - 1); at < starts.length && starts[at] < to; at++) {
        if (!which(events[at])) continue;
        let last = at;
        while (last + 1 < starts.length && starts[last + 1] < to && which(events[last + 1])) last++;
        const x0 = Math.max(left, left + (starts[at] - from) * scale);
        const end = starts[last] + scene.iterations.dur[events[last]];
        const x1 = Math.min(left + width, left + (end - from) * scale);
        context.fillStyle = colour("missing");
        context.fillRect(x0, y, x1 - x0, height);
        if (x1 - x0 > 150) {
            context.fillStyle = colour("muted");
            context.fillText(why, x0 + 8, y + Math.min(14, height / 2 + 0.5));
        }
        at = last;
    }
}

/**
 * Draws a line at the start of each visible iteration. Everything else is drawn later and covers
 * the lines. No lines are drawn if there would be too many.
 */
function grid(context: CanvasRenderingContext2D, view: View, scene: Scene) {
    const { from, to, left, width, height } = view;
    const scale = width / (to - from);
    const lane = scene.rows[0].lanes[0];
    const first = Math.max(0, above(lane.starts, from) - 1);
    const last = above(lane.starts, to);
    if (last - first > width / 8) return;
    context.fillStyle = colour("line");
    for (let at = first; at < last; at++) {
        const x = Math.round(left + (lane.starts[at] - from) * scale);
        context.fillRect(x, AXIS, 1, height);
    }
}

function axis(context: CanvasRenderingContext2D, view: View, scene: Scene) {
    const { from, to, left, width } = view;
    context.fillStyle = colour("surface");
    context.fillRect(0, 0, left + width, AXIS - 1);
    context.fillStyle = colour("line");
    context.fillRect(0, AXIS - 1, left + width, 1);
    const scale = width / (to - from);
    const step = nice(110 / scale);
    context.fillStyle = colour("muted");
    context.save();
    context.beginPath();
    context.rect(left, 0, width, AXIS);
    context.clip();
    for (let k = Math.ceil((from - scene.origin) / step); scene.origin + k * step < to; k++) {
        const x = left + (scene.origin + k * step - from) * scale;
        context.fillRect(Math.round(x), AXIS - 7, 1, 6);
        context.fillText(moment(k * step, step), x + 4, AXIS / 2 - 2);
    }
    context.restore();
    context.fillText("time in window", 12, AXIS / 2 - 1);
}

/** Returns the smallest of the numbers 1, 2, 5, 10, 20, … that is at least `least`. */
function nice(least: number): number {
    const power = 10 ** Math.floor(Math.log10(least));
    return power * ([1, 2, 5].find((digit) => digit * power >= least) ?? 10);
}

function gutter(context: CanvasRenderingContext2D, view: View, scene: Scene) {
    const { left, height, top } = view;
    context.fillStyle = colour("surface");
    context.fillRect(0, 0, left, height);
    for (const row of scene.rows) {
        const y = row.y - top;
        if (y + row.height < AXIS || y > height) continue;
        if (row.begins) {
            context.fillStyle = colour("line");
            context.fillRect(0, y - 3, left + view.width, 1);
        }
        const middle = y + row.lane / 2;
        let x = 12;
        if (row.label) {
            context.fillStyle = colour("ink");
            context.font = "600 " + FONT;
            x += label(context, row.label, x, middle, left - 24) + 6;
            context.font = FONT;
        }
        context.fillStyle = colour("muted");
        const below = row.label && row.lanes.length > 1 && row.lane >= 14;
        if (row.detail) label(context, row.detail, below ? 12 : x, below ? middle + row.lane - 3 : middle, left - 8 - (below ? 12 : x));
    }
    context.fillStyle = colour("line");
    context.fillRect(left - 1, 0, 1, height);
}

function outline(context: CanvasRenderingContext2D, view: View, scene: Scene, place: Spot, stroke: string) {
    const scale = view.width / (view.to - view.from);
    const x = view.left + (startOf(place) - view.from) * scale;
    const x0 = Math.max(x, view.left - 3);
    const x1 = Math.min(x + Math.max(2, lengthOf(scene, place) * scale), view.left + view.width + 3);
    const y = place.row.y - view.top + place.row.lanes.indexOf(place.lane) * place.row.lane;
    if (x1 < view.left) return;
    context.strokeStyle = stroke;
    context.lineWidth = 2;
    context.strokeRect(x0 - 0.5, y - 0.5, x1 - x0, place.row.lane - 0.5);
}

/** Draws those arrows whose two ends are both visible. Returns the number of drawn arrows. */
function arrows(context: CanvasRenderingContext2D, view: View, scene: Scene): number {
    const { from, to, left, width, height, top } = view;
    const scale = width / (to - from);
    const at = (place: Spot) => left + (startOf(place) - from) * scale;
    const middle = (place: Spot) => place.row.y - top + (place.row.lanes.indexOf(place.lane) + 0.5) * place.row.lane;
    const in_sight = (x: number, y: number) => x >= left && x <= left + width && y >= AXIS && y <= height;
    context.strokeStyle = context.fillStyle = colour("accent");
    context.lineWidth = 1.5;
    let drawn = 0, last_x = -Infinity, last_y = 0;
    for (const { call, kernel } of scene.arrows) {
        const [x1, y1] = [at(kernel), middle(kernel)];
        // An arrow begins at the visible part of the call and ends at the start of the kernel.
        const x0 = Math.max(left, Math.min(at(call) + (lengthOf(scene, call) * scale) / 2, Math.max(at(call), x1)));
        const begins = at(call) + lengthOf(scene, call) * scale >= left;
        const side = middle(call) > y1 ? -1 : 1;
        const y0 = middle(call) + (side * call.row.lane) / 2;
        if (!begins || !in_sight(x0, y0) || !in_sight(x1, y1)) continue;
        // If several arrows end at nearly the same place, draw only the first of them.
        if (y1 === last_y && x1 - last_x < 4) continue;
        [last_x, last_y] = [x1, y1];
        drawn++;
        const end = y1 - (side * kernel.row.lane) / 2;
        context.beginPath();
        context.moveTo(x0, y0);
        context.bezierCurveTo(x0, (y0 + end) / 2, x1, (y0 + end) / 2, x1, end - side * 5);
        context.stroke();
        context.beginPath();
        context.moveTo(x1, end);
        context.lineTo(x1 - 4, end - side * 7);
        context.lineTo(x1 + 4, end - side * 7);
        context.fill();
    }
    return drawn;
}

const widths = new Map<string, number>();

function measure(context: CanvasRenderingContext2D, text: string): number {
    const key = context.font + text;
    let width = widths.get(key);
    if (width === undefined) {
        if (widths.size > 20_000) widths.clear();
        width = context.measureText(text).width;
        widths.set(key, width);
    }
    return width;
}

/**
 * Writes as much of a text as fits into the width `room`. Returns the width of the written text.
 */
function label(context: CanvasRenderingContext2D, text: string, x: number, y: number, room: number): number {
    const whole = measure(context, text);
    if (whole <= room) {
        context.fillText(text, x, y);
        return whole;
    }
    let fit = Math.floor((text.length * (room - measure(context, "…"))) / whole);
    // The number of characters was estimated from the mean width of a character. The beginning of
    // the text may be wider, so measure it.
    while (fit > 1 && measure(context, text.slice(0, fit) + "…") > room) fit--;
    if (fit > 1) context.fillText(text.slice(0, fit) + "…", x, y);
    return room;
}
