//! Tests that call the assembly code through which calls are intercepted, as a program would. On every path of a call,
//! the function must get the arguments that its caller passed, and the caller must get the result that the function
//! returned.

use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute;
use core::ptr::{from_ref, null_mut, without_provenance_mut};

use tllmprof_calls::{CALLS, Call, CallInfo, CallPurpose, Direction};
use tllmprof_learn::{Trail, Trails};
use tllmprof_platform::thread::{self, uncounted};
use tllmprof_record::What;
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::step::threads::{Slot, UNLIMITED};

use crate::made::{MadeCall, alone, call_by, real_address, record_of, recorded};
use crate::named::pool;
use crate::thunk::{Role, Thunk};

/// Results that the test function returns: success, an error, and a success with bits in the upper half of the
/// register, which an enumeration does not use.
const RESULTS: [usize; 3] = [0, 700, 0x1234_5678_0000_0000];

/// Gives the calling thread new call counters (a slot) with no limit on their counts, and returns
/// them.
fn count_here() -> &'static Slot {
    let slot: &Slot = Box::leak(Box::new(Slot::new(0, |_| UNLIMITED)));
    thread::set_counting(from_ref(slot.cells(false)).cast(), core::ptr::null());
    slot
}

/// Returns the rows of the table of calls ([`CALLS`]) whose functions a test may call with any arguments. Calls that
/// ask whether GPU work has finished are left out: they have a separate handler, which passes on only one argument.
fn rows_of_any_arguments() -> impl Iterator<Item = &'static CallInfo> {
    CALLS.iter().filter(|row| !row.kind.queries())
}

fn thunk_of(role: Role) -> &'static Thunk {
    Thunk::for_function(real_address(), role).unwrap()
}

#[test]
fn a_call_that_is_counted_keeps_its_arguments() {
    alone(&[("TLLMPROF_STEP", "cuGraphLaunch")], || {
        let slot = count_here();
        for row in rows_of_any_arguments() {
            let thunk = thunk_of(Role::Driver(row.call));
            let offset = from_ref(thunk).addr() - crate::thunk::THUNKS.as_ptr().addr();
            let index = offset / crate::thunk::THUNK_SIZE;
            for result in RESULTS {
                call_by(crate::stubs::stub(index), result, true);
                call_by(crate::stubs::counting_stub(index), result, true);
            }
            assert_eq!(slot.live(row.call).count(), 6, "{}", row.call);
        }
    });
}

#[test]
fn a_call_within_another_is_not_counted() {
    alone(&[("TLLMPROF_STEP", "cuGraphLaunch")], || {
        let slot = count_here();
        let stub = thunk_of(Role::Driver(Call::GraphLaunch)).stub();
        uncounted(&mut || call_by(stub, 0, true));
        assert_eq!(slot.live(Call::GraphLaunch).count(), 0);
        call_by(stub, 0, true);
        assert_eq!(slot.live(Call::GraphLaunch).count(), 1);
    });
}

#[test]
fn a_call_that_has_to_ask_keeps_its_arguments() {
    let windows = [
        ("TLLMPROF_STEP", "cuStreamSynchronize"),
        ("TLLMPROF_START_STOP", "0,2,4,6,8"),
    ];
    alone(&windows, || {
        // Calls that may begin or end a stream capture take another path: the library also sees them return.
        let (captures, others): (Vec<_>, Vec<_>) =
            rows_of_any_arguments().partition(|row| row.kind.captures());
        for row in others {
            let stub = thunk_of(Role::Driver(row.call)).stub();
            for result in RESULTS {
                call_by(stub, result, true);
            }
            let slot = tllmprof_session::slot().unwrap();
            assert_eq!(slot.live(row.call).count(), 3, "{}", row.call);
        }
        for row in captures {
            let stub = thunk_of(Role::Driver(row.call)).stub();
            for result in RESULTS {
                call_by(stub, result, true);
            }
        }
        // The test has no CUDA driver. So calls of runtime functions are passed through and not counted.
        for row in rows_of_any_arguments() {
            call_by(thunk_of(Role::Runtime(row.call)).stub(), 0, true);
        }
        call_by(thunk_of(Role::ProcAddress).stub(), 700, true);
    });
}

