//! From a name of the allow-list to the one address that is dialled: looked up once, every address
//! of the answer judged, and only what was judged is dialled.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::connection::EgressContext;
use super::route_lookup::{RouteTarget, lookup_route};
use crate::egress::{ConnectTarget, Denial, check_public};
use marshal_model::EgressResult as Why;
use marshal_model::limits::{EGRESS_ADDRESSES, EGRESS_LOOKUPS, EGRESS_TRIES};

/// Places for lookups of the whole process.
static LOOKUP_PERMITS: Semaphore = Semaphore::const_new(EGRESS_LOOKUPS);

/// The place of one lookup: to be kept until it is over, also if nobody waits for it any more.
#[derive(Debug)]
pub struct LookupPermit {
    _of_slot: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'static>,
}

/// What comes of a lookup.
pub type LookupFuture = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Who knows names.
pub trait Resolve: Send + Sync {
    /// Every address of a name, with this port.
    fn lookup(&self, host: &str, port: u16, held: LookupPermit) -> LookupFuture;
}

/// The resolver of this host (getaddrinfo(3)).
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn lookup(&self, host: &str, port: u16, held: LookupPermit) -> LookupFuture {
        // With its dot the name is a full one: no domain of this host's is tried behind it.
        let name = format!("{host}.");
        let looking = tokio::task::spawn_blocking(move || {
            let _held = held;
            let found = (name.as_str(), port).to_socket_addrs()?;
            Ok(found.take(EGRESS_ADDRESSES + 1).collect())
        });
        Box::pin(async move { looking.await.map_err(io::Error::other)? })
    }
}

/// Looks a host up and connects to it.
pub(super) async fn connect_host(
    gate: &EgressContext,
    asked: &ConnectTarget,
) -> Result<TcpStream, Denial> {
    let ConnectTarget { host, port } = asked;
    let addresses = resolve_public(gate, asked).await?;
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => {
                tracing::debug!(slot = %gate.ledger.slot, host, %address, %error, "a host does not answer");
            }
        }
    }
    let what = format!("{host}:{port} does not answer");
    Err(Denial::new(Why::Unreachable, 502, what))
}

/// The addresses that may be dialled, in the resolver's order.
async fn resolve_public(
    gate: &EgressContext,
    asked: &ConnectTarget,
) -> Result<Vec<SocketAddr>, Denial> {
    let ConnectTarget { host, port } = asked;
    let unknown = || Denial::new(Why::Lookup, 502, format!("{host} has no address"));
    let ending = |_| unknown();
    let of_slot = gate.lookup_permits.clone();
    let held = LookupPermit {
        _of_slot: of_slot.acquire_owned().await.map_err(ending)?,
        _of_all: LOOKUP_PERMITS.acquire().await.map_err(ending)?,
    };
    let found = gate.resolver.lookup(host, *port, held).await;
    let found = found.map_err(|error| {
        tracing::debug!(slot = %gate.ledger.slot, host, %error, "a name is not known");
        unknown()
    })?;
    if found.is_empty() {
        return Err(unknown());
    }
    let mut good: Vec<SocketAddr> = Vec::new();
    for address in &found {
        // Only the address itself: neither a scope nor another port comes from an answer.
        let address = SocketAddr::new(address.ip(), *port);
        match check_address(address) {
            Ok(RouteTarget::OtherHost) if !good.contains(&address) => good.push(address),
            Ok(_) => {}
            Err(why) => {
                tracing::debug!(slot = %gate.ledger.slot, host, %address, why, "a name leads where nobody may go");
                let what = format!("{host} leads to an address that is not a public one");
                return Err(Denial::new(Why::Address, 403, what));
            }
        }
    }
    if found.len() > EGRESS_ADDRESSES {
        let what = format!("{host} has more than {EGRESS_ADDRESSES} addresses");
        return Err(Denial::new(Why::Address, 403, what));
    }
    if good.is_empty() {
        let what = format!("there is no way from this host to {host}");
        return Err(Denial::new(Why::Unreachable, 502, what));
    }
    good.truncate(EGRESS_TRIES);
    Ok(good)
}

/// Whether an address may be dialled; else why not.
fn check_address(address: SocketAddr) -> Result<RouteTarget, String> {
    check_public(address.ip()).map_err(|special| special.to_string())?;
    match lookup_route(address.ip()) {
        Ok(RouteTarget::ThisHost) => Err("this host's own".to_owned()),
        Ok(there) => Ok(there),
        Err(error) => Err(format!("the kernel cannot be asked for the way: {error}")),
    }
}
