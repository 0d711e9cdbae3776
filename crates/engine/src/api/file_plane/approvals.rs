//! What waits for a person, as files, and the files by which a person answers.
//!
//! Owns which asks a directory sees: those of its own requests, and no others. Must not know how an
//! answer is held against policy and digest: that is the fleet's.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::time::Instant;

use super::disk::{Area, PlaneEntry};
use super::results::small;
use super::schema::{self, AnswerName, RequestName, SchemaError, format_millis};
use super::{PlaneError, PlaneWorker};
use crate::api::approvals::ApprovalView;
use marshal_config::SessionScope;
use marshal_fleet::{AnswerError, AnswerReceipt, AnswerRequest};
use marshal_journal::StoredApproval;
use marshal_model::limits::FILE_PLANE_APPROVALS;
use marshal_model::untrusted::{escape_for_display, escape_json_for_terminal};
use marshal_model::{Decision, PermissionRequestId, RememberScope};
use marshal_telemetry::event::file_plane::AnswerFileHandled;
use marshal_telemetry::labels::FileAnswer;

/// What came of one answer file.
pub(super) type AnswerResult = (String, Result<AnswerReceipt, AnswerError>, Decision);

fn approval_file_name(approval: &str) -> String {
    format!("{approval}.json")
}

/// An approval as its file shows it: what the other doors show, the request, and the deadline once more
/// as the other files have times.
fn approval_json(question: &StoredApproval, request: &str) -> String {
    let mut view = serde_json::to_value(ApprovalView::with_details(question)).unwrap_or_default();
    if let Value::Object(entries) = &mut view {
        entries.insert("request".to_owned(), request.into());
        entries.insert(
            "deadline".to_owned(),
            format_millis(question.deadline_us).into(),
        );
    }
    let json = serde_json::to_string_pretty(&view).unwrap_or_default();
    escape_json_for_terminal(&json) + "\n"
}

/// In which session a request is worked, and since when, if it is.
struct WorkedSession(Option<(String, i64)>);

impl WorkedSession {
    /// Whether it is its task that asks this: a session may work many, one after the other.
    fn has_requested(&self, question: &StoredApproval) -> bool {
        self.0.as_ref().is_some_and(|(session, begun_at_us)| {
            session == question.session.as_str() && question.requested_at_us >= *begun_at_us
        })
    }
}

impl PlaneWorker {
    /// Takes note of the approvals that an earlier start left as files.
    pub(super) async fn find_approval_files(&mut self) -> Result<(), PlaneError> {
        let found = self.with_disk(|disk| {
            disk.list(Area::Asks, |name| {
                name.strip_suffix(".json").map(str::to_owned)
            })
        });
        let (names, _) = found.await??;
        self.approval_files.extend(names);
        self.has_new_approvals = true;
        Ok(())
    }

    /// Shows what waits, and nothing else.
    pub(super) async fn write_approval_files(&mut self) -> Result<(), PlaneError> {
        let waiting = if self.open.is_empty() {
            Vec::new()
        } else {
            self.fleet
                .approvals(false)
                .await
                .map_err(PlaneError::Journal)?
        };
        let mut wanted = BTreeMap::new();
        let mut works: BTreeMap<&RequestName, WorkedSession> = BTreeMap::new();
        for question in &waiting {
            let request = self.by_session.get(&question.session);
            let Some(request) = request.filter(|_| question.pool == self.pool) else {
                continue;
            };
            if wanted.len() >= FILE_PLANE_APPROVALS {
                break;
            }
            // Read after the approvals: one that was not over then had asked them.
            if !works.contains_key(request) {
                let read = self.worked_session(request).await?;
                works.insert(request, read);
            }
            if works
                .get(request)
                .is_some_and(|of| of.has_requested(question))
            {
                wanted.insert(question.id.to_string(), (question, request));
            }
        }
        let over = self
            .approval_files
            .iter()
            .filter(|approval| !wanted.contains_key(*approval));
        for approval in over.cloned().collect::<Vec<_>>() {
            let name = approval_file_name(&approval);
            self.with_disk(move |disk| disk.remove(Area::Asks, &name))
                .await??;
            self.approval_files.remove(&approval);
        }
        let new = wanted
            .into_iter()
            .filter(|(approval, _)| !self.approval_files.contains(approval));
        let new: Vec<_> = new
            .map(|(approval, (question, request))| {
                (approval, approval_json(question, request.stem()))
            })
            .collect();
        for (approval, text) in new {
            let name = approval_file_name(&approval);
            self.with_disk(move |disk| disk.put(Area::Asks, &name, text.as_bytes()))
                .await??;
            self.log_event("asked", &[("approval", &approval)]);
            self.approval_files.insert(approval);
        }
        Ok(())
    }

