//! Checks that engines' sources, if they can be fetched, contain the names in the library's tables.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Scratch, command, repo, run, skipped};

/// Each name in the library's formulas for batches must occur in the source of the engine that the formula is for.
#[test]
fn engines_have_what_the_formulas_name() {
    let versions = [
        ("vllm", "0.33.0"),
        ("sglang", "0.5.23"),
        ("lmdeploy", "0.18.0"),
        ("transformers", "5.23.0"),
    ];
    for (package, version) in versions {
        let Some(folder) = sources(package, version) else {
            continue;
        };
        let engines = tllmprof_engines::ENGINES.iter().filter_map(|engine| {
            let step = engine
                .python_step()
                .filter(|_| engine.source.contains(version))?;
            step.starts_with(&format!("{package}."))
                .then_some((engine, step))
        });
        let rows = engines.flat_map(|(engine, step)| {
            let rows = engine.batch.iter();
            let rows = rows.filter(|row| row.versions.contains(version));
            rows.map(move |row| {
                let formulas = row.formulas().unwrap();
                // `names` includes the strings with which a formula compares values. They are names of enum members,
                // which the source must define, too.
                json!({"step": step, "arguments": formulas.arguments, "names": formulas.names})
            })
        });
        let rows: Vec<_> = rows.collect();
        assert!(!rows.is_empty(), "{package}");
        let wrong = wrong_in(&folder, &Value::from(rows));
        assert_eq!(wrong, "", "{package} {version}");
        let none = json!([{"step": "no.module:f", "arguments": [], "names": []}]);
        assert_ne!(wrong_in(&folder, &none), "");
    }
}

#[test]
fn engines_have_the_functions_that_run_dummy_batches() {
    for dummy in tllmprof_engines::DUMMY_STEPS {
        let rows = json!([{"step": dummy.function, "arguments": [], "names": []}]);
        for version in ["0.18.0", "0.26.0", "0.33.0"] {
            assert!(dummy.source.contains(version));
            let Some(folder) = sources("vllm", version) else {
                return;
            };
            assert_eq!(wrong_in(&folder, &rows), "", "{version}");
        }
    }
}

/// The entries about draft models in the library's table `ENGINE_APIS`: the entry's name, the Python package that
/// defines the entry's functions, and the versions to check. Each function must be in at least one of the versions.
const DRAFTS: [(&str, &str, &[&str]); 2] = [
    (
        "vLLM V1, speculative decoding",
        "vllm",
        &["0.10.0", "0.18.0", "0.26.0", "0.33.0"],
    ),
    (
        "SGLang, speculative decoding",
        "sglang",
        &["0.5.3", "0.5.16", "0.5.23"],
    ),
];

#[test]
fn engines_have_the_functions_that_draft() {
    for (name, package, versions) in DRAFTS {
        let apis = tllmprof_engines::ENGINE_APIS.iter();
        let api = apis.clone().find(|api| api.name == name).unwrap();
        let functions = api.functions.iter();
        let all: Vec<_> = functions
            .flat_map(|(module, names)| names.iter().map(move |name| format!("{module}:{name}")))
            .collect();
        let mut found = BTreeSet::new();
        for version in versions {
            assert!(api.source.contains(version), "{name}: {version}");
            let Some(folder) = sources(package, version) else {
                return;
            };
            let rows = all
                .iter()
                .map(|step| json!({"step": step, "arguments": [], "names": []}));
            let wrong = wrong_in(&folder, &rows.collect());
            let has = |step: &&String| !wrong.contains(&format!("{step}: no such function\n"));
            assert!(all.iter().any(|step| has(&step)), "{package} {version}");
            found.extend(all.iter().filter(has));
        }
        let missing: Vec<_> = all.iter().filter(|step| !found.contains(step)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}

/// Returns the folder with an engine's sources, if they are available.
pub(crate) fn sources(package: &str, version: &str) -> Option<PathBuf> {
    let mut get = command("python3");
    get.arg(repo().join("scripts/get-engine-sources"));
    let got = run(
        get.arg(format!("{package}=={version}")),
        Duration::from_secs(300),
    );
    if !got.status.success() {
        skipped(got.err().trim());
        return None;
    }
    Some(Path::new(got.out().trim()).join(format!("{package}-{version}")))
}

/// Returns messages about formulas that do not match the sources in a folder.
pub(crate) fn wrong_in(folder: &Path, rows: &Value) -> String {
    let scratch = Scratch::new("sources");
    let input = scratch.path("rows.json");
    fs::write(&input, rows.to_string()).unwrap();
    let mut check = command("python3");
    check.arg(repo().join("tests/batch/sources.py"));
    check.arg(folder).arg(&input);
    let checked = run(&mut check, Duration::from_secs(300));
    assert!(checked.status.success(), "{}", checked.err());
    checked.out()
}
