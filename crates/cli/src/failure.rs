//! Which exit status an error ends with.

use std::fmt;
use std::process::ExitCode;

/// An error with an exit status of its own. Every other error ends with status 1.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    message: String,
}

/// The command line or a variable is wrong.
pub fn usage(message: impl fmt::Display) -> anyhow::Error {
    with_status(2, message)
}

pub fn with_status(status: u8, message: impl fmt::Display) -> anyhow::Error {
    Failure {
        status,
        message: message.to_string(),
    }
    .into()
}

pub fn status(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(
        error
            .downcast_ref::<Failure>()
            .map_or(1, |failure| failure.status),
    )
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}
