//! The calls that the learner is told of.

/// A way to wait on the device. It is noted when it is entered, and told when it returns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wait {
    /// `cuStreamSynchronize`.
    Stream,
    /// `cuEventSynchronize`.
    Event,
    /// `cuCtxSynchronize`.
    Context,
    /// `cuMemcpyDtoH`, which blocks.
    CopyToHost,
}

/// One call of the process, with the handles that tell sites apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Call {
    /// A kernel launch of any form, by its kernel's handle.
    Launch(u64),
    /// A graph launch. Which graph it is says the batch size, not the place in the program.
    GraphLaunch,
    /// A copy to the host that may return before it is done.
    CopyToHost,
    /// A copy to the device.
    CopyToDevice,
    /// A wait has returned.
    Returned(Wait),
    /// A stream capture begins on this thread: until it ends, its calls are no work.
    CaptureBegin,
    /// A stream capture ends on this thread.
    CaptureEnd,
}

/// What a thread's trail keeps of calls that are no kernel launches. Kernel handles are pointers
/// and never as small.
pub(crate) mod token {
    pub const GRAPH: u64 = 1;
    pub const COPY_TO_HOST: u64 = 2;
    pub const COPY_TO_DEVICE: u64 = 3;
    pub const WAIT: u64 = 4;

    /// Whether it is a launch's.
    pub const fn launches(token: u64) -> bool {
        token == GRAPH || token >= 16
    }
}

/// The calls that can be sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum SiteCall {
    // Not 0, so that a history of no calls is all zeros.
    CopyToHost = 1,
    Stream,
    Event,
    Context,
    BlockingCopy,
    /// A wait right after a copy to the device: it waits for that, and seldom for an iteration.
    Upload,
}

impl From<Wait> for SiteCall {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::Stream => Self::Stream,
            Wait::Event => Self::Event,
            Wait::Context => Self::Context,
            Wait::CopyToHost => Self::BlockingCopy,
        }
    }
}

impl SiteCall {
    /// The words that messages use.
    pub const fn words(self) -> &'static str {
        match self {
            Self::CopyToHost => "device-to-host copy",
            Self::Stream => "stream wait",
            Self::Event => "event wait",
            Self::Context => "device wait",
            Self::BlockingCopy => "blocking device-to-host copy",
            Self::Upload => "wait for a host-to-device copy",
        }
    }
}
