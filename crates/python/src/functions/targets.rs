//! The functions whose calls are recorded or counted, and the settings that request them.

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use once_cell::race::OnceBox;
use tllmprof_config::{PyFunction, Settings, Step};
use tllmprof_engines::{DRAFTS, DUMMY_STEPS, IDLE_WAITS, ModuleScopes, SCOPES, api_functions};
use tllmprof_platform::lifecycle::{self, OnlyThread};

use super::replacement::Replaced;
use crate::spans::{RequestedFunction, StepOf};
use tllmprof_capture::marks;
use tllmprof_capture::marks::RegisteredName;
use tllmprof_recorder as recorder;
use tllmprof_session::activity::has_work;
use tllmprof_session::engines;

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[restart(keep)]
    static TARGETS: OnceBox<Vec<TargetModule>> = OnceBox::new();
}

/// A module with requested functions.
pub(crate) struct TargetModule {
    pub name: String,
    /// The end of the path of the module's file, without its suffix: `pkg/mod`.
    pub path: String,
    pub targets: Vec<Target>,
    /// True if the program has imported the module, or is importing it.
    pub is_imported: AtomicBool,
}

/// A requested function, and the result of the search for it.
pub(crate) struct Target {
    pub function: RequestedFunction,
    pub by: By,
    found: AtomicU8,
    /// Names in the module that are similar to the function's name, if the function was not found.
    pub near: OnceBox<Vec<String>>,
    /// True if the function was found, but its calls cannot be reported.
    pub is_unseen: AtomicBool,
    /// The type of the object that has the requested name, if it is not a Python function.
    pub kind: OnceBox<String>,
    /// The object with which the program has replaced the function, if it has.
    pub replaced: OnceBox<Replaced>,
}

/// The source of a request for a function: a setting or a table of the library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// The rule in `TLLMPROF_STEP` names the function.
    Rule,
    /// `TLLMPROF_PY_RANGES` lists the function.
    Ranges,
    /// The table of known engines' API functions contains the function.
    Api,
    /// Another table of known engines' functions contains the function: their steps, their waits for requests, their
    /// draft models, or the functions that launch kernels outside the model.
    Engine,
    /// `TLLMPROF_BATCH` names the function.
    Batch,
}

/// The result of the search for a function. It shows whether calls of the function may have been missed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
#[repr(u8)]
pub(crate) enum Discovery {
    NotYet,
    /// The function was found after its module was imported, so calls may have been missed.
    Late,
    /// The function was found before its first call.
    InTime,
}

/// Returns true if the settings require that calls of functions are reported. Called when the library is loaded.
/// [`all`] decides later if the calls are also recorded as ranges.
pub(crate) fn are_asked_for(settings: &Settings) -> bool {
    let listens = settings.nvtx || settings.trace.is_some();
    let asked = settings.llmapi || settings.layers || !settings.py_ranges.is_empty();
    listens && asked || counts(settings) || settings.batch.is_some() && has_work(settings)
}

/// Returns true if the settings may require that calls of Python functions are counted as steps.
fn counts(settings: &Settings) -> bool {
    matches!(settings.step, Step::Python { .. } | Step::Auto) && has_work(settings)
}

/// Returns the requested functions, or an empty list if they have not been collected yet.
pub(crate) fn known() -> &'static [TargetModule] {
    TARGETS.get().map_or(&[], Vec::as_slice)
}

/// Returns the requested functions. The first call collects them, and decides whether ranges
/// are recorded in this process.
pub(crate) fn all() -> &'static [TargetModule] {
    TARGETS.get_or_init(|| {
        let listens = marks::are_wanted() || recorder::is_wanted();
        let settings = tllmprof_session::activity::settings();
        Box::new(settings.map_or_else(Vec::new, |settings| collect(settings, listens)))
    })
}

