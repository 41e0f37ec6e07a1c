//! Reads the system call in which a thread sleeps, and the registers with which its native stack is unwound.
//!
//! `/proc/self/task/N/syscall` contains the system call's number, its arguments, the stack pointer and the program
//! counter of a thread that does not run. The stack of such a thread does not change, so the library reads it
//! where it lies in memory, without a copy.

use std::str::SplitAsciiWhitespace;

use tllmprof_platform::peek;
use tllmprof_recorder::SystemCall;

use super::files::{self, LENGTH, TaskFile, TaskFiles, TaskId};
use super::sockets::{self, Peer};
use super::time_limit::TimeLimit;
use super::unwind::{ProcessStart, Registers};

/// The state of a sleeping thread as `/proc` reports it: its system call and registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asleep {
    pub call: SystemCall,
    pub time_limit: TimeLimit,
    pub registers: Registers,
    /// The number of the system call, and its arguments.
    number: i64,
    arguments: [u64; 6],
}

impl Asleep {
    /// Returns the system call in which the thread or process `id` sleeps. For a read or write of a stream, such as a
    /// pipe or a socket, this is [`SystemCall::ReadStream`] or [`SystemCall::WriteStream`]. If a thread of this process
    /// waits for data from a service to which this process has connected, it is [`SystemCall::ReceiveFromService`]. A
    /// pair of sockets counts as a pipe.
    pub(crate) fn distinguish_streams(self, id: TaskId) -> SystemCall {
        let from = self
            .reads_from()
            .filter(|_| matches!(id, TaskId::Thread(_)));
        match (from.map(sockets::peer), self.call) {
            (Some(Peer::Service), _) => return SystemCall::ReceiveFromService,
            (Some(Peer::Pair), SystemCall::Receive) => return SystemCall::ReadStream,
            _ => {}
        }
        let stream = match self.call {
            SystemCall::Read => SystemCall::ReadStream,
            SystemCall::Write => SystemCall::WriteStream,
            other => return other,
        };
        let descriptor = self.arguments[0];
        let path = match id {
            TaskId::Thread(_) => format!("/proc/self/fd/{descriptor}"),
            TaskId::Process(number) => format!("/proc/{number}/fd/{descriptor}"),
        };
        // The link of a stream looks like `pipe:[7]`, `socket:[7]` or `anon_inode:[eventfd]`. Only
        // the link is read, so this waits for no disk.
        match std::fs::read_link(path) {
            Ok(file) if !file.is_absolute() => stream,
            _ => self.call,
        }
    }

    /// Returns the descriptor from which the thread waits for data, if it waits for no other one.
    fn reads_from(&self) -> Option<i32> {
        let [first, second, ..] = self.arguments;
        match self.call {
            SystemCall::Receive | SystemCall::Read => Some(first as i32),
            SystemCall::Poll if second == 1 => {
                let mut asked = [0; size_of::<libc::pollfd>()];
                peek::copy(first as usize, &mut asked)?;
                let [a, b, c, d, e, f, ..] = asked;
                let events = i16::from_ne_bytes([e, f]);
                (events & libc::POLLIN != 0).then_some(i32::from_ne_bytes([a, b, c, d]))
            }
            _ => None,
        }
    }
}

impl Asleep {
    /// Returns the process for whose end the thread waits; `None` if it waits for none, or for any of its children.
    pub(crate) fn awaited(&self) -> Option<i32> {
        let [first, second, ..] = self.arguments;
        let process = match self.number {
            libc::SYS_wait4 => first as i32,
            libc::SYS_waitid if first as u32 == libc::P_PID => second as i32,
            _ => return None,
        };
        (process > 0).then_some(process)
    }

    /// If the thread has called a function of the C library that starts a process (such as `vfork`), and waits until
    /// the new process runs a program of its own, returns where the return address of this function is. Otherwise
    /// returns `None`.
    pub(crate) fn process_start(&self) -> Option<ProcessStart> {
        if self.call != SystemCall::WaitProcess {
            return None;
        }
        match self.number {
            libc::SYS_wait4 | libc::SYS_waitid => None,
            libc::SYS_clone | libc::SYS_clone3 => Some(ProcessStart::OnStack),
            _ => Some(ProcessStart::InRegister(self.arguments[0] as usize)),
        }
    }
}

/// Returns true if the flags of a call of `clone` make the caller wait until the new process runs a program of its own.
const fn waits_for_start(flags: u64) -> bool {
    flags & libc::CLONE_VFORK as u64 != 0
}

