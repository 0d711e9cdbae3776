//! What good files mean.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{accepted_by, discovered_origin, explicit_origin, file, only, pool, script};
use crate::{
    Approver, DialectName, Extractor, Guard, Launcher, LogFormat, Network, OnCrash, OnTimeout,
    Origin, PermissionCoverage, PlaceholderValues, Pool, RestartKind, SessionScope, ShellCwd,
    WorkspaceMode,
};
use marshal_model::{LimitBackend, RememberScope};

/// The pool of a good file with these keys.
fn read(keys: &str) -> Pool {
    only(&accepted_by(&explicit_origin(), &pool(keys))).clone()
}

#[test]
fn a_pool_of_two_lines_has_every_default() {
    let config = accepted_by(&explicit_origin(), &script(""));
    let pool = only(&config);
    assert_eq!(pool.name.as_str(), "demo");
    assert_eq!((pool.size, pool.max_size), (1, 1));
    assert_eq!(pool.launcher, Launcher::Unshare);
    assert_eq!(pool.network, Network::None);
    assert_eq!(pool.sandbox, "standard");
    assert_eq!(pool.policy, "developer");
    assert_eq!(pool.options.guard, Guard::PolicyAndSandbox);
    assert_eq!(pool.workspace.path, Path::new("/etc/marshal"));
    assert_eq!(pool.workspace.mode, WorkspaceMode::Copy);
    assert_eq!(pool.options.attempts, 1);
    assert_eq!(pool.timeouts.handshake, Some(Duration::from_secs(60)));
    assert_eq!(pool.timeouts.turn, None);
    assert_eq!(pool.timeouts.silence, Some(Duration::from_secs(600)));
    assert_eq!(pool.timeouts.cancel, Duration::from_secs(15));
    assert_eq!(pool.restart.kind, RestartKind::Transient);
    assert_eq!(pool.restart.budget, 5);
    assert_eq!(pool.restart.window, Duration::from_secs(300));
    assert_eq!(pool.stop.eof, Duration::from_secs(6));
    assert_eq!(config.supervisor.max_children, 64);
    assert_eq!(config.supervisor.log, LogFormat::Auto);
    assert_eq!(config.supervisor.state_dir, None);
    assert_eq!(config.supervisor.listen.to_string(), "127.0.0.1:7117");
    assert!(config.sandboxes.contains_key("standard"));
}

#[test]
fn values_are_read_as_they_are_written() {
    let pool = read(
        "size = 0x10\nmax_size = 20\nattempts = 2\n\
         restart = { kind = \"permanent\", budget = 100, base = \"20ms\", max = \"20ms\", on_crash = \"retry\", never_codes = [3, 2, 3] }\n\
         timeouts = { handshake = \"none\", turn = \"1h\", silence = \"none\", cancel = \"1ms\" }\n\
         stop = { goodbye = \"0s\", term = \"1h\" }\n\
         approval = { on_timeout = \"deny_turn\", agent_waits = \"6s\", remember = \"turn\", approvers = [\"ops\", \"owner\"] }\n\
         shell_cwd = \"sticky\"\n",
    );
    assert_eq!((pool.size, pool.max_size), (16, 20));
    assert_eq!(pool.restart.kind, RestartKind::Permanent);
    assert_eq!(pool.restart.base, Duration::from_millis(20));
    assert_eq!(pool.restart.on_crash, OnCrash::Retry);
    assert_eq!(pool.restart.never_codes, [2, 3]);
    assert_eq!(pool.timeouts.handshake, None);
    assert_eq!(pool.timeouts.turn, Some(Duration::from_secs(3600)));
    assert_eq!(pool.timeouts.silence, None);
    assert_eq!(pool.stop.goodbye, Duration::ZERO);
    assert_eq!(pool.approval.on_timeout, OnTimeout::DenyTurn);
    assert_eq!(pool.approval.agent_waits, Some(Duration::from_secs(6)));
    assert_eq!(pool.approval.remember, RememberScope::Turn);
    let ops = Approver::Named("ops".to_owned());
    assert_eq!(pool.approval.approvers, [ops, Approver::Owner]);
    assert_eq!(pool.options.shell_cwd, ShellCwd::Sticky);
}

