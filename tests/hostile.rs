//! Checks programs that do what a preloaded library may not expect. Each program must end with the same result as
//! without the library, and its windows must have the right launches.
//!
//! The programs are C, in `tests/hostile/`. Each test builds its own.

mod common;
#[path = "hostile/leaks.rs"]
mod leaks;
#[path = "hostile/not_ready.rs"]
mod not_ready;
#[path = "hostile/others.rs"]
mod others;
#[allow(dead_code, reason = "the situations use the rest of it")]
#[path = "situations/twice.rs"]
mod twice;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use common::{Scratch, Switch, compiler, repo, run, standin};
use twice::{Both, Situation, count, start, stop, switches};

const RUNTIME: &[&str] = &["-Wl,--no-as-needed", "-l:libcudart.so.12"];
const NO_CUDA: &[&str] = &[];

/// The folder in which a test builds its programs and libraries.
struct Workshop(Scratch);

impl Workshop {
    fn new() -> Self {
        Self(Scratch::new("hostile"))
    }

    /// Builds `tests/hostile/NAME.c` as the file `output` of the test's folder. Returns the path of this file.
    fn build(&self, name: &str, output: &str, options: &[&str]) -> PathBuf {
        self.build_with(compiler(), name, output, options)
    }

    fn build_with(&self, mut cc: Command, name: &str, output: &str, options: &[&str]) -> PathBuf {
        let standin = standin();
        let built = self.0.path(output);
        cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
            .args(["-pthread", "-fexceptions", "-DSTANDIN"])
            .arg(format!("-I{}", repo().join("tests/standin").display()))
            .arg(format!("-I{}", repo().join("tests/fixtures").display()))
            .arg(format!("-L{}", standin.display()))
            .arg("-o")
            .arg(&built)
            .arg(repo().join("tests/hostile").join(format!("{name}.c")))
            .args(options);
        let output = run(&mut cc, Duration::from_secs(300));
        assert!(output.status.success(), "{cc:?}\n{}", output.err());
        built
    }

    fn library(&self, name: &str, options: &[&str]) -> PathBuf {
        let options = [&["-shared", "-fPIC"], options].concat();
        self.build(name, &format!("{name}.so"), &options)
    }

    fn program(&self, name: &str, options: &[&str]) -> Situation {
        let program = self.build(name, name, options);
        Situation::new(program.to_str().expect("cargo's folders have UTF-8 names"))
    }
}

/// Asserts that the driver's log has exactly the `wanted` starts and stops of the profiler.
#[track_caller]
fn assert_switches(both: &Both, wanted: &[Switch]) {
    let said = both.output.err();
    assert_eq!(switches(&both.log), wanted, "{said}");
}

#[test]
fn exit_handlers_may_launch() {
    let shop = Workshop::new();
    let program = shop.program("exit_handlers", RUNTIME);
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        for (windows, wanted) in [
            ("100-150", vec![]),
            ("5-9", vec![start(5, 5), stop(10, 10)]),
            ("30-", vec![start(30, 30), stop(40, 40)]),
        ] {
            let both = program
                .clone()
                .args("alone")
                .window(windows, step)
                .env("TLLMPROF_WARMUP", "0")
                .run();
            assert_eq!(both.output.status.code(), Some(6));
            both.assert_same_calls();
            assert_eq!(both.total(), 40, "{windows} by {step}");
            assert_switches(&both, &wanted);
        }
    }
    let both = program.args("alone").window("100-150", "auto").run();
    assert_eq!(both.output.status.code(), Some(6));
    both.assert_same_calls();
    assert_switches(&both, &[]);
}

#[test]
fn exit_handlers_wait_for_a_thread_that_launches() {
    let shop = Workshop::new();
    let program = shop.program("exit_handlers", RUNTIME);
    for step in ["cudaGraphLaunch", "cudaStreamSynchronize"] {
        let both = program
            .clone()
            .args("thread")
            .window("30-", step)
            .env("TLLMPROF_WARMUP", "0")
            .run();
        assert_eq!(both.total(), 40, "by {step}");
        assert_switches(&both, &[start(30, 30), stop(40, 40)]);
        assert_eq!(count(&both.log, "cuGraphLaunch"), 1040);
    }
}

/// In the program, `cuProfilerStart` returns only after another thread has made 200 launches. So the library must not
/// make each launch of that thread wait for the profiler's start.
#[test]
fn a_profiler_that_starts_only_after_many_launches() {
    let shop = Workshop::new();
    let program = shop.program("slow_profiler", RUNTIME);
    let both = program.window("5-9", "cudaGraphLaunch").run();
    assert_eq!(count(&both.log, "cuProfilerStart"), 1);
    assert_eq!(count(&both.log, "cuProfilerStop"), 1);
    assert_eq!(count(&both.log, "cuGraphLaunch"), 240);
    assert_eq!(both.total(), 240);
}

