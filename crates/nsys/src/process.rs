//! A process of an nsys export, which can be read like a process of a tllmprof record.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;

use tempfile::TempDir;
use tllmprof_foreign::{CallRows, FoundIterations, LeftOutReason, Method, range_name};
use tllmprof_record::{
    Anchor, ClockKind, Damage, Edge, Entry, Event, GraphState, Header, Info, NO_STRING, RangeKind,
    StringId, What,
};
use tllmprof_report::{Data, Origin, Recording, kernel_name};

use crate::database::Database;
use crate::error::ExportError;
use crate::facts::ExportFacts;
use crate::found::{self, copy_kind};
use crate::loaded::{Events, IndexedNames};
use crate::pieces::Pieces;
use crate::ranges::{self, Collections, Domains, Own, Range, RangeText, number, rows_of};
use crate::rows::{CallRow, WorkKind, WorkRow};
use crate::scopes::{GraphScopes, NodeKernels};
use crate::strings::{Ids, Written};
use crate::windows::Windows;

/// The columns with a kernel's name: first the mangled name, then the demangled or the short name. A bar separates
/// alternative columns.
const NAMES: [&str; 2] = ["mangledName", "demangledName|shortName"];

/// Maximum number of nodes of CUDA graphs that are read from one process. If a process has this many nodes or more,
/// the scopes (such as layers) of all kernels in its graphs stay unknown.
const NODES: usize = 1 << 20;

/// Estimated time that nsys takes to record a call or a range, in nanoseconds. A measurement with
/// ranges on a host with an H200 gave 1.56 µs.
const COST: u64 = 1560;

/// The data that all processes of an export share.
pub struct Shared {
    pub database: Database,
    pub domains: Domains,
    pub facts: ExportFacts,
    /// Names of CUDA functions. `CallRow::name` is the index of a name in this list.
    pub calls: IndexedNames,
    /// Names of kernels. `WorkRow::name` is the index of a name in this list.
    pub kernels: IndexedNames,
    /// True if only one process is read from the export. Rows that name no process then belong to that process.
    pub is_one: bool,
    /// Kinds of data, calls or GPU work, of which the whole export has none.
    pub lacks: Vec<Data>,
    pub is_damaged: bool,
    /// The temporary folder with the export, if nsys was run to write the export. The folder is
    /// removed when this value is dropped.
    pub folder: Option<TempDir>,
}

/// The source of a process's iterations: tllmprof's own count, or a search in the trace.
pub enum Steps {
    /// tllmprof counted the iterations, which are ranges in its own NVTX domain. The text is the rule for iterations
    /// that the user typed, which then has no effect. It is `None` if the user typed no rule.
    Own(Windows, Option<String>),
    Found(FoundIterations),
}

/// A process of an export. It implements `Recording`, like a record.
pub struct ExportProcess {
    shared: Rc<Shared>,
    process: i64,
    header: Header,
    windows: Windows,
    /// The iterations that were found in the trace: by the user's rule, by known names of ranges, by repeating calls,
    /// or the whole trace as one iteration. `None` if tllmprof counted the iterations.
    found: Option<FoundIterations>,
    events: Events,
    infos: Vec<(Info, String)>,
    rank: u64,
    /// Number of nanoseconds that are added to nsys's times. Some of nsys's times are negative, but times in the form
    /// of a tllmprof record must not be.
    shift: i64,
    /// Names of scopes (such as layers of the model), by executable graph and node; `None` unless
    /// `join` was called.
    scopes: Option<BTreeMap<u32, BTreeMap<u32, String>>>,
    ids: RefCell<Ids>,
    rows: RefCell<CallRows>,
}

/// The state of one pass over the process's data, in which every event is passed to a function of
/// the caller.
struct Reading<'a, F> {
    process: &'a ExportProcess,
    written: Written,
    each: F,
    damage: Damage,
    collections: Collections,
}

