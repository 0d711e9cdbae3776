//! Package registries: what is built in for each kind, and how a client inside a sandbox finds its
//! route.
//!
//! Must not know TOML or sockets. What may be read from a registry is decided in
//! `proxy/route/registry.rs`.

use super::error::quote;
use super::route::{
    CertificateAuthorities, Route, RouteKind, RoutePort, Upstream, is_loopback, split_port,
};
use super::table::{Section, keywords};
use super::types::{Config, Pool, Secret};
use marshal_model::{limits, string_enum};

string_enum!(
    /// A kind of package registry.
    Registry {
        /// npm packages.
        Npm = "npm",
        /// Python packages, as simple pages (PEP 503, PEP 691).
        Pypi = "pypi",
        /// Rust crates, as a sparse index.
        Crates = "crates",
        /// Debian packages, as apt reads them.
        Debian = "debian",
    }
);

keywords!(Registry);

impl Registry {
    /// The upstream where neither the route nor the host's client names one.
    const fn public_upstream(self) -> &'static str {
        match self {
            Self::Npm => "https://registry.npmjs.org",
            Self::Pypi => "https://pypi.org/simple",
            Self::Crates => "https://index.crates.io",
            Self::Debian => "https://deb.debian.org/debian",
        }
    }

    /// Hosts of the public registry, to which its pages and redirects lead.
    const fn public_hosts(self) -> &'static [&'static str] {
        match self {
            Self::Npm => &["registry.npmjs.org"],
            Self::Pypi => &["pypi.org", "files.pythonhosted.org"],
            Self::Crates => &["index.crates.io", "static.crates.io", "crates.io"],
            Self::Debian => &[
                "deb.debian.org",
                "security.debian.org",
                "cdn-fastly.deb.debian.org",
            ],
        }
    }
}

/// The registry behind a route, as far as a client inside has to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryAddress {
    /// Its kind.
    pub registry: Registry,
    /// The path of the registry at the upstream, which is the same inside.
    pub base_path: String,
}

/// What the configuration of the host's own client says of a registry.
#[derive(Debug)]
pub struct HostRegistry {
    /// Where packages are, if the client's configuration says it.
    pub upstream: Option<Upstream>,
    /// Its key.
    pub secret: Option<Secret>,
    /// Its certificate authorities.
    pub ca: Option<CertificateAuthorities>,
}

impl Config {
    /// Uses what the host's client says of a registry for this route, which names no upstream.
    pub fn set_host_registry(&mut self, name: &str, found: HostRegistry) {
        let Some(route) = self.routes.get_mut(name) else {
            return;
        };
        if let Some(upstream) = found.upstream {
            route.upstream = upstream;
            route.secret = found.secret;
            if !route.names_hosts {
                route.hosts = hosts_of(&route.upstream, route.registry);
            }
        }
        if route.ca.is_none() {
            route.ca = found.ca;
        }
        let address = route.registry_address();
        let ports = self.pools.iter_mut().flat_map(|pool| &mut pool.routes);
        for port in ports.filter(|port| port.name == name) {
            port.registry.clone_from(&address);
        }
    }
}

impl Route {
    /// The registry behind the route, if it is one.
    #[must_use]
    pub fn registry_address(&self) -> Option<RegistryAddress> {
        Some(RegistryAddress {
            registry: self.registry?,
            base_path: self.upstream.base_path.clone(),
        })
    }
}

impl Pool {
    /// Whether a route leads to a model, and so counts what the agents use of it.
    #[must_use]
    pub fn has_model_routes(&self) -> bool {
        let is_model = |route: &RoutePort| route.kind == RouteKind::Model;
        self.routes.iter().any(is_model)
    }

