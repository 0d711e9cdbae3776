//! `docs/configuration.md` and the reader say the same: keys, types and defaults.

use std::collections::{BTreeMap, BTreeSet};

use super::{accepted_by, errors_text, explicit_origin};
use crate::key_types::KeyTypes;
use crate::{Config, DEFAULT};

const DOCUMENT: &str = include_str!("../../../../docs/configuration.md");

/// One line of a table: key, type and default.
struct Row {
    key: &'static str,
    kind: String,
    default: &'static str,
}

fn rows() -> Vec<Row> {
    let rows = DOCUMENT.lines().filter(|line| line.starts_with("| `"));
    // Rows of an array have no file of their own here: their tests stand with their reader.
    let rows = rows.filter(|line| !line.split('|').nth(1).is_some_and(|key| key.contains("[]")));
    let row = |line: &'static str| {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [key, kind, default, meaning] = cells[..] else {
            panic!("not four cells: {line}");
        };
        assert!(meaning.len() > 5, "{line}");
        Row {
            key: key.trim_matches('`'),
            kind: kind.replace('`', ""),
            default,
        }
    };
    rows.map(row).collect()
}

impl Row {
    /// The default as TOML, if the document gives one.
    fn value(&self) -> Option<&'static str> {
        self.default.strip_prefix('`')?.strip_suffix('`')
    }

    /// A file that has this key with a value. `standard` is the one profile that is there anyway.
    fn file(&self, value: &str) -> String {
        let key = self
            .key
            .replace("pool.NAME", "pool.demo")
            .replace("sandbox.NAME", "sandbox.standard")
            .replace("policy.NAME", "policy.own")
            .replace("route.NAME", "route.own")
            .replace("delegate.NAME", "delegate.own")
            .replace("price.NAME", "price.own")
            .replace("hook.NAME", "hook.own")
            .replace("role.NAME", "role.own")
            .replace("template.NAME", "template.own")
            .replace("workspace.NAME", "workspace.own")
            .replace("token.NAME", "token.own");
        let set = format!("{key} = {value}\n");
        match self.key {
            "pool.NAME.agent" | "pool.NAME.command" => set,
            "pool.NAME.agent_dir" => format!("pool.demo.agent = \"codex\"\n{set}"),
            "pool.NAME.model" => format!("pool.demo.command = [\"a\", \"{{model}}\"]\n{set}"),
            "pool.NAME.mode" => format!("pool.demo.command = [\"a\", \"{{mode}}\"]\n{set}"),
            "policy.NAME.site" | "policy.NAME.layer" | "policy.NAME.test_dir" => {
                format!("{BARE}policy.own.file = \"own.toml\"\n{set}")
            }
            "pool.NAME.auth" => format!("pool.demo.dialect = \"acp\"\n{BARE}{set}"),
            // What the two keys that are needed say is said once.
            key if key.starts_with(FAR_KEYS) => {
                let own = format!("{} ", self.set());
                let others = BARE_FAR.lines().filter(|line| !line.starts_with(&own));
                let others: Vec<&str> = others.collect();
                format!("{}\n{set}", others.join("\n"))
            }
            "pool.NAME.file_plane.dir" => format!("{BARE}{set}"),
            key if key.starts_with(FILE_KEYS) => format!("{BARE_FILES}{set}"),
            key if key.starts_with("pool.NAME.budget.") => format!("{BARE}{PRICED}{set}"),
            key if key.starts_with("price.NAME.") => {
                let own = self.key.replace("NAME", "own");
                let others = PRICED.lines().filter(|line| !line.starts_with(&own));
                let others: Vec<_> = others.collect();
                format!("{BARE}{}\n{set}", others.join("\n"))
            }
            key if key.starts_with(RUNNER_KEYS) => format!("{BARE_DRIVEN}{set}"),
            "pool.NAME.workspace.base"
            | "pool.NAME.workspace.author"
            | "pool.NAME.workspace.setup.command" => {
                format!("{BARE}pool.demo.workspace.mode = \"worktree\"\n{set}")
            }
            // As without it, its mode is that of a setup.
            "pool.NAME.workspace.branches" => format!("{BARE_SETUP}{set}"),
            key if key.starts_with(SETUP_KEYS) => format!("{BARE_SETUP}{set}"),
            "pool.NAME.image" => format!("{BARE}pool.demo.launcher = \"container\"\n{set}"),
            key if key.starts_with("pool.NAME.egress.") => {
                format!("{BARE}pool.demo.network = \"proxy\"\n{set}")
            }
            "pool.NAME.routes" => format!("{BARE}pool.demo.network = \"routes\"\n{set}"),
            "delegate.NAME.command" => format!("{BARE}{set}"),
            key if key.starts_with("delegate.NAME.") => {
                let url = "delegate.own.url = \"http://127.0.0.1:8181/v1/data/own\"\n";
                let url = if key == "delegate.NAME.url" { "" } else { url };
                format!("{BARE}{url}{set}")
            }
            "pool.NAME.delegate" => format!("{BARE}delegate.own.command = [\"/x\"]\n{set}"),
            "route.NAME.registry" => format!("{BARE_REGISTRY}{set}"),
            "route.NAME.hosts" => format!("{BARE_REGISTRY}route.own.registry = \"npm\"\n{set}"),
            "route.NAME.upstream" | "route.NAME.allow" => {
                let name = self.key.replace("NAME", "own");
                let others = BARE.lines().filter(|line| !line.starts_with(&name));
                let others: Vec<_> = others.collect();
                format!("{}\n{set}", others.join("\n"))
            }
            "route.NAME.pull_request" => format!("{BARE_GIT}{ONE_REPOSITORY}{set}"),
            "route.NAME.pull_request_base" | "route.NAME.api" | "route.NAME.api_secret" => {
                format!("{BARE_GIT}{ONE_REPOSITORY}route.own.pull_request = \"gitea\"\n{set}")
            }
            key if GIT_ROUTE_KEYS.contains(&key) => format!("{BARE_GIT}{set}"),
            "http.tls.certificate" => format!("{BARE}http.tls.key = \"/k\"\n{set}"),
            "http.tls.key" => format!("{BARE}http.tls.certificate = \"c\"\n{set}"),
            "token.NAME.file" => format!("{BARE}token.own.role = \"read\"\n{set}"),
            "token.NAME.role" => format!("{BARE}token.own.file = \"/t\"\n{set}"),
            "hook.NAME.url" => format!("{BARE}{HOOK_SECRET}{set}"),
            "hook.NAME.secret" => format!("{BARE}{HOOK_URL}{set}"),
            "hook.NAME.ca" => format!("{BARE}{HOOK_URL}{HOOK_SECRET}{set}"),
            "hook.NAME.command" => format!("{BARE}{set}"),
            key if key.starts_with("hook.NAME.") => format!("{BARE_HOOK}{set}"),
            "store.ca" => format!("{BARE}store.postgres = \"env:S\"\n{set}"),
            "pool.NAME.workspace" | "workspace.NAME.shared" => {
                format!("{BARE}workspace.own.path = \"src\"\n{set}")
            }
            "role.NAME.model" => {
                format!("pool.demo.dialect = \"acp\"\n{BARE}role.own.pool = \"demo\"\n{set}")
            }
            "template.NAME.roles" => format!("{BARE}role.own.pool = \"demo\"\n{set}"),
            key if key.starts_with("template.NAME.") => {
                format!("{BARE}role.own.pool = \"demo\"\ntemplate.own.roles = [\"own\"]\n{set}")
            }
            "role.NAME.instructions" => format!("{BARE}role.own.pool = \"demo\"\n{set}"),
            _ => format!("{BARE}{set}"),
        }
    }

    /// The key as a file writes it.
    fn set(&self) -> String {
        self.key.replace("pool.NAME", "pool.demo")
    }

    /// The file that has nothing but what it needs.
    fn bare(&self) -> String {
        let bare = if self.key.starts_with(FAR_KEYS) {
            BARE_FAR
        } else if self.key.starts_with(RUNNER_KEYS) {
            BARE_DRIVEN
        } else if self.key.starts_with(FILE_KEYS) {
            BARE_FILES
        } else if GIT_ROUTE_KEYS.contains(&self.key) {
            BARE_GIT
        } else if self.key.starts_with(SETUP_KEYS) || self.key == "pool.NAME.workspace.branches" {
            BARE_SETUP
        } else if self.key.starts_with("hook.NAME.") {
            BARE_HOOK
        } else {
            BARE
        };
        match self.key {
            "route.NAME.pull_request_base" => {
                format!("{bare}{ONE_REPOSITORY}route.own.pull_request = \"gitea\"\n")
            }
            _ => bare.to_owned(),
        }
    }
}

