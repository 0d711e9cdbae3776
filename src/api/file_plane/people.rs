//! What waits for a person, as files, and the files by which a person answers.
//!
//! Owns which asks a directory sees: those of its own requests, and no others. Must not know how an
//! answer is held against policy and digest: that is the fleet's.

use std::collections::BTreeMap;

use serde_json::Value;
use tokio::time::Instant;

use super::disk::{Area, Found};
use super::results::small;
use super::words::{self, AnswerName, Fault, RequestName, stamp};
use super::{Plane, Trouble};
use crate::api::asks::AskView;
use crate::config::SessionScope;
use crate::fleet::{AnswerError, AnswerOrder, Answered};
use crate::journal::StoredQuestion;
use crate::limits::FILE_PLANE_ASKS;
use crate::model::foreign::{json_for_terminal, show};
use crate::model::{AskId, Decision, Remember};
use crate::telemetry::event::file_plane::FileAnswered;
use crate::telemetry::sets::FileAnswer;

/// What came of one answer file.
pub(super) type AnswerDone = (String, Result<Answered, AnswerError>, Decision);

fn ask_name(ask: &str) -> String {
    format!("{ask}.json")
}

/// An ask as its file shows it: what the other doors show, the request, and the deadline once more
/// as the other files have times.
fn written(question: &StoredQuestion, request: &str) -> String {
    let mut view = serde_json::to_value(AskView::whole(question)).unwrap_or_default();
    if let Value::Object(entries) = &mut view {
        entries.insert("request".to_owned(), request.into());
        entries.insert("deadline".to_owned(), stamp(question.deadline_us).into());
    }
    let json = serde_json::to_string_pretty(&view).unwrap_or_default();
    json_for_terminal(&json) + "\n"
}

/// In which session a request is worked, and since when, if it is.
struct Works(Option<(String, i64)>);

impl Works {
    /// Whether it is its task that asks this: a session may work many, one after the other.
    fn has_asked(&self, question: &StoredQuestion) -> bool {
        self.0.as_ref().is_some_and(|(session, begun_at_us)| {
            session == question.session.as_str() && question.asked_at_us >= *begun_at_us
        })
    }
}

impl Plane {
    /// Takes note of the asks that an earlier start left as files.
    pub(super) async fn find_asks(&mut self) -> Result<(), Trouble> {
        let found = self.disk(|disk| {
            disk.list(Area::Asks, |name| {
                name.strip_suffix(".json").map(str::to_owned)
            })
        });
        let (names, _) = found.await??;
        self.shown.extend(names);
        self.are_asks_new = true;
        Ok(())
    }

    /// Shows what waits, and nothing else.
    pub(super) async fn show_asks(&mut self) -> Result<(), Trouble> {
        let waiting = if self.open.is_empty() {
            Vec::new()
        } else {
            self.fleet
                .questions(false)
                .await
                .map_err(Trouble::Journal)?
        };
        let mut wanted = BTreeMap::new();
        let mut works: BTreeMap<&RequestName, Works> = BTreeMap::new();
        for question in &waiting {
            let request = self.by_session.get(&question.session);
            let Some(request) = request.filter(|_| question.pool == self.pool) else {
                continue;
            };
            if wanted.len() >= FILE_PLANE_ASKS {
                break;
            }
            // Read after the asks: one that was not over then had asked them.
            if !works.contains_key(request) {
                let read = self.works(request).await?;
                works.insert(request, read);
            }
            if works.get(request).is_some_and(|of| of.has_asked(question)) {
                wanted.insert(question.ask.to_string(), (question, request));
            }
        }
        let over = self.shown.iter().filter(|ask| !wanted.contains_key(*ask));
        for ask in over.cloned().collect::<Vec<_>>() {
            let name = ask_name(&ask);
            self.disk(move |disk| disk.remove(Area::Asks, &name))
                .await??;
            self.shown.remove(&ask);
        }
        let new = wanted
            .into_iter()
            .filter(|(ask, _)| !self.shown.contains(ask));
        let new: Vec<_> = new
            .map(|(ask, (question, request))| (ask, written(question, request.stem())))
            .collect();
        for (ask, text) in new {
            let name = ask_name(&ask);
            self.disk(move |disk| disk.put(Area::Asks, &name, text.as_bytes()))
                .await??;
            self.note("asked", &[("ask", &ask)]);
            self.shown.insert(ask);
        }
        Ok(())
    }

