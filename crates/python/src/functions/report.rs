//! Reports on the requested functions at the end of a process that used CUDA.

use core::fmt;
use core::sync::atomic::Ordering;

use super::evaluator;
use super::replaced;
use super::replacement::Replaced;
use super::targets::{self, By, Discovery, Target, TargetModule};
use crate::attached::{self, Presence};
use crate::trouble;
use tllmprof_platform::log;
use tllmprof_platform::log::Level;

/// Logs the problems that prevented calls from being reported, the functions that were found late (so that their
/// earlier calls may be missing), and the functions that were not found. Allocates nothing.
pub(crate) fn report() {
    evaluator::ends();
    trouble::report();
    let (mut api, mut found) = (0, 0);
    // If the step's function was found late, some iterations were not counted, so windows may open too late. Without a
    // requested window this does not matter, and is not reported.
    let has_windows =
        tllmprof_session::activity::settings().is_some_and(|settings| !settings.windows.is_empty());
    for module in targets::known() {
        for target in &module.targets {
            if target.by == By::Api {
                api += 1;
                found += usize::from(target.found() != Discovery::NotYet);
            }
            if let Some(line) = ReportedFact::new(module, target, has_windows) {
                log::line(line.level(), format_args!("{line}"));
            }
            if let Some(replaced) = replaced(target) {
                log::line(Level::Warn, format_args!("{target} {replaced}"));
            }
        }
    }
    let is_known = !matches!(attached::presence(), Presence::OutOfReach(_));
    if api > 0 && found == 0 && is_known {
        log::say!(
            Warn,
            "TLLM_LLMAPI_ENABLE_NVTX is set, and no engine that is known was imported: nothing of it \
             is marked"
        );
    }
}

/// Returns the replacement of a requested function, if it may prevent calls of the function from being counted.
fn replaced(target: &Target) -> Option<&Replaced> {
    let is_wanted = target.is_by_name() || target.function.is_step();
    let replaced = target.replaced.get().filter(|_| is_wanted)?;
    replaced.hides_calls(&target.function).then_some(replaced)
}

/// A message about a requested function that is logged at the end of the process.
enum ReportedFact<'a> {
    StepIsLate(&'a Target),
    RangesAreLate(&'a Target),
    NotFound(&'a TargetModule, &'a Target),
    NotCalled(&'a TargetModule, &'a Target),
    NotThere(&'a Target),
}

impl<'a> ReportedFact<'a> {
    fn new(module: &'a TargetModule, target: &'a Target, has_windows: bool) -> Option<Self> {
        match (target.by, target.found()) {
            (By::Rule, Discovery::Late) if has_windows => Some(Self::StepIsLate(target)),
            (By::Ranges, Discovery::Late) => Some(Self::RangesAreLate(target)),
            // The next two arms leave out `By::Rule`, because the report on windows already mentions a step rule that
            // has counted no step.
            (By::Ranges | By::Batch, Discovery::NotYet) => Some(Self::NotFound(module, target)),
            (By::Batch, _) if target.function.calls() == 0 => Some(Self::NotCalled(module, target)),
            (By::Api, Discovery::NotYet) if module.is_imported.load(Ordering::Relaxed) => {
                Some(Self::NotThere(target))
            }
            _ => None,
        }
    }

    const fn level(&self) -> Level {
        match self {
            Self::NotThere(_) => Level::Debug,
            _ => Level::Warn,
        }
    }
}

impl fmt::Display for ReportedFact<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::StepIsLate(target) => {
                write!(f, "{target} was found late: calls before that do not count")
            }
            Self::RangesAreLate(target) => {
                write!(
                    f,
                    "{target} was found late: calls before that have no range"
                )
            }
            Self::NotFound(module, target) => {
                write!(f, "{target} was not found{}", Missing(module, target))
            }
            Self::NotCalled(module, target) => {
                write!(
                    f,
                    "{target}: no batch is recorded{}",
                    Unseen(module, target)
                )
            }
            Self::NotThere(target) => write!(f, "{target} is not there"),
        }
    }
}

/// Displays the reason why no call of the step's function, which the rule in `TLLMPROF_STEP` names, was counted.
pub(crate) struct Uncalled;

impl fmt::Display for Uncalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = targets::known().iter();
        let mut targets =
            all.flat_map(|module| module.targets.iter().map(move |target| (module, target)));
        match targets.find(|(_, target)| target.by == By::Rule) {
            Some((module, target)) => write!(f, "{}", Unseen(module, target)),
            None => match attached::presence() {
                Presence::There => f.write_str("; Python was not yet up"),
                Presence::OutOfReach(why) => {
                    write!(f, "; Python in the process could not be profiled ({why})")
                }
                Presence::NotFound => {
                    f.write_str("; no Python from 3.8 on was found in the process")
                }
            },
        }
    }
}

/// The note that a replacement of the function may have gone unnoticed, because the check at the end of the interpreter
/// did not run.
const UNCHECKED: &str = "; whether it was replaced was not checked at the end, as the interpreter did not end (os._exit)";

/// Displays a note if calls of the step's function, which the rule in `TLLMPROF_STEP` names, may be missing. Displays
/// nothing otherwise.
pub(crate) struct MayLackCalls;

impl fmt::Display for MayLackCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut targets = targets::known().iter().flat_map(|module| &module.targets);
        let rules = targets.find(|target| target.by == By::Rule);
        // If the function was found late, its earlier calls may be missing, too. This note leaves that out, because
        // `report` logs another message for it.
        let lacks = |target: &Target| {
            let is_found = target.found() != Discovery::NotYet;
            is_found && (trouble::hides_calls() || replaced(target).is_some())
        };
        match rules {
            Some(target) if lacks(target) => f.write_str("; calls of it may be missing"),
            Some(target) if target.found() != Discovery::NotYet && !replaced::were_checked() => {
                f.write_str(UNCHECKED)
            }
            _ => Ok(()),
        }
    }
}

