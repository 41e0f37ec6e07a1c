//! The thread that takes the samples. It runs while a window (a recorded interval) is open and at least one followed
//! thread lives. Before the first window it runs as well if the record keeps the latest iterations, but it ends while the
//! process makes no iterations.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_config::variable;
use tllmprof_platform::ids;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::own_threads::{self, OwnThread, ThreadKind};
use tllmprof_platform::panics::contained;
use tllmprof_platform::system::{name_thread, processor_time};
use tllmprof_platform::thread::uncounted;
use tllmprof_python::stacks::{self as python, CodeNames, Ready, Target, Walked, Walker};
use tllmprof_recorder::{self as recorder, Event, StringId, Taken, ThreadState, What};
use tllmprof_session::activity;
use tllmprof_sync::{Lock, wait, wake};

use super::asleep::{self, Asleep};
use super::files::{self, LOOP_THREADS, MAX_THREADS, TaskId};
use super::followed::{self, Followed};
use super::frames::Frames;
use super::loops::LoopThreads;
use super::modules::Modules;
use super::native::{self, Ring};
use super::others::{OtherTasks, SelectedTask, is_wait};
use super::scheduled::{Scheduled, ThreadActivity};
use super::unwind::Unwinder;

const NO_THREAD: u32 = 0;
const SAMPLES: u32 = 1;
/// Value of [`WORD`]: the sampling thread has been asked to end.
const ENDS: u32 = 2;

/// The longest time that the end of a window (a recorded interval) waits for the sampling thread to end.
const END_TIMEOUT: Duration = Duration::from_millis(100);
/// Time between two searches of the Python interpreter for a thread that was not found there.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the sampling thread checks if only threads of the library are left in the process, and if the
/// process still makes iterations.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time without iterations and launches after which the sampling thread ends while no window is open. So a process that
/// waits for requests for long is not sampled.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of the sampling thread's stack in bytes.
const STACK_BYTES: usize = 256 << 10;

lifecycle::global! {
    stage: Sinks;

    /// The state of the sampling thread: `NO_THREAD`, `SAMPLES` or `ENDS`.
    #[fork(reset)]
    #[exit = "the thread is asked to end"]
    static WORD: AtomicU32 = AtomicU32::new(NO_THREAD);
    /// True while a window (a recorded interval) is open in which stacks are sampled.
    #[fork(reset)]
    static IS_OPEN: AtomicBool = AtomicBool::new(false);
    /// True if a thread has begun an iteration or launched work since the sampling thread last looked.
    #[fork(reset)]
    static IS_ACTIVE: AtomicBool = AtomicBool::new(false);
    /// True if the kernel has refused to record native stacks of this process, so that they are not requested
    /// again.
    #[fork(keep = "it does not in a child either")]
    static IS_REFUSED: AtomicBool = AtomicBool::new(false);
    /// Ids of strings and frames that one sampling thread leaves to the next. Each window (a recorded interval) has
    /// its own sampling thread.
    #[fork(reset)]
    static KEPT: Lock<Option<Box<StringIds>>> = Lock::new(None);
}

/// Ids of strings and frames. The ids are valid as long as the strings are in the record.
#[derive(Default)]
struct StringIds {
    /// The era of the record's strings in which the ids are valid. A new era begins when a window opens in a record
    /// that drops old windows with their strings: strings are then written again, with new ids.
    era: u32,
    names: CodeNames,
    /// The frames of Python stacks. Each kind of stack has its own table, so that native stacks, which are many and
    /// deep while code is compiled, do not use up the frames of the others.
    python: Frames,
    /// The frames of native stacks of sleeping threads.
    asleep: Frames,
    /// The frames of native stacks that the kernel has recorded.
    native: Frames,
    modules: Modules,
    unwinder: Unwinder,
}

impl StringIds {
    /// Resets all ids if a new era has begun, in which strings get new ids. Returns true if the ids were reset.
    fn keep_up(&mut self) -> bool {
        let era = recorder::era();
        let is_behind = self.era != era;
        if is_behind {
            *self = Self {
                era,
                ..Self::default()
            };
        }
        is_behind
    }

