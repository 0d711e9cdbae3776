//! What the host's own package clients say of their registries: for routes of the kind `registry`
//! that name no upstream.
//!
//! Read are the files and variables of the caller and of the system, never those of a workspace. As
//! everything that decides where a sandbox leads, a file must be trusted. A password is never taken
//! from them, but npm's token is: it is the route's key, which stays outside.

use std::ffi::OsString;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::trust::{OpenError, display_path, open_trusted, why};
use marshal_config::{
    CertificateAuthorities, Config, HostRegistry, Registry, Secret, SecretSource, Upstream,
};
use marshal_model::limits;

/// The bundles of certificate authorities that clients trust by default: of Debian, and of Fedora.
const SYSTEM_AUTHORITIES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// Files of one directory of apt that are read.
const MAX_APT_FILES: usize = 256;

/// Steps from one source of cargo to the one that replaces it.
const MAX_REPLACEMENTS: usize = 8;

/// Fills in what the clients say, for the routes of pools that need it. Each fault has its key.
pub(super) fn read(
    config: &mut Config,
    env: &impl Fn(&str) -> Option<OsString>,
) -> Vec<(String, String, Option<String>)> {
    let host = Host {
        env: &|name| env(name).and_then(|value| value.into_string().ok()),
        root: PathBuf::from("/"),
    };
    let mut faults = Vec::new();
    let ports = config.pools.iter().flat_map(|pool| &pool.routes);
    let mut names: Vec<String> = ports.map(|port| port.name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let route = config.routes.get(&name).filter(|route| route.is_of_host);
        let Some(registry) = route.and_then(|route| route.registry) else {
            continue;
        };
        match host.find(registry).and_then(ClientSettings::into_registry) {
            Ok(found) => config.set_host_registry(&name, found),
            Err(message) => {
                let help =
                    format!("set route.{name}.upstream, and route.{name}.secret if it needs a key");
                faults.push((format!("route.{name}.registry"), message, Some(help)));
            }
        }
    }
    faults
}

/// Where clients are configured.
struct Host<'h> {
    env: &'h dyn Fn(&str) -> Option<String>,
    /// The directory that absolute paths begin at; another one in tests.
    root: PathBuf,
}

/// What a client's configuration says.
#[derive(Debug, Default, PartialEq, Eq)]
struct ClientSettings {
    /// The URL of the registry, and who says it.
    url: Option<(String, String)>,
    token: Option<String>,
    ca: Option<PathBuf>,
}

/// Text of a file, and its name for messages.
struct ClientFile {
    text: String,
    name: String,
}

impl ClientSettings {
    fn into_registry(self) -> Result<HostRegistry, String> {
        let upstream = self.url.map(|(url, source)| {
            // Never the URL itself: it may have a password in it.
            Upstream::parse(&url).map_err(|fault| {
                if url.contains('@') {
                    format!("the registry that {source} names has a user name or a password in its URL, which is not taken from there")
                } else {
                    format!("the registry that {source} names cannot be an upstream: {fault}")
                }
            })
        });
        let token = self.token.map(|token| {
            let path = PathBuf::from(".npmrc");
            Secret::new(SecretSource::File(path)).with_value(&token)
        });
        Ok(HostRegistry {
            upstream: upstream.transpose()?,
            secret: token,
            ca: self
                .ca
                .map(|path| CertificateAuthorities { path, pem: None }),
        })
    }
}

