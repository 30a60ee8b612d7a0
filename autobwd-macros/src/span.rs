//! Spans of messages.
//!
//! Must not know the generated code.

use proc_macro2::Span;
use syn::{Type, spanned::Spanned};

/// The last path segment of a type.
///
/// On stable, the span of several tokens is that of the first one: `ops::MulGrad` would be reported at `ops`.
pub(crate) fn last_segment(ty: &Type) -> Span {
    match ty {
        Type::Path(path) => path.path.segments.last().map_or_else(|| ty.span(), |s| s.ident.span()),
        Type::Group(group) => last_segment(&group.elem),
        other => other.span(),
    }
}

/// This source location, with names resolved as in generated code: a struct from `macro_rules!` has its own hygiene.
pub(crate) fn generated_at(span: Span) -> Span {
    span.resolved_at(Span::call_site())
}
