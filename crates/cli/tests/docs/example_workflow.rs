//! Tests the commands of `examples/gate.yml`, a workflow that compares a change in CI: each option in them exists, and
//! the comparison stores runs in the baseline folder and compares later runs with them.

#[path = "../../../report/tests/common/server.rs"]
mod server;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use server::Server;
use tllmprof_record::{Event, Info, What};

use crate::common::{Ended, Scratch, finish, plain};

fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the commands (`run:`) of the steps in `examples/gate.yml`, in order.
fn commands() -> Vec<String> {
    let text = fs::read_to_string(repo().join("examples/gate.yml")).unwrap();
    let commands = text.lines().filter_map(|line| {
        let line = line.trim_start().trim_start_matches("- ");
        line.strip_prefix("run: ").map(str::to_owned)
    });
    commands.collect()
}

/// Runs a command as CI runs a step of the workflow: in a shell that ends at the first failure.
fn step(command: &str, scratch: &Scratch) -> Ended {
    let folder = Path::new(env!("CARGO_BIN_EXE_tllmprof")).parent().unwrap();
    let path = format!("{}:/usr/bin:/bin", folder.display());
    let mut shell = plain(Path::new("/bin/sh"));
    shell
        .args(["-e", "-c", command])
        .env("PATH", path)
        .env("GITHUB_STEP_SUMMARY", scratch.path("summary"))
        .current_dir(scratch.path(""));
    finish(&mut shell)
}

#[test]
fn each_option_of_the_workflow_exists() {
    let commands = commands();
    assert!(commands.len() >= 5, "{commands:?}");
    for command in commands {
        let words = shell_words::split(&command).unwrap();
        assert_eq!(words[0], "tllmprof", "{command}");
        let mut help = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
        let help = finish(help.args([&words[1], "--help"])).stdout;
        let own = words.iter().take_while(|word| *word != "--");
        for option in own.filter(|word| word.starts_with("--")) {
            let mut lines = help.lines().map(str::trim_start);
            let is_known = lines.any(|line| line.split(' ').next() == Some(option));
            assert!(is_known, "{option} of {command}");
        }
    }
}

#[test]
fn the_comparisons_of_the_workflow_judge_runs() {
    let scratch = Scratch::new();
    let measure = |change: &str| {
        for run in 1..=3 {
            let folder = scratch.path(&format!("tllmprof-new-{run}"));
            fs::create_dir_all(&folder).unwrap();
            // Each record belongs to a separate run, because its boot id, which identifies one start of a machine,
            // differs.
            let (mut builder, truth) = Server::rank(0).record();
            let value = builder.string(1, &format!("{change} {run}")).into();
            let key = Some(Info::Boot);
            builder.push(1, &Event::new(truth[0].start, 0, What::Info { key, value }));
            let mut record = File::create(folder.join("1.tllmprof")).unwrap();
            builder.write_to(&mut record).unwrap();
        }
    };
    measure("main");
    let all = commands();
    let of = |part: &str| {
        let mut all = all.iter();
        all.find(|one| one.contains(part)).unwrap()
    };
    // The first three runs stand for runs of the main branch, which are kept as baselines. Later runs are compared with
    // them.
    let kept = step(of("--keep 15"), &scratch);
    assert_eq!(kept.code(), Some(0), "{}", kept.stderr);
    assert_eq!(fs::read_dir(scratch.path("baselines")).unwrap().count(), 3);
    measure("change");
    let judged = step(of("--keep 0"), &scratch);
    assert_eq!(judged.code(), Some(0), "{}", judged.stderr);
    let judged = fs::read_to_string(scratch.path("compare.xml")).unwrap();
    assert!(
        judged.contains("<testcase") && judged.contains("launches &gt; +1%"),
        "{judged}"
    );
    assert_eq!(fs::read_dir(scratch.path("baselines")).unwrap().count(), 3);
    // If a limit of the comparison is exceeded (here the changed `p50 > -50%`), the step fails.
    let exceeded = step(&of("--keep 0").replace("p50 > +2%", "p50 > -50%"), &scratch);
    assert_eq!(exceeded.code(), Some(1), "{}", exceeded.stderr);
    let brief = step(of("--brief"), &scratch);
    assert_eq!(brief.code(), Some(0), "{}", brief.stderr);
    let summary = fs::read_to_string(scratch.path("summary")).unwrap();
    assert!(summary.contains("what stands out"), "{summary}");
}
