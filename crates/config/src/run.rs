//! The identifier of a run, that is, of one start of a program with all its processes. All processes of a run have the
//! same identifier.

use std::ffi::OsString;
use std::fmt;

use crate::error::{Problem, quoted};

/// Launchers whose jobs identify a run, as pairs: the prefix of the identifier, and the environment variables whose
/// values follow the prefix. All variables of a launcher must be set.
pub const JOB_VARIABLES: [(&str, &[&str]); 4] = [
    ("slurm", &["SLURM_JOB_ID", "SLURM_STEP_ID"]),
    ("pmix", &["PMIX_NAMESPACE"]),
    ("pmi", &["PMI_JOBID"]),
    ("torch", &["TORCHELASTIC_RUN_ID"]),
];

/// Maximum length of an identifier in bytes. It is limited because an identifier becomes part of a folder's name.
const LONGEST: usize = 128;
const WANTED: &str = "up to 128 letters, digits, ., _ and -, the first a letter or digit";
/// The first of the step numbers that Slurm reserves. A reserved number stands for the job's script or an interactive
/// shell, not for a program that the job launches.
const SLURM_RESERVED: u32 = 0xffff_fff0;

/// The identifier of a run. It contains only characters that may be part of a file name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RunId(String);

impl RunId {
    /// Parses the identifier of a run.
    ///
    /// # Errors
    /// Returns an error if the text contains characters other than letters, digits, `.`, `_` and `-`, does not begin
    /// with a letter or digit, or is too long.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        if let Some(bad) = text.chars().find(|c| !is_plain(*c)) {
            let bad = quoted(bad.encode_utf8(&mut [0; 4]));
            return Err(Problem::new(format!("{bad} cannot be in it"), WANTED));
        }
        if !text.starts_with(|first: char| first.is_ascii_alphanumeric()) {
            return Err(Problem::new(
                "it does not begin with a letter or digit",
                WANTED,
            ));
        }
        if text.len() > LONGEST {
            return Err(Problem::new("it is too long", WANTED));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns a run's identifier that is made from the identifier of the launcher's job. `None` if no launcher has set
    /// all of its variables, or if their values identify no job.
    pub fn from_job(get: &dyn Fn(&str) -> Option<OsString>) -> Option<Self> {
        JOB_VARIABLES.iter().find_map(|(launcher, variables)| {
            let mut id = (*launcher).to_owned();
            for variable in *variables {
                let value = get(variable)?.into_string().ok()?;
                let is_none = match *variable {
                    // torchrun sets the variable to `none` if the user did not name the job.
                    "TORCHELASTIC_RUN_ID" => value == "none",
                    "SLURM_STEP_ID" => value.parse().is_ok_and(|n: u32| n >= SLURM_RESERVED),
                    _ => false,
                };
                if value.is_empty() || is_none {
                    return None;
                }
                let plain = |c| if is_plain(c) { c } else { '-' };
                id.push('-');
                id.extend(value.chars().map(plain));
            }
            id.truncate(LONGEST);
            Some(Self(id))
        })
    }

    /// Returns the identifier of a later run of the same job: this identifier with `.number` appended. The first run
    /// of a job has an identifier without a number.
    #[must_use]
    pub fn again(&self, number: u64) -> Self {
        let number = format!(".{number}");
        let mut id = self.0.clone();
        id.truncate(LONGEST - number.len());
        Self(id + &number)
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_can_be_part_of_a_files_name() {
        for good in ["a", "20260101-120000.5_x", "7"] {
            assert_eq!(RunId::parse(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "a/b",
            "../x",
            ".",
            "-a",
            "a b",
            "é",
            "%p",
            &"x".repeat(129),
        ] {
            assert!(RunId::parse(bad).is_err(), "{bad}");
        }
        let why = RunId::parse("a/b").unwrap_err().to_string();
        assert_eq!(
            why,
            "\"/\" cannot be in it (wanted: up to 128 letters, digits, ., _ and -, the first a letter or digit)"
        );
    }

    #[test]
    fn a_launchers_job_is_one() {
        let of = |set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into());
            RunId::from_job(&value).map(|id| id.to_string())
        };
        let some = |id: &str| Some(id.to_owned());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("SLURM_JOB_ID", "7")]), None);
        assert_eq!(
            of(&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0")]),
            some("slurm-7-0")
        );
        assert_eq!(
            of(&[("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "4294967291")]),
            None
        );
        assert_eq!(
            of(&[("PMIX_NAMESPACE", "prterun-a-12@1")]),
            some("pmix-prterun-a-12-1")
        );
        assert_eq!(of(&[("TORCHELASTIC_RUN_ID", "none")]), None);
        assert_eq!(of(&[("TORCHELASTIC_RUN_ID", "a/é")]), some("torch-a--"));
        let long = "x".repeat(300);
        let long = of(&[("PMI_JOBID", &long)]).unwrap();
        assert!(RunId::parse(&long).is_ok() && long.len() == LONGEST);
        let again = RunId::parse(&long).unwrap().again(12);
        assert!(RunId::parse(again.as_str()).is_ok() && again.as_str().ends_with("x.12"));
        assert_eq!(
            RunId::parse("slurm-7-0").unwrap().again(2).as_str(),
            "slurm-7-0.2"
        );
    }
}
