//! The ring of a process's latest steps and NCCL collectives (see `docs/hang.md`). It is in a file that is
//! mapped into the process. It has a fixed size, and can be read even after the process was killed.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::groups::CommunicatorId;
use crate::header::Ended;

/// The first bytes of a ring.
pub const RING_MAGIC: [u8; 8] = *b"TLLMRING";
/// The version of the format. A reader refuses later versions.
pub const RING_VERSION: u32 = 2;
/// The first version that counts sends and receives by the other rank.
const COUNTS_BY_PEER: u32 = 2;
/// The size of the file in bytes.
pub const RING_BYTES: usize = 64 << 10;

/// The longest name of a host or a run in a ring, in bytes. Longer names are cut.
const NAME_BYTES: usize = 64;
/// The longest name of a group, in bytes.
const GROUP_BYTES: usize = 16;
const MAX_GROUPS: usize = 8;
/// The number of communicators that the ring can hold at a time.
const MAX_COMMUNICATORS: usize = 64;
const STEPS: usize = 128;
const CAPTURED: usize = 256;
const COLLECTIVES: usize = 512;
/// The number of directions between this process and other ranks whose sends or receives the ring can count.
const DIRECTIONS: usize = 256;

/// The operation of a collective.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Collective {
    AllReduce = 1,
    Broadcast = 2,
    Reduce = 3,
    AllGather = 4,
    ReduceScatter = 5,
    AllToAll = 6,
    Send = 7,
    Receive = 8,
}

impl Collective {
    const ALL: [(Self, &'static str); 8] = [
        (Self::AllReduce, "all_reduce"),
        (Self::Broadcast, "broadcast"),
        (Self::Reduce, "reduce"),
        (Self::AllGather, "all_gather"),
        (Self::ReduceScatter, "reduce_scatter"),
        (Self::AllToAll, "all_to_all"),
        (Self::Send, "send"),
        (Self::Receive, "recv"),
    ];

    fn from_number(number: u8) -> Option<Self> {
        let index = usize::from(number).checked_sub(1)?;
        Some(Self::ALL.get(index)?.0)
    }

    /// Returns the call that the other rank of a send or receive makes. `None` for calls of all ranks.
    #[must_use]
    pub const fn counterpart(self) -> Option<Self> {
        match self {
            Self::Send => Some(Self::Receive),
            Self::Receive => Some(Self::Send),
            _ => None,
        }
    }

    /// Returns true if all ranks of a communicator make the call. Send and receive are calls between two
    /// ranks.
    #[must_use]
    pub const fn is_of_all_ranks(self) -> bool {
        self.counterpart().is_none()
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize - 1].1)
    }
}

/// The arguments of a collective.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operation {
    pub collective: Collective,
    /// The number of elements.
    pub count: u64,
    /// The data type, as NCCL's number for it.
    pub data_type: u8,
    /// The root rank of the operation or the other rank, for operations that have one.
    pub peer: Option<u32>,
}

impl Operation {
    /// The names of NCCL's data types, and their sizes in bytes.
    const TYPES: [(&'static str, u64); 12] = [
        ("int8", 1),
        ("uint8", 1),
        ("int32", 4),
        ("uint32", 4),
        ("int64", 8),
        ("uint64", 8),
        ("float16", 2),
        ("float32", 4),
        ("float64", 8),
        ("bfloat16", 2),
        ("float8e4m3", 1),
        ("float8e5m2", 1),
    ];

    /// Returns the name of the data type.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        let row = Self::TYPES.get(usize::from(self.data_type));
        row.map_or("of an unknown type", |row| row.0)
    }

    /// Returns the number of bytes, if the size of the data type is known.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        let row = Self::TYPES.get(usize::from(self.data_type))?;
        self.count.checked_mul(row.1)
    }
}

/// An entry for a step. `order` is 1 plus the number of earlier steps. It is 0 while the entry is being
/// written, and is written last.
#[repr(C)]
struct StepPlace {
    order: AtomicU64,
    number: AtomicU64,
    begin_ns: AtomicU64,
    /// 0 if the step has not ended.
    end_ns: AtomicU64,
}

