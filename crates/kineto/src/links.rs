//! Links each piece of GPU work to the call that launched it, and to the scopes (PyTorch modules, and ranges that are
//! not steps) that were open on the calling thread.

use std::cmp::Reverse;
use std::collections::HashMap;

use tllmprof_record::{NO_STRING, StringId};

use crate::trace::{HostEvent, HostKind, Trace};

/// Maximum number of scopes (modules and ranges) that are stored. A scope is identified by its name and its parent
/// scope. Work in a further scope is assigned to the parent scope.
const SCOPES: usize = 1 << 18;
/// Maximum number of scopes (modules and ranges) that may be open at once on a thread. Further scopes are ignored.
const DEPTH: usize = 48;

/// A call that launched GPU work.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    pub thread: u32,
    pub start: i64,
    /// Number of the innermost scope (module or range) that was open during the call; 0 if no scope was open.
    pub scope: u32,
}

/// The calls that launched GPU work, by correlation number, and the scopes (modules and ranges) of the trace.
#[derive(Debug, Default)]
pub struct Links {
    launches: HashMap<u32, Launch>,
    /// The parent and the name of each scope (module or range). A scope's number is its index in this list plus 1; the
    /// parent's number is 0 if there is no parent.
    scopes: Vec<(u32, StringId)>,
    numbers: HashMap<(u32, StringId), u32>,
}

/// The scopes (modules and ranges) and the CUDA call that are open on a thread, while the thread's events are visited
/// in order of time.
#[derive(Default)]
struct Open {
    thread: u32,
    /// End time and number of each open scope (module or range), from the outermost to the innermost.
    scopes: Vec<(i64, u32)>,
    /// Start and end of the outermost open CUDA call.
    call: Option<(i64, i64)>,
}

impl Links {
    /// Finds the calls that launched GPU work, and the scopes (modules and ranges). Removes calls that are made within
    /// other calls, such as driver calls within runtime calls. Afterwards the trace's host events are sorted by their
    /// ends, inner events first. `is_scope` returns true for an event that opens a scope.
    pub fn find(trace: &mut Trace, is_scope: impl Fn(&HostEvent) -> bool) -> Self {
        let mut links = Self::default();
        let order = |event: &HostEvent| (event.thread, event.start, Reverse(event.end()));
        trace.host.sort_unstable_by_key(order);
        let mut open = Open::default();
        trace.host.retain(|event| {
            if open.thread != event.thread {
                open = Open {
                    thread: event.thread,
                    ..Open::default()
                };
            }
            links.visit(&mut open, event, is_scope(event))
        });
        trace
            .host
            .sort_unstable_by_key(|event| (event.end(), Reverse(event.start)));
        links
    }

    /// Updates `open` with a thread's next event in order of time. Stores the launch if the event is a call, and the
    /// scope if `is_scope` is true. Returns false for a call within another call, which the caller then removes.
    fn visit(&mut self, open: &mut Open, event: &HostEvent, is_scope: bool) -> bool {
        while open
            .scopes
            .last()
            .is_some_and(|(end, _)| *end <= event.start)
        {
            open.scopes.pop();
        }
        let around = open.scopes.last().map_or(0, |(_, scope)| *scope);
        if is_scope && open.scopes.len() < DEPTH {
            let scope = self.scope(around, event.name);
            open.scopes.push((event.end(), scope));
        }
        if event.kind != HostKind::Call {
            return true;
        }
        // A call without a duration that begins where the previous call ends is not within that call.
        let outermost = open
            .call
            .filter(|(_, end)| event.start < *end && event.end() <= *end);
        let (start, _) = *open
            .call
            .insert(outermost.unwrap_or((event.start, event.end())));
        if event.correlation != 0 {
            self.launches.insert(
                event.correlation,
                Launch {
                    thread: event.thread,
                    start,
                    scope: around,
                },
            );
        }
        outermost.is_none()
    }

    fn scope(&mut self, parent: u32, name: StringId) -> u32 {
        if name == NO_STRING {
            return parent;
        }
        if let Some(number) = self.numbers.get(&(parent, name)) {
            return *number;
        }
        if self.scopes.len() >= SCOPES {
            return parent;
        }
        self.scopes.push((parent, name));
        let number = self.scopes.len() as u32;
        self.numbers.insert((parent, name), number);
        number
    }

    /// Returns the call that launched the GPU work with this correlation number. A call and its
    /// work have the same number.
    pub fn launch(&self, correlation: u32) -> Option<&Launch> {
        self.launches.get(&correlation)
    }

    /// Returns the number, the parent's number and the name of each scope (module or range). The first number is 1.
    pub fn scopes(&self) -> impl Iterator<Item = (u32, u32, StringId)> {
        let numbered = (1..).zip(&self.scopes);
        numbered.map(|(number, (parent, name))| (number, *parent, *name))
    }
}
