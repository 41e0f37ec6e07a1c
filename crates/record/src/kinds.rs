//! Kinds of calls, ranges, copies and ends that events distinguish.

use tllmprof_calls::{DeviceWork, Kind};

/// Defines an enum whose variants have codes in the record.
macro_rules! coded {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$of:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$of])* $variant = $code,)*
        }

        impl $name {
            pub(crate) const fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

coded! {
    /// What a call in the table of calls does.
    pub enum CallKind {
        Other = 0,
        GraphLaunch = 1,
        KernelLaunch = 2,
        AsyncCopy = 3,
        /// Waits on the device.
        Wait = 4,
        /// Begins or ends a stream capture.
        Capture = 5,
    }
}

coded! {
    /// How an NVTX range was given.
    pub enum RangeKind {
        /// Nested on its thread.
        PushPop = 0,
        /// Begun and ended anywhere.
        StartEnd = 1,
    }
}

/// Which way a copy goes; its number is that of CUPTI's `CUpti_ActivityMemcpyKind`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CopyKind {
    Unknown = 0,
    HostToDevice = 1,
    DeviceToHost = 2,
    HostToArray = 3,
    ArrayToHost = 4,
    ArrayToArray = 5,
    ArrayToDevice = 6,
    DeviceToArray = 7,
    DeviceToDevice = 8,
    HostToHost = 9,
    PeerToPeer = 10,
}

impl CopyKind {
    /// The kind that a number stands for.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::HostToDevice,
            2 => Self::DeviceToHost,
            3 => Self::HostToArray,
            4 => Self::ArrayToHost,
            5 => Self::ArrayToArray,
            6 => Self::ArrayToDevice,
            7 => Self::DeviceToArray,
            8 => Self::DeviceToDevice,
            9 => Self::HostToHost,
            10 => Self::PeerToPeer,
            _ => Self::Unknown,
        }
    }

    /// A name for it, as nsys and the PyTorch profiler write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "copy",
            Self::HostToDevice => "HtoD",
            Self::DeviceToHost => "DtoH",
            Self::HostToArray => "HtoA",
            Self::ArrayToHost => "AtoH",
            Self::ArrayToArray => "AtoA",
            Self::ArrayToDevice => "AtoD",
            Self::DeviceToArray => "DtoA",
            Self::DeviceToDevice => "DtoD",
            Self::HostToHost => "HtoH",
            Self::PeerToPeer => "PtoP",
        }
    }
}

coded! {
    /// An end of a window.
    pub enum Edge {
        Open = 0,
        Close = 1,
    }
}

coded! {
    /// What a sample of a stack is.
    pub enum Taken {
        /// A stack of Python functions.
        Python = 0,
        /// A stack of native functions.
        Native = 1,
        /// The thread was in no Python function.
        NoPython = 2,
        /// The stack changed while it was read, so it was rejected.
        Torn = 3,
    }
}

coded! {
    /// What a thread does, as the kernel's scheduler sees it.
    pub enum ThreadState {
        /// It runs on a processor.
        Running = 1,
        /// It could run, and waits for a processor.
        Runnable = 2,
        /// It waits for something else.
        Sleeping = 3,
    }
}

coded! {
    /// What a thread used of the machine in an iteration. Of several iterations that are alike, in which it was on a processor, the
    /// last may have what counts [`Self::Kernel`], [`Self::Delayed`] and [`Self::Disk`] of all.
    pub enum Used {
        /// Time on a processor, and how often it left the processor to wait for something.
        Ran = 1,
        /// Time in the kernel of that, and page faults that read nothing from a disk.
        Kernel = 2,
        /// Time in which it could have run and had no processor, and how often it was taken off one.
        Delayed = 3,
        /// Page faults that read from a disk.
        Disk = 4,
        /// Time on a processor in some of its waits for the GPU, and how long these took in microseconds.
        Waits = 5,
    }
}

coded! {
    /// What is known of the scopes in which the nodes of an executable graph were made.
    pub enum GraphState {
        /// They are known.
        Known = 1,
        /// A kernel at replay was not the one at capture, so they were withdrawn.
        Differs = 2,
        /// The graph was not captured while this was watched.
        NotCaptured = 3,
        /// A node of it has graphs in it that are not known: neither are the numbers of its nodes.
        Nested = 4,
        /// There was no room for it.
        TooMany = 5,
        /// It was changed after it was captured, or updated by a graph of another shape.
        Changed = 6,
        /// It is not known which of the program's graphs it was: it was made before this was watched, or destroyed while kernels
        /// were taken.
        Unnamed = 7,
    }
}

impl From<Kind> for CallKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::GraphLaunch => Self::GraphLaunch,
            Kind::KernelLaunch { .. } => Self::KernelLaunch,
            Kind::AsyncCopy(_) | Kind::DeviceWork(DeviceWork::Copy) => Self::AsyncCopy,
            Kind::Wait(_) => Self::Wait,
            Kind::CaptureBegin | Kind::CaptureEnd => Self::Capture,
            Kind::DeviceWork(DeviceWork::Set)
            | Kind::Memory
            | Kind::Profiler
            | Kind::Destroys(_)
            | Kind::Graph(_) => Self::Other,
        }
    }
}

impl CallKind {
    /// Whether it enqueues work for the compute units.
    #[must_use]
    pub const fn launches(self) -> bool {
        matches!(self, Self::GraphLaunch | Self::KernelLaunch)
    }
}
