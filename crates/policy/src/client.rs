//! Evaluates an agent's requests to its client: read or write a file, run a command.
//!
//! Owns what is denied independent of the rules: a path that leaves the workspace, a variable that
//! changes what a command does. A file is evaluated by the place that its path resolves to and by
//! the path as it is written. From then on both are without links: whoever opens the file opens
//! exactly that place and follows no link. So a file that is swapped in the meantime is not opened.
//! Must not know the protocol, nor who opens the file.

mod tools;

pub use tools::allow_announced_tool;

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::evaluate::{self, Hit};
use super::evaluation_context::{ActiveRules, EvaluationContext};
use super::extract::argv;
use super::path::{FsContext, NoLinks, Walker, is_within};
use super::request::{Facts, Part, PolicyDecision, ReadTarget, Request};
use super::{Policy, skeleton};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{AgentClaims, ClientRequest, DecidedBy, Decision, TerminalSpec, UntrustedText};

/// Maximum columns of a foreign path or name in a reason.
const SHOWN_COLUMNS: usize = 120;
/// How many variables can be shown to a person.
const SHOWN_VARIABLES: usize = 24;
/// Maximum columns of one of them.
const SHOWN_VALUE: usize = 300;
/// How many variable names a reason lists.
const SHOWN_NAMES: usize = 4;

/// The setting that lists the known variables.
const ENV_ALLOW: &str = "shell.env_allow";

/// Variables that an agent may never set: they select the programs, libraries, start-up files or
/// configuration that a command uses. Compared case-insensitively.
const DENIED_VARIABLES: &[&str] = &[
    "PATH",
    "HOME",
    "SHELL",
    "USER",
    "LOGNAME",
    "PWD",
    "OLDPWD",
    "TMPDIR",
    "IFS",
    "ENV",
    "CDPATH",
    "GLOBIGNORE",
    "SHELLOPTS",
    "PS4",
    "PS0",
    "PS1",
    "PS2",
    "PS3",
    "PROMPT_COMMAND",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "MANPAGER",
    "VIMINIT",
    "EXINIT",
    "GVIMINIT",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "RES_OPTIONS",
    "GETCONF_DIR",
    "LOCPATH",
    "NLSPATH",
    "CLASSPATH",
    "MAKEFLAGS",
    "MAKEFILES",
    "MFLAGS",
    "CC",
    "CXX",
    "CPP",
    "LD",
    "AR",
    "CFLAGS",
    "CXXFLAGS",
    "CPPFLAGS",
    "LDFLAGS",
    "TAR_OPTIONS",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "CARGO",
    "CARGO_HOME",
    "GOFLAGS",
    "GOPATH",
    "GOROOT",
    "GOENV",
    "GOTOOLCHAIN",
    "GOCACHEPROG",
    "GOPROXY",
    "GOSUMDB",
    "TERMCAP",
    "ZDOTDIR",
    "INPUTRC",
    "WGETRC",
    "CURL_HOME",
];

/// Prefixes of such variables.
const DENIED_VARIABLE_PREFIXES: &[&str] = &[
    "LD_",
    "DYLD_",
    "GIT_",
    "BASH",
    "PYTHON",
    "PERL",
    "RUBY",
    "GEM_",
    "BUNDLE_",
    "NODE_",
    "NPM_CONFIG_",
    "YARN_",
    "JAVA",
    "_JAVA",
    "JDK_",
    "DOTNET_",
    "LUA_",
    "LESS",
    "GCONV_",
    "GLIBC_",
    "MALLOC_",
    "SSH_",
    "XDG_",
    "TERMINFO",
    "RUSTC",
    "RUSTUP_",
    "PIP_",
    "UV_",
    "OPENSSL_",
    "RSYNC_",
    "SYSTEMD_",
    "GH_",
    "CARGO_BUILD_",
    "CARGO_TARGET_",
    "CARGO_ALIAS_",
    "CARGO_ENCODED_",
    "CARGO_REGISTR",
    "CMAKE_",
    "MARSHAL_",
];

impl Policy {
    /// Evaluates a request to the client. Returns the decision and, unless it is a denial, the
    /// evaluated place: an absolute path without links, below the workspace. The directory of a
    /// terminal may also be the workspace itself.
    pub fn decide_client_in_context(
        &self,
        request: &ClientRequest,
        at: &FsContext<'_>,
        occasion: &EvaluationContext<'_>,
    ) -> (PolicyDecision, Option<String>) {
        // A bug in a reader must neither become an answer nor end the caller.
        catch_unwind(AssertUnwindSafe(|| decide(self, request, at, occasion))).unwrap_or_else(
            |_| {
                let why = "the policy engine failed on this request; it is denied";
                (evaluate::error_decision("engine_error", why), None)
            },
        )
    }
}

