//! Lines of text. For a screen they are cut to fit; for a pipe or a file they are folded (wrapped).

use std::cell::Cell;
use std::fmt;

use tllmprof_config::printable;

/// Default width of a screen, in characters.
pub(crate) const WIDTH: usize = 80;
/// Default height of a screen, in lines.
pub(crate) const HEIGHT: usize = 44;
/// Width of lines for a pipe or a file, in characters.
pub(crate) const WIDE: usize = 120;
/// Text at the end of a list whose further parts do not fit.
const MORE: &str = ", …";
/// Maximum indentation of the second and later lines of a list, in characters.
const MAX_INDENT: usize = 6;
/// Additional indentation of the second and later lines of a folded line, in characters.
const HANGING_INDENT: usize = 4;
/// Maximum length of a name in output for a pipe or a file, in characters. The middle of a longer name is replaced by
/// `…`.
const MAX_NAME_LENGTH: usize = 200;
/// Maximum length of a brief report, in characters.
const MAX_BRIEF: usize = 6000;
/// Maximum length of each folded text in a brief report, in characters.
const MAX_BRIEF_PART: usize = 600;
/// Escape sequence that ends colours on a terminal.
const RESET: &str = "\x1b[0m";

/// Text in place of a figure that is unknown.
pub(crate) const UNKNOWN: &str = "–";

/// Options for the report's text: its size, colours and level of detail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Style {
    /// True to show everything and fold long lines (for a pipe or a file). False to cut lines to
    /// the width, and the whole text to the height of a screen.
    pub is_whole: bool,
    /// True to leave out the tables of a report.
    pub is_brief: bool,
    /// True to colour headings and verdicts for a terminal.
    pub is_coloured: bool,
    /// Number of characters that fit into a line.
    pub width: usize,
    /// Number of lines on a screen.
    pub height: usize,
    /// Maximum number of rows in each table; `None` for the default, which is all rows or as many as fit on a screen.
    pub top: Option<usize>,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            is_whole: false,
            is_brief: false,
            is_coloured: false,
            width: WIDTH,
            height: HEIGHT,
            top: None,
        }
    }
}

impl Style {
    /// Returns the style for a pipe or a file.
    #[must_use]
    pub fn whole() -> Self {
        Self {
            is_whole: true,
            width: WIDE,
            ..Self::default()
        }
    }
}

/// The colour or weight of highlighted text on a terminal.
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
    /// Number of lines of the screen that are reserved for the end of the text, which is added
    /// later.
    kept: usize,
    /// True if at least one name was shortened by leaving out its middle.
    has_shortened: Cell<bool>,
    /// True if the figures describe a whole trace, because no iterations were found in it.
    is_of_trace: bool,
}

impl Lines {
    pub fn new(style: Style) -> Self {
        Self {
            style,
            ..Self::default()
        }
    }

    /// Declares that the figures added from now on describe a whole trace, in which no iterations
    /// were found.
    pub const fn show_trace(&mut self) {
        self.is_of_trace = true;
    }

    /// Returns true if the figures describe a whole trace.
    pub const fn is_of_trace(&self) -> bool {
        self.is_of_trace
    }

