//! A process beside the program that gets what is sent to the whole group, and so knows what the program has got already;
//! and that stops and continues the program and this command together where nobody else can.
//!
//! The kernel does not say whether a signal was sent to one process or to its group. It delivers to a group the youngest
//! process first: when the command gets a signal, the witness has it as well if it was sent to all. That the command was stopped by
//! SIGSTOP, or that the program continues while the command is stopped, is seen from outside only.

use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use crate::inherited;

/// Not the command's name: who sends signals by name (`pkill tllmprof`) does not mean this one.
const NAME: &std::ffi::CStr = c"run-witness";
/// How long a witness waits for a signal that goes to one process after the other, as to those of a control group.
const ONE_BY_ONE: Duration = Duration::from_millis(20);
/// How long the command waits for the witness's answer.
const ANSWER: Duration = Duration::from_secs(1);
/// Milliseconds between two looks at whether the command was stopped, and while it is.
const LOOK: libc::c_int = 500;
const LOOK_STOPPED: libc::c_int = 20;
/// Looks until a program that was sent SIGSTOP must have stopped, also on a machine under load.
const LOOKS_TO_STOP: u32 = 100;

/// What both processes see.
struct Shared {
    program: AtomicI32,
    /// Command and program stop together: the one that continues first brings the other along.
    stopped_together: AtomicBool,
}

/// The witness, which ends with this.
pub struct Witness {
    number: libc::pid_t,
    asked: UnixStream,
    /// False from when it did not, as somebody has stopped or killed it.
    answers: Cell<bool>,
    shared: &'static Shared,
}

/// A signal and its sender, as the command got it.
type Signal = [u8; 8];

fn signal(number: i32, sender: libc::pid_t) -> Signal {
    (u64::from(number.cast_unsigned()) << 32 | u64::from(sender.cast_unsigned())).to_ne_bytes()
}

impl Witness {
    /// Starts it; `None` where there is no room for another process. For a process with one thread, whose signals are blocked.
    pub fn start() -> Option<Self> {
        let (asked, asks) = UnixStream::pair().ok()?;
        asked.set_read_timeout(Some(ANSWER)).ok()?;
        let shared = share()?;
        let command = std::process::id().cast_signed();
        // SAFETY: the process has one thread, so that nothing in the child is half done.
        match unsafe { libc::fork() } {
            -1 => None,
            0 => {
                drop(asked);
                attend(&asks, shared, command);
                // SAFETY: ends this process, with nothing of the command's to be done.
                unsafe { libc::_exit(0) }
            }
            number => Some(Self {
                number,
                asked,
                answers: Cell::new(true),
                shared,
            }),
        }
    }

    /// Names the program to it.
    pub fn watch(&self, program: libc::pid_t) {
        self.shared.program.store(program, Ordering::Release);
    }

    /// Whether the witness has got a signal that came here, and so the others of the group; `None` if it does not answer.
    pub fn has_got(&self, number: i32, sender: libc::pid_t) -> Option<bool> {
        let mut asked = &self.asked;
        let mut answer = [0];
        let answered = self.answers.get()
            && asked.write_all(&signal(number, sender)).is_ok()
            && asked.read_exact(&mut answer).is_ok();
        self.answers.set(answered);
        answered.then_some(answer[0] != 0)
    }

    /// Notes that the command is about to stop as the program did, or that it goes on. Whether it was noted already.
    pub fn stop_together(&self, stops: bool) -> bool {
        self.shared.stopped_together.swap(stops, Ordering::AcqRel)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: a child that has not been waited for has its number still; if it has been, the first call fails.
        unsafe {
            if libc::waitpid(self.number, ptr::null_mut(), libc::WNOHANG) == 0 {
                libc::kill(self.number, libc::SIGKILL);
                libc::waitpid(self.number, ptr::null_mut(), 0);
            }
        }
    }
}

/// Memory that a child shares.
fn share() -> Option<&'static Shared> {
    // SAFETY: a new mapping of zeros, which are a valid value of these atomics; it is never unmapped.
    unsafe {
        let place = libc::mmap(
            ptr::null_mut(),
            size_of::<Shared>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        (place != libc::MAP_FAILED).then(|| &*place.cast::<Shared>())
    }
}

