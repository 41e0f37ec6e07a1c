//! Tests of `tllmprof run --gpu-metrics`, with a stand-in for NVML. The stand-in computes its values by a formula, so
//! the tests know what the record must contain.

mod common;
#[path = "gpu_metrics/read.rs"]
mod read;

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Ended, Scratch, finish, wait};
use read::Read;
use serde_json::Value;
use tllmprof_record::builder::Builder;
use tllmprof_record::{ClockKind, Edge, Ended as RecordEnded, Event, Info, Metric, What};

/// Size in bytes of a record with five samples of 17 metrics for each of two GPUs: the header, a chunk's header, and 24
/// bytes for each value.
const SOME: u64 = 65536 + 208 + 24 * 2 * 17 * 5;

/// A program that waits (with a time limit) until the record of metrics in the folder `$1` has at least `$2` bytes.
/// Then it runs its other arguments as a script.
const PROGRAM: &str = "#!/bin/sh\n\
    for n in $(seq 1 2000); do\n\
        for file in \"$1\"/*-gpu-*.tllmprof; do\n\
            [ -f \"$file\" ] && [ \"$(stat -c %s \"$file\")\" -ge \"$2\" ] && break 2\n\
        done\n\
        sleep 0.05\n\
    done\n\
    shift 2\n\
    eval \"$@\"\n";

/// A time limit, longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the folder with the stand-in for NVML. Compiles the stand-in if it is not there yet.
fn nvml_folder(scratch: &Scratch) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/standin/nvml.c");
    let source = fs::read_to_string(source).unwrap();
    let library = scratch.path("nvml/libnvidia-ml.so.1");
    if !library.exists() {
        scratch.compile(
            "nvml/libnvidia-ml.so.1",
            &source,
            &[
                "-shared",
                "-fPIC",
                "-Wl,-z,defs",
                "-Wall",
                "-Wextra",
                "-Werror",
            ],
        );
    }
    scratch.path("nvml")
}

fn run(scratch: &Scratch, nvml: &str) -> Command {
    let mut command = scratch.tllmprof();
    command
        .env("LD_LIBRARY_PATH", nvml_folder(scratch))
        .env("STANDIN_NVML", nvml)
        .current_dir(scratch.path("."))
        .env("TLLMPROF_TRACE", "%p.tllmprof")
        .args(["run", "--no-summary", "--gpu-metrics"]);
    command
}

/// Runs a program that waits until the record has at least [`SOME`] bytes, and then runs `script`.
fn sampled(command: &mut Command, scratch: &Scratch, script: &str) -> Ended {
    let program = scratch.script("program", PROGRAM);
    let folder = scratch.path(".");
    command.arg("--").arg(program).arg(folder);
    finish(command.arg(SOME.to_string()).arg(script))
}

