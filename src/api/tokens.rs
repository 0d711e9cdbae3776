//! Who a request over HTTP is from: tokens, each in a file that the supervisor's user alone can read.
//!
//! Owns the files and the check, which comes before anything else of a request is read. Must not
//! know the pages, or what an approver may do.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use super::http::{closing, problem};
use crate::config::Approver;
use crate::limits;

/// The owner's token, in the state directory.
pub const TOKEN_FILE: &str = "http.token";
/// The directory of further tokens there, one a file; its name is the approver's.
pub const APPROVERS_DIR: &str = "approvers";
/// The shortest token that is taken, in bytes.
const SHORTEST: usize = 32;

/// Opens a file that nobody but root and the caller can have written or put there; else says why
/// not. `None`: there is no such file.
pub type OpenTrusted = fn(&Path) -> Result<Option<File>, String>;

/// Where the tokens are.
#[derive(Clone)]
pub struct Tokens {
    dir: Arc<Path>,
    open: OpenTrusted,
    /// What was wrong when they were last looked at, so that each is said once.
    faults: Arc<Mutex<BTreeMap<PathBuf, Fault>>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tokens").field(&self.dir).finish()
    }
}

/// Why a file is not taken, and which one that was: another one is another fault.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    why: String,
    file: Option<(u64, u64, i64, i64)>,
}

impl Tokens {
    /// The tokens of a state directory; makes the owner's if there is none.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn of(state_dir: &Path, open: OpenTrusted) -> io::Result<Self> {
        let path = state_dir.join(TOKEN_FILE);
        // One that nothing was written into, because its writer was killed, is nobody's.
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
                for byte in bytes {
                    write!(file, "{byte:02x}")?;
                }
                file.write_all(b"\n")?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        Ok(Self {
            dir: state_dir.into(),
            open,
            faults: Arc::default(),
        })
    }

    /// Whose token this is. Reads the files anew: one can be taken away while we run.
    fn approver(&self, token: &str) -> Option<Approver> {
        let given = Sha256::digest(token.as_bytes());
        let mut faults = BTreeMap::new();
        let mut is_same = |path: &Path| {
            let known = match read_token(path, self.open) {
                Ok(Some(known)) => known,
                Ok(None) => return false,
                Err(why) => {
                    faults.insert(path.to_owned(), fault(path, why));
                    return false;
                }
            };
            // Over digests, and every byte of them: how long it takes tells nothing.
            let known = Sha256::digest(known.as_bytes());
            let differ = known
                .iter()
                .zip(given.iter())
                .fold(0, |all, (a, b)| all | (a ^ b));
            std::hint::black_box(differ) == 0
        };
        let mut found = is_same(&self.dir.join(TOKEN_FILE)).then_some(Approver::Owner);
        let approvers = self.dir.join(APPROVERS_DIR);
        let names = names(&approvers);
        for name in names.iter().flatten() {
            let approver = Approver::new(name).filter(|of| *of != Approver::Owner);
            if let Some(approver) = approver
                && is_same(&approvers.join(name))
            {
                found = found.or(Some(approver));
            }
        }
        if let Err(why) = names {
            faults.insert(approvers.clone(), fault(&approvers, why));
        }
        self.tell(faults);
        found
    }

    /// Says what is wrong now and was not when it was last looked.
    fn tell(&self, faults: BTreeMap<PathBuf, Fault>) -> usize {
        let mut known = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let new = faults
            .iter()
            .filter(|(path, fault)| known.get(*path) != Some(*fault));
        let mut count = 0;
        for (path, fault) in new {
            count += 1;
            tracing::warn!(path = %path.display(), why = fault.why, "a token is not taken");
        }
        *known = faults;
        count
    }
}

fn fault(path: &Path, why: String) -> Fault {
    let meta = fs::symlink_metadata(path).ok();
    let file = meta.map(|meta| (meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec()));
    Fault { why, file }
}

fn getrandom(bytes: &mut [u8]) -> io::Result<()> {
    File::open("/dev/urandom")?.read_exact(bytes)
}

/// The names of a directory's files. Without the directory there are none.
fn names(dir: &Path) -> Result<Vec<String>, String> {
    let said = |error: &io::Error| format!("it cannot be read: {error}");
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(said(&error)),
    };
    let mut names = Vec::new();
    // Bounded also where somebody fills the directory.
    for entry in entries.take(limits::TOKEN_FILES + 1) {
        let name = entry.map_err(|error| said(&error))?.file_name();
        names.extend(name.into_string().ok());
    }
    if names.len() > limits::TOKEN_FILES {
        let most = limits::TOKEN_FILES;
        return Err(format!(
            "it holds more than {most} files, so none of them is taken: remove those that nobody uses"
        ));
    }
    names.sort_unstable();
    Ok(names)
}

