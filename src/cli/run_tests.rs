//! `run` from its tasks to its exit code, with a small fleet, here and through a daemon.

use super::*;
use crate::cli::listeners::Listeners;
use crate::cli::streams::Captured;
use crate::cli::supervisor_client::daemon;
use marshal_engine::api::SupervisorKind;
use marshal_engine::api::runs::Runs;
use marshal_engine::api::test_fixtures::{EVIL, FakeFleet, hostile_items, spec};
use marshal_fleet::FleetEvent;
use marshal_model::untrusted::is_unsafe;

struct RunOutput {
    exit: Exit,
    out: String,
    err: String,
    results: String,
}

impl RunOutput {
    fn outcomes(&self) -> Vec<(String, String)> {
        let lines = self.results.lines().map(|line| {
            let value: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let word = |key: &str| value[key].as_str().expect("text").to_owned();
            (word("id"), word("outcome"))
        });
        lines.collect()
    }
}

struct Setting {
    fleet: FakeFleet,
    json: bool,
    dir: tempfile::TempDir,
    signals: mpsc::Sender<Signal>,
    incoming: Option<mpsc::Receiver<Signal>>,
}

impl Setting {
    fn new() -> Self {
        let (signals, incoming) = mpsc::channel(8);
        Self {
            fleet: FakeFleet::new(),
            json: false,
            dir: tempfile::tempdir().expect("directory"),
            signals,
            incoming: Some(incoming),
        }
    }

    fn order(&self, tasks: Vec<TaskSpec>) -> RunRequest {
        RunRequest {
            bounds: marshal_fleet::RunBounds::default(),
            job: Job::New(tasks),
            results: Some(Results::open(&self.dir.path().join("out.jsonl")).expect("opened")),
            json: self.json,
            verbosity: Verbosity::Normal,
            screen: None,
        }
    }

    fn run_output(&self, exit: Exit, out: &Captured, err: &Captured) -> RunOutput {
        RunOutput {
            exit,
            out: out.text(),
            err: err.text(),
            results: std::fs::read_to_string(self.dir.path().join("out.jsonl")).expect("read"),
        }
    }

    async fn here(&mut self, tasks: Vec<TaskSpec>) -> RunOutput {
        let (streams, out, err) = Streams::captured(false);
        let mut signals = Signals::from_channel(self.incoming.take().expect("once"));
        let exit = run_local(self.fleet.clone(), self.order(tasks), streams, &mut signals).await;
        self.run_output(exit, &out, &err)
    }

    /// Serves the fleet as a daemon does.
    fn serve(&self, runs: Arc<Runs>) -> Listeners {
        let kind = SupervisorKind::Daemon;
        Listeners::open_fake(self.dir.path(), &self.fleet, kind, None, runs)
    }

    async fn there(&mut self, tasks: Vec<TaskSpec>) -> RunOutput {
        let serving = self.serve(Arc::default());
        let client = daemon(self.dir.path())
            .await
            .expect("asked")
            .expect("there");
        let (streams, out, err) = Streams::captured(false);
        let mut signals = Signals::from_channel(self.incoming.take().expect("once"));
        let exit = run_on_daemon(client, self.order(tasks), streams, &mut signals).await;
        serving.close().await;
        self.run_output(exit, &out, &err)
    }
}

fn three() -> Vec<TaskSpec> {
    vec![spec("a", "done"), spec("b", "deny"), spec("c", "done")]
}

fn check_three(told: &RunOutput) {
    assert_eq!(told.exit, Exit::Failures);
    assert!(told.out.contains("\nb     demo/1  denied "), "{}", told.out);
    assert!(
        told.out.contains("2 of 3 done, 1 denied in "),
        "{}",
        told.out
    );
    assert!(
        told.out.contains("b: denied by developer:network\n"),
        "{}",
        told.out
    );
    for line in [
        "a: assigned to demo/0",
        "a: done in",
        "b: denied a request by developer:network",
    ] {
        assert!(told.err.contains(line), "{}", told.err);
    }
    let outcome = |id: &str, word: &str| (id.to_owned(), word.to_owned());
    let expect = [
        outcome("a", "done"),
        outcome("b", "denied"),
        outcome("c", "done"),
    ];
    assert_eq!(told.outcomes(), expect);
}

