//! Which iterations are captured.

use tllmprof_config::range::Window;

/// A place in the sequence of iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Point {
    /// Before the first one, or where the count starts again.
    #[default]
    Start,
    /// Where this iteration begins.
    In(u64),
    /// Where this iteration has ended, and the next has not begun.
    After(u64),
}

impl Point {
    /// The iteration that begins next.
    pub const fn next(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) | Self::After(iteration) => iteration.saturating_add(1),
        }
    }

    /// Iterations that are over.
    pub const fn over(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) => iteration,
            Self::After(iteration) => iteration.saturating_add(1),
        }
    }
}

/// What has to happen at a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// The window that has ended.
    pub close: Option<Window>,
    /// The window that begins.
    pub open: Option<Window>,
}

/// The windows of a process, on their way from wanted to captured.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    windows: Vec<Window>,
    /// Windows before this one are behind us.
    next: usize,
    /// Whether the one at `next` is open.
    open: bool,
    captured: Vec<Window>,
}

impl Gate {
    /// The gate for `windows`, which are sorted and apart.
    pub fn new(windows: &[Window]) -> Self {
        Self {
            windows: windows.to_vec(),
            // The last one is closed where nothing may be allocated.
            captured: Vec::with_capacity(windows.len()),
            ..Self::default()
        }
    }

    /// The window that is open now.
    pub fn open_window(&self) -> Option<Window> {
        self.open.then(|| self.windows[self.next])
    }

    /// Whether any window has ever opened.
    pub fn has_opened(&self) -> bool {
        self.open || !self.captured.is_empty()
    }

    /// The iteration whose beginning opens or closes a window next.
    pub fn next_edge(&self) -> Option<u64> {
        let window = self.windows.get(self.next)?;
        if self.open {
            window.last?.checked_add(1)
        } else {
            Some(window.first)
        }
    }

    /// Whether something has to happen at `point`.
    pub fn has_edge_at(&self, point: Point) -> bool {
        match point {
            Point::Start => false,
            Point::In(iteration) => self.next_edge().is_some_and(|edge| edge <= iteration),
            Point::After(iteration) => self.closes_after(iteration),
        }
    }

    /// Whether the open window ends with `iteration`.
    pub fn closes_after(&self, iteration: u64) -> bool {
        self.open_window()
            .is_some_and(|window| window.last == Some(iteration))
    }

    /// Moves on to `point`.
    pub fn reach(&mut self, point: Point) -> Edge {
        match point {
            Point::Start => Edge::default(),
            Point::In(iteration) => self.advance(iteration),
            Point::After(iteration) if self.closes_after(iteration) => Edge {
                close: self.close(),
                open: None,
            },
            Point::After(_) => Edge::default(),
        }
    }

    fn advance(&mut self, iteration: u64) -> Edge {
        let mut edge = Edge::default();
        let is_over = |w: &Window| w.last.is_some_and(|last| last < iteration);
        if self.open && is_over(&self.windows[self.next]) {
            edge.close = self.close();
        }
        if !self.open {
            while self.windows.get(self.next).is_some_and(is_over) {
                self.next += 1;
            }
            if let Some(window) = self.windows.get(self.next).filter(|w| w.first <= iteration) {
                self.open = true;
                edge.open = Some(*window);
            }
        }
        edge
    }

    /// Closes the open window, as at the end of the process; no window opens after it.
    pub fn finish(&mut self) -> Option<Window> {
        let closed = self.close();
        self.windows.truncate(self.next);
        closed
    }

    fn close(&mut self) -> Option<Window> {
        let window = self.open_window()?;
        self.open = false;
        self.next += 1;
        self.captured.push(window);
        Some(window)
    }

    /// The windows that opened and closed.
    pub fn captured(&self) -> &[Window] {
        &self.captured
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(first: u64, last: impl Into<Option<u64>>) -> Window {
        Window {
            first,
            last: last.into(),
        }
    }

    fn events(windows: &[Window], iterations: impl IntoIterator<Item = u64>) -> Vec<(u64, Edge)> {
        let mut gate = Gate::new(windows);
        iterations
            .into_iter()
            .map(|n| (n, gate.advance(n)))
            .filter(|(_, e)| *e != Edge::default())
            .collect()
    }

    #[test]
    fn a_window_opens_at_its_first_and_closes_after_its_last() {
        let w = window(5, 9);
        assert_eq!(
            events(&[w], 0..40),
            [
                (
                    5,
                    Edge {
                        open: Some(w),
                        close: None
                    }
                ),
                (
                    10,
                    Edge {
                        open: None,
                        close: Some(w)
                    }
                )
            ]
        );
    }

    #[test]
    fn many_windows_one_after_the_other() {
        let (a, b, c) = (window(2, 3), window(7, 7), window(30, None));
        let seen = events(&[a, b, c], 0..40);
        let opened: Vec<_> = seen
            .iter()
            .filter_map(|(n, e)| Some((*n, e.open?)))
            .collect();
        let closed: Vec<_> = seen
            .iter()
            .filter_map(|(n, e)| Some((*n, e.close?)))
            .collect();
        assert_eq!(opened, [(2, a), (7, b), (30, c)]);
        assert_eq!(closed, [(4, a), (8, b)]);
    }

    #[test]
    fn a_jump_closes_and_opens_at_once_and_leaves_out_what_it_passed() {
        let (a, b, c) = (window(1, 2), window(4, 5), window(8, 20));
        let mut gate = Gate::new(&[a, b, c]);
        gate.advance(1);
        assert_eq!(
            gate.advance(10),
            Edge {
                close: Some(a),
                open: Some(c)
            }
        );
        assert_eq!(gate.captured(), [a]);
    }

    #[test]
    fn next_edge_says_where_to_look_again() {
        let mut gate = Gate::new(&[window(5, 9), window(u64::MAX, u64::MAX)]);
        assert_eq!(gate.next_edge(), Some(5));
        gate.advance(5);
        assert_eq!(gate.next_edge(), Some(10));
        gate.advance(10);
        assert_eq!(gate.next_edge(), Some(u64::MAX));
        gate.advance(u64::MAX);
        assert_eq!(gate.next_edge(), None);
        assert_eq!(gate.finish(), Some(window(u64::MAX, u64::MAX)));
        assert_eq!(gate.next_edge(), None);
    }

    #[test]
    fn a_window_closes_where_its_last_iteration_is_known_to_end() {
        let w = window(5, 6);
        let mut gate = Gate::new(&[w, window(8, 8)]);
        assert!(gate.reach(Point::In(5)).open.is_some());
        assert!(!gate.has_edge_at(Point::After(5)));
        assert_eq!(gate.reach(Point::After(5)), Edge::default());
        assert!(gate.has_edge_at(Point::After(6)));
        assert_eq!(gate.reach(Point::After(6)).close, Some(w));
        assert!(!gate.has_edge_at(Point::In(7)));
        assert!(gate.has_edge_at(Point::In(8)));
    }

    #[test]
    fn nothing_opens_after_the_end() {
        let mut gate = Gate::new(&[window(0, None)]);
        assert!(gate.advance(0).open.is_some());
        assert!(gate.finish().is_some());
        assert_eq!(gate.advance(1), Edge::default());
        assert_eq!(gate.finish(), None);
    }
}
