//! The setting `TLLMPROF_STEP`, the step rule, which defines what an iteration is.

use std::fmt;

use regex::bytes::{Regex, RegexBuilder};

use tllmprof_calls::{CALLS, Call, CallInfo};

use crate::error::{Problem, quoted};
use crate::function::PyFunction;
use crate::nearest::nearest;
use crate::number;

#[derive(Clone, Debug)]
pub enum Step {
    /// A step begins at every `every`-th call of a CUDA function. If the function waits for the GPU, a step instead
    /// ends when every `every`-th call returns, and the next step begins at this moment.
    Call {
        call: Call,
        /// The name of the CUDA function as the user wrote it, such as `cudaGraphLaunch`.
        name: String,
        every: u64,
    },
    /// A step begins at every `every`-th call of a native function with a matching name.
    Symbol {
        name: Regex,
        library: Option<Regex>,
        every: u64,
    },
    /// A step begins at every `every`-th call of a Python function.
    Python { function: PyFunction, every: u64 },
    /// A step begins at every `every`-th NVTX range with a matching name.
    Nvtx {
        name: Regex,
        domain: Option<String>,
        every: u64,
    },
    /// The table of known engines defines the steps. If the program runs no known engine, the library learns its
    /// steps: a step is the sequence of calls that recurs in each iteration.
    Auto,
    /// The library learns the steps from the CUDA calls, even if the program runs a known engine. If the calls of an
    /// iteration consist of equal parts, each part is a step.
    AutoInner,
}

impl Step {
    pub const WANTED: &str = "auto, auto:inner, a CUDA call such as cudaGraphLaunch or cudaGraphLaunch/4, \
                              sym:REGEX, py:MODULE:QUALNAME or nvtx:REGEX";

    /// Parses a step rule.
    ///
    /// # Errors
    /// Returns an error if the CUDA call or the type of the rule is unknown, a regex does not compile, or the rule
    /// ends in `/0`.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Problem::new("it is empty", Self::WANTED));
        }
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        if text.eq_ignore_ascii_case("auto:inner") {
            return Ok(Self::AutoInner);
        }
        let (rule, every) = split_every(text)?;
        if ["auto", "auto:inner"]
            .iter()
            .any(|auto| rule.eq_ignore_ascii_case(auto))
        {
            let problem = format!("{rule} cannot count every Nth iteration");
            return Err(Problem::new(
                problem,
                "auto, auto:inner, or another rule with /N",
            ));
        }
        match rule.split_once(':') {
            Some(("sym", rule)) => {
                let (name, library) = split_at_sign(rule);
                let library = library.map(|l| regex(l, "library", "sym:REGEX@LIBREGEX"));
                let name = regex(
                    name,
                    "function",
                    "sym:REGEX, sym:REGEX@LIBREGEX or either with /N",
                )?;
                Ok(Self::Symbol {
                    name,
                    library: library.transpose()?,
                    every,
                })
            }
            Some(("py", rule)) => {
                let function = PyFunction::parse(rule).map_err(|p| {
                    Problem::new(p.problem, "py:MODULE:QUALNAME or py:MODULE:QUALNAME/N")
                })?;
                Ok(Self::Python { function, every })
            }
            Some(("nvtx", rule)) => {
                let (name, domain) = split_at_sign(rule);
                let name = regex(
                    name,
                    "range",
                    "nvtx:REGEX, nvtx:REGEX@DOMAIN or either with /N",
                )?;
                if domain == Some("") {
                    let problem = "the domain behind the @ is missing";
                    return Err(Problem::new(problem, "nvtx:REGEX@DOMAIN"));
                }
                Ok(Self::Nvtx {
                    name,
                    domain: domain.map(str::to_owned),
                    every,
                })
            }
            Some((kind, level)) if kind.eq_ignore_ascii_case("auto") => Err(Problem::new(
                format!("auto has no level {}", quoted(level)),
                "auto or auto:inner",
            )),
            Some((kind, _)) => Err(Problem::new(
                format!("there is no kind of rule {}", quoted(kind)),
                Self::WANTED,
            )),
            None => Self::parse_call(rule, every),
        }
    }

    /// Returns true for a rule with which iterations are learnt from the CUDA calls. With `Auto`, they are learnt only
    /// until the step function of a known engine is called.
    #[must_use]
    pub const fn is_learnt(&self) -> bool {
        matches!(self, Self::Auto | Self::AutoInner)
    }

    fn parse_call(name: &str, every: u64) -> Result<Self, Problem> {
        let Some(call) = Call::by_name(name) else {
            let known = countable().flat_map(|row| row.names()).chain(["auto"]);
            let problem = match nearest(name, known) {
                Some(near) => format!("{} is not a call that is counted; {near} is", quoted(name)),
                None => format!("{} is not a call that is counted", quoted(name)),
            };
            return Err(Problem::new(problem, Self::WANTED));
        };
        if !call.kind().counts() {
            let problem = format!("{} neither opens nor closes an iteration", quoted(name));
            let known: Vec<_> = countable()
                .filter_map(|row| row.runtime.first().copied())
                .collect();
            return Err(Problem::new(
                problem,
                format!("one of {}", known.join(", ")),
            ));
        }
        Ok(Self::Call {
            call,
            name: name.to_owned(),
            every,
        })
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let every = match self {
            Self::Auto => return f.write_str("auto"),
            Self::AutoInner => return f.write_str("auto:inner"),
            Self::Call { name, every, .. } => {
                f.write_str(name)?;
                every
            }
            Self::Symbol {
                name,
                library,
                every,
            } => {
                write!(f, "sym:{name}")?;
                if let Some(library) = library {
                    write!(f, "@{library}")?;
                }
                every
            }
            Self::Python { function, every } => {
                write!(f, "py:{function}")?;
                every
            }
            Self::Nvtx {
                name,
                domain,
                every,
            } => {
                write!(f, "nvtx:{name}")?;
                if let Some(domain) = domain {
                    write!(f, "@{domain}")?;
                }
                every
            }
        };
        if *every > 1 {
            write!(f, "/{every}")?;
        }
        Ok(())
    }
}

