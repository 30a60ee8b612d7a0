//! Built gradients against central differences.

use super::sample::{Sample, rng};
use crate::{
    BlockId, DType, Dims, Error, ErrorKind, Executor, GradKind, Meta, OpInfoMap, Program, Result, Scope,
    Session, Tensor, Var, VarDesc, gradients_in,
};

/// Bound for |built − numeric| / (1 + max |numeric|), unless a sample has its own.
const TOLERANCE: f64 = 1e-7;
/// Step of the central differences, relative to the element: the error of the difference is about its square, that of
/// rounding about 1e-16 over it.
const STEP: f64 = 1e-5;

/// What a check has found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checked {
    /// How many elements' derivatives were compared.
    pub elements: usize,
    /// Largest |built − numeric| / (1 + max |numeric|).
    pub worst: f64,
}

/// Checks a sample with the operators that this binary links: it runs in `f32` and `f64`, and the built gradients of all
/// its floating point outputs with respect to all its floating point inputs, for random output cotangents, are those of
/// central differences; or, for an error row, it is refused with the expected message.
///
/// # Errors
/// What does not hold.
pub fn check_sample(sample: &Sample) -> Result<Checked> {
    check_sample_in(OpInfoMap::linked()?, sample)
}

/// As [`check_sample`], with these operators.
///
/// # Errors
/// As [`check_sample`].
pub fn check_sample_in(ops: &OpInfoMap, sample: &Sample) -> Result<Checked> {
    match sample.error {
        Some(expected) => check_refused(ops, sample, expected),
        None => {
            Case::new(ops, sample, DType::F32)?.run()?;
            let case = Case::new(ops, sample, DType::F64)?;
            case.run()?;
            case.check_gradients(ops, sample)
        }
    }
}

fn failure(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Check, text)
}

fn check_refused(ops: &OpInfoMap, sample: &Sample, expected: &str) -> Result<Checked> {
    match Case::new(ops, sample, DType::F64).and_then(|case| case.run()) {
        Ok(_) => Err(failure(format!("`{}` was accepted; expected the error \"{expected}\"", sample.op()))),
        Err(e) if e.to_string().contains(expected) => Ok(Checked { elements: 0, worst: 0.0 }),
        Err(e) => Err(failure(format!("expected the error \"{expected}\", got \"{e}\""))),
    }
}

/// A program of one operator with data for its inputs.
struct Case {
    program: Program,
    executor: Executor,
    /// Name and value of each input.
    inputs: Vec<(String, Tensor)>,
    /// Name, dtype and dimensions of each output.
    outputs: Vec<(String, Meta)>,
}

impl Case {
    fn new(ops: &OpInfoMap, sample: &Sample, float: DType) -> Result<Case> {
        let mut rng = rng(sample.draws.len() as u64);
        let mut program = Program::new();
        let names: Vec<String> = (0..sample.draws.len()).map(|i| format!("v{i}")).collect();
        let vars: Vec<Var> = names.iter().map(|name| program.var(name)).collect();
        let mut desc = sample.desc.clone();
        let stand_ins = desc.inputs.args_mut().chain(desc.outputs.args_mut());
        stand_ins.filter(|v| **v != Var::EMPTY).for_each(|v| *v = vars[v.index() - 1]);
        let mut inputs = vec![];
        for ((var, name), draw) in vars.iter().zip(&names).zip(&sample.draws) {
            if desc.reads().any(|v| v == *var) {
                let tensor = draw.tensor(float, &mut rng)?;
                let meta = tensor.meta();
                program.root_mut().vars.insert(*var, VarDesc::new(meta.dtype, meta.dims));
                inputs.push((name.clone(), tensor));
            }
        }
        let at = |e: Error, p: &Program| e.at_op(|| p.describe_op(BlockId::ROOT, 0, &desc));
        let info = ops.get(&desc.ty)?;
        let mut outputs = vec![];
        let of = |var: Var| {
            let known = program.root().vars.get(&var).map(VarDesc::meta);
            known.ok_or_else(|| failure(format!("`{}` is no input", program.name(var))))
        };
        let inferred = info
            .check(&desc)
            .and_then(|()| info.infer(&desc, &of, &mut |var, meta| outputs.push((var, meta))));
        inferred.map_err(|e| at(e, &program))?;
        for (var, meta) in &outputs {
            program.root_mut().vars.insert(*var, VarDesc::new(meta.dtype, meta.dims.clone()));
        }
        program.root_mut().ops.push(desc.clone());
        let outputs = outputs.into_iter().map(|(v, meta)| (program.name(v).to_string(), meta)).collect();
        let executor = Executor::with_threads(1).with_ops(ops.clone());
        Ok(Case { program, executor, inputs, outputs })
    }

    fn session(
        &self,
        program: &Program,
        scope: &mut Scope,
        extra: &[(String, Tensor)],
        fetches: &[&str],
    ) -> Result<Session> {
        let feeds: Vec<_> = self.inputs.iter().chain(extra).map(|(n, t)| (n.as_str(), t.meta())).collect();
        self.executor.prepare(program, scope, &feeds, fetches)
    }

    fn run(&self) -> Result<()> {
        let (mut scope, fetches) =
            (Scope::new(), self.outputs.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>());
        let mut session = self.session(&self.program, &mut scope, &[], &fetches)?;
        feed(&mut session, &self.inputs)?;
        session.run(&mut scope)
    }

