//! The names of the Python functions on a sampled stack.

use core::ffi::c_int;
use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;

use tllmprof_platform::peek::MemoryRange;
use tllmprof_recorder::{self as recorder, LONGEST, NO_STRING, StringId};
use tllmprof_sync::hash::MIX;

use super::Ready;
use super::layout::Layout;
use super::snapshot::{Snapshot, word};

/// If the names of more code objects than this are stored when a sample begins, all stored names are dropped.
const MAX_CODES: usize = 1 << 16;
/// The most characters of a function's name and of a file's path. A longer text is not read.
const MAX_CHARACTERS: usize = 4096;
/// The most bytes that are recorded of a function's name (`MAX_NAME_BYTES`) and of its file's path (`MAX_FILE_BYTES`).
/// Both together fit into one string of the record.
const MAX_NAME_BYTES: usize = 300;
const MAX_FILE_BYTES: usize = LONGEST - MAX_NAME_BYTES - 20;

/// The fields of a code object at the time its name was read. If they change, the address belongs to a different code
/// object now.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CodeFields {
    file: usize,
    name: usize,
    line: u32,
}

impl CodeFields {
    /// Returns true if the code object does not belong to a function of the program. The
    /// interpreter creates such code objects for its own work after an `__init__`, with the same
    /// str for name and file.
    const fn is_between(self) -> bool {
        self.file == self.name
    }
}

struct NamedCode {
    code: CodeFields,
    /// The id of the record's string for the function; `None` for code of the interpreter that is
    /// not a function.
    id: Option<StringId>,
    /// The number of the sample in which the code object was last checked.
    seen: u64,
}

/// The names of the functions that code objects belong to. The name of each code object is read
/// once.
#[derive(Default)]
pub struct CodeNames {
    known: HashMap<usize, NamedCode, BuildHasherDefault<OfAddress>>,
    snapshot: Snapshot,
    asked: Vec<usize>,
    samples: u64,
}

impl CodeNames {
    /// Calls `give` for each function of a stack, in the order of `codes`, with the id of the record's string for the
    /// function. Returns false, without a call of `give`, if one of `codes` is not a code object or its name cannot be
    /// read. In most such cases the stack has changed while it was read.
    ///
    /// # Errors
    /// Returns the kernel's error number, like [`super::Walker::walk`].
    pub fn strings(
        &mut self,
        process: i32,
        ready: &Ready,
        codes: &[usize],
        mut give: impl FnMut(StringId),
    ) -> Result<bool, c_int> {
        if self.known.len() > MAX_CODES {
            self.known.clear();
        }
        self.samples += 1;
        self.ask(process, &ready.layout, codes)?;
        for at in 0..self.asked.len() {
            if !self.look(ready, self.asked[at]) {
                return Ok(false);
            }
        }
        codes
            .iter()
            .filter_map(|code| self.known.get(code))
            .filter_map(|known| known.id)
            .for_each(&mut give);
        Ok(true)
    }

    /// Copies the code objects that this sample has not checked yet, all in one system call.
    fn ask(&mut self, process: i32, layout: &Layout, codes: &[usize]) -> Result<(), c_int> {
        let now = self.samples;
        self.asked.clear();
        for code in codes {
            let known = self.known.entry(*code).or_insert(NamedCode {
                code: CodeFields {
                    file: 0,
                    name: 0,
                    line: 0,
                },
                id: None,
                seen: 0,
            });
            if core::mem::replace(&mut known.seen, now) != now {
                self.asked.push(*code);
            }
        }
        let length = layout.code_bytes();
        let spans = self.asked.iter().map(|code| MemoryRange {
            address: *code,
            length,
        });
        self.snapshot.take(process, spans)
    }

