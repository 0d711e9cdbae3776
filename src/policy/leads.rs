//! Where the paths in a request lead, for people who decide about it.
//!
//! Shows what a reader can be sure of: a relative path only where nothing in the text changes the
//! directory. Must not judge.

use super::path::{Place, Walker};
use super::request::Part;
use crate::model::Foreign;

/// A path of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Led {
    /// As the request has it.
    pub word: Foreign,
    /// Where it leads, links followed, as the agent would name it.
    pub to: Foreign,
    /// Whether that is in the workspace.
    pub inside: bool,
}

/// Programs after which a relative path starts elsewhere, and the flags that say the same.
const MOVES: &[&str] = &["cd", "pushd", "popd", "chdir"];
const MOVING_FLAGS: &[&str] = &["-C", "--directory", "--chdir"];

/// The words of these parts that are written as paths, and where they lead; each once. The walk is
/// bounded as one decision's is.
#[must_use]
pub fn leads(parts: &[Part], at: &Place<'_>) -> Vec<Led> {
    let walker = Walker::new(*at);
    let moves = parts.iter().flat_map(|part| &part.words).any(|word| {
        let word = word.raw();
        MOVES.contains(&word) || MOVING_FLAGS.iter().any(|flag| word.starts_with(flag))
    });
    let mut found: Vec<Led> = Vec::new();
    for word in parts.iter().flat_map(|part| &part.words) {
        let text = word.raw();
        let text = match text.split_once('=') {
            Some((name, value)) if name.starts_with('-') => value,
            _ => text,
        };
        let Some((base, path)) = path(text, at, moves) else {
            continue;
        };
        if found.iter().any(|led| led.word.raw() == text) {
            continue;
        }
        let end = walker.walk(base, &path);
        found.push(Led {
            word: Foreign::new(text),
            inside: !end.left && walker.inside(&end.path),
            to: Foreign::new(end.path),
        });
    }
    found
}

/// The directory that a word's path starts at, and the path; `None` if it is none, or cannot be told.
fn path<'a>(text: &str, at: &Place<'a>, moves: bool) -> Option<(&'a str, String)> {
    if let Some(rest) = text.strip_prefix("~/") {
        return Some((at.home, format!("{}/{rest}", at.home)));
    }
    let is_url = text.contains("://");
    if !text.contains('/') || is_url || text.contains(['*', '?', '$', '`', '\n']) {
        return None;
    }
    if text.starts_with('/') {
        return Some((at.workspace, text.to_owned()));
    }
    let base = at.cwd.filter(|_| !moves)?;
    Some((base, text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Decision;
    use crate::policy::NoLinks;

    fn place() -> Place<'static> {
        Place {
            workspace: "/workspace",
            home: "/home/agent",
            cwd: Some("/workspace"),
            resolver: &NoLinks,
        }
    }

    fn part(words: &[&str]) -> Part {
        Part {
            words: words.iter().map(|word| Foreign::new(*word)).collect(),
            decision: Decision::Ask,
            rules: Vec::new(),
        }
    }

    fn shown(parts: &[Part]) -> Vec<(String, String, bool)> {
        let led = leads(parts, &place()).into_iter();
        led.map(|led| {
            let text = |of: &Foreign| of.raw().to_owned();
            (text(&led.word), text(&led.to), led.inside)
        })
        .collect()
    }

    #[test]
    fn paths_are_led_and_other_words_left_out() {
        let own = |a: &str, b: &str, inside| (a.to_owned(), b.to_owned(), inside);
        let words = part(&[
            "cp",
            "-r",
            "src/../a/b",
            "--to=/etc/x",
            "~/y",
            "plain",
            "https://a/b",
            "a/*",
            "/etc/x",
        ]);
        assert_eq!(
            shown(&[words]),
            [
                own("src/../a/b", "/workspace/a/b", true),
                own("/etc/x", "/etc/x", false),
                own("~/y", "/home/agent/y", false),
            ]
        );
    }

    #[test]
    fn a_relative_path_is_not_led_where_the_directory_changes() {
        let parts = [part(&["cd", "sub"]), part(&["rm", "a/b", "/workspace/c"])];
        let led = shown(&parts);
        assert_eq!(led.len(), 1, "{led:?}");
        assert_eq!(led[0].1, "/workspace/c");
    }
}
