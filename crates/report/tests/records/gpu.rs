//! Tests of the figures on kernels and GPU metrics, with a server whose times are known exactly.

use std::io;
use std::path::PathBuf;

use crate::common::server::{SAMPLE, Server, Truth};
use crate::common::{fits, json, process};
use serde_json::Value;
use tllmprof_record::builder::Builder;
use tllmprof_record::{
    CallKind, ClockKind, Counter, Damage, Edge, Ended, Entry, Event, Header, Reader, What,
};
use tllmprof_report::{Ledger, LedgerKind, Process, Recording, Report};

#[test]
fn kernels_add_up_and_gpu_times_are_of_iterations_without_them() {
    let (builder, truths) = Server::rank(0).record();
    let json = json(&Report::new(vec![process("a", &builder.bytes())]));
    let process = &json["processes"][0];
    let taken: Vec<_> = truths.iter().filter(|truth| truth.busy.is_some()).collect();
    let busy: u64 = taken.iter().filter_map(|truth| truth.busy).sum();
    let wall: u64 = taken.iter().map(|truth| truth.duration).sum();
    // A step has five pieces of GPU work. After each piece except the last, there is a gap of a
    // quarter of the time between two starts.
    let gaps: u64 = taken
        .iter()
        .map(|truth| truth.gpu / 5 - truth.gpu / 5 * 3 / 4)
        .sum::<u64>()
        * 4;
    let expected = serde_json::json!({
        "iterations": 20, "wall_ns": wall, "busy_ns": busy, "gaps_ns": gaps, "kernels": 80,
        "dropped": 0, "samples": null
    });
    assert_eq!(process["kernel_window"], expected);
    let iteration = &process["windows"][0]["iterations"];
    assert_eq!(
        (&iteration[19]["kernels"], &iteration[20]["kernels"]),
        (&4.into(), &0.into())
    );
    let kernels = &process["kernels"];
    assert_eq!(
        kernels[0]["name"],
        "cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32>(\
         cutlass_80_tensorop_s1688gemm_128x128_32::Params)"
    );
    assert_eq!(
        (&kernels[0]["count"], &kernels[1]["count"]),
        (&60.into(), &20.into())
    );
    let each = |truth: &&Truth| truth.gpu / 5 * 3 / 4;
    assert_eq!(
        kernels[0]["total_ns"],
        taken.iter().map(each).sum::<u64>() * 3
    );
    assert_eq!(kernels[0]["max_ns"].as_u64(), taken.iter().map(each).max());
    assert_eq!(kernels[0]["min_ns"].as_u64(), taken.iter().map(each).min());
    let copies = &process["copies"];
    assert_eq!(
        (&copies[0]["kind"], &copies[0]["bytes"]),
        (&"DtoH".into(), &(20 << 20).into())
    );
    assert_eq!(
        (&copies[1]["kind"], &copies[1]["count"]),
        (&"memset".into(), &20.into())
    );
    let inside = &process["inside"];
    assert_eq!(inside["gpu_from"], "events");
    let mut plain: Vec<_> = truths.iter().filter(|truth| truth.busy.is_none()).collect();
    plain.sort_by_key(|truth| truth.gpu);
    assert_eq!(inside["gpu"]["p50_ns"], plain[15].gpu);
    plain.sort_by_key(|truth| truth.duration);
    assert_eq!(inside["without_kernels"]["p50_ns"], plain[15].duration);
}

#[test]
fn gpu_times_are_those_of_kernels_where_there_are_no_others() {
    for (taken, spans, from) in [
        (0..=200, true, "events in kernel windows"),
        (100..=119, true, "events"),
        (0..=200, false, "kernels"),
    ] {
        let server = Server {
            taken,
            ..Server::rank(0)
        };
        let bytes = server.record().0.bytes();
        let bytes = if spans {
            bytes
        } else {
            without_gpu_spans(bytes)
        };
        let report = Report::new(vec![process("a", &bytes)]);
        let inside = &json(&report)["processes"][0]["inside"];
        assert_eq!(inside["gpu_from"], from);
        assert!(inside["gpu_share"].as_f64().unwrap() > 0.5, "{inside}");
        fits(&report.text(), 44);
    }
}

/// Changes the kind of a record's GPU spans (GPU times from CUDA events) to an unknown kind, so
/// that readers skip them.
fn without_gpu_spans(bytes: Vec<u8>) -> Vec<u8> {
    without(&[16], bytes)
}

