//! Checks names and arguments from untrusted sources in a record. The names and arguments must not control the terminal
//! or page on which they are shown, and exports must contain the names unchanged. Secrets in the arguments must not be
//! in the record, unless `TLLMPROF_ARGS=full` requests them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tllmprof_config::printable;
use tllmprof_config::printable::is_hidden;

use crate::common::{self, Output, command, tllmprof};
use crate::ranges::{Program, TEST_TIMEOUT};

/// A name that sets a terminal's title and color, begins a new line, reverses the reading order, and contains HTML
/// markup.
const NAME: &str =
    "\x1b]0;PWNED\x07\x1b[31mRED\nfake: line\u{202e}gpj\u{9b}</script><img src=x onerror=alert(1)>";
const SECRET: &str = "SECRET123";

/// Runs the program `foreign.c` with these further variables. Returns the program, its output and the path of its
/// record.
fn recorded(more: &[(&str, &str)]) -> (Program, Output, PathBuf) {
    let program = Program::new("record/foreign.c");
    let arguments = [
        NAME,
        "--api-key=SECRET123",
        "--hf-token",
        SECRET,
        "https://user:SECRET123@host/",
        "--max-tokens",
        "100",
    ];
    let mut run = program.command("cudaGraphLaunch", "1-3", &arguments, more);
    let folder = run.get_current_dir().unwrap().to_owned();
    let output = common::run(&mut run, TEST_TIMEOUT);
    assert_eq!(output.status.code(), Some(7), "{}", output.err());
    let files = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let record = files.filter(|path| path.extension() == Some(OsStr::new("tllmprof")));
    (program, output, record.last().unwrap_or_default())
}

fn command_output(arguments: &[&OsStr]) -> Output {
    let output = common::run(command(tllmprof()).args(arguments), TEST_TIMEOUT);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {}",
        output.err()
    );
    assert_harmless(&output.err());
    output
}

/// Asserts that the text has no terminal control characters and no forged line.
#[track_caller]
fn assert_harmless(text: &str) {
    assert!(
        !text.contains(|c: char| c != '\n' && is_hidden(c)),
        "{text:?}"
    );
    assert!(!text.lines().any(|line| line.starts_with("fake")), "{text}");
}

fn rights(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_name_does_nothing_wherever_it_is_shown_and_is_exported_as_it_is() {
    if !tllmprof().exists() {
        return common::skipped("the command is not built: cargo build --release --workspace");
    }
    let (_program, output, record) = recorded(&[]);
    assert_harmless(&output.err());
    let record = record.as_os_str();
    let text = |words: &[&str], more: &[&OsStr]| {
        let words: Vec<_> = words
            .iter()
            .map(OsStr::new)
            .chain(more.iter().copied())
            .collect();
        command_output(&words).out()
    };
    let report = text(&["report"], &[record]);
    assert_harmless(&report);
    assert!(report.contains("\\u{1b}]0;PWNED"), "{report}");
    assert_harmless(&text(&["compare"], &[record, record]));

    let json = text(&["report", "--json"], &[record]);
    assert_harmless(&json);
    let json: Value = serde_json::from_str(&json).unwrap();
    let process = &json["processes"][0];
    assert_eq!(process["ranges"][0]["name"], NAME);
    assert!(process["command"].as_str().unwrap().contains(NAME));

    let beside = |name: &str| Path::new(record).with_file_name(name);
    let (page, chrome) = (beside("page.html"), beside("chrome.json"));
    for made in [&page, &chrome] {
        fs::write(made, "older").unwrap();
        fs::set_permissions(made, fs::Permissions::from_mode(0o644)).unwrap();
    }
    text(
        &["report", "--force", "--html"],
        &[page.as_os_str(), record],
    );
    let html = fs::read_to_string(&page).unwrap();
    assert_harmless(&html);
    assert!(!html.contains("<img"), "markup stays text");
    let shown = serde_json::to_string(&printable(NAME)).unwrap();
    assert!(html.contains(&shown.replace('<', "\\u003c")));
    text(
        &["export", "--to", "chrome", "--force", "-o"],
        &[chrome.as_os_str(), record],
    );
    let trace: Value = serde_json::from_slice(&fs::read(&chrome).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["name"] == NAME));
    let perfetto = beside("trace.pftrace");
    text(
        &["export", "--to", "perfetto", "-o"],
        &[perfetto.as_os_str(), record],
    );
    let bytes = fs::read(&perfetto).unwrap();
    assert!(
        bytes
            .windows(NAME.len())
            .any(|part| part == NAME.as_bytes())
    );
    for made in [Path::new(record), &page, &chrome, &perfetto] {
        assert_eq!(rights(made), 0o600, "{}", made.display());
        let bytes = fs::read(made).unwrap();
        let secret = bytes
            .windows(SECRET.len())
            .any(|part| part == SECRET.as_bytes());
        assert!(!secret, "{}", made.display());
    }
}

#[test]
fn secrets_are_in_no_record_unless_they_are_asked_for() {
    let command = |more: &[(&str, &str)]| {
        let (program, _, _) = recorded(more);
        program.records()[0]
            .info(tllmprof_record::Info::CommandLine)
            .concat()
    };
    let masked = " --api-key=*** --hf-token *** https://user:***@host/ --max-tokens 100";
    let all =
        " --api-key=SECRET123 --hf-token SECRET123 https://user:SECRET123@host/ --max-tokens 100";
    for (more, wanted) in [
        (&[][..], masked),
        (&[("TLLMPROF_ARGS", "masked")], masked),
        (&[("TLLMPROF_ARGS", "full")], all),
    ] {
        let command = command(more);
        assert!(command.ends_with(&format!("{NAME}{wanted}")), "{command:?}");
    }
}

#[test]
fn a_path_of_anybodys_is_said_in_one_line() {
    let (_program, output, _) = recorded(&[("TLLMPROF_TRACE", "/none/%q{X}"), ("X", NAME)]);
    let said = output.err();
    assert_harmless(&said);
    assert!(
        said.lines().all(|line| line.starts_with("tllmprof: ")),
        "{said}"
    );
    assert!(said.contains("no record at /none/_]0;PWNED"), "{said}");
    // The values of both variables are invalid. The value of `TLLMPROF_TRACE` has terminal control characters, which
    // no message may contain.
    let (_program, output, _) = recorded(&[
        ("TLLMPROF_TRACE", "%q\x1b]0;PWNED\x07"),
        ("TLLMPROF_KERNELS", ""),
    ]);
    let said = output.err();
    assert_harmless(&said);
    assert_eq!(said.lines().count(), 1, "{said}");
}
