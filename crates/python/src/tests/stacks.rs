//! Tests that one thread can read the stack of another thread while the other thread runs.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::thread::{scope, sleep};
use std::time::Instant;

use tllmprof_platform::ids;
use tllmprof_platform::system::processor_time;

use super::hosted::{Host, in_each};
use crate::stacks::tests::{Snapshot, name_of};
use crate::stacks::{Ready, Walked, Walker, here, ready};

const ASKED: &[(&str, &str)] = &[("TLLMPROF_STACKS", "1"), ("TLLMPROF_TRACE", "record")];

/// Python source with functions that take 70, 20 and 10 % of the thread's processor time. Unlike
/// elapsed time, processor time does not depend on the load of the machine.
const THREE: &str = "
import time
def spin(share):
    until = time.thread_time() + share * 1e-4
    while time.thread_time() < until: pass
def seventy(): spin(7)
def twenty(): spin(2)
def ten(): spin(1)
def step():
    seventy()
    twenty()
    ten()
";

/// The sampled stacks as function names, innermost first; `None` for a stack that changed during the read (torn).
struct Seen {
    stacks: Vec<Option<Vec<String>>>,
    /// For each stack, true if the thread ran for more than half of the time between the previous read and this one.
    /// Other stacks are not counted: on a busy machine, a thread may wait for a long time in any function, which
    /// distorts the shares.
    ran: Vec<bool>,
    took: Duration,
}

impl Seen {
    fn torn(&self) -> f64 {
        let torn = self.stacks.iter().filter(|stack| stack.is_none()).count();
        torn as f64 / self.stacks.len() as f64
    }

    fn report(&self) {
        let count = self.stacks.len();
        println!(
            "{count} samples, {:?} each, {:.4} torn",
            self.took / count as u32,
            self.torn()
        );
    }

    /// Returns the number of stacks that contain a function. A stack counts only if the thread mostly ran before the
    /// stack was read (`ran`).
    fn count(&self, function: &str) -> usize {
        let ran = self.stacks.iter().zip(&self.ran).filter(|(_, ran)| **ran);
        let whole = ran.filter_map(|(stack, _)| stack.as_ref());
        whole
            .filter(|stack| stack.iter().any(|name| is(name, function)))
            .count()
    }

    /// Checks that the shares of the functions `seventy`, `twenty` and `ten` are close to 70, 20 and 10 %, and that the
    /// share of torn stacks is below `most_torn`. Returns an error that describes the first wrong share, or that there
    /// are too few samples.
    fn check(&self, most_torn: f64) -> Result<(), String> {
        if self.torn() >= most_torn {
            return Err(format!("{:.3} torn, not {most_torn}", self.torn()));
        }
        let functions = [("seventy", 0.7), ("twenty", 0.2), ("ten", 0.1)];
        let all: usize = functions
            .iter()
            .map(|(function, _)| self.count(function))
            .sum();
        if all <= 200 {
            return Err(format!("{all} of {}", self.stacks.len()));
        }
        for (function, truth) in functions {
            let found = self.count(function) as f64 / all as f64;
            // The allowed deviation has two parts. The first allows for chance: three percentage points for 2000 or
            // more samples, and more for fewer samples. The second is the share of torn stacks, whose functions are
            // unknown: stacks of short calls are torn more often.
            let by_chance = 0.03 * (2000.0 / all as f64).sqrt().max(1.0);
            let most = by_chance + self.torn();
            if (found - truth).abs() >= most {
                return Err(format!(
                    "{function}: {found:.3}, not {truth} to {most:.3} ({all} samples)"
                ));
            }
        }
        Ok(())
    }

    /// Returns the callers of a function. Leaves out callers that were found in less than 1 % of the cases, because
    /// these may come from stacks that changed during the read but look valid by chance.
    fn callers(&self, function: &str) -> HashSet<&str> {
        let pairs = self
            .stacks
            .iter()
            .flatten()
            .flat_map(|stack| stack.windows(2));
        let of = pairs.filter(|pair| is(&pair[0], function));
        let mut callers = HashMap::<_, usize>::new();
        for pair in of {
            *callers
                .entry(pair[1].split(' ').next().unwrap())
                .or_default() += 1;
        }
        let all: usize = callers.values().sum();
        callers.retain(|_, count| *count * 100 >= all);
        callers.into_keys().collect()
    }
}

/// Returns true if a frame belongs to this function. The name is compared without its class.
fn is(name: &str, function: &str) -> bool {
    let qualified = name.split(' ').next().unwrap();
    qualified.rsplit('.').next() == Some(function)
}

/// Samples the calling thread's stack like [`sample`], and checks the functions' shares of the samples
/// ([`Seen::check`]). In a few of a thousand runs, a share exceeds its limit by chance. So if the check fails, the
/// function takes samples once more, and checks all samples together.
#[track_caller]
fn sample_and_check(ready: &Ready, act: impl Fn(), most_torn: f64) -> Seen {
    let mut seen = sample(ready, &act);
    if let Err(wrong) = seen.check(most_torn) {
        println!("{wrong}");
        let more = sample(ready, &act);
        seen.stacks.extend(more.stacks);
        seen.ran.extend(more.ran);
        seen.took += more.took;
        if let Err(wrong) = seen.check(most_torn) {
            panic!("{wrong}");
        }
    }
    seen.report();
    seen
}

