//! A space whose values are written once.
//!
//! sled adds an inserted pair to its leaf as a *link*, and writes the leaf as a whole when it has taken ten of
//! them, or more than sixteen pairs, which it then divides among two leaves. In a log, where each key comes
//! after the last, that writes every value about three times more. But a pair whose key is there already does not
//! make a leaf larger. So the leaves are made beforehand, of empty values:
//!
//! ```text
//! key    u64 BE slot
//! value  empty, or: u8 length of the key, key, value
//! ```
//!
//! Slots come in *blocks* of eight, as many as sled leaves behind on the left when it divides seventeen. With
//! sixteen more slots after it, a block is a leaf of its own that will never be divided. Its first five slots
//! take values; with the leaf itself and the removal of all but one of them, that makes ten writes, so that
//! even the removal of the values writes none of them again.
//!
//! Which key is in which slot is known in memory only, some fifty bytes for each, and read from the values at
//! open. So this is for spaces of a bounded number of keys. A key that is new takes the next slot, whatever it is;
//! nothing relies on slots being in the order of keys.
//!
//! A leaf is used while its values are written, and perhaps once more when they are read. sled, which looks for what
//! to drop from memory only at every 64th use in one of 256 places, would keep several leaves in each of them,
//! whatever the capacity of its cache. So whoever is done with a leaf uses it so many times more.
//!
//! All this is about the number of bytes written, and kept in memory. Were sled to divide its leaves in another way, they would be
//! more, and everything else stay the same.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use parking_lot::Mutex;

const BLOCK: u64 = 8;
/// The slots of a block that take values.
const VALUES: u64 = 5;
/// Uses of a page after which sled looks for others to drop.
const USES: usize = 64;
/// Slots that must follow a block before it is written to.
const AHEAD: u64 = 2 * BLOCK;

pub(super) struct Slots {
    tree: sled::Tree,
    state: Mutex<State>,
}

/// Held across a write, and by readers for a moment.
#[derive(Default)]
struct State {
    places: BTreeMap<Bytes, u64>,
    blocks: BTreeMap<u64, Block>,
    /// The slot for the next new key.
    next: u64,
    /// All slots from here on were never used.
    reserved: u64,
}

/// One bit for each slot.
#[derive(Clone, Copy, Default)]
struct Block {
    present: u8,
    filled: u8,
}

impl Slots {
    /// Reads which key is where.
    pub(super) fn load(tree: sled::Tree) -> sled::Result<Self> {
        let nonsense = |what: &str| sled::Error::ReportableBug(format!("a space of slots has {what}"));
        let mut state = State::default();
        let mut last_filled = None;
        for pair in &tree {
            let (slot, stored) = pair?;
            let slot = slot[..].try_into().map(u64::from_be_bytes);
            let slot = slot.map_err(|_| nonsense("a key that is no slot"))?;
            state.reserved = slot + 1;
            done_with(&tree, slot)?;
            let block = state.block(slot);
            block.present |= bit(slot);
            if stored.is_empty() {
                continue;
            }
            block.filled |= bit(slot);
            last_filled = Some(slot);
            let (key, _value) = decode(&stored).ok_or_else(|| nonsense("a value without a key"))?;
            if state.places.insert(Bytes::copy_from_slice(key), slot).is_some() {
                return Err(nonsense("a key in two slots"));
            }
        }
        state.next = match (last_filled, state.blocks.first_key_value()) {
            (Some(slot), _) => following(slot),
            // What was removed from a block may have left a part of it.
            (None, Some((block, Block { present: u8::MAX, .. }))) => block * BLOCK,
            (None, Some((block, _))) => (block + 1) * BLOCK,
            (None, None) => 0,
        };
        Ok(Slots {
            tree,
            state: Mutex::new(state),
        })
    }

    pub(super) fn put(&self, key: &[u8], value: &[u8]) -> sled::Result<()> {
        let stored = encode(key, value);
        let mut state = self.state.lock();
        let known = state.places.get(key).copied();
        let slot = known.unwrap_or(state.next);
        if known.is_none() {
            self.reserve(&mut state, (slot / BLOCK + 1) * BLOCK + AHEAD)?;
        }
        self.tree.insert(slot.to_be_bytes(), stored)?;
        let block = state.block(slot);
        block.present |= bit(slot);
        block.filled |= bit(slot);
        if known.is_none() {
            state.places.insert(Bytes::copy_from_slice(key), slot);
            state.next = following(slot);
            done_with(&self.tree, slot)?;
        }
        Ok(())
    }

