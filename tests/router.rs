//! Checks balanced routers (`ENABLE_PERFECT_ROUTER`: the library chooses the experts of each token, so that the
//! experts' numbers of tokens differ by at most one) in transformers' own models. The programs do not know about the
//! option. They run real PyTorch on the CPU, if it is available.

#[path = "router/captured.rs"]
mod captured;
mod common;
#[path = "router/engines.rs"]
mod engines;
#[path = "record/read.rs"]
#[allow(dead_code, reason = "tests/record.rs asks for more")]
mod read;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::torch::python_with_transformers;
use common::{Output, Scratch, command, repo, run, shim, standin};
use read::Read;
use serde_json::Value;
use tllmprof_record::{Info, What};

const TEST_TIMEOUT: Duration = Duration::from_secs(600);

fn program(python: &Path, name: &str) -> Command {
    let mut program = command(python);
    program
        .arg(repo().join("tests/python/router").join(name))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("HF_HUB_OFFLINE", "1")
        // With more threads, synchronization takes longer than the work on models this small.
        .env("OMP_NUM_THREADS", "1")
        .env_remove("CUDA_INJECTION64_PATH");
    program
}

/// Parses the output of `run.py`. Returns the results of each model; the key is the model's name.
fn models(output: &Output) -> BTreeMap<String, Value> {
    assert!(output.status.success(), "{}", output.err());
    let out = output.out();
    let lines = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect(line));
    lines
        .map(|found| (found["model"].as_str().unwrap().to_owned(), found))
        .collect()
}

fn said(output: &Output) -> Vec<String> {
    let err = output.err();
    let ours = err
        .lines()
        .filter_map(|line| line.strip_prefix("tllmprof: "));
    ours.map(str::to_owned).collect()
}

/// Returns the names of the models to run. By default, these are the three models whose routers differ most from each
/// other. With `TLLMPROF_TEST_FAMILIES=all`, the list is empty, which means all ten models.
fn families() -> &'static [&'static str] {
    match std::env::var("TLLMPROF_TEST_FAMILIES").as_deref() {
        Ok("all") => &[],
        Ok(other) => panic!("TLLMPROF_TEST_FAMILIES={other}: only all is known"),
        Err(_) => &["gpt_oss", "deepseek_v3", "llama4"],
    }
}

#[test]
fn biases_get_their_learned_values_back() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    let output = run(&mut program(&python, "biases.py"), TEST_TIMEOUT);
    assert!(output.status.success(), "{}", output.err());
}

#[test]
fn every_family_is_balanced_and_nothing_else_is_different() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    let run_with = |families: &[&str], variables: &[(&str, &str)]| {
        let mut program = program(&python, "run.py");
        program.args(families).envs(variables.iter().copied());
        run(&mut program, TEST_TIMEOUT)
    };
    let shim = shim().to_str().unwrap().to_owned();
    let on = [
        ("LD_PRELOAD", shim.as_str()),
        ("ENABLE_PERFECT_ROUTER", "1"),
    ];
    let off = [on[0], ("ENABLE_PERFECT_ROUTER", "0")];
    let plain = run_with(families(), &[]);
    // With the option off, the library must not change the results. By default, only one model checks this.
    let off = run_with(&families()[..families().len().min(1)], &off);
    let on = run_with(families(), &on);

    let (plain, off, balanced) = (models(&plain), models(&off), models(&on));
    let count = match families().len() {
        0 => 10,
        some => some,
    };
    assert_eq!(plain.len(), count);
    assert!(!off.is_empty());
    for (name, off) in &off {
        assert_eq!(*off, plain[name], "switched off, it changes something");
    }
    for (name, plain) in &plain {
        let balanced = &balanced[name];
        assert!(plain["spread"].as_u64() > Some(1), "{name}: {plain}");
        assert!(balanced["spread"].as_u64() <= Some(1), "{name}: {balanced}");
        assert_ne!(plain["logits"], balanced["logits"], "{name}");
        // Three things must be the same with and without `ENABLE_PERFECT_ROUTER`: the number of times that the model's
        // gate (the module that computes the router's logits) and its matrix product run, the types and shapes of the
        // results, and the number of times that torch's compiler breaks the graph.
        for same in ["layers", "gates", "products", "kinds", "breaks"] {
            assert_eq!(plain[same], balanced[same], "{name}: {same}");
        }
        assert_eq!(balanced["breaks"], 0, "{name}");
        let sums = balanced["sums"].as_array().unwrap();
        assert!(sums.len() <= 1, "{name}: weights add up to {sums:?}");
    }
    let said = said(&on);
    assert_eq!(
        said[0],
        "output is intentionally wrong: the routers are replaced"
    );
    assert!(
        said[1].starts_with(&format!("perfect router: {} layers, ", 4 * count)),
        "{said:?}"
    );
    assert_eq!(said.len(), 2, "{said:?}");
}

