//! Checks `tllmprof serve-metrics`, scraped directly and by Prometheus.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::load::Load;
use crate::common::{command, free_port, repo, run, skipped, tllmprof};
use crate::place::{Place, Running, TEST_TIMEOUT, wait_until};

/// A running server program, which is killed when the value is dropped.
struct Served {
    child: Child,
    /// The address and port where the server listens, such as `127.0.0.1:9427`.
    at: String,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Served {
    /// Starts `tllmprof serve-metrics` on a free port.
    fn metrics(place: &Place) -> Self {
        let mut command = place.command("serve-metrics --listen 127.0.0.1:0");
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        let at = line
            .trim()
            .strip_prefix("tllmprof: metrics are at http://")
            .and_then(|rest| rest.strip_suffix("/metrics"));
        let at = at.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self { child, at }
    }

    /// Sends an HTTP request. Returns the status and the body of the answer.
    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.at).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        write!(stream, "{method} {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    fn text(&self) -> String {
        let (status, text) = self.ask("GET", "/metrics");
        assert_eq!(status, 200, "{text}");
        text
    }

    /// Returns a process's metrics. Each key is a metric's name, followed by those labels that only some metrics
    /// have, such as `name,phase="decode"`.
    fn values(&self, pid: u32) -> BTreeMap<String, f64> {
        let own = format!("{{pid=\"{pid}\",");
        let text = self.text();
        let mine = text.lines().filter(|line| line.contains(&own));
        mine.map(|line| {
            let (name, rest) = line.split_once('{').unwrap();
            let (labels, value) = rest.rsplit_once("} ").unwrap();
            assert!(
                labels.contains("rank=\"3\"") && labels.contains("run=\"r\""),
                "{line}"
            );
            let own = labels.find(",phase=").map_or("", |place| &labels[place..]);
            let key = format!("{name}{own}");
            (key, value.parse().unwrap())
        })
        .collect()
    }
}

fn ranked(place: &Place) -> Running {
    let mut command = place.server("2000");
    command.env("TLLMPROF_RANK", "3").env("TLLMPROF_RUN", "r");
    place.start(&mut command)
}

/// Returns two durations in seconds, summed over all windows of the record: that of the iterations, and that of their
/// work on the GPU.
fn inside(server: &Running) -> (f64, f64) {
    let report = run(
        command(tllmprof())
            .args(["report", "--json"])
            .arg(server.record()),
        TEST_TIMEOUT,
    );
    let json: Value = serde_json::from_slice(&report.stdout).unwrap();
    let windows = json["processes"][0]["windows"].as_array().unwrap();
    let iterations = windows
        .iter()
        .flat_map(|window| window["iterations"].as_array().unwrap());
    iterations.fold((0.0, 0.0), |(took, gpu), one| {
        let seconds = |name: &str| one[name].as_f64().unwrap() / 1e9;
        (took + seconds("dur_ns"), gpu + seconds("gpu_ns"))
    })
}

