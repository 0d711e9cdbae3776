//! The loopback of a new network namespace: brings it up by netlink (rtnetlink(7)), and listens on
//! its ports for servers outside.
//!
//! The outer helper listens here for routes and the egress proxy before any process is inside. It
//! sends the sockets to the supervisor over the control socket and keeps no copy, so no process
//! inside ever has one. Each socket therefore identifies its sandbox, and stops listening when the
//! supervisor ends.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::control;
use super::failure::{FailureContext, StepResult, failure};
use marshal_model::limits;
use marshal_wire::shim::{HelperReport, SetupFailure, Stage};

/// RTM_NEWLINK.
const NEWLINK: u16 = 16;
/// NLMSG_ERROR, the type of an acknowledgement.
const ERROR: u16 = 2;
/// NLM_F_REQUEST | NLM_F_ACK.
const REQUEST_ACK: u16 = 0x1 | 0x4;
/// IFF_UP.
const UP: u32 = 1;
/// Index of the loopback: it is the first interface of every network namespace.
const LOOPBACK_INDEX: i32 = 1;

/// Brings the loopback up. Requires NET_ADMIN in the network namespace.
pub(super) fn up() -> StepResult {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None, // NETLINK_ROUTE is protocol 0.
    )
    .at(Stage::Net, "open a netlink socket")?;
    rustix::net::sendto(
        &socket,
        &request(),
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )
    .at(Stage::Net, "bring the loopback up")?;
    let mut reply = [0_u8; 256];
    let (got, _) = rustix::net::recv(&socket, &mut reply, RecvFlags::empty())
        .at(Stage::Net, "bring the loopback up")?;
    match refusal(&reply[..got]) {
        Some(0) => Ok(()),
        Some(errno) => Err(SetupFailure {
            errno: Some(errno),
            ..failure(Stage::Net, "bring the loopback up")
        }),
        None => Err(failure(Stage::Net, "netlink sent no acknowledgement")),
    }
}

/// Listens on ports of the loopback. The sockets stay in this network namespace, whichever process
/// has them.
fn listen(ports: &[u16]) -> StepResult<Vec<OwnedFd>> {
    let listen = |port: &u16| {
        let what = format!("listen on 127.0.0.1:{port}");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
            .at(Stage::Net, &what)?;
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, *port);
        rustix::net::bind(&socket, &address).at(Stage::Net, &what)?;
        rustix::net::listen(&socket, limits::ROUTE_BACKLOG).at(Stage::Net, &what)?;
        Ok(socket)
    };
    ports.iter().map(listen).collect()
}

/// Listens on the plan's ports and sends the sockets to the supervisor: before the agent starts,
/// and without a copy left here.
pub(super) fn hand_out(control: &UnixStream, ports: &[u16]) -> StepResult {
    if ports.is_empty() {
        return Ok(());
    }
    let sockets = listen(ports)?;
    let sent: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    let ports = ports.to_vec();
    control::send(control, &HelperReport::Listening { ports }, &sent)
        .at(Stage::Net, "send the listening sockets to the supervisor")
}

/// The request: `struct nlmsghdr` and `struct ifinfomsg`.
fn request() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    bytes.extend_from_slice(&32_u32.to_ne_bytes());
    bytes.extend_from_slice(&NEWLINK.to_ne_bytes());
    bytes.extend_from_slice(&REQUEST_ACK.to_ne_bytes());
    bytes.extend_from_slice(&1_u32.to_ne_bytes());
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&LOOPBACK_INDEX.to_ne_bytes());
    bytes.extend_from_slice(&UP.to_ne_bytes());
    bytes.extend_from_slice(&UP.to_ne_bytes());
    bytes
}

/// The errno of an acknowledgement; 0 for success.
fn refusal(reply: &[u8]) -> Option<i32> {
    let kind = u16::from_ne_bytes(*reply.get(4..)?.first_chunk()?);
    let code = i32::from_ne_bytes(*reply.get(16..)?.first_chunk()?);
    (kind == ERROR).then_some(code.saturating_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_only_if_it_is_an_acknowledgement() {
        assert_eq!(request().len(), 32);
        let mut reply = vec![0_u8; 20];
        assert_eq!(refusal(&reply), None);
        reply[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        assert_eq!(refusal(&reply), Some(0));
        reply[16..20].copy_from_slice(&(-1_i32).to_ne_bytes());
        assert_eq!(refusal(&reply), Some(1));
        assert_eq!(refusal(&reply[..18]), None);
    }
}
