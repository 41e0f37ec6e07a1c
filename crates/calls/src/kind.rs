//! The purpose of CUDA calls, and the position of their stream argument.

/// The purpose of a CUDA call. It decides if the profiler counts the call, and what it records about the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallPurpose {
    /// Launches a CUDA graph. If `TLLMPROF_STEP` names the call, an iteration begins when the program enters the call.
    GraphLaunch,
    /// Launches a kernel. `handle` is the index of the argument with the kernel's handle. If `TLLMPROF_STEP` names the
    /// call, an iteration begins when the program enters the call.
    KernelLaunch { handle: u8 },
    /// Enqueues a copy, and may return before the copy is done. If `TLLMPROF_STEP` names the call, an iteration begins
    /// when the program enters the call.
    AsyncCopy(Direction),
    /// Copies memory, mostly within devices, or sets memory. The call may return before this work is done. During a
    /// stream capture, it adds a node to the graph. `TLLMPROF_STEP` cannot name the call.
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
    /// Makes a stream wait for an event, which may be in another stream. The host does not wait. `TLLMPROF_STEP` cannot
    /// name the call.
    Order,
    /// Starts or stops the recording of a profiler (`cuProfilerStart`, `cuProfilerStop`).
    Profiler,
    /// Destroys the object in the first argument, with everything that belongs to that object.
    Destroys(Destroyed),
    /// Creates, changes or destroys a graph. `TLLMPROF_STEP` cannot name the call.
    Graph(GraphCall),
}

/// The effect of a call on CUDA graphs, and the positions of the graphs in the call's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GraphCall {
    /// Creates an executable graph from the graph in the second argument. Stores the new handle at the address in the
    /// first argument.
    Instantiate,
    /// Copies the graph in the second argument. Stores the copy's handle at the address in the first argument.
    Clone,
    /// Updates the executable graph in the first argument to match the graph in the second argument.
    Update,
    /// Adds a node to the graph in the second argument. Stores the node's handle at the address in the first argument.
    AddNode,
    /// Adds a child graph node. The graph and the node's handle are in the same arguments as for `AddNode`. The node
    /// contains a copy of the graph in the fifth argument.
    AddChild,
    /// Changes the contents of a child graph node of the executable graph in the first argument.
    SetChild,
    /// Destroys the graph in the first argument.
    Destroy,
    /// Destroys the executable graph in the first argument.
    DestroyExec,
}

/// The direction of a copy, as far as the call's name or arguments show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    ToHost,
    ToDevice,
    /// A copy within devices, or a copy whose direction cannot be seen in the call's arguments.
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

/// The object that a call of type [`CallPurpose::Destroys`] destroys.
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
    /// The call has no stream argument.
    None,
    /// The stream is the argument word with this index, from 0. A structure that is passed by value may take several
    /// words.
    Word(u8),
    /// The stream is a field of the configuration structure that the first argument points to, at this offset in
    /// bytes.
    Configured(u8),
}

impl CallPurpose {
    /// Returns true if `TLLMPROF_STEP` may name a call with this purpose. The profiler counts only such calls.
    #[must_use]
    #[inline]
    pub const fn counts(self) -> bool {
        self.enqueues() || self.waits()
    }

    /// Returns true if the call enqueues GPU work and may return before the GPU has done it.
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

    /// Returns true if the call adds a kernel, copy or memset node to a graph when its stream is being captured. A
    /// graph launch is excluded, because it adds a child graph node.
    #[must_use]
    #[inline]
    pub const fn makes_node(self) -> bool {
        matches!(
            self,
            Self::KernelLaunch { .. } | Self::AsyncCopy(_) | Self::DeviceWork(_)
        )
    }

    /// Returns true if the call itself waits for the device. Queries are excluded, because they return at once.
    #[must_use]
    #[inline]
    pub const fn waits(self) -> bool {
        matches!(self, Self::Wait(_))
    }

    /// Returns true if the call asks whether work is done, and returns at once.
    #[must_use]
    #[inline]
    pub const fn queries(self) -> bool {
        matches!(self, Self::Query(_))
    }

    /// Returns the work that the call waits for. For a query, this is the work that the program waits for by
    /// repeating the query. Returns `None` for all other calls.
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

    /// Returns true if the call submits work to the GPU. The call may also wait for that work.
    #[must_use]
    #[inline]
    pub const fn gives_work(self) -> bool {
        self.enqueues() || matches!(self, Self::Wait(Wait::CopyToHost) | Self::DeviceWork(_))
    }
}
