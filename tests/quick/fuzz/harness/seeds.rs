//! What mutation begins with: the recorded conversations, in their written form, what was found
//! before, and for other readers a few of what they read.

use std::fs;
use std::path::{Path, PathBuf};

use marshal_journal::codec::encode_into;
use serde_json::Value;

use super::{Target, conversation};

/// The repository.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    // The package of the libFuzzer targets stands one below.
    if here.ends_with("fuzz") && here.join("../tests/corpus").is_dir() {
        here.join("..")
    } else {
        here
    }
}

/// Where the kept inputs of a target are.
pub(crate) fn crash_inputs_dir(target: Target) -> PathBuf {
    root().join("tests/quick/fuzz/found").join(target.as_str())
}

/// Every input that a target begins with.
pub(crate) fn seeds(target: Target) -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = files(&crash_inputs_dir(target))
        .iter()
        .map(|file| read(file))
        .collect();
    let root = root();
    let recorded = match target {
        Target::Custom => "scaiflux",
        Target::Mcp => "",
        other if other.is_dialect() => other.as_str(),
        _ => "",
    };
    if !recorded.is_empty() && target != Target::Skillpilot {
        let files = files(&root.join("tests/corpus").join(recorded));
        assert!(
            !files.is_empty(),
            "there are no recorded conversations of {recorded}"
        );
        seeds.extend(files.iter().map(|file| conversation(&read(file))));
    }
    let more: &[&str] = match target {
        Target::Table => &[
            "examples/dialects/pi.toml",
            "examples/dialects/scaiflux.toml",
        ],
        Target::Config => &["supervisor.toml"],
        Target::Plan => &["README.md"],
        _ => &[],
    };
    seeds.extend(more.iter().map(|file| read(&root.join(file))));
    if target == Target::Custom {
        let run = read(&root.join("tests/corpus/pi/tool-run.jsonl"));
        seeds.push([b"@open 64\n", &*run].concat());
    }
    if target == Target::Config {
        let folder = root.join("crates/policy/src/builtin");
        seeds.extend(files(&folder).iter().map(|file| read(file)));
    }
    if target == Target::Journal {
        seeds.extend(recorded_events());
    }
    if target == Target::Framing {
        seeds.push(b"4{\"a\":1}\n\n \r\n{\"b\":\"\n".to_vec());
    }
    assert!(!seeds.is_empty(), "{} begins with nothing", target.as_str());
    seeds
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.retain(|file| file.is_file());
    files.sort();
    files
}

fn read(file: &Path) -> Vec<u8> {
    fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// What the recorded conversations bring about, as the journal keeps it.
fn recorded_events() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for target in [Target::Acp, Target::Codex, Target::Claude, Target::Scaiflux] {
        for input in seeds(target) {
            let mut out = Vec::new();
            for event in conversation::events(target, &input) {
                out.extend(event.kind().as_str().bytes());
                out.push(b' ');
                encode_into(&event, &mut out);
                out.push(b'\n');
            }
            all.push(out);
        }
    }
    all
}

/// A recorded conversation as steps: of what we said only why.
fn conversation(recorded: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in recorded
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let line: Value = serde_json::from_slice(line).expect("a recorded line");
        let ours = line["as"].as_str().or_else(|| line["msg"]["type"].as_str());
        match line["dir"].as_str() {
            Some("eof") => out.extend(b"@eof"),
            Some("a2c") => match line["raw"].as_str() {
                Some(raw) => out.extend(raw.as_bytes()),
                None => out.extend(line["msg"].to_string().bytes()),
            },
            Some("c2a") => out.extend(match ours {
                Some("prompt") => &b"@prompt p"[..],
                Some("cancel" | "interrupt") => b"@cancel",
                Some("goodbye" | "shutdown") => b"@goodbye",
                Some("allow") => b"@allow 0",
                Some("slash") => b"@slash help",
                Some("permission_response") if line["msg"]["decision"] == "allow" => b"@allow 0",
                Some("deny" | "permission_response") => b"@deny 0",
                _ => continue,
            }),
            _ => continue,
        }
        out.push(b'\n');
    }
    out
}