impl Host<'_> {
    fn find(&self, registry: Registry) -> Result<ClientSettings, String> {
        let mut found = match registry {
            Registry::Npm => self.npm(),
            Registry::Pypi => self.pip(),
            Registry::Crates => self.cargo(),
            Registry::Debian => self.apt(),
        }?;
        // What the clients' libraries trust where their own configuration says nothing.
        let bundles = SYSTEM_AUTHORITIES.iter().map(|path| self.system(path));
        let found_ca = found.ca.or_else(|| self.path("SSL_CERT_FILE"));
        found.ca = found_ca.or_else(|| bundles.into_iter().find(|path| path.is_file()));
        Ok(found)
    }

    fn var(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.is_empty())
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let path = PathBuf::from(self.var(name)?);
        path.is_absolute().then_some(path)
    }

    /// A path of the system.
    fn system(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A path in the caller's home.
    fn home(&self, path: &str) -> Option<PathBuf> {
        Some(self.path("HOME")?.join(path))
    }

    /// Reads a client's file; `None` if there is none.
    fn read(path: Option<PathBuf>) -> Result<Option<ClientFile>, String> {
        let Some(path) = path else { return Ok(None) };
        let name = display_path(&path);
        let failed = |error: &std::io::Error| format!("cannot read {name}: {}", why(error));
        let mut file = match open_trusted(&path) {
            Ok(file) => file,
            Err(OpenError::Read(error)) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(OpenError::Read(error)) => return Err(failed(&error)),
            Err(OpenError::Untrusted(error)) => return Err(error.to_string()),
        };
        let mut text = String::new();
        let max_bytes = limits::CONFIG_BYTES as u64 + 1;
        let read = file.by_ref().take(max_bytes).read_to_string(&mut text);
        read.map_err(|error| failed(&error))?;
        if text.len() > limits::CONFIG_BYTES {
            return Err(format!(
                "{name} has more than {} bytes",
                limits::CONFIG_BYTES
            ));
        }
        Ok(Some(ClientFile { text, name }))
    }

    /// npm: its variables, then the file of the user, then that of the system (npmrc(5)).
    fn npm(&self) -> Result<ClientSettings, String> {
        let var = |key: &str| {
            let lower = format!("npm_config_{key}");
            self.var(&lower)
                .or_else(|| self.var(&lower.to_ascii_uppercase()))
        };
        let own = var("userconfig").map(PathBuf::from);
        let mut files = Vec::new();
        let system = ["/usr/etc/npmrc", "/usr/local/etc/npmrc", "/etc/npmrc"];
        let system = system.into_iter().map(|path| Some(self.system(path)));
        for path in std::iter::once(own.or_else(|| self.home(".npmrc"))).chain(system) {
            files.extend(Self::read(path)?);
        }
        let value = |key: &str| {
            files.iter().find_map(|file| {
                let value = ini_values(&file.text, None)
                    .find(|(name, _)| name == key)?
                    .1;
                Some((self.expand(&value), file.name.clone()))
            })
        };
        let named = var("registry").map(|url| (url, "npm_config_registry".to_owned()));
        let url = named.or_else(|| value("registry"));
        let cafile = var("cafile").or_else(|| Some(value("cafile")?.0));
        let mut found = ClientSettings {
            url,
            token: None,
            ca: cafile
                .map(PathBuf::from)
                .or_else(|| self.path("NODE_EXTRA_CA_CERTS")),
        };
        let registry = found
            .url
            .as_ref()
            .map_or("https://registry.npmjs.org", |(url, _)| url);
        let place = registry.split_once("://").map_or("", |(_, place)| place);
        let place = place.trim_end_matches('/').to_owned();
        for file in &files {
            for (key, value) in ini_values(&file.text, None) {
                let Some((of, kind)) = npm_credential(&key) else {
                    continue;
                };
                let below = place.strip_prefix(of);
                let is_below = below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
                if !is_below && !of.is_empty() {
                    continue;
                }
                if kind != "_authToken" || of.is_empty() {
                    return Err(format!(
                        "{} has a password for its registry, and only the _authToken of a host is taken from there",
                        file.name
                    ));
                }
                let token = self.expand(&value);
                if !(1..=limits::SECRET_BYTES).contains(&token.len()) {
                    return Err(format!(
                        "the _authToken in {} is empty or too long",
                        file.name
                    ));
                }
                found.token.get_or_insert(token);
            }
        }
        if found.token.is_some() && found.url.is_none() {
            // The token goes with the URL that it is for.
            found.url = Some((registry.to_owned(), "npm".to_owned()));
        }
        Ok(found)
    }

    /// Replaces `${NAME}` as npm does; a variable that is not set stays as it is.
    fn expand(&self, value: &str) -> String {
        let mut out = String::new();
        let mut rest = value;
        while let Some((before, after)) = rest.split_once("${") {
            let Some((name, tail)) = after.split_once('}') else {
                break;
            };
            out.push_str(before);
            match self.var(name) {
                Some(found) => out.push_str(&found),
                None => out.extend(["${", name, "}"]),
            }
            rest = tail;
        }
        out + rest
    }

    /// pip: its variables, then the files of the user, then those of the system; and uv's variable.
    fn pip(&self) -> Result<ClientSettings, String> {
        let config = self
            .path("XDG_CONFIG_HOME")
            .or_else(|| self.home(".config"));
        let mut paths = vec![
            self.path("PIP_CONFIG_FILE"),
            config.map(|dir| dir.join("pip/pip.conf")),
            self.home(".pip/pip.conf"),
        ];
        paths
            .extend(["/etc/pip.conf", "/etc/xdg/pip/pip.conf"].map(|path| Some(self.system(path))));
        let mut files = Vec::new();
        for path in paths {
            files.extend(Self::read(path)?);
        }
        let value = |key: &str| {
            files.iter().find_map(|file| {
                let mut values = ini_values(&file.text, Some("global"));
                let value = values.find(|(name, _)| name.replace('_', "-") == key)?.1;
                Some((value, file.name.clone()))
            })
        };
        let of = |name: &str| self.var(name).map(|url| (url, name.to_owned()));
        let url = of("PIP_INDEX_URL").or_else(|| value("index-url"));
        let url = url
            .or_else(|| of("UV_DEFAULT_INDEX"))
            .or_else(|| of("UV_INDEX_URL"));
        let ca = self
            .path("PIP_CERT")
            .or_else(|| Some(value("cert")?.0.into()));
        Ok(ClientSettings {
            url,
            token: None,
            ca,
        })
    }

    /// Cargo: the replacement of crates.io in the file of its home.
    fn cargo(&self) -> Result<ClientSettings, String> {
        let home = self.path("CARGO_HOME").or_else(|| self.home(".cargo"));
        let of_home = |name: &str| home.as_ref().map(|home| home.join(name));
        let file = match Self::read(of_home("config.toml"))? {
            Some(file) => Some(file),
            None => Self::read(of_home("config"))?,
        };
        let ca = self.path("CARGO_HTTP_CAINFO");
        let Some(file) = file else {
            return Ok(ClientSettings {
                ca,
                ..ClientSettings::default()
            });
        };
        let table: toml::Table = file
            .text
            .parse()
            .map_err(|_| format!("{} is not valid TOML", file.name))?;
        let of_file = |table: &toml::Table| {
            let path = PathBuf::from(table.get("http")?.get("cainfo")?.as_str()?);
            path.is_absolute().then_some(path)
        };
        Ok(ClientSettings {
            url: cargo_registry(&table, &file.name)?.map(|url| (url, file.name.clone())),
            token: None,
            ca: ca.or_else(|| of_file(&table)),
        })
    }

    /// apt: the archive of the distribution in its lists of sources.
    fn apt(&self) -> Result<ClientSettings, String> {
        let mut uris = Vec::new();
        let mut add = |file: Option<ClientFile>, is_deb822: bool| {
            let Some(file) = file else { return };
            let of_file = if is_deb822 {
                deb822_uris(&file.text)
            } else {
                list_uris(&file.text)
            };
            uris.extend(of_file.into_iter().map(|uri| (uri, file.name.clone())));
        };
        add(
            Self::read(Some(self.system("/etc/apt/sources.list")))?,
            false,
        );
        for path in files_in(&self.system("/etc/apt/sources.list.d"))? {
            let extension = path.extension().and_then(|text| text.to_str());
            match extension {
                Some("list") => add(Self::read(Some(path))?, false),
                Some("sources") => add(Self::read(Some(path))?, true),
                _ => {}
            }
        }
        let mut ca = None;
        let own = self.system("/etc/apt/apt.conf");
        for path in files_in(&self.system("/etc/apt/apt.conf.d"))?
            .into_iter()
            .chain([own])
        {
            let Some(file) = Self::read(Some(path))? else {
                continue;
            };
            if apt_option(&file.text, "proxy").is_some_and(|proxy| proxy != "DIRECT") {
                return Err(format!(
                    "{} has apt use a proxy, which a route does not",
                    file.name
                ));
            }
            ca = apt_option(&file.text, "cainfo").map(PathBuf::from).or(ca);
        }
        let is_distribution = |(uri, _): &&(String, String)| {
            let uri = uri.trim_end_matches('/');
            uri.ends_with("/debian") || uri.ends_with("/ubuntu")
        };
        let uri = uris.iter().find(is_distribution).or_else(|| uris.first());
        // TLS outside, whatever apt does: most archives have it, and apt checks signatures anyway.
        let secure = |(uri, name): &(String, String)| {
            let uri = uri
                .strip_prefix("http://")
                .map_or_else(|| uri.clone(), |rest| format!("https://{rest}"));
            (uri, name.clone())
        };
        Ok(ClientSettings {
            url: uri.map(secure),
            token: None,
            ca,
        })
    }
}

