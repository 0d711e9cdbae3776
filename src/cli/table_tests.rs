//! The table as people see it.

use super::*;
use marshal_engine::api::test_fixtures::{EVIL, hostile_items, report, slot};
use marshal_fleet::FileChange;
use marshal_model::untrusted::is_unsafe;
use marshal_model::{RunId, TaskId, Usage};

const PIPE: Style = Style {
    width: 120,
    coloured: false,
};

fn row(id: &str, outcome: TaskOutcome) -> TaskReport {
    let run = RunId::new("r").expect("id");
    report(&run, &TaskId::new(id).expect("id"), outcome)
}

fn change(path: &str, kind: ChangeKind) -> FileChange {
    FileChange {
        path: path.into(),
        kind,
    }
}

fn four() -> Vec<TaskReport> {
    let mut rows = vec![
        row("task-1", TaskOutcome::Done),
        row("task-2", TaskOutcome::Done),
        row("task-3", TaskOutcome::Done),
        row("task-4", TaskOutcome::Denied),
    ];
    for (index, row) in rows.iter_mut().enumerate() {
        row.slot = Some(slot(u16::try_from(index).expect("small")));
        row.took = Duration::from_millis(300);
        row.allowed = 1;
        row.usage = Usage {
            input: 20,
            output: 8,
        };
    }
    rows[2].changes = vec![change("notes.txt", ChangeKind::Added)];
    rows[2].copy = Some("/var/lib/marshal/copies/x".into());
    rows[2].session = marshal_model::SessionId::new("s-3").ok();
    rows[3].allowed = 0;
    rows[3].denied = 1;
    rows[3].denied_by = vec!["net".to_owned()];
    rows
}

fn all(rows: &[TaskReport]) -> Vec<&TaskReport> {
    rows.iter().collect()
}

fn check(rows: &[TaskReport], style: Style, expect: &str) {
    let got = render(&all(rows), 0, Duration::from_millis(420), style);
    assert_eq!(got.trim(), expect.trim(), "\n{got}");
}

#[test]
fn a_first_run_looks_like_the_readme() {
    check(
        &four(),
        PIPE,
        "
task    slot    outcome  allowed  denied  approvals  tokens  time  changed
task-1  demo/0  done           1       0          0      28  0.3s  -
task-2  demo/1  done           1       0          0      28  0.3s  -
task-3  demo/2  done           1       0          0      28  0.3s  +notes.txt
task-4  demo/3  denied         0       1          0      28  0.3s  -

3 of 4 done, 1 denied in 0.4s
task-3: its changes: `marshal diff s-3`
task-4: denied by net
next: `marshal show task-4`, or `marshal report` for all of it
",
    );
}

#[test]
fn restarts_and_attempts_show_where_there_were_any() {
    let mut rows = vec![
        row("a", TaskOutcome::Done),
        row("b", TaskOutcome::Lost),
        row("c", TaskOutcome::Skipped),
    ];
    rows[0].restarts = 2;
    rows[0].backoff = Duration::from_millis(1540);
    rows[0].attempts = 2;
    rows[1].attempts = 2;
    rows[1].detail = Some("the child ended: signal 9".into());
    rows[2].slot = None;
    rows[2].detail = Some("every slot of pool demo is parked".into());
    check(
        &rows,
        PIPE,
        "
task  slot    outcome  allowed  denied  approvals  tokens  time  restarts  backoff  changed
a     demo/0  done           0       0          0       0  1.2s         2     1.5s  -
b     demo/0  lost           0       0          0       0  1.2s         0        -  -
c     -       skipped        0       0          0       0     -         0        -  -

1 of 3 done, 1 lost, 1 skipped in 0.4s
b: lost: the child ended: signal 9 (attempt 2)
c: skipped: every slot of pool demo is parked
next: `marshal show b`, or `marshal report` for all of it
",
    );
}

#[test]
fn every_line_fits_its_width() {
    let mut rows = four();
    rows[0].task = TaskId::new(&"x".repeat(128)).expect("id");
    rows[1].changes = (0..50)
        .map(|n| {
            change(
                &format!("src/a/very/long/path/{n}/mod.rs"),
                ChangeKind::Modified,
            )
        })
        .collect();
    rows[1].changes_cut = true;
    for width in [40, 80, 120, 200] {
        let style = Style {
            width,
            coloured: false,
        };
        let text = grid(&all(&rows), style);
        for line in text.lines() {
            assert!(line.width() <= width, "{width}: {line}");
        }
        assert_eq!(text.lines().count(), 5);
    }
    let style = Style {
        width: 90,
        coloured: false,
    };
    let text = grid(&all(&four()), style);
    assert!(text.contains("+notes.txt"), "{text}");
}

