//! What a pack has in it, as git prints it in a sandbox: read with bounds, searched for secrets and
//! hidden files, and asked whether a push is a fast-forward.
//!
//! The text comes from a program that an agent's bytes were given to, so it is foreign text.

use std::collections::{HashMap, HashSet};

use marshal_model::limits::{
    PUSH_BUFFERED_BYTES, PUSH_COMMIT_PARENTS, PUSH_OBJECTS, PUSH_PATH_BYTES, PUSH_UNPACKED_BYTES,
};

/// The longest line in front of an object.
const HEADER_BYTES: usize = 128;

/// The head of a pack: its name, version and number of objects (gitformat-pack(5)).
const PACK_HEAD: usize = 12;

/// Why a pack does not pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackFault {
    /// It is not what git prints.
    #[error("the pack cannot be read: {0}")]
    Unreadable(&'static str),
    /// More than can be searched.
    #[error("the pack has more than can be searched: {0}; push in smaller parts")]
    TooLarge(&'static str),
    /// It contains a secret, of this name.
    #[error("{0} contains the secret {1}")]
    Secret(String, String),
    /// It has a file that the workspace's mask hides.
    #[error("it has the file {0}, which workspace.mask hides")]
    Hidden(String),
    /// The former commit is not among the parents of the new one, as far as the pack shows.
    #[error(
        "not a fast-forward that can be checked: the commits of the push do not lead from the new commit to the ref's present one"
    )]
    NotForward,
}

/// The number of objects in a pack, by its head. `None`: it is no pack.
#[must_use]
pub fn pack_objects(head: &[u8]) -> Option<u32> {
    let (head, _) = head.split_first_chunk::<PACK_HEAD>()?;
    let version = head.get(4..8)?;
    let is_pack = head.starts_with(b"PACK") && matches!(version, [0, 0, 0, 2 | 3]);
    let count: [u8; 4] = head.get(8..)?.try_into().ok()?;
    is_pack.then(|| u32::from_be_bytes(count))
}

/// Searches content. Each object is a text of its own.
pub trait PackSearch {
    /// The name of a secret that this piece completes.
    fn find_secret(&mut self, piece: &[u8]) -> Option<String>;

    /// Begins another text.
    fn reset(&mut self);

    /// Whether a path below the repository's root is hidden.
    fn hides(&self, path: &[u8]) -> bool;
}

/// The kinds of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// A commit.
    Commit,
    /// A directory.
    Tree,
    /// A file.
    Blob,
    /// An annotated tag.
    Tag,
}

impl ObjectKind {
    fn parse(word: &[u8]) -> Option<Self> {
        match word {
            b"commit" => Some(Self::Commit),
            b"tree" => Some(Self::Tree),
            b"blob" => Some(Self::Blob),
            b"tag" => Some(Self::Tag),
            _ => None,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "the commit",
            Self::Tree => "the tree",
            Self::Blob => "the file",
            Self::Tag => "the tag",
        }
    }

    const fn is_kept(self) -> bool {
        matches!(self, Self::Commit | Self::Tree)
    }
}

/// An object's id; a short one is filled up with zeros.
type Id = [u8; 32];

fn parse_id(hex_digits: &[u8]) -> Option<Id> {
    let mut id = [0; 32];
    let part = id.get_mut(..hex_digits.len() / 2)?;
    hex::decode_to_slice(hex_digits, part).ok()?;
    matches!(hex_digits.len(), 40 | 64).then_some(id)
}

/// Where the text is.
#[derive(Debug)]
enum State {
    /// In the list of all objects, which an empty line ends.
    List,
    /// Before an object.
    Object,
    /// In the content of the object at this place, with so many bytes to come.
    Content(usize, u64),
    /// At the line feed behind an object.
    Behind,
}

/// An object of the list.
#[derive(Debug)]
struct Listed {
    kind: ObjectKind,
    bytes: u64,
    is_read: bool,
}

