//! What budgets count, keep over a restart and reset, and which requests a route lets pass.

use std::path::Path;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::mpsc;

use super::*;
use crate::actor_probe::probe;
use crate::clock::simulate_stamps;
use crate::messages::{PoolMsg, SessionMsg};
use marshal_config::Price;
use marshal_journal::SessionRow;
use marshal_model::{Amount, BudgetAction, BudgetLimits, SlotId, Usage};
use marshal_policy::budget::Budget;
use marshal_proxy::model_proxy::{BillingInfo, UsageMeter as _};
use marshal_proxy::route::{ModelRequest, Tokens};

/// 2026-11-22T12:00:00Z.
const NOON: i64 = 1_795_348_800_000_000;

fn id(text: &str) -> SessionId {
    SessionId::new(text).expect("an id")
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .tempdir()
        .expect("a directory")
}

fn journal(dir: &Path, sessions: &[&str]) -> Journal {
    let journal = Journal::open(dir).expect("a journal");
    for (index, session) in (0..).zip(sessions) {
        let begun = Write::SessionBegun(SessionRow {
            session: id(session),
            slot: SlotId {
                pool: PoolName::new("p").expect("a name"),
                index,
            },
            run: None,
            task: None,
            attempt: 1,
            at_us: 1,
        });
        journal.submit(Commit::new(vec![begun])).expect("taken");
    }
    journal
}

fn reopened(journal: Journal, dir: &Path) -> Journal {
    journal.close(Duration::from_secs(20)).expect("flushed");
    drop(journal);
    Journal::open(dir).expect("a journal")
}

fn most(tokens: u64, nano: u64) -> BudgetLimits {
    BudgetLimits {
        tokens: Some(tokens),
        nanodollars: Some(nano),
    }
}

fn priced() -> Prices {
    // Two dollars for a million input tokens, ten for a million output tokens.
    let price = Price {
        input: 2_000,
        output: 10_000,
        cache_read: 200,
        cache_write: 2_500,
    };
    Prices::from([("m-1".to_owned(), price)])
}

fn tokens(input: u64, output: u64) -> Tokens {
    Tokens {
        input,
        output,
        ..Tokens::default()
    }
}

fn bill(model: &str) -> BillingInfo {
    BillingInfo {
        model_request: ModelRequest {
            model: Some(model.to_owned()),
            ..ModelRequest::default()
        },
        is_free: false,
    }
}

fn spent_of(tracker: &SpendTracker) -> Option<(BudgetName, u64)> {
    tracker
        .spent_budget()
        .map(|spent| (spent.budget, spent.used))
}

fn slot() -> SlotId {
    SlotId {
        pool: PoolName::new("demo").expect("name"),
        index: 0,
    }
}

#[tokio::test]
async fn what_is_spent_outlives_the_supervisor_and_a_day_begins_anew() {
    simulate_stamps(NOON);
    let dir = directory();
    let budget = PoolBudget {
        session: most(500, u64::MAX),
        day: most(1_000, u64::MAX),
        pool: most(2_000, u64::MAX),
        then: BudgetAction::Deny,
    };
    let kept = journal(dir.path(), &["a", "b"]);
    let first = ledger("p", budget, &priced(), &kept);
    let (address, _mailbox) = probe();
    let tracker = SpendTracker::open(&first, &id("a"), address.clone());
    tracker.record_usage(&bill("m-1"), tokens(300, 100));
    assert_eq!(spent_of(&tracker), None);
    tracker.record_usage(&bill("m-1"), tokens(100, 0));
    assert_eq!(spent_of(&tracker), Some((BudgetName::SessionTokens, 500)));
    let other = SpendTracker::open(&first, &id("b"), address.clone());
    other.record_usage(&bill("m-1"), tokens(450, 0));
    assert_eq!(spent_of(&other), None);

    // A restart of the supervisor: only the journal is left.
    let kept = reopened(kept, dir.path());
    let second = ledger("p", budget, &priced(), &kept);
    let tracker = SpendTracker::open(&second, &id("a"), address.clone());
    assert_eq!(spent_of(&tracker), Some((BudgetName::SessionTokens, 500)));
    let other = SpendTracker::open(&second, &id("b"), address.clone());
    other.record_usage(&bill("m-1"), tokens(40, 0));
    assert_eq!(spent_of(&other), None);
    other.record_usage(&bill("m-1"), tokens(9, 1));
    assert_eq!(spent_of(&other), Some((BudgetName::SessionTokens, 500)));
    assert_eq!(second.spent_budget().map(|spent| spent.used), Some(1_000));

    // The clock passes midnight: the day's sum starts anew, the pool's sum stays.
    simulate_stamps(NOON + 86_400_000_000);
    assert_eq!(second.spent_budget(), None);
    let late = SpendTracker::open(&second, &id("c"), address.clone());
    late.record_usage(&bill("m-1"), tokens(499, 0));
    assert_eq!(spent_of(&late), None);
    let later = SpendTracker::open(&second, &id("d"), address.clone());
    later.record_usage(&bill("m-1"), tokens(499, 0));
    let last = SpendTracker::open(&second, &id("e"), address);
    last.record_usage(&bill("m-1"), tokens(2, 0));
    let spent = second.spent_budget().expect("spent");
    assert_eq!((spent.budget, spent.used), (BudgetName::DayTokens, 1_000));
    simulate_stamps(NOON + 2 * 86_400_000_000);
    let spent = second.spent_budget().expect("spent");
    assert_eq!((spent.budget, spent.used), (BudgetName::PoolTokens, 2_000));

    let kept = reopened(kept, dir.path());
    let reader = kept.reader().expect("a reader");
    let pool = PoolName::new("p").expect("a name");
    let day = |name: &str| reader.spend(&pool, Period::Day, name).expect("read").amount;
    assert_eq!(day("2026-11-22").tokens, 1_000);
    // 899 input tokens and 101 output tokens, each at its price.
    assert_eq!(day("2026-11-22").nanodollars, 899 * 2_000 + 101 * 10_000);
    assert_eq!(day("2026-11-23").tokens, 1_000);
}

