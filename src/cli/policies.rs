//! Reads and checks the policies and extractors that a configuration names, and computes digests.
//!
//! Owns which pools may run without the guard, and what a policy's digest covers. Must not know
//! which requests they decide.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::{policy_test_dir, trust};
use marshal_config::{Config, ConfigErrors, Extractor as ExtractorRef, Pool, writable_dirs};
use marshal_fleet::{
    LoadedPolicy, Policies, PolicyReadResult, PolicyReader, path_enters_directory,
};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_policy::extract::Extractor;
use marshal_policy::{LayerText, LoadExtended, Policy};

/// The files that were looked up, so that they can be watched.
type SeenFiles = RefCell<BTreeSet<PathBuf>>;

/// Reads and checks every policy that a pool uses, each once: enforced policies, shadow policies,
/// and the layers that a session may put on top.
///
/// # Errors
/// All errors in the policies, and every pool that has no guard without `guard_off = true`.
pub(super) fn load_policies(config: &Config) -> Result<Policies, Box<ConfigErrors>> {
    read(config, &SeenFiles::default())
}

/// Why the policy of a session's pool is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum PoolPolicyError {
    /// The configuration has no such pool.
    #[error(
        "the pool {} of this session is not in this configuration, but its policy decides what may \
         leave the sandbox; name the right file with --config",
        escape_for_display(.0, 60)
    )]
    NoPool(String),
    /// It names no policy.
    #[error("the policy {} of the pool does not exist", escape_for_display(.0, 60))]
    NoPolicy(String),
    /// A policy has errors.
    #[error("{0}")]
    Faulty(Box<ConfigErrors>),
}

/// The policy of a session's pool.
pub(super) fn of_pool<'c>(
    config: &'c Config,
    name: &str,
) -> Result<(&'c Pool, Arc<Policy>), PoolPolicyError> {
    let pool = config.pool(name);
    let pool = pool.ok_or_else(|| PoolPolicyError::NoPool(name.to_owned()))?;
    let loaded = load_policies(config).map_err(PoolPolicyError::Faulty)?;
    match loaded.by_name.get(&pool.policy) {
        Some(loaded) => Ok((pool, Arc::clone(&loaded.policy))),
        None => Err(PoolPolicyError::NoPolicy(pool.policy.clone())),
    }
}

/// A reader that reads the policies of the same configuration again on each call.
pub(super) fn reader(config: &Config) -> PolicyReader {
    let config = config.clone();
    PolicyReader::new(move || {
        let seen = SeenFiles::default();
        let policies = read(&config, &seen).map_err(|errors| one_line(&errors));
        PolicyReadResult {
            policies,
            files: seen.into_inner(),
        }
    })
}

/// All errors on one line.
fn one_line(errors: &ConfigErrors) -> String {
    errors.to_string().replace('\n', "; ")
}