/// Reads what `git cat-file` prints of all objects: the list of them, then their content. See
/// `read_pack` in `sandbox/workspace/branch/git.rs`.
#[derive(Debug)]
pub struct PackReader<S> {
    search: S,
    state: State,
    /// Bytes of an id in a tree.
    id_bytes: usize,
    /// A line that is not whole yet.
    line: Vec<u8>,
    /// The content of a commit or a tree.
    kept: Vec<u8>,
    places: HashMap<Id, usize>,
    listed: Vec<Listed>,
    unpacked: u64,
    commits: HashMap<Id, Commit>,
    trees: HashMap<Id, Vec<Entry>>,
    /// Bytes of the names in `trees` and of the parents in `commits`.
    kept_bytes: usize,
}

#[derive(Debug)]
struct Commit {
    tree: Id,
    parents: Vec<Id>,
}

/// An entry of a tree, whose object is in the pack.
#[derive(Debug)]
struct Entry {
    name: Vec<u8>,
    id: Id,
}

impl<S: PackSearch> PackReader<S> {
    /// A reader of a pack with this many objects. `object_format`: `sha1` or `sha256`.
    pub fn new(search: S, object_format: &str) -> Self {
        Self {
            search,
            state: State::List,
            id_bytes: if object_format == "sha256" { 32 } else { 20 },
            line: Vec::new(),
            kept: Vec::new(),
            places: HashMap::new(),
            listed: Vec::new(),
            unpacked: 0,
            commits: HashMap::new(),
            trees: HashMap::new(),
            kept_bytes: 0,
        }
    }

    /// Reads the next piece.
    ///
    /// # Errors
    /// [`PackFault`]: nothing more is read then.
    pub fn read(&mut self, mut piece: &[u8]) -> Result<(), PackFault> {
        while !piece.is_empty() {
            match self.state {
                State::List | State::Object => {
                    let Some(line) = self.take_line(&mut piece)? else {
                        return Ok(());
                    };
                    self.header(&line)?;
                }
                State::Content(at, left) => {
                    let now = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
                    let (data, rest) = piece.split_at(now);
                    piece = rest;
                    self.content(at, data)?;
                    let left = left - data.len() as u64;
                    self.state = State::Content(at, left);
                    if left == 0 {
                        self.end_object(at)?;
                    }
                }
                State::Behind => {
                    piece = piece
                        .strip_prefix(b"\n")
                        .ok_or(PackFault::Unreadable("an object has another size"))?;
                    self.state = State::Object;
                }
            }
        }
        Ok(())
    }

    /// A whole line without its end; `None`: it is not whole yet.
    fn take_line(&mut self, piece: &mut &[u8]) -> Result<Option<Vec<u8>>, PackFault> {
        let end = memchr::memchr(b'\n', piece);
        let (part, rest) = piece.split_at(end.unwrap_or(piece.len()));
        if self.line.len() + part.len() > HEADER_BYTES {
            return Err(PackFault::Unreadable("a line is too long"));
        }
        self.line.extend_from_slice(part);
        *piece = rest.get(1..).unwrap_or_default();
        Ok(end.map(|_| std::mem::take(&mut self.line)))
    }

