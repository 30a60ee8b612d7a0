//! The text reference of an operator.

use std::fmt;

use super::{Implementation, OpInfo};
use crate::{Arity, Attr, AttrDef, AttrType, GradKind, OpDesc, Schema, SlotDef, Var};

impl fmt::Display for OpInfo {
    /// The operator's reference: documentation, slots, attributes with defaults and bounds, formula, gradient, and
    /// source location.
    ///
    /// ```
    /// # use autobwd_ops as _;
    /// use autobwd::OpInfoMap;
    /// let scale = OpInfoMap::linked()?.get("scale")?;
    /// let text = scale.to_string();
    /// assert!(text.starts_with("operator `scale`\n"));
    /// assert!(text.contains("\n  attribute `scale`: f64, default 1.0\n"), "{text}");
    /// assert!(OpInfoMap::linked()?.get("silu")?.to_string().contains("\n  formula: out = x * sigmoid(x)\n"));
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
        formula(f, self)?;
        let gradient = match self.grad_kind {
            GradKind::Operator(gradient) => format!("operator `{}`", gradient.name),
            GradKind::Derived(gradient) => {
                format!("operator `{}`, derived from the formula", gradient.schema.name)
            }
            GradKind::Composed => "that of its composition".into(),
            GradKind::Rule => "operators that a rule emits".into(),
            kind @ GradKind::None(_) => format!("none, and needing one is an error{}", kind.because()),
            GradKind::Zero => "zero".into(),
        };
        writeln!(f, "  gradient: {gradient}")?;
        let runs = match (self.run, self.lanes.is_some()) {
            (Implementation::Control(_), _) => "its block",
            (Implementation::Composition, _) => "its composition",
            (Implementation::Formula { others: None }, _) => "a formula",
            (Implementation::Formula { .. }, _) if schema.integers => "a formula, and another for integers",
            (Implementation::Formula { .. }, _) => "a formula, and a kernel for sparse inputs",
            (Implementation::Kernel(_), true) => "a kernel, and a formula among elementwise neighbours",
            (Implementation::Kernel(_), false) => "a kernel",
        };
        writeln!(f, "  runs: {runs}")?;
        writeln!(f, "  registered by {}", self.place())
    }
}

/// The longest formula that is shown, in bytes.
const LONGEST: usize = 1000;

/// The equations with every slot present and default attributes.
fn formula(f: &mut fmt::Formatter<'_>, info: &OpInfo) -> fmt::Result {
    let desc = example(&info.schema);
    let Ok(Some(formula)) = info.formula(&desc) else { return Ok(()) };
    let matters = |attr: &Attr| matches!(attr, Attr::Bool(_) | Attr::F32(_) | Attr::F64(_));
    let attrs: Vec<String> = desc
        .attrs
        .iter()
        .filter(|(_, attr)| matters(attr))
        .map(|(name, attr)| format!("{name} = {attr}"))
        .collect();
    let with = if attrs.is_empty() { String::new() } else { format!(" for {}", attrs.join(", ")) };
    let equations = formula.to_string();
    match equations.contains('\n') {
        _ if equations.len() > LONGEST => {
            writeln!(f, "  formula{with}: too long to be read, {} nodes", formula.nodes().len())
        }
        true => writeln!(f, "  formula{with}:\n    {}", equations.replace('\n', "\n    ")),
        false => writeln!(f, "  formula{with}: {equations}"),
    }
}

/// The operator with a variable in every slot. Required numbers are 2, since a factor of 1 is invisible in an equation.
fn example(schema: &Schema) -> OpDesc {
    let (mut desc, mut vars) = (OpDesc::new(schema.name), (1..).map(Var::stand_in));
    for (slots, of) in [(schema.inputs, &mut desc.inputs), (schema.outputs, &mut desc.outputs)] {
        slots.iter().zip(&mut vars).for_each(|(slot, var)| of.set(slot.name, [var]));
    }
    for attr in schema.attrs {
        let required = match attr.ty {
            AttrType::F32 => Some(Attr::F32(2.0)),
            AttrType::F64 => Some(Attr::F64(2.0)),
            _ => None,
        };
        if let Some(value) = attr.default.map(|default| default()).or(required) {
            desc = desc.attr(attr.name, value);
        }
    }
    desc
}

/// A line with its documentation below.
fn line(f: &mut fmt::Formatter<'_>, text: &str, doc: &str) -> fmt::Result {
    writeln!(f, "  {text}")?;
    if doc.is_empty() { Ok(()) } else { writeln!(f, "    {doc}") }
}

fn slot(f: &mut fmt::Formatter<'_>, side: &str, slot: &SlotDef) -> fmt::Result {
    let takes = match slot.arity {
        Arity::One => "one variable",
        Arity::Optional => "at most one variable",
        Arity::Many => "any number of variables",
        Arity::Holes => "any number of variables, each possibly absent",
    };
    let mut text = format!("{side} `{}`: {takes}", slot.name);
    let options = [
        (slot.shape_only && !slot.constant, "shape only"),
        (slot.constant, "constant"),
        (slot.sparse, "may be sparse"),
        (slot.array, "may be an array"),
    ];
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
