//! Checks programs that open NVTX ranges of their own under nsys. The library counts or records these ranges and passes
//! them to nsys.

use std::ffi::OsStr;

use tllmprof_record::{Entry, Reader, Strings, What};

use crate::common::{Scratch, nvtx};
use crate::profile::{Profile, Range, STOP, UNGATED, nsys, profile};

/// With a rule for NVTX ranges, the program's ranges count as iterations, and nsys still gets all of them.
#[test]
fn the_programs_ranges_make_iterations() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = nvtx::program(&scratch, "nvtx/ranges.c");
    // Each entry: the program's argument KIND, a rule, and for each range that a step opens, its domain and the
    // beginning of its name.
    type Kind<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);
    let kinds: [Kind<'_>; 5] = [
        ("push_a", "nvtx:^step", &[("", "step"), ("", "inner")]),
        ("push_w", "nvtx:^step", &[("", "step")]),
        ("push_ex", r"nvtx:^step \d+$", &[("", "step")]),
        (
            "domain_push",
            "nvtx:^step@engine",
            &[
                ("engine", "step of"),
                ("other", "step"),
                ("engine", "inner"),
                ("", "step of"),
            ],
        ),
        ("start", "nvtx:^step", &[("", "step"), ("", "around")]),
    ];
    // nsys prints its own messages between the program's lines. Only the program's lines are compared.
    let answers = |said: &str| -> Vec<String> {
        let own = |line: &&str| {
            line.starts_with("pop of nothing")
                || !line.is_empty() && line.chars().all(|c| c.is_ascii_digit() || " -".contains(c))
        };
        said.lines().filter(own).map(str::to_owned).collect()
    };
    // The program prints what NVTX returns to it. The expected answers are those without the library. A run of nsys
    // takes seconds, so one run gets the answers for all kinds.
    let all = r#"for kind; do echo "kind: $kind"; "$0" "$kind"; done"#;
    let mut words = vec![OsStr::new("sh"), OsStr::new("-c"), OsStr::new(all)];
    words.push(program.as_os_str());
    words.extend(kinds.iter().map(|(kind, ..)| OsStr::new(*kind)));
    let plain = profile(nsys, UNGATED, &[("LD_PRELOAD", "")], &words)
        .program
        .out();
    let plain_of = |kind: &str| {
        let (_, after) = plain.split_once(&format!("kind: {kind}\n")).expect(kind);
        answers(after.split("kind: ").next().unwrap_or_default())
    };
    for (kind, rule, ranges) in kinds {
        let arguments = [program.as_os_str(), OsStr::new(kind)];
        let window = ("TLLM_PROFILE_START_STOP", "5-9");
        let step = ("TLLMPROF_STEP", rule);
        let counted = profile(nsys, UNGATED, &[step, window], &arguments);
        assert!(
            counted.program.status.success(),
            "{}",
            counted.program.err()
        );
        let said = counted.program.err();
        assert!(
            said.contains("window 5-9 captured: 40 iterations"),
            "{kind}: {said}"
        );
        for (domain, text) in ranges {
            let found = counted.reports[0].iter();
            let found = found.filter(|r| r.domain == *domain && r.text.starts_with(text));
            assert_eq!(found.count(), 40, "{kind}: {text}@{domain}");
        }
        let out = counted.program.out();
        assert_eq!(answers(&out).len(), 41, "{kind}: {out}");
        assert_eq!(answers(&out), plain_of(kind), "{kind}");
    }
}

#[test]
fn gated_by_the_programs_ranges() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = nvtx::program(&scratch, "nvtx/ranges.c");
    let profile = profile(
        nsys,
        STOP,
        &[
            ("TLLMPROF_STEP", "nvtx:^step"),
            ("TLLM_PROFILE_START_STOP", "5-9"),
        ],
        &[program.as_os_str(), OsStr::new("push_a")],
    );
    assert!(
        profile.program.status.success(),
        "{}",
        profile.program.err()
    );
    profile.holds_one_window(5..=9);
    // In nsys's report, the program's own ranges in the window's five steps are complete.
    for (text, count) in [("step", 5), ("inner", 5)] {
        let own = profile.reports[0].iter();
        let own: Vec<&Range> = own
            .filter(|range| range.domain.is_empty() && range.text.starts_with(text))
            .collect();
        assert_eq!(own.len(), count, "{own:?}");
        assert!(own.iter().all(|range| range.end.is_some()), "{own:?}");
    }
}

