//! Command-line options that set variables: the options of `run` and `env`, and those of `attach`. They are generated
//! from the table of settings (`SETTINGS`).

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use tllmprof_config::error::{BadValue, shown};
use tllmprof_config::{
    Control, Placeholders, Ranked, SETTINGS, Setting, Settings, ValueForm, flag, settings, variable,
};

use crate::failure::{usage, worded};
use crate::{manners, records};

/// The option for the maximum number of windows (ranges of captured iterations) that open automatically. It sets the
/// same variable as [`PER`].
const AT_MOST: &str = "--at-most";
/// The option for a period of time. In each such period, at most as many windows (ranges of captured iterations) open
/// automatically as [`AT_MOST`] allows.
const PER: &str = "--per";

/// The options that the user typed, in the order of the table of settings. If `OF_ATTACH` is true, these are options of
/// `attach`, otherwise of `run` and `env`.
#[derive(Debug, Default)]
pub(crate) struct Options<const OF_ATTACH: bool = false>(Vec<Typed>);

#[derive(Debug)]
struct Typed {
    setting: &'static Setting,
    value: OsString,
}

/// A variable, the option that sets the variable, and the value that the option gives to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Given {
    pub option: &'static str,
    pub variable: &'static str,
    pub value: OsString,
}

/// The measurements that are switched on automatically for a run whose user chose no window (a range of captured
/// iterations).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Measures {
    All,
    /// Everything except kernels, for runs with the PyTorch profiler. That profiler also uses CUPTI. The window (the
    /// range of captured iterations) then has a fixed length (`steady`), because the window of [`All`](Self::All)
    /// (`auto`) would be too long for that profiler.
    WithoutKernels,
    /// Only iteration times and the numbers of calls.
    Nothing,
}

impl Measures {
    /// Returns the options that these measurements add to the user's options, each with the variable that it sets.
    fn added(self) -> &'static [(&'static str, &'static str)] {
        const ADDED: [(&str, &str); 5] = [
            ("--stacks", variable::stacks),
            ("--native-stacks", variable::native_stacks),
            ("--gc", variable::record_gc),
            ("--gil", variable::gil),
            ("--kernels", variable::kernels),
        ];
        match self {
            Self::All => &ADDED,
            Self::WithoutKernels => &ADDED[..4],
            Self::Nothing => &[],
        }
    }
}

impl<const OF_ATTACH: bool> Options<OF_ATTACH> {
    /// Returns the rows of the table of settings that have an option: of `attach` if `OF_ATTACH` is true, otherwise
    /// of `run` and `env`.
    fn rows() -> impl Iterator<Item = &'static Setting> {
        let is_of = |row: &&Setting| !OF_ATTACH || row.attach.is_some();
        SETTINGS
            .iter()
            .filter(|row| !row.option.is_empty())
            .filter(is_of)
    }

    /// Returns the value that the user typed for an option. `None` if the user did not type that option.
    pub(crate) fn value(&self, option: &str) -> Option<&OsStr> {
        let typed = self.0.iter().find(|typed| typed.setting.option == option);
        typed.map(|typed| typed.value.as_os_str())
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.value(option).is_some()
    }

    /// Returns the name of the first option that the user typed, in the order of the table of settings.
    pub(crate) fn first(&self) -> Option<&'static str> {
        self.0.first().map(|typed| typed.setting.option)
    }

    /// Returns the variables that the typed options set, with the values that the options give to them.
    pub(crate) fn typed(&self) -> impl Iterator<Item = Given> {
        self.0.iter().filter_map(|Typed { setting, value }| {
            Some(Given {
                option: setting.option,
                variable: setting.variable()?,
                value: value.clone(),
            })
        })
    }
}

