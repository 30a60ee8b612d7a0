//! A program as a differentiable function of named inputs, with its gradient and finite differences.

use std::{
    collections::{HashMap, HashSet},
    panic::Location,
};

use autobwd_backward::{GradientOptions, gradients};
use autobwd_core::__private::internals::*;
use autobwd_core::sample::{MakeProgram, Sample, rng, uniform};
use autobwd_core::{
    __private::OpArgs, Arg, BlockId, Builder, DType, Error, ErrorKind, Expr, Meta, OpDesc, OpInfoMap, OpKey,
    Program, Result, Role, Tensor, Var, VarDesc,
};
use autobwd_exec::{Executor, Scope, Session};

/// Step of the central differences, relative to the element: the truncation error is about its square, the rounding
/// error about 1e-16 divided by it.
pub(super) const STEP: f64 = 1e-5;

/// Maximum number of steps of a loop: with shapes that its author did not intend, it may not end.
const LOOP: u64 = 10_000;

/// The program of a sample's operator alone, and values of its inputs by name, with floating point numbers of dtype
/// `float`.
///
/// # Errors
/// An unknown operator, or one that rejects these inputs.
pub fn sample_program(sample: &Sample, float: DType) -> Result<(Program, Vec<(String, Tensor)>)> {
    let function = ProgramFunction::of(OpInfoMap::linked()?, sample, float, None)?;
    Ok((function.program, function.inputs))
}

/// A program as a function of named inputs with values, to named outputs.
pub(super) struct ProgramFunction {
    pub(super) program: Program,
    executor: Executor,
    pub(super) inputs: Vec<(String, Tensor)>,
    pub(super) outputs: Vec<(String, Meta)>,
    /// The function that made the program, if the sample has one.
    make: Option<MakeProgram>,
    /// Inputs in slots declared `constant` of operators that compositions have replaced.
    replaced: HashSet<Var>,
}

/// A finite difference: the central one, and the one-sided ones, which differ at a kink.
#[derive(Clone, Copy)]
pub(super) struct FiniteDifference {
    pub(super) central: f64,
    pub(super) left: f64,
    pub(super) right: f64,
}