    fn header(&mut self, line: &[u8]) -> Result<(), PackFault> {
        let bad = || PackFault::Unreadable("a line is not of git's list");
        let is_list = matches!(self.state, State::List);
        if is_list && line.is_empty() {
            self.state = State::Object;
            return Ok(());
        }
        let mut words = line.split(|byte| *byte == b' ');
        let (Some(id), Some(kind), Some(bytes), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad());
        };
        let id = parse_id(id).ok_or_else(bad)?;
        let kind = ObjectKind::parse(kind).ok_or_else(bad)?;
        // A number may have a sign where it is parsed.
        let bytes = std::str::from_utf8(bytes)
            .ok()
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|text| text.parse().ok());
        let bytes: u64 = bytes.ok_or_else(bad)?;
        if is_list {
            return self.list(id, kind, bytes);
        }
        let at = *self.places.get(&id).ok_or_else(bad)?;
        let listed = self.listed.get_mut(at).ok_or_else(bad)?;
        if listed.is_read || listed.kind != kind || listed.bytes != bytes {
            return Err(bad());
        }
        listed.is_read = true;
        self.search.reset();
        self.kept.clear();
        self.line.extend_from_slice(&id);
        self.state = State::Content(at, bytes);
        if bytes == 0 {
            self.end_object(at)?;
        }
        Ok(())
    }

    fn list(&mut self, id: Id, kind: ObjectKind, bytes: u64) -> Result<(), PackFault> {
        let at = self.listed.len();
        self.unpacked = self.unpacked.saturating_add(bytes);
        if at >= PUSH_OBJECTS {
            return Err(PackFault::TooLarge("too many objects"));
        }
        if self.unpacked > PUSH_UNPACKED_BYTES {
            return Err(PackFault::TooLarge("too many bytes when it is unpacked"));
        }
        if kind.is_kept() && bytes > PUSH_BUFFERED_BYTES as u64 {
            return Err(PackFault::TooLarge("a commit or a directory is too long"));
        }
        if self.places.insert(id, at).is_some() {
            return Err(PackFault::Unreadable("an object is listed twice"));
        }
        self.listed.push(Listed {
            kind,
            bytes,
            is_read: false,
        });
        Ok(())
    }

    fn content(&mut self, at: usize, data: &[u8]) -> Result<(), PackFault> {
        let kind = self
            .listed
            .get(at)
            .map_or(ObjectKind::Blob, |listed| listed.kind);
        if let Some(name) = self.search.find_secret(data) {
            let id = self.line.get(..self.id_bytes).map(hex::encode);
            let what = format!("{} {}", kind.as_str(), id.unwrap_or_default());
            return Err(PackFault::Secret(what, name));
        }
        if kind.is_kept() {
            self.kept.extend_from_slice(data);
        }
        Ok(())
    }

    fn end_object(&mut self, at: usize) -> Result<(), PackFault> {
        let id: Option<Id> = self.line.as_slice().try_into().ok();
        let id = id.ok_or(PackFault::Unreadable("an object has no id"))?;
        self.line.clear();
        let kept = std::mem::take(&mut self.kept);
        match self.listed.get(at).map(|listed| listed.kind) {
            Some(ObjectKind::Commit) => {
                let (tree, parents) =
                    parse_commit(&kept).ok_or(PackFault::Unreadable("a commit"))?;
                // An agent may write a commit with any number of parents.
                let parents: Vec<Id> = parents
                    .take(PUSH_COMMIT_PARENTS + 1)
                    .collect::<Option<_>>()
                    .ok_or(PackFault::Unreadable("a commit"))?;
                if parents.len() > PUSH_COMMIT_PARENTS {
                    return Err(PackFault::TooLarge("a commit has too many parents"));
                }
                self.keep(parents.len() * size_of::<Id>())?;
                self.commits.insert(id, Commit { tree, parents });
            }
            Some(ObjectKind::Tree) => {
                let entries = self.parse_tree(&kept)?;
                self.trees.insert(id, entries);
            }
            _ => {}
        }
        self.kept = kept;
        self.state = State::Behind;
        Ok(())
    }

    fn keep(&mut self, bytes: usize) -> Result<(), PackFault> {
        self.kept_bytes += bytes;
        if self.kept_bytes > PUSH_PATH_BYTES {
            return Err(PackFault::TooLarge("too many names or commits"));
        }
        Ok(())
    }

    fn parse_tree(&mut self, mut text: &[u8]) -> Result<Vec<Entry>, PackFault> {
        let bad = || PackFault::Unreadable("a directory");
        let mut entries = Vec::new();
        while !text.is_empty() {
            let zero = memchr::memchr(0, text).ok_or_else(bad)?;
            let (head, rest) = text.split_at(zero);
            let rest = rest.get(1..).ok_or_else(bad)?;
            let (raw, after) = rest.split_at_checked(self.id_bytes).ok_or_else(bad)?;
            let space = memchr::memchr(b' ', head).ok_or_else(bad)?;
            let name = head.get(space + 1..).ok_or_else(bad)?;
            let mut id = [0; 32];
            id.get_mut(..raw.len())
                .ok_or_else(bad)?
                .copy_from_slice(raw);
            // What the upstream has already is not looked at.
            if self.places.contains_key(&id) {
                self.keep(name.len() + size_of::<Entry>())?;
                entries.push(Entry {
                    name: name.to_owned(),
                    id,
                });
            }
            text = after;
        }
        Ok(entries)
    }

    /// Looks at the whole: every object was read, `objects` of them; no new file is hidden; and
    /// `new` leads to `old`, if there is one. Ids are in hexadecimal digits.
    ///
    /// # Errors
    /// [`PackFault`]
    pub fn finish(&self, objects: u32, old: Option<&str>, new: &str) -> Result<(), PackFault> {
        let is_whole = matches!(self.state, State::Object)
            && self.line.is_empty()
            && u32::try_from(self.listed.len()).is_ok_and(|count| count == objects)
            && self.listed.iter().all(|listed| listed.is_read);
        if !is_whole {
            return Err(PackFault::Unreadable("git did not print all of it"));
        }
        self.check_paths()?;
        let id = |text: &str| parse_id(text.as_bytes()).ok_or(PackFault::Unreadable("an id"));
        match old {
            None => Ok(()),
            Some(old) => self.check_forward(id(old)?, id(new)?),
        }
    }

    fn check_forward(&self, old: Id, new: Id) -> Result<(), PackFault> {
        let (mut open, mut seen) = (vec![new], HashSet::from([new]));
        while let Some(id) = open.pop() {
            if id == old {
                return Ok(());
            }
            let Some(commit) = self.commits.get(&id) else {
                continue;
            };
            open.extend(commit.parents.iter().filter(|parent| seen.insert(**parent)));
        }
        Err(PackFault::NotForward)
    }

    /// Looks at the path of every file in the pack. A directory of the pack that no commit of it
    /// reaches has no path, and git servers refuse or forget it. A file whose content the upstream
    /// has is not one of the pack.
    fn check_paths(&self) -> Result<(), PackFault> {
        let mut seen: HashSet<(Id, Vec<u8>)> = HashSet::new();
        let mut open: Vec<(Id, Vec<u8>)> = Vec::new();
        let mut bytes = 0_usize;
        let roots = self
            .commits
            .values()
            .map(|commit| (commit.tree, Vec::new()));
        for root in roots {
            if seen.insert(root.clone()) {
                open.push(root);
            }
            while let Some((tree, path)) = open.pop() {
                let Some(entries) = self.trees.get(&tree) else {
                    continue;
                };
                for entry in entries {
                    let mut below = path.clone();
                    below.extend_from_slice(&entry.name);
                    // Every path costs, not only those of directories: a few short objects can make
                    // more paths than can ever be looked at.
                    bytes += below.len() + size_of::<(Id, Vec<u8>)>();
                    if bytes > PUSH_PATH_BYTES {
                        return Err(PackFault::TooLarge("too many paths"));
                    }
                    if self.search.hides(&below) {
                        let shown = String::from_utf8_lossy(&below).into_owned();
                        return Err(PackFault::Hidden(shown));
                    }
                    below.push(b'/');
                    let next = (entry.id, below);
                    if self.trees.contains_key(&entry.id) && seen.insert(next.clone()) {
                        open.push(next);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The tree and the parents of a commit. A parent is `None` if it is no id.
fn parse_commit(text: &[u8]) -> Option<(Id, impl Iterator<Item = Option<Id>>)> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let tree = parse_id(lines.next()?.strip_prefix(b"tree ")?)?;
    let parents = lines.map_while(|line| Some(parse_id(line.strip_prefix(b"parent ")?)));
    Some((tree, parents))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Find;

    impl PackSearch for Find {
        fn find_secret(&mut self, piece: &[u8]) -> Option<String> {
            let found = memchr::memmem::find(piece, b"s3cret").is_some();
            found.then(|| "KEY".to_owned())
        }

        fn reset(&mut self) {}

        fn hides(&self, path: &[u8]) -> bool {
            path.ends_with(b"a/.env")
        }
    }

    fn id(number: u8) -> String {
        format!("{number:02x}").repeat(20)
    }

    fn tree(entries: &[(&str, u8)]) -> Vec<u8> {
        let mut text = Vec::new();
        for (name, of) in entries {
            text.extend_from_slice(format!("100644 {name}\0").as_bytes());
            text.extend_from_slice(&[*of; 20]);
        }
        text
    }

    fn commit(of: u8, parents: &[u8]) -> Vec<u8> {
        let parents = parents
            .iter()
            .map(|parent| format!("parent {}\n", id(*parent)));
        let parents: String = parents.collect();
        format!("tree {}\n{parents}author a\n\nparent of all\n", id(of)).into_bytes()
    }

    fn printed(objects: &[(u8, &str, Vec<u8>)]) -> Vec<u8> {
        let header = |(of, kind, text): &(u8, &str, Vec<u8>)| {
            format!("{} {kind} {}\n", id(*of), text.len()).into_bytes()
        };
        let mut all: Vec<u8> = objects.iter().flat_map(header).collect();
        all.push(b'\n');
        for object in objects {
            all.extend(header(object));
            all.extend_from_slice(&object.2);
            all.push(b'\n');
        }
        all
    }

    fn check(objects: &[(u8, &str, Vec<u8>)], old: Option<u8>, new: u8) -> Result<(), PackFault> {
        let text = printed(objects);
        let old = old.map(id);
        let mut results = [1, 7, text.len()].map(|size| {
            let mut reader = PackReader::new(Find, "sha1");
            for piece in text.chunks(size) {
                match reader.read(piece) {
                    Err(PackFault::Secret(..)) | Ok(()) => {}
                    Err(other) => return Err(other),
                }
            }
            let count = u32::try_from(objects.len()).expect("few");
            reader.finish(count, old.as_deref(), &id(new))
        });
        let first = std::mem::replace(&mut results[0], Ok(()));
        assert!(results[1..].iter().all(|result| *result == first));
        first
    }

    fn history() -> Vec<(u8, &'static str, Vec<u8>)> {
        vec![
            (1, "blob", b"hello".to_vec()),
            (2, "tree", tree(&[("a", 3), ("old", 99)])),
            (3, "tree", tree(&[("file", 1)])),
            (4, "commit", commit(2, &[50])),
            (5, "commit", commit(2, &[60, 4])),
            (6, "blob", Vec::new()),
        ]
    }

    #[test]
    fn a_fast_forward_is_seen_in_the_commits_of_the_pack_alone() {
        let forward = |old, new| check(&history(), old, new);
        assert_eq!(forward(Some(50), 5), Ok(()));
        assert_eq!(forward(Some(60), 5), Ok(()));
        assert_eq!(forward(Some(4), 5), Ok(()));
        assert_eq!(forward(None, 5), Ok(()));
        assert_eq!(forward(Some(5), 4), Err(PackFault::NotForward));
        assert_eq!(forward(Some(70), 5), Err(PackFault::NotForward));
        // Not in the pack: it may be anything.
        assert_eq!(forward(Some(50), 60), Err(PackFault::NotForward));
    }

    #[test]
    fn a_new_file_is_hidden_by_its_path_and_an_old_one_is_not_looked_at() {
        let mut objects = history();
        objects[2].2 = tree(&[(".env", 1)]);
        let hidden = Err(PackFault::Hidden("a/.env".to_owned()));
        assert_eq!(check(&objects, None, 5), hidden);
        objects[2].2 = tree(&[(".env", 99)]);
        assert_eq!(check(&objects, None, 5), Ok(()));
    }

    #[test]
    fn a_secret_is_found_in_every_kind_of_object() {
        for (at, (of, _, text)) in history().into_iter().enumerate() {
            let mut objects = history();
            objects[at].2 = [&text[..], b"x s3cret"].concat();
            let mut reader = PackReader::new(Find, "sha1");
            let Err(PackFault::Secret(what, name)) = reader.read(&printed(&objects)) else {
                panic!("not found in {at}");
            };
            assert!(what.ends_with(&id(of)) && name == "KEY", "{what}");
        }
    }

    #[test]
    fn what_git_does_not_print_is_refused() {
        let good = printed(&history());
        let text = String::from_utf8_lossy(&good).into_owned();
        let read = |text: &[u8]| {
            let mut reader = PackReader::new(Find, "sha1");
            reader.read(text)?;
            reader.finish(6, None, &id(5))
        };
        assert_eq!(read(&good), Ok(()));
        for end in 0..good.len() {
            assert!(read(&good[..end]).is_err(), "{end}");
        }
        for bad in [
            text.replace("blob 5", "blob 6"),
            text.replace("blob 5", "blob +5"),
            text.replace("blob", "blub"),
            text.replacen(&id(1), &id(2), 1),
            format!("{text}\n"),
            format!("{text}{} blob 5\nhello\n", id(1)),
            text.replace("tree ", "tree  "),
            "x".repeat(200),
        ] {
            assert!(read(bad.as_bytes()).is_err(), "{bad}");
        }
        let large = format!("{} blob {}\n", id(1), PUSH_UNPACKED_BYTES + 1);
        assert!(matches!(
            read(large.as_bytes()),
            Err(PackFault::TooLarge(_))
        ));
        let large = format!("{} tree {}\n", id(1), PUSH_BUFFERED_BYTES + 1);
        assert!(matches!(
            read(large.as_bytes()),
            Err(PackFault::TooLarge(_))
        ));
    }

    #[test]
    fn directories_in_directories_are_bounded() {
        let mut objects: Vec<(u8, &str, Vec<u8>)> = (1..60)
            .map(|at| (at, "tree", tree(&[("a", at + 1), ("b", at + 1)])))
            .collect();
        objects.push((60, "blob", Vec::new()));
        objects.push((61, "commit", commit(1, &[])));
        let bounded = Err(PackFault::TooLarge("too many paths"));
        assert_eq!(check(&objects, None, 61), bounded);
    }

    #[test]
    fn many_files_in_many_directories_are_bounded() {
        // 2,000 names of one tree that has 2,000 names: four million paths of 80 KB.
        let names: Vec<String> = (0..2_000).map(|at| format!("{at:04}")).collect();
        let all = |of| tree(&names.iter().map(|name| (&**name, of)).collect::<Vec<_>>());
        let objects = [
            (1, "blob", b"x".to_vec()),
            (2, "tree", all(1)),
            (3, "tree", all(2)),
            (4, "commit", commit(3, &[])),
        ];
        let bounded = Err(PackFault::TooLarge("too many paths"));
        assert_eq!(check(&objects, None, 4), bounded);
        // Many commits of one tree cost no more than one.
        let mut objects = vec![(1, "blob", b"x".to_vec()), (2, "tree", all(1))];
        objects.extend((3..253).map(|at| (at, "commit", commit(2, &[]))));
        assert_eq!(check(&objects, None, 4), Ok(()));
    }

    #[test]
    fn the_parents_of_a_commit_are_bounded() {
        let with = |parents| {
            vec![
                (2, "tree", tree(&[])),
                (1, "commit", commit(2, &vec![9; parents])),
            ]
        };
        assert_eq!(check(&with(PUSH_COMMIT_PARENTS), Some(9), 1), Ok(()));
        let bounded = Err(PackFault::TooLarge("a commit has too many parents"));
        assert_eq!(check(&with(PUSH_COMMIT_PARENTS + 1), Some(9), 1), bounded);
    }

    #[test]
    fn the_head_of_a_pack_has_its_number_of_objects() {
        assert_eq!(pack_objects(b"PACK\0\0\0\x02\0\0\x01\0rest"), Some(256));
        for bad in [
            &b"PACK\0\0\0\x02\0\0\x01"[..],
            b"PACK\0\0\0\x04\0\0\x01\0",
            b"BACK\0\0\0\x02\0\0\x01\0",
        ] {
            assert_eq!(pack_objects(bad), None);
        }
    }
}
