//! Operators as data: slots, attributes, source lines and origins.

use std::{fmt, ops::Range, panic::Location, sync::Arc};

use smallvec::SmallVec;

use super::{Attr, BlockId, Name, Var};

/// The variables of one slot.
pub type SlotVars = SmallVec<[Var; 4]>;

/// The slots of an operator with their variables, in alphabetical order, in which gradients are visited.
#[derive(Default, PartialEq)]
pub struct Slots {
    /// Slot names, each with the end of its range in `args`. Copies share them until one changes: most operators of a
    /// large program have the slots of an earlier one.
    names: Option<Arc<SlotNames>>,
    /// The variables of all slots in one array. Passes over programs read it without the names.
    args: SlotVars,
}

type SlotNames = SmallVec<[(Name, u32); 3]>;

impl Slots {
    fn names(&self) -> &[(Name, u32)] {
        self.names.as_ref().map_or(&[], |names| names.as_slice())
    }

    fn names_mut(&mut self) -> &mut SlotNames {
        Arc::make_mut(self.names.get_or_insert_default())
    }

    fn position(&self, slot: &str) -> Option<usize> {
        self.names().iter().position(|(s, _)| *s == slot)
    }

    fn range(&self, position: usize) -> Range<usize> {
        let names = self.names();
        let start = position.checked_sub(1).map_or(0, |before| names[before].1);
        start as usize..names[position].1 as usize
    }

    /// Sets the variables of a slot.
    pub fn set(&mut self, slot: impl Into<Name>, args: impl IntoIterator<Item = Var>) {
        let slot = slot.into();
        let names = self.names_mut();
        let position = match names.iter().rposition(|(s, _)| *s <= slot) {
            Some(i) if names[i].0 == slot => i,
            before => {
                let position = before.map_or(0, |before| before + 1);
                let start = before.map_or(0, |before| names[before].1);
                names.insert(position, (slot, start));
                position
            }
        };
        let range = self.range(position);
        let behind = SlotVars::from_slice(&self.args[range.end..]);
        self.args.truncate(range.start);
        args.into_iter().for_each(|var| self.args.push(var));
        let end = self.args.len();
        self.args.extend_from_slice(&behind);
        let names = self.names_mut();
        names[position].1 = end as u32;
        for (_, other) in &mut names[position + 1..] {
            *other = (*other as usize - range.end + end) as u32;
        }
    }

    /// As [`set`](Slots::set); faster if the slot is the last in alphabetical order.
    pub(crate) fn append(&mut self, slot: &'static str, args: impl IntoIterator<Item = Var>) {
        if self.names().last().is_some_and(|(last, _)| **last >= *slot) {
            return self.set(slot, args);
        }
        args.into_iter().for_each(|var| self.args.push(var));
        let end = self.args.len() as u32;
        self.names_mut().push((slot.into(), end));
    }

    /// Adds a variable to a slot.
    pub(crate) fn push(&mut self, slot: &'static str, var: Var) {
        let Some(position) = self.position(slot) else { return self.set(slot, [var]) };
        self.args.insert(self.range(position).end, var);
        self.names_mut()[position..].iter_mut().for_each(|(_, end)| *end += 1);
    }

    /// Keeps the variables that fulfil `keep`.
    pub fn retain(&mut self, mut keep: impl FnMut(Var) -> bool) {
        let Some(names) = &mut self.names else { return };
        let (mut start, mut kept) = (0, 0);
        for (_, end) in Arc::make_mut(names) {
            for i in start..*end as usize {
                if keep(self.args[i]) {
                    self.args[kept] = self.args[i];
                    kept += 1;
                }
            }
            start = *end as usize;
            *end = kept as u32;
        }
        self.args.truncate(kept);
    }

    /// The variables of a slot, if the slot exists.
    pub fn find(&self, slot: &str) -> Option<&[Var]> {
        let mut start = 0;
        for (name, end) in self.names() {
            if *name == slot {
                return self.args.get(start..*end as usize);
            }
            start = *end as usize;
        }
        None
    }

    /// The variables of a slot; empty if the slot does not exist.
    pub fn get(&self, slot: &str) -> &[Var] {
        self.find(slot).unwrap_or_default()
    }

