use std::{fmt, panic::Location};

use smallvec::SmallVec;

use super::{Attr, BlockId, Name, Var};

/// The variables of one slot.
pub type Args = SmallVec<[Var; 4]>;

/// The slots of an operator with their variables, in alphabetical order: the order in which gradients are visited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slots(SmallVec<[(Name, Args); 3]>);

impl Slots {
    /// Sets the variables of a slot.
    pub fn set(&mut self, slot: impl Into<Name>, args: impl IntoIterator<Item = Var>) {
        let (slot, args) = (slot.into(), args.into_iter().collect());
        match self.0.iter().rposition(|(s, _)| *s <= slot) {
            Some(i) if self.0[i].0 == slot => self.0[i].1 = args,
            Some(i) => self.0.insert(i + 1, (slot, args)),
            None => self.0.insert(0, (slot, args)),
        }
    }

    /// Adds a variable to a slot.
    pub(crate) fn push(&mut self, slot: &'static str, var: Var) {
        match self.0.iter_mut().find(|(s, _)| *s == slot) {
            Some((_, args)) => args.push(var),
            None => self.set(slot, [var]),
        }
    }

    /// The variables of a slot, if there is such a slot.
    pub fn find(&self, slot: &str) -> Option<&[Var]> {
        self.0.iter().find(|(s, _)| *s == slot).map(|(_, args)| args.as_slice())
    }

    /// The variables of a slot; none when there is no such slot.
    pub fn get(&self, slot: &str) -> &[Var] {
        self.find(slot).unwrap_or_default()
    }

    /// Slots with their variables.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Name, &[Var])> {
        self.0.iter().map(|(s, args)| (*s, args.as_slice()))
    }

    /// All variables, slot by slot.
    pub fn args(&self) -> impl DoubleEndedIterator<Item = Var> + '_ {
        self.0.iter().flat_map(|(_, args)| args.iter().copied())
    }

    /// All variables, to be replaced.
    pub fn args_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Var> {
        self.0.iter_mut().flat_map(|(_, args)| args.iter_mut())
    }

    /// The slot that a variable is in.
    pub fn slot_of(&self, var: Var) -> Option<Name> {
        self.iter().find(|(_, args)| args.contains(&var)).map(|(slot, _)| slot)
    }
}

/// The attributes of an operator, in alphabetical order.
#[derive(Clone, Default, Debug, PartialEq)]
pub struct AttrMap(Vec<(Name, Attr)>);

impl AttrMap {
    /// Sets an attribute.
    pub fn set(&mut self, name: impl Into<Name>, value: Attr) {
        let name = name.into();
        match self.0.binary_search_by_key(&name, |(n, _)| *n) {
            Ok(i) => self.0[i].1 = value,
            Err(i) => self.0.insert(i, (name, value)),
        }
    }

    /// The value of an attribute.
    pub fn get(&self, name: &str) -> Option<&Attr> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, a)| a)
    }

    /// Removes an attribute; afterwards it has its default value.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| *n != name);
    }

    /// Names with values.
    pub fn iter(&self) -> impl Iterator<Item = (Name, &Attr)> {
        self.0.iter().map(|(n, a)| (*n, a))
    }

    /// Sub-blocks among the attributes.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.0
            .iter()
            .flat_map(|(_, a)| match a {
                Attr::Block(b) => std::slice::from_ref(b),
                Attr::Blocks(bs) => bs.as_slice(),
                _ => &[],
            })
            .copied()
    }
}
/// The source line that added an operator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// In this binary.
    Here(&'static Location<'static>),
    /// `file:line`, read from a file.
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

/// Why an operator is in the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The model says so.
    #[default]
    Model,
    /// It starts the backward part: the derivative of the loss with respect to itself.
    Seed,
    /// It is (part of) the gradient of the operator with that index in the same block, or in the one that its block is
    /// the gradient of.
    Gradient {
        /// Index of the forward operator.
        of: usize,
    },
    /// It adds up the contributions to one gradient.
    Accumulate,
    /// It supplies the zero gradient of something that nothing depends on.
    ZeroFill,
    /// It copies a value that the backward part needs, before another operator overwrites it.
    Kept,
    /// It computes again what the operator with that index in the same block has computed and nobody has kept.
    Recompute {
        /// Index of the forward operator.
        of: usize,
    },
}

/// An operator as data: its type, which variables sit in its slots, its attributes.
#[derive(Clone, Debug, PartialEq)]
pub struct OpDesc {
    /// Operator type, as registered.
    pub ty: Name,
    /// What it reads.
    pub inputs: Slots,
    /// What it writes.
    pub outputs: Slots,
    /// Attributes, sub-blocks among them.
    pub attrs: AttrMap,
    /// The source line that added it; gradient operators have that of their forward operator.
    pub site: Option<Site>,
    /// Why it is there.
    pub origin: Origin,
}

impl OpDesc {
    /// An operator with nothing in its slots.
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

    /// With these variables in an input slot.
    #[must_use]
    pub fn input(mut self, slot: impl Into<Name>, args: impl IntoIterator<Item = Var>) -> OpDesc {
        self.inputs.set(slot, args);
        self
    }

    /// With these variables in an output slot.
    #[must_use]
    pub fn output(mut self, slot: impl Into<Name>, args: impl IntoIterator<Item = Var>) -> OpDesc {
        self.outputs.set(slot, args);
        self
    }

    /// With this attribute.
    #[must_use]
    pub fn attr(mut self, name: impl Into<Name>, value: Attr) -> OpDesc {
        self.attrs.set(name, value);
        self
    }

    /// All variables it reads, `@EMPTY@` left out.
    pub fn reads(&self) -> impl DoubleEndedIterator<Item = Var> + '_ {
        self.inputs.args().filter(|v| *v != Var::EMPTY)
    }

    /// All variables it writes, `@EMPTY@` left out.
    pub fn writes(&self) -> impl DoubleEndedIterator<Item = Var> + '_ {
        self.outputs.args().filter(|v| *v != Var::EMPTY)
    }
}
