use std::collections::HashSet;
use std::fmt::Write;

use super::*;
use tllmprof_config::Step;

/// Simulates a process that contains the libraries, symbols and Python modules in `has`. The returned function returns
/// true if the process contains a given one.
fn process<'a>(has: &'a [Seen]) -> impl Fn(&Seen) -> bool + 'a {
    move |wanted| {
        has.iter().any(|is| match (wanted, is) {
            (Seen::Module(prefix), Seen::Module(file)) => file.starts_with(prefix),
            _ => wanted == is,
        })
    }
}

fn named(has: &[Seen]) -> Option<&'static str> {
    known(process(has)).map(|engine| engine.name)
}

fn symbol_rule(name: &str) -> regex::bytes::Regex {
    let engine = ENGINES.iter().find(|e| e.name == name).expect(name);
    match Step::parse(engine.step).unwrap() {
        Step::Symbol { name, .. } => name,
        other => panic!("{other} is no sym: rule"),
    }
}

#[test]
fn every_row_is_whole() {
    let mut names = HashSet::new();
    let mut signs = HashSet::new();
    for engine in ENGINES {
        assert!(names.insert(engine.name), "{} twice", engine.name);
        // Several rows may have the same sign if their step functions differ.
        let step = engine.python_step().unwrap_or_default();
        assert!(
            signs.insert((engine.seen_by, step)),
            "{} twice",
            engine.seen_by
        );
        assert!(!engine.source.is_empty(), "{}", engine.name);
        assert!(!engine.note.is_empty(), "{}", engine.name);
        for text in [engine.name, engine.step, engine.note, engine.source] {
            assert!(!text.contains("  "), "{}: {text:?}", engine.name);
        }
    }
}

#[test]
fn every_step_parses() {
    for engine in ENGINES {
        let step = Step::parse(engine.step)
            .unwrap_or_else(|e| panic!("{}: {} {}", engine.name, engine.step, e.problem));
        assert_eq!(step.to_string(), engine.step, "{}", engine.name);
        let is_python = matches!(step, Step::Python { every: 1, .. });
        assert_eq!(engine.python_step().is_some(), is_python, "{}", engine.name);
        assert!(!matches!(step, Step::Call { .. }), "{}", engine.name);
    }
}

#[test]
fn a_python_row_is_seen_by_the_module_of_its_step() {
    for engine in ENGINES {
        if let Step::Python { function, .. } = Step::parse(engine.step).unwrap() {
            assert_eq!(engine.seen_by.to_string(), {
                format!("Python has imported {}", function.module)
            });
            assert_eq!(engine.python_step(), Some(function.to_string().as_str()));
        }
    }
}

#[test]
fn rules_match_the_names_that_were_read() {
    // Demangled names of the step function: first in lmdeploy 0.18.0, then in versions before 0.12. In 0.6.0, the class
    // `LlamaBatch` was a template.
    let turbomind = symbol_rule("LMDeploy TurboMind");
    for step in [
        "turbomind::ModelExecutor::Impl::Run(turbomind::BatchData&)",
        "turbomind::LlamaBatch::Forward(turbomind::GenerationState&)",
        "turbomind::LlamaBatch<__half>::Forward(turbomind::GenerationState&)",
    ] {
        assert!(turbomind.is_match(step.as_bytes()), "{step}");
    }
    for other in [
        "turbomind::ModelExecutor::Impl::RunCopies(std::vector<int>&)",
        "turbomind::ModelExecutor::Impl::InternalThreadEntry()",
        "turbomind::LanguageModel::Run(turbomind::BatchOp, int, turbomind::core::TensorMap&)",
        "std::_Function_handler<void (int const*), turbomind::ModelExecutor::Impl::Run(turbomind::BatchData&)>::_M_invoke()",
    ] {
        assert!(!turbomind.is_match(other.as_bytes()), "{other}");
    }
    // The namespace of the function may contain an inner namespace for the ABI version.
    let trtllm = symbol_rule("TensorRT-LLM C++ executor");
    for namespace in ["batch_manager", "_v1::batch_manager"] {
        let step = format!(
            "tensorrt_llm::{namespace}::TrtGptModelInflightBatching::executeBatch(tensorrt_llm::{namespace}::ScheduledRequests const&)"
        );
        assert!(trtllm.is_match(step.as_bytes()), "{step}");
        let other = step.replacen("executeBatch", "executeContext", 1);
        assert!(!trtllm.is_match(other.as_bytes()), "{other}");
    }
    let range = ENGINES.iter().find(|e| e.step.starts_with("nvtx:"));
    let Step::Nvtx { name, domain, .. } = Step::parse(range.unwrap().step).unwrap() else {
        panic!("no nvtx: rule");
    };
    assert_eq!(domain.as_deref(), Some("TensorRT-LLM"));
    assert!(name.is_match(b"[Executor] _forward_step 12: 1 ctx reqs, 7 ctx tokens, 3 gen reqs"));
    assert!(!name.is_match(b"_forward_step_inter_pp"));
    let llama = symbol_rule("llama.cpp, linked in");
    assert!(llama.is_match(b"llama_decode") && llama.is_match(b"llama_process"));
    assert!(!llama.is_match(b"llama_decode_internal"));
}

