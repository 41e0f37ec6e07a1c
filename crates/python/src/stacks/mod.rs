//! Reads the Python stacks of other threads while they run: without the GIL, without a signal and without
//! stopping them.
//!
//! The kernel copies the memory ([`tllmprof_platform::peek`]), so memory that is freed during the read causes no fault.
//! At worst the copy contains garbage, which is recognized and rejected in most cases. When an interpreter starts, the
//! memory offsets for its version ([`layout`]) are checked once on a known stack ([`trial`]).

mod layout;
mod loops;
mod names;
pub mod own;
mod snapshot;
mod threads;
mod trial;
mod walk;

use core::ffi::c_int;
use core::fmt;

use tllmprof_config::Settings;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Published;

use crate::attached;
use crate::object::Python;
use threads::ThreadList;

pub use layout::{Layout, Top, find as find_layout};
pub use loops::{EventLoop, LoopSearch};
pub use names::{CodeNames, OfAddress};
pub use threads::find_thread;
pub use walk::{TAGS, Target, Walked, Walker};

/// The layout and the types that are needed to read an interpreter's stacks, after the layout was
/// checked.
pub struct Ready {
    pub layout: Layout,
    /// The addresses of the Python types `code` and `str`.
    pub(crate) code_type: usize,
    pub(crate) text_type: usize,
    /// Number of bytes from the start of a code object to its instructions, from 3.11 on.
    code_bytes: usize,
    /// True if a thread may read its own Python stack directly, without a copy by the kernel.
    has_own: bool,
    /// The list of the main interpreter's threads; `None` if it cannot be found.
    threads: Option<ThreadList>,
}

/// The reason why Python stacks cannot be read in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The interpreter does not publish the offsets of its stack data.
    NotDescribed,
    /// The check that reads a known stack failed, so this interpreter has another layout.
    OtherStacks,
    /// The kernel refuses to copy the process's own memory.
    Refused(c_int),
}

/// Internals that the crate's tests use.
#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::names::name_of;
    pub(crate) use super::snapshot::Snapshot;
}

const SIZE: &core::ffi::CStr = c"size = type((lambda: 0).__code__).__basicsize__";

lifecycle::global! {
    stage: Sinks;

    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(reset)]
    static READY: Published<Result<Ready, Trouble>> = Published::none();
}

/// Returns true if the settings request sampled stacks.
pub fn are_asked_for(settings: &Settings) -> bool {
    settings.stacks.is_some() && settings.trace.is_some()
}

/// Checks whether stacks of the main interpreter can be read, and stores the result for [`ready`]. Does nothing if a
/// result is stored already.
pub fn install(py: Python<'_>) {
    if READY.get().is_some() {
        return;
    }
    let ready = prepare(py).and_then(|ready| trial::passes(py, ready));
    READY.set(Some(Box::leak(Box::new(ready))));
}

fn prepare(py: Python<'_>) -> Result<Ready, Trouble> {
    let api = py.api;
    Ok(Ready {
        code_bytes: code_bytes(py).ok_or(Trouble::NotDescribed)?,
        has_own: false,
        threads: ThreadList::find(api.version, api.runtime.addr()),
        layout: layout::find(api.version, api.runtime.addr())?,
        code_type: api.code_type.addr(),
        text_type: api.types.text.addr(),
    })
}

fn code_bytes(py: Python<'_>) -> Option<usize> {
    let class = py.run(SIZE, c"<tllmprof>")?.item(c"size")?;
    usize::try_from(class.as_int()?).ok()
}

/// Returns the data for reading the interpreter's stacks, or the reason why they cannot be read.
/// Returns `None` if no interpreter has started yet.
pub fn ready() -> Option<&'static Result<Ready, Trouble>> {
    READY.get()
}

/// Returns the calling thread in the form that [`Walker`] needs, or `None` if it is not a Python thread. This
/// function neither waits nor allocates.
pub fn here() -> Option<Target> {
    let api = attached::api()?;
    let state = api.state_of_thread().addr();
    (state != 0).then(|| Target {
        state,
        // SAFETY: `pthread_self` may be called at any time.
        id: unsafe { libc::pthread_self() } as usize,
    })
}

/// Formats the reason like `the stacks of Python 3.12.1 are not as expected`.
impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = attached::api().map_or("", |api| api.version_text);
        match self {
            Self::NotDescribed => write!(f, "Python {version} does not describe its stacks"),
            Self::OtherStacks => write!(f, "the stacks of Python {version} are not as expected"),
            Self::Refused(error) => {
                let error = std::io::Error::from_raw_os_error(*error);
                write!(f, "process_vm_readv on the process itself: {error}")
            }
        }
    }
}
