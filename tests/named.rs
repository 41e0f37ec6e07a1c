//! Functions that the rule names: each call counts once, whatever shape it has and however the program was linked, and
//! nothing else about the program changes.
//!
//! The programs are in `tests/named/`; each test builds its own. A program prints how many calls it made.
//!
//! Where entries are not patched, the functions are those of libraries, which are called by GOT slots.

mod common;
#[path = "named/meetings.rs"]
mod meetings;
#[allow(dead_code, reason = "the situations use the rest of it")]
#[path = "situations/twice.rs"]
mod twice;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::{Scratch, Switch, is_x86_64, repo, run, skipped, standin};
use twice::{Both, Situation, start, stop, switches};

const BUILDING: Duration = Duration::from_secs(240);
/// Has compilers for x86-64 mark where jumps may lead.
const CET: &[&str] = &["-fcf-protection=full"];
/// Has compilers for AArch64 guard branches and sign return addresses.
const PROTECTED: &str = "-mbranch-protection=standard";
/// What tests say of functions at level debug.
const BY_ENTRY: &str = "is followed by its entry";
const BY_NAME: &str = "is followed where other modules call it";

/// A folder with what a test builds.
struct Workshop(Scratch);

impl Workshop {
    fn new() -> Self {
        Self(Scratch::new("named"))
    }

    fn compile(&self, source: &str, output: &str, options: &[&str]) -> PathBuf {
        let built = self.0.path(output);
        let is_cpp = source.ends_with(".cpp") || source.ends_with(".s");
        let mut cc = if is_cpp {
            common::cpp_compiler()
        } else {
            common::compiler()
        };
        let standard = if is_cpp { "-std=gnu++17" } else { "-std=gnu11" };
        let source = match source.ends_with(".s") {
            true => self.0.path(source),
            false => repo().join("tests/named").join(source),
        };
        // The parts that GCC splits off functions would be functions of the same name.
        cc.args(["-O2", "-g", "-Wall", "-Wextra", "-Wno-psabi"])
            .args([
                "-fno-partial-inlining",
                "-pthread",
                "-fexceptions",
                "-DSTANDIN",
                standard,
            ])
            .args((!is_x86_64()).then_some(PROTECTED))
            .arg(format!("-I{}", repo().join("tests/standin").display()))
            .arg(format!("-I{}", repo().join("tests/fixtures").display()))
            .arg(format!("-I{}", repo().join("tests/named").display()))
            .arg("-o")
            .arg(&built)
            .arg(source)
            .args(options);
        let output = run(&mut cc, BUILDING);
        assert!(output.status.success(), "{cc:?}\n{}", output.err());
        built
    }

    fn library(&self, source: &str, output: &str, options: &[&str]) -> String {
        let options = [&["-shared", "-fPIC"], options].concat();
        let library = self.compile(source, output, &options);
        library
            .to_str()
            .expect("cargo's folders have UTF-8 names")
            .to_owned()
    }

    /// A program that uses the runtime.
    fn program(&self, source: &str, output: &str, options: &[&str]) -> Situation {
        let folder = format!("-L{}", standin().display());
        let runtime = [folder.as_str(), "-Wl,--no-as-needed", "-l:libcudart.so.12"];
        let program = self.compile(source, output, &[options, &runtime].concat());
        Situation::new(program.to_str().expect("cargo's folders have UTF-8 names"))
            .env("TLLMPROF_LOG", "debug")
    }

    /// A program that uses the runtime, whose own functions are followed: where entries are not patched they are a
    /// library's, which reaches them by slots.
    fn program_of(&self, source: &str, output: &str, options: &[&str]) -> Situation {
        if is_x86_64() {
            return self.program(source, output, options);
        }
        let options = [&["-DIN_LIBRARY"], options].concat();
        let library = self.library(source, &format!("lib{output}.so"), &options);
        self.program("main_elsewhere.c", output, &[&library])
    }

    /// A library whose functions have no size, so that their entries are left alone.
    fn unsized_library(&self, source: &str) -> String {
        let assembly = self.compile(source, "unsized.s", &["-S", "-g0", "-fPIC"]);
        let text = std::fs::read_to_string(&assembly).expect("the compiler's output");
        let lines = text.lines().map(|line| match line.split_once(", .-") {
            Some((size, _)) => format!("{size}, 0\n"),
            None => format!("{line}\n"),
        });
        std::fs::write(&assembly, lines.collect::<String>()).expect("the test's folder");
        self.library("unsized.s", "libunsized.so", &[])
    }
}