/// A token that nobody else can read; `None` if there is none.
fn read_token(path: &Path, open: OpenTrusted) -> Result<Option<String>, String> {
    const OWN: &str =
        "it must be a file of the supervisor's user or root with mode 0600, and no link";
    let io = |error: io::Error| format!("it cannot be read: {error}");
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Err(OWN.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    }
    let Some(file) = open(path)? else {
        return Ok(None);
    };
    let meta = file.metadata().map_err(io)?;
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_file() || meta.uid() != own && meta.uid() != 0 || meta.mode() & 0o077 != 0 {
        return Err(OWN.to_owned());
    }
    let mut text = String::new();
    let most = limits::TOKEN_BYTES;
    file.take(most as u64 + 1)
        .read_to_string(&mut text)
        .map_err(io)?;
    if text.len() > most {
        return Err(format!("it holds more than {most} bytes"));
    }
    let text = text.trim();
    if text.len() < SHORTEST {
        return Err("it is shorter than 32 characters".to_owned());
    }
    Ok(Some(text.to_owned()))
}

/// What stands after the scheme, whose letters may be of either case.
fn given(headers: &HeaderMap) -> Option<String> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(one), None) = (given.next(), given.next()) else {
        return None;
    };
    let (scheme, token) = one.to_str().ok()?.split_once(' ')?;
    let is_bearer = scheme.eq_ignore_ascii_case("bearer");
    is_bearer.then(|| token.trim().to_owned())
}

/// Lets a request with a token pass, and says whose it is: an [`Approver`] among its extensions.
/// Nothing else of another one is looked at, and its body is not read.
pub(super) async fn known(
    State(tokens): State<Tokens>,
    mut request: Request,
    next: Next,
) -> Response {
    let found = match given(request.headers()) {
        Some(token) => {
            let find = move || tokens.approver(&token);
            tokio::task::spawn_blocking(find).await.ok().flatten()
        }
        None => None,
    };
    if let Some(approver) = found {
        request.extensions_mut().insert(approver);
        return next.run(request).await;
    }
    let detail = "a token is needed: Authorization: Bearer, and what stands in http.token of the state directory";
    let mut response = problem(StatusCode::UNAUTHORIZED, detail);
    let how = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    closing(response)
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

    fn put(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    }

    #[test]
    fn a_token_is_whole_and_its_files_own_and_what_is_wrong_is_said_once_a_change() {
        let dir = tempfile::tempdir().expect("directory");
        let tokens = Tokens::of(dir.path(), plainly).expect("made");
        let owner = fs::read_to_string(dir.path().join(TOKEN_FILE)).expect("made");
        assert_eq!(tokens.approver(owner.trim()), Some(Approver::Owner));
        let approvers = dir.path().join(APPROVERS_DIR);
        fs::create_dir(&approvers).expect("made");
        let ops = approvers.join("ops");
        let good = "o".repeat(40);
        put(&ops, &good, 0o600);
        assert_eq!(tokens.approver(&good), Approver::new("ops"));
        // A whole token of the longest file, and not the beginning of a longer one.
        let long = "o".repeat(limits::TOKEN_BYTES);
        put(&ops, &long, 0o600);
        assert_eq!(tokens.approver(&long), Approver::new("ops"));
        put(&ops, &format!("{long}p"), 0o600);
        assert_eq!(tokens.approver(&long), None);
        let faults = || tokens.faults.lock().expect("whole").clone();
        let why = |path: &Path| faults().get(path).map(|of| of.why.clone());
        assert!(why(&ops).expect("a fault").contains("more than 4096 bytes"));
        // The same again is nothing new; another file of the same fault is.
        assert_eq!(tokens.tell(faults()), 0);
        let before = faults();
        put(&approvers.join("two"), "short", 0o600);
        assert_eq!(tokens.approver(&good), None);
        let after = faults();
        *tokens.faults.lock().expect("whole") = before;
        assert_eq!(tokens.tell(after), 1);
        put(&ops, &good, 0o640);
        assert_eq!(tokens.approver(&good), None);
        assert!(why(&ops).expect("a fault").contains("mode 0600"));
        fs::remove_file(&ops).expect("removed");
        std::os::unix::fs::symlink(dir.path().join(TOKEN_FILE), &ops).expect("a link");
        assert_eq!(tokens.approver(owner.trim()), Some(Approver::Owner));
        assert!(why(&ops).expect("a fault").contains("no link"));
        fs::remove_file(&ops).expect("removed");
        for number in 0..=limits::TOKEN_FILES {
            put(&approvers.join(format!("n{number}")), &good, 0o600);
        }
        assert_eq!(tokens.approver(&good), None);
        assert!(why(&approvers).expect("a fault").contains("more than 64"));
        let wary = Tokens::of(dir.path(), distrusting).expect("there");
        assert_eq!(wary.approver(owner.trim()), None);
    }

    #[test]
    fn the_scheme_is_of_either_case_and_there_is_one() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, HeaderValue::from_static(value));
            }
            given(&headers)
        };
        for good in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(of(&[good]).as_deref(), Some("abc"), "{good}");
        }
        for bad in ["Basic abc", "Bearerabc", "Bearer", ""] {
            assert_eq!(of(&[bad]), None, "{bad}");
        }
        assert_eq!(of(&["Bearer a", "Bearer a"]), None);
        assert_eq!(of(&[]), None);
    }
}
