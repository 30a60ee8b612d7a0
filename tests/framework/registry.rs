//! The registry: its contents, and its errors.

use std::fmt::Write as _;

use autobwd::{
    ErrorKind, OpInfoMap, Result,
    op::{Arity, GradKind, OpInfo, SlotDef},
};

use crate::support::{compare, is_of_library};

#[test]
fn operators_given_twice_are_all_named() -> Result<()> {
    let linked = OpInfoMap::linked()?;
    let twice = ["relu", "sum", "relu", "tanh", "sum"].map(|name| linked.get(name).unwrap());
    let e = OpInfoMap::from_infos(twice).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Duplicate);
    let lines: Vec<_> = e.message().lines().collect();
    assert_eq!(lines.len(), 2, "{e}");
    assert!(lines[0].starts_with(
        "operator `relu` is registered twice: by autobwd-ops 0.1.0 (ops/src/activation/basic.rs:"
    ));
    assert!(lines[1].starts_with("operator `sum` is registered twice"), "{e}");
    Ok(())
}

#[test]
fn unknown_operator_is_compared_with_those_there_are() -> Result<()> {
    let linked = OpInfoMap::linked()?;
    let e = linked.get("elementwise_ad").err().unwrap();
    let text = format!("operator `elementwise_ad` is not among the {} linked operators", linked.len());
    assert!(
        e.message().starts_with(&text) && e.message().contains("; did you mean `elementwise_add`"),
        "{e}"
    );
    let e = linked.get("fourier").err().unwrap();
    assert!(e.message().ends_with("; is its crate linked (`use that_crate as _;`)?"), "{e}");
    Ok(())
}

/// What `#[register_op]` registers of an operator that a build leaves out.
const _: () = {
    use autobwd::__private::{LeftOut, inventory};
    inventory::submit! { LeftOut("left_out") }
};

#[test]
fn operator_that_the_build_left_out_says_so() -> Result<()> {
    let e = OpInfoMap::linked()?.get("left_out").err().unwrap();
    assert_eq!(e.kind(), ErrorKind::UnknownOp);
    assert_eq!(
        e.message(),
        "operator `left_out` was left out of this binary: AUTOBWD_OPERATORS did not name it in the build"
    );
    Ok(())
}

#[test]
fn operators_are_used_once_they_are_looked_up() -> Result<()> {
    let map = OpInfoMap::from_infos(
        ["relu", "tanh", "sum"].map(|name| OpInfoMap::linked().unwrap().get(name).unwrap()),
    )?;
    assert_eq!(map.used().count(), 0);
    map.get("tanh")?;
    map.get("relu")?;
    assert!(map.get("mul").is_err());
    let names = |map: &OpInfoMap| map.used().map(|info| info.schema().name).collect::<Vec<_>>();
    assert_eq!(names(&map), ["relu", "tanh"]);
    assert_eq!(names(&map.clone()), ["relu", "tanh"]);
    Ok(())
}

/// The operators of the library, sorted by name.
fn own() -> Result<Vec<&'static OpInfo>> {
    Ok(OpInfoMap::linked()?.iter().filter(|info| is_of_library(info)).collect())
}

fn slots(slots: &[SlotDef]) -> String {
    let one = |slot: &SlotDef| {
        let arity = match slot.arity {
            Arity::One => "",
            Arity::Optional => "?",
            Arity::Many => "*",
            Arity::Holes => "*?",
        };
        format!("{}{arity}", slot.name)
    };
    slots.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn gradient(kind: GradKind) -> String {
    match kind {
        GradKind::Operator(schema) => format!("`{}`", schema.name),
        GradKind::Derived(info) => format!("`{}`, derived", info.schema().name),
        GradKind::Composed => "by composition".into(),
        GradKind::Rule => "by a rule".into(),
        GradKind::None(_) => "none".into(),
        GradKind::Zero => "zero".into(),
    }
}

#[test]
fn snapshot_of_the_registry_is_true() -> Result<()> {
    let mut text = String::new();
    for info in own()? {
        let schema = info.schema();
        let attrs = schema.attrs.iter().map(|a| {
            let default = a.default.map(|d| format!(" = {}", d())).unwrap_or_default();
            format!("{}: {}{default}", a.name, a.ty)
        });
        let attrs = attrs.collect::<Vec<_>>().join(", ");
        let formula = if schema.pointwise { " formula" } else { "" };
        let (inputs, outputs) = (slots(schema.inputs), slots(schema.outputs));
        let gradient = gradient(info.grad_kind()).replace('`', "");
        writeln!(text, "{}: {inputs} -> {outputs}; {{{attrs}}}; gradient {gradient};{formula}", schema.name)
            .unwrap();
    }
    compare("ops.txt", &text);
    Ok(())
}

#[test]
fn operator_table_of_the_library_is_true() -> Result<()> {
    let mut text = String::from("| operator | inputs | outputs | what | gradient |\n|---|---|---|---|---|\n");
    for info in own()?.into_iter().filter(|info| !info.is_gradient()) {
        let schema = info.schema();
        let paragraph: Vec<_> = schema.doc.lines().take_while(|line| !line.trim().is_empty()).collect();
        let what = paragraph.join(" ").replace('|', "\\|");
        let (inputs, outputs) = (slots(schema.inputs), slots(schema.outputs));
        let gradient = gradient(info.grad_kind());
        writeln!(text, "| `{}` | {inputs} | {outputs} | {what} | {gradient} |", schema.name).unwrap();
    }
    compare("../ops/OPERATORS.md", &text);
    Ok(())
}
