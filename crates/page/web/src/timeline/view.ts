// The timeline on the page: its visible part, and the keys, wheel and pointer that move it.

import { above, Iterations, Timeline } from "../data";
import { button, el, onTheme } from "../dom";
import { count, time } from "../format";
import { colours } from "../kinds";
import { draw, lengthOf, Spot, Scene, startOf, View } from "./draw";
import { Links } from "./links";
import { AXIS, iterationLane, Row, rows } from "./rows";
import { Matches, search } from "./search";
import { describe } from "./describe";

const GUTTER = 158;
const SHORTEST = 50;
const TALLEST = 520;
const KEYS: readonly (readonly [string, string])[] = [
    ["W S", "zoom"], ["A D", "pan"], ["[ ]", "previous, next iteration"], [", .", "previous, next event"], ["F", "to the event"],
    ["L", "to its launch, to what it launched"], ["0", "whole window"], ["/", "find"], ["Ctrl+wheel", "zoom"], ["drag", "pan"], ["Shift+drag", "zoom to a part"],
];
const HELP = KEYS.map(([keys, act]) => `${keys}: ${act}`).join("; ");

export class TimelineView {
    readonly root: HTMLElement;
    private readonly canvas = el("canvas", { tabindex: "0", role: "application", "aria-label": "Timeline. " + HELP });
    private readonly space = el("div", { class: "space" });
    private readonly scroller = el("div", { class: "scroller" }, this.canvas, this.space);
    private readonly tip = el("div", { class: "tip", role: "tooltip", hidden: "" });
    private readonly status = el("p", { class: "status", "aria-live": "polite" });
    private readonly note = el("p", { class: "caption" });
    private readonly legend = el("ul", { class: "legend" });
    private readonly windows = el("select", { "aria-label": "Window" });
    private readonly box = el("input", { type: "search", placeholder: "Find events", "aria-label": "Find events by name" });
    private readonly hits = el("span", { class: "hits", "aria-live": "polite" });
    private readonly view: View = { from: 0, to: 1, left: GUTTER, width: 1, height: 1, top: 0 };
    private goal: [number, number] | null = null;
    private scene: Scene | null = null;
    private timeline: Timeline | null = null;
    /** Links between calls and kernels. They are computed only when they are needed. */
    private links: Links | null = null;
    private matches: Matches | null = null;
    private match = -1;
    private height = 0;
    private pointer: number | null = null;
    private frame = 0;

    constructor() {
        const tools = el("div", { class: "tools" }, this.windows,
            button("Slowest", "The slowest iteration of the window and its neighbours", () => this.showSlowest()),
            button("Typical", "The iteration of median length and its neighbours", () => this.showTypical()),
            button("Whole window", "All of the window (0)", () => this.showWindow()),
            button("−", "Zoom out (S)", () => this.zoom(1.6)), button("+", "Zoom in (W)", () => this.zoom(1 / 1.6)),
            el("span", { class: "find" }, this.box, this.hits));
        this.root = el("div", { class: "timeline" }, tools, this.note,
            el("div", { class: "frame" }, this.scroller, this.tip), this.status, this.legend,
            el("p", { class: "caption help", "aria-hidden": "true" }, ...KEYS.map(([keys, act]) => el("span", {}, el("kbd", {}, keys), ` ${act}`))));
        this.windows.addEventListener("change", () => this.showWindow());
        this.box.addEventListener("input", () => this.find());
        this.box.addEventListener("keydown", (event) => {
            if (event.key === "Enter") this.nextMatch(event.shiftKey ? -1 : 1);
            if (event.key === "Escape") { this.box.value = ""; this.find(); this.canvas.focus(); }
        });
        this.scroller.addEventListener("scroll", () => this.redraw());
        new ResizeObserver(() => this.resize()).observe(this.scroller);
        onTheme(() => this.redraw());
        this.listen();
    }

