//! A summary of a checked configuration: what runs, in which sandbox, and the gaps of that sandbox.
//!
//! Must not know terminals. Everything here is safe to show.

use super::environment::REDACTED;
use super::types::{
    Config, Guard, Network, OnCrash, PermissionCoverage, Pool, RefPattern, RouteKind, SecretSource,
    Ssh,
};
use super::units::{show_duration, show_size};
use marshal_model::limits::EGRESS_PORT;
use marshal_model::untrusted;

/// The most columns of a text of the file in a line.
const WIDTH: usize = 100;

impl Config {
    /// The configuration as lines: file, fleet, then each pool with its sandbox and its gaps.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        let supervisor = &self.supervisor;
        let path =
            |path: &std::path::Path| untrusted::escape_for_display(&path.to_string_lossy(), WIDTH);
        let mut lines = vec![
            match &self.file {
                Some(file) => format!("file       {}", path(file)),
                None => "file       none: the built-in configuration".to_owned(),
            },
            match &supervisor.state_dir {
                Some(dir) => format!("state      {}", path(dir)),
                None => "state      the default place".to_owned(),
            },
            format!("listen     {}", supervisor.listen),
            format!(
                "children   {} in {} of at most {}",
                self.pools
                    .iter()
                    .map(|pool| u32::from(pool.max_size))
                    .sum::<u32>(),
                plural(self.pools.len(), "pool"),
                supervisor.max_children
            ),
        ];
        for pool in &self.pools {
            lines.extend(pool.describe(self));
        }
        for note in &self.notes {
            lines.push(format!("note       {note}"));
        }
        lines
    }
}

impl Pool {
    /// The number of slots, and the limit if it can be resized to more.
    fn describe_slots(&self) -> String {
        let slots = plural(usize::from(self.size), "slot");
        if self.max_size == self.size {
            slots
        } else {
            format!("{slots}, up to {}", self.max_size)
        }
    }

    /// The gaps of this pool's sandbox, one phrase each; empty if the configuration shows none.
    #[must_use]
    pub fn sandbox_gaps(&self) -> Vec<String> {
        let mut gaps = Vec::new();
        if self.launcher.is_unsandboxed() {
            gaps.push("launcher none: no sandbox".to_owned());
        }
        let lacks = self.launcher.sandbox_gap();
        gaps.extend(lacks.map(|lacks| format!("launcher {}: {lacks}", self.launcher)));
        if let Some(ssh) = &self.ssh {
            gaps.push("launcher ssh: unsandboxed here".to_owned());
            if ssh.sandbox.is_none() {
                gaps.push(format!(
                    "a plain process at {}: when the connection ends, nothing ends a process that ignores it",
                    ssh.display_name()
                ));
            }
            gaps.push("the policy does not see symbolic links on the remote host".to_owned());
        }
        match self.network {
            Network::None => {}
            Network::Host if self.launcher.is_remote() => {}
            Network::Host => {
                gaps.push("network host: reaches whatever this host reaches".to_owned());
            }
            Network::Proxy => {
                let model = if self.has_model_routes() {
                    ", and to a model,"
                } else {
                    ""
                };
                gaps.push(format!(
                    "network proxy: what the agent sends to hosts on its allow-list{model} leaves this host"
                ));
            }
            Network::Routes => {
                gaps.push(
                    "network routes: what the agent sends to a model leaves this host".to_owned(),
                );
            }
        }
        match self.permission_requests {
            PermissionCoverage::All => {}
            PermissionCoverage::Some => gaps.push("the agent does not ask for every tool call".to_owned()),
            PermissionCoverage::Never if !self.dialect.can_request_permission() => gaps.push(format!(
                "{} has no permission requests: only the sandbox confines the agent, and the policy is evaluated afterwards",
                self.dialect
            )),
            PermissionCoverage::Never => gaps.push("the agent never asks".to_owned()),
        }
        if self.options.guard == Guard::Sandbox {
            gaps.push("guard sandbox: the policy answers permission requests, but only the sandbox is relied on".to_owned());
        }
        if self.options.guard_off {
            gaps.push("guard off: the policy lacks the built-in guard".to_owned());
        }
        gaps
    }

