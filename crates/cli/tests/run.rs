//! Tests of `tllmprof run`: the environment that the program gets, and the result of the command.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use common::{Scratch, finish, plain};

#[test]
fn the_program_has_library_and_variables() {
    let scratch = Scratch::new();
    let mut run = scratch.tllmprof();
    run.args([
        "run",
        "--window",
        "2-3,7",
        "--step",
        "cudaGraphLaunch/4",
        "--warmup",
        "3",
    ])
    .args([
        "--ranks",
        "0,2-3",
        "--no-drain",
        "--no-nvtx",
        "--log",
        "debug",
        "--no-trace",
    ])
    .args(["--", "sh", "-c", "env"])
    .env("SAY_LOADED", "1");
    let ended = finish(&mut run);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    // `sh` and `env` each print `loaded`, because the library is preloaded into both, but not into `tllmprof`.
    assert_eq!(ended.stderr, "loaded\nloaded\n");
    for line in [
        "TLLMPROF_START_STOP=2-3,7",
        "TLLMPROF_STEP=cudaGraphLaunch/4",
        "TLLMPROF_WARMUP=3",
        "TLLMPROF_RANKS=0,2-3",
        "TLLMPROF_DRAIN=0",
        "TLLMPROF_NVTX=0",
        "TLLMPROF_LOG=debug",
        "TLLMPROF_TRACE=",
        &format!("LD_PRELOAD={}", scratch.path("libtllmprof.so").display()),
    ] {
        assert!(
            ended.stdout.lines().any(|l| l == line),
            "no {line} in {}",
            ended.stdout
        );
    }
}

#[test]
fn without_a_window_it_takes_steady_iterations() {
    let scratch = Scratch::new();
    let windows = |arguments: &[&str], variable: Option<&str>| {
        let mut run = scratch.tllmprof();
        run.arg("run").args(arguments);
        run.args([
            "sh",
            "-c",
            "echo ${TLLMPROF_START_STOP-unset} $TLLMPROF_STACKS",
        ]);
        if let Some(windows) = variable {
            run.env("TLLM_PROFILE_START_STOP", windows);
        }
        finish(&mut run).stdout.trim_end().to_owned()
    };
    assert_eq!(windows(&[], None), "auto auto");
    assert_eq!(windows(&[], Some("")), "auto auto");
    assert_eq!(windows(&["--stacks"], None), "auto 1");
    for light in ["--light", "--no-trace"] {
        assert_eq!(windows(&[light], None), "steady");
    }
    assert_eq!(windows(&[], Some("5-9")), "unset", "a variable has them");
    for window in ["none", "steady:7", "5-9"] {
        assert_eq!(windows(&["--window", window], Some("3")), window);
    }
    let mut env = scratch.tllmprof();
    let ended = finish(env.arg("env"));
    let line = "export TLLMPROF_START_STOP='auto'";
    assert!(ended.stdout.lines().any(|l| l == line), "{ended:?}");
}

#[test]
fn it_is_loaded_before_what_was_preloaded() {
    let scratch = Scratch::new();
    let other = scratch.compile("other.so", "int other;", &["-shared", "-fPIC"]);
    let mut run = scratch.tllmprof();
    run.args(["run", "sh", "-c", "echo $LD_PRELOAD"])
        .env("LD_PRELOAD", &other);
    let library = scratch.path("libtllmprof.so");
    assert_eq!(
        finish(&mut run).stdout,
        format!("{}:{}\n", library.display(), other.display())
    );
}

#[test]
fn a_relative_library_is_made_absolute() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let mut run = scratch.tllmprof();
    run.args(["run", "sh", "-c", "cd / && echo $LD_PRELOAD"])
        .env("TLLMPROF_LIB", "./libtllmprof.so")
        .current_dir(library.parent().unwrap());
    assert_eq!(finish(&mut run).stdout, format!("{}\n", library.display()));
}

#[test]
fn status_and_signal_are_the_programs() {
    let scratch = Scratch::new();
    let ended = finish(
        scratch
            .tllmprof()
            .args(["run", "--", "sh", "-c", "exit 37"]),
    );
    assert_eq!(ended.code(), Some(37));
    let ended = finish(
        scratch
            .tllmprof()
            .args(["run", "--", "sh", "-c", "kill -TERM $$"]),
    );
    assert_eq!(ended.status.signal(), Some(15));
}

