//! Names of layers, and the tree that they form.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// A row of the tree of layers: one layer, or several layers whose names differ only in numbers. Its figures include
/// the layers within it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, JsonSchema)]
pub struct GpuLayerPattern {
    /// The name of the layer, such as `model.layers.*.self_attn`. A `*` stands for a number if the row stands for
    /// several layers.
    pub name: String,
    /// The depth of the row in the tree: the number of parts of `name` before its last part. Parts are separated by `.`
    /// or `/`.
    #[schemars(extend("unit" = "parts"))]
    pub depth: usize,
    /// The number of layers that the row stands for.
    #[schemars(extend("unit" = "layers"))]
    pub layers: u64,
    /// The number of kernels that the layers of this row launched.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u64,
    /// The total time of the kernels of this row.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
    /// The share of the kernels of this row in the total time of all recorded kernels.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
    /// The mean number of kernels of this row in one iteration.
    #[schemars(extend("unit" = "per iteration"))]
    pub kernels_a_step: f64,
    /// The mean time of the kernels of this row in one iteration.
    #[serde(rename = "step_ns")]
    pub step: u64,
    /// The mean time of the kernels of a single layer of this row in one iteration, over all calls of the layer.
    #[serde(rename = "each_ns")]
    pub each: u64,
    /// The mean time per iteration that the GPU was idle between two kernels of the same layer; `null` if it is not
    /// known.
    #[serde(rename = "gap_ns")]
    pub gap: Option<u64>,
    /// Total idle time over all iterations, in nanoseconds. `gap` is its mean.
    #[serde(skip)]
    pub(super) gaps: u64,
}

/// Joins the names of nested scopes, from the outermost to the innermost, to one name. If a scope's name begins with
/// the name of the scope around it, only the longer name is used, because the qualified name of a torch module contains
/// the names of the modules around it.
pub(crate) fn joined(parts: impl Iterator<Item = String>) -> String {
    let mut name = String::new();
    // Index in `name` at which the latest part starts.
    let mut from = 0;
    for part in parts {
        let around = &name[from..];
        let is_within = part
            .strip_prefix(around)
            .is_some_and(|rest| rest.starts_with('.') || rest.is_empty());
        if around.is_empty() || is_within {
            name.truncate(from);
        } else {
            name.push('/');
            from = name.len();
        }
        name.push_str(&part);
    }
    name
}

/// Returns the index of the end of each part of a layer's name. Parts are separated by `/` or `.`.
/// If a kernel was fused from several modules, its list of modules in parentheses is one part.
fn ends(name: &str) -> impl Iterator<Item = usize> {
    let mut next = Some(0);
    core::iter::from_fn(move || {
        let start = next?;
        let part = &name[start..];
        let closed = part.starts_with('(').then(|| part.find(')')).flatten();
        let from = start + closed.unwrap_or(0);
        let end = name[from..].find(['/', '.']).map(|length| from + length);
        next = end.map(|end| end + 1);
        Some(end.unwrap_or(name.len()))
    })
}

/// Returns the prefixes of a layer's name that end at the end of a part: the names of the layers
/// around it, and the name itself.
fn prefixes(name: &str) -> impl Iterator<Item = &str> {
    ends(name).map(|end| &name[..end])
}

/// Returns the name of the layer directly around a layer; `None` for an outermost layer.
pub(crate) fn parent(name: &str) -> Option<&str> {
    let inner = ends(name).take_while(|end| *end < name.len()).last();
    inner.map(|end| &name[..end])
}

/// Returns a layer's name with `*` in place of each part that is a number. Numbers in the list of a
/// fused kernel's modules are replaced, too.
pub(crate) fn starred(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut from = 0;
    for end in ends(name) {
        let part = &name[from..end];
        let is_fused = part.starts_with('(') && part.ends_with(')');
        let is_between = |c| is_fused && matches!(c, '(' | '.' | ' ' | ')');
        for text in part.split_inclusive(is_between) {
            let number = text.trim_end_matches(is_between);
            match !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
                true => out.push_str(&text.replace(number, "*")),
                false => out.push_str(text),
            }
        }
        out.extend(name[end..].chars().next());
        from = end + 1;
    }
    out
}

/// Returns the name of the innermost layer that contains both layers, or is one of them; empty if
/// there is no such layer.
pub(crate) fn around<'a>(name: &'a str, other: &str) -> &'a str {
    let mut found = "";
    for prefix in prefixes(name) {
        let rest = other.strip_prefix(prefix);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '.'])) {
            found = prefix;
        }
    }
    found
}

