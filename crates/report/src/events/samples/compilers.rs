//! Compilers of GPU code, which are recognized by the functions on sampled stacks and by the names of child processes.

use tllmprof_engines::{PythonFunction, installed_package};

use super::frames::Frames;
use super::function::{Function, Origin};

/// A compiler of GPU code.
#[derive(Debug)]
pub(crate) struct Compiler {
    /// The compiler and what it does, as a sentence such as `NVRTC compiles`.
    pub activity: &'static str,
    /// Words for the code that the program calls, in sentences such as `torch.compile's code is called by f`.
    pub code: &'static str,
    /// Python functions that compile: the end of the path of their file, and their qualified names. A function that is
    /// defined inside one of these counts, too. Other functions in these files are not listed, because they also run
    /// when nothing is compiled.
    python: &'static [(&'static str, &'static [&'static str])],
    /// Beginnings of the names of native functions that compile.
    native: &'static [&'static str],
    /// Beginnings of the names of libraries that contain only the compiler.
    modules: &'static [&'static str],
}

static COMPILERS: [Compiler; 8] = [
    Compiler {
        activity: "torch.compile compiles",
        code: "torch.compile's code",
        python: &[
            ("/torch/_dynamo/convert_frame.py", &["_compile"]),
            (
                "/torch/_inductor/compile_fx.py",
                &[
                    "compile_fx",
                    "compile_fx_inner",
                    "_compile_fx_inner",
                    "fx_codegen_and_compile",
                ],
            ),
        ],
        native: &[],
        modules: &[],
    },
    Compiler {
        activity: "Triton compiles",
        code: "Triton",
        python: &[
            ("/triton/compiler/compiler.py", &["compile"]),
            ("/triton/runtime/jit.py", &["JITFunction._do_compile"]),
        ],
        native: &[],
        modules: &[],
    },
    Compiler {
        activity: "CuPy (NVRTC) compiles",
        code: "CuPy's compiler",
        python: &[(
            "/cupy/cuda/compiler.py",
            &[
                "_compile_module_with_cache",
                "_compile_with_cache_cuda",
                "compile_using_nvrtc",
                "compile_using_nvcc",
            ],
        )],
        native: &[],
        modules: &[],
    },
    Compiler {
        activity: "Numba compiles",
        code: "Numba's code",
        python: &[("/numba/cuda/dispatcher.py", &["CUDADispatcher.compile"])],
        native: &[],
        modules: &[],
    },
    Compiler {
        activity: "XLA compiles",
        code: "the function that XLA compiles",
        python: &[
            (
                "/jax/_src/compiler.py",
                &[
                    "backend_compile",
                    "backend_compile_and_load",
                    "compile_or_get_cached",
                ],
            ),
            ("/jax/_src/interpreters/pxla.py", &["_cached_compilation"]),
            ("/jax/_src/interpreters/mlir.py", &["lower_jaxpr_to_module"]),
        ],
        native: &[],
        modules: &[],
    },
    // cuDNN builds an execution plan for each new shape, and compiles its code by NVRTC.
    Compiler {
        activity: "cuDNN builds execution plans",
        code: "cuDNN",
        python: &[],
        native: &[
            "cudnnBackendFinalize",
            "cudnn_frontend::ExecutionPlanBuilder",
        ],
        modules: &[],
    },
    Compiler {
        activity: "NVRTC compiles",
        code: "NVRTC",
        python: &[],
        native: &["nvrtcCompileProgram"],
        modules: &["libnvrtc"],
    },
    Compiler {
        activity: "the PTX compiler compiles",
        code: "the PTX compiler",
        python: &[],
        native: &["nvPTXCompilerCompile", "nvJitLinkComplete"],
        modules: &["libnvJitLink", "libnvptxcompiler"],
    },
];

/// The compilers that run as child processes.
const PROCESSES: [&str; 6] = ["ptxas", "nvcc", "cicc", "cudafe++", "nvlink", "fatbinary"];

/// Packages that contain a compiler. Their functions are not named as callers of a compiler.
const PACKAGES: [&str; 5] = ["torch", "triton", "cupy", "jax", "numba"];

/// A stack that lies in a compiler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompilerStack {
    pub compiler: &'static Compiler,
    /// The innermost function of the program that leads to the compiler, as an index in [`Frames::functions`]. For
    /// Python stacks without such a function, it is the innermost function of an installed package that is not part of
    /// a compiler, or the top level of a module.
    pub caller: Option<u32>,
}

