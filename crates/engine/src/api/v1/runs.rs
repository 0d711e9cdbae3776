//! Runs and what their clients need: `POST /api/v1/runs`, `GET /api/v1/runs/{run}…`, the supervisor
//! itself and the logs of slots.
//!
//! Generic over the fleet, so that the command line is tested against a small one. Must not know
//! what an item of a stream means.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::error::ApiError;
use super::event_stream::{self, EventSender};
use super::fleet::{no_such_slot, slot_param};
use super::request_context::{RequestContext, object, objects};
use super::tasks::resolve_workspace;
use super::views::{respond, respond_ok};
use super::{AppState, HandlerResult};
use crate::api::json_lines;
use crate::api::run_stream::{Ledger, RunStream, RunStreamItem, new_run_id};
use crate::api::runs::Runs;
use crate::api::service::{Fleet, Refusal, SupervisorKind};
use crate::api::task_body::{TaskBody, TaskFault};
use crate::api::task_rules;
use crate::api::time::Time;
use marshal_fleet::{FleetHandle, LogTail, RunBounds};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{RunId, TaskId, TaskSpec, UntrustedText};
use marshal_telemetry::labels::{StreamEnd, StreamKind};

/// The journal's word for the source of these tasks.
const COMMAND: &str = "up";

/// A fleet and its runs.
#[derive(Debug, Clone)]
pub(super) struct RunContext<F> {
    pub(super) fleet: F,
    pub(super) kind: SupervisorKind,
    pub(super) runs: Arc<Runs>,
    /// Limits open streams.
    pub(super) stream_permits: Arc<Semaphore>,
    /// Ends streams.
    pub(super) stop: CancellationToken,
}

impl AppState {
    pub(super) fn runs(&self) -> RunContext<FleetHandle> {
        RunContext {
            fleet: self.fleet.clone(),
            kind: self.host.kind,
            runs: Arc::clone(&self.runs),
            stream_permits: Arc::clone(&self.stream_permits),
            stop: self.stop.clone(),
        }
    }
}

/// What a supervisor says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Supervisor")]
pub struct SupervisorView {
    /// The version of the program.
    pub version: String,
    /// What kind of supervisor it is.
    #[schemars(extend("enum" = words!(SupervisorKind)))]
    pub kind: String,
    /// Its process id.
    pub pid: u32,
    /// The digest of its configuration.
    pub configuration: String,
}

/// The body of a new run.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(example = serde_json::json!({"tasks": [{"id": "readme", "prompt": "Read README.md and say what this project is."}]}))]
pub struct NewRun {
    /// The tasks, each with an id of its own.
    #[serde(deserialize_with = "objects")]
    #[schemars(with = "Vec<TaskBody>", length(min = 1, max = limits::POOL_QUEUE))]
    pub tasks: Vec<TaskBody>,
    /// The limits of the run.
    #[serde(default, deserialize_with = "object")]
    #[schemars(with = "BoundsBody")]
    pub bounds: BoundsBody,
}

/// The limits of a new run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RunBounds")]
pub struct BoundsBody {
    /// No task begins at or after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Time>,
    /// How long running tasks may continue after that, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = NUMBER))]
    grace_ms: Option<u64>,
    /// The cost limit, in US dollars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = DOLLARS))]
    max_cost: Option<f64>,
    /// The limit of tokens, read and written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = NUMBER))]
    max_tokens: Option<u64>,
    /// The limit of concurrent tasks, over all pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    jobs: Option<u16>,
}

/// Billionths of a dollar.
const DOLLAR: f64 = 1e9;
/// The highest cost limit, in US dollars.
const DOLLARS: u32 = 100_000_000;
/// The highest number of a bound.
const NUMBER: i64 = i64::MAX;

impl BoundsBody {
    /// Writes the bounds of a run.
    #[must_use]
    pub fn from_bounds(bounds: &RunBounds) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "nobody has 9 million dollars")]
        let dollars = |cost: u64| cost as f64 / DOLLAR;
        Self {
            until: bounds.until_us.map(Time),
            grace_ms: bounds.grace_ms,
            max_cost: bounds.max_cost.map(dollars),
            max_tokens: bounds.max_tokens,
            jobs: bounds.jobs,
        }
    }

    fn into_bounds(self) -> Result<RunBounds, ApiError> {
        let bad = |key: &str, why: &str| ApiError::bad_request(format!("key {key:?} {why}"));
        if self
            .max_cost
            .is_some_and(|cost| !(0.0..=DOLLARS.into()).contains(&cost))
        {
            return Err(bad(
                "max_cost",
                "must be an amount in US dollars, at most 100 million",
            ));
        }
        for (key, number) in [("grace_ms", self.grace_ms), ("max_tokens", self.max_tokens)] {
            if number.is_some_and(|number| i64::try_from(number).is_err()) {
                return Err(bad(key, "is too large"));
            }
        }
        if self.jobs == Some(0) {
            return Err(bad("jobs", "must be 1 or greater"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it was checked"
        )]
        let cost = self
            .max_cost
            .map(|dollars| (dollars * DOLLAR).round() as u64);
        Ok(RunBounds {
            until_us: self.until.map(|Time(at)| at),
            grace_ms: self.grace_ms,
            max_cost: cost,
            max_tokens: self.max_tokens,
            jobs: self.jobs,
        })
    }
}

