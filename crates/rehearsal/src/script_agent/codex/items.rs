//! Tool calls as Codex items.
//!
//! Must not know when items are sent.

use std::fs::File;
use std::io::Read;

use serde_json::{Value, json};

use super::shell_quote;
use crate::script_agent::step::ToolCall;
use crate::script_agent::tools::ToolOutcome;
use marshal_model::limits::AGENT_OUTPUT_BYTES;

/// The item of a call at its begin.
pub(super) fn started_item(id: &str, call: &ToolCall) -> Value {
    let cwd = std::env::current_dir().unwrap_or_default();
    match call {
        ToolCall::WriteFile { path, content } => {
            let (kind, diff) = file_change(path, content);
            json!({
                "type": "fileChange", "id": id, "status": "inProgress",
                "changes": [{"path": cwd.join(path), "kind": {"type": kind}, "diff": diff}],
            })
        }
        other => {
            let command = other.title();
            json!({
                "type": "commandExecution", "id": id, "status": "inProgress",
                "command": shell_command(&command), "cwd": cwd, "source": "agent",
                "commandActions": [{"type": "unknown", "command": command}],
                "processId": null, "aggregatedOutput": null, "exitCode": null, "durationMs": null,
            })
        }
    }
}

/// The item of a call at its end.
pub(super) fn completed_item(mut item: Value, end: &ToolOutcome, took_s: f64) -> Value {
    item["status"] = json!(match (end.has_run, end.is_error) {
        (false, _) => "declined",
        (true, true) => "failed",
        (true, false) => "completed",
    });
    if item["type"] == "commandExecution" && end.has_run {
        item["aggregatedOutput"] = json!(end.output);
        item["exitCode"] = json!(end.code);
        // Whole milliseconds of at most ten minutes.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a time is no less than nothing, and bounded"
        )]
        let took_ms = (took_s * 1e3) as u64;
        item["durationMs"] = json!(took_ms);
    }
    item
}

/// The command line of a call.
pub(super) fn shell_command(command: &str) -> String {
    format!("bash -c {}", shell_quote(command))
}

/// The kind of a file change, and its diff.
fn file_change(path: &str, content: &str) -> (&'static str, String) {
    let mut old = String::new();
    let read = File::open(path).and_then(|file| {
        let most = AGENT_OUTPUT_BYTES as u64;
        file.take(most).read_to_string(&mut old)
    });
    if read.is_err() && !std::path::Path::new(path).exists() {
        return ("add", content.to_owned());
    }
    let mut diff = format!(
        "@@ -1,{} +1,{} @@\n",
        old.lines().count(),
        content.lines().count()
    );
    let lines = old.lines().map(|line| ('-', line));
    for (sign, line) in lines.chain(content.lines().map(|line| ('+', line))) {
        diff.push(sign);
        diff.push_str(line);
        diff.push('\n');
    }
    ("update", diff)
}
