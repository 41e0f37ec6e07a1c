use std::os::fd::FromRawFd;

use super::*;
use tempfile::TempDir;

const OURS: u32 = 4242;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Creates the file of a record, as the process with the id `process` does. Also returns the reason if the file
/// got another name than `path`, or if an earlier record was renamed.
fn create_by(path: &Path, process: u32) -> Result<(File, Option<NameTaken>), Failure> {
    let mut file = File::create(path, process)?;
    let taken = file.publish()?;
    Ok((file, taken))
}

/// Creates the file of a record and checks that it got the wanted name.
fn create(path: &Path) -> File {
    let (file, taken) = create_by(path, OURS).unwrap();
    assert_eq!((file.path(), taken), (path, None));
    file
}

fn refusal(made: Result<(File, Option<NameTaken>), Failure>) -> String {
    made.err().unwrap().to_string()
}

/// Returns the first bytes of a record. Different values of `of` give different records.
fn record(of: u8) -> Vec<u8> {
    [&MAGIC[..], &[of; 64]].concat()
}

#[test]
fn a_file_is_its_owners_alone_and_has_a_high_descriptor() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let file = create(&path);
    assert_eq!((file.path(), file.size()), (path.as_path(), 0));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, MODE);
    assert!(file.file.get().unwrap().as_raw_fd() >= 64);
}

#[test]
fn what_is_mapped_is_in_the_file() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let mut file = create(&path);
    let first = file.grow(4096).unwrap();
    let second = file.grow(8192).unwrap();
    // SAFETY: the mappings are 4096 and 8192 bytes long, and nothing else uses them.
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
fn an_earlier_record_is_kept_under_the_next_free_name() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let kept = |number: u8| folder.path().join(format!("a-{number}.tlm"));
    // This file has a name that a renamed record could get, but it is not a record. So it must not be changed or
    // replaced.
    fs::write(kept(2), "mine").unwrap();
    for (number, earlier) in [(1, record(1)), (3, record(3))] {
        fs::write(&path, &earlier).unwrap();
        let (file, taken) = create_by(&path, OURS).unwrap();
        assert_eq!(taken, Some(NameTaken::ByEarlier(kept(number))));
        assert_eq!(file.path(), path);
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(fs::read(kept(number)).unwrap(), earlier);
        drop(file);
        fs::remove_file(&path).unwrap();
    }
    assert_eq!(fs::read(kept(1)).unwrap(), record(1));
    assert_eq!(fs::read(kept(2)).unwrap(), b"mine");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn a_file_has_no_name_before_it_is_published() {
    for earlier in [None, Some(record(1))] {
        let folder = folder();
        let path = folder.path().join("a.tlm");
        let earlier = earlier.inspect(|earlier| fs::write(&path, earlier).unwrap());
        let mut file = File::create(&path, OURS).unwrap();
        if matches!(file.name, FileName::Wanted { .. }) {
            assert_eq!(fs::read(&path).ok(), earlier);
        }
        file.grow(4096).unwrap();
        file.publish().unwrap();
        assert!(fs::read(&path).unwrap() == [0; 4096]);
        let count = 1 + usize::from(earlier.is_some());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), count);
    }
}

/// Tests the fallback for file systems without unnamed files: the first file has its name and its lock from the start,
/// so the second one must get another name.
#[test]
fn a_file_with_a_name_is_found_in_use() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let (_first, at, taken) = take_name(&path, 1, make_locked).unwrap();
    assert_eq!((at, taken), (path.clone(), None));
    let (_second, at, taken) = take_name(&path, OURS, make_locked).unwrap();
    assert_eq!(at, folder.path().join("a-4242.tlm"));
    assert_eq!(taken, Some(NameTaken::ByAnother));
}

#[test]
fn a_record_that_is_written_to_keeps_its_name() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let first = create(&path);
    let [second, third] = [(); 2].map(|()| create_by(&path, OURS).unwrap());
    assert_eq!(first.path(), path);
    for ((file, taken), name) in [(&second, "a-4242.tlm"), (&third, "a-4242-2.tlm")] {
        assert_eq!(file.path(), folder.path().join(name));
        assert_eq!(*taken, Some(NameTaken::ByAnother));
    }
}

