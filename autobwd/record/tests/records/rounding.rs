//! A run with a rounding that changes at one step, in one operator.

use std::path::Path;

use autobwd::{
    Buf, Builder, Cx, DType, Error, Executor, Expr, Infer, Kernel, Meta, New, NoGrad, Result, Scope, Tensor,
    Var, emit,
    exec::record::{RecordOptions, RecordedRun, RunRecord},
    operators::Assign,
    register_op,
};
use autobwd_ops::{Init, Math, control::while_loop, increment::Increment};

/// Copies `x`; at one step, the last bit of the last element is another.
#[register_op(grad = NoGrad)]
pub(crate) struct RoundingAt<V = Var> {
    #[input]
    x: V,
    /// The number of steps before this one.
    #[input]
    step: V,
    #[output]
    out: V,
    /// The step; 0 for none.
    #[attr]
    at: i64,
}
impl Infer for RoundingAt<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for RoundingAt<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)?;
        let is_step = self.step.slice::<f64>()?.first().is_some_and(|step| *step as i64 + 1 == self.at);
        if is_step && let Some(last) = self.out.slice_mut::<f32>()?.last_mut() {
            *last = f32::from_bits(last.to_bits() ^ 1);
        }
        Ok(())
    }
}

/// Adds the bits of `x` to `bits`, so that no later step loses a change.
#[register_op(grad = NoGrad)]
pub(crate) struct AddBits<V = Var> {
    #[input]
    x: V,
    #[input]
    bits: V,
    #[output]
    out: V,
}
impl Infer for AddBits<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.bits);
        Ok(())
    }
}
impl Kernel for AddBits<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let x = self.x.slice::<f32>()?;
        let sum = x.iter().fold(self.bits.slice::<i64>()?.first().copied().unwrap_or(0), |sum, x| {
            sum.wrapping_mul(31).wrapping_add(x.to_bits().into())
        });
        let out = self.out.slice_mut::<i64>()?.first_mut();
        *out.ok_or_else(|| Error::data("an element is needed"))? = sum;
        Ok(())
    }
}

/// The stages of a step; each has a rounding.
pub(crate) const STAGES: usize = 4;

/// A program whose stage `stage` rounds otherwise at step `at`, with the startup program.
pub(crate) fn stages(stage: usize, at: u64) -> Builder {
    stages_of(stage, at, Expr::clone)
}

/// As [`stages`]; the first stage gets a function of the weights.
pub(crate) fn stages_of(stage: usize, at: u64, first: impl FnOnce(&Expr) -> Expr) -> Builder {
    let net = Builder::new();
    let (x, step) = (
        net.input("x", DType::F32, &[3]),
        net.persistable("step", DType::F64, &[1], |step| Init::Constant(0.0).emit(step, 0)),
    );
    let bits = net.persistable("bits", DType::I64, &[1], |bits| Init::Constant(0.0).emit(bits, 0));
    let w = net.persistable("w", DType::F32, &[3], |w| Init::Constant(1.0).emit(w, 0));
    let mut h = first(&w);
    for k in 0..STAGES {
        let at = if k == stage { at as i64 } else { 0 };
        h = &h * 0.7 + &x;
        h = emit(RoundingAt { x: (&h).into(), step: (&step).into(), out: New, at }).out;
        let added = emit(AddBits { x: (&h).into(), bits: (&bits).into(), out: (&bits).into() }).out;
        added.check().unwrap();
    }
    emit(Assign { x: (&h).into(), out: (&w).into() }).out.check().unwrap();
    emit(Increment { x: (&step).into(), out: (&step).into(), step: 1.0 }).out.check().unwrap();
    net
}

/// A program with a loop of five iterations; an iteration rounds otherwise, in every step.
pub(crate) fn iterations(at: i64) -> Builder {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[3]);
    let bits = net.persistable("bits", DType::I64, &[1], |bits| Init::Constant(0.0).emit(bits, 0));
    let w = net.persistable("w", DType::F32, &[3], |w| Init::Constant(1.0).emit(w, 0));
    let zero = net.persistable("zero", DType::F64, &[1], |zero| Init::Constant(0.0).emit(zero, 0));
    let (start, end) = (&zero + 0.0, &zero + 5.0);
    let last = while_loop(
        &[start, &w + 0.0],
        |v| v[0].less_than(&end),
        |v| {
            let h = emit(RoundingAt { x: (&v[1] + 0.0625).into(), step: (&v[0]).into(), out: New, at }).out;
            vec![&v[0] + 1.0, h]
        },
    );
    let sum = &last[1] + &x * 0.0;
    emit(AddBits { x: (&sum).into(), bits: (&bits).into(), out: (&bits).into() }).out.check().unwrap();
    net
}

/// The record of a run of this program.
pub(crate) fn record_stages(dir: &Path, net: &Builder, steps: u64, options: RecordOptions) -> RecordedRun {
    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    let (startup, program) = (net.startup().program().unwrap().clone(), net.program().unwrap().clone());
    executor.run(&startup, &mut scope, &[], &[]).unwrap();
    let mut record = RunRecord::create(dir, &program, &scope, options.startup(&startup)).unwrap();
    for step in 1..=steps {
        let x = Tensor::from_vec([3], [0.1, 0.3, -0.2].map(|x| (step % 5) as f32 * x).to_vec()).unwrap();
        executor.run(&program, &mut scope, &[("x", &x)], &[]).unwrap();
        record.step(&[("x", &x)], &scope).unwrap();
    }
    record.finish(&scope).unwrap();
    RecordedRun::open(dir).unwrap()
}
