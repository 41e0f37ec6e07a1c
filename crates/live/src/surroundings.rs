//! Facts about the process that the listening thread gets when it is started.

use std::ffi::OsString;
use std::path::PathBuf;

use tllmprof_config::Settings;

/// Facts that the listening thread must not look up itself, because another thread may change the environment
/// meanwhile.
pub(crate) struct Surroundings {
    pub settings: &'static Settings,
    /// The value of `XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
    pub host: OsString,
}
