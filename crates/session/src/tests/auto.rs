//! Tests of the rule `auto`: learning the step from calls, and known engines.

use tllmprof_calls::Call::{
    EventSynchronize, GraphLaunch, LaunchKernel, MemcpyDtoHAsync, StreamBeginCapture,
    StreamEndCapture, StreamSynchronize,
};
use tllmprof_steps::step::counted::Counted;

use super::{MADE, Orders, Process, begins, call, call_with, calls, passes};
use crate::live::{self, WindowRequest};
use crate::{activity, by_name, engines, learns, slot};

const VARIABLES: &str = "TLLMPROF_START_STOP=100-102";

/// Makes one pass through the simulated program's loop: two kernels, a graph, and a wait for them.
fn step() {
    for kernel in 1..=2 {
        call_with(LaunchKernel, &[kernel << 32], true);
    }
    call(GraphLaunch);
    call(StreamSynchronize);
}

#[test]
fn the_step_is_learnt() {
    let process = Process::new(VARIABLES);
    assert!(learns());
    (0..200).for_each(|_| step());
    assert_eq!(
        process.switches(),
        ["In(100): open 100-102", "In(103): close 100-102"]
    );
    let last = process.exit();
    assert_eq!(last, "window 100-102 captured: 200 iterations by auto");
}

#[test]
fn iterations_that_end_with_a_copy_begin_far_from_windows_too() {
    let orders = Orders {
        wants_record: true,
        ..Orders::NONE
    };
    let process = Process::ordered(VARIABLES, orders);
    for _ in 0..600 {
        call_with(LaunchKernel, &[1 << 32], true);
        call(GraphLaunch);
        call(MemcpyDtoHAsync);
        call(EventSynchronize);
    }
    let mut switches = process.switches();
    switches.retain(|line| line.contains("open") || line.contains("close"));
    assert_eq!(
        switches,
        ["In(100): open 100-102", "In(103): close 100-102"]
    );
    let after: Vec<_> = (104..600)
        .map(|iteration| format!("passes In({iteration})"))
        .collect();
    let begun = process.asked_for(&["passes In("]);
    let missing: Vec<_> = after
        .iter()
        .filter(|passes| !begun.contains(passes))
        .collect();
    assert!(
        missing.is_empty(),
        "{} of {}: {missing:?}",
        missing.len(),
        after.len()
    );
}

#[test]
fn a_steady_window_opens_although_each_step_captures_a_graph() {
    let process = Process::new("TLLMPROF_START_STOP=steady:20");
    for _ in 0..600 {
        call_with(StreamBeginCapture, &[7], true);
        call_with(LaunchKernel, &[1 << 32], true);
        call_with(StreamEndCapture, &[7], true);
        step();
    }
    let switches = process.switches();
    assert!(
        matches!(&switches[..], [open, close] if open.contains(" open ") && close.contains(" close ")),
        "{switches:?}"
    );
}

#[test]
fn a_window_waits_until_the_step_is_understood() {
    let process = Process::new("TLLMPROF_START_STOP=0-2");
    (0..200).for_each(|_| step());
    let switches = process.switches();
    let [open, close] = &switches[..] else {
        panic!("{switches:?}");
    };
    assert!(
        open.contains(" open ") && !open.starts_with("In(0)"),
        "{open}"
    );
    assert!(close.contains(" close "), "{close}");
    let last = process.exit();
    let late = open.split(' ').next_back().expect("a window");
    assert_eq!(
        last,
        format!("window 0-2 captured as {late}: 200 iterations by auto")
    );
}

#[test]
fn where_nothing_recurs_no_step_is_recognised() {
    let process = Process::new("TLLMPROF_START_STOP=0-2");
    calls(30, LaunchKernel);
    assert_eq!(
        process.exit(),
        "window 0-2 never opened: auto recognised no step; it made 30 kernel launches"
    );
}

#[test]
fn a_step_that_is_learnt_has_no_batch_that_a_window_could_be_opened_by() {
    let why = [
        (
            "TLLMPROF_WHERE=tokens>4",
            "no step's batch could be read: TLLMPROF_BATCH names where it is (docs/engines.md has the engines that need none)",
        ),
        (
            "TLLMPROF_WHERE=tokens>4 TLLMPROF_STEP=auto TLLMPROF_BATCH=m:f=requests:1,tokens:1,decode_tokens:1",
            "no step's batch could be read before the step: leave TLLMPROF_STEP out, so that m:f of TLLMPROF_BATCH is the step",
        ),
    ];
    for (variables, why) in why {
        let process = Process::new(&format!("{VARIABLES} {variables}"));
        (0..200).for_each(|_| step());
        assert_eq!(process.switches(), [""; 0]);
        let line = "window 100-102 never opened: 200 iterations by auto; TLLMPROF_WHERE: ";
        assert_eq!(process.exit(), format!("{line}{why}"));
    }
    // If no step was recognized, the last line of the log says so, and says nothing about `TLLMPROF_WHERE`.
    let process = Process::new(&format!("{VARIABLES} TLLMPROF_WHERE=tokens>4"));
    calls(30, LaunchKernel);
    let last = process.exit();
    assert!(
        last.ends_with("auto recognised no step; it made 30 kernel launches"),
        "{last}"
    );
}

