//! A minimal JSON parser and writer for the control protocol. The parser limits the nesting depth. An object is a list
//! of names and values, in which a name may occur several times.

use std::fmt::Write;

/// The largest depth of nested arrays and objects that is parsed.
const MAX_DEPTH: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub enum JsonValue {
    Null,
    Bool(bool),
    /// A whole number that is not negative and fits into 64 bits.
    Integer(u64),
    /// Any number that is not a [`JsonValue::Integer`]. It is always finite.
    Number(f64),
    Text(String),
    Array(Vec<JsonValue>),
    Object(Object),
}

/// A JSON object: names and values, in the order in which they were added or parsed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object(Vec<(String, JsonValue)>);

impl JsonValue {
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub const fn integer(&self) -> Option<u64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    pub const fn number(&self) -> Option<f64> {
        match self {
            Self::Integer(number) => Some(*number as f64),
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub fn array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(values) => Some(values),
            _ => None,
        }
    }

    pub const fn object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    pub const fn bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($type:ty: $value:ident => $made:expr),+ $(,)?) => {
        $(impl From<$type> for JsonValue {
            fn from($value: $type) -> Self {
                $made
            }
        })+
    };
}
from!(
    bool: value => Self::Bool(value),
    u64: value => Self::Integer(value),
    // JSON cannot represent infinities and NaN, so they are written as null.
    f64: value => if value.is_finite() { Self::Number(value) } else { Self::Null },
    String: value => Self::Text(value),
    Object: value => Self::Object(value),
    &str: value => Self::Text(value.to_owned()),
);

impl<T: Into<JsonValue>> From<Option<T>> for JsonValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl Object {
    /// Appends a pair of `name` and `value` to the object, and returns the object.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<JsonValue>) -> Self {
        self.0.push((name.to_owned(), value.into()));
        self
    }

    /// Appends a pair of `name` and `value` to the object if `value` is not `None`, and returns the object.
    #[must_use]
    pub fn with_some(self, name: &str, value: Option<impl Into<JsonValue>>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Returns the first value with this name, unless it is null.
    pub fn get(&self, name: &str) -> Option<&JsonValue> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        (*value != JsonValue::Null).then_some(value)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the object as one line of JSON, including the newline.
    pub fn to_line(&self) -> String {
        let mut line = String::new();
        write_object(&mut line, self);
        line.push('\n');
        line
    }

    /// Parses a line that consists of one object.
    ///
    /// # Errors
    /// Returns a description of the error in the line.
    pub fn from_line(line: &[u8]) -> Result<Self, &'static str> {
        if line.len() > crate::LONGEST {
            return Err("the line is too long");
        }
        let text = str::from_utf8(line).map_err(|_| "the line is not UTF-8")?;
        let mut parser = JsonParser { rest: text };
        parser.skip();
        let object = match parser.value(MAX_DEPTH)? {
            JsonValue::Object(object) => object,
            _ => return Err("the line is not a JSON object"),
        };
        parser.skip();
        match parser.rest {
            "" => Ok(object),
            _ => Err("something follows the JSON object"),
        }
    }
}

fn write(out: &mut String, value: &JsonValue) {
    // Writing to a String cannot fail, so the results are ignored.
    let _ = match value {
        JsonValue::Null => out.write_str("null"),
        JsonValue::Bool(value) => write!(out, "{value}"),
        JsonValue::Integer(number) => write!(out, "{number}"),
        JsonValue::Number(number) => write!(out, "{number:?}"),
        JsonValue::Text(text) => {
            write_text(out, text);
            Ok(())
        }
        JsonValue::Array(values) => {
            out.push('[');
            for (place, value) in values.iter().enumerate() {
                if place > 0 {
                    out.push(',');
                }
                write(out, value);
            }
            out.write_str("]")
        }
        JsonValue::Object(object) => {
            write_object(out, object);
            Ok(())
        }
    };
}

fn write_object(out: &mut String, object: &Object) {
    out.push('{');
    for (place, (name, value)) in object.0.iter().enumerate() {
        if place > 0 {
            out.push(',');
        }
        write_text(out, name);
        out.push(':');
        write(out, value);
    }
    out.push('}');
}

fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

struct JsonParser<'a> {
    rest: &'a str,
}