/// If there is a record, the library receives each NVTX call before nsys does, under any rule for steps. nsys must get
/// the same ranges as without a record, and the record must have the window's ranges.
#[test]
fn a_record_takes_nothing_from_nsys() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = nvtx::program(&scratch, "nvtx/ranges.c");
    let trace = scratch.path("recorded.tllmprof");
    let arguments = [program.as_os_str(), OsStr::new("domain_push")];
    let plain = profile(nsys, UNGATED, &[("LD_PRELOAD", "")], &arguments);
    let variables = [
        ("TLLMPROF_STEP", "cudaStreamSynchronize"),
        ("TLLM_PROFILE_START_STOP", "5-9"),
        ("TLLMPROF_TRACE", trace.to_str().unwrap()),
    ];
    let recorded = profile(nsys, UNGATED, &variables, &arguments);
    assert!(
        recorded.program.status.success(),
        "{}",
        recorded.program.err()
    );
    let own = |profile: &Profile| {
        let ranges = profile.reports[0].iter();
        let ranges = ranges.filter(|range| range.domain != "tllmprof");
        let mut own: Vec<_> = ranges
            .map(|range| {
                let name = (range.domain.clone(), range.text.clone());
                (name, range.end.is_some())
            })
            .collect();
        own.sort();
        own
    };
    assert_eq!(own(&plain).len(), 160);
    assert_eq!(own(&recorded), own(&plain));
    let mut names = Strings::default();
    let mut kept = Vec::new();
    let reader = Reader::open(&trace).unwrap();
    let read = reader.read(|entry| match entry {
        Entry::String { id, bytes } => names.add(id, bytes),
        Entry::Event { event, .. } => {
            if let What::Range { name, domain, .. } = event.what {
                kept.push((domain, name, event.cut));
            }
        }
    });
    assert!(read.unwrap().is_none());
    // Iterations end at waits in this run, and each step waits in the middle of its ranges. So the window lasts from
    // the middle of step 4's ranges until the middle of step 9's. The record has the ranges that begin in the window:
    // those of steps 5 to 8, which are whole, and those of step 9, which are cut at the window's end.
    let count = |domain: &str, name: &str, cut: bool| {
        let is_it = |range: &&(u32, u32, bool)| {
            let in_domain = match domain {
                "" => range.0 == 0,
                domain => names.get(range.0) == domain,
            };
            in_domain && names.get(range.1) == name && range.2 == cut
        };
        kept.iter().filter(is_it).count()
    };
    for (domain, name) in [
        ("engine", "inner"),
        ("engine", "step of the engine"),
        ("other", "step"),
        ("", "step of the default domain"),
    ] {
        let counts = [false, true].map(|cut| count(domain, name, cut));
        assert_eq!(counts, [4, 1], "{name}");
    }
    assert_eq!(kept.len(), 20);
}

/// A program starts a child process. nsys gets each range of parent and child exactly once, both with and without the
/// library.
#[test]
fn ranges_of_children() {
    let Some(nsys) = nsys() else { return };
    let scratch = Scratch::new("own");
    let program = nvtx::program(&scratch, "nvtx/children.c");
    let variables = [
        ("TLLMPROF_STEP", "nvtx:^step"),
        ("TLLM_PROFILE_START_STOP", "all"),
    ];
    let options = ["--trace-fork-before-exec=true"];
    // Each entry is the program's argument KIND, the number of ranges of parent and child together, and their number of
    // windows.
    for (kind, ranges, windows) in [("fork", 6, 1), ("preload", 7, 2), ("bare", 7, 1)] {
        let arguments = [program.as_os_str(), OsStr::new(kind)];
        let profile = profile(nsys, &options, &variables, &arguments);
        let said = profile.program.err();
        assert!(profile.program.status.success(), "{kind}: {said}");
        assert_eq!(
            said.matches(" captured: ").count(),
            windows,
            "{kind}: {said}"
        );
        let found = profile.reports[0].iter();
        let found = found.filter(|range| range.domain.is_empty() && range.text == "step");
        assert_eq!(found.count(), ranges, "{kind}");
    }
}