#[test]
fn a_slot_may_keep_its_session_and_load_it_again() {
    let resume = "session = \"slot\"\nrestart = { on_crash = \"resume\" }";
    let config = accepted_by(&explicit_origin(), &script(resume));
    let built_in = only(&config);
    assert_eq!(built_in.options.session, SessionScope::Slot);
    assert_eq!(built_in.restart.on_crash, OnCrash::Resume);
    let own = read(&format!(
        "{resume}\nresume_args = [\"-r={{session}}\", \"{{workspace}}\"]"
    ));
    let fill = PlaceholderValues {
        session: "ours",
        workspace: "/workspace",
        model: None,
    };
    assert_eq!(own.argv(fill), ["agent"]);
    assert_eq!(
        own.resume_argv(fill, "theirs"),
        ["agent", "-r=theirs", "/workspace"]
    );
    let retry = read("session = \"slot\"\nattempts = 2\nrestart = { on_crash = \"retry\" }");
    assert_eq!(retry.restart.on_crash, OnCrash::Retry);
    assert!(read("").resume_args.is_empty());
    assert!(read("resume_args = []").resume_args.is_empty());
    for kind in ["permanent", "transient", "temporary"] {
        read(&format!(
            "session = \"slot\"\nrestart = {{ kind = \"{kind}\" }}"
        ));
    }
}

#[test]
fn tables_may_be_written_in_every_way_that_toml_has() {
    let inline = read("restart = { budget = 7 }");
    let header = accepted_by(&explicit_origin(), &pool("[pool.demo.restart]\nbudget = 7"));
    let dotted = read("restart.budget = 7");
    let root = accepted_by(
        &explicit_origin(),
        "pool.demo.command = [\"agent\"]\npool.demo.restart.budget = 7\n",
    );
    for pool in [&inline, only(&header), &dotted, only(&root)] {
        assert_eq!(pool.restart.budget, 7);
    }
}

#[test]
fn pools_keep_the_order_of_the_file() {
    let names = ["zeta", "alpha", "mid"];
    let pools = names.map(|name| format!("[pool.{name}]\nagent = \"script\"\n"));
    let text = pools.concat();
    let config = accepted_by(&explicit_origin(), &text);
    let read: Vec<_> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(read, names);
    assert!(config.only_pool().is_none());
    assert!(config.pool("mid").is_some());
    assert!(config.pool("other").is_none());
}

#[test]
fn relative_paths_are_relative_to_the_file() {
    let text = format!(
        "[supervisor]\nstate_dir = \"../state\"\n[policy.own]\nfile = \"rules/own.toml\"\n[sandbox.own]\nro_bind = [\"tools\"]\n{}",
        pool(
            "workspace = { path = \"../work/./x\" }\nhome_files = { \".config/a\" = \"a\" }\npolicy = \"own\"\nsandbox = \"own\"\nguard_off = true"
        )
    );
    // `/etc/marshal/tools` lies below /etc, so this file lies elsewhere.
    let origin = Origin {
        file: Some(PathBuf::from("/srv/m/supervisor.toml")),
        dir: PathBuf::from("/srv/m"),
        is_explicit: true,
    };
    let config = accepted_by(&origin, &text);
    let pool = only(&config);
    assert_eq!(
        config.supervisor.state_dir.as_deref(),
        Some(Path::new("/srv/state"))
    );
    assert_eq!(config.policies["own"], Path::new("/srv/m/rules/own.toml"));
    assert_eq!(pool.workspace.path, Path::new("/srv/work/x"));
    assert_eq!(pool.home_files[".config/a"], Path::new("/srv/m/a"));
    assert_eq!(
        config.sandboxes["own"].ro_bind,
        [PathBuf::from("/usr"), PathBuf::from("/srv/m/tools")]
    );
    assert!(pool.options.guard_off);
    assert!(config.pool_containing(Path::new("/srv/work/x/y")).is_some());
    assert!(config.pool_containing(Path::new("/srv/work")).is_none());
}

