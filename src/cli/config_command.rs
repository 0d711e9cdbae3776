//! `config check`, `config schema` and `config show`; `api schema` and `api routes`.
//!
//! Must not know how a configuration is read, or how a schema or a table is written.

use super::args::ApiCommand;
use super::command::{find_state, show};
use super::config_file::{self, Loaded};
use super::exit::Exit;
use super::start;
use super::streams::Streams;
use marshal_config as config;
use marshal_engine::api::v1::openapi;

/// `config check`: prints the errors, or a short description of the configuration.
pub(super) fn check(loaded: &Loaded, json: bool, streams: &mut Streams) -> Exit {
    let checked = start::check(&loaded.config);
    let workspaces = || config_file::check_workspaces(&loaded.config);
    let policies = match checked.and_then(|policies| workspaces().map(|()| policies)) {
        Ok(policies) => policies,
        Err(errors) => {
            show(&errors, json, streams);
            return Exit::Usage;
        }
    };
    if let Err(error) = find_state(loaded, streams) {
        return error;
    }
    let mut warnings = Vec::new();
    for (name, loaded) in &policies.by_name {
        let settings = loaded.policy.settings_without_effect().iter();
        warnings.extend(settings.map(|text| format!("policy {name}: {text}")));
    }
    if json {
        let lines = loaded.config.describe();
        let document = serde_json::json!({
            "ok": true,
            "source": loaded.source.to_string(),
            "describe": lines,
            "warnings": warnings,
        });
        streams.out.json(&document.to_string());
        return Exit::Done;
    }
    streams.out.line(&start::describe_source(&loaded.source));
    for line in loaded.config.describe() {
        streams.out.line(&line);
    }
    for warning in warnings {
        streams.err.line(&format!("warning: {warning}"));
    }
    Exit::Done
}

/// `config schema`: needs no configuration. With `--json` it is one line.
pub(super) fn schema(dialect: bool, json: bool, streams: &mut Streams) -> Exit {
    let text = if dialect {
        config::dialect_schema()
    } else {
        config::schema()
    };
    let line = serde_json::from_str::<serde_json::Value>(&text);
    match line {
        Ok(document) if json => streams.out.json(&document.to_string()),
        _ => streams.out.text(&text),
    }
    Exit::Done
}

/// `api schema` and `api routes`: the HTTP API, as a document or as a table.
pub(super) fn api(command: ApiCommand, streams: &mut Streams) -> Exit {
    let document = openapi::render(command == ApiCommand::Routes);
    streams.out.text(&document);
    Exit::Done
}

/// `config show`: prints every key with its value, with secrets hidden.
pub(super) fn effective(loaded: Loaded, json: bool, streams: &mut Streams) -> Exit {
    streams.err.line(&start::describe_source(&loaded.source));
    let state = find_state(&loaded, streams);
    let mut config = loaded.config;
    match state {
        Ok(state) => config.supervisor.state_dir = Some(state),
        Err(exit) => return exit,
    }
    let effective = config.effective();
    if json {
        match serde_json::to_string(&effective.to_table()) {
            Ok(document) => streams.out.json(&document),
            Err(error) => {
                streams.err.line(&format!(
                    "error: cannot write the configuration as JSON: {error}"
                ));
                return Exit::Failures;
            }
        }
    } else {
        streams.out.text(&effective.to_toml());
    }
    Exit::Done
}
