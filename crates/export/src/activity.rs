//! What is drawn in a trace: items, on the clock that all records of the trace share.

use tllmprof_record::{NO_STRING, StringId};
use tllmprof_timeline::{Category, End, Item, Iterations, Key, Kind};

use crate::record::Record;

/// The value of an argument.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    Number(u64),
    Text(Text),
    Yes,
}

/// A text that many have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Text {
    String(StringId),
    /// What a scope is called.
    Scope(u32),
}

impl Text {
    pub fn of(self, record: &Record) -> String {
        match self {
            Self::String(id) => record.texts().strings.get(id).to_owned(),
            Self::Scope(scope) => record.scope(scope),
        }
    }
}

/// Something that is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    pub item: Item,
    pub category: Category,
    /// In nanoseconds of the common clock.
    pub start: u64,
    /// In nanoseconds; `None`: a moment.
    pub duration: Option<u64>,
    /// The iteration that it lies in.
    iteration: Option<u64>,
    pub flow: Option<Flow>,
}

/// An end of an arrow from a call to the kernels that it launched, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The launch, by its number among those of the record.
    pub launch: u32,
    /// It is the call's.
    pub begins: bool,
}

impl Activity {
    /// What else is written of it.
    pub fn args(&self) -> impl Iterator<Item = (Key, Value)> + '_ {
        let item = &self.item;
        // The null stream is not worth an argument.
        let key = item.kind.row().value;
        let value = key.filter(|key| *key != Key::Stream || item.value != 0);
        let flag = |is_set: bool, key| is_set.then_some((key, Value::Yes));
        let args = [
            value.map(|key| (key, Value::Number(item.value))),
            (item.domain != NO_STRING)
                .then_some((Key::Domain, Value::Text(Text::String(item.domain)))),
            // Of a kernel that was launched in none there is nothing to say.
            item.scope
                .filter(|scope| *scope != 0)
                .map(|scope| (Key::Scope, Value::Text(Text::Scope(scope)))),
            flag(item.capturing, Key::Capturing),
            self.iteration.map(|n| (Key::Iteration, Value::Number(n))),
            flag(item.failed, Key::Failed),
            flag(item.cut, Key::Cut),
        ];
        args.into_iter().flatten()
    }
}

/// Draws the items of a record.
pub struct Draw<'a> {
    record: &'a Record,
    iterations: Iterations,
    shift: u64,
}

impl<'a> Draw<'a> {
    /// `shift` is what its clock is behind the common one, in nanoseconds.
    pub fn new(record: &'a Record, shift: u64) -> Self {
        Self {
            record,
            iterations: Iterations::of(&record.process),
            shift,
        }
    }

    /// Draws an item of this category.
    pub fn activity(&mut self, item: &Item, category: Category) -> Activity {
        let duration = self.record.interpreter.duration(item);
        let is_in_one = item.kind != Kind::Window && item.kind.row().value != Some(Key::Iteration);
        let (start, long) = placed(item.start, duration.unwrap_or(0), self.shift);
        Activity {
            item: *item,
            category,
            start,
            duration: duration.map(|_| long),
            iteration: is_in_one.then(|| self.iterations.at(item.start)).flatten(),
            flow: self.flow(item),
        }
    }

    /// When an item begins.
    pub fn at(&self, item: &Item) -> u64 {
        placed(item.start, 0, self.shift).0
    }

    /// By two clocks, a kernel may seem to begin before its launch: no arrow points back.
    fn flow(&self, item: &Item) -> Option<Flow> {
        let launch = self.record.interpreter.launch(item)?;
        let begins = item.kind.row().end == Some(End::Call);
        let is_ahead = match begins {
            true => launch.last >= item.start,
            false => launch.start <= item.start,
        };
        is_ahead.then_some(Flow {
            launch: launch.number,
            begins,
        })
    }
}

/// A span on the common clock, which has 63 bits, as Perfetto reads it: what a damaged record has behind
/// that is at its end.
fn placed(start: u64, duration: u64, shift: u64) -> (u64, u64) {
    const LAST: u64 = i64::MAX as u64;
    let start = start.saturating_add(shift).min(LAST);
    (start, duration.min(LAST - start))
}
