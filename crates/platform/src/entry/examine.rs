//! Examines the machine code of a function, and decides whether its first instructions can be moved to a
//! trampoline (code that runs them elsewhere).
//!
//! A jump to the trampoline takes five bytes at the function's entry. The instructions that it overwrites run
//! in the trampoline instead, so the only way to reach them must be the entry: no branch of the function and
//! no entry of its jump tables may lead to them. If one of these instructions is a call, the function is refused,
//! because the return address of the call would lie in code that no unwinder knows. (While the moved instructions
//! run, a profiler that unwinds from a signal finds no unwind table for them either. It loses the callers of that
//! one sample.)

use core::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

use super::PatchRefusal;

/// Size of a near jump in bytes.
pub const JUMP: usize = 5;
/// Largest number of entries that are examined in one jump table.
const TABLE: usize = 4096;

/// An instruction that is moved from the function's entry to the trampoline (code that runs it elsewhere).
pub struct Moved {
    pub bytes: Vec<u8>,
    pub kind: InstructionKind,
}

#[derive(Clone, Copy)]
pub enum InstructionKind {
    /// The instruction can be moved unchanged, because it works at any address.
    Anywhere,
    /// The instruction contains, at the offset `at` in its bytes, the distance from its end to the
    /// address `target`.
    Relative { at: usize, target: usize },
    /// A branch to `target`. The long form of the branch consists of `opcode` and a 32-bit distance.
    Branch { opcode: [u8; 2], target: usize },
}

/// The entry of a function, with the instructions that a jump replaces there.
pub struct PatchableEntry {
    /// Address of the jump: the function's entry, or the address after its `endbr64`.
    pub at: usize,
    pub moved: Vec<Moved>,
    /// Size in bytes of the instructions at the entry that are moved.
    pub length: usize,
    /// True if the function may read its own return address, or may end in a jump to another function that
    /// reads it.
    pub looks_back: bool,
    /// Addresses of other functions that the function may jump to at its end, as far as they are known.
    pub ends_in: Vec<usize>,
}

impl PatchableEntry {
    /// Returns the address at which the jump is written.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Returns true if the function may read its return address, or may end in a jump to another function that reads
    /// it.
    pub const fn looks_back(&self) -> bool {
        self.looks_back
    }
}

/// The addresses to which a function's instructions may lead, collected while the function is examined.
struct FunctionFlow {
    function: Range<usize>,
    /// Targets of the function's branches.
    branches: Vec<usize>,
    /// Addresses that may be jump tables of the function.
    tables: Vec<usize>,
    /// True if the examined function contains an indirect jump.
    is_indirect: bool,
}

impl FunctionFlow {
    /// Adds an instruction. `target` is the fixed address to which the instruction branches; `None` for a call, for
    /// an indirect jump, and for an instruction that does not branch. If the instruction may jump to another
    /// function, stores that in `entry`.
    fn note(
        &mut self,
        entry: &mut PatchableEntry,
        instruction: &Instruction,
        target: Option<usize>,
        read: &impl Fn(usize, &mut [u8]) -> bool,
    ) {
        let has_base = instruction.memory_base() != Register::None;
        if instruction.code() == Code::Jmp_rm64 {
            self.is_indirect = true;
            // This indirect jump leads to an address in a jump table of the function, or to another function,
            // which may read the return address.
            entry.looks_back |= self.tables.is_empty() || has_base;
            if instruction.is_ip_rel_memory_operand() {
                let slot = instruction.ip_rel_memory_address() as usize;
                entry.ends_in.extend(word(slot, read));
            }
        }
        if let Some(target) = target {
            self.branches.push(target);
            if !self.function.contains(&target) {
                let leads_out = leads_out(target, read);
                entry.looks_back |= leads_out.is_none_or(|slot| slot.is_some());
                entry.ends_in.push(target);
                let slot = leads_out.flatten();
                entry.ends_in.extend(slot.and_then(|slot| word(slot, read)));
            }
        }
        if instruction.code() == Code::Lea_r64_m && instruction.is_ip_rel_memory_operand() {
            self.tables
                .push(instruction.ip_rel_memory_address() as usize);
        } else if !has_base && instruction.memory_index() != Register::None {
            self.tables
                .push(instruction.memory_displacement64() as usize);
        }
    }
}

