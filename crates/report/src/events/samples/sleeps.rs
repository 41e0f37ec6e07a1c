//! Classifies what a sleeping thread waits for, by its system call and its stacks.

use std::collections::HashMap;

use tllmprof_record::SystemCall;

use super::frames::Frames;
use super::function::{Function, Origin};
use super::sleep::{BLOCKED, FOR_CHILD, FOR_SERVICE, FOR_WORK, Sleep, SleepKind};

/// The data in a sample of a sleeping thread by which the sleep is classified.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Asleep {
    pub call: Option<SystemCall>,
    pub has_timeout: bool,
    /// True if the time limit is short (see [`SleepKind::Poll`]).
    pub has_short_timeout: bool,
    /// ID of the innermost frame of the thread's native stack; 0 if that stack is missing.
    pub native: u32,
    pub python: u32,
}

/// The sleeps of a record, without duplicates.
#[derive(Debug, Default)]
pub(crate) struct Sleeps {
    known: HashMap<Asleep, u32>,
    by_sleep: HashMap<Sleep, u32>,
    all: Vec<Sleep>,
}

impl Sleeps {
    /// Returns the index of a sample's sleep in the list that [`Self::finish`] returns.
    pub(crate) fn place(&mut self, asleep: Asleep, frames: &Frames) -> u32 {
        if let Some(known) = self.known.get(&asleep) {
            return *known;
        }
        let sleep = Stacks::new(&asleep, frames).sleep(&asleep);
        let next = self.all.len() as u32;
        let place = *self.by_sleep.entry(sleep).or_insert_with_key(|sleep| {
            self.all.push(sleep.clone());
            next
        });
        self.known.insert(asleep, place);
        place
    }

    pub(crate) fn finish(self) -> Vec<Sleep> {
        self.all
    }
}

/// The native stack and the Python stack of a sleeping thread.
struct Stacks<'a> {
    /// Native functions on the stack between the system call and the program's innermost native
    /// function, the innermost first.
    inner: Vec<&'a Function>,
    /// The innermost native function that belongs to the program. `None` if there is none, or if it called the Python
    /// code that sleeps.
    native: Option<&'a Function>,
    /// Python functions on the stack, the innermost first.
    python: Vec<&'a Function>,
}

impl<'a> Stacks<'a> {
    fn new(asleep: &Asleep, frames: &'a Frames) -> Self {
        let functions = |innermost| {
            let stack = frames.stack(innermost).into_iter().rev();
            stack.filter_map(|function| frames.functions.get(function as usize))
        };
        Self::from(asleep, functions(asleep.native), functions(asleep.python))
    }

    /// Returns the stacks from lists of functions. Both iterators yield the innermost function
    /// first.
    fn from(
        asleep: &Asleep,
        native: impl Iterator<Item = &'a Function>,
        python: impl Iterator<Item = &'a Function>,
    ) -> Self {
        let mut inner = Vec::new();
        let mut own = None;
        for function in native {
            if function.origin == Origin::Program {
                own = Some(function);
                break;
            }
            inner.push(function);
        }
        // If the interpreter's frames lie between the system call and `own`, then `own` called Python, not the reverse.
        // The sleep is then in the Python function, so leave out `own`.
        let is_behind = inner.iter().any(|it| it.origin == Origin::Interpreter);
        Self {
            inner,
            native: own.filter(|_| !is_behind || asleep.python == 0),
            python: python.collect(),
        }
    }

    fn sleep(&self, asleep: &Asleep) -> Sleep {
        let (kind, what) = self.kind(asleep);
        let begins = match kind {
            SleepKind::Lock => "waiting for a lock",
            SleepKind::Work | SleepKind::Worker | SleepKind::Producer => FOR_WORK,
            SleepKind::Child => FOR_CHILD,
            SleepKind::Sleep => "asleep",
            SleepKind::File => "waiting for a file",
            SleepKind::Gpu => "waiting for the GPU",
            SleepKind::Poll | SleepKind::Other
                if asleep.call == Some(SystemCall::ReceiveFromService) =>
            {
                FOR_SERVICE
            }
            SleepKind::Called | SleepKind::Poll | SleepKind::Other => BLOCKED,
        };
        let place = self.place();
        Sleep {
            kind,
            cause: format!("{begins} in {place}: {what}"),
            location: self
                .native
                .or_else(|| self.python())
                .map(Function::location),
            producer: None,
        }
    }

