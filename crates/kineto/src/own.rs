//! The events that occur only in traces exported by tllmprof: iterations, windows (profiled ranges of iterations), and
//! the names of the streams' rows on the timeline.

use std::collections::HashSet;

use tllmprof_foreign::{LeftOut, LeftOutReason};

use crate::event::{RawEvent, Scalar};

/// Maximum number of iterations that are stored; the same maximum applies to windows (profiled ranges of iterations).
/// Further ones are only counted.
const LIMIT: usize = 1 << 20;

/// Name of the timeline row that shows the parts of windows (profiled ranges of iterations) in which kernels were
/// recorded.
const TAKEN: &str = "kernels taken";

/// A window, which is a profiled range of iterations, of a trace that tllmprof exported. If `has_kernels` is true,
/// this is only the part of a window in which kernels were recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnWindow {
    pub first: u64,
    /// The number of the last iteration; `None` if the window was not closed. It then lasts until the last iteration of
    /// the trace.
    pub last: Option<u64>,
    pub start: i64,
    pub end: i64,
    /// True if the window was closed during its first iteration.
    pub cut: bool,
    pub has_kernels: bool,
}

/// An iteration of a trace that tllmprof exported. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnIteration {
    pub number: u64,
    pub start: i64,
    pub end: i64,
    /// True if the iteration was cut short by the end of the window or of the process.
    pub cut: bool,
}

/// The iterations, and the windows (profiled ranges of iterations), of a trace that tllmprof exported.
#[derive(Debug, Default)]
pub struct Own {
    pub iterations: Vec<OwnIteration>,
    pub windows: Vec<OwnWindow>,
    /// The process ids in the trace that stand for the GPUs of a process instead of the process itself. A trace has one
    /// such id for each recorded process with GPU work.
    pub gpus: HashSet<Scalar>,
    pub left_out: LeftOut,
}

impl Own {
    pub fn iteration(&mut self, raw: &RawEvent, start: i64, ns: u64) {
        let number = raw
            .args
            .iteration
            .and_then(|number| u64::try_from(number).ok());
        match number {
            None => self.left_out.add(LeftOutReason::NoNumber),
            Some(number) if self.iterations.len() < LIMIT => {
                self.iterations.push(OwnIteration {
                    number,
                    start,
                    end: start.saturating_add_unsigned(ns),
                    cut: raw.args.cut,
                });
            }
            Some(_) => self.left_out.add(LeftOutReason::TooMany),
        }
    }

    /// Adds a window (a profiled range of iterations). `line` is the name of the timeline row that shows the window.
    pub fn window(&mut self, raw: &RawEvent, line: &str, start: i64, ns: u64) {
        match numbers(&raw.name) {
            None => self.left_out.add(LeftOutReason::NoNumber),
            Some((first, last)) if self.windows.len() < LIMIT => {
                self.windows.push(OwnWindow {
                    first,
                    last,
                    start,
                    end: start.saturating_add_unsigned(ns),
                    cut: raw.args.cut,
                    has_kernels: line == TAKEN,
                });
            }
            Some(_) => self.left_out.add(LeftOutReason::TooMany),
        }
    }
}

/// Returns the numbers of the first and last iteration from a name such as `window 5-14`. A window that was not closed
/// has a name such as `window 20-`, and no last number.
fn numbers(window: &str) -> Option<(u64, Option<u64>)> {
    let numbers = window.strip_prefix("window ")?;
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    let last = match last {
        "" => None,
        last => Some(last.parse().ok()?),
    };
    Some((first.parse().ok()?, last))
}

/// Returns the device and the stream from a timeline row's name such as `GPU 0 stream 13`.
pub(crate) fn place(line: &str) -> Option<(i64, i64)> {
    let (device, stream) = line.strip_prefix("GPU ")?.split_once(" stream ")?;
    Some((device.parse().ok()?, stream.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_windows_are_known_by_their_names() {
        assert_eq!(place("GPU 3 stream 13"), Some((3, 13)));
        assert_eq!(place("GPU 0 stream 0 iterations"), None);
        assert_eq!(numbers("window 5-14"), Some((5, Some(14))));
        assert_eq!(numbers("window 7"), Some((7, Some(7))));
        assert_eq!(numbers("window 20-"), Some((20, None)));
        assert_eq!(numbers("window 20-x"), None);
        assert_eq!(numbers("window "), None);
        assert_eq!(numbers("other 7"), None);
    }
}
