//! Writes the trace event format: JSON that chrome://tracing, the Perfetto UI and many other tools read.
//!
//! Source: "Trace Event Format", the Chromium project. Times are microseconds with three decimals. Each event is one
//! line. Characters that control a terminal are escaped, because users may print the file on a terminal.

use std::collections::HashMap;
use std::io;

use tllmprof_report::write_json_text;
use tllmprof_timeline::Track;

use crate::activity::{Activity, ArgumentValue, Flow, SharedText};
use crate::clocks::Clocks;
use crate::record::Record;
use crate::sink::Sink;
use crate::trace::{Group, TraceFormat, TrackLine};

/// Maximum number of argument texts whose JSON form is cached.
const MAX_TEXTS: usize = 1 << 16;

pub(crate) struct Chrome<'a> {
    sink: &'a mut Sink,
    first: bool,
    name: String,
    /// Cache of the JSON form of the argument texts of the current record.
    texts: HashMap<SharedText, String>,
    /// Number of records whose output has begun. It makes the ids of arrows unique.
    records: u64,
}

impl<'a> Chrome<'a> {
    pub(crate) fn new(sink: &'a mut Sink) -> Self {
        Self {
            sink,
            first: true,
            name: String::new(),
            texts: HashMap::new(),
            records: 0,
        }
    }

    /// Begins a new event: writes the separator that comes before it. Returns the buffer for the event.
    fn next(&mut self) -> &mut Vec<u8> {
        let to = self.sink.bytes();
        to.extend_from_slice(if self.first { b"\n" } else { b",\n" });
        self.first = false;
        to
    }

    /// Writes one point of an arrow as an event. Readers of the trace attach the point to the item whose event begins
    /// at the time `at` on `line`.
    fn flow(&mut self, group: &Group, line: &TrackLine, at: u64, flow: Flow) {
        let id = self.records << 32 | u64::from(flow.launch);
        let to = self.next();
        to.extend_from_slice(match flow.begins {
            true => b"{\"ph\":\"s\",\"name\":\"launch\",\"cat\":\"launch\"".as_slice(),
            false => b"{\"ph\":\"t\",\"name\":\"launch\",\"cat\":\"launch\"",
        });
        number(to, ",\"id\":", id);
        number(to, ",\"pid\":", u64::from(group.pid));
        number(to, ",\"tid\":", u64::from(line.tid));
        microseconds(to, ",\"ts\":", at);
        to.push(b'}');
    }

    /// Writes a metadata event, which describes a process or a thread.
    fn about(&mut self, what: &str, pid: u32, tid: Option<u32>, key: &str, value: &str) {
        let to = self.next();
        to.extend_from_slice(b"{\"ph\":\"M\",\"name\":\"");
        to.extend_from_slice(what.as_bytes());
        to.push(b'"');
        number(to, ",\"pid\":", u64::from(pid));
        if let Some(tid) = tid {
            number(to, ",\"tid\":", u64::from(tid));
        }
        to.extend_from_slice(b",\"args\":{\"");
        to.extend_from_slice(key.as_bytes());
        to.extend_from_slice(b"\":");
        to.extend_from_slice(value.as_bytes());
        to.extend_from_slice(b"}}");
    }
}

