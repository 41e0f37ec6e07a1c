//! The warning that no more windows open, because the program has installed a filter for system calls
//! (seccomp).

use core::fmt;

use tllmprof_config::Settings;
use tllmprof_platform::log::{self, Level};

/// The text of the warning about the system call filter, which is logged once.
pub(crate) struct SeccompWarning;

impl fmt::Display for SeccompWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no window opens and nothing is recorded from here on: the program installs a filter for system calls (seccomp), which may end the \
             process for a call that the library makes. Set TLLMPROF_AFTER_SECCOMP=1 if the filter allows these calls \
             (docs/safety.md lists them)",
        )
    }
}

/// Returns true if the settings use the flight recorder (which keeps the latest iterations outside windows), or allow
/// windows that are not planned: by triggers, kernel samples or requests from outside.
pub(crate) fn has_more_than_planned(settings: &Settings) -> bool {
    settings.may_open_unplanned_windows() || settings.flight.is_some()
}

/// Logs the warning if the settings ask for windows or use the flight recorder. Called when the process begins to use
/// CUDA while a system call filter is already installed.
pub(crate) fn say_under_filter(settings: &Settings) {
    if !settings.windows.is_empty() || has_more_than_planned(settings) {
        log::set_level(settings.log);
        log::line_by_one_call(Level::Warn, format_args!("{SeccompWarning}"));
    }
}
