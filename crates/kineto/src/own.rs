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
    pub last: u64,
    pub start: i64,
    pub end: i64,
    pub has_kernels: bool,
}

/// The iterations, and the windows (profiled ranges of iterations), of a trace that tllmprof exported.
#[derive(Debug, Default)]
pub struct Own {
    /// Number, start and end of each iteration. Times are in nanoseconds.
    pub iterations: Vec<(u64, i64, i64)>,
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
                let end = start.saturating_add_unsigned(ns);
                self.iterations.push((number, start, end));
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
                    has_kernels: line == TAKEN,
                });
            }
            Some(_) => self.left_out.add(LeftOutReason::TooMany),
        }
    }
}

/// Returns the numbers of the first and last iteration from a name such as `window 5-14`.
fn numbers(window: &str) -> Option<(u64, u64)> {
    let numbers = window.strip_prefix("window ")?;
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    Some((first.parse().ok()?, last.parse().ok()?))
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
        assert_eq!(numbers("window 5-14"), Some((5, 14)));
        assert_eq!(numbers("window 7"), Some((7, 7)));
        assert_eq!(numbers("other 7"), None);
    }
}
