//! Starts the parts of the library that are needed from the beginning. This happens in a process whose environment
//! contains a variable of tllmprof, and in a process to which `tllmprof attach` attaches.

use tllmprof_config::Settings;
use tllmprof_intercept as intercept;
use tllmprof_platform::{injection, internal_error, lifecycle, log, own_threads};
use tllmprof_python as python;
use tllmprof_recorder as recorder;
use tllmprof_scopes as scopes;
use tllmprof_session::activity;

/// Starts the library. `is_attached` is true if `tllmprof attach` has loaded the library into a running process. It is
/// false if the library was loaded at the start of a process whose environment contains a variable of tllmprof.
pub(crate) fn start(is_attached: bool) {
    log::start();
    if !is_attached {
        own_threads::watch_main_thread();
    }
    internal_error::start();
    let settings = activity::settings();
    if let Some(settings) = settings {
        recorder::start(settings);
        scopes::start(settings);
    }
    let has_work = |settings: &Settings| {
        !settings.windows.is_empty()
            || settings.control.is_on()
            || recorder::is_wanted()
            || recorder::ring::is_wanted()
    };
    if settings.is_none_or(has_work) {
        // Fork handlers are registered even if the library only logs that its settings are invalid: a child process
        // may log messages, too, and its standard error may be another file.
        lifecycle::register();
        if !is_attached {
            intercept::lead_look_ups();
        }
    }
    injection::start(settings.is_some_and(|settings| {
        activity::counts_ranges(settings) || activity::records_ranges(settings)
    }));
    intercept::follow_named();
    // If the library was attached to a running process, it attaches to Python later, after all its other parts have
    // started.
    if !is_attached {
        python::start();
        if settings.is_some_and(has_work) {
            intercept::bypass::await_look_up();
        }
    }
}