/// A run, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Run")]
pub struct RunView {
    /// Its id.
    pub run: String,
    /// The number of its tasks.
    pub tasks: usize,
    /// The number of tasks that have ended.
    pub ended: usize,
    /// Whether no more of its tasks will end.
    pub complete: bool,
}

impl RunView {
    fn from_ledger(ledger: &Ledger) -> Self {
        Self {
            run: ledger.run().to_string(),
            tasks: ledger.total(),
            ended: ledger.ended(),
            complete: ledger.is_closed(),
        }
    }
}

pub(super) async fn submit_named(app: AppState, request: RequestContext) -> HandlerResult {
    let body: NewRun = request.body()?;
    let mut tasks = specs(body.tasks)?;
    for (spec, workspace) in &mut tasks {
        check_may_land(&request, spec)?;
        spec.workspace = match workspace.take() {
            None => None,
            Some(path) if path.starts_with('/') => Some(host_path(&request, &path)?),
            Some(name) => Some(resolve_workspace(&app, &name).await?),
        };
    }
    let tasks = tasks.into_iter().map(|(spec, _)| spec).collect();
    let bounds = body.bounds.into_bounds()?;
    app.runs().submit(tasks, bounds).await
}

/// Only the supervisor's user may name a branch: landing on it moves it, and no policy of a client's
/// role says which.
pub(super) fn check_may_land(request: &RequestContext, spec: &TaskSpec) -> Result<(), ApiError> {
    if spec.land.is_none() || request.caller.uid.is_some() {
        return Ok(());
    }
    let detail = "key \"land\" is for the supervisor's user, over its socket: land the work afterwards with `marshal land --onto`";
    Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail))
}