#[test]
fn a_call_that_is_noted_is_counted_as_well() {
    alone(&[("TLLMPROF_STEP", "auto")], || {
        let slot = count_here();
        let trails: &Trails = Box::leak(Box::new(Trails::new()));
        let trail: *const Trail = trails.get(0);
        let cells = from_ref(slot.cells(false)).cast();
        thread::set_counting(cells, trail.cast());
        let word = |offset: usize| {
            // SAFETY: the trail is a static, and `offset` is that of a word that the assembly code writes.
            unsafe { trail.cast::<u8>().add(offset).cast::<u32>().read_volatile() }
        };
        let token = |index: usize| {
            let place = trail.cast::<u8>().wrapping_add(Trail::TOKENS).cast::<u64>();
            // SAFETY: the trail is a static, and the index is within its tokens.
            unsafe { place.add(index % Trail::LENGTH).read_volatile() }
        };
        for row in rows_of_any_arguments() {
            let before = word(Trail::CALLS);
            let counters = || [word(Trail::LAUNCHES), word(Trail::GRAPHS)];
            let [launches, graphs] = counters();
            call_by(thunk_of(Role::Driver(row.call)).stub(), 0, true);
            assert_eq!(slot.live(row.call).count(), 1, "{}", row.call);
            let noted = word(Trail::CALLS) - before;
            let (expected, counted) = match row.kind {
                // For this call the trail's entry is the first argument, an address that varies in this test, so the
                // entry's value is not checked.
                CallPurpose::KernelLaunch { handle: 0 } => (None, [launches + 1, graphs]),
                CallPurpose::KernelLaunch { .. } => (Some(101), [launches + 1, graphs]),
                CallPurpose::GraphLaunch => (Some(Trail::GRAPH), [launches, graphs + 1]),
                CallPurpose::AsyncCopy(Direction::ToHost) => {
                    (Some(Trail::COPY_TO_HOST), [launches, graphs])
                }
                CallPurpose::AsyncCopy(Direction::ToDevice) => {
                    (Some(Trail::COPY_TO_DEVICE), [launches, graphs])
                }
                CallPurpose::Wait(wait) => (Some(Trail::wait(wait)), [launches, graphs]),
                _ => {
                    assert_eq!(noted, 0, "{}", row.call);
                    continue;
                }
            };
            assert_eq!((noted, counters()), (1, counted), "{}", row.call);
            let found = token(before as usize);
            assert!(
                found != 0 && expected.is_none_or(|expected| found == expected),
                "{}",
                row.call
            );
        }
    });
}

#[test]
fn a_call_that_is_recorded_keeps_its_arguments_and_its_record() {
    let path = record_of("calls");
    let variables = [
        ("TLLMPROF_STEP", "cuGraphLaunch"),
        ("TLLMPROF_START_STOP", "0-1000"),
        ("TLLMPROF_TRACE", path.as_str()),
    ];
    alone(&variables, || {
        let slot = count_here();
        let contents = recorded(|| {
            for row in rows_of_any_arguments() {
                let stub = thunk_of(Role::Driver(row.call)).stub();
                for result in RESULTS {
                    // `call_by` does not check floating-point registers here: the handler of recorded calls does not
                    // preserve them, because no CUDA function uses them.
                    call_by(stub, result, false);
                }
                assert_eq!(slot.live(row.call).count(), 3, "{}", row.call);
            }
        });
        let calls = contents
            .events
            .iter()
            .filter_map(|(_, event)| match event.what {
                What::Call { row, stream, .. } => Some((row, stream, event.failed)),
                _ => None,
            });
        let calls: Vec<_> = calls.collect();
        for row in rows_of_any_arguments() {
            let of_row = calls.iter().filter(|(known, ..)| *known == row.call as u8);
            let failed: Vec<_> = of_row.map(|(.., failed)| *failed).collect();
            assert_eq!(failed, [false, true, false], "{}", row.call);
        }
        let launch = Call::LaunchKernel as u8;
        let streams = calls.iter().filter(|(row, ..)| *row == launch);
        let streams: Vec<_> = streams.map(|(_, stream, _)| *stream).collect();
        assert_eq!(
            streams,
            [108, 0, 108],
            "word 8; a call that failed has none"
        );
    });
}

