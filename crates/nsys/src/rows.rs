//! Rows of calls and of GPU work, as they are kept: small, as there may be ten million.

/// A duration in 31 bits: in nanoseconds up to 2 s, else in units of 16 µs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Duration(u32);

const COARSE: u32 = 1 << 31;
const UNIT: u32 = 14;

impl Duration {
    pub const fn new(ns: u64) -> Self {
        if ns < COARSE as u64 {
            return Self(ns as u32);
        }
        let units = ns >> UNIT;
        let most = (COARSE - 1) as u64;
        Self(COARSE | if units < most { units } else { most } as u32)
    }

    pub const fn ns(self) -> u64 {
        match self.0 & COARSE {
            0 => self.0 as u64,
            _ => ((self.0 & !COARSE) as u64) << UNIT,
        }
    }
}

/// A call of CUDA's runtime or driver.
#[derive(Clone, Copy, Debug)]
pub struct CallRow {
    pub start: i64,
    pub took: Duration,
    pub correlation: u32,
    /// Its name's place in the list of names.
    pub name: u32,
    pub failed: bool,
}

impl CallRow {
    pub const fn end(&self) -> i64 {
        self.start.saturating_add_unsigned(self.took.ns())
    }
}

/// A piece of GPU work.
#[derive(Clone, Copy, Debug)]
pub struct WorkRow {
    pub start: i64,
    /// The node of a kernel in its graph, the number of a graph, or the bytes of a copy and of memory that was set.
    pub value: u64,
    pub took: Duration,
    /// The index of a kernel's name in the list of names, or the kind of a copy.
    pub name: u32,
    pub correlation: u32,
    pub stream: u16,
    pub device: u8,
    pub kind: WorkKind,
}

/// Kinds of work, each a table of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum WorkKind {
    Kernel,
    /// A whole graph: what nsys records without `--cuda-graph-trace=node`.
    Graph,
    Copy,
    Set,
}

impl WorkKind {
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Graph, Self::Copy, Self::Set];

    pub const fn table(self) -> &'static str {
        match self {
            Self::Kernel => "CUPTI_ACTIVITY_KIND_KERNEL",
            Self::Graph => "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            Self::Copy => "CUPTI_ACTIVITY_KIND_MEMCPY",
            Self::Set => "CUPTI_ACTIVITY_KIND_MEMSET",
        }
    }

    /// The columns of its value and of its name.
    pub const fn columns(self) -> [&'static str; 2] {
        match self {
            Self::Kernel => ["graphNodeId", "demangledName|shortName|mangledName"],
            Self::Graph => ["graphId", ""],
            Self::Copy => ["bytes", "copyKind"],
            Self::Set => ["bytes", ""],
        }
    }
}

impl WorkRow {
    pub const fn end(&self) -> i64 {
        self.start.saturating_add_unsigned(self.took.ns())
    }
}

const _: () = assert!(size_of::<CallRow>() <= 24 && size_of::<WorkRow>() <= 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact_where_that_matters() {
        for exact in [0, 1, 999_999_999, 2_147_483_647] {
            assert_eq!(Duration::new(exact).ns(), exact);
        }
        let hour = 3_600_000_000_001;
        assert!(hour - Duration::new(hour).ns() < 1 << UNIT);
        assert_eq!(Duration::new(u64::MAX).ns(), ((1_u64 << 31) - 1) << UNIT);
    }
}
