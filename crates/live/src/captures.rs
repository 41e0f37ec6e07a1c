//! Follows a window (a range of iterations to capture) from its request to its end. Stores which clients wait for the
//! window, and decides when the window must be stopped.

use core::time::Duration;
use std::time::Instant;

use tllmprof_session::live::DemandProgress;

/// The longest time that a stopped window (a range of iterations to capture) waits for the current iteration to end.
/// In an engine that waits for requests no iteration ends, so after this time the window is closed in the middle of
/// the iteration.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// A window (a range of iterations to capture), and the clients that wait for it.
pub(crate) struct WindowWait {
    /// The number of the client that has requested the window, if any.
    owner: Option<u64>,
    window: FollowedWindow,
    has_opened: bool,
    /// The numbers of the clients that have asked to stop the window, and wait until it has closed.
    stoppers: Vec<u64>,
    /// The longest time that the window may be open, if there is a limit.
    duration: Option<Duration>,
    opened: Option<Instant>,
    stopped: Option<Instant>,
}

/// The window that a [`WindowWait`] follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FollowedWindow {
    /// The window on demand with this request number.
    Requested(u64),
    /// A window that no client has requested. The value is the window's first iteration, or `None` if the window was
    /// not open when a client stopped it.
    Planned(Option<u64>),
}

/// The next task that the listening thread has to do for a window (a range of iterations to capture).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerTask {
    Nothing,
    /// The window has opened: send its first iteration, which is the value, to the client that requested the window.
    SayOpened(u64),
    /// Make the window, which has this request number, close at the end of the current iteration.
    Stop(u64),
    /// Close the window immediately: the process seems to wait for work, so that no iteration ends.
    CloseIdle,
    /// Report to all waiting clients that the window has closed, with its first and last iteration (`None` if the
    /// window never opened or has no iterations). After this report the window is no longer followed.
    SayClosed(Option<(u64, u64)>),
}

impl WindowWait {
    /// Returns the state for a window (a range of iterations to capture) that the client `owner` has requested with the
    /// request number `number`.
    pub(crate) const fn requested_by(owner: u64, number: u64, duration: Option<Duration>) -> Self {
        Self {
            owner: Some(owner),
            window: FollowedWindow::Requested(number),
            has_opened: false,
            stoppers: Vec::new(),
            duration,
            opened: None,
            stopped: None,
        }
    }

    /// Returns the state for a window (a range of iterations to capture) that no client has requested. `first` is the
    /// first iteration of the window, or `None` if the window is not open. The server calls this function when a client
    /// stops the window.
    pub(crate) const fn planned(first: Option<u64>) -> Self {
        Self {
            owner: None,
            window: FollowedWindow::Planned(first),
            has_opened: true,
            stoppers: Vec::new(),
            duration: None,
            opened: None,
            stopped: None,
        }
    }

    /// Stores that a client has asked to stop the windows. That client need not wait for this one.
    pub(crate) fn note_stop(&mut self, now: Instant) {
        self.stopped.get_or_insert(now);
    }

    /// Called when `client` has asked to stop the window. The client then waits for the window's end.
    pub(crate) fn stops(&mut self, client: u64, now: Instant) {
        self.note_stop(now);
        if self.owner != Some(client) && !self.stoppers.contains(&client) {
            self.stoppers.push(client);
        }
    }

    /// Returns true if `client` waits for an answer about the window: it requested the window, or asked to stop it.
    pub(crate) fn waits(&self, client: u64) -> bool {
        self.waiting().any(|other| other == client)
    }