impl CompilerStack {
    /// Returns the stack whose innermost frame is `frame` and which lies in a compiler; `None` if the stack does not
    /// lie in one. `is_native` is true for a native stack. If a compiler calls another one, the result is about the
    /// outer one.
    pub(crate) fn find(frames: &Frames, frame: u32, is_native: bool) -> Option<Self> {
        let stack = frames.stack(frame);
        let compiler_of = |place: &u32| {
            let function = frames.functions.get(*place as usize)?;
            COMPILERS.iter().find(|compiler| match is_native {
                true => compiler.has_native(function),
                false => compiler.has_python(&function.name),
            })
        };
        let found = stack
            .iter()
            .enumerate()
            .find_map(|(depth, place)| Some((depth, compiler_of(place)?)));
        let (depth, compiler) = found?;
        let outside = &stack[..depth];
        let caller = match is_native {
            true => native_caller(frames, outside),
            false => caller(frames, outside),
        };
        Some(Self { compiler, caller })
    }
}

/// Returns true if a Python function is part of a package that contains a compiler. The folder around installed packages
/// may have the name of such a package, too, so only what follows it counts.
pub(crate) fn is_of_compiler(function: &Function) -> bool {
    match installed_package(&function.name) {
        Some(package) => PACKAGES.contains(&package),
        None => function
            .name
            .split('/')
            .any(|part| PACKAGES.contains(&part)),
    }
}

/// Returns the innermost function of the program among the Python functions `outside`, which are in the order of the
/// stack. If there is none, returns the innermost function of an installed package that is not part of a compiler, or
/// the top level of a module.
fn caller(frames: &Frames, outside: &[u32]) -> Option<u32> {
    let is_one = |place: &&u32, is_wanted: fn(&Function) -> bool| {
        let function = frames.functions.get(**place as usize);
        function.is_some_and(|function| !is_of_compiler(function) && is_wanted(function))
    };
    let is_of_package = |function: &Function| function.origin == Origin::Program;
    let inward = || outside.iter().rev();
    let own = inward().find(|place| is_one(place, Function::is_own));
    let found = own.or_else(|| inward().find(|place| is_one(place, is_of_package)));
    found.copied()
}

/// Returns the innermost native function of the program among the functions `outside`, which are in the order of the
/// stack. Functions of libraries, and functions whose names are not known, are left out.
fn native_caller(frames: &Frames, outside: &[u32]) -> Option<u32> {
    let is_named = |place: &&u32| {
        let function = frames.functions.get(**place as usize);
        frames.is_own_native(**place) && function.is_some_and(|it| !it.name.contains("+0x"))
    };
    outside.iter().rev().find(is_named).copied()
}

impl Compiler {
    /// Returns true if a Python function compiles. `name` has the form `QUALNAME (FILE:LINE)`.
    fn has_python(&self, name: &str) -> bool {
        let Some(PythonFunction {
            qualified, file, ..
        }) = PythonFunction::parse(name)
        else {
            return false;
        };
        let outer = qualified.split(".<locals>").next().unwrap_or(qualified);
        // Before Python 3.11, recorded function names do not include the class.
        let is_it = |known: &&str| {
            *known == outer || !outer.contains('.') && known.rsplit('.').next() == Some(outer)
        };
        let mut known = self.python.iter();
        known.any(|(end, names)| file.ends_with(end) && names.iter().any(is_it))
    }

    /// Returns true if a native function compiles, or if it has no name and its module contains only the compiler.
    fn has_native(&self, function: &Function) -> bool {
        let name = function.name.split(['@', '(']).next().unwrap_or_default();
        let is_of_module = |module: &&str| function.label.starts_with(*module);
        self.native.iter().any(|begin| name.starts_with(begin))
            || function.name.contains("+0x") && self.modules.iter().any(is_of_module)
    }
}

