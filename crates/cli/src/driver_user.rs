//! Finds out if a process has loaded the CUDA driver.

use std::fs;

/// Returns true if a process has loaded the CUDA driver. Returns false for a process that this user may not trace.
pub(crate) fn has_driver(pid: u64) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.split(|byte| *byte == b'\n').any(is_driver)
}

/// Returns true if a line of `/proc/PID/maps` is a mapping of the CUDA driver's code. A process that only reads the
/// driver's file, as a symbolizer does, maps the file without the right to execute it.
pub(crate) fn is_driver(line: &[u8]) -> bool {
    let name = line.rsplit(|byte| *byte == b'/').next().unwrap_or(line);
    let rights = line.split(|byte| *byte == b' ').nth(1);
    name.starts_with(b"libcuda.so") && rights.is_some_and(|it| it.contains(&b'x'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_the_driver_is_known_by_its_maps() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 00:1f 77 {path}");
        assert!(is_driver(line("/usr/lib/libcuda.so.580.1").as_bytes()));
        assert!(!is_driver(line("/usr/lib/libcudart.so.12").as_bytes()));
        assert!(!is_driver(line("/opt/libtllmprof.so").as_bytes()));
    }
}
