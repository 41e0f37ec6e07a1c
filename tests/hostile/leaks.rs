//! Checks programs under a leak checker. The library never frees some of its memory, but keeps pointers to it, so the
//! checker must report no leak.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::common::{Output, built_command, clang, compiler, run, shim, skipped, standin};
use super::{RUNTIME, Workshop};

const TIMEOUT: Duration = Duration::from_secs(300);
/// The exit status with which the program ends if nothing leaks.
const STATUS: i32 = 3;

fn run_with(program: &Path, set: impl FnOnce(&mut Command)) -> Output {
    let mut command = built_command(program);
    command.env("LD_LIBRARY_PATH", standin());
    set(&mut command);
    run(&mut command, TIMEOUT)
}

fn nothing_leaks(cc: Command, sanitizer: &[&str]) {
    let workshop = Workshop::new();
    let options = [sanitizer, RUNTIME].concat();
    let program = workshop.build_with(cc, "leaks", "leaks", &options);
    let lost = run_with(&program, |command| {
        command.arg("lost");
    });
    if !lost.err().contains("1 byte(s) leaked in 1 allocation(s)") {
        return skipped("the leak checker does not work here");
    }
    let bare = run_with(&program, |_| ());
    assert_eq!(
        (bare.status.code(), bare.err()),
        (Some(STATUS), String::new())
    );
    let preloaded = run_with(&program, |command| {
        command.env("LD_PRELOAD", shim());
    });
    assert_eq!(
        (preloaded.status.code(), preloaded.err()),
        (Some(STATUS), String::new())
    );
    for (rule, more) in [
        ("cudaGraphLaunch", "TLLM_NVTX_DEBUG"),
        ("cudaStreamSynchronize", "TLLM_LLMAPI_ENABLE_NVTX"),
        ("auto", "TLLMPROF_GIL"),
        ("nvtx:decode", "TLLM_PROFILE_RECORD_GC"),
        ("sym:^main$", "TLLM_NVTX_DEBUG"),
    ] {
        let armed = run_with(&program, |command| {
            command
                .env("LD_PRELOAD", shim())
                .env("TLLM_PROFILE_START_STOP", "2-5,8")
                .env("TLLMPROF_STEP", rule)
                .env("TLLMPROF_TRACE", workshop.0.path("%p.tllmprof"))
                .env(more, "1");
        });
        let said = armed.err();
        assert_eq!(armed.status.code(), Some(STATUS), "{rule}: {said}");
        // A forked child does not have its parent's other threads, such as the library's worker. The leak checker of
        // GCC 12 looks for these threads and prints this line.
        let is_fork = |line: &str| line.ends_with(" was not suspended. False leaks are possible.");
        let is_ours = |line: &str| line.starts_with("tllmprof: ");
        assert!(
            said.lines().all(|line| is_ours(line) || is_fork(line)),
            "{rule}: {said}"
        );
        assert!(said.contains("iterations by"), "{rule}: {said}");
    }
}

#[test]
fn nothing_leaks_in_a_program_of_leak_sanitizer() {
    nothing_leaks(compiler(), &["-fsanitize=leak"]);
}

#[test]
fn nothing_leaks_in_a_program_of_address_sanitizer() {
    nothing_leaks(compiler(), &["-fsanitize=address", "-static-libasan"]);
}

/// With GCC 12 and `-static-liblsan`, even an empty program without a preload ends at its start with status 23. The
/// reason is that the sanitizer looks up functions before it is ready for the allocations of a look-up. So the test
/// also uses clang, which links LeakSanitizer statically by default.
#[test]
fn nothing_leaks_where_leak_sanitizer_is_linked_statically() {
    if let Some(clang) = clang() {
        nothing_leaks(Command::new(clang), &["-fsanitize=leak"]);
    }
    nothing_leaks(compiler(), &["-fsanitize=leak", "-static-liblsan"]);
}
