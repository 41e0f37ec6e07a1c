//! The open window (the range of profiled iterations): what was switched on for it, and the log messages about it.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

use tllmprof_config::{IterationRange, KernelSamples, Settings};
use tllmprof_platform::driver::Driver;
use tllmprof_platform::log;
use tllmprof_recorder as recorder;
use tllmprof_session::{EndReason, Place};
use tllmprof_steps::window::Taken;

use super::add_on::add_ons;
use super::nvtx::Ranges;
use super::{cupti, worker};

/// Maximum time to wait for the device to become idle when a window (a range of profiled iterations) closes.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of this crate: the open window (the range of profiled iterations), the settings, and totals for log
/// messages.
pub(crate) struct CaptureState {
    pub ranges: Option<Ranges>,
    pub open: Option<OpenWindow>,
    /// Totals of the window (the range of profiled iterations) that is open. If no window is open, totals of the last
    /// window.
    pub parts: WindowTotals,
    pub drains: bool,
    pub settings: Option<&'static Settings>,
    /// True if a profiler, such as nsys, has started this process or receives its NVTX calls.
    pub has_profiler: bool,
    /// Number of windows (ranges of profiled iterations) during which the recorder, a profiler or an add-on was active.
    pub heard: u64,
    /// Number of windows (ranges of profiled iterations) during which no recorder, profiler or add-on was known to be
    /// active.
    pub unheard: u64,
    /// Time at which the process began to end, or to install a filter for system calls (seccomp). The last iteration
    /// ends at this time, too. `None` before that.
    pub ended: Option<Instant>,
}

/// An open window: its iterations, its begin, and what was switched on for it.
pub(crate) struct OpenWindow {
    /// The window (the range of profiled iterations) in the form in which the user requested it. Messages show this
    /// form.
    pub window: IterationRange,
    pub iteration: u64,
    /// Time at which the window's first iteration began. Until then, the time at which the window opened.
    pub since: Instant,
    pub profiling: bool,
    /// The settings of kernel sampling, if the window (the range of profiled iterations) opened automatically to take a
    /// sample; `None` for a window that the user requested.
    pub sampled: Option<KernelSamples>,
}

/// Totals of the closed parts of a window (a range of profiled iterations). A window has several parts if it was closed
/// for a while in between.
#[derive(Default)]
pub(crate) struct WindowTotals {
    pub count: u64,
    pub iterations: u64,
    pub elapsed: Duration,
    /// The reason why the window was closed before its last iteration was complete, usually the end of the process;
    /// `None` if that iteration was complete. The record's figures leave out an iteration that was cut off.
    pub cut_by: Option<EndReason>,
}

impl fmt::Display for WindowTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.iterations == 1 { "" } else { "s" };
        let ms = self.elapsed.as_secs_f64() * 1e3;
        write!(f, "{} iteration{s} in {ms:.3} ms", self.iterations)?;
        if self.count > 1 {
            write!(f, ", in {} parts", self.count)?;
        }
        match self.cut_by {
            Some(end) => write!(f, ", the last cut off by {end}"),
            None => Ok(()),
        }
    }
}

impl CaptureState {
    pub(crate) const fn new() -> Self {
        Self {
            ranges: None,
            open: None,
            parts: WindowTotals {
                count: 0,
                iterations: 0,
                elapsed: Duration::ZERO,
                cut_by: None,
            },
            drains: true,
            settings: None,
            has_profiler: false,
            heard: 0,
            unheard: 0,
            ended: None,
        }
    }

    /// Opens the window `taken` (a range of profiled iterations): starts the CUDA profiler, and begins the NVTX range
    /// of the window.
    pub(crate) fn open(&mut self, taken: Taken, place: &Place<'_>) {
        let window = taken.asked;
        let iteration = place.point.over();
        let driver = Driver::get();
        if let Some(driver) = driver {
            driver.remember_context();
        }
        let profiling = driver.is_some_and(Driver::start_profiler);
        if let Some(ranges) = &mut self.ranges {
            ranges.begin_window();
        }
        self.open = Some(OpenWindow {
            window,
            iteration,
            since: Instant::now(),
            profiling,
            sampled: place.sampled,
        });
        if taken.is_again {
            log::say!(
                Debug,
                "window {window} opened again at iteration {iteration}"
            );
            return;
        }
        self.parts = WindowTotals::default();
        if taken.is_late() {
            log::say!(
                Info,
                "window {window} opened at iteration {iteration} ({}; asked for {}: {})",
                place.by,
                window.first,
                place.why_late
            );
        } else if place.sampled.is_some() {
            log::say!(Debug, "window {window} opened: a sample of kernels");
        } else {
            log::say!(
                Info,
                "window {window} opened at iteration {iteration} ({})",
                place.by
            );
        }
    }

    /// Closes the open window. `over` is the first iteration after the window, and `ended` is the time at which the
    /// window's last iteration ended. `taken` is the window if the session has closed it, and `None` when the process
    /// ends.
    pub(crate) fn close(&mut self, over: u64, ended: Instant, drained: bool, taken: Option<Taken>) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        if let Some(taken) = taken {
            // The length of the window (the range of profiled iterations) may have changed since the window opened, so
            // the final window is stored.
            open.window = taken.asked;
        }
        if let Some(ranges) = &mut self.ranges {
            ranges.end_window();
        }
        if open.profiling
            && let Some(driver) = Driver::get()
        {
            driver.stop_profiler();
        }
        if !drained {
            let window = open.window;
            if worker::is_there() {
                log::say!(
                    Warn,
                    "window {window}: waiting for the device took over {DRAIN_TIMEOUT:?}: its last work may be missing"
                );
            } else if !worker::lacks_memory() {
                log::say!(
                    Warn,
                    "window {window}: no thread could be started to wait for the device: its last work may be missing"
                );
            }
        }
        self.parts.count += 1;
        self.parts.iterations += over.saturating_sub(open.iteration);
        self.parts.elapsed += ended.saturating_duration_since(open.since);
        if !open.profiling {
            log::say!(
                Warn,
                "window {}: the CUDA profiler did not start, so a profiler that waits for it has nothing of this window",
                open.window
            );
        }
        if taken.is_some_and(|taken| taken.goes_on) {
            log::say!(Debug, "window {} closed in between", open.window);
            return;
        }
        if open.sampled.is_some() {
            log::say!(Debug, "window {} closed: {}", open.window, self.parts);
            return;
        }
        log::say!(Info, "window {} closed: {}", open.window, self.parts);
        let is_heard = self.has_profiler
            || recorder::is_on()
            || cupti::others_have_it()
            || add_ons().any(|add_on| add_on.takes_windows());
        match is_heard {
            true => self.heard += 1,
            false => self.unheard += 1,
        }
        if let (false, 1, Some(settings)) = (is_heard, self.unheard, self.settings) {
            let missing = recorder::missing(settings);
            log::say!(
                Warn,
                "window {} closed, but nothing recorded it: {missing}, and no profiler was found in this process{}",
                open.window,
                missing.remedy()
            );
        }
    }
}
