//! The report as text. It fits a screen of 80 columns, with 44 lines for one process.

use super::{Report, one, several};
use crate::findings::text::finding;
use crate::print::lines::{Lines, Style};

impl Report {
    /// Returns the report as plain text for a screen of the default size.
    #[must_use]
    pub fn text(&self) -> String {
        self.styled(Style::default())
    }

    /// Returns the report as text in the given style. The style depends on the output: a terminal,
    /// a pipe or a file.
    #[must_use]
    pub fn styled(&self, style: Style) -> String {
        let mut lines = Lines::new(style);
        match self.processes.as_slice() {
            [] => lines.add(format_args!("no record of a program: GPU metrics alone")),
            [process] => one::process(process, &self.findings, &mut lines),
            _ => several::processes(self, &mut lines),
        }
        lines.finish()
    }

    /// Returns the text of the finding with the identifier `id`; `None` if the report has no such
    /// finding.
    #[must_use]
    pub fn finding(&self, id: &str, style: Style) -> Option<String> {
        let found = self.findings.iter().find(|found| found.id == id)?;
        let mut lines = Lines::new(style);
        finding(found, &self.names, &mut lines);
        Some(lines.finish())
    }
}
