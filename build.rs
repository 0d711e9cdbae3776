//! Two things that cargo cannot say in its manifest: which build this is, of which revision and by
//! which compiler, and how the small helper binary is linked.
//!
//! `marshal-shim` is started two to four times for every agent, so its start-up counts: linked
//! statically and to a fixed address it has neither a loader's work nor relocations. Only it is:
//! the supervisor itself, which talks to the world, keeps its random address. Where the static C
//! library is missing it is linked as usual, and costs more.

use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, io};

/// What goes into the program: another content is another build.
const PARTS: [&str; 7] = [
    "crates/model",
    "crates/wire",
    "crates/policy",
    "crates/config",
    "crates/sandbox",
    "src/shim_main.rs",
    "Cargo.lock",
];
/// What else makes it another one.
const SETTINGS: [&str; 5] = ["TARGET", "PROFILE", "OPT_LEVEL", "DEBUG", "RUSTC"];
/// The libraries that rustc names for a program with a shared C library, and what stands for each
/// in a static one.
const STANDINS: [(&str, &str); 7] = [
    ("gcc_s", "GROUP(libgcc_eh.a libgcc.a libc.a)"),
    ("c", "GROUP(libc.a libgcc_eh.a libgcc.a)"),
    ("util", "INPUT(libutil.a)"),
    ("rt", "INPUT(librt.a)"),
    ("pthread", "INPUT(libpthread.a)"),
    ("m", "INPUT(libm.a)"),
    ("dl", "INPUT(libdl.a)"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut hash = DefaultHasher::new();
    // A package from a registry stands alone: there Cargo.lock names the other crates by checksum.
    let is_packaged = !Path::new("crates").exists();
    for part in PARTS {
        if is_packaged && part.starts_with("crates/") {
            continue;
        }
        say(&format!("rerun-if-changed={part}"));
        add(Path::new(part), &mut hash)?;
    }
    for setting in SETTINGS {
        env::var(setting).unwrap_or_default().hash(&mut hash);
    }
    say(&format!("rustc-env=MARSHAL_BUILD={:016x}", hash.finish()));

    // As whoever packages it says, or as git does.
    say("rerun-if-env-changed=MARSHAL_REVISION");
    if let Some(revision) = env::var("MARSHAL_REVISION").ok().or_else(revision) {
        say(&format!("rustc-env=MARSHAL_REVISION={revision}"));
    }
    if let Some(version) = line_of(&env::var("RUSTC")?, &["--version"]) {
        say(&format!("rustc-env=MARSHAL_RUSTC={version}"));
    }

    let is = |name: &str, value: &str| env::var(name).is_ok_and(|found| found == value);
    let is_gnu = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    let is_static = env::var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|features| features.split(',').any(|one| one == "crt-static"));
    // A cross build has another linker, of which nothing is known here.
    if is_gnu && !is_static && env::var("HOST")? == env::var("TARGET")? {
        link_statically(&PathBuf::from(env::var("OUT_DIR")?))?;
    }
    Ok(())
}

/// The commit that is checked out, or the one that was packaged.
fn revision() -> Option<String> {
    let packaged = fs::read_to_string(".cargo_vcs_info.json").ok();
    let packaged = packaged
        .as_deref()
        .and_then(|text| text.split("\"sha1\": \"").nth(1));
    if let Some(sha1) = packaged.and_then(|rest| rest.split('"').next()) {
        return Some(sha1.chars().take(12).collect());
    }
    // Another repository may be around this one.
    if !Path::new(".git").exists() {
        return None;
    }
    let moves = line_of("git", &["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&moves).exists() {
        say(&format!("rerun-if-changed={moves}"));
    }
    line_of("git", &["rev-parse", "--short=12", "HEAD"])
}

/// The line that a program prints, if it succeeds.
fn line_of(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let line = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}

fn link_statically(out: &Path) -> io::Result<()> {
    if !["libc.a", "libgcc_eh.a", "libpthread.a"]
        .iter()
        .all(|file| has(file))
    {
        return Ok(());
    }
    let dir = out.join("static");
    fs::create_dir_all(&dir)?;
    for (name, text) in STANDINS {
        fs::write(dir.join(format!("lib{name}.so")), text)?;
    }
    for argument in ["-no-pie", "-static", &format!("-L{}", dir.display())] {
        say(&format!("rustc-link-arg-bin=marshal-shim={argument}"));
    }
    Ok(())
}

/// Whether the C compiler, which links, has this library.
fn has(file: &str) -> bool {
    let said = Command::new("cc")
        .arg(format!("-print-file-name={file}"))
        .output();
    said.is_ok_and(|said| {
        let path = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        said.status.success() && Path::new(&path).is_absolute()
    })
}

fn add(path: &Path, hash: &mut DefaultHasher) -> io::Result<()> {
    if path.is_dir() {
        let mut entries: Vec<PathBuf> = fs::read_dir(path)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()?;
        entries.sort();
        return entries.iter().try_for_each(|entry| add(entry, hash));
    }
    path.hash(hash);
    fs::read(path)?.hash(hash);
    Ok(())
}

#[allow(clippy::print_stdout, reason = "cargo listens there")]
fn say(word: &str) {
    println!("cargo:{word}");
}
