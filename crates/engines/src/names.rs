//! Names that engines give to their processes that drive the GPU.
//!
//! This file contains only data. `docs/engines.md` shows the table in this file to users, and a test compares that page
//! with this file.

/// A name that an engine gives to one of its processes.
#[derive(Clone, Copy, Debug)]
pub struct ProcessName {
    pub engine: &'static str,
    /// A text in the process's title. Engines replace the process's first argument with the title.
    pub part: &'static str,
    pub note: &'static str,
    /// Versions and files in which the name was found.
    pub source: &'static str,
}

/// The known names of processes. If several rows match processes of an engine, only the processes that match the first
/// of these rows drive the GPU.
pub const PROCESS_NAMES: &[ProcessName] = &[
    ProcessName {
        engine: "vLLM",
        part: "::Worker",
        note: "one for each GPU, with tensor or pipeline parallelism",
        source: "vllm 0.18.0, 0.26.0, 0.33.0: vllm/v1/executor/multiproc_executor.py",
    },
    ProcessName {
        engine: "vLLM",
        part: "::EngineCore",
        note: "drives the GPU itself where there is one GPU for each replica",
        source: "vllm 0.18.0, 0.26.0, 0.33.0: vllm/v1/engine/core.py",
    },
    ProcessName {
        engine: "SGLang",
        part: "sglang::scheduler",
        note: "one for each GPU",
        source: "sglang 0.4.6, 0.5.3, 0.5.16, 0.5.23: sglang/srt/managers/scheduler.py",
    },
];

/// Returns the indices of those processes of an engine that drive the GPU. `titles` are the titles of all of the
/// engine's processes. The result is empty if no title contains a known name.
pub fn drivers(titles: &[&str]) -> Vec<usize> {
    let of_row = |row: &ProcessName| -> Vec<usize> {
        let all = titles.iter().enumerate();
        all.filter(|(_, title)| title.contains(row.part))
            .map(|(number, _)| number)
            .collect()
    };
    let mut rows = PROCESS_NAMES.iter().map(of_row);
    rows.find(|found| !found.is_empty()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_drive_the_gpu_where_there_are_any() {
        let titles = [
            "vllm",
            "VLLM::EngineCore",
            "VLLM::Worker_TP0",
            "VLLM::Worker_TP1",
        ];
        assert_eq!(drivers(&titles), [2, 3]);
        assert_eq!(drivers(&titles[..2]), [1]);
        assert_eq!(drivers(&["python3", "sglang::scheduler_TP0"]), [1]);
        assert!(drivers(&["python3", "sglang::detokenizer"]).is_empty());
    }

    #[test]
    fn the_documentation_shows_the_table() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/engines.md");
        let docs = std::fs::read_to_string(docs).unwrap();
        for row in PROCESS_NAMES {
            let ProcessName {
                engine,
                part,
                note,
                source,
            } = row;
            let line = format!("| {engine} | `{part}` | {note} | {source} |");
            assert!(docs.contains(&line), "docs/engines.md lacks:\n{line}");
        }
    }
}