/// What functions are followed by, if nothing is the matter with them.
fn usual() -> &'static str {
    if is_x86_64() { BY_ENTRY } else { BY_NAME }
}

/// Says that a test is left out, where entries are not patched.
fn is_left_out() -> bool {
    if !is_x86_64() {
        skipped("entries are patched on x86-64 only");
    }
    !is_x86_64()
}

/// What the program says it called.
#[track_caller]
fn calls(both: &Both) -> u64 {
    number_behind(both, "calls ")
}

#[track_caller]
fn number_behind(both: &Both, word: &str) -> u64 {
    let output = both.plain.output.out();
    let number = output
        .rsplit_once(word)
        .map(|(_, rest)| rest.split_whitespace().next().unwrap_or_default().parse());
    number
        .and_then(Result::ok)
        .unwrap_or_else(|| panic!("{output}"))
}

/// Every call counted, once.
#[track_caller]
fn assert_exact(both: &Both) {
    assert_eq!(both.total(), calls(both), "{}", both.output.err());
}

fn told(both: &Both, what: &str) -> usize {
    both.said()
        .iter()
        .filter(|line| line.contains(what))
        .count()
}

/// Both programs, one thread and eight: far from any window, and with one at every third call, so that every
/// shape is seen close to an edge, too.
#[track_caller]
fn shapes_are_seen(program: &Situation, by: &str) {
    let many: Vec<String> = (0..100).map(|n| (n * 3).to_string()).collect();
    // Calls of a library's function by itself pass no slot of another module.
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
        assert_eq!(told(&both, by), 17, "{:#?}", both.said());
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
    assert_eq!(told(&both, "other threads are running"), 1, "{said:#?}");
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
    // Those from within the library are seen by its entry alone.
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

/// Two launches an iteration, one in the call and one behind it.
#[test]
fn a_window_closes_when_its_last_call_returns() {
    let shop = Workshop::new();
    let program = shop.program_of("ends.cpp", "ends", &[]);
    for how in ["returns", "struct", "backtrace"] {
        let both = program
            .clone()
            .args(how)
            .window("3,5-6,8", "sym:engine_step")
            .run();
        let wanted = [
            start(6, 6),
            stop(7, 7),
            start(10, 10),
            stop(13, 13),
            start(16, 16),
            stop(17, 17),
        ];
        assert_eq!(switches(&both.log), wanted, "{how}");
        both.assert_same_calls();
    }
}

/// A call that is left otherwise has no end that could be seen: the next one closes the window.
#[test]
fn a_call_whose_end_is_awaited_may_be_left_by_other_ways() {
    let shop = Workshop::new();
    let program = shop.program_of("ends.cpp", "ends", &[]);
    for how in ["throws", "caught_above", "jumps"] {
        let both = program
            .clone()
            .args(how)
            .window("3,5-6,8", "sym:engine_step")
            .run();
        let wanted = [
            start(6, 6),
            stop(8, 8),
            start(10, 10),
            stop(14, 14),
            start(16, 16),
            stop(18, 18),
        ];
        assert_eq!(switches(&both.log), wanted, "{how}");
        both.assert_same_calls();
    }
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
    // Launches come in the calls alone.
    let launches: Vec<usize> = switches(&both.log)
        .iter()
        .map(|switch| match switch {
            Switch::Start { launches, .. } | Switch::Stop { launches, .. } => *launches,
        })
        .collect();
    assert_eq!(launches, [3, 4, 5, 7, 8, 9]);
}

#[test]
fn entries_that_cannot_be_patched_are_left_and_told() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    let both = shop
        .program("refused.c", "refused", &[])
        .window("1000000000-", "sym:^(odd|fine)_")
        .run();
    let said = both.said();
    for (function, reason) in [
        (
            "odd_short",
            "cannot be followed: it is too short for a jump",
        ),
        (
            "odd_loop",
            "cannot be followed: it branches back to its entry",
        ),
        ("odd_call", "cannot be followed: it begins with a call"),
        (
            "odd_jrcxz",
            "cannot be followed: it begins with an instruction that cannot be moved",
        ),
        ("odd_unsized", "cannot be followed: its size is not known"),
        (
            "odd_table",
            "cannot be followed: a jump table leads to its entry",
        ),
        ("fine_branch", BY_ENTRY),
        ("fine_relative", BY_ENTRY),
        ("fine_cet", BY_ENTRY),
    ] {
        let line = said
            .iter()
            .find(|line| line.starts_with(&format!("{function} ")));
        assert!(
            line.is_some_and(|line| line.ends_with(reason)),
            "{function}: {said:#?}"
        );
    }
    assert_eq!(both.total(), 30);
}