impl TraceFormat for Chrome<'_> {
    fn begin(&mut self, clocks: &Clocks) -> io::Result<()> {
        let to = self.sink.bytes();
        to.extend_from_slice(
            b"{\"displayTimeUnit\":\"ns\",\"otherData\":{\"producer\":\"tllmprof\",",
        );
        to.extend_from_slice(b"\"unix_minus_monotonic_ns\":\"");
        to.extend_from_slice(itoa::Buffer::new().format(clocks.unix).as_bytes());
        to.extend_from_slice(b"\"},\"traceEvents\":[");
        Ok(())
    }

    fn record(&mut self, _: &Record) -> io::Result<()> {
        self.records += 1;
        self.texts.clear();
        Ok(())
    }

    fn group(&mut self, record: &Record, group: &Group) -> io::Result<()> {
        let (pid, title) = (group.pid, json(&group.title));
        self.about("process_name", pid, None, "name", &title);
        let rank = itoa::Buffer::new().format(group.rank).to_owned();
        self.about("process_sort_index", pid, None, "sort_index", &rank);
        let labels = json(&record.process.facts.command);
        self.about("process_labels", pid, None, "labels", &labels);
        self.sink.ready()
    }

    fn line(&mut self, group: &Group, line: &TrackLine) -> io::Result<()> {
        if matches!(line.track, Track::Counter { .. }) {
            return Ok(());
        }
        let tid = Some(line.tid);
        self.about("thread_name", group.pid, tid, "name", &json(&line.name));
        let index = match line.track {
            Track::Windows => "-3",
            Track::KernelWindows => "-2",
            Track::Iterations => "-1",
            _ => return Ok(()),
        };
        self.about("thread_sort_index", group.pid, tid, "sort_index", index);
        Ok(())
    }

    fn activity(
        &mut self,
        record: &Record,
        group: &Group,
        line: &TrackLine,
        activity: &Activity,
    ) -> io::Result<()> {
        let mut name = std::mem::take(&mut self.name);
        let mut texts = std::mem::take(&mut self.texts);
        if texts.len() >= MAX_TEXTS {
            texts.clear();
        }
        name.clear();
        activity.item.name.write(record.texts(), &mut name);
        let to = self.next();
        to.extend_from_slice(match activity.duration {
            Some(_) => b"{\"ph\":\"X\",\"name\":".as_slice(),
            None => b"{\"ph\":\"i\",\"s\":\"t\",\"name\":",
        });
        string(to, &name);
        to.extend_from_slice(b",\"cat\":\"");
        to.extend_from_slice(activity.category.text().as_bytes());
        to.push(b'"');
        number(to, ",\"pid\":", u64::from(group.pid));
        number(to, ",\"tid\":", u64::from(line.tid));
        microseconds(to, ",\"ts\":", activity.start);
        if let Some(duration) = activity.duration {
            microseconds(to, ",\"dur\":", duration);
        }
        to.extend_from_slice(b",\"args\":{");
        for (index, (key, value)) in activity.args().enumerate() {
            if index > 0 {
                to.push(b',');
            }
            to.push(b'"');
            to.extend_from_slice(key.text().as_bytes());
            match value {
                // JSON readers use doubles, so a number that needs more than 53 bits is written as a
                // text.
                ArgumentValue::Number(value) if value < 1 << 53 => number(to, "\":", value),
                ArgumentValue::Number(value) => {
                    number(to, "\":\"", value);
                    to.push(b'"');
                }
                ArgumentValue::Text(text) => {
                    to.extend_from_slice(b"\":");
                    let written = texts.entry(text);
                    let written = written.or_insert_with(|| json(&text.resolve(record)));
                    to.extend_from_slice(written.as_bytes());
                }
                ArgumentValue::Yes => to.extend_from_slice(b"\":true"),
            }
        }
        to.extend_from_slice(b"}}");
        (self.name, self.texts) = (name, texts);
        if let Some(flow) = activity.flow {
            self.flow(group, line, activity.start, flow);
        }
        self.sink.ready()
    }

    fn value(&mut self, group: &Group, line: &TrackLine, at: u64, value: f64) -> io::Result<()> {
        let unit = match line.track {
            Track::Counter { metric, .. } => metric.unit(),
            _ => "",
        };
        let name = json(&line.name);
        let to = self.next();
        to.extend_from_slice(b"{\"ph\":\"C\",\"name\":");
        to.extend_from_slice(name.as_bytes());
        number(to, ",\"pid\":", u64::from(group.pid));
        microseconds(to, ",\"ts\":", at);
        to.extend_from_slice(b",\"args\":{");
        string(to, unit);
        to.push(b':');
        serde_json::to_writer(&mut *to, &value)?;
        to.extend_from_slice(b"}}");
        self.sink.ready()
    }

    fn end(&mut self) -> io::Result<()> {
        self.sink.bytes().extend_from_slice(b"\n]}\n");
        self.sink.ready()
    }
}

fn number(to: &mut Vec<u8>, before: &str, value: u64) {
    to.extend_from_slice(before.as_bytes());
    to.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Writes a time in nanoseconds as microseconds with three decimals.
fn microseconds(to: &mut Vec<u8>, before: &str, ns: u64) {
    number(to, before, ns / 1000);
    let rest = (ns % 1000) as u16;
    let digit = |n: u16| b'0' + (n % 10) as u8;
    to.extend_from_slice(&[b'.', digit(rest / 100), digit(rest / 10), digit(rest)]);
}

fn string(to: &mut Vec<u8>, text: &str) {
    // Writing to memory cannot fail, so the result is ignored.
    let _ = write_json_text(text, to);
    // For a text that ends with a backslash, the JSON ends in `\\"`. Perfetto mistakes these characters for an escaped
    // quote, so the backslash is written as `\u005c`.
    if text.ends_with('\\') {
        to.truncate(to.len() - 3);
        to.extend_from_slice(b"\\u005c\"");
    }
}

fn json(text: &str) -> String {
    let mut to = Vec::new();
    string(&mut to, text);
    String::from_utf8(to).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_for_readers_and_terminals() {
        for (text, written) in [
            ("gemm<int>", r#""gemm<int>""#),
            ("\u{1b}[31m\n\u{202e}", r#""\u001b[31m\n\u202e""#),
            ("a\\b\\", r#""a\\b\u005c""#),
            ("\\", r#""\u005c""#),
            ("\\\"", r#""\\\"""#),
        ] {
            assert_eq!(json(text), written);
            assert_eq!(serde_json::from_str::<String>(written).unwrap(), text);
        }
    }

    #[test]
    fn microseconds_have_every_nanosecond() {
        for (ns, text) in [
            (0, "0.000"),
            (7, "0.007"),
            (1_234_567, "1234.567"),
            (1_000_090, "1000.090"),
            (u64::MAX, "18446744073709551.615"),
        ] {
            let mut to = Vec::new();
            microseconds(&mut to, "", ns);
            assert_eq!(String::from_utf8(to).unwrap(), text);
        }
    }
}
