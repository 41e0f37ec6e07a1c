//! Functions of known engines that launch GPU work outside the modules of the model.
//!
//! This file contains only data. If GPU time is reported by layer (`TLLMPROF_LAYERS`), the GPU work that one of these
//! functions launches is attributed to the function. None of the functions calls the model.

/// Functions of one Python module that are scopes: GPU work is attributed to the function that launches it.
#[derive(Clone, Copy, Debug)]
pub struct ModuleScopes {
    pub module: &'static str,
    pub qualnames: &'static [&'static str],
    /// Package and version in which the functions were found.
    pub source: &'static str,
}

pub const SCOPES: &[ModuleScopes] = &[
    ModuleScopes {
        module: "vllm.v1.worker.gpu.model_runner",
        qualnames: &[
            "GPUModelRunner.add_requests",
            "GPUModelRunner.update_requests",
            "GPUModelRunner.prepare_inputs",
            "GPUModelRunner.prepare_attn",
            "GPUModelRunner.sample",
            "GPUModelRunner.postprocess_sampled",
            "GPUModelRunner.postprocess_num_computed_tokens",
        ],
        source: "vllm 0.26.0: vllm/v1/worker/gpu/model_runner.py",
    },
    ModuleScopes {
        module: "vllm.v1.worker.gpu_model_runner",
        qualnames: &[
            "GPUModelRunner._update_states",
            "GPUModelRunner._prepare_inputs",
            "GPUModelRunner._preprocess",
            "GPUModelRunner._sample",
            "GPUModelRunner._bookkeeping_sync",
        ],
        source: "vllm 0.26.0: vllm/v1/worker/gpu_model_runner.py",
    },
    ModuleScopes {
        module: "sglang.srt.model_executor.model_runner",
        qualnames: &["ModelRunner.sample"],
        source: "sglang 0.5.16: python/sglang/srt/model_executor/model_runner.py",
    },
    ModuleScopes {
        module: "sglang.srt.managers.schedule_batch",
        qualnames: &[
            "ScheduleBatch.prepare_for_extend",
            "ScheduleBatch.prepare_for_decode",
        ],
        source: "sglang 0.5.16: python/sglang/srt/managers/schedule_batch.py",
    },
];

impl ModuleScopes {
    /// Returns the names of the functions, as `MODULE:QUALNAME`.
    pub fn functions(&self) -> impl Iterator<Item = String> + '_ {
        let names = self.qualnames.iter();
        names.map(|name| format!("{}:{name}", self.module))
    }
}
