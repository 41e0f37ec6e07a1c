// Links between launching calls and the kernels that they launched, if both are on the page.

import { above } from "../data";
import { Place } from "../kinds";
import { Spot } from "./draw";
import { Row } from "./rows";

export class Links {
    /** For each launch, the index of its call's row plus 1; 0 if the call is not on the page. */
    private readonly call_row: Uint32Array;
    /** For each launch, the event of its call in the call's row. */
    private readonly call: Uint32Array;
    /**
     * For each launch, the index at which its kernels begin in `kernel_row` and `kernel`. One more
     * entry marks the end of the last launch's kernels.
     */
    private readonly from: Uint32Array;
    private readonly kernel_row: Uint32Array;
    private readonly kernel: Uint32Array;

    constructor(private readonly rows: Row[]) {
        let launches = 0;
        const each = (act: (launch: number, row: number, event: number, is_call: boolean) => void) => rows.forEach(({ track }, row) => {
            if (track?.place !== Place.Stream && track?.place !== Place.Thread) return;
            const wanted = track.place === Place.Thread ? "call" : "kernel";
            const is_end = Uint8Array.from(track.kinds, (kind) => (kind.end === wanted ? 1 : 0));
            for (let event = 0; event < track.kind.length; event++) {
                const launch = track.value[event];
                if (is_end[track.kind[event]] && launch > 0) act(launch, row, event, wanted === "call");
            }
        });
        each((launch) => (launches = Math.max(launches, launch)));
        this.call_row = new Uint32Array(launches + 1);
        this.call = new Uint32Array(launches + 1);
        this.from = new Uint32Array(launches + 2);
        each((launch, row, event, is_call) => {
            if (is_call) [this.call_row[launch], this.call[launch]] = [row + 1, event];
            else this.from[launch + 1]++;
        });
        for (let launch = 1; launch < this.from.length; launch++) this.from[launch] += this.from[launch - 1];
        const next = this.from.slice();
        const kernels = this.from[this.from.length - 1];
        this.kernel_row = new Uint32Array(kernels);
        this.kernel = new Uint32Array(kernels);
        each((launch, row, event, is_call) => {
            if (is_call) return;
            const at = next[launch]++;
            [this.kernel_row[at], this.kernel[at]] = [row, event];
        });
    }

    /**
     * Returns the number of the launch that an event belongs to, plus 1; 0 if there is none or if
     * it is not known.
     */
    static launch(place: Spot): number {
        const track = place.row.track;
        return track && track.kinds[track.kind[place.event]].end ? track.value[place.event] : 0;
    }

    callOf(launch: number): Spot | null {
        const row = this.call_row[launch];
        return row ? this.spot(row - 1, this.call[launch]) : null;
    }

    kernelCount(launch: number): number {
        return this.from[launch + 1] - this.from[launch];
    }

    /**
     * Returns the kernels of a launch, stream by stream; on each stream they are in the order of
     * time.
     */
    kernelsOf(launch: number): Spot[] {
        const found: Spot[] = [];
        for (let at = this.from[launch]; at < this.from[launch + 1]; at++) {
            const place = this.spot(this.kernel_row[at], this.kernel[at]);
            if (place) found.push(place);
        }
        return found;
    }

    private spot(at: number, event: number): Spot | null {
        const row = this.rows[at];
        const start = row.track?.start[event] ?? 0;
        for (const lane of row.lanes) {
            // Several events of a lane may have the same start. They are next to each other, so
            // look at all of them.
            for (let place = above(lane.starts, start) - 1; place >= 0 && lane.starts[place] === start; place--) {
                if (lane.events[place] === event) return { row, lane, at: place, event };
            }
        }
        return null;
    }
}
