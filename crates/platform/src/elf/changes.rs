//! Modules that come and go.

use super::walk::{Description, Walking, each_described, iterate};
use super::{Module, walk};

/// How many modules have been loaded and unloaded so far: moves on with each that comes or goes.
pub fn changes() -> u64 {
    let mut changes = 0;
    let _walking = Walking::begin();
    // The loader reports it with each module.
    each_described(&mut |Description(info)| {
        changes = info.dlpi_adds.wrapping_add(info.dlpi_subs);
        true
    });
    changes
}

/// How often [`with_modules`] starts again when others load modules at the same time.
const ATTEMPTS: usize = 8;

/// Runs `act` on all loaded modules, none of which is unloaded meanwhile.
///
/// The loader's lock is held: what `act` allocates, it should allocate before. An allocator of the
/// host's that unwinds the stack, as heaptrack's does, takes a lock that another thread may hold
/// while it waits for the loader's. So the list has its memory before the loader is asked for it.
pub fn with_modules(act: impl FnOnce(&[Module])) {
    let mut act = Some(act);
    let mut modules = Vec::new();
    for attempt in 1..=ATTEMPTS {
        modules.reserve(count());
        walk(|_| {
            modules.clear();
            let mut has_room = true;
            iterate(|module| {
                has_room = modules.len() < modules.capacity() || attempt == ATTEMPTS;
                if has_room {
                    modules.push(*module);
                }
                !has_room
            });
            if has_room && let Some(act) = act.take() {
                act(&modules);
            }
            true
        });
        if act.is_none() {
            return;
        }
    }
}

fn count() -> usize {
    let mut count = 0;
    let _walking = Walking::begin();
    each_described(&mut |_| {
        count += 1;
        false
    });
    count
}
