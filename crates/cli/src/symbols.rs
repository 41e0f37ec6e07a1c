//! `tllmprof symbols`: lists the functions in programs and libraries that `sym:` rules can name.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use regex::bytes::Regex;
use tllmprof_config::{Printable, Step, printable};
use tllmprof_symbols::{
    Function, Image, LIMIT, Nearest, Pattern, Reach, Reason, Sources, demangle, reach,
};

use crate::progress::Progress;
use crate::{failure, output};

#[derive(Args)]
#[command(override_usage = "tllmprof symbols [--json] <BINARY>... [REGEX]")]
pub(crate) struct SymbolsArguments {
    /// Print one JSON line for each function
    #[arg(long)]
    json: bool,
    /// Programs and libraries to search. If the last argument is not a file, it selects functions as a sym: rule does:
    /// REGEX or REGEX@LIBREGEX, with or without the sym: prefix
    #[arg(value_name = "BINARY", required = true)]
    arguments: Vec<OsString>,
}

/// The pattern that the user typed: a regex for the names of functions, and optionally a regex for the name of their
/// library.
struct FunctionQuery {
    text: String,
    pattern: Pattern,
    library: Option<Regex>,
}

struct Binary {
    path: PathBuf,
    image: Image,
}

/// A function in the list that `tllmprof symbols` prints.
struct FunctionRow<'a> {
    binary: &'a Binary,
    function: Function<'a>,
    reach: Reach,
    /// The demangled name of the function, in printable form.
    shown: String,
}

pub(crate) fn run(arguments: &SymbolsArguments) -> Result<ExitCode> {
    let (files, wanted) = split(&arguments.arguments)?;
    let mut status = ExitCode::SUCCESS;
    let mut binaries = Vec::new();
    for path in files {
        match Image::open(path).with_context(|| path.display().to_string()) {
            Ok(image) => binaries.push(Binary {
                path: path.to_owned(),
                image,
            }),
            Err(error) => {
                output::say(format_args!("{}", failure::text(&error)));
                status = ExitCode::FAILURE;
            }
        }
    }
    if binaries.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    let rows = rows(&binaries, wanted.as_ref());
    if rows.is_empty() {
        output::say(format_args!(
            "{}",
            describe_nothing(&binaries, wanted.as_ref())
        ));
        return Ok(ExitCode::FAILURE);
    }
    let names = NameCounts::new(&binaries);
    let mut text = String::new();
    if arguments.json {
        for row in &rows {
            text.push_str(&row.json(&names));
        }
    } else {
        table(&mut text, &binaries, &rows);
        if wanted.is_some() {
            text.push_str(&names.advice(&rows));
        }
    }
    output::print(text.as_bytes())?;
    if wanted.is_some() && rows.len() > LIMIT {
        output::say(format_args!(
            "{} functions match: as a rule it is refused, which may match {LIMIT}",
            rows.len()
        ));
    }
    Ok(status)
}

/// Splits the arguments into files and a regex. The last of several arguments is the regex if there is no file with
/// that name.
fn split(arguments: &[OsString]) -> Result<(Vec<&Path>, Option<FunctionQuery>)> {
    let mut files: Vec<&Path> = arguments.iter().map(Path::new).collect();
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    if let [first, rest @ ..] = files.as_slice()
        && !rest.is_empty()
        && !is_there(first)
        && rest.iter().all(|path| is_there(path))
    {
        let words = rest
            .iter()
            .chain([first])
            .map(|path| tllmprof_report::shell_word(path.as_os_str().as_bytes()));
        let words = words.collect::<Vec<_>>().join(&b' ');
        let (first, words) = (first.display(), String::from_utf8_lossy(&words));
        return Err(failure::usage(format_args!(
            "{first}: there is no such file (did you mean tllmprof symbols {words}?)"
        )));
    }
    let last = files.last().copied().unwrap_or(Path::new(""));
    if files.len() < 2 || is_there(last) {
        return Ok((files, None));
    }
    files.pop();
    let Some(text) = last.to_str() else {
        return Err(failure::usage("the regex is not UTF-8"));
    };
    let rule = match text.strip_prefix("sym:") {
        Some(_) => text.to_owned(),
        None => format!("sym:{text}"),
    };
    let wrong = |problem| failure::usage(format_args!("{text:?}: {problem}"));
    let Step::Symbol { name, library, .. } = Step::parse(&rule).map_err(wrong)? else {
        return Err(failure::usage(format_args!("{text:?} is not a sym: rule")));
    };
    let wanted = FunctionQuery {
        text: text.to_owned(),
        pattern: Pattern::new(&name),
        library,
    };
    Ok((files, Some(wanted)))
}

