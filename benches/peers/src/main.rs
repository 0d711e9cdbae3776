//! The Rust ACP SDK's client, under a load of `benches/fleet`. It counts the notifications, allows
//! every request, and prints the cost.

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agent_client_protocol::schema::ProtocolVersion;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentBlock, InitializeRequest, NewSessionRequest, PermissionOptionKind, PromptRequest,
    RequestPermissionOutcome, RequestPermissionRequest, RequestPermissionResponse,
    SelectedPermissionOutcome, SessionNotification, SessionUpdate, TextContent,
};
use agent_client_protocol::{AcpAgent, Agent, Client};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use tokio::sync::{Barrier, Mutex as Lock};

/// The bench's order.
#[derive(Debug, Deserialize)]
struct Order {
    agent: Vec<String>,
    children: usize,
    prompt: String,
    spread_us: u64,
}

/// The messages of all children together.
#[derive(Debug, Default)]
struct Received {
    events: AtomicU64,
    reports: Mutex<Vec<String>>,
}

/// Wall and CPU time at one moment.
#[derive(Debug, Clone, Copy)]
struct Moment(Instant, Duration);

impl Moment {
    fn now() -> Self {
        let spent = clock_gettime(ClockId::ProcessCPUTime);
        let cpu = Duration::new(
            u64::try_from(spent.tv_sec).unwrap_or(0),
            u32::try_from(spent.tv_nsec).unwrap_or(0),
        );
        Self(Instant::now(), cpu)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let order = std::env::args().nth(1).ok_or("an order as the argument")?;
    let order: Arc<Order> = Arc::new(serde_json::from_str(&order)?);
    let received = Arc::new(Received::default());
    let ready = Arc::new(Barrier::new(order.children + 1));
    let go = Arc::new(Barrier::new(order.children + 1));
    let spawning = Instant::now();
    let mut ends = Vec::new();
    let ended = Arc::new(Lock::new(None));
    for number in 0..order.children {
        let later = Duration::from_micros(order.spread_us).mul_f64(number as f64 / order.children as f64);
        ends.push(tokio::spawn(drive(
            Arc::clone(&order),
            Arc::clone(&received),
            (Arc::clone(&ready), Arc::clone(&go)),
            later,
            Arc::clone(&ended),
        )));
    }
    ready.wait().await;
    let spawn_s = spawning.elapsed().as_secs_f64();
    let began = Moment::now();
    go.wait().await;
    for end in ends {
        end.await??;
    }
    // The end of the last turn, not of the last child.
    let end: Moment = ended.lock().await.ok_or("no turn ended")?;
    let reports = received.reports.lock().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{}",
        serde_json::json!({
            "events": received.events.load(Ordering::Relaxed),
            "wall_s": end.0.duration_since(began.0).as_secs_f64(),
            "cpu_s": end.1.saturating_sub(began.1).as_secs_f64(),
            "spawn_s": spawn_s,
            "reports": *reports,
        })
    );
    Ok(())
}

async fn drive(
    order: Arc<Order>,
    received: Arc<Received>,
    (ready, go): (Arc<Barrier>, Arc<Barrier>),
    later: Duration,
    ended: Arc<Lock<Option<Moment>>>,
) -> Result<(), agent_client_protocol::Error> {
    let agent = AcpAgent::from_args(&order.agent)?;
    let (reported, requested) = (Arc::clone(&received), received);
    Client
        .v1()
        .on_receive_notification(
            async move |notification: SessionNotification, _cx| {
                take(&reported, notification.update);
                Ok(())
            },
            agent_client_protocol::on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: RequestPermissionRequest, responder, _connection| {
                requested.events.fetch_add(1, Ordering::Relaxed);
                let mut options = request.options.iter();
                let once = options.find(|option| option.kind == PermissionOptionKind::AllowOnce);
                responder.respond(RequestPermissionResponse::new(match once {
                    Some(once) => RequestPermissionOutcome::Selected(
                        SelectedPermissionOutcome::new(once.option_id.clone()),
                    ),
                    None => RequestPermissionOutcome::Cancelled,
                }))
            },
            agent_client_protocol::on_receive_request!(),
        )
        .connect_with(agent, |connection: ConnectionTo<Agent>| async move {
            connection
                .send_request(InitializeRequest::new(ProtocolVersion::V1))
                .block_task()
                .await?;
            let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
            let session = connection
                .send_request(NewSessionRequest::new(here))
                .block_task()
                .await?;
            ready.wait().await;
            go.wait().await;
            tokio::time::sleep(later).await;
            let text = TextContent::new(order.prompt.clone());
            connection
                .send_request(PromptRequest::new(
                    session.session_id,
                    vec![ContentBlock::Text(text)],
                ))
                .block_task()
                .await?;
            // Turns may end in any order; the last end counts.
            *ended.lock().await = Some(Moment::now());
            Ok(())
        })
        .await
}

fn take(received: &Received, update: SessionUpdate) {
    received.events.fetch_add(1, Ordering::Relaxed);
    if let SessionUpdate::AgentMessageChunk(chunk) = update
        && let ContentBlock::Text(text) = chunk.content
        && text.text.starts_with("asks ")
    {
        let mut reports = received.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.push(text.text);
    }
}
