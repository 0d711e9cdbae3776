//! Faults of pools.

use super::{accepted_by, discovered_origin, explicit_origin, pool, refused_by, script};
use crate::Config;

/// The one fault of a pool with a command and these keys.
fn check(keys: &str, expect: &str) {
    refused_by(&explicit_origin(), &pool(keys), expect);
}

/// The one fault of a whole file.
fn whole(text: &str, expect: &str) {
    refused_by(&explicit_origin(), text, expect);
}

#[test]
fn pools_have_plain_names() {
    for name in ["Demo", "de_mo", "-x", "\"a b\"", "\"\"", "\"a/b\"", "é", "\"é\""] {
        let text = format!("[pool.{name}]\nagent = \"script\"\n");
        assert!(Config::parse(&text, &explicit_origin()).is_err(), "{name}");
    }
    let long = "x".repeat(33);
    whole(&format!("[pool.{long}]\nagent = \"script\"\n"), "must match [a-z0-9][a-z0-9-]{0,31}");
    whole("[pool.\"\\u001b[31m\"]\nagent = \"script\"\n", "must match");
    whole("pool.demo = 4\n", "pool.demo: expected a table, found the integer 4");
    whole("[[pool.demo]]\nagent = \"script\"\n", "pool.demo: expected a table, found an array");
}

#[test]
fn a_pool_has_a_size() {
    check("size = 0", "3:8: pool.demo.size: expected an integer from 1 to 2048, found the integer 0");
    check("size = 2049", "found the integer 2049");
    check("size = -4", "found the integer -4");
    check("size = \"4\"", "expected an integer from 1 to 2048, found \"4\"");
    check("size = 4.0", "found the float 4.0");
    check("size = [4]", "found an array");
    check("size = 4\nmax_size = 3", "4:12: pool.demo.max_size: max_size is smaller than the pool's size, which is 4");
    check("max_size = 65", "all pools together have 65 slots, and supervisor.max_children is 64");
    check("size = { x = 4 }", "found a table");
    check("size = 2026-01-01", "found a date or time");
    check("szie = 4", "3:1: pool.demo.szie: unknown key \"szie\"…did you mean size?");
    check("slots = 4", "did you mean size?");
}

#[test]
fn a_pool_has_a_command_or_an_agent() {
    whole("[pool.demo]\nsize = 1\n", "1:1: pool.demo: the pool needs a command, or an agent");
    whole("[pool.demo]\ncommand = []\n", "2:11: pool.demo.command: expected a program and its arguments, found an empty array");
    whole("[pool.demo]\ncommand = \"agent serve\"\n", "expected an array of strings, found \"agent serve\"");
    whole("[pool.demo]\ncommand = [\"\"]\n", "pool.demo.command[0]: the program's name is empty");
    whole("[pool.demo]\ncommand = [\"agent serve\"]\n", "has a space in its name");
    whole("[pool.demo]\ncommand = [\"agent\", 4]\n", "2:21: pool.demo.command[1]: expected a string, found the integer 4");
    whole("[pool.demo]\ncommand = [\"{workspace}/agent\"]\n", "the program's name takes no placeholder");
    whole("[pool.demo]\ncommand = [\"a\", \"b\\u0000\"]\n", "a NUL character");
    whole("[pool.demo]\nagent = \"scaiflx\"\n", "pool.demo.agent: expected \"claude\", \"claude-code\", \"codex\", \"codex-app-server\", \"gemini\", \"hermes\", \"opencode\", \"scaiflux\" or \"script\", found \"scaiflx\"…did you mean scaiflux?");
    whole("[pool.demo]\nagent = 4\n", "pool.demo.agent: expected a string");
    whole("[pool.demo]\nagent = \"xyzzy\"\n", "expected \"claude\", \"claude-code\", \"codex\", \"codex-app-server\", \"gemini\", \"hermes\", \"opencode\", \"scaiflux\" or \"script\", found \"xyzzy\"");
    for later in ["cursor", "goose"] {
        whole(&format!("[pool.demo]\nagent = \"{later}\"\n"), "is not supported by this version");
    }
    check("agent_dir = \"/opt/x\"", "agent_dir is for built-in agents");
    whole("[pool.demo]\nagent = \"script\"\nagent_dir = \"/opt/x\"\n", "agent_dir is for built-in agents");
    whole("[pool.demo]\nagent = \"codex\"\ncommand = [\"x\"]\nagent_dir = \"/opt/x\"\n", "agent_dir is for built-in agents");
    let long = "x".repeat(200_000);
    whole(&format!("[pool.demo]\ncommand = [\"a\", \"{long}\"]\n"), "has 200000 bytes, at most 131071 are allowed");
    let many = "\"x\",".repeat(1025);
    whole(&format!("[pool.demo]\ncommand = [{many}]\n"), "the array has 1025 elements, at most 1024 are allowed");
}

