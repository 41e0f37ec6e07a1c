//! Finds the windows of a process. A window is an interval in which tllmprof recorded in detail and held a `capture`
//! range open.

use std::collections::BTreeMap;

use crate::database::Database;
use crate::error::ExportError;
use crate::ranges::{Domains, Own, Range, process};

/// Maximum number of iterations and windows (intervals recorded in detail) together that are read from an export, over
/// all its processes. Further ones are ignored.
const LIMIT: usize = 1 << 22;

/// A window: an interval in which tllmprof recorded in detail. Times are nanoseconds since nsys started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub start: i64,
    pub end: i64,
    /// Number of the first iteration in the window.
    pub first: u64,
    /// Number of the last iteration in the window.
    pub last: u64,
}

/// The windows (intervals recorded in detail) of a process, and the durations of iterations outside windows. Durations
/// are in nanoseconds.
#[derive(Debug, Default)]
pub struct Windows {
    pub all: Vec<Window>,
    pub outside: Vec<u64>,
}

#[derive(Debug, Default)]
struct WindowRanges {
    captures: Vec<(i64, i64)>,
    iterations: Vec<(i64, i64, u64)>,
}

impl Windows {
    /// Returns the windows of each process that has ranges for iterations in tllmprof's own domain.
    /// If a process has no `capture` ranges, all its iterations form one window: either the program
    /// ran without windows, or nsys recorded only inside a window.
    pub fn read(
        database: &Database,
        domains: &Domains,
    ) -> Result<BTreeMap<i64, Self>, ExportError> {
        let mut found: BTreeMap<i64, WindowRanges> = BTreeMap::new();
        let mut count = 0;
        Range::each(database, None, |range| {
            if range.is_mark || count == LIMIT || !domains.is_own(&range) {
                return;
            }
            let of_process = || process(range.thread);
            match range.own(&range.text.get(database)) {
                Own::Capture => {
                    let captures = &mut found.entry(of_process()).or_default().captures;
                    captures.push((range.start, range.end));
                }
                Own::Iteration(n) if range.end < i64::MAX => {
                    let iterations = &mut found.entry(of_process()).or_default().iterations;
                    iterations.push((range.start, range.end, n));
                }
                _ => return,
            }
            count += 1;
        })?;
        found.retain(|_, found| !found.iterations.is_empty());
        let windows = found
            .into_iter()
            .map(|(process, found)| (process, Self::from_found(found)));
        Ok(windows.collect())
    }

    fn from_found(mut found: WindowRanges) -> Self {
        found.iterations.sort_unstable();
        found.captures.sort_unstable();
        if found.captures.is_empty() {
            let start = found.iterations.first().map_or(0, |iteration| iteration.0);
            found.captures.push((start, i64::MAX));
        }
        let mut windows = Self::default();
        for (start, end) in found.captures {
            windows.all.push(Window {
                start,
                end,
                first: u64::MAX,
                last: 0,
            });
        }
        for (start, end, n) in found.iterations {
            match windows.at(start).and_then(|at| windows.all.get_mut(at)) {
                Some(window) => {
                    window.first = window.first.min(n);
                    window.last = window.last.max(n);
                }
                None => windows.outside.push((end - start).unsigned_abs()),
            }
        }
        windows.all.retain(|window| window.first <= window.last);
        windows
    }

    /// Returns the index of the window (interval recorded in detail) that is open at the time `moment`, which is in
    /// nanoseconds since nsys started. Returns `None` if no window is open then.
    pub fn at(&self, moment: i64) -> Option<usize> {
        let after = self.all.partition_point(|window| window.start <= moment);
        let at = after.checked_sub(1)?;
        (moment < self.all[at].end).then_some(at)
    }

    /// Returns the start of the first window (interval recorded in detail), in nanoseconds since nsys started; 0 if
    /// there are no windows.
    pub fn start(&self) -> i64 {
        self.all.first().map_or(0, |window| window.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_outside_captures_are_in_no_window() {
        let found = |captures: &[(i64, i64)]| {
            let iterations = (0..10)
                .map(|n| (n * 10, n * 10 + 9, n as u64))
                .rev()
                .collect();
            let captures = captures.to_vec();
            Windows::from_found(WindowRanges {
                captures,
                iterations,
            })
        };
        let windows = found(&[(49, i64::MAX), (18, 41), (42, 43)]);
        let numbers: Vec<_> = windows
            .all
            .iter()
            .map(|window| (window.first, window.last))
            .collect();
        assert_eq!(numbers, [(2, 4), (5, 9)]);
        assert_eq!(windows.outside, [9, 9]);
        assert_eq!(
            (windows.at(17), windows.at(18), windows.at(41)),
            (None, Some(0), None)
        );
        let whole = found(&[]);
        assert_eq!(
            (whole.all.len(), whole.all[0].last, whole.outside.len()),
            (1, 9, 0)
        );
    }
}
