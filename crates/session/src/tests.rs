//! Tests that drive the session with lists of calls, as the hooks do. A fake wiring (profilers, record, hooks
//! and Python) notes what the session calls.

use core::fmt;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tllmprof_calls::{CALLS, Call, CallPurpose, CallSet, Direction};
use tllmprof_config::{Ranked, Settings, Step, condition};
use tllmprof_platform::lifecycle::{HOOKS, OnlyThread, Stage};
use tllmprof_platform::log::{self, Level};
use tllmprof_platform::thread::{self, Inside};
use tllmprof_steps::step::counted::Counted;
use tllmprof_steps::trigger::Spent;
use tllmprof_steps::window::{Edge, Point, Taken};

use crate::wiring::WIRING;
use crate::{
    Doors, EndReason, Interpreter, Listener, LostData, Place, Rank, SessionFacts, Sink, Wiring,
    activity, by_name, count, entered, goes_on, learns, named_entered, new_thread, note, returned,
};

mod auto;
mod captures;
mod process;
mod ranks;
mod samples;
mod steady;
mod threads;
mod triggers;
mod windows;

/// A lock that each test holds, because all tests share the one session of the process.
static ONE: Mutex<()> = Mutex::new(());
static MADE: Made = Made {
    asked: Mutex::new(Vec::new()),
    orders: Mutex::new(Orders::NONE),
};

#[linkme::distributed_slice(WIRING)]
static TESTS: Wiring = Wiring {
    sink: &MADE,
    doors: &MADE,
    interpreter: &MADE,
    listener: &MADE,
};

/// A function that the fake sink (profilers and record) runs while it switches a window.
type Act = Arc<dyn Fn(Point) + Send + Sync>;

/// The behaviour that a test requests from the fake wiring.
struct Orders {
    wants_record: bool,
    /// True if creating the record fails.
    has_no_record: bool,
    /// The data that the record lacks at the end because it could not grow.
    lost: Option<LostData>,
    wants_calls: bool,
    /// A point in the sequence of iterations at which the fake sink (profilers and record) reports that something has
    /// to be started or stopped (`has_edge_at`), although no window opens or closes there.
    edge: Option<Point>,
    while_switching: Option<Act>,
    /// True if the fake interpreter reports that the calling thread has the GIL and that a thread
    /// of the library waits for it.
    gil: bool,
    /// The rank that the fake Python interpreter returns.
    rank: Rank,
    /// The times that the fake sink (profilers and record) returns: parts of an iteration's duration, each with a known
    /// cause.
    spent: Spent,
}

impl Orders {
    const NONE: Self = Self {
        wants_record: false,
        has_no_record: false,
        lost: None,
        wants_calls: false,
        edge: None,
        while_switching: None,
        gil: false,
        rank: Rank::None,
        spent: Spent {
            gc: 0,
            gil: 0,
            wait: 0,
            idle: 0,
        },
    };
}

/// The fake wiring of the session: notes each call of the session and returns preset values.
struct Made {
    asked: Mutex<Vec<String>>,
    orders: Mutex<Orders>,
}

/// Locks a mutex, even if a failed test has poisoned it: each test sets the guarded values anew.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Made {
    fn note(&self, what: impl fmt::Display) {
        lock(&self.asked).push(what.to_string());
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        lock(&self.orders)
    }
}

impl Sink for Made {
    fn takes_kernels(&self, _: &Settings) -> bool {
        true
    }

    fn wants_record(&self) -> bool {
        self.orders().wants_record
    }

    fn start(&self, _: &'static Settings) {
        self.note("start");
    }

    fn begin_record(&self, _: &'static Settings, facts: &SessionFacts<'_>) -> bool {
        let SessionFacts {
            rank,
            python,
            rule,
            why,
            engine,
            is_span: _,
        } = facts;
        let rank = rank.map(|ranked| ranked.rank);
        let why = why.map_or_else(String::new, ToString::to_string);
        self.note(format_args!(
            "record: {rank:?} {python:?} {rule} {engine:?} {why}"
        ));
        !self.orders().has_no_record
    }

    fn rule_is_known(&self, facts: &SessionFacts<'_>) {
        let why = facts.why.map_or_else(String::new, ToString::to_string);
        self.note(format_args!(
            "rule: {} {:?} {why}",
            facts.rule, facts.engine
        ));
    }

    fn rank_is_known(&self, ranked: &Ranked) {
        self.note(format_args!("rank {} by {}", ranked.rank, ranked.source));
    }

    fn passes(&self, point: Point, excluded: bool) {
        let excluded = if excluded { ", excluded" } else { "" };
        self.note(format_args!("passes {point:?}{excluded}"));
    }

    fn wants_calls(&self) -> bool {
        self.orders().wants_calls
    }

    fn lost(&self) -> Option<LostData> {
        self.orders().lost
    }

    fn count_calls(&self, counts: &mut dyn Iterator<Item = u64>) {
        let counts: Vec<_> = counts.collect();
        assert_eq!(counts.len(), CALLS.len());
        let launches = counts[Call::GraphLaunch.index()];
        self.note(format_args!("calls: {launches} graph launches"));
    }

