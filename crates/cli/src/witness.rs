//! The witness: a small process in the program's process group. It receives the signals that are sent to the whole
//! group, so it knows which signals the program has already received. It also stops and continues the program and the
//! command (`tllmprof run`) together in cases where the command cannot.
//!
//! The kernel does not report whether a signal was sent to one process or to its group. But the kernel delivers a
//! group's signal to the youngest process first. So when the command receives a signal that was sent to the group, the
//! witness already has this signal. And only another process can see that the command was stopped by SIGSTOP, or that
//! the program runs while the command is stopped.

use std::cell::Cell;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use crate::inherited;
use crate::process_status::ProcessStatus;

/// The name of the witness, a helper process of the command. It differs from the command's name, so that `pkill
/// tllmprof` does not match the witness.
const NAME: &std::ffi::CStr = c"run-witness";
/// Time that the witness waits for its copy of a signal that the command has received. Some senders, such as a
/// service manager that stops a control group, send the signal to each process in turn.
const ONE_BY_ONE: Duration = Duration::from_millis(20);
/// Time that the command waits for an answer of the witness, its helper process.
const ANSWER: Duration = Duration::from_secs(1);
/// Time between two checks of whether the command was stopped, in milliseconds, while the command runs.
const CHECK_INTERVAL_MS: libc::c_int = 500;
/// Time between two checks of whether the command is still stopped, in milliseconds.
const CHECK_INTERVAL_STOPPED_MS: libc::c_int = 20;
/// Number of checks after which a program that was sent SIGSTOP must have stopped, even on a machine under load.
const CHECKS_TO_STOP: u32 = 100;

/// Memory that three processes share: the command, the witness (its helper process), and until its exec the child
/// that becomes the program.
struct SharedPages {
    program: AtomicI32,
    /// True once the command itself watches whether the program stops and continues. Before that, only the witness
    /// watches.
    is_attended: AtomicBool,
    /// True while the command and the program are stopped together. If one of the two continues, the other one is
    /// continued as well.
    stopped_together: AtomicBool,
}

/// The witness, a helper process in the program's process group, as the command sees it. Dropping this value ends the
/// process.
pub(crate) struct Witness {
    number: libc::pid_t,
    asked: UnixStream,
    /// False after the witness failed to answer, because it was stopped or killed. After that, the command sends it
    /// no more questions.
    answers: Cell<bool>,
    shared: &'static SharedPages,
}

/// A signal that the command received, and the process that sent the signal, encoded as one number.
type Signal = [u8; 8];

fn signal(number: i32, sender: libc::pid_t) -> Signal {
    (u64::from(number.cast_unsigned()) << 32 | u64::from(sender.cast_unsigned())).to_ne_bytes()
}

impl Witness {
    /// Starts the witness. Returns `None` if no process can be created. The calling process must have a single thread.
    /// It must have blocked all signals, because the witness inherits the mask and takes pending signals one by one.
    pub(crate) fn start() -> Option<Self> {
        let (asked, asks) = UnixStream::pair().ok()?;
        asked.set_read_timeout(Some(ANSWER)).ok()?;
        let shared = share()?;
        let command = std::process::id().cast_signed();
        // SAFETY: the process has one thread, so no other thread can leave anything half done in the child.
        match unsafe { libc::fork() } {
            -1 => None,
            0 => {
                drop(asked);
                attend(&asks, shared, command);
                // SAFETY: this ends the process without running any of the command's clean-up.
                unsafe { libc::_exit(0) }
            }
            number => {
                // The witness writes its first byte once it has changed its process name, which was the command's name
                // at first. This call waits for that byte.
                let answers = (&asked).read_exact(&mut [0]).is_ok();
                Some(Self {
                    number,
                    asked,
                    answers: Cell::new(answers),
                    shared,
                })
            }
        }
    }

    /// Makes the child that becomes `program` store its process id for the witness before the exec. Storing it after
    /// the exec would be too late: a process that reads the program's first output may stop the command at once.
    pub(crate) fn watch(&self, program: &mut Command) {
        let shared = self.shared;
        // SAFETY: the closure only reads the child's process id and stores it in memory that the processes share.
        unsafe {
            program.pre_exec(move || {
                shared.program.store(libc::getpid(), Ordering::Release);
                Ok(())
            });
        }
    }

    /// Stores for the witness that the program has started, and that from now on the command itself watches when the
    /// program stops and continues.
    pub(crate) fn leave_to_command(&self) {
        self.shared.is_attended.store(true, Ordering::Release);
    }

    /// Returns true if the witness also received a signal that this process received. The signal was then sent to the
    /// whole process group. Returns `None` if the witness does not answer.
    pub(crate) fn has_got(&self, number: i32, sender: libc::pid_t) -> Option<bool> {
        let mut asked = &self.asked;
        let mut answer = [0];
        let answered = self.answers.get()
            && asked.write_all(&signal(number, sender)).is_ok()
            && asked.read_exact(&mut answer).is_ok();
        self.answers.set(answered);
        answered.then_some(answer[0] != 0)
    }

    /// Stores that the command is about to stop together with the program (`true`), or that it continues (`false`).
    /// Returns the previous value.
    pub(crate) fn stop_together(&self, stops: bool) -> bool {
        self.shared.stopped_together.swap(stops, Ordering::AcqRel)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        // SAFETY: a child that has not been waited for still has its process id; if it has been waited for, the first
        // `waitpid` call fails.
        unsafe {
            if libc::waitpid(self.number, ptr::null_mut(), libc::WNOHANG) == 0 {
                libc::kill(self.number, libc::SIGKILL);
                libc::waitpid(self.number, ptr::null_mut(), 0);
            }
        }
    }
}

