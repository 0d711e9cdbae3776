//! `policy check` and `policy explain`: evaluate one request.

use std::io::Read as _;
use std::time::Instant;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::place::{self, OccasionArgs, PlaceArgs};
use super::source::{PolicyArgs, PolicySources, SelectedPolicy};
use super::{PolicyCommandError, tree};
use crate::cli::policies::extractors;
use crate::cli::streams::Streams;
use marshal_model::limits;
use marshal_model::{AgentClaims, Decision, PoolName, UntrustedText};
use marshal_policy::{PolicyDecision, Request, ResolvedPath, resolve_paths};
use marshal_sandbox::WORKSPACE_INSIDE;

/// `policy check …` and `policy explain …`
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    /// The policy
    #[command(flatten)]
    pub which: PolicyArgs,

    /// Use this pool's policy and tools; --tool and --input are then the agent's own name and input
    #[arg(long, value_name = "NAME", conflicts_with_all = ["policy", "file"], value_parser = PoolName::new)]
    pub pool: Option<PoolName>,

    /// The tool: shell, read, write, edit, delete, move or fetch; with --input also
    /// mcp__SERVER__NAME or any other name, which counts as an unknown tool
    #[arg(long, default_value = "shell")]
    pub tool: String,

    /// The whole input of the tool, instead of TEXT
    #[arg(long, value_name = "JSON", required_unless_present = "text")]
    pub input: Option<String>,

    /// The command, path, FROM -> TO or URL; - reads standard input
    #[arg(conflicts_with = "input")]
    pub text: Option<String>,

    /// Print a tree of parts, facts and rules
    #[arg(long)]
    pub explain: bool,

    /// The file system
    #[command(flatten)]
    pub place: PlaceArgs,

    /// The circumstances; with --pool, its agent and mode are the defaults
    #[command(flatten)]
    pub occasion: OccasionArgs,
}

/// An evaluated request.
struct CheckedRequest {
    chosen: SelectedPolicy,
    decision: PolicyDecision,
    /// The resolved paths of the request.
    resolved_paths: Vec<ResolvedPath>,
    eval_us: u128,
}

pub(super) fn check(
    args: &CheckArgs,
    around: &PolicySources<'_>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, PolicyCommandError> {
    let judged = judge(args, around, streams)?;
    if args.explain && !json {
        tree::show(
            &judged.chosen,
            &judged.decision,
            &judged.resolved_paths,
            streams,
        );
    } else if json {
        streams
            .out
            .json(&document(&judged, args.explain).to_string());
    } else {
        let judgement = &judged.decision;
        streams
            .out
            .line(&format!("{}  {}", judgement.decision, judgement.reason));
    }
    Ok(match judged.decision.decision {
        Decision::Allow => 0,
        Decision::Ask => 1,
        Decision::Deny => 2,
    })
}

pub(super) fn explain(
    args: &CheckArgs,
    around: &PolicySources<'_>,
    json: bool,
    streams: &mut Streams,
) -> Result<u8, PolicyCommandError> {
    let judged = judge(args, around, streams)?;
    if json {
        streams.out.json(&document(&judged, true).to_string());
    } else {
        tree::show(
            &judged.chosen,
            &judged.decision,
            &judged.resolved_paths,
            streams,
        );
    }
    Ok(0)
}

