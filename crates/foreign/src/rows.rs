//! The table of CUDA calls in a recording (data in the form of a tllmprof record) that was made from another profiler's
//! trace.

use std::collections::HashMap;

use tllmprof_calls::kind_of;
use tllmprof_record::CallKind;

use crate::calls::plain_name;

/// Rows of the table of CUDA calls, by function name. When all row numbers are used, further
/// functions share the last row.
#[derive(Debug, Default)]
pub struct CallRows {
    by_name: HashMap<String, u8>,
}

/// A row of the table of CUDA calls in a recording (data in the form of a tllmprof record). The row stands for all
/// calls of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallRow<'a> {
    /// The number of the row in the table of CUDA calls.
    pub number: u8,
    /// The name of the row's function, without the version that CUPTI appends.
    pub name: &'a str,
    /// The kind of the calls in this row, such as launch or wait.
    pub kind: CallKind,
}

/// The row that functions share when all other row numbers are used.
const OTHER: CallRow<'_> = CallRow {
    number: u8::MAX,
    name: "other calls",
    kind: CallKind::Other,
};

impl CallRows {
    /// Returns the row for calls of the function `name`. A function that is used for the first time
    /// gets a new row.
    pub fn row<'a>(&mut self, name: &'a str) -> CallRow<'a> {
        let name = plain_name(name);
        let number = match self.by_name.get(name) {
            Some(number) => *number,
            None => match u8::try_from(self.by_name.len()) {
                Ok(next) if next < OTHER.number => {
                    self.by_name.insert(name.to_owned(), next);
                    next
                }
                _ => return OTHER,
            },
        };
        CallRow {
            number,
            name,
            // Other profilers record every query of an event or a stream, also queries that are not part of a wait.
            // So queries do not count as waits here.
            kind: kind_of(name)
                .filter(|kind| !kind.queries())
                .map_or(CallKind::Other, CallKind::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinguished_without_their_versions() {
        let mut rows = CallRows::default();
        let row = rows.row("cudaLaunchKernel_v7000");
        assert_eq!((row.number, row.name), (0, "cudaLaunchKernel"));
        assert_eq!(rows.row("cuMemcpyDtoHAsync_v2").number, 1);
        assert_eq!(rows.row("cudaLaunchKernel").number, 0);
        for n in 0..1000 {
            rows.row(&format!("call{n}"));
        }
        assert_eq!(rows.row("late"), OTHER);
        assert_eq!(rows.row("cudaLaunchKernel").number, 0);
    }

    #[test]
    fn rows_say_what_their_calls_do() {
        for (name, kind) in [
            ("cudaLaunchKernel_v7000", CallKind::KernelLaunch),
            ("cudaLaunch_v3020", CallKind::KernelLaunch),
            ("hipExtModuleLaunchKernel", CallKind::KernelLaunch),
            ("cudaGraphLaunch", CallKind::GraphLaunch),
            ("hipGraphLaunch", CallKind::GraphLaunch),
            ("cudaStreamSynchronize", CallKind::Wait),
            ("cudaThreadSynchronize", CallKind::Wait),
            ("hipMemcpyWithStream", CallKind::Wait),
            ("cuMemcpy2DAsync_v2", CallKind::AsyncCopy),
            ("cudaMemcpyPeerAsync", CallKind::AsyncCopy),
            ("cudaMemcpyToSymbol", CallKind::AsyncCopy),
            ("hipMemcpyAsync", CallKind::AsyncCopy),
            ("cudaMalloc", CallKind::Other),
            ("hipGetDevice", CallKind::Other),
            ("", CallKind::Other),
        ] {
            assert_eq!(CallRows::default().row(name).kind, kind, "{name}");
        }
    }
}
