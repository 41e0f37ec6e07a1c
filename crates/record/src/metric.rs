//! Metrics of a whole GPU, measured from outside the program.

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $unit:literal;)*) => {
        /// A metric of a GPU. The first ones are NVML's GPM metrics (Hopper and later).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Metric {
            $($(#[$doc])* $name = $code,)*
        }

        impl Metric {
            /// All metrics.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the metric that a code stands for.
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the common name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Returns the unit.
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
    /// The share of time in which an SM was busy, as the mean of all SMs.
    SmUtil = 1, "SM busy", "%";
    /// Resident warps, as a share of the maximum.
    SmOccupancy = 2, "SM occupancy", "%";
    /// The share of cycles in which a tensor core was active.
    TensorUtil = 3, "tensor cores", "%";
    /// Bandwidth of the device's memory, as a share of the peak.
    DramBandwidth = 4, "DRAM bandwidth", "%";
    PcieReceived = 5, "PCIe received", "MiB/s";
    PcieSent = 6, "PCIe sent", "MiB/s";
    NvlinkReceived = 7, "NVLink received", "MiB/s";
    NvlinkSent = 8, "NVLink sent", "MiB/s";
    /// The share of time in which any kernel ran. Older GPUs have only this.
    GpuUtil = 9, "GPU busy", "%";
    /// The share of time in which memory was read or written.
    MemoryUtil = 10, "memory busy", "%";
    Power = 11, "power", "W";
    SmClock = 12, "SM clock", "MHz";
    MemoryUsed = 13, "memory used", "MiB";
    Temperature = 14, "temperature", "degrees C";
}
