//! How a file name appears to people and to other systems: without look-alike letters, another
//! case, or a trailing dot.
//!
//! Owns a small table of letters that look like ASCII ones. A name that differs from its skeleton
//! is evaluated under both, so that `.GIT`, `.gіt` (a Cyrillic letter), `.git.` and `git~1` cannot
//! bypass a rule about `.git`. Must not know rules.

/// Letters that look like, or fold to, an ASCII one.
const LOOKALIKES: &[(&str, char)] = &[
    ("аɑαà", 'a'),
    ("ьƄ", 'b'),
    ("сϲᴄⅽ", 'c'),
    ("ԁⅾ", 'd'),
    ("еҽ℮", 'e'),
    ("ſʃ", 's'),
    ("ѕꜱ", 's'),
    ("ɡց", 'g'),
    ("һհ", 'h'),
    ("іıɩιΙІǀ", 'i'),
    ("јϳ", 'j'),
    ("кκ", 'k'),
    ("ⅼӏ", 'l'),
    ("ⅿ", 'm'),
    ("ոո", 'n'),
    ("оοօ", 'o'),
    ("рρ", 'p'),
    ("ԛ", 'q'),
    ("гᴦ", 'r'),
    ("тτ", 't'),
    ("υս", 'u'),
    ("νѵⅴ", 'v'),
    ("ԝѡ", 'w'),
    ("хχⅹ", 'x'),
    ("уγү", 'y'),
    ("ᴢ", 'z'),
    ("․‧·", '.'),
    ("‐‑‒–—−", '-'),
    ("∕⁄", '/'),
];

/// The skeleton of a path: component by component, in lower case.
pub(super) fn path_skeleton(path: &str) -> String {
    let components: Vec<String> = path.split('/').map(component).collect();
    components.join("/")
}

fn component(name: &str) -> String {
    let plain: String = name.chars().filter_map(ascii_lookalike).collect();
    // Other systems cut a name at these characters, and give long names a short alias.
    let plain = plain.split(':').next().unwrap_or_default();
    let trimmed = plain.trim_end_matches(['.', ' ']);
    let trimmed = if trimmed.is_empty() { plain } else { trimmed };
    match trimmed.split_once('~') {
        Some((short, number))
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            format!(".{}", short.trim_start_matches('.'))
        }
        _ => trimmed.to_owned(),
    }
}

/// The ASCII letter that a character looks like; `None` if it is invisible.
fn ascii_lookalike(c: char) -> Option<char> {
    if c.is_ascii() {
        return Some(c.to_ascii_lowercase());
    }
    // Combining marks, joiners, variation selectors, soft hyphens, direction marks.
    let is_mark = matches!(c,
        '\u{300}'..='\u{36f}' | '\u{1ab0}'..='\u{1aff}' | '\u{1dc0}'..='\u{1dff}' | '\u{20d0}'..='\u{20ff}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{fe20}'..='\u{fe2f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{ad}' | '\u{feff}' | '\u{61c}' | '\u{180e}');
    if is_mark {
        return None;
    }
    // Full-width forms of ASCII.
    if let Some(ascii) = u32::from(c).checked_sub(0xfee0).and_then(char::from_u32)
        && ascii.is_ascii_graphic()
    {
        return Some(ascii.to_ascii_lowercase());
    }
    // Some have an ASCII lower case (K, the Kelvin sign), or one with a combining mark (İ).
    let low = c.to_lowercase().next().unwrap_or(c);
    if low.is_ascii() {
        return Some(low);
    }
    let alike = LOOKALIKES
        .iter()
        .find(|(letters, _)| letters.contains(c) || letters.contains(low));
    Some(alike.map_or(low, |(_, ascii)| *ascii))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_disguise_of_a_name_has_its_skeleton() {
        for disguise in [
            ".git",
            ".GIT",
            ".Git",
            ".gіt",
            ".gıt",
            ".gİt",
            ".ｇｉｔ",
            ".g\u{200b}it",
            ".gi\u{301}t",
            ".git.",
            ".git ",
            ".git. .",
            "git~1",
            "GIT~2",
            ".git::$INDEX_ALLOCATION",
            "․git",
        ] {
            assert_eq!(path_skeleton(disguise), ".git", "{disguise:?}");
        }
        assert_eq!(path_skeleton("/workspace/src/.ENV"), "/workspace/src/.env");
        assert_eq!(path_skeleton("/workspace/.еnv"), "/workspace/.env");
    }

    #[test]
    fn other_names_stay_as_they_are() {
        for name in [
            "/workspace/src/main.rs",
            "notes.txt",
            "a-b_c.d",
            "日本語.md",
            "..",
            "x~y",
            "",
        ] {
            assert_eq!(path_skeleton(name), name);
        }
    }
}
