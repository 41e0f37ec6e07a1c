//! Ends the session before the program installs a filter for system calls (seccomp) while it runs.
//!
//! Such a filter may end the process for any system call that the program does not expect. So the library
//! does all its closing work before the filter is installed: it closes the window, finishes the record, and
//! ends the control socket and its threads. Filters that existed when the process was started, such as a
//! container's, do not end the session.

use core::sync::atomic::Ordering;

use tllmprof_config::Settings;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::modules::ARE_WATCHED;

use super::end::EndReason;
use super::refusal::{self, SeccompWarning};
use super::{STATE, activity, ending};

/// Ends the session before the program installs a filter for system calls, unless `TLLMPROF_AFTER_SECCOMP` is set.
/// Called on the program's thread, outside the library's code.
pub fn filter_comes() {
    let _errno = SavedErrno::new();
    // The child of a `vfork` runs in its parent's memory, but installs the filter only for itself. So it must
    // not end the parent's session.
    if lifecycle::is_filtered() || !activity::is_asked() || !log::is_own_process() {
        return;
    }
    let settings = activity::settings();
    if settings.is_some_and(|settings| settings.after_seccomp) {
        return;
    }
    if activity::is_touched() && settings.is_some_and(is_refused) {
        log::say!(Warn, "{SeccompWarning}");
    }
    ending::end(EndReason::Filter);
    activity::stop();
    lifecycle::filter_is_installed();
    ARE_WATCHED.store(false, Ordering::Relaxed);
}

/// Returns true if a window or a record was still to come, which the filter now prevents.
fn is_refused(settings: &Settings) -> bool {
    let guard = STATE.lock_for(ending::ENDING);
    let planned = match guard.as_ref().and_then(|guard| guard.as_ref()) {
        Some(state) => state.schedule.has_more(),
        None => !settings.windows.is_empty(),
    };
    planned || refusal::has_more_than_planned(settings)
}
