//! The policies in force: which version judges, and how newer ones take their place.
//!
//! Owns that all pools change together, and that whoever judges holds one version for the whole of
//! a request. Must not know where policies come from or what a request is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::StartError;
use super::clock::now_us;
use super::shadow::Shadow;
use marshal_config::{Config, Pool};
use marshal_policy::Policy;

/// A policy with the digest of its text.
#[derive(Debug, Clone)]
pub struct LoadedPolicy {
    /// The policy.
    pub policy: Arc<Policy>,
    /// SHA-256 of its text and of what it extends, hexadecimal.
    pub sha256: String,
    /// The files that it was made of; none of a policy that is built in.
    pub files: Vec<PathBuf>,
}

/// All policies that a configuration's pools use, read and checked together.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    /// By the names that pools use, for judging and as shadows.
    pub by_name: BTreeMap<String, LoadedPolicy>,
    /// With the layer of a session on top, by the pool's name for its policy and that of the layer.
    pub layered: BTreeMap<(String, String), LoadedPolicy>,
}

impl From<BTreeMap<String, LoadedPolicy>> for Policies {
    fn from(by_name: BTreeMap<String, LoadedPolicy>) -> Self {
        Self {
            by_name,
            layered: BTreeMap::new(),
        }
    }
}

/// One version of what judges a pool's requests. Immutable.
#[derive(Debug)]
pub(crate) struct PolicyVersion {
    /// The policy, for sessions without a layer of their own.
    pub(crate) base: LoadedPolicy,
    /// The same with the layer of a session on top, by the layer's name.
    pub(crate) layered: BTreeMap<String, LoadedPolicy>,
    /// What is tried beside it.
    pub(crate) shadow: Option<Shadow>,
    /// Since when it is in force, in microseconds since 1970.
    pub(crate) loaded_at_us: i64,
}

impl PolicyVersion {
    /// What judges a session with this layer; `None`: there is no such layer, so nothing may be
    /// allowed.
    pub(crate) fn for_layer(&self, layer: Option<&str>) -> Option<&LoadedPolicy> {
        match layer {
            None => Some(&self.base),
            Some(name) => self.layered.get(name),
        }
    }

    fn has_same_digests(&self, other: &Self) -> bool {
        let digests = |version: &Self| -> Vec<String> {
            let layered = version.layered.values().map(|of| of.sha256.clone());
            let shadow = version.shadow.as_ref().map(|of| of.loaded.sha256.clone());
            layered.chain(shadow).collect()
        };
        self.base.sha256 == other.base.sha256
            && self.layered.keys().eq(other.layered.keys())
            && digests(self) == digests(other)
    }
}

/// The versions of all pools, in the configuration's order of pools. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct ActivePolicies(Arc<ArcSwap<Vec<Arc<PolicyVersion>>>>);

impl ActivePolicies {
    pub(crate) fn new(config: &Config, policies: &Policies) -> Result<Self, StartError> {
        let versions = versions(config, policies)?;
        Ok(Self(Arc::new(ArcSwap::from_pointee(versions))))
    }

    /// All versions, of one moment.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<PolicyVersion>>> {
        self.0.load_full()
    }

    /// Puts newer policies in force, for all pools at once; a pool whose policies have not changed
    /// keeps its version. Gives how many pools have another one. One at a time.
    pub(crate) fn replace(
        &self,
        config: &Config,
        policies: &Policies,
    ) -> Result<usize, StartError> {
        let old = self.all();
        let mut changed = 0;
        let mut next = versions(config, policies)?;
        for (new, old) in next.iter_mut().zip(old.iter()) {
            if new.has_same_digests(old) {
                *new = Arc::clone(old);
            } else {
                changed += 1;
            }
        }
        if changed > 0 {
            self.0.store(Arc::new(next));
        }
        Ok(changed)
    }
}

fn versions(config: &Config, policies: &Policies) -> Result<Vec<Arc<PolicyVersion>>, StartError> {
    let now_us = now_us();
    let of_pool = |pool: &Pool| {
        let find = |name: &String| {
            let none = || StartError::NoPolicy {
                pool: pool.name.clone(),
                policy: name.clone(),
            };
            policies.by_name.get(name).cloned().ok_or_else(none)
        };
        let shadow = pool
            .shadow_policy
            .as_ref()
            .map(|name| find(name).map(|loaded| Shadow::new(&pool.name, name.clone(), loaded)));
        let layered = policies.layered.iter();
        let layered = layered.filter(|((base, _), _)| *base == pool.policy);
        Ok(Arc::new(PolicyVersion {
            base: find(&pool.policy)?,
            layered: layered
                .map(|((_, layer), of)| (layer.clone(), of.clone()))
                .collect(),
            shadow: shadow.transpose()?,
            loaded_at_us: now_us,
        }))
    };
    config.pools.iter().map(of_pool).collect()
}

/// What is in force for one pool.
#[derive(Debug, Clone)]
pub(crate) struct PoolPolicy {
    all: ActivePolicies,
    place: usize,
}

impl PoolPolicy {
    /// Of the pool at this place in the configuration.
    pub(crate) fn new(all: &ActivePolicies, place: usize) -> Self {
        Self {
            all: all.clone(),
            place,
        }
    }

    /// The newest version. Take it once for a decision: two calls may give two versions.
    pub(crate) fn current(&self) -> Arc<PolicyVersion> {
        Arc::clone(&self.all.0.load()[self.place])
    }
}
