//! Checks engines in Python: the functions that the library counts as steps, and the NVTX ranges that it makes for the
//! engines' API functions.

use super::*;

/// Writes Python modules whose names and functions are those of real engines.
fn write_engines(folder: &Path) {
    let step = "
class GPUModelRunner:
    def _prepare_inputs(self):
        pass

    def execute_model(self, work):
        self._prepare_inputs()
        work()
";
    for package in [
        "vllm",
        "vllm/v1",
        "vllm/v1/worker",
        "transformers",
        "transformers/generation",
    ] {
        write(folder, &format!("{package}/__init__.py"), "");
    }
    write(folder, "vllm/v1/worker/gpu_model_runner.py", step);
    let generate = "
class GenerationMixin:
    def prepare_inputs_for_generation(self, work):
        work()
";
    write(folder, "transformers/generation/utils.py", generate);
}

fn run_engines(which: &Python, windows: &str, program: &str) -> Ran {
    let fixture = python(which).window(windows, "auto").args("main.py");
    write_engines(fixture.folder());
    write(fixture.folder(), "main.py", program);
    fixture.run()
}

const VLLM: &str = "auto: vLLM, model runner V1 is known, iteration = \
                    py:vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs";

/// Runs `program` with an NVTX tool. Returns the names of the ranges that the tool received, in order, and the run's
/// results.
fn pushes(which: &Python, program: &str, variables: &[(&str, &str)]) -> (Vec<String>, Ran) {
    let scratch = Scratch::new("tool");
    let (tool, log) = (
        nvtx::library(&scratch, "nvtx/log_tool.c", ""),
        scratch.path("events"),
    );
    let fixture = python(which).args("main.py");
    let fixture = fixture
        .env("NVTX_INJECTION64_PATH", tool)
        .env("LOG_TOOL", &log);
    let with = |fixture: Fixture, (name, value): &(&str, &str)| fixture.env(name, value);
    let fixture = variables.iter().fold(fixture, with);
    write_engines(fixture.folder());
    write(fixture.folder(), "main.py", program);
    let ran = fixture.run();
    let events = fs::read_to_string(log).unwrap_or_default();
    let pushed = |line: &str| {
        Some(
            line.split_once(" push ")?
                .1
                .splitn(3, ' ')
                .nth(2)?
                .to_owned(),
        )
    };
    (events.lines().filter_map(pushed).collect(), ran)
}

#[test]
fn an_engines_function_that_a_rule_names_returns_before_its_iteration_ends() {
    let program = format!(
        "{LOOP}
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

for _ in range(12):
    GPUModelRunner().execute_model(work)
"
    );
    let Some(which) = newest() else { return };
    let rule = "py:vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs";
    let fixture = python(which).window("5-9", rule).args("main.py");
    write_engines(fixture.folder());
    write(fixture.folder(), "main.py", &program);
    assert_edges(which, &fixture.run(), &[('+', 5), ('-', 10)]);
}

#[test]
fn auto_follows_the_step_of_an_engine_in_python() {
    let program = format!(
        "
from transformers.generation.utils import GenerationMixin
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

# Before CUDA is used, nothing is a step.
GenerationMixin().prepare_inputs_for_generation(lambda: None)
{LOOP}
runner = GPUModelRunner()
for _ in range(7):
    work()
for _ in range(12):
    runner.execute_model(work)
    # Another engine's function that is called as well changes nothing.
    GenerationMixin().prepare_inputs_for_generation(work)
"
    );
    for which in pythons() {
        let ran = run_engines(which, "2-3,5-9", &program);
        // In this engine, the function returns before the step's work is launched. So an iteration lasts from one call
        // of the function until the next call.
        let expected = [('+', 11), ('-', 15), ('+', 17), ('-', 27)];
        assert_edges(which, &ran, &expected);
        let said = ran.said();
        assert_eq!(
            said.iter().filter(|line| *line == VLLM).count(),
            1,
            "{said:?}"
        );
        let last = said.last().unwrap();
        assert!(
            last.contains("captured: 12 iterations by py:vllm.v1."),
            "{said:?}"
        );
    }
}

#[test]
fn an_engines_api_gets_ranges() {
    let program = format!(
        "
from transformers.generation.utils import GenerationMixin
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
{LOOP}
for _ in range(3):
    GPUModelRunner().execute_model(work)
    GenerationMixin().prepare_inputs_for_generation(work)
"
    );
    let asked = [
        ("TLLM_LLMAPI_ENABLE_NVTX", "1"),
        ("TLLMPROF_STEP", "cudaGraphLaunch"),
    ];
    for which in some() {
        let (pushed, ran) = pushes(which, &program, &asked);
        assert_eq!(
            pushed,
            ["GPUModelRunner.execute_model"; 3],
            "{}",
            ran.output.err()
        );
        assert_eq!(ran.said(), [""; 0]);
        let (pushed, ran) = pushes(which, LOOP, &asked);
        assert_eq!(pushed, [""; 0]);
        let said = ran.said();
        assert!(
            said[0].contains("no engine that is known was imported"),
            "{said:?}"
        );
    }
}

