//! Builds the parts of each pool when a fleet starts: shared state, upstreams, delegate and slot
//! views.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use super::StartError;
use super::active_policies::{ActivePolicies, PoolPolicy};
use super::budgets::Ledger;
use super::channel::outside_write::OutsideWrites;
use super::delegate::Delegate;
use super::fleet_event::SlotView;
use super::setup::{PoolShared, Setup};
use super::slot_demand::SlotDemand;
use super::slot_history::SlotHistory;
use marshal_config::{Config, Degradable, Pool};
use marshal_model::{PoolPhase, SlotId, SlotState};
use marshal_proxy::model_proxy::Upstream;
use marshal_sandbox::workspace::Masks;
use marshal_telemetry::PoolMeters;

/// Builds the shared state of each pool.
pub(super) fn build_pools(
    setup: &Setup,
    in_force: &ActivePolicies,
) -> Result<Vec<Arc<PoolShared>>, StartError> {
    let mut first_slot = 0;
    let mut pools = Vec::with_capacity(setup.config.pools.len());
    for (place, config) in setup.config.pools.iter().enumerate() {
        let pool = || config.name.clone();
        let sandbox = setup.config.sandboxes.get(&config.sandbox);
        let mut sandbox_facts = setup.config.sandbox_facts(config);
        sandbox_facts.has_no_gaps &= sandbox.is_some_and(|profile| {
            let missing = &profile.requirements.missing;
            !missing.contains(&Degradable::Landlock)
        });
        let extractor = setup.extractors.get(config.name.as_str());
        // Compiled once: it takes more memory than a session.
        let masks = Masks::new(&config.workspace.mask).map_err(|source| StartError::Mask {
            pool: pool(),
            source,
        })?;
        let masks = Arc::new(masks);
        let shared = PoolShared {
            policy: PoolPolicy::new(in_force, place),
            sandbox: sandbox.cloned().ok_or_else(|| StartError::NoSandbox {
                pool: pool(),
                profile: config.sandbox.clone(),
            })?,
            sandbox_facts,
            extractor: extractor
                .cloned()
                .ok_or_else(|| StartError::NoExtractor(pool()))?,
            mask: Arc::clone(&setup.mask),
            outside_writes: OutsideWrites::new(&config.workspace, &masks).map(Arc::new),
            workspace_masks: masks,
            push_permit: tokio::sync::Semaphore::new(1),
            delegate: build_delegate(&setup.config, config)?,
            meters: PoolMeters::new(&config.name),
            ledger: Arc::new(Ledger::open(
                &config.name,
                config.budget,
                &setup.config.prices,
                config.has_model_routes(),
                &setup.journal,
            )?),
            upstreams: build_upstreams(&setup.config, config)?,
            ambient: setup.ambient.clone(),
            config: config.clone(),
            // A missing workspace is reported when a session is prepared.
            workspace: config
                .local_workspace()
                .and_then(|path| std::fs::canonicalize(path).ok())
                .unwrap_or_else(|| config.workspace.path.clone()),
            tasks: AtomicUsize::new(0),
            oldest_queued_at: Mutex::new(None),
            pending_approvals: Mutex::default(),
            sandbox_gaps: Mutex::default(),
            warned_uncommitted: Mutex::default(),
            warned_missing: Mutex::default(),
            slot_demand: SlotDemand::new(),
            phase_and_width: Mutex::new((PoolPhase::Running, config.size)),
            first_slot,
        };
        first_slot += config.max_size;
        pools.push(Arc::new(shared));
    }
    Ok(pools)
}

/// Builds the upstreams of a pool's routes.
fn build_upstreams(config: &Config, pool: &Pool) -> Result<Vec<Arc<Upstream>>, StartError> {
    let routes = pool
        .routes
        .iter()
        .filter_map(|port| config.routes.get(&port.name));
    let upstreams = routes.map(|route| {
        let upstream = Upstream::new(route).map_err(|source| StartError::Route {
            pool: pool.name.clone(),
            source,
        })?;
        Ok(Arc::new(upstream))
    });
    upstreams.collect()
}

/// Builds a pool's delegate, if it has one.
fn build_delegate(config: &Config, pool: &Pool) -> Result<Option<Arc<Delegate>>, StartError> {
    let Some(name) = &pool.delegate else {
        return Ok(None);
    };
    let bad = |why: String| StartError::Delegate {
        pool: pool.name.clone(),
        delegate: name.clone(),
        why,
    };
    let settings = config
        .delegates
        .get(name)
        .ok_or_else(|| bad("it does not exist".to_owned()))?;
    let delegate = Delegate::new(&pool.name, settings).map_err(|error| bad(error.to_string()))?;
    Ok(Some(Arc::new(delegate)))
}

/// The views of a pool's slots before anything is started.
pub(super) fn initial_slot_views(
    pool: &PoolShared,
    memory: Option<&Vec<SlotHistory>>,
) -> Vec<SlotView> {
    let parked = |index: u16| {
        let memory = memory.and_then(|memory| memory.get(usize::from(index)));
        memory.and_then(|memory| memory.parked.clone())
    };
    let view = |index| SlotView {
        slot: SlotId {
            pool: pool.config.name.clone(),
            index,
        },
        state: match parked(index) {
            Some(_) => SlotState::Parked,
            None => SlotState::Unloaded,
        },
        pid: None,
        task: None,
        session: None,
        note: parked(index),
        started_at: None,
        up: false,
        last_exit_code: None,
    };
    (0..pool.config.max_size).map(view).collect()
}
