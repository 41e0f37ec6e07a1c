//! Tests that unwind native stacks: those of threads that sleep in a known system call, and copies of the stack of a
//! running thread.
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tllmprof_platform::ids;
use tllmprof_recorder::SystemCall;

use crate::asleep;
use crate::exclusive::alone;
use crate::files;
use crate::followed::Followed;
use crate::modules::Modules;
use crate::native::Ring;
use crate::skipped::skipped;
use crate::unwind::Unwinder;

static NUMBER: AtomicI32 = AtomicI32::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);
static LOCK: Mutex<()> = Mutex::new(());
static WORK: Condvar = Condvar::new();

#[inline(never)]
extern "C" fn waits_for_work() {
    let mut guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    while !IS_OVER.load(Ordering::Relaxed) {
        guard = WORK.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

#[inline(never)]
extern "C" fn sleeps() {
    while !IS_OVER.load(Ordering::Relaxed) {
        // SAFETY: the function takes only a duration.
        unsafe { libc::usleep(20_000) };
    }
}

#[inline(never)]
extern "C" fn calls(act: extern "C" fn()) {
    NUMBER.store(ids::thread(), Ordering::Release);
    act();
    // This statement prevents a tail call, which would leave no frame of this function.
    core::hint::black_box(());
}

/// Starts a thread that runs `act`, and waits until it sleeps in `call`. Returns the start
/// addresses of the functions on its stack.
fn functions_of(act: extern "C" fn(), call: SystemCall) -> Vec<usize> {
    let _alone = alone();
    NUMBER.store(0, Ordering::Release);
    IS_OVER.store(false, Ordering::Relaxed);
    files::close(0);
    let worker = thread::spawn(move || calls(act));
    let (mut modules, mut unwinder) = (Modules::default(), Unwinder::default());
    modules.look();
    let mut frames = Vec::new();
    loop {
        let followed = Followed {
            place: 0,
            number: NUMBER.load(Ordering::Acquire),
            target: None,
        };
        if followed.number == 0 {
            thread::yield_now();
            continue;
        }
        let Some(found) = asleep::look(followed.files()).filter(|found| found.call == call) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        frames.clear();
        let start = found.process_start();
        unwinder.unwind(&modules, found.registers, start, &mut frames);
        if asleep::look(followed.files()) == Some(found) {
            break;
        }
    }
    IS_OVER.store(true, Ordering::Relaxed);
    drop(LOCK.lock());
    WORK.notify_all();
    let pipe = std::fs::OpenOptions::new().write(true).open(pipe());
    worker.join().unwrap();
    drop(pipe);
    files::close(0);
    let start = |address: &usize| unwinder.start_of(&modules, *address);
    frames.iter().filter_map(start).collect()
}

/// Returns true if the stack contains the function `inner`, called directly by `calls`.
fn has_pair(functions: &[usize], inner: extern "C" fn()) -> bool {
    let pair = [inner as usize, calls as extern "C" fn(_) as usize];
    functions.windows(2).any(|two| two == pair)
}

#[test]
fn the_callers_of_a_condition_variable_are_found() {
    let found = functions_of(waits_for_work, SystemCall::Futex);
    assert!(has_pair(&found, waits_for_work), "{found:x?}");
    assert!(found.len() > 4, "to the thread's start: {found:x?}");
}

#[test]
fn the_callers_of_a_sleep_are_found() {
    let found = functions_of(sleeps, SystemCall::ClockNanosleep);
    assert!(has_pair(&found, sleeps), "{found:x?}");
    assert_ne!(found.first(), Some(&(sleeps as *const () as usize)));
}

/// The path of the named pipe that the child process of [`starts_process`] opens.
fn pipe() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("tllmprof-stacks-{}", ids::process()))
}

