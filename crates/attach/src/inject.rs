//! Makes a thread of another process run the stub, a few instructions that load the library. The command stops one
//! thread after another until it finds one at a safe point. It sets the registers of this thread so that the thread
//! continues at the stub.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::elf::{self, Module};
use crate::file::{self, LibrarySource};
use crate::filters;
use crate::library::{Attached, Library};
use crate::memory::{self, Mapping, ProcessMemory};
use crate::places::Places;
use crate::refusal::AttachRefusal;
use crate::stub::{self, Constants};
use crate::traced::{NotStopped, Stopped, resumed, was_cut_short};
use crate::{process, safe, unwind};

/// Maximum time to wait until one thread stops, once it has been asked to stop.
const STOP_TIMEOUT: Duration = Duration::from_millis(20);
/// Maximum time for which the command searches for a thread at a safe point, where the thread can run injected code.
const SAFE_POINT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time during which the search for a thread at a safe point leaves out threads with child processes. After this time,
/// all threads are tried, although the waits of other threads may end early if the child of a stopped thread ends (see
/// [`crate::everyone`]).
const CHILDLESS_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time to wait until the stub (the injected code) has run, once the registers of a thread have been set. The
/// stub runs only when the kernel schedules this thread.
const STUB_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait until the process's loader has loaded the library and the library has started.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two rounds of the search for a thread at a safe point. Each round tries all threads.
const RETRY_INTERVAL: Duration = Duration::from_millis(3);

/// Data about the process, collected before any of its threads is stopped.
struct ProcessFacts {
    pid: i32,
    memory: ProcessMemory,
    code: Vec<Mapping>,
    modules: Vec<Module>,
    places: Places,
    source: LibrarySource,
    /// Addresses in the process at which the stub and the strings that it uses (`texts`) are placed. The memory at
    /// these addresses is unused.
    room: (u64, u64),
    texts: Vec<u8>,
    /// Offset in `texts` at which the environment variables for the library begin.
    variables: u64,
}

enum Tried {
    /// The thread continues at the stub (the injected code). The value is the address of the memory region in which the
    /// stub stores its data.
    Injected(u64),
    NotSafe(safe::UnsafeReason),
    NotStopped(NotStopped),
    Refused(AttachRefusal),
}

pub(crate) fn inject(pid: i32, library: Library<'_>) -> Result<Attached, AttachRefusal> {
    match stub::state() {
        Some(size) if size <= stub::MAX_STATE => {}
        _ => return Err(AttachRefusal::NoXsave),
    }
    await_others(pid)?;
    let target = ProcessFacts::new(pid, library)?;
    let mut attached = Attached {
        stopped: Duration::ZERO,
        tries: 0,
        answer: 0,
    };
    let region = target.try_all(&mut attached)?;
    attached.answer = target.await_answer(region, library.path)?;
    Ok(attached)
}

/// Returns the executable mappings of `maps`. As long as these are the same, no module has been loaded or unloaded.
fn code_of(maps: &[Mapping]) -> Vec<Mapping> {
    let code = maps.iter().filter(|mapping| mapping.is_executable);
    code.cloned().collect()
}