fn decide(
    policy: &Policy,
    request: &ClientRequest,
    at: &FsContext<'_>,
    occasion: &EvaluationContext<'_>,
) -> (PolicyDecision, Option<String>) {
    let decided = match request {
        ClientRequest::Read(path) => {
            decide_file(policy, path, (at, occasion), |paths| Request::Read {
                targets: paths.into_iter().map(ReadTarget::Path).collect(),
            })
        }
        ClientRequest::Write(path) => decide_file(policy, path, (at, occasion), |paths| {
            Request::Write { paths }
        }),
        ClientRequest::Run(spec) => decide_terminal(policy, spec, at, occasion),
        ClientRequest::Tool(request) => tools::decide_engine_tool(policy, request, at, occasion),
    };
    match decided {
        Ok((policy_decision, place)) => {
            let place = (policy_decision.decision != Decision::Deny).then_some(place);
            (policy_decision, place)
        }
        Err(policy_decision) => (*policy_decision, None),
    }
}

type ClientDecision = Result<(PolicyDecision, String), Box<PolicyDecision>>;

/// A denial that is independent of the rules.
fn denied_by_rule(rule: &str, words: &[&str], reason: String) -> PolicyDecision {
    PolicyDecision {
        decision: Decision::Deny,
        rules: vec![rule.to_owned()],
        reason,
        decided_by: DecidedBy::Policy,
        facts: Facts {
            parts: vec![Part {
                env: Vec::new(),
                redirects: Vec::new(),
                words: words.iter().copied().map(UntrustedText::from).collect(),
                decision: Decision::Deny,
                rules: vec![rule.to_owned()],
            }],
            ..Facts::default()
        },
        dry_run_decision: None,
        rule_uses: Vec::new(),
    }
}

fn malformed(why: &str) -> PolicyDecision {
    let reason = format!("the request cannot be evaluated: {why}");
    evaluate::error_decision("malformed", &reason)
}

fn decide_file(
    policy: &Policy,
    path: &str,
    (at, occasion): (&FsContext<'_>, &EvaluationContext<'_>),
    request: impl FnOnce(Vec<String>) -> Request,
) -> ClientDecision {
    let place = resolve_client_path(path, at)?;
    if place == trimmed(at.workspace) || !is_within(&place, at.workspace) {
        let reason = format!(
            "{} is not in the workspace {}; agents can read and write files only there",
            escape_for_display(path, SHOWN_COLUMNS),
            escape_for_display(at.workspace, SHOWN_COLUMNS)
        );
        return Err(denied_by_rule("client_fs.outside", &[path], reason).into());
    }
    let mut paths = vec![place.clone()];
    for spelling in [
        path.to_owned(),
        skeleton_below_workspace(&place, at),
        skeleton_below_workspace(path, at),
    ] {
        if !paths.contains(&spelling) {
            paths.push(spelling);
        }
    }
    let at = FsContext {
        resolver: &NoLinks,
        ..*at
    };
    let policy_decision = evaluate::evaluate(
        policy,
        &request(paths),
        &AgentClaims::default(),
        &at,
        occasion,
    );
    Ok((policy_decision, place))
}

/// The skeleton of a path below the workspace; a path elsewhere is returned as it is.
fn skeleton_below_workspace(path: &str, at: &FsContext<'_>) -> String {
    let root = trimmed(at.workspace);
    match path.strip_prefix(root) {
        Some(below) => format!("{root}{}", skeleton::path_skeleton(below)),
        None => path.to_owned(),
    }
}

/// The place that a path resolves to now. Only a plain absolute path is resolved.
fn resolve_client_path(path: &str, at: &FsContext<'_>) -> Result<String, Box<PolicyDecision>> {
    let Some(below) = path.strip_prefix('/') else {
        return Err(malformed("the path is not absolute").into());
    };
    if path.contains('\0') {
        return Err(malformed("the path has a NUL in it").into());
    }
    if below.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(malformed("the path has an empty component, a `.` or a `..`").into());
    }
    if !at.workspace.starts_with('/') {
        return Err(malformed("the workspace is not known").into());
    }
    let end = Walker::new(*at).walk("/", path);
    if end.escaped {
        let reason = format!(
            "{} leads out of the workspace {}",
            escape_for_display(path, SHOWN_COLUMNS),
            escape_for_display(at.workspace, SHOWN_COLUMNS)
        );
        return Err(denied_by_rule("client_fs.outside", &[path, &end.path], reason).into());
    }
    Ok(end.path)
}