/// The data that is recorded about each call of a function, in addition to the number of calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeptData {
    Nothing,
    /// Each call is recorded as a range.
    Calls,
    /// The engine waits for requests in these calls. Each call is recorded as a range. Its time is not counted as part
    /// of an iteration.
    Waits,
    /// The engine polls for requests with these calls. All calls between two steps are recorded together, as one
    /// range.
    Polls,
    /// No range is recorded. The library only notes that the thread is in a call of a draft model's function.
    Drafts,
}

/// Collects the functions that the settings and the tables of known engines request. `listens` is true if ranges are
/// recorded.
fn collect(settings: &Settings, listens: bool) -> Vec<TargetModule> {
    let mut modules = Vec::new();
    if counts(settings) {
        add_counted(settings, listens, &mut modules);
    }
    if let Some(batch) = settings.batch.as_ref().filter(|_| has_work(settings)) {
        let function = &batch.function;
        add(&mut modules, function, By::Batch, None, KeptData::Nothing);
    }
    if !listens {
        return modules;
    }
    for function in &settings.py_ranges {
        add(&mut modules, function, By::Ranges, None, KeptData::Calls);
    }
    // Functions of known engines that launch kernels outside the model. Each of these kernels is attributed to the
    // function that launches it.
    let scopes = SCOPES.iter().filter(|_| settings.layers);
    for function in scopes.flat_map(ModuleScopes::functions) {
        add_text(&mut modules, &function, By::Engine, None, KeptData::Calls);
    }
    for marked in api_functions().filter(|_| settings.llmapi) {
        let function = marked.to_string();
        add_text(&mut modules, &function, By::Api, None, KeptData::Calls);
    }
    modules
}

/// Adds the functions whose calls count as iterations. Also adds the functions of known engines that run a draft
/// model or wait for requests.
fn add_counted(settings: &Settings, listens: bool, modules: &mut Vec<TargetModule>) {
    if let Step::Python { function, .. } = &settings.step {
        let step = Some(StepOf::Rule);
        add(modules, function, By::Rule, step, KeptData::Nothing);
    } else {
        for (index, function) in engines::in_python().enumerate() {
            let step = Some(StepOf::Engine(index));
            add(modules, function, By::Engine, step, KeptData::Nothing);
        }
        for (index, dummy) in DUMMY_STEPS.iter().enumerate() {
            let step = Some(StepOf::Dummy(index));
            add_text(modules, dummy.function, By::Engine, step, KeptData::Nothing);
        }
    }
    for draft in DRAFTS {
        if matches!(settings.step, Step::Auto) {
            add_text(modules, draft.function, By::Engine, None, KeptData::Drafts);
        }
    }
    for wait in IDLE_WAITS.iter().filter(|_| listens) {
        let kept = match wait.polls {
            true => KeptData::Polls,
            false => KeptData::Waits,
        };
        add_text(modules, &wait.function(), By::Engine, None, kept);
    }
}

/// Adds the function that `text` names, if it names one.
fn add_text(
    modules: &mut Vec<TargetModule>,
    text: &str,
    by: By,
    step: Option<StepOf>,
    kept: KeptData,
) {
    if let Ok(function) = PyFunction::parse(text) {
        add(modules, &function, by, step, kept);
    }
}

fn add(
    modules: &mut Vec<TargetModule>,
    asked: &PyFunction,
    by: By,
    step: Option<StepOf>,
    kept: KeptData,
) {
    let name = || RegisteredName::of_function(asked.qualname.as_str());
    let target = target(modules, asked, by);
    let has_ranges = matches!(kept, KeptData::Calls | KeptData::Waits);
    let name = has_ranges.then(name).flatten();
    target.function.means(name, step);
    match kept {
        KeptData::Polls => target.function.polls(),
        KeptData::Drafts => target.function.drafts(),
        KeptData::Nothing | KeptData::Calls | KeptData::Waits => {}
    }
    if matches!(kept, KeptData::Polls | KeptData::Waits) {
        target.function.idles();
    }
}

