use crate::trigger::AtMost;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt;

use super::*;
use crate::run::JOB_VARIABLES;
use crate::setting::ValueForm;

fn from(set: &[(&str, &str)]) -> Result<Settings, BadValue> {
    Settings::from_env(|name| {
        set.iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value.into())
    })
}

#[test]
fn defaults() {
    let settings = from(&[]).unwrap();
    assert!(settings.windows.is_empty());
    assert!(matches!(settings.step, Step::Auto));
    assert_eq!(settings.warmup, Warmup::Capture);
    assert_eq!(settings.ranks, None);
    assert!(settings.drain && settings.nvtx);
    assert_eq!(settings.nvtx_name, NvtxName::default());
    assert_eq!(settings.log, Level::Info);
}

#[test]
fn warmup_follows_the_rule() {
    let settings = from(&[("TLLMPROF_STEP", "cudaGraphLaunch")]).unwrap();
    assert_eq!(settings.warmup, Warmup::Iterations(0));
    let settings = from(&[
        ("TLLMPROF_STEP", "cudaGraphLaunch"),
        ("TLLMPROF_WARMUP", "capture"),
    ]);
    assert_eq!(settings.unwrap().warmup, Warmup::Capture);
}

#[test]
fn the_function_of_a_batch_is_the_step_unless_another_is_asked_for() {
    let batch = ("TLLMPROF_BATCH", "m:f=requests:1,tokens:1,decode_tokens:1");
    let condition = ("TLLMPROF_WHERE", "phase=decode");
    let step = |set: &[(&str, &str)]| from(set).map(|settings| settings.step.to_string());
    assert_eq!(step(&[batch, condition]).unwrap(), "py:m:f");
    assert_eq!(from(&[batch]).unwrap().warmup, Warmup::Iterations(0));
    let auto = ("TLLMPROF_STEP", "auto");
    assert_eq!(step(&[batch, condition, auto]).unwrap(), "auto");
    let launch = ("TLLMPROF_STEP", "cudaGraphLaunch");
    assert_eq!(step(&[batch, launch]).unwrap(), "cudaGraphLaunch");
    for rule in ["cudaGraphLaunch", "sym:f", "nvtx:step"] {
        let bad = step(&[batch, condition, ("TLLMPROF_STEP", rule)]).unwrap_err();
        assert_eq!(bad.name, "TLLMPROF_WHERE");
        assert!(bad.to_string().contains(rule), "{bad}");
    }
}

#[test]
fn a_window_is_split_by_a_condition() {
    let split = ("TLLMPROF_WHERE_SPLIT", "1");
    assert!(
        from(&[split, ("TLLMPROF_WHERE", "tokens>1")])
            .unwrap()
            .where_split
    );
    assert!(!from(&[("TLLMPROF_WHERE_SPLIT", "0")]).unwrap().where_split);
    let bad = from(&[split]).unwrap_err().to_string();
    assert!(
        bad.starts_with("TLLMPROF_WHERE_SPLIT=\"1\": there is no condition"),
        "{bad}"
    );
}

#[test]
fn a_window_opens_by_itself_where_a_condition_says_so() {
    let when = ("TLLMPROF_WHEN", "iteration > 2*p50 or gil > 5ms");
    let settings = from(&[when]).unwrap();
    let trigger = settings.when.unwrap();
    assert_eq!(trigger.condition.to_string(), when.1);
    assert_eq!((trigger.steps, trigger.at_most), (50, AtMost::default()));
    // The condition compares `gil`, so the waits for the GIL have to be measured. The condition opens windows, so there
    // has to be a record for them.
    assert!(settings.gil && !settings.record_gc);
    assert!(settings.trace.is_some() && settings.trace_on_demand);
    let none = from(&[when, ("TLLMPROF_TRACE", "")]).unwrap();
    assert!(none.trace.is_none());
    let limited = [
        when,
        ("TLLMPROF_WHEN_AT_MOST", "2/1m"),
        ("TLLMPROF_WHEN_STEPS", "7"),
    ];
    let trigger = from(&limited).unwrap().when.unwrap();
    assert_eq!((trigger.steps, trigger.at_most.windows), (7, 2));
    for alone in &limited[1..] {
        let bad = from(&[*alone]).unwrap_err().to_string();
        assert!(
            bad.contains("there is no condition that could open a window"),
            "{bad}"
        );
    }
    let launch = ("TLLMPROF_STEP", "cudaGraphLaunch");
    assert!(from(&[when, launch]).is_ok());
    let batch = ("TLLMPROF_WHEN", "iteration > 5ms and phase=decode");
    let bad = from(&[batch, launch]).unwrap_err().to_string();
    assert!(
        bad.starts_with("TLLMPROF_WHEN=") && bad.contains("cudaGraphLaunch"),
        "{bad}"
    );
    let bad = from(&[("TLLMPROF_WHEN", "iteration > 5")])
        .unwrap_err()
        .to_string();
    assert!(bad.contains("\"5\" is no time"), "{bad}");
}