#[tokio::test]
async fn what_an_agent_says_can_only_stop_it_earlier() {
    simulate_stamps(NOON);
    let dir = directory();
    let kept = journal(dir.path(), &["a"]);
    let ledger = ledger("p", PoolBudget::default(), &priced(), &kept);
    let (address, mut mailbox) = probe();
    let tracker = SpendTracker::open(&ledger, &id("a"), address);
    let budget = Budget {
        turn: most(1_000, 10_000_000),
        then: BudgetAction::Interrupt,
        ..Budget::default()
    };
    let report_input = |input| {
        tracker.record_reported_tokens(Usage { input, output: 0 });
    };
    let turn = tracker.start_turn(&budget);
    assert_eq!(tracker.turn_number(), turn);
    tracker.record_usage(&bill("m-1"), tokens(900, 0));
    // A report below the counted sum changes nothing.
    report_input(10);
    assert_eq!(tracker.turn_spend().tokens, 900);
    assert_eq!(spent_of(&tracker), None);
    // Reports are totals of the turn so far, not increments.
    report_input(950);
    report_input(950);
    report_input(900);
    assert_eq!(tracker.turn_spend().tokens, 950);
    report_input(1_000);
    assert_eq!(spent_of(&tracker), Some((BudgetName::TurnTokens, 1_000)));
    tracker.record_usage(&bill("m-1"), tokens(50, 0));
    assert_eq!(tracker.turn_spend().tokens, 1_000);
    // The session is notified once that it must end its turn.
    let message = mailbox.recv().await;
    let Some(SessionMsg::BudgetSpent { spent, turn: item }) = message else {
        panic!("{message:?}");
    };
    assert_eq!((spent.budget, item), (BudgetName::TurnTokens, turn));
    // When the next task has begun, the notification's turn number is an earlier one.
    tracker.start_task(None, &slot());
    assert_ne!(tracker.turn_number(), item);
    // The next turn begins at zero.
    assert!(tracker.start_turn(&budget) > turn);
    assert_eq!(spent_of(&tracker), None);
    assert!(tracker.turn_spend().is_zero());
    report_input(3);
    assert_eq!(tracker.turn_spend().tokens, 3);
    // The agent reports the session's cost so far; the limit here is a cent.
    tracker.record_reported_cost(0.005);
    assert_eq!(spent_of(&tracker), None);
    tracker.record_reported_cost(0.02);
    let spent = tracker.spent_budget().expect("spent");
    assert_eq!(spent.budget, BudgetName::TurnCost);
}

fn limits(run: &str, max_cost: u64) -> Arc<RunLimits> {
    let bounds = RunBounds {
        max_cost: Some(max_cost),
        ..RunBounds::default()
    };
    let run = RunId::new(run).expect("an id");
    RunLimits::start(&run, bounds, Amount::default(), Vec::new()).expect("bounds")
}

