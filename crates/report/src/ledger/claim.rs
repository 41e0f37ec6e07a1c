//! The categories in which findings claim time.

/// A category of the GPU's idle time, by the activity of the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Claim {
    /// The host launches, or runs short code between launches.
    Launch,
    /// The host waits for the GPU, or runs short code after that.
    Wait,
    /// The host copies data to itself and waits for the copy, or runs short code after that.
    Read,
    /// The host copies, or runs short code around that.
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
