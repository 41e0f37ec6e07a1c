//! Tests of behaviour that all subcommands share: examples in the help, existing files, colour, the spelling of units,
//! `--quiet` and `--verbose`, messages about wrong command lines, and output to pipes.

mod common;
#[path = "../../report/tests/common/server.rs"]
mod server;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use common::{Ended, Scratch, finish, on_terminal, plain};
use server::Server;

fn tllmprof(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    command
        .args(arguments)
        .current_dir(scratch.path(""))
        .env("TERM", "xterm");
    command
}

fn record(scratch: &Scratch) {
    let mut file = fs::File::create(scratch.path("a.tllmprof")).unwrap();
    Server::rank(0).record().0.write_to(&mut file).unwrap();
}

#[test]
fn help_of_run_starts_with_three_examples_and_has_defaults() {
    let scratch = Scratch::new();
    let ended = finish(&mut tllmprof(&scratch, &["run", "--help"]));
    let mut lines = ended.stdout.lines();
    assert_eq!(lines.next(), Some("Examples:"), "{}", ended.stdout);
    for line in lines.by_ref().take(3) {
        assert!(
            line.starts_with("  tllmprof run ") && line.len() <= 80,
            "{line}"
        );
    }
    assert_eq!(lines.next(), Some(""));
    for default in ["[default: auto]", "[default: info]", "[default: masked]"] {
        assert!(ended.stdout.contains(default), "{default}");
    }
}

#[test]
fn an_existing_file_is_replaced_only_by_force() {
    let scratch = Scratch::new();
    record(&scratch);
    for (verb, out) in [
        (
            &["report", "--html", "out.html", "a.tllmprof"][..],
            "out.html",
        ),
        (
            &["export", "--to", "chrome", "-o", "out.json", "a.tllmprof"],
            "out.json",
        ),
    ] {
        scratch.write(out, "mine");
        let refused = finish(&mut tllmprof(&scratch, verb));
        assert_eq!(refused.code(), Some(1), "{refused:?}");
        assert_eq!(
            refused.stderr,
            format!("tllmprof: {out}: it exists already (--force replaces it)\n")
        );
        assert_eq!(fs::read_to_string(scratch.path(out)).unwrap(), "mine");
        let forced = finish(tllmprof(&scratch, verb).arg("--force"));
        assert_eq!(forced.code(), Some(0), "{forced:?}");
        assert_ne!(fs::read_to_string(scratch.path(out)).unwrap(), "mine");
    }
}

fn report(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = tllmprof(scratch, &["report", "a.tllmprof"]);
    command.args(arguments).env("LC_ALL", "C.UTF-8");
    command
}

#[test]
fn colour_is_for_terminals_unless_it_is_asked_for() {
    let scratch = Scratch::new();
    record(&scratch);
    let has = |ended: Ended| ended.stdout.contains("\x1b[1m");
    assert!(!has(finish(&mut report(&scratch, &[]))));
    assert!(has(finish(&mut report(&scratch, &["--color", "always"]))));
    assert!(has(on_terminal(&mut report(&scratch, &[]))));
    assert!(!has(on_terminal(&mut report(&scratch, &["--color=never"]))));
    assert!(!has(on_terminal(
        report(&scratch, &[]).env("NO_COLOR", "1")
    )));
    assert!(!has(on_terminal(report(&scratch, &[]).env("TERM", "dumb"))));
}

#[test]
fn a_pipe_gets_whole_names_and_a_terminal_80_columns() {
    let scratch = Scratch::new();
    record(&scratch);
    let shown = on_terminal(&mut report(&scratch, &["--color", "never"])).stdout;
    assert!(
        shown
            .lines()
            .all(|line| line.trim_end().chars().count() <= 80),
        "{shown}"
    );
    let cut = shown
        .lines()
        .filter(|line| line.contains('…') && !line.ends_with(", …"));
    let piped = finish(&mut report(&scratch, &[])).stdout;
    for line in cut {
        let (kept, _) = line.split_once('…').unwrap();
        let kept = kept.trim_start();
        assert!(
            piped.contains(kept) && !piped.contains(&format!("{kept}…")),
            "{line}"
        );
    }
}

