//! The process of a trace, which can be read like a tllmprof record.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use tllmprof_foreign::{CallRows, LeftOut};
use tllmprof_record::{
    Anchor, CallKind, ClockKind, CommunicatorId, Damage, Edge, Entry, Event, GraphState, Header,
    Info, Member, NO_STRING, RangeKind, StringId, What,
};
use tllmprof_report::{Data, Origin, Recording};

use crate::facts::{self, ProcessGroup};
use crate::iterations::Iterations;
use crate::links::Links;
use crate::trace::{GpuEvent, GpuKind, HostEvent, HostKind, Trace};

/// Number of an artificial graph. Recordings assign kernels to scopes (modules and ranges) through graph nodes, but a
/// PyTorch trace has no nodes. So each scope is given a node in this graph, with the scope's number. Each kernel is
/// linked to the node of the scope in which it was launched.
const GRAPH: u32 = 1;

/// The table of CUDA calls. `all` contains each row's number, name and kind. `of` maps the name of a call in the
/// trace to the number of its row.
#[derive(Debug, Default)]
struct Rows {
    all: Vec<(u8, StringId, CallKind)>,
    of: HashMap<StringId, u8>,
}

/// A process that the PyTorch profiler recorded.
#[derive(Debug)]
pub struct TraceProcess {
    trace: Trace,
    links: Links,
    rows: Rows,
    iterations: Iterations,
    header: Header,
    /// Texts about the process, each as the kind of information and the id of the text.
    texts: Vec<(Info, StringId)>,
    /// Numbers about the process, each with the kind of information that it gives.
    numbers: Vec<(Info, u64)>,
    /// The trace's time, in nanoseconds, that becomes time 0 when the trace is read in the form of a tllmprof record.
    zero: i64,
    /// True if the scope (such as a layer) of at least one kernel is known.
    has_layers: bool,
}

impl TraceProcess {
    pub fn new(file: &Path, mut trace: Trace, links: Links, iterations: Iterations) -> Self {
        let starts = trace.host.iter().map(|event| event.start);
        let starts = starts.chain(trace.gpu.iter().map(|event| event.start));
        let starts = starts.chain(iterations.all.iter().map(|one| one.start));
        let zero = starts.min().unwrap_or(0);
        let unix = trace.metadata.base.unwrap_or(0).saturating_add(zero);
        let anchor = Anchor {
            ticks: 0,
            monotonic_ns: 0,
            unix_ns: u64::try_from(unix).unwrap_or(0),
        };
        let pid = trace.pid().unwrap_or(0);
        let rows = Rows::new(&mut trace);
        let is_in_scope = |work: &GpuEvent| {
            let launch = links.launch(work.correlation);
            work.kind == GpuKind::Kernel && launch.is_some_and(|launch| launch.scope != 0)
        };
        let has_layers = trace.gpu.iter().any(is_in_scope);
        let mut new = Self {
            header: Header::new(pid, ClockKind::Monotonic, vec![anchor]),
            texts: Vec::new(),
            numbers: Vec::new(),
            trace,
            links,
            rows,
            iterations,
            zero,
            has_layers,
        };
        new.find_facts(file);
        new
    }

    /// Returns the approximate number of entries (strings and events) that one call of [`Recording::read`] passes to
    /// its caller.
    #[must_use]
    pub fn entries(&self) -> u64 {
        (self.trace.host.len() + 2 * self.trace.gpu.len()) as u64
    }

    fn find_facts(&mut self, file: &Path) {
        let by_name = facts::rank_of_name(file);
        let metadata = &self.trace.metadata;
        let (rank, source) = match (metadata.rank, by_name) {
            (Some(rank), _) => (Some(rank), "distributedInfo"),
            (None, Some(rank)) => (Some(rank), "the file's name"),
            (None, None) => (None, ""),
        };
        self.numbers.extend(rank.map(|rank| (Info::Rank, rank)));
        let sizes = metadata.world_size.map(|size| (Info::WorldSize, size));
        self.numbers.extend(sizes);
        let driver = metadata
            .cuda_driver
            .map(|version| (Info::CudaDriver, version));
        self.numbers.extend(driver);
        let mut texts = vec![
            (Info::RankSource, source.to_owned()),
            (Info::Host, metadata.host.clone()),
            (Info::Process, self.trace.process_name().to_owned()),
            (Info::Rule, self.iterations.rule.clone()),
            (Info::RuleWhy, self.iterations.why.clone()),
        ];
        let members = rank.map(|rank| members(&metadata.groups, rank));
        let members = members.into_iter().flatten();
        texts.extend(members.map(|member| (Info::Communicator, member.to_string())));
        texts.extend(self.gpus().map(|name| (Info::Gpu, name)));
        texts.extend(self.warnings().map(|warning| (Info::Refused, warning)));
        for (info, text) in texts {
            if !text.is_empty() || info == Info::Gpu {
                let number = self.trace.names.number(&text);
                self.texts.push((info, number));
            }
        }
    }

