//! The expansion of an item with mistakes: enough for code that uses the operator to compile, so that consequential
//! errors do not hide the mistakes.
//!
//! Must not look at fields beyond whether they use the parameter.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Field, Fields, FieldsNamed, ItemStruct, parse::Parser, parse_quote};

use crate::{ast::OperatorDecl, types};

/// The generated impls without content, as far as the repaired struct permits.
pub(crate) fn impls(op: &OperatorDecl<'_>, mended: &ItemStruct) -> TokenStream {
    let (ident, name, param, grad) = (op.ident, &op.name, &op.param, op.grad);
    // Otherwise the import of the gradient's type would be reported as unused.
    let mention = quote!(const _: ::core::option::Option<#grad> = ::core::option::Option::None;);
    if !has_one_parameter(mended) {
        return mention;
    }
    quote! {
        #mention
        const _: () = {
            #[automatically_derived]
            impl<#param> ::autobwd::__private::Describe<#param> for #ident<#param> {
                type Op = #ident<::autobwd::__private::Var>;
                fn into_parts(self, _: &mut ::autobwd::__private::SlotValues<#param>) -> #ident<()> {
                    ::core::unreachable!()
                }
            }
            #[automatically_derived]
            impl ::autobwd::__private::Op for #ident<::autobwd::__private::Var> {
                const SCHEMA: ::autobwd::__private::Schema = ::autobwd::__private::Schema {
                    name: #name,
                    inputs: &[],
                    outputs: &[],
                    scratch: &[],
                    attrs: &[],
                    pointwise: false,
                    broadcast: false,
                    integers: false,
                    doc: "",
                    file: ::core::file!(),
                    line: ::core::line!(),
                };
                type Grad = ::autobwd::__private::NoGrad;
                type Of<#param> = #ident<#param>;
                fn read(
                    _: &::autobwd::__private::OpDesc,
                    _: &mut dyn ::core::ops::FnMut(
                        ::autobwd::__private::Role,
                        &'static ::core::primitive::str,
                        ::autobwd::__private::Var,
                    ) -> ::autobwd::__private::Result<()>,
                ) -> ::autobwd::__private::Result<#ident<()>> {
                    ::core::unreachable!()
                }
                fn from_desc(_: &::autobwd::__private::OpDesc) -> ::autobwd::__private::Result<Self> {
                    ::core::unreachable!()
                }
                fn fill<#param>(
                    _: #ident<()>,
                    _: &mut dyn ::core::ops::FnMut() -> #param,
                ) -> #ident<#param> {
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

/// Repairs the type parameter: present, with a default, without bounds, and used by a field.
pub(crate) fn mend_parameter(item: &mut ItemStruct, op: &OperatorDecl<'_>) {
    item.generics.where_clause = None;
    if item.generics.params.is_empty() {
        let param = &op.param;
        item.generics.params.push(parse_quote!(#param));
    }
    let Some(param) = item.generics.type_params_mut().next() else { return };
    param.bounds.clear();
    param.default.get_or_insert_with(|| (Default::default(), parse_quote!(::autobwd::__private::Var)));
    let param = param.ident.clone();
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

fn has_one_parameter(item: &ItemStruct) -> bool {
    item.generics.params.len() == 1 && item.generics.type_params().count() == 1
}
