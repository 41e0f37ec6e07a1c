//! Checks rules that name functions whose calls end in different ways, such as by an exception.

use crate::common::Switch;
use crate::twice::{start, stop, switches};
use crate::workshop::Workshop;

/// Runs the program once for each way in `hows` to end a call. Asserts that each time, the profiler is started and
/// stopped at the `wanted` calls.
fn assert_switches(hows: &[&str], wanted: &[Switch]) {
    let shop = Workshop::new();
    let program = shop.program_of("ends.cpp", "ends", &[]);
    for &how in hows {
        let both = program
            .clone()
            .args(how)
            .window("3,5-6,8", "sym:engine_step")
            .run();
        assert_eq!(switches(&both.log), wanted, "{how}");
        both.assert_same_calls();
    }
}

/// Each iteration has two launches: one within the call of the named function, and one after the call.
#[test]
fn a_window_closes_when_its_last_call_returns() {
    let wanted = [
        start(6, 6),
        stop(7, 7),
        start(10, 10),
        stop(13, 13),
        start(16, 16),
        stop(17, 17),
    ];
    assert_switches(&["returns", "struct", "backtrace"], &wanted);
}

/// The end of a call that does not return (an exception or longjmp) cannot be observed. The window closes at the next
/// call.
#[test]
fn a_call_whose_end_is_awaited_may_be_left_by_other_ways() {
    let wanted = [
        start(6, 6),
        stop(8, 8),
        start(10, 10),
        stop(14, 14),
        start(16, 16),
        stop(18, 18),
    ];
    assert_switches(&["throws", "caught_above", "jumps"], &wanted);
}

#[test]
fn a_function_that_looks_at_its_return_address() {
    let shop = Workshop::new();
    let both = shop
        .program_of("ends.cpp", "ends", &[])
        .args("asks")
        .window("3,5-6,8", "sym:engine_asks")
        .run();
    let wanted = [
        start(6, 6),
        stop(8, 8),
        start(10, 10),
        stop(14, 14),
        start(16, 16),
        stop(18, 18),
    ];
    assert_eq!(switches(&both.log), wanted);
}

#[test]
fn a_call_may_end_on_another_thread() {
    let shop = Workshop::new();
    let program = shop.program_of("ends.cpp", "ends", &[]);
    let both = program
        .args("coroutine")
        .window("3,5-6,8", "sym:engine_step")
        .run();
    // In this program, the named function makes all launches: one in each call.
    let launches: Vec<usize> = switches(&both.log)
        .iter()
        .map(|switch| match switch {
            Switch::Start { launches, .. } | Switch::Stop { launches, .. } => *launches,
        })
        .collect();
    assert_eq!(launches, [3, 4, 5, 7, 8, 9]);
}
