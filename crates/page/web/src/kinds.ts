// Kinds of events. The table of kinds is part of the page's data and comes from `crates/timeline/src/kinds.rs`.

export interface Kind {
    /** The kind's name for readers. */
    label: string;
    /** A word for a group of kinds, the same as in trace formats. */
    category: string;
    /** The name of the kind's colour, which is a variable of `page.css`. */
    colour: string;
    /** The meaning of an event's value. Empty if there is no value, or if the value is the number of a launch plus 1. */
    value: string;
    /** The end of a launch that events of this kind are: its call, or a kernel. Empty if they belong to no launch. */
    end: "" | "call" | "kernel";
}

export const enum Place { Steps, Stream, Thread, Gil, Ranges }

export const enum Flag { Cut = 1, Failed = 2, Capturing = 4 }

/** The colours of events and their meanings, in the order of the legend. */
export const colours: readonly (readonly [string, string])[] = [
    ["step", "GPU step"], ["kernel", "kernel"], ["copy", "copy"], ["set", "memset"], ["launch", "launch"], ["wait", "host wait"],
    ["call", "other CUDA call"], ["range", "NVTX"], ["python", "Python function"], ["gc", "GC"], ["gil-wait", "GIL wait"],
    ["gil-hold", "GIL hold"],
];
