//! The answers to the agent's requests to the client.
//!
//! Must not know when they may be sent. Source: Agent Client Protocol, schema version 1.

use serde::Serialize;

pub(super) use crate::jsonrpc::INVALID_PARAMS;
use crate::jsonrpc::{Nothing, VERSIONED as RPC};
use marshal_model::{ClientMethod, ClientOutput, ExitStatus, TerminalExit};

/// Error codes of JSON-RPC and of ACP.
pub(super) const INVALID_REQUEST: i32 = -32600;
pub(super) const INTERNAL: i32 = -32603;
pub(super) const NOT_FOUND: i32 = -32002;
pub(super) const CANCELLED: i32 = -32800;

/// Names of signals, from 1 (signal(7), the numbers of Linux on most machines).
const SIGNALS: &[&str] = &[
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

#[derive(Serialize)]
struct Text<'a> {
    content: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CreateTerminalResult<'a> {
    terminal_id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TerminalOutputResult<'a> {
    output: &'a str,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_status: Option<Exit>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Exit {
    exit_code: Option<i32>,
    signal: Option<String>,
}

fn exit(of: TerminalExit) -> Exit {
    match of.0 {
        Some(ExitStatus::Code(code)) => Exit {
            exit_code: Some(code),
            signal: None,
        },
        Some(ExitStatus::Signal(number)) => {
            let at = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
            let name = at.and_then(|at| SIGNALS.get(at));
            Exit {
                exit_code: None,
                signal: Some(name.map_or_else(|| format!("SIG{number}"), |&name| name.to_owned())),
            }
        }
        None => Exit {
            exit_code: None,
            signal: None,
        },
    }
}

/// Answers a request of that method with its result.
pub(super) fn success(id: &str, method: ClientMethod, done: &ClientOutput) -> Vec<u8> {
    match (method, done) {
        (_, ClientOutput::Text(content) | ClientOutput::Read { text: content, .. }) => {
            RPC.result(id, Text { content })
        }
        (_, ClientOutput::Terminal(terminal_id)) => {
            RPC.result(id, CreateTerminalResult { terminal_id })
        }
        (
            _,
            ClientOutput::Output {
                text,
                truncated,
                exit: of,
            },
        ) => RPC.result(
            id,
            TerminalOutputResult {
                output: text,
                truncated: *truncated,
                exit_status: of.map(exit),
            },
        ),
        (ClientMethod::TerminalWait, ClientOutput::Exited(of)) => RPC.result(id, exit(*of)),
        // A client that ends a command does not get its exit status.
        (_, ClientOutput::Empty | ClientOutput::Written(_) | ClientOutput::Exited(_)) => {
            RPC.result(id, Nothing {})
        }
    }
}

/// Answers a question.
pub(super) fn elicited(id: &str, action: &str, content: Option<&serde_json::Value>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Elicited<'a> {
        action: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<&'a serde_json::Value>,
    }
    RPC.result(id, Elicited { action, content })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_look_as_the_schema_says() {
        let check = |method: ClientMethod, of: ClientOutput, expect: &str| {
            let line = String::from_utf8(success("7", method, &of)).unwrap();
            assert_eq!(
                line,
                format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{expect}}}\n")
            );
        };
        let exited = |status| TerminalExit(Some(status));
        check(ClientMethod::WriteTextFile, ClientOutput::Empty, "{}");
        check(
            ClientMethod::ReadTextFile,
            ClientOutput::Text("a\u{2028}\n".into()),
            r#"{"content":"a\u2028\n"}"#,
        );
        check(
            ClientMethod::TerminalCreate,
            ClientOutput::Terminal("terminal-1".into()),
            r#"{"terminalId":"terminal-1"}"#,
        );
        check(
            ClientMethod::TerminalOutput,
            ClientOutput::Output {
                text: "x".into(),
                truncated: true,
                exit: None,
            },
            r#"{"output":"x","truncated":true}"#,
        );
        check(
            ClientMethod::TerminalOutput,
            ClientOutput::Output {
                text: String::new(),
                truncated: false,
                exit: Some(exited(ExitStatus::Code(3))),
            },
            r#"{"output":"","truncated":false,"exitStatus":{"exitCode":3,"signal":null}}"#,
        );
        check(
            ClientMethod::TerminalWait,
            ClientOutput::Exited(exited(ExitStatus::Signal(9))),
            r#"{"exitCode":null,"signal":"SIGKILL"}"#,
        );
        check(
            ClientMethod::TerminalWait,
            ClientOutput::Exited(exited(ExitStatus::Signal(40))),
            r#"{"exitCode":null,"signal":"SIG40"}"#,
        );
        check(
            ClientMethod::TerminalWait,
            ClientOutput::Exited(TerminalExit(None)),
            r#"{"exitCode":null,"signal":null}"#,
        );
        check(
            ClientMethod::TerminalKill,
            ClientOutput::Exited(exited(ExitStatus::Signal(9))),
            "{}",
        );
    }
}
