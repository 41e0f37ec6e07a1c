//! The known engines, and the definition of their steps.
//!
//! This file contains only data: for each engine, the sign by which it is recognized, and the rule of `TLLMPROF_STEP`
//! that counts its steps. A step runs once for each batch given to the GPU, in the process that drives the GPU. A step
//! is never an iteration of the engine's scheduling loop, because an idle loop iterates too: windows that were counted
//! by such iterations contained no GPU work (TensorRT-LLM pull request 13744).
//!
//! `docs/engines.md` shows the table in this file to users, and a test compares that page with this file.

use std::fmt;

use tllmprof_config::PyFunction;

use crate::batch::{self, Batch};
use crate::dummy::{DUMMY_STEPS, NOTHING};

/// A sign that a process runs an engine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seen {
    /// A shared library is loaded whose file name begins with this text.
    Module(&'static str),
    /// The executable or a library defines a symbol with exactly this name.
    Symbol(&'static str),
    /// Python has imported the module with this name.
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

/// An engine, or one of several ways in which an engine can run.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    pub name: &'static str,
    pub seen_by: Seen,
    /// The rule of `TLLMPROF_STEP` that counts the engine's steps. The rule is `auto` if no function of the engine can
    /// be named as the step; the step is then learnt from the calls.
    pub step: &'static str,
    /// Remarks for users: other events that the rule counts, and steps that it leaves out.
    pub note: &'static str,
    /// Repository or package, version and files from which the rule was derived.
    pub source: &'static str,
    /// A real run in which the steps counted by this rule were compared with the engine's own count: version, GPU, date
    /// and figures. Empty if no run was compared.
    pub tried: &'static str,
    /// Formulas that compute the size of a batch from the arguments of the step function, if that is a Python
    /// function. The first formulas that can be evaluated are used.
    pub batch: &'static [Batch],
}

impl Engine {
    /// Returns the engine's step function as `MODULE:QUALNAME`, if it is a Python function.
    pub fn python_step(&self) -> Option<&'static str> {
        self.step.strip_prefix("py:")
    }

    /// Returns true if a process that has loaded the engine does its regular work in calls of the engine's step
    /// function. Until the first of these calls, the process only runs the engine's warm-up. Returns false for
    /// libraries such as transformers, which programs also use without the step function, and for engines whose step is
    /// a range.
    pub fn is_awaited(&self) -> bool {
        let is_function = self.step.starts_with("py:") || self.step.starts_with("sym:");
        is_function && SERVERS.iter().any(|name| self.name.starts_with(name))
    }
}

/// Prefixes of the names of engines that serve requests (see [`Engine::is_awaited`]).
const SERVERS: [&str; 5] = [
    "TensorRT-LLM",
    "vLLM",
    "SGLang",
    "Text Generation Inference",
    "LMDeploy",
];

