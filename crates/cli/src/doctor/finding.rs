//! The findings of `doctor`, and how they are printed.

use std::fmt;

use tllmprof_config::printable;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    Good,
    /// The user may want to know this, but it is harmless.
    Note,
    /// Some calls will not be intercepted, or the program will not start.
    Bad,
}

#[derive(Debug)]
pub(crate) struct Section {
    title: &'static str,
    findings: Vec<(Mark, String)>,
}

impl Section {
    pub(crate) const fn new(title: &'static str) -> Self {
        Self {
            title,
            findings: Vec::new(),
        }
    }

    pub(crate) fn good(&mut self, text: impl fmt::Display) {
        self.findings.push((Mark::Good, text.to_string()));
    }

    pub(crate) fn note(&mut self, text: impl fmt::Display) {
        self.findings.push((Mark::Note, text.to_string()));
    }

    pub(crate) fn bad(&mut self, text: impl fmt::Display) {
        self.findings.push((Mark::Bad, text.to_string()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    pub(crate) fn is_bad(&self) -> bool {
        self.findings.iter().any(|(mark, _)| *mark == Mark::Bad)
    }

    /// Returns the section as text: its title, and a line for each finding.
    pub(crate) fn text(&self, is_coloured: bool) -> String {
        let coloured = |text: &str, code: u8| match is_coloured {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        };
        let mut lines = coloured(self.title, 1) + "\n";
        for (mark, text) in &self.findings {
            let mark = match mark {
                Mark::Good => coloured("ok    ", 32),
                Mark::Note => coloured("note  ", 33),
                Mark::Bad => coloured("NO    ", 31),
            };
            // File names may contain any character. `printable` escapes line breaks, so each
            // finding stays on one line.
            lines += &format!("  {mark}{}\n", printable(text));
        }
        lines
    }
}
