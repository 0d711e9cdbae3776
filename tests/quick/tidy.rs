//! Keeps what the compiler cannot: what crates that decide must not name, heads of files, vocabulary.
//!
//! Reads the source as text; each rule names the file and the line that breaks it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use marshal_model::{
    DecidedBy, Decision, EventKind, ExitClass, SlotState, TaskOutcome, TurnOutcome,
};

/// Crates, and modules of crates, that decide and do nothing else.
const PURE: &[&str] = &[
    "crates/model",
    "crates/wire",
    "crates/policy",
    "crates/config",
    "crates/telemetry",
    "crates/dialect",
    "crates/proxy/src/egress",
    "crates/proxy/src/git",
    "crates/proxy/src/route",
    "crates/proxy/src/forge",
];

/// What these must not name: IO, processes, an async runtime, a clock.
const NOT_IN_PURE: &[&str] = &[
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

struct Source {
    /// From the root of the workspace.
    path: PathBuf,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        let name = self.path.file_stem().unwrap_or_default().to_string_lossy();
        name == "tests"
            || name.ends_with("_tests")
            || name == "testing"
            || self
                .path
                .iter()
                .any(|part| part == "test_fixtures" || part == "tests")
    }

    /// The lines of the program itself: without comments and without the `tests` module, which
    /// stands at a file's end.
    fn program(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self
            .text
            .find("#[cfg(test)]\nmod tests {")
            .unwrap_or(self.text.len());
        Self::code(&self.text[..end])
    }

    /// The same lines, with those of the `tests` module.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        Self::code(&self.text)
    }

    fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
        text.lines()
            .enumerate()
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

/// The folders that hold the program: `src`, and `src` of each crate.
fn source_folders() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).expect("crates/");
    let crates = crates.map(|entry| entry.expect("an entry").path().join("src"));
    std::iter::once(root().join("src")).chain(crates).collect()
}

fn sources() -> Vec<Source> {
    sources_below(source_folders())
}

fn sources_below(folders: impl IntoIterator<Item = PathBuf>) -> Vec<Source> {
    let mut paths = Vec::new();
    for folder in folders {
        files_below(&folder, ".rs", &mut paths);
    }
    let read = |path: PathBuf| Source {
        text: fs::read_to_string(&path).expect("readable"),
        path: path
            .strip_prefix(root())
            .expect("below the root")
            .to_owned(),
    };
    paths.into_iter().map(read).collect()
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
fn what_decides_names_no_io_and_no_clock() {
    let mut broken = Vec::new();
    let sources = sources();
    for place in PURE {
        let inside = |source: &&Source| source.path.starts_with(place) && !source.is_test();
        assert!(sources.iter().any(|source| inside(&source)), "{place}");
        for source in sources.iter().filter(inside) {
            for (line, text) in source.program() {
                for word in NOT_IN_PURE.iter().filter(|word| names(text, word)) {
                    broken.push(format!("{}:{line}: names {word}", source.path.display()));
                }
            }
        }
    }
    assert_none(&broken, "no IO and no clock in what decides");
}

#[test]
fn policy_knows_no_protocol_and_launch_neither() {
    let mut broken = Vec::new();
    for source in sources() {
        let knows_none = ["crates/policy", "crates/launch", "crates/sandbox"];
        if source.is_test()
            || !knows_none
                .iter()
                .any(|place| source.path.starts_with(place))
        {
            continue;
        }
        for (line, text) in source.program() {
            if text.contains("marshal_dialect") || text.contains("permission_response") {
                broken.push(format!("{}:{line}", source.path.display()));
            }
        }
    }
    assert_none(&broken, "policy, launch and sandbox know no protocol");
}

#[test]
fn every_file_says_what_it_owns() {
    let mut broken = Vec::new();
    let mut paths = Vec::new();
    let others = ["tests", "benches"].map(|folder| root().join(folder));
    for folder in source_folders().into_iter().chain(others) {
        files_below(&folder, ".rs", &mut paths);
    }
    for path in paths {
        let text = fs::read_to_string(&path).expect("readable");
        if !text.starts_with("//!") {
            broken.push(format!("{}: does not open with //!", path.display()));
        }
    }
    assert_none(&broken, "files open with //!");
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

/// Names that say nothing to a reader who knows the field: bare participles, and pictures.
const PRIVATE_NAMES: &[&str] = &[
    "alive", "aside", "asked", "came", "counted", "desk", "dice", "door", "doors", "far", "fed",
    "found", "gallery", "gentle", "given", "go_on", "hands", "heard", "held", "hostile", "kept",
    "kin", "leads", "lobby", "looked", "manners", "morning", "night", "over", "parties", "patient",
    "people", "places", "purse", "reins", "room", "said", "says", "scales", "seen", "shelf",
    "shown", "spoken", "taken", "taps", "told", "tongue", "walls", "weak", "words",
];

#[test]
fn no_item_has_a_private_name() {
    let mut broken = Vec::new();
    let tests = ["tests", "benches"].map(|folder| root().join(folder));
    for source in sources_below(source_folders().into_iter().chain(tests)) {
        for (at, line) in source.lines() {
            let mut words = line
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|word| !word.is_empty());
            let is_item =
                |word: &&str| matches!(*word, "fn" | "struct" | "enum" | "trait" | "mod" | "type");
            let is_code = !line.trim_start().starts_with("//");
            let before = |word: &&str| {
                matches!(
                    *word,
                    "pub" | "crate" | "super" | "in" | "self" | "const" | "async"
                )
            };
            let Some(kind) = words
                .by_ref()
                .find(|word| !before(word))
                .filter(|word| is_code && is_item(word))
            else {
                continue;
            };
            let Some(name) = words.next() else { continue };
            let as_module = name
                .chars()
                .enumerate()
                .fold(String::new(), |mut text, (at, c)| {
                    if c.is_uppercase() && at > 0 {
                        text.push('_');
                    }
                    text.extend(c.to_lowercase());
                    text
                });
            if PRIVATE_NAMES.contains(&as_module.as_str()) {
                broken.push(format!("{}:{at}: {kind} {name}", source.path.display()));
            }
        }
    }
    assert_none(&broken, "items with the standard terms of the field");
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
        words(TurnOutcome::ALL.iter().map(|w| w.as_str()).collect()),
    );
    check(
        "marshal_tasks_total",
        words(TaskOutcome::ALL.iter().map(|w| w.as_str()).collect()),
    );
    check(
        "marshal_pool_slots",
        words(SlotState::ALL.iter().map(|w| w.as_str()).collect()),
    );
    check(
        "marshal_child_exits_total",
        words(ExitClass::ALL.iter().map(|w| w.as_str()).collect()),
    );
    check(
        "marshal_events_total",
        words(EventKind::METRIC_LABELS.to_vec()),
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
    distinct(
        &EventKind::ALL
            .iter()
            .map(|w| w.as_str())
            .collect::<Vec<_>>(),
    );
    distinct(
        &DecidedBy::ALL
            .iter()
            .map(|w| w.as_str())
            .collect::<Vec<_>>(),
    );
    distinct(&Decision::ALL.iter().map(|w| w.as_str()).collect::<Vec<_>>());
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
        let in_crate = piece
            .split_once('/')
            .map(|(name, file)| root().join("crates").join(name).join("src").join(file));
        let places = [root().join(piece), root().join("src").join(piece)];
        if !places.iter().chain(&in_crate).any(|path| path.exists()) {
            broken.push(piece.to_owned());
        }
    }
    assert!(named > 100, "only {named} files are named");
    assert_none(&broken, "ARCHITECTURE.md names what is not there");
}

