//! `results`: what the tasks of a run came to, and which changed the same files.

use std::fs;

use serde_json::{Value, json};

use crate::cli::POOL;
use crate::drill::Drill;

#[test]
fn the_tasks_of_a_run_are_listed_with_those_that_changed_the_same_files() {
    let drill = Drill::new(POOL);
    let ran = drill.run(&["results"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.stderr.contains("there is no journal"), "{}", ran.all());
    let prompts = [
        ("one", "write README.md one\nwrite made.txt x"),
        ("two", "read README.md"),
        ("three", "write README.md three"),
        ("four", "write .git/hooks/pre-commit x"),
    ];
    let lines = prompts.map(|(id, prompt)| json!({"id": id, "prompt": prompt}).to_string());
    fs::write(drill.path("tasks.jsonl"), lines.join("\n")).expect("tasks");
    let ran = drill.run(&["run", "tasks.jsonl"]);
    assert_eq!(ran.code, Some(1), "one was denied: {}", ran.all());

    let shown = drill.run(&["results"]);
    assert_eq!(shown.code, Some(0), "{}", shown.all());
    let rows: Vec<Vec<&str>> = shown
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows,
        [
            &[
                "task", "outcome", "branch", "files", "+/-", "check", "cost", "landed", "also",
                "changed", "by"
            ][..],
            &["one", "done", "2", "none", "three", "(1)"],
            &["two", "done", "0", "none"],
            &["three", "done", "1", "none", "one", "(1)"],
            &["four", "denied", "0", "none"],
        ],
        "{}",
        shown.all()
    );

    let listed = drill.run(&["--json", "results"]);
    let tasks: Vec<Value> = listed
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(
        tasks[0]["same_files"],
        json!([{"task": "three", "files": 1}])
    );
    assert_eq!(tasks[1]["changes"], json!([]));
    assert_eq!(tasks[3]["outcome"], "denied");
    let run = tasks[0]["run"].as_str().expect("a run");
    // By the end of its id as well, and a run that is not there is named.
    let again = drill.run(&["results", &run[run.len() - 8..]]);
    assert_eq!(again.stdout, shown.stdout, "{}", again.all());
    let unknown = drill.run(&["results", "nothing-like-it"]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.all());
    assert!(
        unknown.stderr.contains("nothing-like-it"),
        "{}",
        unknown.all()
    );
}
