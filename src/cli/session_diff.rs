//! `diff` of a session that worked in a copy, or in the workspace itself: its reported changes.
//!
//! A copy is an agent's directory, in which a program such as git may obey what the agent left. So
//! its files are only read here, through no link. Must not know overlays and branches.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::events::{JournalError, open_journal};
use super::exit::Exit;
use super::outside;
use super::overlay::text::{is_at, unified};
use super::policies;
use super::streams::Streams;
use marshal_config::Config;
use marshal_journal::Reader;
use marshal_journal::codec::read_report;
use marshal_model::SessionId;
use marshal_model::untrusted::{escape_for_display, escape_json_for_terminal};
use marshal_policy::outside::find_use;
use marshal_policy::{Policy, guard};
use marshal_sandbox::workspace::Root;
use marshal_sandbox::workspace::overlay::bases::read_small_file;

/// Columns of a path, and of a line in a file.
const PATH: usize = 400;
const LINE: usize = 2000;
/// The most bytes of a file whose lines are compared.
const FILE: usize = 256 << 10;

/// The changes that a session's tasks reported.
#[derive(Default)]
struct ReportedChanges {
    pool: String,
    /// The session's own copy, on this host.
    copy: Option<String>,
    /// What happened to each path.
    kinds: BTreeMap<String, String>,
    is_incomplete: bool,
}

/// Shows what a session changed; `None` if none of its tasks has ended.
pub(super) fn show(
    state: &Path,
    config: Option<&Config>,
    (session, paths): (&SessionId, &[String]),
    json: bool,
    streams: &mut Streams,
) -> Option<Exit> {
    let changes = match open_journal(state).and_then(|reader| read_changes(&reader, session)) {
        Ok(changes) => changes?,
        Err(error) => {
            streams.err.line(&format!(
                "error: the session {session} has no overlay and no branch, and no other changes of it are known: {error}"
            ));
            return Some(error.exit());
        }
    };
    // Without the configuration only names are shown, and a note says why.
    let policy = config.and_then(|config| policies::of_pool(config, &changes.pool).ok());
    let policies: Vec<&Policy> = std::iter::once(guard())
        .chain(policy.as_ref().map(|(_, policy)| &**policy))
        .collect();
    let of_outside = |path: &str| find_use(&policies, path, true);
    let shown = changes.kinds.iter();
    let shown: Vec<_> = shown.filter(|(path, _)| is_at(path, paths)).collect();
    if !json {
        let outside = shown
            .iter()
            .filter_map(|(path, _)| Some((path.as_str(), of_outside(path)?)));
        outside::list(outside, &mut streams.out);
    }
    let trees = match open_trees(&changes, config) {
        Ok(trees) => trees,
        Err(why) => {
            streams
                .err
                .line(&format!("note: only names are shown: {why}"));
            None
        }
    };
    for (path, kind) in shown {
        let text = trees.as_ref().and_then(|trees| trees.diff(path));
        if json {
            let mut object = json!({"path": path, "change": kind});
            if let Some(what) = of_outside(path) {
                object["outside"] = what.into();
            }
            if let Some(text) = text {
                object["diff"] = text.into();
            }
            streams
                .out
                .line(&escape_json_for_terminal(&object.to_string()));
            continue;
        }
        streams
            .out
            .line(&format!("{kind:<8} {}", escape_for_display(path, PATH)));
        for line in text.unwrap_or_default().lines() {
            streams.out.line(&escape_for_display(line, LINE));
        }
    }
    if changes.kinds.is_empty() {
        streams
            .err
            .line(&format!("the session {session} changed nothing"));
    }
    if changes.is_incomplete {
        streams
            .err
            .line("note: the session changed more than was recorded");
    }
    if changes.copy.is_none() {
        let text = "note: the session worked in the workspace itself, so only names are shown; git diff there shows the lines";
        streams.err.line(text);
    }
    Some(Exit::Done)
}

fn read_changes(
    reader: &Reader,
    session: &SessionId,
) -> Result<Option<ReportedChanges>, JournalError> {
    let stored = reader
        .session(session)?
        .ok_or_else(|| JournalError::NoSession(session.clone()))?;
    let mut changes = None;
    for task in reader.tasks_of_session(&stored)? {
        let report = task.result.as_deref().map(read_report);
        let Some(Ok(report)) = report else { continue };
        // The report of a task is about its last attempt.
        if report.session.as_deref() != Some(session.as_str()) {
            continue;
        }
        let all = changes.get_or_insert_with(ReportedChanges::default);
        all.pool = report.pool.into_owned();
        all.copy = report
            .workspace
            .map(std::borrow::Cow::into_owned)
            .or(all.copy.take());
        all.is_incomplete |= report.changes_cut;
        let kinds = report.changes.into_iter();
        all.kinds
            .extend(kinds.map(|file| (file.path.into_owned(), file.kind.into_owned())));
    }
    Ok(changes)
}

/// A copy, and the workspace that it was made of.
struct Trees {
    before: Root,
    /// The sources of further directories, by their places.
    further: Vec<(String, Root)>,
    after: Root,
}

fn open_trees(changes: &ReportedChanges, config: Option<&Config>) -> Result<Option<Trees>, String> {
    let Some(copy) = &changes.copy else {
        return Ok(None);
    };
    let pool = config.and_then(|config| config.pool(&changes.pool));
    let pool = pool.ok_or_else(|| {
        let pool = escape_for_display(&changes.pool, 60);
        format!("the pool {pool} is not in this configuration; name the right file with --config")
    })?;
    let open = |path: &Path| {
        Root::open_resolved(path).map_err(|error| {
            let path = escape_for_display(&path.to_string_lossy(), PATH);
            format!("{path} cannot be read: {error}")
        })
    };
    let repos = pool.workspace.repos.iter();
    let real = |path: &Path| super::state_dir::real(path);
    let further = repos.map(|repo| Ok((format!("{}/", repo.at), open(&real(&repo.path))?)));
    Ok(Some(Trees {
        before: open(&pool.workspace.path)?,
        further: further.collect::<Result<_, String>>()?,
        after: open(Path::new(copy))?,
    }))
}

impl Trees {
    /// The unified diff of a file, compared with the workspace as it is now; `None` if a side is no
    /// regular file, or is too long.
    fn diff(&self, path: &str) -> Option<String> {
        let in_source = self.further.iter().find_map(|(at, root)| {
            let own = path.strip_prefix(at.as_str())?;
            Some((root, own))
        });
        let read = |(root, path): (&Root, &str)| match read_small_file(root, path, FILE) {
            Ok(content) => Some(content),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(None),
            Err(_) => None,
        };
        let source = in_source.unwrap_or((&self.before, path));
        let (before, after) = (read(source)?, read((&self.after, path))?);
        let is_added = before.is_none();
        let texts = (before.unwrap_or_default(), after.unwrap_or_default());
        unified((&texts.0, &texts.1), path, is_added)
    }
}
