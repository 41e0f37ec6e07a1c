//! Tests of `tllmprof export --otlp`: the requests that a collector receives.

mod common;
#[path = "../../report/tests/common/server.rs"]
mod server;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::thread;

use common::{Ended, Scratch, finish, plain};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rcgen::{CertifiedKey, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use server::{Server, UNIX};
use tiny_http::{Response, Server as Http};
use tllmprof_record::{Event, Info, What};

/// Writes the record of rank `rank` of the simulated server. The record's run identifier is `a-run`.
fn record(scratch: &Scratch, rank: u64) {
    let (mut builder, truth) = Server::rank(rank).record();
    let value = builder.string(1, "a-run").into();
    let key = Some(Info::Run);
    builder.push(1, &Event::new(truth[0].start, 0, What::Info { key, value }));
    let path = scratch.path(&format!("rank-{rank}.tllmprof"));
    let mut file = fs::File::create(path).unwrap();
    builder.write_to(&mut file).unwrap();
}

fn send(scratch: &Scratch, to: &str) -> Ended {
    send_with(scratch, to, &[])
}

fn send_with(scratch: &Scratch, to: &str, variables: &[(&str, &str)]) -> Ended {
    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    command
        .args(["export", ".", "--otlp", to])
        .envs(variables.iter().copied());
    finish(command.current_dir(scratch.path("")))
}

/// Runs a collector, which answers each request with the status and body that `answer` returns. Calls `act` with the
/// collector's address. Returns the result of `act`, and the requests that the collector received.
fn collected<R>(
    answer: impl Fn(&ExportTraceServiceRequest) -> (u16, Vec<u8>) + Send + 'static,
    act: impl FnOnce(&str) -> R,
) -> (R, Vec<ExportTraceServiceRequest>) {
    let http = Arc::new(Http::http("127.0.0.1:0").unwrap());
    let address = format!("http://{}", http.server_addr());
    let listening = Arc::clone(&http);
    let collector = thread::spawn(move || {
        let mut came = Vec::new();
        for mut request in listening.incoming_requests() {
            assert_eq!(request.url(), "/v1/traces");
            let kind = request
                .headers()
                .iter()
                .find(|header| header.field.equiv("Content-Type"));
            assert_eq!(kind.unwrap().value, "application/x-protobuf");
            let mut bytes = Vec::new();
            request.as_reader().read_to_end(&mut bytes).unwrap();
            let spans = ExportTraceServiceRequest::decode(&bytes[..]).unwrap();
            let (status, body) = answer(&spans);
            request
                .respond(Response::from_data(body).with_status_code(status))
                .unwrap();
            came.push(spans);
        }
        came
    });
    let result = act(&address);
    http.unblock();
    (result, collector.join().unwrap())
}

fn all_is_well(_: &ExportTraceServiceRequest) -> (u16, Vec<u8>) {
    (200, ExportTraceServiceResponse::default().encode_to_vec())
}

fn attributes(all: &[KeyValue]) -> BTreeMap<&str, String> {
    let shown = |one: &KeyValue| match one.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(flag)) => flag.to_string(),
        other => panic!("{other:?}"),
    };
    all.iter().map(|one| (&*one.key, shown(one))).collect()
}

#[test]
fn windows_and_slow_iterations_of_all_ranks_are_spans_of_one_trace() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    record(&scratch, 1);
    let (ended, came) = collected(all_is_well, |to| send(&scratch, to));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert_eq!(came.len(), 2, "a request for each process");
    let mut windows = Vec::new();
    let mut count = 0;
    for (rank, request) in came.iter().enumerate() {
        let of = &request.resource_spans[0];
        let resource = attributes(&of.resource.as_ref().unwrap().attributes);
        assert_eq!(resource["tllmprof.rank"], rank.to_string());
        assert_eq!(
            (&*resource["tllmprof.run"], &*resource["host.name"]),
            ("a-run", "gpu7")
        );
        let spans = &of.scope_spans[0].spans;
        count += spans.len();
        let (own, inner): (Vec<&Span>, Vec<&Span>) = spans
            .iter()
            .partition(|span| span.parent_span_id.is_empty());
        assert!(!own.is_empty() && !inner.is_empty());
        for span in inner {
            let parent = own
                .iter()
                .find(|own| own.span_id == span.parent_span_id)
                .unwrap();
            assert_eq!(parent.trace_id, span.trace_id);
            assert!(parent.start_time_unix_nano <= span.start_time_unix_nano);
            assert!(span.end_time_unix_nano <= parent.end_time_unix_nano);
            let attributes = attributes(&span.attributes);
            assert_eq!(
                span.name,
                format!("iteration {}", attributes["tllmprof.iteration"])
            );
            assert!(
                attributes["tllmprof.causes"].contains(['+', '−']),
                "{attributes:?}"
            );
        }
        windows.push(own[0].clone());
    }
    let last = format!(": {count} spans of 2 processes\n");
    assert!(ended.stderr.ends_with(&last), "{}", ended.stderr);
    // The times of the spans are the recorded times, converted to nanoseconds since 1970.
    let (_, truth) = Server::rank(0).record();
    assert!(
        truth
            .iter()
            .any(|one| one.start + UNIX == windows[0].start_time_unix_nano)
    );
    let [first, second] = &windows[..] else {
        panic!()
    };
    assert_eq!(
        (&first.name, &first.trace_id),
        (&second.name, &second.trace_id)
    );
    assert_ne!(first.span_id, second.span_id);

    let (_, again) = collected(all_is_well, |to| send(&scratch, to));
    assert_eq!(again, came, "a second export has the same spans");
}

