//! The driver's own functions, for our own use.
//!
//! The profiler is switched by the driver and not by a runtime, so that it works however the
//! program was linked. Its functions are found in its own tables: `dlsym` would take the loader's
//! lock in the middle of a launch, and `dlerror` would lose what the program has not read yet.
//! `libloading` calls both, so it is used only where a library is opened at leisure.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::elf;
use crate::libcuda::NAME;
use crate::libcuda::functions;
use crate::lifecycle;
use crate::lifecycle::attic;
use crate::log;
use tllmprof_sync::Published;

type Context = *mut c_void;
type Device = c_int;
type Status = c_int;

const NOT_INITIALIZED: Status = 3;
const DEINITIALIZED: Status = 4;
const INVALID_CONTEXT: Status = 201;
const CONTEXT_IS_DESTROYED: Status = 709;

functions! {
    /// What is used of libcuda; a function that it lacks is none.
    Driver

    profiler_start: fn() = c"cuProfilerStart";
    profiler_stop: fn() = c"cuProfilerStop";
    driver_get_version: fn(&mut c_int) = c"cuDriverGetVersion";
    mem_get_info: fn(&mut usize, &mut usize) = c"cuMemGetInfo_v2";
    ctx_get_current: fn(&mut Context) = c"cuCtxGetCurrent";
    ctx_set_current: fn(Context) = c"cuCtxSetCurrent";
    ctx_synchronize: fn() = c"cuCtxSynchronize";
    device_get_count: fn(&mut c_int) = c"cuDeviceGetCount";
    device_get: fn(&mut Device, c_int) = c"cuDeviceGet";
    primary_ctx_get_state: fn(Device, &mut c_uint, &mut c_int) = c"cuDevicePrimaryCtxGetState";
    primary_ctx_retain: fn(&mut Context, Device) = c"cuDevicePrimaryCtxRetain";
    func_get_name: fn(&mut *const c_char, *mut c_void) = c"cuFuncGetName";
    kernel_get_name: fn(&mut *const c_char, *mut c_void) = c"cuKernelGetName";
    primary_ctx_release: fn(Device) = c"cuDevicePrimaryCtxRelease_v2" | c"cuDevicePrimaryCtxRelease";
}

lifecycle::global! {
    #[fork(keep = "the child has the driver loaded, too")]
    static DRIVER: Published<Driver> = Published::none();
    /// The context that was current where the window opened.
    #[fork(keep = "stored where a window opens")]
    static CONTEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
}

/// Whether the process has loaded the driver.
pub fn is_loaded() -> bool {
    Driver::is_known()
}

/// Writes the name of a kernel that the driver launches by `handle`, or the handle if it has none.
///
/// # Errors
/// Those of `out`.
pub fn write_kernel_name(out: &mut dyn core::fmt::Write, handle: u64) -> core::fmt::Result {
    let mut name = [0; Driver::NAME_LENGTH];
    match Driver::get().and_then(|driver| driver.kernel_name(handle, &mut name)) {
        Some(name) => out.write_str(name),
        None => write!(out, "{handle:#x}"),
    }
}

