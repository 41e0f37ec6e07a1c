//! The host's time. Events of a thread come in the order of their ends, so those inside another come before it:
//! each takes the time that none before it took. Moments are counted in the time of the thread's own
//! iterations, so what lies outside them has no length, and all sums are exact.

use std::collections::{BTreeMap, HashMap};

use tllmprof_calls::{Kind, kind_of};
use tllmprof_record::{CallKind, Event, StringId, Strings, What};

use super::{LedgerKind, LedgerRow, rows};
use crate::facts::{CallRow, Facts, name};
use crate::spans::Span;

/// How many pieces of time of a thread are kept back for events that contain them.
const ROOM: usize = 1 << 16;

/// How many causes are distinguished.
const LIMIT: usize = 1 << 14;

/// What time is spent on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Key {
    Call(u8),
    Capturing,
    Gc,
    Gil,
    Function(StringId),
}

/// A cause, or what lies between two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Spent {
    On(Key),
    Between(Key, Key),
    Other,
    Unknown,
}

/// The adding up, in ticks.
#[derive(Debug)]
pub struct HostLedger {
    threads: HashMap<u32, Thread>,
    times: HashMap<Spent, u64>,
    total: u64,
    pub stretched: bool,
}

/// A thread of iterations.
#[derive(Debug, Default)]
struct Thread {
    iterations: Vec<Span>,
    /// The time of the iterations before each, and of all.
    before: Vec<u64>,
    all: u64,
    /// Pieces of time that have causes, in order.
    pieces: Vec<Piece>,
}

/// A piece of time in which every tick has a cause.
#[derive(Clone, Copy, Debug)]
struct Piece {
    span: Span,
    first: Key,
    last: Key,
}

impl HostLedger {
    /// For iterations in the order of their starts, none of which overlaps the next, with their threads, and whether
    /// kernels were recorded in them.
    pub fn new(iterations: impl Iterator<Item = (Span, u32, bool)> + Clone) -> Self {
        let stretched = iterations.clone().all(|(.., taken)| taken);
        let mut threads: HashMap<u32, Thread> = HashMap::new();
        let mut total = 0;
        for (span, thread, _) in iterations.filter(|(.., taken)| stretched || !taken) {
            let thread = threads.entry(thread).or_default();
            let long = span.end.saturating_sub(span.start);
            thread.iterations.push(span);
            thread.before.push(thread.all);
            thread.all += long;
            total += long;
        }
        Self {
            threads,
            times: HashMap::new(),
            total,
            stretched: stretched && total > 0,
        }
    }

    /// Adds an event of a thread.
    pub fn add(&mut self, thread: u32, event: &Event) {
        let key = match event.what {
            What::Call {
                capturing: true, ..
            } => Key::Capturing,
            What::Call { row, .. } => Key::Call(row),
            What::Gc { .. } => Key::Gc,
            What::GilWait => Key::Gil,
            What::Function { name } => Key::Function(name),
            _ => return,
        };
        let Some(thread) = self.threads.get_mut(&thread) else {
            return;
        };
        let span = Span {
            start: thread.place(event.start),
            end: thread.place(event.start.saturating_add(event.duration)),
        };
        if span.start >= span.end {
            return;
        }
        let mut whole = span;
        let mut taken = 0;
        while let Some(piece) = thread.pieces.pop_if(|piece| piece.span.end > span.start) {
            taken += piece.span.overlap(&span);
            whole.start = whole.start.min(piece.span.start);
            whole.end = whole.end.max(piece.span.end);
        }
        thread.pieces.push(Piece {
            span: whole,
            first: key,
            last: key,
        });
        let settled = (thread.pieces.len() >= 2 * ROOM).then(|| thread.settle());
        self.spend(Spent::On(key), (span.end - span.start) - taken);
        for (spent, ticks) in settled.into_iter().flatten() {
            self.spend(spent, ticks);
        }
    }

    fn spend(&mut self, spent: Spent, ticks: u64) {
        let has_room = self.times.len() < LIMIT || self.times.contains_key(&spent);
        let spent = if has_room { spent } else { Spent::Other };
        *self.times.entry(spent).or_default() += ticks;
    }

