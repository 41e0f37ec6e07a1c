//! The listening thread: waits for clients, reads their requests and answers them.

use core::time::Duration;
use std::time::Instant;

use tllmprof_config::condition::Condition;
use tllmprof_config::{KernelSelection, Settings, TracePath};
use tllmprof_control::{self as control, Capture, Closed, ControlEvent, Phase, Request, STEPS};
use tllmprof_platform::own_threads;
use tllmprof_platform::system::{SystemClock, nanoseconds};
use tllmprof_platform::{ids, injection, log};
use tllmprof_recorder as recorder;
use tllmprof_session::live::{self, RequestedWindow, WindowRequest};

use crate::captures::{FollowedWindow, ServerTask, WindowWait};
use crate::clients::Client;
use crate::end;
use crate::folder;
use crate::socket::{self, MAX_DESCRIPTORS, Socket};
use crate::surroundings::Surroundings;

/// The interval at which the listening thread checks for clients that have been silent for too long. After
/// the main thread has ended, it also checks at this interval whether it is the only thread left.
const CLIENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval at which the listening thread checks the progress of a window (a range of iterations to capture).
const WINDOW_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The time that the listening thread sleeps after requests, so that no client can keep the thread and the
/// process's locks busy.
const PAUSE: Duration = Duration::from_millis(1);
/// The time for which no client is accepted after accepting one has failed. The usual reason is that the process has no
/// free descriptor. The client then still waits, so without this pause the listening thread would never sleep.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The largest number of times that the control socket is created: the first time, and again each time after the socket
/// was closed or shut down.
const MAX_SOCKETS_MADE: u32 = 16;

struct Server {
    surroundings: &'static Surroundings,
    listener: Socket,
    clients: Vec<Client>,
    /// The number of clients that have connected so far.
    count: u64,
    /// The windows that clients wait for, in the order of their requests. A window may be requested while an earlier
    /// one is still open.
    watches: Vec<WindowWait>,
    /// The time from which clients are accepted again, if accepting one has failed.
    accepts_at: Option<Instant>,
}

/// Listens until this thread is asked to end, or is the only thread left in the process. Called on the listening
/// thread.
pub(crate) fn run(surroundings: &'static Surroundings) {
    for _ in 0..MAX_SOCKETS_MADE {
        if end::is_asked() {
            return;
        }
        let Some(listener) = listen(surroundings) else {
            return;
        };
        let server = Server {
            surroundings,
            listener,
            clients: Vec::new(),
            count: 0,
            watches: Vec::new(),
            accepts_at: None,
        };
        if !server.serve() {
            return socket::remove();
        }
    }
}

fn listen(surroundings: &Surroundings) -> Option<Socket> {
    // SAFETY: `geteuid` takes no arguments, and always succeeds.
    let user = unsafe { libc::geteuid() };
    let path = match folder::socket(surroundings, ids::process().cast_unsigned(), user) {
        Ok(path) => path,
        Err(refusal @ folder::FolderRefusal::Unfit(..)) => {
            log::once!(Warn, "no control socket: {refusal}");
            return None;
        }
        Err(refusal) => {
            log::once!(Info, "no control socket: {refusal}");
            return None;
        }
    };
    match Socket::listen(&path) {
        Ok(listener) => {
            let listener = listener?;
            log::say!(Debug, "the control socket is {}", path.display());
            Some(listener)
        }
        Err(error) => {
            log::once!(Info, "no control socket at {}: {error}", path.display());
            None
        }
    }
}