impl Driver {
    /// The process's driver, if it has loaded one.
    ///
    /// Looked for again when the one that was known has been unloaded.
    pub fn get() -> Option<&'static Self> {
        let is_there = |driver: &&Self| {
            elf::containing(driver.start)
                .is_some_and(|module| module.start == driver.start && module.soname() == Some(NAME))
        };
        let known = DRIVER.get();
        known.filter(is_there).or_else(|| {
            let driver = DRIVER.publish(known, Self::load()?);
            // Other threads may still use it.
            attic::put(known);
            driver
        })
    }

    /// Whether the process has loaded its driver at any time.
    pub fn is_known() -> bool {
        DRIVER.get().is_some() || Self::get().is_some()
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

    /// Starts the profiler where it could not be started before, without a word.
    pub fn start_profiler_late(&self) -> bool {
        self.profiler_start
            .is_some_and(|start| self.in_a_context(|| start()) == 0)
    }

    /// Stops the profiler.
    pub fn stop_profiler(&self) {
        let Some(stop) = self.profiler_stop else {
            return;
        };
        match self.in_a_context(|| stop()) {
            0 => {}
            // The program has taken CUDA down before the end of the process closed the window.
            status @ (DEINITIALIZED | CONTEXT_IS_DESTROYED) => {
                log::say!(Debug, "cuProfilerStop came too late: error {status}");
            }
            status => log::say!(Warn, "cuProfilerStop failed with error {status}"),
        }
    }

    /// The newest version of CUDA that it serves, as 1000 × major + 10 × minor.
    pub fn version(&self) -> Option<c_int> {
        let mut version = 0;
        (self.driver_get_version?(&mut version) == 0).then_some(version)
    }

    /// Bytes of the GPU's memory that are free, by the calling thread's context.
    pub fn free_memory(&self) -> Option<usize> {
        let (mut free, mut total) = (0, 0);
        (self.mem_get_info?(&mut free, &mut total) == 0).then_some(free)
    }

    /// Bytes that a kernel's name gets in messages.
    pub const NAME_LENGTH: usize = 60;

    /// The name, mangled, of what a program launches by `handle`, cut short where it is long.
    /// Drivers since 12.3 have the name; a `CUkernel` is launched as a `CUfunction`, and either function
    /// refuses the other's handles (error 400 from driver 580).
    pub fn kernel_name<'a>(
        &self,
        handle: u64,
        name: &'a mut [u8; Self::NAME_LENGTH],
    ) -> Option<&'a str> {
        let handle = core::ptr::with_exposed_provenance_mut(usize::try_from(handle).ok()?);
        let mut place = core::ptr::null();
        [self.func_get_name, self.kernel_get_name]
            .into_iter()
            .flatten()
            .find(|get| get(&mut place, handle) == 0)?;
        if place.is_null() {
            return None;
        }
        // SAFETY: the driver's string, which lives as long as the function's module.
        let full = unsafe { CStr::from_ptr(place) }.to_bytes();
        let length = full.len().min(name.len());
        name[..length].copy_from_slice(&full[..length]);
        core::str::from_utf8(&name[..length])
            .ok()
            .filter(|name| !name.is_empty())
    }

    /// Remembers the calling thread's context for the worker.
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

    /// Makes the remembered context the calling thread's.
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
    /// Changes the calling thread's context: for the worker alone.
    pub fn synchronize_all(&self) {
        self.adopt_context();
        let remembered = !self.context().is_null();
        if remembered {
            self.synchronize();
        }
        // A single device has been waited for then.
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

    /// Acts in some context: the calling thread's own, or, where the runtime has not given it one
    /// yet, a primary context that the program uses, or the last that was seen.
    fn in_a_context(&self, act: impl Fn() -> Status) -> Status {
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

    /// Acts in the primary contexts that the program uses, until the act says that it is enough.
    /// The calling thread has no context afterwards.
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
        // Retained while it is used, and only if the program has made it.
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

#[cfg(test)]
mod tests {
    use core::cell::RefCell;

    use super::*;
    use crate::log::tests::{Stderr, file, text};

    /// A GPU's driver as the calling thread sees it.
    #[derive(Default)]
    struct Gpu {
        current: usize,
        /// Whether each device's primary context is in use.
        primaries: Vec<bool>,
        /// What the profiler's functions and waits return.
        status: Status,
        /// The context that each of them was called in.
        used: Vec<usize>,
        retained: c_int,
    }

    thread_local! {
        static GPU: RefCell<Gpu> = RefCell::default();
    }

    fn gpu<R>(act: impl FnOnce(&mut Gpu) -> R) -> R {
        GPU.with_borrow_mut(act)
    }

    extern "C" fn acts() -> Status {
        gpu(|gpu| {
            gpu.used.push(gpu.current);
            if gpu.current == 0 {
                INVALID_CONTEXT
            } else {
                gpu.status
            }
        })
    }

    extern "C" fn get_current(context: &mut Context) -> Status {
        *context = core::ptr::without_provenance_mut(gpu(|gpu| gpu.current));
        0
    }

    extern "C" fn set_current(context: Context) -> Status {
        gpu(|gpu| gpu.current = context.addr());
        0
    }

    extern "C" fn get_count(count: &mut c_int) -> Status {
        *count = gpu(|gpu| gpu.primaries.len()) as c_int;
        0
    }

    extern "C" fn get_device(device: &mut Device, ordinal: c_int) -> Status {
        *device = 10 + ordinal;
        0
    }

    extern "C" fn get_state(device: Device, _: &mut c_uint, active: &mut c_int) -> Status {
        *active = gpu(|gpu| gpu.primaries[device as usize - 10]).into();
        0
    }

    extern "C" fn retain(context: &mut Context, device: Device) -> Status {
        gpu(|gpu| gpu.retained += 1);
        *context = core::ptr::without_provenance_mut(100 + device as usize);
        0
    }

    extern "C" fn release(_: Device) -> Status {
        gpu(|gpu| gpu.retained -= 1);
        0
    }

    extern "C" fn get_version(version: &mut c_int) -> Status {
        *version = 12040;
        0
    }

    extern "C" fn get_memory(free: &mut usize, total: &mut usize) -> Status {
        (*free, *total) = (5, 8);
        gpu(|gpu| gpu.status)
    }

    /// Knows kernels 1 and 2; 3 has no name.
    extern "C" fn name_of_function(name: &mut *const c_char, handle: *mut c_void) -> Status {
        const LONG: &CStr =
            c"_Z0123456789012345678901234567890123456789012345678901234567890123456789";
        match handle.addr() {
            1 => *name = c"_Z4stepv".as_ptr(),
            2 => *name = LONG.as_ptr(),
            3 => *name = c"".as_ptr(),
            _ => return 400,
        }
        0
    }

    extern "C" fn name_of_kernel(name: &mut *const c_char, handle: *mut c_void) -> Status {
        match handle.addr() {
            4 => *name = c"_Z6kernelv".as_ptr(),
            5 => *name = core::ptr::null(),
            _ => return 400,
        }
        0
    }

    const DRIVER: Driver = Driver {
        start: 0,
        profiler_start: Some(acts),
        profiler_stop: Some(acts),
        driver_get_version: Some(get_version),
        mem_get_info: Some(get_memory),
        ctx_get_current: Some(get_current),
        ctx_set_current: Some(set_current),
        ctx_synchronize: Some(acts),
        device_get_count: Some(get_count),
        device_get: Some(get_device),
        primary_ctx_get_state: Some(get_state),
        primary_ctx_retain: Some(retain),
        func_get_name: Some(name_of_function),
        kernel_get_name: Some(name_of_kernel),
        primary_ctx_release: Some(release),
    };
    const NONE: Driver = Driver {
        start: 0,
        profiler_start: None,
        profiler_stop: None,
        driver_get_version: None,
        mem_get_info: None,
        ctx_get_current: None,
        ctx_set_current: None,
        ctx_synchronize: None,
        device_get_count: None,
        device_get: None,
        primary_ctx_get_state: None,
        primary_ctx_retain: None,
        func_get_name: None,
        kernel_get_name: None,
        primary_ctx_release: None,
    };

    /// The contexts that `act` used, where these primary contexts are in use and `current` is current.
    fn used(primaries: &[bool], current: usize, act: impl FnOnce()) -> Vec<usize> {
        gpu(|gpu| {
            *gpu = Gpu {
                current,
                primaries: primaries.to_vec(),
                ..Gpu::default()
            };
        });
        act();
        gpu(|gpu| {
            assert_eq!(gpu.retained, 0, "what was retained is released");
            core::mem::take(&mut gpu.used)
        })
    }

    fn starts() {
        assert!(DRIVER.start_profiler());
    }

    #[test]
    fn the_profiler_is_switched_in_a_context() {
        assert_eq!(used(&[true, true], 7, starts), [7], "the thread's own");
        assert_eq!(
            used(&[false, true, true], 0, starts),
            [111],
            "the first that is in use"
        );
        assert_eq!(gpu(|gpu| gpu.current), 0, "the thread has none again");
        assert_eq!(used(&[true], 7, || DRIVER.stop_profiler()), [7]);
        let late = || assert!(DRIVER.start_profiler_late());
        assert_eq!(used(&[true], 0, late), [110]);
    }

    /// The context that is remembered is the process's, so this is one test.
    #[test]
    fn the_worker_adopts_the_context_that_was_remembered() {
        let file = file();
        let _stderr = Stderr::is(&file);
        let fails = || assert!(!DRIVER.start_profiler());
        assert_eq!(used(&[], 0, fails), [0], "there is none at all");
        assert_eq!(used(&[], 0, || DRIVER.remember_context()), [0; 0]);
        used(&[], 7, || DRIVER.remember_context());
        assert_eq!(used(&[], 0, starts), [7]);
        assert_eq!(gpu(|gpu| gpu.current), 0);

        let waits = || DRIVER.synchronize_all();
        assert_eq!(used(&[true], 0, waits), [7], "the one device is idle then");
        assert_eq!(used(&[true, false, true], 0, waits), [7, 110, 112]);
        assert_eq!(gpu(|gpu| gpu.current), 7);
        CONTEXT.store(core::ptr::null_mut(), Ordering::Relaxed);
        assert_eq!(used(&[true], 0, waits), [110]);
    }

    #[test]
    fn what_the_driver_refuses_or_lacks_is_survived() {
        let file = file();
        let _stderr = Stderr::is(&file);
        log::redirected(2);
        for status in [NOT_INITIALIZED, DEINITIALIZED, CONTEXT_IS_DESTROYED, 1] {
            let fails = || {
                gpu(|gpu| gpu.status = status);
                assert!(!DRIVER.start_profiler() && !DRIVER.start_profiler_late());
                DRIVER.stop_profiler();
                assert_eq!(DRIVER.free_memory(), None);
            };
            assert_eq!(used(&[], 7, fails), [7; 3]);
        }
        let lacks = || {
            assert!(!NONE.start_profiler() && !NONE.start_profiler_late());
            NONE.stop_profiler();
            NONE.synchronize_all();
            NONE.adopt_context();
            assert_eq!((NONE.version(), NONE.free_memory()), (None, None));
            assert_eq!(NONE.kernel_name(1, &mut [0; Driver::NAME_LENGTH]), None);
        };
        assert_eq!(used(&[true], 7, lacks), [0; 0]);
        let expected = "tllmprof: cuProfilerStop failed with error 3
tllmprof: cuProfilerStart failed with error 4
tllmprof: cuProfilerStart failed with error 709
tllmprof: cuProfilerStart failed with error 1
tllmprof: cuProfilerStop failed with error 1
tllmprof: this driver has no cuProfilerStart: only NVTX ranges mark the windows
";
        assert_eq!(text(&file), expected);
    }

    #[test]
    fn what_it_says_is_passed_on() {
        gpu(|gpu| gpu.status = 0);
        assert_eq!(DRIVER.version(), Some(12040));
        assert_eq!(DRIVER.free_memory(), Some(5));
    }

    #[test]
    fn a_kernel_has_its_name_by_either_function() {
        let name = |handle| {
            let mut place = [0; Driver::NAME_LENGTH];
            DRIVER.kernel_name(handle, &mut place).map(str::to_owned)
        };
        assert_eq!(name(1).as_deref(), Some("_Z4stepv"));
        assert_eq!(name(4).as_deref(), Some("_Z6kernelv"));
        let long = name(2).unwrap();
        assert!(long.len() == Driver::NAME_LENGTH && long.starts_with("_Z0123"));
        for unnamed in [3, 5, 6] {
            assert_eq!(name(unnamed), None, "{unnamed}");
        }
    }

    #[test]
    fn without_a_driver_a_kernel_is_called_by_its_handle() {
        // No test loads libcuda.
        assert!(!is_loaded());
        let mut text = String::new();
        write_kernel_name(&mut text, 0xabc).unwrap();
        assert_eq!(text, "0xabc");
    }
}