    /// Reads the list of modules again, and drops cached data about their code, if modules were
    /// loaded or unloaded.
    fn look(&mut self) {
        if self.modules.look() {
            self.unwinder.forget();
        }
    }

    /// Returns the id of the innermost frame of a sleeping thread's native stack, which does not change while
    /// the thread sleeps. Returns 0 if the stack cannot be read.
    fn stack_of(&mut self, asleep: &Asleep, addresses: &mut Vec<usize>) -> u32 {
        self.look();
        addresses.clear();
        self.unwinder.unwind(
            &self.modules,
            asleep.registers,
            asleep.process_start(),
            addresses,
        );
        innermost(&mut self.asleep, &mut self.modules, addresses)
    }

    /// Returns the id of the innermost frame of a native sample. The stack is unwound with the modules'
    /// tables. If the unwinding stops early and frame pointers lead further, the frame pointers are used.
    fn sampled(&mut self, sample: &native::NativeSample<'_>, addresses: &mut Vec<usize>) -> u32 {
        addresses.clear();
        let Self {
            unwinder,
            modules,
            native,
            ..
        } = self;
        let is_all = sample.copy.is_some_and(|(registers, stack)| {
            unwinder.unwind_copy(modules, registers, stack, addresses)
        });
        if !is_all {
            // An address outside modules is not a caller: the program used the frame pointer register for another
            // purpose. So the chain of callers ends before that address.
            let is_code = |address: &usize| modules.unwind_table(*address).is_some();
            let mut chain = sample.by_frame_pointers();
            let innermost = chain.next();
            let chain: Vec<_> = innermost
                .into_iter()
                .chain(chain.take_while(is_code))
                .collect();
            if chain.len() > addresses.len() {
                *addresses = chain;
            }
        }
        innermost(native, modules, addresses)
    }
}

/// Returns the id of the innermost frame of a native stack. `addresses` are code addresses in its functions,
/// innermost first.
fn innermost(frames: &mut Frames, modules: &mut Modules, addresses: &[usize]) -> u32 {
    let outermost_first = addresses.iter().rev();
    frames.innermost(outermost_first.map(|address| modules.string(*address)))
}

/// Returns the number of samples per second that the settings request.
fn rate() -> Option<u64> {
    activity::settings()?.stacks
}

/// Returns true if the user has set the environment variable with the name `variable`. Then a failure of what it
/// requests must be reported.
fn is_asked_for(variable: &str) -> bool {
    activity::settings().is_none_or(|settings| !settings.is_auto(variable))
}

/// Returns true if native stacks are sampled in addition to Python stacks.
fn takes_native() -> bool {
    let is_asked = activity::settings().is_some_and(|settings| settings.native_stacks);
    is_asked && !IS_REFUSED.load(Ordering::Relaxed)
}

/// Starts sampling. Called when a window (a recorded interval) opens, and when a record begins that keeps the latest
/// iterations until the first window opens.
pub(crate) fn window_opens() {
    if rate().is_none() {
        return;
    }
    if !recorder::is_on() {
        if let Some(settings) = activity::settings()
            && is_asked_for(variable::stacks)
        {
            let missing = recorder::missing(settings);
            log::once!(
                Warn,
                "TLLMPROF_STACKS: no stacks are sampled, as the record would hold them: {missing}{}",
                missing.remedy()
            );
        }
        return;
    }
    // Threads that launch work for another thread's steps are followed, too.
    recorder::at_launches(iteration_begins);
    recorder::host_functions::clear();
    IS_OPEN.store(true, Ordering::Release);
}

