//! The calls that are reported to the learner.

use tllmprof_calls::Wait;

/// One call of the process, with the handles that distinguish sites.
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
    /// A wait has returned. It is noted when it is entered, and reported when it returns.
    Returned(Wait),
    /// A stream capture begins on this thread: until it ends, its calls are no work.
    CaptureBegin,
    /// A stream capture ends on this thread.
    CaptureEnd,
}

impl Call {
    /// The call that a recorded stream has under this word, and `kernel` is the handle of where it is a
    /// launch; `None` where the learner has no use for it. `tests/streams/README.md` has the format.
    ///
    /// # Errors
    /// Those of `kernel`.
    pub fn recorded<E>(
        word: &str,
        kernel: impl FnOnce() -> Result<u64, E>,
    ) -> Result<Option<Self>, E> {
        Ok(Some(match word {
            "launch" | "launch_ex" | "launch_cooperative" => Self::Launch(kernel()?),
            "graph_launch" => Self::GraphLaunch,
            "memcpy_dtoh_async" => Self::CopyToHost,
            "memcpy_htod_async" => Self::CopyToDevice,
            "stream_sync_end" => Self::Returned(Wait::Stream),
            "event_sync_end" => Self::Returned(Wait::Event),
            "ctx_sync_end" => Self::Returned(Wait::Context),
            "memcpy_dtoh_end" => Self::Returned(Wait::CopyToHost),
            "begin_capture" => Self::CaptureBegin,
            "end_capture" => Self::CaptureEnd,
            _ => return Ok(None),
        }))
    }
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

impl SiteCall {
    pub const fn of(wait: Wait) -> Self {
        match wait {
            Wait::Stream => Self::Stream,
            Wait::Event => Self::Event,
            Wait::Context => Self::Context,
            Wait::CopyToHost => Self::BlockingCopy,
        }
    }

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
