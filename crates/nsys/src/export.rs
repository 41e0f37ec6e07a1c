//! Runs nsys to export reports in nsys's own format to SQLite.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::error::ExportError;

/// Maximum duration of an export. If it takes longer, nsys is killed.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Time between two checks for whether nsys has exited.
const POLL: Duration = Duration::from_millis(50);
/// Maximum number of bytes that are read from the end of nsys's output, to find the last line.
const SAID: u64 = 4096;

/// Runs the program `nsys` to export `report` to an SQLite file in a new temporary folder. Returns the folder and the
/// file's path. The folder is removed when the returned `TempDir` is dropped.
///
/// # Errors
/// Returns an error if the folder cannot be created, or if nsys is not found, fails, or takes longer than
/// [`TIMEOUT`].
pub(crate) fn export(nsys: &Path, report: &Path) -> Result<(TempDir, PathBuf), ExportError> {
    export_by(nsys, report, TIMEOUT)
}

fn export_by(
    nsys: &Path,
    report: &Path,
    timeout: Duration,
) -> Result<(TempDir, PathBuf), ExportError> {
    let folder = TempDir::with_prefix("tllmprof-nsys-").map_err(ExportError::NoPlace)?;
    let to = folder.path().join("export.sqlite");
    let mut said = File::create_new(folder.path().join("said")).map_err(ExportError::NoPlace)?;
    let output = || said.try_clone().map_err(ExportError::NoPlace);
    let (out, err) = (output()?, output()?);
    let child = Command::new(nsys)
        .args(["export", "--type", "sqlite", "--force-overwrite", "true"])
        .arg("--output")
        .arg(&to)
        .arg(report)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn();
    let child = child.map_err(|error| match error.kind() {
        ErrorKind::NotFound => ExportError::NoNsys,
        _ => ExportError::NotExported(format!("it does not start: {error}")),
    })?;
    let status = wait(child, timeout)?;
    if status.success() && to.is_file() {
        return Ok((folder, to));
    }
    let words = last_line(&mut said);
    Err(ExportError::NotExported(if words.is_empty() {
        status.to_string()
    } else {
        words
    }))
}

/// Waits until nsys exits, and returns its exit status. If that takes longer than `timeout`, kills nsys and returns
/// an error.
fn wait(mut child: Child, timeout: Duration) -> Result<ExitStatus, ExportError> {
    let since = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if since.elapsed() < timeout => sleep(POLL),
            failed => {
                // The export has failed: nsys took too long, or its status cannot be read. Errors of `kill` and
                // `wait` change nothing about that, so they are ignored.
                let _ = child.kill();
                let _ = child.wait();
                let why = match failed {
                    Err(error) => error.to_string(),
                    Ok(_) => format!("it was not done after {} s", timeout.as_secs()),
                };
                return Err(ExportError::NotExported(why));
            }
        }
    }
}

/// Returns the last line of nsys's output that is not blank, or an empty text if there is none. `said` is the file
/// with the output.
fn last_line(said: &mut File) -> String {
    let mut bytes = Vec::new();
    let length = said.metadata().map_or(0, |file| file.len());
    let start = SeekFrom::Start(length.saturating_sub(SAID));
    // If the output cannot be read, the error message does not quote it.
    let _ = said.seek(start).and_then(|_| said.read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    last.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Exports a report with the shell script `script` in place of nsys. Returns the content of the
    /// exported file, or the text of the error.
    fn exported(script: &str, timeout: Duration) -> Result<Vec<u8>, String> {
        let scratch = TempDir::new().unwrap();
        let nsys = scratch.path().join("nsys");
        // Another process writes the file: if this process wrote it, a child that another test forks at that moment
        // would inherit the open file, and a file that is open for writing cannot be executed.
        let writes = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$2\" && chmod 755 \"$2\"";
        let mut shell = Command::new("sh");
        let written = shell.args(["-c", writes, "sh", script]).arg(&nsys).status();
        assert!(written.unwrap().success());
        let result = export_by(&nsys, Path::new("a.nsys-rep"), timeout);
        let (_folder, file) = result.map_err(|error| error.to_string())?;
        Ok(fs::read(file).unwrap())
    }

    #[test]
    fn a_report_is_exported_by_nsys() {
        // The script is called with the arguments `export --type sqlite --force-overwrite true
        // --output TO REPORT`. So `$1` is `export`, `$7` the output file and `$8` the report.
        let exports = "printf '%s' \"$1 $8\" > \"$7\"";
        assert_eq!(exported(exports, TIMEOUT).unwrap(), b"export a.nsys-rep");
    }

    #[test]
    fn what_nsys_says_is_said() {
        let failed = exported("echo first; echo 'it is broken' >&2; exit 3", TIMEOUT);
        assert_eq!(
            failed.unwrap_err(),
            "nsys could not export it: it is broken"
        );
        let silent = exported("exit 3", TIMEOUT).unwrap_err();
        assert_eq!(silent, "nsys could not export it: exit status: 3");
        let nothing = exported("exit 0", TIMEOUT).unwrap_err();
        assert_eq!(nothing, "nsys could not export it: exit status: 0");
    }

    #[test]
    fn an_export_that_hangs_is_ended() {
        let hangs = exported("exec sleep 600", Duration::from_secs(0)).unwrap_err();
        assert_eq!(hangs, "nsys could not export it: it was not done after 0 s");
    }

    #[test]
    fn without_nsys_that_is_said() {
        let none = export_by(Path::new("/no/such/nsys"), Path::new("a"), TIMEOUT);
        assert!(matches!(none, Err(ExportError::NoNsys)));
    }
}
