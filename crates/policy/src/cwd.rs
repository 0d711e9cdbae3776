//! The directories in which each command of a line may run.
//!
//! Owns following `cd` through `&&`, `||`, `;` and pipes: the possible directories at the beginning
//! of a command, given that an earlier `cd` may have failed or never run. Must not know rules.

use super::command::{Command, Join, Word};
use super::fact::Cwd;
use super::path::{FsContext, Walker, normalize_lexically};
use super::request::{CwdChange, Request};
use super::{scan, strict};
use marshal_model::limits;

/// Possible directories; `None` if any directory is possible.
type Set = Option<Vec<Cwd>>;

/// Tracks the directory along a command line.
pub(super) struct CwdTracker<'w, 'a> {
    walker: &'w Walker<'a>,
    /// The directories if the and-or list so far has succeeded.
    ok: Set,
    /// The directories if it has failed.
    failed: Set,
}

/// The directory in which a request begins; empty if it is unknown.
pub(super) fn resolve_cwd(walker: &Walker<'_>, path: Option<&str>) -> Vec<Cwd> {
    let cwd = path.map(|path| {
        let end = walker.walk("/", path);
        Cwd {
            logical: normalize_lexically("/", path),
            physical: end.path,
            escaped: end.escaped,
        }
    });
    cwd.into_iter().collect()
}

/// The directory in which a command begins: the one that the call names, relative to the session's
/// directory, or the session's directory itself. `None` if it is unknown.
pub(super) fn start_directory(place: &FsContext<'_>, named: Option<&str>) -> Option<String> {
    match (named, place.cwd) {
        (Some(named), _) if starts_with_home(named) => {
            Some(format!("{}{}", place.home, &named[1..]))
        }
        (Some(named), _) if named.starts_with('/') => Some(named.to_owned()),
        (Some(named), Some(base)) => Some(format!("{base}/{named}")),
        (Some(_), None) => None,
        (None, base) => base.map(str::to_owned),
    }
}

/// Whether a path begins with the home directory.
pub(super) fn starts_with_home(path: &str) -> bool {
    path == "~" || path.starts_with("~/")
}

/// The effect of a request on the directory of a shell that keeps it.
pub(super) fn resolve_cwd_change(request: &Request, at: &FsContext<'_>) -> CwdChange {
    let Request::Shell { command, cwd } = request else {
        return CwdChange::Unchanged;
    };
    let is_mover = |command: &Command| {
        let program = command.words.first();
        program.is_some_and(|word| word.text == "cd" || is_cwd_changer(word)) || alters_cd(command)
    };
    let Ok(strict::PlainText { commands, .. }) = strict::parse_plain(command) else {
        // A command line that is not plain is not followed.
        let scan = scan::scan(command);
        let away = cwd.is_some() || scan.commands.iter().any(is_mover) || scan.broken.is_some();
        return if away {
            CwdChange::Unknown
        } else {
            CwdChange::Unchanged
        };
    };
    if cwd.is_none() && !commands.iter().any(is_mover) {
        return CwdChange::Unchanged;
    }
    // Commands that make other commands change the directory, or redirect `cd`, are not followed.
    // Neither is the last stage of a pipe, which some shells run in themselves.
    if commands.iter().any(alters_cd) {
        return CwdChange::Unknown;
    }
    let walker = Walker::new(*at);
    let mut track = CwdTracker::new(&walker, start_directory(at, cwd.as_deref()).as_deref());
    for (i, command) in commands.iter().enumerate() {
        let next = commands.get(i + 1);
        let piped = command.join == Join::Pipe || next.is_some_and(|c| c.join == Join::Pipe);
        if piped && is_mover(command) {
            return CwdChange::Unknown;
        }
        track.enter_command(command, piped);
    }
    let ends = union(track.ok, track.failed).unwrap_or_default();
    let is_inside = |end: &Cwd| {
        !end.escaped && walker.is_inside(&end.physical) && walker.is_inside(&end.logical)
    };
    if ends.is_empty() || !ends.iter().all(is_inside) {
        return CwdChange::Unknown;
    }
    let mut places: Vec<String> = Vec::new();
    for place in ends.into_iter().flat_map(|end| [end.physical, end.logical]) {
        if at.cwd != Some(place.as_str()) && !places.contains(&place) {
            places.push(place);
        }
    }
    if places.is_empty() {
        CwdChange::Unchanged
    } else {
        CwdChange::OneOf(places)
    }
}

/// Variables that determine where `cd` leads, or that run something beside every command.
const CD_VARIABLES: [&str; 6] = ["CDPATH", "HOME", "OLDPWD", "PROMPT_COMMAND", "PWD", "PS1"];

