//! Faults of the file as a whole and of its tables other than pools.

use super::{file, discovered_origin, explicit_origin, pool, refused_by, script, errors_text};
use crate::{Config, DEFAULT, Origin};
use marshal_model::limits;

/// The one fault of a file named with `--config`.
fn check(text: &str, expect: &str) {
    refused_by(&explicit_origin(), text, expect);
}

#[test]
fn what_is_no_toml_is_refused_at_its_place() {
    check("[pool.demo\n", "1:11: unclosed table, expected `]`");
    check("[pool.demo]\ncommand = \n", "2:11: ");
    check("[pool.demo]\ncommand = [\"a\"\n", "unclosed array");
    check("[pool.demo]\ncommand\n", "2:8: ");
    check("[pool.demo]\nsize = 4 4\n", "2:8: ");
    check("[pool.demo]\nsize = four\n", "2:8: ");
    check("[pool.demo]\nsize = \"4\n", "2:");
    check("= 4\n", "1:1: ");
    check("[pool.demo]\nsize = 04\n", "2:8: ");
}

#[test]
fn every_syntax_fault_of_a_file_is_shown() {
    let errors = Config::parse("a = = 1\n[x\ny = [1\n", &explicit_origin()).expect_err("three faults");
    assert!(errors.errors.len() >= 3, "{}", errors_text(&errors));
}

#[test]
fn a_key_that_is_there_twice_is_refused_and_hides_no_other_fault() {
    check(&script("size = 4\nsize = 5"), "4:1: the key \"size\" is defined twice");
    check(&file("[supervisor]\n[supervisor]"), "2:2: the key \"supervisor\" is defined twice");
    check("[pool.a]\nagent = \"script\"\n[pool.a]\n", "3:7: the key \"a\" is defined twice");
    let text = script("size = 4\nsize = 5\nnonsense = 1\nattempts = 0");
    let errors = Config::parse(&text, &explicit_origin()).expect_err("three faults");
    assert_eq!(errors.errors.len(), 3, "{}", errors_text(&errors));
}

#[test]
fn what_is_no_text_is_refused() {
    let check = |bytes: &[u8], expect: &str| {
        let errors = Config::parse_bytes(bytes, &explicit_origin()).expect_err("no text");
        assert_eq!(errors.errors.len(), 1);
        let shown = errors_text(&errors);
        assert!(shown.contains(expect), "{shown}");
    };
    check(b"\xef\xbb\xbf[pool.demo]\n", "1:1: the file begins with a byte order mark");
    check(b"\xff\xfe[\0p\0", "1:1: the file is written in UTF-16");
    check(b"\xfe\xff\0[\0p", "1:1: the file is written in UTF-16");
    check(b"[pool.demo]\nsize = \"\xff\"\n", "2:9: the text is not UTF-8 here");
    check(&vec![b'#'; limits::CONFIG_BYTES + 1], "the file is larger than 1M");
    check(b"[pool.demo]\nsize = 1\0\n", "2:");
    check(b"", "the file has no pool");
}

#[test]
fn what_would_exhaust_the_stack_is_refused() {
    let deep = |open: &str, close: &str, times: usize| format!("x = {}{}\n", open.repeat(times), close.repeat(times));
    for text in [
        deep("[", "]", 100_000),
        deep("{a=", "}", 50_000),
        format!("x{} = 1\n", ".x".repeat(100_000)),
        format!("[x{}]\n", ".x".repeat(100_000)),
        format!("x = {{ x{} = 1 }}\n", ".x".repeat(100_000)),
        format!("{}x = 1\n", "x .".repeat(75_000)),
        format!("x = [{{ a = 1 }}, {{ x{} = 1 }}]\n", ".x".repeat(100_000)),
        format!("\"=\".x{} = 1\n", ".x".repeat(100_000)),
        format!("\"]\".x{} = 1\n", ".x".repeat(100_000)),
    ] {
        assert!(Config::parse(&text, &explicit_origin()).is_err());
    }
}

