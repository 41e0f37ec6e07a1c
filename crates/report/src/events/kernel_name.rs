//! Converts the names of kernels, which are usually mangled in records, to forms for display and for comparison.

/// Maximum length of a demangled name in characters. The limit is needed because a short mangled name can expand to an
/// enormous name.
const MAX_NAME_LENGTH: usize = 4096;

/// Returns a kernel's full name, demangled if `name` is mangled.
pub fn full(name: &str) -> String {
    let text = tllmprof_symbols::demangle(name.as_bytes()).unwrap_or_else(|| name.to_owned());
    let end = text
        .char_indices()
        .nth(MAX_NAME_LENGTH)
        .map_or(text.len(), |(end, _)| end);
    text[..end].to_owned()
}

/// Returns a kernel's name without parameters, return type and namespaces. Template arguments are
/// kept, because many kernels differ only in them.
pub fn short(name: &str) -> String {
    let mut depth = 0_usize;
    // A name without parameters has no return type, so its spaces are part of the name: such a name
    // begins at `whole`. A name with parameters begins at `start`, after the last space.
    let (mut start, mut end, mut whole) = (0, name.len(), 0);
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' | b'{' => depth += 1,
            b'>' | b')' | b'}' => depth = depth.saturating_sub(1),
            b'(' if depth == 0 && is_parameters(&name[start..at], &name[at..]) => {
                end = at;
                break;
            }
            b'(' => depth += 1,
            b':' if depth == 0 => (start, whole) = (at + 1, at + 1),
            b' ' if depth == 0 => start = at + 1,
            _ => (),
        }
    }
    if end == name.len() {
        start = whole;
    }
    match &name[start..end] {
        "" => name.to_owned(),
        short => short.to_owned(),
    }
}

/// Returns a kernel's namespaces and name, without parameters, return type and template arguments.
pub(crate) fn path(name: &str) -> String {
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

/// Returns a form of a kernel's full name that is the same for names from different profilers.
/// Their demanglers write constants, lambdas, anonymous namespaces, parameters and return types in
/// different ways.
pub(crate) fn comparable(name: &str) -> String {
    let name = name.replace("(anonymous namespace)", "@");
    let name = name.replace("<unnamed>", "@").replace("[lambda", "{lambda");
    let mut words = words(&name).peekable();
    let mut found = String::new();
    while let Some(word) = words.next() {
        match word {
            "void" | "const" | ")" => (),
            // After `&`, the bracket belongs to the address of a function, as in `&(f<int>(int))`. So skip only the
            // bracket.
            "(" if found.ends_with('&') => (),
            // In other places, the bracket opens the parameters, the type of a constant, or the number of a lambda, as
            // in `(instance 3)`.
            "(" => {
                let inside = group(&mut words);
                let instance = inside.strip_prefix("instance");
                let number = words.peek().copied().filter(|next| is_number(next));
                if let Some(instance) = instance {
                    found = format!("{found}#{instance}");
                } else if found.ends_with("{lambda") {
                    found += &inside;
                } else if let ("bool", Some(number @ ("0" | "1"))) = (&*inside, number) {
                    words.next();
                    found += if number == "1" { "true" } else { "false" };
                }
            }
            "]" => found.push('}'),
            // If the last template arguments are an empty pack, a comma is left before the `>`.
            ">" => found = format!("{}>", found.trim_end_matches(',')),
            number if is_number(number) => found += number.trim_end_matches(['u', 'l']),
            word => found += word,
        }
    }
    found
}

/// Splits a name into words (letters, digits and `_`) and other characters, which are returned one by one. Spaces are
/// dropped.
fn words(name: &str) -> impl Iterator<Item = &str> {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    let mut rest = name;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let length = match rest.find(|character| !is_part(character)) {
            Some(0) => first.len_utf8(),
            Some(length) => length,
            None => rest.len(),
        };
        let (word, after) = rest.split_at(length);
        rest = after;
        Some(word)
    })
}

/// Takes words up to the `)` that closes the group whose `(` was the last word taken. Returns the words inside the
/// group as one text, without `const` and `void`.
fn group<'a>(words: &mut impl Iterator<Item = &'a str>) -> String {
    let mut depth = 1;
    let mut inside = String::new();
    for word in words {
        match word {
            "(" => depth += 1,
            ")" => depth -= 1,
            _ => (),
        }
        match word {
            _ if depth == 0 => break,
            "const" | "void" => (),
            word => inside += word,
        }
    }
    inside
}

fn is_number(word: &str) -> bool {
    word.starts_with(|character: char| character.is_ascii_digit())
}

/// Returns true if the bracket at the start of `from` opens the parameters, and is not part of a
/// name such as `(anonymous namespace)`. `before` is the text before the bracket.
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
            ("CUDA graph 5", "CUDA graph 5"),
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
    fn names_of_other_demanglers_are_the_same() {
        let mangled = "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy_kernel_\
                       cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE10_clEvEUlN3c108BFloat16EE_EEvS4_RKT_EUliE_EEviT1_";
        let key = comparable(&full(mangled));
        for by_another in [
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda\
             (at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)\
             #1}>(at::TensorIteratorBase&, at::native::Copy const&)::{lambda(int)#1}>(int, at::native::Loop)",
            "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<at::native::direct_copy_\
             kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 12)]::\
             operator ()() const::[lambda(c10::BFloat16) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) \
             (instance 1)]>(int, T3)",
        ] {
            assert_eq!(comparable(by_another), key);
        }
        for (one, other) in [
            (
                "k<std::array<char*, 3ul>, false>(int)",
                "void k<std::array<char *, (unsigned long)3>, (bool)0>(T1)",
            ),
            ("(anonymous namespace)::k(int)", "<unnamed>::k(int)"),
            ("k<float, >(int)", "k<float>(int)"),
            ("k<&(f<int>(int)), 1u>", "k<&f<int>(int), (unsigned int)1>"),
        ] {
            assert_eq!(comparable(one), comparable(other));
        }
        for (one, other) in [
            ("k<1>", "k<2>"),
            ("k<f::{lambda(int)#1}>", "k<f::{lambda(long)#1}>"),
            ("k<true>", "k<false>"),
        ] {
            assert_ne!(comparable(one), comparable(other));
        }
        for odd in ["", "(", "k<(", "{lambda", "k)(>"] {
            comparable(odd);
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
