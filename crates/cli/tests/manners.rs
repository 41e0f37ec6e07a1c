//! What all verbs do alike: examples, colour, quiet and verbose, existing files, spelling, what pipes get.

mod common;
#[path = "../../report/tests/common/server.rs"]
mod server;

use std::fs;
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
    for default in [
        "[default: steady]",
        "[default: auto]",
        "[default: info]",
        "[default: masked]",
    ] {
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
    let bad = finish(&mut report(&scratch, &["--color", "red"]));
    assert_eq!(bad.code(), Some(2), "{bad:?}");
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
    // JSON is UTF-8 wherever it is read.
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
