//! The exit statuses of the command for errors, and the texts of errors.

use std::fmt;
use std::process::ExitCode;

/// An error that carries the exit status of the command. After an error of any other type, the status is 1.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
}

/// An error with status 2: the command line or a variable is wrong.
pub(crate) fn usage(message: impl fmt::Display) -> anyhow::Error {
    with_status(2, message)
}

pub(crate) fn with_status(status: u8, message: impl fmt::Display) -> anyhow::Error {
    Failure {
        status,
        message: message.to_string(),
    }
    .into()
}

/// Returns the text of an error and its causes. Errors of the operating system are shown without their number.
pub(crate) fn text(error: &anyhow::Error) -> String {
    let causes = error.chain().map(|cause| worded(&cause.to_string()));
    causes.collect::<Vec<_>>().join(": ")
}

/// Returns an error's text without the number that the operating system gives to the error, ` (os error N)`. The text
/// `No such file or directory` becomes `there is no such file`.
pub(crate) fn worded(said: &str) -> String {
    let said = match said.rsplit_once(" (os error ") {
        Some((said, number)) if number.ends_with(')') => said,
        _ => said,
    };
    said.replace("No such file or directory", "there is no such file")
}

pub(crate) fn status(error: &anyhow::Error) -> ExitCode {
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

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;

    #[test]
    fn the_systems_numbers_are_left_out() {
        let missing = io::Error::from_raw_os_error(2);
        let error = Err::<(), _>(missing).context("a.tllmprof").unwrap_err();
        assert_eq!(text(&error), "a.tllmprof: there is no such file");
        assert_eq!(worded("it is (os error) like"), "it is (os error) like");
    }
}
