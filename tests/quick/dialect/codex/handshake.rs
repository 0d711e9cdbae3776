//! From the first word to a thread.

use marshal_config::{ApprovalPolicy, CodexSettings};
use marshal_dialect::OpenParams;

use super::{HELLO, HELLO_SAYS, OPEN, OPEN_SAYS, check, check_all, check_opened, opening};

#[test]
fn a_thread_is_opened_as_it_is_wanted() {
    check_all(OPEN, OPEN_SAYS);
}

#[test]
fn another_version_is_named_beside_ours_and_hears_nothing_more() {
    let ours = "this supervisor speaks version 0.166 or a later 0.x of codex app-server";
    for (said, theirs) in [
        (
            r#"{"id":1,"result":{"userAgent":"marshal/0.165.2 (x)"}}"#,
            "0.165.2",
        ),
        (
            r#"{"id":1,"result":{"userAgent":"marshal/1.0.0 (x)"}}"#,
            "1.0.0",
        ),
        (r#"{"id":1,"result":{"userAgent":"somebody"}}"#, "somebody"),
        (r#"{"id":1,"result":{"userAgent":7}}"#, "none"),
        (r#"{"id":1,"result":{}}"#, "none"),
        (r#"{"id":1,"result":null}"#, "none"),
        (
            r#"{"id":1,"error":{"code":-32600,"message":"no such version"}}"#,
            "none; to initialize the agent reported error -32600: no such version",
        ),
    ] {
        let says = format!("fault the agent speaks protocol version {theirs}, {ours}");
        check_all(
            &format!("< {said}\n> prompt p\n> goodbye"),
            &format!(
                "{says}\nrefused prompt p: the channel is closed\nrefused goodbye: the channel is closed"
            ),
        );
    }
}

#[test]
fn nothing_is_answered_before_the_version_is_known() {
    check_all(
        r#"< {"id":0,"method":"item/commandExecution/requestApproval","params":{}}
           < {"id":1,"method":"x"}
           < {"method":"x","params":{}}"#,
        r#"bad out_of_state
           bad out_of_state
           unknown 'x' {"method":"x","params":{}}"#,
    );
}

#[test]
fn who_is_not_logged_in_and_must_be_needs_a_person() {
    check_all(
        r#"< {"id":1,"result":{"userAgent":"marshal/0.169.0 (x)"}}
           < {"id":2,"result":{"account":null,"requiresOpenaiAuth":true}}"#,
        r#"write {"method":"initialized"}
           write {"id":2,"method":"account/read","params":{"refreshToken":false}}
           fault the agent is not logged in, but its provider requires a login: run codex login once outside of the supervisor and hand .codex/auth.json over by home_files, or give its key by a route"#,
    );
    check_all(
        r#"< {"id":1,"result":{"userAgent":"marshal/0.169.0 (x)"}}
           < {"id":2,"result":{"account":{"type":"apiKey"},"requiresOpenaiAuth":true}}"#,
        r#"write {"method":"initialized"}
           write {"id":2,"method":"account/read","params":{"refreshToken":false}}
           write {"id":3,"method":"thread/start","params":{"cwd":"/workspace","approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":"danger-full-access"}}"#,
    );
}

const STARTS: &str = r#"
    write {"id":3,"method":"thread/start","params":{"cwd":"/workspace","approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":"danger-full-access"}}
"#;

#[test]
fn a_thread_that_is_not_as_it_was_asked_for_is_not_used() {
    let reply = |policy: &str, reviewer: &str, sandbox: &str| {
        format!(
            r#"{HELLO}
               < {{"id":3,"result":{{"thread":{{"id":"t-1"}},"approvalPolicy":{policy},"approvalsReviewer":{reviewer},"sandbox":{{"type":{sandbox}}}}}}}"#
        )
    };
    let (requests, us, off) = (r#""untrusted""#, r#""user""#, r#""dangerFullAccess""#);
    for (script, what, found, wanted) in [
        (
            reply(r#""never""#, us, off),
            "approvalPolicy",
            r#""never""#,
            "untrusted",
        ),
        (
            reply(r#"{"granular":{}}"#, us, off),
            "approvalPolicy",
            r#"{"granular":{}}"#,
            "untrusted",
        ),
        (
            reply("null", us, off),
            "approvalPolicy",
            "none",
            "untrusted",
        ),
        (
            reply(requests, r#""auto_review""#, off),
            "approvalsReviewer",
            r#""auto_review""#,
            "user",
        ),
        (
            reply(requests, us, r#""readOnly""#),
            "sandbox",
            r#""readOnly""#,
            "dangerFullAccess",
        ),
    ] {
        let says = format!(
            "{HELLO_SAYS}{STARTS}fault the agent's thread has {found} as its {what} instead of \"{wanted}\"; check its config.toml and its administrator's requirements"
        );
        check_all(&script, &says);
    }
}

#[test]
fn a_thread_that_cannot_be_used_is_a_fault() {
    let with = |reply: &str, says: &str| {
        check_all(
            &format!("{HELLO}< {{\"id\":3,{reply}}}"),
            &format!("{HELLO_SAYS}{STARTS}fault {says}"),
        );
    };
    with(
        r#""result":{}"#,
        "the agent opened a thread without a usable id",
    );
    with(
        r#""result":{"thread":{"id":""}}"#,
        "the agent opened a thread without a usable id",
    );
    with(
        r#""error":{"code":-32600,"message":"no such model"}"#,
        "the agent did not open a thread: the agent reported error -32600: no such model",
    );
    with(
        r#""error":{"code":-32603,"message":"oops"}"#,
        "the agent did not open a thread: the agent reported error -32603: oops",
    );
}

#[test]
fn the_pool_says_when_it_asks_and_which_model_it_has() {
    let wants = CodexSettings {
        approval_policy: ApprovalPolicy::OnRequest,
        model: Some("gpt-9".to_owned()),
        has_sandbox: false,
        reports_denials: true,
    };
    check_opened(
        &opening(wants),
        &format!(
            r#"{HELLO}
               < {{"id":3,"result":{{"thread":{{"id":"t-1"}},"approvalPolicy":"on-request","approvalsReviewer":"user","sandbox":{{"type":"workspaceWrite"}},"model":"gpt-9"}}}}
               > prompt p"#
        ),
        &format!(
            r#"{HELLO_SAYS}
               write {{"id":3,"method":"thread/start","params":{{"cwd":"/workspace","approvalPolicy":"on-request","approvalsReviewer":"user","sandbox":"workspace-write","model":"gpt-9"}}}}
               ready protocol=v2 version='0.169.0' session='t-1' model='gpt-9' mode='on-request'
               write {{"id":4,"method":"turn/start","params":{{"threadId":"t-1","approvalPolicy":"on-request","approvalsReviewer":"user","input":[{{"type":"text","text":"p"}}]}}}}"#
        ),
    );
}

fn resuming() -> OpenParams {
    OpenParams {
        resume: Some("t-1".into()),
        ..opening(CodexSettings::default())
    }
}

const RESUMES: &str = r#"
    write {"id":3,"method":"thread/resume","params":{"threadId":"t-1","cwd":"/workspace","approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":"danger-full-access","excludeTurns":true}}
"#;

#[test]
fn an_earlier_thread_is_gone_on_with() {
    let script = format!(
        r#"{HELLO}
           < {{"id":3,"result":{{"thread":{{"id":"t-1"}},"approvalPolicy":"untrusted","approvalsReviewer":"user","sandbox":{{"type":"dangerFullAccess"}}}}}}
           < {{"method":"thread/tokenUsage/updated","params":{{"threadId":"t-1","turnId":"u-0","tokenUsage":{{"total":{{"inputTokens":100,"outputTokens":10}},"last":{{"inputTokens":7,"outputTokens":1}}}}}}}}
           > prompt p
           < {{"id":4,"result":{{"turn":{{"id":"u-1"}}}}}}
           < {{"method":"turn/started","params":{{"threadId":"t-1","turn":{{"id":"u-1"}}}}}}
           < {{"method":"thread/tokenUsage/updated","params":{{"threadId":"t-1","turnId":"u-1","tokenUsage":{{"total":{{"inputTokens":105,"outputTokens":12}},"last":{{"inputTokens":5,"outputTokens":2}}}}}}}}
           < {{"method":"turn/completed","params":{{"threadId":"t-1","turn":{{"id":"u-1","status":"completed"}}}}}}"#
    );
    let says = format!(
        r#"{HELLO_SAYS}{RESUMES}
           ready protocol=v2 version='0.169.0' session='t-1' mode='untrusted'
           resumed by thread/resume without 0
           write {{"id":4,"method":"turn/start","params":{{"threadId":"t-1","approvalPolicy":"untrusted","approvalsReviewer":"user","input":[{{"type":"text","text":"p"}}]}}}}
           turn started 'u-1'
           usage 5/2
           turn ended completed 'completed' tokens=5/2"#
    );
    check_opened(&resuming(), &script, &says);
}

#[test]
fn another_thread_than_the_earlier_one_is_not_gone_on_with() {
    for (reply, why) in [
        (
            r#""error":{"code":-32600,"message":"no rollout found"}"#,
            "the agent reported error -32600: no rollout found",
        ),
        (
            r#""result":{"thread":{"id":"t-2"},"approvalPolicy":"untrusted"}"#,
            "it answered with the thread t-2 instead of t-1",
        ),
    ] {
        check_opened(
            &resuming(),
            &format!("{HELLO}< {{\"id\":3,{reply}}}"),
            &format!("{HELLO_SAYS}{RESUMES}fault the agent cannot resume its session: {why}"),
        );
    }
}

#[test]
fn a_thread_that_stops_asking_ends_the_channel() {
    let changed = |policy: &str, reviewer: &str, thread: &str| {
        format!(
            r#"< {{"method":"thread/settings/updated","params":{{"threadId":"{thread}","threadSettings":{{"approvalPolicy":{policy},"approvalsReviewer":{reviewer}}}}}}}"#
        )
    };
    let fault = |found: &str| {
        format!(
            "fault the agent changed when it asks for approval, or who answers: its approvalPolicy is {found} instead of \"untrusted\""
        )
    };
    check(&changed(r#""untrusted""#, r#""user""#, "t-1"), "");
    check(
        &changed(r#""never""#, r#""user""#, "t-1"),
        &fault("\"never\""),
    );
    check(
        &changed(r#""untrusted""#, r#""auto_review""#, "t-1"),
        &fault("\"untrusted\""),
    );
    check(
        r#"< {"method":"thread/settings/updated","params":{"threadId":"t-1"}}"#,
        &fault("none"),
    );
    // Nor may it give up the sandbox that it was to have.
    let freed = |own: &str| {
        format!(
            r#"< {{"method":"thread/settings/updated","params":{{"threadId":"t-1","threadSettings":{{"approvalPolicy":"untrusted","approvalsReviewer":"user","sandboxPolicy":{own}}}}}}}"#
        )
    };
    check(&freed(r#"{"type":"dangerFullAccess"}"#), "");
    let unwalled = CodexSettings {
        has_sandbox: false,
        ..CodexSettings::default()
    };
    let own = |text: &str| {
        text.replace("dangerFullAccess", "workspaceWrite")
            .replace("danger-full-access", "workspace-write")
    };
    for (now, found) in [
        (r#"{"type":"workspaceWrite"}"#, None),
        (
            r#"{"type":"dangerFullAccess"}"#,
            Some(r#""dangerFullAccess""#),
        ),
        ("7", Some("none")),
    ] {
        let fault = found.map(|found| {
            format!("fault the agent changed its own sandbox: it is {found} instead of \"workspaceWrite\"")
        });
        check_opened(
            &opening(unwalled.clone()),
            &format!("{}{}", own(OPEN), freed(now)),
            &format!("{}{}", own(OPEN_SAYS), fault.unwrap_or_default()),
        );
    }
    // Another thread's are not ours.
    let other = changed(r#""never""#, r#""user""#, "t-2");
    check(
        &other,
        &format!(
            "unknown 'thread/settings/updated' {}",
            other.strip_prefix("< ").unwrap()
        ),
    );
}

#[test]
fn what_it_has_no_words_for_is_refused() {
    check_all("> prompt p", "refused prompt p: the agent is not ready");
    check(
        "> slash help\n> mode never\n> allow 0",
        "refused slash help: the protocol has no such command
         refused mode never: this agent's approval mode and model are set in the configuration
         refused allow 0: no open permission request has this id",
    );
}
