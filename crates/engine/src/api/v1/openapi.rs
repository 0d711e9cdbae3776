//! The OpenAPI 3.1 document: made from [`all_routes`] and the types that they name.
//!
//! Owns its format, which `docs/openapi.json` and `/api/v1/openapi.json` share. Must not know what
//! a route does.

use serde_json::{Map, Value, json};

use super::request_context::{LONGEST_PAGE, RequestContext};
use super::routes::{Answer, ParamKind, QueryParam, Route, all_routes};
use super::schemas::{Generators, schema_of};
use super::views::respond_ok;
use super::{AppState, HandlerResult};
use crate::api::http::Problem;

/// The media type of a stream.
const STREAM: &str = "text/event-stream";

/// The error statuses of every route.
const COMMON_ERRORS: [u16; 8] = [400, 401, 403, 411, 413, 421, 429, 503];
/// The additional error statuses of routes with a body.
const BODY_ERRORS: [u16; 2] = [408, 415];

pub(super) async fn page(_: AppState, _: RequestContext) -> HandlerResult {
    respond_ok(&document())
}

/// Returns the document, or the routes as a table.
#[must_use]
pub fn render(routes: bool) -> String {
    if routes { table() } else { text() }
}

/// Returns the document as `docs/openapi.json` has it.
fn text() -> String {
    let text = serde_json::to_string_pretty(&document());
    format!("{}\n", text.unwrap_or_default())
}

/// Returns the routes as the Markdown table of `docs/rest.md`.
fn table() -> String {
    let mut out = "| route | least role | what it does |\n|---|---|---|\n".to_owned();
    for route in all_routes() {
        let line = format!(
            "| `{} {}` | {} | {} |\n",
            route.method,
            route.path,
            route.role.as_str(),
            route.summary
        );
        out.push_str(&line);
    }
    out
}

fn document() -> Value {
    let mut paths = Map::new();
    let mut schemas = Generators::new();
    for route in all_routes() {
        if matches!(route.response.1, Answer::WebSocket) {
            continue;
        }
        // A parameter for the rest of a path is one parameter to a client, with its slashes encoded
        // or not.
        let path = route.path.replace("{*", "{");
        let of_path = paths.entry(path).or_insert_with(|| json!({}));
        if let Value::Object(of_path) = of_path {
            let method = route.method.as_str().to_ascii_lowercase();
            of_path.insert(method, operation(route, &mut schemas));
        }
    }
    let problem = schema_of::<Problem<'_>>(&mut schemas.answers);
    debug_assert_eq!(problem.as_value(), &schema_ref("Problem"));
    let schemas = schemas.into_definitions();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "marshal",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A fleet of agents on one host: pools, slots, sessions, tasks, approvals.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": tags(),
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The content of the file http.token in the state directory.",
                },
            },
            "schemas": schemas,
        },
    })
}

/// What a route is about: chats and files of a workspace are subjects of their own.
fn tag(path: &str) -> &str {
    let mut parts = path.trim_start_matches("/api/v1/").split('/');
    let subject = parts.next().unwrap_or_default();
    match (subject, parts.nth(1)) {
        ("workspaces", Some("chats")) => "chats",
        ("workspaces", Some(_)) => "files",
        ("openapi.json" | "config" | "stop" | "events" | "supervisor", _) => "fleet",
        _ => subject,
    }
}

fn tags() -> Vec<Value> {
    let names: std::collections::BTreeSet<&str> =
        all_routes().map(|route| tag(route.path)).collect();
    names
        .into_iter()
        .map(|name| json!({"name": name}))
        .collect()
}

fn schema_ref(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

fn operation(route: &Route, schemas: &mut Generators) -> Value {
    let mut parameters: Vec<Value> = names(route.path).map(in_path).collect();
    parameters.extend(route.query.iter().map(in_query));
    parameters.extend(route.headers.iter().map(|(name, does, longest)| {
        json!({
            "name": name, "in": "header", "required": false, "description": does,
            "schema": {"type": "string", "minLength": 1, "maxLength": longest},
        })
    }));
    let mut operation = json!({
        "operationId": route.name,
        "summary": route.summary,
        "tags": [tag(route.path)],
        "x-role": route.role.as_str(),
        "parameters": parameters,
        "responses": responses(route, schemas),
    });
    if let (Some(body), Value::Object(entries)) = (route.body, &mut operation) {
        let content = json!({"application/json": {"schema": body(&mut schemas.bodies)}});
        let body = json!({"required": true, "content": content});
        entries.insert("requestBody".to_owned(), body);
    }
    operation
}

/// Returns the names of the parameters in a path.
fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| name.trim_start_matches('*'))
}

