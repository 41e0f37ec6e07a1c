//! Converts a record to rows of the exported tables.

use std::collections::HashMap;
use std::io;

use ::parquet::data_type::ByteArray;
use tllmprof_record::{Batch, NO_STRING, StringId, ThreadState};
use tllmprof_report::{End, State};
use tllmprof_timeline::{Item, Iterations, Kind, Name, Track};

use super::columns::Cell;
use super::schema::{ColumnKind, Field, TABLES, Which};
use crate::record::Record;

/// The texts that cells refer to by index. Each map contains the indices in `all` of the texts of one kind.
#[derive(Default)]
pub(crate) struct Texts {
    pub all: Vec<ByteArray>,
    strings: HashMap<StringId, usize>,
    fixed: HashMap<&'static str, usize>,
    /// Texts for sampled frames, by the frame's number and a flag. The flag is true for the text with the whole stack,
    /// and false for the text with only the function.
    frames: HashMap<(u32, bool), usize>,
    scopes: HashMap<u32, usize>,
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
        self.add(record.texts().strings.get(id))
    }

    fn frame(&mut self, record: &Record, id: u32, whole: bool) -> Cell {
        if let Some(known) = self.frames.get(&(id, whole)) {
            return Cell::Text(*known);
        }
        let new = self.all.len();
        self.frames.insert((id, whole), new);
        let frames = &record.process.stacks.sampled.frames;
        match whole {
            true => {
                let stack = frames.stack(id);
                let names = stack.iter().map(|function| frames.name(*function));
                self.add(&names.collect::<Vec<_>>().join(";"))
            }
            false => self.add(frames.innermost(id)),
        }
    }

    fn scope(&mut self, record: &Record, scope: u32) -> Cell {
        if let Some(known) = self.scopes.get(&scope) {
            return Cell::Text(*known);
        }
        let new = self.all.len();
        self.scopes.insert(scope, new);
        self.add(&record.scope(scope))
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

/// A receiver of the rows of the exported tables, such as the encoder of Parquet files.
pub(crate) trait Tables {
    /// Adds a row to the table with this index in [`TABLES`]. `cells` has one cell for each column.
    fn row(&mut self, table: usize, cells: &[Cell], texts: &Texts) -> io::Result<()>;
}

/// Converts a whole record to rows, and passes the rows to `tables`.
pub(crate) fn rows(record: &Record, tables: &mut impl Tables) -> io::Result<()> {
    let mut texts = Texts::default();
    process(record, &mut texts, tables)?;
    stretches(record, &mut texts, tables)?;
    iterations(record, &mut texts, tables)?;
    ledger(record, &mut texts, tables)?;
    let mut items = Items::new(record, texts);
    record.items(|item| items.add(item, tables))
}

fn process(record: &Record, texts: &mut Texts, to: &mut impl Tables) -> io::Result<()> {
    let process = &record.process;
    let facts = &process.facts;
    let row = [
        texts.add(&process.file.to_string_lossy()),
        texts.add(&facts.command),
        texts.add(&facts.process),
        match &*facts.rank_source {
            "" => Cell::Null,
            source => texts.add(source),
        },
        facts.world_size.into(),
        match &*facts.in_groups {
            "" => Cell::Null,
            groups => texts.add(groups),
        },
        process.parent.into(),
        match process.record.ended {
            End::InOrder => texts.fixed("in order"),
            End::Not | End::AtOnce => texts.fixed("at once"),
            End::Unknown => Cell::Null,
        },
        texts.add(&facts.rule),
        texts.add(&facts.engine),
        texts.add(&facts.asked.windows),
        texts.add(&facts.software.library),
        texts.add(&facts.software.python),
        texts.add(&facts.software.known_gpus().join(", ")),
        facts.software.cuda_driver.into(),
        texts.add(&facts.boot),
        Cell::Int(process.record.unix_minus_monotonic),
        process.others.outside.all.iterations.into(),
        process.record.events.into(),
        process.record.dropped.into(),
        texts.fixed(process.state().name()),
        match process.state() {
            State::Damaged => texts.add(&process.record.damage.to_string()),
            State::Whole | State::Unfinished => Cell::Null,
        },
    ];
    to.row(Which::Processes as usize, &row, texts)?;
    for (tid, name) in &facts.threads {
        let row = [Cell::from(*tid), texts.add(name)];
        to.row(Which::Threads as usize, &row, texts)?;
    }
    Ok(())
}

fn stretches(record: &Record, texts: &mut Texts, to: &mut impl Tables) -> io::Result<()> {
    for stretch in record.interpreter.stretches() {
        let row = [
            texts.fixed(if stretch.kernels { "kernels" } else { "window" }),
            stretch.first.into(),
            stretch.last.into(),
            stretch.start.into(),
            stretch.end.saturating_sub(stretch.start).into(),
            stretch.cut.into(),
        ];
        to.row(Which::Windows as usize, &row, texts)?;
    }
    Ok(())
}

fn iterations(record: &Record, texts: &mut Texts, to: &mut impl Tables) -> io::Result<()> {
    let windows = record.process.windows.iter();
    for iteration in windows.flat_map(|window| &window.iterations) {
        let of_batch =
            |of: fn(Batch) -> u32| iteration.batch.map(of).map_or(Cell::Null, Cell::from);
        let row = [
            iteration.n.into(),
            iteration.start.into(),
            iteration.duration.into(),
            iteration.gpu.into(),
            iteration.thread.into(),
            iteration.launches.into(),
            iteration.calls.into(),
            iteration.wait.into(),
            iteration.idle.into(),
            iteration.used.map(|used| used.ran).into(),
            iteration.used.map(|used| used.delayed).into(),
            iteration.gil_wait.into(),
            iteration.gc.into(),
            iteration.kernels.into(),
            iteration.gpu_busy.into(),
            of_batch(|batch| batch.requests.into()),
            of_batch(|batch| batch.tokens),
            of_batch(|batch| batch.prefill_tokens),
            of_batch(Batch::decode_tokens),
            match iteration.batch {
                Some(batch) => texts.fixed(batch.phase().name()),
                None => Cell::Null,
            },
            iteration.qualifies().into(),
            iteration.cut.into(),
        ];
        to.row(Which::Iterations as usize, &row, texts)?;
    }
    Ok(())
}

fn ledger(record: &Record, texts: &mut Texts, to: &mut impl Tables) -> io::Result<()> {
    let process = &record.process;
    for (window, ledger) in process.windows.iter().zip(&process.ledger.details.windows) {
        let sides = [
            ("host", &ledger.host, ledger.host_iterations),
            ("gpu", &ledger.gpu, ledger.gpu_iterations),
        ];
        for (side, rows, iterations) in sides {
            for cause in rows {
                let row = [
                    window.first.into(),
                    window.last.into(),
                    texts.fixed(side),
                    texts.add(&cause.kind.name()),
                    texts.add(&cause.cause),
                    cause.ns.into(),
                    Cell::Real(cause.share),
                    iterations.into(),
                ];
                to.row(Which::Ledger as usize, &row, texts)?;
            }
        }
    }
    Ok(())
}

/// The source of the value of a cell, for items of one kind and one column.
#[derive(Clone, Copy, Debug)]
enum CellSource {
    Start,
    Duration,
    Thread,
    Device,
    Stream,
    Layer,
    Expert,
    Metric,
    Unit,
    Name,
    /// A word for the column `kind`. All items of one [`Kind`] have the same word.
    Fixed(Cell),
    /// The item's name, as the word for the column `kind`, such as `gen0` for a garbage collection.
    Word,
    State,
    Function,
    Stack,
    Domain,
    Scope,
    Value,
    /// The value of a metric as a real number. The item contains the value in thousandths of the metric's unit.
    Real,
    Iteration,
    Capturing,
    Failed,
    Cut,
    Nothing,
}

impl CellSource {
    /// Returns the source of the cells in a column for items of this kind. The value of an item goes to the column
    /// that has the name of the value's key, such as `bytes`. If the table has no column of that name, the value goes
    /// to the column `value`.
    fn for_column(kind: Kind, field: &Field, texts: &mut Texts) -> Self {
        let value = kind.row().value;
        let word = kind.row().table.map_or("", |(_, word)| word);
        match field.name {
            name if value.is_some_and(|key| key.text() == name) => Self::Value,
            "start_ns" => Self::Start,
            "dur_ns" => Self::Duration,
            "thread" => Self::Thread,
            "device" => Self::Device,
            "stream" => Self::Stream,
            "layer" => Self::Layer,
            "expert" => Self::Expert,
            "metric" => Self::Metric,
            "unit" => Self::Unit,
            "name" => Self::Name,
            "kind" if word.is_empty() => Self::Word,
            "kind" => Self::Fixed(texts.fixed(word)),
            "state" => Self::State,
            "function" => Self::Function,
            "stack" => Self::Stack,
            "domain" => Self::Domain,
            "scope" => Self::Scope,
            "iteration" => Self::Iteration,
            "capturing" => Self::Capturing,
            "failed" => Self::Failed,
            "cut" => Self::Cut,
            "tokens" => Self::Value,
            "value" if field.kind == ColumnKind::Real => Self::Real,
            "value" if value.is_some() => Self::Value,
            _ => Self::Nothing,
        }
    }
}

/// The conversion of a kind of items to rows: the index of the kind's table, and the source of each cell. `None` if the
/// kind has no table.
type TablePlan = Option<(usize, Vec<CellSource>)>;

fn plan(kind: Kind, texts: &mut Texts) -> TablePlan {
    let (name, _) = kind.row().table?;
    let place = TABLES.iter().position(|table| table.name == name)?;
    let fields = TABLES[place].fields.iter();
    let sources = fields.map(|field| CellSource::for_column(kind, field, texts));
    Some((place, sources.collect()))
}

/// Converts the items of a record to rows of the tables, one by one.
struct Items<'a> {
    record: &'a Record,
    iterations: Iterations,
    texts: Texts,
    /// The names of CUDA functions as cells, indexed by the row number by which items refer to the function.
    calls: Vec<Cell>,
    /// The plan for converting items to rows, for each kind of item, indexed by kind.
    plans: Vec<TablePlan>,
    /// A buffer for the current row. It is kept so that its memory is reused for the next row.
    row: Vec<Cell>,
}

