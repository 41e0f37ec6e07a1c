//! What the host spends time on, and what that is called.

use tllmprof_calls::{Kind, kind_of};
use tllmprof_record::{CallKind, StringId, Strings};

use super::LedgerKind;
use crate::events::facts::{CallRow, Facts, name};
use crate::events::samples::{Frames, Seen};
use crate::ledger::difference::WAITING;
use crate::ledger::difference::cause::{self, DELAYED};

/// What causes begin with in which the thread was asleep or blocked.
pub const ASLEEP: &str = cause::BLOCKED;

/// What time is spent on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Key {
    Call(u8),
    Capturing,
    Gc,
    Gil,
    Function(StringId),
    /// Waiting for requests.
    Requests,
}

/// A cause, or what lies between two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Spent {
    On(Key),
    Between(Key, Key),
    /// The same, where an iteration ends in it.
    Edge(Key, Key),
    /// Before the first of all, and after the last.
    Before(Key),
    After(Key),
    /// What samples show that a thread ran.
    Seen(Seen),
    /// The thread was asleep or blocked in such code.
    Blocked(Code),
    /// It could have run, and had no processor.
    Delayed,
    Other,
    Unknown,
}

/// Code that no call explains, as [`Spent`] has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Code {
    In(Key),
    Between(Key, Key),
    Edge(Key, Key),
    Before(Key),
    After(Key),
}

impl Spent {
    /// The code that it is, if it is that.
    pub const fn code(self) -> Option<Code> {
        match self {
            Self::On(key @ Key::Function(_)) => Some(Code::In(key)),
            Self::Between(from, to) => Some(Code::Between(from, to)),
            Self::Edge(from, to) => Some(Code::Edge(from, to)),
            Self::Before(key) => Some(Code::Before(key)),
            Self::After(key) => Some(Code::After(key)),
            Self::On(_)
            | Self::Seen(_)
            | Self::Blocked(_)
            | Self::Delayed
            | Self::Other
            | Self::Unknown => None,
        }
    }
}

/// The names of a record.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    pub facts: &'a Facts,
    pub strings: &'a Strings,
    /// Of sampled stacks.
    pub frames: &'a Frames,
}

