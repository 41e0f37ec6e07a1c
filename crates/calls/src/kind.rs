//! The purpose of calls, and the position of their stream argument.

/// The purpose of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Launches a CUDA graph: opens an iteration when entered.
    GraphLaunch,
    /// Launches a kernel. `handle` is the index of the argument with the kernel's handle. Opens an iteration when
    /// entered.
    KernelLaunch { handle: u8 },
    /// Enqueues a copy and may return before it is done: opens an iteration when entered.
    AsyncCopy(Direction),
    /// Copies within devices or sets memory, and may return before it is done. Not a step, but a node of a graph
    /// in a capture.
    DeviceWork(DeviceWork),
    /// Waits on the device: closes an iteration when it returns.
    Wait(Wait),
    /// Begins a stream capture; its first argument is the stream.
    CaptureBegin,
    /// Ends a stream capture; its first argument is the stream.
    CaptureEnd,
    /// Allocates or frees memory. Not a step, and may make the device idle.
    Memory,
    /// The program's own profiler control, passed through.
    Profiler,
    /// Destroys the object in its first argument, with everything that belongs to it.
    Destroys(Destroyed),
    /// Makes, changes or destroys a graph. Not a step.
    Graph(GraphCall),
}

/// The effect of a call on graphs, with the positions of the graphs in its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GraphCall {
    /// Makes an executable graph from the graph in the second argument, and stores it where the first argument
    /// points.
    Instantiate,
    /// Copies the graph in the second argument, and stores the copy where the first argument points.
    Clone,
    /// Updates the executable graph in the first argument to the graph in the second argument.
    Update,
    /// Adds a node to the graph in the second argument, and stores the node where the first argument points.
    AddNode,
    /// Adds a node as `AddNode` does. The node is a copy of the graph in the fifth argument.
    AddChild,
    /// Changes a graph within the executable graph in the first argument.
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
    /// Any direction, or within devices.
    Other,
}

/// The work of a call within devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceWork {
    Copy,
    Set,
}

/// The object of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wait {
    /// All work in a stream.
    Stream,
    /// An event, which may have been recorded long before the end of its stream.
    Event,
    /// All work in a context or on a device.
    Context,
    /// A copy to the host, which the call itself has started.
    CopyToHost,
}

/// The object that a call destroys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destroyed {
    Stream,
    Context,
    /// The primary context of a device. The runtime's function has no argument, and means the current device.
    Primary,
}

/// The position of the stream argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// The call has no stream.
    None,
    /// The word with this index; structures that are passed by value may take several words.
    Word(u8),
    /// The configuration that the first word points to, at this offset in bytes.
    Configured(u8),
}

impl Kind {
    /// Returns true if a call of this kind can be a step rule.
    #[must_use]
    #[inline]
    pub const fn counts(self) -> bool {
        self.enqueues() || self.waits()
    }

    /// Returns true if the call enqueues work and may return before that is done.
    #[must_use]
    #[inline]
    pub const fn enqueues(self) -> bool {
        self.launches() || matches!(self, Self::AsyncCopy(_))
    }

    /// Returns true if the call enqueues work for the compute units (a launch, for `auto`).
    #[must_use]
    #[inline]
    pub const fn launches(self) -> bool {
        matches!(self, Self::GraphLaunch | Self::KernelLaunch { .. })
    }

    /// Returns true if the call makes a graph node that runs on the GPU if its stream is captured.
    #[must_use]
    #[inline]
    pub const fn makes_node(self) -> bool {
        matches!(
            self,
            Self::KernelLaunch { .. } | Self::AsyncCopy(_) | Self::DeviceWork(_)
        )
    }

    /// Returns true if the call waits on the device.
    #[must_use]
    #[inline]
    pub const fn waits(self) -> bool {
        matches!(self, Self::Wait(_))
    }

    /// Returns the object that the call waits for.
    #[must_use]
    #[inline]
    pub const fn waits_for(self) -> Option<Wait> {
        match self {
            Self::Wait(wait) => Some(wait),
            _ => None,
        }
    }

    /// Returns true if the call begins or ends a stream capture.
    #[must_use]
    #[inline]
    pub const fn captures(self) -> bool {
        matches!(self, Self::CaptureBegin | Self::CaptureEnd)
    }

    /// Returns true if the call gives the GPU work, whether it waits for that or not.
    #[must_use]
    #[inline]
    pub const fn gives_work(self) -> bool {
        self.enqueues() || matches!(self, Self::Wait(Wait::CopyToHost) | Self::DeviceWork(_))
    }
}
