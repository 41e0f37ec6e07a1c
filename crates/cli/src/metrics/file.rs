//! The record of GPU metrics: its file, and the entries at its beginning, which describe the machine and the run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tllmprof_record::{ClockKind, Event, Info, Reader, StreamWriter, What, keep_earlier};

use super::clock;

/// Returns the path of a run's record of GPU metrics. The name contains the process id of the command.
pub(crate) fn path(folder: &Path, pid: u32) -> PathBuf {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().replace('/', "_");
    folder.join(format!("tllmprof-{host}-gpu-{pid}.tllmprof"))
}

/// Creates the file of the record. An earlier record with the same name is renamed.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let new = || {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
    };
    let file = match new() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && is_kept(path) => new(),
        result => result,
    }?;
    // The lock shows other processes that the record is in use. A failure is ignored, because some file systems have no
    // locks.
    let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
    Ok(file)
}

/// Renames an earlier record, so that the new record does not replace it. Returns false if the file is not a record, or
/// a process still writes to it.
fn is_kept(path: &Path) -> bool {
    let is_record = fs::symlink_metadata(path).is_ok_and(|status| status.is_file())
        && Reader::open(path).is_ok();
    let Some(file) = File::open(path).ok().filter(|_| is_record) else {
        return false;
    };
    let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    is_free && keep_earlier(path).is_some()
}

/// Begins the record of GPU metrics: writes its header, and data about the machine and the run.
pub(crate) fn begin(
    file: File,
    pid: u32,
    run: &str,
    gpus: &[String],
    driver: Option<u64>,
) -> io::Result<StreamWriter> {
    let parent = std::os::unix::process::parent_id();
    let mut record = StreamWriter::begin(file, pid, parent, ClockKind::Monotonic)?;
    record.header().anchor(clock::anchor());
    let host = rustix::system::uname();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let facts = [
        (Info::Boot, boot.trim_end()),
        (Info::Host, &host.nodename().to_string_lossy()),
        (Info::Version, env!("CARGO_PKG_VERSION")),
        (Info::Run, run),
    ];
    for (key, text) in facts {
        write_fact(&mut record, key, text)?;
    }
    for gpu in gpus {
        write_fact(&mut record, Info::Gpu, gpu)?;
    }
    if let Some(version) = driver {
        info(&mut record, Info::CudaDriver, version)?;
    }
    Ok(record)
}

/// Writes a property of the machine or the run, whose value is the text `text`, into the record.
pub(crate) fn write_fact(record: &mut StreamWriter, key: Info, text: &str) -> io::Result<()> {
    let id = record.string(text)?;
    info(record, key, id.into())
}

fn info(record: &mut StreamWriter, key: Info, value: u64) -> io::Result<()> {
    let key = Some(key);
    record.push(&Event::new(
        clock::monotonic(),
        0,
        What::Info { key, value },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_record_is_kept_and_anything_else_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = path(folder.path(), 7);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.ends_with("-gpu-7.tllmprof"), "{name}");

        let record = begin(
            create(&path).unwrap(),
            7,
            "a-run",
            &["one".to_owned()],
            Some(13000),
        )
        .unwrap();
        let in_use = create(&path).unwrap_err();
        assert_eq!(in_use.kind(), ErrorKind::AlreadyExists);
        drop(record);
        create(&path).unwrap();
        let kept = path.with_file_name(name.replace("-7.", "-7-1."));
        assert!(Reader::open(&kept).is_ok(), "{}", kept.display());
        fs::write(&path, "a letter").unwrap();
        assert!(create(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a letter");
    }
}
