//! Checks whether a thread's system call filters (seccomp) could harm the thread that `attach` creates in the
//! process. The new thread inherits the filters of the thread that creates it.
//!
//! Containers usually have such filters. The filters of the common container runtimes make forbidden calls fail with
//! an error, which is harmless. But a filter can also end the process when it makes a forbidden call. So this module
//! evaluates each filter for each system call number, with all possible arguments.

use std::collections::HashSet;

use crate::traced::{Instruction, Stopped};

/// Highest system call number that is checked against the filters.
const LAST_CALL: u32 = 480;
/// Number of system call filters that are examined for a thread. A thread must have fewer filters than this.
const MAX_FILTERS: usize = 64;

/// The system calls that the library makes while it is loaded and while it starts to listen on its control socket.
const NEEDED: [libc::c_long; 15] = [
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_clone,
    libc::SYS_futex,
    libc::SYS_rt_sigprocmask,
    libc::SYS_memfd_create,
    libc::SYS_openat,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_close,
    libc::SYS_poll,
    libc::SYS_socket,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
];

/// Returns true if no system call filter of a stopped thread can end the process, and all filters permit the calls that
/// the library needs. Returns false if the filters cannot be read, or if their number is 0, [`MAX_FILTERS`] or more.
pub(crate) fn are_harmless(thread: &Stopped) -> bool {
    for index in 0..MAX_FILTERS {
        match thread.filter(index) {
            Ok(Some(filter)) if is_harmless(&filter) => {}
            Ok(None) => return index > 0,
            _ => return false,
        }
    }
    false
}

fn is_harmless(filter: &[Instruction]) -> bool {
    (0..=LAST_CALL).all(|number| {
        let is_needed = NEEDED.contains(&number.into());
        match outcomes(filter, number) {
            Some(outcomes) => !is_needed || outcomes.permits,
            None => false,
        }
    })
}

struct Outcomes {
    permits: bool,
}

