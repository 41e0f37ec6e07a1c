//! Checks programs that look for CUDA on a machine without CUDA.

use super::twice::Situation;

#[test]
fn weak_references_do_no_harm() {
    let situation = Situation::new("weak").window("5-9", "cudaGraphLaunch");
    let (plain, ran) = (situation.run_plain(), situation.run_shimmed());
    assert_eq!(ran.output.out(), plain.output.out());
    assert_eq!(
        ran.output.out().matches(": NULL, dlerror set").count(),
        5,
        "{}",
        ran.output.out()
    );
    assert_eq!(ran.output.status, plain.output.status);
    // The loader resolves a weak reference if a preload exports the name. The program then finds a function, and
    // calling it must return an error instead of crashing.
    let said = ran.output.err();
    for line in said.lines().filter(|line| !line.starts_with("tllmprof: ")) {
        assert!(
            line.starts_with("weak ") && !line.ends_with("returns 0"),
            "{said}"
        );
    }
    assert!(ran.said().len() <= 1, "{said}");
}

#[test]
fn weak_references_do_no_harm_where_nothing_is_gated() {
    let situation = Situation::new("weak");
    let (plain, ran) = (situation.run_plain(), situation.run_shimmed());
    assert_eq!(ran.output.out(), plain.output.out());
    assert_eq!(ran.output.status, plain.output.status);
}

#[test]
fn a_process_that_only_asks_for_cuda_hears_nothing() {
    for (name, value) in [
        ("TLLM_PROFILE_START_STOP", "5-9"),
        ("TLLM_PROFILE_START_STOP", "9-5"),
        ("TLLMPROF_STEP", "nonsense"),
        ("TLLMPROF_LOG", "info"),
    ] {
        let both = Situation::new("weak").args("look").env(name, value).run();
        assert_eq!(both.output.err(), "", "{name}={value}");
    }
}