#[tokio::test]
async fn a_run_here_and_a_run_in_a_daemon_look_the_same() {
    let here = Setting::new().here(three()).await;
    check_three(&here);
    let there = Setting::new().there(three()).await;
    check_three(&there);
}

#[tokio::test]
async fn only_a_run_whose_tasks_are_all_done_is_done() {
    let mut setting = Setting::new();
    let told = setting
        .here(vec![spec("a", "done"), spec("b", "done")])
        .await;
    assert_eq!(told.exit, Exit::Done);
    assert_eq!(setting.fleet.stops(), [Stop::Drain], "the fleet is stopped");
}

#[tokio::test]
async fn json_is_one_object_a_line_and_nothing_else() {
    for there in [false, true] {
        let mut setting = Setting::new();
        setting.json = true;
        let told = if there {
            setting.there(three()).await
        } else {
            setting.here(three()).await
        };
        assert_eq!(told.err, "", "nothing beside");
        let kinds: Vec<String> = told
            .out
            .lines()
            .map(|line| {
                let value: serde_json::Value = serde_json::from_str(line).expect(line);
                value["type"].as_str().expect("a type").to_owned()
            })
            .collect();
        assert_eq!(kinds.first().map(String::as_str), Some("run"));
        assert_eq!(kinds.last().map(String::as_str), Some("complete"));
        let count = |kind: &str| kinds.iter().filter(|k| *k == kind).count();
        assert_eq!(
            (count("queued"), count("assigned"), count("ended")),
            (3, 3, 3),
            "{kinds:?}"
        );
        assert_eq!(count("event"), 1);
        let ended = told
            .out
            .lines()
            .find(|line| line.contains("\"ended\""))
            .expect("one");
        let value: serde_json::Value = serde_json::from_str(ended).expect("JSON");
        assert_eq!(value["report"]["id"], "a");
    }
}

#[tokio::test]
async fn a_flood_that_is_too_fast_is_told_and_loses_no_report() {
    let tasks = vec![
        spec("a", "flood 20000"),
        spec("b", "flood 20000"),
        spec("c", "deny"),
    ];
    let told = Setting::new().here(tasks).await;
    assert!(
        told.err
            .contains("notices were skipped because they arrived too fast"),
        "{}",
        told.err
    );
    assert_eq!(told.outcomes().len(), 3);
    assert!(told.out.contains("2 of 3 done, 1 denied"), "{}", told.out);
}

/// Waits until the task works that hangs, which is called b.
fn hangs(fleet: &FakeFleet) -> impl Future<Output = ()> + use<> {
    let mut notices = fleet.subscribe();
    async move {
        let is_it = |notice: FleetEvent| matches!(notice, FleetEvent::TaskAssigned { task, .. } if task.as_str() == "b");
        while !notices.recv().await.is_ok_and(is_it) {}
    }
}

async fn with_signals(setting: &mut Setting, there: bool, send: &[Signal]) -> RunOutput {
    let tasks = vec![spec("a", "done"), spec("b", "hang"), spec("c", "done")];
    let signals = setting.signals.clone();
    let send = send.to_vec();
    let works = hangs(&setting.fleet);
    let sending = async move {
        works.await;
        for signal in send {
            tokio::time::sleep(Duration::from_millis(150)).await;
            signals.send(signal).await.expect("sent");
        }
    };
    let working = async {
        if there {
            setting.there(tasks).await
        } else {
            setting.here(tasks).await
        }
    };
    tokio::join!(working, sending).0
}