#[test]
fn the_standard_profile_is_changed_key_by_key() {
    let config = accepted_by(
        &explicit_origin(),
        &file(
            "[sandbox.standard]\nhome = { size = \"8G\" }\nlimits = { nofile = 4096 }\n[sandbox.own]\nproc = \"masked\"\nro_bind = [\"/usr\", \"/opt/x\", \"/opt/x\", \"/tmp/x\"]\netc = []",
        ),
    );
    let standard = &config.sandboxes["standard"];
    assert_eq!(standard.home_bytes, 8 << 30);
    assert_eq!(standard.nofile, 4096);
    assert_eq!(standard.tmp_bytes, 256 << 20);
    let own = &config.sandboxes["own"];
    assert_eq!(own.home_bytes, 4 << 30);
    assert_eq!(own.ro_bind.len(), 3);
    assert!(own.etc.is_empty());
}

#[test]
fn limits_are_numbers_with_their_units_or_none() {
    let of = |text: &str| {
        let text = file(&format!("[sandbox.own]\nlimits = {{ {text} }}"));
        accepted_by(&explicit_origin(), &text).sandboxes["own"].group_limits
    };
    let standard = of("");
    assert_eq!(
        (standard.pids, standard.memory),
        (Some(1024), Some(4 << 30))
    );
    assert_eq!((standard.swap, standard.cpu_millis), (Some(0), None));
    let own = of("pids = 99, memory = \"2G\", swap = \"0\", cpu = 1.25, backend = \"v1\"");
    assert_eq!((own.pids, own.memory), (Some(99), Some(2 << 30)));
    assert_eq!((own.swap, own.cpu_millis), (Some(0), Some(1250)));
    assert_eq!(own.backend, LimitBackend::V1);
    assert_eq!(of("cpu = 2").cpu_millis, Some(2000));
    let none = of("pids = \"none\", memory = \"none\", cpu = \"none\"");
    assert_eq!(
        (none.pids, none.memory, none.cpu_millis),
        (None, None, None)
    );
}

#[test]
fn what_an_agent_asks_for_follows_from_its_preset_or_command() {
    let permission_requests = |text: &str| {
        let config = accepted_by(&explicit_origin(), &format!("[pool.demo]\n{text}\n"));
        let pool = only(&config);
        (pool.permission_requests, pool.agent.clone())
    };
    let is = |permission_requests: PermissionCoverage, name: &str| {
        (permission_requests, name.to_owned())
    };
    assert_eq!(
        permission_requests("agent = \"script\""),
        is(PermissionCoverage::All, "script")
    );
    assert_eq!(
        permission_requests("agent = \"scaiflux\""),
        is(PermissionCoverage::Some, "scaiflux")
    );
    assert_eq!(
        permission_requests("command = [\"marshal\", \"script-agent\", \"--protocol\", \"2\"]"),
        is(PermissionCoverage::All, "script")
    );
    assert_eq!(
        permission_requests("command = [\"marshal\", \"run\"]"),
        is(PermissionCoverage::Some, "custom")
    );
    assert_eq!(
        permission_requests("command = [\"/usr/bin/marshal\", \"script-agent\"]"),
        is(PermissionCoverage::Some, "custom")
    );
    assert_eq!(
        permission_requests("command = [\"x\"]\npermission_requests = \"all\"\nguard = \"policy\""),
        is(PermissionCoverage::All, "custom")
    );
    assert_eq!(
        permission_requests("command = [\"x\"]\npermission_requests = \"never\""),
        is(PermissionCoverage::Never, "custom")
    );
}

#[test]
fn a_placeholder_is_filled_and_never_split() {
    let fill = PlaceholderValues {
        session: "s-1",
        workspace: "/work space/{model}",
        model: None,
    };
    let argv = |text: &str| {
        let config = accepted_by(&explicit_origin(), &format!("[pool.demo]\n{text}\n"));
        only(&config).argv(fill)
    };
    assert_eq!(
        argv("agent = \"scaiflux\"\nmodel = \"lab/noodle-1\""),
        [
            "scaiflux",
            "serve",
            "--workspace",
            "/work space/{model}",
            "--permission-mode",
            "prompt",
            "--model",
            "lab/noodle-1"
        ]
    );
    assert_eq!(argv("agent = \"scaiflux\"").len(), 6);
    assert_eq!(
        argv(
            "command = [\"a\", \"--in={workspace}:{session}\", \"{mode}\", \"${session}\", \"{other_thing}\", \"{\\\"a\\\":1}\"]\nmode = \"plan\""
        ),
        [
            "a",
            "--in=/work space/{model}:s-1",
            "plan",
            "${session}",
            "{other_thing}",
            "{\"a\":1}"
        ]
    );
}