#[test]
fn a_record_that_keeps_the_latest_windows_has_that_size() {
    let sizes = |variables: &[(&str, &str)]| {
        from(variables).map(|settings| (settings.keep, settings.trace_max))
    };
    assert_eq!(sizes(&[]).unwrap(), (None, 1 << 30));
    let keep = ("TLLMPROF_KEEP", "2G");
    assert_eq!(sizes(&[keep]).unwrap(), (Some(2 << 30), 2 << 30));
    let most = ("TLLMPROF_TRACE_MAX", "1G");
    assert_eq!(sizes(&[keep, most]).unwrap(), (Some(2 << 30), 1 << 30));
    for (bad, why) in [
        ("2T", "\"2T\" is not a number"),
        ("1023K", "it is less than 1M"),
        ("0", "it is less than 1M"),
    ] {
        let said = sizes(&[("TLLMPROF_KEEP", bad)]).unwrap_err().to_string();
        assert!(
            said.contains(why) && said.contains("such as 500M or 2G"),
            "{said}"
        );
    }
}

#[test]
fn the_latest_iterations_are_kept_in_a_record_that_begins_at_once() {
    let flight = |value| from(&[("TLLMPROF_FLIGHT", value)]).map(|settings| settings.flight);
    assert_eq!(flight("1").unwrap(), Some(100));
    assert_eq!(flight("on").unwrap(), Some(100));
    assert_eq!(flight("250").unwrap(), Some(250));
    assert_eq!(flight("0").unwrap(), None);
    for bad in ["x", "-1", "100001"] {
        assert!(
            flight(bad)
                .unwrap_err()
                .to_string()
                .starts_with("TLLMPROF_FLIGHT="),
            "{bad}"
        );
    }
    let both = [("TLLMPROF_FLIGHT", "1"), ("TLLMPROF_CONTROL", "1")];
    for set in [&both[..1], &both] {
        let settings = from(set).unwrap();
        assert!(settings.trace.is_some() && !settings.trace_on_demand);
    }
}

#[test]
fn our_window_wins_and_an_empty_one_is_unset() {
    let all = [
        ("TLLMPROF_START_STOP", "1"),
        ("TLLM_PROFILE_START_STOP", "2"),
        ("TLLM_GPTM_PROFILE_START_STOP", "3"),
    ];
    for k in 0..3 {
        let mut set = all;
        for earlier in &mut set[..k] {
            earlier.1 = " ";
        }
        let settings = from(&set).unwrap();
        assert_eq!(settings.windows.to_string(), (k + 1).to_string());
        assert_eq!(settings.windows_from, Some(all[k].0));
    }
}

