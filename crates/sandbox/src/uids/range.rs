//! Which ids may be used: computed from the texts of the account files, without touching the host.
//!
//! Pure. A range delegated to `marshal` must overlap with nothing else; without one, ids above
//! everything in the files are used.

use std::fmt;

/// The account that ids are delegated to in `/etc/subuid` and `/etc/subgid`.
pub const ACCOUNT: &str = "marshal";

/// The first id without an entry: above what `useradd` assigns by itself (`SUB_UID_MAX` of
/// login.defs(5): 600,100,000).
const AUTO_FIRST: u64 = 1 << 30;

/// Number of ids without an entry.
const AUTO_COUNT: u64 = 1 << 20;

/// The end of usable ids: programs with signed ids misread higher ones, and the last two mean
/// "nobody" and "no change".
const ID_END: u64 = 1 << 31;

/// Lower ids belong to system accounts.
const SYSTEM_END: u64 = 1000;

/// A range of consecutive ids, possibly empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    start: u64,
    end: u64,
}

impl Range {
    /// `count` ids from `first`.
    #[must_use]
    pub fn new(first: u32, count: u32) -> Self {
        let start = u64::from(first);
        Self {
            start,
            end: start + u64::from(count),
        }
    }

    /// The first id.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.start
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end.saturating_sub(1))
    }
}

/// The ranges as text for a message.
pub(super) fn list(ranges: &[Range]) -> String {
    let texts: Vec<_> = ranges.iter().map(Range::to_string).collect();
    texts.join(", ")
}

/// The texts of the files that delegate ids; empty for a missing file.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    /// Text of subuid(5).
    pub subuid: String,
    /// Text of subgid(5).
    pub subgid: String,
    /// Text of passwd(5).
    pub passwd: String,
    /// Text of group(5).
    pub group: String,
    /// The uids of our user namespace (user_namespaces(7)); empty: all.
    pub uid_map: String,
    /// The gids of our user namespace (user_namespaces(7)); empty: all.
    pub gid_map: String,
}

/// Why no range is usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The range of `marshal` overlaps with another owner's.
    #[error(
        "the ids {range} of `marshal` overlap with {theirs} of {owner:?} in {file}: give \
         `marshal` a range of its own in /etc/subuid and /etc/subgid"
    )]
    Overlap {
        /// The range of `marshal`.
        range: Range,
        /// The other range.
        theirs: Range,
        /// The other range's owner.
        owner: String,
        /// The file with the other range.
        file: &'static str,
    },
    /// The configured range overlaps with another owner's.
    #[error(
        "the ids {range} of uid_range overlap with {theirs} of {owner:?} in {file}: choose ids that \
         nobody has"
    )]
    Taken {
        /// The configured range.
        range: Range,
        /// The other range.
        theirs: Range,
        /// The other range's owner.
        owner: String,
        /// The file with the other range.
        file: &'static str,
    },
    /// The configured range is too small for the children.
    #[error("uid_range {range} has fewer than the {count} ids that max_children needs")]
    Short {
        /// Number of ids needed.
        count: u32,
        /// The configured range.
        range: Range,
    },
    /// The entries of `marshal` for uids and gids differ.
    #[error(
        "`marshal` has the ids {uids} in /etc/subuid and {gids} in /etc/subgid: make them the same"
    )]
    Differ {
        /// The ranges of uids.
        uids: String,
        /// The ranges of gids.
        gids: String,
    },
    /// The range of `marshal` contains ids that slots must not use.
    #[error("the ids {range} of `marshal` in {file} must lie between 1000 and 2147483647")]
    OutOfBounds {
        /// The range.
        range: Range,
        /// The file with the range.
        file: &'static str,
    },
    /// The ranges of `marshal` are too small for the children.
    #[error(
        "max_children needs {count} ids in a row, but `marshal` has {ranges}: lower max_children \
         or make the entry in /etc/subuid and /etc/subgid larger"
    )]
    TooSmall {
        /// Number of ids needed.
        count: u32,
        /// The ranges of `marshal`.
        ranges: String,
    },
    /// No ids are free above the ranges of others.
    #[error(
        "no ids are free above {highest}, the highest in the account files: give `marshal` a \
         range in /etc/subuid and /etc/subgid"
    )]
    NoneAbove {
        /// The highest id in use.
        highest: u64,
    },
    /// The ids do not exist in our user namespace.
    #[error(
        "the ids {range} are not mapped here ({file}): give `marshal` a range that is, in \
         /etc/subuid and /etc/subgid"
    )]
    NotMapped {
        /// The range.
        range: Range,
        /// The file with the id map.
        file: &'static str,
    },
}

