//! Converts the events of a record to items of the timeline.

use std::collections::BTreeMap;
use std::io;

use tllmprof_record::{CallKind, Clock, Damage, Entry, Event, Strings, What};
use tllmprof_report::{GpuWork, Iteration, Process, Recording};

use crate::kinds::{self, Item, Kind, LaunchEnd, Length};
use crate::name::Texts;
use crate::stretch::{Edges, Stretch};
use crate::track::Track;
use tllmprof_report::{Launch, Launches};

/// The tables of a record that are needed to convert its events to timeline items: strings, kinds
/// of calls, launches and windows.
#[derive(Debug)]
pub struct Interpreter {
    clock: Clock,
    strings: Strings,
    /// The kind of each row of the record's table of CUDA calls.
    calls: Box<[CallKind; 256]>,
    launches: Launches,
    stretches: Vec<Stretch>,
}

impl Interpreter {
    /// Reads the record of a process. Also passes every event to `each`, with the interpreter as it
    /// is at that point: strings that come later in the record, and all launches, are still
    /// missing.
    ///
    /// # Errors
    /// Returns an error if the record cannot be read.
    pub fn read(
        process: &Process,
        recording: &impl Recording,
        mut each: impl FnMut(&Self, u32, &Event),
    ) -> io::Result<Self> {
        let header = recording.header();
        let clock = Clock::new(header.clock, &header.anchors);
        let mut calls = Box::new([CallKind::Other; 256]);
        for row in &process.facts.calls {
            calls[usize::from(row.row)] = row.kind;
        }
        let mut new = Self {
            clock: clock.clone(),
            strings: Strings::default(),
            calls,
            launches: Launches::default(),
            stretches: Vec::new(),
        };
        let mut launches = process.launches(&clock);
        let mut edges = Edges::default();
        recording.read(|entry| match entry {
            Entry::String { id, bytes } => new.strings.add(id, bytes),
            Entry::Event { thread, event } => {
                match GpuWork::from_event(&clock, &event) {
                    Some(work) => launches.add_work(&work),
                    None => launches.add(thread, &event),
                }
                edges.add(&event);
                each(&new, thread, &event);
            }
        })?;
        let iterations = process.windows.iter().flat_map(|window| &window.iterations);
        let end = iterations.map(Iteration::end).max();
        new.stretches = edges.stretches(&clock, end.unwrap_or(0));
        new.launches = launches.finish();
        Ok(new)
    }

    /// Passes the items of the record to `each`, in the order of the record. If the record has layers, each kernel is
    /// held back until one of these follows: another kernel of the same thread, the [`What::KernelNode`] of the kernel,
    /// or the end of the record. The kernel's scope (the module of the model that launched it) depends on the node. So
    /// a kernel may come after items that follow it in the record.
    ///
    /// # Errors
    /// Returns an error if the record cannot be read.
    pub fn items(
        &self,
        process: &Process,
        recording: &impl Recording,
        mut each: impl FnMut(&Item),
    ) -> io::Result<Damage> {
        let Some(layers) = &process.layers else {
            return recording.read(|entry| {
                if let Entry::Event { thread, event } = entry
                    && let Some(item) = self.item(thread, &event)
                {
                    each(&item);
                }
            });
        };
        let scopes = &layers.scopes;
        let alone = |kernel: Item| Item {
            scope: scopes.of_kernel(kernel.value as u32, kernel.start),
            ..kernel
        };
        // The latest kernel of each thread with its start in ticks. It is held back, because its `KernelNode` may
        // follow.
        let mut latest: BTreeMap<u32, (u64, Item)> = BTreeMap::new();
        let damage = recording.read(|entry| {
            let Entry::Event { thread, event } = entry else {
                return;
            };
            match event.what {
                What::KernelNode {
                    device,
                    stream,
                    exec,
                    node,
                } => {
                    let track = Track::Stream { device, stream };
                    if let Some((ticks, kernel)) = latest.get(&thread).copied()
                        && (ticks, kernel.track) == (event.start, track)
                    {
                        latest.remove(&thread);
                        each(&Item {
                            scope: scopes.of_node(exec, node, ticks),
                            ..kernel
                        });
                    }
                }
                _ => match self.item(thread, &event) {
                    Some(item) if item.kind == Kind::Kernel => {
                        if let Some((_, before)) = latest.insert(thread, (event.start, item)) {
                            each(&alone(before));
                        }
                    }
                    Some(item) => each(&item),
                    None => (),
                },
            }
        })?;
        for (_, kernel) in latest.into_values() {
            each(&alone(kernel));
        }
        Ok(damage)
    }

    /// Converts an event of a thread to a timeline item; `None` if the timeline has no item for
    /// such an event.
    #[inline(always)]
    #[must_use]
    pub fn item(&self, thread: u32, event: &Event) -> Option<Item> {
        kinds::item(thread, event, &self.clock, &self.calls)
    }

    /// Returns the duration of an item in nanoseconds; `None` if the item has no duration.
    #[inline]
    #[must_use]
    pub fn duration(&self, item: &Item) -> Option<u64> {
        match item.length {
            Length::Moment => None,
            Length::Ns(ns) => Some(ns),
            Length::Ticks { start, count } => {
                let end = self.clock.ns(start.saturating_add(count));
                Some(end.saturating_sub(item.start))
            }
        }
    }

    /// Returns the launch that an item belongs to. The item may be the launching call or one of the launched kernels.
    /// Returns `None` for other items, and if the record has no launch for the item.
    #[inline]
    #[must_use]
    pub fn launch(&self, item: &Item) -> Option<&Launch> {
        match item.kind.row().end? {
            LaunchEnd::Call => self.launches.of_call(item.thread, item.start),
            LaunchEnd::Kernel => self.launches.of_kernel(item.value as u32, item.start),
        }
    }

    /// Returns the windows, and the parts of windows in which kernels were recorded.
    #[must_use]
    pub fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    #[must_use]
    pub const fn strings(&self) -> &Strings {
        &self.strings
    }

    /// Returns the name of a kernel's scope, such as the module `layers.3.mlp`. The name is empty if no scope was
    /// open.
    #[must_use]
    pub fn scope(&self, process: &Process, scope: u32) -> String {
        let layers = process.layers.as_ref();
        layers.map_or_else(String::new, |layers| {
            layers.scopes.name(scope, &self.strings)
        })
    }

    /// Returns the texts that are needed to write the names of the record's items.
    #[must_use]
    pub const fn texts<'a>(&'a self, process: &'a Process) -> Texts<'a> {
        Texts {
            process,
            strings: &self.strings,
        }
    }
}
