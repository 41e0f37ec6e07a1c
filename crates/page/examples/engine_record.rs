//! Writes the record of a rank of a simulated inference engine, so that a developer can look at its report page. If
//! RANK is `metrics`, it writes a record of a GPU's metrics instead.
//!
//! - KERNELS: number of iterations with recorded kernels.
//! - EXPERTS: number of experts in each layer, or 0 for none. If there are experts, the record says that the program's
//!   routers were replaced by routers that send the same number of tokens to each expert.
//! - BATCHES: 0 if the record should not contain the batches of iterations.
//! - STACKS: rate of sampled stacks, in Hz.
//! - PAUSES: 1 if the engine sometimes waits for requests.
//! - TIMED: a number N. GPU times are recorded only in the first of every N consecutive blocks of eight iterations.
//! - SCOPES: 1 if the record should contain the layers of the model that launch the kernels.
//!
//! ```text
//! cargo run --release -p tllmprof-page --example engine_record -- OUT [RANK [ITERATIONS [LAYERS [KERNELS [EXPERTS [BATCHES [STACKS [PAUSES [TIMED [SCOPES]]]]]]]]]]
//! ```

#[path = "../tests/common/engine/mod.rs"]
mod engine;

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let out = arguments.next().ok_or("no OUT")?;
    let mut file = BufWriter::new(File::create(out)?);
    let mut arguments = arguments.peekable();
    if arguments.next_if(|rank| rank == "metrics").is_some() {
        engine::metrics(200).write_to(&mut file)?;
        return Ok(file.flush()?);
    }
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (rank, iterations, layers) = (number(0)?, number(51)?, number(32)?);
    let (kernels, experts, batches) = (number(20)?, number(0)?, number(1)?);
    let (stacks, pauses, timed) = (number(0)?, number(0)?, number(1)?);
    let scopes = number(0)?;
    let windows = vec![(100, 99 + iterations)];
    let engine = engine::Engine {
        rank,
        windows,
        layers,
        kernels,
        hostile: false,
        experts: u16::try_from(experts)?,
        replaced: experts > 0,
        batches: batches > 0,
        stacks,
        pauses: pauses > 0,
        timed,
        scopes: scopes > 0,
    };
    engine.record().0.write_to(&mut file)?;
    Ok(file.flush()?)
}
