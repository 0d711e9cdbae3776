//! A pool's command line: its program, its placeholders and their values.
//!
//! Must not know TOML or processes.

use super::types::Pool;

/// The placeholders that a command may contain.
pub(super) const PLACEHOLDERS: &[&str] = &["session", "workspace", "model", "mode"];

/// The values of the placeholders for one child.
#[derive(Debug, Clone, Copy)]
pub struct PlaceholderValues<'a> {
    /// The session's id.
    pub session: &'a str,
    /// The workspace as the child sees it.
    pub workspace: &'a str,
    /// The session's own model, instead of the pool's.
    pub model: Option<&'a str>,
}

impl Pool {
    /// The command with its placeholders filled. Every word stays one word: a value is never split,
    /// and a placeholder inside a value is never expanded.
    #[must_use]
    pub fn argv(&self, fill: PlaceholderValues<'_>) -> Vec<String> {
        let found = self.program.iter().flat_map(|program| program.argv.iter());
        let skipped = usize::from(self.program.is_some());
        let rest = self
            .command
            .iter()
            .skip(skipped)
            .map(|word| self.fill_placeholders(word, fill));
        found.cloned().chain(rest).collect()
    }

    /// The command that loads an earlier session again: [`Pool::argv`] and the pool's
    /// `resume_args`, in which `{session}` is the agent's own id of that session.
    #[must_use]
    pub fn resume_argv(&self, fill: PlaceholderValues<'_>, agent_session: &str) -> Vec<String> {
        let theirs = PlaceholderValues {
            session: agent_session,
            ..fill
        };
        let added = self
            .resume_args
            .iter()
            .map(|word| self.fill_placeholders(word, theirs));
        self.argv(fill).into_iter().chain(added).collect()
    }

    /// Whether the command's program is this very binary.
    #[must_use]
    pub fn is_own_program(&self) -> bool {
        self.command.first().is_some_and(|word| word == OWN_PROGRAM)
    }

    /// Whether its command has the placeholder `{model}`.
    #[must_use]
    pub fn names_model(&self) -> bool {
        let mut pieces = self
            .command
            .iter()
            .flat_map(|word| split_placeholders(word));
        pieces.any(|piece| matches!(piece, Piece::Placeholder("model", _)))
    }

    fn fill_placeholders(&self, word: &str, fill: PlaceholderValues<'_>) -> String {
        let mut out = String::with_capacity(word.len());
        for piece in split_placeholders(word) {
            match piece {
                Piece::Literal(text) => out.push_str(text),
                Piece::Placeholder(name, text) => out.push_str(match name {
                    "session" => fill.session,
                    "workspace" => fill.workspace,
                    "model" => fill.model.or(self.model.as_deref()).unwrap_or_default(),
                    "mode" => self.mode.as_deref().unwrap_or_default(),
                    _ => text,
                }),
            }
        }
        out
    }
}

/// The first word of a command that means this very binary.
pub const OWN_PROGRAM: &str = "marshal";

/// Whether the command is the built-in script agent.
pub(super) fn is_script_agent(command: &[String]) -> bool {
    matches!(command, [program, verb, ..] if program == OWN_PROGRAM && verb == "script-agent")
}

/// A part of one word of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'w> {
    /// Literal text.
    Literal(&'w str),
    /// `{name}`: the name, and the whole with its braces.
    Placeholder(&'w str, &'w str),
}

/// Splits a word at what looks like a placeholder: `{name}`, lower-case letters and `_`. `${name}`
/// is a shell's own and stays literal.
pub(super) fn split_placeholders(word: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = word;
    let mut from = 0;
    while let Some(open) = rest[from..].find('{').map(|at| from + at) {
        let inside = &rest[open + 1..];
        let name_len = inside
            .bytes()
            .take_while(|b| b.is_ascii_lowercase() || *b == b'_')
            .count();
        let closed = inside.as_bytes().get(name_len) == Some(&b'}');
        if name_len == 0 || !closed || rest[..open].ends_with('$') {
            from = open + 1;
            continue;
        }
        let end = open + name_len + 2;
        if open > 0 {
            pieces.push(Piece::Literal(&rest[..open]));
        }
        pieces.push(Piece::Placeholder(&inside[..name_len], &rest[open..end]));
        rest = &rest[end..];
        from = 0;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Literal(rest));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_falls_into_plain_text_and_placeholders() {
        use Piece::{Literal, Placeholder};
        let check = |word: &str, expect: &[Piece<'_>]| {
            assert_eq!(split_placeholders(word), expect, "{word}");
        };
        check("", &[]);
        check("plain", &[Literal("plain")]);
        check("{model}", &[Placeholder("model", "{model}")]);
        check(
            "--w={workspace}/x",
            &[
                Literal("--w="),
                Placeholder("workspace", "{workspace}"),
                Literal("/x"),
            ],
        );
        check(
            "{a}{b}",
            &[Placeholder("a", "{a}"), Placeholder("b", "{b}")],
        );
        check("${x}", &[Literal("${x}")]);
        check("{\"a\":1}", &[Literal("{\"a\":1}")]);
        check("{}", &[Literal("{}")]);
        check("{{mode}", &[Literal("{"), Placeholder("mode", "{mode}")]);
        check("{mode", &[Literal("{mode")]);
        check(
            "é{mode}é",
            &[Literal("é"), Placeholder("mode", "{mode}"), Literal("é")],
        );
    }
}
