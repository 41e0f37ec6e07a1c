//! Tests of `tllmprof mcp` on stored records: with single messages of the protocol, and with the
//! protocol's own client.

mod common;
#[path = "common/fetched.rs"]
mod fetched;
#[path = "../../report/tests/common/job.rs"]
mod job;
#[path = "../../../tests/common/skipped.rs"]
mod skipped;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use common::{Scratch, finish, plain, wait};
use fetched::fetched;
use flate2::read::GzDecoder;
use job::{Cause, Job, MS, Plant};
use serde_json::{Value, json};

const LAYERS: &str = "standin-layers.tllmprof";
const STACKS: &str = "vllm-stacks.tllmprof";
/// The name of a stored record that contains the identifier of a run.
const GIL: &str = "standin-gil.tllmprof";
/// The longest time to wait for an answer.
const LIMIT: Duration = Duration::from_secs(180);
/// The maximum length of an answer, in characters.
const LONGEST: usize = 8000;

fn repo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Creates a folder with the stored records.
fn records() -> Scratch {
    let scratch = Scratch::new();
    for name in [LAYERS, STACKS, GIL] {
        let stored = repo().join(format!("crates/page/tests/corpus/{name}.gz"));
        let mut record = File::create(scratch.path(name)).unwrap();
        std::io::copy(
            &mut GzDecoder::new(File::open(stored).unwrap()),
            &mut record,
        )
        .unwrap();
    }
    scratch
}

/// A running MCP server, and the test's ends of the server's pipes.
struct Session {
    server: Child,
    to: Option<ChildStdin>,
    /// The lines that the server writes.
    from: Receiver<String>,
    requests: u64,
}

