//! One request on record, ready to be judged again.

use serde::Deserialize;

use super::replay::Tables;
use crate::cli::audit::record::Line;
use crate::dialect::acp::recorded_wish;
use crate::fleet::day_time;
use crate::model::{Claimed, ClientWish, Decision, ENGINE_SERVER, Foreign};
use crate::policy::{
    DayTime, Judgement, Looked, Occasion, Place, Policy, Remembered, Request, Target,
};

/// Refusals that no rule had a part in: what was asked was not looked at.
const NOT_LOOKED_AT: &[&str] = &["twice", "journal", "max_pending", "too_large"];

/// What the policy said of a request then, before a person, or that there was none, decided it;
/// `None` if no policy was asked.
pub(in crate::cli) fn judged_then(line: &Line) -> Option<Decision> {
    let facts = line.facts.as_ref()?;
    let facts: Option<FactsText> = serde_json::from_str(facts.get()).ok();
    if let Some(delegate) = facts.and_then(|facts| facts.delegate) {
        return Decision::from_word(&delegate.policy);
    }
    match line.by.as_str() {
        "policy" | "default" if line.approver.is_none() => Decision::from_word(&line.decision),
        // The policy allowed it; a budget did not.
        _ if is_of_budget(line) => Some(Decision::Allow),
        "human" | "cache" | "timeout" | "gone" => Some(Decision::Ask),
        // A person answered, and by then a rule, or what had changed, was against it.
        _ if line.approver.is_some() => Some(Decision::Ask),
        _ if line
            .rules
            .iter()
            .any(|r| NOT_LOOKED_AT.contains(&r.as_str())) =>
        {
            None
        }
        _ => Some(Decision::Deny),
    }
}

/// Whether a budget stood between what the policy allowed and the answer.
pub(in crate::cli) fn is_of_budget(line: &Line) -> bool {
    line.by == "budget" || line.rules.iter().any(|rule| rule.starts_with("budget."))
}

#[derive(Deserialize)]
struct FactsText {
    at: Option<At>,
    #[serde(default)]
    looked: Looked,
    /// What it was with the secrets that are not on record, where that was more severe.
    with_secrets: Option<String>,
    delegate: Option<DelegateText>,
}

/// What a delegate was asked about.
#[derive(Deserialize)]
struct DelegateText {
    /// What the policy said before.
    policy: String,
}

#[derive(Deserialize)]
struct At {
    workspace: String,
    home: String,
    from: Vec<Option<String>>,
    #[serde(default)]
    agent: Option<String>,
    #[serde(default)]
    mode: Option<String>,
}

#[derive(Default, Deserialize)]
struct ClaimedText {
    required_mode: Option<String>,
    title: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    no_allow: bool,
}

/// A request with its place.
pub(in crate::cli) struct Past {
    pub(in crate::cli) request: Request,
    /// What its agent had its client do: then this is judged, and the request is what it comes to.
    wish: Option<ClientWish>,
    claimed: Claimed,
    at: At,
    floor: Decision,
    pool: Option<String>,
    clock: DayTime,
    files: Remembered,
}

/// What a wish comes to, for whoever looks at requests only.
fn as_request(wish: &ClientWish, tool: &str) -> Request {
    match wish {
        ClientWish::Read(path) => Request::Read {
            targets: vec![Target::Path(path.clone())],
        },
        ClientWish::Write(path) => Request::Write {
            paths: vec![path.clone()],
        },
        ClientWish::Tool(wish) => Request::Mcp {
            server: Foreign::from(ENGINE_SERVER),
            name: Foreign::from(wish.tool.word()),
            arguments: wish.arguments.clone(),
        },
        ClientWish::Run(_) => Request::Unknown {
            tool: Foreign::new(tool),
        },
    }
}

impl Past {
    /// Why not, if it cannot be judged again.
    pub(in crate::cli) fn of(line: &Line, tables: &Tables) -> Result<Self, &'static str> {
        let input = line.input.as_ref().ok_or("its input is not kept")?;
        let facts = line.facts.as_ref().map(|facts| facts.get());
        let facts: Option<FactsText> = serde_json::from_str(facts.unwrap_or_default()).ok();
        let (at, looked, floor) = facts.map_or_else(Default::default, |facts| {
            let floor = facts.with_secrets.as_deref();
            (facts.at, facts.looked, floor.and_then(Decision::from_word))
        });
        let at = at.ok_or("where it was judged is not on record")?;
        let wish = recorded_wish(&line.tool, input);
        let request = if let Some(wish) = &wish {
            as_request(wish, &line.tool)
        } else {
            let table = tables
                .get(line.pool.as_deref())
                .ok_or("no pool of its name is in the configuration (--extractor NAME)")?;
            table.extract(&line.tool, input)
        };
        let claimed = line.claimed.as_ref().map(|claimed| claimed.get());
        let claimed: ClaimedText = match claimed {
            None => ClaimedText::default(),
            Some(text) => {
                serde_json::from_str(text).map_err(|_| "what was claimed cannot be read")?
            }
        };
        Ok(Self {
            request,
            wish,
            claimed: Claimed {
                required_mode: claimed.required_mode.map(Foreign::new),
                title: claimed.title.map(Foreign::new),
                kind: claimed.kind.map(Foreign::new),
                no_allow: claimed.no_allow,
                ..Claimed::default()
            },
            at,
            floor: floor.unwrap_or(Decision::Allow),
            pool: line.pool.clone(),
            clock: day_time(line.asked_at_us),
            files: Remembered::new(looked),
        })
    }

    /// The workspace, as its agent saw it.
    pub(in crate::cli) fn workspace(&self) -> &str {
        &self.at.workspace
    }

    /// Whether it was judged from a single directory.
    pub(in crate::cli) fn is_from_one_place(&self) -> bool {
        self.at.from.len() == 1
    }

    /// Whether a judgement since the last time that this was asked depends on files that nobody
    /// looked at then.
    pub(in crate::cli) fn guessed(&self) -> bool {
        self.files.guessed()
    }

    /// What a policy says of it: from each directory that it was judged from, the most severe.
    /// It is on the occasion of then, but that nothing was allowed before in its turn.
    pub(in crate::cli) fn judge(&self, policy: &Policy) -> Judgement {
        let occasion = Occasion {
            pool: self.pool.as_deref(),
            agent: self.at.agent.as_deref(),
            mode: self.at.mode.as_deref(),
            clock: Some(self.clock),
            used: None,
        };
        let from = self.at.from.iter().map(|cwd| {
            let place = Place {
                workspace: &self.at.workspace,
                home: &self.at.home,
                cwd: cwd.as_deref(),
                resolver: &self.files,
            };
            match &self.wish {
                Some(wish) => policy.decide_client_on(wish, &place, &occasion).0,
                None => policy.decide_on(&self.request, &self.claimed, &place, &occasion),
            }
        });
        let severe = from.reduce(|a, b| if b.decision > a.decision { b } else { a });
        let mut judged = severe.unwrap_or_else(|| {
            Judgement::refused("no_directory", "there is no directory to judge paths by")
        });
        judged.decision = judged.decision.max(self.floor);
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
            "eval_us": null, "asked_at_us": 0, "decided_at_us": 0, "waited_ms": 0,
        });
        let line: Line = serde_json::from_str(&line.to_string()).expect("a line");
        assert_eq!(judged_then(&line), expect, "{by} {decision} {approver:?}");
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
