//! Runs a program without and with the library, in namespaces that a shell script prepares (see [`Case`]).

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tllmprof_record::{Reader, RecordError};
use tllmprof_report::{Process, State};

use crate::common::{
    Built, Output, Scratch, build_once, can_exec, command, run, shim, skipped, standin,
};

const TEST_TIMEOUT: Duration = Duration::from_secs(550);
/// The exit status of a preparation script ([`Case::prepare`]) if this machine does not allow the situation that it
/// prepares.
const NOT_HERE: i32 = 98;

/// Returns the path of the program, built once from `tests/odd/odd.c`.
pub(crate) fn program() -> &'static Path {
    static BUILT: Built = Built::new();
    build_once(&BUILT, "odd/odd.c", &["-l:libcudart.so.12"])
}

/// Returns the path of the program that serves a file system in user space (FUSE), built once from
/// `tests/odd/fuse.c`.
pub(crate) fn fuse() -> &'static Path {
    static BUILT: Built = Built::new();
    build_once(&BUILT, "odd/fuse.c", &[])
}

/// Shell functions for preparation scripts. `group CONTROLLER FILE1 FILE2` makes a control group that has FILE1 (cgroup
/// version 1) or FILE2 (version 2). `set_one FILE VALUE` writes VALUE to a file of the control group, if the file
/// exists. `enter` makes the program start in the control group, and `leave` removes the group.
const GROUPS: &str = r#"
group() {
    for root in /sys/fs/cgroup/$1 /sys/fs/cgroup; do
        group=$root/odd-$$
        mkdir $group 2>/dev/null || continue
        [ -e $group/$2 ] || [ -e $group/$3 ] && return
        rmdir $group
    done
    echo "no control group of $1 can be made" >&2
    exit 98
}
set_one() { [ ! -e $group/$1 ] || echo "$2" > $group/$1 || { echo "$group/$1 cannot be written" >&2; exit 98; }; }
enter() {
    printf 'echo $$ > %s/cgroup.procs\nexec "$@"\n' $group > enter
    before="sh enter"
}
leave() {
    for try in 1 2 3 4 5 6 7 8 9 10; do
        rmdir $group 2>/dev/null && return
        sleep 0.1
    done
}"#;

/// A program with its arguments, and the situation in which it runs.
pub(crate) struct Case<'a> {
    /// The program's arguments: an event such as `kill`, the number of steps, and the step before which the event
    /// happens.
    pub arguments: &'a str,
    /// A shell script that root runs in the case's folder, in a separate mount namespace, before the program. It exits
    /// with 98 if the machine does not allow the situation. It may set two shell variables with words for the program's
    /// command line: `before` (at its beginning) and `inside` (after the library's variables).
    pub prepare: &'a str,
    /// A shell script that runs after the program has ended; empty if there is none.
    pub after: &'a str,
    /// Namespaces to create in addition to the mount namespace, as options of unshare(1).
    pub namespaces: &'a str,
    pub variables: &'a [(&'a str, &'a str)],
}

/// The result of the run with the library.
pub(crate) struct Ran {
    pub output: Output,
    pub records: Vec<Process>,
    /// Number of files that are named like records but are empty.
    pub empty: usize,
    scratch: Scratch,
}

