// The load balance of learned routers (mixture of experts): a table of layers, and a map of the
// load of their experts.

import { Data, Layer, LayerFigures, Report } from "./contract";
import { card, colour, el, offTheme, onTheme } from "./dom";
import { count, rate } from "./format";
import { longRows, mono } from "./panels";
import { size } from "./plot";

/** The beginning of the record's message that the library replaced the model's routers. */
const REPLACED = "output is intentionally wrong";
const LEFT = 34;
const TOP = 5;
const BOTTOM = 20;
/**
 * The ratio of a load to the mean from which a cell has the darkest colour for high loads. Cells
 * with the inverse ratio or less have the darkest colour for low loads.
 */
const FAR = 4;

/**
 * Creates a warning with the record's message that the output is intentionally wrong; `null` if
 * there is no such message.
 */
export function replaced(report: Report): HTMLElement | null {
    const lines = report.processes.flatMap((process) => process.refused.filter((line) => line.startsWith(REPLACED)));
    return lines.length ? el("p", { class: "card wrong", role: "note" }, el("b", {}, lines[0])) : null;
}

const times = (value: number) => `${rate(value)} ×`;

const nameOf = (layer: Layer) => layer.name ?? `layer ${layer.layer}`;

export function routing({ report, processes }: Data, place: number): HTMLElement | null {
    const found = report.processes[place].routing;
    const figures = processes[place].routing;
    if (!found || !figures) return null;
    const { layers } = found;
    const { gpus } = figures;
    const on_gpus = (on: number | null) => (gpus ? [on === null ? "–" : times(on)] : []);
    // The table begins with the layer whose balance is worst, whereas the map shows layers in the
    // order of their numbers.
    const rows = layers.map((layer, at) => ({ layer, on: figures.layers[at].on_gpus }))
        .sort((a, b) => b.layer.max_of_mean - a.layer.max_of_mean)
        .map(({ layer, on }) => [mono(nameOf(layer)), times(layer.max_of_mean), ...on_gpus(on), count(layer.idle), count(layer.tokens)]);
    const whose = report.processes.length > 1 ? `, as ${processes[place].name} routed them` : "";
    const table = longRows(["layer", "busiest expert", ...(gpus ? [`busiest of ${gpus} GPUs`] : []), "idle experts", "tokens"], rows);
    return card("Learned router", `busiest against mean: ${times(found.mean)} in the mean of ${count(layers.length)} ` +
        `layer${layers.length > 1 ? "s" : ""}; tokens outside windows${whose}`,
        el("div", { class: "routing" }, el("div", { class: "layers" }, ...table), heat(layers, figures.layers, gpus)));
}

/**
 * Draws the map of experts: layers from top to bottom, experts from left to right. The colour shows
 * an expert's load relative to the layer's mean load.
 */
