//! Causes of the host's time, and the names under which the ledger (the table of time by cause) shows them.

use tllmprof_calls::{CallPurpose, Wait, kind_of};
use tllmprof_record::{CallKind, StringId, Strings};

use super::claim::Claim;
use super::{CauseTime, LedgerKind};
use crate::events::facts::{CallCount, Facts, name};
use crate::events::samples::{Frames, Location, SampledState, SleepKind};
use crate::ledger::difference::WAITING;
use crate::ledger::difference::cause::{self, DELAYED};

/// Prefix of the names of causes in which the thread was asleep or blocked.
pub(crate) const ASLEEP: &str = cause::BLOCKED;

/// Prefix of the name of a cause that is a Python function. The function's name follows.
pub(crate) const PYTHON: &str = "Python: ";
/// Prefix of the name of a cause that is a native function. The function's name follows.
pub(crate) const NATIVE: &str = "native: ";

/// Follows [`WAITING`] in the name of a cause in which a copy to the host waits for the GPU. The name of the call comes
/// next.
const IN_COPY: &str = " in a copy: ";

/// Name of the cause for waits for requests.
pub(crate) const REQUESTS_CAUSE: &str = "waiting for requests";

/// An activity of the host that events of the record show, such as a call or a wait for the GIL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ActivityKey {
    Call(u8),
    Capturing,
    Gc,
    Gil,
    Function(StringId),
    /// The thread waits for requests to the inference engine.
    Requests,
}

/// A cause of the host's time: an activity, the time between two activities, or a state that a
/// sample shows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum HostCause {
    On(ActivityKey),
    Between(ActivityKey, ActivityKey),
    /// The time between two activities, if it is too short for a row of its own in the ledger.
    Short(ActivityKey, ActivityKey),
    /// The time between two activities, if it contains the end of an iteration.
    Edge(ActivityKey, ActivityKey),
    /// The time before the thread's first activity.
    Before(ActivityKey),
    /// The time after the thread's last activity.
    After(ActivityKey),
    /// A call that copies to the host and takes so long that it seems to wait for the GPU. The field is the call's row
    /// in the table of calls.
    CopyToHost(u8),
    /// The thread was in this state when a sample of its stack was taken.
    SampledState(SampledState),
    /// The thread was asleep or blocked in code outside CUDA calls.
    Blocked(Code),
    /// The thread was ready to run but had no processor.
    Delayed,
    Other,
    Unknown,
}

/// Code outside CUDA calls, classified by its position between activities, as in [`HostCause`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Code {
    In(ActivityKey),
    Between(ActivityKey, ActivityKey),
    Edge(ActivityKey, ActivityKey),
    Before(ActivityKey),
    After(ActivityKey),
}

impl HostCause {
    /// Returns the code, if this cause is code outside CUDA calls; otherwise `None`.
    pub const fn code(self) -> Option<Code> {
        match self {
            Self::On(key @ ActivityKey::Function(_)) => Some(Code::In(key)),
            Self::Between(from, to) | Self::Short(from, to) => Some(Code::Between(from, to)),
            Self::Edge(from, to) => Some(Code::Edge(from, to)),
            Self::Before(key) => Some(Code::Before(key)),
            Self::After(key) => Some(Code::After(key)),
            Self::On(_)
            | Self::CopyToHost(_)
            | Self::SampledState(_)
            | Self::Blocked(_)
            | Self::Delayed
            | Self::Other
            | Self::Unknown => None,
        }
    }
}

/// The data of a record that are needed to name causes.
#[derive(Clone, Copy, Debug)]
pub struct NameSources<'a> {
    pub facts: &'a Facts,
    pub strings: &'a Strings,
    /// The frames of sampled stacks.
    pub frames: &'a Frames,
}