#[tokio::test]
async fn what_an_agent_said_too_much_hides_nothing_of_a_later_run_or_day() {
    simulate_stamps(NOON);
    let dir = directory();
    let kept = journal(dir.path(), &["a"]);
    let budget = PoolBudget {
        day: most(1_000_000, u64::MAX),
        ..PoolBudget::default()
    };
    let ledger = ledger("p", budget, &priced(), &kept);
    let (address, _mailbox) = probe();
    let tracker = SpendTracker::open(&ledger, &id("a"), address);
    tracker.set_model("m-1");
    let first = limits("first", 10_000_000_000);
    tracker.start_task(Some(Arc::clone(&first)), &slot());
    tracker.start_turn(&Budget::default());
    tracker.record_reported_tokens(Usage {
        input: 900_000,
        output: 0,
    });
    tracker.record_usage(&bill("m-1"), tokens(1_000, 0));
    // The larger of the reported and the counted sum, not both.
    assert_eq!(ledger.lock().day_total.tokens, 900_000);

    // A second run of the same session begins at zero, and all counted usage is added to it.
    let second = limits("second", 5_000_000);
    tracker.start_task(Some(Arc::clone(&second)), &slot());
    tracker.start_task(Some(Arc::clone(&second)), &slot());
    tracker.start_turn(&Budget::default());
    assert!(tracker.check_request(&bill("m-1")).is_ok());
    tracker.record_usage(&bill("m-1"), tokens(1_000, 0));
    tracker.start_task(Some(Arc::clone(&second)), &slot());
    tracker.record_usage(&bill("m-1"), tokens(1_500, 0));
    let spent = second.spent_budget().expect("spent");
    assert_eq!(spent.used, 2_500 * 2_000);
    assert!(tracker.check_request(&bill("m-1")).is_err());

    // The same for the next day.
    tracker.start_task(None, &slot());
    simulate_stamps(NOON + 86_400_000_000);
    tracker.record_usage(&bill("m-1"), tokens(999_000, 0));
    assert_eq!(ledger.lock().day_total.tokens, 999_000);
    assert_eq!(ledger.spent_budget(), None);
    tracker.record_usage(&bill("m-1"), tokens(1_000, 0));
    let spent = ledger.spent_budget().expect("spent");
    assert_eq!(
        (spent.budget, spent.used),
        (BudgetName::DayTokens, 1_000_000)
    );
    // Session and pool have one sum each over all of this; the counted one is the larger one now.
    assert_eq!(ledger.lock().pool_total.tokens, 1_003_500);

    let kept = reopened(kept, dir.path());
    let reader = kept.reader().expect("a reader");
    let pool = PoolName::new("p").expect("a name");
    let row = |period, name: &str| reader.spend(&pool, period, name).expect("read").amount;
    assert_eq!(row(Period::Day, "2026-11-22").tokens, 900_000);
    assert_eq!(row(Period::Day, "2026-11-23").tokens, 1_000_000);
    assert_eq!(row(Period::Session, "a").tokens, 1_003_500);
    assert_eq!(row(Period::Pool, "").tokens, 1_003_500);
}

#[tokio::test]
async fn a_clock_that_is_set_back_over_midnight_empties_no_budget() {
    const DAY: i64 = 86_400_000_000;
    simulate_stamps(NOON);
    let dir = directory();
    let kept = journal(dir.path(), &["a"]);
    let budget = PoolBudget {
        day: most(1_000, u64::MAX),
        ..PoolBudget::default()
    };
    let first = ledger("p", budget, &Prices::new(), &kept);
    let (address, _mailbox) = probe();
    let tracker = SpendTracker::open(&first, &id("a"), address);
    let used = |input| tracker.record_usage(&BillingInfo::default(), tokens(input, 0));
    let of_day = |ledger: &Ledger| ledger.lock().day_total.tokens;
    used(1_000);
    assert!(first.spent_budget().is_some());
    simulate_stamps(NOON + DAY);
    assert_eq!(first.spent_budget(), None);
    used(300);
    simulate_stamps(NOON);
    assert!(first.spent_budget().is_some());
    // It is not reported a second time.
    assert!(first.lock().reported.contains(&BudgetName::DayTokens));
    simulate_stamps(NOON + DAY);
    assert_eq!(of_day(&first), 300);
    assert!(first.lock().reported.is_empty());
    used(7);
    simulate_stamps(NOON - DAY);
    assert_eq!(of_day(&first), 0);

    // The same for days that only the journal has.
    simulate_stamps(NOON + DAY);
    let kept = reopened(kept, dir.path());
    let second = ledger("p", budget, &Prices::new(), &kept);
    assert_eq!(of_day(&second), 307);
    simulate_stamps(NOON);
    assert_eq!(of_day(&second), 1_000);
    simulate_stamps(NOON + 2 * DAY);
    assert_eq!(of_day(&second), 0);
}

/// A pool that only records that a run reached a limit, and whether its tasks are cancelled.
struct Ear;

impl Actor for Ear {
    type Msg = PoolMsg;
    type State = mpsc::Sender<bool>;
    type Arguments = mpsc::Sender<bool>;