    /// Returns the label of the program's function that sleeps. For a native function, the text also names the Python
    /// function that called it, if that function is known.
    fn place(&self) -> String {
        match (self.native, self.python()) {
            (Some(native), Some(python)) => format!("{}, called by {}", native.label, python.label),
            (Some(function), None) => function.label.clone(),
            (None, Some(function)) => function.label.clone(),
            (None, None) => "native code".to_owned(),
        }
    }

    /// Returns the innermost Python function that belongs to the program. If there is none, returns the innermost
    /// Python function. If there is no Python function at all, returns `None`.
    fn python(&self) -> Option<&'a Function> {
        let own = |function: &&&Function| function.origin == Origin::Program;
        let found = self.python.iter().find(own).or(self.python.first());
        found.copied()
    }

    /// Returns the kind of a sleep, and the name of the function that the program called to sleep:
    /// a function of the C library or, if none is known, the system call.
    fn kind(&self, asleep: &Asleep) -> (SleepKind, String) {
        use SystemCall as Call;
        let call = asleep.call.unwrap_or(Call::Other);
        let name = || self.called().unwrap_or(call.name()).to_owned();
        if self.calls(&GIL_WAITS) {
            return (SleepKind::Lock, "the GIL".to_owned());
        }
        if self.inner.iter().any(|it| it.origin == Origin::Driver) {
            return (SleepKind::Gpu, call.name().to_owned());
        }
        let ends_by_event = match (asleep.has_timeout, asleep.has_short_timeout) {
            (false, _) => SleepKind::Work,
            (true, true) => SleepKind::Poll,
            (true, false) => SleepKind::Other,
        };
        if let Some(kind) = SleepKind::of_call(call) {
            return (kind, name());
        }
        let kind = match call {
            Call::Poll
            | Call::Select
            | Call::EpollWait
            | Call::SignalWait
            | Call::ReadStream
            | Call::Receive
            | Call::Accept => ends_by_event,
            // A process that has connected to a service waits for its answer. That is no wait for work, even without a
            // time limit.
            Call::ReceiveFromService if asleep.has_short_timeout => SleepKind::Poll,
            Call::ReceiveFromService => SleepKind::Other,
            Call::Futex => return self.futex(asleep, ends_by_event),
            Call::WaitProcess => SleepKind::Child,
            _ => SleepKind::Other,
        };
        (kind, name())
    }

    /// Classifies a wait on a futex by the functions on the stack. `ends_by_event` is the kind to return if the
    /// thread waits for an event.
    fn futex(&self, asleep: &Asleep, ends_by_event: SleepKind) -> (SleepKind, String) {
        if let Some((waits, gives_work)) = self.python_waits() {
            let kind = match gives_work {
                true => ends_by_event,
                false => SleepKind::Other,
            };
            return (kind, waits.to_owned());
        }
        if asleep.python != 0 && self.native.is_none() && self.calls(&PYTHON_LOCKS) {
            return (SleepKind::Lock, "a Python lock".to_owned());
        }
        // A Python function that is not one of `PYTHON_WAITS` has called native code that waits for other threads. It
        // does not wait for new work, but for the end of what it called.
        let ends_by_event = match ends_by_event {
            SleepKind::Work if asleep.python != 0 => SleepKind::Called,
            SleepKind::Poll if asleep.python != 0 => SleepKind::Other,
            kind => kind,
        };
        let is_abseil = self.calls_part("absl::", "Wait") || self.calls_part("Absl", "Wait");
        let kind = match () {
            () if self.calls(&LOCKS) || self.calls_part("absl::", "LockSlow") => SleepKind::Lock,
            () if is_abseil || self.calls(&WAITS) => ends_by_event,
            () => SleepKind::Other,
        };
        let name = self.called().unwrap_or(SystemCall::Futex.name());
        (kind, name.to_owned())
    }

    /// Finds a function of Python's standard library in which the thread waits for another thread. Returns the
    /// function's name in the report, and true if the other thread may give work to this thread. If several such
    /// functions are on the stack, the one that the program called is used. Returns `None` if there is no such
    /// function.
    fn python_waits(&self) -> Option<(&'static str, bool)> {
        let of_library = |function: &&&Function| function.origin == Origin::PythonLibrary;
        let library = self.python.iter().take_while(of_library);
        let known = library.filter_map(|function| {
            let (name, place) = function.label.split_once(" (")?;
            let (name, file) = (name.rsplit('.').next()?, place.split(':').next()?);
            let is_it = |(of, method, ..): &&(&str, &str, _, _)| (*of, *method) == (file, name);
            PYTHON_WAITS.iter().find(is_it).map(|row| (row.2, row.3))
        });
        let is_queue = |function: &&Function| {
            function.name.contains("SimpleQueue") || function.label.starts_with("_queue.")
        };
        known.last().or_else(|| {
            let is_one = self.inner.iter().any(is_queue);
            is_one.then_some(("queue.SimpleQueue.get", true))
        })
    }

    /// Returns true if a function with one of these names was on the stack between the program and
    /// the system call.
    fn calls(&self, names: &[&str]) -> bool {
        let mut inner = self.inner.iter();
        inner.any(|function| names.contains(&plain(&function.name)))
    }

    /// Returns true if a function whose name begins with `library` and contains `part` was on the
    /// stack between the program and the system call.
    fn calls_part(&self, library: &str, part: &str) -> bool {
        let is_it = |name: &str| name.starts_with(library) && name.contains(part);
        self.inner.iter().any(|function| is_it(&function.name))
    }

    /// Returns the function of the C library that was called by code outside the C library; `None` if the system call
    /// was not made in the C library.
    fn called(&self) -> Option<&str> {
        let of_library = |function: &&&Function| function.origin == Origin::C;
        let last = self.inner.iter().take_while(of_library).last()?;
        let name = plain(&last.name);
        // Some public functions of glibc jump to an internal function, so only the internal function is on the stack.
        // Return the name of the public function.
        let name = match name {
            "do_system" => "system",
            "spawni" | "spawnix" => "posix_spawn",
            other => other,
        };
        let is_of_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
        (!name.is_empty() && name.chars().all(is_of_name)).then_some(name)
    }
}

