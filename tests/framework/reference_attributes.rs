//! The attributes of the reference's operators: accepted, or rejected with attribute, value and reason.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use autobwd::{
    Attr, BlockId, DType, OpDesc, OpInfoMap, Program, Result,
    op::{Arity, AttrDef, AttrType, OpInfo, SlotDef},
    program::Name,
};

use crate::support::{compare, is_of_library};

/// `clip: max FLOAT, min FLOAT`, one operator per line; see the head of the file.
fn reference() -> BTreeMap<String, BTreeMap<String, String>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference_attributes.txt");
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let operators = lines.filter_map(|line| line.split_once(": "));
    let pair = |attr: &str| attr.split_once(' ').map(|(name, ty)| (name.to_string(), ty.to_string()));
    operators.map(|(op, attrs)| (op.into(), attrs.split(", ").filter_map(pair).collect())).collect()
}

/// Values on both sides of every bound.
fn values(ty: &str) -> Vec<Attr> {
    match ty {
        "BOOLEAN" => [false, true].map(Attr::Bool).into(),
        "INT" => [-2, -1, 0, 1, 2, 3, 5, 6, 20].map(Attr::I32).into(),
        "LONG" => [-2, -1, 0, 1, 2].map(Attr::I64).into(),
        "FLOAT" => [-1.0, -0.5, 0.0, 0.5, 1.0, 2.0].map(Attr::F32).into(),
        "STRING" => ["", "?"].map(|text| Attr::Str(text.into())).into(),
        "INTS" => vec![Attr::I32s(vec![]), Attr::I32s(vec![-1]), Attr::I32s(vec![1, 2])],
        "LONGS" => vec![Attr::I64s(vec![]), Attr::I64s(vec![1, 2])],
        "FLOATS" => vec![Attr::F32s(vec![]), Attr::F32s(vec![0.5])],
        "STRINGS" => vec![Attr::Strs(vec![]), Attr::Strs(vec!["?".into()])],
        other => panic!("attributes of type {other} are not probed"),
    }
}

/// Any value of that type, for attributes without default.
fn any(attr: &AttrDef) -> Attr {
    match attr.ty {
        AttrType::Bool => Attr::Bool(false),
        AttrType::I32 => Attr::I32(2),
        AttrType::I64 => Attr::I64(1),
        AttrType::F32 => Attr::F32(1.0),
        AttrType::F64 => Attr::F64(1.0),
        AttrType::Str => Attr::Str(String::new()),
        AttrType::I32s => Attr::I32s(vec![1]),
        AttrType::Block => Attr::Block(BlockId::ROOT),
        other => panic!("attributes of type {other} have no value here"),
    }
}

/// A description of the operator with a variable in each slot that needs one.
fn described(info: &OpInfo) -> OpDesc {
    let (schema, mut program) = (info.schema(), Program::new());
    let mut desc = OpDesc::new(schema.name);
    let mut fill = |slots: &[SlotDef], put: &mut dyn FnMut(&'static str, autobwd::Var)| {
        for slot in slots.iter().filter(|slot| slot.arity != Arity::Optional) {
            put(slot.name, program.var(slot.name));
        }
    };
    fill(schema.inputs, &mut |slot, var| desc.inputs.set(slot, [var]));
    fill(schema.outputs, &mut |slot, var| desc.outputs.set(slot, [var]));
    // A gradient operator whose outputs are all optional writes one of them.
    if let Some(slot) = schema.outputs.first().filter(|_| desc.outputs.args().next().is_none()) {
        desc.outputs.set(slot.name, [program.var(slot.name)]);
    }
    for attr in schema.attrs.iter().filter(|attr| attr.default.is_none()) {
        desc.attrs.set(attr.name, any(attr));
        // For an enum of strings, the message lists them.
        if let (AttrType::Str, Err(e)) = (attr.ty, info.check(&desc))
            && let Some(offered) = e.message().split('"').nth(1)
        {
            desc.attrs.set(attr.name, Attr::Str(offered.into()));
        }
    }
    desc
}

fn list(values: &[String]) -> String {
    if values.is_empty() { "nothing".into() } else { values.join(" ") }
}

/// Which of the probed values an attribute accepts, and the errors of the others, each once.
fn row(info: &OpInfo, plain: &OpDesc, name: &str, ty: &str) -> String {
    let (mut taken, mut refused): (Vec<String>, Vec<(String, Vec<String>)>) = (vec![], vec![]);
    for value in values(ty) {
        let mut desc = plain.clone();
        desc.attrs.set(Name::new(name), value.clone());
        let Err(e) = info.check(&desc) else {
            taken.push(value.to_string());
            continue;
        };
        let message = e.message();
        let shown = match &value {
            Attr::F32(x) => x.to_string(),
            value => value.to_string(),
        };
        assert!(message.contains(&format!("attribute `{name}`")), "{message}");
        assert!(message.contains(&shown), "{}: {message} does not say {value}", plain.ty);
        let reason = message.replacen(&format!("attribute `{name}`: "), "", 1);
        let reason = reason.replacen(&value.to_string(), "_", 1).replace(&format!("is {shown}"), "is _");
        match refused.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, values)) => values.push(value.to_string()),
            None => refused.push((reason, vec![value.to_string()])),
        }
    }
    let mut text = format!("takes {}", list(&taken));
    for (reason, values) in refused {
        write!(text, "; refuses {}: {reason}", list(&values)).unwrap();
    }
    text
}

/// Bounds and types only: shape rules check conditions on shapes and dtypes (an axis, a fraction with integers).
#[test]
fn table_of_attributes_is_true() -> Result<()> {
    let reference = reference();
    let mut text = String::from(
        "# Attributes of the reference's operators: the accepted ones of some values on both sides of every bound, and the\n\
         # errors of the others. `_` stands for the value in an error. Generated by tests/framework/reference_attributes.rs.\n",
    );
    for info in OpInfoMap::linked()?.iter().filter(|info| is_of_library(info)) {
        let schema = info.schema();
        let Some(attrs) = reference.get(schema.name) else { continue };
        let plain = described(info);
        info.check(&plain)?;
        for (name, ty) in attrs {
            let own = schema.attr(name);
            let default = match own.map(|attr| attr.default) {
                Some(Some(default)) => format!(" = {}", default()),
                Some(None) => ", required".into(),
                None => String::new(),
            };
            let bounds = own.map(AttrDef::bounds_text).filter(|bounds| !bounds.is_empty());
            let bounds = bounds.map(|bounds| format!(" ({bounds})")).unwrap_or_default();
            let row = row(info, &plain, name, ty);
            writeln!(text, "{} {name}: {ty}{default}{bounds}; {row}", schema.name).unwrap();
        }
    }
    compare("attributes.txt", &text);
    Ok(())
}

/// Each operator of the reference that is registered and has attributes is in the table.
#[test]
fn facts_on_the_reference_are_of_registered_operators() -> Result<()> {
    let linked = OpInfoMap::linked()?;
    for op in reference().keys() {
        linked.get(op)?;
    }
    assert_eq!(DType::ALL.map(DType::code), [0, 20, 2, 3, 4, 22, 5, 6], "the codes among the probed values");
    Ok(())
}
