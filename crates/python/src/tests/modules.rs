//! Tests NVTX ranges for torch modules, with a stand-in for torch.

use tllmprof_recorder as recorder;
use tllmprof_session::activity::settings;

use super::hosted::in_few;
use crate::later::call_for_program;
use crate::object::Object;
use crate::threads;
use crate::torch::known::TABLE;
use crate::torch::modules::{names, wants};

/// Python source of a stand-in for torch with the parts that the library uses, and of a model with
/// two layers.
const TORCH: &str = "
import sys, types
class Module:
    def __init__(self, **modules): self._modules = modules
    def __call__(self): return [child() for child in self._modules.values() if child]
torch = types.ModuleType('torch')
for name in ('torch', 'torch.nn', 'torch.nn.modules', 'torch.nn.modules.module'):
    sys.modules[name] = types.ModuleType(name)
sys.modules['torch.nn.modules.module'].Module = Module
class Linear(Module): pass
class Model(Module): pass
model = Model(first=Linear(), second=None, _orig_mod=Model(inner=Linear()))
exec('1')
";

fn known() -> usize {
    TABLE.lock().len()
}

#[test]
fn the_first_module_that_is_called_names_those_within_it() {
    in_few(
        &[("TLLM_NVTX_DEBUG", "1"), ("TLLMPROF_TRACE", "record")],
        |host| {
            recorder::start(settings().unwrap()); // so that ranges are recorded
            host.run("exec('1')");
            assert!(wants(b"import") && wants(b"exec") && !wants(b"open"));
            host.run(TORCH);
            assert!(!wants(b"import"));
            host.run("model()");
            assert_eq!(known(), 4);
            host.run("model(); model._modules['later'] = Linear(); model()");
            assert_eq!(known(), 5);
            assert_eq!(threads::known().unwrap().modules.get(), 0);
            // Modules that have been freed are removed from the table of known modules.
            host.run("del model._modules['later']");
            assert_eq!(known(), 4);
            host.run("del model");
            assert_eq!(known(), 0);
            host.end();
        },
    );
}

#[test]
fn names_are_the_paths_to_modules() {
    in_few(&[], |host| {
        host.run(TORCH);
        host.with(|py| {
            let names = names(py).unwrap();
            let main = py.imported(c"__main__").unwrap();
            let model = main.attr(c"model").unwrap();
            let found = |function| -> Vec<String> {
                let function = names.item(function).unwrap();
                let pairs = call_for_program(py, &function, &[&model]).unwrap();
                let name = |pair: Object<'_>| Some(pair.at(0)?.as_text()?.to_owned());
                pairs.elements().filter_map(name).collect()
            };
            assert_eq!(found(c"names_of"), ["Model", "first", "Model", "inner"]);
            assert_eq!(found(c"name_of"), ["Model"]);
        });
    });
}
