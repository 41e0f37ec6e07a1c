//! Ranges for torch modules by their qualified names (`TLLM_NVTX_DEBUG`), which are the scopes of layers
//! (`TLLMPROF_LAYERS`).
//!
//! The mark is on the one code object that every call of a module runs, so no module is changed. Code that
//! torch has compiled runs other code objects, and a replayed stream runs none: neither has ranges.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_config::Settings;
use tllmprof_platform::lifecycle;

use super::known::{KnownModule, TABLE, TABLE_TIMEOUT};
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

/// Python functions that return the names of modules. A module's qualified name is the path to it from the
/// module that is called first. The wrapper of `torch.compile` is not part of the path.
///
/// They do the work of `named_modules`, which a class may have overridden. No code of the program runs here,
/// so any exception comes from a signal handler.
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
    /// True until torch is seen.
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

/// Returns true if modules are to be marked.
pub fn are_asked_for(settings: &Settings) -> bool {
    settings.nvtx_debug && settings.nvtx || scopes::are_asked_for(settings)
}

/// Handles the start of an interpreter.
pub fn begins() {
    WAITS.store(wants::wants().modules, Ordering::Relaxed);
}

/// Returns true if an audited event may bring torch.
pub fn wants(event: &[u8]) -> bool {
    WAITS.load(Ordering::Relaxed) && matches!(event, b"import" | b"exec")
}

/// Marks the function that calls modules, once torch is loaded.
pub fn look(py: Python<'_>) {
    let Some(code) = called(py) else { return };
    WAITS.store(false, Ordering::Relaxed);
    if marks::are_wanted() || recorder::is_wanted() {
        follow(py, &code, &ModuleCalls);
    }
}

/// Returns the code object of `torch.nn.Module.__call__`.
fn called(py: Python<'_>) -> Option<Object<'_>> {
    let module = py.imported(c"torch.nn.modules.module")?;
    let call = module.attr(c"Module")?.attr(c"__call__")?;
    call.attr(c"__code__")
}

struct ModuleCalls;

impl Calls for ModuleCalls {
    fn enters(&self, py: Python<'_>, first: Option<&Object<'_>>, _: bool) -> Entered {
        let Some(thread) = threads::current() else {
            return Entered::with(None);
        };
        let around = thread.modules.get();
        thread.modules.set(around + 1);
        // A captured call does no work yet, but its scope applies to the replay.
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

/// Returns the name of a module's ranges. An unknown module that is called first is a root, and gives names
/// to the modules within it. A module that was added later is named by its class.
fn name(py: Python<'_>, module: &Object<'_>, is_first: bool) -> Option<Name> {
    let address = module.addr();
    let known = || Some(TABLE.lock_for(TABLE_TIMEOUT)?.get(&address)?.name);
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
    let known = KnownModule {
        name: Name::of_range(name)?,
        reference: gone::reference(module, &GOES)?,
    };
    let before = TABLE.lock_for(TABLE_TIMEOUT)?.insert(module.addr(), known);
    drop_known(py, before);
    Some(())
}

/// Handles `goes(address)(weak reference)`: the module with this address was freed.
fn goes(py: Python<'_>, address: &Object<'_>) {
    let remove = |address| TABLE.lock_for(TABLE_TIMEOUT)?.remove(&address);
    drop_known(py, gone::address(address).and_then(remove));
}

fn drop_known(py: Python<'_>, known: Option<KnownModule>) {
    if let Some(known) = known {
        drop(known.reference.take(py));
    }
}
