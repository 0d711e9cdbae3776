//! Finds the program of an agent on this host, and the host paths that it needs inside a sandbox.
//!
//! Agents are npm packages, Python environments or single programs. Must not know pools' other
//! keys, or how a sandbox is built.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::cli::trust::display_path;
use marshal_config::{Program, ProgramLookup};

/// The directories of the system's programs. Every sandbox has `/usr`, and all of these are in it.
const SYSTEM: &[&str] = &["/usr/local/bin", "/usr/bin", "/bin"];
/// The directory that every sandbox has.
const ALWAYS: &str = "/usr";
/// Directories that are other ones inside of a sandbox.
const INSIDE: &[&str] = &[
    "/workspace",
    "/home/agent",
    "/run/marshal",
    "/tmp",
    "/proc",
    "/dev",
];
/// The directory of pyenv's programs, which start those of a version.
const SHIMS: &str = "shims";
/// The directory of npm packages.
const MODULES: &str = "node_modules";
/// The most directories of a `PATH` that are searched.
const PATH_ENTRIES: usize = 256;
/// The most links that are followed from a Python environment to its interpreter.
const LINKS: usize = 16;

/// Where programs are searched.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct SearchPaths {
    /// The directories of `PATH`.
    pub(in crate::cli) path: Vec<PathBuf>,
    /// The directory of the configuration.
    pub(in crate::cli) dir: PathBuf,
    /// The caller's home, which no agent may see as a whole.
    pub(in crate::cli) home: Option<PathBuf>,
    /// Whether the user neither named nor trusted the configuration.
    pub(in crate::cli) is_discovered: bool,
}

impl SearchPaths {
    /// The search paths of this process.
    pub(in crate::cli) fn from_process(dir: &Path) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let entries = std::env::split_paths(&path).filter(|entry| entry.is_absolute());
        Self {
            path: entries.take(PATH_ENTRIES).collect(),
            dir: dir.to_owned(),
            home: std::env::var_os("HOME").map(PathBuf::from),
            is_discovered: false,
        }
    }
}

/// A program that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct FoundProgram {
    /// The command that starts it, and the host paths that it needs.
    pub(in crate::cli) program: Program,
    /// The program's file.
    pub(in crate::cli) file: PathBuf,
    /// The version in the files of its package, if known.
    pub(in crate::cli) version: Option<String>,
}

/// Why a program cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum Missing {
    /// The program does not exist.
    #[error("{program} was not found in {places}")]
    Nowhere {
        /// The program's name.
        program: String,
        /// The searched directories, as text.
        places: String,
    },
    /// The file of the command does not exist, or is no program.
    #[error("there is no program at {}", display_path(.0))]
    NotAt(PathBuf),
    /// The file of the command is outside of the configuration's directory.
    #[error("the program {} is outside of the directory of this configuration", display_path(.0))]
    Outside(PathBuf),
    /// The interpreter of the program does not exist.
    #[error("{} needs the interpreter {interpreter}, which was not found in PATH", display_path(.file))]
    Interpreter {
        /// The program's file.
        file: PathBuf,
        /// The interpreter's name.
        interpreter: String,
    },
    /// The agent would have to see a directory that is too wide, such as the home.
    #[error("{} is in {}, which an agent must not see as a whole; install it elsewhere", display_path(.file), display_path(.dir))]
    TooWide {
        /// The program's file.
        file: PathBuf,
        /// The directory that is too wide.
        dir: PathBuf,
    },
    /// The file cannot be read.
    #[error("{}: {why}", display_path(.file))]
    Unreadable {
        /// The program's file.
        file: PathBuf,
        /// The error of the system.
        why: String,
    },
}

