//! `#[derive(Attrs)]`: a struct of attributes that several operators share.
//!
//! Must not know operators.

use proc_macro2::TokenStream;
use syn::{Data, DeriveInput, Error, Fields};

use crate::{
    ast::{Field, Role},
    check,
    ctxt::Ctxt,
    expand,
    read::Scope,
};

pub(crate) fn derive(item: &DeriveInput) -> TokenStream {
    let cx = Ctxt::new();
    let fields = read(item, &cx);
    match cx.check() {
        Ok(()) => expand::group(&item.ident, &fields),
        Err(errors) => errors.into_compile_error(),
    }
}

fn read<'a>(item: &'a DeriveInput, cx: &Ctxt) -> Vec<Field<'a>> {
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
        named.named.iter().filter_map(|field| Field::read(field, Scope::Operator, cx)).collect();
    for field in fields.iter().filter(|field| !matches!(field.role, Some(Role::Attr { .. }))) {
        cx.error(field.ident, format!("`{}` is no attribute; mark it `#[attr]`", field.ident));
    }
    check::attributes(&fields, cx);
    fields
}
