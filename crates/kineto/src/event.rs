//! Reads an event from JSON. Its keys may be in any order, and unknown keys are skipped.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::number::nanoseconds;

/// Maximum length of a text of an event, such as its name, in bytes. Longer texts are cut.
const NAME: usize = 4096;

/// The values of an event's JSON that are used. One `RawEvent` is reused for all events, so that its strings need not
/// be allocated anew for each event.
#[derive(Debug, Default)]
pub struct RawEvent {
    /// The first letter of the event's phase (`ph`). `X` is an event with a duration; `M` describes
    /// a process or a thread.
    pub phase: u8,
    pub category: String,
    pub name: String,
    pub pid: Scalar,
    pub tid: Scalar,
    /// Start in nanoseconds; `None` if the event has none. The field `duration` has the same form.
    pub start: Option<i64>,
    pub duration: Option<i64>,
    pub args: Args,
}

/// The values of an event's `args` that reports need.
#[derive(Debug, Default)]
pub struct Args {
    pub device: Option<i64>,
    pub stream: Option<i64>,
    pub correlation: Option<i64>,
    pub bytes: Option<i64>,
    /// The iteration's number if tllmprof exported the event, otherwise `None`.
    pub iteration: Option<i64>,
    /// True if the event was cut short by the end of the window or of the process. Only traces that tllmprof exported
    /// have this value and the next two.
    pub cut: bool,
    /// True if the call was made while its thread was capturing a stream into a graph.
    pub capturing: bool,
    /// True if the call returned an error, or if the function raised an exception.
    pub failed: bool,
    /// The name of a process or thread, if the event describes one.
    pub name: String,
}

/// A JSON number or text. Traces use both types for the ids of processes and threads.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum Scalar {
    #[default]
    None,
    Number(i64),
    Text(String),
}

impl Scalar {
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            Self::None => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum EventField {
    Ph,
    Cat,
    Name,
    Pid,
    Tid,
    Ts,
    Dur,
    Args,
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(field_identifier)]
enum ArgsKey {
    #[serde(rename = "device")]
    Device,
    #[serde(rename = "stream")]
    Stream,
    #[serde(rename = "correlation")]
    Correlation,
    #[serde(rename = "bytes")]
    Bytes,
    #[serde(rename = "iteration")]
    Iteration,
    #[serde(rename = "cut")]
    Cut,
    #[serde(rename = "capturing")]
    Capturing,
    #[serde(rename = "failed")]
    Failed,
    #[serde(rename = "name")]
    Name,
    #[serde(other)]
    Other,
}

impl RawEvent {
    fn clear(&mut self) {
        self.phase = 0;
        self.category.clear();
        self.name.clear();
        (self.pid, self.tid) = (Scalar::None, Scalar::None);
        (self.start, self.duration) = (None, None);
        self.args.name.clear();
        let name = std::mem::take(&mut self.args.name);
        self.args = Args {
            name,
            ..Args::default()
        };
    }
}

/// Reads an event into this value. If the JSON is not an object, this value is left empty.
impl<'de> DeserializeSeed<'de> for &mut RawEvent {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        self.clear();
        from.deserialize_any(EventVisitor(self))
    }
}

struct EventVisitor<'a>(&'a mut RawEvent);

/// Defines visitor methods that ignore values of the given JSON types and return the default.
macro_rules! ignore {
    ($($name:ident($($value:ident: $type:ty)?);)*) => {
        $(fn $name<E: de::Error>(self $(, $value: $type)?) -> Result<Self::Value, E> {
            $(let _ = $value;)?
            Ok(Default::default())
        })*
    };
}

impl<'de> Visitor<'de> for EventVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }

    ignore! {
        visit_bool(value: bool); visit_i64(value: i64); visit_u64(value: u64); visit_f64(value: f64);
        visit_str(value: &str); visit_unit();
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let event = self.0;
        while let Some(key) = map.next_key()? {
            match key {
                EventField::Ph => {
                    let mut phase = String::new();
                    map.next_value_seed(TextSeed(&mut phase))?;
                    event.phase = phase.bytes().next().unwrap_or(0);
                }
                EventField::Cat => map.next_value_seed(TextSeed(&mut event.category))?,
                EventField::Name => map.next_value_seed(TextSeed(&mut event.name))?,
                EventField::Pid => event.pid = map.next_value_seed(AnyScalar)?,
                EventField::Tid => event.tid = map.next_value_seed(AnyScalar)?,
                EventField::Ts => {
                    event.start = nanoseconds(map.next_value::<Box<RawValue>>()?.get())
                }
                EventField::Dur => {
                    event.duration = nanoseconds(map.next_value::<Box<RawValue>>()?.get())
                }
                EventField::Args => map.next_value_seed(&mut event.args)?,
                EventField::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &mut Args {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(ArgsVisitor(self))
    }
}

struct ArgsVisitor<'a>(&'a mut Args);

impl<'de> Visitor<'de> for ArgsVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the args of an event")
    }

    ignore! {
        visit_bool(value: bool); visit_i64(value: i64); visit_u64(value: u64); visit_f64(value: f64);
        visit_str(value: &str); visit_unit();
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let args = self.0;
        while let Some(key) = map.next_key()? {
            let mut number = || Ok(map.next_value_seed(AnyScalar)?.number());
            match key {
                ArgsKey::Device => args.device = number()?,
                ArgsKey::Stream => args.stream = number()?,
                ArgsKey::Correlation => args.correlation = number()?,
                ArgsKey::Bytes => args.bytes = number()?,
                ArgsKey::Iteration => args.iteration = number()?,
                ArgsKey::Cut => args.cut = map.next_value_seed(AnyFlag)?,
                ArgsKey::Capturing => args.capturing = map.next_value_seed(AnyFlag)?,
                ArgsKey::Failed => args.failed = map.next_value_seed(AnyFlag)?,
                ArgsKey::Name => map.next_value_seed(TextSeed(&mut args.name))?,
                ArgsKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// Reads a JSON string into the buffer, and cuts it after at most [`NAME`] bytes. If the JSON is not a string, the
/// buffer is left empty.
pub(crate) struct TextSeed<'a>(pub &'a mut String);

impl<'de> DeserializeSeed<'de> for TextSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        self.0.clear();
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TextSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    ignore! {
        visit_bool(value: bool); visit_i64(value: i64); visit_u64(value: u64); visit_f64(value: f64);
        visit_unit();
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.0.push_str(&text[..text.floor_char_boundary(NAME)]);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Reads true or false from JSON. Any other JSON becomes false.
struct AnyFlag;

impl<'de> DeserializeSeed<'de> for AnyFlag {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<bool, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyFlag {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false")
    }

    ignore! {
        visit_i64(value: i64); visit_u64(value: u64); visit_f64(value: f64); visit_str(value: &str); visit_unit();
    }

    fn visit_bool<E>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(false)
    }
}

/// Reads a whole number or a text from JSON. Any other JSON, such as a number with a fraction, becomes
/// [`Scalar::None`].
pub(crate) struct AnyScalar;

impl<'de> DeserializeSeed<'de> for AnyScalar {
    type Value = Scalar;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Scalar, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyScalar {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text")
    }

    ignore! { visit_bool(value: bool); visit_unit(); }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        Ok(i64::try_from(value).map_or(Scalar::None, Scalar::Number))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        let is_whole = value.fract() == 0.0 && value.abs() < 9e15;
        Ok(if is_whole {
            Scalar::Number(value as i64)
        } else {
            Scalar::None
        })
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(
            text[..text.floor_char_boundary(NAME)].to_owned(),
        ))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::None)
    }
}
