// Reads the page's columns of numbers, which `crates/page/src/columns.rs` and the modules that use
// it write.

import { Kind, Place } from "./kinds";

class Columns {
    private at = 0;
    private readonly text_of = new TextDecoder();
    constructor(private readonly bytes: Uint8Array) {}

    number(): number {
        const bytes = this.bytes;
        let byte = bytes[this.at++];
        if (byte < 0x80) return byte;
        let value = byte & 0x7f;
        let scale = 128;
        do {
            byte = bytes[this.at++];
            value += (byte & 0x7f) * scale;
            scale *= 128;
        } while (byte >= 0x80);
        return value;
    }

    text(): string {
        const length = this.number();
        this.at += length;
        return this.text_of.decode(this.bytes.subarray(this.at - length, this.at));
    }

    floats(length: number): Float64Array {
        const column = new Float64Array(length);
        for (let i = 0; i < length; i++) column[i] = this.number();
        return column;
    }

    differences(length: number): Float64Array {
        const column = new Float64Array(length);
        let value = 0;
        for (let i = 0; i < length; i++) {
            const more = this.number();
            value += more % 2 === 0 ? more / 2 : -(more + 1) / 2;
            column[i] = value;
        }
        return column;
    }

    bytes8(length: number): Uint8Array {
        const column = new Uint8Array(length);
        for (let i = 0; i < length; i++) column[i] = this.number();
        return column;
    }

    words(length: number): Uint32Array {
        const column = new Uint32Array(length);
        for (let i = 0; i < length; i++) column[i] = this.number();
        return column;
    }
}

async function columns(id: string): Promise<Columns | null> {
    const text = document.getElementById(id)?.textContent;
    if (!text) return null;
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
    const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Columns(new Uint8Array(await new Response(inflated).arrayBuffer()));
}

/**
 * Returns false if an iteration that launched work has no GPU time, although GPU times of other
 * iterations are known.
 */
export function isTimed(iterations: Iterations, i: number): boolean {
    const { gpu, busy, launches } = iterations;
    return !Number.isNaN(gpu[i]) || !Number.isNaN(busy[i]) || launches[i] === 0 || !iterations.has_gpu;
}

/**
 * The iterations of a process, in the order of their windows. Each property has one entry per
 * iteration. Times are in ns; `gpu` is NaN if it was not measured.
 */
export interface Iterations {
    /** For each window, the index of its first iteration and the index after its last iteration. */
    windows: [number, number][];
    n: Float64Array; start: Float64Array; dur: Float64Array; gpu: Float64Array;
    /**
     * `idle` is the time that the iteration's thread waited for requests; `worked` is the
     * iteration's duration without that time.
     */
    idle: Float64Array; worked: Float64Array;
    thread: Float64Array; cut: Uint8Array;
    /** `qualifies` is 1 if the iteration counts in figures. */
    qualifies: Uint8Array; launches: Float64Array; calls: Float64Array;
    wait: Float64Array; gil: Float64Array; gc: Float64Array; kernels: Float64Array;
    /**
     * The time in which the iteration's thread launched work (`launching`), in which it had no
     * processor (`delayed`), and in which it was asleep or blocked (`blocked`).
     */
    launching: Float64Array; delayed: Float64Array; blocked: Float64Array;
    /**
     * The numbers of stack samples in which the iteration's thread ran Python code (`python`)
     * and other code (`native`).
     */
    python: Float64Array; native: Float64Array;
    /**
     * Busy time of the GPU, computed from kernels; NaN if kernels were not recorded in the
     * iteration. Recording kernels makes an iteration longer.
     */
    busy: Float64Array;
    /** True if `gpu` or `busy` is known for at least one iteration. */
    has_gpu: boolean;
    /**
     * The iteration's batch: its phase, as an index in `PHASES`, and its numbers of requests,
     * tokens, and tokens of prompts.
     */
    phase: Uint8Array; requests: Float64Array; tokens: Float64Array; prefill: Float64Array;
    /** 1 if the timeline contains the iteration's events. */
    shown: Uint8Array;
}

export async function readIterations(place: number): Promise<Iterations> {
    const from = await columns(`iterations-${place}`);
    if (!from) throw new Error(`no iterations of process ${place}`);
    const counts = from.floats(from.number());
    const windows: [number, number][] = [];
    let length = 0;
    for (const count of counts) windows.push([length, (length += count)]);
    const more = () => from.floats(length);
    const found = {
        windows, n: from.differences(length), start: from.differences(length), dur: more(), gpu: more(),
        idle: more(), worked: new Float64Array(length), thread: more(), cut: from.bytes8(length), qualifies: from.bytes8(length), launches: more(), calls: more(),
        wait: more(), gil: more(), gc: more(), launching: more(), delayed: more(), blocked: more(), python: more(), native: more(),
        kernels: more(), busy: more(),
        phase: from.bytes8(length), requests: more(), tokens: more(), prefill: more(), shown: from.bytes8(length), has_gpu: false,
    };
    for (let i = 0; i < length; i++) found.worked[i] = Math.max(0, found.dur[i] - found.idle[i]);
    for (const column of [found.gpu, found.busy]) {
        for (let i = 0; i < length; i++) column[i] = column[i] === 0 ? NaN : column[i] - 1;
        found.has_gpu ||= column.some((ns) => !Number.isNaN(ns));
    }
    return found;
}

/** The iterations that at least two processes have in common, in the order of their numbers. */
export interface SkewSteps {
    n: Float64Array;
    /**
     * For each iteration, the index of the slowest process; the number of processes if none was the
     * slowest.
     */
    slowest: Uint32Array;
}

export async function readSkew(): Promise<SkewSteps> {
    const from = await columns("skew");
    const length = from?.number() ?? 0;
    return { n: from?.differences(length) ?? new Float64Array(), slowest: from?.words(length) ?? new Uint32Array() };
}