/// Adds the calling thread to the threads whose stacks are sampled, and starts the sampling thread if it does not run.
/// Called when an iteration begins on the calling thread, and when this thread launches work.
pub(crate) fn iteration_begins() {
    if !IS_OPEN.load(Ordering::Acquire) {
        return;
    }
    IS_ACTIVE.store(true, Ordering::Relaxed);
    if let Some(Err(trouble)) = python::ready() {
        if is_asked_for(variable::stacks) {
            log::once!(
                Warn,
                "TLLMPROF_STACKS: no Python stacks are sampled: {trouble}"
            );
        }
        // A sampling thread would find nothing to sample and end at once. So none is started.
        if !takes_native() {
            return;
        }
    }
    followed::follow();
    let is_new = WORD
        .compare_exchange(NO_THREAD, SAMPLES, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok();
    if is_new && !own_threads::start(ThreadKind::Stacks, STACK_BYTES, main) {
        IS_OPEN.store(false, Ordering::Release);
        WORD.store(NO_THREAD, Ordering::Release);
        log::once!(
            Warn,
            "TLLMPROF_STACKS: no thread could be started that samples stacks"
        );
    }
}

/// Stops sampling, and waits for the sampling thread to end. Called when the window (a recorded interval) closes.
pub(crate) fn window_closes() {
    process_ends();
    let deadline = Instant::now() + END_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if WORD.load(Ordering::Acquire) != ENDS || left.is_zero() {
            break;
        }
        wait(&WORD, ENDS, left);
    }
    followed::forget_all();
}

/// Asks the sampling thread to stop, without waiting for it.
pub(crate) fn process_ends() {
    IS_OPEN.store(false, Ordering::Release);
    let told = WORD.compare_exchange(SAMPLES, ENDS, Ordering::AcqRel, Ordering::Relaxed);
    if told.is_ok() {
        own_threads::ends(ThreadKind::Stacks);
        wake_all();
    }
}

fn wake_all() {
    wake(&WORD, i32::MAX);
}

extern "C-unwind" fn main(_: *mut c_void) -> *mut c_void {
    contained((), || {
        let _own = OwnThread::new(ThreadKind::Stacks, &(wake_all as fn()));
        name_thread(c"tllmprof-stacks");
        uncounted(&mut || contained((), run));
        files::close_all();
    });
    WORD.store(NO_THREAD, Ordering::Release);
    wake(&WORD, i32::MAX);
    core::ptr::null_mut()
}

fn run() {
    let Some(rate) = rate() else { return };
    let kept = KEPT.lock_for(END_TIMEOUT).and_then(|mut kept| kept.take());
    let mut sampler = SamplingThread {
        process: ids::process(),
        kept: kept.unwrap_or_default(),
        period: 1_000_000_000 / rate.max(1),
        threads: Vec::new(),
        functions: Vec::new(),
        addresses: Vec::new(),
        loops: LoopThreads::default(),
        others: OtherTasks::new(Duration::from_nanos(1_000_000_000 / rate.max(1))),
        waiting: Vec::new(),
    };
    sampler.run();
    sampler.take_native();
    sampler.write_host_functions();
    if let Some(mut kept) = KEPT.lock_for(END_TIMEOUT) {
        *kept = Some(sampler.kept);
    }
}

/// The sampler's data about a thread that it samples, kept from one sample to the next.
struct SampledThread {
    number: i32,
    walker: Walker,
    scheduled: Scheduled,
    native: Option<Ring>,
    /// The thread's state at the last sample; `None` if the thread did not sleep then.
    slept: Option<Slept>,
    /// The thread's Python thread state, if the thread was found in the interpreter.
    target: Option<Target>,
    /// The time at which the interpreter was last searched for the thread.
    searched: Option<Instant>,
}

/// The state of a thread that slept at a sample. If the thread has used no processor time since and
/// sleeps in the same call, it has not woken, so its stacks have not changed.
#[derive(Clone, Copy)]
struct Slept {
    used: u64,
    era: u32,
    at: Asleep,
    /// The event that was written to the record for the sample at which the thread slept.
    sample: What,
    asleep: What,
}

