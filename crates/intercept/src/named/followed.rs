//! Finds the native functions that `sym:` rules select in the loaded modules, and hooks them. Such a rule defines a
//! step of the program, or names functions to which GPU work is attributed.

use core::fmt;
use core::ops::Range;
use std::os::unix::ffi::OsStrExt;

use regex::bytes::Regex;
use tllmprof_platform::elf::{self, DefinedFunction, ElfModule};
use tllmprof_platform::entry::{self, PatchRefusal, PatchableEntry};
use tllmprof_platform::lifecycle;
use tllmprof_platform::maps::{Maps, Unreadable};
use tllmprof_platform::modules::{self, ListedModule, LoadedModule};
use tllmprof_symbols::{Image, LIMIT, Nearest, Pattern};

use super::patch::{HookCandidate, Means, NamedFunction, is_quiet, prepare};
use super::slots::{self, ByName};
use super::trampoline::Region;
use super::{functions, processor, report, scopes};

/// A `sym:` rule: it selects native functions by name, and optionally modules by path.
pub(super) struct FunctionRule {
    pub pattern: Pattern,
    library: Option<Regex>,
}

impl FunctionRule {
    pub(super) fn new(name: &Regex, library: Option<Regex>) -> Self {
        Self {
            pattern: Pattern::new(name),
            library,
        }
    }

    pub(crate) fn is_for(&self, loaded: &LoadedModule) -> bool {
        !loaded.is_left_alone
            && self.library.as_ref().is_none_or(|library| {
                let path = loaded.path.as_os_str().as_bytes();
                library.is_match(path)
                    || loaded
                        .soname
                        .as_ref()
                        .is_some_and(|name| library.is_match(name))
            })
    }
}

/// The state of all `sym:` rules, which name native functions: the loaded modules, the functions and the patches.
#[derive(Default)]
pub(crate) struct NamedRules {
    /// The rule that defines a step, if the rule names native functions.
    pub step: Option<FunctionRule>,
    /// True if the step rule (the rule that defines a step) has changed, so that modules that were searched before must
    /// be searched by the new rule.
    step_is_new: bool,
    /// Rules for functions whose calls are scopes (GPU work is attributed to them).
    pub scopes: Vec<FunctionRule>,
    pub loaded: Vec<LoadedModule>,
    pub functions: Vec<NamedFunction>,
    pub by_name: Vec<ByName>,
    pub regions: Vec<Region>,
    /// Number of functions that have matched the step rule (the rule that defines a step) so far, including functions
    /// in unloaded modules.
    pub matched: usize,
    /// True if more functions match the step rule (the rule that defines a step) than can be hooked.
    pub too_many: bool,
    /// Number of modules that were searched for functions of the step rule (the rule that defines a step).
    pub searched: usize,
    /// Modules whose functions are unknown, so that no `sym:` rule could be applied to them.
    pub unsearched: Unsearched,
    /// The error, if the memory mappings could not be read: then no module was searched.
    pub unreadable: Option<Unreadable>,
    /// Number of functions that have matched a scope rule so far (GPU work is attributed to their calls).
    /// `searched_for_scopes` is the number of searches for such functions: one for each module and rule.
    pub matched_scopes: usize,
    pub searched_for_scopes: usize,
    /// Number of functions that match the scope rules (rules that name functions to which GPU work is attributed), if
    /// this is more than can be hooked at once; otherwise `None`.
    pub too_many_scopes: Option<usize>,
}

impl NamedRules {
    pub(super) fn set_step(&mut self, rule: FunctionRule) {
        self.step = Some(rule);
        self.step_is_new = true;
    }

