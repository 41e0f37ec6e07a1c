//! Offsets of the fields in CPython's data structures, for each version. The library needs them to read Python stacks
//! and to find the thread that holds the GIL.
//!
//! Up to 3.12, the offsets are from CPython's headers, with one table row for each layout. From 3.13 on, `_PyRuntime`
//! begins with a table of offsets (`_Py_DebugOffsets`), and the rows contain the position of each offset in this
//! table. In both cases, the library checks the offsets on a known stack before it uses them.

#![forbid(unsafe_code)]

/// The offsets, in bytes, of the fields that are needed to read a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub thread: ThreadLayout,
    pub frame: FrameLayout,
    pub code: CodeLayout,
    pub text: TextLayout,
    /// Offset of the pointer to the type (`ob_type`), in any Python object.
    pub kind: usize,
}

/// Offsets in a `PyThreadState`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadLayout {
    /// Offset of `thread_id`, in which CPython stores the result of `pthread_self` on the thread.
    pub id: usize,
    pub frame: Top,
    /// Offset of `datastack_chunk`, the newest chunk of frames. `None` in versions that allocate
    /// each frame as an object.
    pub chunk: Option<usize>,
}

/// The field with the address of a thread's innermost frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Top {
    Here(usize),
    /// The thread state has, at the offset `pointer`, the address of a structure on the C stack. That structure has
    /// the frame's address at the offset `frame`.
    Behind {
        pointer: usize,
        frame: usize,
    },
}

/// Offsets in a `PyFrameObject` or a `_PyInterpreterFrame`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameLayout {
    /// Offset in a frame of the address of its caller's frame.
    pub previous: usize,
    pub code: usize,
    pub instruction: Instruction,
    pub life: Life,
}

/// The form in which a frame stores the position of its current instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instruction {
    /// The `int` at the offset `at` is the index of the current instruction. Each instruction has `bytes` bytes.
    Number { at: usize, bytes: usize },
    /// The pointer at the offset `at` is the address of the current instruction.
    Address { at: usize },
}

/// The field of a frame that shows whether the frame is still on the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// The frame is an object. The byte at the offset `at` equals `runs` while the frame is executed.
    Object { at: usize, runs: u8 },
    /// The frame is in the thread's stack chunks (`_PyStackChunk`) or in a generator. The byte at the offset `owner`
    /// states which of them (see [`owner`]).
    Chunk { owner: usize },
}

/// The values of the owner byte of a frame that is not an object.
pub mod owner {
    pub const THREAD: u8 = 0;
    pub const GENERATOR: u8 = 1;
    /// Frames with this value or a larger one do not run a Python function. The interpreter creates them when C code
    /// calls Python code.
    pub const NONE: u8 = 3;
}

/// Offsets in a `PyCodeObject`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeLayout {
    pub file: usize,
    /// Offset of the function's qualified name; before 3.11, of its plain name.
    pub name: usize,
    pub line: usize,
}

/// Offsets in the structures of a str, `PyASCIIObject` and `PyCompactUnicodeObject`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextLayout {
    pub length: usize,
    pub state: usize,
    /// Bit position of `kind` in the state word. `kind` has three bits; the bits after them are `compact` and
    /// `ascii`.
    pub kind: u32,
    /// Offset of the characters in a str that is ASCII.
    pub ascii: usize,
    /// Offset of the characters in a str that is not ASCII.
    pub other: usize,
}

/// Offsets, in bytes, in a `_PyStackChunk`, a memory block in which CPython allocates frames. Only the first two
/// fields are read; `HEADER` is their length. The data begins after a third field, at offset 24. In a thread's oldest
/// chunk, CPython leaves the first word of the data unused, so the first frame of that chunk is at `FIRST_FRAME`.
pub mod chunk {
    pub const PREVIOUS: usize = 0;
    pub const SIZE: usize = 8;
    pub const HEADER: usize = 16;
    pub const FIRST_FRAME: usize = 32;
}

const OBJECT: usize = 8;

const TEXT_UNTIL_3_11: TextLayout = TextLayout {
    length: 16,
    state: 32,
    kind: 2,
    ascii: 48,
    other: 72,
};