/// Parses the lines `step N DIGEST SPREAD` of the output. Returns for each step a digest of its results, and the spread
/// of the experts' loads (the difference between the busiest and the idlest expert).
fn steps(output: &Output) -> Vec<(String, i64)> {
    assert!(output.status.success(), "{}", output.err());
    let out = output.out();
    let lines = out.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines
        .map(|words| match words[..] {
            ["step", _, digest, spread] => (digest.to_owned(), spread.parse().unwrap()),
            _ => panic!("{out}"),
        })
        .collect()
}

#[test]
fn balanced_inside_windows_and_learned_outside() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    for arguments in [&[] as &[&str], &["--compiled"]] {
        let scratch = Scratch::new("router");
        let mut plain = program(&python, "window.py");
        plain.args(arguments).env("LD_LIBRARY_PATH", standin());
        let mut windowed = program(&python, "window.py");
        windowed
            .args(arguments)
            .env("LD_LIBRARY_PATH", standin())
            .env("LD_PRELOAD", shim())
            .env("TLLMPROF_STEP", "cudaGraphLaunch")
            .env("TLLM_PROFILE_START_STOP", "2-3")
            .env("TLLMPROF_PERFECT_ROUTER", "window")
            .env("TLLMPROF_TRACE", scratch.path("w.tllmprof"));
        let plain = steps(&run(&mut plain, TEST_TIMEOUT));
        let output = run(&mut windowed, TEST_TIMEOUT);
        let found = steps(&output);
        assert_eq!(found.len(), 6);
        for (n, (plain, found)) in plain.iter().zip(&found).enumerate() {
            if (2..=3).contains(&n) {
                assert!((0..=1).contains(&found.1), "step {n}: {found:?}");
                assert_ne!(plain.0, found.0, "step {n}");
            } else {
                assert_eq!(plain, found, "step {n} is outside the window");
            }
        }
        // In each step, both layers send each of 64 tokens to 2 of 8 experts. The record has, for each expert, the
        // total number of tokens that it got so far in steps outside the window. The first such number is from steps 0
        // and 1, the second from steps 0, 1, 4 and 5.
        let record = Read::open(&scratch.path("w.tllmprof"));
        let settings = record.info(Info::Setting);
        assert!(
            settings.contains(&"TLLMPROF_PERFECT_ROUTER=window".to_owned()),
            "{settings:?}"
        );
        let mut loads: BTreeMap<u16, BTreeMap<u16, Vec<u64>>> = BTreeMap::new();
        for (_, event) in &record.events {
            if let What::ExpertLoad {
                layer,
                expert,
                tokens,
            } = event.what
            {
                let layer = loads.entry(layer).or_default();
                layer.entry(expert).or_default().push(tokens);
            }
        }
        assert_eq!(loads.len(), 2, "two layers");
        for experts in loads.values() {
            assert_eq!(experts.len(), 8);
            let total = |at: usize| experts.values().map(|tokens| tokens[at]).sum::<u64>();
            assert_eq!((total(0), total(1)), (2 * 128, 4 * 128));
            let last = || experts.values().map(|tokens| tokens[1]);
            assert!(
                last().max() > Some(64 + 2),
                "the learned router is not balanced"
            );
        }
    }
}

#[test]
fn programs_do_with_their_modules_what_they_like() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    let mut program = program(&python, "hostile.py");
    program
        .env("LD_PRELOAD", shim())
        .env("ENABLE_PERFECT_ROUTER", "1");
    let output = run(&mut program, TEST_TIMEOUT);
    assert!(output.status.success(), "{}", output.err());
    let out = output.out();
    assert_eq!(out.lines().count(), 20, "{out}{}", output.err());
    for line in out.lines() {
        assert!(line.ends_with(": True"), "{line}");
    }
    for line in said(&output) {
        assert!(!line.contains("keeps its learned router"), "{line}");
    }
}

