//! Declarations that a gradient operator inherits: names are looked up in the forward operator's schema at compile
//! time.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};

use super::{at_type, line};
use crate::{
    ast::{FieldDecl, FieldRole, OperatorDecl},
    name, span,
};

/// The forward operator's schema, and the names of inherited slots.
pub(super) fn items(op: &OperatorDecl<'_>) -> TokenStream {
    let Some(forward) = op.grad_of else { return TokenStream::new() };
    let at = span::generated_at(span::last_segment(forward));
    let schema = quote_spanned! {at=>
        const __FORWARD: &::autobwd::__private::Schema = &<#forward as ::autobwd::__private::Op>::SCHEMA;
    };
    let inherited = op.inputs().chain(op.outputs()).filter(|field| field.inherited);
    let names = inherited.map(|field| {
        let (constant, field_name, at) = (name_of(field), name::attribute(field.ident), span::generated_at(field.ident.span()));
        let role = match field.role {
            Some(FieldRole::Output { .. }) => quote!(Output),
            _ => quote!(Input),
        };
        quote_spanned! {at=>
            const _: () = ::autobwd::__private::check_slot(__FORWARD, #field_name, ::autobwd::__private::Role::#role);
            const #constant: &::core::primitive::str = {
                const NAME: [::core::primitive::u8; ::autobwd::__private::slot_name_len(__FORWARD, #field_name)] =
                    ::autobwd::__private::slot_name(__FORWARD, #field_name);
                match ::core::str::from_utf8(&NAME) {
                    ::core::result::Result::Ok(name) => name,
                    ::core::result::Result::Err(_) => "",
                }
            };
        }
    });
    quote!(#schema #(#names)*)
}

/// The check that an inherited attribute exists.
pub(super) fn checked_attr(field: &FieldDecl<'_>, ty: &TokenStream) -> TokenStream {
    let (field_name, at) = (name::attribute(field.ident), span::generated_at(field.ident.span()));
    quote_spanned!(at=> const _: () = ::autobwd::__private::check_attr(__FORWARD, #field_name, #ty);)
}

/// An inherited slot, without options.
pub(super) fn slot(field: &FieldDecl<'_>, arity: &TokenStream) -> TokenStream {
    let (name, field_name, doc, line) =
        (name_of(field), name::attribute(field.ident), &field.doc, line(field.ident));
    quote_spanned! {at_type(field)=>
        ::autobwd::__private::inherit_slot(__FORWARD, #field_name, #name, #arity, #doc, #line)
    }
}

/// The constant with the name of an inherited slot in programs.
pub(super) fn name_of(field: &FieldDecl<'_>) -> Ident {
    format_ident!("__slot_{}", field.ident, span = Span::call_site())
}
