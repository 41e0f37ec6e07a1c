//! Checks situations that a preloaded library meets, one per test. In each, the program's output, status and calls are
//! the same as in a run without the shim, and the window is exact.

mod common;

mod situations {
    mod twice;

    mod captures;
    mod children;
    mod control_flow;
    mod debug_ranges;
    mod descriptors;
    mod drivers;
    mod engines;
    mod learnt;
    mod lookups;
    mod other_preloads;
    mod ranks;
    mod reach;
    mod settings;
    mod threads;
    mod values;
}
