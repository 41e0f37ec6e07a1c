//! Finds the callers on a thread's stack with the unwind tables (`.eh_frame`) of the loaded modules. If the tables have
//! no entry for the code of a frame, the callers of this frame are unknown. If an entry refers to a register that is
//! not known, the stack can be searched for the return address instead.

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EndianSlice, Evaluation, EvaluationResult, Expression,
    LittleEndian, Location, Register, RegisterRule, UnwindContext, UnwindSection, Value, X86_64,
};

use crate::elf::Module;
use crate::memory::ProcessMemory;
use crate::return_address::find_frame_end;

/// Maximum number of stack frames of a thread that are read. The outer frames of a deeper stack stay unknown.
const MAX_FRAMES: usize = 4096;
/// Upper limit, exclusive, of the length of an entry of an unwind table, in bytes. Longer entries are damaged.
const MAX_ENTRY_BYTES: u32 = 1 << 20;

/// Values of the registers by DWARF number: the 16 general registers, then the return address. `None` if a value is
/// unknown.
pub(crate) type Registers = [Option<u64>; 17];

const RSP: usize = 7;
const RIP: usize = 16;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The action if the end of a frame is relative to a register whose value is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnknownRegister {
    /// Stop. The remaining callers are unknown.
    Stop,
    /// Search the stack for a likely return address. The frames that are found may be wrong.
    SearchStack,
}

/// Returns the code address of each stack frame of a thread, the innermost first: the current instruction, then the
/// return addresses. Returns `None` if the frames are not known up to the outermost one.
pub(crate) fn frames(
    memory: &ProcessMemory,
    modules: &[Module],
    registers: Registers,
) -> Option<Vec<u64>> {
    let mut frames = Vec::new();
    follow(
        memory,
        modules,
        registers,
        UnknownRegister::Stop,
        &mut frames,
    )?;
    Some(frames)
}

/// Returns registers of which only the stack pointer and the instruction pointer are known.
pub(crate) const fn start(stack_pointer: u64, instruction: u64) -> Registers {
    let mut registers = [None; 17];
    registers[RSP] = Some(stack_pointer);
    registers[RIP] = Some(instruction);
    registers
}

/// Adds the code addresses of the thread's stack frames to `frames`, the innermost first, up to the last frame that can
/// be found. `unknown` says what to do in a frame whose caller depends on a register that is not known. Returns `None`
/// if the last frame is not the outermost one.
pub(crate) fn follow(
    memory: &ProcessMemory,
    modules: &[Module],
    mut registers: Registers,
    unknown: UnknownRegister,
    frames: &mut Vec<u64>,
) -> Option<()> {
    frames.push(registers[RIP]?);
    // A return address is looked up one byte earlier: if a call is the last instruction of its function, its return
    // address already belongs to the next function.
    let mut is_return = false;
    let searched = (unknown == UnknownRegister::SearchStack).then_some(modules);
    while frames.len() < MAX_FRAMES {
        let address = registers[RIP]?.checked_sub(u64::from(is_return))?;
        let module = modules.iter().find(|module| module.contains(address))?;
        let step = step(memory, module, address, &registers, searched)?;
        let Some((next, is_signal)) = step else {
            return Some(());
        };
        let is_deeper = next[RSP]? > registers[RSP]?;
        if !is_deeper && !is_signal {
            return None;
        }
        is_return = !is_signal;
        registers = next;
        frames.push(registers[RIP]?);
    }
    None
}

