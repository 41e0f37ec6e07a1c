//! The windows of a record, put together from their edges and iterations.

use tllmprof_record::Edge;

use crate::iteration::Iteration;
use crate::quantiles::Quantiles;

/// A window.
#[derive(Debug)]
pub struct Window {
    /// Its first and last iteration. One that was never closed ends with the last iteration there is.
    pub first: u64,
    pub last: u64,
    pub closed: bool,
    /// Something else than its last iteration closed it, as the end of the process.
    pub cut: bool,
    /// In the order of their starts.
    pub iterations: Vec<Iteration>,
}

/// Where a window opens or closes.
#[derive(Clone, Copy, Debug)]
pub struct WindowEdge {
    pub ticks: u64,
    pub edge: Edge,
    pub iteration: u64,
    pub cut: bool,
}

/// The windows that edges bound, and the iterations in them, which come in the order of their starts.
/// Iterations whose window's edges are lost are a window of their own.
pub fn windows(mut edges: Vec<WindowEdge>, iterations: Vec<Iteration>) -> Vec<Window> {
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
                iterations: Vec::new(),
            }),
            (Edge::Close, None) => (),
        }
    }
    // A window that was not closed ends where the next begins.
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

/// What some iterations, one after the other, come to.
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    pub iterations: u64,
    /// From the first one's start to the last one's end, in nanoseconds, over all windows.
    pub wall: u64,
    pub time: Quantiles,
    /// Of those whose GPU time was measured.
    pub gpu: Option<Quantiles>,
    /// What the GPU was at work of those iterations' time.
    pub gpu_share: Option<f64>,
    pub wait: Quantiles,
    /// Per iteration.
    pub launches: f64,
    pub calls: f64,
    /// Nanoseconds in all.
    pub wait_total: u64,
    pub gil_wait_total: u64,
    pub gc_total: u64,
}

impl Sum {
    /// Of some windows; `None` where they have no iterations.
    pub fn of(windows: &[Window]) -> Option<Self> {
        let all = || windows.iter().flat_map(|window| &window.iterations);
        let iterations = all().count() as u64;
        let time = Quantiles::of(all().map(|iteration| iteration.duration))?;
        let wait = Quantiles::of(all().map(|iteration| iteration.wait))?;
        let total =
            |of: fn(&Iteration) -> u64| all().fold(0_u64, |sum, i| sum.saturating_add(of(i)));
        let measured = || all().filter_map(|iteration| Some((iteration.gpu?, iteration.duration)));
        let (gpu, took) = measured().fold((0.0, 0.0), |(gpu, took), (more, long)| {
            (gpu + more as f64, took + long as f64)
        });
        let mean = |sum: u64| sum as f64 / iterations as f64;
        Some(Self {
            iterations,
            wall: windows.iter().map(wall).fold(0, u64::saturating_add),
            time,
            gpu: Quantiles::of(measured().map(|(gpu, _)| gpu)),
            gpu_share: (took > 0.0).then(|| (gpu / took).min(1.0)),
            wait,
            launches: mean(total(|iteration| u64::from(iteration.launches))),
            calls: mean(total(|iteration| u64::from(iteration.calls))),
            wait_total: total(|iteration| iteration.wait),
            gil_wait_total: total(|iteration| iteration.gil_wait),
            gc_total: total(|iteration| iteration.gc),
        })
    }

    /// Iterations a second.
    pub fn rate(&self) -> Option<f64> {
        (self.wall > 0).then(|| self.iterations as f64 * 1e9 / self.wall as f64)
    }

    /// A part of the time of the iterations.
    pub fn share(&self, part: u64) -> f64 {
        let all = self.time.mean as f64 * self.iterations as f64;
        if all > 0.0 { part as f64 / all } else { 0.0 }
    }
}

/// From the first iteration's start to the last one's end, in nanoseconds.
fn wall(window: &Window) -> u64 {
    let start = window
        .iterations
        .first()
        .map_or(0, |iteration| iteration.start);
    let end = window
        .iterations
        .iter()
        .map(Iteration::end)
        .max()
        .unwrap_or(0);
    end.saturating_sub(start)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        windows(edges, iterations.collect())
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
