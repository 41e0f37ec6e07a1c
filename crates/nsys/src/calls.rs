//! The table of calls of an export: a row for each name that nsys has.

use std::collections::HashMap;

use tllmprof_calls::kind_of;
use tllmprof_record::CallKind;

/// The row of names that there is no room for.
const OTHER: u8 = u8::MAX;

/// Rows by name.
#[derive(Debug, Default)]
pub struct Rows {
    by_name: HashMap<String, u8>,
}

impl Rows {
    /// The row of a call, and its name there.
    pub fn of(&mut self, name: &str) -> (u8, String) {
        let name = plain(name);
        if let Some(row) = self.by_name.get(name) {
            return (*row, name.to_owned());
        }
        match u8::try_from(self.by_name.len()) {
            Ok(row) if row < OTHER => {
                self.by_name.insert(name.to_owned(), row);
                (row, name.to_owned())
            }
            _ => (OTHER, "other calls".to_owned()),
        }
    }
}

/// A name without the version of its interface: `cudaLaunchKernel` for `cudaLaunchKernel_v7000`.
fn plain(name: &str) -> &str {
    let Some((stem, version)) = name.rsplit_once("_v") else {
        return name;
    };
    // The driver's own suffixes have one digit.
    let is_version = version.len() >= 4 && version.bytes().all(|byte| byte.is_ascii_digit());
    if is_version { stem } else { name }
}

/// What a call does.
pub fn kind(name: &str) -> CallKind {
    kind_of(name).map_or(CallKind::Other, CallKind::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinguished_without_their_versions() {
        let mut rows = Rows::default();
        assert_eq!(
            rows.of("cudaLaunchKernel_v7000"),
            (0, "cudaLaunchKernel".to_owned())
        );
        assert_eq!(rows.of("cuMemcpyDtoHAsync_v2").0, 1);
        assert_eq!(rows.of("cudaLaunchKernel").0, 0);
        for n in 0..1000 {
            rows.of(&format!("call{n}"));
        }
        assert_eq!(rows.of("late"), (OTHER, "other calls".to_owned()));
        assert_eq!(kind("cudaLaunchKernel"), CallKind::KernelLaunch);
        assert_eq!(kind("cudaGraphLaunch"), CallKind::GraphLaunch);
        assert_eq!(kind("cudaStreamSynchronize"), CallKind::Wait);
        assert_eq!(kind("cuMemcpy2DAsync_v2"), CallKind::AsyncCopy);
        assert_eq!(kind("cudaThreadSynchronize"), CallKind::Wait);
        assert_eq!(kind("cudaMemcpyPeerAsync"), CallKind::AsyncCopy);
        assert_eq!(kind("cudaMalloc"), CallKind::Other);
        assert_eq!(kind("cudaGetDevice"), CallKind::Other);
    }
}
