//! Syntactic tests of field types.
//!
//! Must not replace the compiler, which checks the types themselves.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{GenericArgument, PathArguments, Type};

/// The number of variables for a slot of this type, in words; `None` if it cannot be a slot.
pub(crate) fn takes(ty: &Type, param: &Ident) -> Option<&'static str> {
    if is_param(ty, param) {
        return Some("one");
    }
    let (outer, inner) = wrapper(ty)?;
    if outer == "Option" && is_param(inner, param) {
        return Some("at most one");
    }
    if outer == "Vec" && is_param(inner, param) {
        return Some("a list");
    }
    let (hole, content) = wrapper(inner)?;
    (outer == "Vec" && hole == "Option" && is_param(content, param)).then_some("a list with holes")
}

/// `i64` for `Vec<i64>`.
pub(crate) fn element(ty: &Type) -> Option<&Type> {
    wrapper(ty).filter(|(outer, _)| *outer == "Vec").map(|(_, element)| element)
}

/// Whether the type is `String`.
pub(crate) fn is_string(ty: &Type) -> bool {
    is_named(ty, "String")
}

/// Whether the last path segment of a type is this name.
pub(crate) fn is_named(ty: &Type, name: &str) -> bool {
    match ungrouped(ty) {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| last.ident == name),
        _ => false,
    }
}

/// Whether it is the path of a function, not of a type, by its name: `scale_grad`, not `ScaleGrad`.
pub(crate) fn is_function(ty: &Type) -> bool {
    match ungrouped(ty) {
        Type::Path(path) => path.path.segments.last().is_some_and(|last| {
            last.ident
                .to_string()
                .trim_start_matches("r#")
                .starts_with(|c: char| c.is_lowercase() || c == '_')
        }),
        _ => false,
    }
}

/// Whether the name occurs in a type.
pub(crate) fn mentions(ty: &Type, name: &Ident) -> bool {
    occurs(ty.to_token_stream(), name)
}

fn occurs(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => occurs(group.stream(), name),
        _ => false,
    })
}

fn is_param(ty: &Type, param: &Ident) -> bool {
    matches!(ungrouped(ty), Type::Path(path) if path.path.is_ident(param))
}

/// `Option` and `V` for `Option<V>`.
fn wrapper(ty: &Type) -> Option<(&Ident, &Type)> {
    let Type::Path(path) = ungrouped(ty) else { return None };
    let last = path.path.segments.last()?;
    match &last.arguments {
        PathArguments::AngleBracketed(args) => match args.args.first()? {
            GenericArgument::Type(inner) => Some((&last.ident, inner)),
            _ => None,
        },
        _ => None,
    }
}

/// A type that passed through `macro_rules!` is in an invisible group.
fn ungrouped(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => ungrouped(&group.elem),
        ty => ty,
    }
}
