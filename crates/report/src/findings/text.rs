//! Why it is slow, in a few lines.

use crate::findings::{Finding, Verdict};
use crate::numbers::units::Share;
use crate::print::lines::{Colour, Lines, WIDTH, short};

/// How many findings are shown, and how many lines each may take.
const FINDINGS: usize = 3;
const LINES: usize = 3;

/// The lines of what was found: what is so, the strongest first, and what is not known. As many as there is
/// room for, or else a line for each finding.
pub fn findings(findings: &[Finding], room: usize) -> Vec<String> {
    (1..=LINES)
        .rev()
        .map(|each| with(findings, each))
        .find(|lines| lines.len() <= room)
        .unwrap_or_else(|| with(findings, 1))
}

fn with(findings: &[Finding], each: usize) -> Vec<String> {
    if findings.is_empty() {
        return Vec::new();
    }
    let are = |verdict| {
        findings
            .iter()
            .filter(move |finding| finding.verdict == verdict)
    };
    let mut lines = Vec::new();
    let all = are(Verdict::Yes).count();
    match all {
        0 => lines.push("nothing stands out".to_owned()),
        _ => lines.push("what stands out".to_owned()),
    }
    for finding in are(Verdict::Yes).take(FINDINGS) {
        let loss = finding
            .loss
            .map_or_else(String::new, |loss| format!(" ({})", Share(loss)));
        let text = format!(
            "{}{loss}: {} → {}",
            finding.rule.name, finding.evidence, finding.advice
        );
        wrap(&text, each, &mut lines);
    }
    let more = all.saturating_sub(FINDINGS);
    if more > 0 {
        lines.push(format!("  and {more} more (--json has them)"));
    }
    let mut needed: Vec<&str> = Vec::new();
    for finding in are(Verdict::Unknown) {
        let needs = finding.rule.needs;
        if !needs.is_empty() && !needed.contains(&needs) {
            needed.push(needs);
        }
    }
    // Options first.
    needed.sort_by_key(|needs| !needs.starts_with('-'));
    if !needed.is_empty() {
        lines.push(short(
            &format!("not known without {}", needed.join(", ")),
            WIDTH,
        ));
    }
    lines
}

/// Adds a finding, on as many lines as it may take.
fn wrap(text: &str, most: usize, lines: &mut Vec<String>) {
    let (mut line, mut count) = (" ".to_owned(), 1);
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            if count == most {
                lines.push(short(&(line + " …"), WIDTH));
                return;
            }
            lines.push(std::mem::replace(&mut line, "   ".to_owned()));
            count += 1;
        }
        line = line + " " + word;
    }
    lines.push(line);
}

/// Adds the lines of what was found.
pub fn add(found: &[String], lines: &mut Lines) {
    for (place, line) in found.iter().enumerate() {
        let rule = line
            .strip_prefix("  ")
            .filter(|rule| !rule.starts_with(' ') && !rule.starts_with("and "));
        match rule.and_then(|rule| rule.find([' ', ':'])) {
            _ if place == 0 => lines.heading(format_args!("{line}")),
            Some(length) => lines.coloured(line, 2 + length, Colour::Bad),
            None => lines.add(format_args!("{line}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_takes_no_more_than_its_lines() {
        let mut lines = Vec::new();
        wrap(&"four ".repeat(100), LINES, &mut lines);
        assert_eq!(lines.len(), LINES);
        assert!(
            lines.iter().all(|line| line.chars().count() <= WIDTH),
            "{lines:?}"
        );
        assert!(lines[0].starts_with("  four four") && lines[1].starts_with("    four"));
        assert!(lines[2].ends_with('…'));
    }
}