const UNTIL_3_9: Layout = Layout {
    thread: ThreadLayout {
        id: 176,
        frame: Top::Here(24),
        chunk: None,
    },
    frame: FrameLayout {
        previous: 24,
        code: 32,
        instruction: Instruction::Number { at: 104, bytes: 1 },
        life: Life::Object { at: 116, runs: 1 },
    },
    code: CodeLayout {
        file: 104,
        name: 112,
        line: 40,
    },
    text: TEXT_UNTIL_3_11,
    kind: OBJECT,
};

const IN_3_10: Layout = Layout {
    frame: FrameLayout {
        instruction: Instruction::Number { at: 96, bytes: 2 },
        life: Life::Object { at: 108, runs: 0 },
        ..UNTIL_3_9.frame
    },
    ..UNTIL_3_9
};

const IN_3_11: Layout = Layout {
    thread: ThreadLayout {
        id: 152,
        frame: Top::Behind {
            pointer: 56,
            frame: 8,
        },
        chunk: Some(296),
    },
    frame: FrameLayout {
        previous: 48,
        code: 32,
        instruction: Instruction::Address { at: 56 },
        life: Life::Chunk { owner: 69 },
    },
    code: CodeLayout {
        file: 112,
        name: 128,
        line: 72,
    },
    text: TEXT_UNTIL_3_11,
    kind: OBJECT,
};

const IN_3_12: Layout = Layout {
    thread: ThreadLayout {
        id: 136,
        frame: Top::Behind {
            pointer: 56,
            frame: 0,
        },
        chunk: Some(232),
    },
    frame: FrameLayout {
        previous: 8,
        code: 0,
        instruction: Instruction::Address { at: 56 },
        life: Life::Chunk { owner: 70 },
    },
    code: CodeLayout {
        line: 68,
        ..IN_3_11.code
    },
    text: TextLayout {
        ascii: 40,
        other: 56,
        ..TEXT_UNTIL_3_11
    },
    kind: OBJECT,
};

/// The offsets, in bytes, of the fields with which an interpreter's threads and the thread that holds its GIL are
/// found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadsLayout {
    /// Offset in `_PyRuntime` of the pointer to the first interpreter.
    pub interpreter: usize,
    /// Offset in an interpreter of the pointer to its first thread state.
    pub first: usize,
    /// Offset in a thread state of the pointer to the next thread state.
    pub next: usize,
    /// Offset in a thread state of the thread's id in the kernel. `None` before 3.11, where only the result of
    /// `pthread_self` is stored.
    pub native: Option<usize>,
    pub holder: Holder,
}

/// The structure that contains the GIL (`_PyRuntime` or the interpreter), with an offset in bytes. At this offset, the
/// structure stores the address of the thread state that took the GIL last. The field after that address states
/// whether this thread still holds the GIL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    InRuntime(usize),
    InInterpreter(usize),
}

const fn threads(
    interpreter: usize,
    first: usize,
    native: Option<usize>,
    holder: Holder,
) -> ThreadsLayout {
    ThreadsLayout {
        interpreter,
        first,
        next: 8,
        native,
        holder,
    }
}

/// The offsets for finding the threads and the holder of the GIL in CPython 3.8 to 3.12, one row for each version.
const THREADS: [ThreadsLayout; 5] = [
    threads(32, 8, None, Holder::InRuntime(1160)),
    threads(32, 8, None, Holder::InRuntime(360)),
    threads(32, 8, None, Holder::InRuntime(360)),
    threads(40, 16, Some(160), Holder::InRuntime(368)),
    threads(40, 72, Some(144), Holder::InInterpreter(1048)),
];

impl ThreadsLayout {
    /// Returns the layout for CPython 3.`minor`. `words` reads the first words of `_PyRuntime`, and is called only
    /// for 3.13 and later. Returns `None` if the version is not supported, or if the words are not a valid table of
    /// offsets.
    pub fn for_minor(minor: u32, words: impl FnOnce() -> Option<[u64; WORDS]>) -> Option<Self> {
        let row = minor.checked_sub(OLDEST_MINOR)? as usize;
        if let Some(known) = THREADS.get(row) {
            return Some(*known);
        }
        // The positions, in words, of two offsets in `_Py_DebugOffsets`. At `next` is the offset of the pointer from
        // one thread state to the next. At `holder` is the offset, in an interpreter, of the address of the thread
        // state that took the GIL last.
        let (next, holder) = if minor == 13 { (21, 18) } else { (24, 19) };
        let VersionLayout::Described(table) = &ROWS[row.min(ROWS.len() - 1)] else {
            return None;
        };
        let words = words().filter(is_table)?;
        Some(Self {
            interpreter: offset(&words, 5)?,
            first: offset(&words, 9)?,
            next: offset(&words, next)?,
            native: Some(offset(&words, table.id + 1)?),
            holder: Holder::InInterpreter(offset(&words, holder)?),
        })
    }
}

