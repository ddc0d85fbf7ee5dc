//! The directories and files of a store outside of its layers, and which inode numbers they have.
//!
//! Each layer that was looked up gets a slot, whose number is the upper half of its inode numbers.
//! A slot lives as long as the kernel knows one of its directories or files, or a runtime uses the
//! layer. Numbers are not used again, also not by a server that takes over from one that was
//! killed: [`KnownNames`] is what it needs to know.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fuser::INodeNo;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::super::filesystem::ImageFs;
use super::StoredLayer;
use ociseek_format::digest::Digest;

/// The inode number of the first reference. 1 is the root.
const FIRST_REFERENCE: u64 = 2;
/// The lower half of the inode numbers of what a slot has besides the tree, which has fewer nodes.
const DIRECTORY: u32 = u32::MAX;
const INFO: u32 = u32::MAX - 1;
const BLOB: u32 = u32::MAX - 2;
/// The number of the tree's root.
const DIFF: u32 = 1;
/// How often the kernel may have looked up what an earlier server told it of.
const UNKNOWN_LOOKUPS: u64 = u64::MAX / 2;

/// What an inode number stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreNode {
    Root,
    Reference(u64),
    Layer(u32),
    Info(u32),
    Blob(u32),
    /// The root of a layer's tree.
    Diff(u32),
    /// Another file of a layer's tree.
    Inside(u32),
}

impl StoreNode {
    pub(super) fn of(inode: INodeNo) -> StoreNode {
        let slot = (inode.0 >> 32) as u32;
        let low = inode.0 as u32;
        match (slot, low) {
            (0, 1) => StoreNode::Root,
            (0, _) => StoreNode::Reference(inode.0),
            (_, DIRECTORY) => StoreNode::Layer(slot),
            (_, INFO) => StoreNode::Info(slot),
            (_, BLOB) => StoreNode::Blob(slot),
            (_, DIFF) => StoreNode::Diff(slot),
            _ => StoreNode::Inside(slot),
        }
    }

    /// The inode number. Files inside a layer have theirs from the layer's tree.
    pub(super) fn inode(self) -> INodeNo {
        let of = |slot: u32, low: u32| INodeNo(u64::from(slot) << 32 | u64::from(low));
        match self {
            StoreNode::Root => INodeNo::ROOT,
            StoreNode::Reference(number) => INodeNo(number),
            StoreNode::Layer(slot) => of(slot, DIRECTORY),
            StoreNode::Info(slot) => of(slot, INFO),
            StoreNode::Blob(slot) => of(slot, BLOB),
            StoreNode::Diff(slot) | StoreNode::Inside(slot) => of(slot, DIFF),
        }
    }

    /// The slot of a layer.
    pub(super) fn slot(self) -> Option<u32> {
        match self {
            StoreNode::Root | StoreNode::Reference(_) => None,
            StoreNode::Layer(slot)
            | StoreNode::Info(slot)
            | StoreNode::Blob(slot)
            | StoreNode::Diff(slot)
            | StoreNode::Inside(slot) => Some(slot),
        }
    }
}

/// Whether a number stands for a directory or file of the store that is outside of all layers.
pub(in super::super) fn is_of_store(inode: u64) -> bool {
    !matches!(StoreNode::of(INodeNo(inode)), StoreNode::Diff(_) | StoreNode::Inside(_))
}

/// An image's name.
pub(super) struct NamedImage {
    /// In base64, as in the file system.
    pub name: String,
    pub reference: Arc<str>,
    lookups: u64,
}

/// A layer that was looked up.
pub(super) struct Slot {
    pub number: u32,
    /// The number of its reference.
    pub parent: u64,
    pub reference: Arc<str>,
    pub layer: Digest,
    pub open: OnceCell<OpenSlot>,
    /// Identifies the layer's tree. An earlier server may have shown it.
    pub identity: OnceLock<Digest>,
    /// How often the kernel has looked up its directory, its files, and the root of its tree,
    /// without those that it has forgotten.
    lookups: AtomicU64,
}

impl Slot {
    /// Whether an earlier server told the kernel of it.
    pub(super) fn is_restored(&self) -> bool {
        self.lookups.load(Ordering::Relaxed) > UNKNOWN_LOOKUPS / 2
    }
}

/// An open layer.
pub(super) struct OpenSlot {
    pub files: ImageFs,
    pub layer: StoredLayer,
}

