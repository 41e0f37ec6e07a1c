//! Calls of the CUDA driver that measure the time of work on the GPU.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use tllmprof_platform::libcuda::functions;
use tllmprof_platform::lifecycle;
use tllmprof_platform::lifecycle::attic;
use tllmprof_sync::Published;

type Handle = *mut c_void;
/// A buffer for a device's name, with its terminating zero byte.
pub(crate) type DeviceName = [u8; Room::OfName as usize];

/// Sizes in bytes of the buffers that are passed to the driver.
#[repr(i32)]
#[derive(Clone, Copy)]
pub(crate) enum Room {
    OfName = 96,
}

functions! {
    /// The functions of libcuda that measure GPU time; `None` for a function that the loaded
    /// libcuda lacks.
    Functions

    version: fn(&mut c_int) = c"cuDriverGetVersion";
    device_name: fn(&mut DeviceName, Room, c_int) = c"cuDeviceGetName";
    context: fn(&mut Handle) = c"cuCtxGetCurrent";
    push_context: fn(Handle) = c"cuCtxPushCurrent_v2";
    pop_context: fn(&mut Handle) = c"cuCtxPopCurrent_v2";
    device: fn(&mut c_int) = c"cuCtxGetDevice";
    context_of: fn(Handle, &mut Handle) = c"cuStreamGetCtx";
    is_capturing: fn(Handle, &mut c_int) = c"cuStreamIsCapturing";
    exchange_mode: fn(&mut c_int) = c"cuThreadExchangeStreamCaptureMode";
    create: fn(&mut Handle, u32) = c"cuEventCreate";
    destroy: fn(Handle) = c"cuEventDestroy_v2";
    record: fn(Handle, Handle) = c"cuEventRecord";
    elapsed: fn(&mut f32, Handle, Handle) = c"cuEventElapsedTime" | c"cuEventElapsedTime_v2";
}

/// The CUDA events before and after a span (the work of one stream in one iteration).
#[derive(Clone, Copy, Default)]
pub struct Pair {
    pub start: EventHandle,
    pub end: EventHandle,
}

/// The status code of a driver call that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverError(c_int);

impl DriverError {
    /// `CUDA_ERROR_NOT_READY`: the work is not finished yet.
    pub const NOT_READY: Self = Self(600);
    /// `CUDA_ERROR_NOT_SUPPORTED`, also used for a function that this driver lacks.
    const NOT_SUPPORTED: Self = Self(801);

    /// Returns true if the call failed only because the program has destroyed the context or shut the driver down.
    /// Such an error is not worth a warning.
    pub const fn is_of_an_end(self) -> bool {
        const DEINITIALIZED: c_int = 4;
        const INVALID_CONTEXT: c_int = 201;
        const CONTEXT_IS_DESTROYED: c_int = 709;
        matches!(
            self.0,
            DEINITIALIZED | INVALID_CONTEXT | CONTEXT_IS_DESTROYED
        )
    }
}

impl DriverError {
    /// Returns true if the error is caused only by the stream: its handle is invalid, or it is being
    /// captured.
    pub const fn is_of_a_stream(self) -> bool {
        const INVALID_VALUE: c_int = 1;
        const INVALID_HANDLE: c_int = 400;
        matches!(self.0, INVALID_VALUE | INVALID_HANDLE | 900..=908)
    }
}

impl core::fmt::Display for DriverError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

fn check(status: c_int) -> Result<(), DriverError> {
    if status == 0 {
        Ok(())
    } else {
        Err(DriverError(status))
    }
}

fn handle(address: usize) -> Handle {
    core::ptr::with_exposed_provenance_mut(address)
}

/// The driver's handle of a CUDA event; 0 for none.
pub(crate) type EventHandle = usize;

lifecycle::global! {
    #[fork(keep = "the child has the driver loaded, too")]
    static FUNCTIONS: Published<Functions> = Published::none();
}

