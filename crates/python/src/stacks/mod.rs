//! Reads the Python stacks of other threads while they run: without the GIL, without a signal and without
//! stopping them.
//!
//! The kernel copies the memory ([`tllmprof_platform::peek`]), so memory that is freed during the read gives
//! garbage at worst, and garbage is rejected. The offsets of each version ([`layout`]) are checked once on a
//! known stack ([`trial`]), when an interpreter starts.

mod layout;
mod names;
pub mod own;
mod snapshot;
mod trial;
mod walk;

use core::ffi::c_int;
use core::fmt;

use tllmprof_config::Settings;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Published;

use crate::attached;
use crate::object::Python;

pub use layout::{Layout, Top, find as find_layout};
pub use names::{Names, OfAddress};
pub use walk::{TAGS, Target, Walked, Walker};

/// The data for reading an interpreter's stacks.
pub struct Ready {
    pub layout: Layout,
    /// The addresses of the types of code objects and of texts.
    pub(crate) code_type: usize,
    pub(crate) text_type: usize,
    /// Number of bytes of a code object before its instructions, from 3.11 on.
    code_bytes: usize,
    /// True if a thread may read its own stack without a copy.
    has_own: bool,
}

/// The reason why no stacks are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The interpreter does not publish its offsets.
    NotDescribed,
    /// A known stack was read differently.
    OtherStacks,
    /// The kernel refuses to copy the process's own memory.
    Refused(c_int),
}

/// Internals that tests use.
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

/// Returns true if stacks are to be sampled.
pub fn are_asked_for(settings: &Settings) -> bool {
    settings.stacks.is_some() && settings.trace.is_some()
}

/// Checks that stacks of the main interpreter can be read, once.
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
        layout: layout::find(api.version, api.runtime.addr())?,
        code_type: api.code_type.addr(),
        text_type: api.types.text.addr(),
    })
}

fn code_bytes(py: Python<'_>) -> Option<usize> {
    let class = py.run(SIZE, c"<tllmprof>")?.item(c"size")?;
    usize::try_from(class.as_int()?).ok()
}

/// Returns the interpreter whose stacks can be read, or the reason why they cannot; `None` if there is no
/// interpreter yet.
pub fn ready() -> Option<&'static Result<Ready, Trouble>> {
    READY.get()
}

/// Returns the calling thread as one whose stack can be read, or `None` if it is not one of Python's. It
/// neither waits nor allocates.
pub fn here() -> Option<Target> {
    let api = attached::api()?;
    let state = api.state_of_thread().addr();
    (state != 0).then(|| Target {
        state,
        // SAFETY: the function has no arguments and no conditions.
        id: unsafe { libc::pthread_self() } as usize,
    })
}

/// Formats it like `the stacks of Python 3.12.1 are not as expected`.
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
