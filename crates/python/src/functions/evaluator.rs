//! CPython 3.8 to 3.11: a frame evaluator (PEP 523), while something is marked or searched for.
//!
//! It is put where CPython's own is, never where another tool's is: such a tool, as torch's dynamo,
//! keeps what it finds and goes on to it, and two that keep each other would call each other for
//! ever. So what comes after us is always CPython's own.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

use super::frames::{Frame, Layout, State, code_of};
use super::{marked, resolve, targets, trial};
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
use tllmprof_platform::errno::Kept;
use tllmprof_platform::got;
use tllmprof_platform::lifecycle;
use tllmprof_platform::panics::contained;
use tllmprof_sync::Lock;
use tllmprof_sync::hash::spread;

/// `_PyFrameEvalFunction` in 3.8.
type EvaluateOld = unsafe extern "C-unwind" fn(Raw, c_int) -> Raw;

lifecycle::global! {
    /// CPython's own.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static EVALUATE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    /// Another tool's was there when ours should have been put.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static IS_MISSING: AtomicBool = AtomicBool::new(false);
    /// Functions are searched for by their first calls.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static IS_SEARCHING: AtomicBool = AtomicBool::new(false);
    /// Code objects that are none of those, by their addresses, each as [`seen_as`] has it.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static SEEN: [AtomicUsize; SEEN_SLOTS] = [const { AtomicUsize::new(0) }; SEEN_SLOTS];
    /// Moves on where code objects may have been made, which may lie where others did.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static ERA: AtomicUsize = AtomicUsize::new(1);
    /// Calls that had been seen when another tool's evaluator took the place of ours, and 1; 0 where none has.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    /// The evaluator of torch's compiler, if it has been met.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static TORCHS: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
}
const SEEN_SLOTS: usize = 4096;
lifecycle::global! {
    stage: Sinks;

    /// The modules whose calls that set an evaluator are led to us, or that have none: where each lies, in order.
    #[fork(free)]
    #[restart(reset)]
    static LED: Lock<Vec<(usize, usize)>> = Lock::new(Vec::new());
}

/// Has the interpreter evaluate marked calls through us. None if that cannot be.
pub fn install(py: Python<'_>) -> Option<()> {
    EVALUATE.store(py.api.evaluate?.as_ptr(), Ordering::Release);
    put(py)?;
    trial::passes(py, Layout::of(py.api.version)?, is_there(py)).or_else(|| {
        take_away(py);
        None
    })
}

/// Has the first call of each function given to [`resolve::meets`].
pub fn search(py: Python<'_>) -> Option<()> {
    IS_SEARCHING.store(true, Ordering::Relaxed);
    install(py)
}

/// Ends [`search`].
pub fn end_search(py: Python<'_>) {
    if IS_SEARCHING.swap(false, Ordering::Relaxed) {
        if marked::is_empty() {
            take_away(py);
        } else {
            put(py);
        }
    }
}

/// Code objects may have been made.
pub fn code_is_made() {
    if IS_SEARCHING.load(Ordering::Relaxed) {
        ERA.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether [`search`] is under way.
pub fn is_searching() -> bool {
    IS_SEARCHING.load(Ordering::Relaxed)
}

/// Notes where another tool's evaluator is in its place, in a version that does not report that.
pub fn check(py: Python<'_>) {
    let is_kept = EVALUATE.load(Ordering::Relaxed).is_null() || marked::is_empty();
    if !is_kept
        && !late::is_off()
        && !py.api.version.has_evaluator_functions()
        && Place::of(py).is_none()
    {
        Trouble::EvaluatorTaken.note();
    }
}

/// Puts it where another tool's was when it should have been put, if that is gone.
pub fn put_again(py: Python<'_>) {
    if IS_MISSING.load(Ordering::Relaxed) {
        let _ = put(py);
    }
}

/// None if the interpreter takes none.
fn put(py: Python<'_>) -> Option<()> {
    if late::is_off() {
        return Some(());
    }
    let place = Place::of(py)?;
    let ours = ours(py.api);
    let owner = owner(py.api, place.get());
    match owner {
        Owner::Python | Owner::Us => place.set(ours),
        Owner::Another => Trouble::OtherEvaluator.note(),
    }
    IS_MISSING.store(owner == Owner::Another, Ordering::Relaxed);
    Some(())
}

/// How long a thread waits for another that follows setters.
const FOLLOWING: Duration = Duration::from_millis(100);
const SETTER: &CStr = c"_PyInterpreterState_SetEvalFrameFunc";

/// Leads other modules' calls that set an evaluator to us, from 3.9 to 3.11.
pub fn follow_setters(python: &Attached) {
    let version = python.api.version;
    if version.has_monitoring() || !version.has_evaluator_functions() {
        return;
    }
    let Some(mut led) = LED.lock_for(FOLLOWING) else {
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
            // One that is being loaded is led when modules have changed again.
            if led.binary_search(&place).is_ok() || stand_in().is_some() {
                now.push(place);
            }
        }
        now.sort_unstable();
        *led = now;
    });
}

