//! Operators from messages: slots and attributes that the registered operator has, and a reason for every other.

use autobwd::{
    Attr, BlockId, DType, OpDesc,
    op::{Arity, OpInfo},
    program::{AttrMap, Name, Site, Slots, Var},
};

use super::{
    Import,
    composed_gradients::{ComposedForward, ComposedGradient},
};
use crate::{
    attrs::{convert, read_attr, type_name, write_attr},
    proto::{OpDesc as ProtoOp, Scalar, op_desc, var_type::Type},
    reference::{
        is_forward_output, is_hint, is_neutral_in_earlier_versions, is_of_differentiated, master_weights,
        op_here, reference, reference_attr, slot_here,
    },
    tensors,
};

/// The longest source line that is kept, in bytes.
const SITE_LIMIT: usize = 256;

impl Import {
    /// The operator; `None` if it is not registered.
    pub(super) fn op(&mut self, place: &str, op: ProtoOp) -> Option<OpDesc> {
        let ty = op.r#type.as_str();
        let Some(info) = self.ops.get(op_here(ty)).copied() else {
            let unknown = reference(ty).is_ok_and(|known| known.is_none());
            let why = if unknown {
                "unknown, also to PaddlePaddle 2.6"
            } else {
                "not registered; link a crate that has it"
            };
            self.obstacles.add(place, format!("operator `{ty}` is {why}"));
            return None;
        };
        let mut desc = OpDesc::new(info.schema().name);
        desc.inputs = self.slots(place, info, &op.inputs, true);
        desc.outputs = self.slots(place, info, &op.outputs, false);
        self.complete(info, &mut desc.outputs);
        desc.site = op.attrs.iter().find_map(site);
        desc.attrs = self.attrs(place, info, op.attrs.clone());
        ComposedForward::of(info, &op, &desc).into_iter().for_each(|forward| self.forwards.add(forward));
        Some(desc)
    }

    /// A `set_value` of constants as an operator that writes them to a tensor, and a `set_value` of the tensor.
    pub(super) fn values_of_assignment(&mut self, mut op: ProtoOp) -> (Option<ProtoOp>, ProtoOp) {
        let given = |op: &ProtoOp, slot: &str| {
            op.inputs.iter().any(|args| args.parameter == slot && !args.arguments.is_empty())
        };
        let Some(values) = constant_values(&op).filter(|_| !given(&op, "ValueTensor")) else {
            return (None, op);
        };
        let var = self.program.fresh("set_value.values");
        self.added.push(var);
        let slot = |parameter: &str, name: &str| op_desc::Var {
            parameter: parameter.into(),
            arguments: vec![name.into()],
        };
        let name = self.program.name(var);
        op.inputs.push(slot("ValueTensor", name));
        let writer = ProtoOp {
            r#type: "assign_value".into(),
            outputs: vec![slot("Out", name)],
            attrs: values,
            ..ProtoOp::default()
        };
        op.attrs.retain(|attr| attr.name != "values" && attr.name != "shape");
        (Some(writer), op)
    }

