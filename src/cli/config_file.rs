//! Finds the configuration file, checks who could have written it, and reads it.
//!
//! Configuration is code: the file and its directory belong to root or the caller and are writable
//! by nobody else. Must not know what the keys mean.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::config::{Config, ConfigErrors, DEFAULT, Origin, Pool};
use crate::limits;
use crate::model::foreign;

/// The file that is looked for in the current directory.
pub const NAME: &str = "supervisor.toml";

/// Which configuration is in use; its text is printed before anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The file named with `--config`.
    Named(PathBuf),
    /// `./supervisor.toml`.
    Found(PathBuf),
    /// None: the one that is built in.
    BuiltIn,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(path) | Self::Found(path) => {
                write!(f, "configuration: {}", shown(path))
            }
            Self::BuiltIn => write!(
                f,
                "configuration: built in (no {NAME} here, and none named with --config)"
            ),
        }
    }
}

/// A configuration and where it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// Where it came from.
    pub source: Source,
}

/// Why there is no configuration. Each is exit code 2.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {}", shown(.path), why(.error))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Somebody else could have written the file.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
    /// The file is faulty.
    #[error(transparent)]
    Faulty(#[from] Box<ConfigErrors>),
}

/// Why a file that is code is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// It is a directory, a pipe, a device.
    #[error("{} is not a regular file", shown(.0))]
    NotAFile(PathBuf),
    /// It belongs to somebody else.
    #[error("{} belongs to user {uid}: it must belong to root or to you (user {caller})", shown(.path))]
    Owner {
        /// The file or its directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Who asks.
        caller: u32,
    },
    /// Others may write it.
    #[error("{} is writable by {who} (mode {mode:04o}): make it writable only for its owner, for example with chmod go-w", shown(.path))]
    Writable {
        /// The file or its directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// By whom.
        who: &'static str,
    },
}

pub(super) fn shown(path: &Path) -> String {
    foreign::show(&path.to_string_lossy(), 200)
}

/// The system's words without their number.
pub(super) fn why(error: &std::io::Error) -> String {
    let words = error.to_string();
    let plain = words.split(" (os error").next().unwrap_or(&words);
    plain.to_lowercase()
}

/// The configuration: the file `named` with `--config`, else `./supervisor.toml`, else the one
/// that is built in. `cwd` is the current directory, absolute.
///
/// # Errors
/// No file, a file of somebody else, or its faults, those that only the file system shows
/// included.
pub fn load(named: Option<&Path>, cwd: &Path) -> Result<Loaded, LoadError> {
    let found = cwd.join(NAME);
    let (path, source) = match named {
        Some(path) => (cwd.join(path), Source::Named as fn(PathBuf) -> Source),
        None if fs::symlink_metadata(&found).is_ok() => {
            (found, Source::Found as fn(PathBuf) -> Source)
        }
        None => return built_in(cwd),
    };
    let read_error = |error| LoadError::Read {
        path: path.clone(),
        error,
    };
    let mut file = open_trusted(&path).map_err(|error| match error {
        OpenError::Read(error) => read_error(error),
        OpenError::Untrusted(error) => LoadError::Untrusted(error),
    })?;
    let mut bytes = Vec::new();
    let most = limits::CONFIG_BYTES as u64 + 1;
    file.by_ref()
        .take(most)
        .read_to_end(&mut bytes)
        .map_err(read_error)?;
    let parent = path.parent().unwrap_or(cwd);
    let dir = fs::canonicalize(parent).map_err(read_error)?;
    let path = path.file_name().map_or(path.clone(), |name| dir.join(name));
    let origin = Origin {
        file: Some(path.clone()),
        dir,
        named: named.is_some(),
    };
    let config = Config::parse_bytes(&bytes, &origin).map_err(Box::new)?;
    check_files(&config, &origin).map_err(Box::new)?;
    Ok(Loaded {
        config,
        source: source(path),
    })
}

fn built_in(cwd: &Path) -> Result<Loaded, LoadError> {
    let origin = Origin::built_in(cwd.to_owned());
    let config = Config::parse(DEFAULT, &origin).map_err(Box::new)?;
    check_files(&config, &origin).map_err(Box::new)?;
    Ok(Loaded {
        config,
        source: Source::BuiltIn,
    })
}

/// Why a file that is code was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be opened.
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// Somebody else could have written it.
    #[error(transparent)]
    Untrusted(#[from] Untrusted),
}

/// Opens a file that is code (a configuration, a policy). What is returned is what was checked:
/// the checks are made on the open file, not on its name.
///
/// # Errors
/// It cannot be opened, or the file, its directory, or the directory of a link to it could be
/// written by somebody else than root and the caller.
pub fn open_trusted(path: &Path) -> Result<File, OpenError> {
    // Without O_NONBLOCK a pipe would make us wait for its writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(std::io::Error::from)?;
    let file = File::from(file);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Untrusted::NotAFile(path.to_owned()).into());
    }
    let caller = Caller::current();
    caller.check(path, &Rights::of(&file)?)?;
    let mut dirs = vec![fs::canonicalize(path.parent().unwrap_or(Path::new("/")))?];
    let real = fs::canonicalize(path)?;
    dirs.extend(real.parent().map(Path::to_owned));
    dirs.dedup();
    for dir in dirs {
        let open = File::open(&dir)?;
        caller.check(&dir, &Rights::of(&open)?)?;
    }
    Ok(file)
}

