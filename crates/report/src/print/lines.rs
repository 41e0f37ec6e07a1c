//! Lines that fit a screen.

use std::fmt;

use tllmprof_config::printable;

/// The width of a screen, and how many lines it has.
pub const WIDTH: usize = 80;
/// What follows the parts of a list that have room, where others have none.
const MORE: &str = ", …";
/// How far lines that go on are moved in, at most.
const INDENT: usize = 6;
const RESET: &str = "\x1b[0m";
pub const HEIGHT: usize = 44;

/// What stands for a figure that is not known.
pub const UNKNOWN: &str = "–";

/// How a text is shown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Style {
    /// Names and lines that are too long for a screen are not cut, as for a pipe or a file.
    pub is_whole: bool,
    /// Headings and verdicts have colours of a terminal.
    pub is_coloured: bool,
}

/// What a text on a terminal stands out by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Colour {
    Bold,
    Good,
    Bad,
}

#[derive(Default)]
pub struct Lines {
    text: String,
    style: Style,
}

impl Lines {
    pub fn new(style: Style) -> Self {
        let text = String::new();
        Self { text, style }
    }

    /// Adds a line, printable and cut to the screen's width.
    pub fn add(&mut self, line: fmt::Arguments<'_>) {
        let line = self.name(&line.to_string(), WIDTH);
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Adds a line whose first `length` bytes have a colour, if they end a character.
    pub fn coloured(&mut self, line: &str, length: usize, colour: Colour) {
        let from = self.text.len();
        self.add(format_args!("{line}"));
        let end = from + length;
        if self.style.is_coloured && self.text.is_char_boundary(end) && end < self.text.len() {
            self.text.insert_str(end, RESET);
            self.text.insert_str(from, colour.start());
        }
    }

    /// Adds a line that is a heading.
    pub fn heading(&mut self, line: fmt::Arguments<'_>) {
        let line = line.to_string();
        let length = self.name(&line, WIDTH).trim_end().len();
        self.coloured(&line, length, Colour::Bold);
    }

    /// A name as it may be shown: its start, where it is longer than `width` characters and has to fit.
    pub fn name(&self, text: &str, width: usize) -> String {
        match self.style.is_whole {
            true => printable(text),
            false => short(text, width),
        }
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
        HEIGHT.saturating_sub(self.text.lines().count())
    }

    pub fn blank(&mut self) {
        self.text.push('\n');
    }

    pub fn finish(self) -> String {
        self.text
    }
}

impl Colour {
    const fn start(self) -> &'static str {
        match self {
            Self::Bold => "\x1b[1m",
            Self::Good => "\x1b[32m",
            Self::Bad => "\x1b[31m",
        }
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

    #[test]
    fn nothing_is_cut_for_a_pipe() {
        let mut lines = Lines::new(Style {
            is_whole: true,
            is_coloured: false,
        });
        assert_eq!(lines.name("a\x1bname", 3), "a\\u{1b}name");
        lines.add(format_args!("{}", "x".repeat(3 * WIDTH)));
        assert_eq!(lines.finish().len(), 3 * WIDTH + 1);
    }

    #[test]
    fn colours_are_for_terminals() {
        let style = |is_coloured| Style {
            is_whole: false,
            is_coloured,
        };
        for (is_coloured, text) in [
            (false, "a heading\ngc: slow\n"),
            (true, "\x1b[1ma heading\x1b[0m\n\x1b[31mgc\x1b[0m: slow\n"),
        ] {
            let mut lines = Lines::new(style(is_coloured));
            lines.heading(format_args!("a heading   "));
            lines.coloured("gc: slow", 2, Colour::Bad);
            assert_eq!(lines.finish(), text);
        }
    }
}
