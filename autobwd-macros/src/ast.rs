//! The struct as an operator: a borrowed view of the author's code.
//!
//! Must not check it: rules that need more than one token are in `check`.

use quote::ToTokens;
use syn::{Expr, Ident, ItemStruct, LitStr, Type};

pub(crate) struct OperatorDecl<'a> {
    pub(crate) item: &'a ItemStruct,
    pub(crate) ident: &'a Ident,
    /// The type parameter of slot values, `V`. Generated code uses the same name, so that it cannot shadow a name in a
    /// field's type.
    pub(crate) param: Ident,
    /// Name in programs.
    pub(crate) name: String,
    pub(crate) grad: &'a Type,
    /// The forward operator, if it is a gradient operator.
    pub(crate) grad_of: Option<&'a Type>,
    pub(crate) pointwise: bool,
    /// `kernel`, as written.
    pub(crate) kernel: Option<&'a Ident>,
    /// `composed`, as written.
    pub(crate) composed: Option<&'a Ident>,
    /// `broadcast`, as written.
    pub(crate) broadcast: Option<&'a Ident>,
    /// `integers`, as written.
    pub(crate) integers: Option<&'a Ident>,
    /// `decomposed`, as written.
    pub(crate) decomposed: Option<&'a Ident>,
    /// `inferred`, as written.
    pub(crate) inferred: Option<&'a Ident>,
    /// `infallible`, as written.
    pub(crate) infallible: Option<&'a Ident>,
    /// `any_dtype`, as written.
    pub(crate) any_dtype: Option<&'a Ident>,
    /// `factors`, as written.
    pub(crate) factors: Option<&'a Ident>,
    /// `halves`, as written.
    pub(crate) halves: Option<&'a Ident>,
    /// `elementwise_update`, as written.
    pub(crate) elementwise_update: Option<&'a Ident>,
    /// The operator that one operator replaces together with this one.
    pub(crate) peephole: Option<&'a Type>,
    /// `primitive`, as written.
    pub(crate) primitive: Option<&'a Ident>,
    pub(crate) doc: String,
    pub(crate) fields: Vec<FieldDecl<'a>>,
}

pub(crate) struct FieldDecl<'a> {
    pub(crate) original: &'a syn::Field,
    pub(crate) ident: &'a Ident,
    pub(crate) ty: &'a Type,
    /// `None` is a mistake, which `check` reports.
    pub(crate) role: Option<FieldRole>,
    /// Name in programs; for an inherited field, that of the field.
    pub(crate) name: String,
    /// Whether it is a slot or attribute of the forward operator, which has the name in programs.
    pub(crate) inherited: bool,
    /// The name that the author sets.
    pub(crate) literal: Option<LitStr>,
    /// First paragraph of the documentation.
    pub(crate) doc: String,
}

pub(crate) enum FieldRole {
    Input {
        shape_only: bool,
        constant: bool,
        sparse: bool,
        checked: bool,
        array: bool,
    },
    /// `inplace` and `like` name inputs.
    Output {
        inplace: Option<Ident>,
        like: Option<Ident>,
        array: bool,
    },
    /// Scratch memory of the kernel, like a slot. A missing slot is a mistake, which `check` reports.
    Scratch {
        like: Option<Ident>,
    },
    Attr {
        default: Option<Expr>,
        bounds: Vec<AttrLimit>,
    },
    /// A group of attributes.
    Attrs,
    Block,
}

pub(crate) struct AttrLimit {
    pub(crate) kind: LimitKind,
    /// The option's name, as written.
    pub(crate) key: Ident,
    pub(crate) limit: Expr,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum LimitKind {
    Min,
    Max,
    Above,
    Below,
}

impl<'a> OperatorDecl<'a> {
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &FieldDecl<'a>> {
        self.fields.iter().filter(|f| matches!(f.role, Some(FieldRole::Input { .. })))
    }

    pub(crate) fn outputs(&self) -> impl Iterator<Item = &FieldDecl<'a>> {
        self.fields.iter().filter(|f| matches!(f.role, Some(FieldRole::Output { .. })))
    }

    /// Scratch memory, each with the slot that it is like.
    pub(crate) fn scratch(&self) -> impl Iterator<Item = (&FieldDecl<'a>, Option<&Ident>)> {
        self.fields.iter().filter_map(|f| match &f.role {
            Some(FieldRole::Scratch { like }) => Some((f, like.as_ref())),
            _ => None,
        })
    }

    /// Attributes and blocks, without those of groups: programs store them together.
    pub(crate) fn attrs(&self) -> impl Iterator<Item = &FieldDecl<'a>> {
        self.fields.iter().filter(|f| matches!(f.role, Some(FieldRole::Attr { .. } | FieldRole::Block)))
    }

    /// Groups of attributes.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &FieldDecl<'a>> {
        self.fields.iter().filter(|f| matches!(f.role, Some(FieldRole::Attrs)))
    }

    /// Whether it runs sub-blocks.
    pub(crate) fn has_block(&self) -> bool {
        self.fields.iter().any(|f| matches!(f.role, Some(FieldRole::Block)))
    }

    /// Whether the author writes the shape rule.
    pub(crate) fn has_shape_rule(&self) -> bool {
        !self.has_block() && (!self.pointwise || self.kernel.is_some())
    }

    /// Whether an input may be row-sparse.
    pub(crate) fn has_sparse_input(&self) -> bool {
        self.inputs().any(|field| matches!(field.role, Some(FieldRole::Input { sparse: true, .. })))
    }

    /// Whether the author writes the kernel.
    pub(crate) fn has_kernel(&self) -> bool {
        self.has_shape_rule() && self.composed.is_none()
    }

    /// Whether each output declares the shape of an input.
    pub(crate) fn is_all_like(&self) -> bool {
        self.outputs().count() > 0 && self.outputs().all(FieldDecl::is_like)
    }

    /// The input or output of this field.
    pub(crate) fn slot(&self, ident: &Ident) -> Option<&FieldDecl<'a>> {
        self.inputs().chain(self.outputs()).find(|f| f.ident == ident)
    }

    /// The input of this field.
    pub(crate) fn input(&self, ident: &Ident) -> Option<&FieldDecl<'a>> {
        self.inputs().find(|f| f.ident == ident)
    }
}

impl<'a> FieldDecl<'a> {
    /// Whether it is an output that declares the shape of an input.
    pub(crate) fn is_like(&self) -> bool {
        matches!(self.role, Some(FieldRole::Output { like: Some(_), .. }))
    }

    /// The token that sets the name in programs.
    pub(crate) fn named_at(&self) -> &dyn ToTokens {
        match &self.literal {
            Some(literal) => literal,
            None => self.ident,
        }
    }
}

impl LimitKind {
    pub(crate) fn of(key: &Ident) -> Option<LimitKind> {
        [LimitKind::Min, LimitKind::Max, LimitKind::Above, LimitKind::Below]
            .into_iter()
            .find(|k| key == k.key())
    }

    pub(crate) fn key(self) -> &'static str {
        match self {
            LimitKind::Min => "min",
            LimitKind::Max => "max",
            LimitKind::Above => "above",
            LimitKind::Below => "below",
        }
    }

    /// The kind's name in the library.
    pub(crate) fn variant(self) -> &'static str {
        match self {
            LimitKind::Min => "Min",
            LimitKind::Max => "Max",
            LimitKind::Above => "Above",
            LimitKind::Below => "Below",
        }
    }

    /// Whether it is a lower bound.
    pub(crate) fn is_lower(self) -> bool {
        matches!(self, LimitKind::Min | LimitKind::Above)
    }
}
