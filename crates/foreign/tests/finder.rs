//! Tests that iterations are found in traces that contain no iterations counted by tllmprof itself. The tests make up
//! these traces.

use tllmprof_config::Step;
use tllmprof_foreign::{
    Call, Finder, FoundIterations, Method, NotFound, Range, RangeSource, Span, Trace, Work, check,
};
use tllmprof_record::CopyKind;

const STEPS: i64 = 200;
const LENGTH: i64 = 1_000_000;

fn finder(rule: &str) -> Finder {
    Finder::new((!rule.is_empty()).then(|| Step::parse(rule).unwrap()))
}

fn call(name: &str, correlation: u32, start: i64, end: i64) -> Call<'_> {
    Call {
        thread: 7,
        name,
        correlation,
        start,
        end,
    }
}

fn finish(finder: Finder) -> Result<FoundIterations, NotFound> {
    let trace = Trace {
        span: Span {
            start: 0,
            end: STEPS * LENGTH,
        },
        main_thread: None,
    };
    finder.finish(&trace, &|kernel| format!("k{kernel}"))
}

/// Adds the calls of a serving loop: each step launches nine kernels, and a copy to the host that
/// it then waits for. The calls are added in reverse order, because a trace need not be in order.
fn decode(finder: &mut Finder, steps: i64) {
    for step in (0..steps).rev() {
        let start = step * LENGTH;
        let first = step as u32 * 16 + 1;
        let at = |place: i64| start + place * 10_000;
        let wait = call("cudaStreamSynchronize_v3020", 0, at(11), at(80));
        finder.call(&wait);
        finder.call(&call("cudaMemcpyAsync_v3020", first + 9, at(10), at(11)));
        finder.work(first + 9, Work::Copy(CopyKind::DeviceToHost));
        for kernel in (0..9).rev() {
            let number = first + kernel;
            finder.call(&call(
                "cudaLaunchKernel_v7000",
                number,
                at(kernel.into()),
                at(kernel.into()) + 5000,
            ));
            finder.work(number, Work::Kernel(kernel));
        }
    }
}

#[test]
fn a_loop_without_ranges_is_learned_from_its_first_step_on() {
    let mut finder = finder("");
    decode(&mut finder, STEPS);
    assert!(finder.needs_calls());
    let found = finish(finder).unwrap();
    assert_eq!((found.method, &*found.rule), (Method::Learned, "auto"));
    assert!(found.why.contains("after kernel k8"), "{}", found.why);
    let one = found.iterations[50];
    assert_eq!((one.end - one.start, one.thread), (LENGTH, 7));
    assert!(
        found.iterations.len() as i64 >= STEPS - 3,
        "{}",
        found.iterations.len()
    );
}

#[test]
fn a_trace_without_a_pattern_is_one_iteration() {
    let mut finder = finder("");
    decode(&mut finder, 5);
    let found = finish(finder).unwrap();
    let one = found.iterations[0];
    assert_eq!((found.method, found.iterations.len()), (Method::Whole, 1));
    assert_eq!((one.start, one.end, one.thread), (0, STEPS * LENGTH, 7));
}

#[test]
fn known_ranges_that_do_not_count_are_named() {
    let mut finder = finder("auto");
    ranges(&mut finder, None);
    decode(&mut finder, 5);
    let found = finish(finder).unwrap();
    assert_eq!(found.method, Method::Whole);
    let expected = "the engine's ranges execute_… are not used (--step nvtx:^execute_ counts them)";
    assert!(found.why.contains(expected), "{}", found.why);
}

#[test]
fn a_call_without_a_duration_is_not_within_the_call_before_it() {
    let mut calls = finder("cudaStreamSynchronize");
    for (start, end) in [(0, 10), (10, 10), (20, 30)] {
        calls.call(&call("cudaStreamSynchronize", 0, start, end));
    }
    // The waits end at 10, 10 and 30, so the first of the two iterations has no duration.
    let found = finish(calls).unwrap();
    let spans: Vec<_> = found
        .iterations
        .iter()
        .map(|one| (one.number, one.end))
        .collect();
    assert_eq!(spans, [(1, 30)]);
}