#[test]
fn the_tests_that_prove_a_requirement_exist() {
    let mut pages = Vec::new();
    files_below(&root().join("docs/systems"), "md", &mut pages);
    let cited =
        Regex::new(r"`(quick|drills|parts|script_agent)::((?:\w+::)*)(\w+)`").expect("good");
    let mut requirements = 0;
    for page in &pages {
        let text = fs::read_to_string(page).expect("a page");
        for row in text.lines().filter(|line| line.starts_with("| ")) {
            let is_head = row.starts_with("| Requirement") || page.ends_with("README.md");
            assert!(
                is_head || cited.is_match(row),
                "{}: nothing proves {row}",
                page.display()
            );
            requirements += usize::from(!is_head);
        }
        for test in cited.captures_iter(&text) {
            let mut place = root().join("tests").join(&test[1]);
            place.extend(test[2].split("::").filter(|part| !part.is_empty()));
            // A test stands in the file of its module.
            let files = [
                place.with_extension("rs"),
                place.join("mod.rs"),
                place.join("main.rs"),
            ];
            let own = format!("fn {}(", &test[3]);
            let exists = files
                .iter()
                .any(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(own.as_str())));
            assert!(exists, "{}: there is no test {}", page.display(), &test[0]);
        }
    }
    assert!(requirements > 80, "{requirements}");
}

#[test]
fn the_book_and_the_readme_lead_to_every_page() {
    let docs = root().join("docs");
    let mut pages = Vec::new();
    files_below(&docs, "md", &mut pages);
    let pages: BTreeSet<String> = pages
        .iter()
        .filter_map(|page| page.strip_prefix(&docs).ok()?.to_str().map(str::to_owned))
        .filter(|page| page != "SUMMARY.md")
        .collect();
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).expect("SUMMARY.md");
    let targets: Vec<String> = link_targets(&summary).map(str::to_owned).collect();
    let in_book: BTreeSet<String> = targets.iter().cloned().collect();
    assert_eq!(
        in_book.len(),
        targets.len(),
        "a page stands in the book twice"
    );
    assert_eq!(in_book, pages, "docs/SUMMARY.md and the files of docs/");
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let in_readme: BTreeSet<&str> = link_targets(&readme)
        .filter_map(|target| target.strip_prefix("docs/"))
        .collect();
    let unlinked: Vec<_> = pages
        .iter()
        .filter(|page| !in_readme.contains(page.as_str()))
        .filter(|page| {
            let part = page.split_once('/');
            part.is_none_or(|(part, page)| {
                !["decisions", "systems"].contains(&part) || page == "README.md"
            })
        })
        .collect();
    assert!(
        unlinked.is_empty(),
        "README.md links to none of {unlinked:?}"
    );
}

/// What the Markdown links of a text lead to, without a fragment.
fn link_targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| {
        let (target, _) = rest.split_once(')')?;
        target.split('#').next()
    })
}
