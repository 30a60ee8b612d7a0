//! Groups of attributes: the expansion of `#[derive(Attrs)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::Ident;

use super::attrs;
use crate::ast::FieldDecl;

/// The implementation of `Attrs`, and for each field a setter with the field's visibility.
pub(crate) fn group(ident: &Ident, fields: &[FieldDecl<'_>]) -> TokenStream {
    let (items, defs) = (fields.iter().map(attrs::items), attrs::defs(fields.iter()));
    let (idents, reads): (Vec<_>, Vec<_>) =
        fields.iter().map(|field| (field.ident, attrs::read(field))).unzip();
    let writes = fields.iter().map(|field| {
        let ident = field.ident;
        attrs::write(field, quote!(recorder), quote!(self.#ident))
    });
    // The group has a default if each attribute has one.
    let defaults: Option<Vec<_>> = fields.iter().map(attrs::default_of).collect();
    let default = defaults.map(|defaults| {
        quote! {
            #[automatically_derived]
            impl ::core::default::Default for #ident {
                fn default() -> Self {
                    #ident { #(#idents: #defaults,)* }
                }
            }
        }
    });
    let setters = fields.iter().map(|field| {
        let (ident, ty, visibility) = (field.ident, field.ty, &field.original.vis);
        let doc = format!("The same with another `{}`.", field.name);
        quote! {
            #[doc = #doc]
            #[must_use]
            #[allow(dead_code, reason = "a private attribute may be read only")]
            #visibility fn #ident(mut self, #ident: impl ::core::convert::Into<#ty>) -> Self {
                self.#ident = ::core::convert::Into::into(#ident);
                self
            }
        }
    });
    quote! {
        #[automatically_derived]
        impl #ident {
            #(#setters)*
        }
        const _: () = {
            #(#items)*
            #default
            #[automatically_derived]
            impl ::autobwd::__private::Attrs for #ident {
                const DEFS: &'static [::autobwd::__private::AttrDef] = #defs;
                fn read(desc: &::autobwd::__private::OpDesc) -> ::autobwd::__private::Result<Self> {
                    ::core::result::Result::Ok(#ident { #(#idents: #reads,)* })
                }
                fn write(self, recorder: &mut ::autobwd::__private::AttrRecorder) -> Self {
                    #ident { #(#idents: #writes,)* }
                }
            }
        };
    }
}
