use std::{collections::HashMap, panic::Location};

use super::sample::{Sample, rng, uniform};
use crate::{
    Arg, BlockId, Builder, DType, Error, ErrorKind, Executor, Expr, Meta, OpInfoMap, Program, Result, Role,
    Scope, Session, Tensor, Var, VarDesc, Words, build::OpArgs, gradients_in,
};

/// Step of the central differences, relative to the element: the error of the difference is about its square, that of
/// rounding about 1e-16 over it.
const STEP: f64 = 1e-5;

/// A program as a function of named inputs with values, to named outputs.
pub(super) struct Function {
    pub(super) program: Program,
    executor: Executor,
    pub(super) inputs: Vec<(String, Tensor)>,
    pub(super) outputs: Vec<(String, Meta)>,
}

impl Function {
    /// The program of one operator, its inputs drawn, with floating point numbers of dtype `float`. With `same`, the
    /// second of these inputs is the first.
    pub(super) fn of(
        ops: &OpInfoMap,
        sample: &Sample,
        float: DType,
        same: Option<(usize, usize)>,
    ) -> Result<Function> {
        let mut rng = rng(sample.draws.len() as u64);
        let mut program = Program::new();
        let vars: Vec<Var> = (0..sample.draws.len()).map(|i| program.var(&format!("v{i}"))).collect();
        let mut desc = sample.desc.clone();
        let stand_ins = desc.inputs.args_mut().chain(desc.outputs.args_mut());
        stand_ins.filter(|v| **v != Var::EMPTY).for_each(|v| *v = vars[v.index() - 1]);
        if let Some((first, second)) = same {
            desc.inputs.args_mut().filter(|v| **v == vars[second]).for_each(|v| *v = vars[first]);
        }
        let mut inputs = vec![];
        for (var, draw) in vars.iter().zip(&sample.draws).filter(|(_, draw)| !draw.is_output()) {
            // Drawn in any case, so that a repeated input leaves the others what they are.
            let tensor = draw.tensor(float, &mut rng)?;
            if desc.reads().any(|v| v == *var) {
                let meta = tensor.meta();
                program.root_mut().vars.insert(*var, VarDesc::new(meta.dtype, meta.dims));
                inputs.push((program.name(*var).to_string(), tensor));
            }
        }
        let info = ops.get(&desc.ty)?;
        let mut outputs = vec![];
        let of = |var: Var| {
            let known = program.root().vars.get(&var).map(VarDesc::meta);
            known.ok_or_else(|| failure(format!("`{}` is no input", program.name(var))))
        };
        let inferred = info
            .check(&desc)
            .and_then(|()| info.infer(&desc, &of, &mut |var, meta| outputs.push((var, meta))));
        inferred.map_err(|e| e.at_op(|| program.describe_op(BlockId::ROOT, 0, &desc)))?;
        for (var, meta) in &outputs {
            program.root_mut().vars.insert(*var, VarDesc::of(meta.clone()));
        }
        program.root_mut().ops.push(desc);
        let outputs = outputs.into_iter().map(|(v, meta)| (program.name(v).to_string(), meta)).collect();
        let executor = Executor::with_threads(1).with_ops(ops.clone());
        Ok(Function { program, executor, inputs, outputs })
    }

    /// Names of what is differentiated with respect to.
    pub(super) fn float_inputs(&self) -> Vec<String> {
        self.inputs.iter().filter(|(_, t)| t.dtype().is_float()).map(|(n, _)| n.clone()).collect()
    }

    fn float_outputs(&self) -> impl Iterator<Item = &(String, Meta)> {
        self.outputs.iter().filter(|(_, meta)| meta.dtype.is_float())
    }

    fn session(&self, fetches: &[&str]) -> Result<(Session, Scope)> {
        let mut scope = Scope::new();
        let feeds: Vec<_> = self.inputs.iter().map(|(n, t)| (n.as_str(), t.meta())).collect();
        let session = self.executor.prepare(&self.program, &mut scope, &feeds, fetches)?;
        Ok((session, scope))
    }

    /// The values of these variables.
    pub(super) fn fetch(&self, names: &[&str]) -> Result<Vec<Tensor>> {
        let (mut session, mut scope) = self.session(names)?;
        self.inputs.iter().try_for_each(|(name, tensor)| session.feed(name, tensor))?;
        session.run(&mut scope)?;
        names.iter().map(|name| session.fetch(name)).collect()
    }

    /// The values of all outputs.
    pub(super) fn run(&self) -> Result<Vec<Tensor>> {
        let names: Vec<_> = self.outputs.iter().map(|(n, _)| n.as_str()).collect();
        self.fetch(&names)
    }

    /// The inputs as values of a tape.
    pub(super) fn leaves(&self, tape: &Builder) -> Vec<Expr> {
        self.inputs.iter().map(|(name, tensor)| tape.leaf(name, tensor.clone())).collect()
    }

