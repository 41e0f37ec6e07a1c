//! What a record says, before any analysis: facts about the process, iterations and windows, and what the passes over the
//! events share.

pub mod batch;
pub mod busy;
pub mod causes;
pub mod facts;
pub mod gpu_spans;
pub mod groups;
pub mod idle;
pub mod iteration;
pub mod kernel_name;
pub mod launches;
pub mod named;
pub mod qualify;
pub mod raw;
pub mod recording;
pub mod requests;
pub mod samples;
pub mod spans;
pub mod tally;
pub mod turnaround;
pub mod window;
pub mod work;