/// The state of the Python interpreter in this process, as far as it matters to samples.
enum InterpreterState {
    NotThere,
    Read(&'static Ready),
    /// An interpreter runs, but its stacks cannot be read.
    Hidden,
}

struct SamplingThread {
    process: i32,
    /// The mean interval between two samples, in ns.
    period: u64,
    kept: Box<StringIds>,
    threads: Vec<SampledThread>,
    /// The functions of the stack that is being sampled, innermost first. Kept here so that the
    /// memory is reused.
    functions: Vec<StringId>,
    /// The addresses of the native stack that is being sampled, innermost first. Kept here so that
    /// the memory is reused.
    addresses: Vec<usize>,
    loops: LoopThreads,
    others: OtherTasks,
    /// The followed threads that wait at the current sample.
    waiting: Vec<Waiting>,
}

/// A followed thread that waits for something at the current sample.
#[derive(Clone, Copy)]
struct Waiting {
    thread: Followed,
    /// The start of the thread's sample in ticks.
    start: u64,
    /// True if the thread has not woken since its previous sample.
    continues: bool,
    /// The child process for whose end the thread waits, if it waits for that.
    awaited: Option<i32>,
}

impl SamplingThread {
    /// Takes samples until the thread is asked to end, or until no thread is left to sample.
    fn run(&mut self) {
        let mut intervals = Intervals::new(self.period);
        let mut next = Instant::now();
        let mut looked = next;
        let mut active = next;
        loop {
            // The next interval starts at the planned time of the last sample, so the time that
            // sampling takes does not lengthen the intervals. Samples that this thread missed
            // because it did not run are skipped.
            next = (next + intervals.next()).max(Instant::now());
            if !sleep_until(next) {
                return;
            }
            if !recorder::is_on() {
                return;
            }
            if next.saturating_duration_since(looked) >= CHECK_INTERVAL {
                looked = next;
                let is_active = IS_ACTIVE.swap(false, Ordering::Relaxed)
                    || recorder::is_recording()
                    || recorder::keeps_span();
                if is_active {
                    active = next;
                }
                let is_idle = next.saturating_duration_since(active) >= IDLE_TIMEOUT;
                if is_idle || own_threads::are_alone() {
                    return;
                }
            }
            if recorder::is_keeping() && !self.sample() {
                return;
            }
        }
    }

    /// Samples each followed thread once, and then the threads that run an event loop and the other threads. Returns
    /// false if no followed thread is left, or if the interpreter's stacks cannot be read and native stacks are not
    /// sampled.
    fn sample(&mut self) -> bool {
        self.take_native();
        self.waiting.clear();
        let interpreter = match python::ready() {
            None => InterpreterState::NotThere,
            Some(Ok(ready)) => InterpreterState::Read(ready),
            Some(Err(_)) if takes_native() => InterpreterState::Hidden,
            Some(Err(_)) => return false,
        };
        let mut is_anybody_left = false;
        for thread in followed::all() {
            if self.loops.give_up(thread.number) {
                // Until now this thread only ran an event loop, so its data has no ring buffer for native stacks. The
                // data is created again.
                self.threads.retain(|known| known.number != thread.number);
            }
            let is_left = self.sample_one(&interpreter, thread);
            if !is_left {
                // A later thread may get this index. Its files must then be opened anew.
                files::close(thread.place);
                followed::forget(thread);
                self.threads.retain(|known| known.number != thread.number);
            }
            is_anybody_left |= is_left;
        }
        self.sample_loops(&interpreter);
        self.sample_others(&interpreter);
        let (others, loops) = (&self.others, &self.loops);
        self.threads.retain(|known| {
            is_followed(known.number)
                || loops.has_thread(known.number)
                || others.has_thread(known.number)
        });
        is_anybody_left
    }

    /// Samples the threads that run an event loop. Their stacks show whether the loop waits for events, or which
    /// callback it runs.
    fn sample_loops(&mut self, interpreter: &InterpreterState) {
        let InterpreterState::Read(ready) = interpreter else {
            return;
        };
        for thread in self.loops.look(self.process, ready, is_followed) {
            if !self.sample_one(interpreter, thread) {
                self.loops.forget(thread);
                self.threads.retain(|known| known.number != thread.number);
            }
        }
    }

    /// Samples the other threads and child processes that may be the cause of the followed threads' waits. Does nothing
    /// if no followed thread waits.
    fn sample_others(&mut self, interpreter: &InterpreterState) {
        let waiting: Vec<_> = self.waiting.iter().map(|one| one.thread).collect();
        if waiting.is_empty() {
            return;
        }
        let awaited: Vec<_> = self.waiting.iter().filter_map(|one| one.awaited).collect();
        let is_new = self.waiting.iter().any(|one| !one.continues);
        let selected = self.others.look(&waiting, &awaited, is_new);
        for task in &selected {
            if let TaskId::Thread(number) = task.files.id
                && !is_followed(number)
                && !self.loops.has_thread(number)
            {
                self.sample_other(interpreter, task, number);
            }
        }
        for task in &selected {
            let what = task.event();
            for one in &self.waiting {
                if task.files.id != TaskId::Thread(one.thread.number) {
                    recorder::event(one.start, 0, task.event_for(what, one.awaited));
                }
            }
        }
    }

