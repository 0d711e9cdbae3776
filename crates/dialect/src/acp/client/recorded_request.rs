//! Restores a request to the client from its recorded permission request.

use serde::Deserialize;
use serde_json::value::RawValue;

use marshal_model::{ClientMethod, ClientRequest, EngineRequest, EngineTool, TerminalSpec};

#[derive(Deserialize)]
struct File {
    path: String,
}

#[derive(Deserialize)]
struct RecordedRun {
    command: Vec<String>,
    cwd: Option<String>,
    env: Vec<Variable>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// The request that a record with this tool and this input stands for; `None` if it stands for
/// something else.
#[must_use]
pub fn parse_recorded_request(tool: &str, input: &RawValue) -> Option<ClientRequest> {
    let file = || serde_json::from_str::<File>(input.get()).ok();
    if let Some(tool) = EngineTool::from_record_name(tool) {
        let arguments: serde_json::Value = serde_json::from_str(input.get()).ok()?;
        let path = arguments
            .get("path")
            .and_then(|path| path.as_str())
            .map(str::to_owned);
        let request = EngineRequest {
            tool,
            path,
            arguments,
        };
        return Some(ClientRequest::Tool(Box::new(request)));
    }
    match ClientMethod::parse(tool)? {
        ClientMethod::ReadTextFile => Some(ClientRequest::Read(file()?.path)),
        ClientMethod::WriteTextFile => Some(ClientRequest::Write(file()?.path)),
        ClientMethod::TerminalCreate => {
            let RecordedRun { command, cwd, env } = serde_json::from_str(input.get()).ok()?;
            let env = env
                .into_iter()
                .map(|item| (item.name, item.value))
                .collect();
            Some(ClientRequest::Run(TerminalSpec {
                argv: command,
                env,
                cwd,
                output_bytes: None,
            }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::{ClientCall, PermissionRequestKey};

    #[test]
    fn a_wish_comes_back_from_its_record() {
        let key = PermissionRequestKey {
            id: "1".to_owned(),
            serial: 1,
        };
        for call in [
            ClientCall::Read {
                path: "/w/a".to_owned(),
                line: 1,
                limit: None,
            },
            ClientCall::Write {
                path: "/w/b".to_owned(),
                content: "x".to_owned(),
            },
            ClientCall::Run(TerminalSpec {
                argv: vec!["ls".to_owned(), "a b".to_owned()],
                env: vec![("A".to_owned(), "b\n".to_owned())],
                cwd: Some("/w".to_owned()),
                output_bytes: None,
            }),
        ] {
            let ask = super::super::build_permission_request(&key, &call);
            assert_eq!(
                parse_recorded_request(ask.tool.raw(), &ask.input),
                call.policy_request()
            );
        }
        let other = RawValue::from_string("{}".to_owned()).expect("JSON");
        for tool in ["read", "fs/read_text_file", "terminal/kill"] {
            assert_eq!(parse_recorded_request(tool, &other), None, "{tool}");
        }
    }
}
