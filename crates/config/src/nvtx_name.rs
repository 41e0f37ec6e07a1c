//! The setting `TLLMPROF_NVTX_NAME`, the name of an iteration's NVTX range.

use std::fmt;

use crate::error::Problem;

/// A template for the names of iterations' NVTX ranges, with `{n}` in place of the iteration's number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvtxName {
    /// The texts before, between and after the `{n}` of the template. There is one more text than there are `{n}`.
    texts: Vec<String>,
}

impl NvtxName {
    pub const DEFAULT: &str = "iteration {n}";

    /// Parses a template for names.
    ///
    /// # Errors
    /// Returns an error if the template has no `{n}`, because then all iterations would have the same name.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let texts: Vec<String> = text.split("{n}").map(str::to_owned).collect();
        if texts.len() < 2 {
            return Err(Problem::new(
                "it has no {n}",
                "a name with {n} in place of the number, such as \"iteration {n}\"",
            ));
        }
        Ok(Self { texts })
    }

    /// Writes the name of iteration `n` to `out`.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn write(&self, n: u64, out: &mut dyn fmt::Write) -> fmt::Result {
        for (k, text) in self.texts.iter().enumerate() {
            if k > 0 {
                write!(out, "{n}")?;
            }
            out.write_str(text)?;
        }
        Ok(())
    }
}

impl Default for NvtxName {
    fn default() -> Self {
        Self {
            texts: Self::DEFAULT.split("{n}").map(str::to_owned).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(template: &str, n: u64) -> String {
        let mut out = String::new();
        NvtxName::parse(template)
            .unwrap()
            .write(n, &mut out)
            .unwrap();
        out
    }

    #[test]
    fn numbers_take_their_places() {
        assert_eq!(name(NvtxName::DEFAULT, 12), "iteration 12");
        assert_eq!(name("{n}", u64::MAX), u64::MAX.to_string());
        assert_eq!(name("{n}/{n} {{n}}", 7), "7/7 {7}");
        assert_eq!(NvtxName::parse(NvtxName::DEFAULT), Ok(NvtxName::default()));
    }

    #[test]
    fn a_name_needs_its_number() {
        for bad in ["", "step", "{N}", "{ n }", "{n"] {
            assert!(NvtxName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
