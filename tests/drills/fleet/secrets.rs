//! Known secrets: on no record, and no way around a rule.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::drill::Drill;
use crate::fleet::approvals::DIALECTS;

const VALUE: &str = "correct/horse \"battery\"-staple";

/// A drill whose agents have these values in files.
fn drill(dialect: &str, values: &[(&str, &str)]) -> Drill {
    let set: Vec<String> = values
        .iter()
        .map(|(name, _)| format!("{name} = \"file:{name}\""))
        .collect();
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
size      = 1
command   = ["marshal", "script-agent", "--dialect", "{dialect}"]
dialect   = "{dialect}"
policy    = "cautious"
workspace = {{ path = "project", mode = "copy" }}
env       = {{ set = {{ DRILL = "MARK", {} }} }}
"#,
        set.join(", ")
    ));
    for (name, value) in values {
        fs::write(drill.path(name), value).expect("a secret");
        let mode = Permissions::from_mode(0o600);
        fs::set_permissions(drill.path(name), mode).expect("chmod");
    }
    drill
}

/// Decision, rules, input and facts of every request, in order.
fn permission_request_rows(drill: &Drill) -> Vec<(String, String, String, Value)> {
    let database = drill.database();
    let query = "SELECT decision, rules, input, facts FROM permission_requests ORDER BY link";
    let mut statement = database.prepare(query).expect("approvals");
    let rows = statement.query_map([], |row| {
        let facts: String = row.get(3)?;
        let facts = serde_json::from_str(&facts).expect("JSON");
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, facts))
    });
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

