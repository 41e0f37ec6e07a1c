//! Checks balanced routers (`ENABLE_PERFECT_ROUTER`, which spreads tokens evenly over experts) in releases of vLLM and
//! SGLang. The engines' own source runs, with fakes for all its imports.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::common::torch::python_with_transformers;
use crate::common::{repo, run, shim, skipped};
use crate::{TEST_TIMEOUT, numbers, program};

/// Releases of engines whose own source runs in these tests, with the number of code paths in which the library cannot
/// see the choice of experts.
const RELEASES: [(&str, &str, usize); 11] = [
    ("vllm", "0.16.0", 2),
    ("vllm", "0.18.0", 2),
    ("vllm", "0.22.1", 2),
    ("vllm", "0.26.0", 2),
    ("vllm", "0.30.0", 2),
    ("vllm", "0.33.0", 2),
    ("sglang", "0.4.6.post5", 0),
    ("sglang", "0.5.3", 2),
    ("sglang", "0.5.10", 2),
    ("sglang", "0.5.16", 2),
    ("sglang", "0.5.23", 2),
];

/// One run: an engine's release, changes to its source, and the code paths to run (all of them if the list is empty).
type Job<'a> = (&'a str, &'a str, Vec<&'a str>);

/// The results of one run, by code path, and the library's messages.
type Found = (BTreeMap<String, Value>, Vec<String>);

/// Runs the engines' source. Returns `None` if the source is not available.
fn engines(python: &Path, jobs: &[Job<'_>], variables: &[(&str, &str)]) -> Option<Vec<Found>> {
    // The script needs the variable TLLMPROF_CACHE, which names the folder of the sources. The tests' `command` would
    // remove the variable.
    let mut get = Command::new(python);
    get.arg(repo().join("scripts/get-engine-sources")).args(
        jobs.iter()
            .map(|(name, version, _)| format!("{name}=={version}")),
    );
    let got = run(&mut get, TEST_TIMEOUT);
    if !got.status.success() {
        skipped(got.err().trim());
        return None;
    }
    let mut program = program(python, "engines.py");
    for (name, version, words) in jobs {
        let folder = Path::new(got.out().trim()).join(format!("{name}-{version}"));
        let mut job = vec![folder.to_str().unwrap(), name];
        job.extend(words);
        program.arg(serde_json::to_string(&job).unwrap());
    }
    let output = run(program.envs(variables.iter().copied()), TEST_TIMEOUT);
    assert!(output.status.success(), "{}", output.err());
    let (out, err) = (output.out(), output.err());
    let mut found = Vec::new();
    for (number, said) in err.split("== [").skip(1).enumerate() {
        let ways = out
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect(line));
        let ways = ways.filter(|way| way["job"] == number);
        let said = said
            .lines()
            .filter_map(|line| line.strip_prefix("tllmprof: "));
        found.push((
            ways.map(|way| (way["way"].as_str().unwrap().to_owned(), way))
                .collect(),
            said.map(str::to_owned).collect(),
        ));
    }
    assert_eq!(found.len(), jobs.len());
    Some(found)
}

/// Returns, for each token of a code path's result, the numbers of its experts in ascending order.
fn experts(way: &Value) -> Vec<Vec<u64>> {
    let mut experts: Vec<_> = way["ids"].as_array().unwrap().iter().map(numbers).collect();
    experts
        .iter_mut()
        .for_each(|of_token| of_token.sort_unstable());
    experts
}

fn spread(way: &Value) -> u64 {
    way["spread"].as_u64().unwrap()
}

