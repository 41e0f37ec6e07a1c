//! The items that are drawn in a trace, on the clock that all records of the trace share.

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

/// A text that many items share.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Text {
    String(StringId),
    /// The name of a scope.
    Scope(u32),
}

impl Text {
    pub fn resolve(self, record: &Record) -> String {
        match self {
            Self::String(id) => record.texts().strings.get(id).to_owned(),
            Self::Scope(scope) => record.scope(scope),
        }
    }
}

/// An item that is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Activity {
    pub item: Item,
    pub category: Category,
    /// The start in nanoseconds of the common clock.
    pub start: u64,
    /// The duration in nanoseconds; `None` for a moment.
    pub duration: Option<u64>,
    /// The iteration that it is in.
    iteration: Option<u64>,
    pub flow: Option<Flow>,
}

/// An end of an arrow from a call to the kernels that it launched, from one to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The launch's number among those of the record.
    pub launch: u32,
    /// True if it is the end of the call.
    pub begins: bool,
}

impl Activity {
    /// Returns its arguments.
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
            // A kernel that was launched in no scope has no such argument.
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
    /// Returns a `Draw` for a record. `shift` is added to its clock to get the common one, in nanoseconds.
    pub fn new(record: &'a Record, shift: u64) -> Self {
        Self {
            record,
            iterations: Iterations::from_process(&record.process),
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

    /// Returns the start of an item on the common clock.
    pub fn at(&self, item: &Item) -> u64 {
        placed(item.start, 0, self.shift).0
    }

    /// Returns the arrow's end at an item, if any. With two clocks, a kernel may seem to begin before its
    /// launch: arrows do not point back.
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

/// Returns a span on the common clock, which has 63 bits, as Perfetto reads it. Later times of a damaged
/// record are moved to the end of that range.
fn placed(start: u64, duration: u64, shift: u64) -> (u64, u64) {
    const LAST: u64 = i64::MAX as u64;
    let start = start.saturating_add(shift).min(LAST);
    (start, duration.min(LAST - start))
}
