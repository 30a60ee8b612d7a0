//! Single mistakes in kernels: the checker finds each.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use autobwd::{
    Buf, Cx, Kernel, NoGrad, Result, Var,
    check::{Sample, check_within, out, uniform},
    op::with_float,
    register_op,
};

use crate::support::checks::{assert_all_found, kernel};

/// Takes the rows of a sparse gradient for the first rows.
#[register_op(name = "rows_by_position", grad = NoGrad)]
pub(crate) struct RowsByPosition<V = Var> {
    #[input]
    pub(crate) param: V,
    #[input(sparse)]
    pub(crate) grad: V,
    #[output(like = param)]
    pub(crate) param_out: V,
}
impl Kernel for RowsByPosition<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        with_float!(self.param, T => {
            let out = self.param_out.slice_mut::<T>()?;
            out.copy_from_slice(self.param.slice()?);
            let gradient = if self.grad.is_sparse() {
                self.grad.rows::<T>()?.values()
            } else {
                self.grad.slice::<T>()?
            };
            out.iter_mut().zip(gradient).for_each(|(out, g)| *out -= g);
        });
        Ok(())
    }
}

/// `out = x`, in blocks whose length is a share of 8.
#[register_op(name = "blocks_of_share", grad = NoGrad)]
pub(crate) struct BlocksOfShare<V = Var> {
    #[input]
    pub(crate) x: V,
    #[output(like = x)]
    pub(crate) out: V,
    #[attr(default = 1.0)]
    pub(crate) share: f64,
}
impl Kernel for BlocksOfShare<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let length = (8.0 / self.share.abs()) as usize;
        with_float!(self.x, T => {
            let out = self.out.slice_mut::<T>()?.chunks_mut(length);
            out.zip(self.x.slice::<T>()?.chunks(length)).for_each(|(out, x)| out.copy_from_slice(x));
        });
        Ok(())
    }
}

/// `out = x`, or `out = n x` of `n` elements along an axis that is not checked.
#[register_op(name = "axis_if_scaled", grad = NoGrad)]
pub(crate) struct AxisIfScaled<V = Var> {
    #[input]
    pub(crate) x: V,
    #[output(like = x)]
    pub(crate) out: V,
    #[attr(default = false)]
    pub(crate) scaled: bool,
    #[attr(default = 0)]
    pub(crate) axis: i64,
}
impl Kernel for AxisIfScaled<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let n = if self.scaled && !self.x.dims().is_empty() { self.x.dims()[self.axis as usize] } else { 1 };
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            self.out.slice_mut::<T>()?.iter_mut().zip(x).for_each(|(out, x)| *out = x * n as T);
        });
        Ok(())
    }
}
fn axis_if_scaled(scaled: bool) -> Sample {
    AxisIfScaled { x: uniform([2, 3]), out: out(), scaled, axis: 0 }.into()
}
autobwd::samples!(AxisIfScaled, [axis_if_scaled(false), axis_if_scaled(true)]);

static CALLS: AtomicU32 = AtomicU32::new(0);
kernel!(Random, "random_result", NoGrad, |x, out, T| {
    let call = CALLS.fetch_add(1, Ordering::Relaxed) as T;
    out.iter_mut().zip(x.slice::<T>()?).for_each(|(out, x)| *out = x + call);
});
kernel!(NeverEnds, "never_ends", NoGrad, |x, out, T| {
    out.copy_from_slice(x.slice()?);
    while std::hint::black_box(true) {
        std::thread::sleep(Duration::from_secs(1));
    }
});
kernel!(NaiveSum, "naive_sum", NoGrad, |x, out, T| {
    out.fill(x.slice::<T>()?.iter().fold(0.0, |sum: T, x| sum + x * x));
});
kernel!(AllocatesOfRankFive, "allocates_of_rank_five", NoGrad, |x, out, T| match x.dims().len() {
    5.. => out.copy_from_slice(&std::hint::black_box(x.slice::<T>()?.to_vec())),
    _ => out.copy_from_slice(x.slice()?),
});
kernel!(IndexByData, "index_by_data", NoGrad, |x, out, T| {
    out.iter_mut().zip(x.slice::<T>()?).for_each(|(out, at)| *out = [1.0, 2.0][(*at * *at) as usize]);
});

#[test]
fn mistakes_in_kernels_are_found() {
    let matrix = || uniform([2, 3]);
    let mistakes: Vec<(Sample, &str)> = vec![
        (
            Random { x: matrix(), out: out() }.into(),
            "the kernel of `random_result`: `Out`[0, 0] is random: two runs on the same inputs differ",
        ),
        (
            RowsByPosition { param: matrix(), grad: matrix(), param_out: out() }.into(),
            "where `Grad` has the rows [1], output `ParamOut` is ",
        ),
        (
            BlocksOfShare { x: matrix(), out: out(), share: 1.0 }.into(),
            "attribute `share` made inf, operator `blocks_of_share` (block 0, operator 0; X = `X`, Out = `Out`): the \
             kernel of `blocks_of_share` panicked at tests/framework/checker_kernel_mistakes.rs:",
        ),
        (
            AllocatesOfRankFive { x: matrix(), out: out() }.into(),
            "`X` of 5 dimensions, the kernel of `allocates_of_rank_five`: the kernel allocates memory 1 times",
        ),
        // Of two kinds of rows, the second is wrong.
        (axis_if_scaled(true), "attribute `axis` made -1, operator `axis_if_scaled`"),
        (NaiveSum { x: matrix(), out: out() }.into(), "of a million elements, output `Out` in float32"),
        (
            IndexByData { x: matrix(), out: out() }.into(),
            "on inputs with all bytes 0x7f, the kernel of `index_by_data` panicked at tests/framework/checker_kernel_mistakes.rs:",
        ),
    ];
    assert_all_found(mistakes);
}

#[test]
fn row_that_never_ends_is_named() {
    let sample = Sample::from(NeverEnds { x: uniform([2, 3]), out: out() });
    let e = check_within(&sample, Duration::from_millis(200)).unwrap_err();
    assert_eq!(e.to_string(), "`never_ends`: the check has not ended after 200ms");
}