#[test]
fn an_extractor_is_a_name_or_a_table_of_its_own() {
    assert_eq!(
        read("").extractor,
        Extractor::BuiltIn("scaiflux".to_owned())
    );
    assert_eq!(
        read("extractor = \"scaiflux\"").extractor,
        Extractor::BuiltIn("scaiflux".to_owned())
    );
    let own = read(
        "[pool.demo.extractor.tool.exec]\nclass = \"shell\"\ncommand = \"cmd\"\nlist = [\"a\", 1, true, 1.5]",
    );
    let Extractor::Inline(text) = own.extractor else {
        panic!("inline");
    };
    let table: toml::Table = text.parse().expect("TOML");
    assert_eq!(table["tool"]["exec"]["class"].as_str(), Some("shell"));
    assert_eq!(table["tool"]["exec"]["command"].as_str(), Some("cmd"));
    assert_eq!(
        table["tool"]["exec"]["list"].as_array().map(Vec::len),
        Some(4)
    );
}

#[test]
fn programs_of_bound_directories_and_of_the_workspace_are_inside() {
    let bound = "[sandbox.standard]\nro_bind = [\"/opt/agent\"]\n[pool.demo]\ncommand = [\"/opt/agent/run\"]\n";
    accepted_by(&explicit_origin(), bound);
    for program in [
        "/usr/bin/x",
        "/bin/sh",
        "/workspace/run.sh",
        "/home/agent/x",
        "x",
    ] {
        accepted_by(
            &explicit_origin(),
            &format!("[pool.demo]\ncommand = [\"{program}\"]\n"),
        );
    }
    // Without a sandbox every program can be seen.
    accepted_by(
        &explicit_origin(),
        "[pool.demo]\ncommand = [\"/opt/x\"]\nlauncher = \"none\"\n",
    );
}

#[test]
fn without_a_sandbox_the_configuration_says_what_is_lost() {
    let config = accepted_by(&explicit_origin(), &script("launcher = \"none\""));
    let pool = only(&config);
    assert_eq!(pool.network, Network::Host);
    assert_eq!(config.notes.len(), 1);
    assert!(
        config.notes[0].contains("end all of a child's processes"),
        "{:?}",
        config.notes
    );
    assert!(
        config.notes[0].contains("watches over it"),
        "{:?}",
        config.notes
    );
    assert_eq!(pool.sandbox_gaps().len(), 2, "{:?}", pool.sandbox_gaps());
}

#[test]
fn what_has_no_effect_is_noted() {
    let notes = |keys: &str| {
        accepted_by(&explicit_origin(), &script(keys))
            .notes
            .join("\n")
    };
    let report = "restart = { on_crash = \"report\" }";
    let attempts = notes(&format!("attempts = 3\n{report}"));
    assert!(attempts.contains("attempts = 3 has no effect"));
    let check = format!("attempts = 3\ncheck = [\"true\"]\n{report}");
    assert_eq!(notes(&check), "");
    assert_eq!(notes("attempts = 3"), "");
}

