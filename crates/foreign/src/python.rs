//! Finds the calls of a Python function among the ranges of a trace.

use tllmprof_config::PyFunction;

use crate::RangeSource;

/// Returns true if a range is a call of the Python function.
///
/// The PyTorch profiler names a call `PATH(LINE): NAME`, without the class. NVTX ranges of Python
/// functions have the qualified name, with or without the module.
pub(crate) fn is_call_of(function: &PyFunction, source: RangeSource, name: &str) -> bool {
    let PyFunction { module, qualname } = function;
    match source {
        RangeSource::Python => named_by_file(name).is_some_and(|(path, short)| {
            let last = qualname.rsplit('.').next().unwrap_or(qualname);
            short == last && is_module(path, module)
        }),
        RangeSource::Nvtx | RangeSource::Annotation => {
            let rest = name.strip_prefix(module.as_str());
            let rest = rest.and_then(|rest| rest.strip_prefix(['.', ':']));
            name == qualname || rest == Some(qualname)
        }
    }
}

/// Returns the file and the function from a name of the form `PATH(LINE): NAME`.
fn named_by_file(name: &str) -> Option<(&str, &str)> {
    let (place, function) = name.split_once("): ")?;
    let (path, line) = place.rsplit_once('(')?;
    line.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some((path, function))
}

/// Returns true if the end of a file's path matches the name of a Python module.
fn is_module(path: &str, module: &str) -> bool {
    let Some(path) = path.strip_suffix(".py") else {
        return false;
    };
    let path = path.strip_suffix("/__init__").unwrap_or(path);
    let mut parts = path.rsplit('/');
    module.rsplit('.').all(|part| parts.next() == Some(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_file_or_by_name() {
        let function = PyFunction::parse("vllm.v1.engine.core:EngineCore.step").unwrap();
        let by = |source, name| is_call_of(&function, source, name);
        assert!(by(RangeSource::Python, "vllm/v1/engine/core.py(341): step"));
        assert!(by(
            RangeSource::Python,
            "/usr/lib/vllm/v1/engine/core.py(341): step"
        ));
        assert!(!by(RangeSource::Python, "engine/core.py(341): step"));
        assert!(!by(
            RangeSource::Python,
            "vllm/v1/engine/core.py(3): step_all"
        ));
        assert!(!by(RangeSource::Python, "<built-in method step of x>"));
        assert!(by(RangeSource::Nvtx, "EngineCore.step"));
        assert!(by(RangeSource::Nvtx, "vllm.v1.engine.core:EngineCore.step"));
        assert!(by(
            RangeSource::Annotation,
            "vllm.v1.engine.core.EngineCore.step"
        ));
        assert!(!by(RangeSource::Nvtx, "step"));
    }
}
