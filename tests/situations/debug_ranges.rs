//! Checks the NVTX ranges that the library makes around the calls that it intercepts (`TLLM_NVTX_DEBUG`).

use crate::common::{Fixture, Ran, Scratch, Switch, nvtx};

/// Returns a count of the NVTX tool `tool.c`, which prints `what=COUNT` at the end.
fn counted(ran: &Ran, what: &str) -> usize {
    let error = ran.output.err();
    let line = error
        .lines()
        .find_map(|line| line.strip_prefix("tool: "))
        .unwrap_or_else(|| panic!("the tool was not loaded: {error}"));
    let count = line
        .split(' ')
        .find_map(|word| word.strip_prefix(what)?.strip_prefix('='));
    count.and_then(|count| count.parse().ok()).expect("a count")
}

fn with_tool(program: &str, debug: &str) -> Ran {
    let scratch = Scratch::new("debug-ranges");
    let tool = nvtx::library(&scratch, "nvtx/tool.c", "");
    Fixture::new(program)
        .env("NVTX_INJECTION64_PATH", tool)
        .env("TLLM_NVTX_DEBUG", debug)
        .window("5-9", "cudaGraphLaunch")
        .run()
}

/// Returns the number of the program's driver calls that are in the library's table of calls.
fn calls(ran: &Ran) -> usize {
    let known = |name: &str| tllmprof_calls::Call::by_name(name).is_some();
    let ours = ran.log.first().map(|first| first.tid);
    let of_program = ran.log.iter().filter(|record| Some(record.tid) == ours);
    of_program
        .filter(|record| !record.function.starts_with("cuProfiler") && known(&record.function))
        .count()
}

#[test]
fn every_call_of_the_program_has_one_and_counts_as_before() {
    // Copies have ranges but are not in the log of the stand-in for CUDA. Their number must be the same for each
    // linkage of the program.
    let mut copies = None;
    for program in [
        "steps_static",
        "steps_driver_gpa1",
        "steps_driver_gpa2_ptsz",
        "steps_driver",
    ] {
        let ran = with_tool(program, "1");
        let pushes = counted(&ran, "pushes");
        assert_eq!(counted(&ran, "pops"), pushes, "{program}");
        // A program that uses the driver without the runtime loads its kernel itself. This call has a range but is not
        // in the log either.
        let loads = usize::from(program.starts_with("steps_driver"));
        let unlogged = pushes.checked_sub(calls(&ran) + loads);
        assert!(unlogged.is_some(), "{program}");
        assert_eq!(*copies.get_or_insert(unlogged), unlogged, "{program}");
        let edges = [
            Switch::Start {
                launches: 5,
                waits: 5,
            },
            Switch::Stop {
                launches: 10,
                waits: 10,
            },
        ];
        assert_eq!(ran.switches(), edges, "{program}");
    }
}

#[test]
fn a_runtime_that_gets_the_driver_from_elsewhere_has_them_around_its_own() {
    for program in [
        "steps_shared12",
        "steps_rtld_local",
        "steps_two_cudarts",
        "threads",
    ] {
        let ran = with_tool(program, "1");
        assert!(counted(&ran, "pushes") >= 80, "{program}");
        assert_eq!(counted(&ran, "pushes"), counted(&ran, "pops"), "{program}");
    }
}

#[test]
fn none_unless_asked_for() {
    let ran = with_tool("steps_static", "0");
    assert_eq!(counted(&ran, "pushes"), 0);
    assert!(counted(&ran, "starts") > 0);
}
