//! The windows of a record, built from the events at which they opened and closed, and from the
//! iterations.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::Edge;

use crate::events::iteration::Iteration;

/// A window: a range of iterations that were recorded one by one.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Window {
    /// The number of the window's first iteration.
    pub first: u64,
    /// The number of the window's last iteration.
    // If the record lacks the window's end, this is the highest number in `iterations`, or `first` if that is empty.
    pub last: u64,
    /// True if the record contains the end of the window.
    pub closed: bool,
    /// True if the window was closed before its last iteration, for example because the process ended.
    pub cut: bool,
    /// True if the flight recorder kept the window's iterations. The flight recorder keeps the latest iterations before
    /// a window opens, or before the process ends.
    pub past: bool,
    /// The iterations, in the order of their starts.
    #[serde(skip)]
    pub iterations: Vec<Iteration>,
}

impl Window {
    /// Returns the window's qualifying iterations, which are those that the report's figures include.
    pub fn qualified(&self) -> impl Iterator<Item = &Iteration> {
        self.iterations
            .iter()
            .filter(|iteration| iteration.qualifies())
    }

    /// Returns the numbers of the window's first and last iteration as text, such as `5-14`.
    pub fn name(&self) -> String {
        match self.first == self.last {
            true => self.first.to_string(),
            false => format!("{}-{}", self.first, self.last),
        }
    }

    /// Returns the time from the start of the window's first iteration to the end of its last
    /// iteration, in nanoseconds.
    pub fn wall(&self) -> u64 {
        let (start, end) = self.span();
        end.saturating_sub(start)
    }

    /// Returns the start of the window's first iteration and the end of its last iteration, in
    /// nanoseconds.
    pub fn span(&self) -> (u64, u64) {
        let end = self.iterations.iter().map(Iteration::end).max();
        let start = self.iterations.first().map(|first| first.start);
        (start.unwrap_or(0), end.unwrap_or(0))
    }

    /// Returns the time in nanoseconds for which the program paused between iterations so that the recording of kernels
    /// could be switched on or off. Each such pause counts only as far as it exceeds the usual time between two
    /// iterations, which the program may need for itself.
    pub fn switch_pauses(&self) -> u64 {
        let pairs = self.iterations.windows(2);
        let gaps = pairs.map(|pair| {
            let is_switched = pair[0].gpu_busy.is_some() != pair[1].gpu_busy.is_some();
            (is_switched, pair[1].start.saturating_sub(pair[0].end()))
        });
        let (switched, others): (Vec<_>, Vec<_>) = gaps.partition(|(is_switched, _)| *is_switched);
        let mut others: Vec<_> = others.into_iter().map(|(_, gap)| gap).collect();
        others.sort_unstable();
        let median = others.len().saturating_sub(1) / 2;
        let usual = others.get(median).copied().unwrap_or(0);
        let pauses = switched.into_iter();
        pauses.map(|(_, gap)| gap.saturating_sub(usual)).sum()
    }

    /// Returns the parts of the window's time span that the report's figures include, as starts and ends in
    /// nanoseconds. Iterations that do not qualify and gaps where iterations are missing are left out.
    pub fn stretches(&self) -> impl Iterator<Item = (u64, u64)> {
        let (mut from, end) = self.span();
        let mut until = from;
        let mut next = self.first;
        let others = self.iterations.iter().flat_map(move |one| {
            let is_gap = one.n > next && one.start > until;
            let gap = is_gap.then_some((until, one.start));
            until = until.max(one.end());
            next = one.n.saturating_add(1);
            let own = (!one.qualifies()).then_some((one.start, one.end()));
            [gap, own]
        });
        let edges = others.flatten();
        edges.chain([(end, end)]).filter_map(move |(start, until)| {
            let stretch = (from, start);
            from = from.max(until);
            (stretch.0 < stretch.1).then_some(stretch)
        })
    }

    /// Returns the number of the window's iterations that are missing in the record. The recorder skips an iteration if
    /// the next one begins before the recorder has noticed the iteration's end, as may happen if several threads run
    /// iterations at once. Returns 0 if the record has no iteration of the window.
    pub fn gaps(&self) -> u64 {
        match self.iterations.len() as u64 {
            0 => 0,
            there => (self.last - self.first)
                .saturating_add(1)
                .saturating_sub(there),
        }
    }
}