/// Stands in for `_PyInterpreterState_SetEvalFrameFunc` where other modules call it, from 3.9 to 3.11.
///
/// # Safety
/// Called as that function is.
unsafe extern "C" fn sets(interpreter: *mut c_void, evaluator: *mut c_void) {
    let Some(api) = api() else { return };
    let Some((get, set)) = api.evaluator.zip(api.set_evaluator) else {
        return;
    };
    let errno = Kept::new();
    let evaluator = contained(evaluator, || {
        // SAFETY: the caller has the GIL, and an interpreter.
        let there = unsafe { get(interpreter) };
        instead(api, there, evaluator)
    });
    drop(errno);
    // SAFETY: the caller's own call; ours takes what Python's own does.
    unsafe { set(interpreter, evaluator) };
}

/// What is set instead of `evaluator`, where `there` is in place: ours instead of Python's own, which comes after it.
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

/// Ours is in its place again.
fn given_back() {
    let taken = TAKEN.swap(0, Ordering::Relaxed);
    if taken == targets::calls() + 1 {
        Trouble::EvaluatorTaken.note();
    }
}

/// Notes where another tool's evaluator is still in the place of ours, and no call has been seen since.
pub fn ends() {
    given_back();
}

/// Whether an evaluator is torch's, which goes on to what it finds.
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

/// Whose evaluator is in the place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Python,
    Us,
    Another,
}

impl Owner {
    fn of(there: *mut c_void, pythons: *mut c_void, ours: [*mut c_void; 2]) -> Self {
        match there {
            _ if there == pythons => Self::Python,
            _ if ours.contains(&there) => Self::Us,
            _ => Self::Another,
        }
    }
}

fn owner(api: &Api, there: *mut c_void) -> Owner {
    let ours = both(api.version);
    Owner::of(there, EVALUATE.load(Ordering::Relaxed), ours)
}

/// Takes it out of its place.
pub fn take_away(py: Python<'_>) {
    IS_MISSING.store(false, Ordering::Relaxed);
    if let Some(place) = Place::of(py)
        && owner(py.api, place.get()) == Owner::Us
    {
        place.set(EVALUATE.load(Ordering::Relaxed));
    }
}

/// Whether it is in its place.
pub fn is_there(py: Python<'_>) -> bool {
    Place::of(py).is_some_and(|place| owner(py.api, place.get()) == Owner::Us)
}

fn ours(api: &Api) -> *mut c_void {
    let [plain, searching] = both(api.version);
    if is_searching() { searching } else { plain }
}

/// Those of a version: without a search, and with one.
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

/// Where an interpreter keeps its evaluator.
enum Place<'py> {
    Functions(Python<'py>),
    /// The word itself, in 3.8.
    Word(&'py AtomicPtr<c_void>),
}

impl<'py> Place<'py> {
    fn of(py: Python<'py>) -> Option<Self> {
        if py.api.version.has_evaluator_functions() {
            py.api.evaluator.and(py.api.set_evaluator)?;
            return Some(Self::Functions(py));
        }
        /// Words of a `PyInterpreterState`, which is longer, that are looked at.
        const WORDS: usize = 128;
        let [plain, searching] = both(py.api.version);
        let wanted = [EVALUATE.load(Ordering::Relaxed), plain, searching];
        // SAFETY: the interpreter is the calling thread's and stays as long as the thread has the
        // GIL. It has 255 words for `co_extra_freefuncs` behind the one looked for, so that all of
        // these lie in it. They may change.
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
                    // SAFETY: the interpreter is the calling thread's, and what is put there is of
                    // the right type for its version.
                    unsafe { set(py.c().interpreter(), evaluator) };
                }
            }
            Self::Word(word) => word.store(evaluator, Ordering::Relaxed),
        }
    }
}

/// The one word that is any of those; none if there is none, or more than one.
fn only(words: &[AtomicPtr<c_void>], wanted: [*mut c_void; 3]) -> Option<&AtomicPtr<c_void>> {
    let is_wanted = |word: &&AtomicPtr<c_void>| wanted.contains(&word.load(Ordering::Relaxed));
    let mut found = words.iter().filter(is_wanted);
    let place = found.next()?;
    found.next().is_none().then_some(place)
}

