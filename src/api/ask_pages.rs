//! The asks over HTTP: `GET /asks`, `GET /asks/ID`, `POST /asks/ID`.
//!
//! Owns who may: only whoever brings a token, which stands in a file that the supervisor's user alone
//! can read, for what an agent wants to run is nobody else's business either. Must not know what an
//! answer does.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use sha2::{Digest as _, Sha256};

use super::asks::{self, AnsweredView, AskView};
use super::http::problem;
use super::request::{Code, Failure};
use super::service::Fleet;
use crate::config::Approver;
use crate::model::AskId;

/// The owner's token, in the state directory.
pub const TOKEN_FILE: &str = "http.token";
/// The directory of further tokens there, one a file; its name is the approver's.
pub const APPROVERS_DIR: &str = "approvers";
/// The shortest token that is taken, in bytes.
const SHORTEST: usize = 32;
/// The longest.
const LONGEST: u64 = 4096;
/// Files of tokens that are looked at.
const FILES: usize = 64;

/// Where the tokens are.
#[derive(Debug, Clone)]
pub struct Tokens {
    dir: Arc<Path>,
}

impl Tokens {
    /// The tokens of a state directory; makes the owner's if there is none.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn of(state_dir: &Path) -> io::Result<Self> {
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
        })
    }

    /// Whose token this is. Reads the files anew: one can be taken away while we run.
    fn approver(&self, token: &str) -> Option<Approver> {
        let given = Sha256::digest(token.as_bytes());
        let is_same = |path: &Path| {
            let known = read_token(path)?;
            // Over digests, and every byte of them: how long it takes tells nothing.
            let known = Sha256::digest(known.as_bytes());
            let differ = known
                .iter()
                .zip(given.iter())
                .fold(0, |all, (a, b)| all | (a ^ b));
            (std::hint::black_box(differ) == 0).then_some(())
        };
        let mut found = is_same(&self.dir.join(TOKEN_FILE)).map(|()| Approver::Owner);
        let others = fs::read_dir(self.dir.join(APPROVERS_DIR)).ok();
        for entry in others.into_iter().flatten().flatten().take(FILES) {
            let name = entry.file_name();
            let approver = name.to_str().and_then(Approver::new);
            let approver = approver.filter(|of| *of != Approver::Owner);
            if let Some(approver) = approver
                && is_same(&entry.path()).is_some()
            {
                found = found.or(Some(approver));
            }
        }
        found
    }
}

fn getrandom(bytes: &mut [u8]) -> io::Result<()> {
    fs::File::open("/dev/urandom")?.read_exact(bytes)
}

/// A token that nobody else can read.
fn read_token(path: &Path) -> Option<String> {
    let refused = |why: &str| {
        tracing::warn!(path = %path.display(), why, "a token is not taken");
        None
    };
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
        .open(path)
        .ok()?;
    let meta = file.metadata().ok()?;
    let own = rustix::process::geteuid().as_raw();
    if !meta.is_file() || meta.uid() != own && meta.uid() != 0 || meta.mode() & 0o077 != 0 {
        return refused("it must be a file of the supervisor's user with mode 0600");
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).ok()?;
    let text = text.trim();
    if text.len() < SHORTEST {
        return refused("it is shorter than 32 characters");
    }
    Some(text.to_owned())
}

/// What the pages need.
#[derive(Debug)]
struct Desk<F> {
    fleet: F,
    tokens: Tokens,
}

impl<F: Clone> Clone for Desk<F> {
    fn clone(&self) -> Self {
        Self {
            fleet: self.fleet.clone(),
            tokens: self.tokens.clone(),
        }
    }
}

/// The pages.
pub fn router<F: Fleet>(fleet: F, tokens: Tokens) -> Router {
    Router::new()
        .route("/asks", get(list::<F>))
        .route("/asks/{ask}", get(one::<F>).post(answer::<F>))
        .with_state(Desk { fleet, tokens })
}

