//! Sends spans to an OpenTelemetry collector, using OTLP over HTTP.

use std::env;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::crypto::ring;
use tllmprof_export::{Record, otlp, rejected};
use ureq::Agent;
use ureq::http::{HeaderName, HeaderValue, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

/// The path in a collector's URL to which the protocol sends traces.
const TRACES: &str = "/v1/traces";

/// Time after which a request to the collector fails.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// OpenTelemetry's variables with HTTP headers for exporters. The one for traces comes first, because it takes
/// precedence.
const HEADERS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_HEADERS",
];
/// OpenTelemetry's variables with the file of trusted certificates. The one for traces comes first, because it takes
/// precedence.
const CERTIFICATE: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
    "OTEL_EXPORTER_OTLP_CERTIFICATE",
];

/// Parses a collector's address. If the address has no path, [`TRACES`] is used.
pub(crate) fn collector(text: &str) -> Result<Uri, String> {
    const WANTED: &str = "wanted: http://HOST:PORT or https://HOST:PORT of a collector, such as http://localhost:4318";
    if let Some(port) = bad_port(text) {
        return Err(format!(
            "the port \"{port}\" is not a number from 1 to 65535 ({WANTED})"
        ));
    }
    let uri: Uri = text
        .parse()
        .map_err(|error| format!("{error} ({WANTED})"))?;
    let is_one = matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.host().is_some_and(|host| !host.is_empty());
    if !is_one {
        return Err(format!("this is no such address ({WANTED})"));
    }
    let mut parts = uri.into_parts();
    if let Some(path) = &parts.path_and_query
        && path.path() == "/"
    {
        parts.path_and_query = TRACES.parse().ok();
    }
    Uri::from_parts(parts).map_err(|error| format!("{error} ({WANTED})"))
}

/// Returns the port in a collector's address if it is not a number from 1 to 65535. The parser of addresses accepts some
/// such ports, and does not name the others.
fn bad_port(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = authority.rsplit_once(':')?;
    // In an address such as `[::1]`, the colons are part of the host.
    let is_port = !host.starts_with('[') || host.ends_with(']');
    let is_valid = port.parse::<u16>().is_ok_and(|number| number > 0);
    (is_port && !is_valid).then_some(port)
}

/// Returns the name and value of the first variable in `names` that is set and not blank.
fn variable(names: [&'static str; 2]) -> Option<(&'static str, String)> {
    let value = |name| Some((name, env::var(name).ok()?));
    names
        .into_iter()
        .filter_map(value)
        .find(|(_, value)| !value.trim().is_empty())
}

/// Parses a list of HTTP headers `KEY=VALUE,…`, whose values are percent-encoded.
fn headers(text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let pairs = text.split(',').filter(|pair| !pair.trim().is_empty());
    let header = |pair: &str| {
        let (name, value) = pair.split_once('=')?;
        let value = decoded(value.trim())?;
        Some((
            name.trim().parse().ok()?,
            HeaderValue::from_bytes(&value).ok()?,
        ))
    };
    pairs
        .map(|pair| header(pair).ok_or_else(|| "wanted: KEY=VALUE,… of headers".to_owned()))
        .collect()
}

/// Decodes each `%XX` of a text. Returns `None` if an escape is invalid.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let code = part.get(..2)?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend(&part.as_bytes()[2..]);
    }
    Some(bytes)
}

/// Returns the certificates to trust: those in the file that a variable of [`CERTIFICATE`] names, otherwise those of
/// the system.
fn trusted() -> Result<RootCerts> {
    let Some((name, path)) = variable(CERTIFICATE) else {
        return Ok(RootCerts::PlatformVerifier);
    };
    let what = format!("{name}={path:?}");
    let text = fs::read(&path).with_context(|| what.clone())?;
    let certificates: Vec<Certificate<'static>> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        bail!("{what}: no certificate is in it (wanted: a file of PEM)");
    }
    Ok(RootCerts::from(certificates))
}

/// Sends the spans of records to a collector. Returns the number of spans.
pub(crate) fn send(records: &[Record], to: &Uri) -> Result<u64> {
    let headers = match variable(HEADERS) {
        // The headers may contain a secret, so error messages do not show them.
        Some((name, value)) => headers(&value).map_err(|why| anyhow::anyhow!("{name}: {why}"))?,
        None => Vec::new(),
    };
    let mut tls = TlsConfig::builder();
    if to.scheme_str() == Some("https") {
        tls = tls
            .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
            .root_certs(trusted()?);
    }
    let agent: Agent = Agent::config_builder()
        .timeout_global(Some(REQUEST_TIMEOUT))
        .http_status_as_error(false)
        .tls_config(tls.build())
        .build()
        .into();
    let mut sent = 0;
    for request in otlp(records) {
        let mut post = agent
            .post(to.clone())
            .content_type("application/x-protobuf");
        for (name, value) in &headers {
            post = post.header(name, value);
        }
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
            to("https://[::1]:4318/").unwrap(),
            "https://[::1]:4318/v1/traces"
        );
        assert_eq!(
            to("http://gate/otlp/traces?x=1").unwrap(),
            "http://gate/otlp/traces?x=1"
        );
        for (wrong, port) in [
            ("http://localhost:99999", "99999"),
            ("http://[::1]:a/", "a"),
        ] {
            let why = to(wrong).unwrap_err();
            assert!(
                why.starts_with(&format!("the port \"{port}\" is not")),
                "{why}"
            );
        }
        assert!(to("http://[::1]").is_ok());
        for wrong in [
            "",
            "localhost:4318",
            "http://",
            "grpc://localhost:4317",
            "/v1/traces",
        ] {
            let why = to(wrong).unwrap_err();
            assert!(why.contains("(wanted: http://HOST:PORT"), "{wrong}: {why}");
        }
    }

    #[test]
    fn headers_of_the_variable() {
        let of = |text: &str| -> Result<Vec<String>, String> {
            let shown = |(name, value): (HeaderName, HeaderValue)| {
                format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))
            };
            Ok(headers(text)?.into_iter().map(shown).collect())
        };
        let found = of("api-key=a%20b%3D, X-Scope = team=1,").unwrap();
        assert_eq!(found, ["api-key: a b=", "x-scope: team=1"]);
        for wrong in ["key", "key=%4", "key=%zz", "a key=1", "key=%0a", "key=%é"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
