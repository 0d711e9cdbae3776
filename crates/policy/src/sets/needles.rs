//! Texts of which one must be in every path that a set matches. They alone rule out most sets for
//! most paths.
//!
//! Owns this quick check: one pass over the path for any number of texts. Must not know patterns.

use memchr::memmem::Finder;

/// The number of distinct byte pairs, as bits.
const BITS: usize = 4096;

/// The texts, prepared for the search.
#[derive(Debug)]
pub(super) struct Needles {
    /// For each text one pair of its bytes, by [`bit`].
    pairs: Box<[u64; BITS / 64]>,
    finders: Vec<Finder<'static>>,
    /// Whether a text is too short to have a pair.
    short: bool,
}

impl Needles {
    pub(super) fn new(texts: &[String]) -> Self {
        let mut pairs = Box::new([0; BITS / 64]);
        for text in texts {
            let all = text.as_bytes().windows(2);
            if let Some(rare) = all.min_by_key(|pair| common(pair[0]) + common(pair[1])) {
                let bit = bit(rare[0], rare[1]);
                pairs[bit / 64] |= 1 << (bit % 64);
            }
        }
        Self {
            pairs,
            finders: texts
                .iter()
                .map(|text| Finder::new(text).into_owned())
                .collect(),
            short: texts.iter().any(|text| text.len() < 2),
        }
    }

    /// Whether any of the texts is in a path.
    pub(super) fn any(&self, path: &[u8]) -> bool {
        let may = self.short
            || path.windows(2).any(|pair| {
                let bit = bit(pair[0], pair[1]);
                self.pairs[bit / 64] & 1 << (bit % 64) != 0
            });
        may && self
            .finders
            .iter()
            .any(|finder| finder.find(path).is_some())
    }
}

const fn bit(first: u8, second: u8) -> usize {
    (first as usize * 67 + second as usize) % BITS
}

/// How common a byte is in paths, approximately.
fn common(byte: u8) -> usize {
    const ORDER: &[u8] = b"zqjxZ_kwvybfghpmud-.lcsnoirate/";
    ORDER.iter().position(|&item| item == byte).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_wherever_it_stands() {
        let texts = [".env", "id_rsa", ".pem", "shadow"].map(str::to_owned);
        let needles = Needles::new(&texts);
        for text in &texts {
            for path in [
                text.clone(),
                format!("/a/{text}"),
                format!("{text}/b"),
                format!("é{text}é"),
            ] {
                assert!(needles.any(path.as_bytes()), "{path}");
            }
        }
        for path in ["", "e", "/workspace/src/main.rs", "/env", "id-rsa", "pem"] {
            assert!(!needles.any(path.as_bytes()), "{path}");
        }
        assert!(Needles::new(&["x".to_owned()]).any(b"ax"));
        assert!(!Needles::new(&["x".to_owned()]).any(b"ab"));
        assert!(!Needles::new(&[]).any(b"ab"));
    }
}