/// Returns the form in which the instruction is moved to the trampoline (code that runs it elsewhere), or the reason
/// why it cannot be moved.
fn moved(
    decoder: &Decoder<'_>,
    instruction: &Instruction,
    bytes: &[u8],
    target: Option<usize>,
) -> Result<Moved, PatchRefusal> {
    let kind = match target {
        Some(target) => branch(bytes, target).ok_or(PatchRefusal::Immovable)?,
        None if instruction.is_ip_rel_memory_operand() => InstructionKind::Relative {
            at: decoder
                .get_constant_offsets(instruction)
                .displacement_offset(),
            target: instruction.ip_rel_memory_address() as usize,
        },
        None => InstructionKind::Anywhere,
    };
    Ok(Moved {
        bytes: bytes.to_vec(),
        kind,
    })
}

/// Examines the whole function, whose `code` lies at `start`. The closure `read` reads the module's memory. Returns the
/// function's entry, or the reason why the entry cannot be patched.
pub fn examine(
    start: usize,
    code: &[u8],
    read: impl Fn(usize, &mut [u8]) -> bool,
) -> Result<PatchableEntry, PatchRefusal> {
    let mut decoder = Decoder::with_ip(64, code, start as u64, DecoderOptions::NONE);
    let mut entry = PatchableEntry {
        at: start,
        moved: Vec::new(),
        length: 0,
        looks_back: false,
        ends_in: Vec::new(),
    };
    let mut instruction = Instruction::default();
    let mut flow = FunctionFlow {
        function: start..start + code.len(),
        branches: Vec::new(),
        tables: Vec::new(),
        is_indirect: false,
    };
    let mut return_address = ReturnAddress {
        above_stack_pointer: Some(0),
        above_frame_pointer: None,
    };
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return Err(PatchRefusal::Undecodable);
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
        flow.note(&mut entry, &instruction, target.filter(|_| !is_call), &read);
        if entry.length < JUMP {
            if is_call {
                return Err(PatchRefusal::Call);
            }
            let moved = moved(&decoder, &instruction, bytes, target)?;
            entry.length += bytes.len();
            entry.moved.push(moved);
        }
    }
    if entry.length < JUMP {
        return Err(PatchRefusal::TooShort);
    }
    let overwritten = entry.at..entry.at + entry.length;
    if flow.branches.iter().any(|at| overwritten.contains(at)) {
        return Err(PatchRefusal::Loops);
    }
    let mut tables = flow.tables.iter();
    if flow.is_indirect && tables.any(|&table| leads_to(table, &flow.function, &overwritten, &read))
    {
        return Err(PatchRefusal::Table);
    }
    Ok(entry)
}

/// Returns the target of a branch or call whose target is part of the instruction, or `None` for any other
/// instruction.
fn near_target(instruction: &Instruction) -> Option<usize> {
    let is_near = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    is_near.then(|| instruction.near_branch_target() as usize)
}

/// Returns the GOT slot if the code at `target` is a stub that jumps through the slot to another module. `Some(None)`
/// means that the code is no such stub, and `None` means that the code cannot be read.
///
/// After a jump to such a stub, the other module's function returns directly to the caller of the examined function.
/// Some functions of the loader read the return address to identify that caller, so the return address must not be
/// replaced.
fn leads_out(target: usize, read: &impl Fn(usize, &mut [u8]) -> bool) -> Option<Option<usize>> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const BND: u8 = 0xf2;
    let mut code = [0; 11];
    // The last stub of a module may be shorter than `code`, so also try to read only 8 bytes.
    if !read(target, &mut code) && !read(target, &mut code[..8]) {
        return None;
    }
    let rest = code.strip_prefix(&ENDBR64).unwrap_or(&code);
    let rest = rest.strip_prefix(&[BND]).unwrap_or(rest);
    let [0xff, 0x25, distance @ ..] = rest else {
        return Some(None);
    };
    let distance = distance
        .first_chunk()
        .map_or(0, |&far| i32::from_le_bytes(far));
    let end = target + (code.len() - rest.len()) + 6;
    Some(Some(end.wrapping_add_signed(distance as isize)))
}

