//! Servers that listen on a control socket, each test's in a separate folder, and clients of the socket.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tllmprof_control::{Capture, ControlEvent, Phase, Request, Status};

use crate::common::{
    Built, Output, Scratch, build_once, built_command, command, read_log, run, shim, signal,
    standin, tllmprof,
};

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(180);

/// Returns the path of the server program, built once from `tests/live/server.c`.
pub(crate) fn server() -> &'static Path {
    static BUILT: Built = Built::new();
    build_once(&BUILT, "live/server.c", &["-l:libcudart.so.12"])
}

/// A folder in which servers run and create their sockets.
pub(crate) struct Place(pub Scratch);

/// A running server.
pub(crate) struct Running {
    pub child: Child,
    /// A number that distinguishes the servers of a test. The names of the server's output files begin with it.
    name: String,
    folder: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self(Scratch::new("live"));
        fs::create_dir(place.0.path("run")).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path(name)
    }

    /// Returns the command of a server that listens. Each graph launch is a step, unless the caller sets another rule.
    pub(crate) fn server(&self, args: &str) -> Command {
        let mut command = built_command(server());
        command
            .args(args.split_whitespace())
            .env("LD_LIBRARY_PATH", standin())
            .env("LD_PRELOAD", shim())
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("TLLMPROF_CONTROL", "1")
            .env("TLLMPROF_STEP", "cudaGraphLaunch")
            .env("TLLMPROF_TRACE", "%p.tllmprof")
            .env("STANDIN_LOG", self.path("calls"))
            .current_dir(self.0.folder());
        command
    }

    /// Starts a server and waits for its first step.
    pub(crate) fn start(&self, command: &mut Command) -> Running {
        self.start_to(command, "ready")
    }

    /// Starts a server and waits until it prints `line`.
    pub(crate) fn start_to(&self, command: &mut Command, line: &str) -> Running {
        let running = self.spawn(command);
        running.wait_for(line);
        running
    }

    /// Starts a server in a process group of its own. The server is killed when the thread that called this function
    /// ends. Its whole process group is killed when the result is dropped.
    pub(crate) fn spawn(&self, command: &mut Command) -> Running {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let name = COUNT
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
            .to_string();
        let file = |kind: &str| fs::File::create(self.path(&format!("{name}.{kind}"))).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .process_group(0)
            .spawn()
            .unwrap();
        Running {
            child,
            folder: self.0.folder().to_owned(),
            name,
        }
    }

    /// Returns the command `tllmprof` with these arguments. The command finds the servers of this folder.
    pub(crate) fn command(&self, args: &str) -> Command {
        let mut command = command(tllmprof());
        command
            .args(args.split_whitespace())
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .current_dir(self.0.folder());
        command
    }

    pub(crate) fn tllmprof(&self, args: &str) -> Output {
        run(&mut self.command(args), TEST_TIMEOUT)
    }

    /// Returns the processes that `tllmprof ps --json` lists and that have a socket in this folder, in the order of
    /// the list.
    pub(crate) fn ps(&self) -> Vec<Value> {
        let listed = self.tllmprof("ps --json");
        assert!(listed.status.success(), "{}", listed.err());
        let mut all: Vec<Value> = serde_json::from_slice(&listed.stdout).unwrap();
        // The list may contain other tests' programs that listen in the default folder. These programs are dropped
        // from the list.
        let here = self.sockets();
        all.retain(|process| here.contains(&format!("{}.sock", process["pid"])));
        all
    }

    pub(crate) fn sockets(&self) -> Vec<String> {
        let list = fs::read_dir(self.path("run/tllmprof"))
            .into_iter()
            .flatten();
        list.map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Once all processes of a group have ended, another group may get its ID. So the group is only killed while the
        // server is running.
        if matches!(self.child.try_wait(), Ok(None)) {
            signal(-self.child.id().cast_signed(), libc::SIGKILL);
            let _ = self.child.wait();
        }
    }
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn text(&self, kind: &str) -> String {
        fs::read_to_string(self.folder.join(format!("{}.{kind}", self.name))).unwrap()
    }

    /// Waits until the server prints `line`.
    #[track_caller]
    pub(crate) fn wait_for(&self, line: &str) {
        wait_until(line, || self.out().contains(line));
    }

    pub(crate) fn out(&self) -> String {
        self.text("out")
    }

    pub(crate) fn err(&self) -> String {
        self.text("err")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder
            .join(format!("run/tllmprof/{}.sock", self.pid()))
    }

    pub(crate) fn connect(&self) -> Peer {
        wait_until("the socket", || UnixStream::connect(self.socket()).is_ok());
        Peer::to(&self.socket())
    }

    pub(crate) fn record(&self) -> PathBuf {
        self.folder.join(format!("{}.tllmprof", self.pid()))
    }

    /// Returns the first and last iteration of each closed window in the server's record.
    pub(crate) fn windows(&self) -> Vec<(u64, u64)> {
        self.windows_of(&self.record())
    }

    /// Like [`Running::windows`], for the record at the given path.
    pub(crate) fn windows_of(&self, record: &Path) -> Vec<(u64, u64)> {
        let report = run(
            command(tllmprof()).args(["report", "--json"]).arg(record),
            TEST_TIMEOUT,
        );
        let json: Value = serde_json::from_slice(&report.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}", report.err()));
        let windows = json["processes"][0]["windows"].as_array().unwrap();
        let ends = |window: &Value| {
            let (first, last) = (
                window["first"].as_u64().unwrap(),
                window["last"].as_u64().unwrap(),
            );
            let count = window["iterations"].as_array().unwrap().len() as u64;
            assert_eq!(count, last - first + 1, "{first}-{last}");
            (first, last)
        };
        let closed = windows.iter().filter(|window| window["closed"] == true);
        closed.map(ends).collect()
    }

    /// Makes the server end, and asserts that it succeeded. Returns its output.
    #[track_caller]
    pub(crate) fn end(&mut self) -> String {
        fs::write(self.folder.join("end"), "").unwrap();
        wait_until("the end", || self.child.try_wait().unwrap().is_some());
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}\n{}", self.err());
        self.out()
    }

    /// Makes the server pause, and waits until it makes no more steps.
    #[track_caller]
    pub(crate) fn pause(&self) {
        let paused = self.folder.join("paused");
        let _ = fs::remove_file(&paused);
        fs::write(self.folder.join("pause"), "").unwrap();
        wait_until("the pause", || paused.exists());
    }

    /// Lets the server make steps again.
    pub(crate) fn resume(&self) {
        fs::remove_file(self.folder.join("pause")).unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Returns the number of entries in a folder of the server below `/proc`: `fd` for descriptors, `task` for threads.
    pub(crate) fn count(&self, of: &str) -> usize {
        fs::read_dir(format!("/proc/{}/{of}", self.pid()))
            .unwrap()
            .count()
    }

    /// Returns the server's resident memory in KiB.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn has_thread(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let name =
            |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        tasks
            .flatten()
            .any(|task| name(task).trim() == "tllmprof-live")
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not come");
        sleep(Duration::from_millis(2));
    }
}

