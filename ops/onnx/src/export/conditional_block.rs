//! Branches as `If`, and selections between their results.

use autobwd::{
    OpDesc, Result,
    op::{BlockCall, CarriedValue, Rule},
    program::Var,
};
use autobwd_ops::select::SelectInput;

use super::{
    Onnx, ProgramWriter,
    control::{ForwardSteps, first_value, like, typed, value_or_zeros},
    onnx_graph::{OnnxValue, VariableValues},
};
use crate::rules;

rules!(SelectInput);

/// One side of a branch.
pub(super) struct Side<'a> {
    pub(super) call: &'a BlockCall,
    /// Inputs of the block by their names in it.
    pub(super) inputs: Vec<(Var, OnnxValue)>,
    /// The forward operator, for a gradient.
    pub(super) forward: Option<&'a ForwardSteps>,
}

/// An output of a branch.
#[derive(Clone)]
pub(super) struct BranchOutput {
    pub(super) out: Var,
    /// The variables that hold its value after each side; one without a value stands for zeros.
    pub(super) after: [Var; 2],
    /// A variable of the same dtype and shape.
    pub(super) like: Var,
}

impl ProgramWriter<'_> {
    /// Appends an `If`. A side without a block changes nothing.
    pub(super) fn if_node(
        &mut self,
        condition: OnnxValue,
        sides: [Option<Side<'_>>; 2],
        outputs: &[BranchOutput],
    ) -> Result<()> {
        let mut graphs = vec![];
        for (i, (attribute, side)) in ["then_branch", "else_branch"].into_iter().zip(sides).enumerate() {
            let graph = self.sub_graph(vec![], |writer| {
                if let Some(Side { call, inputs, forward }) = side {
                    let ends: Vec<Var> = outputs.iter().map(|output| output.after[i]).collect();
                    let before = forward.map_or(vec![], |forward| starts(&forward.call, &forward.values));
                    writer.step(call, &inputs, forward.map(|forward| (forward, &before[..])), &ends);
                }
                let value = |output: &BranchOutput| {
                    let value = value_or_zeros(&mut writer.graph, output.after[i], output.like)?;
                    typed(&writer.graph, value, output.like)
                };
                outputs.iter().map(value).collect()
            })?;
            graphs.push((attribute, graph));
        }
        let values = self.graph.node("If", vec![Some(condition)], &[], graphs, outputs.len());
        for (output, value) in outputs.iter().zip(values) {
            self.graph.write(output.out, value);
        }
        Ok(())
    }

    /// A block that runs if a condition holds.
    pub(super) fn branch(&mut self, op: &OpDesc, call: &BlockCall, condition: OnnxValue) -> Result<()> {
        self.save(op, call, self.graph.values.clone(), Some(condition), vec![]);
        let outputs: Vec<BranchOutput> = call.carried.iter().map(own_output).collect();
        let side = Side { call, inputs: starts(call, &self.graph.values), forward: None };
        self.if_node(condition, [Some(side), None], &outputs)
    }

    pub(super) fn branch_gradient(
        &mut self,
        call: &BlockCall,
        condition: OnnxValue,
        forward: &ForwardSteps,
    ) -> Result<()> {
        let (mut inputs, mut outputs) = (vec![], vec![]);
        for carried in &call.carried {
            let first = first_value(&mut self.graph, carried)?;
            inputs.push((carried.start, first));
            let (Some(out), like) = (carried.last, like(carried)) else { continue };
            // Gradients of a branch that has not run are those of its outputs.
            outputs.push(BranchOutput { out, after: [carried.end, out], like });
            self.graph.write(out, first);
        }
        self.graph.commit();
        for (inner, out, like) in &call.sums {
            outputs.push(BranchOutput { out: *out, after: [*inner, Var::EMPTY], like: *like });
        }
        let side = Side { call, inputs, forward: Some(forward) };
        self.if_node(condition, [Some(side), None], &outputs)
    }
}

/// The output of a branch that changes a variable.
pub(super) fn own_output(carried: &CarriedValue) -> BranchOutput {
    let out = carried.end;
    BranchOutput { out, after: [out; 2], like: out }
}

/// The states of a branch that have values.
pub(super) fn starts(call: &BlockCall, values: &VariableValues) -> Vec<(Var, OnnxValue)> {
    let starts = call.carried.iter().map(|carried| carried.start);
    starts.filter_map(|start| Some((start, *values.get(&start)?))).collect()
}

// `Choice` looks for it after the compositions of operators without a rule.
impl Rule<Onnx> for SelectInput<Onnx> {
    fn apply(&mut self) {
        let Some(like) = self.x.iter().flatten().next() else { return };
        let value = |x: &Option<Onnx>| x.clone().unwrap_or_else(|| like.filled(0.0, &like.shape()));
        let mask = self.mask.reshape(&[]);
        let mut values = self.x.iter().map(value);
        let first = values.next();
        self.out = values.enumerate().fold(first.unwrap_or_else(|| self.out.clone()), |chosen, (i, x)| {
            mask.equal(&mask.number(i as f64 + 1.0)).select(&x, &chosen)
        });
    }
}
