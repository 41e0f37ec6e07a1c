//! The setting `TLLM_TORCH_PROFILE_TRACE`, the path of the PyTorch profiler's traces.

use std::path::Path;

use crate::error::Problem;

/// The path of a trace in two parts, so that the rank and the window can be inserted before the extension.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracePath {
    /// The folder and the file name of the path, without the extension.
    pub stem: String,
    /// The extension with its dot. For compressed files the extension has two parts: `.json.gz`. PyTorch compresses a
    /// file if its name ends in `.gz`.
    pub extension: String,
}

impl TracePath {
    /// Parses a path.
    ///
    /// # Errors
    /// Returns an error if the path is `-`, or does not end in a file name.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let start = text.rfind('/').map_or(0, |slash| slash + 1);
        let name = &text[start..];
        const WANTED: &str = "a file, such as trace.json or /tmp/trace.json.gz";
        if matches!(name, "" | "." | "..") {
            return Err(Problem::new("it does not end in a file's name", WANTED));
        }
        if text == "-" {
            return Err(Problem::new("a trace cannot go to standard output", WANTED));
        }
        // A dot at the beginning of the name does not start an extension.
        let dot_in = |name: &str| name.rfind('.').filter(|dot| *dot > 0);
        let mut dot = dot_in(name);
        if dot.is_some_and(|dot| &name[dot..] == ".gz") {
            dot = dot.and_then(|dot| dot_in(&name[..dot])).or(dot);
        }
        let (stem, extension) = text.split_at(start + dot.unwrap_or(name.len()));
        Ok(Self {
            stem: stem.to_owned(),
            extension: extension.to_owned(),
        })
    }

    /// Returns the path with `folder` in front if the path is relative. The result stays valid if the process changes
    /// its working folder.
    #[must_use]
    pub fn within(&self, folder: &Path) -> Self {
        let stem = folder.join(&self.stem).into_os_string().into_string();
        Self {
            stem: stem.unwrap_or_else(|_| self.stem.clone()),
            extension: self.extension.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (String, String) {
        let TracePath { stem, extension } = TracePath::parse(text).unwrap();
        (stem, extension)
    }

    #[test]
    fn the_extension_is_that_of_the_name() {
        for (path, stem, extension) in [
            ("trace.json", "trace", ".json"),
            ("/tmp/a.b/trace.json.gz", "/tmp/a.b/trace", ".json.gz"),
            ("/tmp/a.b/trace", "/tmp/a.b/trace", ""),
            ("x.gz", "x", ".gz"),
            (".hidden", ".hidden", ""),
            (".hidden.gz", ".hidden", ".gz"),
            ("d/my.trace.json", "d/my.trace", ".json"),
        ] {
            assert_eq!(
                parts(path),
                (stem.to_owned(), extension.to_owned()),
                "{path}"
            );
        }
    }

    #[test]
    fn a_folder_is_no_file() {
        for path in ["/tmp/", ".", "a/..", "/", "-"] {
            assert!(TracePath::parse(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_relative_path_stays_where_it_was_meant() {
        let here = Path::new("/srv/run");
        let path = TracePath::parse("t/x.json").unwrap();
        assert_eq!(path.within(here).stem, "/srv/run/t/x");
        let path = TracePath::parse("/tmp/x.json").unwrap();
        assert_eq!(path.within(here), path);
    }
}