    /// Slots with their variables, in alphabetical order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Name, &[Var])> {
        let names = self.names().iter().enumerate();
        names.map(|(position, (name, _))| (*name, &self.args[self.range(position)]))
    }

    /// All variables, slot by slot.
    #[inline]
    pub fn args(&self) -> impl DoubleEndedIterator<Item = Var> + '_ {
        self.args.iter().copied()
    }

    /// All variables, mutably.
    pub fn args_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Var> {
        self.args.iter_mut()
    }

    /// Whether both fill the same slots at the same positions, with any variables.
    pub(crate) fn fills_as(&self, other: &Slots) -> bool {
        let (own, others) = (self.args.as_slice(), other.args.as_slice());
        let mut pairs = own.iter().zip(others);
        own.len() == others.len()
            && self.names == other.names
            && pairs.all(|(a, b)| (*a == Var::EMPTY) == (*b == Var::EMPTY))
    }

    /// The slot that contains a variable.
    pub fn slot_of(&self, var: Var) -> Option<Name> {
        self.iter().find(|(_, args)| args.contains(&var)).map(|(slot, _)| slot)
    }
}

impl Clone for Slots {
    fn clone(&self) -> Slots {
        // `from_slice` copies bytes; the derived implementation iterates.
        Slots { names: self.names.clone(), args: SlotVars::from_slice(&self.args) }
    }
}
impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// The attributes of an operator, in alphabetical order. Copies share them until one changes: most gradient operators
/// have the attributes of their forward operator, and plans describe all operators.
#[derive(Clone, Default)]
pub struct AttrMap(Option<Arc<AttrList>>);

type AttrList = SmallVec<[(Name, Attr); 2]>;

impl AttrMap {
    fn all(&self) -> &[(Name, Attr)] {
        self.0.as_ref().map_or(&[], |all| all.as_slice())
    }

    /// Sets an attribute.
    pub fn set(&mut self, name: impl Into<Name>, value: Attr) {
        let (name, all) = (name.into(), Arc::make_mut(self.0.get_or_insert_default()));
        match all.binary_search_by_key(&name, |(n, _)| *n) {
            Ok(i) => all[i].1 = value,
            Err(i) => all.insert(i, (name, value)),
        }
    }

    /// The value of an attribute.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.all().iter().find(|(n, _)| *n == name).map(|(_, a)| a)
    }

    /// Removes an attribute, which then has its default value.
    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_some()
            && let Some(all) = &mut self.0
        {
            Arc::make_mut(all).retain(|(n, _)| *n != name);
        }
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (Name, &Attr)> {
        self.all().iter().map(|(n, a)| (*n, a))
    }

    /// Sub-blocks among the attributes.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.all()
            .iter()
            .flat_map(|(_, a)| match a {
                Attr::Block(b) => std::slice::from_ref(b),
                Attr::Blocks(bs) => bs.as_slice(),
                _ => &[],
            })
            .copied()
    }
}
impl PartialEq for AttrMap {
    fn eq(&self, other: &AttrMap) -> bool {
        // No pointer comparison: a NaN attribute differs from itself.
        self.all() == other.all()
    }
}
impl fmt::Debug for AttrMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AttrMap").field(&self.all()).finish()
    }
}

/// The source line that added an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// A line of this binary.
    Here(&'static Location<'static>),
    /// `file:line`, as read from a file.
    Loaded(Name),
}
impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Here(at) => write!(f, "{}:{}", at.file(), at.line()),
            Site::Loaded(at) => f.write_str(at),
        }
    }
}
impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The reason why an operator is in the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// It is part of the model.
    #[default]
    Model,
    /// It starts the backward pass: the gradient of the loss with respect to itself.
    Seed,
    /// It is the gradient of operator `of`, or a part of it; `of` is an index in this block or, in a gradient block, in
    /// its forward block.
    Gradient {
        /// Index of the forward operator.
        of: usize,
    },
    /// It adds up contributions to one gradient.
    Accumulate,
    /// It supplies the zero gradient of a value on which no target depends.
    ZeroFill,
    /// It copies a value that the backward pass needs, before another operator overwrites it.
    Kept,
    /// It recomputes the operator with this index in the same block, whose result was not kept.
    Recompute {
        /// Index of the forward operator.
        of: usize,
    },
    /// It replaces gradients by their sums over all ranks.
    AllReduce,
}

