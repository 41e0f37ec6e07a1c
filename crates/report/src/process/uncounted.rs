//! Text about the iterations that the report's figures leave out.

use crate::events::qualify::Unqualified;
use crate::process::Process;

impl Process {
    /// Returns text with the number of iterations that the report's figures leave out, and the reasons; `None` if the
    /// figures include all iterations.
    #[must_use]
    pub fn uncounted(&self) -> Option<String> {
        let condition = &self.facts.asked.condition;
        let said = self
            .others
            .unqualified
            .iter()
            .enumerate()
            .map(|(place, sum)| {
                let count = sum.iterations;
                let what = match (place, count) {
                    (0, 1) => " iteration",
                    (0, _) => " iterations",
                    _ => "",
                };
                match sum.why {
                    Unqualified::Where => format!("{count}{what} without {condition}"),
                    Unqualified::Unknown => format!("{count}{what} of an unknown batch"),
                    Unqualified::Idle => format!("{count} idle{what}"),
                    Unqualified::Draft => format!("{count}{what} of a draft model"),
                    Unqualified::Cut => format!("{count}{what} cut off"),
                }
            });
        let said: Vec<_> = said.collect();
        (!said.is_empty()).then(|| format!("left out: {}", said.join(", ")))
    }
}
