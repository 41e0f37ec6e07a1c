//! The addresses of the handlers in assembly code, for the modules that store them in thunks and trampolines.
//!
//! The assembly code calls those modules. To avoid a circular dependency, they do not name the assembly code, which
//! registers its handlers in [`HANDLERS`].

/// Assembly code to which a stub (the replacement of a function) jumps, or that a trampoline (the code to which a
/// patched entry jumps) calls. This code follows no calling convention.
pub(crate) type Handler = unsafe extern "C" fn();

/// Two handlers: the first notes a call in the thread's trail (its recent calls), and the second also records the
/// call.
pub(crate) type Noting = [Handler; 2];

/// The addresses of all handlers. The comments in the assembly code describe each handler.
pub(crate) struct Handlers {
    pub slow: Handler,
    pub count: Handler,
    pub record: Handler,
    pub missing: Handler,
    /// The handler of calls that ask whether GPU work has finished, such as `cuEventQuery`.
    pub query: Handler,
    pub first_argument: Noting,
    pub second_argument: Noting,
    pub graph: Noting,
    pub copy_to_host: Noting,
    pub copy_to_device: Noting,
    pub stream_wait: Noting,
    pub event_wait: Noting,
    pub context_wait: Noting,
    pub blocking_copy: Noting,
    /// The handler for calls past the thread's limit: the number of calls that the thread may count before a Rust
    /// function must run. A trampoline (the code to which a patched entry jumps) calls this handler.
    #[cfg(target_arch = "x86_64")]
    pub named_slow: Handler,
    /// The handler that a trampoline calls if the function's calls are scopes (GPU work is attributed to them).
    #[cfg(target_arch = "x86_64")]
    pub named_scope: Handler,
}

/// The handlers for this processor, as the only element. The linker fills the slice, because no constructor of this
/// library may have run yet when another library's constructor uses CUDA.
#[linkme::distributed_slice]
pub static HANDLERS: [Handlers];

pub(crate) fn handlers() -> &'static Handlers {
    &HANDLERS[0]
}
