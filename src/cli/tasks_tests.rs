//! Task files, prompts and everything that can be wrong with them.

use std::os::unix::ffi::OsStringExt as _;

use super::*;

fn pools(names: &[&str]) -> Vec<PoolName> {
    names
        .iter()
        .map(|name| PoolName::new(name).expect("name"))
        .collect()
}

/// Reads one task file with these contents, in a directory with a `src` in it.
fn from_file(contents: impl AsRef<[u8]>, names: &[&str]) -> Result<Vec<TaskSpec>, TasksError> {
    let dir = tempfile::tempdir().expect("directory");
    std::fs::create_dir(dir.path().join("src")).expect("made");
    std::fs::write(dir.path().join("t.jsonl"), contents).expect("written");
    let around = TaskContext {
        pool: None,
        pools: &pools(names),
        directory: dir.path(),
        stdin: &mut std::io::empty(),
    };
    read(&["t.jsonl".into()], around)
}

fn from_arguments(arguments: &[&str], stdin: &str) -> Result<Vec<TaskSpec>, TasksError> {
    let dir = tempfile::tempdir().expect("directory");
    let around = TaskContext {
        pool: None,
        pools: &pools(&["demo"]),
        directory: dir.path(),
        stdin: &mut stdin.as_bytes(),
    };
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    read(&arguments, around)
}

fn check(contents: &str, expect: &[&str]) {
    let error = from_file(contents, &["demo", "other"]).expect_err(contents);
    let text = error.to_string();
    assert!(
        !text
            .chars()
            .any(|c| c != '\n' && marshal_model::untrusted::is_unsafe(c)),
        "{text:?}"
    );
    for part in expect {
        assert!(text.contains(part), "{contents}: {text}");
    }
    assert_eq!(error.problems.len(), expect.len(), "{contents}: {text}");
}

/// A bad line, and what is said about it.
const BAD: &[(&str, &str)] = &[
    (
        "nonsense",
        "t.jsonl:2: the line is not a JSON object; write",
    ),
    ("[1]", "t.jsonl:2: the line is not a JSON object"),
    (
        "{\"prompt\"",
        "t.jsonl:2: the line is not a JSON object: EOF",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\"} x",
        "trailing characters",
    ),
    ("{\"pool\":\"demo\"}", "t.jsonl:2: key `prompt` is missing"),
    ("{\"prompt\":1}", "key `prompt` is a number; give a string"),
    ("{\"prompt\":\" \\n\"}", "key `prompt` is empty"),
    (
        "{\"prompt\":\"p\"}",
        "key `pool` is needed; the pools are demo, other",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"x\\u001b\"}",
        "is not the name of a pool: \"x\\u{1b}\"; the pools are demo, other",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":3}",
        "key `pool` is a number; give a pool's name",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"promt\":1}",
        "key `promt` is unknown; the keys are id, prompt",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"\\u001b[2J\":1}",
        "key `\\u{1b}[2J` is unknown",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"prompt\":\"q\"}",
        "key `prompt` is given twice",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"id\":\"a b\"}",
        "key `id` is \"a b\"; give letters",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"id\":\"latest\"}",
        "key `id` is \"latest\"",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"id\":null}",
        "key `id` is null; give a string",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"attempts\":0}",
        "key `attempts` is 0; give a number from 1",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"attempts\":101}",
        "key `attempts` is 101",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"attempts\":1.5}",
        "key `attempts` is a number; give a whole number",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"attempts\":-1}",
        "key `attempts` is a number; give a whole number",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"priority\":101}",
        "key `priority` is not an integer from -100 to 100",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"priority\":\"high\"}",
        "key `priority` is not an integer from -100 to 100",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"check\":\"make\"}",
        "key `check` is a string; give an array",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"check\":[]}",
        "key `check` is empty",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"check\":[\"\"]}",
        "key `check` has no program",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"check\":[\"a\",1]}",
        "key `check` has an item that is not a string",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"check\":[\"a\\u0000\"]}",
        "NUL",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"workspace\":\"none\"}",
        "key `workspace` is not a directory: /",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"workspace\":\"\"}",
        "key `workspace` is empty",
    ),
    (
        "{\"prompt\":\"p\",\"pool\":\"demo\",\"workspace\":true}",
        "key `workspace` is true or false",
    ),
];

#[test]
fn every_error_names_its_line_and_its_key() {
    let good = "{\"prompt\":\"p\",\"pool\":\"demo\"}";
    for (line, expect) in BAD {
        check(&format!("{good}\n{line}\n{good}\n"), &[expect]);
    }
    check("\n\n", &["t.jsonl: has no tasks"]);
    check("", &["t.jsonl: has no tasks"]);
}

