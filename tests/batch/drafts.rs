//! Checks that forward passes of draft models, which speculative decoding uses, do not count as steps.

use serde_json::json;
use tllmprof_engines::DRAFTS;

use super::common::python::pythons;
use super::sources::{sources, wrong_in};
use super::{cut, iterations, report, truth};

/// With an assistant model, two models call `generate`, one within the other. Only forward passes of the outer call's
/// model are steps.
#[test]
fn passes_of_a_draft_model_are_no_steps() {
    for which in pythons() {
        let (process, ran) = report(which, "drafts.py", &[], &[]);
        let truth = truth(&ran);
        let passes = truth.iter().filter(|phase| **phase != "draft").count();
        assert!(passes > 20 && truth.len() > passes + 10, "{truth:?}");
        let phases = iterations(&process).map(|iteration| &iteration["batch"]["phase"]);
        let phases: Vec<_> = phases.cloned().collect();
        assert_eq!(
            phases,
            vec![json!(null); passes],
            "{which:?}: {}",
            ran.output.err()
        );
        let counted = passes - cut(&process);
        assert_eq!(process["inside"]["iterations"], counted);
    }
}

#[test]
fn windows_hold_passes_of_draft_models_or_the_others() {
    let Some(which) = pythons().last() else {
        return;
    };
    for (condition, is_wanted) in [("phase=draft", true), ("phase!=draft", false)] {
        let variables = [
            ("TLLMPROF_START_STOP", "2-7"),
            ("TLLMPROF_WHERE", condition),
        ];
        let (process, ran) = report(which, "drafts.py", &[], &variables);
        assert_eq!(process["inside"]["iterations"], 6, "{}", ran.output.err());
        for iteration in iterations(&process) {
            let is_draft = iteration["batch"]["phase"] == "draft";
            let counts = iteration["qualifies"] == true;
            assert_eq!(counts, is_draft == is_wanted, "{iteration}");
        }
    }
}

#[test]
fn engines_have_the_functions_that_make_passes_of_draft_models() {
    for version in ["4.57.1", "5.0.0", "5.23.0"] {
        let Some(folder) = sources("transformers", version) else {
            return;
        };
        for draft in DRAFTS {
            assert!(draft.source.contains(version), "{}", draft.source);
            let rows = json!([{"step": draft.function, "arguments": [], "names": []}]);
            assert_eq!(wrong_in(&folder, &rows), "", "{version}");
        }
        let file = "transformers/generation/candidate_generator.py";
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        // Calls of `_generate_candidates` run the draft model, too. The table `DRAFTS` lists the functions that call
        // `_generate_candidates`, and not that function itself.
        let mut makes = calling(&text, "self.assistant_model.generate(");
        makes.extend(calling(&text, "self._generate_candidates("));
        makes.retain(|function| !function.ends_with("._generate_candidates"));
        assert!(makes.len() > 2, "{version}: {makes:?}");
        for function in makes {
            let is_it = |known: &str| known.ends_with(&format!(":{function}"));
            assert!(
                DRAFTS.iter().any(|draft| is_it(draft.function)),
                "{version}: {function}"
            );
        }
    }
}

/// For each engine: the versions, the folders whose code runs draft models, and some texts. Code that calls or defines
/// the functions that are the engine's steps would contain such a text. The test checks that no file in these folders
/// does.
const WITHIN: [(&str, [&[&str]; 3]); 3] = [
    (
        "vllm",
        [
            &["0.18.0", "0.26.0", "0.33.0"],
            &["vllm/v1/spec_decode", "vllm/v1/worker/gpu/spec_decode"],
            &[
                "runner.prepare_inputs(",
                "runner._prepare_inputs(",
                ".execute_model(",
            ],
        ],
    ),
    (
        "sglang",
        [
            &["0.5.3", "0.5.16", "0.5.23"],
            &["sglang/srt/speculative"],
            &[".run_batch("],
        ],
    ),
    (
        "lmdeploy",
        [
            &["0.18.0"],
            &["lmdeploy/pytorch/spec_decode"],
            &[
                "class BaseModelAgent",
                "(BaseModelAgent)",
                "agent._async_model_forward(",
            ],
        ],
    ),
];

/// The engines in the table `WITHIN` run all passes of a draft model within the step that needs the drafts. So these
/// engines need no row in the library's table of drafting functions (`DRAFTS`).
#[test]
fn other_engines_draft_within_their_steps() {
    for (package, [versions, folders, calls]) in WITHIN {
        for version in versions {
            let Some(folder) = sources(package, version) else {
                return;
            };
            let mut files = 0;
            let mut next: Vec<_> = folders.iter().map(|name| folder.join(name)).collect();
            while let Some(path) = next.pop() {
                if let Ok(entries) = std::fs::read_dir(&path) {
                    next.extend(entries.flatten().map(|entry| entry.path()));
                } else if path.extension().is_some_and(|end| end == "py") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    files += 1;
                    for call in calls {
                        assert!(
                            !text.contains(call),
                            "{package} {version}: {}: {call}",
                            path.display()
                        );
                    }
                }
            }
            assert!(files > 2, "{package} {version}");
        }
    }
}

/// Returns the functions of a Python source whose body contains the text `what`, as `CLASS.FUNCTION`.
fn calling(text: &str, what: &str) -> Vec<String> {
    let (mut class, mut function, mut found) = ("", "", Vec::new());
    for line in text.lines() {
        let name = |start| line.strip_prefix(start)?.split(['(', ':']).next();
        class = name("class ").unwrap_or(class);
        function = name("    def ").unwrap_or(function);
        if line.contains(what) {
            found.push(format!("{class}.{function}"));
        }
    }
    found
}
