//! Shortens a function's name by removing its arguments.

/// Removes arguments, the text after the arguments, template arguments, and unnamed namespaces from a name.
/// The result is `ns::Class::f` for `ns::Class<int>::f(int) const [clone .part.0]`.
pub fn short(name: &str) -> String {
    let name = name.split(" [clone").next().unwrap_or(name);
    // This is the form of a Rust trait method's name: `<module::Type as Trait>::method`.
    if let Some(rest) = name.strip_prefix('<')
        && let Some((own, method)) = rest.split_once(">::")
        && let Some(own) = own.split(" as ").next()
    {
        return format!("{}::{}", without_groups(own), without_groups(method));
    }
    without_groups(name)
}

fn without_groups(name: &str) -> String {
    let name = name.replace("(anonymous namespace)::", "");
    let mut out = String::new();
    let mut rest = name.as_str();
    while let Some(next) = rest.chars().next() {
        if next == 'o' && is_operator(rest, &out) {
            let end = operator_end(rest);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        match next {
            '(' | '<' => {
                rest = &rest[group_end(rest)..];
                let is_inside = out.matches('{').count() > out.matches('}').count();
                let goes_on = rest.is_empty() || rest.starts_with("::") || is_inside;
                if next == '(' && !goes_on {
                    break;
                }
            }
            _ => {
                out.push(next);
                rest = &rest[next.len_utf8()..];
            }
        }
    }
    match out.trim_end() {
        "" => name,
        short => short.to_owned(),
    }
}

/// Returns true if `rest` begins with the name of an operator. `before` is the text in front of
/// `rest`.
fn is_operator(rest: &str, before: &str) -> bool {
    let is_behind = |c: char| c.is_alphanumeric() || c == '_';
    let symbol = rest.strip_prefix("operator");
    !before.ends_with(is_behind) && symbol.is_some_and(|symbol| !symbol.starts_with(is_behind))
}

/// Returns the offset in `rest` at which the operator's name ends and its arguments begin.
fn operator_end(rest: &str) -> usize {
    let symbol = "operator".len();
    let is_call = rest[symbol..].starts_with("()");
    let arguments = rest[symbol..]
        .find('(')
        .map_or(rest.len(), |at| symbol + at);
    if is_call { symbol + 2 } else { arguments }
}

/// Returns the offset after the group in brackets with which `text` begins.
fn group_end(text: &str) -> usize {
    let mut depth = 0_u32;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '(' | '<' => depth += 1,
            ')' => depth -= 1,
            // The character `>` in `->` closes no bracket.
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + c.len_utf8();
        }
        before = c;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_arguments() {
        for (name, expected) in [
            ("llama_decode", "llama_decode"),
            (
                "ggml_cuda_op_add(ggml_backend_cuda_context&, ggml_tensor*)",
                "ggml_cuda_op_add",
            ),
            ("ns::Class<int, A<b> >::f<(E)2>(int) const", "ns::Class::f"),
            ("f(int) [clone .part.0]", "f"),
            ("(anonymous namespace)::g(void (*)(int))", "g"),
            ("ns::(anonymous namespace)::g()", "ns::g"),
            (
                "f(int)::{lambda(int)#1}::operator()(int) const",
                "f::{lambda#1}::operator()",
            ),
            ("Functor::operator()(int)", "Functor::operator()"),
            ("bool operator<(A const&, A const&)", "bool operator<"),
            ("operators_run(int)", "operators_run"),
            ("engine::step", "engine::step"),
            (
                "<core::option::Option<T> as engine::Step>::step",
                "core::option::Option::step",
            ),
            (
                "core::ops::function::FnOnce<fn() -> u8>::call",
                "core::ops::function::FnOnce::call",
            ),
            ("", ""),
            ("(", "("),
            (">", ">"),
        ] {
            assert_eq!(short(name), expected, "{name}");
        }
    }

    #[test]
    fn any_text_has_a_name() {
        let parts = [
            "(", ")", "<", ">", "->", "operator", "::", " as ", "é", "{", "f",
        ];
        let mut seed = 1_usize;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..8 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.push_str(parts[(seed >> 33) % parts.len()]);
            }
            assert_eq!(short(&text).is_empty(), text.is_empty(), "{text}");
        }
    }
}