/// Displays the reason why no call of this function was counted.
struct Unseen<'a>(&'a TargetModule, &'a Target);

impl fmt::Display for Unseen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(module, target) = self;
        match target.found() {
            Discovery::NotYet => write!(f, "{}", Missing(module, target)),
            _ if target.is_unseen.load(Ordering::Relaxed) => {
                f.write_str("; it is there, and its calls cannot be seen")
            }
            _ if target.function.calls() > 0 => Ok(()),
            _ if trouble::hides_calls() => f.write_str("; it is there, and no call of it was seen"),
            _ if let Some(replaced) = target.replaced.get() => write!(f, "; it {replaced}"),
            _ if !replaced::were_checked() => {
                write!(f, "; it is there, and no call of it was seen{UNCHECKED}")
            }
            _ => f.write_str("; it is there, and was never called"),
        }
    }
}

/// Displays the reason why a function was not found.
struct Missing<'a>(&'a TargetModule, &'a Target);

impl fmt::Display for Missing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(module, target) = self;
        let name = &module.name;
        if !module.is_imported.load(Ordering::Relaxed) {
            return write!(f, "; {name} was never imported");
        }
        if let Some(kind) = target.kind.get() {
            return write!(f, "; it is no Python function but a {kind}");
        }
        write!(f, "; {name} has no such function")?;
        let mut before = "; nearest: ";
        for name in target.near.get().into_iter().flatten() {
            write!(f, "{before}{name}")?;
            before = ", ";
        }
        Ok(())
    }
}

/// Formats the name of the requested function, together with the setting that requested it.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.function.asked;
        match self.by {
            By::Rule | By::Engine => write!(f, "py:{asked}"),
            By::Ranges => write!(f, "TLLMPROF_PY_RANGES: {asked}"),
            By::Api => write!(f, "TLLM_LLMAPI_ENABLE_NVTX: {asked}"),
            By::Batch => write!(f, "TLLMPROF_BATCH: {asked}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::targets::tests::asked;
    use super::*;

    fn line(module: &TargetModule, target: &Target) -> Option<String> {
        ReportedFact::new(module, target, true).map(|line| line.to_string())
    }

    #[test]
    fn a_missing_functions_line_says_why_and_what_is_near() {
        let (module, target) = asked("pkg.mod:Engine.stepp", By::Ranges);
        let before = "TLLMPROF_PY_RANGES: pkg.mod:Engine.stepp was not found";
        let of = |why| Some(format!("{before}{why}"));
        assert_eq!(line(&module, &target), of("; pkg.mod was never imported"));
        module.imported();
        assert_eq!(line(&module, &target), of("; pkg.mod has no such function"));
        let near = vec!["Engine.step".to_owned(), "Engine.stop".to_owned()];
        target.near.get_or_init(|| Box::new(near));
        assert_eq!(
            line(&module, &target),
            of("; pkg.mod has no such function; nearest: Engine.step, Engine.stop")
        );
        target.kind.get_or_init(|| Box::new("type".to_owned()));
        assert_eq!(
            line(&module, &target),
            of("; it is no Python function but a type")
        );
    }

    #[test]
    fn what_was_found_late_is_reported_by_who_asked() {
        let (module, target) = asked("m:f", By::Rule);
        target.set_found(Discovery::Late);
        assert_eq!(
            line(&module, &target).unwrap(),
            "py:m:f was found late: calls before that do not count"
        );
        assert!(ReportedFact::new(&module, &target, false).is_none());
        let (module, target) = asked("m:f", By::Ranges);
        target.set_found(Discovery::Late);
        assert_eq!(
            line(&module, &target).unwrap(),
            "TLLMPROF_PY_RANGES: m:f was found late: calls before that have no range"
        );
        let (module, target) = asked("m:f", By::Ranges);
        target.set_found(Discovery::InTime);
        assert_eq!(line(&module, &target), None);
        let (module, target) = asked("m:f", By::Batch);
        target.set_found(Discovery::InTime);
        assert_eq!(
            line(&module, &target).unwrap(),
            format!(
                "TLLMPROF_BATCH: m:f: no batch is recorded; it is there, and no call of it was seen{UNCHECKED}"
            )
        );
    }

    #[test]
    fn an_engines_own_functions_are_reported_where_it_was_imported() {
        let (module, target) = asked("m:f", By::Api);
        assert!(ReportedFact::new(&module, &target, true).is_none());
        module.imported();
        let line = ReportedFact::new(&module, &target, true).unwrap();
        assert_eq!(
            line.to_string(),
            "TLLM_LLMAPI_ENABLE_NVTX: m:f is not there"
        );
        assert!(line.level() == Level::Debug);
        let (module, target) = asked("m:f", By::Engine);
        module.imported();
        assert!(ReportedFact::new(&module, &target, true).is_none());
    }

    #[test]
    fn a_rule_that_counted_nothing_says_why() {
        let (module, target) = asked("m:f", By::Rule);
        let why = || Unseen(&module, &target).to_string();
        assert_eq!(why(), "; m was never imported");
        target.set_found(Discovery::InTime);
        // No interpreter has ended in this test process, so the last check for replaced functions
        // has not run.
        assert_eq!(
            why(),
            format!("; it is there, and no call of it was seen{UNCHECKED}")
        );
        target.is_unseen.store(true, Ordering::Relaxed);
        assert_eq!(why(), "; it is there, and its calls cannot be seen");
        // In this test process no function was requested, and Python is not loaded.
        assert_eq!(
            Uncalled.to_string(),
            "; no Python from 3.8 on was found in the process"
        );
    }
}
