//! Suggests similar names for a function that was not found.

use tllmprof_config::distance;
use tllmprof_platform::sorted::sorted;

use super::code::{each_inner, is_function};
use crate::object::Object;

/// The maximum number of similar names that one message suggests.
const MAX_REPORTED: usize = 3;
/// The maximum number of a module's names that are compared with the name of a missing function.
const MAX_COMPARED: usize = 4096;

/// Returns the names of functions in a module's code object that are most similar to `wanted`.
pub(crate) fn in_code(code: &Object<'_>, wanted: &str) -> Vec<String> {
    let mut names = Vec::new();
    collect(code, "", &mut names);
    nearest(wanted, names)
}

fn collect(code: &Object<'_>, before: &str, names: &mut Vec<String>) {
    each_inner(code, &mut |inner, name| {
        if names.len() >= MAX_COMPARED || name.starts_with('<') {
            return;
        }
        let name = format!("{before}{name}");
        if is_function(inner) {
            collect(inner, &format!("{name}.<locals>."), names);
            names.push(name);
        } else {
            collect(inner, &format!("{name}."), names);
        }
    });
}

/// Returns the names most similar to `wanted` among a module's attributes.
pub(crate) fn in_module(module: &Object<'_>, wanted: &str) -> Vec<String> {
    let mut names = Vec::new();
    let Some(attrs) = module.own_attrs() else {
        return names;
    };
    attrs.each_key(|name| names.push(name.to_owned()));
    names.truncate(MAX_COMPARED);
    nearest(wanted, names)
}

fn nearest(wanted: &str, names: Vec<String>) -> Vec<String> {
    let rank = |name: String| Some((farness(wanted, &name)?, name));
    let mut ranked = sorted(names.into_iter().filter_map(rank).collect());
    ranked.dedup();
    ranked.truncate(MAX_REPORTED);
    ranked.into_iter().map(|(_, name)| name).collect()
}

/// Returns a measure of the difference between a name and the wanted one; `None` if they are too different. The measure
/// is the edit distance for similar names. It is 100 or more for names of which only parts are similar.
fn farness(wanted: &str, name: &str) -> Option<usize> {
    let distance = |a: &str, b: &str| distance(a.as_bytes(), b.as_bytes(), (a.len() / 3).max(2));
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_lowercase();
    let (wanted_last, name_last) = (last(wanted), last(name));
    if let Some(distance) = distance(wanted, name) {
        return Some(distance);
    }
    if wanted_last == name_last {
        return Some(100);
    }
    if let Some(distance) = distance(&wanted_last, &name_last) {
        return Some(200 + distance);
    }
    let is_part = name_last.len() > 2 && wanted_last.contains(&name_last)
        || wanted_last.len() > 2 && name_last.contains(&wanted_last);
    is_part.then_some(300)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(wanted: &str, names: &[&str]) -> Vec<String> {
        nearest(wanted, names.iter().copied().map(str::to_owned).collect())
    }

    #[test]
    fn a_slip_is_nearer_than_the_same_name_elsewhere() {
        let names = ["Other.step", "Engine.stop", "run", "Engine.step"];
        let nearest = near("Engine.stepp", &names);
        assert_eq!(nearest, ["Engine.step", "Engine.stop", "Other.step"]);
    }

    #[test]
    fn what_has_nothing_to_do_with_it_is_left_out() {
        assert!(near("forward", &["save", "f", "__init__"]).is_empty());
    }

    #[test]
    fn a_part_of_the_name_is_the_farthest() {
        assert!(farness("execute_model", "execute").is_some_and(|far| far == 300));
        assert!(farness("run", "run_forever_and_ever").is_some_and(|far| far == 300));
        assert!(farness("Model.Step", "a.very.different.step") == Some(100));
        assert!(farness("it", "fitting_curves").is_none());
    }

    #[test]
    fn three_names_are_reported_at_most_and_each_once() {
        let names = ["stepa", "stepb", "stepc", "stepd", "stepa"];
        assert_eq!(near("step", &names), ["stepa", "stepb", "stepc"]);
    }
}
