//! The generated code.
//!
//! Must not decide anything: whatever arrives here is right.
//!
//! Every use of a type that the author wrote carries that type's place, so that the compiler's messages point there.
//! Paths are absolute, because the author's crate may have a `Result` or `Option` of its own.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{Expr, Index, Lit, Type, spanned::Spanned};

use crate::{
    ast::{Bound, BoundKind, Field, Operator, Role},
    docs, span, types,
};

/// All that an operator expands to, beside the struct itself.
pub(crate) fn operator(op: &Operator<'_>) -> TokenStream {
    let (defaults, limits) = (op.attrs().filter_map(default), op.attrs().flat_map(limits));
    let conversions = op.attrs().map(conversions);
    let (describe, op_impl) = (describe(op), op_impl(op));
    let lanes = op.pointwise.then(|| lanes(op));
    let integers = op.integers.map(|_| integer_lanes(op));
    let shape_rule = (op.has_kernel() && op.has_like()).then(|| shape_rule(op));
    let (contract, unused, registration) = (contract(op), unused(op), registration(op));
    quote! {
        const _: () = {
            #(#defaults)*
            #(#limits)*
            #(#conversions)*
            #describe
            #op_impl
        };
        #lanes
        #integers
        #shape_rule
        #contract
        #unused
        #registration
    }
}

/// The conversion to data.
fn describe(op: &Operator<'_>) -> TokenStream {
    let (ident, param) = (op.ident, &op.param);
    let fields = op.fields.iter().map(|field| {
        let (ident, name, at) = (field.ident, &field.name, at_type(field));
        let slot = |role: TokenStream| quote_spanned!(at=> #ident: to.slot(::autobwd::Role::#role, #name, self.#ident));
        match field.role {
            Some(Role::Input { .. }) => slot(quote!(Input)),
            Some(Role::Output { .. }) => slot(quote!(Output)),
            _ => {
                let conversions = conversions_name(field);
                quote_spanned!(at=> #ident: #conversions.3(to.notes(), #name, self.#ident))
            }
        }
    });
    quote! {
        #[automatically_derived]
        impl<#param> ::autobwd::Describe<#param> for #ident<#param> {
            type Op = #ident<::autobwd::Var>;
            #[inline]
            fn hand_over(self, to: &mut ::autobwd::Content<#param>) -> #ident<()> {
                #ident { #(#fields,)* }
            }
        }
    }
}

/// The default of an attribute as a function: schema and conversion share it, a wrong type is reported once.
fn default(field: &Field<'_>) -> Option<TokenStream> {
    let (ty, function, value) = (field.ty, default_function(field), default_value(field)?);
    Some(quote! {
        fn #function() -> #ty {
            #value
        }
    })
}

fn default_value(field: &Field<'_>) -> Option<TokenStream> {
    match &field.role {
        Some(Role::Attr { default: Some(value), .. }) => Some(literal(value, field.ty)),
        _ => None,
    }
}

