//! False shape rules of operators that have a formula and a kernel: in a fused kernel, the formula would write as many
//! elements as its inputs have.

use autobwd::{
    Buf, Cx, DType, Dims, Float, Infer, Kernel, Meta, New, NoGrad, Pointwise, Result, Var, emit,
    op::with_dtype,
    register_op,
    tensor::{Dim, Element},
};
use autobwd_ops::Math;

use super::{run, run_eagerly};

/// `out = x + 1`, with a shape and dtype that differ from those of `x`.
#[register_op(grad = NoGrad, pointwise, kernel, name = "attack_liar")]
pub(crate) struct Liar<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// The false output.
    #[output(inplace = x)]
    pub out: V,
    /// Number of the lie.
    #[attr]
    pub lie: i64,
}
impl<F: Float> Pointwise for Liar<F> {
    fn eval(&mut self) {
        self.out = self.x + 1.0;
    }
}
impl Infer for Liar<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (n, dims, dtype) = (self.x.dims.numel(), self.x.dims.clone(), self.x.dtype);
        let of = |dims: &[Dim]| dims.iter().copied().collect::<Dims>();
        match self.lie {
            0 => self.out.set(dtype, dims),
            1 => self.out.set(dtype, of(&[n + 500])),
            2 => self.out.set(dtype, [3]),
            3 => self.out.set(dtype, of(&[n * 2])),
            4 => self.out.set(DType::F64, dims),
            5 => self.out.set(DType::I32, dims),
            6 => self.out.set(DType::Bool, dims),
            7 => self.out.set(DType::I64, of(&[n * 100])),
            8 => self.out.set(DType::U8, [1]),
            9 => self.out.set(dtype, []),
            10 => self.out.set(dtype, of(&[1.into(), n, 1.into()])),
            11 => self.out.set(dtype, of(&[7.into(), n])),
            12 => {
                self.out.like(&self.x);
                self.out.array = true;
            }
            13 => {
                self.out.like(&self.x);
                self.out.rows = Some(2.into());
            }
            14 => {
                self.out.like(&self.x);
                self.out.rows = Some(usize::MAX.into());
            }
            15 => self.out.set(dtype, [usize::MAX / 8]),
            16 => self.out.set(dtype, [0]),
            17 => {
                self.x.set(DType::F64, [1_000_000]);
                self.out.set(self.x.dtype, dims);
            }
            18 => std::mem::swap(&mut self.x, &mut self.out),
            19 => {
                self.out.like(&self.x);
                self.x.array = true;
            }
            20 => self.out.set(DType::F64, [1]),
            21 => self.out.set(dtype, of(&[Dim::UNKNOWN])),
            _ => {
                self.out.set(dtype, [1, 0]);
                self.out.rows = Some(3.into());
            }
        }
        Ok(())
    }
}
impl Kernel for Liar<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        if self.out.is_sparse() {
            let (numbers, values) = self.out.rows_mut::<f32>()?;
            numbers.fill(-1);
            values.fill(0.0);
            return Ok(());
        }
        if self.out.dtype() == self.x.dtype() && self.out.numel() == self.x.numel() {
            self.out.inout::<f32>(&self.x)?.copied().iter_mut().for_each(|x| *x += 1.0);
            return Ok(());
        }
        fn fill<T: Element>(out: &mut Buf<'_>) -> Result<()> {
            out.slice_mut::<T>()?.fill(T::default());
            Ok(())
        }
        with_dtype!(self.out.dtype(), T => fill::<T>(&mut self.out))
    }
}

const LIES: i64 = 23;

#[test]
fn formula_writes_only_outputs_of_the_shape_rule() {
    let x = [0.5_f32; 1000];
    let mut told = 0;
    for lie in 0..LIES {
        let liar = |h: &autobwd::Expr| emit(Liar { x: h.into(), out: New, lie }).out;
        // Alone, it runs by its kernel.
        let alone = run(&x, liar);
        let beside = run(&x, |x| liar(&(x * 1.0)));
        let between = run(&x, |x| {
            let out = liar(&(x * 1.0));
            if out.dtype().is_float() { &out * 1.0 } else { out }
        });
        let eagerly = run_eagerly(&x, liar);
        let of = |outcome: &Result<Vec<f64>>| outcome.as_ref().ok().cloned();
        // With another dtype, formula and kernel differ; another shape is possible with the kernel only.
        if ![4, 5, 6, 17].contains(&lie) {
            assert_eq!(of(&alone), of(&beside), "lie {lie}: {alone:?} {beside:?}");
        }
        // Rows have no elements for a formula.
        if ![4, 5, 6, 13, 17, 22].contains(&lie) {
            assert_eq!(
                (of(&alone), of(&alone)),
                (of(&between), of(&eagerly)),
                "lie {lie}: {between:?} {eagerly:?}"
            );
        }
        let outcomes = [alone, beside, between, eagerly];
        for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            told += 1;
            assert!(error.to_string().contains("attack_liar"), "lie {lie}: {error}");
        }
        match lie {
            0 | 18 | 19 => outcomes.iter().for_each(|out| assert_eq!(out.as_ref().unwrap(), &[1.5; 1000])),
            4 | 17 => outcomes.iter().for_each(|out| assert_eq!(out.as_ref().unwrap().len(), 1000)),
            12 | 14 | 15 | 21 => assert!(outcomes.iter().all(Result::is_err), "lie {lie}: {outcomes:?}"),
            _ => {}
        }
    }
    assert!(told > 0);
}

/// `2 * x`, as rows.
#[register_op(grad = NoGrad, pointwise, kernel, name = "attack_twice_as_rows")]
pub(crate) struct TwiceAsRows<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Two rows of the shape of `x`.
    #[output]
    pub out: V,
}
impl Infer for TwiceAsRows<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        self.out.rows = Some(2.into());
        Ok(())
    }
}
impl Kernel for TwiceAsRows<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let x = self.x.slice::<f32>()?;
        let (numbers, values) = self.out.rows_mut::<f32>()?;
        numbers.copy_from_slice(&[0, 1]);
        values.iter_mut().zip(x).for_each(|(value, x)| *value = 2.0 * x);
        Ok(())
    }
}
impl<F: Float> Pointwise for TwiceAsRows<F> {
    fn eval(&mut self) {
        self.out = self.x + self.x;
    }
}

#[test]
fn rows_are_made_by_the_kernel_despite_fusion() -> Result<()> {
    let twice = |h: &autobwd::Expr| emit(TwiceAsRows { x: h.into(), out: New }).out;
    let n = 1 << 20;
    let mut expected = vec![0.0; n];
    expected[..2].fill(1.0);
    let x = vec![0.5; n];
    assert_eq!(run(&x, twice)?, expected);
    assert_eq!(run(&x, |x| twice(&(x * 1.0)))?, expected);
    assert_eq!(run_eagerly(&x, twice)?, expected);
    let e = run(&x, |x| twice(x).tanh()).unwrap_err();
    assert!(e.to_string().contains("a dense tensor is needed"), "{e}");
    Ok(())
}