/// Whether a command makes later commands change the shell's directory, or redirects their `cd`.
fn alters_cd(command: &Command) -> bool {
    let is_of_cd = |text: &str| CD_VARIABLES.iter().any(|name| text.starts_with(name));
    let program = command.words.first().map(|word| word.text.as_str());
    let sets = matches!(
        program,
        Some("export" | "declare" | "typeset" | "local" | "readonly")
    ) && command.words[1..]
        .iter()
        .any(|word| word.is_dynamic() || is_of_cd(&word.text));
    let has_assignment = !command.assignments.is_empty();
    sets || has_assignment && (program.is_none() || program == Some("cd"))
}

/// Whether a command sets a variable that redirects this or a later `cd`.
fn redirects_cd(command: &Command) -> bool {
    let mut assigned = command.assignments.iter();
    assigned.any(|a| CD_VARIABLES[..3].contains(&a.name.as_str()))
        || alters_cd(command) && command.assignments.is_empty()
}

/// Whether a command may change the directory of the shell that runs it.
pub(super) fn may_change_cwd(command: &Command) -> bool {
    let program = command.words.first();
    program.is_some_and(|word| word.text == "cd" || is_cwd_changer(word)) || redirects_cd(command)
}

impl<'w, 'a> CwdTracker<'w, 'a> {
    pub(super) fn new(walker: &'w Walker<'a>, path: Option<&str>) -> Self {
        Self {
            walker,
            ok: path.map(|_| resolve_cwd(walker, path)),
            failed: Some(Vec::new()),
        }
    }

    /// A tracker that starts from any of several directories; if there are none, the directory is
    /// unknown.
    pub(super) fn from_cwds(walker: &'w Walker<'a>, bases: &[Cwd]) -> Self {
        Self {
            walker,
            ok: (!bases.is_empty() && !bases.iter().any(Cwd::is_unknown)).then(|| bases.to_vec()),
            failed: Some(Vec::new()),
        }
    }

    /// The directories in which `command` may run; empty if unknown. `piped` means that it is one
    /// stage of a pipe, and so runs in a shell of its own.
    pub(super) fn enter_command(&mut self, command: &Command, piped: bool) -> Vec<Cwd> {
        let from = match command.join {
            Join::Then => {
                self.ok = union(self.ok.take(), self.failed.take());
                self.failed = Some(Vec::new());
                self.ok.clone()
            }
            Join::Or => self.failed.clone(),
            Join::And | Join::Pipe => self.ok.clone(),
        };
        // A command that can never run is evaluated as if it could.
        let from = match from {
            Some(set) if set.is_empty() => union(self.ok.clone(), self.failed.clone()),
            other => other,
        };
        let (done, undone) = match command.words.first() {
            Some(word) if !piped && word.text == "cd" => self.follow_cd(&from, &command.words[1..]),
            Some(word) if !piped && is_cwd_changer(word) => (None, None),
            _ => (from.clone(), from.clone()),
        };
        let (done, undone) = if redirects_cd(command) {
            (None, None)
        } else if command.nested {
            // It may not run, or run in a shell of its own, so its effect is only possible.
            (union(from.clone(), done), union(from.clone(), undone))
        } else {
            (done, undone)
        };
        match command.join {
            Join::Or => {
                self.ok = union(self.ok.take(), done);
                self.failed = undone;
            }
            Join::And => {
                self.ok = done;
                self.failed = union(self.failed.take(), undone);
            }
            Join::Then | Join::Pipe => {
                self.ok = done;
                self.failed = undone;
            }
        }
        from.unwrap_or_default()
    }