    async fn pre_start(
        &self,
        _: ActorRef<PoolMsg>,
        to: mpsc::Sender<bool>,
    ) -> Result<mpsc::Sender<bool>, ActorProcessingErr> {
        Ok(to)
    }

    async fn handle(
        &self,
        _: ActorRef<PoolMsg>,
        message: PoolMsg,
        to: &mut mpsc::Sender<bool>,
    ) -> Result<(), ActorProcessingErr> {
        if let PoolMsg::RunLimitReached { cancels, .. } = message {
            to.send(cancels).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_cost_that_is_spent_when_the_time_is_over_cancels_what_still_runs() {
    simulate_stamps(NOON);
    let (to, mut heard) = mpsc::channel(8);
    let (pool, ended) = Ear::spawn(None, Ear, to).await.expect("an actor");
    let bounds = RunBounds {
        until_us: Some(NOON),
        grace_ms: Some(3_600_000),
        max_cost: Some(1_000),
        ..RunBounds::default()
    };
    let run = RunId::new("r").expect("an id");
    let limits =
        RunLimits::start(&run, bounds, Amount::default(), vec![pool.clone()]).expect("bounds");
    assert_eq!(heard.recv().await, Some(false));
    assert!(limits.is_over() && limits.acquire_job().is_none());
    let cost = |nanodollars| Amount {
        tokens: 5,
        nanodollars,
    };
    assert!(!limits.add_spend(cost(999)));
    assert!(limits.add_spend(cost(1)));
    assert_eq!(heard.recv().await, Some(true));
    // It is reported once.
    assert!(!limits.add_spend(cost(1)));
    pool.stop(None);
    ended.await.expect("no panic");
    assert_eq!(heard.recv().await, None);
}

#[tokio::test]
async fn a_route_passes_nothing_that_is_spent_or_cannot_be_counted() {
    simulate_stamps(NOON);
    let dir = directory();
    let kept = journal(dir.path(), &["a"]);
    let budget = PoolBudget {
        day: BudgetLimits {
            tokens: None,
            nanodollars: Some(1_000_000),
        },
        ..PoolBudget::default()
    };
    let ledger = ledger("p", budget, &priced(), &kept);
    let (address, _mailbox) = probe();
    let tracker = SpendTracker::open(&ledger, &id("a"), address);
    let refused = |bill: &BillingInfo| tracker.check_request(bill).expect_err("refused").message;
    assert!(tracker.needs_request_details());
    assert!(tracker.check_request(&bill("m-1")).is_ok());
    let mut later = bill("m-1");
    later.model_request.is_deferred = true;
    let uncounted = refused(&later);
    assert!(uncounted.contains("comes later"), "{uncounted}");
    let unknown = refused(&bill("m-2"));
    assert!(
        unknown.contains("m-2 has no price") && unknown.contains("[price.\"m-2\"]"),
        "{unknown}"
    );
    let unnamed = refused(&BillingInfo::default());
    assert!(unnamed.contains("names no model"), "{unnamed}");
    tracker.record_usage(&bill("m-1"), tokens(450, 0));
    assert!(tracker.check_request(&bill("m-1")).is_ok());
    // The answer that exceeds the limit is counted; the next request is refused.
    tracker.record_usage(&bill("m-1"), tokens(0, 100));
    let spent = refused(&bill("m-1"));
    assert!(
        spent.contains("the budget day_cost is spent: $0.0019 of $0.001"),
        "{spent}"
    );
    let free = BillingInfo {
        is_free: true,
        ..BillingInfo::default()
    };
    assert!(tracker.check_request(&free).is_ok());
}

#[tokio::test]
async fn a_closed_spend_tracker_is_opened_again_with_what_was_spent() {
    simulate_stamps(NOON);
    let dir = directory();
    let kept = journal(dir.path(), &["a", "b"]);
    let budget = PoolBudget {
        session: most(100, u64::MAX),
        ..PoolBudget::default()
    };
    let ledger = ledger("p", budget, &Prices::new(), &kept);
    let (address, _mailbox) = probe();
    for (session, for_good, left) in [("a", false, 60), ("b", true, 0)] {
        let tracker = SpendTracker::open(&ledger, &id(session), address.clone());
        tracker.record_usage(&BillingInfo::default(), tokens(60, 0));
        tracker.close(for_good);
        tracker.close(false);
        let again = SpendTracker::open(&ledger, &id(session), address.clone());
        again.record_usage(&BillingInfo::default(), tokens(41, 0));
        assert_eq!(
            spent_of(&again).map(|(_, used)| used),
            (left > 0).then_some(101)
        );
    }
}
