// Draws a tree as an icicle, in which each part lies below the part that contains it. Stacks of
// functions and layers are drawn in this way.

import { button, el } from "./dom";
import { share } from "./format";

/** Minimum width of a part that is drawn, as a fraction of the whole width. */
const NARROW = 0.0012;
const ROW = 20;
/** Minimum number of outermost callers that are folded into one row. */
const FOLDED = 3;
/** Fraction of the whole width that each of the folded callers has at least. */
const ALL = 0.98;

/** A part of a tree, such as a function, whose parent is its caller. */
export interface Block {
    name: string;
    parent: number | null;
    weight: number;
    /** The text that the status line shows for this part. */
    said: string;
    /** True if the part is drawn in a pale colour. */
    pale?: boolean;
}

/**
 * Draws a tree in which each part lies below its parent and is as wide as its weight. `more` is an
 * element next to the status line. `zooms` is called with the part that the reader zooms to; `null`
 * stands for the whole tree. If `folds` is true, the outermost callers with nearly all of the
 * weight are folded into one row.
 */
export function icicle(tree: Block[], label: string, more: HTMLElement | null = null, zooms: (at: number | null) => void = () => {}, folds = false): HTMLElement {
    const below = new Map<number | null, number[]>();
    tree.forEach(({ parent }, at) => below.set(parent, [...(below.get(parent) ?? []), at]));
    const graph = el("div", { class: "flames", role: "group", "aria-label": label });
    const status = el("p", { class: "status", "aria-live": "polite" });
    const all = button("Show all", "Show all of it", () => draw(null));
    const drawn = new Map<number, HTMLButtonElement>();
    let zoomed: number | null = null;
    const callers = callersOfAll(tree, below);
    let is_folded = folds && callers.length >= FOLDED;
    /** Creates the row that stands for the folded outermost callers. */
    const folded = () => {
        const names = callers.map((at) => tree[at].name);
        const roots = below.get(null) ?? [];
        const part = tree[callers[callers.length - 1]].weight / roots.reduce((sum, at) => sum + tree[at].weight, 0);
        const made = button(`${callers.length} callers of ${share(part)}, from ${names[0]} to ${names[names.length - 1]}`, "Show these callers", () => {
            is_folded = false;
            draw(zoomed);
        });
        made.classList.add("caller", "folded");
        made.style.cssText = "left:0;width:100%;top:0";
        return made;
    };

    /**
     * Returns the part that gets the keyboard focus when the key `key` is pressed on the part `at`.
     */
    const beside = (at: number, key: string): number | undefined => {
        const { parent } = tree[at];
        const among = (below.get(parent) ?? []).filter((other) => drawn.has(other));
        const place = among.indexOf(at);
        if (key === "ArrowLeft") return among[place - 1];
        if (key === "ArrowRight") return among[place + 1];
        if (key === "ArrowUp") return parent ?? undefined;
        if (key === "ArrowDown") return (below.get(at) ?? []).find((other) => drawn.has(other));
        return undefined;
    };

    const put = (at: number, depth: number, left: number, wide: number) => {
        const node = tree[at];
        const made = button(node.name, node.said, () => draw(at));
        made.setAttribute("aria-label", node.said);
        made.classList.toggle("pale", !!node.pale);
        // Parts with the same name get the same colour. Numbers in names are ignored, so that
        // layers have the same colour, too.
        let hash = 0;
        for (const char of node.name.replace(/\d+/g, "*")) hash = (hash * 31 + char.charCodeAt(0)) % 9973;
        made.style.cssText = `left:${left * 100}%;width:${wide * 100}%;top:${depth * ROW}px;--part:${20 + (hash % 8) * 10}%`;
        made.tabIndex = -1;
        const say = () => status.replaceChildren(el("b", {}, node.said));
        // Not "mouseenter": a browser also sends that for a pointer at rest, when another part is
        // drawn below it, which would replace what a key chose.
        made.addEventListener("mousemove", say);
        made.addEventListener("focus", say);
        made.addEventListener("keydown", (event) => {
            if (event.key === "Escape") return draw(null);
            const next = beside(at, event.key);
            if (next === undefined) return;
            event.preventDefault();
            const target = drawn.get(next);
            if (!target) return;
            made.tabIndex = -1;
            target.tabIndex = 0;
            target.focus();
        });
        drawn.set(at, made);
        graph.append(made);
    };

    /**
     * Draws a part with its parents above it and everything inside it below. For `null`, draws the
     * whole tree.
     */
    function draw(root: number | null) {
        const had_focus = graph.contains(document.activeElement) || document.activeElement === all;
        zoomed = root;
        zooms(root);
        graph.replaceChildren();
        drawn.clear();
        let deepest = 0;
        const fill = (at: number, depth: number, left: number, wide: number) => {
            put(at, depth, left, wide);
            deepest = Math.max(deepest, depth);
            let next = left;
            for (const child of below.get(at) ?? []) {
                const part = wide * tree[child].weight / tree[at].weight;
                if (part >= NARROW) fill(child, depth + 1, next, part);
                next += part;
            }
        };
        if (is_folded) graph.append(folded());
        if (root === null && is_folded) {
            const inner = below.get(callers[callers.length - 1]) ?? [];
            const sum = tree[callers[callers.length - 1]].weight;
            let left = 0;
            for (const at of inner) {
                const part = tree[at].weight / sum;
                if (part >= NARROW) fill(at, 1, left, part);
                left += part;
            }
        } else if (root === null) {
            const roots = below.get(null) ?? [];
            const sum = roots.reduce((sum, at) => sum + tree[at].weight, 0);
            let left = 0;
            for (const at of roots) {
                if (tree[at].weight / sum >= NARROW) fill(at, 0, left, tree[at].weight / sum);
                left += tree[at].weight / sum;
            }
        } else {
            const around: number[] = [];
            for (let at = tree[root].parent; at !== null; at = tree[at].parent) if (!is_folded || !callers.includes(at)) around.unshift(at);
            const above = is_folded ? 1 : 0;
            around.forEach((at, depth) => {
                put(at, above + depth, 0, 1);
                drawn.get(at)?.classList.add("caller");
            });
            fill(root, above + around.length, 0, 1);
        }
        graph.style.height = `${(deepest + 1) * ROW}px`;
        all.hidden = zoomed === null;
        const first = drawn.get(root ?? [...drawn.keys()][0] ?? 0);
        if (first) first.tabIndex = 0;
        if (had_focus) first?.focus();
    }
    draw(null);
    return el("div", {}, graph, el("div", { class: "flames-said" }, status, more, all));
}

/**
 * Returns the outermost callers that contain nearly all of a tree's weight, from the outermost
 * inward.
 */
function callersOfAll(tree: Block[], below: Map<number | null, number[]>): number[] {
    const largest = (of: number | null) => (below.get(of) ?? []).reduce<number | null>((most, at) => (most === null || tree[at].weight > tree[most].weight ? at : most), null);
    const all = (below.get(null) ?? []).reduce((sum, at) => sum + tree[at].weight, 0);
    const found: number[] = [];
    for (let at = largest(null); at !== null && tree[at].weight >= ALL * all; at = largest(at)) found.push(at);
    // The innermost of these callers is not part of the result: none of its callees has nearly all of its time, so
    // the icicle should show how the callees share this time.
    return found.slice(0, -1);
}
