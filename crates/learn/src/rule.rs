//! What was chosen, and the words for it.

use core::fmt;

use crate::call::{SiteCall, token};
use crate::site::{Keys, REACH};
use crate::trail::{DEPTH, Threads};

/// The site at which iterations end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rule {
    /// None before anything was chosen.
    pub(crate) call: Option<SiteCall>,
    pub(crate) level: u8,
    pub(crate) key: u32,
    /// Threads that launch nothing themselves make the call.
    pub(crate) helper: bool,
    /// The thread that launches most, of those that are followed and wait.
    pub(crate) thread: u8,
    /// The threads whose launches are followed.
    pub(crate) threads: Threads,
    /// Other threads that launch a good part of what the followed one does.
    pub(crate) others: u8,
    /// The threads that did when the rule was chosen, as bits: none of them takes over.
    pub(crate) rivals: u64,
    /// Work between occurrences, in launches; a graph weighs many.
    pub(crate) median: u32,
    /// The same of the longest period.
    pub(crate) longest: u32,
    /// Waits and copies in an iteration, in tenths.
    pub(crate) waits: u32,
    pub(crate) periods: u32,
    pub(crate) agreeing: u32,
    /// Occurrences in an iteration besides the one that ends it; 0 but where an iteration has equal parts.
    pub(crate) more_parts: u32,
    /// The thread's last calls before the site, the latest first.
    pub(crate) context: [u64; DEPTH],
}

impl Rule {
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
        context: [0; DEPTH],
    };

    /// Whether an entry with these keys is an occurrence.
    pub(crate) fn matches(&self, call: SiteCall, helper: bool, keys: &Keys) -> bool {
        Some(call) == self.call
            && helper == self.helper
            && keys.get(self.level as usize) == Some(&self.key)
    }

    /// Occurrences of the site in an iteration.
    pub(crate) const fn parts(&self) -> u32 {
        self.more_parts + 1
    }

    /// The thread whose launches are followed; where they are several, the one of them that
    /// launches most and waits.
    #[must_use]
    pub fn thread(&self) -> u32 {
        u32::from(self.thread)
    }

    /// How many other threads launch as well, as further engines in the process do.
    #[must_use]
    pub fn other_engines(&self) -> u32 {
        u32::from(self.others)
    }

    /// Writes the rule, with the kernels named by `kernel`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn describe(
        &self,
        out: &mut impl fmt::Write,
        kernel: impl Fn(&mut dyn fmt::Write, u64) -> fmt::Result,
    ) -> fmt::Result {
        write!(out, "the {}", self.call.map_or("wait", SiteCall::words))?;
        if self.helper {
            out.write_str(" on another thread than the launches'")?;
        }
        let reach = REACH.get(self.level as usize).copied().unwrap_or(0);
        if reach > 0 && !self.helper {
            out.write_str(" after ")?;
            for (n, token) in self.context.iter().take(reach.min(3)).rev().enumerate() {
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
        }
        if self.more_parts > 0 {
            write!(out, ", {} in each", self.parts())?;
        }
        let (whole, tenth) = (self.waits / 10, self.waits % 10);
        let (agreeing, periods) = (self.agreeing, self.periods);
        write!(out, " (once every {whole}")?;
        if tenth != 0 {
            write!(out, ".{tenth}")?;
        }
        let plural = if self.waits == 10 { "wait" } else { "waits" };
        write!(out, " {plural}, {agreeing} of {periods} periods agree)")
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f, |out, handle| write!(out, "{handle:#x}"))
    }
}
