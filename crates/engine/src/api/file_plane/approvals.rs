//! Approvals as files, and the files by which an approver answers them.
//!
//! Owns which approvals a directory shows: only those of its own requests. Must not know how the
//! fleet checks an answer against policy and digest.

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

/// The name of an answer file and the result of its answer.
pub(super) type AnswerResult = (String, Result<AnswerReceipt, AnswerError>, Decision);

fn approval_file_name(approval: &str) -> String {
    format!("{approval}.json")
}

/// Returns the JSON of an approval's file: the view that other clients get, the request's name, and
/// the deadline in the time format of the other files.
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

/// The session in which a request runs, and since when; `None` while it does not run.
struct WorkedSession(Option<(String, i64)>);

impl WorkedSession {
    /// Whether an approval belongs to this request's task: a session may run several tasks, one
    /// after the other.
    fn has_requested(&self, question: &StoredApproval) -> bool {
        self.0.as_ref().is_some_and(|(session, begun_at_us)| {
            session == question.session.as_str() && question.requested_at_us >= *begun_at_us
        })
    }
}

impl PlaneWorker {
    /// Records the approval files that an earlier start left.
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

    /// Writes the files of pending approvals, and removes all others.
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
            // This is read after the approvals: a task that had not ended then had requested them.
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

    /// Returns the session in which the journal says that a request runs.
    async fn worked_session(&self, request: &RequestName) -> Result<WorkedSession, PlaneError> {
        let mut works = WorkedSession(None);
        let Some(open) = self.open.get(request) else {
            return Ok(works);
        };
        let Some(row) = self.row(&open.run).await? else {
            return Ok(works);
        };
        // Between two attempts, the session may run another task.
        let is_worked = row.state == "running" || self.scope == SessionScope::Task;
        if is_worked && row.ended_at_us.is_none() {
            works.0 = row.session.zip(row.begun_at_us);
        }
        Ok(works)
    }

    /// Reads the answer files, and submits every valid answer.
    pub(super) async fn read_answers(&mut self) -> Result<(), PlaneError> {
        let names = self.with_disk(|disk| {
            disk.list(Area::Answers, |name| {
                AnswerName::parse(name).map(|_| name.to_owned())
            })
        });
        let mut done = Ok(());
        for name in names.await??.0 {
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
        let file = name.to_owned();
        let found = self
            .with_disk(move |disk| small(disk, Area::Answers, &file))
            .await??;
        let (bytes, print) = match found {
            PlaneEntry::Missing => return Ok(()),
            PlaneEntry::Irregular(why) => return self.reject_answer(name, why).await,
            PlaneEntry::Regular((bytes, print)) => (bytes, print),
        };
        if !self.config.answers {
            let why =
                "files may not answer approvals here: file_plane.answers of the pool is false";
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
            let why = "no approval of this name is pending here: it has ended, or never belonged to this directory";
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

    /// Handles the result of an answer.
    pub(super) async fn finish_answer(&mut self, done: AnswerResult) -> Result<(), PlaneError> {
        let (name, answered, decision) = done;
        self.pending_answers.remove(&name);
        self.has_new_approvals = true;
        match answered {
            Ok(answered) => {
                let removed = name.clone();
                self.with_disk(move |disk| disk.remove(Area::Answers, &removed))
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
            // The file stays and is read again in a later round.
            Err(error @ (AnswerError::ReadOnly | AnswerError::Journal(_) | AnswerError::Slow)) => {
                Err(PlaneError::FleetBusy(error.to_string()))
            }
            Err(error) => self.reject_answer(&name, &error.to_string()).await,
        }
    }

    async fn reject_answer(&mut self, name: &str, why: &str) -> Result<(), PlaneError> {
        let (file, reason) = (name.to_owned(), why.to_owned());
        self.with_disk(move |disk| disk.quarantine(Area::Answers, &file, &reason))
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
