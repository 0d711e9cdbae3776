//! What is shown of a configuration is the same configuration, without its secrets.

use std::collections::BTreeSet;

use super::{accepted_by, discovered_origin, explicit_origin, schema};
use crate::key_types::KeyTypes;
use crate::{Config, Origin};

/// Shown, read and shown again, it is the same, and the schema takes it. Called for every file that
/// a test takes for good.
pub(super) fn is_read_again(config: &Config, origin: &Origin) {
    let text = config.effective().to_toml();
    let again = Config::parse(&text, origin).unwrap_or_else(|errors| panic!("{text}\n{errors}"));
    assert_eq!(again.effective().to_toml(), text);
    let has_secrets = text.contains("‹secret›");
    if !has_secrets {
        let seen = |config: &Config| {
            let Config {
                supervisor,
                pools,
                sandboxes,
                policies,
                delegates,
                routes,
                egress,
                caches,
                hooks,
                chat,
                roles,
                workspaces,
                store,
                http,
                tokens,
                ..
            } = config;
            let chats = format!("{chat:#?}{roles:#?}{workspaces:#?}{store:#?}");
            let sandbox_text = format!("{sandboxes:#?}{egress:#?}{caches:#?}{http:#?}{tokens:#?}");
            format!(
                "{supervisor:#?}{pools:#?}{policies:#?}{delegates:#?}{routes:#?}{sandbox_text}{hooks:#?}{chats}"
            )
        };
        assert_eq!(seen(&again), seen(config), "{text}");
    }
    schema::accepts(&text);
    let tree: toml::Table = text.parse().expect("TOML");
    assert_eq!(config.effective().to_table(), tree);
    let acts = text
        .chars()
        .find(|c| *c != '\n' && marshal_model::untrusted::is_unsafe(*c));
    assert_eq!(acts, None, "{text:?}");
}

/// A file that has every key, in two pools because some exclude each other.
const EVERYTHING: &str = r#"
[supervisor]
state_dir = "/var/lib/marshal"
[http]
tls = { certificate = "cert.pem", key = "/keys/key.pem" }
hosts = ["marshal.example:8443"]
[token.ops]
file = "/etc/marshal-tokens/ops"
role = "approve"
[pool.one]
agent = "gemini"
agent_dir = "/opt/agents"
model = "lab/model-1"
home_files = { ".config/a b" = "a", "c\u001b" = "c" }
env = { set = { A = "1", API_KEY = "in-the-open", B = "env:HOME", C = "file:key", D = "\u009b'\"\\\n\t" } }
sandbox = "own"
policy = "own"
cache = ["pip", "cargo"]
guard_off = true
[pool.two]
command = ["agent", "{mode}"]
mode = "plan"
shadow_policy = "reviewer"
delegate = "two"
network = "routes"
routes = ["own", "anthropic"]
[pool.driven]
command = ["tclsh"]
launcher = "pty"
dialect = "skillpilot"
runner = { marker = 'p "{head}" "{tail}"', unit = "e {hex}", init = "x", dir = "plane", lease = "1m" }

