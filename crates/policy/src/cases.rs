//! Labelled requests: the expected decisions of a policy, and how often it makes them.
//!
//! Owns the format, one JSON object per line: `id`, `policy`, `tool`, `input`, `expect`. Optional:
//! `also_ok` (other acceptable decisions), `rules` (those that must decide), and the context:
//! `pool`, `agent`, `mode`, `at` (`HH:MM`). Must not read files.
//!
//! This project's own cases are in `tests/quick/policy/cases/`, their policies in
//! `tests/quick/policy/policies/` or built in.

mod fixture;

use serde::Deserialize;
use serde_json::Value;

use super::evaluation_context::{EvaluationContext, TimeOfDay};
use super::request::{PolicyDecision, ReadTarget, Request};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{Decision, SandboxFacts, UntrustedText};

pub use fixture::{DIRECTORIES, FILES, FixtureFs, HOME, LINKS, WORKSPACE};

/// One labelled request.
#[derive(Debug, Clone)]
pub struct Case {
    /// The case's name in reports.
    pub id: String,
    /// The policy that the case is for; empty if it names none.
    pub policy: String,
    /// The tool's name.
    pub tool: String,
    /// The tool's input, as JSON.
    pub input: Value,
    /// The request that results from the tool call.
    pub request: Request,
    /// The expected decision.
    pub expect: Decision,
    /// Other acceptable decisions.
    pub also_ok: Vec<Decision>,
    /// The rules that must decide, in this order; `None`: any.
    pub rules: Option<Vec<String>>,
    /// The pool of the request, if the case names one.
    pub pool: Option<String>,
    /// The agent that makes the request.
    pub agent: Option<String>,
    /// The session's mode.
    pub mode: Option<String>,
    /// The time of day, both local and in UTC.
    pub at: Option<TimeOfDay>,
}

/// Why a line is not a valid case.
#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    /// The line is not a JSON object with the keys of a case.
    #[error("not a valid case: {0}")]
    Shape(String),
    /// A decision is invalid.
    #[error("case `{id}`: `{key}` is `{found}`, expected `allow`, `ask` or `deny`")]
    Decision {
        /// The id of the case.
        id: String,
        /// The key.
        key: &'static str,
        /// The invalid value.
        found: String,
    },
    /// `at` is not a time of day.
    #[error("case `{id}`: `at` is `{found}`, expected a time such as `22:30`")]
    Time {
        /// The id of the case.
        id: String,
        /// The invalid value.
        found: String,
    },
    /// `class` names no class of tools.
    #[error("case `{id}`: `class` is `{found}`, expected `edit`, `delete` or `move`")]
    Class {
        /// The id of the case.
        id: String,
        /// The invalid value.
        found: String,
    },
}

#[derive(Deserialize)]
struct Line {
    id: String,
    tool: String,
    #[serde(default)]
    class: Option<String>,
    input: Value,
    #[serde(default)]
    policy: String,
    expect: String,
    #[serde(default)]
    also_ok: Vec<String>,
    rules: Option<Vec<String>>,
    pool: Option<String>,
    agent: Option<String>,
    mode: Option<String>,
    at: Option<String>,
}

