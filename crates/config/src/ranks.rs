//! The setting for the ranks that open windows, and the search for a process's rank in environment variables.

use std::ffi::OsString;
use std::fmt;

use crate::error::Problem;
use crate::range::WindowList;

/// Environment variables that contain the rank of the process, in order of precedence. The user sets the first one, and
/// launchers set the others. If all of [`TORCHRUN_VARIABLES`] are set, `RANK` comes right after the first one.
pub const RANK_VARIABLES: [&str; 7] = [
    "TLLMPROF_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "RANK",
];

/// The variables that torchrun sets for each of its workers. Another launcher, such as `srun`, may have started
/// torchrun. The variables of that launcher then contain the rank of the torchrun process, and all workers inherit the
/// same value.
pub const TORCHRUN_VARIABLES: [&str; 3] = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];

/// Returns the variable in which a launcher passes the number of ranks. `rank` is the variable in which the same
/// launcher passes the rank.
fn size_variable(rank: &str) -> Option<&'static str> {
    Some(match rank {
        "OMPI_COMM_WORLD_RANK" | "PMIX_RANK" => "OMPI_COMM_WORLD_SIZE",
        "PMI_RANK" => "PMI_SIZE",
        "MV2_COMM_WORLD_RANK" => "MV2_COMM_WORLD_SIZE",
        "SLURM_PROCID" => "SLURM_NTASKS",
        "RANK" => "WORLD_SIZE",
        _ => return None,
    })
}

/// The source from which the rank of a process was determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RankSource {
    /// The rank comes from this environment variable, which the user or a launcher has set.
    Variable(&'static str),
    /// The rank comes from the process group `WORLD` of `torch.distributed`.
    Torch,
    /// The rank is computed from two numbers: the process's rank in the process group `WORLD` of `torch.distributed`,
    /// and the number of the engine's replica (copy) to which the process belongs. Both are needed if each replica has
    /// a separate `WORLD`. The text is the engine's name.
    TorchInReplica(&'static str),
    /// The rank comes from an engine, which has assigned it to this worker process. The text is the engine's name.
    Engine(&'static str),
    /// The rank comes from the only NCCL communicator of the process.
    Nccl,
}

impl fmt::Display for RankSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => f.write_str(name),
            Self::Torch => f.write_str("torch.distributed"),
            Self::TorchInReplica(engine) => write!(f, "torch.distributed and {engine}"),
            Self::Engine(engine) => f.write_str(engine),
            Self::Nccl => f.write_str("NCCL"),
        }
    }
}

/// The rank of a process, the number of ranks, and the source from which the rank is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ranked {
    pub rank: u64,
    /// Total number of ranks in the job. `None` if it is unknown.
    pub world_size: Option<u64>,
    pub source: RankSource,
}

impl Ranked {
    /// Returns the rank from the first of [`RANK_VARIABLES`] that contains a number. For a worker of torchrun, `RANK`
    /// takes precedence over the variables of other launchers.
    pub fn by_variables(get: &dyn Fn(&str) -> Option<OsString>) -> Option<Self> {
        let number = |name| crate::number::parse(get(name)?.to_str()?, "").ok();
        let by = |name: &'static str| {
            Some(Self {
                rank: number(name)?,
                world_size: size_variable(name).and_then(number),
                source: RankSource::Variable(name),
            })
        };
        let [first, launchers @ ..] = RANK_VARIABLES;
        let is_torchrun = TORCHRUN_VARIABLES.iter().all(|name| number(name).is_some());
        let torchrun = || is_torchrun.then(|| by("RANK")).flatten();
        by(first)
            .or_else(torchrun)
            .or_else(|| launchers.into_iter().find_map(by))
    }
}

/// The ranks that open windows, as a list of numbers and ranges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranks(WindowList);

impl Ranks {
    /// Parses a list of ranks and ranges of ranks, such as `0,2-3`, or `all`.
    ///
    /// # Errors
    /// Returns an error if the text has another form.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        WindowList::parse_as(text, "a comma list of ranks such as 0,2-3, or all").map(Self)
    }

    pub fn contains(&self, rank: u64) -> bool {
        self.0.contains(rank)
    }
}

impl fmt::Display for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        let ranks = Ranks::parse("0, 2-3").unwrap();
        let inside: Vec<u64> = (0..6).filter(|r| ranks.contains(*r)).collect();
        assert_eq!(inside, [0, 2, 3]);
        assert!(Ranks::parse("all").unwrap().contains(u64::MAX));
        for bad in ["", "3-1", "a", "1,,2"] {
            assert!(Ranks::parse(bad).is_err(), "{bad:?}");
        }
    }

    fn by(set: &[(&str, &str)]) -> Option<Ranked> {
        let get = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
        Ranked::by_variables(&get)
    }

    #[test]
    fn a_launcher_says_how_many_ranks_there_are() {
        let torchrun = by(&[("RANK", "3"), ("WORLD_SIZE", "8")]).unwrap();
        assert_eq!((torchrun.rank, torchrun.world_size), (3, Some(8)));
        assert_eq!(torchrun.source.to_string(), "RANK");
        // The number of ranks is used only if the same launcher has set both the rank and the number of ranks.
        let own = by(&[("RANK", "3"), ("WORLD_SIZE", "8"), ("TLLMPROF_RANK", "1")]).unwrap();
        assert_eq!((own.rank, own.world_size), (1, None));
        let unknown = by(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "many")]).unwrap();
        assert_eq!((unknown.rank, unknown.world_size), (1, None));
    }

    #[test]
    fn a_source_has_a_name() {
        for (source, name) in [
            (RankSource::Variable("PMI_RANK"), "PMI_RANK"),
            (RankSource::Torch, "torch.distributed"),
            (
                RankSource::TorchInReplica("vLLM"),
                "torch.distributed and vLLM",
            ),
            (RankSource::Engine("vLLM"), "vLLM"),
            (RankSource::Nccl, "NCCL"),
        ] {
            assert_eq!(source.to_string(), name);
        }
    }

    #[test]
    fn the_first_variable_that_is_set_wins() {
        let get = |set| Some(by(set)?.rank);
        assert_eq!(get(&[]), None);
        assert_eq!(get(&[("RANK", "3")]), Some(3));
        assert_eq!(get(&[("RANK", "3"), ("SLURM_PROCID", "2")]), Some(2));
        assert_eq!(
            get(&[("SLURM_PROCID", "2"), ("TLLMPROF_RANK", "1")]),
            Some(1)
        );
        assert_eq!(get(&[("PMI_RANK", ""), ("RANK", "4")]), Some(4));
        assert_eq!(get(&[("PMI_RANK", "none"), ("RANK", "4")]), Some(4));
        assert_eq!(get(&[("RANK", "-1")]), None);
    }

    #[test]
    fn a_worker_of_torchrun_has_the_rank_of_torchrun() {
        let node = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("RANK", "11"),
            ("WORLD_SIZE", "16"),
        ];
        // Without `LOCAL_RANK`, it is not torchrun that has set `RANK`.
        assert_eq!(by(&node).map(|ranked| ranked.rank), Some(1));
        let worker = [&node[..], &[("LOCAL_RANK", "3")]].concat();
        let ranked = by(&worker).unwrap();
        assert_eq!((ranked.rank, ranked.world_size), (11, Some(16)));
        assert_eq!(ranked.source.to_string(), "RANK");
        let own = [&worker[..], &[("TLLMPROF_RANK", "5")]].concat();
        assert_eq!(by(&own).map(|ranked| ranked.rank), Some(5));
    }
}
