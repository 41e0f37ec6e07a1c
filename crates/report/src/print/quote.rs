//! Quoting of words for shells.

/// Returns `text` as one word for a POSIX shell. The word is quoted only if `text` has special
/// characters.
pub fn word(text: &[u8]) -> Vec<u8> {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_-./:,=+@%".contains(b);
    if !text.is_empty() && text.iter().all(plain) {
        text.to_vec()
    } else {
        quoted(text)
    }
}

/// Returns `text` in single quotes for a POSIX shell.
pub fn quoted(text: &[u8]) -> Vec<u8> {
    let mut out = vec![b'\''];
    for &byte in text {
        match byte {
            b'\'' => out.extend_from_slice(b"'\\''"),
            _ => out.push(byte),
        }
    }
    out.push(b'\'');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_needed() {
        assert_eq!(word(b"A=2-3,7"), b"A=2-3,7");
        assert_eq!(word(b""), b"''");
        assert_eq!(word(b"iteration {n}"), b"'iteration {n}'");
        assert_eq!(word(b"it's $HOME"), b"'it'\\''s $HOME'");
        assert_eq!(word(b"a\xff"), b"'a\xff'");
    }
}
