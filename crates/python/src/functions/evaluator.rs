//! Reports calls in CPython 3.8 to 3.11 with a frame evaluator (PEP 523). The evaluator is installed only while calls
//! of some functions have to be reported, or while the library searches for such functions.
//!
//! The evaluator replaces only CPython's own, never another tool's. A tool such as torch's dynamo stores the
//! evaluator that it finds, and calls it. If our evaluator also called the one that it finds, two evaluators could call
//! each other forever. Our evaluator therefore always calls CPython's own.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use super::frames::{FrameState, InterpreterFrame, Layout, code_of};
use super::{candidates, marked, targets, trial};
use crate::api::{Api, Evaluate, Raw, ThreadState};
use crate::attached::{Attached, api};
use crate::late;
use crate::object::{Object, Python};
use crate::place;
use crate::spans::{self, Mark};
use crate::threads::{self, Thread};
use crate::trouble::Trouble;
use crate::version::{Evaluation, Version};
use tllmprof_platform::elf;
use tllmprof_platform::errno::SavedErrno;
use tllmprof_platform::got;
use tllmprof_platform::lifecycle;
use tllmprof_platform::panics::contained;
use tllmprof_platform::sorted::sorted;
use tllmprof_sync::Lock;
use tllmprof_sync::hash::spread;

/// The type of an evaluator in 3.8 (`_PyFrameEvalFunction`).
type EvaluateOld = unsafe extern "C-unwind" fn(Raw, c_int) -> Raw;

lifecycle::global! {
    /// The address of CPython's own frame evaluator, which our evaluator calls.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static EVALUATE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// True if our frame evaluator could not be installed because another tool's was in place.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static IS_MISSING: AtomicBool = AtomicBool::new(false);
    /// True while our evaluator examines the first call of each function, to find functions that
    /// the user requested.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static IS_SEARCHING: AtomicBool = AtomicBool::new(false);
    /// Cache of code objects that are known not to belong to a requested function. Each entry is
    /// encoded by [`seen_as`].
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    #[together(tables)]
    static SEEN: [AtomicUsize; SEEN_SLOTS] = [const { AtomicUsize::new(0) }; SEEN_SLOTS];
    /// A counter that increases whenever new code objects may exist. They may have the addresses of
    /// earlier code objects, so the counter's increase invalidates all entries of [`SEEN`].
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static ERA: AtomicUsize = AtomicUsize::new(1);
    /// 1 plus the number of recorded calls at the time when another tool's evaluator replaced ours; 0 if none has, or
    /// if ours is installed again. Torch's compiler does not count, because its evaluator calls ours.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    /// The address of the frame evaluator of torch's compiler, once it has been recognised; null before that.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static TORCHS: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
}
const SEEN_SLOTS: usize = 4096;
lifecycle::global! {
    stage: Sinks;

    /// The modules for which [`follow_setters`] has nothing more to do, as sorted address ranges. Their GOT slot for
    /// setting an evaluator already points to this library, or they have no such slot.
    #[fork(free)]
    #[restart(reset)]
    static LED: Lock<Vec<(usize, usize)>> = Lock::new(Vec::new());
}

/// Makes the interpreter evaluate frames through our evaluator, unless another tool's evaluator is installed. Returns
/// `None` if the evaluator cannot be read and set, or if test calls show frames with another layout than expected.
pub(crate) fn install(py: Python<'_>) -> Option<()> {
    EVALUATE.store(py.api.evaluate?.as_ptr(), Ordering::Release);
    put(py)?;
    trial::passes(py, Layout::for_version(py.api.version)?, is_there(py)).or_else(|| {
        take_away(py);
        None
    })
}

/// Starts a search for requested functions: the first call of each function is reported to
/// [`candidates::meets`].
pub(crate) fn search(py: Python<'_>) -> Option<()> {
    IS_SEARCHING.store(true, Ordering::Relaxed);
    install(py)
}