    /// Returns the clients that wait for an answer about the window: the client that requested it, if any, and those
    /// that asked to stop it.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u64> {
        self.owner.into_iter().chain(self.stoppers.iter().copied())
    }

    /// Returns the client that has requested the window, if any.
    pub(crate) const fn owner(&self) -> Option<u64> {
        self.owner
    }

    /// Returns the window that is followed.
    pub(crate) const fn window(&self) -> FollowedWindow {
        self.window
    }

    /// Returns true if the window is being stopped.
    pub(crate) const fn is_closing(&self) -> bool {
        self.stopped.is_some()
    }

    /// Returns the next task for the window, which depends on the window's progress. The caller has to do the task and
    /// call this function again, until the task is `Nothing` or `SayClosed`.
    pub(crate) fn on(&mut self, progress: DemandProgress, now: Instant) -> ServerTask {
        match progress {
            DemandProgress::Waits => ServerTask::Nothing,
            // The window may have opened and closed again since the last call. Its opening is
            // reported first.
            DemandProgress::Open(first) | DemandProgress::Closed(Some((first, _)))
                if !self.has_opened =>
            {
                self.has_opened = true;
                self.opened = Some(now);
                ServerTask::SayOpened(first)
            }
            DemandProgress::Closed(iterations) => ServerTask::SayClosed(iterations),
            DemandProgress::Open(_) => {
                let past = |since: Option<Instant>, limit| {
                    since.is_some_and(|since| now.saturating_duration_since(since) >= limit)
                };
                match (self.duration, self.window) {
                    _ if past(self.stopped, IDLE_TIMEOUT) => {
                        self.stopped = Some(now);
                        ServerTask::CloseIdle
                    }
                    (Some(duration), FollowedWindow::Requested(number))
                        if self.stopped.is_none() && past(self.opened, duration) =>
                    {
                        self.stopped = Some(now);
                        ServerTask::Stop(number)
                    }
                    _ => ServerTask::Nothing,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DemandProgress::{Closed, Open, Waits};
    use ServerTask::{CloseIdle, Nothing, SayClosed, SayOpened, Stop};

    /// Passes each progress in `events` at its time (in milliseconds), and checks that the window's next task is the
    /// task in `events`.
    fn drive(mut watch: WindowWait, events: &[(u64, DemandProgress, ServerTask)]) {
        let start = Instant::now();
        for (at, progress, action) in events {
            let now = start + Duration::from_millis(*at);
            assert_eq!(watch.on(*progress, now), *action, "{at} ms");
        }
    }

    #[test]
    fn the_owner_hears_of_both_ends() {
        let steps = Closed(Some((7, 9)));
        drive(
            WindowWait::requested_by(1, 4, None),
            &[
                (0, Waits, Nothing),
                (5000, Open(7), SayOpened(7)),
                (90_000, Open(7), Nothing),
                (90_001, steps, SayClosed(Some((7, 9)))),
            ],
        );
        drive(
            WindowWait::requested_by(1, 4, None),
            &[
                (0, steps, SayOpened(7)),
                (0, steps, SayClosed(Some((7, 9)))),
            ],
        );
        drive(
            WindowWait::requested_by(1, 4, None),
            &[(0, Closed(None), SayClosed(None))],
        );
    }

    #[test]
    fn a_window_by_time_is_stopped_and_closed_here_where_no_iteration_ends() {
        drive(
            WindowWait::requested_by(1, 4, Some(Duration::from_millis(100))),
            &[
                (0, Waits, Nothing),
                (1000, Open(7), SayOpened(7)),
                (1099, Open(7), Nothing),
                (1100, Open(7), Stop(4)),
                (1101, Open(7), Nothing),
                (3100, Open(7), CloseIdle),
                (3101, Open(7), Nothing),
                (5100, Open(7), CloseIdle),
                (5101, Closed(None), SayClosed(None)),
            ],
        );
    }

    #[test]
    fn who_stops_waits_and_the_owner_once() {
        let mut watch = WindowWait::requested_by(1, 4, None);
        let now = Instant::now();
        for client in [2, 1, 2] {
            watch.stops(client, now);
        }
        assert_eq!(watch.waiting().collect::<Vec<_>>(), [1, 2]);
        assert!(watch.waits(2) && !watch.waits(3) && watch.is_closing());
        let mut planned = WindowWait::planned(Some(0));
        planned.stops(3, now);
        assert_eq!(planned.on(Open(0), now), Nothing);
        assert_eq!(planned.waiting().collect::<Vec<_>>(), [3]);
    }
}