/// Returns a function's name without its version suffix, leading underscores and arguments.
fn plain(name: &str) -> &str {
    let name = name.split(['@', '(']).next().unwrap_or_default();
    name.trim_start_matches('_')
}

/// Functions of the Python interpreter in which a thread waits for the GIL.
const GIL_WAITS: [&str; 4] = [
    "take_gil",
    "PyEval_RestoreThread",
    "PyEval_AcquireThread",
    "PyGILState_Ensure",
];

const LOCKS: [&str; 15] = [
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_mutex_clocklock",
    "pthread_mutex_cond_lock",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_wrlock",
    "pthread_rwlock_timedrdlock",
    "pthread_rwlock_timedwrlock",
    "pthread_spin_lock",
    "sem_wait",
    "sem_timedwait",
    "sem_clockwait",
    "lll_lock_wait",
    "<std::sys::sync::mutex::futex::Mutex>::lock_contended",
    "std::sys::sync::mutex::futex::Mutex::lock_contended",
];

const WAITS: [&str; 8] = [
    "pthread_cond_wait",
    "pthread_cond_timedwait",
    "pthread_cond_clockwait",
    "<std::sys::sync::condvar::futex::Condvar>::wait",
    "std::sys::sync::condvar::futex::Condvar::wait",
    "<std::sys::sync::condvar::futex::Condvar>::wait_timeout",
    "std::sys::sync::condvar::futex::Condvar::wait_timeout",
    "std::thread::park",
];

/// Functions of the Python interpreter in which a thread waits for a Python lock.
const PYTHON_LOCKS: [&str; 4] = [
    "PyThread_acquire_lock",
    "PyThread_acquire_lock_timed",
    "acquire_timed",
    "PyMutex_LockTimed",
];

