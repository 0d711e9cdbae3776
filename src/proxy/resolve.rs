//! From a name of the allow-list to the one address that is dialled: looked up once, every address
//! of the answer judged, and only what was judged is dialled.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::connection::Gate;
use super::kernel::{Where, whither};
use crate::egress::{Asked, Denied, is_public};
use crate::limits::{EGRESS_ADDRESSES, EGRESS_LOOKUPS, EGRESS_TRIES};
use crate::model::EgressResult as Why;

/// Places for lookups of the whole process.
static LOOKUPS: Semaphore = Semaphore::const_new(EGRESS_LOOKUPS);

/// The place of one lookup: to be kept until it is over, also if nobody waits for it any more.
#[derive(Debug)]
pub struct Held {
    _of_slot: OwnedSemaphorePermit,
    _of_all: SemaphorePermit<'static>,
}

/// What comes of a lookup.
pub type Answer = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Who knows names.
pub trait Resolve: Send + Sync {
    /// Every address of a name, with this port.
    fn lookup(&self, host: &str, port: u16, held: Held) -> Answer;
}

/// The resolver of this host (getaddrinfo(3)).
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn lookup(&self, host: &str, port: u16, held: Held) -> Answer {
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
pub(super) async fn reach(gate: &Gate, asked: &Asked) -> Result<TcpStream, Denied> {
    let Asked { host, port } = asked;
    let addresses = pinned(gate, asked).await?;
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
    Err(Denied::new(Why::Unreachable, 502, what))
}

/// The addresses that may be dialled, in the resolver's order.
async fn pinned(gate: &Gate, asked: &Asked) -> Result<Vec<SocketAddr>, Denied> {
    let Asked { host, port } = asked;
    let unknown = || Denied::new(Why::Lookup, 502, format!("{host} has no address"));
    let ending = |_| unknown();
    let of_slot = gate.lookups.clone();
    let held = Held {
        _of_slot: of_slot.acquire_owned().await.map_err(ending)?,
        _of_all: LOOKUPS.acquire().await.map_err(ending)?,
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
        match judge(address) {
            Ok(Where::Elsewhere) if !good.contains(&address) => good.push(address),
            Ok(_) => {}
            Err(why) => {
                tracing::debug!(slot = %gate.ledger.slot, host, %address, why, "a name leads where nobody may go");
                let what = format!("{host} leads to an address that is not a public one");
                return Err(Denied::new(Why::Address, 403, what));
            }
        }
    }
    if found.len() > EGRESS_ADDRESSES {
        let what = format!("{host} has more than {EGRESS_ADDRESSES} addresses");
        return Err(Denied::new(Why::Address, 403, what));
    }
    if good.is_empty() {
        let what = format!("there is no way from this host to {host}");
        return Err(Denied::new(Why::Unreachable, 502, what));
    }
    good.truncate(EGRESS_TRIES);
    Ok(good)
}

/// Whether an address may be dialled; else why not.
fn judge(address: SocketAddr) -> Result<Where, String> {
    is_public(address.ip()).map_err(|special| special.to_string())?;
    match whither(address.ip()) {
        Ok(Where::Here) => Err("this host's own".to_owned()),
        Ok(there) => Ok(there),
        Err(error) => Err(format!("the kernel cannot be asked for the way: {error}")),
    }
}