/// Runs `moe_ranks.py` on two ranks, with a window of steps 3 to 5 of 8. Returns each rank's results.
fn ranks(python: &Path, model: &str, how: &str, scratch: &Scratch) -> [Value; 2] {
    let port = common::free_port().to_string();
    let one = |rank: &str| {
        let log = scratch.path(&format!("{model}-{how}-{rank}.json"));
        let mut program = command(python);
        program
            .arg(repo().join("scripts/gpu_check/programs/moe_ranks.py"))
            .args([model, how, "8"])
            .envs([("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2")])
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)])
            .envs([("GLOO_SOCKET_IFNAME", "lo"), ("OMP_NUM_THREADS", "1")])
            .envs([("MOE_DEVICE", "cpu"), ("PYTHONDONTWRITEBYTECODE", "1")])
            .env_remove("CUDA_INJECTION64_PATH")
            .env("PYTHONPATH", repo().join("tests/fixtures"))
            .env("TRUTH_LOG", &log)
            .env("LD_LIBRARY_PATH", standin())
            .env("LD_PRELOAD", shim())
            .env("TLLMPROF_STEP", "cudaGraphLaunch")
            .env("TLLM_PROFILE_START_STOP", "3-5")
            .env("TLLMPROF_PERFECT_ROUTER", "window");
        let output = run(&mut program, Duration::from_secs(240));
        assert!(
            output.status.success(),
            "{model} {how} {rank}: {}",
            output.err()
        );
        let said = said(&output);
        assert!(
            !said.iter().any(|line| line.contains("learned router")),
            "{said:?}"
        );
        serde_json::from_slice(&std::fs::read(&log).unwrap()).unwrap()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| one("1"));
        [one("0"), other.join().unwrap()]
    })
}

fn numbers(value: &Value) -> Vec<u64> {
    let all = value.as_array().unwrap().iter();
    all.map(|number| number.as_u64().unwrap()).collect()
}

/// In the case `same`, both ranks have the same tokens; in the case `own`, different ones. Each rank makes 200 choices
/// among 32 experts, or 400 among 64, so an expert gets 6 or 7 tokens of a rank. If both ranks gave 7 tokens to the
/// same experts, the experts' totals would differ by 2. They may differ by at most 1.
#[test]
fn experts_on_two_ranks_are_even_together() {
    let Some(python) = python_with_transformers() else {
        return;
    };
    let scratch = Scratch::new("ranks");
    for (model, how) in [("deepseek_v3", "same"), ("gpt_oss", "own")] {
        let [one, other] = ranks(&python, model, how, &scratch);
        for n in 0..8 {
            let steps = [&one["steps"][n], &other["steps"][n]];
            for layer in 0..2 {
                let [a, b] = steps.map(|step| numbers(&step["loads"][layer]));
                let total: Vec<u64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
                let spread = total.iter().max().unwrap() - total.iter().min().unwrap();
                let on_gpus = steps.map(|step| step["here"][layer].as_u64().unwrap());
                let found = format!("{model} {how}, step {n}: {total:?}, {on_gpus:?}");
                assert_eq!(
                    on_gpus[0] + on_gpus[1],
                    total.iter().sum::<u64>(),
                    "{found}"
                );
                if (3..=5).contains(&n) {
                    assert!(spread <= 1 && on_gpus[0] == on_gpus[1], "{found}");
                } else {
                    assert!(spread > 2, "{found}");
                }
            }
            if how == "same" {
                assert_eq!(steps[0]["logits"], steps[1]["logits"], "step {n}");
            }
            let outside = &one["steps"][0]["logits"];
            assert_eq!(
                (3..=5).contains(&n),
                steps[0]["logits"] != *outside,
                "step {n}"
            );
        }
    }
}

#[test]
fn nothing_where_torch_is_not() {
    let mut plain = command("python3");
    plain
        .args(["-c", "import sys; print('_tllmprof_router' in sys.modules)"])
        .env("LD_PRELOAD", shim())
        .env("ENABLE_PERFECT_ROUTER", "1");
    let output = run(&mut plain, TEST_TIMEOUT);
    assert_eq!(output.out(), "False\n");
    assert_eq!(output.err(), "");
}
