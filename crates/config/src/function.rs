//! Names of Python functions, as the user writes them.

use std::fmt;

use crate::error::{Problem, quoted};

/// The name of a Python function: `MODULE:QUALNAME`, such as `vllm.v1.engine.core:EngineCore.step`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PyFunction {
    pub module: String,
    pub qualname: String,
}

impl PyFunction {
    const WANTED: &str = "module:function or module:Class.method";

    /// Parses the name of a Python function.
    ///
    /// # Errors
    /// Returns an error if the text has no colon, or if a part of it cannot be a Python name.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let text = text.trim();
        let Some((module, qualname)) = text.split_once(':') else {
            let problem = format!("{} has no \":\" behind the module", quoted(text));
            return Err(Problem::new(problem, Self::WANTED));
        };
        let (module, qualname) = (module.trim(), qualname.trim());
        if !module.split('.').all(is_identifier) {
            let problem = format!("{} is not the name of a module", quoted(module));
            return Err(Problem::new(problem, Self::WANTED));
        }
        if !qualname
            .split('.')
            .all(|part| is_identifier(part) || is_synthetic(part))
        {
            let problem = format!("{} is not the name of a function", quoted(qualname));
            return Err(Problem::new(problem, Self::WANTED));
        }
        Ok(Self {
            module: module.to_owned(),
            qualname: qualname.to_owned(),
        })
    }

    /// Parses a comma-separated list of functions.
    ///
    /// # Errors
    /// Returns the error of [`PyFunction::parse`] for the first function that fails.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, Problem> {
        text.split(',').map(Self::parse).collect()
    }
}

impl fmt::Display for PyFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.module, self.qualname)
    }
}

fn is_identifier(part: &str) -> bool {
    !part.is_empty()
        && !part.starts_with(|c: char| c.is_numeric())
        && part.chars().all(|c| c == '_' || c.is_alphanumeric())
}

/// Returns true for the names, such as `<lambda>`, that Python itself puts into qualified names.
fn is_synthetic(part: &str) -> bool {
    matches!(
        part,
        "<locals>" | "<lambda>" | "<genexpr>" | "<listcomp>" | "<dictcomp>" | "<setcomp>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in [
            "m:f",
            "a.b:C.d",
            "__main__:main.<locals>.step",
            "módulo:größe",
        ] {
            assert_eq!(PyFunction::parse(good).unwrap().to_string(), good);
        }
        for bad in [
            "", "f", ":", "m:", ":f", "m:f()", "m..n:f", "m:1f", "m:a b", "m:f:g",
        ] {
            assert!(PyFunction::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(PyFunction::parse_list("a:b, c:d.e").unwrap().len(), 2);
        assert!(PyFunction::parse_list("a:b,").is_err());
    }
}