fn countable() -> impl Iterator<Item = &'static CallInfo> {
    CALLS.iter().filter(|row| row.kind.counts())
}

/// Splits a rule at its last slash. Returns the rule and the number after the slash, or 1 without a slash. In a rule
/// with a colon, such as `sym:a/b`, a slash without a number after it belongs to the regex or name. In any other rule,
/// such a slash is an error.
fn split_every(text: &str) -> Result<(&str, u64), Problem> {
    const WANTED: &str = "/N with N at least 1";
    let Some((rule, every)) = text.rsplit_once('/') else {
        return Ok((text, 1));
    };
    let is_number = !every.trim().is_empty() && every.trim().bytes().all(|b| b.is_ascii_digit());
    if rule.contains(':') && !is_number {
        return Ok((text, 1));
    }
    match number::parse(every, WANTED)? {
        0 => Err(Problem::new("every 0th call is none", WANTED)),
        every => Ok((rule.trim_end(), every)),
    }
}

/// Splits a rule at the last `@` that is neither escaped nor inside brackets. Returns the parts before and after this
/// `@`. Without such an `@`, returns the whole rule and `None`.
pub(crate) fn split_at_sign(rule: &str) -> (&str, Option<&str>) {
    let (mut escaped, mut in_class, mut at) = (false, false, None);
    for (index, byte) in rule.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'[' => in_class = true,
            b']' => in_class = false,
            b'@' if !in_class => at = Some(index),
            _ => {}
        }
    }
    match at {
        Some(at) => (&rule[..at], Some(&rule[at + 1..])),
        None => (rule, None),
    }
}

/// Maximum depth to which groups and repetitions in a regex may be nested.
const NESTED: u32 = 32;

