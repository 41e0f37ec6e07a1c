//! CPython 3.8 to 3.11: a frame evaluator (PEP 523), while something is marked.
//!
//! It is put where CPython's own is, never where another tool's is: such a tool, as torch's dynamo,
//! keeps what it finds and goes on to it, and two that keep each other would call each other for
//! ever. So what comes after us is always CPython's own.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use tllmprof_platform::lifecycle;
use super::frames::{CODE, Layout, State};
use super::marked::{self, Mark};
use super::trouble::Trouble;
use super::{room, spans, trial};
use tllmprof_platform::errno::Kept;
use crate::api::Api;
use crate::api::Evaluate;
use crate::api::Raw;
use crate::api::ThreadState;
use crate::object::Python;
use crate::threads;

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

/// Has marked calls told in the interpreter. None if that cannot be.
pub fn install(py: Python<'_>) -> Option<()> {
    EVALUATE.store(py.api.evaluate?.as_ptr(), Ordering::Release);
    put(py)?;
    trial::passes(py, Layout::of(py.api.minor)?).or_else(|| {
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
    let place = Place::of(py)?;
    let there = place.get();
    let is_default = there == EVALUATE.load(Ordering::Relaxed);
    if is_default {
        place.set(ours(py.api));
    }
    let is_missing = !is_default && there != ours(py.api);
    if is_missing {
        Trouble::OtherEvaluator.note();
    }
    IS_MISSING.store(is_missing, Ordering::Relaxed);
    Some(())
}

fn take_away(py: Python<'_>) {
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
    match api.minor {
        8 => (evaluate_in_3_8 as EvaluateOld as *const ())
            .cast_mut()
            .cast(),
        11 => (evaluate_in_3_11 as Evaluate as *const ())
            .cast_mut()
            .cast(),
        _ => (evaluate as Evaluate as *const ()).cast_mut().cast(),
    }
}

/// Where an interpreter keeps its evaluator.
enum Place {
    Functions(&'static Api, *mut c_void),
    /// The word itself, in 3.8.
    Word(*mut *mut c_void),
}

impl Place {
    fn of(py: Python<'_>) -> Option<Self> {
        // SAFETY: the thread has an interpreter.
        let interpreter = unsafe { (py.api.interpreter)() };
        if py.api.minor > 8 {
            py.api.evaluator.and(py.api.set_evaluator)?;
            return Some(Self::Functions(py.api, interpreter));
        }
        /// Words of a `PyInterpreterState`, which is longer, that are looked at.
        const WORDS: usize = 128;
        let wanted = [EVALUATE.load(Ordering::Relaxed), ours(py.api)];
        let words: *mut *mut c_void = interpreter.cast();
        let mut found = (0..WORDS).filter_map(|index| {
            // SAFETY: the structure has 255 words for `co_extra_freefuncs` behind the one looked
            // for, so that all of these lie in it.
            let word = unsafe { words.add(index) };
            // SAFETY: as above.
            wanted.contains(unsafe { &*word }).then_some(word)
        });
        let place = found.next()?;
        found.next().is_none().then_some(Self::Word(place))
    }

    fn get(&self) -> *mut c_void {
        match *self {
            // SAFETY: the interpreter is the calling thread's.
            Self::Functions(api, interpreter) => api
                .evaluator
                .map_or(core::ptr::null_mut(), |get| unsafe { get(interpreter) }),
            // SAFETY: found in the interpreter.
            Self::Word(word) => unsafe { word.read() },
        }
    }

    fn set(&self, evaluator: *mut c_void) {
        match *self {
            Self::Functions(api, interpreter) => {
                if let Some(set) = api.set_evaluator {
                    // SAFETY: the interpreter is the calling thread's, and what is put there is of
                    // the right type for its version.
                    unsafe { set(interpreter, evaluator) };
                }
            }
            // SAFETY: found in the interpreter; as above.
            Self::Word(word) => unsafe { word.write(evaluator) },
        }
    }
}

/// Evaluates a frame, in 3.9 and 3.10. What is not marked is passed on by a jump, so that it takes no
/// more of the stack.
///
/// A thread that the end of the interpreter, or `pthread_exit`, ends in the midst of a call is
/// unwound through here: nothing is to be dropped around the call.
unsafe extern "C-unwind" fn evaluate(state: ThreadState, frame: Raw, throws: c_int) -> Raw {
    // SAFETY: ours is in place only after this has been stored; CPython's own.
    let next =
        unsafe { core::mem::transmute::<*mut c_void, Evaluate>(EVALUATE.load(Ordering::Relaxed)) };
    // SAFETY: the caller's own arguments; frames have a code object.
    unsafe {
        match marked::find(frame.byte_add(CODE).cast::<usize>().read()) {
            None => next(state, frame, throws),
            Some(mark) => told(frame, throws, mark, move || next(state, frame, throws)),
        }
    }
}

/// As [`evaluate`], in 3.11.
unsafe extern "C-unwind" fn evaluate_in_3_11(state: ThreadState, frame: Raw, throws: c_int) -> Raw {
    // SAFETY: the caller's own arguments.
    unsafe {
        if room::may_be_short() && room::is_short() {
            evaluate_without_us(state, frame, throws)
        } else {
            evaluate(state, frame, throws)
        }
    }
}

/// Evaluates a frame with none of the calls in it through us, so that they take no stack.
#[cold]
#[inline(never)]
unsafe extern "C-unwind" fn evaluate_without_us(
    state: ThreadState,
    frame: Raw,
    throws: c_int,
) -> Raw {
    Trouble::Deep.note();
    // SAFETY: as in `evaluate`; frames are evaluated with the GIL.
    unsafe {
        let next = core::mem::transmute::<*mut c_void, Evaluate>(EVALUATE.load(Ordering::Relaxed));
        let Some(api) = crate::api() else {
            return next(state, frame, throws);
        };
        take_away(Python::assume(api));
        let result = next(state, frame, throws);
        let _errno = Kept::new();
        let _ = put(Python::assume(api));
        result
    }
}

/// As [`evaluate`], in 3.8.
unsafe extern "C-unwind" fn evaluate_in_3_8(frame: Raw, throws: c_int) -> Raw {
    // SAFETY: as above.
    let next = unsafe {
        core::mem::transmute::<*mut c_void, EvaluateOld>(EVALUATE.load(Ordering::Relaxed))
    };
    // SAFETY: as above.
    unsafe {
        match marked::find(frame.byte_add(CODE).cast::<usize>().read()) {
            None => next(frame, throws),
            Some(mark) => told(frame, throws, mark, move || next(frame, throws)),
        }
    }
}

/// # Safety
/// As `evaluate`'s arguments, with what the frame's code object means; `go_on` evaluates the frame.
#[cold]
#[inline(never)]
unsafe fn told(frame: Raw, throws: c_int, mark: &'static Mark, go_on: impl FnOnce() -> Raw) -> Raw {
    // SAFETY: the caller's promise.
    if !unsafe { entered(frame, throws, mark) } {
        return go_on();
    }
    let result = go_on();
    // SAFETY: as above; the frame is its caller's, and still there.
    unsafe { left(frame, mark, !result.is_null()) };
    result
}

/// Tells that a call begins or goes on. False if neither is so.
unsafe fn entered(frame: Raw, throws: c_int, mark: &'static Mark) -> bool {
    let _errno = Kept::new();
    let (Some(api), Some(thread)) = (crate::api(), threads::current()) else {
        return false;
    };
    let Some(layout) = Layout::of(api.minor) else {
        return false;
    };
    let state = if mark.yields {
        // SAFETY: a frame that is about to be evaluated.
        unsafe { layout.state(frame) }
    } else {
        State::New
    };
    // What is thrown into a generator that has not run ends it before it has begun.
    if state == State::Makes || (state == State::New && throws != 0) {
        return false;
    }
    // SAFETY: frames are evaluated with the GIL.
    let py = unsafe { Python::assume(api) };
    let goes_on = state == State::Suspended;
    spans::enter(py, thread, mark, goes_on, |py| {
        // SAFETY: the frame of the marked code object, of a call that begins.
        (!goes_on).then(|| unsafe { layout.first(py, frame, &mark.first) })?
    });
    true
}

unsafe fn left(frame: Raw, mark: &'static Mark, has_value: bool) {
    let _errno = Kept::new();
    let (Some(api), Some(thread)) = (crate::api(), threads::current()) else {
        return;
    };
    let has_yielded = has_value
        && mark.yields
        // SAFETY: a frame that has been evaluated to a value.
        && Layout::of(api.minor).is_some_and(|layout| unsafe { layout.has_yielded(frame) });
    // SAFETY: frames are evaluated with the GIL.
    let py = unsafe { Python::assume(api) };
    spans::leave(py, thread, mark, !has_yielded);
}