#[test]
fn a_program_that_is_recorded_gets_what_is_sent_to_the_command() {
    let scratch = Scratch::new();
    let mut run = scratch.tllmprof();
    let script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    run.args(["run", "--log", "warn", "--", "sh", "-c", script])
        .stdout(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    // SAFETY: the child has not been waited for, so no other process can have its process id.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
    assert_eq!(lines.next().unwrap().unwrap(), "got");
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn a_program_that_is_recorded_goes_with_the_command() {
    let scratch = Scratch::new();
    let mut run = scratch.tllmprof();
    run.args(["run", "--", "sh", "-c", "echo $$; exec sleep 60"])
        .stdout(Stdio::piped());
    let mut child = run.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().parse::<i32>().is_ok());
    child.kill().unwrap();
    child.wait().unwrap();
    // Once the program has ended, no process can write to this pipe any more, so no further line follows.
    assert!(lines.next().is_none());
}

#[test]
fn the_program_takes_the_commands_place() {
    let scratch = Scratch::new();
    let parent = "\"$0\" run --no-trace -- sh -c 'echo $$' & wait; echo $!";
    let mut run = scratch.tllmprof();
    let tllmprof = run.get_program().to_owned();
    let mut sh = plain("/bin/sh".as_ref());
    sh.arg("-c").arg(parent).arg(tllmprof);
    sh.env(
        "TLLMPROF_LIB",
        run.env("X", "")
            .get_envs()
            .find(|e| e.0 == "TLLMPROF_LIB")
            .unwrap()
            .1
            .unwrap(),
    );
    let ended = finish(&mut sh);
    let pids: Vec<_> = ended.stdout.lines().collect();
    assert!(pids.len() == 2 && pids[0] == pids[1], "{ended:?}");
}

#[test]
fn the_programs_own_options_are_its_own() {
    let scratch = Scratch::new();
    for command in [
        &["--", "echo", "--window", "9-5", "--nsys"][..],
        &["echo", "--window", "9-5", "--nsys"],
    ] {
        let ended = finish(scratch.tllmprof().arg("run").args(command));
        assert_eq!(ended.stdout, "--window 9-5 --nsys\n");
    }
}

/// Each entry: an option, a value that is wrong for this option, and a text that the error message must contain.
const BAD: &[(&str, &str, &str)] = &[
    (
        "--window",
        "9-5",
        "--window \"9-5\": \"9-5\" ends before it starts",
    ),
    (
        "--window",
        ",",
        "--window \",\": an item of the list is empty",
    ),
    ("--step", "cudaGraphLunch", "cudaGraphLaunch is"),
    (
        "--step",
        "cudaGraphLaunch/0",
        "--step \"cudaGraphLaunch/0\": ",
    ),
    ("--step", "py:step", "--step \"py:step\": \"step\" has no"),
    ("--warmup", "-1", "--warmup \"-1\": "),
    ("--ranks", "x", "--ranks \"x\": "),
    ("--log", "loud", "--log \"loud\": "),
    ("--trace", "", "--trace \"\": an empty path"),
    (
        "--trace",
        "/usr/",
        "--trace /usr/: it is a folder (wanted: a file's name)",
    ),
    (
        "--trace",
        "/no/such/x",
        "--trace /no/such/x: there is no folder /no/such",
    ),
];

/// Each entry: a command line with a likely typing mistake, the exit status, and the beginning of the error message.
const NEARLY: &[(&[&str], u8, &str)] = &[
    (
        &["--window", "-5", "--", "echo", "started"],
        2,
        "--window \"-5\": \"-5\" has no start: numbers start at 0",
    ),
    (
        &["--ranks", "-1", "--", "echo", "started"],
        2,
        "--ranks \"-1\": \"-1\" has no start: numbers start at 0 (wanted: a comma list of ranks such as 0,2-3, or all)",
    ),
    (
        &["--kernels", "5", "--", "echo", "started"],
        127,
        "5: there is no such program (did you mean --kernels=5?)",
    ),
    (
        &["--perfect-router", "window", "echo", "started"],
        127,
        "window: there is no such program (did you mean --perfect-router=window?)",
    ),
    (
        &["--kernels", "--no-trace", "echo", "started"],
        2,
        "--no-trace: kernels are taken into the record",
    ),
];

#[test]
fn what_was_meant_is_named() {
    let scratch = Scratch::new();
    for (arguments, status, message) in NEARLY {
        let ended = finish(scratch.tllmprof().arg("run").args(*arguments));
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (Some((*status).into()), ""),
            "{ended:?}"
        );
        let start = format!("tllmprof: {message}");
        assert!(ended.stderr.starts_with(&start), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}

#[test]
fn a_bad_option_is_reported_before_the_program_starts() {
    let scratch = Scratch::new();
    for (option, value, message) in BAD {
        let mut run = scratch.tllmprof();
        run.arg("run")
            .arg(format!("{option}={value}"))
            .args(["--", "sh", "-c", "echo started"]);
        let ended = finish(&mut run);
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (Some(2), ""),
            "{ended:?}"
        );
        assert!(ended.stderr.starts_with("tllmprof: "), "{ended:?}");
        assert!(ended.stderr.contains(message), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}

#[test]
fn a_bad_variable_is_reported_before_the_program_starts() {
    let scratch = Scratch::new();
    for (name, value) in [
        ("TLLM_PROFILE_START_STOP", "5-9-12"),
        ("TLLM_GPTM_PROFILE_START_STOP", "-3"),
        ("TLLMPROF_NVTX_NAME", "step"),
        ("TLLMPROF_GIL", "maybe"),
    ] {
        let mut run = scratch.tllmprof();
        let ended = finish(run.args(["run", "echo", "started"]).env(name, value));
        assert_eq!(
            (ended.code(), ended.stdout.as_str()),
            (Some(2), ""),
            "{ended:?}"
        );
        let start = format!("tllmprof: {name}=\"{value}\": ");
        assert!(ended.stderr.starts_with(&start), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}

#[test]
fn an_option_goes_before_the_variable() {
    let scratch = Scratch::new();
    let mut run = scratch.tllmprof();
    run.args([
        "run",
        "--window",
        "5",
        "sh",
        "-c",
        "echo $TLLMPROF_START_STOP",
    ]);
    run.env("TLLMPROF_START_STOP", "wrong")
        .env("TLLM_PROFILE_START_STOP", "7");
    assert_eq!(finish(&mut run).stdout, "5\n");
}

#[test]
fn a_program_that_cannot_start() {
    let scratch = Scratch::new();
    let plain_file = scratch.write("plain", "");
    let ended = finish(scratch.tllmprof().args(["run", "no-such-program"]));
    assert_eq!(
        (ended.code(), ended.stderr.lines().count()),
        (Some(127), 1),
        "{ended:?}"
    );
    let ended = finish(scratch.tllmprof().arg("run").arg(&plain_file));
    assert_eq!(
        (ended.code(), ended.stderr.lines().count()),
        (Some(126), 1),
        "{ended:?}"
    );
    let ended = finish(scratch.tllmprof().args(["run", "--"]));
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    let ended = finish(
        scratch
            .tllmprof()
            .args(["run", "--no-such-option", "--", "true"]),
    );
    assert_eq!(ended.code(), Some(2), "{ended:?}");
}

#[test]
fn a_static_program_runs_with_a_warning() {
    let scratch = Scratch::new();
    let program = scratch.compile("still", "int main(void) { return 7; }", &["-static"]);
    let ended = finish(scratch.tllmprof().arg("run").arg(&program));
    assert_eq!(ended.code(), Some(7));
    assert!(ended.stderr.contains("statically linked"), "{ended:?}");
    let ended = finish(
        scratch
            .tllmprof()
            .args(["run", "--log", "off"])
            .arg(&program),
    );
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(7), ""));
}

#[test]
fn the_loader_is_a_program_like_others() {
    let scratch = Scratch::new();
    let mut run = scratch.tllmprof();
    // In this test the program is the dynamic loader itself. Like a static program it requests no loader, but the
    // library can be preloaded into it.
    let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let loader = loader.iter().find(|path| Path::new(path).exists()).unwrap();
    run.args(["run", "--no-trace", "--", loader, "/bin/echo", "started"]);
    let ended = finish(run.env("SAY_LOADED", "1"));
    assert_eq!(
        (ended.stdout.as_str(), ended.stderr.as_str()),
        ("started\n", "loaded\n")
    );
}

#[test]
fn an_ignored_sigpipe_and_closed_descriptors_are_inherited() {
    let scratch = Scratch::new();
    // The command must leave both unchanged: SIGPIPE (bit 13 of the mask of ignored signals) is ignored, and descriptor
    // 2 is closed.
    let look = "grep -c 'SigIgn:.*1[0-9a-f]\\{3\\}$' /proc/self/status; [ -e /proc/self/fd/2 ] || echo closed";
    let script = format!("trap '' PIPE; exec 2>&-; exec \"$0\" run -- sh -c \"{look}\"");
    let command = scratch.tllmprof();
    let mut shell = plain("sh".as_ref());
    shell.args(["-c", &script]).arg(command.get_program());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    let ended = finish(&mut shell);
    assert_eq!(ended.stdout, "1\nclosed\n", "{ended:?}");
}

#[test]
fn the_library_is_found_beside_the_command_and_in_lib() {
    let scratch = Scratch::new();
    let library = scratch.library();
    let command = scratch.copy_of_the_command("prefix/bin/tllmprof");
    fs::create_dir_all(scratch.path("prefix/lib")).unwrap();
    let preloaded = || finish(plain(&command).args(["run", "sh", "-c", "echo $LD_PRELOAD"]));

    let ended = preloaded();
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains(&scratch.path("prefix/lib").display().to_string()),
        "{ended:?}"
    );
    for place in ["prefix/lib/libtllmprof.so", "prefix/bin/libtllmprof.so"] {
        fs::copy(&library, scratch.path(place)).unwrap();
        assert_eq!(
            preloaded().stdout,
            format!("{}\n", scratch.path(place).display())
        );
    }
}

#[test]
fn the_program_starts_without_proc() {
    let scratch = Scratch::new();
    let command = scratch.copy_of_the_command("tllmprof");
    let library = scratch.library();
    let mut unshare = plain("unshare".as_ref());
    unshare.args(["-m", "sh", "-c"]);
    unshare
        .arg("mount -t tmpfs none /proc || exit 9; \"$0\" run -- sh -c 'echo $LD_PRELOAD; exit 5'");
    let ended = finish(unshare.arg(&command).current_dir(scratch.path(".")));
    if ended.code() == Some(9) || ended.stderr.starts_with("unshare:") {
        eprintln!("skipped: no mount namespaces here (they need root)");
        return;
    }
    assert_eq!(ended.code(), Some(5), "{ended:?}");
    assert_eq!(ended.stdout, format!("{}\n", library.display()));
    let said = "tllmprof: /proc is not there: the command is taken to be ";
    assert!(ended.stderr.starts_with(said), "{ended:?}");
}

#[test]
fn a_run_has_an_identifier_and_a_folder_that_its_processes_inherit() {
    let scratch = Scratch::new();
    let script =
        "echo $TLLMPROF_RUN $TLLMPROF_TRACE; cp /dev/null \"$(dirname \"$TLLMPROF_TRACE\")/left\"";
    let run = |more: &[&str]| {
        let mut run = scratch.tllmprof();
        run.current_dir(scratch.path(".")).arg("run").args(more);
        let ended = finish(run.args(["--", "sh", "-c", script]));
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        let (id, trace) = ended.stdout.trim_end().split_once(' ').unwrap();
        let folder = format!("tllmprof-{id}");
        assert!(scratch.path(&folder).join("left").exists(), "{ended:?}");
        let name = format!("/{folder}/tllmprof-%h-%r-%p.tllmprof");
        assert!(trace.ends_with(&name), "{trace}");
        id.to_owned()
    };
    assert_eq!(run(&["--run", "mine.1"]), "mine.1");
    assert_ne!(run(&[]), run(&[]));

    // All tasks of a job belong to one run. If a task starts a second program, the second program belongs to another
    // run.
    let task = |rank: &str, script: &str| {
        let mut run = scratch.tllmprof();
        run.current_dir(scratch.path("."))
            .env("SLURM_JOB_ID", "7")
            .env("SLURM_STEP_ID", "0")
            .env("SLURM_PROCID", rank);
        let ended = finish(run.args(["run", "--", "sh", "-c", script]));
        ended.stdout.split(' ').next().unwrap().trim().to_owned()
    };
    assert_eq!(task("0", script), "slurm-7-0");
    assert_eq!(task("1", script), "slurm-7-0");
    assert_eq!(task("0", script), "slurm-7-0.2");
    assert_eq!(task("0", script), "slurm-7-0.3");
    assert_eq!(task("1", script), "slurm-7-0.2");
    // If no task leaves a file in a run's folder, the folder is removed and the number of the run is used again.
    for _ in 0..2 {
        assert_eq!(task("0", "echo $TLLMPROF_RUN"), "slurm-7-0.4");
    }
    assert!(!scratch.path("tllmprof-slurm-7-0.4").exists());
    // The folder of a run is removed if nothing was written to it.
    let mut nothing = scratch.tllmprof();
    nothing.current_dir(scratch.path("."));
    finish(nothing.args(["run", "--run", "nothing", "--", "true"]));
    assert!(!scratch.path("tllmprof-nothing").exists());

    let mut bad = scratch.tllmprof();
    let ended = finish(bad.args(["run", "--run", "a/b", "--", "true"]));
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended
            .stderr
            .starts_with("tllmprof: --run \"a/b\": \"/\" cannot be in it"),
        "{ended:?}"
    );
}

/// Returns a `tllmprof` command that runs as a user who may not write to its working folder. Also returns that
/// folder.
fn without_rights(scratch: &Scratch) -> (std::process::Command, std::path::PathBuf) {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let folder = scratch.path("read-only");
    fs::create_dir(&folder).unwrap();
    for (path, mode) in [(scratch.path("."), 0o755), (folder.clone(), 0o555)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    // The command is copied, because another user may have no access to the home folder in which it
    // was built.
    let command = scratch.copy_of_the_command("tllmprof");
    let library = scratch.tllmprof();
    let library = library.get_envs().find(|(name, _)| *name == "TLLMPROF_LIB");
    let mut run = plain(&command);
    run.envs(library.and_then(|(name, value)| Some((name, value?))));
    run.current_dir(&folder);
    if fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        run.uid(65534).gid(65534);
    }
    (run, folder)
}

#[test]
fn a_folder_that_may_not_be_written_to_is_named_before_the_start() {
    let scratch = Scratch::new();
    let (mut run, folder) = without_rights(&scratch);
    let ended = finish(run.args(["run", "--", "sh", "-c", "echo runs >&2; exit 5"]));
    assert_eq!(ended.code(), Some(5), "{ended:?}");
    let lines: Vec<_> = ended.stderr.lines().collect();
    let [known, "runs"] = lines[..] else {
        panic!("{ended:?}");
    };
    assert!(
        known.starts_with("tllmprof: no record can be written: the folder tllmprof-"),
        "{known}"
    );
    let why = format!(
        " cannot be created in {}: Permission denied",
        folder.display()
    );
    assert!(known.contains(&why), "{known}");
}

#[test]
fn a_record_that_cannot_be_written_where_it_was_asked_for_is_refused() {
    let scratch = Scratch::new();
    let (mut run, folder) = without_rights(&scratch);
    let ended = finish(run.args([
        "run",
        "--trace",
        "x.tllmprof",
        "--",
        "sh",
        "-c",
        "echo runs",
    ]));
    assert_eq!(
        (ended.code(), ended.stdout.as_str()),
        (Some(2), ""),
        "{ended:?}"
    );
    let line = format!(
        "tllmprof: --trace x.tllmprof: no file can be written to {}: Permission denied",
        folder.display()
    );
    assert!(ended.stderr.starts_with(&line), "{ended:?}");
}
