//! The keys of a pool that are for agents that speak ACP, as they are shown.
//!
//! Must not know other keys. None of them contains a secret: the reader accepts none here.

use toml::{Table, Value};

use super::{RenderedTable, text, texts};
use crate::acp::{AcpSettings, McpServer, McpTransport, OptionValue};

/// Adds them to a pool's table.
pub(super) fn put(table: &mut RenderedTable, acp: &AcpSettings) {
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
