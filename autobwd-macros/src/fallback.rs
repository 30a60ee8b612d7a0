//! What an item with mistakes expands to: enough for code that uses the operator to compile, so that the mistakes are
//! not drowned by what follows from them.
//!
//! Must not look at fields beyond whether they use the parameter.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Field, Fields, FieldsNamed, ItemStruct, parse::Parser, parse_quote};

use crate::{ast::Operator, types};

/// The generated impls without content, where the struct allows for any.
pub(crate) fn impls(op: &Operator<'_>) -> TokenStream {
    let (ident, name, param) = (op.ident, &op.name, &op.param);
    if !has_plain_parameter(op.item) {
        return TokenStream::new();
    }
    quote! {
        const _: () = {
            #[automatically_derived]
            impl<#param> ::autobwd::Describe<#param> for #ident<#param> {
                type Op = #ident<::autobwd::Var>;
                fn describe(
                    self,
                    _: &mut dyn ::core::ops::FnMut(
                        ::autobwd::Role,
                        &'static ::core::primitive::str,
                        #param,
                    ) -> ::autobwd::Result<::autobwd::Var>,
                ) -> ::autobwd::Result<::autobwd::OpDesc> {
                    ::core::unreachable!()
                }
            }
            #[automatically_derived]
            impl ::autobwd::Op for #ident<::autobwd::Var> {
                const SCHEMA: ::autobwd::Schema = ::autobwd::Schema {
                    name: #name,
                    inputs: &[],
                    outputs: &[],
                    attrs: &[],
                    pointwise: false,
                    broadcast: false,
                    doc: "",
                    file: ::core::file!(),
                    line: ::core::line!(),
                };
                type Grad = ::autobwd::NoGrad;
                type Of<#param> = #ident<#param>;
                fn gather<#param>(
                    _: &::autobwd::OpDesc,
                    _: &mut dyn ::core::ops::FnMut(
                        ::autobwd::Role,
                        &'static ::core::primitive::str,
                        ::autobwd::Var,
                    ) -> ::autobwd::Result<#param>,
                ) -> ::autobwd::Result<#ident<#param>> {
                    ::core::unreachable!()
                }
                fn from_desc(_: &::autobwd::OpDesc) -> ::autobwd::Result<Self> {
                    ::core::unreachable!()
                }
                fn outputs<#param>(
                    _: #ident<#param>,
                    _: &mut dyn ::core::ops::FnMut(::core::primitive::usize, #param),
                ) {
                    ::core::unreachable!()
                }
            }
        };
    }
}

/// Keeps the compiler from reporting, beside a missing slot, that the parameter is unused.
pub(crate) fn use_parameter(item: &mut ItemStruct) {
    let Some(param) = item.generics.type_params().next().map(|param| param.ident.clone()) else { return };
    if item.fields.iter().any(|field| types::mentions(&field.ty, &param)) {
        return;
    }
    if matches!(item.fields, Fields::Unit) {
        item.fields = Fields::Named(parse_quote!({}));
        item.semi_token = None;
    }
    if let Fields::Named(FieldsNamed { named, .. }) = &mut item.fields {
        let slots = Field::parse_named.parse2(quote!(__slots: ::core::marker::PhantomData<#param>));
        named.extend(slots);
    }
}

fn has_plain_parameter(item: &ItemStruct) -> bool {
    let generics = &item.generics;
    let plain = generics.type_params().all(|param| param.bounds.is_empty());
    generics.params.len() == 1
        && generics.type_params().count() == 1
        && plain
        && generics.where_clause.is_none()
}