/// Returns the state of a sleeping thread, or `None` if the thread runs or the kernel does not
/// report its state.
pub(crate) fn look(thread: TaskFiles) -> Option<Asleep> {
    let mut text = [0; LENGTH];
    let text = files::read(thread, TaskFile::Syscall, &mut text)?;
    let mut found = Asleep::parse(str::from_utf8(text).ok()?)?;
    if found.number == libc::SYS_clone3 && matches!(thread.id, TaskId::Thread(_)) {
        // The flags are the first field of the structure to which the first argument points.
        let mut flags = [0; size_of::<u64>()];
        let is_read = peek::copy(found.arguments[0] as usize, &mut flags).is_some();
        if is_read && waits_for_start(u64::from_ne_bytes(flags)) {
            found.call = SystemCall::WaitProcess;
        }
    }
    Some(found)
}

/// Returns true if a thread runs or waits for a processor.
pub(crate) fn is_runnable(thread: TaskFiles) -> bool {
    let mut text = [0; LENGTH];
    files::read(thread, TaskFile::Syscall, &mut text) == Some(b"running\n")
}

impl Asleep {
    /// Parses the file as described in proc(5): the call's number, six arguments, the stack pointer
    /// and the program counter. For a thread that sleeps outside a call, the number is -1 and the
    /// arguments are missing. For a thread that runs, the file contains only `running`.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_ascii_whitespace();
        let number: i64 = fields.next()?.parse().ok()?;
        let mut arguments = [0; 6];
        if number >= 0 {
            for argument in &mut arguments {
                *argument = hexadecimal(&mut fields)?;
            }
        }
        let (call, time_limit) = call(number, &arguments);
        Some(Self {
            call,
            time_limit,
            registers: Registers {
                stack_pointer: hexadecimal(&mut fields)? as usize,
                program_counter: hexadecimal(&mut fields)? as usize,
                frame_pointer: None,
            },
            number,
            arguments,
        })
    }
}

fn hexadecimal(fields: &mut SplitAsciiWhitespace<'_>) -> Option<u64> {
    u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()
}