/// The witness's life: ends when the command does.
fn attend(asks: &UnixStream, shared: &Shared, command: libc::pid_t) {
    // SAFETY: takes no memory but the name. Nobody is left to kill it if the command has ended by now.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        if libc::getppid() != command {
            return;
        }
    }
    forget_arguments();
    for descriptor in inherited::open_descriptors() {
        if descriptor != asks.as_raw_fd() {
            // SAFETY: this process uses no other descriptor.
            unsafe { libc::close(descriptor) };
        }
    }
    let mut wait = 1;
    let mut pause = LOOK;
    loop {
        let mut ready = libc::pollfd {
            fd: asks.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry, which is a local.
        let count = unsafe { libc::poll(&raw mut ready, 1, pause) };
        if count > 0 {
            let mut asked = Signal::default();
            let mut stream = asks;
            if stream.read_exact(&mut asked).is_err() {
                return;
            }
            let asked = u64::from_ne_bytes(asked);
            let answer = u8::from(take((asked >> 32) as i32, asked as i32));
            if stream.write_all(&[answer]).is_err() {
                return;
            }
            continue;
        }
        let program = shared.program.load(Ordering::Acquire);
        let is_stopped = program > 0 && state(command) == Some('T');
        let is_apart = is_stopped && runs(program);
        // Not at the first look, as who sends both on does so one after the other.
        wait = match (is_apart, wait) {
            (false, _) => 1,
            (true, 0) => join(shared, command, program),
            (true, looks) => looks - 1,
        };
        pause = if is_stopped { LOOK_STOPPED } else { LOOK };
    }
}

/// Has the command and the program do the same: the command is stopped, and the program is not. Returns the number of looks
/// after which the program should have followed.
fn join(shared: &Shared, command: libc::pid_t, program: libc::pid_t) -> u32 {
    let send = |number, signal| {
        // SAFETY: takes no pointers. The command waits for the program, and cannot have done so while it is stopped.
        unsafe { libc::kill(number, signal) };
    };
    if shared.stopped_together.swap(true, Ordering::AcqRel) {
        send(command, libc::SIGCONT);
        return 1;
    }
    send(program, libc::SIGSTOP);
    if state(command) != Some('T') {
        send(program, libc::SIGCONT);
    }
    LOOKS_TO_STOP
}

/// Whether a process is neither stopped, nor about to be, nor at its end.
fn runs(process: libc::pid_t) -> bool {
    let stops = 1_u64 << (libc::SIGSTOP - 1);
    let is_waiting = || {
        let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
        let waiting = u64::from_str_radix(line.trim(), 16).ok()?;
        Some(waiting & stops != 0)
    };
    state(process).is_some_and(|state| !"TtZX".contains(state)) && is_waiting() == Some(false)
}

/// Takes a signal off, and says whether it was there, from that sender.
fn take(signal: i32, sender: libc::pid_t) -> bool {
    let patience = match signal {
        // A service manager stops all processes of a unit so.
        libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT => ONE_BY_ONE,
        _ => Duration::ZERO,
    };
    let patience = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::c_long::from(patience.subsec_nanos() as i32),
    };
    // SAFETY: the set is initialised before it is used, and all signals are blocked; the field is filled for every signal
    // that a process sends.
    unsafe {
        let (mut set, mut info) = (std::mem::zeroed(), std::mem::zeroed::<libc::siginfo_t>());
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        let taken = libc::sigtimedwait(&raw const set, &raw mut info, &raw const patience);
        taken == signal && info.si_pid() == sender
    }
}

/// The letter of a process's state.
fn state(process: libc::pid_t) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// Empties the command line that others read of this process: it is not one that somebody looks for by it.
fn forget_arguments() {
    let place = || {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        // `arg_start` and `arg_end` are fields 48 and 49; the second field ends with the parenthesis.
        let mut fields = text.rsplit_once(") ")?.1.split(' ').skip(48 - 3);
        let (start, end): (usize, usize) =
            (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (start > 0).then_some((start, end.checked_sub(start)?))
    };
    if let Some((start, length)) = place() {
        // SAFETY: the kernel's own figures for this process's arguments, on its stack; nothing here reads them any more.
        unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(start), 0, length) };
    }
}
