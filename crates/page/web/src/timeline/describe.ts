// Describes an event of the timeline in words, for the status line and tooltips.

import { above, isTimed } from "../data";
import { bytes, count, time } from "../format";
import { Flag } from "../kinds";
import { batchText } from "../phases";
import { lengthOf, Scene, Spot, startOf } from "./draw";
import { Links } from "./links";

/** Returns the parts of an event's description, of which the first is the event's name. */
export function describe(scene: Scene, links: () => Links, place: Spot): string[] {
    const { iterations } = scene;
    const start = startOf(place);
    const length = lengthOf(scene, place);
    const track = place.row.track;
    if (!track) {
        const i = place.event;
        const parts = [
            `${time(length)}`, `${count(iterations.launches[i])} launches`, `waits ${time(iterations.wait[i])}`,
            iterations.gil[i] > 0 && `GIL wait ${time(iterations.gil[i])}`, iterations.gc[i] > 0 && `GC ${time(iterations.gc[i])}`,
            !Number.isNaN(iterations.gpu[i]) && `GPU time ${time(iterations.gpu[i])}`,
            !isTimed(iterations, i) && "GPU time not taken",
            !Number.isNaN(iterations.busy[i]) && `${count(iterations.kernels[i])} kernels${iterations.busy[i] > 0 || !iterations.kernels[i] ? `, at work ${time(iterations.busy[i])}` : ""}`,
            iterations.cut[i] && "cut off", batchText(iterations, i), !iterations.qualifies[i] && "left out of the figures",
        ];
        return [`iteration ${iterations.n[i]}`, parts.filter(Boolean).join(" · ")];
    }
    const kind = track.kinds[track.kind[place.event]];
    const flags = track.flags[place.event];
    const parts = [kind.label, time(length)];
    const value = track.value[place.event];
    if (kind.value === "collected") parts.push(`${count(value)} objects collected`);
    else if (kind.value === "bytes") {
        parts.push(bytes(value));
        if (length > 0) parts.push(`${bytes((value / length) * 1e9)}/s`);
    } else if (kind.value === "iteration") parts.push(`iteration ${value}`);
    else if (kind.value) parts.push(`${kind.value} ${count(value)}`);
    if (kind.end === "kernel" && scene.layered) {
        const scope = track.scopes[place.event];
        parts.push(scope ? (scene.names[scope - 1] ? `in ${scene.names[scope - 1]}` : "in no layer") : "its layer is not known");
    }
    if (kind.end) parts.push(...launched(scene, links(), place));
    if (flags & Flag.Cut) parts.push("cut off");
    if (flags & Flag.Failed) parts.push("failed");
    if (flags & Flag.Capturing) parts.push("in a stream capture");
    const lane = scene.rows[0].lanes[0];
    const in_ = lane.events[above(lane.starts, start) - 1];
    if (in_ !== undefined && start <= iterations.start[in_] + iterations.dur[in_]) {
        parts.push(`${time(start - iterations.start[in_])} into iteration ${iterations.n[in_]}`);
    }
    return [scene.names[track.names[place.event]], parts.join(" · ")];
}

/**
 * Returns the parts of an event's description that are about its launch: for a kernel its launching
 * call, for a call the kernels that it launched.
 */
function launched(scene: Scene, links: Links, place: Spot): string[] {
    const track = place.row.track;
    const launch = Links.launch(place);
    const is_kernel = track?.kinds[track.kind[place.event]].end === "kernel";
    if (!launch) return is_kernel ? ["its launch is not known"] : [];
    const call = links.callOf(launch);
    if (is_kernel) {
        const by = call?.row.track;
        if (!call || !by) return ["its launch is not on this page"];
        return [`launched by ${scene.names[by.names[call.event]]} on ${by.name}, ${time(startOf(place) - startOf(call))} before it began`];
    }
    const kernels = links.kernelCount(launch);
    const first = kernels === 1 ? links.kernelsOf(launch)[0] : null;
    if (first) return [`launched ${scene.labels[first.row.track?.names[first.event] ?? 0]}`];
    return kernels ? [`launched ${count(kernels)} kernels`] : [];
}
