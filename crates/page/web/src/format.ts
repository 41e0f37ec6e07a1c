// Formats numbers for readers, in the same way as the report's text output.

/** Formats a duration in nanoseconds with three or four digits. */
export function time(ns: number): string {
    if (ns < 0) return "−" + time(-ns);
    if (ns < 0.5) return "0";
    if (ns < 1e3) return `${Math.round(ns)} ns`;
    if (ns < 999_500) return digits(ns / 1e3) + " µs";
    if (ns < 999_500_000) return digits(ns / 1e6) + " ms";
    return digits(ns / 1e9) + " s";
}

/**
 * Formats a percentile in ns. The result is a dash if the percentile is `null`, because there were
 * too few values.
 */
export const percentile = (ns: number | null): string => (ns === null ? "–" : time(ns));

function digits(value: number): string {
    return fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

/** Formats a difference between durations in ns, with its sign. */
export const change = (ns: number): string => (ns < 0 ? time(ns) : `+${time(ns)}`);

/**
 * Formats a number with `places` decimal places. A number exactly halfway between two results is
 * rounded to the even one, as in the text output.
 */
function fixed(value: number, places: number): string {
    const below = Math.floor(value * 10 ** places);
    // A binary fraction can be exactly halfway only if 2 * below + 1 is a multiple of 5^places.
    // Other numbers only seem to be halfway, because of rounding errors.
    const is_between = value * 10 ** places - below === 0.5 && (2 * below + 1) % 5 ** places === 0;
    return (is_between ? (below + (below % 2)) / 10 ** places : value).toFixed(places);
}

/** Formats a fraction as a percentage. */
export function share(part: number): string {
    const percent = part * 100;
    if (part > 0 && percent < 0.05) return "< 0.1 %";
    return fixed(percent, percent >= 99.95 ? 0 : 1) + " %";
}

/** Formats a rate with three digits. */
export const rate = digits;

export const count = (value: number): string => Math.round(value).toLocaleString("en-US");

export function bytes(value: number): string {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (value >= 999.5 && unit < units.length - 1) {
        value /= 1024;
        unit++;
    }
    return `${unit === 0 ? Math.floor(value) : digits(value)} ${units[unit]}`;
}

/** Formats a value of a metric with its unit. */
export function quantity(value: number, unit: string): string {
    if (unit === "%") return share(value / 100);
    if (unit === "MiB") return bytes(Math.trunc(value * 1048576));
    return `${fixed(value, 0)} ${unit}`;
}

/**
 * Formats a time on an axis whose ticks are `step` ns apart. The number of digits is just enough to
 * distinguish the ticks.
 */
export function moment(ns: number, step: number): string {
    const [unit, name] = step >= 1e9 ? [1e9, "s"] : step >= 1e6 ? [1e6, "ms"] : step >= 1e3 ? [1e3, "µs"] : [1, "ns"];
    // In a small unit the number would be very long, so use a larger unit with more decimal places.
    const [larger, named] = Math.abs(ns) >= 1e5 * unit && unit < 1e6 ? [1e6, "ms"] : [unit, name];
    const places = Math.max(0, Math.ceil(-Math.log10(step / larger) - 1e-9));
    return `${(ns / larger).toFixed(places)} ${named}`.replace("-", "−");
}
