//! The state of a rank, read from `/proc` and from its ring file, which holds its latest steps and collectives. The
//! verdict of `tllmprof hang` is based on the states of all ranks.

use tllmprof_engines::{PythonFunction, is_installed_package};
use tllmprof_record::Ring;

use super::device_fault::DeviceFault;
use super::latest;

/// Maximum time, in nanoseconds, between a device fault and the stop of a rank (the last begin or end of a step or
/// collective). A fault that came earlier is not the reason for the stop. For a fault that names no process, the same
/// limit applies after the stop: the clocks of the kernel log and of the ring files may differ a bit.
const MAX_TIME_TO_STOP_NS: u64 = 10_000_000_000;

/// The state of a rank, that is, of a process of a distributed run.
#[derive(Clone, Debug)]
pub(crate) struct RankState {
    /// The process id on this machine. If the process does not run on this machine, this is the id in the ring file,
    /// which the process itself wrote.
    pub pid: u32,
    pub life: Life,
    /// The process id of the debugger or tracer that holds the process. `None` if none does, or its id is not known.
    pub tracer: Option<u32>,
    /// The content of the process's ring file, with its latest steps and collectives, when this command last read it.
    pub ring: Ring,
    /// The content of the process's ring file when this command found it, before `ring` was read.
    pub before: Ring,
    /// Time since the latest step or collective began or ended, in nanoseconds. `None` if the ring file (the file with
    /// the latest steps and collectives) is of another machine, or from before the last boot.
    pub quiet_ns: Option<u64>,
    pub threads: Vec<ProcessThread>,
    /// The id of the thread that holds Python's GIL. `None` if no thread holds it, or if the holder is not known.
    pub gil_holder: Option<u32>,
    /// The earliest device fault in the kernel log that may have stopped this rank.
    pub fault: Option<DeviceFault>,
}

/// The state of a process: it runs, is stopped or held, has ended, or is not visible to this command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Runs,
    /// The process is stopped by a signal.
    Stopped,
    /// A debugger or tracer has held the process in both readings.
    Held,
    Gone,
    /// The process is on another machine, or in a container whose processes are not visible here. It is not known if it
    /// runs.
    Elsewhere,
}

/// A thread of a running process: its state, and the functions in which it is.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct ProcessThread {
    pub id: u32,
    pub name: String,
    /// The letter of the thread's state, as in proc(5).
    pub state: char,
    /// True if the thread used processor time between the two times at which its state was read.
    pub ran: bool,
    /// The name of the system call in which the thread sleeps. `None` if the thread does not sleep in a system call, or
    /// if the call could not be read.
    pub call: Option<String>,
    /// The native functions on the thread's stack, the innermost first, as pairs of a function's name and the file name
    /// of its module.
    pub native: Vec<(String, String)>,
    /// The Python functions on the thread's stack, the innermost first, as `NAME (FILE:LINE)`.
    pub python: Vec<String>,
    /// The id of the thread that owns the mutex for which this thread waits. `None` if this thread waits for no mutex,
    /// or the owner is not known.
    pub mutex_owner: Option<u32>,
    pub waits_for_gil: bool,
}

/// Number of innermost Python functions on a thread's stack among which `Queue.put` is searched for. It is more than 1,
/// because `Queue.put` itself calls a few functions in which the thread may wait.
const FUNCTIONS_OF_PUT: usize = 4;

impl RankState {
    /// Stores the earliest of these device faults that may have stopped the rank. A fault that names a process can have
    /// stopped only this process. A fault that names no process, such as the loss of a GPU from the bus, must have
    /// occurred at about the time when the rank stopped.
    pub(crate) fn find_fault(&mut self, faults: &[DeviceFault]) {
        let stopped_ns = latest(&self.ring);
        let is_after = |time_ns: u64| time_ns.saturating_add(MAX_TIME_TO_STOP_NS) >= stopped_ns;
        let is_near = |time_ns: u64| time_ns.abs_diff(stopped_ns) <= MAX_TIME_TO_STOP_NS;
        let is_its = |fault: &&DeviceFault| match fault.pid {
            Some(pid) => pid == self.pid && fault.time_ns.is_none_or(is_after),
            None => fault.time_ns.is_some_and(is_near),
        };
        let found = faults.iter().find(is_its).cloned();
        self.fault = found.filter(|_| self.quiet_ns.is_some());
    }

