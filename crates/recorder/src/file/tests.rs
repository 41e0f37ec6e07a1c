use std::os::fd::FromRawFd;

use super::*;
use tempfile::TempDir;

const OURS: u32 = 4242;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn refusal(made: Result<File, Failure>) -> String {
    made.err().unwrap().to_string()
}

/// The beginning of a record of `process`, which ended as `ended` says.
fn record(process: u32, ended: Ended) -> Vec<u8> {
    let mut bytes = vec![0; 2 * START];
    bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
    bytes[PROCESS_AT..PROCESS_AT + 4].copy_from_slice(&process.to_le_bytes());
    bytes[ENDED_AT..ENDED_AT + 4].copy_from_slice(&(ended as u32).to_le_bytes());
    bytes
}

#[test]
fn a_file_is_its_owners_alone_and_has_a_high_descriptor() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let file = File::create(&path, OURS).unwrap();
    assert_eq!((file.path(), file.size()), (path.as_path(), 0));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, MODE);
    assert!(file.file.get().unwrap().as_raw_fd() >= 64);
}

#[test]
fn what_is_mapped_is_in_the_file() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let mut file = File::create(&path, OURS).unwrap();
    let first = file.grow(4096).unwrap();
    let second = file.grow(8192).unwrap();
    // SAFETY: both mappings are that long, and nobody else uses them.
    unsafe {
        first.write(b'a');
        second.add(8191).write(b'z');
    }
    let bytes = fs::read(&path).unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[12287]), (12288, b'a', b'z'));
    file.cut(4096);
    file.cut(8192);
    assert_eq!(
        (file.size(), fs::metadata(&path).unwrap().len()),
        (4096, 4096)
    );
}

#[test]
fn a_file_system_that_reserves_nothing_gets_zeros() {
    let folder = folder();
    let path = folder.path().join("zeros");
    let file = open(&path, true).unwrap();
    write_zeros(&file, 10, 200_000).unwrap();
    assert_eq!(fs::read(&path).unwrap(), vec![0; 200_010]);
}

#[test]
fn an_older_record_is_replaced_and_whoever_reads_it_keeps_it() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let older = record(1, Ended::InOrder);
    fs::write(&path, &older).unwrap();
    let reading = fs::File::open(&path).unwrap();
    let file = File::create(&path, OURS).unwrap();
    assert_eq!(file.path(), path);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    let mut start = vec![0; older.len()];
    reading.read_exact_at(&mut start, 0).unwrap();
    assert_eq!(start, older);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_record_that_is_written_to_keeps_its_name() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let first = File::create(&path, 1).unwrap();
    let second = File::create(&path, OURS).unwrap();
    let third = File::create(&path, OURS).unwrap();
    assert_eq!(first.path(), path);
    assert_eq!(second.path(), folder.path().join("a-4242.tlm"));
    assert_eq!(third.path(), folder.path().join("a-4242-2.tlm"));
}

#[test]
fn a_record_of_the_program_before_exec_keeps_its_name() {
    let folder = folder();
    let path = folder.path().join("a");
    fs::write(&path, record(OURS, Ended::Not)).unwrap();
    let file = File::create(&path, OURS).unwrap();
    assert_eq!(file.path(), folder.path().join("a-4242"));
}

#[test]
fn what_a_process_left_that_was_killed_at_the_start_is_replaced() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    for length in [0, HEADER_BYTES, HEADER_BYTES + CHUNK_BYTES] {
        fs::write(&path, vec![0; length]).unwrap();
        assert_eq!(File::create(&path, OURS).unwrap().path(), path, "{length}");
    }
}

#[test]
fn what_is_no_record_is_left_alone() {
    let folder = folder();
    let names = ["text", "link", "folder", "zeros"];
    let [text, link, dir, zeros] = names.map(|name| folder.path().join(name));
    fs::write(&text, "mine").unwrap();
    fs::write(&zeros, vec![0; 100]).unwrap();
    std::os::unix::fs::symlink(&text, &link).unwrap();
    fs::create_dir(&dir).unwrap();
    for path in [&text, &link, &dir, &zeros] {
        let refusal = refusal(File::create(path, OURS));
        assert!(refusal.contains("something else by that name"), "{refusal}");
    }
    assert_eq!(fs::read(&text).unwrap(), b"mine");
}

#[test]
fn a_missing_folder_is_named() {
    let folder = folder();
    let path = folder.path().join("none/a.tlm");
    assert_eq!(
        refusal(File::create(&path, OURS)),
        "it could not be created: there is no such folder"
    );
}

#[test]
fn a_descriptor_that_the_host_has_closed_is_opened_again_while_the_file_is_there() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let mut file = File::create(&path, OURS).unwrap();
    // As if the host had closed it and opened another file, which stays open: another test could get its number.
    let take = |file: &File| {
        let other = fs::File::open("/dev/null").unwrap();
        let number = file.file.get().unwrap().as_raw_fd();
        // SAFETY: takes descriptors alone; the number is that of the file here from now on.
        unsafe { fs::File::from_raw_fd(libc::dup2(other.as_raw_fd(), number)) }
    };
    let taken = take(&file);
    assert!(file.file.get().is_none());
    assert!(file.grow(4096).is_ok());
    assert!(file.file.get().is_some());
    let taken = [taken, take(&file)];
    fs::remove_file(&path).unwrap();
    let failure = file.grow(4096).unwrap_err().to_string();
    assert_eq!(
        failure,
        "its file was closed, and is not where it was: there is no such folder"
    );
    fs::write(&path, "another").unwrap();
    let failure = file.grow(4096).unwrap_err().to_string();
    assert_eq!(failure, "its file was closed, and is not where it was");
    drop(taken);
}
