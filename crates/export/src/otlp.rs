//! Exports windows and slow iterations as spans of OpenTelemetry's protocol (OTLP).
//!
//! Each window, which is a profiled range of iterations, becomes a span. The slowest iterations of the process become
//! child spans of their windows. The processes of a run record the same windows; the spans for the same window are in
//! one trace, so that the ranks are shown together.

use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tllmprof_record::Batch;
use tllmprof_report::{Change, Difference, Process, Slow, Window};

use crate::record::Record;

/// Maximum number of spans that are sent in one request.
const MAX_SPANS: usize = 1000;

/// A request to an OpenTelemetry collector: spans that are sent together.
#[derive(Debug)]
pub struct Request {
    /// The request in encoded form (`ExportTraceServiceRequest`).
    pub bytes: Vec<u8>,
    pub spans: u64,
}

/// Returns the spans of all records, divided into requests of a limited size.
pub fn otlp(records: &[Record]) -> impl Iterator<Item = Request> {
    records.iter().flat_map(|record| {
        let spans = spans(&record.process);
        let requests = spans
            .chunks(MAX_SPANS)
            .map(|spans| request(&record.process, spans.to_vec()));
        requests.collect::<Vec<_>>()
    })
}

/// Decodes a collector's answer to a request. Returns the number of spans that the collector has rejected, and the
/// reason. Returns `None` if no span was rejected.
#[must_use]
pub fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let answer = ExportTraceServiceResponse::decode(answer).ok()?;
    let partial = answer.partial_success?;
    let spans = u64::try_from(partial.rejected_spans)
        .ok()
        .filter(|spans| *spans > 0)?;
    Some((spans, partial.error_message))
}

fn request(process: &Process, spans: Vec<Span>) -> Request {
    let count = spans.len() as u64;
    let scope = InstrumentationScope {
        name: "tllmprof".to_owned(),
        version: process.facts.software.library.clone(),
        ..InstrumentationScope::default()
    };
    let scope_spans = ScopeSpans {
        scope: Some(scope),
        spans,
        ..ScopeSpans::default()
    };
    let resource_spans = ResourceSpans {
        resource: Some(resource(process)),
        scope_spans: vec![scope_spans],
        ..ResourceSpans::default()
    };
    let request = ExportTraceServiceRequest {
        resource_spans: vec![resource_spans],
    };
    Request {
        bytes: request.encode_to_vec(),
        spans: count,
    }
}

/// Returns a description of the process that the spans belong to. Attributes whose names do not begin with
/// `tllmprof.` are defined by OpenTelemetry.
fn resource(process: &Process) -> Resource {
    let facts = &process.facts;
    let name = match &*facts.engine {
        "" => &facts.process,
        engine => engine,
    };
    let mut attributes = vec![
        text("service.name", name),
        text("host.name", &facts.host),
        int("process.pid", process.pid.into()),
        text("process.command_line", &facts.command),
        text("tllmprof.run", &facts.run),
        int("tllmprof.rank", facts.rank),
        text("tllmprof.iteration_rule", &facts.rule),
        text("tllmprof.groups", &facts.in_groups),
    ];
    attributes.extend(
        facts
            .world_size
            .map(|size| int("tllmprof.world_size", size)),
    );
    attributes.retain(is_something);
    Resource {
        attributes,
        ..Resource::default()
    }
}

fn spans(process: &Process) -> Vec<Span> {
    let mut spans = Vec::new();
    for window in process
        .windows
        .iter()
        .filter(|window| !window.iterations.is_empty())
    {
        let ids = Ids::new(process, window);
        let start = window.iterations[0].start;
        spans.push(Span {
            trace_id: ids.trace.to_vec(),
            span_id: ids.of_window().to_vec(),
            name: format!("window {}-{}", window.first, window.last),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: unix(process, start),
            end_time_unix_nano: unix(process, start + window.wall()),
            attributes: of_window(window),
            ..Span::default()
        });
        let is_here = |slow: &&Slow| {
            window
                .iterations
                .iter()
                .any(|one| (one.n, one.start) == (slow.n, slow.start))
        };
        for slow in process.slowest.iter().filter(is_here) {
            spans.push(Span {
                trace_id: ids.trace.to_vec(),
                span_id: ids.of_iteration(slow.n).to_vec(),
                parent_span_id: ids.of_window().to_vec(),
                name: format!("iteration {}", slow.n),
                kind: SpanKind::Internal.into(),
                start_time_unix_nano: unix(process, slow.start),
                end_time_unix_nano: unix(process, slow.start + slow.duration),
                attributes: of_iteration(slow),
                ..Span::default()
            });
        }
    }
    spans
}