/// Returns new memory that this process shares with the child processes that it forks later. `None` if no memory can be
/// mapped.
fn share() -> Option<&'static SharedPages> {
    // SAFETY: this is a new mapping of zeros, which are valid values of these atomics; it is never unmapped.
    unsafe {
        let place = libc::mmap(
            ptr::null_mut(),
            size_of::<SharedPages>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        (place != libc::MAP_FAILED).then(|| &*place.cast::<SharedPages>())
    }
}

/// The main loop of the witness process. Usually it does not return, because the kernel kills the witness when the
/// command ends (`PR_SET_PDEATHSIG`). It returns if the command had ended before the witness requested this, or if a
/// message to or from the command fails.
fn attend(asks: &UnixStream, shared: &SharedPages, command: libc::pid_t) {
    // SAFETY: the calls read only the name. `PR_SET_PDEATHSIG` has no effect if the command ended before the call, so
    // this process then returns at once.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        if libc::getppid() != command {
            return;
        }
    }
    forget_arguments();
    if (&*asks).write_all(&[0]).is_err() {
        return;
    }
    for descriptor in inherited::open_descriptors() {
        if descriptor != asks.as_raw_fd() {
            // SAFETY: this process does not use the descriptor that is closed.
            unsafe { libc::close(descriptor) };
        }
    }
    let mut wait = 1;
    let mut pause = CHECK_INTERVAL_MS;
    loop {
        let mut ready = libc::pollfd {
            fd: asks.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the list that `poll` reads has one entry, which is a local variable.
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
        if !is_stopped
            && !shared.is_attended.load(Ordering::Acquire)
            && shared.stopped_together.swap(false, Ordering::AcqRel)
        {
            // The command was stopped while it was starting the program, and has been continued since. So the program
            // is continued too.
            send(program, libc::SIGCONT);
        }
        let is_apart = is_stopped && runs(program);
        // The witness acts only after two checks in a row. A sender that continues both the command and the program
        // does so one after the other, so the first check may see only one of them running.
        wait = match (is_apart, wait) {
            (false, _) => 1,
            (true, 0) => join(shared, command, program),
            (true, looks) => looks - 1,
        };
        pause = if is_stopped {
            CHECK_INTERVAL_STOPPED_MS
        } else {
            CHECK_INTERVAL_MS
        };
    }
}

/// Called when the command is stopped but the program runs. If both were stopped together before, continues the
/// command, because another process has continued the program; otherwise stops the program. Returns the number of
/// further checks after which both should be in the same state.
fn join(shared: &SharedPages, command: libc::pid_t, program: libc::pid_t) -> u32 {
    if shared.stopped_together.swap(true, Ordering::AcqRel) {
        send(command, libc::SIGCONT);
        return 1;
    }
    send(program, libc::SIGSTOP);
    if state(command) != Some('T') {
        send(program, libc::SIGCONT);
    }
    CHECKS_TO_STOP
}

fn send(number: libc::pid_t, signal: libc::c_int) {
    // SAFETY: the call takes no pointers.
    unsafe { libc::kill(number, signal) };
}

/// Returns true if a process is running: not stopped, with no pending SIGSTOP, and not ended.
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

/// Removes a signal that is pending for the witness. Waits up to [`ONE_BY_ONE`] for some signals. Returns true if the
/// signal was pending, or arrived during this time, and came from `sender`.
fn take(signal: i32, sender: libc::pid_t) -> bool {
    let patience = match signal {
        // A service manager stops all processes of a unit one after the other, so the witness's copy of one of these
        // signals may arrive a little later.
        libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT => ONE_BY_ONE,
        _ => Duration::ZERO,
    };
    let patience = libc::timespec {
        tv_sec: 0,
        tv_nsec: libc::c_long::from(patience.subsec_nanos() as i32),
    };
    // SAFETY: the set is initialised before it is used, and all signals are blocked; the kernel fills the sender's
    // field for every signal that a process sends.
    unsafe {
        let (mut set, mut info) = (std::mem::zeroed(), std::mem::zeroed::<libc::siginfo_t>());
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        let taken = libc::sigtimedwait(&raw const set, &raw mut info, &raw const patience);
        taken == signal && info.si_pid() == sender
    }
}

/// Returns the letter with which `/proc` shows the state of a process, such as `T` for a stopped one.
fn state(process: libc::pid_t) -> Option<char> {
    ProcessStatus::read(u64::try_from(process).ok()?)?.state()
}

/// Overwrites this process's command line in `/proc` with zeros, so that a search by command line (`pkill -f`) does not
/// find this process.
pub(crate) fn forget_arguments() {
    let place = || {
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        // `arg_start` and `arg_end` are fields 48 and 49 of the file. The second field, the name, may contain spaces,
        // so the fields are counted from the parenthesis that ends the name.
        let mut fields = text.rsplit_once(") ")?.1.split(' ').skip(48 - 3);
        let (start, end): (usize, usize) =
            (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (start > 0).then_some((start, end.checked_sub(start)?))
    };
    if let Some((start, length)) = place() {
        // SAFETY: the kernel reports that this process's arguments are at this place on its stack; this process no
        // longer reads its arguments.
        unsafe { ptr::write_bytes(ptr::with_exposed_provenance_mut::<u8>(start), 0, length) };
    }
}