#[test]
fn units_have_one_spelling_for_a_locale() {
    let scratch = Scratch::new();
    record(&scratch);
    let of = |locale: &str| {
        let ended = finish(report(&scratch, &[]).env("LC_ALL", locale));
        (
            ended.stdout.contains(" µs"),
            ended.stdout.contains(" us"),
            ended.stdout.is_ascii(),
        )
    };
    assert_eq!(of("C.UTF-8"), (true, false, false));
    assert_eq!(of("C"), (false, true, true));
    // JSON output is always UTF-8, so `µs` is not replaced by `us` in JSON.
    let json = finish(report(&scratch, &["--json"]).env("LC_ALL", "C")).stdout;
    assert!(!json.contains(" us "));
}

#[test]
fn quiet_leaves_notes_out_and_verbose_says_more() {
    let scratch = Scratch::new();
    record(&scratch);
    let page = |more: &[&str]| {
        let mut command = tllmprof(
            &scratch,
            &["report", "--html", "out.html", "--force", "a.tllmprof"],
        );
        finish(command.args(more)).stderr
    };
    assert_eq!(page(&[]), "tllmprof: wrote out.html\n");
    assert_eq!(page(&["-q"]), "");
    assert_eq!(
        page(&["-v"]),
        "tllmprof: reads a.tllmprof\ntllmprof: wrote out.html\n"
    );
    let both = finish(&mut tllmprof(
        &scratch,
        &["report", "-q", "-v", "a.tllmprof"],
    ));
    assert_eq!(both.code(), Some(2), "{both:?}");
    let error = finish(&mut tllmprof(&scratch, &["-q", "report", "absent"]));
    assert_eq!(error.stderr, "tllmprof: absent: there is no such file\n");
}

#[test]
fn quiet_and_verbose_set_the_librarys_log_level() {
    let scratch = Scratch::new();
    let level = |options: &[&str]| {
        let mut command = scratch.tllmprof();
        command.args(options);
        command.args(["--no-trace", "--", "sh", "-c", "echo $TLLMPROF_LOG"]);
        finish(&mut command).stdout
    };
    assert_eq!(level(&["run"]), "\n");
    assert_eq!(level(&["-q", "run"]), "warn\n");
    assert_eq!(level(&["run", "-v"]), "debug\n");
    assert_eq!(level(&["run", "-v", "--log", "error"]), "error\n");
    let mut own = scratch.tllmprof();
    own.args(["run", "--no-trace", "sh", "-c", "echo $0 $1", "-q", "-v"]);
    assert_eq!(
        finish(&mut own).stdout,
        "-q -v\n",
        "the program's own options"
    );
}

#[test]
fn what_is_wrong_with_a_command_line_is_one_line() {
    let scratch = Scratch::new();
    for (line, why) in [
        (
            "--bogus",
            "--bogus: tllmprof has no such option (tllmprof --help lists the options)",
        ),
        (
            "run --windw 5 -- ls",
            "--windw: tllmprof run has no such option (did you mean --window?)",
        ),
        (
            "--window 5 run ls",
            "--window: tllmprof has no such option (did you mean run --window?)",
        ),
        (
            "detach -5",
            "-5: tllmprof detach has no such option (tllmprof detach --help lists the options)",
        ),
        (
            "repot a.tllmprof",
            "repot: there is no such command (did you mean export or report?)",
        ),
        (
            "a.tllmprof",
            "a.tllmprof: there is no such command (tllmprof --help lists the commands)",
        ),
        (
            "run",
            "run: COMMAND is missing (wanted: tllmprof run <COMMAND>...)",
        ),
        (
            "export",
            "export: --to and --output are missing (wanted: tllmprof export --to <FORMAT> --output <OUT> [FILE]...)",
        ),
        (
            "compare a b c",
            "c: one argument too many, or -- is missing (wanted: BASE OTHER, or BASE... -- OTHER...)",
        ),
        (
            "capture --steps",
            "--steps: its value is missing (wanted: --steps <N>)",
        ),
        (
            "capture --steps 0",
            "--steps \"0\": wanted: a whole number, at least 1",
        ),
        ("attach x", "PID \"x\": wanted: the number of a process"),
        ("detach x", "PID \"x\": wanted: the number of a process"),
        (
            "report --color red",
            "--color \"red\": wanted: auto, always, never",
        ),
        (
            "completions tcsh",
            "SHELL \"tcsh\": wanted: bash, elvish, fish, powershell, zsh; did you mean zsh?",
        ),
        ("report --json=5", "--json \"5\": the option takes no value"),
        ("report --json --json", "--json is given twice"),
        ("report -q -v", "--quiet: it cannot be used with --verbose"),
        (
            "run --trace x --no-trace ls",
            "--trace: it cannot be used with --no-trace",
        ),
        (
            "report --schema a",
            "--schema: it cannot be used with other arguments",
        ),
        (
            "--\u{1b}[31m\n",
            "--\\u{1b}[31m\\n: tllmprof has no such option (tllmprof --help lists the options)",
        ),
    ] {
        let words: Vec<_> = line.split(' ').collect();
        let ended = finish(&mut tllmprof(&scratch, &words));
        assert_eq!((ended.code(), &*ended.stdout), (Some(2), ""), "{line}");
        assert_eq!(ended.stderr, format!("tllmprof: {why}\n"), "{line}");
    }
    let bytes = std::ffi::OsStr::from_bytes(b"\xff");
    let ended = finish(tllmprof(&scratch, &["attach"]).arg(bytes));
    let why = "tllmprof: \"\\xff\": it is not UTF-8 (wanted: plain text)\n";
    assert_eq!((ended.code(), &*ended.stderr), (Some(2), why));
}

