//! Which addresses are public, so that an allowed name may resolve to them.
//!
//! IPv4: everything but the blocks of IANA's special-purpose registry. IPv6: only the global
//! unicast block, without the registry's blocks and without every form that embeds an IPv4 address,
//! which a router on the path may unpack.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialPurpose(&'static str);

impl fmt::Display for SpecialPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// An address block: its first address, its prefix length in bits, and its purpose.
struct AddressBlock<A>(A, u32, &'static str);

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u32, what: &'static str) -> AddressBlock<Ipv4Addr> {
    AddressBlock(Ipv4Addr::new(a, b, c, d), bits, what)
}

const V4: &[AddressBlock<Ipv4Addr>] = &[
    v4(0, 0, 0, 0, 8, "this network"),
    v4(10, 0, 0, 0, 8, "private"),
    v4(100, 64, 0, 0, 10, "shared (carrier NAT)"),
    v4(127, 0, 0, 0, 8, "loopback"),
    // Assigned to one provider, and used inside the hosts of another for its metadata service.
    v4(168, 63, 129, 16, 32, "a provider's metadata service"),
    v4(169, 254, 0, 0, 16, "link-local"),
    v4(172, 16, 0, 0, 12, "private"),
    v4(192, 0, 0, 0, 24, "IETF protocol assignments"),
    v4(192, 0, 2, 0, 24, "documentation"),
    v4(192, 31, 196, 0, 24, "AS112"),
    v4(192, 52, 193, 0, 24, "AMT"),
    v4(192, 88, 99, 0, 24, "6to4 relay"),
    v4(192, 168, 0, 0, 16, "private"),
    v4(192, 175, 48, 0, 24, "AS112"),
    v4(198, 18, 0, 0, 15, "benchmarking"),
    v4(198, 51, 100, 0, 24, "documentation"),
    v4(203, 0, 113, 0, 24, "documentation"),
    v4(224, 0, 0, 0, 4, "multicast"),
    v4(240, 0, 0, 0, 4, "reserved or broadcast"),
];

const fn v6(head: [u16; 4], bits: u32, what: &'static str) -> AddressBlock<Ipv6Addr> {
    let [a, b, c, d] = head;
    AddressBlock(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), bits, what)
}

/// Special blocks within [`GLOBAL`].
const V6: &[AddressBlock<Ipv6Addr>] = &[
    // Teredo, benchmarking, AMT, AS112, ORCHID, drone identifiers.
    v6([0x2001, 0, 0, 0], 23, "IETF protocol assignments"),
    v6([0x2001, 0xdb8, 0, 0], 32, "documentation"),
    v6([0x2002, 0, 0, 0], 16, "6to4"),
    v6([0x2620, 0x4f, 0x8000, 0], 48, "AS112"),
    v6([0x3ffe, 0, 0, 0], 16, "returned to IANA"),
    v6([0x3fff, 0, 0, 0], 20, "documentation"),
];

/// The block that IANA assigns global unicast addresses from.
const GLOBAL: AddressBlock<Ipv6Addr> = v6([0x2000, 0, 0, 0], 3, "global unicast");

/// Blocks outside of [`GLOBAL`]: refused in any case, listed only to name their purpose.
const V6_NOT_GLOBAL: &[AddressBlock<Ipv6Addr>] = &[
    v6(
        [0, 0, 0, 0],
        64,
        "loopback, unspecified, IPv4-mapped or IPv4-compatible",
    ),
    v6([0x64, 0xff9b, 0, 0], 32, "NAT64"),
    v6([0x64, 0xff9b, 1, 0], 48, "NAT64"),
    v6([0x100, 0, 0, 0], 32, "discard-only"),
    v6([0x5f00, 0, 0, 0], 16, "segment routing"),
    v6([0xfc00, 0, 0, 0], 7, "unique local"),
    v6([0xfe80, 0, 0, 0], 10, "link-local"),
    v6([0xfec0, 0, 0, 0], 10, "site-local"),
    v6([0xff00, 0, 0, 0], 8, "multicast"),
];

impl AddressBlock<Ipv4Addr> {
    fn contains(&self, address: Ipv4Addr) -> bool {
        let rest = 32 - self.1;
        address.to_bits() >> rest == self.0.to_bits() >> rest
    }
}

impl AddressBlock<Ipv6Addr> {
    fn contains(&self, address: Ipv6Addr) -> bool {
        let rest = 128 - self.1;
        address.to_bits() >> rest == self.0.to_bits() >> rest
    }
}

