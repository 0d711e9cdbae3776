//! The parameters and the answers of the client.
//!
//! Must not know the handling of messages.

use std::path::PathBuf;

use serde_json::Value;

use crate::script_agent::rpc::{Params, RpcError};

impl Params {
    /// The version in `initialize`: a 16-bit number, as in the schema.
    pub(super) fn version(&self) -> Result<u16, RpcError> {
        let version = self.value("protocolVersion").as_u64();
        version
            .and_then(|version| u16::try_from(version).ok())
            .ok_or_else(|| RpcError::invalid_params("`protocolVersion` is a number up to 65535"))
    }

    /// The working directory of a session.
    pub(super) fn cwd(&self) -> Result<PathBuf, RpcError> {
        let cwd = PathBuf::from(self.text("cwd")?);
        if !cwd.is_absolute() {
            return Err(RpcError::invalid_params("`cwd` is an absolute path"));
        }
        Ok(cwd)
    }

    /// The list of tool servers, which every new or loaded session must have.
    pub(super) fn servers(&self) -> Result<&[Value], RpcError> {
        match self.value("mcpServers") {
            Value::Array(servers) => Ok(servers),
            _ => Err(RpcError::invalid_params("`mcpServers` is a list")),
        }
    }

    /// The text of a prompt: its text blocks, concatenated. Links are not read.
    pub(super) fn prompt(&self) -> Result<String, RpcError> {
        let Value::Array(blocks) = self.value("prompt") else {
            return Err(RpcError::invalid_params("`prompt` is a list"));
        };
        let mut lines = Vec::new();
        for block in blocks {
            let (text, why) = match block["type"].as_str() {
                Some("text") => (&block["text"], "a text block has a `text`"),
                Some("resource") => (&block["resource"]["text"], "a resource has a `text` here"),
                Some("resource_link") => continue,
                _ => {
                    let why = "a prompt's blocks are `text`, `resource` and `resource_link`";
                    return Err(RpcError::invalid_params(why));
                }
            };
            let text = text.as_str();
            lines.push(text.ok_or_else(|| RpcError::invalid_params(why))?);
        }
        Ok(lines.join("\n"))
    }
}

/// The ids of the choices in a permission request.
const ALWAYS: &str = "option-1";
const REJECT: &str = "option-2";
const ONCE: &str = "option-3";

/// The client's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PermissionChoice {
    Once,
    Always,
    Reject,
    /// The client cancelled the request.
    Cancelled,
    /// Not an answer of this protocol.
    Invalid,
}

/// Parses the result of a permission request.
pub(super) fn parse_choice(result: Option<&Value>) -> PermissionChoice {
    let Some(outcome) = result.and_then(|result| result.get("outcome")) else {
        return PermissionChoice::Invalid;
    };
    match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
        (Some("cancelled"), _) => PermissionChoice::Cancelled,
        (Some("selected"), Some(ONCE)) => PermissionChoice::Once,
        (Some("selected"), Some(ALWAYS)) => PermissionChoice::Always,
        (Some("selected"), Some(REJECT)) => PermissionChoice::Reject,
        _ => PermissionChoice::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn params(value: Value) -> Params {
        Params::from_value(Some(value)).unwrap()
    }

    #[test]
    fn parameters_are_read_as_the_schema_has_them() {
        assert_eq!(params(json!({"protocolVersion": 2})).version(), Ok(2));
        for wrong in [json!("1"), json!(-1), json!(65536), json!(1.5), json!(null)] {
            assert!(params(json!({"protocolVersion": wrong})).version().is_err());
        }
        assert!(params(json!({"cwd": "/a"})).cwd().is_ok());
        assert!(params(json!({"cwd": "a"})).cwd().is_err());
        assert!(params(json!({})).cwd().is_err());
        assert!(params(json!({})).servers().is_err());
        let prompt = json!([
            {"type": "text", "text": "say a"},
            {"type": "resource_link", "uri": "file:///x", "name": "x"},
            {"type": "text", "text": "say b"},
        ]);
        assert_eq!(
            params(json!({"prompt": prompt})).prompt(),
            Ok("say a\nsay b".to_owned())
        );
        for wrong in [json!("say"), json!([{"type": "image"}]), json!([1])] {
            assert!(params(json!({"prompt": wrong})).prompt().is_err());
        }
    }

    #[test]
    fn only_the_protocols_own_form_chooses() {
        for (outcome, expect) in [
            (
                json!({"outcome": "selected", "optionId": ONCE}),
                PermissionChoice::Once,
            ),
            (
                json!({"outcome": "selected", "optionId": ALWAYS}),
                PermissionChoice::Always,
            ),
            (
                json!({"outcome": "selected", "optionId": REJECT}),
                PermissionChoice::Reject,
            ),
            (json!({"outcome": "cancelled"}), PermissionChoice::Cancelled),
            (json!({"outcome": "selected"}), PermissionChoice::Invalid),
            (
                json!({"outcome": "selected", "optionId": "allow"}),
                PermissionChoice::Invalid,
            ),
            (
                json!({"kind": "allowed", "optionId": ONCE}),
                PermissionChoice::Invalid,
            ),
            (json!("cancelled"), PermissionChoice::Invalid),
        ] {
            assert_eq!(parse_choice(Some(&json!({"outcome": outcome}))), expect);
        }
        assert_eq!(parse_choice(None), PermissionChoice::Invalid);
    }
}