impl Session {
    fn new(folder: &Path, options: &[&str]) -> Self {
        let mut session = Self::unopened(folder, options);
        let opened = session.ask(
            "initialize",
            &json!({
                "protocolVersion": "2025-06-18", "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            }),
        );
        let opened = &opened["result"];
        assert_eq!(opened["protocolVersion"], "2025-06-18");
        assert_eq!(opened["serverInfo"]["name"], "tllmprof");
        assert_eq!(opened["capabilities"], json!({"tools": {}}));
        session.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        session
    }

    fn unopened(folder: &Path, options: &[&str]) -> Self {
        let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
        let mut server = command
            .arg("mcp")
            .args(options)
            .arg(folder)
            // Processes of other tests open their control sockets in other folders, so this server does not find those
            // processes.
            .env("XDG_RUNTIME_DIR", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(server.stdout.take().unwrap());
        let (lines, from) = mpsc::channel();
        thread::spawn(move || {
            let mut all = stdout.lines().map_while(Result::ok);
            all.try_for_each(|line| lines.send(line))
        });
        Self {
            to: server.stdin.take(),
            from,
            server,
            requests: 0,
        }
    }

    fn write(&mut self, message: &Value) {
        let to = self.to.as_mut().unwrap();
        writeln!(to, "{message}").unwrap();
    }

    /// Sends a request. Returns its response, which is the next line that the server writes.
    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.requests += 1;
        let id = self.requests;
        self.write(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        let response = self.next();
        assert_eq!(
            (&response["jsonrpc"], &response["id"]),
            (&json!("2.0"), &json!(id))
        );
        response
    }

    /// Waits for the next line that the server writes, and returns it as JSON. Fails the test if there is none within
    /// [`LIMIT`].
    fn next(&mut self) -> Value {
        let line = self.from.recv_timeout(LIMIT).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn tools(&mut self) -> Vec<Value> {
        let response = self.ask("tools/list", &json!({}));
        response["result"]["tools"].as_array().unwrap().clone()
    }

    /// Calls a tool. Returns its answer, or the text of its error.
    fn call(&mut self, tool: &str, arguments: Value) -> Result<String, String> {
        let response = self.ask("tools/call", &json!({"name": tool, "arguments": arguments}));
        let result = &response["result"];
        let parts = result["content"]
            .as_array()
            .unwrap_or_else(|| panic!("{response}"));
        let text = |part: &Value| part["text"].as_str().unwrap().to_owned();
        let length: usize = parts.iter().map(|part| text(part).chars().count()).sum();
        assert!(length <= LONGEST, "{tool}: {length}");
        match result["isError"] == true {
            true => Err(text(&parts[0])),
            false => Ok(text(&parts[0])),
        }
    }

    fn json(&mut self, tool: &str, arguments: Value) -> Value {
        let text = self.call(tool, arguments).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Calls a tool repeatedly until it has returned all pages of its rows, and returns all these rows.
    fn rows(&mut self, tool: &str, mut arguments: Value) -> Vec<Value> {
        let mut rows = Vec::new();
        loop {
            let page = self.json(tool, arguments.clone());
            rows.extend(page["rows"].as_array().unwrap().iter().cloned());
            if page["next_offset"].is_null() {
                assert_eq!(page["rows_in_all"], rows.len());
                return rows;
            }
            assert_eq!(page["next_offset"], rows.len());
            arguments["offset"] = page["next_offset"].clone();
        }
    }

    /// Closes the server's input. Returns the server's exit status.
    fn end(mut self) -> Option<i32> {
        drop(self.to.take());
        let status = wait(&mut self.server).expect("it ends with its input");
        let rest: Vec<_> = self.from.iter().collect();
        assert!(
            rest.is_empty(),
            "nothing follows the last response: {rest:?}"
        );
        status.code()
    }
}

/// Returns the report of a record, in the form that `report --json` prints.
fn report(folder: &Scratch, record: &str) -> Value {
    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    let ended = finish(command.args(["report", "--json"]).arg(folder.path(record)));
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn each_tool_describes_its_arguments() {
    let scratch = Scratch::new();
    let mut session = Session::new(&scratch.path(""), &["--allow-capture"]);
    let all = session.tools();
    for tool in &all {
        let name = tool["name"].as_str().unwrap();
        assert!(
            tool["description"]
                .as_str()
                .is_some_and(|text| text.len() > 20),
            "{name}"
        );
        let schema = &tool["inputSchema"];
        assert_eq!(
            (&schema["type"], &schema["additionalProperties"]),
            (&json!("object"), &json!(false))
        );
        let properties = schema["properties"].as_object().unwrap();
        for (argument, about) in properties {
            assert!(about["description"].is_string(), "{name} {argument}");
            let kind = about["type"]
                .as_str()
                .unwrap_or_else(|| panic!("{name} {argument}: {about}"));
            assert!(
                ["string", "array", "integer"].contains(&kind),
                "{name} {argument}: {kind}"
            );
            assert_ne!(
                about.get("default"),
                Some(&Value::Null),
                "{name} {argument}"
            );
        }
        for required in schema["required"].as_array().into_iter().flatten() {
            assert!(
                properties.contains_key(required.as_str().unwrap()),
                "{name}"
            );
        }
        assert_eq!(
            tool["annotations"]["readOnlyHint"],
            json!(name != "capture")
        );
    }
    assert_eq!(session.end(), Some(0));
    let mut session = Session::new(&scratch.path(""), &[]);
    let names = |tools: &[Value]| -> BTreeSet<String> {
        tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let read_only = session.tools();
    let more: Vec<_> = names(&all)
        .difference(&names(&read_only))
        .cloned()
        .collect();
    assert_eq!((read_only.len(), more), (8, vec!["capture".to_owned()]));
    let refused = session.ask("tools/call", &json!({"name": "capture", "arguments": {}}));
    assert_eq!(refused["error"]["code"], -32602);
}

#[test]
fn figures_are_those_of_the_report() {
    let scratch = records();
    let mut session = Session::new(&scratch.path(""), &[]);
    let report = report(&scratch, STACKS);
    let process = &report["processes"][0];
    let files = json!([STACKS]);

    let runs = session.json("runs", json!({}));
    assert_eq!(runs["rows"][0]["holds"], json!({"tllmprof record": 3}));
    assert_eq!(runs["rows"][0]["files"], json!([GIL, LAYERS, STACKS]));

    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    let brief = finish(
        command
            .args(["report", "--brief", STACKS])
            .env("LC_ALL", "C.UTF-8")
            .current_dir(scratch.path("")),
    );
    assert_eq!(
        session.call("brief", json!({"files": files})),
        Ok(brief.stdout)
    );

    let found = session.rows("finding", json!({"files": files}));
    let all = report["findings"].as_array().unwrap();
    assert_eq!(found.len(), all.len());
    for (found, expected) in found.iter().zip(all) {
        for key in ["id", "verdict", "evidence"] {
            assert_eq!(found[key], expected[key]);
        }
    }
    let expected = all
        .iter()
        .find(|finding| finding["id"] == "host-bound")
        .unwrap();
    let claims = session.rows("finding", json!({"files": files, "id": "host-bound"}));
    assert_eq!(&json!(claims), &expected["claims"]);
    let first = session.json(
        "finding",
        json!({"files": files, "id": "host-bound", "top": 1}),
    );
    assert_eq!(first["loss"], expected["loss"]);

    let host = session.rows("table", json!({"files": files, "table": "host"}));
    let ledger = process["ledger"]["host"].as_array().unwrap();
    let pairs = |rows: &[Value], name: &str, ns: &str| -> Vec<(Value, Value)> {
        rows.iter()
            .map(|row| (row[name].clone(), row[ns].clone()))
            .collect()
    };
    assert_eq!(
        pairs(&host, "name", "total_ns"),
        pairs(ledger, "cause", "ns")
    );
    let some = session.rows(
        "table",
        json!({"files": files, "table": "host", "contains": "PYTHON:", "process": 0}),
    );
    assert!(!some.is_empty() && some.len() < host.len());

    let iterations = session.rows(
        "table",
        json!({"files": files, "table": "iterations", "top": 100}),
    );
    let windows = process["windows"].as_array().unwrap();
    let expected: Vec<_> = windows
        .iter()
        .flat_map(|window| window["iterations"].as_array().unwrap())
        .cloned()
        .collect();
    assert_eq!(
        pairs(&iterations, "n", "dur_ns"),
        pairs(&expected, "n", "dur_ns")
    );

    let slow = session.rows("slow_iterations", json!({"files": files}));
    let slowest = process["slowest"].as_array().unwrap();
    assert_eq!(pairs(&slow, "n", "more_ns"), pairs(slowest, "n", "more_ns"));
    assert_eq!(
        slow[0]["causes"][0]["cause"],
        slowest[0]["causes"][0]["cause"]
    );
    assert_eq!(session.end(), Some(0));
}

#[test]
fn a_layer_has_those_within_it() {
    let scratch = records();
    let mut session = Session::new(&scratch.path(""), &[]);
    let report = report(&scratch, LAYERS);
    let all = session.rows("layer", json!({"files": [LAYERS]}));
    let patterns = report["processes"][0]["layer_patterns"].as_array().unwrap();
    let names =
        |rows: &[Value]| -> Vec<Value> { rows.iter().map(|row| row["name"].clone()).collect() };
    assert_eq!(names(&all), names(patterns));
    let one = session.rows(
        "layer",
        json!({"files": [LAYERS], "name": "model/layers.1"}),
    );
    let names = names(&one);
    assert_eq!(names[0], "model/layers.1");
    assert!(names.len() > 1, "{names:?}");
    for name in &names {
        assert!(
            name.as_str().unwrap().starts_with("model/layers.1"),
            "{name}"
        );
    }
    let none = session
        .call("layer", json!({"files": [STACKS]}))
        .unwrap_err();
    assert!(none.starts_with("layers: the run has none"), "{none}");
}

#[test]
fn runs_are_compared_and_conditions_judged() {
    let scratch = records();
    let mut session = Session::new(&scratch.path(""), &[]);
    let asked =
        json!({"base": [STACKS], "other": [LAYERS], "fail_if": ["launches > +2%"], "within": "5%"});
    let text = session.call("compare", asked).unwrap();
    assert!(
        text.contains("iterations a second") && text.contains("launches > +2%"),
        "{text}"
    );
}

#[test]
fn wrong_input_is_an_error_of_one_line() {
    let scratch = records();
    scratch.write("notes.txt", "not a record");
    let mut session = Session::new(&scratch.path(""), &["--allow-capture"]);
    for (tool, arguments, expected) in [
        (
            "table",
            json!({"files": [LAYERS], "tabel": "host"}),
            "tabel: table has no such argument (wanted: contains, files,",
        ),
        ("table", json!({"files": [LAYERS]}), "table: it is missing"),
        (
            "table",
            json!({"files": [LAYERS], "table": "hosts"}),
            "table \"hosts\": there is no such table (wanted: findings,",
        ),
        (
            "table",
            json!({"files": [LAYERS], "table": "host", "top": "3"}),
            "top \"3\": wanted: a whole number",
        ),
        (
            "table",
            json!({"files": [LAYERS], "table": "host", "top": -3}),
            "top -3: wanted: a whole number",
        ),
        (
            "table",
            json!({"files": [LAYERS], "table": "host", "top": 0}),
            "top 0: wanted: at least 1",
        ),
        (
            "table",
            json!({"files": [LAYERS], "table": "host", "offset": 999}),
            "offset 999: there are ",
        ),
        (
            "table",
            json!({"files": [LAYERS], "table": "host", "process": 1}),
            "process 1: there are 1, counted from 0",
        ),
        (
            "table",
            json!({"files": LAYERS, "table": "host"}),
            "files \"standin-layers.tllmprof\": wanted: a list of texts",
        ),
        (
            "table",
            json!({"files": [LAYERS], "table": "iterations", "contains": "x"}),
            "contains \"x\": iterations have no name",
        ),
        (
            "brief",
            json!({"files": ["nothing"]}),
            "none of the files can be read: nothing: there is no such file",
        ),
        (
            "brief",
            json!({"files": ["notes.txt"]}),
            "none of the files can be read: notes.txt: not a tllmprof record",
        ),
        (
            "brief",
            json!({"files": [LAYERS, LAYERS]}),
            "standin-layers.tllmprof is given twice",
        ),
        (
            "brief",
            json!({"files": ["."]}),
            "files: the records belong to 2 runs (wanted: run,",
        ),
        (
            "brief",
            json!({"files": ["."], "run": "x"}),
            "run \"x\": the files have none of it (wanted: ",
        ),
        (
            "brief",
            json!({"files": [LAYERS], "step": "auto"}),
            "--step auto: no FILE is a trace of another profiler",
        ),
        (
            "brief",
            json!({}),
            "no FILE was given, and there is no folder tllmprof-RUN",
        ),
        (
            "finding",
            json!({"files": [LAYERS], "id": "x"}),
            "id \"x\": there is no such finding (wanted: ",
        ),
        (
            "layer",
            json!({"files": [LAYERS], "name": "x"}),
            "name \"x\": there is no such layer",
        ),
        (
            "runs",
            json!({"folder": "nothing"}),
            "folder nothing: there is no such file",
        ),
        (
            "compare",
            json!({"base": [], "other": [LAYERS]}),
            "base: it is empty (wanted: at least one run)",
        ),
        (
            "compare",
            json!({"base": [LAYERS], "other": [LAYERS], "fail_if": ["p51 > +2%"]}),
            "fail_if \"p51 > +2%\": \"p51\" is no name",
        ),
        (
            "compare",
            json!({"base": [LAYERS], "other": [LAYERS], "within": "0"}),
            "within \"0\": wanted: a percentage above 0",
        ),
        (
            "capture",
            json!({"steps": 0}),
            "steps 0: wanted: 1 to 10000",
        ),
        (
            "capture",
            json!({"processes": ["x"]}),
            "\"x\" is no process (wanted: PID or HOST:PID)",
        ),
        (
            "capture",
            json!({"processes": ["1"], "run": "x"}),
            "processes \"1\": run \"x\" is given, too (wanted: one of the two)",
        ),
    ] {
        let error = session.call(tool, arguments.clone()).expect_err(tool);
        assert!(error.starts_with(expected), "{tool} {arguments}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let unknown = session.ask("tools/call", &json!({"name": "tables", "arguments": {}}));
    assert_eq!(unknown["error"]["code"], -32602);
    assert_eq!(
        session.ask("resources/list", &json!({}))["error"]["code"],
        -32601
    );
    // The requests above failed, but the server must still answer.
    assert_eq!(session.ask("ping", &json!({}))["result"], json!({}));
    assert_eq!(session.end(), Some(0));
}

#[test]
fn what_is_not_the_protocol_is_answered_or_ignored() {
    let scratch = Scratch::new();
    let mut session = Session::new(&scratch.path(""), &[]);
    // A line that is not JSON contains no request id, so the server cannot answer it.
    let to = session.to.as_mut().unwrap();
    to.write_all(b"{\"jsonrpc\": \n\xff\n").unwrap();
    session.write(&json!({"jsonrpc": "2.0", "id": [], "method": 5}));
    assert_eq!(session.next()["error"]["code"], -32600);
    assert_eq!(session.ask("ping", &json!({}))["result"], json!({}));
    // If the input ends before any client has sent its first request, the server ends without an error.
    assert_eq!(Session::unopened(&scratch.path(""), &[]).end(), Some(0));
    let mut missing = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    let ended = finish(
        missing
            .args(["mcp", "nothing"])
            .current_dir(scratch.path("")),
    );
    assert_eq!((ended.code(), ended.stdout.as_str()), (Some(1), ""));
    assert_eq!(ended.stderr, "tllmprof: nothing: there is no such file\n");
}

#[test]
fn the_protocols_own_client_drives_every_tool() {
    let Some(python) = fetched("get-mcp") else {
        return;
    };
    let scratch = records();
    let files = json!([LAYERS]);
    let calls = json!([
        ["runs", {}],
        ["brief", {"files": files}],
        ["finding", {"files": files, "id": "gpu-idle"}],
        ["table", {"files": files, "table": "kernels", "top": 3}],
        ["compare", {"base": files, "other": files}],
        ["layer", {"files": files, "name": "model/layers.1"}],
        ["slow_iterations", {"files": files}],
        ["live_processes", {}],
        ["capture", {"processes": ["HOST:1"]}],
    ]);
    let asked = scratch.write("calls.json", calls.to_string());
    let client = repo().join("crates/cli/tests/mcp/client.py");
    let output = plain(&python)
        .arg("-B")
        .args([client.as_os_str(), env!("CARGO_BIN_EXE_tllmprof").as_ref()])
        .arg(scratch.path(""))
        .stdin(File::open(asked).unwrap())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let called: Vec<_> = calls
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call[0].clone())
        .collect();
    assert_eq!(said["tools"], json!(called), "each tool is called");
    let answers = said["answers"].as_array().unwrap();
    for ((answer, tool), part) in answers.iter().zip(&called).zip([
        LAYERS,
        "no cause can be named",
        "\"id\":\"gpu-idle\"",
        "\"rows_in_all\":11",
        "iterations a second",
        "model/layers.1",
        "\"n\":5",
        "\"rows\":",
        "no process of that host and number listens here",
    ]) {
        assert_eq!(answer[0], json!(tool == "capture"), "{tool}: {answer}");
        assert!(
            answer[1].as_str().unwrap().contains(part),
            "{tool}: {answer}"
        );
    }
}

#[test]
fn a_search_for_runs_follows_no_links_and_skips_hidden_folders() {
    let scratch = records();
    for folder in ["a/b", ".hidden"] {
        fs::create_dir_all(scratch.path(folder)).unwrap();
        fs::copy(
            scratch.path(LAYERS),
            scratch.path(folder).join("x.tllmprof"),
        )
        .unwrap();
    }
    std::os::unix::fs::symlink(scratch.path(""), scratch.path("a/around")).unwrap();
    let mut session = Session::new(&scratch.path(""), &[]);
    let rows = session.rows("runs", json!({"top": 1}));
    let folders: BTreeSet<_> = rows
        .iter()
        .map(|row| row["folder"].as_str().unwrap())
        .collect();
    assert_eq!(folders, BTreeSet::from([".", "a/b"]));
}

#[test]
fn the_brief_of_512_ranks_is_short_and_whole() {
    let scratch = Scratch::new();
    let job = Job {
        hosts: 64,
        steps: 24,
        collectives: 2,
        kernels: 1,
        plants: vec![Plant {
            rank: 301,
            steps: (4, 19),
            cause: Cause::Gc,
            by: 4 * MS,
        }],
        ..Job::default()
    };
    let truth = job.truth();
    fs::create_dir(scratch.path("job")).unwrap();
    for rank in 0..job.ranks() {
        let path = scratch.path(&format!("job/{rank}.tllmprof"));
        fs::write(path, job.record(rank, &truth)).unwrap();
    }
    let mut command = plain(env!("CARGO_BIN_EXE_tllmprof").as_ref());
    command
        .args(["report", "--brief", "job"])
        .env("LC_ALL", "C.UTF-8");
    let brief = finish(command.current_dir(scratch.path("")));
    let length = brief.stdout.chars().count();
    assert!(length <= LONGEST, "{length}");
    assert!(brief.stdout.contains("rank 301"), "{}", brief.stdout);
    let mut session = Session::new(&scratch.path(""), &[]);
    assert_eq!(
        session.call("brief", json!({"files": ["job"]})),
        Ok(brief.stdout)
    );
    let runs = session.json("runs", json!({}));
    assert_eq!(runs["rows"][0]["holds"], json!({"tllmprof record": 512}));
    // Reads the rows of all processes, and then the rows of one process.
    let all = session.json("table", json!({"files": ["job"], "table": "iterations"}));
    assert_eq!(all["rows_in_all"], 512 * 24);
    let one = session.rows(
        "table",
        json!({"files": ["job"], "table": "iterations", "process": 301}),
    );
    assert_eq!(one.len(), 24);
}