/// Finds a program: only in `agent_dir` if it is set, else beside the configuration and in `PATH`.
pub(in crate::cli) fn find(
    find: &ProgramLookup,
    agent_dir: Option<&Path>,
    around: &SearchPaths,
) -> Result<FoundProgram, Missing> {
    let places = if let Some(dir) = agent_dir {
        vec![
            dir.join(MODULES).join(".bin"),
            dir.join("bin"),
            dir.join(".venv/bin"),
            dir.to_owned(),
        ]
    } else {
        let beside = [format!("{MODULES}/.bin"), ".venv/bin".to_owned()];
        let beside = beside.iter().map(|place| around.dir.join(place));
        beside.chain(around.path.iter().cloned()).collect()
    };
    let entry = places
        .iter()
        .map(|place| place.join(&find.program))
        .find_map(executable);
    let Some(entry) = entry else {
        return Err(Missing::Nowhere {
            program: find.program.clone(),
            places: match agent_dir {
                Some(dir) => display_path(dir),
                None => format!("PATH or in {MODULES} beside the configuration"),
            },
        });
    };
    refuse_wide(inspect(find, &entry, around)?, &entry, around)
}

/// Finds the program of a pool's own command, by its first word. `None` if every sandbox has it, or
/// if it can only be found inside. A discovered
/// configuration may show only what is in `PATH` or in its own directory.
pub(in crate::cli) fn find_command(
    word: &str,
    around: &SearchPaths,
) -> Result<Option<FoundProgram>, Missing> {
    let entry = if word.contains('/') {
        let path = PathBuf::from(word);
        let is_inside = INSIDE.iter().any(|dir| path.starts_with(dir));
        if path.is_relative() || is_inside && !path.exists() {
            return Ok(None);
        }
        let is_own = path.starts_with(&around.dir) || path.starts_with(ALWAYS);
        if around.is_discovered && !is_own {
            return Err(Missing::Outside(path));
        }
        executable(path.clone()).ok_or(Missing::NotAt(path))?
    } else {
        // Those of the system first: they are what the name means inside.
        let system = SYSTEM.iter().map(PathBuf::from);
        let beside = [
            around.dir.join(MODULES).join(".bin"),
            around.dir.join(".venv/bin"),
        ];
        let mut places = system.chain(beside).chain(around.path.iter().cloned());
        let entry = places.find_map(|place| executable(place.join(word)));
        entry.ok_or_else(|| Missing::Nowhere {
            program: word.to_owned(),
            places: format!("PATH or in {MODULES} or .venv beside the configuration"),
        })?
    };
    let unknown = ProgramLookup::by_name(word);
    let found = refuse_wide(inspect(&unknown, &entry, around)?, &entry, around)?;
    Ok(Some(found).filter(|found| !found.program.binds.is_empty()))
}

/// Refuses a program that needs a directory which an agent must not see as a whole.
fn refuse_wide(
    found: FoundProgram,
    entry: &Path,
    around: &SearchPaths,
) -> Result<FoundProgram, Missing> {
    // Links, `#!` lines and environments in its own directory came with the configuration: they
    // must not show more of the host.
    let is_own = around.is_discovered && entry.starts_with(&around.dir);
    let mut binds = found.program.binds.iter();
    if let Some(bind) = binds.find(|bind| is_own && !bind.starts_with(&around.dir)) {
        return Err(Missing::Outside(bind.clone()));
    }
    let home = around.home.as_deref();
    let is_wide =
        |dir: &&PathBuf| dir.parent().is_none() || home.is_some_and(|home| home.starts_with(dir));
    match found.program.binds.iter().find(is_wide) {
        Some(dir) => Err(Missing::TooWide {
            file: found.file,
            dir: dir.clone(),
        }),
        None => Ok(found),
    }
}