    fn take_spent(&self) -> Spent {
        self.orders().spent
    }

    fn has_edge_at(&self, point: Point) -> bool {
        self.orders().edge == Some(point)
    }

    fn switch(&self, place: &Place<'_>, edge: Edge) {
        let taken = |what, taken: Option<Taken>| {
            taken.map_or_else(String::new, |taken| format!(" {what} {}", taken.window))
        };
        let (close, open) = (taken("close", edge.close), taken("open", edge.open));
        let capturing = if place.capturing { " capturing" } else { "" };
        self.note(format_args!("{:?}:{close}{open}{capturing}", place.point));
        let act = self.orders().while_switching.clone();
        if let Some(act) = act {
            act(place.point);
        }
    }

    fn ends(&self, iterations: u64, capturing: bool, _: EndReason) {
        let capturing = if capturing { ", capturing" } else { "" };
        self.note(format_args!("ends after {iterations}{capturing}"));
    }

    fn finish(&self, iterations: u64, drain: bool, here: bool) {
        self.note(format_args!(
            "finish after {iterations}, drain {drain}, here {here}"
        ));
    }

    fn finish_record(&self, in_order: bool) {
        self.note(format_args!("finish record, in order {in_order}"));
    }

    fn ends_threads(&self) {}
}

impl Doors for Made {
    fn attend(&self, calls: CallSet) {
        let row = |row: &&tllmprof_calls::CallInfo| calls.contains(row.call);
        let names: Vec<_> = CALLS
            .iter()
            .filter(row)
            .map(|row| row.call.name())
            .collect();
        self.note(format_args!("attend {names:?}"));
    }

    fn record_calls(&self) {
        self.note("record calls");
    }

    fn report_named(&self) {
        self.note("report named");
    }

    fn report_unmatched(&self, step: &Step, may_search: bool) {
        self.note(format_args!("report unmatched {step}, search {may_search}"));
    }

    fn write_no_range(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str("; no range")
    }
}

impl Listener for Made {
    fn begins(&self, _: &'static Settings) {}

    fn ends(&self) {}
}

impl Interpreter for Made {
    fn version(&self) -> Option<&'static str> {
        Some("3.12.1")
    }

    fn rank(&self) -> Rank {
        self.orders().rank
    }

    fn has_gil(&self) -> bool {
        self.orders().gil
    }

    fn is_waiting_for_gil(&self) -> bool {
        self.orders().gil
    }

    fn count(&self) {}

    fn report_missing(&self) {
        self.note("report missing");
    }

    fn report_totals(&self, level: Level) {
        self.note(format_args!("report totals at {level}"));
    }

    fn write_no_call(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        out.write_str("; no function")
    }
}

/// A fake process in which nothing has happened yet. Only one exists at a time, because there is only one
/// session.
struct Process {
    log: Log,
    _one: MutexGuard<'static, ()>,
}

impl Process {
    /// Returns a fake process with the environment variables `variables`, in the form `NAME=VALUE
    /// NAME=VALUE`.
    fn new(variables: &str) -> Self {
        Self::ordered(variables, Orders::NONE)
    }

    /// Returns a fake process whose wiring behaves as `orders` says.
    fn ordered(variables: &str, orders: Orders) -> Self {
        let one = lock(&ONE);
        forget();
        crate::engines::forget_imports();
        *MADE.orders() = orders;
        lock(&MADE.asked).clear();
        activity::assume(|name| {
            let set = |pair: &str| Some(pair.strip_prefix(name)?.strip_prefix('=')?.into());
            variables.split_whitespace().find_map(set)
        });
        Self {
            log: Log::new(),
            _one: one,
        }
    }

    /// Returns the calls that the session has made to the fake wiring so far.
    fn asked(&self) -> Vec<String> {
        lock(&MADE.asked).clone()
    }

    /// Returns the calls to the fake wiring that begin with one of `starts`.
    fn asked_for(&self, starts: &[&str]) -> Vec<String> {
        let is = |line: &String| starts.iter().any(|start| line.starts_with(start));
        self.asked().into_iter().filter(is).collect()
    }

    /// Returns the points in the sequence of iterations at which the fake sink (profilers and record) was called to
    /// switch, with the windows that opened or closed.
    fn switches(&self) -> Vec<String> {
        self.asked_for(&["Start", "In(", "After("])
    }

    /// Simulates the exit of the process. Returns the last line of its log.
    fn exit(&self) -> String {
        crate::finish();
        self.log.lines().pop().unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        forget();
    }
}

/// Resets the session's state, as the fork handlers do in a child.
fn forget() {
    // SAFETY: one test at a time uses the state of this stage. The test's threads have been joined, and no
    // guard of the state is left.
    let alone = unsafe { OnlyThread::new() };
    let ours = HOOKS.iter().filter(|hook| hook.stage == Stage::Session);
    for child in ours.filter_map(|hook| hook.child) {
        child(&alone);
    }
}