/// The oldest minor version of CPython whose layout is known.
const OLDEST_MINOR: u32 = 8;

/// The positions of the needed offsets in `_Py_DebugOffsets`, counted in words.
struct OffsetIndices {
    frame: usize,
    id: usize,
    chunk: usize,
    previous: usize,
    code: usize,
    instruction: usize,
    owner: usize,
    file: usize,
    name: usize,
    line: usize,
    kind: usize,
    state: usize,
    length: usize,
    ascii: usize,
}

const IN_3_13: OffsetIndices = OffsetIndices {
    frame: 23,
    id: 24,
    chunk: 26,
    previous: 29,
    code: 30,
    instruction: 31,
    owner: 33,
    file: 35,
    name: 37,
    line: 39,
    kind: 45,
    state: 68,
    length: 69,
    ascii: 70,
};

const IN_3_14: OffsetIndices = OffsetIndices {
    frame: 26,
    id: 27,
    chunk: 29,
    previous: 32,
    code: 33,
    instruction: 34,
    owner: 36,
    file: 40,
    name: 42,
    line: 44,
    kind: 51,
    state: 78,
    length: 79,
    ascii: 80,
};

const IN_3_15: OffsetIndices = OffsetIndices {
    frame: 26,
    id: 30,
    chunk: 32,
    previous: 40,
    code: 41,
    instruction: 42,
    owner: 44,
    file: 48,
    name: 50,
    line: 52,
    kind: 59,
    state: 90,
    length: 91,
    ascii: 92,
};

/// The first eight bytes of `_Py_DebugOffsets`.
const COOKIE: [u8; 8] = *b"xdebugpy";
/// Position in `_Py_DebugOffsets` of the word that is 1 in builds without a GIL.
const FREE_THREADED: usize = 2;
/// Number of 8-byte words of `_Py_DebugOffsets` that are read.
pub const WORDS: usize = 96;

enum VersionLayout {
    Known(Layout),
    Described(OffsetIndices),
}

/// The layouts from CPython 3.8 on, one for each minor version. Later versions use the last layout.
const ROWS: [VersionLayout; 8] = [
    VersionLayout::Known(UNTIL_3_9),
    VersionLayout::Known(UNTIL_3_9),
    VersionLayout::Known(IN_3_10),
    VersionLayout::Known(IN_3_11),
    VersionLayout::Known(IN_3_12),
    VersionLayout::Described(IN_3_13),
    VersionLayout::Described(IN_3_14),
    VersionLayout::Described(IN_3_15),
];

impl Layout {
    /// Returns the layout for CPython 3.`minor`. `words` reads the first words of `_PyRuntime`, and is called only
    /// for 3.13 and later. Returns `None` if `minor` is too old, or if the words are not a table of offsets.
    pub fn for_minor(minor: u32, words: impl FnOnce() -> Option<[u64; WORDS]>) -> Option<Self> {
        let row = minor.checked_sub(OLDEST_MINOR)? as usize;
        match &ROWS[row.min(ROWS.len() - 1)] {
            VersionLayout::Known(layout) => Some(*layout),
            VersionLayout::Described(table) => table.layout(&words().filter(is_table)?),
        }
    }

    /// Returns the number of bytes of a thread state that must be read to get the fields in this layout.
    pub fn thread_bytes(&self) -> usize {
        let (Top::Here(frame) | Top::Behind { pointer: frame, .. }) = self.thread.frame;
        word_end(&[self.thread.id, frame, self.thread.chunk.unwrap_or(0)])
    }

    /// Returns the number of bytes of a frame that must be read to get the fields in this layout.
    pub fn frame_bytes(&self) -> usize {
        let (Life::Object { at, .. } | Life::Chunk { owner: at }) = self.frame.life;
        word_end(&[self.frame.previous, self.frame.code, at & !7])
    }

    /// Returns the number of bytes of a code object that must be read to get the fields in this layout.
    pub fn code_bytes(&self) -> usize {
        word_end(&[self.code.file, self.code.name, self.code.line, self.kind])
    }

    /// Returns the number of bytes of a str that must be read to get the fields in this layout. The characters are
    /// not included.
    pub fn text_bytes(&self) -> usize {
        word_end(&[self.text.length, self.text.state, self.kind])
    }
}