#[test]
fn placeholders_and_their_values_belong_together() {
    let command = |words: &str, keys: &str, expect: &str| {
        whole(&format!("[pool.demo]\ncommand = [\"agent\", {words}]\n{keys}\n"), expect);
    };
    command("\"{sesion}\"", "", "pool.demo.command[1]: unknown placeholder {sesion}…did you mean {session}?");
    command("\"--w={workspce}\"", "", "did you mean {workspace}?");
    command("\"{model}\"", "", "the command has {model}, but the pool sets no model");
    command("\"{mode}\"", "", "the command has {mode}, but the pool sets no mode");
    command("\"x\"", "model = \"m\"", "pool.demo.model: model is set, but the command has no {model}");
    command("\"x\"", "mode = \"m\"", "mode is set, but the command has no {mode}");
    for bad in ["", "--resume", "a b", ".x", "a\\u001b", "é"] {
        command("\"{model}\"", &format!("model = \"{bad}\""), "pool.demo.model: expected [A-Za-z0-9]");
    }
    whole("[pool.demo]\nagent = \"scaiflux\"\nmode = \"m\"\n", "the command has no {mode}");
    whole("[pool.demo]\nagent = \"script\"\nmodel = \"m\"\n", "the command has no {model}");
}

#[test]
fn a_mode_of_codex_is_a_policy_that_asks() {
    for mode in ["never", "on-failure", "default"] {
        let text = format!("[pool.demo]\nagent = \"codex-app-server\"\nmode = \"{mode}\"\n");
        whole(&text, &format!("pool.demo.mode: the mode of an agent that speaks codex is its approval policy: expected \"untrusted\" or \"on-request\", found \"{mode}\"…it asks for everything that it would run"));
    }
    whole("[pool.demo]\ncommand = [\"/usr/bin/codex\"]\ndialect = \"codex\"\npermission_reply = \"scarf\"\n", "this is for agents that speak acp");
    let codex = |keys: &str, expect: &str| whole(&format!("[pool.demo]\ncommand = [\"/usr/bin/codex\"]\ndialect = \"codex\"\n{keys}\n"), expect);
    codex("engine_tools = [\"read_file\"]\nlauncher = \"none\"", "engine_tools needs a sandbox on this host");
    codex("mcp_servers = [{ name = \"a.b\", command = \"x\" }]", "takes no dot in a tool server's name, found \"a.b\"");
    codex("network = \"routes\"\nroutes = [\"openai\"]\nmcp_servers = [{ name = \"x\", type = \"sse\", route = \"openai\" }]", "cannot use tool servers of type sse, and \"x\" is one");
}

#[test]
fn closed_sets_of_words_name_their_members() {
    let set = |key: &str, members: &str, slip: (&str, &str), later: &[&str]| {
        let (slip, meant) = slip;
        check(&format!("{key} = \"xyzzy\""), &format!("pool.demo.{key}: expected {members}, found \"xyzzy\""));
        check(&format!("{key} = \"{slip}\""), &format!("did you mean {meant}?"));
        check(&format!("{key} = 4"), &format!("expected {members}, found the integer 4"));
        for later in later {
            check(&format!("{key} = \"{later}\""), &format!("\"{later}\" is not supported by this version: expected {members}"));
        }
    };
    set("launcher", "\"unshare\", \"bwrap\", \"container\", \"none\", \"pty\" or \"ssh\"", ("unshre", "unshare"), &[]);
    set("network", "\"none\", \"routes\", \"proxy\" or \"host\"", ("hots", "host"), &[]);
    set("guard", "\"policy\", \"policy+sandbox\" or \"sandbox\"", ("sandbx", "sandbox"), &[]);
    set("on_unasked_deny", "\"report\", \"interrupt\" or \"stop\"", ("interupt", "interrupt"), &[]);
    set("shell_cwd", "\"workspace\", \"turn\" or \"sticky\"", ("stiky", "sticky"), &[]);
    set("client_fs", "\"none\", \"read\" or \"write\"", ("wirte", "write"), &[]);
    set("permission_requests", "\"all\", \"some\" or \"never\"", ("nevr", "never"), &[]);
    set("dialect", "\"acp\", \"claude\", \"codex\", \"loaf\", \"scaiflux\" or \"skillpilot\"", ("scaifluks", "scaiflux"), &[]);
    check("dialect = { custom = 7 }", "expected a string, found the integer 7");
    check("dialect = { custom = \"\" }", "expected the path of a dialect definition file, found \"\"");
    check("dialect = {}", "a custom dialect needs `custom`, the path of its definition file");
    check("dialect = { custom = \"d.toml\", custum = 1 }", "did you mean custom?");
    check("dialect = \"custom\"", "dialect = { custom = \"agent.toml\" }");
    refused_by(&discovered_origin(), &pool("dialect = { custom = \"d.toml\" }"), "may not use a custom dialect");
    check("dialect = { custom = \"d.toml\" }\nguard = \"policy\"", "this one asks for some");
    set("session", "\"task\" or \"slot\"", ("tsk", "task"), &[]);
    check("extractor = \"xyzzy\"", "expected \"acp\", \"claude\", \"codex\", \"gemini\", \"hermes\", \"opencode\" or \"scaiflux\" or a table of its own");
    check("extractor = 4", "expected a string");
    check("guard_off = \"yes\"", "expected true or false, found \"yes\"");
    check("guard_off = 1", "expected true or false, found the integer 1");
}

