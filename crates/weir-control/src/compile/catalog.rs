//! The compiled parts of a list of resources, in blocks. A block whose resources are all unchanged is reused whole, so that the
//! cost of a change depends on the size of a block and not on that of the list.

use std::collections::HashSet;
use std::sync::Arc;

use foldhash::HashMap;
use weir_plugin::Declaration;

use super::dependencies::Dependencies;
use crate::text::fingerprint::Fingerprint;

/// The most parts in a block of a long list. In a short list, a block has about as many parts as there are blocks.
const MOST: usize = 256;

/// The compiled form of one resource.
pub(super) trait CompiledPart: Clone {
    fn number(&self) -> usize;
    /// The inputs besides the text of the resource. `None` if it must be compiled again in any case.
    fn depends_on(&self) -> Option<Dependencies>;
    /// The declarations of its plugins.
    fn declarations(&self) -> Option<&Arc<[Declaration]>>;
}

/// The parts in the order of the document, each with a number of its own.
pub(super) struct Catalog<T> {
    blocks: Vec<Arc<Block<T>>>,
    numbers: Numbers,
}

/// A run of consecutive parts of a catalog.
pub(super) struct Block<T> {
    /// The fingerprint of each resource, at the index of its part.
    contents: Box<[Fingerprint]>,
    parts: Box<[IdentifiedPart<T>]>,
    /// The inputs of all of its parts together; `None` if one of them must be compiled again in any case.
    depends_on: Option<Dependencies>,
    /// The declarations of the plugins of its parts, without duplicates.
    declarations: Box<[Arc<[Declaration]>]>,
}

#[derive(Clone)]
struct IdentifiedPart<T> {
    /// The fingerprint of the kind and id of the resource.
    identity: Fingerprint,
    part: T,
}

#[derive(Clone, Default)]
struct Numbers {
    /// All numbers from this one on are free,
    next: usize,
    /// and these as well.
    free: Vec<usize>,
}

/// Builds a catalog, and finds parts of the previous one by their identity. Since successive documents are similar, it first
/// looks at the part after the last one found.
pub(super) struct Cataloger<'a, T> {
    before: &'a [Arc<Block<T>>],
    /// The position of the part expected next: its block, and its index in it.
    next: (usize, usize),
    /// The use of each previous block, at the same index.
    uses: Vec<BlockUse>,
    by_identity: Option<HashMap<Fingerprint, (usize, usize)>>,
    blocks: Vec<Arc<Block<T>>>,
    /// The fingerprints and the parts after these blocks, which are in no block yet.
    contents: Vec<Fingerprint>,
    parts: Vec<IdentifiedPart<T>>,
    /// The most parts in a block.
    most: usize,
    numbers: Numbers,
    /// Numbers that become free when the catalog is complete.
    released: Vec<usize>,
}

/// Which parts of a previous block are reused.
#[derive(Clone)]
enum BlockUse {
    None,
    Whole,
    Some(Box<[bool]>),
}

impl<T: CompiledPart> Block<T> {
    fn new(contents: Vec<Fingerprint>, parts: Vec<IdentifiedPart<T>>) -> Block<T> {
        let of_each = parts.iter().map(|one| one.part.depends_on());
        let depends_on = of_each.reduce(|all, one| Some(all?.and(one?))).flatten();
        let mut seen: HashSet<&[Declaration]> = HashSet::new();
        let declarations = parts
            .iter()
            .filter_map(|one| one.part.declarations())
            .filter(|declarations| seen.insert(declarations))
            .cloned();
        let declarations = declarations.collect();
        Block { contents: contents.into(), depends_on, declarations, parts: parts.into() }
    }

    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn parts(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.parts.iter().map(|one| &one.part)
    }

    pub(super) fn declarations(&self) -> &[Arc<[Declaration]>] {
        &self.declarations
    }
}

impl<'a, T: CompiledPart> Cataloger<'a, T> {
    /// `count`: the expected number of parts. `before`: the previous catalog.
    pub(super) fn new(count: usize, before: Option<&'a Catalog<T>>) -> Self {
        let (blocks, numbers) = before.map_or((&[][..], Numbers::default()), |it| (&*it.blocks, it.numbers.clone()));
        Cataloger {
            before: blocks,
            next: (0, 0),
            uses: vec![BlockUse::None; blocks.len()],
            by_identity: None,
            blocks: Vec::with_capacity(blocks.len() + 1),
            contents: Vec::new(),
            parts: Vec::new(),
            most: count.isqrt().next_power_of_two().clamp(4, MOST),
            numbers,
            released: Vec::new(),
        }
    }

