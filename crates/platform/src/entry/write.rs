//! Writing the jump into code.
//!
//! With one thread in the process, as before `main` as a rule, nobody runs in the code that is
//! written, and a few bytes are a few bytes. With several, another thread may stand in front of any
//! instruction at any time. Then the jump is written only where one instruction makes room for it
//! and lies in one aligned word: a single store, before which a thread executes the old instruction
//! and after which the jump, and no thread can stand in the middle. A module that is loaded later is
//! no exception, as its constructors may have started threads. The executable is one as long as it
//! has not begun to run: threads that there are by then are other libraries', as a profiler's.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Entry, JUMP, Refusal};
use crate::barrier;

const PAGE: usize = 4096;

/// Whether a jump can be written while other threads run.
pub fn fits_one_store(entry: &Entry) -> bool {
    let first = entry.moved.first().map_or(0, |moved| moved.bytes.len());
    first >= JUMP && entry.at % 8 + JUMP <= 8
}

/// The jump from `at` to `trampoline`.
pub fn jump(at: usize, trampoline: usize) -> Option<[u8; JUMP]> {
    let distance = trampoline.wrapping_sub(at + JUMP).cast_signed();
    let [a, b, c, d] = i32::try_from(distance).ok()?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// Writes the jump over the entry.
///
/// # Safety
/// The module with the entry stays loaded meanwhile, and what runs instead of the overwritten
/// instructions is ready. Where the entry does not fit one store, no other thread can be in the
/// function. `alone`: the process has one thread.
pub unsafe fn write(entry: &Entry, jump: [u8; JUMP], alone: bool) -> Result<(), Refusal> {
    let pages = (entry.at & !(PAGE - 1))..(entry.at + entry.length).next_multiple_of(PAGE);
    let readable = libc::PROT_READ | libc::PROT_EXEC;
    // Executable all the while: others may be running in these pages, a signal handler may lie
    // there, or a function that this very code uses, as of a program that brings its own `memset`;
    // and a system may refuse to make code executable again that has been changed.
    if !protect(&pages, readable | libc::PROT_WRITE) {
        // Of several pages some may have changed.
        protect(&pages, readable);
        return Err(Refusal::NotWritable);
    }
    // SAFETY: the code lies in these pages, which stay mapped as the module stays loaded, and which can
    // be written now. A jump that fits one store replaces an aligned word as a whole; of another no
    // instruction is being executed, as no other thread is in the function.
    unsafe {
        if fits_one_store(entry) {
            let word = entry.at & !7;
            let place = &*core::ptr::with_exposed_provenance::<AtomicU64>(word);
            let mut bytes = place.load(Ordering::Relaxed).to_le_bytes();
            bytes[entry.at - word..][..JUMP].copy_from_slice(&jump);
            place.store(u64::from_le_bytes(bytes), Ordering::SeqCst);
        } else {
            let place = core::ptr::with_exposed_provenance_mut::<u8>(entry.at);
            core::ptr::copy_nonoverlapping(jump.as_ptr(), place, JUMP);
            // What is left of the last instruction.
            core::ptr::write_bytes(place.add(JUMP), 0x90, entry.length - JUMP);
        }
    }
    protect(&pages, readable);
    if !alone {
        barrier::instructions();
    }
    Ok(())
}

fn protect(pages: &Range<usize>, rights: libc::c_int) -> bool {
    let start = core::ptr::with_exposed_provenance_mut(pages.start);
    // SAFETY: the pages are a module's code, which stays readable, and executable where others may
    // be executing it.
    unsafe { libc::mprotect(start, pages.len(), rights) == 0 }
}
