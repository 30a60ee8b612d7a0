//! Kernels that move the contents of their slots, pair the wrong slots, or run programs.

use std::{cell::RefCell, mem};

use autobwd::{
    Arg, Buf, Builder, Cx, DType, Derived, Executor, Expr, Float, Infer, Kernel, Meta, New, NoGrad,
    Pointwise, Result, Scope, Tensor, Var, emit, register_op, tensor::InOut,
};
use autobwd_ops::{Init, Math};

use super::{run, run_eagerly};

/// Two outputs that may both reuse the memory of one input.
#[register_op(grad = NoGrad, name = "attack_two_over")]
pub(crate) struct TwoOver<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Read as well.
    #[input]
    pub y: Option<V>,
    /// Like `x`.
    #[output(inplace = x, like = x)]
    pub a: V,
    /// Like `x`.
    #[output(inplace = x, like = x)]
    pub b: V,
}
impl Kernel for TwoOver<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        // If one output shares memory with `x`, it is `a`, so `b` must not.
        let b_is_x = matches!(self.b.inout::<f32>(&self.x)?, InOut::Same(_));
        let a_is_x = matches!(self.a.inout::<f32>(&self.x)?, InOut::Same(_));
        assert_eq!(a_is_x, b_is_x);
        self.b.slice_mut::<f32>()?.fill(2.0);
        self.a.slice_mut::<f32>()?.fill(3.0);
        if let Some(y) = &self.y {
            assert!(y.slice::<f32>()?.iter().all(|y| *y == 0.5));
        }
        Ok(())
    }
}

#[test]
fn two_in_place_outputs_of_one_input_are_separate() -> Result<()> {
    for read_again in [false, true] {
        let both = |x: &Expr| {
            let x = x * 1.0;
            let out = emit(TwoOver { x: (&x).into(), y: read_again.then(|| (&x).into()), a: New, b: New });
            &out.a * 10.0 + &out.b
        };
        assert_eq!(run(&[0.5; 100], both)?, [32.0; 100]);
        assert_eq!(run_eagerly(&[0.5; 100], both)?, [32.0; 100]);
    }
    Ok(())
}

#[test]
fn output_may_alias_an_input_but_not_an_output() -> Result<()> {
    let w = |net: &Builder| net.parameter("w", DType::F32, &[100], |w| Init::Constant(0.5).emit(w, 0));
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    let net = Builder::new();
    let w_0 = w(&net);
    let out = emit(TwoOver { x: (&w_0).into(), y: None, a: (&w_0).into(), b: New });
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let fetched = executor.run(&net.program()?, &mut scope, &[], &[&out.b.name()])?;
    assert_eq!((fetched[0].to_f64s()[99], scope.get("w")?.to_f64s()[99]), (2.0, 3.0));

    let net = Builder::new();
    let w_0 = w(&net);
    emit(TwoOver { x: (&w_0).into(), y: None, a: (&w_0).into(), b: (&w_0).into() }).b.check()?;
    let e = executor.run(&net.program()?, &mut scope, &[], &["w"]).unwrap_err();
    assert!(e.to_string().contains("`w` is written to twice"), "{e}");
    Ok(())
}

/// A formula with a broadcast operand that may be overwritten.
#[register_op(grad = Derived, pointwise, broadcast, name = "attack_add_over")]
pub(crate) struct AddOver<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// A shape that broadcasts with it.
    #[input]
    pub y: V,
    /// The shape of both.
    #[output(inplace = x)]
    pub out: V,
}
impl<F: Float> Pointwise for AddOver<F> {
    fn eval(&mut self) {
        self.out = self.x + self.y;
    }
}

#[test]
fn operand_that_is_broadcast_is_not_overwritten() -> Result<()> {
    let shapes: [(&[i64], &[i64]); 6] = [
        (&[3], &[1000, 3]),
        (&[1000, 3], &[3]),
        (&[], &[1000, 3]),
        (&[1000, 1], &[1, 3]),
        (&[0, 3], &[3]),
        (&[1, 3], &[0, 3]),
    ];
    for (a, b) in shapes {
        let net = Builder::new();
        let (x, y) = (net.input("x", DType::F32, a), net.input("y", DType::F32, b));
        let add = |x: Arg, y: Arg| emit(AddOver { x, y, out: New });
        let sum = add((&(&x * 1.0)).into(), (&(&y * 1.0)).into()).out;
        let twice = add((&sum).into(), (&sum).into()).out.name();
        let fed = |dims: &[i64], x: f32| {
            let dims: Vec<usize> = dims.iter().map(|n| *n as usize).collect();
            Tensor::from_vec(&dims, vec![x; dims.iter().product()])
        };
        let (x, y) = (fed(a, 0.5)?, fed(b, 0.25)?);
        let found =
            Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &x), ("y", &y)], &[&twice])?;
        let n = if a.contains(&0) || b.contains(&0) { 0 } else { 3000 };
        assert_eq!(found[0].to_f64s(), vec![1.5; n], "{a:?} {b:?}");
    }
    Ok(())
}

