//! The scripts and styles, which are in the program. Each address has the digest of its file, so a
//! browser keeps it for ever and asks for a new one after an upgrade.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use sha2::{Digest as _, Sha256};

/// A file.
struct Asset {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    hash: String,
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    const JS: &str = "text/javascript; charset=utf-8";
    const CSS: &str = "text/css; charset=utf-8";
    let files: [(&str, &str, &[u8]); 6] = [
        (
            "htmx.js",
            JS,
            include_bytes!("../assets/vendor/htmx.min.js"),
        ),
        (
            "sse.js",
            JS,
            include_bytes!("../assets/vendor/hx-sse.min.js"),
        ),
        (
            "uplot.js",
            JS,
            include_bytes!("../assets/vendor/uPlot.iife.min.js"),
        ),
        (
            "uplot.css",
            CSS,
            include_bytes!("../assets/vendor/uPlot.min.css"),
        ),
        ("dashboard.js", JS, include_bytes!("../assets/dashboard.js")),
        (
            "dashboard.css",
            CSS,
            include_bytes!("../assets/dashboard.css"),
        ),
    ];
    let asset = |(name, kind, bytes)| Asset {
        name,
        kind,
        bytes,
        hash: hex::encode(&Sha256::digest(bytes)[..8]),
    };
    files.into_iter().map(asset).collect()
});

/// The address of a file.
pub(crate) fn path(name: &str) -> String {
    let asset = ASSETS.iter().find(|asset| asset.name == name);
    let hash = asset.map_or("", |asset| &asset.hash);
    format!("/assets/{hash}/{name}")
}

pub(crate) async fn asset(
    Path((hash, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Response {
    let found = ASSETS
        .iter()
        .find(|asset| asset.name == name && asset.hash == hash);
    let Some(asset) = found else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let tag = format!("\"{}\"", asset.hash);
    let keep = [
        (
            header::CACHE_CONTROL,
            "public, max-age=31536000, immutable".to_owned(),
        ),
        (header::ETAG, tag.clone()),
        (header::CONTENT_TYPE, asset.kind.to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    let known = headers.get(header::IF_NONE_MATCH);
    if known.is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, keep).into_response();
    }
    (keep, asset.bytes).into_response()
}
