//! Engines that are known, and what their step is.
//!
//! Data only: how an engine is recognised, and the rule of `TLLMPROF_STEP` that counts its steps.
//! A step is what runs once for each batch given to the GPU, in the process that drives the GPU. It
//! is never a pass of the engine's loop: an idle loop passes too, and windows counted by passes
//! held no GPU work (TensorRT-LLM pull request 13744).
//!
//! `docs/engines.md` shows this table to users; a test keeps the two the same.

use std::fmt;

/// What tells that an engine is in the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seen {
    /// A shared library whose file name begins so is loaded.
    Module(&'static str),
    /// The executable or a library defines a symbol of exactly this name.
    Symbol(&'static str),
    /// Python has imported this module.
    Python(&'static str),
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Module(name) => write!(f, "{name} is loaded"),
            Self::Symbol(name) => write!(f, "{name} is defined"),
            Self::Python(name) => write!(f, "Python has imported {name}"),
        }
    }
}

/// One engine, or one of the ways in which it runs.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    pub name: &'static str,
    pub seen_by: Seen,
    /// A rule of `TLLMPROF_STEP`. `auto`: the engine has no step that can be named, and it is
    /// learnt.
    pub step: &'static str,
    /// What else the step counts, or leaves out.
    pub note: &'static str,
    /// Repository or package, version and files in which the step was read.
    pub source: &'static str,
    /// Whether this step was counted on a real run and compared with the truth.
    pub tried: bool,
}

impl Engine {
    /// Whether this version can count by the step: Python functions wait for the Python layer.
    pub fn takes_effect(&self) -> bool {
        self.step.starts_with("sym:") || self.step.starts_with("nvtx:")
    }
}