fn judge(
    args: &CheckArgs,
    around: &PolicySources<'_>,
    streams: &mut Streams,
) -> Result<CheckedRequest, PolicyCommandError> {
    let mut occasion = args.occasion.clone();
    let (chosen, request, place) = match &args.pool {
        None => {
            let request = request(args, &place::plain()?)?;
            let chosen = around.choose(&args.which, streams)?;
            (chosen, request, args.place.labelled(WORKSPACE_INSIDE))
        }
        Some(pool) => {
            let config = around.load(streams)?;
            let Some(found) = config.pool(pool.as_str()) else {
                let text = format!("the configuration has no pool {pool}");
                return Err(PolicyCommandError::Usage(text));
            };
            occasion.agent.get_or_insert_with(|| found.agent.clone());
            occasion.mode = occasion.mode.or_else(|| found.mode.clone());
            occasion.sandbox = Some(config.sandbox_facts(found));
            let tables = extractors(&config).map_err(|errors| {
                crate::cli::command::show(&errors, false, streams);
                PolicyCommandError::Reported(crate::cli::exit::Exit::Usage)
            })?;
            let Some(table) = tables.get(pool.as_str()) else {
                return Err(PolicyCommandError::Failed(format!(
                    "pool {pool} has no extractor, so its tool calls cannot be read"
                )));
            };
            let request = request(args, table)?;
            let chosen = around.by_name(&found.policy, streams)?;
            (chosen, request, args.place.of_pool(found)?)
        }
    };
    if occasion.sandbox.is_none() && chosen.policy.relies_on_sandbox() {
        streams.err.line(
            "marshal: assuming a sandbox without gaps, with a private workspace and a confined network; \
             --pool NAME judges by the sandbox of a pool",
        );
    }
    let began = Instant::now();
    let claimed = AgentClaims::default();
    let pool = args.pool.as_ref().map(PoolName::as_str);
    let (place, occasion) = (place.fs_context(), occasion.occasion(pool));
    let judgement = chosen
        .policy
        .decide_in_context(&request, &claimed, &place, &occasion);
    let eval_us = began.elapsed().as_micros();
    Ok(CheckedRequest {
        resolved_paths: resolve_paths(Some(&request), &judgement.facts.parts, &place),
        chosen,
        decision: judgement,
        eval_us,
    })
}

fn request(
    args: &CheckArgs,
    table: &marshal_policy::extract::Extractor,
) -> Result<Request, PolicyCommandError> {
    if let Some(input) = &args.input {
        let input = RawValue::from_string(input.clone())
            .map_err(|error| PolicyCommandError::Usage(format!("--input is not JSON: {error}")))?;
        return Ok(table.extract(&args.tool, &input));
    }
    let text = match args.text.as_deref() {
        Some("-") => {
            let mut text = String::new();
            let max_bytes = limits::PERMISSION_INPUT_BYTES as u64;
            let read = std::io::stdin()
                .take(max_bytes + 1)
                .read_to_string(&mut text)
                .map_err(|error| PolicyCommandError::Usage(format!("standard input: {error}")))?;
            if read as u64 > max_bytes {
                let text = format!("standard input has more than {max_bytes} bytes");
                return Err(PolicyCommandError::Usage(text));
            }
            text
        }
        text => text.unwrap_or_default().to_owned(),
    };
    place::request(&args.tool, &text)
}

fn document(judged: &CheckedRequest, with_rules: bool) -> Value {
    let judgement = &judged.decision;
    let parts: Vec<Value> = judgement
        .facts
        .parts
        .iter()
        .map(|part| {
            let texts = |of: &[UntrustedText]| -> Vec<String> {
                of.iter().map(|of| of.raw().to_owned()).collect()
            };
            json!({
                "argv": texts(&part.words),
                "env": texts(&part.env),
                "redirects": texts(&part.redirects),
                "decision": part.decision.as_str(),
                "rules": part.rules,
                "why": tree::why(part),
            })
        })
        .collect();
    let led = judged.resolved_paths.iter();
    let paths: Vec<Value> = led
        .map(|led| json!({"word": led.word.raw(), "to": led.to.raw(), "inside": led.inside}))
        .collect();
    let mut document = json!({
        "decision": judgement.decision.as_str(),
        "by": judgement.decided_by.as_str(),
        "rules": judgement.rules,
        "reason": judgement.reason,
        "parts": parts,
        "facts": {
            "plain": judgement.facts.not_plain.is_none(),
            "not_plain": judgement.facts.not_plain,
            "paths": paths,
        },
        "policy": {"name": judged.chosen.policy.name(), "sha256": judged.chosen.sha256},
        "eval_us": u64::try_from(judged.eval_us).unwrap_or(u64::MAX),
    });
    if with_rules && let Some(document) = document.as_object_mut() {
        let rules = tree::rules(&judged.chosen, judgement);
        document.insert("paths".to_owned(), paths.into());
        document.insert("rules_as_written".to_owned(), rules.into());
    }
    document
}