/// Evaluates a filter for the system call `number` with any arguments, and returns the possible outcomes. Returns
/// `None` if the filter may end the process, or if an outcome is unknown.
fn outcomes(filter: &[Instruction], number: u32) -> Option<Outcomes> {
    const ARCHITECTURE: u32 = 0xc000_003e;
    const ERRNO: u32 = 0x0005_0000;
    const LOG: u32 = 0x7ffc_0000;
    const ALLOW: u32 = 0x7fff_0000;
    let mut outcomes = Outcomes { permits: false };
    // The instructions of the filter that are still to be evaluated. Each entry has the index of an instruction, and
    // the value of the accumulator before the instruction runs (`None` if the value is unknown).
    let mut open = vec![(0, Some(0u32))];
    let mut seen = HashSet::new();
    while let Some(state @ (at, value)) = open.pop() {
        if !seen.insert(state) {
            continue;
        }
        let Instruction {
            code,
            then,
            otherwise,
            k,
        } = *filter.get(at)?;
        let next = at + 1;
        let mut jump = |holds: Option<bool>| {
            if holds != Some(false) {
                open.push((next + usize::from(then), value));
            }
            if holds != Some(true) {
                open.push((next + usize::from(otherwise), value));
            }
        };
        match code {
            // `ld` from `struct seccomp_data`, which describes the system call: loads the number of the call, its
            // architecture, or an argument. An argument can have any value.
            0x20 => {
                let loaded = match k {
                    0 => Some(number),
                    4 => Some(ARCHITECTURE),
                    _ => None,
                };
                open.push((next, loaded));
            }
            0x00 => open.push((next, Some(k))),
            // `ld` from the filter's memory, `ld` of the length of `struct seccomp_data`, and `txa`: afterwards, the
            // accumulator may have any value.
            0x60 | 0x80 | 0x87 => open.push((next, None)),
            // `ldx`, `st`, `stx`, `tax`: they change only the index register and the filter's memory, which are not
            // tracked
            0x01 | 0x61 | 0x81 | 0x02 | 0x03 | 0x07 => open.push((next, value)),
            // `and` with a constant
            0x54 => open.push((next, value.map(|value| value & k))),
            // other arithmetic: the accumulator may have any value afterwards
            code if code & 7 == 4 => open.push((next, None)),
            // `ja`: an unconditional jump
            0x05 => open.push((next.checked_add(usize::try_from(k).ok()?)?, value)),
            // `jeq`, `jgt`, `jge`, `jset`: the next four lines compare the accumulator with a constant. The fifth line
            // compares it with the index register, whose value is unknown
            0x15 => jump(value.map(|value| value == k)),
            0x25 => jump(value.map(|value| value > k)),
            0x35 => jump(value.map(|value| value >= k)),
            0x45 => jump(value.map(|value| value & k != 0)),
            0x1d | 0x2d | 0x3d | 0x4d => jump(None),
            // `ret`: the filter's answer for the system call
            0x06 => match k & 0xffff_0000 {
                ALLOW | LOG => outcomes.permits = true,
                ERRNO => {}
                _ => return None,
            },
            _ => return None,
        }
    }
    Some(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERRNO: u32 = 0x0005_0001;
    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;

    fn instruction(code: u16, then: u8, otherwise: u8, k: u32) -> Instruction {
        Instruction {
            code,
            then,
            otherwise,
            k,
        }
    }

    /// Returns a filter like those of container runtimes. It ends a process that makes a system call of another
    /// architecture. The system call `call` gets the result `answer` if bit 0 of its first argument is set. Otherwise,
    /// and for all other calls, the result is `others`.
    fn filter(call: libc::c_long, answer: u32, others: u32) -> Vec<Instruction> {
        vec![
            instruction(0x20, 0, 0, 4),
            instruction(0x15, 1, 0, 0xc000_003e),
            instruction(0x06, 0, 0, KILL),
            instruction(0x20, 0, 0, 0),
            instruction(0x15, 1, 0, call as u32),
            instruction(0x06, 0, 0, others),
            instruction(0x20, 0, 0, 16),
            instruction(0x45, 0, 1, 1),
            instruction(0x06, 0, 0, answer),
            instruction(0x06, 0, 0, others),
        ]
    }

    #[test]
    fn a_filter_is_harmless_if_no_call_ends_the_process_by_any_argument() {
        let ptrace = libc::SYS_ptrace;
        assert!(is_harmless(&filter(ptrace, ERRNO, ALLOW)));
        assert!(!is_harmless(&filter(ptrace, KILL, ALLOW)));
        for other in [0, 0x0003_0000, 0x7fc0_0000, 0x7ff0_0000] {
            // These values are actions that end the thread, send a signal, ask a supervisor, or ask a tracer.
            assert!(!is_harmless(&filter(ptrace, other, ALLOW)), "{other:x}");
        }
    }

    #[test]
    fn what_the_library_needs_must_be_permitted() {
        assert!(!is_harmless(&filter(libc::SYS_ptrace, ALLOW, ERRNO)));
        let mut never = filter(libc::SYS_socket, ERRNO, ALLOW);
        assert!(is_harmless(&never), "by its argument");
        never[6] = instruction(0x06, 0, 0, ERRNO);
        assert!(!is_harmless(&never));
    }

    #[test]
    fn a_filter_that_cannot_be_followed_is_not_harmless() {
        let ret_a = [instruction(0x16, 0, 0, 0)];
        let beyond = [instruction(0x05, 0, 0, 7)];
        assert!(!is_harmless(&ret_a) && !is_harmless(&beyond) && !is_harmless(&[]));
        // The fourth instruction jumps depending on a computed value. So both of its branches are possible, and one of
        // them returns `end`.
        let any = |end| {
            [
                instruction(0x20, 0, 0, 0),
                instruction(0x34, 0, 0, 3),
                instruction(0x07, 0, 0, 0),
                instruction(0x1d, 0, 1, 0),
                instruction(0x06, 0, 0, end),
                instruction(0x06, 0, 0, ALLOW),
            ]
        };
        assert!(is_harmless(&any(ERRNO)) && !is_harmless(&any(KILL)));
    }
}
