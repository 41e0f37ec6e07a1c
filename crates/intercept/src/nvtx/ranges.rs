//! Counts the NVTX ranges that match the step rule (the rule that defines a step of the program), and reports the end
//! of each range that ends an iteration.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use once_cell::race::OnceBox;
use regex::bytes::Regex;
use tllmprof_config::Step;

use super::abi::{Handle, RangeId};
use super::name::NvtxRangeName;
use tllmprof_platform::injection;
use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_session as session;
use tllmprof_session::by_name;
use tllmprof_steps::ranges::handles::Handles;
use tllmprof_steps::ranges::pattern::CompiledPattern;
use tllmprof_steps::ranges::seen::Seen;
use tllmprof_steps::ranges::started::Started;
use tllmprof_steps::step::counted::Counted;

lifecycle::global! {
    stage: Doors;

    #[fork(by = in_child)]
    static RULE: OnceBox<RangeRule> = OnceBox::new();
    #[fork(in_child)]
    static STARTED: Started = Started::new();
    #[fork(in_child)]
    static SEEN: Seen = Seen::new();
    /// True once a module that uses NVTX has accepted this library as its tool, so that the
    /// module's ranges reach this library.
    #[fork(keep = "modules are inherited")]
    static MET: AtomicBool = AtomicBool::new(false);
    /// Number from which the next domain handle or range identifier is made. This library issues them only if no other
    /// tool does.
    #[fork(keep = "what was given out stays valid")]
    static NEXT_OWN: AtomicU64 = AtomicU64::new(1);
}
/// The address of this byte serves as the handle of all registered strings that match the step rule and that get no
/// handle from another tool or from [`super::kept`].
static MATCHING_STRING: u8 = 0;

/// The rule for the NVTX ranges that the process counts as steps.
pub(super) struct RangeRule {
    regex: &'static Regex,
    pattern: CompiledPattern,
    domain: Option<&'static str>,
    /// Handles of the domains that have the name `domain`, which the rule requires.
    domains: Handles,
    /// Handles of the registered strings that match the rule's pattern.
    strings: Handles,
}

/// Returns the step rule (the rule that defines a step) for NVTX ranges, or `None` if the process counts no ranges.
pub(super) fn rule() -> Option<&'static RangeRule> {
    if let Some(rule) = RULE.get() {
        return Some(rule);
    }
    let Step::Nvtx { name, domain, .. } = &tllmprof_session::activity::settings()?.step else {
        return None;
    };
    Some(RULE.get_or_init(|| {
        Box::new(RangeRule {
            regex: name,
            pattern: CompiledPattern::new(name),
            domain: domain.as_deref(),
            domains: Handles::new(),
            strings: Handles::new(),
        })
    }))
}

/// Called when a module of the program has accepted this library as its tool. From then on the module's ranges reach
/// this library.
pub(crate) fn met() {
    MET.store(true, Ordering::Relaxed);
}

/// The effect of a range's beginning on the count of steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begins {
    /// The range is not a step, or it is a step that was counted, but at which no iteration can begin or end.
    Nothing,
    /// The range is a step at which an iteration may have begun. The caller must call [`pushed`] or [`started`] once
    /// the range has begun. The number is that of the iteration that ends with the range, if there is one.
    Step(Option<u64>),
}

/// Called before a range begins. Counts the range if it matches the step rule (the rule that defines a step), and
/// returns the effect of the range on the count of steps.
#[inline]
pub(super) fn begins(domain: Handle, name: &NvtxRangeName<'_>) -> Begins {
    RULE.get()
        .map_or(Begins::Nothing, |rule| rule.begins(domain, name))
}

impl RangeRule {
    #[inline(never)] // one shared copy, not one in each wrapper
    fn begins(&self, domain: Handle, name: &NvtxRangeName<'_>) -> Begins {
        if self.names(domain, name) && by_name::count(Counted::Named) {
            Begins::Step(by_name::ask(Counted::Named))
        } else {
            Begins::Nothing
        }
    }