#[test]
fn every_thread_key_is_taken() {
    let shop = Workshop::new();
    let program = shop.program("every_thread_key", RUNTIME);
    let both = program.window("2-3", "cudaGraphLaunch").run();
    assert!(both.output.out().contains("lost: 0\n"));
    both.assert_same_calls();
    assert_eq!(both.total(), 8);
    assert_switches(&both, &[start(2, 2), stop(4, 4)]);
}

#[test]
fn a_full_pipe_is_not_waited_for() {
    let shop = Workshop::new();
    let program = shop.program("full_pipe", RUNTIME);
    for (windows, wanted) in [
        ("2-3", [start(2, 2), stop(4, 4)]),
        ("2-", [start(2, 2), stop(8, 8)]),
    ] {
        let both = program.clone().window(windows, "cudaGraphLaunch").run();
        both.assert_same_calls();
        assert_switches(&both, &wanted);
    }
    // In the first of these runs, the library logs that a value is bad, and in the second, that a window never opened.
    // The program's standard error is a full pipe, so the library must not wait until it can write these messages.
    program.clone().window("two", "auto").run();
    program.window("100-", "cudaGraphLaunch").run();
}

#[test]
fn dlerror_is_the_programs() {
    let shop = Workshop::new();
    let program = shop.program("dlerror", RUNTIME);
    let both = program.window("2-3,5-", "cudaGraphLaunch").run();
    assert!(both.output.out().contains("/no/such.so"));
    let wanted = [start(2, 2), stop(4, 4), start(5, 5), stop(8, 8)];
    assert_switches(&both, &wanted);
}

/// When a program starts, errno is 0. The library's constructor must leave it at 0.
#[test]
fn errno_is_0_when_a_program_starts() {
    let shop = Workshop::new();
    let program = shop.program("errno_at_first", NO_CUDA);
    let armed = program
        .clone()
        .window("2-3", "auto")
        .env("TLLMPROF_TRACE", shop.0.path("%p.tllmprof"))
        .env("TLLMPROF_KERNELS", "1")
        .env("TLLM_NVTX_DEBUG", "1")
        .env("TLLM_PROFILE_RECORD_GC", "1");
    for situation in [
        program.clone(),
        armed,
        program.clone().window("two", "auto"),
        program.window("2-3", "sym:^main$"),
    ] {
        let both = situation.run();
        assert_eq!(both.output.status.code(), Some(6));
        assert_eq!(both.output.out(), "errno 0, no error of dlopen's\n");
    }
}

#[test]
fn exit_from_a_handler_that_interrupted_malloc() {
    let shop = Workshop::new();
    let program = shop.program("exit_in_malloc", RUNTIME);
    let mut closed = 0;
    for n in 0..25 {
        let program = program.clone().args(format!("{}", 1000 + 137 * n));
        let both = program.window("2-30", "cudaGraphLaunch").run();
        assert_eq!(both.output.status.code(), Some(9));
        both.assert_same_calls();
        closed += usize::from(switches(&both.log) == [start(2, 2), stop(8, 8)]);
    }
    assert_eq!(closed, 25);
}

#[test]
fn exit_on_a_signal_stack_of_8_kilobytes() {
    let shop = Workshop::new();
    let program = shop.program("small_signal_stack", RUNTIME);
    for windows in ["2-30", "100-"] {
        let both = program.clone().window(windows, "cudaGraphLaunch").run();
        assert_eq!(both.output.status.code(), Some(9));
        assert_eq!(both.total(), 8);
    }
}

#[test]
fn a_constructor_waits_for_a_launch() {
    let shop = Workshop::new();
    let program = shop.program("constructor_waits", &[RUNTIME, &["-rdynamic"]].concat());
    shop.library("constructor_waits_library", RUNTIME);
    for (windows, wanted) in [
        ("2-3", [start(2, 2), stop(4, 4)]),
        ("0-", [start(0, 0), stop(8, 8)]),
    ] {
        let both = program.clone().window(windows, "cudaGraphLaunch").run();
        both.assert_same_calls();
        assert_eq!(both.total(), 8);
        assert_switches(&both, &wanted);
    }
}

