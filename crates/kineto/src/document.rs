//! Reads a trace's JSON document as a stream, because the document may be too large for memory. The
//! events are read one by one.

use std::fmt;
use std::io::Read;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::error::TraceError;
use crate::event::{RawEvent, TextSeed};
use crate::facts::KEYS;
use crate::input::{self, Budget, LONGEST};
use crate::trace::Trace;

/// Reads a trace. `file` contains its JSON, plain or compressed by gzip.
///
/// # Errors
/// Returns an error if the file cannot be read or is not a trace of the PyTorch profiler.
pub(crate) fn read(file: impl Read) -> Result<Trace, TraceError> {
    let (text, budget) = input::text(file)?;
    let mut trace = Trace::default();
    let mut document = Document {
        trace: &mut trace,
        budget: &budget,
        has_events: false,
        is_empty: true,
    };
    let mut json = serde_json::Deserializer::from_reader(text);
    let read = (&mut document).deserialize(&mut json);
    let (has_events, is_empty) = (document.has_events, document.is_empty);
    if budget.is_spent() {
        return Err(TraceError::TooLong { bytes: LONGEST });
    }
    read?;
    budget.skip();
    match json.end() {
        Err(error) if error.is_syntax() => return Err(TraceError::Trailing { line: error.line() }),
        ended => ended?,
    }
    match (has_events, trace.is_of_profiler) {
        (false, _) => Err(TraceError::NoEvents),
        (true, false) if is_empty => Err(TraceError::Empty),
        (true, false) => Err(TraceError::Other),
        (true, true) => Ok(trace),
    }
}

/// Reads a trace's JSON document and stores its content in `trace`.
struct Document<'a> {
    trace: &'a mut Trace,
    budget: &'a Budget,
    /// True if the document has a list of events.
    has_events: bool,
    /// True if that list is empty.
    is_empty: bool,
}

impl<'de> DeserializeSeed<'de> for &mut Document<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Document<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut key = String::new();
        while map.next_key_seed(TextSeed(&mut key))?.is_some() {
            self.budget.begin();
            if key == "traceEvents" {
                map.next_value_seed(Events(self))?;
            } else if KEYS.contains(&&*key) {
                let value: Value = map.next_value()?;
                self.trace.metadata.take(&key, &value);
            } else {
                self.budget.skip();
                map.next_value::<IgnoredAny>()?;
            }
            self.budget.begin();
        }
        Ok(())
    }

    /// Reads a trace that is only the list of events, without the object around it.
    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        Events(self).visit_seq(seq)
    }
}

/// A deserializer for the list of events. It adds each event to the trace as soon as the event is read.
struct Events<'a, 'b>(&'a mut Document<'b>);

impl<'de> DeserializeSeed<'de> for Events<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let document = self.0;
        document.has_events = true;
        let mut event = RawEvent::default();
        while seq.next_element_seed(&mut event)?.is_some() {
            document.is_empty = false;
            document.trace.take(&event);
            document.budget.begin();
        }
        Ok(())
    }
}