    /// The block expected next, if all of it can be reused: all of its inputs are `unchanged`, and `follow` says that the
    /// resources that follow in the document begin with those of the block, by their fingerprints.
    pub(super) fn next_block(
        &self,
        unchanged: Dependencies,
        follow: impl FnOnce(&[Fingerprint]) -> bool,
    ) -> Option<&'a Block<T>> {
        let (at, 0) = self.next else { return None };
        let block = &**self.before.get(at)?;
        let is_free = matches!(self.uses[at], BlockUse::None);
        let is_unchanged = block.depends_on?.are_among(unchanged);
        // Smaller blocks are split up, and their parts joined to the neighbouring blocks.
        let fewest = self.most / 4;
        let is_worth_it = block.len() >= fewest && (self.parts.is_empty() || self.parts.len() >= fewest);
        (is_free && is_unchanged && is_worth_it && follow(&block.contents)).then_some(block)
    }

    /// Reuses the block that [`Cataloger::next_block`] has returned.
    pub(super) fn take_block(&mut self) {
        self.close_blocks();
        let at = self.next.0;
        self.blocks.push(Arc::clone(&self.before[at]));
        self.uses[at] = BlockUse::Whole;
        self.next = (at + 1, 0);
    }

    /// The part with this identity in the previous catalog; each is returned only once.
    pub(super) fn find(&mut self, identity: Fingerprint) -> Option<&'a T> {
        let before = self.before;
        let at = match self.at_next() {
            Some(expected) if expected.identity == identity => self.next,
            _ => *self.by_identity.get_or_insert_with(|| places(before)).get(&identity)?,
        };
        let block = &before[at.0];
        let is_used = match &mut self.uses[at.0] {
            BlockUse::Whole => return None,
            BlockUse::Some(parts) => &mut parts[at.1],
            none => {
                *none = BlockUse::Some(vec![false; block.len()].into());
                let BlockUse::Some(parts) = none else { unreachable!("set above") };
                &mut parts[at.1]
            }
        };
        if std::mem::replace(is_used, true) {
            return None;
        }
        self.next = if at.1 + 1 < block.len() { (at.0, at.1 + 1) } else { (at.0 + 1, 0) };
        Some(&block.parts[at.1].part)
    }

    /// The previous part that is expected next.
    pub(super) fn expected(&self) -> Option<&'a T> {
        self.at_next().map(|one| &one.part)
    }

    fn at_next(&self) -> Option<&'a IdentifiedPart<T>> {
        self.before.get(self.next.0)?.parts.get(self.next.1)
    }

    pub(super) fn new_number(&mut self) -> usize {
        self.numbers.free.pop().unwrap_or_else(|| {
            self.numbers.next += 1;
            self.numbers.next - 1
        })
    }

    /// Frees a number that belongs to no part, once the catalog is complete.
    pub(super) fn release(&mut self, number: usize) {
        self.released.push(number);
    }

    pub(super) fn add(&mut self, identity: Fingerprint, content: Fingerprint, part: T) {
        self.contents.push(content);
        self.parts.push(IdentifiedPart { identity, part });
        if self.parts.len() >= 2 * self.most {
            self.close_blocks();
        }
    }

    /// Turns the parts that are in no block yet into blocks.
    fn close_blocks(&mut self) {
        let (mut contents, mut parts) = (std::mem::take(&mut self.contents), std::mem::take(&mut self.parts));
        while !parts.is_empty() {
            let first = if parts.len() > self.most { parts.len().div_ceil(2).min(self.most) } else { parts.len() };
            let rest = (contents.split_off(first), parts.split_off(first));
            self.blocks.push(Arc::new(Block::new(contents, parts)));
            (contents, parts) = rest;
        }
    }

    /// Returns the new catalog, and the previous parts that were not reused, whose numbers are free from then on.
    pub(super) fn finish(mut self) -> (Catalog<T>, Vec<&'a T>) {
        self.close_blocks();
        let mut gone = Vec::new();
        for (block, used) in self.before.iter().zip(&self.uses) {
            match used {
                BlockUse::Whole => {}
                BlockUse::None => gone.extend(block.parts()),
                BlockUse::Some(used) => {
                    gone.extend(block.parts().zip(used).filter(|(_, is_used)| !**is_used).map(|(part, _)| part));
                }
            }
        }
        self.numbers.free.extend(gone.iter().map(|part| part.number()).chain(self.released));
        (Catalog { blocks: self.blocks, numbers: self.numbers }, gone)
    }
}