/// CPython's own evaluator, from 3.9 on.
///
/// # Safety
/// The version is not 3.8, and our evaluator is in place.
#[inline]
unsafe fn own() -> Evaluate {
    // SAFETY: ours is in place only after CPython's own has been stored, which has this type but in
    // 3.8, where the caller is not.
    unsafe { core::mem::transmute::<*mut c_void, Evaluate>(EVALUATE.load(Ordering::Relaxed)) }
}

/// What is kept of a code object that is none of those searched for. Addresses have their upper 16 bits clear.
const fn seen_as(code: usize, era: usize) -> usize {
    code ^ era << 48
}

/// What a frame's code object means that is about to be evaluated, if it is marked or, where functions are searched
/// for (`SEARCHES`), has to be.
///
/// # Safety
/// The interpreter has given `frame` to be evaluated.
#[inline]
unsafe fn mark_of<const SEARCHES: bool>(frame: Raw) -> Option<&'static Mark> {
    // SAFETY: the caller has such a frame.
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
    // SAFETY: the caller has such a frame.
    unsafe { meet(frame) };
    marked::find(code)
}

/// A frame's code object is met for the first time.
///
/// # Safety
/// The interpreter has given `frame` to be evaluated.
#[cold]
#[inline(never)]
unsafe fn meet(frame: Raw) {
    let is_wanted = |thread: &Thread| is_searching() && !thread.is_busy.get();
    let act = |thread: &Thread, frame: &Frame<'_>| {
        is_wanted(thread) && thread.busily(|| frame.py().quietly(|py| is_met(py, frame)))
    };
    // SAFETY: the caller has such a frame.
    unsafe { with_frame(frame, act) };
}

fn is_met<'py>(py: Python<'py>, frame: &Frame<'py>) -> bool {
    frame.code().is_some_and(|code| {
        let first = |code: &Object<'py>| first_argument(frame, code);
        resolve::meets(py, &code, &|| frame.globals(), &first)
    })
}

/// The first argument of the call that begins with the frame, of which that is the code.
fn first_argument<'py>(frame: &Frame<'py>, code: &Object<'py>) -> Option<Object<'py>> {
    let place = place::Place::of(frame.py(), code, spans::yields(code)?, None)?;
    frame.argument(&place)
}

/// Evaluates a frame, in 3.9 and 3.10. What is not marked is passed on by a jump, so that it takes no
/// more of the stack.
///
/// A thread that the end of the interpreter, or `pthread_exit`, ends in the midst of a call is
/// unwound through here: nothing is to be dropped around the call.
///
/// # Safety
/// Called by the interpreter, from 3.9 on.
unsafe extern "C-unwind" fn evaluate<const SEARCHES: bool>(
    state: ThreadState,
    frame: Raw,
    throws: c_int,
) -> Raw {
    // No panic: `follow` contains it.
    // SAFETY: the interpreter, from 3.9 on, calls this in the place of its own, which these arguments
    // are for; a frame that it gives has a code object.
    unsafe {
        let next = own();
        match mark_of::<SEARCHES>(frame) {
            None => next(state, frame, throws),
            Some(mark) => follow(frame, throws, mark, move || next(state, frame, throws)),
        }
    }
}

/// As [`evaluate`], in 3.11.
///
/// # Safety
/// Called by the interpreter, in 3.11.
unsafe extern "C-unwind" fn evaluate_in_3_11<const SEARCHES: bool>(
    state: ThreadState,
    frame: Raw,
    throws: c_int,
) -> Raw {
    // No panic: `is_short` and what goes on contain it.
    // SAFETY: 3.11 calls this in the place of its own evaluator, which these arguments are for.
    unsafe {
        if may_be_short() && is_short() {
            evaluate_without_us(state, frame, throws)
        } else {
            evaluate::<SEARCHES>(state, frame, throws)
        }
    }
}

/// Whether the calling thread may be as far down its stack as it may go; [`is_short`] knows.
#[inline]
fn may_be_short() -> bool {
    threads::known().is_none_or(|thread| thread.spans.may_be_short())
}

/// Whether the calling thread is as far down its stack as it may go.
#[cold]
#[inline(never)]
fn is_short() -> bool {
    contained(false, || {
        threads::current().is_some_and(|thread| thread.spans.is_short())
    })
}