impl Case {
    /// The request's context, as far as the case states it.
    #[must_use]
    pub fn evaluation_context(&self) -> EvaluationContext<'_> {
        EvaluationContext {
            pool: self.pool.as_deref(),
            agent: self.agent.as_deref(),
            mode: self.mode.as_deref(),
            time_of_day: self.at,
            // A case is about the rules: what a sandbox without gaps changes in them.
            sandbox: SandboxFacts::CONFINED,
            rule_uses: None,
        }
    }

    /// Reads one line. Tools are `shell`, `read`, `write`, `fetch` and `mcp__SERVER__NAME`; every
    /// other name is an unknown tool, unless `class` says `edit`, `delete` or `move`.
    pub fn parse(line: &str) -> Result<Self, CaseError> {
        let shape = |error: serde_json::Error| {
            CaseError::Shape(escape_for_display(&error.to_string(), 200))
        };
        let line: Line = serde_json::from_str(line).map_err(shape)?;
        let decision = |key, word: &String| {
            Decision::parse(word).ok_or_else(|| CaseError::Decision {
                id: escape_for_display(&line.id, 80),
                key,
                found: escape_for_display(word, 40),
            })
        };
        let expect = decision("expect", &line.expect)?;
        let also = line
            .also_ok
            .iter()
            .map(|word| decision("also_ok", word))
            .collect::<Result<_, _>>()?;
        let request = match line.class.as_deref() {
            None => request(&line.tool, &line.input),
            Some(class) => classed(class, &line.input).ok_or_else(|| CaseError::Class {
                id: escape_for_display(&line.id, 80),
                found: escape_for_display(class, 40),
            })?,
        };
        let at = line.at.as_deref().map(|text| {
            TimeOfDay::parse(text).ok_or_else(|| CaseError::Time {
                id: escape_for_display(&line.id, 80),
                found: escape_for_display(text, 40),
            })
        });
        Ok(Self {
            at: at.transpose()?,
            pool: line.pool,
            agent: line.agent,
            mode: line.mode,
            id: line.id,
            policy: line.policy,
            tool: line.tool,
            input: line.input,
            request,
            expect,
            also_ok: also,
            rules: line.rules,
        })
    }

    /// How a decision compares with the label.
    pub fn grade(&self, got: &PolicyDecision) -> Grade {
        let named = self.rules.as_ref().is_none_or(|rules| *rules == got.rules);
        match got.decision {
            decision if decision == self.expect && named => Grade::Exact,
            decision if decision == self.expect => Grade::OtherRules,
            decision if self.also_ok.contains(&decision) => Grade::AlsoOk,
            Decision::Allow => Grade::FalseAllow,
            _ if self.expect == Decision::Allow => Grade::FalseBlock,
            _ => Grade::Confused,
        }
    }
}

/// The result of comparing a decision with a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// The expected decision, by the expected rules.
    Exact,
    /// The expected decision, by other rules than the expected ones.
    OtherRules,
    /// Another decision that the label accepts.
    AlsoOk,
    /// Allowed, but must not be.
    FalseAllow,
    /// Not allowed, but should be.
    FalseBlock,
    /// Ask instead of deny, or deny instead of ask.
    Confused,
}

impl Grade {
    /// All grades, the correct ones first.
    pub const ALL: [Self; 6] = [
        Self::Exact,
        Self::AlsoOk,
        Self::FalseAllow,
        Self::FalseBlock,
        Self::Confused,
        Self::OtherRules,
    ];

    /// The grade's name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::OtherRules => "other_rules",
            Self::AlsoOk => "also_ok",
            Self::FalseAllow => "false_allow",
            Self::FalseBlock => "false_block",
            Self::Confused => "confused",
        }
    }

    /// Whether the decision is not what the label says.
    #[must_use]
    pub const fn is_miss(self) -> bool {
        !matches!(self, Self::Exact | Self::AlsoOk)
    }
}

/// Counts of grades.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Score {
    /// The number of evaluated cases.
    pub cases: usize,
    /// Expected decisions, by any rules.
    pub exact: usize,
    /// Other accepted decisions.
    pub also_ok: usize,
    /// Allowed, but must not be.
    pub false_allow: usize,
    /// Not allowed, but should be.
    pub false_block: usize,
    /// Cases with the label allow.
    pub allows: usize,
    /// Ask instead of deny, or deny instead of ask.
    pub confused: usize,
}

impl Score {
    /// Counts one case.
    pub fn add(&mut self, case: &Case, grade: Grade) {
        self.cases += 1;
        self.allows += usize::from(case.expect == Decision::Allow);
        match grade {
            Grade::Exact | Grade::OtherRules => self.exact += 1,
            Grade::AlsoOk => self.also_ok += 1,
            Grade::FalseAllow => self.false_allow += 1,
            Grade::FalseBlock => self.false_block += 1,
            Grade::Confused => self.confused += 1,
        }
    }
}

fn malformed(why: &str) -> Request {
    Request::Malformed {
        why: why.to_owned(),
    }
}