/// Checks that an address is public, as far as the address alone shows.
///
/// # Errors
/// The special purpose of an address that is not public.
pub fn check_public(address: IpAddr) -> Result<(), SpecialPurpose> {
    let special = match address {
        IpAddr::V4(address) => V4
            .iter()
            .find(|block| block.contains(address))
            .map(|item| item.2),
        IpAddr::V6(address) => {
            let blocks = if GLOBAL.contains(address) {
                V6
            } else {
                V6_NOT_GLOBAL
            };
            let purpose = blocks
                .iter()
                .find(|block| block.contains(address))
                .map(|item| item.2);
            purpose.or((!GLOBAL.contains(address)).then_some("not allocated"))
        }
    };
    special.map_or(Ok(()), |what| Err(SpecialPurpose(what)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(text: &str) {
        let address: IpAddr = text.parse().expect(text);
        assert!(check_public(address).is_err(), "{text} passes");
    }

    fn public(text: &str) {
        let address: IpAddr = text.parse().expect(text);
        assert_eq!(check_public(address), Ok(()), "{text}");
    }

    /// First and last address of every block of the registries, and what lies around them.
    #[test]
    fn every_block_of_the_registries_is_refused_to_its_last_address() {
        for (first, last) in [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.31.196.0", "192.31.196.255"),
            ("192.52.193.0", "192.52.193.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("192.175.48.0", "192.175.48.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "239.255.255.255"),
            ("240.0.0.0", "255.255.255.255"),
            ("::", "::"),
            ("::1", "::1"),
            ("::ffff:0:0", "::ffff:ffff:ffff"),
            ("::", "::ffff:ffff"),
            ("64:ff9b::", "64:ff9b::ffff:ffff"),
            ("64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff"),
            ("100::", "100::ffff:ffff:ffff:ffff"),
            ("100:0:0:1::", "100:0:0:1:ffff:ffff:ffff:ffff"),
            ("2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001::", "2001:0:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:1::1", "2001:1::3"),
            ("2001:2::", "2001:2:0:ffff:ffff:ffff:ffff:ffff"),
            ("2001:3::", "2001:3:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:4:112::", "2001:4:112:ffff:ffff:ffff:ffff:ffff"),
            ("2001:10::", "2001:1f:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:20::", "2001:2f:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:30::", "2001:3f:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("2620:4f:8000::", "2620:4f:8000:ffff:ffff:ffff:ffff:ffff"),
            ("3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
            ("ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ] {
            refused(first);
            refused(last);
        }
    }

    #[test]
    fn what_lies_beside_the_blocks_is_public() {
        for address in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "2001:200::",
            "2001:db7:ffff::",
            "2001:db9::",
            "2003::",
            "2606:4700::1111",
            "2620:4f:7fff::",
            "2a00::1",
            "3ffd::",
        ] {
            public(address);
        }
    }

    #[test]
    fn forms_that_hold_another_address_are_refused_whatever_that_is() {
        for address in [
            "::ffff:8.8.8.8",
            "::8.8.8.8",
            "64:ff9b::8.8.8.8",
            "64:ff9b:1::8.8.8.8",
            "2002:808:808::1",
            "2001:0:808:808::1",
            "::ffff:0:8.8.8.8",
            "168.63.129.16",
        ] {
            refused(address);
        }
    }

    proptest! {
        /// The standard library knows some of the blocks by itself.
        #[test]
        fn nothing_that_the_standard_library_knows_as_special_passes(bits: u32, wide: u128) {
            let address = Ipv4Addr::from_bits(bits);
            let is_special = address.is_loopback() || address.is_private() || address.is_multicast()
                || address.is_link_local() || address.is_broadcast() || address.is_documentation()
                || address.is_unspecified();
            prop_assert!(!is_special || check_public(address.into()).is_err());
            prop_assert!(check_public(address.to_ipv6_mapped().into()).is_err());
            prop_assert!(check_public(address.to_ipv6_compatible().into()).is_err());
            let address = Ipv6Addr::from_bits(wide);
            let is_special = address.is_loopback() || address.is_multicast()
                || address.is_unicast_link_local() || address.is_unique_local();
            prop_assert!(!is_special || check_public(address.into()).is_err());
            prop_assert!(wide >> 125 == 1 || check_public(address.into()).is_err());
        }
    }
}