/// Changes the kind of the given events to an unknown kind, so that readers skip them.
fn without(kinds: &[u8], mut bytes: Vec<u8>) -> Vec<u8> {
    let start = 64 * 1024;
    for chunk in bytes[start..].chunks_mut(64 * 1024) {
        for event in chunk[64..]
            .chunks_exact_mut(24)
            .filter(|event| kinds.contains(&event[12]))
        {
            event[12] = 200;
        }
    }
    bytes
}

#[test]
fn kernels_that_never_arrived_are_unknown_and_not_none() {
    // 18, 19 and 20 are the numbers of the kinds of events for kernels, copies and memory sets.
    let bytes = without(&[18, 19, 20], Server::rank(0).record().0.bytes());
    let report = Report::new(vec![process("a", &bytes)]);
    let found = &json(&report)["processes"][0];
    assert_eq!(found["kernel_window"], Value::Null);
    assert_eq!(
        found["windows"][0]["iterations"][3]["gpu_busy_ns"],
        Value::Null
    );
    assert!(found["inside"]["gpu_share"].as_f64().unwrap() > 0.5);
    let text = report.text();
    let line = "no kernel arrived from 20 iterations in which the GPU was busy\n";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains("busy 0"), "{text}");
    fits(&text, 44);
    // If the record shows no GPU work at all, nothing is missing, and the number of kernels is 0.
    let report = Report::new(vec![process("a", &without_gpu_spans(bytes))]);
    assert_eq!(json(&report)["processes"][0]["kernel_window"]["kernels"], 0);
}

#[test]
fn lost_edges_of_kernel_windows_lose_no_kernels() {
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let put = |builder: &mut Builder, at, long, what| builder.push(7, &Event::new(at, long, what));
    for n in 0..10 {
        put(
            &mut builder,
            1000 * n,
            900,
            What::Iteration { n, excluded: false },
        );
    }
    for start in [3100, 3500, 5200] {
        let kernel = What::GpuKernel {
            device: 3,
            stream: 0,
            name: 9,
            correlation: 0,
        };
        put(&mut builder, start, 100, kernel);
    }
    put(&mut builder, 9000, 0, What::Dropped { events: 4 });
    builder.push(8, &Event::new(9000, 0, What::Dropped { events: 8 }));
    for (edge, first, iterations) in [(false, 3, 3), (true, 2, 4)] {
        if edge {
            let open = What::KernelWindow {
                edge: Edge::Open,
                iteration: 2,
            };
            put(&mut builder, 2000, 0, open);
        }
        let report = Report::new(vec![process("a", &builder.bytes())]);
        let json = json(&report);
        let taken = &json["processes"][0]["kernel_window"];
        let found = (
            &taken["iterations"],
            &taken["busy_ns"],
            &taken["gaps_ns"],
            &taken["dropped"],
        );
        assert_eq!(
            found,
            (&iterations.into(), &300.into(), &300.into(), &4.into())
        );
        let all = &json["processes"][0]["windows"][0]["iterations"];
        assert_eq!(all[first]["gpu_busy_ns"], if edge { 0 } else { 200 });
        assert_eq!(all[first - 1]["gpu_busy_ns"], Value::Null);
        assert!(report.text().contains("4 kernels or copies are missing"));
        assert_eq!(json["processes"][0]["dropped"], 8);
    }
}

