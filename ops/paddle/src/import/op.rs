//! Operators from messages: slots and attributes that the registered operator has, and a reason for every other.

use autobwd::{
    Attr, OpDesc,
    op::{Arity, OpInfo},
    program::{AttrMap, Name, Site, Slots, Var},
};

use super::Import;
use crate::{
    attrs::{convert, read_attr, type_name},
    proto::op_desc,
    reference::{
        is_forward_output, is_hint, is_neutral_in_earlier_versions, master_weights, op_here, reference,
        reference_attr, slot_here,
    },
};

/// The longest source line that is kept, in bytes.
const SITE_LIMIT: usize = 256;

impl Import {
    /// The operator; `None` if it is not registered.
    pub(super) fn op(&mut self, place: &str, op: crate::proto::OpDesc) -> Option<OpDesc> {
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
        desc.inputs = self.slots(place, info, op.inputs, true);
        desc.outputs = self.slots(place, info, op.outputs, false);
        self.complete(info, &mut desc.outputs);
        desc.site = op.attrs.iter().find_map(site);
        desc.attrs = self.attrs(place, info, op.attrs);
        Some(desc)
    }

    fn slots(&mut self, place: &str, info: &OpInfo, all: Vec<op_desc::Var>, input: bool) -> Slots {
        let schema = info.schema();
        let mut slots = Slots::default();
        for args in all.into_iter().filter(|args| !args.arguments.is_empty()) {
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
