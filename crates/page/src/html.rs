//! Writes the page as HTML: the template, the bundle of script and style, and the data.

use std::io::{self, Write};

use serde_json::Value;
use tllmprof_config::printable;
use tllmprof_report::Report;

use crate::arrivals;
use crate::data::Data;
use crate::iterations;
use crate::skew;
use crate::timeline::Timeline;

const SCRIPT: &str = include_str!("../web/dist/page.js");
const STYLE: &str = include_str!("../web/dist/page.css");

pub(crate) fn write(
    report: &Report,
    timelines: &[Option<Timeline>],
    to: &mut impl Write,
) -> io::Result<()> {
    let title = report
        .processes
        .first()
        .map_or("", |process| &process.facts.command);
    // The content security policy forbids the page to load anything. This limits the harm of texts from records,
    // which the page shows and which may come from an attacker.
    write!(
        to,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         script-src 'unsafe-inline'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>tllmprof: {}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <noscript><pre>{}</pre></noscript>\n",
        text(&printable(title)),
        text(&report.text())
    )?;
    let mut shown = serde_json::to_value(Data::new(report))?;
    show(&mut shown);
    let json = serde_json::to_vec(&shown)?;
    to.write_all(b"<script type=\"application/json\" id=\"data\">")?;
    in_script(&json, to)?;
    to.write_all(b"</script>\n")?;
    if let Some(skew) = &report.skew {
        to.write_all(b"<script type=\"text/plain\" id=\"skew\">")?;
        skew::columns(skew).write(to)?;
        to.write_all(b"</script>\n")?;
    }
    if let Some(found) = &report.arrivals {
        to.write_all(b"<script type=\"text/plain\" id=\"arrivals\">")?;
        arrivals::columns(found).write(to)?;
        to.write_all(b"</script>\n")?;
    }
    for (place, process) in report.processes.iter().enumerate() {
        let timeline = timelines.get(place).and_then(Option::as_ref);
        data(to, "iterations", place)?;
        iterations::columns(process, timeline).write(to)?;
        to.write_all(b"</script>\n")?;
    }
    // The first view of the page does not need the timelines, so they come after the script.
    writeln!(to, "<script>{SCRIPT}</script>")?;
    for (place, process) in report.processes.iter().enumerate() {
        if let Some(timeline) = timelines.get(place).and_then(Option::as_ref) {
            data(to, "timeline", place)?;
            timeline.columns(process).write(to)?;
            to.write_all(b"</script>\n")?;
        }
    }
    to.write_all(b"</body>\n</html>\n")
}

fn data(to: &mut impl Write, what: &str, place: usize) -> io::Result<()> {
    write!(to, "<script type=\"text/plain\" id=\"{what}-{place}\">")
}

/// Makes all texts in a JSON value printable, by escaping invisible characters.
fn show(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(&text),
        Value::Array(values) => values.iter_mut().for_each(show),
        Value::Object(values) => values.values_mut().for_each(show),
        _ => (),
    }
}

/// Returns a text escaped for HTML. Control characters other than line breaks are replaced by U+FFFD.
fn text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Writes JSON in such a way that no text in it can end the surrounding script element. In JSON,
/// `<` occurs only inside strings, where it can be written as an escape.
fn in_script(json: &[u8], to: &mut impl Write) -> io::Result<()> {
    for part in json.split_inclusive(|byte| *byte == b'<') {
        match part.strip_suffix(b"<") {
            Some(before) => {
                to.write_all(before)?;
                to.write_all(b"\\u003c")?;
            }
            None => to.write_all(part)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_no_element() {
        let json = serde_json::to_vec(&["</script><script>alert(1)", "a<", "<!--", "\u{2028}"]);
        let json = json.unwrap();
        let mut written = Vec::new();
        in_script(&json, &mut written).unwrap();
        assert!(!written.contains(&b'<'));
        let read: serde_json::Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(
            read,
            serde_json::from_slice::<serde_json::Value>(&json).unwrap()
        );
        assert_eq!(
            text("<b a=\"&\">\u{1b}\n"),
            "&lt;b a=&quot;&amp;&quot;&gt;\u{fffd}\n"
        );
    }
}