    /// What the journal says now that a request is worked in.
    async fn works(&self, request: &RequestName) -> Result<Works, Trouble> {
        let mut works = Works(None);
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
    pub(super) async fn hear_answers(&mut self) -> Result<(), Trouble> {
        let found = self.disk(|disk| {
            disk.list(Area::Answers, |name| {
                AnswerName::parse(name).map(|_| name.to_owned())
            })
        });
        let mut done = Ok(());
        for name in found.await??.0 {
            if self.answering.contains(&name) || self.answering.len() >= FILE_PLANE_ASKS {
                continue;
            }
            if let Some(answer) = AnswerName::parse(&name) {
                done = done.and(self.hear(&name, &answer).await);
            }
        }
        done
    }

    async fn hear(&mut self, name: &str, of: &AnswerName) -> Result<(), Trouble> {
        let asked = name.to_owned();
        let found = self
            .disk(move |disk| small(disk, Area::Answers, &asked))
            .await??;
        let (bytes, print) = match found {
            Found::Nothing => return Ok(()),
            Found::Odd(why) => return self.refuse_answer(name, why).await,
            Found::File(bytes, print) => (bytes, print),
        };
        if !self.keys.answers {
            let why = "files here do not answer: file_plane.answers of the pool is false";
            return self.refuse_answer(name, why).await;
        }
        let read = words::answer(of, &bytes);
        let may_change = matches!(read, Err(Fault::Broken(_))) || !print.has_one_name();
        if may_change {
            let now = Instant::now();
            if !self.settling.is_settled(Area::Answers, name, &print, now) {
                return Ok(());
            }
            if !print.has_one_name() {
                let why = "it has several names (hard links)";
                return self.refuse_answer(name, why).await;
            }
        }
        let answer = match read {
            Ok(answer) => answer,
            Err(fault) => return self.refuse_answer(name, fault.why()).await,
        };
        let ask = AskId::new(&of.ask)
            .ok()
            .filter(|_| self.shown.contains(&of.ask));
        let Some(ask) = ask else {
            let why =
                "no ask of this name waits here: it is over, or was never one of this directory";
            return self.refuse_answer(name, why).await;
        };
        let approver = self.keys.answers_as.clone();
        let order = AnswerOrder {
            ask,
            digest: answer.digest,
            decision: answer.decision,
            said: answer.reason,
            remember: Remember::Never,
            who: format!("files of {} as {approver}", self.pool),
            approver,
        };
        let name = name.to_owned();
        self.answering.insert(name.clone());
        let fleet = self.fleet.clone();
        self.answers.spawn(async move {
            let answered = fleet.answer(order).await;
            (name, answered, answer.decision)
        });
        Ok(())
    }

    /// What became of an answer.
    pub(super) async fn answered(&mut self, done: AnswerDone) -> Result<(), Trouble> {
        let (name, answered, decision) = done;
        self.answering.remove(&name);
        self.are_asks_new = true;
        match answered {
            Ok(answered) => {
                let gone = name.clone();
                self.disk(move |disk| disk.remove(Area::Answers, &gone))
                    .await??;
                self.settling.forget(Area::Answers, &name);
                let result = match decision {
                    Decision::Allow => FileAnswer::Allowed,
                    _ => FileAnswer::Denied,
                };
                self.told_answer(&name, result, "");
                let state = answered.state.to_string();
                self.note("answered", &[("file", &name), ("state", &state)]);
                Ok(())
            }
            // It stays, and is looked at again.
            Err(error @ (AnswerError::ReadOnly | AnswerError::Journal(_) | AnswerError::Slow)) => {
                Err(Trouble::Later(error.to_string()))
            }
            Err(error) => self.refuse_answer(&name, &error.to_string()).await,
        }
    }

    async fn refuse_answer(&mut self, name: &str, why: &str) -> Result<(), Trouble> {
        let (aside, told) = (name.to_owned(), why.to_owned());
        self.disk(move |disk| disk.reject(Area::Answers, &aside, &told))
            .await??;
        self.settling.forget(Area::Answers, name);
        self.told_answer(name, FileAnswer::Refused, why);
        let why = show(why, 300);
        self.note("answer_refused", &[("file", name), ("why", &why)]);
        Ok(())
    }

    fn told_answer(&self, name: &str, result: FileAnswer, why: &str) {
        FileAnswered {
            pool: self.pool.as_str(),
            name,
            result,
            why,
        }
        .emit();
    }
}
