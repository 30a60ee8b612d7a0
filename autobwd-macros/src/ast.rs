//! The struct as an operator: a borrowing view of what the author wrote.
//!
//! Must not judge it: rules that need more than one token are in `check`.

use quote::ToTokens;
use syn::{Expr, Ident, ItemStruct, LitStr, Type};

pub(crate) struct Operator<'a> {
    pub(crate) item: &'a ItemStruct,
    pub(crate) ident: &'a Ident,
    /// What stands for the slots' content, `V`. Generated code uses the same name: it cannot hide anything that a
    /// field's type refers to.
    pub(crate) param: Ident,
    /// Name in programs.
    pub(crate) name: String,
    pub(crate) grad: &'a Type,
    /// Whose gradient operator it is.
    pub(crate) grad_of: Option<&'a Type>,
    pub(crate) pointwise: bool,
    /// `kernel`, where it is written.
    pub(crate) kernel: Option<&'a Ident>,
    /// `broadcast`, where it is written.
    pub(crate) broadcast: Option<&'a Ident>,
    /// `integers`, where it is written.
    pub(crate) integers: Option<&'a Ident>,
    /// `decomposed`, where it is written.
    pub(crate) decomposed: Option<&'a Ident>,
    /// `inferred`, where it is written.
    pub(crate) inferred: Option<&'a Ident>,
    pub(crate) doc: String,
    pub(crate) fields: Vec<Field<'a>>,
}

pub(crate) struct Field<'a> {
    pub(crate) original: &'a syn::Field,
    pub(crate) ident: &'a Ident,
    pub(crate) ty: &'a Type,
    /// `None` is a mistake, found by `check`.
    pub(crate) role: Option<Role>,
    /// Name in programs; of an inherited field, the field's.
    pub(crate) name: String,
    /// Whether it stands for a slot or attribute of the forward operator, which has the name in programs.
    pub(crate) inherited: bool,
    /// The name as the author gave it.
    pub(crate) literal: Option<LitStr>,
    /// First paragraph of the documentation.
    pub(crate) doc: String,
}

pub(crate) enum Role {
    Input {
        shape_only: bool,
        sparse: bool,
        array: bool,
    },
    /// Each names an input.
    Output {
        inplace: Option<Ident>,
        like: Option<Ident>,
        array: bool,
    },
    /// Memory of the kernel, like a slot. That it names none is a mistake, found by `check`.
    Scratch {
        like: Option<Ident>,
    },
    Attr {
        default: Option<Expr>,
        bounds: Vec<Bound>,
    },
    /// A group of attributes.
    Attrs,
    Block,
}

pub(crate) struct Bound {
    pub(crate) kind: BoundKind,
    /// The option's name where it is written.
    pub(crate) key: Ident,
    pub(crate) limit: Expr,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum BoundKind {
    Min,
    Max,
    Above,
    Below,
}

impl<'a> Operator<'a> {
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Field<'a>> {
        self.fields.iter().filter(|f| matches!(f.role, Some(Role::Input { .. })))
    }

    pub(crate) fn outputs(&self) -> impl Iterator<Item = &Field<'a>> {
        self.fields.iter().filter(|f| matches!(f.role, Some(Role::Output { .. })))
    }

    /// Scratch memory, each with the slot that it is like.
    pub(crate) fn scratch(&self) -> impl Iterator<Item = (&Field<'a>, Option<&Ident>)> {
        self.fields.iter().filter_map(|f| match &f.role {
            Some(Role::Scratch { like }) => Some((f, like.as_ref())),
            _ => None,
        })
    }

    /// Attributes and blocks, without those of groups: programs keep both in one place.
    pub(crate) fn attrs(&self) -> impl Iterator<Item = &Field<'a>> {
        self.fields.iter().filter(|f| matches!(f.role, Some(Role::Attr { .. } | Role::Block)))
    }

    /// Groups of attributes.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Field<'a>> {
        self.fields.iter().filter(|f| matches!(f.role, Some(Role::Attrs)))
    }

    /// Whether it runs sub-blocks.
    pub(crate) fn has_block(&self) -> bool {
        self.fields.iter().any(|f| matches!(f.role, Some(Role::Block)))
    }

    /// Whether the author gives shape rule and kernel.
    pub(crate) fn has_kernel(&self) -> bool {
        !self.has_block() && (!self.pointwise || self.kernel.is_some())
    }

    /// Whether each output has the shape of an input by declaration.
    pub(crate) fn is_all_like(&self) -> bool {
        self.outputs().count() > 0 && self.outputs().all(Field::is_like)
    }

    /// The input or output of that field.
    pub(crate) fn slot(&self, ident: &Ident) -> Option<&Field<'a>> {
        self.inputs().chain(self.outputs()).find(|f| f.ident == ident)
    }

    /// The input of that field.
    pub(crate) fn input(&self, ident: &Ident) -> Option<&Field<'a>> {
        self.inputs().find(|f| f.ident == ident)
    }
}

impl<'a> Field<'a> {
    /// Whether it is an output that has the shape of an input by declaration.
    pub(crate) fn is_like(&self) -> bool {
        matches!(self.role, Some(Role::Output { like: Some(_), .. }))
    }

    /// Where the name in programs comes from.
    pub(crate) fn named_at(&self) -> &dyn ToTokens {
        match &self.literal {
            Some(literal) => literal,
            None => self.ident,
        }
    }
}

impl BoundKind {
    pub(crate) fn of(key: &Ident) -> Option<BoundKind> {
        [BoundKind::Min, BoundKind::Max, BoundKind::Above, BoundKind::Below]
            .into_iter()
            .find(|k| key == k.key())
    }

    pub(crate) fn key(self) -> &'static str {
        match self {
            BoundKind::Min => "min",
            BoundKind::Max => "max",
            BoundKind::Above => "above",
            BoundKind::Below => "below",
        }
    }

    /// The kind's name in the library.
    pub(crate) fn variant(self) -> &'static str {
        match self {
            BoundKind::Min => "Min",
            BoundKind::Max => "Max",
            BoundKind::Above => "Above",
            BoundKind::Below => "Below",
        }
    }

    /// Whether it keeps values from getting too small.
    pub(crate) fn is_lower(self) -> bool {
        matches!(self, BoundKind::Min | BoundKind::Above)
    }
}
