//! Checks the reports on small PyTorch traces, which are read in the same way as records.

mod common;

use std::io::Write;
use std::path::Path;

use common::{PID, document, event, read, read_json, reported, step, two_steps, work};
use serde_json::{Value, json};
use tllmprof_config::Step;
use tllmprof_report::{Process, Report, Style};

/// Returns `text` compressed by gzip.
fn compressed(text: &[u8]) -> Vec<u8> {
    let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    to.write_all(text).unwrap();
    to.finish().unwrap()
}

/// Returns the number, the start and the duration of each iteration, in nanoseconds.
fn iterations(process: &Process) -> Vec<(u64, u64, u64)> {
    let all = process.windows.iter().flat_map(|window| &window.iterations);
    all.map(|one| (one.n, one.start, one.duration)).collect()
}

fn verdict<'a>(report: &'a Value, rule: &str) -> &'a str {
    let mut findings = report["findings"].as_array().unwrap().iter();
    let finding = findings.find(|finding| finding["rule"] == rule).unwrap();
    finding["verdict"].as_str().unwrap()
}

#[test]
fn steps_kernels_copies_and_calls_are_those_of_the_trace() {
    let process = read_json(&two_steps());
    // In this trace, the first iteration lasts until the second begins. The second iteration lasts
    // until the GPU has finished the work that was launched in it.
    assert_eq!(
        iterations(&process),
        [(5, 0, 100_000), (6, 100_000, 95_000)]
    );
    assert_eq!(
        (process.pid, process.facts.rank, process.facts.world_size),
        (4242, 1, Some(2))
    );
    let report = reported(vec![process]);
    let process = &report["processes"][0];
    assert_eq!(process["rank_source"], "distributedInfo");
    assert_eq!(process["rule"], "nvtx:^ProfilerStep#");
    assert_eq!(
        process["gpus"],
        json!([{"device": 0, "name": "NVIDIA H100 80GB HBM3", "kernel_ns": 101_000, "busy_ns": 150_000}])
    );
    let kernels = &process["kernels"];
    assert_eq!(
        (&kernels[0]["name"], &kernels[0]["count"]),
        (&json!("second_kernel"), &json!(2))
    );
    assert_eq!(kernels[1]["total_ns"], 40_000);
    assert_eq!(process["copies"][0]["kind"], "DtoH");
    assert_eq!(process["copies"][0]["bytes"], 8192);
    let calls = process["calls"].as_array().unwrap();
    let count = |name: &str| {
        let call = calls.iter().find(|call| call["name"] == name).unwrap();
        call["count"].as_u64().unwrap()
    };
    assert_eq!(
        (count("cudaLaunchKernel"), count("cudaStreamSynchronize")),
        (4, 2)
    );
    assert_eq!(process["communicators"].as_array().unwrap().len(), 1);
}

#[test]
fn compressed_traces_and_lists_of_events_are_read_alike() {
    let trace = two_steps();
    let plain = read_json(&trace);
    let zipped = read(&compressed(trace.to_string().as_bytes())).unwrap();
    let pretty = read(serde_json::to_string_pretty(&trace).unwrap().as_bytes()).unwrap();
    let list = read(trace["traceEvents"].to_string().as_bytes()).unwrap();
    let text = |process| reported(vec![process]);
    let plain_text = text(plain);
    assert_eq!(text(zipped), plain_text);
    assert_eq!(text(pretty), plain_text);
    assert_eq!(
        text(list)["processes"][0]["kernels"],
        plain_text["processes"][0]["kernels"]
    );
}

