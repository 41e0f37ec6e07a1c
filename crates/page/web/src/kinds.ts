// Kinds of events. The table of kinds is part of the page's data; its source is
// `crates/timeline/src/kinds.rs`.

export interface Kind {
    /** The kind's name for readers. */
    label: string;
    /** The category of the kind. Exported traces use the same word for a group of kinds. */
    category: string;
    /** The name of the CSS variable with the kind's colour. */
    colour: string;
    /**
     * The meaning of an event's value; empty if there is no value, or if the value is the number of
     * a launch plus 1.
     */
    value: string;
    /**
     * The side of a launch that events of this kind show: the call or a kernel; empty if they
     * belong to no launch.
     */
    end: "" | "call" | "kernel";
}

export const enum Place { Steps, Stream, Thread, Gil, Ranges }

export const enum Flag { Cut = 1, Failed = 2, Capturing = 4 }

/** The names of the colours of events, with their meanings, in the order of the legend. */
export const colours: readonly (readonly [string, string])[] = [
    ["step", "GPU step"], ["kernel", "kernel"], ["copy", "copy"], ["set", "memset"], ["launch", "launch"], ["wait", "host wait"],
    ["call", "other CUDA call"], ["range", "NVTX"], ["python", "Python function"], ["gc", "GC"], ["gil-wait", "GIL wait"],
    ["gil-hold", "GIL hold"],
];