/// An operator as data: its type, the variables in its slots, its attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct OpDesc {
    /// Operator type, as registered.
    pub ty: Name,
    /// Variables that it reads.
    pub inputs: Slots,
    /// Variables that it writes.
    pub outputs: Slots,
    /// Attributes, including sub-blocks.
    pub attrs: AttrMap,
    /// The source line that added it; a gradient operator has the source line of its forward operator.
    pub site: Option<Site>,
    /// The reason why it is in the program.
    pub origin: Origin,
}

impl OpDesc {
    /// An operator with empty slots.
    pub fn new(ty: impl Into<Name>) -> OpDesc {
        OpDesc {
            ty: ty.into(),
            inputs: Slots::default(),
            outputs: Slots::default(),
            attrs: AttrMap::default(),
            site: None,
            origin: Origin::Model,
        }
    }

    /// Sets the variables of an input slot.
    #[must_use]
    pub fn input(mut self, slot: impl Into<Name>, args: impl IntoIterator<Item = Var>) -> OpDesc {
        self.inputs.set(slot, args);
        self
    }

    /// Sets the variables of an output slot.
    #[must_use]
    pub fn output(mut self, slot: impl Into<Name>, args: impl IntoIterator<Item = Var>) -> OpDesc {
        self.outputs.set(slot, args);
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn attr(mut self, name: impl Into<Name>, value: Attr) -> OpDesc {
        self.attrs.set(name, value);
        self
    }

    /// The path of the module that it is a part of, if it comes from a file whose nodes have paths:
    /// `transformer/h.0/attn` for the node `/transformer/h.0/attn/MatMul` of a file of ONNX.
    pub fn module(&self) -> Option<&str> {
        let Some(Site::Loaded(place)) = &self.site else { return None };
        let node = place.strip_prefix("node `")?.strip_suffix('`')?;
        Some(node.trim_start_matches('/').rsplit_once('/')?.0)
    }

    /// All variables it reads, without `@EMPTY@`.
    #[inline]
    pub fn reads(&self) -> impl DoubleEndedIterator<Item = Var> + '_ {
        self.inputs.args().filter(|v| *v != Var::EMPTY)
    }

    /// All variables it writes, without `@EMPTY@`.
    #[inline]
    pub fn writes(&self) -> impl DoubleEndedIterator<Item = Var> + '_ {
        self.outputs.args().filter(|v| *v != Var::EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_set_in_any_order_again_and_again() {
        let vars = |range: Range<usize>| range.map(Var::stand_in);
        // Random operations on the slots and on a map.
        let (mut slots, mut expected) = (Slots::default(), std::collections::BTreeMap::new());
        let mut state = 1_u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        for _ in 0..2000 {
            let (slot, start, len) = (["A", "B", "C", "D"][next(4)], 1 + next(9), next(4));
            match next(4) {
                0 => {
                    slots.push(slot, Var::stand_in(start));
                    expected.entry(slot).or_insert_with(Vec::new).push(Var::stand_in(start));
                }
                1 => {
                    slots.append(slot, vars(start..start + len));
                    expected.insert(slot, vars(start..start + len).collect());
                }
                _ => {
                    slots.set(slot, vars(start..start + len));
                    expected.insert(slot, vars(start..start + len).collect());
                }
            }
            let found: Vec<_> = slots.iter().map(|(slot, args)| (slot.as_str(), args.to_vec())).collect();
            assert_eq!(found, expected.clone().into_iter().collect::<Vec<_>>());
            assert!(expected.iter().all(|(slot, args)| slots.get(slot) == args.as_slice()));
            assert!(slots.fills_as(&slots.clone()) && slots == slots.clone());
            if next(10) == 0 {
                let keep = |var: Var| !var.index().is_multiple_of(3);
                slots.retain(keep);
                expected.values_mut().for_each(|args| args.retain(|var| keep(*var)));
                assert!(expected.iter().all(|(slot, args)| slots.get(slot) == args.as_slice()));
            }
            if next(40) == 0 {
                (slots, expected) = Default::default();
            }
        }
    }
}
