//! Writes a jump to other code over the first instructions of a function.
//!
//! While the process has one thread, as is usual before `main`, no other thread runs the code that is written, so any
//! bytes can be changed. With several threads, another thread may be about to execute any instruction at any time.
//! Then the jump is written only if it replaces a single instruction and lies in one aligned word, so that one store
//! writes it: a thread executes either the old instruction or the jump. This also applies to functions of a module that
//! has just been loaded, because its constructors may have started threads. The executable is an exception until its
//! code begins to run: threads at that time belong to libraries, such as a profiler, and do not execute code of the
//! executable.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::{Denied, JUMP, PatchRefusal, PatchableEntry};
use crate::barrier;

const PAGE: usize = 4096;

/// Returns true if a single store can write the jump, so that other threads may run meanwhile.
pub fn fits_one_store(entry: &PatchableEntry) -> bool {
    let first = entry.moved.first().map_or(0, |moved| moved.bytes.len());
    first >= JUMP && entry.at % 8 + JUMP <= 8
}

/// Returns the code of a jump from `at` to `trampoline`, or `None` if the distance does not fit into 32 bits.
pub fn jump(at: usize, trampoline: usize) -> Option<[u8; JUMP]> {
    let distance = trampoline.wrapping_sub(at + JUMP).cast_signed();
    let [a, b, c, d] = i32::try_from(distance).ok()?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// Writes the jump over the first instructions of a function.
///
/// # Safety
/// The module with the entry stays loaded during the call, and the trampoline (the code to which the jump leads) is
/// complete. If [`fits_one_store`] is false for the entry, no other thread can be in the function. If `alone` is true,
/// the process has only one thread.
pub unsafe fn write(
    entry: &PatchableEntry,
    jump: [u8; JUMP],
    alone: bool,
) -> Result<(), PatchRefusal> {
    let pages = (entry.at & !(PAGE - 1))..(entry.at + entry.length).next_multiple_of(PAGE);
    let readable = libc::PROT_READ | libc::PROT_EXEC;
    // The pages stay executable while they are written. Other threads may be running in them, and so may a
    // signal handler or a function that this code uses, such as the program's own `memset`. Also, a system
    // may refuse to make changed code executable again.
    if !protect(&pages, readable | libc::PROT_WRITE) {
        let denied = Denied::last();
        // If the code lies in several pages, `protect` may have changed some of them before it
        // failed. So their protection is restored.
        protect(&pages, readable);
        return Err(PatchRefusal::NotWritable(denied));
    }
    // SAFETY: the code lies in these pages. They stay mapped because the module stays loaded, and they are now
    // writable. A jump that fits one store replaces an aligned word as a whole. Otherwise no other thread is in the
    // function, so no instruction of the entry is being executed.
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
            // The rest of the last instruction that the jump overwrites is filled with `nop`.
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
    // SAFETY: the pages are a module's code. They stay readable and executable, because other threads may be executing
    // them.
    unsafe { libc::mprotect(start, pages.len(), rights) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::examine;
    use crate::function;

    /// Returns the addresses of two functions on a new page, which return the numbers `numbers`.
    fn functions(numbers: [u8; 2]) -> [usize; 2] {
        // SAFETY: the mapping is new and replaces none. It is written before it is used, and never unmapped.
        unsafe {
            let page = libc::mmap(
                core::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            let start = page.expose_provenance();
            let places = [start, start + 64];
            for (number, place) in numbers.into_iter().zip(places) {
                // Each test function consists of the code `mov eax, NUMBER; ret`.
                let code = [0xb8, number, 0, 0, 0, 0xc3];
                let place = core::ptr::with_exposed_provenance_mut::<u8>(place);
                place.copy_from_nonoverlapping(code.as_ptr(), code.len());
            }
            let rights = libc::PROT_READ | libc::PROT_EXEC;
            assert_eq!(libc::mprotect(page, PAGE, rights), 0);
            places
        }
    }

    fn call(place: usize) -> u32 {
        let place = core::ptr::with_exposed_provenance_mut(place);
        // SAFETY: the address is that of one of `functions`, or of a jump to one. They take no arguments and return a
        // number.
        unsafe { function::at::<extern "C" fn() -> u32>(place) }.map_or(0, |function| function())
    }

    #[test]
    fn a_function_is_led_to_another() {
        for alone in [false, true] {
            let [first, second] = functions([1, 2]);
            assert_eq!([call(first), call(second)], [1, 2]);
            // SAFETY: the page stays mapped.
            let code = unsafe {
                let code = core::ptr::with_exposed_provenance::<u8>(first);
                core::slice::from_raw_parts(code, 6).to_vec()
            };
            let entry = examine(first, &code, |_, _| false).unwrap();
            assert!(fits_one_store(&entry));
            let jump = jump(entry.at(), second).unwrap();
            // SAFETY: the page stays mapped, and the jump leads to the start of a function.
            assert_eq!(unsafe { write(&entry, jump, alone) }, Ok(()));
            assert_eq!([call(first), call(second)], [2, 2]);
        }
    }

    #[test]
    fn several_instructions_are_overwritten_and_filled_up() {
        let [first, second] = functions([1, 2]);
        let entry = PatchableEntry {
            at: first,
            moved: Vec::new(),
            length: 6,
            looks_back: false,
            ends_in: Vec::new(),
        };
        assert!(
            !fits_one_store(&entry),
            "its first instruction is not known to have room"
        );
        let jump = jump(first, second).unwrap();
        // SAFETY: no thread is in the function, and the page stays mapped.
        assert_eq!(unsafe { write(&entry, jump, true) }, Ok(()));
        assert_eq!(call(first), 2);
        // SAFETY: the page stays mapped.
        let last = unsafe { core::ptr::with_exposed_provenance::<u8>(first + 5).read() };
        assert_eq!(last, 0x90);
    }

    #[test]
    fn code_that_is_not_mapped_cannot_be_written() {
        let entry = PatchableEntry {
            at: PAGE,
            moved: Vec::new(),
            length: JUMP,
            looks_back: false,
            ends_in: Vec::new(),
        };
        // SAFETY: nothing is mapped at the address, so nothing is written.
        let refused = unsafe { write(&entry, [0; JUMP], true) };
        assert!(
            matches!(refused, Err(PatchRefusal::NotWritable(_))),
            "{refused:?}"
        );
    }

    #[test]
    fn a_jump_says_how_far_it_goes_from_its_end() {
        assert_eq!(jump(0x1000, 0x1005), Some([0xe9, 0, 0, 0, 0]));
        assert_eq!(jump(0x1000, 0x1000), Some([0xe9, 0xfb, 0xff, 0xff, 0xff]));
        assert_eq!(
            jump(0x1000, 0x1005 + 0x7fff_ffff),
            Some([0xe9, 0xff, 0xff, 0xff, 0x7f])
        );
        assert_eq!(jump(0x1000, 0x1005 + 0x8000_0000), None);
        assert_eq!(jump(0x1_0000_0000, 0), None);
    }

    #[test]
    fn an_instruction_that_crosses_a_word_is_not_stored_at_once() {
        let entry = |at, length| {
            let code = vec![0x66; length - 1];
            let code = [code, vec![0x90]].concat();
            let moved = vec![crate::entry::Moved {
                bytes: code,
                kind: crate::entry::InstructionKind::Anywhere,
            }];
            PatchableEntry {
                at,
                moved,
                length,
                looks_back: false,
                ends_in: Vec::new(),
            }
        };
        assert!(fits_one_store(&entry(0x1003, 5)));
        assert!(!fits_one_store(&entry(0x1004, 5)), "it crosses");
        assert!(!fits_one_store(&entry(0x1000, 4)), "it is too short");
    }
}