/// In the order in which they are looked for: who loads another's library or imports another's
/// module stands before it.
pub const ENGINES: &[Engine] = &[
    // TensorRT-LLM. Its C++ ranges are compiled out unless a build asks for them (NVTX_DISABLE is on
    // by default); those of its Python executor are always given, in the domain TensorRT-LLM.
    Engine {
        name: "TensorRT-LLM PyExecutor",
        seen_by: Seen::Python("tensorrt_llm._torch.pyexecutor.py_executor"),
        step: "py:tensorrt_llm._torch.pyexecutor.py_executor:PyExecutor._forward_step",
        note: "the dummy requests that measure memory at start count, which its own counter leaves \
               out; attention data parallelism counts dummy batches",
        source: "NVIDIA/TensorRT-LLM at 00043967 (2026): \
                 tensorrt_llm/_torch/pyexecutor/py_executor.py, _util.py",
        tried: false,
    },
    Engine {
        name: "TensorRT-LLM C++ executor in Triton",
        seen_by: Seen::Module("libtriton_tensorrtllm.so"),
        step: r"sym:^tensorrt_llm::(\w+::)*TrtGptModelInflightBatching::executeBatch\(",
        note: "passes that schedule nothing are not counted",
        source: "NVIDIA/TensorRT-LLM at 00825c4e: \
                 cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp",
        tried: false,
    },
    Engine {
        name: "TensorRT-LLM PyExecutor by its ranges",
        seen_by: Seen::Module("libth_common.so"),
        step: r"nvtx:^\[Executor\] _forward_step [0-9]@TensorRT-LLM",
        note: "under Python with backend=\"tensorrt\" the C++ executor runs: name its step yourself",
        source: "NVIDIA/TensorRT-LLM at 00043967 (2026): \
                 tensorrt_llm/_torch/pyexecutor/py_executor.py, tensorrt_llm/_utils.py",
        tried: false,
    },
    Engine {
        name: "TensorRT-LLM C++ executor",
        seen_by: Seen::Module("libtensorrt_llm.so"),
        step: r"sym:^tensorrt_llm::(\w+::)*TrtGptModelInflightBatching::executeBatch\(",
        note: "passes that schedule nothing are not counted",
        source: "NVIDIA/TensorRT-LLM at 00825c4e: \
                 cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp",
        tried: false,
    },
    // vLLM: Worker.execute_model also runs with nothing scheduled, for finished requests and while
    // KV transfers are awaited; the preparation of the inputs runs for real batches alone. Its range
    // execute_context_… is opened only under `--profiler-config` with the profiler cuda.
    Engine {
        name: "vLLM, model runner V2",
        seen_by: Seen::Python("vllm.v1.worker.gpu.model_runner"),
        step: "py:vllm.v1.worker.gpu.model_runner:GPUModelRunner.prepare_inputs",
        note: "runs in each worker; counts a few warm-up batches, not the dummy batches of data \
               parallelism",
        source: "vllm 0.33.0: vllm/v1/worker/gpu/model_runner.py, vllm/v1/worker/gpu_worker.py",
        tried: false,
    },
    Engine {
        name: "vLLM, model runner V1",
        seen_by: Seen::Python("vllm.v1.worker.gpu_model_runner"),
        step: "py:vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs",
        note: "runs in each worker; dummy batches are not counted",
        source: "vllm 0.33.0: vllm/v1/worker/gpu_model_runner.py, vllm/v1/engine/core.py",
        tried: false,
    },
    // SGLang: the range scheduler.run_batch needs SGLANG_ENABLE_NVTX_SCHEDULER=1 and the package
    // nvtx; step[DECODE …] is a record_function of the PyTorch profiler, no NVTX range.
    Engine {
        name: "SGLang",
        seen_by: Seen::Python("sglang.srt.managers.scheduler"),
        step: "py:sglang.srt.managers.scheduler:Scheduler.run_batch",
        note: "runs in each scheduler process; idle batches of attention data parallelism count, as \
               do batches that a prefill server has already run",
        source: "sglang 0.5.23: sglang/srt/managers/scheduler.py, sglang/srt/utils/nvtx_utils.py",
        tried: false,
    },
    Engine {
        name: "Text Generation Inference, flash attention",
        seen_by: Seen::Python("text_generation_server.models.flash_causal_lm"),
        step: "py:text_generation_server.models.flash_causal_lm:FlashCausalLM.generate_token",
        note: "runs in each Python shard, not in the Rust launcher or router; prefills and the \
               warm-up count",
        source: "huggingface/text-generation-inference v3.3.7: \
                 server/text_generation_server/models/flash_causal_lm.py, server.py",
        tried: false,
    },
    Engine {
        name: "Text Generation Inference",
        seen_by: Seen::Python("text_generation_server.models.causal_lm"),
        step: "py:text_generation_server.models.causal_lm:CausalLM.generate_token",
        note: "models without flash attention; prefills and the warm-up count",
        source: "huggingface/text-generation-inference v3.3.7: \
                 server/text_generation_server/models/causal_lm.py, server.py",
        tried: false,
    },
    // TurboMind: both names are in .dynsym of the released wheel, and calls pass its PLT. The ranges
    // of single layers need FT_NVTX=ON.
    Engine {
        name: "LMDeploy TurboMind",
        seen_by: Seen::Module("_turbomind"),
        step: r"sym:^turbomind::(ModelExecutor::Impl::Run|LlamaBatch(<\w+>)?::Forward)\(",
        note: "one thread a GPU counts; before 0.12 the function is LlamaBatch::Forward",
        source: "lmdeploy 0.18.0: symbols of lmdeploy/turbomind/_turbomind; InternLM/lmdeploy \
                 v0.16.0: src/turbomind/engine/model_executor.cc, engine.cc; v0.6.0 to v0.11.0: \
                 src/turbomind/models/llama/LlamaBatch.cc",
        tried: false,
    },
    Engine {
        name: "LMDeploy PyTorch engine",
        seen_by: Seen::Python("lmdeploy.pytorch.engine.model_agent.agent"),
        step: "py:lmdeploy.pytorch.engine.model_agent.agent:BaseModelAgent._async_model_forward",
        note: "steps that only poll a KV transfer are not counted, dummy batches of data \
               parallelism are",
        source: "lmdeploy 0.18.0: lmdeploy/pytorch/engine/model_agent/agent.py",
        tried: false,
    },
    Engine {
        name: "Triton Inference Server",
        seen_by: Seen::Module("libtritonserver.so"),
        step: "sym:^TRITONBACKEND_ModelInstanceExecute$",
        note: "each model of an ensemble counts; a Python backend drives the GPU in a stub process",
        source: "triton-inference-server/core at 05295b70: src/backend_manager.cc, \
                 src/backend_model_instance.cc; python_backend at 00bec0aa: src/stub_launcher.cc",
        tried: false,
    },
    // llama.cpp's own programs went from llama_decode to llama_process in 2026; neither calls the
    // other, so that one rule serves both.
    // Ollama's own releases up to 0.24 are stripped (-ldflags=-w -s), so this sees other builds;
    // those have llama_decode too and do not call it in the newer runner.
    Engine {
        name: "Ollama 0.5 to 0.24, not stripped",
        seen_by: Seen::Symbol("github.com/ollama/ollama/runner/ollamarunner.Execute"),
        step: "sym:^ggml_backend_sched_graph_compute_async$",
        note: "a graph of ggml: a prompt of several micro-batches counts several",
        source: "ollama/ollama v0.24.0: ml/backend/ggml/ggml.go, Dockerfile",
        tried: false,
    },
    Engine {
        name: "llama.cpp, Ollama 0.30 and later",
        seen_by: Seen::Module("libllama.so"),
        step: "sym:^llama_(decode|process)$",
        note: "the warm-up run counts, as do calls for a draft model and each part of a long prompt",
        source: "llama.cpp at 0c1e57098 (in llama-cpp-python 0.3.36): include/llama.h, \
                 tools/server/server-context.cpp, common/common.cpp; ollama/ollama v0.33.0-rc2: \
                 cmake/local.cmake, LLAMA_CPP_VERSION",
        tried: true,
    },
    Engine {
        name: "llama.cpp, linked in",
        seen_by: Seen::Symbol("llama_decode"),
        step: "sym:^llama_(decode|process)$",
        note: "as above; a stripped static build has no such symbol",
        source: "llama.cpp at 0c1e57098 (in llama-cpp-python 0.3.36): include/llama.h, \
                 src/llama-context.cpp",
        tried: false,
    },
    Engine {
        name: "ONNX Runtime GenAI",
        seen_by: Seen::Module("libonnxruntime-genai.so"),
        step: "sym:^OgaGenerator_GenerateNextToken$",
        note: "the prompt is run by OgaGenerator_AppendTokens and AppendTokenSequences, which are not \
               counted",
        source: "onnxruntime-genai 0.18.0: symbols of libonnxruntime-genai.so and of the Python \
                 module, which imports them; microsoft/onnxruntime-genai at 0058287b: \
                 src/ort_genai_c.h",
        tried: false,
    },
    Engine {
        name: "ONNX Runtime from Python",
        seen_by: Seen::Python("onnxruntime.capi.onnxruntime_inference_collection"),
        step: "py:onnxruntime.capi.onnxruntime_inference_collection:Session.run",
        note: "runs of every session count; run_with_iobinding is another function",
        source: "onnxruntime 1.31.1: onnxruntime/capi/onnxruntime_inference_collection.py",
        tried: false,
    },
    // The API is a table of function pointers behind OrtGetApiBase, the one function exported, and
    // the library in the wheel has no .symtab.
    Engine {
        name: "ONNX Runtime",
        seen_by: Seen::Module("libonnxruntime.so"),
        step: "auto",
        note: "no function of it can be named: the library has no symbols but OrtGetApiBase",
        source: "onnxruntime 1.31.1 (the wheel without CUDA): symbols of libonnxruntime.so.1.31.1",
        tried: false,
    },
    // transformers: importing generate imports continuous batching too, so both are always seen.
    Engine {
        name: "transformers generate",
        seen_by: Seen::Python("transformers.generation.utils"),
        step: "py:transformers.generation.utils:GenerationMixin._update_model_kwargs_for_generation",
        note: "entered after each forward pass; with an assistant model its passes count too",
        source: "transformers 5.23.0: transformers/generation/utils.py",
        tried: false,
    },
    Engine {
        name: "transformers continuous batching",
        seen_by: Seen::Python("transformers.generation.continuous_batching.continuous_api"),
        step: "py:transformers.generation.continuous_batching.continuous_api:\
               ContinuousBatchProcessor._generation_step",
        note: "waiting for requests and the warm-up are not counted",
        source: "transformers 5.23.0: \
                 transformers/generation/continuous_batching/continuous_api.py",
        tried: false,
    },
    // Calls reach the plugin through the table that GetPjrtApi returns; the step is the user's own.
    Engine {
        name: "JAX",
        seen_by: Seen::Module("xla_cuda_plugin.so"),
        step: "auto",
        note: "the step is a function of the program: name it with py:, or it is learnt",
        source: "OpenXLA PJRT plugin jax_plugins/xla_cuda12 and xla_cuda13: xla_cuda_plugin.so",
        tried: false,
    },
];

