//! How long a person may take: the least of what the pool, the policy and the agent's own patience
//! leave.

use std::time::{Duration, Instant};

use crate::drill::Drill;
use crate::editor::{Editor, PermissionAnswer};
use crate::fleet::editors::text;

/// Every call is a person's to decide.
fn drill(ask: &str, of_policy: &str) -> Drill {
    let drill = Drill::new(&format!(
        r#"
[pool.demo]
command   = ["marshal", "script-agent", "--dialect", "acp"]
dialect   = "acp"
policy    = "asking"
workspace = {{ path = "project", mode = "copy" }}
approval  = {{ {ask} }}
env       = {{ set = {{ DRILL = "MARK" }} }}

[policy.asking]
file = "asking.toml"
"#
    ));
    let policy = format!(
        "schema = 1\nname = \"asking\"\nextends = [\"builtin:guard\"]\ndefault = \"ask\"\n\n[approval]\n{of_policy}\n"
    );
    std::fs::write(drill.path("asking.toml"), policy).expect("asking.toml");
    drill
}

#[test]
fn an_ask_is_over_before_the_agent_gives_up_the_pool_and_the_policy_may_say_less() {
    // Each case has one second, from another of the three.
    for (ask, of_policy) in [
        (r#"timeout = "1h", agent_waits = "6s""#, ""),
        (r#"timeout = "1h", agent_waits = "6s""#, "timeout_s = 600"),
        (r#"timeout = "1h", agent_waits = "1h""#, "timeout_s = 1"),
        (r#"timeout = "1s", agent_waits = "1h""#, "timeout_s = 600"),
    ] {
        let drill = drill(ask, of_policy);
        let mut editor = Editor::start(&drill, "demo");
        editor.says = PermissionAnswer::Nothing;
        let session = editor.open(&drill);
        let began = Instant::now();
        let stop = editor.prompt(&session, "write no.txt x\nsay on");
        let took = began.elapsed();
        assert_eq!(stop, "end_turn", "{ask} {of_policy}");
        assert!(
            took >= Duration::from_millis(700),
            "{ask} {of_policy}: {took:?}"
        );
        assert_eq!(editor.asked.len(), 1, "{ask} {of_policy}");
        assert!(editor.take_agent_text().contains("on"));
        let verdict = "SELECT decision || ' ' || decided_by FROM permission_requests";
        assert_eq!(text(&drill, verdict), ["deny timeout"], "{ask} {of_policy}");
    }
}