impl ProgramFunction {
    /// The program of a sample, with random inputs and floating point numbers of dtype `float`. With `same`, the second
    /// of these inputs is the first.
    pub(super) fn of(
        ops: &OpInfoMap,
        sample: &Sample,
        float: DType,
        same: Option<(usize, usize)>,
    ) -> Result<ProgramFunction> {
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
            // Always drawn, so that a repeated input does not change the others.
            let tensor = draw.tensor(float, &mut rng)?;
            if sample.program.is_some() || desc.reads().any(|v| v == *var) {
                let meta = tensor.meta();
                program.root_mut().vars.insert(*var, VarDesc::new(meta.dtype, meta.dims));
                inputs.push((program.name(*var).to_string(), tensor));
            }
        }
        let executor = executor(ops);
        let (program, outputs) = match sample.program {
            Some(make) => build_program(ops, program, &vars, make)?,
            None => of_one(ops, program, desc, &inputs)?,
        };
        let (make, replaced) = (sample.program, HashSet::new());
        let found = ProgramFunction { program, executor, inputs, outputs, make, replaced };
        if found.operators(sample.op()).next().is_none() {
            return Err(failure(format!("the program of the sample has no `{}`", sample.op())));
        }
        Ok(found)
    }

    /// The same inputs and outputs, with another program. Constants stay constant.
    pub(super) fn with_program(&self, ops: &OpInfoMap, program: Program) -> ProgramFunction {
        let (inputs, outputs) = (self.inputs.clone(), self.outputs.clone());
        let replaced = self.constants().unwrap_or_default();
        ProgramFunction { replaced, ..self.extended(ops, program, inputs, outputs) }
    }

    /// The same program with other inputs.
    pub(super) fn with_inputs(&self, ops: &OpInfoMap, inputs: Vec<(String, Tensor)>) -> ProgramFunction {
        self.extended(ops, self.program.clone(), inputs, self.outputs.clone())
    }

    /// The same program with another value of an input.
    pub(super) fn with_input(&self, ops: &OpInfoMap, name: &str, value: Tensor) -> ProgramFunction {
        let mut inputs = self.inputs.clone();
        inputs.iter_mut().filter(|(input, _)| input == name).for_each(|(_, old)| *old = value.clone());
        self.with_inputs(ops, inputs)
    }

    /// The same program with more inputs and other outputs.
    pub(super) fn extended(
        &self,
        ops: &OpInfoMap,
        program: Program,
        inputs: Vec<(String, Tensor)>,
        outputs: Vec<(String, Meta)>,
    ) -> ProgramFunction {
        let replaced = self.replaced.clone();
        ProgramFunction { program, executor: executor(ops), inputs, outputs, make: None, replaced }
    }

    /// The operators of that type, in all blocks.
    pub(super) fn operators(&self, ty: &str) -> impl Iterator<Item = &OpDesc> {
        self.program.blocks().iter().flat_map(|block| &block.ops).filter(move |op| &*op.ty == ty)
    }

    /// Names of the integer inputs whose elements kernels read.
    pub(super) fn integer_inputs(&self) -> Vec<String> {
        let constants = self.constants().unwrap_or_default();
        let is_constant = |name: &str| self.program.find(name).is_some_and(|var| constants.contains(&var));
        let is_integer = |tensor: &Tensor| matches!(tensor.dtype(), DType::U8 | DType::I32 | DType::I64);
        let integers = self.inputs.iter().filter(|(name, tensor)| is_integer(tensor) && !is_constant(name));
        integers.map(|(name, _)| name.clone()).collect()
    }

    /// Names of the differentiable inputs.
    pub(super) fn float_inputs(&self) -> Vec<String> {
        let constants = self.constants().unwrap_or_default();
        let is_constant = |name: &str| self.program.find(name).is_some_and(|var| constants.contains(&var));
        let floats = self.inputs.iter().filter(|(_, tensor)| tensor.dtype().is_float());
        floats.map(|(name, _)| name.clone()).filter(|name| !is_constant(name)).collect()
    }

    /// The number of elements of an input.
    pub(super) fn numel(&self, input: &str) -> usize {
        self.dims(input).iter().product()
    }

    /// The shape of an input.
    pub(super) fn dims(&self, input: &str) -> &[usize] {
        self.inputs.iter().find(|(name, _)| name == input).map_or(&[], |(_, tensor)| tensor.dims())
    }

    pub(super) fn float_outputs(&self) -> impl Iterator<Item = &(String, Meta)> {
        self.outputs.iter().filter(|(_, meta)| meta.dtype.is_float())
    }

    /// Dtypes and shapes of the inputs, with the elements of those in slots declared `constant`.
    pub(super) fn feeds(&self) -> Result<Vec<(&str, Meta)>> {
        let constants = self.constants()?;
        let meta = |(name, tensor): &(String, Tensor)| {
            let known = self.program.find(name).is_some_and(|var| constants.contains(&var));
            if known { with_elements(tensor) } else { tensor.meta() }
        };
        Ok(self.inputs.iter().map(|input| (input.0.as_str(), meta(input))).collect())
    }

    /// The variables in slots declared `constant`.
    fn constants(&self) -> Result<HashSet<Var>> {
        let ops = self.program.blocks().iter().flat_map(|block| &block.ops);
        let mut found = constants(self.executor.operators()?, ops)?;
        found.extend(&self.replaced);
        Ok(found)
    }

    fn session(&self, executor: &Executor, fetches: &[&str]) -> Result<(Session, Scope)> {
        let mut scope = Scope::new();
        let session = executor.prepare(&self.program, &mut scope, &self.feeds()?, fetches)?;
        Ok((session, scope))
    }

    /// The values of these variables.
    pub(super) fn fetch(&self, names: &[&str]) -> Result<Vec<Tensor>> {
        self.fetch_by(&self.executor, names)
    }

    fn fetch_by(&self, executor: &Executor, names: &[&str]) -> Result<Vec<Tensor>> {
        let (mut session, mut scope) = self.session(executor, names)?;
        self.inputs.iter().try_for_each(|(name, tensor)| session.feed(name, tensor))?;
        session.run(&mut scope)?;
        names.iter().map(|name| session.fetch(name)).collect()
    }

    /// The values of all outputs.
    pub(crate) fn run(&self) -> Result<Vec<Tensor>> {
        self.run_by(&self.executor)
    }

    /// The same, with another executor.
    pub(super) fn run_by(&self, executor: &Executor) -> Result<Vec<Tensor>> {
        let names: Vec<_> = self.outputs.iter().map(|(n, _)| n.as_str()).collect();
        self.fetch_by(executor, &names)
    }

    /// The inputs as values of a tape.
    pub(super) fn leaves(&self, tape: &Builder) -> Vec<Expr> {
        self.inputs.iter().map(|(name, tensor)| tape.leaf(name, tensor.clone())).collect()
    }

    /// Runs the operators one by one in eager mode.
    pub(super) fn eager(&self, tape: &Builder, inputs: &[Expr]) -> Result<Vec<Expr>> {
        if let Some(make) = self.make {
            return make(tape, inputs);
        }
        let mut known: HashMap<Var, Expr> = HashMap::new();
        for ((name, _), input) in self.inputs.iter().zip(inputs) {
            known.insert(self.program.expect_var(name)?, input.clone());
        }
        for op in &self.program.root().ops {
            let ((desc, vars), mut args) = (stand_ins(op), OpArgs::new());
            for (role, var) in &vars {
                let arg = match role {
                    Role::Input => known.get(var).cloned().ok_or_else(unwritten_error)?.into(),
                    Role::Output => Arg::New,
                };
                args.push((*role, "", Some(arg)));
            }
            let (mut words, at) = (OpKey::of(&desc), Location::caller());
            tape.append_args(&mut args, &mut words, &desc.ty, at, &mut || Ok(desc.clone()))?;
            let values = args.into_iter().filter_map(|(.., arg)| arg?.expr());
            known.extend(vars.into_iter().map(|(_, var)| var).zip(values));
        }
        let output = |(name, _): &(String, Meta)| {
            let var = self.program.expect_var(name)?;
            known.get(&var).cloned().ok_or_else(|| failure("an output that is not written"))
        };
        self.outputs.iter().map(output).collect()
    }

    /// A random cotangent for every floating point output: ones would hide errors that cancel in a sum.
    pub(super) fn cotangents(&self) -> Result<Vec<Tensor>> {
        let mut rng = rng(7);
        let mut cotangents = vec![];
        for (name, meta) in self.float_outputs() {
            let dims = match meta.dims.known() {
                Some(dims) => dims,
                // It depends on a constant.
                None => self.fetch(&[name])?[0].dims().into(),
            };
            let drawn = uniform([dims.iter().product()]).tensor(meta.dtype, &mut rng)?;
            let mut tensor = Tensor::zeros(meta.dtype, &dims)?;
            tensor.bytes_mut().copy_from_slice(drawn.bytes());
            cotangents.push(tensor);
        }
        Ok(cotangents)
    }

    /// This function's gradient, from the same inputs and random cotangents of the floating point outputs to the
    /// gradients of the floating point inputs. Also, for each of these, the name of its gradient.
    pub(super) fn gradient(
        &self,
        ops: &OpInfoMap,
        no_grad: &[&str],
    ) -> Result<(ProgramFunction, Vec<Option<String>>)> {
        self.gradient_from(ops, &|_| true, no_grad)
    }

    /// The same for some of the floating point outputs, by number; the others have no gradient.
    pub(super) fn gradient_from(
        &self,
        ops: &OpInfoMap,
        has_gradient: &dyn Fn(usize) -> bool,
        no_grad: &[&str],
    ) -> Result<(ProgramFunction, Vec<Option<String>>)> {
        let (mut program, mut inputs) = (self.program.clone(), self.inputs.clone());
        let (mut targets, mut cotangents) = (vec![], vec![]);
        let all = self.float_outputs().zip(self.cotangents()?).enumerate();
        for (_, ((name, meta), tensor)) in all.filter(|(i, _)| has_gradient(*i)) {
            let cotangent = format!("cotangent_of_{name}");
            let var = program.var(&cotangent);
            program.root_mut().vars.insert(var, VarDesc::new(meta.dtype, tensor.meta().dims));
            inputs.push((cotangent.clone(), tensor));
            targets.push(name.as_str());
            cotangents.push(cotangent);
        }
        let (wanted, mut outputs) = (self.float_inputs(), vec![]);
        if targets.is_empty() || wanted.is_empty() {
            let none = wanted.iter().map(|_| None).collect();
            return Ok((self.extended(ops, program, inputs, outputs), none));
        }
        let wanted: Vec<_> = wanted.iter().map(String::as_str).collect();
        let given: Vec<_> = cotangents.iter().map(|c| Some(c.as_str())).collect();
        let options = GradientOptions { target_gradients: Some(&given), no_grad, ops: Some(ops) };
        let built = gradients(&mut program, &targets, &wanted, &options)?;
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
        Ok((self.extended(ops, program, inputs, outputs), names))
    }

    /// The same function with another value of an input.
    pub(super) fn at(&self, input: &str, value: Tensor) -> Result<Vec<Tensor>> {
        let names: Vec<_> = self.outputs.iter().map(|(n, _)| n.as_str()).collect();
        let (mut session, mut scope) = self.session(&self.executor, &names)?;
        for (name, tensor) in &self.inputs {
            session.feed(name, if name == input { &value } else { tensor })?;
        }
        session.run(&mut scope)?;
        names.iter().map(|name| session.fetch(name)).collect()
    }

    /// Finite differences of the sum of all floating point outputs times weights, with respect to the elements of one
    /// input.
    pub(super) fn numeric(&self, input: &str, weights: &[&Tensor]) -> Result<Vec<FiniteDifference>> {
        let fetches: Vec<_> = self.float_outputs().map(|(n, _)| n.as_str()).collect();
        let (mut session, mut scope) = self.session(&self.executor, &fetches)?;
        let mut inputs = self.inputs.clone();
        let Some(at) = inputs.iter().position(|(n, _)| n == input) else { return Ok(vec![]) };
        let weights: Vec<f64> = weights.iter().flat_map(|t| t.to_f64s()).collect();
        let mut values = |inputs: &[(String, Tensor)]| -> Result<Vec<f64>> {
            inputs.iter().try_for_each(|(name, tensor)| session.feed(name, tensor))?;
            session.run(&mut scope)?;
            let outputs = fetches.iter().map(|name| Ok(session.fetch(name)?.to_f64s()));
            Ok(outputs.collect::<Result<Vec<_>>>()?.concat())
        };
        // Subtract before summing: large outputs that do not change must not cost digits.
        let slope = |to: &[f64], from: &[f64], step: f64| -> f64 {
            to.iter().zip(from).zip(&weights).map(|((to, from), w)| (to - from) * w).sum::<f64>() / step
        };
        let (mut slopes, here) = (vec![], values(&inputs)?);
        for i in 0..inputs[at].1.numel() {
            let x = inputs[at].1.slice::<f64>()?[i];
            let step = STEP * x.abs().max(1.0);
            let mut moved = |x: f64| {
                inputs[at].1.slice_mut::<f64>()?[i] = x;
                values(&inputs)
            };
            let (up, down) = (moved(x + step)?, moved(x - step)?);
            inputs[at].1.slice_mut::<f64>()?[i] = x;
            slopes.push(FiniteDifference {
                central: slope(&up, &down, 2.0 * step),
                left: slope(&here, &down, step),
                right: slope(&up, &here, step),
            });
        }
        Ok(slopes)
    }
}

