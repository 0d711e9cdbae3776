//! The rows of workspaces' files in the table of routes.
//!
//! Owns them alone; what a row means is the table's. Must not know where versions are kept.

use axum::http::Method;

use super::super::files;
use super::{LIMIT, MUTATING, ParamKind, QueryParam, READ_ONLY, Route};
use marshal_model::limits;

/// A version of a file.
const VERSION: ParamKind = ParamKind::Text { longest: 20 };

/// See the head of this file.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/workspaces/{workspace}/diff/{*path}",
        name: "diffFile",
        summary: "What differs between two versions of a file",
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
        response: (200, "FileDiff"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(files::diff(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/files",
        name: "listFiles",
        summary: "The files of a workspace that have versions, by path",
        query: &[
            QueryParam {
                name: "prefix",
                kind: ParamKind::Text { longest: 1000 },
                summary: "those whose path begins so",
            },
            LIMIT,
            QueryParam {
                name: "cursor",
                kind: ParamKind::Text { longest: 1024 },
                summary: "`next` of the page before",
            },
        ],
        response: (200, "FileList"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(files::list(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/files/{*path}",
        name: "getFile",
        summary: "A file as it is now, or as it was in a version",
        query: &[QueryParam {
            name: "version",
            kind: VERSION,
            summary: "this version; the newest if not given",
        }],
        response: (200, "File"),
        error_statuses: &[404, 409],
        handler: |desk, call| Box::pin(files::get(desk, call)),
        ..READ_ONLY
    },
    Route {
        method: Method::PUT,
        path: "/api/v1/workspaces/{workspace}/files/{*path}",
        name: "putFile",
        summary: "Writes a file: its next version, durable and on the disk when this answers",
        body: Some("NewFile"),
        body_bytes: limits::HTTP_PUT_BODY_BYTES,
        response: (200, "FileVersion"),
        handler: |desk, call| Box::pin(files::put(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/history/{*path}",
        name: "listVersions",
        summary: "The versions of a file, the newest first",
        query: &[
            LIMIT,
            QueryParam {
                name: "cursor",
                kind: VERSION,
                summary: "`next` of the page before",
            },
        ],
        response: (200, "FileList"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(files::history(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/restore/{*path}",
        name: "restoreFile",
        summary: "Has a file hold again what it held in a version",
        body: Some("RestoreFile"),
        response: (200, "FileVersion"),
        handler: |desk, call| Box::pin(files::restore(desk, call)),
        ..MUTATING
    },
];