fn decide_terminal(
    policy: &Policy,
    spec: &TerminalSpec,
    at: &FsContext<'_>,
    occasion: &EvaluationContext<'_>,
) -> ClientDecision {
    let words: Vec<&str> = spec.argv.iter().map(String::as_str).collect();
    if words
        .first()
        .is_none_or(|program| program.trim().is_empty())
    {
        return Err(malformed("it names no program").into());
    }
    if words.iter().any(|word| word.contains('\0')) {
        return Err(malformed("the command has a NUL in it").into());
    }
    let mut variables = Vec::new();
    let mut unknown = Vec::new();
    for (name, value) in &spec.env {
        let is_known = check_variable(policy, name, value)?;
        if !is_known {
            unknown.push(escape_for_display(name, SHOWN_COLUMNS));
        }
        variables.push(part_for_display(
            &["variable:", &format!("{name}={value}")],
            is_known,
        ));
    }
    let hits = unknown_variable_hits(&unknown);
    let cwd = match &spec.cwd {
        None => trimmed(at.cwd.unwrap_or(at.workspace)).to_owned(),
        Some(cwd) => {
            let cwd = if cwd == "/" { cwd } else { trimmed(cwd) };
            let place = resolve_client_path(cwd, at)?;
            if !is_within(&place, at.workspace) {
                let reason = format!(
                    "{} is not in the workspace {}; agents can run commands only there",
                    escape_for_display(cwd, SHOWN_COLUMNS),
                    escape_for_display(at.workspace, SHOWN_COLUMNS)
                );
                return Err(denied_by_rule("client_terminal.cwd", &[cwd], reason).into());
            }
            place
        }
    };
    let command = argv::to_command_line(&words)
        .map_err(|why| Box::new(malformed(&format!("the command {why}"))))?;
    let request = Request::Shell {
        command,
        cwd: Some(cwd.clone()),
    };
    let mut policy_decision = evaluate::evaluate_with(
        policy,
        &request,
        &AgentClaims::default(),
        at,
        ActiveRules::in_context(occasion),
        hits,
    );
    if policy_decision.decision == Decision::Ask && !can_be_shown(&variables) {
        let reason = format!(
            "this needs approval, but more than {SHOWN_VARIABLES} variables, or one of \
             more than {SHOWN_VALUE} columns, cannot be shown to an approver"
        );
        return Err(denied_by_rule("client_terminal.env", &words, reason).into());
    }
    // After the command itself, and before the parts that are only counted when there are too many.
    let parts = &mut policy_decision.facts.parts;
    let at = parts.len().min(1);
    let place = part_for_display(&["working-directory:", &cwd], true);
    parts.splice(at..at, std::iter::once(place).chain(variables));
    Ok((policy_decision, cwd))
}

/// A part of a command that an approver must see.
fn part_for_display(words: &[&str], is_known: bool) -> Part {
    let (decision, rules) = if is_known {
        (Decision::Allow, Vec::new())
    } else {
        (Decision::Ask, vec![ENV_ALLOW.to_owned()])
    };
    Part {
        env: Vec::new(),
        redirects: Vec::new(),
        words: words.iter().copied().map(UntrustedText::from).collect(),
        decision,
        rules,
    }
}

/// Whether all of these variables can be shown to a person in full.
fn can_be_shown(variables: &[Part]) -> bool {
    let is_whole = |word: &UntrustedText| {
        word.escape_for_display(SHOWN_VALUE) == word.escape_for_display(usize::MAX)
    };
    variables.len() <= SHOWN_VARIABLES
        && variables.iter().all(|part| part.words.iter().all(is_whole))
}

/// The effect on the verdict of variables that the policy does not know.
fn unknown_variable_hits(unknown: &[String]) -> Vec<Hit> {
    let Some((first, more)) = unknown.split_first() else {
        return Vec::new();
    };
    let reason = match more.len() {
        0 => format!("the variable {first} is not in the policy's {ENV_ALLOW}"),
        n if n < SHOWN_NAMES => {
            let names = unknown.join(", ");
            format!("the variables {names} are not in the policy's {ENV_ALLOW}")
        }
        n => format!("the variable {first} and {n} more are not in the policy's {ENV_ALLOW}"),
    };
    vec![Hit::from_setting(Decision::Ask, ENV_ALLOW, &reason)]
}

/// Whether the policy knows a variable of the agent; an error if no agent may set it.
fn check_variable(policy: &Policy, name: &str, value: &str) -> Result<bool, Box<PolicyDecision>> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_plain = !name.is_empty()
        && name.chars().all(is_name)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !value.contains('\0');
    if !is_plain {
        return Err(malformed("a variable has no plain name, or a NUL in it").into());
    }
    let folded = name.to_ascii_uppercase();
    let is_refused = DENIED_VARIABLES.contains(&folded.as_str())
        || DENIED_VARIABLE_PREFIXES
            .iter()
            .any(|family| folded.starts_with(family));
    if is_refused {
        let reason = format!(
            "an agent may not set the variable {} of a command",
            escape_for_display(name, SHOWN_COLUMNS)
        );
        return Err(denied_by_rule("client_terminal.env", &[name], reason).into());
    }
    Ok(policy.shell.env_allow.iter().any(|allowed| allowed == name))
}

fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

#[cfg(test)]
mod tests;