#[test]
fn what_is_for_acp_is_refused_elsewhere_and_what_weakens_it_is_spelled_out() {
    for key in ["auth = \"x\"", "options = { a = \"b\" }", "permission_reply = \"scarf\"", "mode_skips_requests = true"] {
        check(key, "this is for agents that speak acp");
    }
    let claude = |keys: &str, expect: &str| check(&format!("dialect = \"claude\"\n{keys}"), expect);
    claude("auth = \"x\"", "this is for agents that speak acp");
    claude("options = { a = \"b\" }", "this is for agents that speak acp");
    claude("mode = \"acceptEdits\"", "the mode \"acceptEdits\" skips permission requests");
    for words in ["\"--settings\", \"x.json\"", "\"--settings={}\""] {
        whole(&format!("[pool.demo]\ncommand = [\"/usr/bin/claude\", {words}]\ndialect = \"claude\"\n"), "the supervisor passes --settings itself");
    }
    claude("engine_tools = \"all\"\nlauncher = \"none\"", "engine_tools needs a sandbox on this host");
    let acp = |keys: &str, expect: &str| check(&format!("dialect = \"acp\"\n{keys}"), expect);
    for key in ["client_fs = \"read\"", "client_terminal = true"] {
        let name = key.split(' ').next().unwrap_or_default();
        let expect = format!("{name} needs a sandbox on this host: with launcher = \"ssh\"");
        acp(&format!("{key}\nlauncher = \"ssh\"\nssh = {{ host = \"h\", workspace = \"/w\" }}"), &expect);
    }
    check("engine_tools = \"all\"", "engine_tools needs dialect = \"acp\", \"claude\" or \"codex\"");
    acp("engine_tools = \"all\"\nlauncher = \"none\"", "engine_tools needs a sandbox on this host");
    acp("engine_tools = \"all\"\nlauncher = \"ssh\"\nssh = { host = \"h\", workspace = \"/w\" }", "engine_tools needs a sandbox on this host");
    acp("engine_tools = [\"ask_person\", \"ask_person\"]", "ask_person is listed twice");
    acp("engine_tools = \"al\"", "expected \"all\" or an array of tools");
    acp("engine_tools = 1", "expected \"all\" or an array of tools");
    acp("engine_tools = [\"write_file\"]\nworkspace = { mode = \"ro\" }", "write_file in a read-only workspace needs a [workspace.NAME]");
    acp("auth = \"a\\u0007\"", "expected an id of the agent");
    acp("logout = true", "logout = true needs auth");
    acp("auth = \"x\"\nlogout = true\nstop = { goodbye = \"0s\" }", "logout = true needs a goodbye");
    acp("options = { a = 1 }", "expected a string, found the integer 1");
    acp("mode = \"acceptEdits\"", "the mode \"acceptEdits\" skips permission requests");
    acp("mode = \"yolo\"", "mode_skips_requests = true");
    acp("mcp_servers = [{ command = \"x\" }]", "a tool server needs a name");
    acp("mcp_servers = [{ name = \"x\" }]", "a tool server needs a command");
    acp("mcp_servers = [{ name = \"../x\", command = \"x\" }]", "expected [A-Za-z0-9]");
    acp("mcp_servers = [{ name = \"x\", command = \"x\" }, { name = \"x\", command = \"y\" }]", "\"x\" is listed twice");
    acp("mcp_servers = [{ name = \"x\", command = \"x\", env = { A = \"env:A\" } }]", "would give the agent a secret");
    acp("mcp_servers = [{ name = \"x\", command = \"x\", env = { API_KEY = \"1\" } }]", "would give the agent a secret");
    acp("mcp_servers = [{ name = \"x\", command = \"x\", url = \"http://x\" }]", "the key \"url\" is not supported by this version");
    acp("mcp_servers = [{ name = \"x\", type = \"http\" }]", "a tool server at a URL needs a route");
    acp("mcp_servers = [{ name = \"x\", type = \"http\", route = \"y\" }]", "a tool server at a URL needs a route");
    acp("network = \"routes\"\nroutes = [\"openai\"]\nmcp_servers = [{ name = \"x\", type = \"http\", route = \"openai\", path = \"/../z\" }]", "expected a path such as");
    check("session = \"slot\"\ntimeouts = { idle = \"1m\" }", "only if its session is loaded again");
    check("dialect = \"acp\"\nsession = \"slot\"\nrestart = { on_crash = \"resume\", kind = \"permanent\" }\ntimeouts = { idle = \"1m\" }", "restart.kind = \"permanent\" says otherwise");
    refused_by(&discovered_origin(), &pool("dialect = \"acp\"\nmode_skips_requests = true"), "may not use a mode that skips permission requests");
}

#[test]
fn an_overlay_needs_a_sandbox_and_goes_with_no_check_beside_its_agent() {
    let overlay = "workspace = { path = \".\", mode = \"overlay\" }";
    check(&format!("{overlay}\nlauncher = \"none\""), "mode = \"overlay\" needs a sandbox");
    check(&format!("{overlay}\nlauncher = \"bwrap\""), "\"overlay\" needs launcher = \"unshare\": \"bwrap\" mounts no overlay");
    check(&format!("{overlay}\nsession = \"slot\"\ncheck = [\"true\"]"), "excludes a check");
}

