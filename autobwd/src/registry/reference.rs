//! An operator's reference, as text.

use std::fmt;

use super::{OpInfo, Run};
use crate::{Arity, AttrDef, GradKind, SlotDef};

impl fmt::Display for OpInfo {
    /// The operator's reference: documentation, slots, attributes with defaults and bounds, gradient, and where it is from.
    ///
    /// ```
    /// # use autobwd_ops as _;
    /// let scale = autobwd::OpInfoMap::linked()?.get("scale")?;
    /// let text = scale.to_string();
    /// assert!(text.starts_with("operator `scale`\n"));
    /// assert!(text.contains("\n  attribute `scale`: f64, default 1.0\n"), "{text}");
    /// # Ok::<(), autobwd::Error>(())
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = &self.schema;
        writeln!(f, "operator `{}`", schema.name)?;
        schema.doc.lines().try_for_each(|line| writeln!(f, "{}", format!("  {line}").trim_end()))?;
        writeln!(f)?;
        schema.inputs.iter().try_for_each(|slot| self::slot(f, "input", slot))?;
        schema.outputs.iter().try_for_each(|slot| self::slot(f, "output", slot))?;
        schema.attrs.iter().try_for_each(|attr| self::attr(f, attr))?;
        let gradient = match self.grad_kind {
            GradKind::Operator(gradient) => format!("operator `{}`", gradient.name),
            GradKind::Derived(gradient) => {
                format!("operator `{}`, derived from the formula", gradient.schema.name)
            }
            GradKind::Composed => "that of its composition".into(),
            GradKind::Rule => "operators that a rule emits".into(),
            GradKind::None => "none, and needing one is an error".into(),
            GradKind::Zero => "zero".into(),
        };
        writeln!(f, "  gradient: {gradient}")?;
        let runs = match (self.run, self.lanes.is_some()) {
            (Run::Control(_), _) => "its block",
            (Run::Formula { others: None }, _) => "a formula",
            (Run::Formula { .. }, _) if schema.integers => "a formula, and another for integers",
            (Run::Formula { .. }, _) => "a formula, and a kernel for sparse inputs",
            (Run::Kernel(_), true) => "a kernel, and a formula among elementwise neighbours",
            (Run::Kernel(_), false) => "a kernel",
        };
        writeln!(f, "  runs: {runs}")?;
        writeln!(f, "  registered by {}", self.place())
    }
}

/// A line, with its documentation below.
fn line(f: &mut fmt::Formatter<'_>, text: &str, doc: &str) -> fmt::Result {
    writeln!(f, "  {text}")?;
    if doc.is_empty() { Ok(()) } else { writeln!(f, "    {doc}") }
}

fn slot(f: &mut fmt::Formatter<'_>, side: &str, slot: &SlotDef) -> fmt::Result {
    let takes = match slot.arity {
        Arity::One => "one variable",
        Arity::Optional => "at most one variable",
        Arity::Many => "any number of variables",
        Arity::Holes => "any number of variables, any of which may be absent",
    };
    let mut text = format!("{side} `{}`: {takes}", slot.name);
    let options =
        [(slot.shape_only, "shape only"), (slot.sparse, "may be sparse"), (slot.array, "may be an array")];
    for (_, option) in options.into_iter().filter(|(holds, _)| *holds) {
        text += &format!(", {option}");
    }
    for (option, of) in [("may share the memory of", slot.inplace), ("has dtype and shape of", slot.like)] {
        text += &of.map(|of| format!(", {option} `{of}`")).unwrap_or_default();
    }
    line(f, &text, slot.doc)
}

fn attr(f: &mut fmt::Formatter<'_>, attr: &AttrDef) -> fmt::Result {
    let default = attr.default.map_or_else(|| "required".into(), |value| format!("default {}", value()));
    let bounds = if attr.bounds.is_empty() { String::new() } else { format!(", {}", attr.bounds_text()) };
    line(f, &format!("attribute `{}`: {}, {default}{bounds}", attr.name, attr.ty), attr.doc)
}
