//! Finds the Python thread that belongs to a thread of the process, in the interpreter's list of threads.
//!
//! The list is read without the GIL, by copies that the kernel makes. If the list changes meanwhile, the search may
//! find nothing, or a thread state that has been freed. [`Walker`](super::Walker) checks each thread state that it
//! reads.

use core::ops::ControlFlow;

use tllmprof_cpython::ThreadsLayout;
use tllmprof_platform::ids;
use tllmprof_platform::peek;

use super::layout::find_threads;
use super::walk::Target;
use super::{Layout, Ready};
use crate::version::Version;

/// The most threads of the list that are read.
const MAX_THREADS: usize = 256;
/// Number of bytes of the C library's data about a thread that are searched for the thread's kernel ID.
const SEARCHED_BYTES: usize = 1024;

/// The main interpreter's list of threads.
pub(crate) struct ThreadList {
    layout: ThreadsLayout,
    /// The address of `_PyRuntime`.
    runtime: usize,
}

impl ThreadList {
    /// Returns the list for a version of CPython; `None` if its layout is not known. `runtime` is the address of
    /// `_PyRuntime`.
    pub(crate) fn find(version: Version, runtime: usize) -> Option<Self> {
        let layout = find_threads(version, runtime)?;
        (runtime != 0).then_some(Self { layout, runtime })
    }

    fn find_thread(&self, layout: &Layout, number: i32) -> Option<Target> {
        let mut found = None;
        self.each(layout, |target, native| {
            found = (native == Some(number)).then_some(target);
            match found {
                None => ControlFlow::Continue(()),
                Some(_) => ControlFlow::Break(()),
            }
        });
        found
    }

    /// Calls `act` with each of the first [`MAX_THREADS`] threads of the list and its kernel ID, until `act` returns
    /// `Break`. The ID is `None` if it cannot be read. Returns `None` if reading the list fails, or if it is not known
    /// where this C library stores kernel IDs.
    pub(super) fn each(
        &self,
        layout: &Layout,
        mut act: impl FnMut(Target, Option<i32>) -> ControlFlow<()>,
    ) -> Option<()> {
        let id_offset = match self.layout.native {
            Some(_) => None,
            None => Some(id_offset()?),
        };
        let interpreter = word(self.runtime.checked_add(self.layout.interpreter)?)?;
        let mut state = word(interpreter.checked_add(self.layout.first)?)?;
        for _ in 0..MAX_THREADS {
            if state == 0 {
                break;
            }
            let id = word(state.checked_add(layout.thread.id)?)?;
            let native = match (self.layout.native, id_offset) {
                (Some(native), _) => word(state.checked_add(native)?).map(|word| word as i32),
                (None, Some(offset)) => number_at(id.checked_add(offset)?),
                (None, None) => None,
            };
            if act(Target { state, id }, native).is_break() {
                break;
            }
            state = word(state.checked_add(self.layout.next)?)?;
        }
        Some(())
    }
}

/// Returns the Python thread that runs on the thread with the kernel's ID `number`; `None` if it is not found.
pub fn find_thread(ready: &Ready, number: i32) -> Option<Target> {
    ready.threads.as_ref()?.find_thread(&ready.layout, number)
}

/// Returns the offset at which the C library's data about a thread contains the thread's kernel ID. `pthread_self`
/// points to this data. The offset is found in the calling thread's own data.
fn id_offset() -> Option<usize> {
    // SAFETY: the function takes no arguments.
    let own = unsafe { libc::pthread_self() } as usize;
    let number = ids::thread().to_ne_bytes();
    let mut bytes = [0; SEARCHED_BYTES];
    peek::copy(own, &mut bytes)?;
    let place = bytes
        .as_chunks()
        .0
        .iter()
        .position(|word| *word == number)?;
    Some(place * size_of::<i32>())
}

fn word(address: usize) -> Option<usize> {
    let mut bytes = [0; size_of::<usize>()];
    peek::copy(address, &mut bytes)?;
    Some(usize::from_ne_bytes(bytes))
}

fn number_at(address: usize) -> Option<i32> {
    let mut bytes = [0; size_of::<i32>()];
    peek::copy(address, &mut bytes)?;
    Some(i32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_thread_is_found_in_the_librarys_data() {
        let offset = id_offset().unwrap();
        let (id, number) = std::thread::spawn(move || {
            assert_eq!(id_offset(), Some(offset));
            // SAFETY: the function takes no arguments.
            (unsafe { libc::pthread_self() } as usize, ids::thread())
        })
        .join()
        .unwrap();
        assert!(id != 0 && number != ids::thread());
    }
}
