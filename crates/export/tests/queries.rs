//! Checks that the SQL queries in `examples/queries`, run on exported tables, give the same figures as the report.

mod common;
#[path = "../../report/tests/common/server.rs"]
mod server;

use std::collections::BTreeMap;

use common::{read_by, record, scene, scratch};
use serde_json::{Value, json};
use server::Server;
use tllmprof_export::{Record, parquet};
use tllmprof_record::builder::Builder;
use tllmprof_record::{Event, Info, What};
use tllmprof_report::Iteration;

/// Returns the record of rank `rank` of the simulated server. The record belongs to the run `run`.
fn of_run(run: &str, rank: u64) -> Record {
    let (mut builder, truth) = Server::rank(rank).record();
    belongs_to(&mut builder, run, truth[0].start);
    let mut bytes = Vec::new();
    builder.write_to(&mut bytes).unwrap();
    record(&format!("{run}-{rank}"), bytes)
}

fn belongs_to(builder: &mut Builder, run: &str, at: u64) {
    let value = builder.string(1, run).into();
    let key = Some(Info::Run);
    builder.push(1, &Event::new(at, 0, What::Info { key, value }));
}

fn counted(record: &Record) -> impl Iterator<Item = &Iteration> {
    let windows = record.process.windows.iter();
    windows.flat_map(|window| window.qualified())
}

/// Returns the median as SQL defines it. For an even number of values, this is the mean of the two values in the
/// middle.
fn median(mut all: Vec<u64>) -> f64 {
    all.sort_unstable();
    let middle = all.len() / 2;
    match all.len() % 2 {
        1 => all[middle] as f64,
        _ => (all[middle - 1] + all[middle]) as f64 / 2.0,
    }
}

fn is_near(found: &Value, wanted: f64) -> bool {
    (found.as_f64().unwrap() - wanted).abs() <= wanted.abs() * 1e-9
}

fn of_two_runs() -> Vec<Record> {
    let runs = ["evening", "morning"].into_iter();
    runs.flat_map(|run| [0, 1].map(|rank| of_run(run, rank)))
        .collect()
}

/// Returns the total host time of the records' windows (recorded intervals), in milliseconds.
fn host_ms<'a>(records: impl Iterator<Item = &'a Record>) -> f64 {
    let ledgers = records.flat_map(|one| &one.process.ledger.details.windows);
    let all = ledgers.flat_map(|ledger| &ledger.host).map(|row| row.ns);
    all.sum::<u64>() as f64 / 1e6
}

#[test]
fn every_question_is_answered_as_the_report_answers_it() {
    let scratch = scratch();
    let mut records = of_two_runs();
    // Adds records with batches, garbage collections and metrics, which belong to no run.
    let others = scene::all().0.into_iter();
    records.extend(others.map(|(name, bytes)| record(name, bytes)));
    parquet(&records, &scratch.path().join("tables")).unwrap();
    let Some(answers) = read_by("queries.py", &scratch.path().join("tables")) else {
        return;
    };
    let answers: BTreeMap<String, Vec<Value>> = serde_json::from_value(answers).unwrap();
    assert_eq!(answers.len(), 11);
    for (question, rows) in &answers {
        assert!(!rows.is_empty(), "{question}");
    }

    let process = |row: &Value, record: &Record| {
        let facts = &record.process.facts;
        let run = if facts.run.is_empty() {
            "none"
        } else {
            &facts.run
        };
        row["run"] == run && row["host"] == facts.host && row["pid"] == record.process.pid
    };
    let ranks = &answers["slowest-ranks"];
    let mut found = 0;
    for record in &records {
        let durations: Vec<_> = counted(record).map(|one| one.duration).collect();
        let Some(row) = ranks.iter().find(|row| process(row, record)) else {
            assert!(durations.is_empty());
            continue;
        };
        assert_eq!(row["iterations"], durations.len());
        assert!(is_near(&row["p50_ms"], median(durations) / 1e6), "{row}");
        found += 1;
    }
    assert_eq!(found, ranks.len());

    // In the query's answer, the times of all causes of a run must add up to the host time in the report's ledgers
    // (tables of time by cause). The shares of the causes must add up to 1.
    let of_run = |run: &'static str| {
        records
            .iter()
            .filter(move |one| one.process.facts.run == run)
    };
    let causes = &answers["where-host-time-goes"];
    let of_evening = || causes.iter().filter(|row| row["run"] == "evening");
    let sum = |key: &str| {
        of_evening()
            .map(|row| row[key].as_f64().unwrap())
            .sum::<f64>()
    };
    assert!(is_near(&json!(sum("ms")), host_ms(of_run("evening"))));
    assert!(is_near(&json!(sum("share")), 1.0));

    // In each iteration that all ranks have recorded, at most one rank is the slowest.
    let stragglers = &answers["stragglers"];
    let of_evening: Vec<_> = stragglers
        .iter()
        .filter(|row| row["run"] == "evening")
        .collect();
    assert_eq!(of_evening.len(), 2);
    let slowest: u64 = of_evening
        .iter()
        .map(|row| row["slowest_in"].as_u64().unwrap())
        .sum();
    assert!(slowest > 0 && slowest <= of_evening[0]["shared"].as_u64().unwrap());

    // Both runs are of the same program, so the comparison must show no change.
    let pairs: Vec<_> = answers["two-runs"].iter().collect();
    let of_both = pairs
        .iter()
        .filter(|row| row["base"] == "evening" && row["other"] == "morning");
    let changes: Vec<_> = of_both.map(|row| row["change"].as_f64().unwrap()).collect();
    assert_eq!(changes, [0.0, 0.0]);

    let runs: Vec<_> = answers["runs"]
        .iter()
        .map(|row| (&row["run"], &row["processes"]))
        .collect();
    let (two, three) = (json!(2), json!(3));
    let names = ["evening", "morning", "none"].map(Value::from);
    assert_eq!(
        runs,
        [(&names[0], &two), (&names[1], &two), (&names[2], &three)]
    );
}

