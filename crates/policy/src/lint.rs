//! Finds rules that do less than they seem to, or allow more.
//!
//! Owns what is suspicious in an otherwise valid policy. Reports it and changes nothing. Must not
//! read files: the caller supplies the texts of all layers.

use super::Policy;
use super::document::{Document, RuleText};
use marshal_model::Decision;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth a look.
    Note,
    /// Probably not intended.
    Warning,
}

impl Level {
    /// The level's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
        }
    }
}

/// A lint finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The finding's severity.
    pub level: Level,
    /// The kind of finding, for programs: `shadowed`, `interpreter`, `no-reason`, ...
    pub code: &'static str,
    /// The rule that it concerns; `None`: the whole policy.
    pub rule: Option<String>,
    /// What is wrong, and what to do.
    pub text: String,
}

/// Programs that run code in their arguments, or another program.
pub(super) const RUNNERS: &[&str] = &[
    "awk",
    "bash",
    "bun",
    "bunx",
    "busybox",
    "chroot",
    "command",
    "coproc",
    "dash",
    "deno",
    "doas",
    "docker",
    "env",
    "eval",
    "exec",
    "expect",
    "fish",
    "flock",
    "gawk",
    "ionice",
    "ksh",
    "lua",
    "make",
    "mawk",
    "nice",
    "node",
    "nohup",
    "npx",
    "nsenter",
    "parallel",
    "perl",
    "php",
    "pipx",
    "pnpx",
    "podman",
    "pwsh",
    "python",
    "python2",
    "python3",
    "Rscript",
    "ruby",
    "script",
    "setpriv",
    "setsid",
    "sh",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "systemd-run",
    "tclsh",
    "time",
    "timeout",
    "tmux",
    "unshare",
    "uvx",
    "watch",
    "xargs",
    "zsh",
];

/// Programs whose subcommands differ so much that a rule for all of them is too wide.
pub(super) const FAMILIES: &[&str] = &[
    "apt",
    "aws",
    "brew",
    "bundle",
    "cargo",
    "composer",
    "deno",
    "docker",
    "dotnet",
    "gcloud",
    "gem",
    "gh",
    "git",
    "go",
    "gradle",
    "helm",
    "jj",
    "kubectl",
    "mvn",
    "npm",
    "pip",
    "pip3",
    "pnpm",
    "podman",
    "poetry",
    "rustup",
    "systemctl",
    "terraform",
    "uv",
    "yarn",
];

/// Subcommands that run code in their arguments.
pub(super) const EXEC_SUBCOMMANDS: &[(&str, &[&str])] = &[
    ("bundle", &["exec"]),
    ("cargo", &["run", "install", "script"]),
    ("composer", &["exec", "run-script"]),
    ("deno", &["run", "eval", "task"]),
    ("docker", &["run", "exec", "compose"]),
    ("dotnet", &["run", "exec"]),
    ("gh", &["api", "extension", "alias"]),
    (
        "git",
        &[
            "bisect",
            "filter-branch",
            "submodule",
            "difftool",
            "mergetool",
            "config",
        ],
    ),
    ("go", &["run", "generate"]),
    ("npm", &["exec", "x", "explore", "init"]),
    ("pnpm", &["exec", "dlx"]),
    ("podman", &["run", "exec"]),
    ("poetry", &["run"]),
    ("uv", &["run", "tool"]),
    ("yarn", &["exec", "dlx", "node"]),
];

/// Programs that read, write or list the files that their operands name.
const FILE_PROGRAMS: &[&str] = &[
    "cat",
    "chmod",
    "chown",
    "cp",
    "cut",
    "diff",
    "du",
    "fd",
    "file",
    "find",
    "grep",
    "head",
    "install",
    "jq",
    "less",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mv",
    "nl",
    "od",
    "rg",
    "rm",
    "rmdir",
    "sed",
    "sha256sum",
    "shred",
    "sort",
    "stat",
    "strings",
    "tac",
    "tail",
    "tar",
    "tee",
    "touch",
    "tr",
    "truncate",
    "uniq",
    "unzip",
    "wc",
    "xxd",
    "yq",
    "zip",
];

/// Variables that determine what a program loads or runs.
const LOADER_VARIABLES: &[&str] = &[
    "BASH_ENV",
    "CC",
    "CXX",
    "EDITOR",
    "ENV",
    "GIT_",
    "IFS",
    "LD_",
    "MANPAGER",
    "NODE_OPTIONS",
    "PAGER",
    "PATH",
    "PERL5",
    "PROMPT_COMMAND",
    "PYTHON",
    "RUBY",
    "RUSTC",
    "RUSTFLAGS",
    "SHELL",
    "VISUAL",
];