/// Only the supervisor's user may name any directory of the host.
fn host_path(request: &RequestContext, path: &str) -> Result<PathBuf, ApiError> {
    if request.caller.uid.is_none() {
        let detail = "key \"workspace\" is a path, which only the supervisor's user may give, over its socket: give the name of a [workspace.NAME]";
        return Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let path = PathBuf::from(path);
    task_rules::check_workspace(&path)
        .map_err(|why| ApiError::bad_request(format!("key \"workspace\" {why}")))?;
    Ok(path)
}

/// Checks the tasks of a run; their workspaces are left to the caller.
fn specs(bodies: Vec<TaskBody>) -> Result<Vec<(TaskSpec, Option<String>)>, ApiError> {
    let bad = |why: String| ApiError::bad_request(why);
    if bodies.is_empty() {
        return Err(bad("key \"tasks\" is empty: give at least one".to_owned()));
    }
    if bodies.len() > limits::POOL_QUEUE {
        let (count, most) = (bodies.len(), limits::POOL_QUEUE);
        return Err(bad(format!(
            "{count} tasks are too many: give at most {most}"
        )));
    }
    let mut seen = HashSet::new();
    let mut tasks = Vec::with_capacity(bodies.len());
    for (place, mut body) in (1..).zip(bodies) {
        let fault = |(key, why): TaskFault| bad(format!("task {place}: key {key:?} {why}"));
        let id = TaskId::new(body.id.as_deref().unwrap_or_default());
        let id = id.map_err(|error| fault(("id", escape_for_display(&error.to_string(), 200))))?;
        if !seen.insert(id.clone()) {
            return Err(bad(format!("task id {id} is given twice")));
        }
        let workspace = body.workspace.take();
        tasks.push((body.into_spec(id).map_err(fault)?, workspace));
    }
    Ok(tasks)
}

impl<F: Fleet> RunContext<F> {
    pub(super) async fn about(self) -> HandlerResult {
        respond_ok(&SupervisorView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kind: self.kind.to_string(),
            pid: std::process::id(),
            configuration: self.fleet.config_digest(),
        })
    }

    async fn submit(self, tasks: Vec<TaskSpec>, bounds: RunBounds) -> HandlerResult {
        if self.kind != SupervisorKind::Daemon {
            return Err(ApiError::no_daemon());
        }
        let run = new_run_id().map_err(|_| ApiError::unavailable("no new run id can be made"))?;
        // Before the tasks are submitted, so that their watcher misses nothing of them.
        let notices = self.fleet.subscribe();
        let total = tasks.len();
        self.fleet.set_run_bounds(&run, bounds);
        // A disk that accepts no writes must not delay the shutdown.
        let reports = tokio::select! {
            taken = self.fleet.submit(run.clone(), COMMAND, tasks) => taken.map_err(refused)?,
            () = self.stop.cancelled() => return Err(ApiError::stopping()),
        };
        let ledger = Ledger::collect(run.clone(), total, reports);
        ledger.keep_notices(notices);
        self.runs.insert(&ledger);
        let mut response = respond(StatusCode::ACCEPTED, &RunView::from_ledger(&ledger))?;
        if let Ok(place) = HeaderValue::from_str(&format!("/api/v1/runs/{run}")) {
            response.headers_mut().insert(header::LOCATION, place);
        }
        Ok(response)
    }

    /// Returns a current or past run. Waits for one that is about to be resumed.
    async fn find(&self, request: &RequestContext) -> Result<Arc<Ledger>, ApiError> {
        let missing = || {
            ApiError::not_found("there is no such run here; only the runs that ended last are kept")
        };
        let run = RunId::new(request.path_param("run")).map_err(|_| missing())?;
        tokio::select! {
            found = self.runs.wait_for(&run) => found.ok_or_else(missing),
            () = self.stop.cancelled() => Err(ApiError::stopping()),
        }
    }

    pub(super) async fn get(self, request: RequestContext) -> HandlerResult {
        respond_ok(&RunView::from_ledger(&*self.find(&request).await?))
    }

    pub(super) async fn cancel(self, request: RequestContext) -> HandlerResult {
        let ledger = self.find(&request).await?;
        self.fleet.cancel(ledger.run());
        respond(StatusCode::ACCEPTED, &RunView::from_ledger(&ledger))
    }

    pub(super) async fn stream(self, request: RequestContext) -> HandlerResult {
        let ledger = self.find(&request).await?;
        let past = request.flag("past").unwrap_or(true);
        let run = RunStream::join(&self.fleet, ledger, past);
        let (permits, stop) = (Arc::clone(&self.stream_permits), self.stop.clone());
        event_stream::open(StreamKind::Run, &permits, stop, request, |sender| {
            let fed = feed_run(sender, run, self.stop);
            async move { fed.await.err().unwrap_or(StreamEnd::Complete) }
        })
    }

    pub(super) async fn logs(self, request: RequestContext) -> HandlerResult {
        let missing = || no_such_slot(&request, &self.fleet.slots());
        let slot = slot_param(&request).ok_or_else(missing)?;
        let tail = self.fleet.logs(&slot).ok_or_else(missing)?;
        let follow = request.flag("follow").unwrap_or(false);
        let (permits, stop) = (Arc::clone(&self.stream_permits), self.stop.clone());
        event_stream::open(StreamKind::Log, &permits, stop, request, |sender| {
            let fed = feed_log(sender, tail, follow, self.stop);
            async move { fed.await.err().unwrap_or(StreamEnd::Complete) }
        })
    }
}

fn refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::Tasks(why) => ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why),
        Refusal::Full(why) => ApiError::new(StatusCode::TOO_MANY_REQUESTS, why),
        Refusal::Fleet(why) => ApiError::unavailable(why),
    }
}

/// Sends an item, which may be several lines.
async fn send_item(sender: &EventSender, item: &RunStreamItem) -> Result<(), StreamEnd> {
    for line in json_lines::item_json(item).lines() {
        sender.send(None, kind_of(line), line).await?;
    }
    Ok(())
}

/// The kind that a line begins with.
fn kind_of(line: &str) -> &str {
    let rest = line.strip_prefix("{\"type\":\"").unwrap_or_default();
    rest.split('"').next().unwrap_or_default()
}

/// Sends a run's stream until its end, or until the supervisor has stopped.
async fn feed_run(
    sender: EventSender,
    mut run: RunStream,
    stop: CancellationToken,
) -> Result<(), StreamEnd> {
    loop {
        let item = tokio::select! {
            item = run.next() => item,
            () = tokio::time::sleep(limits::APPROVAL_STREAM_KEEPALIVE) => {
                sender.keep_alive().await?;
                continue;
            }
            () = sender.closed() => return Err(StreamEnd::Gone),
            () = stop.cancelled() => break,
        };
        send_item(&sender, &item).await?;
        if matches!(item, RunStreamItem::Complete) {
            return Ok(());
        }
    }
    // What is there without waiting.
    while let Ok(item) = tokio::time::timeout(limits::HTTP_DRAIN / 4, run.next()).await {
        send_item(&sender, &item).await?;
        if matches!(item, RunStreamItem::Complete) {
            return Ok(());
        }
    }
    Err(StreamEnd::Stopping)
}