/// Returns the target for `asked`. Adds a new one if the function was not requested before.
fn target<'a>(modules: &'a mut Vec<TargetModule>, asked: &PyFunction, by: By) -> &'a mut Target {
    let at = modules
        .iter()
        .position(|module| module.name == asked.module);
    let at = at.unwrap_or_else(|| {
        modules.push(TargetModule::new(&asked.module));
        modules.len() - 1
    });
    let targets = &mut modules[at].targets;
    let same = |target: &Target| target.function.asked.qualname == asked.qualname;
    let at = targets.iter().position(same).unwrap_or_else(|| {
        targets.push(Target::new(asked.clone(), by));
        targets.len() - 1
    });
    let target = &mut targets[at];
    if matches!(by, By::Ranges | By::Batch) && target.by == By::Engine {
        // The user has also requested the function by name. So a message is logged if the function is not found.
        target.by = by;
    }
    target
}

/// Forgets open iterations in the child of a fork, because they belong to the parent. The numbers of calls are kept.
fn in_child(_: &OnlyThread) {
    for target in known().iter().flat_map(|module| &module.targets) {
        target.function.in_child();
    }
}

/// Returns true if a function that the user requested by name has not been found.
pub(crate) fn are_missing() -> bool {
    let mut all = known().iter().flat_map(|module| &module.targets);
    all.any(Target::is_missing)
}

/// Returns the total number of calls of all requested functions so far.
pub(crate) fn calls() -> u64 {
    let all = known().iter().flat_map(|module| &module.targets);
    all.map(|target| target.function.calls()).sum()
}

/// Marks all functions as not found, and forgets their calls that have not ended.
pub(crate) fn forget() {
    for target in known().iter().flat_map(|module| &module.targets) {
        target
            .found
            .store(Discovery::NotYet as u8, Ordering::Relaxed);
        target.function.forget_calls();
    }
}

impl TargetModule {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            path: name.replace('.', "/"),
            targets: Vec::new(),
            is_imported: AtomicBool::new(false),
        }
    }

    /// Returns true if the module is the main module, with which the program starts.
    pub(crate) fn is_main(&self) -> bool {
        self.name == "__main__"
    }

    /// Returns true if a module whose `__name__` is `name` is this module.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        // In a child that multiprocessing spawned, the program's main module is named
        // `__mp_main__`.
        name == self.name || self.is_main() && name == "__mp_main__"
    }

    /// Returns true if code from `file` may be the module's.
    pub(crate) fn may_be(&self, file: &str) -> bool {
        if self.is_main() {
            return true;
        }
        if let Some(frozen) = file.strip_prefix("<frozen ") {
            return frozen.strip_suffix('>') == Some(self.name.as_str());
        }
        let stem = file.strip_suffix("/__init__.py");
        let stem = stem.or_else(|| file.strip_suffix(".py"));
        let before = stem.and_then(|stem| stem.strip_suffix(self.path.as_str()));
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    /// Called when the module was imported or is about to be imported. Sets [`TargetModule::is_imported`]. The first
    /// call also reports the import to `engines`, if one of the module's functions is a known engine's step.
    pub(crate) fn imported(&self) {
        if !self.is_imported.swap(true, Ordering::Relaxed) {
            for target in &self.targets {
                if let Some(StepOf::Engine(index)) = target.function.step() {
                    engines::imported(index);
                }
            }
        }
    }
}

impl Target {
    fn new(asked: PyFunction, by: By) -> Self {
        Self {
            function: RequestedFunction::new(asked),
            by,
            found: AtomicU8::new(Discovery::NotYet as u8),
            near: OnceBox::new(),
            is_unseen: AtomicBool::new(false),
            kind: OnceBox::new(),
            replaced: OnceBox::new(),
        }
    }

    /// Returns true if the user requested the function by name.
    pub(crate) fn is_by_name(&self) -> bool {
        matches!(self.by, By::Rule | By::Ranges | By::Batch)
    }

