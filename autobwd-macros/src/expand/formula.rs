//! Implementations that evaluate formulas: for floating point numbers, and for integers.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::Index;

use super::at_type;
use crate::{
    ast::{FieldDecl, FieldRole, OperatorDecl},
    span,
};

/// The implementation of `Lanes`. Attributes are stored as a tuple, which can be cloned even if the struct cannot.
pub(super) fn lanes(op: &OperatorDecl<'_>) -> TokenStream {
    let (ident, param) = (op.ident, &op.param);
    let (types, fields): (Vec<_>, Vec<_>) = op.fields.iter().map(|field| (field.ty, field.ident)).unzip();
    let is_slot = |field: &FieldDecl<'_>| {
        matches!(field.role, Some(FieldRole::Input { .. } | FieldRole::Output { .. }))
    };
    // The compiler's message on an attribute that is not `Copy` shows this name as the reason.
    let copied = op.attrs().chain(op.groups()).next().map(|_| {
        quote! {
            #[inline(always)]
            fn copied_for_every_element<T: ::core::marker::Copy>(attr: &T) -> T {
                *attr
            }
        }
    });
    let zero = quote!(<#param as ::core::convert::From<::core::primitive::f64>>::from(0.0));
    let mut input = 0_usize..;
    let values = op.fields.iter().enumerate().map(|(at, field)| {
        let (name, span, at) = (field.ident, at_type(field), Index::from(at));
        if !is_slot(field) {
            let ty = field.ty;
            return quote_spanned!(span=> #name: copied_for_every_element::<#ty>(&attrs.#at));
        }
        let value = match field.role {
            Some(FieldRole::Input { .. }) => input.next().map(|i| quote!(get(#i))),
            _ => Some(zero.clone()),
        };
        quote_spanned!(span=> #name: ::autobwd::__private::Slot::<()>::map(&attrs.#at, |_| #value))
    });
    // Written unconditionally: a branch on the presence of an output would keep lanes out of registers.
    let put = op.outputs().enumerate().map(|(i, field)| {
        let (name, at) = (field.ident, at_type(field));
        quote_spanned! {at=>
            let mut value = #zero;
            ::autobwd::__private::Slot::<#param>::each(&op.#name, |held| value = *held);
            put(#i, value);
        }
    });
    let at = span::generated_at(ident.span());
    let eval = quote_spanned!(at=> ::autobwd::__private::Pointwise::eval(&mut op););
    quote! {
        const _: () = {
            #copied
            // The slot values in the types of fields.
            type #param = ();
            #[automatically_derived]
            impl ::autobwd::__private::Lanes for #ident<::autobwd::__private::Var> {
                const SLOTS: ::autobwd::__private::Schema = <Self as ::autobwd::__private::Op>::SCHEMA;
                type Attrs = (#(#types,)*);
                #[inline(always)]
                fn lane<#param: ::autobwd::__private::Float>(
                    attrs: &Self::Attrs,
                    mut get: impl ::core::ops::FnMut(::core::primitive::usize) -> #param,
                    mut put: impl ::core::ops::FnMut(::core::primitive::usize, #param),
                ) {
                    let mut op: #ident<#param> = #ident { #(#values,)* };
                    #eval
                    #(#put)*
                }
                fn attrs(desc: &::autobwd::__private::OpDesc) -> ::autobwd::__private::Result<Self::Attrs> {
                    let op = <Self as ::autobwd::__private::Op>::read(desc, &mut |_, _, _| ::core::result::Result::Ok(()))?;
                    ::core::result::Result::Ok((#(op.#fields,)*))
                }
            }
        };
    }
}

/// The implementation of `IntegerLanes`.
pub(super) fn integer_lanes(op: &OperatorDecl<'_>) -> TokenStream {
    let (ident, param) = (op.ident, &op.param);
    let mut input = 0_usize..;
    let values = op.fields.iter().enumerate().map(|(at, field)| {
        let (name, span, at) = (field.ident, at_type(field), Index::from(at));
        let value = match field.role {
            Some(FieldRole::Input { .. }) => {
                input.next().map(|i| quote!(::autobwd::__private::Slot::<()>::map(&attrs.#at, |_| get(#i))))
            }
            Some(FieldRole::Output { .. }) => Some(quote!(::core::default::Default::default())),
            _ => Some(quote!(attrs.#at)),
        };
        quote_spanned!(span=> #name: #value)
    });
    let result = op.outputs().map(|field| field.ident);
    let at = span::generated_at(ident.span());
    let eval = quote_spanned!(at=> ::autobwd::__private::PointwiseInteger::eval(&mut op)?;);
    quote! {
        const _: () = {
            #[automatically_derived]
            impl ::autobwd::__private::IntegerLanes for #ident<::autobwd::__private::Var> {
                #[inline(always)]
                fn integer_lane<#param: ::autobwd::__private::Integer>(
                    attrs: &<Self as ::autobwd::__private::Lanes>::Attrs,
                    mut get: impl ::core::ops::FnMut(::core::primitive::usize) -> #param,
                ) -> ::autobwd::__private::Result<#param> {
                    let mut op: #ident<#param> = #ident { #(#values,)* };
                    #eval
                    #(::core::result::Result::Ok(op.#result))*
                }
            }
        };
    }
}
