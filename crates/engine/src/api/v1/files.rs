//! Configured workspaces, and the versions of their files.
//!
//! Shows only what the version store has: these routes read no directory of the host. Must not know
//! how versions are stored.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::alphabet::STANDARD as STANDARD_ALPHABET;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::error::ApiError;
use super::request_context::RequestContext;
use super::views::{List, respond_ok};
use super::{AppState, HandlerResult};
use crate::api::http::ProblemKind;
use crate::api::time::Time;
use marshal_config::Approver;
use marshal_fleet::{FileWrite, FilesError, HostAccessError, Parents};
use marshal_model::limits::{HTTP_PUT_BYTES, STORE_PAGE, STORE_PATH_BYTES};
use marshal_model::{Role, WorkspaceName};
use marshal_store::{
    Author, AuthorKind, Base, Cause, ContentState, Diff, FileId, Origin, StoreError, Version,
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Workspace")]
pub(super) struct WorkspaceView {
    name: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FileAuthor")]
pub(super) struct AuthorView {
    #[schemars(extend("enum" = words!(AuthorKind)))]
    kind: &'static str,
    name: String,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FileVersion")]
pub(super) struct VersionView {
    /// The file's id, which stays when the file is moved.
    #[schemars(extend("format" = "uuid"))]
    file: String,
    path: String,
    version: u64,
    base: Option<u64>,
    #[schemars(extend("enum" = words!(Cause)))]
    cause: &'static str,
    author: AuthorView,
    task: Option<String>,
    at: Time,
    bytes: u64,
    sha256: Option<String>,
    #[schemars(extend("enum" = ["kept", "measured", "gone"]))]
    held: &'static str,
    executable: bool,
}

/// A version with the file's content.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "File")]
pub(super) struct FileView {
    version: VersionView,
    #[serde(flatten)]
    holds: FileContent,
}

/// The whole content of a file.
#[derive(Serialize, Default, JsonSchema)]
pub(super) struct FileContent {
    /// The content, if it is text.
    content: Option<String>,
    /// The content in base64, if it is not text or has control characters, which would be six times
    /// as long in JSON.
    base64: Option<String>,
}

impl FileContent {
    fn from_bytes(bytes: Vec<u8>) -> Self {
        let is_plain =
            |byte: &u8| !byte.is_ascii_control() || matches!(byte, b'\t' | b'\n' | b'\r');
        let is_text = bytes.iter().all(is_plain);
        let text = if is_text {
            String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes)
        } else {
            Err(bytes)
        };
        match text {
            Ok(text) => Self {
                content: Some(text),
                base64: None,
            },
            Err(bytes) => Self {
                content: None,
                base64: Some(STANDARD.encode(bytes)),
            },
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FileDiff")]
pub(super) struct DiffView {
    from: u64,
    to: u64,
    #[schemars(extend("enum" = ["same", "text", "binary", "too_long", "not_held"]))]
    kind: &'static str,
    text: Option<String>,
    cut: bool,
}

/// The greatest number that every JSON reader keeps exactly.
const NUMBER: u64 = (1 << 53) - 1;

/// Accepts all base64 that the pattern in the OpenAPI document accepts.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD_ALPHABET,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "NewFile")]
#[schemars(
    example = serde_json::json!({"content": "# Notes\n"}),
    extend("if" = {"required": ["content"]}, "then" = {"not": {"required": ["base64"]}}, "else" = {"required": ["base64"]})
)]
pub(super) struct Put {
    #[serde(default, deserialize_with = "text")]
    #[schemars(with = "String", length(max = HTTP_PUT_BYTES))]
    content: Option<String>,
    /// The content in base64, for bytes that are not text.
    #[serde(default, deserialize_with = "text")]
    #[schemars(with = "String", length(max = HTTP_PUT_BYTES.div_ceil(3) * 4), regex(pattern = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"))]
    base64: Option<String>,
    /// The version that this one is based on; 0 means that the file must not exist; if omitted, any
    /// version is replaced.
    #[schemars(range(max = NUMBER))]
    base: Option<u64>,
}

/// Parses a member that may be missing, but not null.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    String::deserialize(from).map(Some)
}

impl Put {
    fn bytes(self) -> Result<Vec<u8>, ApiError> {
        let bytes = match (self.content, self.base64) {
            (Some(text), None) => text.into_bytes(),
            (None, Some(text)) => LENIENT.decode(text).map_err(|error| {
                ApiError::bad_request(format!("\"base64\" is not valid base64: {error}"))
            })?,
            _ => {
                return Err(ApiError::bad_request(
                    "the body must have either \"content\" or \"base64\"",
                ));
            }
        };
        if bytes.len() > HTTP_PUT_BYTES {
            let detail =
                format!("the file is too large: at most {HTTP_PUT_BYTES} bytes can be written");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
        }
        Ok(bytes)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "RestoreFile")]
#[schemars(example = serde_json::json!({"version": 1}))]
pub(super) struct Restore {
    #[schemars(range(min = 1, max = NUMBER))]
    version: u64,
    /// The version that this one is based on; 0 means that the file must not exist; if omitted, any
    /// version is replaced.
    #[schemars(range(max = NUMBER))]
    base: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "MoveFile")]
#[schemars(example = serde_json::json!({"to": "src/b.txt"}))]
pub(super) struct Move {
    /// The new path; nothing may be there. Missing directories are created.
    #[schemars(length(min = 1, max = STORE_PATH_BYTES))]
    to: String,
    /// The version that the caller knows; if omitted, any version is moved.
    #[schemars(range(min = 1, max = NUMBER))]
    base: Option<u64>,
}

impl VersionView {
    fn from_version(version: &Version) -> Self {
        Self {
            file: version.file.to_string(),
            path: version.path.as_str().to_owned(),
            version: version.v,
            base: version.base,
            cause: version.cause.as_str(),
            author: AuthorView {
                kind: version.origin.author.kind.as_str(),
                name: version.origin.author.name.raw().to_owned(),
            },
            task: version.origin.task.clone(),
            at: Time::from_ms(version.at_ms),
            bytes: version.bytes,
            sha256: version.digest.map(|digest| digest.to_string()),
            held: match version.content_state {
                ContentState::Stored => "kept",
                ContentState::DigestOnly => "measured",
                ContentState::Deleted => "gone",
            },
            executable: version.exec,
        }
    }
}

/// Returns the origin of a version that an approver wrote.
fn origin_of(who: &Approver) -> Origin {
    Origin::new(Author::new(AuthorKind::Person, &who.to_string()))
}

fn base(given: Option<u64>) -> Base {
    match given {
        None => Base::Any,
        Some(0) => Base::New,
        Some(v) => Base::At(v),
    }
}

/// The entity tag of a version.
fn entity_tag(version: u64) -> String {
    format!("\"{version}\"")
}

/// Whether a tag of a header is this version's; `*` is of any.
fn names_version(tag: &str, version: u64) -> bool {
    tag == "*" || tag == entity_tag(version)
}

fn header_value<'a>(request: &'a RequestContext, name: &str) -> Result<Option<&'a str>, ApiError> {
    let value = request.headers.get(name).map(|value| value.to_str());
    let value = value.transpose().map(|value| value.map(str::trim));
    value.map_err(|_| ApiError::bad_request(format!("the header {name} is not text")))
}

