//! Checks the verdicts of `tllmprof hang` on eight ranks with a stand-in for NCCL. Some ranks have planted faults.
//! Other ranks are only slow, idle or at work.

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::python::pythons;
use common::{Output, Scratch, build, command, repo, run, shim, standin, tllmprof};
use serde_json::Value;

const RANKS: u32 = 8;
/// Size in bytes of the file that the ranks share. For each of 4 communicators and 8 ranks, the file has space for 4096
/// calls, the numbers of sends to the 8 ranks, and the numbers of receives from the 8 ranks. Each entry has 8 bytes.
const SHARED_BYTES: u64 = 8 * 4 * 8 * (4096 + 2 * 8);
const TEST_TIMEOUT: Duration = Duration::from_secs(300);
/// The exit statuses of `tllmprof hang`: 0 if no rank is stuck, 3 if a rank is stuck, and 4 if the command cannot
/// decide.
const NOT_STUCK: i32 = 0;
const STUCK: i32 = 3;
const CANNOT_TELL: i32 = 4;

/// Eight running rank processes, which are killed when the value is dropped.
struct Run {
    scratch: Scratch,
    name: String,
    ranks: Vec<Child>,
    /// The command `tllmprof run` that started all ranks, and that leads their process group. `None` if the ranks are
    /// children of the test.
    leader: Option<Child>,
}

impl Run {
    /// Prepares a run without starting processes. The run's folder contains the stand-in for NCCL and the file that the
    /// ranks share.
    fn prepare(name: &str) -> Self {
        let scratch = Scratch::new("hang");
        let folder = scratch.folder();
        build(
            "hang/nccl.c",
            &folder.join("libnccl.so.2"),
            ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2"],
        );
        File::create(folder.join("shared"))
            .unwrap()
            .set_len(SHARED_BYTES)
            .unwrap();
        // Several tests run with the same fault at the same time, so the run's name also contains the name of its
        // folder.
        let number = folder.file_name().unwrap().display();
        Self {
            name: format!("{name}-{number}"),
            ranks: Vec::new(),
            leader: None,
            scratch,
        }
    }

