//! What can be measured of a GPU as a whole, from outside the program.

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $unit:literal;)*) => {
        /// A metric of a GPU. The first ones are NVML's GPM metrics (Hopper and later).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Metric {
            $($(#[$doc])* $name = $code,)*
        }

        impl Metric {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The metric that a code stands for.
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// What people call it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Its unit.
            #[must_use]
            pub const fn unit(self) -> &'static str {
                match self {
                    $(Self::$name => $unit,)*
                }
            }
        }
    };
}

metrics! {
    /// The share of time in which an SM was busy, the mean of all SMs.
    SmUtil = 1, "SM busy", "%";
    /// Warps that were resident, of those that fit.
    SmOccupancy = 2, "SM occupancy", "%";
    /// The share of cycles in which a tensor core was active.
    TensorUtil = 3, "tensor cores", "%";
    /// Of the peak bandwidth of the device's memory.
    DramBandwidth = 4, "DRAM bandwidth", "%";
    PcieReceived = 5, "PCIe received", "MiB/s";
    PcieSent = 6, "PCIe sent", "MiB/s";
    NvlinkReceived = 7, "NVLink received", "MiB/s";
    NvlinkSent = 8, "NVLink sent", "MiB/s";
    /// The share of time in which any kernel ran: what older GPUs have.
    GpuUtil = 9, "GPU busy", "%";
    /// The share of time in which memory was read or written.
    MemoryUtil = 10, "memory busy", "%";
    Power = 11, "power", "W";
    SmClock = 12, "SM clock", "MHz";
    MemoryUsed = 13, "memory used", "MiB";
    Temperature = 14, "temperature", "degrees C";
}
