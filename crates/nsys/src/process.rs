//! A process of an export, read as a record is.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;

use tllmprof_record::{
    Anchor, ClockKind, CopyKind, Damage, Edge, Entry, Event, GraphState, Header, Info, NO_STRING,
    RangeKind, StringId, What,
};
use tllmprof_report::{Recording, kernel_name};

use crate::calls::{self, Rows};
use crate::database::{Database, Row, Wanted};
use crate::error::Error;
use crate::facts::Facts;
use crate::ranges::{self, Domains, Own, Range, Text, number};
use crate::scopes::{Kernels, Scopes};
use crate::strings::{Ids, Written};
use crate::windows::Windows;

/// Tables of calls, and of what GPUs did.
const CALLS: [&str; 2] = ["CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"];
const KERNELS: &str = "CUPTI_ACTIVITY_KIND_KERNEL";
const GRAPHS: &str = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
const COPIES: &str = "CUPTI_ACTIVITY_KIND_MEMCPY";
const SETS: &str = "CUPTI_ACTIVITY_KIND_MEMSET";

/// The columns that all tables of what GPUs did have, and where each is.
const GPU: [&str; 5] = ["start", "end", "deviceId", "streamId", "correlationId"];

/// The columns of a kernel's name, as the linker has it and as people do.
const NAMES: [&str; 2] = ["mangledName", "demangledName|shortName"];

/// How many nodes of graphs are looked at.
const NODES: usize = 1 << 20;

/// What all processes of an export share.
pub struct Shared {
    pub database: Database,
    pub domains: Domains,
    pub facts: Facts,
    /// There is one process alone: what has no process is its.
    pub is_one: bool,
}

/// A process in which iterations of ours were.
pub struct Process {
    shared: Rc<Shared>,
    process: i64,
    header: Header,
    windows: Windows,
    infos: Vec<(Info, String)>,
    rank: u64,
    /// What is added to nsys's moments, some of which are negative.
    shift: i64,
    /// By graph and node the scope's name; `None`: that was not asked for.
    scopes: Option<BTreeMap<u32, BTreeMap<u32, String>>>,
    ids: RefCell<Ids>,
    rows: RefCell<Rows>,
}

/// One time through it.
struct Reading<'a, F> {
    process: &'a Process,
    written: Written,
    each: F,
    damage: Damage,
}

impl Process {
    pub fn new(shared: Rc<Shared>, process: i64, windows: Windows, rank: u64) -> Self {
        let shift = windows.start().min(0).saturating_neg();
        // The report does not say which clock nsys used: moments are nanoseconds since it began.
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
            infos: shared.facts.infos(process),
            shared,
            process,
            header,
            windows,
            rank,
            shift,
            scopes: None,
            ids: RefCell::default(),
            rows: RefCell::default(),
        }
    }

    /// From here on kernels of graphs have the scopes that a record has of the same graphs.
    ///
    /// # Errors
    /// Where the export cannot be read.
    pub fn join(&mut self, scopes: &Scopes) -> Result<(), Error> {
        let mut execs: BTreeMap<u32, Kernels> = BTreeMap::new();
        let mut room = NODES;
        if let Some(wanted) = self.mine_on_gpu(KERNELS) {
            let columns = [&["graphNodeId"][..], &NAMES].concat();
            let database = &self.shared.database;
            let mut names: HashMap<i64, String> = HashMap::new();
            database.rows(KERNELS, &columns, wanted, |row| {
                let Some((exec, node)) = node_of(row.number(0)) else {
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
        // Of graphs that were cut off none is known.
        let known = match room {
            0 => BTreeMap::new(),
            _ => scopes.of(&execs),
        };
        self.scopes = Some(known);
        Ok(())
    }

    /// About how many rows are read each time.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let tables = CALLS
            .iter()
            .chain(&[KERNELS, GRAPHS, COPIES, SETS, "NVTX_EVENTS"]);
        let counts = tables.map(|table| self.shared.database.count(table));
        counts.fold(0, u64::saturating_add)
    }

    /// A moment in ticks, which are nanoseconds.
    fn ticks(&self, moment: i64) -> u64 {
        u64::try_from(moment.saturating_add(self.shift)).unwrap_or(0)
    }

    /// The rows of this process in a table whose column has its threads or the process itself.
    fn mine<'a>(&self, column: &'a str) -> Option<Wanted<'a>> {
        let whole = |process: i64| process.checked_mul(1 << 24);
        Some(Wanted {
            column,
            from: whole(self.process)?,
            before: whole(self.process + 1)?,
        })
    }

    /// The same in a table of what GPUs did, which may not have processes.
    fn mine_on_gpu(&self, table: &str) -> Option<Option<Wanted<'static>>> {
        let columns = self.shared.database.columns(table)?;
        match columns.contains("globalPid") {
            true => Some(self.mine("globalPid")),
            false => self.shared.is_one.then_some(None),
        }
    }
}

