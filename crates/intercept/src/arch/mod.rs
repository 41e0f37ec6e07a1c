//! Assembly code of the hooks, and the exported functions that use it.
//!
//! This module calls the other modules of the crate, and only the crate root (`lib.rs`) names it. The other modules
//! reach its handlers through the table [`HANDLERS`], and its stubs by linker symbol.

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod doors;
#[cfg_attr(target_arch = "aarch64", path = "named_aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "named_x86_64.rs")]
mod named;
mod noting;
#[cfg(test)]
mod tests;

use crate::handlers::{HANDLERS, Handlers};

pub(crate) use doors::front_dlsym_door;
pub use doors::{dlsym_door, dlvsym_door, exported};

#[linkme::distributed_slice(HANDLERS)]
static OURS: Handlers = Handlers {
    slow: doors::slow,
    count: doors::count,
    record: doors::record,
    missing: doors::missing,
    query: doors::query,
    first_argument: noting::FIRST_ARGUMENT,
    second_argument: noting::SECOND_ARGUMENT,
    graph: noting::GRAPH,
    copy_to_host: noting::COPY_TO_HOST,
    copy_to_device: noting::COPY_TO_DEVICE,
    stream_wait: noting::STREAM_WAIT,
    event_wait: noting::EVENT_WAIT,
    context_wait: noting::CONTEXT_WAIT,
    blocking_copy: noting::BLOCKING_COPY,
    #[cfg(target_arch = "x86_64")] // x86-64 only: on AArch64 no function entry is patched
    named_slow: named::slow,
    #[cfg(target_arch = "x86_64")]
    named_scope: named::scope,
};

/// Defines exported functions with these names. Only the preloaded library may use this macro: in
/// any other module, the exported symbols would intercept CUDA calls, too.
#[macro_export]
macro_rules! export_functions {
    ($($name:ident)*) => {
        $(
            #[allow(non_snake_case)] // one module for each symbol, with the symbol's name
            mod $name {
                $crate::lifecycle::global! {
                    #[fork(keep = "as the bindings")]
                    pub static EXPORT: $crate::export::Export = $crate::export::Export::new(
                        match core::ffi::CStr::from_bytes_with_nul(
                            concat!(stringify!($name), "\0").as_bytes(),
                        ) {
                            Ok(name) => name,
                            Err(_) => c"",
                        },
                    );
                }
                // SAFETY: the symbol is meant to replace the real one. The stub keeps all arguments and jumps to the
                // real function of the caller.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                unsafe extern "C" fn $name() {
                    $crate::__export_stub!(EXPORT, $crate::arch::exported)
                }
            }
        )*
    };
}
