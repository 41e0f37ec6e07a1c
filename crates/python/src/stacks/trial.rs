//! Checks the expected memory layout of the interpreter's Python stacks by reading a stack whose functions are known.
//! This is done before any stack of the program is read.

use tllmprof_platform::ids;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Lock;

use super::names::name_of;
use super::snapshot::Snapshot;
use super::walk::{Walked, Walker};
use super::{Ready, Trouble, here, own};
use crate::embedded::add;
use crate::method::MethodDef;
use crate::object::Python;

const SOURCE: &core::ffi::CStr = c"
def leaf():
    look()

def steps():
    leaf()
    yield

class Stra\xc3\x9fe:
    def \xe6\xad\xa5(self):
        for _ in steps(): pass

def run():
    Stra\xc3\x9fe().\xe6\xad\xa5()
";

/// The functions that are on the stack while [`SOURCE`]'s `run` calls the library, innermost first. Each has two forms:
/// with the qualified name, and with the plain name, which is all that older versions of CPython store.
const WANTED: [[&str; 2]; 4] = [
    ["leaf (<tllmprof>:2)"; 2],
    ["steps (<tllmprof>:5)"; 2],
    ["Straße.步 (<tllmprof>:10)", "步 (<tllmprof>:10)"],
    ["run (<tllmprof>:13)"; 2],
];

/// The most bytes of instructions that a function of [`SOURCE`] may have.
const MAX_CODE_BYTES: usize = 256;

lifecycle::global! {
    stage: Sinks;

    /// The layout that is being checked, and the result of the check.
    #[fork(free)]
    #[restart(keep)]
    static TRIAL: Lock<Option<(Ready, Result<(), Trouble>)>> = Lock::new(None);
}

static LOOK_METHOD: MethodDef = MethodDef::without_args(c"look", |_| {
    if let Some((ready, result)) = &mut *TRIAL.lock() {
        *result = look(ready);
    }
});

/// Returns `ready` if the known stack is read correctly, and otherwise the reason why stacks cannot be read.
pub(crate) fn passes(py: Python<'_>, ready: Ready) -> Result<Ready, Trouble> {
    *TRIAL.lock() = Some((ready, Err(Trouble::OtherStacks)));
    let ran = || {
        let names = py.run(SOURCE, c"<tllmprof>")?;
        add(py, &names, &LOOK_METHOD).then_some(())?;
        names.item(c"run")?.call(&[])
    };
    let _ = ran();
    let (ready, result) = TRIAL.lock().take().ok_or(Trouble::OtherStacks)?;
    result.map(|()| ready)
}

fn look(ready: &mut Ready) -> Result<(), Trouble> {
    let mut walker = Walker::default();
    let target = here().ok_or(Trouble::OtherStacks)?;
    let process = ids::process();
    let walked = walker
        .walk(process, &ready.layout, target)
        .map_err(Trouble::Refused)?;
    let mut snapshot = Snapshot::default();
    snapshot.take(process, []).map_err(Trouble::Refused)?;
    let mut is_wanted = |(wanted, code): (&[&str; 2], &usize)| {
        let name = name_of(&mut snapshot, ready, *code);
        name.is_some_and(|name| wanted.contains(&name.as_str()))
    };
    let are_ours = walker.codes().len() >= WANTED.len()
        && WANTED.iter().zip(walker.codes()).all(&mut is_wanted);
    ready.has_own = are_read_where_they_lie(ready, walker.codes());
    (walked == Walked::Stack && are_ours)
        .then_some(())
        .ok_or(Trouble::OtherStacks)
}

/// Returns true if [`own`], which reads the thread's stack without a copy, finds the functions of the known stack,
/// too. The current instruction of each function must be inside the function's code.
fn are_read_where_they_lie(ready: &Ready, codes: &[usize]) -> bool {
    codes.iter().take(WANTED.len()).all(|wanted| {
        let found = own::read(ready, |code| (code == *wanted).then_some(code));
        found.is_some_and(|(_, at)| (1..MAX_CODE_BYTES).contains(&at))
    })
}
