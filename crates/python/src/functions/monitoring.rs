//! Reports calls in CPython 3.12 and later with `sys.monitoring`. Events are enabled only for marked code objects.
//!
//! Some versions can enable certain events only for all code objects: those for an exception that leaves a call, or
//! that is thrown into a generator. The library then ignores the events of unmarked code objects.

use core::ffi::CStr;
use core::time::Duration;

use super::innermost::frame;
use super::{candidates, marked};
use crate::late;
use crate::method::MethodDef;
use crate::object::{Held, Object, Python};
use crate::place::Place;
use crate::spans::{Mark, Spans};
use crate::threads;
use crate::trouble::{self, Trouble};
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Lock;

/// The tool numbers of `sys.monitoring` that the library tries to get. Lower numbers are reserved
/// for debuggers, coverage and profilers.
const TOOLS: [i64; 3] = [5, 4, 3];
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The events of `sys.monitoring` that we use, each with its callback.
static EVENTS: [(&CStr, MethodDef); 6] = [
    (c"PY_START", MethodDef::fast(c"tllmprof_start", start)),
    (c"PY_RESUME", MethodDef::fast(c"tllmprof_resume", resume)),
    (c"PY_RETURN", MethodDef::fast(c"tllmprof_return", end)),
    (c"PY_YIELD", MethodDef::fast(c"tllmprof_yield", yields)),
    (c"PY_THROW", MethodDef::fast(c"tllmprof_throw", resume)),
    (c"PY_UNWIND", MethodDef::fast(c"tllmprof_unwind", end)),
];
/// The callback for `PY_START` during a search for requested functions, which uses a tool number of its own.
static FIRST_CALL: MethodDef = MethodDef::answering(c"tllmprof_first_call", first_call);
/// The number of events at the start of [`EVENTS`] that every version can enable for a single code
/// object.
const ALWAYS_LOCAL: usize = 4;

/// The tool number that the library uses in an interpreter, and the events that it enables under
/// this number.
#[derive(Clone, Copy)]
struct AssignedTool {
    interpreter: i64,
    number: i64,
    /// The events in [`EVENTS`], as a bit set of `sys.monitoring`.
    all: i64,
    /// The bit set of the events that can be enabled for a single code object.
    local: i64,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(free)]
    #[restart(reset)]
    static OURS: Lock<Vec<AssignedTool>> = Lock::new(Vec::new());
    /// The ids of the interpreters in which a search for requested functions is active, each with
    /// the search's tool number.
    #[fork(free)]
    #[restart(reset)]
    static SEARCHES: Lock<Vec<(i64, i64)>> = Lock::new(Vec::new());
    /// The value `sys.monitoring.DISABLE`. A callback returns it to get no more events for the code
    /// object.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static DISABLE: Held = Held::none();
}

/// The module `sys.monitoring`. The first argument of its functions is a tool number.
struct Monitoring<'py> {
    py: Python<'py>,
    module: Object<'py>,
}

impl<'py> Monitoring<'py> {
    fn new(py: Python<'py>) -> Option<Self> {
        let module = py.sys(c"monitoring")?;
        Some(Self { py, module })
    }

