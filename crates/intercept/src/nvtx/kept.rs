//! Records the program's NVTX ranges and marks, and stores the names that belong to NVTX handles.
//!
//! Outside windows (recorded intervals), no range is recorded. The wrapper of an NVTX function then only reads one or
//! two words of memory, which show that no window is open. Names of domains and registered strings are stored even
//! outside windows, because the program registers them before the window opens.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use once_cell::race::OnceBox;
use tllmprof_platform::lifecycle;

use super::abi::{Handle, RangeId};
use super::name::NvtxRangeName;
use super::ranges::own_id;
use super::text::NvtxText;
use tllmprof_recorder as recorder;
use tllmprof_recorder::ranges::{self, RangeNames};
use tllmprof_recorder::{Counter, LONGEST, Label};
use tllmprof_scopes as scopes;
use tllmprof_steps::ranges::known::Known;

lifecycle::global! {
    /// Known names of domains, found by the domain's handle. `STRINGS` has the names of registered strings.
    #[fork(keep = "handles are inherited")]
    #[together(tables)]
    static DOMAINS: Known<Label, 256> = Known::new();
    #[fork(keep = "handles are inherited")]
    #[together(tables)]
    static STRINGS: Known<Label, 8192> = Known::new();
    /// Number of NVTX names for which the tables had no room. Stored until a record exists to which
    /// the number can be added.
    #[fork(keep = "for the next record")]
    static UNKNOWN: AtomicU64 = AtomicU64::new(0);

    /// Name for a domain whose name is unknown. Without a name, the range would seem to belong to the default domain.
    #[fork(keep = "a name")]
    static NAMELESS: OnceBox<&'static Label> = OnceBox::new();

    /// True if the program's NVTX ranges must be recorded while a window (a recorded interval) is open.
    #[fork(keep = "the settings are the same")]
    static ARE_KEPT: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the program's ranges and marks must be recorded. In that case also prepares this module to record
/// them.
pub(crate) fn are_asked_for() -> bool {
    let asked = tllmprof_session::activity::settings()
        .is_some_and(tllmprof_session::activity::records_ranges);
    if asked {
        NAMELESS.get_or_init(|| Box::new(Label::new("?")));
        ARE_KEPT.store(true, Ordering::Relaxed);
    }
    asked
}

#[inline]
fn are_kept() -> bool {
    ARE_KEPT.load(Ordering::Relaxed)
}

/// Returns true if a window (a recorded interval) is open, so that a range that begins now must be recorded.
#[inline]
fn is_open() -> bool {
    ranges::window() != 0 && are_kept()
}

/// A name that was passed as wide characters, converted to at most [`LONGEST`] bytes of UTF-8.
struct Spelt {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Spelt {
    #[cold] // most programs pass names as bytes, not as wide characters
    fn new(text: NvtxText<'_>) -> Self {
        let mut bytes = [0; LONGEST];
        let places = bytes.iter_mut().zip(text.bytes());
        let length = places.map(|(to, byte)| *to = byte).count();
        Self { bytes, length }
    }
}

/// Returns the name of a range or mark and the name of its domain, in the form that the recorder needs. `spelt`
/// provides space for a name of wide characters.
#[inline]
fn names<'a>(
    domain: Handle,
    name: &NvtxRangeName<'a>,
    spelt: &'a mut Option<Spelt>,
) -> RangeNames<'a> {
    let name = match *name {
        NvtxRangeName::Text(text) => ranges::RangeName::Text(match text.as_c_str() {
            Some(text) => text.to_bytes(),
            None => {
                let spelt = spelt.insert(Spelt::new(text));
                &spelt.bytes[..spelt.length]
            }
        }),
        NvtxRangeName::Registered(handle) => STRINGS
            .get(domain, handle)
            .map_or(ranges::RangeName::None, ranges::RangeName::Registered),
        NvtxRangeName::None => ranges::RangeName::None,
    };
    let domain = match domain {
        0 => None,
        handle => DOMAINS.get(0, handle).or_else(|| NAMELESS.get().copied()),
    };
    RangeNames { domain, name }
}

