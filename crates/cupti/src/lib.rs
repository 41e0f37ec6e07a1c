//! Lists the folders in which CUPTI, NVIDIA's library for profilers, may be installed.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Major number of the oldest CUDA release whose CUPTI is used. CUPTI of CUDA 11.8 hung when it was tried.
pub const OLDEST: u32 = 12;
/// Major number of the newest CUDA release whose CUPTI is searched for.
pub const NEWEST: u32 = 15;

/// Returns the file names of CUPTI's library for the releases up to `newest`, the newest first.
pub fn names(newest: u32) -> impl Iterator<Item = String> + Clone {
    (OLDEST..=newest.min(NEWEST))
        .rev()
        .map(|major| format!("libcupti.so.{major}"))
}

/// Returns the folders in which to search for CUPTI, in the order of the search. The folders of `library_path` (the
/// value of `LD_LIBRARY_PATH`) are first. The folders of the CUDA runtime (`runtimes`) follow, each with the folders
/// that installers place relative to it. The folders of the CUDA installations under `root` are last.
#[must_use]
pub fn folders(library_path: Option<&OsStr>, runtimes: &[PathBuf], root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = library_path
        .map(|path| std::env::split_paths(path).collect())
        .unwrap_or_default();
    folders.retain(|folder| !folder.as_os_str().is_empty());
    for runtime in runtimes {
        folders.push(runtime.clone());
        // pip installs the runtime in nvidia/cuda_runtime/lib and CUPTI in nvidia/cuda_cupti/lib,
        // so CUPTI is found by a path relative to the runtime.
        folders.push(runtime.join("../../cuda_cupti/lib"));
        folders.push(runtime.join("../extras/CUPTI/lib64"));
        folders.push(runtime.join("../../../extras/CUPTI/lib64"));
    }
    let arch = std::env::consts::ARCH;
    let target = match arch {
        "aarch64" => "targets/sbsa-linux/lib".to_owned(),
        _ => format!("targets/{arch}-linux/lib"),
    };
    for cuda in installed(root) {
        folders.push(cuda.join("extras/CUPTI/lib64"));
        folders.push(cuda.join("lib64"));
        folders.push(cuda.join(&target));
    }
    folders
}

/// Returns the path of the newest CUPTI in `folders` whose major number is at most `newest`. If several folders
/// contain this release, the first folder is used.
#[must_use]
pub fn find(folders: &[PathBuf], newest: u32) -> Option<PathBuf> {
    names(newest)
        .flat_map(|name| folders.iter().map(move |folder| folder.join(&name)))
        .find(|path| path.is_file())
}

/// Returns the CUDA installations under `root`: first the link `cuda`, with which the administrator selects an
/// installation, then the other installations, the newest first.
fn installed(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let name = entry.ok()?.file_name().into_string().ok()?;
            let version = name.strip_prefix("cuda")?;
            let version = match version.strip_prefix('-') {
                None if version.is_empty() => vec![u32::MAX],
                None => return None,
                Some(version) => version
                    .split('.')
                    .map_while(|part| part.parse().ok())
                    .collect(),
            };
            Some((version, root.join(name)))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_that_is_not_too_new_is_found() {
        let root = std::env::temp_dir().join(format!("tllmprof-cupti-{}", std::process::id()));
        let put = |path: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        put("cuda-12.9/extras/CUPTI/lib64/libcupti.so.12");
        put("cuda-13.0/extras/CUPTI/lib64/libcupti.so.13");
        put("cuda-13.2/extras/CUPTI/lib64/libcupti.so.13");
        put("cuda-11.8/extras/CUPTI/lib64/libcupti.so.11.8");
        put("pip/nvidia/cuda_runtime/lib/libcudart.so.12");
        put("pip/nvidia/cuda_cupti/lib/libcupti.so.12");
        let runtime = root.join("pip/nvidia/cuda_runtime/lib");
        let found = |library_path: Option<&str>, runtimes: &[PathBuf], newest| {
            let folders = folders(library_path.map(OsStr::new), runtimes, &root);
            let found = find(&folders, newest)?;
            Some(found.strip_prefix(&root).unwrap().display().to_string())
        };
        assert_eq!(
            found(None, &[], 13).as_deref(),
            Some("cuda-13.2/extras/CUPTI/lib64/libcupti.so.13")
        );
        assert_eq!(
            found(None, std::slice::from_ref(&runtime), 12).as_deref(),
            Some("pip/nvidia/cuda_runtime/lib/../../cuda_cupti/lib/libcupti.so.12")
        );
        let own = root.join("cuda-12.9/extras/CUPTI/lib64");
        assert_eq!(
            found(own.to_str(), &[runtime], 12).as_deref(),
            Some("cuda-12.9/extras/CUPTI/lib64/libcupti.so.12")
        );
        assert_eq!(found(None, &[], 11), None);
        std::fs::remove_dir_all(root).unwrap();
    }
}
