//! The functions that the library exports. No other binary of the workspace may define functions with these names: a
//! command or a test would then intercept its own calls.

use core::arch::{global_asm, naked_asm};
use core::ffi::{c_int, c_void};

use tllmprof_intercept::nvtx;

macro_rules! cuda_functions {
    (
        [$($look_up:ident)*]
        [$($cupti:ident = $($cupti_name:ident)*;)*]
        [$($nccl:ident = $($nccl_name:ident)*;)*]
        $($call:ident = $kind:expr, [$($driver:ident)*] [$($runtime:ident)*] $row:tt;)*
    ) => {
        tllmprof_intercept::export_functions!(
            $($look_up)* $($($cupti_name)*)* $($($nccl_name)*)* $($($driver)* $($runtime)*)*
        );
    };
}
tllmprof_calls::cuda_calls!(cuda_functions);

/// Defines a hook for a function whose replacement (`$door`) examines the return address, which shows who has called
/// the function. The hook jumps to the replacement and does not call it, so that the return address stays that of the
/// caller.
macro_rules! look_up {
    ($name:ident, $door:path) => {
        // SAFETY: the symbol is meant to replace libc's function, and jumps to the replacement.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!("jmp {door}", door = sym $door);
            #[cfg(target_arch = "aarch64")]
            naked_asm!("hint #34", "b {door}", door = sym $door);
        }
    };
}
look_up!(dlsym, tllmprof_intercept::dlsym_door);
look_up!(dlvsym, tllmprof_intercept::dlvsym_door);

/// # Safety
/// Only NVTX may call this, as `nvtxInit.h` describes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn InitializeInjectionNvtx2(export: nvtx::GetExportTable) -> c_int {
    // No panic: `initialize` catches panics of our own code; the rest is the code of another NVTX tool.
    // SAFETY: NVTX is the caller, so `export` is its function, which stays valid for the life of the process.
    unsafe { nvtx::initialize(export) }
}

/// # Safety
/// Only NVTX may call this, as `nvtxExtInit.h` describes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn InitializeInjectionNvtxExtension(module: *mut c_void) -> c_int {
    // No panic: `initialize_extension` catches panics of our own code; the rest is the code of another NVTX tool.
    // SAFETY: NVTX is the caller, so `module` describes one of its extensions, with the layout of `nvtxExtInit.h`.
    unsafe { nvtx::initialize_extension(module) }
}

/// Keeps the symbols for the bounds of `linkme`'s sections from being exported. This works with any linker, because a
/// hidden reference makes the symbol hidden.
macro_rules! hide_slices {
    ($($name:literal)*) => {
        $(hide_slices!(@ "__start_linkme_" $name);
        hide_slices!(@ "__stop_linkme_" $name);
        hide_slices!(@ "__start_linkm2_" $name);
        hide_slices!(@ "__stop_linkm2_" $name);)*
    };
    (@ $bound:literal $name:literal) => {
        global_asm!(
            ".pushsection .tllmprof.bounds,\"\",@progbits",
            concat!(".weak ", $bound, $name),
            concat!(".hidden ", $bound, $name),
            concat!(".quad ", $bound, $name),
            ".popsection",
        );
    };
}
hide_slices!("HOOKS" "WIRING" "NEEDS" "ADD_ONS" "EXTENSION" "HANDLERS");