[pool.three]
command = ["agent"]
launcher = "ssh"
ssh = { host = "h", user = "u", port = 1, identity_file = "i", known_hosts = "k", config_file = "c", workspace = "/w", marshal = "m", home = "/h" }
[pool.four]
command = ["agent"]
dialect = "acp"
auth = "key"
options = { "a b" = "x", fast = true }
engine_tools = ["read_file", "ask_person"]
mcp_servers = [{ name = "files", command = "/usr/bin/mcp", args = ["-x"], env = { A = "1" } }]
budget = { session_tokens = 1, session_cost = 0.5, day_tokens = 2, day_cost = 40, pool_tokens = 3, pool_cost = 1000.25, then = "park" }
[price."m-1.5*"]
input = 3
output = 15
cache_read = 0.3
[pool.seven]
command = ["agent"]
dialect = { custom = "agent.toml" }
[pool.five]
command = ["agent"]
network = "proxy"
egress = { allow = ["api.example.com"], timeouts = { idle = "1m" } }
file_plane = { dir = "/srv/spool", owner = 1000, poll = "1m" }
[pool.six]
command = ["agent"]
launcher = "container"
image = "localhost/own"
[container]
runtime = "runc"
image = "localhost/agent:1"
extra = ["--memory=1g"]
[cache]
cargo = "/srv/cargo"
npm = "npm"
pip = "/srv/pip"
[egress]
allow = ["*.example.com:8443"]
[pool.two.extractor.tool."a b"]
class = "shell"
[route.forge]
kind = "git"
upstream = "https://forge.example.com"
repositories = ["owner/name", "others/*"]
user = "x-access-token"
secret = "file:key"
push = ["refs/heads/marshal/*", "refs/heads/next"]
push_max = "8M"
pull_request = "github"
pull_request_base = "trunk"
api = "https://forge.example.com/api/v3"
api_secret = "file:key"
[route.own]
upstream = "https://models.example.com/base"
allow = ["POST /v1/messages"]
secret = "file:key"
ca = "ca.pem"
[route.packages]
kind = "registry"
registry = "npm"
hosts = ["files.example.com"]
[route.mirror]
kind = "registry"
registry = "pypi"
upstream = "https://mirror.example.com/simple"
secret = "file:key"
[sandbox.own]
[policy.own]
file = "own.toml"
site = true
[policy.top]
file = "top.toml"
layer = true
test_dir = "cases"
[delegate.one]
command = ["/usr/bin/decide"]
[delegate.two]
url = "https://opa.example/v1/data/x"
token = "file:key"
[hook.a]
url = "https://hooks.example.com/x?y=z"
secret = "file:key"
ca = "ca.pem"
pools = ["two"]
[hook.b]
command = ["/usr/local/bin/tell", "\u001b"]
env = { PATH = "/bin" }
events = ["parked"]
[pool.cloned]
agent = "script"
workspace = { mode = "worktree", base = "origin/main", branches = true, author = "Ada <ada@example.com>", include = ["local.toml"], setup = { command = ["npm", "ci"], inputs = ["package-lock.json"], network = "host" }, repos = [{ path = "../lib", at = "lib", base = "v1" }, { path = "/srv/docs", at = "docs", mode = "ro" }] }
[chat]
idle = "90s"
[template.campaign]
roles = ["writer"]
mode = "plan_then_execute"
planner = "writer"
plan = "content/plan.md"
instructions = "Be brief."
check = "true"
agent_items = true
[role.writer]
pool = "one"
model = "lab/model-2"
instructions = "Be \u001b brief."
[workspace.site]
path = "site"
shared = true
mode = "worktree"
author = "Ada <ada@example.com>"
base = "main"
setup = { command = ["make"] }
repos = [{ path = "../lib", at = "lib" }]
[store]
postgres = "file:connection"
ca = "ca.pem"
newest = 3
"#;

/// Every path of the tree, with NAME for chosen names.
fn walk(path: &str, value: &toml::Value, shown: &mut BTreeSet<String>) {
    shown.insert(path.to_owned());
    for (name, value) in value.as_table().into_iter().flatten() {
        let generic = if path.contains('.') { name } else { "NAME" };
        let is_one = matches!(
            path,
            "container" | "supervisor" | "http" | "egress" | "cache" | "chat" | "store"
        );
        let generic = if is_one { name } else { generic };
        walk(&format!("{path}.{generic}"), value, shown);
    }
}

#[test]
fn every_key_is_shown() {
    let tree = accepted_by(&explicit_origin(), EVERYTHING)
        .effective()
        .to_table();
    let mut shown = BTreeSet::new();
    for (name, value) in &tree {
        walk(name, value, &mut shown);
    }
    let missing: Vec<_> = KeyTypes::collect()
        .values()
        .into_iter()
        .filter(|key| !shown.contains(key))
        .collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn secrets_are_hidden_wherever_they_stand() {
    let config = accepted_by(&explicit_origin(), EVERYTHING);
    let text = config.effective().to_toml();
    for hidden in ["API_KEY", "B", "C"] {
        assert!(
            text.contains(&format!("env.set.{hidden} = \"‹secret›\"\n")),
            "{text}"
        );
    }
    assert!(text.contains("env.set.A = \"1\"\n"), "{text}");
    for secret in ["in-the-open", "env:HOME", "file:key", "/etc/marshal/key"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    let again = accepted_by(&explicit_origin(), &text);
    assert_eq!(
        again
            .notes
            .iter()
            .filter(|note| note.contains("was not shown"))
            .count(),
        6,
        "{:?}",
        again.notes
    );
}

#[test]
fn a_configuration_is_shown_with_all_its_defaults() {
    let text = "[pool.demo]\nagent = \"script\"\nworkspace.path = \"src\"\n";
    insta::assert_snapshot!(
        accepted_by(&discovered_origin(), text)
            .effective()
            .to_toml()
    );
}