/// Ids in use, their owner and their file.
struct Claim<'a> {
    owner: &'a str,
    range: Range,
    file: &'static str,
}

fn claims(accounts: &Accounts) -> Vec<Claim<'_>> {
    let mut claims = Vec::new();
    claims.extend(subordinate(&accounts.subuid, "/etc/subuid"));
    claims.extend(subordinate(&accounts.subgid, "/etc/subgid"));
    claims.extend(single(&accounts.passwd, "/etc/passwd"));
    claims.extend(single(&accounts.group, "/etc/group"));
    claims
}

/// The ranges that blocks of `count` ids may be taken from.
///
/// With entries for `marshal` in subuid (one line or several), those: subgid must have the same,
/// and no line, account or group of another owner may overlap. Without one, a range above every
/// line and account.
pub fn choose_ranges(accounts: &Accounts, count: u32) -> Result<Vec<Range>, RangeError> {
    let claims = claims(accounts);
    let ours = |file: &str| {
        let own = claims
            .iter()
            .filter(|c| c.owner == ACCOUNT && c.file == file);
        let mut ranges: Vec<_> = own.map(|claim| claim.range).collect();
        ranges.sort_unstable();
        ranges
    };
    let (uids, gids) = (ours("/etc/subuid"), ours("/etc/subgid"));
    if uids.is_empty() {
        return above(&claims, count, accounts);
    }
    if !gids.is_empty() && gids != uids {
        return Err(RangeError::Differ {
            uids: list(&uids),
            gids: list(&gids),
        });
    }
    for (at, &range) in uids.iter().enumerate() {
        if range.start < SYSTEM_END || range.end > ID_END {
            let file = "/etc/subuid";
            return Err(RangeError::OutOfBounds { range, file });
        }
        let is_other = |claim: &&Claim<'_>| {
            claim.owner != ACCOUNT || matches!(claim.file, "/etc/passwd" | "/etc/group")
        };
        let mut others = claims.iter().filter(is_other);
        if let Some(claim) = others.find(|claim| claim.range.overlaps(&range)) {
            return Err(RangeError::Overlap {
                range,
                theirs: claim.range,
                owner: claim.owner.to_owned(),
                file: claim.file,
            });
        }
        if let Some(twice) = uids[at + 1..].iter().find(|other| other.overlaps(&range)) {
            return Err(RangeError::Overlap {
                range,
                theirs: *twice,
                owner: ACCOUNT.to_owned(),
                file: "/etc/subuid",
            });
        }
        check_mapped(range, accounts)?;
    }
    if first_free(&uids, &[], count).is_none() {
        return Err(RangeError::TooSmall {
            count,
            ranges: list(&uids),
        });
    }
    Ok(uids)
}

/// Checks a configured range: no line, account or group of another owner may overlap with it, but
/// it may be inside the entry of `marshal`.
pub fn check_configured_range(
    accounts: &Accounts,
    first: u32,
    last: u32,
    count: u32,
) -> Result<Range, RangeError> {
    let range = Range {
        start: u64::from(first),
        end: u64::from(last) + 1,
    };
    if range.start < SYSTEM_END || range.end > ID_END || first > last {
        let file = "uid_range";
        return Err(RangeError::OutOfBounds { range, file });
    }
    let claims = claims(accounts);
    let is_other = |claim: &&Claim<'_>| {
        claim.owner != ACCOUNT || matches!(claim.file, "/etc/passwd" | "/etc/group")
    };
    let mut others = claims.iter().filter(is_other);
    if let Some(claim) = others.find(|claim| claim.range.overlaps(&range)) {
        return Err(RangeError::Taken {
            range,
            theirs: claim.range,
            owner: claim.owner.to_owned(),
            file: claim.file,
        });
    }
    check_mapped(range, accounts)?;
    if range.end - range.start < u64::from(count) {
        return Err(RangeError::Short { count, range });
    }
    Ok(range)
}

