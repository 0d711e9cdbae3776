//! Reads the secrets that a configuration names, from environment variables, files and credentials
//! of the service manager. Also reads the certificate authorities of its routes, whose files must be
//! trusted too.
//!
//! Only root and the caller may be able to change a secret's file, and it must not be readable by
//! all users. Must not know who gets the values. No message contains a value.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::registries;
use super::trust::{OpenError, display_path, open_trusted, why};
use marshal_config::{
    CertificateAuthorities, Config, ConfigErrors, HookTarget, Route, Secret, SecretSource,
    StoreConfig, is_likely_secret,
};
use marshal_model::limits;
use marshal_policy::Mask;

/// Reads the value of every secret of the configuration. `env` reads the environment.
///
/// # Errors
/// An error for each secret that cannot be read, with its line in the configuration.
pub fn read(
    config: &mut Config,
    env: impl Fn(&str) -> Option<OsString>,
) -> Result<(), Box<ConfigErrors>> {
    let mut faults = registries::read(config, &env);
    for pool in &mut config.pools {
        for (name, secret) in &mut pool.env.secrets {
            if let Err(message) = load_secret(secret, &env) {
                let key = format!("pool.{}.env.set.{name}", pool.name);
                faults.push((key, message, None));
            }
        }
    }
    for hook in &mut config.hooks {
        let signing_key = format!("hook.{}.secret", hook.name);
        for (key, secret) in hook.secrets_mut() {
            let mut result = load_secret(secret, &env);
            if key == signing_key {
                result = result.and_then(|()| check_signing_secret(secret));
            }
            if let Err(message) = result {
                faults.push((key, message, None));
            }
        }
        let ca_key = format!("hook.{}.ca", hook.name);
        if let HookTarget::Address(to) = &mut hook.target
            && let Some(ca) = &mut to.ca
            && let Err(message) = read_authorities(ca)
        {
            faults.push((ca_key, message, None));
        }
    }
    // The secrets of routes that neither a pool nor `land --pr` uses need not exist.
    let used = |route: &&mut Route| {
        let mut ports = config.pools.iter().flat_map(|pool| &pool.routes);
        route.git.pull_requests.is_some() || ports.any(|port| port.name == route.name)
    };
    for route in config.routes.values_mut().filter(used) {
        let key = |key: &str| format!("route.{}.{key}", route.name);
        let (secret_key, ca_key) = (key("secret"), key("ca"));
        // A key that is there came with the configuration of the host's client.
        if let Some(secret) = &mut route.secret {
            let loaded = match secret.expose() {
                Some(_) => Ok(()),
                None => load_secret(secret, &env),
            };
            let result = loaded.and_then(|()| check_header_value(secret));
            if let Err(message) = result {
                faults.push((secret_key, message, None));
            }
        }
        let requests = route.git.pull_requests.as_mut();
        if let Some(secret) = requests.and_then(|requests| requests.secret.as_mut()) {
            let loaded = load_secret(secret, &env).and_then(|()| check_header_value(secret));
            let key = key("api_secret");
            faults.extend(loaded.err().map(|message| (key, message, None)));
        }
        if let Some(ca) = &mut route.ca
            && let Err(message) = read_authorities(ca)
        {
            faults.push((ca_key, message, None));
        }
    }
    faults.extend(of_store(&mut config.store, &env));
    let pools = &config.pools;
    let used = |name: &str| {
        pools
            .iter()
            .any(|pool| pool.delegate.as_deref() == Some(name))
    };
    for delegate in config
        .delegates
        .values_mut()
        .filter(|delegate| used(&delegate.name))
    {
        let key = format!("delegate.{}.token", delegate.name);
        if let Some(token) = &mut delegate.token {
            let result = load_secret(token, &env).and_then(|()| check_header_value(token));
            faults.extend(result.err().map(|message| (key, message, None)));
        }
    }
    if faults.is_empty() {
        Ok(())
    } else {
        Err(Box::new(config.source_map.locate_errors(faults)))
    }
}

/// Reads the secrets of the store.
fn of_store(
    store: &mut StoreConfig,
    env: &impl Fn(&str) -> Option<OsString>,
) -> Vec<(String, String, Option<String>)> {
    let mut faults = Vec::new();
    if let Some(secret) = &mut store.postgres
        && let Err(message) = load_secret(secret, env)
    {
        faults.push(("store.postgres".to_owned(), message, None));
    }
    if let Some(ca) = &mut store.ca
        && let Err(message) = read_authorities(ca)
    {
        faults.push(("store.ca".to_owned(), message, None));
    }
    faults
}

