//! The text by which stacks name a Python function.

/// Parts of the paths of installed Python packages.
const INSTALLED: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// The parts of `QUALNAME (FILE:LINE)`, the text by which stacks name a Python function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PythonFunction<'a> {
    /// The function's name with those of the classes and functions around it. Before Python 3.11, only its own name.
    pub qualified: &'a str,
    /// The path of the function's file.
    pub file: &'a str,
    /// `None` if the text contains no line.
    pub line: Option<u32>,
}

impl<'a> PythonFunction<'a> {
    /// Returns the parts of `text`; `None` if it has another form. The name of a native function may have that form by
    /// chance, such as `f(int (*)(int))`, which has parentheses after a space. Then the parts have no line.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let (qualified, place) = text.strip_suffix(')')?.split_once(" (")?;
        let parts = || {
            let (file, line) = place.rsplit_once(':')?;
            Some((file, line.parse().ok()?))
        };
        let (file, line) = parts().map_or((place, None), |(file, line)| (file, Some(line)));
        Some(Self {
            qualified,
            file,
            line,
        })
    }

    /// Returns the function's name without those of the classes and functions around it.
    #[must_use]
    pub fn name(&self) -> &'a str {
        let outer = self.qualified.rsplit_once('.');
        outer.map_or(self.qualified, |(_, name)| name)
    }
}

/// Returns true if the path of a file, or a text that contains the path, is that of an installed Python package.
#[must_use]
pub fn is_installed_package(path: &str) -> bool {
    installed_package(path).is_some()
}

/// Returns the name of the installed Python package to which the path of a file belongs, or to which a path in the text
/// belongs; `None` if it is not that of an installed package.
#[must_use]
pub fn installed_package(path: &str) -> Option<&str> {
    let (_, inside) = INSTALLED.iter().find_map(|part| path.rsplit_once(part))?;
    inside.split('/').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_function_has_a_name_and_a_place() {
        let parse = PythonFunction::parse;
        let function = parse("Server.run.<locals>.f (/x (old)/server.py:60)").unwrap();
        let (file, line) = ("/x (old)/server.py", Some(60));
        let qualified = "Server.run.<locals>.f";
        let expected = PythonFunction {
            qualified,
            file,
            line,
        };
        assert_eq!((function, function.name()), (expected, "f"));
        let without_line = parse("run (/x/y:z.py)").unwrap();
        assert_eq!((without_line.file, without_line.line), ("/x/y:z.py", None));
        assert_eq!(parse("f(int (*)(int))").unwrap().line, None);
        for native in ["", "read", "f(int)", "f (a.py:1", "/x/liba.so+0x10"] {
            assert_eq!(parse(native), None, "{native}");
        }
    }
}