impl ExportProcess {
    pub fn new(shared: Rc<Shared>, process: i64, steps: Steps, events: Events, rank: u64) -> Self {
        let gpus = events
            .devices
            .map_or(usize::MAX, |(_, last)| usize::from(last) + 1);
        let mut infos = shared.facts.infos(process, gpus);
        let (windows, found) = match steps {
            Steps::Own(windows, asked) => {
                infos.extend(asked.map(|rule| {
                    let why = "the export holds iterations that tllmprof counted";
                    (Info::Refused, format!("--step {rule} is not used: {why}"))
                }));
                (windows, None)
            }
            Steps::Found(found) => {
                infos.retain(|(info, _)| *info != Info::Rule);
                infos.push((Info::Rule, found.rule.clone()));
                infos.push((Info::RuleWhy, found.why.clone()));
                infos.retain(|(info, text)| !text.is_empty() || *info == Info::Gpu);
                (found::windows(&found), Some(found))
            }
        };
        let mut left_out = events.left_out.clone();
        let ranges = found.as_ref().map_or(0, |found| found.left_out);
        left_out.add_all(LeftOutReason::TooMany, ranges);
        infos.extend(left_out.texts().map(|text| (Info::Refused, text)));
        let shift = windows.start().min(0).saturating_neg();
        // An export does not say which clock nsys used. So the converted data pretend that the ticks, which are
        // nanoseconds, are also the time of `CLOCK_MONOTONIC`.
        let ticks = shift.unsigned_abs();
        let anchor = Anchor {
            ticks,
            monotonic_ns: ticks,
            unix_ns: shared.facts.epoch.unsigned_abs(),
        };
        let mut header = Header::new(number(process), ClockKind::Monotonic, vec![anchor]);
        windows
            .outside
            .iter()
            .for_each(|long| header.outside.add(*long));
        Self {
            infos,
            shared,
            process,
            header,
            windows,
            found,
            events,
            rank,
            shift,
            scopes: None,
            ids: RefCell::default(),
            rows: RefCell::default(),
        }
    }

    /// Assigns scopes (such as layers) to the kernels of CUDA graphs. `scopes` comes from a tllmprof record of a
    /// program that has the same graphs.
    ///
    /// # Errors
    /// Returns an error if the export cannot be read.
    pub fn join(&mut self, scopes: &GraphScopes) -> Result<(), ExportError> {
        let mut execs: BTreeMap<u32, NodeKernels> = BTreeMap::new();
        let mut room = NODES;
        let table = WorkKind::Kernel.table();
        let database = &self.shared.database;
        let has_processes = database
            .columns(table)
            .is_some_and(|columns| columns.contains("globalPid"));
        if has_processes || self.shared.is_one {
            let columns = [&["graphNodeId"][..], &NAMES].concat();
            let mut names: HashMap<i64, String> = HashMap::new();
            let wanted = rows_of(self.process, "globalPid");
            database.rows(table, &columns, Some(wanted), |row| {
                let id = row.number(0).unwrap_or(0).max(0).unsigned_abs();
                let Some((exec, node)) = node_of(id) else {
                    return;
                };
                let name = row.number(1).or_else(|| row.number(2)).unwrap_or(-1);
                let graph = execs.entry(exec).or_default();
                if room > 0 && !graph.contains_key(&node) {
                    room -= 1;
                    let text = || kernel_name(&database.string(name).unwrap_or_default());
                    graph.insert(node, names.entry(name).or_insert_with(text).clone());
                }
            })?;
        }
        // If `room` is 0, further nodes may have been dropped. Then some graphs are incomplete and cannot be compared
        // with those of the record.
        let known = match room {
            0 => BTreeMap::new(),
            _ => scopes.find_nodes(&execs),
        };
        self.scopes = Some(known);
        Ok(())
    }

    /// Returns the approximate number of rows that one pass over the data reads.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let calls = self.events.calls.values().map(Pieces::len).sum::<usize>();
        let rows = (calls + self.events.work.len()) as u64;
        rows.saturating_add(self.shared.database.count("NVTX_EVENTS"))
    }

    /// Converts a time of nsys, in nanoseconds, to ticks. A tick is a nanosecond, too, but must not be negative. So
    /// if the first window starts at a negative time, tick 0 is that start; otherwise tick 0 is nsys's time 0. A time
    /// before tick 0 becomes 0.
    fn ticks(&self, moment: i64) -> u64 {
        u64::try_from(moment.saturating_add(self.shift)).unwrap_or(0)
    }

    /// Returns the estimated time that nsys spent on recording calls and ranges inside windows (the intervals that are
    /// reported in detail), in nanoseconds, for the thread that has the most calls and ranges.
    fn cost(&self) -> u64 {
        let mut counts: HashMap<i64, u64> = HashMap::new();
        for (thread, calls) in &self.events.calls {
            let inside = calls
                .iter()
                .filter(|call| self.windows.at(call.start).is_some());
            counts.insert(*thread, inside.count() as u64);
        }
        // If the NVTX ranges cannot be read, the estimate includes only the cost of recording
        // calls.
        let _ = Range::each(&self.shared.database, Some(self.process), |range| {
            if self.windows.at(range.start).is_some() {
                *counts.entry(range.thread).or_default() += 1;
            }
        });
        let most = counts.values().max().copied().unwrap_or(0);
        most.saturating_mul(COST)
    }
}

