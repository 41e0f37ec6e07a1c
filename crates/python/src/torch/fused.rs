//! Names the scope of a kernel that was compiled from operations of several modules. The scope of a kernel is the
//! module that it belongs to.

/// The most modules that the name of a scope lists. If a kernel belongs to more modules, the name shows the number of
/// the others.
const MAX_NAMED: usize = 4;

/// Returns `model.layers.(0 + 1.norm)` for `model.layers.0` and `model.layers.1.norm`. A module that contains another
/// module in `paths` is left out, and so is an empty path. Returns `None` if `paths` contains no other path.
pub(crate) fn name(paths: &[String]) -> Option<String> {
    let is_around = |outer: &str, inner: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|rest| rest.starts_with('.') || outer.is_empty() && !rest.is_empty())
    };
    let mut inner: Vec<&str> = Vec::new();
    for path in paths {
        let is_more = !path.is_empty() && !paths.iter().any(|other| is_around(path, other));
        if is_more && !inner.contains(&path.as_str()) {
            inner.push(path);
        }
    }
    let (first, others) = inner.split_first()?;
    if others.is_empty() {
        return Some((*first).to_owned());
    }
    let parts = first.split('.').scan(0, |end, part| {
        *end += part.len() + 1;
        Some(*end)
    });
    let is_common = |end: &usize| {
        let start = first.get(..*end);
        start.is_some_and(|start| others.iter().all(|other| other.starts_with(start)))
    };
    let common = parts.take_while(is_common).last().unwrap_or(0);
    let mut rests: Vec<String> = inner
        .iter()
        .take(MAX_NAMED)
        .map(|path| path[common..].to_owned())
        .collect();
    if let Some(more) = inner.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
        rests.push(format!("{more} more"));
    }
    Some(format!("{}({})", &first[..common], rests.join(" + ")))
}

#[cfg(test)]
mod tests {
    fn name(paths: &[&str]) -> Option<String> {
        let paths: Vec<_> = paths.iter().map(|path| (*path).to_owned()).collect();
        super::name(&paths)
    }

    #[test]
    fn one_module_has_its_name() {
        assert_eq!(name(&["model.norm"]).unwrap(), "model.norm");
        assert_eq!(name(&["model.norm", "", "model"]).unwrap(), "model.norm");
        assert_eq!(name(&["a.b", "a.b"]).unwrap(), "a.b");
        assert_eq!((name(&[]), name(&[""])), (None, None));
    }

    #[test]
    fn of_several_all_are_named_within_what_is_around_them() {
        let of = |paths: &[&str]| name(paths).unwrap();
        let layers = ["model.layers.0", "model.layers.1.norm"];
        assert_eq!(of(&layers), "model.layers.(0 + 1.norm)");
        let norms = ["layers.1.attn", "layers.1.attn.q", "layers.1.attn.k"];
        assert_eq!(of(&norms), "layers.1.attn.(q + k)");
        assert_eq!(of(&["layers.1", "layers.10"]), "layers.(1 + 10)");
        assert_eq!(of(&["norm", "head"]), "(norm + head)");
        let many = ["l.0", "l.1", "l.2", "l.3", "l.4", "l.5"];
        assert_eq!(of(&many), "l.(0 + 1 + 2 + 3 + 2 more)");
    }
}
