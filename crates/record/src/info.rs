//! Facts about the process that a record holds once each.

macro_rules! infos {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// What an information event reports. Its value is a string's id unless it says *number*.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        pub enum Info {
            $($(#[$doc])* $name = $code,)*
        }

        impl Info {
            /// Whether its value is a number, and no string's id.
            #[must_use]
            pub const fn is_number(self) -> bool {
                matches!(self, Self::Rank | Self::CudaDriver | Self::WorldSize | Self::StacksRate)
            }

            /// The fact that a code stands for.
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
    /// The rule that decides what an iteration is, as `TLLMPROF_STEP` would name it. The latest counts.
    Rule = 4,
    /// Why that rule, where it was not asked for.
    RuleWhy = 5,
    /// The version of the library that wrote the record.
    Version = 6,
    /// The version of Python in the process.
    Python = 7,
    /// Something that was asked for and could not be done, and why. Any number of them.
    Refused = 8,
    /// The windows that were asked for, as `TLLMPROF_START_STOP` has them.
    Windows = 9,
    /// The engine that was known.
    Engine = 10,
    /// The version of the CUDA driver, a *number*: 13000 is 13.0.
    CudaDriver = 11,
    /// The name of a GPU that was used.
    Gpu = 12,
    /// The process's name.
    Process = 13,
    /// A variable that was set, `NAME=value`. Any number of them.
    Setting = 14,
    /// The machine's boot: records with the same have the same monotonic clock.
    Boot = 15,
    /// The name of an MoE layer: its number (as in expert loads) << 32 | string. Any number of them.
    Router = 16,
    /// What the rank is known from. The latest counts.
    RankSource = 17,
    /// How many ranks there are, a *number*. The latest counts.
    WorldSize = 18,
    /// The identifier of the run that the process belongs to.
    Run = 19,
    /// The condition that iterations of windows have to fulfil, as `TLLMPROF_WHERE` has it.
    Where = 20,
    /// How often stacks are sampled, a *number* in Hz.
    StacksRate = 21,
    /// What Python calls a thread: the thread's id << 32 | string. Of each thread the latest counts.
    Thread = 22,
    /// A communicator of NCCL that the process is in, as [`Member`](crate::Member) shows it. Any number of them.
    Communicator = 23,
    /// A group of ranks that the process is in, as [`GroupRank`](crate::GroupRank) shows it. Of each name the latest counts.
    Group = 24,
}
