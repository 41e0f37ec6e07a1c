//! The profilers that `run` starts, nsys and ncu: how they are found, and how they are configured to capture windows
//! (ranges of iterations).

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::failure::usage;
use crate::which::{CommandLookup, which};

/// A profiler: the name of its command, and the folders in which it is searched for if it is not on `PATH`.
pub(crate) struct Profiler {
    pub name: &'static str,
    /// The environment variable that users set to the path of the profiler's program.
    pub variable: &'static str,
    /// Prefix of the profiler's folders in `/opt/nvidia`. The rest of the name is a version.
    folder: &'static str,
    /// Paths of the profiler's program, relative to the folder of a version in `/opt/nvidia`.
    inside: &'static [&'static str],
    /// If another profiler's installation includes this profiler: the prefix of that installation's folders in
    /// `/opt/nvidia`, and the paths of this profiler's program in such a folder.
    along: Option<(&'static str, &'static [&'static str])>,
}

pub(crate) const NSYS: Profiler = Profiler {
    name: "nsys",
    variable: "TLLMPROF_NSYS",
    folder: "nsight-systems",
    inside: &[
        "bin/nsys",
        "target-linux-x64/nsys",
        "target-linux-sbsa-armv8/nsys",
    ],
    along: Some((
        "nsight-compute",
        &[
            "host/target-linux-x64/nsys",
            "host/target-linux-sbsa-armv8/nsys",
        ],
    )),
};

pub(crate) const NCU: Profiler = Profiler {
    name: "ncu",
    variable: "TLLMPROF_NCU",
    folder: "nsight-compute",
    inside: &["ncu"],
    along: None,
};

impl Profiler {
    /// Returns the path of the profiler, or `None` if it was not found.
    ///
    /// # Errors
    /// The profiler's variable names a file that is not a program.
    pub(crate) fn find(&self) -> Result<Option<PathBuf>> {
        if let Some(given) = env::var_os(self.variable).filter(|path| !path.is_empty()) {
            return match which(&given) {
                CommandLookup::Program(path) => Ok(Some(path)),
                _ => Err(usage(format_args!(
                    "{}=\"{}\": there is no such program (wanted: the path of {})",
                    self.variable,
                    given.display(),
                    self.name
                ))),
            };
        }
        if let CommandLookup::Program(path) = which(self.name.as_ref()) {
            return Ok(Some(path));
        }
        Ok(self.search(Path::new("/opt/nvidia"), Path::new("/usr/local")))
    }

    /// Returns the path of the profiler.
    ///
    /// # Errors
    /// The profiler was not found.
    pub(crate) fn required(&self) -> Result<PathBuf> {
        self.find()?.ok_or_else(|| {
            usage(format_args!(
                "{} was not found: not on PATH, not in /opt/nvidia/{}*, not in \
                 /usr/local/cuda*/bin (put it on PATH, or set {})",
                self.name, self.folder, self.variable
            ))
        })
    }

    /// Returns the path of the profiler's program in the folders that NVIDIA's installers use. `None` if there is none.
    /// If a folder contains several versions, the highest is returned.
    fn search(&self, opt: &Path, local: &Path) -> Option<PathBuf> {
        let files = |name: &str, inside: &'static [&'static str]| {
            newest_first(opt, name).into_iter().flat_map(|folder| {
                // `folder` is either the folder of one version, or contains a folder for each version. Both cases are
                // tried.
                let versions = newest_first(&folder, "");
                let roots = [folder].into_iter().chain(versions);
                roots.flat_map(|root| inside.iter().map(move |file| root.join(file)))
            })
        };
        let installed = files(self.folder, self.inside);
        let along = self.along.map(|(folder, inside)| files(folder, inside));
        let toolkits = newest_first(local, "cuda")
            .into_iter()
            .map(|f| f.join("bin").join(self.name));
        installed
            .chain(toolkits)
            .chain(along.into_iter().flatten())
            .find(|file| matches!(which(file.as_os_str()), CommandLookup::Program(_)))
    }
}

/// Returns the folders in `parent` whose names begin with `prefix`, highest version first.
fn newest_first(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut folders: Vec<(Vec<u64>, PathBuf)> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| {
            let name = entry.file_name();
            let rest = name.to_str()?.strip_prefix(prefix)?;
            let version = rest
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|n| n.parse().ok());
            Some((version.collect(), entry.path()))
        })
        .collect();
    folders.sort_by(|a, b| b.cmp(a));
    folders.into_iter().map(|(_, folder)| folder).collect()
}

/// An option that `tllmprof run` passes to a profiler. If the user gives the same option, only the user's option is
/// passed, because both profilers refuse most options that are given twice.
struct OwnOption {
    short: Option<&'static str>,
    long: &'static str,
    value: String,
}

impl OwnOption {
    fn new(short: Option<&'static str>, long: &'static str, value: impl Into<String>) -> Self {
        Self {
            short,
            long,
            value: value.into(),
        }
    }

    /// Returns whether `argument` is this option, in any of its spellings: `-c x`, `-cx`, `--capture-range x` or
    /// `--capture-range=x`.
    fn is(&self, argument: &str) -> bool {
        let long = argument.split('=').next() == Some(self.long);
        let short = self
            .short
            .is_some_and(|short| argument.starts_with(short) && !argument.starts_with("--"));
        long || short
    }
}

