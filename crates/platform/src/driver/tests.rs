#![allow(
    clippy::declare_interior_mutable_const,
    clippy::borrow_interior_mutable_const,
    reason = "drivers of tests, none of which is looked for"
)]

use core::cell::RefCell;

use super::*;
use crate::libcuda::DriverLocation;
use crate::log::tests::{Stderr, file, text};

/// The state of the fake GPU driver. Each test thread has a separate one.
#[derive(Default)]
struct Gpu {
    current: usize,
    /// One flag for each device: true if the device's primary context is in use.
    primaries: Vec<bool>,
    /// The status that the fake functions return when they start or stop a profiler, wait, or read the free memory.
    status: CuResult,
    /// The contexts in which the fake functions for the profiler and for waits were called, in order.
    used: Vec<usize>,
    retained: c_int,
}

thread_local! {
    static GPU: RefCell<Gpu> = RefCell::default();
}

fn gpu<R>(act: impl FnOnce(&mut Gpu) -> R) -> R {
    GPU.with_borrow_mut(act)
}

extern "C" fn acts() -> CuResult {
    gpu(|gpu| {
        gpu.used.push(gpu.current);
        if gpu.current == 0 {
            INVALID_CONTEXT
        } else {
            gpu.status
        }
    })
}

extern "C" fn get_current(context: &mut Context) -> CuResult {
    *context = core::ptr::without_provenance_mut(gpu(|gpu| gpu.current));
    0
}

extern "C" fn set_current(context: Context) -> CuResult {
    gpu(|gpu| gpu.current = context.addr());
    0
}

extern "C" fn get_count(count: &mut c_int) -> CuResult {
    *count = gpu(|gpu| gpu.primaries.len()) as c_int;
    0
}

extern "C" fn get_device(device: &mut CuDevice, ordinal: c_int) -> CuResult {
    *device = 10 + ordinal;
    0
}

extern "C" fn get_state(device: CuDevice, _: &mut c_uint, active: &mut c_int) -> CuResult {
    *active = gpu(|gpu| gpu.primaries[device as usize - 10]).into();
    0
}

extern "C" fn retain(context: &mut Context, device: CuDevice) -> CuResult {
    gpu(|gpu| gpu.retained += 1);
    *context = core::ptr::without_provenance_mut(100 + device as usize);
    0
}

extern "C" fn release(_: CuDevice) -> CuResult {
    gpu(|gpu| gpu.retained -= 1);
    0
}

extern "C" fn get_version(version: &mut c_int) -> CuResult {
    *version = 12040;
    0
}

extern "C" fn get_memory(free: &mut usize, total: &mut usize) -> CuResult {
    (*free, *total) = (5, 8);
    gpu(|gpu| gpu.status)
}

/// The fake `cuFuncGetName`: kernels 1 and 2 have a name, and kernel 3 has an empty one.
extern "C" fn name_of_function(name: &mut *const c_char, handle: *mut c_void) -> CuResult {
    const LONG_NAME: &CStr =
        c"_Z0123456789012345678901234567890123456789012345678901234567890123456789";
    match handle.addr() {
        1 => *name = c"_Z4stepv".as_ptr(),
        2 => *name = LONG_NAME.as_ptr(),
        3 => *name = c"".as_ptr(),
        _ => return 400,
    }
    0
}

extern "C" fn name_of_kernel(name: &mut *const c_char, handle: *mut c_void) -> CuResult {
    match handle.addr() {
        4 => *name = c"_Z6kernelv".as_ptr(),
        5 => *name = core::ptr::null(),
        _ => return 400,
    }
    0
}

const DRIVER: Driver = Driver {
    place: DriverLocation::NOWHERE,
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
    place: DriverLocation::NOWHERE,
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

/// Sets which primary contexts are in use (`primaries`) and which context is current, and then calls `act`. Returns
/// the contexts in which `act` called the fake functions.
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

/// One test covers several cases, because the stored context is one variable for the whole process.
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
tllmprof: this driver has no cuProfilerStart: a profiler that waits for it records no window
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
    // No test of this crate loads libcuda, so `is_loaded` must return false.
    assert!(!is_loaded());
    let mut text = String::new();
    write_kernel_name(&mut text, 0xabc).unwrap();
    assert_eq!(text, "0xabc");
}