#[test]
fn keys_that_do_nothing_yet_are_not_accepted() {
    check("hooks = []", "unknown key \"hooks\"…hook.NAME.pools");
    check("approval = { when_waiting = \"release\" }", "only if its session is loaded again");
    check("approval = { when_waiting = \"wait\" }", "expected \"hold\" or \"release\", found \"wait\"");
    check("policy = \"reviewers\"", "reviewer");
}

#[test]
fn a_session_is_resumed_only_where_it_can_be() {
    let resume = "restart = { on_crash = \"resume\" }";
    let args = "resume_args = [\"--resume\", \"{session}\"]";
    check(&format!("{resume}\n{args}"), "3:24: pool.demo.restart.on_crash: on_crash = \"resume\" needs session = \"slot\"…set session = \"slot\"");
    check(&format!("{resume}\n{args}\nsession = \"task\""), "needs session = \"slot\"");
    refused_by(&explicit_origin(), &script(resume), "needs session = \"slot\"");
    check(&format!("{resume}\nsession = \"slot\""), "needs resume_args: scaiflux has no message that loads a session…for example");
    check(&format!("{resume}\nsession = \"slot\"\nresume_args = []"), "needs resume_args");
    refused_by(&explicit_origin(), &script(&format!("{resume}\nsession = \"slot\"\nresume_args = []")), "needs resume_args");
    check("resume_args = [\"--resume\"]", "3:15: pool.demo.resume_args: one of resume_args must contain {session}…for example");
    check("resume_args = [\"--resume\", \"${session}\"]", "must contain {session}");
    check("resume_args = [\"--resume\", \"{workspace}\"]", "must contain {session}");
    check("resume_args = [\"{session}\", \"{sesion}\"]", "pool.demo.resume_args[1]: unknown placeholder {sesion}…did you mean {session}?");
    check("resume_args = \"--resume {session}\"", "expected an array of strings");
    check("resume_args = [4]", "expected a string");
    // Each attempt is made in a fresh session, whatever the slot keeps.
}

#[test]
fn names_must_lead_somewhere() {
    check("sandbox = \"standart\"", "pool.demo.sandbox: expected \"standard\" or \"strict\" or the name of a [sandbox.NAME], found \"standart\"…did you mean standard?");
    check("sandbox = 4", "pool.demo.sandbox: expected a string");
    check("policy = \"develper\"", "did you mean developer?");
    check("policy = \"\"", "expected \"developer\", \"ci\", \"reviewer\" or \"autonomous\" or the name of a [policy.NAME]");
    check("policy = [\"developer\"]", "expected a string, found an array");
    let own = "[policy.own]\nfile = \"p.toml\"\n";
    whole(&format!("{own}{}", pool("policy = \"owm\"")), "expected \"developer\", \"ci\", \"reviewer\", \"autonomous\" or \"own\" or the name of a [policy.NAME], found \"owm\"…did you mean own?");
    // A faulty profile is one fault, not one more for every pool that names it.
    whole(&format!("[sandbox.own]\nproc = 1\n{}", pool("sandbox = \"own\"")), "sandbox.own.proc");
}

#[test]
fn workspaces_are_checked() {
    check("workspace = \"/srv\"", "there is no workspace \"/srv\": expected the name of a [workspace.NAME], or a table such as { path = \".\", mode = \"copy\" }");
    check("workspace = 4", "expected the name of a [workspace.NAME] or a table");
    check("workspace = { path = \"\" }", "pool.demo.workspace.path: a path must not be empty");
    check("workspace = { path = \"~\" }", "\"~\" is not expanded");
    check("workspace = { path = \"${HOME}\" }", "variables are not expanded");
    check("workspace = { path = 4 }", "expected a string");
    check("workspace = { mode = \"cpoy\" }", "did you mean copy?");
    check("workspace = { pth = \".\" }", "did you mean path?");
    check("path = \".\"", "did you mean workspace.path?");
    check("home_files = { \"/x\" = \"x\" }", "without a leading \"/\"");
    check("home_files = { \"../x\" = \"x\" }", "without \".\" and \"..\"");
    check("home_files = { \"x/\" = \"x\" }", "without a trailing");
    check("home_files = { \"\" = \"x\" }", "must not be empty");
    check("home_files = { x = \"\" }", "must not be empty");
    check("home_files = { x = 4 }", "pool.demo.home_files.x: expected a string");
    check("home_files = [\"x\"]", "expected a table");
}

