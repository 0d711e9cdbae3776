//! The header of a bundle (gitformat-bundle(5)), parsed without git: which branch the bundle
//! contains, and which commits it requires.
//!
//! Pure. A bundle comes from a sandbox that an agent was in, so everything except exactly one
//! branch of the expected name is refused.

use serde::{Deserialize, Deserializer, Serialize};

use marshal_model::limits;

/// An object id: 40 or 64 hexadecimal digits in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObjectId(String);

impl ObjectId {
    /// Checks the format; `None` if it is not an object id.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (matches!(text.len(), 40 | 64) && text.bytes().all(is_hex)).then(|| Self(text.to_owned()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Git's name of the repository's hash algorithm.
    #[must_use]
    pub fn format(&self) -> &'static str {
        if self.0.len() == 40 { "sha1" } else { "sha256" }
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

impl<'de> Deserialize<'de> for ObjectId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::new(&text).ok_or_else(|| serde::de::Error::custom("not an object id"))
    }
}

/// A parsed bundle header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleHeader {
    /// The commit that its branch points to.
    pub tip: ObjectId,
    /// Offset of the pack in bytes from the start.
    pub pack_offset: u64,
}

/// Why a bundle is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleHeaderError {
    /// The first line is not one of a bundle.
    #[error("it does not start with the header of a git bundle")]
    Signature,
    /// The header exceeds its limit.
    #[error("its header is longer than {} KiB or has too many lines", limits::BUNDLE_HEAD_BYTES >> 10)]
    TooLong,
    /// A line is malformed.
    #[error("its header has an invalid line")]
    Line,
    /// An unsupported capability is required.
    #[error("its header requires an unsupported capability")]
    Capability,
    /// It contains something other than the expected branch.
    #[error("it contains something other than the branch {0}")]
    Branch(String),
    /// Its objects use another hash algorithm.
    #[error("its objects use another hash algorithm than the repository")]
    Format,
    /// No pack follows the header.
    #[error("it has no pack")]
    NoPack,
}

impl BundleHeader {
    /// Parses the start of a bundle, which must contain `branch` (`refs/heads/…`) and nothing else,
    /// for a repository that has the commit `base`.
    ///
    /// # Errors
    /// [`BundleHeaderError`]
    pub fn parse(start: &[u8], branch: &str, base: &ObjectId) -> Result<Self, BundleHeaderError> {
        let mut at = 0;
        let mut line = || -> Result<&[u8], BundleHeaderError> {
            let rest = start.get(at..).unwrap_or_default();
            let end = rest
                .iter()
                .position(|&byte| byte == b'\n')
                .ok_or(BundleHeaderError::TooLong)?;
            at += end + 1;
            Ok(&rest[..end])
        };
        let is_third = match line().map_err(|_| BundleHeaderError::Signature)? {
            b"# v2 git bundle" => false,
            b"# v3 git bundle" => true,
            _ => return Err(BundleHeaderError::Signature),
        };
        let mut format = "sha1";
        let (mut tip, mut bases) = (None, 0);
        loop {
            match line()? {
                [] => break,
                [b'@', capability @ ..] if is_third && tip.is_none() && bases == 0 => {
                    format = match capability {
                        b"object-format=sha1" => "sha1",
                        b"object-format=sha256" => "sha256",
                        _ => return Err(BundleHeaderError::Capability),
                    };
                }
                [b'-', rest @ ..] if tip.is_none() => {
                    let id = rest.split(|&byte| byte == b' ').next().unwrap_or_default();
                    require_same_format(parse_object_id(id)?, base)?;
                    bases += 1;
                    if bases > limits::BUNDLE_BASES {
                        return Err(BundleHeaderError::TooLong);
                    }
                }
                text => {
                    let space = text.iter().position(|&byte| byte == b' ');
                    let (id, name) = text.split_at(space.ok_or(BundleHeaderError::Line)?);
                    if &name[1..] != branch.as_bytes() || tip.is_some() {
                        return Err(BundleHeaderError::Branch(branch.to_owned()));
                    }
                    tip = Some(require_same_format(parse_object_id(id)?, base)?);
                }
            }
        }
        if format != base.format() {
            return Err(BundleHeaderError::Format);
        }
        if start.get(at..at + 4) != Some(b"PACK") {
            return Err(BundleHeaderError::NoPack);
        }
        let tip = tip.ok_or_else(|| BundleHeaderError::Branch(branch.to_owned()))?;
        Ok(Self {
            tip,
            pack_offset: at as u64,
        })
    }
}