#[test]
fn a_name_without_an_extension_gets_its_number_at_the_end() {
    let folder = folder();
    let path = folder.path().join("a");
    fs::write(&path, record(1)).unwrap();
    let (_, taken) = create_by(&path, OURS).unwrap();
    assert_eq!(taken, Some(NameTaken::ByEarlier(folder.path().join("a-1"))));
}

/// Tests processes (simulated by threads) that want the same file name at the same time. Every second process ends
/// immediately. Each process must get its own file, and no record may be lost.
#[test]
fn processes_that_start_at_once_get_a_file_each() {
    const AT_ONCE: u8 = 16;
    let folder = folder();
    let path = folder.path().join("a.tlm");
    fs::write(&path, record(0)).unwrap();
    let barrier = std::sync::Barrier::new(AT_ONCE.into());
    let begin = &|number: u8| {
        barrier.wait();
        let (file, _) = create_by(&path, u32::from(number) + 100).unwrap();
        let written = file.file.get().unwrap().write_all_at(&record(number), 0);
        written.unwrap();
        // Every second process ends immediately, so its lock is released while other processes look for a name.
        number.is_multiple_of(2).then_some(file)
    };
    let files: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=AT_ONCE)
            .map(|number| scope.spawn(move || begin(number)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for file in files.iter().flatten() {
        assert!(
            is_at(file.file.get().unwrap(), file.path()),
            "{:?}",
            file.path()
        );
    }
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut found: Vec<_> = entries
        .map(|entry| fs::read(entry.unwrap().path()).unwrap()[8])
        .collect();
    found.sort_unstable();
    assert_eq!(found, (0..=AT_ONCE).collect::<Vec<_>>());
}

#[test]
fn what_a_process_left_that_was_killed_at_the_start_is_replaced() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    for length in [0, HEADER_BYTES, HEADER_BYTES + CHUNK_BYTES] {
        fs::write(&path, vec![0; length]).unwrap();
        assert_eq!(create(&path).path(), path, "{length}");
    }
}

#[test]
fn what_is_no_record_is_left_alone() {
    let folder = folder();
    let names = ["text", "link", "folder", "zeros", "data"];
    let [text, link, dir, zeros, data] = names.map(|name| folder.path().join(name));
    fs::write(&text, "mine").unwrap();
    fs::write(&zeros, vec![0; 100]).unwrap();
    // This file is as large as the start of a record and begins with zeros, but has other bytes at its end.
    let mut bytes = vec![0_u8; HEADER_BYTES];
    bytes[HEADER_BYTES - 1] = 1;
    fs::write(&data, &bytes).unwrap();
    std::os::unix::fs::symlink(&text, &link).unwrap();
    fs::create_dir(&dir).unwrap();
    for path in [&text, &link, &dir, &zeros, &data] {
        let refusal = refusal(create_by(path, OURS));
        assert!(refusal.contains("something else by that name"), "{refusal}");
    }
    assert_eq!(fs::read(&text).unwrap(), b"mine");
    assert_eq!(fs::read(&data).unwrap(), bytes);
}

#[test]
fn a_missing_folder_is_named() {
    let folder = folder();
    let path = folder.path().join("none/a.tlm");
    assert_eq!(
        refusal(create_by(&path, OURS)),
        "it could not be created: there is no such folder"
    );
}

#[test]
fn a_descriptor_that_the_host_has_closed_is_opened_again_while_the_file_is_there() {
    let folder = folder();
    let path = folder.path().join("a.tlm");
    let mut file = create(&path);
    // Simulates a host that closes our descriptor and opens another file under its number. That file stays
    // open, because otherwise another test could get the number.
    let take = |file: &File| {
        let other = fs::File::open("/dev/null").unwrap();
        let number = file.file.get().unwrap().as_raw_fd();
        // SAFETY: `dup2` takes only descriptors, and its result belongs only to the new `File`.
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
