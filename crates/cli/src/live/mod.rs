//! Processes that run under the library and listen: who they are, and windows on demand.

pub mod capture;
mod connection;
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

/// How many of something, as an option says: at least one.
fn count(text: &str) -> Result<u64, &'static str> {
    match text.parse() {
        Ok(count @ 1..) => Ok(count),
        _ => Err("wanted: a whole number, at least 1"),
    }
}
