//! The rule for iterations that the learner has chosen, and its description in words.

use core::fmt;

use crate::call::{SiteCall, token};
use crate::site::{Keys, REACH};
use crate::trail::{DEPTH, ThreadLaunches, Threads};

/// The rule for iterations: the call site (a wait or a copy) at which iterations end, or the launch with which
/// iterations begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LearnedRule {
    /// The type of the call at the call site that ends iterations. `None` before a call site is
    /// chosen, and if iterations begin with a launch.
    pub(crate) call: Option<SiteCall>,
    pub(crate) level: u8,
    pub(crate) key: u32,
    /// True if helper threads make the call at the call site. Helper threads launch nothing
    /// themselves.
    pub(crate) helper: bool,
    /// The thread that launches most work, among the followed threads (`threads`) that wait for the GPU.
    pub(crate) thread: u8,
    /// The followed threads: those that launch for the loop of the rule.
    pub(crate) threads: Threads,
    /// Number of threads outside the engine (the followed threads) that launch at least half as much as
    /// `thread`.
    pub(crate) others: u8,
    /// Bit set of threads outside the engine (the followed threads) that launched more than a sixteenth as much as
    /// `thread` when the rule was chosen or last confirmed. These threads must not join the followed threads.
    pub(crate) rivals: u64,
    /// Median work of an interval between two occurrences of the call site, in launches. The interval is an iteration,
    /// or one of its equal parts (see `more_parts`). A graph counts as 32 launches (`GRAPH_WEIGHT`).
    pub(crate) median: u32,
    /// Work of the longest interval between two occurrences of the call site, in launches.
    pub(crate) longest: u32,
    /// Mean number of waits and copies per occurrence of the call site, in tenths.
    pub(crate) waits: u32,
    pub(crate) periods: u32,
    pub(crate) agreeing: u32,
    /// Number of equal parts in an iteration, minus one; 0 if an iteration has no equal parts. The call site occurs
    /// at the end of each part.
    pub(crate) more_parts: u32,
    /// The work of an iteration that begins with a launch and does not end with a wait; `None` for an
    /// iteration that ends at a call site.
    pub(crate) period: Option<ThreadLaunches>,
    /// The calls just before the call site, on the thread that made the call there, the latest first. For a rule with a
    /// `period`, the launches with which an iteration begins, also the latest first.
    pub(crate) context: [u64; DEPTH],
}

impl LearnedRule {
    pub(crate) const NONE: Self = Self {
        call: None,
        level: 0,
        key: 0,
        helper: false,
        thread: 0,
        threads: 0,
        others: 0,
        rivals: 0,
        median: 0,
        longest: 0,
        waits: 0,
        periods: 0,
        agreeing: 0,
        more_parts: 0,
        period: None,
        context: [0; DEPTH],
    };

    /// Returns true if a call with these keys (hashes of the call and its preceding calls) is an occurrence of the call
    /// site.
    pub(crate) fn matches(&self, call: SiteCall, helper: bool, keys: &Keys) -> bool {
        Some(call) == self.call
            && helper == self.helper
            && keys.get(self.level as usize) == Some(&self.key)
    }

    /// Returns the number of occurrences of the call site per iteration.
    pub(crate) const fn parts(&self) -> u32 {
        self.more_parts + 1
    }

    /// Returns true if iterations begin with a launch and do not end with a wait.
    #[must_use]
    pub const fn is_pass(&self) -> bool {
        self.period.is_some()
    }

    /// Returns a number that two rules have in common if they end iterations at the same place.
    #[must_use]
    pub const fn place(&self) -> u64 {
        (self.more_parts as u64) << 40 | (self.level as u64) << 32 | self.key as u64
    }

    /// Returns the thread that launches for the loop of the rule. If several threads do, returns the one that launches
    /// most work, among those of them that wait for the GPU.
    #[must_use]
    pub fn thread(&self) -> u32 {
        u32::from(self.thread)
    }

    /// Returns the number of threads outside the engine (the followed threads) that launch at least half as much as the
    /// thread that [`thread`](Self::thread) returns. Such threads may belong to further engines in the process.
    #[must_use]
    pub fn other_engines(&self) -> u32 {
        u32::from(self.others)
    }

