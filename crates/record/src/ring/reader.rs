//! Reads a ring (the latest steps and NCCL collectives of a process) from the bytes of its file.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{
    COUNTS_BY_PEER, CollectivePlace, CommunicatorPlace, DirectionPlace, GroupPlace, RING_BYTES,
    RING_MAGIC, RING_VERSION, RingBlock, SEQUENCE, StepPlace, relaxed, text,
};
use super::operation::{Collective, Operation};

/// The contents of a ring (the latest steps and NCCL collectives of a process), read at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Ring {
    pub pid: u32,
    pub host: String,
    pub run: String,
    pub boot: String,
    /// True if the library was loaded into a running process, so that earlier steps and calls are unknown.
    pub is_late: bool,
    /// True if the process ended in a way that the library saw.
    pub has_ended: bool,
    pub begin_ns: u64,
    pub begin_unix_ns: u64,
    pub end_ns: u64,
    pub rank: Option<u64>,
    /// The number of steps that have begun.
    pub steps_begun: u64,
    /// The thread that began the latest step.
    pub step_thread: u32,
    /// The number of collectives, sends and receives that were called outside stream captures.
    pub collectives_begun: u64,
    pub groups: Vec<CapturedGroup>,
    pub communicators: Vec<RingCommunicator>,
    /// The latest steps, the oldest first.
    pub steps: Vec<RingStep>,
    /// The latest collectives, sends and receives that were called outside stream captures, the oldest first.
    pub collectives: Vec<Called>,
    /// The collectives, sends and receives that were captured into graphs.
    pub captured: Vec<CapturedCollective>,
}

/// A named group of ranks that the process belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CapturedGroup {
    pub name: String,
    pub rank: u32,
    pub size: u32,
}

/// A communicator that the process uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RingCommunicator {
    /// The communicator's id, the same on all ranks; 0 if it is not known.
    pub id: u64,
    /// The rank of the process and the number of ranks, if they are known.
    pub place: Option<(u32, u32)>,
    /// The number of collectives that were called on this communicator so far.
    pub sequence: u64,
    /// The sends and receives so far; `None` if they are not all counted.
    pub directions: Option<Vec<RingDirection>>,
}

/// The sends to another rank of a communicator, or the receives from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingDirection {
    /// The direction: [`Collective::Send`] or [`Collective::Receive`].
    pub collective: Collective,
    pub peer: u32,
    pub count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingStep {
    pub number: u64,
    pub begin_ns: u64,
    /// The time when the step ended, in nanoseconds; `None` while it runs.
    pub end_ns: Option<u64>,
}

/// A collective, send or receive that the process has called outside stream captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Called {
    pub communicator: u64,
    /// The number of the call, counted from 0: for a collective, among the communicator's collectives; for a send or
    /// receive, among those to or from the same rank.
    pub sequence: u64,
    pub operation: Operation,
    pub stream: u64,
    pub thread: u32,
    pub begin_ns: u64,
    /// The time when the call returned, if it has. The GPU may not have begun the work by then.
    pub end_ns: Option<u64>,
}

/// A series of equal collectives, sends or receives that were captured into graphs one after another; `times` is
/// their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturedCollective {
    pub communicator: u64,
    pub operation: Operation,
    pub times: u64,
}

/// The reason why a file cannot be read as a ring (the latest steps and NCCL collectives of a process).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRing {
    /// The file is not a ring.
    Other,
    /// The file is the beginning of a ring, of this number of bytes.
    Cut(usize),
    /// The file has a later version of the format.
    Version(u32),
}

impl fmt::Display for NoRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other => f.write_str("it is not a ring of tllmprof"),
            Self::Cut(bytes) => write!(
                f,
                "the ring was cut: it has {bytes} bytes (wanted: all {RING_BYTES} bytes of the file)"
            ),
            Self::Version(version) => write!(
                f,
                "it has version {version} of the format, and this command reads up to {RING_VERSION}"
            ),
        }
    }
}

impl Ring {
    /// Decodes a ring from the bytes of its file.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a ring.
    pub fn read(bytes: &[u8]) -> Result<Self, NoRing> {
        let mut words = vec![0_u64; RING_BYTES / 8];
        if bytes.len() < size_of::<RingBlock>() {
            let begins = &bytes[..bytes.len().min(RING_MAGIC.len())];
            return Err(match RING_MAGIC.starts_with(begins) {
                true => NoRing::Cut(bytes.len()),
                false => NoRing::Other,
            });
        }
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let place = NonNull::from(words.as_mut_slice()).cast();
        // SAFETY: the words have the size and the alignment of a ring, and only `block` uses them while it
        // lives.
        let block = unsafe { RingBlock::at(place) };
        if relaxed(&block.magic) != u64::from_le_bytes(RING_MAGIC) {
            return Err(NoRing::Other);
        }
        match block.version.load(Ordering::Relaxed) {
            version if version > RING_VERSION => Err(NoRing::Version(version)),
            _ => Ok(block.content()),
        }
    }
}