impl Server {
    /// Serves clients. Returns true if the control socket must be created again.
    fn serve(mut self) -> bool {
        loop {
            // If another thread asks this thread to end after this check, the other thread shuts
            // the listening socket down, which wakes this thread.
            if end::is_asked() {
                return false;
            }
            let patience = match self.watches.is_empty() {
                false => Some(WINDOW_CHECK_INTERVAL),
                true if self.clients.iter().any(Client::has_line) => Some(PAUSE),
                true if !self.clients.is_empty() => Some(CLIENT_CHECK_INTERVAL),
                true => own_threads::look_after(CLIENT_CHECK_INTERVAL),
            };
            let pause = self.accept_pause();
            let patience = pause.into_iter().chain(patience).min();
            let mut sockets = vec![(&self.listener, false)];
            sockets.extend(
                self.clients
                    .iter()
                    .map(|client| (client.socket(), client.has_more())),
            );
            let (ready, has_hung_up) = socket::wait(&sockets, pause.is_none(), patience);
            if end::is_asked() || own_threads::are_alone() {
                return false;
            }
            // The listening socket must be created again if the program has closed its descriptor, or if it was shut
            // down: by the program, by another process that shares it, or by this process to wake this thread.
            if has_hung_up || !self.listener.is_own() {
                return true;
            }
            let mut has_worked = false;
            for place in 0..self.clients.len() {
                if ready >> (place + 1) & 1 != 0 || self.clients[place].has_line() {
                    has_worked |= self.serve_client(place);
                }
            }
            self.follow();
            self.close_ended();
            if ready & 1 != 0 {
                self.accept();
            }
            if has_worked {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Reads the next line of the client at index `place`, carries out the request in it, and answers the client.
    /// Returns true if there was a line.
    fn serve_client(&mut self, place: usize) -> bool {
        let client = &mut self.clients[place];
        client.write();
        let Some(line) = client.line() else {
            return false;
        };
        let number = client.number;
        let answer = match Request::from_line(&line) {
            Ok(Request::Status) => self.status(),
            Ok(Request::Capture(capture)) => Some(self.capture(number, capture)),
            Ok(Request::Stop) => self.stop(number),
            Ok(Request::Attach) => self.after(live::attach()),
            Ok(Request::Detach) => self.after(live::detach()),
            Err(why) => Some(ControlEvent::refused(why)),
        };
        if let Some(answer) = answer {
            self.clients[place].say(&answer);
        }
        true
    }

    /// Returns the time for which no client is to be accepted because accepting one has failed, or `None` if clients
    /// may be accepted. A time below one millisecond is ignored, because `poll` would not wait for it.
    fn accept_pause(&self) -> Option<Duration> {
        let left = self.accepts_at?.saturating_duration_since(Instant::now());
        Some(left).filter(|left| left.as_millis() > 0)
    }

    /// Accepts a new client. If there is no room, first closes the connection of the client that has been silent for
    /// longest. A client that waits for a window is chosen only if all clients do.
    fn accept(&mut self) {
        if self.clients.len() + 1 >= MAX_DESCRIPTORS {
            let waits = |client: &Client| waits(&self.watches, client);
            let silent = self
                .clients
                .iter()
                .enumerate()
                .min_by_key(|(_, client)| (waits(client), client.since()));
            if let Some((place, _)) = silent {
                self.clients.remove(place);
            }
        }
        match self.listener.accept() {
            Ok(Some(socket)) => {
                self.count += 1;
                self.clients.push(Client::new(self.count, socket));
            }
            Ok(None) => {}
            Err(_) => self.accepts_at = Some(Instant::now() + ACCEPT_PAUSE),
        }
    }

    /// Closes connections that ended or timed out.
    fn close_ended(&mut self) {
        let now = Instant::now();
        let watches = &self.watches;
        self.clients
            .retain(|client| !client.is_over(waits(watches, client), now));
    }

    /// Checks the progress of the windows (the ranges of iterations to capture) that clients wait for. Carries out the
    /// tasks that follow from this progress, such as an answer to a client.
    fn follow(&mut self) {
        let mut place = 0;
        while let Some(watch) = self.watches.get_mut(place) {
            let progress = match watch.window() {
                FollowedWindow::Requested(number) => live::progress(number),
                FollowedWindow::Planned(first) => live::planned_progress(first),
            };
            // No progress can be read, for example because the process is ending. Waiting clients notice the end when
            // their connections close.
            let Some(progress) = progress else {
                place += 1;
                continue;
            };
            match watch.on(progress, Instant::now()) {
                ServerTask::Nothing => place += 1,
                ServerTask::Stop(number) => live::close(number),
                ServerTask::CloseIdle => live::close_idle(),
                ServerTask::SayOpened(first) => {
                    let owner = watch.owner();
                    self.say_to(
                        |number| Some(number) == owner,
                        &ControlEvent::Opened { first },
                    );
                }
                ServerTask::SayClosed(steps) => {
                    let watch = self.watches.remove(place);
                    let record = record();
                    let closed = ControlEvent::Closed(Closed { steps, record });
                    self.say_to(|number| watch.waits(number), &closed);
                }
            }
        }
    }

    fn say_to(&mut self, is_meant: impl Fn(u64) -> bool, event: &ControlEvent) {
        for client in self
            .clients
            .iter_mut()
            .filter(|client| is_meant(client.number))
        {
            client.say(event);
        }
    }

    fn status(&self) -> Option<ControlEvent> {
        let Surroundings { settings, host, .. } = self.surroundings;
        let status = live::status()?;
        let phase = match status.window {
            Some((_, true)) if self.watches.iter().any(WindowWait::is_closing) => Phase::Closing,
            Some((_, true)) => Phase::Open,
            None if live::is_detached() => Phase::Detached,
            _ => Phase::Armed,
        };
        let window = status.window.map(|(window, _)| window);
        Some(ControlEvent::Status(Box::new(control::Status {
            pid: u64::from(ids::process().cast_unsigned()),
            host: host.to_string_lossy().into_owned(),
            run: settings.run.as_ref().map(|run| run.as_str().to_owned()),
            rank: status.rank.known().map(|ranked| ranked.rank),
            engine: status.engine.map(str::to_owned),
            rule: status.step.to_string(),
            iterations: status.iterations,
            at_ns: nanoseconds(SystemClock::Monotonic),
            p50_ns: recorder::median_ns(),
            phase,
            first: window.map(|window| window.first),
            last: window.and_then(|window| window.last),
            record: record(),
            times: times(),
        })))
    }

    /// Returns the process's status if `done` is `Ok`, otherwise the refusal with its reason.
    fn after(&self, done: Result<(), &'static str>) -> Option<ControlEvent> {
        match done {
            Ok(()) => self.status(),
            Err(why) => Some(ControlEvent::refused(why)),
        }
    }

    fn capture(&mut self, client: u64, capture: Capture) -> ControlEvent {
        let duration = capture.duration;
        let wanted = match wanted(capture, self.surroundings.settings) {
            Ok(wanted) => wanted,
            Err(why) => return ControlEvent::refused(why),
        };
        // Clients whose windows have closed get their answers first, because the session stores the progress of only a
        // few windows.
        self.follow();
        match live::ask(wanted) {
            Ok(RequestedWindow { window, number }) => {
                let (first, last) = (window.first, window.last);
                log::say!(Info, "window {window} was asked for on demand");
                let watch = WindowWait::requested_by(client, number, duration);
                self.watches.push(watch);
                ControlEvent::Accepted { first, last }
            }
            Err(refusal) => ControlEvent::Refused {
                why: refusal.to_string(),
                next: refusal.next(),
                ends: refusal.ends(),
            },
        }
    }

    /// Stops the open window (the recorded interval), and cancels a requested window that has not opened. Returns the
    /// refusal if there is neither. Otherwise returns `None`, and the client gets its answer later: when the window
    /// that the client has requested has closed or was cancelled. A client that has requested no window waits for the
    /// first window that another client waits for. If there is none either, the client waits for the open window.
    fn stop(&mut self, client: u64) -> Option<ControlEvent> {
        self.follow();
        let first = live::open_window();
        if !live::stop() {
            return Some(ControlEvent::refused("no window is open or was asked for"));
        }
        if self.watches.is_empty() {
            self.watches.push(WindowWait::planned(first));
        }
        let now = Instant::now();
        self.watches
            .iter_mut()
            .for_each(|watch| watch.note_stop(now));
        let mut watches = self.watches.iter();
        let own = watches.position(|watch| watch.owner() == Some(client));
        self.watches[own.unwrap_or(0)].stops(client, now);
        None
    }
}

/// Returns true if `client` waits for an answer about one of the windows.
fn waits(watches: &[WindowWait], client: &Client) -> bool {
    watches.iter().any(|watch| watch.waits(client.number))
}

fn record() -> Option<String> {
    recorder::path().map(|path| path.to_string_lossy().into_owned())
}

/// Returns histograms of the durations of iterations outside windows, or `None` if no durations were measured.
fn times() -> Option<control::StepHistograms> {
    let phases = recorder::times::by_phase().into_iter();
    let taken = |taken: recorder::times::TakenTimes| control::Taken {
        phase: taken.phase.map(|phase| phase.name().to_owned()),
        counts: taken.counts.to_vec(),
        sum_ns: taken.sum_ns,
    };
    let phases: Vec<_> = phases.map(taken).collect();
    (!phases.is_empty()).then(|| control::StepHistograms {
        bounds_ns: recorder::times::BOUNDS_NS.to_vec(),
        phases,
    })
}

/// Converts a client's request for a window (a range of iterations to capture) to a [`WindowRequest`], or returns the
/// reason why this process cannot meet the request.
fn wanted(capture: Capture, settings: &Settings) -> Result<WindowRequest, String> {
    let has = |name: &str, is_asked: bool, is_there: bool, option: &str| match is_asked && !is_there
    {
        true => Err(format!(
            "{name}: the process was started without it, and it cannot be switched on later (start it with {option})"
        )),
        false => Ok(()),
    };
    let kernels = capture.kernels.is_some_and(|steps| steps > 0);
    has(
        "kernels",
        kernels,
        settings.kernels.is_some(),
        "--kernels or TLLMPROF_KERNELS=1",
    )?;
    has(
        "gc",
        capture.gc,
        settings.record_gc,
        "--gc or TLLM_PROFILE_RECORD_GC=1",
    )?;
    has(
        "profiler",
        capture.profiler,
        injection::has_profiler(),
        "nsys profile -c cudaProfilerApi",
    )?;
    has("gil", capture.gil, settings.gil, "--gil or TLLMPROF_GIL=1")?;
    has(
        "stacks",
        capture.stacks,
        settings.stacks.is_some(),
        "--stacks or TLLMPROF_STACKS=1",
    )?;
    has(
        "past",
        capture.past,
        settings.flight.is_some(),
        "--flight or TLLMPROF_FLIGHT=1",
    )?;
    let torch_trace = match capture.torch_trace {
        Some(path) => Some(trace_path(&path, settings)?),
        None => None,
    };
    let condition = match capture.condition {
        Some(text) => {
            let condition = Condition::parse(&text);
            Some(condition.map_err(|problem| format!("where: {problem}"))?)
        }
        None => None,
    };
    let by_default = || capture.duration.is_none().then_some(STEPS);
    Ok(WindowRequest {
        first: capture.first,
        delay: capture.delay.unwrap_or(0),
        iterations: capture.steps.or_else(by_default),
        condition,
        kernels: capture.kernels,
        for_profiler: capture.profiler,
        past: capture.past,
        torch_trace,
    })
}

/// Returns the path for the PyTorch profiler's trace. Returns the reason instead if the profiler cannot run in this
/// process, or if the path is not valid.
fn trace_path(text: &str, settings: &Settings) -> Result<TracePath, String> {
    let refused = |why: &str| Err(format!("torch_trace: {why}"));
    if settings
        .kernels
        .is_some_and(|kernels| kernels != KernelSelection::Auto)
    {
        return refused(
            "the process was started with --kernels, and the library and the PyTorch profiler cannot both have CUPTI",
        );
    }
    if settings.torch_trace.is_none() && !live::can_run_torch_profiler() {
        return refused(
            "the library does not follow Python in this process, and that cannot be switched on later (start it with --torch-trace PATH)",
        );
    }
    if !text.starts_with('/') {
        return refused("the path does not begin with /, as one of the process does");
    }
    TracePath::parse(text).map_err(|problem| format!("torch_trace: {problem}"))
}
