//! A filter for system calls (seccomp) that the program installs while it runs.
//!
//! It may end the process for any call that the program does not make itself. So all that the library does at the end of
//! the process it does before the filter comes, while it still may: the window is closed, the record is finished, the
//! socket and the library's threads go. Filters that were there when the process was started, as a container's, are none of
//! these.

use core::sync::atomic::Ordering;

use tllmprof_config::Settings;
use tllmprof_platform::errno::Kept;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::modules::ARE_WATCHED;

use super::end::End;
use super::refusal::{self, Refusal};
use super::{STATE, activity, ending};

/// The program is about to install a filter. On its thread, outside the library's code.
pub fn filter_comes() {
    let _errno = Kept::new();
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

/// Whether anything was still to be recorded.
fn is_refused(settings: &Settings) -> bool {
    let guard = STATE.lock_for(ending::ENDING);
    let planned = match guard.as_ref().and_then(|guard| guard.as_ref()) {
        Some(state) => state.schedule.has_more(),
        None => !settings.windows.is_empty(),
    };
    planned || refusal::has_more_than_planned(settings)
}
