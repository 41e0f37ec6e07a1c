//! Functions of the CUDA driver that the library calls itself.
//!
//! A profiler is started and stopped through the driver and not through the CUDA runtime, because a program may be
//! linked to any runtime or to none. The library finds the driver's functions in the driver's symbol tables and not by
//! `dlsym`. `dlsym` would take the loader's lock in the middle of a launch, and would clear a `dlerror` that the
//! program has not read yet. `libloading` calls `dlsym` and `dlerror`, so it is used only where no call of the program
//! is in progress.

#[cfg(test)]
mod tests;

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::path::Path;

use crate::elf::ElfModule;
use crate::function;
use crate::libcuda::functions;
use crate::lifecycle;
use crate::lifecycle::attic;
use crate::log;
use crate::maps::Maps;
use tllmprof_sync::Published;

type Context = *mut c_void;
type CuDevice = c_int;
type CuResult = c_int;

const SUCCESS: CuResult = 0;
const NOT_INITIALIZED: CuResult = 3;
const DEINITIALIZED: CuResult = 4;
const INVALID_CONTEXT: CuResult = 201;
const CONTEXT_IS_DESTROYED: CuResult = 709;

functions! {
    /// The functions of libcuda that the library calls; `None` for a function that the installed version
    /// lacks.
    Driver

    profiler_start: fn() = c"cuProfilerStart";
    profiler_stop: fn() = c"cuProfilerStop";
    driver_get_version: fn(&mut c_int) = c"cuDriverGetVersion";
    mem_get_info: fn(&mut usize, &mut usize) = c"cuMemGetInfo_v2";
    ctx_get_current: fn(&mut Context) = c"cuCtxGetCurrent";
    ctx_set_current: fn(Context) = c"cuCtxSetCurrent";
    ctx_synchronize: fn() = c"cuCtxSynchronize";
    device_get_count: fn(&mut c_int) = c"cuDeviceGetCount";
    device_get: fn(&mut CuDevice, c_int) = c"cuDeviceGet";
    primary_ctx_get_state: fn(CuDevice, &mut c_uint, &mut c_int) = c"cuDevicePrimaryCtxGetState";
    primary_ctx_retain: fn(&mut Context, CuDevice) = c"cuDevicePrimaryCtxRetain";
    func_get_name: fn(&mut *const c_char, *mut c_void) = c"cuFuncGetName";
    kernel_get_name: fn(&mut *const c_char, *mut c_void) = c"cuKernelGetName";
    primary_ctx_release: fn(CuDevice) = c"cuDevicePrimaryCtxRelease_v2" | c"cuDevicePrimaryCtxRelease";
}

lifecycle::global! {
    #[fork(keep = "the child has the driver loaded, too")]
    static DRIVER: Published<Driver> = Published::none();
    /// The CUDA context that [`Driver::remember_context`] stored last, for example when a window (a recorded interval)
    /// opened or closed; null if there is none.
    #[fork(keep = "stored where a window opens")]
    static CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
}

/// Returns true if the process has loaded the driver, even if the driver was unloaded since.
pub fn is_loaded() -> bool {
    Driver::is_known()
}

/// Returns true if the process uses or has used `driver`, which may lie in another linker namespace. The
/// driver is in use if the calling thread or a device has a context. It was in use if it has shut down but
/// memory of a context is still mapped.
pub fn is_in_use(driver: &ElfModule) -> bool {
    type Current = extern "C" fn(&mut Context) -> CuResult;
    type Count = extern "C" fn(&mut c_int) -> CuResult;
    type State = extern "C" fn(CuDevice, &mut c_uint, &mut c_int) -> CuResult;
    let find = |name| driver.defines(name, None).unwrap_or_default();
    // SAFETY: cuda.h declares these names with these types, and their arguments may have any values.
    let (current, count, state) = unsafe {
        (
            function::at::<Current>(find(c"cuCtxGetCurrent")),
            function::at::<Count>(find(c"cuDeviceGetCount")),
            function::at::<State>(find(c"cuDevicePrimaryCtxGetState")),
        )
    };
    let (Some(current), Some(count), Some(state)) = (current, count, state) else {
        return false;
    };
    let mut context = core::ptr::null_mut();
    match current(&mut context) {
        // The driver returns `DEINITIALIZED` after a shutdown, but also if it was loaded and never used. Only
        // a process that has had a context has this file mapped.
        DEINITIALIZED => Maps::read().is_ok_and(|maps| maps.has_file(Path::new("/dev/nvidia-uvm"))),
        SUCCESS if context.is_null() => {
            let mut devices = 0;
            let is_active = |device| {
                let (mut flags, mut is_active) = (0, 0);
                state(device, &mut flags, &mut is_active) == SUCCESS && is_active != 0
            };
            count(&mut devices) == SUCCESS && (0..devices).any(is_active)
        }
        status => status == SUCCESS,
    }
}