#[test]
fn a_plugin_that_comes_and_goes() {
    let shop = Workshop::new();
    let host = shop.program("plugin_host.c", "plugin_host", &[]);
    shop.library("plugin.c", "plugin.so", &[]);
    for args in ["1", "40", "40 thread"] {
        let both = host
            .clone()
            .args(args)
            .window("1000000000-", "sym:^plugin_step$")
            .run();
        assert_exact(&both);
        assert_eq!(
            told(&both, "plugin_step"),
            2,
            "it is told of once: {:#?}",
            both.said()
        );
    }
}

#[test]
fn a_plugin_that_is_reached_by_look_up() {
    let shop = Workshop::new();
    let host = shop.program("plugin_host.c", "plugin_host", &[]);
    // Behind a prologue that has no room for a jump in one store.
    let (options, reason): (&[&str], _) = if is_x86_64() {
        let options = &["-fcf-protection=full", "-fno-omit-frame-pointer"];
        (options, "other threads are running")
    } else {
        (&[], "entries are patched on x86-64 only")
    };
    shop.library("plugin.c", "plugin.so", options);
    let both = host
        .args("20 thread")
        .window("1000000000-", "sym:^plugin_step$")
        .run();
    assert_exact(&both);
    assert_eq!(told(&both, reason), 1, "{:#?}", both.said());
}

#[test]
fn a_function_that_compares_its_own_address() {
    let shop = Workshop::new();
    let library = shop.unsized_library("itself.c");
    for (name, options) in [("plt", &["-fplt"][..]), ("no_plt", &["-fno-plt"])] {
        let options = [options, &[library.as_str()]].concat();
        let program = shop.program("compares.c", name, &options);
        let both = program.window("1000000000-", "sym:^self_step$").run();
        assert_exact(&both);
        assert_eq!(told(&both, BY_NAME), 1, "{:#?}", both.said());
    }
}

#[test]
fn a_function_that_is_chosen_at_start() {
    let shop = Workshop::new();
    let library = shop.library("ifunc_library.c", "libchosen.so", &[]);
    for (name, options) in [
        ("lazy", &["-Wl,-z,lazy"][..]),
        ("now", &["-Wl,-z,now"]),
        ("no_plt", &["-fno-plt"]),
    ] {
        let options = [options, &[library.as_str()]].concat();
        let both = shop
            .program("ifunc.c", name, &options)
            .window("1000000000-", "sym:^chosen_step$")
            .run();
        assert_exact(&both);
    }
}

#[test]
fn children() {
    let shop = Workshop::new();
    let both = shop
        .program_of("forks.c", "forks", &[])
        .args(if common::can_exec() { "exec" } else { "" })
        .window("5-9", "sym:^forking_step$")
        .run();
    assert_exact(&both);
    both.assert_said(&[usual(), "opened at iteration 5", "closed", "captured"]);
}

#[test]
fn a_process_without_cuda_is_left_alone() {
    let shop = Workshop::new();
    let program = shop.compile("no_cuda.c", "no_cuda", &[]);
    let program = Situation::new(program.to_str().expect("cargo's folders have UTF-8 names"));
    let both = program.window("5-9", "sym:lonely_step").run();
    assert_eq!(both.output.status.code(), Some(5));
    both.assert_untouched();
}

#[test]
fn a_rust_program() {
    if is_left_out() {
        return;
    }
    let shop = Workshop::new();
    let program = shop.0.path("engine");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = Command::new(rustc);
    rustc
        .args(["--edition", "2024", "-O"])
        .arg(format!("-L{}", standin().display()))
        .arg("-o")
        .arg(&program)
        .arg(repo().join("tests/named/engine.rs"));
    let built = run(&mut rustc, BUILDING);
    assert!(built.status.success(), "{}", built.err());
    let both = Situation::new(program.to_str().expect("cargo's folders have UTF-8 names"))
        .window("5-9", "sym:^engine::serving::Engine<.*>::decode$")
        .run();
    assert_exact(&both);
}

#[test]
fn a_rule_that_matches_nothing_or_too_much_is_told() {
    let shop = Workshop::new();
    let program = shop.program("calls.cpp", "calls", &["-DALONE"]);
    let both = program.clone().window("5-9", "sym:named_fibonaci").run();
    assert!(
        told(&both, "sym:named_fibonaci matched no function in") == 1
            && told(&both, "; nearest: named_fibonacci(int)") == 1,
        "{:#?}",
        both.said()
    );
    let both = program.window("5-9", "sym:.").run();
    assert_eq!(
        told(
            &both,
            "sym:. matches over 64 functions, and at most 64 can be followed: none is"
        ),
        1
    );
    assert_eq!(both.total(), 0);
}