/// The keys and values of an INI file: of one section, or of a file without sections.
fn ini_values<'t>(
    text: &'t str,
    section: Option<&'t str>,
) -> impl Iterator<Item = (String, String)> + 't {
    let mut is_inside = section.is_none();
    text.lines().filter_map(move |line| {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            return None;
        }
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            is_inside = section == Some(name.trim());
            return None;
        }
        let (key, value) = line.split_once('=').filter(|_| is_inside)?;
        let value = value.trim();
        let quoted = |sign: char| value.strip_prefix(sign)?.strip_suffix(sign);
        let value = quoted('"').or_else(|| quoted('\'')).unwrap_or(value);
        Some((key.trim().to_owned(), value.to_owned()))
    })
}

/// The place that a credential of npm is for, and its kind. `//HOST/PATH/:KIND`, or `KIND` for any.
fn npm_credential(key: &str) -> Option<(&str, &str)> {
    let (place, kind) = match key.strip_prefix("//") {
        Some(rest) => rest.rsplit_once(':')?,
        None => ("", key),
    };
    let kinds = [
        "_authToken",
        "_auth",
        "_password",
        "username",
        "certfile",
        "keyfile",
    ];
    let is_bare = place.is_empty() && kind != "_auth" && kind != "_authToken";
    (kinds.contains(&kind) && !is_bare).then(|| (place.trim_end_matches('/'), kind))
}

