//! What layers are called.

use std::collections::BTreeMap;

/// A layer with all that is within it, by its name with `*` for each number: one row for all blocks of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pattern {
    pub name: String,
    /// How many parts of the name there are around it.
    pub depth: usize,
    /// How many layers have this name.
    pub layers: u64,
    pub kernels: u64,
    pub ns: u64,
}

/// A scope's path as one name. A torch module's qualified name has those of the modules around it in it.
pub fn joined(parts: impl Iterator<Item = String>) -> String {
    let mut name = String::new();
    // Where the latest part begins.
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

/// The name's parts, each with all before it.
fn prefixes(name: &str) -> impl Iterator<Item = &str> {
    let ends = name
        .char_indices()
        .filter(|(_, c)| matches!(c, '/' | '.'))
        .map(|(at, _)| at);
    ends.chain([name.len()]).map(|end| &name[..end])
}

/// The name with `*` for each part that is a number.
fn starred(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for part in name.split_inclusive(['/', '.']) {
        let text = part.trim_end_matches(['/', '.']);
        match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => out.push('*'),
            false => out.push_str(text),
        }
        out.push_str(&part[text.len()..]);
    }
    out
}

/// The patterns of layers, a tree: what is within one comes behind it, the longest first.
pub fn patterns(by_name: &BTreeMap<String, (u64, u64)>) -> Vec<Pattern> {
    // Each prefix of a name once, so that layers of a pattern are counted.
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (name, (kernels, ns)) in by_name {
        for prefix in prefixes(name).filter(|prefix| !prefix.is_empty()) {
            let sum = sums.entry(prefix).or_default();
            *sum = (sum.0 + kernels, sum.1.saturating_add(*ns));
        }
    }
    let mut found: BTreeMap<String, Pattern> = BTreeMap::new();
    for (prefix, (kernels, ns)) in sums {
        let name = starred(prefix);
        let depth = name.matches(['/', '.']).count();
        let pattern = found.entry(name.clone()).or_insert(Pattern {
            name,
            depth,
            layers: 0,
            kernels: 0,
            ns: 0,
        });
        pattern.layers += 1;
        pattern.kernels += kernels;
        pattern.ns = pattern.ns.saturating_add(ns);
    }
    let mut rows = Vec::with_capacity(found.len());
    below("", &found, &mut rows);
    rows
}

/// Adds what is right below `around`, the longest first, each with what is below it.
fn below(around: &str, found: &BTreeMap<String, Pattern>, rows: &mut Vec<Pattern>) {
    let is_below = |name: &str| {
        let rest = match around {
            "" => Some(name),
            around => name
                .strip_prefix(around)
                .and_then(|rest| rest.strip_prefix(['/', '.'])),
        };
        rest.is_some_and(|rest| !rest.contains(['/', '.']))
    };
    let mut here: Vec<_> = found
        .range(around.to_owned()..)
        .map(|(_, pattern)| pattern)
        .take_while(|pattern| pattern.name.starts_with(around))
        .filter(|pattern| is_below(&pattern.name))
        .collect();
    here.sort_by(|a, b| (b.ns, &a.name).cmp(&(a.ns, &b.name)));
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
        let found = patterns(&by_name);
        let found: Vec<_> = found
            .iter()
            .map(|row| {
                (
                    row.name.as_str(),
                    row.depth,
                    row.layers,
                    row.kernels,
                    row.ns,
                )
            })
            .collect();
        let expected = [
            ("m", 0, 1, 6, 187),
            ("m.layers", 1, 1, 5, 180),
            ("m.layers.*", 2, 2, 5, 180),
            ("m.layers.*.mlp", 3, 1, 1, 100),
            ("m.layers.*.mlp/act2", 4, 1, 1, 100),
            ("m.layers.*.attn", 3, 2, 4, 80),
            ("m.head", 1, 1, 1, 7),
        ];
        assert_eq!(found, expected);
    }
}
