//! Tests which names match a pattern. One test checks that no matching name is skipped by the search that avoids
//! demangling.

mod common;
#[path = "../../../tests/common/skipped.rs"]
mod skipped;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::{LIBRARY, Scratch, matching, names, open, pattern};
use skipped::skipped;
use tllmprof_symbols::{Image, Machine, Nearest, Reach, Reason, demangle, reach};

fn library(scratch: &Scratch) -> Image {
    open(&scratch.compile("lib.so", LIBRARY, &["-shared", "-fPIC", "-O1"]))
}

#[test]
fn names_mangled_and_demangled() {
    let scratch = Scratch::new();
    let image = library(&scratch);
    for (regex, expected) in [
        ("^llama_decode$", &["llama_decode"][..]),
        (r"^ns::step\(int\)$", &["_ZN2ns4stepEi"]),
        ("^_ZN2ns4stepEd$", &["_ZN2ns4stepEd"]),
        (r"ns::Class<int>::f\(int, char\)", &["_ZN2ns5ClassIiE1fEic"]),
        (
            r"^ns::twice<int, 16>\(int\)$",
            &["_ZN2ns5twiceIiLi16EEET_S1_"],
        ),
        (r"^int ns::twice<int, 16>", &["_ZN2ns5twiceIiLi16EEET_S1_"]),
        (r"^alone\(int\)$", &["_ZL5alonei"]),
        (
            r"^ns::Class<int>::operator unsigned long",
            &["_ZNK2ns5ClassIiEcvmEv"],
        ),
        (
            r"^ns::Class<int>::operator=\(ns::Config",
            &["_ZN2ns5ClassIiEaSERKNS_6ConfigE"],
        ),
        (r"(?i)NS::LAMBDAS\(int\)$", &["_ZN2ns7lambdasEi"]),
        ("nosuch", &[]),
    ] {
        assert_eq!(matching(&image, regex), expected, "{regex}");
    }
    // Two constructors with the same address are one function with two names.
    let found = image.matching(&pattern(r"^ns::Class<int>::Class\("), 64);
    assert_eq!(found.functions.len(), 1, "{found:?}");
    assert_eq!(found.functions[0].names.len(), 2);
}

#[test]
fn it_stops_at_the_limit() {
    let scratch = Scratch::new();
    let image = library(&scratch);
    let all = image.functions().len();
    for limit in [0, 1, 5, all - 1] {
        let found = image.matching(&pattern("."), limit);
        assert_eq!((found.functions.len(), found.more), (limit, true));
    }
    let found = image.matching(&pattern("."), all);
    assert_eq!((found.functions.len(), found.more), (all, false));
    assert_eq!(names(&found.functions), names(&image.functions()));
}

#[test]
fn what_can_be_reached() {
    let scratch = Scratch::new();
    let image = library(&scratch);
    let reach_of = |regex: &str| {
        let found = image.matching(&pattern(regex), 64);
        assert_eq!(found.functions.len(), 1, "{regex}: {found:?}");
        reach(&found.functions[0], &image)
    };
    assert_eq!(reach_of("^puts$"), Reach::Import);
    assert_eq!(reach_of("^llama_decode$"), Reach::Exported(None));
    assert_eq!(reach_of("^alone"), Reach::Entry);
    assert_eq!(reach_of("^chosen$"), Reach::No(Reason::Ifunc));
    for flags in [&["-fno-plt"][..], &["-Wl,-z,now"]] {
        let flags = [&["-shared", "-fPIC"], flags].concat();
        let image = open(&scratch.compile("other.so", LIBRARY, &flags));
        let found = image.matching(&pattern("^puts$"), 64);
        let slots = found.functions[0].slots;
        assert_eq!(slots.glob_dat, flags.contains(&"-fno-plt"), "{flags:?}");
        assert_eq!(slots.jump_slot, !slots.glob_dat, "{flags:?}");
    }
    let short = "extern \"C\" void nothing() {} extern \"C\" int split();";
    let image = open(&scratch.compile(
        "short.so",
        short,
        &["-shared", "-fPIC", "-O2", "-fcf-protection=none"],
    ));
    let found = image.matching(&pattern("^nothing$"), 64);
    assert_eq!(
        reach(&found.functions[0], &image),
        Reach::Exported(Some(Reason::TooShort(1)))
    );
}

#[test]
fn cold_parts_are_no_functions() {
    let scratch = Scratch::new();
    let source = "#include <stdlib.h>\n\
        __attribute__((cold, noinline)) void bad(int x) { if (x) abort(); }\n\
        extern \"C\" int hot(int x) { if (__builtin_expect(x < 0, 0)) { bad(x); bad(x + 1); throw x; } return x + 1; }";
    let path = scratch.compile("cold.so", source, &["-shared", "-fPIC", "-O2"]);
    let table = Command::new("nm").arg(&path).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.contains("hot.cold"),
        "the compiler split nothing: {table}"
    );
    assert_eq!(matching(&open(&path), "hot"), ["hot"]);
}

