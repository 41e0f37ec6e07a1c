//! CPython 3.8 to 3.11: a frame evaluator (PEP 523), while something is marked.
//!
//! It is put where CPython's own is, never where another tool's is: such a tool, as torch's dynamo,
//! keeps what it finds and goes on to it, and two that keep each other would call each other for
//! ever. So what comes after us is always CPython's own.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use super::frames::{Frame, Layout, State, code_of};
use super::trouble::Trouble;
use super::{marked, trial};
use crate::api::{Api, Evaluate, Raw, ThreadState};
use crate::attached::api;
use crate::late;
use crate::object::Python;
use crate::spans::Mark;
use crate::threads::{self, Thread};
use crate::version::{Evaluation, Version};
use tllmprof_platform::errno::Kept;
use tllmprof_platform::lifecycle;
use tllmprof_platform::panics::contained;

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
}

/// Has the interpreter evaluate marked calls through us. None if that cannot be.
pub fn install(py: Python<'_>) -> Option<()> {
    EVALUATE.store(py.api.evaluate?.as_ptr(), Ordering::Release);
    put(py)?;
    trial::passes(py, Layout::of(py.api.version)?).or_else(|| {
        take_away(py);
        None
    })
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
    let owner = Owner::of(place.get(), EVALUATE.load(Ordering::Relaxed), ours(py.api));
    match owner {
        Owner::Python => place.set(ours(py.api)),
        Owner::Us => {}
        Owner::Another => Trouble::OtherEvaluator.note(),
    }
    IS_MISSING.store(owner == Owner::Another, Ordering::Relaxed);
    Some(())
}

/// Whose evaluator is in the place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Python,
    Us,
    Another,
}

impl Owner {
    fn of(there: *mut c_void, pythons: *mut c_void, ours: *mut c_void) -> Self {
        match there {
            _ if there == pythons => Self::Python,
            _ if there == ours => Self::Us,
            _ => Self::Another,
        }
    }
}

/// Takes it out of its place.
pub fn take_away(py: Python<'_>) {
    IS_MISSING.store(false, Ordering::Relaxed);
    if let Some(place) = Place::of(py)
        && place.get() == ours(py.api)
    {
        place.set(EVALUATE.load(Ordering::Relaxed));
    }
}

/// Whether it is in its place.
pub fn is_there(py: Python<'_>) -> bool {
    Place::of(py).is_some_and(|place| place.get() == ours(py.api))
}

fn ours(api: &Api) -> *mut c_void {
    ours_of(api.version)
}

fn ours_of(version: Version) -> *mut c_void {
    match version.evaluation() {
        Evaluation::In3_8 => (evaluate_in_3_8 as EvaluateOld as *const ())
            .cast_mut()
            .cast(),
        Evaluation::In3_11 => (evaluate_in_3_11 as Evaluate as *const ())
            .cast_mut()
            .cast(),
        Evaluation::In3_9 => (evaluate as Evaluate as *const ()).cast_mut().cast(),
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
        let wanted = [EVALUATE.load(Ordering::Relaxed), ours(py.api)];
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
fn only(words: &[AtomicPtr<c_void>], wanted: [*mut c_void; 2]) -> Option<&AtomicPtr<c_void>> {
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

/// Evaluates a frame, in 3.9 and 3.10. What is not marked is passed on by a jump, so that it takes no
/// more of the stack.
///
/// A thread that the end of the interpreter, or `pthread_exit`, ends in the midst of a call is
/// unwound through here: nothing is to be dropped around the call.
///
/// # Safety
/// Called by the interpreter, from 3.9 on.
unsafe extern "C-unwind" fn evaluate(state: ThreadState, frame: Raw, throws: c_int) -> Raw {
    // No panic: `follow` contains it.
    // SAFETY: the interpreter, from 3.9 on, calls this in the place of its own, which these arguments
    // are for; a frame that it gives has a code object.
    unsafe {
        let next = own();
        match marked::find(code_of(frame)) {
            None => next(state, frame, throws),
            Some(mark) => follow(frame, throws, mark, move || next(state, frame, throws)),
        }
    }
}

/// As [`evaluate`], in 3.11.
///
/// # Safety
/// Called by the interpreter, in 3.11.
unsafe extern "C-unwind" fn evaluate_in_3_11(state: ThreadState, frame: Raw, throws: c_int) -> Raw {
    // No panic: `is_short` and what goes on contain it.
    // SAFETY: 3.11 calls this in the place of its own evaluator, which these arguments are for.
    unsafe {
        if may_be_short() && is_short() {
            evaluate_without_us(state, frame, throws)
        } else {
            evaluate(state, frame, throws)
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
unsafe extern "C-unwind" fn evaluate_in_3_8(frame: Raw, throws: c_int) -> Raw {
    // No panic: `follow` contains it.
    let next = EVALUATE.load(Ordering::Relaxed);
    // SAFETY: ours is in place only after CPython's own has been stored, which has this type in
    // 3.8; the interpreter calls this with its own arguments.
    unsafe {
        let next = core::mem::transmute::<*mut c_void, EvaluateOld>(next);
        match marked::find(code_of(frame)) {
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
fn enters(thread: &Thread, frame: &Frame<'_>, throws: c_int, mark: &'static Mark) -> bool {
    let state = mark.yields.then(|| frame.state());
    let Some(goes_on) = goes_on(state, throws != 0) else {
        return false;
    };
    thread.catch_up();
    thread
        .spans
        .enter(frame.py(), mark, goes_on, &|place| frame.argument(place));
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
    thread.spans.leave(frame.py(), mark, !has_yielded);
    true
}

#[cfg(test)]
mod tests {
    use core::ptr::without_provenance_mut as at;

    use super::*;

    #[test]
    fn only_pythons_own_evaluator_is_replaced() {
        assert_eq!(Owner::of(at(8), at(8), at(16)), Owner::Python);
        assert_eq!(Owner::of(at(16), at(8), at(16)), Owner::Us);
        assert_eq!(Owner::of(at(24), at(8), at(16)), Owner::Another);
    }

    #[test]
    fn the_word_of_3_8_is_the_only_one_that_has_the_evaluator() {
        let words = [8, 24, 16, 0].map(|word| AtomicPtr::new(at(word)));
        let place = only(&words, [at(24), at(32)]).unwrap();
        assert!(core::ptr::eq(place, &raw const words[1]));
        assert!(only(&words, [at(8), at(16)]).is_none());
        assert!(only(&words, [at(40), at(48)]).is_none());
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
        let of = |text| ours_of(Version::parse(text).unwrap());
        assert_eq!(of("3.9.18 "), of("3.10.13 "));
        assert_ne!(of("3.8.18 "), of("3.9.18 "));
        assert_ne!(of("3.11.7 "), of("3.10.13 "));
    }
}