/// Returns the 8-byte word at `address`, or `None` if it cannot be read.
fn word(address: usize, read: &impl Fn(usize, &mut [u8]) -> bool) -> Option<usize> {
    let mut word = [0; 8];
    read(address, &mut word).then(|| usize::from_le_bytes(word))
}

/// Returns the long form (with a 32-bit distance) of a plain jump or conditional jump. Returns `None` for other
/// branches: `loop` and `jrcxz` have no long form, and branches with prefixes are not handled.
fn branch(bytes: &[u8], target: usize) -> Option<InstructionKind> {
    let opcode = match *bytes {
        [short @ 0x70..=0x7f, _] => [0x0f, short + 0x10],
        [0x0f, near @ 0x80..=0x8f, ..] => [0x0f, near],
        [0xeb, _] | [0xe9, ..] => [0, 0xe9],
        _ => return None,
    };
    Some(InstructionKind::Branch { opcode, target })
}

/// The position of a function's return address on the stack, as far as the examined code shows it.
struct ReturnAddress {
    /// Distance in bytes from the stack pointer up to the return address. It is `None` after the first branch, return,
    /// or call to a fixed address. It is also `None` after an instruction that has the stack pointer as its first
    /// operand, unless it adds or subtracts a constant.
    above_stack_pointer: Option<i64>,
    /// Distance in bytes from `rbp` up to the return address; `None` if `rbp` is not the frame pointer.
    above_frame_pointer: Option<i64>,
}

impl ReturnAddress {
    /// Returns true if an operand of the instruction is the memory where the function's return address lies: the
    /// instruction then reads, overwrites, or takes the address of the return address. Also tracks how `push`, `pop`,
    /// `leave`, and `add` and `sub` of a constant change the stack pointer.
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
            Code::Push_r64
            | Code::Push_rm64
            | Code::Pushq_imm8
            | Code::Pushq_imm32
            | Code::Pushfq => {
                *above = above.map(|above| above + 8);
            }
            Code::Pop_r64 | Code::Pop_rm64 | Code::Popfq if first != Register::RSP => {
                *above = above.map(|above| above - 8);
            }
            Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 if first == Register::RSP => {
                *above = above.map(|above| above + instruction.immediate(1).cast_signed());
            }
            Code::Add_rm64_imm8 | Code::Add_rm64_imm32 if first == Register::RSP => {
                *above = above.map(|above| above - instruction.immediate(1).cast_signed());
            }
            // `leave` sets the stack pointer to the frame pointer, and then removes the saved frame pointer.
            Code::Leaveq => {
                *above = self.above_frame_pointer.map(|above| above - 8);
            }
            Code::Mov_rm64_r64 | Code::Mov_r64_rm64
                if (first, second) == (Register::RBP, Register::RSP) =>
            {
                self.above_frame_pointer = *above;
            }
            // The code after a return or a jump is reached in another way, with an unknown stack pointer.
            Code::Retnq | Code::Retnq_imm16 | Code::Jmp_rm64 => *above = None,
            _ if first == Register::RSP || near_target(instruction).is_some() => *above = None,
            _ => {}
        }
        is_used
    }
}

/// Returns true if the data at `table` looks like a jump table of the function, and one of its entries leads to the
/// part that the jump overwrites. Entries are distances from the table in four bytes, or addresses in eight bytes.
/// The table ends at the first entry that leads out of the function, or after [`TABLE`] entries.
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

