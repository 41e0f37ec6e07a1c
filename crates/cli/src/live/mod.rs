//! Processes that run under the library and listen: who they are, and windows on demand.

pub mod attach;
mod beyond;
pub mod capture;
mod connection;
pub mod detach;
mod engine;
mod inside;
mod lockstep;
pub mod metrics;
mod missing;
pub mod ps;
mod record;
mod shown;
mod sockets;
pub mod stop;
mod targets;
pub mod top;

use std::num::IntErrorKind;

use anyhow::Result;
pub use sockets::sweep;

use crate::{failure, output};

/// Does something with each process, and says what fails; those with which it succeeded.
///
/// # Errors
/// That of the only one.
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

/// Of what is counted: no process comes to more.
const MOST: u64 = 1_000_000_000_000;

/// How many of something, as an option says: at least one.
fn count(text: &str) -> Result<u64, String> {
    counted(text, 1, "wanted: a whole number, at least 1")
}

/// As [`count`], or none.
fn count_or_none(text: &str) -> Result<u64, String> {
    counted(text, 0, "wanted: a whole number")
}

fn counted(text: &str, least: u64, wanted: &str) -> Result<u64, String> {
    let count = text.parse::<u64>();
    let is_too_large = match &count {
        Ok(count) => *count > MOST,
        Err(error) => *error.kind() == IntErrorKind::PosOverflow,
    };
    match count {
        _ if is_too_large => Err(format!("wanted: at most {MOST}")),
        Ok(count) if count >= least => Ok(count),
        _ => Err(wanted.to_owned()),
    }
}

/// A process, by its number.
fn pid(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| "wanted: the number of a process")
}