/// The file, if it is a program. For a program of pyenv, which only starts another one: that one.
fn executable(file: PathBuf) -> Option<PathBuf> {
    if !is_executable(&file) {
        return None;
    }
    let dir = file.parent()?;
    let root = dir
        .parent()
        .filter(|_| dir.file_name() == Some(OsStr::new(SHIMS)));
    let Some(root) = root.filter(|root| root.join("versions").is_dir()) else {
        return Some(file);
    };
    let name = file.file_name()?;
    let global = head(&root.join("version")).unwrap_or_default();
    let versions = fs::read_dir(root.join("versions")).ok()?.flatten();
    let mut others: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
    others.sort();
    let preferred = global
        .lines()
        .map(|line| root.join("versions").join(line.trim()));
    let mut candidates = preferred.chain(others.into_iter().rev());
    candidates
        .find_map(|version| Some(version.join("bin").join(name)).filter(|file| is_executable(file)))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn unreadable(file: &Path) -> impl Fn(std::io::Error) -> Missing {
    |error| Missing::Unreadable {
        file: file.to_owned(),
        why: error.to_string(),
    }
}

fn inspect(
    find: &ProgramLookup,
    entry: &Path,
    around: &SearchPaths,
) -> Result<FoundProgram, Missing> {
    let mut file = fs::canonicalize(entry).map_err(unreadable(entry))?;
    if let Some(venv) = environment(entry).or_else(|| environment(&file)) {
        return in_environment(find, &venv, file);
    }
    let mut binds = BTreeSet::new();
    let version = package_version(find, &file);
    if let Some(native) = native(find, &file) {
        file = native;
    }
    // The outermost one: some package managers link packages to each other inside of it.
    let modules = file
        .ancestors()
        .filter(|dir| dir.file_name() == Some(OsStr::new(MODULES)));
    binds.insert(modules.last().map_or_else(|| file.clone(), Path::to_owned));
    let mut argv = Vec::new();
    if let Some(interpreter) = shebang(&file)? {
        argv = interpreter_of(&file, &interpreter, around, &mut binds)?;
    }
    argv.push(text(&file));
    Ok(FoundProgram {
        program: program(argv, binds),
        file,
        version,
    })
}

fn program(argv: Vec<String>, binds: BTreeSet<PathBuf>) -> Program {
    let mut hidden: Vec<PathBuf> = Vec::new();
    // In order, so that a directory stands before what is in it.
    for bind in binds {
        let is_shown = |dir: &PathBuf| bind.starts_with(dir);
        if !bind.starts_with(ALWAYS) && !hidden.iter().any(is_shown) {
            hidden.push(bind);
        }
    }
    Program {
        argv,
        binds: hidden,
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The architecture in the names of npm packages.
const fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "x64"
    }
}

/// A native program to use instead, below a `node_modules` around the file or beside it.
fn native(find: &ProgramLookup, file: &Path) -> Option<PathBuf> {
    let roots = file.ancestors().filter_map(|dir| {
        let is_modules = dir.file_name() == Some(OsStr::new(MODULES));
        let below = dir.join(MODULES);
        if is_modules {
            Some(dir.to_owned())
        } else {
            below.is_dir().then_some(below)
        }
    });
    let roots: Vec<PathBuf> = roots.collect();
    let names = find
        .native
        .iter()
        .map(|name| name.replace("{arch}", arch()));
    let mut files = names.flat_map(|name| roots.iter().map(move |root| root.join(&name)));
    let found = files.find(|file| is_executable(file))?;
    fs::canonicalize(found).ok()
}

/// The words of a script's `#!` line.
fn shebang(file: &Path) -> Result<Option<Vec<String>>, Missing> {
    let mut head = Vec::new();
    let mut opened = fs::File::open(file).map_err(unreadable(file))?.take(512);
    opened.read_to_end(&mut head).map_err(unreadable(file))?;
    let Some(line) = head.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    Ok((!words.is_empty()).then_some(words))
}

/// The command that starts a script. Adds the host paths that it needs to `binds`.
fn interpreter_of(
    file: &Path,
    words: &[String],
    around: &SearchPaths,
    binds: &mut BTreeSet<PathBuf>,
) -> Result<Vec<String>, Missing> {
    let is_env = words.first().is_some_and(|word| word.ends_with("/env"));
    let words = if is_env { &words[1..] } else { words };
    // `env -S node --flag`
    let words = match words.first().map(String::as_str) {
        Some("-S") => &words[1..],
        _ => words,
    };
    let Some((name, arguments)) = words.split_first() else {
        return Ok(Vec::new());
    };
    let missing = || Missing::Interpreter {
        file: file.to_owned(),
        interpreter: name.clone(),
    };
    let path = if name.contains('/') {
        Some(PathBuf::from(name))
    } else {
        let system = SYSTEM.iter().map(PathBuf::from);
        let places = around.path.iter().cloned().chain(system);
        places.map(|place| place.join(name)).find_map(executable)
    };
    let path = path.ok_or_else(missing)?;
    let real = fs::canonicalize(&path).map_err(|_| missing())?;
    let mut argv = Vec::new();
    let is_python = real
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("python"));
    let library = prefix(&real).filter(|prefix| is_python && !prefix.starts_with(ALWAYS));
    // Python's own library is beside it.
    binds.insert(library.unwrap_or_else(|| real.clone()));
    if is_python && let Some(packages) = user_packages(file, &real) {
        // Inside, the home is another one, so these packages would not be found.
        argv.extend([
            "/usr/bin/env".to_owned(),
            format!("PYTHONPATH={}", text(&packages)),
        ]);
        binds.insert(packages);
    }
    argv.push(text(&real));
    argv.extend(arguments.iter().cloned());
    Ok(argv)
}