#[test]
fn what_a_collector_does_not_take_is_an_error_with_one_line() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let busy = |_: &ExportTraceServiceRequest| (503, b"come back\x1b[2J later".to_vec());
    let (ended, _) = collected(busy, |to| send(&scratch, to));
    assert_eq!(ended.code(), Some(1));
    let why =
        "/v1/traces: the collector answers 503 Service Unavailable come back\\u{1b}[2J later\n";
    assert!(ended.stderr.ends_with(why), "{}", ended.stderr);
    let rejects = |_: &ExportTraceServiceRequest| {
        let partial_success = Some(ExportTracePartialSuccess {
            rejected_spans: 2,
            error_message: "too old".to_owned(),
        });
        let answer = ExportTraceServiceResponse { partial_success };
        (200, answer.encode_to_vec())
    };
    let (ended, _) = collected(rejects, |to| send(&scratch, to));
    assert_eq!(ended.code(), Some(1));
    assert!(
        ended.stderr.contains("the collector rejects 2 of "),
        "{}",
        ended.stderr
    );
    // No collector listens on this port.
    let ended = send(&scratch, "http://127.0.0.1:9/");
    assert_eq!(
        (ended.code(), ended.stderr.lines().count()),
        (Some(1), 1),
        "{}",
        ended.stderr
    );
    assert!(
        ended
            .stderr
            .starts_with("tllmprof: http://127.0.0.1:9/v1/traces: "),
        "{}",
        ended.stderr
    );
    let wrong = "collector:4318";
    let ended = send(&scratch, wrong);
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended.stderr.contains("this is no such address") && ended.stderr.contains(wrong),
        "{}",
        ended.stderr
    );
}

/// Reads an HTTP message: its head, and a body of the length that the head names. Returns no bytes if the connection
/// ends before the end of the head.
fn message(from: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut one = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if from.read(&mut one).unwrap_or(0) == 0 {
            return Vec::new();
        }
        bytes.push(one[0]);
    }
    let head = String::from_utf8_lossy(&bytes).to_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap();
    let length: usize = length.lines().next().unwrap().parse().unwrap();
    let at = bytes.len();
    bytes.resize(at + length, 0);
    from.read_exact(&mut bytes[at..]).unwrap();
    bytes
}

/// Accepts TLS connections on a local address and forwards their requests to a collector. Returns the local address,
/// and a channel that receives the head of each request in lower case.
fn gate(certified: &CertifiedKey<KeyPair>, to: &str) -> (String, mpsc::Receiver<String>) {
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let to = to.strip_prefix("http://").unwrap().to_owned();
    let (heads, received) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut tls = StreamOwned::new(connection, stream.unwrap());
            let mut collector = TcpStream::connect(&to).unwrap();
            loop {
                let request = message(&mut tls);
                if request.is_empty() {
                    break;
                }
                let head = request.split(|byte| *byte == 0).next().unwrap();
                let _ = heads.send(String::from_utf8_lossy(head).to_lowercase());
                collector.write_all(&request).unwrap();
                let answer = message(&mut collector);
                tls.write_all(&answer).and_then(|()| tls.flush()).unwrap();
            }
        }
    });
    (format!("https://localhost:{port}"), received)
}

#[test]
fn spans_go_by_tls_to_a_collector_that_is_trusted() {
    let scratch = Scratch::new();
    record(&scratch, 0);
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let pem = scratch.path("collector.pem");
    fs::write(&pem, certified.cert.pem()).unwrap();
    let pem = pem.to_str().unwrap();
    let trusts = ("OTEL_EXPORTER_OTLP_CERTIFICATE", pem);
    let (heads, came) = collected(all_is_well, |to| {
        let (address, heads) = gate(&certified, to);
        // The certificate is not trusted yet, so the connection fails.
        let ended = send(&scratch, &address);
        let line = (ended.code(), ended.stderr.lines().count());
        assert_eq!(line, (Some(1), 1), "{}", ended.stderr);
        assert!(ended.stderr.contains(&address), "{}", ended.stderr);
        assert_eq!(heads.try_recv().ok(), None);

        let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20secret");
        let ended = send_with(&scratch, &address, &[trusts, headers]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        heads.recv().unwrap()
    });
    assert_eq!(came.len(), 1);
    assert!(heads.contains("api-key: a secret\r\n"), "{heads}");

    fs::write(scratch.path("none.pem"), "none").unwrap();
    for (name, value, why) in [
        (trusts.0, "none.pem", "no certificate is in it"),
        (trusts.0, "missing.pem", "there is no such file"),
        (
            "OTEL_EXPORTER_OTLP_HEADERS",
            "a secret",
            "wanted: KEY=VALUE",
        ),
    ] {
        let ended = send_with(&scratch, "https://localhost:9", &[(name, value)]);
        let line = (ended.code(), ended.stderr.lines().count());
        assert_eq!(line, (Some(1), 1), "{}", ended.stderr);
        let said = ended.stderr.contains(name) && ended.stderr.contains(why);
        assert!(said && !ended.stderr.contains("secret"), "{}", ended.stderr);
    }
}
