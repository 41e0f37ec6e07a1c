//! Reasons why a function's entry is not patched with a jump.

use core::fmt;
use std::io;

/// The error of a system call that maps memory or changes its protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied {
    errno: i32,
    /// True if the system call failed because of MDWE (`PR_SET_MDWE`). With this setting the kernel refuses mappings
    /// that are writable and executable, and refuses to make a mapping executable later.
    is_mdwe: bool,
}

impl Denied {
    /// Returns the error of the last system call, from `errno`.
    pub fn last() -> Self {
        const PR_GET_MDWE: libc::c_int = 66;
        const REFUSE_EXEC_GAIN: libc::c_int = 1;
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        // SAFETY: `prctl` takes only numbers here, and a kernel that does not know the request rejects it.
        let bits = unsafe { libc::prctl(PR_GET_MDWE, 0, 0, 0, 0) };
        Self {
            errno,
            is_mdwe: errno == libc::EACCES && bits > 0 && bits & REFUSE_EXEC_GAIN != 0,
        }
    }

    fn is_by_policy(self) -> bool {
        matches!(self.errno, libc::EACCES | libc::EPERM)
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = io::Error::from_raw_os_error(self.errno);
        match self.is_mdwe {
            true => f.write_str("PR_SET_MDWE is set, as by systemd's MemoryDenyWriteExecute=yes"),
            false if self.is_by_policy() => write!(
                f,
                "{error}; SELinux and seccomp filters, as systemd's MemoryDenyWriteExecute=yes, do that"
            ),
            false => write!(f, "{error}"),
        }
    }
}

/// Reason why a function's first instructions are not replaced by a jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // only the code that patches entries creates most variants
pub enum PatchRefusal {
    EntryPoint,
    /// Entries are not patched on this processor. The function's code was only examined for uses of the return address.
    #[cfg(target_arch = "aarch64")]
    Processor {
        /// True if the function may read its own return address.
        looks_back: bool,
    },
    VariantCall,
    UnknownSize,
    Ifunc,
    Go,
    /// The function's file cannot be read. The number is the `errno` value.
    Unreadable(i32),
    /// The mapped file was replaced: its path now leads to another file.
    Replaced,
    /// The function's code is not within one mapping of its file that is executable and not writable.
    NotMapped,
    Changed,
    TooShort,
    Undecodable,
    Call,
    Immovable,
    Loops,
    Table,
    NoRoom,
    NotNear(Denied),
    NotExecutable(Denied),
    NotWritable(Denied),
    Threads,
    /// To notice when a call of the function ends, the library would have to replace the call's return address. But the
    /// function may read its return address.
    LooksBack,
    ShadowStack,
    TooMany,
    EndsIn,
    CrossesPage,
}

impl fmt::Display for PatchRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreadable(errno) => {
                let error = io::Error::from_raw_os_error(*errno);
                return write!(f, "its file cannot be read: {error}");
            }
            Self::NotNear(denied) => return write!(f, "no memory can be mapped near it: {denied}"),
            Self::NotExecutable(denied) => {
                return write!(f, "the process may not make memory executable: {denied}");
            }
            Self::NotWritable(denied) => {
                return write!(f, "the process may not write to code: {denied}");
            }
            Self::EntryPoint => "the process begins there, and no call leads to it",
            #[cfg(target_arch = "aarch64")]
            Self::Processor { .. } => "entries are patched on x86-64 only",
            Self::VariantCall => "it may take arguments in registers that other calls do not keep (variant PCS)",
            Self::UnknownSize => "its size is not known",
            Self::Ifunc => "it only says which function is meant (IFUNC)",
            Self::Go => "it is Go's own and does not keep to the C calling convention",
            Self::Replaced => "its file was replaced after it was loaded; restart the program",
            Self::NotMapped => "its code is not mapped from its file as code is",
            Self::Changed => "its code is not what its file holds, as where a debugger or another tool has changed it",
            Self::TooShort => "it is too short for a jump",
            Self::Undecodable => "its code cannot be decoded",
            Self::Call => "it begins with a call",
            Self::Immovable => "it begins with an instruction that cannot be moved",
            Self::Loops => "it branches back to its entry",
            Self::Table => "a jump table leads to its entry",
            Self::NoRoom => "no addresses are free within 2 GiB of it",
            Self::CrossesPage => "a jump at its entry would cross into another page",
            Self::EndsIn => "it ends in another function that counts, or another in it",
            Self::Threads => "other threads are running, and its first instruction has no room for a jump in one store",
            Self::LooksBack => "it may look at its return address",
            Self::ShadowStack => "the processor guards return addresses",
            Self::TooMany => "too many functions have been scopes before",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENIED: Denied = Denied {
        errno: libc::EACCES,
        is_mdwe: false,
    };

    #[test]
    fn a_denial_says_by_what_as_far_as_that_is_known() {
        let shown = |errno, is_mdwe| Denied { errno, is_mdwe }.to_string();
        assert!(shown(libc::EACCES, true).starts_with("PR_SET_MDWE is set"));
        let policy = shown(libc::EPERM, false);
        assert!(policy.starts_with("Operation not permitted") && policy.contains("SELinux"));
        assert_eq!(
            shown(libc::ENOMEM, false),
            "Cannot allocate memory (os error 12)"
        );
    }

    #[test]
    fn each_refusal_has_words_of_its_own() {
        let refusals = [
            PatchRefusal::EntryPoint,
            PatchRefusal::VariantCall,
            PatchRefusal::UnknownSize,
            PatchRefusal::Ifunc,
            PatchRefusal::Go,
            PatchRefusal::Unreadable(libc::ENOENT),
            PatchRefusal::Replaced,
            PatchRefusal::NotMapped,
            PatchRefusal::Changed,
            PatchRefusal::TooShort,
            PatchRefusal::Undecodable,
            PatchRefusal::Call,
            PatchRefusal::Immovable,
            PatchRefusal::Loops,
            PatchRefusal::Table,
            PatchRefusal::NoRoom,
            PatchRefusal::NotNear(DENIED),
            PatchRefusal::NotExecutable(DENIED),
            PatchRefusal::NotWritable(DENIED),
            PatchRefusal::Threads,
            PatchRefusal::LooksBack,
            PatchRefusal::ShadowStack,
            PatchRefusal::TooMany,
            PatchRefusal::EndsIn,
            PatchRefusal::CrossesPage,
        ];
        let words: std::collections::HashSet<_> =
            refusals.iter().map(PatchRefusal::to_string).collect();
        assert_eq!(words.len(), refusals.len());
    }
}