#[test]
fn spark_answers_the_first_two_alike() {
    let scratch = scratch();
    let records = of_two_runs();
    let tables = scratch.path().join("tables");
    parquet(&records, &tables).unwrap();
    let Some(answers) = read_by("spark_job.py", &tables) else {
        return;
    };
    let ranks = answers["slowest_ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), records.len());
    for record in &records {
        let facts = &record.process.facts;
        let is_it = |row: &&Value| row["run"] == facts.run && row["rank"] == facts.rank;
        let row = ranks.iter().find(is_it).unwrap();
        let durations: Vec<_> = counted(record).map(|one| one.duration).collect();
        assert_eq!(row["iterations"], durations.len());
        assert!(is_near(&row["p50_ms"], median(durations) / 1e6), "{row}");
    }
    for run in ["evening", "morning"] {
        let causes = answers["host_time"].as_array().unwrap().iter();
        let causes = causes.filter(|row| row["run"] == run);
        let sum: f64 = causes.map(|row| row["ms"].as_f64().unwrap()).sum();
        let of_run = records.iter().filter(|one| one.process.facts.run == run);
        assert!(is_near(&json!(sum), host_ms(of_run)));
    }
}

fn queries() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/queries")
}

/// Returns the notebook with all queries, made from the query files.
fn notebook() -> Value {
    let lines =
        |text: &str| -> Vec<String> { text.split_inclusive('\n').map(Into::into).collect() };
    let cell = |n: usize, kind: &str, text: &str| {
        let mut cell = json!({
            "cell_type": kind, "id": format!("cell-{n:02}"), "metadata": {}, "source": lines(text.trim_end())
        });
        if kind == "code" {
            cell["execution_count"] = Value::Null;
            cell["outputs"] = json!([]);
        }
        cell
    };
    let mut names: Vec<_> = std::fs::read_dir(queries())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(|first: char| first.is_ascii_digit()))
        .collect();
    names.sort();
    let mut cells = vec![
        cell(
            0,
            "markdown",
            "# Ten questions about a run\n\n`tllmprof export RUN --to parquet -o tables` puts the tables beside this notebook, which needs \
             the package `duckdb`. The queries are those of the files `*.sql`, from which a test makes this notebook.",
        ),
        cell(
            1,
            "code",
            "import duckdb\n\ndatabase = duckdb.connect()\nwith open(\"tables.sql\") as file:\n    _ = database.execute(file.read())",
        ),
    ];
    for name in names {
        let sql = std::fs::read_to_string(queries().join(&name)).unwrap();
        assert!(!sql.contains("\"\"\"") && !sql.contains('\\'), "{name}");
        let question = sql.split(['?', '\n']).next().unwrap();
        let question = question.trim_start_matches("-- ");
        cells.push(cell(cells.len(), "markdown", &format!("## {question}?")));
        let code = format!("database.sql(\"\"\"\n{sql}\"\"\")");
        cells.push(cell(cells.len(), "code", &code));
    }
    json!({
        "cells": cells,
        "metadata": {
            "kernelspec": { "display_name": "Python 3", "language": "python", "name": "python3" },
            "language_info": { "name": "python" }
        },
        "nbformat": 4,
        "nbformat_minor": 5
    })
}

#[test]
fn the_notebook_has_the_queries_of_the_files() {
    let path = queries().join("questions.ipynb");
    let text = serde_json::to_string_pretty(&notebook()).unwrap() + "\n";
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let is_it = std::fs::read_to_string(&path).is_ok_and(|there| there == text);
    assert!(
        is_it,
        "BLESS=1 cargo test -p tllmprof-export --test queries"
    );
}

#[test]
fn the_notebook_runs() {
    let scratch = scratch();
    parquet(&of_two_runs(), &scratch.path().join("tables")).unwrap();
    let Some(shown) = read_by("notebook.py", &scratch.path().join("tables")) else {
        return;
    };
    let shown: Vec<String> = serde_json::from_value(shown).unwrap();
    assert_eq!(shown.len(), 11);
    // Two of the notebook's answers are checked: the slowest ranks, and the comparison of two runs.
    assert!(
        shown[1].contains("p50_ms") && shown[1].contains("evening"),
        "{}",
        shown[1]
    );
    assert!(
        shown[10].contains("other_ms") && shown[10].contains("morning"),
        "{}",
        shown[10]
    );
}