    fn check_gradients(mut self, ops: &OpInfoMap, sample: &Sample) -> Result<Checked> {
        let none = Checked { elements: 0, worst: 0.0 };
        let kind = ops.get(sample.op())?.grad_kind();
        if matches!(kind, GradKind::None | GradKind::Zero) || sample.smooth.is_some() {
            return Ok(none);
        }
        // Random cotangents: ones would hide errors that cancel in a sum.
        let mut rng = rng(7);
        let mut cotangents = vec![];
        for (name, meta) in self.outputs.iter().filter(|(_, meta)| meta.dtype.is_float()) {
            let dims = meta.dims.known().ok_or_else(|| failure("an output of unknown shape"))?;
            let n: usize = dims.iter().product();
            let drawn = super::sample::uniform([n]).tensor(DType::F64, &mut rng)?;
            let tensor = Tensor::from_vec(dims, drawn.slice::<f64>()?.to_vec())?;
            cotangents.push((name.clone(), format!("cotangent_of_{name}"), tensor));
        }
        if cotangents.is_empty() {
            return Ok(none);
        }
        for (_, cotangent, tensor) in &cotangents {
            let var = self.program.var(cotangent);
            let dims: Dims = tensor.dims().into();
            self.program.root_mut().vars.insert(var, VarDesc::data(DType::F64, dims));
        }
        let targets: Vec<_> = cotangents.iter().map(|(name, ..)| name.as_str()).collect();
        let given: Vec<_> = cotangents.iter().map(|(_, cotangent, _)| Some(cotangent.as_str())).collect();
        let floats = self.inputs.iter().filter(|(_, t)| t.dtype().is_float());
        let wanted: Vec<_> = floats.map(|(n, _)| n.clone()).collect();
        let with_respect_to: Vec<_> = wanted.iter().map(String::as_str).collect();
        let mut program = self.program.clone();
        let built = gradients_in(ops, &mut program, &targets, &with_respect_to, Some(&given), &[])?;
        let built: Vec<_> = built.iter().map(|g| g.map(|v| program.name(v).to_string())).collect();

        let mut scope = Scope::new();
        let fetches: Vec<_> = built.iter().flatten().map(String::as_str).collect();
        let extra: Vec<_> = cotangents.iter().map(|(_, name, t)| (name.clone(), t.clone())).collect();
        let mut session = self.session(&program, &mut scope, &extra, &fetches)?;
        feed(&mut session, &self.inputs)?;
        feed(&mut session, &extra)?;
        session.run(&mut scope)?;

        let bound = sample.tolerance.map_or(TOLERANCE, |(bound, _)| bound);
        let mut found = none;
        for (name, grad) in wanted.iter().zip(&built) {
            let numeric = self.numeric(name, &cotangents)?;
            let built = match grad {
                Some(grad) => session.slice::<f64>(grad)?.to_vec(),
                None => vec![0.0; numeric.len()],
            };
            let scale = 1.0 + numeric.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
            for (i, (b, n)) in built.iter().zip(&numeric).enumerate() {
                let error = (b - n).abs() / scale;
                if error > bound || error.is_nan() {
                    let slot = sample_slot(sample, name);
                    let missing = if grad.is_none() { " (no gradient was built)" } else { "" };
                    let op = sample.op();
                    let text = format!(
                        "`{op}`: d{slot}[{i}] is {b} built{missing}, {n} numeric, of largest {scale:.3e}"
                    );
                    return Err(failure(text));
                }
                found.worst = found.worst.max(error);
            }
            found.elements += numeric.len();
        }
        Ok(found)
    }

    /// Derivative of the sum of all outputs times their cotangents, by central differences.
    fn numeric(&self, input: &str, cotangents: &[(String, String, Tensor)]) -> Result<Vec<f64>> {
        let (mut scope, fetches) =
            (Scope::new(), cotangents.iter().map(|(n, ..)| n.as_str()).collect::<Vec<_>>());
        let mut session = self.session(&self.program, &mut scope, &[], &fetches)?;
        let mut inputs = self.inputs.clone();
        let Some(at) = inputs.iter().position(|(n, _)| n == input) else { return Ok(vec![]) };
        let mut derivative = vec![];
        for i in 0..inputs[at].1.numel() {
            let x = inputs[at].1.slice::<f64>()?[i];
            let step = STEP * x.abs().max(1.0);
            let mut sides = [vec![], vec![]];
            for (side, x) in sides.iter_mut().zip([x + step, x - step]) {
                inputs[at].1.slice_mut::<f64>()?[i] = x;
                feed(&mut session, &inputs)?;
                session.run(&mut scope)?;
                for name in &fetches {
                    side.extend_from_slice(session.slice::<f64>(name)?);
                }
            }
            inputs[at].1.slice_mut::<f64>()?[i] = x;
            // Differences first: large outputs that do not change must not cost digits.
            let weights = cotangents.iter().flat_map(|(.., t)| t.slice::<f64>().unwrap_or(&[]));
            let [up, down] = &sides;
            let change: f64 = up.iter().zip(down).zip(weights).map(|((u, d), w)| (u - d) * w).sum();
            derivative.push(change / (2.0 * step));
        }
        Ok(derivative)
    }
}

fn sample_slot(sample: &Sample, name: &str) -> String {
    let k: usize = name.trim_start_matches('v').parse().unwrap_or(0);
    let slot = sample.desc.inputs.slot_of(Var::stand_in(k + 1));
    slot.map_or_else(|| name.to_string(), |s| s.to_string())
}

fn feed(session: &mut Session, tensors: &[(String, Tensor)]) -> Result<()> {
    tensors.iter().try_for_each(|(name, tensor)| session.feed(name, tensor))
}