/// An entry for a collective. `order` has the same meaning as for a step.
#[repr(C)]
struct CollectivePlace {
    order: AtomicU64,
    communicator: AtomicU64,
    /// The sequence number in the low 48 bits, then 8 bits for the data type and 8 bits for the operation.
    what: AtomicU64,
    count: AtomicU64,
    stream: AtomicU64,
    begin_ns: AtomicU64,
    /// The time when the call returned; 0 if it has not. For captured calls, the number of times in a row
    /// that the call was captured.
    end_ns: AtomicU64,
    /// The thread in the low half. In the high half, 1 plus the root rank or the other rank; 0 if there is
    /// none.
    thread: AtomicU64,
}

#[repr(C)]
struct CommunicatorPlace {
    /// The communicator's handle in this process; 0 if the entry is free.
    handle: AtomicU64,
    id: AtomicU64,
    /// The rank of the process in the low half and the communicator's size in the high half; 0 if they are
    /// not known.
    rank: AtomicU64,
    /// The number of collectives among all ranks that were called so far.
    sequence: AtomicU64,
    /// The number of calls between two ranks so far that are in no [`DirectionPlace`], as there was no room.
    uncounted: AtomicU64,
    captured: AtomicU64,
}

/// The number of sends to another rank, or of receives from it.
#[repr(C)]
struct DirectionPlace {
    /// See [`DirectionPlace::key`]; 0 if the entry is free.
    key: AtomicU64,
    count: AtomicU64,
}

#[repr(C)]
struct GroupPlace {
    name: [AtomicU64; GROUP_BYTES / 8],
    /// The rank of the process in the low half, and the group's size in the high half.
    rank: AtomicU64,
}

/// A ring, in memory that is mapped to a file. Times are in nanoseconds of `CLOCK_MONOTONIC`, with a
/// resolution of some milliseconds.
#[repr(C)]
pub struct RingBlock {
    /// [`RING_MAGIC`], which is written last.
    magic: AtomicU64,
    version: AtomicU32,
    pid: AtomicU32,
    ended: AtomicU32,
    /// 1 if the library was loaded into a running process, so that earlier steps and calls are unknown.
    is_late: AtomicU32,
    begin_ns: AtomicU64,
    begin_unix_ns: AtomicU64,
    end_ns: AtomicU64,
    /// 1 plus the rank in the job; 0 if the rank is not known.
    rank: AtomicU64,
    steps_begun: AtomicU64,
    step_thread: AtomicU64,
    collectives_begun: AtomicU64,
    captured: AtomicU64,
    reserved: [AtomicU64; 5],
    host: [AtomicU64; NAME_BYTES / 8],
    run: [AtomicU64; NAME_BYTES / 8],
    boot: [AtomicU64; NAME_BYTES / 8],
    groups: [GroupPlace; MAX_GROUPS],
    communicators: [CommunicatorPlace; MAX_COMMUNICATORS],
    step_places: [StepPlace; STEPS],
    captured_places: [CollectivePlace; CAPTURED],
    collective_places: [CollectivePlace; COLLECTIVES],
    directions: [DirectionPlace; DIRECTIONS],
}

const _: () = assert!(size_of::<RingBlock>() <= RING_BYTES);

/// Facts about a process that its ring stores once.
#[derive(Clone, Copy, Debug)]
pub struct RingFacts<'a> {
    pub pid: u32,
    pub host: &'a [u8],
    pub run: &'a [u8],
    /// The id of the machine's boot. Times from different boots cannot be compared.
    pub boot: &'a [u8],
    pub is_late: bool,
    pub now_ns: u64,
    pub unix_ns: u64,
}

/// A call in the ring that has not returned yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenCall(u32);

impl OpenCall {
    /// Returns the call as a number, which is never 0.
    #[must_use]
    pub const fn number(self) -> usize {
        self.0 as usize
    }

    /// Returns the call with this number; `None` for 0.
    #[must_use]
    pub const fn from_number(number: usize) -> Option<Self> {
        match number {
            0 => None,
            number => Some(Self(number as u32)),
        }
    }
}