    /// The rows; `ns` makes nanoseconds of ticks.
    pub fn finish(
        mut self,
        facts: &Facts,
        strings: &Strings,
        ns: impl Fn(u64) -> u64,
    ) -> Vec<LedgerRow> {
        let mut threads = std::mem::take(&mut self.threads);
        for thread in threads.values_mut() {
            for (spent, ticks) in gaps(&thread.pieces) {
                self.spend(spent, ticks);
            }
        }
        let known = self.times.values().sum::<u64>();
        self.spend(Spent::Unknown, self.total.saturating_sub(known));
        let mut times: BTreeMap<(LedgerKind, String), u64> = BTreeMap::new();
        for (spent, ticks) in &self.times {
            let cause = match *spent {
                Spent::On(key) => cause(key, facts, strings),
                Spent::Between(from, to) => {
                    let (from, to) = (label(from, facts, strings), label(to, facts, strings));
                    (LedgerKind::Code, format!("code between {from} and {to}"))
                }
                Spent::Other => (LedgerKind::Other, "other".to_owned()),
                Spent::Unknown => (LedgerKind::Unknown, "unknown".to_owned()),
            };
            *times.entry(cause).or_default() += ticks;
        }
        rows(times.into_iter().collect(), ns)
    }
}

impl Thread {
    /// How much of the iterations' time lies before a moment.
    fn place(&self, moment: u64) -> u64 {
        let index = self.iterations.partition_point(|span| span.end <= moment);
        match (self.iterations.get(index), self.before.get(index)) {
            (Some(span), Some(before)) => before + moment.saturating_sub(span.start),
            _ => self.all,
        }
    }

    /// Makes one piece of the older half.
    fn settle(&mut self) -> Vec<(Spent, u64)> {
        let old: Vec<_> = self.pieces.drain(..ROOM).collect();
        if let [first, .., last] = old[..] {
            let span = Span {
                start: first.span.start,
                end: last.span.end,
            };
            let (first, last) = (first.first, last.last);
            self.pieces.insert(0, Piece { span, first, last });
        }
        gaps(&old).collect()
    }
}

/// The time between pieces.
fn gaps(pieces: &[Piece]) -> impl Iterator<Item = (Spent, u64)> {
    pieces.windows(2).filter_map(|pair| {
        let [from, to] = pair else { return None };
        let ticks = to.span.start.saturating_sub(from.span.end);
        (ticks > 0).then_some((Spent::Between(from.last, to.first), ticks))
    })
}

fn label(key: Key, facts: &Facts, strings: &Strings) -> String {
    match key {
        Key::Call(row) => facts.call(row),
        Key::Capturing => "a stream capture".to_owned(),
        Key::Gc => "GC".to_owned(),
        Key::Gil => "a wait for the GIL".to_owned(),
        Key::Function(id) => name(strings.get(id)),
    }
}

fn cause(key: Key, facts: &Facts, strings: &Strings) -> (LedgerKind, String) {
    let named = label(key, facts, strings);
    match key {
        Key::Call(row) => {
            let row = facts.calls.iter().find(|known| known.row == row);
            row.map_or((LedgerKind::Call, named), called)
        }
        Key::Capturing => (LedgerKind::Capture, "graph capture".to_owned()),
        Key::Gc => (LedgerKind::Gc, named),
        Key::Gil => (LedgerKind::GilWait, "waiting for the GIL".to_owned()),
        Key::Function(_) => (LedgerKind::Function, format!("{named}: its own code")),
    }
}

