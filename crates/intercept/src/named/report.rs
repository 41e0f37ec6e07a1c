//! Log messages about the functions that `sym:` rules name. The messages are written only in processes that use CUDA.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::hash::DefaultHasher;

use tllmprof_platform::entry::PatchRefusal;
use tllmprof_platform::lifecycle;
use tllmprof_symbols::LIMIT;

use super::patch::{Means, NamedFunction};
use super::{scopes, with_followed};
use tllmprof_platform::log;

/// Largest number of functions that one message lists: functions with similar names, or functions whose calls cannot
/// be scopes (GPU work cannot be attributed to them).
const MAX_LISTED: usize = 3;

lifecycle::global! {
    stage: Doors;

    /// True once the process uses CUDA, so that messages may be written.
    #[fork(reset)]
    static MAY_REPORT: AtomicBool = AtomicBool::new(false);
}

/// Logs how each function that the step rule names is hooked, and which functions are scopes. Functions that are found
/// later are logged when they are found.
pub(crate) fn report() {
    with_followed(|followed| {
        MAY_REPORT.store(true, Ordering::Relaxed);
        for function in &followed.functions {
            found(function);
        }
        found_scopes(&followed.functions);
        too_many_scopes(followed.too_many_scopes, followed.matched_scopes > 0);
    });
}

/// Logs which functions are scopes (GPU work is attributed to their calls), and which ones cannot be scopes. Does
/// nothing if the process does not use CUDA.
pub(super) fn found_scopes(functions: &[NamedFunction]) {
    if !MAY_REPORT.load(Ordering::Relaxed) {
        return;
    }
    let mut refused = Vec::new();
    let mut asked = 0;
    for function in functions {
        match function.scope {
            Some(Ok(_)) => log::say!(Debug, "{function} is a scope"),
            Some(Err(why)) => refused.push((function, why)),
            None => continue,
        }
        asked += 1;
    }
    if !refused.is_empty() {
        log::say!(
            Warn,
            "TLLMPROF_SCOPES: {} of {asked} functions cannot be scopes: {}",
            refused.len(),
            Refused(&refused)
        );
    }
}

/// The functions that a scope rule names but that cannot be scopes (GPU work cannot be attributed to their calls), with
/// the reasons. Prints the first [`MAX_LISTED`] functions and the number of the others.
struct Refused<'a>(&'a [(&'a NamedFunction, PatchRefusal)]);

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "";
        for (function, why) in self.0.iter().take(MAX_LISTED) {
            write!(f, "{before}{function} ({why})")?;
            before = ", ";
        }
        match self.0.len().saturating_sub(MAX_LISTED) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

/// Warns that the scope rules match too many functions. Does nothing if `count`, their number, is `None`, or if the
/// process does not use CUDA. `has_some` is true if functions of libraries that were loaded earlier are scopes (GPU
/// work is attributed to their calls).
pub(crate) fn too_many_scopes(count: Option<usize>, has_some: bool) {
    if let Some(count) = count.filter(|_| MAY_REPORT.load(Ordering::Relaxed)) {
        log::say!(
            Warn,
            "TLLMPROF_SCOPES: its rules match {count} functions, and at most {} can be scopes: {}. Narrow the regex, or name \
             the library behind @",
            scopes::MAX_FUNCTIONS,
            match has_some {
                false => "none is",
                true => "those of libraries loaded later are not",
            }
        );
    }
}

/// Warns if the scope rules (rules that name functions to which GPU work is attributed) matched no function. Does
/// nothing if there are no such rules, or if they matched too many functions. `may_search` is true if there is time and
/// memory to search for similar names.
pub(crate) fn report_unmatched_scopes(may_search: bool) {
    with_followed(|followed| {
        if followed.scopes.is_empty()
            || followed.matched_scopes > 0
            || followed.too_many_scopes.is_some()
        {
            return;
        }
        if let Some(unreadable) = followed.unreadable {
            log::say!(
                Warn,
                "TLLMPROF_SCOPES: the process's modules cannot be searched for functions: {unreadable}"
            );
            return;
        }
        let nearest = match followed.scopes.first() {
            Some(rule) if may_search => followed.nearest(rule, MAX_LISTED),
            _ => Vec::new(),
        };
        log::say!(
            Warn,
            "TLLMPROF_SCOPES: its rules matched no function in {} modules{}{}",
            followed.searched_for_scopes,
            followed.unsearched,
            Nearby(&nearest)
        );
    });
}

/// Logs how a function is hooked, if the step rule names it and the process uses CUDA. A function of a library that is
/// loaded repeatedly is logged only once.
pub(super) fn found(function: &NamedFunction) {
    lifecycle::global! {
        #[fork(keep = "the parent has said it")]
        static SAID: [AtomicU64; LIMIT] = [const { AtomicU64::new(0) }; LIMIT];
    }
    if !MAY_REPORT.load(Ordering::Relaxed) || !function.is_step {
        return;
    }
    let mut hasher = DefaultHasher::new();
    (&function.name, &function.file).hash(&mut hasher);
    let mark = hasher.finish() | 1;
    let is_new = SAID.iter().find_map(|said| {
        let known = said.compare_exchange(0, mark, Ordering::Relaxed, Ordering::Relaxed);
        match known {
            Ok(_) => Some(true),
            Err(known) => (known == mark).then_some(false),
        }
    });
    if is_new != Some(true) {
        return;
    }
    match function.means {
        Means::Entry { .. } => log::say!(Debug, "{function} is followed by its entry"),
        Means::Name(why) => log::say!(
            Info,
            "{function} is followed where other modules call it, not within its own: {why}"
        ),
        Means::None(why) => log::say!(Warn, "{function} cannot be followed: {why}"),
    }
}

/// Warns if `rule`, the step rule (the rule that defines a step), matched no function or too many functions.
/// `may_search` is true if the process ends in a way that leaves time and memory to search for similar names.
pub(crate) fn report_unmatched(rule: &impl fmt::Display, may_search: bool) {
    with_followed(|followed| {
        if followed.too_many {
            log::say!(
                Warn,
                "{rule} matches over {LIMIT} functions, and at most {LIMIT} can be followed: {}",
                if followed.matched == 0 {
                    "none is"
                } else {
                    "those of libraries loaded later are not"
                }
            );
        } else if let (0, Some(unreadable)) = (followed.matched, followed.unreadable) {
            log::say!(
                Warn,
                "{rule}: the process's modules cannot be searched for functions: {unreadable}"
            );
        } else if followed.matched == 0 {
            let nearest = match &followed.step {
                Some(rule) if may_search => followed.nearest(rule, MAX_LISTED),
                _ => Vec::new(),
            };
            log::say!(
                Warn,
                "{rule} matched no function in {} modules{}{}",
                followed.searched,
                followed.unsearched,
                Nearby(&nearest)
            );
        }
    });
}

/// A list of similar names for a message; prints nothing if it is empty.
struct Nearby<'a>(&'a [String]);

impl fmt::Display for Nearby<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "; nearest: ";
        for name in self.0 {
            write!(f, "{before}{name}")?;
            before = ", ";
        }
        Ok(())
    }
}