fn relaxed(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn store(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

fn store_text(words: &[AtomicU64], text: &[u8]) {
    let mut bytes = text.iter().copied().chain(std::iter::repeat(0));
    for word in words {
        let value = std::array::from_fn(|_| bytes.next().unwrap_or(0));
        store(word, u64::from_le_bytes(value));
    }
}

impl RingBlock {
    /// Returns the ring at an address.
    ///
    /// # Safety
    /// The [`RING_BYTES`] from there must be aligned to 8, readable and writable for `'a`, and written only
    /// through rings.
    #[must_use]
    pub const unsafe fn at<'a>(address: NonNull<u8>) -> &'a Self {
        // SAFETY: the caller promises memory of this size and alignment for `'a`. The block consists of
        // atomics, for which every bit pattern is valid.
        unsafe { address.cast().as_ref() }
    }

    /// Begins a ring in a block of zeros.
    pub fn begin(&self, facts: &RingFacts<'_>) {
        self.version.store(RING_VERSION, Ordering::Relaxed);
        self.pid.store(facts.pid, Ordering::Relaxed);
        self.is_late.store(facts.is_late.into(), Ordering::Relaxed);
        store(&self.begin_ns, facts.now_ns);
        store(&self.begin_unix_ns, facts.unix_ns);
        store_text(&self.host, facts.host);
        store_text(&self.run, facts.run);
        store_text(&self.boot, facts.boot);
        self.magic
            .store(u64::from_ne_bytes(RING_MAGIC), Ordering::Release);
    }

    /// Stores the way in which the process ended, and the time.
    pub fn finish(&self, ended: Ended, now_ns: u64) {
        store(&self.end_ns, now_ns);
        self.ended.store(ended as u32, Ordering::Release);
    }

    pub fn set_rank(&self, rank: u64) {
        store(&self.rank, rank.wrapping_add(1));
    }

    /// Adds a group of ranks that the process belongs to, or replaces the group with the same name.
    pub fn set_group(&self, name: &str, rank: u32, size: u32) {
        let is_it = |place: &&GroupPlace| {
            let known = text(place.name.iter().map(relaxed));
            known.is_empty() || known == name.as_bytes()
        };
        if let Some(place) = self.groups.iter().find(is_it) {
            store(&place.rank, u64::from(size) << 32 | u64::from(rank));
            store_text(&place.name, name.as_bytes());
        }
    }

    /// Begins a step. Only one thread at a time may call this.
    #[inline]
    pub fn step_begins(&self, number: u64, thread: u32, now_ns: u64) {
        let order = relaxed(&self.steps_begun);
        let place = &self.step_places[order as usize % STEPS];
        place.order.store(0, Ordering::Release);
        place.number.store(number, Ordering::Release);
        place.begin_ns.store(now_ns, Ordering::Release);
        place.end_ns.store(0, Ordering::Release);
        place.order.store(order + 1, Ordering::Release);
        store(&self.step_thread, thread.into());
        self.steps_begun.store(order + 1, Ordering::Release);
    }

    /// Ends the latest step. Only one thread at a time may call this.
    #[inline]
    pub fn step_ends(&self, now_ns: u64) {
        if let Some(latest) = relaxed(&self.steps_begun).checked_sub(1) {
            store(&self.step_places[latest as usize % STEPS].end_ns, now_ns);
        }
    }

    /// Returns the entry of the communicator with this handle.
    #[inline]
    fn communicator(&self, handle: u64) -> Option<&CommunicatorPlace> {
        let mut places = self.communicators.iter();
        places.find(|place| relaxed(&place.handle) == handle)
    }

    /// Adds a communicator that is not in the ring yet, with its id, rank and size. Rank and size are 0 if
    /// they are not known. Returns the new entry, or `None` if there is no room.
    #[cold]
    fn add_communicator(
        &self,
        handle: u64,
        (id, rank, size): (CommunicatorId, u32, u32),
    ) -> Option<&CommunicatorPlace> {
        let mut places = self.communicators.iter();
        let place = places.find(|place| {
            let free =
                place
                    .handle
                    .compare_exchange(0, handle, Ordering::AcqRel, Ordering::Relaxed);
            free.is_ok()
        })?;
        store(&place.sequence, 0);
        store(&place.uncounted, 0);
        let index = self.index_of(place);
        for direction in &self.directions {
            // The key stays, because entries that were added later may have been placed after this one.
            if DirectionPlace::communicator(relaxed(&direction.key)) == Some(index) {
                store(&direction.count, 0);
            }
        }
        store(&place.captured, 0);
        store(&place.rank, u64::from(size) << 32 | u64::from(rank));
        place.id.store(id.number(), Ordering::Release);
        Some(place)
    }

    fn index_of(&self, place: &CommunicatorPlace) -> usize {
        let offset = (&raw const *place).addr() - self.communicators.as_ptr().addr();
        offset / size_of::<CommunicatorPlace>()
    }

    /// Returns the counter of the sends to a rank, or of the receives from it.
    #[inline]
    fn direction<'a>(&'a self, place: &'a CommunicatorPlace, call: &Operation) -> &'a AtomicU64 {
        let key = DirectionPlace::key(self.index_of(place), call);
        let first = key as usize % DIRECTIONS;
        let (after, before) = (&self.directions[first..], &self.directions[..first]);
        let mut all = after.iter().chain(before);
        let is_it = |place: &&DirectionPlace| {
            let known = relaxed(&place.key);
            known == key
                || known == 0
                    && match place.key.compare_exchange(
                        0,
                        key,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => true,
                        Err(other) => other == key,
                    }
        };
        all.find(is_it)
            .map_or(&place.uncounted, |place| &place.count)
    }

    /// Removes a communicator that the program destroys.
    pub fn forget_communicator(&self, handle: u64) {
        if let Some(place) = self.communicator(handle).filter(|_| handle != 0) {
            place.handle.store(0, Ordering::Release);
        }
    }

    /// Adds a call that begins now. `member` returns the id, rank and size of a communicator that is not in
    /// the ring yet. A call that is captured into a graph is only listed.
    #[inline]
    pub fn call_begins(
        &self,
        call: &RingCall,
        now_ns: u64,
        member: impl FnOnce() -> (CommunicatorId, u32, u32),
    ) -> Option<OpenCall> {
        if call.handle == 0 {
            return None; // NCCL refuses a call without a communicator
        }
        let place = match self.communicator(call.handle) {
            Some(place) => place,
            None => self.add_communicator(call.handle, member())?,
        };
        if call.captured {
            self.list(place, call, now_ns);
            return None;
        }
        let counter = match call.operation.collective.is_of_all_ranks() {
            true => &place.sequence,
            false => self.direction(place, &call.operation),
        };
        let sequence = counter.fetch_add(1, Ordering::Relaxed);
        let order = self.collectives_begun.fetch_add(1, Ordering::Relaxed);
        let index = order as usize % COLLECTIVES;
        self.collective_places[index].write(
            order + 1,
            relaxed(&place.id),
            sequence,
            call,
            now_ns,
            0,
        );
        Some(OpenCall(index as u32 + 1))
    }

    /// Marks a call as ended.
    #[inline]
    pub fn call_ends(&self, call: OpenCall, now_ns: u64) {
        if let Some(place) = self.collective_places.get(call.number() - 1) {
            store(&place.end_ns, now_ns);
        }
    }

    /// Lists a call that is captured into a graph. Equal calls in a row share one entry.
    #[cold]
    fn list(&self, communicator: &CommunicatorPlace, call: &RingCall, now_ns: u64) {
        let sequence = communicator.captured.fetch_add(1, Ordering::Relaxed);
        let id = relaxed(&communicator.id);
        let order = relaxed(&self.captured);
        let latest = order.checked_sub(1);
        let latest = latest.map(|latest| &self.captured_places[latest as usize % CAPTURED]);
        if let Some(latest) = latest
            && relaxed(&latest.communicator) == id
            && relaxed(&latest.what) >> 48 == call.kind()
            && relaxed(&latest.count) == call.operation.count
            && relaxed(&latest.stream) == call.stream
        {
            latest.end_ns.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.captured.store(order + 1, Ordering::Relaxed);
        let place = &self.captured_places[order as usize % CAPTURED];
        place.write(order + 1, id, sequence, call, now_ns, 1);
    }
}

/// A call of NCCL, as an argument of [`RingBlock::call_begins`].
#[derive(Clone, Copy, Debug)]
pub struct RingCall {
    pub handle: u64,
    pub operation: Operation,
    pub stream: u64,
    pub thread: u32,
    pub captured: bool,
}

impl RingCall {
    /// Returns the operation and the data type as a 16-bit number.
    const fn kind(&self) -> u64 {
        (self.operation.collective as u64) << 8 | self.operation.data_type as u64
    }
}

impl DirectionPlace {
    /// Returns the key of a direction: 1 plus the index of the communicator above the other rank, above 1 for receives.
    /// Neighbouring ranks have neighbouring keys.
    const fn key(communicator: usize, call: &Operation) -> u64 {
        let peer = match call.peer {
            Some(peer) => peer,
            None => 0,
        };
        let is_receive = matches!(call.collective, Collective::Receive);
        (communicator as u64 + 1) << 33 | (peer as u64) << 1 | is_receive as u64
    }

    /// Returns the index of the communicator in a key; `None` if the entry is free.
    const fn communicator(key: u64) -> Option<usize> {
        (key as usize >> 33).checked_sub(1)
    }

    /// Returns the direction of this entry and its count, if it is of this communicator.
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

impl CollectivePlace {
    #[inline]
    fn write(
        &self,
        order: u64,
        communicator: u64,
        sequence: u64,
        call: &RingCall,
        now_ns: u64,
        end: u64,
    ) {
        let put = |word: &AtomicU64, value| word.store(value, Ordering::Release);
        put(&self.order, 0);
        put(&self.communicator, communicator);
        put(&self.what, call.kind() << 48 | sequence & SEQUENCE);
        put(&self.count, call.operation.count);
        put(&self.stream, call.stream);
        put(&self.begin_ns, now_ns);
        put(&self.end_ns, end);
        let peer = call.operation.peer.map_or(0, |peer| peer.wrapping_add(1));
        put(&self.thread, u64::from(peer) << 32 | u64::from(call.thread));
        put(&self.order, order);
    }
}

/// The mask for the bits of a sequence number.
const SEQUENCE: u64 = (1 << 48) - 1;

fn text(words: impl Iterator<Item = u64>) -> Vec<u8> {
    let bytes = words.flat_map(u64::to_le_bytes);
    bytes.take_while(|byte| *byte != 0).collect()
}

/// The contents of a ring, read at one moment.
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
    /// The number of collectives that were called outside captures.
    pub collectives_begun: u64,
    pub groups: Vec<CapturedGroup>,
    pub communicators: Vec<RingCommunicator>,
    /// The latest steps, the oldest first.
    pub steps: Vec<RingStep>,
    /// The latest collectives, the oldest first.
    pub collectives: Vec<Called>,
    /// The collectives that were captured into graphs.
    pub captured: Vec<CapturedCollective>,
}

/// A named group of ranks.
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
    /// The number of collectives that were called so far.
    pub sequence: u64,
    /// The sends and receives so far; `None` if they are not all counted.
    pub directions: Option<Vec<RingDirection>>,
}

/// The sends to another rank of a communicator, or the receives from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingDirection {
    /// [`Collective::Send`] or [`Collective::Receive`].
    pub collective: Collective,
    pub peer: u32,
    pub count: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingStep {
    pub number: u64,
    pub begin_ns: u64,
    /// The time when the step ended; `None` while it runs.
    pub end_ns: Option<u64>,
}

/// A collective that was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Called {
    pub communicator: u64,
    /// The number of the collective in its communicator, or of the send or receive among those with the same rank, counted
    /// from 0.
    pub sequence: u64,
    pub operation: Operation,
    pub stream: u64,
    pub thread: u32,
    pub begin_ns: u64,
    /// The time when the call returned, if it has. The GPU may not have begun the work by then.
    pub end_ns: Option<u64>,
}

/// A series of equal collectives that were captured into graphs one after another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapturedCollective {
    pub communicator: u64,
    pub operation: Operation,
    pub times: u64,
}