#[tokio::test]
async fn the_first_signal_cancels_in_a_daemon_and_the_results_are_whole() {
    let mut setting = Setting::new();
    let signals = [Signal::Hangup, Signal::Interrupt];
    let told = with_signals(&mut setting, true, &signals).await;
    assert_eq!(told.exit, Exit::Failures, "{}", told.err);
    let words: Vec<String> = told.outcomes().into_iter().map(|(_, word)| word).collect();
    assert_eq!(words, ["done", "cancelled", "skipped"]);
    assert!(told.err.contains("cancelling"), "{}", told.err);
    assert!(told.out.contains("1 of 3 done"), "{}", told.out);
}

#[tokio::test]
async fn the_first_signal_lets_running_tasks_end_here_and_leaves_the_rest() {
    let mut setting = Setting::new();
    let signals = [Signal::Hangup, Signal::Interrupt];
    let told = with_signals(&mut setting, false, &signals).await;
    assert_eq!(told.exit, Exit::Failures, "{}", told.err);
    let words: Vec<String> = told.outcomes().into_iter().map(|(_, word)| word).collect();
    assert_eq!(words, ["done", "done"]);
    assert!(told.err.contains("no further task begins"), "{}", told.err);
    let next = "1 task is left; to go on: marshal run --continue ";
    assert!(told.err.contains(next), "{}", told.err);
    assert_eq!(setting.fleet.stops(), [Stop::Drain]);
}

#[tokio::test]
async fn the_second_signal_kills() {
    let mut setting = Setting::new();
    setting.fleet.be_stubborn();
    let told = with_signals(&mut setting, false, &[Signal::Interrupt, Signal::Terminate]).await;
    assert_eq!(told.exit, Exit::Terminated);
    assert_eq!(setting.fleet.stops(), [Stop::Kill]);
    let words: Vec<String> = told.outcomes().into_iter().map(|(_, word)| word).collect();
    assert_eq!(words, ["done", "lost"], "what was killed is reported");

    let mut setting = Setting::new();
    setting.fleet.be_stubborn();
    let told = with_signals(&mut setting, true, &[Signal::Terminate, Signal::Interrupt]).await;
    assert_eq!(told.exit, Exit::Interrupted);
    assert!(setting.fleet.stops().is_empty(), "the daemon's fleet lives");
    assert_eq!(told.outcomes().len(), 1);
}

#[tokio::test]
async fn a_refusal_has_its_exit_code_and_leaves_old_results() {
    let mut setting = Setting::new();
    std::fs::write(setting.dir.path().join("out.jsonl"), "{}\n").expect("written");
    let told = setting.here(vec![spec("a", "refuse")]).await;
    assert_eq!(told.exit, Exit::CannotStart);
    assert_eq!(told.err, "error: the journal is read-only\n");
    assert_eq!(told.results, "{}\n");
    let mut pooled = spec("a", "done");
    pooled.pool = marshal_model::PoolName::new("none").ok();
    assert_eq!(
        Setting::new().here(vec![pooled.clone()]).await.exit,
        Exit::Usage
    );
    assert_eq!(Setting::new().there(vec![pooled]).await.exit, Exit::Usage);
}

/// A run whose tasks a and c ended before, in another order, and whose task b waits.
fn leave(setting: &Setting) -> Job {
    let run = RunId::new("r").expect("id");
    let id = |name: &str| TaskId::new(name).expect("id");
    let ended =
        |name, outcome| marshal_engine::api::test_fixtures::report(&run, &id(name), outcome);
    let before = vec![ended("c", TaskOutcome::Lost), ended("a", TaskOutcome::Done)];
    setting.fleet.leave(&run, before, vec![spec("b", "done")]);
    let tasks = vec![id("a"), id("b"), id("c")];
    Job::Continue { run, tasks }
}

