// Draws the map that shows which ranks were late at collectives: ranks from top to bottom,
// iterations from left to right. The colour shows how late a rank was.

import { Data } from "./contract";
import { Arrivals } from "./data";
import { card, colour, el, offTheme, onTheme } from "./dom";
import { change, count, share, time } from "./format";
import { Cell, table } from "./panels";
import { size } from "./plot";

const LEFT = 34;
const TOP = 5;
const BOTTOM = 20;
/** Maximum number of ranks in the table below the map. */
const ROWS = 8;

const VERDICTS: Record<string, string> = { "transfer-bound": "transfer-bound", "arrival-skew": "arrival skew", mixed: "mixed", inconclusive: "inconclusive" };

/**
 * Returns the card about the collectives of several ranks; `null` if there are none. `pick` is
 * called to show an iteration of a process.
 */
export function arrivals(data: Data, found: Arrivals | null, pick: (place: number, n: number) => void): HTMLElement | null {
    const all = data.report.collectives;
    if (!all || !found) return null;
    const why = all.why ? ` (${all.why})` : "";
    const split = all.matched > 0 ? `; ranks wait ${share(all.wait_share)} of the time for the last one, and transfer ${share(all.transfer_share)}` : "";
    const caption = VERDICTS[all.verdict] + why + split;
    const late = all.ranks.map((rank, place) => ({ rank, place, saved: rank.iteration_ns - rank.iteration_without_ns }))
        .filter(({ rank, saved }) => rank.last > 0 && saved > 0).sort((a, b) => b.saved - a.saved).slice(0, ROWS);
    const rows = late.map(({ rank, place }) => [
        data.processes[place].name, count(rank.last), time(rank.iteration_without_ns),
        rank.causes.slice(0, 2).map(({ cause, detail, more_ns }) => `${change(more_ns)} ${cause}${detail ? ` (${detail})` : ""}`).join(", "),
    ]);
    const groups = all.groups.slice(0, ROWS).map((group): Cell[] => [
        group.group === null ? "found by times" : `${group.group} of ${count(group.size ?? 0)}`, group.name, count(group.processes.length),
        count(group.events), share(group.wait_ns / Math.max(1, group.wait_ns + group.transfer_ns)),
    ]);
    const are_named = all.groups.length > 1 || all.groups.some(({ group }) => group !== null);
    const notes = all.notes.map((note) => el("p", { class: "caption" }, note));
    return card("Who waits for whom", caption, ...(found.n.length ? [map(data, found, pick)] : []),
        rows.length > 0 && table(["held up by", "last in", "a step without it", "why it came late"], rows, 1),
        are_named && table(["group", "collective", "ranks", "events", "waiting"], groups, 2), ...notes);
}

function map(data: Data, found: Arrivals, pick: (place: number, n: number) => void): HTMLElement {
    const { n, ranks, late } = found;
    const steps = n.length;
    const each = Math.min(18, Math.max(1, Math.floor(400 / ranks)));
    const height = TOP + ranks * each + BOTTOM;
    // The darkest colour stands for the 99th percentile of lateness, so that a single extreme value
    // does not make all other values pale.
    const sorted = late.filter((one) => one > 1).sort();
    const most = Math.max(1, (sorted[Math.floor(sorted.length * 0.99)] ?? 1) - 1);
    const canvas = el("canvas", { role: "img", "aria-label": `How late ${ranks} ranks came to the collectives of ${count(steps)} iterations. The table has the latest.` });
    const tip = el("div", { class: "tip", role: "tooltip", hidden: "" });
    const root = el("div", { class: "heat" }, el("p", { class: "caption" }, `ranks by iterations: how much later than the median rank; the darkest is ${time(most * 1000)} and more`),
        el("div", { class: "map" }, canvas, tip));
    root.dataset.last = JSON.stringify([...found.last]);
    let width = 0;
    const draw = () => {
        width = Math.max(120, canvas.parentElement?.clientWidth ?? 0);
        const context = size(canvas, width, height);
        const wide = (width - LEFT) / steps;
        const [none, cold, hot] = [colour("missing"), colour("expert-even"), colour("expert-hot")];
        for (let rank = 0; rank < ranks; rank++) {
            const y = TOP + rank * each;
            // If several iterations share a pixel, draw the greatest of their latenesses.
            for (let x = 0, at = 0; at < steps; ) {
                let value = late[at++ * ranks + rank];
                while (wide < 1 && at < steps && at * wide < x + 1) value = Math.max(value, late[at++ * ranks + rank]);
                const end = Math.max(x + 1, Math.round(at * wide));
                const box = [LEFT + x, y, end - x - (wide >= 6 ? 1 : 0), each - (each >= 6 ? 1 : 0)] as const;
                context.fillStyle = value ? cold : none;
                context.fillRect(...box);
                if (value > 1) {
                    context.globalAlpha = Math.min(1, (value - 1) / most);
                    context.fillStyle = hot;
                    context.fillRect(...box);
                    context.globalAlpha = 1;
                }
                x = end;
            }
        }
        context.fillStyle = colour("muted");
        context.font = "11px system-ui, sans-serif";
        context.textBaseline = "middle";
        context.textAlign = "right";
        const every = Math.ceil(14 / each);
        for (let rank = 0; rank < ranks; rank += every) context.fillText(`${data.report.processes[rank].rank}`, LEFT - 6, TOP + rank * each + each / 2);
        context.textAlign = "left";
        const step = Math.max(1, Math.ceil(60 / wide));
        for (let at = 0; at < steps; at += step) context.fillText(`${n[at]}`, LEFT + at * wide, height - BOTTOM / 2 + 2);
    };
    const under = (event: MouseEvent): [number, number] | null => {
        const box = canvas.getBoundingClientRect();
        const rank = Math.floor((event.clientY - box.top - TOP) / each);
        const at = Math.floor(((event.clientX - box.left - LEFT) / (width - LEFT)) * steps);
        return rank >= 0 && rank < ranks && at >= 0 && at < steps ? [rank, at] : null;
    };
    canvas.addEventListener("pointermove", (event) => {
        const place = under(event);
        tip.hidden = !place;
        if (!place) return;
        const [rank, at] = place;
        const value = late[at * ranks + rank];
        const last = found.last[at];
        tip.replaceChildren(el("b", {}, `iteration ${n[at]}`),
            el("span", {}, value ? `${data.processes[rank].name} came ${time((value - 1) * 1000)} later than the median rank` : `${data.processes[rank].name}: not matched`),
            last < ranks && el("span", {}, `${data.processes[last].name} held the others up${found.why[at] ? `: ${found.why[at]}` : ""}`) || "");
        const box = canvas.getBoundingClientRect();
        tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 14, width - tip.offsetWidth - 4))}px`;
        tip.style.top = `${event.clientY - box.top + 16}px`;
    });
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    canvas.addEventListener("click", (event) => {
        const place = under(event);
        if (place) pick(place[0], n[place[1]]);
    });
    const themed = () => (root.isConnected ? draw() : offTheme(themed));
    onTheme(themed);
    new ResizeObserver((_, observer) => (root.isConnected ? draw() : observer.disconnect())).observe(root);
    return root;
}
