//! What is reported of functions that were asked for, at the end of a process that uses CUDA.

use core::fmt;
use core::sync::atomic::Ordering;

use super::targets::{self, By, Found, Module, Target};
use super::trouble;
use crate::attached;
use tllmprof_platform::log;

/// Says what was in the way, what was found late, and what was not found. Allocates nothing.
pub fn report() {
    trouble::report();
    let (mut api, mut found) = (0, 0);
    // Without a window nothing is said of what would have opened it.
    let has_windows =
        tllmprof_session::activity::settings().is_some_and(|settings| !settings.windows.is_empty());
    for module in targets::known() {
        for target in &module.targets {
            if target.by == By::Api {
                api += 1;
                found += usize::from(target.found() != Found::NotYet);
            }
            match (target.by, target.found()) {
                (By::Rule, Found::Late) if has_windows => log::say!(
                    Warn,
                    "{target} was found late: calls before that do not count"
                ),
                (By::Ranges, Found::Late) => log::say!(
                    Warn,
                    "{target} was found late: calls before that have no range"
                ),
                // The rule that counted nothing is reported with the windows.
                (By::Ranges, Found::NotYet) => {
                    log::say!(Warn, "{target} was not found{}", Missing(module, target));
                }
                (By::Api, Found::NotYet) if module.is_imported.load(Ordering::Relaxed) => {
                    log::say!(Debug, "{target} is not there");
                }
                _ => {}
            }
        }
    }
    if api > 0 && found == 0 {
        log::say!(
            Warn,
            "TLLM_LLMAPI_ENABLE_NVTX is set, and no engine that is known was imported: nothing of it \
             is marked"
        );
    }
}

/// Why no call of the function that the rule names was counted.
pub struct Uncalled;

impl fmt::Display for Uncalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = targets::known().iter();
        let mut targets =
            all.flat_map(|module| module.targets.iter().map(move |target| (module, target)));
        let Some((module, target)) = targets.find(|(_, target)| target.by == By::Rule) else {
            return f.write_str(if attached::is_there() {
                "; Python was not yet up"
            } else {
                "; no Python from 3.8 on is in the process"
            });
        };
        match target.found() {
            Found::NotYet => write!(f, "{}", Missing(module, target)),
            _ if target.is_unseen.load(Ordering::Relaxed) => {
                f.write_str("; it is there, and its calls cannot be seen")
            }
            _ if target.function.calls() == 0 => f.write_str("; it is there, and was never called"),
            _ => Ok(()),
        }
    }
}

/// Why a function was not found.
struct Missing<'a>(&'a Module, &'a Target);

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

/// As it was asked for.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.function.asked;
        match self.by {
            By::Rule | By::Engine => write!(f, "py:{asked}"),
            By::Ranges => write!(f, "TLLMPROF_PY_RANGES: {asked}"),
            By::Api => write!(f, "TLLM_LLMAPI_ENABLE_NVTX: {asked}"),
        }
    }
}