/// Who sends this.
async fn approver<F: Fleet>(desk: &Desk<F>, headers: &HeaderMap) -> Result<Approver, Response> {
    let mut given = headers.get_all(header::AUTHORIZATION).iter();
    let token = match (given.next(), given.next()) {
        (Some(one), None) => one
            .to_str()
            .ok()
            .and_then(|text| text.strip_prefix("Bearer ")),
        _ => None,
    };
    let refused = || {
        let detail = "a token is needed: Authorization: Bearer, and what stands in http.token of the state directory";
        let mut response = problem(StatusCode::UNAUTHORIZED, detail);
        let how = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
        response
    };
    let Some(token) = token.map(|text| text.trim().to_owned()) else {
        return Err(refused());
    };
    let tokens = desk.tokens.clone();
    let found = tokio::task::spawn_blocking(move || tokens.approver(&token)).await;
    found.ok().flatten().ok_or_else(refused)
}

fn json(status: StatusCode, body: &impl serde::Serialize) -> Response {
    let body = serde_json::to_string(body).unwrap_or_default();
    (
        status,
        [
            (header::CONTENT_TYPE, "application/json"),
            (header::CACHE_CONTROL, "no-store"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ],
        format!("{body}\n"),
    )
        .into_response()
}

fn failed(failure: &Failure) -> Response {
    let status = match failure.code {
        Code::NoSuchAsk => StatusCode::NOT_FOUND,
        Code::AskOver => StatusCode::CONFLICT,
        Code::NotPermitted => StatusCode::FORBIDDEN,
        Code::BadRequest => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    problem(status, &failure.message)
}

async fn list<F: Fleet>(State(desk): State<Desk<F>>, headers: HeaderMap, uri: Uri) -> Response {
    if let Err(refused) = approver(&desk, &headers).await {
        return refused;
    }
    let over = match uri.query() {
        None | Some("" | "over=false") => false,
        Some("over=true") => true,
        Some(_) => return problem(StatusCode::BAD_REQUEST, "this page knows ?over=true only"),
    };
    match desk.fleet.questions(over).await {
        Ok(found) => json(
            StatusCode::OK,
            &found.iter().map(AskView::of).collect::<Vec<_>>(),
        ),
        Err(why) => problem(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

async fn one<F: Fleet>(
    State(desk): State<Desk<F>>,
    headers: HeaderMap,
    UrlPath(ask): UrlPath<String>,
) -> Response {
    if let Err(refused) = approver(&desk, &headers).await {
        return refused;
    }
    let none = || problem(StatusCode::NOT_FOUND, "there is no such ask");
    let Ok(ask) = AskId::new(&ask) else {
        return none();
    };
    match desk.fleet.question(ask).await {
        Ok(Some(found)) => json(StatusCode::OK, &AskView::whole(&found)),
        Ok(None) => none(),
        Err(why) => problem(StatusCode::SERVICE_UNAVAILABLE, &why),
    }
}

async fn answer<F: Fleet>(
    State(desk): State<Desk<F>>,
    headers: HeaderMap,
    UrlPath(ask): UrlPath<String>,
    body: Bytes,
) -> Response {
    let approver = match approver(&desk, &headers).await {
        Ok(approver) => approver,
        Err(refused) => return refused,
    };
    let Ok(ask) = AskId::new(&ask) else {
        return problem(StatusCode::NOT_FOUND, "there is no such ask");
    };
    let is_json = headers.get(header::CONTENT_TYPE).is_some_and(|of| {
        let of = of.as_bytes();
        of == b"application/json" || of.starts_with(b"application/json;")
    });
    if !is_json {
        let detail = "the body must be application/json";
        return problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
    }
    let answer = match asks::read_answer(ask, &body) {
        Ok(answer) => answer,
        Err(failure) => return failed(&failure),
    };
    let who = format!("token {approver}");
    match desk.fleet.answer(answer.order(approver, who)).await {
        Ok(answered) => json(StatusCode::OK, &AnsweredView::of(&answered)),
        Err(error) => failed(&asks::failure(&error)),
    }
}
