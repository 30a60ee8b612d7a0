//! Kernels that fail or panic within nested recurrences: the executor stays usable.

use std::cell::Cell;

use autobwd::{
    Backward, Buf, Builder, Cx, DType, Error, ErrorKind, Executor, Feed, Kernel, New, NoGrad, Result, Scope,
    Tensor, Var, append_backward, emit, op::with_float, register_op,
};
use autobwd_ops::{Init, Math, control::scan, increment::Increment};

/// Copies its input, until it is told to fail.
#[register_op(grad = TripGrad, name = "attack_trip")]
pub(crate) struct Trip<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Like `x`.
    #[output(like = x)]
    pub out: V,
}
/// The same for gradients.
#[register_op(grad = NoGrad, name = "attack_trip_grad")]
pub(crate) struct TripGrad<V = Var> {
    /// Gradient of `out`.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Gradient of `x`.
    #[output("X@GRAD", like = dout)]
    pub dx: V,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Fails,
    Panics,
}
thread_local! {
    /// After how many kernel calls the operator fails, and how.
    static FORWARD: Cell<Option<(u32, How)>> = const { Cell::new(None) };
    static BACKWARD: Cell<Option<(u32, How)>> = const { Cell::new(None) };
}
fn trip(at: &Cell<Option<(u32, How)>>) -> Result<()> {
    let now = at.get();
    at.set(now.and_then(|(n, how)| Some((n.checked_sub(1)?, how))));
    match now {
        Some((0, How::Fails)) => Err(Error::data("half-way")),
        Some((0, How::Panics)) => panic!("half-way"),
        _ => Ok(()),
    }
}
impl Kernel for Trip<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        FORWARD.with(trip)?;
        self.out.copy_from(&self.x)
    }
}
impl Kernel for TripGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        BACKWARD.with(trip)?;
        with_float!(self.dx, T => self.dx.slice_mut::<T>()?.copy_from_slice(self.dout.slice()?));
        Ok(())
    }
}

#[test]
fn executor_goes_on_after_a_step_that_failed_or_panicked() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[3, 4, 2]);
    let zero = net.input("zero", DType::F64, &[2]);
    let w = net.parameter("w", DType::F64, &[2], |w| Init::Constant(0.5).emit(w, 0));
    let outer = scan(&[x], std::slice::from_ref(&zero), false, |x, sum| {
        let inner = scan(&[x[0].clone()], &[sum[0].clone()], false, |x, h| {
            let next = &x[0] * &w + h[0].tanh();
            let h = emit(Trip { x: (&next).into(), out: New }).out;
            (vec![h.clone()], vec![h])
        });
        let sum = inner[0].sum(&[0]).tanh();
        (vec![sum.clone()], vec![sum])
    });
    let loss = outer[0].square().sum(&[]).name();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Backward::default())?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = Tensor::from_vec([3, 4, 2], (0..24).map(|i| f64::from(i).sin()).collect())?;
    let zero = Tensor::zeros(DType::F64, &[2])?;
    let mut run = || -> Result<Vec<Vec<f64>>> {
        let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("zero", &zero)];
        let fetched = executor.run(&program, &mut scope, &feeds, &[&loss, "w@GRAD"])?;
        Ok(fetched.iter().map(Tensor::to_f64s).collect())
    };
    let expected = run()?;
    for at in [&FORWARD, &BACKWARD] {
        for how in [How::Fails, How::Panics] {
            for calls in [0, 5, 11] {
                at.set(Some((calls, how)));
                let e = run().unwrap_err();
                assert!(e.to_string().contains("half-way"), "{e}");
                assert_eq!(e.kind() == ErrorKind::Panic, how == How::Panics);
                assert_eq!(at.get(), None, "{how:?} in {calls}");
                assert_eq!(run()?, expected, "after {how:?} in {calls}");
            }
        }
    }
    Ok(())
}

#[test]
fn step_that_panicked_leaves_no_trace_in_the_scope() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2]);
    let counter = net.persistable("counter", DType::F32, &[1], |c| Init::Constant(0.0).emit(c, 0));
    emit(Increment { x: (&counter).into(), out: (&counter).into(), step: 1.0 }).out.check()?;
    let out = emit(Trip { x: (&x).into(), out: New }).out.name();
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let x = Tensor::from_vec([2], vec![1.0, 2.0])?;
    for (how, count) in [(None, 1.0), (Some(How::Fails), 1.0), (Some(How::Panics), 1.0), (None, 2.0)] {
        FORWARD.set(how.map(|how| (0, how)));
        let outcome = executor.run(&net.program()?, &mut scope, &[("x", &x)], &[&out]);
        assert_eq!(outcome.is_ok(), how.is_none());
        assert_eq!(scope.get("counter")?.item()?, count, "{how:?}");
    }
    Ok(())
}