impl Recording for ExportProcess {
    fn header(&self) -> &Header {
        &self.header
    }

    fn origin(&self) -> Origin {
        let mut lacks = self.shared.lacks.clone();
        let is_whole = |found: &FoundIterations| found.method == Method::Whole;
        if self.found.as_ref().is_some_and(is_whole) {
            lacks.push(Data::Iterations);
        }
        Origin {
            tool: self.shared.facts.tool(),
            lacks,
            // If there are neither calls nor ranges inside windows, the cost is unknown, not 0.
            cost: Some(self.cost()).filter(|cost| *cost > 0),
        }
    }

    fn read(&self, each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
        let mut reading = Reading {
            process: self,
            written: Written::default(),
            each,
            damage: Damage::default(),
            collections: Collections::default(),
        };
        reading.facts();
        reading.scopes();
        reading.windows();
        reading.found();
        let ranges = reading.ranges();
        reading.calls();
        reading.work();
        // If the database is damaged, the rows before the damage are used, and the damage is
        // reported.
        if ranges.is_err() || self.shared.is_damaged {
            reading.damage.chunks += 1;
        }
        Ok(reading.damage)
    }
}

impl<F: FnMut(Entry<'_>)> Reading<'_, F> {
    fn event(&mut self, thread: u32, event: Event) {
        (self.each)(Entry::Event { thread, event });
    }

    /// Returns the id of a text. A text that is new in this pass is also passed to the caller's
    /// function.
    fn text(&mut self, text: &str) -> StringId {
        let id = self.process.ids.borrow_mut().of_text(text);
        if self.written.string(id) {
            let bytes = text.as_bytes();
            (self.each)(Entry::String { id, bytes });
        }
        id
    }

    /// Returns the id of a string, given nsys's number of the string. A string that is new in this
    /// pass is also passed to the caller's function.
    fn number(&mut self, number: i64) -> StringId {
        let id = self.process.ids.borrow_mut().of_number(number);
        if self.written.string(id) {
            let text = self
                .process
                .shared
                .database
                .string(number)
                .unwrap_or_default();
            let bytes = text.as_bytes();
            (self.each)(Entry::String { id, bytes });
        }
        id
    }

    fn facts(&mut self) {
        let process = self.process;
        let main = number(process.process);
        for (key, text) in &process.infos {
            let value = u64::from(self.text(text));
            self.event(
                main,
                Event::new(
                    0,
                    0,
                    What::Info {
                        key: Some(*key),
                        value,
                    },
                ),
            );
        }
        let rank = What::Info {
            key: Some(Info::Rank),
            value: process.rank,
        };
        self.event(main, Event::new(0, 0, rank));
        for (thread, name) in process.shared.facts.threads(process.process) {
            let name = self.text(name);
            self.event(*thread, Event::new(0, 0, What::ThreadName { name }));
        }
    }

    /// Passes to the caller's function the scopes (such as layers) in which graph nodes were captured.
    fn scopes(&mut self) {
        let process = self.process;
        let main = number(process.process);
        let mut ids: HashMap<&str, u32> = HashMap::new();
        for (graph, (exec, nodes)) in (1..).zip(process.scopes.iter().flatten()) {
            for (node, name) in nodes {
                let next = ids.len() as u32 + 1;
                let scope = match &**name {
                    // The empty name means that no scope (such as a layer) was open when the node was captured.
                    "" => 0,
                    name => *ids.entry(name).or_insert(next),
                };
                if scope == next {
                    let name = self.text(name);
                    let what = What::Scope {
                        id: scope,
                        parent: 0,
                        name,
                    };
                    self.event(main, Event::new(0, 0, what));
                }
                let what = What::GraphNodes {
                    graph,
                    first: *node,
                    count: 1,
                    scope,
                };
                self.event(main, Event::new(0, 0, what));
            }
            let what = What::GraphExec {
                state: Some(GraphState::Known),
                exec: *exec,
                graph,
            };
            self.event(main, Event::new(u64::MAX, 0, what));
        }
    }

    fn windows(&mut self) {
        let process = self.process;
        let main = number(process.process);
        let has_gpu = !process.events.work.is_empty();
        for window in &process.windows.all {
            let start = process.ticks(window.start);
            for (edge, iteration) in [(Edge::Open, window.first), (Edge::Close, window.last)] {
                self.event(main, Event::new(start, 0, What::Window { edge, iteration }));
                if has_gpu {
                    self.event(
                        main,
                        Event::new(start, 0, What::KernelWindow { edge, iteration }),
                    );
                }
            }
        }
    }

    /// Passes to the caller's function the iterations that were found in the trace; none if tllmprof counted the
    /// iterations itself, because these come from its ranges.
    fn found(&mut self) {
        let process = self.process;
        for one in process.found.iter().flat_map(|found| &found.iterations) {
            let start = process.ticks(one.start);
            let what = What::Iteration {
                n: one.number,
                excluded: false,
            };
            let thread = number(one.thread as i64);
            let took = process.ticks(one.end) - start;
            self.event(thread, Event::new(start, took, what));
            if let Some(batch) = one.batch {
                let iteration = one.number as u16;
                self.event(
                    thread,
                    Event::new(start, 0, What::Batch { iteration, batch }),
                );
            }
        }
    }

    fn ranges(&mut self) -> Result<(), ExportError> {
        let process = self.process;
        let shared = &process.shared;
        let read = Range::each(&shared.database, Some(process.process), |range| {
            let is_of_process = ranges::process(range.thread) == process.process;
            if is_of_process && range.is_mark && shared.domains.is_own(&range) {
                self.collections
                    .add_mark(&range, &range.text.get(&shared.database));
                return;
            }
            let is_here = is_of_process && process.windows.at(range.start).is_some();
            self.damage.bad += u64::from(is_here && range.is_too_long);
            let is_here = is_here && !range.is_open();
            if !is_here {
                return;
            }
            let what = match shared.domains.name(&range) {
                _ if shared.domains.is_own(&range) => self.own(&range),
                domain => {
                    let domain = domain.map_or(NO_STRING, |domain| self.text(domain));
                    let name = self.name(&range.text);
                    Some(match range.is_mark {
                        true => What::Mark { domain, name },
                        false => What::Range {
                            kind: match range.is_start_end {
                                true => RangeKind::StartEnd,
                                false => RangeKind::PushPop,
                            },
                            domain,
                            name,
                        },
                    })
                }
            };
            if let Some(what) = what {
                let start = process.ticks(range.start);
                let duration = process.ticks(range.end) - start;
                self.event(number(range.thread), Event::new(start, duration, what));
            }
        });
        let collections = std::mem::take(&mut self.collections);
        for one in collections.all() {
            let start = process.ticks(one.start);
            let what = What::Gc {
                generation: one.generation,
                collected: one.collected,
            };
            let duration = process.ticks(one.end) - start;
            self.event(number(one.thread), Event::new(start, duration, what));
        }
        read
    }

    /// Converts a range of tllmprof's own domain to an event. Collections of garbage are not converted but stored,
    /// because a mark that comes later contains the number of objects that they freed.
    fn own(&mut self, range: &Range) -> Option<What> {
        match range.own(&range.text.get(&self.process.shared.database)) {
            Own::Iteration(n) => Some(What::Iteration { n, excluded: false }),
            Own::Batch(n, batch) => Some(What::Batch {
                iteration: n as u16,
                batch,
            }),
            Own::Gc(generation) => {
                self.collections.add_range(range, generation);
                None
            }
            Own::GilWait => Some(What::GilWait),
            Own::GilHold => Some(What::GilHold),
            Own::Function => {
                let name = self.name(&range.text);
                Some(What::Function { name })
            }
            Own::Capture | Own::Call => None,
        }
    }

    /// Returns the id of a range's name. Suffixes such as `, seq = 5` are first removed from the name, because they
    /// differ between calls of the same PyTorch operator.
    fn name(&mut self, text: &RangeText) -> StringId {
        let known = text.number();
        let ids = |ids: &RefCell<Ids>| known.and_then(|number| ids.borrow().range(number));
        if let Some(id) = ids(&self.process.ids).filter(|id| self.written.has(*id)) {
            return id;
        }
        let name = text.get(&self.process.shared.database);
        let id = self.text(range_name(&name));
        if let Some(number) = known {
            self.process.ids.borrow_mut().add_range(number, id);
        }
        id
    }

    /// Passes to the caller's function the CUDA calls that began inside windows (the intervals that are reported in
    /// detail). Calls that are nested in another call are left out.
    fn calls(&mut self) {
        let process = self.process;
        let mut known: Vec<Option<u8>> = Vec::new();
        for (thread, calls) in &process.events.calls {
            let mut until = i64::MIN;
            for call in calls {
                let end = call.end();
                // A call without a duration that begins where the previous call ends is not within that call.
                let is_inner = call.start < until && end <= until;
                if process.windows.at(call.start).is_none() || is_inner {
                    continue;
                }
                until = end;
                let row = *known_of(&mut known, call.name).get_or_insert_with(|| self.row(&call));
                let what = What::Call {
                    row,
                    capturing: false,
                    stream: 0,
                };
                let mut event = Event::new(process.ticks(call.start), call.took, what);
                event.failed = call.failed;
                self.event(number(*thread), event);
            }
        }
    }

    /// Returns the number of the row for this call in the recording's table of CUDA calls. A row
    /// that is new in this pass is also passed to the caller's function.
    fn row(&mut self, call: &CallRow) -> u8 {
        let shared = &self.process.shared;
        let number = shared.calls.number(call.name);
        let name = shared.database.string(number).unwrap_or_default();
        let row = self.process.rows.borrow_mut().row(&name);
        if self.written.row(row.number) {
            let what = What::CallName {
                row: row.number,
                kind: Some(row.kind),
                name: self.text(row.name),
            };
            self.event(0, Event::new(0, 0, what));
        }
        row.number
    }

    /// Passes to the caller's function the GPU work that began inside windows (the intervals that are reported in
    /// detail).
    fn work(&mut self) {
        let process = self.process;
        let mut names: Vec<Option<StringId>> = Vec::new();
        for work in &process.events.work {
            if process.windows.at(work.start).is_none() {
                continue;
            }
            let what = self.what(&work, &mut names);
            let start = process.ticks(work.start);
            self.event(0, Event::new(start, work.took, what));
            if work.kind == WorkKind::Kernel
                && process.scopes.is_some()
                && let Some((exec, node)) = node_of(work.value)
            {
                let what = What::KernelNode {
                    device: work.device,
                    stream: work.stream,
                    exec,
                    node,
                };
                self.event(0, Event::new(start, 0, what));
            }
        }
    }

    /// Converts a piece of GPU work to an event. `names` is a cache: at the index of a kernel's
    /// name, it contains the id of the name.
    fn what(&mut self, work: &WorkRow, names: &mut Vec<Option<StringId>>) -> What {
        let WorkRow {
            device,
            stream,
            correlation,
            value,
            ..
        } = *work;
        match work.kind {
            WorkKind::Kernel => What::GpuKernel {
                device,
                stream,
                name: *known_of(names, work.name).get_or_insert_with(|| {
                    self.number(self.process.shared.kernels.number(work.name))
                }),
                correlation,
            },
            WorkKind::Graph => What::GpuKernel {
                device,
                stream,
                name: self.text(&format!("CUDA graph {value}")),
                correlation,
            },
            WorkKind::Copy => What::GpuCopy {
                device,
                stream,
                kind: copy_kind(work),
                bytes: value,
            },
            WorkKind::Set => What::GpuSet {
                device,
                stream,
                bytes: value,
            },
        }
    }
}

/// Returns the entry of the cache `known` at the index `place`. Makes the list longer if it is too short.
fn known_of<T: Clone>(known: &mut Vec<Option<T>>, place: u32) -> &mut Option<T> {
    let place = place as usize;
    if place >= known.len() {
        known.resize(place + 1, None);
    }
    &mut known[place]
}

/// Splits nsys's number of a graph node into the number of the executable graph and the number of
/// the node. Returns `None` for 0, which means a kernel outside graphs.
fn node_of(id: u64) -> Option<(u32, u32)> {
    (id > 0).then_some(((id >> 32) as u32, id as u32))
}