    /// Returns true if the user requested the function by name and it has not been found.
    pub(crate) fn is_missing(&self) -> bool {
        self.is_by_name() && self.found() == Discovery::NotYet
    }

    pub(crate) fn found(&self) -> Discovery {
        match self.found.load(Ordering::Relaxed) {
            0 => Discovery::NotYet,
            1 => Discovery::Late,
            _ => Discovery::InTime,
        }
    }

    /// Stores when the function was found, unless it had been found before.
    pub(crate) fn set_found(&self, found: Discovery) {
        if self.found() == Discovery::NotYet {
            self.found.store(found as u8, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn settings(variables: &[(&str, &str)]) -> Settings {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Settings::from_env(|name| find(name).map(|(_, value)| (*value).into())).unwrap()
    }

    /// Returns the module and the target of a requested function, before any search.
    pub(crate) fn asked(text: &str, by: By) -> (TargetModule, Target) {
        let asked = PyFunction::parse(text).unwrap();
        (TargetModule::new(&asked.module), Target::new(asked, by))
    }

    fn names(modules: &[TargetModule]) -> Vec<(String, By)> {
        let targets = modules.iter().flat_map(|module| &module.targets);
        targets
            .map(|target| (target.function.asked.to_string(), target.by))
            .collect()
    }

    const WINDOW: (&str, &str) = ("TLLM_PROFILE_START_STOP", "5-9");

    #[test]
    fn a_file_is_a_modules_by_its_path() {
        let module = TargetModule::new("pkg.mod");
        assert!(module.may_be("/lib/pkg/mod.py"));
        assert!(module.may_be("pkg/mod.py"));
        assert!(module.may_be("/lib/pkg/mod/__init__.py"));
        assert!(module.may_be("<frozen pkg.mod>"));
        assert!(!module.may_be("/lib/otherpkg/mod.py"));
        assert!(!module.may_be("/lib/mod.py"));
        assert!(!module.may_be("/lib/pkg/mod.pyc"));
        assert!(!module.may_be("<frozen pkg>"));
        assert!(!module.may_be("<string>"));
        assert!(TargetModule::new("__main__").may_be("<string>"));
        assert!(!module.is_main());
    }

    #[test]
    fn the_rule_asks_for_its_function_alone() {
        let rule = ("TLLMPROF_STEP", "py:pkg.mod:Engine.step");
        let modules = collect(&settings(&[WINDOW, rule]), false);
        assert_eq!(names(&modules), [("pkg.mod:Engine.step".into(), By::Rule)]);
        assert!(modules[0].targets[0].function.step() == Some(StepOf::Rule));
        assert!(modules[0].targets[0].is_by_name());
        // If neither a window nor a record is requested, no steps have to be counted. So the step's function is not
        // requested.
        assert!(collect(&settings(&[rule]), false).is_empty());
        assert!(!are_asked_for(&settings(&[rule])));
        assert!(are_asked_for(&settings(&[WINDOW, rule])));
    }

    #[test]
    fn ranges_are_asked_for_where_somebody_listens() {
        let ranges = ("TLLMPROF_PY_RANGES", "a:f, a:g, b:h");
        let settings = settings(&[ranges]);
        assert!(collect(&settings, false).is_empty());
        let modules = collect(&settings, true);
        let asked = ["a:f", "a:g", "b:h"].map(|name| (name.to_owned(), By::Ranges));
        assert_eq!(names(&modules), asked);
        assert_eq!(modules.len(), 2);
        assert!(modules[0].targets[0].function.step().is_none());
    }

    #[test]
    fn the_function_of_a_batch_is_watched_beside_the_step() {
        let batch = ("TLLMPROF_BATCH", "a:f=requests:1,tokens:1,decode_tokens:1");
        let names = |rule: &str| {
            names(&collect(
                &settings(&[WINDOW, batch, ("TLLMPROF_STEP", rule)]),
                false,
            ))
        };
        assert_eq!(names("cudaGraphLaunch"), [("a:f".into(), By::Batch)]);
        assert_eq!(names("py:a:f"), [("a:f".into(), By::Rule)]);
        assert_eq!(names("py:b:f").len(), 2);
        assert_eq!(names("auto").last(), Some(&("a:f".into(), By::Batch)));
        let alone = settings(&[batch]);
        assert!(collect(&alone, true).is_empty() && !are_asked_for(&alone));
        assert!(are_asked_for(&settings(&[
            WINDOW,
            batch,
            ("TLLMPROF_STEP", "cudaGraphLaunch")
        ])));
    }

    #[test]
    fn an_engines_step_that_is_asked_for_by_name_is_reported_by_it() {
        let all = collect(&settings(&[WINDOW]), true);
        assert!(all.len() > 1);
        assert!(names(&all).iter().all(|(_, by)| *by == By::Engine));
        let first = names(&all)[0].0.clone();
        let again = collect(&settings(&[WINDOW, ("TLLMPROF_PY_RANGES", &first)]), true);
        assert_eq!(names(&again).len(), names(&all).len());
        assert_eq!(names(&again)[0], (first, By::Ranges));
        assert!(again[0].targets[0].function.step().is_some());
    }

    #[test]
    fn where_engines_wait_for_requests_is_marked_where_somebody_listens() {
        let waits = |listens| {
            let modules = collect(&settings(&[WINDOW]), listens);
            let is_wait = |name: &String| IDLE_WAITS.iter().any(|wait| wait.function() == *name);
            names(&modules)
                .iter()
                .filter(|(name, _)| is_wait(name))
                .count()
        };
        assert_eq!(waits(false), 0);
        assert_eq!(waits(true), IDLE_WAITS.len());
        let call = ("TLLMPROF_STEP", "cudaGraphLaunch");
        assert!(collect(&settings(&[WINDOW, call]), true).is_empty());
    }

    #[test]
    fn known_engines_functions_are_scopes_where_layers_are_followed() {
        let scopes = |asked: &[(&str, &str)], listens| {
            let modules = collect(&settings(asked), listens);
            let all: Vec<_> = SCOPES.iter().flat_map(ModuleScopes::functions).collect();
            names(&modules)
                .into_iter()
                .filter(|(name, by)| all.contains(name) && *by == By::Engine)
                .count()
        };
        let all = SCOPES.iter().flat_map(ModuleScopes::functions).count();
        let layers = ("TLLMPROF_LAYERS", "1");
        let call = ("TLLMPROF_STEP", "cudaGraphLaunch");
        assert_eq!(scopes(&[WINDOW, layers], true), all);
        assert_eq!(scopes(&[WINDOW, layers, call], true), all);
        assert_eq!(scopes(&[WINDOW, layers, call], false), 0);
        assert_eq!(scopes(&[WINDOW, call], true), 0);
    }

    #[test]
    fn known_engines_functions_are_marked_where_that_is_asked_for() {
        let asked = settings(&[("TLLM_LLMAPI_ENABLE_NVTX", "1")]);
        let modules = collect(&asked, true);
        assert!(!modules.is_empty());
        assert!(names(&modules).iter().all(|(_, by)| *by == By::Api));
        assert!(!modules[0].targets[0].is_by_name());
    }

    #[test]
    fn what_was_found_first_stays() {
        let (_, target) = asked("a:f", By::Rule);
        assert_eq!(target.found(), Discovery::NotYet);
        target.set_found(Discovery::Late);
        target.set_found(Discovery::InTime);
        assert_eq!(target.found(), Discovery::Late);
        let (_, target) = asked("a:f", By::Rule);
        target.set_found(Discovery::InTime);
        assert_eq!(target.found(), Discovery::InTime);
    }
}