    /// Returns the names of the GPUs, in the order of their numbers. The last one is that of the last GPU that the
    /// process used and whose name is known. The names of unused or unknown GPUs before it are empty.
    fn gpus(&self) -> impl Iterator<Item = String> {
        let used = |device: u8| self.trace.gpu.iter().any(|work| work.device == device);
        let known = self.trace.metadata.gpus.iter().filter(|(id, _)| used(*id));
        let known: Vec<_> = known.cloned().collect();
        let last = known.iter().map(|(id, _)| *id).max();
        let count = last.map_or(0, |last| u16::from(last) + 1);
        (0..count)
            .map(move |device| device as u8)
            .map(move |device| {
                let name = known.iter().find(|(id, _)| *id == device);
                name.map_or_else(String::new, |(_, name)| name.clone())
            })
    }

    /// Returns warnings about properties of the trace that make its figures less reliable.
    fn warnings(&self) -> impl Iterator<Item = String> + use<> {
        let trace = &self.trace;
        let has_functions = !trace.metadata.is_own
            && trace
                .host
                .iter()
                .any(|event| matches!(event.kind, HostKind::Function | HostKind::Module));
        let of_others = match trace.of_others {
            0 => None,
            1 => Some("1 event of another process is left out".to_owned()),
            count => Some(format!("{count} events of other processes are left out")),
        };
        let left_out = self.left_out();
        let left_out: Vec<_> = left_out.texts().collect();
        [
            (has_functions || trace.metadata.has_stacks).then(|| {
                "the profiler followed Python functions (with_stack): the host took longer than without it".to_owned()
            }),
            trace.gpu.is_empty().then(|| "the trace has no GPU work".to_owned()),
            of_others,
        ]
        .into_iter()
        .flatten()
        .chain(left_out)
    }

    /// Returns the numbers of events that were left out, by reason.
    fn left_out(&self) -> LeftOut {
        let mut all = self.trace.left_out.clone();
        all.merge(&self.iterations.left_out);
        all
    }

    /// Converts a time of the trace, in nanoseconds, to ticks. A tick is a nanosecond too, but
    /// counts from the time `zero`.
    fn ticks(&self, moment: i64) -> u64 {
        u64::try_from(moment.saturating_sub(self.zero)).unwrap_or(0)
    }
}

impl Rows {
    /// Creates the table of CUDA calls from the calls in a trace.
    fn new(trace: &mut Trace) -> Self {
        let mut rows = Self::default();
        let mut table = CallRows::default();
        for event in &trace.host {
            if event.kind != HostKind::Call || rows.of.contains_key(&event.name) {
                continue;
            }
            let name = trace.names.get(event.name).to_owned();
            let row = table.row(&name);
            rows.of.insert(event.name, row.number);
            if rows.all.iter().all(|(number, ..)| *number != row.number) {
                let name = trace.names.number(row.name);
                rows.all.push((row.number, name, row.kind));
            }
        }
        rows
    }

    fn get(&self, name: StringId) -> u8 {
        self.of.get(&name).copied().unwrap_or(u8::MAX)
    }
}

/// Returns the process's position in each process group that contains its rank.
fn members(groups: &[ProcessGroup], rank: u64) -> Vec<Member> {
    let place = |group: &ProcessGroup| {
        let place = group.ranks.iter().position(|one| *one == rank)?;
        let unique = format!("{} {:?}", group.name, group.ranks);
        let id = CommunicatorId::from_bytes(unique.as_bytes());
        Some(Member::from_place(
            id,
            (place as u64, group.ranks.len() as u64),
        ))
    };
    groups.iter().filter_map(place).collect()
}

impl Recording for TraceProcess {
    fn header(&self) -> &Header {
        &self.header
    }

    fn origin(&self) -> Origin {
        let has_calls = (self.trace.host.iter()).any(|event| event.kind == HostKind::Call);
        let lacks = [
            (!has_calls).then_some(Data::Calls),
            self.trace.gpu.is_empty().then_some(Data::Gpu),
            self.iterations.is_whole.then_some(Data::Iterations),
        ];
        Origin {
            tool: match self.trace.metadata.is_own {
                true => "tllmprof, which exported it".to_owned(),
                false => "the PyTorch profiler".to_owned(),
            },
            lacks: lacks.into_iter().flatten().collect(),
            cost: None,
        }
    }

    fn read(&self, each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
        let mut reading = Reading {
            process: self,
            each,
        };
        reading.facts();
        reading.iterations();
        reading.scopes();
        for event in &self.trace.host {
            reading.host(event);
        }
        for event in &self.trace.gpu {
            reading.gpu(event);
        }
        Ok(Damage::default())
    }
}

/// The state of one pass over the process's data, in which every entry (an event or a text) is passed to `each`, a
/// function of the caller.
struct Reading<'a, F> {
    process: &'a TraceProcess,
    each: F,
}

