//! Tests that damaged files lead to an error or to fewer symbols, but not to a panic. No read may be larger than the
//! file, or than 4096 bytes if the file is smaller.

mod common;

use std::cell::Cell;
use std::fs;
use std::io;

use common::{LIBRARY, Scratch, pattern};
use tllmprof_symbols::{Image, LIMIT, Nearest, Source, SymbolsError, reach};

/// A file in memory that stores the size of the largest read in `most`.
struct Watched<'a> {
    bytes: &'a [u8],
    most: Cell<usize>,
}

impl Source for Watched<'_> {
    fn length(&self) -> io::Result<u64> {
        self.bytes.length()
    }

    fn fill(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.most.set(self.most.get().max(buffer.len()));
        self.bytes.fill(buffer, offset)
    }
}

/// Reads the symbols of a file and uses them as the library does: it matches, ranks and classifies functions. Returns
/// false if the file is rejected.
fn use_all(bytes: &[u8]) -> bool {
    let source = Watched {
        bytes,
        most: Cell::new(0),
    };
    let image = Image::read(&source);
    // A read of more than 4 KB must not be larger than the file.
    assert!(source.most.get() <= bytes.len().max(4096));
    let Ok(image) = image else {
        return false;
    };
    for function in image.functions() {
        reach(&function, &image);
    }
    let pattern = pattern("Class.*f");
    assert!(image.matching(&pattern, LIMIT).functions.len() <= LIMIT);
    let mut nearest = Nearest::new(&pattern);
    nearest.look(&image);
    assert!(nearest.names(3).len() <= 3);
    true
}

fn fixture() -> Vec<u8> {
    let scratch = Scratch::new();
    let flags = ["-shared", "-fPIC", "-Os", "-Wl,--build-id=sha1"];
    fs::read(scratch.compile("lib.so", LIBRARY, &flags)).unwrap()
}

/// Returns a pseudo-random number (xorshift64). The sequence is the same in each run, and so is the
/// damage.
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 1).unwrap()
}

#[test]
fn files_cut_off() {
    let bytes = fixture();
    assert!(use_all(&bytes));
    let mut refused = 0;
    for length in (0..256).chain((256..bytes.len()).step_by(211)) {
        refused += usize::from(!use_all(&bytes[..length]));
    }
    // The section headers are at the end of the file, so most cut files are rejected.
    assert!(refused > bytes.len() / 211 / 2, "{refused}");
    assert!(matches!(
        Image::read(&bytes[..3]),
        Err(SymbolsError::NotElf)
    ));
    assert!(matches!(
        Image::read(&bytes[..40]),
        Err(SymbolsError::Malformed(_))
    ));
}

#[test]
fn files_with_wrong_bytes() {
    let bytes = fixture();
    let (mut state, mut refused) = (0x7465_6c6c_6d70_726f, 0);
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let sections = usize::try_from(word(0x28)).unwrap();
    for round in 0..600 {
        let mut damaged = bytes.clone();
        for _ in 0..=random(&mut state) % 8 {
            // Half of the damage is in the sensitive parts: the headers at the start, and the
            // section headers.
            let at = match round % 4 {
                0 => random(&mut state) % 0x240,
                1 => sections + random(&mut state) % (bytes.len() - sections),
                _ => random(&mut state) % bytes.len(),
            };
            damaged[at] = match random(&mut state) % 3 {
                0 => 0xff,
                1 => damaged[at] ^ (1 << (random(&mut state) % 8)),
                _ => (random(&mut state) & 0xff) as u8,
            };
        }
        refused += u32::from(!use_all(&damaged));
    }
    assert!((50..550).contains(&refused), "{refused}");
}

#[test]
fn other_files_are_distinguished() {
    let error = |bytes: &[u8]| Image::read(bytes).err().unwrap().to_string();
    assert_eq!(error(b"#!/bin/sh\nexit 0\n"), "no ELF file");
    assert_eq!(error(b""), "no ELF file");
    let elf = fixture();
    let with = |at: usize, byte: u8| {
        let mut bytes = elf.clone();
        bytes[at] = byte;
        error(&bytes)
    };
    assert!(with(4, 1).starts_with("a 32-bit file (wanted: "));
    assert!(with(5, 2).starts_with("a big-endian file (wanted: "));
    assert!(with(16, 1).starts_with("an object file that is not linked yet (wanted: "));
    assert!(with(16, 4).starts_with("a core dump (wanted: "));
    assert!(with(18, 243).contains("another processor, ELF machine 243 (wanted: "));
}
