//! `#[derive(Attrs)]`: a struct of attributes that several operators share.
//!
//! Must not know operators.

use proc_macro2::TokenStream;
use syn::{Data, DeriveInput, Error, Fields};

use crate::{
    ast::{FieldDecl, FieldRole},
    check,
    ctxt::ErrorSink,
    expand,
    read::StructKind,
};

pub(crate) fn derive(item: &DeriveInput) -> TokenStream {
    let cx = ErrorSink::new();
    let fields = read(item, &cx);
    match cx.check() {
        Ok(()) => expand::group(&item.ident, &fields),
        Err(errors) => errors.into_compile_error(),
    }
}

fn read<'a>(item: &'a DeriveInput, cx: &ErrorSink) -> Vec<FieldDecl<'a>> {
    if !item.generics.params.is_empty() {
        cx.error(&item.generics.params, "a group of attributes has no parameters");
    }
    let Data::Struct(data) = &item.data else {
        cx.push(Error::new_spanned(&item.ident, "a group of attributes is a struct"));
        return Vec::new();
    };
    let Fields::Named(named) = &data.fields else {
        cx.error(&item.ident, "a group of attributes has named fields");
        return Vec::new();
    };
    let fields: Vec<_> =
        named.named.iter().filter_map(|field| FieldDecl::read(field, StructKind::Operator, cx)).collect();
    for field in fields.iter().filter(|field| !matches!(field.role, Some(FieldRole::Attr { .. }))) {
        cx.error(field.ident, format!("`{}` is not an attribute; mark it `#[attr]`", field.ident));
    }
    check::attributes(&fields, cx);
    fields
}