impl NameSources<'_> {
    /// Returns true for the time before the first and after the last event of the host in another profiler's trace.
    /// In such a trace the host's events may begin later and end earlier than the GPU's work, so the cause of this
    /// time is unknown.
    const fn is_not_recorded(&self, spent: HostCause) -> bool {
        matches!(spent, HostCause::Before(_) | HostCause::After(_)) && !self.facts.origin.is_own()
    }

    /// Returns the kind of a cause, and the name under which the ledger shows it.
    pub fn cause(&self, spent: HostCause) -> (LedgerKind, String) {
        match spent {
            spent if self.is_not_recorded(spent) => (LedgerKind::Unknown, "unknown".to_owned()),
            HostCause::On(key) => self.activity(key),
            HostCause::Between(from, to) | HostCause::Edge(from, to) => {
                let (from, to) = (self.label(from), self.label(to));
                (LedgerKind::Code, format!("code between {from} and {to}"))
            }
            HostCause::Short(from, to) => (LedgerKind::Code, self.short(from, to)),
            HostCause::Before(key) => {
                (LedgerKind::Code, format!("code before {}", self.label(key)))
            }
            HostCause::After(key) => (LedgerKind::Code, format!("code after {}", self.label(key))),
            HostCause::CopyToHost(row) => {
                let cause = format!("{WAITING}{IN_COPY}{}", self.facts.call(row));
                (LedgerKind::Wait, cause)
            }
            HostCause::SampledState(seen) => self.seen(seen),
            HostCause::Blocked(code) => {
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
            HostCause::Delayed => (LedgerKind::Delayed, DELAYED.to_owned()),
            HostCause::Other => (LedgerKind::Other, "other".to_owned()),
            HostCause::Unknown => (LedgerKind::Unknown, "unknown".to_owned()),
        }
    }

    /// Returns an entry with the kind, the name and the location of a cause, and the given time in
    /// nanoseconds.
    pub(super) fn time(&self, spent: HostCause, ns: u64) -> CauseTime {
        let (kind, cause) = self.cause(spent);
        CauseTime {
            kind,
            cause,
            location: self.location(spent),
            ns,
        }
    }

    /// Returns the location of the function that a cause names, if there is one and it is known.
    fn location(&self, spent: HostCause) -> Option<Location> {
        match spent {
            HostCause::On(ActivityKey::Function(id))
            | HostCause::Blocked(Code::In(ActivityKey::Function(id))) => {
                Some(Location::native(&name(self.strings.get(id))))
            }
            HostCause::SampledState(
                SampledState::Python(function)
                | SampledState::Native(function)
                | SampledState::Asleep(Some(function)),
            ) => self.frames.location(function),
            HostCause::SampledState(SampledState::AsleepIn(sleep)) => {
                self.frames.sleeps.get(sleep as usize)?.location.clone()
            }
            _ => None,
        }
    }

    /// Returns the ledger's name for code between two activities that is too short for a row of its
    /// own.
    fn short(&self, from: ActivityKey, to: ActivityKey) -> String {
        match self.claim(HostCause::Short(from, to)) {
            Claim::Launch => "code between launches".to_owned(),
            Claim::Wait => "code after waits for the GPU".to_owned(),
            Claim::Read => "code after copies that wait for the GPU".to_owned(),
            Claim::Copy => "code between copies".to_owned(),
            _ => format!("code between {} and {}", self.label(from), self.label(to)),
        }
    }

    /// Returns the category of GPU idle time, if the host spends that time on the cause `spent`. A finding may explain
    /// ("claim") the idle time of a category.
    pub fn claim(&self, spent: HostCause) -> Claim {
        match spent {
            HostCause::On(key) => self.claim_on(key),
            HostCause::CopyToHost(_) => Claim::Copy,
            HostCause::Short(from, to) => match (self.claim_on(from), self.claim_on(to)) {
                (waits @ (Claim::Wait | Claim::Read), _) => waits,
                (Claim::Copy, _) | (_, Claim::Copy) => Claim::Copy,
                (Claim::Launch, _) | (_, Claim::Launch) => Claim::Launch,
                (other, _) => other,
            },
            spent if self.is_not_recorded(spent) => Claim::Unknown,
            HostCause::Between(..)
            | HostCause::Edge(..)
            | HostCause::Before(_)
            | HostCause::After(_) => Claim::Code,
            // A thread without a processor runs no code, so its time is a category of its own.
            HostCause::Delayed | HostCause::SampledState(SampledState::Waiting) => Claim::Delayed,
            HostCause::SampledState(SampledState::AsleepIn(sleep)) => {
                match self.sleep_kind(sleep) {
                    Some(SleepKind::Work) => Claim::Requests,
                    Some(SleepKind::Worker) => Claim::Launch,
                    Some(SleepKind::Producer) => Claim::Input,
                    Some(SleepKind::Gpu) => Claim::Wait,
                    _ => Claim::Blocked,
                }
            }
            HostCause::Blocked(_) | HostCause::SampledState(SampledState::Asleep(_)) => {
                Claim::Blocked
            }
            HostCause::SampledState(_) => Claim::Code,
            HostCause::Other | HostCause::Unknown => Claim::Unknown,
        }
    }

    fn claim_on(&self, key: ActivityKey) -> Claim {
        match self.activity(key).0 {
            LedgerKind::Wait if self.reads(key) => Claim::Read,
            LedgerKind::Wait => Claim::Wait,
            LedgerKind::Launch => Claim::Launch,
            LedgerKind::Copy => Claim::Copy,
            LedgerKind::Capture => Claim::Capture,
            LedgerKind::Allocation => Claim::Allocation,
            LedgerKind::Compilation => Claim::Compilation,
            LedgerKind::Gc => Claim::Gc,
            LedgerKind::GilWait => Claim::Gil,
            LedgerKind::Requests => Claim::Requests,
            LedgerKind::Function => Claim::Code,
            _ => Claim::Call,
        }
    }

    /// Returns true if the activity is a copy to the host that returns only when the copy has
    /// completed.
    fn reads(&self, key: ActivityKey) -> bool {
        let ActivityKey::Call(row) = key else {
            return false;
        };
        let mut rows = self.facts.calls.iter();
        let row = rows.find(|known| known.row == row);
        row.is_some_and(|row| row.waits_for() == Some(Wait::CopyToHost))
    }

    /// Returns true if the cause is host code outside CUDA calls, including the time in which the thread is asleep or
    /// blocked in such code.
    pub fn is_code(&self, spent: HostCause) -> bool {
        matches!(self.claim(spent), Claim::Code | Claim::Blocked)
    }

    /// Returns true if the cause is a wait for the GPU, the GIL or requests that an event shows. Such a wait does not
    /// necessarily take longer if the thread gets no processor meanwhile.
    pub fn waits(&self, spent: HostCause) -> bool {
        use LedgerKind::{GilWait, Requests, Wait};
        match spent {
            HostCause::On(key) => matches!(self.activity(key).0, Wait | GilWait | Requests),
            HostCause::CopyToHost(_) => true,
            _ => false,
        }
    }

    /// Returns true if samples may divide the time of this cause further: no event explains the time, or only the event
    /// of a marked function around it.
    pub fn is_open(&self, spent: HostCause) -> bool {
        use LedgerKind::{Code, Function, Other, Unknown};
        matches!(self.cause(spent).0, Code | Function | Other | Unknown)
    }

    /// Returns the kind of a sleep, given by its index in [`Frames::sleeps`]; `None` if there is no such sleep.
    fn sleep_kind(&self, sleep: u32) -> Option<SleepKind> {
        Some(self.frames.sleeps.get(sleep as usize)?.kind)
    }

    fn seen(&self, seen: SampledState) -> (LedgerKind, String) {
        let label = |function| self.frames.label(function);
        match seen {
            SampledState::Python(function) => {
                let cause = format!("{PYTHON}{}", label(function));
                (LedgerKind::Python, cause)
            }
            SampledState::Asleep(function) => {
                let place = function.map_or("native code", label);
                (LedgerKind::Blocked, format!("{ASLEEP} in {place}"))
            }
            SampledState::AsleepIn(sleep) => {
                let sleep = self.frames.sleeps.get(sleep as usize);
                let cause = sleep.map_or_else(|| ASLEEP.to_owned(), |sleep| sleep.cause.clone());
                let kind = match sleep.map(|sleep| sleep.kind) {
                    Some(SleepKind::Work) => LedgerKind::Requests,
                    Some(SleepKind::Worker) => LedgerKind::Launch,
                    Some(SleepKind::Gpu) => LedgerKind::Wait,
                    _ => LedgerKind::Blocked,
                };
                (kind, cause)
            }
            SampledState::Waiting => (LedgerKind::Delayed, DELAYED.to_owned()),
            SampledState::Outside => {
                let cause = "native code in no Python function".to_owned();
                (LedgerKind::Native, cause)
            }
            SampledState::Native(function) => {
                let cause = format!("{NATIVE}{}", label(function));
                (LedgerKind::Native, cause)
            }
        }
    }

    fn activity(&self, key: ActivityKey) -> (LedgerKind, String) {
        let named = self.label(key);
        match key {
            ActivityKey::Call(row) => {
                let row = self.facts.calls.iter().find(|known| known.row == row);
                row.map_or((LedgerKind::Call, named), called)
            }
            ActivityKey::Capturing => (LedgerKind::Capture, "graph capture".to_owned()),
            ActivityKey::Gc => (LedgerKind::Gc, named),
            ActivityKey::Gil => (LedgerKind::GilWait, cause::GIL.to_owned()),
            ActivityKey::Requests => (LedgerKind::Requests, named),
            ActivityKey::Function(_) => (LedgerKind::Function, format!("{named}: its own code")),
        }
    }

    fn label(&self, key: ActivityKey) -> String {
        match key {
            ActivityKey::Call(row) => self.facts.call(row),
            ActivityKey::Capturing => "a stream capture".to_owned(),
            ActivityKey::Gc => cause::GC.to_owned(),
            ActivityKey::Gil => "a wait for the GIL".to_owned(),
            ActivityKey::Requests => REQUESTS_CAUSE.to_owned(),
            ActivityKey::Function(id) => name(self.strings.get(id)),
        }
    }
}

fn called(row: &CallCount) -> (LedgerKind, String) {
    let copies = matches!(kind_of(&row.name), Some(CallPurpose::AsyncCopy(_)));
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
        CallKind::Other if row.compiles() => {
            let cause = format!("compilation: {}", row.name);
            return (LedgerKind::Compilation, cause);
        }
        CallKind::Other => {
            let cause = format!("other CUDA calls: {}", row.name);
            return (LedgerKind::Call, cause);
        }
    };
    (kind, cause.to_owned())
}

/// Returns true for a row of the host's time in which copies to the host wait for the GPU, or transfer data. `cause` is
/// the row's cause.
pub(crate) fn is_wait_in_copy(cause: &str) -> bool {
    let place = cause.strip_prefix(WAITING);
    place.is_some_and(|place| place.starts_with(IN_COPY))
}
