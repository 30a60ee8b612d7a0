//! Branches as `If`, and selections between their results.

use autobwd::{
    OpDesc, Result,
    op::{BlockCall, CarriedValue},
    program::Var,
};
use autobwd_ops::select::SelectInput;

use super::{
    ExportOp, ExportRule, ProgramWriter,
    control::{ForwardSteps, first_value, like, typed, value_or_zeros, zeros},
    onnx_graph::{OnnxGraph, OnnxValue, VariableValues},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<SelectInput>()]
}

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

/// Whether one integer equals a number, as a scalar.
fn equals(graph: &mut OnnxGraph<'_>, mask: Var, number: usize) -> Result<OnnxValue> {
    let (x, number) = (graph.read(mask)?, graph.scalar(graph.dtype(mask)?, number as f64)?);
    let x = if graph.rank(mask)? == 0 { x } else { graph.reshape(x, &[])? };
    Ok(graph.op("Equal", &[x, number], &[]))
}

// `Choice` looks for it after the compositions of operators without a rule.
impl ExportOp for SelectInput {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let value = |graph: &mut OnnxGraph<'_>, x: Option<Var>| match x {
            Some(x) => graph.read(x),
            None => zeros(graph, self.x.iter().flatten().next().copied().unwrap_or(self.out)),
        };
        let mut chosen = value(graph, self.x.first().copied().flatten())?;
        for (i, x) in self.x.iter().enumerate().skip(1) {
            let (holds, x) = (equals(graph, self.mask, i)?, value(graph, *x)?);
            chosen = graph.op("Where", &[holds, x, chosen], &[]);
        }
        graph.write(self.out, chosen);
        Ok(())
    }
}