fn places<T>(blocks: &[Arc<Block<T>>]) -> HashMap<Fingerprint, (usize, usize)> {
    let in_block = |(at, block): (usize, &Arc<Block<T>>)| {
        let identities: Vec<Fingerprint> = block.parts.iter().map(|one| one.identity).collect();
        identities.into_iter().enumerate().map(move |(index, identity)| (identity, (at, index)))
    };
    blocks.iter().enumerate().flat_map(in_block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl CompiledPart for usize {
        fn number(&self) -> usize {
            *self
        }

        fn depends_on(&self) -> Option<Dependencies> {
            Some(Dependencies::default())
        }

        fn declarations(&self) -> Option<&Arc<[Declaration]>> {
            None
        }
    }

    fn of(name: impl std::hash::Hash) -> Fingerprint {
        Fingerprint::of(name)
    }

    fn catalog(before: Option<&Catalog<usize>>, names: &[&str]) -> (Catalog<usize>, Vec<usize>, Vec<usize>) {
        let mut cataloger = Cataloger::new(names.len(), before);
        let mut numbers = Vec::new();
        for name in names {
            let number = cataloger.find(of(name)).copied().unwrap_or_else(|| cataloger.new_number());
            cataloger.add(of(name), of(name), number);
            numbers.push(number);
        }
        let (catalog, gone) = cataloger.finish();
        (catalog, numbers, gone.into_iter().copied().collect())
    }

    #[test]
    fn parts_keep_their_numbers_wherever_they_stand() {
        let (first, numbers, _) = catalog(None, &["a", "b", "c"]);
        assert_eq!(numbers, [0, 1, 2]);
        let (second, numbers, gone) = catalog(Some(&first), &["c", "new", "a"]);
        assert_eq!((numbers, gone), (vec![2, 3, 0], vec![1]));
        let (_, numbers, gone) = catalog(Some(&second), &["a", "b", "b", "c"]);
        assert_eq!((numbers, gone), (vec![0, 1, 4, 2], vec![3]));
    }

    /// Returns also how many parts were looked at one by one.
    fn by_blocks(before: Option<&Catalog<usize>>, names: &[usize]) -> (Catalog<usize>, usize, Vec<usize>) {
        let contents: Vec<Fingerprint> = names.iter().map(of).collect();
        let mut cataloger = Cataloger::new(names.len(), before);
        let (mut index, mut looked_at) = (0, 0);
        while index < names.len() {
            if let Some(block) =
                cataloger.next_block(Dependencies::default(), |block| contents[index..].starts_with(block))
            {
                index += block.len();
                cataloger.take_block();
                continue;
            }
            looked_at += 1;
            let identity = contents[index];
            let number = cataloger.find(identity).copied().unwrap_or_else(|| cataloger.new_number());
            cataloger.add(identity, identity, number);
            index += 1;
        }
        let (catalog, gone) = cataloger.finish();
        let all: usize = catalog.blocks.iter().map(|block| block.len()).sum();
        assert_eq!(all, names.len());
        (catalog, looked_at, gone.into_iter().copied().collect())
    }

    #[test]
    fn a_change_costs_its_block_and_blocks_stay_of_a_size() {
        let mut names: Vec<usize> = (0..10_000).collect();
        let (mut before, looked_at, _) = by_blocks(None, &names);
        assert_eq!(looked_at, 10_000);
        for edit in 0..600 {
            let gone = match edit % 3 {
                0 => vec![names.remove(3_000)],
                1 => vec![std::mem::replace(&mut names[5_000], 20_000 + edit)],
                _ => {
                    names.insert(5_000, 20_000 + edit);
                    vec![]
                }
            };
            let (after, looked_at, now_gone) = by_blocks(Some(&before), &names);
            assert_eq!(now_gone.len(), gone.len());
            let most = 128;
            assert!(looked_at <= 3 * most, "{looked_at}");
            let small = after.blocks.iter().filter(|block| block.len() < most / 4).count();
            assert!(small <= 1 && after.blocks.iter().all(|block| block.len() <= most), "{small}");
            before = after;
        }
    }
}