    /// Reads the name of the code object at `address`, unless it is already known. Returns false if there is no code
    /// object at the address, or if its name cannot be read.
    fn look(&mut self, ready: &Ready, address: usize) -> bool {
        let code = read(&mut self.snapshot, ready, address);
        let is_known = |known: &NamedCode| Some(known.code) == code && known.id != Some(NO_STRING);
        if self.known.get(&address).is_some_and(is_known) {
            return true;
        }
        let id = code.and_then(|code| {
            if code.is_between() {
                return Some(None);
            }
            let text = text_of(&mut self.snapshot, ready, code)?;
            Some(Some(recorder::id_of(&text)))
        });
        let (Some(code), Some(id)) = (code, id) else {
            self.known.remove(&address);
            return false;
        };
        if let Some(known) = self.known.get_mut(&address) {
            (known.code, known.id) = (code, id);
        }
        true
    }
}

/// Reads the fields of a code object, or returns `None` if the address is not a code object.
fn read(snapshot: &mut Snapshot, ready: &Ready, address: usize) -> Option<CodeFields> {
    let layout = &ready.layout;
    let bytes = snapshot.get(address, layout.code_bytes())?;
    let is_code = word(bytes, layout.kind) == ready.code_type;
    is_code.then(|| CodeFields {
        file: word(bytes, layout.code.file),
        name: word(bytes, layout.code.name),
        line: word(bytes, layout.code.line) as u32,
    })
}

/// Returns a text like `Class.method (path/file.py:12)`, with the function's first line. A name
/// that is too long is cut at its end, and a path at its beginning.
fn text_of(snapshot: &mut Snapshot, ready: &Ready, code: CodeFields) -> Option<String> {
    let mut name = text(snapshot, ready, code.name)?;
    name.truncate(name.floor_char_boundary(MAX_NAME_BYTES));
    let file = text(snapshot, ready, code.file)?;
    let file = &file[file.ceil_char_boundary(file.len().saturating_sub(MAX_FILE_BYTES))..];
    Some(format!("{name} ({file}:{})", code.line))
}

/// Returns the text of one code object, as [`CodeNames::strings`] records it. The text is empty if
/// the code is not a function's.
pub(crate) fn name_of(snapshot: &mut Snapshot, ready: &Ready, address: usize) -> Option<String> {
    let code = read(snapshot, ready, address)?;
    if code.is_between() {
        return Some(String::new());
    }
    text_of(snapshot, ready, code)
}

/// Reads a Python str, or returns `None` if the address is not one or the str is too long.
fn text(snapshot: &mut Snapshot, ready: &Ready, address: usize) -> Option<String> {
    let (at, kind) = (ready.layout.text, ready.layout.kind);
    let bytes = snapshot.get(address, ready.layout.text_bytes())?;
    let (length, state) = (
        word(bytes, at.length),
        word(bytes, at.state) as u32 >> at.kind,
    );
    if word(bytes, kind) != ready.text_type || length > MAX_CHARACTERS {
        return None;
    }
    let (is_compact, is_ascii) = (state & 0b1000 != 0, state & 0b1_0000 != 0);
    let width = match state & 0b111 {
        width @ (1 | 2 | 4) if is_compact => width as usize,
        _ => return None,
    };
    let start = address.checked_add(if is_ascii { at.ascii } else { at.other })?;
    let bytes = snapshot.get(start, length * width)?;
    let code = |character: &[u8]| match *character {
        [one] => u32::from(one),
        [one, two] => u32::from(u16::from_ne_bytes([one, two])),
        [one, two, three, four] => u32::from_ne_bytes([one, two, three, four]),
        _ => 0,
    };
    let shown = |character| char::from_u32(character).unwrap_or(char::REPLACEMENT_CHARACTER);
    Some(bytes.chunks(width).map(code).map(shown).collect())
}

/// A hasher for memory addresses. The standard library's hasher would need one of the process's few
/// thread keys (`pthread_key_t`).
#[derive(Default)]
pub struct OfAddress(u64);

impl Hasher for OfAddress {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(MIX);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}
