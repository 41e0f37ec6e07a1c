//! The thread that samples. It is there as long as a window is open and a thread that makes steps lives.

use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;
use std::time::Instant;

use tllmprof_platform::ids;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;
use tllmprof_platform::own_threads::{self, Kind, OwnThread};
use tllmprof_platform::panics::contained;
use tllmprof_platform::system::{name_thread, processor_time};
use tllmprof_platform::thread::uncounted;
use tllmprof_python::stacks::{self as python, Names, Ready, Walked, Walker};
use tllmprof_recorder::{self as recorder, Event, StringId, Taken, ThreadState, What};
use tllmprof_session::activity;
use tllmprof_sync::{Lock, wait, wake};

use super::followed::{self, Followed};
use super::frames::Frames;
use super::modules::Modules;
use super::native::{self, Ring};
use super::scheduled::{self, Scheduled, Seen};

const NO_THREAD: u32 = 0;
const SAMPLES: u32 = 1;
/// The thread is to end.
const ENDS: u32 = 2;

/// How long the end of a window waits for the thread's.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often it looks whether only the library's threads are left.
const LOOK: Duration = Duration::from_millis(100);
/// What it runs on.
const STACK: usize = 256 << 10;

lifecycle::global! {
    stage: Sinks;

    /// What the thread is about.
    #[fork(reset)]
    #[exit = "the thread is asked to end"]
    static WORD: AtomicU32 = AtomicU32::new(NO_THREAD);
    /// A window is open whose stacks are to be sampled.
    #[fork(reset)]
    static IS_OPEN: AtomicBool = AtomicBool::new(false);
    /// The kernel takes no native stacks.
    #[fork(keep = "it does not in a child either")]
    static IS_REFUSED: AtomicBool = AtomicBool::new(false);
    /// What one window's thread leaves to the next one's.
    #[fork(reset)]
    static KEPT: Lock<Option<Box<Kept>>> = Lock::new(None);
}

/// What is known for as long as the record's strings are the same.
#[derive(Default)]
struct Kept {
    /// The era of these.
    era: u32,
    names: Names,
    frames: Frames,
    modules: Modules,
}

impl Kept {
    /// Forgets all where a window has opened that has strings of its own; whether one has.
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
}

/// Samples a second that are asked for.
fn rate() -> Option<u64> {
    activity::settings()?.stacks
}

/// Whether native stacks are sampled, too.
fn takes_native() -> bool {
    let is_asked = activity::settings().is_some_and(|settings| settings.native_stacks);
    is_asked && !IS_REFUSED.load(Ordering::Relaxed)
}

/// A window has been opened.
pub fn window_opens() {
    if rate().is_none() {
        return;
    }
    if !recorder::is_on() {
        if let Some(settings) = activity::settings() {
            let missing = recorder::missing(settings);
            log::once!(
                Warn,
                "TLLMPROF_STACKS: no stacks are sampled, as the record would hold them: {missing}{}",
                missing.remedy()
            );
        }
        return;
    }
    IS_OPEN.store(true, Ordering::Release);
}

/// An iteration begins on the calling thread, which is followed from here on.
pub fn iteration_begins() {
    if !IS_OPEN.load(Ordering::Acquire) {
        return;
    }
    if let Some(Err(trouble)) = python::ready() {
        log::once!(
            Warn,
            "TLLMPROF_STACKS: no Python stacks are sampled: {trouble}"
        );
    }
    if !matches!(python::ready(), Some(Ok(_))) && !takes_native() {
        return;
    }
    followed::follow();
    let is_new = WORD
        .compare_exchange(NO_THREAD, SAMPLES, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok();
    if is_new && !own_threads::start(Kind::Stacks, STACK, main) {
        IS_OPEN.store(false, Ordering::Release);
        WORD.store(NO_THREAD, Ordering::Release);
        log::once!(
            Warn,
            "TLLMPROF_STACKS: no thread could be started that samples stacks"
        );
    }
}

/// The window closes.
pub fn window_closes() {
    process_ends();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if WORD.load(Ordering::Acquire) != ENDS || left.is_zero() {
            break;
        }
        wait(&WORD, ENDS, left);
    }
    followed::forget_all();
}

/// Nothing more is sampled. Waits for nothing.
pub fn process_ends() {
    IS_OPEN.store(false, Ordering::Release);
    let told = WORD.compare_exchange(SAMPLES, ENDS, Ordering::AcqRel, Ordering::Relaxed);
    if told.is_ok() {
        own_threads::ends(Kind::Stacks);
        wake_all();
    }
}

fn wake_all() {
    wake(&WORD, i32::MAX);
}

extern "C-unwind" fn main(_: *mut c_void) -> *mut c_void {
    contained((), || {
        let _own = OwnThread::new(Kind::Stacks, &(wake_all as fn()));
        name_thread(c"tllmprof-stacks");
        uncounted(&mut || contained((), run));
        scheduled::close_all();
    });
    WORD.store(NO_THREAD, Ordering::Release);
    wake(&WORD, i32::MAX);
    core::ptr::null_mut()
}

fn run() {
    let Some(rate) = rate() else { return };
    let kept = KEPT.lock_for(PATIENCE).and_then(|mut kept| kept.take());
    let mut sampler = Sampler {
        process: ids::process(),
        kept: kept.unwrap_or_default(),
        period: 1_000_000_000 / rate.max(1),
        threads: Vec::new(),
        functions: Vec::new(),
    };
    sampler.run();
    sampler.take_native();
    if let Some(mut kept) = KEPT.lock_for(PATIENCE) {
        *kept = Some(sampler.kept);
    }
}