/// Runs a program that waits (with a time limit) until the command has printed `text`, and then for some more samples.
/// The shell that starts the command first executes `before`. Returns the result, and what the command printed on
/// standard error.
fn sampled_until(
    command: &Command,
    scratch: &Scratch,
    before: &str,
    text: &str,
) -> (Ended, String) {
    const WAITS: &str = "for n in $(seq 1 2000); do grep -qF \"$0\" said && break; sleep 0.05; done\n\
        sleep 0.5; echo done; exit 37";
    let variables = command.get_envs();
    let mut sh = Command::new("/bin/sh");
    sh.args(["-c", &format!("{before}; exec \"$@\" 2>said"), "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .args(["--", "sh", "-c", WAITS, text])
        .current_dir(scratch.path("."))
        .env_clear()
        .envs(variables.filter_map(|(name, value)| Some((name, value?))));
    let ended = finish(&mut sh);
    (ended, fs::read_to_string(scratch.path("said")).unwrap())
}

fn record(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut found = files.filter(|entry| entry.file_name().to_str().unwrap().contains("-gpu-"));
    let path = found.next()?.path();
    assert!(found.next().is_none(), "two records");
    Some(path)
}

fn monotonic() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes the time to the local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[test]
fn what_nvml_gives_is_in_the_record() {
    let scratch = Scratch::new();
    let before = monotonic();
    let ended = sampled(&mut run(&scratch, ""), &scratch, "echo done; exit 37");
    let after = monotonic();
    assert_eq!(
        (ended.code(), ended.stdout.as_str()),
        (Some(37), "done\n"),
        "{ended:?}"
    );
    let path = record(&scratch.path(".")).unwrap();
    let read = Read::new(&path);
    let name = path.file_name().unwrap().to_str().unwrap();
    let line = format!("/{name}\n");
    assert!(
        ended.stderr.starts_with("tllmprof: GPU metrics: "),
        "{ended:?}"
    );
    assert!(ended.stderr.ends_with(&line), "{ended:?}");
    assert!(
        name.ends_with(&format!("-gpu-{}.tllmprof", read.pid)),
        "{name}"
    );
    assert_eq!(read.ended, Some(RecordEnded::InOrder));
    // In this test CUDA numbers the GPUs by their PCI addresses. NVML's GPU 1 has the lowest address, so it is CUDA's
    // GPU 0.
    for (device, of) in [(0, 1), (1, 0)] {
        read.has_plain(device, of);
        read.has_gpm(device, of);
        let times = &read.times[&device];
        assert!(times.len() >= 3, "{times:?}");
        assert!(times[0].0 >= before && times.last().unwrap().1 <= after);
        for (start, end) in times {
            assert!(end - start >= 100_000_000, "{times:?}");
        }
        assert!(
            times.windows(2).all(|pair| pair[0].1 == pair[1].0),
            "{times:?}"
        );
    }
    assert_eq!(read.fact(Info::Gpu), ["Stand-in H200"; 2]);
    assert_eq!(
        read.fact(Info::GpuPowerLimit),
        ["0 700000 700000", "1 700000 700000"]
    );
    assert_eq!(read.fact(Info::CudaDriver), ["13000"]);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(read.fact(Info::Boot), [boot.trim_end()]);
    assert_eq!(read.fact(Info::Host).len(), 1);
    assert!(read.fact(Info::Refused).is_empty());
}

#[test]
fn devices_are_numbered_as_the_program_sees_them() {
    // Each row: the value of `CUDA_VISIBLE_DEVICES`, and the NVML number of each device in the record.
    for (devices, expected) in [
        ("1", &[0][..]),
        ("GPU-000000a0,GPU-000000a1", &[0, 1]),
        ("1,0", &[0, 1]),
        ("0,5,1", &[1]),
    ] {
        let scratch = Scratch::new();
        let mut run = run(&scratch, "");
        run.env("CUDA_VISIBLE_DEVICES", devices);
        let program = scratch.script("program", PROGRAM);
        run.arg("--").arg(program).arg(scratch.path("."));
        let ended = finish(run.args(["66000", "exit 0"]));
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        let read = Read::new(&record(&scratch.path(".")).unwrap());
        let last = read.times.keys().copied().max();
        assert_eq!(last, Some(expected.len() as u8 - 1), "{devices}");
        for (device, of) in (0..).zip(expected) {
            assert_eq!(
                read.values[&(device, Metric::SmClock)][0],
                1_980_000 + of * 1000,
                "{devices}"
            );
        }
    }
}

#[test]
fn where_kinds_differ_the_assumption_is_said_unless_the_order_is_set() {
    for (order, lines) in [("FASTEST_FIRST", 1), ("PCI_BUS_ID", 0)] {
        let scratch = Scratch::new();
        let mut run = run(&scratch, "mixed");
        let ended = sampled(run.env("CUDA_DEVICE_ORDER", order), &scratch, "exit 0");
        let said = ended
            .stderr
            .matches("numbered by their PCI addresses")
            .count();
        assert_eq!(said, lines, "{ended:?}");
        let read = Read::new(&record(&scratch.path(".")).unwrap());
        assert_eq!(read.fact(Info::Refused).len(), lines);
        assert_eq!(read.fact(Info::Gpu), ["Stand-in L4", "Stand-in H200"]);
    }
}

#[test]
fn without_counters_there_is_the_plain_utilisation() {
    for (nvml, message) in [
        ("no-gpm", "it has no GPM"),
        ("gpm-denied", "does not let this user count"),
        ("gpm-ends", "GPU 0 stopped counting"),
    ] {
        let scratch = Scratch::new();
        let ended = sampled(&mut run(&scratch, nvml), &scratch, "exit 37");
        assert_eq!(ended.code(), Some(37), "{ended:?}");
        let lines: Vec<_> = ended
            .stderr
            .lines()
            .filter(|l| l.contains(message))
            .collect();
        assert_eq!(lines.len(), 1, "{ended:?}");
        let read = Read::new(&record(&scratch.path(".")).unwrap());
        assert_eq!(read.fact(Info::Refused).len(), 2, "{:?}", read.facts);
        read.has_plain(0, 1);
        read.has_plain(1, 0);
        let counted = read.values.get(&(0, Metric::SmUtil)).map_or(0, Vec::len);
        assert_eq!(counted, if nvml == "gpm-ends" { 3 } else { 0 });
    }
}

#[test]
fn what_cannot_be_had_is_one_line() {
    let scratch = Scratch::new();
    let broken = scratch.write("broken/libnvidia-ml.so.1", "no library");
    for (nvml, devices, folder, message) in [
        ("denied", None, None, "permission"),
        ("none", None, None, "NVML lists no GPU"),
        ("", Some(""), None, "CUDA_VISIBLE_DEVICES=\"\" names no GPU"),
        ("", None, broken.parent(), "libnvidia-ml.so.1"),
    ] {
        let mut run = run(&scratch, nvml);
        run.envs(devices.map(|devices| ("CUDA_VISIBLE_DEVICES", devices)));
        run.envs(folder.map(|folder| ("LD_LIBRARY_PATH", folder)));
        let script = "sleep 1; echo done; exit 37";
        let ended = finish(run.args(["--", "sh", "-c", script]));
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (Some(37), "done\n"),
            "{ended:?}"
        );
        let lines: Vec<_> = ended.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{ended:?}");
        assert!(
            lines[0].starts_with("tllmprof: no GPU metrics: "),
            "{ended:?}"
        );
        assert!(lines[0].contains(message), "{ended:?}");
        assert!(record(&scratch.path(".")).is_none());
    }
}

#[test]
fn it_lies_beside_the_trace() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("beside")).unwrap();
    let mut run = run(&scratch, "");
    run.args(["--trace", "beside/%p.t", "--"]);
    let program = scratch.script("program", PROGRAM);
    run.arg(program).arg(scratch.path("beside"));
    let ended = finish(run.args(["66000", "exit 0"]));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(record(&scratch.path("beside")).is_some(), "{ended:?}");
    assert!(record(&scratch.path(".")).is_none());
}