/// The known engines. The first engine that is recognized counts. So an engine that loads a library or imports a module
/// of another engine must come before that other engine.
pub const ENGINES: &[Engine] = &[
    // TensorRT-LLM: no rule uses the NVTX ranges of its C++ code, because they are compiled out unless a build
    // enables them (NVTX_DISABLE is on by default). The ranges of its Python executor are always emitted, in the
    // domain TensorRT-LLM, so a row below uses them.
    Engine {
        name: "TensorRT-LLM PyExecutor",
        seen_by: Seen::Python("tensorrt_llm._torch.pyexecutor.py_executor"),
        step: "py:tensorrt_llm._torch.pyexecutor.py_executor:PyExecutor._forward_step",
        note: "the dummy requests that measure memory at start count, which its own counter leaves \
               out; attention data parallelism counts dummy batches",
        source: "NVIDIA/TensorRT-LLM at 00043967 (2026): \
                 tensorrt_llm/_torch/pyexecutor/py_executor.py, _util.py",
        tried: "",
        batch: &[],
    },
    Engine {
        name: "TensorRT-LLM C++ executor in Triton",
        seen_by: Seen::Module("libtriton_tensorrtllm.so"),
        step: r"sym:^tensorrt_llm::(\w+::)*TrtGptModelInflightBatching::executeBatch\(",
        note: "passes that schedule nothing are not counted",
        source: "NVIDIA/TensorRT-LLM at 00825c4e: \
                 cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp",
        tried: "",
        batch: &[],
    },
    Engine {
        name: "TensorRT-LLM PyExecutor by its ranges",
        seen_by: Seen::Module("libth_common.so"),
        step: r"nvtx:^\[Executor\] _forward_step [0-9]@TensorRT-LLM",
        note: "under Python with backend=\"tensorrt\" the C++ executor runs: name its step yourself",
        source: "NVIDIA/TensorRT-LLM at 00043967 (2026): \
                 tensorrt_llm/_torch/pyexecutor/py_executor.py, tensorrt_llm/_utils.py",
        tried: "",
        batch: &[],
    },
    Engine {
        name: "TensorRT-LLM C++ executor",
        seen_by: Seen::Module("libtensorrt_llm.so"),
        step: r"sym:^tensorrt_llm::(\w+::)*TrtGptModelInflightBatching::executeBatch\(",
        note: "passes that schedule nothing are not counted",
        source: "NVIDIA/TensorRT-LLM at 00825c4e: \
                 cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp",
        tried: "",
        batch: &[],
    },
    // vLLM: the step of model runners V1 and V2 is the function that prepares the inputs, which runs only for real
    // batches. Worker.execute_model is not used, because vLLM also calls it when nothing is scheduled: for finished
    // requests, and while vLLM waits for KV transfers. The NVTX range execute_context_… is not used, because it exists
    // only with the cuda profiler in `--profiler-config`.
    Engine {
        name: "vLLM, model runner V2",
        seen_by: Seen::Python("vllm.v1.worker.gpu.model_runner"),
        step: "py:vllm.v1.worker.gpu.model_runner:GPUModelRunner.prepare_inputs",
        note: "runs in each worker; counts a few warm-up batches; dummy batches of data parallelism \
               count, as idle",
        source: "vllm 0.14.0, 0.18.0, 0.22.0, 0.27.0, 0.33.0: vllm/v1/worker/gpu/model_runner.py, \
                 vllm/v1/worker/gpu_worker.py",
        tried: "0.26.0, H200, 2026-11-26: offline 1043, by its executor 1041 and 2 warm-up batches; server 1044, 1043 until it was killed",
        batch: batch::VLLM_V2,
    },
    Engine {
        name: "vLLM, model runner V1",
        seen_by: Seen::Python("vllm.v1.worker.gpu_model_runner"),
        step: "py:vllm.v1.worker.gpu_model_runner:GPUModelRunner._prepare_inputs",
        note: "runs in each worker; dummy batches of data parallelism count, as idle, from the first \
               batch on",
        source: "vllm 0.8.5, 0.10.0, 0.11.0, 0.14.0, 0.18.0, 0.22.0, 0.27.0, 0.33.0: \
                 vllm/v1/worker/gpu_model_runner.py, vllm/v1/engine/core.py",
        tried: "",
        batch: batch::VLLM_V1,
    },
    Engine {
        name: "vLLM, engine V0",
        seen_by: Seen::Python("vllm.worker.model_runner"),
        step: "py:vllm.worker.model_runner:ModelRunner.execute_model",
        note: "runs in each worker; the run that measures memory at start counts, as do passes of \
               a draft model that is on several GPUs",
        source: "vllm 0.8.5, 0.10.0: vllm/worker/model_runner.py, vllm/worker/worker_base.py",
        tried: "",
        batch: &[],
    },
    // SGLang: its NVTX range scheduler.run_batch is not used, because it requires SGLANG_ENABLE_NVTX_SCHEDULER=1 and
    // the package nvtx. Its step[DECODE …] is not an NVTX range, but a record_function of the PyTorch profiler.
    Engine {
        name: "SGLang",
        seen_by: Seen::Python("sglang.srt.managers.scheduler"),
        step: "py:sglang.srt.managers.scheduler:Scheduler.run_batch",
        note: "runs in each scheduler process; idle batches of attention data parallelism count, as \
               do batches that a prefill server has already run",
        source: "sglang 0.4.6, 0.5.3, 0.5.10, 0.5.16, 0.5.23: sglang/srt/managers/scheduler.py, \
                 sglang/srt/disaggregation/decode.py, prefill.py, sglang/srt/utils/nvtx_utils.py",
        tried: "0.5.16, H200, 2026-11-26: server 1068, 1069 until it was killed",
        batch: batch::SGLANG,
    },
    Engine {
        name: "Text Generation Inference, flash attention",
        seen_by: Seen::Python("text_generation_server.models.flash_causal_lm"),
        step: "py:text_generation_server.models.flash_causal_lm:FlashCausalLM.generate_token",
        note: "runs in each Python shard, not in the Rust launcher or router; prefills and the \
               warm-up count",
        source: "huggingface/text-generation-inference v1.0.0, v2.0.0, v3.0.0, v3.3.7: \
                 server/text_generation_server/models/flash_causal_lm.py, server.py",
        tried: "",
        batch: &[],
    },
    Engine {
        name: "Text Generation Inference",
        seen_by: Seen::Python("text_generation_server.models.causal_lm"),
        step: "py:text_generation_server.models.causal_lm:CausalLM.generate_token",
        note: "models without flash attention; prefills and the warm-up count",
        source: "huggingface/text-generation-inference v1.0.0, v2.0.0, v3.0.0, v3.3.7: \
                 server/text_generation_server/models/causal_lm.py, server.py",
        tried: "",
        batch: &[],
    },
    Engine {
        name: "Text Generation Inference, encoder and decoder",
        seen_by: Seen::Python("text_generation_server.models.seq2seq_lm"),
        step: "py:text_generation_server.models.seq2seq_lm:Seq2SeqLM.generate_token",
        note: "as above",
        source: "huggingface/text-generation-inference v1.0.0, v2.0.0, v3.0.0, v3.3.7: \
                 server/text_generation_server/models/seq2seq_lm.py",
        tried: "",
        batch: &[],
    },
    Engine {
        name: "Text Generation Inference, Idefics",
        seen_by: Seen::Python("text_generation_server.models.idefics_causal_lm"),
        step: "py:text_generation_server.models.idefics_causal_lm:IdeficsCausalLM.generate_token",
        note: "as above",
        source: "huggingface/text-generation-inference v2.0.0, v3.0.0, v3.3.7: \
                 server/text_generation_server/models/idefics_causal_lm.py",
        tried: "",
        batch: &[],
    },
    Engine {
        name: "Text Generation Inference, Mamba",
        seen_by: Seen::Python("text_generation_server.models.mamba"),
        step: "py:text_generation_server.models.mamba:Mamba.generate_token",
        note: "as above",
        source: "huggingface/text-generation-inference v2.0.0, v3.0.0, v3.3.7: \
                 server/text_generation_server/models/mamba.py",
        tried: "",
        batch: &[],
    },
    // TurboMind: both function names are in .dynsym of the released wheel, and calls go through its PLT, so they can
    // be hooked. Its NVTX ranges for single layers require a build with FT_NVTX=ON.
    Engine {
        name: "LMDeploy TurboMind",
        seen_by: Seen::Module("_turbomind"),
        step: r"sym:^turbomind::(ModelExecutor::Impl::Run|LlamaBatch(<\w+>)?::Forward)\(",
        note: "one thread a GPU counts; passes with nothing to run, behind the last request, count; before 0.12 the \
               function is LlamaBatch::Forward",
        source: "lmdeploy 0.18.0: symbols of lmdeploy/turbomind/_turbomind; InternLM/lmdeploy \
                 v0.16.0: src/turbomind/engine/model_executor.cc, engine.cc; v0.6.0 to v0.11.0: \
                 src/turbomind/models/llama/LlamaBatch.cc",
        tried: "0.18.0, H200, 2026-11-26: 576, of which 18 had nothing to run; a kernel of each of the others ran 558 times by \
                nsys",
        batch: &[],
    },
    Engine {
        name: "LMDeploy PyTorch engine",
        seen_by: Seen::Python("lmdeploy.pytorch.engine.model_agent.agent"),
        step: "py:lmdeploy.pytorch.engine.model_agent.agent:BaseModelAgent._async_model_forward",
        note: "steps that only poll a KV transfer are not counted, dummy batches of data \
               parallelism are",
        source: "lmdeploy 0.12.0, 0.12.3, 0.15.0, 0.18.0: \
                 lmdeploy/pytorch/engine/model_agent/agent.py",
        tried: "",
        batch: batch::LMDEPLOY,
    },
    // LMDeploy 0.7 to 0.11: the same method as in the row above, in the module that contained it before that module
    // became a package. In later versions the package still exports the class under the old name, so the row above
    // must come first.
    Engine {
        name: "LMDeploy PyTorch engine, 0.7 to 0.11",
        seen_by: Seen::Python("lmdeploy.pytorch.engine.model_agent"),
        step: "py:lmdeploy.pytorch.engine.model_agent:BaseModelAgent._async_model_forward",
        note: "dummy batches of data parallelism count",
        source: "lmdeploy 0.7.3, 0.8.0, 0.9.0, 0.10.2, 0.11.1: \
                 lmdeploy/pytorch/engine/model_agent.py",
        tried: "",
        batch: batch::LMDEPLOY,
    },
    Engine {
        name: "Triton Inference Server",
        seen_by: Seen::Module("libtritonserver.so"),
        step: "sym:^TRITONBACKEND_ModelInstanceExecute$",
        note: "each model of an ensemble counts; a Python backend drives the GPU in a stub process",
        source: "triton-inference-server/core at 05295b70: src/backend_manager.cc, \
                 src/backend_model_instance.cc; python_backend at 00bec0aa: src/stub_launcher.cc",
        tried: "",
        batch: &[],
    },
    // The next three rows are for llama.cpp and for Ollama, which contains it. In 2026, llama.cpp's own programs moved
    // from llama_decode to llama_process. Neither function calls the other, so one rule can count both functions.
    //
    // Ollama's official releases up to 0.24 are stripped (-ldflags=-w -s), so the first of these rows matches only
    // builds that are not stripped. Those builds also contain llama_decode, but Ollama's own runner (`ollamarunner`)
    // does not call it.
    Engine {
        name: "Ollama 0.5 to 0.24, not stripped",
        seen_by: Seen::Symbol("github.com/ollama/ollama/runner/ollamarunner.Execute"),
        step: "sym:^ggml_backend_sched_graph_compute_async$",
        note: "a graph of ggml: a prompt of several micro-batches counts several",
        source: "ollama/ollama v0.24.0: ml/backend/ggml/ggml.go, Dockerfile",
        tried: "",
        batch: &[],
    },
    Engine {
        name: "llama.cpp, Ollama 0.30 and later",
        seen_by: Seen::Module("libllama.so"),
        step: "sym:^llama_(decode|process)$",
        note: "the warm-up run counts, as do calls for a draft model and each part of a long prompt",
        source: "llama.cpp at 0c1e57098 (in llama-cpp-python 0.3.36): include/llama.h, \
                 tools/server/server-context.cpp, common/common.cpp; ollama/ollama v0.33.0-rc2: \
                 cmake/local.cmake, LLAMA_CPP_VERSION",
        tried: "0c1e57098, H100, 2026-11-22: windows of 51 of 200 steps, as nsys has them",
        batch: &[],
    },
    Engine {
        name: "llama.cpp, linked in",
        seen_by: Seen::Symbol("llama_decode"),
        step: "sym:^llama_(decode|process)$",
        note: "as above; a stripped static build has no such symbol",
        source: "llama.cpp at 0c1e57098 (in llama-cpp-python 0.3.36): include/llama.h, \
                 src/llama-context.cpp",
        tried: "",
        batch: &[],
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
        tried: "",
        batch: &[],
    },
    Engine {
        name: "ONNX Runtime from Python",
        seen_by: Seen::Python("onnxruntime.capi.onnxruntime_inference_collection"),
        step: "py:onnxruntime.capi.onnxruntime_inference_collection:Session.run",
        note: "runs of every session count; run_with_iobinding is another function",
        source: "onnxruntime 1.31.1: onnxruntime/capi/onnxruntime_inference_collection.py",
        tried: "1.30.0, H200, 2026-11-27: 1200 of 1200",
        batch: &[],
    },
    // For programs that use ONNX Runtime from C or C++, no step function can be named: the library's only exported
    // function, OrtGetApiBase, returns a table of function pointers, and the library in the wheel has no .symtab.
    Engine {
        name: "ONNX Runtime",
        seen_by: Seen::Module("libonnxruntime.so"),
        step: "auto",
        note: "no function of it can be named: the library has no symbols but OrtGetApiBase",
        source: "onnxruntime 1.31.1 (the wheel without CUDA): symbols of libonnxruntime.so.1.31.1",
        tried: "1.30.0, H200, 2026-11-27: with a binding and as a CUDA graph 1200 of 1200 each",
        batch: &[],
    },
    // transformers: importing `generate` also imports continuous batching, so a process always shows the signs of both.
    // The step functions of all these rows are watched, and the first one that is called is the step (`python_steps`).
    // Most models keep the default prepare_inputs_for_generation, or their own version calls the default one. For
    // models that never call the default one, the row after it (`inputs prepared by the model`) names a function that
    // runs after each forward pass.
    Engine {
        name: "transformers generate",
        seen_by: Seen::Python("transformers.generation.utils"),
        step: "py:transformers.generation.utils:GenerationMixin.prepare_inputs_for_generation",
        note: "entered before each forward pass; an assistant model's passes are no steps, and with \
               chunked prefill each chunk counts",
        source: "transformers 4.52.4, 4.57.1, 5.0.0, 5.10.4, 5.23.0: \
                 transformers/generation/utils.py, transformers/models/*/modeling_*.py (in 4.40.0 \
                 every model overrides it)",
        tried: "5.17.0, H200, 2026-11-26: 384 of 384",
        batch: &[],
    },
    Engine {
        name: "transformers generate, inputs prepared by the model",
        seen_by: Seen::Python("transformers.generation.utils"),
        step: "py:transformers.generation.utils:GenerationMixin._update_model_kwargs_for_generation",
        note: "entered after each forward pass; an assistant model's passes are no steps",
        source: "transformers 4.40.0, 4.52.4, 4.57.1, 5.0.0, 5.10.4, 5.23.0: \
                 transformers/generation/utils.py (up to 4.57 Mamba overrides it)",
        tried: "",
        batch: &[],
    },
    Engine {
        name: "transformers continuous batching",
        seen_by: Seen::Python("transformers.generation.continuous_batching.continuous_api"),
        step: "py:transformers.generation.continuous_batching.continuous_api:\
               ContinuousBatchProcessor._generation_step",
        note: "waiting for requests and the warm-up are not counted",
        source: "transformers 5.0.0, 5.10.4, 5.23.0: \
                 transformers/generation/continuous_batching/continuous_api.py",
        tried: "5.17.0, H200, 2026-11-26 and 27: 384 of 384; server 394, 395 until it was killed",
        batch: batch::TRANSFORMERS,
    },
    // In transformers 4.57, the step function of the batching manager runs only twice, to capture a graph. Replays of
    // the graph do not call it, so this rule counts update_batch instead.
    Engine {
        name: "transformers continuous batching, 4.57",
        seen_by: Seen::Python("transformers.generation.continuous_batching.continuous_api"),
        step: "py:transformers.generation.continuous_batching.continuous_api:\
               ContinuousBatchProcessor.update_batch",
        note: "entered after each batch; waiting for requests is not counted",
        source: "transformers 4.57.1: \
                 transformers/generation/continuous_batching/continuous_api.py",
        tried: "",
        batch: &[],
    },
    // Calls reach JAX's CUDA plugin through a table of function pointers that GetPjrtApi returns. The step function is
    // part of the user's program, so no rule can name it.
    Engine {
        name: "JAX",
        seen_by: Seen::Module("xla_cuda_plugin.so"),
        step: "auto",
        note: "the step is a function of the program: name it with py:, or it is learnt",
        source: "OpenXLA PJRT plugin jax_plugins/xla_cuda12 and xla_cuda13: xla_cuda_plugin.so",
        tried: "",
        batch: &[],
    },
];

