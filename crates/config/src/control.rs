//! The setting `TLLMPROF_CONTROL`: the control socket, to which `tllmprof capture` and similar commands connect.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::error::Problem;
use crate::flag;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Control {
    #[default]
    Off,
    /// Enables the control socket in the default folder, which belongs to the user.
    On,
    /// Enables the control socket in this folder, which containers can share.
    Folder(PathBuf),
}

impl Control {
    /// Parses a value of `TLLMPROF_CONTROL`.
    ///
    /// # Errors
    /// Returns an error if the value is neither a flag nor an absolute path. A relative path is not accepted, because
    /// the processes of a run may have different working folders.
    pub fn parse(text: &OsStr) -> Result<Self, Problem> {
        match text.to_str().and_then(flag::recognised) {
            Some(true) => Ok(Self::On),
            Some(false) => Ok(Self::Off),
            None if Path::new(text).is_absolute() => Ok(Self::Folder(text.into())),
            None => Err(Problem::new(
                "it is neither on, off nor an absolute path",
                "1, 0, or the path of a folder",
            )),
        }
    }

    pub fn is_on(&self) -> bool {
        *self != Self::Off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_flag_or_a_folder() {
        let parse = |text: &str| Control::parse(text.as_ref());
        assert_eq!(parse("1"), Ok(Control::On));
        assert_eq!(parse("off"), Ok(Control::Off));
        assert_eq!(parse("/a b"), Ok(Control::Folder("/a b".into())));
        for wrong in ["2", "folder", "./folder"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(!Control::Off.is_on() && Control::On.is_on());
    }
}