/// The base of a change: of the body, or of the headers `If-Match` and `If-None-Match`. With
/// whether a header named it.
fn base_of(request: &RequestContext, given: Option<u64>) -> Result<(Base, bool), ApiError> {
    let bad =
        |name: &str, form: &str| ApiError::bad_request(format!("the header {name} must be {form}"));
    let matches = header_value(request, "if-match")?;
    let matches = matches.map(|tag| {
        let number = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
        let number = number.and_then(|number| number.parse().ok());
        let number = number.filter(|number| entity_tag(*number) == tag && *number > 0);
        number.ok_or_else(|| bad("If-Match", "the ETag of one version, such as \"3\""))
    });
    let matches = matches.transpose()?;
    let is_new = match header_value(request, "if-none-match")? {
        None => false,
        Some("*") => true,
        Some(_) => return Err(bad("If-None-Match", "*: the file must not exist")),
    };
    match (matches, is_new, given) {
        (None, false, given) => Ok((base(given), false)),
        (None, true, None | Some(0)) => Ok((Base::New, true)),
        (Some(v), false, given) if given.is_none_or(|given| given == v) => Ok((Base::At(v), true)),
        _ => Err(ApiError::bad_request(
            "\"base\", If-Match and If-None-Match do not agree: send one of them",
        )),
    }
}