#[test]
fn a_function_may_be_a_step_and_have_ranges() {
    let program = format!(
        "{LOOP}
import math

def step():
    work()

class A:
    step = step

for _ in range(12):
    A().step if step() else None
"
    );
    let variables = [
        ("TLLMPROF_STEP", "py:__main__:step"),
        ("TLLM_PROFILE_START_STOP", "5-9"),
        (
            "TLLMPROF_PY_RANGES",
            "__main__:step,__main__:stepp,math:sqrt,no.where:f",
        ),
    ];
    for which in some() {
        let (pushed, ran) = pushes(which, &program, &variables);
        assert_edges(which, &ran, &[('+', 5), ('-', 10)]);
        let steps = pushed.iter().filter(|name| *name == "step").count();
        assert_eq!(steps, 12, "{pushed:?}");
        let said = ran.said();
        for expected in [
            "TLLMPROF_PY_RANGES: __main__:stepp was not found; __main__ has no such function; nearest: step",
            "TLLMPROF_PY_RANGES: math:sqrt was not found; it is no Python function but a builtin_function_or_method",
            "TLLMPROF_PY_RANGES: no.where:f was not found; no.where was never imported",
        ] {
            assert!(said.iter().any(|line| line == expected), "{said:?}");
        }
    }
}

#[test]
fn a_step_that_is_relied_on_is_not_replaced() {
    let program = format!(
        "{LOOP}
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

for _ in range(120):
    work()
runner = GPUModelRunner()
for _ in range(60):
    runner.execute_model(work)
"
    );
    let Some(which) = newest() else { return };
    let ran = run_engines(which, "100-104,150-154", &program);
    let said = ran.said();
    assert!(!said.iter().any(|line| line == VLLM), "{said:?}");
    assert_eq!(edges(&ran).len(), 4, "{said:?}");
    let last = said.last().unwrap();
    assert!(last.contains("180 iterations by auto"), "{said:?}");
}

#[test]
fn an_engine_that_is_not_called_is_no_step() {
    let program = format!(
        "{LOOP}
import transformers.generation.utils, vllm.v1.worker.gpu_model_runner

for _ in range(120):
    work()
"
    );
    let Some(which) = newest() else { return };
    let ran = run_engines(which, "100-104", &program);
    assert_edges(which, &ran, &[('+', 100), ('-', 105)]);
}

/// Runs a program in which an engine's function is called `calls` times per step. Returns those of the library's
/// messages that contain ` counted `, and the text of the report.
fn counted_in(which: &Python, calls: usize) -> (Vec<String>, String) {
    let program = format!(
        "{LOOP}
from transformers.generation.utils import GenerationMixin

model = GenerationMixin()
work()
for _ in range(400):
    for _ in range({calls}):
        model.prepare_inputs_for_generation(lambda: None)
    work()
"
    );
    let fixture = python(which).window("300-304", "auto").args("main.py");
    let record = fixture.folder().join("steps.tllmprof");
    let fixture = fixture.env("TLLMPROF_TRACE", &record);
    write_engines(fixture.folder());
    write(fixture.folder(), "main.py", &program);
    let (ran, report) = fixture.run_and(|| {
        let mut command = std::process::Command::new(tllmprof());
        let command = command.args(["report", "--full"]).arg(&record);
        common::run(command, Duration::from_secs(300))
    });
    let mut about = ran.said();
    about.retain(|line| line.contains(" counted "));
    (about, report.out())
}

#[test]
fn an_engines_function_that_is_called_twice_a_step_is_reported() {
    let Some(which) = newest() else { return };
    let (lines, report) = counted_in(which, 2);
    let rule = "py:transformers.generation.utils:GenerationMixin.prepare_inputs_for_generation";
    assert_eq!(lines.len(), 1, "{lines:?}");
    let begin = format!("auto: transformers generate: {rule} counted 192 iterations, but the ");
    assert!(lines[0].starts_with(&begin), "{lines:?}");
    assert!(
        lines[0].contains(&format!(
            " recurred 96 times: 2 of those iterations may be one. --step '{rule}/2' counts so"
        )),
        "{lines:?}"
    );
    assert!(
        report.contains("2 of those iterations may be one"),
        "{report}"
    );
    assert_eq!(
        counted_in(which, 1).0,
        [""; 0],
        "where they agree nothing is said"
    );
}