#[test]
fn the_environment_is_checked() {
    let env = |keys: &str, expect: &str| check(&format!("env = {{ {keys} }}"), expect);
    env("pass = [\"TERM\"]", "pool.demo.env.pass[0]: TERM is never passed");
    env("set = { TERM = \"xterm\" }", "pool.demo.env.set.TERM: TERM is never passed");
    env("pass = [\"PATH\"]", "add directories with path_add");
    env("set = { PATH = \"/x\" }", "add directories with path_add");
    for own in ["HOME", "USER", "LOGNAME", "PWD", "TMPDIR"] {
        env(&format!("pass = [\"{own}\"]"), own);
        env(&format!("set = {{ {own} = \"x\" }}"), own);
    }
    for own in ["MARSHAL_SLOT", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"] {
        env(&format!("set = {{ {own} = \"x\" }}"), "is set by the supervisor itself");
    }
    for bad in ["", "1X", "A-B", "A=B", "A B", "É", "A\\nB"] {
        env(&format!("pass = [\"{bad}\"]"), "expected the name of a variable");
        env(&format!("set = {{ \"{bad}\" = \"x\" }}"), "expected the name of a variable");
    }
    let long = "X".repeat(129);
    env(&format!("pass = [\"{long}\"]"), "expected the name of a variable");
    env("pass = [\"LANG\", \"LANG\"]", "\"LANG\" is in the list twice");
    env("pass = [\"LANG\"], set = { LANG = \"C\" }", "in pass as well as in set");
    env("pass = \"LANG\"", "expected an array of strings");
    env("set = [\"LANG=C\"]", "expected a table");
    for bad in ["", "1X", "A-B", "$A"] {
        env(&format!("set = {{ K = \"env:{bad}\" }}"), "pool.demo.env.set.K: expected the name of a variable after \"env:\"");
    }
    env("set = { K = \"file:\" }", "a path must not be empty");
    env("set = { K = \"file:~/key\" }", "\"~\" is not expanded");
    env("set = { X = 1 }", "pool.demo.env.set.X: expected a string, found the integer 1");
    env("set = { X = \"a\\u0000\" }", "a NUL character");
    for bad in ["bin", "./bin", "/a:/b", "/a/../b", "", "~/bin"] {
        env(&format!("path_add = [\"{bad}\"]"), "expected a directory as the child sees it");
    }
    env("pas = []", "did you mean pass?");
    check("pass = []", "did you mean env.pass?");
}

#[test]
fn durations_are_checked() {
    let all = [
        ("restart", "window"),
        ("restart", "base"),
        ("restart", "max"),
        ("restart", "reset_after"),
        ("timeouts", "handshake"),
        ("timeouts", "turn"),
        ("timeouts", "silence"),
        ("timeouts", "cancel"),
        ("stop", "goodbye"),
        ("stop", "eof"),
        ("stop", "int"),
        ("stop", "term"),
    ];
    for (table, key) in all {
        let refused = |value: &str, expect: &str| {
            check(&format!("{table} = {{ {key} = {value} }}"), &format!("pool.demo.{table}.{key}: …{expect}"));
        };
        refused("5", "expected a duration such as");
        refused("\"5\"", "a duration needs a unit");
        refused("\"\"", "expected a duration");
        refused("\"5 s\"", "expected a duration such as");
        refused("\"-5s\"", "expected a duration such as");
        refused("\"1.5s\"", "expected a duration such as");
        refused("\"forever\"", "expected a duration such as");
        refused("\"31d\"", "a duration is at most 30d");
        refused("\"99999999999999999999s\"", "expected a duration");
        refused("\"18446744073709551615d\"", "a duration is at most 30d");
        refused("true", "found the boolean true");
    }
    for (table, key) in &all[..8] {
        check(&format!("{table} = {{ {key} = \"0s\" }}"), "expected a duration from 1ms to 30d");
    }
    for key in ["drain", "goodbye", "eof", "int", "term"] {
        check(&format!("stop = {{ {key} = \"2h\" }}"), "expected a duration from 0s to 1h");
    }
    for (table, key) in [("timeouts", "cancel"), ("restart", "window"), ("stop", "eof")] {
        check(&format!("{table} = {{ {key} = \"none\" }}"), "expected a duration such as");
    }
    for key in ["handshake", "turn", "silence"] {
        check(&format!("timeouts = {{ {key} = \"never\" }}"), "or \"none\", found \"never\"");
        check(&format!("{key} = \"1s\""), &format!("did you mean timeouts.{key}?"));
    }
}

#[test]
fn restarts_are_checked() {
    check("restart = { kind = \"always\" }", "expected \"permanent\", \"transient\" or \"temporary\", found \"always\"");
    check("restart = { budget = -1 }", "expected an integer from 0 to 100000");
    check("restart = { budget = 100001 }", "expected an integer from 0 to 100000");
    check("restart = { base = \"2m\" }", "pool.demo.restart.base: the largest backoff (1m) is shorter than the first (2m)");
    check("restart = { max = \"500ms\" }", "pool.demo.restart.max: the largest backoff (500ms) is shorter");
    check("restart = { never_codes = [256] }", "expected an integer from 0 to 255, found the integer 256");
    check("restart = { never_codes = [-1] }", "pool.demo.restart.never_codes[0]");
    check("restart = { never_codes = [\"1\"] }", "expected an integer from 0 to 255, found \"1\"");
    check("restart = { never_codes = 1 }", "expected an array of exit codes");
    check("restart = { on_crash = \"retri\" }", "did you mean retry?");
    check("restart = { bugdet = 1 }", "did you mean budget?");
    check("budget = 5", "expected a table, found the integer 5");
    check("budget = { turn_tokens = 5 }", "[budget] of the pool's policy");
    check("budget = { day_tokens = 0 }", "expected an integer from 1 to");
    check("budget = { day_cost = 0 }", "expected a number from 0.000001 to");
    check("budget = { day_cost = 5 }", "its model has no price");
    check("budget = { day_tokens = 5, then = \"stop\" }", "interrupt");
    check("approval = { remember = \"ever\" }", "expected \"never\", \"turn\" or \"session\", found \"ever\"");
    check("approval = { approvers = [\"group:ops\"] }", "approver \"group:ops\" must be…a system group cannot reach it…put a token");
    check("approval = { max_pending = 0 }", "expected an integer from 1 to 20, found the integer 0");
    check("approval = { max_pending = 21 }", "expected an integer from 1 to 20, found the integer 21");
    check("approval = { approvers = [\"Ops\"] }", "approver \"Ops\" must be \"owner\" or the name of a token");
    check("approval = { on_timeout = \"allow\" }", "expected \"deny\" or \"deny_turn\", found \"allow\"");
    check("attempts = 0", "expected an integer from 1 to 100");
    check("attempts = 101", "expected an integer from 1 to 100");
    check("check = \"make test\"", "expected an array of strings");
    check("check = [\"\"]", "the program's name is empty");
}

