//! The schema and the reader agree: every file of these tests is judged by both.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

use crate::{ConfigErrors, DEFAULT, schema};

/// Words of faults that no schema can find: of texts before they are TOML, of bounds that a pattern
/// cannot say, of names that must lead somewhere, of keys that must agree.
const BEYOND: &[&str] = &[
    "there is no workspace",
    "the agent sees the directory itself, in which there is no place",
    "or the workspace's own mode",
    "repos has at most",
    "expected a path below the workspace",
    "overlaps with",
    "is in the workspace already",
    "repos need a sandbox",
    "may not use a repository outside",
    "only clones start from a base",
    "only clones have branches",
    "workspace.branches with session",
    "needs pull_request",
    "a pull request needs a branch",
    "needs repositories of the form",
    "all files are there",
    "no alternatives in braces",
    "the site's policy is",
    "its model has no price",
    "store.postgres is not set",
    "the template needs 1 to",
    "there is no role",
    "is not a path in the workspace",
    "is not a Markdown file",
    "the check is a command",
    // How the file came here.
    "a discovered supervisor.toml may",
    "looks like a secret",
    // What the rest of the file, or the program, says.
    "a file plane needs a directory",
    "which is not in approval.approvers of the pool",
    "and could submit tasks to themselves here",
    "has this directory already",
    "all pools together",
    "never asks: the protocol has no permission requests",
    "has no such methods",
    "client_elicitation needs dialect",
    "max_size is smaller than",
    "image is for launcher",
    "is not one of the options that are known to leave the sandbox",
    "launcher = \"container\" needs an image",
    "would change the sandbox",
    "belongs to a built-in policy",
    "contains the state directory",
    "is in pass as well as in set",
    "is in the list twice",
    "is not visible in the sandbox",
    "is set, but the command has no",
    "on_crash = \"resume\" needs",
    "on_crash = \"retry\" needs",
    "or the name of a [",
    "shorter than the first",
    "agent_dir is for built-in agents",
    "the agent could write",
    "the program must be an absolute path",
    "a command gets none",
    "the name of a [delegate.NAME]",
    "the built-in policy \"developer\" has the guard",
    "the command has {",
    "the path of a profile in OCI form",
    "guard = ",
    "launcher = \"none\"",
    "launcher = \"ssh\"",
    "ssh.marshal",
    "not a regular expression",
    "the ssh client accepts no path",
    "needs routes",
    "needs at least one of the routes",
    "or the name of a [route",
    "routes need network",
    "is not one of the pool's routes",
    "which is not one of",
    "the longest pause",
    "have the same port",
    "has the port",
    "egress needs network",
    "the port is not a number",
    "a list has at most",
    "the route needs",
    "cannot carry a key",
    "registry needs kind",
    "has hosts",
    "its requests follow from the kind of registry",
    "a secret needs an upstream",
    "a host of this machine is only",
    "a route has at most 32 hosts",
    "lead to registries of one kind",
    "is not for a route of kind",
    "with user the key is in the header",
    "expected at most 64 entries",
    "expected a host name or address",
    // Names and places that mean something.
    "cannot be bound as a whole",
    "use the key etc for files of /etc",
    "of the host's /etc",
    "the sandbox has its own",
    "is set by the supervisor itself",
    "TERM is never passed",
    "PATH is made for the child",
    "HOME is the session's own",
    "USER is set",
    "LOGNAME is set",
    "PWD is the workspace",
    "TMPDIR is the child's own",
    // What a pattern of a whole text cannot say.
    "a NUL character",
    "a duration from",
    "a duration is at most",
    "a size from",
    "the size is too large",
    "found \"127.0.0.1:70000\"",
    "resume_args must contain {session}",
    "unknown placeholder",
    "the program's name is empty",
    "has a space in its name",
    "the program's name takes no placeholder",
    "after \"env:\"",
    "env.set.K: a path must not be empty",
    "env.set.K: \"~\" is not expanded",
    // What keys of ACP agree on with others.
    "this is for agents that speak acp",
    "logout = true needs a goodbye",
    "logout = true needs auth",
    "skips permission requests",
    "is its approval policy",
    "may not use a mode that skips permission requests",
    "a tool server needs",
    "is listed twice",
    "engine_tools needs",
    "an agent that speaks codex",
    "the supervisor passes --settings",
    // What keys of a tool that is driven by files agree on.
    "a marker template is one line",
    "a unit is one line",
    "init is one line",
    "prints a marker is not known",
    "that is driven by files cannot ask",
    "runner.dir is",
    "launcher = \"pty\" needs dialect",
    "the table runner is for",
    "needs a writable workspace",
    "in a read-only workspace needs",
    "the server of engine_tools",
    "would give the agent a secret",
    "a tool server at a URL needs a route",
    "a path such as \"/mcp\"",
    "only if its session is loaded again",
    "says otherwise",
    // What keys of a profile agree on, and what order says of two numbers.
    "to name what may be missing",
    "has no effect without on_missing",
    "begins at 1000 or above",
    "may not choose the uids",
    "expected \"auto\" or FIRST-LAST",
    "mode = \"overlay\" needs",
    "excludes a check",
    "a mask needs a sandbox",
    "expected a pattern below the workspace",
    "the pattern cannot be read",
    "a slice is read-only",
    "a setup prepares clones",
    "a setup needs a",
    "give a setup the network",
    "expected the path of a file of the repository",
    "the only pattern is",
    "mode = \"worktree\" needs a sandbox",
    "hides less than the usual one",
    "excludes a check: the check would run",
    "may not share caches",
    "may not set cache directories",
    // What keys of the door agree on, and which address is whose.
    "is not a loopback address",
    "may not have tokens",
    "may not set who reaches",
    "with http.tls the supervisor serves no",
    "expected the name of a host",
    "more than 32 names",
    "the owner's token is",
    "the token needs",
    "more than 64 tokens",
    "tls needs the file",
    "which grants access to the supervisor",
    // What keys of a hook agree on, and what an address is.
    "a hook has a url or a command",
    "the hook needs a",
    "the key is for a hook with a",
    "by its absolute path",
    "no server listens on port 0",
    "expected a path, and a query",
    "there are more than 16 hooks",
    "there is no pool",
    "the list is empty: the hook",
    "does not begin with MARSHAL_",
    // What a role's pool can do, and bytes, which are no characters.
    "cannot set a model per session",
    "the instructions have more than",
    // JSON has one kind of number.
    "found the float 4.0",
];

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let schema: Value = serde_json::from_str(&schema()).expect("JSON");
    assert!(
        jsonschema::draft202012::meta::is_valid(&schema),
        "no schema"
    );
    jsonschema::draft202012::new(&schema).expect("a schema")
});

