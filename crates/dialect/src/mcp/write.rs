//! What the server writes, as lines.
//!
//! Must not know when they are written.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Effect, Era, Refusal, schema};
use crate::jsonrpc::RequestId;
use marshal_model::{ClientErrorKind, EngineResult};

/// The line is not JSON.
pub(super) const PARSE: i32 = -32700;
/// The request is not allowed in this state.
pub(super) const INVALID_REQUEST: i32 = -32600;
/// The method is unknown.
pub(super) const METHOD_NOT_FOUND: i32 = -32601;
/// The parameters are invalid.
pub(super) const INVALID_PARAMS: i32 = -32602;
/// The request cannot be carried out.
pub const INTERNAL: i32 = -32603;

/// The request names a version that is not supported.
pub(super) const UNSUPPORTED_VERSION: i32 = -32022;

/// The member of a result that has the version of its file.
const VERSION: &str = "marshal/version";

/// The answer to a request: without a handshake it says that it is complete, and who answers.
pub(super) fn result(id: &RequestId, era: Era, mut result: Value) -> Effect {
    if era == Era::Stateless {
        result["resultType"] = "complete".into();
        result["_meta"]["io.modelcontextprotocol/serverInfo"] = schema::server_info();
    }
    reply(id, &result)
}

fn reply(id: &RequestId, result: &impl Serialize) -> Effect {
    #[derive(Serialize)]
    struct Reply<'a, T> {
        jsonrpc: &'static str,
        id: &'a RawValue,
        result: &'a T,
    }
    let id = RawValue::from_string(id.json().to_owned())
        .unwrap_or_else(|_| marshal_wire::json::null_value());
    let reply = Reply {
        jsonrpc: "2.0",
        id: &id,
        result,
    };
    Effect::Write(line(&reply))
}

/// The error answer to a request.
pub(super) fn error(id: Option<&RequestId>, code: i32, why: &str) -> Effect {
    Effect::Write(error_line(id.map(RequestId::json), code, why))
}

/// The error answer to a refused request.
pub(super) fn refusal(id: &RequestId, refusal: &Refusal) -> Effect {
    let Refusal { code, why, data } = refusal;
    let Some(data) = data else {
        return error(Some(id), *code, why);
    };
    let id = RawValue::from_string(id.json().to_owned()).ok();
    Effect::Write(line(&json!({
        "jsonrpc": "2.0",
        "id": id,
        "error": {"code": code, "message": why, "data": data},
    })))
}

/// The line of an error; `id` is JSON.
#[must_use]
pub fn error_line(id: Option<&str>, code: i32, why: &str) -> Vec<u8> {
    let id = id.and_then(|id| RawValue::from_string(id.to_owned()).ok());
    line(&json!({
        "jsonrpc": "2.0",
        "id": id,
        "error": {"code": code, "message": why},
    }))
}

/// The result of a call. A denial is a result too, so that the model reads it.
pub(super) fn call_result(answer: &EngineResult) -> Value {
    let version = answer.as_ref().ok().and_then(|done| done.version);
    let (text, is_error) = match answer {
        Ok(done) => (done.text.clone(), false),
        Err(error) => {
            let before = match error.kind {
                ClientErrorKind::Denied => "denied: ",
                ClientErrorKind::NotFound => "not found: ",
                ClientErrorKind::Cancelled => "cancelled: ",
                ClientErrorKind::Invalid | ClientErrorKind::Failed => "",
            };
            (format!("{before}{}", error.message), true)
        }
    };
    let content = json!([{"type": "text", "text": text}]);
    let mut done = json!({"content": content, "isError": is_error});
    if let Some(version) = version {
        done["_meta"] = json!({VERSION: version});
    }
    done
}

fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}