fn called(row: &CallRow) -> (LedgerKind, String) {
    let copies = matches!(kind_of(&row.name), Some(Kind::AsyncCopy(_)));
    let (kind, cause) = match row.kind {
        CallKind::Wait => {
            let cause = format!("waiting for the GPU: {}", row.name);
            return (LedgerKind::Wait, cause);
        }
        CallKind::GraphLaunch | CallKind::KernelLaunch => (LedgerKind::Launch, "launching"),
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

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: u32 = 1;
    const LAUNCH: u8 = 0;
    const WAIT: u8 = 1;

    fn facts() -> Facts {
        let row = |row, name: &str, kind| CallRow {
            row,
            name: name.to_owned(),
            kind,
            inside: 0,
            outside: 0,
        };
        Facts {
            calls: vec![
                row(LAUNCH, "cuLaunchKernel", CallKind::KernelLaunch),
                row(WAIT, "cuStreamSynchronize", CallKind::Wait),
            ],
            ..Facts::default()
        }
    }

    fn call(start: u64, long: u64, row: u8) -> Event {
        let (capturing, stream) = (false, 0);
        let what = What::Call {
            row,
            capturing,
            stream,
        };
        Event::new(start, long, what)
    }

    fn span(start: u64, end: u64) -> Span {
        Span { start, end }
    }

    fn found(iterations: &[(Span, u32, bool)], events: &[(u32, Event)]) -> Vec<(String, u64)> {
        let mut ledger = HostLedger::new(iterations.iter().copied());
        for (thread, event) in events {
            ledger.add(*thread, event);
        }
        let rows = ledger.finish(&facts(), &Strings::default(), |ns| ns);
        let sum: f64 = rows.iter().map(|row| row.share).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{rows:?}");
        rows.into_iter().map(|row| (row.cause, row.ns)).collect()
    }

    fn expect(found: &[(String, u64)], expected: &[(&str, u64)]) {
        let found: Vec<_> = found.iter().map(|(cause, ns)| (&**cause, *ns)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn nested_events_and_what_lies_between_count_once() {
        let iterations = [
            (span(1000, 2000), MAIN, false),
            (span(2000, 3000), MAIN, false),
        ];
        let function = What::Function { name: 7 };
        let events = [
            (MAIN, call(1100, 50, LAUNCH)),
            (MAIN, Event::new(1200, 100, What::GilWait)),
            (MAIN, Event::new(1050, 400, function)),
            // Another thread's are not the iterations'.
            (9, call(1000, 900, LAUNCH)),
            // Over the edge of iterations, and over the end of the last.
            (MAIN, call(1800, 300, WAIT)),
            (MAIN, call(2900, 500, LAUNCH)),
        ];
        let found = found(&iterations, &events);
        let name = name(Strings::default().get(7));
        let own = format!("{name}: its own code");
        let late = format!("code between {name} and cuStreamSynchronize");
        expect(
            &found,
            &[
                ("code between cuStreamSynchronize and cuLaunchKernel", 800),
                (&late, 350),
                ("waiting for the GPU: cuStreamSynchronize", 300),
                (&own, 250),
                ("launching", 150),
                ("waiting for the GIL", 100),
                ("unknown", 50),
            ],
        );
    }

    #[test]
    fn iterations_with_kernels_are_left_out_beside_others() {
        let wait = [(MAIN, call(1500, 1000, WAIT))];
        let plain = (span(1000, 2000), MAIN, false);
        let taken = (span(2000, 3000), MAIN, true);
        let half = [
            ("waiting for the GPU: cuStreamSynchronize", 500),
            ("unknown", 500),
        ];
        expect(&found(&[plain, taken], &wait), &half);
        expect(&found(&[taken], &wait), &half);
        assert!(HostLedger::new([taken].into_iter()).stretched);
        assert!(!HostLedger::new([plain, taken].into_iter()).stretched);
        assert!(!HostLedger::new([].into_iter()).stretched);
    }

    #[test]
    fn any_number_of_events_in_one_that_contains_them() {
        let many = 5 * ROOM as u64;
        let iterations = [(span(0, many * 10), MAIN, false)];
        let mut events: Vec<_> = (0..many).map(|n| (MAIN, call(n * 10, 7, LAUNCH))).collect();
        let between = "code between cuLaunchKernel and cuLaunchKernel";
        let calls = [("launching", many * 7), (between, (many - 1) * 3)];
        let rest = ("other", 3);
        expect(&found(&iterations, &events), &[calls[0], calls[1], rest]);
        // What comes late takes only what none before it took.
        events.push((MAIN, Event::new(0, many * 10, What::GilWait)));
        let sum: u64 = found(&iterations, &events).iter().map(|(_, ns)| ns).sum();
        assert_eq!(sum, many * 10);
    }
}
