//! The contents of a record: data about the process, its iterations and windows, and its stack samples. Also data
//! structures that other modules use while they read a record, such as tables of busy times and of launches.

pub(crate) mod batch;
pub(crate) mod busy;
pub(crate) mod by_thread;
pub(crate) mod causes;
pub(crate) mod certain_idle;
pub(crate) mod facts;
pub(crate) mod gpu_spans;
pub(crate) mod groups;
pub(crate) mod idle;
pub(crate) mod iteration;
pub(crate) mod kernel_name;
pub(crate) mod kernel_windows;
pub(crate) mod launchers;
pub(crate) mod launches;
pub(crate) mod named;
pub(crate) mod origin;
pub(crate) mod qualify;
pub(crate) mod raw;
pub(crate) mod recording;
pub(crate) mod requests;
pub(crate) mod samples;
pub(crate) mod spans;
pub(crate) mod tally;
pub(crate) mod turnaround;
pub(crate) mod window;
pub(crate) mod work;
pub(crate) mod work_classes;