#[test]
fn a_crashed_task_is_sent_again_where_its_attempt_changed_nothing_outside() {
    let on_crash = |keys: &str| {
        let config = accepted_by(&explicit_origin(), &script(keys));
        only(&config).restart.on_crash
    };
    let copy = "workspace = { path = \"src\", mode = \"copy\" }\n";
    assert_eq!(on_crash(copy), OnCrash::Retry);
    let report = format!("{copy}restart = {{ on_crash = \"report\" }}");
    assert_eq!(on_crash(&report), OnCrash::Report);
    let runner = |more: &str| {
        let text = format!(
            "[pool.demo]\ncommand = [\"tclsh\"]\nlauncher = \"pty\"\ndialect = \"skillpilot\"\n{copy}{more}"
        );
        only(&accepted_by(&explicit_origin(), &text))
            .restart
            .on_crash
    };
    assert_eq!(runner(""), OnCrash::Retry);
    assert_eq!(runner("runner.dir = \"/srv/plane\""), OnCrash::Report);
    for keys in [
        "workspace = { path = \"src\", mode = \"rw\" }",
        "workspace = { path = \"src\", mode = \"ro\" }",
    ] {
        assert_eq!(on_crash(keys), OnCrash::Report, "{keys}");
    }
    assert_eq!(
        on_crash(&format!("{copy}network = \"host\"")),
        OnCrash::Report
    );
    assert_eq!(
        on_crash(&format!("{copy}network = \"proxy\"")),
        OnCrash::Report
    );
    let route = |more: &str| {
        let allow = if more.contains("git") {
            ""
        } else {
            "allow = [\"POST /x\"]"
        };
        let text = format!(
            "[route.own]\nupstream = \"http://127.0.0.1:1\"\n{allow}\n{more}\n[pool.demo]\nagent = \"script\"\n{copy}network = \"routes\"\nroutes = [\"own\"]"
        );
        only(&accepted_by(&explicit_origin(), &text))
            .restart
            .on_crash
    };
    assert_eq!(route(""), OnCrash::Retry);
    assert_eq!(route("server_tools = true"), OnCrash::Report);
    // A push cannot be taken back.
    let git = |more: &str| route(&format!("kind = \"git\"\n{more}"));
    assert_eq!(git(""), OnCrash::Report);
    assert_eq!(git("push = []"), OnCrash::Retry);
}

#[test]
fn a_found_file_may_use_its_own_directory() {
    let config = accepted_by(
        &discovered_origin(),
        &script(
            "workspace = { path = \"src\" }\nhome_files = { x = \"x\" }\nenv = { pass = [\"LANG\", \"GIT_AUTHOR_NAME\"] }",
        ),
    );
    assert_eq!(
        only(&config).workspace.path,
        Path::new("/home/me/project/src")
    );
    let bound = "[sandbox.own]\nro_bind = [\"/opt/agent\", \"tools\"]\n";
    let text = format!("{bound}{}", script("sandbox = \"own\""));
    accepted_by(&discovered_origin(), &text);
}

#[test]
fn port_zero_and_the_other_loopback_are_addresses() {
    for listen in ["127.0.0.1:0", "[::1]:7117", "127.8.8.8:1"] {
        let config = accepted_by(
            &explicit_origin(),
            &file(&format!("[supervisor]\nlisten = \"{listen}\"")),
        );
        assert_eq!(config.supervisor.listen.to_string(), listen);
    }
}

#[test]
fn a_later_fault_points_at_its_line() {
    let text = script("workspace = { path = \"/none\" }");
    let config = accepted_by(&explicit_origin(), &text);
    let fault = |key: &str| {
        let errors =
            config
                .source_map
                .locate_errors(vec![(key.to_owned(), "gone".to_owned(), None)]);
        errors.to_string()
    };
    let file = "/etc/marshal/supervisor.toml";
    assert_eq!(
        fault("pool.demo.workspace.path"),
        format!("{file}:3:22: pool.demo.workspace.path: gone")
    );
    assert_eq!(
        fault("pool.demo.workspace.mode"),
        format!("{file}:3:13: pool.demo.workspace.mode: gone")
    );
    assert_eq!(
        fault("pool.demo.check[0]"),
        format!("{file}:1:1: pool.demo.check[0]: gone")
    );
    assert_eq!(
        fault("sandbox.standard"),
        format!("{file}:1:1: sandbox.standard: gone")
    );
}

#[test]
fn a_configuration_is_described_in_a_few_lines() {
    let config = accepted_by(
        &Origin::built_in(PathBuf::from("/home/me/project")),
        crate::DEFAULT,
    );
    insta::assert_snapshot!(config.describe().join("\n"));
    let weak = accepted_by(
        &explicit_origin(),
        "[pool.demo]\nagent = \"scaiflux\"\nnetwork = \"host\"\nguard = \"sandbox\"\n[pool.bare]\ncommand = [\"x\", \"\\u001b[2J\"]\nlauncher = \"none\"\n",
    );
    insta::assert_snapshot!(weak.describe().join("\n"));
}