#[test]
fn a_killed_program_leaves_a_whole_record() {
    let scratch = Scratch::new();
    let ended = sampled(&mut run(&scratch, ""), &scratch, "kill -KILL $$");
    assert_eq!(ended.status.signal(), Some(libc::SIGKILL), "{ended:?}");
    let read = Read::new(&record(&scratch.path(".")).unwrap());
    assert_eq!(read.ended, Some(RecordEnded::InOrder));
    read.has_plain(0, 1);
}

/// Starts a program that keeps running, and waits until the record contains some samples. Returns
/// the program and the path of the record.
fn lasting(command: &mut Command, scratch: &Scratch) -> (Child, PathBuf) {
    let mut child = command
        .args(["--", "sleep", "300"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let folder = scratch.path(".");
    let is_there = || {
        let path = record(&folder)?;
        (fs::metadata(&path).unwrap().len() >= SOME).then_some(path)
    };
    match within(LIMIT, is_there) {
        Some(path) => (child, path),
        None => {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("nothing was sampled");
        }
    }
}

fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    while started.elapsed() < limit {
        if let Some(found) = look() {
            return Some(found);
        }
        thread::sleep(Duration::from_millis(20));
    }
    None
}

#[test]
fn the_sampling_ends_with_the_command() {
    let scratch = Scratch::new();
    let (mut child, path) = lasting(&mut run(&scratch, ""), &scratch);
    assert_eq!(
        Read::new(&path).ended,
        Some(RecordEnded::Not),
        "while it is sampled"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let has_ended = || (Read::new(&path).ended == Some(RecordEnded::InOrder)).then_some(());
    assert!(within(LIMIT, has_ended).is_some());
}

#[test]
fn signals_are_for_the_program() {
    let scratch = Scratch::new();
    let (mut child, path) = lasting(&mut run(&scratch, ""), &scratch);
    // SAFETY: the child has not been waited for, so no other process can have its process id.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
    assert_eq!(wait(&mut child).unwrap().signal(), Some(libc::SIGTERM));
    assert_eq!(Read::new(&path).ended, Some(RecordEnded::InOrder));
}

#[test]
fn nvml_that_hangs_keeps_nobody() {
    let scratch = Scratch::new();
    let mut run = run(&scratch, "hangs");
    let ended = finish(run.args(["--", "sh", "-c", "sleep 0.5; echo done; exit 37"]));
    assert_eq!(
        (ended.code(), ended.stdout.as_str()),
        (Some(37), "done\n"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("NVML does not answer"), "{ended:?}");
}

#[test]
fn a_full_disk_ends_the_record_alone() {
    let scratch = Scratch::new();
    // The file size limit is 138 blocks of 512 bytes, so only some samples fit into the record.
    let (ended, said) = sampled_until(
        &run(&scratch, ""),
        &scratch,
        "ulimit -f 138",
        "GPU metrics end here: ",
    );
    assert_eq!(
        (ended.code(), ended.stdout.as_str()),
        (Some(37), "done\n"),
        "{said}"
    );
    assert_eq!(said.matches("GPU metrics end here: ").count(), 1, "{said}");
    let read = Read::new(&record(&scratch.path(".")).unwrap());
    read.has_plain(0, 1);
    read.has_gpm(1, 0);
}

#[test]
fn the_record_keeps_to_its_size() {
    let scratch = Scratch::new();
    let mut run = run(&scratch, "");
    run.env("TLLMPROF_TRACE_MAX", "70000");
    let (ended, said) = sampled_until(&run, &scratch, "true", "(TLLMPROF_TRACE_MAX)");
    assert_eq!(ended.code(), Some(37), "{said}");
    assert_eq!(said.matches("(TLLMPROF_TRACE_MAX)").count(), 1, "{said}");
    let path = record(&scratch.path(".")).unwrap();
    // The record's size limit is checked before a sample of all GPUs is written, so the last sample may exceed the
    // limit.
    assert!(fs::metadata(&path).unwrap().len() < 70_000 + 24 * 34);
    let read = Read::new(&path);
    assert_eq!(read.ended, Some(RecordEnded::InOrder));
    read.has_plain(0, 1);
}

#[test]
fn the_report_has_what_was_sampled_in_the_window() {
    let scratch = Scratch::new();
    sampled(&mut run(&scratch, ""), &scratch, "exit 0");
    let metrics = record(&scratch.path(".")).unwrap();
    let read = Read::new(&metrics);
    // Writes the record of a program that has a window from the second sample to the third.
    let (first, last) = (read.times[&0][1], read.times[&0][2]);
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let boot = builder.string(7, read.fact(Info::Boot)[0]);
    let boot = What::Info {
        key: Some(Info::Boot),
        value: boot.into(),
    };
    let edge = |edge| What::Window { edge, iteration: 5 };
    for event in [
        Event::new(0, 0, boot),
        Event::new(first.0, 0, edge(Edge::Open)),
        Event::new(
            first.0,
            last.1 - first.0,
            What::Iteration {
                n: 5,
                excluded: false,
            },
        ),
        Event::new(last.1, 0, edge(Edge::Close)),
    ] {
        builder.push(7, &event);
    }
    let program = scratch.path("program.tllmprof");
    fs::write(&program, builder.bytes()).unwrap();
    let ended = finish(
        scratch
            .tllmprof()
            .args(["report", "--json"])
            .args([&program, &metrics]),
    );
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(json["processes"].as_array().unwrap().len(), 1, "{json}");
    let metrics = json["processes"][0]["gpu_metrics"].as_array().unwrap();
    let is_busy = |one: &&Value| one["device"] == 0 && one["metric"] == "SM busy";
    let busy = metrics.iter().find(is_busy).unwrap();
    // The two samples are those of NVML's GPU 1. The values of the samples are 102.25 and 102.375, each a mean over
    // about 100 ms.
    let lengths = [first, last].map(|(start, end)| (end - start) as f64);
    let mean = (102.25 * lengths[0] + 102.375 * lengths[1]) / (lengths[0] + lengths[1]);
    assert!(
        (busy["mean"].as_f64().unwrap() - mean).abs() < 1e-4,
        "{busy} {mean}"
    );
    assert_eq!(
        (&busy["max"], &busy["samples"]),
        (&Value::from(102.375), &Value::from(2))
    );
}

/// A running `tllmprof serve-metrics`, which is killed when the value is dropped.
struct MetricsServer(Child);

impl Drop for MetricsServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Requests the metrics from the server at `address`. Returns the lines about the GPUs' energy.
fn scraped_energy(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("tllmprof_processes "), "{answer}");
    let lines = answer.lines().filter(|line| line.contains("energy"));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_scrape_has_the_energy_of_each_gpu() {
    let scratch = Scratch::new();
    for (nvml, has_gpus) in [("", true), ("denied", false)] {
        let mut command = scratch.tllmprof();
        command
            .args(["serve-metrics", "--listen", "127.0.0.1:0"])
            .env("LD_LIBRARY_PATH", nvml_folder(&scratch))
            .env("STANDIN_NVML", nvml)
            .stderr(Stdio::piped());
        let mut server = MetricsServer(command.spawn().unwrap());
        let mut line = String::new();
        let mut stderr = BufReader::new(server.0.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        let address = line.trim().rsplit_once("http://").unwrap().1;
        let address = address.strip_suffix("/metrics").unwrap();
        let mut scraped = scraped_energy(address);
        // The first scrape may come before NVML has been initialized.
        let deadline = Instant::now() + LIMIT;
        while has_gpus && scraped.is_empty() && Instant::now() < deadline {
            scraped = scraped_energy(address);
        }
        let energy = "tllmprof_gpu_energy_joules_total";
        if !has_gpus {
            assert_eq!(scraped, "");
            continue;
        }
        let counters = |text: &str| {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let values = lines.map(|line| {
                let (labels, joules) = line.rsplit_once(' ').unwrap();
                (labels.to_owned(), joules.parse::<f64>().unwrap())
            });
            values.collect::<Vec<_>>()
        };
        let first = counters(&scraped);
        let later = counters(&scraped_energy(address));
        assert_eq!((first.len(), later.len()), (2, 2), "{scraped}");
        // The stand-in's counters grow by 100 J with each query.
        for (number, (before, after)) in first.iter().zip(&later).enumerate() {
            assert!(
                before
                    .0
                    .starts_with(&format!("{energy}{{gpu=\"{number}\",uuid=\"GPU-")),
                "{scraped}"
            );
            assert_eq!(after, &(before.0.clone(), before.1 + 100.0));
        }
    }
}