fn read(config: &Config, seen: &SeenFiles) -> Result<Policies, Box<ConfigErrors>> {
    let mut all = Policies::default();
    let mut faults = Vec::new();
    let mut failed: BTreeSet<&str> = BTreeSet::new();
    for pool in &config.pools {
        let decides = Some(("policy", &pool.policy));
        let shadow = pool
            .shadow_policy
            .as_ref()
            .map(|name| ("shadow_policy", name));
        for (key, name) in decides.into_iter().chain(shadow) {
            if all.by_name.contains_key(name) || failed.contains(name.as_str()) {
                continue;
            }
            match load_checked(config, name, None, seen) {
                Ok(loaded) => drop(all.by_name.insert(name.clone(), loaded)),
                Err(why) => {
                    failed.insert(name);
                    faults.push((format!("pool.{}.{key}", pool.name), why, None));
                }
            }
        }
        let Some(loaded) = all.by_name.get(&pool.policy) else {
            continue;
        };
        // Checked for each pool: `guard_off` of another pool does not apply to this one.
        if !loaded.policy.has_guard() && !pool.options.guard_off {
            let help =
                "add extends = [\"builtin:guard\"] to the policy, or guard_off = true to the pool";
            faults.push((
                format!("pool.{}.policy", pool.name),
                format!("policy {:?} does not extend builtin:guard", pool.policy),
                Some(help.to_owned()),
            ));
        }
        let facts = config.sandbox_facts(pool);
        let required = loaded.policy.required_sandbox().iter();
        for missing in required.filter(|fact| !facts.has(**fact)) {
            let help = "use a sandbox of this host with mode = \"copy\", \"overlay\" or \"worktree\", and the network \"none\" or \"routes\" without server_tools and pushes; or another policy";
            faults.push((
                format!("pool.{}.policy", pool.name),
                format!(
                    "policy {:?} is only for a sandbox with {missing}, and {}",
                    pool.policy,
                    missing.describe_missing()
                ),
                Some(help.to_owned()),
            ));
        }
        for layer in &config.policy_uses.layers {
            let names = (pool.policy.clone(), layer.clone());
            if all.layered.contains_key(&names) || failed.contains(layer.as_str()) {
                continue;
            }
            match load_checked(config, &pool.policy, Some(layer), seen) {
                Ok(loaded) => drop(all.layered.insert(names, loaded)),
                Err(why) => {
                    failed.insert(layer);
                    faults.push((format!("policy.{layer}.layer"), why, None));
                }
            }
        }
    }
    // Policies that no pool uses may have errors too, which would be found only when one does.
    for name in config.policies.keys() {
        // A layer and the site's policy are no policies by themselves.
        let is_part =
            config.policy_uses.layers.contains(name) || config.site_policy.as_ref() == Some(name);
        if !is_part && !all.by_name.contains_key(name) && !failed.contains(name.as_str()) {
            let loaded = load_checked(config, name, None, seen);
            let fault = |why| (format!("policy.{name}.file"), why, None);
            faults.extend(loaded.err().map(fault));
        }
    }
    if faults.is_empty() {
        Ok(all)
    } else {
        Err(Box::new(config.source_map.locate_errors(faults)))
    }
}

/// Reads a policy and checks that it may come into force: no agent can write it, and its test cases
/// pass.
fn load_checked(
    config: &Config,
    name: &str,
    layer: Option<&str>,
    seen: &SeenFiles,
) -> Result<LoadedPolicy, String> {
    let loaded = load_with_layers(config, name, layer, seen)?;
    for file in &loaded.files {
        check_outside_workspaces(config, file)?;
    }
    // A layer is tested together with the policy below it: alone it is not a policy.
    let tested = layer.unwrap_or(name);
    if let Some(dir) = config.policy_uses.test_dirs.get(tested) {
        policy_test_dir::check_cases(&loaded, dir, seen)?;
    }
    Ok(loaded)
}

/// Checks that no agent can write its own policy: with links followed, the file must not be in a
/// directory that a pool's agent can write.
fn check_outside_workspaces(config: &Config, file: &Path) -> Result<(), String> {
    for pool in &config.pools {
        if !pool.launcher.has_sandbox() {
            continue;
        }
        let mut written = writable_dirs(pool);
        if let Some((_, what)) = written.find(|(dir, _)| path_enters_directory(file, dir)) {
            return Err(format!(
                "{} is in {what} of pool {}, whose agent could write it; move it elsewhere",
                trust::display_path(file),
                pool.name
            ));
        }
    }
    Ok(())
}

/// A policy with the digest of all its texts, in this order: its own text, the files that it
/// extends with their names in reading order, the same for the site policy, and the layer on top.
/// Without extended files, site policy and layer, the digest is the plain SHA-256 of the file.
/// Built-in texts are not included: the program's version determines them.
pub(super) fn load_policy(
    config: &Config,
    name: &str,
    layer: Option<&str>,
) -> Result<LoadedPolicy, String> {
    load_with_layers(config, name, layer, &SeenFiles::default())
}