/// The packages beside a program that `pip install --user` put there.
fn user_packages(file: &Path, python: &Path) -> Option<PathBuf> {
    let library = prefix(file)?.join("lib").join(python.file_name()?);
    let packages = library.join("site-packages");
    let is_own = prefix(file) == prefix(python);
    (packages.is_dir() && !is_own && !packages.starts_with(ALWAYS)).then_some(packages)
}

/// The Python environment that a program belongs to.
fn environment(file: &Path) -> Option<PathBuf> {
    let venv = file.parent()?.parent()?;
    let is_one = venv.join("pyvenv.cfg").is_file();
    is_one.then(|| fs::canonicalize(venv).ok())?
}

/// A program of a Python environment. The environment's interpreter starts it, and may be in
/// another directory.
fn in_environment(
    find: &ProgramLookup,
    venv: &Path,
    file: PathBuf,
) -> Result<FoundProgram, Missing> {
    let python = venv.join("bin/python");
    let mut binds = BTreeSet::from([venv.to_owned()]);
    let real = fs::canonicalize(&python).map_err(|_| Missing::Interpreter {
        file: file.clone(),
        interpreter: text(&python),
    })?;
    let mut hop = python.clone();
    for _ in 0..LINKS {
        if hop.starts_with(venv) || hop == real {
            // Inside the environment, or the interpreter itself.
        } else if let Some(prefix) = prefix(&hop) {
            binds.insert(prefix);
        }
        let Ok(next) = fs::read_link(&hop) else { break };
        hop = hop.parent().map_or(next.clone(), |dir| dir.join(&next));
    }
    if !real.starts_with(venv) {
        binds.extend(prefix(&real));
    }
    let argv = if file == real {
        // By its place in the environment, it finds the environment's packages.
        vec![text(&python)]
    } else if shebang(&file)?.is_some() {
        vec![text(&python), text(&file)]
    } else {
        vec![text(&file)]
    };
    Ok(FoundProgram {
        program: program(argv, binds),
        version: distribution_version(find, venv),
        file,
    })
}

/// The directory above a program's `bin`.
fn prefix(program: &Path) -> Option<PathBuf> {
    Some(program.parent()?.parent()?.to_owned())
}

/// The version in the `package.json` of the package that a file belongs to.
fn package_version(find: &ProgramLookup, file: &Path) -> Option<String> {
    let read = |dir: &Path| -> Option<String> {
        let text = head(&dir.join("package.json"))?;
        let package: serde_json::Value = serde_json::from_str(&text).ok()?;
        let is_it = package["name"] == find.package.as_str();
        is_it.then(|| package["version"].as_str().map(str::to_owned))?
    };
    file.ancestors().skip(1).find_map(read)
}

/// The version in the name of a Python distribution's directory.
fn distribution_version(find: &ProgramLookup, venv: &Path) -> Option<String> {
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).ok().into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let lib = venv.join("lib");
    names(&lib).find_map(|python| {
        let packages = lib.join(python).join("site-packages");
        names(&packages).find_map(|name| {
            let rest = name
                .strip_prefix(find.package.as_str())?
                .strip_prefix('-')?;
            Some(rest.strip_suffix(".dist-info")?.to_owned())
        })
    })
}

/// The first bytes of a file, if they are text.
fn head(file: &Path) -> Option<String> {
    const MOST: u64 = 256 << 10;
    let mut text = String::new();
    let opened = fs::File::open(file).ok()?;
    opened.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