    /**
     * Shows the timeline of a process. `timeline` is `null` if the process's events are not on the
     * page or have not been read yet.
     */
    set(iterations: Iterations, timeline: Timeline | null, names: string[], note: string) {
        const lane = iterationLane(iterations);
        const made = rows(iterations, lane, timeline);
        this.timeline = timeline;
        this.links = null;
        this.height = made.height;
        this.scene = {
            rows: made.rows, iterations, names: timeline?.names ?? [], labels: timeline?.labels ?? [],
            layered: !!timeline?.tracks.some(({ scopes }) => scopes.some((scope) => scope > 0)), origin: 0, hovered: null, selected: null, arrows: [], found: null,
        };
        this.note.textContent = note;
        this.windows.replaceChildren(...names.map((name, at) => el("option", { value: String(at) }, name)));
        this.windows.hidden = names.length < 2;
        this.legend.replaceChildren(...this.used().map(([colour, word]) =>
            el("li", {}, el("i", { style: `background: var(--${colour})` }), word)));
        this.status.textContent = "";
        this.space.style.height = `${Math.max(0, this.height - this.boxHeight())}px`;
        this.find();
        this.resize();
        this.showFirst();
    }

    /**
     * Shows the slowest iteration of all windows; if kernels were recorded, the slowest iteration
     * with recorded kernels.
     */
    private showFirst() {
        const { iterations } = this;
        const all = [...(iterations?.n.keys() ?? [])];
        if (!iterations || !all.length) return this.showWindow();
        const shown = all.filter((i) => iterations.shown[i] && iterations.qualifies[i]);
        const taken = shown.filter((i) => !Number.isNaN(iterations.busy[i]));
        const among = [taken, shown, all].find((some) => some.length > 0) ?? all;
        this.showIteration(among.reduce((slowest, i) => (iterations.worked[i] > iterations.worked[slowest] ? i : slowest)));
    }

    get iterations(): Iterations | undefined {
        return this.scene?.iterations;
    }

    /**
     * Shows the iteration at the index `place`, with `around` iterations before and after it, and
     * selects it.
     */
    showIteration(place: number, around = 1) {
        const { scene } = this;
        if (!scene) return;
        const { iterations } = scene;
        const window = Math.max(0, iterations.windows.findIndex(([from, to]) => place >= from && place < to));
        this.windows.value = String(window);
        const [first, end] = iterations.windows[window] ?? [0, 0];
        const from = Math.max(first, place - around);
        const to = Math.min(end - 1, place + around);
        if (to < from) return;
        scene.origin = iterations.start[first];
        const start = iterations.start[from];
        const until = iterations.start[to] + iterations.dur[to];
        const margin = (until - start) * 0.02;
        const row = scene.rows[0];
        const at = row.lanes[0].events.indexOf(place);
        this.select({ row, lane: row.lanes[0], at, event: place });
        this.go(start - margin, until + margin);
    }

    showSlowest() {
        const [from, to] = this.window();
        const { iterations } = this;
        if (!iterations || to <= from) return this.showWindow();
        let slowest = from;
        for (let i = from; i < to; i++) if (iterations.worked[i] > iterations.worked[slowest]) slowest = i;
        this.showIteration(slowest);
    }

    private showTypical() {
        const [from, to] = this.window();
        const { iterations } = this;
        if (!iterations || to <= from) return;
        const order = Array.from({ length: to - from }, (_, i) => from + i);
        order.sort((a, b) => iterations.worked[a] - iterations.worked[b]);
        this.showIteration(order[order.length >> 1]);
    }

    private window(): [number, number] {
        return this.iterations?.windows[Number(this.windows.value) || 0] ?? [0, 0];
    }

    private showWindow() {
        const { scene } = this;
        if (!scene) return;
        const [start, until] = this.extent();
        scene.origin = start;
        this.go(start - (until - start) * 0.01, until + (until - start) * 0.01);
    }

    /**
     * Returns the start and the end of the selected window. If there are no iterations, they are
     * the times of the first and the last event.
     */
    private extent(): [number, number] {
        const [from, to] = this.window();
        const { iterations, timeline } = this;
        let start = Infinity, until = -Infinity;
        for (let i = from; iterations && i < to; i++) {
            start = Math.min(start, iterations.start[i]);
            until = Math.max(until, iterations.start[i] + iterations.dur[i]);
        }
        if (until > start) return [start, until];
        for (const track of timeline?.tracks ?? []) {
            for (let i = 0; i < track.start.length; i++) {
                start = Math.min(start, track.start[i]);
                until = Math.max(until, track.start[i] + track.dur[i]);
            }
        }
        return until > start ? [start, until] : [0, 1e6];
    }

    /** Returns the colours that occur in the timeline, with their meanings. */
    private used(): (readonly [string, string])[] {
        const seen = new Set<string>();
        for (const { kind, kinds } of this.timeline?.tracks ?? []) for (const number of new Set(kind)) seen.add(kinds[number].colour);
        return colours.filter(([colour]) => seen.has(colour));
    }