/// Writes the name of the kernel that a program launches through `handle`, or the handle itself if the name
/// is unknown.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn write_kernel_name(out: &mut dyn core::fmt::Write, handle: u64) -> core::fmt::Result {
    let mut name = [0; Driver::NAME_LENGTH];
    match Driver::get().and_then(|driver| driver.kernel_name(handle, &mut name)) {
        Some(name) => out.write_str(name),
        None => write!(out, "{handle:#x}"),
    }
}

impl Driver {
    /// Returns the process's driver, or `None` if the process has not loaded one.
    ///
    /// Looks the driver up again if the driver that was found before has been unloaded.
    pub fn get() -> Option<&'static Self> {
        let known = DRIVER.get();
        known.filter(|driver| driver.place.is_valid()).or_else(|| {
            let driver = DRIVER.publish(known, Self::load()?);
            // The old value is not freed, because other threads may still be using it.
            attic::put(known);
            driver
        })
    }

    /// Returns true if the process has a driver loaded, or if the library found a driver before and that driver was
    /// unloaded since.
    pub fn is_known() -> bool {
        DRIVER.get().is_some() || Self::get().is_some()
    }

    /// Starts the profiler that waits for `cuProfilerStart` (such as nsys). Returns true on success.
    pub fn start_profiler(&self) -> bool {
        let Some(start) = self.profiler_start else {
            log::once!(
                Warn,
                "this driver has no cuProfilerStart: a profiler that waits for it records no window"
            );
            return false;
        };
        match self.in_a_context(|| start()) {
            0 => true,
            status @ (NOT_INITIALIZED | INVALID_CONTEXT) => {
                log::say!(Debug, "cuProfilerStart came too early: error {status}");
                false
            }
            status => {
                log::say!(Warn, "cuProfilerStart failed with error {status}");
                false
            }
        }
    }

    /// Retries to start the profiler after an earlier attempt has failed. Does not log a failure. Returns
    /// true on success.
    pub fn start_profiler_late(&self) -> bool {
        self.profiler_start
            .is_some_and(|start| self.in_a_context(|| start()) == 0)
    }

    /// Stops the profiler that waits for `cuProfilerStop` (such as nsys).
    pub fn stop_profiler(&self) {
        let Some(stop) = self.profiler_stop else {
            return;
        };
        match self.in_a_context(|| stop()) {
            0 => {}
            // The driver returns one of these errors if the program has shut CUDA down before the window (the
            // recorded interval) was closed, as at the end of a process.
            status @ (DEINITIALIZED | CONTEXT_IS_DESTROYED) => {
                log::say!(Debug, "cuProfilerStop came too late: error {status}");
            }
            status => log::say!(Warn, "cuProfilerStop failed with error {status}"),
        }
    }

    /// Returns the newest CUDA version that the driver supports, as 1000 × major + 10 × minor; `None` if the query
    /// fails.
    pub fn version(&self) -> Option<c_int> {
        let mut version = 0;
        (self.driver_get_version?(&mut version) == 0).then_some(version)
    }

    /// Returns the number of free bytes of GPU memory, for the calling thread's context; `None` if the query fails.
    pub fn free_memory(&self) -> Option<usize> {
        let (mut free, mut total) = (0, 0);
        (self.mem_get_info?(&mut free, &mut total) == 0).then_some(free)
    }

    /// Largest length in bytes of a kernel's name in messages.
    pub const NAME_LENGTH: usize = 60;

    /// Returns the mangled name of the kernel that a program launches by `handle`, cut to [`Self::NAME_LENGTH`].
    /// Returns `None` if the driver provides no name (drivers do since 12.3), or if the name is empty or not UTF-8. The
    /// driver has two functions for names, `cuFuncGetName` and `cuKernelGetName`, because a program can launch a
    /// `CUfunction` or a `CUkernel`. Each of them rejects the handles of the other (error 400 with driver 580).
    pub fn kernel_name<'a>(
        &self,
        handle: u64,
        name: &'a mut [u8; Self::NAME_LENGTH],
    ) -> Option<&'a str> {
        let length = self.with_kernel_name(handle, |full| {
            let length = full.len().min(name.len());
            name[..length].copy_from_slice(&full[..length]);
            length
        })?;
        core::str::from_utf8(&name[..length])
            .ok()
            .filter(|name| !name.is_empty())
    }

    /// Calls `take` with the whole mangled name of the kernel that a program launches by `handle`, and returns the
    /// result of `take`. Returns `None` if the driver provides no name.
    pub fn with_kernel_name<T>(&self, handle: u64, take: impl FnOnce(&[u8]) -> T) -> Option<T> {
        let handle = core::ptr::with_exposed_provenance_mut(usize::try_from(handle).ok()?);
        let mut place = core::ptr::null();
        [self.func_get_name, self.kernel_get_name]
            .into_iter()
            .flatten()
            .find(|get| get(&mut place, handle) == 0)?;
        if place.is_null() {
            return None;
        }
        // SAFETY: the driver owns the string, which lives as long as the kernel's module.
        Some(take(unsafe { CStr::from_ptr(place) }.to_bytes()))
    }

    /// Stores the calling thread's context, so that the library's worker thread can use it.
    pub fn remember_context(&self) {
        let context = self.context();
        if !context.is_null() {
            CONTEXT.store(context, Ordering::Relaxed);
        }
    }

    fn context(&self) -> Context {
        let mut context = core::ptr::null_mut();
        if let Some(get) = self.ctx_get_current {
            get(&mut context);
        }
        context
    }

    /// Makes the context that [`Self::remember_context`] stored current on the calling thread.
    pub fn adopt_context(&self) {
        let context = CONTEXT.load(Ordering::Relaxed);
        if let Some(set) = self.ctx_set_current
            && !context.is_null()
        {
            set(context);
        }
    }

    /// Waits until the devices that the process uses are idle.
    ///
    /// Only the worker thread may call this, because it changes the calling thread's context.
    pub fn synchronize_all(&self) {
        self.adopt_context();
        let remembered = !self.context().is_null();
        if remembered {
            self.synchronize();
        }
        // If the process has only one device and the stored context was used, the wait above has
        // covered this device.
        if !remembered || self.devices() > 1 {
            self.each_primary_context(|| {
                self.synchronize();
                false
            });
        }
        self.adopt_context();
    }

    fn synchronize(&self) {
        if let Some(synchronize) = self.ctx_synchronize {
            synchronize();
        }
    }

    fn devices(&self) -> c_int {
        let mut count = 0;
        if let Some(get_count) = self.device_get_count {
            get_count(&mut count);
        }
        count
    }

    /// Runs `act` in a CUDA context: the calling thread's context if it has one, otherwise a primary context
    /// that the program uses, otherwise the context that [`Self::remember_context`] stored.
    fn in_a_context(&self, act: impl Fn() -> CuResult) -> CuResult {
        if !self.context().is_null() {
            return act();
        }
        let mut status = None;
        self.each_primary_context(|| {
            status = Some(act());
            true
        });
        status.unwrap_or_else(|| {
            self.adopt_context();
            let status = act();
            if let Some(set) = self.ctx_set_current {
                set(core::ptr::null_mut());
            }
            status
        })
    }

    /// Runs `act` in each primary context that the program uses, until `act` returns true. If at least one context
    /// was used, the calling thread has no current context afterwards.
    fn each_primary_context(&self, mut act: impl FnMut() -> bool) {
        let mut is_enough = |ordinal| self.in_primary_context(ordinal, &mut act) == Some(true);
        (0..self.devices()).any(&mut is_enough);
    }

    fn in_primary_context(&self, ordinal: c_int, act: &mut dyn FnMut() -> bool) -> Option<bool> {
        let (get, state) = (self.device_get?, self.primary_ctx_get_state?);
        let (retain, release) = (self.primary_ctx_retain?, self.primary_ctx_release?);
        let set = self.ctx_set_current?;
        let (mut device, mut flags, mut active) = (0, 0, 0);
        let mut context = core::ptr::null_mut();
        // The primary context is retained while `act` runs, but only if the program has created it.
        let is_usable = get(&mut device, ordinal) == 0
            && state(device, &mut flags, &mut active) == 0
            && active != 0
            && retain(&mut context, device) == 0;
        if !is_usable {
            return None;
        }
        let enough = set(context) == 0 && act();
        set(core::ptr::null_mut());
        release(device);
        Some(enough)
    }
}
