//! Metrics of a whole GPU, which a process of tllmprof outside the profiled program measures.

macro_rules! metrics {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $unit:literal;)*) => {
        /// A metric of a GPU. The metrics with codes 1 to 8 are GPM metrics of NVML (Hopper and later).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Metric {
            $($(#[$doc])* $name = $code,)*
        }

        impl Metric {
            /// All metrics, in the order of their codes.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the metric with this code, or `None` if it is unknown.
            #[must_use]
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns true if the mean of the metric's samples has a meaning. It has none for a clock's upper limit,
            /// for a set of bits, and for the energy since the previous sample.
            #[must_use]
            pub const fn has_mean(self) -> bool {
                !matches!(self, Self::MaxSmClock | Self::ClockReasons | Self::Energy)
            }

            /// Returns the metric's name, as reports show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Returns the metric's unit as text, such as `MiB/s`.
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
    /// The fraction of time in which an SM was busy, averaged over all SMs.
    SmUtil = 1, "SM busy", "%";
    /// The number of resident warps, as a fraction of the maximum.
    SmOccupancy = 2, "SM occupancy", "%";
    /// The fraction of cycles in which a tensor core was active.
    TensorUtil = 3, "tensor cores", "%";
    /// The bandwidth of the device's memory, as a fraction of the peak.
    DramBandwidth = 4, "DRAM bandwidth", "%";
    PcieReceived = 5, "PCIe received", "MiB/s";
    PcieSent = 6, "PCIe sent", "MiB/s";
    NvlinkReceived = 7, "NVLink received", "MiB/s";
    NvlinkSent = 8, "NVLink sent", "MiB/s";
    /// The fraction of time in which any kernel ran. GPUs before Hopper, which have no GPM metrics, report this
    /// metric, too.
    GpuUtil = 9, "GPU busy", "%";
    /// The fraction of time in which the GPU's memory was read or written.
    MemoryUtil = 10, "memory busy", "%";
    Power = 11, "power", "W";
    SmClock = 12, "SM clock", "MHz";
    MemoryUsed = 13, "memory used", "MiB";
    Temperature = 14, "temperature", "degrees C";
    /// The highest clock frequency that the SMs can have.
    MaxSmClock = 15, "maximum SM clock", "MHz";
    /// The reasons for the current clocks: NVML's clocks event reasons, one bit each.
    ClockReasons = 16, "clock reasons", "bits";
    /// The energy that the GPU used since the previous sample.
    Energy = 17, "energy", "J";
}
