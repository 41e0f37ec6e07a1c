//! The code that a patched entry jumps to.
//!
//! It counts as the stubs do, but leaves `r11` alone, too; or, where its calls are scopes, it has Rust asked each time. Then come the instructions that the jump
//! took the place of, and a jump back behind them. It is written before it is executable, and never
//! both at once.

mod part;
#[cfg(test)]
mod tests;

use core::ops::Range;
use core::sync::atomic::AtomicUsize;

use part::Part;

use super::pool::{COUNT, LIMIT};
use super::scopes::SAYS_NUMBER;
use crate::handlers::handlers;
use tllmprof_platform::elf::Module;
use tllmprof_platform::entry::{Entry, Kind, Refusal};
use tllmprof_platform::maps::Maps;
use tllmprof_platform::thread::{self, Block};

/// Room for one trampoline: what counts takes 43 bytes, what it moves 19 at most and a little more
/// with wider branches, the slow way 22.
const SIZE: usize = 192;
const PAGE: usize = 4096;
/// Places that are tried: the map may change meanwhile.
const TRIES: usize = 8;

/// Executable memory near a module.
pub struct Region {
    /// The module, by where it starts.
    pub of: usize,
    /// One, or several where nowhere is room for all.
    parts: Vec<Part>,
}

impl Region {
    /// Room for `count` trampolines near `module`, not executable yet; for fewer where there is no more.
    ///
    /// # Errors
    /// There is none, or the system does not give it.
    pub fn near(module: &Module, count: usize, maps: &Maps) -> Result<Self, Refusal> {
        let size = (count * SIZE).next_multiple_of(PAGE);
        let mut gaps = maps.free_near(module.start, reach(module));
        // Above a program lies its heap, which must be able to grow.
        gaps.sort_by_key(|gap| gap.start > module.start);
        Self::within(&gaps, module.start, size)
    }

    /// So many bytes near `address`, in one of the gaps if one of them has that much room.
    fn within(gaps: &[Range<usize>], address: usize, size: usize) -> Result<Self, Refusal> {
        let place =
            |gap: &Range<usize>, size| address.clamp(gap.start, gap.end - size) & !(PAGE - 1);
        let mut wide = gaps.iter().filter(|gap| gap.len() >= size).take(TRIES);
        let mut denied = None;
        let mut map = |place, size| match Part::map(place, size) {
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
            (true, Some(denied)) => Err(Refusal::NotNear(denied)),
            (true, None) => Err(Refusal::NoRoom),
        }
    }

    /// Adds the trampoline for `entry`, that of the scope of that number if it is one; where it lies.
    pub fn add(&mut self, entry: &Entry, scope: Option<usize>) -> Result<Range<usize>, Refusal> {
        self.add_code(|at| assemble(at, entry, scope))
    }

    /// Adds what leads calls of `entry` on to where `target` says, but for those that come from within `module`; where it
    /// lies, and where what does the same as the function without a jump.
    pub fn add_switch(
        &mut self,
        entry: &Entry,
        module: &Range<usize>,
        target: &'static AtomicUsize,
    ) -> Result<(usize, usize), Refusal> {
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
    ) -> Result<Range<usize>, Refusal> {
        let mut parts = self.parts.iter_mut();
        let added = parts.find_map(|part| part.add(&mut assemble).ok());
        added.ok_or(Refusal::NoRoom)
    }

    /// Makes the trampolines executable.
    ///
    /// # Errors
    /// The system does not allow that.
    pub fn finish(&self) -> Result<(), Refusal> {
        let finished = self.parts.iter().try_for_each(Part::finish);
        finished.map_err(Refusal::NotExecutable)
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// Nothing leads there any more, as after the functions have been unloaded.
    pub unsafe fn free(self) {
        for part in self.parts {
            // SAFETY: nothing leads into any of the parts any more, as the caller has promised.
            unsafe { part.free() };
        }
    }
}

/// How far from the start of a module trampolines may lie: what these refer to, which may be anywhere in it, must stay within
/// 2 GiB.
fn reach(module: &Module) -> usize {
    const MOST: usize = i32::MAX as usize - (1 << 20);
    MOST.saturating_sub(module.end - module.start)
}

/// Code that is being written for a place.
struct Code {
    at: usize,
    bytes: Vec<u8>,
}

impl Code {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// An opcode with a displacement of 32 bits behind it.
    fn put_with(&mut self, opcode: &[u8], displacement: i32) {
        self.put(opcode);
        self.put(&displacement.to_le_bytes());
    }

