//! How many kernels an nsys report holds.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Names of the summary of GPU kernels, the newest first.
const REPORTS: [&str; 2] = ["cuda_gpu_kern_sum", "gpukernsum"];

pub fn count(nsys: &Path, report: &Path) -> Result<u64> {
    let mut said = String::new();
    for name in REPORTS {
        let output = Command::new(nsys)
            .args([
                "stats",
                "--force-export=true",
                "--format",
                "csv",
                "--report",
                name,
            ])
            .arg(report)
            .output()
            .context("nsys stats did not start")?;
        let text = String::from_utf8_lossy(&output.stdout);
        if let Some(count) = instances(&text) {
            return Ok(count);
        }
        said.push_str(text.trim());
        said.push_str(String::from_utf8_lossy(&output.stderr).trim());
    }
    bail!("nsys stats counted no kernels: {said}")
}

/// The sum of the column of that name, if the table is there.
fn instances(csv: &str) -> Option<u64> {
    let mut lines = csv.lines().skip_while(|line| !line.contains("Instances"));
    let column = lines
        .next()?
        .split(',')
        .position(|title| title.trim() == "Instances")?;
    // Names have commas in them, and come after the numbers.
    Some(
        lines
            .filter_map(|line| line.split(',').nth(column)?.trim().parse::<u64>().ok())
            .sum(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instances_are_summed() {
        let csv = "Processing [x.sqlite] with [cuda_gpu_kern_sum.py]...\n\
                   Time (%),Total Time (ns),Instances,Avg (ns),Name\n\
                   90.0,4000,16,250.0,\"decode(float*, int)\"\n\
                   10.0,400,4,100.0,other\n";
        assert_eq!(instances(csv), Some(20));
        assert_eq!(
            instances("SKIPPED: x.sqlite does not contain CUDA kernel data.\n"),
            None
        );
    }
}
