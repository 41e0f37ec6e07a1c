//! Spans for an OpenTelemetry collector, by OTLP over HTTP.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tllmprof_export::{Record, otlp, rejected};
use ureq::Agent;
use ureq::http::Uri;

/// Where the protocol has traces.
const TRACES: &str = "/v1/traces";

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A collector's address; its path is [`TRACES`] where it has none.
pub fn collector(text: &str) -> Result<Uri, String> {
    const WANTED: &str = "wanted: http://HOST:PORT of a collector, such as http://localhost:4318";
    let uri: Uri = text
        .parse()
        .map_err(|error| format!("{error} ({WANTED})"))?;
    match uri.scheme_str() {
        Some("http") if uri.host().is_some_and(|host| !host.is_empty()) => (),
        Some("https") => {
            return Err(format!(
                "https is not spoken ({WANTED}, which may pass it on)"
            ));
        }
        _ => return Err(format!("this is no such address ({WANTED})")),
    }
    let mut parts = uri.into_parts();
    if let Some(path) = &parts.path_and_query
        && path.path() == "/"
    {
        parts.path_and_query = TRACES.parse().ok();
    }
    Uri::from_parts(parts).map_err(|error| format!("{error} ({WANTED})"))
}

/// Sends the spans of records to a collector; how many there were.
pub fn send(records: &[Record], to: &Uri) -> Result<u64> {
    let agent: Agent = Agent::config_builder()
        .timeout_global(Some(PATIENCE))
        .http_status_as_error(false)
        .build()
        .into();
    let mut sent = 0;
    for request in otlp(records) {
        let post = agent
            .post(to.clone())
            .content_type("application/x-protobuf");
        let mut answer = post.send(&request.bytes).with_context(|| to.to_string())?;
        let status = answer.status();
        if !status.is_success() {
            let why = answer.body_mut().read_to_string().unwrap_or_default();
            bail!(
                "{to}: the collector answers {status} {}",
                why.trim().escape_debug()
            );
        }
        let body = answer
            .body_mut()
            .read_to_vec()
            .with_context(|| to.to_string())?;
        if let Some((spans, why)) = rejected(&body) {
            bail!(
                "{to}: the collector rejects {spans} of {} spans: {}",
                request.spans,
                why.escape_debug()
            );
        }
        sent += request.spans;
    }
    Ok(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_collectors() {
        let to = |text: &str| collector(text).map(|uri| uri.to_string());
        assert_eq!(
            to("http://localhost:4318").unwrap(),
            "http://localhost:4318/v1/traces"
        );
        assert_eq!(
            to("http://[::1]:4318/").unwrap(),
            "http://[::1]:4318/v1/traces"
        );
        assert_eq!(
            to("http://gate/otlp/traces?x=1").unwrap(),
            "http://gate/otlp/traces?x=1"
        );
        for wrong in [
            "",
            "localhost:4318",
            "https://localhost",
            "http://",
            "grpc://localhost:4317",
            "/v1/traces",
        ] {
            let why = to(wrong).unwrap_err();
            assert!(why.contains("(wanted: http://HOST:PORT"), "{wrong}: {why}");
        }
    }
}