    /// Writes a description of the rule to `out`. The function `kernel` gets a kernel's handle and writes the kernel's
    /// name.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn describe(
        &self,
        out: &mut impl fmt::Write,
        kernel: impl Fn(&mut dyn fmt::Write, u64) -> fmt::Result,
    ) -> fmt::Result {
        match self.period {
            Some(period) => self.describe_launch(out, period, &kernel)?,
            None => self.describe_site(out, &kernel)?,
        }
        if self.more_parts > 0 {
            write!(out, ", {} in each", self.parts())?;
        }
        out.write_str(" (once every ")?;
        match self.period {
            Some(period) => write_tenths(
                out,
                period.launches.saturating_add(period.graphs) * 10,
                "launch",
                "launches",
            )?,
            None => write_tenths(out, self.waits, "wait", "waits")?,
        }
        write!(
            out,
            ", {} of {} periods agree)",
            self.agreeing, self.periods
        )
    }

    fn describe_site(&self, out: &mut impl fmt::Write, kernel: &impl WriteKernel) -> fmt::Result {
        write!(out, "the {}", self.call.map_or("wait", SiteCall::words))?;
        if self.helper {
            out.write_str(" on another thread than the launches'")?;
        }
        let reach = REACH.get(self.level as usize).copied().unwrap_or(0);
        if reach > 0 && !self.helper {
            out.write_str(" after ")?;
            let context = self.context.iter().take(reach.min(MAX_NAMED_CALLS)).rev();
            write_tokens(out, context, kernel)?;
        }
        Ok(())
    }

    fn describe_launch(
        &self,
        out: &mut impl fmt::Write,
        period: ThreadLaunches,
        kernel: &impl WriteKernel,
    ) -> fmt::Result {
        let [launch, before @ ..] = &self.context;
        out.write_str("the launch of ")?;
        write_tokens(out, [launch].into_iter(), kernel)?;
        let others = period
            .launches
            .saturating_add(period.graphs)
            .saturating_sub(1) as usize;
        if others > 0 {
            out.write_str(" after ")?;
            let before = before.iter().take(others.min(MAX_NAMED_CALLS - 1)).rev();
            write_tokens(out, before, kernel)?;
        }
        Ok(())
    }
}

/// Maximum number of calls that a description names from `context`: the calls before a call site, or the launch that
/// begins an iteration and the launches before it.
const MAX_NAMED_CALLS: usize = 3;

/// A function that gets a kernel's handle and writes the kernel's name.
trait WriteKernel: Fn(&mut dyn fmt::Write, u64) -> fmt::Result {}
impl<F: Fn(&mut dyn fmt::Write, u64) -> fmt::Result> WriteKernel for F {}

fn write_tokens<'a>(
    out: &mut impl fmt::Write,
    tokens: impl Iterator<Item = &'a u64>,
    kernel: &impl WriteKernel,
) -> fmt::Result {
    for (n, token) in tokens.enumerate() {
        if n > 0 {
            out.write_str(", ")?;
        }
        match *token {
            0 => out.write_str("nothing")?,
            token::GRAPH => out.write_str("a graph")?,
            token::COPY_TO_HOST => out.write_str("a device-to-host copy")?,
            token::COPY_TO_DEVICE => out.write_str("a host-to-device copy")?,
            small if small < 16 => out.write_str("a wait")?,
            handle => {
                out.write_str("kernel ")?;
                kernel(out, handle)?;
            }
        }
    }
    Ok(())
}

/// Writes a number given in tenths, followed by its unit: `one` if the number is 1, otherwise `many`.
fn write_tenths(out: &mut impl fmt::Write, tenths: u32, one: &str, many: &str) -> fmt::Result {
    write!(out, "{}", tenths / 10)?;
    if !tenths.is_multiple_of(10) {
        write!(out, ".{}", tenths % 10)?;
    }
    write!(out, " {}", if tenths == 10 { one } else { many })
}

impl fmt::Display for LearnedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f, |out, handle| write!(out, "{handle:#x}"))
    }
}
