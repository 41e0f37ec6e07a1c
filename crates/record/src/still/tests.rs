//! Tests copies of records to which a process still writes while they are copied. A window is a period in which events
//! are recorded in detail.

use std::cell::RefCell;
use std::ptr::NonNull;

use super::*;
use crate::builder::Builder;
use crate::chunk::{Chunk, EventWriter};
use crate::{ClockKind, Edge, Entry, HeaderBlock, Reader};

/// A record that a process changes while the record is read: before read number `at`, `act` changes the record's bytes.
/// Each half of a chunk counts as a read.
struct Running<F> {
    bytes: RefCell<Box<[u64]>>,
    reads: RefCell<u32>,
    at: u32,
    act: F,
}

impl<F: Fn(&mut [u64])> Source for Running<F> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut bytes = self.bytes.borrow_mut();
        let mut filled = 0;
        // Each read is split into two, so that the change can come in the middle of a chunk: a real copy is
        // not atomic either.
        for half in buffer.chunks_mut(CHUNK_BYTES / 2) {
            *self.reads.borrow_mut() += 1;
            if *self.reads.borrow() == self.at {
                (self.act)(&mut bytes);
            }
            let at = usize::try_from(offset).unwrap() + filled;
            let rest = bytes.get(at / 8..).unwrap_or_default();
            for (to, word) in half.chunks_mut(8).zip(rest) {
                to.copy_from_slice(&word.to_le_bytes());
            }
            filled += half.len().min(rest.len() * 8);
        }
        Ok(filled)
    }
}

const ITERATIONS: u64 = 2000;

/// Returns the events of window `number`: its opening, `ITERATIONS` iterations and its closing.
fn window(number: u64) -> impl Iterator<Item = Event> {
    let edge = |edge, at| {
        let iteration = number * ITERATIONS;
        Event::new(at, 0, What::Window { edge, iteration })
    };
    let first = number * ITERATIONS;
    let iterations = (first..first + ITERATIONS)
        .map(|n| Event::new(n * 10 + 1, 5, What::Iteration { n, excluded: false }));
    [edge(Edge::Open, first * 10)]
        .into_iter()
        .chain(iterations)
        .chain([edge(Edge::Close, (first + ITERATIONS) * 10 - 1)])
}

/// Marks window 1 as dropped, and overwrites the first of its two chunks with window 4, as a process does when its
/// record is full.
fn drop_the_oldest(bytes: &mut [u64]) {
    let at = NonNull::new(bytes.as_mut_ptr()).unwrap().cast::<u8>();
    // SAFETY: the bytes are a record's, aligned to 8, and nothing else uses them while this function runs.
    let (header, chunk) = unsafe {
        let chunk = at.add(usize::try_from(chunk_offset(0)).unwrap());
        (HeaderBlock::at(at), Chunk::at(chunk))
    };
    header.set(Counter::DroppedUntil, 2 * ITERATIONS * 10 - 1);
    header.set(Counter::WindowsDropped, 1);
    header.snapshot();
    let mut writer = EventWriter::again(chunk, header.id(), 0, 1);
    for event in window(4) {
        assert!(writer.push(&event));
    }
}

#[test]
fn a_window_that_goes_while_a_record_is_copied_is_whole_or_gone() {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    builder.header().set(Counter::Keep, 1 << 20);
    for number in 1..4 {
        for event in window(number) {
            // Two threads write the window's events, each into its own chunk.
            let half = match event.what {
                What::Iteration { n, .. } => n % 2,
                _ => 0,
            };
            builder.push((number * 2 + half) as u32, &event);
        }
    }
    let words: Box<[u64]> = {
        let bytes = builder.bytes();
        let (words, []) = bytes.as_chunks() else {
            panic!("a record has whole words");
        };
        words.iter().map(|word| u64::from_le_bytes(*word)).collect()
    };
    let mut seen = Vec::new();
    for at in 1..80 {
        let running = Running {
            bytes: RefCell::new(words.clone()),
            reads: RefCell::new(0),
            at,
            act: drop_the_oldest,
        };
        let copy = without_name(&std::env::temp_dir()).unwrap();
        copy_still(&running, &copy).unwrap();
        let mut iterations = Vec::new();
        let damage = Reader::new(copy).unwrap().read(|entry| {
            if let Entry::Event { event, .. } = entry
                && let What::Iteration { n, .. } = event.what
            {
                iterations.push(n);
            }
        });
        assert!(damage.unwrap().is_none(), "{at}");
        iterations.sort_unstable();
        let whole = iterations.chunks(ITERATIONS as usize).map(|of| {
            assert_eq!(of[0] % ITERATIONS, 0, "{at}");
            assert!(of.iter().copied().eq(of[0]..of[0] + ITERATIONS), "{at}");
            of[0] / ITERATIONS
        });
        let whole: Vec<_> = whole.collect();
        if !seen.contains(&whole) {
            seen.push(whole);
        }
    }
    // The process changes the record before, during or after the copy. If it does so during the copy, window 1 is
    // already dropped in the copy, but window 4 may still be missing.
    seen.sort();
    assert_eq!(seen, [vec![1, 2, 3], vec![2, 3], vec![2, 3, 4]]);
}

