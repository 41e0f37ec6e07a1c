//! Tests in which a stand-in for CUPTI reports kernels, which are then read from the record of the test process.

use std::ffi::CString;

use tllmprof_platform::system::{SystemClock, nanoseconds};
use tllmprof_record::{CopyKind, Event as Recorded};

use super::activity::{Activity, ActivityDetails, CONCURRENT_KERNEL, MEMCPY, MEMSET};
use super::clock::ClockReading;
use super::library::ActivityKind;
use super::library::made::{self, RECORD};
use super::*;
use crate::made::{record, settings};
use tllmprof_record::contents::on_a_thread;

/// One record in CUPTI's binary format.
#[repr(C, align(8))]
struct Bytes([u8; RECORD]);

impl Bytes {
    fn new(kind: ActivityKind) -> Self {
        Self([0; RECORD]).word(0, kind.cast_unsigned())
    }

    fn word(mut self, at: usize, word: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&word.to_le_bytes());
        self
    }

    fn long(mut self, at: usize, long: u64) -> Self {
        self.0[at..at + 8].copy_from_slice(&long.to_le_bytes());
        self
    }

    fn read(&self) -> Option<Activity> {
        // SAFETY: the buffer is as long as the longest record that is read. A kernel's name is null or the address of
        // a string.
        unsafe { Activity::read(self.0.as_ptr()) }
    }
}

/// Returns the record of a kernel on device 1 and stream 7, in the layout of `CUpti_ActivityKernel9`.
fn kernel(name: Option<&CString>, times: [u64; 2], correlation: u32) -> Bytes {
    let name = name.map_or(0, |name| name.as_ptr().expose_provenance() as u64);
    Bytes::new(CONCURRENT_KERNEL)
        .long(16, times[0])
        .long(24, times[1])
        .word(40, 1)
        .word(48, 7)
        .word(92, correlation)
        .long(104, name)
}

/// Returns the record of a copy or a memset on device 1 and stream 7, in the layout of `CUpti_ActivityMemcpy5` and
/// `CUpti_ActivityMemset4`.
fn moved(kind: ActivityKind, bytes: u64, times: [u64; 2], correlation: u32) -> Bytes {
    Bytes::new(kind)
        .word(4, CopyKind::DeviceToHost as u32)
        .long(8, bytes)
        .long(16, times[0])
        .long(24, times[1])
        .word(32, 1)
        .word(40, 7)
        .word(44, correlation)
}

/// Passes the records to the library in a buffer, as CUPTI does.
fn hand_over(records: &[Bytes]) {
    let (mut buffer, mut size, mut most) = (core::ptr::null_mut(), 0, 1);
    taking::requested(&raw mut buffer, &raw mut size, &raw mut most);
    assert_eq!((size, most), (buffers::SIZE, 0));
    for (index, record) in records.iter().enumerate() {
        // SAFETY: the buffer belongs to this test, and has room for many more records.
        unsafe { buffer.cast::<[u8; RECORD]>().add(index).write(record.0) };
    }
    let valid = records.len() * RECORD;
    taking::completed(core::ptr::null_mut(), 0, buffer, size, valid);
}

#[test]
fn a_kernel_a_copy_and_a_memset_are_read_where_cupti_writes_them() {
    let name = CString::new("_Z4gemmv").unwrap();
    let kernel = kernel(Some(&name), [10, 30], 5).read().unwrap();
    let Activity {
        start,
        end,
        device,
        stream,
        correlation,
        work,
    } = kernel;
    assert_eq!((start, end, device, stream, correlation), (10, 30, 1, 7, 5));
    assert!(matches!(work, ActivityDetails::Kernel { name: at, .. } if at == name.as_ptr()));
    let copy = moved(MEMCPY, 4096, [1, 2], 6).read().unwrap();
    let (kind, bytes) = (CopyKind::DeviceToHost, 4096);
    assert!(
        matches!(copy.work, ActivityDetails::Copy { kind: is, bytes: found } if (is, found) == (kind, bytes))
    );
    assert_eq!((copy.device, copy.stream, copy.correlation), (1, 7, 6));
    let set = moved(MEMSET, 64, [1, 2], 7).read().unwrap();
    assert!(matches!(set.work, ActivityDetails::Set { bytes: 64 }) && set.is_timed());
    assert!(Bytes::new(3).read().is_none());
    for times in [[0, 0], [0, 5], [9, 8]] {
        assert!(!moved(MEMSET, 1, times, 1).read().unwrap().is_timed());
    }
}