fn load_with_layers(
    config: &Config,
    name: &str,
    layer: Option<&str>,
    seen: &SeenFiles,
) -> Result<LoadedPolicy, String> {
    let files = SeenFiles::default();
    let read = |path: &Path| {
        seen.borrow_mut().insert(path.to_owned());
        files.borrow_mut().insert(path.to_owned());
        read_policy(path)
    };
    let own = source_by(config, name, &read)?;
    let site = config.site_policy.as_deref().filter(|site| *site != name);
    let site = site
        .map(|site| source_by(config, site, &read))
        .transpose()?;
    let layer = layer.filter(|layer| *layer != name);
    let top = layer
        .map(|layer| source_by(config, layer, &read))
        .transpose()?;
    let mut loaded = build_layers(&own, site.as_ref(), top.as_ref(), &read)?;
    loaded.files = files.into_inner().into_iter().collect();
    Ok(loaded)
}

/// The policy of a file, without a site policy below it. `read` returns its text and the texts of
/// the files that it extends.
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
    build_layers(&own, None, None, read)
}

fn build_layers(
    own: &Source,
    site: Option<&Source>,
    top: Option<&Source>,
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
    let nothing = PathBuf::new();
    let directory =
        |source: Option<&Source>| source.map_or(&nothing, |source| &source.directory).clone();
    let (site_dir, top_dir) = (directory(site), directory(top));
    let find_own = |file: &str| find(&own.directory, file);
    let find_site = |file: &str| find(&site_dir, file);
    let find_top = |file: &str| find(&top_dir, file);
    let note = |kind: &str, source: &Source| {
        for piece in [kind, &source.text] {
            digest.borrow_mut().update(piece.as_bytes());
        }
    };
    let mut layers = Vec::new();
    if let Some(site) = site {
        note("\0site\0", site);
        layers.push(site.layer(&find_site));
    }
    layers.push(own.layer(&find_own));
    if let Some(top) = top {
        let layer = top.layer(&find_top);
        marshal_policy::check_layer(&layer).map_err(|error| error.to_string())?;
        note("\0layer\0", top);
        layers.push(layer);
    }
    let mut policy = Policy::load_layers(&layers).map_err(|error| error.to_string())?;
    if top.is_some() {
        let below =
            Policy::load_layers(&layers[..layers.len() - 1]).map_err(|error| error.to_string())?;
        let name = format!("{}+{}", below.name(), policy.name());
        policy = policy.with_name(name);
    }
    drop(layers);
    let sha256 = hex::encode(digest.borrow().clone().finalize());
    Ok(LoadedPolicy {
        policy: Arc::new(policy),
        sha256,
        files: Vec::new(),
    })
}

/// The text of a policy, and the directory of the files that it extends.
pub(super) struct Source {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) directory: PathBuf,
}

impl Source {
    fn layer<'l>(&'l self, find: &'l LoadExtended<'l>) -> LayerText<'l> {
        LayerText {
            name: &self.name,
            text: &self.text,
            load_extended: find,
        }
    }
}

/// The text of a policy of the configuration, or of a built-in policy.
pub(super) fn source(config: &Config, name: &str) -> Result<Source, String> {
    source_by(config, name, &|path| read_policy(path))
}

fn source_by(
    config: &Config,
    name: &str,
    read: &dyn Fn(&Path) -> Result<String, String>,
) -> Result<Source, String> {
    if let Some(path) = config.policies.get(name) {
        return Ok(Source {
            name: name.to_owned(),
            text: read(path)?,
            directory: path.parent().unwrap_or(Path::new("/")).to_owned(),
        });
    }
    let text = marshal_policy::builtin_text(name);
    Ok(Source {
        name: format!("builtin:{name}"),
        text: text
            .ok_or_else(|| format!("there is no built-in policy {name:?}"))?
            .to_owned(),
        directory: PathBuf::from("/"),
    })
}

