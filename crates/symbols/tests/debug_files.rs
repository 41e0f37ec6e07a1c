//! Tests of stripped files, whose symbols are in separate debug files.

mod common;

use std::fs;
use std::path::Path;

use common::{LIBRARY, Scratch, matching, open};
use tllmprof_symbols::{Image, Reach, reach};

const HIDDEN: &str = "^ns::.anonymous namespace.::hidden";

/// Creates a stripped library `lib.so`, and a file `lib.debug` with its symbols.
fn stripped(scratch: &Scratch, arguments: &[&str]) {
    let flags = [&["-shared", "-fPIC", "-O1"], arguments].concat();
    scratch.compile("lib.so", LIBRARY, &flags);
    scratch.tool(&["objcopy", "--only-keep-debug", "lib.so", "lib.debug"]);
    scratch.tool(&["strip", "lib.so"]);
}

fn build_id(path: &Path) -> String {
    let id = open(path).elf.build_id.unwrap();
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn by_build_id() {
    let scratch = Scratch::new();
    stripped(&scratch, &["-Wl,--build-id=sha1"]);
    let library = scratch.path("lib.so");
    let alone = open(&library);
    assert!(alone.is_stripped());
    assert!(matching(&alone, HIDDEN).is_empty());
    assert_eq!(matching(&alone, "^llama_decode$"), ["llama_decode"]);

    let (first, rest) = {
        let id = build_id(&library);
        (id[..2].to_owned(), id[2..].to_owned())
    };
    let place = scratch.path(&format!("root/.build-id/{first}/{rest}.debug"));
    fs::rename(scratch.path("lib.debug"), &place).unwrap();
    let image = Image::open_with(&library, &scratch.path("root")).unwrap();
    assert_eq!(image.debug_file.as_deref(), Some(&*place));
    assert_eq!(matching(&image, HIDDEN).len(), 1);
    let found = image.matching(&common::pattern(HIDDEN), 64);
    let hidden = &found.functions[0];
    assert!(hidden.sources.debug && !hidden.sources.dynamic && hidden.size > 0);
    assert_eq!(reach(hidden, &image), Reach::Entry);
    // A function that is in both symbol tables is returned once.
    let decode = image.matching(&common::pattern("^llama_decode$"), 64);
    assert_eq!(decode.functions.len(), 1);
    assert!(decode.functions[0].sources.debug && decode.functions[0].sources.dynamic);

    // A debug file of another build is not used.
    scratch.compile(
        "lib.so",
        "int other() { return 1; }",
        &["-shared", "-fPIC", "-s", "-Wl,--build-id=sha1"],
    );
    let id = build_id(&library);
    let wrong = scratch.path(&format!("root/.build-id/{}/{}.debug", &id[..2], &id[2..]));
    fs::rename(&place, wrong).unwrap();
    let image = Image::open_with(&library, &scratch.path("root")).unwrap();
    assert_eq!(image.debug_file, None);
}

#[test]
fn by_debug_link() {
    for place in ["lib.debug", ".debug/lib.debug", "root/"] {
        let scratch = Scratch::new();
        stripped(&scratch, &["-Wl,--build-id=none"]);
        scratch.tool(&["objcopy", "--add-gnu-debuglink=lib.debug", "lib.so"]);
        let library = scratch.path("lib.so");
        let place = if place == "root/" {
            let folder = library.parent().unwrap().to_str().unwrap();
            scratch.path(&format!("root{folder}/lib.debug"))
        } else {
            scratch.path(place)
        };
        let from = scratch.path("lib.debug");
        if place != from {
            fs::rename(&from, &place).unwrap();
        }
        let image = Image::open_with(&library, &scratch.path("root")).unwrap();
        assert_eq!(image.debug_file.as_deref(), Some(&*place));
        assert_eq!(matching(&image, HIDDEN).len(), 1);

        // A debug file with the wrong checksum is not used.
        let mut bytes = fs::read(&place).unwrap();
        bytes.push(0);
        fs::write(&place, bytes).unwrap();
        let image = Image::open_with(&library, &scratch.path("root")).unwrap();
        assert_eq!(image.debug_file, None);
    }
}

#[test]
fn a_link_to_itself_is_none() {
    let scratch = Scratch::new();
    stripped(&scratch, &["-Wl,--build-id=sha1"]);
    fs::copy(scratch.path("lib.debug"), scratch.path("keep")).unwrap();
    scratch.tool(&["objcopy", "--add-gnu-debuglink=lib.debug", "lib.so"]);
    fs::rename(scratch.path("lib.so"), scratch.path("lib.debug")).unwrap();
    let image = Image::open_with(&scratch.path("lib.debug"), Path::new("/nonexistent")).unwrap();
    assert_eq!(image.debug_file, None);
    assert!(image.is_stripped());
}
