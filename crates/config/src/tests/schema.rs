//! The schema and the reader agree: every file of these tests is judged by both.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;

use crate::{ConfigErrors, DEFAULT, schema};

/// Words of faults that no schema can find: of texts before they are TOML, of bounds that a pattern
/// cannot say, of names that must lead somewhere, of keys that must agree.
const BEYOND: &[&str] = &[
    "the site's policy is",
    "no model has a price",
    "there is no postgres",
    "the template needs roles",
    "there is no role",
    "is no path in the workspace",
    "is no Markdown file",
    "the check is a command",
    // How the file came here.
    "a supervisor.toml that was found may",
    "looks like a secret",
    // What the rest of the file, or the program, says.
    "a file plane needs a directory",
    "and approval.approvers of the pool has not that name",
    "and could give themselves tasks here",
    "has this directory already",
    "all pools together",
    "asks for nothing: the protocol has no words for it",
    "has no such methods",
    "fewer than its size",
    "image is for launcher",
    "is none of the options that are known to leave the walls",
    "launcher = \"container\" needs an image",
    "would change the walls",
    "belongs to a built-in policy",
    "holds the state directory",
    "is in pass as well as in set",
    "is in the list twice",
    "is not visible in the sandbox",
    "is set, but the command has no",
    "on_crash = \"resume\" needs",
    "on_crash = \"retry\" needs",
    "or the name of a [",
    "shorter than the first",
    "agent_dir is for agents",
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
    "the ssh client takes no path",
    "needs routes",
    "needs at least one of the routes",
    "or the name of a [route",
    "routes need network",
    "is none of the pool's routes",
    "which is none of",
    "the longest pause",
    "have the same port",
    "has the port",
    "egress needs network",
    "the port is no number",
    "a list has at most",
    "the route needs",
    "cannot carry a key",
    "expected a host name or address",
    // Names and places that mean something.
    "cannot be bound as a whole",
    "files of /etc are named",
    "is never shown as the host has it",
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
    "resume_args must hold {session}",
    "unknown placeholder",
    "the program's name is empty",
    "has a blank in its name",
    "the program must be named in full",
    "after \"env:\"",
    "env.set.K: a path must not be empty",
    "env.set.K: \"~\" is not expanded",
    // What keys of ACP agree on with others.
    "this is for agents that speak acp",
    "logout = true needs a goodbye",
    "logout = true without auth",
    "skips permission requests",
    "is its approval policy",
    "may not use a mode that skips questions",
    "a tool server needs",
    "is there twice",
    "engine_tools needs",
    "an agent that speaks codex",
    "the supervisor gives --settings",
    // What keys of a tool that is driven by files agree on.
    "a marker template is one line",
    "a unit is one line",
    "init is one line",
    "prints a marker is not known",
    "that is driven by files cannot ask",
    "runner.dir is",
    "launcher = \"pty\" needs dialect",
    "the table runner is for",
    "needs a workspace that can be written",
    "the server of engine_tools",
    "would hand a secret",
    "only through a route",
    "a path such as \"/mcp\"",
    "only where its session is loaded again",
    "says otherwise",
    // What keys of a profile agree on, and what order says of two numbers.
    "to name what may be missing",
    "does nothing without on_missing",
    "begins at 1000 or above",
    "may not choose the uids",
    "expected \"auto\" or FIRST-LAST",
    "mode = \"overlay\" needs",
    "do not go with a check",
    "has no mask",
    "a mask needs a sandbox",
    "expected a pattern below the workspace",
    "the pattern cannot be read",
    "a slice is read-only",
    "no pattern but a",
    "mode = \"worktree\" needs a sandbox",
    "hides less than the usual one",
    "go with a check",
    "may not share caches",
    "may not say which directories are caches",
    // What keys of the door agree on, and which address is whose.
    "is not a loopback address",
    "may not have tokens",
    "may not say who reaches",
    "with a certificate nothing",
    "expected the name of a host",
    "more than 32 names",
    "the owner's token is",
    "the token needs",
    "more than 64 tokens",
    "tls needs the file",
    "by which people come in",
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
    "cannot take a model for each session",
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
