//! The inference engines that tllmprof knows.
//!
//! Data and look-ups: the engine in a process, the function that counts its steps and the formulas for its
//! batches, steps without requests, steps of draft models, functions that get ranges, functions that are scopes,
//! functions that wait for requests, the replica and the groups of a process, and the processes that drive the
//! GPU.

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
pub use replicas::{From, REPLICAS, Replicas, ValuePath};
pub use scopes::{SCOPES, Scopes};
