//! Something that happened.

use tllmprof_record::StringId;

use crate::kinds::Kind;
use crate::name::Name;
use crate::track::Track;

/// Something that happened: a span of time, a moment, or a value of a counter.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    pub kind: Kind,
    pub track: Track,
    /// The thread that recorded it.
    pub thread: u32,
    /// Nanoseconds of the machine's `CLOCK_MONOTONIC`.
    pub start: u64,
    pub length: Length,
    pub name: Name,
    /// What it is, the kind's row says; of a metric thousandths of its unit, of an expert's load tokens.
    pub value: u64,
    /// Of NVTX; else `NO_STRING`, which is the default domain, too.
    pub domain: StringId,
    /// The call was made while its thread captured a stream.
    pub capturing: bool,
    /// The call returned an error, the function raised.
    pub failed: bool,
    /// Something else than its own end ended it.
    pub cut: bool,
}

/// How long an item is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    Moment,
    /// Nanoseconds.
    Ns(u64),
    /// Ticks of the record's clock: [`Interpreter::duration`](crate::Interpreter::duration) has it in
    /// nanoseconds.
    Ticks {
        start: u64,
        count: u64,
    },
}
