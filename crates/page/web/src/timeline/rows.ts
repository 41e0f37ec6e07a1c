// The rows of a timeline, in their order from top to bottom.

import { Iterations, Lane, Metric, Timeline, Track } from "../data";
import { Place } from "../kinds";

export interface Row {
    y: number;
    height: number;
    /** Text in the margin to the left. A row without a text belongs to the row above. */
    label: string;
    detail: string;
    /** The height of each lane in pixels. */
    lane: number;
    /**
     * The track whose events the row shows; `null` for the row of iterations and for the curve of a
     * metric.
     */
    track: Track | null;
    lanes: Lane[];
    /** The metric whose curve the row shows; `null` for other rows. */
    metric: Metric | null;
    /** True for the first row of a GPU or a thread. */
    begins: boolean;
}

export const AXIS = 26;
const GAP = 5;
const LANE = 18;
const CURVE = 28;

/** Returns the iterations of a process as a lane, which is possible because they do not overlap. */
export function iterationLane(iterations: Iterations): Lane {
    const events = Uint32Array.from(iterations.n, (_, i) => i);
    events.sort((a, b) => iterations.start[a] - iterations.start[b]);
    const starts = Float64Array.from(events, (i) => iterations.start[i]);
    const sums = new Float64Array(events.length + 1);
    events.forEach((i, at) => (sums[at + 1] = sums[at] + iterations.dur[i]));
    return { events, starts, sums };
}

/**
 * Returns the rows from top to bottom. The iterations come first. The GPUs come next, so that
 * they are close to the iterations that wait for them. The threads come last, with those that
 * run iterations before the others.
 */
export function rows(iterations: Iterations, lane: Lane, timeline: Timeline | null): { rows: Row[]; height: number } {
    const found: Row[] = [];
    let y = AXIS;
    const add = (label: string, detail: string, height: number, track: Track | null, lanes: Lane[], begins: boolean) => {
        if (begins) y += GAP;
        found.push({ y, height: height * lanes.length + 1, label, detail, lane: height, track, lanes, metric: null, begins });
        y += height * lanes.length + 1;
    };
    const curve = (metric: Metric, label: string, begins: boolean) => {
        if (begins) y += GAP;
        found.push({ y, height: CURVE, label, detail: `${metric.name}, ${metric.unit}`, lane: CURVE, track: null, lanes: [], metric, begins });
        y += CURVE;
    };
    add("Iterations", "", 22, null, [lane], false);
    const tracks = timeline?.tracks ?? [];
    let before = "";
    for (const track of tracks.filter((track) => track.place <= Place.Stream)) {
        const device = `GPU ${track.id}`;
        const first = device !== before;
        before = device;
        const what = track.place === Place.Steps ? "steps" : `stream ${track.stream}`;
        add(first ? device : "", first && track.name ? `${what} · ${track.name}` : what, LANE, track, track.lanes, first);
    }
    let measured = -1;
    for (const metric of timeline?.metrics ?? []) {
        curve(metric, metric.device === measured ? "" : `GPU ${metric.device}`, metric.device !== measured);
        measured = metric.device;
    }
    for (const tid of threads(iterations, tracks)) {
        let first = true;
        for (const track of tracks) {
            if (track.id !== tid || (track.place !== Place.Thread && track.place !== Place.Gil)) continue;
            const gil = track.place === Place.Gil;
            const name = track.name === `thread ${tid}` ? `thread ${tid}` : `${track.name}`;
            const detail = first ? (name.startsWith("thread") ? "" : `thread ${tid}`) : "GIL";
            add(first ? name : "", gil && first ? "GIL" : detail, gil ? 12 : LANE, track, track.lanes, first);
            first = false;
        }
    }
    for (const track of tracks.filter((track) => track.place === Place.Ranges)) {
        add("Ranges", "of the process", LANE, track, track.lanes, true);
    }
    return { rows: found, height: y + GAP };
}

/**
 * Returns the IDs of threads in the order of their rows: first the threads that run iterations,
 * then the threads with the most events.
 */
function threads(iterations: Iterations, tracks: Track[]): number[] {
    const ended = new Map<number, number>();
    for (const tid of iterations.thread) ended.set(tid, (ended.get(tid) ?? 0) + 1);
    const events = new Map<number, number>();
    for (const track of tracks) {
        if (track.place === Place.Thread || track.place === Place.Gil) {
            events.set(track.id, (events.get(track.id) ?? 0) + track.start.length);
        }
    }
    const order = (tid: number) => [ended.get(tid) ?? 0, events.get(tid) ?? 0];
    return [...events.keys()].sort((a, b) => {
        const [ended_a, events_a] = order(a);
        const [ended_b, events_b] = order(b);
        return ended_b - ended_a || events_b - events_a || a - b;
    });
}