    // The methods below move the visible part of the timeline.

    private go(from: number, to: number) {
        const [start, until] = this.bounds();
        const span = Math.max(SHORTEST, Math.min(to - from, (until - start) * 1.1));
        const middle = (from + to) / 2;
        let begin = middle - span / 2;
        begin = Math.min(Math.max(begin, start - span / 2), until - span / 2);
        this.goal = [begin, begin + span];
        // Remove the tooltip: after the move, another event is under the pointer.
        this.hover(null, -1, -1);
        if (matchMedia("(prefers-reduced-motion: reduce)").matches) [this.view.from, this.view.to] = this.goal;
        this.redraw();
    }

    /** Returns the earliest and the latest time that can be shown, over all windows. */
    private bounds(): [number, number] {
        const lane = this.scene?.rows[0].lanes[0];
        const [start, until] = this.extent();
        if (!lane?.starts.length || !this.iterations) return [start, until];
        const last = lane.starts.length - 1;
        return [Math.min(start, lane.starts[0]), Math.max(until, lane.starts[last] + this.iterations.dur[lane.events[last]])];
    }

    private zoom(factor: number, x = this.pointer ?? GUTTER + this.view.width / 2) {
        const [from, to] = this.goal ?? [this.view.from, this.view.to];
        const at = from + ((to - from) * Math.min(Math.max(x - GUTTER, 0), this.view.width)) / this.view.width;
        this.go(at - (at - from) * factor, at + (to - at) * factor);
    }

    private pan(part: number) {
        const [from, to] = this.goal ?? [this.view.from, this.view.to];
        const more = (to - from) * part;
        this.go(from + more, to + more);
    }

    private boxHeight(): number {
        return Math.min(TALLEST, Math.max(160, this.height));
    }

    private resize() {
        const width = this.scroller.clientWidth;
        if (!width) return;
        const height = this.boxHeight();
        const ratio = devicePixelRatio || 1;
        this.scroller.style.height = `${height}px`;
        this.canvas.style.width = `${width}px`;
        this.canvas.style.height = `${height}px`;
        this.canvas.width = Math.round(width * ratio);
        this.canvas.height = Math.round(height * ratio);
        this.view.width = Math.max(1, width - GUTTER);
        this.view.height = height;
        this.redraw();
    }

    private redraw() {
        this.frame ||= requestAnimationFrame(() => this.paint());
    }

    private paint() {
        this.frame = 0;
        const { scene, view, goal } = this;
        const context = this.canvas.getContext("2d", { alpha: false });
        if (!scene || !context) return;
        if (goal) {
            const near = (goal[1] - goal[0]) * 1e-3;
            const more = [goal[0] - view.from, goal[1] - view.to];
            if (Math.abs(more[0]) < near && Math.abs(more[1]) < near) {
                [view.from, view.to] = goal;
                this.goal = null;
            } else {
                view.from += more[0] * 0.4;
                view.to += more[1] * 0.4;
                this.redraw();
            }
        }
        view.top = this.scroller.scrollTop;
        const ratio = this.canvas.width / (view.width + GUTTER);
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        const arrows = draw(context, view, scene);
        const { dataset } = this.canvas;
        dataset.from = String(view.from);
        dataset.to = String(view.to);
        dataset.arrows = String(arrows);
        dataset.still = String(!this.goal);
    }

    // The methods below find and select events.

    private at(x: number, y: number): Spot | null {
        const { scene, view } = this;
        if (!scene || x < GUTTER || y < AXIS) return null;
        const below = y + view.top;
        const row = scene.rows.find((row: Row) => below >= row.y && below < row.y + row.height);
        const lane = row?.lanes[Math.floor((below - row.y) / row.lane)];
        if (!row || !lane) return null;
        const pixel = (view.to - view.from) / view.width;
        const moment = view.from + (x - GUTTER) * pixel;
        const lengths = row.track?.dur ?? scene.iterations.dur;
        const next = above(lane.starts, moment);
        for (const [place, slack] of [[next - 1, 0], [next - 1, 2 * pixel], [next, 2 * pixel]] as const) {
            const event = lane.events[place];
            if (event === undefined) continue;
            const start = lane.starts[place];
            if (moment >= start - slack && moment <= start + lengths[event] + slack) return { row, lane, at: place, event };
        }
        return null;
    }

