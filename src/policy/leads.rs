//! Where the paths in a request lead, for people who decide about it.
//!
//! Of words that are written as paths it shows what a reader can be sure of: a relative one only where
//! nothing in the text changes the directory. Of what is opened for certain (the files of file tools,
//! redirects) and of bare names that are links by now it shows every place, because whoever compares
//! the places later must notice that one has become a link. Must not judge.

use super::command::{Command, Direction, Join, Word};
use super::cwd::{self, Track};
use super::fact::{self, Cwd, Whereabouts};
use super::path::{Place, Walker};
use super::request::{Part, Request, Target};
use super::{arguments, grammar, scan, spelling, strict, wrap};
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

/// Scripts in scripts that are looked into.
const SCRIPTS: usize = 4;

/// The words of these parts that are written as paths, what the request surely opens, and the bare
/// names in it that are links, with where they lead; each once. The walk is bounded as one decision's
/// is.
#[must_use]
pub fn leads(request: Option<&Request>, parts: &[Part], at: &Place<'_>) -> Vec<Led> {
    let walker = Walker::new(*at);
    let mut found = written(&walker, parts, at);
    match request {
        Some(Request::Shell { command, cwd }) => {
            let start = cwd::begin(at, cwd.as_deref());
            script(&walker, command, start.as_deref(), 0, &mut found);
        }
        Some(request) => {
            let bases = cwd::start(&walker, at.cwd);
            for path in files(request) {
                for reading in spelling::readings(path, false) {
                    let word = Word {
                        tilde: cwd::is_home(&reading),
                        text: reading,
                        ..Word::default()
                    };
                    lead(&walker, &bases, &word, 0, &mut found);
                }
            }
        }
        None => {}
    }
    found
}

/// The paths of a request for files.
fn files(request: &Request) -> Vec<&str> {
    match request {
        Request::Read { targets } => targets
            .iter()
            .filter_map(|target| match target {
                Target::Path(path) => Some(path.as_str()),
                _ => None,
            })
            .collect(),
        Request::Write { paths } | Request::Edit { paths } | Request::Delete { paths } => {
            paths.iter().map(String::as_str).collect()
        }
        Request::Move { from, to } => from.iter().chain(to).map(String::as_str).collect(),
        _ => Vec::new(),
    }
}

/// What a command text opens by redirects, and its names that are links.
fn script(
    walker: &Walker<'_>,
    text: &str,
    start: Option<&str>,
    depth: usize,
    found: &mut Vec<Led>,
) {
    let (commands, texts) = if let Ok(commands) = strict::read(text) {
        (commands, Vec::new())
    } else {
        let scan = scan::scan(text);
        (scan.commands, scan.texts)
    };
    let mut track = Track::new(walker, start);
    for (place, command) in commands.iter().enumerate() {
        let next = commands.get(place + 1);
        let piped = command.join == Join::Pipe || next.is_some_and(|c| c.join == Join::Pipe);
        let bases = track.enter(command, piped);
        opened(walker, command, &bases, found);
        if depth < SCRIPTS {
            for inner in wrap::behind(command, &texts).scripts {
                let from = bases.first().map(|base| base.physical.clone());
                script(walker, &inner, from.as_deref(), depth + 1, found);
            }
        }
    }
}

fn opened(walker: &Walker<'_>, command: &Command, bases: &[Cwd], found: &mut Vec<Led>) {
    for redirect in &command.redirects {
        if redirect.direction != Direction::Duplicate && redirect.target.text != "/dev/null" {
            lead(walker, bases, &redirect.target, 0, found);
        }
    }
    let program = command.words.first().map(|word| word.text.as_str());
    let known = program.and_then(|name| grammar::of(super::command::base_name(name)));
    for candidate in arguments::parse(known, &command.words, 0).candidates {
        let name = candidate.text();
        if name.contains('/') || candidate.word.live() || matches!(name, "" | "." | "..") {
            continue;
        }
        let is_link = |base: &Cwd| {
            let root = base.physical.trim_end_matches('/');
            walker.is_link(&format!("{root}/{name}"))
        };
        if bases.iter().any(is_link) {
            lead(walker, bases, candidate.word, candidate.from, found);
        }
    }
}

