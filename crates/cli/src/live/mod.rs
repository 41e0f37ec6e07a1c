//! Commands for running processes that have loaded the tllmprof library and listen on a control socket, such as `ps`
//! and `capture`.

pub(crate) mod attach;
pub(crate) mod capture;
mod connection;
pub(crate) mod detach;
mod engine;
mod inside;
mod lockstep;
pub(crate) mod metrics;
mod missing;
pub(crate) mod ps;
mod record;
mod shown;
mod sockets;
pub(crate) mod stop;
pub(crate) mod targets;
pub(crate) mod top;

use std::num::IntErrorKind;

pub(crate) use crate::beyond::numbers as process_numbers;
use anyhow::Result;
pub(crate) use sockets::sweep;

use crate::{failure, output};

/// Runs an action for each process, and logs errors. Returns the processes for which the action succeeded.
///
/// # Errors
/// If there is only one process, its error is returned and not logged.
fn each<T: Copy>(all: &[T], act: impl Fn(T) -> Result<()>) -> Result<Vec<T>> {
    let mut succeeded = Vec::new();
    for one in all {
        match act(*one) {
            Ok(()) => succeeded.push(*one),
            Err(error) if all.len() == 1 => return Err(error),
            Err(error) => output::say(format_args!("{}", failure::text(&error))),
        }
    }
    Ok(succeeded)
}

/// The largest count that an option accepts. No process makes that many iterations.
const MAX_COUNT: u64 = 1_000_000_000_000;

/// Parses a count for an option, from 1 to [`MAX_COUNT`].
pub(crate) fn count(text: &str) -> Result<u64, String> {
    counted(text, 1, "wanted: a whole number, at least 1")
}

/// Parses a count for an option, from 0 to [`MAX_COUNT`].
fn count_or_none(text: &str) -> Result<u64, String> {
    counted(text, 0, "wanted: a whole number")
}

fn counted(text: &str, least: u64, wanted: &str) -> Result<u64, String> {
    let count = text.parse::<u64>();
    let is_too_large = match &count {
        Ok(count) => *count > MAX_COUNT,
        Err(error) => *error.kind() == IntErrorKind::PosOverflow,
    };
    match count {
        _ if is_too_large => Err(format!("wanted: at most {MAX_COUNT}")),
        Ok(count) if count >= least => Ok(count),
        _ => Err(wanted.to_owned()),
    }
}

/// Parses a process number.
fn pid(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "wanted: the number of a process")
}