#[test]
fn what_recurs_for_too_short_is_not_relied_on() {
    let process = Process::new(VARIABLES);
    (0..25).for_each(|_| step());
    assert_eq!(
        process.exit(),
        "window 100-102 never opened: 25 iterations by auto, not steady for long enough to be \
         relied on; it made 25 graph launches, 50 kernel launches and 25 stream waits"
    );
    assert_eq!(process.switches(), [""; 0]);
}

#[test]
fn a_step_that_comes_no_more_is_gone() {
    let process = Process::new("TLLMPROF_START_STOP=5000");
    (0..200).for_each(|_| step());
    for pass in 0..40 {
        // Each pass launches 100 kernels more than the previous pass, and begins with another kernel. So no pattern
        // recurs.
        for kernel in 0..100 * pass {
            call_with(LaunchKernel, &[(pass << 40) + (kernel << 33)], true);
        }
        call(EventSynchronize);
    }
    let last = process.exit();
    assert!(
        last.contains(" iterations by auto, then the step was gone; it made "),
        "{last}"
    );
}

#[test]
fn the_record_says_what_was_learnt() {
    let orders = Orders {
        wants_record: true,
        ..Orders::NONE
    };
    let process = Process::ordered("TLLMPROF_STEP=auto", orders);
    (0..200).for_each(|_| step());
    let begun = process.asked_for(&["record: "]);
    assert_eq!(begun.len(), 1, "{begun:?}");
    assert!(begun[0].contains(" auto None auto "), "{begun:?}");
}

#[test]
fn the_record_has_the_engines_rule_where_a_step_was_learnt_before() {
    let orders = Orders {
        wants_record: true,
        ..Orders::NONE
    };
    let process = Process::ordered("TLLMPROF_START_STOP=5000", orders);
    (0..200).for_each(|_| step());
    // The capture comes before the engine's first step, as in an engine that captures its CUDA graphs when it starts.
    call_with(StreamBeginCapture, &[7], true);
    call_with(StreamEndCapture, &[7], true);
    let index = engines::in_python()
        .position(|function| function.to_string().contains("Scheduler.run_batch"))
        .expect("SGLang is known");
    assert!(engines::is_step(index));
    for number in 0..3 {
        begins(Counted::Python);
        by_name::has_ended(number);
    }
    process.exit();
    assert_eq!(
        process.asked_for(&["rule: "]),
        [
            "rule: py:sglang.srt.managers.scheduler:Scheduler.run_batch Some(\"SGLang\") auto knows SGLang"
        ]
    );
}

#[test]
fn the_first_function_of_an_engine_to_be_called_counts_instead() {
    let orders = Orders {
        wants_record: true,
        ..Orders::NONE
    };
    let process = Process::ordered("TLLMPROF_START_STOP=1", orders);
    let index = engines::in_python()
        .position(|function| function.to_string().contains("Scheduler.run_batch"))
        .expect("SGLang is known");
    assert!(!engines::is_step(index), "CUDA is not used yet");
    assert!(engines::counted(Counted::Python).is_none());
    call(LaunchKernel);
    assert!(engines::is_step(index) && engines::is_step(index));
    assert!(
        !engines::is_step(index + 1),
        "another one's is not a step any more"
    );
    for number in 0..3 {
        let ends = begins(Counted::Python);
        assert_eq!(ends, Some(number));
        by_name::has_ended(number);
    }
    let record = process.asked_for(&["record: "]).join("");
    assert!(
        record.ends_with("Some(\"SGLang\") auto knows SGLang"),
        "{record}"
    );
    let windows = process.asked_for(&["In(1)", "After(1)"]);
    assert_eq!(windows, ["In(1): open 1", "After(1): close 1"]);
    assert_eq!(
        process.exit(),
        "window 1 captured: 3 iterations by \
         py:sglang.srt.managers.scheduler:Scheduler.run_batch"
    );
    assert!(engines::counted(Counted::Named).is_none());
    assert!(engines::counted(LaunchKernel.into()).is_none());
}

/// Simulates an import of vLLM's module. Returns the index of vLLM's step function.
fn import_vllm() -> usize {
    let index = engines::in_python()
        .position(|function| function.to_string().contains("gpu.model_runner"))
        .expect("vLLM is known");
    engines::imported(index);
    index
}