#[test]
fn attach_names_the_option_that_was_typed() {
    let scratch = Scratch::new();
    for (option, value, why) in [
        ("--step", "foo", "\"foo\" is not a call that is counted ("),
        ("--stacks", "x", "\"x\" is not a number ("),
        ("--trace", "a/%z", "%z means nothing ("),
    ] {
        let ended = finish(tllmprof(&scratch, &["attach", "1"]).arg(format!("{option}={value}")));
        assert_eq!(ended.code(), Some(2), "{ended:?}");
        let begins = format!("tllmprof: {option} \"{value}\": {why}wanted: ");
        assert!(ended.stderr.starts_with(&begins), "{ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    }
}

#[test]
fn a_verb_without_standard_output_fails() {
    let scratch = Scratch::new();
    record(&scratch);
    scratch.compile("program", "int main(void) { return 0; }", &[]);
    for line in [
        "report a.tllmprof",
        "report --json a.tllmprof",
        "report --schema",
        "report --html - a.tllmprof",
        "compare a.tllmprof a.tllmprof",
        "export --to chrome -o - a.tllmprof",
        "symbols program main",
        "doctor -- ./program",
        "env",
        "ps --json",
        "top -n 1",
        "mcp",
        "completions bash",
        "--lib",
        "--help",
        "--version",
    ] {
        let mut shell = plain("sh".as_ref());
        let library = scratch.library();
        shell
            .args([
                "-c",
                &format!("exec \"$0\" {line} >&-"),
                env!("CARGO_BIN_EXE_tllmprof"),
            ])
            .current_dir(scratch.path(""))
            .env("TLLMPROF_LIB", library);
        let ended = finish(&mut shell);
        assert_eq!(ended.code(), Some(1), "{line}: {ended:?}");
    }
}

#[test]
fn a_limit_of_files_leaves_no_part() {
    let scratch = Scratch::new();
    record(&scratch);
    for line in [
        "report --html out a.tllmprof",
        "export --to chrome -o out a.tllmprof",
    ] {
        let mut shell = plain("sh".as_ref());
        // `ulimit -f 1` limits the size of files to one block of 512 bytes.
        shell
            .args([
                "-c",
                &format!("ulimit -f 1; exec \"$0\" {line}"),
                env!("CARGO_BIN_EXE_tllmprof"),
            ])
            .current_dir(scratch.path(""));
        let ended = finish(&mut shell);
        assert_eq!(ended.code(), Some(1), "{line}: {ended:?}");
        assert_eq!(ended.stderr, "tllmprof: out: File too large\n", "{line}");
        let left = fs::read_dir(scratch.path("")).unwrap().flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["a.tllmprof"], "{line}");
    }
}

#[test]
fn a_page_may_go_to_standard_output() {
    let scratch = Scratch::new();
    record(&scratch);
    let ended = finish(&mut report(&scratch, &["--html", "-"]));
    assert_eq!(
        (ended.code(), ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
    assert!(
        ended.stdout.starts_with("<!doctype html>"),
        "{}",
        &ended.stdout[..100]
    );
    assert!(!scratch.path("-").exists());
}