#[test]
fn the_more_specific_row_wins() {
    use Seen::{Module, Python, Symbol};
    // A Triton server that runs TensorRT-LLM's C++ executor.
    let triton = Module("libtritonserver.so");
    let trtllm = Module("libtensorrt_llm.so");
    let backend = Module("libtriton_tensorrtllm.so");
    assert_eq!(
        named(&[triton, trtllm, backend]),
        Some("TensorRT-LLM C++ executor in Triton")
    );
    // A Python process with TensorRT-LLM, first before and then after Python has imported the executor's module.
    let torch_ops = Module("libth_common.so");
    assert_eq!(
        named(&[trtllm, torch_ops]),
        Some("TensorRT-LLM PyExecutor by its ranges")
    );
    let py_executor = Python("tensorrt_llm._torch.pyexecutor.py_executor");
    assert_eq!(
        named(&[trtllm, torch_ops, py_executor]),
        Some("TensorRT-LLM PyExecutor")
    );
    assert_eq!(named(&[trtllm]), Some("TensorRT-LLM C++ executor"));
    // A Triton server with the ONNX backend also loads ONNX Runtime, but is recognized as Triton.
    let ort = Module("libonnxruntime.so.1.31.1");
    assert_eq!(named(&[ort, triton]), Some("Triton Inference Server"));
    assert_eq!(named(&[ort]), Some("ONNX Runtime"));
    // Every engine that uses PyTorch may also import transformers, but is recognized as itself.
    let generate = Python("transformers.generation.utils");
    for module in [
        "vllm.v1.worker.gpu_model_runner",
        "sglang.srt.managers.scheduler",
        "text_generation_server.models.causal_lm",
        "lmdeploy.pytorch.engine.model_agent.agent",
    ] {
        let engine = known(process(&[generate, Python(module)])).unwrap();
        assert_eq!(engine.seen_by, Python(module));
    }
    // Ollama's Go program also contains llama.cpp, but must be recognized as Ollama, because Ollama's runner does not
    // call llama_decode.
    let ollama = Symbol("github.com/ollama/ollama/runner/ollamarunner.Execute");
    assert_eq!(
        named(&[Symbol("llama_decode"), ollama]),
        Some("Ollama 0.5 to 0.24, not stripped")
    );
    assert_eq!(
        named(&[Symbol("llama_decode")]),
        Some("llama.cpp, linked in")
    );
}

#[test]
fn what_has_no_engine_is_not_known() {
    assert_eq!(named(&[]), None);
    assert_eq!(
        named(&[
            Seen::Module("libcudart.so.12"),
            Seen::Module("libllamafile.so"),
            Seen::Symbol("llama_decode_internal"),
            Seen::Python("torch"),
        ]),
        None
    );
}

#[test]
fn an_engine_without_a_nameable_step_is_learnt() {
    let jax = known(process(&[Seen::Module("xla_cuda_plugin.so")])).unwrap();
    assert_eq!((jax.name, jax.step), ("JAX", "auto"));
    assert_eq!(jax.python_step(), None);
}

#[test]
fn tensorrt_llm_is_recognized_by_its_library() {
    let both = "TLLM_PROFILE_START_STOP";
    let gates = |file| tensorrt_llm_gates_itself(both, process(&[Seen::Module(file)]));
    assert!(gates("libtensorrt_llm.so"));
    // A process that loads only one of the following libraries does not run TensorRT-LLM's executors, which read the
    // variable.
    assert!(!gates("libnvinfer_plugin_tensorrt_llm.so"));
    assert!(!gates("libtensorrt_llm_nixl_wrapper.so"));
    assert!(!gates("libnvinfer.so.10"));
    let python = [
        Seen::Module("libtensorrt_llm.so"),
        Seen::Module("libth_common.so"),
    ];
    let reads = |variable, seen| tensorrt_llm_gates_itself(variable, process(seen));
    assert!(reads(both, &python));
    assert!(!reads("TLLM_GPTM_PROFILE_START_STOP", &python));
    assert!(reads("TLLM_GPTM_PROFILE_START_STOP", &python[..1]));
    assert!(!reads("TLLMPROF_START_STOP", &python));
    // All rows for TensorRT-LLM name NVIDIA's repository of TensorRT-LLM as their source.
    for engine in ENGINES.iter().filter(|e| e.name.starts_with("TensorRT")) {
        assert!(engine.source.starts_with("NVIDIA/TensorRT-LLM at "));
    }
}

