// Functions that several charts use.

import uPlot from "uplot";
import { Quantiles } from "./contract";
import { colour, offTheme, onTheme } from "./dom";

/**
 * An axis ends at this multiple of the time that most iterations stay below. The bars of longer
 * iterations are cut and labelled.
 */
export const BEYOND = 5;

/** Returns the time that most iterations stay below: the 90th percentile, or the median if there are too few
 * iterations for that. */
export const most = ({ p90_ns, p50_ns }: Quantiles): number => p90_ns ?? p50_ns;

/** Creates a chart that adapts to changes of its parent's width and of the theme. */
export function mount(place: HTMLElement, options: Omit<uPlot.Options, "width">, data: uPlot.AlignedData): uPlot {
    const chart = new uPlot({ ...options, width: Math.max(200, place.clientWidth) }, data, place);
    const themed = () => {
        if (place.isConnected) chart.redraw(false);
        else offTheme(themed);
    };
    onTheme(themed);
    const resized = new ResizeObserver(() => {
        if (!place.isConnected) return resized.disconnect();
        if (place.clientWidth > 0) chart.setSize({ width: place.clientWidth, height: options.height });
    });
    resized.observe(place);
    return chart;
}

export const axis = (label: string, more: Partial<uPlot.Axis>): uPlot.Axis => ({
    label, labelSize: 18, labelFont: "11px system-ui, sans-serif", labelGap: 2,
    font: "11px system-ui, sans-serif", stroke: () => colour("muted"),
    grid: { stroke: () => colour("grid"), width: 1 }, ticks: { show: false }, gap: 4, ...more,
});

/**
 * Returns the labels for the ticks of an axis of durations in ns. All labels have the same unit,
 * which suits the largest duration.
 */
export function durations(splits: number[]): string[] {
    const largest = Math.max(...splits.map(Math.abs), 1);
    const [unit, name] = largest >= 1e9 ? [1e9, "s"] : largest >= 1e6 ? [1e6, "ms"] : largest >= 1e3 ? [1e3, "µs"] : [1, "ns"];
    const step = splits.length > 1 ? (splits[1] - splits[0]) / unit : 1;
    const exact = (places: number) => Math.abs(step * 10 ** places - Math.round(step * 10 ** places)) < 1e-6;
    const places = [0, 1, 2].find(exact) ?? 3;
    return splits.map((value) => (value === 0 ? "0" : `${(value / unit).toFixed(places)} ${name}`));
}

/** Moves a tooltip to a position near the pointer. */
export function tipAt(tip: HTMLElement, chart: uPlot, place: HTMLElement) {
    const left = chart.over.offsetLeft + (chart.cursor.left ?? 0);
    tip.style.left = `${Math.max(4, Math.min(left + 14, place.clientWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${chart.over.offsetTop + (chart.cursor.top ?? 0) + 18}px`;
}

/** Sets the size of a canvas and returns its drawing context. */
export function size(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
    const ratio = devicePixelRatio || 1;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    if (!context) throw new Error("no canvas to draw on");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
}
