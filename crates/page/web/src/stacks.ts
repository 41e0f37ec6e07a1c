// Sampled stacks: what the threads that make steps ran, as a flame graph.

import { Process, Stacks, TreeNode } from "./contract";
import { button, card, el } from "./dom";
import { count, share, time } from "./format";
import { longRows, mono } from "./panels";

/** What is narrower than this part of the graph is not drawn. */
const NARROW = 0.0012;
const ROW = 20;

/** How many samples there are, how far apart, and what was rejected. */
function caption({ rate, interval_ns, counts, rejected_share }: Stacks): string {
    const native = counts.native > 0 ? ` and ${count(counts.native)} native` : "";
    const apart = interval_ns === null || counts.samples === 0 ? "" : `, ${time(interval_ns)} apart`;
    const rejected = counts.rejected > 0 ? `, ${share(rejected_share)} rejected` : "";
    return `${count(counts.samples)} samples${native}${rate === null ? "" : ` at ${count(rate)} Hz`}${apart}${rejected}`;
}

export function stacks({ stacks: of }: Process): HTMLElement | null {
    if (!of) return null;
    if (!of.told_apart) return card("Sampled stacks", caption(of), el("p", { class: "none" }, `Functions are distinguished from ${of.enough} samples on.`));
    const trees = ([["Python", of.tree], ["native", of.native_tree]] as const).filter(([, tree]) => tree.length > 0);
    const place = el("div");
    const made = card("Sampled stacks", `${caption(of)}; click a function to zoom`, place);
    const ways = trees.map(([name, tree]) => button(name, `Show ${name} functions`, () => show(name, tree)));
    const show = (name: string, tree: TreeNode[]) => {
        ways.forEach((way) => way.setAttribute("aria-pressed", String(way.textContent === name)));
        place.replaceChildren(flames(tree));
    };
    if (ways.length > 1) made.querySelector("header")?.append(el("div", { class: "choice", role: "group", "aria-label": "Stacks" }, ...ways));
    const [first] = trees;
    if (first) show(first[0], first[1]);
    made.append(...longRows(["function", "of the samples", "samples", "asleep"], of.functions.map((one) => [
        mono(one.name), share(one.share), count(one.samples), one.asleep > 0 ? count(one.asleep) : "",
    ])));
    return made;
}

/** A tree of calls, callers above what they call: each as wide as its samples. */
function flames(tree: TreeNode[]): HTMLElement {
    const below = new Map<number | null, number[]>();
    tree.forEach(({ parent }, at) => below.set(parent, [...(below.get(parent) ?? []), at]));
    const graph = el("div", { class: "flames", role: "group", "aria-label": "Flame graph: arrows move between functions, Enter zooms, Escape shows all" });
    const status = el("p", { class: "status", "aria-live": "polite" });
    const all = button("Show all", "Show all functions", () => draw(null));
    const said = ({ name, share: part, samples, asleep }: TreeNode): string =>
        `${name}: ${share(part)}, ${count(samples)} samples${asleep > 0 ? `, ${count(asleep)} of them asleep` : ""}`;
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
        const made = button(node.name, said(node), () => draw(at));
        made.setAttribute("aria-label", said(node));
        // The same function has the same colour everywhere.
        let hash = 0;
        for (const char of node.name) hash = (hash * 31 + char.charCodeAt(0)) % 9973;
        made.style.cssText = `left:${left * 100}%;width:${wide * 100}%;top:${depth * ROW}px;--part:${20 + (hash % 8) * 10}%`;
        made.tabIndex = -1;
        const tell = () => status.replaceChildren(el("b", {}, said(node)));
        made.addEventListener("mouseenter", tell);
        made.addEventListener("focus", tell);
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

    /** Draws what a function calls, under its callers; `null`: all. */
    function draw(root: number | null) {
        const had_focus = graph.contains(document.activeElement) || document.activeElement === all;
        zoomed = root;
        graph.replaceChildren();
        drawn.clear();
        let deepest = 0;
        const fill = (at: number, depth: number, left: number, wide: number) => {
            put(at, depth, left, wide);
            deepest = Math.max(deepest, depth);
            let next = left;
            for (const child of below.get(at) ?? []) {
                const part = wide * tree[child].samples / tree[at].samples;
                if (part >= NARROW) fill(child, depth + 1, next, part);
                next += part;
            }
        };
        if (root === null) {
            const roots = below.get(null) ?? [];
            const sum = roots.reduce((sum, at) => sum + tree[at].samples, 0);
            let left = 0;
            for (const at of roots) {
                if (tree[at].samples / sum >= NARROW) fill(at, 0, left, tree[at].samples / sum);
                left += tree[at].samples / sum;
            }
        } else {
            const callers: number[] = [];
            for (let at = tree[root].parent; at !== null; at = tree[at].parent) callers.unshift(at);
            callers.forEach((at, depth) => {
                put(at, depth, 0, 1);
                drawn.get(at)?.classList.add("caller");
            });
            fill(root, callers.length, 0, 1);
        }
        graph.style.height = `${(deepest + 1) * ROW}px`;
        all.hidden = zoomed === null;
        const first = drawn.get(root ?? (below.get(null) ?? [])[0] ?? 0);
        if (first) first.tabIndex = 0;
        if (had_focus) first?.focus();
    }
    draw(null);
    return el("div", {}, graph, el("div", { class: "flames-said" }, status, all));
}