/// The sparse registry that replaces crates.io.
fn cargo_registry(table: &toml::Table, file: &str) -> Result<Option<String>, String> {
    let text = |kind: &str, name: &str, key: &str| {
        Some(table.get(kind)?.get(name)?.get(key)?.as_str()?.to_owned())
    };
    let mut name = "crates-io".to_owned();
    for _ in 0..MAX_REPLACEMENTS {
        if let Some(next) = text("source", &name, "replace-with") {
            name = next;
            continue;
        }
        if name == "crates-io" {
            return Ok(None);
        }
        let url = text("source", &name, "registry").or_else(|| text("registries", &name, "index"));
        let sparse = url.as_deref().and_then(|url| url.strip_prefix("sparse+"));
        return sparse.map(|url| Some(url.to_owned())).ok_or_else(|| {
            format!("{file} replaces crates.io by a source that is no sparse registry")
        });
    }
    Err(format!("{file} replaces crates.io in too many steps"))
}

fn is_http(uri: &str) -> bool {
    uri.starts_with("http://") || uri.starts_with("https://")
}

/// The URIs of a list in one-line style (sources.list(5)).
fn list_uris(text: &str) -> Vec<String> {
    let uri = |line: &str| {
        let rest = line
            .trim()
            .strip_prefix("deb")?
            .strip_prefix([' ', '\t'])?
            .trim();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']')?.1,
            None => rest,
        };
        let uri = rest.split_whitespace().next()?;
        is_http(uri).then(|| uri.to_owned())
    };
    text.lines().filter_map(uri).collect()
}

