//! The settings of tllmprof: their names, grammar, defaults and help texts.
//!
//! Both the preloaded library and the command read settings through [`Settings::from_env`]. So both accept the same
//! values with the same meaning, and report a wrong value in the same words. This crate neither panics nor prints,
//! because the library runs it inside other programs while it is being loaded.

#![forbid(unsafe_code)]

pub mod batch;
pub mod comparison;
pub mod condition;
pub mod control;
mod environment;
pub mod error;
pub mod flag;
pub mod formula;
pub mod function;
mod gpu_times;
pub mod kernels;
pub mod level;
pub mod masked;
pub mod number;
pub mod nvtx_name;
pub mod printable;
pub mod range;
pub mod ranks;
pub mod router;
pub mod run;
pub mod scope;
pub mod setting;
pub mod settings;
pub mod stacks;
pub mod step;
pub mod template;
pub mod time;
pub mod torch_trace;
pub mod trigger;
pub mod unknown;
pub mod warmup;

mod nearest;

pub use batch::BatchFunction;
pub use comparison::ComparisonOperator;
pub use condition::Condition;
pub use control::Control;
pub use error::{BadValue, Problem};
pub use formula::{Formulas, NoFormula};
pub use function::PyFunction;
pub use gpu_times::GpuTimes;
pub use kernels::{KernelSamples, KernelSelection};
pub use level::Level;
pub use nearest::{distance, nearest};
pub use nvtx_name::NvtxName;
pub use printable::{Printable, printable};
pub use range::{IterationRange, Listed, WindowList};
pub use ranks::{RANK_VARIABLES, RankSource, Ranked, Ranks, TORCHRUN_VARIABLES};
pub use router::PerfectRouter;
pub use run::{JOB_VARIABLES, RunId};
pub use scope::{NativeFunctions, ScopeRule};
pub use setting::{Heading, Reader, Setting, ValueForm};
pub use settings::{SETTINGS, Settings, variable, variable_names};
pub use step::Step;
pub use template::{PathTemplate, Placeholders};
pub use torch_trace::TracePath;
pub use trigger::Trigger;
pub use unknown::Unknown;
pub use warmup::Warmup;
