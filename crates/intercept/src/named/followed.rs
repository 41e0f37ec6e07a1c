//! What is followed by the rule, in the modules that there are.

use std::os::unix::ffi::OsStrExt;

use regex::bytes::Regex;
use tllmprof_platform::elf::{self, Found, Module};
use tllmprof_platform::entry::{self, Refusal};
use tllmprof_platform::lifecycle;
use tllmprof_platform::maps::Maps;
use tllmprof_platform::modules::{self, Loaded};
use tllmprof_symbols::{LIMIT, Pattern};

use super::patch::{Candidate, Means, Named, is_quiet, prepare};
use super::slots::{self, ByName};
use super::trampoline::Region;
use super::{functions, processor, report};

/// What is followed by the rule.
pub struct Followed {
    pub pattern: Pattern,
    pub library: Option<Regex>,
    pub loaded: Vec<Loaded>,
    pub functions: Vec<Named>,
    pub by_name: Vec<ByName>,
    pub regions: Vec<Region>,
    /// Functions that have matched so far, in modules that are gone, too.
    pub matched: usize,
    /// More functions match than can be followed.
    pub too_many: bool,
    /// Modules whose functions were looked at.
    pub searched: usize,
}

impl Followed {
    pub fn new(name: &Regex, library: Option<Regex>) -> Self {
        Self {
            pattern: Pattern::new(name),
            library,
            loaded: Vec::new(),
            functions: Vec::new(),
            by_name: Vec::new(),
            regions: Vec::new(),
            matched: 0,
            too_many: false,
            searched: 0,
        }
    }

    /// Looks at what has changed; false if something is to be looked at again.
    pub fn look(&mut self) -> bool {
        let Ok(maps) = Maps::read() else { return true };
        let (present, is_complete) = modules::present(&maps);
        self.forget(&present);
        let mut candidates = Vec::new();
        for loaded in present {
            if self.loaded.iter().any(|known| known.is(&loaded)) {
                continue;
            }
            if !self.too_many && self.is_wanted(&loaded) {
                self.search(&loaded, &mut candidates);
            }
            self.loaded.push(loaded);
        }
        if self.functions.len() + candidates.len() > LIMIT {
            self.too_many = true;
        }
        if self.too_many {
            candidates.clear();
        }
        if candidates.is_empty() && self.by_name.is_empty() {
            return is_complete;
        }
        if self.matched == 0 {
            processor::start();
        }
        lifecycle::register();
        elf::with_modules(|modules| {
            // The map from before may list modules that are gone.
            let Ok(maps) = Maps::read() else { return };
            let ready: Vec<Module> = modules
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
        });
        is_complete
    }

    pub fn is_wanted(&self, loaded: &Loaded) -> bool {
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

    fn search(&mut self, loaded: &Loaded, candidates: &mut Vec<Candidate>) {
        self.searched += 1;
        let Ok((functions, more)) = functions::matching(&loaded.path, &self.pattern) else {
            return;
        };
        self.too_many |= more;
        candidates.extend(functions.into_iter().map(|function| Candidate {
            module: loaded.start,
            path: loaded.path.clone(),
            function,
        }));
    }

    /// Forgets what lay in modules that are gone.
    pub fn forget(&mut self, present: &[Loaded]) {
        let mut gone = Vec::new();
        self.loaded.retain(|known| {
            let stays = present.iter().any(|loaded| loaded.is(known))
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
        let (old, kept) = self
            .regions
            .drain(..)
            .partition(|region| is_gone(region.of));
        self.regions = kept;
        for region in old {
            // SAFETY: only the module that is gone led there.
            unsafe { Region::free(region) };
        }
    }

    /// Hooks `candidates`, so that their calls are counted. `modules` stay loaded meanwhile.
    pub fn patch(&mut self, candidates: Vec<Candidate>, modules: &[Module], maps: &Maps) {
        self.matched += candidates.len();
        let alone = modules::is_alone();
        let mut regions: Vec<Region> = Vec::new();
        let mut prepared = Vec::new();
        let count = candidates.len();
        for candidate in candidates {
            let Some(module) = modules
                .iter()
                .find(|module| module.start == candidate.module)
            else {
                continue; // gone already
            };
            let quiet = alone || is_quiet(&candidate.function, module, modules);
            let result = prepare(&candidate, module, maps, quiet).and_then(|entry| {
                if !regions.iter().any(|region| region.of == module.start) {
                    let region = Region::near(module, count, maps).ok_or(Refusal::NoRoom)?;
                    regions.push(region);
                }
                let region = regions.iter_mut().find(|region| region.of == module.start);
                let trampoline = region.ok_or(Refusal::NoRoom)?.add(&entry)?;
                let jump = entry::jump(entry.at(), trampoline.start).ok_or(Refusal::NoRoom)?;
                Ok((entry, jump, trampoline))
            });
            prepared.push((candidate, module, result));
        }
        regions.retain_mut(|region| region.finish());
        for (candidate, module, result) in prepared {
            let address = module.base.wrapping_add(candidate.function.address);
            let patched = result.and_then(|(entry, jump, trampoline)| {
                if !regions.iter().any(|region| region.of == module.start) {
                    return Err(Refusal::NoRoom);
                }
                // SAFETY: the module stays loaded meanwhile, the trampoline is executable, and
                // `prepare` has refused what other threads forbid.
                unsafe { entry::write(&entry, jump, alone) }?;
                Ok(Means::Entry {
                    at: entry.at(),
                    jump,
                    trampoline,
                    looks_back: entry.looks_back(),
                })
            });
            let function = candidate.function;
            let means = match patched {
                Ok(means) => means,
                Err(refusal) if function.exported.is_empty() || refusal == Refusal::VariantCall => {
                    Means::None(refusal)
                }
                Err(refusal) => {
                    self.by_name.push(ByName {
                        found: Found {
                            address,
                            is_ifunc: function.is_ifunc,
                        },
                        names: function.exported,
                    });
                    Means::Name(refusal)
                }
            };
            let file = candidate.path.file_name().unwrap_or_default();
            let named = Named {
                address,
                module: module.start,
                name: function.name,
                file: file.to_string_lossy().into_owned(),
                means,
            };
            report::found(&named);
            self.functions.push(named);
        }
        self.regions.append(&mut regions);
    }
}