    /// A placeholder for a gradient operator that is not registered and whose forward operator is composed.
    pub(super) fn composed_gradient(&mut self, at: (BlockId, usize), op: &ProtoOp) -> Option<OpDesc> {
        if self.ops.contains_key(op_here(&op.r#type)) {
            return None;
        }
        let gradient = ComposedGradient::of(&self.forwards, at, op, &mut self.program)?;
        let mut vars = |slots: &[op_desc::Var]| -> Vec<Var> {
            slots.iter().flat_map(|args| &args.arguments).map(|name| self.program.var(name)).collect()
        };
        let desc = OpDesc::new("composed_gradient").input("X", vars(&op.inputs));
        let desc = desc.output("Out", vars(&op.outputs));
        self.gradients.push(gradient);
        Some(desc)
    }

    fn slots(&mut self, place: &str, info: &OpInfo, all: &[op_desc::Var], input: bool) -> Slots {
        let schema = info.schema();
        let mut slots = Slots::default();
        for args in all.iter().filter(|args| !args.arguments.is_empty()) {
            let name = slot_here(schema.name, &args.parameter);
            let known = if input { schema.input(name) } else { schema.output(name) };
            let vars: Vec<Var> = args.arguments.iter().map(|name| self.program.var(name)).collect();
            // Master weights are lowered when the program is complete.
            let master = || master_weights(name).filter(|_| schema.output("ParamOut").is_some());
            match known.map(|slot| slot.name).or_else(master) {
                Some(name) => slots.set(name, vars),
                // An output without readers needs no writer; verification finds readers.
                None if !input => {}
                None if is_forward_output(schema.name, name) => {}
                None => {
                    let text =
                        format!("input `{}` of operator `{}` is not supported", args.parameter, schema.name);
                    self.obstacles.add(place, text);
                }
            }
        }
        slots
    }

    /// Adds the outputs that only gradients read: files for inference lack them.
    fn complete(&mut self, info: &OpInfo, outputs: &mut Slots) {
        for slot in info.schema().outputs {
            if matches!(slot.arity, Arity::One) && outputs.get(slot.name).is_empty() {
                let var = self.program.fresh(&format!("{}.{}", info.schema().name, slot.name));
                outputs.set(slot.name, [var]);
                self.added.push(var);
            }
        }
    }

    fn attrs(&mut self, place: &str, info: &OpInfo, all: Vec<op_desc::Attr>) -> AttrMap {
        let schema = info.schema();
        let mut attrs = AttrMap::default();
        for attr in all {
            let (name, ty) = (attr.name.clone(), type_name(&attr));
            let declared = schema.attr(&name);
            if declared.is_none() && is_hint(&name) {
                continue;
            }
            let value = read_attr(attr);
            let what = || format!("attribute `{name}` of operator `{}`", schema.name);
            match (value, declared) {
                (Some(value), _) if is_nan(&value) => {
                    self.obstacles.add(place, format!("{} is NaN", what()));
                }
                (Some(value), Some(def)) => {
                    let text = value.to_string();
                    match convert(value, def.ty) {
                        Some(value) => attrs.set(def.name, value),
                        None => {
                            self.obstacles.add(place, format!("{} = {text}: {} is needed", what(), def.ty))
                        }
                    }
                }
                (Some(value), None) => {
                    let known = self.obstacles.note(place, reference_attr(schema.name, &name)).flatten();
                    let default = known.and_then(|(_, default)| default);
                    let is_default = default.is_some_and(|default| is_same(&default, &value))
                        || self.is_of_forward_alone(schema.name, &name)
                        || is_of_differentiated(schema.name, &name)
                        // It chose kernels for operators without another use for it.
                        || name == "is_test"
                        // It says which outputs there are, as the slots do.
                        || (name.starts_with("return_") && schema.name.starts_with("unique"))
                        || is_neutral_in_earlier_versions(&name, &value);
                    if !is_default {
                        self.obstacles.add(place, format!("{} = {value} is not supported", what()));
                    }
                }
                // A list of constants that is given and empty.
                (None, None) if ty == "SCALARS" || ty == "VARS" => {}
                (None, _) => {
                    self.obstacles.add(place, format!("{} of type {ty} is not supported", what()));
                }
            }
        }
        attrs
    }
}

impl Import {
    /// Whether an attribute is copied from the forward operator, whose gradient does not depend on it.
    fn is_of_forward_alone(&self, ty: &str, attr: &str) -> bool {
        let forward = ty.strip_suffix("_grad").and_then(|forward| self.ops.get(forward));
        forward.is_some_and(|forward| forward.schema().attr(attr).is_some())
    }
}

/// The attributes of an `assign_value` that writes the constants of a `set_value`; `None` if it has none, or of a dtype that
/// `assign_value` does not write.
fn constant_values(op: &ProtoOp) -> Option<Vec<op_desc::Attr>> {
    let attr = |name: &str| op.attrs.iter().find(|attr| attr.name == name);
    let values = &attr("values").filter(|_| op.r#type == "set_value")?.scalars;
    if values.is_empty() {
        return None;
    }
    let number = |value: &Scalar| value.r.or(value.i.map(|i| i as f64)).unwrap_or_default();
    let integer = |value: &Scalar| value.i.or(value.b.map(i64::from)).unwrap_or_else(|| number(value) as i64);
    let dtype = tensors::dtype(Type::try_from(attr("dtype")?.i?).ok()?)?;
    let value = match dtype {
        DType::F32 => ("fp32_values", Attr::F32s(values.iter().map(|x| number(x) as f32).collect())),
        DType::F64 => ("fp64_values", Attr::F64s(values.iter().map(number).collect())),
        DType::I32 => ("int32_values", Attr::I64s(values.iter().map(integer).collect())),
        DType::I64 => ("int64_values", Attr::I64s(values.iter().map(integer).collect())),
        DType::Bool => ("bool_values", Attr::I64s(values.iter().map(integer).collect())),
        _ => return None,
    };
    let shape = Attr::I64s(attr("shape")?.longs.clone());
    let all = [value, ("shape", shape), ("dtype", Attr::I32(attr("dtype")?.i?))];
    all.into_iter().map(|(name, value)| write_attr(name, value, None)).collect()
}

fn is_nan(value: &Attr) -> bool {
    match value {
        Attr::F32(x) => x.is_nan(),
        Attr::F64(x) => x.is_nan(),
        Attr::F32s(all) => all.iter().any(|x| x.is_nan()),
        Attr::F64s(all) => all.iter().any(|x| x.is_nan()),
        _ => false,
    }
}

/// Whether a value is the default, perhaps of another type of numbers.
fn is_same(default: &Attr, value: &Attr) -> bool {
    convert(value.clone(), autobwd::op::AttrType::of(default)).is_some_and(|value| value == *default)
}

/// The innermost line of the user's Python code that added an operator.
fn site(attr: &op_desc::Attr) -> Option<Site> {
    if attr.name != "op_callstack" {
        return None;
    }
    let mut frames =
        attr.strings.iter().filter_map(|frame| frame.trim().strip_prefix("File \"")?.split_once("\", line "));
    let (file, rest) = frames.rfind(|(file, _)| !file.contains("site-packages"))?;
    let line = rest.split(',').next()?;
    let site = format!("{file}:{line}");
    (site.len() <= SITE_LIMIT && !site.contains(char::is_control)).then(|| Site::Loaded(Name::new(&site)))
}
