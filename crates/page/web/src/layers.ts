// GPU time by layer, as a table and as an icicle. Layers whose names differ only in a number are
// shown together or separately.

import { GpuLayerPattern, Process } from "./contract";
import { button, card, el } from "./dom";
import { count, rate, share, time } from "./format";
import { Block, icicle } from "./icicle";
import { Cell, longRows } from "./panels";

/** Returns the text with which the timeline's search finds the kernels of the layer `name`. */
export const wanted = (name: string) => `layer:${name}`;

/**
 * Returns the part of `name` after the prefix `around`, with the separator before it; `null` if the
 * layer `around` does not contain the layer `name`.
 */
function within(name: string, around: string): string | null {
    return name.startsWith(around) && /^[./]/.test(name.slice(around.length)) ? name.slice(around.length) : null;
}

const known = (ns: number | null, has_times: boolean): string => (ns === null || !has_times ? "–" : time(ns));

/**
 * Returns the card about the layers of a process; `null` if there is nothing to show. `find`
 * searches the timeline for events.
 */
export function layers(process: Process, find: (text: string) => void): HTMLElement | null {
    const { layer_patterns: together, layer_tree: each, layers_unknown: unknown, layers: rows, kernel_window: taken } = process;
    if (!rows.length && !unknown.length) return null;
    const has_times = rows.some((row) => row.gpu_ns > 0) || unknown.some((row) => row.gpu_ns > 0);
    const place = el("div", { class: "layers-shown" });
    const made = card("Layers", `time of the GPU's kernels by the torch module, NVTX range or marked function that launched them${taken ? `, in ${count(taken.iterations)} iterations` : ""}`, place);
    let is_together = true;
    let depth = Infinity;
    const all = [together, each].flat().reduce((deepest, row) => Math.max(deepest, row.depth + 1), 1);
    const way = (name: string, title: string, is: boolean) => button(name, title, () => {
        is_together = is;
        draw();
    });
    const ways = [way("like ones together", "One row for all layers whose names differ in a number alone", true), way("each layer", "Each layer by itself", false)];
    const depths = el("select", { "aria-label": "Depth of layers" }, el("option", { value: "Infinity" }, "all depths"),
        ...Array.from({ length: all - 1 }, (_, at) => el("option", { value: String(at + 1) }, at ? `${at + 1} deep` : "outermost")));
    depths.addEventListener("change", () => {
        depth = Number(depths.value);
        draw();
    });
    made.querySelector("header")?.append(el("div", { class: "choice", role: "group", "aria-label": "Layers" }, ...ways, ...(all > 1 ? [depths] : [])));
    const draw = () => {
        ways.forEach((one, at) => one.setAttribute("aria-pressed", String((at === 0) === is_together)));
        const tree = (is_together ? together : each).filter((row) => row.depth < depth);
        place.replaceChildren(...(has_times && tree.length ? [blocks(tree, process, find)] : []), ...table(tree, is_together, has_times, find));
        const outside = rows.find((row) => !row.name);
        const part = ({ gpu_ns, share: of, kernels }: { gpu_ns: number; share: number; kernels: number }) => (has_times ? `${share(of)}, ${time(gpu_ns)}` : `${count(kernels)} kernels`);
        const rest = [
            ...(outside ? [`in no torch module, NVTX range or marked function: ${part(outside)}`] : []),
            ...unknown.map((row) => `layer not known: ${part(row)}: ${row.why}`),
        ];
        place.append(...rest.map((line) => el("p", { class: "caption" }, line)));
    };
    draw();
    return made;
}

/** Draws the icicle of layers, kernels outside layers, and kernels whose layer is not known. */
function blocks(tree: GpuLayerPattern[], { layers: rows, layers_unknown: unknown }: Process, find: (text: string) => void): HTMLElement {
    const around: number[] = [];
    const made = tree.map((row, at): Block => {
        while (around.length && within(row.name, tree[around[around.length - 1]].name) === null) around.pop();
        const parent = around.length ? around[around.length - 1] : null;
        around.push(at);
        const rest = parent === null ? row.name : (within(row.name, tree[parent].name) ?? row.name).slice(1);
        const many = row.layers > 1 ? `, ${count(row.layers)} layers of ${time(row.each_ns)}` : "";
        return { name: rest, parent, weight: row.gpu_ns, said: `${row.name}: ${share(row.share)}, ${time(row.step_ns)} a step${many}, ${rate(row.kernels_a_step)} kernels` };
    });
    const outside = rows.find((row) => !row.name);
    const rest = ([["in none", outside ? [outside] : []], ["not known", unknown]] as const).flatMap(([name, list]): Block[] => {
        const weight = list.reduce((sum, row) => sum + row.gpu_ns, 0);
        const part = list.reduce((sum, row) => sum + row.share, 0);
        return weight > 0 ? [{ name, parent: null, weight, said: `${name}: ${share(part)}`, pale: true }] : [];
    });
    let zoomed: number | null = null;
    const go = button("Find in the timeline", "Find the kernels of this layer in the timeline", () => zoomed !== null && find(wanted(tree[zoomed].name)));
    const graph = icicle([...made, ...rest], "Icicle of layers: arrows move between them, Enter zooms, Escape shows all", go, (at) => {
        zoomed = at !== null && at < tree.length ? at : null;
        go.hidden = zoomed === null;
    });
    graph.classList.add("of-layers");
    return graph;
}

/**
 * Returns the rows of the tree of layers. As in the text output, a row is left out if a single row
 * inside it has the same kernels and time.
 */
function table(tree: GpuLayerPattern[], is_together: boolean, has_times: boolean, find: (text: string) => void): HTMLElement[] {
    const is_more = (row: GpuLayerPattern, at: number) => {
        const next = tree[at + 1];
        return !next || next.depth <= row.depth || next.kernels !== row.kernels || next.gpu_ns !== row.gpu_ns;
    };
    const around: string[] = [];
    const rows = tree.filter(is_more).map((row): Cell[] => {
        while (around.length && within(row.name, around[around.length - 1]) === null) around.pop();
        const rest = around.length ? within(row.name, around[around.length - 1]) : null;
        const name = button(rest ?? row.name, `Find ${row.name} in the timeline`, () => find(wanted(row.name)));
        name.className = "layer name";
        const cell = el("div", { class: "layer-cell", style: `--deep: ${around.length}; --share: ${row.share * 100}%` }, name);
        around.push(row.name);
        return [
            cell, has_times ? share(row.share) : "–", known(row.step_ns, has_times), ...(is_together ? [count(row.layers), known(row.each_ns, has_times)] : []),
            known(row.gap_ns, has_times), rate(row.kernels_a_step), known(row.gpu_ns, has_times),
        ];
    });
    if (!rows.length) return [];
    const what = `a step: in an iteration; ${is_together ? "each: what one of the layers takes in it; " : ""}gaps: when the GPU was idle in it between two kernels of one layer`;
    return [...longRows(["layer", "share", "a step", ...(is_together ? ["layers", "each"] : []), "gaps", "kernels", "total"], rows), el("p", { class: "caption" }, what)];
}