fn above(claims: &[Claim<'_>], count: u32, accounts: &Accounts) -> Result<Vec<Range>, RangeError> {
    // An account at the very end (4294967294 is "nobody" on some systems) does not count.
    let known = claims.iter().map(|claim| claim.range.end);
    let highest = known.filter(|&end| end < (1 << 32) - 1).max().unwrap_or(0);
    let start = highest.next_multiple_of(1 << 16).max(AUTO_FIRST);
    let end = (start + AUTO_COUNT).min(ID_END);
    if start + u64::from(count) > end {
        return Err(RangeError::NoneAbove {
            highest: highest.saturating_sub(1),
        });
    }
    let range = Range { start, end };
    check_mapped(range, accounts)?;
    Ok(vec![range])
}

fn check_mapped(range: Range, accounts: &Accounts) -> Result<(), RangeError> {
    let maps = [
        (&accounts.uid_map, "/proc/self/uid_map"),
        (&accounts.gid_map, "/proc/self/gid_map"),
    ];
    for (map, file) in maps {
        let mut mapped = map.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let start: u32 = words.next()?.parse().ok()?;
            let count: u32 = words.nth(1)?.parse().ok()?;
            Some(Range::new(start, count))
        });
        let holds = |m: Range| m.start <= range.start && range.end <= m.end;
        if !map.is_empty() && !mapped.any(holds) {
            return Err(RangeError::NotMapped { range, file });
        }
    }
    Ok(())
}

/// The first of `count` consecutive ids inside one of `ranges` and outside of all `taken`.
#[must_use]
pub fn first_free(ranges: &[Range], taken: &[Range], count: u32) -> Option<u32> {
    let mut taken = taken.to_vec();
    taken.sort_unstable();
    for range in ranges {
        let mut wanted = Range {
            start: range.start,
            end: range.start + u64::from(count.max(1)),
        };
        for other in &taken {
            if other.overlaps(&wanted) {
                let length = wanted.end - wanted.start;
                wanted = Range {
                    start: other.end,
                    end: other.end + length,
                };
            }
        }
        if wanted.end <= range.end {
            return u32::try_from(wanted.start).ok();
        }
    }
    None
}

/// Parses lines `owner:first:count`; other lines delegate nothing.
fn subordinate<'a>(text: &'a str, file: &'static str) -> impl Iterator<Item = Claim<'a>> {
    text.lines().filter_map(move |line| {
        let mut fields = line.trim().split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Claim {
            owner,
            range: Range::new(first.trim().parse().ok()?, count.trim().parse().ok()?),
            file,
        })
    })
}