    /// Searches newly loaded modules for functions that `sym:` rules name, and forgets unloaded modules. Returns false
    /// if a module is still being loaded, or if the memory mappings cannot be read. Then this function must be called
    /// again.
    pub(crate) fn look(&mut self) -> bool {
        let maps = match Maps::read() {
            Ok(maps) => maps,
            Err(unreadable) => {
                self.unreadable = Some(unreadable);
                return false;
            }
        };
        self.unreadable = None;
        let (present, is_complete) = modules::present(&maps);
        self.forget(&modules::listed());
        let step_is_new = core::mem::take(&mut self.step_is_new);
        let known = self.loaded.len();
        let searched = (self.searched, self.searched_for_scopes);
        let mut candidates = Vec::new();
        for loaded in present {
            let is_known = self.loaded.iter().any(|known| known.is(&loaded));
            let is_new = !is_known || step_is_new;
            if is_new && self.is_for(&loaded) && is_replaced(&loaded, &maps) {
                self.unsearched.add(&loaded, ReadFailure::Replaced);
                if !is_known {
                    self.loaded.push(loaded);
                }
                continue;
            }
            if is_new {
                self.search(&loaded, &mut candidates);
            }
            if !is_known {
                self.search_for_scopes(&loaded, &mut candidates);
                self.loaded.push(loaded);
            }
        }
        self.limit(&mut candidates);
        if candidates.is_empty() && self.by_name.is_empty() {
            return is_complete;
        }
        if self.matched == 0 && self.matched_scopes == 0 {
            processor::start();
        }
        lifecycle::register();
        let mut hooked = Ok(());
        elf::with_modules(|modules| hooked = self.hook(candidates, modules));
        if let Err(unreadable) = hooked {
            self.unreadable = Some(unreadable);
            // Nothing was hooked, so the next call must search these modules again.
            self.loaded.truncate(known);
            (self.searched, self.searched_for_scopes) = searched;
            self.step_is_new |= step_is_new;
            return false;
        }
        is_complete
    }

    /// Hooks `candidates` by their entries, and functions whose entries cannot be patched by name. `modules` is the
    /// loader's list, and the caller must keep these modules loaded until this function returns.
    ///
    /// # Errors
    /// Returns an error, and hooks nothing, if the memory mappings cannot be read.
    fn hook(
        &mut self,
        candidates: Vec<HookCandidate>,
        modules: &[ElfModule],
    ) -> Result<(), Unreadable> {
        // Read the mappings again: those that were read before may list modules that are now unloaded.
        let maps = Maps::read()?;
        let ready: Vec<ElfModule> = modules
            .iter()
            .filter(|module| modules::is_relocated(module, &maps))
            .copied()
            .collect();
        self.patch(candidates, &ready, &maps);
        if !self.by_name.is_empty() {
            for module in ready
                .iter()
                .filter(|module| !modules::is_left_alone(module))
            {
                slots::lead_to_stubs(module, &self.by_name, &ready, &maps);
            }
        }
        Ok(())
    }

    /// Returns true if at least one `sym:` rule applies to the functions of the module.
    fn is_for(&self, loaded: &LoadedModule) -> bool {
        let mut rules = self.step.iter().chain(&self.scopes);
        rules.any(|rule| rule.is_for(loaded))
    }

    fn search(&mut self, loaded: &LoadedModule, candidates: &mut Vec<HookCandidate>) {
        let Some(rule) = &self.step else { return };
        if self.too_many || !rule.is_for(loaded) {
            return;
        }
        let Ok((functions, more)) = functions::matching(&loaded.path, &rule.pattern, LIMIT) else {
            self.unsearched.add(loaded, ReadFailure::Unreadable);
            return;
        };
        self.searched += 1;
        self.too_many |= more;
        candidates.extend(functions.into_iter().map(|function| HookCandidate {
            module: loaded.start,
            path: loaded.path.clone(),
            function,
            is_step: true,
            is_scope: false,
        }));
    }

