//! Fuzzes the library's environment variables, given as lines `NAME=value`.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use tllmprof_config::Settings;

/// Parses an environment with any content. The result is either settings or an error of one line.
pub fn settings(bytes: &[u8]) {
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| {
        let at = line.iter().position(|byte| *byte == b'=')?;
        Some((&line[..at], OsStr::from_bytes(&line[at + 1..]).to_owned()))
    });
    let variables: HashMap<&[u8], OsString> = lines.collect();
    if let Err(wrong) = Settings::from_env(|name| variables.get(name.as_bytes()).cloned()) {
        let line = wrong.to_string();
        assert!(
            !line.is_empty() && !line.contains(char::is_control),
            "{line:?}"
        );
    }
}