/// Text and lists as the types that attributes have: `String` and `Vec`. As any other type they are left alone, for the
/// compiler to report.
fn literal(value: &Expr, ty: &Type) -> TokenStream {
    let at = span::generated_at(value.span());
    match (ungrouped(value), types::element(ty)) {
        (Expr::Array(array), Some(element)) => {
            let elements = array.elems.iter().map(|value| literal(value, element));
            quote_spanned!(at=> ::std::vec![#(#elements),*])
        }
        (Expr::Lit(literal), _) if matches!(literal.lit, Lit::Str(_)) && types::is_string(ty) => {
            quote_spanned!(at=> ::core::convert::From::from(#value))
        }
        _ => quote!(#value),
    }
}

/// The limits of an attribute as functions, for the same reason.
fn limits(field: &Field<'_>) -> Vec<TokenStream> {
    let Some(Role::Attr { bounds, .. }) = &field.role else { return Vec::new() };
    let limits = bounds.iter().map(|bound| {
        let (ty, function, limit) = (field.ty, limit_function(field, bound), &bound.limit);
        quote! {
            fn #function() -> #ty {
                #limit
            }
        }
    });
    limits.collect()
}

fn limit_function(field: &Field<'_>, bound: &Bound) -> Ident {
    format_ident!("__{}_{}", bound.kind.key(), field.ident, span = Span::call_site())
}

/// An expression that went through `macro_rules!` is in an invisible group.
fn ungrouped(expr: &Expr) -> &Expr {
    match expr {
        Expr::Group(group) => ungrouped(&group.expr),
        expr => expr,
    }
}

fn default_function(field: &Field<'_>) -> Ident {
    format_ident!("__default_{}", field.ident, span = Span::call_site())
}

/// All that is asked of an attribute's type, in one place: a type that cannot be an attribute is reported once.
fn conversions(field: &Field<'_>) -> TokenStream {
    let (ty, name) = (field.ty, conversions_name(field));
    quote_spanned! {at_type(field)=>
        const #name: (
            ::autobwd::AttrType,
            fn(#ty) -> ::autobwd::Attr,
            fn(
                &::autobwd::OpDesc,
                &'static ::core::primitive::str,
                ::core::option::Option<fn() -> #ty>,
            ) -> ::autobwd::Result<#ty>,
            fn(&mut ::autobwd::__private::Notes, &'static ::core::primitive::str, #ty) -> #ty,
        ) = (
            <#ty as ::autobwd::AttrValue>::TYPE,
            <#ty as ::autobwd::AttrValue>::into_attr,
            ::autobwd::__private::attr::<#ty>,
            ::autobwd::__private::Notes::attr::<#ty>,
        );
    }
}

fn conversions_name(field: &Field<'_>) -> Ident {
    format_ident!("__attr_{}", field.ident, span = Span::call_site())
}

fn has_default(field: &Field<'_>) -> bool {
    matches!(field.role, Some(Role::Attr { default: Some(_), .. }))
}

fn op_impl(op: &Operator<'_>) -> TokenStream {
    let (ident, param, grad) = (op.ident, &op.param, op.grad);
    let at = span::generated_at(span::last_segment(grad));
    let grad = quote_spanned!(at=> type Grad = #grad;);
    let (schema, gathered) = (schema(op), op.fields.iter().map(gathered));
    let filled = op.fields.iter().map(|field| {
        let (ident, at) = (field.ident, at_type(field));
        match field.role {
            Some(Role::Input { .. } | Role::Output { .. }) => {
                quote_spanned!(at=> #ident: ::autobwd::Slot::<()>::map(&of.#ident, |()| fill()))
            }
            _ => quote_spanned!(at=> #ident: of.#ident),
        }
    });
    let (outputs, indices) = (op.outputs().map(|field| field.ident), 0..op.outputs().count());
    quote! {
        #[automatically_derived]
        impl ::autobwd::Op for #ident<::autobwd::Var> {
            const SCHEMA: ::autobwd::Schema = #schema;
            #grad
            type Of<#param> = #ident<#param>;
            fn gather<#param>(
                desc: &::autobwd::OpDesc,
                fill: &mut dyn ::core::ops::FnMut(
                    ::autobwd::Role,
                    &'static ::core::primitive::str,
                    ::autobwd::Var,
                ) -> ::autobwd::Result<#param>,
            ) -> ::autobwd::Result<#ident<#param>> {
                ::core::result::Result::Ok(#ident { #(#gathered,)* })
            }
            fn from_desc(desc: &::autobwd::OpDesc) -> ::autobwd::Result<Self> {
                <Self as ::autobwd::Op>::gather(desc, &mut |_, _, var| ::core::result::Result::Ok(var))
            }
            fn fill<#param>(
                of: #ident<()>,
                fill: &mut dyn ::core::ops::FnMut() -> #param,
            ) -> #ident<#param> {
                #ident { #(#filled,)* }
            }
            fn outputs<#param>(
                of: #ident<#param>,
                put: &mut dyn ::core::ops::FnMut(::core::primitive::usize, #param),
            ) {
                #(::autobwd::__private::put_values(#indices, of.#outputs, put);)*
            }
        }
    }
}

fn schema(op: &Operator<'_>) -> TokenStream {
    let Operator { name, doc, pointwise, .. } = op;
    let (broadcast, integers) = (op.broadcast.is_some(), op.integers.is_some());
    let (inputs, outputs) = (op.inputs().map(|f| slot_def(f, op)), op.outputs().map(|f| slot_def(f, op)));
    let attrs = op.attrs().map(attr_def);
    let line = line(op.ident);
    quote! {
        ::autobwd::Schema {
            name: #name,
            inputs: &[#(#inputs),*],
            outputs: &[#(#outputs),*],
            attrs: &[#(#attrs),*],
            pointwise: #pointwise,
            broadcast: #broadcast,
            integers: #integers,
            doc: #doc,
            file: ::core::file!(),
            line: #line,
        }
    }
}

fn slot_def(field: &Field<'_>, op: &Operator<'_>) -> TokenStream {
    let Field { name, doc, ty, .. } = field;
    let (line, param) = (line(field.ident), &op.param);
    let arity = quote_spanned! {at_type(field)=> {
        type #param = ::autobwd::Var;
        <#ty as ::autobwd::Slot<#param>>::ARITY
    }};
    let partner = |partner: &Option<Ident>| {
        let input = partner.as_ref().and_then(|partner| op.input(partner));
        input.map(|input| input.name.clone())
    };
    let options = match &field.role {
        Some(Role::Input { shape_only, sparse, array }) => {
            let shape_only = shape_only.then(|| quote!(.shape_only()));
            let sparse = sparse.then(|| quote!(.sparse()));
            let array = array.then(|| quote!(.array()));
            quote!(#shape_only #sparse #array)
        }
        Some(Role::Output { inplace, like, array }) => {
            let (inplace, like) = (partner(inplace).into_iter(), partner(like).into_iter());
            let array = array.then(|| quote!(.array()));
            quote!(#(.inplace(#inplace))* #(.like(#like))* #array)
        }
        _ => TokenStream::new(),
    };
    quote!(::autobwd::SlotDef::new(#name, #arity, #doc, #line)#options)
}

fn attr_def(field: &Field<'_>) -> TokenStream {
    let Field { name, doc, .. } = field;
    let (line, conversions) = (line(field.ident), conversions_name(field));
    let default = if has_default(field) {
        let function = default_function(field);
        quote!(::core::option::Option::Some(|| #conversions.1(#function())))
    } else {
        quote!(::core::option::Option::None)
    };
    let bounds = match &field.role {
        Some(Role::Attr { bounds, .. }) => docs::bounds(bounds),
        _ => String::new(),
    };
    quote! {
        ::autobwd::AttrDef { name: #name, ty: #conversions.0, default: #default, bounds: #bounds, doc: #doc, line: #line }
    }
}

/// A field read from data.
fn gathered(field: &Field<'_>) -> TokenStream {
    let (ident, name, at) = (field.ident, &field.name, at_type(field));
    let slot = |role: TokenStream| quote_spanned!(at=> ::autobwd::__private::gather_slot(desc, ::autobwd::Role::#role, #name, fill)?);
    let value = match &field.role {
        Some(Role::Input { .. }) => slot(quote!(Input)),
        Some(Role::Output { .. }) => slot(quote!(Output)),
        Some(Role::Attr { bounds, .. }) => {
            bounds.iter().fold(attr_value(field), |value, bound| bounded(field, value, bound))
        }
        _ => attr_value(field),
    };
    quote!(#ident: #value)
}

fn attr_value(field: &Field<'_>) -> TokenStream {
    let (name, conversions) = (&field.name, conversions_name(field));
    let default = if has_default(field) {
        let function = default_function(field);
        quote!(::core::option::Option::Some(#function))
    } else {
        quote!(::core::option::Option::None)
    };
    quote_spanned!(at_type(field)=> #conversions.2(desc, #name, #default)?)
}

fn bounded(field: &Field<'_>, value: TokenStream, bound: &Bound) -> TokenStream {
    let (name, limit) = (&field.name, limit_function(field, bound));
    let at = span::generated_at(bound.key.span());
    let check = match bound.kind {
        BoundKind::Min => quote_spanned!(at=> at_least),
        BoundKind::Max => quote_spanned!(at=> at_most),
        BoundKind::Above => quote_spanned!(at=> above),
        BoundKind::Below => quote_spanned!(at=> below),
    };
    quote_spanned!(at=> ::autobwd::__private::#check(#name, #value, #limit())?)
}

/// What runs the formula. Attributes are a tuple, which can be cloned, whatever the struct may be.
fn lanes(op: &Operator<'_>) -> TokenStream {
    let (ident, param) = (op.ident, &op.param);
    let (types, fields): (Vec<_>, Vec<_>) = op.fields.iter().map(|field| (field.ty, field.ident)).unzip();
    let is_slot = |field: &Field<'_>| matches!(field.role, Some(Role::Input { .. } | Role::Output { .. }));
    // The name is what the message on an attribute that cannot be copied says of the reason.
    let copied = op.attrs().next().map(|_| {
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
            Some(Role::Input { .. }) => input.next().map(|i| quote!(get(#i))),
            _ => Some(zero.clone()),
        };
        quote_spanned!(span=> #name: ::autobwd::Slot::<()>::map(&attrs.#at, |_| #value))
    });
    // Whether an output is there must not decide what is written where: that would keep lanes out of registers.
    let put = op.outputs().enumerate().map(|(i, field)| {
        let (name, at) = (field.ident, at_type(field));
        quote_spanned! {at=>
            let mut value = #zero;
            ::autobwd::Slot::<#param>::each(&op.#name, |held| value = *held);
            put(#i, value);
        }
    });
    let at = span::generated_at(ident.span());
    let eval = quote_spanned!(at=> ::autobwd::Pointwise::eval(&mut op););
    quote! {
        const _: () = {
            #copied
            // What slots hold in the types of fields.
            type #param = ();
            #[automatically_derived]
            impl ::autobwd::Lanes for #ident<::autobwd::Var> {
                type Attrs = (#(#types,)*);
                #[inline(always)]
                fn lane<#param: ::autobwd::Float>(
                    attrs: &Self::Attrs,
                    mut get: impl ::core::ops::FnMut(::core::primitive::usize) -> #param,
                    mut put: impl ::core::ops::FnMut(::core::primitive::usize, #param),
                ) {
                    let mut op: #ident<#param> = #ident { #(#values,)* };
                    #eval
                    #(#put)*
                }
                fn attrs(desc: &::autobwd::OpDesc) -> ::autobwd::Result<Self::Attrs> {
                    let op = <Self as ::autobwd::Op>::gather(desc, &mut |_, _, _| ::core::result::Result::Ok(()))?;
                    ::core::result::Result::Ok((#(op.#fields,)*))
                }
            }
        };
    }
}

/// What runs the formula for integers.
fn integer_lanes(op: &Operator<'_>) -> TokenStream {
    let (ident, param) = (op.ident, &op.param);
    let mut input = 0_usize..;
    let values = op.fields.iter().enumerate().map(|(at, field)| {
        let (name, span, at) = (field.ident, at_type(field), Index::from(at));
        let value = match field.role {
            Some(Role::Input { .. }) => {
                input.next().map(|i| quote!(::autobwd::Slot::<()>::map(&attrs.#at, |_| get(#i))))
            }
            Some(Role::Output { .. }) => Some(quote!(::core::default::Default::default())),
            _ => Some(quote!(attrs.#at)),
        };
        quote_spanned!(span=> #name: #value)
    });
    let result = op.outputs().map(|field| field.ident);
    let at = span::generated_at(ident.span());
    let eval = quote_spanned!(at=> ::autobwd::PointwiseInteger::eval(&mut op)?;);
    quote! {
        const _: () = {
            #[automatically_derived]
            impl ::autobwd::IntegerLanes for #ident<::autobwd::Var> {
                #[inline(always)]
                fn integer_lane<#param: ::autobwd::Integer>(
                    attrs: &<Self as ::autobwd::Lanes>::Attrs,
                    mut get: impl ::core::ops::FnMut(::core::primitive::usize) -> #param,
                ) -> ::autobwd::Result<#param> {
                    let mut op: #ident<#param> = #ident { #(#values,)* };
                    #eval
                    #(::core::result::Result::Ok(op.#result))*
                }
            }
        };
    }
}

/// The shape rule of a kernel whose outputs all have the shape of an input.
fn shape_rule(op: &Operator<'_>) -> TokenStream {
    let ident = op.ident;
    let like = op.outputs().filter_map(|field| match &field.role {
        Some(Role::Output { like: Some(like), .. }) => Some((field.ident, like)),
        _ => None,
    });
    let (outputs, inputs): (Vec<_>, Vec<_>) = like.unzip();
    // Whoever writes a second one is pointed to what the first is made from.
    let at = span::generated_at(inputs.first().map_or_else(Span::call_site, |input| input.span()));
    quote_spanned! {at=>
        #[automatically_derived]
        impl ::autobwd::Infer for #ident<::autobwd::Meta> {
            fn infer(&mut self) -> ::autobwd::Result<()> {
                #(::autobwd::__private::like(&mut self.#outputs, &self.#inputs)?;)*
                ::core::result::Result::Ok(())
            }
        }
    }
}

/// Slots of operator and gradient fit: checked by `cargo check`, in a constant of its own because elsewhere the message
/// would have notes on what surrounds it.
fn contract(op: &Operator<'_>) -> TokenStream {
    let ident = op.ident;
    let at = span::generated_at(span::last_segment(op.grad));
    let check = quote_spanned!(at=> ::autobwd::__private::check_contract::<#ident<::autobwd::Var>>());
    quote!(const _: () = #check;)
}

/// Refuses implementations of traits that the operator does not use: their author expects them to be called.
fn unused(op: &Operator<'_>) -> TokenStream {
    const ADD_KERNEL: &str = "the formula takes its place; remove it, or add `kernel` to `pointwise`";
    let (formula, at) = (op.pointwise && !op.has_kernel(), span::generated_at(op.ident.span()));
    let unused = |used: bool, name: &str, held: TokenStream, instead: &str| {
        let (ident, constant) = (op.ident, format_ident!("{}", name.to_uppercase()));
        let op_name = ident.to_string();
        (!used).then(|| {
            quote_spanned! {at=>
                const _: () = {
                    use ::autobwd::__private::Unwritten as _;
                    let written = ::autobwd::__private::Written::<#ident<#held>>::#constant;
                    ::autobwd::__private::refuse_unused(#op_name, #name, written, #instead)
                };
            }
        })
    };
    let shape_and_kernel =
        if formula { ADD_KERNEL } else { "an operator with a block has `impl Control`; remove it" };
    let (var, meta, buf) = (quote!(::autobwd::Var), quote!(::autobwd::Meta), quote!(::autobwd::Buf<'static>));
    let checks = [
        unused(op.has_kernel(), "Infer", meta, shape_and_kernel),
        unused(op.has_kernel() || has_sparse(op), "Kernel", buf, shape_and_kernel),
        unused(
            op.pointwise,
            "Pointwise",
            quote!(::autobwd::__private::Lane<::core::primitive::f32, false>),
            "add `pointwise`, or remove it",
        ),
        unused(op.composed.is_some(), "Compose", var.clone(), "add `composed`, or remove it"),
        unused(op.has_block(), "Control", var, "give the operator a `#[block]`, or remove it"),
    ];
    quote!(#(#checks)*)
}

/// Whether some input may hold rows of a tensor.
fn has_sparse(op: &Operator<'_>) -> bool {
    op.inputs().any(|field| matches!(field.role, Some(Role::Input { sparse: true, .. })))
}

/// The entry among all operators.
fn registration(op: &Operator<'_>) -> TokenStream {
    let sparse = has_sparse(op);
    let kind = match (op.has_kernel(), sparse) {
        _ if op.has_block() => quote!(control),
        (true, _) => quote!(kernel),
        (false, false) if op.integers.is_some() => quote!(pointwise_and_integers),
        (false, false) => quote!(pointwise),
        (false, true) => quote!(pointwise_and_kernel),
    };
    // A missing kernel or shape rule is reported at the struct's name.
    let at = span::generated_at(op.ident.span());
    let mut ident = op.ident.clone();
    ident.set_span(at);
    // The implementations are named one by one before they are asked for as bounds: the message on a missing one is
    // about the author's code then, and has no notes on generated code.
    let call = op
        .has_block()
        .then(|| quote_spanned!(at=> _ = <#ident<::autobwd::Var> as ::autobwd::Control>::call;));
    let infer = op
        .has_kernel()
        .then(|| quote_spanned!(at=> _ = <#ident<::autobwd::Meta> as ::autobwd::Infer>::infer;));
    let kernel = (op.has_kernel() || sparse)
        .then(|| quote_spanned!(at=> _ = <#ident<::autobwd::Buf<'_>> as ::autobwd::Kernel>::run;));
    let compose = op
        .composed
        .map(|_| quote_spanned!(at=> _ = <#ident<::autobwd::Var> as ::autobwd::Compose>::compose;));
    let formula = (op.pointwise && op.has_kernel())
        .then(|| quote_spanned!(at=> .with_formula::<#ident<::autobwd::Var>>()));
    let composed = op.composed.map(|_| quote_spanned!(at=> .composed::<#ident<::autobwd::Var>>()));
    let entry = quote_spanned! {at=>
        ::autobwd::__private::OpInfo::#kind::<#ident<::autobwd::Var>>(
            ::core::env!("CARGO_PKG_NAME"),
            ::core::env!("CARGO_PKG_VERSION"),
        )#formula #composed
    };
    quote! {
        const _: () = {
            const ENTRY: ::autobwd::__private::OpInfo = {
                #call
                #infer
                #kernel
                #compose
                #entry
            };
            ::autobwd::__private::inventory::submit! { ENTRY }
        };
    }
}

fn at_type(field: &Field<'_>) -> Span {
    span::generated_at(field.ty.span())
}

/// The source line of a name. Resolved as generated code, it would be that of `#[register_op]`.
fn line(ident: &Ident) -> TokenStream {
    quote_spanned!(ident.span()=> ::core::line!())
}