#[test]
fn releases_of_engines_are_balanced_in_a_window_and_as_they_were_outside() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    let jobs: Vec<Job<'_>> = RELEASES
        .iter()
        .map(|(name, version, _)| (*name, *version, vec!["window"]))
        .collect();
    let shim = shim();
    let on = [
        ("LD_PRELOAD", shim.to_str().unwrap()),
        ("TLLMPROF_PERFECT_ROUTER", "window"),
    ];
    let Some((plain, windowed)) = engines(&python, &jobs, &[]).zip(engines(&python, &jobs, &on))
    else {
        return;
    };
    for (((name, version, unseen), (plain, _)), (found, said)) in
        RELEASES.iter().zip(plain).zip(windowed)
    {
        assert!(
            plain.len() >= 10 && plain.len() == found.len(),
            "{name} {version}"
        );
        for (way, plain) in &plain {
            let found = &found[way];
            let what = format!("{name} {version}, {way}");
            assert!(spread(plain) > 1 && spread(found) <= 1, "{what}");
            for same in ["before", "behind", "gates"] {
                assert_eq!(plain[same], found[same], "{what}");
            }
            assert_eq!(found["before"], found["behind"], "{what}");
        }
        if let Some(gate) = found.get("gate inside") {
            // The layer is called three times. Its gate must run exactly once in each call.
            assert_eq!(gate["gates"], 3, "{version}");
        }
        if found.contains_key("rank 0") {
            // Two ranks send 100 tokens each to 8 of 64 experts. The loads of the experts must be as even as possible
            // over both ranks together. If the ranks gather all tokens, both must choose the same experts.
            let mut loads = [0; 64];
            for rank in ["rank 0", "rank 1"] {
                for expert in experts(&found[rank]).into_iter().flatten() {
                    loads[usize::try_from(expert).unwrap()] += 1;
                }
            }
            assert_eq!(loads, [25; 64], "{name} {version}");
            assert_eq!(experts(&found["gathered 1"]), experts(&found["rank 0"]));
        }
        let unproved = if *unseen > 0 {
            format!(", {unseen} not proved")
        } else {
            String::new()
        };
        let last = format!("perfect router: {} layers, ", found.len());
        let [first, end] = said.as_slice() else {
            panic!("{name} {version}: {said:?}");
        };
        assert_eq!(
            first,
            "output is intentionally wrong: the routers are replaced"
        );
        assert!(
            end.starts_with(&last) && end.ends_with(&format!(" not counted){unproved}")),
            "{name} {version}: {end}"
        );
    }
}

#[test]
fn a_release_that_does_otherwise_stays_as_it_is_with_one_line() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    let cases = [
        (
            "vllm",
            "0.18.0",
            "renamed",
            "DefaultMoERunner.forward_impl has no parameter router_logits",
        ),
        (
            "vllm",
            "0.33.0",
            "renamed",
            "MoERunner._forward_impl has no parameter router_logits",
        ),
        (
            "sglang",
            "0.4.6.post5",
            "renamed",
            "FusedMoE.forward has no parameter router_logits",
        ),
        (
            "sglang",
            "0.5.23",
            "renamed",
            "TopK.forward_native has no parameter router_logits",
        ),
        (
            "vllm",
            "0.18.0",
            "replaced",
            "GroupedTopKRouter._compute_routing chooses other experts than its logits say",
        ),
        (
            "vllm",
            "0.33.0",
            "replaced",
            "GroupedTopKRouter._compute_routing chooses other experts than its logits say",
        ),
        (
            "sglang",
            "0.4.6.post5",
            "replaced",
            "select_experts chooses other experts than its logits say",
        ),
        (
            "sglang",
            "0.5.23",
            "replaced",
            "TopK.forward_cuda chooses other experts than its logits say",
        ),
        (
            "vllm",
            "0.18.0",
            "elsewhere",
            "DefaultMoERunner.forward_impl takes its logits elsewhere",
        ),
        (
            "vllm",
            "0.33.0",
            "elsewhere",
            "MoERunner._forward_impl takes its logits elsewhere",
        ),
        (
            "sglang",
            "0.4.6.post5",
            "elsewhere",
            "FusedMoE.forward takes its logits elsewhere",
        ),
    ];
    // In the following code paths, experts are chosen in groups, without or with a bias. Each release has exactly two
    // of them.
    let ways = [
        "grouped",
        "grouped bias",
        "FusedMoE grouped",
        "FusedMoE grouped bias",
    ];
    let ways = [
        &ways[..],
        &["forward_cuda grouped", "forward_cuda grouped bias"],
    ]
    .concat();
    let jobs: Vec<Job<'_>> = cases
        .iter()
        .map(|(name, version, change, _)| (*name, *version, [&[*change], &ways[..]].concat()))
        .collect();
    let shim = shim();
    let on = [
        ("LD_PRELOAD", shim.to_str().unwrap()),
        ("ENABLE_PERFECT_ROUTER", "1"),
    ];
    let Some((plain, found)) = engines(&python, &jobs, &[]).zip(engines(&python, &jobs, &on))
    else {
        return;
    };
    for ((name, version, change, why), ((plain, _), (found, said))) in
        cases.iter().zip(plain.iter().zip(&found))
    {
        assert_eq!(
            (plain.len(), found.len()),
            (2, 2),
            "{name} {version} {change}"
        );
        for (way, found) in found {
            assert!(spread(found) > 1, "{name} {version} {change}: {found}");
            assert_eq!(*found, plain[way], "{name} {version} {change}");
        }
        let lines: Vec<_> = said
            .iter()
            .filter(|line| line.contains("stay as they are"))
            .collect();
        assert_eq!(
            lines,
            [&format!("{name}: the routers stay as they are: {why}")],
            "{version} {change}"
        );
        for other in ["keeps its learned", "output is intentionally wrong"] {
            let has_other = said.iter().any(|line| line.contains(other));
            assert!(!has_other, "{name} {version} {change}: {said:?}");
        }
    }
}
