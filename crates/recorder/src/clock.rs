//! The clock for the times in a record: the processor's time-stamp counter if it runs at a constant rate,
//! otherwise `CLOCK_MONOTONIC`.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_platform::system::{SystemClock, nanoseconds};
use tllmprof_record::{Anchor, ClockKind};

use super::state::{Looks, look_for, looks_for};

lifecycle::global! {
    /// The time of the library's start on three clocks: ticks of the processor's counter, `CLOCK_MONOTONIC`
    /// and Unix time. Ticks of 0 mean that no time was stored.
    #[fork(keep = "clocks continue")]
    static FIRST: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

    /// The ratio of ticks to nanoseconds, as the bits of an `f64`, for [`recent_ticks_per_ns`].
    #[fork(keep = "clocks continue")]
    #[together(iterations)]
    static RECENT: AtomicU64 = AtomicU64::new(0);
    /// The number of calls of [`recent_ticks_per_ns`] until the ratio is measured again.
    #[fork(keep = "as the ticks")]
    #[together(iterations)]
    static LOOKUP_IN: AtomicU64 = AtomicU64::new(0);
}

const LOOKUP_EVERY: u64 = 1024;
/// A measured ratio of ticks to nanoseconds is reused once for each period of this length, in nanoseconds, that the
/// measurement took, but at most [`LOOKUP_EVERY`] times. So a ratio that was measured soon after the start, and is
/// imprecise, is reused only a few times.
const SURE_NS: u64 = 1_000_000;

/// Stores the current time on all clocks. The rate of the ticks is later measured from this time on. Called when the
/// library is loaded, before [`choose`] picks the clock.
pub(crate) fn start() {
    if !may_read_counter() {
        return;
    }
    let anchor = anchor_by(counter);
    let parts = [anchor.ticks, anchor.monotonic_ns, anchor.unix_ns];
    for (place, part) in FIRST.iter().zip(parts) {
        place.store(part, Ordering::Relaxed);
    }
}

/// Returns the time that [`start`] stored. Returns `None` if the processor's counter is not the chosen clock:
/// `CLOCK_MONOTONIC` counts nanoseconds itself, so nothing has to be converted.
pub(crate) fn first() -> Option<Anchor> {
    let [ticks, monotonic_ns, unix_ns] = FIRST.each_ref().map(|part| part.load(Ordering::Relaxed));
    (is_counter() && ticks != 0).then_some(Anchor {
        ticks,
        monotonic_ns,
        unix_ns,
    })
}

/// Chooses the clock. Called once per process, before the first tick is stored.
pub(crate) fn choose() -> ClockKind {
    let is_counter = counter_is_even();
    look_for(Looks::Clock, !is_counter);
    // The ratio may have been measured with the other clock, so it must be measured again at the
    // next call.
    LOOKUP_IN.store(0, Ordering::Release);
    if is_counter {
        ClockKind::Counter
    } else {
        ClockKind::Monotonic
    }
}

/// Returns true if ticks are read from the processor's counter.
pub(crate) fn is_counter() -> bool {
    !looks_for(Looks::Clock)
}

/// Returns the current time in ticks.
#[inline]
pub fn ticks() -> u64 {
    if is_counter() { counter() } else { monotonic() }
}

/// Returns `CLOCK_MONOTONIC` in nanoseconds. It is a separate cold function, so that it is not inlined into
/// the code of each recorded call.
#[cold]
fn monotonic() -> u64 {
    nanoseconds(SystemClock::Monotonic)
}

/// Reads all clocks at (nearly) the same moment. Makes several attempts, and returns the times of the attempt that
/// took the least time.
pub(crate) fn anchor() -> Anchor {
    anchor_by(ticks)
}

fn anchor_by(ticks: impl Fn() -> u64) -> Anchor {
    const TRIES: usize = 4;
    let once = || {
        let before = ticks();
        let monotonic_ns = nanoseconds(SystemClock::Monotonic);
        let took = ticks().wrapping_sub(before);
        let anchor = Anchor {
            ticks: before.wrapping_add(took / 2),
            monotonic_ns,
            unix_ns: nanoseconds(SystemClock::Realtime),
        };
        (took, anchor)
    };
    let mut best = once();
    for _ in 1..TRIES {
        let next = once();
        if next.0 < best.0 {
            best = next;
        }
    }
    best.1
}

/// Returns ticks per nanosecond, measured over all the time since the library was loaded.
pub fn ticks_per_ns() -> f64 {
    tied().0
}

/// Returns the ticks per nanosecond, and the number of nanoseconds over which they were measured.
fn tied() -> (f64, u64) {
    let Some(first) = first() else {
        return (1.0, u64::MAX);
    };
    let now = anchor();
    let ticks = now.ticks.saturating_sub(first.ticks);
    let ns = now.monotonic_ns.saturating_sub(first.monotonic_ns);
    (ticks as f64 / ns.max(1) as f64, ns)
}

