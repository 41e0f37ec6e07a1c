//! Which rows a record comes to.

use std::collections::HashMap;
use std::io;

use ::parquet::data_type::ByteArray;
use tllmprof_record::{CallKind, Ended, Entry, Event, NO_STRING, RangeKind, StringId, What};

use super::columns::Cell;
use super::schema::Which;
use crate::record::{Iterations, Record};

/// Texts by their places.
#[derive(Default)]
pub struct Texts {
    pub all: Vec<ByteArray>,
    strings: HashMap<StringId, usize>,
    fixed: HashMap<&'static str, usize>,
}

impl Texts {
    fn add(&mut self, text: &str) -> Cell {
        self.all.push(text.into());
        Cell::Text(self.all.len() - 1)
    }

    fn string(&mut self, record: &Record, id: StringId) -> Cell {
        if let Some(known) = self.strings.get(&id) {
            return Cell::Text(*known);
        }
        let new = self.all.len();
        self.strings.insert(id, new);
        self.add(record.strings.get(id))
    }

    fn fixed(&mut self, text: &'static str) -> Cell {
        if let Some(known) = self.fixed.get(text) {
            return Cell::Text(*known);
        }
        let new = self.all.len();
        self.fixed.insert(text, new);
        self.add(text)
    }
}

/// Where rows go.
pub trait Tables {
    /// Adds a row, a cell for each of the table's columns.
    fn row(&mut self, table: Which, cells: &[Cell], texts: &Texts) -> io::Result<()>;
}

/// Gives all rows of a record to `tables`.
pub fn rows(record: &Record, tables: &mut impl Tables) -> io::Result<()> {
    let mut texts = Texts::default();
    process(record, &mut texts, tables)?;
    stretches(record, &mut texts, tables)?;
    iterations(record, &texts, tables)?;
    let mut events = Events::new(record, texts);
    record.read(|entry| match entry {
        Entry::Event { thread, event } => events.row(*thread, event, tables),
        Entry::String { .. } => Ok(()),
    })?;
    Ok(())
}

fn process(record: &Record, texts: &mut Texts, to: &mut impl Tables) -> io::Result<()> {
    let process = &record.process;
    let facts = &process.facts;
    let row = [
        texts.add(&process.file.to_string_lossy()),
        texts.add(&facts.command),
        texts.add(&facts.process),
        process.parent.into(),
        match process.ended {
            Some(Ended::InOrder) => texts.fixed("in order"),
            Some(_) => texts.fixed("at once"),
            None => Cell::Null,
        },
        texts.add(&facts.rule),
        texts.add(&facts.engine),
        texts.add(&facts.windows),
        texts.add(&facts.library),
        texts.add(&facts.python),
        texts.add(&facts.gpus.join(", ")),
        facts.cuda_driver.into(),
        texts.add(&facts.boot),
        Cell::Int(process.unix_minus_monotonic),
        process.outside.iterations.into(),
        process.events.into(),
        process.dropped.into(),
        match process.damage.is_none() {
            true => Cell::Null,
            false => texts.add(&process.damage.to_string()),
        },
    ];
    to.row(Which::Processes, &row, texts)?;
    for (tid, name) in &facts.threads {
        let row = [Cell::from(*tid), texts.add(name)];
        to.row(Which::Threads, &row, texts)?;
    }
    Ok(())
}

fn stretches(record: &Record, texts: &mut Texts, to: &mut impl Tables) -> io::Result<()> {
    for stretch in &record.stretches {
        let row = [
            texts.fixed(if stretch.kernels { "kernels" } else { "window" }),
            stretch.first.into(),
            stretch.last.into(),
            stretch.start.into(),
            stretch.end.saturating_sub(stretch.start).into(),
            stretch.cut.into(),
        ];
        to.row(Which::Windows, &row, texts)?;
    }
    Ok(())
}

fn iterations(record: &Record, texts: &Texts, to: &mut impl Tables) -> io::Result<()> {
    let windows = record.process.windows.iter();
    for iteration in windows.flat_map(|window| &window.iterations) {
        let row = [
            iteration.n.into(),
            iteration.start.into(),
            iteration.duration.into(),
            iteration.gpu.into(),
            iteration.thread.into(),
            iteration.launches.into(),
            iteration.calls.into(),
            iteration.wait.into(),
            iteration.gil_wait.into(),
            iteration.gc.into(),
            iteration.kernels.into(),
            iteration.gpu_busy.into(),
            iteration.cut.into(),
        ];
        to.row(Which::Iterations, &row, texts)?;
    }
    Ok(())
}

/// Rows of events, one by one.
struct Events<'a> {
    record: &'a Record,
    iterations: Iterations,
    texts: Texts,
    /// Name and kind of each row of the table of calls.
    calls: Vec<(Cell, Cell)>,
}

impl<'a> Events<'a> {
    fn new(record: &'a Record, mut texts: Texts) -> Self {
        let facts = &record.process.facts;
        let call = |row| {
            let known = facts.calls.iter().find(|call| call.row == row);
            let kind = known.map_or(CallKind::Other, |call| call.kind);
            (texts.add(&facts.call(row)), texts.fixed(kind_of_call(kind)))
        };
        let calls = (0..=u8::MAX).map(call).collect();
        Self {
            record,
            iterations: Iterations::of(record),
            texts,
            calls,
        }
    }