impl<F: FnMut(Entry<'_>)> Reading<'_, F> {
    fn event(&mut self, thread: u32, event: Event) {
        (self.each)(Entry::Event { thread, event });
    }

    fn fact(&mut self, what: What) {
        let main = self.process.header.pid;
        self.event(main, Event::new(0, 0, what));
    }

    fn facts(&mut self) {
        let process = self.process;
        for (id, text) in process.trace.names.all() {
            let bytes = text.as_bytes();
            (self.each)(Entry::String { id, bytes });
        }
        for (key, text) in &process.texts {
            let (key, value) = (Some(*key), u64::from(*text));
            self.fact(What::Info { key, value });
        }
        for (key, value) in &process.numbers {
            let (key, value) = (Some(*key), *value);
            self.fact(What::Info { key, value });
        }
        for ((_, thread), name) in &process.trace.thread_names {
            let name = *name;
            self.event(*thread, Event::new(0, 0, What::ThreadName { name }));
        }
        for (row, name, kind) in &process.rows.all {
            let (row, name, kind) = (*row, *name, Some(*kind));
            self.fact(What::CallName { row, kind, name });
        }
        let missing = process.left_out().total();
        if missing > 0 {
            self.fact(What::Dropped { events: missing });
        }
    }

    /// Passes the windows (profiled ranges of iterations) and the iterations to the caller's function.
    fn iterations(&mut self) {
        let process = self.process;
        let main = process.header.pid;
        for window in &process.iterations.windows {
            // A window that was not closed has no event for its end.
            let close = window.last.map(|last| (Edge::Close, last, window.end));
            let open = (Edge::Open, window.first, window.start);
            for (edge, iteration, moment) in std::iter::once(open).chain(close) {
                let what = match window.has_kernels {
                    true => What::KernelWindow { edge, iteration },
                    false => What::Window { edge, iteration },
                };
                let mut event = Event::new(process.ticks(moment), 0, what);
                event.cut = window.cut;
                self.event(main, event);
            }
        }
        for one in &process.iterations.all {
            let start = process.ticks(one.start);
            let what = What::Iteration {
                n: one.n,
                excluded: false,
            };
            let duration = process.ticks(one.end) - start;
            let mut event = Event::new(start, duration, what);
            event.cut = one.cut;
            self.event(one.thread, event);
            if let Some(batch) = one.batch {
                let iteration = one.n as u16;
                let what = What::Batch { iteration, batch };
                self.event(one.thread, Event::new(start, 0, what));
            }
        }
    }

    /// Passes the scopes (modules and ranges) to the caller's function. For each scope, also passes a graph node with
    /// the scope's number. Node 0 is for kernels that were launched outside all scopes.
    fn scopes(&mut self) {
        let links = &self.process.links;
        if !self.process.has_layers {
            return;
        }
        for (id, parent, name) in links.scopes() {
            self.fact(What::Scope { id, parent, name });
        }
        let none = (0, 0, NO_STRING);
        for (scope, ..) in [none].into_iter().chain(links.scopes()) {
            self.fact(What::GraphNodes {
                graph: GRAPH,
                first: scope,
                count: 1,
                scope,
            });
        }
        let what = What::GraphExec {
            state: Some(GraphState::Known),
            exec: GRAPH,
            graph: GRAPH,
        };
        let main = self.process.header.pid;
        self.event(main, Event::new(u64::MAX, 0, what));
    }

    fn host(&mut self, event: &HostEvent) {
        let name = event.name;
        let what = match event.kind {
            HostKind::Call => What::Call {
                row: self.process.rows.get(name),
                capturing: event.capturing,
                stream: 0,
            },
            HostKind::Annotation => What::Range {
                kind: RangeKind::PushPop,
                domain: NO_STRING,
                name,
            },
            HostKind::Operator | HostKind::Function | HostKind::Module => What::Function { name },
        };
        let start = self.process.ticks(event.start);
        let mut entry = Event::new(start, event.ns, what);
        (entry.cut, entry.failed) = (event.cut, event.failed);
        self.event(event.thread, entry);
    }

    fn gpu(&mut self, event: &GpuEvent) {
        let GpuEvent {
            device,
            stream,
            bytes,
            ..
        } = *event;
        let what = match event.kind {
            GpuKind::Kernel => What::GpuKernel {
                device,
                stream,
                name: event.name,
                correlation: event.correlation,
            },
            GpuKind::Copy(kind) => What::GpuCopy {
                device,
                stream,
                kind,
                bytes,
            },
            GpuKind::Set => What::GpuSet {
                device,
                stream,
                bytes,
            },
        };
        let start = self.process.ticks(event.start);
        let mut entry = Event::new(start, event.ns, what);
        entry.cut = event.cut;
        self.event(0, entry);
        let links = &self.process.links;
        if let Some(launch) = links.launch(event.correlation)
            && event.kind == GpuKind::Kernel
            && self.process.has_layers
        {
            let what = What::KernelNode {
                device,
                stream,
                exec: GRAPH,
                node: launch.scope,
            };
            self.event(0, Event::new(start, 0, what));
        }
    }
}
