//! The program as a child of ours, that looks as if it had our place: it has the terminal, gets the
//! signals that are sent to us, stops and goes on with us, and we end as it does.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use crate::inherited;

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

/// Runs the program to its end.
///
/// # Errors
/// Where it cannot be started.
pub fn run(command: &mut Command) -> io::Result<ExitStatus> {
    run_while(&Held::now(), command)
}

/// As [`run`], with signals blocked already.
///
/// # Errors
/// Where it cannot be started.
pub fn run_while(held: &Held, command: &mut Command) -> io::Result<ExitStatus> {
    inherited::hand_on(command);
    let before = held.before;
    // SAFETY: both may be called between fork and exec; the mask is a copy.
    unsafe {
        command.pre_exec(move || {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
            // Whoever kills us means the program.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command.spawn().map(|child| wait(&child))
}

fn wait(child: &Child) -> ExitStatus {
    let number = child.id().cast_signed();
    loop {
        if let Some(status) = look(number) {
            return status;
        }
        // SAFETY: the set is initialised, and the signals in it are blocked.
        let (signal, info) = unsafe {
            let (mut all, mut info) = (std::mem::zeroed(), std::mem::zeroed::<libc::siginfo_t>());
            libc::sigfillset(&raw mut all);
            (libc::sigwaitinfo(&raw const all, &raw mut info), info)
        };
        // SAFETY: the field is filled for every signal that a process sends.
        let is_childs = info.si_code <= 0 && unsafe { info.si_pid() } == number;
        // What the terminal sends, the program has got itself.
        if signal > 0 && signal != libc::SIGCHLD && info.si_code != libc::SI_KERNEL && !is_childs {
            send(number, signal);
        }
    }
}

/// The program's end, if it has ended. If it has been stopped, so are we, until both go on.
///
/// Who sends us on mostly sends the whole job on, and may stop it again at once: the program is not
/// sent on a second time, as that would undo the stop.
fn look(number: libc::pid_t) -> Option<ExitStatus> {
    const CHANGES: libc::c_int = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
    let mut is_stopped = false;
    loop {
        let mut status = 0;
        // SAFETY: a child that has not been waited for to its end.
        if unsafe { libc::waitpid(number, &raw mut status, CHANGES) } != number {
            if is_stopped {
                send(number, libc::SIGCONT);
            }
            return None;
        }
        is_stopped = libc::WIFSTOPPED(status);
        if is_stopped {
            // SAFETY: SIGSTOP runs no handler, and this function goes on where it was after SIGCONT.
            unsafe { libc::raise(libc::SIGSTOP) };
            forget(libc::SIGCONT);
        } else if !libc::WIFCONTINUED(status) {
            return Some(ExitStatus::from_raw(status));
        }
    }
}

/// Takes off a signal that was sent to us, so that it is not sent on.
fn forget(signal: libc::c_int) {
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the set is initialised before it is used, and the signal is blocked.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now);
    }
}

fn send(number: libc::pid_t, signal: libc::c_int) {
    // SAFETY: the child has not been waited for, so the number is its own.
    unsafe { libc::kill(number, signal) };
}

/// Ends by the signal that the program ended by; returns where that does not end us.
pub fn end_by(signal: i32) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the program has left a core file if there was to be one. Nothing of ours has to be
    // done any more.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
