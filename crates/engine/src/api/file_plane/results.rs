//! Writes the results of requests.
//!
//! Owns that a result is on the disk before its request leaves `inflight/`, and that every request
//! gets a result, also one that never became a task.

use serde_json::Value;

use super::disk::{Area, Disk, PlaneEntry};
use super::output::{Output, OutputRead};
use super::requests::{ONLY, run_id_for};
use super::schema::{
    CommandStats, CommandStatus, RequestName, ResultFile, format_millis, result_status,
};
use super::{PlaneError, PlaneWorker, now_us};
use marshal_model::limits::FILE_PLANE_SMALL_BYTES;
use marshal_model::untrusted::escape_json_for_terminal;
use marshal_model::{SessionId, TaskOutcome};
use marshal_telemetry::labels::FileRequest;

/// The path of the newest output, relative to the plane's directory.
const TAIL: &str = "log/last_n_lines.txt";

pub(super) fn result_name(stem: &str) -> String {
    format!("{stem}.json")
}

fn output_name(stem: &str) -> String {
    format!("{stem}.out")
}

/// The name of the marker that a claimed file was submitted as a task.
pub(super) fn mark_name(stem: &str) -> String {
    format!("{stem}.run")
}

/// The name of the marker that a claimed file was cancelled.
pub(super) fn cancel_name(stem: &str) -> String {
    format!("{stem}.cancel")
}

/// Returns the stem of a marker's request.
pub(super) fn mark_stem(name: &str) -> Option<&str> {
    name.strip_suffix(".run")
        .or_else(|| name.strip_suffix(".cancel"))
}

/// Removes a request that has a result from `inflight/`. The request goes first: a marker without a
/// request has no meaning.
fn remove_inflight(disk: &Disk, name: &RequestName) -> Result<(), PlaneError> {
    disk.remove(Area::Inflight, &name.file())?;
    disk.remove(Area::Inflight, &mark_name(name.stem()))?;
    Ok(disk.remove(Area::Inflight, &cancel_name(name.stem()))?)
}

impl PlaneWorker {
    /// Writes the new output of one request, and its result if it has ended.
    pub(super) async fn write_progress(&mut self, name: &RequestName) -> Result<(), PlaneError> {
        let Some(open) = self.open.get_mut(name) else {
            return Ok(());
        };
        let (run, task) = (open.run.clone(), open.task.clone());
        let mut output = std::mem::take(&mut open.output);
        let (past, disk) = (self.history.clone(), self.disk.clone());
        let file = output_name(name.stem());
        let work = move || {
            let read = output.read(&past, &disk, &file, (&run, &task));
            (output, read)
        };
        let (output, read) = self.blocking(work).await?;
        if let Some(open) = self.open.get_mut(name) {
            // After a failure the written length is unknown, so everything is written again.
            open.output = if read.is_ok() {
                output
            } else {
                Output::default()
            };
        }
        let read = read?;
        self.tail.push(&read.tail);
        if read.is_complete() {
            // Later approvals of its session belong to another task, however long the result takes.
            self.forget_sessions_of(name);
            return self.write_result(name, &read).await;
        }
        let worked = read.row.as_ref().and_then(|row| row.session.as_deref());
        if let Some(session) = worked.and_then(|session| SessionId::new(session).ok())
            && self.by_session.insert(session, name.clone()).as_ref() != Some(name)
        {
            self.has_new_approvals = true;
        }
        let begun = read.row.and_then(|row| row.begun_at_us);
        if let Some(open) = self.open.get_mut(name) {
            open.is_dirty = false;
            self.is_state_dirty |= open.begun_at_us.is_none() && begun.is_some();
            open.begun_at_us = begun.or(open.begun_at_us);
        }
        Ok(())
    }

    /// Writes the result of an ended request, then forgets it.
    async fn write_result(
        &mut self,
        name: &RequestName,
        read: &OutputRead,
    ) -> Result<(), PlaneError> {
        self.tail.end_line();
        self.write_tail().await?;
        let (row, now) = (read.row.as_ref(), now_us());
        let Some(open) = self.open.get_mut(name) else {
            return Ok(());
        };
        let ended = row.and_then(|row| row.ended_at_us).unwrap_or(now);
        open.begun_at_us = row.and_then(|row| row.begun_at_us).or(open.begun_at_us);
        let begun = open.begun_at_us;
        let is_late = open.deadline_us().is_some_and(|until| ended >= until);
        let word = row.and_then(|row| row.outcome.as_deref());
        let outcome = word.and_then(TaskOutcome::parse);
        // A task that was cancelled before its turn has the outcome `skipped`.
        let was_cancelled = open.is_cancel_requested && outcome == Some(TaskOutcome::Skipped);
        let ending = if was_cancelled {
            Some(TaskOutcome::Cancelled)
        } else {
            outcome
        };
        let status = result_status(ending, is_late);
        let took = ended.saturating_sub(begun.unwrap_or(ended)) / 1000;
        let stem = name.stem().to_owned();
        let gone =
            "the journal no longer has this task, so its outcome is unknown; it is not run again";
        let report = row.and_then(|row| row.result.as_deref());
        let result = ResultFile {
            cmd_id: name.id(),
            status,
            start_ts: format_millis(begun.unwrap_or(ended)),
            end_ts: format_millis(ended),
            exit_reason: match status {
                CommandStatus::Ok => "completed",
                CommandStatus::Timeout => "timeout",
                CommandStatus::Cancelled => "cancelled",
                CommandStatus::Error => word.unwrap_or("lost"),
            },
            output_path: Some(format!("output/{}", output_name(&stem))),
            tail_path: Some(TAIL),
            stats: open.output.stats(u64::try_from(took).unwrap_or(0)),
            output_cut: open.output.is_cut,
            outcome: word,
            task: Some(format!("{}:{ONLY}", open.run)),
            detail: row.map_or(Some(gone), |row| {
                row.detail.as_deref().filter(|item| !item.is_empty())
            }),
            report: report.and_then(inner),
        };
        let text = result_json(&result);
        let mut output = std::mem::take(&mut open.output);
        let ended = name.clone();
        self.with_disk(move |disk| -> Result<(), PlaneError> {
            output.close(disk, &output_name(&stem))?;
            disk.put(Area::Result, &result_name(&stem), text.as_bytes())?;
            remove_inflight(disk, &ended)
        })
        .await??;
        let word = word.unwrap_or("lost").to_owned();
        self.log_request(name, "ended", Some(&word));
        self.forget(name);
        Ok(())
    }

