//! Trampolines: the code to which the patched entries of functions jump.
//!
//! A trampoline counts the call as a stub (the code that is called through GOT slots) does, but also preserves `r11`.
//! If the function's calls are scopes (GPU work is attributed to them), the trampoline instead calls a handler
//! (assembly code that calls Rust code) at each call. In both cases, it then runs the instructions that the jump at the
//! function's entry replaced, and jumps to the code after the jump. The memory is never writable and executable at the
//! same time.

mod part;
#[cfg(test)]
mod tests;

use core::ops::Range;
use core::sync::atomic::AtomicUsize;

use part::TrampolinePages;

use super::pool::{COUNT, LIMIT};
use super::scopes::SAYS_NUMBER;
use crate::handlers::handlers;
use tllmprof_platform::elf::ElfModule;
use tllmprof_platform::entry::{InstructionKind, PatchRefusal, PatchableEntry};
use tllmprof_platform::maps::Maps;
use tllmprof_platform::thread::{self, Block};

/// Space for one trampoline (the code to which a patched entry jumps), in bytes. Counting takes 43 bytes, the slow path
/// 21, the jump back to the function 5, and the moved instructions at most 19, or a little more if short branches
/// become long ones.
const TRAMPOLINE_SIZE: usize = 192;
const PAGE_SIZE: usize = 4096;
/// Largest number of gaps between mappings in which the library tries to map memory for all trampolines (the code to
/// which patched entries jump) together. A try may fail because the memory map has changed since it was read.
const MAX_TRIES: usize = 8;

/// Executable memory near a module, for trampolines (the code to which patched entries jump).
pub(crate) struct Region {
    /// Start address of the module whose functions jump to these trampolines.
    pub of: usize,
    /// The mapped pieces of memory: one, or several if no gap between other mappings is large enough for all
    /// trampolines.
    parts: Vec<TrampolinePages>,
}

impl Region {
    /// Reserves space near `module` for `count` trampolines, or for fewer if there is less space. The memory is not
    /// executable yet.
    ///
    /// # Errors
    /// Returns an error if there is no space, or if the system does not map the memory.
    pub(crate) fn near(
        module: &ElfModule,
        count: usize,
        maps: &Maps,
    ) -> Result<Self, PatchRefusal> {
        let size = (count * TRAMPOLINE_SIZE).next_multiple_of(PAGE_SIZE);
        let gaps = maps.free_near(module.start, reach(module)).into_iter();
        // Use gaps above the module last: the program's heap lies above the module, and must be able to grow.
        let (above, mut gaps): (Vec<_>, Vec<_>) = gaps.partition(|gap| gap.start > module.start);
        gaps.extend(above);
        Self::within(&gaps, module.start, size)
    }

    /// Reserves `size` bytes near `address`, in one gap if a gap is large enough. Otherwise uses several gaps, and
    /// reserves fewer bytes if these are too small.
    fn within(gaps: &[Range<usize>], address: usize, size: usize) -> Result<Self, PatchRefusal> {
        let place =
            |gap: &Range<usize>, size| address.clamp(gap.start, gap.end - size) & !(PAGE_SIZE - 1);
        let mut wide = gaps.iter().filter(|gap| gap.len() >= size).take(MAX_TRIES);
        let mut denied = None;
        let mut map = |place, size| match TrampolinePages::map(place, size) {
            Ok(part) => part,
            Err(why) => {
                denied = Some(why);
                None
            }
        };
        let whole = wide.find_map(|gap| map(place(gap, size), size));
        let mut parts: Vec<_> = whole.into_iter().collect();
        if parts.is_empty() {
            let mut missing = size;
            for gap in gaps {
                let some = missing.min(gap.len());
                if some > 0
                    && let Some(part) = map(place(gap, some), some)
                {
                    parts.push(part);
                    missing -= some;
                }
            }
        }
        match (parts.is_empty(), denied) {
            (false, _) => Ok(Self { of: address, parts }),
            (true, Some(denied)) => Err(PatchRefusal::NotNear(denied)),
            (true, None) => Err(PatchRefusal::NoRoom),
        }
    }

    /// Adds the trampoline (the code to which the patched entry jumps) for `entry`. `scope` is the function's number if
    /// its calls are scopes (GPU work is attributed to them), otherwise `None`. Returns the trampoline's address range.
    pub(crate) fn add(
        &mut self,
        entry: &PatchableEntry,
        scope: Option<usize>,
    ) -> Result<Range<usize>, PatchRefusal> {
        self.add_code(|at| assemble(at, entry, scope))
    }