    /// Sets the environment variables that the ranks need, so that they find the stand-ins and the library knows the
    /// step.
    fn with_variables<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let folder = self.scratch.folder();
        let libraries = std::env::join_paths([folder, &standin()]).unwrap();
        command
            .env("LD_LIBRARY_PATH", &libraries)
            .env("TLLMPROF_RUN", &self.name)
            .env("TLLMPROF_STEP", "cudaStreamSynchronize")
            .env("HANG_SHARED", folder.join("shared"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
    }

    /// Starts all ranks with these environment variables.
    fn start(
        name: &str,
        variables: &[(&str, &str)],
        program: impl Fn(&Path, u32) -> Command,
    ) -> Self {
        let mut run = Self::prepare(name);
        let folder = run.scratch.folder();
        let start = |rank: u32| {
            let mut command = program(folder, rank);
            run.with_variables(&mut command)
                .env("LD_PRELOAD", shim())
                .env("TLLMPROF_RING", folder.join("%p.ring"))
                .env("TLLMPROF_TRACE", folder.join("%p.tllmprof"))
                .env("TLLMPROF_RANK", rank.to_string())
                .envs(variables.iter().copied());
            command
        };
        let ranks = (0..RANKS).map(|rank| start(rank).spawn().unwrap());
        run.ranks = ranks.collect();
        run
    }

    /// Starts the C program in each rank, with the named fault.
    fn with_fault(fault: &str, variables: &[(&str, &str)]) -> Self {
        Self::start(fault, variables, |folder, rank| {
            if rank == 0 {
                build_rank(folder);
            }
            let mut ranked = command(folder.join("rank"));
            ranked.args([&rank.to_string(), &RANKS.to_string(), fault]);
            ranked
        })
    }

    /// Starts the C program in each rank, with the named fault, under the command `tllmprof run --when CONDITION`.
    fn watched(fault: &str, condition: &str) -> Self {
        Self::prepare(fault).watch(fault, condition)
    }

    /// Starts the ranks of a prepared run like [`Run::watched`].
    fn watch(self, fault: &str, condition: &str) -> Self {
        const START_ALL: &str =
            "for rank in 0 1 2 3 4 5 6 7; do TLLMPROF_RANK=$rank ../rank $rank 8 $0 & done; wait";
        let mut run = self;
        let folder = run.scratch.folder();
        build_rank(folder);
        std::fs::create_dir(run.working_folder()).unwrap();
        let mut started = command(tllmprof());
        started
            .args(["run", "--light", "--when", condition, "--"])
            .args(["sh", "-c", START_ALL, fault]);
        run.with_variables(&mut started)
            .env("TLLMPROF_LIB", shim())
            .stderr(File::create(folder.join("said")).unwrap())
            .process_group(0)
            .current_dir(run.working_folder());
        run.leader = Some(started.spawn().unwrap());
        run
    }

    /// Returns the folder in which `tllmprof run` is started. Its name contains `%`, which has a meaning in the path
    /// templates of records and ring files.
    fn working_folder(&self) -> PathBuf {
        self.scratch.path("50%")
    }

    /// Returns the folder that `tllmprof run` has made for the run.
    fn folder(&self) -> PathBuf {
        self.working_folder()
            .join(format!("tllmprof-{}", self.name))
    }

    /// Runs `tllmprof hang --json` once. Returns its exit status, the JSON that it printed, and its whole output.
    fn ask(&self) -> (i32, Value, Output) {
        let mut asked = command(tllmprof());
        asked.args(["hang", "--json"]).arg(match self.leader {
            Some(_) => self.folder(),
            None => self.scratch.folder().to_owned(),
        });
        let output = run(&mut asked, TEST_TIMEOUT);
        let status = output.status.code().unwrap();
        let json = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        (status, json, output)
    }

    /// Runs `tllmprof hang` again and again until its verdict has this kind. Returns the verdict's text and JSON. Until
    /// then, no verdict on all eight ranks may say that a rank is stuck.
    fn verdict(&self, kind: &str, status: i32) -> (String, Value) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let (found, json, output) = self.ask();
            let verdict = &json["verdict"];
            let ranks = json["ranks"].as_array().map_or(0, Vec::len);
            if ranks == RANKS as usize {
                if verdict["kind"] == kind && found == status {
                    return (verdict["text"].as_str().unwrap().to_owned(), json);
                }
                assert_ne!(found, STUCK, "{}: {verdict}", self.name);
            }
            assert!(
                Instant::now() < deadline,
                "{}: no verdict {kind}: {json:#}\n{}",
                self.name,
                output.err()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits for a verdict of this kind, which must name rank 2 as the stuck rank. Returns the verdict's text.
    fn stuck(&self, kind: &str) -> String {
        let (text, json) = self.verdict(kind, STUCK);
        assert_eq!(json["verdict"]["ranks"], serde_json::json!([2]), "{text}");
        text
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
        if let Some(leader) = &mut self.leader {
            let group = format!("-{}", leader.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = leader.wait();
        }
    }
}

/// Builds the program that each rank runs.
fn build_rank(folder: &Path) {
    let here = format!("-L{}", folder.display());
    build(
        "hang/rank.c",
        &folder.join("rank"),
        [&here, "-l:libnccl.so.2", "-l:libcudart.so.12", "-rdynamic"],
    );
}

fn assert_has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn a_rank_that_sleeps_before_a_collective_is_named() {
    let run = Run::with_fault("sleeps", &[]);
    let text = run.stuck("not-entered");
    let expected = [
        "rank 2 did not enter all_reduce #40 of the communicator of 8 ranks (2.00 MiB, bfloat16)",
        "sleeps in pause, in hold_up (rank)",
    ];
    assert_has(&text, &expected);
}

#[test]
fn a_rank_that_skips_a_collective_is_named() {
    let text = Run::with_fault("skips", &[]).stuck("order");
    assert_has(&text, &["rank 2 called broadcast", "as #40", "all_reduce"]);
}

#[test]
fn a_rank_that_does_not_pass_on_what_it_has_received_is_named() {
    let text = Run::with_fault("keeps", &[]).stuck("not-entered");
    let expected = [
        "rank 2 did not enter recv #21 from rank 1 of the communicator of 8 ranks (2.00 MiB, bfloat16)",
        "sleeps in pause, in hold_up (rank)",
    ];
    assert_has(&text, &expected);
}

#[test]
fn another_order_of_collectives_is_named() {
    let text = Run::with_fault("order", &[]).stuck("order");
    assert_has(
        &text,
        &["rank 2 called broadcast", "as #40", "another order"],
    );
}

#[test]
fn another_size_of_a_collective_is_named() {
    let text = Run::with_fault("size", &[]).stuck("mismatch");
    assert_has(
        &text,
        &["rank 2 called all_reduce (1.00 MiB", "as #40", "(2.00 MiB"],
    );
}

#[test]
fn a_rank_that_was_killed_is_named() {
    let mut run = Run::with_fault("killed", &[]);
    run.ranks[2].wait().unwrap();
    let text = run.stuck("dead");
    assert_has(
        &text,
        &["rank 2 was killed or has crashed after broadcast #39"],
    );
}

#[test]
fn a_rank_that_has_ended_by_itself_is_named() {
    let mut run = Run::with_fault("ends", &[]);
    run.ranks[2].wait().unwrap();
    let text = run.stuck("dead");
    assert_has(&text, &["rank 2 has ended by itself after broadcast #39"]);
}

#[test]
fn a_rank_that_is_stopped_is_named() {
    let run = Run::with_fault("stopped", &[]);
    let text = run.stuck("stopped");
    assert_has(&text, &[&format!("kill -CONT {}", run.ranks[2].id())]);
}

#[test]
fn a_lock_is_named_with_the_thread_that_holds_it() {
    let text = Run::with_fault("lock", &[]).stuck("lock");
    let expected = [
        "rank 2 did not enter all_reduce #40",
        "waits for a lock, in take_lock (rank)",
        "it sleeps in pause, in hold_up (rank)",
    ];
    assert_has(&text, &expected);
}

#[test]
fn threads_that_wait_for_each_other_are_named() {
    let text = Run::with_fault("deadlock", &[]).stuck("deadlock");
    assert_has(
        &text,
        &[
            "threads wait for each other",
            "take_lock",
            "lock_one_then_other",
        ],
    );
}

#[test]
fn work_that_the_gpu_does_not_end_is_named() {
    let run = Run::with_fault("endless", &[("HANG_ENDLESS", "40")]);
    let (text, _) = run.verdict("gpu", STUCK);
    assert_has(&text, &["waits for the GPU in cu"]);
}

#[test]
fn a_host_function_for_which_the_gpu_waits_is_named() {
    let variables = [("HANG_ENDLESS", "40"), ("STANDIN_HOST_THREAD", "1")];
    let run = Run::with_fault("host", &variables);
    let (text, _) = run.verdict("gpu", STUCK);
    let expected = [
        "rank 2: ",
        "the GPU waits for the host function wait_for_copy (rank), which sleeps in pause since",
    ];
    assert_has(&text, &expected);
}

#[test]
fn ranks_that_are_slow_are_not_stuck() {
    let run = Run::with_fault("slow", &[]);
    let (text, _) = run.verdict("moves", NOT_STUCK);
    assert_has(&text, &["slow, not stuck"]);
}

#[test]
fn ranks_that_wait_for_work_are_idle() {
    let run = Run::with_fault("idle", &[]);
    let (text, _) = run.verdict("idle", NOT_STUCK);
    assert_has(
        &text,
        &["8 ranks have entered the same collectives", "wait_for_work"],
    );
    // The ranks remain idle, so a second verdict is the same.
    let (status, json, _) = run.ask();
    assert_eq!(status, NOT_STUCK, "{json:#}");
}

/// Judges a healthy server again and again, while it waits for requests, captures graphs, compiles and makes long
/// prefills. No verdict may say that the server is stuck. Asks 16 times, or for as many minutes as `HANG_MINUTES` says.
#[test]
fn a_healthy_server_is_never_called_stuck() {
    let minutes: Option<u64> = std::env::var("HANG_MINUTES").map_or(None, |text| text.parse().ok());
    let until = minutes.map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let mut asks = 0;
    let run = Run::with_fault("none", &[]);
    let (mut kinds, mut steps) = (BTreeSet::new(), BTreeSet::new());
    while until.map_or(asks < 16, |until| Instant::now() < until) {
        asks += 1;
        let (status, json, output) = run.ask();
        let verdict = &json["verdict"];
        assert_ne!(status, STUCK, "{json:#}\n{}", output.err());
        assert_ne!(verdict["kind"], "dead", "a rank has ended: {json:#}");
        kinds.extend(verdict["kind"].as_str().map(str::to_owned));
        steps.extend(json["ranks"][0]["step"]["number"].as_u64());
    }
    println!(
        "{asks} verdicts in {minutes:?} minutes: {kinds:?} up to step {:?}",
        steps.last()
    );
    assert!(steps.len() > 1, "the server makes steps");
}

#[test]
fn a_rank_at_work_for_which_the_others_wait_is_not_stuck() {
    let run = Run::with_fault("works", &[]);
    let (text, _) = run.verdict("busy", NOT_STUCK);
    assert_has(&text, &["rank 2 did not enter all_reduce #40", "runs"]);
}

#[test]
fn ranks_that_were_all_killed_leave_a_verdict() {
    let mut run = Run::with_fault("sleeps", &[]);
    run.stuck("not-entered");
    for rank in &mut run.ranks {
        rank.kill().unwrap();
        rank.wait().unwrap();
    }
    let (text, json) = run.verdict("not-entered", CANNOT_TELL);
    assert_has(
        &text,
        &[
            "all processes are gone",
            "rank 2 did not enter all_reduce #40",
        ],
    );
    assert_eq!(json["ranks"][2]["life"], "gone");
}

#[test]
fn a_device_fault_is_read_from_a_copy_of_the_kernel_log() {
    let run = Run::with_fault("sleeps", &[]);
    run.stuck("not-entered");
    let (_, json, _) = run.ask();
    let last_ns = json["ranks"][2]["collective"]["begin_ns"].as_u64().unwrap();
    let stopped = last_ns / 1_000_000_000 + 1;
    let log = run.scratch.path("dmesg");
    let fault = |at: u64| {
        let pid = run.ranks[2].id();
        format!(
            "[{at:5}.250000] NVRM: Xid (PCI:0000:4f:00): 31, pid={pid}, name=rank, Ch 00000008\n"
        )
    };
    let asked = || {
        let mut asked = command(tllmprof());
        asked.args(["hang", "--kernel-log"]).arg(&log);
        common::run(asked.arg(run.scratch.folder()), TEST_TIMEOUT)
    };
    std::fs::write(
        &log,
        format!("[    1.5] usb 1-1: new device\n{}", fault(stopped)),
    )
    .unwrap();
    let output = asked();
    let expected =
        "stuck: the kernel log names rank 2 in Xid 31 (GPU memory page fault) of GPU 0000:4f:00";
    assert!(output.out().starts_with(expected), "{}", output.out());
    // The kernel log has only a fault from long before the ranks stopped. This fault is not reported as the reason.
    std::fs::write(&log, fault(stopped - 60)).unwrap();
    let output = asked();
    let expected = "stuck: rank 2 did not enter all_reduce #40";
    assert!(output.out().starts_with(expected), "{}", output.out());
    std::fs::remove_file(&log).unwrap();
    let output = asked();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output.err().starts_with("tllmprof: --kernel-log "),
        "{}",
        output.err()
    );
}

/// Starts `rank.py` in each rank, with the named fault.
fn with_python(python: &Path, fault: &str) -> Run {
    Run::start(fault, &[], |_, rank| {
        let mut words = command(python);
        words.arg(repo().join("tests/hang/rank.py"));
        words.args([&rank.to_string(), &RANKS.to_string(), fault]);
        words.env("PYTHONDONTWRITEBYTECODE", "1");
        words
    })
}

#[test]
fn a_full_queue_is_named_with_the_function_that_waits() {
    for python in pythons() {
        let text = with_python(&python.path, "queue").stuck("queue");
        let expected = [
            "rank 2 did not enter all_reduce #20",
            "waits for room in a full queue, in pass_on (",
        ];
        assert_has(&text, &expected);
    }
}

#[test]
fn the_gil_is_named_with_the_thread_that_holds_it() {
    for python in pythons().iter().filter(|python| python.has_gil) {
        let run = with_python(&python.path, "gil");
        let text = run.stuck("gil");
        let expected = [
            "waits for the GIL",
            "rank.py:",
            "it sleeps in pause, in hold_gil (",
        ];
        assert_has(&text, &expected);
    }
}

#[test]
fn a_run_that_is_watched_leaves_a_verdict_once_it_is_stuck() {
    let run = Run::watched("sleeps", "stuck > 4s");
    let text = run.folder().join("hang.txt");
    let deadline = Instant::now() + TEST_TIMEOUT;
    let said = loop {
        let said = std::fs::read_to_string(run.scratch.path("said")).unwrap();
        if said.contains("hang.txt") {
            break said;
        }
        assert!(Instant::now() < deadline, "no verdict: {said}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let line = said.lines().find(|line| line.contains("hang.txt")).unwrap();
    let expected = [
        "stuck > 4s: rank 2 did not enter all_reduce #40 of the communicator of 8 ranks",
        "sleeps in pause, in hold_up (rank)",
    ];
    assert_has(line, &expected);
    let text = std::fs::read_to_string(text).unwrap();
    assert!(text.starts_with("stuck: rank 2 did not enter"), "{text}");
    assert_eq!(text.lines().count(), 1 + RANKS as usize, "{text}");
    let json = std::fs::read(run.folder().join("hang.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["verdict"]["kind"], "not-entered");
    assert!(json["ranks"][2]["quiet_ns"].as_u64() > Some(4_000_000_000));
    assert!(!said.contains("nothing checks"), "{said}");
    let metrics = metrics();
    let is_of_run = format!("run=\"{}\"", run.name);
    let stuck = metrics
        .lines()
        .filter(|line| line.starts_with("tllmprof_stuck_seconds{") && line.contains(&is_of_run));
    let seconds: Vec<f64> = stuck
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(seconds.len(), RANKS as usize, "{metrics}");
    assert!(seconds.iter().all(|seconds| *seconds > 4.0), "{metrics}");
}

#[test]
fn a_stuck_run_with_the_same_identifier_is_not_that_which_is_watched() {
    let stuck = Run::with_fault("sleeps", &[]);
    let mut run = Run::prepare("none");
    run.name.clone_from(&stuck.name);
    let run = run.watch("none", "stuck > 4s");
    stuck.stuck("not-entered");
    // If `tllmprof run` also judged the stuck ranks, which belong to another run of the same name, it would log a
    // verdict within a few seconds from now. So the test waits 8 seconds. Meanwhile, the ranks of the watched run make
    // steps.
    let deadline = Instant::now() + TEST_TIMEOUT;
    let since = Instant::now();
    loop {
        let (status, json, output) = run.ask();
        let ranks = json["ranks"].as_array().map_or(0, Vec::len);
        if ranks == RANKS as usize && since.elapsed() > Duration::from_secs(10) {
            assert_ne!(status, STUCK, "{json:#}");
            if status == NOT_STUCK {
                break;
            }
        }
        assert!(Instant::now() < deadline, "{json:#}\n{}", output.err());
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = std::fs::read_to_string(run.scratch.path("said")).unwrap();
    assert!(!said.contains("stuck >"), "{said}");
}

#[test]
fn the_processes_of_a_run_are_judged_by_its_identifier() {
    let run = Run::watched("none", "stuck > 100s");
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let mut asked = command(tllmprof());
        asked.args(["hang", "--json", "--run", &run.name]);
        let output = common::run(asked.current_dir(run.scratch.folder()), TEST_TIMEOUT);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        let ranks = json["ranks"].as_array().map_or(0, Vec::len);
        // While the ranks start, too little may be known for a verdict.
        if ranks == RANKS as usize && json["ranks"][0]["life"] == "runs" {
            assert_ne!(output.status.code(), Some(STUCK), "{json:#}");
            if output.status.code() == Some(NOT_STUCK) {
                break;
            }
        }
        assert!(Instant::now() < deadline, "{json:#}\n{}", output.err());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the metrics of all processes that listen on a control socket.
fn metrics() -> String {
    let mut command = command(tllmprof());
    command.args(["serve-metrics", "--listen", "127.0.0.1:0"]);
    let mut server = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(server.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    let at = line.trim().strip_prefix("tllmprof: metrics are at http://");
    let at = at.and_then(|at| at.strip_suffix("/metrics"));
    let mut stream = TcpStream::connect(at.unwrap_or_else(|| panic!("{line}"))).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    text
}

#[test]
fn a_run_that_waits_for_requests_is_watched_without_a_verdict() {
    let run = Run::watched("idle", "stuck > 2s");
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        let (_, json, output) = run.ask();
        let ranks = json["ranks"].as_array().into_iter().flatten();
        let quiet = ranks.filter_map(|rank| rank["quiet_ns"].as_u64());
        // After 16 s without activity of the ranks, `tllmprof run` has judged the ranks twice: after about 2 s, as the
        // condition requires, and again 10 s later.
        if quiet.min() > Some(16_000_000_000) {
            assert_eq!(json["verdict"]["kind"], "idle");
            break;
        }
        assert!(Instant::now() < deadline, "{json:#}\n{}", output.err());
    }
    assert!(!run.folder().join("hang.json").exists());
}

#[test]
fn a_condition_that_nothing_can_check_is_reported() {
    let program = standin().join("bin/steps_shared12");
    let folder = Scratch::new("hang");
    let mut alone = command(&program);
    alone
        .env("LD_LIBRARY_PATH", standin())
        .env("LD_PRELOAD", shim())
        .env("TLLMPROF_WHEN", "stuck > 30s");
    let said = run(&mut alone, TEST_TIMEOUT).err();
    let line = "TLLMPROF_WHEN=stuck > 30s: nothing checks whether this process is stuck";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    for option in ["--no-trace", "--trace=x.tllmprof"] {
        let mut started = command(tllmprof());
        started
            .args(["run", option, "--when", "stuck > 30s", "--"])
            .arg(&program)
            .env("TLLMPROF_LIB", shim())
            .current_dir(folder.folder());
        let refused = run(&mut started, TEST_TIMEOUT);
        assert_eq!(refused.status.code(), Some(2), "{}", refused.err());
        assert_has(&refused.err(), &["--when stuck > 30s", "no ring to watch"]);
    }
}

#[test]
fn a_run_has_a_ring_in_its_folder_without_an_option() {
    let scratch = Scratch::new("hang");
    let mut started = command(tllmprof());
    started
        .args(["run", "--run", "mine", "--light", "--"])
        .arg(standin().join("bin/steps_shared12"))
        .env("LD_LIBRARY_PATH", standin())
        .env("TLLMPROF_LIB", shim())
        .current_dir(scratch.folder());
    let ran = run(&mut started, TEST_TIMEOUT);
    assert!(ran.status.success(), "{}", ran.err());
    let mut asked = command(tllmprof());
    asked
        .args(["hang", "--run", "mine", "--json"])
        .current_dir(scratch.folder());
    let output = run(&mut asked, TEST_TIMEOUT);
    assert_eq!(output.status.code(), Some(NOT_STUCK), "{}", output.err());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["verdict"]["kind"], "ended");
    assert_eq!(json["ranks"][0]["run"], "mine");
    assert!(
        json["ranks"][0]["step"]["number"].as_u64() > Some(0),
        "{json:#}"
    );
    // The folder also contains a file that describes the run `mine`. The report over the folder ignores this file
    // instead of reading it as a record.
    let mut reported = command(tllmprof());
    reported.args(["report", "tllmprof-mine", "--json"]);
    let report = run(reported.current_dir(scratch.folder()), TEST_TIMEOUT);
    assert!(
        report.status.success() && report.stderr.is_empty(),
        "{}",
        report.err()
    );
}

#[test]
fn what_cannot_be_used_is_said_and_the_rest_is_judged() {
    let ask = |arguments: &[&str], folder: &Path| {
        let mut asked = command(tllmprof());
        asked.arg("hang").args(arguments).current_dir(folder);
        run(&mut asked, TEST_TIMEOUT)
    };
    let scratch = Scratch::new("hang");
    let folder = scratch.folder();
    let own = std::process::id().to_string();
    std::fs::write(folder.join("x.ring"), "nothing").unwrap();
    let begins = &tllmprof_record::RING_MAGIC[..3];
    std::fs::write(folder.join("cut.ring"), begins).unwrap();
    for (arguments, status, line) in [
        (
            &["4194305"][..],
            1,
            "4194305: there is no such process here",
        ),
        (&[&own], 1, "it runs without the library"),
        (&["x.ring"], 1, "x.ring: it is not a ring of tllmprof"),
        (
            &["cut.ring"],
            1,
            "cut.ring: the ring was cut: it has 3 bytes (wanted: all 65536 bytes of the file)",
        ),
        (&["no.ring"], 1, "no.ring: there is no such file"),
        (
            &["--run", "none"],
            1,
            "--run none: no process of that run has a ring",
        ),
    ] {
        let said = ask(arguments, folder);
        assert_eq!(said.status.code(), Some(status), "{}", said.err());
        assert!(
            said.err().contains(line) && said.err().lines().count() == 1,
            "{}",
            said.err()
        );
    }
    let run = Run::with_fault("sleeps", &[]);
    run.stuck("not-entered");
    let pids: Vec<_> = run.ranks.iter().map(|rank| rank.id().to_string()).collect();
    let mut arguments: Vec<_> = pids.iter().map(String::as_str).collect();
    arguments.push("4194305");
    let said = ask(&arguments, folder);
    assert_eq!(said.status.code(), Some(STUCK), "{}", said.err());
    assert!(
        said.out()
            .starts_with("stuck: rank 2 did not enter all_reduce #40"),
        "{}",
        said.out()
    );
    assert_eq!(
        said.out().lines().count(),
        1 + RANKS as usize,
        "{}",
        said.out()
    );
    assert!(
        said.err()
            .contains("4194305: there is no such process here"),
        "{}",
        said.err()
    );
    let said = ask(&["--run", &run.name], folder);
    assert_eq!(said.status.code(), Some(STUCK), "{}", said.err());
    // The arguments name one rank's ring (the file with its latest steps and collectives) in several ways: by its
    // folder, by its own path, through a link, as a copy, and by the process number. Each rank is still listed once.
    let rings = run.scratch.folder();
    std::os::unix::fs::symlink(rings, folder.join("link")).unwrap();
    let ring = rings.join(format!("{}.ring", pids[0]));
    std::fs::copy(&ring, folder.join("copy.ring")).unwrap();
    let (rings, ring) = (rings.to_str().unwrap(), ring.to_str().unwrap());
    for arguments in [
        &[rings, ring, "link", "copy.ring", &pids[0]][..],
        &["copy.ring", &pids[0], ring, rings],
    ] {
        let said = ask(arguments, folder);
        assert_eq!(said.status.code(), Some(STUCK), "{}", said.err());
        let processes = said.out().lines().count() - 1;
        assert_eq!(processes, RANKS as usize, "{arguments:?}: {}", said.out());
    }
}
