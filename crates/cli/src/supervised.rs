//! The program as a child of ours, that looks as if it had our place: it has the terminal, gets the
//! signals that are sent to us, stops and goes on with us, and we end as it does.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::ptr;

use crate::inherited::{self, Heir};
use crate::witness::Witness;

/// Every signal blocked, as long as this lasts: what comes meanwhile comes afterwards.
pub struct Held {
    /// What was blocked before.
    before: libc::sigset_t,
}

impl Held {
    pub fn now() -> Self {
        // SAFETY: all zeros are a signal set; the calls write to the two locals alone.
        unsafe {
            let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the mask is a whole one, which `now` got from the kernel, and no old one is asked for.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}

/// Runs the program to its end, as a child in this process's place.
///
/// # Errors
/// Where it cannot be started.
pub fn run(held: &Held, command: &mut Command) -> io::Result<ExitStatus> {
    start(held, command, inherited::release)
}

/// The same where this process has something of its own to do with its standard input and output.
///
/// # Errors
/// Where it cannot be started.
pub fn run_while(held: &Held, command: &mut Command) -> io::Result<ExitStatus> {
    start(held, command, || ())
}

fn start(_held: &Held, command: &mut Command, meanwhile: fn()) -> io::Result<ExitStatus> {
    inherited::hand_on(command, Heir::Child)?;
    // Before the program: it is to get what is sent to the group no later than this one does.
    let witness = Witness::start();
    let child = command.spawn()?;
    inherited::stop_timers();
    let number = child.id().cast_signed();
    if let Some(witness) = &witness {
        witness.watch(number);
    }
    meanwhile();
    let status = Job { number, witness }.wait();
    // What came while the program ran was for the program.
    while take(None).is_some() {}
    Ok(status)
}

/// The program, and who sees what it gets.
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
                // We were stopped by SIGSTOP, and the witness has stopped the program, too. Somebody has sent us on.
                send(self.number, libc::SIGCONT);
            }
            // The kernel sends SIGCHLD of our children; that of others is the program's.
            if signal > 0 && (signal != libc::SIGCHLD || info.si_code <= 0) {
                self.pass_on(signal, &info);
            }
        }
    }

    /// Notes for the witness that we are about to stop as the program did, or that we go on. Whether that was noted already.
    fn stop_together(&self, stops: bool) -> bool {
        let witness = self.witness.as_ref();
        witness.is_some_and(|witness| witness.stop_together(stops))
    }

    /// Sends the program what came here, unless it has got that itself.
    fn pass_on(&self, signal: libc::c_int, info: &libc::siginfo_t) {
        // SAFETY: the field is filled for every signal that a process sends, and zero for others.
        let sender = unsafe { info.si_pid() };
        let witness = self.witness.as_ref();
        let has_witness = witness.and_then(|witness| witness.has_got(signal, sender));
        // Without a witness: what the terminal sends goes to the group.
        let has_group = has_witness.unwrap_or(info.si_code == libc::SI_KERNEL);
        // A program that has left the group would still be in it if it had been started in our place.
        // SAFETY: takes no pointers; the child has not been waited for.
        let is_in_group = unsafe { libc::getpgid(self.number) == libc::getpgrp() };
        if has_group && is_in_group {
            return;
        }
        if info.si_code < 0 && info.si_code != libc::SI_TKILL {
            // With the value that the sender gave it.
            // SAFETY: the kernel reads the information, which it filled itself; the child has not been waited for.
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

    /// The program's end, if it has ended. If it has been stopped, so are we, until both go on. Orphans that the kernel has made
    /// our children end here, too: as the first process of a container we are the one that has to see to them.
    ///
    /// Who sends us on mostly sends the whole job on, and may stop it again at once: the program is not
    /// sent on a second time, as that would undo the stop.
    fn reap(&self) -> Option<ExitStatus> {
        const CHANGES: libc::c_int = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
        let mut is_stopped = false;
        loop {
            let mut status = 0;
            // SAFETY: writes the local.
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
                // Stopped together by somebody who has sent only us on.
                forget(libc::SIGCONT);
            } else if is_stopped {
                let signal = libc::WSTOPSIG(status);
                if let Some(witness) = self.witness.as_ref().filter(|_| signal != libc::SIGSTOP) {
                    // Ours is used up by the stop, and so is its.
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

/// Stops this process, by the signal that stopped the program if that one does.
fn stop_by(signal: libc::c_int) {
    forget(libc::SIGCONT);
    // SAFETY: no handler runs, and this function goes on where it was after SIGCONT; the set is initialised.
    unsafe {
        let mut one = std::mem::zeroed();
        libc::sigemptyset(&raw mut one);
        libc::sigaddset(&raw mut one, signal);
        if signal != libc::SIGSTOP {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const one, ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const one, ptr::null_mut());
            // It stops nobody in a group without a shell to continue it. Who was stopped was continued.
            if is_waiting(libc::SIGCONT) {
                return;
            }
        }
        libc::raise(libc::SIGSTOP);
    }
}

/// Whether a signal was sent to us, and not taken off.
fn is_waiting(signal: libc::c_int) -> bool {
    // SAFETY: all zeros are a signal set, which the first call fills.
    unsafe {
        let mut waiting = std::mem::zeroed();
        libc::sigpending(&raw mut waiting);
        libc::sigismember(&raw const waiting, signal) == 1
    }
}

/// Takes off a signal that was sent to us, so that it is not sent on.
fn forget(signal: libc::c_int) {
    take(Some(signal));
}

/// Takes off a signal that waits: this one, or any.
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
    // SAFETY: the child has not been waited for, so the number is its own.
    unsafe { libc::kill(number, signal) };
}

/// Ends by the signal that the program ended by; returns where that does not end us.
pub fn end_by(signal: i32) {
    // SAFETY: the program has left a core file if there was to be one, and this process leaves none, nor a report to who is
    // piped core files. Nothing of ours has to be done any more.
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
