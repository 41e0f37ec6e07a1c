//! `tllmprof serve-metrics`: serves figures of running processes to Prometheus.
//!
//! Each scrape asks the processes over their control sockets, and reads their ring files (with the latest steps and
//! collectives), the headers of their records, and the energy counters of the GPUs ([`energy`]). No figure is kept
//! between scrapes. [`exposition`] writes the figures as text for Prometheus.

mod energy;
mod exposition;

use std::net::{SocketAddr, ToSocketAddrs};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use tiny_http::{Header, Method, Request, Response, Server};

use super::record::Figures;
use super::sockets;
use crate::failure::worded;
use crate::{hang, output};
use energy::EnergyReader;
use exposition::ProcessFigures;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(clap::Args)]
#[command(after_help = "\
Any program that can connect can read the metrics, so by default only programs on this machine can. examples/prometheus.yml \
is a scrape configuration for Prometheus, and examples/grafana.json is a dashboard for Grafana.

  tllmprof serve-metrics &
  curl http://127.0.0.1:9427/metrics")]
pub(crate) struct MetricsArguments {
    /// Address and port to listen on; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9427", value_parser = address)]
    listen: SocketAddr,
}

/// Parses an address or host name with a port.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    let mut found = text.to_socket_addrs().into_iter().flatten();
    found
        .next()
        .ok_or("wanted: an address of this machine and a port, such as 127.0.0.1:9427")
}

pub(crate) fn run(arguments: &MetricsArguments) -> Result<ExitCode> {
    let listen = arguments.listen;
    let server = Server::http(listen)
        .map_err(|error| anyhow!("--listen {listen}: {}", worded(&error.to_string())))?;
    let at = server.server_addr().to_ip().unwrap_or(listen);
    let mut energy = EnergyReader::start();
    output::note(format_args!("metrics are at http://{at}/metrics"));
    loop {
        let request = server
            .recv()
            .map_err(|error| anyhow!("--listen {listen}: {}", worded(&error.to_string())))?;
        answer(request, &mut energy);
    }
}

fn answer(request: Request, energy: &mut EnergyReader) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (status, text) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => {
            (200, exposition::text(&seen(), &energy.read()))
        }
        (Method::Get | Method::Head, "/") => (200, "metrics are at /metrics\n".to_owned()),
        (Method::Get | Method::Head, _) => (404, "metrics are at /metrics\n".to_owned()),
        _ => (405, "wanted: GET /metrics\n".to_owned()),
    };
    let mut response = Response::from_string(text).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", TEXT) {
        response.add_header(header);
    }
    // An error is ignored, because the client may have disconnected before the response.
    let _ = request.respond(response);
}

fn seen() -> Vec<ProcessFigures> {
    let processes = sockets::listening();
    let stuck = hang::stuck_times(processes.iter().map(|process| process.status.pid));
    let of = |process: sockets::ListeningProcess| ProcessFigures {
        figures: Figures::from_status(&process.status),
        stuck_ns: stuck.get(&process.status.pid).copied(),
        status: process.status,
    };
    processes.into_iter().map(of).collect()
}