#[test]
fn a_kernel_that_the_driver_copies_with_is_a_copy() {
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let names = ["gemm", "memcpy32_post", "memset32"].map(|name| builder.string(7, name));
    let mut put = |at, long, what| builder.push(7, &Event::new(at, long, what));
    for n in 0..10 {
        put(1000 * n, 900, What::Iteration { n, excluded: false });
        for (name, start) in names.into_iter().zip([100, 300, 500]) {
            let kernel = What::GpuKernel {
                device: 0,
                stream: 0,
                name,
                correlation: 0,
            };
            put(1000 * n + start, 100, kernel);
        }
    }
    let report = Report::new(vec![process("a", &builder.bytes())]);
    let found = &json(&report)["processes"][0];
    let kernels = found["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), 1);
    assert_eq!(
        (&kernels[0]["name"], &kernels[0]["count"]),
        (&"gemm".into(), &10.into())
    );
    let copies = found["copies"].as_array().unwrap();
    assert_eq!(copies.len(), 2);
    for (copy, kind) in copies.iter().zip(["DtoD", "memset"]) {
        assert_eq!((&copy["kind"], &copy["count"]), (&kind.into(), &10.into()));
    }
    let window = &found["kernel_window"];
    assert_eq!(
        (&window["busy_ns"], &window["kernels"]),
        (&3000.into(), &10.into())
    );
    let gpu = &found["gpus"][0];
    let times = (&gpu["kernel_ns"], &gpu["busy_ns"]);
    assert_eq!(times, (&1000.into(), &3000.into()));
}

#[test]
fn gpu_metrics_go_to_the_processes_of_their_machine() {
    let (builder, truths) = Server::rank(0).record();
    let server = process("a", &builder.bytes());
    let start = truths[0].start;
    let end = truths[50].start + truths[50].duration;
    let metrics = process("b", &Server::rank(0).metrics(end + 3 * SAMPLE).bytes());
    // In a metric's mean over the window, the weight of each sample is the time for which it overlaps the window.
    let first = metrics.metrics.samples.samples[0].start;
    let (mut sum, mut most) = (0.0, 0.0);
    for sample in 0..(end - first).div_ceil(SAMPLE) {
        let at = first + sample * SAMPLE;
        let part = (at + SAMPLE).min(end).saturating_sub(at.max(start)) as f64;
        most = 50.0 + sample as f64;
        sum += part * most;
    }
    let report = Report::new(vec![metrics, server]);
    let text = report.text();
    fits(&text, 44);
    let line = "GPU 0 (and 1 more): SM busy 62.7 %, DRAM 31.2 %, power 512 W\n";
    assert!(text.contains(line), "{text}");
    let json = json(&report);
    assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    let found = &json["processes"][0]["gpu_metrics"];
    assert_eq!(found.as_array().unwrap().len(), 6);
    assert_eq!(
        (&found[3]["device"], &found[3]["metric"]),
        (&1.into(), &"SM busy".into())
    );
    let mean = found[0]["mean"].as_f64().unwrap();
    assert!((mean - sum / (end - start) as f64).abs() < 1e-3, "{mean}");
    assert_eq!(found[0]["max"], most);
    let alone = Report::new(vec![process("b", &Server::rank(0).metrics(end).bytes())]);
    assert_eq!(alone.text(), "no record of a program: GPU metrics alone\n");
}

#[test]
fn kernels_that_were_sampled_say_of_what_they_are() {
    let mut builder = Builder::new(7, ClockKind::Monotonic);
    let put = |builder: &mut Builder, start, duration, what| {
        builder.push(7, &Event::new(start, duration, what));
    };
    for n in 0..8 {
        let iteration = What::Iteration { n, excluded: false };
        put(&mut builder, 1000 * n, 900, iteration);
    }
    let kernel = What::GpuKernel {
        device: 0,
        stream: 0,
        name: 9,
        correlation: 0,
    };
    // Of these three windows, the first and the last are opened periodically to record kernels
    // (samples). The window in between was requested.
    for (first, is_sample) in [(1, true), (3, false), (6, true)] {
        let at = 1000 * first;
        for (edge, at, iteration) in [
            (Edge::Open, at - 1, first),
            (Edge::Close, at + 1950, first + 1),
        ] {
            put(&mut builder, at, 0, What::Window { edge, iteration });
            put(&mut builder, at, 0, What::KernelWindow { edge, iteration });
        }
        put(&mut builder, at + 100, 100, kernel);
        if is_sample {
            let sample = What::KernelSample {
                steps: 2,
                every_ms: 1500,
                iteration: first as u32,
            };
            put(&mut builder, at, 0, sample);
        }
    }
    let report = Report::new(vec![process("a", &builder.bytes())]);
    let text = "2 steps each 1.5 s, 2 samples and 1 other window";
    let samples = &json(&report)["processes"][0]["kernel_window"]["samples"];
    let expected = serde_json::json!({
        "count": 2, "steps": 2, "every_ns": 1_500_000_000, "others": 1, "text": text,
    });
    assert_eq!(*samples, expected);
    let said = report.text();
    let heading = format!("kernels of 6 steps ({text}): busy ");
    assert!(said.contains(&heading), "{said}");
    fits(&said, 44);
}

/// An iteration: its number of launches, the time of its code, the time of its wait for the GPU, and its kernels, if
/// they were recorded. Times are in microseconds.
type Step = (u64, u64, u64, Vec<Kernel>);

/// A kernel: its GPU, and its start and end from the start of the iteration, in microseconds.
type Kernel = (u8, u64, u64);

/// A record of iterations that follow each other without a gap, except where `pause` says so. Times are in
/// microseconds.
struct TwoParts {
    iterations: Vec<Step>,
    /// The pause before the first iteration with kernels.
    pause: u64,
    /// The time that the recorder took.
    own: u64,
}

impl TwoParts {
    fn builder(&self) -> Builder {
        const TID: u32 = 7;
        let mut builder = Builder::new(TID, ClockKind::Monotonic);
        let name = builder.string(TID, "gemm");
        let calls = [
            (0, CallKind::KernelLaunch, "cuLaunchKernel"),
            (1, CallKind::Wait, "cuStreamSynchronize"),
        ];
        for (row, kind, call) in calls {
            let (kind, name) = (Some(kind), builder.string(TID, call));
            builder.push(TID, &Event::new(0, 0, What::CallName { row, kind, name }));
        }
        let mut put = |at: u64, long: u64, what| {
            builder.push(TID, &Event::new(at * 1000, long * 1000, what));
        };
        let mut now = 1000;
        let (edge, iteration) = (Edge::Open, 0);
        put(now, 0, What::Window { edge, iteration });
        let (mut n, mut is_taken) = (0, false);
        for (launches, code, wait, kernels) in &self.iterations {
            if !kernels.is_empty() && !is_taken {
                is_taken = true;
                now += self.pause;
                put(now, 0, What::KernelWindow { edge, iteration: n });
            }
            let call = |row| What::Call {
                row,
                capturing: false,
                stream: 0x70,
            };
            // The launches come at the end of the code, without code between them.
            for launch in 0..*launches {
                put(now + code - launches + launch, 1, call(0));
            }
            put(now + code, *wait, call(1));
            for (device, from, to) in kernels {
                let what = What::GpuKernel {
                    device: *device,
                    stream: 1,
                    name,
                    correlation: 0,
                };
                put(now + from, to - from, what);
            }
            put(now, code + wait, What::Iteration { n, excluded: false });
            now += code + wait;
            n += 1;
        }
        let (edge, iteration) = (Edge::Close, n - 1);
        put(now, 0, What::KernelWindow { edge, iteration });
        put(now, 0, What::Window { edge, iteration });
        builder.header().set(Counter::OwnTicks, self.own * 1000);
        builder.header().set(Counter::Windows, 1);
        builder.end(Ended::InOrder);
        builder
    }

    fn process(&self) -> Process {
        process("two parts", &self.builder().bytes())
    }
}

#[test]
fn idle_and_busy_time_of_the_part_without_kernels_add_up() {
    // In each iteration the GPU works for 600 us. Recording kernels makes the host's code longer, so that the GPU's work
    // is done in the wait there, and the wait is as long. In the other part, the code takes 100 us and the wait 650 us,
    // so that the GPU is idle for 50 us in it.
    let plain = (1, 100, 650, Vec::new());
    let taken = (1, 400, 600, vec![(0, 400, 1000)]);
    // The other iterations launch more. Their kernels take longer than the iterations without recorded kernels.
    let large = (9, 300, 100, Vec::new());
    let large_taken = (9, 600, 700, vec![(0, 600, 1300)]);
    let mut iterations = vec![plain; 60];
    iterations.extend(vec![large; 20]);
    iterations.extend(vec![taken; 15]);
    iterations.extend(vec![large_taken; 5]);
    let made = TwoParts {
        iterations,
        pause: 0,
        own: 0,
    };
    let process = made.process();
    let ledger = &process.ledger;
    assert_eq!(ledger.gpu_iterations, 80);
    let all: u64 = ledger.gpu.iter().map(|row| row.ns).sum();
    assert_eq!(all, (60 * 750 + 20 * 400) * 1000);
    let of = |start: &str| {
        let rows = ledger.gpu.iter().filter(|row| row.cause.starts_with(start));
        rows.map(|row| row.ns).sum::<u64>() / 1000
    };
    // The GPU works for at most the time of an iteration. One kind of iterations does not make up for the other.
    assert_eq!(of("busy: "), 60 * 600 + 20 * 400);
    // The record does not show in which activity of the host the rest of the time without GPU work lies.
    let known: u64 = of("idle: ") - of("idle: unknown");
    assert!(known <= 60 * 150, "{known}");
    assert_eq!(of("idle: "), 60 * 150);
    let busy = of("busy: ") as f64 / (all as f64 / 1000.0);
    assert!(
        (process.gpu.share.unwrap() - busy).abs() < 1e-9,
        "{:?}",
        process.gpu
    );
}

#[test]
fn if_kernels_are_missing_the_ledger_has_no_idle_time_by_them() {
    let mut iterations = vec![(1, 100, 900, Vec::new()); 40];
    iterations.extend(vec![(1, 100, 900, vec![(0, 100, 500)]); 10]);
    let made = TwoParts {
        iterations,
        pause: 0,
        own: 0,
    };
    assert!(!made.process().ledger.gpu.is_empty());
    let mut builder = made.builder();
    let events = 5;
    builder.push(7, &Event::new(0, 0, What::Dropped { events }));
    let found = process("missing", &builder.bytes());
    assert_eq!((found.gpu.share, &found.ledger.gpu[..]), (None, &[][..]));
}

/// A record without the events that show when the GPU worked.
struct WithoutGpuTimes<'a>(Reader<&'a [u8]>);