fn in_path(name: &str) -> Value {
    let schema = match name {
        "pool" | "workspace" => {
            json!({"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,31}$"})
        }
        "path" => json!({"type": "string", "minLength": 1, "maxLength": 1024}),
        "file" => json!({"type": "string", "format": "uuid"}),
        "slot" => json!({"type": "integer", "minimum": 0, "maximum": u16::MAX}),
        "task" => json!({
            "type": "string",
            "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}:[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
        }),
        _ => json!({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}),
    };
    json!({"name": name, "in": "path", "required": true, "schema": schema})
}

fn in_query(key: &QueryParam) -> Value {
    let schema = match key.kind {
        ParamKind::Limit => {
            json!({"type": "integer", "minimum": 1, "maximum": LONGEST_PAGE})
        }
        ParamKind::Flag => json!({"type": "boolean"}),
        ParamKind::OneOf(words) => json!({"type": "string", "enum": words}),
        ParamKind::Text { longest } => {
            json!({"type": "string", "minLength": 1, "maxLength": longest})
        }
    };
    json!({
        "name": key.name, "in": "query", "required": false, "description": key.summary,
        "schema": schema,
    })
}

fn responses(route: &Route, schemas: &mut Generators) -> Value {
    let (status, answer) = route.response;
    let done = match answer {
        Answer::Nothing | Answer::WebSocket => json!({}),
        Answer::Stream => json!({STREAM: {"schema": {"type": "string"}}}),
        Answer::Json(schema) => {
            json!({"application/json": {"schema": schema(&mut schemas.answers)}})
        }
    };
    let mut all = Map::new();
    let mut put = |status: u16, content: Value| {
        let code = axum::http::StatusCode::from_u16(status).ok();
        let reason = code.and_then(|code| code.canonical_reason());
        let mut response = json!({"description": reason.unwrap_or("An answer")});
        if content != json!({}) {
            response["content"] = content;
        }
        all.insert(status.to_string(), response);
    };
    if matches!(answer, Answer::Stream) {
        // The same stream over a WebSocket, if the request asks for an upgrade.
        put(101, json!({}));
    }
    put(status, done);
    let of_body: &[u16] = if route.body.is_some() {
        &BODY_ERRORS
    } else {
        &[]
    };
    for status in COMMON_ERRORS
        .iter()
        .chain(of_body)
        .chain(route.error_statuses)
    {
        put(
            *status,
            json!({"application/problem+json": {"schema": schema_ref("Problem")}}),
        );
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn no_reference_dangles_and_what_is_read_is_written_alike() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object();
        let schemas = schemas.expect("schemas");
        let text = serde_json::to_string(&document).expect("JSON");
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().expect("a name");
            assert!(schemas.contains_key(name), "there is no {name}");
        }
        let mut made = Generators::new();
        for route in all_routes() {
            if let Some(body) = route.body {
                body(&mut made.bodies);
            }
            if let Answer::Json(schema) = route.response.1 {
                schema(&mut made.answers);
            }
        }
        let [bodies, answers] = [&made.bodies, &made.answers].map(SchemaGenerator::definitions);
        for name in bodies.keys() {
            assert!(!answers.contains_key(name), "{name} has two meanings");
        }
    }

    use schemars::SchemaGenerator;

    use super::*;

    #[test]
    fn every_route_has_a_name_and_schemas_of_its_own_and_no_schema_is_left_over() {
        let document = document();
        let text = serde_json::to_string(&document).expect("JSON");
        let schemas = document["components"]["schemas"].as_object();
        for name in schemas.expect("schemas").keys() {
            let uses = text.matches(&format!("schemas/{name}\"")).count();
            assert!(uses > 0, "nothing uses {name}");
        }
        let mut seen = BTreeSet::new();
        for route in all_routes() {
            assert!(seen.insert(route.name), "{} is there twice", route.name);
        }
        let places: Vec<(&str, &str)> = all_routes()
            .map(|route| (route.path, route.method.as_str()))
            .collect();
        let mut sorted = places.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(places, sorted, "by path, each once");
    }
}
