//! The facts about a rank, from its ring and from `/proc`.

use tllmprof_record::Ring;

/// A process of a run.
#[derive(Clone, Debug)]
pub struct RankState {
    /// Its number here; that of its ring if it is not here.
    pub pid: u32,
    pub life: Life,
    /// The ring, and the ring a moment before.
    pub ring: Ring,
    pub before: Ring,
    /// Time since the latest step or collective began or ended, in nanoseconds; `None` if the ring is of another boot.
    pub quiet_ns: Option<u64>,
    pub threads: Vec<Thread>,
    /// The thread that holds the GIL.
    pub gil_holder: Option<u32>,
}

/// State of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    Runs,
    /// Stopped by a signal or a debugger.
    Stopped,
    Gone,
    /// On another machine, or in a container that is not seen from here.
    Elsewhere,
}

/// A thread of a process that runs.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Thread {
    pub id: u32,
    pub name: String,
    /// The state's letter, as in proc(5).
    pub state: char,
    /// It used processor time between the two readings.
    pub ran: bool,
    /// The system call in which it sleeps.
    pub call: Option<String>,
    /// The native functions, the innermost first, each with the name of its module.
    pub native: Vec<(String, String)>,
    /// The Python functions, the innermost first, as `NAME (FILE:LINE)`.
    pub python: Vec<String>,
    /// The thread that owns the mutex for which it waits.
    pub mutex_owner: Option<u32>,
    pub waits_for_gil: bool,
}

impl RankState {
    /// Returns a name for messages.
    pub fn name(&self) -> String {
        match self.number() {
            Some(rank) => format!("rank {rank}"),
            None => format!("process {}", self.pid),
        }
    }

    /// Returns the rank in the job, or in its largest communicator.
    pub fn number(&self) -> Option<u64> {
        let places = self.ring.communicators.iter().filter_map(|one| one.place);
        let largest = places.max_by_key(|(_, size)| *size);
        self.ring.rank.or(largest.map(|(rank, _)| rank.into()))
    }

    /// Returns whether a step or a collective began or ended between the two readings.
    pub fn has_moved(&self) -> bool {
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

    /// Returns the number of collectives that the process has begun in a communicator.
    pub fn sequence(&self, communicator: u64) -> Option<u64> {
        let mut all = self.ring.communicators.iter();
        Some(all.find(|one| one.id == communicator)?.sequence)
    }

    /// Returns the thread that makes the steps, or else the one that made the latest collective, or else the main one.
    pub fn main_thread(&self) -> Option<&Thread> {
        let latest = self.ring.collectives.last();
        let steps = Some(self.ring.step_thread).filter(|id| *id != 0);
        let all = [steps, latest.map(|call| call.thread), Some(self.pid)];
        let mut found = all.into_iter().flatten().filter_map(|id| self.thread(id));
        found.next()
    }

    pub fn thread(&self, id: u32) -> Option<&Thread> {
        self.threads.iter().find(|thread| thread.id == id)
    }

    /// Returns the longest of the latest steps that have ended, in nanoseconds.
    pub fn longest_step(&self) -> Option<u64> {
        let steps = self.ring.steps.iter();
        steps
            .filter_map(|step| step.end_ns?.checked_sub(step.begin_ns))
            .max()
    }
}

impl Thread {
    /// Returns the function of the driver or the runtime in which it waits for the GPU.
    pub fn gpu_wait(&self) -> Option<&str> {
        let waits = [
            "Synchronize",
            "MemcpyDtoH",
            "cudaMemcpy",
            "cuMemcpy",
            "cuEventQuery",
        ];
        let is_wait =
            |name: &str| name.starts_with("cu") && waits.iter().any(|wait| name.contains(wait));
        // A thread that spins in the driver has no native stack here.
        let spins =
            |name: &&String| name.contains("synchronize (") && name.contains("/torch/cuda/");
        let python = self.python.first().filter(spins);
        if python.is_some() && self.native.is_empty() {
            return Some("the driver");
        }
        // The outermost one is what the program has called.
        let mut names = self.native.iter().rev().map(|(name, _)| name.as_str());
        names.find(|name| is_wait(name))
    }

    /// Returns the function that it is in: of Python, or else of the program or its libraries.
    pub fn function(&self) -> Option<String> {
        let is_system = |module: &str| {
            [
                "libc.",
                "libc-",
                "ld-linux",
                "libpthread",
                "[vdso]",
                "libtllmprof",
            ]
            .iter()
            .any(|name| module.starts_with(name))
        };
        let native = || {
            let mut own = self.native.iter().filter(|(_, module)| !is_system(module));
            own.find(|(name, _)| !name.is_empty())
                .map(|(name, module)| format!("{name} ({module})"))
        };
        self.python.first().cloned().or_else(native)
    }
}