/// The error of a change. A base that a header named is a precondition.
fn change_error(error: &FilesError, by_header: bool) -> ApiError {
    let is_stale = matches!(
        error,
        FilesError::Store(StoreError::Stale { .. } | StoreError::NoBase { .. })
    );
    match is_stale {
        true if by_header => ApiError::new(StatusCode::PRECONDITION_FAILED, error.to_string()),
        true => files_error(error).with_kind(ProblemKind::Stale),
        false => files_error(error),
    }
}

/// A version, with its entity tag.
fn respond_version(version: &Version) -> HandlerResult {
    let response = respond_ok(&VersionView::from_version(version))?;
    Ok(with_entity_tag(response, version.v))
}

fn with_entity_tag(mut response: Response, version: u64) -> Response {
    if let Ok(tag) = HeaderValue::from_str(&entity_tag(version)) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

fn files_error(error: &FilesError) -> ApiError {
    let status = match error {
        FilesError::NoWorkspace(_)
        | FilesError::NoFile(_)
        | FilesError::Inner { .. }
        | FilesError::Store(
            StoreError::NoFile(_) | StoreError::NoVersion { .. } | StoreError::NoWorkspace(_),
        ) => StatusCode::NOT_FOUND,
        FilesError::Name(_)
        | FilesError::Store(StoreError::Name(_) | StoreError::InvalidRequest(_)) => {
            StatusCode::BAD_REQUEST
        }
        FilesError::Protected(_) => StatusCode::FORBIDDEN,
        FilesError::Disk {
            source: HostAccessError::TooLarge(_),
            ..
        } => StatusCode::PAYLOAD_TOO_LARGE,
        FilesError::Disk { .. }
        | FilesError::Changed(_)
        | FilesError::Store(
            StoreError::Stale { .. }
            | StoreError::NoBase { .. }
            | StoreError::NoContent { .. }
            | StoreError::Exists(_),
        ) => StatusCode::CONFLICT,
        FilesError::NoStore
        | FilesError::Workspace(_)
        | FilesError::Store(_)
        | FilesError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
    };
    // The host's path of a workspace is not disclosed.
    let detail = match error {
        FilesError::Workspace(_) => "the workspace's directory cannot be opened".to_owned(),
        error => error.to_string(),
    };
    ApiError::new(status, detail)
}

fn workspace(request: &RequestContext) -> Result<WorkspaceName, ApiError> {
    let name = request.path_param("workspace");
    WorkspaceName::new(name).map_err(|_| ApiError::not_found("there is no such workspace"))
}

/// Returns a version number of the query.
fn number(request: &RequestContext, key: &str) -> Result<Option<u64>, ApiError> {
    let Some(text) = request.query_param(key) else {
        return Ok(None);
    };
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|v| is_plain && *v > 0);
    match number {
        Some(v) => Ok(Some(v)),
        None => Err(ApiError::bad_request(format!(
            "query key {key:?} must be a version, 1 or greater"
        ))),
    }
}

fn limit(request: &RequestContext) -> u32 {
    request.limit().min(STORE_PAGE)
}

pub(super) async fn workspaces(app: AppState, _: RequestContext) -> HandlerResult {
    let names = app.fleet.workspaces().into_iter();
    let items = names.map(|name| WorkspaceView {
        name: name.to_string(),
    });
    respond_ok(&List {
        items: items.collect(),
        next: None,
    })
}

