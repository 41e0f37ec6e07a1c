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

use anyhow::Result;

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

/// How many of something, as an option says: at least one.
fn count(text: &str) -> Result<u64, &'static str> {
    match count_or_none(text) {
        Ok(0) | Err(NO_NUMBER) => Err("wanted: a whole number, at least 1"),
        count => count,
    }
}

/// As [`count`], or none.
fn count_or_none(text: &str) -> Result<u64, &'static str> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(count @ ..=MOST) => Ok(count),
        _ if is_number => Err("wanted: at most 1000000000000"),
        _ => Err(NO_NUMBER),
    }
}

/// Of what is counted: no process comes to more.
const MOST: u64 = 1_000_000_000_000;
const NO_NUMBER: &str = "wanted: a whole number";