fn check_whole(told: &RunOutput) {
    assert_eq!(told.exit, Exit::Failures, "c was lost: {}", told.err);
    let of = |id: &str, outcome: &str| (id.to_owned(), outcome.to_owned());
    let whole = [of("c", "lost"), of("a", "done"), of("b", "done")];
    assert_eq!(told.outcomes(), whole, "in the order of their ends");
    assert!(told.out.contains("2 of 3 done, 1 lost in "), "{}", told.out);
    let row = |id: &str| told.out.find(&format!("\n{id}     demo/"));
    assert!(row("a") < row("b") && row("b") < row("c"), "{}", told.out);
}

#[tokio::test]
async fn a_continued_run_shows_and_writes_all_of_it() {
    let mut setting = Setting::new();
    std::fs::write(setting.dir.path().join("out.jsonl"), "{}\n").expect("written");
    let mut order = setting.order(Vec::new());
    order.job = leave(&setting);
    let (streams, out, err) = Streams::captured(false);
    let mut signals = Signals::from_channel(setting.incoming.take().expect("once"));
    let exit = run_local(setting.fleet.clone(), order, streams, &mut signals).await;
    check_whole(&setting.run_output(exit, &out, &err));
}

#[tokio::test]
async fn a_run_that_a_daemon_goes_on_with_is_watched_from_its_beginning() {
    let mut setting = Setting::new();
    let mut order = setting.order(Vec::new());
    order.job = leave(&setting);
    let Job::Continue { run, .. } = order.job.clone() else {
        panic!("continue")
    };
    let runs = Arc::new(Runs::default());
    let ledger = resume_run(&setting.fleet, run).await.expect("taken up");
    runs.insert(&ledger);
    let serving = setting.serve(runs);
    let client = daemon(setting.dir.path()).await.expect("asked");
    let (streams, out, err) = Streams::captured(false);
    let mut signals = Signals::from_channel(setting.incoming.take().expect("once"));
    let exit = run_on_daemon(client.expect("there"), order, streams, &mut signals).await;
    serving.close().await;
    check_whole(&setting.run_output(exit, &out, &err));
}

#[tokio::test]
async fn a_run_that_is_not_there_cannot_be_continued() {
    let mut setting = Setting::new();
    let mut order = setting.order(Vec::new());
    order.job = Job::Continue {
        run: RunId::new("none").expect("id"),
        tasks: Vec::new(),
    };
    let (streams, out, err) = Streams::captured(false);
    let mut signals = Signals::from_channel(setting.incoming.take().expect("once"));
    std::fs::write(setting.dir.path().join("out.jsonl"), "{}\n").expect("written");
    let exit = run_local(setting.fleet.clone(), order, streams, &mut signals).await;
    let told = setting.run_output(exit, &out, &err);
    assert_eq!((told.exit, told.results.as_str()), (Exit::Usage, "{}\n"));
    assert_eq!(told.err, "error: there is no run none\n");
}

#[tokio::test]
async fn results_that_cannot_be_written_are_a_failure() {
    let mut setting = Setting::new();
    let mut order = setting.order(vec![spec("a", "done")]);
    order.results = Some(Results::open(std::path::Path::new("/dev/full")).expect("opened"));
    let (streams, out, err) = Streams::captured(false);
    let mut signals = Signals::from_channel(setting.incoming.take().expect("once"));
    let exit = run_local(setting.fleet.clone(), order, streams, &mut signals).await;
    assert_eq!(exit, Exit::Failures);
    assert!(
        err.text()
            .contains("the results in /dev/full are incomplete"),
        "{}",
        err.text()
    );
    assert!(out.text().contains("1 of 1 done"));
}

