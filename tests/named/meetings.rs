//! Checks rules that name functions in unusual places, such as functions that tllmprof itself calls, and functions that
//! are called in fork handlers, child processes or signal handlers, or before CUDA is used.

use crate::common::can_exec;
use crate::seen::{assert_exact, calls, is_left_out, lines_with, number_behind, usual};
use crate::twice::switches;
use crate::workshop::Workshop;

/// In this test, rules name functions that tllmprof itself calls while it holds locks or patches code.
#[test]
fn functions_that_libraries_use_may_be_the_program_s_own() {
    let shop = Workshop::new();
    let program = shop.program(
        "own_functions.c",
        "own_functions",
        &["-rdynamic", "-fno-builtin"],
    );
    let many: Vec<String> = (0..100).map(|n| (n * 3).to_string()).collect();
    for rule in [
        "sym:^malloc$",
        "sym:^memset$",
        "sym:^mprotect$",
        "sym:.@own_functions",
    ] {
        for windows in ["5-9", &many.join(",")] {
            // The window may open before the driver is ready. Then it does not contain exactly the requested calls,
            // so only the program's own result is checked.
            let ran = program.clone().window(windows, rule).run_shimmed();
            assert!(ran.output.status.success(), "{rule}: {:?}", ran.output);
            assert_eq!(ran.output.out(), "1\n", "{rule}");
        }
    }
}

#[test]
fn handlers_of_forks_may_make_calls() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    let program = shop.program("fork_handlers.c", "fork_handlers", &[]);
    let both = program.window("1,3,5,7,9", "sym:^handled_step$").run();
    assert_exact(&both);
}

#[test]
fn children() {
    let shop = Workshop::new();
    let both = shop
        .program_of("forks.c", "forks", &[])
        .args(if can_exec() { "exec" } else { "" })
        .window("5-9", "sym:^forking_step$")
        .run();
    assert_exact(&both);
    both.assert_said(&[usual(), "opened at iteration 5", "closed", "captured"]);
}

#[test]
fn calls_before_cuda_is_used() {
    let shop = Workshop::new();
    let program = shop.program_of("before_cuda.c", "before_cuda", &[]);
    let both = program.window("1000000000-", "sym:^early_step$").run();
    assert_exact(&both);
    assert_eq!(lines_with(&both, usual()), 1, "{:#?}", both.said());
}

#[test]
fn a_signal_handler_with_a_small_stack() {
    let shop = Workshop::new();
    let program = shop.program_of("signal_stack.c", "signal_stack", &[]);
    let windows: Vec<String> = (0..30).map(|n| (n * 3).to_string()).collect();
    let both = program
        .window(&windows.join(","), "sym:^handler_step$")
        .run();
    // The first call of the function is in the signal handler, where the library may be unable to begin counting. So it
    // may miss this call.
    assert!(calls(&both) - both.total() <= 1, "{}", both.output.err());
}

#[test]
fn a_call_that_ends_in_a_function_which_looks_back() {
    let shop = Workshop::new();
    let hidden = shop.0.path("hidden");
    std::fs::create_dir(&hidden).expect("the test's folder");
    shop.library("plugin.c", "hidden/libhidden.so", &[]);
    let options = ["-foptimize-sibling-calls", "-Wl,-rpath,$ORIGIN/hidden"];
    let program = shop.program_of("opener.c", "opener", &options);
    let both = program.window("1,3,5,7", "sym:^open_step$").run();
    assert_exact(&both);
    assert_eq!(number_behind(&both, "found "), 10);
    assert_eq!(switches(&both.log).len(), 8);
}
