//! Shared caches, as they are read.

use std::path::PathBuf;

use super::{accepted_by, discovered_origin, explicit_origin, only, pool, refused_by};
use crate::Cache;

#[test]
fn a_pool_shares_the_caches_that_it_names_from_where_the_file_says() {
    let text = pool("cache = [\"pip\", \"cargo\"]") + "[cache]\ncargo = \"own\"\nnpm = \"/srv/npm\"\n";
    let config = accepted_by(&explicit_origin(), &text);
    let caches: Vec<_> = only(&config).caches.clone().into_iter().collect();
    let own = PathBuf::from("/etc/marshal/own");
    assert_eq!(caches, [(Cache::Cargo, Some(own)), (Cache::Pip, None)]);
    let variables: Vec<_> = only(&config).cache_variables().collect();
    let pairs = [("CARGO_HOME", "cargo"), ("PIP_CACHE_DIR", "pip")];
    assert_eq!(variables, pairs.map(|(name, dir)| (name, format!("/run/marshal/cache/{dir}"))));
    assert!(only(&accepted_by(&explicit_origin(), &pool(""))).caches.is_empty());
}

#[test]
fn caches_that_cannot_be_shared_are_refused() {
    let refused = |keys: &str, why: &str| refused_by(&explicit_origin(), &pool(keys), why);
    refused("cache = [\"gem\"]", "expected \"cargo\", \"npm\" or \"pip\", found \"gem\"");
    refused("cache = [\"pip\", \"pip\"]", "is in the list twice");
    refused("cache = \"pip\"", "expected an array of strings");
    refused("launcher = \"none\"\nworkspace.mode = \"copy\"\ncache = [\"pip\"]", "a cache needs a sandbox on this host");
    refused("launcher = \"ssh\"\nssh = { host = \"h\", workspace = \"/w\" }\ncache = [\"pip\"]", "a cache needs a sandbox on this host");
    refused("session = \"slot\"\ncheck = [\"true\"]\ncache = [\"pip\"]", "excludes a check");
    let table = |keys: &str, why: &str| refused_by(&explicit_origin(), &(pool("") + "[cache]\n" + keys), why);
    table("cargo = \"~/.cargo\"", "\"~\" is not expanded here");
    table("pip = \"$HOME/x\"", "variables are not expanded");
    table("pip = \"\"", "a path must not be empty");
    table("gem = \"x\"", "unknown key \"gem\"");
    let own = pool("workspace = { path = \"/srv\", mode = \"rw\" }") + "[cache]\npip = \"/srv/pip\"\n";
    refused_by(&explicit_origin(), &own, "the agent could write the cache \"/srv/pip\"");
}

#[test]
fn a_file_that_was_found_shares_nothing_of_this_host() {
    let of_found = |text: &str, why: &str| refused_by(&discovered_origin(), text, why);
    of_found(&pool("cache = [\"cargo\"]"), "may not share caches of this host…--config");
    let own = pool("") + "[cache]\ncargo = \"own\"\n";
    of_found(&own, "may not set cache directories…--config");
    accepted_by(&discovered_origin(), &pool("cache = []"));
}