impl ProcessFacts {
    fn new(pid: i32, library: Library<'_>) -> Result<Self, AttachRefusal> {
        let system = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => process::not_permitted(),
            _ => AttachRefusal::System(format!("/proc/{pid}: {error}")),
        };
        let memory = ProcessMemory::open(pid).map_err(system)?;
        let maps = memory::maps(pid).map_err(system)?;
        let program = std::fs::read_link(process::folder(pid).join("exe")).map_err(system)?;
        let modules = elf::modules(&memory, &maps);
        let places = Places::find(&memory, &modules, &program.to_string_lossy())?;
        if let (Some(has), Some(needs)) = (places.glibc, library.glibc)
            && has < needs
        {
            return Err(AttachRefusal::OldGlibc { has, needs });
        }
        let source = LibrarySource::select(pid, &memory, &modules, library.path)?;
        let mut texts = Vec::new();
        if source == LibrarySource::Path {
            texts.extend(library.path.as_os_str().as_encoded_bytes());
            texts.push(0);
        }
        let variables = texts.len() as u64;
        for variable in library.variables {
            texts.extend(variable.bytes());
            texts.push(0);
        }
        texts.push(0);
        texts.resize(texts.len().next_multiple_of(8), 0);
        let room = places.room(&memory, &modules, stub::size(), texts.len());
        let room = match room {
            Some(room) => room,
            None if texts.len() > 1024 => return Err(AttachRefusal::TooLong),
            None => return Err(AttachRefusal::NoRoom),
        };
        Ok(Self {
            pid,
            code: code_of(&maps),
            memory,
            modules,
            places,
            source,
            room,
            texts,
            variables,
        })
    }

    /// Tries one thread after another, repeatedly, until one continues at the stub (the injected code). Returns the
    /// address of the region, the memory in which the stub keeps its data.
    fn try_all(&self, attached: &mut Attached) -> Result<u64, AttachRefusal> {
        let since = Instant::now();
        let (mut why, mut late) = ("it has none", true);
        loop {
            let threads = process::threads(self.pid);
            if threads.is_empty() {
                return Err(AttachRefusal::Ended);
            }
            let is_alone = threads.len() == 1;
            for tid in threads {
                // Checked for each thread, also for one that is left out below. So the search ends even if all threads
                // are left out.
                if since.elapsed() > SAFE_POINT_TIMEOUT {
                    let tries = attached.tries;
                    return Err(match late && tries > 0 {
                        true => AttachRefusal::Uninterruptible,
                        false => AttachRefusal::NeverSafe { tries, why },
                    });
                }
                let spares = !is_alone && since.elapsed() < CHILDLESS_TIMEOUT;
                if is_own(self.pid, tid) || spares && process::has_children(self.pid, tid) {
                    continue;
                }
                attached.tries += 1;
                // Each try runs on a separate tracer thread. When a tracer thread ends, the kernel resumes all threads
                // that it stopped.
                let tried = thread::scope(|scope| scope.spawn(|| self.try_one(tid)).join());
                let Ok((tried, stopped)) = tried else {
                    return Err(AttachRefusal::System(
                        "an internal error (please report it)".to_owned(),
                    ));
                };
                attached.stopped = attached.stopped.max(stopped);
                match tried {
                    Tried::Injected(region) => return Ok(region),
                    Tried::Refused(refusal) => return Err(refusal),
                    Tried::NotSafe(reason) => (why, late) = (reason, false),
                    Tried::NotStopped(NotStopped::NotPermitted) => return Err(self.not_permitted()),
                    Tried::NotStopped(NotStopped::ByASignal) => return Err(AttachRefusal::Stopped),
                    Tried::NotStopped(NotStopped::Gone | NotStopped::Late) => {}
                }
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Returns the reason why tracing is not permitted. For example, another process may have started to trace this
    /// process after `process::check` found that no process traces it.
    fn not_permitted(&self) -> AttachRefusal {
        let path = process::folder(self.pid);
        match process::ProcStatus::read(&path) {
            Ok(status) if status.tracer() != 0 => AttachRefusal::Traced(status.tracer()),
            _ => process::not_permitted(),
        }
    }

    /// Stops the thread `tid` and tries to make it continue at the stub (the injected code). Returns the result, and
    /// how long the thread was stopped.
    fn try_one(&self, tid: i32) -> (Tried, Duration) {
        // Raises the priority of this thread, the tracer, so that the stopped thread does not stay stopped while the
        // tracer waits for a processor. Only root may raise the priority.
        // SAFETY: the arguments are numbers, and only this thread is affected.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
        let stopped = match Stopped::stop(tid, STOP_TIMEOUT) {
            Ok(stopped) => stopped,
            Err(why) => return (Tried::NotStopped(why), Duration::ZERO),
        };
        let Some(registers) = stopped.registers() else {
            return (Tried::NotStopped(NotStopped::Gone), stopped.detach());
        };
        let is_cut_short = was_cut_short(&registers);
        if is_cut_short && process::has_signal(self.pid, tid) {
            return (Tried::NotSafe("a thread had a signal"), stopped.detach());
        }
        let tried = self.examine(&stopped, registers);
        if is_cut_short && !matches!(tried, Tried::Injected(_)) {
            stopped.make_again(registers);
        }
        (tried, stopped.detach())
    }

    /// Makes the stopped thread continue at the stub (the injected code), if the thread is at a safe point. Otherwise
    /// returns the reason why it is not.
    fn examine(&self, stopped: &Stopped, registers: libc::user_regs_struct) -> Tried {
        const CODE_64: u64 = 0x33;
        if registers.cs != CODE_64 {
            return Tried::Refused(AttachRefusal::Bits32);
        }
        let Ok(maps) = memory::maps(self.pid) else {
            return Tried::NotStopped(NotStopped::Gone);
        };
        // If modules have been loaded or unloaded since the list of modules (`self.modules`) was made, the list is made
        // again. The addresses of `dlopen` and of the other functions that were found before stay valid, unless the
        // process has started another program.
        let code = code_of(&maps);
        let changed;
        let modules = match code == self.code {
            true => &self.modules,
            false => {
                if !self.stays(&code) {
                    return Tried::Refused(AttachRefusal::Ended);
                }
                changed = elf::modules(&self.memory, &maps);
                &changed
            }
        };
        let Some(frames) = unwind::frames(&self.memory, modules, dwarf(&registers)) else {
            return Tried::NotSafe("not all callers of a thread were known");
        };
        let call = registers.orig_rax.cast_signed();
        if let Err(why) = safe::check(&self.places, &frames, (call >= 0).then_some(call)) {
            return Tried::NotSafe(why);
        }
        if stopped.is_in_sequence(&self.memory, registers.rip) {
            return Tried::NotSafe("a thread was in a restartable sequence");
        }
        if process::is_filtered(stopped.tid()) && !filters::are_harmless(stopped) {
            return Tried::Refused(AttachRefusal::Seccomp);
        }
        let Some(region) = memory::free(&maps, stub::REGION) else {
            return Tried::Refused(AttachRefusal::NoRoom);
        };
        let (stub, texts) = self.room;
        let bytes = stub::assemble(&self.constants(&resumed(registers), region));
        let is_free = |at, length| self.memory.some(at, length) == Some(vec![0; length]);
        if !is_free(stub, bytes.len()) || !is_free(texts, self.texts.len()) {
            return Tried::NotSafe("another command attached at the same time");
        }
        let written = stopped
            .write(texts, &self.texts)
            .and_then(|()| stopped.write(stub, &bytes));
        // The code and texts are read back after they were written. If the memory does not contain them, the thread
        // must not continue there, and attaching is refused.
        let is_there = written.is_some()
            && self.memory.some(stub, bytes.len()) == Some(bytes)
            && self.memory.some(texts, self.texts.len()).as_ref() == Some(&self.texts);
        if !is_there {
            return Tried::Refused(AttachRefusal::NotPermitted(
                "its code cannot be written".to_owned(),
            ));
        }
        let mut new = registers;
        new.rip = stub;
        // Marks the thread as not in a system call, so that the kernel does not change the registers when the thread
        // resumes.
        new.orig_rax = u64::MAX;
        match stopped.set_registers(new) {
            Some(()) => Tried::Injected(region),
            None => Tried::NotStopped(NotStopped::Gone),
        }
    }

    /// Returns true if the mappings that contain `dlopen`, `pthread_create` and the place of the stub (the injected
    /// code) are the same in `code` as before the threads were stopped.
    fn stays(&self, code: &[Mapping]) -> bool {
        let (stub, _) = self.room;
        let addresses = [
            stub,
            self.places.functions.pthread_create,
            self.places.functions.dlopen,
        ];
        let at = |code: &[Mapping], address: u64| {
            let mut all = code.iter();
            all.find(|mapping| (mapping.start..mapping.end).contains(&address))
                .cloned()
        };
        addresses
            .iter()
            .all(|address| at(code, *address) == at(&self.code, *address))
    }

    fn constants(&self, registers: &libc::user_regs_struct, region: u64) -> Constants {
        let functions = &self.places.functions;
        let (_, texts) = self.room;
        Constants {
            region,
            negated: region.wrapping_neg(),
            pthread_create: functions.pthread_create,
            pthread_detach: functions.pthread_detach,
            errno_location: functions.errno_location,
            dlopen: functions.dlopen,
            dlsym: functions.dlsym,
            dlerror: functions.dlerror,
            path: if self.source == LibrarySource::Path {
                texts
            } else {
                0
            },
            entry: match self.source {
                LibrarySource::Loaded(entry) => entry,
                LibrarySource::Path | LibrarySource::File => 0,
            },
            variables: texts + self.variables,
            rax: registers.rax,
            rbx: registers.rbx,
            rcx: registers.rcx,
            rdx: registers.rdx,
            rsi: registers.rsi,
            rdi: registers.rdi,
            rbp: registers.rbp,
            rsp: registers.rsp,
            r8: registers.r8,
            r9: registers.r9,
            r10: registers.r10,
            r11: registers.r11,
            r12: registers.r12,
            r13: registers.r13,
            r14: registers.r14,
            r15: registers.r15,
            flags: registers.eflags,
            rip: registers.rip,
        }
    }

    /// Waits until the stub has run and the library has started. Returns the value that the library's `tllmprof_attach`
    /// returned in the process.
    fn await_answer(&self, region: u64, library: &Path) -> Result<i32, AttachRefusal> {
        let word = |offset| self.memory.word(region + offset);
        let since = Instant::now();
        let mut is_written = self.source != LibrarySource::File;
        loop {
            let is_created = word(stub::STUB) == Some(stub::CREATED);
            match word(stub::ERROR) {
                Some(error) if is_created && error != 0 => {
                    return Err(AttachRefusal::NoThread(error as i32));
                }
                _ => {}
            }
            if is_created && !is_written {
                is_written = file::write(self.pid, &self.memory, region, library)?;
            }
            match word(stub::STARTED) {
                Some(stub::ANSWERED) => {
                    return Ok(word(stub::ANSWER).map_or(0, |answer| answer as i32));
                }
                Some(stub::FAILED) => return Err(AttachRefusal::NotLoaded(self.text(region))),
                _ => {}
            }
            if !process::is_there(self.pid) {
                return Err(AttachRefusal::Ended);
            }
            match is_created {
                false if since.elapsed() > STUB_TIMEOUT => return Err(AttachRefusal::NotRun),
                true if since.elapsed() > START_TIMEOUT => return Err(AttachRefusal::NotStarted),
                _ => thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Returns the error message of the process's loader. The new thread has stored the message in the region, which is
    /// the data memory of the injected stub.
    fn text(&self, region: u64) -> String {
        let bytes = self
            .memory
            .some(region + stub::TEXT, stub::MAX_TEXT as usize);
        let bytes = bytes.unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

/// Returns true if the thread's name shows that the tllmprof library, or a stub that was injected to load it, has
/// created the thread.
fn is_own(pid: i32, tid: i32) -> bool {
    process::thread_name(pid, tid).starts_with("tllmprof")
}

/// Waits until no other command is loading the library into the process, that is, until the thread that the other
/// command created there has ended. If two commands loaded it at the same time, it could be loaded twice, from two
/// files. Returns a refusal if the wait takes longer than [`START_TIMEOUT`].
fn await_others(pid: i32) -> Result<(), AttachRefusal> {
    let since = Instant::now();
    while process::is_being_attached(pid) {
        if since.elapsed() > START_TIMEOUT {
            return Err(AttachRefusal::NotStarted);
        }
        thread::sleep(RETRY_INTERVAL);
    }
    Ok(())
}

/// Returns the registers in the order of DWARF register numbers, which the unwind tables use.
fn dwarf(registers: &libc::user_regs_struct) -> unwind::Registers {
    [
        registers.rax,
        registers.rdx,
        registers.rcx,
        registers.rbx,
        registers.rsi,
        registers.rdi,
        registers.rbp,
        registers.rsp,
        registers.r8,
        registers.r9,
        registers.r10,
        registers.r11,
        registers.r12,
        registers.r13,
        registers.r14,
        registers.r15,
        registers.rip,
    ]
    .map(Some)
}