#[test]
fn the_variable_that_was_set_is_named() {
    let error = from(&[("TLLM_GPTM_PROFILE_START_STOP", "9-5")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "TLLM_GPTM_PROFILE_START_STOP=\"9-5\": \"9-5\" ends before it starts \
             (wanted: A-B, N, A- or all, or a comma list of them; or auto, steady, steady:N or none)"
    );
}

#[test]
fn flags() {
    assert!(!from(&[("TLLM_PROFILE_RECORD_GC", "0")]).unwrap().record_gc);
    assert!(
        from(&[("TLLM_PROFILE_RECORD_GC", "Yes")])
            .unwrap()
            .record_gc
    );
    assert!(!from(&[("TLLMPROF_DRAIN", "")]).unwrap().drain);
    assert!(from(&[("TLLMPROF_NVTX", "maybe")]).is_err());
}

#[test]
fn stacks_are_off_by_default_and_native_ones_switch_them_on() {
    let of = |set: &[_]| {
        let settings = from(set).unwrap();
        (settings.stacks, settings.native_stacks)
    };
    assert_eq!(of(&[]), (None, false));
    assert_eq!(of(&[("TLLMPROF_STACKS", "1")]), (Some(200), false));
    assert_eq!(of(&[("TLLMPROF_STACKS", "1000")]), (Some(1000), false));
    let native = ("TLLMPROF_NATIVE_STACKS", "1");
    assert_eq!(of(&[native]), (Some(200), true));
    assert_eq!(of(&[native, ("TLLMPROF_STACKS", "50")]), (Some(50), true));
    let bad = from(&[("TLLMPROF_STACKS", "1001")]).unwrap_err();
    assert_eq!(
        bad.to_string(),
        "TLLMPROF_STACKS=\"1001\": 1001 Hz is over 1000 Hz (wanted: 1 for 200 Hz, 0, a number of Hz up to 1000, or auto)"
    );
}

#[test]
fn kernels_and_router() {
    let kernels = |v| {
        from(&[("TLLMPROF_KERNELS", v)])
            .unwrap()
            .kernels?
            .steps_of_window()
    };
    assert_eq!(
        [
            kernels("1"),
            kernels("on"),
            kernels("7"),
            kernels("0"),
            kernels("00"),
            kernels("")
        ],
        [Some(20), Some(20), Some(7), None, None, None]
    );
    // With samples of kernels, a record begins although the user did not request one, because the samples need it.
    let sampled = from(&[("TLLMPROF_KERNELS", "20@60s")]).unwrap();
    assert!(sampled.trace_on_demand && sampled.kernels.unwrap().samples().is_some());
    assert!(from(&[("TLLMPROF_KERNELS", "20")]).unwrap().trace.is_none());
    let bad = from(&[("TLLMPROF_KERNELS", "20@60")]).unwrap_err();
    assert_eq!(
        bad.to_string(),
        "TLLMPROF_KERNELS=\"20@60\": \"60\" is no time (wanted: 1, 0, a number of steps, auto, or STEPS@TIME, such as 20@60s, \
         with a TIME of 1s or more)"
    );
    let router = from(&[
        ("TLLMPROF_PERFECT_ROUTER", "0"),
        ("ENABLE_PERFECT_ROUTER", "1"),
    ]);
    assert_eq!(router.unwrap().perfect_router, PerfectRouter::Off);
    let router = from(&[("ENABLE_PERFECT_ROUTER", "window")]).unwrap();
    assert_eq!(router.perfect_router, PerfectRouter::Window);
}

#[test]
fn arguments_are_masked_unless_all_are_asked_for() {
    let full = |v| from(&[("TLLMPROF_ARGS", v)]).map(|settings| settings.full_args);
    assert_eq!(
        [full(""), full("masked"), full("full")],
        [Ok(false), Ok(false), Ok(true)]
    );
    assert!(full("1").is_err());
}

#[test]
fn a_value_that_is_not_text_is_reported() {
    for name in [
        "TLLM_PROFILE_START_STOP",
        "TLLMPROF_NVTX",
        "TLLM_TORCH_PROFILE_TRACE",
    ] {
        let error =
            Settings::from_env(|n| (n == name).then(|| OsString::from_vec(vec![b'5', 0xff])))
                .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("{name}=\"5\\xff\": it is not UTF-8")),
            "{error}"
        );
    }
}

#[test]
fn the_table_lists_exactly_what_is_read() {
    let read = RefCell::new(BTreeSet::new());
    Settings::from_env(|name| {
        // The variables of launchers' jobs are left out, because they are listed in `JOB_VARIABLES` and not in the
        // table of settings.
        if JOB_VARIABLES
            .iter()
            .all(|(_, names)| !names.contains(&name))
        {
            read.borrow_mut().insert(name.to_owned());
        }
        None
    })
    .unwrap();
    let listed: BTreeSet<_> = variable_names().map(str::to_owned).collect();
    assert_eq!(read.into_inner(), listed);
    let all = || variable_names().chain(other_names());
    assert_eq!(all().count(), all().collect::<BTreeSet<_>>().len());
}

/// Variables that [`with`] always sets. Without them, some other variables would be refused: `TLLMPROF_WHERE_SPLIT`
/// needs the first one, and the limits for automatic windows need the second one.
const BESIDE: [(&str, &str); 2] = [
    (variable::condition, "tokens>1"),
    (variable::when, "wait > 1s"),
];