#[test]
fn an_agents_own_keys_hold_where_the_file_has_none() {
    let pool = |keys: &str| {
        let text = format!("[pool.demo]\n{keys}\n");
        only(&accepted_by(&explicit_origin(), &text)).clone()
    };
    let usual = pool("agent = \"codex\"");
    assert_eq!(
        (usual.agent.as_str(), usual.permission_requests),
        ("codex", PermissionCoverage::Some)
    );
    assert_eq!(usual.dialect, DialectName::Acp);
    assert_eq!(usual.stop.eof, Duration::from_millis(500));
    assert_eq!(usual.stop.term, Duration::from_secs(5), "not the preset's");
    assert!(usual.home_texts.contains_key(".codex/config.toml"));
    let other = pool(
        "agent = \"codex\"\ncommand = [\"other\", \"x\"]\nstop.eof = \"9s\"\npermission_requests = \"never\"\nenv.set = { A = \"1\" }",
    );
    assert_eq!(other.command, ["other", "x"]);
    assert_eq!(other.stop.eof, Duration::from_secs(9));
    assert_eq!(
        other.stop.goodbye,
        Duration::ZERO,
        "the rest of the table stays"
    );
    assert_eq!(other.permission_requests, PermissionCoverage::Never);
    let claude = pool("agent = \"claude\"\nenv.pass = [\"DISABLE_AUTOUPDATER\"]");
    assert!(!claude.env.set.contains_key("DISABLE_AUTOUPDATER"));
    let switch = "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC";
    assert_eq!(claude.env.set[switch], "1");
    let gemini = pool("agent = \"gemini\"\nmodel = \"gemini-2.5-pro\"");
    assert_eq!(gemini.command, ["gemini", "--acp", "-m", "{model}"]);
    let codex = pool("agent = \"codex\"\nmodel = \"m-1\"");
    assert!(codex.home_texts[".codex/config.toml"].contains("model = \"m-1\""));
    let itself = pool("agent = \"codex-app-server\"\nmode = \"on-request\"");
    assert_eq!(itself.command, ["codex", "app-server"]);
    assert_eq!(itself.dialect, DialectName::Codex);
    let wants = crate::CodexSettings::from_acp(&itself.acp, itself.launcher);
    assert_eq!(wants.approval_policy, crate::ApprovalPolicy::OnRequest);
    // Its model stands in its file; a command of one's own is told it.
    assert_eq!((wants.model, wants.has_sandbox), (None, true));
    let bare = pool(
        "command = [\"codex\", \"app-server\"]\ndialect = \"codex\"\nmodel = \"m-1\"\nlauncher = \"none\"\nreport_denials = \"never\"",
    );
    let wants = crate::CodexSettings::from_acp(&bare.acp, bare.launcher);
    assert_eq!(wants.approval_policy, crate::ApprovalPolicy::Untrusted);
    assert_eq!(wants.model.as_deref(), Some("m-1"));
    assert!(!wants.has_sandbox && !wants.reports_denials);
}

#[test]
fn an_agent_that_cannot_ask_is_confined_by_its_sandbox_and_that_is_said() {
    let pool = |keys: &str| accepted_by(&explicit_origin(), &format!("[pool.demo]\n{keys}\n"));
    let config = pool("command = [\"loaf\", \"rpc\"]\ndialect = \"loaf\"\nmodel = \"m\"");
    let loaf = only(&config);
    assert_eq!(loaf.dialect, DialectName::Loaf);
    assert_eq!(
        (loaf.permission_requests, loaf.options.guard),
        (PermissionCoverage::Never, Guard::PolicyAndSandbox)
    );
    assert_eq!(loaf.acp.model.as_deref(), Some("m"), "set by a message");
    assert_eq!(loaf.extractor, Extractor::BuiltIn("scaiflux".to_owned()));
    let told = config.describe().join("\n");
    for part in [
        "speaks loaf, asks for nothing",
        "weak     loaf has no permission requests: only the sandbox confines the agent",
        "the policy evaluates actions that the agent does not ask for only after they happen",
    ] {
        assert!(told.contains(part), "{told}");
    }
    // The script agent's preset says that it asks for everything, in the protocol that it has there.
    let script = pool(
        "agent = \"script\"\ncommand = [\"marshal\", \"script-agent\", \"--dialect\", \"loaf\"]\ndialect = \"loaf\"",
    );
    assert_eq!(only(&script).permission_requests, PermissionCoverage::Never);
    let on_crash = pool(
        "command = [\"x\"]\ndialect = \"loaf\"\nsession = \"slot\"\nrestart.on_crash = \"resume\"",
    );
    assert!(only(&on_crash).resume_args.is_empty(), "a message loads it");
}

