//! "Did you mean": the known word nearest to one that is not known.
//!
//! Must not know what the words mean.

/// The longest word that is compared, because the cost grows with the square of the length.
const LONGEST: usize = 40;

/// The known word nearest to `word`, if one is near enough to be meant.
pub(super) fn nearest<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    let length = word.chars().count();
    if length > LONGEST {
        return None;
    }
    let word: Vec<char> = word.to_lowercase().chars().collect();
    known
        .into_iter()
        .filter_map(|candidate| {
            let candidate_chars: Vec<char> = candidate.chars().collect();
            let allowed = (length.max(candidate_chars.len()) / 3).max(1);
            let distance = distance(&word, &candidate_chars);
            (distance <= allowed && distance < candidate_chars.len())
                .then_some((distance, candidate))
        })
        .min()
        .map(|(_, candidate)| candidate)
}

/// How many characters must be inserted, removed, replaced or swapped with their neighbour to make
/// one word of the other (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows: [Vec<usize>; 3] = [vec![0; b.len() + 1], (0..=b.len()).collect(), Vec::new()];
    for (i, from) in a.iter().enumerate() {
        let [before, above, _] = &rows;
        let mut row = vec![i + 1; b.len() + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = above[j] + usize::from(from != to);
            let mut best = replaced.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *to && b[j - 1] == *from {
                best = best.min(before[j - 1] + 1);
            }
            row[j + 1] = best;
        }
        rows[2] = row;
        rows.rotate_left(1);
    }
    rows[1][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_word_and_another_word_finds_none() {
        let known = ["size", "command", "workspace", "on_crash", "env"];
        let check = |word: &str, expect: Option<&str>| {
            assert_eq!(nearest(word, known), expect, "{word}");
        };
        check("szie", Some("size"));
        check("sizes", Some("size"));
        check("Size", Some("size"));
        check("comand", Some("command"));
        check("work_space", Some("workspace"));
        check("on-crash", Some("on_crash"));
        check("environment", None);
        check("colour", None);
        check("", None);
        check(&"x".repeat(10_000), None);
    }

    #[test]
    fn distance_counts_single_edits() {
        let check = |a: &str, b: &str, expect: usize| {
            let (a, b): (Vec<_>, Vec<_>) = (a.chars().collect(), b.chars().collect());
            assert_eq!(distance(&a, &b), expect, "{a:?} {b:?}");
            assert_eq!(distance(&b, &a), expect, "{b:?} {a:?}");
        };
        check("", "", 0);
        check("abc", "", 3);
        check("abc", "abc", 0);
        check("abc", "acb", 1);
        check("abc", "axc", 1);
        check("abc", "abcd", 1);
        check("kitten", "sitting", 3);
    }
}
