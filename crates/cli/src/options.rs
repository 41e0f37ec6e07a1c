//! Options that stand for variables, made from the table of settings: those of `run` and `env`, and those of `attach`.

use std::env;
use std::ffi::{OsStr, OsString};

use anyhow::Result;
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use tllmprof_config::error::{BadValue, shown};
use tllmprof_config::{Ranked, SETTINGS, Setting, Settings, Value, variable};

use crate::failure::usage;
use crate::manners;

/// Half of what one variable says; `--per` is the other.
const AT_MOST: &str = "--at-most";
const PER: &str = "--per";

/// The options that were typed, in the order of the table: those of `attach`, or of `run` and `env`.
#[derive(Debug, Default)]
pub struct Options<const OF_ATTACH: bool = false>(Vec<Typed>);

#[derive(Debug)]
struct Typed {
    setting: &'static Setting,
    value: OsString,
}

/// A variable that an option sets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Given {
    pub option: &'static str,
    pub variable: &'static str,
    pub value: OsString,
}

impl<const OF_ATTACH: bool> Options<OF_ATTACH> {
    /// Rows with an option of these.
    fn rows() -> impl Iterator<Item = &'static Setting> {
        let is_of = |row: &&Setting| !OF_ATTACH || row.attach.is_some();
        SETTINGS
            .iter()
            .filter(|row| !row.option.is_empty())
            .filter(is_of)
    }

    /// The value of an option that was typed.
    pub fn value(&self, option: &str) -> Option<&OsStr> {
        let typed = self.0.iter().find(|typed| typed.setting.option == option);
        typed.map(|typed| typed.value.as_os_str())
    }

    pub fn has(&self, option: &str) -> bool {
        self.value(option).is_some()
    }

    /// The first of the options that were typed.
    pub fn first(&self) -> Option<&'static str> {
        self.0.first().map(|typed| typed.setting.option)
    }

    /// The variables that were typed as options.
    pub fn typed(&self) -> impl Iterator<Item = Given> {
        self.0.iter().filter_map(|Typed { setting, value }| {
            Some(Given {
                option: setting.option,
                variable: setting.variable()?,
                value: value.clone(),
            })
        })
    }
}

/// An option as clap has it.
fn argument(row: &'static Setting, of_attach: bool) -> Arg {
    let (help, long) = match row.attach.filter(|help| of_attach && !help.is_empty()) {
        Some(help) => (help.to_owned(), help.to_owned()),
        None => row.option_help(),
    };
    let argument = Arg::new(row.option)
        .long(row.option.trim_start_matches('-'))
        .help(help)
        .long_help(long)
        .allow_hyphen_values(row.takes_dashes)
        .conflicts_with_all(row.conflicts);
    let argument = match of_attach {
        true => argument,
        false => argument.help_heading(row.heading.name()),
    };
    let with_value = |argument: Arg, name| {
        let argument = argument.value_name(name).action(ArgAction::Set);
        argument.value_parser(ValueParser::os_string())
    };
    match row.value {
        Value::Flag => argument.action(ArgAction::SetTrue),
        Value::Named(name) => with_value(argument, name),
        Value::Optional(name) => with_value(argument, name)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("1"),
    }
}