#[test]
fn aarch64_files_are_read() {
    const COMPILER: &str = "aarch64-linux-gnu-gcc";
    if Command::new(COMPILER).arg("--version").output().is_err() {
        return skipped(&format!("there is no {COMPILER}"));
    }
    let scratch = Scratch::new();
    let source = scratch.path("a.c");
    std::fs::write(
        &source,
        "int puts(const char *); static __attribute__((noinline)) int inner(int x) { return puts(\"\") + x; }\n\
         int outer(int x) { return inner(x) + 1; }\n\
         __attribute__((aarch64_vector_pcs)) double far(double);\n\
         __attribute__((aarch64_vector_pcs)) double near(double x) { return far(x) + 1; }",
    )
    .unwrap();
    scratch.tool(&[
        COMPILER,
        "-shared",
        "-fPIC",
        "-O1",
        "-nostdlib",
        "-o",
        "a.so",
        "a.c",
    ]);
    let image = open(&scratch.path("a.so"));
    assert_eq!(image.elf.machine, Machine::Aarch64);
    let reach_of = |regex: &str| {
        let found = image.matching(&pattern(regex), 64);
        assert_eq!(found.functions.len(), 1, "{regex}: {found:?}");
        reach(&found.functions[0], &image)
    };
    assert_eq!(reach_of("^puts$"), Reach::Import);
    assert_eq!(reach_of("^outer$"), Reach::Exported(Some(Reason::Machine)));
    assert_eq!(reach_of("^inner$"), Reach::No(Reason::Machine));
    assert_eq!(reach_of("^near$"), Reach::No(Reason::VariantCall));
    assert_eq!(reach_of("^far$"), Reach::No(Reason::VariantCall));
}

#[test]
fn no_match_is_skipped() {
    let scratch = Scratch::new();
    let mut images = vec![library(&scratch)];
    let output = Command::new("c++")
        .arg("-print-file-name=libstdc++.so.6")
        .output()
        .unwrap();
    let path = String::from_utf8(output.stdout).unwrap();
    images.push(open(Path::new(path.trim())));
    let mut state: u64 = 0x2545_f491_4f6c_dd1d;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 1).unwrap() % below
    };
    for image in &images {
        // For each function, a list of all its names, mangled and demangled.
        let called: Vec<Vec<String>> = image
            .functions()
            .iter()
            .map(|function| {
                let raw = function
                    .names
                    .iter()
                    .map(|n| String::from_utf8_lossy(n).into_owned());
                raw.chain(function.names.iter().filter_map(|name| demangle(name)))
                    .collect()
            })
            .collect();
        for round in 0..40 {
            // Use a piece of some function's name, so that at least this function matches.
            let text = called[random(called.len())].last().unwrap();
            let start = random(text.len());
            let piece = &text[start..(start + 1 + random(24)).min(text.len())];
            let escaped = regex::escape(piece).replace('@', "\\@");
            let regex = match round % 4 {
                0 => format!("(?i){escaped}"),
                1 => format!("(?:nosuchname|{escaped})"),
                _ => format!("(?:{escaped})"),
            };
            let holds = |text: &String| match round % 4 {
                0 => text
                    .to_ascii_lowercase()
                    .contains(&piece.to_ascii_lowercase()),
                _ => text.contains(piece),
            };
            let found = names(&image.matching(&pattern(&regex), usize::MAX).functions);
            let found: BTreeSet<_> = found.iter().collect();
            let wanted = called.iter().filter(|texts| texts.iter().any(holds));
            let wanted: Vec<_> = wanted.map(|texts| &texts[0]).collect();
            assert!(!wanted.is_empty(), "{regex}");
            // `found` may contain names that are not in `wanted`, because a pattern may match the
            // return type of a template.
            let lost: Vec<_> = wanted
                .iter()
                .filter(|name| !found.contains(**name))
                .collect();
            assert!(lost.is_empty(), "{regex}: {lost:?}");
        }
    }
}

#[test]
fn nearest_names_come_first() {
    let scratch = Scratch::new();
    let image = library(&scratch);
    let nearest = |regex: &str| {
        let mut nearest = Nearest::new(&pattern(regex));
        nearest.look(&image);
        nearest.names(3)
    };
    assert_eq!(nearest("^llama_decod$")[0], "llama_decode");
    assert_eq!(nearest("ns::lambdaz")[0], "ns::lambdas(int)");
    assert_eq!(nearest("^LLAMA_DECODE$")[0], "llama_decode");
    assert!(
        nearest("ns::stepp")
            .iter()
            .all(|n| n.starts_with("ns::step("))
    );
    assert!(nearest("entirely_different_name").is_empty());
    assert!(nearest(".").is_empty());
}
