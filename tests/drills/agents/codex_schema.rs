//! What the dialect of Codex uses is in the schema that the program writes of its own protocol.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agents::bench::PATIENCE;
use crate::agents::codex::native;

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
const USED_MEMBERS: &[(&str, &[&str])] = &[
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
const COMMAND_REQUEST_MEMBERS: &[&str] = &[
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

/// The schema as the program writes it, below a directory of its own.
fn schema() -> (TempDir, PathBuf) {
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
    (dir, out)
}

#[test]
fn the_programs_own_schema_has_what_is_used() {
    let (_dir, out) = schema();
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
    for (file, used) in USED_MEMBERS {
        let text = read(&out, file).to_string();
        for word in *used {
            assert!(text.contains(&format!("\"{word}\"")), "{file} lacks {word}");
        }
    }
    let requested = read(&out, "CommandExecutionRequestApprovalParams.json");
    let members = requested["properties"].as_object().expect("members");
    let mut members: Vec<&str> = members.keys().map(String::as_str).collect();
    members.sort_unstable();
    assert_eq!(members, COMMAND_REQUEST_MEMBERS);
}

/// The script agent as Codex, each of whose lines is held against the schema.
struct Fake {
    child: Child,
    lines: Receiver<String>,
    schema: PathBuf,
    asked: Vec<&'static str>,
    dir: TempDir,
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file of each reply.
const REPLIES: &[(&str, &str)] = &[
    ("initialize", "v1/InitializeResponse.json"),
    ("account/read", "v2/GetAccountResponse.json"),
    ("thread/start", "v2/ThreadStartResponse.json"),
    ("turn/start", "v2/TurnStartResponse.json"),
    ("turn/interrupt", "v2/TurnInterruptResponse.json"),
];

impl Fake {
    fn start(schema: PathBuf) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut child = Command::new(env!("CARGO_BIN_EXE_marshal"))
            .args(["script-agent", "--dialect", "codex"])
            .current_dir(dir.path())
            .env("HOME", dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout"));
        let (sender, lines) = sync_channel(64);
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            lines,
            schema,
            asked: Vec::new(),
            dir,
        }
    }

    fn send(&mut self, message: &Value) {
        let stdin = self.child.stdin.as_mut().expect("stdin");
        writeln!(stdin, "{message}").expect("it listens");
    }

    /// Sends a request and gives its result.
    fn ask(&mut self, method: &'static str, params: &Value) -> Value {
        let id = self.asked.len();
        self.asked.push(method);
        self.send(&json!({"id": id, "method": method, "params": params}));
        loop {
            let line = self.line();
            if line["id"] == id && line.get("method").is_none() {
                return line["result"].clone();
            }
        }
    }

    /// The next line, which is as its schema says; what it asks for is accepted.
    fn line(&mut self) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).expect("it speaks");
        let line: Value = serde_json::from_str(&line).expect("JSON");
        let is_request = line.get("method").is_some() && line.get("id").is_some();
        let (file, what) = if is_request {
            ("ServerRequest.json", &line)
        } else if line.get("method").is_some() {
            ("ServerNotification.json", &line)
        } else {
            let at = line["id"].as_u64().expect("an id of ours");
            let method = self.asked[usize::try_from(at).expect("small")];
            let of = REPLIES.iter().find(|(of, _)| *of == method);
            (of.expect("its file").1, &line["result"])
        };
        let schema = read(&self.schema, file);
        let schema = jsonschema::validator_for(&schema).expect("a schema");
        assert!(schema.is_valid(what), "{file}: {what}");
        if is_request {
            self.send(&json!({"id": line["id"], "result": {"decision": "accept"}}));
        }
        line
    }

    /// Goes on to the end of the turn; the methods on the way.
    fn rest(&mut self) -> Vec<String> {
        let mut methods = Vec::new();
        while methods.last().is_none_or(|last| last != "turn/completed") {
            let line = self.line();
            methods.extend(line["method"].as_str().map(str::to_owned));
        }
        methods
    }
}

#[test]
fn the_script_agent_speaks_as_the_schema_says() {
    let (_dir, out) = schema();
    let mut fake = Fake::start(out);
    let info = json!({"clientInfo": {"name": "me", "version": "1"}});
    fake.ask("initialize", &info);
    fake.send(&json!({"method": "initialized"}));
    fake.ask("account/read", &json!({"refreshToken": false}));
    let thread = json!({
        "cwd": fake.dir.path(),
        "approvalPolicy": "untrusted",
        "approvalsReviewer": "user",
        "sandbox": "danger-full-access",
    });
    let thread = fake.ask("thread/start", &thread)["thread"]["id"].clone();
    let prompt = |text: &str| {
        json!({
            "threadId": thread,
            "approvalPolicy": "untrusted",
            "approvalsReviewer": "user",
            "input": [{"type": "text", "text": text}],
        })
    };
    let all = "think hm\nplan one; two\nwrite a.txt hi\nwrite a.txt ho\nread a.txt\nrun false\nwithdraw true\nsay x";
    fake.ask("turn/start", &prompt(all));
    let methods = fake.rest();
    for method in [
        "item/agentMessage/delta",
        "item/commandExecution/requestApproval",
        "item/fileChange/requestApproval",
        "item/reasoning/summaryTextDelta",
        "serverRequest/resolved",
        "thread/tokenUsage/updated",
        "turn/plan/updated",
    ] {
        assert!(
            methods.iter().any(|of| of == method),
            "{method}: {methods:?}"
        );
    }
    let turn = fake.ask("turn/start", &prompt("sleep 1h"))["turn"]["id"].clone();
    fake.ask(
        "turn/interrupt",
        &json!({"threadId": thread, "turnId": turn}),
    );
    fake.rest();
}