/// Functions of Python's standard library that wait for another thread. Each row has the function's file, its name, its
/// name in the report, and true if the other thread may give work to the waiting thread. If false, the waiting thread
/// needs the other thread to finish something, such as a function whose result it needs.
const PYTHON_WAITS: [(&str, &str, &str, bool); 8] = [
    ("thread.py", "_worker", "an executor's queue", true),
    ("queue.py", "get", "queue.get", true),
    ("queue.py", "put", "queue.put", false),
    ("threading.py", "wait", "threading.wait", true),
    ("threading.py", "wait_for", "threading.wait_for", true),
    ("threading.py", "join", "threading.join", false),
    (
        "threading.py",
        "acquire",
        "threading.Semaphore.acquire",
        false,
    ),
    ("_base.py", "result", "concurrent.futures.result", false),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, origin: Origin) -> Function {
        Function {
            name: name.to_owned(),
            label: name.to_owned(),
            origin,
        }
    }

    /// Returns the kind and the cause of a sleep. `native` and `python` are the stacks' functions,
    /// the innermost first.
    fn sleep(
        call: SystemCall,
        has_timeout: bool,
        native: &[(&str, Origin)],
        python: &[(&str, Origin)],
    ) -> (SleepKind, String) {
        let all = |rows: &[(&str, Origin)]| -> Vec<Function> {
            let rows = rows.iter().copied();
            rows.map(|(name, origin)| function(name, origin)).collect()
        };
        let (native, python) = (all(native), all(python));
        let asleep = Asleep {
            call: Some(call),
            has_timeout,
            has_short_timeout: false,
            native: 1,
            python: u32::from(!python.is_empty()),
        };
        let stacks = Stacks::from(&asleep, native.iter(), python.iter());
        let Sleep { kind, cause, .. } = stacks.sleep(&asleep);
        (kind, cause)
    }

    const MAIN: (&str, Origin) = ("main", Origin::Program);
    const STEP: (&str, Origin) = ("step (engine.py:3)", Origin::Program);
    const EVAL: (&str, Origin) = ("_PyEval_EvalFrameDefault", Origin::Interpreter);

    fn found(kind: SleepKind, cause: &str) -> (SleepKind, String) {
        (kind, cause.to_owned())
    }

    #[test]
    fn who_has_connected_to_a_service_waits_for_it_and_not_for_work() {
        let recv = [("recv", Origin::C), EVAL, MAIN];
        assert_eq!(
            sleep(SystemCall::ReceiveFromService, false, &recv, &[STEP]),
            found(
                SleepKind::Other,
                "waiting for a service in step (engine.py:3): recv"
            )
        );
        assert_eq!(
            sleep(SystemCall::Receive, false, &recv, &[STEP]),
            found(
                SleepKind::Work,
                "waiting for work in step (engine.py:3): recv"
            )
        );
    }

    #[test]
    fn a_sleep_is_of_the_programs_function_and_of_what_it_called() {
        use Origin::{C, Driver, Program, Runtime};
        let looks = ("look_for_requests", Program);
        let usleep = [
            ("clock_nanosleep@@GLIBC_2.17", C),
            ("__usleep", C),
            looks,
            MAIN,
        ];
        assert_eq!(
            sleep(SystemCall::ClockNanosleep, true, &usleep, &[]),
            found(SleepKind::Sleep, "asleep in look_for_requests: usleep")
        );
        let lock = [("libc.so.6+0x88", C), ("___pthread_mutex_lock", C), looks];
        assert_eq!(
            sleep(SystemCall::Futex, false, &lock, &[]),
            found(
                SleepKind::Lock,
                "waiting for a lock in look_for_requests: pthread_mutex_lock"
            )
        );
        let wait = [
            ("pthread_cond_wait@@GLIBC_2.3.2", C),
            ("std::condition_variable::wait()", Runtime),
            looks,
        ];
        assert_eq!(
            sleep(SystemCall::Futex, false, &wait, &[]),
            found(
                SleepKind::Work,
                "waiting for work in look_for_requests: pthread_cond_wait"
            )
        );
        let (kind, _) = sleep(SystemCall::Futex, true, &wait, &[]);
        assert_eq!(kind, SleepKind::Other, "its time limit may end it");
        let gpu = [("poll", C), ("libcuda.so.1+0x77", Driver), looks];
        assert_eq!(
            sleep(SystemCall::Poll, true, &gpu, &[]),
            found(
                SleepKind::Gpu,
                "waiting for the GPU in look_for_requests: poll"
            )
        );
        assert_eq!(
            sleep(SystemCall::Fsync, false, &[], &[]),
            found(SleepKind::File, "waiting for a file in native code: fsync")
        );
        // If no function on the stack is known as a wait, the cause names only the system call.
        let (kind, cause) = sleep(SystemCall::Futex, false, &[MAIN], &[]);
        assert_eq!(
            (kind, &*cause),
            (SleepKind::Other, "blocked in main: futex")
        );
    }

    #[test]
    fn a_wait_for_a_child_process_is_of_the_function_that_started_it() {
        use Origin::{C, Program};
        let converts = ("convert", Program);
        let system = [("wait4", C), ("do_system", C), converts, MAIN];
        assert_eq!(
            sleep(SystemCall::WaitProcess, false, &system, &[]),
            found(
                SleepKind::Child,
                "waiting for a child process in convert: system"
            )
        );
        let system = [("wait4", C), ("do_system", C), EVAL, MAIN];
        assert_eq!(
            sleep(SystemCall::WaitProcess, false, &system, &[STEP]),
            found(
                SleepKind::Child,
                "waiting for a child process in step (engine.py:3): system"
            )
        );
    }

    #[test]
    fn a_python_function_is_named_by_what_it_called() {
        use Origin::{C, Interpreter, Program, PythonLibrary};
        let lock = [
            ("sem_wait", C),
            ("PyThread_acquire_lock_timed", Interpreter),
            EVAL,
            MAIN,
        ];
        let of_futex = |has_timeout, python: &[(&str, Origin)]| {
            sleep(SystemCall::Futex, has_timeout, &lock, python)
        };
        assert_eq!(
            of_futex(false, &[STEP]),
            found(
                SleepKind::Lock,
                "waiting for a lock in step (engine.py:3): a Python lock"
            )
        );
        let wait = ("Condition.wait (threading.py:288)", PythonLibrary);
        let get = ("Queue.get (queue.py:154)", PythonLibrary);
        assert_eq!(
            of_futex(false, &[wait, get, STEP]),
            found(
                SleepKind::Work,
                "waiting for work in step (engine.py:3): queue.get"
            )
        );
        // In this test the thread waits for the result of a function that another thread runs.
        let result = ("Future.result (_base.py:401)", PythonLibrary);
        assert_eq!(
            of_futex(false, &[wait, result, STEP]),
            found(
                SleepKind::Other,
                "blocked in step (engine.py:3): concurrent.futures.result"
            )
        );
        // Before Python 3.11, recorded function names do not include the class.
        let old = ("wait (threading.py:288)", PythonLibrary);
        let (kind, cause) = of_futex(true, &[old, STEP]);
        assert_eq!(
            (kind, &*cause),
            (
                SleepKind::Other,
                "blocked in step (engine.py:3): threading.wait"
            )
        );
        let extension = [("nanosleep", C), ("wait_native", Program), EVAL, MAIN];
        assert_eq!(
            sleep(SystemCall::Nanosleep, true, &extension, &[STEP]),
            found(
                SleepKind::Sleep,
                "asleep in wait_native, called by step (engine.py:3): nanosleep"
            )
        );
        // A function that waits for other threads in native code, such as a compiler's threads, waits for no work.
        let compiler = [
            ("syscall", C),
            ("absl::Notification::WaitForNotification()", Origin::Runtime),
            ("compile_module", Program),
            EVAL,
            MAIN,
        ];
        assert_eq!(
            sleep(SystemCall::Futex, false, &compiler, &[STEP]),
            found(
                SleepKind::Called,
                "blocked in compile_module, called by step (engine.py:3): syscall"
            )
        );
        let gil = [
            ("pthread_cond_timedwait", C),
            ("take_gil", Interpreter),
            EVAL,
        ];
        assert_eq!(
            sleep(SystemCall::Futex, true, &gil, &[STEP]),
            found(
                SleepKind::Lock,
                "waiting for a lock in step (engine.py:3): the GIL"
            )
        );
    }
}
