//! The addresses of the assembler's handlers, for the modules that store them in stubs.
//!
//! The assembler calls these modules, so they cannot name it; it registers its handlers here.

/// Code of the assembler that a stub or a trampoline jumps to. It follows no calling convention.
pub type Handler = unsafe extern "C" fn();

/// The handler that notes a call, and the one that also records it.
pub type Noting = [Handler; 2];

/// All handlers. The assembler documents what each does.
pub struct Handlers {
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
    /// Target of a patched entry's trampoline if the call needs a decision.
    #[cfg(target_arch = "x86_64")]
    pub named_slow: Handler,
    /// Target of the trampoline of a function whose calls are scopes.
    #[cfg(target_arch = "x86_64")]
    pub named_scope: Handler,
}

/// The processor's handlers, one element. The linker collects it, because another library's constructor may use CUDA
/// before this library's own has run.
#[linkme::distributed_slice]
pub static HANDLERS: [Handlers];

/// Returns the handlers.
pub fn handlers() -> &'static Handlers {
    &HANDLERS[0]
}
