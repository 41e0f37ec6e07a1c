//! What somebody probably meant.

/// The candidate that differs least from `word`, capitals aside, if it is near at all.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Names are short; what is longer is no slip of the fingers.
    if word.len() > 64 {
        return None;
    }
    let word = word.to_ascii_lowercase();
    let limit = (word.len() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
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
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("abc", ""), 3);
    }
}
