//! The addresses of the assembler's handlers, for the modules that store them in stubs.
//!
//! The assembler calls these modules. To avoid a circular dependency they do not name the assembler, which registers
//! its handlers here.

/// Code of the assembler that a stub or a trampoline jumps to. It follows no calling convention.
pub(crate) type Handler = unsafe extern "C" fn();

/// Two handlers: the first notes a call in the thread's trail, and the second also records it.
pub(crate) type Noting = [Handler; 2];

/// The addresses of all handlers. The assembler's code documents each.
pub(crate) struct Handlers {
    pub slow: Handler,
    pub count: Handler,
    pub record: Handler,
    pub missing: Handler,
    pub first_argument: Noting,
    pub second_argument: Noting,
    pub graph: Noting,
    pub copy_to_host: Noting,
    pub copy_to_device: Noting,
    pub stream_wait: Noting,
    pub event_wait: Noting,
    pub context_wait: Noting,
    pub blocking_copy: Noting,
    /// Jumped to by a patched entry's trampoline if the call needs a decision.
    #[cfg(target_arch = "x86_64")]
    pub named_slow: Handler,
    /// Jumped to by the trampoline of a function whose calls are scopes (GPU work is attributed to them).
    #[cfg(target_arch = "x86_64")]
    pub named_scope: Handler,
}

/// The handlers for this processor, as the only element. The linker fills the slice, because no constructor of this
/// library may have run yet when another library's constructor uses CUDA.
#[linkme::distributed_slice]
pub static HANDLERS: [Handlers];

/// Returns the addresses of the handlers.
pub(crate) fn handlers() -> &'static Handlers {
    &HANDLERS[0]
}