impl Recording for Process {
    fn header(&self) -> &Header {
        &self.header
    }

    fn read(&self, each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
        let mut reading = Reading {
            process: self,
            written: Written::default(),
            each,
            damage: Damage::default(),
        };
        reading.facts();
        reading.scopes();
        reading.windows();
        let whole = reading
            .ranges()
            .and_then(|()| reading.calls())
            .and_then(|()| reading.gpu());
        // What was read before the damage stands.
        if whole.is_err() {
            reading.damage.chunks += 1;
        }
        Ok(reading.damage)
    }
}

impl<F: FnMut(Entry<'_>)> Reading<'_, F> {
    fn event(&mut self, thread: u32, event: Event) {
        (self.each)(Entry::Event { thread, event });
    }

    /// A string of ours; its id.
    fn text(&mut self, text: &str) -> StringId {
        let id = self.process.ids.borrow_mut().of_text(text);
        if self.written.string(id) {
            let bytes = text.as_bytes();
            (self.each)(Entry::String { id, bytes });
        }
        id
    }

    /// One of nsys's strings; its id here.
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

    /// What is known of graphs' nodes.
    fn scopes(&mut self) {
        let process = self.process;
        let main = number(process.process);
        let mut ids: HashMap<&str, u32> = HashMap::new();
        for (graph, (exec, nodes)) in (1..).zip(process.scopes.iter().flatten()) {
            for (node, name) in nodes {
                let next = ids.len() as u32 + 1;
                let scope = match &**name {
                    // It was captured while nothing was open.
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
        let has_gpu = process.has_gpu();
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

    fn ranges(&mut self) -> Result<(), Error> {
        let process = self.process;
        let shared = &process.shared;
        Range::each(&shared.database, |range| {
            let is_here = ranges::process(range.thread) == process.process
                && range.end < i64::MAX
                && process.windows.at(range.start).is_some();
            if !is_here {
                return;
            }
            let what = match shared.domains.name(&range) {
                _ if shared.domains.is_own(&range) => self.own(&range),
                domain => {
                    let domain = domain.map_or(NO_STRING, |domain| self.text(domain));
                    let name = self.name(&range.text);
                    let kind = match range.is_start_end {
                        true => RangeKind::StartEnd,
                        false => RangeKind::PushPop,
                    };
                    Some(What::Range { kind, domain, name })
                }
            };
            if let Some(what) = what {
                let start = process.ticks(range.start);
                let duration = process.ticks(range.end) - start;
                self.event(number(range.thread), Event::new(start, duration, what));
            }
        })
    }

    fn own(&mut self, range: &Range) -> Option<What> {
        match range.own(&range.text.get(&self.process.shared.database)) {
            Own::Iteration(n) => Some(What::Iteration { n, excluded: false }),
            Own::Batch(n, batch) => Some(What::Batch {
                iteration: n as u16,
                batch,
            }),
            // How many objects it freed is in a mark of its own.
            Own::Gc(generation) => Some(What::Gc {
                generation,
                collected: 0,
            }),
            Own::GilWait => Some(What::GilWait),
            Own::GilHold => Some(What::GilHold),
            Own::Function => {
                let name = self.name(&range.text);
                Some(What::Function { name })
            }
            Own::Capture | Own::Call => None,
        }
    }

    fn name(&mut self, text: &Text) -> StringId {
        match text {
            Text::Here(text) => self.text(text),
            Text::Number(number) => self.number(*number),
        }
    }

    /// Calls, the outermost of nested ones alone, as far as they come in the order of their starts.
    fn calls(&mut self) -> Result<(), Error> {
        let process = self.process;
        let database = &process.shared.database;
        let mut outermost: HashMap<i64, i64> = HashMap::new();
        let mut known: HashMap<i64, u8> = HashMap::new();
        for table in CALLS {
            let columns = ["start", "end", "globalTid", "nameId", "returnValue"];
            database.rows(table, &columns, process.mine("globalTid"), |row| {
                let (Some(start), Some(end)) = (row.number(0), row.number(1)) else {
                    self.damage.bad += 1;
                    return;
                };
                if end < start || process.windows.at(start).is_none() {
                    return;
                }
                let thread = row.number(2).unwrap_or(0);
                let until = outermost.entry(thread).or_insert(i64::MIN);
                if end <= *until {
                    return;
                }
                *until = end;
                let id = row.number(3).unwrap_or(-1);
                let row_of_call = match known.get(&id) {
                    Some(row) => *row,
                    None => {
                        let row = self.row(&database.string(id).unwrap_or_default());
                        known.insert(id, row);
                        row
                    }
                };
                let what = What::Call {
                    row: row_of_call,
                    capturing: false,
                    stream: 0,
                };
                let start = process.ticks(start);
                let mut event = Event::new(start, process.ticks(end) - start, what);
                event.failed = row.number(4).is_some_and(|result| result != 0);
                self.event(number(thread), event);
            })?;
        }
        Ok(())
    }

    /// The row of a call.
    fn row(&mut self, name: &str) -> u8 {
        let (row, name) = self.process.rows.borrow_mut().of(name);
        if self.written.row(row) {
            let kind = Some(calls::kind(&name));
            let name = self.text(&name);
            self.event(0, Event::new(0, 0, What::CallName { row, kind, name }));
        }
        row
    }

    fn gpu(&mut self) -> Result<(), Error> {
        self.work(
            KERNELS,
            &["demangledName|shortName|mangledName", "graphNodeId"],
            |reading, row, place| {
                let name = row.number(5).map_or(NO_STRING, |id| reading.number(id));
                What::GpuKernel {
                    device: place.0,
                    stream: place.1,
                    name,
                    correlation: row.number(4).unwrap_or(0) as u32,
                }
            },
        )?;
        // What nsys records without `--cuda-graph-trace=node`.
        self.work(GRAPHS, &["graphId"], |reading, row, place| {
            let name = reading.text(&format!("CUDA graph {}", row.number(5).unwrap_or(0)));
            What::GpuKernel {
                device: place.0,
                stream: place.1,
                name,
                correlation: row.number(4).unwrap_or(0) as u32,
            }
        })?;
        self.work(COPIES, &["copyKind", "bytes"], |_, row, place| {
            What::GpuCopy {
                device: place.0,
                stream: place.1,
                kind: CopyKind::from_code(
                    row.number(5)
                        .and_then(|kind| u8::try_from(kind).ok())
                        .unwrap_or(0),
                ),
                bytes: row.number(6).unwrap_or(0).unsigned_abs(),
            }
        })?;
        self.work(SETS, &["bytes"], |_, row, place| What::GpuSet {
            device: place.0,
            stream: place.1,
            bytes: row.number(5).unwrap_or(0).unsigned_abs(),
        })
    }

    /// Passes on what a table has of GPUs' work that began inside windows.
    fn work(
        &mut self,
        table: &str,
        more: &[&str],
        what: impl Fn(&mut Self, &Row<'_>, (u8, u16)) -> What,
    ) -> Result<(), Error> {
        let process = self.process;
        let Some(wanted) = process.mine_on_gpu(table) else {
            return Ok(());
        };
        let columns = [&GPU, more].concat();
        process
            .shared
            .database
            .rows(table, &columns, wanted, |row| {
                let (Some(start), Some(end)) = (row.number(0), row.number(1)) else {
                    self.damage.bad += 1;
                    return;
                };
                if end < start || process.windows.at(start).is_none() {
                    return;
                }
                let device = row.number(2).unwrap_or(0) & 0xf;
                let stream = row.number(3).unwrap_or(0) & 0xfff;
                let what = what(self, row, (device as u8, stream as u16));
                let ticks = process.ticks(start);
                self.event(0, Event::new(ticks, end.abs_diff(start), what));
                if table == KERNELS
                    && process.scopes.is_some()
                    && let Some((exec, node)) = node_of(row.number(6))
                {
                    let what = What::KernelNode {
                        device: device as u8,
                        stream: stream as u16,
                        exec,
                        node,
                    };
                    self.event(0, Event::new(ticks, 0, what));
                }
            })
    }
}

impl Process {
    /// Whether nsys traced what GPUs did for this process.
    fn has_gpu(&self) -> bool {
        [KERNELS, GRAPHS, COPIES, SETS].into_iter().any(|table| {
            let wanted = self.mine_on_gpu(table);
            wanted.is_some_and(|wanted| self.shared.database.has(table, wanted))
        })
    }
}

/// The executable graph and the node that nsys's number of a node has; `None`: the kernel is of no graph.
fn node_of(id: Option<i64>) -> Option<(u32, u32)> {
    let id = id.filter(|id| *id > 0)?.unsigned_abs();
    Some(((id >> 32) as u32, id as u32))
}
