// What events are: their kinds come with the page's data, from the table in `crates/timeline/src/kinds.rs`.

export interface Kind {
    /** What people call it. */
    label: string;
    /** A word that groups kinds, as trace formats have it. */
    category: string;
    /** The variable of its colour in the style. */
    colour: string;
    /** What an event's value is; empty: it says nothing, or is one more than the number of a launch. */
    value: string;
    /** The end of a launch that it is. */
    end: "" | "call" | "kernel";
}

export const enum Place { Steps, Stream, Thread, Gil, Ranges }

export const enum Flag { Cut = 1, Failed = 2, Capturing = 4 }

/** The colours, in the order of a legend, with what they stand for. */
export const colours: readonly (readonly [string, string])[] = [
    ["step", "GPU step"], ["kernel", "kernel"], ["copy", "copy"], ["set", "memset"], ["launch", "launch"], ["wait", "host wait"],
    ["call", "other CUDA call"], ["range", "NVTX"], ["python", "Python function"], ["gc", "GC"], ["gil-wait", "GIL wait"],
    ["gil-hold", "GIL hold"],
];