    /// Returns the words that follow a number of calls or kernels in a text: `a step` if the number is a mean per
    /// iteration, `in all` if it is a total of a trace.
    pub const fn a_step(&self) -> &'static str {
        if self.is_of_trace { "in all" } else { "a step" }
    }

    /// Reserves a number of lines of the screen for the end of the text, which is added later.
    pub const fn keep(&mut self, lines: usize) {
        self.kept = lines;
    }

    /// Returns the number of lines that the function `add` would add.
    pub fn measure(&self, add: impl FnOnce(&mut Self)) -> usize {
        let mut alone = Self::new(self.style);
        alone.is_of_trace = self.is_of_trace;
        add(&mut alone);
        alone.used()
    }

    /// Adds the lines that the function `add` writes, but only if all of them fit on the screen.
    pub fn if_room(&mut self, add: impl FnOnce(&mut Self)) {
        let before = self.text.len();
        add(self);
        if !self.style.is_whole && self.used() + self.kept > self.style.height {
            self.text.truncate(before);
        }
    }

    fn used(&self) -> usize {
        self.text.lines().count()
    }

    /// Adds a line, with invisible characters escaped. On a screen the line is cut to the width;
    /// otherwise it is folded.
    pub fn add(&mut self, line: fmt::Arguments<'_>) {
        let line = line.to_string();
        if self.style.is_whole {
            let line = printable(line.trim_end());
            let indent = text_starts(&line, self.style.width / 2);
            self.folded(&line, indent + HANGING_INDENT);
        } else {
            let line = short(&line, self.style.width);
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
    }

    /// Adds a text, folded into as many lines as necessary. All lines except the first are indented by `indent`
    /// characters.
    pub fn text(&mut self, text: &str, indent: usize) {
        self.folded(&printable(text), indent);
    }

    /// Adds a text like [`Self::text`]. On a screen, the text is cut so that it takes at most
    /// `lines` lines.
    pub fn text_within(&mut self, text: &str, indent: usize, lines: usize) {
        match self.style.is_whole {
            true => self.text(text, indent),
            // Lines break between words, so they may be shorter than the width. Cut the text to as many characters as
            // `lines - 1` full lines have, so that the folded text has at most `lines` lines.
            false => self.folded(
                &short(text, (lines - 1) * (self.style.width - indent)),
                indent,
            ),
        }
    }

    fn folded(&mut self, text: &str, indent: usize) {
        let cut;
        let text = match self.style.is_brief {
            true => {
                cut = short(text, MAX_BRIEF_PART);
                &cut
            }
            false => text,
        };
        let width = self.style.width;
        let mut rest = text;
        let mut start = 0;
        while start + rest.chars().count() > width {
            let room = width - start.min(width / 2);
            let end = rest
                .char_indices()
                .nth(room)
                .map_or(rest.len(), |(end, _)| end);
            let Some(space) = self.break_at(rest, end, width - indent.min(width / 2)) else {
                break;
            };
            let (now, later) = rest.split_at(space);
            self.text.push_str(&" ".repeat(start));
            self.text.push_str(now.trim_end());
            self.text.push('\n');
            (rest, start) = (later.trim_start(), indent);
        }
        self.text.push_str(&" ".repeat(start));
        self.text.push_str(rest);
        self.text.push('\n');
    }

    /// Returns the index at which to break a text of which the first `end` bytes fit into a line,
    /// or `None` if it should not be broken. `room` is the number of characters in the following
    /// lines. A word longer than `room` is divided on a screen; otherwise it is kept whole.
    fn break_at(&self, text: &str, end: usize, room: usize) -> Option<usize> {
        // Search only after the indentation, because a line must not be empty. Do not break between
        // a number and its percent sign.
        let from = text.len() - text.trim_start().len();
        let spaces = text.match_indices(' ').map(|(at, _)| at);
        let mut spaces = spaces.filter(|at| *at > from && !text[at + 1..].starts_with('%'));
        let space = spaces.clone().take_while(|at| *at <= end).last();
        let next = spaces.find(|at| *at > end);
        let word = &text[space.map_or(from, |space| space + 1)..next.unwrap_or(text.len())];
        match (word.chars().count() > room, self.style.is_whole) {
            (true, true) => next,
            (true, false) => Some(end),
            (false, _) => space.or(next),
        }
    }

    /// Adds a line in which the first `length` bytes are coloured, provided that they end at a
    /// character boundary.
    pub fn coloured(&mut self, line: &str, length: usize, colour: Colour) {
        let from = self.text.len();
        self.add(format_args!("{line}"));
        self.paint(from, length, colour);
    }

    /// Adds a text like [`Self::text`], in which the first `length` bytes are coloured.
    pub fn coloured_text(&mut self, text: &str, indent: usize, length: usize, colour: Colour) {
        let from = self.text.len();
        self.text(text, indent);
        self.paint(from, length, colour);
    }

    fn paint(&mut self, from: usize, length: usize, colour: Colour) {
        let end = from + length;
        if self.style.is_coloured && self.text.is_char_boundary(end) && end < self.text.len() {
            self.text.insert_str(end, RESET);
            self.text.insert_str(from, colour.start());
        }
    }

    /// Adds a heading.
    pub fn heading(&mut self, line: fmt::Arguments<'_>) {
        let line = line.to_string();
        let length = self.name(&line, self.style.width).trim_end().len();
        self.coloured(&line, length, Colour::Bold);
    }

    /// Returns a name with invisible characters escaped. On a screen the name is cut to `width`
    /// characters. Otherwise, only the middle of a very long name is left out, because long names
    /// (such as those of templates) often differ only at the end.
    pub fn name(&self, text: &str, width: usize) -> String {
        if !self.style.is_whole {
            return short(text, width);
        }
        let name = printable(text);
        let length = name.chars().count();
        if length <= MAX_NAME_LENGTH {
            return name;
        }
        self.has_shortened.set(true);
        let half = MAX_NAME_LENGTH / 2;
        let start: String = name.chars().take(half).collect();
        let end: String = name.chars().skip(length - half + 1).collect();
        format!("{start}…{end}")
    }

    /// Returns a sentence. On a screen the sentence is cut to `width` characters, because it may contain long
    /// names.
    pub fn sentence(&self, text: &str, width: usize) -> String {
        match self.style.is_whole {
            true => text.to_owned(),
            false => short(text, width),
        }
    }

    /// Returns the maximum number of rows of a table. `on_screen` is the default maximum for a screen and for a brief
    /// report.
    pub fn rows(&self, on_screen: usize) -> usize {
        let all = if self.style.is_whole && !self.style.is_brief {
            usize::MAX
        } else {
            on_screen
        };
        self.style.top.unwrap_or(all)
    }

    /// Adds a line with a heading and the list of `parts`, separated by commas. On a screen, only
    /// the parts that fit into the line are shown.
    pub fn list(&mut self, heading: &str, parts: &[String]) {
        if self.style.is_whole {
            let text = format!("{heading}{}", parts.join(", "));
            return self.add(format_args!("{text}"));
        }
        let mut line = heading.to_owned();
        for (place, part) in parts.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            let length = line.chars().count() + separator.len() + part.chars().count();
            if length > self.style.width && place > 0 {
                break;
            }
            line.push_str(separator);
            line.push_str(part);
        }
        self.add(format_args!("{line}"));
    }

    /// Adds a heading and the list of `parts`, separated by commas. On a screen, only the parts
    /// that fit into `most` lines are shown.
    pub fn wrapped(&mut self, heading: &str, parts: &[String], most: usize) {
        let indent = " ".repeat(heading.chars().count().min(MAX_INDENT));
        let width = self.style.width;
        let most = if self.style.is_whole {
            usize::MAX
        } else {
            most
        };
        let mut rest = parts;
        let mut turn = 0;
        while turn < most {
            let start = if turn == 0 { heading } else { &indent };
            let fits = |count: &usize| {
                let text = rest[..*count].iter().map(|part| part.chars().count() + 2);
                let more = match *count < rest.len() {
                    true if turn + 1 < most => 1,
                    true => MORE.chars().count(),
                    false => 0,
                };
                start.chars().count() + text.sum::<usize>() - 2 + more <= width
            };
            let count = (1..=rest.len()).take_while(fits).last();
            let count = match count {
                // The first part does not fit into the line with the heading, so start the parts on
                // the second line, which has more room.
                None if turn == 0
                    && most > 1
                    && heading.chars().count() > MAX_INDENT
                    && !rest.is_empty() =>
                {
                    self.add(format_args!("{start}"));
                    turn += 1;
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
            turn += 1;
        }
    }

    /// Returns the number of lines that are still free on the screen; a very large number if the
    /// output is not limited to a screen.
    pub fn left(&self) -> usize {
        match self.style.is_whole {
            true => PLENTY,
            false => self.style.height.saturating_sub(self.used() + self.kept),
        }
    }

    /// Returns true if tables are left out.
    pub const fn is_brief(&self) -> bool {
        self.style.is_brief
    }

    /// Returns the number of characters in a line.
    pub const fn width(&self) -> usize {
        self.style.width
    }

    pub fn blank(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    pub fn finish(mut self) -> String {
        if self.has_shortened.get() {
            self.add(format_args!(
                "… in a name: its middle is left out; --json has it"
            ));
        }
        while self.text.ends_with("\n\n") {
            self.text.pop();
        }
        if self.style.is_brief {
            self.cut_to(MAX_BRIEF);
        }
        self.text
    }

    /// If the text has more than `most` characters, keeps only the lines that fit, and adds a line with the number of
    /// these lines.
    fn cut_to(&mut self, most: usize) {
        let Some((end, _)) = self.text.char_indices().nth(most) else {
            return;
        };
        let all = self.used();
        let end = self.text[..end].rfind('\n').map_or(0, |end| end + 1);
        self.text.truncate(end);
        let kept = self.used();
        self.text.push_str(&format!(
            "{kept} of {all} lines: without --brief there are all\n"
        ));
    }
}

/// A number of lines that is larger than the number of lines of any text.
const PLENTY: usize = usize::MAX / 4;

/// Returns the byte index at which the last column of a line starts. Columns are separated by two or more spaces. If
/// that index is beyond `most`, returns the end of the line's indentation.
fn text_starts(line: &str, most: usize) -> usize {
    let start = |at: usize| line.len() - line[at..].trim_start().len();
    let columns = line.rfind("  ").map(start).filter(|at| *at <= most);
    columns.unwrap_or_else(|| start(0))
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

/// Returns a text with invisible characters escaped, cut to `width` characters.
pub(crate) fn short(text: &str, width: usize) -> String {
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
    fn the_middle_of_a_very_long_name_is_left_out() {
        let mut lines = Lines::new(Style::whole());
        let (start, middle) = ("a".repeat(120), "m".repeat(800));
        let names = ["1>", "2>"].map(|end| format!("{start}{middle}{}{end}", "z".repeat(118)));
        let shown = names.each_ref().map(|name| lines.name(name, 30));
        assert_ne!(shown[0], shown[1]);
        for name in &shown {
            assert_eq!(name.chars().count(), MAX_NAME_LENGTH);
            assert!(name.contains("a…z"), "{name}");
            lines.add(format_args!("{name}"));
        }
        let whole = lines.name(&names[0][..MAX_NAME_LENGTH], 30);
        assert_eq!(whole, names[0][..MAX_NAME_LENGTH]);
        let text = lines.finish();
        assert!(
            text.ends_with("its middle is left out; --json has it\n"),
            "{text}"
        );
    }

    #[test]
    fn nothing_is_cut_for_a_pipe() {
        let mut lines = Lines::new(Style::whole());
        assert_eq!(lines.name("a\x1bname", 3), "a\\u{1b}name");
        lines.add(format_args!("{}", "x".repeat(3 * WIDE)));
        assert_eq!(lines.finish().len(), 3 * WIDE + 1);
        let mut lines = Lines::new(Style::whole());
        lines.add(format_args!("  {}", "word ".repeat(100)));
        let text = lines.finish();
        assert_eq!(text.split_whitespace().count(), 100);
        assert!(text.lines().all(|line| line.chars().count() <= WIDE));
        assert!(
            text.starts_with("  word word")
                && text
                    .lines()
                    .skip(1)
                    .all(|line| line.starts_with("      word"))
        );
        assert_eq!(Lines::new(Style::whole()).rows(3), usize::MAX);
    }

    #[test]
    fn lines_break_where_words_end() {
        let folded = |style: Style, text: &str| {
            let mut lines = Lines::new(Style { width: 20, ..style });
            lines.text(text, 2);
            lines.finish()
        };
        let screen = Style::default();
        // A line does not break between a number and its percent sign.
        assert_eq!(
            folded(screen, "code of the loop 30 % of it"),
            "code of the loop\n  30 % of it\n"
        );
        let (long, text) = ("y".repeat(30), format!("a {} b", "y".repeat(30)));
        // A word that is longer than a line is divided on a screen, and kept whole otherwise.
        assert_eq!(
            folded(screen, &text),
            format!("a {}\n  {} b\n", &long[..18], &long[18..])
        );
        assert_eq!(folded(Style::whole(), &text), format!("a {long}\n  b\n"));
    }

    #[test]
    fn a_screen_has_all_of_something_or_nothing() {
        let add = |lines: &mut Lines, count: usize| {
            (0..count).for_each(|n| lines.add(format_args!("{n}")));
        };
        for (is_whole, used, left) in [(false, 4, 1), (true, 9, PLENTY)] {
            let mut lines = Lines::new(Style {
                is_whole,
                height: 7,
                ..Style::default()
            });
            lines.keep(2);
            add(&mut lines, 4);
            lines.if_room(|lines| add(lines, 2));
            lines.if_room(|lines| add(lines, 3));
            assert_eq!((lines.used(), lines.left()), (used, left));
            assert_eq!(lines.measure(|lines| add(lines, 3)), 3);
        }
    }

    #[test]
    fn colours_are_for_terminals() {
        let style = |is_coloured| Style {
            is_coloured,
            ..Style::default()
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
