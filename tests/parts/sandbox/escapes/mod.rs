//! Attempts to get out, each with what stopped it and a control that shows that it would work.
//!
//! `prober/` makes the attempts, one program for inside and outside. Here it is run inside the sandbox
//! of `marshal sandbox exec`, once for each column of the table, and without a sandbox for the controls;
//! what comes of it is compared with `docs/escapes.md`. After a change that is meant,
//! `MARSHAL_UPDATE_ESCAPES=1` writes that file.

mod arena;
mod git;
mod leftovers;
mod table;
mod terminal;

use std::collections::BTreeMap;

pub(crate) use arena::prober;
use arena::{Arena, Column, Outcome, Who};

use crate::children::{has_groups, is_guest, is_root};

/// Once for each way to build a sandbox and each kind of supervisor.
const COLUMNS: &[Column] = &[
    Column {
        name: "root, standard",
        who: Who::Root,
        profile: "standard",
        launcher: None,
    },
    Column {
        name: "root, strict",
        who: Who::Root,
        profile: "strict",
        launcher: None,
    },
    Column {
        name: "user, standard",
        who: Who::User,
        profile: "standard",
        launcher: None,
    },
    Column {
        name: "bwrap, root, strict",
        who: Who::Root,
        profile: "strict",
        launcher: Some("bwrap"),
    },
    Column {
        name: "bwrap, user, standard",
        who: Who::User,
        profile: "standard",
        launcher: Some("bwrap"),
    },
    Column {
        name: "container, root, strict",
        who: Who::Root,
        profile: "strict",
        launcher: Some("container"),
    },
];

/// What a column lets through, and why: nothing else may get through anywhere.
const LET_THROUGH: &[(&str, &str, &str)] = &[
    ("user, standard", "memory_bomb", NO_GROUPS),
    ("bwrap, user, standard", "memory_bomb", NO_GROUPS),
    ("bwrap, user, standard", "inode_bomb", NO_INODES),
    ("bwrap, user, standard", "inode_bomb_shm", NO_INODES),
];
const NO_GROUPS: &str =
    "without root and without a control group that was delegated, nothing bounds memory";
const NO_INODES: &str = "bubblewrap bounds memory that is a file system in bytes, and has no option for its files; as \
     root marshal makes it";

/// Errors by which a control says that this host's kernel has no such thing at all.
const ABSENT: [&str; 6] = [
    "ENOENT",
    "ENOSYS",
    "EAFNOSUPPORT",
    "EPROTONOSUPPORT",
    "ESOCKTNOSUPPORT",
    "ENODEV",
];
/// Fewer controls that got through than these mean that the controls are broken.
const CONTROLS: usize = 200;

#[test]
fn no_attempt_gets_out_and_the_table_says_what_stopped_each() {
    let mut wrong = Vec::new();
    let mut columns = BTreeMap::new();
    for column in COLUMNS {
        // A root run has all columns; a user's only its own.
        if column.who == Who::Root && !is_root() {
            continue;
        }
        if is_guest() && column.launcher == Some("container") {
            println!(
                "not in the guest, which has no container engine: {}",
                column.name
            );
            continue;
        }
        let outcomes = Arena::new(column.who).attack_all(column);
        for (name, outcome) in &outcomes {
            let is_known = LET_THROUGH.iter().any(|(at, known, why)| {
                let is_held =
                    *why == NO_GROUPS && column.who == Who::User && has_groups() && !is_root();
                *at == column.name && known == name && !is_held
            });
            match outcome {
                Outcome::Broken(why) => wrong.push(format!("{}: {name}: {why}", column.name)),
                Outcome::Through(detail) if !is_known => {
                    wrong.push(format!("{}: {name} GOT THROUGH {detail}", column.name));
                }
                Outcome::Blocked(symptom) if is_known => {
                    wrong.push(format!("{}: {name} is blocked now: {symptom}", column.name));
                }
                _ => {}
            }
        }
        columns.insert(column.name, outcomes);
    }
    let attempts = arena::attempts();
    for (name, outcomes) in &columns {
        for attempt in &attempts {
            if !outcomes.contains_key(&attempt.name) {
                wrong.push(format!("{name}: {} did not run", attempt.name));
            }
        }
    }
    let controls = is_root().then(|| controls(&attempts, &mut wrong));
    if is_guest() {
        // Another kernel stops some of them elsewhere: that each is stopped is what counts.
        for (name, outcomes) in &columns {
            let is_blocked = |outcome: &&Outcome| matches!(outcome, Outcome::Blocked(_));
            let blocked = outcomes.values().filter(is_blocked).count();
            println!("{name}: {blocked} of {} attempts blocked", outcomes.len());
        }
    } else {
        wrong.extend(table::compare(&attempts, controls.as_ref(), &columns));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the attempts do without a sandbox, by name.
fn controls(attempts: &[arena::Attempt], wrong: &mut Vec<String>) -> BTreeMap<String, String> {
    let as_root = Arena::new(Who::Root).control();
    let as_user = Arena::new(Who::User).control();
    let mut reported = BTreeMap::new();
    let mut through = 0;
    for attempt in attempts {
        let (outcome, word) = match attempt.control.as_str() {
            "root" => (as_root.get(&attempt.name), "as root"),
            "permission" => (as_root.get(&attempt.name), "past the check"),
            "user" => (as_user.get(&attempt.name), "as a user"),
            _ => {
                reported.insert(attempt.name.clone(), "none".to_owned());
                continue;
            }
        };
        let word = match outcome {
            Some(Outcome::Through(_)) => {
                through += 1;
                word.to_owned()
            }
            Some(Outcome::Blocked(symptom)) if ABSENT.contains(&symptom.as_str()) => {
                format!("not on this host: {symptom}")
            }
            Some(Outcome::Blocked(symptom)) if is_guest() => {
                println!("not on the guest: {}: {symptom}", attempt.name);
                continue;
            }
            other => {
                wrong.push(format!("the control of {} failed: {other:?}", attempt.name));
                continue;
            }
        };
        reported.insert(attempt.name.clone(), word);
    }
    if through < CONTROLS {
        wrong.push(format!("only {through} controls got through"));
    }
    reported
}
