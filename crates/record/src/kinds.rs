//! The kinds of CUDA calls, NVTX ranges, copies, samples, tasks and system calls that events distinguish.

use tllmprof_calls::{CallPurpose, DeviceWork};

/// Defines an enum that a record stores as a number. Each variant has a fixed number, its code.
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
    /// The purpose of a CUDA call, as events of a record store it.
    pub enum CallKind {
        Other = 0,
        GraphLaunch = 1,
        KernelLaunch = 2,
        AsyncCopy = 3,
        /// The call waits for the device, or asks whether the device has finished some work.
        Wait = 4,
        /// The call begins or ends a stream capture.
        Capture = 5,
    }
}

coded! {
    /// The way in which a range was delimited: one of two pairs of NVTX functions.
    pub enum RangeKind {
        /// A range from a push to a pop. Such ranges are nested on one thread.
        PushPop = 0,
        /// A range from a start to an end, which may be on different threads.
        StartEnd = 1,
    }
}

/// The direction of a copy. The numbers are those of CUPTI's `CUpti_ActivityMemcpyKind`.
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
    /// Returns the direction with the number `code`; [`Self::Unknown`] for an undefined number.
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

    /// Returns the name of the direction, as nsys and the PyTorch profiler print it.
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
    /// The relation of a process that uses a GPU to the run (the profiled program with all its processes) that samples
    /// this GPU.
    pub enum GpuOwner {
        /// The process belongs to the run that samples the GPU.
        Run = 0,
        /// The process does not belong to the run that samples the GPU.
        Other = 1,
        /// The owner is not known, because the driver lists the process by its number in another
        /// PID namespace.
        Unknown = 2,
    }
}

coded! {
    /// The type of a task, which determines the meaning of the task's id. A task is a thread or a process that is
    /// observed while the thread that runs the steps waits.
    pub enum Task {
        /// A thread of the process. The id is the kernel's thread ID.
        Thread = 0,
        /// A child process, or a process that a child has started. The id is its process ID.
        Child = 1,
    }
}

coded! {
    /// The opening or the closing of a window.
    pub enum Edge {
        Open = 0,
        Close = 1,
    }
}

coded! {
    /// The result of an attempt to sample a thread's stack.
    pub enum Taken {
        /// The stack of the thread's Python functions was read.
        Python = 0,
        /// The stack of the thread's native functions was read.
        Native = 1,
        /// The thread ran no Python function, so there was no stack to read.
        NoPython = 2,
        /// The stack changed while it was read, so it was rejected.
        Torn = 3,
    }
}

coded! {
    /// A thread's state in the kernel's scheduler.
    pub enum ThreadState {
        /// The thread runs on a processor at the time of the sample.
        Running = 1,
        /// The thread is ready and waits for a processor.
        Runnable = 2,
        /// The thread waits for something other than a processor.
        Sleeping = 3,
    }
}