    /// Samples the thread with the id `number`, which is not followed but may be the cause of a followed thread's wait.
    fn sample_other(&mut self, interpreter: &InterpreterState, task: &SelectedTask, number: i32) {
        let is_it = |known: &&SampledThread| known.number == number;
        let known = self.threads.iter().find(is_it);
        let now = Instant::now();
        let searched = known.and_then(|known| known.searched);
        let is_late = searched.is_none_or(|at| now.duration_since(at) >= SEARCH_INTERVAL);
        let target = match (known, interpreter) {
            (Some(known), _) if known.target.is_some() => known.target,
            (_, InterpreterState::Read(ready)) if is_late => python::find_thread(ready, number),
            _ => None,
        };
        let thread = Followed {
            place: task.files.place,
            number,
            target,
        };
        let is_left = self.sample_one(interpreter, thread);
        match self.threads.iter_mut().find(|known| known.number == number) {
            Some(known) if is_left => {
                known.target = target;
                known.searched = if is_late { Some(now) } else { searched };
            }
            _ => self.threads.retain(|known| known.number != number),
        }
    }

    /// Samples one thread. Returns false if the thread has ended, or if the kernel refuses to copy the process's
    /// memory.
    fn sample_one(&mut self, interpreter: &InterpreterState, thread: Followed) -> bool {
        let start = recorder::ticks();
        if self.kept.keep_up() {
            self.others.forget_names();
        }
        // SAFETY: the function takes no arguments.
        let ours = unsafe { libc::sched_getcpu() };
        let Some(used) = processor_time(thread.number) else {
            return false;
        };
        let Some(index) = self.known(thread) else {
            return false;
        };
        if let Some(slept) = self.still_sleeps(index, thread, used) {
            write(start, slept.sample, Some(slept.asleep));
            self.note_wait(thread, start, &slept);
            return true;
        }
        let found = match (interpreter, thread.target) {
            (InterpreterState::Read(ready), Some(target)) => self.walk(ready, index, target),
            (InterpreterState::Read(_), None) | (InterpreterState::NotThere, _) => {
                Ok((Taken::NoPython, 0))
            }
            // The stacks of the interpreter cannot be read, so it is unknown if the thread is in a
            // Python function. No sample is written.
            (InterpreterState::Hidden, _) => return true,
        };
        let state = match self.threads[index].scheduled.seen(thread, used, ours) {
            ThreadActivity::There(state) => state,
            ThreadActivity::Unread => {
                warn_unread(thread);
                return true;
            }
            ThreadActivity::Gone => return false,
        };
        let (taken, frame) = match found {
            Ok(found) => found,
            Err(error) => {
                // The kernel refuses to copy the process's memory, so no Python stack can be read. Until the next
                // window opens, no further thread is followed.
                IS_OPEN.store(false, Ordering::Release);
                let trouble = python::Trouble::Refused(error);
                log::once!(
                    Warn,
                    "TLLMPROF_STACKS: no more stacks are sampled: {trouble}"
                );
                return false;
            }
        };
        let sample = What::Sample {
            taken,
            state,
            thread: thread.number.cast_unsigned(),
            frame,
        };
        let slept = match state {
            Some(ThreadState::Sleeping) => self.sleeps(index, thread, sample),
            _ => None,
        };
        let asleep = slept.as_ref().map(|slept| slept.asleep);
        write(start, sample, asleep);
        if let Some(slept) = &slept {
            self.note_wait(thread, start, slept);
        }
        self.threads[index].slept = slept;
        true
    }

    /// Adds a followed thread to `waiting` if another thread or a child process can end the system call in which it
    /// sleeps.
    fn note_wait(&mut self, thread: Followed, start: u64, slept: &Slept) {
        let What::Asleep {
            call: Some(call),
            continues,
            ..
        } = slept.asleep
        else {
            return;
        };
        if thread.place < MAX_THREADS && is_wait(call) {
            self.waiting.push(Waiting {
                thread,
                start,
                continues,
                awaited: slept.at.awaited(),
            });
        }
    }