/// Ends the search for requested functions that [`search`] started.
pub(crate) fn end_search(py: Python<'_>) {
    if IS_SEARCHING.swap(false, Ordering::Relaxed) {
        if marked::is_empty() {
            take_away(py);
        } else {
            put(py);
        }
    }
}

/// Invalidates the cache [`SEEN`], because new code objects may exist.
pub(crate) fn code_is_made() {
    if IS_SEARCHING.load(Ordering::Relaxed) {
        ERA.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns true from a call of [`search`] until [`end_search`] is called.
pub(crate) fn is_searching() -> bool {
    IS_SEARCHING.load(Ordering::Relaxed)
}

/// Records a problem ([`Trouble`]) if another tool's evaluator has replaced ours. Needed only in 3.8, where no hook
/// notices that a tool sets an evaluator.
pub(crate) fn check(py: Python<'_>) {
    let is_kept = EVALUATE.load(Ordering::Relaxed).is_null() || marked::is_empty();
    if !is_kept
        && !late::is_off()
        && !py.api.version.has_evaluator_functions()
        && EvaluatorSlot::find(py).is_none()
    {
        Trouble::EvaluatorTaken.note();
    }
}

/// Installs our evaluator if another tool's evaluator prevented that before and is gone now.
pub(crate) fn put_again(py: Python<'_>) {
    if IS_MISSING.load(Ordering::Relaxed) {
        let _ = put(py);
    }
}

/// Installs our evaluator in the calling thread's interpreter. If another tool's evaluator is installed there, leaves
/// it and records a problem. Returns `None` if the evaluator cannot be read and set. In Python 3.8, this is also the
/// case if another tool's evaluator is installed.
fn put(py: Python<'_>) -> Option<()> {
    if late::is_off() {
        return Some(());
    }
    let place = EvaluatorSlot::find(py)?;
    let ours = ours(py.api);
    let owner = owner(py.api, place.get());
    match owner {
        Owner::Python | Owner::Us => place.set(ours),
        Owner::Another => Trouble::OtherEvaluator.note(),
    }
    IS_MISSING.store(owner == Owner::Another, Ordering::Relaxed);
    Some(())
}

/// The longest wait for another thread that is in [`follow_setters`].
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);
const SETTER: &CStr = c"_PyInterpreterState_SetEvalFrameFunc";

/// Patches other modules' GOT slots for the function that sets an evaluator ([`SETTER`]), so that the library notices
/// if another tool sets one. Only needed in 3.9 to 3.11.
pub(crate) fn follow_setters(python: &Attached) {
    let version = python.api.version;
    if version.has_monitoring() || !version.has_evaluator_functions() {
        return;
    }
    let Some(mut led) = LED.lock_for(LOCK_TIMEOUT) else {
        return;
    };
    elf::with_modules(|modules| {
        let mut now = Vec::with_capacity(modules.len());
        for module in modules.iter().filter(|module| module.start != python.start) {
            let place = (module.start, module.end);
            let stand_in = || {
                got::lead(
                    module,
                    |name| name == SETTER,
                    |_, _| Some(sets as *const () as usize),
                )
            };
            // `stand_in` returns `None` for a module that is still being loaded. Such a module is tried again when
            // the list of modules changes.
            if led.binary_search(&place).is_ok() || stand_in().is_some() {
                now.push(place);
            }
        }
        *led = sorted(now);
    });
}

/// The library's replacement for `_PyInterpreterState_SetEvalFrameFunc`, which other modules call in 3.9 to 3.11.
///
/// # Safety
/// The arguments are valid for `_PyInterpreterState_SetEvalFrameFunc`.
unsafe extern "C" fn sets(interpreter: *mut c_void, evaluator: *mut c_void) {
    let Some(api) = api() else { return };
    let Some((get, set)) = api.evaluator.zip(api.set_evaluator) else {
        return;
    };
    let errno = SavedErrno::new();
    let evaluator = contained(evaluator, || {
        // SAFETY: the caller holds the GIL, and `interpreter` is alive.
        let there = unsafe { get(interpreter) };
        instead(api, there, evaluator)
    });
    drop(errno);
    // SAFETY: the arguments are the caller's. If our evaluator is set instead of Python's, it has the same type.
    unsafe { set(interpreter, evaluator) };
}

/// Returns the evaluator to set when a tool sets `evaluator` while `there` is installed. If the tool
/// restores Python's own while ours is needed, the result is our evaluator, which calls Python's own.
fn instead(api: &Api, there: *mut c_void, evaluator: *mut c_void) -> *mut c_void {
    let before = owner(api, there);
    match owner(api, evaluator) {
        Owner::Python if before != Owner::Python && !late::is_off() && is_needed() => {
            given_back();
            ours(api)
        }
        Owner::Python => evaluator,
        Owner::Us => {
            given_back();
            evaluator
        }
        Owner::Another => {
            if before == Owner::Us && !passes_on(evaluator) {
                TAKEN.store(targets::calls() + 1, Ordering::Relaxed);
            }
            evaluator
        }
    }
}

fn is_needed() -> bool {
    is_searching() || !marked::is_empty()
}

/// Records a problem ([`Trouble`]) if another tool's evaluator had replaced ours and no call was recorded since then.
/// Called when our evaluator is installed again, and at the end of the process.
fn given_back() {
    let taken = TAKEN.swap(0, Ordering::Relaxed);
    if taken == targets::calls() + 1 {
        Trouble::EvaluatorTaken.note();
    }
}

/// Records a problem ([`Trouble`]) if another tool's evaluator is still installed instead of ours, and no call has been
/// recorded since it replaced ours. Called at the end of the process.
pub(crate) fn ends() {
    given_back();
}

/// Returns true if `evaluator` is that of torch's compiler, which calls the evaluator that was
/// installed before it.
fn passes_on(evaluator: *mut c_void) -> bool {
    if TORCHS.load(Ordering::Relaxed) == evaluator {
        return true;
    }
    let module = elf::containing(evaluator.addr());
    let is_torchs = module.is_some_and(|module| module.file_name().starts_with(b"libtorch_python"));
    if is_torchs {
        TORCHS.store(evaluator, Ordering::Relaxed);
    }
    is_torchs
}

/// The owner of an evaluator: CPython, this library, or another tool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Python,
    Us,
    Another,
}

