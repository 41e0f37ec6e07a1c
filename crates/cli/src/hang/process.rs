//! Reads the state of a process's threads from `/proc` and from the process's memory. No thread is stopped.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tllmprof_attach::ProcessView;

use super::python::PythonState;
use super::state::{ProcessThread, RankState};
use super::symbols::Symbols;
use crate::process_status::ProcessStatus;

/// Processor time of each thread, in clock ticks, by thread id.
pub(super) type CpuTimes = BTreeMap<u32, u64>;

/// Maximum processor time, in clock ticks of usually 10 ms, that a waiting thread uses between two readings of its
/// state. A waiting thread may wake up to check a condition and sleep again.
const MAX_TICKS_ASLEEP: u64 = 1;
/// Maximum number of threads whose stacks are read to find the host function for which the GPU waits.
const MAX_THREADS_OF_DRIVER: usize = 256;
/// The `futex` operation that waits while a word of memory has a certain value.
const FUTEX_WAIT: u64 = 0;
/// The value of a glibc mutex's lock word while threads wait for the mutex.
const CONTENDED: u64 = 2;
/// Offset from a mutex's lock word to the thread id of its owner, in bytes.
const OWNER: u64 = 8;

/// Returns the state letter of a process or thread, and its processor time in clock ticks, both read from the `stat`
/// file `path`.
fn stat(path: &str) -> Option<(char, u64)> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text);
    // The name of the process ends at the last closing parenthesis, because the name itself may contain parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let words: Vec<_> = rest.split_whitespace().collect();
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    Some((words.first()?.chars().next()?, number(11)? + number(12)?))
}

/// Returns the letter with which `/proc` shows the state of a process. `None` if the process has ended, even if it is
/// still a zombie.
pub(crate) fn state(pid: u64) -> Option<char> {
    let (state, _) = stat(&format!("/proc/{pid}/stat"))?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

/// Returns the time since a process was started, in nanoseconds. It may be too long by the duration of a clock tick.
/// `None` if there is no such process.
pub(super) fn age_ns(pid: u64) -> Option<u64> {
    const START_TIME: usize = 22;
    let begun: u64 = ProcessStatus::read(pid)?.field(START_TIME)?;
    // SAFETY: the argument is a number.
    let ticks_per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let ticks_per_second = u64::try_from(ticks_per_second).ok()?;
    let tick_ns = 1_000_000_000_u64.checked_div(ticks_per_second)?;
    let now = clock_gettime(ClockId::Boottime);
    let now = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
    Some(now.saturating_sub(begun.saturating_mul(tick_ns)))
}

/// Returns the process id of the debugger or tracer that traces a process. `None` if there is none, or its id is not
/// known here.
pub(super) fn tracer(pid: u64) -> Option<u32> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let mut lines = status.lines();
    let tracer = lines.find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|tracer| *tracer != 0)
}

fn thread_numbers(pid: u64) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"));
    let entries = entries.into_iter().flatten().flatten();
    let mut numbers: Vec<_> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the processor time of each thread of a process. Threads that have ended are missing.
pub(super) fn times(pid: u64) -> CpuTimes {
    let time = |id: u32| Some((id, stat(&format!("/proc/{pid}/task/{id}/stat"))?.1));
    thread_numbers(pid).into_iter().filter_map(time).collect()
}

/// The system call in which a thread sleeps, as `/proc/PID/task/TID/syscall` shows it.
struct SystemCallState {
    number: i64,
    arguments: [u64; 6],
    stack_pointer: u64,
    instruction: u64,
}

impl SystemCallState {
    fn read(pid: u64, id: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/task/{id}/syscall")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let hexadecimal = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
        let mut rest: Vec<_> = words.filter_map(hexadecimal).collect();
        let (instruction, stack_pointer) = (rest.pop()?, rest.pop()?);
        rest.resize(6, 0);
        let arguments = rest.try_into().ok()?;
        Some(Self {
            number,
            arguments,
            stack_pointer,
            instruction,
        })
    }

