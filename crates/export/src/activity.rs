//! Activities: the items of a record that are drawn in a trace, with times on the clock that all records
//! of the trace share.

use tllmprof_record::{NO_STRING, StringId};
use tllmprof_timeline::{Category, Item, Iterations, Key, Kind, LaunchEnd};

use crate::record::Record;

/// The value of an argument. A viewer shows an item's arguments when the user selects the item.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum ArgumentValue {
    Number(u64),
    Text(SharedText),
    Yes,
}

/// A reference to a text that many items share. It is the number of a string, or the number of a scope (a module or
/// function that launched kernels), whose name is the text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum SharedText {
    String(StringId),
    /// The name of a scope (the module or function in which a kernel was launched), given by the scope's number.
    Scope(u32),
}

impl SharedText {
    pub(crate) fn resolve(self, record: &Record) -> String {
        match self {
            Self::String(id) => record.texts().strings.get(id).to_owned(),
            Self::Scope(scope) => record.scope(scope),
        }
    }
}

/// An item of a record, such as a call or a kernel, in the form in which a trace shows it. Times are on the common
/// clock, which all records of the trace share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Activity {
    pub item: Item,
    pub category: Category,
    /// The start of the item, in nanoseconds of the common clock.
    pub start: u64,
    /// The duration in nanoseconds. `None` for an item without a duration.
    pub duration: Option<u64>,
    /// The iteration that contains the item. `None` if no iteration contains the item, or if the item is a window (a
    /// profiled range of iterations). Also `None` for an iteration, and for a GPU span (the work of one stream in one
    /// iteration): the value of such an item is already the iteration's number.
    iteration: Option<u64>,
    pub flow: Option<Flow>,
}

/// One point of an arrow. An arrow leads from a launch call to the first kernel that the call launched, and from each
/// kernel of that launch to the next kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Flow {
    /// Number of the launch, which no other launch in the same record has.
    pub launch: u32,
    /// True if this point is the launch call, at which the arrow begins.
    pub begins: bool,
}

impl Activity {
    /// Returns the arguments that a viewer shows with the item.
    pub(crate) fn args(&self) -> impl Iterator<Item = (Key, ArgumentValue)> + '_ {
        let item = &self.item;
        // Stream 0 is the default stream of CUDA, so its number is not shown.
        let key = item.kind.row().value;
        let value = key.filter(|key| *key != Key::Stream || item.value != 0);
        let flag = |is_set: bool, key| is_set.then_some((key, ArgumentValue::Yes));
        let args = [
            value.map(|key| (key, ArgumentValue::Number(item.value))),
            (item.domain != NO_STRING).then_some((
                Key::Domain,
                ArgumentValue::Text(SharedText::String(item.domain)),
            )),
            // Scope 0 means that a kernel was launched outside all scopes (modules and functions of the model), so it
            // is not shown.
            item.scope
                .filter(|scope| *scope != 0)
                .map(|scope| (Key::Scope, ArgumentValue::Text(SharedText::Scope(scope)))),
            flag(item.capturing, Key::Capturing),
            self.iteration
                .map(|n| (Key::Iteration, ArgumentValue::Number(n))),
            flag(item.failed, Key::Failed),
            flag(item.cut, Key::Cut),
        ];
        args.into_iter().flatten()
    }
}

/// A converter from the items of a record to activities, the form in which a trace shows the items.
pub(crate) struct Draw<'a> {
    record: &'a Record,
    iterations: Iterations,
    shift: u64,
}

impl<'a> Draw<'a> {
    /// Returns a converter for a record. `shift` is the difference between the two clocks in nanoseconds: the time on
    /// the common clock of the trace minus the time on the record's clock.
    pub(crate) fn new(record: &'a Record, shift: u64) -> Self {
        Self {
            record,
            iterations: Iterations::from_process(&record.process),
            shift,
        }
    }

    /// Returns the item as an activity. `category` is the category in which the trace shows the item.
    pub(crate) fn activity(&mut self, item: &Item, category: Category) -> Activity {
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

    /// Returns the start of an item, in nanoseconds on the common clock.
    pub(crate) fn at(&self, item: &Item) -> u64 {
        placed(item.start, 0, self.shift).0
    }

    /// Returns the point of an arrow at an item, or `None` if the item belongs to no arrow. The host and the GPU have
    /// separate clocks, so a kernel may seem to begin before its launch. Then the result is also `None`, because the
    /// arrow would point back in time.
    fn flow(&self, item: &Item) -> Option<Flow> {
        let launch = self.record.interpreter.launch(item)?;
        let begins = item.kind.row().end == Some(LaunchEnd::Call);
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

/// Converts a start and a duration to the common clock, which is `shift` nanoseconds ahead of the record's clock.
/// Perfetto reads only 63 bits of a time. Later times occur only in damaged records, and are moved to the last time
/// that has 63 bits.
fn placed(start: u64, duration: u64, shift: u64) -> (u64, u64) {
    const LAST: u64 = i64::MAX as u64;
    let start = start.saturating_add(shift).min(LAST);
    (start, duration.min(LAST - start))
}