#[test]
fn layers_are_the_modules_that_were_open_at_the_launch() {
    let report = reported(vec![read_json(&two_steps())]);
    let layers = report["processes"][0]["layers"].as_array().unwrap();
    let named: Vec<_> = layers
        .iter()
        .map(|layer| {
            (
                layer["name"].as_str().unwrap(),
                layer["gpu_ns"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        named,
        [("Model.0/Linear.1", 61_000), ("Model.0/Linear.0", 40_000)]
    );
}

#[test]
fn times_are_exact_whatever_they_are_written_as() {
    let mut events = step(5, 1_700_000_000_000_000.0);
    let kernels = |events: &mut Vec<Value>, start: &str| {
        let text = format!(
            r#"{{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":{start},"dur":"0.321"}}"#
        );
        events.push(serde_json::from_str(&text).unwrap());
    };
    kernels(&mut events, r#""1700000000000080.007""#);
    kernels(&mut events, r#""1700000000000081""#);
    let report = reported(vec![read_json(&document(events))]);
    let kernels = report["processes"][0]["kernels"].as_array().unwrap();
    let kernel = kernels.iter().find(|kernel| kernel["name"] == "k").unwrap();
    assert_eq!(
        (&kernel["count"], &kernel["total_ns"]),
        (&json!(2), &json!(642))
    );
}

#[test]
fn events_that_end_before_they_begin_or_have_no_time_are_counted() {
    let mut events = step(5, 1000.0);
    events.push(work("kernel", "negative", 0, (1050.0, -3.0), 9));
    let mut timeless = work("kernel", "timeless", 0, (1051.0, 1.0), 9);
    timeless.as_object_mut().unwrap().remove("dur");
    events.push(timeless);
    let process = read_json(&document(events));
    let warned = &process.facts.asked.refused;
    for line in [
        "1 event that ends before it begins is left out",
        "1 event without a time is left out",
    ] {
        assert!(warned.iter().any(|warned| warned == line), "{warned:?}");
    }
    let report = reported(vec![process]);
    assert_eq!(report["processes"][0]["gpus"][0]["busy_ns"], 75_000);
}

#[test]
fn impossible_events_are_left_out_for_reasons_that_are_given() {
    const DAY: f64 = 86_400_000_000.0;
    let mut events = step(5, 1000.0);
    let mut add = |event: Value| events.push(event);
    // Two kernels that last too long: 28 years and three days. The next two events begin two days after and before the
    // others.
    add(work("kernel", "long", 0, (1050.0, 9e14), 9));
    add(work("kernel", "days", 0, (1051.0, 3.0 * DAY), 9));
    add(work("kernel", "far", 0, (1052.0 + 2.0 * DAY, 1.0), 9));
    add(event(
        "cpu_op",
        "early",
        1,
        (1000.0 - 2.0 * DAY, 1.0),
        json!({}),
    ));
    add(event("satellite", "unknown", 1, (1010.0, 1.0), json!({})));
    add(work("kernel", "device", 256, (1053.0, 1.0), 9));
    let mut nowhere = work("kernel", "nowhere", 0, (1054.0, 1.0), 9);
    for key in ["pid", "tid", "args"] {
        nowhere.as_object_mut().unwrap().remove(key);
    }
    add(nowhere);
    let process = read_json(&document(events));
    let warned = &process.facts.asked.refused;
    for line in [
        "2 events that last over a day are left out",
        "2 events that are over a day away from the others are left out",
        "1 event of an unknown kind is left out",
        "1 event of a GPU with a number over 255 is left out",
        "1 event of the GPU without a GPU or a stream is left out",
    ] {
        assert!(
            warned.iter().any(|warned| warned == line),
            "{line}: {warned:?}"
        );
    }
    let text = Report::new(vec![process]).styled(Style::whole());
    assert!(!text.contains("the record was full"), "{text}");
    let mut events = step(5, 1000.0);
    events.push(work("kernel", "long", 0, (1050.0, 9e14), 9));
    let report = reported(vec![read_json(&document(events))]);
    let process = &report["processes"][0];
    assert_eq!(process["dropped"], 1);
    assert_eq!(process["gpus"][0]["busy_ns"], 75_000);
    let share = process["gpu_busy_share"].as_f64().unwrap();
    assert!(share <= 1.0, "{process}");
}

#[test]
fn python_that_was_followed_is_warned_of() {
    let warned = |process: Process| process.facts.asked.refused.join("\n");
    assert!(warned(read_json(&two_steps())).contains("with_stack"));
    let without = step(5, 1000.0)
        .into_iter()
        .filter(|event| event["cat"] != "python_function");
    let warned = warned(read_json(&document(without.collect())));
    assert_eq!(warned, "");
}

#[test]
fn a_trace_without_gpu_work_says_so_and_what_needs_it_is_unknown() {
    let host = step(5, 1000.0)
        .into_iter()
        .filter(|event| event["pid"] == PID);
    let process = read_json(&document(host.collect()));
    assert!(
        process
            .facts
            .asked
            .refused
            .contains(&"the trace has no GPU work".to_owned())
    );
    let report = reported(vec![process]);
    for rule in [
        "gpu-idle",
        "low-gpu-utilisation",
        "gc",
        "gil",
        "host-blocked",
    ] {
        assert_eq!(verdict(&report, rule), "unknown", "{rule}");
    }
}

#[test]
fn a_trace_without_calls_says_nothing_of_them() {
    let events = two_steps()["traceEvents"].as_array().unwrap().clone();
    let events = events
        .into_iter()
        .filter(|event| event["cat"] != "cuda_runtime");
    let report = reported(vec![read_json(&document(events.collect()))]);
    for rule in [
        "launch-bound",
        "host-waits",
        "blocking-copies",
        "small-copies",
        "no-gpu-work",
    ] {
        assert_eq!(verdict(&report, rule), "unknown", "{rule}");
    }
}

#[test]
fn a_trace_without_ranges_is_one_iteration() {
    let events = step(5, 1000.0)
        .into_iter()
        .filter(|event| event["cat"] != "user_annotation");
    let report = reported(vec![read_json(&document(events.collect()))]);
    let process = &report["processes"][0];
    assert_eq!(process["rule"], "whole trace");
    assert_eq!(process["kernel_window"]["iterations"], 1);
    assert_eq!(process["gpus"][0]["busy_ns"], 75_000);
    assert_eq!(verdict(&report, "host-waits"), "unknown");
}

#[test]
fn batches_are_in_the_names_of_the_engines_steps() {
    let mut events = Vec::new();
    for (number, name) in [
        "execute_context_1(7)_generation_4(4)",
        "execute_context_0(0)_generation_5(5)",
    ]
    .iter()
    .enumerate()
    {
        let start = 1000.0 + 100.0 * number as f64;
        events.extend(step(number as u64, start).into_iter().skip(1));
        events.push(event("user_annotation", name, 1, (start, 50.0), json!({})));
    }
    let process = read_json(&document(events));
    let iterations = process.windows.iter().flat_map(|window| &window.iterations);
    let batches: Vec<_> = iterations
        .filter_map(|one| one.batch)
        .map(|batch| (batch.requests, batch.prefill_tokens, batch.decode_tokens()))
        .collect();
    assert_eq!(batches, [(5, 7, 4), (5, 0, 5)]);
}

#[test]
fn traces_of_hip_are_read_alike() {
    let text = two_steps()
        .to_string()
        .replace("cudaLaunchKernel", "hipLaunchKernel");
    let text = text.replace("cudaMemcpyAsync", "hipMemcpyAsync");
    let text = text.replace("cudaStreamSynchronize", "hipStreamSynchronize");
    let report = reported(vec![read(text.as_bytes()).unwrap()]);
    let expected = reported(vec![read_json(&two_steps())]);
    let (one, other) = (&report["processes"][0], &expected["processes"][0]);
    for key in ["gpus", "kernels", "layers", "copies"] {
        assert_eq!(one[key], other[key], "{key}");
    }
    assert_eq!(one["inside"]["launches"], other["inside"]["launches"]);
    assert_eq!(one["inside"]["wait_share"], other["inside"]["wait_share"]);
}

#[test]
fn ranges_that_older_profilers_write_as_operators_are_found() {
    let expected = iterations(&read_json(&two_steps()));
    let text = two_steps().to_string();
    let text = text.replace("\"user_annotation\"", "\"Operator\"");
    let text = text.replace("\"cpu_op\"", "\"Operator\"");
    let found = read(text.as_bytes()).unwrap();
    assert_eq!(iterations(&found), expected);
    assert_eq!(found.facts.rule, "nvtx:^ProfilerStep#");

    let asked = Step::parse("nvtx:^aten::mm").unwrap();
    let path = Path::new("trace.json");
    let recorded = tllmprof_kineto::read(text.as_bytes(), path, Some(asked)).unwrap();
    let asked = Process::read(path.to_owned(), &recorded).unwrap();
    assert_eq!(iterations(&asked).len(), 2);
}

#[test]
fn copies_without_bytes_have_no_size() {
    let mut trace = two_steps();
    for event in trace["traceEvents"].as_array_mut().unwrap() {
        event["args"].as_object_mut().unwrap().remove("bytes");
    }
    let text = Report::new(vec![read_json(&trace)]).text();
    assert!(text.contains("2 DtoH in 50.0 µs"), "{text}");
}

#[test]
fn a_gpu_that_is_not_the_first_has_its_name() {
    let mut trace = document(vec![work("kernel", "one", 2, (1000.0, 20.0), 1)]);
    trace["deviceProperties"] = json!([{"id": 0, "name": "first"}, {"id": 2, "name": "third"}]);
    let text = Report::new(vec![read_json(&trace)]).text();
    assert!(
        text.contains("rank 1 of 2 by distributedInfo, third\n"),
        "{text}"
    );
}

#[test]
fn a_second_wait_may_be_for_another_stream() {
    let idle = |wait: &str| {
        let mut events = [step(5, 1000.0), step(6, 2000.0)].concat();
        events.push(event("cuda_runtime", wait, 1, (1075.0, 500.0), json!({})));
        let report = reported(vec![read_json(&document(events))]);
        report["processes"][0]["inside"]["idle"]["max_ns"].clone()
    };
    assert_eq!(idle("cudaStreamSynchronize"), 0);
    assert_eq!(idle("hipStreamSynchronize"), 0);
}

/// Returns the process of a rank that runs two all-reduces in each step. Its trace begins `before`
/// µs before its first step, and its clock is ahead by `ahead` µs.
fn rank(number: u64, before: f64, ahead: f64) -> Process {
    let mut events = Vec::new();
    for n in 0..8 {
        let start = ahead + 1000.0 + 100.0 * n as f64;
        events.extend(step(n, start));
        for (offset, correlation) in [(12.0, 1001), (45.0, 1002)] {
            let kernel =
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)";
            let mut one = work(
                "kernel",
                kernel,
                number,
                (start + offset, 10.0),
                correlation + 10 * n,
            );
            one["args"]["stream"] = json!(9);
            events.push(one);
        }
    }
    let begin = ahead + 1000.0 - before;
    events.push(event("cpu_op", "aten::empty", 1, (begin, 1.0), json!({})));
    let mut trace = document(events);
    trace["distributedInfo"]["rank"] = json!(number);
    let text = trace.to_string();
    let path = format!("rank{number}.json");
    let recorded = tllmprof_kineto::read(text.as_bytes(), Path::new(&path), None).unwrap();
    Process::read(path.into(), &recorded).unwrap()
}

#[test]
fn ranks_are_aligned_by_their_collectives() {
    let report = reported(vec![rank(0, 10.0, 0.0), rank(1, 7000.0, 250_000.0)]);
    let found = &report["collectives"];
    assert_eq!(found["notes"], json!([]));
    // The report counts 30 of the 32 collective kernels (16 in each trace). It leaves out the first one of each trace,
    // because in it the ranks may wait for each other while the profiler starts.
    assert_eq!(found["matched"], 30);
    assert_eq!(found["groups"][0]["processes"], json!([0, 1]));
    assert_eq!(found["wait_ns"], 0);
}

#[test]
fn too_few_iterations_of_all_ranks_are_not_missing_ranks() {
    let ranks = [0, 1].map(|number| {
        let mut trace = two_steps();
        trace["distributedInfo"]["rank"] = json!(number);
        read_json(&trace)
    });
    let text = Report::new(ranks.into()).text();
    let known = "not known without more iterations of all ranks";
    assert!(text.contains(known), "{text}");
}

#[test]
fn each_gpu_has_its_own_times() {
    let mut events = two_steps()["traceEvents"].as_array().unwrap().clone();
    events.push(work("kernel", "other", 3, (1010.0, 20.0), 99));
    events.push(work("gpu_memset", "Memset (Device)", 3, (1025.0, 10.0), 98));
    // Work of GPUs with any numbers must be reported separately for each GPU.
    events.push(work("kernel", "far", 19, (1030.0, 7.0), 97));
    events.push(work("kernel", "last", 255, (1030.0, 5.0), 96));
    let report = reported(vec![read_json(&document(events))]);
    let gpus = report["processes"][0]["gpus"].as_array().unwrap();
    let times = |gpu: &Value| {
        (
            gpu["device"].clone(),
            gpu["kernel_ns"].clone(),
            gpu["busy_ns"].clone(),
        )
    };
    let used = gpus.iter().filter(|gpu| !gpu["busy_ns"].is_null());
    let expected = [
        (json!(0), json!(101_000), json!(150_000)),
        (json!(3), json!(20_000), json!(25_000)),
        (json!(19), json!(7_000), json!(7_000)),
        (json!(255), json!(5_000), json!(5_000)),
    ];
    assert_eq!(used.map(times).collect::<Vec<_>>(), expected);
}

#[test]
fn calls_of_the_driver_within_those_of_the_runtime_are_not_counted() {
    let mut events = step(5, 1000.0);
    events.push(event(
        "cuda_driver",
        "cuLaunchKernel",
        1,
        (1006.0, 2.0),
        json!({"correlation": 51}),
    ));
    let report = reported(vec![read_json(&document(events))]);
    let calls = report["processes"][0]["calls"].to_string();
    assert!(!calls.contains("cuLaunchKernel"), "{calls}");
    let layers = report["processes"][0]["layers"].to_string();
    assert!(layers.contains("Model.0/Linear.0"), "{layers}");
}

#[test]
fn events_of_other_processes_are_left_out() {
    let mut events = step(5, 1000.0);
    let mut other = event("cpu_op", "aten::other", 1, (1001.0, 50.0), json!({}));
    other["pid"] = json!("worker 7");
    events.push(other);
    let process = read_json(&document(events));
    assert!(
        process
            .facts
            .asked
            .refused
            .iter()
            .any(|one| one.starts_with("1 event of another process"))
    );
    assert!(!reported(vec![process]).to_string().contains("aten::other"));
}

#[test]
fn a_trace_with_gpu_calls_of_several_processes_is_refused() {
    let mut events = step(5, 1000.0);
    let mut other = event(
        "cuda_runtime",
        "cudaLaunchKernel",
        1,
        (1001.0, 5.0),
        json!({}),
    );
    other["pid"] = json!(PID + 1);
    events.push(other);
    let error = read(document(events).to_string().as_bytes()).err().unwrap();
    assert!(error.to_string().starts_with("a merged trace"), "{error}");
}

#[test]
fn a_last_iteration_that_ends_with_the_next_call_is_not_extended() {
    let text = two_steps().to_string();
    let path = Path::new("trace.json");
    let read = |rule: &str| {
        let asked = Step::parse(rule).unwrap();
        let recorded = tllmprof_kineto::read(text.as_bytes(), path, Some(asked)).unwrap();
        iterations(&Process::read(path.to_owned(), &recorded).unwrap())
    };
    // The first wait ends at 74 µs and the second at 174 µs. The GPU is still busy then: it copies until 195 µs.
    assert_eq!(read("cudaStreamSynchronize"), [(0, 74_000, 100_000)]);
}

#[test]
fn what_tllmprof_exported_keeps_its_open_window_and_its_cut_iteration() {
    let own = |category: &str, name: &str, start: f64, args: Value| {
        event(category, name, 2, (start, 10.0), args)
    };
    let trace = json!({
        "otherData": {"producer": "tllmprof"},
        "traceEvents": [
            own("window", "window 20-", 1000.0, json!({})),
            own("iteration", "iteration 20", 1000.0, json!({"iteration": 20})),
            own("iteration", "iteration 21", 1010.0, json!({"iteration": 21, "cut": true})),
            own("cuda", "cudaLaunchKernel", 1001.0, json!({"failed": true})),
        ]
    });
    let process = read_json(&trace);
    let window = &process.windows[0];
    assert_eq!((window.first, window.closed), (20, false));
    let cut: Vec<_> = window
        .iterations
        .iter()
        .map(|one| (one.n, one.cut))
        .collect();
    assert_eq!(cut, [(20, false), (21, true)]);
}

#[test]
fn the_file_says_the_rank_if_the_trace_does_not() {
    let mut trace = two_steps();
    trace["distributedInfo"] = json!(null);
    let text = trace.to_string();
    let path = Path::new("run/rank_3.json");
    let recorded = tllmprof_kineto::read(text.as_bytes(), path, None).unwrap();
    let process = Process::read(path.to_owned(), &recorded).unwrap();
    assert_eq!(
        (process.facts.rank, &*process.facts.rank_source),
        (3, "the file's name")
    );
}

#[test]
fn what_is_no_trace_is_one_clear_line() {
    let whole = two_steps().to_string();
    let cut = &whole.as_bytes()[..whole.len() / 2];
    let zipped = compressed(whole.as_bytes());
    let damaged = [&zipped[..20], &[0xff; 64], &zipped[84..]].concat();
    let utf16 = std::iter::once(0xfeff).chain(whole.encode_utf16());
    let utf16 = utf16.flat_map(u16::to_le_bytes).collect();
    let long = format!(
        r#"{{"traceEvents":[{{"name":"{}"}}]}}"#,
        "x".repeat(17 << 20)
    );
    let cases: [(&str, Vec<u8>, &str); 16] = [
        ("cut", cut.to_vec(), "the trace is truncated"),
        (
            "cut gzip",
            zipped[..zipped.len() / 2].to_vec(),
            "the trace is truncated",
        ),
        (
            "text after gzip",
            [&zipped[..], b"text"].concat(),
            "other bytes follow the compressed text",
        ),
        (
            "zeros after gzip",
            [&zipped[..], &[0; 100]].concat(),
            "other bytes follow the compressed text",
        ),
        ("empty", Vec::new(), "the trace is truncated"),
        (
            "two",
            format!("{whole}\n{whole}").into_bytes(),
            "more text follows the JSON at line 2",
        ),
        ("no JSON", b"{traceEvents}".to_vec(), "not valid JSON"),
        ("damaged gzip", damaged, ""),
        ("gzip twice", compressed(&zipped), "gzip inside gzip"),
        ("UTF-16", utf16, "JSON in UTF-16 (wanted: UTF-8)"),
        (
            "not a number",
            br#"{"traceEvents":[{"ph":"X","cat":"kernel","ts":None,"dur":2}]}"#.to_vec(),
            "not valid JSON",
        ),
        (
            "an empty list",
            b"[]".to_vec(),
            "the list of traceEvents is empty",
        ),
        (
            "no events",
            br#"{"version": 3}"#.to_vec(),
            "JSON, but not a trace",
        ),
        (
            "not a list",
            br#"{"traceEvents": 3}"#.to_vec(),
            "JSON, but not a trace",
        ),
        (
            "other",
            br#"{"traceEvents":[{"ph":"X","cat":"clang","ts":1,"dur":2}]}"#.to_vec(),
            "a trace of another program",
        ),
        ("long", long.into_bytes(), "one event has more than 16 MB"),
    ];
    for (what, text, expected) in cases {
        let error = read(&text)
            .err()
            .unwrap_or_else(|| panic!("{what} was read"));
        let said = error.to_string();
        assert!(
            said.contains(expected) && !said.contains('\n'),
            "{what}: {said}"
        );
    }
}

#[test]
fn a_trace_may_be_compressed_in_parts() {
    let text = two_steps().to_string();
    let (first, second) = text.as_bytes().split_at(text.len() / 2);
    let parts = [compressed(first), compressed(second)].concat();
    assert_eq!(iterations(&read(&parts).unwrap()).len(), 2);
}

#[test]
fn a_byte_order_mark_of_utf_8_is_skipped() {
    let text = format!("\u{feff}{}", two_steps());
    for text in [compressed(text.as_bytes()), text.into_bytes()] {
        assert_eq!(iterations(&read(&text).unwrap()).len(), 2);
    }
}

#[test]
fn deep_json_and_odd_values_do_no_harm() {
    let deep = format!(
        r#"{{"x":{}1{},"traceEvents":[]}}"#,
        "[".repeat(10_000),
        "]".repeat(10_000)
    );
    assert!(read(deep.as_bytes()).is_err());
    let odd = json!({"traceEvents": [
        null, 3, "text", [1, 2], {"args": 7}, {"ph": {"x": 1}}, {"ts": [1]}, {"cat": 5, "ph": "X"},
        {"ph": "X", "cat": "kernel", "name": null, "ts": 1e300, "dur": {}},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": -5, "tid": 1.5, "ts": 5, "dur": 9.0e18, "args": {"device": 1e99}},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": "x", "ts": -9.0e15, "dur": 9.0e15, "args": {"stream": -1}},
        {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 4_294_967_296_u64, "ts": 9.1e15, "dur": 1},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": {"a": 1}}}
    ]});
    let process = read_json(&odd);
    assert_eq!(
        reported(vec![process])["processes"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}
