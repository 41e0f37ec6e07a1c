//! `report --query`: runs an SQL query with DuckDB over the tables that `export --to parquet` writes.

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::{export, output};

const DUCKDB: &str = "duckdb";

/// Runs an SQL query over records, and prints its result: a table on a terminal, otherwise CSV.
///
/// # Errors
/// DuckDB is not installed or refuses the query, or the Parquet tables that DuckDB reads cannot be written.
pub(crate) fn run(query: &str, files: &[PathBuf], merge: bool) -> Result<ExitCode> {
    // DuckDB writes to standard output, so check first that this process has one.
    let _ = output::stdout()?;
    // Look for DuckDB before the tables are made, because making them may take long.
    let version = Command::new(DUCKDB)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    if version.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        bail!(
            "--query: there is no {DUCKDB} on PATH (wanted: the command of DuckDB, such as that of pip install duckdb-cli)"
        );
    }
    let folder = tempfile::Builder::new().prefix("tllmprof-query-").tempdir();
    let folder = folder.context("--query: there is no folder for the tables")?;
    let Some(status) = export::tables(files, merge, folder.path())? else {
        return Ok(ExitCode::FAILURE);
    };
    let mut duckdb = Command::new(DUCKDB);
    // DuckDB does not read the user's settings file (`~/.duckdbrc`), because that file may change the format of the
    // query's result.
    duckdb.args(["-init", "/dev/null", "-bail"]);
    if !io::stdout().is_terminal() {
        duckdb.arg("-csv");
    }
    let sql = format!("{}{}", views(folder.path())?, question(query));
    let ended = duckdb.arg("-c").arg(sql).stdin(Stdio::null()).status();
    let ended = ended.with_context(|| format!("--query: {DUCKDB}"))?;
    if !ended.success() {
        bail!("--query {query:?}: {DUCKDB} failed: {ended} (wanted: TABLE where …, or SQL)");
    }
    Ok(status)
}

/// Returns SQL statements that create a view for each table (subfolder of `folder` with Parquet files). The view has
/// the subfolder's name.
fn views(folder: &Path) -> Result<String> {
    let mut sql = String::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let files = path
            .join("**/*.parquet")
            .display()
            .to_string()
            .replace('\'', "''");
        sql.push_str(&format!(
            "create view \"{name}\" as select * from read_parquet('{files}', hive_partitioning = true);\n"
        ));
    }
    Ok(sql)
}

/// Returns the text of `--query` as an SQL statement. A text whose first word is none of the `verbs` below begins with
/// a table's name. It becomes a query that selects rows of that table: for example, `kernels where …`.
fn question(query: &str) -> String {
    let first = query
        .split(|c: char| !c.is_alphanumeric())
        .next()
        .unwrap_or_default();
    let verbs = [
        "select",
        "with",
        "from",
        "describe",
        "show",
        "summarize",
        "pivot",
    ];
    match verbs.contains(&first.to_lowercase().as_str()) {
        true => query.to_owned(),
        false => format!("from {query}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_may_begin_with_a_table() {
        for (query, sql) in [
            ("kernels where dur_ns > 5", "from kernels where dur_ns > 5"),
            ("SELECT 1", "SELECT 1"),
            ("with a as (select 1) from a", "with a as (select 1) from a"),
            ("calls", "from calls"),
        ] {
            assert_eq!(question(query), sql);
        }
    }
}
