//! The generated code.
//!
//! Must not check anything: its input is valid.
//!
//! Every use of the author's types has their spans, so that compiler messages point there. Paths are absolute, because
//! the author's crate may have a `Result` or `Option` of its own.

mod attrs;
mod formula;
mod group;
mod inherit;
mod registration;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;

use crate::{
    ast::{FieldDecl, FieldRole, OperatorDecl},
    name, span, types,
};

pub(crate) use group::group;

/// The expansion of an operator, without the struct itself.
pub(crate) fn operator(op: &OperatorDecl<'_>) -> TokenStream {
    let (inherited, attrs) = (inherit::items(op), op.attrs().chain(op.groups()).map(attrs::items));
    let (describe, op_impl, debug) = (describe(op), op_impl(op), debug(op));
    let lanes = op.pointwise.then(|| formula::lanes(op));
    let integers = op.integers.map(|_| formula::integer_lanes(op));
    let shape_rule = (op.has_shape_rule() && op.is_all_like()).then(|| shape_rule(op));
    let (contract, unused, registration) = (contract(op), unused(op), registration::entry(op));
    quote! {
        const _: () = {
            #inherited
            #(#attrs)*
            #describe
            #op_impl
            #debug
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
fn describe(op: &OperatorDecl<'_>) -> TokenStream {
    let (ident, param) = (op.ident, &op.param);
    let fields = op.fields.iter().map(|field| {
        let (ident, name, at) = (field.ident, slot_name(field), at_type(field));
        let slot = |role: TokenStream| quote_spanned!(at=> #ident: to.slot(::autobwd::__private::Role::#role, #name, self.#ident));
        match field.role {
            Some(FieldRole::Input { .. }) => slot(quote!(Input)),
            Some(FieldRole::Output { .. }) => slot(quote!(Output)),
            Some(FieldRole::Scratch { .. }) => quote_spanned!(at=> #ident: ::core::mem::drop(self.#ident)),
            _ => {
                let value = attrs::write(field, quote!(to.recorder()), quote!(self.#ident));
                quote!(#ident: #value)
            }
        }
    });
    quote! {
        #[automatically_derived]
        impl<#param> ::autobwd::__private::Describe<#param> for #ident<#param> {
            type Op = #ident<::autobwd::__private::Var>;
            #[inline]
            fn into_parts(self, to: &mut ::autobwd::__private::SlotValues<#param>) -> #ident<()> {
                #ident { #(#fields,)* }
            }
        }
    }
}

/// `Debug`, unless the author derives it.
fn debug(op: &OperatorDecl<'_>) -> Option<TokenStream> {
    let derives = |attr: &syn::Attribute| {
        attr.path().is_ident("derive") && attr.to_token_stream().to_string().contains("Debug")
    };
    if op.item.attrs.iter().any(derives) {
        return None;
    }
    let (ident, param) = (op.ident, &op.param);
    let name = ident.to_string();
    let (idents, names): (Vec<_>, Vec<_>) =
        op.fields.iter().map(|field| (field.ident, field.ident.to_string())).unzip();
    Some(quote! {
        #[automatically_derived]
        impl<#param: ::core::fmt::Debug> ::core::fmt::Debug for #ident<#param> {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                let fields: &[(&::core::primitive::str, &dyn ::core::fmt::Debug)] =
                    &[#((#names, &self.#idents)),*];
                ::autobwd::__private::debug_struct(#name, fields, f)
            }
        }
    })
}

fn op_impl(op: &OperatorDecl<'_>) -> TokenStream {
    let (ident, param, grad) = (op.ident, &op.param, op.grad);
    let at = span::generated_at(span::last_segment(grad));
    let function = types::is_function(grad).then(|| gradient_function(op));
    let grad = match &function {
        Some(_) => quote!(
            type Grad = __GradientFunction;
        ),
        None => quote_spanned!(at=> type Grad = #grad;),
    };
    // Scratch memory comes last: `fill` first returns slot values, in order.
    let (scratch, others): (Vec<_>, Vec<_>) =
        op.fields.iter().partition(|field| matches!(field.role, Some(FieldRole::Scratch { .. })));
    let fields: Vec<_> = others.into_iter().chain(scratch).collect();
    let (schema, gathered) = (schema(op), fields.iter().map(|field| gathered(field)));
    let filled = fields.iter().map(|field| {
        let (ident, at) = (field.ident, at_type(field));
        match field.role {
            Some(FieldRole::Scratch { .. }) => quote_spanned!(at=> #ident: fill()),
            Some(FieldRole::Input { .. } | FieldRole::Output { .. }) => {
                quote_spanned!(at=> #ident: ::autobwd::__private::Slot::<()>::filled(&of.#ident, fill))
            }
            _ => quote_spanned!(at=> #ident: of.#ident),
        }
    });
    let (outputs, indices) = (op.outputs().map(|field| field.ident), 0..op.outputs().count());
    quote! {
        #function
        #[automatically_derived]
        impl ::autobwd::__private::Op for #ident<::autobwd::__private::Var> {
            const SCHEMA: ::autobwd::__private::Schema = #schema;
            #grad
            type Of<#param> = #ident<#param>;
            fn read(
                desc: &::autobwd::__private::OpDesc,
                visit: &mut dyn ::core::ops::FnMut(
                    ::autobwd::__private::Role,
                    &'static ::core::primitive::str,
                    ::autobwd::__private::Var,
                ) -> ::autobwd::__private::Result<()>,
            ) -> ::autobwd::__private::Result<#ident<()>> {
                ::core::result::Result::Ok(#ident { #(#gathered,)* })
            }
            // Compiled where it is used only.
            #[inline]
            fn from_desc(desc: &::autobwd::__private::OpDesc) -> ::autobwd::__private::Result<Self> {
                <Self as ::autobwd::__private::Op>::from_desc_with(desc, &mut |_, _, var| ::core::result::Result::Ok(var))
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

/// The gradient rule of an operator with `grad = function`.
fn gradient_function(op: &OperatorDecl<'_>) -> TokenStream {
    let (ident, function) = (op.ident, op.grad);
    let operator = quote!(#ident<::autobwd::__private::Var>);
    let at = span::generated_at(span::last_segment(function));
    let rule = quote_spanned! {at=>
        let rule: fn(&#operator, &mut ::autobwd::__private::GradCx<'_>) = #function;
    };
    quote! {
        #[doc(hidden)]
        #[derive(Debug)]
        pub struct __GradientFunction;
        #[automatically_derived]
        impl ::autobwd::__private::GradRule<#operator> for __GradientFunction {
            fn emit(fwd: &#operator, g: &mut ::autobwd::__private::GradCx<'_>) {
                #rule
                rule(fwd, g)
            }
        }
    }
}

fn schema(op: &OperatorDecl<'_>) -> TokenStream {
    let OperatorDecl { name, doc, pointwise, .. } = op;
    let (broadcast, integers) = (op.broadcast.is_some(), op.integers.is_some());
    let (inputs, outputs) = (op.inputs().map(|f| slot_def(f, op)), op.outputs().map(|f| slot_def(f, op)));
    let is_attr = |field: &&FieldDecl<'_>| {
        !matches!(
            field.role,
            Some(FieldRole::Input { .. } | FieldRole::Output { .. } | FieldRole::Scratch { .. })
        )
    };
    let attrs = attrs::defs(op.fields.iter().filter(is_attr));
    let (line, scratch) = (line(op.ident), scratch_defs(op));
    quote! {
        ::autobwd::__private::Schema {
            name: #name,
            inputs: &[#(#inputs),*],
            outputs: &[#(#outputs),*],
            scratch: &[#(#scratch),*],
            attrs: #attrs,
            pointwise: #pointwise,
            broadcast: #broadcast,
            integers: #integers,
            doc: #doc,
            file: ::core::file!(),
            line: #line,
        }
    }
}

/// The scratch memory of the kernel.
fn scratch_defs(op: &OperatorDecl<'_>) -> impl Iterator<Item = TokenStream> {
    op.scratch().filter_map(|(field, like)| {
        let (name, like) = (name::attribute(field.ident), op.slot(like?)?);
        let role = match like.role {
            Some(FieldRole::Output { .. }) => quote!(Output),
            _ => quote!(Input),
        };
        let like = slot_name(like);
        Some(quote!(::autobwd::__private::ScratchDef::new(#name, ::autobwd::__private::Role::#role, #like)))
    })
}

fn slot_def(field: &FieldDecl<'_>, op: &OperatorDecl<'_>) -> TokenStream {
    let FieldDecl { doc, ty, .. } = field;
    let (name, field_name) = (slot_name(field), name::attribute(field.ident));
    let (line, param) = (line(field.ident), &op.param);
    let arity = quote_spanned! {at_type(field)=> {
        type #param = ::autobwd::__private::Var;
        <#ty as ::autobwd::__private::Slot<#param>>::ARITY
    }};
    let partner = |partner: &Option<Ident>| {
        let input = partner.as_ref().and_then(|partner| op.input(partner));
        input.map(slot_name)
    };
    let options = match &field.role {
        Some(FieldRole::Input { shape_only, constant, sparse, checked, array }) => {
            let shape_only = shape_only.then(|| quote!(.shape_only()));
            let constant = constant.then(|| quote!(.constant()));
            let sparse = sparse.then(|| quote!(.sparse()));
            let checked = checked.then(|| quote!(.checked()));
            let array = array.then(|| quote!(.array()));
            quote!(#shape_only #constant #sparse #checked #array)
        }
        Some(FieldRole::Output { inplace, like, array }) => {
            let (inplace, like) = (partner(inplace).into_iter(), partner(like).into_iter());
            let array = array.then(|| quote!(.array()));
            quote!(#(.inplace(#inplace))* #(.like(#like))* #array)
        }
        _ => TokenStream::new(),
    };
    if field.inherited {
        let slot = inherit::slot(field, &arity);
        return quote!(#slot #options);
    }
    quote!(::autobwd::__private::SlotDef::new(#name, #arity, #doc, #line).field(#field_name)#options)
}

/// The name of a slot in programs.
fn slot_name(field: &FieldDecl<'_>) -> TokenStream {
    if field.inherited { inherit::name_of(field).into_token_stream() } else { field.name.to_token_stream() }
}

/// A field read from data, without slot values.
fn gathered(field: &FieldDecl<'_>) -> TokenStream {
    let (ident, name, at) = (field.ident, slot_name(field), at_type(field));
    let slot = |role: TokenStream| quote_spanned!(at=> ::autobwd::__private::gather_slot(desc, ::autobwd::__private::Role::#role, #name, visit)?);
    let value = match &field.role {
        Some(FieldRole::Input { .. }) => slot(quote!(Input)),
        Some(FieldRole::Output { .. }) => slot(quote!(Output)),
        Some(FieldRole::Scratch { .. }) => {
            let field_name = name::attribute(ident);
            quote_spanned!(at=> ::autobwd::__private::visit_scratch(#field_name, visit)?)
        }
        _ => attrs::read(field),
    };
    quote!(#ident: #value)
}

/// The shape rule of an operator with outputs that all declare the shape of an input: it only checks gradients.
fn shape_rule(op: &OperatorDecl<'_>) -> TokenStream {
    let ident = op.ident;
    let gradients = op
        .inputs()
        .filter(|_| op.grad_of.is_some())
        .filter_map(|field| Some((field_of(op, field)?, field.ident)));
    let (of, gradients): (Vec<_>, Vec<_>) = gradients.unzip();
    // An error about a second shape rule points to the origin of this one.
    let like = op.outputs().find_map(|field| match &field.role {
        Some(FieldRole::Output { like, .. }) => like.as_ref(),
        _ => None,
    });
    let at = span::generated_at(like.map_or_else(Span::call_site, Ident::span));
    quote_spanned! {at=>
        #[automatically_derived]
        impl ::autobwd::__private::Infer for #ident<::autobwd::__private::Meta> {
            fn infer(&mut self) -> ::autobwd::__private::Result<()> {
                #(::autobwd::__private::same_as(&self.#of, &self.#gradients)?;)*
                ::core::result::Result::Ok(())
            }
        }
    }
}

/// The input whose gradient another input is.
fn field_of<'a>(op: &OperatorDecl<'a>, gradient: &FieldDecl<'_>) -> Option<&'a Ident> {
    let name = gradient.ident.to_string();
    let of = |prefix| {
        op.inputs().find(|field| Some(field.ident.to_string().as_str()) == name.strip_prefix(prefix))
    };
    of("d").or_else(|| of("d_")).map(|field| field.ident)
}

/// Checks the contract between operator and gradient at compile time. In a constant of its own, since the message would
/// otherwise have notes on the surrounding code.
fn contract(op: &OperatorDecl<'_>) -> TokenStream {
    let ident = op.ident;
    let at = span::generated_at(span::last_segment(op.grad));
    let check =
        quote_spanned!(at=> ::autobwd::__private::check_contract::<#ident<::autobwd::__private::Var>>());
    let at = span::generated_at(ident.span());
    let names = quote_spanned!(at=> ::autobwd::__private::check_names(
        &<#ident<::autobwd::__private::Var> as ::autobwd::__private::Op>::SCHEMA
    ));
    quote! {
        const _: () = #check;
        const _: () = #names;
    }
}

/// Rejects implementations of traits that the operator does not use: their author expects them to be called.
fn unused(op: &OperatorDecl<'_>) -> TokenStream {
    const ADD_KERNEL: &str = "a formula replaces it; remove it, or add `kernel` to `pointwise`";
    const NOT_INFERRED: &str = "`inferred` replaces it; remove either";
    const NOT_COMPOSED: &str = "the composition runs in its place; remove it, or remove `composed`";
    let (formula, at) = (op.pointwise && !op.has_shape_rule(), span::generated_at(op.ident.span()));
    let unused = |used: bool, name: &str, held: TokenStream, instead: &str| {
        let (ident, constant) = (op.ident, format_ident!("{}", name.to_uppercase()));
        let op_name = ident.to_string();
        (!used).then(|| {
            quote_spanned! {at=>
                const _: () = {
                    use ::autobwd::__private::ImplDefaults as _;
                    let written = ::autobwd::__private::ImplProbe::<#ident<#held>>::#constant;
                    ::autobwd::__private::refuse_unused(#op_name, #name, written, #instead)
                };
            }
        })
    };
    let shape_and_kernel =
        if formula { ADD_KERNEL } else { "an operator with a block has `impl Control`; remove it" };
    let shape_rule = if op.inferred.is_some() { NOT_INFERRED } else { shape_and_kernel };
    let kernel = if op.composed.is_some() { NOT_COMPOSED } else { shape_and_kernel };
    let (var, meta, buf) = (
        quote!(::autobwd::__private::Var),
        quote!(::autobwd::__private::Meta),
        quote!(::autobwd::__private::Buf<'static>),
    );
    let checks = [
        unused(op.has_shape_rule() && op.inferred.is_none(), "Infer", meta, shape_rule),
        unused(has_kernel(op), "Kernel", buf, kernel),
        unused(
            op.pointwise,
            "Pointwise",
            quote!(::autobwd::__private::Lane<::core::primitive::f32, false>),
            "add `pointwise`, or remove it",
        ),
        unused(op.decomposed.is_some(), "Decompose", var.clone(), "add `decomposed`, or remove it"),
        unused(op.has_block(), "Control", var, "give the operator a `#[block]`, or remove it"),
    ];
    quote!(#(#checks)*)
}

/// Whether its kernel runs, for some inputs at least.
fn has_kernel(op: &OperatorDecl<'_>) -> bool {
    op.has_kernel() || op.has_sparse_input() && op.composed.is_none()
}

fn at_type(field: &FieldDecl<'_>) -> Span {
    span::generated_at(field.ty.span())
}

/// The source line of a name. As generated code, it would have the line of `#[register_op]`.
fn line(ident: &Ident) -> TokenStream {
    quote_spanned!(ident.span()=> ::core::line!())
}