#[cfg(test)]
mod tests {
    use super::*;

    const START: usize = 0x10_0000;
    const PUSH_RBP: u8 = 0x55;
    const NOP: u8 = 0x90;
    const RET: u8 = 0xc3;
    const MOV_RBP_RSP: [u8; 3] = [0x48, 0x89, 0xe5];

    /// Examines a function that consists of `code`. Reading any other memory fails.
    fn examined(code: &[&[u8]]) -> Result<PatchableEntry, PatchRefusal> {
        examine(START, &code.concat(), |_, _| false)
    }

    fn refusal(code: &[&[u8]]) -> Option<PatchRefusal> {
        examined(code).err()
    }

    fn looks_back(code: &[&[u8]]) -> bool {
        examined(code).unwrap().looks_back()
    }

    #[test]
    fn whole_instructions_make_room_for_the_jump() {
        let sub_rsp_16 = [0x48, 0x83, 0xec, 0x10];
        let code: [&[u8]; 5] = [&[PUSH_RBP], &MOV_RBP_RSP, &sub_rsp_16, &[0xc9], &[RET]];
        let entry = examined(&code).unwrap();
        assert_eq!((entry.at(), entry.length), (START, 8));
        let moved: Vec<_> = entry.moved.iter().map(|moved| &moved.bytes[..]).collect();
        assert_eq!(moved, code[..3]);
        let stay = |moved: &Moved| matches!(moved.kind, InstructionKind::Anywhere);
        assert!(entry.moved.iter().all(stay) && !entry.looks_back());
    }

    #[test]
    fn the_mark_of_an_indirect_call_stays_in_front() {
        let endbr64 = [0xf3, 0x0f, 0x1e, 0xfa];
        let entry = examined(&[&endbr64, &[NOP; 5], &[RET]]).unwrap();
        assert_eq!((entry.at(), entry.length), (START + 4, 5));
    }

    #[test]
    fn what_says_how_far_away_something_is_can_move() {
        let lea_rax_rip_16 = [0x48, 0x8d, 0x05, 0x10, 0, 0, 0];
        let entry = examined(&[&lea_rax_rip_16, &[RET]]).unwrap();
        let InstructionKind::Relative { at, target } = entry.moved[0].kind else {
            panic!("it is relative");
        };
        assert_eq!((at, target), (3, START + 7 + 0x10));

        // Each of these jumps leads to a target after the part that is overwritten: a short and a near conditional
        // jump, and an unconditional jump.
        let near: [(&[u8], _); 3] = [
            (&[0x74, 3], [0x0f, 0x84]),
            (&[0x0f, 0x8f, 3, 0, 0, 0], [0x0f, 0x8f]),
            (&[0xeb, 3], [0, 0xe9]),
        ];
        for (jump, expected) in near {
            let entry = examined(&[jump, &[NOP; 3], &[RET]]).unwrap();
            let InstructionKind::Branch { opcode, target } = entry.moved[0].kind else {
                panic!("it is a branch");
            };
            assert_eq!((opcode, target), (expected, START + jump.len() + 3));
        }
    }

