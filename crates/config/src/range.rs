//! The setting `TLLMPROF_START_STOP`, the windows of iterations: `A-B`, `N`, `A-`, `all`, and comma-separated lists of
//! these; also `auto`, `steady`, `steady:N` and `none`.

use std::fmt;

use crate::error::{Problem, quoted};
use crate::number;

/// One window of iterations. Both ends are inclusive, and iterations count from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IterationRange {
    pub first: u64,
    /// The last iteration of the window. `None` means that the window lasts until the process ends.
    pub last: Option<u64>,
}

impl IterationRange {
    pub const fn contains(&self, iteration: u64) -> bool {
        match self.last {
            Some(last) => self.first <= iteration && iteration <= last,
            None => self.first <= iteration,
        }
    }

    /// Returns true if at least one iteration is in both windows.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first) || other.contains(self.first)
    }

    fn parse(text: &str, wanted: &str) -> Result<Self, Problem> {
        let text = text.trim();
        if text.is_empty() {
            return Err(Problem::new("an item of the list is empty", wanted));
        }
        if text.eq_ignore_ascii_case("all") {
            return Ok(Self {
                first: 0,
                last: None,
            });
        }
        // An en dash is also accepted in a range, because the documentation uses en dashes in ranges.
        let is_dash = |c| matches!(c, '-' | '–');
        let Some((first, last)) = text.split_once(is_dash) else {
            let only = number::parse(text, wanted)?;
            return Ok(Self {
                first: only,
                last: Some(only),
            });
        };
        if first.trim().is_empty() {
            return Err(Problem::new(
                format!("{} has no start: numbers start at 0", quoted(text)),
                wanted,
            ));
        }
        if last.contains(is_dash) {
            return Err(Problem::new(
                format!("{} has more than two ends", quoted(text)),
                wanted,
            ));
        }
        let first = number::parse(first, wanted)?;
        if last.trim().is_empty() {
            return Ok(Self { first, last: None });
        }
        let last = number::parse(last, wanted)?;
        if last < first {
            let problem = format!("{} ends before it starts", quoted(text));
            return Err(Problem::new(problem, wanted));
        }
        Ok(Self {
            first,
            last: Some(last),
        })
    }

    /// Returns true if `next` overlaps this window or starts right after this window. `next` must not start before this
    /// window.
    fn reaches(&self, next: &Self) -> bool {
        self.last
            .is_none_or(|last| next.first <= last.saturating_add(1))
    }
}

impl fmt::Display for IterationRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (0, None) => f.write_str("all"),
            (first, None) => write!(f, "{first}-"),
            (first, Some(last)) if first == last => write!(f, "{first}"),
            (first, Some(last)) => write!(f, "{first}-{last}"),
        }
    }
}

/// Default number of iterations of a steady window, that is, a window that starts once iteration times have settled.
const STEADY: u64 = 50;

/// A list of windows in ascending order, with at least one iteration between two windows.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct WindowList {
    list: Vec<IterationRange>,
    /// True if the list has a single window, which starts only once iteration times have settled. The window's `first`
    /// is then 0.
    is_steady: bool,
}

impl WindowList {
    pub const WANTED: &str =
        "A-B, N, A- or all, or a comma list of them; or auto, steady, steady:N or none";

