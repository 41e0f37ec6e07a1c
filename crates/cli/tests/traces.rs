//! Tests of `tllmprof report` and `compare`, on traces of the PyTorch profiler.

mod common;
#[path = "../../report/tests/common/server.rs"]
mod server;
#[path = "../../kineto/tests/common/mod.rs"]
mod trace;

use std::fs::File;
use std::io;
use std::path::Path;

use common::{Ended, Scratch, finish, plain};
use serde_json::{Value, json};
use server::Server;

fn run(scratch: &Scratch, arguments: &[&str]) -> Ended {
    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    finish(command.args(arguments).current_dir(scratch.path("")))
}

fn json_of(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|_| panic!("{}", ended.stderr))
}

/// Writes the trace of a rank. In this trace the second kernel takes 30.5 + `more` microseconds.
fn write(scratch: &Scratch, name: &str, rank: u64, more: f64) {
    let steps = (0..10).flat_map(|n| trace::step(n, 1000.0 + 110.0 * n as f64));
    let mut events: Vec<_> = steps.collect();
    for event in &mut events {
        if event["name"] == "second_kernel" {
            event["dur"] = json!(30.5 + more);
        }
    }
    let mut document = trace::document(events);
    document["distributedInfo"]["rank"] = json!(rank);
    scratch.write(name, document.to_string());
}

#[test]
fn a_trace_is_known_by_its_content() {
    let scratch = Scratch::new();
    write(&scratch, "profile", 1, 0.0);
    let ended = run(&scratch, &["report", "profile"]);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
    for expected in [
        "pid 4242, rank 1 of 2 by distributedInfo",
        "by the PyTorch profiler",
        "second_kernel",
        "warned: the profiler followed Python functions",
        "copy-bound: the GPU copies and runs no kernel 22.6 % of the time: 10 DtoH of 40.0 KiB",
    ] {
        assert!(
            ended.stdout.contains(expected),
            "{expected}: {}",
            ended.stdout
        );
    }
    let page = run(&scratch, &["report", "profile", "--html", "page.html"]);
    assert_eq!(page.code(), Some(0), "{}", page.stderr);
    assert!(
        std::fs::read_to_string(scratch.path("page.html"))
            .unwrap()
            .contains("<html")
    );
}