impl Owner {
    fn identify(there: *mut c_void, pythons: *mut c_void, ours: [*mut c_void; 2]) -> Self {
        match there {
            _ if there == pythons => Self::Python,
            _ if ours.contains(&there) => Self::Us,
            _ => Self::Another,
        }
    }
}

fn owner(api: &Api, there: *mut c_void) -> Owner {
    let ours = both(api.version);
    Owner::identify(there, EVALUATE.load(Ordering::Relaxed), ours)
}

/// Uninstalls our evaluator.
pub(crate) fn take_away(py: Python<'_>) {
    IS_MISSING.store(false, Ordering::Relaxed);
    if let Some(place) = EvaluatorSlot::find(py)
        && owner(py.api, place.get()) == Owner::Us
    {
        place.set(EVALUATE.load(Ordering::Relaxed));
    }
}

/// Returns true if our evaluator is installed in the calling thread's interpreter.
pub(crate) fn is_there(py: Python<'_>) -> bool {
    EvaluatorSlot::find(py).is_some_and(|place| owner(py.api, place.get()) == Owner::Us)
}

fn ours(api: &Api) -> *mut c_void {
    let [plain, searching] = both(api.version);
    if is_searching() { searching } else { plain }
}

/// Returns our two evaluators for a version of Python. The first is for normal use, the second for
/// use while requested functions are searched for.
fn both(version: Version) -> [*mut c_void; 2] {
    let old = |evaluate: EvaluateOld| (evaluate as *const ()).cast_mut().cast();
    let new = |evaluate: Evaluate| (evaluate as *const ()).cast_mut().cast();
    match version.evaluation() {
        Evaluation::In3_8 => [old(evaluate_in_3_8::<false>), old(evaluate_in_3_8::<true>)],
        Evaluation::In3_11 => [
            new(evaluate_in_3_11::<false>),
            new(evaluate_in_3_11::<true>),
        ],
        Evaluation::In3_9 => [new(evaluate::<false>), new(evaluate::<true>)],
    }
}

