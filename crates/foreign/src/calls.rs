//! The meaning of the calls in a trace: their purpose, and their form for the learner, which finds iterations by a
//! pattern of calls.

use tllmprof_calls::{Call as Known, CallPurpose, Direction, Wait, cuda_name, kind_of};
use tllmprof_learn::Call as Learned;
use tllmprof_record::CopyKind;

use crate::{Moment, Work};

/// Number that is added to the number of a kernel's name to get a handle. The learner (which finds iterations by a
/// pattern of calls) identifies kernels by handles, but traces contain only names.
const KERNELS: u64 = 1 << 32;
/// The handle that stands for a kernel that is not in the trace.
const UNKNOWN: u64 = KERNELS + u32::MAX as u64;

/// Returns a function's name without the version of the interface, which CUPTI appends:
/// `cudaLaunchKernel` for `cudaLaunchKernel_v7000`.
pub(crate) fn plain_name(name: &str) -> &str {
    let Some((stem, version)) = name.rsplit_once("_v") else {
        return name;
    };
    // Only suffixes of at least four digits are versions to remove. Suffixes of the driver's own functions, such as
    // `_v2`, have one digit and are part of the name.
    let is_version = version.len() >= 4 && version.bytes().all(|byte| byte.is_ascii_digit());
    if is_version { stem } else { name }
}

/// The meaning of a function's calls: their purpose, and the CUDA call to which the function corresponds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Meaning {
    pub kind: CallPurpose,
    pub call: Option<Known>,
    /// True if the function's name states the direction of the copy. If false, the direction is
    /// known only from the GPU work that the call launched.
    pub names_direction: bool,
}

impl Meaning {
    /// Returns the meaning of a function (the purpose of its calls), or `None` if its calls are neither counted nor
    /// passed to the learner (which finds iterations).
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let name = plain_name(name);
        let kind = kind_of(name).filter(|kind| kind.counts() || kind.captures())?;
        Some(Self {
            kind,
            call: Known::by_name(&cuda_name(name)),
            names_direction: name.contains("DtoH") || name.contains("HtoD"),
        })
    }

    /// Returns the start of the iteration that begins with a call of this function: the end of the call if it waits
    /// for the GPU, otherwise the start of the call.
    pub(crate) const fn moment(&self, start: Moment, end: Moment) -> Moment {
        if self.kind.waits() { end } else { start }
    }

    /// Returns the call in the form that the learner (which finds iterations) takes. `work` is the GPU work that the
    /// call launched, or `None` if that is not known.
    pub(crate) fn learned(&self, work: Option<Work>) -> Option<Learned> {
        match self.kind {
            CallPurpose::GraphLaunch => Some(Learned::GraphLaunch),
            CallPurpose::KernelLaunch { .. } => Some(Learned::Launch(match work {
                Some(Work::Kernel(name)) => KERNELS + u64::from(name),
                _ => UNKNOWN,
            })),
            CallPurpose::CaptureBegin => Some(Learned::CaptureBegin),
            CallPurpose::CaptureEnd => Some(Learned::CaptureEnd),
            CallPurpose::AsyncCopy(_) => self.direction(work).map(|direction| match direction {
                Direction::ToHost => Learned::CopyToHost,
                Direction::ToDevice | Direction::Other => Learned::CopyToDevice,
            }),
            CallPurpose::Wait(Wait::CopyToHost) => {
                self.direction(work).map(|direction| match direction {
                    Direction::ToHost => Learned::Returned(Wait::CopyToHost),
                    Direction::ToDevice | Direction::Other => Learned::CopyToDevice,
                })
            }
            CallPurpose::Wait(wait) => Some(Learned::Returned(wait)),
            _ => None,
        }
    }

    /// Returns the direction of a copy between the host and a device; `None` if the direction is
    /// not known or the copy has another kind.
    fn direction(&self, work: Option<Work>) -> Option<Direction> {
        match (work, self.kind) {
            (Some(Work::Copy(CopyKind::DeviceToHost)), _) => Some(Direction::ToHost),
            (Some(Work::Copy(CopyKind::HostToDevice)), _) => Some(Direction::ToDevice),
            (Some(_), _) => None,
            (None, _) if !self.names_direction => None,
            (None, CallPurpose::AsyncCopy(direction)) => Some(direction),
            (None, _) => Some(Direction::ToHost),
        }
    }
}

/// Converts a handle, by which the learner (which finds iterations) identifies a kernel, to the number of the kernel's
/// name. Returns `None` if the handle stands for no kernel of the trace.
pub(crate) const fn kernel_of(handle: u64) -> Option<u32> {
    match handle.checked_sub(KERNELS) {
        Some(number) if handle != UNKNOWN && number <= u32::MAX as u64 => Some(number as u32),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_mean_what_their_work_was() {
        let learned = |name, work| {
            Meaning::from_name(name).and_then(|meaning: Meaning| meaning.learned(work))
        };
        let launch = learned("cudaLaunchKernel_v7000", Some(Work::Kernel(3)));
        assert_eq!(launch, Some(Learned::Launch(KERNELS + 3)));
        assert_eq!(
            learned("cudaLaunchKernel", None),
            Some(Learned::Launch(UNKNOWN))
        );
        let copy = |kind| learned("cudaMemcpyAsync_v3020", Some(Work::Copy(kind)));
        assert_eq!(copy(CopyKind::DeviceToHost), Some(Learned::CopyToHost));
        assert_eq!(copy(CopyKind::HostToDevice), Some(Learned::CopyToDevice));
        assert_eq!(copy(CopyKind::DeviceToDevice), None);
        assert_eq!(learned("cudaMemcpyAsync", None), None);
        assert_eq!(
            learned("cuMemcpyDtoHAsync_v2", None),
            Some(Learned::CopyToHost)
        );
        let blocking = learned("cudaMemcpy_v3020", Some(Work::Copy(CopyKind::DeviceToHost)));
        assert_eq!(blocking, Some(Learned::Returned(Wait::CopyToHost)));
        assert_eq!(
            learned("cudaStreamSynchronize", None),
            Some(Learned::Returned(Wait::Stream))
        );
        assert_eq!(learned("cudaEventRecord", None), None);
        assert_eq!(kernel_of(KERNELS + 7), Some(7));
        assert_eq!(kernel_of(UNKNOWN), None);
    }
}