pub(super) fn executor(ops: &OpInfoMap) -> Executor {
    Executor::with_threads(1).with_ops(ops.clone()).loop_limit(LOOP)
}

/// The program that a builder makes of these inputs, with its outputs.
fn build_program(
    ops: &OpInfoMap,
    inputs: Program,
    vars: &[Var],
    make: MakeProgram,
) -> Result<(Program, Vec<(String, Meta)>)> {
    let net = Builder::with_ops(ops.clone());
    net.edit(|program| {
        *program = inputs;
        Ok(())
    })?;
    let inputs: Vec<Expr> = vars.iter().map(|var| net.existing(*var)).collect();
    let outputs = make(&net, &inputs)?;
    let program = net.program()?.clone();
    let outputs = outputs.iter().map(|out| (out.name(), out.meta())).collect();
    Ok((program, outputs))
}

/// The variables in slots declared `constant`.
pub(super) fn constants<'a>(
    ops: &OpInfoMap,
    program: impl IntoIterator<Item = &'a OpDesc>,
) -> Result<HashSet<Var>> {
    let mut found = HashSet::new();
    for op in program {
        for slot in ops.get(&op.ty)?.schema().inputs.iter().filter(|slot| slot.constant) {
            found.extend(op.inputs.get(slot.name));
        }
    }
    Ok(found)
}