/// Returns the first known engine for whose sign `seen` returns true.
pub fn known(seen: impl Fn(&Seen) -> bool) -> Option<&'static Engine> {
    ENGINES.iter().find(|engine| seen(&engine.seen_by))
}

/// Returns all step functions that are Python functions, as `MODULE:QUALNAME`, with their engines.
///
/// The signs that [`known`] checks do not show which of these functions makes the steps: an engine may import runners
/// that it does not use, and a model may override a function. So all of these functions that exist are watched, and the
/// first one that is called is the step. Two names can refer to the same function, because a package may import
/// functions from its own modules.
pub fn python_steps() -> impl Iterator<Item = (&'static Engine, &'static str)> {
    ENGINES
        .iter()
        .filter_map(|engine| Some((engine, engine.python_step()?)))
}

/// Returns true if a call of this function counts as a step of an engine. The function may return before most of the
/// step's work is done.
pub fn is_step(function: &PyFunction) -> bool {
    let function = function.to_string();
    python_steps().any(|(_, step)| step == function) || is_dummy(&function)
}

fn is_dummy(function: &str) -> bool {
    DUMMY_STEPS.iter().any(|dummy| dummy.function == function)
}

/// Returns the formulas for the batches that are passed to this function. The list is empty if the function is not a
/// step of an engine, or if no formula is known.
pub fn batches(function: &PyFunction) -> &'static [Batch] {
    let function = function.to_string();
    if is_dummy(&function) {
        return NOTHING;
    }
    let step = python_steps().find(|(_, step)| *step == function);
    step.map_or(&[], |(engine, _)| engine.batch)
}