#[test]
fn a_scrape_has_the_counts_and_the_histogram_of_each_process() {
    let place = Place::new();
    let mut server = ranked(&place);
    server.connect();
    let pid = server.pid();
    let served = Served::metrics(&place);
    let counted = |values: &BTreeMap<String, f64>| values["tllmprof_iterations_total"];
    let is_known = |values: &BTreeMap<String, f64>| {
        // The check of the histogram below needs more than 90 iterations, so the test waits for more than 100.
        counted(values) > 100.0
    };
    served.text();
    wait_until("iterations", || is_known(&served.values(pid)));
    let before = served.values(pid);
    wait_until("more", || counted(&served.values(pid)) > counted(&before));
    let values = served.values(pid);
    let buckets: Vec<_> = values
        .iter()
        .filter(|(key, _)| key.starts_with("tllmprof_iteration_seconds_bucket"))
        .map(|(key, value)| {
            let bound = key.rsplit('"').nth(1).unwrap();
            (bound.parse::<f64>().unwrap(), *value)
        })
        .collect();
    let mut sorted = buckets.clone();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(
        sorted.len() > 10 && sorted.windows(2).all(|two| two[0].1 <= two[1].1),
        "{sorted:?}"
    );
    let count = values[&of_phase("count", "unknown")];
    assert_eq!(sorted.last().unwrap(), &(f64::INFINITY, count));
    assert!(count > 90.0, "{count}");
    // The program's batches are not known, so the phase is `unknown`. In each iteration, the program sleeps for 2 ms,
    // so no iteration is shorter.
    assert_eq!(sorted[2], (0.002, 0.0), "{sorted:?}");
    assert!(values[&of_phase("sum", "unknown")] >= 0.002 * count);
    assert!(values["tllmprof_waits_total"] > 0.0);
    assert_eq!(values["tllmprof_windows_total"], 0.0);
    assert_eq!(values["tllmprof_window_open"], 0.0);
    assert!(
        !values.contains_key("tllmprof_collections_total"),
        "{values:?}"
    );
    let names = [
        "tllmprof_gpu_timed_seconds_total",
        "tllmprof_gpu_seconds_total",
    ];
    assert_eq!(names.map(|name| values[name]), [0.0; 2]);
    let captured = place.tllmprof(&format!("capture {pid} --steps 3"));
    assert!(captured.status.success(), "{}", captured.err());
    let values = served.values(pid);
    assert_eq!(values["tllmprof_windows_total"], 1.0);
    // The times in the metrics differ by less than 0.1 % from the times in the record.
    let (took, gpu) = inside(&server);
    let near = |name: &str, wanted: f64| {
        let value = values[name];
        assert!(
            wanted > 0.0 && (value / wanted - 1.0).abs() < 0.001,
            "{name}: {value}, {wanted}"
        );
    };
    near(names[0], took);
    near(names[1], gpu);
    // While no window is open, the metrics about windows do not change.
    let since = counted(&values);
    wait_until("more", || counted(&served.values(pid)) > since + 50.0);
    let later = served.values(pid);
    assert_eq!(
        names.map(|name| later[name]),
        names.map(|name| values[name])
    );
    // The server refuses a page that does not exist, and a method that is not allowed.
    assert_eq!(served.ask("GET", "/else").0, 404);
    assert_eq!(served.ask("POST", "/metrics").0, 405);
    let (status, body) = served.ask("HEAD", "/metrics");
    assert_eq!((status, body.as_str()), (200, ""));
    // The server does not wait for clients that send rubbish or nothing.
    let silent = TcpStream::connect(&served.at).unwrap();
    TcpStream::connect(&served.at)
        .unwrap()
        .write_all(b"\x00\xff rubbish\r\n\r\n")
        .unwrap();
    served.text();
    drop(silent);
    let unclear = place.tllmprof("serve-metrics --listen 1.2.3");
    let line = "--listen \"1.2.3\": wanted: an address of this machine and a port";
    assert!(unclear.err().contains(line), "{}", unclear.err());
    let taken = place.tllmprof(&format!("serve-metrics --listen {}", served.at));
    assert_eq!(taken.status.code(), Some(1));
    let line = format!("--listen {}: Address already in use", served.at);
    assert!(taken.err().contains(&line), "{}", taken.err());
    server.end();
    wait_until("its end", || served.values(pid).is_empty());
}

/// Returns the key of a metric of iteration times for one phase.
fn of_phase(figure: &str, phase: &str) -> String {
    format!("tllmprof_iteration_seconds_{figure},phase=\"{phase}\"")
}

#[test]
fn times_are_told_apart_by_phase_where_batches_are_read() {
    const STEPS: f64 = 60.0;
    // Phase, number of iterations, and minimum duration of an iteration in seconds. Every tenth step has a prompt among
    // its decodes and takes at least 150 ms. All others take at least 3 ms.
    let by_phase = [("decode", 54.0, 0.003), ("mixed", 6.0, 0.15)];
    for (variables, phases) in [
        (&[("TLLMPROF_FLIGHT", "10")][..], &by_phase[..]),
        (&[("TLLMPROF_WHEN", "iteration > 1000s")], &by_phase),
        (
            // The metrics of iteration times leave out the three iterations of the window.
            &[
                ("TLLMPROF_WHERE", "phase=decode"),
                ("TLLMPROF_START_STOP", "20-22"),
            ],
            &[("decode", 51.0, 0.003), by_phase[1]],
        ),
        (&[], &[("unknown", STEPS, 0.003)]),
    ] {
        let place = Place::new();
        let load = Load::new();
        let Some(mut command) = load.command("", variables) else {
            return;
        };
        command
            .env("XDG_RUNTIME_DIR", place.path("run"))
            .env("TLLMPROF_CONTROL", "1")
            .env("TLLMPROF_RANK", "3")
            .env("TLLMPROF_RUN", "r")
            .env("LAST", STEPS.to_string())
            .env("END", "waits");
        let mut server = place.start_to(&mut command, "waits");
        let served = Served::metrics(&place);
        let values = served.values(server.pid());
        let counts = values.iter().filter(|(name, _)| name.contains("_count,"));
        let counts: BTreeMap<_, _> = counts.map(|(name, count)| (name.clone(), *count)).collect();
        let expected = phases
            .iter()
            .map(|(phase, count, _)| (of_phase("count", phase), *count));
        assert_eq!(counts, expected.collect(), "{variables:?}");
        for (phase, count, shortest) in phases {
            let sum = values[&of_phase("sum", phase)];
            assert!(sum >= shortest * count, "{phase}: {sum}");
            let bucket = of_phase("bucket", phase);
            assert_eq!(values[&format!("{bucket},le=\"0.002\"")], 0.0);
            assert_eq!(values[&format!("{bucket},le=\"+Inf\"")], *count);
        }
        server.kill();
    }
}