impl Case<'_> {
    pub(crate) const NEW: Case<'static> = Case {
        arguments: "",
        prepare: "",
        after: "",
        namespaces: "",
        variables: &[],
    };

    fn run(&self, is_preloaded: bool) -> (Output, Scratch) {
        let scratch = Scratch::new("odd");
        fs::create_dir(scratch.path("records")).unwrap();
        let script = format!(
            "preload=$LD_PRELOAD libraries=$LD_LIBRARY_PATH; unset LD_PRELOAD LD_LIBRARY_PATH; before= inside=\n\
             {GROUPS}\n\
             {}\n\
             $before env LD_LIBRARY_PATH=\"$libraries\" LD_PRELOAD=\"$preload\" $inside \"$@\"; status=$?\n\
             {}\n\
             exit $status",
            self.prepare, self.after
        );
        let mut unshare = command("unshare");
        unshare
            .arg("--mount")
            .args(self.namespaces.split_whitespace())
            .args(["/bin/sh", "-c", &script, "sh"])
            .arg(program())
            .args(self.arguments.split_whitespace())
            .env("LD_LIBRARY_PATH", standin())
            .env("FUSE", fuse())
            .env("TLLM_PROFILE_START_STOP", "0-")
            .env("TLLMPROF_STEP", "cudaGraphLaunch")
            .env("TLLMPROF_TRACE", "records/%p.tllmprof")
            .envs(self.variables.iter().copied())
            .current_dir(scratch.folder());
        if is_preloaded {
            unshare.env("LD_PRELOAD", shim());
        }
        (run(&mut unshare, TEST_TIMEOUT), scratch)
    }

    /// Runs the program twice, without and with the library. Asserts that its exit status and output are the same,
    /// except for the library's messages. If this machine does not allow the situation, logs the reason and returns
    /// `None`.
    #[track_caller]
    pub(crate) fn compare(&self) -> Option<Ran> {
        // SAFETY: geteuid has no arguments and always succeeds.
        if unsafe { libc::geteuid() } != 0 || !can_exec() {
            skipped("root alone prepares this");
            return None;
        }
        let (plain, _) = self.run(false);
        let is_refused = plain.err().starts_with("unshare: ");
        if is_refused || plain.status.code() == Some(NOT_HERE) {
            let why = plain.err();
            skipped(why.lines().last().unwrap_or("it cannot be prepared here"));
            return None;
        }
        // Without the library, the program either made all of its steps (7) or was killed by SIGKILL (137) or SIGTERM
        // (143).
        let status = plain.status.code();
        assert!(
            matches!(status, Some(7 | 137 | 143)),
            "{status:?} {}",
            plain.err()
        );
        let (output, scratch) = self.run(true);
        let said = format!("{}\n{}", self.arguments, output.err());
        assert_eq!(output.out(), plain.out(), "{said}");
        assert_eq!(output.status, plain.status, "{said}");
        assert_eq!(output.status.signal(), None, "{said}");
        let is_theirs = |line: &&str| !line.starts_with("tllmprof: ");
        let theirs: Vec<_> = without_numbers(&output.err())
            .lines()
            .filter(is_theirs)
            .map(str::to_owned)
            .collect();
        let plain: Vec<_> = without_numbers(&plain.err())
            .lines()
            .map(str::to_owned)
            .collect();
        assert_eq!(theirs, plain, "{said}");
        let (mut records, mut empty) = (Vec::new(), 0);
        for path in files(&scratch.path("records")) {
            match Reader::open(&path) {
                Ok(reader) => records.push(Process::read(path, &reader).unwrap()),
                Err(RecordError::Empty(_)) => empty += 1,
                Err(error) => panic!("{}: {error}\n{said}", path.display()),
            }
        }
        records.sort_by_key(|record| {
            let window = record.windows.first()?;
            Some(window.iterations.first()?.start)
        });
        Some(Ran {
            output,
            records,
            empty,
            scratch,
        })
    }
}

/// Removes all digits from a text. A shell prints the process ID of a killed process, which differs between runs.
fn without_numbers(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "tllmprof"));
    paths
}

impl Ran {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// Asserts that there is one record, in the given state, with the iterations from 0 to `iterations - 1`. Fewer than
    /// half of them may be missing if the record counts them as dropped: on a very busy machine, the library may extend
    /// the record's file too late.
    #[track_caller]
    pub(crate) fn record(&self, state: State, iterations: u64) -> &Process {
        let [record] = &self.records[..] else {
            panic!("{} records\n{}", self.records.len(), self.output.err());
        };
        let said = format!("{}\n{}", record.record.damage, self.output.err());
        assert_eq!(record.state(), state, "{said}");
        let kept = numbers(record);
        assert!(kept.iter().all(|number| *number < iterations), "{said}");
        let missing = iterations - kept.len() as u64;
        let dropped = record.record.dropped;
        assert!(
            missing <= dropped && missing < iterations / 2,
            "{missing} are missing, {dropped} dropped: {said}"
        );
        record
    }

    /// Asserts that the library logged exactly one message for each text in `parts`, in this order, and that each
    /// message contains its text.
    #[track_caller]
    pub(crate) fn says(&self, parts: &[&str]) -> &Self {
        self.says_and_may(parts, None)
    }

    /// Asserts what [`Ran::says`] asserts. The library may also have logged messages that contain the text `optional`.
    #[track_caller]
    pub(crate) fn says_and_may(&self, parts: &[&str], optional: Option<&str>) -> &Self {
        let said = self.output.err();
        let is_optional = |line: &str| optional.is_some_and(|text| line.contains(text));
        let lines = said.lines().filter(|line| line.starts_with("tllmprof: "));
        let lines: Vec<_> = lines.filter(|line| !is_optional(line)).collect();
        assert_eq!(lines.len(), parts.len(), "{said}");
        for (line, part) in lines.iter().zip(parts) {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
        self
    }
}

/// Returns the numbers of a record's iterations. Asserts that they are in order and that none occurs twice.
#[track_caller]
pub(crate) fn numbers(record: &Process) -> Vec<u64> {
    let all = record.windows.iter().flat_map(|window| &window.iterations);
    let all: Vec<_> = all.map(|iteration| iteration.n).collect();
    assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
    all
}

/// Returns true if the machine has this program. Otherwise, reports that the running test is skipped.
pub(crate) fn has(program: &str) -> bool {
    let mut which = Command::new("sh");
    which.args(["-c", &format!("command -v {program}")]);
    let found = run(&mut which, TEST_TIMEOUT).status.success();
    if !found {
        skipped(&format!("no {program}"));
    }
    found
}
