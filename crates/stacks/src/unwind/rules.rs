//! Finds the caller of the function at a code address with the unwind table of the module (`.eh_frame`).

use core::hash::BuildHasherDefault;
use std::collections::HashMap;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, Encoding, EndianSlice, Format, LittleEndian, Operation,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection,
};
use tllmprof_platform::peek;
use tllmprof_python::stacks::OfAddress;

use super::Modules;

/// The most code addresses whose unwind data is stored in the table.
const MAX_ADDRESSES: usize = 1 << 12;
/// Entries of `.eh_frame` are read only if their length field is less than this number of bytes.
const MAX_ENTRY_BYTES: usize = 1 << 16;

#[cfg(target_arch = "x86_64")]
mod registers {
    use gimli::{Register, X86_64};

    pub(crate) const STACK_POINTER: Register = X86_64::RSP;
    pub(crate) const FRAME_POINTER: Register = X86_64::RBP;
    pub(crate) const RETURN_ADDRESS: Register = X86_64::RA;
}

#[cfg(target_arch = "aarch64")]
mod registers {
    use gimli::{AArch64, Register};

    pub(super) const STACK_POINTER: Register = AArch64::SP;
    pub(super) const FRAME_POINTER: Register = AArch64::X29;
    pub(super) const RETURN_ADDRESS: Register = AArch64::X30;
}

use registers::{FRAME_POINTER, RETURN_ADDRESS, STACK_POINTER};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A function, and the way to find its caller from one of its code addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnwindInfo {
    pub start: usize,
    /// The way to find the function's caller; `None` if the caller cannot be determined.
    pub caller: Option<Caller>,
}

/// The caller of a function: none, or the one that a rule gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caller {
    /// The function has no caller: the thread begins here.
    Nobody,
    By(UnwindRule),
}

/// The rules that give the caller's registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnwindRule {
    /// The rule for the caller's stack pointer, which DWARF calls the CFA.
    pub cfa: Cfa,
    pub frame_pointer: Saved,
    /// The distance of the return address from the caller's stack pointer, in bytes.
    pub return_address: isize,
}

/// The rule for the caller's frame pointer. Distances are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Saved {
    /// The function does not change the frame pointer, so the caller's value is still in the
    /// register.
    Kept,
    /// The caller's frame pointer is saved in memory at this distance from the caller's stack
    /// pointer.
    FromCfa(isize),
    /// The caller's frame pointer is saved in memory at this distance from the function's own frame
    /// pointer.
    FromFramePointer(isize),
}

/// The rule for the caller's stack pointer (CFA). Distances are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cfa {
    /// The value of the stack pointer register plus this distance.
    Stack(isize),
    /// The value of the frame pointer register plus this distance.
    Frame(isize),
    /// The word in memory at this distance from the frame pointer, as in functions that align their
    /// stack.
    AtFrame(isize),
}

impl Cfa {
    /// Returns true if the caller's stack pointer is at a fixed distance from the function's frame pointer. The return
    /// address is then at a fixed distance, too, so the frame pointer can be computed from the place of the return
    /// address ([`UnwindRule::frame_pointer_of`]).
    pub(crate) const fn needs_frame_pointer(self) -> bool {
        matches!(self, Self::Frame(_))
    }
}

impl UnwindRule {
    /// Returns the function's frame pointer if its return address is at `at`. Returns `None` for rules that do not
    /// give the caller's stack pointer as a fixed distance from the frame pointer.
    pub(crate) const fn frame_pointer_of(self, at: usize) -> Option<usize> {
        match self.cfa {
            Cfa::Frame(offset) => Some(
                at.wrapping_add_signed(-self.return_address)
                    .wrapping_add_signed(-offset),
            ),
            Cfa::Stack(_) | Cfa::AtFrame(_) => None,
        }
    }
}

/// The unwind data of each code address that was looked up; `None` if no table contains the
/// address.
#[derive(Default)]
pub(super) struct Rules(HashMap<usize, Option<UnwindInfo>, BuildHasherDefault<OfAddress>>);

impl Rules {
    /// Returns the function that contains an address, or `None` if no table contains it.
    pub(super) fn function_at(&mut self, modules: &Modules, address: usize) -> Option<UnwindInfo> {
        if let Some(known) = self.0.get(&address) {
            return *known;
        }
        if self.0.len() >= MAX_ADDRESSES {
            self.0.clear();
        }
        let table = modules.unwind_table(address);
        let found = table.and_then(|table| function(table, address));
        self.0.insert(address, found);
        found
    }
}