/// Returns the rows of the tree of layers. `of` converts a layer's name to the name of its row: to a pattern with `*`
/// for numbers, or to the same name for a tree with one row for each layer. Children follow their parent, in the order
/// in which [`below`] sorts them. `by_name` contains for each layer its number of kernels and their total time, and
/// `gaps` its idle time between kernels. Times are in nanoseconds.
pub(crate) fn patterns(
    by_name: &BTreeMap<String, (u64, u64)>,
    gaps: &BTreeMap<&str, u64>,
    of: impl Fn(&str) -> String,
) -> Vec<GpuLayerPattern> {
    // Add up by layer before names become patterns, so that the number of layers with the same
    // pattern can be counted.
    let mut sums: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    let kernels = by_name.iter().map(|(name, sum)| (&**name, (*sum, 0)));
    let gaps = gaps.iter().map(|(name, gap)| (*name, ((0, 0), *gap)));
    for (name, ((kernels, ns), gap)) in kernels.chain(gaps) {
        for prefix in prefixes(name).filter(|prefix| !prefix.is_empty()) {
            let sum = sums.entry(prefix).or_default();
            sum.0 += kernels;
            sum.1 = sum.1.saturating_add(ns);
            sum.2 = sum.2.saturating_add(gap);
        }
    }
    let mut found: BTreeMap<String, GpuLayerPattern> = BTreeMap::new();
    for (prefix, (kernels, ns, gaps)) in sums {
        let name = of(prefix);
        let depth = ends(&name).count() - 1;
        let pattern = found.entry(name.clone()).or_insert(GpuLayerPattern {
            name,
            depth,
            ..GpuLayerPattern::default()
        });
        pattern.layers += 1;
        pattern.kernels += kernels;
        pattern.ns = pattern.ns.saturating_add(ns);
        pattern.gaps = pattern.gaps.saturating_add(gaps);
    }
    let mut rows = Vec::with_capacity(found.len());
    below("", &found, &mut rows);
    rows
}

/// Returns the `most` rows of a tree that have the longest times. The parents of these rows are
/// always among them.
pub(super) fn largest(mut tree: Vec<GpuLayerPattern>, most: usize) -> Vec<GpuLayerPattern> {
    if tree.len() > most {
        let mut order: Vec<_> = (0..tree.len()).collect();
        // A parent takes at least as long as its child and comes earlier in the tree. So if a child is among the rows,
        // its parent is, too.
        order.sort_by_key(|at| (std::cmp::Reverse(tree[*at].ns), *at));
        order.truncate(most);
        order.sort_unstable();
        let mut kept = order.into_iter().peekable();
        let mut at = 0..;
        tree.retain(|_| kept.next_if(|next| Some(*next) == at.next()).is_some());
    }
    tree
}