    private describe(place: Spot): string[] {
        return this.scene ? describe(this.scene, () => this.launches(), place) : [];
    }

    private launches(): Links {
        return (this.links ??= new Links(this.scene?.rows ?? []));
    }

    /**
     * Follows the link of the selected event: from a kernel to its launching call, or from a call
     * to its first kernel.
     */
    private follow() {
        const place = this.scene?.selected;
        const launch = place && Links.launch(place);
        if (!place || !launch) return;
        const { track } = place.row;
        const is_kernel = track?.kinds[track.kind[place.event]].end === "kernel";
        const kernels = () => this.launches().kernelsOf(launch).sort((a, b) => startOf(a) - startOf(b));
        const to = is_kernel ? this.launches().callOf(launch) : kernels()[0];
        if (!to || !this.scene) return;
        this.see(to, false);
        // Move the visible part so that both the call and the kernel are visible.
        const [call, kernel] = is_kernel ? [to, place] : [place, to];
        const [start, end] = [startOf(call), startOf(kernel) + lengthOf(this.scene, kernel)];
        const [from, until] = this.goal ?? [this.view.from, this.view.to];
        if (start < from || end > until) this.go(start - (end - start) * 0.1, end + (end - start) * 0.1);
    }

    /**
     * Returns the text of the tooltip for the metric's curve at a position; `null` if there is no
     * curve at that position.
     */
    private metricAt(x: number, y: number): string[] | null {
        const { scene, view } = this;
        const below = y + view.top;
        const metric = scene?.rows.find((row) => row.metric && below >= row.y && below < row.y + row.height)?.metric;
        if (!metric || x < GUTTER) return null;
        const moment = view.from + ((x - GUTTER) * (view.to - view.from)) / view.width;
        const at = above(metric.start, moment) - 1;
        if (at < 0 || moment > metric.start[at] + metric.dur[at]) return null;
        return [`GPU ${metric.device} ${metric.name}`, `${metric.value[at].toFixed(1)} ${metric.unit}, the mean of ${time(metric.dur[at])}`];
    }

    private hover(place: Spot | null, x: number, y: number) {
        const { scene, tip } = this;
        if (!scene) return;
        const old = scene.hovered;
        if (old?.lane !== place?.lane || old?.at !== place?.at) {
            scene.hovered = place;
            this.redraw();
        }
        const described = place ? this.describe(place) : this.metricAt(x, y);
        tip.hidden = !described;
        if (!described) return;
        const [name, rest] = described;
        tip.replaceChildren(el("b", {}, name), el("span", {}, rest));
        const room = this.scroller.clientWidth;
        tip.style.left = `${Math.max(4, Math.min(x + 14, room - tip.offsetWidth - 8))}px`;
        tip.style.top = `${y + 18}px`;
    }

    private select(place: Spot | null) {
        if (!this.scene) return;
        this.scene.selected = place;
        this.scene.arrows = [];
        const launch = place ? Links.launch(place) : 0;
        const call = launch ? this.launches().callOf(launch) : null;
        if (place && call) {
            const kernels = place.lane === call.lane ? this.launches().kernelsOf(launch) : [place];
            this.scene.arrows = kernels.map((kernel) => ({ call, kernel }));
        }
        this.status.replaceChildren();
        if (place) {
            const [name, rest] = this.describe(place);
            this.status.append(el("b", {}, name), " " + rest);
        }
        this.redraw();
    }

    /** Moves the visible part so that it contains an event. */
    private see(place: Spot, close: boolean) {
        const { scene, view } = this;
        if (!scene) return;
        const start = startOf(place);
        const length = lengthOf(scene, place);
        const [from, to] = this.goal ?? [view.from, view.to];
        const y = place.row.y + place.row.lanes.indexOf(place.lane) * place.row.lane;
        if (y < view.top + AXIS || y + place.row.lane > view.top + view.height) this.scroller.scrollTop = y - view.height / 2;
        if (close) this.go(start - length * 0.15 - 5, start + length * 1.15 + 5);
        else if (start < from || start + length > to) {
            const span = Math.max(to - from, length * 1.3);
            this.go(start + length / 2 - span / 2, start + length / 2 + span / 2);
        }
        this.select(place);
    }

    private step(by: number) {
        const place = this.scene?.selected;
        const at = (place?.at ?? -1) + by;
        if (place && at >= 0 && at < place.lane.events.length) this.see({ ...place, at, event: place.lane.events[at] }, false);
    }

