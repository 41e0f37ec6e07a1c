//! The parts of the ledger (time by cause) that findings may explain ("claim"). Each nanosecond of GPU idle time is in
//! one category, so findings on different categories do not claim the same nanosecond.

use std::collections::BTreeMap;

use super::claim::Claim;
use super::groups::Groups;
use super::host::Sums;
use super::keys::{HostCause, NATIVE, NameSources, PYTHON};
use super::split::CausePart;
use super::{Basis, LedgerKind, Paths};
use crate::events::iteration::part;
use crate::events::samples::ProducerShare;
use crate::numbers::units::Share;

/// Maximum number of causes that the text of a finding names.
pub(crate) const NAMED: usize = 2;

/// Times of the iterations, divided into the categories by which findings explain ("claim") them. Times are in
/// nanoseconds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Claims {
    /// The host's total time in the iterations, without the waits for requests that events of the record show. Waits
    /// that only stack samples show are included.
    pub host: u64,
    /// The host's time in calls that enqueue copies. Some of these calls wait for earlier work of the GPU.
    pub copies: u64,
    /// The part of `copies` that the ledger lists as waits for the GPU: the GPU was busy while a call copied to the
    /// host. 0 if it is not known when the GPU was busy.
    pub waits_in_copies: u64,
    /// Total time, without `waited`, of the iterations for which the GPU's idle times are known.
    pub gpu: u64,
    /// Time of waits for requests or other work in the iterations for which the GPU's idle times are known, with the
    /// ledger rows that contain this time.
    pub waited: Claimed,
    /// The part of `gpu` in which the host's thread was ready to run but had no processor. Waits for the GPU or the GIL
    /// are not included.
    pub delayed: u64,
    /// True if `idle` is a lower bound, because the GPU's work was not measured ([`Basis::Waits`]).
    pub idle_is_at_least: bool,
    /// The part of `gpu` in which the GPU was idle, by category.
    pub idle: BTreeMap<Claim, Claimed>,
    /// The part of `idle` in which the host ran short code around calls, by the category of these
    /// calls.
    pub short: BTreeMap<Claim, Claimed>,
    /// The host's time by category, both while the GPU was busy and while it was idle.
    pub ran: BTreeMap<Claim, Claimed>,
    /// The names of causes in which the host waits for a producer (another thread or a child process that prepares its
    /// input). Each has the share of the samples of these waits at which the producer was at work.
    pub producers: Vec<(String, ProducerShare)>,
    /// The functions in which the host's code spends its time, according to samples.
    pub code_in: Paths,
    /// The functions that make the calls which load or compile code, according to samples.
    pub compiling_in: Paths,
}

/// An amount of time that a finding may explain ("claim"); usually idle time of the GPU.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Claimed {
    pub ns: u64,
    /// Causes of the ledger rows that contain the time, with the time in each row in nanoseconds.
    pub rows: Vec<(String, u64)>,
}

impl Claims {
    /// Returns the share of the time `gpu` in which the GPU is idle during the host activity of this category, as a
    /// fraction; 0 if it is not known.
    pub fn share(&self, claim: Claim) -> f64 {
        self.share_of(self.ns(claim))
    }

    /// Returns the time in which the GPU is idle during the host activity of this category, in
    /// nanoseconds.
    pub fn ns(&self, claim: Claim) -> u64 {
        self.idle.get(&claim).map_or(0, |claimed| claimed.ns)
    }

    /// Returns the ledger rows that contain the idle time of some categories, each with its part of
    /// that time. The row with the most time comes first.
    pub fn rows(&self, claims: &[Claim]) -> Vec<(String, u64)> {
        self.idle_in(claims).rows
    }

    /// Returns the idle time of some categories together, with the ledger rows that contain it. The row with the most
    /// time comes first.
    pub fn idle_in(&self, claims: &[Claim]) -> Claimed {
        Claimed::sum(claims.iter().filter_map(|claim| self.idle.get(claim)))
    }

    /// Returns the host's time of a category, with the ledger rows that contain it. The row with the most time comes
    /// first.
    pub fn ran_in(&self, claim: Claim) -> Claimed {
        Claimed::sum(self.ran.get(&claim).into_iter())
    }

    /// Returns the GPU's idle time while the host runs code outside CUDA calls. Short code around calls is included
    /// only for the calls of the categories `around`.
    pub fn code_and_short(&self, around: &[Claim]) -> Claimed {
        let short = around.iter().filter_map(|claim| self.short.get(claim));
        Claimed::sum(self.idle.get(&Claim::Code).into_iter().chain(short))
    }

    /// Returns words for the function that takes more than half of the idle time of some categories. The words
    /// include the function's idle time as a share of the iterations' time. Empty if samples show no such function.
    pub fn mostly_in(&self, claims: &[Claim]) -> String {
        let rows = self.rows(claims);
        let all: u64 = rows.iter().map(|(_, ns)| ns).sum();
        let function = rows.first().and_then(|(cause, ns)| {
            let python = cause.strip_prefix(PYTHON);
            Some((python.or_else(|| cause.strip_prefix(NATIVE))?, *ns))
        });
        match function {
            Some((name, ns)) if ns * 2 > all => {
                format!("; mostly in {name} ({})", Share(self.share_of(ns)))
            }
            _ => String::new(),
        }
    }