/// Adds the children of the layer `around` to `rows`, each followed by its own children. If `around` is empty, its
/// children are the outermost layers. If the names of all children end in a number, the children are sorted by the
/// number; otherwise they are sorted by time, the longest first.
fn below(around: &str, found: &BTreeMap<String, GpuLayerPattern>, rows: &mut Vec<GpuLayerPattern>) {
    let is_below = |name: &str| {
        let rest = match around {
            "" => Some(name),
            around => name
                .strip_prefix(around)
                .and_then(|rest| rest.strip_prefix(['/', '.'])),
        };
        rest.is_some_and(|rest| ends(rest).count() == 1)
    };
    let mut here: Vec<_> = found
        .range(around.to_owned()..)
        .map(|(_, pattern)| pattern)
        .take_while(|pattern| pattern.name.starts_with(around))
        .filter(|pattern| is_below(&pattern.name))
        .collect();
    // The number with which a layer's name ends, such as 3 for `model.layers.3`.
    let number = |of: &GpuLayerPattern| -> Option<u64> {
        let last = &of.name[parent(&of.name)?.len() + 1..];
        last.parse().ok()
    };
    match here.iter().all(|row| number(row).is_some()) {
        true => here.sort_by_key(|row| number(row)),
        false => here.sort_by(|a, b| (b.ns, &a.name).cmp(&(a.ns, &b.name))),
    }
    for pattern in here {
        rows.push(pattern.clone());
        below(&pattern.name, found, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(parts: &[&str]) -> String {
        joined(parts.iter().map(|part| (*part).to_owned()))
    }

    #[test]
    fn a_module_has_the_modules_around_it_in_its_name() {
        assert_eq!(join(&[]), "");
        assert_eq!(join(&["step"]), "step");
        let parts = [
            "Llama",
            "model",
            "model.layers.3",
            "model.layers.3.mlp",
            "gate",
        ];
        assert_eq!(join(&parts), "Llama/model.layers.3.mlp/gate");
        assert_eq!(join(&["model", "models"]), "model/models");
        assert_eq!(join(&["again", "again"]), "again");
    }

    #[test]
    fn layers_that_differ_in_a_number_are_one_pattern() {
        let rows = [
            ("m.layers.0.attn", (2, 30)),
            ("m.layers.1.attn", (2, 50)),
            ("m.layers.1.mlp/act2", (1, 100)),
            ("m.head", (1, 7)),
            ("", (1, 9)),
        ];
        let by_name = rows.map(|(name, sum)| (name.to_owned(), sum)).into();
        let gaps = [("m.layers.0.attn", 2), ("m.layers", 1), ("", 5)].into();
        let found = patterns(&by_name, &gaps, starred);
        let of = |row: &GpuLayerPattern| {
            let name = row.name.clone();
            (name, row.depth, row.layers, row.kernels, row.ns, row.gaps)
        };
        let found: Vec<_> = found.iter().map(of).collect();
        let expected = [
            ("m", 0, 1, 6, 187, 3),
            ("m.layers", 1, 1, 5, 180, 3),
            ("m.layers.*", 2, 2, 5, 180, 2),
            ("m.layers.*.mlp", 3, 1, 1, 100, 0),
            ("m.layers.*.mlp/act2", 4, 1, 1, 100, 0),
            ("m.layers.*.attn", 3, 2, 4, 80, 2),
            ("m.head", 1, 1, 1, 7, 0),
        ];
        let expected = expected.map(|(name, a, b, c, d, e)| (name.to_owned(), a, b, c, d, e));
        assert_eq!(found, expected);
        let tree = patterns(&by_name, &gaps, str::to_owned);
        let names = |tree: &[GpuLayerPattern]| -> Vec<_> {
            tree.iter().map(|row| row.name.clone()).collect()
        };
        let longest = ["m", "m.layers", "m.layers.1", "m.layers.1.mlp"];
        assert_eq!(names(&largest(tree.clone(), 4)), longest);
        assert_eq!(largest(tree.clone(), 99), tree);
        assert_eq!(tree.len(), 9);
    }

    #[test]
    fn the_modules_of_a_fused_kernel_are_one_part() {
        let fused = "m.layers.(0 + 1.norm)";
        let prefixes: Vec<_> = prefixes(fused).collect();
        assert_eq!(prefixes, ["m", "m.layers", fused]);
        assert_eq!(starred(fused), "m.layers.(* + *.norm)");
        let others = ["step 12", "f(3)", "2 ", "a./", "(1", ""];
        assert_eq!(others.map(starred), others);
        assert_eq!(
            (parent(fused), parent("m/(a.b")),
            (Some("m.layers"), Some("m/(a"))
        );
        assert_eq!((parent("m"), parent("")), (None, None));
        let rows = [
            ("m.layers.0.attn", (1, 30)),
            (fused, (1, 20)),
            ("m.layers.(1 + 2.norm)", (1, 20)),
            ("m.layers.(1 + 2.norm)/op", (2, 5)),
        ];
        let by_name = rows.map(|(name, sum)| (name.to_owned(), sum)).into();
        let found = patterns(&by_name, &BTreeMap::new(), starred);
        let found: Vec<_> = found
            .iter()
            .map(|row| (row.name.as_str(), row.depth, row.layers, row.ns))
            .collect();
        let expected = [
            ("m", 0, 1, 75),
            ("m.layers", 1, 1, 75),
            ("m.layers.(* + *.norm)", 2, 2, 45),
            ("m.layers.(* + *.norm)/op", 3, 1, 5),
            ("m.layers.*", 2, 1, 30),
            ("m.layers.*.attn", 3, 1, 30),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_around_two_layers_ends_where_a_part_does() {
        let of = |name, other| around(name, other).to_owned();
        assert_eq!(of("m.layers.1.attn", "m.layers.10.attn"), "m.layers");
        assert_eq!(of("m.layers.1", "m.layers.1/act"), "m.layers.1");
        assert_eq!(of("m.a", "m.a"), "m.a");
        assert_eq!(of("a", "b"), "");
        assert_eq!(of("", "b"), "");
    }
}