impl JsonParser<'_> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
    }

    fn eats(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Result<JsonValue, &'static str> {
        for (word, value) in [
            ("null", JsonValue::Null),
            ("true", JsonValue::Bool(true)),
            ("false", JsonValue::Bool(false)),
        ] {
            if self.eats(word) {
                return Ok(value);
            }
        }
        match self.rest.bytes().next() {
            Some(b'"') => self.string().map(JsonValue::Text),
            Some(b'{') => Ok(JsonValue::Object(self.object(deeper(depth)?)?)),
            Some(b'[') => Ok(JsonValue::Array(self.array(deeper(depth)?)?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err("a JSON value is missing"),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Object, &'static str> {
        let mut object = Object::default();
        self.items("{", "}", |parser| {
            if !parser.rest.starts_with('"') {
                return Err("a name is missing in a JSON object");
            }
            let name = parser.string()?;
            parser.skip();
            if !parser.eats(":") {
                return Err("a colon is missing in a JSON object");
            }
            parser.skip();
            object.0.push((name, parser.value(depth)?));
            Ok(())
        })?;
        Ok(object)
    }

    fn array(&mut self, depth: usize) -> Result<Vec<JsonValue>, &'static str> {
        let mut values = Vec::new();
        self.items("[", "]", |parser| {
            values.push(parser.value(depth)?);
            Ok(())
        })?;
        Ok(values)
    }

    /// Parses items between the brackets `open` and `close`, separated by commas. Calls `item` for each item.
    fn items(
        &mut self,
        open: &str,
        close: &str,
        mut item: impl FnMut(&mut Self) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        self.eats(open);
        self.skip();
        if self.eats(close) {
            return Ok(());
        }
        loop {
            self.skip();
            item(self)?;
            self.skip();
            if self.eats(close) {
                return Ok(());
            }
            if !self.eats(",") {
                return Err("a JSON object or array does not end");
            }
        }
    }

    fn string(&mut self) -> Result<String, &'static str> {
        const OPEN: &str = "a JSON string does not end";
        const ESCAPE: &str = "an escape in a JSON string means nothing";
        self.eats("\"");
        let mut text = String::new();
        loop {
            let end = self.rest.find(['"', '\\']).ok_or(OPEN)?;
            let (plain, rest) = self.rest.split_at(end);
            if plain.contains(|c: char| c < ' ') {
                return Err("a control character in a JSON string");
            }
            text.push_str(plain);
            self.rest = rest;
            if self.eats("\"") {
                return Ok(text);
            }
            let mut rest = self.rest.chars();
            let escaped = rest.nth(1).ok_or(OPEN)?;
            self.rest = rest.as_str();
            text.push(match escaped {
                '"' | '\\' | '/' => escaped,
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => self.escape().ok_or(ESCAPE)?,
                _ => return Err(ESCAPE),
            });
        }
    }

    /// Parses the rest of a `\u` escape: one character of four hexadecimal digits, or a surrogate pair of two
    /// such escapes.
    fn escape(&mut self) -> Option<char> {
        let high = self.hex()?;
        if !(0xd800..0xdc00).contains(&high) {
            return char::from_u32(high);
        }
        if !self.eats("\\u") {
            return None;
        }
        let low = self.hex()?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
        char::from_u32(0x1_0000 + ((high - 0xd800) << 10 | low))
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.rest.get(..4)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.rest = &self.rest[4..];
        is_hex.then(|| u32::from_str_radix(digits, 16).ok())?
    }

    fn number(&mut self) -> Result<JsonValue, &'static str> {
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest;
        let digits = number.strip_prefix('-').unwrap_or(number);
        let has_zero =
            digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit();
        if let (false, Ok(number)) = (has_zero, number.parse()) {
            return Ok(JsonValue::Integer(number));
        }
        match number.parse() {
            Ok(number) if f64::is_finite(number) && !has_zero => Ok(JsonValue::Number(number)),
            _ => Err("a JSON number is wrong"),
        }
    }
}

fn deeper(depth: usize) -> Result<usize, &'static str> {
    depth.checked_sub(1).ok_or("the JSON object is too deep")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Object, &'static str> {
        Object::from_line(line.as_bytes())
    }

    #[test]
    fn what_is_written_is_read_again() {
        let inner = JsonValue::Object(Object::default().with("deep", 1.5));
        let object = Object::default()
            .with("text", "a \"quoted\" \\ line\n\u{1}é😀")
            .with("none", JsonValue::Null)
            .with("largest", u64::MAX)
            .with("yes", true)
            .with(
                "list",
                JsonValue::Array(vec![
                    inner,
                    JsonValue::from(-2.0),
                    JsonValue::Array(Vec::new()),
                ]),
            );
        let line = object.to_line();
        assert_eq!(line.lines().count(), 1, "{line}");
        assert_eq!(read(&line), Ok(object));
        assert_eq!(Object::default().to_line(), "{}\n");
        assert_eq!(JsonValue::from(f64::NAN), JsonValue::Null);
    }

    #[test]
    fn every_form_is_read() {
        let line = r#" { "a" : [ 1 , -2, 3.5e2, 0, 1e-3 ] , "b\u0041\ud83d\ude00\/\n" : { } , "a": 7, "n": null } "#;
        let object = read(line).unwrap();
        assert_eq!(
            object.names().collect::<Vec<_>>(),
            ["a", "bA😀/\n", "a", "n"]
        );
        let numbers = [
            JsonValue::Integer(1),
            JsonValue::Number(-2.0),
            JsonValue::Number(350.0),
            JsonValue::Integer(0),
            JsonValue::Number(0.001),
        ];
        assert_eq!(object.get("a"), Some(&JsonValue::Array(numbers.into())));
        assert_eq!((object.get("n"), object.get("x")), (None, None));
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for wrong in [
            "",
            "[]",
            "7",
            "{",
            "{}}",
            "{} {}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\":01}",
            "{\"a\":-}",
            "{\"a\":1e999}",
            "{\"a\":.5}",
            "{\"a\":+1}",
            "{\"a\":\"",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\u12\"}",
            "{\"a\":\"\\ud800\"}",
            "{\"a\":\"\\ud800\\u0041\"}",
            "{\"a\":\"\t\"}",
            "{\"a\":nul}",
            "{\"a\":[1 2]}",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert!(Object::from_line(b"{\"a\":\"\xff\"}").is_err());
        let deep = |depth| format!("{{\"a\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&deep(MAX_DEPTH - 1)).is_ok() && read(&deep(MAX_DEPTH)).is_err());
        assert!(read(&deep(5000)).is_err(), "and no stack overflows");
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(crate::LONGEST));
        assert_eq!(read(&long), Err("the line is too long"));
    }
}
