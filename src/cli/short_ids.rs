//! Ids as people type them: the beginning or the end of a session's, run's or approval's id is
//! enough where only one has it, and a task's id stands for its session in the newest run.
//!
//! Reads journals; the commands themselves see whole ids only.

use std::path::{Path, PathBuf};

use super::approvals::ApprovalsCommand;
use super::args::Command;
use super::events::{JournalError, open_journal};
use super::exec::ExecTarget;
use marshal_journal::{IdKind, Reader};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PermissionRequestId, SessionId};

/// The most directories of runs beside the daemon that are searched.
const LOCALS: usize = 1000;

/// The characters of an id that are shown.
const SHOWN: usize = 8;

/// Why an id cannot be completed.
#[derive(Debug, thiserror::Error)]
#[error("the {what} {} could be each of these: {}; name more of it", escape_for_display(.text, 128), .matches.join(", "))]
pub struct AmbiguousId {
    what: &'static str,
    text: String,
    matches: Vec<String>,
}

/// The end of an id that the supervisor chose, which is enough to name it; another id whole.
pub(super) fn short(id: &str) -> &str {
    match uuid::Uuid::try_parse(id) {
        Ok(_) => &id[id.len() - SHOWN..],
        Err(_) => id,
    }
}

/// Completes the ids of a command. Returns the state directory that has them: that of the
/// supervisor, or that of a run beside it.
pub(super) fn complete(command: &mut Command, state: &Path) -> Result<PathBuf, AmbiguousId> {
    match command {
        Command::Stop {
            session: Some(session),
            ..
        }
        | Command::Command { session, .. }
        | Command::Exec {
            target: ExecTarget::Session(session),
            ..
        }
        | Command::Show { session } => complete_session(session, state),
        Command::Diff(args) => complete_session(&mut args.session, state),
        Command::Apply(args) => complete_session(&mut args.session, state),
        Command::Discard(args) => complete_session(&mut args.session, state),
        Command::Events(args) => match &mut args.session {
            Some(session) => complete_session(session, state),
            None => Ok(state.to_owned()),
        },
        Command::Approvals { command } => match command {
            ApprovalsCommand::Ls { .. } => Ok(state.to_owned()),
            ApprovalsCommand::Show { approval } => complete_approval(approval, state),
            ApprovalsCommand::Approve(args) | ApprovalsCommand::Reject(args) => {
                complete_approval(&mut args.approval, state)
            }
        },
        _ => Ok(state.to_owned()),
    }
}

fn complete_session(session: &mut SessionId, state: &Path) -> Result<PathBuf, AmbiguousId> {
    let found = complete_id(IdKind::Session, session.as_str(), state)?;
    let Some((place, id)) = found else {
        return Ok(state.to_owned());
    };
    if let Ok(id) = SessionId::new(&id) {
        *session = id;
    }
    Ok(place)
}

fn complete_approval(
    approval: &mut PermissionRequestId,
    state: &Path,
) -> Result<PathBuf, AmbiguousId> {
    let found = complete_id(IdKind::Approval, approval.as_str(), state)?;
    let id = found.and_then(|(_, id)| PermissionRequestId::new(&id).ok());
    if let Some(id) = id {
        *approval = id;
    }
    Ok(state.to_owned())
}

/// The whole id, and the state directory that has it; `None` if nothing has it. The command then
/// says so.
pub(super) fn complete_id(
    kind: IdKind,
    text: &str,
    state: &Path,
) -> Result<Option<(PathBuf, String)>, AmbiguousId> {
    let locals = std::fs::read_dir(state.join("local"))
        .into_iter()
        .flatten()
        .take(LOCALS)
        .flatten()
        .map(|entry| entry.path());
    let mut matches = Vec::new();
    for place in std::iter::once(state.to_owned()).chain(locals) {
        let read = open_journal(&place)
            .and_then(|reader| matching_ids(&reader, kind, text))
            .unwrap_or_default();
        if read.iter().any(|id| id == text) {
            return Ok(Some((place, text.to_owned())));
        }
        matches.extend(read.into_iter().map(|id| (place.clone(), id)));
    }
    match matches.len() {
        0 | 1 => Ok(matches.pop()),
        _ => Err(AmbiguousId {
            what: kind.as_str(),
            text: text.to_owned(),
            matches: matches
                .into_iter()
                .map(|(_, id)| escape_for_display(&id, 128))
                .collect(),
        }),
    }
}

fn matching_ids(reader: &Reader, kind: IdKind, text: &str) -> Result<Vec<String>, JournalError> {
    let ids = reader.ids_like(kind, text)?;
    if ids.is_empty() && kind == IdKind::Session {
        return Ok(reader.newest_session_of_task(text)?.into_iter().collect());
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_id_is_shown_and_no_other_text_is_cut() {
        assert_eq!(short("019aa0de-1111-7222-8333-0123456789ab"), "456789ab");
        assert_eq!(short("session-of-somebody"), "session-of-somebody");
        assert_eq!(short("\u{6f22}\u{6f22}"), "\u{6f22}\u{6f22}");
    }
}
