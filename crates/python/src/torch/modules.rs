//! Ranges for torch modules by their qualified names (`TLLM_NVTX_DEBUG`), which are the scopes of layers (`TLLMPROF_LAYERS`).
//!
//! What is marked is the one code object that every call of a module runs, so that no module is
//! touched. What torch has compiled runs other code objects, and what replays a captured stream runs
//! none: neither has ranges.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_config::Settings;
use tllmprof_platform::lifecycle;

use super::known::{Known, PATIENCE, TABLE};
use super::{compiled, gone};
use crate::functions::follow;
use crate::later::call_for_program;
use crate::method::MethodDef;
use crate::object::{Held, Object, Python};
use crate::spans::{Calls, Entered};
use crate::threads;
use crate::wants;
use tllmprof_capture::marks;
use tllmprof_capture::marks::Name;
use tllmprof_recorder as recorder;
use tllmprof_scopes as scopes;
use tllmprof_session as session;

/// A module's qualified name is the path to it from the module that is called first. What
/// `torch.compile` puts around a module is no part of the path.
///
/// As `named_modules`, which a class may have made its own: no code of the program's runs here, so
/// that what is raised comes from the handler of a signal.
const SOURCE: &CStr = c"
attributes = object.__getattribute__
address = object.__hash__
class_name = type.__dict__['__name__'].__get__

def children_of(module):
    children = attributes(module, '__dict__').get('_modules')
    return children if issubclass(type(children), dict) else {}

def own_name(module):
    known, inner = set(), module
    while inner is not None and address(inner) not in known:
        known.add(address(inner))
        module, inner = inner, dict.get(children_of(inner), '_orig_mod')
    return class_name(type(module))

def names_of(root):
    found, known, left = [], set(), [((), root)]
    while left:
        path, module = left.pop()
        if address(module) in known:
            continue
        known.add(address(module))
        found.append(('.'.join(path) or own_name(module), module))
        children = children_of(module)
        for name, child in reversed(tuple(dict.items(children))):
            if child is not None:
                left.append((path if name == '_orig_mod' else path + (name,), child))
    return tuple(found)

def name_of(module):
    return ((class_name(type(module)), module),)
";

lifecycle::global! {
    /// torch has not been seen yet.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(by = begins)]
    static WAITS: AtomicBool = AtomicBool::new(false);
}

lifecycle::global! {
    stage: Sinks;

    /// The namespace of [`SOURCE`].
    #[fork(reset)]
    #[restart(reset)]
    static NAMES: Held = Held::none();
}

/// Whether modules are to be marked.
pub fn are_asked_for(settings: &Settings) -> bool {
    settings.nvtx_debug && settings.nvtx || scopes::are_asked_for(settings)
}

/// An interpreter starts, the first or another one.
pub fn begins() {
    WAITS.store(wants::wants().modules, Ordering::Relaxed);
}

/// Whether an audited event may bring torch.
pub fn wants(event: &[u8]) -> bool {
    WAITS.load(Ordering::Relaxed) && matches!(event, b"import" | b"exec")
}

/// Marks what modules are called by, once torch is there.
pub fn look(py: Python<'_>) {
    let Some(code) = called(py) else { return };
    WAITS.store(false, Ordering::Relaxed);
    if marks::are_wanted() || recorder::is_wanted() {
        follow(py, &code, &Modules);
    }
}

/// The code object of `torch.nn.Module.__call__`.
fn called(py: Python<'_>) -> Option<Object<'_>> {
    let module = py.imported(c"torch.nn.modules.module")?;
    let call = module.attr(c"Module")?.attr(c"__call__")?;
    call.attr(c"__code__")
}

struct Modules;

impl Calls for Modules {
    fn enters(&self, py: Python<'_>, first: Option<&Object<'_>>, _: bool) -> Entered {
        let Some(thread) = threads::current() else {
            return Entered::with(None);
        };
        let around = thread.modules.get();
        thread.modules.set(around + 1);
        // A call that is captured is no work yet, but its scope is that of what replays it.
        let is_captured = session::is_capturing() && !scopes::are_on();
        let module = first.filter(|_| !is_captured);
        let name = module.and_then(|module| name(py, module, around == 0));
        Entered::with(name.map(Name::push))
    }

    fn leaves(&self, _: Python<'_>, entered: Entered, _: bool) {
        self.abandons(entered);
    }

    fn abandons(&self, entered: Entered) {
        drop(entered);
        if let Some(thread) = threads::current() {
            thread.modules.set(thread.modules.get().saturating_sub(1));
        }
    }
}

/// What the ranges of `module` are called. One that is called first, and is not known, is a root: it
/// gives those within it their names. One that was put there later is called by its class.
fn name(py: Python<'_>, module: &Object<'_>, is_first: bool) -> Option<Name> {
    let address = module.addr();
    let known = || Some(TABLE.lock_for(PATIENCE)?.get(&address)?.name);
    known().or_else(|| {
        if let Some(name) = compiled::name_of_graph(py, module) {
            learn(py, module, &name)?;
            return known();
        }
        let function = if is_first { c"names_of" } else { c"name_of" };
        let function = names(py)?.item(function)?;
        for pair in call_for_program(py, &function, &[module])?.elements() {
            let mut pair = pair.elements();
            if let (Some(name), Some(module)) = (pair.next(), pair.next()) {
                learn(py, &module, name.as_text()?);
            }
        }
        known()
    })
}

/// The namespace of [`SOURCE`].
pub fn names(py: Python<'_>) -> Option<Object<'_>> {
    NAMES.get(py).or_else(|| {
        let made = py.run(SOURCE, c"<tllmprof>")?;
        NAMES.set(made.clone());
        Some(made)
    })
}

fn learn(py: Python<'_>, module: &Object<'_>, name: &str) -> Option<()> {
    static GOES: MethodDef = MethodDef::bound(c"tllmprof_module_goes", goes);
    let known = Known {
        name: Name::of_range(name)?,
        reference: gone::reference(module, &GOES)?,
    };
    let before = TABLE.lock_for(PATIENCE)?.insert(module.addr(), known);
    drop_known(py, before);
    Some(())
}

/// `goes(address)(weak reference)`: the module that was there is no more.
fn goes(py: Python<'_>, address: &Object<'_>) {
    let remove = |address| TABLE.lock_for(PATIENCE)?.remove(&address);
    drop_known(py, gone::address(address).and_then(remove));
}

fn drop_known(py: Python<'_>, known: Option<Known>) {
    if let Some(known) = known {
        drop(known.reference.take(py));
    }
}
