//! Where each version of CPython has what a stack is read from.
//!
//! Up to 3.12 the offsets are those of the headers, one row for each layout. From 3.13 on `_PyRuntime` begins with a
//! table of them (`_Py_DebugOffsets`), and the rows say where in it. Either way they are tried on a stack that is known
//! before they are trusted ([`super::trial`]).

use tllmprof_platform::ids;
use tllmprof_platform::peek::{self, Span};

use super::Trouble;
use crate::version::Version;

/// What a stack is read from. Offsets are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub thread: Thread,
    pub frame: Frame,
    pub code: Code,
    pub text: Text,
    /// Where an object has its type.
    pub kind: usize,
}

/// `PyThreadState`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thread {
    /// `thread_id`, which is what `pthread_self` returns.
    pub id: usize,
    pub frame: Top,
    /// `datastack_chunk`, where frames lie in chunks.
    pub chunk: Option<usize>,
}

/// Where a thread's innermost frame is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Top {
    Here(usize),
    /// In a structure of the C stack that the thread state leads to.
    Behind {
        pointer: usize,
        frame: usize,
    },
}

/// `PyFrameObject` or `_PyInterpreterFrame`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The caller's.
    pub previous: usize,
    pub code: usize,
    pub instruction: Instruction,
    pub life: Life,
}

/// Where a frame has the instruction that it is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instruction {
    /// An `int`, how many instructions of so many bytes are before it.
    Number { at: usize, bytes: usize },
    /// Its address.
    Address { at: usize },
}

/// How a frame shows that it is one of the stack's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// It is an object. The byte is `runs` as long as it is executed.
    Object { at: usize, runs: u8 },
    /// It lies in the thread's chunks, or in a generator. The byte is one of [`owner`].
    Chunk { owner: usize },
}

/// Whose a frame is that is no object.
pub mod owner {
    pub const THREAD: u8 = 0;
    pub const GENERATOR: u8 = 1;
    /// From here on the interpreter's own, between C and Python: no function.
    pub const NONE: u8 = 3;
}

/// `PyCodeObject`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    pub file: usize,
    /// The qualified name, or before 3.11 the name.
    pub name: usize,
    pub line: usize,
}

/// `PyASCIIObject` and `PyCompactUnicodeObject`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text {
    pub length: usize,
    pub state: usize,
    /// Which bit of the state begins the kind; behind its three are `compact` and `ascii`.
    pub kind: u32,
    /// Where the characters lie, of a text that is ASCII and of another one.
    pub ascii: usize,
    pub other: usize,
}

/// `_PyStackChunk`: the chunk before, its size, and where its frames begin. The first frame of a thread lies one word
/// behind the beginning of its first chunk.
pub mod chunk {
    pub const PREVIOUS: usize = 0;
    pub const SIZE: usize = 8;
    pub const HEADER: usize = 16;
    pub const FIRST_FRAME: usize = 32;
}

const OBJECT: usize = 8;

const TEXT_UNTIL_3_11: Text = Text {
    length: 16,
    state: 32,
    kind: 2,
    ascii: 48,
    other: 72,
};

const UNTIL_3_9: Layout = Layout {
    thread: Thread {
        id: 176,
        frame: Top::Here(24),
        chunk: None,
    },
    frame: Frame {
        previous: 24,
        code: 32,
        instruction: Instruction::Number { at: 104, bytes: 1 },
        life: Life::Object { at: 116, runs: 1 },
    },
    code: Code {
        file: 104,
        name: 112,
        line: 40,
    },
    text: TEXT_UNTIL_3_11,
    kind: OBJECT,
};

const IN_3_10: Layout = Layout {
    frame: Frame {
        instruction: Instruction::Number { at: 96, bytes: 2 },
        life: Life::Object { at: 108, runs: 0 },
        ..UNTIL_3_9.frame
    },
    ..UNTIL_3_9
};

const IN_3_11: Layout = Layout {
    thread: Thread {
        id: 152,
        frame: Top::Behind {
            pointer: 56,
            frame: 8,
        },
        chunk: Some(296),
    },
    frame: Frame {
        previous: 48,
        code: 32,
        instruction: Instruction::Address { at: 56 },
        life: Life::Chunk { owner: 69 },
    },
    code: Code {
        file: 112,
        name: 128,
        line: 72,
    },
    text: TEXT_UNTIL_3_11,
    kind: OBJECT,
};

const IN_3_12: Layout = Layout {
    thread: Thread {
        id: 136,
        frame: Top::Behind {
            pointer: 56,
            frame: 0,
        },
        chunk: Some(232),
    },
    frame: Frame {
        previous: 8,
        code: 0,
        instruction: Instruction::Address { at: 56 },
        life: Life::Chunk { owner: 70 },
    },
    code: Code {
        line: 68,
        ..IN_3_11.code
    },
    text: Text {
        ascii: 40,
        other: 56,
        ..TEXT_UNTIL_3_11
    },
    kind: OBJECT,
};