/// Returns the settings as text. The variable `name` is set to `value`, or is not set if `value` is `None`. Fields that
/// only say which variables the user has set are reset, so that they do not affect comparisons.
fn with(name: &str, value: Option<&str>) -> Result<String, BadValue> {
    let beside = BESIDE.into_iter().filter(|(beside, _)| *beside != name);
    let set: Vec<_> = beside.chain(value.map(|value| (name, value))).collect();
    let mut settings = from(&set)?;
    (settings.windows_from, settings.warmup_given) = (None, false);
    // The fields `when_at_most` and `when_steps` have an effect only through `when`.
    (settings.when_at_most, settings.when_steps) = (None, None);
    Ok(format!("{settings:?}"))
}

#[test]
fn each_default_is_accepted_and_changes_nothing() {
    let rows = SETTINGS.iter().filter(|row| row.reader == Reader::Library);
    for (row, name) in rows.flat_map(|row| row.variables.iter().map(move |name| (row, name))) {
        if !row.default.is_empty() {
            assert_eq!(with(name, Some(row.default)), with(name, None), "{name}");
        }
    }
}

#[test]
fn each_example_is_accepted_and_is_another_setting() {
    for row in SETTINGS.iter().filter(|row| row.reader == Reader::Library) {
        for name in row.variables {
            let example = with(name, Some(row.example)).unwrap();
            assert_ne!(example, with(name, None).unwrap(), "{name}");
        }
    }
}

#[test]
fn each_row_says_what_it_is_for_and_in_the_same_form() {
    for row in SETTINGS {
        let text = row.text();
        assert!(
            !row.help.is_empty() && text.starts_with(char::is_uppercase),
            "{row:?}"
        );
        for part in [
            row.help,
            row.more,
            row.off,
            row.default,
            row.otherwise,
            row.without,
        ] {
            assert!(
                part == part.trim() && !part.ends_with('.') && !part.contains("  "),
                "{part:?}"
            );
        }
        assert!(
            !row.variables.is_empty() || !row.option.is_empty(),
            "{row:?}"
        );
        // An option has a text in `off` and a name like `--no-…` if, and only if, it switches off a setting that is on
        // by default.
        let is_off = row.value == ValueForm::Flag && row.default == "1";
        assert_eq!(
            (is_off, is_off),
            (
                !row.off.is_empty(),
                row.option.starts_with("--no-") && row.variable().is_some()
            ),
            "{row:?}"
        );
    }
    let options = SETTINGS
        .iter()
        .map(|row| row.option)
        .filter(|option| !option.is_empty());
    assert_eq!(
        options.clone().count(),
        options.collect::<BTreeSet<_>>().len()
    );
}

#[test]
fn a_run_that_is_named_wins_over_the_launchers_job() {
    let job = ("TORCHELASTIC_RUN_ID", "job");
    let run = |set: &[(&str, &str)]| from(set).unwrap().run.map(|run| run.to_string());
    assert_eq!(run(&[job]).as_deref(), Some("torch-job"));
    let named = run(&[job, ("TLLMPROF_RUN", "mine")]);
    assert_eq!(named.as_deref(), Some("mine"));
    assert_eq!(
        from(&[("TLLMPROF_RUN", "a/b")]).unwrap_err().to_string(),
        "TLLMPROF_RUN=\"a/b\": \"/\" cannot be in it (wanted: up to 128 letters, digits, ., _ and -, the first a letter or digit)"
    );
}

/// Returns random bytes that are often almost a valid value: most of them come from `PIECES`, which are parts of
/// valid values.
fn any_value(seed: &mut u64) -> Vec<u8> {
    let mut next = || {
        // Pseudo-random numbers (xorshift64)
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    };
    const PIECES: &[&str] = &[
        "-",
        ",",
        "/",
        ":",
        "@",
        "%",
        "{n}",
        "{",
        "}",
        " ",
        "all",
        "0",
        "9",
        "18446744073709551615",
        "18446744073709551616",
        "sym:",
        "py:",
        "nvtx:",
        "auto",
        "cudaGraphLaunch",
        "(",
        "[",
        "\\",
        "*",
        "capture",
        "%q{A}",
        "é",
        "\n",
        "1",
        "window",
        "K",
        "a.b",
    ];
    let mut value = Vec::new();
    for _ in 0..next() % 12 {
        if next() % 4 == 0 {
            // A zero byte is left out, because it cannot occur in the value of an environment variable.
            value.push((next() % 255 + 1) as u8);
        } else {
            let piece = PIECES[next() as usize % PIECES.len()];
            value.extend_from_slice(piece.as_bytes());
        }
    }
    value
}