/// Slots are led elsewhere and forgotten while the loader is at work in other threads.
#[test]
fn libraries_that_come_and_go_in_all_threads() {
    let shop = Workshop::new();
    let lender = shop.library("lender.c", "liblender.so", &[]);
    for n in 0..4 {
        let binding = ["-Wl,-z,lazy", "-Wl,-z,now", "-fno-plt", "-Wl,-z,norelro"][n];
        let importer = format!("importer{n}.so");
        shop.library("importer.c", &importer, &[binding, &lender]);
    }
    let program = shop.program("importers.c", "importers", &[&lender]);
    let both = program.window("1000000000-", "sym:^lent_step$").run();
    assert_exact(&both);
    assert_eq!(told(&both, BY_NAME), 1);
}

#[test]
fn a_function_with_a_call_of_its_own_kind() {
    if is_x86_64() {
        return skipped("only AArch64 marks such functions");
    }
    let shop = Workshop::new();
    let library = shop.library("vector_library.c", "libvector.so", &[]);
    let both = shop
        .program("vector_call.c", "vector_call", &[&library])
        .window("1000000000-", "sym:^(vector|plain)_step$")
        .run();
    assert_exact(&both);
    let refusal = "vector_step in libvector.so cannot be followed: it may take arguments in";
    assert_eq!(told(&both, refusal), 1, "{:#?}", both.said());
    assert_eq!(told(&both, BY_NAME), 1, "{:#?}", both.said());
}

#[test]
fn a_go_program() {
    if is_left_out() {
        return;
    }
    let version = Command::new("go").arg("version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        return skipped("there is no Go here");
    }
    let shop = Workshop::new();
    let program = shop.0.path("steps");
    let mut go = Command::new("go");
    go.args(["build", "-o"])
        .arg(&program)
        .arg(repo().join("tests/named/steps.go"))
        .env("GOCACHE", shop.0.path("cache"))
        .env("GO111MODULE", "off")
        .env("CGO_ENABLED", "1")
        .env("CGO_LDFLAGS_ALLOW", "-l:.*")
        .env("CGO_LDFLAGS", format!("-L{}", standin().display()));
    let built = run(&mut go, BUILDING);
    assert!(built.status.success(), "{}", built.err());
    let program = Situation::new(program.to_str().expect("cargo's folders have UTF-8 names"));
    // Go ends without the C library: nothing is said at the end.
    for (last_call, opened) in [("999", 1), ("1000", 0)] {
        let both = program.clone().window(last_call, "sym:^served_step$").run();
        assert_eq!(
            twice::count(&both.log, "cuProfilerStart"),
            opened,
            "{last_call}"
        );
    }
    let both = program.window("5-9", r"sym:^main\.goStep$").run();
    let refusal = "main.goStep in steps cannot be followed: it is Go's own";
    assert_eq!(told(&both, refusal), 1, "{:#?}", both.said());
}

/// A program around an engine that is known: by a library that it is linked to, by one that it opens once it uses CUDA,
/// and by a function of its own that nothing exports.
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
    // The last one's own function is seen by its entry alone.
    let seen = if is_x86_64() {
        &programs[..]
    } else {
        &programs[..2]
    };
    for program in seen {
        let both = program.clone().args("calls").window("5-9", "auto").run();
        let said = both.said();
        // Three steps in each, and the launch that step 6 captures.
        assert_eq!(both.switches(), [start(16, 15), stop(31, 30)], "{said:#?}");
        assert_exact(&both);
        assert_eq!(told(&both, "is known, iteration = sym:"), 1, "{said:#?}");
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
    assert_eq!(told(&both, "is known, iteration = sym:"), 1);
}

#[test]
fn auto_learns_where_the_engine_is_there_and_not_used() {
    let shop = Workshop::new();
    for program in around_an_engine(&shop) {
        let both = program.window("50-54", "auto").run();
        let said = both.said();
        assert_eq!(told(&both, "is known"), 0, "{said:#?}");
        assert_eq!(told(&both, "auto: iteration = the"), 1, "{said:#?}");
        assert_eq!(both.switches().len(), 2, "{said:#?}");
        both.assert_same_calls();
    }
}