pub(crate) fn regex(pattern: &str, what: &str, wanted: &str) -> Result<Regex, Problem> {
    if pattern.is_empty() {
        return Err(Problem::new(
            format!("the regex for the {what} is empty"),
            wanted,
        ));
    }
    // Unicode is disabled: symbol names are bytes, and the tables for Unicode classes would make up most of the
    // library's size.
    RegexBuilder::new(pattern)
        // The nesting depth of a regex is limited, because the regex compiler is recursive: a deeper regex needs more
        // stack. The compiler runs on a thread of the program, whose stack may be small.
        .nest_limit(NESTED)
        .unicode(false)
        .build()
        .map_err(|error| {
            // The error message of the regex parser shows the pattern over several lines. Only its last line names the
            // mistake.
            let error = error.to_string();
            let last = error.lines().last().unwrap_or_default();
            let reason = last.strip_prefix("error: ").unwrap_or(last);
            Problem::new(
                format!("the regex {} does not compile: {reason}", quoted(pattern)),
                wanted,
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        Step::parse(text)
            .unwrap_or_else(|e| panic!("{text:?}: {e}"))
            .to_string()
    }

    fn problem(text: &str) -> String {
        Step::parse(text).expect_err(text).problem
    }

    #[test]
    fn a_regex_that_is_nested_deeply_is_refused() {
        assert!(Step::parse(&format!("sym:a{}", "+".repeat(20))).is_ok());
        for deep in [
            format!("a{}", "+".repeat(200)),
            "(".repeat(40) + &")".repeat(40),
        ] {
            let problem = problem(&format!("sym:{deep}"));
            assert!(problem.contains("does not compile"), "{problem}");
        }
    }

    #[test]
    fn rules_are_shown_as_written() {
        for rule in [
            "auto",
            "auto:inner",
            "cudaGraphLaunch",
            "cudaGraphLaunch/4",
            "cuGraphLaunch_ptsz",
            "cudaStreamSynchronize",
            "sym:^Engine::step$",
            "sym:a/b",
            "sym:step/3",
            "sym:step@libengine\\.so/3",
            "py:vllm.v1.engine.core:EngineCore.step",
            "py:a:b/2",
            "nvtx:^step \\d+$@engine/7",
        ] {
            assert_eq!(written(rule), rule);
        }
        assert_eq!(written(" AUTO "), "auto");
        assert_eq!(written(" cudaGraphLaunch / 4 "), "cudaGraphLaunch/4");
        assert_eq!(written("cudaGraphLaunch/1"), "cudaGraphLaunch");
    }

    #[test]
    fn both_names_are_one_call() {
        for name in ["cudaGraphLaunch", "cuGraphLaunch", "cudaGraphLaunch_ptsz"] {
            let step = Step::parse(name).unwrap();
            assert!(
                matches!(
                    step,
                    Step::Call {
                        call: Call::GraphLaunch,
                        every: 1,
                        ..
                    }
                ),
                "{step}"
            );
        }
    }

    #[test]
    fn parts_of_a_symbol_rule() {
        let Step::Symbol {
            name,
            library,
            every,
        } = Step::parse(r"sym:a\@b[@]@lib@c\.so/5").unwrap()
        else {
            panic!("no symbol rule");
        };
        assert_eq!(name.as_str(), r"a\@b[@]@lib");
        assert_eq!(
            library.map(|l| l.as_str().to_owned()).as_deref(),
            Some(r"c\.so")
        );
        assert_eq!(every, 5);
        let Step::Symbol { name, .. } = Step::parse("sym:st.p").unwrap() else {
            panic!("no symbol rule");
        };
        assert!(name.is_match(b"_Z4st\xffp"), "names are bytes");
    }

    #[test]
    fn says_what_is_wrong() {
        assert_eq!(problem(""), "it is empty");
        assert_eq!(
            problem("cudaGraphLunch"),
            "\"cudaGraphLunch\" is not a call that is counted; cudaGraphLaunch is"
        );
        assert_eq!(
            problem("cudagraphlaunch/4"),
            "\"cudagraphlaunch\" is not a call that is counted; cudaGraphLaunch is"
        );
        assert_eq!(
            problem("cudaMallocPitch"),
            "\"cudaMallocPitch\" is not a call that is counted"
        );
        assert_eq!(
            problem("cudaMalloc"),
            "\"cudaMalloc\" neither opens nor closes an iteration"
        );
        assert_eq!(
            problem("cudaProfilerStart"),
            "\"cudaProfilerStart\" neither opens nor closes an iteration"
        );
        assert_eq!(problem("cudaGraphLaunch/0"), "every 0th call is none");
        assert_eq!(problem("sym:f/0"), "every 0th call is none");
        assert_eq!(problem("cudaGraphLaunch/"), "a number is missing");
        assert_eq!(problem("cudaGraphLaunch/x"), "\"x\" is not a number");
        assert_eq!(problem("cudaGraphLaunch/-1"), "\"-1\" is not a number");
        for auto in ["auto", "auto:inner"] {
            for every in [1, 2] {
                let why = format!("{auto} cannot count every Nth iteration");
                assert_eq!(problem(&format!("{auto}/{every}")), why);
            }
        }
        assert_eq!(problem("auto:outer"), "auto has no level \"outer\"");
        assert_eq!(problem("sum:f"), "there is no kind of rule \"sum\"");
        assert_eq!(problem("sym:"), "the regex for the function is empty");
        assert_eq!(problem("sym:f@"), "the regex for the library is empty");
        assert_eq!(
            problem("sym:(f"),
            "the regex \"(f\" does not compile: unclosed group"
        );
        assert_eq!(problem("nvtx:f@"), "the domain behind the @ is missing");
        assert_eq!(problem("py:f"), "\"f\" has no \":\" behind the module");
    }

    #[test]
    fn a_regex_too_large_is_an_error_in_one_line() {
        let problem = problem("sym:(((a{1000}){1000}){1000})");
        assert!(
            problem.contains("does not compile") && !problem.contains('\n'),
            "{problem}"
        );
    }
}