/// Samples the calling thread's stack from another thread while `act` runs.
fn sample(ready: &Ready, act: impl FnOnce()) -> Seen {
    let target = here().expect("this thread is one of Python's");
    let number = ids::thread();
    let ends = AtomicBool::new(false);
    scope(|scope| {
        let sampler = scope.spawn(|| {
            let (mut walker, mut snapshot) = (Walker::default(), Snapshot::default());
            let mut seen = Seen {
                stacks: Vec::new(),
                ran: Vec::new(),
                took: Duration::ZERO,
            };
            let mut random = 1_u64;
            let mut last = (Instant::now(), processor_time(number).unwrap());
            while !ends.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                sleep(Duration::from_micros(250 + random % 500));
                let since = Instant::now();
                let walked = walker.walk(ids::process(), &ready.layout, target).unwrap();
                seen.took += since.elapsed();
                let now = (Instant::now(), processor_time(number).unwrap());
                let ran = Duration::from_nanos(now.1 - last.1);
                seen.ran.push(2 * ran > now.0 - last.0);
                last = now;
                snapshot.take(ids::process(), []).unwrap();
                let mut name = |code: &usize| {
                    let name = name_of(&mut snapshot, ready, *code);
                    name.map_or(Some(None), |name| (!name.is_empty()).then_some(Some(name)))
                };
                seen.stacks.push(match walked {
                    Walked::Torn => None,
                    Walked::Nothing => Some(Vec::new()),
                    Walked::Stack => walker.codes().iter().filter_map(&mut name).collect(),
                });
            }
            seen
        });
        act();
        ends.store(true, Ordering::Relaxed);
        sampler.join().unwrap()
    })
}

#[track_caller]
fn ready_now(host: &Host) -> &'static Ready {
    host.run("import sys");
    match ready().expect("an interpreter has started") {
        Ok(ready) => ready,
        Err(trouble) => panic!("{trouble}"),
    }
}

#[test]
fn shares_are_those_of_the_program() {
    in_each(ASKED, |host| {
        let ready = ready_now(host);
        host.run(THREE);
        let act = || host.run("for _ in range(2000): step()");
        let seen = sample_and_check(ready, act, 0.05);
        assert_eq!(seen.callers("seventy"), ["step"].into());
    });
}

#[test]
fn coroutines_are_read_with_their_callers() {
    in_each(ASKED, |host| {
        let ready = ready_now(host);
        host.run(THREE);
        let act = || {
            host.run(
                "
import asyncio
async def inner(act): act()
async def middle(act): await inner(act)
async def engine():
    for _ in range(1000):
        await middle(seventy)
        await middle(twenty)
        await asyncio.gather(middle(ten), asyncio.sleep(0))
asyncio.run(engine())
",
            );
        };
        let seen = sample_and_check(ready, act, 0.15);
        assert_eq!(seen.callers("inner"), ["middle"].into());
    });
}

#[test]
fn deep_stacks_that_come_and_go_are_read_or_rejected() {
    in_each(ASKED, |host| {
        let ready = ready_now(host);
        host.run(THREE);
        let seen = sample(ready, || {
            host.run(
                "
def down(depth, act):
    if depth: down(depth - 1, act)
    else: act()
def long():
    for turn in range(50): seventy()
for turn in range(500):
    down(700, seventy)
    down(60, twenty)
    down(3, ten)
    if turn % 25 == 0: down(700, long)
",
            );
        });
        seen.report();
        let deepest = seen.stacks.iter().flatten().map(Vec::len).max().unwrap();
        assert!(deepest > 700, "{deepest}");
        // A stack that changes during the read is rejected. On a slow machine, all stacks with the caller `down` may
        // have been rejected, so only the caller `long` is required.
        let callers = seen.callers("seventy");
        let all = ["down", "long"].into();
        assert!(
            callers.contains("long") && callers.is_subset(&all),
            "{callers:?}"
        );
    });
}

#[test]
fn code_that_comes_and_goes_harms_nothing() {
    in_each(ASKED, |host| {
        let ready = ready_now(host);
        let seen = sample(ready, || {
            host.run(
                "
import threading
for turn in range(3000):
    names = {}
    exec('def made_%d():\\n    return sum(range(200))' % turn, names)
    for function in list(names.values()):
        if callable(function): function()
    if turn % 10 == 0:
        thread = threading.Thread(target=list); thread.start(); thread.join()
",
            );
        });
        println!("{} samples, {:.4} torn", seen.stacks.len(), seen.torn());
        // Each name that was read is from the program or the standard library, so no name was read
        // wrongly.
        let odd = |name: &&String| {
            !name.contains(".py:") && !name.contains("<string>:") && !name.contains("<frozen")
        };
        let odd: Vec<_> = seen.stacks.iter().flatten().flatten().filter(odd).collect();
        assert!(odd.is_empty(), "{odd:?}");
    });
}

#[test]
fn an_interpreter_that_ends_and_starts_again_is_read_again() {
    in_each(ASKED, |host| {
        let target = here().unwrap();
        let mut walker = Walker::default();
        let process = ids::process();
        assert_eq!(
            walker.walk(process, &ready_now(host).layout, target),
            Ok(Walked::Nothing)
        );
        let layout = &ready_now(host).layout;
        host.end();
        // The interpreter has ended and freed the thread's state, so the memory of the state may hold garbage.
        let walked = walker.walk(process, layout, target);
        assert!(
            matches!(walked, Ok(Walked::Nothing | Walked::Torn)),
            "{walked:?}"
        );
        host.start();
        let ready = ready_now(host);
        // On a busy machine, the sampling thread may not get a processor while the code runs once.
        let is_in_module = || {
            let seen = sample(ready, || host.run("for _ in range(10**6): pass"));
            let mut names = seen.stacks.iter().flatten().flatten();
            names.any(|name| is(name, "<module>"))
        };
        assert!((0..100).any(|_| is_in_module()));
    });
}