    /// The directories if `cd` succeeds, and those if it fails.
    fn follow_cd(&self, from: &Set, arguments: &[Word]) -> (Set, Set) {
        let mut operands = arguments
            .iter()
            .filter(|w| !matches!(w.text.as_str(), "-P" | "-L" | "--"));
        let home = Word {
            text: "~".to_owned(),
            tilde: true,
            ..Word::default()
        };
        let target = match (operands.next(), operands.next()) {
            (None, None) => &home,
            (Some(word), None)
                if !word.is_dynamic() && !word.glob && !word.text.starts_with('-') =>
            {
                word
            }
            _ => return (None, None),
        };
        let text = if target.tilde {
            format!("{}{}", self.walker.fs.home, &target.text[1..])
        } else {
            target.text.clone()
        };
        let Some(from) = from else {
            // An absolute path leads to the same place from everywhere.
            let whole = text
                .starts_with('/')
                .then(|| resolve_cwd(self.walker, Some(&text)));
            let surely = self.walker.walk("/", &text).is_directory;
            return match whole {
                Some(whole) if surely => (Some(whole), Some(Vec::new())),
                whole => (whole, None),
            };
        };
        let mut done = Vec::new();
        let mut certain = true;
        for cwd in from {
            // By default bash goes up by name; with -P, or as a last resort, it follows the real
            // tree.
            let logical = normalize_lexically(&cwd.logical, &text);
            let by_name = self.walker.walk("/", &logical);
            let real = self.walker.walk(&cwd.physical, &text);
            certain &= by_name.is_directory && real.is_directory;
            let real = Cwd {
                logical: real.path.clone(),
                escaped: real.escaped || cwd.escaped && !text.starts_with('/'),
                physical: real.path,
            };
            let by_name = Cwd {
                logical,
                physical: by_name.path,
                escaped: by_name.escaped,
            };
            if by_name.physical != real.physical || by_name.escaped != real.escaped {
                done.push(real);
            }
            done.push(by_name);
        }
        let stays = if certain { Vec::new() } else { from.clone() };
        (union(Some(done), Some(Vec::new())), Some(stays))
    }
}

/// Programs that change the shell's directory in ways that are not followed.
fn is_cwd_changer(word: &Word) -> bool {
    word.is_dynamic()
        || matches!(
            word.text.as_str(),
            "pushd"
                | "popd"
                | "source"
                | "."
                | "eval"
                | "builtin"
                | "command"
                // Built-ins that run commands given as text, or that define or switch them, in bash
                // or zsh.
                | "alias"
                | "autoload"
                | "bind"
                | "chdir"
                | "coproc"
                | "dirs"
                | "emulate"
                | "enable"
                | "exec"
                | "fc"
                | "jobs"
                | "mapfile"
                | "nocorrect"
                | "noglob"
                | "readarray"
                | "repeat"
                | "set"
                | "setopt"
                | "shopt"
                | "trap"
                | "zle"
                | "-"
        )
}