/// Simulates a fork. The rest of the test runs as the child.
fn fork() {
    before_fork();
    forget();
}

fn before_fork() {
    let ours = HOOKS.iter().filter(|hook| hook.stage == Stage::Session);
    ours.filter_map(|hook| hook.before).for_each(|act| act());
}

fn after_fork_in_parent() {
    let ours = HOOKS.iter().filter(|hook| hook.stage == Stage::Session);
    ours.filter_map(|hook| hook.parent).for_each(|act| act());
}

/// Redirects standard error to a file as long as this value lives.
struct Log {
    file: File,
    before: OwnedFd,
}

impl Log {
    fn new() -> Self {
        // SAFETY: the name ends with a zero byte. The descriptor is new, so nothing else owns it.
        let file = unsafe {
            let fd = libc::memfd_create(c"log".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0, "a file in memory");
            File::from_raw_fd(fd)
        };
        let before = std::io::stderr().as_fd().try_clone_to_owned();
        let log = Self {
            before: before.expect("standard error is open"),
            file,
        };
        log::start();
        redirect(&log.file);
        log
    }

    /// Returns the lines that the library has logged, without their prefix.
    fn lines(&self) -> Vec<String> {
        let mut bytes = vec![0; 1 << 16];
        let length = self.file.read_at(&mut bytes, 0).expect("a file in memory");
        let text = String::from_utf8(bytes[..length].to_vec()).expect("text");
        let ours = text
            .lines()
            .filter_map(|line| line.strip_prefix("tllmprof: "));
        ours.map(str::to_owned).collect()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        redirect(&self.before);
    }
}

/// Redirects standard error to the file `to`, and informs the logger.
fn redirect(to: &impl AsRawFd) {
    // SAFETY: both descriptors are open, and descriptor 2 stays open for its writers.
    let result = unsafe { libc::dup2(to.as_raw_fd(), 2) };
    assert_eq!(result, 2);
    log::redirected(2);
}

/// Simulates a successful driver call of the calling thread: reports it to the session as the hooks do.
fn call(call: Call) {
    call_with(call, &[0], true);
}

/// Simulates a driver call with these arguments. `succeeds` is false if the driver refuses the call.
fn call_with(call: Call, args: &[usize], succeeds: bool) {
    // A call from within another intercepted call is not reported, because it is part of the outer
    // call.
    if !activity::is_active() || thread::outer().place != 0 {
        return;
    }
    let is_new = thread::cells().is_null();
    if !is_new {
        note(call, args, false);
    }
    if !is_new && !count(call.into()) {
        return;
    }
    {
        let Some(_inside) = Inside::enter() else {
            return;
        };
        if is_new {
            new_thread(true);
            count(call.into());
            note(call, args, false);
        }
        entered(call);
        goes_on();
    }
    let is_followed = match call.kind() {
        CallPurpose::AsyncCopy(Direction::ToHost) => learns(),
        kind => kind.waits() || kind.captures(),
    };
    if is_followed {
        let _inside = Inside::enter();
        returned(call, args[0], succeeds);
    }
}

/// Simulates `count` successful calls of the CUDA function `what` on the calling thread.
fn calls(count: usize, what: Call) {
    (0..count).for_each(|_| call(what));
}

/// Simulates the beginning of an NVTX range or a Python function that the rule names. Returns the number of the
/// iteration that ends together with the range or function, if there is one.
fn begins(what: Counted) -> Option<u64> {
    let ends = by_name::count(what).then(|| by_name::ask(what)).flatten();
    goes_on();
    ends
}

/// Simulates a whole NVTX range, or a whole call of a Python function, that the rule names.
fn passes(what: Counted) {
    if let Some(iteration) = begins(what) {
        by_name::has_ended(iteration);
    }
}

/// Simulates a step whose batch decodes one token for each of `tokens` requests.
fn decodes(tokens: u32) {
    let facts = condition::BatchFacts {
        requests: Some(tokens),
        tokens: Some(tokens),
        prefill_tokens: Some(0),
        ..Default::default()
    };
    if by_name::count(Counted::Python) {
        by_name::ask_with(Counted::Python, facts);
    }
    goes_on();
}

/// Simulates a call of a native function that the rule names: reports it to the session as its hook does.
fn runs_named() {
    let Some(inside) = Inside::enter() else {
        return;
    };
    if thread::cells().is_null() {
        new_thread(false);
    }
    let ends = count(Counted::Named).then(named_entered).flatten();
    let awaited = ends.filter(|&iteration| crate::closes_after(iteration));
    goes_on();
    drop(inside);
    if let (Some(_inside), Some(iteration)) = (Inside::enter(), awaited) {
        by_name::ends(iteration);
    }
}

/// Runs `act` on a new thread, and waits until the thread has completely ended.
fn on_thread<R: Send + 'static>(act: impl FnOnce() -> R + Send + 'static) -> R {
    std::thread::spawn(act).join().expect("it returns")
}
