//! Chats and tasks that wait for the slots of one pool, for a long simulated time: each kind gets
//! its share of slot time, and nothing waits without end.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use marshal_fleet::{
    ApprovalUpdate, ApproverReply, ConversationUpdate, FleetEvent, FleetHandle, ResumeScope, Stop,
};
use marshal_journal::{ChatRow, ChatWrite, Journal, Write};
use marshal_model::{
    ChatMode, PoolName, RoleName, RunId, SessionId, TaskId, TaskSpec, WorkspaceName,
};
use marshal_sandbox::state_dir::StateDir;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::sim::disk::{Disk, probe};
use crate::sim::random::SeededRandom;
use crate::sim::supervisor_life::setup;
use crate::sim::world::{Twist, Wildness, World};

/// Simulated time; longer with `tests/run --all`.
const TIME: Duration = Duration::from_secs(12 * 60);
const TIME_LONG: Duration = Duration::from_secs(60 * 60);
const CLIENTS: usize = 6;

fn configuration(tasks: u16, chats: u16) -> String {
    format!(
        r#"
[supervisor]
pause_after_denied = 0

[pool.a]
size = 3
command = ["marshal", "script-agent", "--dialect", "scaiflux"]
resume_args = ["--resume", "{{session}}"]
dialect = "scaiflux"
launcher = "none"
policy = "developer"
workspace = {{ path = "workspace", mode = "rw" }}
shares = {{ tasks = {tasks}, chats = {chats} }}
"#
    )
}

/// What was seen of a pool in which both kinds always wait.
#[derive(Debug, Default)]
struct SlotUse {
    /// Samples of slots that a kind had.
    tasks: u32,
    chats: u32,
    /// The longest wait of a chat for a slot.
    longest_chat: Duration,
    /// How long the task of the lowest priority waited.
    lowest: Option<Duration>,
}

fn pool() -> PoolName {
    PoolName::new("a").expect("a name")
}

/// A client that talks as fast as it can.
async fn talk(fleet: FleetHandle, world: Arc<World>, chats: Arc<Mutex<Chats>>) {
    let pool = pool();
    let (session, run) = fleet.chat_ids().expect("ids");
    let row = ChatRow {
        session: session.clone(),
        run,
        workspace: WorkspaceName::new("project").expect("a name"),
        role: RoleName::new("coder").expect("a name"),
        model: None,
        goal: "talk".into(),
        files: Vec::new(),
        pool: pool.clone(),
        mode: ChatMode::Chat,
        parent: None,
        phase: None,
        settings: None,
        created_ms: fleet.now_ms(),
    };
    let created = Write::Chat(ChatWrite::Create(row));
    fleet.commit_rows(vec![created]).await.expect("durable");
    chats
        .lock()
        .expect("a lock")
        .sessions
        .insert(session.clone());
    let directory = world.dir.path().join("workspace");
    loop {
        let began = Instant::now();
        let loaded = fleet.load_chat(&pool, &directory, session.clone(), None);
        let mut conversation = loaded.await.expect("a slot");
        let waited = began.elapsed();
        {
            let mut chats = chats.lock().expect("a lock");
            chats.longest = chats.longest.max(waited);
        }
        let prompt = conversation.prompt("run-1/p talk".into());
        prompt.await.expect("accepted");
        while let Some(update) = conversation.next().await {
            match update {
                ConversationUpdate::PromptEnded(_) => break,
                ConversationUpdate::Approval(ApprovalUpdate::Requested(of)) => {
                    conversation.answer_approval(of.id, ApproverReply::Reject);
                }
                _ => {}
            }
        }
        conversation.leave().await;
    }
}

#[derive(Debug, Default)]
struct Chats {
    sessions: BTreeSet<SessionId>,
    longest: Duration,
}

fn task(id: &str, priority: i8) -> TaskSpec {
    TaskSpec {
        id: TaskId::new(id).expect("an id"),
        prompt: format!("run-1/{id} work").into(),
        pool: Some(pool()),
        workspace: None,
        attempts: None,
        check: None,
        files: Vec::new(),
        embedded_files: Vec::new(),
        policy_layer: None,
        land: None,
        priority,
        depends_on: Vec::new(),
    }
}

