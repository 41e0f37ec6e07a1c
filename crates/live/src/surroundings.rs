//! Facts about the process that the thread gets when it is started.

use std::ffi::OsString;
use std::path::PathBuf;

use tllmprof_config::Settings;

/// Facts that the thread must not read itself, because another thread may change the environment meanwhile.
pub struct Surroundings {
    pub settings: &'static Settings,
    /// `XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
    pub host: OsString,
}
