//! The registration of an operator: its entry in the registry, with its composition.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};

use super::has_kernel;
use crate::{ast::OperatorDecl, selection, span, types};

/// The registry entry, or the name alone of an operator that the build leaves out.
pub(super) fn entry(op: &OperatorDecl<'_>) -> TokenStream {
    let sparse = op.has_sparse_input();
    // Code with mistakes, which are reported, is not expanded.
    let inferred = op.inferred.and(op.grad_of);
    let kind = match (op.has_kernel(), sparse) {
        _ if op.has_block() => quote!(control),
        _ if op.composed.is_some() && inferred.is_some() => quote!(composed_gradient),
        _ if op.composed.is_some() => quote!(composed),
        (true, _) if inferred.is_some() => quote!(kernel_of_gradient),
        (true, _) => quote!(kernel),
        (false, false) if op.integers.is_some() => quote!(pointwise_and_integers),
        (false, false) => quote!(pointwise),
        (false, true) => quote!(pointwise_and_kernel),
    };
    // A missing kernel or shape rule is reported at the struct's name.
    let at = span::generated_at(op.ident.span());
    let mut ident = op.ident.clone();
    ident.set_span(at);
    // The implementations are named one by one before they are required as bounds: so the message on a missing one is
    // about the author's code, without notes on generated code.
    let call = op
        .has_block()
        .then(|| quote_spanned!(at=> _ = <#ident<::autobwd::__private::Var> as ::autobwd::__private::Control>::call;));
    let infer = (op.has_shape_rule() && inferred.is_none())
        .then(|| quote_spanned!(at=> _ = <#ident<::autobwd::__private::Meta> as ::autobwd::__private::Infer>::infer;));
    let kernel = has_kernel(op)
        .then(|| quote_spanned!(at=> _ = <#ident<::autobwd::__private::Buf<'_>> as ::autobwd::__private::Kernel>::run;));
    let decompose = op
        .decomposed
        .map(|_| quote_spanned!(at=> _ = <#ident<::autobwd::__private::Var> as ::autobwd::__private::Decompose>::decompose;));
    let formula = (op.pointwise && op.has_kernel())
        .then(|| quote_spanned!(at=> .with_formula::<#ident<::autobwd::__private::Var>>()));
    let decomposed =
        op.decomposed.map(|_| quote_spanned!(at=> .decomposed::<#ident<::autobwd::__private::Var>>()));
    let composition = composition(op);
    let infallible = op.infallible.map(|_| quote_spanned!(at=> .infallible()));
    let any_dtype = op.any_dtype.map(|_| quote_spanned!(at=> .any_dtype()));
    let factors = op.factors.map(|_| quote_spanned!(at=> .factors()));
    let halves = op.halves.map(|_| quote_spanned!(at=> .halves()));
    let update = op.elementwise_update.map(|_| quote_spanned!(at=> .elementwise_update()));
    let primitive = op.primitive.map(|_| quote_spanned!(at=> .primitive()));
    let peephole = op.peephole.map(|then| {
        let at = span::generated_at(span::last_segment(then));
        quote_spanned!(at=> .peephole::<#ident<::autobwd::__private::Var>, #then>())
    });
    let forward = inferred.into_iter();
    let check_inferred = op.inferred.zip(op.grad_of).map(|(inferred, forward)| {
        let (at, name) = (span::generated_at(inferred.span()), op.ident.to_string());
        quote_spanned! {at=>
            const _: () = ::autobwd::__private::check_inferred(
                #name,
                &<#forward as ::autobwd::__private::Op>::SCHEMA,
                &<#ident<::autobwd::__private::Var> as ::autobwd::__private::Op>::SCHEMA,
            );
        }
    });
    let entry = quote_spanned! {at=>
        ::autobwd::__private::OpInfo::#kind::<#ident<::autobwd::__private::Var> #(, #forward)*>(
            ::core::env!("CARGO_PKG_NAME"),
            ::core::env!("CARGO_PKG_VERSION"),
        )#formula #decomposed #composition #infallible #any_dtype #factors #halves #update #primitive #peephole
    };
    let (name, variable) = (&op.name, selection::VARIABLE);
    let item = match selection::links(name) {
        true => quote!(ENTRY),
        false => quote!(::autobwd::__private::LeftOut(#name)),
    };
    quote! {
        const _: () = {
            const _: ::core::option::Option<&::core::primitive::str> = ::core::option_env!(#variable);
            #[allow(dead_code, reason = "a build may leave the operator out")]
            const ENTRY: ::autobwd::__private::OpInfo = {
                #call
                #check_inferred
                #infer
                #kernel
                #decompose
                #entry
            };
            ::autobwd::__private::inventory::submit! { #item }
        };
    }
}

/// The compositions of the operator and of its forward operator, if they exist.
fn composition(op: &OperatorDecl<'_>) -> TokenStream {
    let written = |ty: TokenStream| quote!(::autobwd::__private::ImplProbe::<#ty>::COMPOSITION);
    let (ident, name) = (op.ident, op.ident.to_string());
    let own = written(quote!(#ident<::autobwd::__private::Expr>));
    let forward = op.grad_of.map(|forward| {
        let composition =
            written(quote!(<#forward as ::autobwd::__private::Op>::Of<::autobwd::__private::Expr>));
        (composition, quote!(&<#forward as ::autobwd::__private::Op>::SCHEMA))
    });
    let of_forward = match &forward {
        Some((composition, schema)) => quote! {
            match #composition {
                ::core::option::Option::Some(composition) => ::core::option::Option::Some((composition, #schema)),
                ::core::option::Option::None => ::core::option::Option::None,
            }
        },
        None => quote!(::core::option::Option::None),
    };
    let needs_it = match op.composed {
        Some(composed) => Some(composed.span()),
        None => types::is_named(op.grad, "Composed").then(|| span::last_segment(op.grad)),
    };
    let check = needs_it.map(|needs_it| {
        let at = span::generated_at(needs_it);
        let (has_forward, schema) = match &forward {
            Some((composition, schema)) => {
                (quote!(#composition.is_some()), quote!(::core::option::Option::Some(#schema)))
            }
            None => (quote!(false), quote!(::core::option::Option::None)),
        };
        quote_spanned! {at=>
            const _: () = ::autobwd::__private::check_composed(
                #name,
                #schema,
                &<#ident<::autobwd::__private::Var> as ::autobwd::__private::Op>::SCHEMA,
                [#own.is_some(), #has_forward],
            );
        }
    });
    let multilinear = types::is_named(op.grad, "Multilinear").then(|| {
        let at = span::generated_at(span::last_segment(op.grad));
        let schema = match &forward {
            Some((_, schema)) => quote!(::core::option::Option::Some(#schema)),
            None => quote!(::core::option::Option::None),
        };
        quote_spanned! {at=>
            const _: () = ::autobwd::__private::check_multilinear(
                #name,
                #schema,
                &<#ident<::autobwd::__private::Var> as ::autobwd::__private::Op>::SCHEMA,
            );
        }
    });
    let self_adjoint = types::is_named(op.grad, "SelfAdjoint").then(|| {
        let at = span::generated_at(span::last_segment(op.grad));
        quote_spanned! {at=>
            const _: () = ::autobwd::__private::check_self_adjoint(
                #name,
                &<#ident<::autobwd::__private::Var> as ::autobwd::__private::Op>::SCHEMA,
            );
        }
    });
    let gradient_of = forward.iter().map(|(_, schema)| quote!(.gradient_of(#schema)));
    quote! {
        #(#gradient_of)*
        .composition(
            {
                use ::autobwd::__private::ImplDefaults as _;
                #check
                #multilinear
                #self_adjoint
                #own
            },
            {
                use ::autobwd::__private::ImplDefaults as _;
                #of_forward
            },
        )
    }
}
