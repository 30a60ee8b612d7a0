//! The functions that are recognised.

use std::collections::HashMap;

use autobwd::{Builder, Expr, Meta, New, OpDesc, Program, emit, program::Var};

use super::{
    numbers, samples,
    subgraph::{Subgraph, Uses},
};
use crate::{
    Math,
    activation::Swish,
    norm::{LayerNormOp, RmsNormOp},
};

/// The largest number that is taken for the term that keeps a divisor above 0.
const LARGEST_EPSILON: f32 = 0.1;

/// A function as a program.
#[derive(Clone)]
pub(super) struct KnownFunction {
    pub(super) program: Program,
    /// The name of its result.
    pub(super) output: String,
}

/// The functions that a subgraph may compute.
pub(super) fn known(program: &Program, uses: &Uses, subgraph: &Subgraph) -> Vec<KnownFunction> {
    let mut found = vec![];
    let Some(inputs) = subgraph.open_inputs(program) else { return found };
    let mut add = |apply: &dyn Fn(&[Expr]) -> Expr| found.extend(KnownFunction::new(&inputs, apply));
    if !subgraph.has(program, "reduce_mean") {
        if subgraph.inputs.len() == 1 {
            add(&|inputs| inputs[0].gelu(false));
            add(&|inputs| inputs[0].gelu(true));
            add(&|inputs| inputs[0].silu());
            add(&|inputs| inputs[0].mish());
            // The approximation of `gelu` by a sigmoid.
            add(&|inputs| emit(Swish { x: (&inputs[0]).into(), out: New, beta: 1.702 }).out);
        }
        return found;
    }
    for epsilon in epsilons(program, uses, subgraph) {
        match subgraph.inputs.len() {
            1 => add(&|inputs| layer_norm(&inputs[0], None, None, epsilon)),
            2 => {
                add(&|inputs| layer_norm(&inputs[0], Some(&inputs[1]), None, epsilon));
                add(&|inputs| rms_norm(&inputs[0], &inputs[1], None, epsilon));
            }
            _ => {
                for [scale, bias] in [[1, 2], [2, 1]] {
                    add(&|inputs| layer_norm(&inputs[0], Some(&inputs[scale]), Some(&inputs[bias]), epsilon));
                    add(&|inputs| rms_norm(&inputs[0], &inputs[scale], Some(&inputs[bias]), epsilon));
                }
            }
        }
    }
    found
}

fn layer_norm(x: &Expr, scale: Option<&Expr>, bias: Option<&Expr>, epsilon: f32) -> Expr {
    let op = LayerNormOp {
        x: x.into(),
        scale: scale.map(Into::into),
        bias: bias.map(Into::into),
        y: New,
        mean: New,
        variance: New,
        begin_norm_axis: x.dims().len() as i32 - 1,
        epsilon,
    };
    emit(op).y
}

fn rms_norm(x: &Expr, weight: &Expr, bias: Option<&Expr>, epsilon: f32) -> Expr {
    let op = RmsNormOp {
        x: x.into(),
        bias: None,
        residual: None,
        norm_weight: weight.into(),
        norm_bias: bias.map(Into::into),
        out: New,
        residual_out: None,
        epsilon,
        begin_norm_axis: x.dims().len() as i32 - 1,
        quant_scale: -1.0,
        quant_round_type: 0,
        quant_max_bound: 0.0,
        quant_min_bound: 0.0,
    };
    emit(op).out
}

/// The small positive numbers among the attributes of a subgraph.
fn epsilons(program: &Program, uses: &Uses, subgraph: &Subgraph) -> Vec<f32> {
    let attrs = subgraph.all_ops(program, uses).flat_map(|op| op.attrs.iter());
    let found = attrs.flat_map(|(_, attr)| numbers(attr)).map(|x| x as f32);
    let mut found: Vec<f32> = found.filter(|x| *x > 0.0 && *x < LARGEST_EPSILON).collect();
    found.sort_by(f32::total_cmp);
    found.dedup();
    found
}

impl KnownFunction {
    /// A function of inputs; none if it cannot be applied to them.
    pub(super) fn new(inputs: &[Meta], apply: &dyn Fn(&[Expr]) -> Expr) -> Option<KnownFunction> {
        let net = Builder::new();
        let inputs = inputs.iter().enumerate().map(|(i, input)| {
            let dims: Vec<i64> = input.dims.iter().map(|dim| dim.wire()).collect();
            net.input(&samples::input(i), input.dtype, &dims)
        });
        let inputs: Vec<Expr> = inputs.collect();
        let output = apply(&inputs);
        Some(KnownFunction { output: output.check().ok()?.name(), program: (*net.program().ok()?).clone() })
    }

    /// Its operators, with the inputs and the output of a subgraph; other variables are new.
    pub(super) fn ops(&self, program: &mut Program, subgraph: &Subgraph) -> Vec<OpDesc> {
        let (mut ops, mut new) = (self.program.root().ops.clone(), HashMap::from([(Var::EMPTY, Var::EMPTY)]));
        for (i, input) in subgraph.inputs.iter().enumerate() {
            new.extend(self.program.find(&samples::input(i)).map(|var| (var, *input)));
        }
        new.extend(self.program.find(&self.output).map(|var| (var, subgraph.output)));
        for op in &mut ops {
            let ty = op.ty;
            for var in op.inputs.args_mut().chain(op.outputs.args_mut()) {
                *var = *new.entry(*var).or_insert_with(|| {
                    let fresh = program.fresh(&ty);
                    let declared = self.program.root().vars.get(var).cloned();
                    program.root_mut().vars.extend(declared.map(|desc| (fresh, desc)));
                    fresh
                });
            }
        }
        ops
    }
}