#[test]
fn a_constructor_waits_for_a_launch_under_an_nvtx_tool() {
    let shop = Workshop::new();
    let program = shop.program("constructor_waits", &[RUNTIME, &["-rdynamic"]].concat());
    shop.library("constructor_waits_library", RUNTIME);
    let tool = shop.library("tool", NO_CUDA);
    for (args, step) in [("", "cudaGraphLaunch"), ("first", "cudaLaunchKernel")] {
        let both = program
            .clone()
            .args(args)
            .window("2-3", step)
            .env("NVTX_INJECTION64_PATH", &tool)
            .run();
        assert_eq!(both.total(), 8, "{args}");
        assert_eq!(count(&both.log, "cuProfilerStart"), 1, "{args}");
        assert_eq!(count(&both.log, "cuProfilerStop"), 1, "{args}");
        both.assert_same_calls();
    }
}

#[test]
fn a_tool_makes_cuda_calls_when_it_is_loaded() {
    let shop = Workshop::new();
    let tool = shop.library("tool", NO_CUDA);
    for does in ["call", "thread"] {
        for program in ["steps_shared12", "steps_static"] {
            let both = Situation::new(program)
                .window("2-3", "cudaGraphLaunch")
                .env("NVTX_INJECTION64_PATH", &tool)
                .env("TOOL", does)
                .run();
            // The driver's log has two waits for the device: one that the NVTX tool makes when it is loaded, and one
            // that the library makes before it stops the profiler.
            assert_eq!(count(&both.log, "cuCtxSynchronize"), 2, "{program} {does}");
            let said = both.output.err();
            let [
                Switch::Start { launches: 2, .. },
                Switch::Stop { launches: 4, .. },
            ] = switches(&both.log)[..]
            else {
                panic!("{program} {does}: {said}");
            };
            assert_eq!(both.total(), 40, "{program} {does}");
        }
    }
}

#[test]
fn a_cancelled_thread_exits() {
    let shop = Workshop::new();
    let program = shop.program("cancelled", RUNTIME).args("exits");
    for windows in ["2-3", "2-", "100-"] {
        let both = program.clone().window(windows, "cudaGraphLaunch").run();
        assert_eq!(both.output.status.code(), Some(4), "{windows}");
        assert_eq!(both.total(), 8);
    }
}

#[test]
fn a_cancelled_thread_looks_up() {
    let shop = Workshop::new();
    let program = shop.program("cancelled", RUNTIME).args("looks-up");
    for windows in ["2-3", "two-three"] {
        let both = program.clone().window(windows, "cudaGraphLaunch").run();
        assert_eq!(both.output.status.code(), Some(4), "{windows}");
    }
}

/// An allocator that unwinds the stack, like heaptrack's, takes a lock. Another thread may hold that lock while it
/// waits for the loader. So if the library allocated memory while it held the loader's lock, both threads would wait
/// forever.
#[test]
fn an_allocator_waits_for_a_thread_that_waits_for_the_loader() {
    let shop = Workshop::new();
    let allocator = shop.library("locked_allocator", NO_CUDA);
    let allocator = allocator
        .to_str()
        .expect("cargo's folders have UTF-8 names");
    let program = shop.program("no_cuda", &["-Wl,--no-as-needed", allocator]);
    program.run();
    for step in [
        "auto",
        "cudaGraphLaunch",
        "nvtx:step",
        "sym:^(puts|main)$",
        "py:module:function",
    ] {
        program.clone().window("2-3", step).run();
    }
}

#[test]
fn no_cuda_seems_to_be_there() {
    let shop = Workshop::new();
    let program = shop.program("no_cuda", NO_CUDA);
    let nothing_set = program.run();
    assert!(nothing_set.output.out().contains("cudaGraphLaunch: 0 0 0 "));
    for windows in ["2-3", "two-three"] {
        program.clone().window(windows, "cudaGraphLaunch").run();
    }
}

#[test]
fn every_argument_arrives_and_a_structure_returns() {
    let shop = Workshop::new();
    let driver = shop.library("every_argument_driver", NO_CUDA);
    let driver = driver.to_str().expect("cargo's folders have UTF-8 names");
    let program = shop.program("every_argument", &[driver]);
    let both = program.window("100-", "cudaGraphLaunch").run();
    assert!(
        both.output
            .out()
            .starts_with("linked: 0 1 2 3 4 5 6 7 8 9 0 0 0.5 1.5 ")
    );
    assert_eq!(both.total(), 8);
}

