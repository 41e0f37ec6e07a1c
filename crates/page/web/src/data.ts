// The page's columns, read: what `crates/page/src/columns.rs` and those who use it write.

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

/** Whether nothing says that the GPU time of an iteration was not taken: it is there, or there is none of any, or no work. */
export function isTimed(iterations: Iterations, i: number): boolean {
    const { gpu, busy, launches } = iterations;
    return !Number.isNaN(gpu[i]) || !Number.isNaN(busy[i]) || launches[i] === 0 || !iterations.has_gpu;
}

/** The iterations of a process, in the order of their windows. Times in ns; `gpu` is NaN where not measured. */
export interface Iterations {
    /** Of each window the first of its iterations and the one after its last. */
    windows: [number, number][];
    n: Float64Array; start: Float64Array; dur: Float64Array; gpu: Float64Array;
    /** How long its thread waited for requests, which figures leave out, and how long it took without that. */
    idle: Float64Array; worked: Float64Array;
    thread: Float64Array; cut: Uint8Array;
    /** Whether figures include it. */
    qualifies: Uint8Array; launches: Float64Array; calls: Float64Array;
    wait: Float64Array; gil: Float64Array; gc: Float64Array; kernels: Float64Array;
    /** How long the GPU was at work by its kernels, where these were taken, which stretches an iteration. */
    busy: Float64Array;
    /** Some have one of these two. */
    has_gpu: boolean;
    /** What was in its batch: the phase, by its place in `PHASES`, requests, tokens, and those of prompts. */
    phase: Uint8Array; requests: Float64Array; tokens: Float64Array; prefill: Float64Array;
    /** Whether the timeline has its events. */
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
        wait: more(), gil: more(), gc: more(), kernels: more(), busy: more(),
        phase: from.bytes8(length), requests: more(), tokens: more(), prefill: more(), shown: from.bytes8(length), has_gpu: false,
    };
    for (let i = 0; i < length; i++) found.worked[i] = Math.max(0, found.dur[i] - found.idle[i]);
    for (const column of [found.gpu, found.busy]) {
        for (let i = 0; i < length; i++) column[i] = column[i] === 0 ? NaN : column[i] - 1;
        found.has_gpu ||= column.some((ns) => !Number.isNaN(ns));
    }
    return found;
}

/** The iterations that several processes have, in the order of their numbers. */
export interface SkewSteps {
    n: Float64Array;
    /** The place of the process that took longest. */
    slowest: Uint32Array;
}

export async function readSkew(): Promise<SkewSteps> {
    const from = await columns("skew");
    const length = from?.number() ?? 0;
    return { n: from?.differences(length) ?? new Float64Array(), slowest: from?.words(length) ?? new Uint32Array() };
}

/** The iterations whose collectives were matched, in the order of their numbers. */
export interface Arrivals {
    n: Float64Array; ranks: number;
    /** The place of the process that held the others up, or `ranks` where none did, and why. */
    last: Uint32Array; why: string[];
    /** For each iteration and each process: how much later than the median rank it came, in µs and one more; 0: not known. */
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

/** Events of a track that do not overlap: places in the track's columns, in the order of their starts. */
export interface Lane {
    events: Uint32Array;
    /** What all events before this one took, in ns; one more than there are events. */
    sums: Float64Array;
    /** Starts, as searching goes through many. */
    starts: Float64Array;
}

export interface Track {
    place: Place; name: string; id: number; stream: number;
    start: Float64Array; dur: Float64Array; kind: Uint8Array; flags: Uint8Array; names: Uint32Array; value: Float64Array;
    /** Of a stream's events one more than the number of the name of the scope; 0: it is not known, or it has none. */
    scopes: Uint32Array;
    /** The table that `kind` has numbers of. */
    kinds: readonly Kind[];
    lanes: Lane[];
}

/** What was measured of a GPU over time, in its unit. */
export interface Metric {
    device: number; name: string; unit: string;
    start: Float64Array; dur: Float64Array; value: Float64Array;
}

export interface Timeline {
    /** How many events the page has, and how many the record. */
    kept: number; total: number;
    names: string[];
    /** The names as they are drawn: kernels' without what they take. */
    labels: string[];
    tracks: Track[];
    metrics: Metric[];
}

/** How many lanes a track has, at most: deeper events are drawn in the last one. */
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

/** Each event in the first lane that is free when it starts: what is nested lies under what it is in. */
function lanes(track: Track): Lane[] {
    const { start, dur } = track;
    const ends: number[] = [];
    const counts: number[] = [];
    const lane_of = new Uint8Array(start.length);
    for (let i = 0; i < start.length; i++) {
        let lane = 0;
        // A wait and a hold of the GIL have their lane, whatever their ends.
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

/** The first place in a sorted column, from `from` on, that is above `value`. */
export function above(column: Float64Array, value: number, from = 0): number {
    let to = column.length;
    while (from < to) {
        const middle = (from + to) >>> 1;
        if (column[middle] <= value) from = middle + 1;
        else to = middle;
    }
    return from;
}