    fn search_for_scopes(&mut self, loaded: &LoadedModule, candidates: &mut Vec<HookCandidate>) {
        for rule in &self.scopes {
            if self.too_many_scopes.is_some() || !rule.is_for(loaded) {
                continue;
            }
            // Largest number of matches that are counted. The number is only needed for a warning.
            const MAX_COUNTED: usize = 10_000;
            let Ok((found, _)) = functions::matching(&loaded.path, &rule.pattern, MAX_COUNTED)
            else {
                self.unsearched.add(loaded, ReadFailure::Unreadable);
                continue;
            };
            self.searched_for_scopes += 1;
            for function in found {
                let known = candidates.iter_mut().find(|known| {
                    known.module == loaded.start && known.function.address == function.address
                });
                match known {
                    Some(known) => known.is_scope = true,
                    None => candidates.push(HookCandidate {
                        module: loaded.start,
                        path: loaded.path.clone(),
                        function,
                        is_step: false,
                        is_scope: true,
                    }),
                }
            }
        }
    }

    /// Applies the limits on hooked functions. If the limit on step functions or on scope functions is exceeded, no
    /// candidate is hooked for that purpose. Removes the candidates that are then hooked for neither purpose.
    fn limit(&mut self, candidates: &mut Vec<HookCandidate>) {
        let steps = self.functions.iter().filter(|known| known.is_step).count()
            + candidates.iter().filter(|new| new.is_step).count();
        self.too_many |= steps > LIMIT;
        let known = self.functions.iter().filter(|known| known.scope.is_some());
        let new = candidates.iter().filter(|new| new.is_scope).count();
        let scopes = known.count() + new;
        if scopes > scopes::MAX_FUNCTIONS && new > 0 {
            self.too_many_scopes = Some(scopes);
            report::too_many_scopes(self.too_many_scopes, self.matched_scopes > 0);
        }
        candidates.retain_mut(|candidate| {
            candidate.is_step &= !self.too_many;
            candidate.is_scope &= self.too_many_scopes.is_none();
            candidate.is_step || candidate.is_scope
        });
    }

    /// Returns at most `count` function names that are most similar to the rule's pattern.
    pub(super) fn nearest(&self, rule: &FunctionRule, count: usize) -> Vec<String> {
        let mut nearest = Nearest::new(&rule.pattern);
        for loaded in self.loaded.iter().filter(|loaded| rule.is_for(loaded)) {
            if let Ok(image) = Image::open(&loaded.path) {
                nearest.look(&image);
            }
        }
        nearest.names(count)
    }

    /// Forgets the functions and patches of modules that are no longer loaded: `listed`, the loader's list, does not
    /// contain them. Also forgets the functions of a module if a patched entry contains other code. This code may be
    /// that of another instance of the module. Or a debugger may have changed the patched entry, and may restore the
    /// jump later. So trampolines are freed only if no module is loaded at the place of their module.
    pub(crate) fn forget(&mut self, listed: &[ListedModule]) {
        let mut gone = Vec::new();
        self.loaded.retain(|known| {
            let stays = known.is_listed(listed)
                && self
                    .functions
                    .iter()
                    .all(|function| function.module != known.start || function.is_in_place());
            if !stays {
                gone.push(known.start..known.end);
            }
            stays
        });
        let is_gone = |address: usize| gone.iter().any(|range| range.contains(&address));
        self.functions.retain(|function| !is_gone(function.address));
        self.by_name
            .retain(|function| !is_gone(function.found.address));
        let is_unmapped = |place: &&Range<usize>| {
            !listed
                .iter()
                .any(|(other, _)| other.start < place.end && place.start < other.end)
        };
        let (old, kept) = self.regions.drain(..).partition(|region| {
            let mut unmapped = gone.iter().filter(is_unmapped);
            unmapped.any(|place| place.contains(&region.of))
        });
        self.regions = kept;
        for region in old {
            // SAFETY: only the unloaded module had code that jumped into the region, and the loader lists no module at
            // that place.
            unsafe { Region::free(region) };
        }
    }

