//! The window that is open: what was switched on with it, and what is logged of it.

use core::fmt;
use core::time::Duration;
use std::time::Instant;

use tllmprof_config::{KernelSamples, Settings, Window};
use tllmprof_platform::driver::Driver;
use tllmprof_platform::log;
use tllmprof_recorder as recorder;
use tllmprof_session::{End, Place};
use tllmprof_steps::window::Taken;

use super::add_on::add_ons;
use super::nvtx::Ranges;
use super::{cupti, worker};

/// How long the device may take to become idle at the end of a window.
pub const DRAIN: Duration = Duration::from_secs(5);

/// What is switched on.
pub struct Capture {
    pub ranges: Option<Ranges>,
    pub open: Option<Open>,
    /// Of the window that is open or was the last.
    pub parts: Parts,
    pub drains: bool,
    pub settings: Option<&'static Settings>,
    /// A profiler has started the process, or listens in it.
    pub has_profiler: bool,
    /// Windows that were recorded or that a profiler was there for, and those that nothing is known to have recorded.
    pub heard: u64,
    pub unheard: u64,
    /// The process ends since then: its last iteration does, too.
    pub ended: Option<Instant>,
}

/// A window under way.
pub struct Open {
    /// As it was asked for, which is how messages name it.
    pub window: Window,
    pub iteration: u64,
    /// When its first iteration began, as the record has it.
    pub since: Instant,
    pub profiling: bool,
    /// It opened by itself to sample kernels, as one does again and again.
    pub sampled: Option<KernelSamples>,
}

/// What the parts of a window held that have closed; most windows have one.
#[derive(Default)]
pub struct Parts {
    pub count: u64,
    pub iterations: u64,
    pub elapsed: Duration,
    /// This cut its last iteration off, which the record's figures leave out.
    pub cut_by: Option<End>,
}

impl fmt::Display for Parts {
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

impl Capture {
    pub const fn new() -> Self {
        Self {
            ranges: None,
            open: None,
            parts: Parts {
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

    /// The window opens.
    pub fn open(&mut self, taken: Taken, place: &Place<'_>) {
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
        self.open = Some(Open {
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
        self.parts = Parts::default();
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

    /// The window has closed before iteration `over`, its last one at `ended`. `goes_on`: it opens again later.
    pub fn close(&mut self, over: u64, ended: Instant, drained: bool, goes_on: bool) {
        let Some(open) = self.open.take() else { return };
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
                    "window {window}: waiting for the device took over {DRAIN:?}: its last work may be missing"
                );
            } else {
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
        if goes_on {
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