#[test]
fn keys_must_agree_with_each_other() {
    check("attempts = 0\nrestart = { on_crash = \"retry\" }", "expected an integer from 1 to 100");
    check("guard = \"policy\"", "needs an agent that asks for everything, and this one asks for some");
    check("guard = \"policy\"\npermission_requests = \"never\"", "asks for never");
    check("dialect = \"loaf\"\nguard = \"policy\"", "pool.demo.guard: guard = \"policy\" needs an agent that asks for everything, and loaf has no permission requests…use \"policy+sandbox\"");
    check("dialect = \"loaf\"\npermission_requests = \"all\"", "pool.demo.permission_requests: an agent that speaks loaf never asks: the protocol has no permission requests…leave the key out");
    check("dialect = \"loaf\"\nmode = \"m\"", "mode is set, but the command has no {mode}");
    check("dialect = \"loaf\"\nauth = \"key\"", "this is for agents that speak acp");
    check("dialect = \"loaf\"\nclient_terminal = true", "client_terminal needs dialect = \"acp\": loaf has no such methods");
    check("dialect = \"loaf\"\nclient_elicitation = true", "client_elicitation needs dialect = \"acp\": loaf has no such method…use engine_tools = [\"ask_person\"], where the dialect has tool servers");
    check("guard = \"sandbox\"\nlauncher = \"none\"", "no guard at all");
    check("guard_off = true", "the built-in policy \"developer\" has the guard");
    check("launcher = \"none\"\nsandbox = \"standard\"", "there is no sandbox: remove this key");
    check("launcher = \"none\"\nnetwork = \"none\"", "a child has the host's network");
    check("launcher = \"none\"\nworkspace = { path = \".\", mode = \"ro\" }", "mode = \"ro\" needs a sandbox");
    check("home_files = { x = \"/srv/x/seed\" }\nworkspace = { path = \"/srv/x\", mode = \"rw\" }", "home_files copies \"/srv/x/seed\", which the agent could write");
    refused_by(&discovered_origin(), &script("launcher = \"none\""), "may not use launcher = \"none\"");
    whole("[pool.demo]\nagent = \"scaiflux\"\nguard = \"policy\"\n", "asks for some");
}

/// A pool at a far end with `keys` in its table `ssh`.
fn on_remote(keys: &str) -> String {
    pool(&format!("launcher = \"ssh\"\nssh = {{ host = \"h\", workspace = \"/w\"{keys} }}"))
}

#[test]
fn a_far_end_is_named_in_full_and_never_looks_like_an_option() {
    let ssh = |table: &str, expect: &str| refused_by(&explicit_origin(), &pool(&format!("launcher = \"ssh\"\nssh = {table}")), expect);
    refused_by(&explicit_origin(), &pool("launcher = \"ssh\""), "launcher = \"ssh\" needs the table ssh");
    refused_by(&explicit_origin(), &pool("ssh = { host = \"h\", workspace = \"/w\" }"), "is for launcher = \"ssh\"");
    ssh("{ workspace = \"/w\" }", "ssh needs host");
    ssh("{ host = \"h\" }", "ssh needs workspace");
    for bad in ["-oProxyCommand=x", "a b", "a@b", "a;b", "$(x)", "", "a/b", "ü"] {
        ssh(&format!("{{ host = \"{bad}\", workspace = \"/w\" }}"), "expected letters, digits");
        ssh(&format!("{{ host = \"h\", user = \"{bad}\", workspace = \"/w\" }}"), "expected letters, digits");
    }
    for bad in ["w", "~/w", "/w/../x", "$HOME/w"] {
        ssh(&format!("{{ host = \"h\", workspace = \"{bad}\" }}"), "expected an absolute path on the remote host");
    }
    let more = |keys: &str, expect: &str| refused_by(&explicit_origin(), &on_remote(keys), expect);
    more(", port = 0", "ssh.port");
    more(", known_hosts = \"a b\"", "accepts no path with a space");
    more(", connect_timeout = \"0s\"", "ssh.connect_timeout");
    more(", marshal = \"-x\"", "expected a program's name or path");
    more(", mode = \"rw\"", "set ssh.marshal too");
    more(", path_add = []", "did you mean env.path_add?");
}

