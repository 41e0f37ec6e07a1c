//! Where the stubs go: the assembler's handlers, for whoever keeps their addresses.
//!
//! The assembler calls the modules that store these addresses, so it hands them down.

/// Code of the assembler that a stub or a trampoline goes to. It keeps to no calling convention.
pub type Handler = unsafe extern "C" fn();

/// The handler that notes a call, and the one that records it as well.
pub type Noting = [Handler; 2];

/// All of them. The assembler says what each does.
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
    /// Where the trampoline of a patched entry goes when its call has to be thought about.
    #[cfg(target_arch = "x86_64")]
    pub named_slow: Handler,
    /// Where the trampoline of a function goes whose calls are scopes.
    #[cfg(target_arch = "x86_64")]
    pub named_scope: Handler,
}

/// The processor's, one element. Collected by the linker, as another library's constructor may use
/// CUDA before this library's own has run.
#[linkme::distributed_slice]
pub static HANDLERS: [Handlers];

/// The handlers.
pub fn handlers() -> &'static Handlers {
    &HANDLERS[0]
}