    #[test]
    fn what_a_function_ends_in_is_known() {
        const TARGET: usize = START + 0x1000;
        const SLOT: usize = START + 0x2000;
        let to = |from: usize, target: usize| {
            let distance = i32::try_from(target.wrapping_sub(from).cast_signed()).unwrap();
            distance.to_le_bytes()
        };
        let stub = [
            &[0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25][..],
            &to(TARGET + 10, SLOT),
        ]
        .concat();
        let ends_in = |code: &[u8], is_stub: bool| {
            let read = |at: usize, buffer: &mut [u8]| match at {
                TARGET if is_stub && buffer.len() <= 11 => {
                    let length = buffer.len().min(stub.len());
                    buffer[..length].copy_from_slice(&stub[..length]);
                    true
                }
                TARGET => {
                    buffer.fill(NOP);
                    true
                }
                SLOT => {
                    buffer.copy_from_slice(&0x4242_usize.to_le_bytes());
                    true
                }
                _ => false,
            };
            examine(START, code, read).unwrap().ends_in
        };
        let jump = [&[0xe9][..], &to(START + 5, TARGET)].concat();
        assert_eq!(ends_in(&jump, false), [TARGET]);
        assert_eq!(
            ends_in(&jump, true),
            [TARGET, 0x4242],
            "through the slot of a stub"
        );
        let through_a_slot = [&[0xff, 0x25][..], &to(START + 6, SLOT)].concat();
        assert_eq!(ends_in(&through_a_slot, false), [0x4242]);
        let within = [&[0xeb, 3], &[NOP; 3][..], &[RET]].concat();
        assert_eq!(ends_in(&within, false), [0; 0]);
    }

    #[test]
    fn what_cannot_move_is_refused() {
        let call = [0xe8, 0, 0, 0, 0];
        assert_eq!(refusal(&[&call, &[RET]]), Some(PatchRefusal::Call));
        assert_eq!(refusal(&[&[NOP; 3], &[RET]]), Some(PatchRefusal::TooShort));
        assert_eq!(refusal(&[]), Some(PatchRefusal::TooShort));
        let push_es = [0x06];
        assert_eq!(
            refusal(&[&[NOP; 5], &push_es]),
            Some(PatchRefusal::Undecodable)
        );
        let loop_on = [0xe2, 0x10];
        assert_eq!(
            refusal(&[&loop_on, &[NOP; 4]]),
            Some(PatchRefusal::Immovable)
        );
        let back_to_the_second = [0xeb, 0xf8];
        let code: [&[u8]; 3] = [&[NOP; 7], &back_to_the_second, &[RET]];
        assert_eq!(refusal(&code), Some(PatchRefusal::Loops));
        assert!(
            examined(&[&[NOP; 7], &call, &[RET]]).is_ok(),
            "a call behind it may stay"
        );
    }

    #[test]
    fn a_jump_table_may_lead_to_what_is_overwritten() {
        const TABLE: usize = 0x20_0000;
        let jump_by_table = [0xff, 0x24, 0xc5, 0, 0, 0x20, 0];
        let code = [&[NOP; 5][..], &jump_by_table, &[RET]].concat();
        let with = |entries: &[usize]| {
            let read = |at: usize, buffer: &mut [u8]| {
                let index = at.checked_sub(TABLE).map(|at| at / 8);
                let entry = index.and_then(|index| entries.get(index));
                if buffer.len() == 8
                    && let Some(entry) = entry
                {
                    buffer.copy_from_slice(&entry.to_le_bytes());
                    return true;
                }
                false
            };
            examine(START, &code, read)
        };
        assert!(with(&[START + 5, START + 12]).is_ok());
        let hit = with(&[START + 5, START + 4]).err();
        assert_eq!(hit, Some(PatchRefusal::Table));
        assert!(
            with(&[START + 5, 0, START + 4]).is_ok(),
            "it ends where an entry leads out"
        );
    }

    #[test]
    fn a_jump_table_of_distances_is_one_too() {
        const TABLE: usize = START + 0x1000;
        let lea_rax_table = [0x48, 0x8d, 0x05, 0xf4, 0x0f, 0, 0];
        let jmp_rax = [0xff, 0xe0];
        let code = [&[NOP; 5][..], &lea_rax_table, &jmp_rax].concat();
        let with = |target: usize| {
            let read = |at: usize, buffer: &mut [u8]| {
                let is_it = at == TABLE && buffer.len() == 4;
                if is_it {
                    let distance = i32::try_from(target.cast_signed() - TABLE.cast_signed());
                    buffer.copy_from_slice(&distance.unwrap().to_le_bytes());
                }
                is_it
            };
            examine(START, &code, read).err()
        };
        assert_eq!(with(START + 2), Some(PatchRefusal::Table));
        assert_eq!(with(START + 6), None);
    }

