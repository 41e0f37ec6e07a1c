//! Handles a filter for system calls (seccomp) that the program installs while it runs.
//!
//! The filter may end the process for any call that the program does not make itself. So the library does all
//! its work for the end of the process before the filter is installed: it closes the window, finishes the
//! record, and ends the socket and its threads. Filters that existed when the process was started, such as a
//! container's, are not meant here.

use core::sync::atomic::Ordering;

use tllmprof_config::Settings;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::modules::ARE_WATCHED;

use super::end::End;
use super::refusal::{self, Refusal};
use super::{STATE, activity, ending};

/// Called when the program is about to install a filter, on its thread, outside the library's code.
pub fn filter_comes() {
    let _errno = SavedErrno::new();
    // The child of a vfork installs it for itself, in its parent's memory.
    if lifecycle::is_filtered() || !activity::is_asked() || !log::is_own_process() {
        return;
    }
    let settings = activity::settings();
    if settings.is_some_and(|settings| settings.after_seccomp) {
        return;
    }
    if activity::is_touched() && settings.is_some_and(is_refused) {
        log::say!(Warn, "{Refusal}");
    }
    ending::end(End::Filter);
    activity::stop();
    lifecycle::filter_is_installed();
    ARE_WATCHED.store(false, Ordering::Relaxed);
}

/// Returns true if something would still have been recorded.
fn is_refused(settings: &Settings) -> bool {
    let guard = STATE.lock_for(ending::ENDING);
    let planned = match guard.as_ref().and_then(|guard| guard.as_ref()) {
        Some(state) => state.schedule.has_more(),
        None => !settings.windows.is_empty(),
    };
    planned || refusal::has_more_than_planned(settings)
}