/// Creates the named pipe, and returns its path. An earlier test process with the same process id may have been killed,
/// and have left the pipe.
#[cfg(target_arch = "x86_64")]
fn create_pipe() -> std::ffi::CString {
    let _ = std::fs::remove_file(pipe());
    let path = std::ffi::CString::new(pipe().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the path ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    path
}

/// Starts a child process that opens a named pipe before it runs its program. Until another thread opens the other end,
/// the child process is in `open`, and the calling thread sleeps in the system call that has started it.
#[inline(never)]
#[cfg(target_arch = "x86_64")]
extern "C" fn starts_process() {
    let path = create_pipe();
    let mut arguments = [c"true".as_ptr().cast_mut(), core::ptr::null_mut()];
    let mut status = 0;
    // SAFETY: the pointers are to locals, which live longer than the calls. The lists of arguments end with null. The
    // actions are initialised before use.
    unsafe {
        let mut actions = core::mem::zeroed();
        libc::posix_spawn_file_actions_init(&raw mut actions);
        libc::posix_spawn_file_actions_addopen(
            &raw mut actions,
            9,
            path.as_ptr(),
            libc::O_RDONLY,
            0,
        );
        let (mut number, environment) = (0, [core::ptr::null_mut()]);
        let spawned = libc::posix_spawn(
            &raw mut number,
            c"/bin/true".as_ptr(),
            &raw const actions,
            core::ptr::null(),
            arguments.as_mut_ptr(),
            environment.as_ptr(),
        );
        assert_eq!(spawned, 0);
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
        assert_eq!(libc::waitpid(number, &raw mut status, 0), number);
    }
    std::fs::remove_file(pipe()).unwrap();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_callers_of_the_start_of_a_process_are_found() {
    let found = functions_of(starts_process, SystemCall::WaitProcess);
    assert!(has_pair(&found, starts_process), "{found:x?}");
}

#[cfg(target_arch = "x86_64")]
mod vfork {
    use core::arch::global_asm;
    use core::ffi::{c_char, c_int};

    use super::*;

    // Starts a child process with `vfork`. The child only opens the file whose path is the argument, and ends. The
    // function returns the number of the child.
    global_asm!(
        ".pushsection .text",
        ".globl tllmprof_starts_by_vfork",
        ".hidden tllmprof_starts_by_vfork",
        ".type tllmprof_starts_by_vfork, @function",
        "tllmprof_starts_by_vfork:",
        ".cfi_startproc",
        "push rbx",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbx, -16",
        "mov rbx, rdi",
        "call vfork@PLT",
        "test eax, eax",
        "jnz 2f",
        "mov eax, 2",
        "mov rdi, rbx",
        "xor esi, esi",
        "syscall",
        "mov eax, 60",
        "xor edi, edi",
        "syscall",
        "2:",
        "pop rbx",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
        ".size tllmprof_starts_by_vfork, . - tllmprof_starts_by_vfork",
        ".popsection",
    );

    unsafe extern "C" {
        fn tllmprof_starts_by_vfork(path: *const c_char) -> c_int;
    }

    #[inline(never)]
    extern "C" fn starts_by_vfork() {
        let path = create_pipe();
        let mut status = 0;
        // SAFETY: the path lives longer than the calls. The child uses only its registers, and makes two system calls.
        unsafe {
            let number = tllmprof_starts_by_vfork(path.as_ptr());
            assert!(number > 0);
            assert_eq!(libc::waitpid(number, &raw mut status, 0), number);
        }
        std::fs::remove_file(pipe()).unwrap();
    }

    #[test]
    fn the_callers_of_vfork_are_found() {
        let found = functions_of(starts_by_vfork, SystemCall::WaitProcess);
        let start = tllmprof_starts_by_vfork as unsafe extern "C" fn(_) -> _ as usize;
        assert_eq!(found.get(1), Some(&start), "{found:x?}");
        assert!(has_pair(&found, starts_by_vfork), "{found:x?}");
    }
}

#[inline(never)]
extern "C" fn spins() {
    let until = Instant::now() + Duration::from_millis(20);
    while Instant::now() < until {
        core::hint::spin_loop();
    }
}

#[test]
fn copies_of_stacks_that_run_lead_to_the_threads_start() {
    // `calls` sets `NUMBER`, which other tests read, so this test must not run at the same time as those tests.
    let _alone = alone();
    let mut ring = match Ring::open(ids::thread(), 1_000_000) {
        Ok(ring) => ring,
        Err(refusal) => return skipped(&refusal.to_string()),
    };
    let (mut modules, mut unwinder) = (Modules::default(), Unwinder::default());
    modules.look();
    let (mut copies, mut whole, mut named) = (0, 0, 0);
    while copies < 50 {
        calls(spins);
        let mut has_copies = true;
        ring.each(|sample| {
            let Some((registers, stack)) = sample.copy else {
                has_copies = false;
                return;
            };
            copies += 1;
            let mut frames = Vec::new();
            whole += u32::from(unwinder.unwind_copy(&modules, registers, stack, &mut frames));
            let start = |address: &usize| unwinder.start_of(&modules, *address);
            let found: Vec<_> = frames.iter().filter_map(start).collect();
            named += u32::from(has_pair(&found, spins));
        });
        if !has_copies {
            return skipped("the kernel has no room for copies of stacks");
        }
    }
    // At least half of the samples must lie in `spins` as called by `calls`. Other samples may lie
    // in other code of this test.
    assert!(2 * named >= copies, "{named} of {copies}");
    assert!(10 * whole >= 9 * copies, "{whole} of {copies}");
}

#[cfg(target_arch = "x86_64")]
mod frame_pointers {
    use core::arch::global_asm;

    use super::*;

    // A function that uses a frame pointer while it sleeps. The unwinder does not know the frame pointer, so it must
    // search the stack for the return address. The stack also contains other words, which it must not take for the
    // return address.
    global_asm!(
        ".pushsection .text",
        ".globl tllmprof_sleeps_by_frame_pointer",
        ".hidden tllmprof_sleeps_by_frame_pointer",
        ".type tllmprof_sleeps_by_frame_pointer, @function",
        "tllmprof_sleeps_by_frame_pointer:",
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "sub rsp, 64",
        "lea rax, [rip + {other}]",
        "mov [rsp + 32], rax",
        "mov qword ptr [rsp], 0",
        "mov qword ptr [rsp + 8], 200000000",
        "mov eax, 35",
        "mov rdi, rsp",
        "xor esi, esi",
        "syscall",
        "leave",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
        ".size tllmprof_sleeps_by_frame_pointer, . - tllmprof_sleeps_by_frame_pointer",
        // A function that only jumps to the one above, as `__pread_chk` of the C library jumps to `pread`.
        ".globl tllmprof_jumps_to_sleep",
        ".hidden tllmprof_jumps_to_sleep",
        ".type tllmprof_jumps_to_sleep, @function",
        "tllmprof_jumps_to_sleep:",
        ".cfi_startproc",
        "nop",
        // The code of `jmp` with a distance of four bytes. For a near function, an assembler would use the shorter
        // `jmp` with a distance of one byte.
        ".byte 0xe9",
        ".long tllmprof_sleeps_by_frame_pointer - . - 4",
        ".cfi_endproc",
        ".size tllmprof_jumps_to_sleep, . - tllmprof_jumps_to_sleep",
        ".popsection",
        other = sym calls,
    );

    unsafe extern "C" {
        fn tllmprof_sleeps_by_frame_pointer();
        fn tllmprof_jumps_to_sleep();
    }

    #[inline(never)]
    extern "C" fn sleeps_by_jump() {
        while !IS_OVER.load(Ordering::Relaxed) {
            // SAFETY: the function only sleeps, and preserves the registers that the ABI requires.
            unsafe { tllmprof_jumps_to_sleep() };
        }
    }

    #[inline(never)]
    extern "C" fn sleeps_deeper() {
        while !IS_OVER.load(Ordering::Relaxed) {
            // SAFETY: the function only sleeps, and preserves the registers that the ABI requires.
            unsafe { tllmprof_sleeps_by_frame_pointer() };
        }
    }

    #[test]
    fn a_frame_is_found_if_a_jump_led_to_the_function() {
        let found = functions_of(sleeps_by_jump, SystemCall::Nanosleep);
        assert!(has_pair(&found, sleeps_by_jump), "{found:x?}");
    }

    #[test]
    fn a_frame_is_found_by_its_return_address() {
        let found = functions_of(sleeps_deeper, SystemCall::Nanosleep);
        let innermost = tllmprof_sleeps_by_frame_pointer as unsafe extern "C" fn() as usize;
        assert_eq!(found.first(), Some(&innermost), "{found:x?}");
        assert!(has_pair(&found, sleeps_deeper), "{found:x?}");
    }
}
