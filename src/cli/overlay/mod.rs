//! `diff`, `apply` and `discard`: show, apply or discard the changes in a session's overlay.
//!
//! They run in this process, with or without a daemon. A working session holds the lock of its
//! overlay, and so does each of these commands. A daemon does the same for its clients
//! (`client_orders`). The policy decides each change as if the agent wrote that file. Must not know
//! how an overlay stores a change.

mod client_orders;
pub(super) mod text;

use std::path::{Path, PathBuf};

pub(super) use client_orders::handle_order;

use super::args::{Cli, Command};
use super::command::{ClientContext, report_load_error};
use super::exit::Exit;
use super::policies::{self, PoolPolicyError};
use super::project::lookup::Need;
use super::short_ids;
use super::streams::Streams;
use marshal_config::{Config, ConfigErrors};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{ClientRequest, Decision, SandboxFacts, SessionId};
use marshal_policy::{EvaluationContext, FsContext, NoLinks, Policy, guard, outside};
use marshal_sandbox::state_dir::list_overlay_roots;
use marshal_sandbox::workspace::overlay::apply::{self, ApplyError};
use marshal_sandbox::workspace::overlay::apply_plan::{
    self, ApplyPlan, ChangeDecision, ChangeReview, OutsideFile,
};
use marshal_sandbox::workspace::{Overlay, OverlayError, Root, overlay};
use marshal_sandbox::{HOME_INSIDE, WORKSPACE_INSIDE};

/// The rules about files that other programs obey. Here a person decides on those.
const OBEYED: [&str; 2] = ["guard-protected-file", "write-protected"];

/// Columns of an error, and of a reason in it: they contain names that an agent chose.
const ERROR: usize = 8000;
const REASON: usize = 700;

/// `diff …`
#[derive(Debug, clap::Args)]
pub struct DiffArgs {
    /// Id of the session, as `events` and results show it
    #[arg(value_parser = |text: &str| SessionId::new(text))]
    pub(super) session: SessionId,
    /// Show only these paths, and everything below them; relative to the workspace
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<String>,
}

/// `apply …`
#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
    /// Id of the session, as `events` and results show it
    #[arg(value_parser = |text: &str| SessionId::new(text))]
    pub(super) session: SessionId,
    /// Only show what would be applied and what prevents it
    #[arg(long)]
    check: bool,
    /// Also apply changes that the policy would ask a person about
    #[arg(short, long)]
    yes: bool,
    /// Also apply this file, or everything below this directory, although other programs run or obey it
    #[arg(long, value_name = "PATH")]
    allow: Vec<String>,
}

/// `discard …`
#[derive(Debug, clap::Args)]
pub struct DiscardArgs {
    /// Id of the session, as `events` and results show it
    #[arg(value_parser = |text: &str| SessionId::new(text))]
    pub(super) session: SessionId,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum OverlayFailure {
    /// The error was printed already.
    #[error("")]
    Reported(Exit),
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Faulty(Box<ConfigErrors>),
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("{0}")]
    System(String),
}

impl From<PoolPolicyError> for OverlayFailure {
    fn from(error: PoolPolicyError) -> Self {
        match error {
            PoolPolicyError::Faulty(errors) => Self::Faulty(errors),
            error => Self::Usage(error.to_string()),
        }
    }
}

impl OverlayFailure {
    const fn exit(&self) -> Exit {
        match self {
            Self::Reported(exit) => *exit,
            Self::Usage(_) | Self::Faulty(_) | Self::Overlay(OverlayError::Missing(_)) => {
                Exit::Usage
            }
            Self::Overlay(_) | Self::Apply(_) | Self::System(_) => Exit::Failures,
        }
    }
}

/// Runs the command if it is one of these; otherwise returns it.
pub(super) fn main(mut cli: Cli, streams: &mut dyn FnMut() -> Streams) -> Result<Exit, Box<Cli>> {
    if !matches!(
        cli.command,
        Command::Diff(_) | Command::Apply(_) | Command::Discard(_)
    ) {
        return Err(Box::new(cli));
    }
    let mut streams = streams();
    let done = run(&mut cli, &mut streams);
    // A session without an overlay may have a clone, which needs the runtime.
    if let (Command::Diff(_), Err(OverlayFailure::Overlay(OverlayError::Missing(_)))) =
        (&cli.command, &done)
    {
        return Err(Box::new(cli));
    }
    Ok(done.unwrap_or_else(|failed| {
        match &failed {
            OverlayFailure::Reported(_) => {}
            OverlayFailure::Faulty(errors) => super::command::show(errors, false, &mut streams),
            failed => {
                let text = escape_for_display(&failed.to_string(), ERROR);
                streams.err.line(&format!("error: {text}"));
            }
        }
        failed.exit()
    }))
}