impl Named<'_> {
    /// The kind of what time is spent on, and its name.
    pub fn cause(&self, spent: Spent) -> (LedgerKind, String) {
        match spent {
            Spent::On(key) => self.of(key),
            Spent::Between(from, to) | Spent::Edge(from, to) => {
                let (from, to) = (self.label(from), self.label(to));
                (LedgerKind::Code, format!("code between {from} and {to}"))
            }
            Spent::Before(key) => (LedgerKind::Code, format!("code before {}", self.label(key))),
            Spent::After(key) => (LedgerKind::Code, format!("code after {}", self.label(key))),
            Spent::Seen(seen) => self.seen(seen),
            Spent::Blocked(code) => {
                let (from, to) = match code {
                    Code::In(key) => (format!("in {}", self.label(key)), String::new()),
                    Code::Between(from, to) | Code::Edge(from, to) => (
                        format!("between {}", self.label(from)),
                        format!(" and {}", self.label(to)),
                    ),
                    Code::Before(key) => (format!("before {}", self.label(key)), String::new()),
                    Code::After(key) => (format!("after {}", self.label(key)), String::new()),
                };
                (LedgerKind::Blocked, format!("{ASLEEP} {from}{to}"))
            }
            Spent::Delayed => (LedgerKind::Delayed, DELAYED.to_owned()),
            Spent::Other => (LedgerKind::Other, "other".to_owned()),
            Spent::Unknown => (LedgerKind::Unknown, "unknown".to_owned()),
        }
    }

    /// Whether it is code of the host that no call explains: not what follows a wait, and not what lies between two
    /// launches, in the midst of an iteration.
    pub fn is_code(&self, spent: Spent) -> bool {
        use LedgerKind::{Copy, Launch, Wait};
        match spent {
            Spent::On(key) => matches!(key, Key::Function(_)),
            // Without a processor it ran none.
            Spent::Seen(Seen::Waiting) => false,
            Spent::Edge(..) | Spent::Before(_) | Spent::After(_) | Spent::Seen(_) => true,
            Spent::Blocked(Code::In(_) | Code::Edge(..) | Code::Before(_) | Code::After(_)) => true,
            Spent::Between(from, to) | Spent::Blocked(Code::Between(from, to)) => {
                let (from, to) = (self.of(from).0, self.of(to).0);
                !matches!(
                    (from, to),
                    (Wait, Launch) | (Launch, Launch) | (Copy, _) | (_, Copy)
                )
            }
            Spent::Delayed | Spent::Other | Spent::Unknown => false,
        }
    }

    /// Whether the thread waits by what time is spent on: what delays it then may cost nothing.
    pub fn waits(&self, spent: Spent) -> bool {
        use LedgerKind::{GilWait, Requests, Wait};
        match spent {
            Spent::On(key) => matches!(self.of(key).0, Wait | GilWait | Requests),
            _ => false,
        }
    }

    /// Whether samples may say what it is: nothing else does.
    pub fn is_open(&self, spent: Spent) -> bool {
        use LedgerKind::{Code, Function, Other, Unknown};
        matches!(self.cause(spent).0, Code | Function | Other | Unknown)
    }

    fn seen(&self, seen: Seen) -> (LedgerKind, String) {
        let label = |function| self.frames.label(function);
        match seen {
            Seen::Python(function) => {
                let cause = format!("Python: {}", label(function));
                (LedgerKind::Python, cause)
            }
            Seen::Asleep(function) => {
                let place = function.map_or("native code", label);
                (LedgerKind::Blocked, format!("{ASLEEP} in {place}"))
            }
            Seen::Waiting => (LedgerKind::Delayed, DELAYED.to_owned()),
            Seen::Outside => {
                let cause = "native code in no Python function".to_owned();
                (LedgerKind::Native, cause)
            }
            Seen::Native(function) => {
                let cause = format!("native: {}", label(function));
                (LedgerKind::Native, cause)
            }
        }
    }

    fn of(&self, key: Key) -> (LedgerKind, String) {
        let named = self.label(key);
        match key {
            Key::Call(row) => {
                let row = self.facts.calls.iter().find(|known| known.row == row);
                row.map_or((LedgerKind::Call, named), called)
            }
            Key::Capturing => (LedgerKind::Capture, "graph capture".to_owned()),
            Key::Gc => (LedgerKind::Gc, named),
            Key::Gil => (LedgerKind::GilWait, cause::GIL.to_owned()),
            Key::Requests => (LedgerKind::Requests, named),
            Key::Function(_) => (LedgerKind::Function, format!("{named}: its own code")),
        }
    }

    fn label(&self, key: Key) -> String {
        match key {
            Key::Call(row) => self.facts.call(row),
            Key::Capturing => "a stream capture".to_owned(),
            Key::Gc => cause::GC.to_owned(),
            Key::Gil => "a wait for the GIL".to_owned(),
            Key::Requests => "waiting for requests".to_owned(),
            Key::Function(id) => name(self.strings.get(id)),
        }
    }
}

fn called(row: &CallRow) -> (LedgerKind, String) {
    let copies = matches!(kind_of(&row.name), Some(Kind::AsyncCopy(_)));
    let (kind, cause) = match row.kind {
        CallKind::Wait => {
            let cause = format!("{WAITING}: {}", row.name);
            return (LedgerKind::Wait, cause);
        }
        CallKind::GraphLaunch | CallKind::KernelLaunch => (LedgerKind::Launch, cause::LAUNCHING),
        CallKind::Capture => (LedgerKind::Capture, "graph capture"),
        CallKind::AsyncCopy => (LedgerKind::Copy, "copies"),
        CallKind::Other if copies => (LedgerKind::Copy, "copies"),
        CallKind::Other if row.allocates() => (LedgerKind::Allocation, "allocation"),
        CallKind::Other => {
            let cause = format!("other CUDA calls: {}", row.name);
            return (LedgerKind::Call, cause);
        }
    };
    (kind, cause.to_owned())
}
