//! File planes: directories through which pools receive tasks and approvals. No event contains the
//! text of a file.

use super::WIDTH;
use crate::labels::{FileAnswer, FileRequest};
use crate::meters::counter;
use crate::names;
use marshal_model::untrusted::escape_for_display;

/// A request file was handled and will not be read again.
#[derive(Debug)]
pub struct RequestFileHandled<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The file's name; foreign text.
    pub name: &'a str,
    /// The result.
    pub result: FileRequest,
    /// The reason, in marshal's words; may contain foreign text.
    pub why: &'a str,
}

impl RequestFileHandled<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(
            &names::FILE_PLANE_REQUESTS,
            &[self.pool, self.result.as_str()],
        )
        .increment(1);
        let (name, why) = (
            escape_for_display(self.name, WIDTH),
            escape_for_display(self.why, WIDTH),
        );
        match self.result {
            FileRequest::Taken | FileRequest::Repeated => {
                tracing::debug!(pool = self.pool, name, result = %self.result, "request file handled");
            }
            FileRequest::Refused | FileRequest::Rejected => {
                tracing::warn!(pool = self.pool, name, result = %self.result, why, "request file rejected");
            }
        }
    }
}

/// An answer file was handled and will not be read again.
#[derive(Debug)]
pub struct AnswerFileHandled<'a> {
    /// The pool.
    pub pool: &'a str,
    /// The file's name; foreign text.
    pub name: &'a str,
    /// The result.
    pub result: FileAnswer,
    /// The reason, in marshal's words; may contain foreign text.
    pub why: &'a str,
}

impl AnswerFileHandled<'_> {
    /// Logs and counts.
    pub fn emit(self) {
        counter(
            &names::FILE_PLANE_ANSWERS,
            &[self.pool, self.result.as_str()],
        )
        .increment(1);
        let (name, why) = (
            escape_for_display(self.name, WIDTH),
            escape_for_display(self.why, WIDTH),
        );
        match self.result {
            FileAnswer::Refused => {
                tracing::warn!(pool = self.pool, name, why, "answer file refused");
            }
            result => tracing::info!(pool = self.pool, name, %result, "answer file handled"),
        }
    }
}

/// A file plane became unavailable, or available again.
#[derive(Debug)]
pub struct FilePlaneState<'a> {
    /// The pool.
    pub pool: &'a str,
    /// Why it is unavailable; `None` if it is available.
    pub fault: Option<&'a str>,
}

impl FilePlaneState<'_> {
    /// Logs and sets the gauge.
    pub fn emit(self) {
        let up = if self.fault.is_none() { 1.0 } else { 0.0 };
        crate::meters::gauge(&names::FILE_PLANE_UP, &[self.pool]).set(up);
        match self.fault {
            None => tracing::info!(pool = self.pool, "file plane available"),
            Some(why) => {
                let why = escape_for_display(why, WIDTH);
                tracing::error!(pool = self.pool, why, "file plane unavailable");
            }
        }
    }
}
