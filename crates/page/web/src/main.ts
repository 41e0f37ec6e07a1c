// The page of `tllmprof report --html`. It shows which iterations are slow, when they occur and why they are slow, and
// further data of the record.

import "uplot/dist/uPlot.min.css";
import "./page.css";
import { arrivals } from "./arrivals";
import { heaped, histogram, iterationChart, rankChart } from "./charts";
import { Data, Process, ProcessFigures, Quantiles } from "./contract";
import { isTimed, Iterations, readArrivals, readIterations, readSkew, readTimeline, SkewSteps, Timeline } from "./data";
import { button, card, el, themeSwitch } from "./dom";
import { count, percentile } from "./format";
import { layers } from "./layers";
import { batches, facts, findings, ledger, rankCaption, rankTable, slowest, tables, verdict, windowName } from "./panels";
import { phaseLegend, scatter } from "./phases";
import { replaced, routing } from "./routing";
import { stacks } from "./stacks";
import { TimelineView } from "./timeline/view";

const data: Data = JSON.parse(document.getElementById("data")?.textContent ?? "{}");
const { report } = data;
const main = el("main");
const view = new TimelineView();
const timelines = new Map<number, Promise<Timeline | null>>();
let current = 0;
let all: Iterations[] = [];
let steps: SkewSteps;

/** The elements of the page whose contents belong to the process that is shown. */
const parts = {
    choice: el("div", { class: "choice", role: "group", "aria-label": "Colours of iterations" }), key: el("div"), verdict: el("div"), ledger: el("div"), times: el("div", { class: "chart" }), distribution: el("div", { class: "chart" }),
    batches: el("div"), stacks: el("div"), ranks: el("div"), arrivals: el("div", { hidden: "" }), layers: el("div"), routing: el("div"), tables: el("div", { class: "tables" }), facts: el("div"),
};

function head(): HTMLElement {
    const { processes } = report;
    const label = ({ host, pid }: Process, name: string) => [name, host, name.startsWith("pid ") ? "" : `pid ${pid}`].filter(Boolean).join(" · ");
    const choose = el("select", { id: "process", "aria-label": "Process" },
        ...processes.map((process, place) => el("option", { value: String(place) }, label(process, data.processes[place].name))));
    choose.addEventListener("change", () => show(Number(choose.value)));
    const command = processes[0]?.command || processes[0]?.file || "";
    return el("header", { class: "top" }, el("b", { class: "mark" }, "tllmprof"), el("code", { title: command }, command),
        processes.length > 1 ? choose : processes[0] && el("span", { class: "muted" }, `${data.processes[0].name} · ${processes[0].host}`), themeSwitch());
}

function layout() {
    const several = report.processes.length > 1;
    const wrong = replaced(report);
    const chosen = card("Iteration times", "click one to see it in the timeline, drag to zoom, double-click for all", parts.times, parts.key);
    chosen.querySelector("header")?.append(parts.choice);
    main.append(
        ...(wrong ? [wrong] : []),
        el("div", { class: "row first" }, ...(report.findings.length > 0
            ? [el("section", { class: "card", "aria-label": "Speed" }, parts.verdict, parts.ledger), findings(report)]
            : [el("section", { class: "card", "aria-label": "Speed" }, parts.verdict), el("section", { class: "card" }, parts.ledger)])),
        el("div", { class: "row times" },
            chosen,
            card("Distribution", "", parts.distribution, el("div", { id: "quantiles" }))),
        parts.batches, parts.stacks, ...(several ? [parts.ranks, parts.arrivals] : []),
        card("Timeline", "", view.root), parts.layers, parts.routing, parts.tables, parts.facts);
    document.body.append(head(), main);
}

/**
 * Creates the table of the durations of iterations and of their parts. Each row shows the number of
 * iterations on which it is based.
 */