    /// Adds a switch: code that redirects calls of `entry` to the address in `target`, except calls from within
    /// `module`. Returns the address of the switch, and the address of code that does the work of the original
    /// function.
    pub(crate) fn add_switch(
        &mut self,
        entry: &PatchableEntry,
        module: &Range<usize>,
        target: &'static AtomicUsize,
    ) -> Result<(usize, usize), PatchRefusal> {
        let mut original = 0;
        let code = self.add_code(|at| {
            let (code, length) = assemble_switch(at, entry, module, target)?;
            original = at + length;
            Some(code)
        })?;
        Ok((code.start, original))
    }

    fn add_code(
        &mut self,
        mut assemble: impl FnMut(usize) -> Option<Vec<u8>>,
    ) -> Result<Range<usize>, PatchRefusal> {
        let mut parts = self.parts.iter_mut();
        let added = parts.find_map(|part| part.add(&mut assemble).ok());
        added.ok_or(PatchRefusal::NoRoom)
    }

    /// Makes the trampolines executable.
    ///
    /// # Errors
    /// Returns an error if the system does not allow executable memory.
    pub(crate) fn finish(&self) -> Result<(), PatchRefusal> {
        let finished = self.parts.iter().try_for_each(TrampolinePages::finish);
        finished.map_err(PatchRefusal::NotExecutable)
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// No code jumps to the trampolines any more, for example because the functions have been unloaded.
    pub(crate) unsafe fn free(self) {
        for part in self.parts {
            // SAFETY: no code jumps into the parts any more, as the caller has promised.
            unsafe { part.free() };
        }
    }
}

/// Returns the largest allowed distance in bytes between the start of a module and its trampolines (the code to which
/// patched entries jump). The trampolines refer to addresses anywhere in the module, and each distance must be less
/// than 2 GiB.
fn reach(module: &ElfModule) -> usize {
    const MAX_REACH: usize = i32::MAX as usize - (1 << 20);
    MAX_REACH.saturating_sub(module.end - module.start)
}

/// Code that is assembled for a fixed address.
struct Code {
    at: usize,
    bytes: Vec<u8>,
}

impl Code {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds an opcode that is followed by a 32-bit displacement.
    fn put_with(&mut self, opcode: &[u8], displacement: i32) {
        self.put(opcode);
        self.put(&displacement.to_le_bytes());
    }

    /// Adds an instruction that ends with the 32-bit distance to `target`. Returns `None` if the distance is too large.
    fn put_to(&mut self, opcode: &[u8], target: usize) -> Option<()> {
        let end = self.at + self.bytes.len() + opcode.len() + 4;
        self.put_with(opcode, distance(end, target)?);
        Some(())
    }

    /// Adds the instructions that the jump at the function's entry replaced, and then a jump to the code after them.
    fn put_moved(&mut self, entry: &PatchableEntry) -> Option<()> {
        for moved in &entry.moved {
            match moved.kind {
                InstructionKind::Anywhere => self.put(&moved.bytes),
                InstructionKind::Relative { at: place, target } => {
                    let end = self.at + self.bytes.len() + moved.bytes.len();
                    let mut bytes = moved.bytes.clone();
                    let distance = distance(end, target)?;
                    bytes
                        .get_mut(place..place + 4)?
                        .copy_from_slice(&distance.to_le_bytes());
                    self.put(&bytes);
                }
                InstructionKind::Branch {
                    opcode: [0, opcode],
                    target,
                } => self.put_to(&[opcode], target)?,
                InstructionKind::Branch { opcode, target } => self.put_to(&opcode, target)?,
            }
        }
        self.put_to(&[0xe9], entry.at + entry.length) // jmp
    }
}

fn distance(from: usize, to: usize) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from).cast_signed()).ok()
}

fn assemble(at: usize, entry: &PatchableEntry, scope: Option<usize>) -> Option<Vec<u8>> {
    let mut code = Code {
        at,
        bytes: Vec::with_capacity(TRAMPOLINE_SIZE),
    };
    match scope {
        None => assemble_step(&mut code, entry)?,
        Some(number) => assemble_scope(&mut code, entry, number)?,
    }
    Some(code.bytes)
}