    fn forget(&mut self, name: &RequestName) {
        if let Some(open) = self.open.remove(name) {
            self.by_run.remove(&open.run);
        }
        self.by_session.retain(|_, item| item != name);
        self.is_state_dirty = true;
        self.has_new_approvals = true;
    }

    /// Ends a request that did not become a task.
    pub(super) async fn end_unsubmitted(&mut self, name: &RequestName) -> Result<(), PlaneError> {
        let now = now_us();
        let text = result_json(&result_without_task(
            name,
            CommandStatus::Cancelled,
            "cancelled",
            None,
            now,
        ));
        let ended = name.clone();
        self.with_disk(move |disk| -> Result<(), PlaneError> {
            let result = result_name(ended.stem());
            disk.put(Area::Result, &result, text.as_bytes())?;
            remove_inflight(disk, &ended)
        })
        .await??;
        self.log_request(name, "cancelled", None);
        self.forget(name);
        Ok(())
    }

    /// Quarantines a file that cannot become a task, and writes a result for whoever waits for it.
    pub(super) async fn reject(
        &mut self,
        name: &RequestName,
        area: Area,
        why: &str,
        what: FileRequest,
    ) -> Result<(), PlaneError> {
        let result = result_without_task(
            name,
            CommandStatus::Error,
            what.as_str(),
            Some(why),
            now_us(),
        );
        let text = result_json(&result);
        let run = run_id_for(&self.pool, name.stem())?;
        // The name may belong to a running request.
        let is_free = area == Area::Inflight || !self.by_run.contains_key(&run);
        let stem = name.stem().to_owned();
        self.with_disk(move |disk| -> Result<(), PlaneError> {
            if is_free && !disk.has(Area::Result, &result_name(&stem)) {
                disk.put(Area::Result, &result_name(&stem), text.as_bytes())?;
            }
            Ok(())
        })
        .await??;
        self.quarantine(name, area, why, what).await
    }

    /// Quarantines a file whose name has or will have a result.
    pub(super) async fn quarantine(
        &mut self,
        name: &RequestName,
        area: Area,
        why: &str,
        what: FileRequest,
    ) -> Result<(), PlaneError> {
        let (file, told) = (name.file(), why.to_owned());
        self.with_disk(move |disk| disk.quarantine(area, &file, &told))
            .await??;
        self.settling.forget(Area::Queue, &name.file());
        self.emit_request_event(name, what, why);
        self.log_request(name, what.as_str(), Some(why));
        if area == Area::Inflight {
            self.forget(name);
        }
        Ok(())
    }
}

/// Parses a report, in the format of `run --results`, from its column.
fn inner(text: &str) -> Option<Value> {
    let mut stored: Value = serde_json::from_str(text).ok()?;
    stored.get_mut("report").map(Value::take)
}

fn result_without_task<'a>(
    name: &'a RequestName,
    status: CommandStatus,
    exit_reason: &'a str,
    detail: Option<&'a str>,
    now: i64,
) -> ResultFile<'a> {
    ResultFile {
        cmd_id: name.id(),
        status,
        start_ts: format_millis(now),
        end_ts: format_millis(now),
        exit_reason,
        output_path: None,
        tail_path: None,
        stats: CommandStats::default(),
        output_cut: false,
        outcome: None,
        task: None,
        detail,
        report: None,
    }
}

/// Returns the content of a result file; indented, because people read it with `cat`.
fn result_json(result: &ResultFile<'_>) -> String {
    let json = serde_json::to_string_pretty(result).unwrap_or_default();
    escape_json_for_terminal(&json) + "\n"
}

/// Reads a small file; an entry that is not a regular file is an error.
pub(super) fn small(disk: &Disk, area: Area, name: &str) -> Result<PlaneEntry, PlaneError> {
    Ok(disk.read(area, name, FILE_PLANE_SMALL_BYTES)?)
}
