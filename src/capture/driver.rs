//! The driver's own functions, for our own use.
//!
//! The profiler is switched by the driver and not by a runtime, so that it works however the
//! program was linked.

use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use libloading::os::unix::{Library, RTLD_LAZY};
use once_cell::race::OnceBox;

use crate::log;

type Context = *mut c_void;
type Device = c_int;
type Status = c_int;

const DEINITIALIZED: Status = 4;
const CONTEXT_IS_DESTROYED: Status = 709;
const RTLD_NOLOAD: c_int = libc::RTLD_NOLOAD;

macro_rules! functions {
    ($($field:ident: fn($($arg:ty),*) = $($name:literal)|+;)*) => {
        /// What is used of libcuda; a function that it lacks is none.
        pub struct Driver {
            $($field: Option<unsafe extern "C" fn($($arg),*) -> Status>,)*
        }

        impl Driver {
            fn load() -> Option<Self> {
                // SAFETY: with RTLD_NOLOAD nothing is loaded and no constructor runs.
                let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_LAZY | RTLD_NOLOAD) };
                let library = library.ok()?;
                let driver = Self {
                    $($field: [$($name),+].into_iter().find_map(|name: &core::ffi::CStr| {
                        // SAFETY: the types are those of cuda.h for these names.
                        unsafe { library.get(name.to_bytes_with_nul()).ok().map(|symbol| *symbol) }
                    }),)*
                };
                // The reference keeps the driver loaded, as the pointers need.
                core::mem::forget(library);
                Some(driver)
            }
        }
    };
}

functions! {
    profiler_start: fn() = c"cuProfilerStart";
    profiler_stop: fn() = c"cuProfilerStop";
    ctx_get_current: fn(*mut Context) = c"cuCtxGetCurrent";
    ctx_set_current: fn(Context) = c"cuCtxSetCurrent";
    ctx_synchronize: fn() = c"cuCtxSynchronize";
    device_get_count: fn(*mut c_int) = c"cuDeviceGetCount";
    device_get: fn(*mut Device, c_int) = c"cuDeviceGet";
    primary_ctx_get_state: fn(Device, *mut c_uint, *mut c_int) = c"cuDevicePrimaryCtxGetState";
    primary_ctx_retain: fn(*mut Context, Device) = c"cuDevicePrimaryCtxRetain";
    primary_ctx_release: fn(Device) = c"cuDevicePrimaryCtxRelease_v2" | c"cuDevicePrimaryCtxRelease";
}

static DRIVER: OnceBox<Driver> = OnceBox::new();
/// The context that was current where the window opened.
static CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

impl Driver {
    /// The process's driver, if it has loaded one.
    pub fn get() -> Option<&'static Self> {
        DRIVER
            .get_or_try_init(|| Self::load().map(Box::new).ok_or(()))
            .ok()
    }

    /// Starts the profiler; whether it did.
    pub fn start_profiler(&self) -> bool {
        let Some(start) = self.profiler_start else {
            log::once!(
                Warn,
                "this driver has no cuProfilerStart: only NVTX ranges mark the windows"
            );
            return false;
        };
        // SAFETY: the function takes nothing.
        let status = unsafe { start() };
        if status != 0 {
            log::say!(
                Warn,
                "cuProfilerStart failed with error {status}: only NVTX ranges mark this window"
            );
        }
        status == 0
    }

    /// Stops the profiler.
    pub fn stop_profiler(&self) {
        let Some(stop) = self.profiler_stop else {
            return;
        };
        // SAFETY: the function takes nothing.
        match unsafe { stop() } {
            0 => {}
            // The program has taken CUDA down before the end of the process closed the window.
            status @ (DEINITIALIZED | CONTEXT_IS_DESTROYED) => {
                log::say!(Debug, "cuProfilerStop came too late: error {status}");
            }
            status => log::say!(Warn, "cuProfilerStop failed with error {status}"),
        }
    }

    /// Remembers the calling thread's context for the worker.
    pub fn remember_context(&self) {
        let mut context = core::ptr::null_mut();
        if let Some(get) = self.ctx_get_current {
            // SAFETY: writes the context to the local that it is given.
            let _ = unsafe { get(&raw mut context) };
        }
        CONTEXT.store(context, Ordering::Relaxed);
    }

    /// Makes the remembered context the calling thread's.
    pub fn adopt_context(&self) {
        let context = CONTEXT.load(Ordering::Relaxed);
        if let Some(set) = self.ctx_set_current
            && !context.is_null()
        {
            // SAFETY: a handle that the driver gave; the driver checks it.
            let _ = unsafe { set(context) };
        }
    }

    /// Waits until the devices that the process uses are idle.
    ///
    /// Changes the calling thread's context: for the worker alone.
    pub fn synchronize_all(&self) {
        self.adopt_context();
        self.synchronize();
        let mut count = 0;
        if let Some(get_count) = self.device_get_count {
            // SAFETY: writes the number of devices to the local.
            let _ = unsafe { get_count(&raw mut count) };
        }
        // A single device has been waited for, by the context that the window opened in.
        for ordinal in 0..if count > 1 { count } else { 0 } {
            self.synchronize_primary(ordinal);
        }
        self.adopt_context();
    }

    fn synchronize(&self) {
        if let Some(synchronize) = self.ctx_synchronize {
            // SAFETY: the function takes nothing.
            let _ = unsafe { synchronize() };
        }
    }

    /// Waits for a device's primary context, if the program uses it.
    fn synchronize_primary(&self, ordinal: c_int) -> Option<()> {
        let (get, state) = (self.device_get?, self.primary_ctx_get_state?);
        let (retain, release) = (self.primary_ctx_retain?, self.primary_ctx_release?);
        let set = self.ctx_set_current?;
        let (mut device, mut flags, mut active) = (0, 0, 0);
        let mut context = core::ptr::null_mut();
        // SAFETY: each function writes to the locals it is given and succeeds before the next uses
        // them; the context is retained while it is waited for, and only if it was active.
        unsafe {
            let usable = get(&raw mut device, ordinal) == 0
                && state(device, &raw mut flags, &raw mut active) == 0
                && active != 0
                && retain(&raw mut context, device) == 0;
            if usable {
                if set(context) == 0 {
                    self.synchronize();
                }
                let _ = release(device);
            }
        }
        Some(())
    }
}