    /// Returns true if the step rule (the rule that defines a step) applies to ranges of the domain with this handle.
    #[inline]
    fn is_here(&self, domain: Handle) -> bool {
        self.domain.is_none() || self.domains.contains(domain)
    }

    #[inline]
    fn names(&self, domain: Handle, name: &NvtxRangeName<'_>) -> bool {
        let here = self.is_here(domain);
        let counts = here && self.matches(name);
        if counts {
            SEEN.matched();
        } else if SEEN.wants()
            && let NvtxRangeName::Text(text) = *name
        {
            SEEN.add(text.bytes(), !here && self.matches(name));
        }
        counts
    }

    fn matches(&self, name: &NvtxRangeName<'_>) -> bool {
        match *name {
            NvtxRangeName::Text(text) => text.matches(&self.pattern),
            NvtxRangeName::Registered(handle) => {
                handle == own_string() || self.strings.contains(handle)
            }
            NvtxRangeName::None => false,
        }
    }
}

/// Called after a range was pushed. Stores the iteration that ends with the range, if there is one. `begins` is the
/// value that the function [`begins`] returned before the push.
#[inline]
pub(crate) fn pushed(domain: Handle, begins: Begins) {
    if matches!(begins, Begins::Step(_)) || follows_any() {
        follow(domain, begins);
    }
}

/// Called after a range was popped. If an iteration ends with the range, reports the iteration's end.
#[inline]
pub(crate) fn popped(domain: Handle) {
    if follows_any() {
        unfollow(domain);
    }
}

/// Returns true if one of the thread's open ranges ends an iteration.
#[inline]
fn follows_any() -> bool {
    RULE.get().is_some() && session::slot().is_some_and(|slot| !slot.open_ranges().is_empty())
}

#[cold]
fn follow(domain: Handle, begins: Begins) {
    let ends = match begins {
        Begins::Nothing => None,
        Begins::Step(ends) => {
            session::goes_on();
            ends
        }
    };
    if let Some(slot) = session::slot() {
        slot.open_ranges().pushed(domain, ends);
    }
}

#[cold]
fn unfollow(domain: Handle) {
    let ended = session::slot().and_then(|slot| slot.open_ranges().popped(domain));
    if let Some(iteration) = ended {
        by_name::has_ended(iteration);
    }
}

/// Called after a range was started. If an iteration ends with the range, remembers the range, so that its end is
/// noticed. `begins` is the value that the function [`begins`] returned before the start. Returns the identifier that
/// the program gets: `id`, or a new one if `id` is 0 (none) and the end of the range must be known.
#[inline]
pub(crate) fn started(id: RangeId, begins: Begins) -> RangeId {
    let Begins::Step(ends) = begins else {
        return id;
    };
    session::goes_on();
    let Some(iteration) = ends else { return id };
    let id = if id == 0 { own_id() } else { id };
    STARTED.follow(id, iteration);
    id
}

/// Called at the end of a started range. If an iteration ends with the range, reports the iteration's end.
#[inline]
pub(crate) fn ended(id: RangeId) {
    if let Some(iteration) = STARTED.ended(id) {
        by_name::has_ended(iteration);
    }
}

/// Returns a new range identifier. The highest bit is set, so that it cannot be that of another tool.
pub(crate) fn own_id() -> RangeId {
    1 << 63 | NEXT_OWN.fetch_add(1, Ordering::Relaxed)
}

/// Called when the program has registered a string. If the string matches the step rule, stores its handle, so that
/// ranges with this handle are counted. `handle` is the handle that another tool or [`super::kept`] has issued, or
/// `None`. Returns the handle that the program gets.
pub(super) fn registered(
    domain: Handle,
    handle: Option<Handle>,
    text: &NvtxRangeName<'_>,
) -> Handle {
    let (Some(rule), NvtxRangeName::Text(text)) = (RULE.get(), text) else {
        return handle.unwrap_or(0);
    };
    let matches = text.matches(&rule.pattern);
    if SEEN.wants() && !(matches && rule.is_here(domain)) {
        SEEN.add(text.bytes(), matches);
    }
    match handle {
        Some(handle) => {
            rule.strings.set(handle, matches);
            handle
        }
        None if matches => own_string(),
        None => 0,
    }
}

