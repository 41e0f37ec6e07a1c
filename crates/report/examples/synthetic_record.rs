//! Writes the record of a simulated server, to measure how fast records are read:
//!
//! ```text
//! cargo run --release -p tllmprof-report --example synthetic_record -- OUT [EVENTS [KERNELS [RANK]]]
//! ```
//!
//! EVENTS: approximate number of events (10 million). KERNELS: number of kernels that each iteration launches (300).
//! RANK: rank of the server's process (0).

#[path = "../tests/common/server.rs"]
mod server;

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};

/// Approximate number of events of an iteration, not counting its kernels.
const OTHERS: u64 = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let out = arguments.next().ok_or("no OUT")?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (events, kernels, rank) = (number(10_000_000)?, number(300)?, number(0)?);
    // Each kernel has a launch event in all iterations and, because kernels are recorded in the
    // second half of the iterations, a kernel event in half of them: 3/2 events on average.
    let iterations = events / (kernels * 3 / 2 + OTHERS);
    let last = iterations.saturating_sub(1);
    let server = server::Server {
        rank,
        window: 0..=last,
        kernels,
        taken: iterations / 2..=last,
        excluded: |_| false,
    };
    let mut file = BufWriter::new(File::create(out)?);
    server.record().0.write_to(&mut file)?;
    Ok(file.flush()?)
}
