//! The rows of workspaces' files in the table of routes.
//!
//! Owns them alone; what a row means is the table's. Must not know where versions are kept.

use axum::http::Method;

use super::super::files;
use super::{ACTS, Given, Key, LIMIT, LOOKS, Route};
use crate::limits;

/// A version of a file.
const VERSION: Given = Given::Text { longest: 20 };

/// See the head of this file.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/workspaces/{workspace}/diff/{*path}",
        name: "diffFile",
        does: "What differs between two versions of a file",
        query: &[
            Key {
                name: "from",
                is: VERSION,
                does: "the older version",
            },
            Key {
                name: "to",
                is: VERSION,
                does: "the newer version",
            },
        ],
        gives: (200, "FileDiff"),
        refuses: &[404],
        handle: |desk, call| Box::pin(files::diff(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/files",
        name: "listFiles",
        does: "The files of a workspace that have versions, by path",
        query: &[
            Key {
                name: "prefix",
                is: Given::Text { longest: 1000 },
                does: "those whose path begins so",
            },
            LIMIT,
            Key {
                name: "cursor",
                is: Given::Text { longest: 1024 },
                does: "`next` of the page before",
            },
        ],
        gives: (200, "FileList"),
        refuses: &[404],
        handle: |desk, call| Box::pin(files::list(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/files/{*path}",
        name: "getFile",
        does: "A file as it is now, or as it was in a version",
        query: &[Key {
            name: "version",
            is: VERSION,
            does: "this version; the newest if not given",
        }],
        gives: (200, "File"),
        refuses: &[404, 409],
        handle: |desk, call| Box::pin(files::one(desk, call)),
        ..LOOKS
    },
    Route {
        method: Method::PUT,
        path: "/api/v1/workspaces/{workspace}/files/{*path}",
        name: "putFile",
        does: "Writes a file: its next version, durable and on the disk when this answers",
        body: Some("NewFile"),
        body_bytes: limits::HTTP_PUT_BODY_BYTES,
        gives: (200, "FileVersion"),
        handle: |desk, call| Box::pin(files::put(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/history/{*path}",
        name: "listVersions",
        does: "The versions of a file, the newest first",
        query: &[
            LIMIT,
            Key {
                name: "cursor",
                is: VERSION,
                does: "`next` of the page before",
            },
        ],
        gives: (200, "FileList"),
        refuses: &[404],
        handle: |desk, call| Box::pin(files::history(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/restore/{*path}",
        name: "restoreFile",
        does: "Has a file hold again what it held in a version",
        body: Some("RestoreFile"),
        gives: (200, "FileVersion"),
        handle: |desk, call| Box::pin(files::restore(desk, call)),
        ..ACTS
    },
];
