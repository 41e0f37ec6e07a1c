//! Ranges for torch modules, named by their qualified names (`TLLM_NVTX_DEBUG`). The same names are
//! used as scopes of layers (`TLLMPROF_LAYERS`).
//!
//! All modules are called through the same code object. Only this code object is marked, so no
//! module is changed. Compiled code and replayed CUDA graphs do not run this code object, so they
//! have no ranges.

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
use crate::spans::{CallReceiver, Entered};
use crate::threads;
use crate::wants;
use tllmprof_capture::marks;
use tllmprof_capture::marks::RegisteredName;
use tllmprof_recorder as recorder;
use tllmprof_scopes as scopes;
use tllmprof_session as session;

/// Python functions that return the names of modules. A module's qualified name is its path from
/// the root, which is the module that is called first. The wrapper that `torch.compile` adds is not
/// part of the path.
///
/// The functions do the work of `named_modules`, which a class may have overridden. They run no
/// code of the program. Any exception therefore comes from a signal handler.
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
    /// True until torch has been imported and the function that calls its modules is marked.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(by = begins)]
    static WAITS: AtomicBool = AtomicBool::new(false);
}

lifecycle::global! {
    stage: Sinks;

    /// The Python namespace in which [`SOURCE`] was run; empty before that.
    #[fork(reset)]
    #[restart(reset)]
    static NAMES: Held = Held::none();
}

/// Returns true if the settings request ranges or scopes for modules.
pub(crate) fn are_asked_for(settings: &Settings) -> bool {
    settings.nvtx_debug && settings.nvtx || scopes::are_asked_for(settings)
}

/// Called when an interpreter starts. If ranges or scopes for modules are requested, the import of torch is awaited
/// from then on.
pub(crate) fn begins() {
    WAITS.store(wants::wants().modules, Ordering::Relaxed);
}

/// Returns true if an audit event may mean that torch is being imported.
pub(crate) fn wants(event: &[u8]) -> bool {
    WAITS.load(Ordering::Relaxed) && matches!(event, b"import" | b"exec")
}

/// Marks the Python function through which torch calls all modules, if torch is loaded.
pub(crate) fn look(py: Python<'_>) {
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

impl CallReceiver for ModuleCalls {
    fn enters(&self, py: Python<'_>, first: Option<&Object<'_>>, _: bool) -> Entered {
        let Some(thread) = threads::current() else {
            return Entered::with(None);
        };
        let around = thread.modules.get();
        thread.modules.set(around + 1);
        // A call during stream capture launches nothing yet, so it gets no range. If scopes are recorded, the call
        // still gets a name, because the scope applies whenever the graph is replayed.
        let is_captured = session::is_capturing() && !scopes::are_on();
        let module = first.filter(|_| !is_captured);
        let name = module.and_then(|module| name(py, module, around == 0));
        Entered::with(name.map(RegisteredName::push))
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

/// Returns the name for a module's ranges. An unknown module that is called outside all others becomes a root, and
/// the modules inside it are named by their paths from the root. A module that is added to the root later is named
/// after its class.
fn name(py: Python<'_>, module: &Object<'_>, is_first: bool) -> Option<RegisteredName> {
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

/// Returns the namespace in which [`SOURCE`] was run. The first call runs it.
pub(crate) fn names(py: Python<'_>) -> Option<Object<'_>> {
    NAMES.get(py).or_else(|| {
        let made = py.run(SOURCE, c"<tllmprof>")?;
        NAMES.set(made.clone());
        Some(made)
    })
}

fn learn(py: Python<'_>, module: &Object<'_>, name: &str) -> Option<()> {
    static GOES: MethodDef = MethodDef::bound(c"tllmprof_module_goes", goes);
    let known = KnownModule {
        name: RegisteredName::of_range(name)?,
        reference: gone::reference(module, &GOES)?,
    };
    let before = TABLE.lock_for(TABLE_TIMEOUT)?.insert(module.addr(), known);
    drop_known(py, before);
    Some(())
}

/// Removes from [`TABLE`] a module that was freed. Python calls this function for the module's weak reference;
/// `address` is the module's former address.
fn goes(py: Python<'_>, address: &Object<'_>) {
    let remove = |address| TABLE.lock_for(TABLE_TIMEOUT)?.remove(&address);
    drop_known(py, gone::address(address).and_then(remove));
}

fn drop_known(py: Python<'_>, known: Option<KnownModule>) {
    if let Some(known) = known {
        drop(known.reference.take(py));
    }
}