    fn row(&mut self, thread: u32, event: &Event, to: &mut impl Tables) -> io::Result<()> {
        let clock = &self.record.clock;
        let start = clock.ns(event.start);
        let host = clock
            .ns(event.start.saturating_add(event.duration))
            .saturating_sub(start);
        let (from, gpu) = (Cell::from(start), Cell::from(event.duration));
        let moment = Cell::Null;
        let (kind, duration, name, domain, value) = match event.what {
            What::Call {
                row,
                capturing,
                stream,
            } => {
                let (name, kind) = self.calls[usize::from(row)];
                let row = [
                    from,
                    host.into(),
                    thread.into(),
                    name,
                    kind,
                    stream.into(),
                    self.iterations.at(start).into(),
                    capturing.into(),
                    event.failed.into(),
                    event.cut.into(),
                ];
                return to.row(Which::Calls, &row, &self.texts);
            }
            What::GpuSpan {
                device,
                stream,
                iteration,
            } => {
                let row = [from, gpu, device.into(), stream.into(), iteration.into()];
                return to.row(Which::GpuSpans, &row, &self.texts);
            }
            What::GpuKernel {
                device,
                stream,
                name,
                correlation,
            } => {
                let row = [
                    from,
                    gpu,
                    device.into(),
                    stream.into(),
                    self.texts.string(self.record, name),
                    correlation.into(),
                    self.iterations.at(start).into(),
                ];
                return to.row(Which::Kernels, &row, &self.texts);
            }
            What::GpuCopy {
                device,
                stream,
                kind,
                bytes,
            } => {
                let kind = self.texts.fixed(kind.name());
                return self.copy(from, gpu, (device, stream), kind, bytes, to);
            }
            What::GpuSet {
                device,
                stream,
                bytes,
            } => {
                let kind = self.texts.fixed("memset");
                return self.copy(from, gpu, (device, stream), kind, bytes, to);
            }
            What::GpuMetric {
                device,
                metric: Some(metric),
                thousandths,
            } => {
                let row = [
                    from,
                    host.into(),
                    device.into(),
                    self.texts.fixed(metric.name()),
                    self.texts.fixed(metric.unit()),
                    Cell::Real(thousandths as f64 / 1e3),
                ];
                return to.row(Which::Metrics, &row, &self.texts);
            }
            What::ExpertLoad {
                layer,
                expert,
                tokens,
            } => {
                let row = [layer.into(), expert.into(), tokens.into()];
                return to.row(Which::Experts, &row, &self.texts);
            }
            What::Range { kind, domain, name } => {
                let kind = match kind {
                    RangeKind::PushPop => "range",
                    RangeKind::StartEnd => "range start/end",
                };
                let (domain, name) = self.ranged(domain, name);
                (kind, host.into(), name, domain, Cell::Null)
            }
            What::Mark { domain, name } => {
                let (domain, name) = self.ranged(domain, name);
                ("mark", moment, name, domain, Cell::Null)
            }
            What::Function { name } => {
                let name = self.texts.string(self.record, name);
                ("function", host.into(), name, Cell::Null, Cell::Null)
            }
            What::Gc {
                generation,
                collected,
            } => {
                let name = match generation {
                    0 => self.texts.fixed("gen0"),
                    1 => self.texts.fixed("gen1"),
                    2 => self.texts.fixed("gen2"),
                    _ => Cell::Null,
                };
                ("gc", host.into(), name, Cell::Null, collected.into())
            }
            What::GilWait => ("GIL wait", host.into(), Cell::Null, Cell::Null, Cell::Null),
            What::GilHold => ("GIL hold", host.into(), Cell::Null, Cell::Null, Cell::Null),
            What::GilForced => ("GIL forced", moment, Cell::Null, Cell::Null, Cell::Null),
            What::Dropped { events } => ("dropped", moment, Cell::Null, Cell::Null, events.into()),
            _ => return Ok(()),
        };
        let row = [
            from,
            duration,
            thread.into(),
            self.texts.fixed(kind),
            name,
            domain,
            value,
            self.iterations.at(start).into(),
            event.failed.into(),
            event.cut.into(),
        ];
        to.row(Which::Events, &row, &self.texts)
    }

    fn ranged(&mut self, domain: StringId, name: StringId) -> (Cell, Cell) {
        let in_domain = match domain {
            NO_STRING => Cell::Null,
            domain => self.texts.string(self.record, domain),
        };
        (in_domain, self.texts.string(self.record, name))
    }

    fn copy(
        &mut self,
        start: Cell,
        duration: Cell,
        (device, stream): (u8, u16),
        kind: Cell,
        bytes: u64,
        to: &mut impl Tables,
    ) -> io::Result<()> {
        let iteration = match start {
            Cell::Int(start) => self.iterations.at(start as u64),
            _ => None,
        };
        let row = [
            start,
            duration,
            device.into(),
            stream.into(),
            kind,
            bytes.into(),
            iteration.into(),
        ];
        to.row(Which::Copies, &row, &self.texts)
    }
}

const fn kind_of_call(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Other => "other",
        CallKind::GraphLaunch => "graph launch",
        CallKind::KernelLaunch => "kernel launch",
        CallKind::AsyncCopy => "async copy",
        CallKind::Wait => "wait",
        CallKind::Capture => "capture",
    }
}