/// Finds the caller of the code at `address`. Returns the caller's registers and a flag. The flag is true if the caller
/// made no call, but a signal interrupted it. The outer `None` means that the caller is unknown; the inner `None` means
/// that there is no caller. If the end of the frame (the CFA, canonical frame address) is relative to a register that
/// is not known, the stack is searched for a return address into one of the modules `searched`. With `searched` as
/// `None`, the caller is then unknown.
#[allow(
    clippy::type_complexity,
    reason = "the two answers differ: not known, and none"
)]
fn step(
    memory: &ProcessMemory,
    module: &Module,
    address: u64,
    registers: &Registers,
    searched: Option<&[Module]>,
) -> Option<Option<(Registers, bool)>> {
    let entry = FrameEntry::find(memory, module, address)?;
    let bases = BaseAddresses::default().set_eh_frame(entry.address);
    let section = EhFrame::new(&entry.bytes, LittleEndian);
    let fde = section
        .fde_from_offset(&bases, entry.fde.into(), EhFrame::cie_from_offset)
        .ok()?;
    let mut context = UnwindContext::new();
    let row = fde
        .unwind_info_for_address(&section, &bases, &mut context, address)
        .ok()?;
    let is_signal = fde.is_signal_trampoline();
    let encoding = fde.cie().encoding();
    if matches!(
        row.register(X86_64::RA),
        None | Some(RegisterRule::Undefined)
    ) {
        return Some(None);
    }
    let evaluate = |expression: Expression<Slice<'_>>, first| {
        evaluate(memory, expression.evaluation(encoding), registers, first)
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => match value(registers, *register) {
            Some(value) => value.wrapping_add_signed(*offset),
            None => {
                let function = fde.initial_address();
                find_frame_end(memory, searched?, module, function, registers[RSP]?)?
            }
        },
        CfaRule::Expression(expression) => evaluate(expression.get(&section).ok()?, None)?,
    };
    let mut next: Registers = [None; 17];
    for (number, place) in next.iter_mut().enumerate() {
        // DWARF numbers of the registers that a function must preserve. The caller's values of all other registers are
        // unknown, unless the table states where they are stored.
        const PRESERVED: [usize; 6] = [3, 6, 12, 13, 14, 15];
        let register = Register(u16::try_from(number).ok()?);
        *place = match row.register(register) {
            None if number == RSP => Some(cfa),
            None | Some(RegisterRule::SameValue) if PRESERVED.contains(&number) || is_signal => {
                registers[number]
            }
            Some(RegisterRule::Offset(offset)) => {
                Some(memory.word(cfa.wrapping_add_signed(offset))?)
            }
            Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(offset)),
            Some(RegisterRule::Register(other)) => value(registers, other),
            Some(RegisterRule::Expression(expression)) => {
                let at = evaluate(expression.get(&section).ok()?, Some(cfa))?;
                Some(memory.word(at)?)
            }
            Some(RegisterRule::ValExpression(expression)) => {
                Some(evaluate(expression.get(&section).ok()?, Some(cfa))?)
            }
            _ => None,
        };
    }
    Some(Some((next, is_signal)))
}

fn value(registers: &Registers, register: Register) -> Option<u64> {
    *registers.get(usize::from(register.0))?
}

fn evaluate(
    memory: &ProcessMemory,
    mut evaluation: Evaluation<Slice<'_>>,
    registers: &Registers,
    first: Option<u64>,
) -> Option<u64> {
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = Value::Generic(value(registers, register)?);
                evaluation.resume_with_register(value).ok()?
            }
            EvaluationResult::RequiresMemory {
                address, size: 8, ..
            } => {
                let value = Value::Generic(memory.word(address)?);
                evaluation.resume_with_memory(value).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.result().first()?.location {
        Location::Address { address } => Some(address),
        _ => None,
    }
}

/// The unwind table entry (FDE) for an address, preceded by the common entry (CIE) that it refers to. Both are copied
/// into a small section of their own for the parser.
struct FrameEntry {
    bytes: Vec<u8>,
    /// Offset of the FDE, the entry for the address, in `bytes`.
    fde: usize,
    /// Address at which the parser must assume that `bytes` lie. The FDE contains addresses relative to its own
    /// position, and the parser resolves them correctly only with this address.
    address: u64,
}

