//! Whether a function's first instructions can be moved, and which.
//!
//! A jump to the trampoline takes five bytes. The instructions that it overwrites run in the
//! trampoline instead, so nothing may reach them but by falling through from the entry: no branch
//! of the function, no entry of one of its jump tables. A call among them is refused, as its return
//! address would lie where no unwinder knows its way. (While the moved instructions themselves run,
//! a profiler that unwinds from a signal finds no table for them either: it loses that one sample's
//! callers.)

use core::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

use super::Refusal;

/// A near jump.
pub const JUMP: usize = 5;
/// A jump table has no more entries.
const TABLE: usize = 4096;

/// An instruction that runs in the trampoline.
pub struct Moved {
    pub bytes: Vec<u8>,
    pub kind: Kind,
}

#[derive(Clone, Copy)]
pub enum Kind {
    /// It does not matter where it lies.
    Anywhere,
    /// At this place among its bytes it says how far `target` is from its end.
    Relative { at: usize, target: usize },
    /// A branch: with this opcode and a distance of 32 bits.
    Branch { opcode: [u8; 2], target: usize },
}

/// What a jump at a function's entry takes the place of.
pub struct Entry {
    /// Where the jump goes: the entry, or behind its `endbr64`.
    pub at: usize,
    pub moved: Vec<Moved>,
    /// Bytes of the instructions that move.
    pub length: usize,
    /// The function, or one that it ends in, may look at its return address.
    pub looks_back: bool,
}

impl Entry {
    /// Where the jump goes.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Whether the function may look at its return address.
    pub const fn looks_back(&self) -> bool {
        self.looks_back
    }
}

/// Looks at the whole function, whose `code` lies at `start`. `read` reads the module's memory.
pub fn examine(
    start: usize,
    code: &[u8],
    read: impl Fn(usize, &mut [u8]) -> bool,
) -> Result<Entry, Refusal> {
    let mut decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
    let mut entry = Entry {
        at: start,
        moved: Vec::new(),
        length: 0,
        looks_back: false,
    };
    let mut instruction = Instruction::default();
    let (mut branches, mut tables, mut indirect) = (Vec::new(), Vec::new(), false);
    let mut return_address = ReturnAddress {
        above_stack_pointer: Some(0),
        above_frame_pointer: None,
    };
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return Err(Refusal::Undecodable);
        }
        let at = instruction.ip() as usize;
        let bytes = &code[at - start..][..instruction.len()];
        if instruction.code() == Code::Endbr64 && at == start {
            entry.at = start + instruction.len();
            continue;
        }
        let target = near_target(&instruction);
        entry.looks_back |= return_address.is_used_by(&instruction);
        let is_call = matches!(
            instruction.code(),
            Code::Call_rel32_64 | Code::Call_rm64 | Code::Call_rel16
        );
        if instruction.code() == Code::Jmp_rm64 {
            indirect = true;
            // By a jump table of its own, or out of the function.
            entry.looks_back |= tables.is_empty() || instruction.memory_base() != Register::None;
        }
        if let Some(target) = target.filter(|_| !is_call) {
            branches.push(target);
            entry.looks_back |=
                !(start..start + code.len()).contains(&target) && leads_out(target, &read);
        }
        if instruction.code() == Code::Lea_r64_m && instruction.is_ip_rel_memory_operand() {
            tables.push(instruction.ip_rel_memory_address() as usize);
        } else if instruction.memory_base() == Register::None
            && instruction.memory_index() != Register::None
        {
            tables.push(instruction.memory_displacement64() as usize);
        }
        if entry.length < JUMP {
            if is_call {
                return Err(Refusal::Call);
            }
            let offset = decoder
                .get_constant_offsets(&instruction)
                .displacement_offset();
            let kind = match target {
                Some(target) => branch(bytes, target).ok_or(Refusal::Immovable)?,
                None if instruction.is_ip_rel_memory_operand() => Kind::Relative {
                    at: offset,
                    target: instruction.ip_rel_memory_address() as usize,
                },
                None => Kind::Anywhere,
            };
            entry.length += bytes.len();
            entry.moved.push(Moved {
                bytes: bytes.to_vec(),
                kind,
            });
        }
    }
    if entry.length < JUMP {
        return Err(Refusal::TooShort);
    }
    let overwritten = entry.at..entry.at + entry.length;
    if branches.iter().any(|target| overwritten.contains(target)) {
        return Err(Refusal::Loops);
    }
    let function = start..start + code.len();
    if indirect
        && tables
            .iter()
            .any(|&table| leads_to(table, &function, &overwritten, &read))
    {
        return Err(Refusal::Table);
    }
    Ok(entry)
}

