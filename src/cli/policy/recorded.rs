//! One recorded request, ready to be evaluated again.

use serde::Deserialize;

use super::replay::Extractors;
use crate::cli::audit::record::ExportedRecord;
use marshal_dialect::acp::parse_recorded_request;
use marshal_fleet::day_time;
use marshal_model::{
    AgentClaims, ClientRequest, Decision, ENGINE_SERVER, SandboxFacts, UntrustedText,
};
use marshal_policy::{
    EvaluationContext, FsContext, FsObservations, Policy, PolicyDecision, ReadTarget,
    ReplayResolver, Request, TimeOfDay,
};

/// Refusals without a policy decision: the request was not evaluated.
const UNJUDGED_RULES: &[&str] = &["twice", "journal", "max_pending", "too_large"];

/// The recorded decision of the policy, before a person or a timeout decided the request; `None` if
/// no policy decided it.
pub(in crate::cli) fn recorded_decision(line: &ExportedRecord) -> Option<Decision> {
    let facts = line.facts.as_ref()?;
    let facts: Option<FactsText> = serde_json::from_str(facts.get()).ok();
    if let Some(delegate) = facts.and_then(|facts| facts.delegate) {
        return Decision::parse(&delegate.policy);
    }
    match line.by.as_str() {
        "policy" | "default" if line.approver.is_none() => Decision::parse(&line.decision),
        // The policy allowed it; a budget did not.
        _ if is_budget_decision(line) => Some(Decision::Allow),
        "human" | "cache" | "timeout" | "gone" => Some(Decision::Ask),
        // A person allowed it, but by then a rule or a change denied it.
        _ if line.approver.is_some() => Some(Decision::Ask),
        _ if line
            .rules
            .iter()
            .any(|r| UNJUDGED_RULES.contains(&r.as_str())) =>
        {
            None
        }
        _ => Some(Decision::Deny),
    }
}

/// Whether a budget denied a request that the policy allowed.
pub(in crate::cli) fn is_budget_decision(line: &ExportedRecord) -> bool {
    line.by == "budget" || line.rules.iter().any(|rule| rule.starts_with("budget."))
}

#[derive(Deserialize)]
struct FactsText {
    at: Option<RecordedPlace>,
    #[serde(default)]
    observations: FsObservations,
    /// The decision with the secrets, which are not recorded; present if it was stricter.
    with_secrets: Option<String>,
    delegate: Option<DelegateText>,
}

/// The request that a delegate decided.
#[derive(Deserialize)]
struct DelegateText {
    /// The policy's decision before the delegate's.
    policy: String,
}

#[derive(Deserialize)]
struct RecordedPlace {
    workspace: String,
    home: String,
    from: Vec<Option<String>>,
    #[serde(default)]
    agent: Option<String>,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    sandbox: Vec<String>,
}

#[derive(Default, Deserialize)]
struct ClaimedText {
    required_mode: Option<String>,
    title: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    no_allow: bool,
}

/// A request with its directories.
pub(in crate::cli) struct RecordedRequest {
    pub(in crate::cli) request: Request,
    /// The client request, if the agent let its client act: it is evaluated, and the request is
    /// only derived from it.
    client_request: Option<ClientRequest>,
    claimed: AgentClaims,
    place: RecordedPlace,
    min_decision: Decision,
    pool: Option<String>,
    clock: TimeOfDay,
    files: ReplayResolver,
}

/// The request that corresponds to a client request.
fn to_request(client_request: &ClientRequest, tool: &str) -> Request {
    match client_request {
        ClientRequest::Read(path) => Request::Read {
            targets: vec![ReadTarget::Path(path.clone())],
        },
        ClientRequest::Write(path) => Request::Write {
            paths: vec![path.clone()],
        },
        ClientRequest::Tool(client_request) => Request::Mcp {
            server: UntrustedText::from(ENGINE_SERVER),
            name: UntrustedText::from(client_request.tool.as_str()),
            arguments: client_request.arguments.clone(),
        },
        ClientRequest::Run(_) => Request::Unknown {
            tool: UntrustedText::new(tool),
        },
    }
}