fn run(cli: &mut Cli, streams: &mut Streams) -> Result<Exit, OverlayFailure> {
    let directory = std::env::current_dir()
        .map_err(|_| OverlayFailure::Usage("the current directory cannot be read".to_owned()))?;
    let client = ClientContext::find(cli, Need::Records, directory, streams)
        .map_err(OverlayFailure::Reported)?;
    let state = short_ids::complete(&mut cli.command, &client.state)
        .map_err(|error| OverlayFailure::Usage(error.to_string()))?;
    let state = &*state;
    let load = |streams: &mut Streams| {
        let loaded = client.load().map(|loaded| loaded.config);
        loaded
            .map_err(|error| OverlayFailure::Reported(report_load_error(&error, cli.json, streams)))
    };
    match &cli.command {
        Command::Diff(args) => {
            let overlay = open_overlay(state, &args.session, streams)?;
            let config = load(streams)?;
            let plan = plan_changes(&overlay, &config, true, &[])?;
            text::diff(&plan, &args.paths, cli.json, streams);
            Ok(Exit::Done)
        }
        Command::Apply(args) => {
            let overlay = open_overlay(state, &args.session, streams)?;
            let config = load(streams)?;
            let plan = plan_changes(&overlay, &config, false, &args.allow)?;
            apply_plan(&overlay, &plan, args, cli.json, streams)
        }
        Command::Discard(args) => {
            let overlay = lock_overlay(state, &args.session)?;
            // An interrupted apply that cannot be completed must not prevent the discard.
            if let Err(error) = recover(&overlay, streams) {
                let text = escape_for_display(&error.to_string(), ERROR);
                let text = format!("note: {text}; the session's changes are discarded anyway");
                streams.err.line(&text);
            }
            overlay.discard().map_err(OverlayError::from)?;
            text::print_result("discarded", &args.session, 0, cli.json, streams);
            Ok(Exit::Done)
        }
        _ => Ok(Exit::Usage),
    }
}

/// Locks a session's overlay, and completes an apply that was killed.
fn open_overlay(
    state: &Path,
    session: &SessionId,
    streams: &mut Streams,
) -> Result<Overlay, OverlayFailure> {
    let overlay = lock_overlay(state, session)?;
    recover(&overlay, streams)?;
    Ok(overlay)
}

fn recover(overlay: &Overlay, streams: &mut Streams) -> Result<(), ApplyError> {
    if let Some(note) = apply::recover(overlay)? {
        streams
            .err
            .line(&format!("note: {}", escape_for_display(&note, ERROR)));
    }
    Ok(())
}

fn lock_overlay(state: &Path, session: &SessionId) -> Result<Overlay, OverlayFailure> {
    let roots =
        list_overlay_roots(state).map_err(|error| OverlayFailure::System(error.to_string()))?;
    let holds = |root: &&Root| overlay::path(root, session).symlink_metadata().is_ok();
    let Some(root) = roots.iter().find(holds) else {
        return Err(OverlayError::Missing(session.clone()).into());
    };
    Ok(Overlay::lock_existing(root, session)?)
}

/// Evaluates every change of the session by the policy of its pool.
fn plan_changes(
    overlay: &Overlay,
    config: &Config,
    texts: bool,
    allow: &[String],
) -> Result<ApplyPlan, OverlayFailure> {
    let (pool, policy) = policies::of_pool(config, &overlay.record()?.pool)?;
    let program: PathBuf = "/proc/self/exe".into();
    // The sandbox in which the agent wrote them: a policy may rely on it.
    let sandbox = config.sandbox_facts(pool);
    let policies = [guard(), &*policy];
    let judge = |path: &str, is_dir: bool| ChangeReview {
        decision: decide_write(&policies, sandbox, path),
        outside: outside::find_use(&policies, path, !is_dir).map(|what| OutsideFile {
            what,
            is_allowed: outside::is_allowed(allow, path),
        }),
    };
    Ok(apply_plan::plan_apply(overlay, &program, &judge, texts)?)
}

