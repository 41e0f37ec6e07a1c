//! Tests of hostile command lines, and of files that cannot be executed. For a hostile command line, the command prints
//! one line that names what the user typed, ends with status 2, and starts no program. Values of options that set
//! variables are tested in the command's unit tests.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;

use common::{Ended, Scratch, finish};

const VERBS: [&str; 16] = [
    "run",
    "env",
    "report",
    "compare",
    "export",
    "ps",
    "capture",
    "stop",
    "attach",
    "detach",
    "top",
    "serve-metrics",
    "mcp",
    "doctor",
    "symbols",
    "demo",
];

fn refused(ended: &Ended, says: &str) {
    assert_eq!(
        (ended.code(), ended.stdout.as_str()),
        (Some(2), ""),
        "{ended:?}"
    );
    assert!(
        ended.stderr.starts_with(&format!("tllmprof: {says}")),
        "no {says:?} in {ended:?}"
    );
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
}

/// Returns the options of a subcommand that take a value. For each option: its name, true if the value has to follow
/// an equals sign, and the name of the value.
fn options(scratch: &Scratch, verb: &str) -> Vec<(String, bool, String)> {
    let help = finish(scratch.tllmprof().args([verb, "--help"])).stdout;
    let lines = help.lines().filter_map(|line| {
        let line = line.trim_start();
        let at = line
            .find("--")
            .filter(|at| line.starts_with('-') && *at <= "-x, ".len())?;
        let (option, value) = line[at..].split_once(['<'])?;
        let has_equals = option.ends_with("[=");
        let name = option.trim_end_matches([' ', '[', '=']).to_owned();
        (!name.contains(' ')).then(|| {
            (
                name,
                has_equals,
                value.split('>').next().unwrap().to_owned(),
            )
        })
    });
    lines.collect()
}

/// Returns the words of a command line that set `option` to `value`: two words, or a single word if the option takes
/// its value after an equals sign.
fn typed(option: &str, has_equals: bool, value: &OsStr) -> Vec<OsString> {
    if !has_equals {
        return vec![option.into(), value.to_owned()];
    }
    let mut word = OsString::from(format!("{option}="));
    word.push(value);
    vec![word]
}

#[test]
fn no_option_of_any_verb_takes_nothing() {
    let scratch = Scratch::new();
    let mut cases = 0;
    for verb in VERBS {
        for (option, has_equals, value) in options(&scratch, verb) {
            if value == "ARGS" {
                continue;
            }
            let mut command = scratch.tllmprof();
            command
                .arg(verb)
                .args(typed(&option, has_equals, OsStr::new("")));
            match verb {
                "run" => drop(command.args(["--", "sh", "-c", "echo started"])),
                "attach" => drop(command.arg("1")),
                _ => {}
            }
            refused(&finish(&mut command), &format!("{option} \"\": an empty "));
            cases += 1;
        }
    }
    assert!(cases > 60, "{cases}");
    refused(
        &finish(scratch.tllmprof().args(["run", "--", ""])),
        "COMMAND \"\": ",
    );
    refused(
        &finish(scratch.tllmprof().args(["report", ""])),
        "FILE \"\": ",
    );
}

#[test]
fn numbers_and_times_of_all_verbs_are_checked() {
    let scratch = Scratch::new();
    let huge = "9".repeat(400);
    let bytes = OsString::from_vec(b"5\xff".to_vec());
    let values: [&OsStr; 5] = [
        "-1".as_ref(),
        "-5s".as_ref(),
        "xyzzy".as_ref(),
        huge.as_ref(),
        &bytes,
    ];
    let mut cases = 0;
    for verb in VERBS
        .into_iter()
        .filter(|verb| !["run", "env"].contains(verb))
    {
        for (option, has_equals, name) in options(&scratch, verb) {
            if !["N", "TIME", "W", "FORMAT"].contains(&name.as_str()) {
                continue;
            }
            for value in values {
                let mut command = scratch.tllmprof();
                command.arg(verb).args(typed(&option, has_equals, value));
                refused(&finish(&mut command), &format!("{option} \""));
                cases += 1;
            }
        }
    }
    assert!(cases > 50, "{cases}");
}