    private stepIteration(by: number) {
        const { scene, view } = this;
        if (!scene) return;
        const lane = scene.rows[0].lanes[0];
        const now = scene.selected?.row === scene.rows[0] ? scene.selected.at : above(lane.starts, (view.from + view.to) / 2) - 1;
        const event = lane.events[now + by];
        if (event !== undefined) this.showIteration(event);
    }

    private find() {
        if (!this.scene) return;
        this.matches = this.timeline ? search(this.box.value, this.timeline, this.scene.rows) : null;
        this.match = -1;
        this.scene.found = this.matches?.found ?? null;
        this.hits.textContent = this.matches ? `${count(this.matches.count)} found` : "";
        this.redraw();
    }

    /** Searches for events and shows the first one that matches. */
    search(text: string) {
        this.box.value = text;
        this.find();
        this.root.scrollIntoView({ block: "nearest" });
        this.nextMatch(1);
    }

    private nextMatch(by: number) {
        const places = this.matches?.places;
        if (!places?.length) return;
        this.match = (this.match + by + places.length) % places.length;
        this.see(places[this.match], false);
        this.hits.textContent = `${count(this.match + 1)} of ${count(this.matches?.count ?? 0)}`;
    }

    // The methods below handle input.

    private listen() {
        const { canvas } = this;
        canvas.addEventListener("keydown", (event) => {
            if (event.ctrlKey || event.metaKey || event.altKey) return;
            const act = this.keys()[event.key.length === 1 ? event.key.toLowerCase() : event.key];
            if (!act) return;
            event.preventDefault();
            act();
        });
        this.scroller.addEventListener("wheel", (event) => {
            const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
            if (event.ctrlKey || event.metaKey) {
                this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 250))), this.place(event)[0]);
            } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
                this.pan(sideways / 900);
            } else return;
            event.preventDefault();
        }, { passive: false });
        let down: { x: number; from: number; to: number; moved: boolean; part: boolean } | null = null;
        canvas.addEventListener("pointerdown", (event) => {
            if (event.button !== 0) return;
            canvas.setPointerCapture(event.pointerId);
            const [from, to] = [this.view.from, this.view.to];
            down = { x: this.place(event)[0], from, to, moved: false, part: event.shiftKey };
        });
        canvas.addEventListener("pointermove", (event) => {
            const [x, y] = this.place(event);
            this.pointer = x;
            if (down && Math.abs(x - down.x) > 3) down.moved = true;
            if (down?.moved && !down.part) {
                const more = ((down.x - x) * (down.to - down.from)) / this.view.width;
                this.go(down.from + more, down.to + more);
                if (this.goal) [this.view.from, this.view.to] = this.goal;
            }
            if (down?.moved) this.hover(null, -1, -1);
            else this.hover(this.at(x, y), x, y);
        });
        canvas.addEventListener("pointerup", (event) => {
            const [x, y] = this.place(event);
            if (down && !down.moved) this.select(this.at(x, y));
            if (down?.moved && down.part) {
                const moment = (x: number) => this.view.from + ((x - GUTTER) * (this.view.to - this.view.from)) / this.view.width;
                this.go(moment(Math.min(x, down.x)), moment(Math.max(x, down.x)));
            }
            down = null;
        });
        canvas.addEventListener("pointerleave", () => {
            this.pointer = null;
            this.hover(null, -1, -1);
        });
        canvas.addEventListener("dblclick", (event) => {
            const place = this.at(...this.place(event));
            if (place) this.see(place, true);
        });
    }

    private place(event: MouseEvent): [number, number] {
        const box = this.canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
    }

    private keys(): Record<string, () => void> {
        const closer = () => this.zoom(1 / 1.5);
        const further = () => this.zoom(1.5);
        const left = () => this.pan(-0.2);
        const right = () => this.pan(0.2);
        return {
            w: closer, "+": closer, "=": closer, ArrowUp: closer, s: further, "-": further, ArrowDown: further,
            a: left, ArrowLeft: left, d: right, ArrowRight: right,
            "[": () => this.stepIteration(-1), "]": () => this.stepIteration(1),
            ",": () => this.step(-1), ".": () => this.step(1), "0": () => this.showWindow(), Home: () => this.showWindow(),
            f: () => this.scene?.selected && this.see(this.scene.selected, true),
            l: () => this.follow(),
            "/": () => this.box.focus(), Escape: () => this.select(null),
        };
    }
}
