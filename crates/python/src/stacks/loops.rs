//! Finds the Python threads that run an event loop (asyncio, uvloop), by the functions on their stacks.
//!
//! The stacks are read without the GIL, by copies that the kernel makes. Nothing is recorded.

use core::hash::BuildHasherDefault;
use core::ops::ControlFlow;
use std::collections::HashMap;

use tllmprof_engines::runs_event_loop;

use super::Ready;
use super::names::{OfAddress, name_of};
use super::snapshot::Snapshot;
use super::walk::{Target, Walked, Walker};

/// The most code objects for which the search stores whether they run an event loop. If more are stored when a search
/// begins, all of them are dropped.
const MAX_CODES: usize = 1 << 14;

/// The most functions of a stack that are searched, from the outermost one on. The functions that run a loop are near
/// the outermost end.
const MAX_SEARCHED: usize = 32;

/// A Python thread that runs an event loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventLoop {
    /// The thread's kernel ID.
    pub number: i32,
    pub target: Target,
}

/// Searches the main interpreter's threads for those that run an event loop.
#[derive(Default)]
pub struct LoopSearch {
    snapshot: Snapshot,
    /// For the address of each known code object, true if it is a function that runs an event loop.
    known: HashMap<usize, bool, BuildHasherDefault<OfAddress>>,
}

impl LoopSearch {
    /// Returns at most `most` threads that run an event loop. `process` is the id of this process. Threads for whose
    /// kernel ID `is_skipped` returns true are left out. So are threads whose ID cannot be read, and threads whose
    /// stack cannot be read or changes during the read.
    pub fn search(
        &mut self,
        process: i32,
        ready: &Ready,
        most: usize,
        is_skipped: impl Fn(i32) -> bool,
    ) -> Vec<EventLoop> {
        if self.known.len() > MAX_CODES {
            self.known.clear();
        }
        let mut found = Vec::new();
        let Some(threads) = &ready.threads else {
            return found;
        };
        threads.each(&ready.layout, |target, number| {
            if let Some(number) = number.filter(|number| *number > 0 && !is_skipped(*number))
                && self.runs_loop(process, ready, target)
            {
                found.push(EventLoop { number, target });
            }
            match found.len() < most {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        found
    }

    fn runs_loop(&mut self, process: i32, ready: &Ready, target: Target) -> bool {
        // A walker keeps the addresses of one thread's stack, so each thread gets a new walker.
        let mut walker = Walker::default();
        let walked = walker.walk(process, &ready.layout, target);
        if walked != Ok(Walked::Stack) {
            return false;
        }
        let mut outermost = walker.codes().iter().rev().take(MAX_SEARCHED);
        outermost.any(|code| self.is_loop(process, ready, *code))
    }

    fn is_loop(&mut self, process: i32, ready: &Ready, code: usize) -> bool {
        if let Some(known) = self.known.get(&code) {
            return *known;
        }
        if self.snapshot.take(process, []).is_err() {
            return false;
        }
        let Some(name) = name_of(&mut self.snapshot, ready, code) else {
            return false;
        };
        let is_loop = runs_event_loop(&name);
        self.known.insert(code, is_loop);
        is_loop
    }
}
