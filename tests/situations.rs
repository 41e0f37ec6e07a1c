//! Checks situations in which a preloaded library may do harm, one in each test. In each, the program's output, status
//! and calls must be the same as without the library, and the window must be exact.

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
