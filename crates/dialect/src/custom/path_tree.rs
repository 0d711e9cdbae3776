//! Finds the values of a message that a definition names, in one pass and without a tree of it.
//!
//! A duplicate member on the path to such a value makes the message unreadable: the agent and this
//! program might read different ones. Must not know what a value means.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use marshal_config::dialect_definition::{DataPath, PathStep};
use marshal_wire::json::{BadFrame, JsonString};

/// The paths of one message type, as a tree.
#[derive(Debug, Default)]
pub(super) struct PathTree {
    nodes: Vec<Node>,
    slots: usize,
}

/// One node: its value slot, and its children.
#[derive(Debug, Default)]
struct Node {
    slot: Option<usize>,
    members: Vec<(String, usize)>,
    items: Vec<(i32, usize)>,
}

/// The values found, by the numbers that [`PathTree::add`] returned.
#[derive(Debug)]
pub(super) struct PathValues<'a> {
    found: Vec<Option<&'a RawValue>>,
    /// Whether a member is duplicated.
    pub(super) clash: bool,
    /// Whether another type than the path needs was on the path to a value.
    pub(super) blocked: bool,
}

impl<'a> PathValues<'a> {
    /// The value at a slot; `None` for `null`.
    pub(super) fn get(&self, slot: usize) -> Option<&'a RawValue> {
        let found = self.found.get(slot).copied().flatten();
        found.filter(|raw| raw.get() != "null")
    }
}

impl PathTree {
    /// Adds a path and returns the number of its value.
    pub(super) fn add(&mut self, path: &DataPath) -> usize {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut at = 0;
        for step in path.steps() {
            let next = match step {
                PathStep::Member(name) => {
                    let mut members = self.nodes[at].members.iter();
                    members.find_map(|(own, next)| (own == name).then_some(*next))
                }
                PathStep::Index(place) => {
                    let mut items = self.nodes[at].items.iter();
                    items.find_map(|(own, next)| (own == place).then_some(*next))
                }
            };
            at = next.unwrap_or_else(|| {
                let fresh = self.nodes.len();
                self.nodes.push(Node::default());
                match step {
                    PathStep::Member(name) => self.nodes[at].members.push((name.clone(), fresh)),
                    PathStep::Index(place) => self.nodes[at].items.push((*place, fresh)),
                }
                fresh
            });
        }
        *self.nodes[at].slot.get_or_insert_with(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    /// Reads an object.
    ///
    /// # Errors
    /// [`BadFrame::Json`] if it is not JSON.
    pub(super) fn read<'a>(&self, object: &'a str) -> Result<PathValues<'a>, BadFrame> {
        let mut values = PathValues {
            found: vec![None; self.slots],
            clash: false,
            blocked: false,
        };
        if self.nodes.is_empty() {
            let _: IgnoredAny = serde_json::from_str(object)?;
        } else {
            self.walk(0, object, &mut values)?;
        }
        Ok(values)
    }

    fn walk<'a>(
        &self,
        at: usize,
        text: &'a str,
        values: &mut PathValues<'a>,
    ) -> Result<(), serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let seed = Walk {
            tree: self,
            at,
            values,
        };
        seed.deserialize(&mut reader)?;
        reader.end()
    }

    /// Handles the value at a node: stores it, walks through it, or both.
    fn keep<'a>(
        &self,
        at: usize,
        raw: &'a RawValue,
        values: &mut PathValues<'a>,
    ) -> Result<(), serde_json::Error> {
        let node = &self.nodes[at];
        if let Some(slot) = node.slot {
            values.found[slot] = Some(raw);
        }
        if node.has_more() {
            self.walk(at, raw.get(), values)?;
        }
        Ok(())
    }
}

impl Node {
    const fn has_more(&self) -> bool {
        !self.members.is_empty() || !self.items.is_empty()
    }
}

/// The walk through one value.
struct Walk<'p, 'v, 'a> {
    tree: &'p PathTree,
    at: usize,
    values: &'v mut PathValues<'a>,
}