/// The way to read and replace an interpreter's current evaluator.
enum EvaluatorSlot<'py> {
    Functions(Python<'py>),
    /// The word of the interpreter's data that stores the evaluator in 3.8. That version has no
    /// functions to get or set the evaluator.
    Word(&'py AtomicPtr<c_void>),
}

impl<'py> EvaluatorSlot<'py> {
    fn find(py: Python<'py>) -> Option<Self> {
        if py.api.version.has_evaluator_functions() {
            py.api.evaluator.and(py.api.set_evaluator)?;
            return Some(Self::Functions(py));
        }
        /// Number of words at the start of a `PyInterpreterState` that are searched for the evaluator. The structure
        /// is larger.
        const WORDS: usize = 128;
        let [plain, searching] = both(py.api.version);
        let wanted = [EVALUATE.load(Ordering::Relaxed), plain, searching];
        // SAFETY: the interpreter is the calling thread's, and lives while the thread holds the GIL. All of these
        // words are inside the structure, which has more than 255 words: 255 words for `co_extra_freefuncs` follow
        // the evaluator. The words may change during the search, so they are atomic.
        let words: &[AtomicPtr<c_void>] =
            unsafe { core::slice::from_raw_parts(py.c().interpreter().cast(), WORDS) };
        only(words, wanted).map(Self::Word)
    }

    fn get(&self) -> *mut c_void {
        match *self {
            Self::Functions(py) => py.api.evaluator.map_or(core::ptr::null_mut(), |get| {
                // SAFETY: the interpreter is the calling thread's.
                unsafe { get(py.c().interpreter()) }
            }),
            Self::Word(word) => word.load(Ordering::Relaxed),
        }
    }

    fn set(&self, evaluator: *mut c_void) {
        match *self {
            Self::Functions(py) => {
                if let Some(set) = py.api.set_evaluator {
                    // SAFETY: the interpreter is the calling thread's, and the evaluator has the
                    // right type for its version.
                    unsafe { set(py.c().interpreter(), evaluator) };
                }
            }
            Self::Word(word) => word.store(evaluator, Ordering::Relaxed),
        }
    }
}

/// Returns the only word in `words` whose value is one of `wanted`. Returns `None` if no word has such a value, or if
/// several words have.
fn only(words: &[AtomicPtr<c_void>], wanted: [*mut c_void; 3]) -> Option<&AtomicPtr<c_void>> {
    let is_wanted = |word: &&AtomicPtr<c_void>| wanted.contains(&word.load(Ordering::Relaxed));
    let mut found = words.iter().filter(is_wanted);
    let place = found.next()?;
    found.next().is_none().then_some(place)
}

/// Returns CPython's own evaluator, in 3.9 or later.
///
/// # Safety
/// The version is not 3.8, and our evaluator is installed.
#[inline]
unsafe fn own() -> Evaluate {
    // SAFETY: CPython's own evaluator is stored before ours is installed. It has this type in all
    // versions except 3.8, which the caller excludes.
    unsafe { core::mem::transmute::<*mut c_void, Evaluate>(EVALUATE.load(Ordering::Relaxed)) }
}

/// Encodes the address of a code object that belongs to no requested function, as an entry of [`SEEN`]. The upper 16
/// bits, which are zero in addresses, hold the lower 16 bits of `era`, a value of [`ERA`].
const fn seen_as(code: usize, era: usize) -> usize {
    code ^ era << 48
}

/// Returns the mark of a frame's code object before the frame is evaluated. During a search
/// (`SEARCHES`), an unmarked code object is examined first, and may become marked.
///
/// # Safety
/// The interpreter has passed `frame` to an evaluator.
#[inline]
unsafe fn mark_of<const SEARCHES: bool>(frame: Raw) -> Option<&'static Mark> {
    // SAFETY: the caller promises that the interpreter has passed this frame.
    let code = unsafe { code_of(frame) };
    let mark = marked::find(code);
    if !SEARCHES || mark.is_some() {
        return mark;
    }
    let slot = &SEEN[spread(code as u64) % SEEN_SLOTS];
    let seen = seen_as(code, ERA.load(Ordering::Relaxed));
    if slot.load(Ordering::Relaxed) == seen {
        return None;
    }
    slot.store(seen, Ordering::Relaxed);
    // SAFETY: the caller promises that the interpreter has passed this frame.
    unsafe { meet(frame) };
    marked::find(code)
}