impl FrameEntry {
    fn find(memory: &ProcessMemory, module: &Module, address: u64) -> Option<Self> {
        // The supported format of `.eh_frame_hdr`: version 1, an encoded pointer, a count, and then a sorted table
        // whose words are relative to the header.
        const KNOWN: [u8; 2] = [0x03, 0x3b];
        let header = module.eh_frame_hdr?;
        let [version, pointer, count, table] = memory.bytes(header)?;
        if version != 1 || [count, table] != KNOWN || pointer & 0xf != 0xb {
            return None;
        }
        let count = u64::from(u32::from_le_bytes(memory.bytes(header + 8)?));
        let row = |index: u64| -> Option<(u64, u64)> {
            let [a, b, c, d, e, f, g, h] = memory.bytes(header + 12 + 8 * index)?;
            let relative = |bytes| header.wrapping_add_signed(i32::from_le_bytes(bytes).into());
            Some((relative([a, b, c, d]), relative([e, f, g, h])))
        };
        // Binary search for the last row whose code begins at or before the address.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            match row(middle)?.0 <= address {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let at = row(low.checked_sub(1)?)?.1;
        let mut fde = whole(memory, at)?;
        let back = u32::from_le_bytes(fde.get(4..8)?.try_into().ok()?);
        let mut bytes = whole(memory, (at + 4).checked_sub(back.into())?)?;
        let start = bytes.len();
        let distance = u32::try_from(start + 4).ok()?;
        fde.get_mut(4..8)?.copy_from_slice(&distance.to_le_bytes());
        bytes.append(&mut fde);
        Some(Self {
            bytes,
            fde: start,
            address: at.wrapping_sub(start as u64),
        })
    }
}

/// Returns the bytes of the unwind table entry at address `at`, including its length field. Returns `None` if the
/// entry cannot be read, or if its length is not plausible.
fn whole(memory: &ProcessMemory, at: u64) -> Option<Vec<u8>> {
    let length = u32::from_le_bytes(memory.bytes(at)?);
    (8..MAX_ENTRY_BYTES).contains(&length).then_some(())?;
    memory.some(at, length as usize + 4)
}

#[cfg(test)]
mod tests {
    use core::arch::asm;

    use super::*;
    use crate::elf::tests::here;

    /// Returns the current registers of the calling thread. The unwinding begins with them.
    #[inline(always)]
    fn own() -> Registers {
        let mut registers = [None; 17];
        let (rbx, rbp, rsp, rip): (u64, u64, u64, u64);
        let (r12, r13, r14, r15): (u64, u64, u64, u64);
        // SAFETY: the instructions only read registers.
        unsafe {
            asm!("mov {}, rbx", "mov {}, rbp", "mov {}, rsp", "lea {}, [rip]", out(reg) rbx, out(reg) rbp, out(reg) rsp,
                out(reg) rip, options(nomem, nostack));
            asm!("mov {}, r12", "mov {}, r13", "mov {}, r14", "mov {}, r15", out(reg) r12, out(reg) r13, out(reg) r14,
                out(reg) r15, options(nomem, nostack));
        }
        for (number, value) in [
            (3, rbx),
            (6, rbp),
            (7, rsp),
            (12, r12),
            (13, r13),
            (14, r14),
            (15, r15),
            (16, rip),
        ] {
            registers[number] = Some(value);
        }
        registers
    }

    #[inline(never)]
    fn deep(depth: u64, act: &mut dyn FnMut()) -> u64 {
        if depth == 0 {
            act();
            return 1;
        }
        std::hint::black_box(deep(depth - 1, act)) + 1
    }

    /// Returns the number of times that the most frequent return address occurs. This is the depth of the recursion.
    fn recursion(frames: &[u64]) -> usize {
        let count = |frame| frames.iter().filter(|other| *other == frame).count();
        frames.iter().map(count).max().unwrap()
    }

    #[test]
    fn all_callers_are_found_to_the_end() {
        let (memory, modules) = here();
        let mut found = None;
        deep(10, &mut || found = frames(&memory, &modules, own()));
        assert_eq!(recursion(&found.unwrap()), 10);
    }

    #[test]
    fn an_interrupted_function_is_found_behind_its_handler() {
        static FOUND: std::sync::Mutex<Option<Vec<u64>>> = std::sync::Mutex::new(None);
        extern "C" fn handler(_: i32) {
            let (memory, modules) = here();
            *FOUND.lock().unwrap() = frames(&memory, &modules, own());
        }
        // SAFETY: the thread sends the signal to itself, at a point where it holds no lock.
        unsafe {
            libc::signal(libc::SIGURG, handler as *const () as usize);
            deep(3, &mut || {
                libc::raise(libc::SIGURG);
            });
        }
        let frames = FOUND.lock().unwrap().take();
        assert_eq!(recursion(&frames.unwrap()), 3);
    }

    #[test]
    fn code_without_an_entry_is_not_known() {
        let (memory, modules) = here();
        let mut registers = own();
        registers[RIP] = Some(0x1000);
        assert_eq!(frames(&memory, &modules, registers), None);
    }
}