    fn name(&self) -> String {
        let known = [
            (libc::SYS_futex, "futex"),
            (libc::SYS_nanosleep, "nanosleep"),
            (libc::SYS_clock_nanosleep, "clock_nanosleep"),
            (libc::SYS_ppoll, "ppoll"),
            (libc::SYS_pselect6, "pselect"),
            (libc::SYS_epoll_pwait, "epoll_wait"),
            (libc::SYS_epoll_pwait2, "epoll_wait"),
            (libc::SYS_read, "read"),
            (libc::SYS_write, "write"),
            (libc::SYS_recvfrom, "recv"),
            (libc::SYS_recvmsg, "recvmsg"),
            (libc::SYS_accept, "accept"),
            (libc::SYS_accept4, "accept"),
            (libc::SYS_wait4, "wait"),
            (libc::SYS_waitid, "waitid"),
            (libc::SYS_ioctl, "ioctl"),
            (libc::SYS_openat, "open"),
            (libc::SYS_pread64, "pread"),
            (libc::SYS_pwrite64, "pwrite"),
            (libc::SYS_readv, "readv"),
            (libc::SYS_writev, "writev"),
            (libc::SYS_flock, "flock"),
            (libc::SYS_fcntl, "fcntl"),
            (libc::SYS_fsync, "fsync"),
            (libc::SYS_fdatasync, "fdatasync"),
            (libc::SYS_connect, "connect"),
            (libc::SYS_sendto, "send"),
            (libc::SYS_rt_sigtimedwait, "sigtimedwait"),
            (libc::SYS_rt_sigsuspend, "sigsuspend"),
            (libc::SYS_sched_yield, "sched_yield"),
            (-1, "a page fault"),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_poll, "poll"),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_select, "select"),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_epoll_wait, "epoll_wait"),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_pause, "pause"),
        ];
        let name = known.iter().find(|(number, _)| *number == self.number);
        name.map_or_else(
            || format!("system call {}", self.number),
            |(_, name)| (*name).to_owned(),
        )
    }

    /// Returns the address of the mutex for which the thread may be waiting. The address is that of the futex in its
    /// system call. Returns `None` if the system call is not a wait for a mutex.
    fn mutex(&self) -> Option<u64> {
        let [address, operation, value, ..] = self.arguments;
        let is_mutex =
            self.number == libc::SYS_futex && operation & 0x7f == FUTEX_WAIT && value == CONTENDED;
        is_mutex.then_some(address)
    }
}

/// Reads in which system calls the threads of a process sleep. The keys of the result are thread ids.
///
/// A thread that waits for the GIL wakes up every 5 ms and sleeps again. On a busy machine it also waits for a
/// processor each time. While the thread is awake, its system call cannot be read. So if a thread used hardly any
/// processor time since `before`, it is read again, a few times, until it is found asleep.
fn system_calls(pid: u64, before: &CpuTimes) -> BTreeMap<u32, SystemCallState> {
    let mut calls = BTreeMap::new();
    let mut wanted = thread_numbers(pid);
    for pause_ms in [1, 2, 4, 8, 16, 0] {
        let read = |id: &u32| Some((*id, SystemCallState::read(pid, *id)?));
        calls.extend(wanted.iter().filter_map(read));
        let now = times(pid);
        wanted.retain(|id| {
            let times = before.get(id).zip(now.get(id));
            !calls.contains_key(id)
                && times.is_some_and(|(then, now)| now.saturating_sub(*then) <= MAX_TICKS_ASLEEP)
        });
        if wanted.is_empty() {
            break;
        }
        sleep(Duration::from_millis(pause_ms));
    }
    calls
}

/// Reads the threads of a process into `rank`, and the stacks of its main thread and of the threads for which the main
/// thread waits. Also reads the stacks of the CUDA driver's threads if the main thread waits for the GPU or may do so
/// in a loop, that is, if it is not known to sleep in a system call. `before` is the processor time of each thread when
/// the process was first read. If the process's memory cannot be read, returns the reason.
pub(crate) fn look(
    pid: u64,
    before: &CpuTimes,
    symbols: &Symbols,
    rank: &mut RankState,
) -> Result<(), String> {
    let folder = |id: u32| format!("/proc/{pid}/task/{id}");
    let calls = system_calls(pid, before);
    rank.threads = thread_numbers(pid)
        .into_iter()
        .filter_map(|id| {
            let (state, time) = stat(&format!("{}/stat", folder(id)))?;
            let name = fs::read_to_string(format!("{}/comm", folder(id))).unwrap_or_default();
            Some(ProcessThread {
                id,
                name: name.trim_end().to_owned(),
                state,
                ran: before.get(&id).is_some_and(|before| *before != time),
                call: calls.get(&id).map(SystemCallState::name),
                ..ProcessThread::default()
            })
        })
        .collect();
    let view = i32::try_from(pid).map_err(|_| String::new())?;
    let view = ProcessView::open(view).map_err(|error| error.to_string())?;
    let python = PythonState::find(&view);
    let gil = python.as_ref().and_then(PythonState::gil);
    rank.gil_holder = gil
        .as_ref()
        .map(|gil| gil.holder)
        .filter(|id| rank.thread(*id).is_some());
    let numbers: Vec<_> = rank.threads.iter().map(|thread| thread.id).collect();
    for thread in &mut rank.threads {
        let Some(call) = calls.get(&thread.id) else {
            continue;
        };
        let word = |address: u64| {
            let mut bytes = [0; 4];
            view.read(address, &mut bytes)
                .then(|| u32::from_le_bytes(bytes))
        };
        let owner = call
            .mutex()
            .filter(|mutex| word(*mutex) == Some(CONTENDED as u32));
        let owner = owner.and_then(|mutex| word(mutex + OWNER));
        thread.mutex_owner = owner.filter(|owner| numbers.contains(owner));
        let waits_at = |gil: &super::python::Gil| {
            call.number == libc::SYS_futex && gil.range.contains(&call.arguments[0])
        };
        thread.waits_for_gil = gil.as_ref().is_some_and(waits_at);
    }
    read_stacks(pid, &view, python.as_ref(), &calls, symbols, rank);
    if rank
        .main_thread()
        .is_some_and(|thread| thread.gpu_wait().is_some() || thread.call.is_none())
    {
        read_stacks_of_drivers_threads(pid, &view, python.as_ref(), &calls, symbols, rank);
    }
    Ok(())
}

