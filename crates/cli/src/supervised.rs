//! Runs the program as a child that behaves as if it had replaced this process. The program uses the terminal, and
//! receives the signals that are sent to this process. The program and this process stop and continue together, and
//! this process ends in the same way as the program.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr;

use crate::inherited::{self, Heir};
use crate::witness::Witness;

/// A guard that blocks all signals while it exists. Signals that arrive while it exists are delivered after it is
/// dropped.
pub(crate) struct HeldSignals {
    /// The signals that were blocked before this guard was created.
    before: libc::sigset_t,
}

impl HeldSignals {
    pub(crate) fn now() -> Self {
        // SAFETY: all zeros are a signal set; the calls only write to the two local variables.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: `before` is a complete mask, which `now` got from the kernel; the old mask is not requested.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}

/// Runs the program until it ends, as a child that behaves as if it had replaced this process. Calls `meanwhile` once
/// the program has started.
///
/// # Errors
/// The program cannot be started.
pub(crate) fn run(
    held: &HeldSignals,
    command: &mut Command,
    meanwhile: impl FnOnce(),
) -> io::Result<ExitStatus> {
    start(held, command, || {
        inherited::release();
        meanwhile();
    })
}

/// Same as [`run`], but this process keeps its standard input and output open, because it uses them itself.
///
/// # Errors
/// The program cannot be started.
pub(crate) fn run_while(held: &HeldSignals, command: &mut Command) -> io::Result<ExitStatus> {
    start(held, command, || ())
}

fn start(
    _held: &HeldSignals,
    command: &mut Command,
    meanwhile: impl FnOnce(),
) -> io::Result<ExitStatus> {
    // The witness, a helper process in the program's process group, starts before the program. The kernel delivers a
    // signal for a process group to the group's youngest process first. So when the witness has received such a
    // signal, the program has received it, too.
    let witness = Witness::start();
    if let Some(witness) = &witness {
        witness.watch(command);
    }
    // `hand_on` comes last, because it adds a `pre_exec` closure that executes the program itself. Closures that are
    // added later would never run.
    inherited::hand_on(command, Heir::Child)?;
    let child = command.spawn()?;
    inherited::stop_timers();
    let number = child.id().cast_signed();
    if let Some(witness) = &witness {
        witness.leave_to_command();
    }
    meanwhile();
    let status = Job { number, witness }.wait();
    // Signals that are still pending arrived while the program ran, and were meant for the program. They are discarded.
    while take(None).is_some() {}
    Ok(status)
}

/// The running program, and its witness: a helper process in the same process group.
struct Job {
    number: libc::pid_t,
    witness: Option<Witness>,
}

impl Job {
    fn wait(&self) -> ExitStatus {
        loop {
            if let Some(status) = self.reap() {
                return status;
            }
            // SAFETY: the set is initialised, and the signals in it are blocked.
            let (signal, info) = unsafe {
                let (mut all, mut info) =
                    (std::mem::zeroed(), std::mem::zeroed::<libc::siginfo_t>());
                libc::sigfillset(&raw mut all);
                (libc::sigwaitinfo(&raw const all, &raw mut info), info)
            };
            if self.stop_together(false) {
                // This process was stopped by SIGSTOP, and its helper process, the witness, stopped the program as
                // well. Now another process has continued this process, so the program is continued too.
                send(self.number, libc::SIGCONT);
            }
            // The kernel sends SIGCHLD for children of this process. A SIGCHLD from another process is meant for the
            // program.
            if signal > 0 && (signal != libc::SIGCHLD || info.si_code <= 0) {
                self.pass_on(signal, &info);
            }
        }
    }

    /// Stores, for the witness (a helper process), that this process is about to stop together with the program
    /// (`true`), or that it continues (`false`). Returns the previous value.
    fn stop_together(&self, stops: bool) -> bool {
        let witness = self.witness.as_ref();
        witness.is_some_and(|witness| witness.stop_together(stops))
    }

    /// Passes a signal on to the program, unless the program has received the signal directly.
    fn pass_on(&self, signal: libc::c_int, info: &libc::siginfo_t) {
        // SAFETY: the kernel fills the sender's field for every signal that a process sends; for other signals the
        // field is zero.
        let sender = unsafe { info.si_pid() };
        let witness = self.witness.as_ref();
        let has_witness = witness.and_then(|witness| witness.has_got(signal, sender));
        // If the witness does not answer, only a signal from the kernel, such as SIGINT for ^C on the terminal, is
        // assumed to have been sent to the whole process group.
        let has_group = has_witness.unwrap_or(info.si_code == libc::SI_KERNEL);
        // If the program had replaced this process, the program would have received a signal that was sent to this
        // process's group. A program that has left the group does not receive such a signal, so this process passes the
        // signal on.
        // SAFETY: the call takes no pointers; the child has not been waited for.
        let is_in_group = unsafe { libc::getpgid(self.number) == libc::getpgrp() };
        if has_group && is_in_group {
            return;
        }
        if info.si_code < 0 && info.si_code != libc::SI_TKILL {
            // The signal keeps the value that the sender gave it.
            // SAFETY: the kernel reads the information, which it filled in itself; the child has not been waited for.
            let sent = unsafe {
                libc::syscall(
                    libc::SYS_rt_sigqueueinfo,
                    self.number,
                    signal,
                    ptr::from_ref(info),
                )
            };
            if sent == 0 {
                return;
            }
        }
        send(self.number, signal);
    }

    /// Returns the program's status if the program has ended. If the program was stopped, this process stops as well,
    /// until both continue. Also reaps orphans that became children of this process, because the first process of a
    /// container has to do so.
    ///
    /// When a shell or another process continues this process, it usually continues the program too, and may stop both
    /// again at once. So if the program was already continued, this process does not continue it a second time: the
    /// second SIGCONT would undo the new stop.
    fn reap(&self) -> Option<ExitStatus> {
        const CHANGES: libc::c_int = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
        let mut is_stopped = false;
        loop {
            let mut status = 0;
            // SAFETY: the call writes only to the local variable `status`.
            let changed = unsafe { libc::waitpid(-1, &raw mut status, CHANGES) };
            if changed <= 0 {
                if is_stopped {
                    send(self.number, libc::SIGCONT);
                }
                return None;
            }
            if changed != self.number {
                continue;
            }
            is_stopped = libc::WIFSTOPPED(status);
            if is_stopped && is_waiting(libc::SIGCONT) {
                // A sender stopped both this process and the program, and has already continued this process. The
                // program is continued once `waitpid` reports no further change, because `is_stopped` is true.
                forget(libc::SIGCONT);
            } else if is_stopped {
                let signal = libc::WSTOPSIG(status);
                if let Some(witness) = self.witness.as_ref().filter(|_| signal != libc::SIGSTOP) {
                    // Two copies of the signal exist: one is pending for this process, the other for the witness.
                    // `stop_by` (below) consumes the first copy. `has_got` removes the second one.
                    witness.has_got(signal, 0);
                }
                self.stop_together(true);
                stop_by(signal);
                self.stop_together(false);
                forget(libc::SIGCONT);
            } else if !libc::WIFCONTINUED(status) {
                return Some(ExitStatus::from_raw(status));
            }
        }
    }
}

/// Stops this process with the signal that stopped the program. If this process does not stop by that signal, stops it
/// with SIGSTOP.
fn stop_by(signal: libc::c_int) {
    forget(libc::SIGCONT);
    // SAFETY: no handler runs, and this function continues here after SIGCONT; the set is initialised.
    unsafe {
        let mut one = std::mem::zeroed();
        libc::sigemptyset(&raw mut one);
        libc::sigaddset(&raw mut one, signal);
        if signal != libc::SIGSTOP {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const one, ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const one, ptr::null_mut());
            // The kernel does not stop a process by SIGTSTP, SIGTTIN or SIGTTOU if the process is in an orphaned group,
            // because no shell could continue it. A pending SIGCONT shows that `signal` did stop this process, and that
            // another process has continued it.
            if is_waiting(libc::SIGCONT) {
                return;
            }
        }
        libc::raise(libc::SIGSTOP);
    }
}

/// Returns true if the signal is pending for this process.
fn is_waiting(signal: libc::c_int) -> bool {
    // SAFETY: all zeros are a signal set, which the first call fills.
    unsafe {
        let mut waiting = std::mem::zeroed();
        libc::sigpending(&raw mut waiting);
        libc::sigismember(&raw const waiting, signal) == 1
    }
}

/// Discards a pending signal, so that the signal is not passed on to the program.
fn forget(signal: libc::c_int) {
    take(Some(signal));
}

/// Removes and returns a pending signal: the given one, or any if `signal` is `None`.
fn take(signal: Option<libc::c_int>) -> Option<libc::c_int> {
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the set is initialised before it is used, and its signals are blocked.
    let taken = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        match signal {
            Some(signal) => libc::sigaddset(&raw mut set, signal),
            None => libc::sigfillset(&raw mut set),
        };
        libc::sigtimedwait(&raw const set, ptr::null_mut(), &raw const now)
    };
    (taken > 0).then_some(taken)
}

fn send(number: libc::pid_t, signal: libc::c_int) {
    // SAFETY: the child has not been waited for, so no other process can have its process id.
    unsafe { libc::kill(number, signal) };
}

/// Ends this process by the signal that ended the program. Returns only if the signal does not end this process.
pub(crate) fn end_by(signal: i32) {
    // The program has left its core file, if any. PR_SET_DUMPABLE keeps this process from leaving a second core file,
    // or from sending one to a crash reporter.
    // SAFETY: the set is initialised before it is used, and this process has no work left that its end would interrupt.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::signal(signal, libc::SIG_DFL);
        let mut one = std::mem::zeroed();
        libc::sigemptyset(&raw mut one);
        libc::sigaddset(&raw mut one, signal);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const one, ptr::null_mut());
    }
}
