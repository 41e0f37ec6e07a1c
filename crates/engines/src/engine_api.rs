//! Python functions of known engines whose calls `TLLM_LLMAPI_ENABLE_NVTX=1` marks with NVTX ranges.
//!
//! This file contains only data. A function is listed if it is called once for each request, batch or iteration: entry
//! points of the API, handlers of the server, the tokenizer, the scheduler, the model runner, the sampler, and
//! functions that handle the output of a batch. Functions that are called for each token of each request, or by an idle
//! loop, are not listed.
//!
//! The functions of several versions of an engine are listed together. The library marks those that exist in the
//! version that runs. A method is listed with the class that defines it. Functions may be decorated. Two names may
//! refer to the same function, because a package may import functions from its own modules.
//!
//! `docs/engines.md` shows the table in this file to users, and a test compares that page with this file.

use std::fmt;

/// A Python function of an engine whose calls are marked with NVTX ranges.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Marked {
    pub module: &'static str,
    pub qualname: &'static str,
}

impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.module, self.qualname)
    }
}

/// The functions of one engine whose calls are marked with NVTX ranges.
#[derive(Clone, Copy, Debug)]
pub struct EngineApi {
    pub name: &'static str,
    /// Qualified names of the functions, by the module that contains them.
    pub functions: &'static [(&'static str, &'static [&'static str])],
    /// Remarks for users: functions that are left out, or work that a range does not include.
    pub note: &'static str,
    /// Repository or package, and the versions in which the functions were found.
    pub source: &'static str,
}

/// Returns the marked functions of all engines. A function that several engines list is returned once.
pub fn api_functions() -> impl Iterator<Item = Marked> {
    ENGINE_APIS
        .iter()
        .flat_map(|engine| engine.functions)
        .flat_map(|&(module, names)| {
            let marked = move |&qualname| Marked { module, qualname };
            names.iter().map(marked)
        })
}

