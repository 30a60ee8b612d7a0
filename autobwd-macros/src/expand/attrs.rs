//! Attributes: their definitions, and their conversions from and to data.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{Expr, Lit, Type, spanned::Spanned};

use super::{at_type, inherit, line};
use crate::{
    ast::{AttrLimit, FieldDecl, FieldRole},
    literal, name, span, text, types,
};

/// The items for an attribute or a group of attributes, together in one place so that an invalid type is reported once.
pub(super) fn items(field: &FieldDecl<'_>) -> TokenStream {
    if matches!(field.role, Some(FieldRole::Attrs)) {
        return group_conversions(field);
    }
    let (default, limits) = (default(field), limits(field));
    let (conversions, def) = (conversions(field), def(field));
    quote!(#default #limits #conversions #def)
}

/// The definitions of all attributes.
pub(super) fn defs<'a>(fields: impl Iterator<Item = &'a FieldDecl<'a>> + Clone) -> TokenStream {
    let is_group = |field: &FieldDecl<'_>| matches!(field.role, Some(FieldRole::Attrs));
    let own = |field: &FieldDecl<'_>| {
        let (def, conversions) = (def_name(field), conversions_name(field));
        if is_group(field) { quote!(#conversions.0) } else { quote!(&[#def]) }
    };
    if !fields.clone().any(is_group) {
        let defs = fields.map(def_name);
        return quote!(&[#(#defs),*]);
    }
    let (own, counted) = (fields.clone().map(own), fields.map(own));
    quote! {{
        const N: ::core::primitive::usize = 0 #(+ { let defs: &[::autobwd::__private::AttrDef] = #counted; defs.len() })*;
        const DEFS: [::autobwd::__private::AttrDef; N] = ::autobwd::__private::concat_attrs(&[#(#own),*]);
        &DEFS
    }}
}

/// An attribute or a group of attributes, read from the description `desc`.
pub(super) fn read(field: &FieldDecl<'_>) -> TokenStream {
    let (conversions, def) = (conversions_name(field), def_name(field));
    match field.role {
        Some(FieldRole::Attrs) => quote_spanned!(at_type(field)=> #conversions.1(desc)?),
        _ => quote_spanned!(at_type(field)=> #conversions.2(desc, &#def)?),
    }
}

/// Records the value `value` of an attribute or a group of attributes in `recorder`.
pub(super) fn write(field: &FieldDecl<'_>, recorder: TokenStream, value: TokenStream) -> TokenStream {
    let (conversions, def) = (conversions_name(field), def_name(field));
    match field.role {
        Some(FieldRole::Attrs) => quote_spanned!(at_type(field)=> #conversions.2(#value, #recorder)),
        _ => quote_spanned!(at_type(field)=> #conversions.3(#recorder, #def.name, #value)),
    }
}

/// The default of an attribute, as an expression.
pub(super) fn default_of(field: &FieldDecl<'_>) -> Option<TokenStream> {
    let function = default_function(field);
    matches!(field.role, Some(FieldRole::Attr { default: Some(_), .. })).then(|| quote!(#function()))
}

/// The default of an attribute as a function, so that a wrong type is reported once.
fn default(field: &FieldDecl<'_>) -> Option<TokenStream> {
    let Some(FieldRole::Attr { default: Some(value), .. }) = &field.role else { return None };
    let (ty, function, value) = (field.ty, default_function(field), converted(value, field.ty));
    Some(quote! {
        fn #function() -> #ty {
            #value
        }
    })
}

/// Converts literals to attribute types: strings to `String`, arrays to `Vec`. Other types are left to the compiler,
/// which reports mistakes.
fn converted(value: &Expr, ty: &Type) -> TokenStream {
    let at = span::generated_at(value.span());
    match (literal::ungrouped(value), types::element(ty)) {
        (Expr::Array(array), Some(element)) => {
            let elements = array.elems.iter().map(|value| converted(value, element));
            quote_spanned!(at=> ::std::vec![#(#elements),*])
        }
        (Expr::Lit(literal), _) if matches!(literal.lit, Lit::Str(_)) && types::is_string(ty) => {
            quote_spanned!(at=> ::core::convert::From::from(#value))
        }
        _ => quote!(#value),
    }
}

/// The limits of an attribute as functions, so that a wrong type is reported once.
fn limits(field: &FieldDecl<'_>) -> TokenStream {
    let Some(FieldRole::Attr { bounds, .. }) = &field.role else { return TokenStream::new() };
    let limits = bounds.iter().map(|bound| {
        let (ty, function, limit) = (field.ty, limit_function(field, bound), &bound.limit);
        quote! {
            fn #function() -> #ty {
                #limit
            }
        }
    });
    quote!(#(#limits)*)
}

fn conversions(field: &FieldDecl<'_>) -> TokenStream {
    let (ty, name) = (field.ty, conversions_name(field));
    quote_spanned! {at_type(field)=>
        const #name: (
            ::autobwd::__private::AttrType,
            fn(#ty) -> ::autobwd::__private::Attr,
            fn(&::autobwd::__private::OpDesc, &::autobwd::__private::AttrDef) -> ::autobwd::__private::Result<#ty>,
            fn(&mut ::autobwd::__private::AttrRecorder, &'static ::core::primitive::str, #ty) -> #ty,
            ::autobwd::__private::AttrCheck,
        ) = (
            <#ty as ::autobwd::__private::AttrValue>::TYPE,
            <#ty as ::autobwd::__private::AttrValue>::into_attr,
            ::autobwd::__private::attr::<#ty>,
            ::autobwd::__private::AttrRecorder::attr::<#ty>,
            ::autobwd::__private::check_value::<#ty>,
        );
    }
}

fn group_conversions(field: &FieldDecl<'_>) -> TokenStream {
    let (ty, name) = (field.ty, conversions_name(field));
    quote_spanned! {at_type(field)=>
        const #name: (
            &[::autobwd::__private::AttrDef],
            fn(&::autobwd::__private::OpDesc) -> ::autobwd::__private::Result<#ty>,
            fn(#ty, &mut ::autobwd::__private::AttrRecorder) -> #ty,
        ) = (
            <#ty as ::autobwd::__private::Attrs>::DEFS,
            <#ty as ::autobwd::__private::Attrs>::read,
            <#ty as ::autobwd::__private::Attrs>::write,
        );
    }
}

fn def(field: &FieldDecl<'_>) -> TokenStream {
    let (def, conversions, line, doc) =
        (def_name(field), conversions_name(field), line(field.ident), &field.doc);
    let field_name = name::attribute(field.ident);
    if field.inherited {
        let checked = inherit::checked_attr(field, &quote!(#conversions.0));
        return quote! {
            #checked
            const #def: ::autobwd::__private::AttrDef =
                ::autobwd::__private::inherit_attr(
                    __FORWARD, #field_name, (#conversions.0, #conversions.4), #doc, (::core::file!(), #line),
                );
        };
    }
    let (name, none) = (&field.name, Vec::new());
    let (default, bounds) = match &field.role {
        Some(FieldRole::Attr { default, bounds }) => (default.as_ref(), bounds),
        _ => (None, &none),
    };
    let literal = default.and_then(literal::canonical).unwrap_or_default();
    let default = match default {
        Some(_) => {
            let function = default_function(field);
            quote!(::core::option::Option::Some(|| #conversions.1(#function())))
        }
        None => quote!(::core::option::Option::None),
    };
    let check = bounds.first().map(|bound| {
        let at = span::generated_at(bound.key.span());
        quote_spanned!(at=> const _: () = ::autobwd::__private::check_bounds(#name, #conversions.0);)
    });
    let bounds = bounds.iter().map(|bound| {
        let (kind, limit) = (format_ident!("{}", bound.kind.variant()), limit_function(field, bound));
        let text = text::of_tokens(&bound.limit);
        quote! {
            ::autobwd::__private::AttrBound {
                kind: ::autobwd::__private::BoundKind::#kind,
                limit: || #conversions.1(#limit()),
                text: #text,
            }
        }
    });
    quote! {
        #check
        const #def: ::autobwd::__private::AttrDef = ::autobwd::__private::AttrDef {
            name: #name,
            field: #field_name,
            ty: #conversions.0,
            default: #default,
            literal: #literal,
            bounds: &[#(#bounds),*],
            check: #conversions.4,
            doc: #doc,
            file: ::core::file!(),
            line: #line,
        };
    }
}

fn def_name(field: &FieldDecl<'_>) -> Ident {
    format_ident!("__def_{}", field.ident, span = Span::call_site())
}

fn conversions_name(field: &FieldDecl<'_>) -> Ident {
    format_ident!("__attr_{}", field.ident, span = Span::call_site())
}

fn default_function(field: &FieldDecl<'_>) -> Ident {
    format_ident!("__default_{}", field.ident, span = Span::call_site())
}

fn limit_function(field: &FieldDecl<'_>, bound: &AttrLimit) -> Ident {
    format_ident!("__{}_{}", bound.kind.key(), field.ident, span = Span::call_site())
}