/// The file as JSON. A date, which is the type of no key, becomes null.
fn json(text: &str) -> Option<Value> {
    fn value(value: toml::Value) -> Value {
        match value {
            toml::Value::Datetime(_) => Value::Null,
            toml::Value::Array(array) => array.into_iter().map(value_of).collect(),
            toml::Value::Table(table) => table
                .into_iter()
                .map(|(key, value)| (key, value_of(value)))
                .collect(),
            other => serde_json::to_value(other).expect("plain"),
        }
    }
    use value as value_of;
    Some(value(toml::Value::Table(text.parse().ok()?)))
}

/// The schema takes what the reader took.
pub(super) fn accepts(text: &str) {
    let json = json(text).expect("TOML");
    let faults: Vec<String> = VALIDATOR
        .iter_errors(&json)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(
        faults.is_empty(),
        "{text}\nthe reader takes it, the schema does not: {faults:#?}"
    );
}

/// The schema refuses what the reader refused, as far as it can.
pub(super) fn refuses(text: &str, errors: &ConfigErrors) {
    let is_beyond = |message: &str| BEYOND.iter().any(|part| message.contains(part));
    let Some(json) = json(text) else { return };
    if errors
        .errors
        .iter()
        .all(|error| is_beyond(&error.to_string()))
    {
        return;
    }
    assert!(
        !VALIDATOR.is_valid(&json),
        "{text}\nthe reader refuses it, the schema does not: {errors}"
    );
}

#[test]
fn the_schema_takes_the_shipped_file() {
    accepts(DEFAULT);
}