    /// The variables that lead package clients inside to the pool's registries.
    #[must_use]
    pub fn registry_variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        for (registry, url) in self.registries() {
            match registry {
                Registry::Npm => variables.extend([
                    ("npm_config_registry", format!("{url}/")),
                    // These would ask the registry for more than packages.
                    ("npm_config_audit", "false".to_owned()),
                    ("npm_config_update_notifier", "false".to_owned()),
                    // Less than the connections of a slot.
                    ("npm_config_maxsockets", "8".to_owned()),
                ]),
                Registry::Pypi => variables.extend([
                    ("PIP_INDEX_URL", format!("{url}/")),
                    ("UV_DEFAULT_INDEX", format!("{url}/")),
                    ("UV_CONCURRENT_DOWNLOADS", "8".to_owned()),
                ]),
                // Cargo reads no source replacement from its environment; apt has no variables.
                Registry::Crates | Registry::Debian => {}
            }
        }
        variables
    }

    /// Files of a new home that lead package clients to the pool's registries: path and text.
    #[must_use]
    pub fn registry_files(&self) -> Vec<(&'static str, String)> {
        let crates = self
            .registries()
            .filter(|(registry, _)| *registry == Registry::Crates);
        crates
            .map(|(_, url)| {
                // Multiplexing would ask for an upgrade to HTTP/2, which no route has.
                let text = format!(
                    "[source.crates-io]\nreplace-with = \"route\"\n\n[source.route]\nregistry = \"sparse+{url}/\"\n\n[http]\nmultiplexing = false\n"
                );
                (".cargo/config.toml", text)
            })
            .collect()
    }

    fn registries(&self) -> impl Iterator<Item = (Registry, String)> {
        self.routes.iter().filter_map(|route| {
            let address = route.registry.as_ref()?;
            let url = format!("{}{}", route.base_url(), address.base_path);
            Some((address.registry, url))
        })
    }
}

/// The hosts beside an upstream where the file names none. A mirror may be there to keep packages
/// out, so the hosts of the public registry are only beside that one.
fn hosts_of(upstream: &Upstream, registry: Option<Registry>) -> Vec<String> {
    let public = registry.filter(|registry| {
        Upstream::parse(registry.public_upstream())
            .is_ok_and(|public| public.authority == upstream.authority)
    });
    let hosts = public.map(Registry::public_hosts).unwrap_or_default();
    hosts.iter().map(|&host| host.to_owned()).collect()
}

/// A route to a registry as it is where the file says nothing more.
pub(super) fn default_route(route: Route, registry: Registry) -> Route {
    let upstream = Upstream::parse(registry.public_upstream()).unwrap_or(route.upstream);
    Route {
        registry: Some(registry),
        hosts: hosts_of(&upstream, Some(registry)),
        upstream,
        secret: None,
        allow: Vec::new(),
        query: Vec::new(),
        header: "authorization".to_owned(),
        prefix: "Bearer ".to_owned(),
        ..route
    }
}

/// Keys that only routes to models have.
pub(super) const MODEL_KEYS: [&str; 4] = ["allow", "query", "body_max", "server_tools"];

/// The JSON-schema pattern of an entry of `hosts`.
const HOST_PATTERN: &str = r"^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?$";