/// Tests a record that keeps iterations outside windows. Its first chunk has the event that marks the
/// beginning of these iterations.
#[test]
fn iterations_that_go_while_a_record_is_copied_lie_before_where_their_window_opens() {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    builder.header().set(Counter::Flight, 2 * ITERATIONS);
    let open = |iteration: u64| {
        let edge = Edge::Open;
        Event::new(iteration * 10, 0, What::Window { edge, iteration })
    };
    let iteration = |n: u64| Event::new(n * 10 + 1, 5, What::Iteration { n, excluded: false });
    builder.push(1, &open(0));
    for chunk in 0..3 {
        for n in chunk * ITERATIONS..(chunk + 1) * ITERATIONS {
            builder.push(2 + chunk as u32, &iteration(n));
        }
    }
    let bytes = builder.bytes();
    let (words, []) = bytes.as_chunks() else {
        panic!("a record has whole words");
    };
    let words: Box<[u64]> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let go_on = |bytes: &mut [u64]| {
        let at = NonNull::new(bytes.as_mut_ptr()).unwrap().cast::<u8>();
        let again = |number: u32, thread| {
            // SAFETY: the bytes are a record's, aligned to 8, and nothing else uses them while this function
            // runs.
            let (header, chunk) = unsafe {
                let chunk = at.add(usize::try_from(chunk_offset(number)).unwrap());
                (HeaderBlock::at(at), Chunk::at(chunk))
            };
            EventWriter::again(chunk, header.id(), number, thread)
        };
        assert!(again(0, 1).push(&open(ITERATIONS)));
        let mut writer = again(1, 2);
        for n in 3 * ITERATIONS..4 * ITERATIONS {
            assert!(writer.push(&iteration(n)));
        }
    };
    for at in 1..80 {
        let running = Running {
            bytes: RefCell::new(words.clone()),
            reads: RefCell::new(0),
            at,
            act: go_on,
        };
        let copy = without_name(&std::env::temp_dir()).unwrap();
        copy_still(&running, &copy).unwrap();
        let (mut opens, mut iterations) = (Vec::new(), Vec::new());
        let damage = Reader::new(copy).unwrap().read(|entry| match entry {
            Entry::Event { event, .. } => match event.what {
                What::Iteration { n, .. } => iterations.push(n),
                What::Window { iteration, .. } => opens.push(iteration),
                _ => {}
            },
            Entry::String { .. } => {}
        });
        assert!(damage.unwrap().is_none(), "{at}");
        let [first] = opens[..] else {
            panic!("{at}: {opens:?}");
        };
        assert!(iterations.len() >= 2 * ITERATIONS as usize, "{at}");
        let whole = first..first + iterations.len() as u64;
        assert!(whole.eq(iterations.iter().copied()), "{at}");
    }
}

/// Writes a record with a size limit into a folder, and returns its path.
fn bounded(folder: &Path) -> std::path::PathBuf {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    builder.header().set(Counter::Keep, 1 << 20);
    for event in window(1) {
        builder.push(1, &event);
    }
    let path = folder.join("record");
    fs::write(&path, builder.bytes()).unwrap();
    path
}

#[test]
fn the_record_of_a_process_that_runs_is_copied_and_that_of_one_that_is_gone_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = bounded(folder.path());
    let itself = fs::metadata(&path).unwrap();
    let is_itself = || open_still(&path).unwrap().metadata().unwrap().ino() == itself.ino();
    // Nothing holds a lock on this record, although its header does not state an end. So the process counts as
    // killed, and no copy is needed.
    assert!(is_itself());
    let process = File::open(&path).unwrap();
    process.lock().unwrap();
    let scratch = without_name(folder.path()).unwrap();
    assert_eq!(is_itself(), !has_room(&scratch, itself.len()));
    // No disk has free space for this number of bytes. The copies above were unnamed, so they must have left no file
    // in the folder.
    assert!(!has_room(&scratch, u64::MAX / 4));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    drop(process);
    assert!(is_itself());
}

#[test]
fn a_record_is_not_copied_to_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = bounded(folder.path());
    let bytes = fs::read(&path).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for is_running in [true, false] {
        let process = File::open(&path).unwrap();
        if is_running {
            process.lock().unwrap();
        }
        for to in [&path, &link] {
            assert!(copy(&path, to).is_err());
            assert!(fs::read(&path).unwrap() == bytes);
        }
        let other = folder.path().join("other");
        copy(&path, &other).unwrap();
        assert!(Reader::open(&other).is_ok());
    }
}