    #[test]
    fn a_function_that_reads_its_return_address_looks_back() {
        let mov_rax_at_rsp = [0x48, 0x8b, 0x04, 0x24];
        let mov_rax_at_rsp_8 = [0x48, 0x8b, 0x44, 0x24, 8];
        let mov_rax_at_rbp_8 = [0x48, 0x8b, 0x45, 8];
        let sub_rsp_8 = [0x48, 0x83, 0xec, 8];
        assert!(looks_back(&[&mov_rax_at_rsp, &[NOP, RET]]));
        assert!(looks_back(&[&[PUSH_RBP], &mov_rax_at_rsp_8, &[RET]]));
        assert!(looks_back(&[&sub_rsp_8, &mov_rax_at_rsp_8, &[RET]]));
        let (push_rbx, pop_rbx, leave) = (0x53, 0x5b, 0xc9);
        assert!(looks_back(&[
            &[push_rbx, NOP, NOP, NOP, pop_rbx],
            &mov_rax_at_rsp,
            &[RET]
        ]));
        let mov_at_rsp_rax = [0x48, 0x89, 0x04, 0x24];
        let part: [&[u8]; 5] = [
            &[PUSH_RBP],
            &MOV_RBP_RSP,
            &sub_rsp_8,
            &[leave, RET],
            &mov_at_rsp_rax,
        ];
        assert!(!looks_back(&part), "an argument, in code after the return");
        let add_rsp_8 = [0x48, 0x83, 0xc4, 8];
        assert!(looks_back(&[
            &sub_rsp_8,
            &add_rsp_8,
            &mov_rax_at_rsp,
            &[RET]
        ]));
        assert!(looks_back(&[
            &[PUSH_RBP],
            &MOV_RBP_RSP,
            &[push_rbx, leave],
            &mov_rax_at_rsp,
            &[RET]
        ]));
        assert!(looks_back(&[
            &[PUSH_RBP],
            &MOV_RBP_RSP,
            &mov_rax_at_rbp_8,
            &[RET]
        ]));
        assert!(
            !looks_back(&[&[PUSH_RBP], &mov_rax_at_rsp, &[RET]]),
            "what it has pushed"
        );
        assert!(!looks_back(&[&mov_rax_at_rsp_8, &[RET]]), "an argument");
        assert!(
            !looks_back(&[&mov_rax_at_rbp_8, &[NOP, RET]]),
            "its caller's frame"
        );
        let pop_rsp = [0x5c];
        assert!(
            !looks_back(&[&pop_rsp, &mov_rax_at_rsp, &[RET]]),
            "nobody knows where it is"
        );
    }

    #[test]
    fn a_function_that_ends_in_another_modules_looks_back() {
        let jmp_far = [0xe9, 0, 0x10, 0, 0];
        let code = [&[NOP; 5][..], &jmp_far].concat();
        let ending_in = |there: &[u8]| {
            let read = |_: usize, buffer: &mut [u8]| {
                let length = buffer.len().min(there.len());
                buffer[..length].copy_from_slice(&there[..length]);
                !there.is_empty()
            };
            examine(START, &code, read).unwrap().looks_back()
        };
        let stub = [0xff, 0x25, 0, 0, 0, 0];
        assert!(ending_in(&stub));
        assert!(ending_in(
            &[&[0xf3, 0x0f, 0x1e, 0xfa][..], &stub[..4]].concat()
        ));
        assert!(ending_in(&[&[0xf2][..], &stub].concat()));
        assert!(!ending_in(&[PUSH_RBP, RET]));
        assert!(ending_in(&[]), "it cannot be read");
        let jmp_rax = [0xff, 0xe0];
        assert!(looks_back(&[&[NOP; 5], &jmp_rax]), "nobody knows where to");
    }
}