function heat(layers: Layer[], figures: LayerFigures[], gpus: number | null): HTMLElement {
    const experts = layers.reduce((most, layer) => Math.max(most, layer.experts.length), 1);
    const each = Math.min(22, Math.max(5, Math.floor(330 / layers.length)));
    const height = TOP + layers.length * each + BOTTOM;
    const worst = layers.reduce((a, b) => (b.max_of_mean > a.max_of_mean ? b : a));
    const canvas = el("canvas", {
        role: "img", "aria-label": `Tokens of ${experts} experts in ${layers.length} layers against the mean. ` +
            `Most uneven: ${nameOf(worst)}, ${times(worst.max_of_mean)}`,
    });
    const tip = el("div", { class: "tip", role: "tooltip", hidden: "" });
    const scale = el("canvas", { "aria-hidden": "true", class: "scale" });
    const root = el("div", { class: "heat" }, el("p", { class: "caption" }, "experts of each layer: tokens against the layer's mean"),
        el("div", { class: "map" }, canvas, tip), el("p", { class: "caption key" }, "none", el("i", { class: "idle" }), `1/${FAR}`, scale, `${FAR} × and more`));
    let width = 0;
    const draw = () => {
        width = Math.max(120, canvas.parentElement?.clientWidth ?? 0);
        const context = size(canvas, width, height);
        const ramp = colours();
        const wide = (width - LEFT) / experts;
        layers.forEach((layer, at) => {
            const { of_mean } = figures[at];
            const y = TOP + at * each;
            // If several experts share a pixel, draw the one with the highest load.
            for (let x = 0, expert = 0; expert < layer.experts.length; ) {
                let most = of_mean[expert++];
                while (wide < 1 && expert < layer.experts.length && expert * wide < x + 1) most = Math.max(most, of_mean[expert++]);
                const end = Math.max(x + 1, Math.round(expert * wide));
                context.fillStyle = ramp(most);
                context.fillRect(LEFT + x, y, end - x - (wide >= 6 ? 1 : 0), each - (each >= 6 ? 1 : 0));
                x = end;
            }
        });
        context.fillStyle = colour("muted");
        context.font = "11px system-ui, sans-serif";
        context.textBaseline = "middle";
        context.textAlign = "right";
        const every = Math.ceil(14 / each);
        for (let at = 0; at < layers.length; at += every) context.fillText(`${layers[at].layer}`, LEFT - 6, TOP + at * each + each / 2);
        context.textAlign = "left";
        const step = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].find((step) => step * wide >= 30) ?? experts;
        for (let expert = 0; expert < experts; expert += step) context.fillText(`${expert}`, LEFT + expert * wide, height - BOTTOM / 2 + 2);
        if (gpus && experts % gpus === 0) {
            context.fillStyle = colour("ink");
            for (let gpu = 1; gpu < gpus; gpu++) context.fillRect(LEFT + Math.round((gpu * experts * wide) / gpus) - 1, TOP, 1, layers.length * each);
        }
        const key = size(scale, 120, 10);
        for (let x = 0; x < 120; x++) {
            key.fillStyle = ramp(FAR ** ((x / 119) * 2 - 1));
            key.fillRect(x, 0, 1, 10);
        }
    };
    canvas.addEventListener("pointermove", (event) => {
        const box = canvas.getBoundingClientRect();
        const [x, y] = [event.clientX - box.left, event.clientY - box.top];
        const at = Math.floor((y - TOP) / each);
        const layer = layers[at];
        const expert = Math.floor(((x - LEFT) / (width - LEFT)) * experts);
        const tokens = x < LEFT ? undefined : layer?.experts[expert];
        tip.hidden = tokens === undefined;
        if (tokens === undefined) return;
        const on = gpus && layer.experts.length % gpus === 0 ? `, GPU ${Math.floor((expert * gpus) / layer.experts.length)}` : "";
        tip.replaceChildren(el("b", {}, nameOf(layer)),
            el("span", {}, `expert ${expert}${on}: ${times(figures[at].of_mean[expert])} the mean, ${count(tokens)} tokens`));
        tip.style.left = `${Math.max(0, Math.min(x + 14, width - tip.offsetWidth - 4))}px`;
        tip.style.top = `${y + 16}px`;
    });
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    const themed = () => (root.isConnected ? draw() : offTheme(themed));
    onTheme(themed);
    new ResizeObserver((_, observer) => (root.isConnected ? draw() : observer.disconnect())).observe(root);
    return root;
}

/**
 * Returns a function that converts a load, as a multiple of the mean load, to a colour. The mean
 * has a neutral colour; the distance from it is on a logarithmic scale.
 */
function colours(): (part: number) => string {
    const parse = (name: string) => (colour(name).match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
    const [idle, cold, even, hot] = [colour("expert-idle"), parse("expert-cold"), parse("expert-even"), parse("expert-hot")];
    return (part) => {
        if (part === 0) return idle;
        const far = Math.max(-1, Math.min(1, Math.log(part) / Math.log(FAR)));
        const end = far < 0 ? cold : hot;
        return `rgb(${even.map((value, at) => Math.round(value + (end[at] - value) * Math.abs(far))).join(" ")})`;
    };
}