fn field(input: &Value, key: &str) -> Option<String> {
    let text = input.get(key).and_then(Value::as_str);
    text.filter(|text| !text.trim().is_empty() && !text.contains('\0'))
        .map(str::to_owned)
}

fn request(tool: &str, input: &Value) -> Request {
    let made = match tool {
        "shell" => field(input, "command").map(|command| Request::Shell {
            command,
            cwd: field(input, "cwd"),
        }),
        "read" => field(input, "path").map(|path| Request::Read {
            targets: vec![ReadTarget::Path(path)],
        }),
        "write" => field(input, "path").map(|path| Request::Write { paths: vec![path] }),
        "fetch" => match input.get("method") {
            None => field(input, "url").map(|url| Request::Fetch {
                url,
                method: Some("GET".to_owned()),
            }),
            Some(_) => field(input, "url")
                .zip(field(input, "method"))
                .map(|(url, method)| Request::Fetch {
                    url,
                    method: Some(method),
                }),
        },
        tool => Some(match split_mcp_name(tool, "mcp__", "__") {
            Some((server, name)) => Request::Mcp {
                server: server.into(),
                name: name.into(),
                arguments: input.clone(),
            },
            None => Request::Unknown {
                tool: UntrustedText::new(tool),
            },
        }),
    };
    made.unwrap_or_else(|| malformed("a required key is missing, blank or not a string"))
}

fn classed(class: &str, input: &Value) -> Option<Request> {
    let path = field(input, "path").map(|path| vec![path]);
    let made = match class {
        "edit" => path.map(|paths| Request::Edit { paths }),
        "delete" => path.map(|paths| Request::Delete { paths }),
        "move" => {
            let ends = field(input, "from").zip(field(input, "to"));
            ends.map(|(from, to)| Request::Move {
                from: vec![from],
                to: vec![to],
            })
        }
        _ => return None,
    };
    Some(made.unwrap_or_else(|| malformed("a required key is missing, blank or not a string")))
}

/// The server and the tool of a name such as `mcp__SERVER__NAME`. A name that can be split in two
/// ways is rejected.
pub(super) fn split_mcp_name<'n>(
    tool: &'n str,
    prefix: &str,
    between: &str,
) -> Option<(&'n str, &'n str)> {
    let (server, name) = tool.strip_prefix(prefix)?.split_once(between)?;
    // `a___b` is `a_` and `b`, or `a` and `_b`.
    let doubtful = name.contains(between) || format!("{between}{name}").rfind(between) != Some(0);
    (!server.is_empty() && !name.is_empty() && !doubtful).then_some((server, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_case_or_an_error_that_names_it() {
        let line = |more: &str| {
            format!(
                r#"{{"id": "x", "policy": "p", "tool": "shell", "input": {{"command": "ls"}}, {more}}}"#
            )
        };
        let case = Case::parse(&line(r#""expect": "ask", "also_ok": ["deny"]"#)).expect("a case");
        assert_eq!(
            (case.expect, case.also_ok),
            (Decision::Ask, vec![Decision::Deny])
        );
        let error = |more: &str| Case::parse(&line(more)).expect_err("no case").to_string();
        assert!(error(r#""expect": "maybe""#).contains("`x`: `expect` is `maybe`"));
        assert!(error(r#""expect": "ask", "class": "shell""#).contains("`class`"));
        assert!(error(r#""why": "no label""#).contains("expect"));
    }

    #[test]
    fn a_name_of_two_readings_is_no_tool_of_a_server() {
        assert_eq!(
            split_mcp_name("mcp__db__drop", "mcp__", "__"),
            Some(("db", "drop"))
        );
        assert_eq!(
            split_mcp_name("mcp__db__a_b", "mcp__", "__"),
            Some(("db", "a_b"))
        );
        for name in [
            "mcp__a__b__c",
            "mcp__a___b",
            "mcp__a__",
            "mcp____b",
            "db__drop",
            "mcp__a",
        ] {
            assert_eq!(split_mcp_name(name, "mcp__", "__"), None, "{name}");
        }
    }
}