fn union(a: Set, b: Set) -> Set {
    let (mut all, more) = (a?, b?);
    for cwd in more {
        if !all.contains(&cwd) {
            all.push(cwd);
        }
    }
    all.dedup();
    (all.len() <= limits::POLICY_CWDS).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::{FsContext, FsEntry, Resolver};
    use crate::strict;
    use marshal_model::{AgentClaims, Decision};

    /// `src` and `a/b` are directories, `deep -> a/b`; nothing else exists.
    struct Tree;

    impl Resolver for Tree {
        fn lookup(&self, path: &str) -> FsEntry {
            match path {
                "/w/src" | "/w/a" | "/w/a/b" => FsEntry::Directory,
                "/w/deep" => FsEntry::Link("a/b".to_owned()),
                _ => FsEntry::Missing,
            }
        }

        fn list_links(&self, _: &str) -> Option<Vec<String>> {
            None
        }

        fn list_names(&self, _: &str) -> Option<Vec<String>> {
            None
        }
    }

    /// The directories in which the last command may run, sorted.
    #[track_caller]
    fn check(text: &str, expect: &[&str]) {
        let walker = Walker::new(FsContext {
            workspace: "/w",
            home: "/h",
            cwd: Some("/w"),
            resolver: &Tree,
        });
        let commands = strict::parse_plain(text).expect("plain").commands;
        let mut track = CwdTracker::new(&walker, Some("/w"));
        let mut last = Vec::new();
        for (i, command) in commands.iter().enumerate() {
            let next = commands.get(i + 1).is_some_and(|c| c.join == Join::Pipe);
            last = track.enter_command(command, next || command.join == Join::Pipe);
        }
        let mut got: Vec<_> = last.iter().map(|c| c.physical.as_str()).collect();
        got.sort_unstable();
        assert_eq!(got, expect, "{text}");
    }

    #[test]
    fn a_directory_is_followed_as_far_as_it_is_certain() {
        check("ls", &["/w"]);
        check("cd src && ls", &["/w/src"]);
        check("cd src; ls", &["/w/src"]);
        check("cd src && ls && cd .. && pwd", &["/w"]);
        check("cd new && ls", &["/w/new"]);
        check("cd new; ls", &["/w", "/w/new"]);
        check("cd new || ls", &["/w"]);
        check("false && cd src; ls", &["/w", "/w/src"]);
        check("true || cd src && ls", &["/w", "/w/src"]);
        check("cd src | ls", &["/w"]);
        check("cd src | ls; ls", &["/w"]);
        check("cd ~ && ls", &["/h"]);
        check("cd /etc && ls", &["/etc"]);
        check("cd && ls", &["/h"]);
    }

    #[test]
    fn going_up_from_a_link_has_two_answers() {
        check("cd deep && cd .. && ls", &["/w", "/w/a"]);
        check("cd deep/.. && ls", &["/w", "/w/a"]);
    }

    #[test]
    fn what_may_move_a_shell_that_keeps_its_directory_is_told() {
        let to = |paths: &[&str]| {
            CwdChange::OneOf(paths.iter().map(|path| (*path).to_owned()).collect())
        };
        let check = |text: &str, named: Option<&str>, cwd: Option<&str>, expect: CwdChange| {
            let place = FsContext {
                workspace: "/w",
                home: "/h",
                cwd,
                resolver: &Tree,
            };
            let request = Request::Shell {
                command: text.to_owned(),
                cwd: named.map(str::to_owned),
            };
            assert_eq!(
                resolve_cwd_change(&request, &place),
                expect,
                "{text} {named:?} {cwd:?}"
            );
        };
        let root = Some("/w");
        for stays in [
            "ls",
            "ls | cat; pwd",
            "bash -c 'cd src'",
            "echo $(date)",
            "for f in *; do ls; done",
        ] {
            check(stays, None, root, CwdChange::Unchanged);
            check(stays, None, None, CwdChange::Unchanged);
        }
        for away in [
            "cd .. && ls",
            "cd /etc",
            "cd ~",
            "cd -",
            "pushd src",
            "eval ls",
            "(cd src && ls)",
            "if true; then cd src; fi",
            "for d in *; do cd $d; done",
            "cd src && cd .. && cd deep && cd .. && cd ..",
            "$MOVE src",
            "ls 'open",
            "true | cd src",
            "jobs -x cd src",
            "trap 'cd /etc' DEBUG",
            "mapfile -C 'cd /; :' -c 1",
            "CDPATH=/h cd src",
            "CDPATH=/h; cd src",
            "export CDPATH=/h",
            "alias ls='cd /'",
        ] {
            check(away, None, root, CwdChange::Unknown);
        }
        check("cd src && ls", None, root, to(&["/w/src"]));
        check("cd src && ls; pwd", None, root, to(&["/w/src"]));
        check("cd new", None, root, to(&["/w/new"]));
        check("cd src; cd new", None, root, to(&["/w/src/new", "/w/src"]));
        check("false && cd src", None, root, to(&["/w/src"]));
        check("cd b", None, Some("/w/a"), to(&["/w/a/b"]));
        check("cd deep", None, root, to(&["/w/a/b", "/w/deep"]));
        check("cd src && cd ..", None, root, CwdChange::Unchanged);
        check("cd /w", None, root, CwdChange::Unchanged);
        check("cd /w && ls", None, root, CwdChange::Unchanged);
        check("cd /w", None, None, to(&["/w"]));
        check("cd ..; cd w", None, root, CwdChange::Unchanged);
        check("cd src", None, None, CwdChange::Unknown);
        check("cd /w/new; ls", None, None, CwdChange::Unknown);
        check("ls", Some("src"), root, to(&["/w/src"]));
        check("ls", Some("/w"), None, to(&["/w"]));
        check("ls", Some("src"), None, CwdChange::Unknown);
        let place = FsContext {
            workspace: "/w",
            home: "/h",
            cwd: None,
            resolver: &Tree,
        };
        let write = Request::Write {
            paths: vec!["a".to_owned()],
        };
        assert_eq!(resolve_cwd_change(&write, &place), CwdChange::Unchanged);
    }

    #[test]
    fn a_search_without_a_path_is_where_the_agent_is() {
        let policy = crate::Policy::builtin("developer").expect("developer");
        let search = Request::Read {
            targets: vec![crate::ReadTarget::Workspace],
        };
        let decision = |cwd| {
            let place = FsContext {
                workspace: "/w",
                home: "/h",
                cwd,
                resolver: &Tree,
            };
            policy
                .decide(&search, &AgentClaims::default(), &place)
                .decision
        };
        assert_eq!(decision(Some("/w")), Decision::Allow);
        assert_eq!(decision(Some("/w/src")), Decision::Allow);
        assert_eq!(decision(Some("/etc")), Decision::Ask);
        assert_eq!(decision(None), Decision::Ask);
    }

    #[test]
    fn what_is_not_followed_makes_the_directory_unknown() {
        for text in [
            "cd - && ls",
            "cd a b && ls",
            "pushd src && ls",
            "cd -e src && ls",
        ] {
            check(text, &[]);
        }
        check("cd a; cd x1; cd x2; cd x3; ls", &[]);
    }
}