/// Parses lines `name:password:id:…`.
fn single<'a>(text: &'a str, file: &'static str) -> impl Iterator<Item = Claim<'a>> {
    text.lines().filter_map(move |line| {
        let mut fields = line.trim().split(':');
        let (owner, id) = (fields.next()?, fields.nth(1)?);
        Some(Claim {
            owner,
            range: Range::new(id.trim().parse().ok()?, 1),
            file,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n";

    fn accounts(subuid: &str) -> Accounts {
        Accounts {
            subuid: subuid.to_owned(),
            passwd: PASSWD.to_owned(),
            group: "root:x:0:\nusers:x:100:\n".to_owned(),
            ..Accounts::default()
        }
    }

    fn check(accounts: &Accounts, expect: Result<&str, &str>) {
        let got = choose_ranges(accounts, 64);
        match (&got, expect) {
            (Ok(ranges), Ok(text)) => assert_eq!(list(ranges), text),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            _ => panic!("{accounts:?}: {got:?}"),
        }
    }

    #[test]
    fn a_chosen_range_is_nobody_elses() {
        let accounts = accounts("alice:100000:65536\nmarshal:700000:100\n");
        let chosen = |first, last| {
            let got = check_configured_range(&accounts, first, last, 10);
            got.map(|range| range.to_string())
                .map_err(|error| error.to_string())
        };
        assert_eq!(chosen(800_000, 800_009).as_deref(), Ok("800000-800009"));
        assert_eq!(chosen(700_010, 700_049).as_deref(), Ok("700010-700049"));
        for (first, last, part) in [
            (165_535, 165_600, "of \"alice\" in /etc/subuid"),
            (65_530, 65_540, "of \"nobody\" in /etc/passwd"),
            (999, 2000, "must lie between 1000 and 2147483647"),
            (2_147_483_000, 2_147_483_648, "must lie between"),
            (800_000, 800_008, "fewer than the 10 ids"),
        ] {
            let error = chosen(first, last).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_entry_of_marshal_is_used_and_checked() {
        let check = |subuid: &str, expect| check(&accounts(subuid), expect);
        check("marshal:700000:4096\n", Ok("700000-704095"));
        check(
            "a:100000:65536\nmarshal:165536:64\n# x\n\n",
            Ok("165536-165599"),
        );
        check(
            "marshal:2000:64\nmarshal:1000:64",
            Ok("1000-1063, 2000-2063"),
        );
        check("marshal:700000:63\n", Err("max_children needs 64 ids"));
        check(
            "a:100000:65536\nmarshal:165535:64\n",
            Err("overlap with 100000-165535 of \"a\""),
        );
        check("marshal:65500:100\n", Err("\"nobody\" in /etc/passwd"));
        check("marshal:70000:64\nmarshal:70010:64\n", Err("overlap"));
        check("marshal:999:100\n", Err("between 1000 and"));
        check("marshal:2147483600:100\n", Err("between 1000 and"));
        check("marshal:4294967290:100\n", Err("between 1000 and"));
    }

    #[test]
    fn the_entries_of_both_files_must_agree() {
        let with = |subgid: &str| Accounts {
            subgid: subgid.to_owned(),
            ..accounts("marshal:700000:64\n")
        };
        check(&with("marshal:700000:64\n"), Ok("700000-700063"));
        check(&with("a:100000:65536\n"), Ok("700000-700063"));
        check(&with("marshal:800000:64\n"), Err("make them the same"));
        check(&with("a:700010:1\n"), Err("of \"a\" in /etc/subgid"));
    }

    #[test]
    fn without_an_entry_ids_lie_above_everything_else() {
        check(&accounts(""), Ok("1073741824-1074790399"));
        check(&accounts("a:100000:65536\n"), Ok("1073741824-1074790399"));
        check(
            &accounts("a:1100000:1500000000\n"),
            Ok("1501102080-1502150655"),
        );
        check(&accounts("a:1:2147483646\n"), Err("no ids are free above"));
        check(
            &accounts("a:2147400000:10000\n"),
            Ok("2147418112-2147483647"),
        );
        let mut known = accounts("");
        known.group.push_str("far:x:1500000000:\n");
        check(&known, Ok("1500053504-1501102079"));
        known
            .passwd
            .push_str("nfsnobody:x:4294967294:4294967294::/:/bin/false\n");
        check(&known, Ok("1500053504-1501102079"));
    }

    #[test]
    fn ids_that_do_not_exist_in_a_container_are_refused() {
        let mut inside = accounts("");
        inside.uid_map = "         0     100000      65536\n".to_owned();
        check(&inside, Err("not mapped here (/proc/self/uid_map)"));
        inside.subuid = "marshal:20000:4096\n".to_owned();
        check(&inside, Ok("20000-24095"));
        inside.gid_map = "0 100000 20100\n".to_owned();
        check(&inside, Err("/proc/self/gid_map"));
    }

    #[test]
    fn the_first_free_block_is_found_between_others_of_any_size() {
        let check = |taken: &[(u32, u32)], count, expect| {
            let range = [Range::new(1000, 100), Range::new(5000, 50)];
            let taken: Vec<_> = taken.iter().map(|&(f, c)| Range::new(f, c)).collect();
            assert_eq!(
                first_free(&range, &taken, count),
                expect,
                "{taken:?} {count}"
            );
        };
        check(&[], 100, Some(1000));
        check(&[], 101, None);
        check(&[(1000, 64)], 36, Some(1064));
        check(&[(1000, 64)], 37, Some(5000));
        check(&[(1010, 10), (1000, 5)], 5, Some(1005));
        check(&[(1010, 10), (1000, 5)], 6, Some(1020));
        check(&[(900, 150)], 50, Some(1050));
        check(&[(1000, 100), (5000, 1)], 50, None);
        check(&[(1000, 100), (5000, 1)], 49, Some(5001));
    }
}
