//! Suggests the word that a user meant, for a word that is misspelled.

/// Returns the candidate that differs least from `word`, ignoring case. Returns `None` if each candidate differs from
/// `word` in more than a third of the bytes of `word` (in more than one byte, for a short word).
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Names of variables and options are short, so a word that is longer than this is not a misspelled name.
    if word.len() > 64 {
        return None;
    }
    let limit = (word.len() / 3).max(1);
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let distance = distance(word.as_bytes(), candidate.as_bytes(), limit)?;
            Some((distance, candidate))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the Levenshtein distance of `a` and `b` in bytes, ignoring ASCII case. Returns `None` if the distance
/// exceeds `limit`, or if `b` is longer than 96 bytes (no known name is that long). Does not allocate memory.
pub fn distance(a: &[u8], b: &[u8], limit: usize) -> Option<usize> {
    const LONGEST: usize = 96;
    if a.len().abs_diff(b.len()) > limit || b.len() > LONGEST {
        return None;
    }
    let mut row: [usize; LONGEST + 1] = std::array::from_fn(|index| index);
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        let mut least = row[0];
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(!x.eq_ignore_ascii_case(y));
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
            least = least.min(row[j + 1]);
        }
        // No value in a later row of the distance table is smaller than the smallest value of this row, so the
        // distance certainly exceeds the limit.
        if least > limit {
            return None;
        }
    }
    Some(row[b.len()]).filter(|distance| *distance <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_near_and_leaves_the_far() {
        let names = ["cudaGraphLaunch", "cuGraphLaunch", "cudaLaunchKernel"];
        assert_eq!(nearest("cudagraphlaunch", names), Some("cudaGraphLaunch"));
        assert_eq!(nearest("cudaGraphLunch", names), Some("cudaGraphLaunch"));
        assert_eq!(nearest("GraphLaunch", names), Some("cuGraphLaunch"));
        assert_eq!(nearest("cudaMalloc", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest(&"x".repeat(100_000), names), None);
    }

    #[test]
    fn counts_edits() {
        let distance = |a: &str, b: &str| distance(a.as_bytes(), b.as_bytes(), 3);
        assert_eq!(distance("kitten", "Sitting"), Some(3));
        assert_eq!(distance("", "abc"), Some(3));
        assert_eq!(distance("abc", ""), Some(3));
        assert_eq!(distance("abc", "ABC"), Some(0));
        assert_eq!(distance("kitten", "mittings"), None);
        assert_eq!(distance("abcd", "wxyz"), None);
        assert_eq!(distance(&"x".repeat(100), &"x".repeat(100)), None);
    }
}