impl<'a> Items<'a> {
    fn new(record: &'a Record, mut texts: Texts) -> Self {
        let facts = &record.process.facts;
        Self {
            record,
            iterations: Iterations::from_process(&record.process),
            calls: (0..=u8::MAX)
                .map(|row| texts.add(&facts.call(row)))
                .collect(),
            plans: Kind::ALL
                .iter()
                .map(|kind| plan(*kind, &mut texts))
                .collect(),
            texts,
            row: Vec::new(),
        }
    }

    fn add(&mut self, item: &Item, to: &mut impl Tables) -> io::Result<()> {
        // The plan is taken out of the list and put back afterwards, because `cell` borrows all of `self`.
        let Some((table, sources)) = self.plans[item.kind as usize].take() else {
            return Ok(());
        };
        let mut row = std::mem::take(&mut self.row);
        row.clear();
        row.extend(sources.iter().map(|source| self.cell(*source, item)));
        let added = to.row(table, &row, &self.texts);
        self.plans[item.kind as usize] = Some((table, sources));
        self.row = row;
        added
    }

    fn cell(&mut self, source: CellSource, item: &Item) -> Cell {
        match (source, item.track) {
            (CellSource::Start, _) => item.start.into(),
            (CellSource::Duration, _) => self.record.interpreter.duration(item).into(),
            (CellSource::Thread, _) => item.thread.into(),
            (
                CellSource::Device,
                Track::Stream { device, .. }
                | Track::Spans { device, .. }
                | Track::Counter { device, .. },
            ) => device.into(),
            (CellSource::Stream, Track::Stream { stream, .. } | Track::Spans { stream, .. }) => {
                stream.into()
            }
            (CellSource::Layer, Track::Expert { layer, .. }) => layer.into(),
            (CellSource::Expert, Track::Expert { expert, .. }) => expert.into(),
            (CellSource::Metric, Track::Counter { metric, .. }) => self.texts.fixed(metric.name()),
            (CellSource::Unit, Track::Counter { metric, .. }) => self.texts.fixed(metric.unit()),
            (CellSource::Name, _) => self.name(item),
            (CellSource::Fixed(cell), _) => cell,
            (CellSource::Word, _) => self.texts.fixed(item.name.word().unwrap_or_default()),
            (CellSource::State | CellSource::Function | CellSource::Stack, _) => {
                self.sampled(source, item)
            }
            (CellSource::Domain, _) => match item.domain {
                NO_STRING => Cell::Null,
                domain => self.texts.string(self.record, domain),
            },
            (CellSource::Scope, _) => item
                .scope
                .map_or(Cell::Null, |scope| self.texts.scope(self.record, scope)),
            (CellSource::Value, _) => item.value.into(),
            (CellSource::Real, _) => Cell::Real(item.value as f64 / 1e3),
            (CellSource::Iteration, _) => self.iterations.at(item.start).into(),
            (CellSource::Capturing, _) => item.capturing.into(),
            (CellSource::Failed, _) => item.failed.into(),
            (CellSource::Cut, _) => item.cut.into(),
            _ => Cell::Null,
        }
    }