/// An event at which a window opened or closed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowEdge {
    pub ticks: u64,
    pub edge: Edge,
    pub iteration: u64,
    pub cut: bool,
}

/// Returns the windows that the events in `edges` open and close, in the order of their opening. A
/// window that was not closed gets `u64::MAX` as its last iteration.
pub(crate) fn pairs(mut edges: Vec<WindowEdge>) -> Vec<Window> {
    edges.sort_by_key(|edge| edge.ticks);
    let mut windows: Vec<Window> = Vec::new();
    for edge in edges {
        let open = windows.last_mut().filter(|window| !window.closed);
        match (edge.edge, open) {
            (Edge::Close, Some(window)) => {
                window.last = edge.iteration.max(window.first);
                (window.closed, window.cut) = (true, edge.cut);
            }
            (Edge::Open, _) => windows.push(Window {
                first: edge.iteration,
                last: u64::MAX,
                closed: false,
                cut: false,
                past: false,
                iterations: Vec::new(),
            }),
            (Edge::Close, None) => (),
        }
    }
    windows
}

/// Returns the windows that the events in `edges` open and close, with their iterations.
/// `iterations` must be in the order of their starts. Iterations that lie in none of these windows,
/// because events were lost, form one more window. `pasts` contains the numbers of the first
/// iterations of windows that the flight recorder kept.
pub(crate) fn windows(
    edges: Vec<WindowEdge>,
    iterations: Vec<Iteration>,
    pasts: &HashSet<u64>,
) -> Vec<Window> {
    let mut windows = pairs(edges);
    for window in &mut windows {
        window.past = pasts.contains(&window.first);
    }
    // A window that was not closed ends where the next window begins.
    let firsts: Vec<_> = windows.iter().skip(1).map(|window| window.first).collect();
    for (window, next) in windows.iter_mut().zip(firsts) {
        if !window.closed {
            window.last = next.saturating_sub(1).max(window.first);
        }
    }
    windows.sort_by_key(|window| window.first);
    let mut strays = Vec::new();
    for iteration in iterations {
        let after = windows.partition_point(|window| window.first <= iteration.n);
        match windows.get_mut(after.wrapping_sub(1)) {
            Some(window) if iteration.n <= window.last => window.iterations.push(iteration),
            _ => strays.push(iteration),
        }
    }
    if let (Some(first), Some(last)) = (
        strays.iter().map(|iteration| iteration.n).min(),
        strays.iter().map(|iteration| iteration.n).max(),
    ) {
        let (closed, cut) = (false, false);
        windows.push(Window {
            first,
            last,
            closed,
            cut,
            past: false,
            iterations: strays,
        });
    }
    for window in windows.iter_mut().filter(|window| !window.closed) {
        let last = window.iterations.iter().map(|iteration| iteration.n).max();
        window.last = last.unwrap_or(window.first);
    }
    windows.sort_by_key(|window| window.first);
    windows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::qualify::Unqualified;

    fn edge(ticks: u64, edge: Edge, iteration: u64) -> WindowEdge {
        WindowEdge {
            ticks,
            edge,
            iteration,
            cut: false,
        }
    }

    fn found(edges: Vec<WindowEdge>, ns: &[u64]) -> Vec<(u64, u64, bool, usize)> {
        let iterations = ns.iter().map(|n| Iteration {
            n: *n,
            ..Iteration::default()
        });
        windows(edges, iterations.collect(), &HashSet::new())
            .iter()
            .map(|window| {
                (
                    window.first,
                    window.last,
                    window.closed,
                    window.iterations.len(),
                )
            })
            .collect()
    }

    #[test]
    fn what_is_missing_between_iterations_is_a_gap() {
        let gaps = |edges, ns: &[u64]| {
            let iterations = ns.iter().map(|n| Iteration {
                n: *n,
                ..Iteration::default()
            });
            windows(edges, iterations.collect(), &HashSet::new())[0].gaps()
        };
        let open = || vec![edge(0, Edge::Open, 5)];
        assert_eq!(gaps(open(), &[]), 0);
        assert_eq!(gaps(open(), &[5, 6, 7]), 0);
        assert_eq!(gaps(open(), &[6, 9]), 3);
    }

    #[test]
    fn a_switch_of_the_recording_pauses_the_program_for_longer_than_usual() {
        let pauses = |iterations: &[(u64, u64, bool)]| {
            let iterations = iterations.iter().map(|(start, end, taken)| Iteration {
                start: *start,
                duration: end - start,
                gpu_busy: taken.then_some(0),
                ..Iteration::default()
            });
            let window = Window {
                first: 0,
                last: 9,
                closed: true,
                cut: false,
                past: false,
                iterations: iterations.collect(),
            };
            window.switch_pauses()
        };
        // The program takes 2 ns between two iterations.
        let plain = [(0, 10, false), (12, 22, false), (24, 34, false)];
        assert_eq!(pauses(&plain), 0);
        let taken = [(90, 100, true), (102, 112, true), (140, 150, false)];
        assert_eq!(pauses(&[plain, taken].concat()), 54 + 26);
        // Iterations of several threads may overlap.
        assert_eq!(pauses(&[(0, 10, false), (5, 15, true)]), 0);
    }

    #[test]
    fn iterations_that_do_not_count_take_none_of_the_time() {
        let stretches = |iterations: &[(u64, u64, bool)]| -> Vec<_> {
            let iterations = iterations.iter().map(|(start, end, counts)| Iteration {
                start: *start,
                duration: end - start,
                unqualified: (!counts).then_some(Unqualified::Idle),
                ..Iteration::default()
            });
            let window = Window {
                first: 0,
                last: 9,
                closed: true,
                cut: false,
                past: false,
                iterations: iterations.collect(),
            };
            window.stretches().collect()
        };
        assert_eq!(stretches(&[]), []);
        assert_eq!(stretches(&[(5, 9, true), (10, 15, true)]), [(5, 15)]);
        let first = stretches(&[(5, 9, false), (10, 15, true), (15, 20, false)]);
        assert_eq!(first, [(9, 15)]);
        let midst = stretches(&[
            (5, 9, true),
            (10, 15, false),
            (14, 20, false),
            (22, 30, true),
        ]);
        assert_eq!(midst, [(5, 10), (20, 30)]);
        assert_eq!(stretches(&[(5, 9, false)]), []);
    }

    #[test]
    fn iterations_that_are_missing_take_none_of_the_time() {
        let iterations = [
            (0, 0, 10),
            (1, 12, 20),
            (5, 60, 70),
            (6, 70, 80),
            (8, 75, 90),
        ];
        let iterations = iterations.map(|(n, start, end)| Iteration {
            n,
            start,
            duration: end - start,
            ..Iteration::default()
        });
        let window = Window {
            first: 0,
            last: 9,
            closed: true,
            cut: false,
            past: false,
            iterations: iterations.to_vec(),
        };
        // Iteration 7 is missing. Iteration 8 begins before iteration 6 ends, so there is no gap in time between them
        // to leave out.
        let stretches: Vec<_> = window.stretches().collect();
        assert_eq!(stretches, [(0, 20), (60, 90)]);
    }

    #[test]
    fn edges_bound_windows() {
        let edges = vec![
            edge(20, Edge::Open, 50),
            edge(10, Edge::Close, 6),
            edge(0, Edge::Open, 5),
        ];
        let expected = [(5, 6, true, 2), (50, 52, false, 3)];
        assert_eq!(found(edges, &[5, 6, 50, 51, 52]), expected);
    }

    #[test]
    fn lost_edges_lose_no_iteration() {
        assert_eq!(found(vec![], &[5, 6]), [(5, 6, false, 2)]);
        let edges = vec![edge(0, Edge::Open, 5), edge(9, Edge::Open, 8)];
        let expected = [(3, 3, false, 1), (5, 5, false, 1), (8, 8, false, 0)];
        assert_eq!(found(edges, &[3, 5]), expected);
        assert_eq!(found(vec![edge(0, Edge::Close, 5)], &[]), []);
        let edges = vec![edge(0, Edge::Open, u64::MAX), edge(1, Edge::Close, 0)];
        assert_eq!(
            found(edges, &[u64::MAX, 0]),
            [(0, 0, false, 1), (u64::MAX, u64::MAX, true, 1)]
        );
    }
}
