//! Where messages point.
//!
//! Must not know what is generated.

use proc_macro2::Span;
use syn::{Type, spanned::Spanned};

/// The last path segment of a type.
///
/// On stable the span of several tokens is that of the first one: `ops::MulGrad` would be blamed at `ops`.
pub(crate) fn last_segment(ty: &Type) -> Span {
    match ty {
        Type::Path(path) => path.path.segments.last().map_or_else(|| ty.span(), |s| s.ident.span()),
        Type::Group(group) => last_segment(&group.elem),
        other => other.span(),
    }
}

/// That place in the source, with names resolved as those of generated code: a struct that `macro_rules!` makes has a
/// hygiene of its own.
pub(crate) fn generated_at(span: Span) -> Span {
    span.resolved_at(Span::call_site())
}
