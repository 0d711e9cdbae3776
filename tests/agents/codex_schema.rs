//! What the dialect of Codex uses is in the schema that the program writes of its own protocol.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::codex::native;

/// The methods that are used, by the file that lists them.
const METHODS: &[(&str, &[&str])] = &[
    (
        "ClientRequest.json",
        &[
            "initialize",
            "account/read",
            "thread/start",
            "thread/resume",
            "turn/start",
            "turn/interrupt",
        ],
    ),
    (
        "ServerRequest.json",
        &[
            "item/commandExecution/requestApproval",
            "item/fileChange/requestApproval",
            "item/permissions/requestApproval",
            "mcpServer/elicitation/request",
            "execCommandApproval",
            "applyPatchApproval",
        ],
    ),
    (
        "ServerNotification.json",
        &[
            "error",
            "item/agentMessage/delta",
            "item/commandExecution/outputDelta",
            "item/completed",
            "item/reasoning/summaryTextDelta",
            "item/reasoning/textDelta",
            "item/started",
            "serverRequest/resolved",
            "thread/settings/updated",
            "thread/tokenUsage/updated",
            "turn/completed",
            "turn/plan/updated",
            "turn/started",
        ],
    ),
];

/// The members and words that are used.
const WORDS: &[(&str, &[&str])] = &[
    (
        "v2/ThreadStartParams.json",
        &[
            "cwd",
            "approvalPolicy",
            "approvalsReviewer",
            "sandbox",
            "model",
            "untrusted",
            "on-request",
            "user",
            "danger-full-access",
            "workspace-write",
        ],
    ),
    (
        "v2/ThreadResumeParams.json",
        &[
            "threadId",
            "cwd",
            "approvalPolicy",
            "approvalsReviewer",
            "sandbox",
            "model",
            "excludeTurns",
        ],
    ),
    (
        "v2/ThreadStartResponse.json",
        &[
            "approvalPolicy",
            "approvalsReviewer",
            "sandbox",
            "dangerFullAccess",
        ],
    ),
    (
        "v2/TurnStartParams.json",
        &["threadId", "input", "approvalPolicy", "approvalsReviewer"],
    ),
    ("v2/TurnInterruptParams.json", &["threadId", "turnId"]),
    (
        "v2/TurnCompletedNotification.json",
        &["completed", "interrupted", "failed", "codexErrorInfo"],
    ),
    (
        "v2/GetAccountResponse.json",
        &["account", "requiresOpenaiAuth"],
    ),
    (
        "v1/InitializeParams.json",
        &["clientInfo", "optOutNotificationMethods"],
    ),
    ("v1/InitializeResponse.json", &["userAgent"]),
    (
        "CommandExecutionRequestApprovalResponse.json",
        &["accept", "decline", "cancel"],
    ),
    (
        "FileChangeRequestApprovalResponse.json",
        &["accept", "decline", "cancel"],
    ),
    (
        "ExecCommandApprovalResponse.json",
        &["approved", "denied", "rejection", "abort"],
    ),
];

/// What a request for a command may have. A member that is new would make every command that has it an
/// unknown tool, and is to be looked at.
const ASKED: &[&str] = &[
    "approvalId",
    "command",
    "commandActions",
    "cwd",
    "environmentId",
    "itemId",
    "kind",
    "networkApprovalContext",
    "proposedExecpolicyAmendment",
    "proposedNetworkPolicyAmendments",
    "reason",
    "startedAtMs",
    "threadId",
    "turnId",
];

fn read(dir: &Path, file: &str) -> Value {
    let text = fs::read_to_string(dir.join(file));
    let text = text.unwrap_or_else(|error| panic!("{file}: {error}"));
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_programs_own_schema_has_what_is_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("schema");
    let ran = Command::new(native())
        .args(["app-server", "generate-json-schema", "--out"])
        .arg(&out)
        .env_clear()
        .env("HOME", dir.path())
        .output()
        .expect("it starts");
    assert!(ran.status.success(), "{ran:?}");
    for (file, used) in METHODS {
        let all = read(&out, file);
        let one = |of: &Value| {
            of["properties"]["method"]["enum"][0]
                .as_str()
                .map(str::to_owned)
        };
        let there: Vec<String> = all["oneOf"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(one)
            .collect();
        for method in *used {
            assert!(there.iter().any(|of| of == method), "{file} lacks {method}");
        }
    }
    for (file, used) in WORDS {
        let text = read(&out, file).to_string();
        for word in *used {
            assert!(text.contains(&format!("\"{word}\"")), "{file} lacks {word}");
        }
    }
    let asked = read(&out, "CommandExecutionRequestApprovalParams.json");
    let members = asked["properties"].as_object().expect("members");
    let mut members: Vec<&str> = members.keys().map(String::as_str).collect();
    members.sort_unstable();
    assert_eq!(members, ASKED);
}
