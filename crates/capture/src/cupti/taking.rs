//! Writes into the record the GPU work that CUPTI reports. This runs on the thread on which CUPTI hands over a buffer,
//! usually a thread of CUPTI itself.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::collections::{HashMap, HashSet};

use super::activity::{Activity, ActivityDetails};
use super::buffers;
use super::clock::ClockReading;
use super::library::Cupti;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::lifecycle;
use tllmprof_platform::panics::contained;
use tllmprof_recorder as recorder;
use tllmprof_recorder::Event;
use tllmprof_recorder::StringId;
use tllmprof_recorder::What;
use tllmprof_scopes as scopes;
use tllmprof_scopes::Replayed;
use tllmprof_sync::Lock;

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    static TAKING: Lock<Option<Taking>> = Lock::new(None);
    /// Totals since the recording of kernels began ([`begin`]), in this order: kernels, copies, memsets, records that
    /// CUPTI dropped because it had no buffer, and records without times.
    #[fork(keep = "cleared where the taking begins")]
    static TOTALS: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
}

struct Taking {
    /// A reading of both clocks (CUPTI's and the record's) when the recording began.
    since: ClockReading,
    /// Number of nanoseconds by which CUPTI's clock is ahead of `CLOCK_REALTIME`. The number is usually 0, because
    /// CUPTI usually uses this clock.
    ahead: i64,
    names: HashMap<usize, KernelName>,
    /// The era of the record (`recorder::era`) in which the string numbers in `names` are valid. When the record
    /// numbers its strings anew, a new era begins and `names` is cleared.
    era: u32,
    /// Correlation ids by which CUPTI identifies the CUDA calls that submitted the reported work, including work
    /// without times.
    calls: HashSet<u32>,
    last: u32,
    /// The graph nodes whose kernels have run. Used only if the scopes of kernels (the modules, ranges and functions
    /// in which they are launched) are recorded.
    replayed: Replayed,
}

/// The name of a kernel. It is looked up by the address of its text, and the text itself is compared too: after a
/// module is unloaded, another name may be at the same address.
struct KernelName {
    text: Box<[u8]>,
    id: StringId,
    hash: u64,
}

/// Totals of the GPU work that CUPTI has reported in this recording so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordedCounts {
    pub kernels: u64,
    pub copies: u64,
    pub sets: u64,
    /// Number of records that CUPTI dropped because it had no buffer.
    pub dropped: u64,
    /// Number of CUPTI's records that contain no times.
    pub untimed: u64,
    /// Number of CUDA calls that submitted this work, including the work without times. `None` if it could not be read.
    pub calls: Option<u64>,
}

/// Begins a recording of GPU work. `since` is a reading of both clocks at this moment. `ahead` is the number of
/// nanoseconds by which CUPTI's clock is ahead of `CLOCK_REALTIME`.
pub(crate) fn begin(since: ClockReading, ahead: i64) {
    for total in &TOTALS {
        total.store(0, Ordering::Relaxed);
    }
    *TAKING.lock() = Some(Taking {
        since,
        ahead,
        names: HashMap::new(),
        era: recorder::era(),
        calls: HashSet::new(),
        last: 0,
        replayed: Replayed::default(),
    });
}

/// Maximum time that [`judge`], [`end`] and [`totals`] wait for the lock on `TAKING`. The thread that holds the lock
/// may be CUPTI's, which may hang.
const LOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// Finds the scopes (modules, ranges and functions) of the graph nodes whose kernels were recorded since the last call
/// of this function, and writes the result into the record.
pub(crate) fn judge() {
    let replayed = TAKING
        .lock_for(LOCK_TIMEOUT)
        .and_then(|mut taking| Some(core::mem::take(&mut taking.as_mut()?.replayed)));
    if let Some(replayed) = replayed {
        scopes::judge(&replayed);
    }
}

/// Ends the recording of GPU work. From then on, records that CUPTI hands over are dropped. Does nothing if another
/// thread holds the lock on `TAKING` for longer than [`LOCK_TIMEOUT`].
pub(crate) fn end() {
    if let Some(mut taking) = TAKING.lock_for(LOCK_TIMEOUT) {
        *taking = None;
    }
}

/// Returns the totals since the recording of GPU work began ([`begin`]). The number of CUDA calls is 0 if the recording
/// has ended. It is `None` if another thread holds the lock on `TAKING` for longer than [`LOCK_TIMEOUT`].
pub(crate) fn totals() -> RecordedCounts {
    let taking = TAKING.lock_for(LOCK_TIMEOUT);
    let calls = taking.map(|taking| {
        taking
            .as_ref()
            .map_or(0, |taking| taking.calls.len() as u64)
    });
    let [kernels, copies, sets, dropped, untimed] =
        TOTALS.each_ref().map(|total| total.load(Ordering::Relaxed));
    RecordedCounts {
        kernels,
        copies,
        sets,
        dropped,
        untimed,
        calls,
    }
}

