//! Writes what the fuzzer starts from: `seeds FOLDER [RECORD…]`. Without records, those of a made-up
//! server and of one event of each kind.

use std::error::Error;
use std::path::{Path, PathBuf};

use tllmprof_fuzz::{pack, unpack};
use tllmprof_record::builder::Builder;
use tllmprof_record::{CallKind, ClockKind, CopyKind, Edge, Event, Info, Metric, RangeKind, What};

#[path = "../../../crates/report/tests/common/server.rs"]
mod server;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let folder = arguments.next().ok_or("no FOLDER")?;
    std::fs::create_dir_all(&folder)?;
    let records: Vec<_> = arguments.collect();
    for record in &records {
        let name = record.file_stem().ok_or("a record that is no file")?;
        write(&folder, Path::new(name), &std::fs::read(record)?)?;
    }
    if records.is_empty() {
        for rank in 0..3 {
            let server = server::Server {
                rank,
                window: 105..=112,
                kernels: 1,
                taken: 106..=108,
            };
            let name = format!("server-{rank}");
            write(&folder, Path::new(&name), &server.record().0.bytes())?;
        }
        let all = every_kind();
        write(&folder, Path::new("every-kind"), &all)?;
        write(&folder, Path::new("cut-off"), &all[..all.len() - 65_400])?;
        write(&folder, Path::new("header-alone"), &all[..64 * 1024])?;
    }
    Ok(())
}

fn write(folder: &Path, name: &Path, record: &[u8]) -> Result<(), Box<dyn Error>> {
    let packed = pack(record);
    if unpack(&packed) != record {
        return Err(format!("{}: it is too long, or has a full chunk", name.display()).into());
    }
    Ok(std::fs::write(folder.join(name), packed)?)
}

fn every_kind() -> Vec<u8> {
    let mut builder = Builder::new(1, ClockKind::Monotonic);
    let name = builder.string(1, "name");
    let domain = builder.string(1, "domain");
    let all = [
        What::ThreadName { name },
        What::Info {
            key: Some(Info::Refused),
            value: u64::from(name),
        },
        What::CallName {
            row: 3,
            kind: Some(CallKind::Wait),
            name,
        },
        What::Window {
            edge: Edge::Open,
            iteration: 5,
        },
        What::Call {
            row: 3,
            capturing: false,
            stream: 7,
        },
        What::Call {
            row: 4,
            capturing: true,
            stream: 7,
        },
        What::Gc {
            generation: 2,
            collected: 9,
        },
        What::GilWait,
        What::GilHold,
        What::GilForced,
        What::Function { name },
        What::Range {
            kind: RangeKind::PushPop,
            domain,
            name,
        },
        What::Range {
            kind: RangeKind::StartEnd,
            domain: 0,
            name,
        },
        What::Mark { domain, name },
        What::GpuSpan {
            device: 1,
            stream: 2,
            iteration: 5,
        },
        What::KernelWindow {
            edge: Edge::Open,
            iteration: 5,
        },
        What::GpuKernel {
            device: 1,
            stream: 2,
            name,
            correlation: 4,
        },
        What::GpuCopy {
            device: 1,
            stream: 2,
            kind: CopyKind::HostToDevice,
            bytes: 4096,
        },
        What::GpuSet {
            device: 1,
            stream: 3,
            bytes: 64,
        },
        What::GpuMetric {
            device: 1,
            metric: Some(Metric::Power),
            thousandths: 500_000,
        },
        What::ExpertLoad {
            layer: 1,
            expert: 2,
            tokens: 3,
        },
        What::KernelWindow {
            edge: Edge::Close,
            iteration: 5,
        },
        What::Dropped { events: 3 },
        What::Iteration { n: 5 },
        What::Iteration { n: 6 },
        What::Window {
            edge: Edge::Close,
            iteration: 6,
        },
    ];
    for (at, what) in (0..).zip(all) {
        builder.push(1, &Event::new(1000 + 10 * at, 100, what));
        builder.push(2, &Event::new(1000 + 20 * at, 50, what));
        if at == 10 {
            builder.hand_over(2, 3);
            builder.push(3, &Event::new(0, u64::MAX, what));
        }
    }
    builder.bytes()
}