/// Dtype, shape and elements.
pub(super) fn with_elements(tensor: &Tensor) -> Meta {
    tensor.meta().with_constant(Some(tensor.to_f64s().into()))
}

/// Appends one operator, with its outputs.
fn of_one(
    ops: &OpInfoMap,
    mut program: Program,
    desc: OpDesc,
    inputs: &[(String, Tensor)],
) -> Result<(Program, Vec<(String, Meta)>)> {
    let (info, mut outputs) = (ops.get(&desc.ty)?, vec![]);
    let constants = constants(ops, [&desc])?;
    let of = |var: Var| {
        let input = inputs.iter().find(|(name, _)| constants.contains(&var) && name == program.name(var));
        let declared = || program.root().vars.get(&var).map(VarDesc::meta);
        let known = input.map(|(_, tensor)| with_elements(tensor)).or_else(declared);
        known.ok_or_else(|| failure(format!("`{}` is not an input", program.name(var))))
    };
    let inferred =
        info.check(&desc).and_then(|()| info.infer(&desc, &of, &mut |var, meta| outputs.push((var, meta))));
    inferred.map_err(|e| e.at_op(|| program.describe_op(BlockId::ROOT, 0, &desc)))?;
    for (var, meta) in &outputs {
        program.root_mut().vars.insert(*var, VarDesc::of(meta.clone()));
    }
    program.root_mut().ops.push(desc);
    let outputs = outputs.into_iter().map(|(v, meta)| (program.name(v).to_string(), meta)).collect();
    Ok((program, outputs))
}

/// The operator with variable k + 1 as its k-th argument, without empty arguments, and the arguments.
pub(super) fn stand_ins(op: &OpDesc) -> (OpDesc, Vec<(Role, Var)>) {
    let (mut desc, mut args) = (op.clone(), vec![]);
    desc.site = None;
    for (role, slots) in [(Role::Input, &mut desc.inputs), (Role::Output, &mut desc.outputs)] {
        for arg in slots.args_mut().filter(|v| **v != Var::EMPTY) {
            args.push((role, *arg));
            *arg = Var::stand_in(args.len());
        }
    }
    (desc, args)
}

pub(super) fn unwritten_error() -> Error {
    failure("an operator reads a variable that is not written")
}

pub(super) fn failure(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Check, text)
}

/// Adds the case in which an error occurred.
pub(super) fn in_case(case: &str) -> impl Fn(Error) -> Error {
    move |e| Error::new(e.kind(), format!("{case}{e}"))
}
