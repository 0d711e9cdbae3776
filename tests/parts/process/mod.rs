//! How children start, end and are stopped, with a sandbox and without: real processes, as root and
//! as an ordinary user. The one thing that must hold everywhere: nothing is left.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use marshal_config::StopTimeouts;
use marshal_launch::{
    self as launch, ChildExit, LaunchPlan, LaunchedChild, RunError, SpawnError, Stage, Step,
};
use marshal_model::ExitStatus;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::children::{
    self, Place, below, is_alive, is_root, live_processes, plain, profile, run, spawner, until,
    walled,
};
use crate::programs::install;

/// Everything must be gone after this long, the kill of the supervisor included: by itself none of it goes, and
/// the ladder takes longer.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(20);

fn waits(each: Duration) -> StopTimeouts {
    StopTimeouts {
        goodbye: each,
        eof: each,
        int: each,
        term: each,
    }
}

/// The same script without a sandbox and in one.
fn both(place: &Place, script: &str) -> [LaunchPlan; 2] {
    let profile = profile();
    [plain(script), walled(&place.request(&profile), script)]
}

fn token() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// Leaves an orphan that forked twice, has a session of its own and cleared its environment.
fn orphan(token: &str) -> String {
    format!("(setsid env -i /bin/sh -c 'sleep 1000; : {token}' </dev/null >/dev/null 2>&1 &)")
}

async fn first_line(launched: &mut LaunchedChild) -> String {
    let mut line = String::new();
    tokio::io::BufReader::new(&mut launched.stdout)
        .read_line(&mut line)
        .await
        .unwrap();
    line
}

async fn wait_for_exit(ended: tokio::sync::oneshot::Receiver<ChildExit>) -> ChildExit {
    tokio::time::timeout(CLEANUP_TIMEOUT * 3, ended)
        .await
        .unwrap()
        .unwrap()
}

#[test]
fn all_of_this_holds_for_an_ordinary_user() {
    children::again_as_ordinary_user("process");
}

#[tokio::test]
async fn an_exit_code_and_a_signal_arrive_as_they_are() {
    let place = Place::new();
    for (script, expected) in [
        ("exit 0", ExitStatus::Code(0)),
        ("exit 7", ExitStatus::Code(7)),
        ("exit 137", ExitStatus::Code(137)),
        ("kill -9 $$", ExitStatus::Signal(9)),
        ("kill -TERM $$", ExitStatus::Signal(15)),
    ] {
        for plan in both(&place, script) {
            assert_eq!(run(plan).await.unwrap().status, expected, "{script}");
        }
    }
}

#[tokio::test]
async fn what_is_written_to_the_agent_comes_back_and_its_end_of_input_is_its_end() {
    let place = Place::new();
    for plan in both(&place, "cat; echo gone >&2; exit 3") {
        let mut launched = spawner().spawn(plan).await.unwrap();
        let (_keeper, end) = launch::keep(launched.process, waits(CLEANUP_TIMEOUT));
        launched.stdin.write_all(b"hello\n").await.unwrap();
        let mut line = [0; 6];
        launched.stdout.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"hello\n");
        drop(launched.stdin);
        let mut stderr = String::new();
        launched.stderr.read_to_string(&mut stderr).await.unwrap();
        assert_eq!(stderr, "gone\n");
        let end = wait_for_exit(end).await;
        assert_eq!(end.status, Some(ExitStatus::Code(3)));
        assert_eq!(
            (end.is_forced, end.survivors_killed, end.survivors_left),
            (false, 0, 0)
        );
        assert_eq!(end.sandbox_failure, None);
    }
}

#[tokio::test]
async fn environment_directory_and_limits_are_exactly_those_of_the_plan() {
    let open = std::fs::File::open("/etc/passwd").unwrap();
    rustix::io::fcntl_setfd(&open, rustix::io::FdFlags::empty()).unwrap();
    let mut plan = plain(
        "env | sort; pwd; ulimit -n; ulimit -c; i=0; while [ $i -lt 64 ]; do \
         [ -e /proc/self/fd/$i ] && printf '%s ' $i; i=$((i+1)); done",
    );
    plan.env.push(("ZED".to_owned(), "a b=c".to_owned()));
    plan.cwd = "/usr/bin".to_owned();
    let finished = run(plan).await.unwrap();
    drop(open);
    let seen = String::from_utf8(finished.stdout).unwrap();
    let lines: Vec<&str> = seen
        .lines()
        .filter(|line| !line.starts_with("MARSHAL_MARKER="))
        .collect();
    let expected = [
        "PATH=/usr/bin:/bin",
        "PWD=/usr/bin",
        "ZED=a b=c",
        "/usr/bin",
        "512",
        "0",
        "0 1 2 ",
    ];
    assert_eq!(lines, expected, "{seen}");
}

