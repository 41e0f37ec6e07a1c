//! The categories of GPU idle time. A finding claims the time of one or more of them.

/// A category of the GPU's idle time, by the activity of the host meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Claim {
    /// The host launches work, or runs short code between launches.
    Launch,
    /// The host waits for the GPU, or runs short code after such a wait.
    Wait,
    /// The host waits for a copy to the host's memory, or runs short code after such a copy.
    Read,
    /// The host makes a copy without waiting for it, or runs short code around such a copy.
    Copy,
    Capture,
    Allocation,
    /// The host is in another CUDA call.
    Call,
    Gc,
    Gil,
    /// The host's thread has no processor.
    Delayed,
    /// The host's thread is asleep or blocked in code.
    Blocked,
    /// The host runs code outside calls.
    Code,
    /// The host waits for requests. No finding claims this time.
    Requests,
    Unknown,
}