/// The mask for the secrets of a configuration whose values were read, and for well-known formats
/// of keys. It includes variables that are passed on from the environment, read by `env`, if their
/// names look like secrets. Logs the names of values that are too short to mask.
#[must_use]
pub fn mask(config: &Config, env: impl Fn(&str) -> Option<OsString>) -> Mask {
    let passed: BTreeSet<&String> = config
        .pools
        .iter()
        .flat_map(|pool| &pool.env.pass)
        .collect();
    let passed = passed.into_iter().filter(|name| is_likely_secret(name));
    let mut values: Vec<(String, Arc<str>)> = passed
        .filter_map(|name| Some((name.clone(), env(name)?.into_string().ok()?.into())))
        .collect();
    let secrets = config.secrets().into_iter();
    values.extend(secrets.filter_map(|found| Some((found.name, found.secret.expose()?))));
    let (mask, short) = Mask::new(&values);
    if !short.is_empty() {
        tracing::warn!(
            secrets = ?short,
            least = limits::SECRET_MIN_BYTES,
            "these secrets are too short to be masked in the journal"
        );
    }
    mask
}

/// Reads a secret's value from its source.
fn load_secret(secret: &mut Secret, env: &impl Fn(&str) -> Option<OsString>) -> Result<(), String> {
    let value = match &secret.source {
        SecretSource::Variable(variable) => of_variable(variable, env(variable)),
        SecretSource::File(path) => of_file(path),
        SecretSource::Credential(name) => of_credential(name, env("CREDENTIALS_DIRECTORY")),
        SecretSource::Redacted => Err(
            "this text replaces a secret that was hidden; write its source, \"env:NAME\", \"file:PATH\" or \"credential:NAME\"".to_owned(),
        ),
    }?;
    *secret = secret.clone().with_value(&value);
    Ok(())
}

/// Checks that a secret can be sent in an HTTP header.
fn check_header_value(secret: &Secret) -> Result<(), String> {
    let value = secret.expose();
    let value = value.as_deref().unwrap_or_default();
    if value.bytes().all(|b| matches!(b, b'!'..=b'~')) {
        Ok(())
    } else {
        Err(
            "the key has a space, a line break or another character that is not allowed in an HTTP header"
                .to_owned(),
        )
    }
}

/// Checks the length of a signing secret: a short one can be guessed from one signed message.
fn check_signing_secret(secret: &Secret) -> Result<(), String> {
    let least = limits::HOOK_SECRET_BYTES;
    let is_long = secret.expose().is_some_and(|value| value.len() >= least);
    is_long.then_some(()).ok_or_else(|| {
        format!(
            "the secret is shorter than {least} characters; create one with `openssl rand -hex 32`"
        )
    })
}

fn read_authorities(ca: &mut CertificateAuthorities) -> Result<(), String> {
    let name = display_path(&ca.path);
    let mut file = open_trusted(&ca.path).map_err(|error| match error {
        OpenError::Read(error) => format!("cannot read {name}: {}", why(&error)),
        OpenError::Untrusted(error) => error.to_string(),
    })?;
    let mut bytes = Vec::new();
    let max_bytes = limits::CONFIG_BYTES as u64 + 1;
    let read = file.by_ref().take(max_bytes).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read {name}: {}", why(&error)))?;
    if bytes.len() > limits::CONFIG_BYTES {
        return Err(format!(
            "{name} has more than {} bytes",
            limits::CONFIG_BYTES
        ));
    }
    ca.pem = Some(bytes.into());
    Ok(())
}

fn of_variable(name: &str, value: Option<OsString>) -> Result<String, String> {
    let Some(value) = value else {
        return Err(format!("the variable {name} is not set"));
    };
    let value = value.into_string();
    let value = value.map_err(|_| format!("the variable {name} is not UTF-8"))?;
    check_value(value, &format!("the variable {name}"))
}

/// systemd.exec(5): each credential is a file in a directory that only the service reads.
fn of_credential(name: &str, directory: Option<OsString>) -> Result<String, String> {
    let directory = directory
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    let directory = directory.ok_or_else(|| {
        format!(
            "no credentials were passed to this process ($CREDENTIALS_DIRECTORY); LoadCredential={name}:FILE in the unit passes this one"
        )
    })?;
    of_file(&directory.join(name))
}

fn of_file(path: &Path) -> Result<String, String> {
    let name = display_path(path);
    let mut file = open_trusted(path).map_err(|error| match error {
        OpenError::Read(error) => format!("cannot read {name}: {}", why(&error)),
        OpenError::Untrusted(error) => error.to_string(),
    })?;
    let failed = |error: std::io::Error| format!("cannot read {name}: {}", why(&error));
    let mode = file.metadata().map_err(failed)?.mode() & 0o7777;
    if mode & 0o004 != 0 {
        return Err(format!(
            "{name} is readable by all users (mode {mode:04o}); make it readable only for its owner, for example with chmod 600"
        ));
    }
    let mut bytes = Vec::new();
    let max_bytes = limits::SECRET_BYTES as u64 + 1;
    let read = file.by_ref().take(max_bytes).read_to_end(&mut bytes);
    read.map_err(failed)?;
    let text = String::from_utf8(bytes).map_err(|_| format!("{name} is not UTF-8"))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    check_value(text.to_owned(), &name)
}