#[test]
fn nothing_of_this_host_is_given_to_a_far_end() {
    let more = |keys: &str, expect: &str| refused_by(&explicit_origin(), &format!("{}{keys}\n", on_remote("")), expect);
    more("sandbox = \"standard\"", "there is no sandbox here");
    more("network = \"none\"", "the remote host's network");
    more("network = \"host\"", "the remote host's network");
    more("workspace = { path = \".\" }", "the workspace is on the remote host");
    more("home_files = { \"a\" = \"b\" }", "are not sent there");
    more("guard = \"sandbox\"", "needs ssh.marshal");
    refused_by(&discovered_origin(), &on_remote(""), "a discovered supervisor.toml may not use launcher = \"ssh\"");
}

/// Routes that a pool names, and what goes with them.
#[test]
fn routes_are_refused_where_they_lead_nowhere_or_let_a_key_out() {
    let named = &explicit_origin();
    let own = |keys: &str| format!("{}[route.own]\n{keys}\n", script("network = \"routes\"\nroutes = [\"own\"]"));
    let good = "upstream = \"https://a.example\"\nsecret = \"env:KEY\"\nallow = [\"POST /v1/x\"]\n";
    accepted_by(named, &own(good));
    accepted_by(named, &own("upstream = \"http://localhost:8089/x\"\nallow = [\"POST /v1/x\"]"));
    let pool = |keys: &str, expect: &str| refused_by(named, &script(keys), expect);
    pool("network = \"routes\"", "pool.demo.network: network = \"routes\" needs routes…anthropic");
    pool("network = \"routes\"\nroutes = []", "needs at least one of the routes");
    pool("network = \"routes\"\nroutes = [\"nowhere\"]", "expected \"anthropic\", \"gemini\" or \"openai\" or the name of a [route.NAME], found \"nowhere\"");
    pool("network = \"routes\"\nroutes = [\"gemini\", \"gemini\"]", "the route \"gemini\" is in the list twice");
    pool("routes = [\"openai\"]", "routes need network = \"routes\" or \"proxy\", and this pool's is \"none\"");
    pool("network = \"host\"\nroutes = [\"openai\"]", "routes need network = \"routes\" or \"proxy\"");
    pool("launcher = \"none\"\nnetwork = \"routes\"\nroutes = [\"openai\"]", "launcher = \"none\" has none");
    pool("network = \"routes\"\nroutes = [\"openai\"]\nenv.set.URL = \"{route.gemini}/v1\"", "the variable URL names {route.gemini}, which is not one of the pool's routes");
    pool("env.set.URL = \"{route.gemini}/v1\"", "the variable URL names {route.gemini}");
    pool("rate_limit = { pause = \"2m\", max = \"1m\" }", "the longest pause (1m) is shorter than the first (2m)");
    let route = |keys: &str, expect: &str| refused_by(named, &own(keys), expect);
    route("allow = [\"GET /x\"]", "the route needs an upstream; only anthropic, gemini, openai have one built in");
    route("upstream = \"https://a.example\"\nsecret = \"env:KEY\"", "the route needs a list of what is allowed");
    route("upstream = \"https://a.example\"\nsecret = \"env:KEY\"\nallow = []", "the list is empty");
    route("upstream = \"https://a.example\"\nallow = [\"GET /x\"]", "the route needs a secret for \"a.example\"");
    route("upstream = \"http://a.example\"\nsecret = \"env:KEY\"\nallow = [\"GET /x\"]", "http:// is only for a loopback address");
    route("upstream = \"https://k:p@a.example\"\nsecret = \"env:KEY\"\nallow = [\"GET /x\"]", "expected a host name or address");
    route("upstream = \"https://a.example\"\nsecret = \"sk-123\"\nallow = [\"GET /x\"]", "expected \"env:NAME\", \"file:PATH\" or \"credential:NAME\"");
    route("upstream = \"https://a.example\"\nsecret = \"credential:../key\"\nallow = [\"GET /x\"]", "expected the name of a credential");
    route("upstream = \"https://a.example\"\nsecret = \"credential:.key\"\nallow = [\"GET /x\"]", "without a leading dot");
    route(&good.replace("POST /v1/x", "POST /v1/../x"), "expected a method (GET, HEAD, POST");
    route(&good.replace("POST /v1/x", "CONNECT /v1"), "expected a method (GET, HEAD, POST");
    route(&format!("{good}header = \"Host\""), "the header \"Host\" cannot carry a key");
    route(&format!("{good}header = \"x key\""), "expected the name of a header");
    route(&format!("{good}query = [\"a=b\"]"), "expected the name of a query parameter");
    route(&format!("{good}port = 80"), "expected an integer from 1024 to 65535");
    route(&format!("{good}connections = 0"), "expected an integer from 1 to 256");
    route(&format!("{good}body_max = \"1G\""), "expected a size from 1K to 128M");
    route(&format!("{good}url = \"x\""), "did you mean upstream?");
    let git = "kind = \"git\"\nupstream = \"https://forge.example/a/b.git\"\nsecret = \"env:KEY\"\n";
    accepted_by(named, &own(&format!("{git}user = \"x-access-token\"\npush = [\"refs/heads/next\", \"refs/heads/a/*\"]\nrepositories = [\"a/b\", \"c/*\"]\npush_max = \"1M\"")));
    accepted_by(named, &own(&format!("{git}push = []")));
    let of_git = |keys: &str, expect: &str| route(&format!("{git}{keys}"), expect);
    of_git("allow = [\"GET /x\"]", "allow is not for a route of kind \"git\"");
    of_git("query = [\"x\"]", "query is not for a route of kind \"git\"");
    of_git("server_tools = true", "server_tools is not for a route of kind \"git\"");
    of_git("push = [\"refs/tags/*\"]", "expected a branch such as \"refs/heads/next\"");
    of_git("push = [\"refs/heads/a*\"]", "expected a branch such as \"refs/heads/next\"");
    of_git("repositories = [\"/a\"]", "expected the path of a repository below the upstream");
    of_git("repositories = [\"a/../b\"]", "expected the path of a repository below the upstream");
    accepted_by(named, &own(&format!("{git}pull_request = \"gitea\"\napi_secret = \"env:T\"\npull_request_base = \"trunk\"")));
    of_git("pull_request = \"sourcehut\"", "expected \"github\", \"gitlab\" or \"gitea\"");
    of_git("api = \"https://a\"", "api needs pull_request");
    of_git("api_secret = \"env:T\"", "api_secret needs pull_request");
    of_git("pull_request_base = \"main\"", "pull_request_base needs pull_request");
    of_git("pull_request = \"gitea\"\npull_request_base = \"a..b\"", "expected the name of a branch");
    of_git("pull_request = \"gitea\"\napi = \"http://a.example\"", "found \"http://a.example\"");
    of_git("pull_request = \"gitea\"\napi_secret = \"abc\"", "expected \"env:NAME\", \"file:PATH\" or \"credential:NAME\"");
    of_git("pull_request = \"gitea\"\npush = []", "a pull request needs a branch that is pushed");
    of_git("pull_request = \"gitea\"\nrepositories = [\"a/b/c\"]", "needs repositories of the form \"owner/name\"");
    route(&format!("{good}pull_request = \"github\""), "pull_request is not for a route of kind \"model\"");
    of_git("push_max = \"2G\"", "expected a size from 1K to 1G");
    of_git("user = \"a:b\"", "expected 1 to 64 letters, digits and");
    of_git("header = \"x-key\"\nuser = \"a\"", "with user the key is in the header authorization");
    of_git(&format!("push = [{}]", vec!["\"refs/heads/a\""; 65].join(", ")), "expected at most 64 entries, found 65");
    route(&format!("{good}push = []"), "push is not for a route of kind \"model\"");
    let two = format!("{}port = 9000\n[route.two]\n{good}port = 9000", own(good));
    refused_by(named, &two, "the routes own and two have the same port");
    let registry = "kind = \"registry\"\nregistry = \"npm\"\n";
    accepted_by(named, &own(registry));
    accepted_by(named, &own(&format!("{registry}upstream = \"http://127.0.0.1:1\"\nhosts = [\"127.0.0.1:2\", \"a.example:8443\"]")));
    route("kind = \"registry\"", "the route needs a registry");
    route(&format!("{good}registry = \"npm\""), "registry needs kind = \"registry\"");
    route(&format!("{good}hosts = [\"a.example\"]"), "only a route with kind = \"registry\" has hosts");
    for key in ["allow = [\"PUT /x\"]", "query = [\"write\"]", "body_max = \"1M\"", "server_tools = true"] {
        route(&format!("{registry}{key}"), "its requests follow from the kind of registry");
    }
    route(&format!("{registry}secret = \"env:KEY\""), "a secret needs an upstream in the same table");
    route(&format!("{registry}hosts = [\"https://a.example\"]"), "expected a host name");
    route(&format!("{registry}hosts = [\"127.0.0.1:1\"]"), "a host of this machine is only for an upstream that is one");
    let many: Vec<String> = (0..33).map(|number| format!("\"h{number}.example\"")).collect();
    route(&format!("{registry}hosts = [{}]", many.join(", ")), "a route has at most 32 hosts");
    let both = format!("{}[route.two]\n{registry}[route.own]\n{registry}", script("network = \"routes\"\nroutes = [\"own\", \"two\"]"));
    refused_by(named, &both, "lead to registries of one kind");
    // Another upstream does not get the key of the one that is built in.
    let moved = format!("{}[route.openai]\nupstream = \"https://evil.example\"\n", script(""));
    refused_by(named, &moved, "the route needs a secret for \"evil.example\"");
    // What was only found may neither spend a key nor reach a service of this host.
    let found = &discovered_origin();
    refused_by(found, &script("network = \"routes\"\nroutes = [\"openai\"]"), "a discovered supervisor.toml may not use network = \"routes\"");
    let spends = format!("{}[route.own]\n{good}", script(""));
    refused_by(found, &spends, "a discovered supervisor.toml may not use secrets, found \"env:\"");
}
