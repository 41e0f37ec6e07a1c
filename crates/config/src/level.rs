//! The log level, which decides how much is logged on standard error.

use std::fmt;

use crate::error::Problem;

/// A log level. Each level includes everything that the levels before it log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

impl Level {
    pub const ALL: [Level; 5] = [
        Level::Off,
        Level::Error,
        Level::Warn,
        Level::Info,
        Level::Debug,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Level::Off => "off",
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }

    /// Parses the name of a log level.
    ///
    /// # Errors
    /// Returns an error if the text is not the name of a log level.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        Self::ALL
            .into_iter()
            .find(|level| text.eq_ignore_ascii_case(level.name()))
            .ok_or_else(|| {
                Problem::new("there is no such level", "off, error, warn, info or debug")
            })
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_parses_from_its_name() {
        for level in Level::ALL {
            assert_eq!(Level::parse(level.name()), Ok(level));
            assert_eq!(
                Level::parse(&format!(" {} ", level.name().to_uppercase())),
                Ok(level)
            );
        }
        assert!(Level::parse("trace").is_err());
    }

    #[test]
    fn levels_are_ordered() {
        assert!(Level::ALL.is_sorted());
    }
}
