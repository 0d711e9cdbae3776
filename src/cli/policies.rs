//! The policies and extractors that a configuration names: read, checked, digested.
//!
//! Owns who may do without the guard, and what a policy's digest covers. Must not know what is
//! judged by them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::trust;
use crate::config::{Config, ConfigErrors, Extractor as ExtractorRef};
use crate::fleet::LoadedPolicy;
use crate::limits;
use crate::policy::extract::Extractor;
use crate::policy::{LayerText, Policy};

/// Reads every policy that a pool names, each once.
///
/// # Errors
/// Everything that is wrong with them, and every pool that lacks the guard without saying so.
pub(super) fn policies(
    config: &Config,
) -> Result<BTreeMap<String, LoadedPolicy>, Box<ConfigErrors>> {
    let mut loaded: BTreeMap<String, LoadedPolicy> = BTreeMap::new();
    let mut faults = Vec::new();
    for pool in &config.pools {
        let key = format!("pool.{}.policy", pool.name);
        let has_guard = match loaded.get(&pool.policy) {
            Some(known) => known.policy.has_guard(),
            None => match policy(config, &pool.policy) {
                Ok(policy) => {
                    let has_guard = policy.policy.has_guard();
                    loaded.insert(pool.policy.clone(), policy);
                    has_guard
                }
                Err(why) => {
                    faults.push((key, why, None));
                    continue;
                }
            },
        };
        // A pool's own choice: that another pool does without the guard says nothing of this one.
        if !has_guard && !pool.guard_off {
            faults.push((
                key,
                format!("policy {:?} does not extend builtin:guard", pool.policy),
                Some(
                    "add extends = [\"builtin:guard\"] to it, or guard_off = true to the pool"
                        .to_owned(),
                ),
            ));
        }
    }
    if faults.is_empty() {
        Ok(loaded)
    } else {
        Err(Box::new(config.places.refuse(faults)))
    }
}

/// A policy with the digest of every text that it was made of: its own, which gives the file's
/// plain SHA-256 if it extends no file and there is no site's policy below it, then the files that it
/// extends with their names, in the order in which they are read, then the site's in the same way.
/// Built-in texts that it extends go with the program's version.
pub(super) fn policy(config: &Config, name: &str) -> Result<LoadedPolicy, String> {
    let own = source(config, name)?;
    let site = config.site_policy.as_deref().filter(|site| *site != name);
    let site = site.map(|site| source(config, site)).transpose()?;
    layered(&own, site.as_ref(), &|path| read_policy(path))
}

/// The policy of a file, without a site's below it; `read` gives its text and those of the files that
/// it extends.
pub(super) fn of_file(
    path: &Path,
    name: &str,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<LoadedPolicy, String> {
    let own = Source {
        name: name.to_owned(),
        text: read(path)?,
        directory: path.parent().unwrap_or(Path::new("/")).to_owned(),
    };
    layered(&own, None, read)
}

fn layered(
    own: &Source,
    site: Option<&Source>,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<LoadedPolicy, String> {
    let digest = RefCell::new(Sha256::new());
    digest.borrow_mut().update(own.text.as_bytes());
    let find = |directory: &Path, file: &str| {
        let text = read(&directory.join(file))?;
        let mut digest = digest.borrow_mut();
        for piece in ["\0", file, "\0", &text] {
            digest.update(piece.as_bytes());
        }
        Ok(text)
    };
    let find_own = |file: &str| find(&own.directory, file);
    let find_site = |file: &str| match site {
        Some(site) => find(&site.directory, file),
        None => Err("there is no site's policy".to_owned()),
    };
    let mut layers = Vec::new();
    if let Some(site) = site {
        for piece in ["\0site\0", &site.text] {
            digest.borrow_mut().update(piece.as_bytes());
        }
        layers.push(LayerText {
            name: &site.name,
            text: &site.text,
            find: &find_site,
        });
    }
    layers.push(LayerText {
        name: &own.name,
        text: &own.text,
        find: &find_own,
    });
    let policy = Policy::load_layers(&layers).map_err(|error| error.to_string())?;
    drop(layers);
    let sha256 = hexadecimal(&digest.borrow().clone().finalize());
    Ok(LoadedPolicy {
        policy: Arc::new(policy),
        sha256,
    })
}

/// The text of a policy and where what it extends is looked for.
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) directory: PathBuf,
}