/// Swaps, rotates and drops the contents of its slots, and writes all outputs.
#[register_op(grad = NoGrad, name = "attack_mover")]
pub(crate) struct Mover<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shapes.
    #[input]
    pub list: Vec<V>,
    /// Like `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Like `x`.
    #[output]
    pub more: Vec<V>,
    /// Like `x`.
    #[output]
    pub maybe: Option<V>,
    /// Whether lists are moved, too.
    #[attr]
    pub lists: bool,
}
impl Infer for Mover<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        self.more.iter_mut().chain(&mut self.maybe).for_each(|meta| meta.like(&self.x));
        Ok(())
    }
}
impl Kernel for Mover<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        mem::swap(&mut self.x, &mut self.out);
        if self.lists {
            self.list.append(&mut self.more);
            self.list.extend(self.maybe.take());
            self.list.rotate_left(1);
        }
        let all = [&mut self.x, &mut self.out].into_iter().chain(&mut self.list).chain(&mut self.more);
        let mut written = 0;
        for buf in all.chain(&mut self.maybe) {
            if let Ok(elements) = buf.slice_mut::<f32>() {
                elements.fill(7.0);
                written += 1;
            }
            if let Ok(bytes) = buf.bytes_mut() {
                assert_eq!(bytes.len(), 4000);
            }
            // Neither is accessible; readable slots are.
            assert!(
                buf.slice::<i32>().is_err() && buf.rows::<f32>().is_err() && buf.rows_mut::<f32>().is_err()
            );
            assert!(buf.array().is_err() && !buf.is_sparse());
            if let Ok(elements) = buf.slice::<f32>() {
                assert_eq!(elements.len(), 1000);
            }
        }
        // As many as it has outputs, in whichever slots they are now.
        assert_eq!(written, 4);
        Ok(())
    }
}

#[test]
fn kernel_that_moves_slots_writes_only_its_outputs() -> Result<()> {
    for lists in [false, true] {
        let all = |x: &Expr| {
            let (h, k) = ((x * 2.0).cumsum(0), x * 3.0);
            let list = vec![(&k).into(), (&k).into()];
            let moved =
                emit(Mover { x: (&h).into(), list, out: New, more: vec![New, New], maybe: Some(New), lists });
            // `k` is read again: it is unchanged.
            &moved.out + &moved.more[1] + &k + 0.0
        };
        assert_eq!(run(&[0.5; 1000], all)?, [15.5; 1000]);
        assert_eq!(run_eagerly(&[0.5; 1000], all)?, [15.5; 1000]);
    }
    Ok(())
}

/// Runs itself in a program of its own, and on the tape that runs it.
#[register_op(grad = NoGrad, name = "attack_inner")]
pub(crate) struct Inner<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Like `x`.
    #[output(like = x)]
    pub out: V,
    /// Depth of the recursion.
    #[attr(min = 0)]
    pub depth: i64,
}
thread_local! {
    /// The tape that runs the kernel.
    static TAPE: RefCell<Option<Expr>> = const { RefCell::new(None) };
}
impl Kernel for Inner<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let Some(depth) = self.depth.checked_sub(1).filter(|depth| *depth >= 0) else {
            cx.scratch::<f32, _>(10, |scratch| {
                scratch.fill(1.0);
                Ok(())
            })?;
            return self.out.copy_from(&self.x);
        };
        if let Some(x) = TAPE.with_borrow(Clone::clone) {
            let out = emit(Inner { x: (&x).into(), out: New, depth }).out;
            assert_eq!((&out + &x).tensor()?.to_f64s()[9], 3.0);
        }
        let x = Tensor::from_vec(self.x.dims(), self.x.slice::<f32>()?.to_vec())?;
        let net = Builder::new();
        let out = emit(Inner { x: (&net.input("x", DType::F32, &[-1])).into(), out: New, depth }).out;
        let mut executor = Executor::with_threads(2);
        let fetched = executor.run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&out.name()])?;
        self.out.slice_mut::<f32>()?.copy_from_slice(fetched[0].slice()?);
        Ok(())
    }
}

#[test]
fn kernel_may_run_programs_and_the_tape_that_runs_it() -> Result<()> {
    let inner = |x: &Expr| emit(Inner { x: x.into(), out: New, depth: 3 }).out;
    assert_eq!(run(&[1.5; 10], inner)?, [1.5; 10]);
    let tape = autobwd::eager();
    let x = tape.leaf("x", Tensor::from_vec([10], vec![1.5_f32; 10])?);
    TAPE.set(Some(x.clone()));
    let out = inner(&x).tensor()?.to_f64s();
    TAPE.set(None);
    assert_eq!(out, [1.5; 10]);
    Ok(())
}
