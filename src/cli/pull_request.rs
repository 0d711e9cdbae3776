//! `land --pr`: pushes the branch of each task to its git server and opens a pull request for it.
//!
//! A fleet of this process does it, which starts no agent. Must not know git, nor the API of a server.

use serde_json::json;

use super::command::{self, ClientContext};
use super::exit::Exit;
use super::land;
use super::land_onto::{self, Candidate, LandArgs};
use super::run::unless_signalled;
use super::streams::Streams;
use marshal_fleet::{FleetHandle, PullRequestOrder, PushedBranch, Stop};
use marshal_model::untrusted::escape_for_display;

/// Columns of an id, a branch or a reason.
const TEXT: usize = 1000;

/// Opens a pull request for each.
pub(super) async fn run(
    client: &ClientContext,
    (args, candidates): (&LandArgs, Vec<Candidate>),
    json: bool,
    streams: &mut Streams,
) -> Exit {
    if args.into.is_some() && candidates.len() > 1 {
        let count = candidates.len();
        streams.err.line(&format!(
            "error: --into NAME is for one branch, and these are {count}: name one task, session or branch"
        ));
        return Exit::Usage;
    }
    let (started, mut signals) = match land_onto::start_fleet(client, json, streams).await {
        Ok(started) => started,
        Err(exit) => return exit,
    };
    let mut exit = Exit::Done;
    for candidate in &candidates {
        let opening = Box::pin(open(&started.fleet, candidate, args));
        let outcome = match unless_signalled(opening, &mut signals).await {
            Ok(outcome) => outcome,
            Err(signal) => {
                let name = escape_for_display(&candidate.name, TEXT);
                streams.err.line(&format!(
                    "{name}: interrupted; the branch may be pushed: the same command again finds out"
                ));
                exit = signal.exit();
                break;
            }
        };
        if outcome.is_err() {
            exit = Exit::Failures;
        }
        show(candidate, &outcome, json, streams);
    }
    started.fleet.stop(Stop::Drain).await;
    command::finish(started, exit, &mut signals).await
}

async fn open(
    fleet: &FleetHandle,
    candidate: &Candidate,
    args: &LandArgs,
) -> Result<PushedBranch, String> {
    let clones = land::find_clones(&candidate.state, &candidate.session);
    let order = PullRequestOrder {
        session: candidate.session.clone(),
        clones: clones.map_err(|error| error.to_string())?,
        route: args.route.clone(),
        repository: args.repository.clone(),
        base: args.base.clone(),
        into: args.into.clone(),
        allow: args.allow.clone(),
        title: format!("Work of {}", candidate.name),
        text: candidate.summary.clone(),
    };
    let opened = fleet.open_pull_request(&candidate.pool, order).await;
    opened.map_err(|error| error.to_string())
}

fn show(
    candidate: &Candidate,
    outcome: &Result<PushedBranch, String>,
    json: bool,
    streams: &mut Streams,
) {
    if json {
        let pushed = outcome.as_ref().ok();
        let opened = pushed.map(|pushed| &pushed.opened);
        let object = json!({
            "task": candidate.name, "session": candidate.session.as_str(),
            "branch": pushed.map(|pushed| &pushed.branch),
            "commit": pushed.map(|pushed| &pushed.commit),
            "number": opened.map(|opened| opened.request.number),
            "url": opened.map(|opened| &opened.request.address),
            "was_there": opened.map(|opened| opened.was_there),
            "not_pushed": pushed.map_or(&[][..], |pushed| &pushed.further),
            "detail": outcome.as_ref().err(),
        });
        return streams.out.json(&object.to_string());
    }
    let name = escape_for_display(&candidate.name, TEXT);
    let line = match outcome {
        Ok(PushedBranch {
            branch,
            opened,
            further,
            ..
        }) => {
            let was = if opened.was_there {
                "was there"
            } else {
                "opened"
            };
            let (number, address) = (opened.request.number, &opened.request.address);
            let branch = escape_for_display(branch, TEXT);
            let rest = if further.is_empty() {
                String::new()
            } else {
                let places = escape_for_display(&further.join(", "), TEXT);
                format!("; the branches of further repositories are not pushed: {places}")
            };
            format!("{name}: {branch} is pushed; pull request {number} {was}: {address}{rest}")
        }
        Err(why) => format!("{name}: {}", escape_for_display(why, TEXT)),
    };
    streams.out.prose(&line);
}