impl Recording for WithoutGpuTimes<'_> {
    fn header(&self) -> &Header {
        self.0.header()
    }

    fn read(&self, mut each: impl FnMut(Entry<'_>)) -> io::Result<Damage> {
        self.0.read(|entry| {
            let is_of_gpu = |event: &Event| {
                use What::{GpuCopy, GpuKernel, GpuSet, GpuSpan};
                let what = &event.what;
                matches!(
                    what,
                    GpuCopy { .. } | GpuKernel { .. } | GpuSet { .. } | GpuSpan { .. }
                )
            };
            if !matches!(&entry, Entry::Event { event, .. } if is_of_gpu(event)) {
                each(entry);
            }
        })
    }
}

#[test]
fn certain_idle_time_is_no_longer_than_what_was_measured() {
    let mut compared = 0;
    for (name, bytes) in crate::stored::corpus() {
        let measured = process(&name, &bytes).ledger;
        let stripped = WithoutGpuTimes(Reader::new(&bytes[..]).unwrap());
        let certain = Process::read(PathBuf::from(&name), &stripped)
            .unwrap()
            .ledger;
        if measured.gpu.is_empty() || certain.gpu.is_empty() {
            continue;
        }
        compared += 1;
        let idle = |ledger: &Ledger| {
            let rows = ledger.gpu.iter().filter(|row| row.kind == LedgerKind::Idle);
            rows.map(|row| row.share).sum::<f64>()
        };
        let [certain, measured] = [&certain, &measured].map(idle);
        println!("{name}: {certain:.4} of {measured:.4}");
        assert!(
            certain <= measured + 0.02,
            "{name}: {certain} of {measured}"
        );
    }
    assert!(compared >= 8, "{compared}");
}