    /// Returns the name of the rank for messages, such as `rank 3`.
    pub(crate) fn name(&self) -> String {
        match self.number() {
            Some(rank) => format!("rank {rank}"),
            None => format!("process {}", self.pid),
        }
    }

    /// Returns the rank number in the job. If this number is not known, returns the rank in the largest communicator.
    pub(crate) fn number(&self) -> Option<u64> {
        let places = self.ring.communicators.iter().filter_map(|one| one.place);
        let largest = places.max_by_key(|(_, size)| *size);
        self.ring.rank.or(largest.map(|(rank, _)| rank.into()))
    }

    /// Returns true if, between the two readings of the ring file, a step or a collective began or ended, or a
    /// collective was captured into a CUDA graph.
    pub(crate) fn has_moved(&self) -> bool {
        let ends = |ring: &Ring| {
            let steps = ring.steps.iter().filter_map(|step| step.end_ns);
            let calls = ring.collectives.iter().filter_map(|call| call.end_ns);
            (steps.max(), calls.max())
        };
        let (now, before) = (&self.ring, &self.before);
        now.steps_begun != before.steps_begun
            || now.collectives_begun != before.collectives_begun
            || now.captured != before.captured
            || ends(now) != ends(before)
    }

    /// Returns the number of collectives that the process has begun in this communicator. `None` if it does not use the
    /// communicator.
    pub(crate) fn sequence(&self, communicator: u64) -> Option<u64> {
        let mut all = self.ring.communicators.iter();
        Some(all.find(|one| one.id == communicator)?.sequence)
    }

    /// Returns the thread that runs the steps. If that thread is not known, returns the thread that made the latest
    /// collective, and otherwise the process's first thread.
    pub(super) fn main_thread(&self) -> Option<&ProcessThread> {
        let latest = self.ring.collectives.last();
        let steps = Some(self.ring.step_thread).filter(|id| *id != 0);
        let all = [steps, latest.map(|call| call.thread), Some(self.pid)];
        let mut found = all.into_iter().flatten().filter_map(|id| self.thread(id));
        found.next()
    }

    pub(super) fn thread(&self, id: u32) -> Option<&ProcessThread> {
        self.threads.iter().find(|thread| thread.id == id)
    }

    /// Returns true if the thread that makes the steps is in a function in which a known engine waits for requests.
    pub(crate) fn waits_for_requests(&self) -> bool {
        let functions = self.main_thread().map(|thread| &thread.python);
        let mut names = functions
            .into_iter()
            .flatten()
            .filter_map(|name| name.split(" (").next());
        names.any(tllmprof_engines::is_idle_wait)
    }

    /// Returns the duration, in nanoseconds, of the longest step among the latest steps in the ring file. Steps that
    /// have not ended do not count.
    pub(crate) fn longest_step(&self) -> Option<u64> {
        let steps = self.ring.steps.iter();
        steps
            .filter_map(|step| step.end_ns?.checked_sub(step.begin_ns))
            .max()
    }
}

impl ProcessThread {
    /// Returns the function of the CUDA driver or runtime in which the thread waits for the GPU. `None` if the thread
    /// does not wait for the GPU.
    pub(crate) fn gpu_wait(&self) -> Option<&str> {
        let waits = [
            "Synchronize",
            "MemcpyDtoH",
            "cudaMemcpy",
            "cuMemcpy",
            "cuEventQuery",
        ];
        let is_wait =
            |name: &str| name.starts_with("cu") && waits.iter().any(|wait| name.contains(wait));
        // Native stacks are read only of sleeping threads, so a thread that spins in the driver has no native stack.
        // The thread's Python function shows that the thread waits.
        let spins =
            |name: &&String| name.contains("synchronize (") && name.contains("/torch/cuda/");
        let python = self.python.first().filter(spins);
        if python.is_some() && self.native.is_empty() {
            return Some("the driver");
        }
        // The search begins with the outermost native function, because that is the function which the program has
        // called.
        let mut names = self.native.iter().rev().map(|(name, _)| name.as_str());
        names.find(|name| is_wait(name))
    }