/// Reads a policy file, which must be trusted like the configuration.
pub(super) fn read_policy(path: &Path) -> Result<String, String> {
    let file = trust::open_trusted(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let bound = limits::CONFIG_BYTES as u64;
    let read = file.take(bound + 1).read_to_string(&mut text);
    let shown = marshal_model::untrusted::escape_for_display(&path.to_string_lossy(), 300);
    let read = read.map_err(|error| format!("{shown}: {error}"))?;
    if read as u64 > bound {
        return Err(format!("{shown}: larger than {bound} bytes"));
    }
    Ok(text)
}

/// Reads every pool's extractor, by the pool's name.
///
/// # Errors
/// All errors in the extractors.
pub(super) fn extractors(
    config: &Config,
) -> Result<BTreeMap<String, Arc<Extractor>>, Box<ConfigErrors>> {
    let mut parsed = BTreeMap::new();
    let mut faults = Vec::new();
    for pool in &config.pools {
        let text = match &pool.extractor {
            ExtractorRef::BuiltIn(name) => marshal_policy::extract::builtin_text(name),
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
        Err(Box::new(config.source_map.locate_errors(faults)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use marshal_config::Origin;

    const BARE: &str = "schema = 1\nname = \"bare\"\ndefault = \"deny\"\n";

    fn config(dir: &Path, text: &str) -> Config {
        let origin = Origin {
            file: Some(dir.join("supervisor.toml")),
            dir: dir.to_owned(),
            is_explicit: true,
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
        let error = load_policies(&config(&dir, &both)).expect_err("b has no guard");
        let shown = error.to_string();
        assert!(
            shown.contains("pool.b.policy") && shown.contains("builtin:guard"),
            "{shown}"
        );
        assert!(!shown.contains("pool.a.policy"), "{shown}");
        let loaded =
            load_policies(&config(&dir, &format!("{file}{off}"))).expect("by its own word");
        assert_eq!(loaded.by_name.len(), 1);
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
        let loaded = load_policies(&config(&dir, &text)).expect("loaded");
        let at = marshal_policy::FsContext {
            workspace: "/w",
            home: "/h",
            cwd: Some("/w"),
            resolver: &marshal_policy::NoLinks,
        };
        let request = marshal_policy::Request::Shell {
            command: "ls".to_owned(),
            cwd: None,
        };
        for name in ["bare", "developer"] {
            let policy = &loaded.by_name[name].policy;
            let judged = policy.decide(&request, &marshal_model::AgentClaims::default(), &at);
            assert_eq!(judged.rules, ["no-ls"], "{name}");
            assert_ne!(policy.name(), "corp");
        }
        let before = loaded.by_name["developer"].sha256.clone();
        fs::write(dir.join("corp.toml"), format!("{site}# changed\n")).expect("written");
        let again = load_policies(&config(&dir, &text)).expect("loaded");
        assert_ne!(before, again.by_name["developer"].sha256);
    }

    #[test]
    fn the_digest_covers_what_is_extended() {
        let dir = tempfile::tempdir().expect("directory");
        let dir = fs::canonicalize(dir.path()).expect("real");
        let file = "[policy.bare]\nfile = \"bare.toml\"\n";
        let text = format!("{file}{}", pool("a", "guard_off = true"));
        let digest = || {
            let loaded = load_policies(&config(&dir, &text)).expect("loaded");
            loaded.by_name["bare"].sha256.clone()
        };
        fs::write(dir.join("bare.toml"), BARE).expect("written");
        assert_eq!(digest(), hex::encode(Sha256::digest(BARE)));
        let extending = format!("{BARE}extends = [\"base.toml\"]\n");
        fs::write(dir.join("bare.toml"), &extending).expect("written");
        fs::write(dir.join("base.toml"), BARE).expect("written");
        let before = digest();
        assert_eq!(before, digest());
        assert_ne!(before, hex::encode(Sha256::digest(&extending)));
        fs::write(dir.join("base.toml"), format!("{BARE}# changed\n")).expect("written");
        assert_ne!(before, digest());
    }
}
