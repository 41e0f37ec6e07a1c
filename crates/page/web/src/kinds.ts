// What events are: the numbers of `crates/page/src/kind.rs`, with their words and colours.

export const enum Kind {
    Range, Mark, Function, Call, Launch, Wait, CopyCall, Gc, GilWait, GilHold, GilForced, Step, Kernel, Copy, Set,
}

export const enum Place { Steps, Stream, Thread, Gil, Ranges }

export const enum Flag { Cut = 1, Failed = 2, Capturing = 4 }

/** By number: what people call it, and the variable of its colour in the style. */
export const kinds: readonly { label: string; colour: string }[] = [
    { label: "NVTX range", colour: "range" },
    { label: "NVTX mark", colour: "range" },
    { label: "Python function", colour: "python" },
    { label: "CUDA call", colour: "call" },
    { label: "launch", colour: "launch" },
    { label: "host wait", colour: "wait" },
    { label: "copy call", colour: "copy" },
    { label: "GC", colour: "gc" },
    { label: "GIL wait", colour: "gil-wait" },
    { label: "GIL hold", colour: "gil-hold" },
    { label: "GIL given up", colour: "gil-wait" },
    { label: "GPU step", colour: "step" },
    { label: "kernel", colour: "kernel" },
    { label: "GPU copy", colour: "copy" },
    { label: "memset", colour: "set" },
];

/** The colours, in the order of a legend, with what they stand for. */
export const colours: readonly (readonly [string, string])[] = [
    ["step", "GPU step"], ["kernel", "kernel"], ["copy", "copy"], ["set", "memset"], ["launch", "launch"], ["wait", "host wait"],
    ["call", "other CUDA call"], ["range", "NVTX"], ["python", "Python function"], ["gc", "GC"], ["gil-wait", "GIL wait"],
    ["gil-hold", "GIL hold"],
];
