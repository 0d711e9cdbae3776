//! Keeps the house: floors, what low floors must not name, file sizes, vocabulary.
//!
//! Reads the source as text; each rule names the file and the line that breaks it.

#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use marshal::model::{
    DecidedBy, Decision, EventKind, ExitClass, SlotState, TaskOutcome, TurnOutcome,
};

/// The floor of each folder (or lone file) below `src/`.
const FLOORS: &[(&str, u8)] = &[
    ("model", 0),
    ("limits", 0),
    ("skillpilot", 0),
    ("wire", 1),
    ("policy", 1),
    ("config", 1),
    ("telemetry", 1),
    ("plan", 1),
    ("dialect", 2),
    ("lifecycle", 2),
    ("egress", 2),
    ("route", 2),
    ("mcp", 2),
    ("launch", 3),
    ("sandbox", 3),
    ("journal", 3),
    ("proxy", 3),
    ("relay", 3),
    ("delegate", 3),
    ("store", 3),
    ("toolserver", 3),
    ("fleet", 4),
    ("chat", 5),
    ("api", 6),
    ("cli", 7),
];

/// What floors 0 to 2 must not name: IO, processes, an async runtime, a clock.
const NOT_BELOW_3: &[&str] = &[
    "tokio",
    "ractor::",
    "nix::",
    "rustix",
    "std::fs",
    "std::process",
    "std::net::Tcp",
    "std::thread",
    "Instant::now",
    "SystemTime::now",
    "std::env::",
];

const FILE_LINES: usize = 600;

struct Source {
    path: PathBuf,
    /// The first folder (or file stem) below `src/`.
    room: String,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        let name = self.path.file_stem().unwrap_or_default().to_string_lossy();
        name == "tests" || name.ends_with("_tests") || name == "testing"
    }

    /// The lines of the program itself: without comments and without the `tests` module, which
    /// stands at a file's end.
    fn program(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self
            .text
            .find("#[cfg(test)]\nmod tests {")
            .unwrap_or(self.text.len());
        let lines = self.text[..end].lines().enumerate();
        lines
            .map(|(at, line)| (at + 1, line.split("//").next().unwrap_or_default()))
            .filter(|(_, line)| !line.trim().is_empty())
    }
}

fn files_below(dir: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| entry.expect("a directory entry").path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files_below(&path, ending, found);
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let src = root().join("src");
    let mut paths = Vec::new();
    files_below(&src, ".rs", &mut paths);
    let read = |path: PathBuf| {
        let below = path.strip_prefix(&src).expect("below src");
        let first = below.components().next().expect("a name");
        let room = first.as_os_str().to_string_lossy();
        Source {
            room: room.trim_end_matches(".rs").to_owned(),
            text: fs::read_to_string(&path).expect("readable"),
            path: below.to_owned(),
        }
    };
    paths.into_iter().map(read).collect()
}

fn floor(room: &str) -> Option<u8> {
    FLOORS
        .iter()
        .find(|(name, _)| *name == room)
        .map(|(_, floor)| *floor)
}

