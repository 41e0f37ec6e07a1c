// Kinds of events. They are part of the page's data, from the table in `crates/timeline/src/kinds.rs`.

export interface Kind {
    /** The name for readers. */
    label: string;
    /** A word for a group of kinds, as in trace formats. */
    category: string;
    /** The name of its colour in the style. */
    colour: string;
    /** The meaning of an event's value; empty if it has none, or if it is the number of a launch plus 1. */
    value: string;
    /** The end of a launch that it is, if any. */
    end: "" | "call" | "kernel";
}

export const enum Place { Steps, Stream, Thread, Gil, Ranges }

export const enum Flag { Cut = 1, Failed = 2, Capturing = 4 }

/** The colours with their meanings, in the order of the legend. */
export const colours: readonly (readonly [string, string])[] = [
    ["step", "GPU step"], ["kernel", "kernel"], ["copy", "copy"], ["set", "memset"], ["launch", "launch"], ["wait", "host wait"],
    ["call", "other CUDA call"], ["range", "NVTX"], ["python", "Python function"], ["gc", "GC"], ["gil-wait", "GIL wait"],
    ["gil-hold", "GIL hold"],
];