#[test]
fn a_requested_window_waits_for_the_function_of_an_engine_in_the_process() {
    let process = Process::new("TLLMPROF_START_STOP=steady:1000");
    let index = import_vllm();
    (0..200).for_each(|_| step());
    let asked = live::ask(WindowRequest {
        iterations: Some(2),
        ..WindowRequest::default()
    });
    let window = asked.expect("a window").window;
    assert_eq!((window.first, window.last), (0, Some(1)));
    (0..200).for_each(|_| step());
    assert_eq!(process.switches(), [""; 0], "the warm-up has no iterations");
    assert!(engines::is_step(index));
    (0..3).for_each(|_| passes(Counted::Python));
    assert_eq!(
        process.switches(),
        ["In(0): open 0-1", "After(1): close 0-1"]
    );
    let line = "auto: vLLM, model runner V2 is in this process: window 0-1 waits for the first call of py:vllm.";
    let lines = process.log.lines();
    assert!(lines.iter().any(|said| said.starts_with(line)), "{lines:?}");
}

#[test]
fn an_engines_function_that_is_never_called_is_reported() {
    let process = Process::new("TLLMPROF_START_STOP=steady:5");
    import_vllm();
    (0..200).for_each(|_| step());
    assert_eq!(
        process.exit(),
        "window of 5 steady iterations never opened: auto waited for the first call of \
         py:vllm.v1.worker.gpu.model_runner:GPUModelRunner.prepare_inputs, the step of vLLM, model runner V2; it made \
         200 graph launches, 400 kernel launches and 200 stream waits"
    );
}

/// Makes steps until `is_reached` is true of the switches, and returns the switches.
fn steps_until(process: &Process, is_reached: fn(&[String]) -> bool) -> Vec<String> {
    for _ in 0..2000 {
        let switches = process.switches();
        if is_reached(&switches) {
            return switches;
        }
        step();
    }
    panic!("{:?}", process.switches());
}

#[test]
fn the_function_of_an_engine_replaces_a_learnt_step_once_no_window_is_open() {
    let process = Process::new("TLLMPROF_START_STOP=steady:20");
    steps_until(&process, |switches| switches.len() == 1);
    let index = engines::in_python()
        .position(|function| function.to_string().contains("Scheduler.run_batch"))
        .expect("SGLang is known");
    assert!(engines::is_step(index));
    passes(Counted::Python);
    assert!(engines::counted(Counted::Python).is_some());
    let switches = steps_until(&process, |switches| switches.len() == 2);
    let window = switches[0].rsplit_once(" open ").expect("it opens").1;
    let last: u64 = window.rsplit_once('-').expect("a range").1.parse().unwrap();
    assert_eq!(
        switches[1],
        format!("In({}): close {window}", last + 1),
        "the function was called within the window"
    );
    (0..5).for_each(|_| step());
    passes(Counted::Python);
    let line = "auto: SGLang is known: from iteration ";
    let lines = process.log.lines();
    let first = lines.iter().find_map(|said| said.strip_prefix(line));
    let (first, rule) = first.and_then(|rest| rest.split_once(' ')).expect(line);
    let first: u64 = first.parse().unwrap();
    assert!(
        first > last + 1 && rule.starts_with("on, py:sglang."),
        "{lines:?}"
    );
    (0..2).for_each(|_| passes(Counted::Python));
    let said = format!("window {window} captured: {} iterations", first + 3);
    assert!(process.exit().starts_with(&said), "{said}");
}

#[test]
fn planned_windows_of_given_iteration_numbers_wait_for_no_engine() {
    let process = Process::new("TLLMPROF_START_STOP=100-102,150");
    let index = import_vllm();
    (0..120).for_each(|_| step());
    assert!(engines::is_step(index));
    passes(Counted::Python);
    (0..60).for_each(|_| step());
    assert_eq!(
        process.switches(),
        [
            "In(100): open 100-102",
            "In(103): close 100-102",
            "In(150): open 150",
            "In(151): close 150"
        ],
        "all iterations are counted by one rule"
    );
}

#[test]
fn the_function_of_a_library_that_is_no_server_does_not_replace_a_learnt_step() {
    let process = Process::new("TLLMPROF_START_STOP=150-159");
    (0..120).for_each(|_| step());
    let index = engines::in_python()
        .position(|function| {
            function
                .to_string()
                .contains("prepare_inputs_for_generation")
        })
        .expect("transformers is known");
    assert!(engines::is_step(index));
    passes(Counted::Python);
    (0..60).for_each(|_| step());
    let switches = process.switches();
    assert_eq!(
        switches,
        ["In(150): open 150-159", "In(160): close 150-159"],
        "a training program may generate text for its evaluation"
    );
}