    fn describe(&self, config: &Config) -> Vec<String> {
        let command = untrusted::escape_for_display(&self.command.join(" "), WIDTH);
        let sandbox = match (self.launcher, config.sandboxes.get(&self.sandbox)) {
            (launcher, Some(profile)) if launcher.has_sandbox() => format!(
                "{launcher}{}, sandbox {}, network {}, home {}, /tmp {}",
                self.container_image(&config.container)
                    .map_or_else(String::new, |image| format!(
                        " of {}",
                        untrusted::escape_for_display(image, WIDTH)
                    )),
                self.sandbox,
                self.network,
                show_size(profile.home_bytes),
                show_size(profile.tmp_bytes)
            ),
            (launcher, _) if launcher.is_remote() => self
                .ssh
                .as_ref()
                .map_or_else(String::new, |ssh| describe_remote(ssh)),
            (launcher, _) => format!("launcher {launcher}, network {}", self.network),
        };
        let routes = self.routes.iter().filter_map(|port| {
            let route = config.routes.get(&port.name)?;
            Some(format!(
                "{} forwards to {}",
                route.base_url(),
                untrusted::escape_for_display(&route.upstream.to_string(), WIDTH)
            ))
        });
        let mut routes: Vec<String> = routes.map(|route| format!("  route    {route}")).collect();
        routes.extend(self.egress.as_ref().map(|egress| {
            let hosts: Vec<String> = egress.allow.iter().map(ToString::to_string).collect();
            let hosts = if hosts.is_empty() {
                "nothing".to_owned()
            } else {
                untrusted::escape_for_display(&hosts.join(", "), WIDTH)
            };
            format!("  egress   http://127.0.0.1:{EGRESS_PORT} reaches {hosts}")
        }));
        let restart = &self.restart;
        let crash = match restart.on_crash {
            OnCrash::Report => "a crashed task is reported",
            OnCrash::Resume => "a crashed session is loaded again for the next task",
            OnCrash::Retry => "a crashed task is sent again, once",
        };
        let guard = match (self.launcher, self.options.guard) {
            (launcher, Guard::PolicyAndSandbox) if launcher.is_unsandboxed() => {
                "policy (there is no sandbox)"
            }
            (launcher, Guard::PolicyAndSandbox) if launcher.is_remote() => {
                "policy (there is no sandbox here)"
            }
            (_, guard) => guard.as_str(),
        };
        let gaps = match &self.sandbox_gaps()[..] {
            [] => "none known".to_owned(),
            gaps => gaps.join("; "),
        };
        let mut lines = vec![
            format!("pool {:<5} {}: {command}", self.name, self.describe_slots()),
            format!(
                "  agent    {}, speaks {}, asks for {}",
                self.agent,
                self.describe_dialect(),
                match self.permission_requests {
                    PermissionCoverage::All => "everything",
                    PermissionCoverage::Some => "some tool calls",
                    PermissionCoverage::Never => "nothing",
                }
            ),
            format!("  sandbox  {sandbox}"),
            format!("  policy   {}, guard {guard}", self.policy),
            match &self.ssh {
                Some(ssh) => format!(
                    "  work in  {} on the remote host",
                    untrusted::escape_for_display(&ssh.workspace, WIDTH)
                ),
                None => format!(
                    "  work in  {}, mode {}",
                    untrusted::escape_for_display(&self.workspace.path.to_string_lossy(), WIDTH),
                    self.workspace.mode
                ),
            },
            format!(
                "  restart  {}, parked after {} in {}; {crash}, {}",
                restart.kind,
                plural(restart.budget as usize, "failure"),
                show_duration(restart.window),
                plural(self.options.attempts as usize, "attempt")
            ),
            format!("  weak     {gaps}"),
        ];
        // After the sandbox line.
        lines.splice(3..3, routes);
        lines
    }
}

/// The sandbox of an agent on a remote host.
fn describe_remote(ssh: &Ssh) -> String {
    let there = match &ssh.sandbox {
        Some(sandbox) => format!(
            "{} sandbox exec, mode {}, network {}",
            sandbox.marshal, sandbox.mode, sandbox.network
        ),
        None => "none".to_owned(),
    };
    format!(
        "launcher ssh: no sandbox here; at {}: {there}",
        ssh.display_name()
    )
}

fn plural(number: usize, word: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{number} {word}{s}")
}

/// Notes for the operator before the configuration is used.
pub(super) fn collect_notes(config: &Config) -> Vec<String> {
    let mut notes = Vec::new();
    for pool in &config.pools {
        let name = &pool.name;
        for (variable, _) in pool.env.set.iter().filter(|(_, value)| *value == REDACTED) {
            notes.push(format!(
                "pool {name}: env.set.{variable} is {REDACTED}, the placeholder for a secret that was not shown"
            ));
        }
        if pool.launcher.is_unsandboxed() {
            notes.push(format!(
                "pool {name}: with launcher \"none\" a stop and a kill -9 of the supervisor end all of a child's processes, unless the agent killed the process of marshal that watches over it"
            ));
        }
        if let Some(ssh) = &pool.ssh {
            notes.push(match ssh.sandbox {
                Some(_) => format!(
                    "pool {name}: unsandboxed here: it runs at {} in the sandbox of marshal there, which ends every process when the connection ends",
                    ssh.display_name()
                ),
                None => format!(
                    "pool {name}: unsandboxed here: it runs at {} as a plain process; when the connection is cut, an agent that ignores the end of its input keeps running there",
                    ssh.display_name()
                ),
            });
        }
        if pool
            .egress
            .as_ref()
            .is_some_and(|item| item.allow.is_empty())
        {
            notes.push(format!(
                "pool {name}: the allow-list of its egress proxy is empty: it reaches no host"
            ));
        }
        let routes = pool
            .routes
            .iter()
            .filter_map(|port| config.routes.get(&port.name));
        for route in routes {
            let hidden = route.secret.as_ref();
            if hidden.is_some_and(|secret| secret.source == SecretSource::Redacted) {
                notes.push(format!(
                    "pool {name}: route.{}.secret is {REDACTED}, the placeholder for a secret that was not shown",
                    route.name
                ));
            }
            if route.kind == RouteKind::Git && !route.git.is_read_only() {
                let refs: Vec<&str> = route.git.push.iter().map(RefPattern::as_str).collect();
                notes.push(format!(
                    "pool {name}: through the route {} the agent may push to {} of {}",
                    route.name,
                    refs.join(", "),
                    route.upstream
                ));
            }
            if route.server_tools {
                notes.push(format!(
                    "pool {name}: through the route {} the agent may use tools that the provider runs: it reaches whatever they reach",
                    route.name
                ));
            }
        }
        if pool.permission_requests != PermissionCoverage::All {
            notes.push(format!(
                "pool {name}: the policy evaluates actions that the agent does not ask for only after they happen"
            ));
        }
        if pool.options.attempts > 1
            && pool.restart.on_crash == OnCrash::Report
            && pool.check.is_empty()
        {
            notes.push(format!(
                "pool {name}: attempts = {} has no effect without on_crash = \"retry\" or a check",
                pool.options.attempts
            ));
        }
    }
    notes
}