/// Keeps tasks of priority 5 waiting, behind one of priority 0.
async fn submit(fleet: FleetHandle) {
    for batch in 0.. {
        let run = RunId::new(&format!("tasks-{batch}")).expect("an id");
        let mut tasks: Vec<_> = (0..60).map(|n| task(&format!("t{batch}-{n}"), 5)).collect();
        if batch == 0 {
            tasks.push(task("lowest", 0));
        }
        let mut reports = fleet.submit(run, "run", tasks).await.expect("accepted");
        // The next ones come before the last ones begin.
        for _ in 0..40 {
            let _ = reports.recv().await;
        }
    }
}

async fn when_lowest_begins(fleet: FleetHandle, began: Instant) -> Duration {
    let mut events = fleet.subscribe();
    loop {
        if let Ok(FleetEvent::TaskAssigned { task, .. }) = events.recv().await
            && task.as_str() == "lowest"
        {
            return began.elapsed();
        }
    }
}

async fn watch(world: Arc<World>, seed: u64) -> SlotUse {
    let state = StateDir::open(
        &world.dir.path().join("state"),
        &[world.dir.path().join("workspace")],
    );
    let short = Arc::new(AtomicBool::new(false));
    let state = state.expect("the state directory");
    let opened = Journal::open_stepped(state.path(), probe(&short), world.wall_us);
    let (journal, stepper) = opened.expect("the journal");
    world.ledger.reads(journal.file());
    let (over, is_over) = oneshot::channel();
    let disk = Disk {
        ledger: Arc::clone(&world.ledger),
        journal: journal.clone(),
        stepper,
        short,
        dice: SeededRandom::new(seed, 1),
        wildness: Wildness::NONE,
        twist: Twist::Nothing,
    };
    let disk = tokio::spawn(disk.work(is_over));
    let setup = setup(&world, state, journal, seed, ResumeScope::All);
    let fleet = FleetHandle::start(setup).await.expect("a fleet");
    let chats = Arc::new(Mutex::new(Chats::default()));
    let began = Instant::now();
    let lowest = tokio::spawn(when_lowest_begins(fleet.clone(), began));
    let mut loads = vec![tokio::spawn(submit(fleet.clone()))];
    for _ in 0..CLIENTS {
        let (world, chats) = (Arc::clone(&world), Arc::clone(&chats));
        loads.push(tokio::spawn(talk(fleet.clone(), world, chats)));
    }
    let mut seen = SlotUse::default();
    let time = if is_long() { TIME_LONG } else { TIME };
    while began.elapsed() < time {
        sleep(Duration::from_millis(700)).await;
        let chats = chats.lock().expect("a lock");
        for session in fleet.slots().into_iter().filter_map(|slot| slot.session) {
            if chats.sessions.contains(&session) {
                seen.chats += 1;
            } else {
                seen.tasks += 1;
            }
        }
    }
    for load in loads {
        load.abort();
    }
    seen.longest_chat = chats.lock().expect("a lock").longest;
    seen.lowest = if lowest.is_finished() {
        lowest.await.ok()
    } else {
        None
    };
    fleet.stop(Stop::Kill).await;
    drop(fleet);
    let _ = over.send(());
    let _ = disk.await;
    seen
}

fn is_long() -> bool {
    std::env::var_os("MARSHAL_TEST_LONG").is_some_and(|value| value == "1")
}

#[test]
fn waiting_chats_and_tasks_get_their_shares_and_nothing_starves() {
    for (seed, (tasks, chats)) in [(3, (1, 2)), (2, (3, 1))] {
        let world = World::new(seed, &configuration(tasks, chats), Wildness::NONE, false);
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build();
        let seen = runtime.expect("a runtime").block_on(async {
            marshal_fleet::simulate_stamps(world.wall_us);
            watch(Arc::new(world), seed).await
        });
        let wanted = f64::from(tasks) / f64::from(chats);
        let got = f64::from(seen.tasks) / f64::from(seen.chats);
        assert!(
            (got / wanted - 1.0).abs() < 0.1,
            "{tasks}:{chats}: {seen:?}"
        );
        // At most all the other clients are before it, each with a turn of well below a minute.
        assert!(seen.longest_chat < Duration::from_secs(300), "{seen:?}");
        // Five levels of priority are five minutes, and tasks that came before that go first.
        let lowest = seen.lowest.unwrap_or(Duration::MAX);
        assert!(lowest > Duration::from_secs(60), "{seen:?}");
        assert!(lowest < Duration::from_secs(1200), "{seen:?}");
    }
}