#[test]
fn the_pause_between_the_two_parts_is_no_cost_of_recording_within_steps() {
    let mut iterations = vec![(1, 100, 900, Vec::new()); 40];
    iterations.extend(vec![(1, 100, 900, vec![(0, 100, 900)]); 10]);
    let made = TwoParts {
        iterations,
        pause: 20_000,
        own: 20_100,
    };
    let process = made.process();
    let own = process.own_share().unwrap();
    assert!((own - 0.002).abs() < 1e-6, "{own}");
    assert_eq!(
        json(&Report::new(vec![process]))["processes"][0]["recorder_share"],
        own
    );
}

#[test]
fn of_several_gpus_the_busiest_is_named() {
    // GPU 1 works for longer in all, and GPU 0 in every second iteration.
    let iteration = |n: usize| match n % 2 {
        0 => (1, 100, 900, vec![(0, 100, 600), (1, 100, 400)]),
        _ => (1, 100, 900, vec![(1, 100, 1000)]),
    };
    let made = TwoParts {
        iterations: (0..20).map(iteration).collect(),
        pause: 0,
        own: 0,
    };
    let report = Report::new(vec![made.process()]);
    let found = &json(&report)["processes"][0];
    assert_eq!(found["busiest_gpu"], 1);
    let busy = |n: usize| found["windows"][0]["iterations"][n]["gpu_busy_ns"].as_u64();
    assert_eq!([busy(0), busy(1)], [Some(300_000), Some(900_000)]);
    let rows = report.processes[0].ledger.gpu.iter();
    let rows = rows.filter(|row| row.cause.starts_with("busy: "));
    let sum: u64 = rows.map(|row| row.ns).sum();
    assert_eq!(Some(sum), found["gpus"][1]["busy_ns"].as_u64());
    let text = report.text();
    for line in ["  GPU 1 busy", "  GPU 1 (20 of 20", ": GPU 1 busy 60"] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}
