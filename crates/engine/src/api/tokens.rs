//! Identifies callers over HTTP by tokens, each in a file that only the supervisor's user can read.
//!
//! Owns the files and their callers. Must not know HTTP, the routes, or what an approver may do.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::guard::{Digest, Rates};
use super::logins::Logins;
use marshal_config::{Approver, NamedToken};
use marshal_model::Role;
use marshal_model::limits;

/// The owner's token, in the state directory.
pub const TOKEN_FILE: &str = "http.token";
/// The directory of further tokens in the state directory, one per file; the file's name is the
/// approver's.
pub const APPROVERS_DIR: &str = "approvers";
/// The minimum length of a token in bytes.
const SHORTEST: usize = 32;

/// Opens a file that only root and the caller can have written or replaced; otherwise returns why
/// not. `None` if the file does not exist.
pub type OpenTrusted = fn(&Path) -> Result<Option<File>, String>;

/// Why a file with a token, a certificate or a key cannot be used. Contains nothing of the file.
#[derive(Debug, thiserror::Error)]
pub enum CredentialFileError {
    /// It was not opened: the reason of [`OpenTrusted`].
    #[error("{0}")]
    NotOpened(String),
    /// It does not exist.
    #[error("there is no such file")]
    Missing,
    /// A file or a directory cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// Others could read or replace it: what else it must be, if anything.
    #[error("it must be a file of the supervisor's user or root with mode 0600{0}")]
    Permissions(&'static str),
    /// It has more bytes than this.
    #[error("it has more than {0} bytes")]
    TooLong(u64),
    /// The token is too short.
    #[error("it is shorter than {SHORTEST} characters")]
    TooShort,
    /// A directory has too many files.
    #[error(
        "it contains more than {most} files, so all of them are ignored: remove unused ones",
        most = limits::TOKEN_FILES
    )]
    TooManyFiles,
}

/// The tokens of a supervisor.
#[derive(Clone)]
pub struct Tokens {
    dir: Arc<Path>,
    open: OpenTrusted,
    named: Arc<RwLock<Arc<BTreeMap<String, NamedToken>>>>,
    rates: Arc<Rates>,
    logins: Arc<Logins>,
    /// Sent when streams must look at their tokens again.
    changes: Arc<watch::Sender<()>>,
    /// The faults of the last check, so that each is logged once.
    faults: Arc<Mutex<BTreeMap<PathBuf, TokenFault>>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tokens").field(&self.dir).finish()
    }
}

/// The caller that a token identifies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// The name by which the caller answers approvals.
    pub approver: Approver,
    /// The caller's role.
    pub role: Role,
    /// The role applies to approvals only.
    pub approvals_only: bool,
    /// The uid that the kernel reports of a caller on the Unix socket; `None` for a token.
    pub uid: Option<u32>,
}

impl Caller {
    /// Returns the caller for the supervisor's user: with the owner's token, or with this uid on the
    /// Unix socket.
    #[must_use]
    pub fn by_owner(uid: Option<u32>) -> Self {
        Self {
            approver: Approver::Owner,
            role: Role::Admin,
            approvals_only: false,
            uid,
        }
    }

    /// Returns the caller as the journal has the approver of an answer.
    #[must_use]
    pub fn recorded_as(&self) -> String {
        match self.uid {
            Some(uid) => format!("uid {uid}"),
            None => format!("token {}", self.approver),
        }
    }
}

/// Returns the digest of a token; only digests are kept and compared.
pub(super) fn digest(token: &str) -> Digest {
    Sha256::digest(token.as_bytes()).into()
}

/// Why a token file is ignored, and the file's metadata: a replaced file is a new fault.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TokenFault {
    why: String,
    file: Option<(u64, u64, i64, i64)>,
}

