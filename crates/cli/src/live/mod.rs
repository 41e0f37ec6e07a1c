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
