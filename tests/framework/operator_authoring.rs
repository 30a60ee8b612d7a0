//! Conveniences for operator authors.

use autobwd::{
    Arg, Buf, Builder, Cx, DType, Derived, Float, Infer, Kernel, Meta, New, Pointwise, Result, Var,
    check::{Sample, check_sample, out, uniform},
    emit, gradients,
    op::SelfAdjoint,
    register_op,
    tensor::OptionalBuf,
};
use autobwd_ops::Init;

/// `out = delta · (2 · x - 0.5) / 4 + x`
#[register_op(grad = Derived, pointwise, name = "authors_line")]
pub(crate) struct Line<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape as `x`.
    #[output]
    pub(crate) out: V,
    /// A factor.
    #[attr]
    pub(crate) delta: f32,
}
impl<F: Float> Pointwise for Line<F> {
    fn eval(&mut self) {
        self.out = F::from(self.delta) * (self.x * 2.0 - 0.5) / 4.0 + self.x;
    }
}

#[test]
fn formulas_take_attributes_and_constants_as_they_are() -> Result<()> {
    check_sample(&Sample::from(Line { x: uniform([2, 3]), out: out(), delta: 0.75 }))?;
    let tape = autobwd::eager();
    let x = tape.leaf("x", autobwd::Tensor::scalar(3.0)?);
    assert_eq!(emit(Line { x: Arg::from(&x), out: New, delta: 2.0 }).out.item()?, 5.75);
    Ok(())
}

/// Sums of rows; not self-adjoint.
#[register_op(grad = SelfAdjoint, name = "authors_row_sums")]
pub(crate) struct RowSums<V = Var> {
    /// Two dimensions.
    #[input]
    pub(crate) x: V,
    /// One dimension.
    #[output]
    pub(crate) out: V,
}
impl Infer for RowSums<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [rows, _] = self.x.unpack()?;
        self.out.set(self.x.dtype, [rows].into_iter().collect::<autobwd::Dims>());
        Ok(())
    }
}
impl Kernel for RowSums<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (x, out) = (self.x.slice::<f64>()?, self.out.slice_mut::<f64>()?);
        let width = x.len() / out.len().max(1);
        out.iter_mut().zip(x.chunks(width.max(1))).for_each(|(out, row)| *out = row.iter().sum());
        Ok(())
    }
}

#[test]
fn self_adjoint_operator_must_keep_its_shape() -> Result<()> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F64, &[2, 3], |w| Init::Constant(1.0).emit(w, 0));
    let sums = emit(RowSums { x: Arg::from(&w), out: New }).out.name();
    let mut program = (*net.program()?).clone();
    let e = gradients(&mut program, &[&sums], &["w"], &Default::default()).unwrap_err().to_string();
    let text =
        "operator `authors_row_sums` (block 0, operator 0, added at tests/framework/operator_authoring.rs";
    assert!(e.starts_with(text), "{e}");
    let text = "`grad = SelfAdjoint` is for operators whose output is like their input, but `X` is float64 [2, 3], `Out` float64 [2]";
    assert!(e.ends_with(text), "{e}");
    Ok(())
}

/// `out = x`, and `half = x / 2` if wanted, each plus `bias` if present.
#[register_op(grad = autobwd::NoGrad, name = "authors_copies")]
pub(crate) struct Copies<V = Var> {
    /// Any shape.
    #[input]
    pub(crate) x: V,
    /// Same shape.
    #[input]
    pub(crate) bias: Option<V>,
    /// Same shape.
    #[output(like = x)]
    pub(crate) out: V,
    /// Same shape.
    #[output(like = x)]
    pub(crate) half: Option<V>,
}
impl Kernel for Copies<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let (x, bias) = (self.x.slice::<f64>()?, self.bias.slice::<f64>()?);
        let of = |i: usize| bias.map_or(0.0, |bias| bias[i]);
        self.out.slice_mut()?.iter_mut().enumerate().for_each(|(i, out)| *out = x[i] + of(i));
        if let Some(half) = self.half.slice_mut()? {
            half.iter_mut().enumerate().for_each(|(i, half)| *half = x[i] / 2.0 + of(i));
        }
        Ok(())
    }
}

#[test]
fn optional_slots_are_read_and_written_in_one_line() -> Result<()> {
    let tape = autobwd::eager();
    let [x, bias] = [3.0, 10.0].map(|x| tape.constant(autobwd::Tensor::scalar(x).unwrap()));
    let copies =
        |bias: Option<Arg>, half: Option<Arg>| emit(Copies { x: Arg::from(&x), bias, out: New, half });
    let plain = copies(None, None);
    assert_eq!((plain.out.item()?, plain.half.is_none()), (3.0, true));
    let both = copies(Some(Arg::from(&bias)), Some(New));
    assert_eq!((both.out.item()?, both.half.unwrap().item()?), (13.0, 11.5));
    // Errors name the slot.
    let single = tape.constant(autobwd::Tensor::scalar(1.0_f32)?);
    let e = copies(Some(Arg::from(&single)), None).out.item().unwrap_err().to_string();
    assert!(e.contains("`Bias` holds float32, but the kernel asks for float64"), "{e}");
    Ok(())
}

/// The traits that these globs import do not shadow methods of the standard library or of users.
mod globs {
    use autobwd::prelude::*;
    use autobwd::*;

    trait At {
        fn at(&self, i: usize) -> i32;
    }
    impl At for Vec<i32> {
        fn at(&self, i: usize) -> i32 {
            self[i]
        }
    }

    #[test]
    fn take_map_and_at_mean_what_they_did() -> Result<()> {
        let mut some = Some(vec![1, 2, 3]);
        let all: Option<Vec<i32>> = some.take();
        let doubled: Vec<i32> = all.iter().flatten().map(|x| x * 2).take(2).collect();
        assert_eq!((some, all.map(|all| all.at(2)), doubled.at(1)), (None, Some(3), 4));
        assert_eq!([Meta::new(DType::F32, [1, 2])].map(|meta| meta.rank()), [2]);
        assert_eq!(std::mem::take(&mut vec![Tensor::scalar(1.0)?]).len(), 1);
        Ok(())
    }
}
