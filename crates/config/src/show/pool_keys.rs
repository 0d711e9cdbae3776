//! Keys of a pool and of a profile, as `config show` prints them.

use toml::{Table, Value};

use super::{RenderedTable, path, text, texts};
use crate::acp::{AcpSettings, McpServer, McpTransport, OptionValue};
use crate::file_plane::FilePlane;
use crate::runner::Runner;
use crate::units::{show_duration, show_size};
use marshal_model::ResourceLimits;

/// The keys for agents that speak ACP. None contains a secret: the reader accepts none here.
pub(super) fn put_acp(table: &mut RenderedTable, acp: &AcpSettings) {
    let AcpSettings {
        auth,
        logout,
        // Shown as the pool's own.
        mode: _,
        model: _,
        options,
        mode_skips_requests,
        // Says the agent's name.
        auto_approve_modes: _,
        mcp_servers,
        permission_reply,
        report_denials,
    } = acp;
    if let Some(auth) = auth {
        table.put("auth", auth.as_str());
    }
    table.put("logout", *logout);
    let options = options.iter().map(|(id, value)| {
        let value = match value {
            OptionValue::Choice(value) => text(value),
            OptionValue::Switch(on) => Value::Boolean(*on),
        };
        (id.clone(), value)
    });
    table.put_named("options", options.collect());
    table.put("mode_skips_requests", *mode_skips_requests);
    let servers: Vec<Value> = mcp_servers.iter().map(server).collect();
    table.put("mcp_servers", servers);
    table.put("permission_reply", permission_reply.as_str());
    table.put("report_denials", report_denials.as_str());
}

fn server(server: &McpServer) -> Value {
    let mut shown = Table::new();
    let McpServer {
        name,
        transport: reach,
    } = server;
    shown.insert("name".to_owned(), text(name));
    match reach {
        McpTransport::Program { command, args, env } => {
            shown.insert("command".to_owned(), text(command));
            shown.insert("args".to_owned(), texts(args));
            let env = env.iter().map(|(name, value)| (name.clone(), text(value)));
            shown.insert("env".to_owned(), Value::Table(env.collect()));
        }
        McpTransport::Route { kind, route, path } => {
            shown.insert("type".to_owned(), text(kind.as_str()));
            shown.insert("route".to_owned(), text(route));
            shown.insert("path".to_owned(), text(path));
        }
    }
    Value::Table(shown)
}

/// `file_plane`.
pub(super) fn put_file_plane(table: &mut RenderedTable, plane: Option<&FilePlane>) {
    let Some(plane) = plane else { return };
    let FilePlane {
        dir,
        answers,
        answers_as,
        owner,
        max_open,
        poll,
    } = plane;
    table.put("file_plane.dir", path(dir));
    table.put("file_plane.answers", *answers);
    table.put("file_plane.answers_as", answers_as.to_string());
    table.put_optional("file_plane.owner", owner.map(i64::from));
    let max_open = i64::try_from(*max_open).unwrap_or(i64::MAX);
    table.put("file_plane.max_open", max_open);
    table.put("file_plane.poll", show_duration(*poll));
}

/// `limits` of a profile.
pub(super) fn put_limits(table: &mut RenderedTable, limits: ResourceLimits) {
    let ResourceLimits {
        pids,
        memory,
        swap,
        cpu_millis,
        backend,
    } = limits;
    let none = || Value::from("none");
    let size = |bytes: Option<u64>| bytes.map_or_else(none, |bytes| show_size(bytes).into());
    let pids = pids.map_or_else(none, |pids| i64::from(pids).into());
    table.put("limits.pids", pids);
    table.put("limits.memory", size(memory));
    table.put("limits.swap", size(swap));
    let cpus = cpu_millis.map(|millis| f64::from(millis) / 1000.0);
    table.put("limits.cpu", cpus.map_or_else(none, Value::from));
    table.put("limits.backend", backend.as_str());
}

/// `runner`: how a tool is driven by files.
pub(super) fn put_runner(table: &mut RenderedTable, runner: &Runner) {
    runner.show_keys(table, "runner.");
    table.put_optional("runner.dir", runner.dir.as_deref().map(path));
}
