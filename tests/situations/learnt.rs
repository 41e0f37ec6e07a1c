//! Checks programs whose step is more than a launch and a wait. The rule `auto` has to find the step, and windows must
//! open only where a step begins.

use super::twice::{Both, Situation};

/// Returns, for each start and stop of the profiler, the number of steps that the program had marked in the driver's
/// log before it.
fn switched_at(both: &Both) -> Vec<usize> {
    let mut marks = 0;
    let mut switched = Vec::new();
    for record in &both.log {
        match record.function.as_str() {
            "cuProfilerStart" | "cuProfilerStop" => switched.push(marks),
            name if name.starts_with("cuLaunchCooperativeKernel") => marks += 1,
            _ => {}
        }
    }
    switched
}

fn run(how: &str, windows: &str) -> Vec<Both> {
    ["engines", "engines_static"]
        .into_iter()
        .map(|program| {
            let situation = Situation::new(program).args(how).window(windows, "auto");
            situation.env("TLLMPROF_WARMUP", "0").run()
        })
        .collect()
}

/// Asserts that the only window has exactly the steps from `first` to `last`. Returns the library's first message.
#[track_caller]
fn assert_exact(how: &str, first: usize, last: usize) -> String {
    let mut said = String::new();
    for both in run(how, &format!("{first}-{last}")) {
        let lines = both.said();
        assert_eq!(switched_at(&both), [first, last + 1], "{how} {lines:#?}");
        said = lines.first().cloned().unwrap_or_default();
    }
    said
}

#[test]
fn another_thread_waits_one_step_late() {
    // In this program, another thread waits for each step one step late. The window may begin one step late, too, but
    // it must have exactly 20 steps.
    for both in run("late", "100-119") {
        let switched = switched_at(&both);
        assert_eq!(switched[1] - switched[0], 20, "{:#?}", both.said());
        assert!((100..=101).contains(&switched[0]), "{switched:?}");
        // In this program, launches are more regular than the other thread's waits. So `auto` chooses a launch as the
        // beginning of the iteration.
        assert!(
            both.said()[0].contains("iteration = the launch of "),
            "{:#?}",
            both.said()
        );
    }
}

#[test]
fn two_engines_in_a_process() {
    let said = assert_exact("two", 100, 119);
    assert!(
        said.ends_with("the one that launches most is followed"),
        "{said}"
    );
}

#[test]
fn another_thread_polls() {
    assert_exact("polls", 100, 119);
}

#[test]
fn drafts_are_no_steps() {
    assert_exact("speculates", 80, 99);
}

#[test]
fn layers_that_are_read_back_are_no_steps() {
    assert_exact("reads_layers", 60, 69);
}

#[test]
fn graphs_were_captured_before() {
    assert_exact("captures", 100, 119);
}

#[test]
fn the_pattern_changes_and_is_learnt_again() {
    // If a step takes far longer than others because the machine is busy, `auto` does not use it to find the repeating
    // pattern of calls. So the program makes many steps before each window.
    for both in run("changes", "380-389,700-709") {
        let said = both.said();
        let switched = switched_at(&both);
        assert_eq!(switched[..2], [380, 390], "{said:#?}");
        // The pattern of the program's calls changes between the two windows. `auto` then needs some steps to learn the
        // new pattern, and adds these steps to its count only after that. So the second window may begin a few steps
        // before or after the requested one.
        assert_eq!(switched[3] - switched[2], 10, "{said:#?}");
        assert!((695..=705).contains(&switched[2]), "{switched:?} {said:#?}");
    }
}

#[test]
fn nothing_recurs() {
    for both in run("nothing", "5-9") {
        assert_eq!(switched_at(&both), [0; 0]);
        assert_eq!(
            both.said(),
            ["window 5-9 never opened: auto recognised no step; it made 5100 kernel launches"]
        );
    }
}

#[test]
fn too_little_recurs() {
    let both = Situation::new("steps_shared12")
        .args("--steps 20")
        .window("5-9", "auto")
        .run();
    assert!(both.switches().is_empty());
    let said = both.said();
    assert_eq!(
        said.last().map(String::as_str),
        Some(
            "window 5-9 never opened: 20 iterations by auto, not steady for long enough to be relied on; it made \
             20 graph launches and 20 stream waits"
        ),
        "{said:?}"
    );
}