#[test]
fn all_errors_are_listed_at_once() {
    check(
        "{\"x\":1,\"attempts\":0}\n\nbad\n{\"id\":\"a\",\"prompt\":\"p\",\"pool\":\"demo\"}\n{\"id\":\"a\",\"prompt\":\"p\",\"pool\":\"demo\"}\n",
        &[
            "t.jsonl:1: key `x` is unknown",
            "t.jsonl:1: key `attempts` is 0",
            "t.jsonl:1: key `prompt` is missing",
            "t.jsonl:3: the line",
            "t.jsonl:5: key `id` is used twice: a",
        ],
    );
    let error = from_file("bad\n".repeat(limits::TASK_ERRORS + 7), &["demo"]).expect_err("bad");
    assert_eq!(error.problems.len(), limits::TASK_ERRORS);
    assert!(error.to_string().ends_with("and 7 more"));
}

#[test]
fn bytes_that_are_no_text_and_files_that_are_too_long_are_refused() {
    let error = from_file(b"{\"prompt\":\"\xff\"}\n", &["demo"]).expect_err("bad");
    assert_eq!(error.to_string(), "t.jsonl:1: the line is not UTF-8");
    let long = "x".repeat(limits::PROMPT_BYTES + 1);
    let error = from_file(format!("{{\"prompt\":\"{long}\"}}"), &["demo"]).expect_err("long");
    assert!(
        error.to_string().contains("key `prompt` has 1048577 bytes"),
        "{error}"
    );
    let huge = vec![b' '; limits::TASK_FILE_BYTES + 1];
    let error = from_file(huge, &["demo"]).expect_err("huge");
    assert!(error.to_string().contains("is longer than"), "{error}");
}

#[test]
fn a_whole_task_is_read_as_it_stands() {
    let contents = "\u{feff}{\"id\":\"a.1\",\"prompt\":\"say hi\\nrun ls\",\"pool\":\"demo\",\"workspace\":\"src\",\"attempts\":3,\"priority\":-7,\"check\":[\"make\",\"test\"]}\r\n";
    let tasks = from_file(contents, &["demo", "other"]).expect("read");
    let [task] = tasks.as_slice() else {
        panic!("one task");
    };
    assert_eq!(task.id.as_str(), "a.1");
    assert_eq!(task.prompt.raw(), "say hi\nrun ls");
    assert_eq!(task.pool, PoolName::new("demo").ok());
    assert!(
        task.workspace
            .as_ref()
            .is_some_and(|p| p.is_absolute() && p.ends_with("src"))
    );
    assert_eq!((task.attempts, task.priority), (Some(3), -7));
    assert_eq!(task.check, Some(vec!["make".to_owned(), "test".to_owned()]));
    let sparse =
        "{\"prompt\":\"p\",\"pool\":null,\"workspace\":null,\"attempts\":null,\"check\":null}";
    let task = &from_file(sparse, &["demo"]).expect("read")[0];
    assert!(task.pool.is_none() && task.workspace.is_none() && task.check.is_none());
}

#[test]
fn prompts_files_and_standard_input_go_together_and_ids_do_not_collide() {
    let stdin = "{\"id\":\"task-2\",\"prompt\":\"given\"}\n{\"prompt\":\"made\"}\n";
    let tasks = from_arguments(&["read README.md", "-", "list src"], stdin).expect("read");
    let ids: Vec<(&str, &str)> = tasks
        .iter()
        .map(|spec| (spec.id.as_str(), spec.prompt.raw()))
        .collect();
    assert_eq!(
        ids,
        [
            ("task-1", "read README.md"),
            ("task-2", "given"),
            ("task-3", "made"),
            ("task-4", "list src"),
        ]
    );
}

#[test]
fn what_names_no_file_is_a_prompt_unless_it_looks_like_one() {
    let tasks = from_arguments(&["see missing.jsonl", "src", "v1.2"], "").expect("read");
    assert_eq!(tasks.len(), 3);
    for missing in ["missing.jsonl", "tasks/night.json", "plan.md"] {
        let error = from_arguments(&["say hi", missing], "").expect_err(missing);
        let wanted = format!("{missing}: there is no such file");
        assert!(error.to_string().starts_with(&wanted), "{error}");
    }
}

#[test]
fn no_tasks_and_bad_arguments_are_errors() {
    let error = from_arguments(&[], "").expect_err("none");
    assert!(error.to_string().contains("there are none"), "{error}");
    let error = from_arguments(&["  "], "").expect_err("empty");
    assert!(error.to_string().contains("is empty"), "{error}");
    let error = from_arguments(&["-", "-"], "{\"prompt\":\"p\"}").expect_err("twice");
    assert!(error.to_string().contains("is given twice"), "{error}");
    let error = from_arguments(&["-"], "").expect_err("nothing in it");
    assert!(
        error.to_string().contains("standard input: has no task"),
        "{error}"
    );
    let around = TaskContext {
        pool: None,
        pools: &pools(&["demo"]),
        directory: Path::new("/"),
        stdin: &mut std::io::empty(),
    };
    let error = read(&[OsString::from_vec(vec![b'a', 0xff])], around).expect_err("bytes");
    assert!(error.to_string().contains("is not UTF-8"), "{error}");
}