/// Returns the folder of Prometheus and promtool. If they are not installed, reports that the test skips some checks,
/// and returns `None`. They are only downloaded with `TLLMPROF_TEST_PROMETHEUS=fetch`.
fn prometheus() -> Option<PathBuf> {
    let mut get = Command::new(repo().join("scripts/get-prometheus"));
    if std::env::var("TLLMPROF_TEST_PROMETHEUS").as_deref() != Ok("fetch") {
        get.arg("--no-fetch");
    }
    let got = run(&mut get, Duration::from_secs(600));
    match got.status.code() {
        Some(0) => Some(got.out().trim().into()),
        Some(3) => {
            skipped(got.err().trim());
            None
        }
        _ => panic!("scripts/get-prometheus: {}\n{}", got.status, got.err()),
    }
}

/// Returns Prometheus's current answer to a query.
fn query(prometheus: &Served, query: &str) -> Vec<Value> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let (status, body) = prometheus.ask("GET", &format!("/api/v1/query?query={encoded}"));
    assert_eq!(status, 200, "{query}: {body}");
    let answer: Value = serde_json::from_str(&body).unwrap();
    answer["data"]["result"].as_array().unwrap().clone()
}

#[test]
fn prometheus_scrapes_it_and_answers_the_queries_of_the_dashboard() {
    let Some(folder) = prometheus() else { return };
    let place = Place::new();
    let mut server = ranked(&place);
    server.connect();
    let served = Served::metrics(&place);
    let text = place.path("metrics");
    fs::write(&text, served.text()).unwrap();
    let mut check = command(folder.join("promtool"));
    let checked = check
        .args(["check", "metrics"])
        .stdin(fs::File::open(&text).unwrap())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");
    // The configuration is that of `examples/`, with this server's port and a shorter interval.
    let example = fs::read_to_string(repo().join("examples/prometheus.yml")).unwrap();
    assert!(
        example.contains("127.0.0.1:9427") && example.contains(": 5s"),
        "{example}"
    );
    let config = example
        .replace("127.0.0.1:9427", &served.at)
        .replace(": 5s", ": 500ms");
    fs::write(place.path("prometheus.yml"), config).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let log = || fs::File::create(place.path("prometheus.log")).unwrap();
    let child = command(folder.join("prometheus"))
        .arg(format!(
            "--config.file={}",
            place.path("prometheus.yml").display()
        ))
        .arg(format!(
            "--storage.tsdb.path={}",
            place.path("data").display()
        ))
        .arg(format!("--web.listen-address={address}"))
        .stdout(Stdio::null())
        .stderr(log())
        .spawn()
        .unwrap();
    let prometheus = Served { child, at: address };
    wait_until("Prometheus", || {
        TcpStream::connect(&prometheus.at).is_ok() && prometheus.ask("GET", "/-/ready").0 == 200
    });
    let of_server = format!("tllmprof_iterations_total{{pid=\"{}\"}}", server.pid());
    wait_until("its rate", || {
        let rate = query(&prometheus, &format!("rate({of_server}[10s])"));
        rate.first().is_some_and(|one| {
            assert_eq!(
                (&one["metric"]["rank"], &one["metric"]["run"]),
                (&"3".into(), &"r".into())
            );
            one["value"][1].as_str().unwrap().parse::<f64>().unwrap() > 1.0
        })
    });
    // The window metrics have already been scraped once, and this window increases them.
    let captured = place.tllmprof(&format!("capture {} --steps 20", server.pid()));
    assert!(captured.status.success(), "{}", captured.err());
    wait_until("the window", || {
        let seen = query(&prometheus, "tllmprof_gpu_timed_seconds_total > 0");
        !seen.is_empty()
    });
    let dashboard: Value =
        serde_json::from_slice(&fs::read(repo().join("examples/grafana.json")).unwrap()).unwrap();
    let targets = |panel: &Value| panel["targets"].as_array().unwrap().clone();
    let panels = dashboard["panels"].as_array().unwrap();
    let exprs: Vec<_> = panels.iter().flat_map(targets).collect();
    assert!(exprs.len() > 8);
    for target in exprs {
        let expr = target["expr"].as_str().unwrap();
        let expr = expr.replace("$__rate_interval", "60s").replace("$run", "r");
        // The program does not run Python, so these metrics have no values.
        if expr.contains("collections") || expr.contains("gil") {
            assert_eq!(query(&prometheus, &expr), [Value::Null; 0], "{expr}");
        } else {
            wait_until(&expr, || !query(&prometheus, &expr).is_empty());
        }
    }
    server.end();
}