impl<'a> DeserializeSeed<'a> for Walk<'_, '_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Walk<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        let node = &self.tree.nodes[self.at];
        self.values.blocked |= !node.items.is_empty();
        let mut seen = vec![false; node.members.len()];
        while let Some(key) = map.next_key::<JsonString<'a>>()? {
            let mut members = node.members.iter();
            let Some(which) = members.position(|(name, _)| *name == key.0) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let at = node.members[which].1;
            let child = &self.tree.nodes[at];
            if std::mem::replace(&mut seen[which], true) {
                self.values.clash = true;
                if let Some(slot) = child.slot {
                    self.values.found[slot] = None; // Nobody knows which of them is meant.
                }
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if child.slot.is_none() && child.items.iter().all(|(place, _)| *place >= 0) {
                let (places, values) = (self.tree, &mut *self.values);
                map.next_value_seed(Walk {
                    tree: places,
                    at,
                    values,
                })?;
            } else {
                let raw = map.next_value::<&'a RawValue>()?;
                self.tree
                    .keep(at, raw, self.values)
                    .map_err(serde::de::Error::custom)?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut list: A) -> Result<(), A::Error> {
        let node = &self.tree.nodes[self.at];
        self.values.blocked |= !node.members.is_empty();
        let back = node.items.iter().map(|(place, _)| -place).max();
        let back = usize::try_from(back.unwrap_or(0)).unwrap_or(0);
        let mut last: Vec<&'a RawValue> = Vec::with_capacity(back);
        let mut place = 0_i32;
        while let Some(raw) = list.next_element::<&'a RawValue>()? {
            if let Some((_, at)) = node.items.iter().find(|(own, _)| *own == place) {
                self.tree
                    .keep(*at, raw, self.values)
                    .map_err(serde::de::Error::custom)?;
            }
            place = place.saturating_add(1);
            if back > 0 {
                if last.len() == back {
                    last.remove(0);
                }
                last.push(raw);
            }
        }
        for (place, at) in &node.items {
            let from_end = usize::try_from(-place).unwrap_or(0);
            let found = last.len().checked_sub(from_end).filter(|_| from_end > 0);
            if let Some(raw) = found.and_then(|found| last.get(found)) {
                self.tree
                    .keep(*at, raw, self.values)
                    .map_err(serde::de::Error::custom)?;
            }
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.values.blocked = true;
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.values.blocked = true;
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.values.blocked = true;
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.values.blocked = true;
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        self.values.blocked = true;
        Ok(())
    }
}

/// A raw value that is a name: a string, or a number as it is written.
pub(super) fn parse_name(raw: &RawValue) -> Option<Cow<'_, str>> {
    let text = raw.get();
    if text.starts_with('"') {
        return serde_json::from_str::<JsonString<'_>>(text)
            .ok()
            .map(|text| text.0);
    }
    let is_number = text.starts_with(|c: char| c == '-' || c.is_ascii_digit());
    is_number.then_some(Cow::Borrowed(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> DataPath {
        marshal_config::dialect_definition::DataPath::try_from(text).expect(text)
    }

    fn read(paths: &[&str], object: &str) -> (Vec<Option<String>>, bool) {
        let mut places = PathTree::default();
        let slots: Vec<_> = paths.iter().map(|text| places.add(&path(text))).collect();
        let values = places.read(object).expect("JSON");
        let found = slots
            .iter()
            .map(|slot| values.get(*slot))
            .map(|raw| raw.map(|raw| raw.get().to_owned()));
        (found.collect(), values.clash)
    }

    #[test]
    fn values_are_found_wherever_they_stand() {
        let object = r#"{"a":{"b":[1,{"c":"x"},3]},"d":null,"more":[{}]}"#;
        let paths = [
            "a.b[1].c", "a.b", "a.b[-1]", "a.b[-3]", "a.b[-4]", "d", "e.f", "a.b.c",
        ];
        let (found, clash) = read(&paths, object);
        let found: Vec<_> = found.iter().map(Option::as_deref).collect();
        assert_eq!(
            found,
            [
                Some("\"x\""),
                Some("[1,{\"c\":\"x\"},3]"),
                Some("3"),
                Some("1"),
                None,
                None,
                None,
                None
            ]
        );
        assert!(!clash);
    }

    #[test]
    fn a_member_that_counts_and_comes_twice_is_a_clash() {
        let (found, clash) = read(&["a.b"], r#"{"a":{"b":1},"x":1,"x":2,"a":{"b":2}}"#);
        assert_eq!((found[0].as_deref(), clash), (Some("1"), true));
        assert_eq!(read(&["a"], r#"{"a":1,"a":2}"#), (vec![None], true));
        assert!(!read(&["a.b"], r#"{"a":{"b":1},"x":1,"x":2}"#).1);
        assert!(read(&["a.b", "a"], r#"{"a":{"b":1,"b":2}}"#).1);
    }

    #[test]
    fn what_stands_in_the_way_is_noticed() {
        let blocked = |text: &str, object: &str| {
            let mut places = PathTree::default();
            places.add(&path(text));
            places.read(object).expect("JSON").blocked
        };
        for object in ["{}", r#"{"a":null}"#, r#"{"a":{}}"#, r#"{"a":{"b":7}}"#] {
            assert!(!blocked("a.b", object), "{object}");
        }
        for object in [r#"{"a":7}"#, r#"{"a":"x"}"#, r#"{"a":[]}"#, r#"{"a":true}"#] {
            assert!(blocked("a.b", object), "{object}");
        }
        assert!(blocked("a[0]", r#"{"a":{"b":1}}"#) && !blocked("a[0]", r#"{"a":[]}"#));
    }

    #[test]
    fn what_is_no_json_is_no_message() {
        let mut places = PathTree::default();
        places.add(&path("a.b"));
        for text in ["{\"a\":{\"b\":1}", "{\"a\":{\"b\":}}", "{} x"] {
            assert!(matches!(places.read(text), Err(BadFrame::Json)), "{text}");
        }
        assert!(matches!(
            PathTree::default().read("{\"a\""),
            Err(BadFrame::Json)
        ));
    }
}