    fn sampled(&mut self, source: CellSource, item: &Item) -> Cell {
        let Name::Sample { frame, state, .. } = item.name else {
            return Cell::Null;
        };
        match (source, state) {
            (CellSource::State, Some(state)) => self.texts.fixed(match state {
                ThreadState::Running => "running",
                ThreadState::Runnable => "waiting for a processor",
                ThreadState::Sleeping => "asleep",
            }),
            (CellSource::Function | CellSource::Stack, _) if frame != 0 => {
                let whole = matches!(source, CellSource::Stack);
                self.texts.frame(self.record, frame, whole)
            }
            _ => Cell::Null,
        }
    }

    fn name(&mut self, item: &Item) -> Cell {
        match item.name {
            Name::Text(id) | Name::Kernel(id) => self.texts.string(self.record, id),
            Name::Call(row) => self.calls[usize::from(row)],
            other => other
                .word()
                .map_or(Cell::Null, |word| self.texts.fixed(word)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_table_and_no_cell_is_missing() {
        for kind in Kind::ALL {
            let Some((name, _)) = kind.row().table else {
                continue;
            };
            let (table, sources) =
                plan(*kind, &mut Texts::default()).unwrap_or_else(|| panic!("no table {name}"));
            for (field, source) in TABLES[table].fields.iter().zip(sources) {
                let is_null = matches!(source, CellSource::Nothing);
                assert!(!is_null || field.optional, "{kind:?}: {}", field.name);
            }
        }
    }
}
