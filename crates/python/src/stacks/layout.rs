//! Finds the memory layout of the running interpreter's Python stacks. The crate [`tllmprof_cpython`] has the layouts
//! of all supported versions.

use tllmprof_platform::ids;
use tllmprof_platform::peek::{self, MemoryRange};

pub(crate) use tllmprof_cpython::{Instruction, Life, chunk, owner};
pub use tllmprof_cpython::{Layout, Top};
use tllmprof_cpython::{ThreadsLayout, WORDS};

use super::Trouble;
use crate::version::Version;

/// Returns the layout for a version of CPython, or the reason why the layout is not known. `runtime` is the
/// address of its `_PyRuntime`, which describes the layout in newer versions.
pub fn find(version: Version, runtime: usize) -> Result<Layout, Trouble> {
    let mut refused = None;
    let layout = Layout::for_minor(version.minor(), || {
        words(runtime).map_err(|error| refused = Some(error)).ok()
    });
    layout.ok_or(match refused {
        None | Some(libc::EFAULT) => Trouble::NotDescribed,
        Some(error) => Trouble::Refused(error),
    })
}

/// Returns the layout of the interpreter's list of threads, or `None` if it is not known for this version of CPython.
/// `runtime` is the address of the interpreter's `_PyRuntime`.
pub(super) fn find_threads(version: Version, runtime: usize) -> Option<ThreadsLayout> {
    ThreadsLayout::for_minor(version.minor(), || words(runtime).ok())
}

/// Returns the first words of `_PyRuntime`, or the kernel's error number.
fn words(runtime: usize) -> Result<[u64; WORDS], i32> {
    let span = MemoryRange {
        address: runtime,
        length: WORDS * size_of::<u64>(),
    };
    let mut bytes = [0; WORDS * size_of::<u64>()];
    if peek::read(ids::process(), &[span], &mut bytes)? != bytes.len() {
        return Err(libc::EFAULT);
    }
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_where_nothing_is_mapped_describes_nothing() {
        let version = Version::parse("3.14.1 ").unwrap();
        assert_eq!(find(version, 16), Err(Trouble::NotDescribed));
    }
}
