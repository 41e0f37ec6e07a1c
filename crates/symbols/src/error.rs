use std::{fmt, io};

/// The reason why the functions of a file cannot be found.
#[derive(Debug)]
pub enum SymbolsError {
    Io(io::Error),
    /// The file is not an ELF file.
    NotElf,
    /// The ELF file has a format that `sym:` rules do not support.
    Unsupported(String),
    /// The headers contradict each other or the length of the file. The text describes the fault.
    Malformed(&'static str),
}

impl fmt::Display for SymbolsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NotElf => f.write_str("no ELF file"),
            Self::Unsupported(what) => write!(
                f,
                "{what} (wanted: a linked x86-64 or aarch64 program or library)"
            ),
            Self::Malformed(what) => write!(f, "damaged ELF file, {what}"),
        }
    }
}

impl std::error::Error for SymbolsError {}

impl From<io::Error> for SymbolsError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
