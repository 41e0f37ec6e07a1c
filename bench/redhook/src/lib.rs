//! Counts graph launches and stream waits with the `redhook` crate, used as the crate's documentation shows.
//! `scripts/bench` compares the cost of this with that of tllmprof.

use libc::{c_int, c_void};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    CALLS.with(|calls| calls.set(calls.get() + 1));
}

redhook::hook! {
    unsafe fn cuGraphLaunch(exec: *mut c_void, stream: *mut c_void) -> c_int => count_launch {
        count();
        redhook::real!(cuGraphLaunch)(exec, stream)
    }
}

redhook::hook! {
    unsafe fn cuStreamSynchronize(stream: *mut c_void) -> c_int => count_wait {
        count();
        redhook::real!(cuStreamSynchronize)(stream)
    }
}