#[test]
fn a_call_that_was_left_holds_none_of_the_next() {
    let shop = Workshop::new();
    let program = shop.program("left_far_up", RUNTIME);
    // Each of the 12 steps makes two launches and one wait, and a longjmp leaves the first launch. The second launch of
    // each step is a window of its own.
    let windows: Vec<String> = (0..12).map(|n| (2 * n + 1).to_string()).collect();
    let both = program.window(&windows.join(","), "cudaGraphLaunch").run();
    assert!(both.output.out().starts_with("left: 12\n"));
    assert_eq!(both.total(), 24);
    // Each window has exactly one launch, so the launch that the longjmp left has no influence on the next one.
    let wanted: Vec<Switch> = (0..12)
        .flat_map(|n| [start(2 * n + 1, n), stop(2 * n + 2, n + 1)])
        .collect();
    assert_switches(&both, &wanted);
}

#[test]
fn a_copy_kind_has_32_bits() {
    let shop = Workshop::new();
    let runtime = shop.library("copy_kind_runtime", NO_CUDA);
    let runtime = runtime.to_str().expect("cargo's folders have UTF-8 names");
    let program = shop.program(
        "copy_kind",
        &[runtime, "-Wl,--no-as-needed", "-l:libcuda.so.1"],
    );
    let both = program.window("100-", "cudaMemcpyAsync").run();
    assert_eq!(both.total(), 8);
}

#[test]
fn fork_while_another_thread_looks_up() {
    let shop = Workshop::new();
    let program = shop.program("fork_in_lookup", RUNTIME);
    program.window("2-3", "cudaGraphLaunch").run();
}

#[test]
fn a_thread_ends_anothers_capture() {
    for (step, first) in [
        ("cudaGraphLaunch", 2),
        ("cudaStreamSynchronize", 2),
        ("auto", 100),
    ] {
        let both = Situation::new("two_threads")
            .args("capture-ends-elsewhere relaxed 140")
            .env("TLLMPROF_WARMUP", "0")
            .window(&format!("{first}-{}", first + 7), step)
            .run();
        both.assert_same_calls();
        assert_eq!(both.total(), 140, "by {step}");
        assert_switches(&both, &[start(first, first), stop(first + 8, first + 8)]);
    }
}

#[test]
fn a_versioned_name_in_the_callers_scope() {
    let shop = Workshop::new();
    shop.library("versioned_lookup_library", RUNTIME);
    let program = shop.program("versioned_lookup", NO_CUDA);
    program.run();
    let both = program.window("2-3", "cudaGraphLaunch").run();
    assert!(both.output.out().starts_with("versioned: found\n"));
}

#[test]
fn strings_far_from_symbols() {
    let shop = Workshop::new();
    let options = [
        "-no-pie",
        "-nostartfiles",
        "-Wl,--section-start=.dynstr=0x800000",
    ];
    let program = shop.program("far_strings", &options);
    let both = program.window("2-3", "cudaGraphLaunch").run();
    assert_eq!(both.output.status.code(), Some(6));
}

#[test]
fn a_window_opens_with_the_driver() {
    let shop = Workshop::new();
    let program = shop.program("late_driver", RUNTIME);
    for (step, iterations) in [
        ("cudaStreamSynchronize", 8),
        ("cudaDeviceSynchronize", 2),
        ("cudaGraphLaunch", 8),
    ] {
        let both = program.clone().window("0-1", step).run();
        both.assert_same_calls();
        assert_eq!(both.total(), iterations, "by {step}");
        assert_eq!(count(&both.log, "cuProfilerStart"), 1, "by {step}");
        assert_eq!(count(&both.log, "cuProfilerStop"), 1, "by {step}");
    }
}

#[test]
fn main_thread_leaves_by_pthread_exit() {
    let shop = Workshop::new();
    let program = shop.program("main_leaves", RUNTIME);
    for (windows, wanted) in [
        ("5-9", [start(5, 5), stop(10, 10)]),
        ("5-19", [start(5, 5), stop(20, 20)]),
        ("15-", [start(15, 15), stop(40, 40)]),
    ] {
        let both = program.clone().window(windows, "cudaGraphLaunch").run();
        both.assert_same_calls();
        assert_eq!(both.total(), 40, "{windows}");
        assert_switches(&both, &wanted);
    }
    // Neither the library's thread that samples stacks nor any other thread of the library may keep the process alive.
    let traces = Scratch::new("hostile-stacks");
    let both = program
        .env("TLLMPROF_TRACE", traces.folder().join("%p.tllmprof"))
        .env("TLLMPROF_NATIVE_STACKS", "1")
        .window("5-", "cudaGraphLaunch")
        .run();
    both.assert_same_calls();
    assert_eq!(both.total(), 40);
}
