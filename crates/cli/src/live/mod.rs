//! Processes that run under the library and listen: who they are, and windows on demand.

pub mod capture;
mod connection;
mod lockstep;
mod missing;
pub mod ps;
mod record;
mod shown;
mod sockets;
pub mod stop;
mod targets;