/// Returns the system call that has this number, and its time limit.
fn call(number: i64, arguments: &[u64; 6]) -> (SystemCall, TimeLimit) {
    use SystemCall as Call;
    let [first, second, third, fourth, fifth, _] = *arguments;
    let poll = [Call::Poll, Call::PollNothing][usize::from(second == 0)];
    let select = [Call::Select, Call::SelectNothing][usize::from(first == 0)];
    let timespec = |address| match address {
        0 => TimeLimit::None,
        address => TimeLimit::Timespec(address),
    };
    let none = TimeLimit::None;
    match number {
        -1 => (Call::PageFault, none),
        libc::SYS_futex => (Call::Futex, TimeLimit::of_futex(second, fourth)),
        libc::SYS_nanosleep => (Call::Nanosleep, timespec(first)),
        libc::SYS_clock_nanosleep => (Call::ClockNanosleep, timespec(third)),
        libc::SYS_ppoll => (poll, timespec(third)),
        libc::SYS_pselect6 => (select, timespec(fifth)),
        libc::SYS_epoll_pwait => (Call::EpollWait, TimeLimit::of_milliseconds(fourth)),
        libc::SYS_epoll_pwait2 => (Call::EpollWait, timespec(fourth)),
        libc::SYS_rt_sigtimedwait => (Call::SignalWait, timespec(third)),
        libc::SYS_clone if waits_for_start(first) => (Call::WaitProcess, none),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => (Call::WaitProcess, none),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => (poll, TimeLimit::of_milliseconds(third)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select if fifth != 0 => (select, TimeLimit::Timeval(fifth)),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_select => (select, none),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => (Call::EpollWait, TimeLimit::of_milliseconds(fourth)),
        _ => (without_timeout(number), none),
    }
}

fn without_timeout(number: i64) -> SystemCall {
    use SystemCall as Call;
    match number {
        libc::SYS_read | libc::SYS_readv | libc::SYS_pread64 | libc::SYS_preadv => Call::Read,
        libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 | libc::SYS_pwritev => Call::Write,
        libc::SYS_fsync | libc::SYS_sync | libc::SYS_syncfs | libc::SYS_sync_file_range => {
            Call::Fsync
        }
        libc::SYS_fdatasync => Call::Fdatasync,
        libc::SYS_msync => Call::Msync,
        libc::SYS_openat => Call::Open,
        libc::SYS_close => Call::Close,
        libc::SYS_ftruncate => Call::Truncate,
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => Call::Receive,
        libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => Call::Send,
        libc::SYS_accept | libc::SYS_accept4 => Call::Accept,
        libc::SYS_connect => Call::Connect,
        libc::SYS_wait4 | libc::SYS_waitid => Call::WaitProcess,
        libc::SYS_ioctl => Call::Ioctl,
        libc::SYS_flock => Call::FileLock,
        libc::SYS_fcntl => Call::FileControl,
        libc::SYS_io_uring_enter => Call::IoUringEnter,
        libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_madvise => Call::Memory,
        _ => Call::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::sockets::tests::connected;

    fn parse(number: i64, arguments: &str) -> Option<(SystemCall, bool)> {
        let text = format!("{number} {arguments} 0x7ffd10 0x7f22ad\n");
        let found = Asleep::parse(&text)?;
        let Registers {
            stack_pointer,
            program_counter,
            ..
        } = found.registers;
        assert_eq!((stack_pointer, program_counter), (0x7f_fd10, 0x7f_22ad));
        Some((found.call, found.time_limit.is_given()))
    }

    #[test]
    fn the_call_and_its_time_limit_are_known() {
        use SystemCall as Call;
        let none = "0x1 0x2 0x3 0x0 0x0 0x6";
        let given = "0x1 0x2 0x3 0x4 0x5 0x6";
        let futex = |arguments| parse(libc::SYS_futex, arguments);
        assert_eq!(futex(none), Some((Call::Futex, false)));
        assert_eq!(futex(given), Some((Call::Futex, true)));
        let epoll = |arguments| parse(libc::SYS_epoll_pwait, arguments);
        assert_eq!(epoll(given), Some((Call::EpollWait, true)));
        let endless = "0x1 0x2 0x3 0xffffffff 0x5 0x6";
        assert_eq!(epoll(endless), Some((Call::EpollWait, false)));
        let poll = |arguments| parse(libc::SYS_ppoll, arguments);
        assert_eq!(poll(given), Some((Call::Poll, true)));
        let of_nothing = "0x0 0x0 0x3 0x4 0x0 0x6";
        assert_eq!(poll(of_nothing), Some((Call::PollNothing, true)));
        assert_eq!(parse(libc::SYS_fsync, none), Some((Call::Fsync, false)));
        let start = |flags: i32| parse(libc::SYS_clone, &format!("{flags:#x} 0x2 0x3 0x4 0x5 0x6"));
        let vfork = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        assert_eq!(start(vfork), Some((Call::WaitProcess, false)));
        let thread = libc::CLONE_VM | libc::CLONE_THREAD;
        assert_eq!(start(thread), Some((Call::Other, false)));
        assert_eq!(parse(9999, none), Some((Call::Other, false)));
        assert_eq!(parse(-1, ""), Some((Call::PageFault, false)));
        assert_eq!(Asleep::parse("running\n"), None);
        assert_eq!(Asleep::parse("0 0x3\n"), None);
        assert_eq!(Asleep::parse(""), None);
    }

    #[test]
    fn a_wait_for_one_socket_of_a_service_is_recognised() {
        let (ours, theirs, _listener) = connected("service");
        let waits = |number: i64, first: usize, second: usize, id| {
            let text = format!("{number} {first:#x} {second:#x} 0x0 0x0 0x0 0x0 0x1 0x2");
            Asleep::parse(&text).unwrap().distinguish_streams(id)
        };
        let thread = TaskId::Thread(0);
        let receives =
            |socket: &UnixStream, id| waits(libc::SYS_recvfrom, socket.as_raw_fd() as usize, 0, id);
        assert_eq!(receives(&ours, thread), SystemCall::ReceiveFromService);
        assert_eq!(receives(&theirs, thread), SystemCall::Receive);
        let (half, _other) = UnixStream::pair().unwrap();
        assert_eq!(receives(&half, thread), SystemCall::ReadStream);
        // The descriptors of another process are not those of this one.
        let process = TaskId::Process(std::process::id().cast_signed());
        assert_eq!(receives(&ours, process), SystemCall::Receive);
        let polled = |events| {
            let asked = [ours.as_raw_fd(), theirs.as_raw_fd()].map(|fd| libc::pollfd {
                fd,
                events,
                revents: 0,
            });
            let polls = |count| waits(libc::SYS_ppoll, asked.as_ptr() as usize, count, thread);
            [polls(1), polls(2)]
        };
        let [one, both] = polled(libc::POLLIN);
        assert_eq!(
            (one, both),
            (SystemCall::ReceiveFromService, SystemCall::Poll)
        );
        assert_eq!(polled(libc::POLLOUT)[0], SystemCall::Poll);
        assert_eq!(waits(libc::SYS_ppoll, 8, 1, thread), SystemCall::Poll);
    }

    #[test]
    fn what_is_no_file_is_a_stream() {
        let read = |file: &dyn AsRawFd| {
            let text = format!(
                "{} {:#x} 0x0 0x0 0x0 0x0 0x0 0x1 0x2",
                libc::SYS_read,
                file.as_raw_fd()
            );
            let id = TaskId::Thread(0);
            Asleep::parse(&text).unwrap().distinguish_streams(id)
        };
        let (pipe, _other) = std::io::pipe().unwrap();
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(read(&pipe), SystemCall::ReadStream);
        assert_eq!(read(&file), SystemCall::Read);
    }
}