    /// Parses a value of `TLLMPROF_START_STOP`.
    ///
    /// # Errors
    /// Returns an error if the text does not follow the grammar, a range is reversed, or a number exceeds
    /// `u64::MAX`.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let (word, count) = match text.split_once(':') {
            Some((word, count)) => (word.trim(), Some(count)),
            None => (text.trim(), None),
        };
        if word.eq_ignore_ascii_case("steady") {
            let count = count.map_or(Ok(STEADY), |count| number::parse(count, Self::WANTED))?;
            return Self::steady(count)
                .ok_or_else(|| Problem::new("a window has at least 1 iteration", Self::WANTED));
        }
        match count {
            None if word.eq_ignore_ascii_case("none") => Ok(Self::default()),
            None if word.eq_ignore_ascii_case("auto") => Ok(Self::settled(None)),
            _ => Self::parse_as(text, Self::WANTED),
        }
    }

    /// Returns a window of `count` iterations that starts once iteration times have settled. Returns `None` if
    /// `count` is 0.
    fn steady(count: u64) -> Option<Self> {
        Some(Self::settled(Some(count.checked_sub(1)?)))
    }

    fn settled(last: Option<u64>) -> Self {
        Self {
            list: vec![IterationRange { first: 0, last }],
            is_steady: true,
        }
    }

    /// Parses a list of numbers and ranges. This function also serves other settings, such as ranks; `wanted` is the
    /// description of valid values for errors.
    pub(crate) fn parse_as(text: &str, wanted: &str) -> Result<Self, Problem> {
        if text.trim().is_empty() {
            return Err(Problem::new("it is empty", wanted));
        }
        let mut windows = text
            .split(',')
            .map(|item| IterationRange::parse(item, wanted))
            .collect::<Result<Vec<_>, _>>()?;
        windows.sort_unstable_by_key(|window| window.first);
        let mut merged: Vec<IterationRange> = Vec::with_capacity(windows.len());
        for window in windows {
            match merged.last_mut() {
                Some(before) if before.reaches(&window) => {
                    before.last = before.last.zip(window.last).map(|(a, b)| a.max(b));
                }
                _ => merged.push(window),
            }
        }
        Ok(Self {
            list: merged,
            is_steady: false,
        })
    }

    pub fn as_slice(&self) -> &[IterationRange] {
        &self.list
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// If the list is a single window that starts once iteration times have settled and has a fixed length, returns the
    /// number of iterations in that window. Returns `None` for any other list.
    pub fn steady_iterations(&self) -> Option<u64> {
        let last = self.list.first()?.last?;
        self.is_steady.then(|| last.saturating_add(1))
    }

    /// Returns true if the list is a single window that starts once iteration times have settled.
    pub const fn is_steady(&self) -> bool {
        self.is_steady
    }

    /// Returns true if the list has windows of given iteration numbers.
    pub fn is_numbered(&self) -> bool {
        !self.is_empty() && !self.is_steady
    }

    /// Returns true if the list is a single window that starts once iteration times have settled, and that lasts until
    /// it has enough iterations for its statistics.
    pub fn is_auto(&self) -> bool {
        self.is_steady && self.steady_iterations().is_none()
    }

    pub fn contains(&self, iteration: u64) -> bool {
        self.list.iter().any(|window| window.contains(iteration))
    }
}

impl fmt::Display for WindowList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(count) = self.steady_iterations() {
            return write!(f, "steady:{count}");
        }
        if self.is_auto() {
            return f.write_str("auto");
        }
        for (k, window) in self.list.iter().enumerate() {
            if k > 0 {
                f.write_str(",")?;
            }
            write!(f, "{window}")?;
        }
        Ok(())
    }
}

/// Windows as one line of text: the first [`LISTED`] windows, and the total number if there are more windows.
pub struct Listed<I>(pub I);

/// Maximum number of windows that [`Listed`] shows.
const LISTED: usize = 8;

impl<I: Iterator<Item = IterationRange> + Clone> fmt::Display for Listed<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut windows = self.0.clone();
        for (place, window) in windows.by_ref().take(LISTED).enumerate() {
            let separator = if place == 0 { "" } else { "," };
            write!(f, "{separator}{window}")?;
        }
        match windows.count() {
            0 => Ok(()),
            more => write!(f, ",… ({} in all)", LISTED + more),
        }
    }
}