/// Checks a policy. `texts` are those of all its layers, its own last. Only that one is checked;
/// the others supply their deny rules.
#[must_use]
pub fn lint(texts: &[&str], policy: &Policy) -> Vec<Finding> {
    let layers: Vec<Document> = texts
        .iter()
        .filter_map(|text| toml::from_str(text).ok())
        .collect();
    let Some(own) = layers.last() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    lint_policy(own, policy, &mut found);
    let denies: Vec<&RuleText> = layers
        .iter()
        .flat_map(|layer| &layer.rules)
        .filter(|rule| rule.decision == Decision::Deny.as_str())
        .collect();
    for rule in &own.rules {
        lint_rule(rule, &denies, &mut found);
    }
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    found
}

fn lint_policy(own: &Document, policy: &Policy, found: &mut Vec<Finding>) {
    let mut add = |level, code, text: &str| {
        found.push(Finding {
            level,
            code,
            rule: None,
            text: text.to_owned(),
        });
    };
    if !policy.has_guard() {
        let text = "it does not extend builtin:guard: secrets and .git are unprotected unless this policy protects them itself";
        add(Level::Warning, "no-guard", text);
    }
    let is_allow = |word: &Option<String>| word.as_deref() == Some(Decision::Allow.as_str());
    if is_allow(&own.default) {
        let text = "`default` is allow: everything that no rule names may run";
        add(Level::Warning, "default-allow", text);
    }
    if is_allow(&own.unknown_tool) {
        let text = "`unknown_tool` is allow: tools with unknown effects may run";
        add(Level::Warning, "unknown-allowed", text);
    }
    if policy.is_dry_run() {
        let text = "`enforce` is false: it allows nothing and asks where it would deny; remove it after the dry run";
        add(Level::Warning, "not-enforced", text);
    }
    for text in policy.settings_without_effect() {
        add(Level::Warning, "no-effect", text);
    }
    for name in own.shell.env_allow.iter().flatten() {
        if LOADER_VARIABLES
            .iter()
            .any(|known| name == known || known.ends_with('_') && name.starts_with(known))
        {
            let text =
                format!("`shell.env_allow` has {name}, which says what a program loads or runs");
            add(Level::Warning, "env-loads", &text);
        }
    }
}

fn lint_rule(rule: &RuleText, denies: &[&RuleText], found: &mut Vec<Finding>) {
    let mut add = |level, code, text: String| {
        found.push(Finding {
            level,
            code,
            rule: Some(rule.id.clone()),
            text,
        });
    };
    if rule.decision == Decision::Deny.as_str() && rule.reason.is_none() {
        let text = "it denies without a `reason`: the agent is not told what to do instead";
        add(Level::Note, "no-reason", text.to_owned());
    }
    let sometimes: Vec<&str> = [
        ("pools", rule.pools.is_some()),
        ("agents", rule.agents.is_some()),
        ("modes", rule.modes.is_some()),
        ("hours", rule.hours.is_some()),
    ]
    .into_iter()
    .filter_map(|(key, is)| is.then_some(key))
    .collect();
    if rule.decision == Decision::Deny.as_str() && !sometimes.is_empty() {
        let keys = sometimes.join(", ");
        let text = format!("it denies only sometimes ({keys}): at other times it has no effect");
        add(Level::Note, "sometimes", text);
    }
    if rule.decision != Decision::Allow.as_str() {
        return;
    }
    for (what, deny) in find_shadowed(rule, denies) {
        let text = format!("{what} never allowed: rule {deny} denies the same");
        add(Level::Warning, "shadowed", text);
    }
    if rule.exact.is_some() {
        return;
    }
    for text in find_interpreters(rule) {
        add(Level::Warning, "interpreter", text);
    }
    let programs = rule_programs(rule);
    let on_files: Vec<&str> = programs
        .iter()
        .map(String::as_str)
        .filter(|name| FILE_PROGRAMS.contains(name))
        .collect();
    if !on_files.is_empty() && rule.paths.is_none() && rule.max_operands != Some(0) {
        let text = format!(
            "{} may be given any path: add `paths = \"inside\"`, or a named set",
            on_files.join(", ")
        );
        add(Level::Warning, "any-path", text);
    }
    let any_host = |url: &String| {
        let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        rest.starts_with("**") || rest.starts_with("*/") || rest == "*"
    };
    let urls = rule.url.as_ref().map(|urls| &urls.0);
    let is_fetch = rule.tool.0.iter().any(|tool| tool == "fetch");
    if is_fetch && urls.is_none_or(|urls| urls.iter().any(any_host)) {
        let text = "it allows every host: an agent can send there what it reads";
        add(Level::Warning, "any-host", text.to_owned());
    }
    if rule.matches.is_empty() || rule.not_match.is_empty() {
        let text =
            "it has no `match` and `not_match`: add examples, which are checked on every load";
        add(Level::Note, "no-examples", text.to_owned());
    }
}

