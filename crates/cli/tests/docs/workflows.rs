//! Tests of the public CI's workflows and of the issue forms: their YAML, the scripts that they call, and the
//! permissions of their jobs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::skipped::skipped;
use super::words::root;

/// A Python program that reads the YAML files in its arguments, and prints a list of their contents as JSON.
const YAML_TO_JSON: &str = "\
import json, sys, yaml
json.dump([yaml.safe_load(open(name)) for name in sys.argv[1:]], sys.stdout)";

/// Returns the YAML files of a folder with their contents. Returns `None`, so that the test is skipped, if Python has
/// no package `yaml`.
fn parsed(folder: &str) -> Option<Vec<(PathBuf, Value)>> {
    let python = |code: &str, files: &[PathBuf]| {
        let mut command = Command::new("python3");
        command.args(["-c", code]).args(files).output()
    };
    if !python("import yaml", &[]).is_ok_and(|found| found.status.success()) {
        skipped("python3 has no package yaml");
        return None;
    }
    let entries = fs::read_dir(root().join(folder)).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = python(YAML_TO_JSON, &files).unwrap();
    let errors = String::from_utf8_lossy(&read.stderr);
    assert!(read.status.success(), "{folder}: {errors}");
    let contents: Vec<Value> = serde_json::from_slice(&read.stdout).unwrap();
    Some(files.into_iter().zip(contents).collect())
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], |items| items)
}

/// Returns the jobs of all workflows. Each name consists of the workflow's file and the job's name.
fn jobs(workflows: &[(PathBuf, Value)]) -> Vec<(String, &Value)> {
    let each = workflows.iter().flat_map(|(file, workflow)| {
        let jobs = workflow["jobs"].as_object().unwrap();
        jobs.iter()
            .map(move |(name, job)| (format!("{}: {name}", file.display()), job))
    });
    each.collect()
}

#[test]
fn workflows_call_scripts_that_exist() {
    let Some(workflows) = parsed(".github/workflows") else {
        return;
    };
    let mut called = Vec::new();
    for (job, content) in jobs(&workflows) {
        for step in list(&content["steps"]) {
            let run = step["run"].as_str().unwrap_or_default();
            for word in run.split_whitespace() {
                if !word.starts_with("scripts/") && !word.starts_with(".ci/") {
                    continue;
                }
                let script = fs::metadata(root().join(word));
                let is_program = script.is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
                assert!(is_program, "{job}: {word} is not a program");
                called.push(word.to_owned());
            }
        }
    }
    for wanted in [
        ".ci/run",
        "scripts/test",
        "scripts/package",
        "scripts/test-packages",
        "scripts/release",
    ] {
        assert!(
            called.iter().any(|word| word == wanted),
            "no job runs {wanted}"
        );
    }
}

/// Only a job that publishes may have permissions of its own. Such a job must not check out the repository, so it runs
/// no code of the repository. Every action is pinned to a commit.
#[test]
fn jobs_have_few_rights_and_pinned_actions() {
    let Some(workflows) = parsed(".github/workflows") else {
        return;
    };
    for (file, workflow) in &workflows {
        let read_only = serde_json::json!({"contents": "read"});
        assert_eq!(workflow["permissions"], read_only, "{}", file.display());
    }
    for (job, content) in jobs(&workflows) {
        let steps = list(&content["steps"]);
        assert!(!steps.is_empty(), "{job} has no steps");
        let actions: Vec<_> = steps
            .iter()
            .filter_map(|step| step["uses"].as_str())
            .collect();
        for action in &actions {
            let commit = action.split_once('@').unwrap_or_default().1;
            let is_pinned = commit.len() == 40 && commit.chars().all(|c| c.is_ascii_hexdigit());
            assert!(is_pinned, "{job}: {action} has no commit");
        }
        let publishes = content["permissions"].is_object();
        let checks_out = actions
            .iter()
            .any(|one| one.starts_with("actions/checkout@"));
        assert!(
            publishes != checks_out,
            "{job} publishes and checks the repository out"
        );
        assert_eq!(publishes, content["environment"].is_string(), "{job}");
    }
}

#[test]
fn forms_ask_for_what_an_answer_needs() {
    let Some(forms) = parsed(".github/ISSUE_TEMPLATE") else {
        return;
    };
    assert_eq!(forms.len(), 3);
    for (file, form) in &forms {
        let file = file.display();
        assert!(
            form["name"].is_string() && form["description"].is_string(),
            "{file}"
        );
        let fields = list(&form["body"]);
        let mut ids: Vec<_> = fields
            .iter()
            .filter_map(|field| field["id"].as_str())
            .collect();
        assert!(
            ids.len() == fields.len() && ids.len() > 2,
            "{file}: {ids:?}"
        );
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), fields.len(), "{file}: an identifier twice");
        for field in fields {
            let kind = field["type"].as_str().unwrap_or_default();
            assert!(
                ["textarea", "input", "dropdown"].contains(&kind),
                "{file}: {field}"
            );
            assert!(field["attributes"]["label"].is_string(), "{file}: {field}");
            let has_options = !list(&field["attributes"]["options"]).is_empty();
            assert_eq!(kind == "dropdown", has_options, "{file}: {field}");
        }
        if file.to_string().ends_with("bug.yml") {
            let text = form.to_string();
            for wanted in ["tllmprof doctor", "driver", "CUDA", "Engine"] {
                assert!(text.contains(wanted), "{file} does not ask for {wanted}");
            }
        }
    }
}