    /// An instruction that ends with the distance to `target`.
    fn put_to(&mut self, opcode: &[u8], target: usize) -> Option<()> {
        let end = self.at + self.bytes.len() + opcode.len() + 4;
        self.put_with(opcode, distance(end, target)?);
        Some(())
    }

    /// The instructions that a jump takes the place of, and a jump back behind them.
    fn put_moved(&mut self, entry: &Entry) -> Option<()> {
        for moved in &entry.moved {
            match moved.kind {
                Kind::Anywhere => self.put(&moved.bytes),
                Kind::Relative { at: place, target } => {
                    let end = self.at + self.bytes.len() + moved.bytes.len();
                    let mut bytes = moved.bytes.clone();
                    let distance = distance(end, target)?;
                    bytes
                        .get_mut(place..place + 4)?
                        .copy_from_slice(&distance.to_le_bytes());
                    self.put(&bytes);
                }
                Kind::Branch {
                    opcode: [0, opcode],
                    target,
                } => self.put_to(&[opcode], target)?,
                Kind::Branch { opcode, target } => self.put_to(&opcode, target)?,
            }
        }
        self.put_to(&[0xe9], entry.at + entry.length) // jmp
    }
}

fn distance(from: usize, to: usize) -> Option<i32> {
    i32::try_from(to.wrapping_sub(from).cast_signed()).ok()
}

fn assemble(at: usize, entry: &Entry, scope: Option<usize>) -> Option<Vec<u8>> {
    let mut code = Code {
        at,
        bytes: Vec::with_capacity(SIZE),
    };
    match scope {
        None => assemble_step(&mut code, entry)?,
        Some(number) => assemble_scope(&mut code, entry, number)?,
    }
    Some(code.bytes)
}

/// Asks about each call.
fn assemble_scope(code: &mut Code, entry: &Entry, number: usize) -> Option<()> {
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

/// Counts, and asks past the limit.
fn assemble_step(code: &mut Code, entry: &Entry) -> Option<()> {
    let (count, limit) = (i32::try_from(COUNT).ok()?, i32::try_from(LIMIT).ok()?);
    code.put(&[0x41, 0x53]); // push r11
    code.put_with(&[0x64, 0x4c, 0x8b, 0x1c, 0x25], tls_offset()?); // mov r11, fs:[…]
    code.put(&[0x4d, 0x85, 0xdb]); // test r11, r11
    code.put(&[0x74, 0]); // jz slow
    let first_jump = code.bytes.len();
    code.put_with(&[0x49, 0xff, 0x83], count); // inc qword ptr [r11 + count]
    code.put(&[0x50]); // push rax
    code.put_with(&[0x49, 0x8b, 0x83], count); // mov rax, [r11 + count]
    code.put_with(&[0x49, 0x3b, 0x83], limit); // cmp rax, [r11 + limit]
    code.put(&[0x58]); // pop rax
    code.put(&[0x77, 0]); // ja slow
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

/// The switch for a function of `module`, and how many of its bytes come before what does the same as the function. It
/// changes `rax`, `r11` and the flags, which carry no argument of a C function with a fixed number of them.
fn assemble_switch(
    at: usize,
    entry: &Entry,
    module: &Range<usize>,
    target: &'static AtomicUsize,
) -> Option<(Vec<u8>, usize)> {
    let mut code = Code {
        at,
        bytes: Vec::with_capacity(SIZE),
    };
    let size = i32::try_from(module.len()).ok()?;
    code.put(&[0x48, 0x8b, 0x04, 0x24]); // mov rax, [rsp]
    code.put(&[0x49, 0xbb]); // mov r11, the module
    code.put(&module.start.to_le_bytes());
    code.put(&[0x4c, 0x29, 0xd8]); // sub rax, r11
    code.put(&[0x49, 0xbb]); // mov r11, where the target is
    code.put(
        &core::ptr::from_ref(target)
            .expose_provenance()
            .to_le_bytes(),
    );
    code.put_with(&[0x48, 0x3d], size); // cmp rax, its size
    code.put(&[0x72, 0x03]); // jb original
    code.put(&[0x41, 0xff, 0x23]); // jmp [r11]
    let length = code.bytes.len();
    code.put_moved(entry)?;
    Some((code.bytes, length))
}

/// Where the address of the thread's cells lies from the thread pointer on.
fn tls_offset() -> Option<i32> {
    let base: usize;
    // SAFETY: the thread pointer's own word holds its address.
    unsafe {
        core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) base, options(pure, nomem, nostack));
    }
    distance(base, thread::address() + Block::CELLS)
}