#[test]
fn what_cupti_hands_over_is_in_the_record() {
    let record = record();
    made::load();
    let before = ClockReading::now();
    let names = ["gemm", "softmax"].map(|name| CString::new(name).unwrap());
    let [gemm, softmax] = &names;
    let at = |ns: u64| [before.ns + ns, before.ns + ns + 4096];
    let thread = on_a_thread(|| {
        taking::begin(before, 0);
        hand_over(&[
            kernel(Some(gemm), at(1_000), 1),
            kernel(Some(softmax), at(6_000), 1),
            kernel(Some(gemm), at(11_000), 2),
            kernel(None, at(16_000), 3),
        ]);
        *made::DROPPED.lock().unwrap() = 2;
        hand_over(&[
            moved(MEMCPY, 4096, at(21_000), 4),
            moved(MEMSET, 64, at(26_000), 5),
            kernel(Some(gemm), [0, 0], 6),
            Bytes::new(3),
        ]);
    });
    let totals = taking::totals();
    assert_eq!((totals.kernels, totals.copies, totals.sets), (4, 1, 1));
    assert_eq!(
        (totals.dropped, totals.untimed, totals.calls),
        (2, 1, Some(6))
    );
    log_totals();
    taking::end();
    // After the recording has ended, no work is recorded, but a buffer that is handed over becomes free again.
    hand_over(&[kernel(None, [1, 2], 9)]);
    let contents = record.read();
    let events = contents.find_events(thread);
    let named: Vec<_> = events
        .iter()
        .filter_map(|event| match event.what {
            What::GpuKernel {
                device: 1,
                stream: 7,
                name,
                correlation,
            } => Some((contents.strings.get(name), correlation)),
            _ => None,
        })
        .collect();
    assert_eq!(named, [("gemm", 1), ("softmax", 1), ("gemm", 2), ("?", 3)]);
    let has = |what| events.iter().any(|event| event.what == what);
    let (device, stream) = (1, 7);
    assert!(has(What::GpuCopy {
        device,
        stream,
        kind: CopyKind::DeviceToHost,
        bytes: 4096
    }));
    assert!(has(What::GpuSet {
        device,
        stream,
        bytes: 64
    }));
    assert!(has(What::Dropped { events: 3 }));
    let is_work = |event: &&Recorded| matches!(event.what, What::GpuKernel { .. });
    let kernels: Vec<_> = events.iter().filter(is_work).collect();
    assert!(kernels.iter().all(|event| event.duration == 4096));
    assert!(kernels.is_sorted_by_key(|event| event.start));
    assert!(before.ticks <= kernels[0].start);
}

#[test]
fn times_of_a_clock_that_is_ahead_are_put_back() {
    let record = record();
    made::load();
    let now = ClockReading::now();
    let starts = [0, 1 << 40].map(|ahead: i64| {
        let thread = on_a_thread(|| {
            taking::begin(now, ahead);
            let start = now.ns.saturating_add_signed(ahead);
            hand_over(&[moved(MEMSET, 1, [start, start + 1], 1)]);
        });
        taking::end();
        record.read().find_events(thread)[0].start
    });
    assert_eq!(starts, [now.ticks; 2]);
}

#[test]
fn a_pause_between_two_readings_is_no_difference_of_clocks() {
    const PAUSE: Duration = Duration::from_millis(20);
    const FAR: u64 = 1 << 40;
    let mut reads = 0;
    let mut ahead_of = |by: u64| {
        clock::ahead(|| {
            let now = nanoseconds(SystemClock::Realtime) + by;
            reads += 1;
            if reads % 8 == 0 {
                std::thread::sleep(PAUSE);
            }
            now
        })
    };
    assert_eq!(ahead_of(0), 0);
    let found = ahead_of(FAR).cast_unsigned();
    assert!(
        u128::from(found.abs_diff(FAR)) < PAUSE.as_nanos() / 2,
        "{found}"
    );
}

#[test]
fn a_moment_between_two_readings_is_as_far_between_their_ticks() {
    let since = ClockReading {
        ns: 1_000,
        ticks: 50,
    };
    let later = ClockReading {
        ns: 3_000,
        ticks: 150,
    };
    let ticks = [1_000, 2_000, 3_000, 5_000, 0].map(|ns| since.ticks_at(&later, ns));
    assert_eq!(ticks, [50, 100, 150, 250, 0]);
    assert_eq!(since.ticks_at(&since, 7_000), 50);
    let mut reads = 0;
    let reading = ClockReading::new(|| {
        reads += 1;
        7
    });
    assert_eq!((reading.ns, reads), (7, 8));
}

