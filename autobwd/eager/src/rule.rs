//! The chain rule of one operator, from its gradient rule.

use crate::prepared::{ChainRule, RuleSource, RuleStep, prepare};
use autobwd_backward::{GradientOptions, gradients};
use autobwd_core::{
    __private::{OpCall, internals::*},
    Error, Meta, OpDesc, OpInfoMap, Origin, Program, Result, Role, Site, Var, VarDesc,
};
use autobwd_plan::{InitialValue, Plan, PlanRequest, ValueSource};
use rustc_hash::FxHashMap;

/// The operators that compute the gradients of the wanted inputs from the gradients of outputs, as far as they have
/// one: the backward pass of a program of this one operator.
///
/// # Errors
/// The operator has no gradient.
pub(super) fn chain_rule(
    ops: &OpInfoMap,
    call: &OpCall,
    arrived: Vec<bool>,
    wanted: Vec<bool>,
) -> Result<ChainRule> {
    compose(ops, call, arrived, wanted).map_err(|e| {
        // The error names the user's operator instead of the internal program.
        Error::new(e.kind(), e.message()).at_op(|| call.prepared.describe(call.site))
    })
}

fn compose(ops: &OpInfoMap, call: &OpCall, arrived: Vec<bool>, wanted: Vec<bool>) -> Result<ChainRule> {
    let ready = &*call.prepared;
    let (n, m) = (ready.inputs.len(), ready.outputs.len());
    let mut program = Program::new();
    let mut values: Vec<Var> = vec![];
    let mut metas: Vec<Meta> = vec![];
    for (name, all) in [("x", &ready.inputs[..]), ("y", &ready.outputs), ("dy", &ready.outputs)] {
        for meta in all {
            let var = program.fresh(name);
            program.root_mut().vars.insert(var, VarDesc::of(meta.clone()));
            values.push(var);
            metas.push(meta.clone());
        }
    }
    let mut desc = OpDesc { site: Some(Site::Here(call.site)), ..ready.desc.clone() };
    for arg in desc.inputs.args_mut().chain(desc.outputs.args_mut()).filter(|v| **v != Var::EMPTY) {
        *arg = match ready.arg(*arg) {
            (Role::Input, i) => values[i],
            (Role::Output, i) => values[n + i],
        };
    }
    program.root_mut().ops.push(desc);

    let names: Vec<String> = values.iter().map(|v| program.name(*v).to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let targets: Vec<&str> = (0..m).filter(|j| arrived[*j]).map(|j| names[n + j]).collect();
    let given: Vec<Option<&str>> = (0..m).filter(|j| arrived[*j]).map(|j| Some(names[n + m + j])).collect();
    let (inputs, others): (Vec<usize>, Vec<usize>) = (0..n).partition(|i| wanted[*i]);
    let inputs_named: Vec<&str> = inputs.iter().map(|i| names[*i]).collect();
    let others: Vec<&str> = others.into_iter().map(|i| names[i]).collect();
    let options = GradientOptions { target_gradients: Some(&given), no_grad: &others, ops: Some(ops) };
    let found = gradients(&mut program, &targets, &inputs_named, &options)?;

    let source = |at: usize| match at {
        at if at < n => RuleSource::Input(at),
        at if at < n + m => RuleSource::Output(at - n),
        at if at < n + m + m => RuleSource::Arrived(at - n - m),
        at => RuleSource::Made(at - n - m - m),
    };
    program.root_mut().ops.remove(0);
    let ends: Vec<Var> = inputs.iter().filter_map(|i| found.of(values[*i])).collect();
    let constants = constants(ops, &program, &values, &metas, &ends)?;
    let mut steps: Vec<RuleStep> = vec![];
    for op in &program.root().ops {
        steps.push(step(ops, op, &source, &constants, &mut values, &mut metas)?);
    }
    let at = |var: Var| values.iter().position(|v| *v == var).map(source);
    let mut derivatives: Vec<(usize, RuleSource)> =
        inputs.iter().filter_map(|i| Some((*i, at(found.of(values[*i])?)?))).collect();
    // In the order of computation, which is the order in which a program sums them.
    derivatives.sort_by_key(|(_, source)| *source);
    let once = derivatives.is_sorted_by(|(_, a), (_, b)| a < b);
    let apart = once && metas[n + m + m..].iter().all(|meta| meta.rows.is_none());
    let mut reads = vec![false; n];
    for step in &steps {
        for (source, read) in step.inputs.iter().zip(&step.ready.reads) {
            if let (RuleSource::Input(i), true) = (source, read) {
                reads[*i] = true;
            }
        }
    }
    Ok(ChainRule { arrived, wanted, steps, derivatives, apart, reads })
}

/// The values in slots declared `constant`, with their elements.
fn constants(
    ops: &OpInfoMap,
    program: &Program,
    given: &[Var],
    metas: &[Meta],
    ends: &[Var],
) -> Result<FxHashMap<Var, Meta>> {
    let mut read = vec![];
    for op in &program.root().ops {
        let slots = ops.get(&op.ty)?.schema().inputs.iter().filter(|slot| slot.constant);
        read.extend(slots.flat_map(|slot| op.inputs.get(slot.name).to_vec()));
    }
    if read.iter().all(|var| given.contains(var)) {
        return Ok(FxHashMap::default());
    }
    let initial = given.iter().zip(metas).map(|(var, meta)| InitialValue {
        var: *var,
        meta: meta.clone(),
        source: ValueSource::Feed,
        layout: None,
    });
    let initial: Vec<InitialValue> = initial.collect();
    let request = PlanRequest { initial: &initial, ends, ..PlanRequest::graph_only(&[], &|_| None, &[]) };
    let values = Plan::new(program, ops, &request)?.graph.values;
    let known = values.into_iter().filter(|value| value.meta.constant().is_some());
    Ok(known.map(|value| (value.var, value.meta)).collect())
}

/// A prepared operator from an operator of the program.
fn step(
    ops: &OpInfoMap,
    op: &OpDesc,
    source: &dyn Fn(usize) -> RuleSource,
    constants: &FxHashMap<Var, Meta>,
    values: &mut Vec<Var>,
    metas: &mut Vec<Meta>,
) -> Result<RuleStep> {
    let mut desc = OpDesc { site: None, origin: Origin::Model, ..op.clone() };
    let known = |var: Var, values: &[Var]| values.iter().position(|v| *v == var);
    let (mut inputs, mut outputs) = (vec![], 0);
    for arg in desc.inputs.args_mut().filter(|v| **v != Var::EMPTY) {
        let at = known(*arg, values)
            .ok_or_else(|| Error::internal("a gradient reads a value that was not computed"))?;
        inputs.push(at);
        *arg = Var::stand_in(inputs.len());
    }
    for arg in desc.outputs.args_mut().filter(|v| **v != Var::EMPTY) {
        outputs += 1;
        values.push(*arg);
        *arg = Var::stand_in(inputs.len() + outputs);
    }
    let own = inputs.iter().map(|i: &usize| constants.get(&values[*i]).unwrap_or(&metas[*i]).clone());
    let own: Vec<Meta> = own.collect();
    let ready = prepare(ops, &desc, &own)?;
    metas.extend(ready.outputs.iter().cloned());
    Ok(RuleStep { ready: ready.into(), inputs: inputs.into_iter().map(source).collect() })
}
