//! Central differences, for calls for which the reference has no correct values.

use autobwd::{DType, OpDesc, Program, Tensor, Var, VarDesc, program::VarKind};

use super::{CorpusCall, Difference, values::Machine};

/// Step width and tolerances of central differences.
#[derive(Clone, Copy)]
pub(super) struct Precision {
    /// Relative width, which balances rounding and truncation errors.
    width: f64,
    /// Tolerance of differences, relative to the largest value, or to 1.
    pub(super) tolerance: f64,
    /// Tolerance of recorded values, likewise: some units in the last place of the sums.
    pub(super) golden: f64,
}

impl Precision {
    /// According to the least precise dtype of the program.
    pub(super) fn of(program: &Program) -> Precision {
        let vars = program.blocks().iter().flat_map(|block| block.vars.values());
        // Step scopes have no elements; their dtype is meaningless.
        let in_f32 = |desc: &VarDesc| desc.kind != VarKind::StepScopes && desc.dtype == DType::F32;
        match vars.into_iter().any(in_f32) {
            true => Precision { width: 3e-3, tolerance: 1e-4, golden: 1e-6 },
            false => Precision { width: 1e-5, tolerance: 1e-6, golden: 1e-9 },
        }
    }
}

/// The derivative of a call's targets with respect to a variable, where variables without gradient are constant.
pub(super) fn derivative(
    machine: &mut Machine,
    program: &Program,
    call: &CorpusCall,
    var: &str,
) -> Result<Vec<f64>, Difference> {
    let objective = Objective::of(machine, program, call)?;
    let (program, fed) = frozen(machine, program, &call.no_grad(), var)?;
    let before = machine.feeds.clone();
    machine.feeds.extend(fed);
    let derivative = differentiate(machine, &program, &objective, var);
    machine.feeds = before;
    derivative
}

/// The differentiated function: the weighted sum of the targets' elements.
struct Objective {
    targets: Vec<String>,
    weights: Vec<Vec<f64>>,
}

impl Objective {
    fn of(machine: &mut Machine, program: &Program, call: &CorpusCall) -> Result<Objective, Difference> {
        let (targets, given) = match call {
            CorpusCall::AppendBackward { loss, .. } => (vec![loss.clone()], None),
            CorpusCall::Gradients { targets, target_gradients, .. } => {
                (targets.clone(), target_gradients.as_ref())
            }
        };
        let mut weights = vec![];
        for (i, target) in targets.iter().enumerate() {
            let given = given.and_then(|given| given.get(i)).and_then(Option::as_ref);
            let value = machine.run(program, std::slice::from_ref(given.unwrap_or(target)))?;
            let numbers = value.iter().flat_map(Tensor::to_f64s);
            weights.push(if given.is_some() { numbers.collect() } else { numbers.map(|_| 1.0).collect() });
        }
        Ok(Objective { targets, weights })
    }

    fn value(&self, machine: &mut Machine, program: &Program) -> Result<f64, Difference> {
        let targets = machine.run(program, &self.targets)?;
        let weighted = targets.iter().zip(&self.weights).map(|(target, weights)| {
            target.to_f64s().iter().zip(weights).map(|(x, weight)| x * weight).sum::<f64>()
        });
        Ok(weighted.sum())
    }
}

/// A copy of the program in which the requested variable, and variables without gradient, are fed with their values:
/// the objective then depends on the former, and not through the latter.
fn frozen(
    machine: &mut Machine,
    program: &Program,
    no_grad: &[&str],
    asked: &str,
) -> Result<(Program, Vec<(String, Tensor)>), Difference> {
    let mut copy = program.clone();
    let mut names = vec![];
    for (var, desc) in program.root().vars.iter() {
        let name = program.name(*var);
        let fixed = name == asked || desc.stop_gradient || no_grad.contains(&name);
        // A name that is written repeatedly has no single value; kept or fed variables have no writer.
        if fixed && desc.dtype.is_float() && !desc.persistable && writers(program, *var) == 1 {
            let elsewhere = copy.fresh(&format!("{name}@FROZEN"));
            let root = copy.root_mut();
            root.vars.insert(elsewhere, desc.clone());
            let outputs = root.ops.iter_mut().flat_map(|op| op.outputs.args_mut());
            outputs.filter(|v| **v == *var).for_each(|v| *v = elsewhere);
            names.push(name.to_string());
        }
    }
    let values = machine.run(program, &names)?;
    Ok((copy, names.into_iter().zip(values).collect()))
}

fn writers(program: &Program, var: Var) -> usize {
    let ops = program.blocks().iter().flat_map(|block| &block.ops);
    ops.flat_map(OpDesc::writes).filter(|v| *v == var).count()
}

fn differentiate(
    machine: &mut Machine,
    program: &Program,
    objective: &Objective,
    var: &str,
) -> Result<Vec<f64>, Difference> {
    let unknown = || Difference::new(format!("`{var}` is neither fed nor kept: there are no differences"));
    let base = machine.feeds.get(var).or(machine.kept.get(var)).ok_or_else(unknown)?.clone();
    let relative = Precision::of(program).width;
    let numbers = base.slice::<f64>()?;
    let mut derivative = vec![];
    for (i, x) in numbers.iter().enumerate() {
        let width = relative * x.abs().max(1.0);
        let mut at = |x: f64| {
            let mut moved = base.clone();
            moved.slice_mut::<f64>()?[i] = x;
            set(machine, var, moved);
            objective.value(machine, program)
        };
        derivative.push((at(x + width)? - at(x - width)?) / (2.0 * width));
    }
    set(machine, var, base);
    Ok(derivative)
}

fn set(machine: &mut Machine, var: &str, value: Tensor) {
    let home = if machine.kept.contains_key(var) { &mut machine.kept } else { &mut machine.feeds };
    home.insert(var.to_string(), value);
}