#[test]
fn what_is_refused_starts_nothing() {
    let scratch = Scratch::new();
    let folder = scratch.path("work");
    fs::create_dir(&folder).unwrap();
    let long = "a".repeat(300);
    for (words, says) in [
        (
            &["--window", ""][..],
            "--window \"\": an empty value (wanted: W)",
        ),
        (
            &["--step", ""],
            "--step \"\": an empty value (wanted: RULE)",
        ),
        (&["--when", " "], "--when \" \": an empty value"),
        (&["--run", ""], "--run \"\": an empty value"),
        (&["--torch-trace", ""], "--torch-trace \"\": an empty path"),
        (
            &["--when", "gc>1ms", "--at-most", "0"],
            "--at-most \"0\": no window could open",
        ),
        (
            &["--step", "auto/2"],
            "--step \"auto/2\": auto cannot count every Nth iteration",
        ),
        (&["--where-split"], "--where-split: there is no condition"),
        (
            &["--warmup", "-1"],
            "--warmup \"-1\": \"-1\" is not a number",
        ),
        (&["--trace", "-1"], "--trace \"-1\": it begins with a dash"),
        (
            &["--trace", "-"],
            "--trace \"-\": a record cannot go to standard output",
        ),
        (&["--trace", &long], "--trace aaa"),
        (&["--torch-trace", &long], "--torch-trace aaa"),
        (
            &["--trace", "/proc/none/x"],
            "--trace /proc/none/x: there is no folder",
        ),
        (
            &["--trace", "/proc/%h/none/%p"],
            "--trace /proc/%h/none/%p: there is no folder /proc/",
        ),
    ] {
        let mut run = scratch.tllmprof();
        run.arg("run")
            .args(words)
            .args(["--", "sh", "-c", "echo started"]);
        refused(&finish(run.current_dir(&folder)), says);
    }
    for (name, value, says) in [
        (
            "TLLMPROF_CONTROL",
            "/proc/none/x",
            "TLLMPROF_CONTROL=\"/proc/none/x\": there is no such folder",
        ),
        (
            "TLLMPROF_WHERE_SPLIT",
            "1",
            "TLLMPROF_WHERE_SPLIT=\"1\": there is no condition that a window could be split by (wanted: TLLMPROF_WHERE=EXPR",
        ),
        ("TLLMPROF_TRACE", &long, "TLLMPROF_TRACE aaa"),
    ] {
        let mut run = scratch.tllmprof();
        run.args(["run", "--", "sh", "-c", "echo started"])
            .env(name, value);
        refused(&finish(run.current_dir(&folder)), says);
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn words_in_another_order_or_without_their_others_are_named() {
    let scratch = Scratch::new();
    let program = scratch.compile("program", "int main(void) { return 0; }", &[]);
    let program = program.to_str().unwrap();
    let meant =
        format!("main: there is no such file (did you mean tllmprof symbols {program} main?)");
    for (words, says) in [
        (
            &["--color", "report", "X"][..],
            "--color \"report\": wanted: auto, always, never",
        ),
        (
            &["capture", "--every", "5s"],
            "--every: there is only one capture (wanted: --repeat N as well)",
        ),
        (
            &["capture", "--html", "-"],
            "--html -: the report goes to standard output",
        ),
        (
            &["demo", "--steps", "0"],
            "--steps \"0\": wanted: a whole number, at least 1",
        ),
        (
            &["demo", "--steps", "3"],
            "--steps \"3\": the example ends after iteration 2, before window 5-9",
        ),
        (
            &["report", "--json", "--html", "-", program],
            "--html -: --json goes to standard output",
        ),
        (
            &["env", "--name", "x"],
            "--name: the format has no container or service",
        ),
        (
            &["env", "--format", "compose", "--name", "x", "--image", "i"],
            "--image: the format has no image",
        ),
        (&["symbols", "main", program], &meant),
    ] {
        refused(&finish(scratch.tllmprof().args(words)), says);
    }
}

#[test]
fn no_shell_reads_a_binary_file() {
    let scratch = Scratch::new();
    let program = scratch.compile("program", "int main(void) { return 0; }", &[]);
    let bytes = fs::read(&program).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        scratch.script(name, bytes);
    };
    file("cut", &bytes[..10]);
    file("header", &bytes[..40]);
    file("junk", b"echo \xfe\xf0started\n");
    file("zeros", &[0; 5000]);
    file("lost", b"#!/no/such/interpreter\necho started\n");
    fs::create_dir(scratch.path("folder")).unwrap();
    let neither = "it is neither an executable of this machine nor a script";
    for (name, status, why) in [
        ("./cut", 126, neither),
        ("./header", 126, neither),
        ("./junk", 126, neither),
        ("./zeros", 126, neither),
        (
            "./lost",
            127,
            "the interpreter /no/such/interpreter, which it names, is not there",
        ),
        ("./folder", 126, "it is a folder (wanted: a program)"),
    ] {
        let started = |verb: &str| {
            let mut command = scratch.tllmprof();
            finish(
                command
                    .args([verb, "--", name])
                    .current_dir(scratch.path("")),
            )
        };
        let line = format!("tllmprof: {name}: {why}\n");
        let ended = started("run");
        assert_eq!(
            (ended.code(), &ended.stderr),
            (Some(status), &line),
            "{ended:?}"
        );
        assert_eq!(ended.stdout, "");
        let ended = started("env");
        // The kernel may be able to start further formats of files (binfmt_misc). `run` sees that the kernel refuses
        // the file. `env` does not start the program, so it may accept a file that `run` refuses.
        if status == 127 || ended.code() != Some(0) {
            assert_eq!((ended.code(), &ended.stderr), (Some(2), &line), "{ended:?}");
        }
        let ended = started("doctor");
        assert_eq!(ended.code(), Some(1), "{ended:?}");
        // `doctor` reads more of the file than the kernel does, so only `doctor` finds that the file is damaged.
        let said = if name == "./header" {
            "./header is damaged"
        } else {
            line.trim_start_matches("tllmprof: ")
        };
        assert!(ended.stdout.contains(&format!("NO    {said}")), "{ended:?}");
    }
    // A script needs no `#!` line, and may contain binary data after its first lines.
    file("script", b"\n# \xc3\xa9\necho started; exit\n\0\0\xff");
    let ended = finish(
        scratch
            .tllmprof()
            .args(["run", "--no-summary", "--", "./script"])
            .current_dir(scratch.path("")),
    );
    assert_eq!(ended.stdout, "started\n", "{ended:?}");
}

#[test]
fn env_names_a_record_by_default() {
    let scratch = Scratch::new();
    let folder = scratch.path("100%");
    fs::create_dir(&folder).unwrap();
    let env = |words: &[&str], trace: Option<&str>| {
        let mut env = scratch.tllmprof();
        env.arg("env").args(words).current_dir(&folder);
        if let Some(trace) = trace {
            env.env("TLLMPROF_TRACE", trace);
        }
        finish(&mut env)
    };
    let here = format!("{}%/tllmprof-%h-%r-%p.tllmprof", folder.display());
    for format in ["shell", "mpirun", "slurm", "torchrun", "ray"] {
        let ended = env(&["--format", format], None);
        assert!(ended.stdout.contains(&here), "{ended:?}");
        for (words, trace) in [
            (&["--format", format, "--no-trace"][..], None),
            (&["--format", format], Some("")),
        ] {
            let ended = env(words, trace);
            assert!(
                ended.code() == Some(0) && !ended.stdout.contains(".tllmprof"),
                "{ended:?}"
            );
        }
    }
    let docker = env(&["--format", "docker"], None);
    let mounted = format!("-v {}/tllmprof-records:/tllmprof-records", folder.display());
    assert!(docker.stdout.contains(&mounted), "{docker:?}");
    assert!(
        docker
            .stdout
            .contains("TLLMPROF_TRACE=/tllmprof-records/%h-%r-%p.tllmprof"),
        "{docker:?}"
    );
    assert!(docker.stderr.contains("mkdir -m 1777"), "{docker:?}");
    let own = env(&["--format", "docker", "--trace", "/out/%p"], None);
    assert!(
        !own.stdout.contains("tllmprof-records") && own.stderr.is_empty(),
        "{own:?}"
    );
}

/// No process can create a file in `/proc`, although root may write to its folders. The command must report this before
/// it starts the program.
#[test]
fn a_folder_that_takes_no_files_is_refused_before_the_start() {
    let scratch = Scratch::new();
    let mut run = scratch.tllmprof();
    run.args(["run", "--trace", "/proc/x.tllmprof", "--"]);
    run.args(["sh", "-c", "echo started"]);
    refused(
        &finish(&mut run),
        "--trace /proc/x.tllmprof: no file can be written to /proc",
    );
    let folder = scratch.path("folder");
    fs::create_dir(&folder).unwrap();
    let mut run = scratch.tllmprof();
    run.args(["run", "--no-summary", "--trace", "folder/x.tllmprof", "--"]);
    run.args(["sh", "-c", "ls -A folder; echo started"]);
    let ended = finish(run.current_dir(scratch.path("")));
    assert_eq!(ended.stdout, "started\n", "the check leaves nothing");
}

/// If the command cannot write the help that the user requested, it must end with a failure, as it does if it cannot
/// write a result.
#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let scratch = Scratch::new();
    for words in [&["--help"][..], &["--version"], &["report", "--help"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut tllmprof = scratch.tllmprof();
        let ended = tllmprof.args(words).stdout(full).output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(
            (ended.status.code(), said.as_str()),
            (Some(1), "tllmprof: No space left on device\n"),
            "{words:?}"
        );
    }
}
