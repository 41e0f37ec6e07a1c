//! The names of kernels. Records contain them as mangled by compilers.

/// Maximum length of a name in characters. A mangled name can expand to a far longer one.
const MAX_NAME_LENGTH: usize = 4096;

/// Returns a kernel's full name, demangled if it is mangled.
pub fn full(name: &str) -> String {
    let text = tllmprof_symbols::demangle(name.as_bytes()).unwrap_or_else(|| name.to_owned());
    let end = text
        .char_indices()
        .nth(MAX_NAME_LENGTH)
        .map_or(text.len(), |(end, _)| end);
    text[..end].to_owned()
}

/// Returns a full name without parameters, return type and namespaces. Template arguments stay, because only they
/// distinguish many kernels.
pub fn short(name: &str) -> String {
    let mut depth = 0_usize;
    let (mut start, mut end) = (0, name.len());
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' | b'{' => depth += 1,
            b'>' | b')' | b'}' => depth = depth.saturating_sub(1),
            b'(' if depth == 0 && is_parameters(&name[start..at], &name[at..]) => {
                end = at;
                break;
            }
            b'(' => depth += 1,
            b' ' | b':' if depth == 0 => start = at + 1,
            _ => (),
        }
    }
    match &name[start..end] {
        "" => name.to_owned(),
        short => short.to_owned(),
    }
}

/// Returns a full name without parameters, return type and template arguments: the namespaces and the kernel's own
/// name.
pub fn path(name: &str) -> String {
    let (mut depth, mut start) = (0_usize, 0);
    let mut path = String::new();
    for (at, character) in name.char_indices() {
        match character {
            '<' | '{' => depth += 1,
            '>' | ')' | '}' => depth = depth.saturating_sub(1),
            '(' if depth == 0 && is_parameters(&name[start..at], &name[at..]) => break,
            '(' => depth += 1,
            ' ' if depth == 0 => {
                start = at + 1;
                path.clear();
            }
            _ if depth == 0 => path.push(character),
            _ => (),
        }
    }
    path
}

/// Returns true if a bracket opens the parameters, and is not part of a name such as `(anonymous namespace)`.
fn is_parameters(before: &str, from: &str) -> bool {
    !from.starts_with("(anonymous") && !before.is_empty() && !before.ends_with("operator")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mangled_names_are_read() {
        let mangled = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEE\
                       St5arrayIPcLm1EEEEviT0_T1_";
        let name = full(mangled);
        assert!(
            name.starts_with(
                "at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>"
            ),
            "{name}"
        );
        assert!(short(&name).starts_with("vectorized_elementwise_kernel<4, at::native::Fill"));
        assert_eq!(full("triton_poi_fused_add_0"), "triton_poi_fused_add_0");
        assert_eq!(full(&"x".repeat(5000)).len(), MAX_NAME_LENGTH);
    }

    #[test]
    fn short_names_say_which_kernel_it_is() {
        for (name, text) in [
            ("void ns::add<float>(float*, int)", "add<float>"),
            ("ns::(anonymous namespace)::add(int)", "add"),
            ("(anonymous namespace)::k<(Kind)3>(int)", "k<(Kind)3>"),
            ("void f::operator()(int) const", "operator()"),
            ("f(int)::{lambda(int)#1}::operator()(int)", "f"),
            ("a<b<c>::d>::e<f>", "e<f>"),
            ("nvjet_sm90_tst_64x8", "nvjet_sm90_tst_64x8"),
            ("", ""),
            ("odd(", "odd"),
            ("x::", "x::"),
            ("ä::ö(ü)", "ö"),
            (">>)(<", ">>)"),
        ] {
            assert_eq!(short(name), text, "{name}");
        }
    }

    #[test]
    fn paths_say_where_a_kernel_is() {
        for (name, text) in [
            ("void ns::add<float>(float*, int)", "ns::add"),
            ("void a::b<(a::Kind)1, 2>::c<d>(a::P<d>)", "a::b::c"),
            ("void (anonymous namespace)::k<3>(int)", "::k"),
            ("nvjet_sm90_tst_64x8", "nvjet_sm90_tst_64x8"),
            ("ä<ö>(ü)", "ä"),
            ("", ""),
        ] {
            assert_eq!(path(name), text, "{name}");
        }
    }
}
