//! Where engines wait for requests.
//!
//! Data only: Python functions of the thread that makes steps, in which it blocks while there is nothing to do. One that
//! an idle loop calls all the time is not here, nor one that waits for another process of the engine.
//!
//! `docs/engines.md` shows this table to users; a test keeps the two the same.

/// A function in which an engine waits for requests.
#[derive(Clone, Copy, Debug)]
pub struct IdleWait {
    pub engine: &'static str,
    pub module: &'static str,
    pub qualname: &'static str,
    /// Package and version in which this was read.
    pub source: &'static str,
}

pub const IDLE_WAITS: &[IdleWait] = &[
    // Blocks in queue.get() while the scheduler has no request; then it takes the requests that came.
    IdleWait {
        engine: "vLLM V1",
        module: "vllm.v1.engine.core",
        qualname: "EngineCoreProc._process_input_queue",
        source: "vllm 0.26.0: vllm/v1/engine/core.py",
    },
    IdleWait {
        engine: "SGLang with --sleep-on-idle",
        module: "sglang.srt.managers.scheduler",
        qualname: "IdleSleeper.maybe_sleep",
        source: "sglang 0.5.3: sglang/srt/managers/scheduler.py",
    },
    IdleWait {
        engine: "SGLang with --sleep-on-idle, later",
        module: "sglang.srt.managers.scheduler_components.idle_sleeper",
        qualname: "IdleSleeper.maybe_sleep",
        source: "sglang 0.5.16: sglang/srt/managers/scheduler_components/idle_sleeper.py",
    },
    IdleWait {
        engine: "TensorRT-LLM PyExecutor",
        module: "tensorrt_llm._torch.pyexecutor.executor_request_queue",
        qualname: "ExecutorRequestQueue._get_from_request_queue",
        source: "NVIDIA/TensorRT-LLM at 007a7508: tensorrt_llm/_torch/pyexecutor/executor_request_queue.py",
    },
];

impl IdleWait {
    /// The function as `MODULE:QUALNAME`.
    #[must_use]
    pub fn function(&self) -> String {
        format!("{}:{}", self.module, self.qualname)
    }
}

/// Whether a function of this qualified name waits for requests.
#[must_use]
pub fn is_idle_wait(qualname: &str) -> bool {
    IDLE_WAITS.iter().any(|wait| wait.qualname == qualname)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use tllmprof_config::PyFunction;

    #[test]
    fn every_function_can_be_asked_for() {
        for wait in IDLE_WAITS {
            assert!(PyFunction::parse(&wait.function()).is_ok(), "{wait:?}");
            assert!(is_idle_wait(wait.qualname));
        }
        assert!(!is_idle_wait("IdleSleeper"));
    }

    #[test]
    fn the_page_shows_the_table() {
        let mut table = String::from("| engine | function | source |\n|---|---|---|\n");
        for wait in IDLE_WAITS {
            let (engine, function) = (wait.engine, wait.function());
            writeln!(table, "| {engine} | `{function}` | {} |", wait.source).unwrap();
        }
        let page = include_str!("../../../docs/engines.md");
        assert!(
            page.contains(&table),
            "docs/engines.md must hold this table:\n{table}"
        );
    }
}