/// Sends a slot's stderr lines. Ends with the slot or the supervisor, or with what there is.
async fn feed_log(
    sender: EventSender,
    mut tail: LogTail,
    follow: bool,
    stop: CancellationToken,
) -> Result<(), StreamEnd> {
    for line in &tail.backlog {
        send_log_line(&sender, line).await?;
    }
    if follow {
        follow_log(&sender, &mut tail, &stop).await?;
    }
    send_item(&sender, &RunStreamItem::Complete).await
}

async fn follow_log(
    sender: &EventSender,
    tail: &mut LogTail,
    stop: &CancellationToken,
) -> Result<(), StreamEnd> {
    loop {
        let heard = tokio::select! {
            heard = tail.live.recv() => heard,
            () = tokio::time::sleep(limits::APPROVAL_STREAM_KEEPALIVE) => {
                sender.keep_alive().await?;
                continue;
            }
            () = sender.closed() => return Err(StreamEnd::Gone),
            () = stop.cancelled() => return Ok(()),
        };
        match heard {
            Ok(line) => send_log_line(sender, &line).await?,
            Err(RecvError::Lagged(missed)) => {
                send_item(sender, &RunStreamItem::Lagged(missed)).await?;
            }
            Err(RecvError::Closed) => return Ok(()),
        }
    }
}

async fn send_log_line(sender: &EventSender, line: &UntrustedText) -> Result<(), StreamEnd> {
    sender.send(None, "log", &json_lines::log_line(line)).await
}

/// The routes of this module for a small fleet of tests. Its workspaces are all left out.
#[cfg(any(test, feature = "test-fixtures"))]
pub fn router_of<F: Fleet>(
    fleet: F,
    kind: SupervisorKind,
    runs: Arc<Runs>,
    tokens: &crate::api::tokens::Tokens,
    stop: CancellationToken,
) -> axum::Router {
    use crate::api::approval_events::ConnectionDeadline;
    use crate::api::guard::{RouteScope, with_guard};
    use crate::api::tokens::Caller;
    use axum::Extension;
    use axum::extract::{RawPathParams, Request};

    let context = RunContext {
        fleet,
        kind,
        runs,
        stream_permits: Arc::new(Semaphore::new(super::STREAMS)),
        stop,
    };
    let names = [
        "getSupervisor",
        "submitRun",
        "getRun",
        "cancelRun",
        "streamRun",
        "getLogs",
    ];
    let known = super::routes::all_routes().filter(|route| names.contains(&route.name));
    let routes = known.fold(axum::Router::new(), |router, route| {
        let context = context.clone();
        let serve = move |Extension(caller): Extension<Caller>,
                          Extension(ConnectionDeadline(until)): Extension<ConnectionDeadline>,
                          params: RawPathParams,
                          request: Request| async move {
            let answer = async {
                let request =
                    RequestContext::from_request(route, caller, until, &params, request).await?;
                match route.name {
                    "getSupervisor" => context.about().await,
                    "submitRun" => {
                        let body: NewRun = request.body()?;
                        let tasks = specs(body.tasks)?.into_iter().map(|(spec, _)| spec);
                        let bounds = body.bounds.into_bounds()?;
                        context.submit(tasks.collect(), bounds).await
                    }
                    "getRun" => context.get(request).await,
                    "cancelRun" => context.cancel(request).await,
                    "streamRun" => context.stream(request).await,
                    _ => context.logs(request).await,
                }
            };
            answer.await.unwrap_or_else(ApiError::into_response)
        };
        router.route(route.path, axum::routing::any(serve))
    });
    let needs = super::required_roles();
    with_guard(routes, tokens, needs, RouteScope::Fleet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_survive_the_way_to_the_supervisor_and_others_are_refused() {
        let bounds = RunBounds {
            until_us: Some(1_900_000_000_000_001),
            grace_ms: Some(1500),
            max_cost: Some(40_000_000_001),
            max_tokens: Some(7),
            jobs: Some(8),
        };
        for bounds in [bounds, RunBounds::default()] {
            let body = serde_json::to_string(&BoundsBody::from_bounds(&bounds)).expect("JSON");
            let read: BoundsBody = serde_json::from_str(&body).expect("bounds");
            assert_eq!(read.into_bounds().expect("bounds"), bounds, "{body}");
        }
        for bad in [
            r#"{"max_cost":-1}"#,
            r#"{"max_cost":1e30}"#,
            r#"{"max_tokens":9223372036854775808}"#,
            r#"{"jobs":0}"#,
        ] {
            let read: BoundsBody = serde_json::from_str(bad).expect("a shape");
            assert!(read.into_bounds().is_err(), "{bad}");
        }
    }
}
