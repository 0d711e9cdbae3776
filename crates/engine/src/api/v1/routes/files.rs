//! The routes of workspace files, as rows of the route table.
//!
//! Owns only the rows; `routes.rs` defines their columns. Must not know where versions are stored.

use axum::http::Method;

use super::super::files::{self, DiffView, FileView, Move, Put, Restore, VersionView};
use super::super::schemas::schema_of;
use super::super::views::List;
use super::{Answer, LIMIT, MUTATING, ParamKind, QueryParam, READ_ONLY, Route};
use marshal_model::limits;

/// A version number of a file.
const VERSION: ParamKind = ParamKind::Text { longest: 20 };

/// The version that a change is made from.
const IF_MATCH: &[(&str, &str, usize)] = &[(
    "If-Match",
    "the ETag of the version that the change is made from; 412 if there is a newer one",
    24,
)];
/// [`IF_MATCH`], or that there is none.
const BASE: &[(&str, &str, usize)] = &[
    IF_MATCH[0],
    ("If-None-Match", "`*`: 412 if the file exists", 1),
];

/// The rows, ordered by path.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/workspaces/{workspace}/diff/{*path}",
        name: "diffFile",
        summary: "Get the differences between two versions of a file",
        query: &[
            QueryParam {
                name: "from",
                kind: VERSION,
                summary: "the older version",
            },
            QueryParam {
                name: "to",
                kind: VERSION,
                summary: "the newer version",
            },
        ],
        response: (200, Answer::Json(schema_of::<DiffView>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(files::diff(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/file-ids/{file}",
        name: "getFileById",
        summary: "Get the newest version of the file with this id, wherever it is now",
        response: (200, Answer::Json(schema_of::<VersionView>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(files::get_by_id(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/files",
        name: "listFiles",
        summary: "List the files of a workspace that have versions, by path",
        query: &[
            QueryParam {
                name: "prefix",
                kind: ParamKind::Text { longest: 1000 },
                summary: "only paths with this prefix",
            },
            LIMIT,
            QueryParam {
                name: "cursor",
                kind: ParamKind::Text { longest: 1024 },
                summary: "`next` of the previous page",
            },
        ],
        response: (200, Answer::Json(schema_of::<List<VersionView>>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(files::list(app, request)),
        ..READ_ONLY
    },
    Route {
        method: Method::DELETE,
        path: "/api/v1/workspaces/{workspace}/files/{*path}",
        name: "deleteFile",
        summary: "Delete a file; returns when the version that says so is durable and the file is gone",
        headers: IF_MATCH,
        response: (200, Answer::Json(schema_of::<VersionView>)),
        error_statuses: &[404, 409, 412],
        handler: |app, request| Box::pin(files::delete(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/files/{*path}",
        name: "getFile",
        summary: "Get the current content of a file, or the content of a version",
        query: &[QueryParam {
            name: "version",
            kind: VERSION,
            summary: "the version to get; the newest by default",
        }],
        headers: &[(
            "If-None-Match",
            "the ETag of a version that the client has; 304 without a body if it is the newest",
            200,
        )],
        response: (200, Answer::Json(schema_of::<FileView>)),
        error_statuses: &[404, 409],
        handler: |app, request| Box::pin(files::get(app, request)),
        ..READ_ONLY
    },
    Route {
        method: Method::PUT,
        path: "/api/v1/workspaces/{workspace}/files/{*path}",
        name: "putFile",
        summary: "Write a file as its next version; returns when it is durable and on the disk",
        headers: BASE,
        body: Some(schema_of::<Put>),
        body_bytes: limits::HTTP_PUT_BODY_BYTES,
        response: (200, Answer::Json(schema_of::<VersionView>)),
        error_statuses: &[404, 409, 412],
        handler: |app, request| Box::pin(files::put(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/history/{*path}",
        name: "listVersions",
        summary: "List the versions of a file, newest first",
        query: &[
            LIMIT,
            QueryParam {
                name: "cursor",
                kind: VERSION,
                summary: "`next` of the previous page",
            },
        ],
        response: (200, Answer::Json(schema_of::<List<VersionView>>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(files::history(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/move/{*path}",
        name: "moveFile",
        summary: "Give a file another path; it keeps its id and its versions",
        headers: IF_MATCH,
        body: Some(schema_of::<Move>),
        response: (200, Answer::Json(schema_of::<VersionView>)),
        error_statuses: &[404, 409, 412],
        handler: |app, request| Box::pin(files::move_file(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/restore/{*path}",
        name: "restoreFile",
        summary: "Restore the content that a file had in a version",
        headers: IF_MATCH,
        body: Some(schema_of::<Restore>),
        response: (200, Answer::Json(schema_of::<VersionView>)),
        error_statuses: &[404, 409, 412],
        handler: |app, request| Box::pin(files::restore(app, request)),
        ..MUTATING
    },
];