fn merge(own: Vec<OwnOption>, theirs: &[String]) -> Vec<OsString> {
    let kept = own
        .into_iter()
        .filter(|own| !theirs.iter().any(|argument| own.is(argument)));
    kept.map(|own| format!("{}={}", own.long, own.value))
        .chain(theirs.iter().cloned())
        .map(OsString::from)
        .collect()
}

/// Returns the arguments of `nsys` that come before the name of the program to profile. `windows` is the number of
/// windows to capture; with 0, nsys captures the whole run. `split` is true if one window may be captured as several
/// ranges. `theirs` are the user's own options for `nsys`.
pub(crate) fn nsys_arguments(windows: usize, split: bool, theirs: &[String]) -> Vec<OsString> {
    let mut own = vec![
        OwnOption::new(Some("-t"), "--trace", "cuda,nvtx,osrt"),
        // Engines fork their workers. nsys traces forked processes only with this option.
        OwnOption::new(None, "--trace-fork-before-exec", "true"),
    ];
    if windows > 0 {
        // By default nsys ends the program when the capture range ends for the first time. These values of
        // `--capture-range-end` prevent that.
        let end = if split {
            "repeat".to_owned()
        } else if windows == 1 {
            "stop".to_owned()
        } else {
            format!("repeat:{windows}")
        };
        own.push(OwnOption::new(
            Some("-c"),
            "--capture-range",
            "cudaProfilerApi",
        ));
        own.push(OwnOption::new(None, "--capture-range-end", end));
    }
    let mut arguments = vec![OsString::from("profile")];
    arguments.extend(merge(own, theirs));
    arguments
}

/// Returns the arguments of `ncu` that come before the name of the program to profile. `windows` is the number of
/// windows to capture; with 0, ncu profiles from the start. `theirs` are the user's own options for `ncu`.
pub(crate) fn ncu_arguments(windows: usize, theirs: &[String]) -> Vec<OsString> {
    let mut own = vec![OwnOption::new(None, "--target-processes", "all")];
    if windows > 0 {
        own.push(OwnOption::new(None, "--profile-from-start", "off"));
    }
    merge(own, theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nsys(windows: usize, theirs: &[&str]) -> Vec<String> {
        let theirs: Vec<_> = theirs.iter().map(|t| (*t).to_owned()).collect();
        let arguments = nsys_arguments(windows, false, &theirs);
        arguments
            .into_iter()
            .map(|a| a.into_string().unwrap())
            .collect()
    }

    #[test]
    fn one_window_many_and_none() {
        let (one, many, none) = (nsys(1, &[]), nsys(3, &[]), nsys(0, &[]));
        assert_eq!(one[0], "profile");
        assert!(one.contains(&"--capture-range=cudaProfilerApi".to_owned()));
        assert!(one.contains(&"--capture-range-end=stop".to_owned()));
        assert!(many.contains(&"--capture-range-end=repeat:3".to_owned()));
        assert!(!none.iter().any(|a| a.starts_with("--capture-range")));
        let split = nsys_arguments(1, true, &[]);
        assert!(split.contains(&"--capture-range-end=repeat".into()));
    }

    #[test]
    fn theirs_replace_ours() {
        for theirs in [
            &["-t", "cuda"][..],
            &["--trace=cuda"],
            &["--trace", "cuda"],
            &["-tcuda"],
        ] {
            let arguments = nsys(1, theirs);
            assert!(
                !arguments.contains(&"--trace=cuda,nvtx,osrt".to_owned()),
                "{arguments:?}"
            );
            assert!(
                arguments.ends_with(&theirs.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>())
            );
            assert!(arguments.contains(&"--trace-fork-before-exec=true".to_owned()));
        }
        let arguments = nsys(1, &["--capture-range-end=repeat"]);
        assert!(arguments.contains(&"--capture-range=cudaProfilerApi".to_owned()));
        assert!(!arguments.contains(&"--capture-range-end=stop".to_owned()));
    }

    #[test]
    fn ncu_profiles_windows_only() {
        let all = |windows| {
            let arguments = ncu_arguments(windows, &["--set".to_owned(), "full".to_owned()]);
            arguments
                .into_iter()
                .map(|a| a.into_string().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            all(1),
            [
                "--target-processes=all",
                "--profile-from-start=off",
                "--set",
                "full"
            ]
        );
        assert_eq!(all(0), ["--target-processes=all", "--set", "full"]);
    }

    #[test]
    fn the_newest_installation_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let (opt, local) = (root.path().join("opt"), root.path().join("local"));
        let program = |file: PathBuf| {
            use std::os::unix::fs::PermissionsExt;
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let toolkit = program(local.join("cuda-12.4/bin/nsys"));
        let found = NSYS.search(&opt, &local);
        fs::remove_file(&toolkit).unwrap();
        let brought = program(opt.join("nsight-compute/2025.3.1/host/target-linux-x64/nsys"));
        let found_brought = NSYS.search(&opt, &local);
        let older = program(opt.join("nsight-systems/2023.4.1/target-linux-x64/nsys"));
        let found_older = NSYS.search(&opt, &local);
        let newer = program(opt.join("nsight-systems/2024.10.2/bin/nsys"));
        let found_newer = NSYS.search(&opt, &local);
        let nothing = NCU.search(&opt, &local);
        assert_eq!(found, Some(toolkit));
        assert_eq!(found_brought, Some(brought));
        assert_eq!(found_older, Some(older));
        assert_eq!(found_newer, Some(newer));
        assert_eq!(nothing, None);
    }
}