pub const ENGINE_APIS: &[EngineApi] = &[
    EngineApi {
        name: "vLLM V1",
        functions: &[
            ("vllm.entrypoints.llm", &["LLM.generate", "LLM.chat"]),
            ("vllm.v1.engine.async_llm", &["AsyncLLM.generate"]),
            // The first two of these functions exist in vLLM through version 0.14, and the other two from 0.18 on.
            (
                "vllm.entrypoints.openai.serving_chat",
                &["OpenAIServingChat.create_chat_completion"],
            ),
            (
                "vllm.entrypoints.openai.serving_completion",
                &["OpenAIServingCompletion.create_completion"],
            ),
            (
                "vllm.entrypoints.openai.chat_completion.serving",
                &["OpenAIServingChat.create_chat_completion"],
            ),
            (
                "vllm.entrypoints.openai.completion.serving",
                &["OpenAIServingCompletion.create_completion"],
            ),
            // The first of these functions exists in vLLM through version 0.11, and the second from 0.14 on.
            ("vllm.v1.engine.processor", &["Processor.process_inputs"]),
            (
                "vllm.v1.engine.input_processor",
                &["InputProcessor.process_inputs"],
            ),
            (
                "vllm.renderers.base",
                &[
                    "BaseRenderer.tokenize_prompt",
                    "BaseRenderer.tokenize_prompt_async",
                ],
            ),
            (
                "vllm.v1.engine.core",
                &["EngineCore.step", "EngineCore.step_with_batch_queue"],
            ),
            (
                "vllm.v1.core.sched.scheduler",
                &["Scheduler.schedule", "Scheduler.update_from_output"],
            ),
            (
                "vllm.v1.worker.gpu_model_runner",
                &[
                    "GPUModelRunner.execute_model",
                    "GPUModelRunner.sample_tokens",
                ],
            ),
            (
                "vllm.v1.worker.gpu.model_runner",
                &[
                    "GPUModelRunner.execute_model",
                    "GPUModelRunner.sample_tokens",
                ],
            ),
            ("vllm.v1.sample.sampler", &["Sampler.forward"]),
            ("vllm.v1.worker.gpu.sample.sampler", &["Sampler.__call__"]),
            (
                "vllm.v1.engine.output_processor",
                &["OutputProcessor.process_outputs"],
            ),
        ],
        note: "process_outputs holds the detokenisation of the whole batch; a handler's range ends \
               where a streamed answer begins",
        source: "vllm 0.8.5, 0.10.0, 0.11.0, 0.14.0, 0.18.0, 0.22.0, 0.27.0, 0.33.0",
    },
    // The functions that propose draft tokens. Each model runner of vLLM calls one of them once in each step. That call
    // contains all passes of the draft model.
    EngineApi {
        name: "vLLM V1, speculative decoding",
        functions: &[
            (
                "vllm.v1.spec_decode.eagle",
                &["EagleProposer.propose", "SpecDecodeBaseProposer.propose"],
            ),
            (
                "vllm.v1.spec_decode.llm_base_proposer",
                &["SpecDecodeBaseProposer.propose"],
            ),
            (
                "vllm.v1.spec_decode.step3p5",
                &["Step3p5MTPProposer.propose"],
            ),
            ("vllm.v1.spec_decode.medusa", &["MedusaProposer.propose"]),
            (
                "vllm.v1.spec_decode.ngram_proposer",
                &["NgramProposer.propose"],
            ),
            (
                "vllm.v1.spec_decode.ngram_proposer_gpu",
                &["NgramProposerGPU.propose"],
            ),
            (
                "vllm.v1.spec_decode.suffix_decoding",
                &["SuffixDecodingProposer.propose"],
            ),
            (
                "vllm.v1.worker.gpu.spec_decode.eagle.speculator",
                &["EagleSpeculator.propose"],
            ),
            (
                "vllm.v1.worker.gpu.spec_decode.autoregressive.speculator",
                &["AutoRegressiveSpeculator.propose"],
            ),
            (
                "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator",
                &["TargetDependentARSpeculator.propose"],
            ),
            (
                "vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator",
                &["StandaloneARSpeculator.propose"],
            ),
            (
                "vllm.v1.worker.gpu.spec_decode.multi_module_mtp.speculator",
                &["MultiModuleMTPSpeculator.propose"],
            ),
            (
                "vllm.v1.worker.gpu.spec_decode.ngram.speculator",
                &["NgramGPUSpeculator.propose"],
            ),
            (
                "vllm.v1.worker.gpu.spec_decode.dflash.speculator",
                &["DFlashSpeculator.propose"],
            ),
        ],
        note: "drafts are part of the step that they follow, and no steps of their own; a range \
               holds all passes that draft for one step",
        source: "vllm 0.10.0, 0.18.0, 0.26.0, 0.33.0",
    },
    EngineApi {
        name: "SGLang",
        functions: &[
            (
                "sglang.srt.entrypoints.engine",
                &["Engine.generate", "Engine.async_generate"],
            ),
            (
                "sglang.srt.entrypoints.http_server",
                &[
                    "generate_request",
                    "openai_v1_chat_completions",
                    "openai_v1_completions",
                ],
            ),
            (
                "sglang.srt.managers.tokenizer_manager",
                &[
                    "TokenizerManager.generate_request",
                    "TokenizerManager._tokenize_one_request",
                    "TokenizerManager._batch_tokenize_and_process",
                    "TokenizerManager._handle_batch_output",
                ],
            ),
            (
                "sglang.srt.managers.schedule_batch",
                &[
                    "ScheduleBatch.prepare_for_extend",
                    "ScheduleBatch.prepare_for_decode",
                ],
            ),
            (
                "sglang.srt.managers.scheduler",
                &["Scheduler.run_batch", "Scheduler.process_batch_result"],
            ),
            (
                "sglang.srt.managers.tp_worker",
                &["TpModelWorker.forward_batch_generation"],
            ),
            (
                "sglang.srt.model_executor.model_runner",
                &["ModelRunner.forward", "ModelRunner.sample"],
            ),
            (
                "sglang.srt.managers.detokenizer_manager",
                &["DetokenizerManager.handle_batch_token_id_out"],
            ),
        ],
        note: "get_next_batch_to_run is left out: an idle scheduler calls it all the time",
        source: "sglang 0.4.6, 0.5.3, 0.5.10, 0.5.16, 0.5.23",
    },
    EngineApi {
        name: "SGLang, speculative decoding",
        functions: &[
            (
                "sglang.srt.speculative.eagle_worker",
                &[
                    "EAGLEWorker.draft",
                    "EAGLEWorker.verify",
                    "EAGLEWorker.forward_draft_extend",
                    "EAGLEWorker.forward_draft_extend_after_decode",
                ],
            ),
            (
                "sglang.srt.speculative.eagle_worker_v2",
                &[
                    "EagleDraftWorker.draft",
                    "EagleDraftWorker._draft_extend_for_prefill",
                    "EagleDraftWorker._draft_extend_for_decode",
                    "EAGLEWorkerV2.verify",
                ],
            ),
            (
                "sglang.srt.speculative.multi_layer_eagle_worker_v2",
                &[
                    "MultiLayerEagleDraftWorker.draft",
                    "MultiLayerEagleDraftWorker._draft_extend_for_prefill",
                    "MultiLayerEagleDraftWorker._draft_extend_for_decode",
                    "MultiLayerEagleWorkerV2.verify",
                ],
            ),
            (
                "sglang.srt.speculative.frozen_kv_mtp_worker_v2",
                &[
                    "FrozenKVMTPDraftWorker.draft",
                    "FrozenKVMTPDraftWorker._draft_extend_for_prefill",
                    "FrozenKVMTPDraftWorker._draft_extend_for_decode",
                ],
            ),
            (
                "sglang.srt.speculative.ngram_worker",
                &["NGRAMWorker._prepare_draft_tokens"],
            ),
        ],
        note: "drafts are part of the step that they are for, and no steps of their own; verify is \
               the pass of the model itself",
        source: "sglang 0.5.3, 0.5.16, 0.5.23",
    },
    EngineApi {
        name: "TensorRT-LLM LLM API",
        functions: &[
            (
                "tensorrt_llm.llmapi.llm",
                &["BaseLLM.generate", "BaseLLM.generate_async"],
            ),
            (
                "tensorrt_llm.serve.openai_server",
                &["OpenAIServer.openai_chat", "OpenAIServer.openai_completion"],
            ),
            (
                "tensorrt_llm.inputs.registry",
                &["DefaultInputProcessor.__call__"],
            ),
            (
                "tensorrt_llm.executor.executor",
                &["GenerationExecutor.generate_async"],
            ),
            (
                "tensorrt_llm._torch.pyexecutor.py_executor",
                &[
                    "PyExecutor._schedule",
                    "PyExecutor._forward_step",
                    "PyExecutor._sample_async",
                    "PyExecutor._update_requests",
                    "PyExecutor._handle_responses",
                ],
            ),
        ],
        note: "detokenisation is called for each token of each request and is left out; by the same \
               variable TensorRT-LLM gives some ranges of its own, in the domain TensorRT-LLM",
        source: "NVIDIA/TensorRT-LLM: llm.py at 4c05a748, openai_server.py at e7f7345e, registry.py \
                 at 3a5845e2, executor.py at ed53795b, py_executor.py at 00043967",
    },
    EngineApi {
        name: "transformers",
        functions: &[
            (
                "transformers.generation.utils",
                &[
                    "GenerationMixin.generate",
                    "GenerationMixin._prefill",
                    "GenerationMixin._sample",
                    "GenerationMixin._beam_search",
                    "GenerationMixin._assisted_decoding",
                ],
            ),
            (
                "transformers.generation.logits_process",
                &["LogitsProcessorList.__call__"],
            ),
            (
                "transformers.generation.continuous_batching.continuous_api",
                &[
                    "ContinuousMixin.generate_batch",
                    "ContinuousBatchingManager.add_request",
                    "ContinuousBatchingManager._generation_step",
                    "ContinuousBatchProcessor.update_batch",
                ],
            ),
            (
                "transformers.generation.continuous_batching.scheduler",
                &[
                    "FIFOScheduler.schedule_batch",
                    "PrefillFirstScheduler.schedule_batch",
                ],
            ),
            (
                "transformers.tokenization_utils_base",
                &[
                    "PreTrainedTokenizerBase.__call__",
                    "PreTrainedTokenizerBase.encode",
                    "PreTrainedTokenizerBase.apply_chat_template",
                    "PreTrainedTokenizerBase.batch_decode",
                ],
            ),
        ],
        note: "decode is left out: up to 4.57 batch_decode calls it for each sequence",
        source: "transformers 4.40.0, 4.52.4, 4.57.1, 5.0.0, 5.10.4, 5.23.0",
    },
    EngineApi {
        name: "Text Generation Inference",
        functions: &[
            (
                "text_generation_server.server",
                &[
                    "TextGenerationService.Prefill",
                    "TextGenerationService.Decode",
                ],
            ),
            (
                "text_generation_server.models.flash_causal_lm",
                &[
                    "FlashCausalLMBatch.from_pb",
                    "FlashCausalLMBatch.concatenate",
                    "FlashCausalLMBatch.filter",
                    "FlashCausalLM.generate_token",
                    "FlashCausalLM.forward",
                ],
            ),
            (
                "text_generation_server.models.vlm_causal_lm",
                &["VlmCausalLM.forward"],
            ),
            (
                "text_generation_server.models.causal_lm",
                &[
                    "CausalLMBatch.from_pb",
                    "CausalLM.generate_token",
                    "CausalLM.forward",
                ],
            ),
            (
                "text_generation_server.utils.tokens",
                &["HeterogeneousNextTokenChooser.__call__"],
            ),
        ],
        note: "the HTTP server and the tokeniser of requests are in the Rust router; from_pb \
               tokenises for the shard",
        source: "huggingface/text-generation-inference v1.0.0, v2.0.0, v3.0.0, v3.3.7: \
                 server/text_generation_server",
    },
    EngineApi {
        name: "LMDeploy",
        functions: &[
            ("lmdeploy.pipeline", &["Pipeline.__call__"]),
            // The first of these modules exists in LMDeploy through version 0.11, and the next two from 0.12 on.
            (
                "lmdeploy.serve.async_engine",
                &["AsyncEngine.generate", "AsyncEngine._get_prompt_input"],
            ),
            (
                "lmdeploy.serve.core.async_engine",
                &["AsyncEngine.generate", "AsyncEngine.preprocess"],
            ),
            (
                "lmdeploy.serve.processors.multimodal",
                &["MultimodalProcessor.get_prompt_input"],
            ),
            (
                "lmdeploy.serve.openai.api_server",
                &["chat_completions_v1", "completions_v1"],
            ),
            ("lmdeploy.tokenizer", &["Tokenizer.encode"]),
            ("lmdeploy.pytorch.paging.scheduler", &["Scheduler.schedule"]),
            // The first of these modules exists in LMDeploy through version 0.11, and the second from 0.12 on.
            (
                "lmdeploy.pytorch.engine.model_agent",
                &[
                    "BaseModelAgent._async_model_forward",
                    "BaseModelAgent.async_sampling_logits",
                ],
            ),
            (
                "lmdeploy.pytorch.engine.model_agent.agent",
                &[
                    "BaseModelAgent._async_model_forward",
                    "BaseModelAgent.async_sampling_logits",
                ],
            ),
            // LMDeploy has the function in the first of these modules through version 0.10, and in the second from
            // 0.11 on.
            (
                "lmdeploy.pytorch.engine.engine",
                &["Engine._make_infer_outputs"],
            ),
            (
                "lmdeploy.pytorch.engine.engine_loop",
                &["EngineLoop._make_infer_outputs"],
            ),
        ],
        note: "in 0.18 the handlers are local functions and are left out; of TurboMind only what is \
               in front of it is Python",
        source: "lmdeploy 0.7.3, 0.8.0, 0.9.0, 0.10.2, 0.11.1, 0.12.0, 0.12.3, 0.15.0, 0.18.0",
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Write;

    use super::*;
    use tllmprof_config::PyFunction;
    use tllmprof_config::Step;

    #[test]
    fn every_function_parses_as_a_rule_does() {
        for marked in api_functions() {
            let text = marked.to_string();
            let function = PyFunction::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(function.module, marked.module);
            assert_eq!(function.qualname, marked.qualname);
            let rule = format!("py:{text}");
            assert_eq!(Step::parse(&rule).unwrap().to_string(), rule);
        }
    }

    #[test]
    fn no_function_is_there_twice() {
        let mut seen = HashSet::new();
        for marked in api_functions() {
            assert!(seen.insert(marked), "{marked} twice");
        }
        let rows = ENGINE_APIS.iter().flat_map(|engine| engine.functions);
        assert_eq!(seen.len(), rows.map(|(_, names)| names.len()).sum());
    }

    #[test]
    fn every_engine_is_whole_and_not_too_much() {
        let mut names = HashSet::new();
        for engine in ENGINE_APIS {
            assert!(names.insert(engine.name), "{} twice", engine.name);
            let mut modules = HashSet::new();
            for (module, functions) in engine.functions {
                assert!(modules.insert(module), "{module} twice");
                assert!(!functions.is_empty(), "{module}");
            }
            let count: usize = engine.functions.iter().map(|(_, names)| names.len()).sum();
            assert!((5..30).contains(&count), "{}: {count}", engine.name);
            for text in [engine.name, engine.note, engine.source] {
                assert!(!text.is_empty(), "{}", engine.name);
                assert!(!text.contains("  ") && !text.contains('|'), "{text:?}");
            }
        }
    }

    fn tables() -> String {
        let mut tables = String::from("| engine | module | functions |\n|---|---|---|\n");
        for engine in ENGINE_APIS {
            for (module, names) in engine.functions {
                let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
                let names = names.join(", ");
                writeln!(tables, "| {} | `{module}` | {names} |", engine.name).unwrap();
            }
        }
        tables.push_str("\n| engine | note | read in |\n|---|---|---|\n");
        for engine in ENGINE_APIS {
            let (name, note, source) = (engine.name, engine.note, engine.source);
            writeln!(tables, "| {name} | {note} | {source} |").unwrap();
        }
        tables
    }

    #[test]
    fn the_page_for_users_shows_these_tables() {
        let page = include_str!("../../../docs/engines.md");
        let tables = tables();
        assert!(
            page.contains(&tables),
            "docs/engines.md must hold these tables:\n{tables}"
        );
    }
}