#[tokio::test]
async fn a_missing_program_or_directory_is_named() {
    let mut program = plain("true");
    program.argv = vec!["no-such-program".to_owned()];
    let mut path = plain("true");
    path.argv = vec!["/no/such/program".to_owned()];
    let mut cwd = plain("true");
    cwd.cwd = "/no/such/directory".to_owned();
    for (plan, named) in [
        (program, "no-such-program"),
        (path, "/no/such/program"),
        (cwd, "/no/such/directory"),
    ] {
        let failed = spawner().spawn(plan).await.unwrap_err();
        assert!(matches!(failed, SpawnError::Exec(_)), "{failed}");
        assert_eq!(failed.metric_result(), "exec_failed");
        assert!(failed.to_string().contains(named), "{failed}");
    }
}

#[tokio::test]
async fn a_helper_that_cannot_be_started_or_says_nothing_is_no_agents_end() {
    let gone = marshal_launch::Spawner::with_executable("/no/such/marshal".into(), marshal::BUILD)
        .unwrap();
    let failed = gone.spawn(plain("true")).await.unwrap_err();
    assert_eq!(failed.metric_result(), "fork_failed", "{failed}");
    let mute =
        marshal_launch::Spawner::with_executable("/bin/true".into(), marshal::BUILD).unwrap();
    let failed = mute.spawn(plain("true")).await.unwrap_err();
    assert_eq!(failed.metric_result(), "sandbox_failed", "{failed}");
    assert_eq!(failed.stage(), Some(Stage::Shim));
}

#[tokio::test]
async fn what_an_agent_leaves_behind_dies_with_it() {
    let place = Place::new();
    let token = token();
    for plan in both(&place, &format!("{} ; sleep 0.2; exit 5", orphan(&token))) {
        let launched = spawner().spawn(plan).await.unwrap();
        let (_keeper, end) = launch::keep(launched.process, waits(CLEANUP_TIMEOUT));
        let end = wait_for_exit(end).await;
        assert_eq!(end.status, Some(ExitStatus::Code(5)));
        assert!(end.survivors_killed >= 1, "{end:?}");
        assert_eq!(end.survivors_left, 0);
        assert_eq!(live_processes(&token), Vec::<u32>::new());
        assert!(!is_alive(launched.pid));
    }
}

#[tokio::test]
async fn a_forced_stop_leaves_nothing_however_busy_it_is() {
    let place = Place::new();
    let token = token();
    let script = format!(
        "trap '' INT TERM HUP; {}; (while :; do :; done) & echo up; while :; do sleep 1; done",
        orphan(&token)
    );
    for plan in both(&place, &script) {
        let mut launched = spawner().spawn(plan).await.unwrap();
        assert_eq!(first_line(&mut launched).await, "up\n");
        let (keeper, end) = launch::keep(launched.process, waits(CLEANUP_TIMEOUT));
        let begin = Instant::now();
        keeper.kill();
        let end = wait_for_exit(end).await;
        assert!(begin.elapsed() < CLEANUP_TIMEOUT, "{:?}", begin.elapsed());
        assert_eq!(
            (end.status, end.is_forced),
            (Some(ExitStatus::Signal(9)), true)
        );
        // Where the helper was too slow to do it, who was killed may still be on its way out.
        until(CLEANUP_TIMEOUT, "all are gone", || {
            live_processes(&token).is_empty() && live_processes(&launched.marker).is_empty()
        })
        .await;
        assert!(!is_alive(launched.pid));
    }
}

#[tokio::test]
async fn dropping_the_handle_or_the_process_is_a_forced_stop() {
    let place = Place::new();
    let token = token();
    let script = format!(
        "trap '' INT TERM HUP; {}; echo up; sleep 1000",
        orphan(&token)
    );
    for with_keeper in [true, false] {
        for plan in both(&place, &script) {
            let mut launched = spawner().spawn(plan).await.unwrap();
            assert_eq!(first_line(&mut launched).await, "up\n");
            let LaunchedChild {
                process,
                marker,
                pid,
                ..
            } = launched;
            if with_keeper {
                drop(launch::keep(process, waits(CLEANUP_TIMEOUT)).0);
            } else {
                drop(process);
            }
            until(CLEANUP_TIMEOUT, "all are gone", || {
                live_processes(&token).is_empty()
                    && live_processes(&marker).is_empty()
                    && !is_alive(pid)
            })
            .await;
        }
    }
}