/// Which numbers stand for which images and layers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownNames {
    last_reference: u64,
    last_slot: u32,
    references: Vec<KnownReference>,
    layers: Vec<KnownLayer>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KnownReference {
    number: u64,
    name: String,
    reference: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KnownLayer {
    slot: u32,
    parent: u64,
    layer: Digest,
    /// Identifies the tree. None if the layer was not open yet.
    tree: Option<Digest>,
}

/// All that is known.
#[derive(Default)]
pub(super) struct Nodes {
    references: HashMap<u64, NamedImage>,
    by_name: HashMap<String, u64>,
    slots: HashMap<u32, Arc<Slot>>,
    by_layer: HashMap<(u64, Digest), u32>,
    last_reference: u64,
    last_slot: u32,
}

impl Nodes {
    /// What another server told the kernel.
    pub(super) fn restored(known: &KnownNames) -> Nodes {
        let KnownNames { last_reference, last_slot, .. } = *known;
        let mut nodes = Nodes { last_reference, last_slot, ..Nodes::default() };
        for KnownReference { number, name, reference } in &known.references {
            nodes.by_name.insert(name.clone(), *number);
            let name = name.clone();
            let reference = reference.as_str().into();
            nodes
                .references
                .insert(*number, NamedImage { name, reference, lookups: UNKNOWN_LOOKUPS });
        }
        for KnownLayer { slot, parent, layer, tree } in &known.layers {
            let Some(reference) = nodes.reference_at(*parent) else { continue };
            let identity = tree.map_or_else(OnceLock::new, OnceLock::from);
            let open = OnceCell::new();
            let lookups = AtomicU64::new(UNKNOWN_LOOKUPS);
            let restored = Slot {
                number: *slot,
                parent: *parent,
                reference,
                layer: *layer,
                open,
                identity,
                lookups,
            };
            nodes.slots.insert(*slot, Arc::new(restored));
            nodes.by_layer.insert((*parent, *layer), *slot);
        }
        nodes
    }

    /// What another server needs to take over.
    pub(super) fn known_names(&self) -> KnownNames {
        let references = self.references.iter().map(|(number, image)| KnownReference {
            number: *number,
            name: image.name.clone(),
            reference: image.reference.to_string(),
        });
        let layers = self.slots.values().map(|slot| KnownLayer {
            slot: slot.number,
            parent: slot.parent,
            layer: slot.layer,
            tree: slot.identity.get().copied(),
        });
        KnownNames {
            last_reference: self.last_reference,
            last_slot: self.last_slot,
            references: references.collect(),
            layers: layers.collect(),
        }
    }

    /// All layers that were looked up.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.slots.values()
    }

    /// Whether an image's name was looked up before: in base64.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// No runtime uses a layer any more. If an earlier server was asked for it, it is not known how
    /// often, but nothing needs it now.
    pub(super) fn released(&mut self, number: u32) {
        if let Some(slot) = self.slots.get(&number).filter(|slot| slot.is_restored()) {
            slot.lookups.store(0, Ordering::Relaxed);
        }
    }

    /// Looks up an image's name, which is `name` in base64.
    pub(super) fn reference(&mut self, name: &str, reference: &str) -> StoreNode {
        let number = match self.by_name.entry(name.to_owned()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let number = FIRST_REFERENCE + self.last_reference;
                self.last_reference += 1;
                let entry =
                    NamedImage { name: name.to_owned(), reference: reference.into(), lookups: 0 };
                self.references.insert(number, entry);
                *new.insert(number)
            }
        };
        if let Some(reference) = self.references.get_mut(&number) {
            reference.lookups += 1;
        }
        StoreNode::Reference(number)
    }

    /// The image's name with this number.
    pub(super) fn reference_at(&self, number: u64) -> Option<Arc<str>> {
        Some(Arc::clone(&self.references.get(&number)?.reference))
    }

    /// The slot of a layer that was looked up before.
    pub(super) fn known(&self, parent: u64, layer: &Digest) -> Option<Arc<Slot>> {
        self.slot(*self.by_layer.get(&(parent, *layer))?)
    }

    /// The slot of a layer, which is new if there is none.
    pub(super) fn add(&mut self, parent: u64, layer: Digest) -> Option<Arc<Slot>> {
        if let Some(known) = self.known(parent, &layer) {
            return Some(known);
        }
        let reference = self.reference_at(parent)?;
        let number = self.last_slot.checked_add(1)?;
        self.last_slot = number;
        let open = OnceCell::new();
        let identity = OnceLock::new();
        let lookups = AtomicU64::new(0);
        let slot = Arc::new(Slot { number, parent, reference, layer, open, identity, lookups });
        self.slots.insert(number, Arc::clone(&slot));
        self.by_layer.insert((parent, layer), number);
        Some(slot)
    }

    pub(super) fn slot(&self, number: u32) -> Option<Arc<Slot>> {
        self.slots.get(&number).cloned()
    }

    /// The names in the root directory, or in that of an image's name.
    pub(super) fn names(&self, directory: StoreNode) -> Vec<(String, StoreNode)> {
        let mut names: Vec<(String, StoreNode)> = match directory {
            StoreNode::Root => {
                let name = |(number, entry): (&u64, &NamedImage)| {
                    (entry.name.clone(), StoreNode::Reference(*number))
                };
                self.references.iter().map(name).collect()
            }
            StoreNode::Reference(parent) => {
                let inside = self.by_layer.iter().filter(|((of, _), _)| *of == parent);
                inside
                    .map(|((_, layer), slot)| (layer.to_string(), StoreNode::Layer(*slot)))
                    .collect()
            }
            _ => Vec::new(),
        };
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        names
    }

    /// The kernel has looked up a node.
    pub(super) fn looked_up(&mut self, node: StoreNode) {
        match node {
            StoreNode::Reference(number) => {
                if let Some(reference) = self.references.get_mut(&number) {
                    reference.lookups += 1;
                }
            }
            node => {
                if let Some(slot) = node.slot().and_then(|slot| self.slots.get(&slot)) {
                    slot.lookups.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The kernel has forgotten `count` of the times that it has looked up a node.
    pub(super) fn forgotten(&mut self, node: StoreNode, count: u64) {
        match node {
            StoreNode::Root | StoreNode::Inside(_) => {}
            StoreNode::Reference(number) => {
                if let Some(reference) = self.references.get_mut(&number) {
                    reference.lookups = reference.lookups.saturating_sub(count);
                }
                self.drop_reference(number);
            }
            node => {
                let slot = node.slot().and_then(|slot| self.slots.get(&slot));
                // Changes happen only here and in `looked_up`, one at a time.
                let subtract = |lookups: u64| Some(lookups.saturating_sub(count));
                if let Some(slot) = slot {
                    let _ =
                        slot.lookups.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
                }
            }
        }
    }

    /// Closes a layer that the kernel does not know, if no runtime uses it.
    pub(super) fn tidy(&mut self, number: u32, is_used: bool) {
        let Some(slot) = self.slots.get(&number) else { return };
        if is_used || slot.lookups.load(Ordering::Relaxed) > 0 {
            return;
        }
        let parent = slot.parent;
        self.by_layer.remove(&(parent, slot.layer));
        self.slots.remove(&number);
        self.drop_reference(parent);
    }

    fn drop_reference(&mut self, number: u64) {
        let Some(reference) = self.references.get(&number) else { return };
        if reference.lookups == 0 && !self.by_layer.keys().any(|(parent, _)| *parent == number) {
            self.by_name.remove(&reference.name);
            self.references.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_to_nodes() {
        let nodes = [
            StoreNode::Root,
            StoreNode::Reference(2),
            StoreNode::Reference(u64::from(u32::MAX)),
            StoreNode::Layer(1),
            StoreNode::Info(1),
            StoreNode::Blob(u32::MAX),
            StoreNode::Diff(7),
        ];
        for node in nodes {
            assert_eq!(StoreNode::of(node.inode()), node);
        }
        assert_eq!(StoreNode::of(INodeNo(7 << 32 | 2)), StoreNode::Inside(7));
    }

    #[test]
    fn another_server_has_the_same_numbers() {
        let mut nodes = Nodes::default();
        let layer = Digest::sha256(b"layer");
        let other = Digest::sha256(b"other");
        let tree = Digest::sha256(b"tree");
        let StoreNode::Reference(parent) = nodes.reference("YQ==", "a") else {
            panic!("a reference")
        };
        let first = nodes.add(parent, layer).unwrap();
        first.identity.set(tree).unwrap();
        let second = nodes.add(parent, other).unwrap().number;
        let known = nodes.known_names();
        let known: KnownNames =
            serde_json::from_slice(&serde_json::to_vec(&known).unwrap()).unwrap();
        let mut restored = Nodes::restored(&known);
        assert_eq!(restored.reference("YQ==", "a"), StoreNode::Reference(parent));
        let node = restored.known(parent, &layer).unwrap();
        assert_eq!((node.number, node.identity.get()), (first.number, Some(&tree)));
        assert_eq!(restored.known(parent, &other).unwrap().identity.get(), None);
        assert_eq!(restored.add(parent, tree).unwrap().number, second + 1, "not used again");
        // It is not known how often the kernel has looked it up.
        restored.forgotten(StoreNode::Diff(first.number), 5);
        restored.tidy(first.number, false);
        assert!(restored.slot(first.number).is_some());
        restored.released(first.number);
        restored.tidy(first.number, false);
        assert!(restored.slot(first.number).is_none());
    }

    #[test]
    fn what_nobody_uses_or_knows_is_gone() {
        let mut nodes = Nodes::default();
        let layer = Digest::sha256(b"layer");
        let StoreNode::Reference(parent) = nodes.reference("YQ==", "a") else {
            panic!("a reference")
        };
        let slot = nodes.add(parent, layer).unwrap().number;
        assert_eq!(nodes.add(parent, layer).unwrap().number, slot);
        nodes.looked_up(StoreNode::Layer(slot));
        nodes.looked_up(StoreNode::Diff(slot));
        nodes.forgotten(StoreNode::Layer(slot), 1);
        nodes.tidy(slot, false);
        assert!(nodes.slot(slot).is_some(), "the kernel knows its files");
        nodes.forgotten(StoreNode::Diff(slot), 1);
        nodes.tidy(slot, true);
        assert!(nodes.slot(slot).is_some(), "a runtime uses it");
        nodes.forgotten(StoreNode::Reference(parent), 1);
        assert!(nodes.reference_at(parent).is_some(), "it has a layer");
        nodes.tidy(slot, false);
        assert!(nodes.slot(slot).is_none() && nodes.reference_at(parent).is_none());
        // Numbers are not used again.
        let StoreNode::Reference(again) = nodes.reference("YQ==", "a") else {
            panic!("a reference")
        };
        assert_ne!(again, parent);
        assert_ne!(nodes.add(again, layer).unwrap().number, slot);
    }
}
