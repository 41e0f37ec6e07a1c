//! The categories of GPU idle time. A finding explains ("claims") the idle time of one or more
//! categories.

/// A category of the GPU's idle time, by the activity of the host during that time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Claim {
    /// The host launches work, or runs short code between launches.
    Launch,
    /// The host waits for the GPU, or runs short code after such a wait.
    Wait,
    /// The host waits for a copy to host memory, or runs short code after such a copy.
    Read,
    /// The host is in a copy that does not wait for the GPU, or runs short code around such a copy.
    Copy,
    Capture,
    Allocation,
    Compilation,
    /// The host is in a CUDA call of another kind than those above.
    Call,
    Gc,
    Gil,
    /// The host's thread is ready to run but has no processor.
    Delayed,
    /// The host's thread is asleep or blocked outside CUDA calls.
    Blocked,
    /// The host's thread waits for another thread or a child process of the program that prepares its input.
    Input,
    /// The host runs code outside CUDA calls.
    Code,
    /// The host waits for requests. GPU idle time during such waits is normal, so no finding explains it.
    Requests,
    Unknown,
}
