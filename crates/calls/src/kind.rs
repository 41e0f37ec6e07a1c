//! The purpose of CUDA calls, and the position of their stream argument.

/// The purpose of a CUDA call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallPurpose {
    /// Launches a CUDA graph. If `TLLMPROF_STEP` names the call, an iteration begins when the program enters it.
    GraphLaunch,
    /// Launches a kernel. `handle` is the index of the argument with the kernel's handle. If `TLLMPROF_STEP` names
    /// the call, an iteration begins when the program enters it.
    KernelLaunch { handle: u8 },
    /// Enqueues a copy, and may return before the copy is done. If `TLLMPROF_STEP` names the call, an iteration
    /// begins when the program enters it.
    AsyncCopy(Direction),
    /// Copies within devices or sets memory, and may return before this is done. During a stream capture, the call
    /// adds a node to the graph. `TLLMPROF_STEP` cannot name it.
    DeviceWork(DeviceWork),
    /// Waits for the device. If `TLLMPROF_STEP` names the call, an iteration ends when the call returns.
    Wait(Wait),
    /// Asks whether work is done, without waiting for it. A program that repeats the call until it succeeds waits for
    /// the device by polling. `TLLMPROF_STEP` cannot name the call.
    Query(Wait),
    /// Begins a stream capture. The first argument is the stream.
    CaptureBegin,
    /// Ends a stream capture. The first argument is the stream.
    CaptureEnd,
    /// Enqueues a function of the host, the second argument, in a stream. The stream's later work waits for it.
    /// `TLLMPROF_STEP` cannot name the call.
    HostFunction,
    /// Allocates or frees memory, which may wait until the device is idle. `TLLMPROF_STEP` cannot name the call.
    Memory,
    /// Loads code into a context or compiles it, which may take long. `TLLMPROF_STEP` cannot name the call.
    Compilation,
    /// Starts or stops a profiler, such as `cuProfilerStart`.
    Profiler,
    /// Destroys the object in the first argument, with everything that belongs to that object.
    Destroys(Destroyed),
    /// Creates, changes or destroys a graph. `TLLMPROF_STEP` cannot name the call.
    Graph(GraphCall),
}

/// The effect of a call on CUDA graphs, and the positions of the graphs in the call's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GraphCall {
    /// Creates an executable graph from the graph in the second argument. Stores its handle at the address in the first
    /// argument.
    Instantiate,
    /// Copies the graph in the second argument. Stores the copy's handle at the address in the first argument.
    Clone,
    /// Updates the executable graph in the first argument to match the graph in the second argument.
    Update,
    /// Adds a node to the graph in the second argument. Stores the node's handle at the address in the first argument.
    AddNode,
    /// Adds a child graph node like `AddNode`. The node contains a copy of the graph in the fifth argument.
    AddChild,
    /// Changes a child graph within the executable graph in the first argument.
    SetChild,
    /// Destroys the graph in the first argument.
    Destroy,
    /// Destroys the executable graph in the first argument.
    DestroyExec,
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    ToHost,
    ToDevice,
    /// A copy within devices, or a copy whose direction the arguments do not show.
    Other,
}

/// The work of a call of type [`CallPurpose::DeviceWork`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceWork {
    Copy,
    Set,
}

/// The GPU work that a waiting call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wait {
    /// The call waits for all work in a stream.
    Stream,
    /// The call waits for the work before an event. Work that was enqueued in the stream after the event may still
    /// run.
    Event,
    /// The call waits for all work in a context or on a device.
    Context,
    /// The call is a blocking copy to the host, and waits for that copy.
    CopyToHost,
}

/// The object that a call destroys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destroyed {
    Stream,
    Context,
    /// The primary context of the device in the first argument. `cudaDeviceReset` has no argument, and destroys the
    /// primary context of the current device.
    Primary,
}

/// The position of a call's stream argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// The call has no stream.
    None,
    /// The stream is the argument word with this index, from 0. A structure that is passed by value may take several
    /// words.
    Word(u8),
    /// The stream is a field of the configuration structure that the first argument points to, at this offset in
    /// bytes.
    Configured(u8),
}

impl CallPurpose {
    /// Returns true if `TLLMPROF_STEP` may name a call with this purpose. Only these calls are counted.
    #[must_use]
    #[inline]
    pub const fn counts(self) -> bool {
        self.enqueues() || self.waits()
    }

    /// Returns true if the call enqueues work that the GPU may do after the call returns.
    #[must_use]
    #[inline]
    pub const fn enqueues(self) -> bool {
        self.launches() || matches!(self, Self::AsyncCopy(_))
    }

    /// Returns true if the call launches work on the GPU's compute units: a kernel or a graph.
    #[must_use]
    #[inline]
    pub const fn launches(self) -> bool {
        matches!(self, Self::GraphLaunch | Self::KernelLaunch { .. })
    }

    /// Returns true if the call adds a node with GPU work to the graph while its stream is being captured.
    #[must_use]
    #[inline]
    pub const fn makes_node(self) -> bool {
        matches!(
            self,
            Self::KernelLaunch { .. } | Self::AsyncCopy(_) | Self::DeviceWork(_)
        )
    }

    /// Returns true if the call waits for the device.
    #[must_use]
    #[inline]
    pub const fn waits(self) -> bool {
        matches!(self, Self::Wait(_))
    }

    /// Returns true if the call asks whether work is done.
    #[must_use]
    #[inline]
    pub const fn queries(self) -> bool {
        matches!(self, Self::Query(_))
    }

    /// Returns the work that the call, or a series of such queries, waits for. Returns `None` if it does not wait.
    #[must_use]
    #[inline]
    pub const fn waits_for(self) -> Option<Wait> {
        match self {
            Self::Wait(wait) | Self::Query(wait) => Some(wait),
            _ => None,
        }
    }

    /// Returns true if the call begins or ends a stream capture.
    #[must_use]
    #[inline]
    pub const fn captures(self) -> bool {
        matches!(self, Self::CaptureBegin | Self::CaptureEnd)
    }

    /// Returns true if the call gives the GPU work. The call may also wait for that work.
    #[must_use]
    #[inline]
    pub const fn gives_work(self) -> bool {
        self.enqueues() || matches!(self, Self::Wait(Wait::CopyToHost) | Self::DeviceWork(_))
    }
}