/// Assembles the trampoline of a function whose calls are scopes (GPU work is attributed to them): code that calls the
/// handler `named_scope` at each call. Returns `None` if a distance or the function's number does not fit its 32-bit
/// field.
fn assemble_scope(code: &mut Code, entry: &PatchableEntry, number: usize) -> Option<()> {
    code.put(&[0x41, 0x53]); // push r11
    code.put_with(&[0xff, 0x15], 0); // call [the address below]
    let called = code.bytes.len();
    code.put_with(&SAYS_NUMBER, i32::try_from(number).ok()?); // nop dword ptr [rax + number]
    code.put(&[0x41, 0x5b]); // pop r11
    code.put_moved(entry)?;
    let distance = i32::try_from(code.bytes.len() - called).ok()?;
    code.bytes[called - 4..called].copy_from_slice(&distance.to_le_bytes());
    code.put(&(handlers().named_scope as *const () as usize).to_le_bytes());
    Some(())
}

/// Assembles the trampoline of a step function. The trampoline counts the call, and calls the handler `named_slow` if
/// the count is past the limit. If the thread has no cells (call counters), it only calls this handler. Returns `None`
/// if a distance or an offset in the code does not fit its field.
fn assemble_step(code: &mut Code, entry: &PatchableEntry) -> Option<()> {
    let (count, limit) = (i32::try_from(COUNT).ok()?, i32::try_from(LIMIT).ok()?);
    code.put(&[0x41, 0x53]); // push r11
    code.put_with(&[0x64, 0x4c, 0x8b, 0x1c, 0x25], tls_offset()?); // mov r11, fs:[…]
    code.put(&[0x4d, 0x85, 0xdb]); // test r11, r11
    code.put(&[0x74, 0]); // jz slow (the distance is stored below)
    let first_jump = code.bytes.len();
    code.put_with(&[0x49, 0xff, 0x83], count); // inc qword ptr [r11 + count]
    code.put(&[0x50]); // push rax
    code.put_with(&[0x49, 0x8b, 0x83], count); // mov rax, [r11 + count]
    code.put_with(&[0x49, 0x3b, 0x83], limit); // cmp rax, [r11 + limit]
    code.put(&[0x58]); // pop rax
    code.put(&[0x77, 0]); // ja slow (the distance is stored below)
    let second_jump = code.bytes.len();
    code.put(&[0x41, 0x5b]); // pop r11
    let go_on = code.at + code.bytes.len();
    code.put_moved(entry)?;
    let slow_way = code.bytes.len();
    for jump in [first_jump, second_jump] {
        code.bytes[jump - 1] = u8::try_from(slow_way - jump)
            .ok()
            .filter(|&far| far < 0x80)?;
    }
    code.put_with(&[0xff, 0x15], 7); // call [the address below]
    code.put(&[0x41, 0x5b]); // pop r11
    code.put_to(&[0xe9], go_on)?; // jmp
    code.put(&(handlers().named_slow as *const () as usize).to_le_bytes());
    Some(())
}

/// Assembles the switch for a function of `module`: code that jumps to the address in `target`, or to the original
/// function if the caller is in `module`. Returns the code, and the offset in bytes of the part that does the work of
/// the original function. The switch changes `rax`, `r11` and the flags, which carry no argument of a C function with
/// a fixed number of arguments.
fn assemble_switch(
    at: usize,
    entry: &PatchableEntry,
    module: &Range<usize>,
    target: &'static AtomicUsize,
) -> Option<(Vec<u8>, usize)> {
    let mut code = Code {
        at,
        bytes: Vec::with_capacity(TRAMPOLINE_SIZE),
    };
    let size = i32::try_from(module.len()).ok()?;
    code.put(&[0x48, 0x8b, 0x04, 0x24]); // mov rax, [rsp]
    code.put(&[0x49, 0xbb]); // mov r11, the start of the module
    code.put(&module.start.to_le_bytes());
    code.put(&[0x4c, 0x29, 0xd8]); // sub rax, r11
    code.put(&[0x49, 0xbb]); // mov r11, the address of the target
    code.put(
        &core::ptr::from_ref(target)
            .expose_provenance()
            .to_le_bytes(),
    );
    code.put_with(&[0x48, 0x3d], size); // cmp rax, the size of the module
    code.put(&[0x72, 0x03]); // jb original
    code.put(&[0x41, 0xff, 0x23]); // jmp [r11]
    let length = code.bytes.len();
    code.put_moved(entry)?;
    Some((code.bytes, length))
}

/// Returns the offset in bytes from the thread pointer to the word that holds the address of the thread's cells (call
/// counters).
fn tls_offset() -> Option<i32> {
    let base: usize;
    // SAFETY: the word at the thread pointer holds its own address.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) base, options(pure, nomem, nostack));
    }
    distance(base, thread::address() + Block::CELLS)
}