    /// What the journal says now that a request is worked in.
    async fn worked_session(&self, request: &RequestName) -> Result<WorkedSession, PlaneError> {
        let mut works = WorkedSession(None);
        let Some(open) = self.open.get(request) else {
            return Ok(works);
        };
        let Some(row) = self.row(&open.run).await? else {
            return Ok(works);
        };
        // Between two attempts the session may work something else.
        let is_worked = row.state == "running" || self.scope == SessionScope::Task;
        if is_worked && row.ended_at_us.is_none() {
            works.0 = row.session.zip(row.begun_at_us);
        }
        Ok(works)
    }

    /// Looks at the answers that came; each that can be given is on its way then.
    pub(super) async fn read_answers(&mut self) -> Result<(), PlaneError> {
        let found = self.with_disk(|disk| {
            disk.list(Area::Answers, |name| {
                AnswerName::parse(name).map(|_| name.to_owned())
            })
        });
        let mut done = Ok(());
        for name in found.await??.0 {
            if self.pending_answers.contains(&name)
                || self.pending_answers.len() >= FILE_PLANE_APPROVALS
            {
                continue;
            }
            if let Some(answer) = AnswerName::parse(&name) {
                done = done.and(self.read_answer(&name, &answer).await);
            }
        }
        done
    }

    async fn read_answer(&mut self, name: &str, of: &AnswerName) -> Result<(), PlaneError> {
        let asked = name.to_owned();
        let found = self
            .with_disk(move |disk| small(disk, Area::Answers, &asked))
            .await??;
        let (bytes, print) = match found {
            PlaneEntry::Missing => return Ok(()),
            PlaneEntry::Irregular(why) => return self.reject_answer(name, why).await,
            PlaneEntry::File(bytes, print) => (bytes, print),
        };
        if !self.config.answers {
            let why = "files here do not answer: file_plane.answers of the pool is false";
            return self.reject_answer(name, why).await;
        }
        let read = schema::parse_answer(of, &bytes);
        let may_change = matches!(read, Err(SchemaError::Broken(_))) || !print.has_one_name();
        if may_change {
            let now = Instant::now();
            if !self.settling.is_settled(Area::Answers, name, &print, now) {
                return Ok(());
            }
            if !print.has_one_name() {
                let why = "it has several names (hard links)";
                return self.reject_answer(name, why).await;
            }
        }
        let answer = match read {
            Ok(answer) => answer,
            Err(fault) => return self.reject_answer(name, fault.why()).await,
        };
        let approval = PermissionRequestId::new(&of.approval_id)
            .ok()
            .filter(|_| self.approval_files.contains(&of.approval_id));
        let Some(approval) = approval else {
            let why = "no approval of this name waits here: it is over, or was never one of this directory";
            return self.reject_answer(name, why).await;
        };
        let approver = self.config.answers_as.clone();
        let order = AnswerRequest {
            request_id: approval,
            digest: answer.digest,
            decision: answer.decision,
            reason: answer.reason,
            remember: RememberScope::Never,
            who: format!("files of {} as {approver}", self.pool),
            approver,
        };
        let name = name.to_owned();
        self.pending_answers.insert(name.clone());
        let fleet = self.fleet.clone();
        self.answers.spawn(async move {
            let answered = fleet.answer_approval(order).await;
            (name, answered, answer.decision)
        });
        Ok(())
    }

    /// What became of an answer.
    pub(super) async fn finish_answer(&mut self, done: AnswerResult) -> Result<(), PlaneError> {
        let (name, answered, decision) = done;
        self.pending_answers.remove(&name);
        self.has_new_approvals = true;
        match answered {
            Ok(answered) => {
                let gone = name.clone();
                self.with_disk(move |disk| disk.remove(Area::Answers, &gone))
                    .await??;
                self.settling.forget(Area::Answers, &name);
                let result = match decision {
                    Decision::Allow => FileAnswer::Allowed,
                    _ => FileAnswer::Denied,
                };
                self.emit_answer_event(&name, result, "");
                let state = answered.state.to_string();
                self.log_event("answered", &[("file", &name), ("state", &state)]);
                Ok(())
            }
            // It stays, and is looked at again.
            Err(error @ (AnswerError::ReadOnly | AnswerError::Journal(_) | AnswerError::Slow)) => {
                Err(PlaneError::FleetBusy(error.to_string()))
            }
            Err(error) => self.reject_answer(&name, &error.to_string()).await,
        }
    }

    async fn reject_answer(&mut self, name: &str, why: &str) -> Result<(), PlaneError> {
        let (aside, told) = (name.to_owned(), why.to_owned());
        self.with_disk(move |disk| disk.quarantine(Area::Answers, &aside, &told))
            .await??;
        self.settling.forget(Area::Answers, name);
        self.emit_answer_event(name, FileAnswer::Refused, why);
        let why = escape_for_display(why, 300);
        self.log_event("answer_refused", &[("file", name), ("why", &why)]);
        Ok(())
    }

    fn emit_answer_event(&self, name: &str, result: FileAnswer, why: &str) {
        AnswerFileHandled {
            pool: self.pool.as_str(),
            name,
            result,
            why,
        }
        .emit();
    }
}
