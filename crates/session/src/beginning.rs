//! Actions that run once when the session begins: at the process's first CUDA call, or when a window is due in a
//! process that has only loaded the CUDA driver. Also holds the function that runs when the process exits.

use core::sync::atomic::{AtomicBool, Ordering};

use once_cell::race::OnceBox;
use tllmprof_config::{Settings, Step};
use tllmprof_platform::cancel::Uncancelled;
use tllmprof_platform::thread::uncounted;
use tllmprof_platform::{lifecycle, log};

use super::learning;
use super::wiring::{doors, listener, sink};

lifecycle::global! {
    /// The function that runs when the process exits.
    #[fork(keep = "it is the same function")]
    static AT_EXIT: OnceBox<extern "C" fn()> = OnceBox::new();
}

/// Stores `act`, the function that runs when the process exits. [`begin`] registers it, so that it runs before the
/// exit handlers that the driver registered when it was initialised.
pub(crate) fn at_exit(act: extern "C" fn()) {
    let _ = AT_EXIT.set(Box::new(act));
}

/// Runs the actions that are due when the session begins. Called once, with no lock held, because a profiler that this
/// function starts may make CUDA calls itself.
pub(crate) fn begin(settings: &'static Settings) {
    mind_exit();
    let _uncancelled = Uncancelled::new();
    log::set_level(settings.log);
    if matches!(settings.step, Step::Symbol { .. }) || !settings.scopes.is_empty() {
        doors().report_named();
    }
    if matches!(settings.step, Step::Auto) {
        learning::log_hint();
    }
    if settings.is_unwatched
        && let Some(stuck) = &settings.stuck
    {
        log::say!(
            Warn,
            "TLLMPROF_WHEN={stuck}: nothing checks whether this process is stuck (tllmprof run does)"
        );
    }
    uncounted(&mut || {
        sink().start(settings);
        if settings.when.is_some() {
            // Some CUDA calls may have come before the settings were read. At that time the hooks did not know that
            // calls must be recorded.
            doors().record_calls();
        }
        listener().begins(settings);
    });
}

/// Registers the exit handler, which closes the open window.
fn mind_exit() {
    lifecycle::global! {
        #[fork(keep = "handlers are inherited")]
        static ONCE: AtomicBool = AtomicBool::new(false);
    }
    if let Some(at_exit) = AT_EXIT.get()
        && !ONCE.swap(true, Ordering::AcqRel)
    {
        // Exit handlers run in reverse order of registration. The driver has registered its handlers by now,
        // so this one runs before them.
        tllmprof_platform::system::at_exit(*at_exit);
    }
}
