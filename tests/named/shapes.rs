//! Checks rules that name functions with many kinds of signatures and bodies, and with different linkages of the
//! program.

use crate::common::is_x86_64;
use crate::seen::{BY_ENTRY, BY_NAME, is_left_out, lines_with, number_behind, usual};
use crate::twice::{Situation, switches};
use crate::workshop::Workshop;

/// The option by which compilers for x86-64 mark the targets of indirect jumps.
const CET: &[&str] = &["-fcf-protection=full"];

/// Asserts that the library hooks all 17 functions in the way that the message `by` names, and counts their calls. Runs
/// the program with one thread and with eight threads, each time with two settings. In the first, a window never opens.
/// In the second, there is a window at every third call, so that functions of every shape are also called while a
/// window opens or closes.
#[track_caller]
fn shapes_are_seen(program: &Situation, by: &str) {
    let many: Vec<String> = (0..100).map(|n| (n * 3).to_string()).collect();
    // If functions are followed through GOT slots, calls within the functions' own library are not counted. So the
    // program also prints the number of calls from outside.
    let seen = if by == BY_NAME { "outside " } else { "calls " };
    for mode in ["alone", "threads"] {
        let program = program.clone().args(mode);
        let both = program.clone().window("1000000000-", "sym:named_").run();
        assert_eq!(
            both.total(),
            number_behind(&both, seen),
            "{}",
            both.output.err()
        );
        assert_eq!(lines_with(&both, by), 17, "{:#?}", both.said());
        let both = program
            .window(&many.join(","), "sym:named_")
            .env("TLLMPROF_LOG", "info")
            .run();
        assert_eq!(
            both.total(),
            number_behind(&both, seen),
            "{}",
            both.output.err()
        );
        if mode == "alone" {
            assert_eq!(switches(&both.log).len(), 200);
        }
    }
}

#[test]
fn static_functions_of_an_executable() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    for (name, options) in [
        ("pie", &["-DALONE"][..]),
        ("no_pie", &["-DALONE", "-no-pie", "-fno-pie"]),
        ("cet", &["-DALONE", "-fcf-protection=full"]),
    ] {
        shapes_are_seen(&shop.program("calls.cpp", name, options), BY_ENTRY);
    }
}

#[test]
fn an_executable_beside_a_tool_with_threads() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    let tool = shop.library("tool.c", "tool.so", &[]);
    for (name, options) in [
        ("plain", &["-DALONE"][..]),
        ("cet", &["-DALONE", "-fcf-protection=full"]),
    ] {
        let program = shop.program("calls.cpp", name, options);
        shapes_are_seen(&program.preload_after_shim(&tool), BY_ENTRY);
    }
}

#[test]
fn an_executables_function_that_a_tools_thread_may_be_in() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    let tool = shop.library("tool.c", "tool.so", &["-DASKS"]);
    let program = shop.program(
        "known_to_a_tool.c",
        "known_to_a_tool",
        &[
            "-rdynamic",
            "-fcf-protection=full",
            "-fno-omit-frame-pointer",
        ],
    );
    let both = program
        .preload_after_shim(&tool)
        .window("1000000000-", "sym:^named_busy$")
        .run();
    let said = both.said();
    assert_eq!(
        lines_with(&both, "other threads are running"),
        1,
        "{said:#?}"
    );
}

#[test]
fn functions_of_a_stripped_library() {
    let shop = Workshop::new();
    let library = shop.library("shapes.cpp", "libshapes.so", &["-s"]);
    let program = shop.program("calls.cpp", "calls", &[&library]);
    shapes_are_seen(&program, usual());
}

#[test]
fn functions_by_their_got_slots() {
    let shop = Workshop::new();
    let library = shop.unsized_library("shapes.cpp");
    for (name, options) in [
        ("lazy", &["-Wl,-z,lazy"][..]),
        ("relro", &["-Wl,-z,relro,-z,now"]),
        ("no_plt", &["-fno-plt"]),
        ("no_pie", &["-no-pie", "-fno-pie"]),
        ("cet", if is_x86_64() { CET } else { &[] }),
    ] {
        let options = [options, &[library.as_str()]].concat();
        shapes_are_seen(&shop.program("calls.cpp", name, &options), BY_NAME);
    }
}

#[test]
fn a_function_of_many_by_its_signature() {
    let shop = Workshop::new();
    let library = shop.library("shapes.cpp", "libshapes.so", &[]);
    let program = shop.program("calls.cpp", "calls", &[&library]);
    // Each call of `named_fibonacci` makes 40 recursive calls. They are counted, too, if the function's entry is
    // patched.
    let fibonacci = 200 * if is_x86_64() { 41 } else { 1 };
    for (rule, total) in [
        (r"sym:^deep::Engine::named_step\(double\)$", 200),
        ("sym:^_ZN4deep6Engine10named_stepEi$", 200),
        ("sym:named_add<", 400),
        ("sym:named_fibonacci", fibonacci),
        ("sym:named_fibonacci/41", u64::div_ceil(fibonacci, 41)),
        ("sym:named_throws@^no_such_module$", 0),
    ] {
        let both = program.clone().window("1000000000-", rule).run();
        assert_eq!(both.total(), total, "{rule}");
    }
}