fn own_string() -> Handle {
    (&raw const MATCHING_STRING).addr()
}

/// Called when the program has created a domain. If the domain has the name that the step rule requires, stores its
/// handle. `handle` is the handle that another tool or [`super::kept`] has issued, or `None`. Returns the handle that
/// the program gets.
pub(super) fn domain_created(handle: Option<Handle>, name: &NvtxRangeName<'_>) -> Handle {
    // If there is no handle yet, issue a new number: nothing uses this handle as an address. Each domain needs a
    // different handle, because each domain has its own stack of ranges.
    let handle = handle.unwrap_or_else(|| NEXT_OWN.fetch_add(1, Ordering::Relaxed) as Handle * 16);
    if let (Some(rule), NvtxRangeName::Text(text)) = (RULE.get(), name)
        && let Some(wanted) = rule.domain
    {
        rule.domains.set(handle, text.bytes().eq(wanted.bytes()));
    }
    handle
}

/// Called before a domain is destroyed. Forgets the domain's handle, because a new domain may get the same handle.
pub(crate) fn domain_destroyed(handle: Handle) {
    if let Some(rule) = RULE.get() {
        rule.domains.set(handle, false);
    }
}

/// Releases the locks of the rule's tables in the child process after a fork: the threads that held them do not exist
/// in the child.
fn in_child(alone: &OnlyThread) {
    if let Some(rule) = RULE.get() {
        rule.domains.in_child(alone);
        rule.strings.in_child(alone);
    }
}