/// The functions of the loaded CUDA driver. Handles passed to its methods must belong to existing objects.
#[derive(Clone, Copy)]
pub struct Driver(&'static Functions);

impl Driver {
    /// Looks up the functions of the loaded driver. Returns `None` if no driver is loaded, or if it lacks a function
    /// that is needed to measure times.
    pub fn find() -> Option<Self> {
        if let Some(known) = Self::get().filter(|known| known.0.place.is_valid()) {
            return Some(known);
        }
        let found = Functions::load().filter(|found| {
            found.create.is_some()
                && found.record.is_some()
                && found.elapsed.is_some()
                && found.context.is_some()
        });
        let known = FUNCTIONS.get();
        attic::put(known);
        match found {
            Some(found) => FUNCTIONS.publish(known, found).map(Self),
            None => {
                FUNCTIONS.set(None);
                None
            }
        }
    }

    /// Returns the driver that an earlier call of [`Driver::find`] has found, if any.
    #[inline]
    pub fn get() -> Option<Self> {
        FUNCTIONS.get().map(Self)
    }

    /// Returns the driver's version, in the format of `CUDA_VERSION`.
    pub fn version(self) -> Option<u64> {
        let mut version = 0;
        check(self.0.version?(&mut version)).ok()?;
        u64::try_from(version).ok()
    }

    /// Returns the calling thread's current CUDA context; 0 if it has none.
    #[inline]
    pub fn context(self) -> usize {
        let mut context = null_mut();
        if let Some(get) = self.0.context {
            get(&mut context);
        }
        context.expose_provenance()
    }

    /// Returns the context in which the program created a stream. If the driver cannot say which, returns the calling
    /// thread's current context.
    pub fn context_of(self, stream: usize) -> usize {
        let mut context = null_mut();
        let get = self.0.context_of;
        if get.is_some_and(|get| get(handle(stream), &mut context) == 0) {
            context.expose_provenance()
        } else {
            self.context() // before CUDA 9.2 a stream could be used only in its own context
        }
    }

    /// Returns true if work for the stream is being captured instead of run, or if the driver reports an
    /// error.
    pub fn is_capturing(self, stream: usize) -> bool {
        const NONE: c_int = 0;
        let mut status = NONE;
        let get = self.0.is_capturing;
        get.is_some_and(|get| get(handle(stream), &mut status) != 0 || status != NONE)
    }

    /// Runs `act` with `context` as the current context. `act` gets the ordinal of the context's device. Returns `None`
    /// if the driver reports an error or lacks a function.
    pub fn in_context<T>(self, context: usize, act: impl FnOnce(u8) -> T) -> Option<T> {
        let (push, pop) = (self.0.push_context?, self.0.pop_context?);
        let mut device = 0;
        let is_there = self.context() == context;
        // The context still exists, because the library forgets a context before the program destroys it. The context
        // is made current only for `act`.
        if !is_there && push(handle(context)) != 0 {
            return None;
        }
        let known = self.0.device.is_some_and(|get| get(&mut device) == 0);
        let result = known.then(|| act(u8::try_from(device).unwrap_or(u8::MAX)));
        if !is_there {
            pop(&mut null_mut());
        }
        result
    }

    /// Writes the name of a device into `name`, and returns its length in bytes.
    pub fn device_name(self, device: u8, name: &mut DeviceName) -> Option<usize> {
        check(self.0.device_name?(name, Room::OfName, device.into())).ok()?;
        name.iter().position(|byte| *byte == 0)
    }

    /// Creates a CUDA event in the calling thread's current context.
    fn create(self) -> Result<EventHandle, DriverError> {
        let create = self.0.create.ok_or(DriverError::NOT_SUPPORTED)?;
        let mut event = null_mut();
        check(create(&mut event, 0))?;
        Ok(event.expose_provenance())
    }

    /// Destroys a CUDA event, even if the GPU has not reached it yet.
    fn destroy(self, event: EventHandle) {
        if let Some(destroy) = self.0.destroy {
            destroy(handle(event));
        }
    }

    /// Creates two CUDA events, like [`Self::create`].
    pub fn create_pair(self) -> Result<Pair, DriverError> {
        let start = self.create()?;
        let end = self.create().inspect_err(|_| self.destroy(start))?;
        Ok(Pair { start, end })
    }

    /// Destroys both CUDA events, like [`Self::destroy`].
    pub fn destroy_pair(self, pair: Pair) {
        self.destroy(pair.start);
        self.destroy(pair.end);
    }

    /// Records a CUDA event in a stream. The GPU notes the time when the stream reaches the event.
    pub fn record(self, event: EventHandle, stream: usize) -> Result<(), DriverError> {
        let record = self.0.record.ok_or(DriverError::NOT_SUPPORTED)?;
        check(record(handle(event), handle(stream)))
    }

    /// Returns the nanoseconds between two CUDA events, accurate to about half a microsecond. Returns
    /// [`DriverError::NOT_READY`] if the GPU has not reached one of them ("CUDA Driver API", `cuEventElapsedTime`).
    pub fn elapsed(self, from: EventHandle, to: EventHandle) -> Result<f64, DriverError> {
        let elapsed = self.0.elapsed.ok_or(DriverError::NOT_SUPPORTED)?;
        let mut milliseconds = 0.0;
        check(elapsed(&mut milliseconds, handle(from), handle(to)))?;
        Ok(f64::from(milliseconds) * 1e6)
    }
}

/// A guard that sets the calling thread's capture mode to "relaxed". In the other modes, some driver calls
/// fail and invalidate a stream capture that another thread has in progress. The relaxed mode is safe for the
/// library's calls, because they have nothing to do with any capture.
pub(crate) struct BesideCaptures(Option<(Driver, c_int)>);

impl BesideCaptures {
    /// Sets the relaxed capture mode. Dropping the guard restores the previous mode.
    pub(crate) fn new(driver: Driver) -> Self {
        const RELAXED: c_int = 2;
        Self(driver.exchange(RELAXED).map(|before| (driver, before)))
    }
}

impl Drop for BesideCaptures {
    fn drop(&mut self) {
        if let Some((driver, before)) = self.0 {
            driver.exchange(before);
        }
    }
}

impl Driver {
    fn exchange(self, mut mode: c_int) -> Option<c_int> {
        let exchange = self.0.exchange_mode?;
        check(exchange(&mut mode)).ok()?;
        Some(mode)
    }
}

/// A fake driver for tests. Its GPU reaches each CUDA event at the moment when the event is recorded, unless `IS_BUSY`
/// is set. Its clock advances by one microsecond per recorded event.
#[cfg(test)]
pub(crate) mod made {
    use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::{
        Driver, DriverError, EventHandle, FUNCTIONS, Functions, Handle, Room, c_int, handle,
    };
    use tllmprof_platform::libcuda::DriverLocation;

    /// The state of the fake driver's CUDA events.
    pub(crate) struct State {
        /// The handle of the CUDA event that was created last.
        last: EventHandle,
        pub alive: BTreeSet<EventHandle>,
        /// The time in microseconds when each CUDA event was recorded, and the stream it was recorded in.
        pub recorded: BTreeMap<EventHandle, (u32, usize)>,
        now: u32,
        /// The number of times that the fake driver has recorded a CUDA event.
        pub recordings: u32,
    }

    static STATE: Mutex<State> = Mutex::new(State {
        last: 0,
        alive: BTreeSet::new(),
        recorded: BTreeMap::new(),
        now: 0,
        recordings: 0,
    });
    /// The fake driver's current context.
    pub(crate) static CONTEXT: AtomicUsize = AtomicUsize::new(0);
    /// The status that the fake driver returns when a CUDA event is recorded; 0 for success.
    pub(crate) static REFUSES: AtomicI32 = AtomicI32::new(0);
    /// True if the fake driver reports that a stream is being captured.
    pub(crate) static CAPTURES: AtomicBool = AtomicBool::new(false);
    /// True if the fake GPU is busy: then it has not reached any CUDA event yet.
    pub(crate) static IS_BUSY: AtomicBool = AtomicBool::new(false);
    /// The stream capture mode of all threads in the fake driver.
    static MODE: AtomicI32 = AtomicI32::new(0);

    /// The ordinal of the fake driver's only device.
    pub(crate) const DEVICE: u8 = 3;
    pub(crate) const NAME: &str = "Made GPU";
    pub(crate) const VERSION: u64 = 12_040;

    pub(crate) fn state() -> MutexGuard<'static, State> {
        STATE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    extern "C" fn version(version: &mut c_int) -> c_int {
        *version = VERSION as c_int;
        0
    }

    extern "C" fn device_name(name: &mut super::DeviceName, _: Room, device: c_int) -> c_int {
        assert_eq!(device, DEVICE.into());
        name[..NAME.len()].copy_from_slice(NAME.as_bytes());
        0
    }

    extern "C" fn context(context: &mut Handle) -> c_int {
        *context = handle(CONTEXT.load(Ordering::Relaxed));
        0
    }

    extern "C" fn push_context(context: Handle) -> c_int {
        CONTEXT.store(context.addr(), Ordering::Relaxed);
        0
    }

    extern "C" fn pop_context(context: &mut Handle) -> c_int {
        *context = handle(CONTEXT.swap(0, Ordering::Relaxed));
        0
    }

    extern "C" fn device(device: &mut c_int) -> c_int {
        *device = DEVICE.into();
        0
    }

    /// Returns the context of a fake stream. A fake stream's handle is its context, with the stream's number
    /// in the low byte.
    extern "C" fn context_of(stream: Handle, context: &mut Handle) -> c_int {
        *context = handle(stream.addr() & !0xff);
        0
    }

    extern "C" fn is_capturing(_: Handle, status: &mut c_int) -> c_int {
        *status = CAPTURES.load(Ordering::Relaxed).into();
        0
    }

    extern "C" fn exchange_mode(mode: &mut c_int) -> c_int {
        *mode = MODE.swap(*mode, Ordering::Relaxed);
        0
    }

    extern "C" fn create(event: &mut Handle, _: u32) -> c_int {
        let mut state = state();
        state.last += 1;
        let new = state.last;
        state.alive.insert(new);
        *event = handle(new);
        0
    }

    extern "C" fn destroy(event: Handle) -> c_int {
        assert!(state().alive.remove(&event.addr()));
        0
    }

    extern "C" fn record(event: Handle, stream: Handle) -> c_int {
        let refused = REFUSES.load(Ordering::Relaxed);
        if refused == 0 {
            let mut state = state();
            assert!(state.alive.contains(&event.addr()));
            state.now += 1;
            state.recordings += 1;
            let now = state.now;
            state.recorded.insert(event.addr(), (now, stream.addr()));
        }
        refused
    }

    extern "C" fn elapsed(milliseconds: &mut f32, from: Handle, to: Handle) -> c_int {
        let state = state();
        assert!(state.recorded.contains_key(&to.addr()));
        if IS_BUSY.load(Ordering::Relaxed) {
            return DriverError::NOT_READY.0;
        }
        let at = |event: Handle| f64::from(state.recorded[&event.addr()].0);
        *milliseconds = ((at(to) - at(from)) / 1e3) as f32;
        0
    }

    /// Installs the fake driver. From now on `Driver::find` returns it.
    pub(crate) fn driver() -> Driver {
        let here = tllmprof_platform::elf::containing(version as *const () as usize);
        let functions = Functions {
            place: DriverLocation::from_module(&here.unwrap()),
            version: Some(version),
            device_name: Some(device_name),
            context: Some(context),
            push_context: Some(push_context),
            pop_context: Some(pop_context),
            device: Some(device),
            context_of: Some(context_of),
            is_capturing: Some(is_capturing),
            exchange_mode: Some(exchange_mode),
            create: Some(create),
            destroy: Some(destroy),
            record: Some(record),
            elapsed: Some(elapsed),
        };
        if FUNCTIONS.get().is_none() {
            FUNCTIONS.set(Some(Box::leak(Box::new(functions))));
        }
        Driver::find().unwrap()
    }
}
