//! Checks invalid values of the library's environment variables. The library must log one message, and the program must
//! behave as without the library.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use tllmprof_config::variable_names;

use super::twice::Situation;

/// All environment variables of the library, each with invalid values.
const BAD: &[(&str, &[&[u8]])] = &[
    (
        "TLLMPROF_START_STOP",
        &[
            b"9-5",
            b"x",
            b"1,,2",
            b"5-9-12",
            b"-3",
            b"18446744073709551616",
            b"5\xff",
            b"a\nb",
            b"steady:0",
            b"steady,5-9",
        ],
    ),
    (
        "TLLM_PROFILE_START_STOP",
        &[b"9-5", b"5 9", b"1-2\ntllmprof: x"],
    ),
    ("TLLM_GPTM_PROFILE_START_STOP", &[b"9-5", b"+5"]),
    ("TLLMPROF_WHERE", &[b"request>1", b"phase<idle", b"tokens"]),
    ("TLLMPROF_WHERE_SPLIT", &[b"often", b"1"]),
    ("TLLMPROF_AFTER_SECCOMP", &[b"often"]),
    ("TLLMPROF_WHEN", &[b"iteration", b"gc>5", b"gpu>1ms"]),
    (
        "TLLMPROF_WHEN_AT_MOST",
        &[b"10001/1h", b"0", b"x/1h", b"3/often"],
    ),
    ("TLLMPROF_WHEN_STEPS", &[b"0", b"many"]),
    ("TLLMPROF_FLIGHT", &[b"-1", b"all"]),
    (
        "TLLMPROF_BATCH",
        &[
            b"m:f",
            b"m:f=tokens:1",
            b"m:f=requests:len(,tokens:1,decode_tokens:1",
        ],
    ),
    (
        "TLLMPROF_STEP",
        &[
            b"cudaGraphLunch",
            b"cudaMalloc",
            b"cudaProfilerStart",
            b"cudaGraphLaunch/0",
            b"auto/2",
            b"cudaGraphLaunch/x",
            b"sum:f",
            b"sym:(f",
            b"py:f",
            b"nvtx:f@",
        ],
    ),
    ("TLLMPROF_WARMUP", &[b"-1", b"captures", b"1,2"]),
    ("TLLMPROF_RANKS", &[b"3-1", b"a"]),
    ("TLLMPROF_RANK", &[b"-1", b"one"]),
    ("TLLMPROF_DRAIN", &[b"maybe", b"2"]),
    ("TLLMPROF_NVTX", &[b"maybe"]),
    ("TLLMPROF_NVTX_NAME", &[b"iteration"]),
    ("TLLM_NVTX_DEBUG", &[b"2"]),
    ("TLLM_LLMAPI_ENABLE_NVTX", &[b"enable"]),
    ("TLLMPROF_PY_RANGES", &[b"f", b"a b:c", b"m:1f"]),
    ("TLLM_PROFILE_RECORD_GC", &[b"gc"]),
    ("TLLMPROF_GIL", &[b"3"]),
    ("TLLMPROF_GIL_MIN_US", &[b"1.5", b"-1"]),
    ("TLLMPROF_GPU_TIMES", &[b"8", b"every"]),
    ("TLLMPROF_STACKS", &[b"1001", b"5Hz"]),
    ("TLLMPROF_NATIVE_STACKS", &[b"2"]),
    ("TLLM_TORCH_PROFILE_TRACE", &[b"/tmp/\xff.json"]),
    ("TLLMPROF_PERFECT_ROUTER", &[b"windows"]),
    ("ENABLE_PERFECT_ROUTER", &[b"perhaps"]),
    ("TLLMPROF_TRACE", &[b"a%", b"%x", b"%q{A"]),
    ("TLLMPROF_RING", &[b"a%", b"%x"]),
    ("TLLMPROF_TRACE_MAX", &[b"1T", b"G"]),
    ("TLLMPROF_KEEP", &[b"1T", b"1023K", b"-2G"]),
    ("TLLMPROF_KERNELS", &[b"many", b"-5"]),
    ("TLLMPROF_LAYERS", &[b"all"]),
    (
        "TLLMPROF_SCOPES",
        &[b"sym:(", b"llama_decode", b"py:module"],
    ),
    ("TLLMPROF_ARGS", &[b"1", b"some"]),
    ("TLLMPROF_CONTROL", &[b"2", b"./folder"]),
    ("TLLMPROF_RUN", &[b"a b", b"../x", b"a/b"]),
    ("TLLMPROF_LOG", &[b"loud"]),
];

fn with_bad(program: &str, name: &str, value: &[u8]) -> Situation {
    let mut situation = Situation::new(program);
    // A window and a rule are set, so that a window would open if the library ignored the bad
    // value.
    if !name.ends_with("_START_STOP") {
        situation = situation.env("TLLM_PROFILE_START_STOP", "5-9");
    }
    if name != "TLLMPROF_STEP" {
        situation = situation.env("TLLMPROF_STEP", "cudaGraphLaunch");
    }
    situation.env(name, OsString::from_vec(value.to_vec()))
}

#[test]
fn every_variable_is_tried() {
    let tried: BTreeSet<&str> = BAD.iter().map(|(name, _)| *name).collect();
    let known: BTreeSet<&str> = variable_names().collect();
    assert_eq!(tried, known);
}

#[test]
fn every_bad_value_gives_one_line_and_nothing_else() {
    let programs = [
        "steps_shared12",
        "steps_static",
        "steps_dlsym",
        "steps_driver_gpa2",
        "steps_ptsz",
    ];
    let values = BAD
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| (*name, *value)));
    for ((name, value), program) in values.zip(programs.into_iter().cycle()) {
        let both = with_bad(program, name, value).run();
        let shown = format!("{name}=\"{}\": ", escaped(value));
        let said = both.said();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with(&shown), "wanted {shown:?} in {said:?}");
        assert!(said[0].contains("(wanted: "), "{said:?}");
        let functions = |log: &[crate::common::Record]| -> Vec<(String, String, String)> {
            log.iter()
                .map(|r| (r.mark.clone(), r.function.clone(), r.via.clone()))
                .collect()
        };
        assert_eq!(functions(&both.log), functions(&both.plain.log), "{shown}");
    }
}

#[test]
fn a_bad_value_is_reported_once_by_each_process_that_uses_cuda() {
    let both = Situation::new("forks")
        .args("--who works")
        .env("TLLM_PROFILE_START_STOP", "9-5")
        .run();
    assert_eq!(
        both.said().len(),
        1,
        "the parent uses none: {:?}",
        both.said()
    );
    let both = Situation::new("threads")
        .args("--launchers 16 --launches 10 --short 0")
        .env("TLLM_PROFILE_START_STOP", "9-5")
        .run();
    assert_eq!(both.said().len(), 1, "{:?}", both.said());
}

/// Returns a variable's value in the form in which a message shows it.
fn escaped(value: &[u8]) -> String {
    let text = String::from_utf8_lossy(value).replace('\n', "\\n");
    let bad = OsStr::from_bytes(value).to_str().is_none();
    if bad {
        text.replace('\u{fffd}', "\\xff")
    } else {
        text
    }
}
