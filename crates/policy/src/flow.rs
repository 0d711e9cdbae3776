//! Data flow: which commands of a text feed which others, through pipes, process substitutions and
//! here-strings.
//!
//! Owns the bookkeeping of nested pipelines for both readers. In doubt a command feeds more than it
//! does, because only rules that forbid use this. Must not know rules or programs.

use std::ops::Range;

use super::command::{Command, Join};

/// Every command of the first range may feed every command of the second.
pub(super) type Edge = (Range<usize>, Range<usize>);

/// Edges so far, and the pipelines that are still open, the outermost first.
#[derive(Debug, Default)]
pub(super) struct Flows {
    pub edges: Vec<Edge>,
    open: Vec<Pipeline>,
}

/// A pipeline that is being read: the index of its first command, and where its `|` are.
#[derive(Debug, Default)]
struct Pipeline {
    start: usize,
    pipes: Vec<usize>,
}

impl Flows {
    /// The number of pipelines around this place.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    /// A group begins before the command at index `at`.
    pub(super) fn begin_group(&mut self, at: usize) {
        self.open.push(Pipeline {
            start: at,
            pipes: Vec::new(),
        });
    }

    /// Groups end before the command at index `at`, until `depth` of them are open.
    pub(super) fn end_groups(&mut self, at: usize, depth: usize) {
        while self.open.len() > depth {
            self.end(at);
            self.open.pop();
        }
    }

    /// A `|` precedes the command at index `at`.
    pub(super) fn pipe(&mut self, at: usize) {
        if let Some(open) = self.open.last_mut() {
            open.pipes.push(at);
        }
    }

    /// The pipeline ends before the command at index `at`, and another one may begin.
    pub(super) fn end(&mut self, at: usize) {
        let Some(open) = self.open.last_mut() else {
            return;
        };
        let start = std::mem::replace(&mut open.start, at);
        for pipe in std::mem::take(&mut open.pipes) {
            self.edges.push((start..pipe, pipe..at));
        }
    }

    /// The commands of `from` feed those of `to`.
    pub(super) fn feed(&mut self, from: Range<usize>, to: Range<usize>) {
        if !from.is_empty() && !to.is_empty() {
            self.edges.push((from, to));
        }
    }

    /// Adds the edges of a text whose commands follow the first `offset` ones.
    pub(super) fn adopt(&mut self, inner: Vec<Edge>, offset: usize) {
        let moved = |range: Range<usize>| range.start + offset..range.end + offset;
        self.edges
            .extend(inner.into_iter().map(|(from, to)| (moved(from), moved(to))));
    }
}

/// The edges of a plain text, whose only groups are its pipelines.
pub(super) fn pipeline_edges(commands: &[Command]) -> Vec<Edge> {
    let mut flows = Flows::default();
    flows.begin_group(0);
    for (at, command) in commands.iter().enumerate() {
        if command.join == Join::Pipe {
            flows.pipe(at);
        } else {
            flows.end(at);
        }
    }
    flows.end_groups(commands.len(), 0);
    flows.edges
}

#[cfg(test)]
mod tests {
    use crate::scan;

    /// Whether the program `from` is found to feed the program `to`.
    #[track_caller]
    fn check(text: &str, expect: bool) {
        let scan = scan::scan(text);
        let is = |at: usize, name: &str| {
            let command = &scan.commands[at];
            command.words.first().is_some_and(|w| w.text == name)
        };
        let got = scan.flows.edges.iter().any(|(from, to)| {
            from.clone().any(|at| is(at, "from")) && to.clone().any(|at| is(at, "to"))
        });
        assert_eq!(got, expect, "{text:?} {:?}", scan.flows.edges);
    }

    #[test]
    fn what_feeds_what_is_found() {
        for text in [
            "from x | to",
            "from | tee f | to -x",
            "from |& to",
            "(from) | to",
            "from | (cd x; to)",
            "{ from; } | { a; to; }",
            "a; from | b |\nto",
            "from | while read l; do to; done",
            "for u in a; do from $u; done | to",
            "if a; then from; fi | to",
            "to <(from x)",
            "to < <(from x)",
            "from | tee >(to)",
            "from > >(to)",
            "to <<< \"$(from)\"",
            "to <<E\n$(from)\nE",
            "echo $(from) | to",
            "echo `from | to`",
            "x $(a; from | to)",
            "a && from | b && c; from | to",
            "f() { from; }; f | x; { from | to; }",
            "case x in a) from;; esac | to",
        ] {
            check(text, true);
        }
    }

    #[test]
    fn commands_beside_each_other_feed_nothing() {
        for text in [
            "from -o f; to f",
            "from && to",
            "to | from",
            "from\nto",
            "from | a; to",
            "(from | a); b | to",
            "from | a && b | to",
            "for u in a; do from; done; a | to",
            "echo $(from) ; a | to",
            "from & to",
        ] {
            check(text, false);
        }
    }
}