#[test]
fn a_secret_is_on_no_record_and_what_runs_is_what_was_sent() {
    for dialect in DIALECTS {
        let drill = drill(dialect, &[("API_KEY", VALUE)]);
        let key = "ghp_0123456789abcdefghij0123456789abcdef";
        let script = format!(
            "write notes.txt the {VALUE} and {key}\n\
             run echo '{VALUE}'\n\
             unasked printenv API_KEY\n\
             say {VALUE}"
        );
        let ran = drill.run(&["run", "--results", "r.jsonl", &script]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let rows = permission_request_rows(&drill);
        // A text that is only written is not judged; one that runs is.
        assert_eq!(rows[0].0, "allow");
        assert!(
            rows[0]
                .2
                .contains("the ‹secret:API_KEY› and ‹secret:github-token›"),
            "{}",
            rows[0].2
        );
        assert_eq!(rows[1].0, "deny");
        assert!(rows[1].1.contains(r#""secret"]"#), "{}", rows[1].1);
        let copy = drill.results("r.jsonl")[0]["workspace"].clone();
        let copy = copy.as_str().expect("a copy");
        let written = fs::read_to_string(format!("{copy}/notes.txt")).expect("notes.txt");
        assert_eq!(written, format!("the {VALUE} and {key}\n"));
        let database = drill.database();
        let words = [
            "correct/horse",
            "correct\\/horse",
            "battery\\\"-staple",
            "battery\"-staple",
            key,
        ];
        for word in words {
            let query = "SELECT count(*) FROM events WHERE instr(body, ?1) > 0 AND kind NOT IN ('prompt_accepted', 'user_text', 'text')";
            let found: i64 = database
                .query_row(query, [word], |row| row.get(0))
                .expect("a count");
            assert_eq!(found, 0, "{word} is in an event");
            let query = "SELECT count(*) FROM permission_requests WHERE instr(input || claimed || facts || reason, ?1) > 0";
            let found: i64 = database
                .query_row(query, [word], |row| row.get(0))
                .expect("a count");
            assert_eq!(found, 0, "{word} is in a request");
        }
        let query = "SELECT count(*) FROM events WHERE kind = 'tool_result' AND body LIKE '%‹secret:API_KEY›%'";
        let reported: i64 = database
            .query_row(query, [], |row| row.get(0))
            .expect("a count");
        assert!(reported > 0, "the output of printenv is masked");
        let again = drill.run(&[
            "policy",
            "replay",
            "--with",
            &drill.path("cautious.toml").display().to_string(),
            "--fail-on",
            "changed",
        ]);
        assert_eq!(again.code, Some(0), "{}", again.all());
        let proof = drill.run(&["audit", "verify"]);
        assert_eq!(proof.code, Some(0), "{}", proof.all());
    }
}

#[test]
fn a_mark_hides_nothing_from_the_rules_and_is_allowed_by_none() {
    let values = [
        ("WORD", "etc/shadow"),
        ("FILE", "src/lib.rs"),
        ("KEY", "file_path"),
    ];
    let drill = drill("acp", &values);
    let script = "run cat /etc/shadow\nread src/lib.rs\nread README.md\nrun git status";
    let ran = drill.run(&["run", "--results", "r.jsonl", script]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let rows = permission_request_rows(&drill);
    assert_eq!(rows.len(), 4);
    let (decision, rules, input, facts) = &rows[0];
    assert_eq!(decision, "deny");
    assert!(
        input.contains("/‹secret:WORD›") && !input.contains("shadow"),
        "{input}"
    );
    assert_ne!(rules, r#"["secret"]"#, "the rule that denies it is named");
    assert_eq!(facts["with_secrets"], "deny");
    assert!(!facts.to_string().contains("shadow"), "{facts}");
    assert_eq!(
        (rows[1].0.as_str(), rows[1].1.as_str()),
        ("deny", r#"["secret"]"#)
    );
    assert_eq!((rows[2].0.as_str(), rows[3].0.as_str()), ("allow", "allow"));
    let again = drill.run(&[
        "policy",
        "replay",
        "--with",
        &drill.path("cautious.toml").display().to_string(),
        "--fail-on",
        "changed",
    ]);
    assert_eq!(again.code, Some(0), "{}", again.all());
}

#[test]
fn no_word_of_an_agent_carries_a_secret_into_the_journal() {
    const SECRET: &str = "correct-horse-battery";
    let count = |drill: &Drill, word: &str| -> i64 {
        let query =
            "SELECT count(*) FROM events WHERE instr(body, ?1) > 0 AND kind <> 'prompt_accepted'";
        let found = drill.database().query_row(query, [word], |row| row.get(0));
        found.expect("a count")
    };
    let acp = |update: &str| {
        format!(
            r#"raw {{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{{session}}","update":{update}}}}}"#
        )
    };
    let updates = [
        r#"{"sessionUpdate":"plan","entries":[{"content":"a","priority":"SECRET","status":"SECRET"}]}"#,
        r#"{"sessionUpdate":"tool_call","toolCallId":"t1","title":"b","rawInput":{}}"#,
        r#"{"sessionUpdate":"tool_call_update","toolCallId":"t1","status":"SECRET"}"#,
        r#"{"sessionUpdate":"available_commands_update","availableCommands":[{"name":"SECRET","description":"SECRET"}]}"#,
        r#"{"sessionUpdate":"user_message_chunk","content":{"type":"text","text":"SECRET"}}"#,
        r#"{"sessionUpdate":"usage_update","used":1,"size":2,"cost":{"amount":1.0,"currency":"SECRET"}}"#,
    ];
    let acp = updates.map(acp).join("\n");
    let scaiflux = r#"raw {"type":"error","code":"SECRET","message":"SECRET"}
raw {"type":"slash_result","command":"SECRET","text":"c"}"#;
    for (dialect, script, least) in [("acp", &*acp, 5), ("scaiflux", scaiflux, 2)] {
        let drill = drill(dialect, &[("API_KEY", SECRET)]);
        let script = script.replace("SECRET", SECRET) + "\nsay the end";
        let ran = drill.run(&["run", "--results", "r.jsonl", &script]);
        assert_eq!(count(&drill, SECRET), 0, "{dialect}: {}", ran.all());
        let marked = count(&drill, "‹secret:API_KEY›");
        assert!(marked >= least, "{dialect}: {marked} {}", ran.all());
    }
}
