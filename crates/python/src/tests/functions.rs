//! Tests that requested Python functions are found by name, and that their calls are counted and reported.

use core::sync::atomic::Ordering;
use std::sync::Mutex;

use super::hosted::in_each;
use crate::functions::targets::{self, Discovery, Target};
use crate::functions::{Uncalled, follow, interpreter_ends, lookup, near};
use crate::object::{Object, Python};
use crate::spans::{CallReceiver, Entered};

/// Returns the requested function that `TLLMPROF_STEP` names in this test process.
fn target() -> &'static Target {
    let mut targets = targets::known().iter().flat_map(|module| &module.targets);
    targets
        .find(|target| target.by == targets::By::Rule)
        .unwrap()
}

const STEPPER: &str = "
import functools

def wraps(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

class Engine:
    @wraps
    def step(self, number):
        if number == 3:
            raise ValueError(number)
        return number

    def steps(self, count):
        for number in range(count):
            yield number
";

#[test]
fn each_call_of_the_rules_function_counts() {
    in_each(
        &[
            ("TLLMPROF_STEP", "py:stepper:Engine.step"),
            ("TLLM_PROFILE_START_STOP", "2-3"),
        ],
        |host| {
            host.run_with_module(
                "stepper",
                STEPPER,
                "
import stepper
engine = stepper.Engine()
for number in range(5):
    try:
        engine.step(number)
    except ValueError:
        pass
",
            );
            assert_eq!(target().found(), Discovery::InTime);
            assert_eq!(target().function.calls(), 5);
            assert!(!target().is_unseen.load(Ordering::Relaxed));
            assert_eq!(Uncalled.to_string(), "");
            host.end();
            assert_eq!(target().function.calls(), 5);
        },
    );
}

#[test]
fn a_generators_call_counts_once() {
    in_each(
        &[
            ("TLLMPROF_STEP", "py:stepper:Engine.steps"),
            ("TLLM_PROFILE_START_STOP", "2-3"),
        ],
        |host| {
            host.run_with_module(
                "stepper",
                STEPPER,
                "
import stepper
engine = stepper.Engine()
assert list(engine.steps(3)) == [0, 1, 2]
left = engine.steps(3)
next(left)
left.close()
engine.steps(3).close()
",
            );
            assert_eq!(target().function.calls(), 2);
            host.end();
        },
    );
}

#[test]
fn a_function_that_is_not_there_is_reported_with_those_that_are_near() {
    in_each(
        &[
            ("TLLMPROF_STEP", "py:stepper:Engine.stepp"),
            ("TLLM_PROFILE_START_STOP", "2-3"),
        ],
        |host| {
            host.run_with_module("stepper", STEPPER, "import stepper");
            host.end();
            assert_eq!(target().found(), Discovery::NotYet);
            assert_eq!(
                Uncalled.to_string(),
                "; stepper has no such function; nearest: Engine.step, Engine.steps"
            );
        },
    );
}

#[test]
fn what_is_made_while_the_program_runs_is_found_late() {
    in_each(
        &[
            ("TLLMPROF_STEP", "py:stepper:made"),
            ("TLLM_PROFILE_START_STOP", "2-3"),
        ],
        |host| {
            host.run_with_module(
                "stepper",
                STEPPER,
                "
import stepper, time
stepper.made = stepper.wraps(lambda: 3)
stepper.made()
time.sleep(0.15)
exec('1')
stepper.made()
stepper.made()
",
            );
            assert_eq!(target().found(), Discovery::Late);
            assert_eq!(target().function.calls(), 2);
            host.end();
        },
    );
}

#[test]
fn code_is_found_under_what_it_is_wrapped_in() {
    in_each(&[], |host| {
        let source = c"
import functools
def plain(): pass
def outer():
    def inner(): pass
    return inner
class Base:
    def inherited(self): pass
class Engine(Base):
    def __private(self): pass
    @property
    def value(self): pass
    @staticmethod
    def static(): pass
    @classmethod
    def of(cls): pass
    cached = functools.lru_cache(Base.inherited)
partial = functools.partial(plain, 1)
bound = Engine().inherited
number = 3
";
        host.with(|py| {
            let made = py.run_as_module(c"made", source, c"made.py");
            assert!(made.is_some());
            let module = py.imported(c"made").unwrap();
            let find = |wanted: &str| {
                let mut found = Vec::new();
                let kind = lookup::each_named(&module, wanted, &mut |code| {
                    let name = code.attr(c"co_name").unwrap();
                    found.push(name.as_text().unwrap().to_owned());
                });
                (found, kind)
            };
            for (wanted, code) in [
                ("plain", "plain"),
                ("outer.<locals>.inner", "inner"),
                ("Engine.inherited", "inherited"),
                ("Engine.__private", "__private"),
                ("Engine.value", "value"),
                ("Engine.static", "static"),
                ("Engine.of", "of"),
                ("Engine.cached", "inherited"),
                ("partial", "plain"),
                ("bound", "inherited"),
            ] {
                assert_eq!(find(wanted), (vec![code.to_owned()], None), "{wanted}");
            }
            assert_eq!(find("number"), (vec![], Some("int".into())));
            assert_eq!(find("Engine"), (vec![], Some("type".into())));
            assert_eq!(find("nothing"), (vec![], None));
            assert_eq!(near::in_module(&module, "plan"), ["plain"]);
        });
    });
}

/// A receiver that records, as texts, the calls that are reported to it.
struct Seen(Mutex<Vec<String>>);

static SEEN: Seen = Seen(Mutex::new(Vec::new()));

impl CallReceiver for Seen {
    fn enters(&self, _: Python<'_>, first: Option<&Object<'_>>, goes_on: bool) -> Entered {
        let first = first.and_then(Object::as_int);
        let what = if goes_on { "goes on" } else { "begins" };
        self.0.lock().unwrap().push(format!("{what} {first:?}"));
        Entered::with(None)
    }
    fn leaves(&self, _: Python<'_>, _: Entered, has_ended: bool) {
        let what = if has_ended { "ends" } else { "yields" };
        self.0.lock().unwrap().push(what.to_owned());
    }
}

#[test]
fn a_followed_call_shows_its_first_argument() {
    in_each(&[], |host| {
        let source = c"
def call(first, second=2): return first
def closed(first, *more): return lambda: first
def raises(first): raise ValueError(first)
def steps(first):
    yield lambda: first
    yield 2
def nothing(): pass
followed = (call, closed, raises, steps, nothing)
def run():
    call(1)
    closed(2, 3)
    try:
        raises(4)
    except ValueError:
        pass
    for _ in steps(5): pass
    thrown = steps(6)
    next(thrown)
    try:
        thrown.throw(ValueError())
    except ValueError:
        pass
    nothing()
";
        host.with(|py| {
            let names = py.run(source, c"<test>").unwrap();
            for function in names.item(c"followed").unwrap().elements() {
                assert!(follow(py, &function.code().unwrap(), &SEEN));
                // `follow` is called a second time, but each call of the function must be reported only once.
                assert!(follow(py, &function.code().unwrap(), &SEEN));
            }
            assert!(!follow(py, &names, &SEEN)); // not a code object
            names.item(c"run").unwrap().call(&[]).unwrap();
            let seen = core::mem::take(&mut *SEEN.0.lock().unwrap());
            assert_eq!(
                seen,
                [
                    "begins Some(1)",
                    "ends",
                    "begins Some(2)",
                    "ends",
                    "begins Some(4)",
                    "ends",
                    "begins Some(5)",
                    "yields",
                    "goes on None",
                    "yields",
                    "goes on None",
                    "ends",
                    "begins Some(6)",
                    "yields",
                    "goes on None",
                    "ends",
                    "begins None",
                    "ends",
                ]
            );
            interpreter_ends(py);
            names.item(c"run").unwrap().call(&[]).unwrap();
            assert_eq!(SEEN.0.lock().unwrap().len(), 0);
        });
    });
}