fn table() -> String {
    let code = |text: &str| format!("`{}`", text.replace('|', "\\|"));
    let mut table = String::from(
        "| engine | recognised where | step | note | source | tried |\n|---|---|---|---|---|---|\n",
    );
    for engine in ENGINES {
        let seen_by = match engine.seen_by {
            Seen::Module(name) => format!("{} is loaded", code(&format!("{name}*"))),
            Seen::Symbol(name) => format!("{} is defined", code(name)),
            Seen::Python(name) => format!("Python has imported {}", code(name)),
        };
        let tried = match engine.tried {
            "" => "no",
            figures => figures,
        };
        writeln!(
            table,
            "| {} | {seen_by} | {} | {} | {} | {tried} |",
            engine.name,
            code(engine.step),
            engine.note,
            engine.source
        )
        .unwrap();
    }
    table
}

fn batch_table() -> String {
    let mut table = String::from(
        "| engine | requests | tokens | prefill tokens | read in |\n|---|---|---|---|---|\n",
    );
    let rows = ENGINES.iter().flat_map(|engine| {
        let rows = engine.batch.iter();
        rows.map(move |row| (engine.name, row))
    });
    for (name, row) in rows {
        writeln!(
            table,
            "| {name} | `{}` | `{}` | `{}` | {} |",
            row.requests, row.tokens, row.prefill_tokens, row.versions
        )
        .unwrap();
    }
    table
}

#[test]
fn the_page_for_users_shows_these_tables() {
    let page = include_str!("../../../../docs/engines.md");
    for table in [table(), batch_table()] {
        assert!(
            page.contains(&table),
            "docs/engines.md must hold this table:\n{table}"
        );
    }
}

#[test]
fn what_is_in_a_batch_is_known_of_python_steps_alone() {
    for engine in ENGINES {
        for row in engine.batch {
            let formulas = row.formulas().unwrap_or_else(|e| panic!("{row:?}: {e}"));
            assert!(!formulas.arguments.is_empty(), "{row:?}");
            assert!(engine.python_step().is_some(), "{}", engine.name);
            for text in [row.requests, row.tokens, row.prefill_tokens, row.versions] {
                assert!(!text.contains("  ") && !text.contains('|'), "{text:?}");
            }
        }
    }
    let of = |text| batches(&PyFunction::parse(text).unwrap()).len();
    assert_eq!(of("sglang.srt.managers.scheduler:Scheduler.run_batch"), 1);
    assert_eq!(of("sglang.srt.managers.scheduler:Scheduler.run"), 0);
}

#[test]
fn python_steps_are_the_python_rows_in_their_order() {
    let rows = ENGINES
        .iter()
        .filter(|engine| engine.step.starts_with("py:"));
    let rows: Vec<_> = rows.map(|engine| engine.name).collect();
    let steps: Vec<_> = python_steps().map(|(engine, _)| engine.name).collect();
    assert_eq!(steps, rows);
    let mut functions = HashSet::new();
    for (engine, function) in python_steps() {
        assert!(
            functions.insert(function),
            "{}: {function} twice",
            engine.name
        );
    }
    // The first recognized row counts. So if one module imports the module of another row, the row of the importing
    // module must come first.
    let place = |name| steps.iter().position(|step| *step == name).expect(name);
    assert!(place("vLLM, model runner V2") < place("vLLM, engine V0"));
    assert!(place("TensorRT-LLM PyExecutor") < place("transformers generate"));
}

#[test]
fn steps_are_distinguished_from_other_functions() {
    let is_step = |text| is_step(&PyFunction::parse(text).unwrap());
    assert!(is_step("sglang.srt.managers.scheduler:Scheduler.run_batch"));
    assert!(!is_step("sglang.srt.managers.scheduler:Scheduler.run"));
}

#[test]
fn steps_for_nobody_are_steps_of_known_engines_with_nothing_in_their_batch() {
    for dummy in DUMMY_STEPS {
        let function = PyFunction::parse(dummy.function).unwrap();
        let mut steps = python_steps();
        assert!(
            steps.any(|(engine, _)| engine.name.starts_with(dummy.engine)),
            "{dummy:?}"
        );
        assert!(python_steps().all(|(_, step)| step != dummy.function));
        assert!(is_step(&function));
        assert_eq!(batches(&function), NOTHING);
    }
    assert!(NOTHING.iter().all(|batch| batch.formulas().is_ok()));
}