/// Converts a row of the table of settings to an option of the command line parser, clap.
fn argument(row: &'static Setting, of_attach: bool) -> Arg {
    let (help, long) = match row.attach.filter(|help| of_attach && !help.is_empty()) {
        Some(help) => (help.to_owned(), help.to_owned()),
        None => row.option_help(),
    };
    let argument = Arg::new(row.option)
        .long(row.option.trim_start_matches('-'))
        .help(help)
        .long_help(long)
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
        ValueForm::Flag => argument.action(ArgAction::SetTrue),
        ValueForm::Named(name) => with_value(argument, name),
        ValueForm::Optional(name) => with_value(argument, name)
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
                ValueForm::Flag => matches
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
    /// Returns the variables that these options set. `measures` names the automatic measurements to add.
    pub(crate) fn given(&self, measures: Measures) -> Vec<Given> {
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
        // If neither an option nor a variable chooses a window, the run measures a window that begins once iteration
        // times have settled.
        let is_asked = self.has("--window") || variable::windows.split(' ').any(is_set);
        if !is_asked {
            let windows = variable::windows.split(' ').next().unwrap_or_default();
            let measures = self.measures(measures);
            let window = match measures {
                Measures::All => "auto",
                Measures::WithoutKernels | Measures::Nothing => "steady",
            };
            set("--window", windows, Some(window.into()));
            for &(option, variable) in measures.added() {
                let is_given = self.has(option) || env::var_os(variable).is_some();
                set(option, variable, (!is_given).then(|| "auto".into()));
            }
        }
        set(AT_MOST, variable::when_at_most, self.at_most());
        let no_trace = self.no_trace().then(OsString::new);
        set("--no-trace", variable::trace, no_trace);
        // The option `--log` takes precedence over `--quiet` and `--verbose`.
        let log = manners::log().filter(|_| !self.has("--log"));
        set("--log", variable::log, log.map(Into::into));
        given
    }

    /// Returns the automatic measurements that apply when the user chose no window (a range of captured iterations).
    /// Some options and variables of the user reduce these measurements.
    fn measures(&self, measures: Measures) -> Measures {
        let has_torch_trace = self.has("--torch-trace") || is_set(variable::torch_trace);
        match measures {
            _ if self.has("--light") || self.no_trace() => Measures::Nothing,
            Measures::All if has_torch_trace => Measures::WithoutKernels,
            measures => measures,
        }
    }

    /// Returns the limit of windows (ranges of captured iterations) that open automatically, in the form
    /// `WINDOWS/TIME`. `None` if the user typed neither `--at-most` nor `--per`.
    fn at_most(&self) -> Option<OsString> {
        let (at_most, per) = (self.value(AT_MOST), self.value(PER));
        at_most.or(per)?;
        let mut value = at_most.unwrap_or(OsStr::new("10")).to_owned();
        value.push("/");
        value.push(per.unwrap_or(OsStr::new("1h")));
        Some(value)
    }

    /// Returns the error for a variable with a bad value. If an option set the variable, the error's text names that
    /// option instead.
    fn usage_error(&self, bad: &BadValue, given: &[Given]) -> anyhow::Error {
        let Some(given) = given.iter().find(|given| given.variable == bad.name) else {
            return usage(bad);
        };
        let own = [given.option];
        let options = match given.option {
            AT_MOST => &[AT_MOST, PER][..],
            _ => &own,
        };
        let typed = self
            .0
            .iter()
            .filter(|typed| options.contains(&typed.setting.option));
        let typed = typed.map(|typed| match typed.setting.value {
            ValueForm::Flag => typed.setting.option.to_owned(),
            _ => format!("{} \"{}\"", typed.setting.option, shown(&typed.value)),
        });
        let typed = typed.collect::<Vec<_>>().join(" ");
        let why = self.in_options(&bad.why());
        usage(format_args!(
            "{typed}: {}",
            why.replace("10/1h", "--at-most 10 --per 1h")
        ))
    }

    /// Replaces each variable in a text by the option that sets it. A variable that is set in this environment is
    /// replaced only if the user typed the option, too.
    fn in_options(&self, text: &str) -> String {
        let mut out = String::new();
        let is_of_name = |c: char| c == '_' || c.is_ascii_alphanumeric();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let end = rest.find(|c| is_of_name(c) != is_of_name(first));
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            let named = settings::options().find(|(variable, _)| *variable == word);
            let option = named.filter(|(_, option)| self.has(option) || !is_set(word));
            rest = after;
            match option {
                None => out.push_str(word),
                Some((_, option)) => {
                    out.push_str(option);
                    if let Some(value) = rest.strip_prefix('=') {
                        out.push(' ');
                        rest = value;
                    }
                }
            }
        }
        out
    }

    /// Returns the name of a setting's source: the option if the user typed it, otherwise the variable.
    fn given_by(&self, option: &'static str, variable: &'static str) -> &'static str {
        if self.has(option) { option } else { variable }
    }

    /// Checks the paths that a program on this machine will write to, except the path of the record.
    ///
    /// # Errors
    /// The file of PyTorch's profiler or the ring file (with the latest steps and collectives) cannot be created, or
    /// the folder of control sockets cannot be used.
    pub(crate) fn check_places(&self, settings: &Settings) -> Result<()> {
        if let Some(trace) = &settings.torch_trace {
            let by = self.given_by("--torch-trace", variable::torch_trace);
            let typed = PathBuf::from(format!("{}{}", trace.stem, trace.extension));
            let name = PathBuf::from(format!("{}-rank-0{}", trace.stem, trace.extension));
            // The PyTorch profiler creates missing folders, so the nearest folder that exists is checked.
            let folder = parent(&typed).ancestors().find(|folder| folder.exists());
            records::check_can_create((by, &typed), folder.unwrap_or(Path::new(".")), true, &name)?;
        }
        if let Some(ring) = &settings.ring {
            let by = self.given_by("--ring", variable::ring);
            let place = Placeholders {
                pid: std::process::id(),
                rank: None,
                host: OsStr::new("host"),
            };
            let path = ring.fill(&place, |name| env::var_os(name));
            records::check_can_create((by, &path), parent(&path), true, &path)?;
        }
        let Control::Folder(folder) = &settings.control else {
            return Ok(());
        };
        let shown_folder = shown(folder.as_os_str());
        let what = format!("{}=\"{shown_folder}\"", variable::control);
        let refuse = |why: &str| {
            usage(format_args!(
                "{what}: {why} (wanted: 1, 0, or a folder that can be written to)"
            ))
        };
        let place = if folder.exists() {
            folder
        } else {
            parent(folder)
        };
        if !place.is_dir() {
            return Err(refuse("there is no such folder"));
        }
        records::may_create_in(place).map_err(|error| refuse(&worded(&error.to_string())))?;
        Ok(())
    }

    /// Returns true if the user wants no record (`--no-trace`).
    pub(crate) fn no_trace(&self) -> bool {
        self.has("--no-trace")
    }

    /// Returns true if the command samples the GPUs' metrics (`--gpu-metrics`). There is no variable for this option,
    /// because the command takes these samples, and the library does not need to know about them.
    pub(crate) fn gpu_metrics(&self) -> bool {
        self.has("--gpu-metrics")
    }

    /// Returns true if the command samples the state of the GPUs. It does unless the user gave `--no-gpu-state` or
    /// `--light`, or set the variable of this setting to false.
    ///
    /// # Errors
    /// The value of the variable is neither true nor false.
    pub(crate) fn gpu_state(&self) -> Result<bool> {
        let name = variable::gpu_state;
        let value = env::var_os(name).unwrap_or_else(|| "1".into());
        let text = value.to_str().unwrap_or("\u{fffd}");
        let is_on =
            flag::parse(text).map_err(|problem| usage(problem.in_variable(name, &value)))?;
        Ok(is_on && !self.has("--no-gpu-state") && !self.has("--light"))
    }

    /// Returns the settings that the library will read: those of this environment, overridden by the typed options.
    ///
    /// # Errors
    /// A value does not parse, or contradicts another one.
    pub(crate) fn settings(&self, measures: Measures) -> Result<Settings> {
        let given = self.given(measures);
        let settings = Settings::from_env(|name| lookup(&given, name))
            .map_err(|bad| self.usage_error(&bad, &given))?;
        if self.no_trace() && settings.kernels.is_some() {
            let kernels = self.in_options(variable::kernels);
            return Err(usage(format_args!(
                "--no-trace: kernels are taken into the record (wanted: without {kernels}, or with a record)",
            )));
        }
        Ok(settings)
    }

    /// Returns the name of this process's task in the job of a launcher such as Slurm. The name consists of host and
    /// rank. Returns `None` if the run's identifier is not that of a job: there is no identifier, or the user set it.
    pub(crate) fn task(&self, settings: &Settings) -> Option<String> {
        let is_named = self.has("--run") || is_set(variable::run);
        settings.run.as_ref().filter(|_| !is_named)?;
        let rank = Ranked::by_variables(&|name| env::var_os(name)).map_or(0, |ranked| ranked.rank);
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().replace('/', "-");
        Some(format!("{host}-{rank}"))
    }

    /// Returns the option that the user probably meant to give the value `name`, which was taken for the program's
    /// name. This happens because some options take a value only after an equals sign: the user typed `--stacks 100`
    /// instead of `--stacks=100`. Returns `None` if no such option was typed.
    pub(crate) fn meant(&self, name: &OsStr) -> Option<String> {
        let name = name.to_str().filter(|name| !name.is_empty())?;
        let takes = |typed: &&Typed| {
            let variable = typed.setting.variable();
            let is_bare =
                matches!(typed.setting.value, ValueForm::Optional(_)) && typed.value == "1";
            is_bare && Settings::from_env(|of| (Some(of) == variable).then(|| name.into())).is_ok()
        };
        let typed = self.0.iter().find(takes)?;
        Some(format!("{}={name}", typed.setting.option))
    }
}

