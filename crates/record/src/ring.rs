//! The ring of a process's latest steps and NCCL collectives (see `docs/hang.md`). It is in a file that is
//! mapped into the process. It has a fixed size, and can be read even after the process was killed.

mod layout;
mod operation;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use layout::{RING_BYTES, RING_MAGIC, RING_VERSION, RingBlock};
pub use operation::{Collective, Operation};
pub use reader::{
    Called, CapturedCollective, CapturedGroup, NoRing, Ring, RingCommunicator, RingDirection,
    RingStep,
};
pub use writer::{OpenCall, RingCall, RingFacts};
