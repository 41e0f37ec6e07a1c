//! The threads that run an event loop of Python (asyncio, uvloop), and neither make steps nor launch work themselves. A
//! server receives requests and sends responses on such a thread. If a callback of the loop runs for long, the steps
//! may wait for it.
//!
//! No function of the event loop is hooked. Instead, the sampling thread searches the stacks of the interpreter's
//! threads for a function that runs an event loop: first when sampling starts, and then at intervals.

use core::time::Duration;
use std::time::Instant;

use tllmprof_python::stacks::{EventLoop, LoopSearch, Ready};

use super::files::{self, LOOP_THREADS, MAX_LOOPS};
use super::followed::Followed;

/// The shortest time between two searches.
const MIN_SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two searches, as a multiple of the time that the previous search took. With 200, searches
/// take at most 0.5 % of the sampling thread's time.
const MIN_INTERVAL_RATIO: u32 = 200;

/// The threads that run an event loop.
#[derive(Default)]
pub(crate) struct LoopThreads {
    search: LoopSearch,
    /// The thread's index here, plus [`LOOP_THREADS`], is its index in the table of open files.
    threads: [Option<EventLoop>; MAX_LOOPS],
    /// The earliest time of the next search; `None` before the first one.
    next: Option<Instant>,
}

impl LoopThreads {
    /// Returns the threads that run an event loop. First searches for them if a search is due. `process` is the id of
    /// this process. A thread for whose kernel ID `is_followed` returns true is left out, because it is sampled anyway.
    pub(crate) fn look(
        &mut self,
        process: i32,
        ready: &Ready,
        is_followed: fn(i32) -> bool,
    ) -> impl Iterator<Item = Followed> + use<> {
        let now = Instant::now();
        if self.next.is_none_or(|next| now >= next) {
            let found = self.search.search(process, ready, MAX_LOOPS, is_followed);
            let took = now.elapsed();
            self.next = Some(now + MIN_SEARCH_INTERVAL.max(took * MIN_INTERVAL_RATIO));
            self.add(&found);
        }
        for place in 0..MAX_LOOPS {
            let number = self.threads[place].map(|thread| thread.number);
            if number.is_some_and(is_followed) {
                self.remove(place);
            }
        }
        let threads = self.threads.into_iter().enumerate();
        threads.filter_map(|(place, thread)| {
            thread.map(|EventLoop { number, target }| Followed {
                place: LOOP_THREADS + place,
                number,
                target: Some(target),
            })
        })
    }

    /// Returns true if the thread with the id `number` is stored as one that runs an event loop.
    pub(crate) fn has_thread(&self, number: i32) -> bool {
        let mut threads = self.threads.iter().flatten();
        threads.any(|thread| thread.number == number)
    }

    /// Removes the thread with the id `number`, because it is followed now. Returns true if the thread was stored.
    pub(crate) fn give_up(&mut self, number: i32) -> bool {
        let is_it = |known: &Option<EventLoop>| known.is_some_and(|known| known.number == number);
        let place = self.threads.iter().position(is_it);
        place.inspect(|place| self.remove(*place)).is_some()
    }

    /// Removes a thread that has ended or can no longer be sampled.
    pub(crate) fn forget(&mut self, thread: Followed) {
        self.remove(thread.place - LOOP_THREADS);
    }

    /// Adds threads that a search has found, as long as there is room. A stored thread that the search has not found
    /// stays stored: its stack may have changed while it was read, or its event loop may start again.
    fn add(&mut self, found: &[EventLoop]) {
        for thread in found {
            let is_it = |known: &Option<EventLoop>| {
                known.is_some_and(|known| known.number == thread.number)
            };
            let known = self.threads.iter().position(is_it);
            let place = known.or_else(|| self.threads.iter().position(Option::is_none));
            if let Some(place) = place {
                if known.is_none() {
                    files::close(LOOP_THREADS + place);
                }
                self.threads[place] = Some(*thread);
            }
        }
    }

    fn remove(&mut self, place: usize) {
        files::close(LOOP_THREADS + place);
        self.threads[place] = None;
    }
}