    fn call(&self, name: &CStr, number: i64, more: &[&Object<'py>]) -> Option<Object<'py>> {
        let number = self.py.int(number)?;
        let args: Vec<_> = core::iter::once(&number)
            .chain(more.iter().copied())
            .collect();
        self.module.attr(name)?.call(&args)
    }

    fn is_free(&self, number: i64) -> bool {
        let tool = self.call(c"get_tool", number, &[]);
        tool.is_some_and(|tool| tool.is_none())
    }

    /// Returns a text with a tool number and the name of the tool that uses it.
    fn holder(&self, number: i64) -> String {
        let tool = self.call(c"get_tool", number, &[]);
        let name = tool.as_ref().and_then(Object::as_text);
        format!("{number}: {}", name.unwrap_or("another"))
    }

    /// Returns true if the tool number is still ours and its events are still enabled. Returns
    /// `None` if the interpreter raises an exception.
    fn has(&self, tool: AssignedTool, codes: &[Object<'py>]) -> Option<bool> {
        let events = |value: Option<Object<'py>>| value?.as_int();
        let name = self.call(c"get_tool", tool.number, &[])?;
        if name.as_text() != Some("tllmprof")
            || events(self.call(c"get_events", tool.number, &[]))? != tool.all & !tool.local
        {
            return Some(false);
        }
        for code in codes {
            let local = events(self.call(c"get_local_events", tool.number, &[code]))?;
            if local & tool.local != tool.local {
                return Some(false);
            }
        }
        Some(true)
    }

    /// Starts a search with a tool number of its own: the first call of each code object is reported. Returns `None`
    /// if fewer than two tool numbers are free, because one has to remain for the marked code objects.
    fn search(&self) -> Option<i64> {
        let mut free = TOOLS
            .into_iter()
            .rev()
            .filter(|&number| self.is_free(number));
        let (number, _) = free.next().zip(free.next())?;
        DISABLE.set(self.module.attr(c"DISABLE")?);
        self.call(c"use_tool_id", number, &[&self.py.text("tllmprof search")?])?;
        let start = self.module.attr(c"events")?.attr(c"PY_START")?;
        let function = self.py.function(&FIRST_CALL)?;
        self.call(c"register_callback", number, &[&start, &function])?;
        self.call(c"set_events", number, &[&start]).map(|_| number)
    }

    fn end_search(&self, number: i64) -> Option<()> {
        let start = self.module.attr(c"events")?.attr(c"PY_START")?;
        self.call(c"set_events", number, &[&self.py.int(0)?])?;
        self.call(c"register_callback", number, &[&start, &self.py.nothing()])?;
        self.call(c"free_tool_id", number, &[]).map(|_| ())
    }

    /// Takes a free tool number and registers our callbacks for it. Returns `None` if no number is free, or if the
    /// interpreter raises an exception.
    fn claim(&self) -> Option<AssignedTool> {
        let Some(number) = TOOLS.into_iter().find(|&number| self.is_free(number)) else {
            trouble::tools_are_taken(&TOOLS.map(|number| self.holder(number)).join(", "));
            return None;
        };
        self.call(c"use_tool_id", number, &[&self.py.text("tllmprof")?])?;
        let mut tool = AssignedTool {
            interpreter: self.py.interpreter(),
            number,
            all: 0,
            local: 0,
        };
        let events = self.module.attr(c"events")?;
        for (index, (name, function)) in EVENTS.iter().enumerate() {
            let event = events.attr(name)?.as_int()?;
            let function = self.py.function(function)?;
            self.call(
                c"register_callback",
                number,
                &[&self.py.int(event)?, &function],
            )?;
            tool.all |= event;
            if index < ALWAYS_LOCAL {
                tool.local |= event;
            }
        }
        Some(tool)
    }

    /// Disables the events of `codes`, and then releases the tool number.
    fn give_back(&self, tool: AssignedTool, codes: &[Object<'py>]) -> Option<()> {
        let none = self.py.nothing();
        for code in codes {
            self.set_local(tool, code, 0);
        }
        self.call(c"set_events", tool.number, &[&self.py.int(0)?])?;
        let events = self.module.attr(c"events")?;
        for (name, _) in &EVENTS {
            let event = events.attr(name)?;
            self.call(c"register_callback", tool.number, &[&event, &none])?;
        }
        self.call(c"free_tool_id", tool.number, &[]).map(|_| ())
    }

    fn set_local(&self, tool: AssignedTool, code: &Object<'py>, events: i64) -> bool {
        self.py.int(events).is_some_and(|events| {
            self.call(c"set_local_events", tool.number, &[code, &events])
                .is_some()
        })
    }
}

/// Enables the events of `sys.monitoring` for `code`, which is in the table of marks. Returns
/// `None` if that fails.
pub(crate) fn watch<'py>(py: Python<'py>, code: &Object<'py>) -> Option<()> {
    let monitoring = Monitoring::new(py)?;
    let tool = match known(py)? {
        Some(tool) => tool,
        None => {
            let mut tool = monitoring.claim()?;
            if monitoring.set_local(tool, code, tool.all) {
                tool.local = tool.all;
            } else {
                let others = py.int(tool.all & !tool.local)?;
                monitoring.call(c"set_events", tool.number, &[&others])?;
            }
            let mut ours = OURS.lock_for(LOCK_TIMEOUT)?;
            let is_its = |known: &&AssignedTool| known.interpreter == tool.interpreter;
            let first = ours.iter().find(is_its).copied().unwrap_or(tool);
            if first.number == tool.number {
                ours.push(tool);
            }
            drop(ours);
            if first.number != tool.number {
                // In a build without a GIL, several threads may have taken a tool number each. All
                // but the first are released, so that no call is reported twice.
                monitoring.give_back(tool, core::slice::from_ref(code));
            }
            if late::is_off() {
                // Without a GIL, another thread may have switched the library off meanwhile. In that case, release
                // the tool number again.
                leave(py, &[]);
                return None;
            }
            first
        }
    };
    monitoring.set_local(tool, code, tool.local).then_some(())
}

/// Tries again to get a tool number if none was free before. Returns false if none is free yet.
pub(crate) fn try_again(py: Python<'_>) -> bool {
    let lacks = py.api.version.has_monitoring() && trouble::has_no_tool();
    if !lacks || matches!(known(py), Some(Some(_)) | None) {
        return true;
    }
    let codes = marked::codes(py);
    codes.is_empty() || codes.iter().all(|code| watch(py, code).is_some())
}

/// Returns the tool of the calling thread's interpreter; `Some(None)` if it has none. Returns
/// `None` if another thread holds the lock for too long.
fn known(py: Python<'_>) -> Option<Option<AssignedTool>> {
    let number = py.interpreter();
    let ours = OURS.lock_for(LOCK_TIMEOUT)?;
    Some(ours.iter().find(|tool| tool.interpreter == number).copied())
}

/// Disables the events of `codes` and releases the tool number of the calling thread's interpreter,
/// if it has one. Returns `None` if the interpreter raises an exception.
pub(crate) fn leave<'py>(py: Python<'py>, codes: &[Object<'py>]) -> Option<()> {
    let Some(tool) = known(py)? else {
        return Some(()); // no tool number was taken in this interpreter
    };
    forget(tool.interpreter);
    Monitoring::new(py)?.give_back(tool, codes)
}

/// Removes from our tables the tool number and the search of the interpreter with this id.
pub(crate) fn forget(interpreter: i64) {
    if let Some(mut ours) = OURS.lock_for(LOCK_TIMEOUT) {
        ours.retain(|tool| tool.interpreter != interpreter);
    }
    if let Some(mut searches) = SEARCHES.lock_for(LOCK_TIMEOUT) {
        searches.retain(|(known, _)| *known != interpreter);
    }
}

/// Records a problem if another tool now has our tool number, or if our events were disabled. Does not check if our
/// callbacks are still registered: such a check would have to register them again, which other audit hooks would
/// notice.
pub(crate) fn check(py: Python<'_>) -> Option<()> {
    let tool = known(py)??;
    let monitoring = Monitoring::new(py)?;
    if monitoring.has(tool, &marked::codes(py)) != Some(true) {
        Trouble::LostTool.note();
    }
    Some(())
}

/// Starts a search for requested functions: the first call of each function is reported to
/// [`candidates::meets`].
pub(crate) fn search(py: Python<'_>) -> Option<()> {
    let number = py.interpreter();
    let is_known = |searches: &[(i64, i64)]| searches.iter().any(|(known, _)| *known == number);
    if is_known(&SEARCHES.lock_for(LOCK_TIMEOUT)?) {
        return Some(());
    }
    let tool = Monitoring::new(py)?.search()?;
    SEARCHES.lock_for(LOCK_TIMEOUT)?.push((number, tool));
    Some(())
}

/// Ends the search for requested functions in the calling thread's interpreter.
pub(crate) fn end_search(py: Python<'_>) -> Option<()> {
    let number = py.interpreter();
    let mut searches = SEARCHES.lock_for(LOCK_TIMEOUT)?;
    let place = searches.iter().position(|(known, _)| *known == number)?;
    let (_, tool) = searches.swap_remove(place);
    drop(searches);
    Monitoring::new(py)?.end_search(tool)
}

/// Callback for `PY_START(code, offset)` during a search for requested functions. It examines each code object once,
/// and then disables further events of this code object.
fn first_call<'py>(py: Python<'py>, code: &Object<'py>) -> Option<Object<'py>> {
    if let Some(thread) = threads::current()
        && !thread.is_busy.get()
        && thread.busily(|| {
            let globals = || py.frame()?.globals();
            candidates::meets(py, code, &globals, &|_| None)
        })
        && let Some(mark) = marked::find(code.addr())
    {
        thread.catch_up();
        // When this first call began, `PY_START` was enabled only for the search, and not yet under
        // the tool number that records calls. So the call is recorded here.
        let arguments = |place: &Place| argument(py, place);
        let frame = frame(py, code.addr());
        thread.spans.enter(py, frame, mark, false, &arguments);
    }
    DISABLE.get(py)
}

/// Runs `act` for an event of the code object at `code`, if this code object is marked.
#[inline]
fn with_mark(code: usize, act: impl FnOnce(&Spans, &'static Mark)) {
    if let Some(mark) = marked::find(code) {
        let _errno = SavedErrno::new();
        if let Some(thread) = threads::current() {
            thread.catch_up();
            act(&thread.spans, mark);
        }
    }
}

/// Callback for `PY_START(code, offset)`: records that a call begins.
fn start(py: Python<'_>, code: usize) {
    with_mark(code, |spans, mark| {
        if mark.is_candidate() && !confirms(py, mark) {
            return;
        }
        spans.enter(py, frame(py, code), mark, false, &|place| {
            argument(py, place)
        });
    });
}

/// Returns true if the first call of a candidate (a code object that may belong to a requested
/// function) shows that it does. Otherwise disables the candidate's events.
#[cold]
fn confirms(py: Python<'_>, mark: &'static Mark) -> bool {
    py.quietly(|py| {
        let globals = || py.frame()?.globals();
        if candidates::confirms(py, mark, &globals, &|_| None) {
            return true;
        }
        if let (Some(code), Some(Some(tool))) = (mark.code_object(py), known(py)) {
            marked::remove_one(py, code.addr());
            if let Some(monitoring) = Monitoring::new(py) {
                monitoring.set_local(tool, &code, 0);
            }
        }
        false
    })
}

/// Callback for `PY_RESUME(code, offset)` and `PY_THROW(code, offset, exception)`: records that a generator or
/// coroutine resumes.
fn resume(py: Python<'_>, code: usize) {
    with_mark(code, |spans, mark| {
        spans.enter(py, frame(py, code), mark, true, &|_| None);
    });
}

/// Callback for `PY_YIELD(code, offset, value)`: records that a call yields.
fn yields(py: Python<'_>, code: usize) {
    with_mark(code, |spans, mark| {
        spans.leave(py, frame(py, code), mark, false);
    });
}

/// Callback for `PY_RETURN(code, offset, value)` and `PY_UNWIND(code, offset, exception)`: records that a call ends.
fn end(py: Python<'_>, code: usize) {
    with_mark(code, |spans, mark| {
        spans.leave(py, frame(py, code), mark, true);
    });
}

/// Returns an argument of the call that the calling thread has just begun.
fn argument<'py>(py: Python<'py>, place: &Place) -> Option<Object<'py>> {
    let Place::Named(name) = place else {
        return None;
    };
    py.frame()?.variable(&name.get(py)?)
}