    /// Returns the state of a thread at the last sample, if the thread slept then and has not run
    /// since. `used` is its processor time in ns.
    fn still_sleeps(&mut self, index: usize, thread: Followed, used: u64) -> Option<Slept> {
        let known = &mut self.threads[index];
        let slept = known.slept?;
        let is_same = slept.used == used && slept.era == self.kept.era;
        if !is_same || asleep::look(thread.files())? != slept.at {
            return None;
        }
        known.scheduled.still_sleeps();
        if let Some(Slept {
            asleep: What::Asleep { continues, .. },
            ..
        }) = &mut known.slept
        {
            *continues = true;
        }
        known.slept
    }

    /// Returns the index of a thread in `threads`, and adds the thread if it is new. Returns `None`
    /// if the thread has ended.
    fn known(&mut self, thread: Followed) -> Option<usize> {
        let is_it = |known: &SampledThread| known.number == thread.number;
        if let Some(index) = self.threads.iter().position(is_it) {
            return Some(index);
        }
        self.threads.push(SampledThread {
            number: thread.number,
            walker: Walker::default(),
            scheduled: Scheduled::begin(thread)?,
            native: open_native(thread, self.period),
            slept: None,
            target: thread.target,
            searched: None,
        });
        Some(self.threads.len() - 1)
    }

    /// Reads the Python stack of a thread. Returns whether it could be read, and the id of its innermost frame (0 if
    /// there is none). The error is the `errno` with which the kernel refuses to copy the process's memory.
    fn walk(&mut self, ready: &Ready, index: usize, target: Target) -> Result<(Taken, u32), c_int> {
        let walker = &mut self.threads[index].walker;
        match walker.walk(self.process, &ready.layout, target)? {
            Walked::Nothing => Ok((Taken::NoPython, 0)),
            Walked::Torn => Ok((Taken::Torn, 0)),
            Walked::Stack => {
                self.functions.clear();
                let functions = &mut self.functions;
                let codes = walker.codes();
                let StringIds { names, python, .. } = &mut *self.kept;
                let is_whole =
                    names.strings(self.process, ready, codes, |name| functions.push(name))?;
                Ok(if is_whole {
                    let outermost_first = functions.iter().rev().copied();
                    (Taken::Python, python.innermost(outermost_first))
                } else {
                    (Taken::Torn, 0)
                })
            }
        }
    }

    /// Returns the state of a sleeping thread, or `None` if it has woken or the kernel does not
    /// report its state.
    fn sleeps(&mut self, index: usize, thread: Followed, sample: What) -> Option<Slept> {
        let at = asleep::look(thread.files())?;
        let asleep = What::Asleep {
            call: Some(at.distinguish_streams(thread.files().id)),
            has_timeout: at.time_limit.is_given(),
            has_short_timeout: at.time_limit.is_short(),
            continues: false,
            thread: thread.number.cast_unsigned(),
            frame: self.kept.stack_of(&at, &mut self.addresses),
        };
        let slept = Slept {
            used: self.threads[index].scheduled.used(),
            era: self.kept.era,
            at,
            sample,
            asleep,
        };
        (asleep::look(thread.files())? == at).then_some(slept)
    }
}

/// Returns true if the thread with the id `number` is followed, because it makes steps or launches work.
fn is_followed(number: i32) -> bool {
    followed::all().any(|thread| thread.number == number)
}

/// Logs once why samples of a followed thread are missing.
fn warn_unread(thread: Followed) {
    if thread.place < MAX_THREADS {
        log::once!(
            Warn,
            "TLLMPROF_STACKS: samples are missing: the process has too few free file descriptors"
        );
    }
}

/// Writes a sample that began at the tick `start`, and the system call in which the thread slept,
/// if any.
fn write(start: u64, sample: What, asleep: Option<What>) {
    let took = recorder::ticks().saturating_sub(start);
    recorder::event(start, took, sample);
    if let Some(asleep) = asleep {
        recorder::event(start, took, asleep);
    }
}

impl SamplingThread {
    /// Writes the names of the host functions that the program has enqueued since the last call of this function.
    fn write_host_functions(&mut self) {
        let kept = &mut self.kept;
        recorder::host_functions::take(|address, count| {
            kept.keep_up();
            kept.look();
            let name = kept.modules.string(address);
            let what = What::HostFunction { name, count };
            recorder::late(&Event::new(recorder::ticks(), 0, what));
        });
    }