#[test]
fn claude_code_has_a_dialect_of_its_own_that_sets_modes_and_models() {
    let pool = |keys: &str| {
        only(&accepted_by(
            &explicit_origin(),
            &format!("[pool.demo]\n{keys}\n"),
        ))
        .clone()
    };
    let usual = pool("agent = \"claude-code\"\nmodel = \"m-1\"");
    assert_eq!(
        (usual.dialect, usual.permission_requests),
        (DialectName::Claude, PermissionCoverage::All)
    );
    assert_eq!(usual.command, ["claude"]);
    assert_eq!(usual.extractor, Extractor::BuiltIn("claude".to_owned()));
    // Set by messages, for which the command has no place.
    assert_eq!(usual.acp.mode.as_deref(), Some("default"));
    assert_eq!(usual.acp.model.as_deref(), Some("m-1"));
    let own = "command = [\"claude\"]\ndialect = \"claude\"\n";
    let session = pool(&format!(
        "{own}session = \"slot\"\nrestart = {{ on_crash = \"resume\" }}"
    ));
    assert!(session.resume_args.is_empty());
    let meant = pool(&format!(
        "{own}mode = \"acceptEdits\"\nmode_skips_requests = true"
    ));
    assert!(meant.acp.mode_skips_requests);
    let served = pool(&format!(
        "{own}mcp_servers = [{{ name = \"notes\", command = \"/usr/bin/notes\" }}]"
    ));
    assert_eq!(served.acp.mcp_servers.len(), 1);
}

#[test]
fn a_far_end_has_its_own_workspace_and_an_enriched_path() {
    let text = pool(
        "launcher = \"ssh\"\nssh = { host = \"::1\", user = \"agent\", port = 2222, workspace = \"/srv/work/\", known_hosts = \"keys/hosts\" }",
    );
    let config = accepted_by(&explicit_origin(), &text);
    let far = only(&config).ssh.as_deref().expect("a far end");
    assert_eq!(far.display_name(), "agent@::1 port 2222");
    assert_eq!(far.workspace, "/srv/work");
    assert_eq!(
        far.known_hosts.as_deref(),
        Some(Path::new("/etc/marshal/keys/hosts"))
    );
    assert_eq!(only(&config).local_workspace(), None);
    let path: Vec<_> = only(&config)
        .env
        .path_add
        .iter()
        .map(|dir| dir.to_string_lossy())
        .collect();
    assert_eq!(
        path,
        ["$HOME/.local/bin", "/opt/homebrew/bin", "/usr/local/bin"]
    );
    assert!(
        config
            .notes
            .iter()
            .any(|note| note.contains("unsandboxed here")),
        "{:?}",
        config.notes
    );
    let weak = only(&config).sandbox_gaps().join("; ");
    assert!(
        weak.contains("unsandboxed here") && weak.contains("plain process"),
        "{weak}"
    );
    // A workspace of the far end has nothing to do with the state directory of this host.
    let state = format!("supervisor.state_dir = \"/srv/work/state\"\n{text}");
    accepted_by(&explicit_origin(), &state);
    let none = accepted_by(&explicit_origin(), &format!("{text}env.path_add = []\n"));
    assert!(only(&none).env.path_add.is_empty());
}

#[test]
fn agents_that_are_built_in_run_at_far_ends_too() {
    for agent in ["hermes", "codex", "claude", "scaiflux"] {
        let text = format!(
            "[pool.far]\nagent = \"{agent}\"\nlauncher = \"ssh\"\nssh = {{ host = \"h\", workspace = \"/w\" }}\n"
        );
        let config = accepted_by(&explicit_origin(), &text);
        assert_eq!(only(&config).agent, agent);
        assert_eq!(only(&config).network, Network::Host);
        assert!(only(&config).routes.is_empty());
    }
}

#[test]
fn hints_of_the_file_are_read_and_shown() {
    let text = file(
        "[[hint]]\npattern = 'a.*b'\ntext = \"try c\"\nwhere = \"stderr\"\nagent = \"codex\"\nlauncher = \"ssh\"\ncode = 3\nclass = \"rate_limited\"",
    );
    let config = accepted_by(&explicit_origin(), &text);
    assert_eq!(config.hints.own().len(), 1);
}
