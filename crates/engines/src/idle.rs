//! Functions in which engines wait for requests.
//!
//! This file contains only data. The first table lists Python functions of the thread that makes steps. While there are
//! no requests, this thread blocks in such a function, or calls it repeatedly. The second table lists engines whose
//! thread sleeps between steps only if there are no requests. Functions that wait for another process of the engine are
//! not listed.
//!
//! `docs/engines.md` shows the table in this file to users, and a test compares that page with this file.

/// A Python function in which an engine waits for requests.
#[derive(Clone, Copy, Debug)]
pub struct IdleWait {
    pub engine: &'static str,
    pub module: &'static str,
    pub qualname: &'static str,
    /// True if the function is called repeatedly while there are no requests. Then the time between two calls also
    /// counts as waiting, unless a step runs between them.
    pub polls: bool,
    /// Package and version in which the function was found.
    pub source: &'static str,
}

pub const IDLE_WAITS: &[IdleWait] = &[
    // In vLLM, this function blocks in queue.get() while the scheduler has no requests, and then takes the new
    // requests.
    IdleWait {
        engine: "vLLM V1",
        module: "vllm.v1.engine.core",
        qualname: "EngineCoreProc._process_input_queue",
        polls: false,
        source: "vllm 0.26.0: vllm/v1/engine/core.py",
    },
    IdleWait {
        engine: "SGLang with --sleep-on-idle",
        module: "sglang.srt.managers.scheduler",
        qualname: "IdleSleeper.maybe_sleep",
        polls: false,
        source: "sglang 0.5.3: sglang/srt/managers/scheduler.py",
    },
    IdleWait {
        engine: "SGLang with --sleep-on-idle, later",
        module: "sglang.srt.managers.scheduler_components.idle_sleeper",
        qualname: "IdleSleeper.maybe_sleep",
        polls: false,
        source: "sglang 0.5.16: sglang/srt/managers/scheduler_components/idle_sleeper.py",
    },
    // In SGLang, this function runs when the scheduler's loop has no batch and no batch is in progress. The loop then
    // checks for requests again immediately.
    IdleWait {
        engine: "SGLang",
        module: "sglang.srt.managers.scheduler",
        qualname: "Scheduler.on_idle",
        polls: true,
        source: "sglang 0.5.16, 0.5.23: sglang/srt/managers/scheduler.py",
    },
    IdleWait {
        engine: "SGLang, earlier",
        module: "sglang.srt.managers.scheduler",
        qualname: "Scheduler.self_check_during_idle",
        polls: true,
        source: "sglang 0.5.3, 0.5.10: sglang/srt/managers/scheduler.py",
    },
    IdleWait {
        engine: "TensorRT-LLM PyExecutor",
        module: "tensorrt_llm._torch.pyexecutor.executor_request_queue",
        qualname: "ExecutorRequestQueue._get_from_request_queue",
        polls: false,
        source: "NVIDIA/TensorRT-LLM at 007a7508: tensorrt_llm/_torch/pyexecutor/executor_request_queue.py",
    },
];

/// An engine whose thread sleeps between two steps only if there are no requests.
#[derive(Clone, Copy, Debug)]
pub struct IdleSleep {
    /// The beginning of the engine's name, as reports show this name.
    pub engine: &'static str,
    /// The function in which the engine's thread sleeps while there are no requests.
    pub function: &'static str,
    pub source: &'static str,
}

pub const IDLE_SLEEPS: &[IdleSleep] = &[
    // In llama.cpp, the server's loop waits on a condition variable until a task is posted. Other programs of llama.cpp
    // wait for the user's next line.
    IdleSleep {
        engine: "llama.cpp",
        function: "server_queue::start_loop",
        source: "llama.cpp at f9cec8c1f: tools/server/server-queue.cpp",
    },
];

/// Returns true if the engine with this name is one whose thread sleeps between steps only if there are no
/// requests.
#[must_use]
pub fn sleeps_for_requests(engine: &str) -> bool {
    IDLE_SLEEPS
        .iter()
        .any(|sleep| engine.starts_with(sleep.engine))
}

impl IdleWait {
    /// Returns the name of the function, as `MODULE:QUALNAME`.
    #[must_use]
    pub fn function(&self) -> String {
        format!("{}:{}", self.module, self.qualname)
    }
}

/// Returns true if a function with this qualified name waits for requests.
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
        assert!(sleeps_for_requests("llama.cpp, linked in") && !sleeps_for_requests("vLLM V1"));
    }

    #[test]
    fn the_page_shows_the_table() {
        let mut table = String::from("| engine | function | | source |\n|---|---|---|---|\n");
        for wait in IDLE_WAITS {
            let (engine, function) = (wait.engine, wait.function());
            let how = if wait.polls {
                "over and over"
            } else {
                "blocks"
            };
            writeln!(
                table,
                "| {engine} | `{function}` | {how} | {} |",
                wait.source
            )
            .unwrap();
        }
        for sleep in IDLE_SLEEPS {
            let IdleSleep {
                engine,
                function,
                source,
            } = sleep;
            writeln!(table, "| {engine} | `{function}` | sleeps | {source} |").unwrap();
        }
        let page = include_str!("../../../docs/engines.md");
        assert!(
            page.contains(&table),
            "docs/engines.md must hold this table:\n{table}"
        );
    }
}