fn rows<'a>(binaries: &'a [Binary], wanted: Option<&FunctionQuery>) -> Vec<FunctionRow<'a>> {
    let mut rows = Vec::new();
    for binary in binaries {
        let functions = match wanted {
            None => binary.image.functions(),
            Some(wanted) => {
                let path = binary.path.as_os_str().as_bytes();
                if wanted.library.as_ref().is_some_and(|l| !l.is_match(path)) {
                    continue;
                }
                binary.image.matching(&wanted.pattern, usize::MAX).functions
            }
        };
        let from = rows.len();
        let name = binary.path.file_name().unwrap_or_default();
        let what = format!("reading the names in {}", name.display());
        let mut progress = Progress::new(what, functions.len() as u64);
        rows.extend(functions.into_iter().map(|function| {
            progress.advance(1);
            FunctionRow {
                binary,
                reach: reach(&function, &binary.image),
                shown: shown(function.names.first().copied().unwrap_or_default()),
                function,
            }
        }));
        if wanted.is_some() {
            rows[from..].sort_by(|a, b| a.shown.cmp(&b.shown));
        }
    }
    rows
}

/// Returns the demangled form of a symbol's name, in printable characters.
fn shown(name: &[u8]) -> String {
    demangle(name).map_or_else(|| Printable(name).to_string(), printable)
}

/// Returns the message that is printed if no function is listed.
fn describe_nothing(binaries: &[Binary], wanted: Option<&FunctionQuery>) -> String {
    let paths = binaries.iter().map(|b| b.path.display().to_string());
    let paths = paths.collect::<Vec<_>>().join(", ");
    let mut text = match wanted {
        None => format!("{paths}: no symbols that could be named"),
        Some(wanted) => format!("{paths}: no function matches {:?}", wanted.text),
    };
    if let Some(wanted) = wanted {
        let mut nearest = Nearest::new(&wanted.pattern);
        for binary in binaries {
            nearest.look(&binary.image);
        }
        let names = nearest.names(3);
        if !names.is_empty() {
            let _ = write!(text, "; the nearest: {}", names.join(", "));
        }
    }
    if binaries.iter().any(|binary| binary.image.is_stripped()) {
        text.push_str(" (stripped, and no debug file: only dynamic symbols have names)");
    }
    text
}

fn table(text: &mut String, binaries: &[Binary], rows: &[FunctionRow<'_>]) {
    let means: Vec<_> = rows.iter().map(FunctionRow::means).collect();
    let width = means.iter().map(String::len).max().unwrap_or(0);
    let mut of = None;
    // Errors of `writeln` are ignored below, because writing to a string does not fail.
    for (row, means) in rows.iter().zip(means) {
        let path = &row.binary.path;
        if of != Some(path) {
            of = Some(path);
            if binaries.len() > 1 {
                let _ = writeln!(text, "{}:", Printable(path.as_os_str().as_bytes()));
            }
            if let Some(debug) = &row.binary.image.debug_file {
                let debug = Printable(debug.as_os_str().as_bytes());
                let _ = writeln!(text, "(symbols of {debug})");
            }
        }
        let address = row.function.address;
        let address = address.map_or_else(|| "-".to_owned(), |address| format!("{address:#x}"));
        let size = address_size(&row.function);
        let sources = sources(row.function.sources).join("+");
        let _ = writeln!(
            text,
            "{means:width$}  {address:>10}  {size:>7}  {sources:13}  {}{}",
            row.shown,
            row.other_names()
        );
    }
}

fn address_size(function: &Function<'_>) -> String {
    match function.address {
        Some(_) if function.size > 0 => function.size.to_string(),
        _ => "-".to_owned(),
    }
}

fn sources(sources: Sources) -> Vec<&'static str> {
    let all = [
        (sources.import, "import"),
        (sources.dynamic, "dynamic"),
        (sources.table, "table"),
        (sources.debug, "debug"),
    ];
    let known = all.into_iter().filter(|(known, _)| *known);
    known.map(|(_, name)| name).collect()
}

