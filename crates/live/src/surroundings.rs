//! Data about the process that the listening thread gets when it is started.

use std::ffi::OsString;
use std::path::PathBuf;

use tllmprof_config::Settings;

/// Data that the listening thread gets when it starts. It must not look this data up later, because another thread may
/// change the environment at any time.
pub(crate) struct Surroundings {
    pub settings: &'static Settings,
    /// The value of the environment variable `XDG_RUNTIME_DIR`, if it is set.
    pub runtime: Option<PathBuf>,
    pub host: OsString,
}