/// Returns true if TensorRT-LLM in this process reads `variable`, and itself starts and stops the profiler in the
/// iterations that the variable names. The C++ executor (`Executor::Impl::executionLoop`) reads
/// `TLLM_PROFILE_START_STOP`, or if that is not set, `TLLM_GPTM_PROFILE_START_STOP`. The Python executor
/// (`PyExecutor._profiler`) reads only the first variable. Both executors need `libtensorrt_llm.so`; the Python
/// executor also needs `libth_common.so`.
///
/// The result is reliable only once the program has loaded its libraries, and Python loads them long after the process
/// has started. The result is also true for programs that load the library but run neither executor, although they open
/// no window for this variable. Examples are TensorRT-LLM's visual generation, which has its own variable, and the
/// older `ModelRunner`.
///
/// Source: NVIDIA/TensorRT-LLM, `cpp/tensorrt_llm/executor/executorImpl.cpp` at 036a60f7,
/// `tensorrt_llm/_torch/pyexecutor/py_executor.py` at 00043967, `tensorrt_llm/_torch/visual_gen/pipeline.py` at
/// 006eea62.
pub fn tensorrt_llm_gates_itself(variable: &str, seen: impl Fn(&Seen) -> bool) -> bool {
    const EXECUTOR: Seen = Seen::Python("tensorrt_llm._torch.pyexecutor.py_executor");
    let reads = match variable {
        "TLLM_PROFILE_START_STOP" => true,
        "TLLM_GPTM_PROFILE_START_STOP" => {
            !seen(&Seen::Module("libth_common.so")) && !seen(&EXECUTOR)
        }
        _ => false,
    };
    reads && (seen(&Seen::Module("libtensorrt_llm.so")) || seen(&EXECUTOR))
}

#[cfg(test)]
mod tests;