#[tokio::test]
async fn dropping_a_start_on_its_way_leaves_nothing() {
    let place = Place::new();
    let token = token();
    for plan in both(&place, &format!(": {token}; sleep 1000")) {
        let spawner = spawner();
        for delay in 0..10 {
            let limit = Duration::from_micros(delay * 400);
            drop(tokio::time::timeout(limit, spawner.spawn(plan.clone())).await);
        }
        until(CLEANUP_TIMEOUT, "all are gone", || {
            live_processes(&token).is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn the_ladder_goes_from_int_over_term_to_kill() {
    let place = Place::new();
    let wait = Duration::from_millis(300);
    // Only the steps that nothing comes of are short.
    let steps = |short: u32| StopTimeouts {
        int: if short > 0 { wait } else { CLEANUP_TIMEOUT },
        term: if short > 1 { wait } else { CLEANUP_TIMEOUT },
        ..waits(CLEANUP_TIMEOUT)
    };
    for (trap, expected, at_least) in [
        ("trap 'exit 4' INT", ExitStatus::Code(4), 0),
        ("trap '' INT; trap 'exit 5' TERM", ExitStatus::Code(5), 1),
        ("trap '' INT TERM", ExitStatus::Signal(9), 2),
    ] {
        for plan in both(
            &place,
            &format!("{trap}; echo up; while :; do sleep 0.02; done"),
        ) {
            let mut launched = spawner().spawn(plan).await.unwrap();
            assert_eq!(first_line(&mut launched).await, "up\n");
            let (keeper, end) = launch::keep(launched.process, steps(at_least));
            let begin = Instant::now();
            keeper.stop_from(Step::Int);
            let end = wait_for_exit(end).await;
            assert_eq!(end.status, Some(expected), "{trap}");
            assert_eq!(end.is_forced, at_least == 2);
            assert!(
                begin.elapsed() >= wait * at_least,
                "{trap}: {:?}",
                begin.elapsed()
            );
            assert!(
                begin.elapsed() < wait * at_least + CLEANUP_TIMEOUT,
                "{trap}: {:?}",
                begin.elapsed()
            );
        }
    }
}

#[tokio::test]
async fn one_signal_is_only_that_signal() {
    let place = Place::new();
    for plan in both(
        &place,
        "trap 'echo int' INT; echo up; while :; do sleep 0.02; done",
    ) {
        let mut launched = spawner().spawn(plan).await.unwrap();
        let mut lines = tokio::io::BufReader::new(launched.stdout).lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "up");
        let (keeper, mut end) = launch::keep(launched.process, waits(Duration::from_millis(50)));
        keeper.signal(Step::Int);
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "int");
        let still = tokio::time::timeout(Duration::from_millis(300), &mut end).await;
        assert!(still.is_err(), "{still:?}");
        launched.stdin.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_helper_killed_from_outside_is_told_apart_and_leaves_nothing() {
    let place = Place::new();
    let token = token();
    for plan in both(
        &place,
        &format!("sh -c 'sleep 1000; : {token}' & echo up; wait"),
    ) {
        let mut launched = spawner().spawn(plan).await.unwrap();
        assert_eq!(first_line(&mut launched).await, "up\n");
        let (_keeper, end) = launch::keep(launched.process, waits(CLEANUP_TIMEOUT));
        let pid = i32::try_from(launched.pid).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let end = wait_for_exit(end).await;
        assert_eq!(end.status, None);
        assert_eq!(
            end.sandbox_failure.as_ref().unwrap().stage,
            Stage::Shim,
            "{end:?}"
        );
        until(CLEANUP_TIMEOUT, "all are gone", || {
            live_processes(&token).is_empty() && live_processes(&launched.marker).is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn a_run_is_bounded_in_time_and_in_what_is_kept() {
    let place = Place::new();
    let limit = Duration::from_millis(400);
    for plan in both(&place, "echo begin; sleep 1000") {
        let failed = launch::run_to_end(&spawner(), plan, limit, 100)
            .await
            .unwrap_err();
        assert!(matches!(failed, RunError::TimedOut { .. }), "{failed}");
    }
    for plan in both(&place, "head -c 3000000 /dev/zero; echo e >&2; exit 1") {
        let finished = launch::run_to_end(&spawner(), plan, CLEANUP_TIMEOUT * 3, 100)
            .await
            .unwrap();
        assert_eq!(
            (finished.stdout.len(), finished.stderr.as_slice()),
            (100, &b"e\n"[..])
        );
        assert!(finished.is_truncated);
        assert_eq!(finished.status, ExitStatus::Code(1));
    }
}

#[tokio::test]
async fn a_grandchild_that_holds_stdout_does_not_hold_up_the_end() {
    let place = Place::new();
    for plan in both(&place, "(setsid sleep 1000 &); echo out") {
        let begin = Instant::now();
        let finished = run(plan).await.unwrap();
        assert_eq!(finished.stdout, b"out\n");
        assert!(begin.elapsed() < CLEANUP_TIMEOUT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_start_at_once() {
    let place = Place::new();
    for plan in both(&place, "echo hello") {
        let spawner = spawner();
        let runs: Vec<_> = (0..24)
            .map(|_| {
                let (spawner, plan) = (spawner.clone(), plan.clone());
                tokio::spawn(async move {
                    launch::run_to_end(&spawner, plan, CLEANUP_TIMEOUT * 3, 100).await
                })
            })
            .collect();
        for run in runs {
            assert_eq!(run.await.unwrap().unwrap().stdout, b"hello\n");
        }
    }
}

#[tokio::test]
async fn nothing_outlives_a_killed_supervisor() {
    for sandbox_spec in ["none", "unshare"] {
        let token = token();
        let mut supervisor = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "process::act_as_supervisor",
                "--nocapture",
            ])
            .env("TEST_TOKEN", &token)
            .env("TEST_WALLS", sandbox_spec)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(supervisor.stdout.take().unwrap()).lines();
        assert!(
            lines.any(|line| line.unwrap().contains("all children are up")),
            "{sandbox_spec}"
        );
        let helpers = if sandbox_spec == "none" { 1 } else { 2 };
        // Per child: helpers, the busy shell, the orphan's shell and its sleep, which may be late.
        let mut tree = Vec::new();
        until(CLEANUP_TIMEOUT, "all of them are there", || {
            tree = below(supervisor.id());
            tree.len() >= 8 * (helpers + 3)
        })
        .await;
        supervisor.kill().unwrap();
        let took = until(CLEANUP_TIMEOUT, "all are gone", || {
            tree.iter().all(|pid| !is_alive(*pid))
                && live_processes(&format!("orphan-{token}")).is_empty()
        })
        .await;
        eprintln!("{sandbox_spec}: all {} gone after {took:?}", tree.len());
        supervisor.wait().unwrap();
    }
}

/// At whatever step its helpers are.
#[tokio::test]
async fn nothing_outlives_a_supervisor_killed_while_it_starts_children() {
    if !is_root() {
        // Who is a helper is seen by its program, which an ordinary user cannot read.
        return;
    }
    let place = Place::new();
    let own = place.path("marshal-of-this-test");
    install(&own, std::fs::File::open(children::marshal()).unwrap());
    let helpers = || -> Vec<u32> {
        let runs_own =
            |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == own);
        children::processes()
            .into_iter()
            .filter(runs_own)
            .filter(|pid| is_alive(*pid))
            .collect()
    };
    for round in 0..24_u64 {
        let token = token();
        let mut supervisor = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "process::act_as_supervisor",
                "--nocapture",
            ])
            .env("TEST_TOKEN", &token)
            .env(
                "TEST_WALLS",
                if round % 2 == 0 { "none" } else { "unshare" },
            )
            .env("MARSHAL_UNDER_TEST", &own)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        until(CLEANUP_TIMEOUT * 2, "the first helper is there", || {
            !helpers().is_empty()
        })
        .await;
        tokio::time::sleep(Duration::from_micros(round * 700)).await;
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
        until(CLEANUP_TIMEOUT, "all are gone", || {
            helpers().is_empty() && live_processes(&format!("orphan-{token}")).is_empty()
        })
        .await;
    }
}

#[tokio::test]
#[ignore = "a part of nothing_outlives_a_killed_supervisor"]
async fn act_as_supervisor() {
    let token = std::env::var("TEST_TOKEN").unwrap();
    let orphan = orphan(&format!("orphan-{token}"));
    let script = format!("{orphan}; sleep 0.3; echo up; while :; do :; done");
    let place = Place::new();
    let [bare, inside] = both(&place, &script);
    let plan = if std::env::var("TEST_WALLS").unwrap() == "none" {
        bare
    } else {
        inside
    };
    let spawner = spawner();
    let mut all = Vec::new();
    for _ in 0..8 {
        let mut launched = spawner.spawn(plan.clone()).await.unwrap();
        assert_eq!(first_line(&mut launched).await, "up\n");
        all.push(launched);
    }
    println!("all children are up");
    tokio::time::sleep(Duration::from_secs(60)).await;
    drop(all);
}
