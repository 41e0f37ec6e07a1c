//! Fuzzes ELF files, which the command and the hooks of native functions read.

use std::sync::LazyLock;

use regex::bytes::Regex;
use tllmprof_symbols::{Image, LIMIT, Nearest, Pattern, reach};

/// A pattern that selects function names. It is compiled once for all inputs, because compiling takes longer than
/// reading a file.
static PATTERN: LazyLock<Pattern> =
    LazyLock::new(|| Pattern::new(&Regex::new("step|Class.*f").expect("a pattern")));

/// Reads a file with any content. A damaged ELF file gives an error or fewer symbols.
pub fn symbols(bytes: &[u8]) {
    let Ok(image) = Image::read(bytes) else {
        return;
    };
    for function in image.functions() {
        reach(&function, &image);
    }
    assert!(image.matching(&PATTERN, LIMIT).functions.len() <= LIMIT);
    let mut nearest = Nearest::new(&PATTERN);
    nearest.look(&image);
    assert!(nearest.names(3).len() <= 3);
}
