//! Lines that fit a screen.

use std::fmt;

use tllmprof_config::printable;

/// The width of a screen, and how many lines it has.
pub const WIDTH: usize = 80;
/// What follows the parts of a list that have room, where others have none.
const MORE: &str = ", …";
/// How far lines that go on are moved in, at most.
const INDENT: usize = 6;
pub const HEIGHT: usize = 44;

#[derive(Default)]
pub struct Lines(String);

impl Lines {
    /// Adds a line, printable and cut to the screen's width.
    pub fn add(&mut self, line: fmt::Arguments<'_>) {
        self.0.push_str(short(&line.to_string(), WIDTH).trim_end());
        self.0.push('\n');
    }

    /// Adds a line with as many of `parts`, separated by commas, as fit, under a heading.
    pub fn list(&mut self, heading: &str, parts: &[String]) {
        let mut line = heading.to_owned();
        for (place, part) in parts.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            let length = line.chars().count() + separator.len() + part.chars().count();
            if length > WIDTH && place > 0 {
                break;
            }
            line.push_str(separator);
            line.push_str(part);
        }
        self.add(format_args!("{line}"));
    }

    /// Adds as many of `parts`, separated by commas, as fit on so many lines under a heading.
    pub fn wrapped(&mut self, heading: &str, parts: &[String], most: usize) {
        let indent = " ".repeat(heading.chars().count().min(INDENT));
        let mut rest = parts;
        for turn in 0..most {
            let start = if turn == 0 { heading } else { &indent };
            let fits = |count: &usize| {
                let text = rest[..*count].iter().map(|part| part.chars().count() + 2);
                let more = match *count < rest.len() {
                    true if turn + 1 < most => 1,
                    true => MORE.chars().count(),
                    false => 0,
                };
                start.chars().count() + text.sum::<usize>() - 2 + more <= WIDTH
            };
            let count = (1..=rest.len()).take_while(fits).last();
            let count = match count {
                // The next line has more room.
                None if turn == 0
                    && most > 1
                    && heading.chars().count() > INDENT
                    && !rest.is_empty() =>
                {
                    self.add(format_args!("{start}"));
                    continue;
                }
                count => count.unwrap_or(1).min(rest.len()),
            };
            if count == 0 {
                break;
            }
            let (now, later) = rest.split_at(count);
            let comma = match later.is_empty() {
                true => "",
                false if turn + 1 < most => ",",
                false => MORE,
            };
            self.add(format_args!("{start}{}{comma}", now.join(", ")));
            rest = later;
        }
    }

    /// How many lines the screen has left.
    pub fn left(&self) -> usize {
        HEIGHT.saturating_sub(self.0.lines().count())
    }

    pub fn blank(&mut self) {
        self.0.push('\n');
    }

    pub fn finish(self) -> String {
        self.0
    }
}

/// A text as it may be shown, printable: the start of one that is longer than `width` characters.
pub fn short(text: &str, width: usize) -> String {
    let text = printable(text);
    match text.char_indices().nth(width) {
        None => text,
        Some(_) => {
            let kept: String = text.chars().take(width.saturating_sub(1)).collect();
            kept + "…"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_goes_on_on_the_next_line() {
        let mut lines = Lines::default();
        let parts: Vec<_> = (0..30).map(|n| format!("part {n}")).collect();
        lines.wrapped("all: ", &parts, 2);
        lines.wrapped("one: ", &parts[..1], 2);
        lines.wrapped("none: ", &[], 2);
        let text = lines.finish();
        let [first, second, one] = text.lines().collect::<Vec<_>>()[..] else {
            panic!("{text}");
        };
        assert!(
            first.starts_with("all: part 0, ") && first.ends_with("part 8,"),
            "{text}"
        );
        assert!(
            second.starts_with("     part 9, ") && second.ends_with("part 16, …"),
            "{text}"
        );
        assert_eq!(one, "one: part 0");
        assert!(text.lines().all(|line| line.len() <= WIDTH));
    }

    #[test]
    fn what_does_not_fit_is_cut() {
        assert_eq!(short("abc", 3), "abc");
        assert_eq!(short("äbcd", 3), "äb…");
        assert_eq!(short("\x1b[31m\u{202e}", 9), "\\u{1b}[3…");
        let mut lines = Lines::default();
        let parts: Vec<_> = (0..30).map(|n| format!("part {n}")).collect();
        lines.list("  ", &parts);
        let text = lines.finish();
        assert!(text.ends_with("part 9\n"), "{text}");
        assert!(text.len() <= WIDTH + 1);
    }
}
