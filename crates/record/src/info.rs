//! Facts about the process, each of which a record stores once.

macro_rules! infos {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The kind of a fact. Its value is a string's id unless the description says *number*.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Info {
            $($(#[$doc])* $name = $code,)*
        }

        impl Info {
            /// Returns true if the value is a number and not a string's id.
            #[must_use]
            pub const fn is_number(self) -> bool {
                matches!(
                    self,
                    Self::Rank | Self::CudaDriver | Self::WorldSize | Self::StacksRate | Self::Span
                )
            }

            /// Returns the fact that a code stands for.
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
    /// The command line, its arguments separated by spaces.
    CommandLine = 1,
    /// The name of the host.
    Host = 2,
    /// The rank, a *number*. The latest counts, as engines set it late.
    Rank = 3,
    /// The rule that decides what an iteration is, in the form of `TLLMPROF_STEP`. The latest counts.
    Rule = 4,
    /// The reason for that rule, if the user did not set it.
    RuleWhy = 5,
    /// The version of the library that wrote the record.
    Version = 6,
    /// The version of Python in the process.
    Python = 7,
    /// A request that could not be met, and the reason. Any number of them.
    Refused = 8,
    /// The requested windows, in the form of `TLLMPROF_START_STOP`.
    Windows = 9,
    /// The engine that was recognized.
    Engine = 10,
    /// The version of the CUDA driver, a *number*: 13000 is 13.0.
    CudaDriver = 11,
    /// The name of a GPU that was used.
    Gpu = 12,
    /// The process's name.
    Process = 13,
    /// A variable that was set, `NAME=value`. Any number of them.
    Setting = 14,
    /// The id of the machine's boot. Records with the same id share a monotonic clock.
    Boot = 15,
    /// The name of an MoE layer: its number (as in expert loads) << 32 | string. Any number of them.
    Router = 16,
    /// The source of the rank. The latest counts.
    RankSource = 17,
    /// The number of ranks, a *number*. The latest counts.
    WorldSize = 18,
    /// The identifier of the run that the process belongs to.
    Run = 19,
    /// The condition for iterations of windows, in the form of `TLLMPROF_WHERE`.
    Where = 20,
    /// The sampling rate of stacks, a *number* in Hz.
    StacksRate = 21,
    /// Python's name of a thread: the thread's id << 32 | string. The latest of each thread counts.
    Thread = 22,
    /// An NCCL communicator that the process is in, formatted as [`Member`](crate::Member). Any number of
    /// them.
    Communicator = 23,
    /// A group of ranks that the process is in, formatted as [`GroupRank`](crate::GroupRank). The latest of
    /// each name counts.
    Group = 24,
    /// 1 if no step was known when the rule was written: a span of time stands for its iterations. A *number*; later
    /// rules without it have iterations.
    Span = 25,
}
