//! What the agent requests from its client: `fs/…`, `terminal/…` and `elicitation/…`. Source: Agent
//! Client Protocol, version 1, pages "File System", "Terminals" and "Elicitation".
//!
//! Owns when such a request is accepted: only for offered capabilities, in our session, and files
//! and new terminals only during a turn. Must not carry anything out and must not decide. A request
//! goes on as an effect, with what is evaluated, and its answer comes back as a command.

mod answers;
mod elicitation;
mod params;
mod recorded_request;

pub use recorded_request::parse_recorded_request;

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use self::elicitation::Form;
use super::{Acp, Turn};
use crate::jsonrpc::{RequestId, VERSIONED};
use crate::open_requests::{OpenRequests, RejectReason, RequestIds};
use crate::{DialectError, Effect, Effects, OUT_OF_STATE, report_bad_line};
use marshal_model::limits::{
    CLIENT_FILE_BYTES, CLIENT_OPEN_BYTES, CLIENT_PATH_BYTES, FOREIGN_ID_BYTES,
    PERMISSION_INPUT_BYTES,
};
use marshal_model::{
    AGREED_WITHOUT_COMMENT, AgentClaims, ClientCall, ClientError, ClientErrorKind, ClientMethod,
    ClientOutput, ClientResult, EngineTool, PermissionRequest, PermissionRequestKey,
};

/// An open request to the client.
#[derive(Debug)]
struct OpenCall {
    method: ClientMethod,
    /// The amount of text that it carries, in bytes.
    bytes: usize,
    /// What the answer to a question must fit.
    form: Form,
}

/// The open requests to the client.
#[derive(Debug, Default)]
pub(super) struct ClientRequests {
    open: OpenRequests<OpenCall>,
    /// The text of all of them together, in bytes.
    text_bytes: usize,
}

impl ClientRequests {
    /// Ends a request, if it is open; it gets no answer any more.
    pub(super) fn close(&mut self, id: &str) -> Option<PermissionRequestKey> {
        let (key, call) = self.open.close(id)?;
        self.text_bytes = self.text_bytes.saturating_sub(call.bytes);
        Some(key)
    }

    /// Ends the open request whose id a new request repeats.
    fn close_original(&mut self, ids: &mut RequestIds, id: &str) -> Option<PermissionRequestKey> {
        let (key, call) = self.open.close_original(ids, id)?;
        self.text_bytes = self.text_bytes.saturating_sub(call.bytes);
        Some(key)
    }

    /// Ends all of them.
    pub(super) fn close_all(&mut self) -> Vec<PermissionRequestKey> {
        self.text_bytes = 0;
        let all = self.open.close_all().into_iter();
        all.map(|(key, _)| key).collect()
    }
}

/// A rejected request: the error's code and message, and the reason under which the line is
/// counted, if it is the agent's fault.
struct RejectedRequest {
    bad_line_reason: Option<&'static str>,
    code: i32,
    message: String,
}

impl RejectedRequest {
    fn new(counted: impl Into<Option<&'static str>>, code: i32, message: &str) -> Self {
        Self {
            bad_line_reason: counted.into(),
            code,
            message: message.to_owned(),
        }
    }
}

impl Acp {
    /// Handles a request to the client; `false` if its method was not offered.
    pub(super) fn client_request(
        &mut self,
        id: &RequestId,
        method: &str,
        params: Option<&RawValue>,
        line: &[u8],
        out: &mut Effects,
    ) -> bool {
        let method = ClientMethod::parse(method);
        let Some(method) =
            method.filter(|method| self.opening.client_capabilities.supports(*method))
        else {
            return false;
        };
        match self.accept_client_request(id, method, params, out) {
            Ok(()) => {}
            Err(RejectedRequest {
                bad_line_reason: counted,
                code,
                message,
            }) => {
                if let Some(reason) = counted {
                    report_bad_line(reason, line, out);
                }
                out.push(Effect::Write(VERSIONED.error(id.json(), code, &message)));
            }
        }
        true
    }