impl RecordedRequest {
    /// The error is the reason why the request cannot be evaluated again.
    pub(in crate::cli) fn from_record(
        line: &ExportedRecord,
        tables: &Extractors,
    ) -> Result<Self, &'static str> {
        let input = line.input.as_ref().ok_or("the input was not kept")?;
        let facts = line.facts.as_ref().map(|facts| facts.get());
        let facts: Option<FactsText> = serde_json::from_str(facts.unwrap_or_default()).ok();
        let (at, observations, floor) = facts.map_or_else(Default::default, |facts| {
            let floor = facts.with_secrets.as_deref();
            (
                facts.at,
                facts.observations,
                floor.and_then(Decision::parse),
            )
        });
        let at = at.ok_or("the directory was not recorded")?;
        let client_request = parse_recorded_request(&line.tool, input);
        let request = if let Some(client_request) = &client_request {
            to_request(client_request, &line.tool)
        } else {
            let table = tables
                .get(line.pool.as_deref())
                .ok_or("the configuration does not have its pool (use --extractor NAME)")?;
            table.extract(&line.tool, input)
        };
        let claimed = line.claimed.as_ref().map(|claimed| claimed.get());
        let claimed: ClaimedText = match claimed {
            None => ClaimedText::default(),
            Some(text) => {
                serde_json::from_str(text).map_err(|_| "the agent's claims cannot be read")?
            }
        };
        Ok(Self {
            request,
            client_request,
            claimed: AgentClaims {
                required_mode: claimed.required_mode.map(UntrustedText::new),
                title: claimed.title.map(UntrustedText::new),
                kind: claimed.kind.map(UntrustedText::new),
                has_no_allow_option: claimed.no_allow,
                ..AgentClaims::default()
            },
            place: at,
            min_decision: floor.unwrap_or(Decision::Allow),
            pool: line.pool.clone(),
            clock: day_time(line.requested_at_us),
            files: ReplayResolver::new(observations),
        })
    }

    /// The workspace, as the agent saw it.
    pub(in crate::cli) fn workspace(&self) -> &str {
        &self.place.workspace
    }

    /// Whether it was evaluated from a single directory.
    pub(in crate::cli) fn has_one_cwd(&self) -> bool {
        self.place.from.len() == 1
    }

    /// Whether a decision since the last call depends on files that were not recorded. Resets the
    /// flag.
    pub(in crate::cli) fn has_guessed(&self) -> bool {
        self.files.take_missed()
    }

    /// The strictest decision of a policy, over each directory that the request was evaluated from.
    /// The circumstances are the recorded ones, except that no earlier request of the turn counts
    /// as allowed.
    pub(in crate::cli) fn judge(&self, policy: &Policy) -> PolicyDecision {
        let occasion = EvaluationContext {
            pool: self.pool.as_deref(),
            agent: self.place.agent.as_deref(),
            mode: self.place.mode.as_deref(),
            time_of_day: Some(self.clock),
            sandbox: SandboxFacts::from_names(self.place.sandbox.iter().map(String::as_str)),
            rule_uses: None,
        };
        let from = self.place.from.iter().map(|cwd| {
            let place = FsContext {
                workspace: &self.place.workspace,
                home: &self.place.home,
                cwd: cwd.as_deref(),
                resolver: &self.files,
            };
            match &self.client_request {
                Some(client_request) => {
                    policy
                        .decide_client_in_context(client_request, &place, &occasion)
                        .0
                }
                None => policy.decide_in_context(&self.request, &self.claimed, &place, &occasion),
            }
        });
        let severe = from.reduce(|a, b| if b.decision > a.decision { b } else { a });
        let mut judged = severe.unwrap_or_else(|| {
            PolicyDecision::from_error(
                "no_directory",
                "there is no directory to resolve paths from",
            )
        });
        judged.decision = judged.decision.max(self.min_decision);
        judged
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(by: &str, decision: &str, approver: Option<&str>, expect: Option<Decision>) {
        let line = json!({
            "seq": 1, "ts": "", "prev_hash": "", "hash": "", "decision_id": "", "pool": null, "slot": null,
            "run": null, "task": null, "session": "s", "turn": 1, "request_id": "", "tool_id": null, "tool": "x",
            "input": {}, "input_sha256": "", "claimed": null, "facts": {}, "decision": decision, "by": by,
            "approver": approver, "rules": [], "reason": "", "policy": {"name": "p", "sha256": null},
            "eval_us": null, "requested_at_us": 0, "decided_at_us": 0, "waited_ms": 0,
        });
        let line: ExportedRecord = serde_json::from_str(&line.to_string()).expect("a line");
        assert_eq!(
            recorded_decision(&line),
            expect,
            "{by} {decision} {approver:?}"
        );
    }

    #[test]
    fn what_was_asked_counts_as_asked_however_it_ended() {
        for by in ["human", "cache", "timeout", "gone"] {
            check(by, "allow", Some("uid 0"), Some(Decision::Ask));
            check(by, "deny", None, Some(Decision::Ask));
        }
        // A person allowed it, and then a rule denied it, or it led elsewhere.
        for by in ["policy", "default", "error"] {
            check(by, "deny", Some("uid 0"), Some(Decision::Ask));
            check(by, "deny", None, Some(Decision::Deny));
        }
        check("policy", "allow", None, Some(Decision::Allow));
    }
}