fn parse_object_id(bytes: &[u8]) -> Result<ObjectId, BundleHeaderError> {
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(ObjectId::new).ok_or(BundleHeaderError::Line)
}

fn require_same_format(id: ObjectId, base: &ObjectId) -> Result<ObjectId, BundleHeaderError> {
    if id.format() == base.format() {
        Ok(id)
    } else {
        Err(BundleHeaderError::Format)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0123456789012345678901234567890123456789";
    const B: &str = "abcdefabcdefabcdefabcdefabcdefabcdefabcd";
    const REF: &str = "refs/heads/marshal/s";

    fn read(text: &str) -> Result<BundleHeader, BundleHeaderError> {
        let base = ObjectId::new(A).expect("an id");
        BundleHeader::parse(text.as_bytes(), REF, &base)
    }

    #[test]
    fn one_branch_is_read_with_where_its_pack_begins() {
        let text = format!("# v2 git bundle\n-{A} a comment\n{B} {REF}\n\nPACK...");
        let head = read(&text).expect("a head");
        assert_eq!(head.tip.as_str(), B);
        assert_eq!(head.pack_offset, text.find("PACK").expect("a pack") as u64);
        let third = format!("# v3 git bundle\n@object-format=sha1\n{B} {REF}\n\nPACK");
        assert_eq!(read(&third).expect("a head").tip.as_str(), B);
    }

    #[test]
    fn anything_else_is_refused() {
        let check = |text: &str, expect: BundleHeaderError| {
            assert_eq!(read(text), Err(expect), "{text:?}");
        };
        let branch = || BundleHeaderError::Branch(REF.to_owned());
        let long = "0".repeat(64);
        check("", BundleHeaderError::Signature);
        check("PACK", BundleHeaderError::Signature);
        check("# v4 git bundle\n", BundleHeaderError::Signature);
        check("# v2 git bundle\n", BundleHeaderError::TooLong);
        check("# v2 git bundle\n\nPACK", branch());
        check(
            &format!("# v2 git bundle\n{B} refs/heads/main\n\nPACK"),
            branch(),
        );
        check(
            &format!("# v2 git bundle\n{B} {REF}/../main\n\nPACK"),
            branch(),
        );
        check(
            &format!("# v2 git bundle\n{B} {REF}\n{B} refs/heads/x\n\nPACK"),
            branch(),
        );
        check(
            &format!("# v2 git bundle\n{B} {REF}\n{B} {REF}\n\nPACK"),
            branch(),
        );
        check(
            &format!("# v2 git bundle\n{B} {REF}\n\nTRAP"),
            BundleHeaderError::NoPack,
        );
        check(
            &format!("# v2 git bundle\n{B}{REF}\n\nPACK"),
            BundleHeaderError::Line,
        );
        check(
            &format!("# v2 git bundle\nHEAD {REF}\n\nPACK"),
            BundleHeaderError::Line,
        );
        check(
            &format!("# v2 git bundle\n-x\n{B} {REF}\n\nPACK"),
            BundleHeaderError::Line,
        );
        check(
            &format!("# v2 git bundle\n{long} {REF}\n\nPACK"),
            BundleHeaderError::Format,
        );
        check(
            &format!("# v3 git bundle\n@filter=blob:none\n{B} {REF}\n\nPACK"),
            BundleHeaderError::Capability,
        );
        let bases = format!("-{A}\n").repeat(limits::BUNDLE_BASES + 1);
        check(
            &format!("# v2 git bundle\n{bases}{B} {REF}\n\nPACK"),
            BundleHeaderError::TooLong,
        );
    }
}