    fn accept_client_request(
        &mut self,
        id: &RequestId,
        method: ClientMethod,
        params: Option<&RawValue>,
        out: &mut Effects,
    ) -> Result<(), RejectedRequest> {
        if !self.channel.is_ready() || self.channel.is_shutting_down {
            let why = "no session is open for this request";
            return Err(RejectedRequest::new(
                OUT_OF_STATE,
                answers::INVALID_REQUEST,
                why,
            ));
        }
        // Checked before the list is built. What is evaluated has the same bound.
        let is_long = |raw: &&RawValue| raw.get().len() > PERMISSION_INPUT_BYTES;
        let is_list = matches!(
            method,
            ClientMethod::TerminalCreate | ClientMethod::ElicitationCreate
        );
        if is_list && params.as_ref().is_some_and(is_long) {
            let why = format!("the parameters are longer than {PERMISSION_INPUT_BYTES} bytes");
            return Err(RejectedRequest::new(None, answers::INVALID_PARAMS, &why));
        }
        let (session, call, form) = read(method, params)?;
        if session.is_some_and(|session| self.is_other_session(&session)) {
            let why = "Resource not found: the session is not open here";
            return Err(RejectedRequest::new("unknown_id", answers::NOT_FOUND, why));
        }
        let begins = !matches!(call, ClientCall::Terminal { .. });
        if begins && self.cancelling {
            let why = "the turn was cancelled";
            return Err(RejectedRequest::new(None, answers::CANCELLED, why));
        }
        if begins && self.turn == Turn::None {
            let why = "no turn is running: file requests and new terminals need a running turn";
            return Err(RejectedRequest::new(
                OUT_OF_STATE,
                answers::INVALID_REQUEST,
                why,
            ));
        }
        let bytes = fits(&call)?;
        if self.client.text_bytes + bytes > CLIENT_OPEN_BYTES {
            let why = "too much text is waiting to be written";
            return Err(RejectedRequest::new(
                "too_many_asks",
                answers::INTERNAL,
                why,
            ));
        }
        let open = &mut self.client.open;
        let opened = OpenCall {
            method,
            bytes,
            form,
        };
        let key = open
            .open(&mut self.ids, id.json(), opened)
            .map_err(|clash| match clash {
                RejectReason::Duplicate => {
                    let why = "a request with this id was sent before";
                    RejectedRequest::new("duplicate_id", answers::INVALID_REQUEST, why)
                }
                RejectReason::TooMany => {
                    let why = "too many requests are open at the same time";
                    RejectedRequest::new("too_many_asks", answers::INTERNAL, why)
                }
                RejectReason::LongId => {
                    let why = "the id of the request is too long";
                    RejectedRequest::new("bad_shape", answers::INVALID_REQUEST, why)
                }
            })?;
        self.client.text_bytes += bytes;
        if begins {
            self.note_turn_activity(out);
        }
        let ask = call
            .policy_request()
            .is_some()
            .then(|| build_permission_request(&key, &call));
        out.push(Effect::ClientRequest {
            key,
            call,
            permission_request: ask,
        });
        Ok(())
    }

    /// Sends the answer to such a request.
    pub(super) fn client_answer(
        &mut self,
        key: &PermissionRequestKey,
        answer: &ClientResult,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        let open = self.client.open.close_by_key(key);
        let OpenCall {
            method,
            bytes,
            form,
        } = open.ok_or(DialectError::UnknownRequest)?;
        self.client.text_bytes = self.client.text_bytes.saturating_sub(bytes);
        let line = match answer {
            _ if method == ClientMethod::ElicitationCreate => elicited(&key.id, &form, answer),
            Ok(done) => answers::success(&key.id, method, done),
            Err(error) => VERSIONED.error(&key.id, code(error.kind), &error_message(error)),
        };
        out.push(Effect::Write(line));
        Ok(())
    }

    /// A request has the id of an open one to the client. It is unclear which of them an answer
    /// would be for, so the older one gets none.
    pub(super) fn close_duplicate_client_request(
        &mut self,
        id: &RequestId,
        line: &[u8],
        out: &mut Effects,
    ) {
        if let Some(key) = self.client.close_original(&mut self.ids, id.json()) {
            report_bad_line("duplicate_id", line, out);
            out.push(Effect::RequestWithdrawn(key));
        }
    }
}

/// Reads the session that a request names, the request, and what the answer to a question must fit.
fn read(
    method: ClientMethod,
    params: Option<&RawValue>,
) -> Result<(Option<String>, ClientCall, Form), RejectedRequest> {
    let bad = |why: &str| RejectedRequest::new("bad_shape", answers::INVALID_PARAMS, why);
    let missing = "a parameter is missing or has the wrong type";
    let params = params.ok_or_else(|| bad(missing))?;
    if method == ClientMethod::ElicitationCreate {
        let read = elicitation::read(params).map_err(|why| bad(&why))?;
        return Ok((read.session, read.call, read.form));
    }
    let (session, call) = params::read(method, params).ok_or_else(|| bad(missing))?;
    Ok((Some(session), call, Form::default()))
}