/// Reads the stacks of the threads that the CUDA driver has started. These threads run the host functions of streams
/// and graphs, for which the GPU waits. A thread of the driver is recognized by the modules of the functions on its
/// stack. So the native stacks of all sleeping threads are read, up to a limit. The newest threads, which usually have
/// the highest ids, are read first: the driver may start such a thread as late as when the program enqueues a host
/// function. Python functions are read only for threads that run a host function.
fn read_stacks_of_drivers_threads(
    pid: u64,
    view: &ProcessView,
    python: Option<&PythonState<'_>>,
    calls: &BTreeMap<u32, SystemCallState>,
    symbols: &Symbols,
    rank: &mut RankState,
) {
    let unread = rank
        .threads
        .iter_mut()
        .rev()
        .filter(|thread| thread.native.is_empty());
    for thread in unread.take(MAX_THREADS_OF_DRIVER) {
        if let Some(call) = calls.get(&thread.id) {
            let frames = view.frames(call.stack_pointer, call.instruction);
            if frames
                .iter()
                .any(|frame| frame.path.contains("/libcuda.so"))
            {
                thread.native = symbols.names(pid, &frames);
            }
            if let Some(python) = python.filter(|_| thread.host_function().is_some()) {
                thread.python = python.stack(thread.id);
            }
        }
    }
}

/// Reads the stacks of the main thread, and of the threads for which the main thread waits.
fn read_stacks(
    pid: u64,
    view: &ProcessView,
    python: Option<&PythonState<'_>>,
    calls: &BTreeMap<u32, SystemCallState>,
    symbols: &Symbols,
    rank: &mut RankState,
) {
    let mut wanted: Vec<u32> = rank
        .main_thread()
        .map(|thread| thread.id)
        .into_iter()
        .collect();
    let mut done = Vec::new();
    while let Some(id) = wanted.pop() {
        if done.contains(&id) {
            continue;
        }
        done.push(id);
        let holder = rank.gil_holder;
        let Some(thread) = rank.threads.iter_mut().find(|thread| thread.id == id) else {
            continue;
        };
        if let Some(call) = calls.get(&id) {
            let frames = view.frames(call.stack_pointer, call.instruction);
            thread.native = symbols.names(pid, &frames);
        }
        if let Some(python) = python {
            thread.python = python.stack(id);
        }
        wanted.extend(thread.mutex_owner);
        wanted.extend(holder.filter(|_| thread.waits_for_gil));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_process_is_known_and_who_traces_it() {
        let own = u64::from(std::process::id());
        let age = age_ns(own).unwrap();
        assert!(
            age_ns(1).is_none_or(|first| first >= age),
            "the first process is the oldest"
        );
        assert_eq!(age_ns(u64::MAX), None);
        assert_eq!(tracer(u64::MAX), None);
    }

    #[test]
    fn a_thread_that_waits_for_a_mutex_is_known_by_its_call() {
        let futex = |operation: u64, value: u64| {
            let number = libc::SYS_futex;
            SystemCallState::parse(&format!(
                "{number} 0x7f00 {operation:#x} {value:#x} 0x0 0x0 0x0 0x7ffd10 0x7f22ad\n"
            ))
            .unwrap()
        };
        assert_eq!(futex(0x80, 2).mutex(), Some(0x7f00));
        assert_eq!(futex(0x80, 0).mutex(), None, "a semaphore");
        assert_eq!(futex(0x189, 2).mutex(), None, "a condition variable");
        let call = futex(0x80, 2);
        assert_eq!(
            (call.stack_pointer, call.instruction),
            (0x7f_fd10, 0x7f_22ad)
        );
        assert_eq!(call.name(), "futex");
        assert_eq!(
            SystemCallState::parse("-1 0x7ffd10 0x7f22ad\n")
                .unwrap()
                .name(),
            "a page fault"
        );
        assert!(SystemCallState::parse("running\n").is_none());
    }
}
