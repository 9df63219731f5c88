//! Topic patterns, found by the keys that they match.
//!
//! A pattern is words between dots; `*` stands for one word, `#` for any number
//! of them, none included. The empty key has no words. Patterns that begin alike
//! share the way to where they differ, so what a key does not match costs it
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

/// Values by pattern. No node but the root is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trie<T> {
    root: Node<T>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node<T> {
    /// Of the patterns that end here.
    values: BTreeSet<T>,
    /// By the next word of the pattern, `*` and `#` among them.
    next: BTreeMap<String, Self>,
}

impl<T: Ord> Trie<T> {
    pub(crate) fn insert(&mut self, pattern: &str, value: T) {
        let end = words(pattern).fold(&mut self.root, |node, word| {
            node.next.entry(word.to_owned()).or_default()
        });
        end.values.insert(value);
    }

    pub(crate) fn remove(&mut self, pattern: &str, value: &T) {
        self.root.remove(words(pattern), value);
    }

    /// Visits the values of all patterns that match a key.
    pub(crate) fn visit(&self, key: &str, visit: &mut impl FnMut(&T)) {
        let key: Vec<&str> = words(key).collect();
        self.root.visit(&key, &Places::only(0), visit);
    }
}

impl<T: Ord> Node<T> {
    fn remove<'a>(&mut self, mut pattern: impl Iterator<Item = &'a str>, value: &T) {
        let Some(word) = pattern.next() else {
            self.values.remove(value);
            return;
        };
        if let Some(node) = self.next.get_mut(word) {
            node.remove(pattern, value);
            if node.values.is_empty() && node.next.is_empty() {
                self.next.remove(word);
            }
        }
    }

    /// `places` are those of the key up to which the way to here can match. Each
    /// node is seen at most once, however many ways through the key lead to it.
    fn visit(&self, key: &[&str], places: &Places, visit: &mut impl FnMut(&T)) {
        if places.has(key.len()) {
            self.values.iter().for_each(&mut *visit);
        }
        let mut after_word: BTreeMap<&str, Places> = BTreeMap::new();
        let mut after_any = Places::default();
        for (place, word) in key.iter().enumerate().filter(|(place, _)| places.has(*place)) {
            after_word.entry(word).or_default().add(place + 1);
            after_any.add(place + 1);
        }
        for (word, places) in after_word {
            // A key may have words that are wildcards in a pattern: not here.
            if word != "*" && word != "#" {
                self.visit_next(word, key, &places, visit);
            }
        }
        if !after_any.is_empty() {
            self.visit_next("*", key, &after_any, visit);
        }
        if self.next.contains_key("#") {
            self.visit_next("#", key, &places.and_all_later(key.len()), visit);
        }
    }

    fn visit_next(&self, word: &str, key: &[&str], places: &Places, visit: &mut impl FnMut(&T)) {
        if let Some(node) = self.next.get(word) {
            node.visit(key, places, visit);
        }
    }
}

impl<T> Default for Trie<T> {
    fn default() -> Self {
        Self {
            root: Node::default(),
        }
    }
}

impl<T> Default for Node<T> {
    fn default() -> Self {
        Self {
            values: BTreeSet::new(),
            next: BTreeMap::new(),
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split('.').filter(move |_| !text.is_empty())
}

/// A set of places between the words of a key: 0 to their number, which is at
/// most 256, since a key has at most 255 bytes.
#[derive(Clone, Default)]
struct Places([u64; 5]);

impl Places {
    fn only(place: usize) -> Self {
        let mut places = Self::default();
        places.add(place);
        places
    }

    fn add(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    fn has(&self, place: usize) -> bool {
        self.0[place / 64] & 1 << (place % 64) != 0
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; 5]
    }

    /// These and all after the first of them, up to `last`.
    fn and_all_later(&self, last: usize) -> Self {
        let mut places = Self::default();
        (0..=last)
            .skip_while(|place| !self.has(*place))
            .for_each(|place| places.add(place));
        places
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn found(trie: &Trie<usize>, key: &str) -> Vec<usize> {
        let mut found = Vec::new();
        trie.visit(key, &mut |value| found.push(*value));
        found.sort_unstable();
        found
    }

    /// Straight from what the wildcards mean.
    fn matches(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&"#", rest)), None) => matches(rest, key),
            (Some((&"#", rest)), Some((_, later))) => matches(rest, key) || matches(pattern, later),
            (Some((&"*", rest)), Some((_, later))) => matches(rest, later),
            (Some((word, rest)), Some((first, later))) => word == first && matches(rest, later),
            _ => false,
        }
    }

    fn words_of(text: &str) -> Vec<&str> {
        if text.is_empty() {
            Vec::new()
        } else {
            text.split('.').collect()
        }
    }

    fn text(words: Vec<&'static str>) -> impl Strategy<Value = String> {
        prop::collection::vec(select(words), 0..6).prop_map(|words| words.join("."))
    }

    proptest! {
        #[test]
        fn finds_what_a_naive_matcher_finds(
            patterns in prop::collection::vec(text(vec!["a", "b", "", "*", "#", "#"]), 0..12),
            keys in prop::collection::vec(text(vec!["a", "b", "c", "", "*", "#"]), 1..12),
            removed in prop::collection::vec(any::<bool>(), 12),
        ) {
            let mut trie = Trie::default();
            for (number, pattern) in patterns.iter().enumerate() {
                trie.insert(pattern, number);
            }
            let mut kept = Trie::default();
            for (number, pattern) in patterns.iter().enumerate() {
                if removed[number] {
                    trie.remove(pattern, &number);
                } else {
                    kept.insert(pattern, number);
                }
            }
            prop_assert_eq!(&trie, &kept, "removed patterns leave nothing behind");
            for key in &keys {
                let expected: Vec<usize> = (0..patterns.len())
                    .filter(|n| !removed[*n] && matches(&words_of(&patterns[*n]), &words_of(key)))
                    .collect();
                prop_assert_eq!(found(&trie, key), expected, "patterns {:?}, key {:?}", patterns, key);
            }
        }
    }

    /// A matcher that tries one way after the other would not come to an end.
    #[test]
    fn many_ways_through_a_key_cost_no_more_than_one() {
        let mut trie = Trie::default();
        let hashes = vec!["#.a"; 60].join(".");
        trie.insert(&hashes, 1);
        trie.insert(&format!("{hashes}.b"), 2);
        let key = vec!["a"; 128].join(".");
        assert_eq!(key.len(), 255);
        assert_eq!(found(&trie, &key), [1]);
        assert_eq!(found(&trie, &".".repeat(255)), []);
    }
}