/// A client that exchanges lines with a server over its control socket.
pub(crate) struct Peer(pub BufReader<UnixStream>);

impl Peer {
    pub(crate) fn to(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) fn say(&mut self, line: &[u8]) {
        self.0.get_mut().write_all(line).unwrap();
    }

    pub(crate) fn hear(&mut self) -> ControlEvent {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).unwrap();
        ControlEvent::from_line(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    pub(crate) fn ask(&mut self, request: &Request) -> ControlEvent {
        self.say(request.to_line().as_bytes());
        self.hear()
    }

    pub(crate) fn status(&mut self) -> Status {
        match self.ask(&Request::Status) {
            ControlEvent::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    /// Requests a window of `steps` steps and waits for its end. Returns the first and last step that the server
    /// accepted, and the first and last step that it captured.
    pub(crate) fn capture(&mut self, steps: u64) -> ((u64, u64), (u64, u64)) {
        let accepted = self.ask(&of_steps(steps));
        let ControlEvent::Accepted {
            first,
            last: Some(last),
        } = accepted
        else {
            panic!("{accepted:?}");
        };
        assert_eq!(self.hear(), ControlEvent::Opened { first });
        match self.hear() {
            ControlEvent::Closed(closed) => ((first, last), closed.steps.unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn of_steps(steps: u64) -> Request {
    Request::Capture(Capture {
        steps: Some(steps),
        ..Capture::default()
    })
}

/// Returns one pair for each period in which the profiler was on according to the driver's log: the numbers of the
/// process's first and last graph launch in this period. Launches are numbered from 0.
pub(crate) fn switches(log: &Path, pid: u32) -> Vec<(u64, u64)> {
    let (mut launches, mut first, mut found) = (0, 0, Vec::new());
    for call in read_log(log).iter().filter(|call| call.pid == pid) {
        match call.function.as_str() {
            "cuProfilerStart" => first = launches,
            "cuProfilerStop" => found.push((first, launches - 1)),
            name if name.starts_with("cuGraphLaunch") => launches += 1,
            _ => {}
        }
    }
    found
}

impl Peer {
    /// Asks for the status, and returns true if a window is open. Other messages that arrive before the status are
    /// ignored.
    pub(crate) fn status_or_event(&mut self) -> bool {
        self.say(Request::Status.to_line().as_bytes());
        loop {
            if let ControlEvent::Status(status) = self.hear() {
                return status.phase == Phase::Open;
            }
        }
    }
}
