//! CUDA calls and GPU work in the form in which they are kept in memory.

use crate::pieces::{Packed, put, put_step, take, take_step};

/// A call of a function of the CUDA runtime or driver, as it is kept in memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CallRow {
    pub start: i64,
    /// Duration of the call in nanoseconds.
    pub took: u64,
    pub correlation: u32,
    /// Index of the called function's name in `Shared::calls`, which all processes of the export share.
    pub name: u32,
    pub failed: bool,
}

/// A piece of GPU work: a kernel, a graph, a copy or a memset.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct WorkRow {
    pub start: i64,
    /// For a kernel, nsys's number of its node in a CUDA graph. For a graph launch, the graph's
    /// number. For a copy or memset, the number of bytes.
    pub value: u64,
    /// Duration of the work in nanoseconds.
    pub took: u64,
    /// For a kernel, the index of its name in `Shared::kernels`, which all processes of the export share. For a copy,
    /// the code of its kind (such as host to device).
    pub name: u32,
    pub correlation: u32,
    /// Number of the CUDA stream: the number in the export if it is small enough, otherwise an unused number.
    pub stream: u16,
    /// Number of the GPU.
    pub device: u8,
    pub kind: WorkKind,
}

/// Kinds of GPU work. nsys writes each kind to a separate table.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u8)]
pub enum WorkKind {
    #[default]
    Kernel,
    /// A whole CUDA graph as one piece of work. nsys records graphs this way unless it runs with
    /// `--cuda-graph-trace=node`.
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

    /// Returns the columns that contain the values for `WorkRow::value` and `WorkRow::name`.
    pub const fn columns(self) -> [&'static str; 2] {
        match self {
            Self::Kernel => ["graphNodeId", "demangledName|shortName|mangledName"],
            Self::Graph => ["graphId", ""],
            Self::Copy => ["bytes", "copyKind"],
            Self::Set => ["bytes", ""],
        }
    }
}

impl CallRow {
    pub const fn end(&self) -> i64 {
        self.start.saturating_add_unsigned(self.took)
    }
}

impl WorkRow {
    pub const fn end(&self) -> i64 {
        self.start.saturating_add_unsigned(self.took)
    }
}

impl Packed for CallRow {
    fn start(&self) -> i64 {
        self.start
    }

    fn pack(&self, before: &Self, bytes: &mut Vec<u8>) {
        put(self.start.wrapping_sub(before.start) as u64, bytes);
        put(self.took, bytes);
        put_step(self.correlation.into(), before.correlation.into(), bytes);
        put(u64::from(self.name) << 1 | u64::from(self.failed), bytes);
    }

    fn unpack(bytes: &mut &[u8], before: &Self) -> Self {
        let start = before.start.wrapping_add(take(bytes) as i64);
        let took = take(bytes);
        let correlation = take_step(bytes, before.correlation.into()) as u32;
        let name = take(bytes);
        Self {
            start,
            took,
            correlation,
            name: (name >> 1) as u32,
            failed: name & 1 == 1,
        }
    }
}

impl Packed for WorkRow {
    fn start(&self) -> i64 {
        self.start
    }

    fn pack(&self, before: &Self, bytes: &mut Vec<u8>) {
        put(self.start.wrapping_sub(before.start) as u64, bytes);
        put(self.took, bytes);
        put_step(self.correlation.into(), before.correlation.into(), bytes);
        put(self.name.into(), bytes);
        put_step(self.value, before.value, bytes);
        let place = u64::from(self.stream) << 10 | u64::from(self.device) << 2;
        put(place | self.kind as u64, bytes);
    }

    fn unpack(bytes: &mut &[u8], before: &Self) -> Self {
        let start = before.start.wrapping_add(take(bytes) as i64);
        let took = take(bytes);
        let correlation = take_step(bytes, before.correlation.into()) as u32;
        let name = take(bytes) as u32;
        let value = take_step(bytes, before.value);
        let place = take(bytes);
        Self {
            start,
            value,
            took,
            name,
            correlation,
            stream: (place >> 10) as u16,
            device: (place >> 2) as u8,
            kind: WorkKind::ALL[(place & 3) as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::{PIECE, Pieces};

    /// Returns the next pseudo-random number. `state` is the generator's state.
    fn next(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *state >> 33
    }

    fn check<R: Packed + PartialEq + std::fmt::Debug>(rows: &[R]) {
        let mut pieces = Pieces::default();
        rows.iter().for_each(|row| pieces.push(*row));
        pieces.finish();
        let mut sorted = rows.to_vec();
        sorted.sort_by_key(R::start);
        assert_eq!(pieces.len(), rows.len());
        assert!(pieces.iter().eq(sorted.iter().copied()));
        assert!(pieces.iter().eq(sorted), "the second time, too");
    }

    #[test]
    fn rows_come_back_as_they_were_in_the_order_of_their_starts() {
        let state = &mut 1;
        for spread in [1, 100, 1 << 20] {
            let calls: Vec<_> = (0..3 * PIECE as i64 + 5)
                .map(|n| CallRow {
                    start: n + (next(state) % spread) as i64,
                    took: next(state) << (next(state) % 40),
                    correlation: next(state) as u32,
                    name: next(state) as u32 % 300,
                    failed: next(state).is_multiple_of(2),
                })
                .collect();
            check(&calls);
        }
        check::<CallRow>(&[]);
    }

    #[test]
    fn the_greatest_values_come_back() {
        let kinds = WorkKind::ALL.into_iter();
        let work = kinds.flat_map(|kind| {
            [i64::MAX, 0, -1, i64::MIN].map(|start| WorkRow {
                start,
                value: start as u64,
                took: !start as u64,
                name: start as u32,
                correlation: !start as u32,
                stream: start as u16,
                device: start as u8,
                kind,
            })
        });
        check(&work.collect::<Vec<_>>());
    }
}