#[test]
fn a_named_function_keeps_its_arguments_counted_or_asked_about() {
    let rule = [
        ("TLLMPROF_STEP", "sym:made"),
        ("TLLMPROF_START_STOP", "1000"),
    ];
    alone(&rule, || {
        let stub = without_provenance_mut(pool::stub(real_address().addr()).unwrap());
        // The thread has no cells (call counters) yet; its first call creates them.
        for count in 1..=5 {
            call_by(stub, count as usize, true);
            let slot = tllmprof_session::slot().unwrap();
            assert_eq!(slot.live(Counted::Named).count(), count);
        }
        let slot = count_here();
        slot.live(Counted::Named).set_limit(0);
        call_by(stub, 0, true);
        assert_eq!(slot.live(Counted::Named).count(), 1);
    });
}

/// Types of `dlsym` and `dlvsym`, with which the test calls this library's replacements of these functions.
type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

#[test]
fn a_look_up_of_something_else_is_the_loaders() {
    alone(&[("TLLMPROF_START_STOP", "5")], || {
        // SAFETY: each door is the code that an exported function of this type jumps to.
        let (dlsym, dlvsym) = unsafe {
            let dlsym = transmute::<unsafe extern "C" fn(), Dlsym>(super::dlsym_door);
            let dlvsym = transmute::<unsafe extern "C" fn(), Dlvsym>(super::dlvsym_door);
            (dlsym, dlvsym)
        };
        let look = |handle, name: &CStr| {
            // SAFETY: the handle is valid for dlsym, and the name is a terminated string.
            unsafe {
                (
                    dlsym(handle, name.as_ptr()),
                    libc::dlsym(handle, name.as_ptr()),
                )
            }
        };
        for name in [c"getppid", c"curl", c"c", c"", c"cuda"] {
            for handle in [libc::RTLD_DEFAULT, libc::RTLD_NEXT] {
                let (ours, theirs) = look(handle, name);
                assert_eq!(ours, theirs, "{name:?}");
            }
        }
        assert!(!look(libc::RTLD_DEFAULT, c"getppid").0.is_null());

        // No loaded module defines this CUDA function: the look-up finds nothing, and the error message names the
        // function.
        let (found, _) = look(libc::RTLD_DEFAULT, c"cuGraphLaunch");
        assert!(found.is_null());
        // SAFETY: `dlerror` takes no arguments. Its result is null or a terminated string.
        let message = unsafe {
            let message = libc::dlerror();
            (!message.is_null()).then(|| CStr::from_ptr(message).to_string_lossy().into_owned())
        };
        assert!(message.is_some_and(|message| message.contains("cuGraphLaunch")));

        let version = if cfg!(target_arch = "x86_64") {
            c"GLIBC_2.2.5"
        } else {
            c"GLIBC_2.17"
        };
        // SAFETY: the handle is valid for dlvsym, and the strings are terminated.
        let found = unsafe { dlvsym(libc::RTLD_DEFAULT, c"getppid".as_ptr(), version.as_ptr()) };
        assert_eq!(found, look(libc::RTLD_DEFAULT, c"getppid").1);
        // SAFETY: the handle is valid for dlvsym, and the strings are terminated.
        let none = unsafe { dlvsym(libc::RTLD_DEFAULT, c"getppid".as_ptr(), c"NONE_1".as_ptr()) };
        assert_eq!(none, null_mut());
    });
}

/// Two exported functions for the tests. For the first, the C library defines the real function;
/// for the second, no module does.
mod exported {
    crate::export_functions!(ffsll cuGraphLaunch_ptsz);

    // SAFETY: `export_functions` defines these names. They are called with the type of the C library's function.
    unsafe extern "C" {
        #[link_name = "ffsll"]
        pub(crate) fn first_set(bits: i64) -> i32;
        #[link_name = "cuGraphLaunch_ptsz"]
        pub(crate) fn launch(seen: &mut super::MadeCall) -> i32;
    }
}