/**
 * The iterations with collectives that were matched between ranks, in the order of their numbers.
 */
export interface Arrivals {
    n: Float64Array; ranks: number;
    /**
     * For each iteration, the index of the process for which the others waited (`ranks` if there
     * was none), and the cause of its lateness.
     */
    last: Uint32Array; why: string[];
    /**
     * For each iteration and process, its lateness relative to the median rank in µs, plus 1; 0 if
     * it is not known.
     */
    late: Uint32Array;
}

export async function readArrivals(): Promise<Arrivals | null> {
    const from = await columns("arrivals");
    if (!from) return null;
    const length = from.number();
    const ranks = from.number();
    const n = from.differences(length);
    const last = from.words(length);
    const why = Array.from({ length }, () => from.text());
    return { n, ranks, last, why, late: from.words(length * ranks) };
}

/**
 * Events of a track that do not overlap each other. Each is an index in the track's columns; they
 * are in the order of their starts.
 */
export interface Lane {
    events: Uint32Array;
    /**
     * For each event, the total duration of all earlier events of the lane, in ns. The last entry
     * is the total of all events.
     */
    sums: Float64Array;
    /** The starts of the lane's events in ns. They allow fast searches. */
    starts: Float64Array;
}

export interface Track {
    place: Place; name: string; id: number; stream: number;
    start: Float64Array; dur: Float64Array; kind: Uint8Array; flags: Uint8Array; names: Uint32Array; value: Float64Array;
    /**
     * For each event of a stream, the number of the name of its scope (the module of the model
     * that launched it) plus 1; 0 if no scope is known.
     */
    scopes: Uint32Array;
    /** The table of kinds. The entries of `kind` are indexes in this table. */
    kinds: readonly Kind[];
    lanes: Lane[];
}

/** A metric of a GPU over time, such as its utilization. Values are in the unit `unit`. */
export interface Metric {
    device: number; name: string; unit: string;
    start: Float64Array; dur: Float64Array; value: Float64Array;
}

export interface Timeline {
    /** Number of events on the page, and number of events in the record that could be shown. */
    kept: number; total: number;
    names: string[];
    /** The names in the form in which they are drawn: without parameters of kernels. */
    labels: string[];
    tracks: Track[];
    metrics: Metric[];
}

/**
 * Maximum number of lanes of a track. Events that are nested more deeply are drawn in the last
 * lane.
 */
const LANES = 24;

export async function readTimeline(place: number): Promise<Timeline | null> {
    const from = await columns(`timeline-${place}`);
    if (!from) return null;
    const kept = from.number();
    const total = from.number();
    const kinds = Array.from({ length: from.number() }, (): Kind => (
        { label: from.text(), category: from.text(), colour: from.text(), value: from.text(), end: from.text() as Kind["end"] }
    ));
    const both = Array.from({ length: from.number() }, () => [from.text(), from.text()]);
    const names = both.map(([name]) => name);
    const labels = both.map(([name, short]) => short || name);
    const tracks: Track[] = [];
    for (let left = from.number(); left > 0; left--) {
        const [kind, name, id, stream, length] = from.floats(5);
        const track: Track = {
            place: kind as Place, name: names[name], id, stream,
            start: from.differences(length), dur: from.floats(length), kind: from.bytes8(length),
            flags: from.bytes8(length), names: from.words(length), value: from.floats(length),
            scopes: kind === Place.Stream ? from.words(length) : new Uint32Array(), kinds, lanes: [],
        };
        track.lanes = lanes(track);
        tracks.push(track);
    }
    const metrics: Metric[] = [];
    for (let left = from.number(); left > 0; left--) {
        const [device, name, unit, length] = [from.number(), from.text(), from.text(), from.number()];
        const start = from.differences(length);
        const dur = from.floats(length);
        metrics.push({ device, name, unit, start, dur, value: from.floats(length).map((thousandths) => thousandths / 1000) });
    }
    return { kept, total, names, labels, tracks, metrics };
}

/**
 * Puts each event into the first lane that is free at the event's start. So inner events lie below
 * the events that contain them.
 */
function lanes(track: Track): Lane[] {
    const { start, dur } = track;
    const ends: number[] = [];
    const counts: number[] = [];
    const lane_of = new Uint8Array(start.length);
    for (let i = 0; i < start.length; i++) {
        let lane = 0;
        // A thread never waits for the GIL while it holds the GIL. So all events of a GIL track stay in one lane, even
        // if their recorded times overlap.
        if (track.place !== Place.Gil) while (lane < LANES - 1 && ends[lane] > start[i]) lane++;
        lane_of[i] = lane;
        ends[lane] = Math.max(ends[lane] ?? -Infinity, start[i] + dur[i]);
        counts[lane] = (counts[lane] ?? 0) + 1;
    }
    const found = counts.map((count) => ({
        events: new Uint32Array(count), sums: new Float64Array(count + 1), starts: new Float64Array(count),
    }));
    const filled = counts.map(() => 0);
    for (let i = 0; i < start.length; i++) {
        const lane = lane_of[i];
        const at = filled[lane]++;
        found[lane].events[at] = i;
        found[lane].starts[at] = start[i];
        found[lane].sums[at + 1] = found[lane].sums[at] + dur[i];
    }
    return found;
}

/**
 * Returns the index of the first entry of a sorted column that is greater than `value`. The search
 * begins at the index `from`.
 */
export function above(column: Float64Array, value: number, from = 0): number {
    let to = column.length;
    while (from < to) {
        const middle = (from + to) >>> 1;
        if (column[middle] <= value) from = middle + 1;
        else to = middle;
    }
    return from;
}