/// Adds where a text leads from each of these directories; nothing if that cannot be told.
fn lead(walker: &Walker<'_>, bases: &[Cwd], word: &Word, from: usize, found: &mut Vec<Led>) {
    let mut facts = Vec::new();
    fact::facts(walker, bases, word, from, &mut facts);
    let text = word.text.get(from..).unwrap_or_default();
    for fact in facts {
        let led = Led {
            word: Foreign::new(text),
            inside: fact.whereabouts == Whereabouts::Inside,
            to: Foreign::new(fact.leads),
        };
        if fact.whereabouts != Whereabouts::Dynamic && !found.contains(&led) {
            found.push(led);
        }
    }
}

fn written(walker: &Walker<'_>, parts: &[Part], at: &Place<'_>) -> Vec<Led> {
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
            env: Vec::new(),
            redirects: Vec::new(),
            words: words.iter().map(|word| Foreign::new(*word)).collect(),
            decision: Decision::Ask,
            rules: Vec::new(),
        }
    }

    fn shown(parts: &[Part]) -> Vec<(String, String, bool)> {
        let led = leads(None, parts, &place()).into_iter();
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

    /// `out -> /etc`, `note -> notes.txt`; everything else is a file.
    struct Tree;

    impl crate::policy::Resolver for Tree {
        fn look(&self, path: &str) -> crate::policy::Look {
            match path {
                "/workspace/out" => crate::policy::Look::Link("/etc".to_owned()),
                "/workspace/note" => crate::policy::Look::Link("notes.txt".to_owned()),
                "/workspace/sub" => crate::policy::Look::Directory,
                _ => crate::policy::Look::File,
            }
        }

        fn links(&self, _: &str) -> Option<Vec<String>> {
            None
        }

        fn names(&self, _: &str) -> Option<Vec<String>> {
            None
        }
    }

    #[track_caller]
    fn places(request: &Request, expect: &[(&str, &str, bool)]) {
        let at = Place {
            resolver: &Tree,
            ..place()
        };
        let led = leads(Some(request), &[], &at);
        let got: Vec<_> = led
            .iter()
            .map(|led| (led.word.raw(), led.to.raw(), led.inside))
            .collect();
        assert_eq!(got, expect, "{request:?}");
    }

    #[test]
    fn every_file_of_a_file_tool_is_led_bare_names_too() {
        let paths = || vec!["notes.txt".to_owned(), "out".to_owned()];
        let both = [
            ("notes.txt", "/workspace/notes.txt", true),
            ("out", "/etc", false),
        ];
        places(&Request::Write { paths: paths() }, &both);
        places(&Request::Edit { paths: paths() }, &both);
        places(&Request::Delete { paths: paths() }, &both);
        let targets = paths().into_iter().map(Target::Path).collect();
        places(&Request::Read { targets }, &both);
        let ends = Request::Move {
            from: vec!["a".to_owned()],
            to: vec!["note".to_owned()],
        };
        let moved = [
            ("a", "/workspace/a", true),
            ("note", "/workspace/notes.txt", true),
        ];
        places(&ends, &moved);
    }

    #[test]
    fn redirects_and_bare_names_that_are_links_are_led() {
        let shell = |command: &str| Request::Shell {
            command: command.to_owned(),
            cwd: None,
        };
        let out = ("out", "/etc", false);
        places(&shell("mytool out"), &[out]);
        places(&shell("mytool --to=out"), &[out]);
        places(&shell("mytool build"), &[]);
        places(&shell("sh -c 'mytool out'"), &[out]);
        places(&shell("(mytool out)"), &[out]);
        places(&shell("cd sub && mytool out"), &[]);
        places(&shell("cat a > out"), &[out]);
        places(&shell("cat a > b"), &[("b", "/workspace/b", true)]);
        places(
            &shell("cat < note"),
            &[("note", "/workspace/notes.txt", true)],
        );
        places(&shell("out x"), &[out]);
        places(&shell("cat a 2>/dev/null"), &[]);
        places(&shell("cat a > $X"), &[]);
    }
}
