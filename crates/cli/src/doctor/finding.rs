//! What is found, and how it is shown.

use std::fmt;

use tllmprof_config::printable;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    Good,
    /// Worth knowing; it hinders nothing.
    Note,
    /// Something will not be intercepted, or the program will not start.
    Bad,
}

#[derive(Debug)]
pub struct Section {
    title: &'static str,
    findings: Vec<(Mark, String)>,
}

impl Section {
    pub const fn new(title: &'static str) -> Self {
        Self {
            title,
            findings: Vec::new(),
        }
    }

    pub fn good(&mut self, text: impl fmt::Display) {
        self.findings.push((Mark::Good, text.to_string()));
    }

    pub fn note(&mut self, text: impl fmt::Display) {
        self.findings.push((Mark::Note, text.to_string()));
    }

    pub fn bad(&mut self, text: impl fmt::Display) {
        self.findings.push((Mark::Bad, text.to_string()));
    }

    pub fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    pub fn is_bad(&self) -> bool {
        self.findings.iter().any(|(mark, _)| *mark == Mark::Bad)
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        for (mark, text) in &self.findings {
            let mark = match mark {
                Mark::Good => "ok",
                Mark::Note => "note",
                Mark::Bad => "NO",
            };
            // File names may hold anything; a line stays a line.
            writeln!(f, "  {mark:<6}{}", printable(text))?;
        }
        Ok(())
    }
}
