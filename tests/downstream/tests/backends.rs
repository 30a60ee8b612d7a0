//! Operators of another crate on XLA and in ONNX: by their formula, by their composition, and by a rule of their own for a
//! kernel that neither defines.

use autobwd::{
    Buf, Builder, Composed, Composition, Cx, DType, ErrorKind, Expr, Float, Kernel, New, NoGrad, OpInfoMap,
    Pointwise, Result, Scope, Var, emit, op::Rule, register_op,
};
use autobwd_onnx::{LoadOptions, Onnx, from_bytes};
use autobwd_ops::{Math, Model};
use autobwd_xla::lower::{Hlo, LowerRequest, lower};

/// `out = x / (1 + x²)`.
#[register_op(grad = NoGrad, pointwise)]
struct Damped<V = Var> {
    #[input]
    x: V,
    #[output(like = x)]
    out: V,
}
impl<F: Float> Pointwise for Damped<F> {
    fn eval(&mut self) {
        self.out = self.x / (F::from(1.0) + self.x * self.x);
    }
}

/// `out = x - mean x`, along the last axis.
#[register_op(grad = Composed, composed)]
struct Centred<V = Var> {
    #[input]
    x: V,
    #[output(like = x)]
    out: V,
}
impl Composition for Centred<Expr> {
    fn compose(&mut self) {
        self.out = &self.x - &self.x.mean_keepdim(&[-1]);
    }
}

macro_rules! reversing {
    ($op:ident) => {
        /// The elements in reverse order.
        #[register_op(grad = NoGrad)]
        struct $op<V = Var> {
            #[input]
            x: V,
            #[output(like = x)]
            out: V,
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, _: &Cx) -> Result<()> {
                let out = self.out.slice_mut::<f32>()?;
                out.copy_from_slice(self.x.slice()?);
                out.reverse();
                Ok(())
            }
        }
    };
}
reversing!(Backwards);
reversing!(Opaque);

impl Rule<Hlo> for Backwards<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.reverse(&[0]);
    }
}
autobwd_xla::rules!(Backwards);

impl Rule<Onnx> for Backwards<Onnx> {
    fn apply(&mut self) {
        let [last, end, axis, step] = [-1, i64::MIN, 0, -1].map(|n| self.x.ints(&[n]));
        self.out = self.x.node("Slice", &[&last, &end, &axis, &step], &[]);
    }
}
autobwd_onnx::rules!(Backwards);

/// The StableHLO text of a program with one operator, and the program that its ONNX file is read as.
fn translated(op: impl FnOnce(&Expr) -> Expr) -> Result<(Result<String>, Result<String>)> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[4]);
    let out = op(&x).name();
    let program = net.program()?.clone();
    let request = [("x", x.meta())];
    let lowered = lower(&program, OpInfoMap::linked()?, &LowerRequest::new(&request, &|_| None, &[&out]));
    let model = Model { program, feeds: vec!["x".into()], fetches: vec![out], scope: Scope::new() };
    let read = autobwd_onnx::to_bytes(&model).and_then(|file| from_bytes(&file, &LoadOptions::default()));
    Ok((lowered.map(|lowered| lowered.text), read.map(|model| model.program.to_string())))
}

#[test]
fn formula_composition_and_own_rule_reach_both_backends() -> Result<()> {
    let (hlo, onnx) = translated(|x| emit(Damped { x: x.into(), out: New }).out)?;
    assert!(hlo?.contains("stablehlo.divide") && onnx?.contains("elementwise_div"));
    let (hlo, onnx) = translated(|x| emit(Centred { x: x.into(), out: New }).out)?;
    assert!(hlo?.contains("stablehlo.reduce") && onnx?.contains("reduce_mean"));
    let (hlo, onnx) = translated(|x| emit(Backwards { x: x.into(), out: New }).out)?;
    assert!(hlo?.contains("stablehlo.reverse"));
    let read = onnx?;
    assert!(!read.contains("backwards(") && read.contains("slice") || read.contains("flip"), "{read}");
    Ok(())
}

#[test]
fn operator_without_meaning_is_refused_by_name() -> Result<()> {
    let (hlo, onnx) = translated(|x| emit(Opaque { x: x.into(), out: New }).out)?;
    for refused in [hlo, onnx] {
        let e = refused.unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::Format), "{e:?}");
        let text = e.to_string();
        assert!(text.contains("`opaque`") && text.contains("impl Composition"), "{text}");
    }
    Ok(())
}
