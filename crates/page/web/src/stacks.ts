// Draws the sampled stacks of the threads that run iterations, as a flame graph.

import { Process, Stacks, TreeNode } from "./contract";
import { button, card, el } from "./dom";
import { count, share } from "./format";
import { icicle } from "./icicle";
import { longRows, mono } from "./panels";

/**
 * Returns a sentence with the number of samples, the achieved rate, the requested rate, and the
 * share of rejected samples.
 */
function caption({ rate, achieved, achieved_native, counts, rejected_share }: Stacks): string {
    const at = (hz: number | null): string => (hz === null ? "" : ` at ${count(hz)} Hz`);
    const native = counts.native > 0 ? ` and ${count(counts.native)} native${at(achieved_native)}` : "";
    const asked = rate === null ? "" : ` (${count(rate)} Hz asked for)`;
    const rejected = counts.rejected > 0 ? `, ${share(rejected_share)} rejected` : "";
    return `${count(counts.samples)} samples${at(achieved)}${native}${asked}${rejected}`;
}

const said = ({ name, share: part, samples, asleep }: TreeNode): string =>
    `${name}: ${share(part)}, ${count(samples)} samples${asleep > 0 ? `, ${count(asleep)} of them asleep` : ""}`;

export function stacks({ stacks: of }: Process): HTMLElement | null {
    if (!of) return null;
    if (!of.told_apart) return card("Sampled stacks", caption(of), el("p", { class: "none" }, `Functions are distinguished from ${of.enough} samples on.`));
    const trees = ([["Python", of.tree], ["native", of.native_tree]] as const).filter(([, tree]) => tree.length > 0);
    const place = el("div");
    const made = card("Sampled stacks", `${caption(of)}; click a function to zoom`, place);
    const ways = trees.map(([name, tree]) => button(name, `Show ${name} functions`, () => show(name, tree)));
    const show = (name: string, tree: TreeNode[]) => {
        ways.forEach((way) => way.setAttribute("aria-pressed", String(way.textContent === name)));
        place.replaceChildren(icicle(tree.map((node) => ({ name: node.name, parent: node.parent, weight: node.samples, said: said(node) })),
            "Flame graph: arrows move between functions, Enter zooms, Escape shows all", null, undefined, true));
    };
    if (ways.length > 1) made.querySelector("header")?.append(el("div", { class: "choice", role: "group", "aria-label": "Stacks" }, ...ways));
    const [first] = trees;
    if (first) show(first[0], first[1]);
    made.append(...longRows(["function", "of the samples", "samples", "asleep"], of.functions.map((one) => [
        mono(one.name), share(one.share), count(one.samples), one.asleep > 0 ? count(one.asleep) : "",
    ])));
    return made;
}