#[test]
fn a_huge_number_of_faults_is_cut() {
    let keys: Vec<_> = (0..10_000).map(|at| format!("k{at} = 1\n")).collect();
    let keys = keys.concat();
    let errors = Config::parse(&script(&keys), &explicit_origin()).expect_err("many faults");
    assert_eq!(errors.errors.len(), limits::CONFIG_ERRORS);
    assert_eq!(errors.omitted, 10_000 - limits::CONFIG_ERRORS);
}

#[test]
fn many_faults_on_one_long_line_are_found_in_good_time() {
    let keys: Vec<_> = (0..20_000).map(|at| format!("k{at}=1,")).collect();
    let text = script(&format!("env = {{ {} }}", keys.concat()));
    let errors = Config::parse(&text, &explicit_origin()).expect_err("many faults");
    assert_eq!(errors.errors[0].line, 3);
    assert_eq!(errors.omitted, 20_000 - limits::CONFIG_ERRORS);
}

#[test]
fn all_faults_of_a_file_are_found_in_its_order() {
    let text = "\
[supervisor]
listen = \"0.0.0.0:80\"
max_childs = 3
[pool.a]
command = []
size = \"4\"
[pool.b]
agent = \"scriptt\"
timeouts = { silence = 10 }
[sandbox.own]
home = { size = \"4\" }
";
    let errors = Config::parse(text, &explicit_origin()).expect_err("faults");
    let lines: Vec<_> = errors.errors.iter().map(|error| error.line).collect();
    assert_eq!(lines, [2, 3, 5, 6, 8, 9, 11], "{}", errors_text(&errors));
    let shown = errors.to_string();
    assert!(shown.starts_with("/etc/marshal/supervisor.toml:2:10: supervisor.listen: "), "{shown}");
}

#[test]
fn top_level_tables_are_known_by_name() {
    check(&file("[supervizor]"), "unknown key \"supervizor\"…did you mean supervisor?");
    check(&file("[pools.x]"), "unknown key \"pools\"…did you mean pool?");
    check(&file("[xyzzy]"), "unknown key \"xyzzy\"…known here: ");
    check(&file("size = 4"), "unknown key \"size\"");
    check(&file("supervisor = 4"), "supervisor: expected a table, found the integer 4");
    check(&file("sandbox = []"), "sandbox: expected a table, found an array");
    check(&file("policy = \"developer\""), "policy: expected a table, found \"developer\"");
    check("pool = 4\n", "pool: expected a table, found the integer 4");
    check("[[pool]]\nsize = 1\n", "pool: expected a table, found an array");
    check("[supervisor]\n", "pool: the file has no pool");
    check("[pool]\n", "pool: the file has no pool");
    check(&file("[hooks.x]"), "unknown key \"hooks\"…did you mean hook?");
    for later in ["dialect.x", "remote"] {
        check(&file(&format!("[{later}]")), "is not supported by this version");
    }
    check(&file("include = [\"other.toml\"]"), "unknown key \"include\"");
    check(&file("[\"\\u001b[2J\"]"), "unknown key \"\\u{1b}[2J\"");
}

#[test]
fn the_supervisor_table_is_checked() {
    let check = |keys: &str, expect: &str| check(&file(&format!("[supervisor]\n{keys}")), expect);
    check("listen = \"0.0.0.0:7117\"", "2:10: supervisor.listen: \"0.0.0.0:7117\" is not a loopback address");
    check("listen = \"[::]:7117\"", "is not a loopback address");
    check("listen = \"10.0.0.1:7117\"", "is not a loopback address");
    check("listen = \"localhost:7117\"", "expected an address and a port");
    check("listen = \"127.0.0.1\"", "expected an address and a port");
    check("listen = \":7117\"", "expected an address and a port");
    check("listen = \"127.0.0.1:70000\"", "expected an address and a port");
    check("listen = \"\"", "expected an address and a port");
    check("listen = 7117", "supervisor.listen: expected a string, found the integer 7117");
    check("log = \"jsn\"", "expected \"auto\", \"human\" or \"json\", found \"jsn\"…did you mean json?");
    check("log = true", "expected \"auto\", \"human\" or \"json\", found the boolean true");
    check("max_children = 0", "expected an integer from 1 to 4096, found the integer 0");
    check("max_children = 4097", "expected an integer from 1 to 4096, found the integer 4097");
    check("max_children = -1", "found the integer -1");
    check("max_children = 0x1_0000", "found the integer 0x1_0000");
    check("max_children = 1.5", "found the float 1.5");
    check("max_children = 99999999999999999999999999999999999999999999", "expected an integer");
    check("max_children = \"64\"", "expected an integer from 1 to 4096, found \"64\"");
    check("state_dir = \"~/x\"", "\"~\" is not expanded");
    check("state_dir = \"$HOME/x\"", "variables are not expanded");
    check("state_dir = \"a\\u0000b\"", "a NUL character");
    check("state_dir = 1", "expected a string");
    check("state_dir = \"/etc/marshal/state\"", "pool.demo.workspace: the workspace contains the state directory");
    check("state_dir = \"/etc/marshal\"", "the workspace contains the state directory");
    check("state_dir = \"../marshal/x\"", "the workspace contains the state directory");
    check("statedir = \"/x\"", "did you mean state_dir?");
    check("retention = \"7d\"", "did you mean journal.keep?");
    check("journal.keep = \"31d\"", "supervisor.journal.keep: a duration is at most 30d");
    check("journal.keep = \"0s\"", "expected a duration from 1s to 30d, or \"none\"");
    check("journal.max_size = \"4K\"", "expected a size from 1M to 1024T");
    check("journal = { size = \"1G\" }", "supervisor.journal.size: unknown key");
}

#[test]
fn sandbox_profiles_are_checked() {
    let check = |keys: &str, expect: &str| check(&file(&format!("[sandbox.own]\n{keys}")), expect);
    for own in ["/proc", "/proc/sys", "/dev/kvm", "/sys", "/workspace", "/home/agent/.config", "/run/marshal"] {
        check(&format!("ro_bind = [\"{own}\"]"), "sandbox.own.ro_bind[0]: the sandbox has its own ");
    }
    for whole in ["/", "/tmp", "/run", "/home", "/usr/.."] {
        check(&format!("ro_bind = [\"{whole}\"]"), "cannot be bound as a whole");
    }
    check("ro_bind = [\"/etc/ssl\"]", "use the key etc for files of /etc");
    check("ro_bind = [\"\"]", "a path must not be empty");
    check("ro_bind = [\"~/bin\"]", "\"~\" is not expanded");
    check("ro_bind = \"/opt\"", "expected an array of strings, found \"/opt\"");
    check("ro_bind = [\"/opt\", 4]", "sandbox.own.ro_bind[1]: expected a string, found the integer 4");
    check("etc = [\"/etc/ssl\"]", "expected a name below /etc");
    check("etc = [\"../root\"]", "expected a path without \".\" and \"..\"");
    check("etc = [\"/root\"]", "without a leading \"/\"");
    check("etc = [\"\"]", "must not be empty");
    for secret in ["shadow", "gshadow", "passwd", "sudoers.d/x", "ssl/private", "ssh/ssh_host_key"] {
        check(&format!("etc = [\"{secret}\"]"), "of the host's /etc");
    }
    check("home = \"4G\"", "sandbox.own.home: expected a table, found \"4G\"");
    check("home = { size = \"4\" }", "a size needs a unit");
    check("home = { size = 4 }", "expected a size such as");
    check("home = { size = \"4GiB\" }", "powers of 1024");
    check("home = { size = \"1K\" }", "expected a size from 1M to 1T, found \"1K\"");
    check("home = { size = \"99999999999T\" }", "the size is too large");
    check("home = { inodes = 5 }", "not supported by this version");
    check("tmp = { size = \"1T\" }", "expected a size from 64K to 64G");
    check("tmp = { inodes = 1 }", "expected an integer from 64 to 10000000");
    check("tmp = { sise = \"1G\" }", "sandbox.own.tmp.sise: unknown key \"sise\"…did you mean size?");
    check("proc = \"full\"", "expected \"pid\" or \"masked\", found \"full\"");
    check("limits = { nofile = 1 }", "expected an integer from 16 to 1048576");
    check("limits = { fsize = \"1B\" }", "expected a size from 64K to 1T");
    check("landlock_min_abi = 7", "expected an integer from 0 to 6");
    check("seccomp = \"on\"", "sandbox.own.seccomp: expected \"default\", \"off\" or the path of a profile in OCI form, found \"on\"…\"./on\"");
    check("seccomp = \"~/own.json\"", "\"~\" is not expanded");
    check("seccomp = false", "expected a string");
    check("nofile = 1024", "did you mean limits.nofile?");
    check("limits = { pids = 1 }", "expected an integer from 16 to 4194304, found the integer 1");
    check("limits = { pids = \"many\" }", "expected an integer from 16 to 4194304, or \"none\", found \"many\"");
    check("limits = { memory = \"1M\" }", "expected a size from 16M to 64T");
    check("limits = { memory = 2 }", "expected a size or \"none\", found the integer 2");
    check("limits = { memory = \"none\", swap = \"1G\" }", "swap is limited only together with memory…give limits.memory a size");
    check("limits = { cpu = 0 }", "expected a number from 0.01 to 1024, or \"none\", found the integer 0");
    check("limits = { cpu = nan }", "expected a number from 0.01 to 1024");
    check("limits = { cpu = inf }", "expected a number from 0.01 to 1024");
    check("limits = { cpu = -1.5 }", "expected a number from 0.01 to 1024");
    check("limits = { backend = \"v3\" }", "expected \"auto\", \"v2\", \"v1\" or \"rlimit\", found \"v3\"");
    check("limits = { nproc = 5 }", "unknown key \"nproc\"…did you mean pids?");
    check("limits = { core = 5 }", "not supported by this version");
}

#[test]
fn what_a_profile_may_do_without_is_a_closed_list() {
    let own = |keys: &str| file(&format!("[sandbox.own]\n{keys}"));
    let check = |keys: &str, expect: &str| check(&own(keys), expect);
    let lacks = |what: &str| format!("on_missing = \"degrade\"\nallow_degrade = [\"{what}\"]");
    check("on_missing = \"ignore\"", "expected \"fail\" or \"degrade\", found \"ignore\"");
    check("on_missing = \"degrade\"", "sandbox.own.on_missing: on_missing = \"degrade\" needs allow_degrade");
    check("on_missing = \"degrade\"\nallow_degrade = []", "needs allow_degrade to name what may be missing");
    check("allow_degrade = [\"landlock\"]", "allow_degrade has no effect without on_missing = \"degrade\"");
    for never in ["uid", "user", "mount", "pid", "net", "ipc", "uts", "cgroup", "seccomp", "caps", "no_new_privs", "pivot_root"] {
        check(&lacks(never), &format!("sandbox.own.allow_degrade[0]: \"{never}\" can never be left out: "));
    }
    check(&lacks("lndlock"), "\"cgroup.cpu\", found \"lndlock\"");
    check("uid_per_slot = 1", "expected true or false");
    for range in ["999-2000", "2000-1999", "700000-2147483648"] {
        check(&format!("uid_range = \"{range}\""), "begins at 1000 or above, ends at 2147483647 or below");
    }
    for range in ["", "many", "5", "1000", "-1-1000", "1000-x", "4294967296-4294967297"] {
        check(&format!("uid_range = \"{range}\""), "expected \"auto\" or FIRST-LAST");
    }
    refused_by(&discovered_origin(), &own("uid_range = \"700000-700063\""), "a discovered supervisor.toml may not choose the uids");
}

#[test]
fn profiles_and_policies_have_plain_names() {
    check(&file("[sandbox.\"my own\"]"), "the profile name \"my own\" must match");
    check(&file("[sandbox.Own]"), "must match [a-z0-9][a-z0-9-]{0,31}");
    check(&file("sandbox.own = 4"), "sandbox.own: expected a table");
    check(&file("[policy.developer]\nfile = \"p.toml\""), "belongs to a built-in policy");
    check(&file("[policy.ci]\nfile = \"p.toml\""), "belongs to a built-in policy");
    check(&file("[policy.\"..\"]\nfile = \"p.toml\""), "must match");
    check(&file("[policy.own]"), "policy.own: the policy needs a file");
    check(&file("[policy.own]\nfile = \"\""), "must not be empty");
    check(&file("[policy.own]\nfile = \"~/p.toml\""), "\"~\" is not expanded");
    check(&file("[policy.own]\nfile = 4"), "policy.own.file: expected a string");
    let two = "[policy.a]\nfile = \"a.toml\"\nsite = true\n[policy.b]\nfile = \"b.toml\"\nsite = true";
    check(&file(two), "the site's policy is \"a\" already");
    check(&file("[policy.own]\nfile = \"p.toml\"\nfil = 1"), "did you mean file?");
}

#[test]
fn pools_together_fit_into_the_fleet() {
    let two = "[supervisor]\nmax_children = 6\n[pool.a]\nagent = \"script\"\nsize = 4\n[pool.b]\nagent = \"script\"\nsize = 3\n";
    check(two, "8:8: pool.b.size: all pools together have 7 slots, and supervisor.max_children is 6");
    check(&script("size = 65"), "all pools together have 65 slots, and supervisor.max_children is 64");
    let many: Vec<_> = (0..65).map(|at| format!("[pool.p{at}]\nagent = \"script\"\n")).collect();
    check(&many.concat(), "all pools together have 65 slots");
}

#[test]
fn nothing_inside_a_writable_workspace_may_decide() {
    check(&script("workspace = { mode = \"rw\" }"), "could write \"/etc/marshal/supervisor.toml\"");
    let policy = "[policy.own]\nfile = \"/srv/x/p.toml\"\n";
    let rw = script("workspace = { path = \"/srv/x\", mode = \"rw\" }");
    check(&format!("{policy}{rw}"), "could write \"/srv/x/p.toml\"");
}

#[test]
fn a_discovered_file_may_not_weaken_the_sandbox() {
    let check = |text: &str, expect: &str| {
        refused_by(&discovered_origin(), text, expect);
        Config::parse(text, &explicit_origin()).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    };
    check(&pool("launcher = \"none\""), "3:12: pool.demo.launcher: a discovered supervisor.toml may not use launcher = \"none\"…--config");
    check(&pool("network = \"host\""), "may not use network = \"host\"");
    check(&pool("workspace = { path = \"/srv\" }"), "may not use a workspace outside its own directory");
    check(&pool("workspace = { path = \"..\" }"), "may not use a workspace outside its own directory");
    check(&pool("workspace = { path = \"x/../../other\" }"), "may not use a workspace outside its own directory");
    check(&pool("workspace = { path = \"/home/me/project2\" }"), "may not use a workspace outside its own directory");
    check(&pool("home_files = { x = \"/home/me/.netrc\" }"), "may take files only from its own directory");
    check(&pool("env = { pass = [\"AWS_SECRET_ACCESS_KEY\"] }"), "looks like a secret");
    check(&pool("env = { set = { K = \"env:HOME\" } }"), "3:21: pool.demo.env.set.K: a discovered supervisor.toml may not use secrets, found \"env:\"…--config");
    check(&pool("env = { set = { K = \"file:key\" } }"), "may not use secrets, found \"file:\"");
    check(&pool("env = { pass = [\"GITHUB_TOKEN\"] }"), "looks like a secret");
    check(&format!("[sandbox.own]\nro_bind = [\"/home/me/.ssh\"]\n{}", pool("sandbox = \"own\"")), "2:12: sandbox.own.ro_bind[0]: a discovered supervisor.toml may bind only programs of the system");
    check(&pool("env = { pass = [\"ssh_auth_sock\"] }"), "looks like a secret");
}

#[test]
fn no_cut_and_no_change_of_a_file_brings_a_panic() {
    let origin = Origin::built_in("/x".into());
    for end in 0..DEFAULT.len() {
        let _ = Config::parse_bytes(&DEFAULT.as_bytes()[..end], &origin);
    }
    for (at, _) in DEFAULT.char_indices().step_by(11) {
        for put in ["\"", "[", "{", "=", "\n", "é", "\u{1b}", "9"] {
            let mut text = DEFAULT.to_owned();
            text.insert_str(at, put);
            if let Err(errors) = Config::parse(&text, &origin) {
                assert!(!errors.errors.is_empty());
                for error in &errors.errors {
                    assert!(text.get(error.span.clone()).is_some(), "{put:?} at {at}: {error}");
                }
            }
        }
    }
}
