//! Tensors in the place of attributes, where an operator here has the attribute alone: they are read if they are constants.

use std::collections::HashMap;

use crate::proto::{AttrType, OpDesc, ProgramDesc, op_desc::Attr};

/// Slots with the attribute that their tensors give, by operator; gradient operators have them too.
const ARGUMENTS: &[(&str, &str, &str, Form)] = &[
    ("clip", "Max", "max", Form::Number),
    ("clip", "Min", "min", Form::Number),
    ("gather", "Axis", "axis", Form::Integer),
    ("set_value", "EndsTensorList", "ends", Form::List),
    ("set_value", "StartsTensorList", "starts", Form::List),
    ("set_value", "StepsTensorList", "steps", Form::List),
];

/// What an attribute holds.
#[derive(Clone, Copy)]
enum Form {
    Integer,
    Number,
    List,
}

/// The most elements of a constant.
const LIMIT: i64 = 64;

/// The elements of small constants, by name.
pub(super) struct Constants {
    values: HashMap<String, Vec<f64>>,
}

impl Constants {
    /// The constants of a file: variables that one operator writes, from attributes alone.
    pub(super) fn of(file: &ProgramDesc) -> Constants {
        let mut writers: HashMap<&str, usize> = HashMap::new();
        let mut values: HashMap<String, Vec<f64>> = HashMap::new();
        for op in file.blocks.iter().flat_map(|block| &block.ops) {
            for name in op.outputs.iter().flat_map(|slot| &slot.arguments) {
                *writers.entry(name).or_default() += 1;
                if let Some(elements) = elements(op).or_else(|| scaled(op, &values)) {
                    values.insert(name.clone(), elements);
                }
            }
        }
        values.retain(|name, _| writers.get(name.as_str()) == Some(&1));
        Constants { values }
    }

    /// The operator with attributes in place of constant tensors. Other tensors stay.
    pub(super) fn as_attributes(&self, mut op: OpDesc) -> OpDesc {
        let forward = op.r#type.strip_suffix("_grad").unwrap_or(&op.r#type).to_string();
        for (_, slot, attr, form) in ARGUMENTS.iter().filter(|(ty, ..)| *ty == forward) {
            let Some(at) = op.inputs.iter().position(|args| args.parameter == *slot) else { continue };
            let Some(elements) = self.elements(&op.inputs[at].arguments) else { continue };
            op.inputs.remove(at);
            op.attrs.retain(|known| known.name != *attr);
            op.attrs.push(number_attr(attr, &elements, *form));
        }
        for attr in &mut op.attrs {
            let names = match attr.r#type() {
                AttrType::Var => attr.var_name.as_slice(),
                AttrType::Vars => &attr.vars_name,
                _ => continue,
            };
            if let Some(elements) = self.elements(names) {
                *attr = number_attr(&attr.name, &elements, Form::List);
            }
        }
        op
    }

    /// The elements of some variables, one after the other; `None` if one is not constant, or if there is no variable.
    fn elements(&self, names: &[String]) -> Option<Vec<f64>> {
        let found: Option<Vec<_>> = names.iter().map(|name| self.values.get(name)).collect();
        found.filter(|found| !found.is_empty()).map(|found| found.into_iter().flatten().copied().collect())
    }
}

/// An attribute of integers, or of other numbers if one of these is none; the operator's declaration converts it.
fn number_attr(name: &str, elements: &[f64], form: Form) -> Attr {
    let mut attr = Attr { name: name.into(), ..Attr::default() };
    let is_integer = elements.iter().all(|x| x.fract() == 0.0 && x.abs() < (1_u64 << 53) as f64);
    match (elements, form) {
        ([x], Form::Integer) if is_integer => {
            attr.set_type(AttrType::Long);
            attr.l = Some(*x as i64);
        }
        ([x], Form::Number) => {
            attr.set_type(AttrType::Float64);
            attr.float64 = Some(*x);
        }
        _ if is_integer => {
            attr.set_type(AttrType::Longs);
            attr.longs = elements.iter().map(|x| *x as i64).collect();
        }
        _ => {
            attr.set_type(AttrType::Float64s);
            attr.float64s = elements.to_vec();
        }
    }
    attr
}

/// The elements that an operator writes, if its attributes alone say so.
fn elements(op: &OpDesc) -> Option<Vec<f64>> {
    let attr = |name: &str| op.attrs.iter().find(|attr| attr.name == name);
    if op.inputs.iter().any(|slot| !slot.arguments.is_empty()) {
        return None;
    }
    let shape = attr("shape")?;
    let dims = shape.longs.iter().copied().chain(shape.ints.iter().map(|n| i64::from(*n)));
    let count = dims.into_iter().try_fold(1_i64, |count, n| count.checked_mul(n))?;
    if !(1..=LIMIT).contains(&count) {
        return None;
    }
    match &*op.r#type {
        "fill_constant" => {
            let text = attr("str_value").and_then(|attr| attr.s.as_deref()).filter(|text| !text.is_empty());
            let value = attr("value").and_then(|attr| attr.f);
            let x = text.map_or_else(|| value.map(f64::from), |text| text.parse().ok())?;
            Some(vec![x; usize::try_from(count).ok()?])
        }
        "assign_value" => {
            let lists = ["int32_values", "int64_values", "fp32_values", "fp64_values"].map(attr);
            let lists = lists.into_iter().flatten().map(|list| -> Vec<f64> {
                let integers =
                    list.ints.iter().map(|x| f64::from(*x)).chain(list.longs.iter().map(|x| *x as f64));
                let others = list.floats.iter().map(|x| f64::from(*x)).chain(list.float64s.iter().copied());
                integers.chain(others).collect()
            });
            lists.into_iter().find(|list| i64::try_from(list.len()) == Ok(count))
        }
        _ => None,
    }
}

/// The elements that a `scale` of a constant writes: what Python's `k + 2` appends.
fn scaled(op: &OpDesc, constants: &HashMap<String, Vec<f64>>) -> Option<Vec<f64>> {
    let args =
        |slot: &str| op.inputs.iter().find(|args| args.parameter == slot).map(|args| &args.arguments[..]);
    let attr = |name: &str| op.attrs.iter().find(|attr| attr.name == name);
    let (Some([x]), None | Some([])) = (args("X"), args("ScaleTensor")) else { return None };
    let elements = constants.get(x).filter(|_| op.r#type == "scale")?;
    let number = |name: &str, default: f64| attr(name).and_then(|attr| attr.f).map_or(default, f64::from);
    let (scale, bias) = (number("scale", 1.0), number("bias", 0.0));
    let after = attr("bias_after_scale").and_then(|attr| attr.b).unwrap_or(true);
    Some(elements.iter().map(|x| if after { x * scale + bias } else { (x + bias) * scale }).collect())
}