impl Tokens {
    /// Loads the tokens of a state directory and those that the configuration names; creates the
    /// owner's token if there is none.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn load(
        state_dir: &Path,
        named: BTreeMap<String, NamedToken>,
        open: OpenTrusted,
    ) -> io::Result<Self> {
        let path = state_dir.join(TOKEN_FILE);
        // An empty file of a writer that was killed belongs to nobody.
        if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() == 0) {
            fs::remove_file(&path)?;
        }
        let made = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        match made {
            Ok(mut file) => {
                let mut bytes = [0_u8; 32];
                getrandom(&mut bytes)?;
                writeln!(file, "{}", hex::encode(bytes))?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(Self {
            dir: state_dir.into(),
            open,
            named: Arc::new(RwLock::new(Arc::new(named))),
            rates: Arc::default(),
            logins: Arc::default(),
            changes: Arc::new(watch::channel(()).0),
            faults: Arc::default(),
        })
    }

    /// Replaces the tokens that the configuration names, and ends the streams of tokens that are no
    /// longer valid, those of changed files included.
    pub(super) fn set_named(&self, named: BTreeMap<String, NamedToken>) {
        *self.named.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(named);
        self.changes.send_replace(());
    }

    /// Changes when streams must look at their tokens again.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Returns the rate limits.
    pub(super) fn rates(&self) -> &Rates {
        &self.rates
    }

    /// Returns the logins of browsers.
    #[must_use]
    pub fn logins(&self) -> &Logins {
        &self.logins
    }

    /// Returns the digest of the token with this name; without a name, of the owner's. Reads its file.
    pub(super) fn digest_of(&self, name: Option<&str>) -> Option<Digest> {
        let path = match name {
            None => self.dir.join(TOKEN_FILE),
            Some(name) => {
                let named = Arc::clone(&self.named.read().unwrap_or_else(PoisonError::into_inner));
                let approver = Approver::new(name).filter(|item| *item != Approver::Owner)?;
                let of_approver = self.dir.join(APPROVERS_DIR).join(approver.to_string());
                named
                    .get(name)
                    .map_or(of_approver, |token| token.file.clone())
            }
        };
        let token = read_token(&path, self.open).ok().flatten()?;
        Some(digest(&token))
    }

    /// Returns the caller whose token has this digest. Reads the files each time, because a token
    /// can be removed at run time.
    pub(super) fn find_caller(&self, given: &Digest) -> Option<Caller> {
        let mut faults = BTreeMap::new();
        let mut is_same = |path: &Path| {
            let known = match read_token(path, self.open) {
                Ok(Some(known)) => known,
                Ok(None) => return false,
                Err(error) => {
                    faults.insert(path.to_owned(), token_fault(path, &error));
                    return false;
                }
            };
            // Compares all bytes of digests, so that the time of the comparison reveals nothing.
            let known = digest(&known);
            let differ = known
                .iter()
                .zip(given.iter())
                .fold(0, |all, (a, b)| all | (a ^ b));
            std::hint::black_box(differ) == 0
        };
        let mut caller = is_same(&self.dir.join(TOKEN_FILE)).then(|| Caller::by_owner(None));
        let named = Arc::clone(&self.named.read().unwrap_or_else(PoisonError::into_inner));
        for (name, token) in named.iter() {
            if let Some(approver) = Approver::new(name)
                && is_same(&token.file)
            {
                caller = caller.or(Some(Caller {
                    approver,
                    role: token.role,
                    approvals_only: false,
                    uid: None,
                }));
            }
        }
        let approvers = self.dir.join(APPROVERS_DIR);
        let names = names(&approvers);
        for name in names.iter().flatten() {
            let approver = Approver::new(name).filter(|item| *item != Approver::Owner);
            if let Some(approver) = approver
                && is_same(&approvers.join(name))
            {
                caller = caller.or(Some(Caller {
                    approver,
                    role: Role::Approve,
                    approvals_only: true,
                    uid: None,
                }));
            }
        }
        if let Err(error) = names {
            faults.insert(approvers.clone(), token_fault(&approvers, &error));
        }
        self.report_faults(faults);
        caller
    }

    /// Logs faults that are new since the last check; returns their number.
    fn report_faults(&self, faults: BTreeMap<PathBuf, TokenFault>) -> usize {
        let mut known = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let new = faults
            .iter()
            .filter(|(path, fault)| known.get(*path) != Some(*fault));
        let mut count = 0;
        for (path, fault) in new {
            count += 1;
            tracing::warn!(path = %path.display(), why = fault.why, "a token file is ignored");
        }
        *known = faults;
        count
    }
}

fn token_fault(path: &Path, error: &CredentialFileError) -> TokenFault {
    let meta = fs::symlink_metadata(path).ok();
    let file = meta.map(|meta| (meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()));
    let why = error.to_string();
    TokenFault { why, file }
}

pub(super) fn getrandom(bytes: &mut [u8]) -> io::Result<()> {
    File::open("/dev/urandom")?.read_exact(bytes)
}