impl WindowList {
    /// Returns the windows as one line of text, for messages.
    pub fn listed(&self) -> Listed<impl Iterator<Item = IterationRange> + Clone> {
        Listed(self.list.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(text: &str) -> String {
        WindowList::parse(text)
            .unwrap_or_else(|e| panic!("{text:?}: {e}"))
            .to_string()
    }

    #[test]
    fn a_line_names_some() {
        let listed = |text: &str| WindowList::parse(text).unwrap().listed().to_string();
        assert_eq!(listed("2-3,7,30-"), "2-3,7,30-");
        assert_eq!(listed("0,2,4,6,8,10,12,14"), "0,2,4,6,8,10,12,14");
        let all: Vec<_> = (0..20_000).map(|n| (2 * n).to_string()).collect();
        assert_eq!(
            listed(&all.join(",")),
            "0,2,4,6,8,10,12,14,… (20000 in all)"
        );
    }

    #[test]
    fn every_form() {
        for same in ["5-9", "7", "30-", "all", "2-3,7,30-", "0", "0-0,2"] {
            assert_eq!(normal(same), same.replace("0-0", "0"));
        }
        assert_eq!(normal("0-"), "all");
        assert_eq!(normal(" 100 - 150 , 7 ,\t30 - "), "7,30-");
        assert_eq!(normal("ALL"), "all");
        assert_eq!(normal("5–9,30–"), "5-9,30-");
    }

    #[test]
    fn steady_iterations_are_so_many_and_none_is_no_window() {
        for (text, count) in [("steady", 50), (" Steady : 7 ", 7), ("steady:1", 1)] {
            let windows = WindowList::parse(text).unwrap();
            assert_eq!(windows.steady_iterations(), Some(count));
            assert_eq!(windows.as_slice().len(), 1);
            assert_eq!(windows.to_string(), format!("steady:{count}"));
            assert_eq!(WindowList::parse(&windows.to_string()).unwrap(), windows);
        }
        let auto = WindowList::parse(" Auto ").unwrap();
        assert!(auto.is_auto() && auto.is_steady() && auto.steady_iterations().is_none());
        assert_eq!(auto.to_string(), "auto");
        let all = WindowList::parse("all").unwrap();
        assert!(!all.is_auto() && all.to_string() == "all");
        assert_eq!(WindowList::parse("5-9").unwrap().steady_iterations(), None);
        for none in ["none", " None "] {
            assert_eq!(WindowList::parse(none).unwrap(), WindowList::default());
        }
        for (text, problem) in [
            ("steady:0", "a window has at least 1 iteration"),
            ("steady:", "a number is missing"),
            ("steady:x", "\"x\" is not a number"),
            ("steady,7", "\"steady\" is not a number"),
            ("5-9,none", "\"none\" is not a number"),
            ("none:5", "\"none:5\" is not a number"),
            ("auto:5", "\"auto:5\" is not a number"),
            ("5-9,auto", "\"auto\" is not a number"),
        ] {
            let error = WindowList::parse(text).expect_err(text);
            assert_eq!(error.problem, problem, "{text}");
        }
        assert!(WindowList::parse_as("steady", "ranks").is_err());
    }

    #[test]
    fn touching_and_overlapping_are_one() {
        assert_eq!(normal("5-9,10-12"), "5-12");
        assert_eq!(normal("10-12,5-9"), "5-12");
        assert_eq!(normal("5-9,11-12"), "5-9,11-12");
        assert_eq!(normal("1-100,5-9,50"), "1-100");
        assert_eq!(normal("30-,40-50,29"), "29-");
        assert_eq!(normal("3,all,7-9"), "all");
        assert_eq!(normal("7,7,7"), "7");
    }

    #[test]
    fn ends_at_the_largest_number() {
        let max = u64::MAX;
        assert_eq!(normal(&format!("{max}")), format!("{max}"));
        assert_eq!(normal(&format!("{max}-")), format!("{max}-"));
        assert_eq!(normal(&format!("3-{max},{max}")), format!("3-{max}"));
        assert_eq!(normal(&format!("3-{max},5-")), "3-");
        assert!(WindowList::parse("18446744073709551616").is_err());
        assert!(WindowList::parse("1-99999999999999999999999").is_err());
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, problem) in [
            ("", "it is empty"),
            ("  ", "it is empty"),
            (",", "an item of the list is empty"),
            ("5,", "an item of the list is empty"),
            ("9-5", "\"9-5\" ends before it starts"),
            ("-3", "\"-3\" has no start: numbers start at 0"),
            ("-", "\"-\" has no start: numbers start at 0"),
            ("5-9-12", "\"5-9-12\" has more than two ends"),
            ("5--9", "\"5--9\" has more than two ends"),
            ("5 9", "\"5 9\" is not a number"),
            ("+5", "\"+5\" is not a number"),
            ("a-b", "\"a\" is not a number"),
            ("5–-9", "\"5–-9\" has more than two ends"),
            ("5—9", "\"5—9\" is not a number"),
            ("1-2\n,x\ny", "\"x\\ny\" is not a number"),
            (
                "18446744073709551616",
                "\"18446744073709551616\" is over 18446744073709551615",
            ),
        ] {
            let error = WindowList::parse(text).expect_err(text);
            assert_eq!(error.problem, problem);
            assert_eq!(error.wanted, WindowList::WANTED);
        }
    }

    #[test]
    fn contains_both_ends() {
        let windows = WindowList::parse("2-3,7,30-").unwrap();
        let inside: Vec<u64> = (0..33).filter(|n| windows.contains(*n)).collect();
        assert_eq!(inside, [2, 3, 7, 30, 31, 32]);
    }
}