/// Returns true if a thread that sleeps with this cause waits for a child process that compiles. `cause` is the text of
/// [`super::sleep::Sleep::cause`].
pub(crate) fn has_compiler_process(cause: &str) -> bool {
    let Some(names) = cause.strip_prefix("waiting for child process") else {
        return false;
    };
    let names = names.split_once(" in ").map_or(names, |(names, _)| names);
    names.split(' ').any(|name| PROCESSES.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the activity of the compiler that has the Python function `name`; empty if there is none.
    fn python(name: &str) -> &'static str {
        let mut compilers = COMPILERS.iter();
        let found = compilers.find(|compiler| compiler.has_python(name));
        found.map_or("", |compiler| compiler.activity)
    }

    #[test]
    fn only_python_functions_that_compile_count() {
        let torch = "/x/site-packages/torch";
        for name in [
            "_compile (TORCH/_dynamo/convert_frame.py:1690)",
            "_compile.<locals>.compile_inner (TORCH/_dynamo/convert_frame.py:800)",
            "fx_codegen_and_compile (TORCH/_inductor/compile_fx.py:2127)",
            "compile_fx.<locals>.fw_compiler_base (TORCH/_inductor/compile_fx.py:9)",
        ] {
            assert_eq!(
                python(&name.replace("TORCH", torch)),
                "torch.compile compiles",
                "{name}"
            );
        }
        let triton = "JITFunction._do_compile (/x/site-packages/triton/runtime/jit.py:826)";
        assert_eq!(python(triton), "Triton compiles");
        // Before Python 3.11, recorded function names do not include the class.
        let old = "_do_compile (/x/site-packages/triton/runtime/jit.py:440)";
        assert_eq!(python(old), "Triton compiles");
        let jax = "backend_compile_and_load (/x/site-packages/jax/_src/compiler.py:334)";
        assert_eq!(python(jax), "XLA compiles");
        // These functions run in each step, only check if code has to be compiled, or are not in a compiler's files.
        for name in [
            "cudagraphify.<locals>.run (TORCH/_inductor/compile_fx.py:2288)",
            "CatchErrorsWrapper.__call__ (TORCH/_dynamo/convert_frame.py:1500)",
            "_TorchDynamoContext.__call__.<locals>._fn (TORCH/_dynamo/eval_frame.py:400)",
            "JITFunction.run (/x/site-packages/triton/runtime/jit.py:695)",
            "_compile (/srv/model.py:3)",
            "_compile",
        ] {
            assert_eq!(python(&name.replace("TORCH", torch)), "", "{name}");
        }
    }

    #[test]
    fn a_native_compiler_is_known_by_its_function_or_its_library() {
        let native = |name: &str, label: &str| {
            let function = Function {
                name: name.to_owned(),
                label: label.to_owned(),
                origin: Origin::Program,
            };
            let mut compilers = COMPILERS.iter();
            let found = compilers.find(|compiler| compiler.has_native(&function));
            found.map_or("", |compiler| compiler.activity)
        };
        let named = "nvrtcCompileProgram";
        assert_eq!(native(named, named), "NVRTC compiles");
        let unnamed = "/x/libnvrtc.so.13+0x67d308";
        assert_eq!(native(unnamed, "libnvrtc.so.13+0x67d308"), "NVRTC compiles");
        let build = "cudnn_frontend::ExecutionPlanBuilder_v8::build()";
        assert_eq!(native(build, build), "cuDNN builds execution plans");
        assert_eq!(native("cudnnBackendExecute", "cudnnBackendExecute"), "");
        assert_eq!(native("nvrtcVersion", "nvrtcVersion"), "");
        assert_eq!(native("/x/libmodel.so+0x10", "libmodel.so+0x10"), "");
    }

    #[test]
    fn the_folder_around_installed_packages_does_not_count() {
        let is_one = |path: &str| {
            is_of_compiler(&Function {
                name: format!("forward ({path}:79)"),
                label: String::new(),
                origin: Origin::Program,
            })
        };
        let site = "/opt/torch/.venv/lib/python3.12/site-packages";
        assert!(is_one(&format!("{site}/torch/nn/functional.py")));
        assert!(!is_one(&format!(
            "{site}/transformers/integrations/sdpa.py"
        )));
        assert!(is_one("/home/a/pytorch/torch/nn/functional.py"));
        assert!(!is_one("/srv/model/layers.py"));
    }

    #[test]
    fn a_child_process_is_a_compiler_by_its_name() {
        for cause in [
            "waiting for child process ptxas in make_cubin (compiler.py:461): wait4",
            "waiting for child processes sh and nvcc in build: system",
        ] {
            assert!(has_compiler_process(cause), "{cause}");
        }
        for cause in [
            "waiting for child process gzip in load_ptxas (a.py:1): wait4",
            "waiting for a child process in step (a.py:1): system",
            "asleep in ptxas: nanosleep",
        ] {
            assert!(!has_compiler_process(cause), "{cause}");
        }
    }
}
