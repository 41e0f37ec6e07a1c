//! What is reported of the functions that the rule names, in processes that use CUDA.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::hash::DefaultHasher;

use tllmprof_platform::lifecycle;
use tllmprof_symbols::{Image, LIMIT, Nearest};

use super::{Followed, Means, Named, with};
use tllmprof_platform::log;

/// How many names that are near to the rule's are reported.
const NEAREST: usize = 3;

lifecycle::global! {
    stage: Doors;

    /// The process uses CUDA, so that lines may be written.
    #[fork(reset)]
    static MAY_REPORT: AtomicBool = AtomicBool::new(false);
}

/// Says by which means functions are followed, and which are not. From now on each that is found is
/// reported, too.
pub fn report() {
    with(|followed| {
        MAY_REPORT.store(true, Ordering::Relaxed);
        for function in &followed.functions {
            found(function);
        }
    });
}

/// Says by which means a function is followed, if the process uses CUDA. A library that comes again
/// and again is reported once.
pub fn found(function: &Named) {
    lifecycle::global! {
        #[fork(keep = "the parent has said it")]
        static SAID: [AtomicU64; LIMIT] = [const { AtomicU64::new(0) }; LIMIT];
    }
    if !MAY_REPORT.load(Ordering::Relaxed) {
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

/// Says what is wrong with a rule that named nothing, or too much. `may_search`: the process ends
/// in a way that leaves time and memory to look for names that are near.
pub fn report_unmatched(rule: &impl fmt::Display, may_search: bool) {
    with(|followed| {
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
        } else if followed.matched == 0 {
            let nearest = if may_search {
                followed.nearest()
            } else {
                Vec::new()
            };
            log::say!(
                Warn,
                "{rule} matched no function in {} modules{}",
                followed.searched,
                Nearby(&nearest)
            );
        }
    });
}

/// The names that are near, if there are any.
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

impl Followed {
    fn nearest(&self) -> Vec<String> {
        let mut nearest = Nearest::new(&self.pattern);
        for loaded in self.loaded.iter().filter(|loaded| self.is_wanted(loaded)) {
            if let Ok(image) = Image::open(&loaded.path) {
                nearest.look(&image);
            }
        }
        nearest.names(NEAREST)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.name, self.file)
    }
}