/// Reads the keys that only registries have, and refuses those that they do not have.
pub(super) fn read(section: &Section<'_>, route: &mut Route) {
    let hosts = section.texts_like("hosts", HOST_PATTERN);
    if route.registry.is_none() {
        if let Some(hosts) = hosts {
            let message = "only a route with kind = \"registry\" has hosts";
            section.diagnostics.report(&hosts.place, message, None);
        }
        return;
    }
    for key in MODEL_KEYS {
        if let Some(place) = section.place_of(key) {
            let message = format!(
                "a route with kind = \"registry\" has no {key}: its requests follow from the kind of registry"
            );
            section.diagnostics.report(&place, message, None);
        }
    }
    if let Some(place) = section.place_of("secret").filter(|_| route.is_of_host) {
        let message =
            "a secret needs an upstream in the same table, so that it is sent nowhere else";
        section.diagnostics.report(&place, message, None);
    }
    let Some(hosts) = hosts else {
        route.hosts = hosts_of(&route.upstream, route.registry);
        return;
    };
    route.names_hosts = true;
    if hosts.value.len() > limits::REGISTRY_HOSTS {
        let message = format!("a route has at most {} hosts", limits::REGISTRY_HOSTS);
        section.diagnostics.report(&hosts.place, message, None);
    }
    for host in &hosts.value {
        let is_here = split_port(&host.value).map(|(name, _)| is_loopback(name));
        let message = match is_here {
            None => format!(
                "expected a host name, with a port or without, found {}",
                quote(&host.value)
            ),
            Some(true) if !route.upstream.is_loopback() => {
                "a host of this machine is only for an upstream that is one, too".to_owned()
            }
            Some(_) => continue,
        };
        section.diagnostics.report(&host.place, message, None);
    }
    let names = hosts.value.into_iter();
    route.hosts = names.map(|host| host.value.to_ascii_lowercase()).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;

    fn config() -> Config {
        let names = ["npm", "pypi", "crates", "debian"];
        let tables = names.iter().zip(9001..).map(|(name, port)| {
            format!("[route.{name}]\nkind = \"registry\"\nregistry = \"{name}\"\nport = {port}\n")
        });
        let tables: String = tables.collect();
        let text = format!(
            "[pool.demo]\nagent = \"script\"\nnetwork = \"routes\"\nroutes = {names:?}\n{tables}"
        );
        Config::parse(&text, &Origin::built_in("/".into())).expect("good")
    }

    #[test]
    fn clients_inside_find_their_registries() {
        let mut config = config();
        let found = HostRegistry {
            upstream: Upstream::parse("https://mirror.example/api/npm").ok(),
            secret: None,
            ca: None,
        };
        config.set_host_registry("npm", found);
        // A mirror may keep packages out that the public registry has.
        assert!(config.routes["npm"].hosts.is_empty());
        let public = ["pypi.org", "files.pythonhosted.org"];
        assert_eq!(config.routes["pypi"].hosts, public);
        let pool = &config.pools[0];
        let variables = pool.registry_variables();
        for (name, value) in [
            ("npm_config_registry", "http://127.0.0.1:9001/api/npm/"),
            ("PIP_INDEX_URL", "http://127.0.0.1:9002/simple/"),
            ("UV_DEFAULT_INDEX", "http://127.0.0.1:9002/simple/"),
        ] {
            assert!(
                variables.contains(&(name, value.to_owned())),
                "{variables:?}"
            );
        }
        let files = pool.registry_files();
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].0, ".cargo/config.toml");
        let cargo: toml::Table = files[0].1.parse().expect("TOML");
        let source = &cargo["source"]["route"]["registry"];
        assert_eq!(source.as_str(), Some("sparse+http://127.0.0.1:9003/"));
    }

    #[test]
    fn what_the_hosts_client_says_takes_the_place_of_the_public_registry() {
        let mut config = config();
        assert_eq!(
            config.routes["pypi"].upstream.to_string(),
            "https://pypi.org/simple"
        );
        assert!(config.routes["pypi"].is_of_host);
        let ca = || {
            Some(CertificateAuthorities {
                path: "/ca.pem".into(),
                pem: None,
            })
        };
        // Only authorities: the upstream stays.
        let only_ca = HostRegistry {
            upstream: None,
            secret: None,
            ca: ca(),
        };
        config.set_host_registry("pypi", only_ca);
        let route = &config.routes["pypi"];
        assert_eq!(route.upstream.to_string(), "https://pypi.org/simple");
        assert_eq!(route.ca, ca());
        assert_eq!(route.hosts, ["pypi.org", "files.pythonhosted.org"]);
        let mirror = HostRegistry {
            upstream: Upstream::parse("https://mirror.example/simple").ok(),
            secret: None,
            ca: None,
        };
        config.set_host_registry("pypi", mirror);
        assert!(config.routes["pypi"].hosts.is_empty());
        for registry in Registry::ALL {
            let upstream = Upstream::parse(registry.public_upstream());
            assert!(upstream.is_ok_and(|upstream| upstream.tls), "{registry}");
        }
    }
}