#[test]
fn a_part_of_an_iteration_at_the_end_is_no_iteration() {
    let mut asked = finder("nvtx:^forw/7");
    ranges(&mut asked, None);
    let found = finish(asked).unwrap();
    assert_eq!(found.iterations.len() as i64, STEPS / 7);
    assert_eq!(found.iterations[27].end, STEPS / 7 * 7 * LENGTH);
    assert!(!found.is_last_open);
    let mut asked = finder("nvtx:^forw/300");
    ranges(&mut asked, None);
    assert_eq!(
        finish(asked).unwrap_err().to_string(),
        "--step nvtx:^forw/300: the trace has 200 of these ranges (wanted: 300 for each iteration)"
    );
}

#[test]
fn a_call_that_the_user_names_begins_or_ends_iterations() {
    let mut waits = finder("cudaStreamSynchronize");
    decode(&mut waits, STEPS);
    let found = finish(waits).unwrap();
    assert_eq!(found.method, Method::Asked);
    assert_eq!(found.iterations.len() as i64, STEPS - 1);
    assert_eq!(found.iterations[0].start, 800_000);
    let mut launches = finder("cuLaunchKernel/9");
    decode(&mut launches, STEPS);
    // The driver call lies within a runtime call, so it is not counted separately.
    launches.call(&call("cuLaunchKernel", 0, 1000, 4000));
    let found = finish(launches).unwrap();
    assert_eq!(found.iterations[1].start, LENGTH);
    let mut none = finder("cudaGraphLaunch");
    decode(&mut none, STEPS);
    let why = finish(none).unwrap_err().to_string();
    assert!(
        why.starts_with("--step cudaGraphLaunch: the trace has 0 of these calls"),
        "{why}"
    );
}

fn ranges(finder: &mut Finder, domain: Option<&str>) {
    for step in 0..STEPS {
        for (name, long) in [
            ("execute_context_0(0)_generation_8(8)", 900_000),
            ("forward", 700_000),
        ] {
            finder.range(&Range {
                thread: 7,
                source: RangeSource::Nvtx,
                name,
                domain,
                start: step * LENGTH,
                end: step * LENGTH + long,
            });
        }
    }
}

#[test]
fn known_ranges_come_before_learning() {
    let mut known = finder("");
    ranges(&mut known, None);
    assert!(!known.needs_calls());
    let found = finish(known).unwrap();
    assert_eq!(
        (found.method, &*found.rule),
        (Method::Known, "nvtx:^execute_")
    );
    assert_eq!(found.iterations.len() as i64, STEPS);
    assert_eq!(found.iterations[9].batch.map(|batch| batch.tokens), Some(8));
}

#[test]
fn a_range_that_the_user_names_comes_before_known_ones() {
    let mut asked = finder("nvtx:^forw/2");
    assert!(asked.is_candidate(RangeSource::Nvtx, "forward", None));
    assert!(!asked.is_candidate(RangeSource::Nvtx, "backward", None));
    ranges(&mut asked, None);
    let found = finish(asked).unwrap();
    assert_eq!(
        (found.method, &*found.rule),
        (Method::Asked, "nvtx:^forw/2")
    );
    assert_eq!(found.iterations.len() as i64, STEPS / 2);
    let mut elsewhere = finder("nvtx:^forw@engine");
    ranges(&mut elsewhere, Some("other"));
    elsewhere.other_ranges("aten::add, op_id = 7", 3);
    elsewhere.other_ranges("aten::add, op_id = 8", 1);
    assert_eq!(
        finish(elsewhere).unwrap_err().to_string(),
        "--step nvtx:^forw@engine: no range of the trace matches; the most frequent ranges are \
         execute_context_0(0)_generation_8(8) (200 times), forward (200 times), aten::add (4 times)"
    );
}

#[test]
fn rules_that_traces_cannot_answer_are_refused() {
    assert!(check(&Step::parse("sym:step").unwrap()).is_err());
    assert!(check(&Step::parse("nvtx:step").unwrap()).is_ok());
}