pub(super) async fn get_workspace(app: AppState, request: RequestContext) -> HandlerResult {
    let wanted = workspace(&request)?;
    let names = app.fleet.workspaces();
    let found = names
        .iter()
        .find(|name| **name == wanted)
        .ok_or_else(|| ApiError::not_found("there is no such workspace"))?;
    respond_ok(&WorkspaceView {
        name: found.to_string(),
    })
}

pub(super) async fn list(app: AppState, request: RequestContext) -> HandlerResult {
    let workspace = workspace(&request)?;
    let prefix = request.query_param("prefix").unwrap_or("");
    let after = request.query_param("cursor");
    let page = app
        .fleet
        .list_files(&workspace, prefix, after, limit(&request))
        .await
        .map_err(|error| files_error(&error))?;
    let rows = page.rows.iter();
    respond_ok(&List {
        items: rows
            .map(|file| VersionView::from_version(&file.current))
            .collect(),
        next: page.next,
    })
}

pub(super) async fn get(app: AppState, request: RequestContext) -> HandlerResult {
    let (workspace, v) = (workspace(&request)?, number(&request, "version")?);
    let _place = app.transfer_budget.acquire_work().await?;
    let fetched = app
        .fleet
        .file_version(&workspace, request.path_param("path"), v)
        .await
        .map_err(|error| files_error(&error))?;
    if v.is_none() && fetched.version.content_state == ContentState::Deleted {
        let detail = format!(
            "version {} deleted the file; request an earlier one with ?version=",
            fetched.version.v
        );
        return Err(ApiError::not_found(detail));
    }
    let number = fetched.version.v;
    let known = header_value(&request, "if-none-match")?;
    if known.is_some_and(|tag| names_version(tag, number)) {
        let unchanged = StatusCode::NOT_MODIFIED.into_response();
        return Ok(with_entity_tag(unchanged, number));
    }
    let version = VersionView::from_version(&fetched.version);
    let content = fetched.content;
    let holds = move || {
        content
            .map(Vec::from)
            .map_or_else(FileContent::default, FileContent::from_bytes)
    };
    let holds = tokio::task::spawn_blocking(holds)
        .await
        .map_err(|_| ApiError::unavailable("the content could not be encoded"))?;
    let response = app.transfer_budget.respond(FileView { version, holds });
    Ok(with_entity_tag(response.await?, number))
}

/// Refuses a file that other programs run or obey, unless the caller administrates the host anyway.
fn refuse_protected(request: &RequestContext, path: &str) -> Result<(), ApiError> {
    if request.caller.role.satisfies(Role::Admin)
        || !marshal_policy::guard().is_protected(path, true)
    {
        return Ok(());
    }
    let detail = "other programs run or obey this file (a setting or hook of git, CI, an editor, a shell or an agent): writing it requires the role admin";
    Err(ApiError::new(StatusCode::FORBIDDEN, detail))
}

pub(super) async fn put(app: AppState, request: RequestContext) -> HandlerResult {
    refuse_protected(&request, request.path_param("path"))?;
    let workspace = workspace(&request)?;
    let put: Put = request.body()?;
    let (base, by_header) = base_of(&request, put.base)?;
    let file = FileWrite {
        base,
        expected_digest: None,
        bytes: put.bytes()?.into(),
        origin: origin_of(&request.caller.approver),
        parents: Parents::Make,
    };
    let written = app
        .fleet
        .write_file(&workspace, request.path_param("path"), file);
    let version = written
        .await
        .map_err(|error| change_error(&error, by_header))?;
    respond_version(&version)
}

pub(super) async fn get_by_id(app: AppState, request: RequestContext) -> HandlerResult {
    let workspace = workspace(&request)?;
    let id = request.path_param("file").parse();
    let id = id.map_err(|_| ApiError::not_found("there is no file with this id"))?;
    let file = app.fleet.file_by_id(&workspace, FileId(id)).await;
    let file = file.map_err(|error| match error {
        // Its path is not disclosed either.
        FilesError::Protected(_) => ApiError::not_found("there is no file with this id"),
        error => files_error(&error),
    })?;
    respond_version(&file.current)
}