/// Adds the range to the thread's scope (the path of open ranges and functions to which GPU work is attributed).
#[inline(never)]
fn open_scope(domain: Handle, name: &NvtxRangeName<'_>) {
    match *name {
        NvtxRangeName::Text(text) => match text.as_c_str() {
            Some(text) => scopes::push(domain, text.to_bytes()),
            None => {
                let spelt = Spelt::new(text);
                scopes::push(domain, &spelt.bytes[..spelt.length]);
            }
        },
        NvtxRangeName::Registered(handle) => {
            let name = STRINGS.get(domain, handle).map_or(&b"?"[..], Label::text);
            scopes::push(domain, name);
        }
        NvtxRangeName::None => scopes::push(domain, b"?"),
    }
}

/// Called when a range has been pushed. Records the range if a window (a recorded interval) is open. Adds the range to
/// the thread's scope (the path to which GPU work is attributed) if this process uses scopes.
#[inline]
pub(super) fn pushed(domain: Handle, name: &NvtxRangeName<'_>) {
    if scopes::are_on() {
        open_scope(domain, name);
    }
    if is_open() {
        push(domain, name);
    }
}

#[inline(never)] // one shared copy, not one in each wrapper
fn push(domain: Handle, name: &NvtxRangeName<'_>) {
    ranges::pushed(domain, names(domain, name, &mut None));
}

/// Called before a range is popped. Records the range's end if its beginning was recorded, and removes the range from
/// the thread's scope (the path to which GPU work is attributed).
#[inline]
pub(crate) fn popped(domain: Handle) {
    if scopes::are_on() {
        scopes::pop(domain);
    }
    if ranges::may_be_open() && are_kept() {
        pop(domain);
    }
}

#[inline(never)]
fn pop(domain: Handle) {
    ranges::popped(domain);
}

/// Records that a range has been started. `id` is the tool's identifier for the range, or 0. Returns the identifier
/// that the program gets: `id`, or a new one if `id` is 0 and the range is recorded.
pub(super) fn started(domain: Handle, id: RangeId, name: &NvtxRangeName<'_>) -> RangeId {
    if !is_open() {
        return id;
    }
    let id = if id == 0 { own_id() } else { id };
    ranges::started(id, names(domain, name, &mut None));
    id
}

/// Records that a started range is about to end, if its start was recorded.
#[inline]
pub(crate) fn ended(id: RangeId) {
    if ranges::may_be_open() && are_kept() && id != 0 {
        ranges::finished(id);
    }
}

/// Records a mark (a moment with a name), if a window (a recorded interval) is open.
#[inline]
pub(super) fn marked(domain: Handle, name: &NvtxRangeName<'_>) {
    if is_open() {
        ranges::marked(names(domain, name, &mut None));
    }
}

/// Stores the text of a registered string, so that ranges with the string's handle can be recorded with a name.
/// `handle` is the tool's handle for the string, or `None` if there is no tool. Returns the handle that the program
/// gets: `handle`, or a new one if `handle` is `None` and the text is stored.
pub(super) fn registered(
    domain: Handle,
    handle: Option<Handle>,
    text: &NvtxRangeName<'_>,
) -> Option<Handle> {
    keep(&STRINGS, domain, handle, text)
}

/// Stores the name of a new domain. `handle` is the tool's handle for the domain, if there is a tool. Returns the
/// handle that the program gets: `handle`, or a new one if `handle` is `None` and the name is stored.
pub(super) fn domain_created(handle: Option<Handle>, name: &NvtxRangeName<'_>) -> Option<Handle> {
    keep(&DOMAINS, 0, handle, name)
}