    /// Returns the Python function that puts an object into a queue, if the thread waits for room in the queue. Only
    /// queues of the modules `queue` and `multiprocessing` are recognized.
    pub(crate) fn putter(&self) -> Option<&str> {
        let inner = &self.python[..self.python.len().min(FUNCTIONS_OF_PUT)];
        let put = inner.iter().position(|function| {
            let parsed = PythonFunction::parse(function);
            parsed.is_some_and(|function| {
                let file = function.file.rsplit('/').next();
                function.name() == "put" && matches!(file, Some("queue.py" | "queues.py"))
            })
        })?;
        // If `put` of the module `queue` is the innermost Python function, the thread waits for the queue's lock. A
        // wait for room is in a function that `put` calls.
        let waits_for_lock = put == 0 && inner[0].contains("queue.py:");
        let caller = self.python.get(put + 1).or(inner.last())?;
        (!waits_for_lock && self.call.is_some()).then_some(caller)
    }

    /// Returns a description of the program's function that the CUDA driver runs on this thread as a host function of a
    /// stream or graph, such as `the host function f (server)`. If the function has called Python code, the description
    /// names the Python function in which the thread is. `None` if the driver runs no function on this thread, or only
    /// functions of system libraries, CUDA and the NVIDIA driver.
    pub(crate) fn host_function(&self) -> Option<String> {
        let is_own = |module: &str| !is_system(module) && !is_cuda(module);
        let called = self.native.iter().rposition(|(_, module)| is_own(module))?;
        let (inner, outer) = self.native.split_at(called + 1);
        if !outer
            .iter()
            .any(|(_, module)| module.starts_with("libcuda.so"))
        {
            return None;
        }
        if let Some(function) = self.function().filter(|_| !self.python.is_empty()) {
            return Some(format!("the host function {function}"));
        }
        // The driver calls a Python callback (`ctypes`) through libffi. The function that libffi calls is named
        // instead.
        let mut named = inner.iter().rev();
        let named = named.find(|(_, module)| !module.starts_with("libffi."));
        let (name, module) = named.unwrap_or(&self.native[called]);
        Some(match name.is_empty() {
            true => format!("a host function of {module}"),
            false => format!("the host function {name} ({module})"),
        })
    }

    /// Returns the function in which the thread is: a Python function if there is one, otherwise a native function that
    /// does not belong to a system library. If the Python function belongs to the standard library, the program's
    /// function that called it is added.
    pub(crate) fn function(&self) -> Option<String> {
        let native = || {
            let mut own = self.native.iter().filter(|(_, module)| !is_system(module));
            own.find(|(name, _)| !name.is_empty())
                .map(|(name, module)| format!("{name} ({module})"))
        };
        let Some(first) = self.python.first() else {
            return native();
        };
        let mut own = self.python.iter().filter(|name| !is_standard(name));
        match own.next().filter(|own| *own != first) {
            Some(own) => Some(format!("{first}, called by {own}")),
            None => Some(first.clone()),
        }
    }
}

/// Returns true if `module` is the file name of a system library, or of this project's library.
fn is_system(module: &str) -> bool {
    const SYSTEM: [&str; 6] = [
        "libc.",
        "libc-",
        "ld-linux",
        "libpthread",
        "[vdso]",
        "libtllmprof",
    ];
    SYSTEM.iter().any(|name| module.starts_with(name))
}

/// Returns true if `module` is the file name of a library of CUDA or of the NVIDIA driver that may be on the stacks of
/// the driver's threads. The functions of these libraries are not the program's.
fn is_cuda(module: &str) -> bool {
    const CUDA: [&str; 5] = [
        "libcuda.so",
        "libcudart.so",
        "libcupti.so",
        "libcudadebugger.so",
        "libnvidia-",
    ];
    CUDA.iter().any(|name| module.starts_with(name))
}

/// Returns true if a Python function, given as `NAME (FILE:LINE)`, belongs to Python's standard library.
fn is_standard(function: &str) -> bool {
    let is_package = is_installed_package(function);
    function.contains("(<frozen ") || function.contains("/lib/python3") && !is_package
}
