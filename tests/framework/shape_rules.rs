//! Shape rules and compositions of every operator, for inputs of any rank with unknown, zero and odd dimensions.

use std::collections::BTreeSet;

use autobwd::{
    __private::internals::*,
    Attr, Buf, Builder, Composed, Composition, Cx, DType, Dims, ErrorKind, Expr, Infer, Kernel, Meta, New,
    OpDesc, OpInfoMap, Program, Result, Var, VarDesc, emit, gradients,
    op::{Arity, AttrType, OpInfo},
    register_op,
    tensor::Dim,
};
use autobwd_ops::Init;

use crate::support::is_of_library;

/// The dimensions of a tensor: unknown, zero, all different, ones, and a mixture.
const PATTERNS: [[i64; 6]; 5] = [[-1; 6], [0; 6], [7, 5, 3, 9, 2, 11], [1; 6], [3, -1, 0, 1, -1, 5]];

fn dims(pattern: [i64; 6], rank: usize) -> Dims {
    let dim = |n: i64| if n < 0 { Dim::UNKNOWN } else { Dim::from(n as usize) };
    pattern.into_iter().take(rank).map(dim).collect()
}

/// The operator with one variable in every slot that needs one.
fn plain(info: &OpInfo) -> OpDesc {
    let (mut desc, mut count) = (OpDesc::new(info.schema().name), 0);
    let schema = info.schema();
    for (slots, of) in [(schema.inputs, &mut desc.inputs), (schema.outputs, &mut desc.outputs)] {
        for slot in slots.iter().filter(|slot| slot.arity != Arity::Optional) {
            count += 1;
            of.set(slot.name, [Var::stand_in(count)]);
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
    desc
}

/// Rejects a panic, which the registry makes an error of its own kind.
#[track_caller]
fn no_panic<T>(outcome: Result<T>, inputs: &[Meta]) -> bool {
    match outcome {
        Err(e) if e.kind() == ErrorKind::Panic => panic!("{e}, with {inputs:?}"),
        outcome => outcome.is_ok(),
    }
}

/// Whether the shape rule accepts these inputs.
fn is_accepted(ops: &OpInfoMap, info: &OpInfo, desc: &OpDesc, inputs: &[Meta]) -> bool {
    let vars: Vec<Var> = desc.reads().collect::<BTreeSet<_>>().into_iter().collect();
    let of = |var: Var| Ok(inputs[vars.iter().position(|v| *v == var).unwrap() % inputs.len()].clone());
    let accepted = no_panic(info.infer(desc, &of, &mut |_, _| {}), inputs);
    let mut program = Program::new();
    let mut own = desc.clone();
    let mut names: Vec<(Var, Var)> = vec![];
    for arg in own.inputs.args_mut().chain(own.outputs.args_mut()).filter(|arg| **arg != Var::EMPTY) {
        let known = names.iter().find(|(stand_in, _)| stand_in == arg).map(|(_, var)| *var);
        let var = known.unwrap_or_else(|| program.fresh("v"));
        names.push((*arg, var));
        if let Ok(position) = vars.binary_search(arg) {
            let meta = inputs[position % inputs.len()].clone();
            program.root_mut().vars.insert(var, VarDesc::of(meta));
        }
        *arg = var;
    }
    no_panic(ops.composition(&mut program, &own), inputs);
    accepted
}

#[test]
fn no_rule_or_composition_panics_for_any_shape() -> Result<()> {
    let ops = OpInfoMap::linked()?;
    let samples = autobwd_tests::linked_samples();
    let mut accepted = 0;
    for info in ops.iter().filter(|info| is_of_library(info)) {
        let own = samples.iter().filter(|s| s.op() == info.schema().name && s.program.is_none());
        let descs: Vec<OpDesc> = own.map(|sample| sample.desc.clone()).chain([plain(info)]).collect();
        for desc in descs {
            for (rank, pattern) in (0..=6).flat_map(|rank| PATTERNS.map(|pattern| (rank, pattern))) {
                for dtype in [DType::F32, DType::I64] {
                    // All inputs alike, and the second of one rank less.
                    let first = Meta::new(dtype, dims(pattern, rank));
                    let second = Meta::new(dtype, dims(pattern, rank.saturating_sub(1)));
                    let labels = Meta::new(DType::I64, dims(pattern, rank));
                    for inputs in [vec![first.clone()], vec![first.clone(), second], vec![first, labels]] {
                        accepted += usize::from(is_accepted(ops, info, &desc, &inputs));
                    }
                }
            }
        }
    }
    assert!(accepted > 50_000, "{accepted}");
    Ok(())
}

/// Its shape rule and its composition panic for vectors.
#[register_op(name = "shape_rules_second", grad = Composed)]
pub(crate) struct Second<V = Var> {
    /// A matrix.
    #[input]
    pub(crate) x: V,
    /// Like `x`.
    #[output]
    pub(crate) out: V,
    /// Whether the shape rule panics.
    #[attr(default = true)]
    pub(crate) strict: bool,
}
impl Infer for Second<Meta> {
    fn infer(&mut self) -> Result<()> {
        if self.strict {
            _ = self.x.dims[1];
        }
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Second<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}
impl Composition for Second<Expr> {
    fn compose(&mut self) {
        _ = self.x.dims()[1];
        self.out = &self.x + 0.0;
    }
}

/// Composed of itself.
#[register_op(name = "shape_rules_endless", grad = Composed)]
pub(crate) struct Endless<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Like `x`.
    #[output(like = x)]
    pub(crate) out: V,
}
impl Kernel for Endless<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}
impl Composition for Endless<Expr> {
    fn compose(&mut self) {
        self.out = emit(Endless { x: (&self.x).into(), out: New }).out;
    }
}

/// A builder with a parameter `x` of four elements.
fn vector() -> (Builder, Expr) {
    let net = Builder::new();
    let x = net.parameter("x", DType::F32, &[4], |x| Init::Constant(1.0).emit(x, 0));
    (net, x)
}

#[test]
fn panic_of_an_author_names_the_operator_and_its_place() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[4]);
    let e = emit(Second { x: (&x).into(), out: New, strict: true }).out.check().unwrap_err();
    let text = e.to_string();
    for part in [
        "the shape rule of `shape_rules_second` panicked at ",
        "tests/framework/shape_rules.rs:",
        "index out of bounds",
        "autobwd-tests",
    ] {
        assert!(text.contains(part), "{text}\nlacks\n{part}");
    }
    assert!(!text.contains("autobwd bug"), "{text}");
    assert_eq!(e.kind(), ErrorKind::Panic);

    let (net, x) = vector();
    let out = emit(Second { x: (&x).into(), out: New, strict: false }).out.name();
    let mut program = (*net.program()?).clone();
    let text = gradients(&mut program, &[&out], &["x"], &Default::default()).unwrap_err().to_string();
    assert!(
        text.contains("the composition of `shape_rules_second` panicked at tests/framework/shape_rules.rs:"),
        "{text}"
    );
    Ok(())
}

#[test]
fn operator_composed_of_itself_is_refused() -> Result<()> {
    let (net, x) = vector();
    let out = emit(Endless { x: (&x).into(), out: New }).out.name();
    let mut program = (*net.program()?).clone();
    let e = gradients(&mut program, &[&out], &["x"], &Default::default()).unwrap_err();
    assert!(
        e.to_string()
            .contains("the composition of `shape_rules_endless` contains `shape_rules_endless` itself"),
        "{e}"
    );
    Ok(())
}