/// Where a branch or call goes that says it itself.
fn near_target(instruction: &Instruction) -> Option<usize> {
    let is_near = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    is_near.then(|| instruction.near_branch_target() as usize)
}

/// Whether what lies at `target` leads to another module, by a GOT slot: what a function ends in
/// returns where that would, and may look where that is, as the loader's do to learn who asks.
fn leads_out(target: usize, read: &impl Fn(usize, &mut [u8]) -> bool) -> bool {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const BND: u8 = 0xf2;
    let mut code = [0; 8];
    if !read(target, &mut code) {
        return true;
    }
    let code = code.strip_prefix(&ENDBR64).unwrap_or(&code);
    let code = code.strip_prefix(&[BND]).unwrap_or(code);
    code.starts_with(&[0xff, 0x25])
}

/// A plain branch in its long form; the short ones of `loop` and `jrcxz` have none.
fn branch(bytes: &[u8], target: usize) -> Option<Kind> {
    let opcode = match *bytes {
        [short @ 0x70..=0x7f, _] => [0x0f, short + 0x10],
        [0x0f, near @ 0x80..=0x8f, ..] => [0x0f, near],
        [0xeb, _] | [0xe9, ..] => [0, 0xe9],
        _ => return None,
    };
    Some(Kind::Branch { opcode, target })
}

/// Where a function's return address lies, as far as its code shows.
struct ReturnAddress {
    /// How far above the stack pointer, as long as nothing has branched.
    above_stack_pointer: Option<i64>,
    /// How far above `rbp`, where that is the frame pointer.
    above_frame_pointer: Option<i64>,
}

impl ReturnAddress {
    /// Whether the instruction reads it or takes its place's address; goes on to the next.
    fn is_used_by(&mut self, instruction: &Instruction) -> bool {
        let base = match instruction.memory_base() {
            Register::RSP => self.above_stack_pointer,
            Register::RBP => self.above_frame_pointer,
            _ => None,
        };
        let has_memory =
            (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory);
        let displacement = instruction.memory_displacement64().cast_signed();
        let is_used = has_memory
            && instruction.memory_index() == Register::None
            && base == Some(displacement);
        let (first, second) = (instruction.op0_register(), instruction.op1_register());
        let above = &mut self.above_stack_pointer;
        match instruction.code() {
            Code::Push_r64 | Code::Pushq_imm8 | Code::Pushq_imm32 => {
                *above = above.map(|above| above + 8);
            }
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if first == Register::RSP => {
                *above = above.map(|above| above + instruction.immediate(1).cast_signed());
            }
            Code::Mov_rm64_r64 | Code::Mov_r64_rm64
                if (first, second) == (Register::RBP, Register::RSP) =>
            {
                self.above_frame_pointer = *above;
            }
            _ if first == Register::RSP || near_target(instruction).is_some() => *above = None,
            _ => {}
        }
        is_used
    }
}

/// Whether what lies at `table` looks like a jump table of the function that has an entry for the
/// overwritten part: distances from the table in four bytes, or addresses in eight.
fn leads_to(
    table: usize,
    function: &Range<usize>,
    overwritten: &Range<usize>,
    read: &impl Fn(usize, &mut [u8]) -> bool,
) -> bool {
    if function.contains(&table) {
        return false;
    }
    let hits = |size: usize| {
        for index in 0..TABLE {
            let mut bytes = [0; 8];
            if !read(table + index * size, &mut bytes[..size]) {
                return false;
            }
            let value = usize::from_le_bytes(bytes);
            let target = if size == 4 {
                table.wrapping_add_signed(value as u32 as i32 as isize)
            } else {
                value
            };
            if overwritten.contains(&target) {
                return true;
            }
            if !function.contains(&target) {
                return false;
            }
        }
        false
    };
    hits(4) || hits(8)
}