fn function(table: usize, address: usize) -> Option<UnwindInfo> {
    let entry = UnwindTableEntry::find(table, address)?;
    let bases = BaseAddresses::default().set_eh_frame(entry.address as u64);
    let section = EhFrame::new(&entry.bytes, LittleEndian);
    let fde = section
        .fde_from_offset(&bases, entry.fde.into(), EhFrame::cie_from_offset)
        .ok()?;
    let mut context = UnwindContext::new();
    let row = fde
        .unwind_info_for_address(&section, &bases, &mut context, address as u64)
        .ok()?;
    let caller = || {
        let return_address = match row.register(RETURN_ADDRESS) {
            Some(RegisterRule::Offset(return_address)) => return_address,
            Some(RegisterRule::Undefined) => return Some(Caller::Nobody),
            _ => return None,
        };
        let frame_pointer = match row.register(FRAME_POINTER) {
            None | Some(RegisterRule::SameValue) => Saved::Kept,
            Some(RegisterRule::Offset(offset)) => Saved::FromCfa(offset as isize),
            Some(RegisterRule::Expression(at)) => {
                Saved::FromFramePointer(from_frame_pointer(at, &section, false)?)
            }
            Some(_) => return None,
        };
        Some(Caller::By(UnwindRule {
            cfa: cfa(row.cfa(), &section)?,
            frame_pointer,
            return_address: return_address as isize,
        }))
    };
    Some(UnwindInfo {
        start: fde.initial_address() as usize,
        // The caller of the code to which a signal handler returns is left unknown: more registers would be needed
        // than are known here.
        caller: caller().filter(|_| !fde.is_signal_trampoline()),
    })
}

fn cfa(rule: &CfaRule<usize>, section: &EhFrame<Slice<'_>>) -> Option<Cfa> {
    match *rule {
        CfaRule::RegisterAndOffset { register, offset } => match register {
            STACK_POINTER => Some(Cfa::Stack(offset as isize)),
            FRAME_POINTER => Some(Cfa::Frame(offset as isize)),
            _ => None,
        },
        CfaRule::Expression(at) => from_frame_pointer(at, section, true).map(Cfa::AtFrame),
    }
}

/// Evaluates an expression of the form "frame pointer plus distance", and returns the distance. If `lies_there` is
/// true, the expression must then read the word at the address that this sum gives. Compilers write these two forms in
/// functions that align their stack. Other forms are not supported, because compilers do not write them for code in
/// which a thread can sleep.
fn from_frame_pointer(
    expression: UnwindExpression<usize>,
    section: &EhFrame<Slice<'_>>,
    lies_there: bool,
) -> Option<isize> {
    const ENCODING: Encoding = Encoding {
        address_size: 8,
        format: Format::Dwarf32,
        version: 4,
    };
    let mut operations = expression.get(section).ok()?.operations(ENCODING);
    let Operation::RegisterOffset {
        register: FRAME_POINTER,
        offset,
        ..
    } = operations.next().ok()??
    else {
        return None;
    };
    let is_deref = match operations.next().ok()? {
        None => false,
        Some(Operation::Deref { size: 8, .. }) => operations.next().ok()?.is_none(),
        Some(_) => return None,
    };
    (is_deref == lies_there).then_some(offset as isize)
}

/// The table entry for a code address, copied together with the data that it refers to, so that
/// both can be read like a section.
struct UnwindTableEntry {
    bytes: Vec<u8>,
    /// The offset in `bytes` of the function's entry (FDE) in the unwind table.
    fde: usize,
    /// The memory address that corresponds to the start of `bytes`, so that relative addresses in
    /// the entry are resolved correctly.
    address: usize,
}

impl UnwindTableEntry {
    fn find(header: usize, address: usize) -> Option<Self> {
        // The supported header: version 1, an encoded pointer, then a count and a sorted table
        // whose words are relative to the header.
        const KNOWN: [u8; 2] = [0x03, 0x3b];
        let [version, pointer, count, table] = bytes(header)?;
        if version != 1 || [count, table] != KNOWN || pointer & 0xf != 0xb {
            return None;
        }
        let count = u32::from_le_bytes(bytes(header + 8)?) as usize;
        let row = |index: usize| -> Option<[usize; 2]> {
            let [a, b, c, d, e, f, g, h] = bytes(header + 12 + 8 * index)?;
            let relative = |bytes| header.wrapping_add_signed(i32::from_le_bytes(bytes) as isize);
            Some([relative([a, b, c, d]), relative([e, f, g, h])])
        };
        // Search for the last row of the sorted table whose code begins at the address or before
        // it.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low + (high - low) / 2;
            match row(middle)?[0] <= address {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let [_, at] = row(low.checked_sub(1)?)?;
        let mut fde = whole(at)?;
        let back = u32::from_le_bytes(fde.get(4..8)?.try_into().ok()?) as usize;
        let mut bytes = whole((at + 4).checked_sub(back)?)?;
        let start = bytes.len();
        let distance = u32::try_from(start + 4).ok()?;
        fde.get_mut(4..8)?.copy_from_slice(&distance.to_le_bytes());
        bytes.append(&mut fde);
        Some(Self {
            bytes,
            fde: start,
            address: at.wrapping_sub(start),
        })
    }
}

/// Returns the entry of `.eh_frame` at an address, including its length field.
fn whole(at: usize) -> Option<Vec<u8>> {
    let length = u32::from_le_bytes(bytes(at)?) as usize;
    let mut entry = vec![
        0;
        (8..MAX_ENTRY_BYTES)
            .contains(&length)
            .then_some(length + 4)?
    ];
    peek::copy(at, &mut entry)?;
    Some(entry)
}

fn bytes<const N: usize>(address: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    peek::copy(address, &mut bytes)?;
    Some(bytes)
}