impl<const OF_ATTACH: bool> Args for Options<OF_ATTACH> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::rows().map(|row| argument(row, OF_ATTACH)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<const OF_ATTACH: bool> FromArgMatches for Options<OF_ATTACH> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let typed = Self::rows().filter_map(|setting| {
            let value = match setting.value {
                Value::Flag => matches
                    .get_flag(setting.option)
                    .then(|| setting.switched().into()),
                _ => matches.get_one::<OsString>(setting.option).cloned(),
            };
            value.map(|value| Typed { setting, value })
        });
        Ok(Self(typed.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Options {
    /// The variables that these options set.
    pub fn given(&self) -> Vec<Given> {
        let mut given: Vec<_> = self.typed().collect();
        let mut set = |option, variable, value: Option<OsString>| {
            if let Some(value) = value {
                given.retain(|given| given.variable != variable);
                given.push(Given {
                    option,
                    variable,
                    value,
                });
            }
        };
        // Where neither an option nor a variable says which, steady iterations.
        let is_asked = self.has("--window") || variable::windows.split(' ').any(is_set);
        let windows = variable::windows.split(' ').next().unwrap_or_default();
        set("--window", windows, (!is_asked).then(|| "steady".into()));
        set(AT_MOST, variable::when_at_most, self.at_most());
        let no_trace = self.no_trace().then(OsString::new);
        set("--no-trace", variable::trace, no_trace);
        // What --log says takes precedence over --quiet and --verbose.
        let log = manners::log().filter(|_| !self.has("--log"));
        set("--log", variable::log, log.map(Into::into));
        given
    }

    /// How many windows may open by themselves, in how long.
    fn at_most(&self) -> Option<OsString> {
        let (at_most, per) = (self.value(AT_MOST), self.value(PER));
        at_most.or(per)?;
        let mut value = at_most.unwrap_or(OsStr::new("10")).to_owned();
        value.push("/");
        value.push(per.unwrap_or(OsStr::new("1h")));
        Some(value)
    }

    /// What is wrong with a variable, as it is said of what was typed for it.
    fn said(&self, bad: &BadValue, given: &[Given]) -> anyhow::Error {
        let given = given.iter().find(|given| given.variable == bad.name);
        match given.map(|given| given.option) {
            Some(AT_MOST) => {
                let typed = [AT_MOST, PER].into_iter().filter_map(|option| {
                    let value = shown(self.value(option)?);
                    Some(format!("{option} \"{value}\""))
                });
                let typed = typed.collect::<Vec<_>>().join(" ");
                usage(format_args!("{typed}: {}", bad.why()))
            }
            Some(option) => usage(format_args!("{option} {}", bad.of_option())),
            None => usage(bad),
        }
    }

    /// Whether there is to be no record.
    pub fn no_trace(&self) -> bool {
        self.has("--no-trace")
    }

    /// Whether the GPUs are to be sampled, for which there is no variable: the command does it.
    pub fn gpu_metrics(&self) -> bool {
        self.has("--gpu-metrics")
    }

    /// What the library will read: this environment with the options over it.
    ///
    /// # Errors
    /// A value that does not parse, or that another one contradicts.
    pub fn settings(&self) -> Result<Settings> {
        let given = self.given();
        if self.value("--trace").is_some_and(OsStr::is_empty) {
            return Err(usage(
                "--trace \"\": an empty path (wanted: a file's name, or --no-trace)",
            ));
        }
        let settings = Settings::from_env(|name| lookup(&given, name))
            .map_err(|bad| self.said(&bad, &given))?;
        if self.no_trace() && settings.kernels.is_some() {
            return Err(usage(
                "--no-trace: kernels are taken into the record (wanted: without --kernels, or with a record)",
            ));
        }
        Ok(settings)
    }

    /// Which of a job's tasks this is, where the run has no identifier but the job's.
    pub fn task(&self, settings: &Settings) -> Option<String> {
        let is_named = self.has("--run") || is_set(variable::run);
        settings.run.as_ref().filter(|_| !is_named)?;
        let rank = Ranked::by_variables(&|name| env::var_os(name)).map_or(0, |ranked| ranked.rank);
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().replace('/', "-");
        Some(format!("{host}-{rank}"))
    }

    /// What was meant where the program's name is a value that an option takes behind an equals sign only.
    pub fn meant(&self, name: &OsStr) -> Option<String> {
        let name = name.to_str().filter(|name| !name.is_empty())?;
        let takes = |typed: &&Typed| {
            let variable = typed.setting.variable();
            let is_bare = matches!(typed.setting.value, Value::Optional(_)) && typed.value == "1";
            is_bare && Settings::from_env(|of| (Some(of) == variable).then(|| name.into())).is_ok()
        };
        let typed = self.0.iter().find(takes)?;
        Some(format!("{}={name}", typed.setting.option))
    }
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// The value of a variable, where these options were typed.
pub fn lookup(given: &[Given], name: &str) -> Option<OsString> {
    match given.iter().find(|given| given.variable == name) {
        Some(given) => Some(given.value.clone()),
        None => env::var_os(name),
    }
}

/// Splits what follows `--nsys=` or `--ncu=` as a shell would.
///
/// # Errors
/// Quotes that do not close, and text that is not UTF-8.
pub fn split_arguments(option: &str, text: &OsStr) -> Result<Vec<String>> {
    let bad = |problem: &str| {
        let shown = text.to_string_lossy();
        usage(format_args!(
            "{option}=\"{shown}\": {problem} (wanted: arguments as in a shell)"
        ))
    };
    let text = text.to_str().ok_or_else(|| bad("it is not UTF-8"))?;
    shell_words::split(text).map_err(|_| bad("a quote does not close"))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use clap::Parser;
    use tllmprof_config::{Heading, Reader};

    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/variables.md");
    const BEGINS: &str = "<!-- the tables: BLESS=1 cargo test -p tllmprof-cli --bin tllmprof the_page_of_variables -->\n";
    const ENDS: &str = "<!-- their end -->\n";

    fn tables() -> String {
        let mut page = String::new();
        let mut table = |heading, reader, rows: Vec<&Setting>| {
            let is_of_command = reader == Reader::Command;
            let (option, dashes) = match is_of_command {
                true => ("", ""),
                false => (" option |", "---|"),
            };
            let _ = write!(
                page,
                "\n## {heading}\n\n| variable |{option} values | default | meaning |\n|---|{dashes}---|---|---|\n"
            );
            for row in rows.into_iter().filter(|row| row.reader == reader) {
                let Some((name, aliases)) = row.variables.split_first() else {
                    continue;
                };
                let option = match row.option {
                    _ if is_of_command => String::new(),
                    "" => "  |".to_owned(),
                    option => format!(" `{option}` |"),
                };
                let default = match row.otherwise {
                    "" if !row.default.is_empty() => format!("`{}`", row.default),
                    words => words.to_owned(),
                };
                let line = format!("{option} {} | {default} | {} |", row.values(), row.text());
                let _ = writeln!(
                    page,
                    "| `{name}` |{}",
                    line.replace("[@LIBREGEX]", "\\[@LIBREGEX]")
                );
                for alias in aliases {
                    let empty = if is_of_command { "" } else { "  |" };
                    let _ = writeln!(
                        page,
                        "| `{alias}` |{empty}  |  | The same, by a name of TensorRT-LLM; `{name}` takes precedence |"
                    );
                }
            }
        };
        for heading in Heading::ALL {
            let rows = SETTINGS.iter().filter(|row| row.heading == heading);
            table(heading.name(), Reader::Library, rows.collect());
        }
        table(
            "Variables of the command",
            Reader::Command,
            SETTINGS.iter().collect(),
        );
        page
    }

    #[test]
    fn the_page_of_variables_has_all() {
        let tables = tables();
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once(BEGINS).unwrap();
        let (_, after) = rest.split_once(ENDS).unwrap();
        let expected = format!("{before}{BEGINS}{tables}\n{ENDS}{after}");
        if env::var_os("BLESS").is_some() {
            std::fs::write(PAGE, &expected).unwrap();
        } else {
            assert!(page == expected, "{PAGE} is not what it was:\n{tables}");
        }
    }

    #[derive(Parser)]
    struct Line<const OF_ATTACH: bool> {
        #[command(flatten)]
        options: Options<OF_ATTACH>,
    }

    fn typed<const OF_ATTACH: bool>(words: &[String]) -> Options<OF_ATTACH> {
        let words = ["tllmprof".to_owned()]
            .into_iter()
            .chain(words.iter().cloned());
        Line::try_parse_from(words)
            .unwrap_or_else(|error| panic!("{error}"))
            .options
    }

    /// An option as it is typed for the example of its row.
    fn words(row: &Setting) -> Vec<String> {
        let (option, example) = (row.option.to_owned(), row.example);
        let example = example
            .split_once('/')
            .filter(|_| option == AT_MOST)
            .map_or(example, |(n, _)| n);
        match row.value {
            Value::Flag => vec![option],
            Value::Named(_) => vec![option, example.to_owned()],
            Value::Optional(_) => vec![format!("{option}={example}")],
        }
    }

    #[test]
    fn an_option_and_its_variable_give_the_same_setting() {
        // Some of them are of use beside others alone.
        let beside = [
            ("TLLMPROF_WHERE", "tokens>1"),
            ("TLLMPROF_WHEN", "wait > 1s"),
            ("TLLMPROF_START_STOP", "steady"),
        ];
        let read = |set: &[(&str, OsString)]| {
            let of = |name: &str| {
                set.iter()
                    .find(|(n, _)| *n == name)
                    .map(|(_, value)| value.clone())
            };
            let beside = |name: &str| {
                beside
                    .iter()
                    .find(|(n, _)| *n == name)
                    .map(|(_, value)| value.into())
            };
            Settings::from_env(|name| of(name).or_else(|| beside(name)))
                .map(|settings| format!("{settings:?}"))
        };
        let mut options = 0;
        for row in SETTINGS.iter().filter(|row| !row.option.is_empty()) {
            let options_of = typed::<false>(&words(row));
            let given: Vec<_> = options_of
                .given()
                .into_iter()
                .map(|given| (given.variable, given.value))
                .collect();
            let by_option = read(&given).unwrap();
            if let Some(name) = row.variable() {
                let by_variable = read(&[(name, row.example.into())]).unwrap();
                assert_eq!(by_option, by_variable, "{}", row.option);
                if row.attach.is_some() {
                    let given: Vec<_> = typed::<true>(&words(row))
                        .typed()
                        .map(|given| (given.variable, given.value))
                        .collect();
                    assert_eq!(read(&given).unwrap(), by_variable, "attach {}", row.option);
                }
                options += 1;
            }
        }
        assert!(options >= 30);
        let both =
            typed::<false>(&["--at-most".into(), "1".into(), "--per".into(), "2m".into()]).given();
        assert!(
            both.iter()
                .any(|given| given.variable == "TLLMPROF_WHEN_AT_MOST" && given.value == "1/2m"),
            "{both:?}"
        );
    }

    #[test]
    fn an_option_without_its_value_is_the_variable_switched_on() {
        for row in SETTINGS
            .iter()
            .filter(|row| matches!(row.value, Value::Optional(_)) && !row.option.is_empty())
        {
            let given = typed::<false>(&[row.option.to_owned()]).given();
            let value = given
                .iter()
                .find(|given| Some(given.variable) == row.variable());
            assert_eq!(
                value.map(|given| given.value.as_os_str()),
                Some(OsStr::new("1")),
                "{}",
                row.option
            );
        }
        let meant = |name: &str| {
            typed::<false>(&["--kernels".into(), "--perfect-router".into()]).meant(OsStr::new(name))
        };
        assert_eq!(meant("7").as_deref(), Some("--kernels=7"));
        assert_eq!(meant("20@60s").as_deref(), Some("--kernels=20@60s"));
        assert_eq!(meant("window").as_deref(), Some("--perfect-router=window"));
        assert_eq!(meant("serve.py"), None);
    }

    #[test]
    fn arguments_are_split_as_in_a_shell() {
        let split = |text: &str| split_arguments("--nsys", OsStr::new(text));
        assert_eq!(
            split("-o 'a b' -t cuda").unwrap(),
            ["-o", "a b", "-t", "cuda"]
        );
        assert!(split("").unwrap().is_empty());
        assert!(split("-o 'a").is_err());
    }
}
