//! Writes the fuzzer's seeds: `seeds FOLDER [RECORD…]`. With RECORD arguments, the seeds are these records. Without,
//! they are a record of an artificial server, records with one event of each type (whole, unfinished and cut off), and
//! exports of nsys.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use tllmprof_fuzzed::packed::{pack, unpack};
use tllmprof_record::builder::Builder;
use tllmprof_record::{
    Batch, CallKind, ClockKind, CopyKind, Edge, Ended, Event, GpuOwner, GraphState, Info, Metric,
    RangeKind, What,
};

#[path = "../../../crates/nsys/tests/common/mod.rs"]
mod export;
#[path = "../../../crates/report/tests/common/server.rs"]
mod server;

use export::{Export, Schema};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let folder = arguments.next().ok_or("no FOLDER")?;
    let records = folder.join("records");
    fs::create_dir_all(&records)?;
    let given: Vec<_> = arguments.collect();
    for record in &given {
        let name = record.file_stem().ok_or("a record that is no file")?;
        write(&records, Path::new(name), &fs::read(record)?)?;
    }
    if given.is_empty() {
        let server = server::Server {
            rank: 0,
            window: 105..=112,
            kernels: 1,
            taken: 106..=108,
            excluded: |n| n == 107,
        };
        write(&records, Path::new("server"), &server.record().0.bytes())?;
        let all = every_kind(true);
        write(&records, Path::new("every-kind"), &all)?;
        write(&records, Path::new("unfinished"), &every_kind(false))?;
        write(&records, Path::new("cut-off"), &all[..all.len() - 65_000])?;
        write(&records, Path::new("header-alone"), &all[..64 * 1024])?;
        exports(&folder.join("nsys"))?;
    }
    Ok(())
}

fn write(folder: &Path, name: &Path, record: &[u8]) -> Result<(), Box<dyn Error>> {
    let packed = pack(record);
    if unpack(&packed) != record {
        return Err(format!("{}: it is too long", name.display()).into());
    }
    Ok(fs::write(folder.join(name), packed)?)
}

/// Writes the seeds that are exports of nsys. Their database pages are small, so that a random change is likely to hit
/// a row.
fn exports(folder: &Path) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(folder)?;
    for (name, schema) in [("full", Schema::Full), ("sparse", Schema::Sparse)] {
        let path = folder.join(name);
        let _ = fs::remove_file(&path);
        let mut export = Export::new(&path, schema);
        let of = export::thread(100, 101);
        export.domain(of, 1, "tllmprof");
        export.range(60, of, 1, "capture", None, [1000, 4050]);
        for n in 0..4 {
            let start = 1100 + 1000 * n;
            let number = format!("iteration {n}");
            export.range(60, of, 1, &number, Some(5 + n), [start, start + 900]);
            export.range(59, of, 0, "a range", None, [start + 10, start + 400]);
            if schema == Schema::Full {
                let name = export.string("cudaGraphLaunch_v10000");
                export.call(of, name, [start + 20, start + 40]);
            }
            let name = export.string("void a::kernel<int>(int*)");
            export.kernel(100, name, n % 2, [start + 50, start + 600]);
        }
        let ranges = [
            "Python GC gen2",
            "GIL wait",
            "GIL hold",
            "Engine.step",
            "cuGraphLaunch",
        ];
        for (at, text) in (2200..).step_by(30).zip(ranges) {
            export.range(59, of, 1, text, None, [at, at + 90]);
        }
        if schema == Schema::Full {
            facts(&mut export, of);
        }
        export.finish();
        let smaller = rusqlite::Connection::open(&path)?;
        smaller.execute_batch("PRAGMA journal_mode = DELETE; PRAGMA page_size = 512; VACUUM;")?;
    }
    Ok(())
}

/// Adds rows to an export. Afterwards, each table that was still empty has at least one row.
fn facts(export: &mut Export, of: i64) {
    let wait = export.string("cudaStreamSynchronize_v3020");
    export.call(of, wait, [1900, 1950]);
    let name = export.string("sampler");
    let process = export::thread(100, 0);
    export.sql(&format!(
        "INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, '', '');
         INSERT INTO TARGET_INFO_GPU VALUES (1, 0, 'NVIDIA H200', '');
         INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:COMMAND', '/bin/serve');
         INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENT_1', '--api-key=a');
         INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ENVIRONMENT_VARIABLE', 'TLLMPROF_STEP=\"auto\"');
         INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, '', 'Hostname', 1, 'gpu7');
         INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, '', 'DeviceEnvironment', 1, 'A=1;OMPI_COMM_WORLD_RANK=3');
         INSERT INTO PROCESSES VALUES ({process}, 100, '/bin/serve');
         INSERT INTO ThreadNames VALUES ({name}, 20, {of});
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1700, 1710, 0, 1, 7, 1, {process}, 4096, 2);
         INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (1720, 1725, 0, 1, 7, 1, {process}, 0, 64);
         INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (2700, 2800, 0, 1, 7, 1, {process}, 5, 6);"
    ));
}

fn every_kind(is_over: bool) -> Vec<u8> {
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
        What::GpuProcess {
            device: 1,
            owner: GpuOwner::Other,
            sm: Some(40),
            name,
            pid: 9,
        },
        What::ThreadNode {
            node: 1,
            pid: 7,
            tid: 7,
        },
        What::ExpertLoad {
            layer: 1,
            expert: 2,
            tokens: 3,
        },
        What::Batch {
            iteration: 5,
            batch: Batch::new(2, 9, 8).expect("a batch"),
        },
        What::KernelWindow {
            edge: Edge::Close,
            iteration: 5,
        },
        What::KernelSample {
            steps: 1,
            every_ms: 60_000,
            iteration: 5,
        },
        What::Past { iteration: 5 },
        What::Scope {
            id: 1,
            parent: 0,
            name: 1,
        },
        What::GraphNodes {
            graph: 1,
            first: 0,
            count: 2,
            scope: 1,
        },
        What::GraphExec {
            state: Some(GraphState::Known),
            exec: 3,
            graph: 1,
        },
        What::KernelNode {
            device: 0,
            stream: 1,
            exec: 3,
            node: 1,
        },
        What::InScope { scope: 1 },
        What::OutsideBefore {
            bucket: 700,
            iterations: 2,
        },
        What::Dropped { events: 3 },
        What::Iteration {
            n: 5,
            excluded: false,
        },
        What::Iteration {
            n: 6,
            excluded: false,
        },
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
    if is_over {
        builder.end(Ended::InOrder);
    }
    builder.bytes()
}