/// The answer to a question.
fn elicited(id: &str, form: &Form, answer: &ClientResult) -> Vec<u8> {
    let given = match answer {
        Ok(ClientOutput::Text(text)) => {
            form.content(Some(text.as_str()).filter(|text| *text != AGREED_WITHOUT_COMMENT))
        }
        Ok(_) => form.content(None),
        Err(error) => {
            let action = match error.kind {
                ClientErrorKind::Denied => "decline",
                ClientErrorKind::Cancelled => "cancel",
                kind => return VERSIONED.error(id, code(kind), &error.message),
            };
            return answers::elicited(id, action, None);
        }
    };
    match given {
        Ok(content) => answers::elicited(id, "accept", Some(&content)),
        Err(why) => {
            let message = format!("the person's answer cannot be used: {why}");
            VERSIONED.error(id, answers::INTERNAL, &message)
        }
    }
}

const fn code(fault: ClientErrorKind) -> i32 {
    match fault {
        ClientErrorKind::NotFound => answers::NOT_FOUND,
        ClientErrorKind::Invalid => answers::INVALID_PARAMS,
        ClientErrorKind::Cancelled => answers::CANCELLED,
        ClientErrorKind::Denied | ClientErrorKind::Failed => answers::INTERNAL,
    }
}

/// The message of an error. Agents recognize a missing file by the code, by these first words, or
/// by the system's own words, so all three are there.
fn error_message(error: &ClientError) -> String {
    match error.kind {
        ClientErrorKind::NotFound => format!(
            "Resource not found: {} (ENOENT: No such file or directory)",
            error.message
        ),
        ClientErrorKind::Denied => format!("permission denied: {}", error.message),
        _ => error.message.clone(),
    }
}

/// How much text a request carries. Larger requests are rejected.
fn fits(call: &ClientCall) -> Result<usize, RejectedRequest> {
    let too_long = |what: &str| RejectedRequest::new(None, answers::INVALID_PARAMS, what);
    match call {
        ClientCall::Read { path, .. } | ClientCall::Write { path, .. }
            if path.len() > CLIENT_PATH_BYTES =>
        {
            Err(too_long("the path is too long"))
        }
        ClientCall::Write { content, .. } if content.len() > CLIENT_FILE_BYTES => {
            let most = CLIENT_FILE_BYTES;
            Err(too_long(&format!("the text is longer than {most} bytes")))
        }
        ClientCall::Terminal { id, .. } if id.len() > FOREIGN_ID_BYTES => {
            Err(too_long("the id of the terminal is too long"))
        }
        ClientCall::Write { content, .. } => Ok(content.len()),
        _ => Ok(0),
    }
}

/// The permission request for a request to the client, as it is recorded. Of a text it has the
/// length and digest, not the text.
fn build_permission_request(
    key: &PermissionRequestKey,
    call: &ClientCall,
) -> Box<PermissionRequest> {
    let input = match call {
        ClientCall::Read { path, line, limit } => {
            serde_json::json!({"path": path, "line": line, "limit": limit})
        }
        ClientCall::Write { path, content } => serde_json::json!({
            "path": path,
            "bytes": content.len(),
            "sha256": hex::encode(Sha256::digest(content.as_bytes())),
        }),
        ClientCall::Run(spec) => {
            let env: Vec<_> = spec
                .env
                .iter()
                .map(|(name, value)| serde_json::json!({"name": name, "value": value}))
                .collect();
            serde_json::json!({"command": spec.argv, "cwd": spec.cwd, "env": env})
        }
        ClientCall::Terminal { id, .. } => serde_json::json!({"terminalId": id}),
        ClientCall::Ask { question, options } => {
            serde_json::json!({"question": question, "options": options})
        }
    };
    // A question is the same whichever way an agent asks it.
    let tool = match call {
        ClientCall::Ask { .. } => EngineTool::AskPerson.record_name(),
        call => call.method().as_str().to_owned(),
    };
    Box::new(PermissionRequest {
        key: key.clone(),
        tool_id: None,
        tool: tool.into(),
        input: serde_json::value::to_raw_value(&input)
            .unwrap_or_else(|_| marshal_wire::json::null_value()),
        claims: AgentClaims::default(),
    })
}
