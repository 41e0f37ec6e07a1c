//! The items of data about the profiled process that its record stores, such as its command line
//! and its rank.

macro_rules! infos {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The kind of an item of data about the process. The item's value is the id of a string, unless the kind's
        /// description says *number* or gives another format.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Info {
            $($(#[$doc])* $name = $code,)*
        }

        impl Info {
            /// Returns true if the item's value is a number and not a string's id.
            #[must_use]
            pub const fn is_number(self) -> bool {
                matches!(
                    self,
                    Self::Rank | Self::CudaDriver | Self::WorldSize | Self::StacksRate | Self::Span
                )
            }

            /// Returns the kind with this code, or `None` if it is unknown.
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

infos! {
    /// The command line of the process, with its arguments separated by spaces.
    CommandLine = 1,
    /// The host name of the machine.
    Host = 2,
    /// The process's rank in the distributed job, a *number*. The latest value is valid, because engines set
    /// the rank late.
    Rank = 3,
    /// The rule that defines an iteration, in the form of `TLLMPROF_STEP`. The latest value is valid.
    Rule = 4,
    /// The reason for the choice of the rule, if the user did not set the rule.
    RuleWhy = 5,
    /// The version of tllmprof's library, which wrote the record.
    Version = 6,
    /// The version of Python in the process.
    Python = 7,
    /// A warning or an error that the library has logged, for example that a request of the user could not be met. May
    /// occur any number of times.
    Refused = 8,
    /// The requested windows, in the form of `TLLMPROF_START_STOP`.
    Windows = 9,
    /// The inference engine that was recognized.
    Engine = 10,
    /// The version of the CUDA driver, a *number*: 13000 means 13.0.
    CudaDriver = 11,
    /// The name of a GPU that the process used: `(the GPU's number + 1) << 32 | the id of a string`. The number is that
    /// in [`What::GpuSpan`](crate::What::GpuSpan). If the upper 32 bits are 0, the number is not given: then the names
    /// are in the order of the GPUs' numbers, and a GPU whose name is not known has an empty string. May occur any
    /// number of times.
    Gpu = 12,
    /// The name of the process, as messages show it. In records of tllmprof it is that of `/proc/PID/comm`.
    Process = 13,
    /// An environment variable of tllmprof that was set, as `NAME=value`. May occur any number of times.
    Setting = 14,
    /// The id of the machine's current boot. Records with the same id share a monotonic clock.
    Boot = 15,
    /// The name of an MoE layer: the layer's number (as in expert loads) << 32 | the id of a string. May
    /// occur any number of times.
    Router = 16,
    /// The source of the rank, such as an environment variable. The latest value is valid.
    RankSource = 17,
    /// The number of ranks in the distributed job, a *number*. The latest value is valid.
    WorldSize = 18,
    /// The identifier of the run that the process belongs to, the same for all of its processes.
    Run = 19,
    /// The condition that iterations of windows have to meet, in the form of `TLLMPROF_WHERE`.
    Where = 20,
    /// The sampling rate of stacks, a *number* in Hz.
    StacksRate = 21,
    /// The name that Python gives a thread: the thread's id << 32 | the id of a string. The latest value for
    /// each thread is valid.
    Thread = 22,
    /// An NCCL communicator that the process belongs to, formatted as [`Member`](crate::Member). May occur
    /// any number of times.
    Communicator = 23,
    /// A named group of ranks that the process belongs to, formatted as [`GroupRank`](crate::GroupRank). The
    /// latest value for each name is valid.
    Group = 24,
    /// A *number*: 1 if no step was known when the rule was written, so that a span of time is recorded in place of
    /// iterations. If the rule is written again later without this item, iterations are recorded from then on.
    Span = 25,
    /// The NUMA node of a GPU, and the distances from this node to each node: `DEVICE NODE ID:DISTANCE,…`. For example,
    /// `0 1 0:21,1:10` means that GPU 0 is on node 1, which has the distance 21 to node 0 and 10 to itself. May occur
    /// any number of times.
    GpuNode = 26,
    /// The power limits of a GPU in milliwatts: `DEVICE ENFORCED DEFAULT`. The first limit is the one that the driver
    /// enforces. The second one is the board's default, or `-` if the default is not known. May occur any number of
    /// times. Example: `0 400000 700000` means that GPU 0 is limited to 400 W, and to 700 W by default.
    GpuPowerLimit = 27,
}