/// Stores a name for a handle, if names must be recorded. Returns the handle that the program gets. If `handle` is
/// `None`, this is the address of the stored text, or `None` if the text was not stored.
fn keep<const SIZE: usize>(
    known: &Known<Label, SIZE>,
    owner: usize,
    handle: Option<Handle>,
    text: &NvtxRangeName<'_>,
) -> Option<Handle> {
    let NvtxRangeName::Text(text) = *text else {
        return handle;
    };
    if !are_kept() || handle == Some(0) {
        return handle;
    }
    let label = Label::keep(|| text.bytes());
    let handle = handle.or_else(|| label.map(|label| core::ptr::from_ref(label).addr()));
    let is_known = label
        .zip(handle)
        .is_some_and(|(label, handle)| known.set(owner, handle, label));
    if !is_known {
        UNKNOWN.fetch_add(1, Ordering::Relaxed);
    }
    if recorder::is_on() && UNKNOWN.load(Ordering::Relaxed) != 0 {
        recorder::add(Counter::StringsDropped, UNKNOWN.swap(0, Ordering::Relaxed));
    }
    handle
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use tllmprof_record::{NO_STRING, RangeKind, What};

    use super::*;
    use crate::made::{alone, record_of, recorded as record};

    fn text(text: &CStr) -> NvtxRangeName<'_> {
        // SAFETY: the string is terminated, and the name is dropped before the string.
        unsafe { NvtxRangeName::narrow(text.as_ptr()) }
    }

    #[test]
    fn ranges_and_marks_are_kept_with_their_names() {
        let path = record_of("ranges");
        let variables = [
            ("TLLMPROF_START_STOP", "0-9"),
            ("TLLMPROF_TRACE", path.as_str()),
        ];
        alone(&variables, || {
            // These two lines do the work of `are_asked_for`. That function does nothing in this test, because the
            // session has no sink (`session::Sink`) that writes a record.
            NAMELESS.get_or_init(|| Box::new(Label::new("?")));
            ARE_KEPT.store(true, Ordering::Relaxed);
            pushed(0, &text(c"before the window"));
            popped(0);
            // No window (recorded interval) is open. Names of domains and registered strings are stored anyway.
            assert_eq!(domain_created(Some(0x70), &text(c"engine")), Some(0x70));
            assert_eq!(registered(0x70, Some(0x80), &text(c"decode")), Some(0x80));
            let own = registered(0, None, &text(c"own")).unwrap();
            assert_eq!(
                registered(0, Some(0), &text(c"none")),
                Some(0),
                "the tool refuses it"
            );
            assert_eq!(registered(0, None, &NvtxRangeName::None), None);
            let contents = record(|| {
                pushed(0, &text(c"prefill"));
                pushed(0x70, &NvtxRangeName::Registered(0x80));
                popped(0x70);
                popped(0);
                assert_eq!(started(0x90, 33, &NvtxRangeName::Registered(own)), 33);
                ended(33);
                let ours = started(0, 0, &NvtxRangeName::None);
                assert_eq!(ours >> 63, 1, "the tool has no identifier");
                ended(ours);
                ended(0);
                let wide: Vec<u32> = "wide é".chars().map(u32::from).chain([0]).collect();
                // SAFETY: the string is terminated, and the name is dropped before the string.
                marked(0x70, &unsafe { NvtxRangeName::wide(wide.as_ptr()) });
            });
            let name = |id| match id {
                NO_STRING => "none".to_owned(),
                id => contents.strings.get(id).to_owned(),
            };
            let kept: Vec<_> = contents
                .events
                .iter()
                .filter_map(|(_, event)| match event.what {
                    What::Range {
                        kind,
                        domain,
                        name: range,
                    } => Some((Some(kind), name(domain), name(range))),
                    What::Mark { domain, name: mark } => Some((None, name(domain), name(mark))),
                    _ => None,
                })
                .collect();
            let of = |kind, domain: &str, name: &str| (kind, domain.to_owned(), name.to_owned());
            let expected = [
                of(Some(RangeKind::PushPop), "engine", "decode"),
                of(Some(RangeKind::PushPop), "none", "prefill"),
                of(Some(RangeKind::StartEnd), "?", "own"),
                of(Some(RangeKind::StartEnd), "none", "none"),
                of(None, "engine", "wide é"),
            ];
            assert_eq!(kept, expected);
        });
    }

    #[test]
    fn without_a_record_nothing_is_kept() {
        alone(&[("TLLMPROF_START_STOP", "0-9")], || {
            assert!(!are_asked_for() && !is_open());
            assert_eq!(registered(0, None, &text(c"step")), None);
            assert_eq!(domain_created(Some(0x70), &text(c"engine")), Some(0x70));
            assert_eq!(started(0, 33, &text(c"step")), 33);
            assert_eq!(started(0, 0, &text(c"step")), 0);
            assert!(STRINGS.get(0, 0x70).is_none() && DOMAINS.get(0, 0x70).is_none());
        });
    }
}
