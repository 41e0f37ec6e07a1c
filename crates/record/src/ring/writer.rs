//! Writes a ring (the latest steps and NCCL collectives of a process). The process writes its own ring.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{
    CAPTURED, COLLECTIVES, CollectivePlace, CommunicatorPlace, DIRECTIONS, DirectionPlace,
    GroupPlace, RING_MAGIC, RING_VERSION, RingBlock, SEQUENCE, STEPS, relaxed, text,
};
use super::operation::Operation;
use crate::groups::CommunicatorId;
use crate::header::Ended;

/// Facts about a process that are stored once in its ring (the file with its latest steps and NCCL collectives).
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

/// An NCCL call that was added to the ring and has not returned yet, as 1 plus the index of its entry.
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
    /// Begins a ring, which must consist of zeros, by storing the facts about its process.
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

    /// Adds a group of ranks that the process belongs to, or replaces the group with the same name. Does nothing if
    /// there is no room for another group.
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

    /// Adds step `number`, which begins now on `thread`. Only one thread at a time may call this function.
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

    /// Stores the time when the latest step ended. Only one thread at a time may call this function.
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
            // Only the count is cleared. The key stays, because an entry without a key counts as free, and a search
            // ends at a free entry. A search for an entry that was added after this one would then fail.
            if DirectionPlace::communicator(relaxed(&direction.key)) == Some(index) {
                store(&direction.count, 0);
            }
        }
        store(&place.captured, 0);
        store(&place.rank, u64::from(size) << 32 | u64::from(rank));
        place.id.store(id.number(), Ordering::Release);
        Some(place)
    }

    /// Returns the counter of the sends to a rank, or of the receives from it. If no entry is free for a new counter,
    /// returns the communicator's counter of uncounted calls.
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

    /// Adds a call that begins now, and returns a value to pass to [`RingBlock::call_ends`]. `member` returns the id,
    /// rank and size of a communicator that is not in the ring yet. A call that is captured into a graph is only added
    /// to the list of captured calls, and the result is `None`. The result is also `None`, and no call is added, if the
    /// call has no communicator, or if there is no room for a new communicator.
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

    /// Stores the time at which a call returned.
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