/// Returns the names of a directory's files; none if it does not exist.
fn names(dir: &Path) -> Result<Vec<String>, CredentialFileError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut names = Vec::new();
    // The limit protects against a directory with very many files.
    for entry in entries.take(limits::TOKEN_FILES + 1) {
        let name = entry?.file_name();
        names.extend(name.into_string().ok());
    }
    if names.len() > limits::TOKEN_FILES {
        return Err(CredentialFileError::TooManyFiles);
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads a token from a file that nobody else can read; `None` if it does not exist.
fn read_token(path: &Path, open: OpenTrusted) -> Result<Option<String>, CredentialFileError> {
    const OWN: CredentialFileError = CredentialFileError::Permissions(", and not a link");
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Err(OWN),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let Some(file) = open(path).map_err(CredentialFileError::NotOpened)? else {
        return Ok(None);
    };
    let meta = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_file() || meta.uid() != own && meta.uid() != 0 || meta.mode() & 0o077 != 0 {
        return Err(OWN);
    }
    let mut text = String::new();
    let most = limits::TOKEN_BYTES;
    file.take(most as u64 + 1).read_to_string(&mut text)?;
    if text.len() > most {
        return Err(CredentialFileError::TooLong(most as u64));
    }
    let text = text.trim();
    if text.len() < SHORTEST {
        return Err(CredentialFileError::TooShort);
    }
    Ok(Some(text.to_owned()))
}

/// Checks whether a token file can be used.
///
/// # Errors
/// [`CredentialFileError`]
pub fn check(path: &Path, open: OpenTrusted) -> Result<(), CredentialFileError> {
    let token = read_token(path, open)?;
    token.map(drop).ok_or(CredentialFileError::Missing)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn plainly(path: &Path) -> Result<Option<File>, String> {
        File::open(path)
            .map(Some)
            .map_err(|error| error.to_string())
    }

    fn distrusting(_: &Path) -> Result<Option<File>, String> {
        Err("somebody else could have put it there".to_owned())
    }

    fn approver(tokens: &Tokens, token: &str) -> Option<Approver> {
        tokens
            .find_caller(&digest(token))
            .map(|found| found.approver)
    }

    fn put(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    }

    #[test]
    fn a_token_is_whole_and_its_files_own_and_what_is_wrong_is_said_once_a_change() {
        let dir = tempfile::tempdir().expect("directory");
        let tokens = Tokens::load(dir.path(), BTreeMap::new(), plainly).expect("made");
        let owner = fs::read_to_string(dir.path().join(TOKEN_FILE)).expect("made");
        assert_eq!(approver(&tokens, owner.trim()), Some(Approver::Owner));
        let approvers = dir.path().join(APPROVERS_DIR);
        fs::create_dir(&approvers).expect("made");
        let ops = approvers.join("ops");
        let good = "o".repeat(40);
        put(&ops, &good, 0o600);
        assert_eq!(approver(&tokens, &good), Approver::new("ops"));
        // A whole token of the longest file, and not the beginning of a longer one.
        let long = "o".repeat(limits::TOKEN_BYTES);
        put(&ops, &long, 0o600);
        assert_eq!(approver(&tokens, &long), Approver::new("ops"));
        put(&ops, &format!("{long}p"), 0o600);
        assert_eq!(approver(&tokens, &long), None);
        let faults = || tokens.faults.lock().expect("whole").clone();
        let why = |path: &Path| faults().get(path).map(|item| item.why.clone());
        assert!(why(&ops).expect("a fault").contains("more than 4096 bytes"));
        // The same again is nothing new; another file of the same fault is.
        assert_eq!(tokens.report_faults(faults()), 0);
        let before = faults();
        put(&approvers.join("two"), "short", 0o600);
        assert_eq!(approver(&tokens, &good), None);
        let after = faults();
        *tokens.faults.lock().expect("whole") = before;
        assert_eq!(tokens.report_faults(after), 1);
        put(&ops, &good, 0o640);
        assert_eq!(approver(&tokens, &good), None);
        assert!(why(&ops).expect("a fault").contains("mode 0600"));
        fs::remove_file(&ops).expect("removed");
        std::os::unix::fs::symlink(dir.path().join(TOKEN_FILE), &ops).expect("a link");
        assert_eq!(approver(&tokens, owner.trim()), Some(Approver::Owner));
        assert!(why(&ops).expect("a fault").contains("not a link"));
        fs::remove_file(&ops).expect("removed");
        for number in 0..=limits::TOKEN_FILES {
            put(&approvers.join(format!("n{number}")), &good, 0o600);
        }
        assert_eq!(approver(&tokens, &good), None);
        assert!(why(&approvers).expect("a fault").contains("more than 64"));
        let wary = Tokens::load(dir.path(), BTreeMap::new(), distrusting).expect("there");
        assert_eq!(approver(&wary, owner.trim()), None);
    }

    #[test]
    fn a_named_token_has_its_role_as_long_as_its_file_is_there() {
        let dir = tempfile::tempdir().expect("directory");
        let file = dir.path().join("elsewhere");
        let named = |role| NamedToken {
            file: file.clone(),
            role,
        };
        let good = "n".repeat(32);
        for role in Role::ALL {
            let all = BTreeMap::from([("ops".to_owned(), named(*role))]);
            let tokens = Tokens::load(dir.path(), all, plainly).expect("made");
            let found = || tokens.find_caller(&digest(&good));
            assert_eq!(found(), None, "no file yet");
            put(&file, &format!("{good}\n"), 0o600);
            let caller = found().expect("known");
            assert_eq!((caller.role, caller.approvals_only), (*role, false));
            assert_eq!(Some(caller.approver), Approver::new("ops"));
            put(&file, &good, 0o644);
            assert_eq!(found(), None, "others could read it");
            fs::remove_file(&file).expect("removed");
            assert_eq!(found(), None, "taken away");
        }
        put(&file, &good, 0o600);
        check(&file, plainly).expect("a usable file");
        put(&file, "short", 0o600);
        let why = check(&file, plainly).expect_err("too short").to_string();
        assert!(why.contains("shorter than 32"), "{why}");
        assert!(check(&dir.path().join("none"), plainly).is_err());
    }
}
