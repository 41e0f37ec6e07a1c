// Finding events by name.

import { Timeline } from "../data";
import { Spot } from "./draw";
import { Row } from "./rows";

export interface Matches {
    /** Of each name whether it matches. */
    found: Uint8Array;
    /** In the order of their starts. */
    places: Spot[];
    /** There are more than are listed. */
    count: number;
}

/** How many matches are gone through one by one. */
const LISTED = 50_000;

export function search(text: string, timeline: Timeline, rows: Row[]): Matches | null {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const found = Uint8Array.from(timeline.names, (name) => (name.toLowerCase().includes(wanted) ? 1 : 0));
    const places: Spot[] = [];
    let count = 0;
    for (const row of rows) {
        if (!row.track) continue;
        for (const lane of row.lanes) {
            for (let at = 0; at < lane.events.length; at++) {
                const event = lane.events[at];
                if (!found[row.track.names[event]]) continue;
                count++;
                if (places.length < LISTED) places.push({ row, lane, at, event });
            }
        }
    }
    places.sort((a, b) => a.lane.starts[a.at] - b.lane.starts[b.at]);
    return { found, places, count };
}