    /// Runs the operators one by one, eagerly.
    pub(super) fn eager(&self, tape: &Builder, inputs: &[Expr]) -> Result<Vec<Expr>> {
        let mut known: HashMap<Var, Expr> = HashMap::new();
        for ((name, _), input) in self.inputs.iter().zip(inputs) {
            known.insert(self.program.expect_var(name)?, input.clone());
        }
        for op in &self.program.root().ops {
            let (mut desc, mut args, mut vars) = (op.clone(), OpArgs::new(), vec![]);
            desc.site = None;
            let unknown = || failure("an operator reads what nobody has written");
            for arg in desc.inputs.args_mut().filter(|v| **v != Var::EMPTY) {
                args.push((Role::Input, "", Some(known.get(arg).cloned().ok_or_else(unknown)?.into())));
                vars.push(std::mem::replace(arg, Var::stand_in(args.len())));
            }
            for arg in desc.outputs.args_mut().filter(|v| **v != Var::EMPTY) {
                args.push((Role::Output, "", Some(Arg::New)));
                vars.push(std::mem::replace(arg, Var::stand_in(args.len())));
            }
            let (mut words, at) = (Words::of(&desc), Location::caller());
            tape.append_args(&mut args, &mut words, at, &mut || Ok(desc.clone()))?;
            known.extend(vars.into_iter().zip(args.into_iter().filter_map(|(.., arg)| arg?.expr())));
        }
        let output = |(name, _): &(String, Meta)| {
            let var = self.program.expect_var(name)?;
            known.get(&var).cloned().ok_or_else(|| failure("an output that nobody has written"))
        };
        self.outputs.iter().map(output).collect()
    }

    /// This function's gradient: the same inputs and random cotangents of the floating point outputs, to the gradients of
    /// the floating point inputs. Beside it, for each of these, the name of its gradient.
    pub(super) fn gradient(
        &self,
        ops: &OpInfoMap,
        no_grad: &[&str],
    ) -> Result<(Function, Vec<Option<String>>)> {
        // Random cotangents: ones would hide errors that cancel in a sum.
        let mut rng = rng(7);
        let (mut program, mut inputs) = (self.program.clone(), self.inputs.clone());
        let (mut targets, mut cotangents) = (vec![], vec![]);
        for (name, meta) in self.float_outputs() {
            let dims = meta.dims.known().ok_or_else(|| failure("an output of unknown shape"))?;
            let drawn = uniform([dims.iter().product()]).tensor(meta.dtype, &mut rng)?;
            let mut tensor = Tensor::zeros(meta.dtype, &dims)?;
            tensor.bytes_mut().copy_from_slice(drawn.bytes());
            let cotangent = format!("cotangent_of_{name}");
            let var = program.var(&cotangent);
            program.root_mut().vars.insert(var, VarDesc::new(meta.dtype, meta.dims.clone()));
            inputs.push((cotangent.clone(), tensor));
            targets.push(name.as_str());
            cotangents.push(cotangent);
        }
        let (wanted, mut outputs) = (self.float_inputs(), vec![]);
        if targets.is_empty() || wanted.is_empty() {
            let none = wanted.iter().map(|_| None).collect();
            return Ok((Function { program, executor: self.executor(ops), inputs, outputs }, none));
        }
        let wanted: Vec<_> = wanted.iter().map(String::as_str).collect();
        let given: Vec<_> = cotangents.iter().map(|c| Some(c.as_str())).collect();
        let built = gradients_in(ops, &mut program, &targets, &wanted, Some(&given), no_grad)?;
        let mut names = vec![];
        for input in &wanted {
            let grad = built.of(program.expect_var(input)?);
            let named = grad.map(|v| program.name(v).to_string());
            if let (Some(name), Some(var)) = (&named, grad) {
                let meta = program.root().vars.get(&var).map(VarDesc::meta);
                outputs.push((name.clone(), meta.ok_or_else(|| failure("a gradient is not declared"))?));
            }
            names.push(named);
        }
        Ok((Function { program, executor: self.executor(ops), inputs, outputs }, names))
    }

    fn executor(&self, ops: &OpInfoMap) -> Executor {
        Executor::with_threads(self.executor.threads()).with_ops(ops.clone())
    }

    /// Derivative of the sum of all floating point outputs times weights, with respect to one input, by central
    /// differences.
    pub(super) fn numeric(&self, input: &str, weights: &[&Tensor]) -> Result<Vec<f64>> {
        let fetches: Vec<_> = self.float_outputs().map(|(n, _)| n.as_str()).collect();
        let (mut session, mut scope) = self.session(&fetches)?;
        let mut inputs = self.inputs.clone();
        let Some(at) = inputs.iter().position(|(n, _)| n == input) else { return Ok(vec![]) };
        let mut derivative = vec![];
        for i in 0..inputs[at].1.numel() {
            let x = inputs[at].1.slice::<f64>()?[i];
            let step = STEP * x.abs().max(1.0);
            let mut sides = [vec![], vec![]];
            for (side, x) in sides.iter_mut().zip([x + step, x - step]) {
                inputs[at].1.slice_mut::<f64>()?[i] = x;
                inputs.iter().try_for_each(|(name, tensor)| session.feed(name, tensor))?;
                session.run(&mut scope)?;
                for name in &fetches {
                    side.extend(session.fetch(name)?.to_f64s());
                }
            }
            inputs[at].1.slice_mut::<f64>()?[i] = x;
            // Differences first: large outputs that do not change must not cost digits.
            let weights = weights.iter().flat_map(|t| t.to_f64s());
            let [up, down] = &sides;
            let change: f64 = up.iter().zip(down).zip(weights).map(|((u, d), w)| (u - d) * w).sum();
            derivative.push(change / (2.0 * step));
        }
        Ok(derivative)
    }
}

pub(super) fn failure(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Check, text)
}
