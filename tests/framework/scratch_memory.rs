//! Scratch memory that a kernel declares as a field.

use autobwd::{
    Arg, Buf, Builder, Cx, DType, Executor, Expr, Kernel, New, NoGrad, Result, Scope, Tensor, Var,
    check::{Sample, check_sample, out, uniform},
    eager, emit, gradients,
    op::with_float,
    register_op,
};
use autobwd_ops::Init;

/// `out = x² / Σ x²`
#[register_op(grad = SharesGrad, name = "scratch_shares")]
pub(crate) struct Shares<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape as `x`.
    #[output(like = x)]
    pub(crate) out: V,
    /// `x²`
    #[scratch(like = x)]
    pub(crate) squares: V,
}
impl Kernel for Shares<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let squares = self.squares.slice_mut::<T>()?;
            squares.iter_mut().zip(self.x.slice::<T>()?).for_each(|(square, x)| *square = *x * *x);
            let sum: T = squares.iter().sum();
            let out = self.out.slice_mut::<T>()?;
            out.iter_mut().zip(squares).for_each(|(out, square)| *out = *square / sum);
            Ok(())
        })
    }
}

/// `dx = 2 · x / Σ x² · (dout - Σ dout · out)`
#[register_op(grad_of = Shares, grad = NoGrad)]
pub(crate) struct SharesGrad<V = Var> {
    pub(crate) x: V,
    pub(crate) out: V,
    pub(crate) dout: V,
    #[output(like = x)]
    pub(crate) dx: V,
    /// `dout · out`
    #[scratch(like = dx)]
    pub(crate) products: V,
    /// `x²`
    #[scratch(like = dout)]
    pub(crate) squares: V,
}
impl Kernel for SharesGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let (x, out, dout) = (self.x.slice::<T>()?, self.out.slice::<T>()?, self.dout.slice::<T>()?);
            let (products, squares) = (self.products.slice_mut::<T>()?, self.squares.slice_mut::<T>()?);
            for i in 0..x.len() {
                (products[i], squares[i]) = (dout[i] * out[i], x[i] * x[i]);
            }
            let (mean, sum): (T, T) = (products.iter().sum(), squares.iter().sum());
            for (i, dx) in self.dx.slice_mut::<T>()?.iter_mut().enumerate() {
                *dx = (x[i] + x[i]) / sum * (dout[i] - mean);
            }
            Ok(())
        })
    }
}

fn shares(x: &Expr) -> Expr {
    emit(Shares { x: Arg::from(x), out: New, squares: New }).out
}

#[test]
fn kernels_write_and_read_it() -> Result<()> {
    let checked = check_sample(&Sample::from(Shares { x: uniform([3, 4]), out: out(), squares: out() }))?;
    assert_eq!(checked.elements, 12);

    let (x, expected) = (vec![1.0, 2.0, 2.0, 4.0], [0.04, 0.16, 0.16, 0.64]);
    let tape = eager();
    let at_once = shares(&tape.leaf("x", Tensor::from_vec([4], x.clone())?));
    assert_eq!(at_once.tensor()?.to_f64s(), expected);

    let net = Builder::new();
    let (y, feed) = (shares(&net.input("x", DType::F64, &[-1])), Tensor::from_vec([4], x)?);
    let program = net.program()?;
    assert!(!program.to_string().contains("squares"), "{program}");
    let mut scope = Scope::new();
    let found = Executor::new().run(&program, &mut scope, &[("x", &feed)], &[&y.name()])?;
    assert_eq!(found[0].to_f64s(), expected);
    Ok(())
}

#[test]
fn plans_lend_it_while_the_operator_runs() -> Result<()> {
    let (net, line) = (Builder::new(), 4032);
    let w = net.parameter("w", DType::F32, &[1000], |w| Init::Constant(1.0).emit(w, 0));
    let y = shares(&shares(&w)).name();
    let mut scope = Scope::new();
    scope.set("w", Tensor::zeros(DType::F32, &[1000])?);
    let mut program = (*net.program()?).clone();
    let plan = Executor::new().plan(&program, &scope, &[], &[&y])?;
    // An input, an output, and the scratch memory of one operator at a time.
    assert_eq!(plan.arena_bytes(), 3 * line, "{plan}");
    let lent = plan.buffers().iter().filter(|b| b.variables == ["scratch memory `squares`"]);
    assert_eq!(lent.map(|b| (b.bytes, b.first, b.last)).collect::<Vec<_>>(), [(line, 0, 0), (line, 1, 1)]);

    let dw = gradients(&mut program, &[&y], &["w"], &Default::default())?.entries()[0];
    let plan = Executor::new().plan(&program, &scope, &[], &[program.name(dw.unwrap())])?;
    let lent = plan.buffers().iter().filter(|b| b.variables[0].starts_with("scratch memory"));
    assert_eq!(lent.count(), 2 + 2 * 2, "{plan}");
    Ok(())
}

/// Accumulates in scratch memory without clearing it.
#[register_op(grad = NoGrad, name = "scratch_not_cleared")]
pub(crate) struct NotCleared<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape as `x`.
    #[output(like = x)]
    pub(crate) out: V,
    /// Never cleared.
    #[scratch(like = x)]
    pub(crate) sum: V,
}
impl Kernel for NotCleared<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.x, T => {
            let sum = self.sum.slice_mut::<T>()?;
            sum.iter_mut().zip(self.x.slice::<T>()?).for_each(|(sum, x)| *sum += *x);
            self.out.slice_mut::<T>()?.copy_from_slice(sum);
            Ok(())
        })
    }
}

#[test]
fn result_must_not_depend_on_old_scratch_contents() {
    let row = NotCleared { x: uniform([2, 3]), out: out(), sum: out() };
    let e = check_sample(&Sample::from(row)).unwrap_err().to_string();
    assert!(e.contains("`Out`[0, 0] depends on the previous contents of outputs or scratch memory"), "{e}");
}
