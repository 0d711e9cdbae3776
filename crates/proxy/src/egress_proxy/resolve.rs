//! Resolves an allowed name to the address that is dialled. The name is looked up once, and only
//! checked addresses are dialled, so a second lookup cannot return another address (DNS rebinding).

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::connection::EgressContext;
use super::route_lookup::{RouteTarget, lookup_route};
use crate::egress::{ConnectTarget, Denial, SpecialPurpose, check_public};
use marshal_model::EgressResult as Why;
use marshal_model::limits::{EGRESS_ADDRESSES, EGRESS_LOOKUPS, EGRESS_TRIES};

/// Concurrent lookups of the whole process.
static LOOKUP_PERMITS: Semaphore = Semaphore::const_new(EGRESS_LOOKUPS);

/// The permit of one lookup. The lookup keeps it until it ends, even if its caller is gone:
/// getaddrinfo(3) cannot be cancelled.
#[derive(Debug)]
pub struct LookupPermit {
    _of_slot: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'static>,
}

/// The result of a lookup.
pub type LookupFuture = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// A name resolver.
pub trait Resolve: Send + Sync {
    /// Every address of a name, with this port.
    fn lookup(&self, host: &str, port: u16, permit: LookupPermit) -> LookupFuture;
}

/// The resolver of this host (getaddrinfo(3)).
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn lookup(&self, host: &str, port: u16, permit: LookupPermit) -> LookupFuture {
        // The trailing dot makes the name absolute: no search domain of this host is tried.
        let name = format!("{host}.");
        let looking = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let addresses = (name.as_str(), port).to_socket_addrs()?;
            Ok(addresses.take(EGRESS_ADDRESSES + 1).collect())
        });
        Box::pin(async move { looking.await.map_err(io::Error::other)? })
    }
}

/// Resolves a host and connects to it.
pub(super) async fn connect_host(
    gate: &EgressContext,
    target: &ConnectTarget,
) -> Result<TcpStream, Denial> {
    let ConnectTarget { host, port } = target;
    let addresses = resolve_public(gate, target).await?;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => {
                tracing::debug!(slot = %gate.ledger.slot, host, %address, %error, "an allowed host cannot be reached");
            }
        }
    }
    let what = format!("{host}:{port} does not answer");
    Err(Denial::new(Why::Unreachable, 502, what))
}

/// The public addresses, in the resolver's order.
async fn resolve_public(
    gate: &EgressContext,
    target: &ConnectTarget,
) -> Result<Vec<SocketAddr>, Denial> {
    let ConnectTarget { host, port } = target;
    let unknown = || Denial::new(Why::Lookup, 502, format!("{host} has no address"));
    let ending = |_| unknown();
    let of_slot = gate.lookup_permits.clone();
    let permit = LookupPermit {
        _of_slot: of_slot.acquire_owned().await.map_err(ending)?,
        _of_all: LOOKUP_PERMITS.acquire().await.map_err(ending)?,
    };
    let addresses = gate.resolver.lookup(host, *port, permit).await.map_err(|error| { tracing::debug!(slot = %gate.ledger.slot, host, %error, "the name of an allowed host cannot be resolved"); unknown() })?;
    if addresses.is_empty() {
        return Err(unknown());
    }
    let mut good: Vec<SocketAddr> = Vec::new();
    for address in &addresses {
        // Take only the address: a scope or port must not come from the resolver.
        let address = SocketAddr::new(address.ip(), *port);
        match check_address(address) {
            Ok(RouteTarget::OtherHost) if !good.contains(&address) => good.push(address),
            Ok(_) => {}
            Err(error) => {
                let why = error.to_string();
                tracing::debug!(slot = %gate.ledger.slot, host, %address, why, "the egress proxy refused an address of an allowed host");
                let what = format!("{host} resolves to an address that is not public");
                return Err(Denial::new(Why::Address, 403, what));
            }
        }
    }
    if addresses.len() > EGRESS_ADDRESSES {
        let what = format!("{host} has more than {EGRESS_ADDRESSES} addresses");
        return Err(Denial::new(Why::Address, 403, what));
    }
    if good.is_empty() {
        let what = format!("this host has no route to {host}");
        return Err(Denial::new(Why::Unreachable, 502, what));
    }
    good.truncate(EGRESS_TRIES);
    Ok(good)
}

/// Why an address may not be dialled.
#[derive(Debug, thiserror::Error)]
enum AddressError {
    /// It is not public.
    #[error("{0}")]
    Special(SpecialPurpose),
    /// It leads to this host.
    #[error("an address of this host")]
    ThisHost,
    /// It is unknown where it leads.
    #[error("the route lookup failed: {0}")]
    Lookup(io::Error),
}

/// Whether an address may be dialled.
fn check_address(address: SocketAddr) -> Result<RouteTarget, AddressError> {
    check_public(address.ip()).map_err(AddressError::Special)?;
    match lookup_route(address.ip()) {
        Ok(RouteTarget::ThisHost) => Err(AddressError::ThisHost),
        Ok(there) => Ok(there),
        Err(error) => Err(AddressError::Lookup(error)),
    }
}
