//! Contents of a record before any analysis: facts about the process, its iterations and windows, and the data
//! structures that the passes over events share.

pub mod batch;
pub mod busy;
pub mod causes;
pub mod facts;
pub mod gpu_spans;
pub mod groups;
pub mod idle;
pub mod iteration;
pub mod kernel_name;
pub mod launchers;
pub mod launches;
pub mod named;
pub mod origin;
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
pub mod work_classes;