/// Examines the code object of a frame at the first call of the code object. Marks it if it belongs to a requested
/// function.
///
/// # Safety
/// The interpreter has passed `frame` to an evaluator.
#[cold]
#[inline(never)]
unsafe fn meet(frame: Raw) {
    let is_wanted = |thread: &Thread| is_searching() && !thread.is_busy.get();
    let act = |thread: &Thread, frame: &InterpreterFrame<'_>| {
        is_wanted(thread) && thread.busily(|| frame.py().quietly(|py| is_met(py, frame)))
    };
    // SAFETY: the caller promises that the interpreter has passed this frame.
    unsafe { with_frame(frame, act) };
}

fn is_met<'py>(py: Python<'py>, frame: &InterpreterFrame<'py>) -> bool {
    frame.code().is_some_and(|code| {
        let first = |code: &Object<'py>| first_argument(frame, code);
        candidates::meets(py, &code, &|| frame.globals(), &first)
    })
}

/// Returns the first argument of the call that begins with this frame. `code` is the frame's code
/// object.
fn first_argument<'py>(frame: &InterpreterFrame<'py>, code: &Object<'py>) -> Option<Object<'py>> {
    let place = place::Place::find(frame.py(), code, spans::yields(code)?, None)?;
    frame.argument(&place)
}

/// Evaluates a frame in 3.9 and 3.10, and in 3.11 if [`evaluate_in_3_11`] calls it. A frame whose code object has no
/// mark is passed on to CPython's own evaluator with a jump, so it takes no extra stack.
///
/// If the end of the interpreter or `pthread_exit` ends the thread during a call, the thread is
/// unwound through this function. So no value that needs to be dropped may live across the call.
///
/// # Safety
/// The version is 3.9 or later. The arguments are those that the interpreter passed to an evaluator: to this one, or to
/// another one that passes them on.
unsafe extern "C-unwind" fn evaluate<const SEARCHES: bool>(
    state: ThreadState,
    frame: Raw,
    throws: c_int,
) -> Raw {
    // No panic: `follow` catches panics.
    // SAFETY: from 3.9 on, the interpreter calls this function in place of its own evaluator, with
    // the same arguments. Each frame that it passes has a code object.
    unsafe {
        let next = own();
        match mark_of::<SEARCHES>(frame) {
            None => next(state, frame, throws),
            Some(mark) => follow(frame, throws, mark, move || next(state, frame, throws)),
        }
    }
}

/// Evaluates a frame in 3.11, like [`evaluate`], but reports no calls while the thread uses more than half of its C
/// stack.
///
/// # Safety
///
/// The version is 3.11. The arguments are those that the interpreter passed to an evaluator: to this one, or to another
/// one that passes them on.
unsafe extern "C-unwind" fn evaluate_in_3_11<const SEARCHES: bool>(
    state: ThreadState,
    frame: Raw,
    throws: c_int,
) -> Raw {
    // No panic: `is_short` and the evaluators catch panics.
    // SAFETY: 3.11 calls this function in place of its own evaluator, with the same arguments.
    unsafe {
        if may_be_short() && is_short() {
            evaluate_without_us(state, frame, throws)
        } else {
            evaluate::<SEARCHES>(state, frame, throws)
        }
    }
}