impl RingBlock {
    fn content(&self) -> Ring {
        let name = |words: &[AtomicU64]| {
            let text = text(words.iter().map(relaxed));
            String::from_utf8_lossy(&text).into_owned()
        };
        Ring {
            pid: self.pid.load(Ordering::Relaxed),
            host: name(&self.host),
            run: name(&self.run),
            boot: name(&self.boot),
            is_late: self.is_late.load(Ordering::Relaxed) != 0,
            has_ended: self.ended.load(Ordering::Relaxed) != 0,
            begin_ns: relaxed(&self.begin_ns),
            begin_unix_ns: relaxed(&self.begin_unix_ns),
            end_ns: relaxed(&self.end_ns),
            rank: relaxed(&self.rank).checked_sub(1),
            steps_begun: relaxed(&self.steps_begun),
            step_thread: relaxed(&self.step_thread) as u32,
            collectives_begun: relaxed(&self.collectives_begun),
            groups: self.groups.iter().filter_map(GroupPlace::content).collect(),
            communicators: self
                .communicators
                .iter()
                .filter(|place| relaxed(&place.handle) != 0)
                .map(|place| self.communicator_content(place))
                .collect(),
            steps: in_order(&self.step_places, |place| &place.order, StepPlace::content),
            collectives: in_order(
                &self.collective_places,
                |place| &place.order,
                CollectivePlace::called,
            ),
            captured: in_order(
                &self.captured_places,
                |place| &place.order,
                CollectivePlace::captured,
            ),
        }
    }
}

/// Returns the contents of the entries that are completely written, the oldest first.
fn in_order<P, T>(
    places: &[P],
    order: impl Fn(&P) -> &AtomicU64,
    content: impl Fn(&P) -> Option<T>,
) -> Vec<T> {
    let whole = places.iter().filter(|place| relaxed(order(place)) != 0);
    let mut all: Vec<_> = whole
        .filter_map(|place| Some((relaxed(order(place)), content(place)?)))
        .collect();
    all.sort_by_key(|(order, _)| *order);
    all.into_iter().map(|(_, one)| one).collect()
}

impl GroupPlace {
    fn content(&self) -> Option<CapturedGroup> {
        let name = text(self.name.iter().map(relaxed));
        let rank = relaxed(&self.rank);
        (!name.is_empty()).then(|| CapturedGroup {
            name: String::from_utf8_lossy(&name).into_owned(),
            rank: rank as u32,
            size: (rank >> 32) as u32,
        })
    }
}

impl RingBlock {
    fn communicator_content(&self, place: &CommunicatorPlace) -> RingCommunicator {
        let (rank, size) = (
            relaxed(&place.rank) as u32,
            (relaxed(&place.rank) >> 32) as u32,
        );
        let index = self.index_of(place);
        let are_counted = self.version.load(Ordering::Relaxed) >= COUNTS_BY_PEER
            && relaxed(&place.uncounted) == 0;
        let directions = self.directions.iter();
        RingCommunicator {
            id: relaxed(&place.id),
            place: (size > 0).then_some((rank, size)),
            sequence: relaxed(&place.sequence),
            directions: are_counted
                .then(|| directions.filter_map(|one| one.content(index)).collect()),
        }
    }
}

impl StepPlace {
    fn content(&self) -> Option<RingStep> {
        Some(RingStep {
            number: relaxed(&self.number),
            begin_ns: relaxed(&self.begin_ns),
            end_ns: Some(relaxed(&self.end_ns)).filter(|at| *at != 0),
        })
    }
}

impl CollectivePlace {
    fn operation(&self) -> Option<Operation> {
        let [.., data_type, collective] = relaxed(&self.what).to_le_bytes();
        Some(Operation {
            collective: Collective::from_number(collective)?,
            count: relaxed(&self.count),
            data_type,
            peer: ((relaxed(&self.thread) >> 32) as u32).checked_sub(1),
        })
    }

    fn called(&self) -> Option<Called> {
        Some(Called {
            communicator: relaxed(&self.communicator),
            sequence: relaxed(&self.what) & SEQUENCE,
            operation: self.operation()?,
            stream: relaxed(&self.stream),
            thread: relaxed(&self.thread) as u32,
            begin_ns: relaxed(&self.begin_ns),
            end_ns: Some(relaxed(&self.end_ns)).filter(|at| *at != 0),
        })
    }

    fn captured(&self) -> Option<CapturedCollective> {
        Some(CapturedCollective {
            communicator: relaxed(&self.communicator),
            operation: self.operation()?,
            times: relaxed(&self.end_ns),
        })
    }
}

impl DirectionPlace {
    /// Returns the other rank, the direction and the count of this entry, if the entry belongs to
    /// the communicator with this index.
    fn content(&self, communicator: usize) -> Option<RingDirection> {
        let key = relaxed(&self.key);
        let collective = match key & 1 {
            0 => Collective::Send,
            _ => Collective::Receive,
        };
        (Self::communicator(key) == Some(communicator)).then(|| RingDirection {
            collective,
            peer: (key >> 1) as u32,
            count: relaxed(&self.count),
        })
    }
}