#[tokio::test]
async fn a_daemon_that_goes_away_leaves_what_is_known() {
    let setting = Setting::new();
    let serving = setting.serve(Arc::default());
    let client = daemon(setting.dir.path())
        .await
        .expect("asked")
        .expect("there");
    let (streams, out, err) = Streams::captured(false);
    let mut signals = Signals::from_channel(mpsc::channel(1).1);
    let tasks = vec![spec("a", "done"), spec("b", "hang")];
    let order = setting.order(tasks);
    let works = hangs(&setting.fleet);
    let gone = async {
        works.await;
        tokio::time::sleep(Duration::from_millis(150)).await;
        serving.close().await;
    };
    let (exit, ()) = tokio::join!(run_on_daemon(client, order, streams, &mut signals), gone);
    assert_eq!(exit, Exit::NoDaemon);
    assert!(
        out.text().contains("1 of 2 done, 1 without a result"),
        "{}",
        out.text()
    );
    assert!(
        err.text().contains("error: the supervisor is stopping"),
        "{}",
        err.text()
    );
}

#[test]
fn nothing_that_acts_on_a_terminal_is_shown_from_any_field() {
    let mut shown = 0;
    for (evil, json) in EVIL.iter().flat_map(|evil| [(evil, false), (evil, true)]) {
        let setting = Setting {
            json,
            ..Setting::new()
        };
        let (streams, out, err) = Streams::captured(true);
        let (report, notices) = hostile_items(evil);
        let mut order = setting.order(vec![spec("t", "x")]);
        order.verbosity = Verbosity::Verbose;
        let mut show = RunDisplay::new(order, streams, Some(&report.run));
        for notice in notices {
            show.item(Some(&RunStreamItem::Notice(notice)), None);
        }
        show.item(Some(&RunStreamItem::Ended(Arc::new(report))), None);
        show.item(Some(&RunStreamItem::Complete), None);
        assert_eq!(show.finish(), Exit::Failures);
        let told = setting.run_output(Exit::Failures, &out, &err);
        for text in [&told.out, &told.err, &told.results] {
            let acts = text.chars().find(|c| *c != '\n' && is_unsafe(*c));
            assert_eq!(acts, None, "{text:?}");
            shown += text.lines().count();
        }
        if json {
            // The same document: nothing was lost by the escapes.
            let kept = told.out.lines().any(|line| {
                let value: serde_json::Value = serde_json::from_str(line).expect(line);
                value["body"]["delta"] == **evil
            });
            assert!(kept, "{}", told.out);
        }
    }
    assert!(shown > 200, "the test shows something: {shown}");
}

#[tokio::test]
async fn a_signal_ends_the_wait_for_tasks_that_are_not_taken_in() {
    for there in [false, true] {
        let mut setting = Setting::new();
        let tasks = vec![spec("a", "stall")];
        let signals = setting.signals.clone();
        let send = async move {
            for signal in [Signal::Hangup, Signal::Interrupt] {
                tokio::time::sleep(Duration::from_millis(100)).await;
                signals.send(signal).await.expect("sent");
            }
        };
        let working = async {
            let most = Duration::from_secs(60);
            if there {
                timeout(most, setting.there(tasks)).await
            } else {
                timeout(most, setting.here(tasks)).await
            }
        };
        let (told, ()) = tokio::join!(working, send);
        let told = told.expect("ends at the signal");
        assert_eq!(told.exit, Exit::Failures);
        assert!(told.err.contains("interrupted before"), "{}", told.err);
        assert_eq!(told.out, "");
    }
}

#[tokio::test]
async fn a_second_signal_ends_a_run_whose_tasks_were_never_taken_in() {
    let mut setting = Setting::new();
    setting.fleet.be_stubborn();
    let signals = setting.signals.clone();
    let send = async move {
        for signal in [Signal::Interrupt, Signal::Terminate] {
            tokio::time::sleep(Duration::from_millis(100)).await;
            signals.send(signal).await.expect("sent");
        }
    };
    let working = timeout(
        Duration::from_secs(60),
        setting.here(vec![spec("a", "stall")]),
    );
    let (told, ()) = tokio::join!(working, send);
    assert_eq!(told.expect("ends").exit, Exit::Terminated);
}