#[test]
fn buffers_are_used_again() {
    let _record = record();
    buffers::prepare();
    let first = buffers::take().unwrap();
    let second = buffers::take().unwrap();
    assert_ne!(first, second);
    buffers::give_back(first);
    assert_eq!(buffers::take().unwrap(), first);
    let many: Vec<_> = (0..20).map(|_| buffers::take().unwrap()).collect();
    for buffer in many.into_iter().chain([first, second]) {
        // SAFETY: the buffer belongs to this test, and has this length.
        unsafe { buffer.add(buffers::SIZE - 1).write(1) };
        buffers::give_back(buffer);
    }
    buffers::shrink();
    // `shrink` has unmapped the buffers beyond those that are allocated in advance. New ones can be allocated.
    let again: Vec<_> = (0..20).map(|_| buffers::take().unwrap()).collect();
    again.into_iter().for_each(buffers::give_back);
    buffers::shrink();
}

#[test]
fn an_attempt_is_given_up_once_and_a_late_worker_finds_that() {
    let _record = record();
    jobs::begin_attempt();
    assert_eq!(jobs::left(), Left::Busy);
    assert!(jobs::abandon_attempt());
    assert!(!jobs::abandon_attempt());
    // CUPTI cannot be detached in this test, because the process has no CUDA driver. The result for this is `Unseen`.
    work(Job::Leave);
    assert_eq!(jobs::left(), Left::Unseen);
}

#[test]
fn the_edges_of_what_is_taken_are_in_the_record() {
    let record = record();
    let thread = on_a_thread(|| {
        write_edge(Edge::Open, 5);
        write_stop(Action::Stop, 7);
    });
    let what: Vec<_> = record
        .read()
        .find_events(thread)
        .iter()
        .map(|event| event.what)
        .collect();
    let edge = |edge, iteration| What::KernelWindow { edge, iteration };
    assert_eq!(what, [edge(Edge::Open, 5), edge(Edge::Close, 6)]);
}

#[test]
fn the_variables_may_stand_against_kernels() {
    const KERNELS: (&str, &str) = ("TLLMPROF_KERNELS", "2");
    const WINDOW: (&str, &str) = ("TLLMPROF_START_STOP", "5-9");
    const TRACE: (&str, &str) = ("TLLMPROF_TRACE", "/nowhere/x.tlm");
    const TORCH: (&str, &str) = ("TLLM_TORCH_PROFILE_TRACE", "/nowhere/x.json");
    let wanted = |more: &[(&str, &str)]| is_wanted(&settings(more));
    assert!(wanted(&[KERNELS, WINDOW, TRACE]));
    assert!(!wanted(&[WINDOW, TRACE]));
    assert!(!wanted(&[KERNELS, TRACE]));
    // For samples of kernels, windows (ranges of profiled iterations) open automatically. So kernels are wanted even if
    // the settings request no window.
    assert!(wanted(&[("TLLMPROF_KERNELS", "2@5s"), TRACE]));
    assert!(wanted(&[
        KERNELS,
        TRACE,
        ("TLLMPROF_WHEN", "iteration>5ms")
    ]));
    let obstacle = |more: &[(&str, &str)]| settings(more).obstacle();
    assert!(matches!(
        obstacle(&[KERNELS, WINDOW]),
        Some(KernelsRefusal::NoRecord)
    ));
    let torch = obstacle(&[KERNELS, WINDOW, TRACE, TORCH]);
    assert!(matches!(torch, Some(KernelsRefusal::TorchProfiler)));
}

#[test]
fn each_refusal_has_a_number_and_a_reason_of_its_own() {
    let path = || "/x/libcupti.so.12".to_owned();
    let refusals = [
        KernelsRefusal::NoRecord,
        KernelsRefusal::TorchProfiler,
        KernelsRefusal::Injected,
        KernelsRefusal::NoDriver,
        KernelsRefusal::NotFound { newest: 13 },
        KernelsRefusal::NotLoaded("no such file".to_owned()),
        KernelsRefusal::TooOld {
            path: path(),
            version: 18,
        },
        KernelsRefusal::Lacks {
            path: path(),
            function: "cuptiFinalize",
        },
        KernelsRefusal::Memory { free: 5 << 20 },
        KernelsRefusal::Taken,
        KernelsRefusal::Failed {
            function: "cuptiSubscribe",
            status: 15,
        },
        KernelsRefusal::Slow,
        KernelsRefusal::Mig,
        KernelsRefusal::ThreadLocals,
    ];
    let numbers: Vec<_> = refusals.iter().map(KernelsRefusal::number).collect();
    assert_eq!(numbers, (0..14).collect::<Vec<_>>());
    let texts: std::collections::HashSet<_> =
        refusals.iter().map(KernelsRefusal::to_string).collect();
    assert_eq!(texts.len(), refusals.len());
    assert!(refusals[8].to_string().contains("5 MiB of memory free"));
    assert!(
        refusals[10]
            .to_string()
            .contains("cuptiSubscribe failed with error 15")
    );
    let passing = refusals.iter().filter(|refusal| refusal.may_pass());
    assert_eq!(
        passing.map(KernelsRefusal::number).collect::<Vec<_>>(),
        [8, 9, 10, 13]
    );
}