/// Returns the ticks per nanosecond like [`ticks_per_ns`], at almost no cost: the value may have been measured up to
/// [`LOOKUP_EVERY`] calls ago.
pub(crate) fn recent_ticks_per_ns() -> f64 {
    let left = LOOKUP_IN.load(Ordering::Acquire);
    if left == 0 {
        let (per_ns, known) = tied();
        RECENT.store(per_ns.to_bits(), Ordering::Relaxed);
        // A ratio measured over a short time is imprecise, so it is reused for fewer calls.
        let calls = LOOKUP_EVERY.min(known / SURE_NS);
        LOOKUP_IN.store(calls, Ordering::Release);
        return per_ns;
    }
    // If several threads store the number of remaining calls at the same time, only one of their calls is counted.
    // This does no harm: the stored ratio is used for a few more calls.
    LOOKUP_IN.store(left - 1, Ordering::Release);
    f64::from_bits(RECENT.load(Ordering::Relaxed))
}

/// Converts ticks to nanoseconds, using the recently measured ratio.
pub(crate) fn ns(ticks: u64) -> u64 {
    (ticks as f64 / recent_ticks_per_ns()) as u64
}

/// Returns milliseconds of `CLOCK_MONOTONIC`, with the resolution of the kernel's timer tick.
pub(crate) fn coarse_ms() -> u64 {
    nanoseconds(SystemClock::MonotonicCoarse) / 1_000_000
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: the processor has the instruction, and the process may use it (`counter_is_even`).
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn counter() -> u64 {
    let now: u64;
    // SAFETY: Linux lets every process read the virtual counter.
    unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) now, options(nomem, nostack)) };
    now
}

/// Returns true if the process may read the counter. `prctl(PR_SET_TSC)` can make the instruction fault, as
/// some debuggers do.
#[cfg(target_arch = "x86_64")]
fn may_read_counter() -> bool {
    let mut mode: libc::c_int = 0;
    let arguments = [libc::PR_GET_TSC as usize, (&raw mut mode).addr()];
    // SAFETY: writes only the mode to the local variable.
    let asked = unsafe { tllmprof_sync::kernel::call(libc::SYS_prctl, arguments) };
    asked == 0 && mode == libc::PR_TSC_ENABLE
}

#[cfg(target_arch = "aarch64")]
const fn may_read_counter() -> bool {
    true // Linux lets every process read the counter
}

/// Returns true if the process may read the counter and the counter runs at a constant rate, regardless of
/// the processor's frequency and sleep states.
#[cfg(target_arch = "x86_64")]
fn counter_is_even() -> bool {
    use tllmprof_platform::processor::cpuid;

    const POWER: u32 = 0x8000_0007;
    const INVARIANT: u32 = 1 << 8;
    /// The clock sources that Linux uses instead of the counter once it has found that the
    /// processors' counters differ.
    const OTHERS: [&[u8]; 4] = [b"hpet", b"acpi_pm", b"jiffies", b"refined-jiffies"];
    if !may_read_counter() {
        return false;
    }
    let is_invariant = cpuid(0x8000_0000, 0).eax >= POWER && cpuid(POWER, 0).edx & INVARIANT != 0;
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    is_invariant && std::fs::read(source).map_or(true, |name| !OTHERS.contains(&name.trim_ascii()))
}

#[cfg(target_arch = "aarch64")]
fn counter_is_even() -> bool {
    true // guaranteed by the architecture
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_clocks_of_an_anchor_are_of_one_moment() {
        let before = ticks();
        let anchor = anchor();
        assert!((before..=ticks()).contains(&anchor.ticks));
        let apart = nanoseconds(SystemClock::Realtime) - anchor.unix_ns;
        assert!(apart < 10_000_000_000, "{apart}");
        let ms = anchor.monotonic_ns / 1_000_000;
        assert!(coarse_ms().abs_diff(ms) < 10_000);
    }

    #[test]
    fn a_monotonic_clock_ticks_once_in_a_nanosecond() {
        if !is_counter() {
            assert_eq!(ticks_per_ns().to_bits(), 1.0_f64.to_bits());
            assert!(ticks().abs_diff(nanoseconds(SystemClock::Monotonic)) < 10_000_000_000);
        }
    }

    #[test]
    fn the_counter_is_chosen_where_it_is_even() {
        let kind = if counter_is_even() {
            ClockKind::Counter
        } else {
            ClockKind::Monotonic
        };
        // This test does not call `choose`, because other tests read ticks at the same time.
        assert!(!is_counter() || kind == ClockKind::Counter);
        assert!(kind == ClockKind::Monotonic || may_read_counter());
        let (first, second) = (counter(), counter());
        assert!(!counter_is_even() || first <= second);
    }
}
