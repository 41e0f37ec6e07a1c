//! The inference engines that tllmprof knows, as tables of data with look-up functions.
//!
//! For each engine, the tables contain the sign by which it is recognized, its step function, and formulas for its
//! batches. Further tables contain functions with a special role: dummy steps, passes of draft models, functions that
//! get NVTX ranges, functions by which GPU time is reported, functions that wait for requests, and functions that run
//! an event loop. The last tables contain the location of replicas and groups, and the names of the processes that
//! drive the GPU. The crate also parses the text by which stacks name a Python function.

#![forbid(unsafe_code)]

mod batch;
mod drafts;
mod dummy;
mod engine_api;
mod engines;
mod event_loops;
mod groups;
mod idle;
mod names;
mod python_function;
mod replicas;
mod scopes;

pub use batch::Batch;
pub use drafts::{DRAFTS, Draft};
pub use dummy::{DUMMY_STEPS, DummyStep};
pub use engine_api::{ENGINE_APIS, EngineApi, Marked, api_functions};
pub use engines::{
    ENGINES, Engine, Seen, batches, is_step, known, python_steps, tensorrt_llm_gates_itself,
};
pub use event_loops::{runs_event_loop, waits_for_events};
pub use groups::{DESCRIBED_GROUPS, ENGINE_GROUPS, EngineGroups, GROUPS};
pub use idle::{IDLE_SLEEPS, IDLE_WAITS, IdleSleep, IdleWait, is_idle_wait, sleeps_for_requests};
pub use names::{PROCESS_NAMES, ProcessName, drivers};
pub use python_function::{PythonFunction, installed_package, is_installed_package};
pub use replicas::{From, REPLICAS, Replicas, ValuePath};
pub use scopes::{ModuleScopes, SCOPES};