const FAR_KEYS: &str = "pool.NAME.ssh.";
const RUNNER_KEYS: &str = "pool.NAME.runner.";

const BARE_DRIVEN: &str = "\
pool.demo.command = [\"tclsh\"]
pool.demo.launcher = \"pty\"
pool.demo.dialect = \"skillpilot\"
route.own.upstream = \"http://127.0.0.1:8089\"
route.own.allow = [\"GET /x\"]
";

const GIT_ROUTE_KEYS: &[&str] = &[
    "route.NAME.repositories",
    "route.NAME.push",
    "route.NAME.push_max",
    "route.NAME.user",
    "route.NAME.pull_request",
    "route.NAME.pull_request_base",
    "route.NAME.api",
    "route.NAME.api_secret",
];

const FILE_KEYS: &str = "pool.NAME.file_plane.";

const BARE_FILES: &str = "\
pool.demo.command = [\"agent\"]
route.own.upstream = \"http://127.0.0.1:8089\"
route.own.allow = [\"GET /x\"]
pool.demo.file_plane.dir = \"/var/spool/demo\"
";

const SETUP_KEYS: &str = "pool.NAME.workspace.setup.";

const BARE_SETUP: &str = "\
pool.demo.command = [\"agent\"]
route.own.upstream = \"http://127.0.0.1:8089\"
route.own.allow = [\"GET /x\"]
pool.demo.workspace.mode = \"worktree\"
pool.demo.workspace.setup.command = [\"make\"]
";

const BARE_FAR: &str = "pool.demo.command = [\"agent\"]\npool.demo.launcher = \"ssh\"\n\
    pool.demo.ssh.host = \"h\"\npool.demo.ssh.workspace = \"/w\"\npool.demo.ssh.marshal = \"m\"\n";

const BARE: &str = "\
pool.demo.command = [\"agent\"]
route.own.upstream = \"http://127.0.0.1:8089\"
route.own.allow = [\"GET /x\"]
";

const BARE_REGISTRY: &str = "\
pool.demo.command = [\"agent\"]
route.own.kind = \"registry\"
";

const BARE_GIT: &str = "\
pool.demo.command = [\"agent\"]
route.own.upstream = \"http://127.0.0.1:8089\"
route.own.kind = \"git\"
";

const ONE_REPOSITORY: &str = "route.own.repositories = [\"a/b\"]\n";

const BARE_HOOK: &str = "\
pool.demo.command = [\"agent\"]
route.own.upstream = \"http://127.0.0.1:8089\"
route.own.allow = [\"GET /x\"]
hook.own.command = [\"/bin/tell\"]
";

const HOOK_URL: &str = "hook.own.url = \"https://example.com\"\n";
const HOOK_SECRET: &str = "hook.own.secret = \"env:S\"\n";

/// Values for keys that have no default.
const SAMPLES: &[(&str, &str)] = &[
    ("pool.NAME.agent", "\"scaiflux\""),
    ("pool.NAME.max_size", "4"),
    ("pool.NAME.restart.on_crash", "\"report\""),
    ("http.tls.certificate", "\"cert.pem\""),
    ("http.tls.key", "\"/key.pem\""),
    ("token.NAME.file", "\"/etc/ops.token\""),
    ("token.NAME.role", "\"operate\""),
    ("pool.NAME.agent_dir", "\"/opt/codex\""),
    ("pool.NAME.command", "[\"agent\"]"),
    ("pool.NAME.resume_args", "[\"--resume\", \"{session}\"]"),
    ("pool.NAME.model", "\"lab/model-1\""),
    ("pool.NAME.mode", "\"plan\""),
    ("pool.NAME.auth", "\"api-key\""),
    ("pool.NAME.workspace", "\"own\""),
    ("pool.NAME.workspace.author", "\"Ada <ada@example.com>\""),
    ("pool.NAME.workspace.base", "\"origin/main\""),
    ("pool.NAME.workspace.setup.command", "[\"npm\", \"ci\"]"),
    ("pool.NAME.dialect.custom", "\"agent.toml\""),
    ("pool.NAME.permission_requests", "\"some\""),
    ("pool.NAME.routes", "[\"own\"]"),
    ("pool.NAME.egress.allow", "[\"api.example.com\"]"),
    ("pool.NAME.egress.connections", "8"),
    ("pool.NAME.egress.per_minute", "60"),
    ("pool.NAME.egress.sent_max", "\"1M\""),
    ("pool.NAME.egress.received_max", "\"1G\""),
    ("pool.NAME.egress.timeouts.request", "\"5s\""),
    ("pool.NAME.egress.timeouts.connect", "\"5s\""),
    ("pool.NAME.egress.timeouts.idle", "\"1m\""),
    ("pool.NAME.egress.timeouts.total", "\"10m\""),
    ("route.NAME.upstream", "\"http://127.0.0.1\""),
    ("route.NAME.registry", "\"pypi\""),
    ("route.NAME.pull_request", "\"gitlab\""),
    ("route.NAME.api", "\"https://forge.example.com/api/v1\""),
    ("route.NAME.api_secret", "\"env:API_TOKEN\""),
    ("route.NAME.hosts", "[\"files.example.com\"]"),
    ("route.NAME.secret", "\"env:KEY\""),
    ("route.NAME.user", "\"x-access-token\""),
    ("route.NAME.repositories", "[\"owner/name\"]"),
    ("route.NAME.allow", "[\"POST /v1/*\"]"),
    ("route.NAME.port", "8080"),
    ("route.NAME.ca", "\"ca.pem\""),
    ("policy.NAME.file", "\"own.toml\""),
    ("pool.NAME.shadow_policy", "\"reviewer\""),
    ("policy.NAME.test_dir", "\"cases\""),
    ("pool.NAME.delegate", "\"own\""),
    ("delegate.NAME.command", "[\"/usr/bin/decide\"]"),
    ("delegate.NAME.url", "\"http://127.0.0.1:8181/v1/data/own\""),
    ("delegate.NAME.timeout", "\"2s\""),
    ("delegate.NAME.token", "\"env:TOKEN\""),
    ("pool.NAME.budget.session_tokens", "1000000"),
    ("pool.NAME.budget.session_cost", "2.5"),
    ("pool.NAME.budget.day_tokens", "1000000"),
    ("pool.NAME.budget.day_cost", "40"),
    ("pool.NAME.budget.pool_tokens", "1000000"),
    ("pool.NAME.budget.pool_cost", "0.000001"),
    ("template.NAME.roles", "[\"own\"]"),
    ("template.NAME.planner", "\"own\""),
    ("template.NAME.plan", "\"content/plan.md\""),
    ("template.NAME.instructions", "\"Be brief.\""),
    ("template.NAME.check", "\"true\""),
    ("role.NAME.pool", "\"demo\""),
    ("role.NAME.model", "\"lab/model-1\""),
    ("role.NAME.instructions", "\"Be brief.\""),
    ("workspace.NAME.path", "\"site\""),
    ("store.postgres", "\"file:/etc/marshal/postgres\""),
    ("store.ca", "\"ca.pem\""),
    ("price.NAME.input", "3"),
    ("price.NAME.output", "15.0"),
    ("price.NAME.cache_read", "0.3"),
    ("price.NAME.cache_write", "3.75"),
    ("hook.NAME.url", "\"https://hooks.example.com/x?y=z\""),
    ("hook.NAME.secret", "\"env:HOOK_SECRET\""),
    ("hook.NAME.ca", "\"ca.pem\""),
    ("hook.NAME.command", "[\"/usr/local/bin/tell\", \"x\"]"),
    ("hook.NAME.pools", "[\"demo\"]"),
    ("pool.NAME.runner.marker", "'print(\"{head}\" \"{tail}\")'"),
    ("pool.NAME.runner.unit", "'eval {hex}'"),
    ("pool.NAME.runner.init", "\"set quiet 1\""),
    ("pool.NAME.runner.dir", "\"session\""),
    ("pool.NAME.runner.lease", "\"2m\""),
    ("pool.NAME.file_plane.dir", "\"/var/spool/demo\""),
    ("pool.NAME.file_plane.owner", "1000"),
    ("pool.NAME.file_plane.max_open", "8"),
    ("pool.NAME.image", "\"localhost/agent:1\""),
    ("container.runtime", "\"runc\""),
    ("container.image", "\"localhost/agent:1\""),
    ("cache.cargo", "\"/srv/cargo\""),
    ("cache.npm", "\"/srv/npm\""),
    ("cache.pip", "\"/srv/pip\""),
    ("pool.NAME.ssh.host", "\"build.example.org\""),
    ("pool.NAME.ssh.user", "\"agent\""),
    ("pool.NAME.ssh.port", "2222"),
    ("pool.NAME.ssh.identity_file", "\"keys/id\""),
    ("pool.NAME.ssh.known_hosts", "\"keys/known_hosts\""),
    ("pool.NAME.ssh.config_file", "\"keys/config\""),
    ("pool.NAME.ssh.workspace", "\"/srv/work\""),
    ("pool.NAME.ssh.marshal", "\"/opt/marshal\""),
    ("pool.NAME.ssh.home", "\"/srv/home\""),
];

/// Prices, without which there is no budget of cost.
const PRICED: &str = "price.own.input = 1\nprice.own.output = 2\n";

/// Everything that the program sees of a configuration.
fn describe_config(config: &Config) -> String {
    format!(
        "{:#?}{:#?}{:#?}{:#?}{:#?}{:#?}{:#?}{:#?}",
        config.chat,
        config.store,
        config.hooks,
        config.supervisor,
        config.pools,
        config.sandboxes,
        config.egress,
        config.routes.get("own")
    )
}

#[test]
fn every_documented_key_is_accepted_and_its_default_is_the_true_one() {
    let samples: BTreeMap<_, _> = SAMPLES.iter().copied().collect();
    for row in rows() {
        if let Some(value) = row.value() {
            let bare = describe_config(&accepted_by(&explicit_origin(), &row.bare()));
            let config = accepted_by(&explicit_origin(), &row.file(value));
            assert_eq!(
                describe_config(&config),
                bare,
                "{} is not by default {value}",
                row.key
            );
        } else {
            let value = samples
                .get(row.key)
                .unwrap_or_else(|| panic!("no sample for {}", row.key));
            accepted_by(&explicit_origin(), &row.file(value));
        }
    }
}

#[test]
fn every_documented_type_is_the_one_that_is_expected() {
    for row in rows() {
        // A date is the type of no key.
        let errors = Config::parse(&row.file("2026-01-01"), &explicit_origin())
            .map(|_| ())
            .expect_err(row.key);
        let message = &errors.errors[0].message;
        let expected = message
            .strip_prefix("expected ")
            .and_then(|rest| rest.strip_suffix(", found a date or time"))
            .unwrap_or_else(|| panic!("{}: {}", row.key, errors_text(&errors)));
        let fits = match row.kind.as_str() {
            "a duration" => {
                expected.starts_with("a duration such") && !expected.ends_with("none\"")
            }
            "a duration or \"none\"" => {
                expected.starts_with("a duration such") && expected.ends_with(", or \"none\"")
            }
            "a size" => expected.starts_with("a size such"),
            kind => kind == expected,
        };
        assert!(
            fits,
            "{}: documented {}, expected {expected}",
            row.key, row.kind
        );
    }
}

#[test]
fn every_accepted_key_is_documented_once() {
    let accepted = KeyTypes::collect().values();
    // The keys of a registered workspace are those of a pool's, which are documented once.
    let of_pool = |key: &&str| {
        let key = key.strip_prefix("workspace.NAME.");
        key.is_some_and(|key| accepted.contains(&format!("pool.NAME.workspace.{key}")))
    };
    let accepted: BTreeSet<&str> = accepted
        .iter()
        .map(String::as_str)
        .filter(|key| !of_pool(key) || *key == "workspace.NAME.path")
        .collect();
    let rows = rows();
    let documented: BTreeSet<&str> = rows.iter().map(|row| row.key).collect();
    assert_eq!(documented.len(), rows.len(), "a key is documented twice");
    let diff = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| -> Vec<String> {
        a.difference(b).map(ToString::to_string).collect()
    };
    assert_eq!(
        diff(&accepted, &documented),
        Vec::<String>::new(),
        "not documented"
    );
    assert_eq!(
        diff(&documented, &accepted),
        Vec::<String>::new(),
        "not accepted"
    );
}

#[test]
fn the_built_in_file_says_what_would_hold_anyway() {
    let short = "[pool.demo]\nsize = 4\nagent = \"script\"\n";
    let (mut long, short) = (
        accepted_by(&explicit_origin(), DEFAULT),
        accepted_by(&explicit_origin(), short),
    );
    // It shows the command that the agent stands for.
    let pool = &mut long.pools[0];
    assert!(pool.has_own_command && !pool.is_preset);
    (pool.has_own_command, pool.is_preset) = (false, true);
    assert_eq!(describe_config(&long), describe_config(&short));
}
