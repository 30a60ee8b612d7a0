//! Faults of an operator's author: panics, compositions without end, and defaults that differ. Each is an error that
//! names the author's code.

use autobwd::{
    Backward, Builder, DType, Derived, Error, ErrorKind, Executor, Expr, Float, Meta, New, NoGrad, OpInfoMap,
    Pointwise, Result, Scope, Tensor, Var, append_backward, emit,
    op::{Composed, Composition, GradCx, GradRule, Infer, Kernel},
    register_op,
    tensor::Buf,
};
use autobwd_ops::{Init, Math};

/// `out = x`, or a panic in the part that is named.
#[register_op(grad = FaultyRule, name = "author_faulty")]
pub(crate) struct Faulty<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape.
    #[output]
    pub(crate) out: V,
    /// Where it panics.
    #[attr]
    pub(crate) part: String,
}
fn check(part: &str, here: &str) {
    assert!(part != here, "by intention");
}
impl Infer for Faulty<Meta> {
    fn infer(&mut self) -> Result<()> {
        check(&self.part, "shape rule");
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Faulty<Buf<'_>> {
    fn run(&mut self, _: &autobwd::Cx) -> Result<()> {
        check(&self.part, "kernel");
        self.out.copy_from(&self.x)
    }
}
impl Composition for Faulty<Expr> {
    fn compose(&mut self) {
        check(&self.part, "composition");
        self.out = &self.x * 1.0;
    }
}
/// `dx = dout`
pub(crate) struct FaultyRule;
impl GradRule<Faulty> for FaultyRule {
    fn emit(fwd: &Faulty, g: &mut GradCx<'_>) {
        check(&fwd.part, "gradient rule");
        g.compose(&["Out"], &["X"]);
    }
}

fn train(part: &str) -> Result<Vec<Tensor>> {
    let net = Builder::new();
    let x = net.parameter("x", DType::F32, &[2], |x| Init::Constant(1.0).emit(x, 0));
    let loss = emit(Faulty { x: (&x).into(), out: New, part: part.into() }).out.mean().name();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss, &Backward::default())?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    executor.run(&program, &mut scope, &[], &["x@GRAD"])
}

#[test]
fn panics_are_errors_that_name_the_code() -> Result<()> {
    assert_eq!(train("none")?[0].to_f64s(), [0.5, 0.5]);
    for part in ["shape rule", "kernel", "gradient rule", "composition"] {
        let e = train(part).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Panic, "{e}");
        let text = format!("the {part} of `author_faulty` panicked at tests/framework/author_faults.rs:");
        assert!(e.message().contains(&text) && !e.to_string().contains("autobwd bug"), "{e}");
    }
    Ok(())
}

/// `out = x²`, by its own composition.
#[register_op(grad = Composed, name = "author_endless")]
pub(crate) struct Endless<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape.
    #[output(like = x)]
    pub(crate) out: V,
}
/// `out = x`, by the composition of [`Pong`].
#[register_op(grad = Composed, name = "author_ping")]
pub(crate) struct Ping<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape.
    #[output(like = x)]
    pub(crate) out: V,
}
/// `out = x`, by the composition of [`Ping`].
#[register_op(grad = Composed, name = "author_pong")]
pub(crate) struct Pong<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape.
    #[output(like = x)]
    pub(crate) out: V,
}
macro_rules! copies {
    ($($op:ident by $other:ident),*) => {$(
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, _: &autobwd::Cx) -> Result<()> {
                self.out.copy_from(&self.x)
            }
        }
        impl Composition for $op<Expr> {
            fn compose(&mut self) {
                self.out = emit($other { x: (&self.x.sin()).into(), out: New }).out;
            }
        }
    )*};
}
copies!(Endless by Endless, Ping by Pong, Pong by Ping);

#[test]
fn compositions_that_contain_themselves_are_refused() -> Result<()> {
    type Build = fn(&Expr) -> Expr;
    let cases: [(Build, &str); 2] = [
        (|x| emit(Endless { x: x.into(), out: New }).out, "`author_endless` → `author_endless`"),
        (|x| emit(Ping { x: x.into(), out: New }).out, "`author_ping` → `author_pong` → `author_ping`"),
    ];
    for (build, cycle) in cases {
        let net = Builder::new();
        let x = net.parameter("x", DType::F32, &[2], |x| Init::Constant(1.0).emit(x, 0));
        let loss = build(&x).mean().name();
        let mut program = net.program()?.clone();
        let op = program.root().ops[0].clone();
        let expand = OpInfoMap::linked()?.composition(&mut program, &op).map(drop);
        let differentiate = append_backward(&mut program, &loss, &Backward::default()).map(drop);
        for outcome in [expand, differentiate] {
            let e = outcome.unwrap_err();
            let text = format!(" itself ({cycle}): compose it of operators of other types");
            assert!(e.kind() == ErrorKind::Operator && e.message().contains(&text), "{e}");
        }
    }
    Ok(())
}