    /// Hooks `candidates`, so that their calls are counted, or are scopes (GPU work is attributed to them). The
    /// caller must keep `modules` loaded until this function returns.
    pub(super) fn patch(
        &mut self,
        candidates: Vec<HookCandidate>,
        modules: &[ElfModule],
        maps: &Maps,
    ) {
        let count_of =
            |is_it: fn(&HookCandidate) -> bool| candidates.iter().filter(|c| is_it(c)).count();
        self.matched += count_of(|candidate| candidate.is_step);
        self.matched_scopes += count_of(|candidate| candidate.is_scope);
        let alone = modules::is_alone();
        let mut regions: Vec<Region> = Vec::new();
        let mut prepared = Vec::new();
        let count = candidates.len();
        for candidate in candidates {
            let Some(module) = modules
                .iter()
                .find(|module| module.start == candidate.module)
            else {
                continue; // the module is already unloaded
            };
            if self.is_patched_for_scope(&candidate, module) {
                continue;
            }
            let quiet = alone || is_quiet(&candidate.function, module, modules);
            let entry = prepare(&candidate, module, maps, quiet);
            let scope = candidate
                .is_scope
                .then(|| may_be_scope(&candidate, entry.as_ref()));
            let number = scope.and_then(Result::ok);
            let refused = scope.and_then(Result::err).filter(|_| !candidate.is_step);
            let result = match refused {
                Some(why) => Err(why),
                None => entry.and_then(|entry| {
                    let region = region_of(&mut regions, module, count, maps)?;
                    let trampoline = region.add(&entry, number)?;
                    let jump = entry::jump(entry.at(), trampoline.start);
                    Ok((entry, jump.ok_or(PatchRefusal::NoRoom)?, trampoline))
                }),
            };
            prepared.push((candidate, module, result, scope));
        }
        let mut unfinished = Vec::new();
        regions.retain(|region| match region.finish() {
            Ok(()) => true,
            Err(why) => {
                unfinished.push((region.of, why));
                false
            }
        });
        let first = self.functions.len();
        for (candidate, module, result, scope) in prepared {
            let patched = result.and_then(|(entry, jump, trampoline)| {
                let mut unfinished = unfinished.iter();
                if let Some((_, why)) = unfinished.find(|(of, _)| *of == module.start) {
                    return Err(*why);
                }
                // SAFETY: the module stays loaded during the write, the trampoline is executable, and
                // `prepare` has refused entries that cannot be patched while other threads run.
                unsafe { entry::write(&entry, jump, alone) }?;
                Ok(Means::Entry {
                    at: entry.at(),
                    jump,
                    trampoline,
                    looks_back: entry.looks_back(),
                })
            });
            self.add_function(candidate, module, patched, scope);
        }
        report::found_scopes(&self.functions[first..]);
        self.regions.append(&mut regions);
    }

    /// Adds a function to the list of known functions. `patched` contains the data of the patched entry, or the
    /// reason why the entry was not patched. `scope` is the function's number as a scope (GPU work is attributed to its
    /// calls), or the reason why it cannot be a scope; it is `None` if no scope rule names the function.
    fn add_function(
        &mut self,
        candidate: HookCandidate,
        module: &ElfModule,
        patched: Result<Means, PatchRefusal>,
        scope: Option<Result<usize, PatchRefusal>>,
    ) {
        let function = candidate.function;
        let address = module.base.wrapping_add(function.address);
        let scope = scope.map(|scope| {
            scope.and_then(|number| patched.as_ref().map(|_| number).map_err(|why| *why))
        });
        let means = match patched {
            Ok(means) => means,
            Err(refusal)
                if function.exported.is_empty()
                    || refusal == PatchRefusal::VariantCall
                    || !candidate.is_step =>
            {
                Means::None(refusal)
            }
            Err(refusal) => {
                self.by_name.push(ByName {
                    found: DefinedFunction {
                        address,
                        is_ifunc: function.is_ifunc,
                    },
                    names: function.exported,
                });
                Means::Name(refusal)
            }
        };
        let file = candidate.path.file_name().unwrap_or_default();
        let named = NamedFunction {
            address,
            module: module.start,
            name: function.name,
            file: file.to_string_lossy().into_owned(),
            means,
            is_step: candidate.is_step,
            scope,
        };
        report::found(&named);
        self.functions.push(named);
    }