impl fmt::Display for NamedFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.name, self.file)
    }
}

#[cfg(test)]
mod tests {
    use tllmprof_config::Step;

    use super::super::{follow, start};
    use super::*;
    use crate::made::alone;

    fn named(name: &str, means: Means) -> NamedFunction {
        NamedFunction {
            address: 0x1000,
            module: 0x1000,
            name: name.to_owned(),
            file: "libm.so.6".to_owned(),
            means,
            is_step: true,
            scope: None,
        }
    }

    fn count(said: &str, line: &str) -> usize {
        said.matches(line).count()
    }

    #[test]
    fn each_function_is_reported_once_and_only_in_a_process_that_uses_cuda() {
        let said = alone(&[("TLLMPROF_LOG", "info")], || {
            tllmprof_platform::log::start();
            let cbrt = || named("cbrt", Means::Name(PatchRefusal::Threads));
            found(&cbrt());
            follow(&Step::parse("sym:^cbrt$").unwrap());
            with_followed(|followed| {
                followed.functions.push(cbrt());
                followed
                    .functions
                    .push(named("main", Means::None(PatchRefusal::EntryPoint)));
            });
            report();
            found(&cbrt());
        });
        let Some(said) = said else { return };
        let line = "cbrt in libm.so.6 is followed where other modules call it, not within its own: other threads";
        assert_eq!(count(&said, line), 1, "{said}");
        assert_eq!(
            count(
                &said,
                "main in libm.so.6 cannot be followed: the process begins there"
            ),
            1,
            "{said}"
        );
    }

    #[test]
    fn a_rule_that_names_nothing_is_warned_about_with_what_is_near() {
        let said = alone(
            &[
                ("TLLMPROF_STEP", "sym:a_made_functoin"),
                ("TLLMPROF_START_STOP", "5"),
            ],
            || {
                start();
                report_unmatched(&"sym:a_made_functoin", false);
                // No similar name is found in this test: the test program is not searched, because
                // it contains this library.
                report_unmatched(&"sym:a_made_functoin", true);
                with_followed(|followed| followed.too_many = true);
                report_unmatched(&"sym:.", true);
                with_followed(|followed| followed.matched = 1);
                report_unmatched(&"sym:.", true);
            },
        );
        let Some(said) = said else { return };
        assert_eq!(
            count(&said, "sym:a_made_functoin matched no function in "),
            2,
            "{said}"
        );
        let limit =
            format!("sym:. matches over {LIMIT} functions, and at most {LIMIT} can be followed: ");
        for why in ["none is", "those of libraries loaded later are not"] {
            assert_eq!(count(&said, &format!("{limit}{why}")), 1, "{said}");
        }
    }

    #[test]
    fn names_that_are_near_are_listed() {
        let write = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            Nearby(&names).to_string()
        };
        assert_eq!(write(&[]), "");
        assert_eq!(write(&["f(int)"]), "; nearest: f(int)");
        assert_eq!(write(&["f(int)", "g"]), "; nearest: f(int), g");
    }
}