/// `out = a x`
#[register_op(grad = TimesRule, pointwise, name = "author_times")]
pub(crate) struct Times<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape.
    #[output]
    pub(crate) out: V,
    /// The factor.
    #[attr(default = 1.5)]
    pub(crate) a: f64,
}
impl<F: Float> Pointwise for Times<F> {
    fn eval(&mut self) {
        self.out = self.x * self.a;
    }
}
/// `dx = a dout`. A rule emits it, so that its default is not compared with the default of [`Times`].
#[register_op(grad = NoGrad, pointwise, name = "author_times_grad")]
pub(crate) struct TimesGrad<V = Var> {
    /// Gradient of `out`.
    #[input("Out@GRAD")]
    pub(crate) dout: V,
    /// Gradient of `x`.
    #[output("X@GRAD")]
    pub(crate) dx: V,
    /// The factor.
    #[attr(default = 2.5)]
    pub(crate) a: f64,
}
impl<F: Float> Pointwise for TimesGrad<F> {
    fn eval(&mut self) {
        self.dx = self.dout * self.a;
    }
}
pub(crate) struct TimesRule;
impl GradRule<Times> for TimesRule {
    fn emit(fwd: &Times, g: &mut GradCx<'_>) {
        g.push_gradient::<Times, TimesGrad>(fwd);
    }
}

#[test]
fn gradients_get_the_defaults_that_a_description_leaves_out() -> Result<()> {
    let net = Builder::new();
    let x = net.parameter("x", DType::F64, &[2], Expr::clone);
    let loss = emit(Times { x: (&x).into(), out: New, a: 1.5 }).out.sum(&[]).name();
    let mut program = net.program()?.clone();
    program.root_mut().ops[0].attrs.remove("a");
    append_backward(&mut program, &loss, &Backward::default())?;
    let mut scope = Scope::new();
    scope.set("x", Tensor::from_vec([2], vec![1.0, 2.0])?);
    let found = Executor::new().run(&program, &mut scope, &[], &[&loss, "x@GRAD"])?;
    assert_eq!((found[0].item()?, found[1].to_f64s()), (4.5, vec![1.5, 1.5]));
    Ok(())
}

/// `out = x³`, with a function as gradient rule.
#[register_op(grad = cube_gradient, pointwise, name = "author_cube")]
pub(crate) struct Cube<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape.
    #[output]
    pub(crate) out: V,
}
impl<F: Float> Pointwise for Cube<F> {
    fn eval(&mut self) {
        self.out = self.x * self.x * self.x;
    }
}
fn cube_gradient(fwd: &Cube, g: &mut GradCx<'_>) {
    let Some(dx) = g.wanted(fwd.x) else { return };
    g.push(CubeGrad { x: fwd.x, dout: g.grad(fwd.out), dx });
}
/// `dx = 3 x² dout`
#[register_op(grad = Derived, pointwise, name = "author_cube_grad")]
pub(crate) struct CubeGrad<V = Var> {
    /// As of [`Cube`].
    #[input]
    pub(crate) x: V,
    /// Gradient of `out`.
    #[input("Out@GRAD")]
    pub(crate) dout: V,
    /// Gradient of `x`.
    #[output("X@GRAD")]
    pub(crate) dx: V,
}
impl<F: Float> Pointwise for CubeGrad<F> {
    fn eval(&mut self) {
        self.dx = self.x * self.x * self.dout * 3.0;
    }
}

#[test]
fn functions_are_gradient_rules() -> Result<()> {
    use autobwd::check::{Sample, check_sample, out, uniform};
    let checked = check_sample(&Sample::from(Cube { x: uniform([2, 3]), out: out() }))?;
    assert!(checked.elements > 0 && checked.second_order > 0, "{checked:?}");
    Ok(())
}

#[test]
fn impossible_dimensions_are_errors() -> Result<()> {
    let shape = |n: usize| -> Result<Vec<Option<usize>>, Error> {
        let net = Builder::new();
        let out =
            emit(Valid { x: (&net.input("x", DType::F32, &[n as i64])).into(), out: New, kernel: 5 }).out;
        net.program()?;
        Ok(out.dims().iter().map(|dim| dim.get()).collect())
    };
    assert_eq!([shape(9)?, shape(4)?], [[Some(5)], [Some(0)]]);
    let e = shape(2).unwrap_err();
    assert!(e.kind() == ErrorKind::Shape && e.message() == "`Out`: dimension 0 is negative, -2", "{e}");
    Ok(())
}

/// The means of all windows.
#[register_op(grad = NoGrad, name = "author_valid")]
pub(crate) struct Valid<V = Var> {
    /// One dimension, `n`.
    #[input]
    pub(crate) x: V,
    /// `n - kernel + 1`.
    #[output]
    pub(crate) out: V,
    /// Length of a window.
    #[attr(min = 1)]
    pub(crate) kernel: i64,
}
impl Infer for Valid<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [n] = self.x.unpack()?;
        self.out.set(self.x.dtype, [n - self.kernel + 1].into_iter().collect::<autobwd::Dims>());
        Ok(())
    }
}
impl Kernel for Valid<Buf<'_>> {
    fn run(&mut self, _: &autobwd::Cx) -> Result<()> {
        let windows = self.x.slice::<f32>()?.windows(self.kernel as usize);
        let out = self.out.slice_mut::<f32>()?;
        out.iter_mut().zip(windows).for_each(|(out, x)| *out = x.iter().sum::<f32>() / x.len() as f32);
        Ok(())
    }
}