/// Evaluates a frame with none of the calls in it through us, so that they take no stack.
///
/// # Safety
/// Called for the interpreter, in 3.11, with our evaluator in place.
#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn evaluate_without_us(
    state: ThreadState,
    frame: Raw,
    throws: c_int,
) -> Raw {
    // SAFETY: frames are evaluated with the GIL.
    let py = api().map(|api| unsafe { Python::assume(api) });
    contained((), || {
        Trouble::Deep.note();
        if let Some(py) = py {
            take_away(py);
        }
    });
    // SAFETY: 3.11 has given these arguments to ours, in the place of its own evaluator.
    let result = unsafe { own()(state, frame, throws) };
    if let Some(py) = py {
        let _errno = Kept::new();
        contained(None, || put(py));
    }
    result
}

/// As [`evaluate`], in 3.8.
///
/// # Safety
/// Called by the interpreter, in 3.8.
unsafe extern "C-unwind" fn evaluate_in_3_8<const SEARCHES: bool>(
    frame: Raw,
    throws: c_int,
) -> Raw {
    // No panic: `follow` contains it.
    let next = EVALUATE.load(Ordering::Relaxed);
    // SAFETY: ours is in place only after CPython's own has been stored, which has this type in
    // 3.8; the interpreter calls this with its own arguments.
    unsafe {
        let next = core::mem::transmute::<*mut c_void, EvaluateOld>(next);
        match mark_of::<SEARCHES>(frame) {
            None => next(frame, throws),
            Some(mark) => follow(frame, throws, mark, move || next(frame, throws)),
        }
    }
}

/// Follows a call of the marked code object; `go_on` evaluates its frame.
///
/// # Safety
/// The interpreter has given `frame` to be evaluated.
#[cold]
#[inline(never)]
unsafe fn follow(
    frame: Raw,
    throws: c_int,
    mark: &'static Mark,
    go_on: impl FnOnce() -> Raw,
) -> Raw {
    // SAFETY: the interpreter has given the frame to be evaluated, and waits for that to return.
    if !unsafe { with_frame(frame, |thread, frame| enters(thread, frame, throws, mark)) } {
        return go_on();
    }
    let result = go_on();
    let has_value = !result.is_null();
    // SAFETY: the frame that was evaluated is its caller's, and goes only after this returns.
    unsafe {
        with_frame(frame, |thread, frame| {
            leaves(thread, frame, mark, has_value)
        })
    };
    result
}

/// Has `act` act on a frame; false where that cannot be, or is false.
///
/// # Safety
/// The interpreter has given `frame` to be evaluated.
unsafe fn with_frame(frame: Raw, act: impl FnOnce(&Thread, &Frame<'_>) -> bool) -> bool {
    let _errno = Kept::new();
    contained(false, || {
        let (Some(api), Some(thread)) = (api(), threads::current()) else {
            return false;
        };
        // SAFETY: frames are evaluated with the GIL, and the interpreter has given this one for that.
        let frame = unsafe { Frame::of(Python::assume(api), frame) };
        frame.is_some_and(|frame| act(thread, &frame))
    })
}

/// A call begins or goes on. False if neither is so.
fn enters<'py>(thread: &Thread, frame: &Frame<'py>, throws: c_int, mark: &'static Mark) -> bool {
    let state = mark.yields.then(|| frame.state());
    let Some(goes_on) = goes_on(state, throws != 0) else {
        return false;
    };
    if mark.is_candidate() {
        let py = frame.py();
        let is_confirmed = py.quietly(|py| {
            let first = |code: &Object<'py>| first_argument(frame, code);
            resolve::confirms(py, mark, &|| frame.globals(), &first)
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

/// Whether a call goes on that has yielded; none where no call begins. `state` is that of a
/// generator's frame.
fn goes_on(state: Option<State>, throws: bool) -> Option<bool> {
    match state.unwrap_or(State::New) {
        State::Makes => None,
        // What is thrown into a generator that has not run ends it before it has begun.
        State::New if throws => None,
        State::New => Some(false),
        State::Suspended => Some(true),
    }
}

/// A call has ended or yielded.
fn leaves(thread: &Thread, frame: &Frame<'_>, mark: &'static Mark, has_value: bool) -> bool {
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
        let of = |there| Owner::of(at(there), at(8), [at(16), at(32)]);
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
        assert_eq!(goes_on(Some(State::Makes), false), None);
        assert_eq!(goes_on(Some(State::New), false), Some(false));
        assert_eq!(goes_on(Some(State::New), true), None);
        assert_eq!(goes_on(Some(State::Suspended), false), Some(true));
        assert_eq!(goes_on(Some(State::Suspended), true), Some(true));
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
