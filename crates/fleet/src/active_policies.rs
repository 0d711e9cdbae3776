//! The policies in force, and how newer versions replace them.
//!
//! Owns that all pools change together, and that a request is evaluated with one version from start
//! to end. Must not know where policies come from or what a request is.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::StartError;
use super::clock::now_us;
use super::shadow::Shadow;
use marshal_config::{Config, Pool};
use marshal_policy::Policy;

/// A policy with its digest and files.
#[derive(Debug, Clone)]
pub struct LoadedPolicy {
    /// The policy.
    pub policy: Arc<Policy>,
    /// SHA-256 of its text and of the policies that it extends, hexadecimal.
    pub sha256: String,
    /// The files that it was read from; empty for a built-in policy.
    pub files: Vec<PathBuf>,
}

/// All policies that the configuration's pools use, read and checked together.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    /// The policies of pools and their shadow policies, by name.
    pub by_name: BTreeMap<String, LoadedPolicy>,
    /// Policies with a session's layer on top, by the names of policy and layer.
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

/// One version of a pool's policy. Immutable.
#[derive(Debug)]
pub(crate) struct PolicyVersion {
    /// The policy for sessions without a layer.
    pub(crate) base: LoadedPolicy,
    /// The policy with a session's layer on top, by the layer's name.
    pub(crate) layered: BTreeMap<String, LoadedPolicy>,
    /// The shadow policy, which is evaluated but decides nothing.
    pub(crate) shadow: Option<Shadow>,
    /// When it came into force, in microseconds since the Unix epoch.
    pub(crate) loaded_at_us: i64,
}

impl PolicyVersion {
    /// The policy for a session with this layer. `None` if the layer does not exist; the caller
    /// must then deny every request.
    pub(crate) fn for_layer(&self, layer: Option<&str>) -> Option<&LoadedPolicy> {
        match layer {
            None => Some(&self.base),
            Some(name) => self.layered.get(name),
        }
    }

    fn has_same_digests(&self, other: &Self) -> bool {
        let digests = |version: &Self| -> Vec<String> {
            let layered = version.layered.values().map(|item| item.sha256.clone());
            let shadow = version
                .shadow
                .as_ref()
                .map(|item| item.loaded.sha256.clone());
            layered.chain(shadow).collect()
        };
        self.base.sha256 == other.base.sha256
            && self.layered.keys().eq(other.layered.keys())
            && digests(self) == digests(other)
    }
}

/// The versions of all pools, in the configuration's order. Clones share the same versions.
#[derive(Debug, Clone)]
pub(crate) struct ActivePolicies(Arc<ArcSwap<Vec<Arc<PolicyVersion>>>>);

impl ActivePolicies {
    pub(crate) fn new(config: &Config, policies: &Policies) -> Result<Self, StartError> {
        let versions = versions(config, policies)?;
        Ok(Self(Arc::new(ArcSwap::from_pointee(versions))))
    }

    /// A consistent snapshot of all versions.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<PolicyVersion>>> {
        self.0.load_full()
    }

    /// Replaces the policies of all pools at once and returns how many pools changed. A pool whose
    /// policies have the same digests keeps its version. The caller must not call this
    /// concurrently.
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
        let layered = policies
            .layered
            .iter()
            .filter(|((base, _), _)| *base == pool.policy);
        Ok(Arc::new(PolicyVersion {
            base: find(&pool.policy)?,
            layered: layered
                .map(|((_, layer), item)| (layer.clone(), item.clone()))
                .collect(),
            shadow: shadow.transpose()?,
            loaded_at_us: now_us,
        }))
    };
    config.pools.iter().map(of_pool).collect()
}

/// Access to the policy in force for one pool.
#[derive(Debug, Clone)]
pub(crate) struct PoolPolicy {
    all: ActivePolicies,
    place: usize,
}

impl PoolPolicy {
    /// For the pool at this index of the configuration.
    pub(crate) fn new(all: &ActivePolicies, place: usize) -> Self {
        Self {
            all: all.clone(),
            place,
        }
    }

    /// The current version. Call it once for a decision: two calls may return two versions.
    pub(crate) fn current(&self) -> Arc<PolicyVersion> {
        Arc::clone(&self.all.0.load()[self.place])
    }
}