/// Returns the end of the last of the 8-byte words that begin at these offsets, also as an offset.
fn word_end(offsets: &[usize]) -> usize {
    offsets.iter().copied().max().unwrap_or(0) + size_of::<u64>()
}

/// Returns true if the words begin with the cookie of a `_Py_DebugOffsets`.
fn is_table(words: &[u64; WORDS]) -> bool {
    words[0] == u64::from_ne_bytes(COOKIE)
}

/// Returns the word at the position `word` of a `_Py_DebugOffsets`, which is an offset. Returns `None` if the value
/// is too large for an offset.
fn offset(words: &[u64; WORDS], word: usize) -> Option<usize> {
    // The largest offset that is accepted. No structure of CPython is larger.
    const MAX_OFFSET: u64 = 1 << 16;
    let offset = words.get(word).filter(|offset| **offset < MAX_OFFSET)?;
    usize::try_from(*offset).ok()
}

impl OffsetIndices {
    /// Looks up the offsets in the words of a `_Py_DebugOffsets`. Returns `None` if one of the
    /// offsets is invalid.
    fn layout(&self, words: &[u64; WORDS]) -> Option<Layout> {
        let at = |word: usize| offset(words, word);
        let ascii = at(self.ascii)?;
        Some(Layout {
            thread: ThreadLayout {
                id: at(self.id)?,
                frame: Top::Here(at(self.frame)?),
                chunk: Some(at(self.chunk)?),
            },
            frame: FrameLayout {
                previous: at(self.previous)?,
                code: at(self.code)?,
                instruction: Instruction::Address {
                    at: at(self.instruction)?,
                },
                life: Life::Chunk {
                    owner: at(self.owner)?,
                },
            },
            code: CodeLayout {
                file: at(self.file)?,
                name: at(self.name)?,
                line: at(self.line)?,
            },
            text: TextLayout {
                length: at(self.length)?,
                state: at(self.state)?,
                // `interned`, the first field of the state word, has two bits. In a build without a GIL, it has a
                // whole byte, so `kind` begins at bit 8.
                kind: if words[FREE_THREADED] == 1 { 8 } else { 2 },
                ascii,
                // A text that is not ASCII has two more fields: the length of its UTF-8 form, and a
                // pointer to that form.
                other: ascii + 16,
            },
            kind: at(self.kind)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_have_their_rows() {
        let of = |minor| Layout::for_minor(minor, || None);
        assert_eq!([7, 8, 9].map(of), [None, Some(UNTIL_3_9), Some(UNTIL_3_9)]);
        assert_eq!([10, 11, 12].map(of), [IN_3_10, IN_3_11, IN_3_12].map(Some));
        let threads = |minor| ThreadsLayout::for_minor(minor, || None);
        assert_eq!([7, 13].map(threads), [None, None]);
        assert_eq!(threads(12).unwrap().native, Some(144));
    }

    #[test]
    fn new_versions_describe_themselves() {
        let mut words = [0_u64; WORDS];
        let of = |words: &[u64; WORDS]| Layout::for_minor(14, || Some(*words));
        assert_eq!(of(&words), None);
        words[0] = u64::from_ne_bytes(COOKIE);
        words[FREE_THREADED] = 1;
        words[IN_3_14.owner] = 78;
        words[IN_3_14.ascii] = 56;
        let layout = of(&words).unwrap();
        assert_eq!(layout.frame.life, Life::Chunk { owner: 78 });
        assert_eq!((layout.text.kind, layout.text.other), (8, 72));
        words[IN_3_14.id + 1] = 160;
        words[19] = 7792;
        let threads = ThreadsLayout::for_minor(14, || Some(words)).unwrap();
        let found = (threads.native, threads.holder);
        assert_eq!(found, (Some(160), Holder::InInterpreter(7792)));
        words[IN_3_14.owner] = 1 << 16;
        assert_eq!(of(&words), None);
    }

    #[test]
    fn as_much_is_read_as_is_looked_at() {
        assert_eq!(IN_3_12.thread_bytes(), 240);
        assert_eq!(IN_3_12.frame_bytes(), 72);
        assert_eq!(UNTIL_3_9.frame_bytes(), 120);
        assert_eq!(UNTIL_3_9.code_bytes(), 120);
        assert_eq!(IN_3_12.text_bytes(), 40);
    }
}