pub(super) async fn move_file(app: AppState, request: RequestContext) -> HandlerResult {
    let workspace = workspace(&request)?;
    let wanted: Move = request.body()?;
    let from = request.path_param("path");
    for path in [from, &wanted.to] {
        refuse_protected(&request, path)?;
    }
    let (base, by_header) = base_of(&request, wanted.base)?;
    let origin = origin_of(&request.caller.approver);
    let moved = app
        .fleet
        .move_file(&workspace, (from, &wanted.to), base, origin);
    let version = moved
        .await
        .map_err(|error| change_error(&error, by_header))?;
    respond_version(&version)
}

pub(super) async fn delete(app: AppState, request: RequestContext) -> HandlerResult {
    refuse_protected(&request, request.path_param("path"))?;
    let workspace = workspace(&request)?;
    let (base, by_header) = base_of(&request, None)?;
    let origin = origin_of(&request.caller.approver);
    let deleted = app
        .fleet
        .delete_file(&workspace, request.path_param("path"), base, origin);
    let version = deleted
        .await
        .map_err(|error| change_error(&error, by_header))?;
    respond_version(&version)
}

pub(super) async fn history(app: AppState, request: RequestContext) -> HandlerResult {
    let workspace = workspace(&request)?;
    let before = number(&request, "cursor")?;
    let page = app
        .fleet
        .file_history(
            &workspace,
            request.path_param("path"),
            before,
            limit(&request),
        )
        .await
        .map_err(|error| files_error(&error))?;
    respond_ok(&List {
        items: page.rows.iter().map(VersionView::from_version).collect(),
        next: page.next.map(|v| v.to_string()),
    })
}

pub(super) async fn diff(app: AppState, request: RequestContext) -> HandlerResult {
    let workspace = workspace(&request)?;
    let (Some(from), Some(to)) = (number(&request, "from")?, number(&request, "to")?) else {
        return Err(ApiError::bad_request(
            "the query must have \"from\" and \"to\", two versions",
        ));
    };
    let _place = app.transfer_budget.acquire_work().await?;
    let diff = app
        .fleet
        .file_diff(&workspace, request.path_param("path"), (from, to));
    let (kind, text, cut) = match diff.await.map_err(|error| files_error(&error))? {
        Diff::Same => ("same", None, false),
        Diff::Text { text, cut } => ("text", Some(text), cut),
        Diff::Binary => ("binary", None, false),
        Diff::TooLong => ("too_long", None, false),
        Diff::NotStored => ("not_held", None, false),
    };
    respond_ok(&DiffView {
        from,
        to,
        kind,
        text,
        cut,
    })
}

pub(super) async fn restore(app: AppState, request: RequestContext) -> HandlerResult {
    refuse_protected(&request, request.path_param("path"))?;
    let workspace = workspace(&request)?;
    let wanted: Restore = request.body()?;
    let (base, by_header) = base_of(&request, wanted.base)?;
    let of = (wanted.version, base);
    let _place = app.transfer_budget.acquire_work().await?;
    let restored = app.fleet.restore_file(
        &workspace,
        request.path_param("path"),
        of,
        origin_of(&request.caller.approver),
    );
    let version = restored
        .await
        .map_err(|error| change_error(&error, by_header))?;
    respond_version(&version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_would_make_much_longer_is_base64() {
        let holds = |bytes: &[u8]| {
            let FileContent { content, base64 } = FileContent::from_bytes(bytes.to_vec());
            (content, base64)
        };
        let text = "a\t\"é\"\r\n";
        assert_eq!(holds(text.as_bytes()), (Some(text.to_owned()), None));
        assert_eq!(holds(b""), (Some(String::new()), None));
        for bytes in [b"a\0".as_slice(), b"\x1b[1m", b"\x7f", b"\xff"] {
            assert_eq!(holds(bytes), (None, Some(STANDARD.encode(bytes))));
        }
        for byte in [0, b'"', b'x', 0xff] {
            let size = 1 << 20;
            let longest = serde_json::to_vec(&FileContent::from_bytes(vec![byte; size]))
                .expect("JSON")
                .len();
            assert!(longest < 2 * size + 100, "{byte}: {longest}");
        }
    }
}
