//! Chooses which sessions of earlier starts of the supervisor the slots resume.
//!
//! Decides once, at the start. Must not load sessions: a session is loaded when a task needs it.

use std::collections::BTreeMap;

use super::clock::now_us;
use super::session::StoredSession;
use super::setup::{ResumeScope, Setup};
use marshal_config::{Config, OnCrash, Pool, SessionScope};
use marshal_journal::{Commit, Journal, ResumableSession, Write};
use marshal_model::{PoolName, SlotId, ids};

/// The sessions to resume, by pool and slot index.
pub(super) type Stored = BTreeMap<PoolName, Vec<(u16, StoredSession)>>;

/// Chooses the sessions to resume, and ends those that cannot be resumed. If the journal cannot be
/// read, no session is chosen and new sessions begin.
pub(super) async fn choose_stored_sessions(setup: &Setup) -> Stored {
    let Setup {
        journal,
        config,
        resume_scope: scope,
        ..
    } = setup;
    let reading = journal.clone();
    let read = setup.ambient.run_blocking(move || {
        let reader = reading.reader().map_err(|error| error.to_string())?;
        reader
            .resumable_sessions()
            .map_err(|error| error.to_string())
    });
    let sessions = match read.await {
        Ok(Ok(sessions)) => sessions,
        Ok(Err(why)) => {
            tracing::warn!(
                why,
                "cannot read the sessions of earlier starts: none is resumed"
            );
            return Stored::new();
        }
        Err(_) => return Stored::new(),
    };
    let (wanted, obsolete) = select_sessions(sessions, config, scope);
    end_sessions(journal, obsolete);
    let mut stored = Stored::new();
    for (slot, session) in wanted {
        stored
            .entry(slot.pool)
            .or_default()
            .push((slot.index, session));
    }
    stored
}

/// Pure. Returns the newest loadable session of each slot, and the sessions in scope that are
/// obsolete.
fn select_sessions(
    sessions: Vec<ResumableSession>,
    config: &Config,
    scope: &ResumeScope,
) -> (BTreeMap<SlotId, StoredSession>, Vec<ResumableSession>) {
    let mut wanted: BTreeMap<SlotId, (ResumableSession, StoredSession)> = BTreeMap::new();
    let mut obsolete = Vec::new();
    for session in sessions {
        if session.is_conversation && !session.run_ended {
            continue; // Its client may load it; otherwise its retention time ends it.
        }
        if session.run_ended {
            obsolete.push(session);
            continue;
        }
        let is_ours = match (scope, &session.run) {
            (ResumeScope::None, _) | (ResumeScope::Run(_), None) => false,
            (ResumeScope::Run(ours), Some(run)) => ours == run,
            (ResumeScope::All, _) => true,
        };
        if !is_ours {
            continue;
        }
        let pool = config
            .pools
            .iter()
            .find(|pool| pool.name == session.slot.pool);
        match pool.and_then(|pool| to_loadable(pool, &session)) {
            Some(stored) => {
                let slot = session.slot.clone();
                let older = wanted.insert(slot, (session, stored));
                obsolete.extend(older.map(|(session, _)| session));
            }
            None => obsolete.push(session),
        }
    }
    let wanted = wanted
        .into_iter()
        .map(|(slot, (_, stored))| (slot, stored))
        .collect();
    (wanted, obsolete)
}

/// The session in the form in which this pool loads it; `None` if it cannot.
fn to_loadable(pool: &Pool, session: &ResumableSession) -> Option<StoredSession> {
    let resumes = pool.options.session == SessionScope::Slot
        && pool.restart.on_crash == OnCrash::Resume
        && session.slot.index < pool.max_size;
    let by_argument = pool.resumes_by_argument();
    let id = session
        .agent_session
        .as_ref()
        .filter(|id| !by_argument || ids::is_safe_token(id.raw()));
    id.filter(|_| resumes).map(|id| StoredSession {
        session: session.session.clone(),
        agent_session: Some(id.clone()),
        last_seq: session.last_seq,
        bytes: session.bytes,
        prompted: true,
        forgot: false,
    })
}

