//! Directories by which pools are worked: what came in, and what became of it. No text of a file is
//! in any of these.

use super::WIDTH;
use crate::labels::{FileAnswer, FileRequest};
use crate::meters::counter;
use crate::names;
use marshal_model::untrusted::escape_for_display;

/// A request file was looked at for the last time.
#[derive(Debug)]
pub struct RequestFileHandled<'a> {
    /// Whose directory.
    pub pool: &'a str,
    /// The file's name; foreign.
    pub name: &'a str,
    /// What became of it.
    pub result: FileRequest,
    /// Why, in our words; may hold foreign text.
    pub why: &'a str,
}

impl RequestFileHandled<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(
            &names::FILE_PLANE_REQUESTS,
            &[self.pool, self.result.word()],
        )
        .increment(1);
        let (name, why) = (
            escape_for_display(self.name, WIDTH),
            escape_for_display(self.why, WIDTH),
        );
        match self.result {
            FileRequest::Taken | FileRequest::Repeated => {
                tracing::debug!(pool = self.pool, name, result = %self.result, "a request file");
            }
            FileRequest::Refused | FileRequest::Rejected => {
                tracing::warn!(pool = self.pool, name, result = %self.result, why, "a request file was not taken");
            }
        }
    }
}

/// A file with an answer was looked at for the last time.
#[derive(Debug)]
pub struct AnswerFileHandled<'a> {
    /// Whose directory.
    pub pool: &'a str,
    /// The file's name; foreign.
    pub name: &'a str,
    /// What became of it.
    pub result: FileAnswer,
    /// Why, in our words; may hold foreign text.
    pub why: &'a str,
}

impl AnswerFileHandled<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(&names::FILE_PLANE_ANSWERS, &[self.pool, self.result.word()]).increment(1);
        let (name, why) = (
            escape_for_display(self.name, WIDTH),
            escape_for_display(self.why, WIDTH),
        );
        match self.result {
            FileAnswer::Refused => {
                tracing::warn!(pool = self.pool, name, why, "an answer file was not taken");
            }
            result => tracing::info!(pool = self.pool, name, %result, "an answer file"),
        }
    }
}

/// A directory cannot be worked now, or can be again.
#[derive(Debug)]
pub struct FilePlaneState<'a> {
    /// Whose directory.
    pub pool: &'a str,
    /// Why not, in our words; `None`: it can.
    pub fault: Option<&'a str>,
}

impl FilePlaneState<'_> {
    /// Logs, and shows it.
    pub fn emit(self) {
        let up = if self.fault.is_none() { 1.0 } else { 0.0 };
        crate::meters::gauge(&names::FILE_PLANE_UP, &[self.pool]).set(up);
        match self.fault {
            None => tracing::info!(pool = self.pool, "its file plane is worked"),
            Some(why) => {
                let why = escape_for_display(why, WIDTH);
                tracing::error!(pool = self.pool, why, "its file plane cannot be worked");
            }
        }
    }
}
