//! The `doctor` section on CUDA: how a program reaches the driver, and where the program's calls are intercepted.

use super::finding::Section;
use super::search::{Closure, Loaded};

const DRIVER: &str = "libcuda.so";
const RUNTIME: &str = "libcudart.so";

/// Adds findings to `section` on how the program reaches CUDA. They are based on the libraries that the program loads.
pub(crate) fn describe(section: &mut Section, closure: &Closure) {
    let runtime = closure.find(RUNTIME);
    if let Some(runtime) = runtime {
        section.good(format_args!(
            "{} is {}: seen by the runtime's exported names, and below them by dlsym and \
             cuGetProcAddress",
            runtime.name,
            runtime.path.display()
        ));
    }
    let driver = closure.find(DRIVER);
    if let Some(driver) = driver {
        section.good(format_args!(
            "{} is {}: seen by the driver's exported names and cuGetProcAddress",
            driver.name,
            driver.path.display()
        ));
    }
    let with_static: Vec<_> = closure
        .loaded
        .iter()
        .filter(|l| asks_the_driver(l))
        .collect();
    for Loaded { name, elf, .. } in &with_static {
        if elf.has_cuda_symbols {
            section.good(format_args!(
                "{name} has a static CUDA runtime, which looks the driver up: seen by dlsym and \
                 cuGetProcAddress"
            ));
        } else {
            section.good(format_args!(
                "{name} asks libcuda.so.1 for its functions by name, as a static CUDA runtime \
                 does: seen by dlsym and cuGetProcAddress"
            ));
        }
    }
    for (name, by) in &closure.missing {
        if name.starts_with(RUNTIME) || name.starts_with(DRIVER) {
            section.note(format_args!(
                "{by} needs {name}, which is not found here: the program starts only where it is"
            ));
        }
    }
    let missing = closure
        .missing
        .iter()
        .any(|(name, _)| name.starts_with("libcuda"));
    if runtime.is_none() && driver.is_none() && with_static.is_empty() && !missing {
        section.note(
            "no CUDA library is linked; one that is opened later (dlopen, Python modules, plugins) \
             is seen by dlsym, cuGetProcAddress and the exported names",
        );
    }
    section.note(
        "a library opened with RTLD_DEEPBIND passes the exported names by; no file shows whether \
         that happens",
    );
}

/// Returns true if a module looks as if it contained a statically linked CUDA runtime. Such a runtime opens
/// `libcuda.so.1` and gets the driver's functions from `cuGetProcAddress`, so it contains both names as strings.
fn asks_the_driver(loaded: &Loaded) -> bool {
    const STRINGS: [&str; 2] = ["libcuda.so.1", "cuGetProcAddress"];
    !loaded.name.starts_with("libcuda")
        && (loaded.elf.has_cuda_symbols
            || loaded
                .elf
                .has_strings(&loaded.path, &STRINGS)
                .unwrap_or(false))
}