/// Returns the folder that contains a file; `.` if the path names no folder.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Returns the value that an option in `given` sets for a variable, otherwise the variable's value in the environment.
pub(crate) fn lookup(given: &[Given], name: &str) -> Option<OsString> {
    match given.iter().find(|given| given.variable == name) {
        Some(given) => Some(given.value.clone()),
        None => env::var_os(name),
    }
}

/// Splits the arguments in `--nsys=` or `--ncu=` as a shell would.
///
/// # Errors
/// A quote does not close, or the text is not UTF-8.
pub(crate) fn split_arguments(option: &str, text: &OsStr) -> Result<Vec<String>> {
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

    /// Returns the words of a command line that set an option to the example value of its row.
    fn words(row: &Setting) -> Vec<String> {
        let (option, example) = (row.option.to_owned(), row.example);
        let example = example
            .split_once('/')
            .filter(|_| option == AT_MOST)
            .map_or(example, |(n, _)| n);
        match row.value {
            ValueForm::Flag => vec![option],
            ValueForm::Named(_) => vec![option, example.to_owned()],
            ValueForm::Optional(_) => vec![format!("{option}={example}")],
        }
    }

    #[test]
    fn an_option_and_its_variable_give_the_same_setting() {
        // Some settings are only valid, or only have an effect, together with other settings. This list gives the
        // values of those other settings for the tests.
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
                .given(Measures::Nothing)
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
        let both = typed::<false>(&["--at-most".into(), "1".into(), "--per".into(), "2m".into()])
            .given(Measures::Nothing);
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
            .filter(|row| matches!(row.value, ValueForm::Optional(_)) && !row.option.is_empty())
        {
            let given = typed::<false>(&[row.option.to_owned()]).given(Measures::Nothing);
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
