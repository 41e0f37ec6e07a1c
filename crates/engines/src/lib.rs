//! The inference engines that tllmprof knows.
//!
//! Data, and the questions that it answers: which engine is in a process, what counts its steps,
//! where these hold what is in a batch, which steps are for nobody, which are a draft's, which of its functions are marked with ranges, which are scopes, in which
//! it waits for requests, which replica and which groups a process belongs to, and which of its processes drive the GPU.

#![forbid(unsafe_code)]

mod batch;
mod drafts;
mod dummy;
mod engine_api;
mod engines;
mod groups;
mod idle;
mod names;
mod replicas;
mod scopes;

pub use batch::Batch;
pub use drafts::{DRAFTS, Draft};
pub use dummy::{DUMMY_STEPS, DummyStep};
pub use engine_api::{ENGINE_APIS, EngineApi, Marked, api_functions};
pub use engines::{
    ENGINES, Engine, Seen, batches, is_step, known, python_steps, tensorrt_llm_gates_itself,
};
pub use groups::{DESCRIBED_GROUPS, ENGINE_GROUPS, EngineGroups, GROUPS};
pub use idle::{IDLE_SLEEPS, IDLE_WAITS, IdleSleep, IdleWait, is_idle_wait, sleeps_for_requests};
pub use names::{PROCESS_NAMES, ProcessName, drivers};
pub use replicas::{From, Place, REPLICAS, Replicas};
pub use scopes::{SCOPES, Scopes};