/// Simulates 600 steps of an engine whose step function is called `each(n)` times before step n. Returns the log lines
/// that compare the number of these calls with the pattern in the CUDA calls. Also returns how many of the last 100
/// steps ended with a low limit for waits: the thread could count at most 999 more waits before it had to report one
/// to the session. The limit is low only while the session still makes this comparison.
fn engine_calls(each: impl Fn(u64) -> u64) -> (Vec<String>, u64) {
    let process = Process::new("TLLMPROF_START_STOP=100000");
    call(LaunchKernel);
    let index = engines::in_python()
        .position(|function| function.to_string().contains("Scheduler.run_batch"))
        .expect("SGLang is known");
    assert!(engines::is_step(index));
    let mut asked = 0;
    for number in 0..600 {
        for _ in 0..each(number) {
            if let Some(over) = begins(Counted::Python) {
                by_name::has_ended(over);
            }
        }
        step();
        let live = slot().expect("it counts").live(StreamSynchronize);
        asked += u64::from(number >= 500 && live.count() + 1000 > live.limit());
    }
    let lines = process.log.lines();
    let about = lines.into_iter().filter(|line| line.contains("counted"));
    (about.collect(), asked)
}

#[test]
fn an_engines_function_that_is_called_twice_a_step_is_reported() {
    let (lines, asked) = engine_calls(|_| 2);
    let step = "py:sglang.srt.managers.scheduler:Scheduler.run_batch";
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in [
        &format!(
            "auto: SGLang: {step} counted 192 iterations, but the stream wait after a graph (once"
        ),
        " recurred 96 times: 2 of those iterations may be one.",
        &format!(" --step '{step}/2' counts so; --step auto:inner uses only the CUDA calls"),
    ] {
        assert!(lines[0].contains(part), "{part}: {lines:?}");
    }
    assert_eq!(asked, 0, "the comparison is over");
}

#[test]
fn an_engines_function_that_is_called_once_in_three_steps_is_reported() {
    // The engine's function is called before one of each three steps. Its position among the three steps changes. The
    // call lengthens the time between a wait and the next launch. If this happened in exactly every third step, the
    // learner (which finds steps in the CUDA calls) could take three steps as one.
    let (lines, _) = engine_calls(|number| u64::from(number % 3 == number / 3 * 7 % 11 % 3));
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains(" times: each of those iterations may be 3. --step auto:inner"),
        "{lines:?}"
    );
}

#[test]
fn an_engines_function_that_agrees_or_has_no_whole_factor_is_not_reported() {
    assert_eq!(engine_calls(|_| 1), (Vec::new(), 0));
    assert_eq!(
        engine_calls(|number| 1 + (number * number + number / 7) % 5 % 2),
        (Vec::new(), 0)
    );
}

#[test]
fn windows_are_left_to_an_engine_that_reads_the_variable_itself() {
    let process = Process::new("TLLM_PROFILE_START_STOP=2 TLLMPROF_STEP=cudaLaunchKernel");
    let index = engines::in_python()
        .position(|function| function.to_string().contains("PyExecutor"))
        .expect("TensorRT-LLM is known");
    engines::imported(index);
    engines::imported(usize::MAX); // an index that belongs to no engine
    calls(5, LaunchKernel);
    let opened = process.switches();
    assert!(
        opened.iter().all(|line| !line.contains("open")),
        "{opened:?}"
    );
    let lines = process.log.lines();
    assert!(
        lines[0].starts_with("TensorRT-LLM is in this process"),
        "{lines:?}"
    );
    let last = process.exit();
    let expected = "the windows were left to TensorRT-LLM: 5 iterations by cudaLaunchKernel";
    assert!(last.starts_with(expected), "{last}");
}

#[test]
fn no_engine_is_in_this_process() {
    let _process = Process::new("TLLMPROF_START_STOP=2");
    assert!(engines::find().is_none());
    assert!(!engines::is_native_there());
    assert!(engines::by_ranges().is_none());
    assert!(!engines::seen(&tllmprof_engines::Seen::Module(
        "libtensorrt_llm.so"
    )));
    assert!(!engines::seen(&tllmprof_engines::Seen::Symbol(
        "no_such_function"
    )));
    assert!(engines::seen(&tllmprof_engines::Seen::Symbol("malloc")));
}

#[test]
fn calls_are_noted_where_they_are_learnt_from() {
    let _process = Process::new("TLLMPROF_START_STOP=2 TLLMPROF_STEP=cudaLaunchKernel");
    assert!(!learns());
    call(LaunchKernel);
    let thread = slot().expect("it counts").thread();
    assert!(crate::learning::trail(thread).is_none());
    assert!(activity::is_active() && !MADE.orders().gil);
}
