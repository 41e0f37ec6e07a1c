//! Windows of steady iterations, which open where nobody asks for others.

use std::time::Duration;

use crate::assert_unharmed;
use crate::common::{Fixture, Scratch, Switch, command, run, shim, standin, tllmprof};

#[test]
fn steady_iterations_are_taken_once_their_time_has_settled() {
    for (program, step) in [
        ("steps_shared12", "cudaGraphLaunch"),
        ("steps_static", "cudaStreamSynchronize"),
        ("steps_dlsym", "auto"),
    ] {
        let fixture = || {
            Fixture::new(program)
                .window("steady:20", step)
                .env("STANDIN_WORK_NS", "20000")
        };
        let ran = fixture().args("--steps 400").run();
        let said = ran.said();
        let [start, stop] = ran.switches()[..] else {
            panic!("{:?} {said:?}", ran.switches());
        };
        let (
            Switch::Start {
                launches: first, ..
            },
            Switch::Stop { launches: end, .. },
        ) = (start, stop)
        else {
            panic!("{start:?} {stop:?}");
        };
        assert!((24..=330).contains(&first) && end == first + 20, "{said:?}");
        let window = format!("window {first}-{}", end - 1);
        let opened = said.iter().find(|line| line.contains(" opened at "));
        let start = format!("{window} opened at iteration {first} ({step}, ");
        let opened = opened.expect("it opens");
        assert!(
            opened.starts_with(&start) && opened.contains("steady"),
            "{opened}"
        );
        assert_eq!(
            said.last(),
            Some(&format!("{window} captured: 400 iterations by {step}"))
        );
        // A program that ends before says how many steps there were.
        let ran = fixture().args("--steps 12").run();
        assert!(ran.switches().is_empty());
        let said = ran.said();
        let why = match step {
            "auto" => "auto recognised no step",
            _ => "12 iterations by ",
        };
        let start = format!("window of 20 steady iterations never opened: {why}");
        assert!(
            said.last().is_some_and(|line| line.starts_with(&start)),
            "{said:?}"
        );
        assert_unharmed(&ran, &Fixture::plain(program).args("--steps 12").run());
    }
}

#[test]
fn a_run_without_a_window_ends_with_a_summary_and_the_line_that_makes_the_page() {
    let scratch = Scratch::new("steady");
    let run_with = |more: &[&str], steps: &str| {
        let mut it = command(tllmprof());
        it.args(["run", "--run", "x", "--step", "cudaGraphLaunch"])
            .args(more)
            .arg("--")
            .arg(standin().join("bin/steps_shared12"))
            .args(["--steps", steps])
            .env("TLLMPROF_LIB", shim())
            .env("LD_LIBRARY_PATH", standin())
            .env("STANDIN_WORK_NS", "20000")
            .current_dir(scratch.folder());
        run(&mut it, Duration::from_secs(60)).err()
    };
    let text = run_with(&[], "400");
    assert!(text.contains(": 50 iterations in "), "{text}");
    let last = "tllmprof: a page with timelines: tllmprof report --html tllmprof-x.html tllmprof-x";
    assert_eq!(text.lines().last(), Some(last));
    let mut page = command(tllmprof());
    page.args(last.split(' ').skip(6))
        .current_dir(scratch.folder());
    let made = run(&mut page, Duration::from_secs(60));
    assert!(made.status.success(), "{}", made.err());
    assert!(scratch.path("tllmprof-x.html").is_file());
    // Where no window came to be there is nothing that a page could show.
    for (more, steps, line) in [
        (
            &[][..],
            "10",
            "window of 50 steady iterations never opened: 10 iterations",
        ),
        (&["--window", "none"], "100", "no iteration was recorded"),
    ] {
        let text = run_with(more, steps);
        assert!(text.contains(line) && !text.contains("a page"), "{text}");
    }
}
