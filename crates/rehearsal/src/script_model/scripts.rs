//! Scripts in a file, for prompts that contain none, such as those that a supervisor makes from a
//! plan's items.
//!
//! Pure, except for reading the file. Must not know conversations.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::script::{self, Line};

/// The maximum size of such a file, in bytes.
const MOST_BYTES: u64 = 1 << 20;

/// The first word of a section.
const WHEN: &str = "WHEN:";

/// The sections of a file, each with the text that selects it.
#[derive(Debug, Default)]
pub(super) struct Scripts(Vec<(String, Vec<Line>)>);

impl Scripts {
    /// Reads a file.
    ///
    /// # Errors
    /// The error of the system, or the first mistake in the file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut text = String::new();
        let file = File::open(path)?;
        file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MOST_BYTES {
            let why = format!("it has more than {MOST_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Self::parse(&text).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut sections: Vec<(String, String)> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            if let Some(when) = line.strip_prefix(WHEN) {
                let when = when.trim();
                if when.is_empty() || sections.iter().any(|(known, _)| known == when) {
                    return Err(format!(
                        "line {}: {WHEN} needs a text that no other section has",
                        at + 1
                    ));
                }
                sections.push((when.to_owned(), String::new()));
            } else if let Some((_, steps)) = sections.last_mut() {
                steps.push_str(line);
                steps.push('\n');
            } else if !line.trim().is_empty() {
                let why = format!("line {}: it comes before the first {WHEN}", at + 1);
                return Err(why);
            }
        }
        let sections = sections.into_iter().map(|(when, steps)| {
            let steps = script::parse(&steps);
            if steps.is_empty() {
                return Err(format!("{WHEN} {when} has no step"));
            }
            Ok((when, steps))
        });
        let sections: Vec<_> = sections.collect::<Result<_, _>>()?;
        if sections.is_empty() {
            return Err(format!("it has no {WHEN} section"));
        }
        Ok(Self(sections))
    }

    /// The steps for a prompt: those of the section whose text occurs first in it.
    pub(super) fn find(&self, prompt: &str) -> Option<&[Line]> {
        let found = self.0.iter().filter_map(|(when, steps)| {
            let at = prompt.find(when.as_str())?;
            Some((at, steps))
        });
        found.min_by_key(|(at, _)| *at).map(|(_, steps)| &**steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_found_whose_text_stands_first() {
        let text = "\nWHEN: the roof\nRUN: a\nSAY b\nWHEN: the floor\nSAY: c\n";
        let scripts = Scripts::parse(text).expect("sections");
        let roof = [Line::Run("a".into()), Line::Say("b".into())];
        assert_eq!(scripts.find("Paint the roof, please."), Some(&roof[..]));
        let floor = [Line::Say("c".into())];
        let both = "Do: the floor\nOpen: the roof, the floor";
        assert_eq!(scripts.find(both), Some(&floor[..]));
        assert_eq!(scripts.find("the wall"), None);
        assert_eq!(Scripts::default().find("the roof"), None);
    }

    #[test]
    fn a_file_that_cannot_be_meant_is_refused() {
        for (text, why) in [
            ("", "it has no WHEN: section"),
            ("SAY a\nWHEN: b\nSAY c", "line 1: it comes before"),
            ("WHEN:\nSAY a", "line 1: WHEN: needs"),
            ("WHEN: a\nSAY a\nWHEN: a\nSAY b", "line 3: WHEN: needs"),
            ("WHEN: a\nhello", "WHEN: a has no step"),
        ] {
            let error = Scripts::parse(text).expect_err(text);
            assert!(error.starts_with(why), "{error}");
        }
    }
}