#[test]
fn no_value_panics_and_no_message_breaks_the_line() {
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let (mut good, mut bad) = (0, 0);
    for _ in 0..3000 {
        let value = OsString::from_vec(any_value(&mut seed));
        for name in variable_names() {
            let result = Settings::from_env(|n| (n == name).then(|| value.clone()));
            match result {
                Ok(_) => good += 1,
                Err(error) => {
                    bad += 1;
                    let line = error.to_string();
                    assert_eq!(error.name, name);
                    assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
                    assert!(line.chars().count() < 3000, "{line:?}");
                }
            }
        }
    }
    assert!(good > 1000 && bad > 1000, "{good} good, {bad} bad");
}

#[test]
fn windows_hold_what_their_items_hold() {
    let mut seed = 42_u64;
    for _ in 0..2000 {
        let mut items: Vec<(u64, u64)> = Vec::new();
        for _ in 0..1 + seed % 6 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let first = (seed >> 33) % 40;
            items.push((first, first + (seed >> 50) % 6));
        }
        let list: Vec<_> = items.iter().map(|(a, b)| format!("{a}-{b}")).collect();
        let windows = WindowList::parse(&list.join(",")).unwrap();
        for n in 0..50 {
            let wanted = items.iter().any(|(a, b)| (*a..=*b).contains(&n));
            assert_eq!(
                windows.contains(n),
                wanted,
                "{n} in {windows}, from {list:?}"
            );
        }
        for pair in windows.as_slice().windows(2) {
            assert!(
                pair[0].last.unwrap() + 1 < pair[1].first,
                "{windows} from {list:?}"
            );
        }
        assert_eq!(WindowList::parse(&windows.to_string()).unwrap(), windows);
    }
}

#[test]
fn a_process_that_listens_has_a_record_on_demand_unless_another_or_none_is_named() {
    let trace = |set: &[(&str, &str)]| {
        let settings = from(set).unwrap();
        let place = crate::Placeholders {
            pid: 7,
            rank: Some(3),
            host: OsStr::new("h"),
        };
        let path = settings.trace.map(|trace| trace.fill(&place, |_| None));
        path.map(|path| (path.display().to_string(), settings.trace_on_demand))
    };
    let control = |value| ("TLLMPROF_CONTROL", value);
    assert_eq!(trace(&[]), None);
    assert_eq!(trace(&[control("0")]), None);
    let here = Some(("tllmprof-h-3-7.tllmprof".to_owned(), true));
    assert_eq!(trace(&[control("1")]), here);
    let beside = Some(("/a%b/tllmprof-h-3-7.tllmprof".to_owned(), true));
    assert_eq!(trace(&[control("/a%b")]), beside);
    let named = ("TLLMPROF_TRACE", "x");
    assert_eq!(trace(&[control("1"), named]), Some(("x".to_owned(), false)));
    assert_eq!(trace(&[control("1"), ("TLLMPROF_TRACE", "")]), None);
    let bad = from(&[control("here")]).unwrap_err();
    assert_eq!(
        bad.to_string(),
        "TLLMPROF_CONTROL=\"here\": it is neither on, off nor an absolute path (wanted: 1, 0, or the path of a folder)"
    );
}

#[test]
fn scopes_switch_layers_and_kernels_on_unless_they_are_off() {
    let scopes = ("TLLMPROF_SCOPES", "sym:^f$@lib,py:m:g,py:m:h");
    let settings = from(&[scopes, ("TLLMPROF_PY_RANGES", "m:h")]).unwrap();
    assert!(settings.layers && settings.kernels.is_some());
    let native: Vec<_> = settings.scopes.iter().map(ToString::to_string).collect();
    assert_eq!(native, ["sym:^f$@lib"]);
    let python: Vec<_> = settings.py_ranges.iter().map(ToString::to_string).collect();
    assert_eq!(python, ["m:h", "m:g"]);
    let off = from(&[scopes, ("TLLMPROF_LAYERS", "0")]).unwrap();
    assert!(!off.layers && off.kernels.is_none());
    assert!(!from(&[("TLLMPROF_SCOPES", " ")]).unwrap().layers);
    let bad = from(&[("TLLMPROF_SCOPES", "f")]).unwrap_err();
    assert_eq!(bad.name, "TLLMPROF_SCOPES");
}