/// The first engine that `seen` recognises. Its step counts where it
/// [takes effect](Engine::takes_effect), else the step is learnt.
pub fn known(seen: impl Fn(&Seen) -> bool) -> Option<&'static Engine> {
    ENGINES.iter().find(|engine| seen(&engine.seen_by))
}

/// Whether TensorRT-LLM is in the process and reads `variable` itself: it starts and stops the
/// profiler in those iterations. The C++ executor (`Executor::Impl::executionLoop`) reads
/// `TLLM_PROFILE_START_STOP` and, without it, `TLLM_GPTM_PROFILE_START_STOP`; the Python executor
/// (`PyExecutor._profiler`) the first alone. Both need `libtensorrt_llm.so`, and Python's
/// `libth_common.so` besides.
///
/// Ask late: Python loads the library long after the process has started. Programs that load it
/// and run neither executor (its visual generation, which has a variable of its own, and the older
/// `ModelRunner`) are taken for it too, and open no window by that name.
///
/// Source: NVIDIA/TensorRT-LLM, `cpp/tensorrt_llm/executor/executorImpl.cpp` at 036a60f7,
/// `tensorrt_llm/_torch/pyexecutor/py_executor.py` at 00043967,
/// `tensorrt_llm/_torch/visual_gen/pipeline.py` at 006eea62.
pub fn tensorrt_llm_gates_itself(variable: &str, seen: impl Fn(&Seen) -> bool) -> bool {
    let reads = match variable {
        "TLLM_PROFILE_START_STOP" => true,
        "TLLM_GPTM_PROFILE_START_STOP" => !seen(&Seen::Module("libth_common.so")),
        _ => false,
    };
    reads && seen(&Seen::Module("libtensorrt_llm.so"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Write;

    use super::*;
    use crate::step::Step;

    /// What a process has: libraries, symbols and Python modules.
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
            assert!(signs.insert(engine.seen_by), "{} twice", engine.seen_by);
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
            let native = matches!(step, Step::Symbol { .. } | Step::Nvtx { .. });
            assert_eq!(engine.takes_effect(), native, "{}", engine.name);
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
            }
        }
    }

    #[test]
    fn rules_match_the_names_that_were_read() {
        // Demangled names of lmdeploy 0.18.0, and of 0.6.0, where the class was a template.
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
        // With and without a namespace for the version of the ABI.
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
        assert!(
            name.is_match(b"[Executor] _forward_step 12: 1 ctx reqs, 7 ctx tokens, 3 gen reqs")
        );
        assert!(!name.is_match(b"_forward_step_inter_pp"));
        let llama = symbol_rule("llama.cpp, linked in");
        assert!(llama.is_match(b"llama_decode") && llama.is_match(b"llama_process"));
        assert!(!llama.is_match(b"llama_decode_internal"));
    }

    #[test]
    fn the_more_specific_row_wins() {
        use Seen::{Module, Python, Symbol};
        // A server of the C++ executor inside Triton.
        let triton = Module("libtritonserver.so");
        let trtllm = Module("libtensorrt_llm.so");
        let backend = Module("libtriton_tensorrtllm.so");
        assert_eq!(
            named(&[triton, trtllm, backend]),
            Some("TensorRT-LLM C++ executor in Triton")
        );
        // A Python process, before and after the Python layer can tell its modules.
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
        // Triton's ONNX backend loads ONNX Runtime.
        let ort = Module("libonnxruntime.so.1.31.1");
        assert_eq!(named(&[ort, triton]), Some("Triton Inference Server"));
        assert_eq!(named(&[ort]), Some("ONNX Runtime"));
        // Every engine on PyTorch may import transformers.
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
        // Ollama's Go program holds llama.cpp too; its runner does not call llama_decode.
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
        assert!(!jax.takes_effect());
    }

    #[test]
    fn tensorrt_llm_is_told_by_its_library() {
        let both = "TLLM_PROFILE_START_STOP";
        let gates = |file| tensorrt_llm_gates_itself(both, process(&[Seen::Module(file)]));
        assert!(gates("libtensorrt_llm.so"));
        // The plugins are loaded alone by programs that run TensorRT by themselves.
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
        // Each row of it is an engine that gates itself.
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
            let tried = if engine.tried { "yes" } else { "no" };
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

    #[test]
    fn the_page_for_users_shows_this_table() {
        let page = include_str!("../../../docs/engines.md");
        let table = table();
        assert!(
            page.contains(&table),
            "docs/engines.md must hold this table:\n{table}"
        );
    }
}