/// Returns true if the calling thread may have reached its limit on stack use ([`crate::spans`]). This check is fast
/// but not exact; [`is_short`] makes the exact check.
#[inline]
fn may_be_short() -> bool {
    threads::known().is_none_or(|thread| thread.spans.may_be_short())
}

/// Returns true if the calling thread has reached the limit on stack use (`spans::room`), so that its further calls
/// are not reported.
#[cold]
#[inline(never)]
fn is_short() -> bool {
    contained(false, || {
        threads::current().is_some_and(|thread| thread.spans.is_short())
    })
}

/// Evaluates a frame while our evaluator is uninstalled, so that nested calls take no extra stack.
///
/// # Safety
/// Called in 3.11, in place of the interpreter's own evaluator, while ours is installed.
#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn evaluate_without_us(
    state: ThreadState,
    frame: Raw,
    throws: c_int,
) -> Raw {
    // SAFETY: the interpreter holds the GIL while it evaluates frames.
    let py = api().map(|api| unsafe { Python::assume(api) });
    contained((), || {
        Trouble::Deep.note();
        if let Some(py) = py {
            take_away(py);
        }
    });
    // SAFETY: 3.11 passed these arguments to our evaluator, and CPython's own evaluator takes the same arguments.
    let result = unsafe { own()(state, frame, throws) };
    if let Some(py) = py {
        let _errno = SavedErrno::new();
        contained(None, || put(py));
    }
    result
}

/// Evaluates a frame in 3.8, like [`evaluate`].
///
/// # Safety
/// The version is 3.8. The arguments are those that the interpreter passed to an evaluator: to this one, or to another
/// one that passes them on.
unsafe extern "C-unwind" fn evaluate_in_3_8<const SEARCHES: bool>(
    frame: Raw,
    throws: c_int,
) -> Raw {
    // No panic: `follow` catches panics.
    let next = EVALUATE.load(Ordering::Relaxed);
    // SAFETY: CPython's own evaluator is stored before ours is installed, and has this type in 3.8.
    // The arguments are those that the interpreter passed.
    unsafe {
        let next = core::mem::transmute::<*mut c_void, EvaluateOld>(next);
        match mark_of::<SEARCHES>(frame) {
            None => next(frame, throws),
            Some(mark) => follow(frame, throws, mark, move || next(frame, throws)),
        }
    }
}

/// Records a call of the marked code object. `go_on` evaluates its frame.
///
/// # Safety
/// The interpreter has passed `frame` to an evaluator.
#[cold]
#[inline(never)]
unsafe fn follow(
    frame: Raw,
    throws: c_int,
    mark: &'static Mark,
    go_on: impl FnOnce() -> Raw,
) -> Raw {
    // SAFETY: the interpreter has passed the frame to our evaluator, and waits for the evaluator to
    // return.
    if !unsafe { with_frame(frame, |thread, frame| enters(thread, frame, throws, mark)) } {
        return go_on();
    }
    let result = go_on();
    let has_value = !result.is_null();
    // SAFETY: the frame's owner is the caller of this function, which frees the frame only after
    // this function returns.
    unsafe {
        with_frame(frame, |thread, frame| {
            leaves(thread, frame, mark, has_value)
        })
    };
    result
}