/// One of the threads that are followed.
struct Thread {
    number: i32,
    walker: Walker,
    scheduled: Scheduled,
    native: Option<Ring>,
}

struct Sampler {
    process: i32,
    /// In nanoseconds.
    period: u64,
    kept: Box<Kept>,
    threads: Vec<Thread>,
    /// Of one stack, the innermost first.
    functions: Vec<StringId>,
}

impl Sampler {
    /// Samples until it is told to end, or until there is nobody left to be sampled.
    fn run(&mut self) {
        let mut intervals = Intervals::new(self.period);
        let mut next = Instant::now();
        let mut looked = next;
        loop {
            // From when the last sample was meant: a sample's own time does not add to the interval. A thread that
            // could not run for long does not catch up.
            next = (next + intervals.next()).max(Instant::now());
            if !sleep_until(next) {
                return;
            }
            if !recorder::is_on() {
                return;
            }
            if next.saturating_duration_since(looked) >= LOOK {
                looked = next;
                if own_threads::are_alone() {
                    return;
                }
            }
            if recorder::is_recording() && !self.sample() {
                return;
            }
        }
    }

    /// Samples all threads once; false if there is nobody left.
    fn sample(&mut self) -> bool {
        self.take_native();
        let ready = python::ready().and_then(|ready| ready.as_ref().ok());
        if ready.is_none() && !takes_native() {
            return false;
        }
        let mut is_anybody_left = false;
        for thread in followed::all() {
            let is_left = self.sample_one(ready, thread);
            if !is_left {
                followed::forget(thread);
                self.threads.retain(|known| known.number != thread.number);
            }
            is_anybody_left |= is_left;
        }
        is_anybody_left
    }

    /// Samples a thread; false where that has ended, or nothing can be read.
    fn sample_one(&mut self, ready: Option<&Ready>, thread: Followed) -> bool {
        let start = recorder::ticks();
        self.kept.keep_up();
        // SAFETY: takes nothing.
        let ours = unsafe { libc::sched_getcpu() };
        let Some(used) = processor_time(thread.number) else {
            return false;
        };
        let index = self
            .threads
            .iter()
            .position(|known| known.number == thread.number);
        let index = index.unwrap_or(self.threads.len());
        if index == self.threads.len() {
            let Some(scheduled) = Scheduled::begin(thread) else {
                return false;
            };
            self.threads.push(Thread {
                number: thread.number,
                walker: Walker::default(),
                scheduled,
                native: open_native(thread.number, self.period),
            });
        }
        let Some(ready) = ready else { return true };
        let known = &mut self.threads[index];
        let walked = match thread.target {
            Some(target) => known.walker.walk(self.process, &ready.layout, target),
            None => Ok(Walked::Nothing),
        };
        let Seen::There(state) = known.scheduled.seen(thread, used, ours) else {
            return false;
        };
        let found = walked.and_then(|walked| match walked {
            Walked::Nothing => Ok((Taken::NoPython, 0)),
            Walked::Torn => Ok((Taken::Torn, 0)),
            Walked::Stack => {
                self.functions.clear();
                let functions = &mut self.functions;
                let codes = known.walker.codes();
                let names = &mut self.kept.names;
                let is_whole =
                    names.strings(self.process, ready, codes, |name| functions.push(name))?;
                Ok(if is_whole {
                    let outermost_first = functions.iter().rev().copied();
                    (Taken::Python, self.kept.frames.innermost(outermost_first))
                } else {
                    (Taken::Torn, 0)
                })
            }
        });
        let (taken, frame) = match found {
            Ok(found) => found,
            Err(error) => {
                // Nothing is tried again in this process.
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
        recorder::event(start, recorder::ticks().saturating_sub(start), sample);
        true
    }
}

impl Sampler {
    /// Writes the native stacks that were taken since the last time.
    fn take_native(&mut self) {
        let Self {
            kept,
            threads,
            functions,
            ..
        } = self;
        let mut rate = None;
        for thread in threads {
            let Some(ring) = &mut thread.native else {
                continue;
            };
            let number = thread.number.cast_unsigned();
            ring.each(|time, addresses| {
                // A window may open meanwhile.
                if kept.keep_up() || rate.is_none() {
                    kept.modules.look();
                }
                let rate = *rate.get_or_insert_with(recorder::ticks_per_ns);
                functions.clear();
                functions.extend(addresses.map(|address| kept.modules.string(address)));
                let ago = native::now().saturating_sub(time) as f64 * rate;
                let start = recorder::ticks().saturating_sub(ago as u64);
                let sample = What::Sample {
                    taken: Taken::Native,
                    state: Some(ThreadState::Running),
                    thread: number,
                    frame: kept.frames.innermost(functions.iter().rev().copied()),
                };
                recorder::late(&Event::new(start, 0, sample));
            });
        }
    }
}

/// The native stacks of a thread, if they are asked for and the kernel takes them.
fn open_native(thread: i32, period: u64) -> Option<Ring> {
    if !takes_native() {
        return None;
    }
    match Ring::open(thread, period) {
        Ok(ring) => Some(ring),
        Err(refusal) => {
            IS_REFUSED.store(true, Ordering::Relaxed);
            log::once!(
                Warn,
                "TLLMPROF_NATIVE_STACKS: no native stacks are sampled: {refusal}"
            );
            None
        }
    }
}

/// Sleeps; false if the thread is to end.
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

/// Times between samples, evenly from half a period to one and a half: nothing in the program keeps step with them.
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
        // Marsaglia, "Xorshift RNGs".
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
