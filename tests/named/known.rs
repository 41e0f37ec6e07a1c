//! Checks the rule `auto` with engines whose step function is in the library's table.

use crate::common::is_x86_64;
use crate::seen::{assert_exact, is_left_out, lines_with};
use crate::twice::{Situation, start, stop};
use crate::workshop::Workshop;

/// Returns three programs that use an engine whose step function is known. The first is linked to the engine's library.
/// The second opens the library after it has used CUDA. The third contains the engine's function and does not export
/// it.
fn around_an_engine(shop: &Workshop) -> [Situation; 3] {
    let library = shop.library("llama.c", "libllama.so", &[]);
    let beside = "-Wl,-rpath,$ORIGIN";
    [
        shop.program("llama_host.c", "linked", &[&library, beside]),
        shop.program("llama_host.c", "opens", &["-DOPENED"]),
        shop.program("llama_host.c", "itself", &["-DLINKED_IN"]),
    ]
}

#[test]
fn auto_counts_the_step_of_an_engine_that_is_known() {
    let shop = Workshop::new();
    let programs = around_an_engine(&shop);
    // The third program does not export the function, so its calls can be counted only if the function's entry is
    // patched.
    let seen = if is_x86_64() {
        &programs[..]
    } else {
        &programs[..2]
    };
    for program in seen {
        let both = program.clone().args("calls").window("5-9", "auto").run();
        let said = both.said();
        // One call of the engine's function makes three steps of the program's loop, each with one launch and one
        // wait. Step 6 makes an additional launch in a stream capture.
        assert_eq!(both.switches(), [start(16, 15), stop(31, 30)], "{said:#?}");
        assert_exact(&both);
        assert_eq!(
            lines_with(&both, "is known, iteration = sym:"),
            1,
            "{said:#?}"
        );
        both.assert_same_calls();
    }
}

#[test]
fn auto_knows_an_executable_beside_a_tool_with_threads() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    let tool = shop.library("tool.c", "tool.so", &[]);
    let program = shop.program("llama_host.c", "itself", &["-DLINKED_IN"]);
    let both = program
        .args("calls")
        .preload_after_shim(&tool)
        .window("5-9", "auto")
        .run();
    assert_exact(&both);
    assert_eq!(lines_with(&both, "is known, iteration = sym:"), 1);
}

#[test]
fn auto_learns_where_the_engine_is_there_and_not_used() {
    let shop = Workshop::new();
    for program in around_an_engine(&shop) {
        let both = program.window("50-54", "auto").run();
        let said = both.said();
        assert_eq!(lines_with(&both, "is known"), 0, "{said:#?}");
        assert_eq!(lines_with(&both, "auto: iteration = the"), 1, "{said:#?}");
        assert_eq!(both.switches().len(), 2, "{said:#?}");
        both.assert_same_calls();
    }
}