/// Whether `text` has `word` at the beginning of a name (`Extractor::` does not name `ractor::`).
fn names(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

fn assert_none(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn a_file_uses_only_lower_floors_and_its_own_folder() {
    let mut broken = Vec::new();
    let sources = sources();
    for source in &sources {
        if matches!(source.room.as_str(), "lib" | "main" | "shim_main") {
            continue;
        }
        let Some(own) = floor(&source.room) else {
            broken.push(format!("{}: stands on no floor", source.path.display()));
            continue;
        };
        if source.is_test() {
            continue;
        }
        for (line, text) in source.program() {
            for used in text.split("crate::").skip(1) {
                let room: String = used
                    .chars()
                    .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                    .collect();
                let Some(other) = floor(&room) else { continue };
                if room != source.room && other >= own {
                    broken.push(format!(
                        "{}:{line}: {} (floor {own}) uses {room} (floor {other})",
                        source.path.display(),
                        source.room
                    ));
                }
            }
        }
    }
    assert!(
        sources.len() > 50,
        "the walk found only {} files",
        sources.len()
    );
    assert_none(&broken, "floors");
}

#[test]
fn floors_below_three_name_no_io_and_no_clock() {
    let mut broken = Vec::new();
    for source in sources() {
        if source.is_test() || floor(&source.room).is_none_or(|floor| floor >= 3) {
            continue;
        }
        for (line, text) in source.program() {
            for word in NOT_BELOW_3.iter().filter(|word| names(text, word)) {
                broken.push(format!("{}:{line}: names {word}", source.path.display()));
            }
        }
    }
    assert_none(&broken, "no IO and no clock below floor 3");
}

#[test]
fn policy_knows_no_protocol_and_launch_neither() {
    let mut broken = Vec::new();
    for source in sources() {
        if source.is_test() || !matches!(source.room.as_str(), "policy" | "launch" | "sandbox") {
            continue;
        }
        for (line, text) in source.program() {
            if text.contains("crate::dialect") || text.contains("permission_response") {
                broken.push(format!("{}:{line}", source.path.display()));
            }
        }
    }
    assert_none(&broken, "policy, launch and sandbox know no protocol");
}

#[test]
fn every_file_says_what_it_owns_and_stays_small() {
    let mut broken = Vec::new();
    let mut paths = Vec::new();
    for folder in ["src", "tests", "benches"] {
        let folder = root().join(folder);
        if folder.is_dir() {
            files_below(&folder, ".rs", &mut paths);
        }
    }
    for path in paths {
        let text = fs::read_to_string(&path).expect("readable");
        if !text.starts_with("//!") {
            broken.push(format!("{}: does not open with //!", path.display()));
        }
        let lines = text.lines().count();
        if lines > FILE_LINES {
            broken.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert_none(&broken, "files open with //! and have at most 600 lines");
}

#[test]
fn modules_are_named_by_nouns_of_the_field() {
    let mut broken = Vec::new();
    for source in sources() {
        let name = source
            .path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy();
        if matches!(
            &*name,
            "utils" | "util" | "manager" | "helper" | "helpers" | "common" | "misc"
        ) {
            broken.push(source.path.display().to_string());
        }
    }
    assert_none(&broken, "modules without a meaning");
}

#[test]
fn no_queue_is_unbounded_and_nothing_panics_by_plan() {
    let mut broken = Vec::new();
    for source in sources() {
        if source.is_test() {
            continue;
        }
        for (line, text) in source.program() {
            for word in [
                "unbounded_channel",
                "todo!",
                "unimplemented!",
                "mpsc::channel()",
            ] {
                if text.contains(word) {
                    broken.push(format!("{}:{line}: {word}", source.path.display()));
                }
            }
        }
    }
    assert_none(&broken, "bounds and finished code");
}

/// The words of `model/`, by the metric label (or document) that must list just them.
#[test]
fn metrics_and_documents_use_the_words_of_the_model() {
    let docs = fs::read_to_string(root().join("docs/metrics.md")).expect("docs/metrics.md");
    let rows: BTreeMap<&str, &str> = docs
        .lines()
        .filter(|line| line.starts_with("| `marshal_"))
        .filter_map(|line| Some((line.split('`').nth(1)?, line)))
        .collect();
    let check = |metric: &str, words: Vec<&str>| {
        let row = rows
            .get(metric)
            .unwrap_or_else(|| panic!("{metric} is not documented"));
        let list = row
            .rsplit_once('(')
            .and_then(|(_, rest)| rest.split_once(')'))
            .map(|(list, _)| list)
            .unwrap_or_default();
        let documented: BTreeSet<&str> = list.split(", ").collect();
        let spoken: BTreeSet<&str> = words.into_iter().collect();
        assert_eq!(documented, spoken, "{metric}");
    };
    let words = |all: Vec<&'static str>| all;
    check(
        "marshal_turns_total",
        words(TurnOutcome::ALL.iter().map(|w| w.word()).collect()),
    );
    check(
        "marshal_tasks_total",
        words(TaskOutcome::ALL.iter().map(|w| w.word()).collect()),
    );
    check(
        "marshal_pool_slots",
        words(SlotState::ALL.iter().map(|w| w.word()).collect()),
    );
    check(
        "marshal_child_exits_total",
        words(ExitClass::ALL.iter().map(|w| w.word()).collect()),
    );
    check(
        "marshal_events_total",
        words(EventKind::METRIC_WORDS.to_vec()),
    );
}

#[test]
fn words_of_one_list_are_distinct() {
    fn distinct(words: &[&str]) {
        let set: BTreeSet<_> = words.iter().collect();
        assert_eq!(set.len(), words.len(), "{words:?}");
        for word in words {
            assert!(
                word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{word}"
            );
        }
    }
    distinct(&EventKind::ALL.iter().map(|w| w.word()).collect::<Vec<_>>());
    distinct(&DecidedBy::ALL.iter().map(|w| w.word()).collect::<Vec<_>>());
    distinct(&Decision::ALL.iter().map(|w| w.word()).collect::<Vec<_>>());
    assert!(Decision::Deny > Decision::Ask && Decision::Ask > Decision::Allow);
}

#[test]
fn the_architecture_names_files_that_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let mut broken = Vec::new();
    let mut named = 0;
    // A drawing in a fence has backticks of its own.
    let prose: String = text.split("```").step_by(2).collect();
    for piece in prose.split('`').skip(1).step_by(2) {
        let is_rust = Path::new(piece).extension().is_some_and(|end| end == "rs");
        let is_file = is_rust || piece.ends_with('/');
        if !is_file || piece.contains(char::is_whitespace) || piece.contains('*') {
            continue;
        }
        named += 1;
        let found = [root().join(piece), root().join("src").join(piece)];
        if !found.iter().any(|path| path.exists()) {
            broken.push(piece.to_owned());
        }
    }
    assert!(named > 100, "only {named} files are named");
    assert_none(&broken, "ARCHITECTURE.md names what is not there");
}
