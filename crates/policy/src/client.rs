//! Judges what an agent wants its client to do for it: read or write a file, run a command.
//!
//! Owns what is refused whatever the rules say: a path that leaves the workspace, a variable that
//! changes what a command does. A file is judged by the place that its path leads to and by the
//! path as it is written, both without links from then on: whoever opens the file afterwards opens
//! exactly that place and follows none, so that nothing which is swapped meanwhile is opened. Must
//! not know the protocol, nor who opens it.

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

/// Columns of a foreign path or name in a reason.
const SHOWN_COLUMNS: usize = 120;
/// Variables that a person can be shown, and columns of one of them.
const SHOWN_VARIABLES: usize = 24;
const SHOWN_VALUE: usize = 300;
/// Names of variables in a reason.
const SHOWN_NAMES: usize = 4;

/// The setting that says which variables are known.
const ENV_ALLOW: &str = "shell.env_allow";

/// Variables that an agent may never set: they say which programs, libraries, start-up files or
/// configuration a command uses. Compared without case.
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

/// The same by how they begin.
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
    /// Judges a wish. Beside the judgement stands, unless the wish is denied, the place that was
    /// judged: an absolute path below (for a terminal: or of) the workspace, without links.
    pub fn decide_client(
        &self,
        wish: &ClientRequest,
        at: &FsContext<'_>,
    ) -> (PolicyDecision, Option<String>) {
        self.decide_client_in_context(wish, at, &EvaluationContext::default())
    }

    /// The same on this occasion.
    pub fn decide_client_in_context(
        &self,
        wish: &ClientRequest,
        at: &FsContext<'_>,
        occasion: &EvaluationContext<'_>,
    ) -> (PolicyDecision, Option<String>) {
        // A bug in a reader must not become an answer, nor end the caller.
        catch_unwind(AssertUnwindSafe(|| decide(self, wish, at, occasion))).unwrap_or_else(|_| {
            let why = "the policy engine failed on this request; it is denied";
            (evaluate::error_decision("engine_error", why), None)
        })
    }
}

fn decide(
    policy: &Policy,
    wish: &ClientRequest,
    at: &FsContext<'_>,
    occasion: &EvaluationContext<'_>,
) -> (PolicyDecision, Option<String>) {
    let decided = match wish {
        ClientRequest::Read(path) => {
            decide_file(policy, path, (at, occasion), |paths| Request::Read {
                targets: paths.into_iter().map(ReadTarget::Path).collect(),
            })
        }
        ClientRequest::Write(path) => decide_file(policy, path, (at, occasion), |paths| {
            Request::Write { paths }
        }),
        ClientRequest::Run(spec) => decide_terminal(policy, spec, at, occasion),
        ClientRequest::Tool(wish) => tools::decide_engine_tool(policy, wish, at, occasion),
    };
    match decided {
        Ok((judgement, place)) => {
            let place = (judgement.decision != Decision::Deny).then_some(place);
            (judgement, place)
        }
        Err(judgement) => (*judgement, None),
    }
}

type ClientDecision = Result<(PolicyDecision, String), Box<PolicyDecision>>;

/// Why a wish is refused whatever the rules say.
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
    let reason = format!("the request cannot be judged: {why}");
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
            "{} is not in the workspace {}, and files are read and written for an agent only there",
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
    let judgement = evaluate::evaluate(
        policy,
        &request(paths),
        &AgentClaims::default(),
        &at,
        occasion,
    );
    Ok((judgement, place))
}

/// The skeleton of what is below the workspace; a path elsewhere as it is.
fn skeleton_below_workspace(path: &str, at: &FsContext<'_>) -> String {
    let root = trimmed(at.workspace);
    match path.strip_prefix(root) {
        Some(below) => format!("{root}{}", skeleton::path_skeleton(below)),
        None => path.to_owned(),
    }
}

/// Where a path leads now. Only a plain absolute path leads anywhere.
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
                    "{} is not in the workspace {}, and commands are run for an agent only there",
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
    let mut judgement = evaluate::evaluate_with(
        policy,
        &request,
        &AgentClaims::default(),
        at,
        ActiveRules::in_context(occasion),
        hits,
    );
    if judgement.decision == Decision::Ask && !can_be_shown(&variables) {
        let reason = format!(
            "a person would have to allow this, and more than {SHOWN_VARIABLES} variables, or one of \
             more than {SHOWN_VALUE} columns, cannot be shown to one"
        );
        return Err(denied_by_rule("client_terminal.env", &words, reason).into());
    }
    // Behind the command itself, and before what is only counted when there is too much of it.
    let parts = &mut judgement.facts.parts;
    let at = parts.len().min(1);
    let place = part_for_display(&["working-directory:", &cwd], true);
    parts.splice(at..at, std::iter::once(place).chain(variables));
    Ok((judgement, cwd))
}

/// Something about a command that whoever decides must see.
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

/// Whether a person sees all of these variables, each of them whole.
fn can_be_shown(variables: &[Part]) -> bool {
    let is_whole = |word: &UntrustedText| {
        word.escape_for_display(SHOWN_VALUE) == word.escape_for_display(usize::MAX)
    };
    variables.len() <= SHOWN_VARIABLES
        && variables.iter().all(|part| part.words.iter().all(is_whole))
}

/// What variables that the policy does not know mean for the verdict.
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

/// Whether the policy knows a variable of the agent's; an error if nobody may set it.
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