    /// Returns words that come before a share of the GPU's idle time: "at least " if that is a lower bound, otherwise
    /// none.
    pub fn at_least(&self) -> &'static str {
        match self.idle_is_at_least {
            true => "at least ",
            false => "",
        }
    }

    /// Returns the share of the host's time in calls that enqueue copies, including their waits for the GPU, as a
    /// fraction.
    pub fn copying(&self) -> f64 {
        self.copies as f64 / self.host.max(1) as f64
    }

    /// Returns the same share as [`Self::copying`], without the time in which the calls are known to wait for the GPU.
    pub fn copying_without_waits(&self) -> f64 {
        let copies = self.copies.saturating_sub(self.waits_in_copies);
        copies as f64 / self.host.max(1) as f64
    }

    /// Returns the categories that have any idle time.
    pub fn claimed(&self) -> Vec<Claim> {
        self.idle.keys().copied().collect()
    }

    /// Returns the total idle time of the GPU in nanoseconds.
    pub fn idle(&self) -> u64 {
        self.idle.values().map(|claimed| claimed.ns).sum()
    }

    /// Scales the idle times down so that their total is at most `known`, which is the GPU's idle time in nanoseconds
    /// according to the GPU's ledger.
    fn fit(&mut self, known: u64) {
        let found = self.idle();
        if found <= known {
            return;
        }
        let claimed = self.idle.values_mut().chain(self.short.values_mut());
        for Claimed { ns, rows } in claimed {
            *ns = part(*ns, known, found);
            rows.iter_mut()
                .for_each(|(_, ns)| *ns = part(*ns, known, found));
        }
    }

    /// Returns a time as a fraction of all time, including waits for requests and other work.
    pub fn of_all(&self, ns: u64) -> f64 {
        ns as f64 / (self.gpu + self.waited.ns).max(1) as f64
    }

    /// Returns a time as a fraction of `gpu`, the time of iterations without waits for requests or
    /// other work.
    pub fn share_of(&self, ns: u64) -> f64 {
        ns as f64 / self.gpu.max(1) as f64
    }
}

impl Claimed {
    /// Returns the sum of several times. In the result, the row with the most time comes first.
    fn sum<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for claimed in all {
            let rows = claimed.rows.iter().cloned();
            rows.for_each(|(cause, ns)| sum.add(cause, ns));
        }
        sum.sorted()
    }

    fn add(&mut self, cause: String, ns: u64) {
        self.ns += ns;
        match self.rows.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, known)) => *known += ns,
            None => self.rows.push((cause, ns)),
        }
    }

    fn sorted(mut self) -> Self {
        let rows = &mut self.rows;
        rows.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        self
    }
}

/// Returns the category of the GPU's idle time during `part`. Samples may divide the time of a cause (`whole`) into
/// parts that each have their own cause (`cause`). Short code around calls has the category of these calls, even if
/// samples show the functions in it.
fn claim(part: CausePart, named: NameSources<'_>) -> Claim {
    match part.whole {
        whole @ HostCause::Short(..) => named.claim(whole),
        _ => named.claim(part.cause),
    }
}

impl Groups {
    /// Returns the time that findings may explain ("claim"), over all windows.
    pub(crate) fn claims(&self, sums: &Sums, named: NameSources<'_>) -> Claims {
        let mut claims = Claims::default();
        for (spent, times) in self.times(&self.hosts(None), sums) {
            match named.cause(spent).0 {
                LedgerKind::Requests => continue,
                LedgerKind::Copy => claims.copies += times.all,
                _ if matches!(spent, HostCause::CopyToHost(_)) => {
                    claims.copies += times.all;
                    claims.waits_in_copies += times.all;
                }
                _ => (),
            }
            claims.host += times.all;
        }
        let of_gpu = self.of_gpu(None);
        for part in self.parts(&of_gpu, sums, named) {
            let CausePart { cause, times, .. } = part;
            let claim = claim(part, named);
            if claim == Claim::Requests {
                claims.waited.add(named.cause(cause).1, times.all);
                continue;
            }
            claims.gpu += times.all;
            if claim == Claim::Delayed {
                claims.delayed += times.all;
            }
            if times.idle == 0 {
                continue;
            }
            let cause = named.cause(cause).1;
            if matches!(part.whole, HostCause::Short(..)) {
                let short = claims.short.entry(claim).or_default();
                short.add(cause.clone(), times.idle);
            }
            claims.idle.entry(claim).or_default().add(cause, times.idle);
        }
        for part in self.parts(&self.hosts(None), sums, named) {
            let ran = claims.ran.entry(claim(part, named)).or_default();
            ran.add(named.cause(part.cause).1, part.times.all);
        }
        claims.waited = claims.waited.sorted();
        claims.fit(self.idle_of(&of_gpu, sums, named));
        claims.idle_is_at_least = self.basis() == Basis::Waits;
        let sleeps = named.frames.sleeps.iter();
        let producers = sleeps.filter_map(|sleep| Some((sleep.cause.clone(), sleep.producer?)));
        claims.producers = producers.collect();
        claims.code_in = sums.paths(&of_gpu, |spent| named.is_code(spent), named);
        let compiles = |spent| named.claim(spent) == Claim::Compilation;
        claims.compiling_in = sums.paths(&self.hosts(None), compiles, named);
        claims
    }
}
