//! Reads device faults from the kernel log, where NVIDIA's kernel driver reports them as Xid errors.

use std::ffi::CStr;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// The device from which the kernel log is read, one message per read.
const KERNEL_LOG: &CStr = c"/dev/kmsg";
/// Maximum size of a message of [`KERNEL_LOG`], in bytes.
const MAX_MESSAGE: usize = 8192;
/// Maximum number of messages that are read. Without a maximum, the reading might not end, because the kernel may add
/// messages while this program reads them.
const MAX_MESSAGES: usize = 1 << 20;
/// Text with which the message of each Xid error begins. In a line of the kernel log, other text, such as the time, may
/// come before the message.
const MARK: &str = "NVRM: Xid (";

/// Returns the meaning of an Xid error, in the words of NVIDIA's list of Xid errors. Returns `None` for codes that this
/// function does not list.
const fn meaning(code: u32) -> Option<&'static str> {
    Some(match code {
        8 => "GPU stopped processing",
        13 => "graphics engine exception",
        31 => "GPU memory page fault",
        43 => "GPU stopped processing",
        45 => "preemptive cleanup, due to previous errors",
        48 => "double bit ECC error",
        61 | 62 => "internal micro-controller error",
        63 => "row remapping event",
        64 => "row remapping failure",
        68 => "video processor exception",
        69 => "graphics engine class error",
        74 => "NVLink error",
        79 => "GPU has fallen off the bus",
        92 => "high single-bit ECC error rate",
        94 => "contained ECC error",
        95 => "uncontained ECC error",
        109 => "context switch timeout",
        119 => "GSP RPC timeout",
        120 => "GSP error",
        121 => "C2C link error",
        140 => "unrecovered ECC error",
        _ => return None,
    })
}

/// A device fault (Xid error) that the kernel log contains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DeviceFault {
    /// The number of the Xid error.
    pub code: u32,
    /// The PCI address of the GPU, as the kernel log shows it.
    pub device: String,
    /// The id of the process that used the GPU, in the PID namespace of the host. `None` if the message names no
    /// process.
    pub pid: Option<u32>,
    /// The time of the fault in nanoseconds since the boot. `None` if the log has no such times.
    pub time_ns: Option<u64>,
}

impl DeviceFault {
    /// Reads a line of the kernel log, either a line of `/dev/kmsg` or one that `dmesg`, `journalctl` or a log file
    /// shows. Returns `None` if the line does not report an Xid error.
    fn parse(line: &str) -> Option<Self> {
        let (head, rest) = line.split_once(MARK)?;
        let (device, rest) = rest.split_once("): ")?;
        let (code, details) = rest.split_once(',').unwrap_or((rest, ""));
        let mut pids = details.split(',').filter_map(|part| {
            let pid = part.trim().strip_prefix("pid=")?;
            pid.trim_matches('\'').parse().ok()
        });
        Some(Self {
            code: code.trim().parse().ok()?,
            device: device.trim_start_matches("PCI:").to_owned(),
            pid: pids.next(),
            time_ns: time(head),
        })
    }

    /// Returns a text that describes the fault: `Xid 31 (GPU memory page fault) of GPU 0000:4f:00`.
    pub(crate) fn text(&self) -> String {
        let meaning = meaning(self.code).map_or_else(String::new, |text| format!(" ({text})"));
        format!("Xid {}{meaning} of GPU {}", self.code, self.device)
    }
}

/// Returns the time, in nanoseconds since the boot, at the start of a message of the kernel log: `[  12.345678]` in the
/// output of `dmesg`, or `4,1234,12345678,-;` in `/dev/kmsg`. `None` if the message has no such time.
fn time(head: &str) -> Option<u64> {
    if let Some((_, inner)) = head.rsplit_once('[') {
        let (seconds, fraction) = inner.split_once(']')?.0.trim().split_once('.')?;
        let digits = u32::try_from(fraction.len())
            .ok()
            .filter(|digits| *digits <= 9)?;
        let fraction = fraction.parse::<u64>().ok()? * 10_u64.pow(9 - digits);
        return seconds
            .parse::<u64>()
            .ok()?
            .checked_mul(1_000_000_000)?
            .checked_add(fraction);
    }
    let fields = head.strip_suffix(';')?;
    fields
        .split(',')
        .nth(2)?
        .parse::<u64>()
        .ok()?
        .checked_mul(1000)
}

/// Reads all device faults of the kernel log, the oldest first: from the file `copy` if it is given, otherwise from the
/// kernel.
///
/// # Errors
/// The log cannot be read. Reading it from the kernel requires root or `CAP_SYSLOG` on most machines.
pub(crate) fn read(copy: Option<&Path>) -> Result<Vec<DeviceFault>> {
    let log = match copy {
        Some(path) => fs::read(path).with_context(|| format!("--kernel-log {}", path.display()))?,
        None => read_kernel_log().context("the kernel log")?,
    };
    let log = String::from_utf8_lossy(&log);
    Ok(log.lines().filter_map(DeviceFault::parse).collect())
}

/// Reads all messages that the kernel log contains at present.
fn read_kernel_log() -> Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let log = rustix::fs::open(KERNEL_LOG, flags, Mode::empty())?;
    let (mut text, mut message) = (Vec::new(), [0; MAX_MESSAGE]);
    for _ in 0..MAX_MESSAGES {
        match rustix::io::read(&log, &mut message) {
            Ok(0) | Err(Errno::AGAIN) => break,
            Ok(length) => text.extend_from_slice(&message[..length]),
            // EPIPE: newer messages have overwritten the message that was to be read next. EINTR: a signal came. In
            // both cases, the loop reads again.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_read_from_each_form_of_the_log() {
        let message = "NVRM: Xid (PCI:0000:4f:00): 31, pid=4711, name=python3, Ch 00000008, MMU Fault: ENGINE GRAPHICS";
        let fault = |time_ns| DeviceFault {
            code: 31,
            device: "0000:4f:00".to_owned(),
            pid: Some(4711),
            time_ns,
        };
        for (head, time_ns) in [
            ("4,1234,98765432,-;", Some(98_765_432_000)),
            ("[   98.765432] ", Some(98_765_432_000)),
            ("kern  :warn  : [   98.765432] ", Some(98_765_432_000)),
            ("Nov 29 04:02:12 host kernel: ", None),
            ("[Sun Nov 29 04:02:12 2026] ", None),
            ("", None),
        ] {
            let line = format!("{head}{message}");
            assert_eq!(DeviceFault::parse(&line), Some(fault(time_ns)), "{line}");
        }
        assert_eq!(
            fault(None).text(),
            "Xid 31 (GPU memory page fault) of GPU 0000:4f:00"
        );
    }

    #[test]
    fn a_fault_without_a_process_is_read_and_other_lines_are_not() {
        let line = "[12.5] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.";
        let fault = DeviceFault::parse(line).unwrap();
        assert_eq!(
            (fault.code, fault.pid, fault.time_ns),
            (79, None, Some(12_500_000_000))
        );
        let unknown =
            DeviceFault::parse("NVRM: Xid (PCI:0000:01:00): 999, pid='<unknown>'").unwrap();
        assert_eq!(
            (unknown.pid, unknown.text().as_str()),
            (None, "Xid 999 of GPU 0000:01:00")
        );
        for line in [
            "NVRM: loading",
            "NVRM: Xid (PCI",
            "NVRM: Xid (PCI:1): x, pid=1",
            "[1.2] usb",
        ] {
            assert_eq!(DeviceFault::parse(line), None, "{line}");
        }
    }
}
