//! Tests hostile values, such as an empty text or bytes that are not UTF-8, for every option and variable in the table
//! of settings. A value that is not valid for a setting is refused with one line that names what the user typed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use clap::{CommandFactory, FromArgMatches, Parser};
use tllmprof_config::{Reader, SETTINGS, Setting, Settings, ValueForm};

use crate::mistyped;
use crate::options::{Measures, Options};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hostile {
    Empty,
    Blank,
    Huge,
    Negative,
    NotUtf8,
    Misspelt,
}

use Hostile::{Blank, Empty, Huge, Misspelt, Negative, NotUtf8};

impl Hostile {
    const ALL: [Self; 6] = [Empty, Blank, Huge, Negative, NotUtf8, Misspelt];

    fn value(self) -> OsString {
        match self {
            Empty => OsString::new(),
            Blank => " \t".into(),
            Huge => "9".repeat(30_000).into(),
            Negative => "-1".into(),
            NotUtf8 => OsString::from_vec(b"5\xff".to_vec()),
            Misspelt => "xyzzy\n".into(),
        }
    }

    /// Returns true if this hostile value is valid for the setting of `row`. For example, paths may contain any bytes,
    /// and some names may be any text.
    fn is_one_of(self, row: &Setting) -> bool {
        let names = match row.variables.first().copied().unwrap_or_default() {
            // The parser accepts these hostile values as paths, because only the file system sets limits for paths.
            "TLLMPROF_TRACE" | "TLLMPROF_RING" => &[Huge, Negative, NotUtf8, Misspelt][..],
            "TLLMPROF_RUN" => &[Misspelt],
            "TLLM_TORCH_PROFILE_TRACE" => &[Huge, Negative, Misspelt],
            _ => &[],
        };
        names.contains(&self)
    }
}

#[derive(Parser)]
#[command(name = "tllmprof")]
struct Line {
    #[command(flatten)]
    options: Options,
}

/// Returns the error with which the command refuses these words of a command line, or `None` if the command accepts
/// them.
fn refusal(words: &[OsString]) -> Option<String> {
    let mut command = mistyped::prepare(Line::command());
    let line = std::iter::once(OsString::from("tllmprof")).chain(words.iter().cloned());
    let matches = match command.try_get_matches_from_mut(line) {
        Ok(matches) => matches,
        Err(error) => {
            assert_eq!(error.exit_code(), 2, "{words:?}");
            return Some(mistyped::describe(&error, &command, words));
        }
    };
    if let Some(problem) = mistyped::find_empty_value(&matches, &command) {
        return Some(problem);
    }
    let options = Line::from_arg_matches(&matches);
    let refused = options.unwrap().options.settings(Measures::Nothing).err()?;
    Some(refused.to_string())
}

/// Returns the two ways to type a value of an option: as a separate word, and after an equals sign.
fn typed(option: &str, value: &OsStr) -> [Vec<OsString>; 2] {
    let mut both = OsString::from(option);
    both.push("=");
    both.push(value);
    [vec![option.into(), value.to_owned()], vec![both]]
}

fn is_refused(said: Option<&str>, name: &str, case: &dyn std::fmt::Debug) {
    let said = said.unwrap_or_else(|| panic!("{case:?} is taken"));
    assert!(said.starts_with(name), "{case:?}: {said}");
    assert!(
        !said.contains('\n') && said.chars().count() < 1000,
        "{case:?}: {said}"
    );
}

#[test]
fn every_option_refuses_hostile_values_by_its_name() {
    let mut cases = 0;
    for row in SETTINGS
        .iter()
        .filter(|row| !row.option.is_empty() && row.value != ValueForm::Flag)
    {
        for hostile in Hostile::ALL {
            let [apart, together] = typed(row.option, &hostile.value());
            // An option of this form takes a value only in the same word, after an equals sign. A separate word would
            // be taken for the program.
            let lines = match row.value {
                ValueForm::Optional(_) => vec![together],
                _ => vec![apart, together],
            };
            for words in lines {
                let said = refusal(&words);
                // In a separate word, a value that begins with a dash is taken for an option. After an equals sign such
                // a value is accepted.
                let is_option = hostile == Negative && words.len() == 2;
                if hostile.is_one_of(row) && !is_option {
                    assert_eq!(said, None, "{} {hostile:?}", row.option);
                    continue;
                }
                is_refused(said.as_deref(), row.option, &(row.option, hostile));
                cases += 1;
            }
        }
    }
    assert!(cases > 220, "{cases}");
}

#[test]
fn flags_take_no_value_and_say_what_they_need() {
    for row in SETTINGS
        .iter()
        .filter(|row| !row.option.is_empty() && row.value == ValueForm::Flag)
    {
        let [_, together] = typed(row.option, OsStr::new("1"));
        is_refused(refusal(&together).as_deref(), row.option, &together);
    }
    let alone = refusal(&["--where-split".into()]).unwrap();
    assert!(
        alone.starts_with("--where-split: ") && alone.ends_with("(wanted: --where EXPR as well)"),
        "{alone}"
    );
}

#[test]
fn every_variable_refuses_hostile_values_by_its_name() {
    let debug = |set: &[(&str, OsString)]| {
        let of = |name: &str| {
            set.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, value)| value.clone())
        };
        Settings::from_env(of).map(|settings| format!("{settings:?}"))
    };
    let none = debug(&[]).unwrap();
    let mut cases = 0;
    for row in SETTINGS.iter().filter(|row| row.reader == Reader::Library) {
        for name in row.variables {
            for hostile in Hostile::ALL {
                let read = debug(&[(name, hostile.value())]);
                if let Empty | Blank = hostile {
                    // An empty variable counts as not set, because launchers set unused variables to empty values. For
                    // a flag that is on by default, however, an empty value means off.
                    let is_unset = row.value != ValueForm::Flag || row.default != "1";
                    assert_eq!(read.is_ok_and(|read| read == none), is_unset, "{name}");
                } else if hostile.is_one_of(row) {
                    assert!(read.is_ok(), "{name} {hostile:?}");
                } else {
                    let said = read.err().map(|bad| bad.to_string());
                    is_refused(said.as_deref(), &format!("{name}=\""), &(name, hostile));
                    cases += 1;
                }
            }
        }
    }
    assert!(cases > 120, "{cases}");
}

#[test]
fn a_message_names_what_was_typed() {
    let said = |words: &[&str]| {
        let words: Vec<_> = words.iter().map(OsString::from).collect();
        refusal(&words).unwrap()
    };
    let of_batch = said(&["--where", "tokens>1", "--step", "cudaGraphLaunch"]);
    assert!(
        of_batch.ends_with("--batch without --step, or a known engine's)"),
        "{of_batch}"
    );
    let limit = said(&["--when", "gc>1ms", "--at-most", "0"]);
    assert!(
        limit.starts_with("--at-most \"0\": no window could open"),
        "{limit}"
    );
    assert!(limit.ends_with("--at-most 10 --per 1h)"), "{limit}");
    assert_eq!(
        said(&["--no-trace", "--kernels"]),
        "--no-trace: kernels are taken into the record (wanted: without --kernels, or with a record)"
    );
    let bytes = ["--step".into(), OsString::from_vec(b"\xff".to_vec())];
    let said = refusal(&bytes).unwrap();
    assert!(
        said.starts_with("--step \"\\xff\": it is not UTF-8"),
        "{said}"
    );
}
