// A tree as an icicle: stacks of functions, or layers.

import { button, el } from "./dom";

/** What is narrower than this part of the graph is not drawn. */
const NARROW = 0.0012;
const ROW = 20;

/** A part of a tree. */
export interface Block {
    name: string;
    parent: number | null;
    weight: number;
    /** What there is to say of it. */
    said: string;
    /** It is drawn pale. */
    pale?: boolean;
}

/** A tree, each part below the one around it and as wide as its weight. What is at the side of its status line is `more`;
 * `zooms` is called with what is zoomed to. */
export function icicle(tree: Block[], label: string, more: HTMLElement | null = null, zooms: (at: number | null) => void = () => {}): HTMLElement {
    const below = new Map<number | null, number[]>();
    tree.forEach(({ parent }, at) => below.set(parent, [...(below.get(parent) ?? []), at]));
    const graph = el("div", { class: "flames", role: "group", "aria-label": label });
    const status = el("p", { class: "status", "aria-live": "polite" });
    const all = button("Show all", "Show all of it", () => draw(null));
    const drawn = new Map<number, HTMLButtonElement>();
    let zoomed: number | null = null;

    /** The button to which a key leads from one. */
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
        // The same name has the same colour everywhere, whatever its number.
        let hash = 0;
        for (const char of node.name.replace(/\d+/g, "*")) hash = (hash * 31 + char.charCodeAt(0)) % 9973;
        made.style.cssText = `left:${left * 100}%;width:${wide * 100}%;top:${depth * ROW}px;--part:${20 + (hash % 8) * 10}%`;
        made.tabIndex = -1;
        const say = () => status.replaceChildren(el("b", {}, node.said));
        made.addEventListener("mouseenter", say);
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

    /** Draws what is within a part, under those around it; `null`: all. */
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
        if (root === null) {
            const roots = below.get(null) ?? [];
            const sum = roots.reduce((sum, at) => sum + tree[at].weight, 0);
            let left = 0;
            for (const at of roots) {
                if (tree[at].weight / sum >= NARROW) fill(at, 0, left, tree[at].weight / sum);
                left += tree[at].weight / sum;
            }
        } else {
            const around: number[] = [];
            for (let at = tree[root].parent; at !== null; at = tree[at].parent) around.unshift(at);
            around.forEach((at, depth) => {
                put(at, depth, 0, 1);
                drawn.get(at)?.classList.add("caller");
            });
            fill(root, around.length, 0, 1);
        }
        graph.style.height = `${(deepest + 1) * ROW}px`;
        all.hidden = zoomed === null;
        const first = drawn.get(root ?? (below.get(null) ?? [])[0] ?? 0);
        if (first) first.tabIndex = 0;
        if (had_focus) first?.focus();
    }
    draw(null);
    return el("div", {}, graph, el("div", { class: "flames-said" }, status, more, all));
}
