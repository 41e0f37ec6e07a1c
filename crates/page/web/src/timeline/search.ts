// The search for events of the timeline by name.

import { Timeline, Track } from "../data";
import { Spot } from "./draw";
import { Row } from "./rows";

export interface Matches {
    /** For each name, 1 if it matches the search. */
    found: Uint8Array;
    /** The first events that match the search, in the order of their starts. */
    places: Spot[];
    /** The number of all matching events, which may be larger than the length of `places`. */
    count: number;
}

/** Maximum number of matching events in `places`. */
const LISTED = 50_000;

/** Returns true if the search matches an event's name, or the layer in which it was launched. */
export function isFound(found: Uint8Array, { names, scopes }: Track, event: number): boolean {
    const scope = scopes.length ? scopes[event] : 0;
    return !!found[names[event]] || (scope > 0 && !!found[scope - 1]);
}

/**
 * Returns a function that is true for the names that the search text matches: names that contain
 * the text or, for `layer:NAME`, the layer NAME and the layers inside it. In NAME, `*` stands for
 * any number.
 */
function finds(text: string): (name: string) => boolean {
    const layer = text.startsWith("layer:") ? text.slice(6).trim() : "";
    if (!layer) return (name) => name.toLowerCase().includes(text);
    const parts = layer.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
    const whole = new RegExp(`^${parts.join("\\d+")}([./]|$)`, "i");
    return (name) => whole.test(name);
}

export function search(text: string, timeline: Timeline, rows: Row[]): Matches | null {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return null;
    const is_one = finds(wanted);
    const found = Uint8Array.from(timeline.names, (name) => (is_one(name) ? 1 : 0));
    const places: Spot[] = [];
    let count = 0;
    for (const row of rows) {
        if (!row.track) continue;
        for (const lane of row.lanes) {
            for (let at = 0; at < lane.events.length; at++) {
                const event = lane.events[at];
                if (!isFound(found, row.track, event)) continue;
                count++;
                if (places.length < LISTED) places.push({ row, lane, at, event });
            }
        }
    }
    places.sort((a, b) => a.lane.starts[a.at] - b.lane.starts[b.at]);
    return { found, places, count };
}
