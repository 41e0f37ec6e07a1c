//! Writes JSON in which control characters and other invisible characters are escaped, so that it is safe to print on a
//! terminal.

use std::io::{self, Write};

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Serializer, Value};
use tllmprof_config::printable::is_hidden;

/// Writes a value as JSON, followed by a newline.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write(value: &impl Serialize, to: &mut impl Write) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(&mut *to, Escaping))?;
    to.write_all(b"\n")
}

/// Writes a text as a JSON string.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write_text(text: &str, to: &mut impl Write) -> io::Result<()> {
    Ok(text.serialize(&mut Serializer::with_formatter(to, Escaping))?)
}

/// Returns the JSON schema of a type, for the form in which serde writes it: every key is always
/// present. Keys that end in `ns` get the unit `ns`.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings
        .transforms
        .push(Box::new(RecursiveTransform(units)));
    let generator = settings.into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

fn units(schema: &mut Schema) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (key, property) in properties.into_iter().flatten() {
        if key.split('_').next_back() == Some("ns")
            && let Some(property) = property.as_object_mut()
        {
            property.insert("unit".to_owned(), Value::from("ns"));
        }
    }
}

/// Writes a GPU time in nanoseconds. A time of 0 means that the time is unknown, so it is written
/// as `null`.
///
/// # Errors
/// Returns an error if writing fails.
pub(crate) fn known<S: serde::Serializer>(ns: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    Some(*ns).filter(|ns| *ns > 0).serialize(serializer)
}

/// A JSON formatter that writes invisible characters as escapes. A JSON parser restores the
/// original text.
struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        to: &mut W,
        text: &str,
    ) -> io::Result<()> {
        // Most texts need no escapes. This check is fast, because it can examine many bytes at
        // once.
        if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return to.write_all(text.as_bytes());
        }
        let mut rest = text;
        while let Some(at) = rest.find(is_hidden) {
            to.write_all(&rest.as_bytes()[..at])?;
            let mut behind = rest[at..].chars();
            for unit in behind.next().unwrap_or_default().encode_utf16(&mut [0; 2]) {
                write!(to, "\\u{unit:04x}")?;
            }
            rest = behind.as_str();
        }
        to.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_is_escaped_and_read_as_it_was() {
        let text = "\x1b]0;\x07\n\u{7f}\u{9b}31m \u{202e}\u{e0041} \"µ\\ </script> 漢字";
        let mut written = Vec::new();
        write(&text, &mut written).unwrap();
        let json = String::from_utf8(written).unwrap();
        let line = json.strip_suffix('\n').unwrap();
        assert!(!line.contains(is_hidden), "{line:?}");
        assert_eq!(serde_json::from_str::<String>(line).unwrap(), text);
    }
}