/// The text of a policy of the configuration, or of one that is built in.
pub(super) fn source(config: &Config, name: &str) -> Result<Source, String> {
    if let Some(path) = config.policies.get(name) {
        return Ok(Source {
            name: name.to_owned(),
            text: read_policy(path)?,
            directory: path.parent().unwrap_or(Path::new("/")).to_owned(),
        });
    }
    let text = crate::policy::builtin_text(name);
    Ok(Source {
        name: format!("builtin:{name}"),
        text: text
            .ok_or_else(|| format!("there is no built-in policy {name:?}"))?
            .to_owned(),
        directory: PathBuf::from("/"),
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A policy is code: it is trusted like the configuration.
pub(super) fn read_policy(path: &Path) -> Result<String, String> {
    let file = trust::open_trusted(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let bound = limits::CONFIG_BYTES as u64;
    let read = file.take(bound + 1).read_to_string(&mut text);
    let shown = crate::model::foreign::show(&path.to_string_lossy(), 300);
    let read = read.map_err(|error| format!("{shown}: {error}"))?;
    if read as u64 > bound {
        return Err(format!("{shown}: larger than {bound} bytes"));
    }
    Ok(text)
}

/// Reads every pool's extractor, by the pool's name.
///
/// # Errors
/// Everything that is wrong with them.
pub(super) fn extractors(
    config: &Config,
) -> Result<BTreeMap<String, Arc<Extractor>>, Box<ConfigErrors>> {
    let mut parsed = BTreeMap::new();
    let mut faults = Vec::new();
    for pool in &config.pools {
        let text = match &pool.extractor {
            ExtractorRef::BuiltIn(name) => crate::policy::extract::builtin_text(name),
            ExtractorRef::Inline(text) => Some(text.as_str()),
        };
        let key = format!("pool.{}.extractor", pool.name);
        match text.map(Extractor::parse) {
            Some(Ok(extractor)) => {
                parsed.insert(pool.name.to_string(), Arc::new(extractor));
            }
            Some(Err(error)) => faults.push((key, error.to_string(), None)),
            None => faults.push((key, "there is no such built-in extractor".to_owned(), None)),
        }
    }
    if faults.is_empty() {
        Ok(parsed)
    } else {
        Err(Box::new(config.places.refuse(faults)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::Origin;

    const BARE: &str = "schema = 1\nname = \"bare\"\ndefault = \"deny\"\n";

    fn config(dir: &Path, text: &str) -> Config {
        let origin = Origin {
            file: Some(dir.join("supervisor.toml")),
            dir: dir.to_owned(),
            named: true,
        };
        Config::parse(text, &origin).expect("good")
    }

    fn pool(name: &str, more: &str) -> String {
        format!(
            "[pool.{name}]\nagent = \"script\"\npolicy = \"bare\"\nworkspace.path = \"work\"\n{more}\n"
        )
    }

    #[test]
    fn a_pool_may_do_without_the_guard_only_by_its_own_word() {
        let dir = tempfile::tempdir().expect("directory");
        let dir = fs::canonicalize(dir.path()).expect("real");
        fs::write(dir.join("bare.toml"), BARE).expect("written");
        let file = "[policy.bare]\nfile = \"bare.toml\"\n";
        let off = pool("a", "guard_off = true");
        let both = format!("{file}{off}{}", pool("b", ""));
        let error = policies(&config(&dir, &both)).expect_err("b has no guard");
        let shown = error.to_string();
        assert!(
            shown.contains("pool.b.policy") && shown.contains("builtin:guard"),
            "{shown}"
        );
        assert!(!shown.contains("pool.a.policy"), "{shown}");
        let loaded = policies(&config(&dir, &format!("{file}{off}"))).expect("by its own word");
        assert_eq!(loaded.len(), 1);
    }

    #[test]
    fn what_the_site_denies_no_pool_allows() {
        let dir = tempfile::tempdir().expect("directory");
        let dir = fs::canonicalize(dir.path()).expect("real");
        fs::write(dir.join("bare.toml"), BARE).expect("written");
        let site = "schema = 1\nname = \"corp\"\n[[rule]]\nid = \"no-ls\"\ndecision = \"deny\"\n\
            tool = \"shell\"\nargv = [\"ls\"]\n";
        fs::write(dir.join("corp.toml"), site).expect("written");
        let file = "[policy.bare]\nfile = \"bare.toml\"\n[policy.corp]\nfile = \"corp.toml\"\nsite = true\n";
        let text = format!("{file}{}{}", pool("a", "guard_off = true"), pool("b", "")).replacen(
            "[pool.b]\nagent = \"script\"\npolicy = \"bare\"",
            "[pool.b]\nagent = \"script\"",
            1,
        );
        let loaded = policies(&config(&dir, &text)).expect("loaded");
        let at = crate::policy::Place {
            workspace: "/w",
            home: "/h",
            cwd: Some("/w"),
            resolver: &crate::policy::NoLinks,
        };
        let request = crate::policy::Request::Shell {
            command: "ls".to_owned(),
            cwd: None,
        };
        for name in ["bare", "developer"] {
            let policy = &loaded[name].policy;
            let judged = policy.decide(&request, &crate::model::Claimed::default(), &at);
            assert_eq!(judged.rules, ["no-ls"], "{name}");
            assert_ne!(policy.name(), "corp");
        }
        let before = loaded["developer"].sha256.clone();
        fs::write(dir.join("corp.toml"), format!("{site}# changed\n")).expect("written");
        let again = policies(&config(&dir, &text)).expect("loaded");
        assert_ne!(before, again["developer"].sha256);
    }

    #[test]
    fn the_digest_covers_what_is_extended() {
        let dir = tempfile::tempdir().expect("directory");
        let dir = fs::canonicalize(dir.path()).expect("real");
        let file = "[policy.bare]\nfile = \"bare.toml\"\n";
        let text = format!("{file}{}", pool("a", "guard_off = true"));
        let digest = || {
            let loaded = policies(&config(&dir, &text)).expect("loaded");
            loaded["bare"].sha256.clone()
        };
        fs::write(dir.join("bare.toml"), BARE).expect("written");
        assert_eq!(digest(), hexadecimal(&Sha256::digest(BARE)));
        let extending = format!("{BARE}extends = [\"base.toml\"]\n");
        fs::write(dir.join("bare.toml"), &extending).expect("written");
        fs::write(dir.join("base.toml"), BARE).expect("written");
        let before = digest();
        assert_eq!(before, digest());
        assert_ne!(before, hexadecimal(&Sha256::digest(&extending)));
        fs::write(dir.join("base.toml"), format!("{BARE}# changed\n")).expect("written");
        assert_ne!(before, digest());
    }
}