/// Runs `act` for a frame and returns its result. Returns false if the frame cannot be read.
///
/// # Safety
/// The interpreter has passed `frame` to an evaluator.
unsafe fn with_frame(frame: Raw, act: impl FnOnce(&Thread, &InterpreterFrame<'_>) -> bool) -> bool {
    let _errno = SavedErrno::new();
    contained(false, || {
        let (Some(api), Some(thread)) = (api(), threads::current()) else {
            return false;
        };
        // SAFETY: the interpreter holds the GIL while it evaluates frames, and it has passed this
        // frame to us.
        let frame = unsafe { InterpreterFrame::new(Python::assume(api), frame) };
        frame.is_some_and(|frame| act(thread, &frame))
    })
}

/// Records that a call begins or resumes. Returns false if it records nothing. Then the caller must not record an end
/// either. Nothing is recorded if the evaluation of the frame runs none of the function's code (it only creates a
/// generator, or ends a new one). The same holds if the code object was a candidate and turns out not to belong to a
/// requested function.
fn enters<'py>(
    thread: &Thread,
    frame: &InterpreterFrame<'py>,
    throws: c_int,
    mark: &'static Mark,
) -> bool {
    let state = mark.yields.then(|| frame.state());
    let Some(goes_on) = goes_on(state, throws != 0) else {
        return false;
    };
    if mark.is_candidate() {
        let py = frame.py();
        let is_confirmed = py.quietly(|py| {
            let first = |code: &Object<'py>| first_argument(frame, code);
            candidates::confirms(py, mark, &|| frame.globals(), &first)
        });
        if !is_confirmed {
            marked::remove_one(py, mark.code());
            return false;
        }
    }
    thread.catch_up();
    thread
        .spans
        .enter(frame.py(), frame.addr(), mark, goes_on, &|place| {
            frame.argument(place)
        });
    true
}

/// Returns true if a call resumes after a yield, and false if a call begins. Returns `None` if this evaluation of the
/// frame runs none of the function's code. `state` is the state of a generator's frame, and `None` for other
/// functions.
fn goes_on(state: Option<FrameState>, throws: bool) -> Option<bool> {
    match state.unwrap_or(FrameState::New) {
        FrameState::Makes => None,
        // If an exception is thrown into a new generator, the generator ends before its code
        // begins.
        FrameState::New if throws => None,
        FrameState::New => Some(false),
        FrameState::Suspended => Some(true),
    }
}

/// Records that a call has ended or yielded.
fn leaves(
    thread: &Thread,
    frame: &InterpreterFrame<'_>,
    mark: &'static Mark,
    has_value: bool,
) -> bool {
    let has_yielded = has_value && mark.yields && frame.has_yielded();
    let py = frame.py();
    thread.spans.leave(py, frame.addr(), mark, !has_yielded);
    true
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut as at;

    use super::*;

    #[test]
    fn only_pythons_own_evaluator_is_replaced() {
        let of = |there| Owner::identify(at(there), at(8), [at(16), at(32)]);
        assert_eq!(of(8), Owner::Python);
        assert_eq!([of(16), of(32)], [Owner::Us, Owner::Us]);
        assert_eq!(of(24), Owner::Another);
    }

    #[test]
    fn the_word_of_3_8_is_the_only_one_that_has_the_evaluator() {
        let words = [8, 24, 16, 0].map(|word| AtomicPtr::new(at(word)));
        let place = only(&words, [at(24), at(32), at(48)]).unwrap();
        assert!(core::ptr::eq(place, &raw const words[1]));
        assert!(only(&words, [at(8), at(16), at(48)]).is_none());
        assert!(only(&words, [at(40), at(48), at(56)]).is_none());
    }

    #[test]
    fn a_call_begins_with_its_first_frame() {
        assert_eq!(goes_on(None, false), Some(false));
        assert_eq!(goes_on(Some(FrameState::Makes), false), None);
        assert_eq!(goes_on(Some(FrameState::New), false), Some(false));
        assert_eq!(goes_on(Some(FrameState::New), true), None);
        assert_eq!(goes_on(Some(FrameState::Suspended), false), Some(true));
        assert_eq!(goes_on(Some(FrameState::Suspended), true), Some(true));
    }

    #[test]
    fn each_version_has_its_own_type_of_evaluator() {
        let of = |text| both(Version::parse(text).unwrap());
        assert_eq!(of("3.9.18 "), of("3.10.13 "));
        assert_ne!(of("3.8.18 "), of("3.9.18 "));
        assert_ne!(of("3.11.7 "), of("3.10.13 "));
        for [plain, searching] in ["3.8.18 ", "3.9.18 ", "3.11.7 "].map(of) {
            assert_ne!(plain, searching);
        }
    }
}
