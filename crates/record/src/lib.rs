//! The format of tllmprof's records (see `docs/format.md`). The preloaded library writes records, and the
//! command reads them.
//!
//! Writing ([`Chunk`], [`EventWriter`], [`HeaderBlock`]) happens in the program's process, in memory that is
//! mapped to a file. The writing code does not allocate, lock or panic. The record has each event as soon as the event
//! is written, even if the process is killed afterwards. Reading ([`Reader`]) does not rely on the file being valid: it
//! returns everything that can be read of a damaged or unfinished file, uses a limited amount of memory, and counts
//! the errors.
//! Checksums (`check`) detect changes.

#[forbid(unsafe_code)]
mod batch;
#[cfg(any(feature = "builder", feature = "stream"))]
mod block;
#[forbid(unsafe_code)]
mod check;
mod chunk;
#[forbid(unsafe_code)]
mod clock;
#[forbid(unsafe_code)]
mod counter;
mod earlier;
#[forbid(unsafe_code)]
mod event;
#[forbid(unsafe_code)]
mod groups;
mod header;
mod histogram;
#[forbid(unsafe_code)]
mod info;
#[forbid(unsafe_code)]
mod kinds;
#[forbid(unsafe_code)]
mod layout;
#[forbid(unsafe_code)]
mod metric;
#[forbid(unsafe_code)]
mod read_header;
#[forbid(unsafe_code)]
mod reader;
mod ring;
#[forbid(unsafe_code)]
mod source;
#[cfg(feature = "still")]
mod still;
#[cfg(feature = "stream")]
mod stream;
#[forbid(unsafe_code)]
mod strings;

#[cfg(feature = "builder")]
pub mod builder;
#[forbid(unsafe_code)]
pub mod contents;
#[cfg(feature = "builder")]
#[forbid(unsafe_code)]
mod repair;

pub use batch::{Batch, Phase};
pub use chunk::{Chunk, EventWriter};
pub use clock::{Clock, MonotonicNs};
pub use counter::Counter;
pub use earlier::{keep_earlier, with_suffix};
pub use event::{
    EncodedEvent, Event, EventKind, LAST_LASTING, NO_STRING, NoEvent, OWN_DOMAIN, StringId, What,
};
pub use groups::{CommunicatorId, GroupRank, Member};
pub use header::{Anchor, ClockKind, Ended, HeaderBlock};
pub use histogram::{BUCKETS, Histogram, SharedHistogram};
pub use info::Info;
pub use kinds::{
    CallKind, CopyKind, Edge, GpuOwner, GraphState, RangeKind, SystemCall, Taken, Task,
    ThreadState, Used,
};
pub use layout::{
    ANCHORS, CHUNK_BYTES, CHUNK_HEADER_BYTES, COUNTERS, EVENT_BYTES, HEADER_BYTES, MAGIC,
    MAX_STRING, PAYLOAD_BYTES, VERSION, chunk_offset,
};
pub use metric::Metric;
pub use read_header::Header;
pub use reader::{Cut, Damage, Entry, Reader, RecordError};
#[cfg(feature = "builder")]
pub use repair::repair;
pub use ring::{
    Called, CapturedCollective, CapturedGroup, Collective, NoRing, OpenCall, Operation, RING_BYTES,
    RING_MAGIC, RING_VERSION, Ring, RingBlock, RingCall, RingCommunicator, RingDirection,
    RingFacts, RingStep,
};
pub use source::Source;
#[cfg(feature = "still")]
pub use still::{copy, open_still};
#[cfg(feature = "stream")]
pub use stream::StreamWriter;
pub use strings::Strings;