/// The strictest decision of the policies on a write to this path of the workspace. A denial of a
/// file because other programs obey it does not count: a person decides on that one.
fn decide_write(policies: &[&Policy], sandbox: SandboxFacts, path: &str) -> ChangeDecision {
    let is_obeyed = policies
        .iter()
        .any(|policy| policy.is_protected(path, true));
    let at = FsContext {
        workspace: WORKSPACE_INSIDE,
        home: HOME_INSIDE,
        cwd: Some(WORKSPACE_INSIDE),
        // The write follows no link.
        resolver: &NoLinks,
    };
    let request = ClientRequest::Write(format!("{WORKSPACE_INSIDE}/{path}"));
    let context = EvaluationContext {
        sandbox,
        ..EvaluationContext::default()
    };
    let mut verdict = ChangeDecision::Allow;
    for policy in policies {
        let (decision, _) = policy.decide_client_in_context(&request, &at, &context);
        let rule = decision.rules.first().map_or("default", String::as_str);
        let why = format!("{} ({rule})", decision.reason);
        let mut rules = decision.rules.iter();
        let is_by_name = !decision.rules.is_empty() && rules.all(|it| OBEYED.contains(&&**it));
        match decision.decision {
            Decision::Deny if is_obeyed && is_by_name => {}
            Decision::Deny => return ChangeDecision::Deny(why),
            Decision::Ask => verdict = ChangeDecision::Ask(why),
            Decision::Allow => {}
        }
    }
    verdict
}

fn apply_plan(
    overlay: &Overlay,
    plan: &ApplyPlan,
    args: &ApplyArgs,
    json: bool,
    streams: &mut Streams,
) -> Result<Exit, OverlayFailure> {
    let needs_approval = plan
        .changes
        .iter()
        .any(|item| item.approval_reason.is_some());
    let refusals = plan.refusals();
    if args.check || !refusals.is_empty() || (needs_approval && !args.yes) {
        text::list(plan, json, streams);
    }
    if !refusals.is_empty() {
        for why in &refusals {
            streams.err.line(&format!(
                "refused: {}",
                escape_for_display(why, 300 + REASON)
            ));
        }
        let text = format!("error: nothing was applied: {} refused", refusals.len());
        streams.err.line(&text);
        return Err(OverlayFailure::Reported(Exit::Failures));
    }
    if needs_approval && !args.yes {
        for item in &plan.changes {
            if let Some(why) = &item.approval_reason {
                let path = item.path.escape_for_display(300);
                let why = escape_for_display(why, REASON);
                streams.err.line(&format!("needs approval: {path}: {why}"));
            }
        }
        let text = "error: nothing was applied: the policy needs a person's approval; add --yes to approve the changes";
        streams.err.line(text);
        return Err(OverlayFailure::Reported(Exit::Failures));
    }
    if args.check {
        return Ok(Exit::Done);
    }
    let program: PathBuf = "/proc/self/exe".into();
    let applied = apply::apply(overlay, plan, &program)?;
    if let Some(note) = applied.kept_note {
        streams
            .err
            .line(&format!("note: {}", escape_for_display(&note, ERROR)));
    }
    text::print_result(
        "applied",
        overlay.session(),
        plan.changes.len(),
        json,
        streams,
    );
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_agent_wrote_in_its_sandbox_is_applied_but_nothing_that_others_obey() {
        let policy = Policy::builtin("autonomous").expect("the policy");
        let policies = [guard(), &policy];
        let decide = |sandbox, path| decide_write(&policies, sandbox, path);
        let confined = SandboxFacts::CONFINED;
        assert!(matches!(decide(confined, "src/a"), ChangeDecision::Allow));
        for path in [
            ".github/workflows/ci.yml",
            ".vscode/tasks.json",
            ".git/config",
            "a/Makefile",
        ] {
            assert!(
                outside::find_use(&policies, path, false).is_some(),
                "{path}"
            );
        }
        assert_eq!(outside::find_use(&policies, "src/a", false), None);
        let decided = decide(confined, "a/.env");
        assert!(
            matches!(decided, ChangeDecision::Deny(_)),
            "a person cannot allow it"
        );
        let decided = decide(SandboxFacts::default(), "src/a");
        assert!(
            matches!(decided, ChangeDecision::Deny(_)),
            "its sandbox has gaps"
        );
    }
}