/// Checks that a value can be the value of an environment variable. `source` names it in messages.
fn check_value(value: String, source: &str) -> Result<String, String> {
    let max_bytes = limits::SECRET_BYTES;
    match &value {
        _ if value.is_empty() => Err(format!("{source} is empty")),
        _ if value.len() > max_bytes => Err(format!("{source} has more than {max_bytes} bytes")),
        _ if value.contains('\0') => Err(format!("{source} contains a NUL character")),
        _ => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use marshal_config::Origin;

    fn config(dir: &Path, value: &str) -> Config {
        let origin = Origin {
            file: Some(dir.join("supervisor.toml")),
            dir: dir.to_owned(),
            is_explicit: true,
        };
        let text = format!("[pool.demo]\nagent = \"script\"\nenv.set.KEY = \"{value}\"\n");
        Config::parse(&text, &origin).expect("good")
    }

    fn environment(name: &str) -> Option<OsString> {
        match name {
            "GOOD" => Some("from the environment".into()),
            "EMPTY" => Some("".into()),
            "LARGE" => Some("x".repeat(limits::SECRET_BYTES + 1).into()),
            _ => None,
        }
    }

    fn value(dir: &Path, value: &str) -> Result<String, String> {
        let mut config = config(dir, value);
        read(&mut config, environment).map_err(|errors| errors.to_string())?;
        assert!(config.pools[0].env.set.is_empty());
        let secret = &config.pools[0].env.secrets["KEY"];
        assert!(!format!("{config:?}").contains(&*secret.expose().expect("read")));
        Ok(secret.expose().expect("read").as_ref().to_owned())
    }

    #[test]
    fn a_secret_comes_from_the_environment() {
        let dir = Path::new("/etc/marshal");
        assert_eq!(
            value(dir, "env:GOOD").expect("read"),
            "from the environment"
        );
        for (name, expect) in [
            (
                "NONE",
                "pool.demo.env.set.KEY: the variable NONE is not set",
            ),
            ("EMPTY", "the variable EMPTY is empty"),
            ("LARGE", "the variable LARGE has more than 65536 bytes"),
        ] {
            let shown = value(dir, &format!("env:{name}")).expect_err("refused");
            assert!(shown.contains(expect), "{shown}");
            assert!(
                shown.starts_with("/etc/marshal/supervisor.toml:3:15: "),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_secret_comes_from_a_file_that_only_its_owner_reads() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("key");
        let put = |bytes: &[u8], mode: u32| {
            // Its owner may not write into the last one.
            let _ = fs::remove_file(&file);
            fs::write(&file, bytes).expect("written");
            fs::set_permissions(&file, Permissions::from_mode(mode)).expect("chmod");
        };
        let read = || value(dir.path(), "file:key");
        put(b"s3cr3t-value\n", 0o600);
        assert_eq!(read().as_deref(), Ok("s3cr3t-value"));
        // A credential of the service manager is the file of its name in a directory.
        let credential = |directory: Option<&Path>| {
            let mut config = config(dir.path(), "credential:key");
            let of = |name: &str| directory.filter(|_| name == "CREDENTIALS_DIRECTORY");
            super::read(&mut config, |name| of(name).map(Into::into))
                .map_err(|errors| errors.to_string())?;
            let value = config.pools[0].env.secrets["KEY"].expose();
            Ok::<_, String>(value.expect("read").as_ref().to_owned())
        };
        assert_eq!(credential(Some(dir.path())).as_deref(), Ok("s3cr3t-value"));
        for (directory, expect) in [
            (None, "LoadCredential=key:FILE"),
            (Some(Path::new("relative")), "no credentials were passed"),
            (Some(Path::new("/nowhere")), "cannot read"),
        ] {
            let shown = credential(directory).expect_err("refused");
            assert!(shown.contains(expect), "{shown}");
        }
        put(b"two\nlines\n\n", 0o400);
        assert_eq!(read().as_deref(), Ok("two\nlines\n"));
        put(&vec![b'x'; limits::SECRET_BYTES], 0o600);
        assert_eq!(read().map(|text| text.len()), Ok(limits::SECRET_BYTES));
        let refused = |expect: &str| {
            let shown = read().expect_err("refused");
            assert!(shown.contains(expect), "{shown}");
            assert!(!shown.contains("s3cr3t"), "{shown}");
        };
        put(b"s3cr3t-value\n", 0o644);
        refused("is readable by all users (mode 0644)");
        put(b"s3cr3t-value\n", 0o602);
        refused("is writable by everybody");
        put(b"\n", 0o600);
        refused("key is empty");
        put(b"a\0b", 0o600);
        refused("a NUL character");
        put(b"\xff", 0o600);
        refused("is not UTF-8");
        put(&vec![b'x'; limits::SECRET_BYTES + 2], 0o600);
        refused("has more than 65536 bytes");
        fs::remove_file(&file).expect("removed");
        refused("cannot read");
        fs::create_dir(&file).expect("a directory");
        refused("is not a regular file");
    }
}
