//! Where the paths in a request lead, for the people who approve it.
//!
//! For words that are written as paths, this shows only what is certain: a relative path only where
//! nothing in the text changes the directory. For paths that are opened for certain (file tools,
//! redirects), and for bare names that are links now, it shows every place. Whoever compares the
//! places later must notice when one has become a link. Must not evaluate.

use super::command::{Command, Direction, Join, Word};
use super::cwd::{self, CwdTracker};
use super::fact::{self, Cwd, PathLocation};
use super::path::{FsContext, Walker};
use super::request::{Part, ReadTarget, Request};
use super::{arguments, grammar, scan, spelling, strict, wrappers};
use marshal_model::UntrustedText;

/// A path of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPath {
    /// The path as the request has it.
    pub word: UntrustedText,
    /// Where it leads, with links followed, as the agent would name it.
    pub to: UntrustedText,
    /// Whether that place is in the workspace.
    pub inside: bool,
}

/// Programs after which a relative path starts elsewhere; below them the flags with the same
/// effect.
const CWD_PROGRAMS: &[&str] = &["cd", "pushd", "popd", "chdir"];
const CWD_FLAGS: &[&str] = &["-C", "--directory", "--chdir"];

/// How many nested scripts are searched.
const SCRIPTS: usize = 4;

/// The words of these parts that are written as paths, the paths that the request certainly opens,
/// and the bare names in it that are links. Each appears once, with where it leads. The walk has
/// the bounds of one decision.
#[must_use]
pub fn resolve_paths(
    request: Option<&Request>,
    parts: &[Part],
    at: &FsContext<'_>,
) -> Vec<ResolvedPath> {
    let walker = Walker::new(*at);
    let mut found = resolve_written(&walker, parts, at);
    match request {
        Some(Request::Shell { command, cwd }) => {
            let start = cwd::start_directory(at, cwd.as_deref());
            resolve_script(&walker, command, start.as_deref(), 0, &mut found);
        }
        Some(request) => {
            let bases = cwd::resolve_cwd(&walker, at.cwd);
            for path in files(request) {
                for reading in spelling::readings(path, false) {
                    let word = Word {
                        tilde: cwd::starts_with_home(&reading),
                        text: reading,
                        ..Word::default()
                    };
                    resolve_word(&walker, &bases, &word, 0, &mut found);
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
                ReadTarget::Path(path) => Some(path.as_str()),
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

/// The paths that a command text opens by redirects, and its names that are links.
fn resolve_script(
    walker: &Walker<'_>,
    text: &str,
    start: Option<&str>,
    depth: usize,
    found: &mut Vec<ResolvedPath>,
) {
    let (commands, texts) = if let Ok(plain) = strict::parse_plain(text) {
        (plain.commands, plain.texts)
    } else {
        let scan = scan::scan(text);
        (scan.commands, scan.texts)
    };
    let mut track = CwdTracker::new(walker, start);
    for (place, command) in commands.iter().enumerate() {
        let next = commands.get(place + 1);
        let piped = command.join == Join::Pipe || next.is_some_and(|c| c.join == Join::Pipe);
        let bases = track.enter_command(command, piped);
        resolve_opened(walker, command, &bases, found);
        if depth < SCRIPTS {
            for inner in wrappers::find_inner_commands(command, &texts).scripts {
                let from = bases.first().map(|base| base.physical.clone());
                resolve_script(walker, &inner, from.as_deref(), depth + 1, found);
            }
        }
    }
}

fn resolve_opened(
    walker: &Walker<'_>,
    command: &Command,
    bases: &[Cwd],
    found: &mut Vec<ResolvedPath>,
) {
    for redirect in &command.redirects {
        if redirect.direction != Direction::Duplicate && redirect.target.text != "/dev/null" {
            resolve_word(walker, bases, &redirect.target, 0, found);
        }
    }
    let program = command.words.first().map(|word| word.text.as_str());
    let known = program.and_then(|name| grammar::for_program(super::command::base_name(name)));
    for candidate in arguments::parse(known, &command.words, 0).candidates {
        let name = candidate.text();
        if name.contains('/') || candidate.word.is_dynamic() || matches!(name, "" | "." | "..") {
            continue;
        }
        let is_link = |base: &Cwd| {
            let root = base.physical.trim_end_matches('/');
            walker.is_link(&format!("{root}/{name}"))
        };
        if bases.iter().any(is_link) {
            resolve_word(walker, bases, candidate.word, candidate.from, found);
        }
    }
}

/// Adds where a text leads from each of these directories; adds nothing if that is unknown.
fn resolve_word(
    walker: &Walker<'_>,
    bases: &[Cwd],
    word: &Word,
    from: usize,
    found: &mut Vec<ResolvedPath>,
) {
    let mut facts = Vec::new();
    fact::collect_facts(walker, bases, word, from, &mut facts);
    let text = word.text.get(from..).unwrap_or_default();
    for fact in facts {
        let led = ResolvedPath {
            word: UntrustedText::new(text),
            inside: fact.location == PathLocation::Inside,
            to: UntrustedText::new(fact.resolved),
        };
        if fact.location != PathLocation::Dynamic && !found.contains(&led) {
            found.push(led);
        }
    }
}

fn resolve_written(walker: &Walker<'_>, parts: &[Part], at: &FsContext<'_>) -> Vec<ResolvedPath> {
    let moves = parts.iter().flat_map(|part| &part.words).any(|word| {
        let word = word.raw();
        CWD_PROGRAMS.contains(&word) || CWD_FLAGS.iter().any(|flag| word.starts_with(flag))
    });
    let mut found: Vec<ResolvedPath> = Vec::new();
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
        found.push(ResolvedPath {
            word: UntrustedText::new(text),
            inside: !end.escaped && walker.is_inside(&end.path),
            to: UntrustedText::new(end.path),
        });
    }
    found
}

/// The directory at which a word's path starts, and the path; `None` if it is not a path, or
/// unknown.
fn path<'a>(text: &str, at: &FsContext<'a>, moves: bool) -> Option<(&'a str, String)> {
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
    use crate::NoLinks;
    use marshal_model::Decision;

    fn place() -> FsContext<'static> {
        FsContext {
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
            words: words.iter().map(|word| UntrustedText::new(*word)).collect(),
            decision: Decision::Ask,
            rules: Vec::new(),
        }
    }

    fn display_parts(parts: &[Part]) -> Vec<(String, String, bool)> {
        let led = resolve_paths(None, parts, &place()).into_iter();
        led.map(|led| {
            let text = |of: &UntrustedText| of.raw().to_owned();
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
            display_parts(&[words]),
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
        let led = display_parts(&parts);
        assert_eq!(led.len(), 1, "{led:?}");
        assert_eq!(led[0].1, "/workspace/c");
    }

    /// `out -> /etc`, `note -> notes.txt`; everything else is a file.
    struct Tree;

    impl crate::Resolver for Tree {
        fn lookup(&self, path: &str) -> crate::FsEntry {
            match path {
                "/workspace/out" => crate::FsEntry::Link("/etc".to_owned()),
                "/workspace/note" => crate::FsEntry::Link("notes.txt".to_owned()),
                "/workspace/sub" => crate::FsEntry::Directory,
                _ => crate::FsEntry::File,
            }
        }

        fn list_links(&self, _: &str) -> Option<Vec<String>> {
            None
        }

        fn list_names(&self, _: &str) -> Option<Vec<String>> {
            None
        }
    }

    #[track_caller]
    fn assert_places(request: &Request, expect: &[(&str, &str, bool)]) {
        let at = FsContext {
            resolver: &Tree,
            ..place()
        };
        let led = resolve_paths(Some(request), &[], &at);
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
        assert_places(&Request::Write { paths: paths() }, &both);
        assert_places(&Request::Edit { paths: paths() }, &both);
        assert_places(&Request::Delete { paths: paths() }, &both);
        let targets = paths().into_iter().map(ReadTarget::Path).collect();
        assert_places(&Request::Read { targets }, &both);
        let ends = Request::Move {
            from: vec!["a".to_owned()],
            to: vec!["note".to_owned()],
        };
        let moved = [
            ("a", "/workspace/a", true),
            ("note", "/workspace/notes.txt", true),
        ];
        assert_places(&ends, &moved);
    }

    #[test]
    fn redirects_and_bare_names_that_are_links_are_led() {
        let shell = |command: &str| Request::Shell {
            command: command.to_owned(),
            cwd: None,
        };
        let out = ("out", "/etc", false);
        assert_places(&shell("mytool out"), &[out]);
        assert_places(&shell("mytool --to=out"), &[out]);
        assert_places(&shell("mytool build"), &[]);
        assert_places(&shell("sh -c 'mytool out'"), &[out]);
        assert_places(&shell("(mytool out)"), &[out]);
        assert_places(&shell("cd sub && mytool out"), &[]);
        assert_places(&shell("cat a > out"), &[out]);
        assert_places(&shell("cat a > b"), &[("b", "/workspace/b", true)]);
        assert_places(
            &shell("cat < note"),
            &[("note", "/workspace/notes.txt", true)],
        );
        assert_places(&shell("out x"), &[out]);
        assert_places(&shell("cat a 2>/dev/null"), &[]);
        assert_places(&shell("cat a > $X"), &[]);
    }
}