/// Defines [`SystemCall`], with the record's code and the name of each system call.
macro_rules! system_calls {
    ($($(#[$of:meta])* $variant:ident = $code:literal $name:literal;)*) => {
        coded! {
            /// A system call that a thread may sleep in.
            pub enum SystemCall {
                /// A system call that has no variant of its own in this enum.
                Other = 0,
                /// No system call: the thread sleeps in a page fault.
                PageFault = 1,
                $($(#[$of])* $variant = $code,)*
            }
        }

        impl SystemCall {
            /// Returns the system call's name, as in the Linux manual.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    Self::Other => "a system call",
                    Self::PageFault => "page fault",
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

system_calls! {
    Futex = 2 "futex";
    Nanosleep = 3 "nanosleep";
    ClockNanosleep = 4 "clock_nanosleep";
    Poll = 5 "poll";
    Select = 6 "select";
    EpollWait = 7 "epoll_wait";
    Read = 8 "read";
    Write = 9 "write";
    Fsync = 10 "fsync";
    Fdatasync = 11 "fdatasync";
    Open = 12 "open";
    Receive = 13 "recv";
    Send = 14 "send";
    Accept = 15 "accept";
    Connect = 16 "connect";
    WaitProcess = 17 "wait";
    Ioctl = 18 "ioctl";
    FileLock = 19 "flock";
    Memory = 20 "mmap";
    IoUringEnter = 21 "io_uring_enter";
    SignalWait = 22 "sigwait";
    Msync = 23 "msync";
    Truncate = 24 "ftruncate";
    Close = 25 "close";
    FileControl = 26 "fcntl";
    /// A read from a pipe, a socket or another file that is not regular, or a `recv` from a pair of sockets.
    ReadStream = 27 "read";
    /// A write to a pipe, a socket or another file that is not regular.
    WriteStream = 28 "write";
    /// A `poll` without file descriptors, which is a sleep.
    PollNothing = 29 "poll";
    /// A `select` without file descriptors, which is a sleep.
    SelectNothing = 30 "select";
    /// A wait in `recv`, `read` or `poll` for data from a socket that this process has connected to a service.
    ReceiveFromService = 31 "recv";
}

coded! {
    /// A resource of the machine that a thread used in an iteration. The event's duration holds the time that the
    /// variant names, and its `count` the number. If iterations are similar, only some of them are fully measured. The
    /// event of a fully measured iteration has the sums of [`Self::Kernel`], [`Self::Delayed`] and [`Self::Disk`] over
    /// all iterations since the previous full measurement.
    pub enum Used {
        /// Time on a processor, and the number of times that the thread left the processor to wait.
        Ran = 1,
        /// The part of the time on a processor that was spent in the operating system's kernel, and the number of page
        /// faults that read nothing from a disk.
        Kernel = 2,
        /// Time in which the thread was ready but had no processor, and the number of times that it was
        /// preempted. If that number is 0, the time is not counted.
        Delayed = 3,
        /// The number of page faults that read from a disk.
        Disk = 4,
        /// Time on a processor during some of the thread's waits for the GPU, and the duration of these waits
        /// in microseconds.
        Waits = 5,
    }
}

coded! {
    /// The reason why the scopes (the modules, ranges and functions around a launch) of an executable graph's nodes
    /// are known or unknown.
    pub enum GraphState {
        /// The scopes of the graph's nodes are known.
        Known = 1,
        /// A kernel at replay differed from the one at capture, so the scopes of the graph's nodes were
        /// discarded.
        Differs = 2,
        /// The graph was not captured while tllmprof watched captures.
        NotCaptured = 3,
        /// A node of the graph contains graphs whose nodes could not be determined. The scopes of all the graph's nodes
        /// then count as unknown.
        Nested = 4,
        /// The graph's nodes were not stored, because the library had no room for more of them.
        TooMany = 5,
        /// The graph was changed after its capture, or updated from a graph with other nodes.
        Changed = 6,
        /// CUPTI's number for the graph could not be matched to a graph of the program, because that graph was
        /// created before tllmprof watched graphs, or destroyed while kernels were recorded.
        Unnamed = 7,
    }
}

impl From<CallPurpose> for CallKind {
    fn from(kind: CallPurpose) -> Self {
        match kind {
            CallPurpose::GraphLaunch => Self::GraphLaunch,
            CallPurpose::KernelLaunch { .. } => Self::KernelLaunch,
            CallPurpose::AsyncCopy(_) | CallPurpose::DeviceWork(DeviceWork::Copy) => {
                Self::AsyncCopy
            }
            CallPurpose::Wait(_) | CallPurpose::Query(_) => Self::Wait,
            CallPurpose::CaptureBegin | CallPurpose::CaptureEnd => Self::Capture,
            CallPurpose::DeviceWork(DeviceWork::Set)
            | CallPurpose::HostFunction
            | CallPurpose::Memory
            | CallPurpose::Compilation
            | CallPurpose::Order
            | CallPurpose::Profiler
            | CallPurpose::Destroys(_)
            | CallPurpose::Graph(_) => Self::Other,
        }
    }
}

impl CallKind {
    /// Returns true if the call launches work on the compute units (a kernel or a graph).
    #[must_use]
    pub const fn launches(self) -> bool {
        matches!(self, Self::GraphLaunch | Self::KernelLaunch)
    }
}