/// Provides a buffer when CUPTI requests one. CUPTI calls this on a thread of the program. If no buffer is available,
/// the result is null with the size 0, and CUPTI drops records.
pub(crate) extern "C" fn requested(buffer: *mut *mut u8, size: *mut usize, most: *mut usize) {
    let _errno = SavedErrno::new();
    let taken = contained(None, buffers::take);
    // SAFETY: CUPTI passes pointers to its three results, which are on its stack.
    unsafe {
        *size = if taken.is_some() { buffers::SIZE } else { 0 };
        *buffer = taken.unwrap_or_default();
        *most = 0;
    }
}

/// Receives a buffer that CUPTI has filled with records. CUPTI calls this function, usually on its own thread.
pub(crate) extern "C" fn completed(
    context: *mut c_void,
    stream: u32,
    buffer: *mut u8,
    _: usize,
    valid: usize,
) {
    let _errno = SavedErrno::new();
    contained((), || take_down(context, stream, buffer, valid));
    if !buffer.is_null() {
        contained((), || buffers::give_back(buffer));
    }
}

/// Reads the records in one of CUPTI's buffers, and writes the GPU work that they describe into tllmprof's record.
fn take_down(context: *mut c_void, stream: u32, buffer: *mut u8, valid: usize) {
    if let Some(cupti) = Cupti::get()
        && let Some(taking) = TAKING.lock().as_mut()
    {
        let now = ClockReading::now();
        let mut record = core::ptr::null_mut();
        let mut lost = 0;
        // SAFETY: CUPTI hands over a buffer with `valid` bytes of whole records. CUPTI itself finds the next record,
        // and each one is read before the next is requested. The call after the last record fails.
        unsafe {
            while valid > 0 && (cupti.next_record)(buffer, valid, &raw mut record) == 0 {
                if let Some(activity) = Activity::read(record)
                    && !taking.take(&activity, &now)
                {
                    lost += 1;
                }
            }
        }
        TOTALS[4].fetch_add(lost, Ordering::Relaxed);
        let mut dropped = 0;
        // SAFETY: CUPTI writes the number of records dropped since the last such call to a local.
        if unsafe { (cupti.dropped_records)(context, stream, &raw mut dropped) } == 0 {
            TOTALS[3].fetch_add(dropped as u64, Ordering::Relaxed);
            lost += dropped as u64;
        }
        if lost > 0 {
            let what = What::Dropped { events: lost };
            recorder::late_for_free(&Event::new(now.ticks, 0, what));
        }
    }
}

impl Taking {
    /// Writes one kernel, copy or memset into the record. Returns false if CUPTI gives no times for this work.
    fn take(&mut self, activity: &Activity, now: &ClockReading) -> bool {
        if self.calls.is_empty() || self.last != activity.correlation {
            self.last = activity.correlation;
            self.calls.insert(activity.correlation);
        }
        if !activity.is_timed() {
            return false;
        }
        let (device, stream) = (activity.device as u8, activity.stream as u16);
        let mut hash = 0;
        let (total, what) = match activity.work {
            ActivityDetails::Kernel { name, .. } => {
                let (name, text) = self.name(name);
                hash = text;
                (
                    0,
                    What::GpuKernel {
                        device,
                        stream,
                        name,
                        correlation: activity.correlation,
                    },
                )
            }
            ActivityDetails::Copy { kind, bytes } => (
                1,
                What::GpuCopy {
                    device,
                    stream,
                    kind,
                    bytes,
                },
            ),
            ActivityDetails::Set { bytes } => (
                2,
                What::GpuSet {
                    device,
                    stream,
                    bytes,
                },
            ),
        };
        let start = activity.start.saturating_add_signed(-self.ahead);
        let start = self.since.ticks_at(now, start);
        let event = Event::new(start, activity.end - activity.start, what);
        recorder::late_for_free(&event);
        if scopes::are_on()
            && let ActivityDetails::Kernel { grid, node, .. } = activity.work
            && let Some((exec, node)) = scopes::node(node)
        {
            self.replayed.add(exec, node, hash, grid);
            let what = What::KernelNode {
                device,
                stream,
                exec,
                node,
            };
            recorder::late_for_free(&Event::new(start, 0, what));
        }
        TOTALS[total].fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Returns the string number under which tllmprof's record stores a kernel's name, and a hash of the name.
    fn name(&mut self, name: *const c_char) -> (StringId, u64) {
        if name.is_null() {
            return (recorder::id_of("?"), 0);
        }
        // SAFETY: this is CUPTI's string, which lives at least as long as the record that refers to it.
        let text = unsafe { CStr::from_ptr(name) };
        let era = recorder::era();
        if core::mem::replace(&mut self.era, era) != era {
            self.names.clear();
        }
        let known = self.names.get(&name.addr());
        if let Some(known) = known.filter(|known| *known.text == *text.to_bytes()) {
            return (known.id, known.hash);
        }
        let id = recorder::id_of(&text.to_string_lossy());
        let hash = scopes::name_hash(text.to_bytes());
        let text = text.to_bytes().into();
        self.names
            .insert(name.addr(), KernelName { text, id, hash });
        (id, hash)
    }
}
