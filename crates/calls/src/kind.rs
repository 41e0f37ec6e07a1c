//! What calls do, and where they name their stream.

/// What a call does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Launches a CUDA graph: opens an iteration when entered.
    GraphLaunch,
    /// Launches a kernel, whose handle is the argument of this index: opens an iteration when entered.
    KernelLaunch { handle: u8 },
    /// Enqueues a copy and may return before it is done: opens an iteration when entered.
    AsyncCopy(Direction),
    /// Copies within devices or sets memory, and may return before it is done: no step, and a node of a graph in a capture.
    DeviceWork(DeviceWork),
    /// Waits on the device: closes an iteration when it returns.
    Wait(Wait),
    /// Begins a stream capture; its first argument is the stream.
    CaptureBegin,
    /// Ends a stream capture; its first argument is the stream.
    CaptureEnd,
    /// Takes or gives back memory: no step, and may make the device idle.
    Memory,
    /// The program's own profiler control, passed through.
    Profiler,
    /// Ends the life of what its first argument names, with all that belongs to it.
    Destroys(Destroyed),
    /// Makes, changes or destroys a graph: no step.
    Graph(GraphCall),
}

/// What a call does with graphs, and where its arguments name them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GraphCall {
    /// Makes an executable graph, whose place the first argument points to, of the graph that the second names.
    Instantiate,
    /// Copies the graph that the second argument names to the place that the first points to.
    Clone,
    /// Changes the executable graph that the first argument names to what the graph is that the second names.
    Update,
    /// Adds a node to the graph that the second argument names, and writes it to the place that the first points to.
    AddNode,
    /// As `AddNode`; the node is a copy of the graph that the fifth argument names.
    AddChild,
    /// Changes a graph within the executable graph that the first argument names.
    SetChild,
    /// Destroys the graph that the first argument names.
    Destroy,
    /// Destroys the executable graph that the first argument names.
    DestroyExec,
}

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    ToHost,
    ToDevice,
    /// Any, or within devices.
    Other,
}

/// What a call does within devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceWork {
    Copy,
    Set,
}

/// What a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wait {
    /// All that a stream has to do.
    Stream,
    /// An event, which may have been recorded long before the end of its stream.
    Event,
    /// All that a context or a device has to do.
    Context,
    /// A copy to the host, which the call has made itself.
    CopyToHost,
}

/// What a call destroys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destroyed {
    Stream,
    Context,
    /// The primary context of a device. The runtime's function takes no argument, and means the
    /// current device.
    Primary,
}

/// Where the argument is that names the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// There is none.
    None,
    /// It is the word of this index; structures that are passed by value may take several.
    Word(u8),
    /// It is in the configuration that the first word points to, behind so many bytes.
    Configured(u8),
}

impl Kind {
    /// Whether a call of this kind can be a step rule.
    #[must_use]
    #[inline]
    pub const fn counts(self) -> bool {
        self.enqueues() || self.waits()
    }

    /// Whether the call enqueues work, and may return before it is done.
    #[must_use]
    #[inline]
    pub const fn enqueues(self) -> bool {
        self.launches() || matches!(self, Self::AsyncCopy(_))
    }

    /// Whether the call enqueues work for the compute units (what `auto` calls a launch).
    #[must_use]
    #[inline]
    pub const fn launches(self) -> bool {
        matches!(self, Self::GraphLaunch | Self::KernelLaunch { .. })
    }

    /// Whether the call makes a node of a graph, if its stream is captured, that runs on the GPU.
    #[must_use]
    #[inline]
    pub const fn makes_node(self) -> bool {
        matches!(
            self,
            Self::KernelLaunch { .. } | Self::AsyncCopy(_) | Self::DeviceWork(_)
        )
    }

    /// Whether the call waits on the device.
    #[must_use]
    #[inline]
    pub const fn waits(self) -> bool {
        matches!(self, Self::Wait(_))
    }

    /// What the call waits for.
    #[must_use]
    #[inline]
    pub const fn waits_for(self) -> Option<Wait> {
        match self {
            Self::Wait(wait) => Some(wait),
            _ => None,
        }
    }

    /// Whether the call begins or ends a stream capture.
    #[must_use]
    #[inline]
    pub const fn captures(self) -> bool {
        matches!(self, Self::CaptureBegin | Self::CaptureEnd)
    }

    /// Whether the call gives the GPU work, waited for or not.
    #[must_use]
    #[inline]
    pub const fn gives_work(self) -> bool {
        self.enqueues() || matches!(self, Self::Wait(Wait::CopyToHost) | Self::DeviceWork(_))
    }
}