/// Ends sessions in the journal. The next sweep removes their homes.
fn end_sessions(journal: &Journal, obsolete: Vec<ResumableSession>) {
    let writes: Vec<_> = obsolete
        .into_iter()
        .map(|session| Write::SessionEnded {
            session: session.session,
            at_us: now_us(),
            class: None,
        })
        .collect();
    if writes.is_empty() {
        return;
    }
    if let Err(refused) = journal.submit(Commit::new(writes)) {
        tracing::warn!(%refused, "old sessions could not be ended; the next start tries again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::{RunId, SessionId, UntrustedText};

    fn config(text: &str) -> Config {
        let origin = marshal_config::Origin::built_in("/srv".into());
        Config::parse(text, &origin).expect("a configuration")
    }

    const POOL: &str = r#"
[pool.a]
size = 2
command = ["marshal", "script-agent", "--dialect", "scaiflux"]
resume_args = ["--resume", "{session}"]
session = "slot"
restart = { on_crash = "resume" }
"#;

    fn resumable_session(name: &str, index: u16, run: Option<&str>) -> ResumableSession {
        ResumableSession {
            session: SessionId::new(name).expect("id"),
            slot: SlotId {
                pool: PoolName::new("a").expect("name"),
                index,
            },
            run: run.map(|run| RunId::new(run).expect("id")),
            run_ended: false,
            is_conversation: false,
            agent_session: Some(UntrustedText::from("theirs")),
            last_seq: 7,
            bytes: 0,
        }
    }

    fn chosen(sessions: Vec<ResumableSession>, scope: &ResumeScope) -> (Vec<String>, Vec<String>) {
        let (wanted, over) = select_sessions(sessions, &config(POOL), scope);
        (
            wanted
                .values()
                .map(|item| item.session.to_string())
                .collect(),
            over.iter().map(|item| item.session.to_string()).collect(),
        )
    }

    #[test]
    fn a_daemon_goes_on_with_the_newest_session_of_each_slot_and_ends_the_others() {
        let all = vec![
            resumable_session("old", 0, None),
            resumable_session("new", 0, None),
            resumable_session("b", 1, Some("r")),
        ];
        let (wanted, over) = chosen(all, &ResumeScope::All);
        assert_eq!(wanted, ["new", "b"]);
        assert_eq!(over, ["old"]);
    }

    #[test]
    fn a_run_goes_on_with_its_own_sessions_and_leaves_the_others_alone() {
        let run = RunId::new("r").expect("id");
        let all = || {
            vec![
                resumable_session("d", 0, None),
                resumable_session("m", 0, Some("r")),
                resumable_session("o", 1, Some("s")),
            ]
        };
        assert_eq!(
            chosen(all(), &ResumeScope::Run(run)),
            (vec!["m".to_owned()], vec![])
        );
        assert_eq!(chosen(all(), &ResumeScope::None), (vec![], vec![]));
        let mut left = resumable_session("left", 0, Some("t"));
        left.run_ended = true;
        let over = chosen(vec![left], &ResumeScope::None).1;
        assert_eq!(over, ["left"], "no fleet resumes a run that has ended");
    }

    #[test]
    fn what_cannot_be_loaded_is_over() {
        let mut nameless = resumable_session("nameless", 0, None);
        nameless.agent_session = None;
        let mut unsafe_id = resumable_session("unsafe", 0, None);
        unsafe_id.agent_session = Some(UntrustedText::from("--help"));
        let mut ended = resumable_session("ended", 0, Some("r"));
        ended.run_ended = true;
        let beyond = resumable_session("beyond", 2, None);
        let (wanted, over) = chosen(vec![nameless, unsafe_id, ended, beyond], &ResumeScope::All);
        assert!(wanted.is_empty());
        assert_eq!(over.len(), 4);
    }
}