    pub(super) fn remove(&self, key: &[u8]) -> sled::Result<()> {
        let mut state = self.state.lock();
        let Some(slot) = state.places.get(key).copied() else {
            return Ok(());
        };
        self.tree.remove(slot.to_be_bytes())?;
        state.places.remove(key);
        let block = state.block(slot);
        block.present &= !bit(slot);
        block.filled &= !bit(slot);
        self.sweep(&mut state)
    }

    pub(super) fn get(&self, key: &[u8]) -> sled::Result<Option<Bytes>> {
        let slot = self.state.lock().places.get(key).copied();
        slot.map_or(Ok(None), |slot| self.value(key, slot))
    }

    /// The first pair after a key, or at it.
    pub(super) fn next(&self, from: Bound<&[u8]>) -> sled::Result<Option<(Bytes, Bytes)>> {
        self.find(from, |places, from| {
            places.range::<[u8], _>((from, Bound::Unbounded)).next()
        })
    }

    /// The last pair before a key, or at it.
    pub(super) fn previous(&self, to: Bound<&[u8]>) -> sled::Result<Option<(Bytes, Bytes)>> {
        self.find(to, |places, to| {
            places.range::<[u8], _>((Bound::Unbounded, to)).next_back()
        })
    }

    fn find(
        &self,
        bound: Bound<&[u8]>,
        find: impl for<'a> Fn(&'a BTreeMap<Bytes, u64>, Bound<&[u8]>) -> Option<(&'a Bytes, &'a u64)>,
    ) -> sled::Result<Option<(Bytes, Bytes)>> {
        let mut bound = bound.map(Bytes::copy_from_slice);
        loop {
            let found = find(&self.state.lock().places, bound.as_ref().map(|key| &key[..]))
                .map(|(key, slot)| (key.clone(), *slot));
            let Some((key, slot)) = found else { return Ok(None) };
            if let Some(value) = self.value(&key, slot)? {
                done_with(&self.tree, slot)?;
                return Ok(Some((key, value)));
            }
            // It was removed meanwhile.
            bound = Bound::Excluded(key);
        }
    }

    /// What is in a slot, if it is still the key's. Slots are not used again as long as this lives.
    fn value(&self, key: &[u8], slot: u64) -> sled::Result<Option<Bytes>> {
        let Some(stored) = self.tree.get(slot.to_be_bytes())? else {
            return Ok(None);
        };
        match decode(&stored) {
            Some((of, value)) if of == key => Ok(Some(Bytes::copy_from_slice(value))),
            _ => Err(sled::Error::ReportableBug(format!(
                "slot {slot} does not hold the key that was put there"
            ))),
        }
    }

    fn reserve(&self, state: &mut State, upto: u64) -> sled::Result<()> {
        while state.reserved < upto {
            let slot = state.reserved;
            self.tree.insert(slot.to_be_bytes(), &[])?;
            state.block(slot).present |= bit(slot);
            state.reserved += 1;
        }
        Ok(())
    }

    /// Removes what is left of the first blocks, if they are done.
    fn sweep(&self, state: &mut State) -> sled::Result<()> {
        while let Some(first) = state.blocks.first_entry()
            && *first.key() < state.next / BLOCK
            && first.get().filled == 0
        {
            let (block, Block { present, .. }) = first.remove_entry();
            for slot in block * BLOCK..(block + 1) * BLOCK {
                if present & bit(slot) != 0 {
                    self.tree.remove(slot.to_be_bytes())?;
                }
            }
        }
        Ok(())
    }
}

/// Has sled look for pages to drop, if a slot is the last of its leaf that is written, or read by a walk.
fn done_with(tree: &sled::Tree, slot: u64) -> sled::Result<()> {
    if slot % BLOCK == VALUES - 1 {
        for _ in 0..USES {
            tree.contains_key(slot.to_be_bytes())?;
        }
    }
    Ok(())
}

impl State {
    fn block(&mut self, slot: u64) -> &mut Block {
        self.blocks.entry(slot / BLOCK).or_default()
    }
}

fn bit(slot: u64) -> u8 {
    1 << (slot % BLOCK)
}

/// The next slot that takes a value.
fn following(slot: u64) -> u64 {
    if slot % BLOCK + 1 < VALUES {
        slot + 1
    } else {
        (slot / BLOCK + 1) * BLOCK
    }
}

fn encode(key: &[u8], value: &[u8]) -> Vec<u8> {
    let key_len = u8::try_from(key.len()).expect("keys are short");
    let mut stored = Vec::with_capacity(1 + key.len() + value.len());
    stored.push(key_len);
    stored.extend_from_slice(key);
    stored.extend_from_slice(value);
    stored
}

fn decode(stored: &[u8]) -> Option<(&[u8], &[u8])> {
    let (key_len, rest) = stored.split_first()?;
    rest.split_at_checked(usize::from(*key_len))
}
