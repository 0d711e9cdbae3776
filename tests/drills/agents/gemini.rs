//! Gemini sends no input of its shell calls but their title: what is judged must be what runs.

use std::fmt::Write as _;

use crate::agents::bench::{Model, PATIENCE, alone, events, in_copy, result, run_output, start};
use crate::agents::five::{GEMINI, drill};
use crate::drill::Drill;

/// What the title of the one request of a task was.
fn title(drill: &Drill, session: &str, number: usize) -> String {
    let requested = events(drill, session, "permission_requested");
    let title = requested[number]["input"]["title"].as_str();
    title
        .unwrap_or_else(|| panic!("no title: {requested:?}"))
        .to_owned()
}

#[test]
fn the_title_that_is_judged_is_the_command_that_runs() {
    let _alone = alone();
    let model = Model::start();
    let drill = drill(&GEMINI, &model);
    let mut long = "touch".to_owned();
    while long.len() < 10_000 {
        let _ = write!(long, " long-{}.txt", long.len());
    }
    let commands = [
        // Both lines are judged, and both run.
        ("lines", "touch one.txt\ntouch two.txt", true),
        // The second line is what is denied; the first does not run either.
        ("hidden", "touch three.txt\nmkdir four", false),
        // Looks like what the agent writes around the directory.
        (
            "frame",
            "touch '[current working directory ]' '] (x).txt'",
            true,
        ),
        ("looks", "touch five.txt # [in .git]", true),
        ("bell", "touch 'a\u{7}b'", false),
        // Longer than any rule allows: denied, and whole on record.
        ("long", long.as_str(), false),
        // The agent would unwrap it before it runs it.
        ("wrapped", "sh -c 'touch six.txt'", false),
    ];
    let prompts = commands
        .map(|(id, command, _)| (id, format!("RUN: <<THE END\n{command}\nTHE END\nSAY: bye")));
    let tasks = prompts
        .each_ref()
        .map(|(id, prompt)| (*id, prompt.as_str()));
    let mut running = start(&drill, &model.key, "titles", &tasks);
    let _ = running.wait(2 * PATIENCE);
    let all = run_output(&drill, "titles");
    for (number, (id, command, allowed)) in commands.iter().enumerate() {
        let result = result(&drill, "titles", id);
        let session = result["session"].as_str().expect("a session");
        assert_eq!(title(&drill, session, number), *command, "{id}");
        assert_eq!(
            result["requests"]["allowed"],
            u64::from(*allowed),
            "{id}: {all}"
        );
        assert_eq!(
            result["requests"]["denied"],
            u64::from(!*allowed),
            "{id}: {all}"
        );
    }
    let there = |name: &str| in_copy(&result(&drill, "titles", "wrapped"), name).exists();
    for made in [
        "one.txt",
        "two.txt",
        "[current working directory ]",
        "] (x).txt",
        "five.txt",
    ] {
        assert!(there(made), "{made}: {all}");
    }
    for absent in ["three.txt", "four", "a\u{7}b", "six.txt", "long-5.txt"] {
        assert!(!there(absent), "{absent}: {all}");
    }
}
