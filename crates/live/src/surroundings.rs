//! What the thread knows of its process from the start.

use std::ffi::OsString;
use std::path::PathBuf;

use tllmprof_config::Settings;

/// What the thread needs that it had better not read itself: another may change the environment meanwhile.
pub struct Surroundings {
    pub settings: &'static Settings,
    /// `XDG_RUNTIME_DIR`.
    pub runtime: Option<PathBuf>,
    pub host: OsString,
}
