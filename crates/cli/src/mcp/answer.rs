//! Writes the answers of the tools of `tllmprof mcp`. Their length is bounded, because AI assistants can read only a
//! limited number of characters.

use std::fmt::Write;

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::output::json;

/// Maximum length of an answer in bytes. An answer then has at most as many characters.
const LONGEST: usize = 8000;
/// The part of an answer's maximum length that is for messages, in bytes.
const MESSAGES: usize = 1000;
/// The part of the maximum length that is for the tool's result, in bytes. The other 500 bytes are for the JSON around
/// the messages and the result.
const FIGURES: usize = LONGEST - MESSAGES - 500;
/// Maximum lengths of each text in a row, in bytes. They are tried in this order until the row is short enough.
const TEXTS: [usize; 4] = [2000, 400, 100, 30];

/// The rows of a list that an answer contains.
#[derive(Deserialize, JsonSchema, Clone, Copy, Default)]
#[serde(default)]
pub(crate) struct Page {
    /// Index of the first row to return, counted from 0 (default: 0).
    #[schemars(with = "u64")]
    offset: usize,
    /// Maximum number of rows to return (default: 20).
    #[schemars(with = "u64", extend("minimum" = 1))]
    top: Option<usize>,
}

impl Page {
    const TOP: usize = 20;
}

/// Returns a page of rows as JSON: the rows that `page` selects, or fewer if the answer would be too long, and the
/// offset of the next row. `about` comes before the rows.
///
/// # Errors
/// `page` asks for 0 rows, or begins after the last row.
pub(crate) fn list<T: Serialize>(
    about: Map<String, Value>,
    page: Page,
    rows: impl Iterator<Item = T>,
) -> Result<String> {
    let most = page.top.unwrap_or(Page::TOP);
    if most == 0 {
        bail!("top 0: wanted: at least 1");
    }
    let about = fitted(&Value::Object(about), FIGURES / 2);
    let mut room = FIGURES.saturating_sub(about.len());
    let (mut total, mut shown, mut is_full) = (0, Vec::new(), false);
    for row in rows {
        total += 1;
        if total <= page.offset || is_full {
            continue;
        }
        let row = fitted(&serde_json::to_value(row)?, FIGURES / 2);
        // Two bytes are needed between two rows: a comma and a line break.
        is_full = row.len() + 2 > room;
        if !is_full {
            room -= row.len() + 2;
            shown.push(row);
            is_full = shown.len() == most;
        }
    }
    if page.offset > 0 && page.offset >= total {
        bail!("offset {}: there are {total} rows", page.offset);
    }
    let next = page.offset + shown.len();
    let about = about.trim_start_matches('{').trim_end_matches('}');
    let comma = if about.is_empty() { "" } else { "," };
    let mut text = format!(
        "{{{about}{comma}\"rows_in_all\":{total},\"offset\":{}",
        page.offset
    );
    if next < total {
        write!(text, ",\"next_offset\":{next}")?;
    }
    let lines: String = shown.iter().map(|row| format!("\n{row},")).collect();
    write!(text, ",\"rows\":[{}\n]}}", lines.trim_end_matches(','))?;
    Ok(text)
}

/// Returns a value as JSON of at most `longest` bytes, if possible. Leaves out `null`. Shortens texts step by step to
/// the lengths of [`TEXTS`]; if the JSON is still too long, leaves out lists and objects.
fn fitted(value: &Value, longest: usize) -> String {
    for most in TEXTS {
        let text = json(&shortened(value, most));
        if text.len() <= longest {
            return text;
        }
    }
    // The lists or objects of `value` are too long even with short texts, so only simple values are kept.
    let parts = value.as_object().into_iter().flatten();
    let simple = parts.filter(|(_, value)| !value.is_array() && !value.is_object());
    let simple = simple.map(|(key, value)| (key.clone(), shortened(value, TEXTS[3])));
    json(&Value::Object(simple.collect()))
}

/// Returns a value without `null`. Texts that are longer than `most` bytes lose their middle.
fn shortened(value: &Value, most: usize) -> Value {
    match value {
        Value::String(text) => Value::String(cut_middle(text, most)),
        Value::Array(values) => values.iter().map(|value| shortened(value, most)).collect(),
        Value::Object(values) => {
            let known = values.iter().filter(|(_, value)| !value.is_null());
            let known = known.map(|(key, value)| (key.clone(), shortened(value, most)));
            Value::Object(known.collect())
        }
        other => other.clone(),
    }
}

/// Returns `text` if it has at most `most` bytes. Otherwise its middle is replaced by `…`.
fn cut_middle(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let half = most.saturating_sub('…'.len_utf8()) / 2;
    let begin = &text[..text.floor_char_boundary(half)];
    let end = &text[text.ceil_char_boundary(text.len() - half)..];
    format!("{begin}…{end}")
}

/// Returns `text` if it is short enough for an answer. Otherwise its last lines are cut off, and `more` says how to get
/// those lines.
pub(crate) fn text(text: &str, more: &str) -> String {
    if text.len() <= FIGURES {
        return text.to_owned();
    }
    let begin = &text[..text.floor_char_boundary(FIGURES)];
    let begin = begin.rfind('\n').map_or(begin, |end| &begin[..end]);
    let (lines, all) = (begin.lines().count(), text.lines().count());
    format!("{begin}\n({lines} of {all} lines; {more})")
}

/// Returns messages as lines, or `None` if there are no messages. If all messages together are too long, the last
/// messages are only counted.
pub(crate) fn messages(messages: &[String]) -> Option<String> {
    let mut text = String::new();
    for (place, message) in messages.iter().enumerate() {
        let message = cut_middle(message, MESSAGES / 4);
        if text.len() + message.len() > MESSAGES {
            let left = messages.len() - place;
            text.push_str(&format!("and {left} more messages\n"));
            break;
        }
        text.push_str(&message);
        text.push('\n');
    }
    (!text.is_empty()).then_some(text)
}

/// Returns the text of an error as one line. If the line is longer than [`MESSAGES`] bytes, its middle is replaced by
/// `…`.
pub(crate) fn error(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut_middle(&line, MESSAGES)
}