impl FunctionRow<'_> {
    fn means(&self) -> String {
        let word = self.reach.word();
        match self.reach {
            Reach::Exported(Some(reason)) => format!("{word}, no entry: {reason}"),
            Reach::No(reason) => format!("{word}: {reason}"),
            _ => word.to_owned(),
        }
    }

    /// Returns the other names that the symbol table contains for the function's address, each after ` = `.
    fn other_names(&self) -> String {
        let others: BTreeSet<_> = self
            .function
            .names
            .iter()
            .map(|name| shown(name))
            .filter(|name| *name != self.shown)
            .collect();
        if others.is_empty() {
            return String::new();
        }
        let others: Vec<_> = others.into_iter().collect();
        format!("  = {}", others.join(" = "))
    }

    fn json(&self, names: &NameCounts<'_>) -> String {
        let string = |text: &str| output::json(text);
        let or_null = |text: Option<String>| text.unwrap_or_else(|| "null".to_owned());
        let list = |items: Vec<String>| format!("[{}]", items.join(", "));
        let Function {
            address,
            size,
            names: raw,
            sources: from,
            is_ifunc,
            is_go,
            ..
        } = &self.function;
        let raw = raw
            .iter()
            .map(|name| string(&String::from_utf8_lossy(name)));
        let debug = self.binary.image.debug_file.as_ref();
        let debug = debug.filter(|_| from.debug);
        format!(
            "{{\"file\": {}, \"reach\": \"{}\", \"reason\": {}, \"address\": {}, \"size\": {}, \
             \"sources\": {}, \"debug_file\": {}, \"ifunc\": {is_ifunc}, \"go\": {is_go}, \
             \"names\": {}, \"demangled\": {}, \"rule\": {}}}\n",
            string(&self.binary.path.to_string_lossy()),
            self.reach.word(),
            or_null(self.reach.reason().map(|r: Reason| string(&r.to_string()))),
            or_null(address.map(|address| format!("\"{address:#x}\""))),
            or_null(address.filter(|_| *size > 0).map(|_| size.to_string())),
            list(sources(*from).into_iter().map(string).collect()),
            or_null(debug.map(|path| string(&path.to_string_lossy()))),
            list(raw.collect()),
            string(&self.shown),
            or_null(names.rule(&self.function).map(|rule| string(&rule))),
        )
    }
}

/// The number of functions with each name, in all files that are listed.
struct NameCounts<'a>(HashMap<&'a [u8], usize>);

impl<'a> NameCounts<'a> {
    fn new(binaries: &'a [Binary]) -> Self {
        let mut counts = HashMap::new();
        for binary in binaries {
            for function in binary.image.functions() {
                // An import has no address and is not counted, because another module defines the
                // function.
                let count = usize::from(function.address.is_some());
                for name in function.names {
                    *counts.entry(name).or_default() += count;
                }
            }
        }
        Self(counts)
    }

    /// Returns a `sym:` rule that matches only this function, or `None` if each of its names also
    /// belongs to another function.
    fn rule(&self, function: &Function<'_>) -> Option<String> {
        let mut names = function.names.iter();
        let name = names.find(|name| self.0.get(**name).is_none_or(|count| *count < 2))?;
        Some(format!("sym:^{}$", escaped(name)))
    }

    /// Returns a line that suggests a rule for the first listed function whose calls can be counted, or says why there
    /// is no such rule.
    fn advice(&self, rows: &[FunctionRow<'_>]) -> String {
        let reached = |row: &&FunctionRow<'_>| !matches!(row.reach, Reach::No(_));
        let Some(row) = rows.iter().find(reached) else {
            return "none of them can be counted\n".to_owned();
        };
        match self.rule(&row.function) {
            Some(rule) => format!("only {}: {rule}\n", row.shown),
            None => format!(
                "no rule names only {}: others have the same name\n",
                row.shown
            ),
        }
    }
}

/// Returns a regex that matches exactly the function name `name`, in the syntax of `sym:` rules.
fn escaped(name: &[u8]) -> String {
    let mut out = String::new();
    for &byte in name {
        match byte {
            // In a rule, an unescaped `@` ends the function's regex and begins the library's.
            b'@' => out.push_str("\\@"),
            b'!'..=b'~' => out.push_str(&regex::escape(char::from(byte).encode_utf8(&mut [0]))),
            _ => {
                // Writing to a string does not fail.
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_name_is_matched_by_its_rule_alone() {
        for name in [
            &b"_ZN2ns1fEi"[..],
            b"main.(*T[go.shape.int]).Step",
            b"f@@V_1.0",
            b"a/7",
            b"a<b> \xff\n",
        ] {
            let rule = format!("sym:^{}$", escaped(name));
            let Step::Symbol {
                name: regex,
                library,
                every,
            } = Step::parse(&rule).unwrap()
            else {
                panic!("{rule}");
            };
            assert!(regex.is_match(name), "{rule}");
            assert!(library.is_none() && every == 1, "{rule}");
            let other = [name, b"x"].concat();
            assert!(!regex.is_match(&other), "{rule}");
        }
    }
}