fn of_window(window: &Window) -> Vec<KeyValue> {
    let counted = window.qualified().count() as u64;
    vec![
        int("tllmprof.first", window.first),
        int("tllmprof.last", window.last),
        int("tllmprof.iterations", window.iterations.len() as u64),
        int("tllmprof.iterations_counted", counted),
        flag("tllmprof.cut", window.cut || !window.closed),
    ]
}

fn of_iteration(slow: &Slow) -> Vec<KeyValue> {
    let mut attributes = vec![
        int("tllmprof.iteration", slow.n),
        signed("tllmprof.longer_than_usual_ns", slow.more),
    ];
    let cause = |one: &Difference| format!("{} {}", Change(one.more), one.cause);
    let causes: Vec<_> = slow.causes.iter().map(cause).collect();
    attributes.push(text("tllmprof.causes", &causes.join(", ")));
    attributes.extend(slow.batch.into_iter().flat_map(of_batch));
    attributes.retain(is_something);
    attributes
}

fn of_batch(batch: Batch) -> [KeyValue; 4] {
    [
        text("tllmprof.batch.phase", batch.phase().name()),
        int("tllmprof.batch.requests", batch.requests.into()),
        int("tllmprof.batch.tokens", batch.tokens.into()),
        int("tllmprof.batch.prefill_tokens", batch.prefill_tokens.into()),
    ]
}

/// Converts a time on the process's `CLOCK_MONOTONIC` to nanoseconds since 1970.
fn unix(process: &Process, monotonic: u64) -> u64 {
    monotonic.saturating_add_signed(process.record.unix_minus_monotonic)
}

/// The trace id of a window, and a hash of the process and the window's first iteration (`process`). The span ids of
/// the window and its iterations are computed from this hash. All ids are the same in every export, so the spans of a
/// second export have the ids of the first export and are not counted twice.
struct Ids {
    trace: [u8; 16],
    process: u64,
}

impl Ids {
    fn new(process: &Process, window: &Window) -> Self {
        let facts = &process.facts;
        let own = format!("{}/{}/{}", facts.host, facts.boot, process.pid);
        // A process without a run identifier shares no windows with other processes. Its host, boot and process id are
        // used as the run identifier, so its spans get a separate trace.
        let run = match &*facts.run {
            "" => &own,
            run => run,
        };
        let trace = |half: u8| {
            hash(&[
                run.as_bytes(),
                &window.first.to_le_bytes(),
                &window.last.to_le_bytes(),
                &[half],
            ])
        };
        let mut ids = [0; 16];
        ids[..8].copy_from_slice(&trace(0).to_le_bytes());
        ids[8..].copy_from_slice(&trace(1).to_le_bytes());
        Self {
            trace: ids,
            process: hash(&[own.as_bytes(), &window.first.to_le_bytes()]),
        }
    }

    fn of_window(&self) -> [u8; 8] {
        hash(&[&self.process.to_le_bytes()]).to_le_bytes()
    }

    fn of_iteration(&self, n: u64) -> [u8; 8] {
        hash(&[&self.process.to_le_bytes(), &n.to_le_bytes()]).to_le_bytes()
    }
}

/// Returns the FNV-1a hash of the parts. This hash stays the same in all versions of the program. The result is never
/// 0, because a span id must not be 0.
fn hash(parts: &[&[u8]]) -> u64 {
    let byte = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let separated = parts.iter().flat_map(|part| part.iter().chain(&[0xff]));
    separated.fold(0xcbf2_9ce4_8422_2325, byte).max(1)
}

fn is_something(attribute: &KeyValue) -> bool {
    let value = attribute
        .value
        .as_ref()
        .and_then(|value| value.value.as_ref());
    !matches!(value, Some(Value::StringValue(text)) if text.is_empty())
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn int(key: &str, value: u64) -> KeyValue {
    signed(key, i64::try_from(value).unwrap_or(i64::MAX))
}

fn signed(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn flag(key: &str, value: bool) -> KeyValue {
    attribute(key, Value::BoolValue(value))
}
