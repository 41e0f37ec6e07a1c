//! Tests that the library's hooks are installed in a Python interpreter that was running before the library was
//! started, and that they can be removed again.

use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use super::hosted::{LATE, in_each, in_each_but};
use crate::{entry, late};

const EVERYTHING: &[(&str, &str)] = &[
    (LATE, "1"),
    ("TLLM_PROFILE_RECORD_GC", "1"),
    ("TLLMPROF_GIL", "1"),
];

#[test]
fn it_is_come_into_and_left_again() {
    in_each(EVERYTHING, |host| {
        for _ in 0..3 {
            host.run("import gc; assert [one.__name__ for one in gc.callbacks] == ['tllmprof_gc']");
            assert!(host.without_gil(|| late::switch(false)));
            host.run("assert not gc.callbacks");
            host.in_another("import gc; assert not gc.callbacks");
            assert!(host.without_gil(|| late::switch(true)));
        }
        // The test's thread holds the GIL, so the library's thread cannot get it within the time limit, and `switch`
        // returns false.
        assert!(!late::switch(false));
        assert!(late::switch(true) || host.without_gil(|| late::switch(true)));
        host.run("import gc; assert len(gc.callbacks) == 1");
        host.end();
        assert!(entry::is_closed());
    });
}

#[test]
fn it_may_end_at_any_moment() {
    // While CPython 3.9 to 3.12 ends, it frees the states of threads that wait for the GIL, and these threads then read
    // the freed states (python/cpython#110052). The program's own daemon threads crash CPython in the same way.
    let why = "CPython 3.9 to 3.12 may crash if a thread waits for the GIL while it ends (python/cpython#110052)";
    in_each_but(9..=12, why, EVERYTHING, |host| {
        let mut longest = Duration::ZERO;
        for turn in 0..60u32 {
            let delay = longest * (turn % 20) / 16;
            let other = spawn(move || {
                sleep(delay);
                late::start();
            });
            let since = Instant::now();
            host.end();
            let took = since.elapsed();
            if turn == 0 {
                longest = took;
            }
            other.join().unwrap();
            while !late::tests::is_over() {
                sleep(Duration::from_millis(1));
            }
            host.start();
        }
    });
}
