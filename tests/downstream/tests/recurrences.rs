//! Operators of another crate whose composition is a recurrence: a block on backends, unrolled where it is differentiated.

use autobwd::{
    Buf, Builder, Composed, Composition, Cx, DType, ErrorKind, Executor, Expr, Kernel, Meta, New, OpInfoMap,
    Program, Result, Scope, Tensor, Var, emit, gradients, register_op,
};
use autobwd_onnx::{LoadOptions, from_bytes, to_bytes};
use autobwd_ops::{
    Math, Model,
    control::{scan, while_loop},
};
use autobwd_xla::lower::{LowerRequest, lower};

/// `out[t] = rate * out[t-1] + x[t]`, from 0.
#[register_op(grad = Composed)]
struct Decay<V = Var> {
    /// `[steps, n]`.
    #[input]
    x: V,
    #[output(like = x)]
    out: V,
    #[attr(default = 0.5)]
    rate: f32,
}
impl Kernel for Decay<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (width, rate) = (self.x.dims()[1], f64::from(self.rate));
        let (x, out) = (self.x.slice::<f64>()?, self.out.slice_mut::<f64>()?);
        for i in 0..x.len() {
            let before = i.checked_sub(width).map_or(0.0, |before| out[before]);
            out[i] = rate * before + x[i];
        }
        Ok(())
    }
}
impl Composition for Decay<Expr> {
    fn compose(&mut self) {
        let (rate, first) = (f64::from(self.rate), self.x.slice(0, 0, 1).squeeze(&[0]) * 0.0);
        self.out = scan(std::slice::from_ref(&self.x), &[first], false, |x, before| {
            let next = &before[0] * rate + &x[0];
            (vec![next.clone()], vec![next])
        })
        .remove(0);
    }
}

/// `x`, doubled until its sum is at least 100.
#[register_op(grad = Composed)]
struct Doubled<V = Var> {
    #[input]
    x: V,
    #[output(like = x)]
    out: V,
}
impl Kernel for Doubled<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (x, out) = (self.x.slice::<f64>()?, self.out.slice_mut::<f64>()?);
        out.copy_from_slice(x);
        while out.iter().sum::<f64>() < 100.0 {
            out.iter_mut().for_each(|x| *x *= 2.0);
        }
        Ok(())
    }
}
impl Composition for Doubled<Expr> {
    fn compose(&mut self) {
        let limit = self.x.sum(&[]) * 0.0 + 100.0;
        let is_small = |x: &[Expr]| x[0].sum(&[]).less_than(&limit);
        self.out = while_loop(std::slice::from_ref(&self.x), is_small, |x| vec![&x[0] * 2.0]).remove(0);
    }
}

fn decay(x: &Expr) -> Expr {
    emit(Decay { x: x.into(), out: New, rate: 0.25 }).out
}

fn numbers(steps: usize) -> Result<Tensor> {
    Tensor::from_vec([steps, 2], (0..2 * steps).map(|i| i as f64 - 1.5).collect())
}

fn run(program: &Program, x: &Tensor, fetch: &str) -> Result<Tensor> {
    Ok(Executor::new().run(program, &mut Scope::new(), &[("x", x)], &[fetch])?.remove(0))
}

/// Appends the gradient of a sum with respect to the input.
fn differentiate(program: &mut Program, out: &str) -> Result<()> {
    let x = program.expect_var("x")?;
    program.root_mut().vars.get_mut(&x).expect("it is declared").stop_gradient = false;
    gradients(program, &[out], &["x"], &Default::default()).map(drop)
}

/// The program with every operator that has a composition replaced, once.
fn composed(program: &Program) -> Result<Program> {
    let mut composed = program.clone();
    for op in std::mem::take(&mut composed.root_mut().ops) {
        let parts = OpInfoMap::linked()?.composition(&mut composed, &op)?.unwrap_or_else(|| vec![op]);
        composed.root_mut().ops.extend(parts);
    }
    OpInfoMap::linked()?.verify(&composed)?;
    Ok(composed)
}

#[test]
fn composition_is_a_block_for_any_number_of_steps() -> Result<()> {
    let net = Builder::new();
    // Two, whose blocks and variables differ.
    let out = decay(&decay(&net.input("x", DType::F64, &[-1, 2]))).name();
    let program = net.program()?;
    let composed = composed(&program)?;
    let recurrences = composed.root().ops.iter().filter(|op| op.ty == "recurrent").count();
    assert_eq!((recurrences, composed.blocks().len()), (2, 3), "{composed}");
    let model = Model {
        program: program.clone(),
        feeds: vec!["x".into()],
        fetches: vec![out.clone()],
        scope: Scope::new(),
    };
    let mut read = from_bytes(&to_bytes(&model)?, &LoadOptions::default())?;
    for steps in [1, 4] {
        let x = numbers(steps)?;
        let expected = run(&program, &x, &out)?;
        assert_eq!(run(&composed, &x, &out)?, expected);
        assert_eq!(read.run(&mut Executor::new(), &[&x])?[0], expected);
    }
    let request = [("x", Meta::new(DType::F64, [4, 2]))];
    let lowered = lower(&program, OpInfoMap::linked()?, &LowerRequest::new(&request, &|_| None, &[&out]))?;
    assert_eq!(lowered.text.matches("stablehlo.while").count(), 2, "{}", lowered.text);
    Ok(())
}

#[test]
fn gradient_is_unrolled() -> Result<()> {
    let gradient = |steps: i64| {
        let net = Builder::new();
        let out = decay(&net.input("x", DType::F64, &[steps, 2])).sum(&[]).name();
        let mut program = net.program()?.clone();
        differentiate(&mut program, &out)?;
        Ok(program)
    };
    let program: Program = gradient(3)?;
    assert_eq!(program.blocks().len(), 1);
    let found = run(&program, &numbers(3)?, "x@GRAD")?;
    assert_eq!(found.slice::<f64>()?, [1.3125, 1.3125, 1.25, 1.25, 1.0, 1.0]);
    let e: autobwd::Error = gradient(-1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoGradient);
    assert!(e.to_string().contains("the number of steps must be known"), "{e}");
    Ok(())
}

#[test]
fn loop_is_a_block_but_has_no_gradient() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F64, &[2, 2]);
    let out = emit(Doubled { x: (&x).into(), out: New }).out.name();
    let (mut program, x) = (net.program()?.clone(), numbers(2)?);
    let x = Tensor::from_vec([2, 2], x.to_f64s().iter().map(|x| x + 3.0).collect())?;
    assert_eq!(run(&composed(&program)?, &x, &out)?, run(&program, &x, &out)?);
    let e = differentiate(&mut program, &out).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NoGradient);
    let expected = "a composition that is differentiated has no control flow but recurrences over sequences";
    assert!(e.to_string().contains(expected), "{e}");
    Ok(())
}