/// The programs of a rule.
fn rule_programs(rule: &RuleText) -> &[String] {
    let argv = rule.argv.as_deref().and_then(|argv| argv.first());
    argv.map_or(&[], |names| &names.0)
}

/// The parts of an allowing rule that are denied for every request: by program, and by file tool.
fn find_shadowed(rule: &RuleText, denies: &[&RuleText]) -> Vec<(String, String)> {
    let is_shell = |rule: &RuleText| rule.tool.0.iter().any(|tool| tool == "shell");
    let mut found = Vec::new();
    if is_shell(rule) {
        let exact = rule
            .exact
            .iter()
            .flatten()
            .map(|text| text.split_whitespace().map(str::to_owned).collect());
        let mut commands: Vec<Vec<String>> = exact.collect();
        for program in rule_programs(rule) {
            let rest = rule.argv.iter().flatten().skip(1);
            match rest.clone().next() {
                None => commands.push(vec![program.clone()]),
                // Each subcommand separately; a rule's prefix must not be shorter than that of the
                // deny.
                Some(second) => commands.extend(second.0.iter().map(|word| {
                    let more = rest
                        .clone()
                        .skip(1)
                        .filter_map(|words| words.0.first().cloned());
                    [program.clone(), word.clone()]
                        .into_iter()
                        .chain(more)
                        .collect()
                })),
            }
        }
        for command in commands {
            let same = denies
                .iter()
                .find(|deny| is_shell(deny) && covers(deny, &command));
            if let Some(deny) = same {
                found.push((format!("`{}` is", command.join(" ")), deny.id.clone()));
            }
        }
    }
    for tool in rule.tool.0.iter().filter(|tool| *tool != "shell") {
        let same = denies.iter().find(|deny| {
            let is_whole = deny.path.is_none() && deny.url.is_none() && has_no_conditions(deny)
                || deny.path == rule.path && deny.path.is_some() && has_no_conditions(deny);
            deny.tool.0.contains(tool) && is_whole
        });
        if let Some(deny) = same {
            found.push((format!("`{tool}` is"), deny.id.clone()));
        }
    }
    found
}

/// Whether a denying rule applies to everything that begins with these words.
fn covers(deny: &RuleText, command: &[String]) -> bool {
    let Some(argv) = &deny.argv else { return false };
    let begins = argv.len() <= command.len()
        && argv
            .iter()
            .zip(command)
            .all(|(words, word)| words.0.contains(word));
    begins && deny.paths.is_none() && has_no_conditions(deny)
}

/// Whether only its prefix decides whether it applies.
fn has_no_conditions(rule: &RuleText) -> bool {
    // Compares with a rule that has only these keys, so that a new condition counts as one, too.
    let RuleText {
        any_path: None,
        not_flags: None,
        any_flags: None,
        all_flags: None,
        only_flags: None,
        not_words: None,
        any_word: None,
        min_operands: None,
        max_operands: None,
        operands_need: None,
        unless: None,
        exact: None,
        pipe: None,
        hosts: None,
        methods: None,
        server: None,
        name: None,
        args: None,
        pools: None,
        agents: None,
        modes: None,
        hours: None,
        zone: None,
        max_per_turn: None,
        ..
    } = rule
    else {
        return false;
    };
    true
}

/// Command prefixes that let an agent run anything.
fn find_interpreters(rule: &RuleText) -> Vec<String> {
    let Some(argv) = &rule.argv else {
        return Vec::new();
    };
    // With no operand and only known flags there is no code to run.
    if rule.max_operands == Some(0) && rule.only_flags.is_some() {
        return Vec::new();
    }
    // The rule checks the code, or relies on the sandbox for what the code does.
    if rule.harmless_script || rule.sandbox.is_some() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for program in rule_programs(rule) {
        let subcommands = argv.get(1).map(|words| words.0.as_slice());
        let base = program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
        let is_runner = RUNNERS.contains(&program.as_str()) || RUNNERS.contains(&base);
        match subcommands {
            None if is_runner => found.push(format!(
                "`{program}` runs what its arguments say: name whole commands with `exact`"
            )),
            None if FAMILIES.contains(&program.as_str()) => found.push(format!(
                "it allows every subcommand of `{program}`: name the allowed ones in `argv`"
            )),
            None => {}
            Some(words) => {
                let running = EXEC_SUBCOMMANDS.iter().find(|(name, _)| name == program);
                let running = running.map_or(&[][..], |(_, running)| *running);
                let bad = words.iter().filter(|word| running.contains(&word.as_str()));
                found.extend(bad.map(|word| {
                    format!("`{program} {word}` runs what its arguments say: name whole commands with `exact`")
                }));
            }
        }
    }
    found
}