#[test]
fn the_traces_of_a_folder_are_one_run() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("run")).unwrap();
    write(&scratch, "run/rank1.pt.trace.json", 1, 0.0);
    write(&scratch, "run/rank0.pt.trace.json", 0, 0.0);
    scratch.write("run/config.json", r#"{"model": "tiny"}"#);
    let ended = run(&scratch, &["report", "--json", "run"]);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
    let report = json_of(&ended);
    let processes = report["processes"].as_array().unwrap().iter();
    let ranks: Vec<_> = processes.map(|one| one["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, [0, 1]);
}

#[test]
fn a_copy_of_a_trace_is_not_another_rank() {
    let scratch = Scratch::new();
    for name in ["rank0.json", "rank1.json"] {
        write(&scratch, name, 0, 0.0);
    }
    let ended = run(&scratch, &["report", "rank0.json", "rank1.json"]);
    assert_eq!((ended.code(), &*ended.stdout), (Some(2), ""));
    let said = "tllmprof: rank1.json: it has the same bytes as rank0.json (wanted: a trace of each rank)\n";
    assert_eq!(ended.stderr, said);
}

#[test]
fn traces_are_compared_with_each_other_and_with_records() {
    let scratch = Scratch::new();
    write(&scratch, "base.json", 0, 0.0);
    write(&scratch, "other.json", 0, 20.0);
    let mut file = File::create(scratch.path("rank-0.tllmprof")).unwrap();
    Server::rank(0).record().0.write_to(&mut file).unwrap();
    let ended = run(&scratch, &["compare", "base.json", "other.json"]);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
    let line = ended
        .stdout
        .lines()
        .find(|line| line.contains("second_kernel"));
    assert!(
        line.is_some_and(|line| line.contains("+65.6 %")),
        "{}",
        ended.stdout
    );
    let ended = run(&scratch, &["compare", "base.json", "rank-0.tllmprof"]);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
}

#[test]
fn the_rule_of_the_command_line_counts_iterations() {
    let scratch = Scratch::new();
    write(&scratch, "profile.json", 0, 0.0);
    let by = |rule: &str| {
        run(
            &scratch,
            &["report", "--json", "--step", rule, "profile.json"],
        )
    };
    let report = json_of(&by("cudaStreamSynchronize"));
    assert_eq!(report["processes"][0]["rule"], "cudaStreamSynchronize");
    assert_eq!(report["processes"][0]["inside"]["iterations"], 9);
    let ended = by("nvtx:^absent$");
    assert_eq!(
        (ended.code(), ended.stderr.lines().count()),
        (Some(1), 1),
        "{}",
        ended.stderr
    );
}

#[test]
fn what_cannot_be_read_is_one_line_and_status_1() {
    let scratch = Scratch::new();
    let whole = trace::two_steps().to_string();
    scratch.write("cut.json", &whole[..whole.len() / 2]);
    scratch.write("two.json", format!("{whole}{whole}"));
    scratch.write("config.json", r#"{"model": "tiny"}"#);
    let utf16 = std::iter::once(0xfeff).chain(whole.encode_utf16());
    let utf16: Vec<_> = utf16.flat_map(u16::to_le_bytes).collect();
    std::fs::write(scratch.path("utf16.json"), utf16).unwrap();
    for name in ["cut.json", "two.json", "config.json", "utf16.json"] {
        let ended = run(&scratch, &["report", name]);
        assert_eq!((ended.code(), &*ended.stdout), (Some(1), ""), "{name}");
        let begins = ended.stderr.starts_with(&format!("tllmprof: {name}: "));
        assert!(
            begins && ended.stderr.lines().count() == 1,
            "{}",
            ended.stderr
        );
    }
    scratch.write("whole.json", &whole);
    let ended = run(
        &scratch,
        &["export", "--to", "chrome", "-o", "out.json", "whole.json"],
    );
    assert_eq!(ended.code(), Some(1));
    assert!(
        ended.stderr.contains("whole.json: it is JSON"),
        "{}",
        ended.stderr
    );
}

/// Some programs write traces with numbers that JSON does not allow, such as NaN. Such a trace must be readable.
#[test]
fn a_trace_with_nan_is_read() {
    let scratch = Scratch::new();
    let whole = trace::two_steps().to_string();
    scratch.write("whole.json", &whole);
    let odd = whole.replace("\"dur\":", "\"bandwidth\":-Infinity,\"x\":NaN,\"dur\":");
    assert_ne!(odd, whole);
    scratch.write("nan.json", &odd);
    let [nan, plain] = ["nan.json", "whole.json"].map(|name| {
        let ended = run(&scratch, &["report", name]);
        assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
        ended.stdout.replace(name, "it")
    });
    assert_eq!(nan, plain);
}

#[test]
fn a_trace_without_gpu_work_is_no_failure() {
    let scratch = Scratch::new();
    let host = trace::step(5, 1000.0)
        .into_iter()
        .filter(|event| event["pid"] == trace::PID);
    scratch.write("host.json", trace::document(host.collect()).to_string());
    let ended = run(&scratch, &["report", "host.json"]);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
    assert!(
        ended.stdout.contains("the trace has no GPU work"),
        "{}",
        ended.stdout
    );
}

/// Returns two lists about the first process of a report: the number, duration and GPU time of each iteration, and the
/// name, number of calls and total time of each kernel.
fn measured(report: &Value) -> (Vec<Value>, Vec<Value>) {
    let process = &report["processes"][0];
    let windows = process["windows"].as_array().unwrap().iter();
    let iterations = windows.flat_map(|window| window["iterations"].as_array().unwrap());
    let iterations = iterations.map(|one| json!([one["n"], one["dur_ns"], one["gpu_busy_ns"]]));
    let kernels = process["kernels"].as_array().unwrap().iter();
    let kernels =
        kernels.map(|kernel| json!([kernel["name"], kernel["count"], kernel["total_ns"]]));
    (iterations.collect(), kernels.collect())
}

#[test]
fn what_was_exported_comes_back_with_the_same_iterations_and_kernels() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../page/tests/corpus");
    for name in ["standin-layers", "hf-generate"] {
        let scratch = Scratch::new();
        let file = File::open(corpus.join(format!("{name}.tllmprof.gz"))).unwrap();
        let mut record = File::create(scratch.path("a.tllmprof")).unwrap();
        io::copy(&mut flate2::read::GzDecoder::new(file), &mut record).unwrap();
        let export = ["export", "--to", "chrome", "-o", "a.json.gz", "a.tllmprof"];
        assert_eq!(run(&scratch, &export).code(), Some(0));
        let report = |file: &str| json_of(&run(&scratch, &["report", "--json", file]));
        let (record, trace) = (report("a.tllmprof"), report("a.json.gz"));
        let (iterations, kernels) = measured(&record);
        assert!(iterations.len() >= 10 && !kernels.is_empty(), "{name}");
        assert_eq!((iterations, kernels), measured(&trace), "{name}");
        let busy = |report: &Value| report["processes"][0]["gpus"][0]["busy_ns"].clone();
        assert_eq!(busy(&record), busy(&trace), "{name}");
    }
}

#[test]
fn an_export_of_several_records_is_refused() {
    let scratch = Scratch::new();
    for rank in 0..2 {
        let mut file = File::create(scratch.path(&format!("{rank}.tllmprof"))).unwrap();
        Server::rank(rank).record().0.write_to(&mut file).unwrap();
    }
    let export = [
        "export",
        "--to",
        "chrome",
        "-o",
        "all.json",
        "0.tllmprof",
        "1.tllmprof",
    ];
    assert_eq!(run(&scratch, &export).code(), Some(0));
    let ended = run(&scratch, &["report", "all.json"]);
    let said = "tllmprof: all.json: a trace that tllmprof exported from several records";
    assert_eq!(ended.code(), Some(1));
    assert!(ended.stderr.starts_with(said), "{}", ended.stderr);
}