#[test]
fn colours_are_on_the_outcome_only_and_only_when_wanted() {
    let mut rows = four();
    rows[0].task = TaskId::new("done").expect("id");
    let coloured = Style {
        width: 120,
        coloured: true,
    };
    let text = render(&all(&rows), 0, Duration::ZERO, coloured);
    assert!(
        text.contains("done    demo/0  \u{1b}[32mdone\u{1b}[0m   "),
        "{text}"
    );
    assert!(text.contains("\u{1b}[33mdenied\u{1b}[0m "), "{text}");
    let bare = text
        .replace("\u{1b}[32m", "")
        .replace("\u{1b}[33m", "")
        .replace("\u{1b}[0m", "");
    assert_eq!(bare, render(&all(&rows), 0, Duration::ZERO, PIPE));
}

#[test]
fn denials_beside_success_and_unasked_calls_are_said() {
    let mut rows = [row("a", TaskOutcome::Done), row("b", TaskOutcome::Done)];
    rows[0].denied = 2;
    rows[0].denied_by = vec!["net".to_owned(), "guard:git".to_owned()];
    rows[1].unasked.denied = 3;
    let text = render(&all(&rows), 1, Duration::ZERO, PIPE);
    assert!(
        text.contains("2 of 3 done, 1 without a result in 0.0s"),
        "{text}"
    );
    assert!(
        text.contains("a: done, with 2 denied by net, guard:git\n"),
        "{text}"
    );
    assert!(
        text.contains("b: 3 tool calls ran without a permission request"),
        "{text}"
    );
}

#[test]
fn many_failures_are_cut_with_their_number() {
    let rows: Vec<_> = (0..50)
        .map(|n| TaskReport {
            detail: Some(format!("for reason {n}").into()),
            ..row(&format!("t{n}"), TaskOutcome::Failed)
        })
        .collect();
    let text = render(&all(&rows), 0, Duration::ZERO, PIPE);
    assert!(
        text.contains("\nand 30 more; --results FILE has all of them\nnext: "),
        "{text}"
    );
}

#[test]
fn nothing_that_acts_on_a_terminal_is_in_a_table() {
    for evil in EVIL {
        let (hostile, _) = hostile_items(evil);
        let text = render(&[&hostile], 0, Duration::ZERO, PIPE);
        assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)), "{text:?}");
        assert_eq!(text.lines().count(), 6, "{text}");
    }
}

/// A person is shown the changes, not sent into the agent's clone.
#[test]
fn a_branch_is_shown_by_a_command() {
    let mut rows = four();
    let session = marshal_model::SessionId::new("s-1").expect("id");
    rows[2].bundle = Some("/var/lib/marshal/copies/s-1,bundle".into());
    rows[2].session = Some(session);
    let text = render(&all(&rows), 0, Duration::ZERO, PIPE);
    let line = "task-3: its changes: `marshal diff s-1`; to get its branch: `marshal land s-1`\n";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains("copies"), "{text}");
}

#[test]
fn a_cost_has_a_column_where_one_is_known() {
    let mut rows = [row("a", TaskOutcome::Done), row("b", TaskOutcome::Done)];
    rows[0].cost = 1_250_000_000;
    check(
        &rows,
        PIPE,
        "
task  slot    outcome  allowed  denied  approvals  tokens   cost  time  changed
a     demo/0  done           0       0          0       0  $1.25  1.2s  -
b     demo/0  done           0       0          0       0      -  1.2s  -

2 of 2 done in 0.4s
",
    );
}

#[test]
fn a_narrow_screen_keeps_what_tells_most() {
    let mut rows = four();
    rows[0].cost = 20_330_000;
    rows[1].restarts = 1;
    let narrow = Style {
        width: 60,
        coloured: true,
    };
    let text = grid(&all(&rows), narrow);
    let expect = "\
task    outcome  denied  tokens     cost  time  changed
task-1  \u{1b}[32mdone\u{1b}[0m          0      28  $0.0203  0.3s  -
task-2  \u{1b}[32mdone\u{1b}[0m          0      28        -  0.3s  -
task-3  \u{1b}[32mdone\u{1b}[0m          0      28        -  0.3s  +notes.txt
task-4  \u{1b}[33mdenied\u{1b}[0m        1      28        -  0.3s  -
";
    assert_eq!(text, expect, "{text}");
}

#[test]
fn tasks_with_one_explanation_share_a_line() {
    let skipped = |id: &str| TaskReport {
        slot: None,
        detail: Some("every slot of the pool is parked".into()),
        ..row(id, TaskOutcome::Skipped)
    };
    let rows = [row("a", TaskOutcome::Failed), skipped("b"), skipped("c")];
    let text = render(&all(&rows), 0, Duration::ZERO, PIPE);
    assert!(
        text.contains("\nb, c: skipped: every slot of the pool is parked\n"),
        "{text}"
    );
}
