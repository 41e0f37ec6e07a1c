//! Writes the records of a simulated job into a folder. They serve to measure the speed of reports
//! on many ranks:
//!
//! `cargo run --release -p tllmprof-report --example synthetic_job -- FOLDER [HOSTS [STEPS [COLLECTIVES]]]`
//!
//! HOSTS: number of hosts, with 8 ranks each (64). STEPS: number of steps (200). COLLECTIVES: number of collectives in
//! each step (64).

use std::path::PathBuf;
use std::{env, fs};

#[path = "../tests/common/job.rs"]
mod job;

use job::{Cause, Job, MS, Plant};

fn main() -> std::io::Result<()> {
    let mut arguments = env::args_os().skip(1);
    let folder = PathBuf::from(arguments.next().expect("FOLDER"));
    let mut number = |usual| {
        let given = arguments
            .next()
            .and_then(|text| text.to_str()?.parse().ok());
        given.unwrap_or(usual)
    };
    let plant = |rank, from, cause| Plant {
        rank,
        steps: (from, from + 19),
        cause,
        by: 3 * MS,
    };
    let job = Job {
        hosts: number(64),
        steps: number(200),
        collectives: number(64),
        plants: vec![
            plant(3, 0, Cause::Gc),
            plant(5, 40, Cause::Tokens),
            plant(6, 80, Cause::Asleep),
        ],
        ..Job::default()
    };
    fs::create_dir_all(&folder)?;
    let truth = job.truth();
    for rank in 0..job.ranks() {
        let record = job.record(rank, &truth);
        fs::write(folder.join(format!("rank-{rank}.tllmprof")), record)?;
    }
    Ok(())
}