#[test]
fn an_exported_function_is_the_callers_or_says_that_there_is_none() {
    let said = alone(&[], || {
        for bit in 0..40 {
            // SAFETY: the function takes only a number.
            assert_eq!(unsafe { exported::first_set(1 << bit) }, bit + 1);
        }
        let mut seen = MadeCall::default();
        for _ in 0..3 {
            // SAFETY: no module defines the function, and the handler `missing`, which runs instead, reads no argument.
            assert_eq!(unsafe { exported::launch(&mut seen) }, 3, "not initialised");
        }
        assert_eq!(seen, MadeCall::default());
    });
    if let Some(said) = said {
        let warned = "cuGraphLaunch_ptsz was called, but no library that is loaded has it";
        assert_eq!(said.matches(warned).count(), 1, "{said}");
    }
}

#[cfg(target_arch = "x86_64")]
mod registers {
    use core::arch::naked_asm;
    use core::sync::atomic::{AtomicUsize, Ordering};

    use crate::skipped::skipped;

    use super::*;
    use crate::made::registers::{Registers, after};
    use crate::named::processor;

    #[unsafe(naked)]
    extern "C" fn nothing() {
        naked_asm!("ret")
    }

    #[test]
    fn a_named_function_gets_every_register_as_it_was() {
        if !is_x86_feature_detected!("avx") {
            return skipped("the processor has no AVX");
        }
        let rule = [
            ("TLLMPROF_STEP", "sym:made"),
            ("TLLMPROF_START_STOP", "1000"),
        ];
        alone(&rule, || {
            processor::start();
            let real = nothing as extern "C" fn() as *mut c_void;
            let stub = without_provenance_mut(pool::stub(real.addr()).unwrap());
            assert_eq!(after(real), Registers::made(), "the test itself");
            assert_eq!(after(stub), Registers::made(), "the thread begins to count");
            assert_eq!(after(stub), Registers::made(), "it counts");
            let slot = tllmprof_session::slot().unwrap();
            assert_eq!(slot.live(Counted::Named).count(), 2);
        });
    }

    /// Calls `await_end`, which makes the library await the end of this call, and then returns values in every
    /// register that may carry a result.
    #[unsafe(naked)]
    extern "C" fn ends() {
        naked_asm!(
            "mov rdi, rsp",
            "sub rsp, 8",
            "call {await_end}",
            "add rsp, 8",
            "mov eax, 7001",
            "mov edx, 7002",
            "movq xmm0, rax",
            "movq xmm1, rdx",
            "vinsertf128 ymm0, ymm0, xmm1, 1",
            "fldl2e",
            "ret",
            await_end = sym await_end,
        )
    }

    extern "C" fn await_end(place: &AtomicUsize) {
        let before = place.load(Ordering::Relaxed);
        crate::named::await_end_of(place, 7);
        let is_awaited = place.load(Ordering::Relaxed) != before;
        assert_eq!(is_awaited, !processor::has_shadow_stack());
    }

    #[test]
    fn a_call_whose_end_is_awaited_returns_what_it_returned() {
        if !is_x86_feature_detected!("avx") {
            return skipped("the processor has no AVX");
        }
        alone(&[], || {
            processor::start();
            for _ in 0..2 * pool::RETURNS {
                let after = after(ends as extern "C" fn() as *mut c_void);
                assert_eq!((after.general[0], after.general[3]), (7001, 7002));
                assert_eq!(after.vectors[0], [7001, 0, 7002, 0]);
                assert_eq!(after.vectors[1][..2], [7002, 0]);
                assert_eq!(
                    after.floating,
                    [core::f64::consts::LOG2_E, core::f64::consts::PI]
                );
                // A function must preserve `rbx`, `rbp` and `r12` to `r15`. The numbers are the
                // indices of these registers in `Registers::general`, in order.
                let made = Registers::made();
                for kept in [1, 6, 10, 11, 12, 13] {
                    assert_eq!(after.general[kept], made.general[kept], "{kept}");
                }
                let is_free = |place: &pool::Return| place.address.load(Ordering::Relaxed) == 0;
                assert!(pool::AWAITED.iter().all(is_free));
            }
        });
    }
}