/// Where `_Py_DebugOffsets` has each of them, counted in words.
struct Table {
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

const IN_3_13: Table = Table {
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

const IN_3_14: Table = Table {
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

const IN_3_15: Table = Table {
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

/// What the table begins with, and where it says whether threads run without a GIL.
const COOKIE: [u8; 8] = *b"xdebugpy";
const FREE_THREADED: usize = 2;
/// Words of the table that are looked at.
const WORDS: usize = 96;

enum Row {
    Known(Layout),
    Described(Table),
}

/// From 3.8 on.
const ROWS: [Row; 8] = [
    Row::Known(UNTIL_3_9),
    Row::Known(UNTIL_3_9),
    Row::Known(IN_3_10),
    Row::Known(IN_3_11),
    Row::Known(IN_3_12),
    Row::Described(IN_3_13),
    Row::Described(IN_3_14),
    Row::Described(IN_3_15),
];

impl Layout {
    /// That of a version, whose `_PyRuntime` lies at `runtime`.
    pub fn of(version: Version, runtime: usize) -> Result<Self, Trouble> {
        match version.row(&ROWS) {
            Row::Known(layout) => Ok(*layout),
            Row::Described(table) => {
                let words = words(runtime)?;
                table.layout(&words).ok_or(Trouble::NotDescribed)
            }
        }
    }

    /// Bytes of a thread state that are looked at.
    pub fn thread_bytes(&self) -> usize {
        let (Top::Here(frame) | Top::Behind { pointer: frame, .. }) = self.thread.frame;
        word_end(&[self.thread.id, frame, self.thread.chunk.unwrap_or(0)])
    }

    /// Of a frame.
    pub fn frame_bytes(&self) -> usize {
        let (Life::Object { at, .. } | Life::Chunk { owner: at }) = self.frame.life;
        word_end(&[self.frame.previous, self.frame.code, at & !7])
    }

    /// Of a code object.
    pub fn code_bytes(&self) -> usize {
        word_end(&[self.code.file, self.code.name, self.code.line, self.kind])
    }

    /// Of a text, before its characters.
    pub fn text_bytes(&self) -> usize {
        word_end(&[self.text.length, self.text.state, self.kind])
    }
}

/// Where the last of these words ends.
fn word_end(offsets: &[usize]) -> usize {
    offsets.iter().copied().max().unwrap_or(0) + size_of::<u64>()
}

/// The table of `_PyRuntime`.
fn words(runtime: usize) -> Result<[u64; WORDS], Trouble> {
    let span = Span {
        address: runtime,
        length: WORDS * size_of::<u64>(),
    };
    let mut bytes = [0; WORDS * size_of::<u64>()];
    match peek::read(ids::process(), &[span], &mut bytes) {
        Ok(copied) if copied == bytes.len() && bytes.starts_with(&COOKIE) => {}
        Ok(_) | Err(libc::EFAULT) => return Err(Trouble::NotDescribed),
        Err(error) => return Err(Trouble::Refused(error)),
    }
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    Ok(words)
}

impl Table {
    /// None where an offset is none.
    fn layout(&self, words: &[u64; WORDS]) -> Option<Layout> {
        // No structure is larger.
        const MOST: u64 = 1 << 16;
        let at = |word: usize| {
            let offset = words.get(word).filter(|offset| **offset < MOST)?;
            usize::try_from(*offset).ok()
        };
        let ascii = at(self.ascii)?;
        Some(Layout {
            thread: Thread {
                id: at(self.id)?,
                frame: Top::Here(at(self.frame)?),
                chunk: Some(at(self.chunk)?),
            },
            frame: Frame {
                previous: at(self.previous)?,
                code: at(self.code)?,
                instruction: Instruction::Address {
                    at: at(self.instruction)?,
                },
                life: Life::Chunk {
                    owner: at(self.owner)?,
                },
            },
            code: Code {
                file: at(self.file)?,
                name: at(self.name)?,
                line: at(self.line)?,
            },
            text: Text {
                length: at(self.length)?,
                state: at(self.state)?,
                // Without a GIL the byte before it is changed by itself.
                kind: if words[FREE_THREADED] == 1 { 8 } else { 2 },
                ascii,
                // Behind what a text of ASCII has: the length as UTF-8, and where that is.
                other: ascii + 16,
            },
            kind: at(self.kind)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap()
    }

    #[test]
    fn old_versions_have_their_rows() {
        let of = |text| Layout::of(version(text), 0);
        assert_eq!(of("3.8.1 "), Ok(UNTIL_3_9));
        assert_eq!(of("3.9.1 "), Ok(UNTIL_3_9));
        assert_eq!(of("3.10.1 "), Ok(IN_3_10));
        assert_eq!(of("3.11.1 "), Ok(IN_3_11));
        assert_eq!(of("3.12.1 "), Ok(IN_3_12));
    }

    #[test]
    fn new_versions_describe_themselves() {
        let mut words = [0_u64; WORDS];
        let of = |words: &[u64; WORDS]| {
            Layout::of(version("3.14.1 "), core::ptr::from_ref(words).addr())
        };
        assert_eq!(of(&words), Err(Trouble::NotDescribed));
        words[0] = u64::from_ne_bytes(COOKIE);
        words[FREE_THREADED] = 1;
        words[IN_3_14.owner] = 78;
        words[IN_3_14.ascii] = 56;
        let layout = of(&words).unwrap();
        assert_eq!(layout.frame.life, Life::Chunk { owner: 78 });
        assert_eq!((layout.text.kind, layout.text.other), (8, 72));
        words[IN_3_14.owner] = 1 << 16;
        assert_eq!(of(&words), Err(Trouble::NotDescribed));
        // Nothing lies there.
        assert_eq!(
            Layout::of(version("3.14.1 "), 16),
            Err(Trouble::NotDescribed)
        );
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