/// The URIs of a list in deb822 style, without stanzas that are off.
fn deb822_uris(text: &str) -> Vec<String> {
    let mut uris = Vec::new();
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for stanza in lines.split(|line| line.trim().is_empty()) {
        let value = |wanted: &str| {
            let mut fields = stanza.iter().filter_map(|line| line.split_once(':'));
            let found = fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted))?;
            Some(found.1.trim())
        };
        let is_on = value("Enabled").is_none_or(|on| !matches!(on, "no" | "false"));
        let is_binary =
            value("Types").is_some_and(|types| types.split_whitespace().any(|one| one == "deb"));
        if is_on && is_binary {
            let all = value("URIs").unwrap_or_default().split_whitespace();
            uris.extend(all.filter(|uri| is_http(uri)).map(str::to_owned));
        }
    }
    uris
}

/// The last value of an option for HTTP or HTTPS in a file of apt.conf(5), as `Acquire::http::Proxy "x";`.
fn apt_option(text: &str, option: &str) -> Option<String> {
    let value = |line: &str| {
        let (name, value) = line.trim().split_once(char::is_whitespace)?;
        let name = name.to_ascii_lowercase();
        let of_http = ["acquire::http::", "acquire::https::"];
        let is_wanted = of_http
            .iter()
            .any(|scheme| name.strip_prefix(scheme) == Some(option));
        let value = value.trim().strip_suffix(';')?.trim().trim_matches('"');
        is_wanted.then(|| value.to_owned())
    };
    text.lines().filter_map(value).next_back()
}

