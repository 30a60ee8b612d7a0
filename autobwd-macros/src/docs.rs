//! Documentation: the author's text, and the generated tables.
//!
//! Must not know the generated code.

use quote::ToTokens;
use syn::{Attribute, Expr, Lit, Meta, Type, parse_quote};

use crate::{
    ast::{AttrLimit, FieldDecl, FieldRole, OperatorDecl},
    text, types,
};

/// The text of doc comments.
pub(crate) fn text(attrs: &[Attribute]) -> String {
    let lines: Vec<String> = attrs.iter().filter_map(line).collect();
    lines.join("\n").trim().to_string()
}

/// A line of documentation.
pub(crate) fn attribute(line: &String) -> Attribute {
    parse_quote!(#[doc = #line])
}

/// The first paragraph, on one line.
pub(crate) fn first_paragraph(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// The default documentation of a gradient's slot, `Out@GRAD`.
pub(crate) fn of_gradient(slot: &str) -> String {
    slot.strip_suffix("@GRAD").map(|of| format!("Gradient of `{of}`.")).unwrap_or_default()
}

/// The documentation of a field: the author's text, else its origin.
pub(crate) fn of_field(field: &FieldDecl<'_>, op: &OperatorDecl<'_>) -> String {
    let may_inherit = field.inherited || matches!(field.role, Some(FieldRole::Attrs));
    match op.grad_of {
        Some(forward) if may_inherit && field.doc.is_empty() => {
            format!("See [`{}`].", text::of_tokens(forward))
        }
        _ => field.doc.clone(),
    }
}

/// The bounds of an attribute, `min = 0.0, below = 1.0`.
pub(crate) fn bounds(bounds: &[AttrLimit]) -> String {
    let texts = bounds.iter().map(|b| format!("{} = {}", b.kind.key(), text::of_tokens(&b.limit)));
    texts.collect::<Vec<_>>().join(", ")
}

/// The generated lines after the author's text: slots, attributes, gradient.
pub(crate) fn reference(op: &OperatorDecl<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let slots: Vec<String> = op.inputs().chain(op.outputs()).map(|f| slot_row(f, op)).collect();
    table(&mut lines, ["Slot", "Field", "Takes", "Meaning"], slots);
    let attrs: Vec<String> = op.attrs().chain(op.groups()).map(|f| attr_row(f, op)).collect();
    table(&mut lines, ["Attribute", "Type", "Default", "Meaning"], attrs);
    lines.push(String::new());
    lines.push(gradient(op.grad));
    lines
}

/// The text of one doc comment, without its leading space.
fn line(attr: &Attribute) -> Option<String> {
    match &attr.meta {
        Meta::NameValue(doc) if doc.path.is_ident("doc") => {
            let text = string(&doc.value)?;
            Some(text.strip_prefix(' ').unwrap_or(&text).trim_end().to_string())
        }
        _ => None,
    }
}

fn string(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(expr) if let Lit::Str(text) = &expr.lit => Some(text.value()),
        // A doc comment that passed through `macro_rules!`.
        Expr::Group(group) => string(&group.expr),
        _ => None,
    }
}

fn table(lines: &mut Vec<String>, heads: [&str; 4], rows: Vec<String>) {
    if rows.is_empty() {
        return;
    }
    lines.push(String::new());
    lines.push(format!("| {} |", heads.join(" | ")));
    lines.push("|---|---|---|---|".to_string());
    lines.extend(rows);
}

fn row(cells: [&str; 4]) -> String {
    format!("| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

fn slot_row(field: &FieldDecl<'_>, op: &OperatorDecl<'_>) -> String {
    let side = match field.role {
        Some(FieldRole::Input { .. }) => "input",
        _ => "output",
    };
    let slot = if field.inherited { side.to_string() } else { format!("{side} `{}`", field.name) };
    let takes = types::takes(field.ty, &op.param).unwrap_or_default();
    row([&slot, &code(field.ident), takes, &of_field(field, op)])
}

fn attr_row(field: &FieldDecl<'_>, op: &OperatorDecl<'_>) -> String {
    if matches!(field.role, Some(FieldRole::Attrs)) {
        let ty = format!("[`{}`]", text::of_tokens(field.ty));
        return row([&code(field.ident), &ty, "", &of_field(field, op)]);
    }
    let (default, bounds) = match &field.role {
        Some(FieldRole::Attr { default, bounds }) => (default.as_ref(), self::bounds(bounds)),
        _ => (None, String::new()),
    };
    let default = match (default, op.grad_of) {
        (Some(default), _) => code(default),
        (None, Some(forward)) if field.inherited => format!("as in [`{}`]", text::of_tokens(forward)),
        (None, _) => "required".to_string(),
    };
    let bounds = if bounds.is_empty() { String::new() } else { format!(" (`{bounds}`)") };
    row([&format!("`{}`", field.name), &code(field.ty), &format!("{default}{bounds}"), &of_field(field, op)])
}

fn gradient(grad: &Type) -> String {
    let text = text::of_tokens(grad);
    match text.rsplit("::").next() {
        Some("Derived" | "DerivedFromInputs") => "Gradient: made from the formula".to_string(),
        Some("NoGrad") => "Gradient: none".to_string(),
        Some("ZeroGrad") => "Gradient: zero".to_string(),
        // Not a path, so there is no link.
        _ if text.contains('<') => format!("Gradient: `{text}`"),
        _ => format!("Gradient: [`{text}`]"),
    }
}

fn code(tokens: impl ToTokens) -> String {
    format!("`{}`", text::of_tokens(tokens))
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::reference;
    use crate::{args::MacroArgs, ast::OperatorDecl, ctxt::ErrorSink};

    #[test]
    fn tables_have_slots_attributes_and_gradient() {
        let item = parse_quote! {
            /// `out = x · gate`.
            pub struct Gate<V = Var> {
                /// Any shape,
                /// on two lines.
                ///
                /// Not in the table.
                #[input]
                pub x: V,
                /// `a | b`.
                #[input("Input")]
                pub gates: Vec<Option<V>>,
                #[output("X@GRAD", inplace = x)]
                pub out: Option<V>,
                /// How steep.
                #[attr(default = 1.0, above = 0.0, max = 8.5)]
                pub steepness: f32,
                /// Which one.
                #[attr]
                pub axis: i64,
            }
        };
        let cx = ErrorSink::new();
        let args = MacroArgs::read(quote::quote!(grad = own::GateGrad), &cx);
        let lines = reference(&OperatorDecl::read(&item, &args, &cx));
        cx.check().unwrap();
        assert_eq!(
            lines,
            [
                "",
                "| Slot | Field | Takes | Meaning |",
                "|---|---|---|---|",
                "| input `X` | `x` | one | Any shape, on two lines. |",
                "| input `Input` | `gates` | a list with holes | `a \\| b`. |",
                "| output `X@GRAD` | `out` | at most one | Gradient of `X`. |",
                "",
                "| Attribute | Type | Default | Meaning |",
                "|---|---|---|---|",
                "| `steepness` | `f32` | `1.0` (`above = 0.0, max = 8.5`) | How steep. |",
                "| `axis` | `i64` | required | Which one. |",
                "",
                "Gradient: [`own::GateGrad`]",
            ]
        );
    }

    #[test]
    fn an_operator_without_attributes_has_one_table() {
        for (grad, line) in [
            ("autobwd::Derived", "Gradient: made from the formula"),
            ("NoGrad", "Gradient: none"),
            ("ZeroGrad", "Gradient: zero"),
            ("Rule<3>", "Gradient: `Rule<3>`"),
        ] {
            let item = parse_quote! {
                struct Double<V = Var> {
                    #[input]
                    x: V,
                    #[output]
                    out: V,
                }
            };
            let (cx, grad) = (ErrorSink::new(), syn::parse_str::<syn::Type>(grad).unwrap());
            let args = MacroArgs::read(quote::quote!(grad = #grad, pointwise), &cx);
            let lines = reference(&OperatorDecl::read(&item, &args, &cx));
            cx.check().unwrap();
            assert_eq!((lines.len(), lines[6].as_str()), (7, line), "{lines:?}");
        }
    }
}