/// Who may write an open file or directory.
#[derive(Debug, Clone, Copy)]
struct Rights {
    owner: u32,
    mode: u32,
    /// Its group is the owner alone, and no access control list gives rights that the mode bits
    /// do not show.
    private_group: bool,
}

impl Rights {
    fn of(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        let mut none = [0_u8; 0];
        let acl = rustix::fs::fgetxattr(file, "system.posix_acl_access", &mut none[..]).is_ok();
        let owner = metadata.uid();
        Ok(Self {
            owner,
            mode: metadata.mode() & 0o7777,
            private_group: !acl && is_private_group(metadata.gid(), owner),
        })
    }
}

/// Who asks for the configuration.
struct Caller {
    uid: u32,
}

impl Caller {
    fn current() -> Self {
        Self {
            uid: rustix::process::geteuid().as_raw(),
        }
    }

    fn check(&self, path: &Path, rights: &Rights) -> Result<(), Untrusted> {
        let Rights { owner, mode, .. } = *rights;
        if owner != 0 && owner != self.uid {
            return Err(Untrusted::Owner {
                path: path.to_owned(),
                uid: owner,
                caller: self.uid,
            });
        }
        let who = if mode & 0o002 != 0 {
            "everybody"
        } else if mode & 0o020 != 0 && !rights.private_group {
            "a group"
        } else {
            return Ok(());
        };
        Err(Untrusted::Writable {
            path: path.to_owned(),
            mode,
            who,
        })
    }
}

/// Whether a group has the file's owner as its only member, as on systems where each user has a
/// group of their own and new files are writable for it.
fn is_private_group(gid: u32, owner: u32) -> bool {
    let members = fs::read_to_string("/etc/group").unwrap_or_default();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    is_private(&members, &users, gid, owner)
}

fn is_private(groups: &str, users: &str, gid: u32, owner: u32) -> bool {
    let fields = |line: &'_ str| -> Vec<String> { line.split(':').map(str::to_owned).collect() };
    let is = |field: Option<&String>, id: u32| field.is_some_and(|text| text.parse() == Ok(id));
    let users: Vec<_> = users.lines().map(fields).collect();
    let groups: Vec<_> = groups.lines().map(fields).collect();
    let Some(user) = users.iter().find(|user| is(user.get(2), owner)) else {
        return false;
    };
    let only_user = users
        .iter()
        .filter(|user| is(user.get(3), gid))
        .all(|user| is(user.get(2), owner));
    let mut groups = groups.iter().filter(|group| is(group.get(2), gid));
    let only_member = groups.all(|group| {
        let mut members = group.get(3).map_or("", String::as_str).split(',');
        members.all(|member| member.is_empty() || Some(member) == user.first().map(String::as_str))
    });
    is(user.get(3), gid) && only_user && only_member
}

/// Faults that only the file system shows: what is named must exist, and must really lie where
/// its name says.
fn check_files(config: &Config, origin: &Origin) -> Result<(), ConfigErrors> {
    let mut faults = Vec::new();
    for pool in &config.pools {
        check_pool(pool, origin, &mut faults);
    }
    for (name, profile) in &config.sandboxes {
        for bind in &profile.ro_bind {
            if let Err(error) = fs::metadata(bind) {
                let message = format!("nothing to bind at {}: {}", shown(bind), why(&error));
                faults.push((format!("sandbox.{name}.ro_bind"), message, None));
            }
        }
    }
    for (name, file) in &config.policies {
        if let Err(error) = open_trusted(file) {
            let message = match error {
                OpenError::Read(error) => format!("cannot read {}: {}", shown(file), why(&error)),
                OpenError::Untrusted(error) => error.to_string(),
            };
            faults.push((format!("policy.{name}.file"), message, None));
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(config.places.refuse(faults))
    }
}

/// A fault found after the check: key, message, help.
type Fault = (String, String, Option<String>);

fn check_pool(pool: &Pool, origin: &Origin, faults: &mut Vec<Fault>) {
    let found = origin.file.is_some() && !origin.named;
    let outside = |real: &Path| found && !real.starts_with(&origin.dir);
    let trust = Some("name the file with --config if you trust it");
    let mut fault = |key: &str, message: String, help: Option<&str>| {
        let key = format!("pool.{}.{key}", pool.name);
        faults.push((key, message, help.map(str::to_owned)));
    };
    let workspace = &pool.workspace.path;
    match fs::canonicalize(workspace) {
        Ok(real) if !real.is_dir() => {
            let message = format!("{} is not a directory", shown(workspace));
            fault("workspace.path", message, None);
        }
        Ok(real) if outside(&real) => {
            let message = format!(
                "the workspace is really {}, and a supervisor.toml that was found may not use a workspace outside its own directory",
                shown(&real)
            );
            fault("workspace.path", message, trust);
        }
        Ok(_) => {}
        Err(error) => {
            let message = format!("no workspace at {}: {}", shown(workspace), why(&error));
            fault("workspace.path", message, None);
        }
    }
    for (inside, source) in &pool.home_files {
        let key = format!("home_files.{inside}");
        match fs::canonicalize(source) {
            Ok(real) if !real.is_file() => {
                fault(&key, format!("{} is not a file", shown(source)), None);
            }
            Ok(real) if outside(&real) => {
                let message = format!(
                    "the file is really {}, outside of this configuration's directory",
                    shown(&real)
                );
                fault(&key, message, trust);
            }
            Ok(_) => {}
            Err(error) => fault(
                &key,
                format!("no file at {}: {}", shown(source), why(&error)),
                None,
            ),
        }
    }
}

#[cfg(test)]
mod tests;