    /// Writes the native stacks that the kernel has recorded since the last call of this function.
    fn take_native(&mut self) {
        let Self {
            kept,
            threads,
            addresses,
            ..
        } = self;
        let mut rate = None;
        for thread in threads {
            let Some(ring) = &mut thread.native else {
                continue;
            };
            let number = thread.number.cast_unsigned();
            ring.each(|sample| {
                // A window may have opened since the last sample and begun a new era, in which strings and frames get
                // new ids.
                if kept.keep_up() || rate.is_none() {
                    kept.look();
                }
                let rate = *rate.get_or_insert_with(recorder::ticks_per_ns);
                let ago = native::now().saturating_sub(sample.time) as f64 * rate;
                let start = recorder::ticks().saturating_sub(ago as u64);
                let what = What::Sample {
                    taken: Taken::Native,
                    state: Some(ThreadState::Running),
                    thread: number,
                    frame: kept.sampled(sample, addresses),
                };
                recorder::late(&Event::new(start, 0, what));
            });
        }
    }
}

/// Opens the ring buffer for a thread's native stacks, if these are requested and the kernel allows it. If the kernel
/// refuses native stacks of any thread, no more native stacks are requested in this process. After another failure for
/// a followed thread, only the native stacks of this thread are missing. No native stacks are taken of threads that
/// only run an event loop, because each native stack interrupts the thread.
fn open_native(thread: Followed, period: u64) -> Option<Ring> {
    if !takes_native() || thread.place >= LOOP_THREADS {
        return None;
    }
    match Ring::open(thread.number, period) {
        Ok(ring) => Some(ring),
        Err(_) if thread.place >= MAX_THREADS => None,
        Err(refusal) => {
            let is_asked = is_asked_for(variable::native_stacks);
            if refusal.is_of_process() {
                IS_REFUSED.store(true, Ordering::Relaxed);
                if is_asked {
                    log::once!(
                        Warn,
                        "TLLMPROF_NATIVE_STACKS: no native stacks are sampled: {refusal}"
                    );
                }
            } else if is_asked && !refusal.has_thread_ended() {
                log::once!(
                    Warn,
                    "TLLMPROF_NATIVE_STACKS: native stacks of a thread are missing: {refusal}"
                );
            }
            None
        }
    }
}

/// Sleeps until the time `next`. Returns false if the thread has been asked to end.
fn sleep_until(next: Instant) -> bool {
    loop {
        let left = next.saturating_duration_since(Instant::now());
        if WORD.load(Ordering::Acquire) != SAMPLES {
            return false;
        }
        if left.is_zero() {
            return true;
        }
        wait(&WORD, SAMPLES, left);
    }
}

/// Random intervals between samples, evenly distributed from half a period to one and a half
/// periods. The intervals are random so that samples do not coincide with anything regular in the
/// program.
struct Intervals {
    period: u64,
    state: u64,
}

impl Intervals {
    fn new(period: u64) -> Self {
        Self {
            period,
            state: recorder::ticks() | 1,
        }
    }

    fn next(&mut self) -> Duration {
        // The next pseudo-random number, computed as in Marsaglia, "Xorshift RNGs".
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        Duration::from_nanos(self.period / 2 + self.state % self.period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_around_the_period() {
        let period = Duration::from_millis(5);
        let mut intervals = Intervals::new(5_000_000);
        let many: Vec<_> = (0..10_000).map(|_| intervals.next()).collect();
        assert!(
            many.iter()
                .all(|it| (period / 2..=period * 3 / 2).contains(it))
        );
        let mean = many.iter().sum::<Duration>() / 10_000;
        assert!(mean.abs_diff(period) < period / 50, "{mean:?}");
        assert!(many.iter().any(|it| *it < period * 6 / 10));
        assert!(many.iter().any(|it| *it > period * 14 / 10));
    }
}
