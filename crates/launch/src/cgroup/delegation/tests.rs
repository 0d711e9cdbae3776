//! The rules of cgroup v2 on a model of it, and on the kernel's with a controller that nobody needs.

use super::super::model::Model;
use super::*;

const WANTED: [&str; 3] = ["pids", "memory", "cpu"];
const ALL: [&str; 4] = ["cpu", "io", "memory", "pids"];
const SERVICE: &str = "/cg/system.slice/marshal.service";

fn tree(own: &str) -> Hierarchy {
    Hierarchy {
        mount: "/cg".into(),
        own: own.into(),
        read_only: false,
    }
}

#[test]
fn a_delegated_service_moves_below_its_group_and_back() {
    let mut model = Model::new(&ALL, false).with(SERVICE, &["7"]);
    model.delegated.insert(SERVICE.into());
    let handed = apply(&model, inspect(&model, &tree(SERVICE), 7, &WANTED), &[7]);
    assert_eq!(handed.controllers, ["cpu", "memory", "pids"]);
    assert_eq!((handed.moved, &handed.why), (true, &None));
    let of_service = |model: &Model| -> Vec<String> {
        let lines = model.display_lines().into_iter();
        lines.filter(|line| line.starts_with(SERVICE)).collect()
    };
    assert_eq!(
        of_service(&model),
        [
            format!("{SERVICE} procs[] subtree[cpu,memory,pids]"),
            format!("{SERVICE}/marshal.supervisor procs[7] subtree[]"),
        ]
    );
    // Whoever is started by it begins where it is now.
    let again = inspect(
        &model,
        &tree(&format!("{SERVICE}/{SUPERVISOR_GROUP}")),
        8,
        &WANTED,
    );
    assert_eq!(again.controllers, ["cpu", "memory", "pids"]);
    assert!(!again.moved && again.enabled.is_empty());

    revert(&model, &handed, 7);
    assert_eq!(
        of_service(&model),
        [format!("{SERVICE} procs[7] subtree[]")]
    );
}

#[test]
fn what_was_started_before_the_move_goes_along_and_gives_back() {
    let mut model = Model::new(&ALL, false).with(SERVICE, &["7"]);
    model.delegated.insert(SERVICE.into());
    let planned = inspect(&model, &tree(SERVICE), 7, &WANTED);
    // 9 is a program that another thread has just started.
    let mut model = model.with(SERVICE, &["7", "8", "9"]);
    model.delegated.insert(SERVICE.into());
    let handed = apply(&model, planned.clone(), &[8, 7]);
    assert!(handed.moved && handed.controllers.len() == 3, "{handed:?}");
    let of_service = |model: &Model| -> Vec<String> {
        let lines = model.display_lines().into_iter();
        lines.filter(|line| line.starts_with(SERVICE)).collect()
    };
    assert!(
        of_service(&model)[1].contains("procs[7,8,9]"),
        "{:?}",
        of_service(&model)
    );
    // The supervisor is gone, and its janitor knows no more than the plan.
    for gone in ["7", "9"] {
        model.write(Path::new("/cg/cgroup.procs"), gone).unwrap();
    }
    revert(&model, &planned, 8);
    assert_eq!(
        of_service(&model),
        [format!("{SERVICE} procs[8] subtree[]")]
    );
}

#[test]
fn a_group_that_is_not_ours_alone_is_left_as_it_is() {
    let shared = Model::new(&ALL, false).with(SERVICE, &["6", "7"]);
    let before = shared.display_lines();
    let why = |model: &Model, own: &str| {
        let handed = apply(model, inspect(model, &tree(own), 7, &WANTED), &[7]);
        assert_eq!(handed.controllers, [""; 0], "{handed:?}");
        handed.why.unwrap()
    };
    assert!(why(&shared, SERVICE).contains("not delegated to this program"));
    let mut shared = shared;
    shared.delegated.insert(SERVICE.into());
    assert!(why(&shared, SERVICE).contains("contains other processes"));
    assert_eq!(shared.display_lines(), before);
    // A child is no stranger.
    let mut own = Model::new(&ALL, false).with(SERVICE, &["6", "7"]);
    own.delegated.insert(SERVICE.into());
    own.parents.insert(6, 7);
    let handed = apply(&own, inspect(&own, &tree(SERVICE), 7, &WANTED), &[7]);
    assert!(handed.moved && handed.controllers.len() == 3, "{handed:?}");

    let mut locked = tree(SERVICE);
    locked.read_only = true;
    let handed = inspect(&shared, &locked, 7, &WANTED);
    assert!(handed.why.unwrap().contains("mounted read-only"));
}

#[test]
fn the_root_of_a_host_keeps_its_processes_and_that_of_a_namespace_does_not() {
    let host = Model::new(&ALL, false).with("/cg", &["1", "7"]);
    let handed = apply(&host, inspect(&host, &tree("/cg"), 7, &WANTED), &[7]);
    assert_eq!(handed.controllers, ["cpu", "memory", "pids"]);
    assert!(!handed.moved);

    let part = Model::new(&ALL, true).with("/cg", &["7"]);
    let handed = apply(&part, inspect(&part, &tree("/cg"), 7, &WANTED), &[7]);
    assert_eq!(handed.controllers, ["cpu", "memory", "pids"]);
    assert!(handed.moved);
}

#[test]
fn what_the_tree_has_not_is_said() {
    let some = Model::new(&["pids", "hugetlb"], false).with("/cg", &["7"]);
    let handed = apply(&some, inspect(&some, &tree("/cg"), 7, &WANTED), &[7]);
    assert_eq!(handed.controllers, ["pids"]);
    assert!(
        handed
            .why
            .unwrap()
            .contains("lacks controllers of cgroup v2")
    );
    let none = Model::new(&["hugetlb"], false).with("/cg", &["7"]);
    let handed = inspect(&none, &tree("/cg"), 7, &WANTED);
    assert_eq!(handed.controllers, [""; 0]);
    assert!(handed.why.unwrap().contains("cgroup v1 has them"));
}