/// The reason why a file cannot be read as a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoRing {
    /// The file is not a ring, or it is too short.
    Other,
    /// The file has a later version of the format.
    Version(u32),
}

impl fmt::Display for NoRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other => f.write_str("it is not a ring of tllmprof"),
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
            return Err(NoRing::Other);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring in memory, and its bytes.
    struct InMemory(Box<[u64; RING_BYTES / 8]>);

    impl InMemory {
        fn begun() -> Self {
            let memory = Self(Box::new([0; RING_BYTES / 8]));
            memory.block().begin(&RingFacts {
                pid: 7,
                host: b"host",
                run: "x".repeat(100).as_bytes(),
                boot: b"boot",
                is_late: true,
                now_ns: 5,
                unix_ns: 6,
            });
            memory
        }

        fn block(&self) -> &RingBlock {
            // SAFETY: the words have the size and the alignment of a ring, and only this ring writes them.
            unsafe { RingBlock::at(NonNull::from(self.0.as_slice()).cast()) }
        }

        fn bytes(&self) -> Vec<u8> {
            self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
        }

        fn read(&self) -> Ring {
            Ring::read(&self.bytes()).unwrap()
        }
    }

    const ALL_REDUCE: Operation = Operation {
        collective: Collective::AllReduce,
        count: 1 << 20,
        data_type: 9,
        peer: None,
    };

    fn call(handle: u64, operation: Operation, captured: bool) -> RingCall {
        RingCall {
            handle,
            operation,
            stream: 3,
            thread: 9,
            captured,
        }
    }

    fn id(name: &[u8]) -> (CommunicatorId, u32, u32) {
        (CommunicatorId::from_bytes(name), 1, 4)
    }

    #[test]
    fn facts_of_the_process_are_read() {
        let memory = InMemory::begun();
        memory.block().set_rank(3);
        memory.block().set_group("TP", 1, 4);
        memory.block().set_group("PP", 0, 2);
        memory.block().set_group("TP", 2, 8);
        memory.block().finish(Ended::InOrder, 99);
        let ring = memory.read();
        let facts = (ring.pid, &*ring.host, &*ring.boot, ring.run.len());
        assert_eq!(facts, (7, "host", "boot", NAME_BYTES));
        let times = (ring.begin_ns, ring.begin_unix_ns, ring.end_ns);
        assert_eq!(
            (times, ring.is_late, ring.has_ended),
            ((5, 6, 99), true, true)
        );
        assert_eq!(ring.rank, Some(3));
        let group = |name: &str, rank, size| CapturedGroup {
            name: name.to_owned(),
            rank,
            size,
        };
        assert_eq!(ring.groups, [group("TP", 2, 8), group("PP", 0, 2)]);
    }

    #[test]
    fn the_latest_steps_are_kept() {
        let memory = InMemory::begun();
        for number in 0..300 {
            memory.block().step_begins(number, 8, 10 * number + 1);
            if number < 299 {
                memory.block().step_ends(10 * number + 2);
            }
        }
        let ring = memory.read();
        assert_eq!((ring.steps_begun, ring.step_thread), (300, 8));
        assert_eq!(ring.steps.len(), STEPS);
        let step = |number: u64, end_ns| RingStep {
            number,
            begin_ns: 10 * number + 1,
            end_ns,
        };
        assert_eq!(
            ring.steps[0],
            step(300 - STEPS as u64, Some(10 * (300 - STEPS as u64) + 2))
        );
        assert_eq!(ring.steps[STEPS - 1], step(299, None));
    }

    #[test]
    fn collectives_are_numbered_in_their_communicator() {
        let memory = InMemory::begun();
        let block = memory.block();
        let send = Operation {
            collective: Collective::Send,
            peer: Some(0),
            ..ALL_REDUCE
        };
        for (handle, operation) in [(1, ALL_REDUCE), (2, ALL_REDUCE), (1, send), (1, ALL_REDUCE)] {
            let open =
                block.call_begins(&call(handle, operation, false), 20, || id(&[handle as u8]));
            if operation == send {
                block.call_ends(open.unwrap(), 21);
            }
        }
        assert_eq!(
            block.call_begins(&call(0, ALL_REDUCE, false), 20, || id(b"")),
            None
        );
        let ring = memory.read();
        let called: Vec<_> = ring
            .collectives
            .iter()
            .map(|one| (one.communicator, one.sequence, one.operation, one.end_ns))
            .collect();
        let [first, second] = [1_u8, 2].map(|name| id(&[name]).0.number());
        let expected = [
            (first, 0, ALL_REDUCE, None),
            (second, 0, ALL_REDUCE, None),
            (first, 0, send, Some(21)),
            (first, 1, ALL_REDUCE, None),
        ];
        assert_eq!(called, expected);
        assert_eq!(ring.communicators[0].place, Some((1, 4)));
        assert_eq!(ring.communicators[0].sequence, 2);
        assert_eq!(
            (ALL_REDUCE.bytes(), ALL_REDUCE.type_name()),
            (Some(2 << 20), "bfloat16")
        );
    }

    #[test]
    fn sends_and_receives_are_counted_for_each_other_rank() {
        let memory = InMemory::begun();
        let block = memory.block();
        let with = |collective, peer| Operation {
            collective,
            peer: Some(peer),
            ..ALL_REDUCE
        };
        let calls = [
            (1, Collective::Send, 3),
            (1, Collective::Receive, 3),
            (1, Collective::Send, 3),
            (2, Collective::Send, 3),
        ];
        for (handle, collective, peer) in calls {
            block.call_begins(&call(handle, with(collective, peer), false), 1, || {
                id(&[handle as u8])
            });
        }
        let counts = |ring: &Ring, index: usize| {
            let all = ring.communicators[index].directions.clone();
            all.map(|all| {
                let all = all.iter();
                all.map(|one| (one.collective, one.peer, one.count))
                    .collect::<Vec<_>>()
            })
        };
        let ring = memory.read();
        let sequences: Vec<_> = ring.collectives.iter().map(|one| one.sequence).collect();
        assert_eq!(sequences, [0, 0, 1, 0]);
        let first = vec![(Collective::Send, 3, 2), (Collective::Receive, 3, 1)];
        assert_eq!(counts(&ring, 0), Some(first));
        assert_eq!(counts(&ring, 1), Some(vec![(Collective::Send, 3, 1)]));
        // Another communicator in the same entry begins at 0.
        block.forget_communicator(1);
        let again = with(Collective::Receive, 3);
        block.call_begins(&call(5, again, false), 1, || id(b"5"));
        let second = vec![(Collective::Send, 3, 0), (Collective::Receive, 3, 1)];
        assert_eq!(counts(&memory.read(), 0), Some(second));
        // If there are more ranks than entries, nothing is compared.
        for peer in 0..=DIRECTIONS as u32 {
            let send = with(Collective::Send, peer);
            block.call_begins(&call(5, send, false), 1, || id(b"5"));
        }
        assert_eq!(counts(&memory.read(), 0), None);
        // Earlier versions did not count them.
        block.version.store(1, Ordering::Relaxed);
        assert_eq!(counts(&memory.read(), 1), None);
    }

    #[test]
    fn a_handle_that_is_used_again_is_another_communicator() {
        let memory = InMemory::begun();
        let block = memory.block();
        for name in [b"a", b"b"] {
            block.call_begins(&call(1, ALL_REDUCE, false), 1, || id(name));
            block.forget_communicator(1);
        }
        let ring = memory.read();
        let sequences: Vec<_> = ring.collectives.iter().map(|one| one.sequence).collect();
        assert_eq!((sequences, ring.communicators.len()), (vec![0, 0], 0));
        assert_ne!(
            ring.collectives[0].communicator,
            ring.collectives[1].communicator
        );
    }

    #[test]
    fn captured_collectives_are_listed_and_not_numbered() {
        let memory = InMemory::begun();
        let smaller = Operation {
            count: 8,
            ..ALL_REDUCE
        };
        for operation in [ALL_REDUCE, ALL_REDUCE, smaller] {
            let open = memory
                .block()
                .call_begins(&call(1, operation, true), 1, || id(b"a"));
            assert_eq!(open, None);
        }
        memory
            .block()
            .call_begins(&call(1, ALL_REDUCE, false), 1, || id(b"a"));
        let ring = memory.read();
        let listed: Vec<_> = ring
            .captured
            .iter()
            .map(|one| (one.operation, one.times))
            .collect();
        assert_eq!(listed, [(ALL_REDUCE, 2), (smaller, 1)]);
        assert_eq!(
            (ring.collectives.len(), ring.collectives[0].sequence),
            (1, 0)
        );
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        let memory = InMemory::begun();
        let bytes = memory.bytes();
        assert_eq!(Ring::read(&bytes[..1000]), Err(NoRing::Other));
        assert_eq!(Ring::read(&vec![0; RING_BYTES]), Err(NoRing::Other));
        memory
            .block()
            .version
            .store(RING_VERSION + 1, Ordering::Relaxed);
        assert_eq!(
            Ring::read(&memory.bytes()),
            Err(NoRing::Version(RING_VERSION + 1))
        );
    }

    #[test]
    fn whatever_the_bytes_are_they_are_read_without_a_panic() {
        let memory = InMemory::begun();
        let mut bytes = vec![0xff; RING_BYTES];
        bytes[..16].copy_from_slice(&memory.bytes()[..16]);
        let ring = Ring::read(&bytes).unwrap();
        assert!(ring.collectives.is_empty(), "no such operation");
    }
}
