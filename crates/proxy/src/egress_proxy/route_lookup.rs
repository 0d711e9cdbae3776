//! Asks the kernel where it would send a packet (rtnetlink(7), RTM_GETROUTE).
//!
//! A lookup for each address, unlike a list of interfaces, covers every address that this host
//! answers to, whatever its origin, and the broadcast addresses of its networks.

use std::io;
use std::net::IpAddr;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Where the kernel routes an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RouteTarget {
    /// Another host.
    OtherHost,
    /// This host, or a broadcast or multicast group.
    ThisHost,
    /// No route exists.
    Unreachable,
}

const NLMSG_ERROR: u16 = 2;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTN_BROADCAST: u8 = 3;
const RTN_ANYCAST: u8 = 4;
const RTN_MULTICAST: u8 = 5;
/// Sizes of `struct nlmsghdr`, `struct rtmsg` and `struct rtattr`.
const HEAD: usize = 16;
const ROUTE: usize = 12;
const ATTRIBUTE: usize = 4;

/// Looks up a route. The kernel answers without blocking.
///
/// # Errors
/// The netlink socket failed, or the reply is invalid.
pub(super) fn lookup_route(address: IpAddr) -> io::Result<RouteTarget> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None, // NETLINK_ROUTE is protocol 0.
    )?;
    let to = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &encode_request(address), SendFlags::empty(), &to)?;
    let mut reply = [0_u8; 4096];
    let (got, _) = rustix::net::recv(&socket, &mut reply, RecvFlags::empty())?;
    let reply = reply.get(..got).unwrap_or_default();
    parse_reply(reply).ok_or_else(|| io::Error::other("the kernel sent no valid route"))
}

fn encode_request(address: IpAddr) -> Vec<u8> {
    let (family, bytes) = match address {
        IpAddr::V4(address) => (AddressFamily::INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AddressFamily::INET6, address.octets().to_vec()),
    };
    let whole = HEAD + ROUTE + ATTRIBUTE + bytes.len();
    // All of these lengths fit into a byte.
    let small = |number: usize| u8::try_from(number).unwrap_or_default();
    let mut out = Vec::with_capacity(whole);
    out.extend_from_slice(&u32::from(small(whole)).to_ne_bytes());
    out.extend_from_slice(&RTM_GETROUTE.to_ne_bytes());
    out.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    out.extend_from_slice(&[0; 8]);
    let family = small(usize::from(family.as_raw()));
    out.extend_from_slice(&[family, small(bytes.len() * 8), 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&u16::from(small(ATTRIBUTE + bytes.len())).to_ne_bytes());
    out.extend_from_slice(&RTA_DST.to_ne_bytes());
    out.extend_from_slice(&bytes);
    out
}

fn parse_reply(reply: &[u8]) -> Option<RouteTarget> {
    let kind = u16::from_ne_bytes(*reply.get(4..)?.first_chunk()?);
    match kind {
        NLMSG_ERROR => {
            let code = i32::from_ne_bytes(*reply.get(HEAD..)?.first_chunk()?);
            (code < 0).then_some(RouteTarget::Unreachable)
        }
        RTM_NEWROUTE => Some(match *reply.get(HEAD + 7)? {
            RTN_UNICAST => RouteTarget::OtherHost,
            RTN_LOCAL | RTN_BROADCAST | RTN_ANYCAST | RTN_MULTICAST => RouteTarget::ThisHost,
            _ => RouteTarget::Unreachable,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_hosts_own_addresses_are_known_as_such() {
        for own in ["127.0.0.1", "127.1.2.3"] {
            let own: IpAddr = own.parse().expect("an address");
            assert_eq!(
                lookup_route(own).expect("an answer"),
                RouteTarget::ThisHost,
                "{own}"
            );
        }
        let broadcast: IpAddr = "255.255.255.255".parse().expect("an address");
        assert_ne!(
            lookup_route(broadcast).expect("an answer"),
            RouteTarget::OtherHost
        );
    }

    #[test]
    fn a_reply_is_read_only_if_it_is_one() {
        assert_eq!(parse_reply(&[]), None);
        let mut reply = vec![0_u8; 28];
        assert_eq!(parse_reply(&reply), None);
        reply[4..6].copy_from_slice(&RTM_NEWROUTE.to_ne_bytes());
        assert_eq!(parse_reply(&reply), Some(RouteTarget::Unreachable));
        reply[HEAD + 7] = RTN_UNICAST;
        assert_eq!(parse_reply(&reply), Some(RouteTarget::OtherHost));
        reply[HEAD + 7] = RTN_LOCAL;
        assert_eq!(parse_reply(&reply), Some(RouteTarget::ThisHost));
        assert_eq!(parse_reply(&reply[..20]), None);
        reply[4..6].copy_from_slice(&NLMSG_ERROR.to_ne_bytes());
        reply[16..20].copy_from_slice(&(-101_i32).to_ne_bytes());
        assert_eq!(parse_reply(&reply), Some(RouteTarget::Unreachable));
    }
}