    /// Returns true if the step rule selects a function that is already patched because its calls are scopes (GPU
    /// work is attributed to them). Before it returns true, makes the function's calls count as steps, too. If the
    /// earlier patch failed, forgets the function and returns false, so that the caller tries again.
    fn is_patched_for_scope(&mut self, candidate: &HookCandidate, module: &ElfModule) -> bool {
        let address = module.base.wrapping_add(candidate.function.address);
        let Some(at) = self
            .functions
            .iter()
            .position(|known| known.address == address)
        else {
            return false;
        };
        let known = &mut self.functions[at];
        if let (Means::Entry { .. }, Some(Ok(number))) = (&known.means, known.scope)
            && let Some(function) = scopes::function(number)
        {
            function.set_step();
            known.is_step = true;
            return true;
        }
        self.functions.swap_remove(at);
        false
    }
}

/// Returns true if the module's file was replaced after it was loaded.
fn is_replaced(loaded: &LoadedModule, maps: &Maps) -> bool {
    let module = elf::containing(loaded.start);
    module.is_some_and(|module| modules::is_replaced(&module, maps, &loaded.path))
}

/// Reason why the functions in a module's file are unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// The module's file was replaced after it was loaded.
    Replaced,
    /// The module's file cannot be read, or is damaged.
    Unreadable,
}

/// Modules whose functions are unknown: file names without duplicates, and the reason for each.
#[derive(Default)]
pub(crate) struct Unsearched(Vec<(String, ReadFailure)>);

impl Unsearched {
    fn add(&mut self, loaded: &LoadedModule, why: ReadFailure) {
        let name = loaded.path.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
        if !self.0.iter().any(|(known, _)| known == name) {
            self.0.push((name.to_owned(), why));
        }
    }
}

/// Writes the end of a message, for example `; libengine.so was replaced after being loaded, and not searched: …`.
impl fmt::Display for Unsearched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Largest number of files that one message names.
        const MAX_NAMED: usize = 3;
        for (why, what) in [
            (
                ReadFailure::Replaced,
                "replaced after being loaded, and not searched: restart the program",
            ),
            (
                ReadFailure::Unreadable,
                "not searched, as the file cannot be read",
            ),
        ] {
            let names = self.0.iter().filter(|(_, is)| *is == why);
            let count = names.clone().count();
            let mut before = "; ";
            for (name, _) in names.take(MAX_NAMED) {
                write!(f, "{before}{name}")?;
                before = ", ";
            }
            match count {
                0 => {}
                1 => write!(f, " was {what}")?,
                2..=MAX_NAMED => write!(f, " were {what}")?,
                _ => write!(f, " and {} more were {what}", count - MAX_NAMED)?,
            }
        }
        Ok(())
    }
}

/// Returns the region (executable memory near the module) for the trampolines of a module, to which patched entries
/// jump. Creates the region if there is none. `count` is the number of functions that need a trampoline.
fn region_of<'a>(
    regions: &'a mut Vec<Region>,
    module: &ElfModule,
    count: usize,
    maps: &Maps,
) -> Result<&'a mut Region, PatchRefusal> {
    let at = match regions.iter().position(|region| region.of == module.start) {
        Some(at) => at,
        None => {
            regions.push(Region::near(module, count, maps)?);
            regions.len() - 1
        }
    };
    Ok(&mut regions[at])
}

/// Returns the number by which a function's trampoline identifies the function as a scope (GPU work is attributed to
/// its calls), or the reason why the function cannot be a scope.
fn may_be_scope(
    candidate: &HookCandidate,
    entry: Result<&PatchableEntry, &PatchRefusal>,
) -> Result<usize, PatchRefusal> {
    let entry = entry.map_err(|why| *why)?;
    if entry.looks_back() {
        return Err(PatchRefusal::LooksBack);
    }
    if processor::has_shadow_stack() {
        return Err(PatchRefusal::ShadowStack);
    }
    let function = &candidate.function;
    let number = scopes::number(&candidate.path, function.address, &function.name);
    let number = number.ok_or(PatchRefusal::TooMany)?;
    if candidate.is_step
        && let Some(function) = scopes::function(number)
    {
        function.set_step();
    }
    Ok(number)
}
