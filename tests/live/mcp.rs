//! Checks `tllmprof mcp` on running processes. Its tools list the processes and capture windows of them. If a client
//! disconnects, the processes continue undisturbed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::{Value, json};

use crate::place::{Place, wait_until};

/// A running MCP server, with the pipes on which the test writes requests and reads answers.
struct Session {
    server: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Session {
    fn new(place: &Place) -> Self {
        let mut command = place.command("mcp --allow-capture");
        let mut server = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut session = Self {
            to: server.stdin.take(),
            from: BufReader::new(server.stdout.take().unwrap()),
            server,
        };
        let client = json!({"name": "test", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
        session.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}));
        assert_eq!(session.next()["id"], 0);
        session.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        session
    }

    fn send(&mut self, message: &Value) {
        let to = self.to.as_mut().unwrap();
        writeln!(to, "{message}").unwrap();
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ask(&mut self, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments});
        self.send(&json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}));
    }

    /// Calls a tool of the MCP server. Returns the text of the answer.
    fn call(&mut self, tool: &str, arguments: &Value) -> String {
        self.ask(tool, arguments);
        let answer = self.next();
        let result = &answer["result"];
        assert_eq!(result["isError"], false, "{answer}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn an_assistant_lists_processes_and_captures_one() {
    let place = Place::new();
    let mut server = place.start(&mut place.server("2000"));
    server.connect();
    let pid = server.pid();
    let mut session = Session::new(&place);
    let listed: Value = serde_json::from_str(&session.call("live_processes", &json!({}))).unwrap();
    let is_it = |row: &&Value| row["pid"] == pid;
    let row = listed["rows"]
        .as_array()
        .unwrap()
        .iter()
        .find(is_it)
        .unwrap();
    assert_eq!(row["rule"], "cudaGraphLaunch");
    let asked = json!({"processes": [pid.to_string()], "steps": 7});
    let brief = session.call("capture", &asked);
    assert!(brief.contains(": 7 iterations in"), "{brief}");
    let record = brief
        .lines()
        .next()
        .unwrap()
        .strip_prefix("record: ")
        .unwrap();
    let table = json!({"files": [record], "table": "iterations"});
    let rows: Value = serde_json::from_str(&session.call("table", &table)).unwrap();
    assert_eq!(rows["rows_in_all"], 7, "{rows}");
    server.end();
    let windows = server.windows();
    assert_eq!(windows.len(), 1);
    assert_eq!(windows[0].1 - windows[0].0, 6);
}

#[test]
fn a_capture_whose_client_gives_up_or_goes_away_closes_its_window() {
    let place = Place::new();
    // A step takes 20 ms, so the whole window would take longer than the test waits.
    let server = place.start(&mut place.server("20000"));
    let mut peer = server.connect();
    let asked = json!({"processes": [server.pid().to_string()], "steps": 10_000});
    let phase = || place.ps()[0]["state"].clone();
    let mut session = Session::new(&place);
    session.ask("capture", &asked);
    wait_until("the window is open", || phase() == "open");
    let cancelled = json!({"requestId": 1, "reason": "enough"});
    session
        .send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}));
    wait_until("the window is closed", || phase() == "armed");

    let mut session = Session::new(&place);
    session.ask("capture", &asked);
    wait_until("the window is open again", || phase() == "open");
    drop(session.to.take());
    wait_until("the window is closed again", || phase() == "armed");
    assert!(session.server.wait().unwrap().success());
    peer.status();
}
