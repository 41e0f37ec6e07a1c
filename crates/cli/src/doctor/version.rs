//! Versions of glibc, the C library.

use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    pub(crate) const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    pub(crate) const fn numbers(self) -> (u32, u32) {
        (self.major, self.minor)
    }

    /// Parses a symbol version such as `GLIBC_2.34`. Returns `None` for any other text.
    pub(crate) fn parse_glibc(name: &[u8]) -> Option<Self> {
        let mut numbers = str::from_utf8(name)
            .ok()?
            .strip_prefix("GLIBC_")?
            .split('.');
        // Parsing fails, as intended, for `GLIBC_PRIVATE` and `GLIBC_ABI_DT_RELR`, which are not
        // versions.
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(Self { major, minor })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let version = |name: &str| Version::parse_glibc(name.as_bytes());
        assert!(version("GLIBC_2.4") < version("GLIBC_2.34"));
        assert_eq!(version("GLIBC_2.2.5"), version("GLIBC_2.2"));
        for none in [
            "GLIBC_PRIVATE",
            "GLIBC_ABI_DT_RELR",
            "GLIBCXX_3.4",
            "GLIBC_2",
            "",
        ] {
            assert_eq!(version(none), None, "{none}");
        }
    }
}
