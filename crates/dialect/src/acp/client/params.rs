//! Reads the parameters of the requests to the client.
//!
//! Unknown members are ignored. A required member that is missing or has another type makes the
//! parameters unreadable: a guess would be carried out.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lenient::parse_object;
use marshal_model::{ClientCall, ClientMethod, TerminalSpec};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Read {
    session_id: String,
    path: String,
    line: Option<u64>,
    limit: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Write {
    session_id: String,
    path: String,
    content: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    session_id: String,
    command: String,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    cwd: Option<String>,
    output_byte_limit: Option<u64>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TerminalParams {
    session_id: String,
    terminal_id: String,
}

/// Reads the session of a request, and the request.
pub(super) fn read(method: ClientMethod, raw: &RawValue) -> Option<(String, ClientCall)> {
    Some(match method {
        ClientMethod::ReadTextFile => {
            let read: Read = parse_object(raw)?;
            let call = ClientCall::Read {
                path: read.path,
                // Lines count from 1, but some agents send 0 for the first.
                line: read.line.unwrap_or(1).max(1),
                limit: read.limit,
            };
            (read.session_id, call)
        }
        ClientMethod::WriteTextFile => {
            let write: Write = parse_object(raw)?;
            let call = ClientCall::Write {
                path: write.path,
                content: write.content,
            };
            (write.session_id, call)
        }
        ClientMethod::TerminalCreate => {
            let create: Create = parse_object(raw)?;
            let mut argv = vec![create.command];
            argv.extend(create.args.unwrap_or_default());
            let env = create.env.unwrap_or_default().into_iter();
            let spec = TerminalSpec {
                argv,
                env: env.map(|of| (of.name, of.value)).collect(),
                cwd: create.cwd,
                output_bytes: create.output_byte_limit,
            };
            (create.session_id, ClientCall::Run(spec))
        }
        ClientMethod::TerminalOutput
        | ClientMethod::TerminalWait
        | ClientMethod::TerminalKill
        | ClientMethod::TerminalRelease => {
            let of: TerminalParams = parse_object(raw)?;
            let id = of.terminal_id;
            (of.session_id, ClientCall::Terminal { method, id })
        }
        // Read by `elicitation.rs`.
        ClientMethod::ElicitationCreate => return None,
    })
}