/// Prints the reason why no range was counted as a step.
pub struct Unseen;

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !MET.load(Ordering::Relaxed) {
            return f.write_str(if injection::is_in_place() {
                "; no NVTX range was seen"
            } else {
                "; NVTX_INJECTION64_PATH does not lead here, so its NVTX ranges were not seen"
            });
        }
        f.write_str("; no NVTX range matched")?;
        let Some(rule) = RULE.get() else {
            return Ok(());
        };
        f.write_str(", there were ")?;
        if !SEEN.write(rule.regex.as_str(), f)? {
            f.write_str("none")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use super::*;
    use crate::made::alone;

    const WINDOWS: (&str, &str) = ("TLLMPROF_START_STOP", "1000");

    fn text(text: &CStr) -> NvtxRangeName<'_> {
        // SAFETY: the string is terminated, and the name is dropped before the string.
        unsafe { NvtxRangeName::narrow(text.as_ptr()) }
    }

    /// Returns the number of ranges that the calling thread has counted as steps.
    fn count() -> u64 {
        session::slot().map_or(0, |slot| slot.live(Counted::Named).count())
    }

    /// Returns true if a range with these names is counted.
    fn counts(domain: Handle, name: &NvtxRangeName<'_>) -> bool {
        let before = count();
        begins(domain, name);
        count() > before
    }

    #[test]
    fn a_rule_counts_names_that_match_in_any_domain() {
        alone(&[("TLLMPROF_STEP", "nvtx:^step"), WINDOWS], || {
            assert!(
                begins(0, &text(c"step")) == Begins::Nothing && count() == 0,
                "nothing asks for ranges yet"
            );
            rule().unwrap();
            assert!(counts(0, &text(c"step 1")) && counts(0x70, &text(c"step 2")));
            assert!(!counts(0, &text(c"a step")) && !counts(0, &NvtxRangeName::None));
            met();
            assert_eq!(
                Unseen.to_string(),
                "; no NVTX range matched, there were none"
            );
        });
    }

    #[test]
    fn a_process_with_another_rule_counts_no_ranges() {
        alone(&[("TLLMPROF_STEP", "cuGraphLaunch"), WINDOWS], || {
            assert!(rule().is_none() && !counts(0, &text(c"step")));
            assert_eq!(registered(0, None, &text(c"step")), 0);
            assert_eq!(registered(0, Some(0x70), &text(c"step")), 0x70);
            met();
            assert_eq!(Unseen.to_string(), "; no NVTX range matched");
        });
    }

    #[test]
    fn a_rules_domain_is_the_one_of_that_name() {
        alone(&[("TLLMPROF_STEP", "nvtx:^step@engine"), WINDOWS], || {
            rule().unwrap();
            assert!(!counts(0, &text(c"step")));
            let engine = domain_created(Some(0x70), &text(c"engine"));
            let other = domain_created(None, &text(c"engines"));
            let own = domain_created(None, &text(c"engine"));
            assert!(engine == 0x70 && other != 0 && own != 0 && other != own);
            assert!(counts(engine, &text(c"step")) && counts(own, &text(c"step")));
            assert!(!counts(other, &text(c"step")) && !counts(engine, &text(c"a step")));
            domain_destroyed(engine);
            assert!(!counts(engine, &text(c"step")));
        });
    }

    #[test]
    fn a_registered_string_stands_for_its_text() {
        alone(&[("TLLMPROF_STEP", "nvtx:^step"), WINDOWS], || {
            rule().unwrap();
            assert_eq!(registered(0, Some(0x70), &text(c"step")), 0x70);
            assert_eq!(registered(0, Some(0x80), &text(c"a step")), 0x80);
            assert!(
                counts(0, &NvtxRangeName::Registered(0x70))
                    && !counts(0, &NvtxRangeName::Registered(0x80))
            );
            assert_eq!(registered(0, Some(0x70), &text(c"prefill")), 0x70);
            assert!(
                !counts(0, &NvtxRangeName::Registered(0x70)),
                "the tool uses the handle again"
            );
            let own = registered(0, None, &text(c"step"));
            assert!(own != 0 && counts(0, &NvtxRangeName::Registered(own)));
            assert_eq!(registered(0, None, &text(c"prefill")), 0);
        });
    }

    #[test]
    fn what_did_not_match_is_listed() {
        alone(&[("TLLMPROF_STEP", "nvtx:^step@engine"), WINDOWS], || {
            assert!(
                Unseen
                    .to_string()
                    .contains("NVTX_INJECTION64_PATH does not lead here")
            );
            rule().unwrap();
            met();
            let engine = domain_created(Some(0x70), &text(c"engine"));
            assert!(!counts(engine, &text(c"prefill")) && !counts(0, &text(c"step")));
            let unseen = Unseen.to_string();
            let expected = "there were \"step\" in another domain, \"prefill\"";
            assert!(unseen.contains(expected), "{unseen}");
        });
    }

    #[test]
    fn an_end_that_matters_is_followed() {
        alone(&[("TLLMPROF_STEP", "nvtx:^step"), WINDOWS], || {
            rule().unwrap();
            assert!(counts(0, &text(c"step")));
            let follows = || follows_any();
            pushed(0, Begins::Nothing);
            assert!(!follows());
            pushed(0, Begins::Step(Some(5)));
            pushed(0x70, Begins::Nothing);
            pushed(0, Begins::Nothing);
            popped(0x70);
            popped(0);
            assert!(follows(), "one within it has ended");
            popped(0);
            assert!(!follows());
        });
    }

    #[test]
    fn a_started_range_has_an_identifier_where_its_end_matters() {
        alone(&[("TLLMPROF_STEP", "nvtx:^step"), WINDOWS], || {
            rule().unwrap();
            let nothing = [Begins::Nothing, Begins::Step(None)];
            assert_eq!(nothing.map(|begins| started(33, begins)), [33, 33]);
            assert_eq!(started(0, Begins::Nothing), 0);
            assert_eq!(started(33, Begins::Step(Some(5))), 33, "the tool's");
            assert_eq!(STARTED.ended(33), Some(5));
            let own = started(0, Begins::Step(Some(6)));
            assert!(own >> 63 == 1 && started(0, Begins::Step(Some(7))) != own);
            ended(own);
            assert_eq!(STARTED.ended(own), None, "it has ended already");
        });
    }
}