function quantiles(process: Process, figures: ProcessFigures): HTMLElement {
    const { inside } = process;
    if (!inside) return el("div");
    // Recording kernels makes iterations longer. So iterations with and without recorded kernels
    // have separate rows, and each is followed by its parts.
    const { with_kernels, without_kernels, iterations, host_iterations: host } = inside;
    const gpu = [figures.gpu_name ?? "GPU time", inside.gpu] as const;
    const waits = [["waits for the GPU", inside.wait.max_ns > 0 && inside.wait], ["waits for requests", inside.idle.max_ns > 0 && inside.idle]] as const;
    const of_kernels = inside.gpu_from !== "events";
    const sets: (readonly [string, Quantiles | null | false])[] = [
        [`iteration (${iterations})`, inside.time],
        ...(with_kernels && without_kernels ? [
            [`without kernels (${host})`, without_kernels] as const, ...(of_kernels ? waits : [gpu, ...waits]),
            [`with kernels (${iterations - host})`, with_kernels] as const, ...(of_kernels ? [gpu] : []),
        ] : [gpu, ...waits]),
    ];
    const is_within = (name: string) => !/^(iteration|with|without) /.test(name);
    return el("table", { class: "small" }, el("thead", {}, el("tr", {}, el("td"), ...["p50", "p90", "p99", "max"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, ...sets.flatMap(([name, of]) => of ? [el("tr", {}, el("th", { scope: "row", ...(is_within(name) ? { class: "within" } : {}) }, name),
            ...[of.p50_ns, of.p90_ns, of.p99_ns, of.max_ns].map((ns) => el("td", {}, short(ns))))] : [])));
}


const short = (ns: number | null) => el("span", { class: "nowrap" }, percentile(ns));

function pick(place: number) {
    view.showIteration(place);
    view.root.scrollIntoView({ block: "nearest" });
}

/** Shows the process at the index `place`. */
async function show(place: number) {
    current = place;
    const process = report.processes[place];
    const figures = data.processes[place];
    const iterations = all[place];
    const choose = document.querySelector<HTMLSelectElement>("#process");
    if (choose) choose.value = String(place);
    parts.verdict.replaceChildren(verdict(process, figures));
    parts.ledger.replaceChildren(ledger(process));
    document.getElementById("quantiles")?.replaceChildren(quantiles(process, figures));
    parts.distribution.replaceChildren();
    times(place);
    histogram(parts.distribution, process, iterations);
    ranks();
    const by_n = (n: number, dur: number) => {
        const at = iterations.n.findIndex((other, i) => other === n && iterations.dur[i] === dur);
        if (at >= 0) pick(at);
    };
    const slow = slowest(process, by_n);
    const sampled = stacks(process);
    parts.stacks.hidden = !sampled;
    parts.stacks.replaceChildren(...(sampled ? [sampled] : []));
    const layered = layers(process, (text) => view.search(text));
    parts.layers.hidden = !layered;
    parts.layers.replaceChildren(...(layered ? [layered] : []));
    const routed = routing(data, place);
    parts.routing.hidden = !routed;
    parts.routing.replaceChildren(...(routed ? [routed] : []));
    parts.tables.replaceChildren(...(slow ? [slow] : []), ...tables(process, figures));
    parts.facts.replaceChildren(facts(process, figures));
    const names = process.windows.map((window) => `window ${windowName(window)}`);
    view.set(iterations, null, names, "Reading events …");
    const reading = timelines.get(place) ?? readTimeline(place);
    timelines.set(place, reading);
    const timeline = await reading;
    if (current !== place) return;
    view.set(iterations, timeline, names, extent(timeline, iterations));
    document.documentElement.dataset.ready = String(place);
}

/**
 * True if the user wants the chart of iterations coloured by phase of the batch. If false, or if
 * phases are not known, the chart is coloured by cause.
 */
let by_phase = true;

/**
 * Draws the chart of iterations with its legend, and the chart of time against number of tokens.
 */
function times(place: number) {
    const process = report.processes[place];
    const iterations = all[place];
    const has_phases = process.phases.length > 0;
    const of_phase = has_phases && by_phase;
    parts.times.replaceChildren();
    iterationChart(parts.times, process, iterations, of_phase, pick);
    const batched = batches(process);
    const points = el("div", { class: "chart" });
    parts.batches.hidden = !batched;
    parts.batches.replaceChildren(...(batched ? [card("Batches", "time against tokens, and how long iterations of each phase and size take",
        el("div", { class: "batches" }, el("div", {}, points, legend(place, true)), batched))] : []));
    if (batched) scatter(points, process, iterations, pick);
    parts.key.replaceChildren(of_phase ? legend(place, false) : causes(process, iterations));
    const way = (name: string, title: string, is_phase: boolean) => {
        const made = button(name, title, () => {
            by_phase = is_phase;
            again(place, parts.choice, name);
        });
        made.setAttribute("aria-pressed", String(by_phase === is_phase));
        return made;
    };
    parts.choice.hidden = !has_phases;
    parts.choice.replaceChildren("colours:", way("phase", "Colour iterations by the phase of their batches", true),
        way("cause", "Colour iterations by what they take the time for", false));
}

/**
 * Creates the legend of the phases: for the chart of iterations or (with `of_points`) for the chart
 * of time against number of tokens.
 */
const legend = (place: number, of_points: boolean): HTMLElement => phaseLegend(all[place], of_points, (name, list) => again(place, list.closest("section"), name));

/**
 * Draws the charts again after a click in a legend. The clicked button keeps the keyboard focus.
 */
function again(place: number, card: Element | null, name: string) {
    const id = card?.closest("section")?.getAttribute("aria-labelledby");
    times(place);
    const buttons = document.querySelectorAll<HTMLElement>(`[aria-labelledby="${id}"] button`);
    [...buttons].find((one) => one.textContent?.startsWith(name))?.focus();
}

/** Creates the legend of the causes, for the chart of iterations coloured by cause. */
function causes(process: Process, iterations: Iterations): HTMLElement {
    const { inside } = process;
    const gpu = `GPU time${iterations.n.some((_, i) => !isTimed(iterations, i)) ? "; no line: not taken" : ""}`;
    const there: [string, string, unknown][] = [
        ...heaped(iterations).map(({ colour, label }): [string, string, unknown] => [colour, label, true]),
        ["idle", "waiting for requests", inside && inside.idle.max_ns > 0], ["gpu-line", gpu, inside?.gpu],
        ["missing", "left out of the figures", process.unqualified.length],
    ];
    return el("ul", { class: "legend" }, ...there.flatMap(([colour, name, is]) =>
        is ? [el("li", {}, el("i", { style: `background: var(--${colour})` }), name)] : []));
}

/** Returns a sentence that says which events of the record the timeline contains. */
function extent(timeline: Timeline | null, iterations: Iterations): string {
    if (!timeline) return "The events of this process are not on the page: iterations alone.";
    const { kept, total } = timeline;
    const shown = iterations.shown.reduce((sum, one) => sum + one, 0);
    return kept === total
        ? `all ${count(total)} events of the windows`
        : `${count(kept)} of ${count(total)} events: those of ${count(shown)} of ${count(iterations.n.length)} iterations, the slowest among them`;
}

function ranks() {
    if (report.processes.length < 2) return;
    const chart = el("div", { class: "chart" });
    parts.ranks.replaceChildren(card("Ranks side by side", rankCaption(data),
        el("div", { class: "ranks" }, el("div", {}, chart, el("p", { class: "caption strip" }, "strip: the slowest of each iteration")),
            rankTable(data, current, show))));
    rankChart(chart, data, all, steps, () => current, (n) => {
        const at = all[current].n.indexOf(n);
        if (at >= 0) pick(at);
    });
}

async function start() {
    if (!report.processes.length) {
        main.append(el("p", { class: "card" }, "The records hold no process."));
        document.body.append(head(), main);
        return;
    }
    layout();
    const first = data.first_shown;
    parts.verdict.replaceChildren(verdict(report.processes[first], data.processes[first]));
    all = await Promise.all(report.processes.map((_, place) => readIterations(place)));
    steps = await readSkew();
    const waits = arrivals(data, await readArrivals(), async (place, n) => {
        await show(place);
        const at = all[place].n.indexOf(n);
        if (at >= 0) pick(at);
    });
    parts.arrivals.hidden = !waits;
    if (waits) parts.arrivals.append(waits);
    // The timelines come after this script in the page, so wait until the whole page has been read.
    if (document.readyState === "loading") await new Promise((done) => document.addEventListener("DOMContentLoaded", done));
    await show(first);
}

start().catch((error: unknown) => {
    main.prepend(el("p", { class: "card", role: "alert" }, `This page could not be drawn: ${String(error)}`));
    throw error;
});