/// The files of a directory, sorted; none if it does not exist.
fn files_in(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let failed =
        |error: &std::io::Error| format!("cannot read {}: {}", display_path(directory), why(error));
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&error)),
    };
    let mut paths = Vec::new();
    for entry in entries.take(MAX_APT_FILES) {
        let path = entry.map_err(|error| failed(&error))?.path();
        if path.is_file() {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// What is found with these files below `home/` and `etc/`, and these variables.
    fn find(
        registry: Registry,
        files: &[(&str, &str)],
        variables: &[(&str, &str)],
    ) -> Result<(String, Option<String>, Option<String>), String> {
        let dir = tempfile::tempdir().expect("a directory");
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("below")).expect("made");
            fs::write(path, text).expect("written");
        }
        let home = dir.path().join("home").to_string_lossy().into_owned();
        let env = |name: &str| {
            let set = variables.iter().find(|(set, _)| *set == name);
            let set = set.map(|(_, value)| (*value).to_owned());
            set.or_else(|| (name == "HOME").then(|| home.clone()))
        };
        let host = Host {
            env: &env,
            root: dir.path().to_owned(),
        };
        let found = host.find(registry)?.into_registry()?;
        let place = dir.path().to_string_lossy().into_owned();
        let secret = found.secret.and_then(|secret| secret.expose());
        Ok((
            found.upstream.map_or_else(String::new, |up| up.to_string()),
            secret.map(|secret| secret.as_ref().to_owned()),
            found
                .ca
                .map(|ca| ca.path.to_string_lossy().replace(&place, "")),
        ))
    }

    fn upstream(registry: Registry, files: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
        match find(registry, files, variables) {
            Ok((upstream, _, _)) => upstream,
            Err(message) => message,
        }
    }

    #[test]
    fn npms_registry_token_and_authorities_are_found() {
        let npm = |files: &[(&str, &str)], variables: &[(&str, &str)]| {
            find(Registry::Npm, files, variables)
        };
        assert_eq!(npm(&[], &[]), Ok((String::new(), None, None)));
        let own = (
            "home/.npmrc",
            "; mine\nregistry = \"https://npm.example/api/npm/\"\n//npm.example/api/:_authToken=${TOKEN}\n//other.example/:_authToken=no\ncafile=/ca.pem\n",
        );
        let system = ("etc/npmrc", "registry=https://system.example\n");
        let token = [("TOKEN", "t0ken")];
        let expect = (
            "https://npm.example/api/npm".to_owned(),
            Some("t0ken".to_owned()),
            Some("/ca.pem".to_owned()),
        );
        assert_eq!(npm(&[own, system], &token), Ok(expect));
        assert_eq!(
            upstream(Registry::Npm, &[system], &[]),
            "https://system.example"
        );
        let variable = [("NPM_CONFIG_REGISTRY", "https://variable.example/x")];
        let (url, secret, _) = npm(&[own, system], &variable).expect("found");
        assert_eq!((url.as_str(), secret), ("https://variable.example/x", None));
        // A token without a registry is one for the public registry, and for no other.
        let public = ("home/.npmrc", "//registry.npmjs.org/:_authToken=abc\n");
        let (url, secret, _) = npm(&[public], &[]).expect("found");
        assert_eq!(
            (url.as_str(), secret.as_deref()),
            ("https://registry.npmjs.org", Some("abc"))
        );
        // A host that only begins the same is another one.
        let near = (
            "home/.npmrc",
            "registry=https://npm.example.evil\n//npm.example/:_authToken=abc\n",
        );
        assert_eq!(npm(&[near], &[]).expect("found").1, None);
    }

    #[test]
    fn passwords_and_plain_http_are_refused_without_being_shown() {
        for (registry, file, text, expect) in [
            (
                Registry::Npm,
                "home/.npmrc",
                "registry=https://u:s3cret@npm.example/\n",
                "has a user name or a password in its URL",
            ),
            (
                Registry::Npm,
                "home/.npmrc",
                "registry=https://npm.example/\n//npm.example/:_password=s3cret\n",
                "has a password for its registry",
            ),
            (
                Registry::Npm,
                "home/.npmrc",
                "//npm.example/:_authToken=\nregistry=https://npm.example/s3cret\n",
                "is empty or too long",
            ),
            (
                Registry::Npm,
                "home/.npmrc",
                "_auth=s3cret\n",
                "has a password for its registry",
            ),
            (
                Registry::Npm,
                "home/.npmrc",
                "registry=http://npm.example/\n",
                "http:// is only for a loopback address",
            ),
            (
                Registry::Pypi,
                "home/.config/pip/pip.conf",
                "[global]\nindex-url = https://u:s3cret@pypi.example/simple\n",
                "has a user name or a password in its URL",
            ),
            (
                Registry::Crates,
                "home/.cargo/config.toml",
                "[source.crates-io]\nreplace-with = 'x'\n[source.x]\ndirectory = 's3cret'\n",
                "no sparse registry",
            ),
            (
                Registry::Crates,
                "home/.cargo/config.toml",
                "[source.crates-io]\nreplace-with = 'crates-io'\n",
                "too many steps",
            ),
            (
                Registry::Crates,
                "home/.cargo/config.toml",
                "s3cret\n",
                "is not valid TOML",
            ),
            (
                Registry::Debian,
                "etc/apt/sources.list",
                "deb http://u:s3cret@deb.example/debian x main\n",
                "has a user name or a password in its URL",
            ),
            (
                Registry::Debian,
                "etc/apt/apt.conf.d/9p",
                "Acquire::http::Proxy \"http://s3cret:3142\";\n",
                "has apt use a proxy",
            ),
        ] {
            let message = upstream(registry, &[(file, text)], &[]);
            assert!(message.contains(expect), "{text}: {message}");
            assert!(!message.contains("s3cret"), "{message}");
        }
    }

    #[test]
    fn pips_index_is_found() {
        let own = (
            "home/.config/pip/pip.conf",
            "[install]\nindex-url = https://no.example\n[global]\nindex_url = https://pypi.example/simple/\ncert = /ca.pem\n",
        );
        let (url, _, ca) = find(Registry::Pypi, &[own], &[]).expect("found");
        assert_eq!(
            (url.as_str(), ca.as_deref()),
            ("https://pypi.example/simple", Some("/ca.pem"))
        );
        let variable = [
            ("PIP_INDEX_URL", "https://v.example/simple"),
            ("UV_INDEX_URL", "https://uv.example"),
        ];
        assert_eq!(
            upstream(Registry::Pypi, &[own], &variable),
            "https://v.example/simple"
        );
        assert_eq!(
            upstream(Registry::Pypi, &[], &variable[1..]),
            "https://uv.example"
        );
        let system = (
            "etc/pip.conf",
            "[global]\nindex-url=https://etc.example/simple\n",
        );
        assert_eq!(
            upstream(Registry::Pypi, &[system], &[]),
            "https://etc.example/simple"
        );
    }

    #[test]
    fn cargos_replacement_of_crates_io_is_found() {
        let own = (
            "home/.cargo/config.toml",
            "[source.crates-io]\nreplace-with = 'a'\n[source.a]\nreplace-with = 'b'\n[registries.b]\nindex = 'sparse+https://crates.example/index/'\n[http]\ncainfo = '/ca.pem'\n",
        );
        let (url, _, ca) = find(Registry::Crates, &[own], &[]).expect("found");
        assert_eq!(
            (url.as_str(), ca.as_deref()),
            ("https://crates.example/index", Some("/ca.pem"))
        );
        assert_eq!(
            upstream(
                Registry::Crates,
                &[("home/.cargo/config.toml", "[build]\njobs = 1\n")],
                &[]
            ),
            ""
        );
    }

    #[test]
    fn apts_archive_is_found_and_reached_over_tls() {
        let list = (
            "etc/apt/sources.list",
            "# deb http://no.example/debian x main\ndeb-src http://no.example/debian x main\ndeb [signed-by=/k arch=amd64] http://deb.example/debian bookworm main\n",
        );
        assert_eq!(
            upstream(Registry::Debian, &[list], &[]),
            "https://deb.example/debian"
        );
        let others = [
            (
                "etc/apt/sources.list.d/a.list",
                "deb https://vendor.example/apt stable main\n",
            ),
            (
                "etc/apt/sources.list.d/b.sources",
                "Types: deb\nEnabled: no\nURIs: http://off.example/debian\n\n# x\nTypes: deb deb-src\nURIs: http://own.example/debian http://two.example/x\nSuites: x\n",
            ),
            (
                "etc/apt/sources.list.d/c.list.off",
                "deb http://no.example/debian x main\n",
            ),
            (
                "etc/apt/apt.conf.d/9ca",
                "Acquire::https::CAInfo \"/ca.pem\";\nAcquire::http::Proxy \"DIRECT\";\n",
            ),
        ];
        let (url, _, ca) = find(
            Registry::Debian,
            &others,
            &[("SSL_CERT_FILE", "/other.pem")],
        )
        .expect("found");
        assert_eq!(
            (url.as_str(), ca.as_deref()),
            ("https://own.example/debian", Some("/ca.pem"))
        );
        assert_eq!(
            upstream(Registry::Debian, &others[..1], &[]),
            "https://vendor.example/apt"
        );
        let (_, _, ca) =
            find(Registry::Debian, &[], &[("SSL_CERT_FILE", "/other.pem")]).expect("found");
        assert_eq!(ca.as_deref(), Some("/other.pem"));
        let bundle = ("etc/ssl/certs/ca-certificates.crt", "");
        let (_, _, ca) = find(Registry::Debian, &[bundle], &[]).expect("found");
        assert_eq!(ca.as_deref(), Some("/etc/ssl/certs/ca-certificates.crt"));
    }
}
