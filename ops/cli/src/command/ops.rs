//! `ops`: the registered operators.

use autobwd::{
    Attr, DType, Dims, Meta, OpDesc, OpInfoMap, Program, VarDesc,
    op::{Arity, AttrDef, AttrType, GradKind, OpInfo, SlotDef},
    tensor::Dim,
};
use clap::Args;
use serde::Serialize;

use super::ReportForm;
use crate::terminal::{CommandResult, Terminal, table};

/// List the operators, or describe one
#[derive(Debug, Args)]
pub(crate) struct OpsCommand {
    /// The operator to describe
    name: Option<String>,
    /// Also list gradient operators
    #[arg(long, conflicts_with = "name")]
    gradients: bool,
    /// The form of the result
    #[arg(long, value_name = "FORM", default_value = "text")]
    format: ReportForm,
}

#[derive(Serialize)]
struct OpsJson {
    schema: &'static str,
    operators: Vec<OperatorJson>,
}

#[derive(Serialize)]
struct OperatorJson {
    name: &'static str,
    package: &'static str,
    documentation: &'static str,
    inputs: Vec<Slot>,
    outputs: Vec<Slot>,
    attributes: Vec<Attribute>,
    formula: Option<String>,
    gradient: &'static str,
    gradient_operator: Option<&'static str>,
    composition: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Slot {
    name: &'static str,
    arity: &'static str,
    documentation: &'static str,
}

#[derive(Serialize)]
struct Attribute {
    name: &'static str,
    r#type: &'static str,
    default: Option<String>,
    bounds: String,
    documentation: &'static str,
}

impl OpsCommand {
    pub(super) fn run(&self, terminal: Terminal) -> CommandResult {
        let ops = OpInfoMap::linked()?;
        let infos = match &self.name {
            Some(name) => vec![ops.get(name)?],
            None => ops.iter().filter(|info| self.gradients || !info.is_gradient()).collect(),
        };
        match (self.format, &infos[..]) {
            (ReportForm::Json, infos) => terminal.print_json(&OpsJson {
                schema: "autobwd.ops/1",
                operators: infos.iter().map(|info| operator(ops, info)).collect(),
            }),
            (ReportForm::Text, [info]) if self.name.is_some() => terminal.print(&reference(ops, info)),
            (ReportForm::Text, infos) => terminal.print(&list(infos)),
        }
    }
}

fn list(infos: &[&OpInfo]) -> String {
    let row = |info: &&OpInfo| {
        let (schema, (kind, gradient)) = (info.schema(), gradient(info));
        let first_line = schema.doc.lines().next().unwrap_or_default();
        [schema.name, gradient.unwrap_or(kind), info.crate_name(), first_line].map(String::from)
    };
    let rows: Vec<[String; 4]> = infos.iter().map(row).collect();
    table(["operator", "gradient", "package", "documentation"], &rows)
}

fn reference(ops: &OpInfoMap, info: &OpInfo) -> String {
    let composition =
        composition(ops, info).map(|lines| format!("  composition:\n    {}\n", lines.join("\n    ")));
    format!("{info}{}", composition.unwrap_or_default())
}

fn operator(ops: &OpInfoMap, info: &OpInfo) -> OperatorJson {
    let (schema, (gradient, gradient_operator)) = (info.schema(), gradient(info));
    let formula = info.formula(&example(info).1).ok().flatten();
    OperatorJson {
        name: schema.name,
        package: info.crate_name(),
        documentation: schema.doc,
        inputs: schema.inputs.iter().map(slot).collect(),
        outputs: schema.outputs.iter().map(slot).collect(),
        attributes: schema.attrs.iter().map(attribute).collect(),
        formula: formula.map(|formula| formula.to_string()),
        gradient,
        gradient_operator,
        composition: composition(ops, info),
    }
}

/// The kind of its gradient rule, and its gradient operator.
fn gradient(info: &OpInfo) -> (&'static str, Option<&'static str>) {
    match info.grad_kind() {
        GradKind::Operator(schema) => ("operator", Some(schema.name)),
        GradKind::Derived(derived) => ("derived", Some(derived.schema().name)),
        GradKind::Composed => ("composed", None),
        GradKind::Rule => ("rule", None),
        GradKind::None(_) => ("none", None),
        GradKind::Zero => ("zero", None),
    }
}

fn slot(slot: &SlotDef) -> Slot {
    let arity = match slot.arity {
        Arity::One => "one",
        Arity::Optional => "optional",
        Arity::Many => "many",
        Arity::Holes => "many_optional",
    };
    Slot { name: slot.name, arity, documentation: slot.doc }
}

fn attribute(attr: &AttrDef) -> Attribute {
    Attribute {
        name: attr.name,
        r#type: attr.ty.name(),
        default: attr.default.map(|default| default().to_string()),
        bounds: attr.bounds_text(),
        documentation: attr.doc,
    }
}

/// Ranks of inputs for which a composition is tried: that of most operators is the same for all.
const RANKS: [usize; 5] = [2, 4, 3, 1, 0];

/// The operators that an operator is composed of, for inputs of the first rank that it accepts, of unknown dimensions
/// if it is composed without knowing them. Inputs after the first are alike, or integers, or one label a row.
fn composition(ops: &OpInfoMap, info: &OpInfo) -> Option<Vec<String>> {
    let sizes = [Dim::UNKNOWN, 2.into()].into_iter();
    let first = sizes.flat_map(|size| RANKS.map(|rank| (size, rank)));
    let all = first
        .flat_map(|first| [(DType::F32, 0), (DType::I64, 0), (DType::I64, 1)].map(|others| (first, others)));
    all.into_iter().find_map(|((size, rank), (dtype, fewer))| {
        let (mut program, op) = example(info);
        let meta = |dtype, rank| Meta::new(dtype, vec![size; rank].into_iter().collect::<Dims>());
        let first = info.schema().inputs.first().and_then(|slot| program.find(slot.name));
        for var in op.reads() {
            let meta = match Some(var) == first {
                true => meta(DType::F32, rank),
                false => meta(dtype, usize::checked_sub(rank, fewer)?),
            };
            program.root_mut().vars.insert(var, VarDesc::of(meta));
        }
        let parts = ops.composition(&mut program, &op).ok()??;
        Some(parts.iter().map(|part| program.op_text(part).to_string()).collect())
    })
}

/// The operator with one variable in every slot that needs one, named as the slot. Required numbers are 2.
fn example(info: &OpInfo) -> (Program, OpDesc) {
    let (mut program, mut desc) = (Program::new(), OpDesc::new(info.schema().name));
    let schema = info.schema();
    for (slots, of) in [(schema.inputs, &mut desc.inputs), (schema.outputs, &mut desc.outputs)] {
        for slot in slots.iter().filter(|slot| slot.arity != Arity::Optional) {
            of.set(slot.name, [program.var(slot.name)]);
        }
    }
    for attr in schema.attrs.iter().filter(|attr| attr.default.is_none()) {
        let value = match attr.ty {
            AttrType::F32 => Attr::F32(2.0),
            AttrType::F64 => Attr::F64(2.0),
            AttrType::I32 => Attr::I32(2),
            AttrType::I64 => Attr::I64(2),
            _ => continue,
        };
        desc.attrs.set(attr.name, value);
    }
    (program, desc)
}
